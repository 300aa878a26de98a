//! The verifier: what passed it never makes a later step panic.
//!
//! Invariants:
//!  1. Inputs are values 0, 1, ...; the results of the nodes follow, numbered in order. Every value is defined exactly once.
//!  2. A node reads only values defined before it.
//!  3. A node's operands obey the rule of its op, and its results have exactly the types the rule gives (`rules.rs`).
//!  4. Sizes and strides are valid expressions over declared symbols; constant sizes are not negative; the number of bytes of a
//!     tensor of constant size fits into 63 bits.
//!  5. A layout has one stride a dimension. An alignment is a power of two.
//!  6. Names of the graph, of values and of constants are identifiers; names of values are unique, names of constants too, and a symbol is declared once.
//!  7. A constant has as many bytes as its type says.
//!  8. A result of the graph is one of its values. One that is aliased to an input has that input's type, and no input is
//!     aliased twice. Only an input is given away or frozen, and none that a result is stored into.
//!  9. A number in an attribute is one the result's dtype can hold, so that lowering never rounds it again.
//!
//! A broken invariant is `E0301`; a broken rule (3) keeps the rule's own code.

use crate::ir::{Graph, Layout, NodeId, TensorType, ValueId};
use crate::op::Op;
use crate::rules::{Scope, infer};
use crate::tensor::byte_len;
use oxyfuel_base::{Code, Error, Expr, Id, Location, Result, Symbol, ensure};
use std::collections::HashSet;

/// Checks every invariant; the first that is broken is the error.
pub fn verify(graph: &Graph) -> Result<()> {
    ensure!(
        is_identifier(&graph.name),
        InvalidGraph,
        "the graph's name {:?} is no identifier",
        graph.name
    );
    let symbols = symbols(graph)?;
    numbering(graph)?;
    values(graph, &symbols)?;
    constants(graph)?;
    let ranges = graph.ranges();
    let scope = Scope {
        constants: &graph.constants,
        ranges: &ranges,
    };
    for id in graph.nodes.ids() {
        node(graph, scope, &symbols, id).map_err(|e| describe(graph, id, e))?;
    }
    outputs(graph)
}

/// Letters, digits and `_`, not starting with a digit.
pub(crate) fn is_identifier(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Says which node an error is about, and where the user wrote it.
fn describe(graph: &Graph, id: NodeId, error: Error) -> Error {
    let node = &graph.nodes[id];
    let name = node
        .outputs
        .first()
        .map_or_else(|| id.to_string(), |&v| crate::text::value_name(graph, v));
    let error = error.context(format!("in the definition of {name}"));
    match (&error.at, &node.origin.at) {
        (None, Some(place)) => error.at(Location::new(place.file.as_str(), place.line, 1)),
        (Some(_), _) | (None, None) => error,
    }
}

fn symbols(graph: &Graph) -> Result<HashSet<Symbol>> {
    let mut seen = HashSet::new();
    for s in &graph.symbols {
        ensure!(
            seen.insert(s.symbol),
            InvalidGraph,
            "symbol {} is declared twice",
            s.symbol
        );
        ensure!(
            s.min <= s.max,
            InvalidGraph,
            "symbol {} has no value between {} and {}",
            s.symbol,
            s.min,
            s.max
        );
    }
    Ok(seen)
}

fn numbering(graph: &Graph) -> Result<()> {
    let defined = graph
        .inputs
        .iter()
        .chain(graph.nodes.values().flat_map(|n| &n.outputs));
    let mut count = 0;
    for &v in defined {
        ensure!(
            v.index() == count,
            InvalidGraph,
            "{v} is defined where value {count} should be"
        );
        count += 1;
    }
    ensure!(
        count == graph.values.len(),
        InvalidGraph,
        "{} values, of which {count} are defined",
        graph.values.len()
    );
    Ok(())
}

fn values(graph: &Graph, symbols: &HashSet<Symbol>) -> Result<()> {
    let mut names = HashSet::new();
    for (id, value) in graph.values.iter() {
        let called = || crate::text::value_name(graph, id);
        if let Some(name) = &value.name {
            ensure!(
                is_identifier(name),
                InvalidGraph,
                "the name {name:?} of a value is no identifier"
            );
            ensure!(
                names.insert(name),
                InvalidGraph,
                "two values are called %{name}"
            );
        }
        tensor_type(&value.ty, symbols).map_err(|e| e.context(called()))?;
        match &value.layout {
            Layout::Any => {}
            Layout::Required(strides) | Layout::Chosen(strides) => {
                ensure!(
                    strides.len() == value.ty.rank(),
                    InvalidGraph,
                    "{}: {} strides for {} dimensions",
                    called(),
                    strides.len(),
                    value.ty.rank()
                );
                strides
                    .iter()
                    .try_for_each(|s| expression(s, symbols))
                    .map_err(|e| e.context(called()))?;
            }
        }
        ensure!(
            !value.given || graph.inputs.contains(&id),
            InvalidGraph,
            "{} is given away and no input",
            called()
        );
        ensure!(
            !value.frozen || (graph.inputs.contains(&id) && !value.given),
            InvalidGraph,
            "{} is frozen and no input, or given away",
            called()
        );
        ensure!(
            value.align.is_power_of_two(),
            InvalidGraph,
            "{}: alignment {} is no power of two",
            called(),
            value.align
        );
    }
    Ok(())
}

fn tensor_type(ty: &TensorType, symbols: &HashSet<Symbol>) -> Result<()> {
    for size in &ty.shape {
        expression(size, symbols)?;
        ensure!(
            size.as_const().is_none_or(|n| n >= 0),
            InvalidGraph,
            "negative size {size}"
        );
    }
    let constant: Option<Vec<i64>> = ty.shape.iter().map(Expr::as_const).collect();
    if let Some(shape) = constant {
        byte_len(ty.dtype, &shape)?;
    }
    Ok(())
}

fn expression(e: &Expr, symbols: &HashSet<Symbol>) -> Result<()> {
    if e.as_const().is_some() {
        return Ok(());
    }
    e.check()?;
    match e.symbols().iter().find(|s| !symbols.contains(s)) {
        None => Ok(()),
        Some(s) => Err(Error::new(
            Code::InvalidGraph,
            format!("symbol {s} is not declared"),
        )),
    }
}

fn constants(graph: &Graph) -> Result<()> {
    let mut names = HashSet::new();
    for constant in graph.constants.values() {
        let name = &constant.name;
        ensure!(
            is_identifier(name),
            InvalidGraph,
            "the name {name:?} of a constant is no identifier"
        );
        ensure!(
            names.insert(name),
            InvalidGraph,
            "two constants are called @{name}"
        );
        let t = &constant.tensor;
        let bytes = byte_len(t.dtype, &t.shape).map_err(|e| e.context(format!("@{name}")))?;
        ensure!(
            t.data.len() == bytes,
            InvalidGraph,
            "@{name} has {} bytes instead of {bytes}",
            t.data.len()
        );
    }
    Ok(())
}

fn node(graph: &Graph, scope: Scope<'_>, symbols: &HashSet<Symbol>, id: NodeId) -> Result<()> {
    let node = &graph.nodes[id];
    let results = node.op.result_count();
    ensure!(
        node.outputs.len() == results,
        InvalidGraph,
        "{} results instead of {results}",
        node.outputs.len()
    );
    let first = node.outputs[0];
    if let Some(late) = node.inputs.iter().find(|&&v| v >= first) {
        return Err(Error::new(
            Code::InvalidGraph,
            format!("{late} is read before its definition"),
        ));
    }
    attributes(&node.op, symbols)?;
    let operands: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
    let types = infer(scope, &node.op, &operands)?;
    for (&v, ty) in node.outputs.iter().zip(&types) {
        let have = graph.ty(v);
        ensure!(
            have == ty,
            InvalidGraph,
            "declared as {}, but {} gives {}",
            crate::text::type_text(have),
            node.op.name(),
            crate::text::type_text(ty)
        );
    }
    Ok(())
}

fn attributes(op: &Op, symbols: &HashSet<Symbol>) -> Result<()> {
    match op {
        Op::Full { value, dtype, .. } => {
            ensure!(
                value.cast(*dtype) == *value,
                InvalidGraph,
                "{dtype} cannot hold {value}"
            );
        }
        Op::Arange {
            start, step, dtype, ..
        } => {
            let fits = |s: &oxyfuel_base::Scalar| {
                matches!(s, oxyfuel_base::Scalar::I(_))
                    || (dtype.is_float() && s.as_f64().is_finite())
            };
            ensure!(
                fits(start) && fits(step),
                InvalidGraph,
                "{dtype} cannot count from {start} in steps of {step}"
            );
        }
        Op::NativeLayerNorm { eps: number, .. }
        | Op::Sdpa { scale: number, .. }
        | Op::SdpaBackward { scale: number, .. }
        | Op::Var {
            correction: number, ..
        } => {
            ensure!(
                number.as_f64().is_finite(),
                InvalidGraph,
                "{number} is not finite"
            );
        }
        Op::Slice { start, end, .. } | Op::SliceScatter { start, end, .. } => {
            expression(start, symbols)?;
            expression(end, symbols)?;
        }
        Op::ScalarTensor { value, .. } => expression(value, symbols)?,
        Op::External { call } => {
            call.exprs()
                .into_iter()
                .try_for_each(|e| expression(e, symbols))?;
            for bind in &call.binds {
                expression(&Expr::from(bind.symbol), symbols)?;
                ensure!(
                    (bind.result as usize) < call.results.len(),
                    InvalidGraph,
                    "{} is bound to result {}, which does not exist",
                    bind.symbol,
                    bind.result
                );
            }
        }
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Reduce { .. }
        | Op::Scatter { .. }
        | Op::Where
        | Op::Cast { .. }
        | Op::Clone => {}
        Op::View { .. }
        | Op::Permute { .. }
        | Op::Expand { .. }
        | Op::Cat { .. }
        | Op::Gather { .. }
        | Op::IndexSelect { .. }
        | Op::IndexPut { .. } => {}
        Op::Embedding
        | Op::Constant { .. }
        | Op::Mm
        | Op::Bmm
        | Op::IntMm
        | Op::Softmax { .. }
        | Op::LogSoftmax { .. }
        | Op::Argmax { .. }
        | Op::Argmin { .. }
        | Op::Cumsum { .. }
        | Op::Argsort { .. }
        | Op::Cumprod { .. }
        | Op::LinearScan { .. }
        | Op::Copy => {}
        Op::Addmm { .. } | Op::MmPanels { .. } => {}
        Op::Convolution { .. } | Op::ConvPanels { .. } => {}
    }
    Ok(())
}

fn outputs(graph: &Graph) -> Result<()> {
    let mut aliased: HashSet<usize> = HashSet::new();
    for output in &graph.outputs {
        let v: ValueId = output.value;
        ensure!(
            graph.values.get(v).is_some(),
            InvalidGraph,
            "the result {v} is no value of the graph"
        );
        let Some(input) = output.alias else { continue };
        let Some(&target) = graph.inputs.get(input) else {
            return Err(Error::new(
                Code::InvalidGraph,
                format!("a result is stored into input {input}, which does not exist"),
            ));
        };
        ensure!(
            !graph.values[target].given,
            InvalidGraph,
            "a result is stored into input {input}, which is given away"
        );
        ensure!(
            !graph.values[target].frozen,
            InvalidGraph,
            "a result is stored into input {input}, which is frozen"
        );
        let called = |v| crate::text::value_name(graph, v);
        ensure!(
            graph.ty(v) == graph.ty(target),
            InvalidGraph,
            "{} cannot be stored into {}: their types differ",
            called(v),
            called(target)
        );
        ensure!(
            aliased.insert(input),
            InvalidGraph,
            "two results are stored into {}",
            called(target)
        );
    }
    Ok(())
}
