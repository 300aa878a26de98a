//! Groups that do the same work share one kernel: a model of many equal layers compiles one of them.
//!
//! Two groups do the same when they read alike once the values are numbered by their first mention. The text says all that lowering looks at: ops,
//! domain and dims, views between nodes, and of each buffer its dtype, shape, strides and alignment.

use std::collections::HashMap;
use std::fmt::Write as _;

use oxyfuel_base::Id;
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

/// Finds groups that were lowered before.
pub struct Sharing<'a> {
    graph: &'a Graph,
    schedule: &'a Schedule,
    producer: Vec<Option<NodeId>>,
    /// By text: the kernel, its arguments, and the values of the group in the order of their numbers.
    known: HashMap<String, (usize, Vec<Argument>, Vec<ValueId>)>,
}

/// A group's text and its values in the order of their numbers.
pub struct Portrait {
    text: String,
    values: Vec<ValueId>,
}

impl<'a> Sharing<'a> {
    pub fn new(graph: &'a Graph, schedule: &'a Schedule) -> Self {
        let mut producer = vec![None; graph.values.len()];
        for (id, node) in graph.nodes.iter() {
            for &out in &node.outputs {
                producer[out.index()] = Some(id);
            }
        }
        Self {
            graph,
            schedule,
            producer,
            known: HashMap::new(),
        }
    }

    /// The launch of a kernel that does this group's work, if one was lowered before.
    pub fn find(&self, portrait: &Portrait) -> Option<Launch> {
        let (kernel, arguments, values) = self.known.get(&portrait.text)?;
        let arguments = arguments.iter().map(|argument| match argument {
            Argument::Value(old) => {
                let number = values.iter().position(|v| v == old)?;
                portrait.values.get(number).copied().map(Argument::Value)
            }
            // Equal texts name the same symbols.
            Argument::Workspace(_) | Argument::Size(_) | Argument::TensorMap => {
                Some(argument.clone())
            }
        });
        Some(Launch {
            kernel: *kernel,
            arguments: arguments.collect::<Option<_>>()?,
        })
    }

    /// Remembers what a group was lowered to.
    pub fn remember(&mut self, portrait: Portrait, kernel: usize, lowered: &Lowered) {
        let entry = (kernel, lowered.arguments.clone(), portrait.values);
        self.known.insert(portrait.text, entry);
    }

    pub fn portrait(&self, group: &Group) -> Portrait {
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
            GroupKind::Writes(node) => format!("writes {:?}", at(node)),
            GroupKind::External(node) => format!("external {node:?}"),
        };
        self.write(format_args!(
            "{kind} {:?} {:?} {:?} {:?};",
            group.dims, group.reduced, group.scanned, group.alternatives
        ));
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
        let producer = sharing.producer[value.index()].map(|id| &sharing.graph.nodes[id]);
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
        if let Some(id) = sharing.producer[value.index()] {
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
