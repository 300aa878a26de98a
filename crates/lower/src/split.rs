//! A long reduction cut into parts: one phase reduces each part, a second combines them and finishes.
//!
//! It applies when results are small: no store needs an element of the reduced dims, and no reduction needs another's result.

use oxyfuel_base::{Expr, Result};
use oxyfuel_kernel::builder::{KernelBuilder, Mem};
use oxyfuel_kernel::ir::BufferMode;

use crate::nest::{Dims, Nest, NestBuffer, NestOp, NestStore, Node, Window};
use crate::rows::{depends_on_reduction, emit};
use crate::size::Params;
use crate::tile::{Tiling, ceil_div};

/// Whether the reductions of a nest can be cut.
pub fn applies(nest: &Nest) -> bool {
    let nested = nest.values.iter().any(|value| match value.op {
        NestOp::Reduce(_, operand) => depends_on_reduction(nest, operand),
        _ => false,
    });
    let small = nest.stores.iter().all(|store| nest.is_small_store(store));
    nest.has_reduction() && !nested && small
}

/// The tiling with the outermost reduced dim, whose extent is known, in at most so many parts; and how many they are.
pub fn cut(nest: &Nest, mut tiling: Tiling, parts: i64) -> (Tiling, i64) {
    let cut = nest.reduced.iter().next().unwrap_or(0);
    let extent = nest.guess(cut).max(1);
    tiling.block[cut] = ceil_div(extent, parts.clamp(1, extent));
    let parts = ceil_div(extent, tiling.block[cut]);
    (tiling, parts)
}

/// Adds both phases; `first` writes the one that fills a workspace for each reduction. Workspaces are parameters of the program.
pub fn emit_split(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    parts: i64,
    first: impl FnOnce(&[(Node, Mem)]) -> Result<()>,
    finish: impl Fn(&Nest) -> Tiling,
) -> Result<()> {
    let kept: Expr = (0..nest.rank())
        .filter(|&d| !nest.reduced.contains(d))
        .map(|d| nest.dims[d].clone())
        .product();
    let sums: Vec<Node> = (0..nest.values.len())
        .filter(|&n| matches!(nest.values[n].op, NestOp::Reduce(..)))
        .collect();
    let len = kept * parts;
    let workspaces: Vec<(Node, Mem)> = sums
        .iter()
        .enumerate()
        .map(|(i, &node)| {
            (
                node,
                k.buffer(
                    format!("partial{i}"),
                    nest.values[node].dtype,
                    BufferMode::Workspace,
                    len.clone(),
                )
                .aligned(64),
            )
        })
        .collect();
    first(&workspaces)?;

    let second = combine(nest, parts, &sums)?;
    let mut all = params.clone();
    all.mems
        .extend(workspaces.iter().map(|(_, mem)| mem.clone()));
    let tiling = finish(&second);
    emit(k, &all, &second, &tiling);
    Ok(())
}

/// The nest that combines the parts: kept dims, then the parts as the only reduced dim.
fn combine(nest: &Nest, parts: i64, sums: &[Node]) -> Result<Nest> {
    let kept: Vec<usize> = (0..nest.rank())
        .filter(|&d| !nest.reduced.contains(d))
        .collect();
    let mut dims: Vec<Expr> = kept.iter().map(|&d| nest.dims[d].clone()).collect();
    dims.push(parts.into());
    let mut second = Nest::new(format!("{}_combine", nest.name), dims, &nest.known);
    second.reduced = Dims::default().with(kept.len());
    second.buffers = nest.buffers.clone();
    let moved = |window: &Window| {
        let mut strides: Vec<Expr> = kept.iter().map(|&d| window.strides[d].clone()).collect();
        strides.push(Expr::ZERO);
        Window {
            buffer: window.buffer,
            base: window.base.clone(),
            strides,
        }
    };
    let mut row_major = vec![Expr::ONE; kept.len() + 1];
    for d in (0..kept.len()).rev() {
        row_major[d] = &row_major[d + 1] * &second.dims[d + 1];
    }
    let mut map: Vec<Option<Node>> = vec![None; nest.values.len()];
    for (node, value) in nest.values.iter().enumerate() {
        let small = value.support.minus(nest.reduced) == value.support;
        let needed = matches!(value.op, NestOp::Reduce(..))
            || (small && value.op.operands().iter().all(|&n| map[n].is_some()));
        if !needed {
            continue;
        }
        let get = |n: Node| map[n].unwrap_or(0);
        let op = match &value.op {
            NestOp::Reduce(f, _) => {
                let i = sums.iter().position(|&s| s == node).unwrap_or(0);
                second.buffers.push(NestBuffer {
                    dtype: value.dtype,
                    read: true,
                    written: true,
                    len: &row_major[0] * &second.dims[0],
                    align: 64,
                });
                let window = Window {
                    buffer: nest.buffers.len() + i,
                    base: Expr::ZERO,
                    strides: row_major.clone(),
                };
                let part = second.push(NestOp::Load(window), value.dtype)?;
                NestOp::Reduce(*f, part)
            }
            NestOp::Load(window) => NestOp::Load(moved(window)),
            NestOp::LoadAt {
                window,
                index,
                stride,
                extent,
            } => NestOp::LoadAt {
                window: moved(window),
                index: get(*index),
                stride: stride.clone(),
                extent: extent.clone(),
            },
            NestOp::Coordinate { dim, scale, offset } => NestOp::Coordinate {
                dim: kept.iter().position(|d| d == dim).unwrap_or(0),
                scale: scale.clone(),
                offset: offset.clone(),
            },
            NestOp::Given
            | NestOp::Const(_)
            | NestOp::Size(_)
            | NestOp::Unary(..)
            | NestOp::Binary(..)
            | NestOp::Compare(..)
            | NestOp::Select(..)
            | NestOp::Scan(..)
            | NestOp::Order { .. }
            | NestOp::Recurrence { .. }
            | NestOp::Cast(_) => value.op.with_operands(get),
        };
        map[node] = Some(second.push(op, value.dtype)?);
    }
    for store in &nest.stores {
        let value = map[store.value].unwrap_or(0);
        second.stores.push(NestStore {
            value,
            window: moved(&store.window),
        });
    }
    Ok(second)
}
