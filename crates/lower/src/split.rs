//! Long reductions cut into parts: one phase reduces each part, a second combines them.
//!
//! ```text
//!   results are small:   parts -> combined and finished
//!   others are stored:   parts, and what is stored on the way -> combined and finished
//!   otherwise:           parts -> totals,  parts of what needs those -> totals,  ..  ->  everything, elementwise
//! ```
//!
//! Results are small where no store needs an element of the reduced dims and no reduction needs another's result: the phase that combines finishes the work. Where rows are needed again (a softmax of one long
//! row), every layer of reductions leaves its totals in a workspace, the next one reads them, and the last phase has no reduction left.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::builder::{KernelBuilder, Mem};
use oxyfuel_kernel::ir::BufferMode;

use crate::chunk::layers;
use crate::nest::{Dims, Nest, NestBuffer, NestOp, NestStore, Node, Window};
use crate::rows::{depends_on_reduction, emit, emit_partial};
use crate::size::Params;
use crate::tile::{Tiling, ceil_div};

/// Whether the reductions of a nest can be cut, and nothing is stored but what is small.
pub fn applies(nest: &Nest) -> bool {
    is_flat(nest)
        && nest.stores.iter().all(|store| nest.is_small_store(store))
        && nest.stores.iter().all(|store| of_every_row(nest, store))
}

/// Whether a store has a number for every row: what combines the parts reads one each.
fn of_every_row(nest: &Nest, store: &NestStore) -> bool {
    let support = nest.window_support(&store.window);
    let rows = (0..nest.rank()).filter(|&d| !nest.reduced.contains(d));
    let mut long = rows.filter(|&d| !nest.dims[d].is_const(1));
    long.all(|d| support.contains(d))
}

/// Whether reductions over rows that lie apart can be cut where whole rows are stored too, none of which needs a result: the phase that reduces parts stores them on its way, so that nothing is read or computed
/// twice.
pub fn stores_on_the_way(nest: &Nest) -> bool {
    let (small, big): (Vec<_>, Vec<_>) = nest
        .stores
        .iter()
        .partition(|store| nest.is_small_store(store));
    let columns = nest.rank() > 0 && !nest.reduced.contains(nest.rank() - 1);
    let fixed = nest.dims.iter().all(|extent| extent.as_const().is_some());
    // A second reduced dim would lie whole inside a part, however long it is.
    let one = nest.reduced.iter().count() == 1;
    columns
        && one
        && fixed
        && is_flat(nest)
        && !small.is_empty()
        && !big.is_empty()
        && small.iter().all(|store| of_every_row(nest, store))
        && big.iter().all(|store| {
            let everywhere = nest.reduced.minus(nest.store_support(store)).is_empty();
            // Who reads it may run later, when it is no longer what it was.
            let unread = !nest.buffers[store.window.buffer].read;
            everywhere && unread && !depends_on_reduction(nest, store.value)
        })
}

/// Whether no reduction needs the result of another.
fn is_flat(nest: &Nest) -> bool {
    let nested = nest.values.iter().any(|value| match value.op {
        NestOp::Reduce(_, operand) => depends_on_reduction(nest, operand),
        _ => false,
    });
    nest.has_reduction() && !nested
}

/// Adds the phases of a nest of fixed sizes whose reductions need each other, or whose stores need rows. `choose` tiles what is left.
pub fn emit_layers(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    parts: i64,
    choose: impl Fn(&Nest) -> Tiling,
) -> Result<()> {
    let (mut rest, mut params) = (nest.clone(), params.clone());
    let mut layer = 0;
    while rest.has_reduction() {
        let layers = layers(&rest);
        let sums: Vec<Node> = (0..rest.values.len())
            .filter(|&n| layers[n] == 1 && matches!(rest.values[n].op, NestOp::Reduce(..)))
            .collect();
        let totals: Vec<Window> = sums
            .iter()
            .map(|&sum| total(k, &mut rest, &mut params, sum))
            .collect();
        let (mut first, at) = computing(&rest, &sums, &|_| None)?;
        for (&sum, window) in sums.iter().zip(&totals) {
            let (value, window) = (at[sum].unwrap_or(0), window.clone());
            first.stores.push(NestStore { value, window });
        }
        let (tiling, parts) = cut(&first, choose(&first), parts);
        let partial = |workspaces: &[(Node, Mem)]| {
            emit_partial(k, &params, &first, &tiling, workspaces);
            Ok(())
        };
        let name = format!("partial{layer}_");
        emit_split(k, &params, &first, (parts, &name), partial, &choose)?;
        layer += 1;

        let known = |node: Node| {
            let at = sums.iter().position(|&sum| sum == node)?;
            Some(NestOp::Load(totals[at].clone()))
        };
        let stored: Vec<Node> = rest.stores.iter().map(|store| store.value).collect();
        let (mut next, at) = computing(&rest, &stored, &known)?;
        next.stores = rest.stores.clone();
        for store in &mut next.stores {
            store.value = at[store.value].unwrap_or(0);
        }
        rest = next;
    }
    rest.reduced = Dims::default();
    rest.collapse();
    emit(k, &params, &rest, &choose(&rest));
    Ok(())
}

/// A workspace of so many elements, as a buffer of the nest.
pub fn workspace(
    k: &KernelBuilder,
    nest: &mut Nest,
    params: &mut Params,
    name: &str,
    dtype: DType,
    len: Expr,
) -> usize {
    const ALIGN: u32 = 64;
    let buffer = nest.buffers.len();
    let name = format!("{name}{buffer}");
    let mem = k.buffer(name, dtype, BufferMode::Workspace, len.clone());
    params.mems.push(mem.aligned(ALIGN));
    nest.buffers.push(NestBuffer {
        dtype,
        read: true,
        written: true,
        len,
        align: ALIGN,
    });
    buffer
}

/// A workspace for one number a row of `sum`.
fn total(k: &KernelBuilder, nest: &mut Nest, params: &mut Params, sum: Node) -> Window {
    let mut strides = vec![Expr::ZERO; nest.rank()];
    let mut len = Expr::ONE;
    for d in (0..nest.rank()).rev() {
        if !nest.reduced.contains(d) {
            strides[d] = len.clone();
            len *= &nest.dims[d];
        }
    }
    let dtype = nest.values[sum].dtype;
    Window {
        buffer: workspace(k, nest, params, "total", dtype, len),
        base: Expr::ZERO,
        strides,
    }
}

/// What `roots` are computed from, with some values given, as a nest of its own without stores; and where its values are.
fn computing(
    nest: &Nest,
    roots: &[Node],
    given: &dyn Fn(Node) -> Option<NestOp>,
) -> Result<(Nest, Vec<Option<Node>>)> {
    let mut want = vec![false; nest.values.len()];
    for &root in roots {
        want[root] = true;
    }
    for node in (0..nest.values.len()).rev() {
        if want[node] && given(node).is_none() {
            for operand in nest.values[node].op.operands() {
                want[operand] = true;
            }
        }
    }
    let mut new = Nest {
        values: Vec::new(),
        stores: Vec::new(),
        ..nest.clone()
    };
    let mut at: Vec<Option<Node>> = vec![None; nest.values.len()];
    for node in (0..nest.values.len()).filter(|&node| want[node]) {
        let value = &nest.values[node];
        let same = || value.op.with_operands(|n| at[n].unwrap_or(0));
        let op = given(node).unwrap_or_else(same);
        at[node] = Some(new.push(op, value.dtype)?);
    }
    Ok((new, at))
}

/// The tiling with the outermost reduced dim, whose extent is known, in at most so many parts; and how many they are.
pub fn cut(nest: &Nest, mut tiling: Tiling, parts: i64) -> (Tiling, i64) {
    let cut = nest.reduced.iter().next().unwrap_or(0);
    let extent = nest.guess(cut).max(1);
    tiling.block[cut] = ceil_div(extent, parts.clamp(1, extent));
    let parts = ceil_div(extent, tiling.block[cut]);
    (tiling, parts)
}

/// The same with parts that are whole steps: one that were not would reach into the next.
pub fn whole_steps(nest: &Nest, mut tiling: Tiling, step: i64) -> (Tiling, i64) {
    let cut = nest.reduced.iter().next().unwrap_or(0);
    tiling.block[cut] = ceil_div(tiling.block[cut], step) * step;
    let parts = ceil_div(nest.guess(cut).max(1), tiling.block[cut]);
    (tiling, parts)
}

/// The tiling in which a block of threads has a part in its registers, beside what it stores of it; and how many parts there are.
pub fn small_parts(nest: &Nest, mut tiling: Tiling) -> (Tiling, i64) {
    /// Elements of a part: some values of each are held at a time.
    const PART: i64 = 4096;
    /// Columns of it: whole lines of memory.
    const COLUMNS: i64 = 64;
    let last = nest.rank() - 1;
    tiling.block[last] = nest.guess(last).clamp(1, COLUMNS);
    let cut_dim = nest.reduced.iter().next().unwrap_or(0);
    let other: i64 = (0..nest.rank())
        .filter(|&d| d != cut_dim)
        .map(|d| tiling.block[d])
        .product();
    let rows = (PART / other.max(1)).max(1);
    cut(nest, tiling, ceil_div(nest.guess(cut_dim), rows))
}

/// Adds both phases; `first` writes the one that fills a workspace for each reduction. Workspaces are parameters of the program, called `name` and a number.
pub fn emit_split(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    (parts, name): (i64, &str),
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
                    format!("{name}{i}"),
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
    // What is along the parts was stored on the way.
    for store in nest.stores.iter().filter(|s| nest.is_small_store(s)) {
        let value = map[store.value].unwrap_or(0);
        second.stores.push(NestStore {
            value,
            window: moved(&store.window),
        });
    }
    Ok(second)
}
