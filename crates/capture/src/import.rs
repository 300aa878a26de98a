//! A description as a GRAPH.
//!
//! Every node becomes what its row in [`crate::aten`] builds, or an external call of the very operator it names. The host's own types are the truth: a row whose
//! results differ from them in dtype or shape is refused, and so is one that cannot express an argument; the node is then external, with that reason. So an import
//! gives a graph that means what the description says, or an error, and never a wrong graph.
//!
//! Layouts: inputs and results of the graph are `required`, with the host's strides; what a compiled node computes is `chosen` where the host's strides are
//! dense but not row-major (channels last), so that external neighbours need no copy. Mutations become results that are stored into an input.

use crate::aten::random::Draw;
use crate::aten::{self, Import};
use crate::call::{Call, Entry, Env, Slot, device_of};
use crate::description::{ConstantRow, Description, Input, Item, Node, Type, Value as Argument};
use crate::export::visit;
use crate::{host, ours};
use oxyfuel_base::{Arg, Code, DType, Error, Expr, Location, Result, Symbol, ensure, err};
use oxyfuel_graph::same_strides;
use oxyfuel_graph::sample::{Distribution, Stream};
use oxyfuel_graph::{
    Builder, Category, Device, Graph, GraphOutput, HostTensor, Layout, Op, Origin, Place,
    SymbolInfo, TensorType, Value, ValueId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};

/// Who computes matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Products {
    /// The host's library.
    #[default]
    Host,
    /// Our kernels.
    Own,
    /// Whoever was measured to be faster: [`crate::aten::choice`].
    Faster,
}

/// What an import may be told.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Names of nodes that shall be external whatever their row says.
    pub external: BTreeSet<String>,
    pub products: Products,
    /// Inputs of the description, by position, that are the same at every call.
    pub frozen: BTreeSet<usize>,
    /// Every convolution has a kernel that reads its weight in panels: of [`Products::Faster`], ours are.
    pub images: bool,
    pub random: Random,
}

/// Who draws random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Random {
    /// The host's own operators: the numbers are those that it would draw.
    #[default]
    Host,
    /// Kernels, from a seed that the host draws once a call.
    Own,
}

/// What came of a description.
#[derive(Clone, Debug)]
pub struct Imported {
    pub graph: Graph,
    pub signature: Signature,
    /// The calls that stay with the host.
    pub externals: Vec<External>,
}

/// A node that was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    pub node: String,
    pub target: String,
    pub reason: String,
}

/// How the host's parameters and results map to those of the graph.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Signature {
    pub inputs: Vec<InputKind>,
    pub outputs: Vec<OutputKind>,
}

/// A parameter of the host's callable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum InputKind {
    /// A tensor: the graph's input of this position.
    Tensor(usize),
    /// An integer that the expression must equal; a plain symbol is bound by it.
    Symbol(Expr),
    /// Something only the host understands: the graph's input of this position.
    Object(usize),
    /// Not used: it may be anything.
    Unused,
}

/// A result of the host's callable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OutputKind {
    /// The graph's result of this position.
    Value(usize),
    /// Another tensor over the memory of the graph's result of this position, which is an input.
    View(usize),
    /// The host's own argument of this number: one that the graph writes, with what it holds then.
    Input(usize),
    Int(Expr),
    None,
    Constant(Arg),
}

/// Imports a description. See the module's documentation.
pub fn import(description: &Description, options: &ImportOptions) -> Result<Imported> {
    let mut importer = Importer::of_nodes(description, options)?;
    importer.outputs(description)?;
    importer.mutations(description)?;
    // Rows that were refused half way leave nodes that nobody reads.
    let graph = importer.b.finish()?.compact()?;
    Ok(Imported {
        graph,
        signature: importer.signature,
        externals: importer.externals,
    })
}

/// What the nodes of a description compute, for those who ask about its values rather than run it.
#[derive(Clone, Debug)]
pub struct Values {
    /// Without results or layouts.
    pub graph: Graph,
    /// The value behind each result of an input or node that is a tensor of ours: name, index, value; in the order of the description.
    pub names: Vec<(String, usize, ValueId)>,
    /// The nodes that draw numbers of ours.
    pub draws: Vec<Drawn>,
}

/// A node whose numbers are a stream of their own under the graph's seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    pub node: String,
    pub stream: u32,
    pub how: Distribution,
}

impl Values {
    /// Makes everything a result of the graph that is one of the description's or is written over an input: only what is none may become something else.
    pub fn keep_results(&mut self, description: &Description) {
        let mut kept = HashSet::new();
        let written = description.mutations.iter().map(|m| &m.value);
        for value in description.outputs.iter().chain(written) {
            visit(value, &mut |name| {
                kept.insert(name);
            });
        }
        for (name, index, value) in &self.names {
            if kept.contains(&(name.as_str(), *index)) {
                self.graph.outputs.push(GraphOutput {
                    value: *value,
                    alias: None,
                });
            }
        }
    }
}

/// Imports the inputs and nodes of a description.
pub fn import_values(description: &Description, options: &ImportOptions) -> Result<Values> {
    let importer = Importer::of_nodes(description, options)?;
    let mut names = vec![];
    let inputs = description.inputs.iter().map(|input| &input.name);
    let nodes = description.nodes.iter().map(|node| &node.name);
    for name in inputs.chain(nodes) {
        for (index, slot) in importer.env.entry(name)?.slots.iter().enumerate() {
            if let Slot::Value { id, .. } = slot {
                names.push((name.clone(), index, *id));
            }
        }
    }
    let mut graph = importer.b.finish()?;
    for value in graph.values.values_mut() {
        value.layout = Layout::Any;
    }
    Ok(Values {
        graph,
        names,
        draws: importer.draws,
    })
}

impl<'d> Importer<'d> {
    /// An import as far as the last node.
    fn of_nodes(description: &'d Description, options: &'d ImportOptions) -> Result<Self> {
        let mut importer = Importer {
            b: Builder::new(description.name.as_str()),
            env: Env::default(),
            options,
            externals: vec![],
            signature: Signature::default(),
            input_positions: vec![],
            bound: HashSet::new(),
            seed: None,
            streams: 0,
            draws: vec![],
        };
        importer.symbols(description)?;
        for (number, input) in description.inputs.iter().enumerate() {
            importer.input(input)?;
            let written = description.mutations.iter().any(|m| m.input == number);
            if options.frozen.contains(&number)
                && !written
                && let Some(InputKind::Tensor(at)) = importer.signature.inputs.last()
            {
                importer.b.freeze(*at);
            }
        }
        for constant in &description.constants {
            importer
                .constant(constant)
                .map_err(|e| e.context(&constant.name))?;
        }
        for node in &description.nodes {
            importer
                .node(node, description)
                .map_err(|e| located(node, e))?;
        }
        Ok(importer)
    }
}

/// The bytes behind hexadecimal digits.
fn bytes(hex: &str) -> Result<Vec<u8>> {
    let digits = hex.as_bytes();
    let pairs = digits.chunks(2).map(|pair| {
        let digit = |c: u8| char::from(c).to_digit(16);
        match pair {
            &[a, b] => Some(u8::try_from(digit(a)? * 16 + digit(b)?).unwrap_or(0)),
            _ => None,
        }
    });
    pairs
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| err!(InvalidLiteral, "its data is not in hexadecimal pairs"))
}

/// Says which node an error is about, and where the user wrote it.
fn located(node: &Node, error: Error) -> Error {
    let error = error.context(format!("{} ({})", node.name, node.target));
    match (&error.at, &node.at) {
        (None, Some(at)) => error.at(Location::new(at.file.as_str(), at.line, 1)),
        (Some(_), _) | (None, None) => error,
    }
}

/// How a node is built.
#[derive(Clone, Copy)]
enum Build {
    Row(aten::Build),
    Draw(Draw),
}

struct Importer<'d> {
    b: Builder,
    env: Env<'d>,
    options: &'d ImportOptions,
    externals: Vec<External>,
    signature: Signature,
    /// For each parameter of the description its position among the graph's inputs.
    input_positions: Vec<Option<usize>>,
    /// Symbols that have a number by now.
    bound: HashSet<Symbol>,
    /// Where random numbers of ours come from, and how many operators have drawn from it.
    seed: Option<ValueId>,
    streams: u32,
    draws: Vec<Drawn>,
}

impl<'d> Importer<'d> {
    fn symbols(&mut self, description: &Description) -> Result<()> {
        for row in &description.symbols {
            let parsed: Option<Symbol> = row.name.parse::<Expr>().ok().and_then(|e| e.as_symbol());
            let symbol = parsed.ok_or_else(|| {
                Error::new(
                    Code::InvalidArgument,
                    format!("`{}` is no name of a symbol", row.name),
                )
            })?;
            self.b.declare(SymbolInfo {
                symbol,
                min: row.min,
                max: row.max.unwrap_or(i64::MAX),
                name: None,
                hint: row.hint,
            });
        }
        Ok(())
    }

    fn input(&mut self, input: &'d Input) -> Result<()> {
        let (value, strides) = match &input.item {
            Item::Tensor { ty } => match tensor_type(ty) {
                Some(ours) => {
                    let mut value = Value::new(ours);
                    value.layout = Layout::Required(ty.strides.clone());
                    value.align = ty.align;
                    (value, Some(ty.strides.clone()))
                }
                None => (Value::new(TensorType::object()), None),
            },
            Item::Object => (Value::new(TensorType::object()), None),
            Item::Int { value } => {
                self.bound.extend(value.symbols());
                self.signature.inputs.push(InputKind::Symbol(value.clone()));
                self.input_positions.push(None);
                return self.define(&input.name, false, vec![Slot::Int(value.clone())]);
            }
            Item::None => {
                self.signature.inputs.push(InputKind::Unused);
                self.input_positions.push(None);
                return self.define(&input.name, false, vec![Slot::Nothing]);
            }
        };
        let object = value.ty.device == Device::Host;
        self.bound
            .extend(value.ty.shape.iter().flat_map(Expr::symbols));
        let position = self.b.graph().inputs.len();
        let id = self.b.input_value(Value {
            name: Some(input.name.clone()),
            ..value
        })?;
        self.signature.inputs.push(if object {
            InputKind::Object(position)
        } else {
            InputKind::Tensor(position)
        });
        self.input_positions.push(Some(position));
        self.define(&input.name, false, vec![Slot::Value { id, strides }])
    }

    fn constant(&mut self, row: &'d ConstantRow) -> Result<()> {
        let Some(ty) = tensor_type(&row.ty) else {
            return Err(err!(
                UnsupportedDType,
                "a constant of {} on {}",
                row.ty.dtype,
                row.ty.device
            ));
        };
        let shape: Option<Vec<i64>> = ty.shape.iter().map(Expr::as_const).collect();
        let shape = shape.ok_or_else(|| err!(InvalidArgument, "a constant of unknown size"))?;
        let tensor = HostTensor::new(ty.dtype, &shape, bytes(&row.data)?)?;
        self.b.set_origin(Some(Origin {
            ops: vec![row.name.clone()],
            ..Origin::default()
        }));
        // One number is a literal, which every kernel can hold.
        let id = if tensor.numel() == 1 {
            self.b.full(tensor.get(0), ty.shape, ty.dtype, ty.device)?
        } else {
            self.b.constant(&row.name, tensor, ty.device)?
        };
        let strides = Some(row.ty.strides.clone());
        self.define(&row.name, false, vec![Slot::Value { id, strides }])
    }

    fn define(&mut self, name: &'d str, sequence: bool, slots: Vec<Slot>) -> Result<()> {
        let entry = Entry { slots, sequence };
        ensure!(
            self.env.define(name, entry),
            DuplicateName,
            "two nodes are called `{name}`"
        );
        Ok(())
    }

    fn node(&mut self, node: &'d Node, description: &Description) -> Result<()> {
        self.b.set_origin(Some(origin(node)));
        let slots = match self.compiled(node)? {
            Ok(slots) => slots,
            Err(reason) => {
                self.externals.push(External {
                    node: node.name.clone(),
                    target: node.target.clone(),
                    reason: reason.clone(),
                });
                self.external(node, reason, description)?
            }
        };
        self.define(&node.name, node.sequence, slots)
    }

    /// What the node's row builds, or why it builds nothing.
    fn compiled(&mut self, node: &'d Node) -> Result<std::result::Result<Vec<Slot>, String>> {
        if node.target == ours::SEED {
            let id = self.host_seed(device_of(node))?;
            let strides = Some(vec![]);
            return Ok(Ok(vec![Slot::Value { id, strides }]));
        }
        let own = ours::find(&node.target);
        // The host's side of an operator of ours is a graph of its own that comes through here: to leave it to the host would lead in a circle.
        if own.is_none() && self.options.external.contains(&node.name) {
            return Ok(Err("no machine code for its kernel".to_owned()));
        }
        let draw = match self.options.random {
            Random::Own => aten::random::find(&node.target),
            Random::Host => None,
        };
        if node.ordered && draw.is_none() {
            return Ok(Err("has effects".to_owned()));
        }
        let (build, view) = match (draw, own, aten::find(&node.target)) {
            (Some(draw), _, _) => (Build::Draw(draw), false),
            (None, Some(build), _) | (None, None, Some(Import::Compiled(build))) => {
                (Build::Row(build), false)
            }
            (None, None, Some(Import::View(build))) => (Build::Row(build), true),
            (None, None, Some(Import::External(reason))) => return Ok(Err(reason.to_owned())),
            (None, None, None) => return Ok(Err("not in the table".to_owned())),
        };
        if node.results.iter().any(|result| self.is_news(result)) {
            return Ok(Err("only its result tells how large it is".to_owned()));
        }
        let from = match build {
            Build::Draw(_) => Some(self.stream(device_of(node))?),
            Build::Row(_) => None,
        };
        let first_new = self.b.graph().values.next_id();
        let first_node = self.b.graph().nodes.len();
        let mut call = Call::new(&mut self.b, &self.env, node, self.options);
        let mut drawn = None;
        let built = match (build, from) {
            (Build::Row(build), _) => build(&mut call),
            (Build::Draw(_), None) => Err(err!(Internal, "random numbers without a seed")),
            (Build::Draw(how), Some(from)) => how(&call).and_then(|how| {
                drawn = Some((from.number, how));
                let ty = call.out(0)?;
                Ok(vec![call.b.sample(from, how, &ty.shape, ty.dtype)?])
            }),
        };
        let built = built.and_then(|mut values| {
            call.check(&values)?;
            // A new tensor in the host is a new tensor here: nobody may see a later write through the other.
            if !view {
                for value in &mut values {
                    if looks_into(call.b.graph(), *value, first_node) < first_new {
                        *value = call.b.emit(Op::Clone, &[*value])?;
                    }
                }
            }
            Ok(values)
        });
        let values = match built {
            Ok(values) => values,
            Err(e) if own.is_some() => return Err(e),
            Err(e) => return Ok(Err(e.message)),
        };
        self.draws.extend(drawn.map(|(stream, how)| Drawn {
            node: node.name.clone(),
            stream,
            how,
        }));
        let slots = node
            .results
            .iter()
            .zip(values)
            .map(|(result, id)| match result {
                Item::Tensor { ty } => {
                    if id >= first_new && !view {
                        self.choose_layout(id, ty);
                    }
                    Slot::Value {
                        id,
                        strides: Some(ty.strides.clone()),
                    }
                }
                Item::Int { .. } | Item::Object | Item::None => Slot::Nothing,
            });
        Ok(Ok(slots.collect()))
    }

    /// Numbers that nobody else draws. The seed is asked of the host where the first are needed.
    fn stream(&mut self, device: Device) -> Result<Stream> {
        let seed = match self.seed {
            Some(seed) => seed,
            None => {
                let seed = self.host_seed(device)?;
                *self.seed.insert(seed)
            }
        };
        self.streams += 1;
        Ok(Stream {
            seed,
            number: self.streams - 1,
        })
    }

    /// A number from the host's generator of that device.
    fn host_seed(&mut self, device: Device) -> Result<ValueId> {
        let call = std::sync::Arc::new(host::seed(device));
        let values = self.b.node(Op::External { call }, &[])?;
        let seed = values.first().copied();
        seed.ok_or_else(|| err!(Internal, "a seed without a value"))
    }

    /// Whether a tensor has a size that nothing before it tells.
    fn is_news(&self, result: &Item) -> bool {
        match result {
            Item::Tensor { ty } => {
                let mut symbols = ty.shape.iter().flat_map(Expr::symbols);
                symbols.any(|symbol| !self.bound.contains(&symbol))
            }
            Item::Int { .. } | Item::Object | Item::None => false,
        }
    }

    /// The host's strides, where they are dense but not row-major.
    fn choose_layout(&mut self, id: ValueId, ty: &Type) {
        let value = &self.b.graph().values[id];
        let settled = value.layout.strides().is_some();
        if !settled
            && !same_strides(&ty.shape, &ty.strides, &value.ty.contiguous_strides())
            && is_dense(&ty.shape, &ty.strides)
        {
            self.b.set_layout(id, Layout::Chosen(ty.strides.clone()));
        }
    }

    fn external(
        &mut self,
        node: &'d Node,
        reason: String,
        description: &Description,
    ) -> Result<Vec<Slot>> {
        let (call, operands) = host::call(
            &self.env,
            node,
            reason,
            description.objects,
            &mut self.bound,
        )?;
        let values = self.b.node(
            Op::External {
                call: std::sync::Arc::new(call),
            },
            &operands,
        )?;
        let slots = node
            .results
            .iter()
            .zip(values)
            .map(|(result, id)| match result {
                Item::Tensor { ty } => Slot::Value {
                    id,
                    strides: tensor_type(ty).map(|_| ty.strides.clone()),
                },
                Item::Object => Slot::Value { id, strides: None },
                Item::Int { value } => Slot::Int(value.clone()),
                Item::None => Slot::Nothing,
            });
        Ok(slots.collect())
    }

    fn outputs(&mut self, description: &'d Description) -> Result<()> {
        let definitions = self.b.graph().definitions();
        // A node that is returned twice is one tensor; another name for the same memory is another one.
        let mut returned: Vec<(&str, Option<usize>, usize)> = Vec::new();
        // An input that is written and returned is itself: its old value is not asked for.
        let mutated = |name: &str| {
            let mut written = description.mutations.iter().map(|m| m.input);
            written.find(|&input| {
                description
                    .inputs
                    .get(input)
                    .is_some_and(|i| i.name == name)
            })
        };
        for output in &description.outputs {
            let kind = match output {
                Argument::None => OutputKind::None,
                Argument::Expr(e) => OutputKind::Int(e.clone()),
                Argument::Node { name, index: None } if let Some(input) = mutated(name) => {
                    OutputKind::Input(input)
                }
                Argument::Node { name, index } => match self.env.slot(name, *index)?.clone() {
                    Slot::Int(e) => OutputKind::Int(e),
                    Slot::Nothing => OutputKind::None,
                    Slot::Value { id, strides } => {
                        let op = definitions.get(id).copied().flatten();
                        let op = op.map(|node| self.b.graph().nodes[node].op.category());
                        let id = match strides {
                            Some(strides) => self.with_strides(id, strides, op)?,
                            None => id,
                        };
                        let known = returned
                            .iter()
                            .find(|r| (r.0, r.1) == (name.as_str(), *index));
                        let position = match known {
                            Some(&(_, _, position)) => position,
                            None => {
                                self.b.output(id);
                                self.b.graph().outputs.len() - 1
                            }
                        };
                        returned.push((name.as_str(), *index, position));
                        let inputs = &self.b.graph().inputs;
                        let renamed = inputs.contains(&id)
                            && !description.inputs.iter().any(|input| input.name == *name);
                        if renamed {
                            OutputKind::View(position)
                        } else {
                            OutputKind::Value(position)
                        }
                    }
                },
                other => OutputKind::Constant(host::constant(other, description.objects)?),
            };
            self.signature.outputs.push(kind);
        }
        Ok(())
    }

    /// The value, which must have these strides when it leaves the graph.
    fn with_strides(
        &mut self,
        id: ValueId,
        strides: Vec<Expr>,
        category: Option<Category>,
    ) -> Result<ValueId> {
        let value = &self.b.graph().values[id];
        let shape = &value.ty.shape;
        // What a node computes has no gaps; only a view, or the host, may leave some.
        let may_leave_gaps = matches!(category, Some(Category::View | Category::External));
        if let Layout::Required(have) = &value.layout {
            if same_strides(shape, have, &strides) {
                return Ok(id);
            }
            // One value under two names of the host, each with strides of its own.
            let copy = self.b.emit(Op::Clone, &[id])?;
            self.b.set_layout(copy, Layout::Required(strides));
            return Ok(copy);
        }
        if may_leave_gaps || is_dense(shape, &strides) {
            self.b.set_layout(id, Layout::Required(strides));
        }
        Ok(id)
    }

    fn mutations(&mut self, description: &'d Description) -> Result<()> {
        self.b.set_origin(Some(Origin {
            ops: vec!["copy_".to_owned()],
            ..Origin::default()
        }));
        for mutation in &description.mutations {
            let position = self.input_positions.get(mutation.input).copied().flatten();
            let Some(position) = position else {
                return Err(Error::new(
                    Code::InvalidArgument,
                    format!("a mutation of input {}, which is no tensor", mutation.input),
                ));
            };
            let target = self.b.graph().inputs[position];
            let source = match &mutation.value {
                Argument::Node { name, index } => self.env.slot(name, *index)?.clone(),
                other => {
                    return Err(Error::new(
                        Code::InvalidArgument,
                        format!("{other:?} is written over an input"),
                    ));
                }
            };
            let Slot::Value { id, .. } = source else {
                return Err(Error::new(
                    Code::InvalidArgument,
                    format!("what is written over input {} is no tensor", mutation.input),
                ));
            };
            if id == target {
                continue;
            }
            if self.b.ty(target).device == Device::Host || self.b.ty(id).device == Device::Host {
                host::write(&mut self.b, target, id)?;
                continue;
            }
            let value = if self.b.ty(id) == self.b.ty(target) {
                id
            } else {
                self.b.copy(target, id)?
            };
            self.b.mutate(position, value);
        }
        Ok(())
    }
}

/// The value whose elements a value names, as far as views after `first_node` say.
fn looks_into(graph: &Graph, mut value: ValueId, first_node: usize) -> ValueId {
    let nodes = &graph.nodes.as_slice()[first_node..];
    while let Some(node) = nodes.iter().find(|n| n.outputs.contains(&value))
        && node.op.category() == Category::View
    {
        value = node.inputs[0];
    }
    value
}

/// Where the nodes of a call come from.
fn origin(node: &Node) -> Origin {
    // `aten.add.Tensor` is `add` to a person.
    let short = node.target.split('.').nth(1).unwrap_or(&node.target);
    Origin {
        at: node.at.as_ref().map(|at| Place {
            file: at.file.clone(),
            line: at.line,
        }),
        ops: vec![short.to_owned()],
        source: Some(node.name.clone()),
    }
}

/// Our type for the host's; `None` for what only the host understands.
pub(crate) fn tensor_type(ty: &Type) -> Option<TensorType> {
    // Two packed codes a byte are not our fp4.
    let dtype = DType::from_torch_name(&ty.dtype).filter(|d| *d != DType::F4E2M1)?;
    let device = device(&ty.device)?;
    (ty.shape.len() == ty.strides.len()).then(|| TensorType::new(dtype, ty.shape.clone(), device))
}

/// Our device for the host's; `None` for one that no kernel of ours runs on.
fn device(name: &str) -> Option<Device> {
    match name.split_once(':') {
        None => (name == "cpu").then_some(Device::Cpu),
        Some(("cuda", index)) => index.parse().ok().map(Device::Cuda),
        Some((_, _)) => None,
    }
}

/// The number of the GPU that a device is.
pub(crate) fn gpu(device: Device) -> Option<u32> {
    match device {
        Device::Cuda(index) => Some(index),
        Device::Cpu | Device::Host => None,
    }
}

/// Whether every element has a place of its own and no place is left out, in some order of the dimensions.
pub(crate) fn is_dense(shape: &[Expr], strides: &[Expr]) -> bool {
    order_of(shape, strides).is_some()
}

/// The dimensions from the slowest to the fastest (those of size 1 left out), when the strides are dense.
pub(crate) fn order_of(shape: &[Expr], strides: &[Expr]) -> Option<Vec<usize>> {
    if shape.iter().any(|n| n.is_const(0)) {
        return Some((0..shape.len()).collect());
    }
    let mut left: Vec<usize> = (0..shape.len())
        .filter(|&d| !shape[d].is_const(1))
        .collect();
    let mut order = vec![];
    let mut expected = Expr::ONE;
    while !left.is_empty() {
        let at = left.iter().position(|&d| strides[d] == expected)?;
        let d = left.remove(at);
        expected *= shape[d].clone();
        order.push(d);
    }
    order.reverse();
    Some(order)
}
