//! What is known about symbols, and what follows from it for expressions.

use super::proof::is_nonnegative;
use super::wide::Wide;
use super::{Atom, Expr, Repr, Symbol, canon};
use std::collections::BTreeMap;
use std::fmt;

/// All integers from `lo` to `hi`, both included; `i64::MIN` and `i64::MAX` mean without bound.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interval {
    /// The least.
    pub lo: i64,
    /// The greatest.
    pub hi: i64,
}

impl Interval {
    /// Every integer.
    pub const ALL: Interval = Interval {
        lo: i64::MIN,
        hi: i64::MAX,
    };

    /// `lo..=hi`.
    pub const fn new(lo: i64, hi: i64) -> Interval {
        Interval { lo, hi }
    }

    /// One integer.
    pub const fn point(value: i64) -> Interval {
        Interval {
            lo: value,
            hi: value,
        }
    }

    /// The integer, when it is one.
    pub fn as_point(self) -> Option<i64> {
        (self.lo == self.hi).then_some(self.lo)
    }

    /// Whether `value` is in it.
    pub fn contains(self, value: i64) -> bool {
        self.lo <= value && value <= self.hi
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Interval {
    /// `[0, 7]`, `[1, inf)`, `(-inf, inf)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lo {
            i64::MIN => write!(f, "(-inf, ")?,
            lo => write!(f, "[{lo}, ")?,
        }
        match self.hi {
            i64::MAX => write!(f, "inf)"),
            hi => write!(f, "{hi}]"),
        }
    }
}

/// What is known about each symbol: its interval, a number that divides it, and an expression it stays
/// below. A symbol nobody spoke of may be any integer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    facts: BTreeMap<Symbol, Fact>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fact {
    interval: Interval,
    divisor: i64,
    below: Option<Expr>,
}

impl Default for Fact {
    fn default() -> Fact {
        Fact {
            interval: Interval::ALL,
            divisor: 1,
            below: None,
        }
    }
}

impl Ranges {
    /// Nothing known.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// States `lo <= symbol <= hi`, in place of what was stated before.
    pub fn set(&mut self, symbol: Symbol, lo: i64, hi: i64) -> &mut Ranges {
        self.facts.entry(symbol).or_default().interval = Interval::new(lo, hi);
        self
    }

    /// States that `divisor` (at least 1) divides the symbol's value.
    pub fn set_divisor(&mut self, symbol: Symbol, divisor: i64) -> &mut Ranges {
        self.facts.entry(symbol).or_default().divisor = divisor.max(1);
        self
    }

    /// States `symbol < limit`, for an index that runs to a symbolic size.
    pub fn set_below(&mut self, symbol: Symbol, limit: impl Into<Expr>) -> &mut Ranges {
        self.facts.entry(symbol).or_default().below = Some(limit.into());
        self
    }

    /// The symbol's interval.
    pub fn get(&self, symbol: Symbol) -> Interval {
        self.facts
            .get(&symbol)
            .map_or(Interval::ALL, |fact| fact.interval)
    }

    /// A number that divides the symbol's value: 1 when nothing is known.
    pub fn divisor(&self, symbol: Symbol) -> i64 {
        self.facts.get(&symbol).map_or(1, |fact| fact.divisor)
    }

    /// The expression that the symbol stays below, if one was stated.
    pub fn below(&self, symbol: Symbol) -> Option<&Expr> {
        self.facts.get(&symbol)?.below.as_ref()
    }
}

impl Expr {
    /// An interval that holds every value the expression can take.
    pub fn bounds(&self, ranges: &Ranges) -> Interval {
        self.wide_bounds(ranges).narrow()
    }

    /// The same, without the loss at the ends of 64 bits.
    pub(super) fn wide_bounds(&self, ranges: &Ranges) -> Wide {
        let sum = match &self.0 {
            Repr::Const(value) => return Wide::point(*value),
            Repr::Sum(sum) => sum,
            Repr::Invalid(_) => return Wide::ALL,
        };
        sum.terms
            .iter()
            .fold(Wide::point(sum.constant), |total, term| {
                total + monomial_bounds(&term.monomial, ranges) * Wide::point(term.coefficient)
            })
    }

    /// A number that divides every value the expression can take; 0 when it is always zero.
    pub fn known_divisor(&self, ranges: &Ranges) -> i64 {
        if self.check().is_err() {
            return 1;
        }
        self.terms()
            .iter()
            .fold(canon::gcd(0, self.offset()), |g, term| {
                let product = term
                    .monomial
                    .iter()
                    .try_fold(canon::gcd(0, term.coefficient), |product, atom| {
                        product.checked_mul(atom_divisor(atom, ranges))
                    });
                canon::gcd(g, product.unwrap_or(1))
            })
    }

    /// Whether `divisor` provably divides it.
    pub fn is_divisible_by(&self, divisor: i64, ranges: &Ranges) -> bool {
        let divides =
            |e: &Expr| e.check().is_ok() && divisor != 0 && e.known_divisor(ranges) % divisor == 0;
        divides(self) || divides(&self.simplify(ranges))
    }

    /// Whether `self < other` for all values within the ranges.
    pub fn provably_lt(&self, other: &Expr, ranges: &Ranges) -> bool {
        (self + 1).provably_le(other, ranges)
    }

    /// Whether `self <= other` for all values within the ranges.
    pub fn provably_le(&self, other: &Expr, ranges: &Ranges) -> bool {
        let difference = other - self;
        is_nonnegative(&difference, ranges) || is_nonnegative(&difference.simplify(ranges), ranges)
    }

    /// Whether `self == other` for all values within the ranges.
    pub fn provably_eq(&self, other: &Expr, ranges: &Ranges) -> bool {
        if self.check().is_err() || other.check().is_err() {
            return false;
        }
        let zero =
            |e: &Expr| e.wide_bounds(ranges) == Wide::point(0) || canon::expand_mods(e).is_const(0);
        let difference = self - other;
        self == other || zero(&difference) || zero(&difference.simplify(ranges))
    }
}

pub(super) fn monomial_bounds(monomial: &[Atom], ranges: &Ranges) -> Wide {
    match monomial {
        // Equal atoms stand side by side; their product is no product of independent intervals.
        [a, b, rest @ ..] if a == b => {
            atom_bounds(a, ranges).square() * monomial_bounds(rest, ranges)
        }
        [a, rest @ ..] => atom_bounds(a, ranges) * monomial_bounds(rest, ranges),
        [] => Wide::point(1),
    }
}

fn atom_bounds(atom: &Atom, ranges: &Ranges) -> Wide {
    let fold = |args: &[Expr], best: fn(Wide, Wide) -> Wide| {
        args.iter()
            .map(|a| a.wide_bounds(ranges))
            .reduce(best)
            .unwrap_or(Wide::ALL)
    };
    match atom {
        Atom::Symbol(symbol) => {
            let interval = ranges.get(*symbol);
            let hi = match ranges.below(*symbol).and_then(Expr::as_const) {
                Some(limit) => interval.hi.min(limit.saturating_sub(1)),
                None => interval.hi,
            };
            Wide::from(Interval { hi, ..interval })
        }
        Atom::FloorDiv(a, b) => a.wide_bounds(ranges).floordiv(b.wide_bounds(ranges)),
        Atom::Mod(a, b) => a.wide_bounds(ranges).modulo(b.wide_bounds(ranges)),
        Atom::Min(args) => fold(args, Wide::min),
        Atom::Max(args) => fold(args, Wide::max),
    }
}

fn atom_divisor(atom: &Atom, ranges: &Ranges) -> i64 {
    let common = |args: &[&Expr]| {
        args.iter()
            .fold(0, |g, a| canon::gcd(g, a.known_divisor(ranges)))
    };
    match atom {
        Atom::Symbol(symbol) => ranges.divisor(*symbol),
        Atom::FloorDiv(a, b) => match b.as_const() {
            Some(c) if c != 0 && a.known_divisor(ranges) % c == 0 => {
                (a.known_divisor(ranges) / c).abs()
            }
            Some(_) | None => 1,
        },
        Atom::Mod(a, b) => common(&[a, b]),
        Atom::Min(args) | Atom::Max(args) => common(&args.iter().collect::<Vec<_>>()),
    }
}
