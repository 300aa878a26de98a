//! Elementwise ops on single elements: which instruction computes what, dtype by dtype.
//!
//! Floats of 16 bits are computed in f32 and rounded once by the caller (see [`compute_dtype`]); integers below 32 bits in 32 bits and wrapped.
//! Every float instruction names its rounding, so that the assembler never contracts a product and a sum.

use oxyfuel_base::{DType, Result, err};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, UnaryOp};

use crate::asm::{Asm, Class, Opd};
use crate::fact::Fact;
use crate::value::{Int, clamp_fact, range_of};

/// The dtype that arithmetic on `dtype` runs in.
pub(crate) fn compute_dtype(dtype: DType) -> DType {
    if dtype.is_float() && dtype.bits() < 32 {
        DType::F32
    } else {
        dtype
    }
}

fn none(what: &str, dtype: DType) -> oxyfuel_base::Error {
    err!(NoLowering, "{what} of {dtype} has no PTX")
}

/// The bits of the f32 by which to multiply where these bits divide: of a power of two, the product is the quotient to the bit.
fn exact_inverse(bits: u32) -> Option<u32> {
    let (divisor, mantissa) = (f32::from_bits(bits), bits & 0x007f_ffff);
    let inverse = 1.0 / divisor;
    (mantissa == 0 && divisor.is_normal() && inverse.is_normal()).then(|| inverse.to_bits())
}

/// `s32`, `u64` and so on: the type that integers of `dtype` are computed in.
fn int_type(dtype: DType) -> (&'static str, Class) {
    match (dtype.is_signed(), dtype.size() == 8) {
        (true, false) => ("s32", Class::B32),
        (false, false) => ("u32", Class::B32),
        (true, true) => ("s64", Class::B64),
        (false, true) => ("u64", Class::B64),
    }
}

fn bits_type(class: Class) -> &'static str {
    match class {
        Class::Pred => "pred",
        Class::B16 => "b16",
        Class::B32 => "b32",
        Class::B64 => "b64",
    }
}

/// What an integer op does to facts; nothing is known of the rest.
fn binary_fact(op: BinaryOp, a: Fact, b: Fact) -> Fact {
    match op {
        BinaryOp::Add => a.add(b),
        BinaryOp::Sub => a.sub(b),
        BinaryOp::Mul => a.mul(b),
        BinaryOp::Min => a.min(b),
        BinaryOp::Max => a.max(b),
        BinaryOp::FloorDiv => match b.as_constant() {
            Some(d) if d > 0 => a.floordiv(d),
            _ => Fact::UNKNOWN,
        },
        BinaryOp::Mod => match b.as_constant() {
            Some(d) if d > 0 => a.modulo(d),
            _ => Fact::UNKNOWN,
        },
        BinaryOp::Div => match b.as_constant() {
            Some(d) if d > 0 && a.lo >= 0 => a.floordiv(d),
            _ => Fact::UNKNOWN,
        },
        BinaryOp::Rem => match b.as_constant() {
            Some(d) if d > 0 && a.lo >= 0 => a.modulo(d),
            _ => Fact::UNKNOWN,
        },
        BinaryOp::And => match b.as_constant() {
            Some(mask) if mask >= 0 => Fact::range(0, mask),
            _ => Fact::UNKNOWN,
        },
        BinaryOp::Shl => match b.as_constant() {
            Some(by @ 0..=62) => a.mul(Fact::constant(1 << by)),
            _ => Fact::UNKNOWN,
        },
        BinaryOp::Shr => match b.as_constant() {
            Some(by @ 0..=62) => a.floordiv(1 << by),
            _ => Fact::UNKNOWN,
        },
        BinaryOp::Or | BinaryOp::Xor | BinaryOp::Pow => Fact::UNKNOWN,
    }
}

impl Asm {
    /// Wraps a 32-bit result into an integer dtype below 32 bits.
    fn wrapped(&mut self, dtype: DType, opd: Opd) -> Opd {
        if dtype.size() >= 4 {
            return opd;
        }
        let bits = i64::from(dtype.bits());
        if let Opd::Int(value) = opd {
            let shift = 64 - bits;
            return Opd::Int(if dtype.is_signed() {
                (value << shift) >> shift
            } else {
                value & ((1 << bits) - 1)
            });
        }
        let mnemonic = if dtype.is_signed() {
            "bfe.s32"
        } else {
            "bfe.u32"
        };
        self.pure(Class::B32, mnemonic, &[opd, Opd::Int(0), Opd::Int(bits)])
            .into()
    }

    /// An op of one operand on a dtype that [`compute_dtype`] leaves alone.
    pub(crate) fn unary(&mut self, op: UnaryOp, dtype: DType, x: Int) -> Result<Int> {
        let plain = |opd| Int {
            opd,
            fact: range_of(dtype),
        };
        match dtype {
            DType::F32 => self.unary_f32(op, x.opd).map(plain),
            DType::F64 => self.unary_f64(op, x.opd).map(plain),
            DType::Bool => match op {
                UnaryOp::Not => Ok(plain(self.pure(Class::Pred, "not.pred", &[x.opd]).into())),
                _ => Err(none(op.name(), dtype)),
            },
            _ if dtype.is_int() => self.unary_int(op, dtype, x),
            _ => Err(none(op.name(), dtype)),
        }
    }

    fn unary_f32(&mut self, op: UnaryOp, x: Opd) -> Result<Opd> {
        let mnemonic = match op {
            UnaryOp::Neg => "neg.f32",
            UnaryOp::Abs => "abs.f32",
            UnaryOp::Sqrt => "sqrt.rn.f32",
            UnaryOp::Rsqrt => "rsqrt.approx.f32",
            UnaryOp::Recip => "rcp.rn.f32",
            UnaryOp::Floor => "cvt.rmi.f32.f32",
            UnaryOp::Ceil => "cvt.rpi.f32.f32",
            UnaryOp::Trunc => "cvt.rzi.f32.f32",
            UnaryOp::Round => "cvt.rni.f32.f32",
            UnaryOp::IsNan => return Ok(self.pure(Class::Pred, "setp.nan.f32", &[x, x]).into()),
            // Within 2 ulp; the instruction for log2 is far off near 1 and is left alone.
            UnaryOp::Exp2 => "ex2.approx.f32",
            // Denormal numbers, which take three more instructions, are not asked for.
            UnaryOp::NearExp2 => "ex2.approx.ftz.f32",
            UnaryOp::NearRecip => "rcp.approx.ftz.f32",
            UnaryOp::Not
            | UnaryOp::Exp
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
                return Err(none(op.name(), DType::F32).help("expand it before mapping"));
            }
        };
        Ok(self.pure(Class::B32, mnemonic, &[x]).into())
    }

    fn unary_f64(&mut self, op: UnaryOp, x: Opd) -> Result<Opd> {
        let mnemonic = match op {
            UnaryOp::Neg => "neg.f64",
            UnaryOp::Abs => "abs.f64",
            UnaryOp::Sqrt => "sqrt.rn.f64",
            UnaryOp::Recip | UnaryOp::NearRecip => "rcp.rn.f64",
            UnaryOp::Rsqrt => {
                let root = self.pure(Class::B64, "sqrt.rn.f64", &[x]);
                return Ok(self.pure(Class::B64, "rcp.rn.f64", &[root.into()]).into());
            }
            UnaryOp::Floor => "cvt.rmi.f64.f64",
            UnaryOp::Ceil => "cvt.rpi.f64.f64",
            UnaryOp::Trunc => "cvt.rzi.f64.f64",
            UnaryOp::Round => "cvt.rni.f64.f64",
            UnaryOp::IsNan => return Ok(self.pure(Class::Pred, "setp.nan.f64", &[x, x]).into()),
            UnaryOp::Not
            | UnaryOp::Exp
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
                return Err(none(op.name(), DType::F64).help("expand it before mapping"));
            }
        };
        Ok(self.pure(Class::B64, mnemonic, &[x]).into())
    }

    fn unary_int(&mut self, op: UnaryOp, dtype: DType, x: Int) -> Result<Int> {
        let fact = range_of(dtype);
        let (ty, class) = int_type(dtype);
        let opd = if class == Class::B64 {
            self.widen(x)
        } else {
            x.opd
        };
        let out: Opd = match op {
            UnaryOp::Neg => self
                .pure(
                    class,
                    if class == Class::B64 {
                        "neg.s64"
                    } else {
                        "neg.s32"
                    },
                    &[opd],
                )
                .into(),
            UnaryOp::Abs if dtype.is_signed() => {
                self.pure(class, &format!("abs.{ty}"), &[opd]).into()
            }
            UnaryOp::Abs => opd,
            UnaryOp::Not => self
                .pure(class, &format!("not.{}", bits_type(class)), &[opd])
                .into(),
            _ => return Err(none(op.name(), dtype)),
        };
        let out = self.wrapped(dtype, out);
        Ok(if dtype == DType::I64 {
            self.fitted(out, fact)
        } else {
            Int { opd: out, fact }
        })
    }

    /// An op of two operands on a dtype that [`compute_dtype`] leaves alone.
    pub(crate) fn binary(&mut self, op: BinaryOp, dtype: DType, a: Int, b: Int) -> Result<Int> {
        let plain = |opd| Int {
            opd,
            fact: range_of(dtype),
        };
        match dtype {
            DType::F32 => self.binary_f32(op, a.opd, b.opd).map(plain),
            DType::F64 => self.binary_f64(op, a.opd, b.opd).map(plain),
            DType::Bool => {
                let mnemonic = match op {
                    BinaryOp::And => "and.pred",
                    BinaryOp::Or => "or.pred",
                    BinaryOp::Xor => "xor.pred",
                    _ => return Err(none(op.name(), dtype)),
                };
                let (a, b) = (self.pred(a.opd), self.pred(b.opd));
                Ok(plain(self.pure(Class::Pred, mnemonic, &[a, b]).into()))
            }
            _ if dtype.is_int() => self.binary_int(op, dtype, a, b),
            _ => Err(none(op.name(), dtype)),
        }
    }

    pub(crate) fn pred(&mut self, x: Opd) -> Opd {
        match x {
            Opd::Reg(_) => x,
            constant => self.constant(Class::Pred, constant).into(),
        }
    }

    fn binary_f32(&mut self, op: BinaryOp, a: Opd, b: Opd) -> Result<Opd> {
        let inverse = match b {
            Opd::F32(bits) if op == BinaryOp::Div => exact_inverse(bits),
            Opd::Reg(_) | Opd::Int(_) | Opd::F32(_) | Opd::F64(_) => None,
        };
        let (op, b) = inverse.map_or((op, b), |bits| (BinaryOp::Mul, Opd::F32(bits)));
        let mnemonic = match op {
            BinaryOp::Add => "add.rn.f32",
            BinaryOp::Sub => "sub.rn.f32",
            BinaryOp::Mul => "mul.rn.f32",
            BinaryOp::Div => "div.rn.f32",
            BinaryOp::Min => "min.NaN.f32",
            BinaryOp::Max => "max.NaN.f32",
            BinaryOp::Rem
            | BinaryOp::FloorDiv
            | BinaryOp::Mod
            | BinaryOp::Pow
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::Shl
            | BinaryOp::Shr => {
                return Err(none(op.name(), DType::F32).help("expand it before mapping"));
            }
        };
        Ok(self.pure(Class::B32, mnemonic, &[a, b]).into())
    }

    fn binary_f64(&mut self, op: BinaryOp, a: Opd, b: Opd) -> Result<Opd> {
        let mnemonic = match op {
            BinaryOp::Add => "add.rn.f64",
            BinaryOp::Sub => "sub.rn.f64",
            BinaryOp::Mul => "mul.rn.f64",
            BinaryOp::Div => "div.rn.f64",
            BinaryOp::Min | BinaryOp::Max => {
                let best = self.pure(
                    Class::B64,
                    if op == BinaryOp::Min {
                        "min.f64"
                    } else {
                        "max.f64"
                    },
                    &[a, b],
                );
                let sum = self.pure(Class::B64, "add.rn.f64", &[a, b]);
                let nan = self.pure(Class::Pred, "setp.nan.f64", &[a, b]);
                return Ok(self
                    .pure(
                        Class::B64,
                        "selp.f64",
                        &[sum.into(), best.into(), nan.into()],
                    )
                    .into());
            }
            BinaryOp::Rem
            | BinaryOp::FloorDiv
            | BinaryOp::Mod
            | BinaryOp::Pow
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::Shl
            | BinaryOp::Shr => {
                return Err(none(op.name(), DType::F64).help("expand it before mapping"));
            }
        };
        Ok(self.pure(Class::B64, mnemonic, &[a, b]).into())
    }

    fn binary_int(&mut self, op: BinaryOp, dtype: DType, a: Int, b: Int) -> Result<Int> {
        let fact = clamp_fact(dtype, binary_fact(op, a.fact, b.fact));
        if dtype == DType::I64 {
            // Index arithmetic: the narrow forms.
            match (op, b.fact.as_constant()) {
                (BinaryOp::Add, _) => return Ok(self.int_add(a, b)),
                (BinaryOp::Sub, _) => return Ok(self.int_sub(a, b)),
                (BinaryOp::Mul, _) => return Ok(self.int_mul(a, b)),
                (BinaryOp::FloorDiv, Some(d)) if d > 0 => return Ok(self.int_floordiv(a, d)),
                (BinaryOp::Div, Some(d)) if d > 0 && a.fact.lo >= 0 => {
                    return Ok(self.int_floordiv(a, d));
                }
                (BinaryOp::Mod, Some(d)) if d > 0 => return Ok(self.int_mod(a, d)),
                (BinaryOp::Rem, Some(d)) if d > 0 && a.fact.lo >= 0 => {
                    return Ok(self.int_mod(a, d));
                }
                (BinaryOp::Min, _) => return Ok(self.int_op("min.s#", a, b, fact)),
                (BinaryOp::Max, _) => return Ok(self.int_op("max.s#", a, b, fact)),
                _ => {}
            }
        }
        let (ty, class) = int_type(dtype);
        let wide = class == Class::B64;
        let (x, y) = if wide {
            (self.widen(a), self.widen(b))
        } else {
            (a.opd, b.opd)
        };
        let bits = bits_type(class);
        let out: Opd = match op {
            BinaryOp::Add => self.pure(class, &format!("add.{ty}"), &[x, y]).into(),
            BinaryOp::Sub => self.pure(class, &format!("sub.{ty}"), &[x, y]).into(),
            BinaryOp::Mul => self.pure(class, &format!("mul.lo.{ty}"), &[x, y]).into(),
            BinaryOp::Min => self.pure(class, &format!("min.{ty}"), &[x, y]).into(),
            BinaryOp::Max => self.pure(class, &format!("max.{ty}"), &[x, y]).into(),
            BinaryOp::And => self.pure(class, &format!("and.{bits}"), &[x, y]).into(),
            BinaryOp::Or => self.pure(class, &format!("or.{bits}"), &[x, y]).into(),
            BinaryOp::Xor => self.pure(class, &format!("xor.{bits}"), &[x, y]).into(),
            BinaryOp::Shl | BinaryOp::Shr => {
                // PTX clamps amounts above the width, which gives what we promise; the amount itself is always 32 bits wide.
                let amount = if wide {
                    let big = self.pure(Class::B64, "min.u64", &[y, Opd::Int(64)]);
                    self.pure(Class::B32, "cvt.u32.u64", &[big.into()]).into()
                } else {
                    y
                };
                let mnemonic = if op == BinaryOp::Shl {
                    format!("shl.{bits}")
                } else {
                    format!("shr.{ty}")
                };
                self.pure(class, &mnemonic, &[x, amount]).into()
            }
            BinaryOp::Div | BinaryOp::Rem | BinaryOp::FloorDiv | BinaryOp::Mod => {
                self.divide(op, dtype, x, y, b.fact)
            }
            BinaryOp::Pow => return Err(none(op.name(), dtype)),
        };
        let out = self.wrapped(dtype, out);
        Ok(if dtype == DType::I64 {
            self.fitted(out, fact)
        } else {
            Int { opd: out, fact }
        })
    }

    /// Division in the width of the dtype; by zero it gives 0.
    fn divide(&mut self, op: BinaryOp, dtype: DType, x: Opd, y: Opd, divisor: Fact) -> Opd {
        let (ty, class) = int_type(dtype);
        let bits = bits_type(class);
        let quotient = self.pure(class, &format!("div.{ty}"), &[x, y]);
        let product = self.pure(class, &format!("mul.lo.{ty}"), &[quotient.into(), y]);
        let rem = self.pure(class, &format!("sub.{ty}"), &[x, product.into()]);
        let out = match op {
            BinaryOp::Div => quotient,
            BinaryOp::Rem => rem,
            _ if !dtype.is_signed() => {
                if op == BinaryOp::FloorDiv {
                    quotient
                } else {
                    rem
                }
            }
            _ => {
                // One step down where the remainder is not zero and its sign is not the divisor's.
                let signs = self.pure(class, &format!("xor.{bits}"), &[rem.into(), y]);
                let differ = self.pure(
                    Class::Pred,
                    &format!("setp.lt.{ty}"),
                    &[signs.into(), Opd::Int(0)],
                );
                let some = self.pure(
                    Class::Pred,
                    &format!("setp.ne.{ty}"),
                    &[rem.into(), Opd::Int(0)],
                );
                let both = self.pure(Class::Pred, "and.pred", &[differ.into(), some.into()]);
                let (value, stepped) = if op == BinaryOp::FloorDiv {
                    (
                        quotient,
                        self.pure(class, &format!("sub.{ty}"), &[quotient.into(), Opd::Int(1)]),
                    )
                } else {
                    (
                        rem,
                        self.pure(class, &format!("add.{ty}"), &[rem.into(), y]),
                    )
                };
                self.pure(
                    class,
                    &format!("selp.{bits}"),
                    &[stepped.into(), value.into(), both.into()],
                )
            }
        };
        if divisor.lo > 0 || divisor.hi < 0 {
            return out.into();
        }
        let zero = self.pure(Class::Pred, &format!("setp.eq.{ty}"), &[y, Opd::Int(0)]);
        self.pure(
            class,
            &format!("selp.{bits}"),
            &[Opd::Int(0), out.into(), zero.into()],
        )
        .into()
    }

    pub(crate) fn compare(&mut self, op: CompareOp, dtype: DType, a: Int, b: Int) -> Result<Opd> {
        let name = match op {
            CompareOp::Eq => "eq",
            CompareOp::Ne => "ne",
            CompareOp::Lt => "lt",
            CompareOp::Le => "le",
            CompareOp::Gt => "gt",
            CompareOp::Ge => "ge",
        };
        if dtype.is_bool() {
            let (x, y) = (self.pred(a.opd), self.pred(b.opd));
            let mut not = |it: Opd| self.pure(Class::Pred, "not.pred", &[it]).into();
            // False is below true: x < y is "not x, and y".
            let (join, x, y) = match op {
                CompareOp::Ne => ("xor.pred", x, y),
                CompareOp::Eq => ("xor.pred", not(x), y),
                CompareOp::Lt => ("and.pred", not(x), y),
                CompareOp::Gt => ("and.pred", not(y), x),
                CompareOp::Le => ("or.pred", not(x), y),
                CompareOp::Ge => ("or.pred", not(y), x),
            };
            return Ok(self.pure(Class::Pred, join, &[x, y]).into());
        }
        if dtype.is_float() {
            // `ne` is the unordered one: true with NaN.
            let name = if op == CompareOp::Ne { "neu" } else { name };
            return Ok(self
                .pure(
                    Class::Pred,
                    &format!("setp.{name}.{}", dtype.name()),
                    &[a.opd, b.opd],
                )
                .into());
        }
        if dtype == DType::I64 && a.fact.fits_i32() && b.fact.fits_i32() {
            let (x, y) = (self.narrow(a), self.narrow(b));
            return Ok(self
                .pure(Class::Pred, &format!("setp.{name}.s32"), &[x, y])
                .into());
        }
        let (ty, class) = int_type(dtype);
        let (x, y) = if class == Class::B64 {
            (self.widen(a), self.widen(b))
        } else {
            (a.opd, b.opd)
        };
        Ok(self
            .pure(Class::Pred, &format!("setp.{name}.{ty}"), &[x, y])
            .into())
    }

    /// `cond ? a : b` for elements of one class.
    pub(crate) fn select(&mut self, class: Class, cond: Opd, a: Opd, b: Opd) -> Opd {
        let cond = self.pred(cond);
        if class == Class::Pred {
            let (a, b) = (self.pred(a), self.pred(b));
            let yes = self.pure(Class::Pred, "and.pred", &[cond, a]);
            let not = self.pure(Class::Pred, "not.pred", &[cond]);
            let no = self.pure(Class::Pred, "and.pred", &[not.into(), b]);
            return self
                .pure(Class::Pred, "or.pred", &[yes.into(), no.into()])
                .into();
        }
        // Literals of both kinds are bits here.
        let bits = |x: Opd| match x {
            Opd::F32(bits) => Opd::Int(i64::from(bits as i32)),
            Opd::F64(bits) => Opd::Int(bits as i64),
            Opd::Reg(_) | Opd::Int(_) => x,
        };
        self.pure(
            class,
            &format!("selp.{}", bits_type(class)),
            &[bits(a), bits(b), cond],
        )
        .into()
    }

    pub(crate) fn fma(&mut self, dtype: DType, a: Int, b: Int, c: Int) -> Result<Int> {
        match dtype {
            DType::F32 => Ok(Int {
                opd: self
                    .pure(Class::B32, "fma.rn.f32", &[a.opd, b.opd, c.opd])
                    .into(),
                fact: Fact::UNKNOWN,
            }),
            DType::F64 => Ok(Int {
                opd: self
                    .pure(Class::B64, "fma.rn.f64", &[a.opd, b.opd, c.opd])
                    .into(),
                fact: Fact::UNKNOWN,
            }),
            _ if dtype.is_int() => {
                let product = self.binary_int(BinaryOp::Mul, dtype, a, b)?;
                self.binary_int(BinaryOp::Add, dtype, product, c)
            }
            _ => Err(none("fma", dtype)),
        }
    }
}
