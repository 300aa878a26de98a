//! Groups that do the same work share one kernel: a model of many equal layers compiles one of them.
//!
//! Two groups do the same when they read alike once the values are numbered by their first mention. The text says all that lowering looks at: ops,
//! domain and dims, views between nodes, and of each buffer its dtype, shape, strides and alignment.

use std::collections::HashMap;
use std::fmt::Write as _;

use oxyfuel_base::{Result, err};
use oxyfuel_graph::{Category, Graph, NodeId, Op, ValueId};
use oxyfuel_lower::{Argument, Lowered};
use oxyfuel_schedule::{Group, GroupKind, Schedule};

/// Kernels without repetition, and which one each group runs on which values.
#[derive(Debug)]
pub struct Kernels<K> {
    pub unique: Vec<K>,
    /// One for each group; none for a call of the host.
    pub launches: Vec<Option<Launch>>,
}

/// A kernel and what stands for its parameters.
#[derive(Clone, Debug)]
pub struct Launch {
    pub kernel: usize,
    pub arguments: Vec<Argument>,
}

/// Which groups do the same work.
#[derive(Debug)]
pub struct Shared {
    /// The first group of each kind of work.
    pub first: Vec<usize>,
    /// For each group, its kind of work and its values in the order of their numbers; none for a call of the host.
    groups: Vec<Option<(usize, Vec<ValueId>)>>,
}

/// Finds the groups that do the same.
pub fn share(graph: &Graph, schedule: &Schedule) -> Shared {
    let sharing = Sharing { graph, schedule };
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut first = Vec::new();
    let groups = schedule.groups.iter().enumerate().map(|(number, group)| {
        if let GroupKind::External(_) = group.kind {
            return None;
        }
        let Portrait { text, values } = sharing.portrait(group);
        let kind = *known.entry(text).or_insert_with(|| {
            first.push(number);
            first.len() - 1
        });
        Some((kind, values))
    });
    let groups = groups.collect();
    Shared { first, groups }
}

impl Shared {
    /// The groups that do this kind of work.
    pub fn alike(&self, kind: usize) -> impl Iterator<Item = usize> {
        let groups = self.groups.iter().enumerate();
        groups.filter_map(move |(number, group)| {
            let (work, _) = group.as_ref()?;
            (*work == kind).then_some(number)
        })
    }

    /// What every group launches, given what the first of each kind was lowered to.
    pub fn launches(&self, unique: &[Lowered]) -> Result<Vec<Option<Launch>>> {
        let launch = |group: &Option<(usize, Vec<ValueId>)>| {
            let Some((kernel, values)) = group else {
                return Ok(None);
            };
            let first = self.groups[self.first[*kernel]].as_ref();
            let original: &[ValueId] = first.map_or(&[], |(_, values)| values);
            let argument = |argument: &Argument| match argument {
                Argument::Value(old) => {
                    let number = original.iter().position(|v| v == old);
                    let value = number.and_then(|number| values.get(number));
                    value.map(|&value| Argument::Value(value)).ok_or_else(|| {
                        err!(
                            Internal,
                            "a shared kernel reads {old}, which its group does not name"
                        )
                    })
                }
                // Equal texts name the same symbols.
                Argument::Workspace(_) | Argument::Size(_) | Argument::TensorMap => {
                    Ok(argument.clone())
                }
            };
            let arguments = unique[*kernel].arguments.iter().map(argument);
            Ok(Some(Launch {
                kernel: *kernel,
                arguments: arguments.collect::<Result<_>>()?,
            }))
        };
        self.groups.iter().map(launch).collect()
    }
}

struct Sharing<'a> {
    graph: &'a Graph,
    schedule: &'a Schedule,
}

/// A group's text and its values in the order of their numbers.
struct Portrait {
    text: String,
    values: Vec<ValueId>,
}

impl Sharing<'_> {
    fn portrait(&self, group: &Group) -> Portrait {
        let mut painter = Painter {
            sharing: self,
            numbers: HashMap::new(),
            portrait: Portrait {
                text: String::new(),
                values: vec![],
            },
        };
        painter.group(group);
        painter.portrait
    }
}

struct Painter<'a> {
    sharing: &'a Sharing<'a>,
    numbers: HashMap<ValueId, usize>,
    portrait: Portrait,
}

impl Painter<'_> {
    fn group(&mut self, group: &Group) {
        let at = |node: NodeId| group.nodes.iter().position(|&n| n == node);
        let kind = match group.kind {
            GroupKind::Loops => "loops".to_owned(),
            GroupKind::Contraction(node) => format!("contraction {:?}", at(node)),
            GroupKind::Convolution(node) => format!("convolution {:?}", at(node)),
            GroupKind::Attention(node) => format!("attention {:?}", at(node)),
            GroupKind::Writes(node) => format!("writes {:?}", at(node)),
            GroupKind::External(node) => format!("external {node:?}"),
        };
        self.write(format_args!(
            "{kind} {:?} {:?} {:?} {:?};",
            group.dims, group.reduced, group.scanned, group.alternatives
        ));
        if let Some(before) = &group.before {
            let nodes: Vec<_> = before.nodes.iter().map(|&node| at(node)).collect();
            self.write(format_args!(
                "{:?} {:?} {nodes:?} ",
                before.dims, before.reduced
            ));
            self.number(before.value);
        }
        for &id in &group.nodes {
            let node = &self.sharing.graph.nodes[id];
            self.write(format_args!("{:?}(", node.op));
            for &input in &node.inputs {
                self.value(input);
            }
            self.write(format_args!(
                ") over {:?} giving ",
                group.operand_maps.get(&id)
            ));
            for &out in &node.outputs {
                self.value(out);
                self.write(format_args!(" along {:?}", group.maps.get(&out)));
            }
            self.write(format_args!(";"));
        }
        for list in [&group.inputs, &group.outputs] {
            // Their order is that of the ids, which says nothing about the work.
            let mut numbers: Vec<usize> = list.iter().map(|&v| self.number(v)).collect();
            numbers.sort_unstable();
            self.write(format_args!("{numbers:?}"));
        }
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.portrait.text.write_fmt(text);
    }

    /// A value as lowering sees it: a root by its number and place, anything else through the views before it.
    fn value(&mut self, value: ValueId) {
        let sharing = self.sharing;
        let place = sharing.schedule.placements.of(value);
        let producer = sharing
            .schedule
            .producer(value)
            .map(|id| &sharing.graph.nodes[id]);
        if place.root != value
            && let Some(node) = producer
            && node.op.category() == Category::View
        {
            let shape = &sharing.graph.values[value].ty.shape;
            self.write(format_args!("{:?} {shape:?}", node.op));
            self.place(value);
            self.write(format_args!(" of ("));
            self.value(node.inputs[0]);
            self.write(format_args!(")"));
            return;
        }
        self.number(value);
    }

    /// Where in memory it lies.
    fn place(&mut self, value: ValueId) {
        let place = self.sharing.schedule.memory.of(value);
        self.write(format_args!(" at {:?}+{:?}", place.strides, place.offset));
        if place.root != value {
            self.number(place.root);
        }
    }

    fn number(&mut self, value: ValueId) -> usize {
        if let Some(&number) = self.numbers.get(&value) {
            self.write(format_args!(" #{number}"));
            return number;
        }
        let number = self.portrait.values.len();
        self.numbers.insert(value, number);
        self.portrait.values.push(value);
        let sharing = self.sharing;
        let data = &sharing.graph.values[value];
        self.write(format_args!(
            " #{number}:{}{:?} align {}",
            data.ty.dtype, data.ty.shape, data.align
        ));
        self.place(value);
        // A source is made again by who reads it, so its op belongs to the work.
        if let Some(id) = sharing.schedule.producer(value) {
            let node = &sharing.graph.nodes[id];
            let op = &node.op;
            match op.category() {
                Category::Source if !matches!(op, Op::Constant { .. }) => {
                    self.write(format_args!(" {op:?}"));
                }
                _ => {}
            }
        }
        number
    }
}
