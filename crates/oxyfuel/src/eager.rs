//! Eager execution: one operation, one compiled graph of its own, kept in memory.
//!
//! The first call of an operation on operands of some types, shapes and strides compiles it (about a millisecond); later ones find the code by a hash. Views are not
//! compiled: the builder says which view ops a call stands for, and they are done on the layout.

use crate::Options;
use crate::call::{Call, Operand, origin};
use crate::guard::{Guard, hash_tensor};
use crate::machine;
use crate::tensor::{State, Tensor};
use oxyfuel_base::error::caught;
use oxyfuel_base::{Code, Expr, Result, Scalar, err};
use oxyfuel_engine::Executable;
use oxyfuel_graph::{Builder, Graph, Op, Operand as Value, ValueId};
use oxyfuel_runtime::profile;
use oxyfuel_runtime::tensor as rt;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// An operand as a key.
#[derive(Debug)]
enum Key {
    Tensor(Guard),
    Number(Scalar),
}

/// One operation on operands of one kind.
#[derive(Debug)]
struct Entry {
    call: Call,
    keys: Vec<Key>,
    executable: Executable,
}

/// Operations that are ready, by the hash of call and operands.
type Cache = RwLock<FxHashMap<u64, Vec<Arc<Entry>>>>;

/// More entries than this and all are forgotten: shapes and numbers that never repeat must not fill memory.
const MAX_ENTRIES: usize = 8192;

fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(Cache::default)
}

/// Runs an operation on concrete operands.
pub(crate) fn run(call: &Call, operands: &[Operand<'_>], caller: &Location<'_>) -> Result<Tensor> {
    let tensors = tensors(operands)?;
    if call.is_view() {
        return match build(call, operands, &tensors, caller)? {
            Built::View(view) => Ok(view.into()),
            Built::Graph(graph) => execute(&load(&graph, &tensors)?, &tensors),
        };
    }
    let hash = hash(call, operands, &tensors);
    if let Some(entry) = find(hash, call, operands) {
        return execute(&entry.executable, &tensors);
    }
    let graph = match build(call, operands, &tensors, caller)? {
        Built::View(view) => return Ok(view.into()),
        Built::Graph(graph) => graph,
    };
    let entry = Arc::new(Entry {
        call: call.clone(),
        keys: operands.iter().map(key).collect(),
        executable: load(&graph, &tensors)?,
    });
    let result = execute(&entry.executable, &tensors)?;
    let mut cache = cache().write().unwrap_or_else(PoisonError::into_inner);
    if cache.len() >= MAX_ENTRIES {
        cache.clear();
    }
    cache.entry(hash).or_default().push(entry);
    Ok(result)
}

fn tensors<'a>(operands: &[Operand<'a>]) -> Result<Vec<&'a rt::Tensor>> {
    let mut out = Vec::with_capacity(operands.len());
    for operand in operands {
        if let Operand::Tensor(tensor) = operand {
            match &tensor.state {
                State::Concrete(tensor) => out.push(tensor),
                State::Traced(_) | State::Failed(_) => {
                    return Err(err!(
                        Internal,
                        "an eager operation on a tensor without memory"
                    ));
                }
            }
        }
    }
    Ok(out)
}

fn hash(call: &Call, operands: &[Operand<'_>], tensors: &[&rt::Tensor]) -> u64 {
    let mut state = FxHasher::default();
    call.hash(&mut state);
    for tensor in tensors {
        hash_tensor(tensor, &mut state);
    }
    for (i, operand) in operands.iter().enumerate() {
        if let Operand::Number(number) = operand {
            (i, number).hash(&mut state);
        }
    }
    state.finish()
}

fn key(operand: &Operand<'_>) -> Key {
    match operand {
        Operand::Number(number) => Key::Number(*number),
        Operand::Tensor(tensor) => match &tensor.state {
            State::Concrete(tensor) => Key::Tensor(Guard::of(tensor)),
            // Not reached: only concrete tensors come here. Such a key never matches.
            State::Traced(_) | State::Failed(_) => Key::Number(Scalar::F(f64::NAN)),
        },
    }
}

fn find(hash: u64, call: &Call, operands: &[Operand<'_>]) -> Option<Arc<Entry>> {
    let cache = cache().read().unwrap_or_else(PoisonError::into_inner);
    let fits = |entry: &&Arc<Entry>| {
        let same = |(key, operand): (&Key, &Operand<'_>)| match (key, operand) {
            (Key::Number(a), Operand::Number(b)) => a == b,
            (Key::Tensor(guard), Operand::Tensor(tensor)) => match &tensor.state {
                State::Concrete(tensor) => guard.admits(tensor),
                State::Traced(_) | State::Failed(_) => false,
            },
            (Key::Number(_) | Key::Tensor(_), _) => false,
        };
        entry.call == *call
            && entry.keys.len() == operands.len()
            && entry.keys.iter().zip(operands).all(same)
    };
    cache.get(&hash)?.iter().find(fits).cloned()
}

fn execute(executable: &Executable, tensors: &[&rt::Tensor]) -> Result<Tensor> {
    let mut outputs = executable.run(tensors)?;
    match outputs.pop() {
        Some(output) if outputs.is_empty() => Ok(output.into()),
        Some(_) | None => Err(err!(Internal, "an operation without a result")),
    }
}

enum Built {
    View(rt::Tensor),
    Graph(Graph),
}

/// The operation as a graph, or as a view where it is one.
fn build(
    call: &Call,
    operands: &[Operand<'_>],
    tensors: &[&rt::Tensor],
    caller: &Location<'_>,
) -> Result<Built> {
    let mut builder = Builder::new(name(call));
    builder.set_origin(Some(origin(caller)));
    let mut values = tensors
        .iter()
        .enumerate()
        .map(|(i, tensor)| builder.input_value(Guard::of(tensor).value(format!("x{i}"))))
        .collect::<Result<Vec<_>>>()?
        .into_iter();
    let operands: Vec<Value> = operands
        .iter()
        .map(|operand| match operand {
            Operand::Number(number) => Ok(Value::Number(*number)),
            Operand::Tensor(_) => {
                let value = values.next();
                value
                    .map(Value::Value)
                    .ok_or_else(|| err!(Internal, "an operand without a value"))
            }
        })
        .collect::<Result<_>>()?;
    let out = call.record(&mut builder, &operands)?;
    if let Some(view) = view(builder.graph(), out, tensors)? {
        return Ok(Built::View(view));
    }
    builder.output(out);
    Ok(Built::Graph(builder.finish()?))
}

fn name(call: &Call) -> &'static str {
    match call {
        Call::Unary(f) => f.info().name,
        Call::Binary(f) | Call::Logical(f) => f.info().name,
        Call::Compare(f) => f.info().name,
        Call::Reduce { op, .. } => op.info().name,
        Call::Matmul => "matmul",
        Call::Mm => "mm",
        Call::Bmm => "bmm",
        Call::IntMm => "int_mm",
        Call::Addmm { .. } => "addmm",
        Call::Linear { .. } => "linear",
        Call::Composed(composed) => composed.name(),
        Call::Recipe(recipe) => recipe.name,
        Call::Softmax(_) => "softmax",
        Call::LogSoftmax(_) => "log_softmax",
        Call::Cumsum(_) => "cumsum",
        Call::Cumprod(_) => "cumprod",
        Call::Argmax { .. } => "argmax",
        Call::Argmin { .. } => "argmin",
        Call::Argsort { .. } => "argsort",
        Call::IndexPut(_) => "index_put",
        Call::Scatter { .. } => "scatter",
        Call::LayerNorm { .. } => "layer_norm",
        Call::RmsNorm { .. } => "rms_norm",
        Call::Var { .. } => "var",
        Call::Where => "where",
        Call::Clamp { .. } => "clamp",
        Call::Cast(_) => "to",
        Call::Clone => "clone",
        Call::Full { .. } | Call::FullLike { .. } => "full",
        Call::Cat(_) => "cat",
        Call::Stack(_) => "stack",
        Call::Gather(_) => "gather",
        Call::IndexSelect(_) => "index_select",
        Call::Embedding => "embedding",
        Call::SliceScatter { .. } => "slice_scatter",
        Call::Copy => "copy",
        Call::View(_)
        | Call::Permute(_)
        | Call::Transpose(..)
        | Call::Expand(_)
        | Call::Unsqueeze(_)
        | Call::Squeeze(_)
        | Call::Flatten { .. }
        | Call::Unflatten { .. }
        | Call::Slice { .. }
        | Call::Select { .. } => "view",
    }
}

/// The value as a window on its input's memory, if it is one.
fn view(graph: &Graph, out: ValueId, tensors: &[&rt::Tensor]) -> Result<Option<rt::Tensor>> {
    if let Some(input) = graph.inputs.iter().position(|&input| input == out) {
        return Ok(Some(tensors[input].clone()));
    }
    let Some(node) = graph
        .nodes
        .values()
        .find(|node| node.outputs.contains(&out))
    else {
        return Ok(None);
    };
    let (Op::View { .. } | Op::Permute { .. } | Op::Expand { .. } | Op::Slice { .. }) = &node.op
    else {
        return Ok(None);
    };
    let Some(of) = view(graph, node.inputs[0], tensors)? else {
        return Ok(None);
    };
    let number = |e: &Expr| {
        e.as_const()
            .ok_or_else(|| err!(Internal, "the shape of a view is not a number: {e}"))
    };
    let numbers = |list: &[Expr]| list.iter().map(number).collect::<Result<Vec<_>>>();
    let viewed = match &node.op {
        Op::View { shape } => match of.reshape(&numbers(shape)?) {
            Ok(view) => view,
            // Only a copy can have that shape.
            Err(error) if error.code == Code::LayoutMismatch => return Ok(None),
            Err(error) => return Err(error),
        },
        Op::Permute { dims } => of.permute(dims)?,
        Op::Expand { shape } => of.expand(&numbers(shape)?)?,
        Op::Slice {
            dim,
            start,
            end,
            step,
        } => of.slice(*dim, number(start)?, number(end)?, *step)?,
        _ => return Ok(None),
    };
    Ok(Some(viewed))
}

fn load(graph: &Graph, tensors: &[&rt::Tensor]) -> Result<Executable> {
    let options = Options::default();
    let device = tensors.first().map(|tensor| tensor.device().into());
    let (target, handle) = machine::target(device.unwrap_or_default(), &options)?;
    profile::compiling(&graph.name, || {
        let compiled = caught(|| oxyfuel_engine::compile(graph, &target, &options, false))?;
        Executable::load(compiled.plan, compiled.record, handle)
    })
}
