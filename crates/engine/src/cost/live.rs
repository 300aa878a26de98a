//! The memory of a program that runs one operator at a time: what a plan must not exceed.

use oxyfuel_base::{Id, Result};
use oxyfuel_graph::{Device, Graph, Node, Op, Value, ValueId, place_views};

/// Allocators give whole lines.
const LINE: i64 = 64;

/// What lives while a program runs one operator at a time.
#[derive(Clone, Debug)]
pub struct Live {
    /// The most bytes at once.
    pub most: i64,
    /// Those at each node, in order.
    pub at: Vec<i64>,
}

/// The most bytes that live at once.
pub fn live_bytes(graph: &Graph) -> Result<i64> {
    Ok(live(graph)?.most)
}

/// The bytes that live at once where each operator's results are tensors of their own, but for views, and each is forgotten after its last reader; by the likely sizes. Nodes that stand
/// side by side for one node of the source program are one operator: what they pass on among themselves is not counted.
///
/// Without a bound where a tensor lies on another device than the processor: how values lie there is not changed for the sake of memory.
pub fn live(graph: &Graph) -> Result<Live> {
    let elsewhere = |value: &Value| matches!(value.ty.device, Device::Cuda(_));
    if graph.values.values().any(elsewhere) {
        return Ok(Live {
            most: i64::MAX,
            at: vec![0; graph.nodes.len()],
        });
    }
    let places = place_views(graph)?;
    let guesses = graph.guesses();
    let bytes = |value: ValueId| {
        let ty = &graph.values[value].ty;
        let count = ty.numel().eval(&|symbol| guesses.get(&symbol).copied());
        let bytes = count.unwrap_or(0).saturating_mul(ty.dtype.size() as i64);
        bytes.saturating_add(LINE - 1) / LINE * LINE
    };
    let sum =
        |values: &mut dyn Iterator<Item = ValueId>| values.map(bytes).fold(0, i64::saturating_add);
    let operators = operators(graph);
    let mut last = vec![0; graph.values.len()];
    // Whether somebody but its own operator reads a value, or nobody does.
    let mut leaves = vec![true; graph.values.len()];
    for (node, &operator) in graph.nodes.values().zip(&operators) {
        for &value in &node.outputs {
            last[value.index()] = operator;
        }
    }
    for (node, &operator) in graph.nodes.values().zip(&operators) {
        for &value in &node.inputs {
            let root = places.root(value).index();
            leaves[root] = false;
            last[root] = last[root].max(operator);
        }
    }
    for output in &graph.outputs {
        last[places.root(output.value).index()] = usize::MAX;
    }
    let (mut live, mut at) = (0i64, Vec::with_capacity(graph.nodes.len()));
    let mut ends: Vec<Vec<ValueId>> = vec![vec![]; operators.last().map_or(0, |last| last + 1)];
    let nodes: Vec<(&Node, usize)> = graph.nodes.values().zip(operators).collect();
    for (number, (node, operator)) in nodes.iter().enumerate() {
        let own = node.outputs.iter().filter(|&&value| {
            let root = places.root(value) == value && !matches!(node.op, Op::Constant { .. });
            root && (last[value.index()] != *operator || leaves[value.index()])
        });
        for &value in own {
            live = live.saturating_add(bytes(value));
            if let Some(end) = ends.get_mut(last[value.index()]) {
                end.push(value);
            }
        }
        at.push(live);
        if nodes
            .get(number + 1)
            .is_none_or(|(_, next)| next != operator)
        {
            live = live.saturating_sub(sum(&mut ends[*operator].drain(..)));
        }
    }
    // What an input held before it is overwritten is a tensor of its own where it is returned, or stored into an input.
    let is_written = |root: ValueId| {
        let mut aliases = graph.outputs.iter().filter_map(|out| out.alias);
        aliases.any(|input| graph.inputs[input] == root)
    };
    let old = graph.outputs.iter().map(|out| out.value);
    let mut old = old.filter(|&value| is_written(places.root(value)));
    let most = at.iter().copied().max().unwrap_or(0);
    Ok(Live {
        most: most.saturating_add(sum(&mut old)),
        at,
    })
}

/// The number of the operator of each node.
fn operators(graph: &Graph) -> Vec<usize> {
    let mut number = 0;
    let mut before: Option<&Node> = None;
    let operators = graph.nodes.values().map(|node| {
        let same = before.is_some_and(|before| {
            node.origin.source.is_some() && node.origin.source == before.origin.source
        });
        number += usize::from(before.is_some() && !same);
        before = Some(node);
        number
    });
    operators.collect()
}
