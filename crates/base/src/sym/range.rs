//! What is known about symbols, and what follows from it for expressions.

use super::{Atom, Expr, Repr, Symbol, canon, floor_div_mod};
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

const NEVER: i64 = i64::MIN;
const EVER: i64 = i64::MAX;

impl Interval {
    /// Every integer.
    pub const ALL: Interval = Interval {
        lo: NEVER,
        hi: EVER,
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

    fn hull(corners: &[i64]) -> Interval {
        let lo = corners.iter().copied().min().unwrap_or(NEVER);
        let hi = corners.iter().copied().max().unwrap_or(EVER);
        Interval { lo, hi }
    }

    fn add(self, other: Interval) -> Interval {
        let unbounded = |a: i64, b: i64, bound: i64| a == bound || b == bound;
        Interval {
            lo: if unbounded(self.lo, other.lo, NEVER) {
                NEVER
            } else {
                self.lo.saturating_add(other.lo)
            },
            hi: if unbounded(self.hi, other.hi, EVER) {
                EVER
            } else {
                self.hi.saturating_add(other.hi)
            },
        }
    }

    fn mul(self, other: Interval) -> Interval {
        Interval::corners(self, other, mul_bounds)
    }

    fn square(self) -> Interval {
        let square = self.mul(self);
        let lo = if self.contains(0) {
            0
        } else {
            mul_bounds(self.lo, self.lo).min(mul_bounds(self.hi, self.hi))
        };
        Interval { lo, ..square }
    }

    fn corners(a: Interval, b: Interval, f: fn(i64, i64) -> i64) -> Interval {
        Interval::hull(&[f(a.lo, b.lo), f(a.lo, b.hi), f(a.hi, b.lo), f(a.hi, b.hi)])
    }

    fn floordiv(self, other: Interval) -> Interval {
        // On divisors of one sign the quotient is monotone in both, so the corners are the extremes.
        if other.contains(0) {
            Interval::ALL
        } else {
            Interval::corners(self, other, div_bounds)
        }
    }

    fn modulo(self, other: Interval) -> Interval {
        if other.contains(0) {
            return Interval::ALL;
        }
        if other.lo < 0 {
            let positive = self
                .mul(Interval::point(-1))
                .modulo(other.mul(Interval::point(-1)));
            return positive.mul(Interval::point(-1));
        }
        if let Some(quotient) = self
            .floordiv(other)
            .as_point()
            .filter(|&q| q != NEVER && q != EVER)
        {
            let shift = Interval::point(quotient)
                .mul(other)
                .mul(Interval::point(-1));
            let shifted = self.add(shift);
            return Interval {
                lo: shifted.lo.max(0),
                hi: shifted.hi.min(other.hi.saturating_sub(1)),
            };
        }
        let hi = if other.hi == EVER { EVER } else { other.hi - 1 };
        Interval {
            lo: 0,
            hi: if self.lo >= 0 { hi.min(self.hi) } else { hi },
        }
    }
}

/// Bounds of either sign, infinite ones included; zero times infinity is zero, since it bounds a
/// product of finite numbers.
fn mul_bounds(a: i64, b: i64) -> i64 {
    if a == 0 || b == 0 {
        0
    } else if is_infinite(a) || is_infinite(b) {
        if (a < 0) == (b < 0) { EVER } else { NEVER }
    } else {
        clamp(i128::from(a) * i128::from(b))
    }
}

fn div_bounds(a: i64, b: i64) -> i64 {
    if is_infinite(b) {
        // The limit of the floor: 0 or -1; where `a` is infinite too, the other corner has its part.
        if a == 0 || (a < 0) == (b < 0) { 0 } else { -1 }
    } else if is_infinite(a) {
        if (a < 0) == (b < 0) { EVER } else { NEVER }
    } else {
        floor_div_mod(a.into(), b.into()).map_or(0, |(q, _)| clamp(q))
    }
}

fn is_infinite(bound: i64) -> bool {
    bound == NEVER || bound == EVER
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { NEVER } else { EVER })
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
            NEVER => write!(f, "(-inf, ")?,
            lo => write!(f, "[{lo}, ")?,
        }
        match self.hi {
            EVER => write!(f, "inf)"),
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

    fn below(&self, symbol: Symbol) -> Option<&Expr> {
        self.facts.get(&symbol)?.below.as_ref()
    }
}

impl Expr {
    /// An interval that holds every value the expression can take.
    pub fn bounds(&self, ranges: &Ranges) -> Interval {
        let sum = match &self.0 {
            Repr::Const(value) => return Interval::point(*value),
            Repr::Sum(sum) => sum,
            Repr::Invalid(_) => return Interval::ALL,
        };
        sum.terms
            .iter()
            .fold(Interval::point(sum.constant), |total, term| {
                total.add(
                    monomial_bounds(&term.monomial, ranges).mul(Interval::point(term.coefficient)),
                )
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
            |e: &Expr| e.bounds(ranges) == Interval::point(0) || canon::expand_mods(e).is_const(0);
        let difference = self - other;
        self == other || zero(&difference) || zero(&difference.simplify(ranges))
    }
}

fn monomial_bounds(monomial: &[Atom], ranges: &Ranges) -> Interval {
    match monomial {
        // Equal atoms stand side by side; their product is no product of independent intervals.
        [a, b, rest @ ..] if a == b => atom_bounds(a, ranges)
            .square()
            .mul(monomial_bounds(rest, ranges)),
        [a, rest @ ..] => atom_bounds(a, ranges).mul(monomial_bounds(rest, ranges)),
        [] => Interval::point(1),
    }
}

fn atom_bounds(atom: &Atom, ranges: &Ranges) -> Interval {
    let fold = |args: &[Expr], best: fn(i64, i64) -> i64| {
        let all = args.iter().map(|a| a.bounds(ranges));
        all.reduce(|a, b| Interval {
            lo: best(a.lo, b.lo),
            hi: best(a.hi, b.hi),
        })
        .unwrap_or(Interval::ALL)
    };
    match atom {
        Atom::Symbol(symbol) => {
            let interval = ranges.get(*symbol);
            match ranges.below(*symbol).and_then(Expr::as_const) {
                Some(limit) => Interval {
                    hi: interval.hi.min(limit.saturating_sub(1)),
                    ..interval
                },
                None => interval,
            }
        }
        Atom::FloorDiv(a, b) => a.bounds(ranges).floordiv(b.bounds(ranges)),
        Atom::Mod(a, b) => a.bounds(ranges).modulo(b.bounds(ranges)),
        Atom::Min(args) => fold(args, i64::min),
        Atom::Max(args) => fold(args, i64::max),
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

/// Whether `e >= 0` follows from intervals, or from putting symbolic limits in place of symbols.
pub(super) fn is_nonnegative(e: &Expr, ranges: &Ranges) -> bool {
    if e.check().is_err() {
        return false;
    }
    if e.bounds(ranges).lo >= 0 {
        return true;
    }
    // Where `e` falls as a symbol grows, it is least at the symbol's limit. Each step removes a symbol
    // that has a limit, so cyclic limits are cut by dropping the fact that was used.
    e.symbols().into_iter().any(|symbol| {
        let Some(limit) = ranges.below(symbol) else {
            return false;
        };
        if !falls_with(e, symbol, ranges) {
            return false;
        }
        let mut fewer = ranges.clone();
        if let Some(fact) = fewer.facts.get_mut(&symbol) {
            fact.below = None;
        }
        let least = e.substitute(&|s| (s == symbol).then(|| limit - 1));
        is_nonnegative(&least, &fewer)
    })
}

/// Whether every term with `symbol` is that symbol once, times something that is not positive.
fn falls_with(e: &Expr, symbol: Symbol, ranges: &Ranges) -> bool {
    let this = Atom::Symbol(symbol);
    e.terms().iter().all(|term| {
        let others: Vec<Atom> = term
            .monomial
            .iter()
            .filter(|a| **a != this)
            .cloned()
            .collect();
        let hidden = others
            .iter()
            .any(|a| canon::from_atom(a.clone()).symbols().contains(&symbol));
        let slope = || monomial_bounds(&others, ranges).mul(Interval::point(term.coefficient));
        match term.monomial.len() - others.len() {
            0 => !hidden,
            1 => !hidden && slope().hi <= 0,
            _ => false,
        }
    })
}
