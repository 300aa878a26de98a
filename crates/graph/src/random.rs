//! Random programs, for differential fuzzing of everything that reads a graph.
//!
//! All randomness comes from a [`Choices`], a list of numbers that a fuzzer can shorten and lower: fewer choices give a smaller graph,
//! lower choices the plainer alternatives, so that shrinking the list shrinks the program. Graphs are valid by construction, small enough for the
//! interpreter, and never index out of range whatever their inputs hold.

mod alike;
mod contraction;
mod source;
mod window;

use crate::builder::{Builder, Operand};
use crate::ir::{Device, Graph, Layout, ValueId};
use crate::op::{Accepts, Binary, Compare, Op, Reduce, Scatter, Unary};
use crate::{Bindings, HostTensor};
use oxyfuel_base::{DType, Expr, Result, Scalar, err};

pub use alike::alike;

/// Decisions, taken one after another; zeros when they run out.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    numbers: std::slice::Iter<'a, u32>,
}

impl<'a> Choices<'a> {
    pub fn new(numbers: &'a [u32]) -> Self {
        Self {
            numbers: numbers.iter(),
        }
    }

    /// A number below `count` (which is at least 1).
    pub fn below(&mut self, count: usize) -> usize {
        self.numbers
            .next()
            .map_or(0, |&n| n as usize % count.max(1))
    }

    pub fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    fn done(&self) -> bool {
        self.numbers.len() == 0
    }
}

/// What may occur in a random graph.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Dtypes of inputs, and targets of casts.
    pub dtypes: Vec<DType>,
    /// Most operations applied.
    pub steps: usize,
    /// Most elements of any tensor.
    pub elements: i64,
    /// Whether sizes may be symbols.
    pub symbols: bool,
    /// Whether inputs and outputs may ask for strides.
    pub layouts: bool,
    /// Whether some sizes are larger than a vector: one or two such sizes in a graph, so that its shapes fit together.
    pub large: bool,
    /// Whether some graphs have inputs that fit a product, a convolution or attention.
    pub contractions: bool,
}

impl Default for Limits {
    fn default() -> Self {
        let dtypes = vec![
            DType::F32,
            DType::BF16,
            DType::F16,
            DType::F64,
            DType::I64,
            DType::I32,
            DType::I8,
            DType::U8,
            DType::Bool,
        ];
        Self {
            dtypes,
            steps: 24,
            elements: 2000,
            symbols: true,
            layouts: true,
            large: false,
            contractions: true,
        }
    }
}

/// The ranges of the symbols of a random graph, and those of one with large sizes.
const SYMBOLS: [(&str, i64, i64); 2] = [("a", 0, 6), ("b", 0, 6)];
const LARGE_SYMBOLS: [(&str, i64, i64); 2] = [("a", 0, 520), ("b", 0, 6)];

/// Sizes that several vectors and several tiles do not divide.
const LONG: [i64; 4] = [127, 130, 257, 520];

/// A random valid graph.
pub fn graph(choices: &mut Choices<'_>, limits: &Limits) -> Result<Graph> {
    let mut b = Builder::new("random");
    let mut sizes: Vec<Expr> = [2, 3, 1, 4, 0].map(Expr::from).to_vec();
    if limits.symbols {
        let symbols = if limits.large { LARGE_SYMBOLS } else { SYMBOLS };
        for (name, min, max) in symbols {
            sizes.push(b.symbol(name, min, max));
        }
    }
    if limits.large {
        for _ in 0..2 {
            let size = match choices.below(8) {
                7 => choices.pick(&LONG),
                _ => 5 + choices.below(66) as i64,
            };
            // Twice, so that half of all dims are large.
            sizes.extend([Expr::from(size), Expr::from(size)]);
        }
    }
    let mut pool = vec![];
    for i in 0..=choices.below(3) {
        let dtype = choices.pick(&limits.dtypes);
        let mut shape: Vec<Expr> = (0..choices.below(4))
            .map(|_| sizes[choices.below(sizes.len())].clone())
            .collect();
        let ranges = b.graph().ranges();
        while shape.iter().cloned().product::<Expr>().bounds(&ranges).hi > limits.elements {
            shape.pop();
        }
        pool.push(b.input(&format!("x{i}"), dtype, shape, Device::Cpu)?);
    }
    if limits.symbols {
        // Every symbol is the size of some input.
        let shape = sizes[5..7].to_vec();
        pool.push(b.input("sizes", choices.pick(&limits.dtypes), shape, Device::Cpu)?);
    }
    let symbols: &[Expr] = if limits.symbols { &sizes[5..7] } else { &[] };
    let contraction = contraction::inputs(&mut b, choices, symbols, limits, &mut pool)?;
    for at in 0..limits.steps {
        if choices.done() {
            break;
        }
        // A step that PyTorch would refuse, or that grows too large, leaves no trace.
        let mut trial = b.clone();
        let made = match &contraction {
            Some(contraction) if at == 0 => contraction.emit(&mut trial, choices, &pool),
            Some(contraction) => match choices.below(8) {
                0..=4 => step(&mut trial, choices, &pool, limits),
                5 | 6 => contraction.finish(&mut trial, choices, &pool, limits),
                _ => contraction.emit(&mut trial, choices, &pool),
            },
            None => step(&mut trial, choices, &pool, limits),
        };
        let Ok(v) = made else {
            continue;
        };
        let ranges = trial.graph().ranges();
        if trial.ty(v).numel().bounds(&ranges).hi <= limits.elements && trial.ty(v).rank() <= 5 {
            b = trial;
            pool.push(v);
        }
    }
    let last = *pool
        .last()
        .ok_or_else(|| err!(Internal, "a random graph without values"))?;
    b.output(last);
    for _ in 0..choices.below(3) {
        b.output(choices.pick(&pool));
    }
    for i in 0..b.graph().inputs.len() {
        if choices.flip()
            && let Some(value) = fitting(&b, choices, &pool, i)
        {
            b.mutate(i, value);
        }
    }
    if limits.layouts && choices.flip() {
        lay_out(&mut b, choices);
    }
    b.finish()?.compact()
}

/// A value that an input can be overwritten with.
fn fitting(
    b: &Builder,
    choices: &mut Choices<'_>,
    pool: &[ValueId],
    input: usize,
) -> Option<ValueId> {
    let input = b.graph().inputs[input];
    let fitting: Vec<ValueId> = pool
        .iter()
        .copied()
        .filter(|&v| v != input && b.ty(v) == b.ty(input))
        .collect();
    (!fitting.is_empty()).then(|| choices.pick(&fitting))
}

/// Strides for inputs and outputs: dims in another order, sometimes with gaps.
fn lay_out(b: &mut Builder, choices: &mut Choices<'_>) {
    let mut values = b.graph().inputs.clone();
    values.extend(b.graph().outputs.iter().map(|out| out.value));
    values.dedup();
    for value in values {
        let shape = b.ty(value).shape.clone();
        if shape.iter().any(|extent| extent.as_const().is_none()) {
            continue;
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for d in (1..order.len()).rev() {
            order.swap(d, choices.below(d + 1));
        }
        let mut strides = vec![Expr::ONE; shape.len()];
        let mut step = Expr::from([1, 1, 2, 3][choices.below(4)]);
        for d in order {
            strides[d] = step.clone();
            step *= shape[d].clone().max(1.into());
            step += Expr::from([0, 0, 0, 5][choices.below(4)]);
        }
        b.set_layout(value, Layout::Required(strides));
    }
}

/// Random inputs for a graph, whose symbols get random values too.
pub fn inputs(graph: &Graph, choices: &mut Choices<'_>) -> Result<Vec<HostTensor>> {
    let values: Vec<i64> = graph
        .symbols
        .iter()
        .map(|s| s.min + choices.below(4) as i64)
        .collect();
    inputs_of(graph, &values, choices)
}

/// Random inputs for a graph whose symbols have these values, in the order of their declaration.
pub fn inputs_of(
    graph: &Graph,
    values: &[i64],
    choices: &mut Choices<'_>,
) -> Result<Vec<HostTensor>> {
    let of = |symbol| {
        graph
            .symbols
            .iter()
            .position(|s| s.symbol == symbol)
            .and_then(|i| values.get(i).copied())
    };
    let mut tensors = vec![];
    for &v in &graph.inputs {
        let ty = graph.ty(v);
        let shape: Vec<i64> = ty
            .shape
            .iter()
            .map(|e| e.eval(&of))
            .collect::<Result<_>>()?;
        let count: i64 = shape.iter().product();
        let element = |i| {
            if choices.done() {
                spread(i, ty.dtype)
            } else {
                number(choices, ty.dtype)
            }
        };
        let scalars: Vec<Scalar> = (0..count).map(element).collect();
        tensors.push(HostTensor::from_scalars(ty.dtype, &shape, &scalars)?);
    }
    Ok(tensors)
}

/// Small numbers that differ from place to place, for more elements than there are choices.
fn spread(place: i64, dtype: DType) -> Scalar {
    let mixed = ((place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as i64;
    if dtype.is_float() {
        Scalar::F((mixed % 4096 - 2048) as f64 / 512.0)
    } else {
        Scalar::I(mixed % 100)
    }
}

/// Mostly small numbers; sometimes one at the edge.
fn number(choices: &mut Choices<'_>, dtype: DType) -> Scalar {
    let small = choices.below(4096) as i64 - 2048;
    match (dtype.is_float(), choices.below(16)) {
        (true, 15) => Scalar::F(
            [
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                -0.0,
                1e30,
                1e-40,
            ][choices.below(6)],
        ),
        (true, _) => Scalar::F(small as f64 / 512.0),
        (false, 15) => Scalar::I([i64::MAX, i64::MIN, -1, 0][choices.below(4)]),
        (false, _) => Scalar::I(small % 100),
    }
}

fn step(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    pool: &[ValueId],
    limits: &Limits,
) -> Result<ValueId> {
    let x = choices.pick(pool);
    let rank = b.ty(x).rank();
    let dim = choices.below(rank.max(1)) as i64;
    match choices.below(24) {
        0..=3 => {
            let f = choices.pick(Unary::ALL);
            b.unary(f, x)
        }
        4..=7 => {
            let f = choices.pick(Binary::ALL);
            let y = operand(b, choices, pool);
            b.binary(f, x, y)
        }
        8 => {
            let f = choices.pick(Compare::ALL);
            let y = operand(b, choices, pool);
            b.compare(f, x, y)
        }
        9 => {
            let condition = b.cast(x, DType::Bool)?;
            let (a, c) = (operand(b, choices, pool), operand(b, choices, pool));
            b.where_(condition, a, c)
        }
        10 => {
            let dtype = choices.pick(&limits.dtypes);
            b.cast(x, dtype)
        }
        11 | 12 => {
            let f = choices.pick(Reduce::ALL);
            let dims: Vec<i64> = (0..rank as i64).filter(|_| choices.flip()).collect();
            b.reduce(f, x, &dims, choices.flip())
        }
        13 => composite(b, choices, x, dim),
        14 | 15 => view(b, choices, x, dim),
        16 => {
            let other = choices.pick(pool);
            b.cat(&[x, other, x], dim)
        }
        17 => {
            let raw = choices.pick(pool);
            index(b, choices, x, raw, dim)
        }
        18 => {
            let other = choices.pick(pool);
            let other = b.cast(other, b.ty(x).dtype)?;
            if choices.flip() {
                b.matmul(x, other)
            } else {
                gram(b, x)
            }
        }
        19 => update(b, choices, pool, x, dim),
        20 => match choices.below(6) {
            0 => b.cumsum(x, dim),
            1 => b.cumprod(x, dim),
            2 => b.argmax(x, dim, choices.flip()),
            3 => b.argsort(x, dim, choices.flip()),
            4 => b.argmin(x, dim, choices.flip()),
            _ => {
                let other = contraction::alike(b, choices, pool, x);
                b.linear_scan(x, other, dim)
            }
        },
        21 => source::sampled(b, choices, pool, x),
        22 => window::windowed(b, choices, x, dim),
        _ => source::constant(b, choices, &limits.dtypes),
    }
}

/// A value or a number.
fn operand(b: &Builder, choices: &mut Choices<'_>, pool: &[ValueId]) -> Operand {
    if choices.below(3) == 2 {
        let dtype = b.ty(choices.pick(pool)).dtype;
        return Operand::Number(number(choices, dtype));
    }
    Operand::Value(choices.pick(pool))
}

fn composite(b: &mut Builder, choices: &mut Choices<'_>, x: ValueId, dim: i64) -> Result<ValueId> {
    let x = if crate::rules::accepts(Accepts::Float, b.ty(x).dtype) {
        x
    } else {
        b.cast(x, DType::F32)?
    };
    match choices.below(4) {
        0 => b.softmax(x, dim),
        1 => b.log_softmax(x, dim),
        2 => b.var(x, &[dim], choices.below(3) as f64, choices.flip()),
        _ => {
            let outs = b.native_layer_norm(x, 1, None, None, 1e-5)?;
            Ok(outs[choices.below(3)])
        }
    }
}

fn view(b: &mut Builder, choices: &mut Choices<'_>, x: ValueId, dim: i64) -> Result<ValueId> {
    let rank = b.ty(x).rank() as i64;
    match choices.below(7) {
        0 => b.transpose(x, dim, -1),
        1 => b.unsqueeze(x, dim),
        2 => b.view(x, &[Expr::from(-1)]),
        3 => b.slice(
            x,
            dim,
            choices.below(3) as i64,
            i64::MAX,
            1 + choices.below(2) as i64,
        ),
        4 => b.slice(x, dim, -2, -1, 1),
        5 => {
            let mut shape = vec![Expr::from(1 + choices.below(3) as i64)];
            shape.extend(b.ty(x).shape.iter().cloned());
            b.expand(x, &shape)
        }
        _ => {
            let dims: Vec<i64> = (0..rank).rev().collect();
            b.permute(x, &dims)
        }
    }
}

/// Indices brought into range by a remainder.
fn index(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    x: ValueId,
    raw: ValueId,
    dim: i64,
) -> Result<ValueId> {
    let shape = b.ty(x).shape.clone();
    let d = usize::try_from(dim).unwrap_or(0);
    let size = shape
        .get(d)
        .filter(|size| !size.is_const(0))
        .ok_or_else(|| err!(InvalidArgument, "no element to choose"))?;
    let raw = b.cast(raw, DType::I64)?;
    let index = match size.as_const() {
        Some(size) => b.binary(Binary::Remainder, raw, size)?,
        // Nothing can be chosen where it turns out to be empty: then the interpreter refuses the inputs.
        None => {
            let size = b.scalar_tensor(size.clone(), DType::I64, Device::Cpu)?;
            b.binary(Binary::Remainder, raw, size)?
        }
    };
    match choices.below(3) {
        0 => {
            let flat = b.view(index, &[Expr::from(-1)])?;
            b.index_select(x, dim, flat)
        }
        1 if shape.len() == 2 && d == 0 => b.embedding(x, index),
        _ if b.ty(index).rank() == shape.len()
            && (0..shape.len()).all(|i| i == d || b.ty(index).shape[i] == shape[i]) =>
        {
            b.gather(x, dim, index)
        }
        _ => Err(err!(ShapeMismatch, "the index does not fit")),
    }
}

/// A matrix times its transpose, or with a bias.
fn gram(b: &mut Builder, x: ValueId) -> Result<ValueId> {
    let t = b.transpose(x, -2, -1)?;
    if b.ty(x).rank() == 2 {
        let bias = b.full(1, vec![], b.ty(x).dtype, Device::Cpu)?;
        return b.addmm(bias, x, t, 2, 1);
    }
    b.matmul(x, t)
}

fn update(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    pool: &[ValueId],
    x: ValueId,
    dim: i64,
) -> Result<ValueId> {
    match choices.below(8) {
        7 => scattered(b, choices, pool, x, dim),
        6 => {
            // Some slices, from the last to the first.
            let size = usize::try_from(dim)
                .ok()
                .and_then(|d| b.ty(x).shape.get(d)?.as_const());
            let size = size.filter(|&size| size > 0);
            let size = size.ok_or_else(|| err!(InvalidArgument, "no slices to count"))?;
            let first = size - 1 - choices.below(2) as i64;
            let index = b.arange(first.max(0), -1, -1, None, Device::Cpu)?;
            let rows = b.index_select(x, dim, index)?;
            let src = operand(b, choices, pool);
            let src = b.copy(rows, src)?;
            b.index_put(x, src, dim, index)
        }
        0 => {
            let part = b.slice(x, dim, 1, i64::MAX, 1)?;
            let part = b.unary(Unary::Neg, part)?;
            b.slice_scatter(x, part, dim, 1, i64::MAX, 1)
        }
        4 => {
            // From a neighbouring slice of the same tensor.
            let part = b.slice(x, dim, 0, -1, 1)?;
            b.slice_scatter(x, part, dim, 1, i64::MAX, 1)
        }
        5 => {
            // A slice of a slice.
            let outer = b.slice(x, dim, 1, i64::MAX, 1)?;
            let inner = b.slice(outer, -1, 0, -1, 1)?;
            let src = operand(b, choices, pool);
            let src = b.copy(inner, src)?;
            let outer = b.slice_scatter(outer, src, -1, 0, -1, 1)?;
            b.slice_scatter(x, outer, dim, 1, i64::MAX, 1)
        }
        1 => {
            let src = operand(b, choices, pool);
            b.copy(x, src)
        }
        2 => b.emit(Op::Clone, &[x]),
        _ => {
            let n = choices.below(5) as i64;
            let dtype = if choices.flip() {
                DType::F32
            } else {
                DType::I32
            };
            let d = usize::try_from(dim).unwrap_or(0);
            match b.ty(x).shape.get(d).cloned() {
                Some(size) if size.as_const().is_none() => {
                    let (start, step) = (Scalar::I(n).cast(dtype), Scalar::I(2).cast(dtype));
                    let op = Op::Arange {
                        start,
                        step,
                        shape: vec![size],
                        dtype,
                        device: Device::Cpu,
                    };
                    b.emit(op, &[])
                }
                _ => b.arange(-1, n, 1, Some(dtype), Device::Cpu),
            }
        }
    }
}

/// Elements that meet others at computed places, several at one place.
fn scattered(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    pool: &[ValueId],
    x: ValueId,
    dim: i64,
) -> Result<ValueId> {
    let op = choices.pick(Scatter::ALL);
    let shape = b.ty(x).shape.clone();
    let size = usize::try_from(dim)
        .ok()
        .and_then(|d| shape.get(d)?.as_const());
    let size = size.filter(|&size| size > 0);
    let size = size.ok_or_else(|| err!(InvalidArgument, "no places to count"))?;
    let raw = choices.pick(pool);
    let raw = b.cast(raw, DType::I64)?;
    let index = b.binary(Binary::Remainder, raw, size)?;
    let src = operand(b, choices, pool);
    if choices.flip() {
        let count = b.ty(index).numel();
        let index = b.view(index, std::slice::from_ref(&count))?;
        let mut rows = shape.clone();
        if let Some(size) = usize::try_from(dim).ok().and_then(|d| rows.get_mut(d)) {
            *size = count;
        }
        let rows = b.full(0, rows, b.ty(x).dtype, Device::Cpu)?;
        let src = b.copy(rows, src)?;
        let index = b.index_of_slices(index, dim, src)?;
        return b.scatter(op, x, dim, index, src);
    }
    // Whether it fits must not depend on what a symbol is.
    let fits = (b.ty(index).shape.iter().zip(&shape))
        .all(|(i, n)| i == n || matches!((i.as_const(), n.as_const()), (Some(_), Some(_))));
    if !fits {
        return Err(err!(InvalidArgument, "an index that may be too long"));
    }
    let like = b.full(0, b.ty(index).shape.clone(), b.ty(x).dtype, Device::Cpu)?;
    let src = b.copy(like, src)?;
    b.scatter(op, x, dim, index, src)
}

/// Shapes that the results of a graph have under given bindings.
pub fn result_shapes(graph: &Graph, bindings: &Bindings) -> Result<Vec<Vec<i64>>> {
    graph
        .outputs
        .iter()
        .map(|o| bindings.eval_all(&graph.ty(o.value).shape))
        .collect()
}
