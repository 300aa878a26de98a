//! Running phases, instances and roles, and the ops that touch memory or order.

use std::collections::HashMap;
use std::rc::Rc;

use oxyfuel_base::{DType, Result, Scalar, ensure, err};

use crate::interp::data::Data;
use crate::interp::memory::{Memory, Toucher};
use crate::interp::order::{Barriers, Clock, RoleTime};
use crate::interp::{Environment, Options};
use crate::ir::{
    Access, BarrierRef, Block, Index, Inst, MmaDim, MmaOperand, Op, Phase, Program, Role, Space,
    TileType, Val,
};

mod ops;

#[derive(Clone, Debug)]
pub(super) enum Value {
    Tile {
        data: Rc<Data>,
        /// The role and group of the asynchronous product that may still be writing it.
        pending: Option<(usize, u64)>,
    },
    /// The number of a memory.
    Mem(usize),
    Map,
}

/// A tensor map with its expressions evaluated.
#[derive(Clone, Debug)]
pub(super) struct MapData {
    pub buffer: Val,
    pub dims: Vec<i64>,
    pub strides: Vec<i64>,
    pub boxed: Vec<i64>,
}

pub(super) struct Machine<'p, 'a> {
    pub program: &'p Program,
    memories: Vec<Memory<'a>>,
    env: Environment,
    pub maps: HashMap<Val, MapData>,
    barriers: Barriers,
    grid: Vec<i64>,
    id: Vec<i64>,
    instance: u32,
    /// Whether stores of the phase may fall on one element.
    overlaps: bool,
    steps_left: u64,
    check: bool,
}

/// What a block does when its instructions are through.
#[derive(Clone, Copy)]
enum Ending<'p> {
    Stop,
    /// The results of the op that owns the block become the yields.
    Hand(&'p [Val]),
    Again {
        inst: &'p Inst,
        at: i64,
        hi: i64,
    },
}

struct Frame<'p> {
    block: &'p Block,
    pc: usize,
    ending: Ending<'p>,
}

/// One line of control: an instance, or a role of it.
struct Thread<'p> {
    name: &'p str,
    frames: Vec<Frame<'p>>,
    time: RoleTime,
    warps: u32,
}

enum Step<'p> {
    Done,
    Blocked,
    Split(&'p [Role]),
}

/// How an access counts in shared memory.
#[derive(Clone, Copy)]
enum Path {
    Ordinary,
    CopyGroup,
    Product,
}

#[derive(Clone, Copy, PartialEq)]
enum Touch {
    Read,
    Write,
}

impl<'p, 'a> Machine<'p, 'a> {
    pub fn new(program: &'p Program, options: Options) -> Self {
        Self {
            program,
            memories: Vec::new(),
            env: Environment(vec![None; program.values.len()]),
            maps: HashMap::new(),
            barriers: Barriers::default(),
            grid: Vec::new(),
            id: Vec::new(),
            instance: 0,
            overlaps: false,
            steps_left: options.step_limit,
            check: options.check,
        }
    }

    pub fn add_memory(&mut self, memory: Memory<'a>) -> Value {
        self.memories.push(memory);
        Value::Mem(self.memories.len() - 1)
    }

    pub fn set(&mut self, v: Val, value: Value) {
        self.env.set(v, value);
    }

    // ---- control ----------------------------------------------------------------------------------------------------------------

    /// Runs the instances of a phase that belong to a round.
    pub fn run_phase(&mut self, phase: &'p Phase, grid: &[i64], round: u32) -> Result<()> {
        for memory in &mut self.memories {
            memory.start_phase();
        }
        self.grid = grid.to_vec();
        self.overlaps = phase.overlaps;
        let total = grid
            .iter()
            .try_fold(1i64, |n, &extent| n.checked_mul(extent.max(0)));
        let total = total
            .filter(|&n| n < i64::from(u32::MAX) - 2)
            .ok_or_else(|| err!(TooLarge, "a grid of {grid:?}"))?;
        let of_round = total / i64::from(self.program.rounds.max(1));
        let first = of_round * i64::from(round);
        for number in first..first + of_round {
            let mut rest = number;
            self.id = grid
                .iter()
                .map(|&extent| {
                    let i = rest % extent;
                    rest /= extent;
                    i
                })
                .collect();
            self.instance = u32::try_from(number + 1).unwrap_or(u32::MAX);
            self.run_instance(phase)
                .map_err(|error| error.context(format_args!("instance {:?}", self.id)))?;
        }
        Ok(())
    }

    fn run_instance(&mut self, phase: &'p Phase) -> Result<()> {
        let geometry = &self.program.geometry;
        let permanent = self.memories.len();
        self.barriers = Barriers::default();
        let lone = geometry.lanes == 1 && geometry.warps == 1;
        let mut main = Thread {
            name: "instance",
            frames: vec![Frame {
                block: &phase.body,
                pc: 0,
                ending: Ending::Stop,
            }],
            time: RoleTime::new(0, Clock::default(), lone),
            warps: geometry.warps,
        };
        loop {
            match self.advance(&mut main)? {
                Step::Done => break,
                Step::Blocked => {
                    return Err(err!(
                        InvalidKernel,
                        "deadlock: the instance waits for a barrier that nobody can complete: {}",
                        self.barriers.describe()
                    ));
                }
                Step::Split(roles) => self.run_roles(&mut main, roles)?,
            }
        }
        self.memories.truncate(permanent);
        Ok(())
    }

    fn run_roles(&mut self, main: &mut Thread<'p>, roles: &'p [Role]) -> Result<()> {
        // Whatever the instance did before is known to every role only if it synchronised.
        let mut threads: Vec<Thread<'p>> = roles
            .iter()
            .enumerate()
            .map(|(number, role)| Thread {
                name: &role.name,
                frames: vec![Frame {
                    block: &role.body,
                    pc: 0,
                    ending: Ending::Stop,
                }],
                time: RoleTime::new(
                    number + 1,
                    main.time.clock.clone(),
                    role.warps == 1 && self.program.geometry.lanes == 1,
                ),
                warps: role.warps,
            })
            .collect();
        let mut done = vec![false; threads.len()];
        while done.contains(&false) {
            let before = self.steps_left;
            for (thread, done) in threads
                .iter_mut()
                .zip(&mut done)
                .filter(|(_, done)| !**done)
            {
                match self
                    .advance(thread)
                    .map_err(|error| error.context(format_args!("role {}", thread.name)))?
                {
                    Step::Done => *done = true,
                    Step::Blocked => {}
                    Step::Split(_) => return Err(err!(Internal, "roles inside of roles")),
                }
            }
            if before == self.steps_left && done.contains(&false) {
                let stuck: Vec<&str> = threads
                    .iter()
                    .zip(&done)
                    .filter(|(_, done)| !**done)
                    .map(|(thread, _)| thread.name)
                    .collect();
                return Err(err!(
                    InvalidKernel,
                    "deadlock: roles {} wait for each other: {}",
                    stuck.join(", "),
                    self.barriers.describe()
                ));
            }
        }
        for thread in &mut threads {
            thread.time.sync();
            main.time.clock.join(&thread.time.clock);
        }
        Ok(())
    }

    /// Runs a thread until it ends, waits or splits.
    fn advance(&mut self, thread: &mut Thread<'p>) -> Result<Step<'p>> {
        loop {
            let Some(frame) = thread.frames.last_mut() else {
                return Ok(Step::Done);
            };
            let Some(inst) = frame.block.insts.get(frame.pc) else {
                let (block, ending) = (frame.block, frame.ending);
                thread.frames.pop();
                self.end_block(thread, block, ending)?;
                continue;
            };
            if matches!(&inst.op, Op::BarrierWait { barrier, parity } if !self.barrier_wait(thread, barrier, *parity)?)
            {
                return Ok(Step::Blocked);
            }
            self.steps_left = self
                .steps_left
                .checked_sub(1)
                .ok_or_else(|| err!(StepLimit, "the program runs longer than its limit"))?;
            if let Some(frame) = thread.frames.last_mut() {
                frame.pc += 1;
            }
            match &inst.op {
                Op::For { lo, hi, inits, .. } => {
                    let (lo, hi) = (self.index(lo)?, self.index(hi)?);
                    let starts = inits
                        .iter()
                        .map(|v| self.env.get(*v).cloned())
                        .collect::<Result<Vec<_>>>()?;
                    self.start_iteration(thread, inst, lo, hi, starts);
                }
                Op::If {
                    cond,
                    on_true,
                    on_false,
                } => {
                    let block = if self.tile(*cond)?.scalar_int() != 0 {
                        on_true
                    } else {
                        on_false
                    };
                    thread.frames.push(Frame {
                        block,
                        pc: 0,
                        ending: Ending::Hand(&inst.results),
                    });
                }
                Op::Roles { roles } => return Ok(Step::Split(roles)),
                _ => self
                    .execute(thread, inst)
                    .map_err(|error| error.context(inst.op.row().name))?,
            }
        }
    }

    /// Enters the body for counter `at`, or leaves the loop with `values` as results.
    fn start_iteration(
        &mut self,
        thread: &mut Thread<'p>,
        inst: &'p Inst,
        at: i64,
        hi: i64,
        values: Vec<Value>,
    ) {
        let Op::For {
            iv, carried, body, ..
        } = &inst.op
        else {
            return;
        };
        let targets = if at < hi { carried } else { &inst.results };
        for (v, value) in targets.iter().zip(values) {
            self.env.set(*v, value);
        }
        if at < hi {
            self.env.set(*iv, Value::tile(Data::I(vec![at])));
            thread.frames.push(Frame {
                block: body,
                pc: 0,
                ending: Ending::Again { inst, at, hi },
            });
        }
    }

    fn end_block(
        &mut self,
        thread: &mut Thread<'p>,
        block: &'p Block,
        ending: Ending<'p>,
    ) -> Result<()> {
        let yields = block
            .yields
            .iter()
            .map(|v| self.env.get(*v).cloned())
            .collect::<Result<Vec<_>>>()?;
        match ending {
            Ending::Stop => {}
            Ending::Hand(results) => {
                for (v, value) in results.iter().zip(yields) {
                    self.env.set(*v, value);
                }
            }
            Ending::Again { inst, at, hi } => {
                let step = match &inst.op {
                    Op::For { step, .. } => *step,
                    _ => 1,
                };
                // Beyond the largest counter there is no next iteration.
                self.start_iteration(thread, inst, at.checked_add(step).unwrap_or(hi), hi, yields);
            }
        }
        Ok(())
    }

    // ---- operands ---------------------------------------------------------------------------------------------------------------

    fn index(&self, index: &Index) -> Result<i64> {
        match index {
            Index::Const(n) => Ok(*n),
            Index::Val(v) => Ok(self.tile(*v)?.scalar_int()),
        }
    }

    fn tile(&self, v: Val) -> Result<&Rc<Data>> {
        match self.env.get(v)? {
            Value::Tile {
                data,
                pending: None,
            } => Ok(data),
            Value::Tile {
                pending: Some(_), ..
            } => Err(err!(DataRace, "accumulator {v} is read before mma_wait")),
            Value::Mem(_) | Value::Map => Err(err!(Internal, "{v} is not a tile")),
        }
    }

    fn memory(&self, v: Val) -> Result<usize> {
        match self.env.get(v)? {
            Value::Mem(number) => Ok(*number),
            Value::Tile { .. } | Value::Map => Err(err!(Internal, "{v} is not a memory")),
        }
    }

    fn ty(&self, v: Val) -> Result<&'p TileType> {
        self.program.tile(v)
    }

    fn place(&self, barrier: &BarrierRef) -> Result<(usize, i64)> {
        let slot = self.index(&barrier.slot)?;
        let memory = self.memory(barrier.mem)?;
        let len = self.memories[memory].len;
        ensure!(
            usize::try_from(slot).is_ok_and(|slot| slot < len),
            OutOfBounds,
            "slot {slot} of {len} barriers"
        );
        Ok((memory, slot))
    }

    fn barrier_wait(
        &mut self,
        thread: &mut Thread<'p>,
        barrier: &BarrierRef,
        parity: Val,
    ) -> Result<bool> {
        let (place, parity) = (self.place(barrier)?, self.tile(parity)?.scalar_int());
        ensure!(
            parity == 0 || parity == 1,
            InvalidKernel,
            "a parity of {parity}"
        );
        self.barriers.try_wait(place, parity, &mut thread.time)
    }

    // ---- memory -----------------------------------------------------------------------------------------------------------------

    /// The element positions of a window, in the tile's order; negative offsets and the like are errors where they are touched.
    fn offsets(&self, access: &Access, mask: Option<Val>) -> Result<Vec<Option<i64>>> {
        let base = self.index(&access.base)?;
        let strides = access
            .strides
            .iter()
            .map(|s| self.index(s))
            .collect::<Result<Vec<_>>>()?;
        let mut limits = access.shape.clone();
        for (limit, bound) in limits.iter_mut().zip(&access.valid) {
            if let Some(bound) = bound {
                *limit = self.index(bound)?.clamp(0, *limit);
            }
        }
        if !limits.contains(&0) {
            let reach = |keep: fn(i128) -> bool| {
                limits
                    .iter()
                    .zip(&strides)
                    .map(|(&l, &s)| i128::from(l - 1) * i128::from(s))
                    .filter(|&x| keep(x))
                    .sum::<i128>()
                    + i128::from(base)
            };
            let fits =
                i64::try_from(reach(|x| x < 0)).is_ok() && i64::try_from(reach(|x| x > 0)).is_ok();
            ensure!(fits, OutOfBounds, "a window that leaves the address space");
        }
        // Where no coordinate is inside, offsets on the way may be anything: they are dropped.
        let mut out = vec![Some(base)];
        for ((&extent, &stride), &limit) in access.shape.iter().zip(&strides).zip(&limits) {
            let along = |row: &Option<i64>| {
                let row = *row;
                let step = move |c: i64| {
                    row.filter(|_| c < limit)
                        .map(|at| at.wrapping_add(c.wrapping_mul(stride)))
                };
                (0..extent).map(step)
            };
            out = out.iter().flat_map(along).collect();
        }
        if let Some(mask) = mask {
            for (at, keep) in out.iter_mut().zip(self.tile(mask)?.ints()) {
                *at = at.filter(|_| *keep != 0);
            }
        }
        Ok(out)
    }

    /// Checks accesses to elements and gives their positions.
    fn touch(
        &mut self,
        thread: &Thread<'p>,
        memory: usize,
        offsets: &[Option<i64>],
        touch: Touch,
        path: Path,
    ) -> Result<Vec<Option<usize>>> {
        let (stamp, asynchronous) = match path {
            Path::Ordinary => (thread.time.own(), false),
            Path::CopyGroup => (thread.time.copy(), true),
            Path::Product => (thread.time.product(), true),
        };
        let by = Toucher {
            instance: self.instance,
            overlaps: self.overlaps,
            stamp,
            clock: &thread.time.clock,
            asynchronous,
        };
        let memory = &mut self.memories[memory];
        let one = |at: i64| match touch {
            Touch::Read => memory.touch_read(at, &by),
            Touch::Write => memory.touch_write(at, &by),
        };
        let mut one = one;
        offsets
            .iter()
            .map(|at| at.map(&mut one).transpose())
            .collect()
    }

    fn read(
        &mut self,
        thread: &Thread<'p>,
        mem: Val,
        offsets: &[Option<i64>],
        fill: Scalar,
        path: Path,
    ) -> Result<Data> {
        let memory = self.memory(mem)?;
        let positions = self.touch(thread, memory, offsets, Touch::Read, path)?;
        let memory = &self.memories[memory];
        Ok(memory.collect(&positions, &Data::splat(memory.dtype, fill, 1)))
    }

    fn write(
        &mut self,
        thread: &Thread<'p>,
        memory: usize,
        offsets: &[Option<i64>],
        data: &Data,
        path: Path,
    ) -> Result<()> {
        let positions = self.touch(thread, memory, offsets, Touch::Write, path)?;
        for (from, at) in positions.into_iter().enumerate() {
            if let Some(at) = at {
                self.memories[memory].set(at, data, from);
            }
        }
        Ok(())
    }

    fn positions(&self, index: Val, mask: Option<Val>) -> Result<Vec<Option<i64>>> {
        let unsigned = self.ty(index)?.dtype == DType::U64;
        let (index, mask) = (self.tile(index)?, mask.map(|m| self.tile(m)).transpose()?);
        let inside = |i: usize| mask.is_none_or(|mask| mask.ints()[i] != 0);
        // An unsigned position beyond i64 is out of any memory's bounds.
        Ok(index
            .ints()
            .iter()
            .enumerate()
            .map(|(i, &at)| inside(i).then_some(if unsigned && at < 0 { i64::MAX } else { at }))
            .collect())
    }

    /// Element offsets of the box at `coords` that lie inside the tensor, in the box's order.
    fn box_offsets(&self, map: &MapData, coords: &[i64]) -> Result<Vec<Option<i64>>> {
        let len = usize::try_from(map.boxed.iter().product::<i64>()).unwrap_or(0);
        let (mut out, mut coord) = (Vec::with_capacity(len), vec![0i64; map.boxed.len()]);
        for _ in 0..len {
            let mut offset = Some(0i64);
            for d in 0..coord.len() {
                let c = coords[d].saturating_add(coord[d]);
                let inside = (0..map.dims[d]).contains(&c);
                offset = offset.filter(|_| inside).and_then(|o| {
                    c.checked_mul(map.strides[d])
                        .and_then(|step| o.checked_add(step))
                });
            }
            out.push(offset);
            for d in (0..coord.len()).rev() {
                coord[d] += 1;
                if coord[d] < map.boxed[d] {
                    break;
                }
                coord[d] = 0;
            }
        }
        Ok(out)
    }

    fn map(&self, v: Val) -> Result<MapData> {
        self.maps
            .get(&v)
            .cloned()
            .ok_or_else(|| err!(Internal, "{v} is not a tensor map"))
    }

    /// An operand of a product as a row-major `[side, k]` matrix, those of a batch one after the other, and its two extents.
    fn operand(
        &mut self,
        thread: &Thread<'p>,
        operand: &MmaOperand,
        transpose: bool,
        asynchronous: bool,
    ) -> Result<(Data, usize, usize)> {
        match operand {
            MmaOperand::Tile(v) => {
                let shape = &self.ty(*v)?.shape;
                let size = |i: usize| usize::try_from(shape[shape.len() - i]).unwrap_or(0);
                let (rows, cols) = (size(2), size(1));
                let data = self.tile(*v)?;
                if transpose {
                    let matrices = data.len() / (rows * cols).max(1);
                    let turned = (0..matrices).flat_map(|p| {
                        (0..cols)
                            .flat_map(move |c| (0..rows).map(move |r| (p * rows + r) * cols + c))
                    });
                    return Ok((data.pick(turned), cols, rows));
                }
                Ok((Data::clone(data), rows, cols))
            }
            MmaOperand::Mem { access, dims } => {
                let offsets = self.offsets(access, None)?;
                let shared = self.program.mem(access.mem)?.space == Space::Shared;
                let path = if asynchronous && shared {
                    Path::Product
                } else {
                    Path::Ordinary
                };
                let data = self.read(thread, access.mem, &offsets, Scalar::I(0), path)?;
                let extent = |kind: MmaDim| {
                    dims.iter()
                        .zip(&access.shape)
                        .filter(|(d, _)| **d == kind)
                        .map(|(_, e)| usize::try_from(*e).unwrap_or(0))
                        .product::<usize>()
                };
                let (side, k) = (extent(MmaDim::Side), extent(MmaDim::K));
                let mut from = vec![0usize; side * k];
                let mut coord = vec![0i64; access.shape.len()];
                for i in 0..side * k {
                    let (mut s, mut t) = (0usize, 0usize);
                    for (d, kind) in dims.iter().enumerate() {
                        let (c, e) = (
                            usize::try_from(coord[d]).unwrap_or(0),
                            usize::try_from(access.shape[d]).unwrap_or(0),
                        );
                        match kind {
                            MmaDim::Side => s = s * e + c,
                            MmaDim::K => t = t * e + c,
                        }
                    }
                    from[s * k + t] = i;
                    for d in (0..coord.len()).rev() {
                        coord[d] += 1;
                        if coord[d] < access.shape[d] {
                            break;
                        }
                        coord[d] = 0;
                    }
                }
                Ok((data.pick(from.into_iter()), side, k))
            }
        }
    }
}
