//! Trees that compute a linear recurrence become one scan.
//!
//! A parallel scan composes neighbouring affine functions `x -> a x + b`, then pairs of pairs, and so on; for `n` steps it reads and writes every level of the tree. On a machine of few workers the
//! recurrence itself, step by step, moves each element once. The pass does not look for one shape of tree: it follows which steps every part of every value is composed of.
//!
//! A value is seen as *cells*, row-major pieces of one step's size. Slices, views and concatenations move cells; a product of two factors that follow each other is a factor of the joint steps; a
//! factor times a state before it, plus the state of the factor's own steps, is a state of the joint steps. A value whose cells are the states from the first step to each step is the scan.
//!
//! Step by step rounds in another order than the tree does, and in the order of the recurrence as it is written down: see decision 16.

use std::collections::HashMap;

use oxyfuel_base::{Arena, DType, Expr, Result};
use oxyfuel_graph::{Binary, Graph, Node, NodeId, Op, Value, ValueId};

/// What is known of a cell. Steps are counted from 0, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// The product of the factors of these steps.
    Factor(i64, i64),
    /// The composition of these steps, from nothing.
    State(i64, i64),
    /// The state of the steps up to `.1`, times the factors from there up to `.2`.
    Moved(i64, i64, i64),
    Other,
}

/// Turns every tree that nothing else needs into a scan.
pub fn recurrences(graph: &Graph) -> Result<Graph> {
    let mut graph = graph.clone();
    let mut next = 0;
    while let Some((at, scanned)) = first(&graph, next) {
        next = at;
        if let Some(scanned) = scanned {
            graph = scanned.compact()?;
            next = 0;
        }
    }
    Ok(graph)
}

/// The first node from `from` on that may begin a tree, as the number of the node after it, and the graph with a scan in the tree's place.
fn first(graph: &Graph, from: usize) -> Option<(usize, Option<Graph>)> {
    let definitions = graph.definitions();
    let nodes = graph.nodes.iter().enumerate().skip(from);
    nodes
        .filter_map(|(at, (_, node))| Some((at, Steps::begun_by(graph, &definitions, node)?)))
        .map(|(at, steps)| (at + 1, steps.scan(graph)))
        .next()
}

/// The factors and terms of a recurrence, one step after the other along `dim`, which is the outermost.
struct Steps {
    factors: ValueId,
    terms: ValueId,
    dim: usize,
    count: i64,
    /// Elements of one step.
    size: i64,
}

impl Steps {
    /// Whether a node composes neighbouring steps: `a[1::2] * b[0::2] + b[1::2]`.
    fn begun_by(
        graph: &Graph,
        definitions: &Arena<ValueId, Option<NodeId>>,
        node: &Node,
    ) -> Option<Self> {
        let defined = |v: ValueId| definitions[v].map(|id| &graph.nodes[id]);
        let every_second = |v: ValueId| match defined(v) {
            Some(Node {
                op:
                    Op::Slice {
                        dim,
                        start,
                        step: 2,
                        ..
                    },
                inputs,
                ..
            }) => Some((inputs[0], *dim, start.as_const()?)),
            _ => None,
        };
        let either = |inputs: &[ValueId]| [(inputs[0], inputs[1]), (inputs[1], inputs[0])];
        if node.op != Op::Binary(Binary::Add) {
            return None;
        }
        for (product, term) in either(&node.inputs) {
            let Some(Node {
                op: Op::Binary(Binary::Mul),
                inputs,
                ..
            }) = defined(product)
            else {
                continue;
            };
            for (factor, state) in either(inputs) {
                let (Some(a), Some(b), Some(own)) = (
                    every_second(factor),
                    every_second(state),
                    every_second(term),
                ) else {
                    continue;
                };
                if (a.2, b.2, own.2) == (1, 0, 1) && b.0 == own.0 && a.1 == b.1 && a.1 == own.1 {
                    return Self::new(graph, a.0, b.0, a.1);
                }
            }
        }
        None
    }

    fn new(graph: &Graph, factors: ValueId, terms: ValueId, dim: usize) -> Option<Self> {
        let ty = graph.ty(factors);
        let wide = matches!(ty.dtype, DType::F32 | DType::F64);
        let outermost = ty.shape[..dim].iter().all(|extent| extent.is_const(1));
        if factors == terms || ty != graph.ty(terms) || !wide || !outermost {
            return None;
        }
        let count = ty.shape[dim].as_const()?;
        let size = elements(&ty.shape[dim + 1..])?;
        (count > 1 && size > 0).then_some(Self {
            factors,
            terms,
            dim,
            count,
            size,
        })
    }

    /// The graph with a scan in place of everything that equals it, if that leaves nothing of the tree.
    fn scan(&self, graph: &Graph) -> Option<Graph> {
        let cells = self.follow(graph);
        let whole: Vec<Cell> = (0..self.count).map(|k| Cell::State(0, k)).collect();
        let equal: Vec<&Node> = graph
            .nodes
            .values()
            .filter(|node| node.outputs.iter().any(|v| cells.get(v) == Some(&whole)))
            .filter(|node| graph.values[node.out()].layout.strides().is_none())
            .collect();
        let origin = &equal.first()?.origin;
        let mut new = graph.clone();
        let mut push = |op: Op, inputs: Vec<ValueId>, like: ValueId| {
            let out = new.values.push(Value::new(graph.ty(like).clone()));
            new.nodes.push(Node {
                op,
                inputs,
                outputs: vec![out],
                origin: origin.clone(),
            });
            out
        };
        let operands = vec![self.factors, self.terms];
        let scan = push(Op::LinearScan { dim: self.dim }, operands, self.terms);
        let replaced: Vec<(ValueId, ValueId)> = equal
            .iter()
            .map(|node| {
                let shape = graph.ty(node.out()).shape.clone();
                let same = shape == graph.ty(self.terms).shape;
                let view = || push(Op::View { shape }, vec![scan], node.out());
                (node.out(), if same { scan } else { view() })
            })
            .collect();
        for (old, view) in replaced {
            new.replace(old, view);
        }
        let composes = |id: &NodeId| {
            let node = &new.nodes[*id];
            let own = matches!(node.op, Op::Binary(_));
            own && node.outputs.iter().any(|v| cells.contains_key(v))
        };
        (!new.live_nodes().iter().any(composes)).then_some(new)
    }

    /// The cells of every value that is made of the steps.
    fn follow(&self, graph: &Graph) -> HashMap<ValueId, Vec<Cell>> {
        let mut cells: HashMap<ValueId, Vec<Cell>> = HashMap::new();
        let each = |cell: fn(i64, i64) -> Cell| (0..self.count).map(|k| cell(k, k)).collect();
        cells.insert(self.factors, each(Cell::Factor));
        cells.insert(self.terms, each(Cell::State));
        for node in graph.nodes.values() {
            if node.outputs.len() != 1 || !node.inputs.iter().any(|v| cells.contains_key(v)) {
                continue;
            }
            if cells.contains_key(&node.out()) {
                continue;
            }
            let made = self.cells_of(graph, node, &cells);
            let known = made.filter(|cells| cells.iter().any(|&cell| cell != Cell::Other));
            cells.extend(known.map(|known| (node.out(), known)));
        }
        cells
    }

    fn cells_of(
        &self,
        graph: &Graph,
        node: &Node,
        known: &HashMap<ValueId, Vec<Cell>>,
    ) -> Option<Vec<Cell>> {
        let cells = |i: usize| -> Option<Vec<Cell>> {
            let value = node.inputs[i];
            known.get(&value).cloned().or_else(|| {
                let count = elements(&graph.ty(value).shape)?;
                let many = usize::try_from(count / self.size).ok()?;
                (count % self.size == 0).then(|| vec![Cell::Other; many])
            })
        };
        let shape = &graph.ty(node.out()).shape;
        // Pieces of the result that an index along `dim` has, and how often the dims before it repeat them.
        let piece = |dim: usize| -> Option<(usize, usize)> {
            let inner = elements(&shape[dim + 1..])?;
            let whole = inner % self.size == 0;
            let outer = usize::try_from(elements(&shape[..dim])?).ok()?;
            whole.then_some((outer, usize::try_from(inner / self.size).ok()?))
        };
        let extent = |v: ValueId, dim: usize| -> Option<usize> {
            usize::try_from(graph.ty(v).shape[dim].as_const()?).ok()
        };
        match &node.op {
            Op::View { .. } | Op::Clone => cells(0),
            Op::Binary(op @ (Binary::Mul | Binary::Add)) => {
                if node.inputs.iter().any(|&v| graph.ty(v).shape != *shape) {
                    return None;
                }
                let (a, b) = (cells(0)?, cells(1)?);
                let both = a.into_iter().zip(b);
                Some(both.map(|(a, b)| composed(*op, a, b)).collect())
            }
            Op::Slice {
                dim, start, step, ..
            } => {
                let (outer, inner) = piece(*dim)?;
                let from = usize::try_from(start.as_const()?).ok()?;
                let step = usize::try_from(*step).ok()?;
                let (all, taken) = (extent(node.inputs[0], *dim)?, extent(node.out(), *dim)?);
                let x = cells(0)?;
                let places =
                    (0..outer).flat_map(|o| (0..taken).map(move |i| o * all + from + i * step));
                Some(
                    places
                        .flat_map(|at| x[at * inner..(at + 1) * inner].iter().copied())
                        .collect(),
                )
            }
            Op::SliceScatter {
                dim, start, step, ..
            } => {
                let (outer, inner) = piece(*dim)?;
                let from = usize::try_from(start.as_const()?).ok()?;
                let step = usize::try_from(*step).ok()?;
                let (all, taken) = (extent(node.out(), *dim)?, extent(node.inputs[1], *dim)?);
                let (mut x, src) = (cells(0)?, cells(1)?);
                for o in 0..outer {
                    for i in 0..taken {
                        let (to, at) =
                            ((o * all + from + i * step) * inner, (o * taken + i) * inner);
                        x[to..to + inner].copy_from_slice(&src[at..at + inner]);
                    }
                }
                Some(x)
            }
            Op::Cat { dim } => {
                // What an operand gives to each row is whole cells, whether or not its elements along `dim` are.
                let row = |v: ValueId| -> Option<usize> {
                    let elements = elements(&graph.ty(v).shape[*dim..])?;
                    let whole = elements % self.size == 0;
                    whole.then(|| usize::try_from(elements / self.size).ok())?
                };
                let parts: Vec<(Vec<Cell>, usize)> = (0..node.inputs.len())
                    .map(|i| Some((cells(i)?, row(node.inputs[i])?)))
                    .collect::<Option<_>>()?;
                let outer = usize::try_from(elements(&shape[..*dim])?).ok()?;
                let mut out = Vec::new();
                for o in 0..outer {
                    for (part, row) in &parts {
                        out.extend_from_slice(&part[o * row..(o + 1) * row]);
                    }
                }
                Some(out)
            }
            _ => None,
        }
    }
}

/// What two cells are together, in either order.
fn composed(op: Binary, a: Cell, b: Cell) -> Cell {
    let ordered = |a: Cell, b: Cell| match (op, a, b) {
        (Binary::Mul, Cell::Factor(i, j), Cell::Factor(next, k)) if next == j + 1 => {
            Some(Cell::Factor(i, k))
        }
        (Binary::Mul, Cell::State(i, j), Cell::Factor(next, k)) if next == j + 1 => {
            Some(Cell::Moved(i, j, k))
        }
        (Binary::Add, Cell::Moved(i, j, k), Cell::State(next, last))
            if next == j + 1 && last == k =>
        {
            Some(Cell::State(i, k))
        }
        _ => None,
    };
    ordered(a, b)
        .or_else(|| ordered(b, a))
        .unwrap_or(Cell::Other)
}

/// The number of elements of a shape, where it is known.
fn elements(shape: &[Expr]) -> Option<i64> {
    shape
        .iter()
        .map(Expr::as_const)
        .try_fold(1i64, |all, extent| all.checked_mul(extent?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_graph::{Builder, Device, HostTensor, run};

    type Pair = (ValueId, ValueId);

    fn slice(b: &mut Builder, x: ValueId, start: i64, end: i64, step: i64) -> ValueId {
        b.slice(x, 0, start, end, step).unwrap()
    }

    fn compose(b: &mut Builder, left: Pair, right: Pair) -> Pair {
        let factor = b.mul(left.0, right.0).unwrap();
        let moved = b.mul(right.0, left.1).unwrap();
        (factor, b.add(moved, right.1).unwrap())
    }

    fn interleave(b: &mut Builder, even: ValueId, odd: ValueId, n: i64) -> ValueId {
        let pad = n % 2 == 1;
        let odd = if pad {
            let zero = b
                .full(0.0, vec![1.into(), 3.into()], DType::F32, Device::Cpu)
                .unwrap();
            b.cat(&[odd, zero], 0).unwrap()
        } else {
            odd
        };
        let both = b.cat(&[even, odd], 1).unwrap();
        let rows = n + i64::from(pad);
        let flat = b.view(both, &[rows.into(), 3.into()]).unwrap();
        if pad { slice(b, flat, 0, n, 1) } else { flat }
    }

    /// A parallel scan as programs write it: neighbours, the scan of those, and what lies between.
    fn tree(b: &mut Builder, (x, y): Pair, n: i64) -> Pair {
        if n < 2 {
            return (x, y);
        }
        let even = (slice(b, x, 0, n - 1, 2), slice(b, y, 0, n - 1, 2));
        let odd = (slice(b, x, 1, n, 2), slice(b, y, 1, n, 2));
        let pairs = compose(b, even, odd);
        let odds = tree(b, pairs, n / 2);
        let before = (n - 1) / 2;
        let first = (slice(b, x, 0, 1, 1), slice(b, y, 0, 1, 1));
        let evens = if before == 0 {
            first
        } else {
            let left = (
                slice(b, odds.0, 0, before, 1),
                slice(b, odds.1, 0, before, 1),
            );
            let right = (slice(b, x, 2, n, 2), slice(b, y, 2, n, 2));
            let made = compose(b, left, right);
            (
                b.cat(&[first.0, made.0], 0).unwrap(),
                b.cat(&[first.1, made.1], 0).unwrap(),
            )
        };
        (
            interleave(b, evens.0, odds.0, n),
            interleave(b, evens.1, odds.1, n),
        )
    }

    fn tree_of(n: i64, more: impl Fn(&mut Builder, Pair, Pair) -> Vec<ValueId>) -> Graph {
        let mut b = Builder::new("f");
        let shape = vec![Expr::constant(n), Expr::constant(3)];
        let mut input = |name| {
            b.input(name, DType::F32, shape.clone(), Device::Cpu)
                .unwrap()
        };
        let (x, y) = (input("a"), input("b"));
        let made = tree(&mut b, (x, y), n);
        for value in more(&mut b, (x, y), made) {
            b.output(value);
        }
        b.finish().unwrap()
    }

    fn scans(graph: &Graph) -> usize {
        let is_scan = |node: &&Node| matches!(node.op, Op::LinearScan { .. });
        graph.nodes.values().filter(is_scan).count()
    }

    #[test]
    fn trees_of_any_length_are_scans() {
        for n in 2..=19 {
            let graph = tree_of(n, |_, _, made| vec![made.1]);
            let scanned = recurrences(&graph).unwrap();
            oxyfuel_graph::verify(&scanned).unwrap();
            assert_eq!(scans(&scanned), 1, "{n} steps:\n{scanned}");
            let rest = scanned
                .nodes
                .values()
                .filter(|n| matches!(n.op, Op::Binary(_)));
            assert_eq!(rest.count(), 0, "{n} steps");
            let some = |seed: i64| {
                let values = (0..n * 3).map(|i| ((i * 7 + seed) % 11) as f64 / 8.0 - 0.5);
                HostTensor::from_f64(DType::F32, &[n, 3], &values.collect::<Vec<_>>()).unwrap()
            };
            let inputs = [some(3), some(5)];
            let result = |graph: &Graph| run(graph, &inputs).unwrap()[0].to_f64();
            let pairs = result(&graph).into_iter().zip(result(&scanned));
            for (i, (a, b)) in pairs.enumerate() {
                assert!((a - b).abs() < 1e-5, "{n} steps, element {i}: {a} and {b}");
            }
        }
    }

    #[test]
    fn a_tree_that_is_needed_otherwise_stays() {
        let products = tree_of(8, |_, _, made| vec![made.0, made.1]);
        assert_eq!(scans(&recurrences(&products).unwrap()), 0);
    }

    #[test]
    fn a_tree_of_something_else_stays() {
        let wrong = tree_of(4, |b, (x, y), _| {
            let even = (slice(b, x, 0, 3, 2), slice(b, y, 0, 3, 2));
            let odd = (slice(b, x, 1, 4, 2), slice(b, y, 1, 4, 2));
            let pairs = compose(b, even, odd);
            // The second half first.
            let (last, first) = (slice(b, pairs.1, 1, 2, 1), slice(b, pairs.1, 0, 1, 1));
            vec![b.cat(&[last, first], 0).unwrap()]
        });
        assert_eq!(scans(&recurrences(&wrong).unwrap()), 0);
    }
}
