//! Matrix products on the vector unit.
//!
//! `acc + a @ b` with operands in memory. The accumulator of a loop that does nothing but products stays in registers; one that is read from a window
//! and written to one goes straight there; any other lives in scratch and visits the registers block by block. A block is `rows x vectors` accumulators: each step of the
//! depth loads the vectors of `b` once and multiplies them with every row's element of `a`, repeated by the load itself.

use oxyfuel_base::{DType, Result, Scalar, ensure, err};
use oxyfuel_kernel::ir::{Access, BinaryOp, Block, Index, Inst, MmaDim, MmaOperand, Op, Val};

use super::amx::Matrix;
use super::groups::{Dot, Grouped};
use super::panels::{Asked, Next};
use super::values::operands;
use super::{Def, Select};
use crate::emit::lane_bytes;
use crate::mir::{A, Cond, Item, Mem, Op as X, Reg, Width};

const LINE: i64 = 64;
/// Panels from so many bytes on do not stay in the first-level cache, and are asked for so many rows ahead: a hundred cycles or so, where a row feeds a whole block of sums.
const LARGE: i64 = 24 << 10;
const AHEAD: i64 = 8;

/// A product's accumulator in registers: rows of vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub regs: Vec<Reg>,
    pub rows: i64,
    pub cols: i64,
    pub dtype: DType,
}

/// A distance in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    Bytes(i64),
    Reg(Reg),
}

/// An operand of a product: one distance along the depth, and the dims of its own side, the slowest first.
#[derive(Clone, Debug)]
pub struct Operand {
    pub dtype: DType,
    pub pointer: Reg,
    /// Dims along the depth, the slowest first: extent and distance.
    pub depth: Vec<(i64, Stride)>,
    pub side: Vec<(i64, Stride)>,
    /// What the loop around it reads next.
    pub next: Option<Next>,
    /// The loop around it goes on to another place, and stays with the other operand.
    pub passes_by: bool,
}

impl<'p> Select<'p, '_> {
    fn suits_amx_alone(&self, a: &MmaOperand, b: &MmaOperand, acc: Val) -> Option<Matrix> {
        let ty = self.tile_of(acc).ok()?;
        let upper = self.amx_operands(a, b, ty.dtype)?;
        self.amx_matrix(acc, upper)
    }

    /// Rows and vectors of accumulators that the register file holds beside what feeds them.
    fn block_shape(&self, rows: i64, vectors: i64) -> (i64, i64) {
        let (wide, room) = if self.e.avx512() { (4, 28) } else { (2, 12) };
        // Two vectors a row where they suffice: the more rows, the more often each vector of `b` is used. One row or two take more, so that sums do not wait for themselves.
        let across = if rows <= 2 && vectors >= 2 * wide {
            2 * wide
        } else if vectors >= 4 && rows < 7 {
            wide.min(vectors)
        } else if self.e.avx512() && vectors == 3 && rows <= room / 3 {
            3
        } else {
            vectors.min(2)
        };
        (rows.min(room / across), across)
    }

    /// Whether an accumulator fits the registers as it is.
    pub fn fits_registers(&self, v: Val) -> bool {
        let Ok(ty) = self.tile_of(v) else {
            return false;
        };
        let [rows, cols] = ty.shape[..] else {
            return false;
        };
        if !accumulates(ty.dtype) {
            return false;
        }
        let vectors = cols.div_ceil_lanes(self.e.full_lanes(lane_bytes(ty.dtype)));
        self.block_shape(rows, vectors) == (rows, vectors)
    }

    /// Whether a block does nothing but scalars and products, and uses `v` as an accumulator.
    pub fn only_products(&self, block: &Block, v: Val) -> bool {
        let mut used = false;
        for inst in &block.insts {
            match &inst.op {
                Op::Mma { acc, .. } => used |= *acc == v,
                Op::For {
                    inits,
                    carried,
                    body,
                    ..
                } => {
                    let Some(i) = inits.iter().position(|init| *init == v) else {
                        return false;
                    };
                    used = true;
                    if !self.only_products(body, carried[i]) {
                        return false;
                    }
                }
                Op::MmaCommit | Op::MmaWait { .. } => {}
                _ if inst.results.iter().all(|r| self.is_scalar(*r))
                    && !inst.results.is_empty() => {}
                _ => return false,
            }
        }
        used
    }

    pub fn mma(&mut self, inst: &'p Inst) -> Result<()> {
        let Op::Mma { a, b, acc, .. } = &inst.op else {
            return Ok(());
        };
        for operand in [a, b] {
            if let MmaOperand::Mem { access, .. } = operand {
                self.order_read(access.mem)?;
            }
        }
        let single = !matches!(self.defs.get(acc), Some(Def::Rows(_) | Def::Matrix(_)));
        // Sums that wait in registers for their store would take those of this product.
        if single && self.rows_wait() {
            self.flush(&[])?;
        }
        if single
            && self.e.level.amx()
            && let Some(m) = self.suits_amx_alone(a, b, *acc)
        {
            let m = self.amx_open(m, *acc)?;
            self.defs.insert(*acc, Def::Matrix(m));
        }
        let next = match b {
            MmaOperand::Mem { access, .. } => {
                let size = self.p.mem(access.mem)?.dtype.size() as i64;
                self.next_panel(access, size)
            }
            MmaOperand::Tile(_) => None,
        };
        let passing = [self.passes_by(a, b), self.passes_by(b, a)];
        let a = Operand {
            passes_by: passing[0],
            ..self.operand(a, true)?
        };
        let b = Operand {
            next,
            passes_by: passing[1],
            ..self.operand(b, false)?
        };
        self.product(&a, &b, *acc, inst.results[0])
    }

    /// Whether the innermost loop moves one operand, each element of which is read once, and leaves the other where it is.
    fn passes_by(&self, moving: &MmaOperand, staying: &MmaOperand) -> bool {
        let Some(around) = self.loops.last() else {
            return false;
        };
        let moves = |operand: &MmaOperand| match operand {
            MmaOperand::Mem { access, .. } => match access.base {
                Index::Const(_) => Some(false),
                Index::Val(base) => Some(self.factor(base, around.counter)? != 0),
            },
            MmaOperand::Tile(_) => None,
        };
        // Windows of an image share elements with each other, and find them in the first-level cache.
        let once = matches!(moving, MmaOperand::Mem { access, .. } if reads_once(access));
        once && moves(moving) == Some(true) && moves(staying) == Some(false)
    }

    /// `dot` of the logical form: its operands are brought to scratch unless they are plain windows of memory.
    pub fn dot(&mut self, inst: &'p Inst) -> Result<()> {
        let Op::Dot { a, b, acc } = &inst.op else {
            return Ok(());
        };
        let kept: Vec<Val> = [*a, *b]
            .into_iter()
            .filter(|v| self.plain_load(*v).is_none())
            .collect();
        self.flush(&kept)?;
        let a = self.tile_operand(*a, true)?;
        let b = self.tile_operand(*b, false)?;
        self.product(&a, &b, *acc, inst.results[0])
    }

    /// The same in registers of its own.
    pub fn copy_rows(&mut self, rows: &Rows) -> Rows {
        let own = self.open_rows(rows.rows, rows.cols, rows.dtype);
        let width = self.e.level.width();
        for (to, from) in own.regs.iter().zip(&rows.regs) {
            self.e.f.copy(width, *to, *from);
        }
        own
    }

    /// The window of a load that has no mask and no bounds.
    pub fn plain_load(&self, v: Val) -> Option<&'p Access> {
        match self.defs.get(&v) {
            Some(Def::Lazy(Inst {
                op: Op::Load {
                    access, mask: None, ..
                },
                ..
            })) if access.valid.iter().all(Option::is_none) => Some(access),
            _ => None,
        }
    }

    fn tile_operand(&mut self, v: Val, rows_first: bool) -> Result<Operand> {
        let dims = if rows_first {
            [MmaDim::Side, MmaDim::K]
        } else {
            [MmaDim::K, MmaDim::Side]
        };
        if let Some(access) = self.plain_load(v) {
            return self.memory_operand(access, &dims);
        }
        let ty = self.tile_of(v)?;
        let (offset, strides) = match self.defs.get(&v) {
            Some(Def::Saved { offset, strides }) => (*offset, strides.clone()),
            _ => {
                return Err(err!(
                    NoLowering,
                    "x86 has no code for a product of such a tile"
                ));
            }
        };
        let size = i64::from(lane_bytes(ty.dtype));
        let dtype = match (ty.dtype.is_float(), size) {
            (true, 8) => DType::F64,
            (true, _) => DType::F32,
            (false, 8) => DType::I64,
            (false, _) => DType::I32,
        };
        let pointer = self
            .e
            .gpr(X::Lea, &[Mem::at(self.scratch, offset as i32).into()]);
        let mut operand = Operand {
            dtype,
            pointer,
            depth: Vec::new(),
            side: Vec::new(),
            next: None,
            passes_by: false,
        };
        for (d, dim) in dims.iter().enumerate() {
            let entry = (ty.shape[d], Stride::Bytes(strides[d] * size));
            if *dim == MmaDim::K {
                operand.depth.push(entry)
            } else {
                operand.side.push(entry)
            }
        }
        Ok(operand)
    }

    fn operand(&mut self, operand: &'p MmaOperand, rows_first: bool) -> Result<Operand> {
        match operand {
            MmaOperand::Mem { access, dims } => self.memory_operand(access, dims),
            MmaOperand::Tile(v) => {
                if self.plain_load(*v).is_none() {
                    self.flush(std::slice::from_ref(v))?;
                }
                self.tile_operand(*v, rows_first)
            }
        }
    }

    fn memory_operand(&mut self, access: &Access, dims: &[MmaDim]) -> Result<Operand> {
        let ty = self.p.mem(access.mem)?;
        let whole = access
            .valid
            .iter()
            .zip(&access.shape)
            .all(|(v, n)| match v {
                None => true,
                Some(Index::Const(c)) => c >= n,
                Some(Index::Val(_)) => false,
            });
        ensure!(
            whole,
            NoLowering,
            "x86 has no code for a product over a window with bounds"
        );
        let size = ty.dtype.size() as i64;
        let dtype = ty.dtype;
        let pointer = self.address(access.mem, &access.base)?;
        let mut operand = Operand {
            dtype,
            pointer,
            depth: Vec::new(),
            side: Vec::new(),
            next: None,
            passes_by: false,
        };
        for (d, dim) in dims.iter().enumerate() {
            if access.shape[d] == 1 {
                continue;
            }
            let stride = match access.strides[d] {
                Index::Const(s) => Stride::Bytes(s * size),
                Index::Val(v) => {
                    let r = self.gpr(v)?;
                    Stride::Reg(self.e.gpr(X::ImulI, &[r.into(), A::I(size)]))
                }
            };
            let list = if *dim == MmaDim::K {
                &mut operand.depth
            } else {
                &mut operand.side
            };
            list.push((access.shape[d], stride));
        }
        Ok(operand)
    }

    fn product(&mut self, a: &Operand, b: &Operand, acc: Val, result: Val) -> Result<()> {
        if let Some(Def::Matrix(m)) = self.defs.get(&acc) {
            let m = m.clone();
            self.amx_steps(&m, a, b)?;
            self.defs.insert(result, Def::Matrix(m));
            return Ok(());
        }
        if let Some(Def::Rows(rows)) = self.defs.get(&acc) {
            let rows = rows.clone();
            let rows = match self.is_read_once(acc) {
                true => rows,
                false => self.copy_rows(&rows),
            };
            self.steps(a, b, &rows, 0, 0)?;
            self.defs.insert(result, Def::Rows(rows));
            return Ok(());
        }
        if self.runs_along_depth(a, b, acc)? {
            return self.dots(a, b, acc, result);
        }
        if self.is_zero(acc) && self.fits_registers(acc) {
            let ty = self.tile_of(acc)?;
            let rows = self.open_rows(ty.shape[0], ty.shape[1], ty.dtype);
            self.clear_rows(&rows);
            self.steps(a, b, &rows, 0, 0)?;
            self.defs.insert(result, Def::Rows(rows));
            return Ok(());
        }
        if self.fits_registers(acc)
            && let Some(access) = self.plain_load(acc)
            && let Some(stride) = self.rows_apart(access)
        {
            let ty = self.tile_of(acc)?;
            let rows = self.open_rows(ty.shape[0], ty.shape[1], ty.dtype);
            let from = self.address(access.mem, &access.base)?;
            self.move_rows(&rows, from, 0, stride, true)?;
            self.steps(a, b, &rows, 0, 0)?;
            self.defs.insert(result, Def::Rows(rows));
            return Ok(());
        }
        self.product_in_scratch(a, b, acc, result)
    }

    /// Elements between the rows of a window that rows of accumulators can be moved to and from as they are.
    pub fn rows_apart(&self, access: &Access) -> Option<i64> {
        let whole = access.valid.iter().all(Option::is_none);
        match (&access.strides[..], whole) {
            ([Index::Const(stride), Index::Const(1)], true) => Some(*stride),
            _ => None,
        }
    }

    /// Writes accumulators where they belong, straight from the registers, or added to a window of memory. False: they have to take the way of all tiles.
    pub fn store_rows(&mut self, access: &Access, value: Val) -> Result<bool> {
        let (sums, added) = match self.added(self.laid_out(value), access) {
            Some((sums, stride, from)) if self.is_read_once(value) => (sums, Some((stride, from))),
            _ => (self.laid_out(value), None),
        };
        let dtype = match self.defs.get(&sums) {
            Some(Def::Rows(rows)) => rows.dtype,
            Some(Def::Matrix(matrix)) if added.is_none() => matrix.dtype,
            _ => return Ok(false),
        };
        let here = |mem: Val| mem == access.mem;
        let waits = |sink: &Inst| self.waits_for(&operands(&sink.op), &here);
        // What is added is read now.
        let overtaken = |late: &Val| added.is_none() || *late != value;
        if self.pending.iter().any(|inst| waits(inst))
            || self.late_reads(&here).iter().any(overtaken)
        {
            return Ok(false);
        }
        let Some(stride) = self.rows_apart(access) else {
            return Ok(false);
        };
        if self.p.mem(access.mem)?.dtype != dtype {
            return Ok(false);
        }
        let def = self.defs.get(&sums).cloned();
        let to = self.address(access.mem, &access.base)?;
        match (def, added) {
            (Some(Def::Rows(rows)), None) => self.move_rows(&rows, to, 0, stride, false)?,
            (Some(Def::Rows(rows)), Some((apart, from))) => {
                let from = self.address(from.mem, &from.base)?;
                self.add_rows(&rows, (from, apart), (to, stride))?;
            }
            (Some(Def::Matrix(matrix)), _) => self.amx_move(&matrix, to, 0, stride * 4, false),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Accumulators in registers and the window that they are added to, with the elements between its rows, if what is stored is their sum. Elements that are read lie where they are written, or in another memory.
    fn added(&self, value: Val, to: &Access) -> Option<(Val, i64, &'p Access)> {
        let Some(Def::Lazy(Inst {
            op:
                Op::Binary {
                    op: BinaryOp::Add,
                    lhs,
                    rhs,
                },
            ..
        })) = self.defs.get(&value)
        else {
            return None;
        };
        let one = |sums: Val, window: Val| {
            let (sums, window) = (self.laid_out(sums), self.laid_out(window));
            let from = self.plain_load(window)?;
            let Some(Def::Rows(rows)) = self.defs.get(&sums) else {
                return None;
            };
            let fits = from.mem != to.mem || (from.base == to.base && from.strides == to.strides);
            let same = self.p.mem(from.mem).ok()?.dtype == rows.dtype;
            let stride = self.rows_apart(from)?;
            (fits && same).then_some((sums, stride, from))
        };
        one(*lhs, *rhs).or_else(|| one(*rhs, *lhs))
    }

    /// Writes what stands in a window plus accumulators to another, both given by where they begin and the elements between rows.
    fn add_rows(&mut self, block: &Rows, from: (Reg, i64), to: (Reg, i64)) -> Result<()> {
        let size = lane_bytes(block.dtype);
        let lanes = i64::from(self.e.full_lanes(size));
        let vectors = block.cols.div_ceil_lanes(lanes as u32);
        self.e.mask_bytes = size;
        for row in 0..block.rows {
            for v in 0..vectors {
                let place = |(base, stride): (Reg, i64)| {
                    let byte = i64::from(size) * (row * stride + v * lanes);
                    i32::try_from(byte)
                        .map(|byte| Mem::at(base, byte))
                        .map_err(|_| err!(NoLowering, "a distance of {byte} bytes"))
                };
                let left = block.cols - v * lanes;
                let mask = (left < lanes).then(|| self.e.first_lanes(left as u32));
                let before = self.e.load(block.dtype, place(from)?, lanes as u32, mask)?;
                let sum = block.regs[(row * vectors + v) as usize];
                let sum = self
                    .e
                    .binary(BinaryOp::Add, block.dtype, before, sum, lanes as u32)?;
                self.e
                    .store(block.dtype, place(to)?, sum, lanes as u32, mask, false)?;
            }
        }
        Ok(())
    }

    /// A value under whatever layout it was given.
    pub fn laid_out(&self, value: Val) -> Val {
        match self.defs.get(&value) {
            Some(Def::Lazy(Inst {
                op: Op::ConvertLayout { value },
                ..
            })) => self.laid_out(*value),
            _ => value,
        }
    }

    /// The accumulator in scratch, visited in blocks.
    fn product_in_scratch(
        &mut self,
        a: &Operand,
        b: &Operand,
        acc: Val,
        result: Val,
    ) -> Result<()> {
        let ty = self.tile_of(acc)?;
        let [rows, cols] = ty.shape[..] else {
            return Err(err!(NoLowering, "x86 has no code for a batch of products"));
        };
        ensure!(
            accumulates(ty.dtype),
            NoLowering,
            "x86 has no code for products in {}",
            ty.dtype
        );
        let (mut offset, strides) = self.scratch_home(acc)?;
        if !self.is_read_once(acc) {
            let bytes = u32::try_from(rows * cols * i64::from(lane_bytes(ty.dtype)))
                .map_err(|_| err!(TooLarge, "an accumulator"))?;
            let own = self.take_scratch(bytes)?;
            self.copy_scratch(offset, own, bytes);
            offset = own;
        }
        ensure!(
            strides[1] == 1,
            NoLowering,
            "x86 has no code for an accumulator that lies across its vectors"
        );
        let dtype = ty.dtype;
        let bytes = i64::from(lane_bytes(dtype));
        let lanes = i64::from(self.e.full_lanes(lane_bytes(dtype)));
        let vectors = cols.div_ceil_lanes(lanes as u32);
        let (mr, nv) = self.block_shape(rows, vectors);
        let mut row = 0;
        while row < rows {
            let height = mr.min(rows - row);
            let mut vector = 0;
            while vector < vectors {
                let across = nv.min(vectors - vector);
                let width = (across * lanes).min(cols - vector * lanes);
                let block = self.open_rows(height, width, dtype);
                let at = i64::from(offset) + bytes * (row * strides[0] + vector * lanes);
                self.move_rows(&block, self.scratch, at, strides[0], true)?;
                self.steps(a, b, &block, row, vector)?;
                self.move_rows(&block, self.scratch, at, strides[0], false)?;
                vector += across;
            }
            row += height;
        }
        self.defs.insert(result, Def::Saved { offset, strides });
        Ok(())
    }

    /// A tile in scratch, brought there if need be.
    pub fn scratch_home(&mut self, v: Val) -> Result<(u32, Vec<i64>)> {
        if let Some(Def::Saved { offset, strides }) = self.defs.get(&v) {
            return Ok((*offset, strides.clone()));
        }
        self.flush(&[v])?;
        match self.defs.get(&v) {
            Some(Def::Saved { offset, strides }) => Ok((*offset, strides.clone())),
            _ => Err(err!(NoLowering, "x86 has no code for such an accumulator")),
        }
    }

    pub fn open_rows(&mut self, rows: i64, cols: i64, dtype: DType) -> Rows {
        let vectors = cols.div_ceil_lanes(self.e.full_lanes(lane_bytes(dtype)));
        let regs = (0..rows * vectors).map(|_| self.e.f.vec()).collect();
        Rows {
            regs,
            rows,
            cols,
            dtype,
        }
    }

    /// Zero in every element.
    pub fn clear_rows(&mut self, block: &Rows) {
        for r in &block.regs {
            self.e.f.inst(X::VZero, Width::X, &[(*r).into()]);
        }
    }

    /// Between registers and byte `at` of what `base` points to, rows `stride` elements apart. The last vector of a row may be partial.
    pub fn move_rows(
        &mut self,
        block: &Rows,
        base: Reg,
        at: i64,
        stride: i64,
        load: bool,
    ) -> Result<()> {
        let size = lane_bytes(block.dtype);
        let lanes = i64::from(self.e.full_lanes(size));
        let vectors = block.cols.div_ceil_lanes(lanes as u32);
        let width = self.e.level.width();
        // Bits are moved, whatever they mean.
        let dtype = if size == 8 { DType::F64 } else { DType::F32 };
        self.e.mask_bytes = size;
        for row in 0..block.rows {
            for v in 0..vectors {
                let byte = at + i64::from(size) * (row * stride + v * lanes);
                let byte = i32::try_from(byte)
                    .map_err(|_| err!(NoLowering, "a distance of {byte} bytes"))?;
                let mem = Mem::at(base, byte);
                let reg = block.regs[(row * vectors + v) as usize];
                let left = block.cols - v * lanes;
                let mask = if left < lanes {
                    Some(self.e.first_lanes(left as u32))
                } else {
                    None
                };
                if load {
                    let r = self.e.load(dtype, mem, lanes as u32, mask)?;
                    self.e.f.retarget(r, reg, width);
                } else {
                    self.e.store(dtype, mem, reg, lanes as u32, mask, false)?;
                }
            }
        }
        Ok(())
    }

    /// Multiplies and adds over the whole depth, into a block that begins at `row` and vector `vector`.
    fn steps(
        &mut self,
        a: &Operand,
        b: &Operand,
        block: &Rows,
        row: i64,
        vector: i64,
    ) -> Result<()> {
        let grouped = self.grouped(a, b, block.dtype);
        let (a, b, dot) = match &grouped {
            Some(Grouped { a, b, dot }) => (a, b, Some(*dot)),
            None => (a, b, None),
        };
        let depth: i64 = a.depth.iter().map(|d| d.0).product();
        let other: i64 = b.depth.iter().map(|d| d.0).product();
        ensure!(depth == other, InvalidKernel, "depths {depth} and {other}");
        let lanes = i64::from(self.e.full_lanes(lane_bytes(block.dtype)));
        let vectors = block.cols.div_ceil_lanes(lanes as u32);
        let mut left = self.walk(a, row, block.rows, 1)?;
        let mut right = self.walk(b, vector * lanes, vectors, lanes)?;
        ensure!(
            b.side.is_empty()
                || b.side
                    .last()
                    .is_some_and(|s| s.1 == Stride::Bytes(b.dtype.size() as i64)),
            NoLowering,
            "x86 has no code for a product whose right side is not contiguous"
        );
        let unroll = match (left.inner, right.inner) {
            (None, None)
                if matches!(
                    (left.step, right.step),
                    (Stride::Bytes(_), Stride::Bytes(_))
                ) =>
            {
                4.min(depth)
            }
            (None, None) => 1,
            (Some(n), None) | (None, Some(n)) => n,
            (Some(n), Some(m)) if n == m => n,
            (Some(_), Some(_)) => {
                return Err(err!(
                    NoLowering,
                    "x86 has no code for depths in blocks of two sizes"
                ));
            }
        };
        ensure!(
            unroll <= 64
                && (unroll == 1
                    || [&left, &right]
                        .iter()
                        .all(|w| matches!(w.step, Stride::Bytes(_)))),
            NoLowering,
            "x86 has no code for a depth in blocks of {unroll}"
        );
        let times = depth / unroll;
        let ahead = ahead(b, depth, vectors * lanes);
        let next = self.ask_next(b, ahead.map(|row| row * unroll), times)?;
        let mut round = |s: &mut Self, next: Option<&Asked>| {
            for k in 0..unroll {
                s.one_step([a.dtype, b.dtype], dot, block, [&left, &right], k)?;
                if let Some(row) = ahead {
                    for place in &right.places {
                        let there = place.plus((row * (k + AHEAD)) as i32);
                        s.e.f.inst(X::PrefetchT0, Width::X, &[there.into()]);
                    }
                }
            }
            if let Some(next) = next {
                s.ask_lines(next);
            }
            s.advance(&mut left, unroll);
            s.advance(&mut right, unroll);
            Ok(())
        };
        match next {
            Some(
                next @ Asked {
                    rows: Some((rounds, rows, further)),
                    ..
                },
            ) => {
                self.repeated(rows, |s| {
                    s.repeated(rounds, |s| round(s, Some(&next)))?;
                    s.ask_further(&next, further);
                    Ok(())
                })?;
                self.repeated(times - rows * rounds, |s| round(s, None))?;
            }
            next => self.repeated(times, |s| round(s, next.as_ref()))?,
        }
        for k in 0..depth % unroll {
            self.one_step([a.dtype, b.dtype], dot, block, [&left, &right], k)?;
        }
        Ok(())
    }

    /// Code that runs so many times.
    pub fn repeated(
        &mut self,
        times: i64,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if times <= 1 {
            return if times == 1 { body(self) } else { Ok(()) };
        }
        let count = self.e.imm(times);
        let head = self.e.f.label();
        self.e.f.push(Item::Align);
        self.e.f.bind(head);
        body(self)?;
        self.e.g(X::SubI, &[count.into(), A::I(1)]);
        self.e.f.jump(Cond::Ne, head);
        Ok(())
    }

    fn one_step(
        &mut self,
        [a, b]: [DType; 2],
        dot: Option<Dot>,
        block: &Rows,
        [left, right]: [&Walk; 2],
        k: i64,
    ) -> Result<()> {
        let size = lane_bytes(block.dtype);
        let lanes = self.e.full_lanes(size);
        let vectors = right.places.len();
        let width = self.e.level.width();
        let along = |w: &Walk| {
            if let Stride::Bytes(n) = w.step {
                (n * k) as i32
            } else {
                0
            }
        };
        let mut row_of_b = Vec::with_capacity(vectors);
        self.e.mask_bytes = size;
        for (j, place) in right.places.iter().enumerate() {
            let cols = block.cols - j as i64 * i64::from(lanes);
            let mask = if cols < i64::from(lanes) {
                Some(self.e.first_lanes(cols as u32))
            } else {
                None
            };
            let v = self.e.load(b, place.plus(along(right)), lanes, mask)?;
            row_of_b.push(self.e.cast(b, block.dtype, v, lanes)?);
        }
        // One vector a row: the multiplication repeats the element itself. More: loading it once leaves the load ports free.
        let direct =
            self.e.avx512() && a == DType::F32 && block.dtype == DType::F32 && vectors == 1;
        for (i, place) in left.places.iter().enumerate() {
            let place = place.plus(along(left));
            let element: A = if direct {
                place.repeated().into()
            } else {
                let v = self.e.load_uniform(a, place)?;
                self.cast_uniform(a, block.dtype, v)?.into()
            };
            for (j, v) in row_of_b.iter().enumerate() {
                let acc = block.regs[i * vectors + j];
                if let Some(Dot { op, is_b_first }) = dot {
                    let (b, a) = ((*v).into(), element);
                    let [x, y] = if is_b_first { [b, a] } else { [a, b] };
                    self.e.f.inst(op, width, &[acc.into(), x, y]);
                } else if block.dtype.is_float() {
                    let multiply = if size == 8 { X::FmaddPd } else { X::FmaddPs };
                    self.e.f.inst(
                        multiply,
                        width,
                        &[acc.into(), (*v).into(), element, acc.into()],
                    );
                } else if let A::R(e) = element {
                    let p = self.e.binary(BinaryOp::Mul, DType::I32, *v, e, lanes)?;
                    self.e
                        .f
                        .inst(X::VPAddD, width, &[acc.into(), acc.into(), p.into()]);
                }
            }
        }
        Ok(())
    }

    /// Memory operands for `count` places along an operand's side, `apart` elements from each other, from element `first` on.
    pub fn walk(&mut self, o: &Operand, first: i64, count: i64, apart: i64) -> Result<Walk> {
        let (step, block, inner) = match o.depth[..] {
            [] => (Stride::Bytes(0), None, None),
            [(_, stride)] => (stride, None, None),
            [(_, outer), (n, stride)] => (stride, Some(outer), Some(n)),
            _ => {
                return Err(err!(
                    NoLowering,
                    "x86 has no vector code for a depth in several dims"
                ));
            }
        };
        let fixed = o.side.iter().all(|s| matches!(s.1, Stride::Bytes(_)));
        if fixed {
            let p = self.e.copy_gpr(o.pointer);
            let places = (0..count)
                .map(|i| {
                    let at = side_offset(&o.side, first + i * apart);
                    i32::try_from(at)
                        .map(|d| Mem::at(p, d))
                        .map_err(|_| err!(NoLowering, "a distance of {at} bytes"))
                })
                .collect::<Result<Vec<Mem>>>()?;
            return Ok(Walk {
                pointers: vec![p],
                places,
                step,
                block,
                inner,
            });
        }
        let [(_, Stride::Reg(stride))] = o.side[..] else {
            return Err(err!(
                NoLowering,
                "x86 has no code for a side of several dims, some unknown"
            ));
        };
        ensure!(
            apart == 1,
            NoLowering,
            "x86 has no code for a product whose right side is not contiguous"
        );
        // A pointer for each three rows: the row in between and the one after are one and two strides away.
        let mut pointers = Vec::new();
        let mut places = Vec::new();
        let start = self.e.imm(first);
        self.e.g(X::Imul, &[start.into(), stride.into()]);
        self.e.g(X::Add, &[start.into(), o.pointer.into()]);
        let mut p = start;
        for i in 0..count {
            if i % 3 == 0 {
                if i > 0 {
                    let next = self.e.gpr(X::Lea, &[Mem::indexed(p, stride, 2, 0).into()]);
                    self.e.g(X::Add, &[next.into(), stride.into()]);
                    p = next;
                }
                pointers.push(p);
                places.push(Mem::at(p, 0));
            } else {
                places.push(Mem::indexed(p, stride, (i % 3) as u8, 0));
            }
        }
        Ok(Walk {
            pointers,
            places,
            step,
            block,
            inner,
        })
    }

    pub fn advance(&mut self, walk: &mut Walk, steps: i64) {
        // A whole block at a time where there are blocks.
        let (step, steps) = match walk.block {
            Some(block) => (block, 1),
            None => (walk.step, steps),
        };
        for p in &walk.pointers {
            match step {
                Stride::Bytes(0) => {}
                Stride::Bytes(n) => self.e.gpr_imm(X::AddI, X::Add, *p, n * steps),
                Stride::Reg(r) => self.e.g(X::Add, &[(*p).into(), r.into()]),
            }
        }
    }

    /// Whether an effect that waits reads sums in registers.
    fn rows_wait(&self) -> bool {
        let mut seen = self.marks();
        let pending = self.pending.iter();
        let mut stack: Vec<Val> = pending.flat_map(|inst| operands(&inst.op)).collect();
        while let Some(v) = stack.pop() {
            if !seen.insert(v) {
                continue;
            }
            match self.defs.get(&v) {
                Some(Def::Rows(_)) => return true,
                Some(Def::Lazy(inst)) => stack.extend(operands(&inst.op)),
                _ => {}
            }
        }
        false
    }

    /// Accumulators that sinks read leave the registers first.
    pub fn settle_products(&mut self, roots: &[Val]) -> Result<()> {
        let mut seen = self.marks();
        let mut stack = roots.to_vec();
        while let Some(v) = stack.pop() {
            if !seen.insert(v) {
                continue;
            }
            match self.defs.get(&v) {
                Some(Def::Lazy(inst)) => stack.extend(operands(&inst.op)),
                Some(Def::Rows(rows)) => {
                    let rows = rows.clone();
                    let size = i64::from(lane_bytes(rows.dtype));
                    let bytes = u32::try_from(rows.rows * rows.cols * size)
                        .map_err(|_| err!(TooLarge, "an accumulator"))?;
                    let offset = self.take_scratch(bytes)?;
                    self.move_rows(&rows, self.scratch, i64::from(offset), rows.cols, false)?;
                    self.defs.insert(
                        v,
                        Def::Saved {
                            offset,
                            strides: vec![rows.cols, 1],
                        },
                    );
                }
                Some(Def::Matrix(m)) => {
                    let m = m.clone();
                    let (offset, cols) = self.amx_store(&m)?;
                    self.defs.insert(
                        v,
                        Def::Saved {
                            offset,
                            strides: vec![cols, 1],
                        },
                    );
                }
                Some(Def::Gpr(_) | Def::Uniform(_) | Def::Saved { .. } | Def::Memory(_)) | None => {
                }
            }
        }
        Ok(())
    }

    /// Whether a tile is certainly zero everywhere.
    pub fn is_zero(&self, v: Val) -> bool {
        match self.defs.get(&v) {
            Some(Def::Lazy(Inst {
                op: Op::Splat { value },
                ..
            })) => {
                matches!(self.origin(*value), Some(Op::Const { value }) if *value == Scalar::F(0.0) || *value == Scalar::I(0))
            }
            Some(Def::Lazy(Inst {
                op: Op::Broadcast { value } | Op::ConvertLayout { value } | Op::Reshape { value },
                ..
            })) => self.is_zero(*value),
            _ => false,
        }
    }
}

/// Places along one side and the pointers that move along the depth.
#[derive(Debug)]
pub struct Walk {
    pointers: Vec<Reg>,
    pub places: Vec<Mem>,
    /// From one element of the depth to the next.
    step: Stride,
    /// From one block of the depth to the next, and the elements of a block, where it has blocks.
    block: Option<Stride>,
    inner: Option<i64>,
}

/// Bytes of a row of a dense panel that the first-level cache does not hold beside the other operand: its rows are asked for ahead of time.
fn ahead(b: &Operand, depth: i64, cols: i64) -> Option<i64> {
    let row = cols * b.dtype.size() as i64;
    let [(_, Stride::Bytes(step))] = b.depth[..] else {
        return None;
    };
    (step == row && row % LINE == 0 && depth * row >= LARGE).then_some(row)
}

/// Whether no element of a window is there twice.
fn reads_once(access: &Access) -> bool {
    let mut dims = Vec::new();
    for (extent, stride) in access.shape.iter().zip(&access.strides) {
        match stride {
            Index::Const(stride) if *extent > 1 => dims.push((stride.abs(), *extent)),
            Index::Const(_) => {}
            Index::Val(_) => return false,
        }
    }
    dims.sort_unstable();
    let mut reach = 0;
    dims.into_iter().all(|(stride, extent)| {
        let apart = stride > reach;
        reach += stride * (extent - 1);
        apart
    })
}

/// Whether rows of vectors can hold sums of this type.
fn accumulates(dtype: DType) -> bool {
    if lane_bytes(dtype) == 8 {
        dtype.is_float()
    } else {
        !dtype.is_bool()
    }
}

/// Bytes from the first element of a side to element `n`, all distances known.
pub fn side_offset(side: &[(i64, Stride)], n: i64) -> i64 {
    let mut rest = n;
    let mut at = 0;
    for (extent, stride) in side.iter().rev() {
        if let Stride::Bytes(s) = stride {
            at += rest % extent * s;
        }
        rest /= extent;
    }
    at
}

/// Vectors for so many columns.
pub trait DivLanes {
    fn div_ceil_lanes(self, lanes: u32) -> i64;
}

impl DivLanes for i64 {
    fn div_ceil_lanes(self, lanes: u32) -> i64 {
        let lanes = i64::from(lanes);
        (self + lanes - 1) / lanes
    }
}
