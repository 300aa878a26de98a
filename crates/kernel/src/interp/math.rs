//! Elementwise ops and combinations on [`Data`]: the arithmetic that every target must agree with.

use std::cmp::Ordering;

use oxyfuel_base::DType;

use super::data::{Data, round, wrap};
use crate::ir::{ArgOp, BinaryOp, CompareOp, ReduceOp, UnaryOp};

pub(super) fn unary(op: UnaryOp, dtype: DType, x: &Data) -> Data {
    match x {
        Data::F(x) if op == UnaryOp::IsNan => {
            Data::I(x.iter().map(|x| i64::from(x.is_nan())).collect())
        }
        Data::F(x) => {
            let f = float_unary(op);
            Data::F(x.iter().map(|&x| round(dtype, f(x))).collect())
        }
        Data::I(x) => Data::I(
            x.iter()
                .map(|&x| wrap(dtype, int_unary(op, dtype, x)))
                .collect(),
        ),
    }
}

fn float_unary(op: UnaryOp) -> fn(f64) -> f64 {
    match op {
        UnaryOp::Neg => |x| -x,
        UnaryOp::Abs => f64::abs,
        UnaryOp::Sqrt => f64::sqrt,
        UnaryOp::Rsqrt => |x| 1.0 / x.sqrt(),
        UnaryOp::Recip | UnaryOp::NearRecip => |x| 1.0 / x,
        UnaryOp::Floor => f64::floor,
        UnaryOp::Ceil => f64::ceil,
        UnaryOp::Trunc => f64::trunc,
        UnaryOp::Round => f64::round_ties_even,
        UnaryOp::Exp => f64::exp,
        UnaryOp::Exp2 | UnaryOp::NearExp2 => f64::exp2,
        UnaryOp::Expm1 => f64::exp_m1,
        UnaryOp::Log => f64::ln,
        UnaryOp::Log2 => f64::log2,
        UnaryOp::Log1p => f64::ln_1p,
        UnaryOp::Sin => f64::sin,
        UnaryOp::Cos => f64::cos,
        UnaryOp::Tanh => f64::tanh,
        UnaryOp::Atan => f64::atan,
        UnaryOp::Erf => libm::erf,
        UnaryOp::Erfc => libm::erfc,
        UnaryOp::Sigmoid => |x| 1.0 / (1.0 + (-x).exp()),
        // Neither reaches floats: `not` takes integers, `isnan` has a result of its own.
        UnaryOp::Not | UnaryOp::IsNan => |x| x,
    }
}

fn int_unary(op: UnaryOp, dtype: DType, x: i64) -> i64 {
    match op {
        UnaryOp::Neg => x.wrapping_neg(),
        UnaryOp::Abs if dtype.is_signed() => x.wrapping_abs(),
        UnaryOp::Not if dtype.is_bool() => 1 - x,
        UnaryOp::Not => !x,
        UnaryOp::Abs
        | UnaryOp::Sqrt
        | UnaryOp::Rsqrt
        | UnaryOp::Recip
        | UnaryOp::NearRecip
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Trunc
        | UnaryOp::Round
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
        | UnaryOp::Sigmoid
        | UnaryOp::IsNan => x,
    }
}

pub(super) fn binary(op: BinaryOp, dtype: DType, a: &Data, b: &Data) -> Data {
    match (a, b) {
        (Data::F(a), Data::F(b)) => {
            let f = float_binary(op);
            Data::F(
                a.iter()
                    .zip(b)
                    .map(|(&a, &b)| round(dtype, f(a, b)))
                    .collect(),
            )
        }
        _ => {
            let f = int_binary(op, dtype);
            Data::I(
                a.ints()
                    .iter()
                    .zip(b.ints())
                    .map(|(&a, &b)| wrap(dtype, f(a, b)))
                    .collect(),
            )
        }
    }
}

fn float_binary(op: BinaryOp) -> fn(f64, f64) -> f64 {
    match op {
        BinaryOp::Add => |a, b| a + b,
        BinaryOp::Sub => |a, b| a - b,
        BinaryOp::Mul => |a, b| a * b,
        BinaryOp::Div => |a, b| a / b,
        BinaryOp::Rem => |a, b| a % b,
        BinaryOp::Min => |a, b| extreme(a, b, Ordering::Less),
        BinaryOp::Max => |a, b| extreme(a, b, Ordering::Greater),
        BinaryOp::Pow => f64::powf,
        // Integer ops; the verifier keeps floats away.
        BinaryOp::FloorDiv
        | BinaryOp::Mod
        | BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::Shl
        | BinaryOp::Shr => |a, _| a,
    }
}

/// NaN where either is; -0 below +0.
fn extreme(a: f64, b: f64, wanted: Ordering) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if b.total_cmp(&a) == wanted {
        b
    } else {
        a
    }
}

fn int_binary(op: BinaryOp, dtype: DType) -> Box<dyn Fn(i64, i64) -> i64> {
    let signed = dtype != DType::U64;
    let bits = i64::from(dtype.bits());
    match op {
        BinaryOp::Add => Box::new(i64::wrapping_add),
        BinaryOp::Sub => Box::new(i64::wrapping_sub),
        BinaryOp::Mul => Box::new(i64::wrapping_mul),
        BinaryOp::Div | BinaryOp::FloorDiv if !signed => {
            Box::new(|a, b| (a as u64).checked_div(b as u64).unwrap_or(0) as i64)
        }
        BinaryOp::Rem | BinaryOp::Mod if !signed => {
            Box::new(|a, b| (a as u64).checked_rem(b as u64).unwrap_or(0) as i64)
        }
        BinaryOp::Div => Box::new(|a, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
        BinaryOp::Rem => Box::new(|a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }),
        BinaryOp::FloorDiv => Box::new(|a, b| {
            if b == 0 {
                return 0;
            }
            let rem = a.wrapping_rem(b);
            a.wrapping_div(b) - i64::from(rem != 0 && (rem < 0) != (b < 0))
        }),
        BinaryOp::Mod => Box::new(|a, b| {
            if b == 0 {
                return 0;
            }
            let rem = a.wrapping_rem(b);
            if rem != 0 && (rem < 0) != (b < 0) {
                rem + b
            } else {
                rem
            }
        }),
        BinaryOp::Min => Box::new(move |a, b| if int_cmp(signed, a, b).is_le() { a } else { b }),
        BinaryOp::Max => Box::new(move |a, b| if int_cmp(signed, a, b).is_ge() { a } else { b }),
        BinaryOp::And => Box::new(|a, b| a & b),
        BinaryOp::Or => Box::new(|a, b| a | b),
        BinaryOp::Xor => Box::new(|a, b| a ^ b),
        // The shift is a number of its dtype: a negative one is a large unsigned one.
        BinaryOp::Shl => Box::new(move |a, b| if (0..bits).contains(&b) { a << b } else { 0 }),
        BinaryOp::Shr => Box::new(
            move |a, b| match ((0..bits).contains(&b), dtype.is_signed()) {
                (true, true) => a >> b,
                (true, false) => ((a as u64) >> b) as i64,
                (false, true) => a >> 63,
                (false, false) => 0,
            },
        ),
        BinaryOp::Pow => Box::new(|a, _| a),
    }
}

fn int_cmp(signed: bool, a: i64, b: i64) -> Ordering {
    if signed {
        a.cmp(&b)
    } else {
        (a as u64).cmp(&(b as u64))
    }
}

pub(super) fn compare(op: CompareOp, dtype: DType, a: &Data, b: &Data) -> Data {
    let holds = |order: Option<Ordering>| {
        i64::from(match op {
            CompareOp::Eq => order == Some(Ordering::Equal),
            CompareOp::Ne => order != Some(Ordering::Equal),
            CompareOp::Lt => order == Some(Ordering::Less),
            CompareOp::Le => order.is_some_and(Ordering::is_le),
            CompareOp::Gt => order == Some(Ordering::Greater),
            CompareOp::Ge => order.is_some_and(Ordering::is_ge),
        })
    };
    Data::I(match (a, b) {
        (Data::F(a), Data::F(b)) => a
            .iter()
            .zip(b)
            .map(|(a, b)| holds(a.partial_cmp(b)))
            .collect(),
        _ => a
            .ints()
            .iter()
            .zip(b.ints())
            .map(|(&a, &b)| holds(Some(int_cmp(dtype != DType::U64, a, b))))
            .collect(),
    })
}

pub(super) fn fma(dtype: DType, a: &Data, b: &Data, c: &Data) -> Data {
    match (a, b, c) {
        (Data::F(a), Data::F(b), Data::F(c)) => {
            let terms = a.iter().zip(b).zip(c);
            if dtype == DType::F64 {
                Data::F(terms.map(|((a, b), c)| a.mul_add(*b, *c)).collect())
            } else {
                // f64 holds the product exactly but not the sum, so that rounding the sum twice would show: f32's own fma rounds once.
                Data::F(
                    terms
                        .map(|((a, b), c)| {
                            round(dtype, f64::from((*a as f32).mul_add(*b as f32, *c as f32)))
                        })
                        .collect(),
                )
            }
        }
        _ => Data::I(
            a.ints()
                .iter()
                .zip(b.ints())
                .zip(c.ints())
                .map(|((a, b), c)| wrap(dtype, a.wrapping_mul(*b).wrapping_add(*c)))
                .collect(),
        ),
    }
}

pub(super) fn select(cond: &Data, yes: &Data, no: &Data) -> Data {
    let cond = cond.ints();
    match (yes, no) {
        (Data::F(y), Data::F(n)) => Data::F(
            cond.iter()
                .zip(y.iter().zip(n))
                .map(|(&c, (&y, &n))| if c != 0 { y } else { n })
                .collect(),
        ),
        _ => Data::I(
            cond.iter()
                .zip(yes.ints().iter().zip(no.ints()))
                .map(|(&c, (&y, &n))| if c != 0 { y } else { n })
                .collect(),
        ),
    }
}

/// Two elements combined without rounding, so that a whole reduction rounds once.
pub(super) fn combine_float(op: ReduceOp, a: f64, b: f64) -> f64 {
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        ReduceOp::Min => extreme(a, b, Ordering::Less),
        ReduceOp::Max => extreme(a, b, Ordering::Greater),
        ReduceOp::Any | ReduceOp::All => a,
    }
}

pub(super) fn combine_int(op: ReduceOp, dtype: DType, a: i64, b: i64) -> i64 {
    let signed = dtype != DType::U64;
    match op {
        ReduceOp::Sum => wrap(dtype, a.wrapping_add(b)),
        ReduceOp::Prod => wrap(dtype, a.wrapping_mul(b)),
        ReduceOp::Min => {
            if int_cmp(signed, a, b).is_le() {
                a
            } else {
                b
            }
        }
        ReduceOp::Max => {
            if int_cmp(signed, a, b).is_ge() {
                a
            } else {
                b
            }
        }
        ReduceOp::Any => a | b,
        ReduceOp::All => a & b,
    }
}

/// How a shape splits around an axis: elements before, along and after it.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    outer: usize,
    along: usize,
    inner: usize,
}

impl Lines {
    pub fn new(shape: &[i64], axis: usize) -> Self {
        let product = |dims: &[i64]| {
            dims.iter()
                .map(|&d| usize::try_from(d).unwrap_or(0))
                .product()
        };
        Self {
            outer: product(&shape[..axis]),
            along: product(&shape[axis..=axis]),
            inner: product(&shape[axis + 1..]),
        }
    }

    /// For each line, its number and the positions on it.
    fn each(self) -> impl Iterator<Item = (usize, Vec<usize>)> {
        (0..self.outer * self.inner).map(move |line| {
            let first = line / self.inner * self.along * self.inner + line % self.inner;
            (
                line,
                (0..self.along).map(|i| first + i * self.inner).collect(),
            )
        })
    }
}

pub(super) fn reduce(op: ReduceOp, dtype: DType, x: &Data, lines: Lines) -> Data {
    let (outer, along, inner) = (lines.outer, lines.along, lines.inner);
    let first = |i: usize| i / inner * along * inner + i % inner;
    match x {
        Data::F(x) => Data::F(
            (0..outer * inner)
                .map(|i| {
                    (1..along).fold(x[first(i)], |acc, j| {
                        combine_float(op, acc, x[first(i) + j * inner])
                    })
                })
                .collect(),
        ),
        Data::I(x) => Data::I(
            (0..outer * inner)
                .map(|i| {
                    (1..along).fold(x[first(i)], |acc, j| {
                        combine_int(op, dtype, acc, x[first(i) + j * inner])
                    })
                })
                .collect(),
        ),
    }
}

/// Rounds what [`reduce`] left exact.
pub(super) fn rounded(dtype: DType, x: Data) -> Data {
    match x {
        Data::F(x) => Data::F(x.into_iter().map(|x| round(dtype, x)).collect()),
        Data::I(x) => Data::I(x),
    }
}

pub(super) fn scan(op: ReduceOp, dtype: DType, x: &Data, lines: Lines, reverse: bool) -> Data {
    let mut out = x.clone();
    for (_, mut positions) in lines.each() {
        if reverse {
            positions.reverse();
        }
        match &mut out {
            Data::F(out) => {
                let mut acc: Option<f64> = None;
                for p in positions {
                    let next = acc.map_or(out[p], |acc| combine_float(op, acc, out[p]));
                    acc = Some(next);
                    out[p] = round(dtype, next);
                }
            }
            Data::I(out) => {
                let mut acc: Option<i64> = None;
                for p in positions {
                    let next = acc.map_or(out[p], |acc| combine_int(op, dtype, acc, out[p]));
                    acc = Some(next);
                    out[p] = next;
                }
            }
        }
    }
    out
}

/// The order of sorting: NaN above everything, zeros of both signs equal.
fn order(x: &Data, dtype: DType, a: usize, b: usize) -> Ordering {
    match x {
        Data::F(x) => x[a]
            .partial_cmp(&x[b])
            .unwrap_or_else(|| x[a].is_nan().cmp(&x[b].is_nan())),
        Data::I(x) => int_cmp(dtype != DType::U64, x[a], x[b]),
    }
}

/// Sorted data, and where each element was along the axis.
pub(super) fn sort(x: &Data, dtype: DType, lines: Lines, descending: bool) -> (Data, Data) {
    let mut from = vec![0usize; x.len()];
    let mut position = vec![0i64; x.len()];
    for (_, positions) in lines.each() {
        let mut along: Vec<usize> = (0..positions.len()).collect();
        along.sort_by(|&a, &b| {
            let order = order(x, dtype, positions[a], positions[b]);
            if descending { order.reverse() } else { order }
        });
        for (to, &which) in positions.iter().zip(&along) {
            from[*to] = positions[which];
            position[*to] = i64::try_from(which).unwrap_or(i64::MAX);
        }
    }
    (x.pick(from.into_iter()), Data::I(position))
}

pub(super) fn arg_reduce(op: ArgOp, x: &Data, dtype: DType, lines: Lines) -> Data {
    let is_nan = |p: usize| matches!(x, Data::F(x) if x[p].is_nan());
    let best = lines.each().map(|(_, positions)| {
        let mut best = 0;
        for i in 1..positions.len() {
            let (old, new) = (positions[best], positions[i]);
            let order = order(x, dtype, new, old);
            let wins = match op {
                ArgOp::Max => order.is_gt(),
                ArgOp::Min => is_nan(new) || order.is_lt(),
            };
            if wins && !is_nan(old) {
                best = i;
            }
        }
        i64::try_from(best).unwrap_or(i64::MAX)
    });
    Data::I(best.collect())
}

/// `acc + a @ b` for row-major `[m, k]` and `[k, n]`, rounded once.
pub(super) fn matmul(dtype: DType, a: &Data, b: &Data, acc: &Data, [m, n, k]: [usize; 3]) -> Data {
    match (a, b, acc) {
        (Data::F(a), Data::F(b), Data::F(acc)) => {
            let mut out = acc.clone();
            for i in 0..m {
                let row = &mut out[i * n..][..n];
                for l in 0..k {
                    let x = a[i * k + l];
                    for (o, y) in row.iter_mut().zip(&b[l * n..][..n]) {
                        *o += x * y;
                    }
                }
            }
            rounded(dtype, Data::F(out))
        }
        _ => {
            let (a, b) = (a.ints(), b.ints());
            let mut out = acc.ints().to_vec();
            for i in 0..m {
                for l in 0..k {
                    for j in 0..n {
                        out[i * n + j] = wrap(
                            dtype,
                            out[i * n + j].wrapping_add(a[i * k + l].wrapping_mul(b[l * n + j])),
                        );
                    }
                }
            }
            Data::I(out)
        }
    }
}
