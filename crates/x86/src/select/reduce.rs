//! Reductions: accumulators that live through a stage's loops, and the last steps across lanes.

use oxyfuel_base::{DType, Result, Scalar, err};
use oxyfuel_kernel::ir::{BinaryOp, Inst, Op, ReduceOp, Val};

use super::nest::Ctx;
use super::{Def, Select};
use crate::emit::{Emit, lane_bits, lane_bytes};
use crate::mir::{A, Op as X, Reg, Width};

/// One accumulator of one unrolled copy.
#[derive(Clone, Copy, Debug)]
pub struct Acc {
    pub value: Reg,
    /// Lanes that met a NaN, where the combining instruction would lose it.
    pub nan: Option<Reg>,
}

/// The neutral element of a combination.
pub fn identity(op: ReduceOp, dtype: DType) -> Scalar {
    let float = dtype.is_float();
    match op {
        ReduceOp::Sum => {
            if float {
                Scalar::F(0.0)
            } else {
                Scalar::I(0)
            }
        }
        ReduceOp::Prod => {
            if float {
                Scalar::F(1.0)
            } else {
                Scalar::I(1)
            }
        }
        ReduceOp::Min => {
            if float {
                Scalar::F(f64::INFINITY)
            } else {
                Scalar::I(int_limit(dtype, true))
            }
        }
        ReduceOp::Max => {
            if float {
                Scalar::F(f64::NEG_INFINITY)
            } else {
                Scalar::I(int_limit(dtype, false))
            }
        }
        ReduceOp::Any => Scalar::B(false),
        ReduceOp::All => Scalar::B(true),
    }
}

fn int_limit(dtype: DType, largest: bool) -> i64 {
    let bits = dtype.bits();
    match (dtype.is_signed(), largest) {
        (true, true) => i64::MAX >> (64 - bits),
        (true, false) => i64::MIN >> (64 - bits),
        (false, true) => dtype.mask() as i64,
        (false, false) => 0,
    }
}

fn combine(op: ReduceOp) -> BinaryOp {
    match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Any => BinaryOp::Or,
        ReduceOp::All => BinaryOp::And,
    }
}

/// Float extremes on AVX-512 keep NaNs in a mask of their own: two instructions a vector instead of three in a chain.
fn tracks_nan(e: &Emit<'_>, op: ReduceOp, dtype: DType) -> bool {
    e.avx512() && dtype.is_float() && matches!(op, ReduceOp::Min | ReduceOp::Max)
}

/// Whether the reductions of a nest combine the lanes of their vectors.
fn folds_lanes(c: &Ctx<'_, '_>) -> bool {
    c.nest.vector.is_some_and(|a| c.nest.staged.contains(&a))
}

impl<'p> Select<'p, '_> {
    pub fn reduction(&self, v: Val) -> Result<(ReduceOp, Val)> {
        match self.defs.get(&v) {
            Some(Def::Lazy(Inst {
                op: Op::Reduce { op, value, .. },
                ..
            })) => Ok((*op, *value)),
            _ => Err(err!(
                NoLowering,
                "x86 has no code for positions of extremes"
            )),
        }
    }

    pub fn open_accumulators(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        folds: &[Val],
        copies: u32,
    ) -> Result<()> {
        for &v in folds {
            let (op, value) = self.reduction(v)?;
            let dtype = self.dtype(value)?;
            let start = identity(op, dtype);
            // One mask for all copies, as there are fewer mask registers than accumulators: so copies must be parts of one result, not results of their own.
            let one_result = copies == 1 || folds_lanes(c);
            let nan = (tracks_nan(&self.e, op, dtype) && one_result).then(|| {
                let zero = self.e.imm(0);
                let k = self.e.f.mask();
                self.e.g(X::KMovWG, &[k.into(), zero.into()]);
                k
            });
            let mut accs = Vec::new();
            for _ in 0..copies {
                let acc = if dtype.is_bool() {
                    let bit = self.e.imm(i64::from(start.as_bool()));
                    Acc {
                        value: self.e.splat_bool(bit),
                        nan: None,
                    }
                } else {
                    let bits = lane_bits(start, dtype);
                    let value = if bits == 0 {
                        let d = self.e.f.vec();
                        self.e.f.inst(X::VZero, Width::X, &[d.into()]);
                        d
                    } else {
                        let k = self.e.constant(bits, lane_bytes(dtype));
                        self.e.copy_vec(k)
                    };
                    Acc { value, nan }
                };
                accs.push(acc);
            }
            c.accumulators.insert(v, accs);
        }
        Ok(())
    }

    /// The factors of a product that nobody has computed yet and whose sum is wanted: it is added without being rounded before.
    fn summed_product(
        &self,
        c: &Ctx<'_, 'p>,
        value: Val,
        copy: u32,
        dtype: DType,
    ) -> Option<(Val, Val)> {
        let (a, b) = self.binary_of(BinaryOp::Mul, value)?;
        let whole = c.tail.is_none() || !folds_lanes(c);
        let float = matches!(dtype, DType::F32 | DType::F64);
        let saved = c.nest.saved.iter().any(|list| list.contains(&value));
        let fresh = whole && float && !saved && self.is_fresh(c, value, copy);
        (fresh && self.scaled(value, a, b).is_none()).then_some((a, b))
    }

    pub fn accumulate(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        v: Val,
        copy: u32,
        copies: u32,
    ) -> Result<()> {
        let (op, value) = self.reduction(v)?;
        let dtype = self.dtype(value)?;
        let lanes = c.nest.lanes;
        let acc = c
            .accumulators
            .get(&v)
            .and_then(|a| a.get(copy as usize))
            .copied();
        let acc = acc.ok_or_else(|| err!(Internal, "a reduction without its accumulator"))?;
        if op == ReduceOp::Sum
            && let Some((a, b)) = self.summed_product(c, value, copy, dtype)
        {
            let (a, b) = (self.eval(c, a, copy)?, self.eval(c, b, copy)?);
            let bytes = lane_bytes(dtype);
            let op = if bytes == 8 { X::FmaddPd } else { X::FmaddPs };
            let sum = acc.value.into();
            let w = Width::of_bytes(lanes * bytes);
            self.e.f.inst(op, w, &[sum, a.into(), b.into(), sum]);
            return Ok(());
        }
        let mut x = self.eval(c, value, copy)?;
        // Lanes past a partial vector count only where this reduction folds the vector axis.
        if let Some(tail) = c.tail
            && folds_lanes(c)
        {
            let neutral = identity(op, dtype);
            x = if dtype.is_bool() {
                if neutral.as_bool() {
                    let off = self.e.mask_not(tail);
                    self.e.mask_binary(BinaryOp::Or, x, off)
                } else {
                    self.e.mask_binary(BinaryOp::And, x, tail)
                }
            } else {
                let k = self
                    .e
                    .constant(lane_bits(neutral, dtype), lane_bytes(dtype));
                self.e.select(dtype, tail, x, k, lanes)?
            };
        }
        if let Some(nan) = acc.nan {
            let bytes = lane_bytes(dtype);
            let w = Width::of_bytes(lanes * bytes);
            let (range, compare) = if bytes == 8 {
                (X::VRangePd, X::VCmpPdK)
            } else {
                (X::VRangePs, X::VCmpPsK)
            };
            let imm = A::I(if op == ReduceOp::Max { 5 } else { 4 });
            self.e.f.inst(
                range,
                w,
                &[acc.value.into(), acc.value.into(), x.into(), imm],
            );
            // One comparison finds a NaN in either of two vectors.
            if copy.is_multiple_of(2) && copy + 1 < copies {
                return Ok(());
            }
            let other = if copy % 2 == 1 {
                self.eval(c, value, copy - 1)?
            } else {
                x
            };
            let found = self.e.kmask(compare, w, &[other.into(), x.into(), A::I(3)]);
            self.e
                .f
                .inst(X::KOrW, Width::X, &[nan.into(), nan.into(), found.into()]);
            return Ok(());
        }
        // What is the same in all lanes stays so in lanes beyond the nest's too: a mask of AVX2 is as wide as what was compared, and others read all of it.
        let varies = c.nest.vector.is_some_and(|axis| c.nest.varies(value, axis));
        let lanes = match varies || self.e.avx512() || dtype.is_bool() {
            true => lanes,
            false => self.e.full_lanes(lane_bytes(dtype)),
        };
        let r = self.e.binary(combine(op), dtype, acc.value, x, lanes)?;
        self.e.f.retarget(r, acc.value, self.e.level.width());
        Ok(())
    }

    /// Joins the copies and, where the vector axis was folded, the lanes; the result is then known to later stages.
    pub fn close_reduction(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        v: Val,
        across: bool,
        copies: u32,
    ) -> Result<()> {
        let (op, value) = self.reduction(v)?;
        let dtype = self.dtype(value)?;
        let accs = c.accumulators.get(&v).cloned().unwrap_or_default();
        let lanes = c.nest.lanes;
        if across && let Some(nan) = accs.first().and_then(|acc| acc.nan) {
            let r = self.close_extreme(op, dtype, &accs, nan, lanes)?;
            c.levels[c.inner].memo.insert((v, 0), r);
            return Ok(());
        }
        let mut results = Vec::new();
        for acc in accs {
            let r = match acc.nan {
                Some(nan) => {
                    let bits = lane_bits(Scalar::F(f64::NAN), dtype);
                    let k = self.e.constant(bits, lane_bytes(dtype));
                    self.e.select(dtype, nan, k, acc.value, lanes)?
                }
                None => acc.value,
            };
            results.push(r);
        }
        if !across {
            let varies = c.nest.vector.is_some_and(|a| c.nest.varies(v, a));
            let level = c.inner;
            for (copy, r) in
                results
                    .into_iter()
                    .enumerate()
                    .take(if varies { copies as usize } else { 1 })
            {
                c.levels[level].memo.insert((v, copy as u32), r);
            }
            return Ok(());
        }
        while results.len() > 1 {
            let half = results.len().div_ceil(2);
            for i in half..results.len() {
                results[i - half] =
                    self.e
                        .binary(combine(op), dtype, results[i - half], results[i], lanes)?;
            }
            results.truncate(half);
        }
        let Some(&joined) = results.first() else {
            return Ok(());
        };
        let r = self.across_lanes(op, dtype, joined, lanes)?;
        let level = c.inner;
        c.levels[level].memo.insert((v, 0), r);
        Ok(())
    }

    /// The extreme of all copies and lanes, in all lanes: of numbers first, since one mask knows of every NaN.
    fn close_extreme(
        &mut self,
        op: ReduceOp,
        dtype: DType,
        accs: &[Acc],
        nan: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        let max = op == ReduceOp::Max;
        let mut results: Vec<Reg> = accs.iter().map(|acc| acc.value).collect();
        while results.len() > 1 {
            let half = results.len().div_ceil(2);
            let w = Width::of_bytes(lanes * bytes);
            for i in half..results.len() {
                results[i - half] =
                    self.e
                        .extreme_number(max, bytes, results[i - half], results[i], w);
            }
            results.truncate(half);
        }
        let mut joined = results[0];
        let mut n = lanes;
        while n > 1 {
            let other = self.other_half(joined, n, bytes);
            n /= 2;
            let w = Width::of_bytes(n.max(16 / bytes) * bytes);
            joined = self.e.extreme_number(max, bytes, joined, other, w);
        }
        let numbers = self.e.splat_lane(joined, bytes);
        let bits = self.e.gpr(X::KMovGW, &[nan.into()]);
        let zero = self.e.imm(0);
        self.e.g(X::Cmp, &[bits.into(), zero.into()]);
        let low = self.e.gpr(X::SetNe, &[]);
        let bit = self.e.gpr(X::MovZxBG, &[low.into()]);
        let met = self.e.splat_bool(bit);
        let nan = self
            .e
            .constant(lane_bits(Scalar::F(f64::NAN), dtype), bytes);
        self.e
            .select(dtype, met, nan, numbers, self.e.full_lanes(bytes))
    }

    /// The upper half of the first `n` lanes, in the lower one.
    fn other_half(&mut self, v: Reg, n: u32, bytes: u32) -> Reg {
        let w = Width::of_bytes(n * bytes);
        match (w, n) {
            (Width::Z, _) => self.e.vec(X::VExtractF32x8, w, &[v.into(), A::I(1)]),
            (Width::Y, _) => self.e.vec(X::VExtractF128, w, &[v.into(), A::I(1)]),
            (Width::X, 4) => self.e.vec(X::VPShufD, w, &[v.into(), A::I(0x4e)]),
            (Width::X, _) if bytes == 8 => self.e.vec(X::VPShufD, w, &[v.into(), A::I(0x4e)]),
            (Width::X, _) => self.e.vec(X::VPShufD, w, &[v.into(), A::I(0xb1)]),
        }
    }

    /// All lanes combined, in all lanes.
    fn across_lanes(&mut self, op: ReduceOp, dtype: DType, v: Reg, lanes: u32) -> Result<Reg> {
        if dtype.is_bool() {
            let bits = if self.e.avx512() {
                self.e.gpr(X::KMovGW, &[v.into()])
            } else {
                let d = self.e.f.gpr();
                let row = if self.e.mask_bytes == 8 {
                    X::VMovMskPd
                } else {
                    X::VMovMskPs
                };
                self.e
                    .f
                    .inst(row, self.e.level.width(), &[d.into(), v.into()]);
                d
            };
            let all = (1i64 << lanes) - 1;
            self.e.g(X::AndI, &[bits.into(), A::I(all)]);
            let against = self.e.imm(if op == ReduceOp::All { all } else { 0 });
            self.e.g(X::Cmp, &[bits.into(), against.into()]);
            let low = self.e.gpr(
                if op == ReduceOp::All {
                    X::SetE
                } else {
                    X::SetNe
                },
                &[],
            );
            let bit = self.e.gpr(X::MovZxBG, &[low.into()]);
            return Ok(self.e.splat_bool(bit));
        }
        let joined = self.join_lanes(op, dtype, v, lanes)?;
        Ok(self.e.splat_lane(joined, lane_bytes(dtype)))
    }

    /// All lanes of numbers combined, in the first lane.
    pub fn join_lanes(&mut self, op: ReduceOp, dtype: DType, v: Reg, lanes: u32) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        let mut n = lanes;
        let mut v = v;
        while n > 1 {
            let other = self.other_half(v, n, bytes);
            n /= 2;
            let back = std::mem::replace(&mut self.e.mask_bytes, bytes);
            v = self
                .e
                .binary(combine(op), dtype, v, other, n.max(16 / bytes))?;
            self.e.mask_bytes = back;
        }
        Ok(v)
    }
}
