//! Elements in order, places among elements in order, and distances.

use super::pointwise::wide;
use super::view::dim_of;
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Binary, Compare, Device, HostTensor, Op, Reduce, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.sort.default", Compiled(|c| sort(c, 1))),
    ("aten.sort.stable", Compiled(|c| sort(c, usize::MAX))),
    ("aten.topk.default", Compiled(topk)),
    ("aten.kthvalue.default", Compiled(kthvalue)),
    ("aten.median.default", Compiled(|c| median_of_all(c, false))),
    ("aten.median.dim", Compiled(|c| median(c, false))),
    (
        "aten.nanmedian.default",
        Compiled(|c| median_of_all(c, true)),
    ),
    ("aten.nanmedian.dim", Compiled(|c| median(c, true))),
    ("aten.searchsorted.Tensor", Compiled(|c| search(c, 0, 1))),
    ("aten.searchsorted.Scalar", Compiled(|c| search(c, 0, 1))),
    ("aten.bucketize.Tensor", Compiled(|c| search(c, 1, 0))),
    ("aten.bucketize.Scalar", Compiled(|c| search(c, 1, 0))),
    ("aten._cdist_forward.default", Compiled(distances)),
    ("aten._pdist_forward.default", Compiled(distances_of_pairs)),
    ("aten.dist.default", Compiled(distance)),
];

/// Elements in order and where each stood, `dim` and `descending` from a position on. Equal elements keep their order, which is one of those that an unstable sort may give.
fn sort(c: &mut Call<'_>, at: usize) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = c.int(at, "dim", -1)?;
    let descending = c.flag(at.saturating_add(1), "descending", false)?;
    in_order(c, x, dim, descending, None)
}

/// The first places of a sort. `sorted=False` asks for them in any order, so for this one too.
fn topk(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let Some(k) = c.expr(1, "k")? else {
        return refuse("how many is left out");
    };
    let dim = c.int(2, "dim", -1)?;
    let largest = c.flag(3, "largest", true)?;
    in_order(c, x, dim, largest, Some(k))
}

/// Which places of a row in order are wanted.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    All,
    First(&'a Expr),
    /// One in the middle.
    One,
}

/// Elements of a row up to which a CPU sorts it for a few of its places, and up to which a GPU sorts all of it, however many rows there are (decision 101). A length that only the call knows counts as the largest.
const FEW_OF_ON_CPU: i64 = 32;
const WHOLE_ON_GPU: i64 = 8192;
/// Elements of all rows together, of four bytes at most, up to which a GPU sorts longer ones: they stay in its second-level cache from digit to digit, and more are sorted sooner by the host (decision 110).
const ALL_ON_GPU: i64 = 1 << 20;
/// The most places that a GPU chooses of a longer row, and of how many elements each must be one (decision 52).
const CHOSEN_ON_GPU: i64 = 4096;
const ONE_OF: i64 = 4;

/// Whether a row is sorted by kernels of ours, rather than by the host's library.
fn sorted_here(c: &Call<'_>, x: ValueId, dim: i64, wanted: Wanted<'_>) -> Result<()> {
    let shape = c.shape(x);
    let Some(length) = usize::try_from(dim).ok().and_then(|d| shape.get(d)) else {
        return Ok(());
    };
    let gpu = matches!(c.b.ty(x).device, Device::Cuda(_));
    let n = length.as_const().unwrap_or(i64::MAX);
    let known = |all: i64, extent: &Expr| Some(all.saturating_mul(extent.as_const()?));
    let all = shape.iter().try_fold(1, known).unwrap_or(i64::MAX);
    let narrow = c.b.ty(x).dtype.size() <= 4;
    match wanted {
        Wanted::All if !gpu || (all <= ALL_ON_GPU && narrow) => Ok(()),
        _ if n <= if gpu { WHOLE_ON_GPU } else { FEW_OF_ON_CPU } => Ok(()),
        Wanted::First(k)
            if gpu
                && length.as_const().is_some()
                && k.as_const()
                    .is_some_and(|k| k <= CHOSEN_ON_GPU.min(n / ONE_OF)) =>
        {
            Ok(())
        }
        Wanted::All => refuse("the host sorts long rows in parts, side by side"),
        Wanted::First(_) | Wanted::One => {
            refuse("the host chooses from long rows without sorting them")
        }
    }
}

/// The elements along a dimension in order, or so many of the first, and where each stood.
fn in_order(
    c: &mut Call<'_>,
    x: ValueId,
    dim: i64,
    descending: bool,
    first: Option<Expr>,
) -> Result<Vec<ValueId>> {
    if c.rank(x) == 0 {
        let device = c.device();
        let place = c.b.full(0, vec![], DType::I64, device)?;
        return Ok(vec![x, place]);
    }
    let dim = i64::try_from(dim_of(c, x, dim)?).unwrap_or(0);
    let wanted = first.as_ref().map_or(Wanted::All, Wanted::First);
    sorted_here(c, x, dim, wanted)?;
    let mut order = c.b.argsort(x, dim, descending)?;
    if let Some(k) = first {
        order = c.b.slice(order, dim, 0, k, 1)?;
    }
    Ok(vec![c.b.gather(x, dim, order)?, order])
}

/// The elements at positions along a dimension, which has size 1 there and stays or goes, and the positions.
fn at_positions(
    c: &mut Call<'_>,
    x: ValueId,
    dim: i64,
    positions: ValueId,
    keepdim: bool,
) -> Result<Vec<ValueId>> {
    if c.rank(x) == 0 {
        return Ok(vec![x, positions]);
    }
    let y = c.b.gather(x, dim, positions)?;
    Ok(match keepdim {
        true => vec![y, positions],
        false => vec![c.b.squeeze(y, dim)?, c.b.squeeze(positions, dim)?],
    })
}

/// A dimension of a tensor, 0 of one without dimensions.
fn dim_or_none(c: &Call<'_>, x: ValueId, dim: i64) -> Result<i64> {
    match c.rank(x) {
        0 => Ok(0),
        _ => Ok(i64::try_from(dim_of(c, x, dim)?).unwrap_or(0)),
    }
}

fn kthvalue(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let Some(k) = c.expr(1, "k")? else {
        return refuse("which one is left out");
    };
    let dim = c.int(2, "dim", -1)?;
    let keepdim = c.flag(3, "keepdim", false)?;
    let dim = dim_or_none(c, x, dim)?;
    sorted_here(c, x, dim, Wanted::One)?;
    let positions = c.b.position_at(x, dim, &(k - 1))?;
    at_positions(c, x, dim, positions, keepdim)
}

fn median_along(c: &mut Call<'_>, x: ValueId, dim: i64, past_nan: bool) -> Result<ValueId> {
    let at = usize::try_from(dim).unwrap_or(0);
    if c.shape(x).get(at).is_some_and(|n| n.is_const(0)) {
        return refuse("of no elements");
    }
    sorted_here(c, x, dim, Wanted::One)?;
    match past_nan && c.dtype(x).is_float() {
        true => c.b.nanmedian_position(x, dim),
        false => c.b.median_position(x, dim),
    }
}

fn median(c: &mut Call<'_>, past_nan: bool) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = c.int(1, "dim", -1)?;
    let keepdim = c.flag(2, "keepdim", false)?;
    let dim = dim_or_none(c, x, dim)?;
    let positions = median_along(c, x, dim, past_nan)?;
    at_positions(c, x, dim, positions, keepdim)
}

/// Of the tensor as one row.
fn median_of_all(c: &mut Call<'_>, past_nan: bool) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let all = c.shape(x).into_iter().product();
    let row = c.b.view(x, &[all])?;
    let positions = median_along(c, row, 0, past_nan)?;
    let found = at_positions(c, row, 0, positions, false)?;
    Ok(found[..1].to_vec())
}

/// Rows from which on eager multiplies instead.
const MANY: i64 = 25;

/// The p-norm of the difference of every row of one and every row of the other.
fn distances(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "x1")?, c.tensor(1, "x2")?);
    let p = c.float(2, "p", 2.0)?;
    let mode = c.int(3, "compute_mode", 0)?;
    let out = c.out(0)?;
    let (rank, columns) = (out.shape.len(), c.shape(a).last().cloned());
    if rank < 2 || c.rank(a) < 2 || c.rank(b) < 2 || p.is_nan() || p < 0.0 {
        return refuse("no rows");
    }
    let rows = out.shape[rank - 2..].iter();
    let many = rows.map(Expr::as_const).any(|n| n.is_none_or(|n| n > MANY));
    if p == 2.0 && (mode == 1 || (mode == 0 && many)) {
        return refuse("distances by a product run in the host's library");
    }
    if columns.is_none_or(|n| n.as_const().is_none_or(|n| n < 1)) {
        return refuse("rows that may be empty");
    }
    let dtype = wide(out.dtype);
    let (a, b) = (c.b.unsqueeze(a, -2)?, c.b.unsqueeze(b, -3)?);
    let (a, b) = (c.b.cast(a, dtype)?, c.b.cast(b, dtype)?);
    let d = c.b.emit(Op::Binary(Binary::Sub), &[a, b])?;
    let y = norm(c, d, p, vec![rank])?;
    Ok(vec![c.b.cast(y, out.dtype)?])
}

/// Pairs up to which their rows are numbers of the program.
const MOST_PAIRS: usize = 1 << 16;

/// The p-norm of the difference of every row and every later one.
fn distances_of_pairs(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let p = c.float(1, "p", 2.0)?;
    let out = c.out(0)?;
    let known: Vec<Option<i64>> = c.shape(x).iter().map(Expr::as_const).collect();
    let &[Some(rows), Some(columns)] = &known[..] else {
        return refuse("rows whose number is not known");
    };
    let pairs: Vec<(i64, i64)> = (0..rows)
        .flat_map(|i| (i + 1..rows).map(move |j| (i, j)))
        .take(MOST_PAIRS + 1)
        .collect();
    if pairs.is_empty() || columns == 0 {
        return Ok(vec![c.b.full(0, out.shape, out.dtype, out.device)?]);
    }
    if pairs.len() > MOST_PAIRS || p.is_nan() || p < 0.0 {
        return refuse("very many pairs of rows");
    }
    let dtype = wide(out.dtype);
    let x = c.b.cast(x, dtype)?;
    let mut picked = |which: fn(&(i64, i64)) -> i64| {
        let index: Vec<i64> = pairs.iter().map(which).collect();
        let count = i64::try_from(index.len()).unwrap_or(0);
        let index = HostTensor::from_i64(DType::I64, &[count], &index)?;
        let index = c.b.constant("pairs", index, out.device)?;
        c.b.index_select(x, 0, index)
    };
    let (a, b) = (picked(|pair| pair.0)?, picked(|pair| pair.1)?);
    let d = c.b.emit(Op::Binary(Binary::Sub), &[a, b])?;
    let y = norm(c, d, p, vec![1])?;
    Ok(vec![c.b.cast(y, out.dtype)?])
}

/// The p-norm over dimensions, of which none is empty.
fn norm(c: &mut Call<'_>, d: ValueId, p: f64, dims: Vec<usize>) -> Result<ValueId> {
    let d = c.b.emit(Op::Unary(Unary::Abs), &[d])?;
    let dtype = c.dtype(d);
    let number = |c: &mut Call<'_>, v: f64| c.value_of(&Factor::Number(Scalar::F(v)), dtype);
    let keepdim = false;
    let reduce = |c: &mut Call<'_>, op, x| {
        let dims = dims.clone();
        c.b.emit(Op::Reduce { op, dims, keepdim }, &[x])
    };
    Ok(if p == 0.0 {
        let zero = number(c, 0.0)?;
        let other = c.b.emit(Op::Compare(Compare::Ne), &[d, zero])?;
        let other = c.b.cast(other, dtype)?;
        reduce(c, Reduce::Sum, other)?
    } else if p == 1.0 {
        reduce(c, Reduce::Sum, d)?
    } else if p == 2.0 {
        let squares = c.b.emit(Op::Binary(Binary::Mul), &[d, d])?;
        let sum = reduce(c, Reduce::Sum, squares)?;
        c.b.emit(Op::Unary(Unary::Sqrt), &[sum])?
    } else if p.is_infinite() {
        let extreme = if p > 0.0 { Reduce::Amax } else { Reduce::Amin };
        reduce(c, extreme, d)?
    } else {
        let (power, root) = (number(c, p)?, number(c, 1.0 / p)?);
        let powers = c.b.emit(Op::Binary(Binary::Pow), &[d, power])?;
        let sum = reduce(c, Reduce::Sum, powers)?;
        c.b.emit(Op::Binary(Binary::Pow), &[sum, root])?
    })
}

/// The p-norm of a difference, which is rounded first, as eager's.
fn distance(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "other")?);
    let p = c.float(2, "p", 2.0)?;
    let out = c.out(0)?.dtype;
    if !out.is_float() || p.is_nan() {
        return refuse(format!("on {out}"));
    }
    let (a, b) = (c.b.cast(a, out)?, c.b.cast(b, out)?);
    let d = c.b.emit(Op::Binary(Binary::Sub), &[a, b])?;
    let shape = c.shape(d);
    if shape.iter().any(|n| n.as_const().is_none_or(|n| n < 1)) {
        return refuse("a tensor that may be empty");
    }
    let d = c.b.cast(d, wide(out))?;
    let y = norm(c, d, p, (0..shape.len()).collect())?;
    Ok(vec![c.b.cast(y, out)?])
}

/// Places of values among rows in order, at these positions among the arguments.
fn search(c: &mut Call<'_>, rows: usize, values: usize) -> Result<Vec<ValueId>> {
    let row = c.tensor(rows, "sorted_sequence")?;
    let values = c.factor(values, "self")?;
    if matches!(values, Factor::Symbolic(_)) {
        return refuse("a value that only the sizes say");
    }
    let right = match c.text(usize::MAX, "side")? {
        Some(side) => side == "right",
        None => c.flag(usize::MAX, "right", false)?,
    };
    let sorter = c.optional_tensor(usize::MAX, "sorter")?;
    let out = c.out(0)?;
    if out.shape.iter().any(|n| n.is_const(0)) {
        return Ok(vec![c.b.full(0, out.shape, out.dtype, out.device)?]);
    }
    let y = c.b.searchsorted(row, values.operand(), right, sorter)?;
    Ok(vec![c.b.cast(y, out.dtype)?])
}
