//! Matrix products that a library of the machine's may compute in the place of a kernel.

use oxyfuel_base::DType;
use oxyfuel_plan::{Gemm, GemmOperand, TargetDesc};

use crate::direct::{Operand, Product};
use crate::nest::{Nest, NestOp};

/// The nest as a product and nothing else, where it is one that the machine leaves to its library.
pub fn gemm(nest: &Nest, product: &Product, target: &TargetDesc) -> Option<Gemm> {
    let Product { batch, m, n, k, .. } = *product;
    let dtype = product.a.dtype;
    let [store] = nest.stores.as_slice() else {
        return None;
    };
    let alone = match &nest.values[store.value].op {
        NestOp::Given => true,
        // Sums are rounded when they are stored.
        NestOp::Cast(of) => matches!(nest.values[*of].op, NestOp::Given),
        _ => false,
    };
    let out = &nest.buffers[store.window.buffer];
    let leaves = alone
        && nest.scatters.is_empty()
        && target.leaves_product(dtype, [batch, m, n, k])
        && product.b.dtype == dtype
        && out.dtype == dtype
        && product.b.panels.is_none();
    if !leaves {
        return None;
    }
    let strides = store.window.strides.iter().map(|stride| stride.as_const());
    let (batch_stride, strides) = match strides.collect::<Option<Vec<i64>>>()?.as_slice() {
        [down, along] if batch == 1 => (0, [*down, *along]),
        [batch_stride, down, along] => (*batch_stride, [*down, *along]),
        _ => return None,
    };
    if strides[1] != 1 || strides[0] < n {
        return None;
    }
    let operand = |operand: &Operand| {
        let dense = operand.strides.contains(&1) && operand.strides.iter().all(|s| *s > 0);
        let align = nest.buffers[operand.buffer].align;
        dense.then(|| GemmOperand {
            param: operand.buffer as u32,
            dtype,
            offset: operand.base,
            batch_stride: operand.batch_stride,
            strides: operand.strides,
            align: known(dtype, align, &[operand.base, operand.batch_stride]),
        })
    };
    let base = store.window.base.as_const()?;
    Some(Gemm {
        batch,
        m,
        n,
        k,
        a: operand(&product.a)?,
        b: operand(&product.b)?,
        c: GemmOperand {
            param: store.window.buffer as u32,
            dtype,
            offset: base,
            batch_stride,
            strides,
            align: known(dtype, out.align, &[base, batch_stride]),
        },
        acc: product.acc,
        tf32: false,
    })
}

/// What every matrix of an operand is aligned to, in bytes.
fn known(dtype: DType, align: u32, offsets: &[i64]) -> u32 {
    let bytes = offsets
        .iter()
        .map(|offset| (*offset * dtype.size() as i64).unsigned_abs());
    let multiples = bytes
        .filter(|bytes| *bytes > 0)
        .map(|bytes| bytes & bytes.wrapping_neg());
    let least = multiples.fold(u64::from(align.max(1)), u64::min);
    u32::try_from(least.min(256)).unwrap_or(1)
}
