//! Borders around a tensor: of one number, of its mirror image, of its own edge.

use super::view::not_negative;
use super::{Import::Compiled, Row};
use crate::call::{Call, refuse};
use oxyfuel_base::{Result, Scalar};
use oxyfuel_graph::{Border, Bordering, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.constant_pad_nd.default", Compiled(constant)),
    (
        "aten.reflection_pad1d.default",
        Compiled(|c| indexed(c, Bordering::Mirrored)),
    ),
    (
        "aten.reflection_pad2d.default",
        Compiled(|c| indexed(c, Bordering::Mirrored)),
    ),
    (
        "aten.reflection_pad3d.default",
        Compiled(|c| indexed(c, Bordering::Mirrored)),
    ),
    (
        "aten.replication_pad1d.default",
        Compiled(|c| indexed(c, Bordering::Clamped)),
    ),
    (
        "aten.replication_pad2d.default",
        Compiled(|c| indexed(c, Bordering::Clamped)),
    ),
    (
        "aten.replication_pad3d.default",
        Compiled(|c| indexed(c, Bordering::Clamped)),
    ),
];

/// The last dimension first, as PyTorch lists them.
fn borders(c: &Call<'_>, x: ValueId, name: &str) -> Result<Vec<Border>> {
    let list = c.exprs(1, name)?.unwrap_or_default();
    let rank = c.rank(x);
    if list.len() % 2 != 0 || list.len() / 2 > rank {
        return refuse("borders that do not fit the dimensions");
    }
    let pairs = list.chunks_exact(2).enumerate();
    Ok(pairs
        .map(|(i, pair)| Border {
            dim: rank - 1 - i,
            before: pair[0].clone(),
            after: pair[1].clone(),
        })
        .collect())
}

fn constant(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let value = c.number(2, "value")?.unwrap_or(Scalar::I(0));
    let borders = borders(c, x, "pad")?;
    for Border { before, after, .. } in &borders {
        // One that is known to be negative cuts.
        let known = before.as_const().is_some() && after.as_const().is_some();
        if !known && (!not_negative(c, before) || !not_negative(c, after)) {
            return refuse("a border that may be negative");
        }
    }
    Ok(vec![c.b.pad_constant(x, &borders, value)?])
}

/// A border whose elements are those of the tensor at other positions.
fn indexed(c: &mut Call<'_>, how: Bordering) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let borders = borders(c, x, "padding")?;
    Ok(vec![c.b.pad_indexed(x, &borders, how)?])
}
