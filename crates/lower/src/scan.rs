//! Running sums and products: a loop along the dim carries what was combined so far, and stores it at every step.
//!
//! Vectors run along another dim, the last there is; where the scanned dim is the only one, a lane is all there is to use.

use oxyfuel_kernel::builder::KernelBuilder;
use oxyfuel_kernel::ir::{Order, ReduceOp};
use oxyfuel_plan::TargetDesc;

use crate::chunk::combine;
use crate::nest::{Nest, NestOp, Node};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::tile::{Tiling, block_of};

/// Vectors of one tile.
const VECTORS: i64 = 4;

/// The dim that a nest scans; none where it has one element, and a scan is the element itself.
pub fn along(nest: &Nest) -> Option<usize> {
    let scans = nest
        .values
        .iter()
        .any(|value| matches!(value.op, NestOp::Scan(..)));
    nest.reduced.iter().next().filter(|_| scans)
}

/// Adds the phase that computes `nest`, step by step along the dim.
pub fn emit_scan(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    along: usize,
    target: &TargetDesc,
) {
    let mut block = vec![1; nest.rank()];
    if let Some(vector) = (0..nest.rank()).rev().find(|&d| d != along) {
        let lanes = i64::from(target.lanes(4)) * if target.is_simt() { 1 } else { VECTORS };
        block[vector] = block_of(nest, vector, lanes);
    }
    let tiling = Tiling { block };
    let blocks = Blocks::new(nest, &tiling, nest.reduced);
    let scans: Vec<(Node, ReduceOp, Node)> = (0..nest.values.len())
        .filter_map(|node| match nest.values[node].op {
            NestOp::Scan(f, operand) => Some((node, f, operand)),
            _ => None,
        })
        .collect();
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let outer = Frame::new(k, params, nest, &tiling, &blocks);
        let inits = scans
            .iter()
            .map(|&(_, f, operand)| outer.identity_result(f, operand))
            .collect();
        let end = params.sizes.index(&nest.dims[along]);
        k.for_range_vec(0, end, 1, inits, |_, at, carried| {
            let mut inner = outer.at_chunk(along, &at, 1);
            let mut totals = Vec::new();
            for node in 0..nest.values.len() {
                match scans.iter().position(|scan| scan.0 == node) {
                    Some(i) => {
                        let (_, f, operand) = scans[i];
                        let total = combine(f, &carried[i], &inner.get(operand));
                        inner.give(node, total.clone());
                        totals.push(total);
                    }
                    None => inner.value(node),
                }
            }
            for store in &nest.stores {
                inner.store(store.value, &store.window);
            }
            totals
        });
    });
}
