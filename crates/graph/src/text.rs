//! The text of a graph. `parse` reads it back to an equal graph.
//!
//! ```text
//! sym s0: 1..4096 "batch" hint 8
//! graph @f(%x: f32[s0, 8] cpu required[8, 1] align 64, %b: f32[8] cpu) {
//!   const @half: f32[1] = [0.5]
//!   %2: f32[s0, 8] = add %x, %b
//!   %3: f32[s0, 8] = gelu %2, approximate="tanh" at "model.rs":12 from "mlp"
//!   %4: f32[s0] = sum %3, dims=[1], keepdim=false
//!   return %4, %3 into %x
//! }
//! ```
//!
//! A value is written with its name, or else its number. A type is dtype, shape and device; a result without a device is on that
//! of the first input (cpu when there is none). What follows a type is the layout (`required` or `chosen` strides) and the alignment, where they
//! are known, `given` for an input that nobody looks at any more, and `frozen` for one that is the same at every call. Numbers of `full` and of constants are rounded to the dtype as they are read. Attributes stand in the order of the op table, all of them except those the result's type repeats. A comment
//! runs from `//` to the end of the line.

use crate::ir::{Device, Graph, Layout, Node, TensorType, Value, ValueId};
use crate::op::{AttrValue, Op};
use crate::rules::shape_text;
use crate::tensor::HostTensor;
use oxyfuel_base::{DType, Expr, Scalar};
use std::fmt::{self, Write as _};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self, true))
    }
}

/// The text of a graph, with or without the places in the user's program.
pub fn print(graph: &Graph, origins: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_graph(&mut out, graph, origins);
    out
}

fn write_graph(out: &mut String, graph: &Graph, origins: bool) -> fmt::Result {
    for s in &graph.symbols {
        write!(out, "sym {}: {}..", s.symbol, s.min)?;
        if s.max != i64::MAX {
            write!(out, "{}", s.max)?;
        }
        if let Some(name) = &s.name {
            write!(out, " {}", quote(name))?;
        }
        if let Some(hint) = s.hint {
            write!(out, " hint {hint}")?;
        }
        out.push('\n');
    }
    write!(out, "graph @{}(", graph.name)?;
    for (i, &v) in graph.inputs.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(out, "{comma}{}", declaration(graph, v, None))?;
    }
    out.push_str(") {\n");
    for constant in graph.constants.values() {
        let t = &constant.tensor;
        writeln!(
            out,
            "  const @{}: {}{:?} = {}",
            constant.name,
            t.dtype,
            t.shape,
            elements_text(t)
        )?;
    }
    let device = default_device(graph);
    for node in graph.nodes.values() {
        out.push_str("  ");
        for (i, &v) in node.outputs.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(out, "{comma}{}", declaration(graph, v, Some(device)))?;
        }
        write!(out, " = {}", application(graph, node))?;
        if origins && let Some(place) = &node.origin.at {
            write!(out, " at {}:{}", quote(&place.file), place.line)?;
        }
        if origins && !node.origin.ops.is_empty() {
            let ops: Vec<String> = node.origin.ops.iter().map(|op| quote(op)).collect();
            write!(out, " from {}", ops.join(", "))?;
        }
        out.push('\n');
    }
    out.push_str("  return");
    for (i, output) in graph.outputs.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        write!(out, "{comma} {}", value_name(graph, output.value))?;
        if let Some(&input) = output.alias.and_then(|i| graph.inputs.get(i)) {
            write!(out, " into {}", value_name(graph, input))?;
        }
    }
    out.push_str("\n}\n");
    Ok(())
}

/// The device of values that do not say theirs.
pub(crate) fn default_device(graph: &Graph) -> Device {
    graph
        .inputs
        .first()
        .map_or(Device::Cpu, |&v| graph.ty(v).device)
}

/// `%x`, or `%7` for a value without a name.
pub fn value_name(graph: &Graph, value: ValueId) -> String {
    match graph.values.get(value).and_then(|v| v.name.as_ref()) {
        Some(name) => format!("%{name}"),
        None => value.to_string(),
    }
}

/// `f32[4, s0] cpu`.
pub fn type_text(ty: &TensorType) -> String {
    format!("{}{} {}", ty.dtype, shape_text(&ty.shape), ty.device)
}

/// Name, type and properties; the device is left out where it is `implied`.
fn declaration(graph: &Graph, id: ValueId, implied: Option<Device>) -> String {
    let Value {
        ty,
        layout,
        align,
        given,
        frozen,
        name: _,
    } = &graph.values[id];
    let mut out = format!(
        "{}: {}{}",
        value_name(graph, id),
        ty.dtype,
        shape_text(&ty.shape)
    );
    if implied != Some(ty.device) {
        let _ = write!(out, " {}", ty.device);
    }
    let (word, strides) = match layout {
        Layout::Any => ("", None),
        Layout::Required(strides) => ("required", Some(strides)),
        Layout::Chosen(strides) => ("chosen", Some(strides)),
    };
    if let Some(strides) = strides {
        let _ = write!(out, " {word}{}", shape_text(strides));
    }
    if *align != 1 {
        let _ = write!(out, " align {align}");
    }
    if *given {
        out.push_str(" given");
    }
    if *frozen {
        out.push_str(" frozen");
    }
    out
}

/// Op, operands and attributes.
fn application(graph: &Graph, node: &Node) -> String {
    let info = node.op.info();
    let mut parts: Vec<String> = node.inputs.iter().map(|&v| value_name(graph, v)).collect();
    parts.extend(
        info.fixed
            .map(|(name, value)| format!("{name}={}", quote(value))),
    );
    for ((name, _), value) in info.attrs.iter().zip(node.op.attrs()) {
        let text = match &node.op {
            Op::Full { value, dtype, .. } => number_text(*dtype, *value),
            _ => attr_text(graph, &value),
        };
        parts.push(format!("{name}={text}"));
    }
    let separator = if parts.is_empty() { "" } else { " " };
    format!("{}{separator}{}", info.name, parts.join(", "))
}

fn attr_text(graph: &Graph, value: &AttrValue) -> String {
    match value {
        AttrValue::Index(n) => n.to_string(),
        AttrValue::Int(n) => n.to_string(),
        AttrValue::Flag(b) => b.to_string(),
        AttrValue::Dims(dims) => format!("{dims:?}"),
        AttrValue::Expr(e) => expr_text(e),
        AttrValue::Scalar(s) => s.to_string(),
        AttrValue::Const(id) => graph
            .constants
            .get(*id)
            .map_or_else(|| id.to_string(), |c| format!("@{}", c.name)),
        // Plain data: writing it cannot fail.
        AttrValue::Call(call) => quote(&serde_json::to_string(&**call).unwrap_or_default()),
    }
}

/// An expression in an attribute: parentheses unless it is one word.
fn expr_text(e: &Expr) -> String {
    if e.as_const().is_some() || e.as_symbol().is_some() {
        e.to_string()
    } else {
        format!("({e})")
    }
}

/// The elements of a tensor, row-major: `[1.0, 2.0]`. An element that its number would not give back bit for bit shows its bits.
pub fn elements_text(tensor: &HostTensor) -> String {
    let mut out = String::from("[");
    for i in 0..tensor.numel() {
        if i > 0 {
            out.push_str(", ");
        }
        let (bits, number) = (tensor.bits(i), tensor.get(i));
        if number.to_bits(tensor.dtype) == bits {
            out.push_str(&number_text(tensor.dtype, number));
        } else {
            let _ = write!(out, "{bits:#x}");
        }
    }
    out.push(']');
    out
}

/// A number of a dtype, in as few digits as give it back when they are rounded to that dtype: `0.1` for the f32 nearest to it.
pub fn number_text(dtype: DType, number: Scalar) -> String {
    if let Scalar::F(x) = number
        && dtype != DType::F64
        && !x.is_nan()
    {
        let short = format!("{:?}", x as f32);
        if short
            .parse::<Scalar>()
            .is_ok_and(|s| s.cast(dtype) == number)
        {
            return short;
        }
    }
    number.to_string()
}

/// A string in quotes, with `\`, `"` and control characters escaped.
fn quote(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
