//! A plan with numbers for its symbols: every size, offset, grid and scalar evaluated and checked once.
//!
//! What is left for a call is to put the addresses of its inputs and outputs into the words of the launches.

use super::donate;
use super::hosted::{Segment, segments};
use crate::device::{ArgKind, Grid, MapShape};
use oxyfuel_base::dtype::Kind;
use oxyfuel_base::{DType, Expr, Id, Result, Symbol, ensure, err};
use oxyfuel_plan::{ArgRef, Artefact, BufferHome, Kernel, Plan, Step, SymbolSource, TensorMapSpec};
use std::ops::Range;

/// Evaluated and checked; see the module.
#[derive(Debug)]
pub(super) struct Instance {
    /// The numbers.
    pub symbols: Vec<(Symbol, i64)>,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    pub buffers: Vec<Buffer>,
    pub arena_bytes: usize,
    pub steps: Vec<ReadyStep>,
    /// The words of all launches, one after the other, with scalars in place and zero for pointers.
    pub words: Vec<u64>,
    /// What each word is.
    pub kinds: Vec<ArgKind>,
    /// Words that hold pointers, in the order of the words.
    pub pointers: Vec<Pointer>,
    /// The steps, cut where the host has something to do.
    pub segments: Vec<Segment>,
    /// Whether buffers come and go while a call runs.
    pub apart: bool,
    /// First and last step that touch each buffer; see [`donate::uses`].
    pub uses: Vec<Option<(usize, usize)>>,
}

/// What an input must be.
#[derive(Debug)]
pub(super) struct Input {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub align: u64,
    /// Bytes from its first element that kernels may touch.
    pub bytes: usize,
    /// An output is a window on it, so the call may write it.
    pub written: bool,
}

/// What an output will be.
#[derive(Debug)]
pub(super) struct Output {
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    /// In elements from the start of its buffer.
    pub offset: i64,
    pub buffer: usize,
    /// No output behind it is a window on the same buffer.
    pub last: bool,
}

/// A buffer's place and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    pub home: Home,
    pub bytes: usize,
}

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// At the first element of an input.
    Input(usize),
    /// In memory that the caller gets.
    Output(usize),
    /// In the plan's arena.
    Arena {
        /// From the arena's start.
        offset: usize,
    },
    /// In the plan's own constants.
    Constant,
    /// In the host's hands, or in memory of its own while it lives.
    Host,
    /// Its size is not known yet: a step of the plan will say it.
    Later,
    /// In the memory of another buffer; see [`BufferHome::Within`].
    Within {
        /// The buffer.
        buffer: usize,
        /// From its start.
        offset: usize,
    },
}

/// A word that is a pointer: `buffer`'s address plus `offset` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub word: usize,
    pub buffer: usize,
    pub offset: u64,
}

#[derive(Debug)]
pub(super) enum ReadyStep {
    Launch {
        kernel: usize,
        words: Range<usize>,
        /// Those of the instance's pointers that are among the words.
        pointers: Range<usize>,
        grids: Vec<Grid>,
        maps: Vec<MapShape>,
    },
    Copy {
        src: usize,
        dst: usize,
        bytes: usize,
    },
    /// The host reads the plan itself.
    External,
}

/// Expressions with numbers for their symbols.
struct Numbers<'a>(&'a [(Symbol, i64)]);

impl Numbers<'_> {
    fn value(&self, expr: &Expr) -> Result<i64> {
        expr.eval(&|symbol| {
            self.0
                .iter()
                .find(|(known, _)| *known == symbol)
                .map(|(_, value)| *value)
        })
    }

    fn values(&self, exprs: &[Expr]) -> Result<Vec<i64>> {
        exprs.iter().map(|expr| self.value(expr)).collect()
    }

    /// A number that counts something.
    fn count(&self, expr: &Expr, what: &str) -> Result<usize> {
        let value = self.value(expr)?;
        usize::try_from(value).map_err(|_| err!(InvalidPlan, "{what} is {value}"))
    }

    fn counts(&self, exprs: &[Expr], what: &str) -> Result<Vec<u64>> {
        exprs
            .iter()
            .map(|expr| self.count(expr, what).map(|count| count as u64))
            .collect()
    }
}

impl Instance {
    /// Whether the memory of an output is for it alone, from its first element on.
    pub fn has_own_memory(&self, index: usize) -> bool {
        let output = &self.outputs[index];
        let of_buffer = |other: &&Output| other.buffer == output.buffer;
        self.buffers[output.buffer].home == Home::Output(index)
            && output.offset == 0
            && self.outputs.iter().filter(of_buffer).count() == 1
    }

    /// Evaluates a verified plan; `symbols` has a number for each of its symbols, but for those that a step binds: then the
    /// instance ends with the first step that binds one which is missing.
    pub fn new(plan: &Plan, symbols: &[(Symbol, i64)]) -> Result<Self> {
        let numbers = Numbers(symbols);
        let known = known_steps(plan, symbols);
        for rule in &plan.limits {
            // What a step binds is not known before it ran; the instance behind it looks again.
            if let (Ok(size), Ok(limit)) = (numbers.value(&rule.size), numbers.value(&rule.limit)) {
                ensure!(
                    size <= limit,
                    ShapeMismatch,
                    "{} has size {size}, what it indexes only {limit}",
                    rule.what
                );
            }
        }
        let arena_bytes = if known == plan.steps.len() {
            numbers.count(&plan.arena_bytes, "the size of the arena")?
        } else {
            known_arena(plan, &numbers, known)
        };
        let mut buffers = vec![];
        for (id, buffer) in plan.buffers.iter() {
            if buffer.first_step as usize >= known && known < plan.steps.len() {
                buffers.push(Buffer {
                    home: Home::Later,
                    bytes: 0,
                });
                continue;
            }
            // What the last known step returns may have a size that only its result tells.
            let returned = known < plan.steps.len() && matches!(buffer.home, BufferHome::Host);
            let bytes = match numbers.count(&buffer.bytes, "the size of a buffer") {
                Err(_) if returned => 0,
                bytes => bytes?,
            };
            let home = match &buffer.home {
                BufferHome::Input(input) => Home::Input(*input as usize),
                BufferHome::Host => Home::Host,
                BufferHome::Output(output) => Home::Output(*output as usize),
                BufferHome::Constant(constant) => {
                    ensure!(
                        constant.len() == bytes,
                        InvalidPlan,
                        "constant {id} has {} bytes, not {bytes}",
                        constant.len()
                    );
                    Home::Constant
                }
                BufferHome::Arena { offset } => {
                    let offset = numbers.count(offset, "the place of a buffer")?;
                    let inside = offset
                        .checked_add(bytes)
                        .is_some_and(|end| end <= arena_bytes);
                    ensure!(inside, InvalidPlan, "buffer {id} reaches beyond the arena");
                    ensure!(
                        offset.is_multiple_of(buffer.align.max(1) as usize),
                        InvalidPlan,
                        "buffer {id} is not aligned to {}",
                        buffer.align
                    );
                    Home::Arena { offset }
                }
                BufferHome::Within {
                    buffer: owner,
                    offset,
                } => {
                    let offset = numbers.count(offset, "the place of a buffer")?;
                    let room = plan.buffers.get(*owner).filter(|owner| {
                        matches!(owner.home, BufferHome::Output(_) | BufferHome::Host)
                    });
                    let room = room.map(|owner| numbers.count(&owner.bytes, "a buffer's size"));
                    let room = room.transpose()?;
                    let end = offset.checked_add(bytes);
                    ensure!(
                        room.is_some_and(|room| end.is_some_and(|end| end <= room)),
                        InvalidPlan,
                        "buffer {id} reaches beyond what it lies within"
                    );
                    ensure!(
                        offset.is_multiple_of(buffer.align.max(1) as usize),
                        InvalidPlan,
                        "buffer {id} is not aligned to {}",
                        buffer.align
                    );
                    Home::Within {
                        buffer: owner.index(),
                        offset,
                    }
                }
            };
            buffers.push(Buffer { home, bytes });
        }
        check_overlap(plan, &buffers)?;
        let mut this = Self {
            symbols: symbols.to_vec(),
            inputs: inputs(plan, &numbers, &buffers)?,
            outputs: if known == plan.steps.len() {
                outputs(plan, &numbers, &buffers)?
            } else {
                vec![]
            },
            buffers,
            arena_bytes,
            steps: vec![],
            words: vec![],
            kinds: vec![],
            pointers: vec![],
            segments: vec![],
            apart: false,
            uses: donate::uses(plan),
        };
        let mut bytes = vec![];
        for step in &plan.steps[..known] {
            bytes.push(match step {
                Step::Launch { kernel, .. } => {
                    let cost = &plan.kernels[*kernel].cost;
                    let moved = cost.bytes_read.clone() + cost.bytes_written.clone();
                    numbers.value(&moved).map_or(u64::MAX >> 16, |n| n as u64)
                }
                Step::Copy { bytes, .. } => numbers.count(bytes, "the size of a copy")? as u64,
                Step::External(_) => 0,
            });
            let step = this.step(plan, step, &numbers)?;
            this.steps.push(step);
        }
        this.apart = this.buffers.iter().any(|buffer| buffer.home == Home::Host);
        this.segments = segments(plan, &this, &bytes);
        Ok(this)
    }

    fn step(&mut self, plan: &Plan, step: &Step, numbers: &Numbers<'_>) -> Result<ReadyStep> {
        match step {
            Step::Copy { src, dst, bytes } => {
                let (src, dst, bytes) = (
                    src.index(),
                    dst.index(),
                    numbers.count(bytes, "the size of a copy")?,
                );
                let within =
                    |buffer: usize| matches!(self.buffers[buffer].home, Home::Within { .. });
                ensure!(
                    !within(src) && !within(dst),
                    InvalidPlan,
                    "a copy of what lies within another buffer"
                );
                ensure!(
                    bytes <= self.buffers[src].bytes && bytes <= self.buffers[dst].bytes,
                    InvalidPlan,
                    "a copy of {bytes} bytes between smaller buffers"
                );
                Ok(ReadyStep::Copy { src, dst, bytes })
            }
            Step::External(_) => Ok(ReadyStep::External),
            Step::Launch { kernel: id, args } => {
                let kernel = &plan.kernels[*id];
                let first = self.words.len();
                let first_pointer = self.pointers.len();
                for arg in args {
                    let (word, kind) = self.arg(arg, numbers)?;
                    self.words.push(word);
                    self.kinds.push(kind);
                }
                let grids = kernel.phases.iter().map(|phase| {
                    let grid = grid(&numbers.counts(&phase.grid, "a grid")?, phase.min_chunk);
                    grid.ok_or_else(|| {
                        err!(SizeOverflow, "the grid of kernel {} overflows", kernel.name)
                    })
                });
                let grids = grids.collect::<Result<Vec<_>>>()?;
                let words = first..self.words.len();
                let maps = maps(kernel, &self.kinds[words.clone()], numbers)?;
                Ok(ReadyStep::Launch {
                    kernel: id.index(),
                    words,
                    pointers: first_pointer..self.pointers.len(),
                    grids,
                    maps,
                })
            }
        }
    }

    fn arg(&mut self, arg: &ArgRef, numbers: &Numbers<'_>) -> Result<(u64, ArgKind)> {
        Ok(match arg {
            ArgRef::Buffer { buffer, offset } => {
                let offset = numbers.count(offset, "the offset of an argument")?;
                let bytes = self.buffers[buffer.index()].bytes.checked_sub(offset);
                let bytes = bytes.ok_or_else(|| {
                    err!(InvalidPlan, "an argument points beyond buffer {buffer}")
                })?;
                let word = self.words.len();
                let (buffer, start) = match self.buffers[buffer.index()].home {
                    Home::Within { buffer, offset } => (buffer, offset as u64),
                    Home::Input(_)
                    | Home::Output(_)
                    | Home::Arena { .. }
                    | Home::Constant
                    | Home::Host
                    | Home::Later => (buffer.index(), 0),
                };
                self.pointers.push(Pointer {
                    word,
                    buffer,
                    offset: start + offset as u64,
                });
                (0, ArgKind::Buffer { bytes })
            }
            ArgRef::Index(expr) => (numbers.value(expr)? as u64, ArgKind::Index),
            ArgRef::Literal { dtype, value } => {
                let word = match dtype.kind() {
                    Kind::Signed => value.cast(*dtype).as_i64() as u64,
                    Kind::Bool | Kind::Unsigned | Kind::Float => value.to_bits(*dtype),
                };
                (word, ArgKind::Literal(*dtype))
            }
            ArgRef::TensorMap => (0, ArgKind::TensorMap),
        })
    }
}

fn inputs(plan: &Plan, numbers: &Numbers<'_>, buffers: &[Buffer]) -> Result<Vec<Input>> {
    let inputs = plan.inputs.iter().enumerate().map(|(index, spec)| {
        let shape = numbers.values(&spec.shape)?;
        let strides = numbers.values(&spec.strides)?;
        ensure!(
            shape.len() == strides.len(),
            InvalidPlan,
            "input {} has strides of another rank",
            spec.name
        );
        let buffer = buffers.get(spec.buffer.index());
        let buffer =
            buffer.ok_or_else(|| err!(InvalidPlan, "input {} has no buffer", spec.name))?;
        ensure!(
            buffer.home == Home::Input(index),
            InvalidPlan,
            "the buffer of input {} is not its own",
            spec.name
        );
        Ok(Input {
            name: spec.name.clone(),
            dtype: spec.dtype,
            shape,
            strides,
            align: u64::from(spec.align.max(1)),
            bytes: buffer.bytes,
            written: plan
                .outputs
                .iter()
                .any(|output| output.alias == Some(index as u32)),
        })
    });
    inputs.collect()
}

fn outputs(plan: &Plan, numbers: &Numbers<'_>, buffers: &[Buffer]) -> Result<Vec<Output>> {
    let outputs = plan.outputs.iter().enumerate().map(|(index, spec)| {
        let buffer = buffers.get(spec.buffer.index());
        let buffer = buffer.ok_or_else(|| err!(InvalidPlan, "output {index} has no buffer"))?;
        match buffer.home {
            Home::Arena { .. } | Home::Within { .. } => {
                return Err(err!(
                    InvalidPlan,
                    "output {index} lives in memory that is reused"
                ));
            }
            Home::Input(input) => {
                ensure!(
                    spec.alias == Some(input as u32),
                    InvalidPlan,
                    "output {index} is an input and does not say so"
                );
            }
            Home::Output(_) | Home::Constant | Home::Host | Home::Later => {}
        }
        let (shape, strides) = (numbers.values(&spec.shape)?, numbers.values(&spec.strides)?);
        let offset = numbers.value(&spec.offset)?;
        Ok(Output {
            dtype: spec.dtype,
            shape,
            strides,
            offset,
            buffer: spec.buffer.index(),
            last: !plan.outputs[index + 1..]
                .iter()
                .any(|other| other.buffer == spec.buffer),
        })
    });
    outputs.collect()
}

/// Buffers of the arena, or within one buffer, that live at once must not overlap; with symbols this is known only now.
fn check_overlap(plan: &Plan, buffers: &[Buffer]) -> Result<()> {
    let mut placed: Vec<(Option<usize>, Range<usize>, u32, u32)> = vec![];
    for (buffer, spec) in buffers.iter().zip(plan.buffers.values()) {
        let (owner, offset) = match buffer.home {
            Home::Arena { offset } => (None, offset),
            Home::Within { buffer, offset } => (Some(buffer), offset),
            Home::Input(_) | Home::Output(_) | Home::Constant | Home::Host | Home::Later => {
                continue;
            }
        };
        if buffer.bytes > 0 {
            let range = offset..offset + buffer.bytes;
            let clash = placed.iter().any(|(other, theirs, first, last)| {
                *other == owner
                    && range.start < theirs.end
                    && theirs.start < range.end
                    && spec.first_step <= *last
                    && *first <= spec.last_step
            });
            ensure!(
                !clash,
                InvalidPlan,
                "buffer {} overlaps another that lives at the same time",
                spec.name
            );
            placed.push((owner, range, spec.first_step, spec.last_step));
        }
    }
    Ok(())
}

/// How many steps can be evaluated: all up to the first that binds a symbol without a number.
fn known_steps(plan: &Plan, symbols: &[(Symbol, i64)]) -> usize {
    let missing = plan.symbols.iter().filter_map(|binding| {
        let known = symbols.iter().any(|(symbol, _)| *symbol == binding.symbol);
        match binding.source {
            SymbolSource::Step(step) if !known => Some(step as usize + 1),
            SymbolSource::Step(_) | SymbolSource::Extent { .. } | SymbolSource::Given => None,
        }
    });
    missing.min().unwrap_or(plan.steps.len())
}

/// The arena that the first `known` steps need.
fn known_arena(plan: &Plan, numbers: &Numbers<'_>, known: usize) -> usize {
    let ends = plan.buffers.values().filter_map(|buffer| {
        let BufferHome::Arena { offset } = &buffer.home else {
            return None;
        };
        if buffer.first_step as usize >= known {
            return None;
        }
        let (offset, bytes) = (
            numbers.value(offset).ok()?,
            numbers.value(&buffer.bytes).ok()?,
        );
        usize::try_from(offset.checked_add(bytes)?).ok()
    });
    ends.max().unwrap_or(0)
}

/// Up to three axes; more are folded into the last, since only their product matters to a processor's workers.
fn grid(axes: &[u64], min_chunk: u64) -> Option<Grid> {
    let mut extents = [1u64; 3];
    for (axis, extent) in axes.iter().enumerate() {
        let place = &mut extents[axis.min(2)];
        *place = place.checked_mul(*extent)?;
    }
    extents
        .iter()
        .try_fold(1u64, |total, extent| total.checked_mul(*extent))?;
    Some(Grid { extents, min_chunk })
}

fn maps(kernel: &Kernel, kinds: &[ArgKind], numbers: &Numbers<'_>) -> Result<Vec<MapShape>> {
    let specs: &[TensorMapSpec] = match &kernel.artefact {
        Artefact::Ptx(ptx) => &ptx.tensor_maps,
        Artefact::Interpreted | Artefact::MachineCode(_) => &[],
    };
    let maps = specs.iter().map(|spec| {
        let (param, buffer_param) = (spec.param as usize, spec.buffer_param as usize);
        ensure!(
            kinds.get(param) == Some(&ArgKind::TensorMap)
                && matches!(kinds.get(buffer_param), Some(ArgKind::Buffer { .. })),
            InvalidPlan,
            "the tensor maps of kernel {} do not match its arguments",
            kernel.name
        );
        Ok(MapShape {
            param,
            buffer_param,
            dtype: spec.dtype,
            dims: numbers.counts(&spec.dims, "an extent of a tensor map")?,
            strides: numbers.counts(&spec.strides, "a stride of a tensor map")?,
            boxed: spec.boxed.clone(),
            swizzle_bytes: spec.swizzle_bytes,
        })
    });
    maps.collect()
}
