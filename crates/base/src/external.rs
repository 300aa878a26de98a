//! A call of the host's own operator, as data.
//!
//! What we do not compile runs in the framework that brought the program. Such a call stands in both the tensor IR and the plan: a name that the host
//! resolves, a template of its arguments, and what it returns. Nothing here knows the host; the names are its own.

use crate::{DType, Expr, Symbol};
use serde::{Deserialize, Serialize};

/// A call of an operator that the host provides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct External {
    /// What the host resolves to something callable, such as `aten.convolution.default`.
    pub name: String,
    /// Positional arguments.
    #[serde(default)]
    pub args: Vec<Arg>,
    /// Arguments by name.
    #[serde(default)]
    pub kwargs: Vec<(String, Arg)>,
    /// Strides that each operand must have when the call sees it; `None`: any.
    #[serde(default)]
    pub operand_strides: Vec<Option<Vec<Expr>>>,
    /// What the call returns, one entry a value of the graph.
    pub results: Vec<ExternalResult>,
    /// The call returns a sequence whose items are the results; otherwise it returns the only one.
    #[serde(default)]
    pub sequence: bool,
    /// Symbols that get their numbers from what the call returns.
    #[serde(default)]
    pub binds: Vec<Bind>,
    /// Has effects (random numbers, mutation, communication): keeps its place among other ordered calls, and is never removed or repeated.
    #[serde(default)]
    pub ordered: bool,
    /// Why it is not compiled, in a few words.
    #[serde(default)]
    pub reason: String,
    /// The GPU that its tensors are on, where no operand tells; `None`: the host's own memory.
    #[serde(default)]
    pub gpu: Option<u32>,
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arg {
    /// Operand number `.0` of the node.
    Operand(u32),
    /// Nothing.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer, perhaps symbolic.
    Int(Expr),
    /// A float by its bits, so that NaN equals itself.
    Float(u64),
    /// A string.
    Str(String),
    /// A dtype by the host's name.
    #[serde(rename = "dtype")]
    DType(String),
    /// A device by the host's name.
    Device(String),
    /// A layout (strided, sparse) by the host's name.
    Layout(String),
    /// A memory format by the host's name.
    MemoryFormat(String),
    /// A list.
    List(Vec<Arg>),
    /// A tuple.
    Tuple(Vec<Arg>),
    /// An object of the host's own, by its number in the host's list.
    Object(u32),
}

/// A symbol that a call gives its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bind {
    /// The symbol.
    pub symbol: Symbol,
    /// Which result tells it.
    pub result: u32,
    /// An extent of the result; `None`: the result is the number.
    pub dim: Option<u32>,
}

/// One thing that a call returns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExternalResult {
    /// A tensor.
    Tensor {
        /// Element type.
        dtype: DType,
        /// Extents.
        shape: Vec<Expr>,
        /// In elements.
        strides: Vec<Expr>,
    },
    /// Something only the host understands.
    Opaque,
    /// Nothing.
    Nothing,
}

impl External {
    /// Every expression in the call.
    pub fn exprs(&self) -> Vec<&Expr> {
        fn walk<'a>(arg: &'a Arg, out: &mut Vec<&'a Expr>) {
            match arg {
                Arg::Int(expr) => out.push(expr),
                Arg::List(items) | Arg::Tuple(items) => items.iter().for_each(|a| walk(a, out)),
                Arg::Operand(_)
                | Arg::None
                | Arg::Bool(_)
                | Arg::Float(_)
                | Arg::Str(_)
                | Arg::DType(_)
                | Arg::Device(_)
                | Arg::Layout(_)
                | Arg::MemoryFormat(_)
                | Arg::Object(_) => {}
            }
        }
        let mut out = vec![];
        for arg in self.args.iter().chain(self.kwargs.iter().map(|(_, a)| a)) {
            walk(arg, &mut out);
        }
        out.extend(self.operand_strides.iter().flatten().flatten());
        for result in &self.results {
            if let ExternalResult::Tensor { shape, strides, .. } = result {
                out.extend(shape.iter().chain(strides));
            }
        }
        out
    }

    /// The largest operand number in the template, plus one.
    pub fn operand_count(&self) -> usize {
        fn walk(arg: &Arg) -> usize {
            match arg {
                Arg::Operand(n) => *n as usize + 1,
                Arg::List(items) | Arg::Tuple(items) => items.iter().map(walk).max().unwrap_or(0),
                Arg::None
                | Arg::Bool(_)
                | Arg::Int(_)
                | Arg::Float(_)
                | Arg::Str(_)
                | Arg::DType(_)
                | Arg::Device(_)
                | Arg::Layout(_)
                | Arg::MemoryFormat(_)
                | Arg::Object(_) => 0,
            }
        }
        let all = self.args.iter().chain(self.kwargs.iter().map(|(_, a)| a));
        all.map(walk).max().unwrap_or(0)
    }
}
