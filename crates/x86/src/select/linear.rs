//! What can be proved of scalars: sums of other scalars times constants.

use oxyfuel_kernel::ir::{Access, BinaryOp, Index, Op, Val};

use super::Select;

/// `constant + sum(factor * value)`, each value once; values that are no sums themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sum {
    constant: i64,
    terms: Vec<(Val, i64)>,
}

impl Sum {
    fn add(&mut self, other: &Sum, factor: i64) -> Option<()> {
        let scaled = other.constant.checked_mul(factor)?;
        self.constant = self.constant.checked_add(scaled)?;
        for &(v, n) in &other.terms {
            let n = n.checked_mul(factor)?;
            match self.terms.iter_mut().find(|term| term.0 == v) {
                Some(term) => term.1 = term.1.checked_add(n)?,
                None => self.terms.push((v, n)),
            }
        }
        self.terms.retain(|term| term.1 != 0);
        Some(())
    }
}

/// Steps from a scalar back to what it is a sum of.
const DEPTH: u32 = 12;

impl Select<'_, '_> {
    fn sum(&self, v: Val, depth: u32) -> Option<Sum> {
        let mut sum = Sum::default();
        match self.origin(v) {
            Some(Op::Const { value }) => sum.constant = value.as_i64(),
            Some(Op::Binary { op, lhs, rhs }) if depth < DEPTH => {
                let (a, b) = (self.sum(*lhs, depth + 1)?, self.sum(*rhs, depth + 1)?);
                match op {
                    BinaryOp::Add => {
                        sum.add(&a, 1)?;
                        sum.add(&b, 1)?;
                    }
                    BinaryOp::Sub => {
                        sum.add(&a, 1)?;
                        sum.add(&b, -1)?;
                    }
                    BinaryOp::Mul if b.terms.is_empty() => sum.add(&a, b.constant)?,
                    BinaryOp::Mul if a.terms.is_empty() => sum.add(&b, a.constant)?,
                    _ => sum.terms.push((v, 1)),
                }
            }
            _ => sum.terms.push((v, 1)),
        }
        Some(sum)
    }

    /// By how much a scalar grows from one instance to the next most of the time: the first axis of the grid counts fastest, and what counts round grows until it is round.
    pub fn step(&self, v: Val) -> Option<i64> {
        let mut step = 0i64;
        for (v, factor) in self.sum(v, 0)?.terms {
            let own = match self.origin(v)? {
                Op::ProgramId { axis } => i64::from(*axis == 0),
                Op::Binary {
                    op: BinaryOp::Rem,
                    lhs,
                    ..
                } => self.step(*lhs)?,
                _ => return None,
            };
            step = step.checked_add(own.checked_mul(factor)?)?;
        }
        Some(step)
    }

    /// By how much a scalar grows when another one does by one; `None` where that cannot be said.
    pub fn factor(&self, v: Val, of: Val) -> Option<i64> {
        let sum = self.sum(v, 0)?;
        let term = sum.terms.iter().find(|term| term.0 == of);
        Some(term.map_or(0, |term| term.1))
    }

    /// Whether two windows are certainly one, though each may have computed its place for itself.
    pub fn same_window(&self, a: &Access, b: &Access) -> bool {
        let equal = |a: Index, b: Index| a == b || self.difference(a, b) == Some(0);
        let bounds = |a: &Option<Index>, b: &Option<Index>| match (a, b) {
            (Some(a), Some(b)) => equal(*a, *b),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        let mut strides = a.strides.iter().zip(&b.strides);
        let mut valid = a.valid.iter().zip(&b.valid);
        a.mem == b.mem
            && a.shape == b.shape
            && equal(a.base, b.base)
            && strides.all(|(a, b)| equal(*a, *b))
            && valid.all(|(a, b)| bounds(a, b))
    }

    /// `b - a`, where it is the same number always.
    pub fn difference(&self, a: Index, b: Index) -> Option<i64> {
        let sum = |index: Index| match index {
            Index::Const(constant) => Some(Sum {
                constant,
                terms: Vec::new(),
            }),
            Index::Val(v) => self.sum(v, 0),
        };
        let mut difference = sum(b)?;
        difference.add(&sum(a)?, -1)?;
        (difference.terms.is_empty()).then_some(difference.constant)
    }

    /// Whether two windows of one memory certainly share no element: the same rows, and in each row one beside the other.
    pub fn apart_from(&self, a: &Access, b: &Access) -> bool {
        if a.shape != b.shape || a.strides != b.strides {
            return false;
        }
        let Some(between) = self.difference(a.base, b.base).and_then(i64::checked_abs) else {
            return false;
        };
        // A row is what dims with strides below the distance reach; all others must step over both windows.
        let mut row = 1i64;
        let mut steps: Vec<(i64, i64)> = Vec::new();
        for (stride, &extent) in a.strides.iter().zip(&a.shape) {
            match stride {
                _ if extent == 1 => {}
                Index::Const(s) if *s > 0 && *s < between => {
                    row = row.saturating_add(s.saturating_mul(extent - 1));
                }
                Index::Const(s) if *s > between => steps.push((*s, extent)),
                Index::Const(_) | Index::Val(_) => return false,
            }
        }
        steps.sort_unstable();
        let nested = |pair: &[(i64, i64)]| pair[0].0.saturating_mul(pair[0].1) <= pair[1].0;
        let pitch = steps.first().map_or(i64::MAX, |step| step.0);
        row <= between && between.saturating_add(row) <= pitch && steps.windows(2).all(nested)
    }
}
