//! Matrix products and convolutions: the host's library computes them until our kernels are faster, unless the import is told otherwise.
//!
//! A *thin* product reads every element of its larger operand for one result only (a matrix times a vector), or makes every result from one pair (a column times a row). Memory decides how
//! long it takes, a library has nothing to add, and as elementwise work and a sum it joins the kernels around it.

use super::{Import::Compiled, Row, choice};
use crate::call::{Call, refuse};
use crate::import::Products;
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{Op, ValueId};

/// The longest sum of a thin product; a longer one is cut between threads, which a library does well.
const MAX_THIN: i64 = 32;

pub(super) const ROWS: &[Row] = &[
    ("aten.mm.default", Compiled(mm)),
    ("aten.bmm.default", Compiled(bmm)),
    ("aten.addmm.default", Compiled(addmm)),
    ("aten._int_mm.default", Compiled(int_mm)),
    ("aten.convolution.default", Compiled(convolution)),
];

fn ours(c: &Call<'_>, a: ValueId, b: ValueId) -> Result<()> {
    match c.products {
        Products::Own => Ok(()),
        Products::Host => refuse("products run in the host's library"),
        Products::Faster => choice::product(c, a, b),
    }
}

fn mm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "mat2")?);
    ours(c, a, b)?;
    Ok(vec![c.b.mm(a, b)?])
}

fn bmm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "mat2")?);
    if c.products != Products::Own
        && let Some(product) = thin(c, a, b)?
    {
        return Ok(vec![product]);
    }
    ours(c, a, b)?;
    Ok(vec![c.b.bmm(a, b)?])
}

fn int_mm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "mat2")?);
    match c.products {
        Products::Own => {}
        Products::Host => return refuse("products run in the host's library"),
        Products::Faster => choice::int_product(c, a, b)?,
    }
    Ok(vec![c.b.int_mm(a, b)?])
}

/// A thin product of two batches, `[b, m, k] x [b, k, n]`, as elementwise work and a sum.
fn thin(c: &mut Call<'_>, a: ValueId, b: ValueId) -> Result<Option<ValueId>> {
    let (left, right) = (c.b.ty(a).clone(), c.b.ty(b).clone());
    let ([batch, m, k], [_, _, n]) = (&left.shape[..], &right.shape[..]) else {
        return Ok(None);
    };
    // Narrower floats would be rounded before they are summed.
    let exact = matches!(left.dtype, DType::F32 | DType::F64) && left.dtype == right.dtype;
    let vector = m.is_const(1) || n.is_const(1);
    let short = k.as_const().is_some_and(|k| k <= MAX_THIN);
    if !exact || !(k.is_const(1) || vector && short) {
        return Ok(None);
    }
    if k.is_const(1) {
        return c.b.mul(a, b).map(Some);
    }
    let shape = [batch.clone(), m.clone(), n.clone()];
    let (a, b) = unmerged(c, a, b).unwrap_or((a, b));
    // Along the sum both are rows: the vector repeats for every row of the matrix.
    let turned = c.b.transpose(b, -2, -1)?;
    let products = c.b.mul(a, turned)?;
    let sum = c.b.sum(products, &[-1], false)?;
    c.b.view(sum, &shape).map(Some)
}

/// The operands with their batches as they were before a reshape made one dimension of them: what is around the product runs along the same dimensions.
fn unmerged(c: &Call<'_>, a: ValueId, b: ValueId) -> Option<(ValueId, ValueId)> {
    let graph = c.b.graph();
    let before = |value: ValueId| {
        let mut nodes = graph.nodes.values().rev();
        let node = nodes.find(|node| node.outputs.contains(&value))?;
        matches!(node.op, Op::View { .. }).then(|| node.inputs[0])
    };
    let parts = |value: ValueId| -> Option<(&[Expr], &[Expr])> {
        let shape = &graph.ty(value).shape;
        shape.split_at_checked(shape.len().checked_sub(2)?)
    };
    let (x, y) = (before(a)?, before(b)?);
    let ((batches, matrix), (others, vector)) = (parts(x)?, parts(y)?);
    let alike = matrix == &graph.ty(a).shape[1..] && vector == &graph.ty(b).shape[1..];
    (alike && batches == others).then_some((x, y))
}

fn addmm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (bias, a, b) = (
        c.tensor(0, "self")?,
        c.tensor(1, "mat1")?,
        c.tensor(2, "mat2")?,
    );
    ours(c, a, b)?;
    let beta = c.number(usize::MAX, "beta")?.unwrap_or(Scalar::I(1));
    let alpha = c.number(usize::MAX, "alpha")?.unwrap_or(Scalar::I(1));
    Ok(vec![c.b.addmm(bias, a, b, beta, alpha)?])
}

fn convolution(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, weight) = (c.tensor(0, "input")?, c.tensor(1, "weight")?);
    match c.products {
        Products::Own => {}
        Products::Host => return refuse("convolutions run in the host's library"),
        Products::Faster => choice::convolution(c, x)?,
    }
    let transposed = c.flag(6, "transposed", false)?;
    if transposed && !matches!(c.products, Products::Own) {
        return refuse("transposed convolutions run in the host's library");
    }
    let numbers = |position: usize, name: &str| -> Result<Vec<i64>> {
        let all = c.exprs(position, name)?.unwrap_or_default();
        let known = all.iter().map(Expr::as_const).collect::<Option<Vec<_>>>();
        known.map_or_else(|| refuse(format!("`{name}` is no number")), Ok)
    };
    let (stride, padding) = (numbers(3, "stride")?, numbers(4, "padding")?);
    let dilation = numbers(5, "dilation")?;
    let how = Convolution {
        stride,
        padding,
        dilation,
        groups: c.int(8, "groups", 1)?,
    };
    let bias = c.optional_tensor(2, "bias")?;
    Ok(vec![match transposed {
        true => {
            let more = numbers(7, "output_padding")?;
            c.b.conv_transpose(x, weight, bias, &how, &more)?
        }
        false => c.b.convolution(x, weight, bias, &how)?,
    }])
}
