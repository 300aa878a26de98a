//! A product by a power of two that is split in two factors, as the exponential functions write it, is one instruction.
//!
//! `(p * s) * t` with `s * t = 2^k` rounds once, in the last product, since the first is exact; so does `vscalefps`, and both keep denormals: the result has the same bits. The two
//! factors come of one number `x`: `s` of `h = fma(x, c/2, 1.5 * 2^23 + 127)`, shifted into the exponent, `t` of the bits of `fma(x, c, 1.5 * 2^23 + 254)` less those of `h`. These constants
//! are those of `maths/exponential.rs`, which sees to it that `-252 <= k <= 254`.

use oxyfuel_base::Id;
use oxyfuel_kernel::ir::{BinaryOp, Inst, Op, Val};

use super::{Def, Select, slot};

/// What leaves the integer nearest to a float in the lower bits, once and twice biased like an exponent.
const SHIFTERS: [f64; 2] = [12_583_039.0, 12_583_166.0];
/// Bits below an exponent.
const MANTISSA: f64 = 23.0;

impl<'p> Select<'p, '_> {
    /// `(p, k)` where the product of two values is `p * 2^k`. The nest must reach `k`, and must have kept nothing of an earlier stage, where `k` may not be
    /// wanted again.
    pub fn scaled(&self, product: Val, lhs: Val, rhs: Val) -> Option<(Val, Val)> {
        let (p, s) = self.binary_of(BinaryOp::Mul, lhs)?;
        let half = self.exponent(s)?;
        let (whole, again) = self.binary_of(BinaryOp::Sub, self.exponent(rhs)?)?;
        let shifted = self.bits_of(whole)?;
        let (x, first) = self.shifted(self.bits_of(half)?, SHIFTERS[0])?;
        let (y, second) = self.shifted(shifted, SHIFTERS[1])?;
        if again != half || x != y || first * 2.0 != second {
            return None;
        }
        // The float `k` itself reduces the argument of the exponential functions, so that it is there.
        let between = slot(shifted) + 1..slot(product);
        let k = between.map(Val::from_index).find(|&v| {
            let less = self.binary_of(BinaryOp::Sub, v);
            less.is_some_and(|(a, b)| a == shifted && self.literal(b) == Some(SHIFTERS[1]))
        })?;
        Some((p, k))
    }

    fn lazy(&self, v: Val) -> Option<&'p Op> {
        match self.defs.get(&v)? {
            Def::Lazy(Inst { op, .. }) => Some(op),
            _ => None,
        }
    }

    pub fn binary_of(&self, wanted: BinaryOp, v: Val) -> Option<(Val, Val)> {
        match self.lazy(v)? {
            Op::Binary { op, lhs, rhs } if *op == wanted => Some((*lhs, *rhs)),
            _ => None,
        }
    }

    fn bits_of(&self, v: Val) -> Option<Val> {
        match self.lazy(v)? {
            Op::Bitcast { value } => Some(*value),
            _ => None,
        }
    }

    /// The integer that a float was made of by shifting it into the exponent.
    fn exponent(&self, v: Val) -> Option<Val> {
        let (bits, by) = self.binary_of(BinaryOp::Shl, self.bits_of(v)?)?;
        (self.literal(by)? == MANTISSA).then_some(bits)
    }

    /// `(x, c)` where a value is `fma(x, c, shifter)`.
    fn shifted(&self, v: Val, shifter: f64) -> Option<(Val, f64)> {
        match self.lazy(v)? {
            Op::Fma { a, b, c } if self.literal(*c)? == shifter => Some((*a, self.literal(*b)?)),
            _ => None,
        }
    }

    /// The number that fills a tile.
    fn literal(&self, v: Val) -> Option<f64> {
        match self.lazy(v)? {
            Op::Splat { value } => match self.origin(*value)? {
                Op::Const { value } => Some(value.as_f64()),
                _ => None,
            },
            _ => None,
        }
    }
}
