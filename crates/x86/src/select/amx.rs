//! Matrix products on the matrix unit (AMX): bf16 and 8-bit integers.
//!
//! The accumulator is two by two tiles of 16 rows by 16 columns in tmm0 to tmm3; tmm4 and tmm5 hold rows of `a`, tmm6 and tmm7 columns of
//! `b`. `a` is row-major; `b` stands with 4 bytes of depth side by side: `[k/2, n, 2]` for bf16, `[k/4, n, 4]` for bytes. Rows are split between the upper and the lower tiles after sixteen, or, where they
//! stand in two places (`[2, rows, k]`: positions of two lines of an image), between these.
//! One tile configuration serves a function: it is loaded at entry and released at exit.

use oxyfuel_base::{DType, Result, ensure, err};
use oxyfuel_kernel::ir::{Access, Block, Index, MmaDim, MmaOperand, Op, Val};

use super::mma::{Operand, Stride, side_offset};
use super::panels::Asked;
use super::values::operands;
use super::{Def, Select, slot};
use crate::mir::{A, Mem, Op as X, Reg};

/// An accumulator in matrix registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    pub rows: i64,
    pub cols: i64,
    /// Rows of the upper tiles; the lower ones have the rest.
    pub upper: i64,
    pub dtype: DType,
}

impl Matrix {
    /// Rows of the upper and the lower tiles.
    fn heights(&self) -> [i64; 2] {
        [self.upper, self.rows - self.upper]
    }

    fn tiles(&self) -> impl Iterator<Item = (u8, i64, i64)> {
        let across = self.cols / 16;
        let down = if self.rows > self.upper { 2 } else { 1 };
        (0..down).flat_map(move |i| (0..across).map(move |j| ((2 * i + j) as u8, i, j)))
    }
}

/// Bytes of one element of depth group: what a tile instruction multiplies at once in one column.
const GROUP: i64 = 4;

/// Steps of the depth (four products of tiles each) after which a tile is stored, whoever wants it: on a Xeon (Granite Rapids) a store of a tile waits some 250 ns where more than some 25 steps lie behind the one before, and hardly where fewer do. Of
/// convolutions, blocks of 36 steps in three products took 0.76 times as long with a store in between; no other instruction (fences, plain stores) did the same. Long products, which wait for memory, do not gain and have none.
pub const MOST_STEPS: i64 = 24;

/// Where the operands of the next step are.
struct TileWalk {
    /// Rows of `a` of the upper tiles, and of the lower ones.
    left: [Option<Reg>; 2],
    right: Reg,
    /// Bytes from one row to the next of each.
    row: Reg,
    pitch: Reg,
    /// From the left columns of `b` to the right ones.
    second: i32,
    /// From one step to the next, of both operands.
    advance: [Stride; 2],
    dot: X,
    wide: bool,
    /// What loads rows of `a`, and columns of `b`: past the first-level cache, if it shall keep the other operand.
    loads: [X; 2],
}

impl<'p> Select<'p, '_> {
    /// The accumulator in matrix registers that `v` may be: all products into it in a block are ones that the unit does, and split its rows alike.
    pub fn suits_amx(&self, block: &Block, v: Val) -> Option<Matrix> {
        let mut uppers = Vec::new();
        self.uppers(block, v, &mut uppers).then_some(())?;
        let (&upper, rest) = uppers.split_first()?;
        let matrix = self.amx_matrix(v, upper)?;
        rest.iter().all(|&u| u == upper).then_some(matrix)
    }

    /// The accumulator of one product.
    pub fn amx_matrix(&self, v: Val, upper: i64) -> Option<Matrix> {
        let ty = self.tile_of(v).ok()?;
        let &[rows, cols] = &ty.shape[..] else {
            return None;
        };
        let matrix = Matrix {
            rows,
            cols,
            upper,
            dtype: ty.dtype,
        };
        let fits = matrix.heights()[1] <= 16 && (cols == 16 || cols == 32);
        let free = self.matrix.as_ref().is_none_or(|have| *have == matrix);
        (fits && free).then_some(matrix)
    }

    /// Whether all products into `v` are the unit's; after how many rows each splits them.
    fn uppers(&self, block: &Block, v: Val, uppers: &mut Vec<i64>) -> bool {
        let Ok(ty) = self.tile_of(v) else {
            return false;
        };
        block.insts.iter().all(|inst| match &inst.op {
            Op::Mma { a, b, acc, .. } if *acc == v => {
                let upper = self.amx_operands(a, b, ty.dtype);
                uppers.extend(upper);
                upper.is_some()
            }
            Op::For {
                inits,
                carried,
                body,
                ..
            } => match inits.iter().position(|i| *i == v) {
                Some(i) => self.uppers(body, carried[i], uppers),
                None => true,
            },
            _ => true,
        })
    }

    /// After how many rows a product of the unit splits them; `None` where it is not one.
    pub fn amx_operands(&self, a: &MmaOperand, b: &MmaOperand, acc: DType) -> Option<i64> {
        let (
            MmaOperand::Mem {
                access: a,
                dims: da,
            },
            MmaOperand::Mem {
                access: b,
                dims: db,
            },
        ) = (a, b)
        else {
            return None;
        };
        let (Ok(ta), Ok(tb)) = (self.p.mem(a.mem), self.p.mem(b.mem)) else {
            return None;
        };
        let level = self.e.level;
        let bytes = |d: DType| matches!(d, DType::I8 | DType::U8);
        let types = match acc {
            DType::F32 => level.amx_bf16 && ta.dtype == DType::BF16 && tb.dtype == DType::BF16,
            DType::I32 => level.amx_int8 && bytes(ta.dtype) && bytes(tb.dtype),
            _ => false,
        };
        // Beyond these, elements may be larger than a group.
        if !types {
            return None;
        }
        let group = GROUP / ta.dtype.size() as i64;
        let plain = |x: &Access| x.valid.iter().all(Option::is_none);
        // Rows of one step's depth, either far apart or in blocks of their own.
        let last = a.shape.len().saturating_sub(1);
        let (steps, upper) = match da[..] {
            [MmaDim::Side, MmaDim::K] => (a.shape[1] % (16 * group) == 0, a.shape[0].min(16)),
            [MmaDim::Side, MmaDim::Side, MmaDim::K] => (
                a.shape[2] % (16 * group) == 0 && a.shape[0] == 2,
                a.shape[1],
            ),
            [MmaDim::K, MmaDim::Side, MmaDim::K] => (a.shape[2] == 16 * group, a.shape[1].min(16)),
            _ => return None,
        };
        let row_major = steps && (1..=16).contains(&upper) && a.strides[last] == Index::Const(1);
        let paired = db[..] == [MmaDim::K, MmaDim::Side, MmaDim::K]
            && b.shape[2] == group
            && b.shape[0] % 16 == 0
            && b.strides[2] == Index::Const(1)
            && b.strides[1] == Index::Const(group);
        (plain(a) && plain(b) && row_major && paired).then_some(upper)
    }

    /// Takes the matrix registers for an accumulator that starts at zero or in scratch.
    pub fn amx_open(&mut self, m: Matrix, init: Val) -> Result<Matrix> {
        self.amx_configure(&m)?;
        self.amx_leave(&[])?;
        self.tile_steps = 0;
        if self.is_zero(init) {
            for (t, _, _) in m.tiles() {
                self.e.g(X::TileZero, &[A::T(t)]);
            }
            return Ok(m);
        }
        if let Some(access) = self.plain_load(self.laid_out(init))
            && let Some(stride) = self.rows_apart(access)
            && self.p.mem(access.mem)?.dtype == m.dtype
        {
            let from = self.address(access.mem, &access.base)?;
            self.amx_move(&m, from, 0, stride * 4, true);
            return Ok(m);
        }
        if !matches!(self.defs.get(&init), Some(Def::Saved { .. })) {
            self.flush(&[init])?;
        }
        let Some(Def::Saved { offset, strides }) = self.defs.get(&init) else {
            return Err(err!(NoLowering, "x86 has no code for such an accumulator"));
        };
        ensure!(
            strides[1] == 1,
            NoLowering,
            "x86 has no code for an accumulator that lies across its tiles"
        );
        let (offset, pitch) = (i64::from(*offset), strides[0] * 4);
        self.amx_move(&m, self.scratch, offset, pitch, true);
        Ok(m)
    }

    /// One configuration a function, loaded where it begins.
    fn amx_configure(&mut self, m: &Matrix) -> Result<()> {
        if let Some(have) = &self.matrix {
            ensure!(
                have == m,
                NoLowering,
                "x86 has no code for two shapes of matrix accumulators in one phase"
            );
            return Ok(());
        }
        let mut config = [0u8; 64];
        config[0] = 1;
        let [upper, lower] = m.heights();
        let rows = [upper, upper, lower, lower, upper, lower, 16, 16];
        for (t, n) in rows.into_iter().enumerate() {
            // A tile without rows keeps no columns either.
            config[16 + 2 * t] = if n > 0 { 64 } else { 0 };
            config[48 + t] = n as u8;
        }
        self.e.tile_config(&config);
        self.matrix = Some(m.clone());
        Ok(())
    }

    /// Between the tiles and byte `offset` of what `base` points to, rows `pitch` bytes apart.
    pub fn amx_move(&mut self, m: &Matrix, base: Reg, offset: i64, pitch: i64, load: bool) {
        let stride = self.e.imm(pitch);
        for (t, i, j) in m.tiles() {
            let at = offset + i * m.upper * pitch + j * 64;
            let mem = Mem::indexed(base, stride, 1, at as i32);
            if load {
                self.e.g(X::TileLoadD, &[A::T(t), mem.into()]);
            } else {
                self.e.g(X::TileStoreD, &[mem.into(), A::T(t)]);
            }
        }
    }

    /// Accumulators that are still to be read leave the matrix registers, which are there once, to what comes next, but for some that it goes on with.
    pub fn amx_leave(&mut self, but: &[Val]) -> Result<()> {
        // Those that something else is still to be computed of are behind values, and behind effects that wait.
        let to_come = self.defs.keys().filter(|v| self.uses[slot(*v)] > 0);
        let pending = self.pending.iter().flat_map(|inst| operands(&inst.op));
        let mut stack: Vec<Val> = to_come.chain(pending).collect();
        let mut seen = self.marks();
        let mut held = Vec::new();
        while let Some(v) = stack.pop() {
            if !seen.insert(v) {
                continue;
            }
            match self.defs.get(&v) {
                Some(Def::Lazy(inst)) => stack.extend(operands(&inst.op)),
                Some(Def::Matrix(_)) if !but.contains(&v) => held.push(v),
                _ => {}
            }
        }
        self.settle_products(&held)
    }

    /// Leaves the matrix registers for scratch, row-major; the answer is the place and the row's length.
    pub fn amx_store(&mut self, m: &Matrix) -> Result<(u32, i64)> {
        let offset = self.take_scratch((m.rows * m.cols * 4) as u32)?;
        self.amx_move(m, self.scratch, i64::from(offset), m.cols * 4, false);
        Ok((offset, m.cols))
    }

    fn distance(&mut self, s: Stride) -> Reg {
        match s {
            Stride::Bytes(n) => self.e.imm(n),
            Stride::Reg(r) => r,
        }
    }

    /// Tile instructions over the whole depth.
    pub fn amx_steps(&mut self, m: &Matrix, a: &Operand, b: &Operand) -> Result<()> {
        let size = a.dtype.size() as i64;
        let group = GROUP / size;
        let depth: i64 = a.depth.iter().map(|d| d.0).product();
        let per_step = 16 * group;
        ensure!(
            depth % per_step == 0,
            NoLowering,
            "a depth of {depth} on the matrix unit"
        );
        let row = self.distance(a.side.last().map_or(Stride::Bytes(64), |s| s.1));
        let Some(&(_, pair)) = b.depth.first() else {
            return Err(err!(
                NoLowering,
                "the right side of a product on the matrix unit"
            ));
        };
        let pitch = self.distance(if b.depth.len() > 1 {
            pair
        } else {
            Stride::Bytes(64)
        });
        let [_, lower] = m.heights();
        let pa = self.e.copy_gpr(a.pointer);
        let pa2 = (lower > 0).then(|| {
            let r = match a.side[..] {
                [(_, apart), _] => {
                    let apart = self.distance(apart);
                    self.e.copy_gpr(apart)
                }
                _ => self.e.gpr(X::ImulI, &[row.into(), A::I(m.upper)]),
            };
            self.e.g(X::Add, &[r.into(), pa.into()]);
            r
        });
        let pb = self.e.copy_gpr(b.pointer);
        let second = side_offset(&b.side, 16) as i32;
        let advance_b = match pair {
            Stride::Bytes(n) if b.depth.len() > 1 => Stride::Bytes(16 * n),
            Stride::Bytes(_) => Stride::Bytes(0),
            Stride::Reg(r) => {
                let d = self.e.copy_gpr(r);
                self.e.g(X::ShlI, &[d.into(), A::I(4)]);
                Stride::Reg(d)
            }
        };
        let advance_a = if a.depth.len() > 1 {
            a.depth[0].1
        } else {
            Stride::Bytes(64)
        };
        let dot = match (a.dtype, b.dtype) {
            (DType::BF16, _) => X::TdpBf16Ps,
            (DType::I8, DType::I8) => X::TdpBssd,
            (DType::I8, _) => X::TdpBsud,
            (_, DType::I8) => X::TdpBusd,
            (_, _) => X::TdpBuud,
        };
        let walk = TileWalk {
            left: [Some(pa), pa2],
            right: pb,
            row,
            pitch,
            second,
            advance: [advance_a, advance_b],
            dot,
            wide: m.cols > 16,
            loads: [a, b].map(|operand| match operand.passes_by {
                true => X::TileLoadT1,
                false => X::TileLoadD,
            }),
        };
        let steps = depth / per_step;
        let row = match pair {
            Stride::Bytes(n) if b.depth.len() > 1 => Some(16 * n),
            Stride::Bytes(_) | Stride::Reg(_) => None,
        };
        // A panel that is used once is asked for by its own use.
        let shared = b.next.is_some_and(|next| next.shared.is_some());
        let asked = match shared {
            true => self.ask_next(b, row, steps)?,
            false => None,
        };
        if self.tile_steps > 0 && self.tile_steps + steps > MOST_STEPS && steps <= MOST_STEPS {
            self.store_a_tile()?;
        }
        self.tile_steps += steps;
        self.tile_run(&walk, steps, asked.as_ref())
    }

    /// Stores a tile for nothing.
    fn store_a_tile(&mut self) -> Result<()> {
        let offset = match self.tile_scratch {
            Some(offset) => offset,
            None => self.take_scratch(1024)?,
        };
        self.tile_scratch = Some(offset);
        let apart = self.e.imm(64);
        let place = Mem::indexed(self.scratch, apart, 1, offset as i32);
        self.e.g(X::TileStoreD, &[place.into(), A::T(4)]);
        self.tile_steps = 0;
        Ok(())
    }

    /// So many steps, one after the other.
    fn tile_run(&mut self, walk: &TileWalk, steps: i64, asked: Option<&Asked>) -> Result<()> {
        let known = matches!(walk.advance, [Stride::Bytes(_), Stride::Bytes(_)]);
        let unroll = if steps % 2 == 0 && known { 2 } else { 1 };
        self.repeated(steps / unroll, |s| {
            for number in 0..unroll {
                s.tile_step(walk, number);
                if let Some(asked) = asked {
                    s.ask_lines(asked);
                }
            }
            let [a, b] = walk.advance;
            for p in walk.left.into_iter().flatten() {
                s.move_on(p, a, unroll);
            }
            s.move_on(walk.right, b, unroll);
            Ok(())
        })
    }

    fn move_on(&mut self, p: Reg, by: Stride, times: i64) {
        match by {
            Stride::Bytes(n) => self.e.gpr_imm(X::AddI, X::Add, p, n * times),
            Stride::Reg(r) => self.e.g(X::Add, &[p.into(), r.into()]),
        }
    }

    /// One step of the depth, so many behind where the pointers are.
    fn tile_step(&mut self, walk: &TileWalk, number: i64) {
        let [a, b] = walk.advance.map(|advance| match advance {
            Stride::Bytes(n) => (number * n) as i32,
            Stride::Reg(_) => 0,
        });
        let [Some(upper), lower] = walk.left else {
            return;
        };
        let (row, pitch, dot) = (walk.row, walk.pitch, walk.dot);
        let [load_a, load_b] = walk.loads;
        let from = Mem::indexed(walk.right, pitch, 1, b);
        self.e.g(load_b, &[A::T(6), from.into()]);
        let from = Mem::indexed(upper, row, 1, a);
        self.e.g(load_a, &[A::T(4), from.into()]);
        self.e.g(dot, &[A::T(0), A::T(4), A::T(6)]);
        if walk.wide {
            let from = Mem::indexed(walk.right, pitch, 1, b + walk.second);
            self.e.g(load_b, &[A::T(7), from.into()]);
            self.e.g(dot, &[A::T(1), A::T(4), A::T(7)]);
        }
        if let Some(lower) = lower {
            let from = Mem::indexed(lower, row, 1, a);
            self.e.g(load_a, &[A::T(5), from.into()]);
            self.e.g(dot, &[A::T(2), A::T(5), A::T(6)]);
            if walk.wide {
                self.e.g(dot, &[A::T(3), A::T(5), A::T(7)]);
            }
        }
    }
}
