//! Index arithmetic in the narrowest width that its facts allow.

use crate::asm::{Asm, Class, Opd, Reg};
use crate::fact::Fact;
use crate::value::Int;

impl Asm {
    /// The value in 64 bits.
    pub(crate) fn widen(&mut self, x: Int) -> Opd {
        match x.opd {
            Opd::Reg(reg) if reg.class == Class::B32 => {
                self.pure(Class::B64, "cvt.s64.s32", &[reg.into()]).into()
            }
            opd => opd,
        }
    }

    /// The value in 32 bits; its low half where it is larger.
    pub(crate) fn narrow(&mut self, x: Int) -> Opd {
        match x.opd {
            Opd::Reg(reg) if reg.class == Class::B64 => {
                self.pure(Class::B32, "cvt.u32.u64", &[reg.into()]).into()
            }
            Opd::Int(value) => Opd::Int(i64::from(value as i32)),
            opd => opd,
        }
    }

    /// Brings a result into the width that its fact asks for.
    pub(crate) fn fitted(&mut self, opd: Opd, fact: Fact) -> Int {
        if let Some(value) = fact.as_constant() {
            return Int::constant(value);
        }
        let opd = if fact.fits_i32() {
            self.narrow(Int { opd, fact })
        } else {
            self.widen(Int { opd, fact })
        };
        Int { opd, fact }
    }

    /// In 32 bits where operands and result fit them, else in 64. `op` is spelled with a `#` for the width: `add.s#`.
    pub(crate) fn int_op(&mut self, op: &str, a: Int, b: Int, fact: Fact) -> Int {
        if let Some(value) = fact.as_constant() {
            return Int::constant(value);
        }
        if fact.fits_i32() && a.fact.fits_i32() && b.fact.fits_i32() {
            let (x, y) = (self.narrow(a), self.narrow(b));
            let reg = self.pure(Class::B32, &op.replace('#', "32"), &[x, y]);
            return Int {
                opd: reg.into(),
                fact,
            };
        }
        let (x, y) = (self.widen(a), self.widen(b));
        let reg = self.pure(Class::B64, &op.replace('#', "64"), &[x, y]);
        self.fitted(reg.into(), fact)
    }

    pub(crate) fn int_add(&mut self, a: Int, b: Int) -> Int {
        match (a.fact.as_constant(), b.fact.as_constant()) {
            (Some(0), _) => b,
            (_, Some(0)) => a,
            _ => self.int_op("add.s#", a, b, a.fact.add(b.fact)),
        }
    }

    pub(crate) fn int_sub(&mut self, a: Int, b: Int) -> Int {
        if b.fact.as_constant() == Some(0) {
            return a;
        }
        self.int_op("sub.s#", a, b, a.fact.sub(b.fact))
    }

    pub(crate) fn int_mul(&mut self, a: Int, b: Int) -> Int {
        let (a, b) = if a.fact.as_constant().is_some() {
            (b, a)
        } else {
            (a, b)
        };
        let fact = a.fact.mul(b.fact);
        match b.fact.as_constant() {
            Some(1) => a,
            Some(c) if c > 0 && c.count_ones() == 1 => {
                self.int_shift("shl.b#", a, c.trailing_zeros(), fact)
            }
            _ => self.int_op("mul.lo.s#", a, b, fact),
        }
    }

    fn int_shift(&mut self, op: &str, a: Int, by: u32, fact: Fact) -> Int {
        if let Some(value) = fact.as_constant() {
            return Int::constant(value);
        }
        let amount = Opd::Int(i64::from(by));
        if fact.fits_i32() && a.fact.fits_i32() {
            let x = self.narrow(a);
            return Int {
                opd: self
                    .pure(Class::B32, &op.replace('#', "32"), &[x, amount])
                    .into(),
                fact,
            };
        }
        let x = self.widen(a);
        let reg = self.pure(Class::B64, &op.replace('#', "64"), &[x, amount]);
        self.fitted(reg.into(), fact)
    }

    /// `a / d`, rounded down, for a positive constant.
    pub(crate) fn int_floordiv(&mut self, a: Int, d: i64) -> Int {
        let fact = a.fact.floordiv(d);
        if d == 1 {
            return a;
        }
        if d.count_ones() == 1 {
            return self.int_shift("shr.s#", a, d.trailing_zeros(), fact);
        }
        if a.fact.lo >= 0 {
            let op = if a.fact.fits_i32() {
                "div.u#"
            } else {
                "div.s#"
            };
            return self.int_op(op, a, Int::constant(d), fact);
        }
        let rem = self.int_mod(a, d);
        let exact = self.int_sub(a, rem);
        self.int_op("div.s#", exact, Int::constant(d), fact)
    }

    /// `a mod d`, never negative, for a positive constant.
    pub(crate) fn int_mod(&mut self, a: Int, d: i64) -> Int {
        let fact = a.fact.modulo(d);
        if a.fact.lo >= 0 && a.fact.hi < d {
            return a;
        }
        if d.count_ones() == 1 {
            return self.int_op("and.b#", a, Int::constant(d - 1), fact);
        }
        if a.fact.lo >= 0 {
            return self.int_op("rem.s#", a, Int::constant(d), fact);
        }
        // The truncated remainder lies between -d and d; one step up where it is negative.
        let rem = self.int_op("rem.s#", a, Int::constant(d), Fact::range(1 - d, d - 1));
        let up = self.int_add(rem, Int::constant(d));
        let opd = if up.fact.fits_i32() && rem.fact.fits_i32() {
            let p = self.pure(Class::Pred, "setp.lt.s32", &[rem.opd, Opd::Int(0)]);
            self.pure(Class::B32, "selp.b32", &[up.opd, rem.opd, p.into()])
        } else {
            let (up, rem) = (self.widen(up), self.widen(rem));
            let p = self.pure(Class::Pred, "setp.lt.s64", &[rem, Opd::Int(0)]);
            self.pure(Class::B64, "selp.b64", &[up, rem, p.into()])
        };
        self.fitted(opd.into(), fact)
    }

    /// `a < b` as a predicate; `None` where it always holds.
    pub(crate) fn int_less(&mut self, a: Int, b: Int) -> Option<Reg> {
        if a.fact.hi < b.fact.lo {
            return None;
        }
        Some(if a.fact.fits_i32() && b.fact.fits_i32() {
            let (x, y) = (self.narrow(a), self.narrow(b));
            self.pure(Class::Pred, "setp.lt.s32", &[x, y])
        } else {
            let (x, y) = (self.widen(a), self.widen(b));
            self.pure(Class::Pred, "setp.lt.s64", &[x, y])
        })
    }

    /// `base + x * scale` for a 64-bit base.
    pub(crate) fn address(&mut self, base: Reg, x: Int, scale: i64) -> Reg {
        match x.fact.as_constant() {
            Some(0) => base,
            Some(c) => self.pure(
                Class::B64,
                "add.s64",
                &[base.into(), Opd::Int(c.wrapping_mul(scale))],
            ),
            None if x.fact.fits_i32() => {
                let x = self.narrow(x);
                self.pure(
                    Class::B64,
                    "mad.wide.s32",
                    &[x, Opd::Int(scale), base.into()],
                )
            }
            None => {
                let x = self.widen(x);
                self.pure(Class::B64, "mad.lo.s64", &[x, Opd::Int(scale), base.into()])
            }
        }
    }
}
