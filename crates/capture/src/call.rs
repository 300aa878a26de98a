//! One call on its way in: its arguments as the rows of the table want them.
//!
//! An argument is found by position or by name, as Python passes it. What a row cannot use (an object of the host, a symbolic number where a constant is needed)
//! is an error, which makes the call external: rows ask for what they need and say nothing more.

use crate::description::{Item, Node, Type, Value};
use crate::import::{ImportOptions, Products, tensor_type};
use oxyfuel_base::{Code, DType, Error, Expr, Result, Scalar, ensure, err};
use oxyfuel_graph::{Builder, Device, Operand, TensorType, ValueId};
use rustc_hash::FxHashMap;

/// What a name of the description stands for.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    Value {
        id: ValueId,
        /// The host's strides; `None` for what only the host understands.
        strides: Option<Vec<Expr>>,
    },
    Int(Expr),
    Nothing,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub slots: Vec<Slot>,
    pub sequence: bool,
}

/// Where the results of a node are that kernels may touch; where it has none, on the CPU.
pub(crate) fn device_of(node: &Node) -> Device {
    let tensors = node.results.iter().filter_map(|item| match item {
        Item::Tensor { ty } => tensor_type(ty),
        Item::Int { .. } | Item::Object | Item::None => None,
    });
    tensors.map(|ty| ty.device).next().unwrap_or_default()
}

/// All names so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env<'d>(FxHashMap<&'d str, Entry>);

impl<'d> Env<'d> {
    /// Whether the name was free.
    pub fn define(&mut self, name: &'d str, entry: Entry) -> bool {
        self.0.insert(name, entry).is_none()
    }

    pub fn entry(&self, name: &str) -> Result<&Entry> {
        self.0
            .get(name)
            .ok_or_else(|| err!(UnknownName, "nothing before is called `{name}`"))
    }

    /// One result of a name: the only one, unless an index picks it.
    pub fn slot(&self, name: &str, index: Option<usize>) -> Result<&Slot> {
        let entry = self.entry(name)?;
        entry
            .slots
            .get(index.unwrap_or(0))
            .ok_or_else(|| match index {
                Some(index) => err!(IndexOutOfRange, "`{name}` has no result {index}"),
                None => err!(IndexOutOfRange, "`{name}` has no result"),
            })
    }
}

/// A number or a tensor, as pointwise operators take them.
#[derive(Clone, Debug)]
pub(crate) enum Factor {
    Value(ValueId),
    Number(Scalar),
    /// An integer that is known when the sizes are.
    Symbolic(Expr),
}

impl Factor {
    /// What type promotion sees.
    pub fn operand(&self) -> Operand {
        match self {
            Factor::Value(v) => Operand::Value(*v),
            Factor::Number(n) => Operand::Number(*n),
            Factor::Symbolic(_) => Operand::Number(Scalar::I(0)),
        }
    }
}

impl From<ValueId> for Factor {
    fn from(value: ValueId) -> Self {
        Factor::Value(value)
    }
}

/// A call with its builder. See the module's documentation.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) b: &'a mut Builder,
    env: &'a Env<'a>,
    node: &'a Node,
    pub(crate) products: Products,
    /// Whether every convolution of the graph has a kernel of ours that reads its frozen weight in panels.
    pub(crate) images: bool,
}

/// The reason why a call is not compiled.
pub(crate) fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::new(Code::UnsupportedOp, reason))
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        b: &'a mut Builder,
        env: &'a Env<'a>,
        node: &'a Node,
        options: &ImportOptions,
    ) -> Self {
        Self {
            b,
            env,
            node,
            products: options.products,
            images: options.images,
        }
    }

    /// What is called.
    pub(crate) fn target(&self) -> &'a str {
        &self.node.target
    }

    /// The argument at a position or under a name; `None` when it is left out.
    pub(crate) fn arg(&self, position: usize, name: &str) -> &'a Value {
        static LEFT_OUT: Value = Value::None;
        let by_name = || self.node.kwargs.iter().find(|(key, _)| key == name);
        match self.node.args.get(position) {
            Some(value) => value,
            None => by_name().map_or(&LEFT_OUT, |(_, value)| value),
        }
    }

    fn tensor_of(&self, value: &Value, name: &str) -> Result<Option<ValueId>> {
        let Value::Node { name: node, index } = value else {
            return Ok(None);
        };
        match self.env.slot(node, *index)? {
            Slot::Value { id, .. } => {
                ensure!(
                    self.b.ty(*id).device != Device::Host,
                    UnsupportedDType,
                    "`{name}` is a tensor only the host understands"
                );
                Ok(Some(*id))
            }
            Slot::Int(_) | Slot::Nothing => Ok(None),
        }
    }

    pub(crate) fn tensor(&self, position: usize, name: &str) -> Result<ValueId> {
        match self.tensor_of(self.arg(position, name), name)? {
            Some(id) => Ok(id),
            None => refuse(format!("`{name}` is no tensor")),
        }
    }

    pub(crate) fn optional_tensor(&self, position: usize, name: &str) -> Result<Option<ValueId>> {
        match self.arg(position, name) {
            Value::None => Ok(None),
            value => match self.tensor_of(value, name)? {
                Some(id) => Ok(Some(id)),
                None => refuse(format!("`{name}` is no tensor")),
            },
        }
    }

    /// The strides that the host gives the tensor.
    pub(crate) fn strides(&self, position: usize, name: &str) -> Result<&'a [Expr]> {
        if let Value::Node { name: node, index } = self.arg(position, name)
            && let Slot::Value {
                strides: Some(strides),
                ..
            } = self.env.slot(node, *index)?
        {
            return Ok(strides);
        }
        refuse(format!("the strides of `{name}` are not known"))
    }

    /// A list of tensors, some of them perhaps left out.
    pub(crate) fn optional_tensors(
        &self,
        position: usize,
        name: &str,
    ) -> Result<Vec<Option<ValueId>>> {
        match self.arg(position, name) {
            Value::List(items) | Value::Tuple(items) => items
                .iter()
                .map(|item| match item {
                    Value::None => Ok(None),
                    item => match self.tensor_of(item, name)? {
                        Some(id) => Ok(Some(id)),
                        None => refuse(format!("an item of `{name}` is no tensor")),
                    },
                })
                .collect(),
            Value::Node {
                name: node,
                index: None,
            } if self.env.entry(node)?.sequence => {
                let slots = &self.env.entry(node)?.slots;
                let ids = slots.iter().map(|slot| match slot {
                    Slot::Value { id, .. } => Ok(Some(*id)),
                    Slot::Int(_) | Slot::Nothing => refuse(format!("an item of `{name}`")),
                });
                ids.collect()
            }
            _ => refuse(format!("`{name}` is no list of tensors")),
        }
    }

    pub(crate) fn tensors(&self, position: usize, name: &str) -> Result<Vec<ValueId>> {
        let all = self.optional_tensors(position, name)?;
        match all.into_iter().collect::<Option<Vec<_>>>() {
            Some(ids) if !ids.is_empty() => Ok(ids),
            _ => refuse(format!("`{name}` lacks a tensor")),
        }
    }

    fn expr_of(&self, value: &Value) -> Result<Option<Expr>> {
        Ok(match value {
            Value::Number(Scalar::I(v)) => Some(Expr::constant(*v)),
            Value::Expr(e) => Some(e.clone()),
            Value::Node { name, index } => match self.env.slot(name, *index)? {
                Slot::Int(e) => Some(e.clone()),
                Slot::Value { .. } | Slot::Nothing => None,
            },
            _ => None,
        })
    }

    /// An integer, perhaps symbolic.
    pub(crate) fn expr(&self, position: usize, name: &str) -> Result<Option<Expr>> {
        match self.arg(position, name) {
            Value::None => Ok(None),
            value => match self.expr_of(value)? {
                Some(e) => Ok(Some(e)),
                None => refuse(format!("`{name}` is no integer")),
            },
        }
    }

    pub(crate) fn exprs(&self, position: usize, name: &str) -> Result<Option<Vec<Expr>>> {
        let items = match self.arg(position, name) {
            Value::None => return Ok(None),
            Value::List(items) | Value::Tuple(items) => items.as_slice(),
            // One number stands for a list of one.
            value => std::slice::from_ref(value),
        };
        let all = items.iter().map(|item| match self.expr_of(item)? {
            Some(e) => Ok(e),
            None => refuse(format!("`{name}` is no list of integers")),
        });
        all.collect::<Result<Vec<_>>>().map(Some)
    }

    pub(crate) fn int(&self, position: usize, name: &str, default: i64) -> Result<i64> {
        match self.expr(position, name)? {
            None => Ok(default),
            Some(e) => match e.as_const() {
                Some(value) => Ok(value),
                None => refuse(format!("`{name}` is not known when compiling")),
            },
        }
    }

    pub(crate) fn ints(&self, position: usize, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(list) = self.exprs(position, name)? else {
            return Ok(None);
        };
        match list.iter().map(Expr::as_const).collect() {
            Some(list) => Ok(Some(list)),
            None => refuse(format!("`{name}` is not known when compiling")),
        }
    }

    pub(crate) fn flag(&self, position: usize, name: &str, default: bool) -> Result<bool> {
        match self.arg(position, name) {
            Value::None => Ok(default),
            Value::Number(n) => Ok(n.as_bool()),
            _ => refuse(format!("`{name}` is no flag")),
        }
    }

    /// A plain number.
    pub(crate) fn number(&self, position: usize, name: &str) -> Result<Option<Scalar>> {
        match self.arg(position, name) {
            Value::None => Ok(None),
            Value::Number(n) => Ok(Some(*n)),
            value => match self.expr_of(value)?.and_then(|e| e.as_const()) {
                Some(c) => Ok(Some(Scalar::I(c))),
                None => refuse(format!("`{name}` is no plain number")),
            },
        }
    }

    /// A list of so many plain numbers; all left out when the list is.
    pub(crate) fn numbers(
        &self,
        position: usize,
        name: &str,
        count: usize,
    ) -> Result<Vec<Option<Scalar>>> {
        match self.arg(position, name) {
            Value::None => Ok(vec![None; count]),
            Value::List(items) | Value::Tuple(items) if items.len() == count => items
                .iter()
                .map(|item| match item {
                    Value::Number(n) => Ok(Some(*n)),
                    _ => refuse(format!("`{name}` is no list of numbers")),
                })
                .collect(),
            _ => refuse(format!("`{name}` is no list of {count} numbers")),
        }
    }

    pub(crate) fn float(&self, position: usize, name: &str, default: f64) -> Result<f64> {
        Ok(self.number(position, name)?.map_or(default, |n| n.as_f64()))
    }

    pub(crate) fn text(&self, position: usize, name: &str) -> Result<Option<&'a str>> {
        match self.arg(position, name) {
            Value::None => Ok(None),
            Value::Str(text) => Ok(Some(text)),
            _ => refuse(format!("`{name}` is no string")),
        }
    }

    /// A tensor or a number.
    pub(crate) fn factor(&self, position: usize, name: &str) -> Result<Factor> {
        let value = self.arg(position, name);
        if let Value::Number(n) = value {
            return Ok(Factor::Number(*n));
        }
        if let Some(e) = self.expr_of(value)? {
            return Ok(match e.as_const() {
                Some(c) => Factor::Number(Scalar::I(c)),
                None => Factor::Symbolic(e),
            });
        }
        self.tensor(position, name).map(Factor::Value)
    }

    pub(crate) fn optional_factor(&self, position: usize, name: &str) -> Result<Option<Factor>> {
        match self.arg(position, name) {
            Value::None => Ok(None),
            _ => self.factor(position, name).map(Some),
        }
    }

    /// A number or tensor as a value of this dtype.
    pub(crate) fn value_of(&mut self, factor: &Factor, dtype: DType) -> Result<ValueId> {
        let device = self.device();
        match factor {
            Factor::Value(v) => self.b.cast(*v, dtype),
            Factor::Number(n) => self.b.full(*n, vec![], dtype, device),
            Factor::Symbolic(e) if dtype.is_bool() => {
                let wide = self.b.scalar_tensor(e.clone(), DType::I64, device)?;
                self.b.cast(wide, dtype)
            }
            Factor::Symbolic(e) => self.b.scalar_tensor(e.clone(), dtype, device),
        }
    }

    /// The dtype of a value.
    pub(crate) fn dtype(&self, value: ValueId) -> DType {
        self.b.ty(value).dtype
    }

    pub(crate) fn rank(&self, value: ValueId) -> usize {
        self.b.ty(value).rank()
    }

    pub(crate) fn shape(&self, value: ValueId) -> Vec<Expr> {
        self.b.ty(value).shape.clone()
    }

    /// How many results the host expects.
    pub(crate) fn result_count(&self) -> usize {
        self.node.results.len()
    }

    /// What the host says of a result.
    pub(crate) fn meta(&self, result: usize) -> Result<&'a Type> {
        match self.node.results.get(result) {
            Some(Item::Tensor { ty }) => Ok(ty),
            Some(Item::Int { .. } | Item::Object | Item::None) | None => {
                refuse(format!("result {result} is no tensor"))
            }
        }
    }

    /// The type a result must have.
    pub(crate) fn out(&self, result: usize) -> Result<TensorType> {
        let meta = self.meta(result)?;
        match tensor_type(meta) {
            Some(ty) => Ok(ty),
            None => refuse(format!(
                "{} on {} stays with the host",
                meta.dtype, meta.device
            )),
        }
    }

    /// Where the results are.
    pub(crate) fn device(&self) -> Device {
        device_of(self.node)
    }

    /// Whether what was built is what the host says.
    pub(crate) fn check(&self, values: &[ValueId]) -> Result<()> {
        ensure!(
            values.len() == self.node.results.len(),
            ArityMismatch,
            "gives {} results, the host {}",
            values.len(),
            self.node.results.len()
        );
        for (i, &value) in values.iter().enumerate() {
            if let Some(Item::None) = self.node.results.get(i) {
                continue;
            }
            let (want, have) = (self.out(i)?, self.b.ty(value));
            ensure!(
                want.dtype == have.dtype,
                DTypeMismatch,
                "gives {}, the host {}",
                have.dtype,
                want.dtype
            );
            ensure!(
                want.shape == have.shape,
                ShapeMismatch,
                "gives the shape {}, the host {}",
                sizes_text(&have.shape),
                sizes_text(&want.shape)
            );
        }
        Ok(())
    }
}

fn sizes_text(shape: &[Expr]) -> String {
    let sizes: Vec<String> = shape.iter().map(Expr::to_string).collect();
    format!("[{}]", sizes.join(", "))
}
