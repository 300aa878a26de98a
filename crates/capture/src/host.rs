//! Calls that stay with the host: the operator it names, with a template of its arguments.

use crate::call::{Env, Slot, device_of};
use crate::description::{Item, Node, Value};
use crate::import::{gpu, tensor_type};
use oxyfuel_base::external::Bind;
use oxyfuel_base::{
    Arg, DType, Expr, External, ExternalResult, Result, Scalar, Symbol, ensure, err,
};
use oxyfuel_graph::{Builder, Device, Op, ValueId};
use std::collections::HashSet;
use std::sync::Arc;

/// The operands of a call, each once, with the strides the host gives them.
#[derive(Default)]
struct Operands {
    values: Vec<ValueId>,
    strides: Vec<Option<Vec<Expr>>>,
}

impl Operands {
    fn add(&mut self, id: ValueId, strides: &Option<Vec<Expr>>) -> Arg {
        let found =
            (0..self.values.len()).find(|&i| self.values[i] == id && self.strides[i] == *strides);
        let at = found.unwrap_or_else(|| {
            self.values.push(id);
            self.strides.push(strides.clone());
            self.values.len() - 1
        });
        Arg::Operand(u32::try_from(at).unwrap_or(u32::MAX))
    }
}

/// The call of a node, and its operands. Symbols that nothing has bound before are bound by its results.
pub(crate) fn call(
    env: &Env<'_>,
    node: &Node,
    reason: String,
    objects: u32,
    bound: &mut HashSet<Symbol>,
) -> Result<(External, Vec<ValueId>)> {
    let mut operands = Operands::default();
    let mut args = vec![];
    for value in &node.args {
        args.push(argument(env, value, objects, &mut operands)?);
    }
    let mut kwargs = vec![];
    for (name, value) in &node.kwargs {
        kwargs.push((name.clone(), argument(env, value, objects, &mut operands)?));
    }
    let mut results: Vec<ExternalResult> = node.results.iter().map(result).collect();
    if results.is_empty() {
        results.push(ExternalResult::Nothing);
    }
    let binds = binds(node, bound);
    let call = External {
        name: node.target.clone(),
        args,
        kwargs,
        operand_strides: operands.strides,
        results,
        sequence: node.sequence,
        // Sizes depend on what the call says, though no value may.
        ordered: node.ordered || !binds.is_empty(),
        binds,
        reason,
        gpu: gpu(device_of(node)),
    };
    Ok((call, operands.values))
}

/// A number from the host's generator of that device, from which a graph draws all of its own.
pub(crate) fn seed(device: Device) -> External {
    let place = |_| ("device".to_owned(), Arg::Device(device.to_string()));
    External {
        name: "aten.randint.low".to_owned(),
        args: vec![
            Arg::Int(Expr::ZERO),
            Arg::Int(Expr::constant(i64::MAX)),
            Arg::List(vec![]),
        ],
        // The host's own memory is where it puts a tensor unasked.
        kwargs: gpu(device).map(place).into_iter().collect(),
        operand_strides: vec![],
        results: vec![ExternalResult::Tensor {
            dtype: DType::I64,
            shape: vec![],
            strides: vec![],
        }],
        sequence: false,
        binds: vec![],
        ordered: true,
        reason: "the seed of the graph's random numbers".to_owned(),
        gpu: gpu(device),
    }
}

fn result(item: &Item) -> ExternalResult {
    match item {
        Item::Tensor { ty } => match tensor_type(ty) {
            Some(ours) => ExternalResult::Tensor {
                dtype: ours.dtype,
                shape: ours.shape,
                strides: ty.strides.clone(),
            },
            None => ExternalResult::Opaque,
        },
        Item::Int { .. } | Item::Object => ExternalResult::Opaque,
        Item::None => ExternalResult::Nothing,
    }
}

/// Which results tell a symbol that has no number yet.
fn binds(node: &Node, bound: &mut HashSet<Symbol>) -> Vec<Bind> {
    let mut binds = vec![];
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut bind = |e: &Expr, result: usize, dim: Option<usize>| {
        if let Some(symbol) = e.as_symbol()
            && bound.insert(symbol)
        {
            binds.push(Bind {
                symbol,
                result: narrow(result),
                dim: dim.map(narrow),
            });
        }
    };
    for (i, item) in node.results.iter().enumerate() {
        match item {
            Item::Int { value } => bind(value, i, None),
            Item::Tensor { ty } => {
                for (d, size) in ty.shape.iter().enumerate() {
                    bind(size, i, Some(d));
                }
            }
            Item::Object | Item::None => {}
        }
    }
    binds
}

fn argument(env: &Env<'_>, value: &Value, objects: u32, operands: &mut Operands) -> Result<Arg> {
    let mut list = |items: &[Value]| -> Result<Vec<Arg>> {
        items
            .iter()
            .map(|item| argument(env, item, objects, operands))
            .collect()
    };
    match value {
        Value::List(items) => list(items).map(Arg::List),
        Value::Tuple(items) => list(items).map(Arg::Tuple),
        Value::Node { name, index: None } if env.entry(name)?.sequence => {
            let slots = env.entry(name)?.slots.clone();
            let items = slots.iter().map(|slot| slot_argument(slot, operands));
            Ok(Arg::List(items.collect()))
        }
        Value::Node { name, index } => Ok(slot_argument(env.slot(name, *index)?, operands)),
        plain => constant(plain, objects),
    }
}

fn slot_argument(slot: &Slot, operands: &mut Operands) -> Arg {
    match slot {
        Slot::Value { id, strides } => operands.add(*id, strides),
        Slot::Int(e) => Arg::Int(e.clone()),
        Slot::Nothing => Arg::None,
    }
}

/// An argument that names no node.
pub(crate) fn constant(value: &Value, objects: u32) -> Result<Arg> {
    let list = |items: &[Value]| -> Result<Vec<Arg>> {
        items.iter().map(|item| constant(item, objects)).collect()
    };
    Ok(match value {
        Value::None => Arg::None,
        Value::Number(Scalar::B(v)) => Arg::Bool(*v),
        Value::Number(Scalar::I(v)) => Arg::Int(Expr::constant(*v)),
        Value::Number(Scalar::F(v)) => Arg::Float(v.to_bits()),
        Value::Str(text) => Arg::Str(text.clone()),
        Value::Expr(e) => Arg::Int(e.clone()),
        Value::DType(name) => Arg::DType(name.clone()),
        Value::Device(name) => Arg::Device(name.clone()),
        Value::Layout(name) => Arg::Layout(name.clone()),
        Value::MemoryFormat(name) => Arg::MemoryFormat(name.clone()),
        Value::Object(index) => {
            ensure!(
                *index < objects,
                IndexOutOfRange,
                "object {index} of {objects}"
            );
            Arg::Object(*index)
        }
        Value::List(items) => Arg::List(list(items)?),
        Value::Tuple(items) => Arg::Tuple(list(items)?),
        Value::Node { name, .. } => {
            return Err(err!(
                InvalidArgument,
                "`{name}` stands where only a constant can"
            ));
        }
    })
}

/// A write over an input that only the host understands.
pub(crate) fn write(b: &mut Builder, target: ValueId, source: ValueId) -> Result<()> {
    let call = External {
        name: "aten.copy_.default".to_owned(),
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        kwargs: vec![],
        operand_strides: vec![None, None],
        results: vec![ExternalResult::Nothing],
        sequence: false,
        binds: vec![],
        ordered: true,
        reason: "writes over a tensor only the host understands".to_owned(),
        gpu: None,
    };
    let op = Op::External {
        call: Arc::new(call),
    };
    b.node(op, &[target, source])?;
    Ok(())
}
