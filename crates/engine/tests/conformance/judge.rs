//! When the result of compiled code counts as that of the graph interpreter.
//!
//! Values whose every rounding is said are the same bits. Behind the others there is a sum in some order or a function to within a few ulps: an element may differ
//! as much as it differs between neighbouring inputs, or if ops that round err by a last bit of what they add up. Where a last bit decides over a jump, nothing can be said; how
//! many elements that are is counted.

use oxyfuel_base::{DType, Expr};
use oxyfuel_engine::{agree, is_close, same};
use oxyfuel_graph::conv_panels::ConvPanels;
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::op::{Binary, Category, Compare, Op, Reduce, Unary};
use oxyfuel_graph::{Graph, GraphOutput, HostTensor, Node, Rebuild, ValueId, run};
use oxyfuel_runtime::tensor::Tensor;
use std::collections::{HashMap, HashSet};

/// Results for inputs that differ a little, which tell how much rounding may cost.
type Neighbours = Vec<Vec<HostTensor>>;

/// How many elements were compared, and how many of them not as closely as the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    pub values: u64,
    /// Outside of the tolerance of their type, and within what rounding costs them.
    pub widened: u64,
    /// They differ, and rounding decides over them.
    pub left_out: u64,
}

impl std::ops::AddAssign for Judged {
    fn add_assign(&mut self, other: Self) {
        self.values += other.values;
        self.widened += other.widened;
        self.left_out += other.left_out;
    }
}

/// A way to compare a graph's outputs with what the interpreter gave for the same inputs.
pub type Judge = fn(&Graph, &[HostTensor], &[HostTensor], &[Tensor]) -> Result<Judged, String>;

/// Within the tolerance of their types.
pub fn closely(
    graph: &Graph,
    _: &[HostTensor],
    expected: &[HostTensor],
    outputs: &[Tensor],
) -> Result<Judged, String> {
    compare_outputs(graph, outputs, expected, &Neighbours::new(), false)
}

/// Within what rounding may cost, which is worth knowing only where something differs.
pub fn by_condition(
    graph: &Graph,
    inputs: &[HostTensor],
    expected: &[HostTensor],
    outputs: &[Tensor],
) -> Result<Judged, String> {
    if let Ok(judged) = compare_outputs(graph, outputs, expected, &Neighbours::new(), false) {
        return Ok(judged);
    }
    if order_decides(graph, inputs) {
        return unjudged_all(outputs, expected);
    }
    let neighbours = perturbed(graph, inputs);
    let spreads = multiplies_zeros(graph, inputs);
    let result = compare_outputs(graph, outputs, expected, &neighbours, spreads);
    if result.is_ok() {
        return result;
    }
    // Between the primitives of a composition eager may round, or overflow, as we do.
    let primitive = oxyfuel_transform::decompose(graph).map_err(|e| e.to_string())?;
    match run(&primitive, inputs) {
        Ok(expected) => compare_outputs(graph, outputs, &expected, &neighbours, spreads),
        Err(_) => result,
    }
}

fn compare_outputs(
    graph: &Graph,
    outputs: &[Tensor],
    expected: &[HostTensor],
    neighbours: &Neighbours,
    spreads: bool,
) -> Result<Judged, String> {
    if outputs.len() != expected.len() {
        return Err(format!("{} outputs, not {}", outputs.len(), expected.len()));
    }
    let mut judged = Judged::default();
    for (i, (output, expected)) in outputs.iter().zip(expected).enumerate() {
        if output.dtype() != expected.dtype || output.shape() != expected.shape {
            return Err(format!(
                "output {i} is {}{:?}",
                output.dtype(),
                output.shape()
            ));
        }
        let ours = output.to_bytes().map_err(|e| e.to_string())?;
        let near: Vec<&HostTensor> = neighbours.iter().map(|results| &results[i]).collect();
        let result = match trust(graph, graph.outputs[i].value) {
            Trust::Exact | Trust::Signs => equal(expected, &ours).map(|()| Judged::default()),
            Trust::Decided if !near.is_empty() => unjudged(expected, &ours),
            Trust::Rounded | Trust::Decided => {
                compare(expected, &ours, &near, 2.0 * coarsest(graph), spreads)
            }
        };
        judged += result.map_err(|why| format!("output {i}: {why}"))?;
        judged.values += expected.numel() as u64;
    }
    Ok(judged)
}

/// What is not asked about.
fn unjudged(expected: &HostTensor, ours: &[u8]) -> Result<Judged, String> {
    let ours = HostTensor::new(expected.dtype, &expected.shape, ours.to_vec())
        .map_err(|e| e.to_string())?;
    let pairs = ours.to_f64().into_iter().zip(expected.to_f64());
    let far = pairs.filter(|(a, b)| !is_close(expected.dtype, *a, *b));
    Ok(Judged {
        left_out: far.count() as u64,
        ..Judged::default()
    })
}

/// All outputs of a call that nothing can be said about.
fn unjudged_all(outputs: &[Tensor], expected: &[HostTensor]) -> Result<Judged, String> {
    let mut judged = Judged::default();
    for (output, expected) in outputs.iter().zip(expected) {
        let ours = output.to_bytes().map_err(|e| e.to_string())?;
        judged += unjudged(expected, &ours)?;
        judged.values += expected.numel() as u64;
    }
    Ok(judged)
}

/// The same numbers. Which zero is the lesser, eager leaves open, and so the sign of what is divided by it.
fn equal(expected: &HostTensor, ours: &[u8]) -> Result<(), String> {
    let Err(why) = same(expected.dtype, ours, &expected.data) else {
        return Ok(());
    };
    let ours = HostTensor::new(expected.dtype, &expected.shape, ours.to_vec())
        .map_err(|e| e.to_string())?;
    let mut pairs = ours.to_f64().into_iter().zip(expected.to_f64());
    let open = |(a, b): (f64, f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a.is_infinite() && b.is_infinite())
    };
    if expected.dtype.is_float() && pairs.all(open) {
        return Ok(());
    }
    Err(why)
}

/// How many times the change under neighbouring inputs an element may differ: each of a graph's roundings moves it about as much as one of the inputs'.
const SPREADS: f64 = 16.0;
/// The part of its size by which an element moves that may be a quotient by something that vanishes: how large it is then, rounding decides.
const VANISHING: f64 = 0.5;

fn compare(
    expected: &HostTensor,
    ours: &[u8],
    near: &[&HostTensor],
    floor: f64,
    spreads: bool,
) -> Result<Judged, String> {
    let mut judged = Judged::default();
    let Err(why) = agree(expected.dtype, ours, &expected.data) else {
        return Ok(judged);
    };
    if near.is_empty() {
        return Err(why);
    }
    let ours = HostTensor::new(expected.dtype, &expected.shape, ours.to_vec())
        .map_err(|e| e.to_string())?;
    let spread = |at: usize, b: f64| {
        let around = near.iter().map(|t| t.get(at).as_f64());
        around.map(|n| (n - b).abs()).fold(0f64, f64::max)
    };
    let all = expected.to_f64();
    // One that rounding makes as large as it is says nothing about those beside it.
    let sure = |(at, b): &(usize, &f64)| b.is_finite() && spread(*at, **b) < VANISHING * b.abs();
    let largest = (all.iter().enumerate().filter(sure)).fold(0f64, |m, (_, x)| m.max(x.abs()));
    for (at, &b) in all.iter().enumerate() {
        let a = ours.get(at).as_f64();
        if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) {
            continue;
        }
        let is_far = u64::from(!is_close(expected.dtype, a, b));
        // Stated rule: not a number here or there, or a jump: rounding decides, and nothing can be said.
        let mut around = near.iter().map(|t| t.get(at).as_f64());
        let unstable = around
            .any(|n| n.is_finite() != b.is_finite() || (!expected.dtype.is_float() && n != b));
        // The sign of a sum's zero is open, and so is that of its reciprocal; so is whether something that vanishes is zero before it is divided by zero.
        let endless = !a.is_finite() && !b.is_finite();
        let spread = spread(at, b);
        let vanishing = a.is_infinite() && b.is_finite() && spread >= VANISHING * b.abs();
        // Attention does not multiply what it masks: where an infinity is masked, the interpreter's product with zero is no number, and ours is.
        let spread_out = spreads && !a.is_finite();
        if unstable || endless || vanishing || spread_out || b.is_nan() {
            judged.left_out += is_far;
            continue;
        }
        // A NaN is within nothing.
        let is_within = (a - b).abs() <= SPREADS * spread + floor * largest;
        if !is_within {
            return Err(format!(
                "element {at} is {a}, not {b} (neighbours differ by {spread})"
            ));
        }
        judged.widened += is_far;
    }
    Ok(judged)
}

/// Whether an infinity or a NaN may reach results that it has no part in. One of a weight meets the zeros around images, which the interpreter leaves out and eager multiplies in some of its kernels; one of images
/// in a single group reaches all results of its tile at the points of F(2x2, 3x3). What is in one group never reaches another.
fn multiplies_zeros(graph: &Graph, inputs: &[HostTensor]) -> bool {
    let is_endless = |t: &HostTensor| t.to_f64().iter().any(|x| !x.is_finite());
    let given = graph.inputs.iter().zip(inputs);
    let mut endless: HashSet<ValueId> = given
        .filter(|(_, tensor)| is_endless(tensor))
        .map(|(&value, _)| value)
        .collect();
    for node in graph.nodes.values() {
        let [of_x, of_weight] = [0, 1].map(|i| {
            let operand = node.inputs.get(i);
            operand.is_some_and(|value| endless.contains(value))
        });
        if let Some(how) = windows(graph, node)
            && ((of_weight && how.how.padding.iter().any(|&n| n > 0))
                || (of_x && how.can_be_winograd()))
        {
            return true;
        }
        if node.inputs.iter().any(|value| endless.contains(value)) {
            endless.extend(&node.outputs);
        }
    }
    false
}

/// The numbers of a convolution of either op.
fn windows(graph: &Graph, node: &Node) -> Option<ConvPanels> {
    ConvPanels::of(&node.op).or_else(|| {
        let how = Convolution::of(&node.op)?;
        let sizes = graph.ty(node.inputs[1]).shape.iter().map(Expr::as_const);
        let weight = sizes.collect::<Option<Vec<i64>>>()?;
        Some(ConvPanels {
            how,
            kernel: weight[2..].to_vec(),
            n: weight[0],
            winograd: false,
        })
    })
}

/// How a graph interpreter's value may differ from ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Trust {
    /// Every rounding is said: the same bits.
    #[default]
    Exact,
    /// The same numbers, and a zero may have either sign.
    Signs,
    /// A sum in some order, or a function to within a few ulps, is behind it.
    Rounded,
    /// A last bit may decide it: it depends on a jump over rounded floats, and two right answers may differ by much.
    Decided,
}

/// How far each value can be trusted, by the worst that is behind it.
fn trust(graph: &Graph, value: ValueId) -> Trust {
    let mut known: HashMap<ValueId, Trust> = HashMap::new();
    for node in graph.nodes.values() {
        let of = |v: &ValueId| known.get(v).copied().unwrap_or_default();
        let floats = node
            .inputs
            .iter()
            .filter(|&&v| graph.ty(v).dtype.is_float());
        let rounded = floats.clone().any(|v| of(v) >= Trust::Rounded);
        let signs = floats.clone().any(|v| of(v) >= Trust::Signs);
        // The angle of a zero is none or a half turn by its sign.
        let turns = matches!(node.op, Op::Binary(Binary::Atan2)) && signs;
        let here = if jumps(graph, node) && rounded || turns {
            Trust::Decided
        } else if rounds(&node.op) && node.outputs.iter().any(|&v| graph.ty(v).dtype.is_float()) {
            Trust::Rounded
        } else if leaves_signs_open(&node.op) {
            Trust::Signs
        } else {
            Trust::Exact
        };
        let worst = node.inputs.iter().map(of).fold(here, Trust::max);
        known.extend(node.outputs.iter().map(|&v| (v, worst)));
    }
    known.get(&value).copied().unwrap_or_default()
}

/// Whether an op may give either of two zeros: which of them is the lesser, eager leaves open.
fn leaves_signs_open(op: &Op) -> bool {
    match op {
        Op::Binary(f) => matches!(f, Binary::Minimum | Binary::Maximum),
        Op::Unary(f) => matches!(f, Unary::Relu),
        Op::Reduce { op, .. } => matches!(op, Reduce::Amax | Reduce::Amin),
        _ => false,
    }
}

/// Ops whose float result is not a function of their operands' bits alone.
fn rounds(op: &Op) -> bool {
    match op {
        Op::Unary(f) => !matches!(
            f,
            Unary::Neg
                | Unary::Abs
                | Unary::Sign
                | Unary::Relu
                | Unary::Sqrt
                | Unary::Reciprocal
                | Unary::Floor
                | Unary::Ceil
                | Unary::Round
                | Unary::Trunc
        ),
        // A remainder of floats is a quotient, a floor and a product in one way or another.
        Op::Binary(f) => matches!(
            f,
            Binary::Pow
                | Binary::Atan2
                | Binary::Remainder
                | Binary::Fmod
                | Binary::DivFloor
                | Binary::DivTrunc
        ),
        Op::Reduce { op, .. } => matches!(op, Reduce::Sum | Reduce::Mean | Reduce::Prod),
        Op::Argmax { .. } | Op::Argmin { .. } => false,
        op => matches!(
            op.info().category,
            Category::Matmul
                | Category::Convolution
                | Category::Attention
                | Category::Composite
                | Category::Scan
        ),
    }
}

/// Whether an op makes floats narrower.
fn narrows(graph: &Graph, node: &Node) -> bool {
    let bytes = |v: ValueId| graph.ty(v).dtype.size();
    matches!(node.op, Op::Cast { .. })
        && graph.ty(node.inputs[0]).dtype.is_float()
        && bytes(node.out()) < bytes(node.inputs[0])
}

/// Whether a result jumps where a float operand moves a little.
fn jumps(graph: &Graph, node: &Node) -> bool {
    match &node.op {
        Op::Unary(f) => matches!(
            f,
            Unary::Floor
                | Unary::Ceil
                | Unary::Round
                | Unary::Trunc
                | Unary::Sign
                | Unary::LogicalNot
        ),
        // An angle turns around where an operand passes zero.
        Op::Binary(f) => matches!(
            f,
            Binary::Remainder | Binary::Fmod | Binary::DivFloor | Binary::DivTrunc | Binary::Atan2
        ),
        Op::Compare(_) => true,
        Op::Reduce { op, .. } => matches!(op, Reduce::Any | Reduce::All),
        Op::Cast { .. } => !graph.ty(node.out()).dtype.is_float(),
        Op::Argmax { .. } | Op::Argmin { .. } | Op::Argsort { .. } => true,
        _ => false,
    }
}

/// Relative distance of neighbouring numbers in the narrowest float type of a graph: a rounding to it anywhere moves all that follows.
fn coarsest(graph: &Graph) -> f64 {
    let steps = graph.values.values().map(|v| match v.ty.dtype {
        DType::BF16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        _ => 2f64.powi(-21),
    });
    steps.fold(2f64.powi(-21), f64::max)
}

/// Results for inputs a little above and a little below.
fn perturbed(graph: &Graph, inputs: &[HostTensor]) -> Neighbours {
    let moved = |by: f64| -> Vec<HostTensor> {
        let one = |(n, t): (usize, &HostTensor)| {
            if !t.dtype.is_float() {
                return t.clone();
            }
            // A step that the type can show, in a different direction for each element.
            let step = coarsest(graph);
            let values: Vec<f64> = t
                .to_f64()
                .iter()
                .enumerate()
                .map(|(i, x)| {
                    if (i * 7 + n) % 3 == 0 {
                        x * (1.0 - by * step)
                    } else {
                        x * (1.0 + by * step)
                    }
                })
                .collect();
            HostTensor::from_f64(t.dtype, &t.shape, &values).unwrap_or_else(|_| t.clone())
        };
        inputs.iter().enumerate().map(one).collect()
    };
    let noises = [
        Noise::Even(1.0),
        Noise::Even(-1.0),
        Noise::Uneven(1.0),
        Noise::Uneven(-2.0),
    ];
    let noisy = noises.map(|noise| noisy(graph, noise).and_then(|graph| run(&graph, inputs)));
    let moved = [1.0, -1.0].map(|by| run(graph, &moved(by)));
    moved.into_iter().chain(noisy).flatten().collect()
}

/// The error of an op that rounds, in steps of its type.
#[derive(Clone, Copy)]
enum Noise {
    /// The same for all elements.
    Even(f64),
    /// At most so many, another for each number: what is a difference of two of them moves too.
    Uneven(f64),
}

/// The graph with a small error after every op that rounds: what cancels inside of it shows, which other inputs need not reach.
fn noisy(graph: &Graph, noise: Noise) -> oxyfuel_base::Result<Graph> {
    let graph = oxyfuel_transform::decompose(graph)?;
    let mut rebuild = Rebuild::new(&graph);
    for (n, (id, node)) in graph.nodes.iter().enumerate() {
        rebuild.copy(id)?;
        let dtype = graph.ty(node.out()).dtype;
        // What is made narrower may lie on either side of where it is rounded.
        let narrowed = narrows(&graph, node) && trust(&graph, node.inputs[0]) >= Trust::Rounded;
        if !(rounds(&node.op) || narrowed) || !dtype.is_float() {
            continue;
        }
        let step = match dtype {
            DType::F64 => 2f64.powi(-50),
            DType::BF16 => 2f64.powi(-7),
            DType::F16 => 2f64.powi(-10),
            _ => 2f64.powi(-22),
        };
        let sign = if n % 2 == 0 { 1.0 } else { -1.0 };
        let moved = moved(&mut rebuild, node, noise, sign * step)?;
        rebuild.define(node.out(), moved);
    }
    rebuild.finish()
}

/// The result of a node with an error of some steps of its type.
fn moved(
    rebuild: &mut Rebuild<'_>,
    node: &Node,
    noise: Noise,
    step: f64,
) -> oxyfuel_base::Result<ValueId> {
    let exact = rebuild.get(node.out())?;
    let size = size(rebuild, node)?;
    // Where it all but vanishes, a gelu is a difference of numbers as large as its operand.
    let operand = match node.op {
        Op::Unary(Unary::Gelu | Unary::GeluTanh) => Some(rebuild.get(node.inputs[0])?),
        _ => None,
    };
    let b = &mut rebuild.builder;
    let dtype = b.ty(exact).dtype;
    let wide = b.cast(exact, DType::F64)?;
    let size = b.cast(size, DType::F64)?;
    let magnitude = b.unary(Unary::Abs, wide)?;
    let is_number = b.compare(Compare::Lt, magnitude, f64::MAX)?;
    let mut error = match noise {
        Noise::Even(by) => b.binary(Binary::Mul, size, by * step)?,
        Noise::Uneven(by) => {
            let digits = b.binary(Binary::Mul, wide, 1000.0)?;
            let wave = b.unary(Unary::Sin, digits)?;
            let wave = b.where_(is_number, wave, 0.0)?;
            let mut error = b.binary(Binary::Mul, wave, by * step)?;
            error = b.binary(Binary::Mul, error, size)?;
            if let Some(operand) = operand {
                let operand = b.cast(operand, DType::F64)?;
                let more = b.binary(Binary::Mul, operand, by * step)?;
                error = b.binary(Binary::Add, error, more)?;
            }
            error
        }
    };
    // Infinities have no error.
    error = b.where_(is_number, error, 0.0)?;
    let moved = b.binary(Binary::Add, wide, error)?;
    b.cast(moved, dtype)
}

/// How large that is which an op rounds: the magnitudes of what it adds up, which may cancel in its result; otherwise its result.
fn size(rebuild: &mut Rebuild<'_>, node: &Node) -> oxyfuel_base::Result<ValueId> {
    let adds = match &node.op {
        Op::Reduce { op, .. } => matches!(op, Reduce::Sum | Reduce::Mean),
        op => matches!(
            op.info().category,
            Category::Matmul | Category::Convolution | Category::Scan
        ),
    };
    if !adds {
        return rebuild.get(node.out());
    }
    let mut magnitudes = Vec::new();
    for &input in &node.inputs {
        let value = rebuild.get(input)?;
        magnitudes.push(match rebuild.builder.ty(value).dtype.is_float() {
            true => rebuild.builder.unary(Unary::Abs, value)?,
            false => value,
        });
    }
    rebuild.builder.emit(node.op.clone(), &magnitudes)
}

/// Whether the order of a float product, as a linear scan has them too, may decide between zero, infinity and NaN: then not even a kernel's two ways to run need agree. So it is if the factors above
/// one, or those below, leave the type's range by themselves.
fn order_decides(graph: &Graph, inputs: &[HostTensor]) -> bool {
    let product = |node: &&Node| {
        matches!(
            node.op,
            Op::Reduce {
                op: Reduce::Prod,
                ..
            } | Op::LinearScan { .. }
        ) && graph.ty(node.out()).dtype.is_float()
    };
    let factors = graph
        .nodes
        .values()
        .filter(product)
        .map(|node| node.inputs[0]);
    let mut looked = graph.clone();
    looked.outputs = factors
        .map(|value| GraphOutput { value, alias: None })
        .collect();
    let wild = |t: &HostTensor| {
        let limit = if t.dtype == DType::F16 { 14.0 } else { 120.0 };
        let (mut above, mut below) = (0.0, 0.0);
        for log in t.to_f64().iter().map(|x| x.abs().log2()) {
            if log.is_finite() {
                above += log.max(0.0);
                below += log.min(0.0);
            }
        }
        above > limit || below < -limit
    };
    run(&looked, inputs).is_ok_and(|factors| factors.iter().any(wild))
}

/// Inputs as a case file has them.
pub fn show(inputs: &[HostTensor]) -> String {
    let line = |t: &HostTensor| {
        format!(
            "{}{:?} = {}\n",
            t.dtype,
            t.shape,
            oxyfuel_graph::text::elements_text(t)
        )
    };
    inputs.iter().map(line).collect()
}
