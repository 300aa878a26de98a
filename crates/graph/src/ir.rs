//! The tensor IR: a graph of typed values in functional SSA form.
//!
//! A [`Graph`] maps input tensors to output tensors. Each [`Value`] is defined once, by being an input or by one [`Node`], and has a
//! type (dtype, symbolic shape, device), a layout and a known alignment. Nodes stand in an order in which every operand is defined
//! before its use; values are numbered in the order of their definition, inputs first. Nothing is mutated: a program that
//! writes to an input has an output *aliased* to that input, and the runtime stores the result there.
//!
//! Shapes are expressions over the graph's symbols. Operands of a pointwise op have one dtype (the builder inserts the casts of
//! PyTorch's promotion) and shapes that broadcast by numpy's rule: missing leading dimensions and dimensions of size 1 repeat. The
//! broadcasting is implicit, since whoever lowers an op sees it as an index map.
//!
//! The fields are public so that passes can read them plainly; a pass builds a new graph with [`crate::Rebuild`] or the
//! [`crate::Builder`], and `verify` checks what it made.

use crate::op::Op;
use oxyfuel_base::{Arena, DType, Expr, Symbol, define_id};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

define_id! {
    /// A value of a [`Graph`].
    pub struct ValueId "";
    /// A node of a [`Graph`].
    pub struct NodeId "n";
    /// A constant of a [`Graph`].
    pub struct ConstId "c"
}

/// Where a tensor lives: data only, nothing here knows what the device can do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub enum Device {
    #[default]
    Cpu,
    Cuda(u32),
    /// Not a tensor of ours: an object that the host keeps, of type `u8[0]`, which only external calls can read.
    Host,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::Host => f.write_str("host"),
        }
    }
}

/// What the type system knows of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Vec<Expr>,
    pub device: Device,
}

impl TensorType {
    pub fn new(dtype: DType, shape: Vec<Expr>, device: Device) -> Self {
        Self {
            dtype,
            shape,
            device,
        }
    }

    /// The type of an object that the host keeps.
    pub fn object() -> Self {
        Self::new(DType::U8, vec![Expr::ZERO], Device::Host)
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> Expr {
        self.shape.iter().cloned().product()
    }

    /// Row-major strides, in elements.
    pub fn contiguous_strides(&self) -> Vec<Expr> {
        let mut strides = vec![Expr::ONE; self.rank()];
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i].clone() * self.shape[i].clone();
        }
        strides
    }
}

/// Where the elements of a value lie, as strides in elements.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub enum Layout {
    /// Nobody cares yet.
    #[default]
    Any,
    /// A border or an external op demands these strides.
    Required(Vec<Expr>),
    /// The layout pass chose these strides.
    Chosen(Vec<Expr>),
}

impl Layout {
    /// The strides, once they are settled.
    pub fn strides(&self) -> Option<&[Expr]> {
        match self {
            Layout::Any => None,
            Layout::Required(strides) | Layout::Chosen(strides) => Some(strides),
        }
    }
}

/// A tensor in the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    pub ty: TensorType,
    pub layout: Layout,
    /// Known alignment of the first element in bytes, a power of two; 1 when nothing is known.
    pub align: u32,
    /// An input that nobody looks at after the graph ran: its memory may hold other values as soon as everyone has read it.
    #[serde(default)]
    pub given: bool,
    /// An input that is the same at every call: what follows from such inputs alone may be computed once and kept.
    #[serde(default)]
    pub frozen: bool,
    /// Name in the text: an identifier, unique in the graph.
    pub name: Option<String>,
}

impl Value {
    pub fn new(ty: TensorType) -> Self {
        Self {
            ty,
            layout: Layout::Any,
            align: 1,
            given: false,
            frozen: false,
            name: None,
        }
    }
}

/// A place in the user's program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    pub file: String,
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Where a node came from: what kernels and errors show to the user.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The line of the user's program.
    pub at: Option<Place>,
    /// Names of the source operators it stands for.
    pub ops: Vec<String>,
    /// The node of the imported program that it computes, by that program's name for it.
    pub source: Option<String>,
}

impl Origin {
    /// Where something made of several nodes came from: the first known place, and every source operator once.
    pub fn merge<'a>(origins: impl IntoIterator<Item = &'a Origin>) -> Origin {
        let mut out = Origin::default();
        for origin in origins {
            out.at = out.at.or_else(|| origin.at.clone());
            out.source = out.source.or_else(|| origin.source.clone());
            for op in &origin.ops {
                if !out.ops.contains(op) {
                    out.ops.push(op.clone());
                }
            }
        }
        out
    }

    pub fn is_empty(&self) -> bool {
        self.at.is_none() && self.ops.is_empty() && self.source.is_none()
    }
}

/// One application of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub op: Op,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    pub origin: Origin,
}

impl Node {
    /// The first result; the only one, for most ops.
    pub fn out(&self) -> ValueId {
        self.outputs[0]
    }
}

/// A result of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOutput {
    pub value: ValueId,
    /// The input (by position) whose memory receives this value: a mutation of that input.
    pub alias: Option<usize>,
}

/// An unknown integer of the graph: a size of an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymbolInfo {
    pub symbol: Symbol,
    /// The least value it can have.
    pub min: i64,
    /// The greatest value it can have; `i64::MAX` when nothing is known.
    pub max: i64,
    /// What the user calls it.
    pub name: Option<String>,
    /// A value that it is likely to have: good for speed, never for meaning.
    #[serde(default)]
    pub hint: Option<i64>,
}

/// A tensor that belongs to the graph: row-major bytes, as in [`crate::HostTensor`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Name in the text: an identifier, unique among the constants.
    pub name: String,
    pub tensor: Arc<crate::HostTensor>,
}

/// A tensor program. See the module's documentation.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Graph {
    pub name: String,
    pub symbols: Vec<SymbolInfo>,
    pub constants: Arena<ConstId, Constant>,
    pub values: Arena<ValueId, Value>,
    pub nodes: Arena<NodeId, Node>,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<GraphOutput>,
}
