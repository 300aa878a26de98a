//! Proofs that an expression is never negative; every comparison comes down to one.
//!
//! Intervals alone forget that two terms hold the same symbol: `7*n - i*n` with `i <= 7`. But where an
//! expression falls (or rises) as a symbol grows, whatever the others are, it is least at the symbol's
//! greatest (or least) value, which can be put in its place; terms then cancel.

use super::range::monomial_bounds;
use super::wide::Wide;
use super::{Atom, Expr, Ranges, Symbol, canon};

/// How many substitutions one proof may try.
const MAX_STEPS: usize = 48;

/// Whether `e >= 0` for all values within the ranges.
pub(super) fn is_nonnegative(e: &Expr, ranges: &Ranges) -> bool {
    Proof {
        ranges,
        spent: Vec::new(),
        steps: 0,
    }
    .nonnegative(e)
}

struct Proof<'a> {
    ranges: &'a Ranges,
    /// Symbols whose symbolic limit was used on the way here: limits may be cyclic.
    spent: Vec<Symbol>,
    steps: usize,
}

impl Proof<'_> {
    fn nonnegative(&mut self, e: &Expr) -> bool {
        self.steps += 1;
        if e.check().is_err() || self.steps > MAX_STEPS {
            return false;
        }
        if e.wide_bounds(self.ranges).lo >= 0 {
            return true;
        }
        let monotone: Vec<(Symbol, Trend)> = e
            .symbols()
            .into_iter()
            .filter_map(|s| Some((s, trend(e, s, self.ranges)?)))
            .collect();
        // Symbolic limits first: a number put in place of the limit would cut it off from the symbol.
        for &(symbol, trend) in &monotone {
            let Some(limit) = self.ranges.below(symbol) else {
                continue;
            };
            if trend == Trend::Falls && !self.spent.contains(&symbol) {
                self.spent.push(symbol);
                let proven = self.nonnegative(&replace(e, symbol, &(limit - 1)));
                self.spent.pop();
                if proven {
                    return true;
                }
            }
        }
        // A number loses nothing, so there is no need to try another symbol instead.
        let least = monotone.iter().find_map(|&(symbol, trend)| {
            let interval = self.ranges.get(symbol);
            let at = match trend {
                Trend::Falls => interval.hi,
                Trend::Rises => interval.lo,
            };
            (at != i64::MIN && at != i64::MAX).then(|| replace(e, symbol, &Expr::constant(at)))
        });
        least.is_some_and(|least| self.nonnegative(&least))
    }
}

fn replace(e: &Expr, symbol: Symbol, by: &Expr) -> Expr {
    e.substitute(&|s| (s == symbol).then(|| by.clone()))
}

#[derive(Clone, Copy, PartialEq)]
enum Trend {
    Falls,
    Rises,
}

/// How `e` goes as `symbol` grows, where that does not depend on the other symbols: the symbol stands
/// alone in its products (not squared, not inside a division), all slopes of one sign.
fn trend(e: &Expr, symbol: Symbol, ranges: &Ranges) -> Option<Trend> {
    let this = Atom::Symbol(symbol);
    let mut slope = Wide::point(0);
    for term in e.terms() {
        let others: Vec<Atom> = term
            .monomial
            .iter()
            .filter(|a| **a != this)
            .cloned()
            .collect();
        if others
            .iter()
            .any(|a| canon::from_atom(a.clone()).symbols().contains(&symbol))
        {
            return None;
        }
        match term.monomial.len() - others.len() {
            0 => {}
            1 => slope = slope + monomial_bounds(&others, ranges) * Wide::point(term.coefficient),
            _ => return None,
        }
    }
    if slope.hi <= 0 {
        Some(Trend::Falls)
    } else if slope.lo >= 0 {
        Some(Trend::Rises)
    } else {
        None
    }
}
