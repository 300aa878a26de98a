//! Builds graphs the way PyTorch reads programs: broadcasting, promotion, negative dimensions, numbers as operands.
//!
//! The IR is strict; this is where PyTorch's leniency is spelled out as casts and constants. Each node remembers the caller's line
//! (`#[track_caller]`), or the origin an importer set with [`Builder::set_origin`], and errors point there.
//!
//! ```
//! use oxyfuel_graph::{Builder, Device};
//! use oxyfuel_base::{DType, Expr};
//! # fn main() -> oxyfuel_base::Result<()> {
//! let mut b = Builder::new("f");
//! let x = b.input("x", DType::F32, vec![Expr::from(4), Expr::from(2)], Device::Cpu)?;
//! let y = b.mul(x, 2.0)?;
//! let z = b.relu(y)?;
//! b.output(z);
//! println!("{}", b.finish()?);
//! # Ok(())
//! # }
//! ```

mod adaptive;
mod border;
mod grid;
mod index;
mod place;
mod pointwise;
mod pool;
mod promote;
mod reduce;
mod resize;
mod running;
mod scatter;
mod search;
mod shape;
mod source;
mod spaced;
mod unfold;

pub use border::{Border, Bordering};
pub use grid::{Between, Outside};
pub use index::Indexed;
pub use pool::{Divisor, Windows};
pub use promote::{Operand, default_float, result_type};
pub use resize::Resized;
pub use scatter::Meet;

use crate::HostTensor;
use crate::ir::{
    Constant, Device, Graph, GraphOutput, Layout, Node, Origin, Place, SymbolInfo, TensorType,
    Value, ValueId,
};
use crate::op::Op;
use crate::rules::{self, Scope};
use oxyfuel_base::{Code, DType, Error, Expr, Location, Ranges, Result, Symbol};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic;
use std::sync::Arc;

/// Builds a [`Graph`]. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Builder {
    graph: Graph,
    ranges: Ranges,
    origin: Option<Origin>,
    /// How many of the first `counted` values have each name.
    names: HashMap<String, usize>,
    counted: usize,
}

impl Builder {
    pub fn new(name: impl Into<String>) -> Self {
        let graph = Graph {
            name: identifier(&name.into()),
            ..Graph::default()
        };
        Self {
            graph,
            ranges: Ranges::default(),
            origin: None,
            names: HashMap::new(),
            counted: 0,
        }
    }

    /// Goes on with a graph that is not finished.
    pub(crate) fn resume(graph: Graph) -> Self {
        let ranges = graph.ranges();
        Self {
            graph,
            ranges,
            origin: None,
            names: HashMap::new(),
            counted: 0,
        }
    }

    /// What was built so far, unverified.
    pub(crate) fn into_graph(self) -> Graph {
        self.graph
    }

    /// A node whose result types are known to be right.
    pub(crate) fn push_raw(
        &mut self,
        op: Op,
        inputs: Vec<ValueId>,
        results: Vec<Value>,
        origin: Origin,
    ) -> Vec<ValueId> {
        let outputs: Vec<ValueId> = results
            .into_iter()
            .map(|value| self.graph.values.push(value))
            .collect();
        self.graph.nodes.push(Node {
            op,
            inputs,
            outputs: outputs.clone(),
            origin,
        });
        outputs
    }

    /// What was built so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.graph.values[value].ty
    }

    /// Nodes from here on come from `origin` instead of the caller's line; `None` returns to that.
    pub fn set_origin(&mut self, origin: Option<Origin>) {
        self.origin = origin;
    }

    /// A new unknown size, at least `min` and at most `max`.
    pub fn symbol(&mut self, name: impl Into<String>, min: i64, max: i64) -> Expr {
        let symbol = Symbol(u32::try_from(self.graph.symbols.len()).unwrap_or(u32::MAX));
        self.ranges.set(symbol, min, max);
        self.graph.symbols.push(SymbolInfo {
            symbol,
            min,
            max,
            name: Some(name.into()),
            hint: None,
        });
        Expr::from(symbol)
    }

    /// A symbol with all its properties, whose number the caller chose.
    pub fn declare(&mut self, info: SymbolInfo) {
        self.ranges.set(info.symbol, info.min, info.max);
        self.graph.symbols.push(info);
    }

    /// A new input with any layout.
    pub fn input(
        &mut self,
        name: &str,
        dtype: DType,
        shape: Vec<Expr>,
        device: Device,
    ) -> Result<ValueId> {
        self.input_value(Value {
            name: Some(name.to_owned()),
            ..Value::new(TensorType::new(dtype, shape, device))
        })
    }

    /// A new input with all its properties. Its name is made a unique identifier.
    pub fn input_value(&mut self, mut value: Value) -> Result<ValueId> {
        if !self.graph.nodes.is_empty() {
            return Err(Error::new(
                Code::InvalidArgument,
                "inputs come before the first operation",
            ));
        }
        value.name = value.name.map(|name| self.unique_name(&name));
        let id = self.graph.values.push(value);
        self.graph.inputs.push(id);
        Ok(id)
    }

    /// A tensor that belongs to the graph.
    #[track_caller]
    pub fn constant(&mut self, name: &str, tensor: HostTensor, device: Device) -> Result<ValueId> {
        let wanted = identifier(name);
        let taken = |n: &str| self.graph.constants.values().any(|c| c.name == n);
        let name = first_free(&wanted, taken);
        let id = self.graph.constants.push(Constant {
            name,
            tensor: Arc::new(tensor),
        });
        self.emit(Op::Constant { id, device }, &[])
    }

    /// A table that operators are made of: equal ones are one.
    #[track_caller]
    pub(crate) fn table(
        &mut self,
        name: &str,
        tensor: HostTensor,
        device: Device,
    ) -> Result<ValueId> {
        let equal = |known: &Constant| *known.tensor == tensor;
        let known = self
            .graph
            .constants
            .ids()
            .find(|&id| equal(&self.graph.constants[id]));
        match known {
            Some(id) => self.emit(Op::Constant { id, device }, &[]),
            None => self.constant(name, tensor, device),
        }
    }

    /// Gives a value a name in the text, made a unique identifier.
    pub fn set_name(&mut self, value: ValueId, name: &str) {
        self.count_names();
        if let Some(old) = self.graph.values[value].name.take()
            && let Entry::Occupied(mut count) = self.names.entry(old)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        let name = self.unique_name(name);
        *self.names.entry(name.clone()).or_default() += 1;
        self.graph.values[value].name = Some(name);
    }

    pub fn set_layout(&mut self, value: ValueId, layout: Layout) {
        self.graph.values[value].layout = layout;
    }

    /// The input of this position is the same at every call.
    pub fn freeze(&mut self, input: usize) {
        let value = self.graph.inputs[input];
        self.graph.values[value].frozen = true;
    }

    /// One application of an op to operands that already fit; all its results.
    #[track_caller]
    pub fn node(&mut self, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>> {
        let place = panic::Location::caller();
        if let Some(unknown) = inputs.iter().find(|&&v| self.graph.values.get(v).is_none()) {
            return Err(self.locate(Error::new(
                Code::InvalidArgument,
                format!("{unknown} is no value of this graph"),
            )));
        }
        let types: Vec<&TensorType> = inputs.iter().map(|&v| &self.graph.values[v].ty).collect();
        let scope = Scope {
            constants: &self.graph.constants,
            ranges: &self.ranges,
        };
        let results = match rules::infer(scope, &op, &types) {
            Ok(results) => results,
            Err(e) => return Err(self.locate(e)),
        };
        let outputs: Vec<ValueId> = results
            .into_iter()
            .map(|ty| self.graph.values.push(Value::new(ty)))
            .collect();
        let origin = self.origin.clone().unwrap_or_else(|| Origin {
            at: Some(Place {
                file: place.file().to_owned(),
                line: place.line(),
            }),
            ..Origin::default()
        });
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
            origin,
        });
        Ok(outputs)
    }

    /// One application of an op; its first result.
    #[track_caller]
    pub fn emit(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        Ok(self.node(op, inputs)?[0])
    }

    /// Makes a value a result of the graph.
    pub fn output(&mut self, value: ValueId) {
        self.graph.outputs.push(GraphOutput { value, alias: None });
    }

    /// Makes a value the new content of an input (by position).
    pub fn mutate(&mut self, input: usize, value: ValueId) {
        self.graph.outputs.push(GraphOutput {
            value,
            alias: Some(input),
        });
    }

    /// The finished graph, verified.
    pub fn finish(self) -> Result<Graph> {
        crate::verify(&self.graph)?;
        Ok(self.graph)
    }

    /// An argument error that points at the caller.
    #[track_caller]
    pub(crate) fn fail<T>(&self, code: Code, message: String) -> Result<T> {
        Err(self.locate(Error::new(code, message)))
    }

    /// Adds the place in the user's program, where none is known yet.
    #[track_caller]
    fn locate(&self, error: Error) -> Error {
        if error.at.is_some() {
            return error;
        }
        let at = match self.origin.as_ref().and_then(|o| o.at.as_ref()) {
            Some(place) => Location::new(place.file.as_str(), place.line, 1),
            None => {
                let caller = panic::Location::caller();
                Location::new(caller.file(), caller.line(), caller.column())
            }
        };
        error.at(at)
    }

    /// A dimension counted from the end when negative.
    #[track_caller]
    fn dim(&self, op: &str, dim: i64, rank: usize) -> Result<usize> {
        let r = i64::try_from(rank).unwrap_or(i64::MAX);
        // PyTorch lets a tensor without dimensions have dimension 0 and -1.
        let bound = r.max(1);
        if dim < -bound || dim >= bound {
            return self.fail(
                Code::DimOutOfRange,
                format!("{op}: dimension {dim} of a tensor with {rank} dimensions"),
            );
        }
        Ok(usize::try_from(if dim < 0 { dim + bound } else { dim }).unwrap_or(0))
    }

    fn unique_name(&mut self, name: &str) -> String {
        self.count_names();
        first_free(&identifier(name), |n| self.names.contains_key(n))
    }

    /// Takes note of the names of values that came since the last time.
    fn count_names(&mut self) {
        let fresh = self.graph.values.values().skip(self.counted);
        for name in fresh.filter_map(|value| value.name.as_ref()) {
            *self.names.entry(name.clone()).or_default() += 1;
        }
        self.counted = self.graph.values.len();
    }
}

/// The nearest identifier: letters, digits and `_`, not starting with a digit.
fn identifier(name: &str) -> String {
    let mut out: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

fn first_free(wanted: &str, taken: impl Fn(&str) -> bool) -> String {
    if !taken(wanted) {
        return wanted.to_owned();
    }
    (1u32..)
        .map(|i| format!("{wanted}_{i}"))
        .find(|n| !taken(n))
        .unwrap_or_else(|| wanted.to_owned())
}
