//! Proofs that an expression is never negative; every comparison comes down to one.
//!
//! Intervals alone forget that two terms hold the same symbol: `7*n - i*n` with `i <= 7`. But where an
//! expression falls (or rises) as a symbol grows, whatever the others are, it is least at the symbol's
//! greatest (or least) value, which can be put in its place; terms then cancel.

use super::range::monomial_bounds;
use super::wide::Wide;
use super::{Atom, Expr, Ranges, Symbol};

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
        let bounds = e.wide_bounds(self.ranges);
        if bounds.lo >= 0 || bounds.hi < 0 || !self.may_cancel(e) {
            return bounds.lo >= 0;
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

    /// Whether a symbol stands in two places, now or after a limit is put in place of one: else the
    /// interval has said all there is to say.
    fn may_cancel(&self, e: &Expr) -> bool {
        let mut seen = Vec::new();
        let mut may = false;
        e.visit_symbols(&mut |symbol| {
            may |= seen.contains(&symbol) || self.ranges.below(symbol).is_some();
            seen.push(symbol);
        });
        may
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
        let mut times = 0;
        let mut hidden = false;
        for atom in &term.monomial {
            match atom {
                Atom::Symbol(s) => times += usize::from(*s == symbol),
                Atom::FloorDiv(..) | Atom::Mod(..) | Atom::Min(_) | Atom::Max(_) => {
                    atom.visit_symbols(&mut |s| hidden |= s == symbol);
                }
            }
        }
        match times {
            _ if hidden => return None,
            0 => {}
            1 => {
                let others: Vec<Atom> = term
                    .monomial
                    .iter()
                    .filter(|a| **a != this)
                    .cloned()
                    .collect();
                slope = slope + monomial_bounds(&others, ranges) * Wide::point(term.coefficient);
            }
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
