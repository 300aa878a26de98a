//! Elementwise ops on vectors, as the tile IR defines them, for one lane count.
//!
//! Every function returns a fresh register. What a level cannot do is an error (`NoLowering`), never a wrong number.

use oxyfuel_base::{DType, Result, err};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, UnaryOp};

use crate::emit::{Emit, lane_bytes};
use crate::mir::{A, Op, Reg, Width};

fn refuse<T>(what: &str, dtype: DType) -> Result<T> {
    Err(err!(NoLowering, "x86 has no code for {what} of {dtype}"))
}

/// The row for 4-byte or 8-byte lanes.
fn by(bytes: u32, four: Op, eight: Op) -> Op {
    if bytes == 8 { eight } else { four }
}

impl Emit<'_> {
    fn width(&self, dtype: DType, lanes: u32) -> Width {
        Width::of_bytes(lanes * lane_bytes(dtype))
    }

    /// Rounds a lane to the values of its own dtype where lanes are wider than it.
    fn normal(&mut self, dtype: DType, v: Reg, lanes: u32) -> Result<Reg> {
        let w = self.width(dtype, lanes);
        Ok(match dtype {
            DType::BF16 => self.round_to_bf16(v, lanes),
            DType::F16 => {
                let half = self.vec(Op::VCvtPs2Ph, w, &[v.into(), A::I(0)]);
                self.vec(Op::VCvtPh2Ps, w, &[half.into()])
            }
            DType::I8 | DType::I16 => {
                let shift = A::I(32 - i64::from(dtype.bits()));
                let up = self.vec(Op::VPSllDI, w, &[v.into(), shift]);
                self.vec(Op::VPSraDI, w, &[up.into(), shift])
            }
            DType::U8 | DType::U16 => {
                let mask = self.int(dtype.mask() as i64, 4);
                self.vec(Op::VPAnd, w, &[v.into(), mask.into()])
            }
            DType::F64
            | DType::F32
            | DType::I64
            | DType::I32
            | DType::U64
            | DType::U32
            | DType::Bool => v,
            DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1 | DType::E8M0 => {
                return refuse("arithmetic", dtype);
            }
        })
    }

    /// f32 lanes to the nearest bf16, ties to even, as f32 lanes whose lower half is zero; NaN becomes a quiet NaN.
    pub fn round_to_bf16(&mut self, v: Reg, lanes: u32) -> Reg {
        let w = Width::of_bytes(lanes * 4);
        let one = self.int(1, 4);
        let half = self.int(0x7fff, 4);
        let upper = self.int(i64::from(0xffff_0000_u32 as i32), 4);
        let quiet = self.int(0x7fc0_0000, 4);
        let sum = self.vec(Op::VPAddD, w, &[v.into(), half.into()]);
        if self.avx512() {
            let last = self.int(0x1_0000, 4);
            let odd = self.kmask(Op::VPTestMD, w, &[v.into(), last.into()]);
            let up = [sum.into(), sum.into(), one.into()];
            self.masked(Op::VPAddD, w, &up, odd, false);
            let number = self.kmask(Op::VCmpPsK, w, &[v.into(), v.into(), A::I(7)]);
            let d = self.copy_vec(quiet);
            let cut = [d.into(), sum.into(), upper.into()];
            self.masked(Op::VPAnd, w, &cut, number, false);
            return d;
        }
        let high = self.vec(Op::VPSrlDI, w, &[v.into(), A::I(16)]);
        let odd = self.vec(Op::VPAnd, w, &[high.into(), one.into()]);
        let sum = self.vec(Op::VPAddD, w, &[sum.into(), odd.into()]);
        let rounded = self.vec(Op::VPAnd, w, &[sum.into(), upper.into()]);
        let nan = self.vec(Op::VCmpPsV, w, &[v.into(), v.into(), A::I(3)]);
        self.vec(
            Op::VBlendVPs,
            w,
            &[rounded.into(), quiet.into(), nan.into()],
        )
    }

    pub fn binary(
        &mut self,
        op: BinaryOp,
        dtype: DType,
        a: Reg,
        b: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        if dtype.is_bool() {
            return match op {
                BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => Ok(self.mask_binary(op, a, b)),
                BinaryOp::Add
                | BinaryOp::Sub
                | BinaryOp::Mul
                | BinaryOp::Div
                | BinaryOp::Rem
                | BinaryOp::FloorDiv
                | BinaryOp::Mod
                | BinaryOp::Min
                | BinaryOp::Max
                | BinaryOp::Pow
                | BinaryOp::Shl
                | BinaryOp::Shr => refuse(op.name(), dtype),
            };
        }
        let v = if dtype.is_float() {
            self.float_binary(op, dtype, a, b, lanes)?
        } else {
            self.int_binary(op, dtype, a, b, lanes)?
        };
        match op {
            // These stay among the values of their operands' type.
            BinaryOp::Min | BinaryOp::Max | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => Ok(v),
            BinaryOp::Add
            | BinaryOp::Sub
            | BinaryOp::Mul
            | BinaryOp::Div
            | BinaryOp::Rem
            | BinaryOp::FloorDiv
            | BinaryOp::Mod
            | BinaryOp::Pow
            | BinaryOp::Shl
            | BinaryOp::Shr => self.normal(dtype, v, lanes),
        }
    }

    fn float_binary(
        &mut self,
        op: BinaryOp,
        dtype: DType,
        a: Reg,
        b: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        let w = self.width(dtype, lanes);
        let row = match op {
            BinaryOp::Add => by(bytes, Op::VAddPs, Op::VAddPd),
            BinaryOp::Sub => by(bytes, Op::VSubPs, Op::VSubPd),
            BinaryOp::Mul => by(bytes, Op::VMulPs, Op::VMulPd),
            BinaryOp::Div => by(bytes, Op::VDivPs, Op::VDivPd),
            BinaryOp::Min | BinaryOp::Max => {
                return Ok(self.extreme(op == BinaryOp::Max, bytes, a, b, w));
            }
            BinaryOp::Rem
            | BinaryOp::FloorDiv
            | BinaryOp::Mod
            | BinaryOp::Pow
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::Shl
            | BinaryOp::Shr => return refuse(op.name(), dtype),
        };
        Ok(self.vec(row, w, &[a.into(), b.into()]))
    }

    /// Minimum or maximum where NaN wins and -0 is below +0, which the machine's own `vminps` does neither of.
    fn extreme(&mut self, max: bool, bytes: u32, a: Reg, b: Reg, w: Width) -> Reg {
        let row = if max {
            by(bytes, Op::VMaxPs, Op::VMaxPd)
        } else {
            by(bytes, Op::VMinPs, Op::VMinPd)
        };
        for (known, other) in [(b, a), (a, b)] {
            if let Some(k) = self.literal(known, bytes)
                && !k.is_nan()
            {
                // The instruction returns its second operand for NaN, and for zeros of either sign.
                let r = self.vec(row, w, &[known.into(), other.into()]);
                if k != 0.0 {
                    return r;
                }
                if max && k.is_sign_positive() {
                    return self.vec(
                        by(bytes, Op::VAddPs, Op::VAddPd),
                        w,
                        &[r.into(), known.into()],
                    );
                }
                break;
            }
        }
        if self.avx512() {
            // The sum of an unordered pair is NaN.
            let d = self.extreme_number(max, bytes, a, b, w);
            let nan = self.kmask(
                by(bytes, Op::VCmpPsK, Op::VCmpPdK),
                w,
                &[a.into(), b.into(), A::I(3)],
            );
            self.masked(
                by(bytes, Op::VAddPs, Op::VAddPd),
                w,
                &[d.into(), a.into(), b.into()],
                nan,
                false,
            );
            return d;
        }
        let x = self.vec(row, w, &[a.into(), b.into()]);
        let y = self.vec(row, w, &[b.into(), a.into()]);
        // Equal up to the sign of zero: `and` keeps +0, `or` keeps -0. All ones is a NaN.
        let m = self.vec(
            if max { Op::VPAnd } else { Op::VPOr },
            w,
            &[x.into(), y.into()],
        );
        let nan = self.vec(
            by(bytes, Op::VCmpPsV, Op::VCmpPdV),
            w,
            &[a.into(), b.into(), A::I(3)],
        );
        self.vec(Op::VPOr, w, &[m.into(), nan.into()])
    }

    /// The extreme of what is a number: the range instruction orders zeros and prefers numbers.
    pub fn extreme_number(&mut self, max: bool, bytes: u32, a: Reg, b: Reg, w: Width) -> Reg {
        let imm = A::I(if max { 5 } else { 4 });
        self.vec(
            by(bytes, Op::VRangePs, Op::VRangePd),
            w,
            &[a.into(), b.into(), imm],
        )
    }

    fn int_binary(
        &mut self,
        op: BinaryOp,
        dtype: DType,
        a: Reg,
        b: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        let w = self.width(dtype, lanes);
        let signed = dtype.is_signed();
        let row = match op {
            BinaryOp::Add => by(bytes, Op::VPAddD, Op::VPAddQ),
            BinaryOp::Sub => by(bytes, Op::VPSubD, Op::VPSubQ),
            BinaryOp::Mul if bytes == 4 => Op::VPMulLD,
            // A third of the work, and of the wait.
            BinaryOp::Mul if self.is_half(a) && self.is_half(b) => Op::VPMulUDQ,
            BinaryOp::Mul if self.avx512() => Op::VPMulLQ,
            BinaryOp::Mul => return Ok(self.mul64(a, b, w)),
            BinaryOp::And => by(bytes, Op::VPAnd, Op::VPAndQ),
            BinaryOp::Or => by(bytes, Op::VPOr, Op::VPOrQ),
            BinaryOp::Xor => by(bytes, Op::VPXor, Op::VPXorQ),
            BinaryOp::Shl => by(bytes, Op::VPSllVD, Op::VPSllVQ),
            BinaryOp::Shr if !signed => by(bytes, Op::VPSrlVD, Op::VPSrlVQ),
            BinaryOp::Shr if bytes == 4 || self.avx512() => by(bytes, Op::VPSraVD, Op::VPSraVQ),
            BinaryOp::Shr => return refuse(op.name(), dtype),
            BinaryOp::Min | BinaryOp::Max if bytes == 8 && !self.avx512() => {
                let less = self.compare(CompareOp::Lt, dtype, a, b, lanes)?;
                let (x, y) = if op == BinaryOp::Min { (a, b) } else { (b, a) };
                return self.select(dtype, less, x, y, lanes);
            }
            BinaryOp::Min if signed => by(bytes, Op::VPMinSD, Op::VPMinSQ),
            BinaryOp::Min => by(bytes, Op::VPMinUD, Op::VPMinUQ),
            BinaryOp::Max if signed => by(bytes, Op::VPMaxSD, Op::VPMaxSQ),
            BinaryOp::Max => by(bytes, Op::VPMaxUD, Op::VPMaxUQ),
            BinaryOp::Div | BinaryOp::Rem | BinaryOp::FloorDiv | BinaryOp::Mod => {
                return self.int_divide(op, dtype, a, b, lanes);
            }
            BinaryOp::Pow => return refuse(op.name(), dtype),
        };
        let v = self.vec(row, w, &[a.into(), b.into()]);
        if bytes == 8 && self.gives_half(op, signed, a, b) {
            self.halves.insert(v);
        }
        Ok(v)
    }

    /// Whether the lanes of 64 bits are known to be below 2^32.
    fn is_half(&self, v: Reg) -> bool {
        let literal = self.literal_bits(v);
        literal.map_or_else(|| self.halves.contains(&v), |bits| bits >> 32 == 0)
    }

    /// Whether an operation gives such lanes.
    fn gives_half(&self, op: BinaryOp, signed: bool, a: Reg, b: Reg) -> bool {
        match op {
            BinaryOp::And => self.is_half(a) || self.is_half(b),
            BinaryOp::Or | BinaryOp::Xor => self.is_half(a) && self.is_half(b),
            BinaryOp::Shr => {
                !signed && (self.is_half(a) || self.literal_bits(b).is_some_and(|by| by >= 32))
            }
            BinaryOp::Add
            | BinaryOp::Sub
            | BinaryOp::Mul
            | BinaryOp::Div
            | BinaryOp::Rem
            | BinaryOp::FloorDiv
            | BinaryOp::Mod
            | BinaryOp::Min
            | BinaryOp::Max
            | BinaryOp::Pow
            | BinaryOp::Shl => false,
        }
    }

    /// 64-bit products from 32-bit ones.
    fn mul64(&mut self, a: Reg, b: Reg, w: Width) -> Reg {
        let ah = self.vec(Op::VPSrlQI, w, &[a.into(), A::I(32)]);
        let bh = self.vec(Op::VPSrlQI, w, &[b.into(), A::I(32)]);
        let low = self.vec(Op::VPMulUDQ, w, &[a.into(), b.into()]);
        let x = self.vec(Op::VPMulUDQ, w, &[ah.into(), b.into()]);
        let y = self.vec(Op::VPMulUDQ, w, &[a.into(), bh.into()]);
        let cross = self.vec(Op::VPAddQ, w, &[x.into(), y.into()]);
        let cross = self.vec(Op::VPSllQI, w, &[cross.into(), A::I(32)]);
        self.vec(Op::VPAddQ, w, &[low.into(), cross.into()])
    }

    /// Division of integers of at most 32 bits through f64, which holds every quotient closely enough to truncate it.
    fn int_divide(
        &mut self,
        op: BinaryOp,
        dtype: DType,
        a: Reg,
        b: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        if lane_bytes(dtype) == 8 || dtype == DType::U32 {
            return refuse(op.name(), dtype);
        }
        let w = self.width(dtype, lanes);
        let quotient = if w == self.level.width() {
            let halves: [Reg; 2] = std::array::from_fn(|h| {
                let (x, y) = (self.half_of(a, h, w), self.half_of(b, h, w));
                self.quotient(x, y, lanes / 2)
            });
            self.join(halves[0], halves[1], w)
        } else {
            self.quotient(a, b, lanes)
        };
        let zero = self.int(0, 4);
        let by_zero = self.compare(CompareOp::Eq, DType::I32, b, zero, lanes)?;
        let q = self.select(DType::I32, by_zero, zero, quotient, lanes)?;
        if op == BinaryOp::Div {
            return Ok(q);
        }
        let product = self.vec(Op::VPMulLD, w, &[q.into(), b.into()]);
        let r = self.vec(Op::VPSubD, w, &[a.into(), product.into()]);
        let r = self.select(DType::I32, by_zero, zero, r, lanes)?;
        if op == BinaryOp::Rem {
            return Ok(r);
        }
        // Rounded down: where the remainder is not zero and its sign is not the divisor's.
        let signs = self.vec(Op::VPXor, w, &[r.into(), b.into()]);
        let differ = self.compare(CompareOp::Lt, DType::I32, signs, zero, lanes)?;
        let rest = self.compare(CompareOp::Ne, DType::I32, r, zero, lanes)?;
        let fix = self.mask_binary(BinaryOp::And, differ, rest);
        let fixed = if op == BinaryOp::FloorDiv {
            let minus = self.int(-1, 4);
            let less = self.vec(Op::VPAddD, w, &[q.into(), minus.into()]);
            self.select(DType::I32, fix, less, q, lanes)?
        } else {
            let more = self.vec(Op::VPAddD, w, &[r.into(), b.into()]);
            self.select(DType::I32, fix, more, r, lanes)?
        };
        Ok(fixed)
    }

    fn quotient(&mut self, a: Reg, b: Reg, lanes: u32) -> Reg {
        let wide = Width::of_bytes(lanes * 8);
        let x = self.vec(Op::VCvtDq2Pd, wide, &[a.into()]);
        let y = self.vec(Op::VCvtDq2Pd, wide, &[b.into()]);
        let q = self.vec(Op::VDivPd, wide, &[x.into(), y.into()]);
        self.vec(Op::VCvttPd2Dq, wide, &[q.into()])
    }

    /// The lower (0) or upper (1) half of a whole register.
    pub fn half_of(&mut self, v: Reg, half: usize, w: Width) -> Reg {
        if half == 0 {
            return v;
        }
        let op = if w == Width::Z {
            Op::VExtractF32x8
        } else {
            Op::VExtractF128
        };
        self.vec(op, w, &[v.into(), A::I(1)])
    }

    pub fn join(&mut self, low: Reg, high: Reg, w: Width) -> Reg {
        let op = if w == Width::Z {
            Op::VInsertF32x8
        } else {
            Op::VInsertF128
        };
        self.vec(op, w, &[low.into(), high.into(), A::I(1)])
    }

    pub fn unary(&mut self, op: UnaryOp, dtype: DType, a: Reg, lanes: u32) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        let w = self.width(dtype, lanes);
        let float = dtype.is_float();
        let v = match op {
            UnaryOp::Neg if float => {
                let sign = self.int(
                    if bytes == 8 {
                        i64::MIN
                    } else {
                        i64::from(i32::MIN)
                    },
                    bytes,
                );
                return Ok(self.vec(
                    by(bytes, Op::VPXor, Op::VPXorQ),
                    w,
                    &[a.into(), sign.into()],
                ));
            }
            UnaryOp::Neg => {
                let zero = self.int(0, bytes);
                self.vec(
                    by(bytes, Op::VPSubD, Op::VPSubQ),
                    w,
                    &[zero.into(), a.into()],
                )
            }
            UnaryOp::Abs if float => {
                let rest = self.int(
                    if bytes == 8 {
                        i64::MAX
                    } else {
                        i64::from(i32::MAX)
                    },
                    bytes,
                );
                return Ok(self.vec(
                    by(bytes, Op::VPAnd, Op::VPAndQ),
                    w,
                    &[a.into(), rest.into()],
                ));
            }
            UnaryOp::Abs if !dtype.is_signed() => a,
            UnaryOp::Abs if bytes == 4 || self.avx512() => {
                self.vec(by(bytes, Op::VPAbsD, Op::VPAbsQ), w, &[a.into()])
            }
            UnaryOp::Abs => {
                let zero = self.int(0, 8);
                let minus = self.vec(Op::VPSubQ, w, &[zero.into(), a.into()]);
                let less = self.compare(CompareOp::Lt, dtype, a, zero, lanes)?;
                self.select(dtype, less, minus, a, lanes)?
            }
            UnaryOp::Not if dtype.is_bool() => return Ok(self.mask_not(a)),
            UnaryOp::Not => {
                let ones = self.int(-1, bytes);
                self.vec(
                    by(bytes, Op::VPXor, Op::VPXorQ),
                    w,
                    &[a.into(), ones.into()],
                )
            }
            UnaryOp::Sqrt => self.vec(by(bytes, Op::VSqrtPs, Op::VSqrtPd), w, &[a.into()]),
            UnaryOp::Rsqrt | UnaryOp::Recip | UnaryOp::NearRecip => {
                let one = if bytes == 8 {
                    self.f64(1.0)
                } else {
                    self.f32(1.0)
                };
                let root = if op == UnaryOp::Rsqrt {
                    self.vec(by(bytes, Op::VSqrtPs, Op::VSqrtPd), w, &[a.into()])
                } else {
                    a
                };
                self.vec(
                    by(bytes, Op::VDivPs, Op::VDivPd),
                    w,
                    &[one.into(), root.into()],
                )
            }
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Trunc | UnaryOp::Round => {
                let mode = match op {
                    UnaryOp::Floor => 9,
                    UnaryOp::Ceil => 10,
                    UnaryOp::Trunc => 11,
                    _ => 8,
                };
                let row = if self.avx512() {
                    by(bytes, Op::VRndScalePs, Op::VRndScalePd)
                } else {
                    by(bytes, Op::VRoundPs, Op::VRoundPd)
                };
                return Ok(self.vec(row, w, &[a.into(), A::I(mode)]));
            }
            UnaryOp::IsNan => return self.float_compare(3, bytes, a, a, lanes),
            UnaryOp::NearExp2 if self.avx512() && dtype == DType::F32 => {
                return Ok(self.power_of_two(a, w));
            }
            UnaryOp::Exp
            | UnaryOp::Exp2
            | UnaryOp::NearExp2
            | UnaryOp::Expm1
            | UnaryOp::Log
            | UnaryOp::Log2
            | UnaryOp::Log1p
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Tanh
            | UnaryOp::Atan
            | UnaryOp::Erf
            | UnaryOp::Erfc
            | UnaryOp::Sigmoid => {
                return Err(err!(NoLowering, "`{}` reaches x86 unexpanded", op.name())
                    .help("expand transcendental ops before selection"));
            }
        };
        self.normal(dtype, v, lanes)
    }

    /// `2^x` of f32 lanes within 3 ulp, zero below the normal numbers: the machine splits off what is behind the point and scales by the rest.
    fn power_of_two(&mut self, x: Reg, w: Width) -> Reg {
        // `2^f = 1 + f q(f)` for `0 <= f < 1`: the error is 1.18e-7 = 2^-23.01.
        const Q: [f32; 5] = [
            0.693_152_5,
            0.240_152_8,
            0.055_835_932,
            0.008_973_372,
            0.001_885_300_5,
        ];
        const FRACTION: i64 = 0x09;
        const NOT_LESS: i64 = 0x15;
        let [first, ref rest @ .., last] = Q;
        let f = self.vec(Op::VReducePs, w, &[x.into(), A::I(FRACTION)]);
        let mut p = self.f32(last);
        for c in rest.iter().rev().copied().chain([first, 1.0]) {
            let c = self.f32(c);
            p = self.vec(Op::FmaddPs, w, &[p.into(), f.into(), c.into()]);
        }
        let least = self.f32(f32::MIN_EXP as f32 - 1.0);
        let normal = self.kmask(Op::VCmpPsK, w, &[x.into(), least.into(), A::I(NOT_LESS)]);
        self.vec_masked(Op::VScalefPs, w, &[p.into(), x.into()], normal)
    }

    pub fn fma(&mut self, dtype: DType, a: Reg, b: Reg, c: Reg, lanes: u32) -> Result<Reg> {
        let w = self.width(dtype, lanes);
        if !dtype.is_float() {
            let product = self.int_binary(BinaryOp::Mul, dtype, a, b, lanes)?;
            let sum = self.int_binary(BinaryOp::Add, dtype, product, c, lanes)?;
            return self.normal(dtype, sum, lanes);
        }
        let v = self.vec(
            by(lane_bytes(dtype), Op::FmaddPs, Op::FmaddPd),
            w,
            &[a.into(), b.into(), c.into()],
        );
        self.normal(dtype, v, lanes)
    }

    fn float_compare(
        &mut self,
        predicate: i64,
        bytes: u32,
        a: Reg,
        b: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        let w = Width::of_bytes(lanes * bytes);
        let imm = A::I(predicate);
        if self.avx512() {
            return Ok(self.kmask(
                by(bytes, Op::VCmpPsK, Op::VCmpPdK),
                w,
                &[a.into(), b.into(), imm],
            ));
        }
        let m = self.vec(
            by(bytes, Op::VCmpPsV, Op::VCmpPdV),
            w,
            &[a.into(), b.into(), imm],
        );
        Ok(self.mask_from(m, bytes, lanes))
    }

    pub fn compare(
        &mut self,
        op: CompareOp,
        dtype: DType,
        a: Reg,
        b: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        if dtype.is_bool() {
            return Ok(match op {
                CompareOp::Eq => {
                    let x = self.mask_binary(BinaryOp::Xor, a, b);
                    self.mask_not(x)
                }
                CompareOp::Ne => self.mask_binary(BinaryOp::Xor, a, b),
                CompareOp::Lt => self.mask_and_not(a, b),
                CompareOp::Gt => self.mask_and_not(b, a),
                CompareOp::Le => {
                    let x = self.mask_and_not(b, a);
                    self.mask_not(x)
                }
                CompareOp::Ge => {
                    let x = self.mask_and_not(a, b);
                    self.mask_not(x)
                }
            });
        }
        if dtype.is_float() {
            let predicate = match op {
                CompareOp::Eq => 0,
                CompareOp::Ne => 4,
                CompareOp::Lt => 0x11,
                CompareOp::Le => 0x12,
                CompareOp::Gt => 0x1e,
                CompareOp::Ge => 0x1d,
            };
            return self.float_compare(predicate, bytes, a, b, lanes);
        }
        let w = self.width(dtype, lanes);
        if self.avx512() {
            let predicate = match op {
                CompareOp::Eq => 0,
                CompareOp::Lt => 1,
                CompareOp::Le => 2,
                CompareOp::Ne => 4,
                CompareOp::Ge => 5,
                CompareOp::Gt => 6,
            };
            let row = if dtype.is_signed() {
                by(bytes, Op::VPCmpDK, Op::VPCmpQK)
            } else {
                by(bytes, Op::VPCmpUDK, Op::VPCmpUQK)
            };
            return Ok(self.kmask(row, w, &[a.into(), b.into(), A::I(predicate)]));
        }
        let (mut a, mut b) = (a, b);
        if matches!(dtype, DType::U32 | DType::U64) {
            let top = self.int(
                if bytes == 8 {
                    i64::MIN
                } else {
                    i64::from(i32::MIN)
                },
                bytes,
            );
            a = self.vec(Op::VPXor, w, &[a.into(), top.into()]);
            b = self.vec(Op::VPXor, w, &[b.into(), top.into()]);
        }
        let (swap, row, invert) = match op {
            CompareOp::Eq => (false, by(bytes, Op::VPCmpEqDV, Op::VPCmpEqQV), false),
            CompareOp::Ne => (false, by(bytes, Op::VPCmpEqDV, Op::VPCmpEqQV), true),
            CompareOp::Gt => (false, by(bytes, Op::VPCmpGtDV, Op::VPCmpGtQV), false),
            CompareOp::Le => (false, by(bytes, Op::VPCmpGtDV, Op::VPCmpGtQV), true),
            CompareOp::Lt => (true, by(bytes, Op::VPCmpGtDV, Op::VPCmpGtQV), false),
            CompareOp::Ge => (true, by(bytes, Op::VPCmpGtDV, Op::VPCmpGtQV), true),
        };
        if swap {
            std::mem::swap(&mut a, &mut b);
        }
        let m = self.vec(row, w, &[a.into(), b.into()]);
        let m = self.mask_from(m, bytes, lanes);
        Ok(if invert { self.mask_not(m) } else { m })
    }

    /// An AVX2 mask of `bytes`-wide lanes as the loop's masks are.
    fn mask_from(&mut self, m: Reg, bytes: u32, lanes: u32) -> Reg {
        self.resize_mask(m, bytes, self.mask_bytes, lanes)
    }

    fn resize_mask(&mut self, m: Reg, from: u32, to: u32, lanes: u32) -> Reg {
        let wide = Width::of_bytes(lanes * 8);
        match (from, to) {
            (4, 8) => self.vec(Op::VPMovSxDQ, wide, &[m.into()]),
            (8, 4) => {
                let high = self.vec(Op::VExtractF128, Width::Y, &[m.into(), A::I(1)]);
                self.vec(Op::VShufPs, Width::X, &[m.into(), high.into(), A::I(0x88)])
            }
            _ => m,
        }
    }

    /// An AVX2 mask for vectors of `bytes`-wide lanes; on AVX-512 the mask itself.
    pub fn mask_for(&mut self, m: Reg, bytes: u32, lanes: u32) -> Reg {
        if self.avx512() {
            m
        } else {
            self.resize_mask(m, self.mask_bytes, bytes, lanes)
        }
    }

    pub fn mask_binary(&mut self, op: BinaryOp, a: Reg, b: Reg) -> Reg {
        let (k, v) = match op {
            BinaryOp::And => (Op::KAndW, Op::VPAnd),
            BinaryOp::Or => (Op::KOrW, Op::VPOr),
            _ => (Op::KXorW, Op::VPXor),
        };
        if self.avx512() {
            self.kmask(k, Width::X, &[a.into(), b.into()])
        } else {
            self.vec(v, self.level.width(), &[a.into(), b.into()])
        }
    }

    /// `!a & b`.
    pub fn mask_and_not(&mut self, a: Reg, b: Reg) -> Reg {
        if self.avx512() {
            self.kmask(Op::KAndnW, Width::X, &[a.into(), b.into()])
        } else {
            self.vec(Op::VPAndN, self.level.width(), &[a.into(), b.into()])
        }
    }

    pub fn mask_not(&mut self, a: Reg) -> Reg {
        if self.avx512() {
            return self.kmask(Op::KNotW, Width::X, &[a.into()]);
        }
        let ones = self.int(-1, 4);
        self.vec(Op::VPXor, self.level.width(), &[a.into(), ones.into()])
    }

    pub fn select(
        &mut self,
        dtype: DType,
        mask: Reg,
        yes: Reg,
        no: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        if yes == no {
            return Ok(yes);
        }
        if dtype.is_bool() {
            let a = self.mask_binary(BinaryOp::And, mask, yes);
            let b = self.mask_and_not(mask, no);
            return Ok(self.mask_binary(BinaryOp::Or, a, b));
        }
        let bytes = lane_bytes(dtype);
        let w = self.width(dtype, lanes);
        if self.avx512() {
            let d = self.f.vec();
            self.masked(
                by(bytes, Op::VBlendMPs, Op::VBlendMPd),
                w,
                &[d.into(), no.into(), yes.into()],
                mask,
                false,
            );
            return Ok(d);
        }
        let mask = self.mask_for(mask, bytes, lanes);
        Ok(self.vec(
            by(bytes, Op::VBlendVPs, Op::VBlendVPd),
            w,
            &[no.into(), yes.into(), mask.into()],
        ))
    }

    pub fn bitcast(&mut self, from: DType, to: DType, a: Reg, lanes: u32) -> Result<Reg> {
        let narrow = from.size() < 4;
        if !narrow {
            return Ok(a);
        }
        let w = Width::of_bytes(lanes * 4);
        // Through the code in the low bits of the lane, then into the form the other type's lane has.
        let bits = match from {
            DType::BF16 => self.vec(Op::VPSrlDI, w, &[a.into(), A::I(16)]),
            DType::F16 => {
                let half = self.vec(Op::VCvtPs2Ph, w, &[a.into(), A::I(0)]);
                self.vec(Op::VPMovZxWD, w, &[half.into()])
            }
            DType::I8 | DType::U8 | DType::I16 | DType::U16 => a,
            _ => return refuse("bitcast", from),
        };
        match to {
            DType::BF16 => Ok(self.vec(Op::VPSllDI, w, &[bits.into(), A::I(16)])),
            DType::I8 | DType::U8 | DType::I16 | DType::U16 => self.normal(to, bits, lanes),
            _ => refuse("bitcast", to),
        }
    }
}
