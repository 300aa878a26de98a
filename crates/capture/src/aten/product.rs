//! Matrix products: the host's library computes them until our kernels are faster, unless the import is told otherwise.

use super::{Import::Compiled, Row};
use crate::call::{Call, refuse};
use crate::import::Products;
use oxyfuel_base::{Result, Scalar};
use oxyfuel_graph::ValueId;

pub(super) const ROWS: &[Row] = &[
    ("aten.mm.default", Compiled(mm)),
    ("aten.bmm.default", Compiled(bmm)),
    ("aten.addmm.default", Compiled(addmm)),
];

fn ours(c: &Call<'_>) -> Result<()> {
    match c.products {
        Products::Own => Ok(()),
        Products::Host => refuse("products run in the host's library"),
    }
}

fn mm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    ours(c)?;
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "mat2")?);
    Ok(vec![c.b.mm(a, b)?])
}

fn bmm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    ours(c)?;
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "mat2")?);
    Ok(vec![c.b.bmm(a, b)?])
}

fn addmm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    ours(c)?;
    let (bias, a, b) = (
        c.tensor(0, "self")?,
        c.tensor(1, "mat1")?,
        c.tensor(2, "mat2")?,
    );
    let beta = c.number(usize::MAX, "beta")?.unwrap_or(Scalar::I(1));
    let alpha = c.number(usize::MAX, "alpha")?.unwrap_or(Scalar::I(1));
    Ok(vec![c.b.addmm(bias, a, b, beta, alpha)?])
}
