//! Casts between floats and integers of 64 bits (and unsigned ones of 32) on AVX2, which has no instruction for them.
//!
//! An integer in the mantissa of a power of two is that power plus the integer: `2^52 | low`, `2^84 | high`. Subtracting the powers leaves the number, rounded once.

use oxyfuel_base::{DType, Result};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp};

use crate::emit::Emit;
use crate::mir::{A, Op, Reg, Width};

const TWO_52: u64 = 0x4330_0000_0000_0000;
const TWO_84: u64 = 0x4530_0000_0000_0000;

impl Emit<'_> {
    /// A u32, i64 or u64 as f64 or f32.
    pub fn wide_int_to_float(
        &mut self,
        from: DType,
        double: bool,
        a: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        if from != DType::U32 {
            return self.long_to_float(from, double, a, lanes);
        }
        let w = Width::of_bytes(lanes * 4);
        if w != self.level.width() {
            return Ok(self.word_to_float(double, a, lanes));
        }
        let halves: [Reg; 2] = std::array::from_fn(|h| {
            let half = self.half_of(a, h, w);
            self.word_to_float(double, half, lanes / 2)
        });
        Ok(self.join(halves[0], halves[1], w))
    }

    fn word_to_float(&mut self, double: bool, a: Reg, lanes: u32) -> Reg {
        let wide = Width::of_bytes(lanes * 8);
        let long = self.vec(Op::VPMovZxDQ, wide, &[a.into()]);
        let two = self.constant(TWO_52, 8);
        let sum = self.vec(Op::VPOr, wide, &[long.into(), two.into()]);
        let v = self.vec(Op::VSubPd, wide, &[sum.into(), two.into()]);
        if double {
            return v;
        }
        self.vec(Op::VCvtPd2Ps, wide, &[v.into()])
    }

    fn long_to_float(&mut self, from: DType, double: bool, a: Reg, lanes: u32) -> Result<Reg> {
        let wide = Width::of_bytes(lanes * 8);
        if !double {
            return self.long_to_single(from, a, lanes);
        }
        let low_mask = self.int(0xffff_ffff, 8);
        let two_52 = self.constant(TWO_52, 8);
        let low = self.vec(Op::VPAnd, wide, &[a.into(), low_mask.into()]);
        let low = self.vec(Op::VPOr, wide, &[low.into(), two_52.into()]);
        let high = self.vec(Op::VPSrlQI, wide, &[a.into(), A::I(32)]);
        // The sign bit turned around adds 2^63, which the subtraction takes off again.
        let signed = from.is_signed();
        let bias = self.constant(TWO_84 | if signed { 0x8000_0000 } else { 0 }, 8);
        let high = self.vec(Op::VPXor, wide, &[high.into(), bias.into()]);
        let off = 2f64.powi(84) + 2f64.powi(52) + if signed { 2f64.powi(63) } else { 0.0 };
        let off = self.f64(off);
        let high = self.vec(Op::VSubPd, wide, &[high.into(), off.into()]);
        Ok(self.vec(Op::VAddPd, wide, &[high.into(), low.into()]))
    }

    /// Through an f64 that keeps, in its last bit, whether anything below it was set: then the second rounding is the only one.
    fn long_to_single(&mut self, from: DType, a: Reg, lanes: u32) -> Result<Reg> {
        let wide = Width::of_bytes(lanes * 8);
        let zero = self.int(0, 8);
        let mut size = a;
        let mut negative = None;
        if from.is_signed() {
            let below = self.compare(CompareOp::Lt, DType::I64, a, zero, lanes)?;
            let minus = self.vec(Op::VPSubQ, wide, &[zero.into(), a.into()]);
            size = self.select(DType::I64, below, minus, a, lanes)?;
            negative = Some(below);
        }
        let low = self.int(0x7ff, 8);
        let rest = self.vec(Op::VPAnd, wide, &[size.into(), low.into()]);
        let carry = self.vec(Op::VPAddQ, wide, &[rest.into(), low.into()]);
        let sticky = self.vec(Op::VPOr, wide, &[size.into(), carry.into()]);
        let cut = self.vec(Op::VPAndN, wide, &[low.into(), sticky.into()]);
        let top = self.vec(Op::VPSrlQI, wide, &[size.into(), A::I(53)]);
        let large = self.compare(CompareOp::Ne, DType::I64, top, zero, lanes)?;
        let exact = self.select(DType::I64, large, cut, size, lanes)?;
        let v = self.long_to_float(DType::U64, true, exact, lanes)?;
        let single = self.vec(Op::VCvtPd2Ps, wide, &[v.into()]);
        let Some(negative) = negative else {
            return Ok(single);
        };
        let sign = self.int(i64::from(i32::MIN), 4);
        let minus = self.vec(
            Op::VPXor,
            Width::of_bytes(lanes * 4),
            &[single.into(), sign.into()],
        );
        self.select(DType::F32, negative, minus, single, lanes)
    }

    /// f64 or f32 to a u32, i64 or u64: cut towards zero, saturating, NaN to 0.
    pub fn float_to_wide_int(
        &mut self,
        double: bool,
        to: DType,
        a: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        if to == DType::U32 && !double {
            return self.single_to_word(a, lanes);
        }
        let wide = Width::of_bytes(lanes * 8);
        let a = if double {
            a
        } else {
            self.vec(Op::VCvtPs2Pd, wide, &[a.into()])
        };
        let signed = to.is_signed();
        let bits = to.bits();
        // NaN loses against the bound that stands second.
        let least = self.f64(if signed { -(2f64.powi(63)) } else { 0.0 });
        let numbers = self.compare(CompareOp::Eq, DType::F64, a, a, lanes)?;
        let zero = self.f64(0.0);
        let number = self.select(DType::F64, numbers, a, zero, lanes)?;
        let v = self.binary(BinaryOp::Max, DType::F64, number, least, lanes)?;
        let v = self.vec(Op::VRoundPd, wide, &[v.into(), A::I(11)]);
        // v = high 2^32 + low, both whole
        let scaled = self.f64(2f64.powi(-32));
        let high = self.vec(Op::VMulPd, wide, &[v.into(), scaled.into()]);
        let high = self.vec(Op::VRoundPd, wide, &[high.into(), A::I(9)]);
        let back = self.f64(2f64.powi(32));
        let low = self.vec(Op::FnmaddPd, wide, &[high.into(), back.into(), v.into()]);
        let low_shift = self.constant(TWO_52, 8);
        let low = self.vec(Op::VAddPd, wide, &[low.into(), low_shift.into()]);
        let mask = self.int(0xffff_ffff, 8);
        let low = self.vec(Op::VPAnd, wide, &[low.into(), mask.into()]);
        let high_shift = self.f64(1.5 * 2f64.powi(52));
        let high = self.vec(Op::VAddPd, wide, &[high.into(), high_shift.into()]);
        let high = self.vec(Op::VPSllQI, wide, &[high.into(), A::I(32)]);
        let v = self.vec(Op::VPOr, wide, &[high.into(), low.into()]);
        let limit = self.f64(2f64.powi(bits as i32 - i32::from(signed)));
        let over = self.compare(CompareOp::Ge, DType::F64, number, limit, lanes)?;
        let most = self.int(if signed { i64::MAX } else { -1 }, 8);
        let v = self.select(DType::I64, over, most, v, lanes)?;
        if bits == 64 {
            return Ok(v);
        }
        self.cast(DType::U64, DType::U32, v, lanes)
    }

    fn single_to_word(&mut self, a: Reg, lanes: u32) -> Result<Reg> {
        let w = Width::of_bytes(lanes * 4);
        let zero = self.f32(0.0);
        let half = self.f32(2f32.powi(31));
        // NaN and what is negative become zero.
        let above = self.compare(CompareOp::Gt, DType::F32, a, zero, lanes)?;
        let a = self.select(DType::F32, above, a, zero, lanes)?;
        let large = self.compare(CompareOp::Ge, DType::F32, a, half, lanes)?;
        let less = self.vec(Op::VSubPs, w, &[a.into(), half.into()]);
        let part = self.select(DType::F32, large, less, a, lanes)?;
        let v = self.vec(Op::VCvttPs2Dq, w, &[part.into()]);
        let top = self.int(i64::from(i32::MIN), 4);
        let lifted = self.vec(Op::VPXor, w, &[v.into(), top.into()]);
        let v = self.select(DType::I32, large, lifted, v, lanes)?;
        let limit = self.f32(2f32.powi(32));
        let over = self.compare(CompareOp::Ge, DType::F32, a, limit, lanes)?;
        let most = self.int(-1, 4);
        self.select(DType::I32, over, most, v, lanes)
    }
}
