//! Rewrites that need to know ranges. What holds for all integers happens while building, in `canon`.

use super::canon::{self, Extremum};
use super::proof::is_nonnegative;
use super::{Atom, Expr, Ranges};

/// Rewriting goes round until nothing changes; this bounds it.
const MAX_ROUNDS: usize = 8;

impl Expr {
    /// The same value for all symbols within the ranges, in a form that is no larger:
    ///
    /// - `a//n` and `a%n` where the quotient has only one possible value;
    /// - `(g*x + b)//n = (g*x)//n` and `(g*x + b)%n = (g*x)%n + b` where `0 <= b < g` and `g` divides `n`;
    /// - `a%n = 0` where `n` is known to divide `a`;
    /// - minima and maxima without the arguments that can never be it.
    #[must_use]
    pub fn simplify(&self, ranges: &Ranges) -> Expr {
        let mut expr = self.clone();
        for _ in 0..MAX_ROUNDS {
            let next = round(&expr, ranges);
            if next == expr || next.check().is_err() {
                break;
            }
            expr = next;
        }
        expr
    }
}

fn round(e: &Expr, ranges: &Ranges) -> Expr {
    e.rebuild(&mut |atom| {
        let args = |args: &[Expr]| -> Vec<Expr> { args.iter().map(|a| round(a, ranges)).collect() };
        match atom {
            Atom::Symbol(symbol) => match atom_point(&canon::from_atom(atom.clone()), ranges) {
                Some(value) => Expr::constant(value),
                None => Expr::symbol(*symbol),
            },
            Atom::FloorDiv(a, b) => floordiv(&round(a, ranges), &round(b, ranges), ranges),
            Atom::Mod(a, b) => modulo(&round(a, ranges), &round(b, ranges), ranges),
            Atom::Min(list) => extremum(Extremum::Min, args(list), ranges),
            Atom::Max(list) => extremum(Extremum::Max, args(list), ranges),
        }
    })
}

/// The only value it can have.
fn atom_point(e: &Expr, ranges: &Ranges) -> Option<i64> {
    e.wide_bounds(ranges).as_point()
}

fn floordiv(a: &Expr, b: &Expr, ranges: &Ranges) -> Expr {
    let plain = canon::floordiv(a, b);
    if let Some(value) = atom_point(&plain, ranges) {
        return Expr::constant(value);
    }
    if is_remainder(a, b, ranges) {
        return Expr::ZERO;
    }
    match split_low(a, b, ranges) {
        Some((high, _)) => canon::floordiv(&high, b),
        None => plain,
    }
}

fn modulo(a: &Expr, b: &Expr, ranges: &Ranges) -> Expr {
    if is_remainder(a, b, ranges) {
        return a.clone();
    }
    if let Some(c) = b.as_const().filter(|&c| c != 0) {
        if a.known_divisor(ranges) % c == 0 {
            return Expr::ZERO;
        }
        let quotient = atom_point(&canon::floordiv(a, b), ranges);
        if let Some(multiple) = quotient.and_then(|q| q.checked_mul(c)) {
            return a - multiple;
        }
    }
    match split_low(a, b, ranges) {
        Some((high, low)) => canon::modulo(&high, b) + low,
        None => canon::modulo(a, b),
    }
}

/// Whether `0 <= a < b`.
fn is_remainder(a: &Expr, b: &Expr, ranges: &Ranges) -> bool {
    is_nonnegative(a, ranges) && is_nonnegative(&(b - a - 1), ranges)
}

/// `a = high + low` with `0 <= low < g`, where `g > 1` divides the constant `b` and all of `high`.
fn split_low(a: &Expr, b: &Expr, ranges: &Ranges) -> Option<(Expr, Expr)> {
    let c = b.as_const().filter(|&c| c > 1)?;
    a.terms().iter().find_map(|candidate| {
        let g = canon::gcd(candidate.coefficient, c);
        if g <= 1 {
            return None;
        }
        let mut low = Expr::constant(a.offset().rem_euclid(g));
        for term in a.terms().iter().filter(|t| t.coefficient % g != 0) {
            low += canon::from_term(term.monomial.clone(), term.coefficient);
        }
        if low.is_const(0) || !is_remainder(&low, &Expr::constant(g), ranges) {
            return None;
        }
        Some((a - &low, low))
    })
}

fn extremum(which: Extremum, args: Vec<Expr>, ranges: &Ranges) -> Expr {
    let mut kept: Vec<Expr> = Vec::new();
    for (i, arg) in args.iter().enumerate() {
        let beaten = |other: &Expr| match which {
            Extremum::Min => is_nonnegative(&(arg - other), ranges),
            Extremum::Max => is_nonnegative(&(other - arg), ranges),
        };
        // Against those kept before and all that come after: of two equal ones the last stays.
        if !kept.iter().chain(&args[i + 1..]).any(beaten) {
            kept.push(arg.clone());
        }
    }
    canon::extremum(which, kept)
}
