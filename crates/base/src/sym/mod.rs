//! Symbolic dims: integer expressions over symbols that have no value yet.
//!
//! An [`Expr`] is always in canonical form: a sum of products with integer coefficients, where a
//! factor is a symbol, a floor division, a modulo, a minimum or a maximum of expressions that are
//! canonical themselves. Building an expression simplifies it, so two expressions that are written
//! differently are mostly equal (`==`) when they mean the same; what `==` misses, the proofs in
//! [`Ranges`] may find.
//!
//! **Meaning.** Integers without bound. `floordiv` rounds toward minus infinity and `modulo` has the
//! sign of the divisor, as in Python. Building assumes that divisors are not zero (`x//x` is 1); an
//! evaluation that meets a zero divisor which is still there is an error.
//!
//! **Overflow.** Coefficients are `i64`. Where one would not fit, where a constant divisor is zero, or
//! where an expression would get more than [`MAX_TERMS`] terms, the result is an *invalid*
//! expression, which every operation hands on, which proves nothing and which does not evaluate:
//! so the operators need no `Result`, and [`Expr::check`] tells it at the border.
//!
//! Constants take no allocation; a clone is a reference count.
//!
//! ```
//! use oxyfuel_base::{Expr, Ranges, Symbol};
//!
//! let (row, col) = (Symbol(0), Symbol(1));
//! let flat = Expr::symbol(row) * 64 + col;
//! assert_eq!(flat.floordiv(64).to_string(), "s0 + s1//64");
//!
//! let mut ranges = Ranges::new();
//! ranges.set(col, 0, 63);
//! assert_eq!(flat.floordiv(64).simplify(&ranges), Expr::symbol(row));
//! assert_eq!(flat.modulo(16).simplify(&ranges), Expr::symbol(col).modulo(16));
//! assert_eq!("8*(s0//8) + s0%8".parse::<Expr>()?, Expr::symbol(row));
//! # Ok::<(), oxyfuel_base::Error>(())
//! ```

mod canon;
mod proof;
mod range;
mod simplify;
mod text;
mod wide;

#[cfg(test)]
mod tests;

pub use range::{Interval, Ranges};

use crate::error::{Code, Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Add, AddAssign, Mul, MulAssign, Neg, Sub, SubAssign};
use std::sync::Arc;

/// The most terms a canonical sum may have: products of sums grow exponentially otherwise.
pub const MAX_TERMS: usize = 2048;

/// The name of an unknown integer, shown as `s3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Symbol(pub u32);

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A canonical integer expression.
///
/// The order (`Ord`) is total and stable, for sorting and for keys; it says nothing about values, which
/// [`provably_lt`](Expr::provably_lt) compares.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Expr(Repr);

impl PartialOrd for Expr {
    fn partial_cmp(&self, other: &Expr) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Expr {
    fn cmp(&self, other: &Expr) -> Ordering {
        self.0.cmp(&other.0)
    }

    /// The smaller *value*, as [`Expr::min`]. Method lookup prefers this one on an owned expression, where
    /// picking by the arbitrary order would be silently wrong.
    fn min(self, other: Expr) -> Expr {
        Expr::min(&self, other)
    }

    /// The larger *value*, as [`Expr::max`].
    fn max(self, other: Expr) -> Expr {
        Expr::max(&self, other)
    }

    /// The *value* brought into `least..=most`.
    fn clamp(self, least: Expr, most: Expr) -> Expr {
        Expr::min(&Expr::max(&self, least), most)
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Repr {
    Const(i64),
    /// With at least one term.
    Sum(Arc<Sum>),
    Invalid(Invalid),
}

/// Why an expression has no meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Invalid {
    Overflow,
    ZeroDivisor,
    TooManyTerms,
}

impl Invalid {
    fn error(self) -> Error {
        match self {
            Invalid::Overflow => Error::new(
                Code::SizeOverflow,
                "a size expression does not fit into 64 bits",
            ),
            Invalid::ZeroDivisor => {
                Error::new(Code::DivisionByZero, "a size expression divides by zero")
            }
            Invalid::TooManyTerms => Error::new(
                Code::TooLarge,
                format!("a size expression has more than {MAX_TERMS} terms"),
            ),
        }
    }
}

/// `terms + constant`; terms are sorted by monomial, each monomial once, no coefficient zero.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Sum {
    terms: Vec<Term>,
    constant: i64,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Term {
    monomial: Monomial,
    coefficient: i64,
}

/// A product of atoms, sorted, a power as repetition; never empty inside a term.
type Monomial = Vec<Atom>;

/// What a product is made of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Atom {
    Symbol(Symbol),
    /// Dividend, divisor; not both constant.
    FloorDiv(Expr, Expr),
    /// Dividend, divisor; not both constant.
    Mod(Expr, Expr),
    /// At least two, sorted, none itself a lone minimum, at most one constant.
    Min(Vec<Expr>),
    /// The same for the maximum.
    Max(Vec<Expr>),
}

impl Expr {
    /// Zero.
    pub const ZERO: Expr = Expr(Repr::Const(0));
    /// One.
    pub const ONE: Expr = Expr(Repr::Const(1));

    /// The constant.
    pub const fn constant(value: i64) -> Expr {
        Expr(Repr::Const(value))
    }

    /// The symbol alone.
    pub fn symbol(symbol: Symbol) -> Expr {
        canon::from_atom(Atom::Symbol(symbol))
    }

    /// `self / divisor`, rounded toward minus infinity.
    #[must_use]
    pub fn floordiv(&self, divisor: impl Into<Expr>) -> Expr {
        canon::floordiv(self, &divisor.into())
    }

    /// `self - divisor * (self // divisor)`: for a positive divisor in `0..divisor`.
    #[must_use]
    pub fn modulo(&self, divisor: impl Into<Expr>) -> Expr {
        canon::modulo(self, &divisor.into())
    }

    /// `self / divisor`, rounded up, for a positive divisor: `(self + divisor - 1) // divisor`.
    #[must_use]
    pub fn ceildiv(&self, divisor: impl Into<Expr>) -> Expr {
        let divisor = divisor.into();
        canon::floordiv(&(self + &divisor - 1), &divisor)
    }

    /// The next multiple of a positive `step`, from `self` up.
    #[must_use]
    pub fn round_up(&self, step: impl Into<Expr>) -> Expr {
        let step = step.into();
        self.ceildiv(&step) * step
    }

    /// The smaller of the two.
    #[must_use]
    pub fn min(&self, other: impl Into<Expr>) -> Expr {
        canon::extremum(canon::Extremum::Min, vec![self.clone(), other.into()])
    }

    /// The larger of the two.
    #[must_use]
    pub fn max(&self, other: impl Into<Expr>) -> Expr {
        canon::extremum(canon::Extremum::Max, vec![self.clone(), other.into()])
    }

    /// The value, when it is a constant.
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Const(value) => Some(value),
            Repr::Sum(_) | Repr::Invalid(_) => None,
        }
    }

    /// The symbol, when it is a symbol alone.
    pub fn as_symbol(&self) -> Option<Symbol> {
        match self.as_atom()? {
            Atom::Symbol(symbol) => Some(*symbol),
            Atom::FloorDiv(..) | Atom::Mod(..) | Atom::Min(_) | Atom::Max(_) => None,
        }
    }

    /// Whether it is the constant `value`.
    pub fn is_const(&self, value: i64) -> bool {
        self.as_const() == Some(value)
    }

    /// The expression itself, or why it is invalid.
    pub fn check(&self) -> Result<&Expr> {
        match self.0 {
            Repr::Const(_) | Repr::Sum(_) => Ok(self),
            Repr::Invalid(why) => Err(why.error()),
        }
    }

    /// The value, given the symbols' values. Fails for an unbound symbol, a zero divisor and where the
    /// result exceeds 64 (or a step on the way 128) bits.
    pub fn eval(&self, value_of: &dyn Fn(Symbol) -> Option<i64>) -> Result<i64> {
        if let Repr::Const(value) = self.0 {
            return Ok(value);
        }
        i64::try_from(self.eval_wide(value_of)?).map_err(|_| Invalid::Overflow.error())
    }

    /// Canonical sums may pass larger numbers on the way than the source did, hence 128 bits.
    fn eval_wide(&self, value_of: &dyn Fn(Symbol) -> Option<i64>) -> Result<i128> {
        let sum = match &self.0 {
            Repr::Const(value) => return Ok((*value).into()),
            Repr::Sum(sum) => sum,
            Repr::Invalid(why) => return Err(why.error()),
        };
        let overflow = || Invalid::Overflow.error();
        let mut total = i128::from(sum.constant);
        for term in &sum.terms {
            let mut product = i128::from(term.coefficient);
            for atom in &term.monomial {
                product = product
                    .checked_mul(atom.eval_wide(value_of)?)
                    .ok_or_else(overflow)?;
            }
            total = total.checked_add(product).ok_or_else(overflow)?;
        }
        Ok(total)
    }

    /// Every symbol replaced by what `replacement` gives for it, if anything.
    #[must_use]
    pub fn substitute(&self, replacement: &dyn Fn(Symbol) -> Option<Expr>) -> Expr {
        self.rebuild(&mut |atom| match atom {
            Atom::Symbol(symbol) => replacement(*symbol).unwrap_or_else(|| Expr::symbol(*symbol)),
            Atom::FloorDiv(a, b) => a
                .substitute(replacement)
                .floordiv(b.substitute(replacement)),
            Atom::Mod(a, b) => a.substitute(replacement).modulo(b.substitute(replacement)),
            Atom::Min(args) => canon::extremum(
                canon::Extremum::Min,
                args.iter().map(|a| a.substitute(replacement)).collect(),
            ),
            Atom::Max(args) => canon::extremum(
                canon::Extremum::Max,
                args.iter().map(|a| a.substitute(replacement)).collect(),
            ),
        })
    }

    /// The same sum of products over new atoms.
    fn rebuild(&self, atom: &mut dyn FnMut(&Atom) -> Expr) -> Expr {
        match &self.0 {
            Repr::Const(_) | Repr::Invalid(_) => self.clone(),
            Repr::Sum(sum) => {
                let terms = sum.terms.iter().map(|term| {
                    let one = Expr::constant(term.coefficient);
                    term.monomial
                        .iter()
                        .fold(one, |product, factor| product * atom(factor))
                });
                canon::sum_of(terms.chain([Expr::constant(sum.constant)]))
            }
        }
    }

    /// All symbols in it.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        let mut found = BTreeSet::new();
        self.visit_symbols(&mut |symbol| {
            found.insert(symbol);
        });
        found
    }

    /// Every place where a symbol stands.
    fn visit_symbols(&self, visit: &mut dyn FnMut(Symbol)) {
        self.terms()
            .iter()
            .flat_map(|t| &t.monomial)
            .for_each(|atom| atom.visit_symbols(visit));
    }

    /// The atom, when the expression is one alone.
    fn as_atom(&self) -> Option<&Atom> {
        match &self.0 {
            Repr::Sum(sum) => match (sum.constant, sum.terms.as_slice()) {
                (
                    0,
                    [
                        Term {
                            monomial,
                            coefficient: 1,
                        },
                    ],
                ) if monomial.len() == 1 => monomial.first(),
                _ => None,
            },
            Repr::Const(_) | Repr::Invalid(_) => None,
        }
    }

    /// The terms, none for a constant.
    fn terms(&self) -> &[Term] {
        match &self.0 {
            Repr::Sum(sum) => &sum.terms,
            Repr::Const(_) | Repr::Invalid(_) => &[],
        }
    }

    /// What is added to the terms.
    fn offset(&self) -> i64 {
        match &self.0 {
            Repr::Const(value) => *value,
            Repr::Sum(sum) => sum.constant,
            Repr::Invalid(_) => 0,
        }
    }
}

impl Atom {
    fn visit_symbols(&self, visit: &mut dyn FnMut(Symbol)) {
        match self {
            Atom::Symbol(symbol) => visit(*symbol),
            Atom::FloorDiv(a, b) | Atom::Mod(a, b) => {
                a.visit_symbols(visit);
                b.visit_symbols(visit);
            }
            Atom::Min(args) | Atom::Max(args) => args.iter().for_each(|a| a.visit_symbols(visit)),
        }
    }

    fn eval_wide(&self, value_of: &dyn Fn(Symbol) -> Option<i64>) -> Result<i128> {
        let divide = |a: &Expr, b: &Expr| -> Result<(i128, i128)> {
            let (a, b) = (a.eval_wide(value_of)?, b.eval_wide(value_of)?);
            floor_div_mod(a, b).ok_or_else(|| {
                if b == 0 {
                    Invalid::ZeroDivisor
                } else {
                    Invalid::Overflow
                }
                .error()
            })
        };
        let pick = |args: &[Expr], best: fn(i128, i128) -> i128| -> Result<i128> {
            let mut values = args.iter().map(|a| a.eval_wide(value_of));
            let first = values.next().unwrap_or(Ok(0))?;
            values.try_fold(first, |a, b| Ok(best(a, b?)))
        };
        match self {
            Atom::Symbol(symbol) => value_of(*symbol).map(i128::from).ok_or_else(|| {
                Error::new(
                    Code::UnboundSymbol,
                    format!("the symbolic dim {symbol} has no value"),
                )
            }),
            Atom::FloorDiv(a, b) => Ok(divide(a, b)?.0),
            Atom::Mod(a, b) => Ok(divide(a, b)?.1),
            Atom::Min(args) => pick(args, i128::min),
            Atom::Max(args) => pick(args, i128::max),
        }
    }
}

/// Quotient rounded toward minus infinity, and the remainder with the divisor's sign.
fn floor_div_mod(a: i128, b: i128) -> Option<(i128, i128)> {
    let (q, r) = (a.checked_div(b)?, a.checked_rem(b)?);
    Some(if r != 0 && (r < 0) != (b < 0) {
        (q - 1, r + b)
    } else {
        (q, r)
    })
}

impl From<i64> for Expr {
    fn from(value: i64) -> Expr {
        Expr::constant(value)
    }
}

impl From<i32> for Expr {
    fn from(value: i32) -> Expr {
        Expr::constant(value.into())
    }
}

impl From<usize> for Expr {
    /// Sizes above `i64::MAX` make an invalid expression.
    fn from(value: usize) -> Expr {
        i64::try_from(value).map_or(Expr(Repr::Invalid(Invalid::Overflow)), Expr::constant)
    }
}

impl From<Symbol> for Expr {
    fn from(symbol: Symbol) -> Expr {
        Expr::symbol(symbol)
    }
}

impl From<&Expr> for Expr {
    fn from(expr: &Expr) -> Expr {
        expr.clone()
    }
}

impl PartialEq<i64> for Expr {
    fn eq(&self, value: &i64) -> bool {
        self.is_const(*value)
    }
}

impl Default for Expr {
    fn default() -> Expr {
        Expr::ZERO
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $assign_trait:ident $assign:ident $function:path;)*) => {$(
        impl<T: Into<Expr>> $trait<T> for Expr {
            type Output = Expr;

            fn $method(self, other: T) -> Expr {
                $function(&self, &other.into())
            }
        }

        impl<T: Into<Expr>> $trait<T> for &Expr {
            type Output = Expr;

            fn $method(self, other: T) -> Expr {
                $function(self, &other.into())
            }
        }

        impl<T: Into<Expr>> $assign_trait<T> for Expr {
            fn $assign(&mut self, other: T) {
                *self = $function(self, &other.into());
            }
        }
    )*};
}

operators! {
    Add add AddAssign add_assign canon::add;
    Sub sub SubAssign sub_assign canon::sub;
    Mul mul MulAssign mul_assign canon::mul;
}

impl Neg for Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        canon::scale(&self, -1)
    }
}

impl Neg for &Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        canon::scale(self, -1)
    }
}

impl std::iter::Sum for Expr {
    fn sum<I: Iterator<Item = Expr>>(iter: I) -> Expr {
        canon::sum_of(iter)
    }
}

impl std::iter::Product for Expr {
    fn product<I: Iterator<Item = Expr>>(iter: I) -> Expr {
        iter.fold(Expr::ONE, |a, b| a * b)
    }
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Expr {
    /// As text: reading goes through the canonical constructors again.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.check().map_err(serde::ser::Error::custom)?;
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Expr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Expr, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}
