//! Attention, and its gradients: ops of ours where products are ours, else the host's fused kernels.

use super::{Import::Compiled, Row, choice};
use crate::call::{Call, refuse};
use crate::import::Products;
use oxyfuel_base::Result;
use oxyfuel_graph::ValueId;

pub(super) const ROWS: &[Row] = &[
    (
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        Compiled(flash),
    ),
    (
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        Compiled(flash_backward),
    ),
    (
        "aten.scaled_dot_product_attention.default",
        Compiled(attention),
    ),
];

/// Beside every signature's end.
const KEYWORD: usize = usize::MAX;

/// What a call asks for beside its tensors.
struct Asked {
    operands: [ValueId; 3],
    mask: Option<ValueId>,
    causal: bool,
    scale: f64,
}

/// Reads a call whose queries stand at `first`; `mask`, `dropout` and `causal` say where the others do.
fn asked(c: &mut Call<'_>, first: usize, [mask, dropout, causal]: [usize; 3]) -> Result<Asked> {
    let operands = [
        c.tensor(first, "query")?,
        c.tensor(first + 1, "key")?,
        c.tensor(first + 2, "value")?,
    ];
    match c.products {
        Products::Own => {}
        Products::Host => return refuse("fused attention runs in the host's library"),
        // Gradients stand before the queries.
        Products::Faster if first > 0 => choice::attention_backward()?,
        Products::Faster => choice::attention(c, operands)?,
    }
    if c.float(dropout, "dropout_p", 0.0)? != 0.0 {
        return refuse("dropout inside of attention");
    }
    let dtype = c.dtype(operands[0]);
    if operands
        .iter()
        .any(|&x| c.rank(x) != 4 || c.dtype(x) != dtype)
        || !dtype.is_float()
    {
        return refuse("attention of other than three tensors of 4 dims and one float type");
    }
    let [q, k, v] = operands.map(|x| c.shape(x));
    let shared = match (q[1].as_const(), k[1].as_const()) {
        (Some(heads), Some(groups)) => groups > 0 && heads % groups == 0,
        _ => q[1] == k[1],
    };
    if q[0] != k[0] || k[..3] != v[..3] || q[3] != k[3] || !shared {
        return refuse("attention of shapes that are broadcast");
    }
    let mask = match c.optional_tensor(mask, "attn_mask")? {
        None => None,
        Some(mask) if c.dtype(mask).is_bool() || c.dtype(mask) == dtype => {
            Some(c.b.mask_of_four(mask, dtype)?)
        }
        Some(mask) => return refuse(format!("a mask of {} for {dtype}", c.dtype(mask))),
    };
    let causal = c.flag(causal, "is_causal", false)?;
    let usual = q[3].as_const().map(|depth| 1.0 / (depth as f64).sqrt());
    let given = c.number(KEYWORD, "scale")?.map(|scale| scale.as_f64());
    let Some(scale) = given.or(usual).filter(|scale| scale.is_finite()) else {
        return refuse("a scale that only the sizes of a call say");
    };
    Ok(Asked {
        operands,
        mask,
        causal,
        scale,
    })
}

/// Result and logarithms, at first; others read them as the host would have given them.
fn flash(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let a = asked(c, 0, [KEYWORD, 3, 4])?;
    Ok(c.b.sdpa(a.operands, a.mask, a.causal, a.scale)?.to_vec())
}

fn attention(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let a = asked(c, 0, [3, 4, 5])?;
    let [y, _] = c.b.sdpa(a.operands, a.mask, a.causal, a.scale)?;
    Ok(vec![y])
}

fn flash_backward(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let a = asked(c, 1, [KEYWORD, 6, 7])?;
    let grad = c.tensor(0, "grad_out")?;
    let given = [c.tensor(4, "out")?, c.tensor(5, "logsumexp")?];
    let made =
        c.b.sdpa_backward(grad, a.operands, given, a.mask, a.causal, a.scale)?;
    Ok(made.to_vec())
}
