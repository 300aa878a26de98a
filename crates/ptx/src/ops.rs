//! One op after the other: the dispatch, and elementwise ops.

use oxyfuel_base::{DType, Result, ensure, err};
use oxyfuel_kernel::ir::{BinaryOp, Inst, Op, Val};

use crate::asm::{Asm, Class, Opd, Reg};
use crate::emit::Emitter;
use crate::fact::Fact;
use crate::scalar::compute_dtype;
use crate::value::{Int, Memory, Slot, Value, clamp_fact, class_of, parts, range_of};

/// What an elementwise op does with the elements of one place, in the dtype it computes in.
type Elementwise<'a> = dyn FnMut(&mut Asm, DType, &[Int]) -> Result<Int> + 'a;

impl Emitter<'_> {
    pub(crate) fn inst(&mut self, inst: &Inst, next: Option<&Inst>) -> Result<()> {
        match &inst.op {
            Op::ProgramId { axis } => {
                let id = self
                    .program_id
                    .get(usize::from(*axis))
                    .copied()
                    .flatten()
                    .ok_or_else(|| err!(InvalidKernel, "the grid has no axis {axis}"))?;
                self.define_int(Self::one_result(inst)?, id)
            }
            Op::NumPrograms { axis } => {
                let extent = self.grid_extent(usize::from(*axis));
                self.define_int(Self::one_result(inst)?, extent)
            }
            Op::Pick { mems, index } => self.pick(Self::one_result(inst)?, mems, *index),
            Op::Const { value } => {
                let result = Self::one_result(inst)?;
                let tile = self.literal_tile(result, *value)?;
                self.set(result, tile)
            }
            Op::Iota { dim } => self.iota(Self::one_result(inst)?, usize::from(*dim)),
            Op::Splat { value } => {
                let tile = self.tile(*value)?;
                let slot = tile.scalar()?;
                let result = Self::one_result(inst)?;
                let n = self.place(result)?.regs.len();
                self.define(result, vec![slot; n], tile.fact)
            }
            Op::Broadcast { value } => self.broadcast(Self::one_result(inst)?, *value),
            Op::Reshape { value } => self.reshape(Self::one_result(inst)?, *value),
            Op::Permute { value, perm } => self.permute(Self::one_result(inst)?, *value, perm),
            Op::Unary { op, value } => {
                self.elementwise(Self::one_result(inst)?, &[*value], &mut |asm, dtype, x| {
                    asm.unary(*op, dtype, x[0])
                })
            }
            Op::Binary { op, lhs, rhs } => {
                let result = Self::one_result(inst)?;
                if let Some(mnemonic) = self.of_pairs(*op, *lhs)? {
                    return self.by_pairs(mnemonic, result, *lhs, *rhs);
                }
                self.elementwise(result, &[*lhs, *rhs], &mut |asm, dtype, x| {
                    asm.binary(*op, dtype, x[0], x[1])
                })
            }
            Op::Compare { op, lhs, rhs } => self.elementwise(
                Self::one_result(inst)?,
                &[*lhs, *rhs],
                &mut |asm, dtype, x| {
                    Ok(Int {
                        opd: asm.compare(*op, dtype, x[0], x[1])?,
                        fact: range_of(DType::Bool),
                    })
                },
            ),
            Op::Fma { a, b, c } => self.elementwise(
                Self::one_result(inst)?,
                &[*a, *b, *c],
                &mut |asm, dtype, x| asm.fma(dtype, x[0], x[1], x[2]),
            ),
            Op::Select {
                cond,
                on_true,
                on_false,
            } => self.select(Self::one_result(inst)?, *cond, *on_true, *on_false),
            Op::Cast { value } => {
                let tile = self.tile(*value)?;
                let result = Self::one_result(inst)?;
                let to = self.dtype(result)?;
                let (slots, fact) =
                    self.asm
                        .cast(self.target, tile.dtype, to, &tile.slots, tile.fact)?;
                self.define(result, slots, fact)
            }
            Op::Bitcast { value } => self.bitcast(Self::one_result(inst)?, *value),
            Op::Load {
                access,
                mask,
                fill,
                hint,
            } => self.load(Self::one_result(inst)?, access, *mask, *fill, *hint),
            Op::Store {
                access,
                value,
                mask,
                hint: _,
            } => self.store(access, *value, *mask),
            Op::Gather {
                mem,
                index,
                mask,
                fill,
            } => self.gather(Self::one_result(inst)?, *mem, *index, *mask, *fill),
            Op::Scatter {
                mem,
                index,
                value,
                mask,
            } => self.scatter(*mem, *index, *value, *mask),
            Op::Atomic {
                op,
                mem,
                index,
                value,
                mask,
            } => self.atomic(*op, *mem, *index, *value, *mask),
            Op::Reduce { .. } => self.reduce_all(std::slice::from_ref(inst)),
            Op::ArgReduce { .. } | Op::Scan { .. } | Op::Sort { .. } => Err(err!(
                NoLowering,
                "{} cannot be emitted as PTX yet",
                inst.op.row().name
            )),
            Op::Dot { .. } => Err(err!(
                NoLowering,
                "dot is of the logical form; map it to a product on a matrix unit"
            )),
            Op::For { .. } => self.for_loop(inst),
            Op::If {
                cond,
                on_true,
                on_false,
            } => self.branch(inst, *cond, on_true, on_false),
            Op::Alloc => self.alloc(Self::one_result(inst)?),
            Op::ConvertLayout { value } => self.convert_layout(Self::one_result(inst)?, *value),
            Op::Mma {
                a,
                b,
                acc,
                asynchronous,
            } => self.mma(Self::one_result(inst)?, a, b, *acc, *asynchronous),
            Op::MmaCommit => {
                self.asm.line("wgmma.commit_group.sync.aligned");
                Ok(())
            }
            Op::MmaWait { pending, accs } => self.mma_wait(inst, *pending, accs),
            Op::TensorLoad {
                map,
                coords,
                dst,
                base,
                barrier,
            } => self.tensor_load(*map, coords, *dst, *base, *barrier),
            Op::TensorStore {
                map,
                coords,
                src,
                base,
            } => self.tensor_store(*map, coords, *src, *base),
            Op::CopyAsync { src, dst } => self.copy_async(src, dst),
            Op::CopyCommit => self.copy_commit(),
            Op::CopyWait { pending } => self.copy_wait(*pending, next),
            Op::BarrierInit { barrier, count } => self.barrier_init(*barrier, *count, next),
            Op::BarrierArrive {
                barrier,
                bytes,
                per_warp,
            } => self.barrier_arrive(*barrier, *bytes, *per_warp),
            Op::BarrierWait { barrier, parity } => self.barrier_wait(*barrier, *parity),
            Op::Sync => {
                self.sync();
                Ok(())
            }
            Op::FenceAsync => {
                ensure!(
                    self.target.tensor_copies,
                    NoLowering,
                    "{} has no asynchronous reads of shared memory to fence",
                    self.target.name
                );
                self.asm.line("fence.proxy.async.shared::cta");
                Ok(())
            }
            Op::Roles { roles } => self.roles(roles),
        }
    }

    pub(crate) fn define_int(&mut self, result: Val, value: Int) -> Result<()> {
        self.define(result, vec![Slot::Opd(value.opd)], value.fact)
    }

    fn iota(&mut self, result: Val, dim: usize) -> Result<()> {
        let place = self.place(result)?;
        let dtype = self.dtype(result)?;
        ensure!(
            dim < place.rank(),
            DimOutOfRange,
            "iota along dim {dim} of rank {}",
            place.rank()
        );
        let thread = self.thread_coord(&place, dim)?;
        let fact = Fact::range(0, place.cover(dim) - 1);
        let fact = clamp_fact(dtype, fact);
        let mut slots = Vec::with_capacity(place.regs.len());
        for coords in &place.regs {
            let sum = self.asm.int_add(thread, Int::constant(coords[dim]));
            let opd = if dtype == DType::U64 {
                self.asm.widen(sum)
            } else {
                sum.opd
            };
            slots.push(Slot::Opd(opd));
        }
        self.define(result, slots, fact)
    }

    /// Applies `f` place by place. Floats below 32 bits are widened for it and rounded after it.
    fn elementwise(
        &mut self,
        result: Val,
        operands: &[Val],
        f: &mut Elementwise<'_>,
    ) -> Result<()> {
        let mut tiles = operands
            .iter()
            .map(|v| self.tile(*v))
            .collect::<Result<Vec<_>>>()?;
        let dtype = tiles[0].dtype;
        let wide = compute_dtype(dtype);
        let n = tiles[0].slots.len();
        for tile in &mut tiles {
            ensure!(
                tile.slots.len() == n,
                InvalidKernel,
                "operands of an elementwise op have different layouts"
            );
            if wide != tile.dtype && tile.dtype == dtype {
                tile.slots = self.asm.widened(dtype, &tile.slots)?;
            }
        }
        let to = self.dtype(result)?;
        let mut slots = Vec::with_capacity(n);
        let mut fact: Option<Fact> = None;
        for r in 0..n {
            let args: Vec<Int> = tiles
                .iter()
                .map(|tile| Int {
                    opd: self.asm.element(wide, tile.slots[r]),
                    fact: tile.fact,
                })
                .collect();
            let one = f(&mut self.asm, wide, &args)?;
            slots.push(Slot::Opd(one.opd));
            fact = Some(fact.map_or(one.fact, |seen| seen.join(one.fact)));
        }
        let fact = fact.unwrap_or(Fact::UNKNOWN);
        if wide != dtype && to == dtype {
            slots = self.asm.narrowed(self.target, dtype, &slots)?;
        }
        // Elements of one tile share a width, whatever single ones would fit.
        if to == DType::I64 && !fact.fits_i32() {
            for slot in &mut slots {
                if let Slot::Opd(opd) = *slot {
                    *slot = Slot::Opd(self.asm.widen(Int { opd, fact }));
                }
            }
        }
        self.define(result, slots, fact)
    }

    /// The instruction that does an op on two neighbours of 16 bits and rounds each once, where there are neighbours and there is one.
    fn of_pairs(&self, op: BinaryOp, operand: Val) -> Result<Option<&'static str>> {
        let tile = self.tile(operand)?;
        let is_bf16 = match tile.dtype {
            DType::BF16 => self.target.bf16_pairs,
            DType::F16 => false,
            _ => return Ok(None),
        };
        if tile.slots.len() < 2 || (tile.dtype == DType::BF16 && !is_bf16) {
            return Ok(None);
        }
        Ok(match op {
            BinaryOp::Add if is_bf16 => Some("add.rn.bf16x2"),
            BinaryOp::Sub if is_bf16 => Some("sub.rn.bf16x2"),
            BinaryOp::Mul if is_bf16 => Some("mul.rn.bf16x2"),
            BinaryOp::Min if is_bf16 => Some("min.NaN.bf16x2"),
            BinaryOp::Max if is_bf16 => Some("max.NaN.bf16x2"),
            BinaryOp::Add => Some("add.rn.f16x2"),
            BinaryOp::Sub => Some("sub.rn.f16x2"),
            BinaryOp::Mul => Some("mul.rn.f16x2"),
            BinaryOp::Min => Some("min.NaN.f16x2"),
            BinaryOp::Max => Some("max.NaN.f16x2"),
            BinaryOp::Div
            | BinaryOp::Rem
            | BinaryOp::FloorDiv
            | BinaryOp::Mod
            | BinaryOp::Pow
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::Shl
            | BinaryOp::Shr => None,
        })
    }

    fn by_pairs(&mut self, mnemonic: &str, result: Val, lhs: Val, rhs: Val) -> Result<()> {
        let (a, b) = (self.tile(lhs)?, self.tile(rhs)?);
        let (dtype, n) = (a.dtype, a.slots.len());
        ensure!(
            b.slots.len() == n,
            InvalidKernel,
            "operands of an elementwise op have different layouts"
        );
        let mut words = |slots: &[Slot]| -> Vec<Opd> {
            let words = self.asm.words(dtype, slots);
            let in_register = |word| match word {
                Opd::Reg(_) => word,
                literal => self.asm.constant(Class::B32, literal).into(),
            };
            words.into_iter().map(in_register).collect()
        };
        let (a, b) = (words(&a.slots), words(&b.slots));
        let pairs: Vec<Reg> = a
            .into_iter()
            .zip(b)
            .map(|(a, b)| self.asm.pure(Class::B32, mnemonic, &[a, b]))
            .collect();
        self.define(result, parts(dtype, &pairs, n), Fact::UNKNOWN)
    }

    fn select(&mut self, result: Val, cond: Val, on_true: Val, on_false: Val) -> Result<()> {
        let (c, a, b) = (self.tile(cond)?, self.tile(on_true)?, self.tile(on_false)?);
        ensure!(
            a.slots.len() == b.slots.len() && a.slots.len() == c.slots.len(),
            InvalidKernel,
            "operands of select have different layouts"
        );
        let fact = a.fact.join(b.fact);
        let dtype = a.dtype;
        let class = class_of(dtype, fact);
        let mut slots = Vec::with_capacity(a.slots.len());
        for r in 0..a.slots.len() {
            let p = self.asm.element(DType::Bool, c.slots[r]);
            let (mut x, mut y) = (
                self.asm.element(dtype, a.slots[r]),
                self.asm.element(dtype, b.slots[r]),
            );
            if dtype == DType::I64 && class == Class::B64 {
                x = self.asm.widen(Int {
                    opd: x,
                    fact: a.fact,
                });
                y = self.asm.widen(Int {
                    opd: y,
                    fact: b.fact,
                });
            }
            slots.push(Slot::Opd(self.asm.select(class, p, x, y)));
        }
        self.define(result, slots, fact)
    }

    fn bitcast(&mut self, result: Val, value: Val) -> Result<()> {
        let tile = self.tile(value)?;
        let to = self.dtype(result)?;
        let from = tile.dtype;
        if from == to {
            return self.define(result, tile.slots, tile.fact);
        }
        ensure!(
            from.size() == to.size() && !from.is_bool() && !to.is_bool(),
            NoLowering,
            "{from} cannot be read as {to}"
        );
        let fact = range_of(to);
        let mut slots = Vec::with_capacity(tile.slots.len());
        for slot in &tile.slots {
            slots.push(match *slot {
                // Whole words keep their bits whatever they are called.
                Slot::Part { .. } => *slot,
                Slot::Opd(opd) => Slot::Opd(self.bits_as(from, to, opd, tile.fact)),
            });
        }
        self.define(result, slots, fact)
    }

    fn bits_as(&mut self, from: DType, to: DType, opd: Opd, fact: Fact) -> Opd {
        if let Some(bits) = crate::value::literal_bits(from, opd) {
            return crate::value::literal(to, oxyfuel_base::Scalar::from_bits(to, bits));
        }
        match to.size() {
            8 => self.asm.widen(Int { opd, fact }),
            4 => opd,
            _ => {
                // Between a 16-bit register, and 32 bits extended by the kind of the dtype.
                let low: Opd = if class_of(from, fact) == Class::B16 {
                    self.asm.pure(Class::B32, "cvt.u32.u16", &[opd]).into()
                } else {
                    opd
                };
                if class_of(to, range_of(to)) == Class::B16 {
                    return self.asm.pure(Class::B16, "cvt.u16.u32", &[low]).into();
                }
                let mnemonic = if to.is_int() && to.is_signed() {
                    "bfe.s32"
                } else {
                    "bfe.u32"
                };
                self.asm
                    .pure(
                        Class::B32,
                        mnemonic,
                        &[low, Opd::Int(0), Opd::Int(8 * to.size() as i64)],
                    )
                    .into()
            }
        }
    }

    fn alloc(&mut self, result: Val) -> Result<()> {
        let data = self
            .program
            .values
            .get(result)
            .and_then(|data| data.ty.as_mem().cloned())
            .ok_or_else(|| err!(InvalidKernel, "{result} is not a memory"))?;
        ensure!(
            data.space == oxyfuel_kernel::ir::Space::Shared,
            NoLowering,
            "memory in space {:?} does not exist on this target",
            data.space
        );
        let len = data
            .len
            .filter(|n| *n >= 0)
            .ok_or_else(|| err!(InvalidKernel, "{result} has no length"))?;
        let bytes = len
            .checked_mul(data.dtype.size() as i64)
            .ok_or_else(|| err!(SizeOverflow, "{result} is larger than memory"))?;
        let align = if data.swizzle.is_some() { 1024 } else { 128 };
        let base = self.shared_alloc(bytes.unsigned_abs(), align);
        self.set(
            result,
            Value::Memory(Memory {
                dtype: data.dtype,
                space: data.space,
                base,
                align,
                swizzle: data.swizzle,
            }),
        )
    }
}
