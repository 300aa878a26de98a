//! Casts between lanes: float to integer truncates and saturates with NaN to 0, integers wrap, floats round to nearest even.

use oxyfuel_base::{DType, Result, err};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp};

use crate::emit::{Emit, lane_bytes};
use crate::mir::{A, Op, Reg, Width};

impl Emit<'_> {
    pub fn cast(&mut self, from: DType, to: DType, a: Reg, lanes: u32) -> Result<Reg> {
        if from == to {
            return Ok(a);
        }
        let refuse = || err!(NoLowering, "x86 has no code for the cast {from} to {to}");
        if to.is_bool() {
            let zero = self.int(0, lane_bytes(from));
            return self.compare(CompareOp::Ne, from, a, zero, lanes);
        }
        if from.is_bool() {
            let one = oxyfuel_base::Scalar::B(true);
            let bytes = lane_bytes(to);
            let yes = self.constant(crate::emit::lane_bits(one.cast(to), to), bytes);
            let no = self.int(0, bytes);
            return self.select(to, a, yes, no, lanes);
        }
        if from.is_narrow_float() || to.is_narrow_float() {
            return Err(refuse());
        }
        match (from.is_float(), to.is_float()) {
            (true, true) => self.float_to_float(from, to, a, lanes),
            (false, false) => self.int_to_int(from, to, a, lanes),
            (false, true) => {
                let wide = self.int_to_float(from, to, a, lanes)?;
                let computed = if to == DType::F64 {
                    DType::F64
                } else {
                    DType::F32
                };
                self.float_to_float(computed, to, wide, lanes)
            }
            (true, false) => self.float_to_int(from, to, a, lanes),
        }
    }

    fn float_to_float(&mut self, from: DType, to: DType, a: Reg, lanes: u32) -> Result<Reg> {
        let wide = Width::of_bytes(lanes * 8);
        let single = match (lane_bytes(from), lane_bytes(to)) {
            (8, 8) => return Ok(a),
            (4, 8) => return Ok(self.vec(Op::VCvtPs2Pd, wide, &[a.into()])),
            // Narrower floats are always reached through f32.
            (8, _) => self.vec(Op::VCvtPd2Ps, wide, &[a.into()]),
            (_, _) => a,
        };
        let w = Width::of_bytes(lanes * 4);
        Ok(match to {
            DType::BF16 => self.round_to_bf16(single, lanes),
            DType::F16 => {
                let half = self.vec(Op::VCvtPs2Ph, w, &[single.into(), A::I(0)]);
                self.vec(Op::VCvtPh2Ps, w, &[half.into()])
            }
            _ => single,
        })
    }

    fn int_to_int(&mut self, from: DType, to: DType, a: Reg, lanes: u32) -> Result<Reg> {
        let wide = Width::of_bytes(lanes * 8);
        let v = match (lane_bytes(from), lane_bytes(to)) {
            (4, 8) if from.is_signed() => self.vec(Op::VPMovSxDQ, wide, &[a.into()]),
            (4, 8) => self.vec(Op::VPMovZxDQ, wide, &[a.into()]),
            (8, 4) => self.low_halves(a, lanes),
            (_, _) => a,
        };
        let w = Width::of_bytes(lanes * 4);
        Ok(match to {
            DType::I8 | DType::I16 => {
                let shift = A::I(32 - i64::from(to.bits()));
                let up = self.vec(Op::VPSllDI, w, &[v.into(), shift]);
                self.vec(Op::VPSraDI, w, &[up.into(), shift])
            }
            DType::U8 | DType::U16 => {
                let mask = self.int(to.mask() as i64, 4);
                self.vec(Op::VPAnd, w, &[v.into(), mask.into()])
            }
            _ => v,
        })
    }

    /// The low 32 bits of 64-bit lanes.
    fn low_halves(&mut self, a: Reg, lanes: u32) -> Reg {
        let wide = Width::of_bytes(lanes * 8);
        if self.avx512() {
            return self.vec(Op::VPMovQD, wide, &[a.into()]);
        }
        let high = self.vec(Op::VExtractF128, Width::Y, &[a.into(), A::I(1)]);
        self.vec(Op::VShufPs, Width::X, &[a.into(), high.into(), A::I(0x88)])
    }

    fn int_to_float(&mut self, from: DType, to: DType, a: Reg, lanes: u32) -> Result<Reg> {
        let double = to == DType::F64;
        let wide = Width::of_bytes(lanes * 8);
        let w = Width::of_bytes(lanes * 4);
        let (op, width) = match (from, double) {
            (DType::U32 | DType::I64 | DType::U64, _) if !self.avx512() => {
                return self.wide_int_to_float(from, double, a, lanes);
            }
            (DType::I64, true) => (Op::VCvtQq2Pd, wide),
            (DType::I64, false) => (Op::VCvtQq2Ps, wide),
            (DType::U64, true) => (Op::VCvtUqq2Pd, wide),
            (DType::U64, false) => (Op::VCvtUqq2Ps, wide),
            (DType::U32, true) => (Op::VCvtUdq2Pd, wide),
            (DType::U32, false) => (Op::VCvtUdq2Ps, w),
            (_, true) => (Op::VCvtDq2Pd, wide),
            (_, false) => (Op::VCvtDq2Ps, w),
        };
        Ok(self.vec(op, width, &[a.into()]))
    }

    fn float_to_int(&mut self, from: DType, to: DType, a: Reg, lanes: u32) -> Result<Reg> {
        let double = from == DType::F64;
        let float = if double { DType::F64 } else { DType::F32 };
        let wide = Width::of_bytes(lanes * 8);
        let w = Width::of_bytes(lanes * 4);
        let bytes = lane_bytes(to);
        if (bytes == 8 || to == DType::U32) && !self.avx512() {
            return self.float_to_wide_int(double, to, a, lanes);
        }
        // Negative numbers saturate to 0 in unsigned types; the instructions would give all ones.
        let mut a = a;
        if matches!(to, DType::U32 | DType::U64) {
            let zero = self.int(0, lane_bytes(float));
            let below = self.compare(CompareOp::Lt, float, a, zero, lanes)?;
            a = self.select(float, below, zero, a, lanes)?;
        }
        let (op, width) = match (to, double) {
            (DType::I64, true) => (Op::VCvttPd2Qq, wide),
            (DType::I64, false) => (Op::VCvttPs2Qq, wide),
            (DType::U64, true) => (Op::VCvttPd2Uqq, wide),
            (DType::U64, false) => (Op::VCvttPs2Uqq, wide),
            (DType::U32, true) => (Op::VCvttPd2Udq, wide),
            (DType::U32, false) => (Op::VCvttPs2Udq, w),
            (_, true) => (Op::VCvttPd2Dq, wide),
            (_, false) => (Op::VCvttPs2Dq, w),
        };
        // Lanes that hold NaN become zero: by the conversion's own mask, or by a blend below.
        let numbers = if self.avx512() {
            Some(self.compare(CompareOp::Eq, float, a, a, lanes)?)
        } else {
            None
        };
        let mut v = match numbers {
            Some(k) => self.vec_masked(op, width, &[a.into()], k),
            None => self.vec(op, width, &[a.into()]),
        };
        let lane = if bytes == 8 { DType::I64 } else { DType::I32 };
        if !matches!(to, DType::U32 | DType::U64) {
            // Too large gives the most negative number; the limit itself is a power of two and exact.
            let limit = if bytes == 8 {
                2f64.powi(63)
            } else {
                2f64.powi(31)
            };
            let bound = if double {
                self.f64(limit)
            } else {
                self.f32(limit as f32)
            };
            let over = self.compare(CompareOp::Ge, float, a, bound, lanes)?;
            let most = self.int(
                if bytes == 8 {
                    i64::MAX
                } else {
                    i64::from(i32::MAX)
                },
                bytes,
            );
            v = self.select(lane, over, most, v, lanes)?;
        }
        if numbers.is_none() {
            let nan = self.compare(CompareOp::Ne, float, a, a, lanes)?;
            let zero = self.int(0, bytes);
            v = self.select(lane, nan, zero, v, lanes)?;
        }
        let clamp = match to {
            DType::I8 => Some((-128, 127)),
            DType::I16 => Some((-32768, 32767)),
            DType::U8 => Some((0, 255)),
            DType::U16 => Some((0, 65535)),
            _ => None,
        };
        if let Some((low, high)) = clamp {
            let (low, high) = (self.int(low, 4), self.int(high, 4));
            v = self.binary(BinaryOp::Max, DType::I32, v, low, lanes)?;
            v = self.binary(BinaryOp::Min, DType::I32, v, high, lanes)?;
        }
        Ok(v)
    }
}
