//! Selection: a tile program to machine code.
//!
//! The x86 reading of a program: scalars live in registers (integers and bools in general ones, floats repeated over a
//! vector). Tile ops are not executed where they stand; they become loops when something needs their elements: a store,
//! a value that must outlive control flow, the end of a block. [`run`] decides which loops, [`nest`] writes them, [`eval`]
//! fills their bodies.
//!
//! Layouts of the mapped form say which elements share a vector. On this target the same follows from the accesses (the
//! axis that is contiguous in memory is the vector axis), so that logical programs without `dot` compile too.

mod ahead;
mod amx;
mod bounded;
mod control;
mod copied;
mod copies;
mod dots;
mod eval;
mod groups;
mod keep;
mod lanes;
mod linear;
mod lookup;
mod mma;
mod nest;
mod once;
mod panels;
mod past;
mod prepare;
mod reduce;
mod run;
mod scalar;
mod scale;
mod square;
mod sums;
mod turn;
mod values;

use oxyfuel_base::{Code, DType, Id, Result, ensure, err};
use oxyfuel_kernel::ir::{
    Access, Block, BufferMode, Index, Inst, Op, Order, ParamKind, Phase, Program, Val,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::asm::Assembler;
use crate::asm::pool::Pool;
use crate::emit::Emit;
use crate::level::Level;
use crate::mir::{A, Cond, Mem, Op as X, Reg};
use crate::rewrite;
use values::Values;

/// Machine code of a whole program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artefact {
    pub code: Vec<u8>,
    /// Offset of each phase's function, of the type
    /// `extern "sysv64" fn(args: *const u64, scratch: *mut u8, begin: u64, end: u64)`.
    pub entries: Vec<u32>,
    /// Bytes of 64-byte aligned scratch that each worker gives.
    pub scratch_bytes: usize,
    /// Uses the matrix unit, whose state the process must have asked for.
    pub matrix_state: bool,
    pub stats: Stats,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub instructions: u32,
    /// Values that live on the stack.
    pub spilled: u32,
}

/// Compiles a verified program. What this target cannot express is `NoLowering`.
pub fn compile(program: &Program, level: Level) -> Result<Artefact> {
    let prepared = prepare::prepare(program);
    let (bare, limits) = bounded::bounded(prepared.clone());
    match emit(&bare, &limits, level) {
        // Loops that something else wants longer: the reductions as they were written.
        Err(error) if error.code == Code::NoLowering && !limits.is_empty() => {
            emit(&prepared, &bounded::Limits::default(), level)
        }
        made => made,
    }
}

fn emit(program: &Program, limits: &bounded::Limits, level: Level) -> Result<Artefact> {
    let mut pool = Pool::default();
    let mut asm = Assembler::default();
    let mut artefact = Artefact {
        code: Vec::new(),
        entries: Vec::new(),
        scratch_bytes: 0,
        matrix_state: false,
        stats: Stats::default(),
    };
    let reads = program.use_counts();
    for phase in &program.phases {
        let Selected {
            func,
            scratch,
            matrix,
        } = Select::phase(program, phase, limits, &reads, level, &mut pool)?;
        artefact.scratch_bytes = artefact.scratch_bytes.max(scratch as usize);
        artefact.matrix_state |= matrix;
        let physical = rewrite::compile(&func, level);
        artefact.stats.spilled += physical.spilled;
        let entry = asm.function(&physical.parts(), physical.labels)?;
        artefact.entries.push(entry);
    }
    artefact.stats.instructions = asm.instructions;
    artefact.code = asm.finish(&pool);
    Ok(artefact)
}

/// One phase after selection.
struct Selected {
    func: crate::mir::Func,
    scratch: u32,
    matrix: bool,
}

/// Where a value is.
#[derive(Clone, Debug)]
pub(crate) enum Def<'p> {
    /// A tile op that is evaluated where its elements are needed.
    Lazy(&'p Inst),
    /// A scalar integer or bool, extended to 64 bits.
    Gpr(Reg),
    /// A float scalar or a tile of one element, repeated over a vector; a uniform mask for a bool.
    Uniform(Reg),
    /// A tile in scratch, in the lanes' own width (a byte for a bool); strides in elements.
    Saved { offset: u32, strides: Vec<i64> },
    /// A product's accumulator in vector registers.
    Rows(mma::Rows),
    /// A product's accumulator in matrix registers.
    Matrix(amx::Matrix),
    /// A memory: the register that points to it.
    Memory(Reg),
}

pub(crate) struct Select<'p, 'a> {
    pub p: &'p Program,
    /// Reductions that end before their tile does.
    pub limits: &'p bounded::Limits,
    pub e: Emit<'a>,
    pub defs: Values<Def<'p>>,
    /// The op that defines each scalar, for what can be proved of it.
    pub origin: Values<&'p Inst>,
    /// Where the words of the launch are.
    args: Reg,
    pub scratch: Reg,
    pub scratch_bytes: u32,
    /// Effects that wait for their loops, in program order.
    pub pending: Vec<&'p Inst>,
    pub streamed: bool,
    /// The shape of matrix accumulators that this phase is configured for.
    pub matrix: Option<amx::Matrix>,
    pub lane_scratch: Option<u32>,
    /// Steps on the matrix unit since a tile was stored, as far as they are known here, and where one is stored for nothing.
    pub tile_steps: i64,
    pub tile_scratch: Option<u32>,
    pub modes: FxHashMap<Val, BufferMode>,
    pub aligns: FxHashMap<Val, u32>,
    pids: Vec<Reg>,
    extents: Vec<Reg>,
    /// How often each value is still to be read by instructions not yet taken.
    pub uses: Vec<u32>,
    /// How often each value is read in all.
    reads: &'p [u32],
    /// How many loops of the program stand around what is being taken, and stood around each value.
    pub depth: u32,
    pub born: Values<u32>,
    /// The loops of the program around what is being taken, the outermost first.
    pub loops: Vec<panels::Around<'p>>,
    /// Windows that are copied into panels.
    pub copied: Vec<copied::Copied<'p>>,
    pub kept_registers: FxHashMap<Val, Reg>,
    pub kept_scratch: FxHashMap<Val, u32>,
    pub kept_strides: FxHashMap<Val, Vec<i64>>,
    /// Strides that a kept tile must have because others share its place.
    pub forced_strides: FxHashMap<Val, Vec<i64>>,
    /// Windows that loops of this instance have read.
    pub read_before: FxHashSet<Val>,
    /// Bytes from one row to the next of memories that a loop reads row by row.
    pub rows: FxHashMap<Val, i64>,
}

impl<'p, 'a> Select<'p, 'a> {
    fn phase(
        p: &'p Program,
        phase: &'p Phase,
        limits: &'p bounded::Limits,
        reads: &'p [u32],
        level: Level,
        pool: &'a mut Pool,
    ) -> Result<Selected> {
        let e = Emit::new(level, pool);
        let [args, scratch, begin, end] = e.f.args;
        let mut s = Select {
            p,
            limits,
            e,
            defs: Values::new(p.values.len()),
            origin: Values::new(p.values.len()),
            args,
            scratch,
            scratch_bytes: 0,
            pending: Vec::new(),
            streamed: false,
            matrix: None,
            lane_scratch: None,
            tile_steps: 0,
            tile_scratch: None,
            modes: FxHashMap::default(),
            aligns: FxHashMap::default(),
            pids: Vec::new(),
            extents: Vec::new(),
            uses: reads.to_vec(),
            reads,
            depth: 0,
            loops: Vec::new(),
            copied: Vec::new(),
            born: Values::new(p.values.len()),
            kept_registers: FxHashMap::default(),
            kept_scratch: FxHashMap::default(),
            kept_strides: FxHashMap::default(),
            forced_strides: FxHashMap::default(),
            read_before: FxHashSet::default(),
            rows: FxHashMap::default(),
        };
        s.params(args)?;
        s.grid(phase)?;
        let done = s.e.f.label();
        let head = s.e.f.label();
        s.e.g(X::Cmp, &[begin.into(), end.into()]);
        s.e.f.jump(Cond::Ae, done);
        s.e.f.bind(head);
        s.decode(begin, phase.order);
        s.block(&phase.body)?;
        s.flush(&[])?;
        s.e.g(X::AddI, &[begin.into(), A::I(1)]);
        s.e.g(X::Cmp, &[begin.into(), end.into()]);
        s.e.f.jump(Cond::B, head);
        s.e.f.bind(done);
        if s.matrix.is_some() {
            s.e.g(X::TileRelease, &[]);
        }
        if s.streamed {
            s.e.g(X::Sfence, &[]);
        }
        Ok(Selected {
            func: s.e.f,
            scratch: s.scratch_bytes,
            matrix: s.matrix.is_some(),
        })
    }

    fn params(&mut self, args: Reg) -> Result<()> {
        let picked = self.p.picked();
        for (i, param) in self.p.params.iter().enumerate() {
            let slot = Mem::at(args, 8 * i as i32);
            let def = match &param.kind {
                ParamKind::Buffer(b) => {
                    self.modes.insert(param.value, b.mode);
                    self.aligns.insert(param.value, b.align);
                    if picked.contains(&param.value) {
                        continue;
                    }
                    Def::Memory(self.e.gpr(X::Mov, &[slot.into()]))
                }
                ParamKind::Scalar { dtype, .. } if dtype.is_float() => {
                    let v = self.e.load_uniform(*dtype, slot)?;
                    Def::Uniform(v)
                }
                ParamKind::Scalar { dtype, .. } => Def::Gpr(self.e.load_gpr(*dtype, slot)?),
                ParamKind::TensorMap(_) => {
                    return Err(err!(
                        NoLowering,
                        "x86 has no tensor maps (`{}`)",
                        param.name
                    ));
                }
            };
            self.defs.insert(param.value, def);
        }
        Ok(())
    }

    /// The extents of the grid in registers.
    fn grid(&mut self, phase: &Phase) -> Result<()> {
        ensure!(
            phase.grid.len() <= 3,
            NoLowering,
            "a grid of {} axes",
            phase.grid.len()
        );
        for extent in &phase.grid {
            let r = self.expr(extent)?;
            self.extents.push(r);
        }
        Ok(())
    }

    /// Splits a linear program id over the axes, the first being the fastest; in bands of the first two where the order says so.
    fn decode(&mut self, pid: Reg, order: Order) {
        let axes = self.extents.len();
        self.pids.clear();
        let group = match order {
            Order::Plain => 1,
            Order::Grouped { group } | Order::Persistent { group } => group,
        };
        let mut rest = pid;
        let mut axis = 0;
        if group > 1 && axes >= 2 {
            rest = self.decode_band(rest, i64::from(group), axes > 2);
            axis = 2;
        }
        while axis < axes {
            if axis + 1 == axes {
                let r = self.e.copy_gpr(rest);
                self.pids.push(r);
                break;
            }
            let (quotient, remainder) = self.split(rest, self.extents[axis]);
            self.pids.push(remainder);
            rest = quotient;
            axis += 1;
        }
    }

    /// Quotient and remainder.
    fn split(&mut self, value: Reg, by: Reg) -> (Reg, Reg) {
        let quotient = self.e.gpr(X::DivU, &[value.into(), by.into()]);
        let product = self.e.copy_gpr(quotient);
        self.e.g(X::Imul, &[product.into(), by.into()]);
        let remainder = self.e.copy_gpr(value);
        self.e.g(X::Sub, &[remainder.into(), product.into()]);
        (quotient, remainder)
    }

    /// Axes 0 and 1 in bands of `group` steps along axis 0; returns what is left of the id for the axes above.
    fn decode_band(&mut self, pid: Reg, group: i64, more: bool) -> Reg {
        let (rows, cols) = (self.extents[0], self.extents[1]);
        let (rest, within) = if more {
            let plane = self.e.copy_gpr(rows);
            self.e.g(X::Imul, &[plane.into(), cols.into()]);
            self.split(pid, plane)
        } else {
            (pid, pid)
        };
        let step = self.e.imm(group);
        let band_size = self.e.copy_gpr(step);
        self.e.g(X::Imul, &[band_size.into(), cols.into()]);
        let (band, within) = self.split(within, band_size);
        let first = band;
        self.e.g(X::Imul, &[first.into(), step.into()]);
        // The last band may be lower.
        let height = self.e.copy_gpr(rows);
        self.e.g(X::Sub, &[height.into(), first.into()]);
        self.e.g(X::Cmp, &[step.into(), height.into()]);
        self.e.g(X::CmovL, &[height.into(), step.into()]);
        let (col, row) = self.split(within, height);
        self.e.g(X::Add, &[row.into(), first.into()]);
        self.pids.push(row);
        self.pids.push(col);
        rest
    }

    pub fn tile_of(&self, v: Val) -> Result<&'p oxyfuel_kernel::ir::TileType> {
        self.p.tile(v)
    }

    pub fn dtype(&self, v: Val) -> Result<DType> {
        Ok(self.tile_of(v)?.dtype)
    }

    /// The op that defines a scalar.
    pub fn origin(&self, v: Val) -> Option<&'p Op> {
        self.origin.get(&v).map(|inst| &inst.op)
    }

    /// Whether what is being taken is all that ever reads a value: it may then end where it lies.
    pub fn is_read_once(&self, v: Val) -> bool {
        self.reads[slot(v)] == 1 && self.born.get(&v) == Some(&self.depth)
    }

    pub fn is_scalar(&self, v: Val) -> bool {
        self.p.tile(v).is_ok_and(|t| t.shape.is_empty())
    }

    pub fn block(&mut self, block: &'p Block) -> Result<()> {
        for inst in &block.insts {
            self.inst(inst)?;
        }
        Ok(())
    }

    fn inst(&mut self, inst: &'p Inst) -> Result<()> {
        for &r in &inst.results {
            self.origin.insert(r, inst);
            self.born.insert(r, self.depth);
        }
        self.take(inst)?;
        // Operands of this op are behind us; those inside its blocks were counted off there.
        inst.op
            .for_each_arg(|v| self.uses[slot(v)] = self.uses[slot(v)].saturating_sub(1));
        Ok(())
    }

    fn take(&mut self, inst: &'p Inst) -> Result<()> {
        match &inst.op {
            Op::For { .. } => return self.for_loop(inst),
            Op::If { .. } => return self.if_else(inst),
            Op::Pick { mems, index } => return self.pick(inst.results[0], mems, *index),
            Op::Alloc => return self.alloc(inst),
            Op::Mma { .. } => return self.mma(inst),
            Op::Dot { .. } => return self.dot(inst),
            Op::MmaCommit => return Ok(()),
            Op::MmaWait { accs, .. } => {
                for (r, v) in inst.results.iter().zip(accs) {
                    if let Some(def) = self.defs.get(v).cloned() {
                        self.defs.insert(*r, def);
                    }
                }
                return Ok(());
            }
            Op::Store {
                access,
                value,
                mask,
                ..
            } => {
                if !self.writes_beside(access, *value) {
                    self.order_write(access.mem)?;
                }
                if mask.is_none() && self.store_rows(access, *value)? {
                    return Ok(());
                }
                if mask.is_none() && self.store_copy(access, *value)? {
                    return Ok(());
                }
                if mask.is_none() {
                    self.note_copy(access, *value);
                }
                self.pending.push(inst);
                return Ok(());
            }
            Op::Scatter { mem, .. } | Op::Atomic { mem, .. } => {
                self.order_write(*mem)?;
                self.pending.push(inst);
                return Ok(());
            }
            Op::Load { access, .. } => self.order_read(access.mem)?,
            Op::Gather { mem, .. } => self.order_read(*mem)?,
            Op::Sync | Op::FenceAsync => return self.flush(&[]),
            Op::ProgramId { .. }
            | Op::NumPrograms { .. }
            | Op::Const { .. }
            | Op::Iota { .. }
            | Op::Splat { .. }
            | Op::Broadcast { .. }
            | Op::Reshape { .. }
            | Op::Permute { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Fma { .. }
            | Op::Cast { .. }
            | Op::Bitcast { .. }
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::ConvertLayout { .. } => {}
            Op::Scan { .. }
            | Op::Sort { .. }
            | Op::TensorLoad { .. }
            | Op::TensorStore { .. }
            | Op::CopyAsync { .. }
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::BarrierInit { .. }
            | Op::BarrierArrive { .. }
            | Op::BarrierWait { .. }
            | Op::Roles { .. } => {
                return Err(err!(
                    NoLowering,
                    "x86 has no code for `{}`",
                    inst.op.row().name
                ));
            }
        }
        let result = *inst
            .results
            .first()
            .ok_or_else(|| err!(InvalidKernel, "an op without its result"))?;
        if self.is_scalar(result) {
            return self.scalar(inst, result);
        }
        self.defs.insert(result, Def::Lazy(inst));
        Ok(())
    }

    fn writes(inst: &Inst, mem: Val) -> bool {
        match &inst.op {
            Op::Store { access, .. } => access.mem == mem,
            Op::Scatter { mem: m, .. } | Op::Atomic { mem: m, .. } => *m == mem,
            _ => false,
        }
    }

    /// A read after a waiting write of the same memory must see it.
    pub fn order_read(&mut self, mem: Val) -> Result<()> {
        if self.pending.iter().any(|i| Self::writes(i, mem)) {
            self.flush(&[])?;
        }
        Ok(())
    }

    /// Whether a store shares no element with the stores that wait for the same memory, which none of them reads: then their order means nothing.
    fn writes_beside(&self, access: &Access, value: Val) -> bool {
        let here = |mem: Val| mem == access.mem;
        let apart = self.pending.iter().all(|inst| match &inst.op {
            Op::Store { access: other, .. } if here(other.mem) => self.apart_from(other, access),
            _ => !Self::writes(inst, access.mem),
        });
        let read = || {
            let mut tiles = vec![value];
            let waiting = self.pending.iter();
            tiles.extend(waiting.flat_map(|inst| values::operands(&inst.op)));
            self.waits_for(&tiles, &here)
        };
        apart && (self.modes.get(&access.mem) == Some(&BufferMode::Write) || !read())
    }

    /// A second write of a memory that waits for one already, unless loops keep their order anyway.
    fn order_write(&mut self, mem: Val) -> Result<()> {
        self.order_read(mem)
    }

    /// The pointer of one of several parameters, read where it is known which.
    fn pick(&mut self, result: Val, mems: &[Val], index: Val) -> Result<()> {
        let first = self
            .p
            .params
            .iter()
            .position(|param| param.value == mems[0]);
        let first = first.ok_or_else(|| err!(InvalidKernel, "a pick among no parameters"))?;
        let number = self.gpr(index)?;
        let slot = Mem::indexed(self.args, number, 8, 8 * first as i32);
        let pointer = self.e.gpr(X::Mov, &[slot.into()]);
        if let Some(&mode) = self.modes.get(&mems[0]) {
            self.modes.insert(result, mode);
        }
        if let Some(&align) = self.aligns.get(&mems[0]) {
            self.aligns.insert(result, align);
        }
        self.defs.insert(result, Def::Memory(pointer));
        Ok(())
    }

    fn alloc(&mut self, inst: &'p Inst) -> Result<()> {
        let v = inst.results[0];
        let ty = self.p.mem(v)?;
        let len = ty
            .len
            .ok_or_else(|| err!(InvalidKernel, "an allocation without a length"))?;
        ensure!(
            ty.swizzle.is_none(),
            NoLowering,
            "x86 has no swizzled memories"
        );
        let bytes = u32::try_from(len.saturating_mul(ty.dtype.size() as i64))
            .map_err(|_| err!(TooLarge, "scratch of {len} elements"))?;
        let offset = self.take_scratch(bytes)?;
        let r = self
            .e
            .gpr(X::Lea, &[Mem::at(self.scratch, offset as i32).into()]);
        self.aligns.insert(v, 64);
        self.modes.insert(v, BufferMode::ReadWrite);
        self.defs.insert(v, Def::Memory(r));
        Ok(())
    }

    pub fn take_scratch(&mut self, bytes: u32) -> Result<u32> {
        let offset = self.scratch_bytes;
        // Whole vectors may be read and written past the last element.
        self.scratch_bytes = offset
            .checked_add(bytes.next_multiple_of(64) + 64)
            .filter(|&b| b < 1 << 30)
            .ok_or_else(|| err!(TooLarge, "more than a gibibyte of scratch"))?;
        Ok(offset)
    }

    pub fn memory(&self, v: Val) -> Result<Reg> {
        match self.defs.get(&v) {
            Some(Def::Memory(r)) => Ok(*r),
            _ => Err(err!(Internal, "{v} is not a memory here")),
        }
    }

    /// The largest power of two that certainly divides an index.
    pub fn divisor(&self, index: &Index) -> i64 {
        match index {
            Index::Const(c) => power_of_two(*c),
            Index::Val(v) => self.divisor_of(*v, 0),
        }
    }

    fn divisor_of(&self, v: Val, depth: u32) -> i64 {
        use oxyfuel_kernel::ir::BinaryOp;
        if depth > 16 {
            return 1;
        }
        match self.origin(v) {
            Some(Op::Const { value }) => power_of_two(value.as_i64()),
            Some(Op::Binary {
                op: BinaryOp::Mul,
                lhs,
                rhs,
            }) => self
                .divisor_of(*lhs, depth + 1)
                .saturating_mul(self.divisor_of(*rhs, depth + 1))
                .min(1 << 30),
            Some(Op::Binary {
                op: BinaryOp::Add | BinaryOp::Sub,
                lhs,
                rhs,
            }) => self
                .divisor_of(*lhs, depth + 1)
                .min(self.divisor_of(*rhs, depth + 1)),
            _ => 1,
        }
    }

    /// Whether the first element of every row of a window stands at a multiple of `bytes`.
    pub fn aligned(&self, access: &Access, vector_dim: usize, bytes: i64) -> bool {
        let Ok(ty) = self.p.mem(access.mem) else {
            return false;
        };
        let size = ty.dtype.size() as i64;
        let Some(&align) = self.aligns.get(&access.mem) else {
            return false;
        };
        i64::from(align) % bytes == 0
            && (self.divisor(&access.base) * size) % bytes == 0
            && access
                .strides
                .iter()
                .zip(&access.shape)
                .enumerate()
                .all(|(d, (s, &n))| {
                    d == vector_dim || n == 1 || (self.divisor(s) * size) % bytes == 0
                })
    }
}

fn power_of_two(c: i64) -> i64 {
    if c == 0 {
        1 << 30
    } else {
        1 << c.trailing_zeros().min(30)
    }
}

/// The position of a value in tables by value.
pub(crate) fn slot(v: Val) -> usize {
    v.index()
}
