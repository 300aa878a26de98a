//! Whether padding changes results: an argument's dim is filled up with zeros to a declared size, and what a function makes of the elements that were there must be what it makes without.
//!
//! In a graph with a symbol for the padded size, a dim whose extent depends on the symbol is *padded*, and its elements up to the extent at the true size are *true*. Every op is asked for two things:
//! that true elements of its result depend on true elements of its operands alone, and what all other elements are, where that is one known number. The second makes the first
//! possible for a reduction: padding with 0 does not change a sum, nor padding with -inf a softmax. What is not known to be harmless is refused.

use oxyfuel_base::{Code, DType, Error, Expr, Result, Scalar, Symbol, err};
use oxyfuel_graph::{Builder, Category, Device, Graph, HostTensor, Node, Op, Reduce, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A number that elements are, if they are one.
type Fill = Option<Scalar>;

/// What the elements are that lie beyond the true ones of a dim, whatever their other coordinates; dims are counted from the last, as broadcasting keeps that number.
type Fills = BTreeMap<usize, Scalar>;

struct Check<'a> {
    graph: &'a Graph,
    symbols: BTreeSet<Symbol>,
    /// By value.
    fills: Vec<Fills>,
}

/// Makes sure that a graph, whose symbols are sizes that inputs are padded to with zeros, gives the same with and without padding.
pub(crate) fn check(graph: &Graph) -> Result<()> {
    let mut check = Check {
        graph,
        symbols: graph.symbols.iter().map(|info| info.symbol).collect(),
        fills: vec![Fills::new(); graph.values.len()],
    };
    for &input in &graph.inputs {
        let zeros = check.padded(input).into_iter();
        check.fills[index(input)] = zeros.map(|dim| (dim, Scalar::I(0))).collect();
    }
    for node in graph.nodes.values() {
        let fills = check.node(node)?;
        for &output in &node.outputs {
            check.fills[index(output)] = fills.clone();
        }
    }
    Ok(())
}

fn index(value: ValueId) -> usize {
    oxyfuel_base::Id::index(value)
}

impl Check<'_> {
    fn is_padded(&self, extent: &Expr) -> bool {
        extent.symbols().iter().any(|s| self.symbols.contains(s))
    }

    fn shape(&self, value: ValueId) -> &[Expr] {
        &self.graph.ty(value).shape
    }

    /// The padded dims, counted from the last.
    fn padded(&self, value: ValueId) -> BTreeSet<usize> {
        let dims = self.shape(value).iter().rev().enumerate();
        dims.filter(|(_, extent)| self.is_padded(extent))
            .map(|(dim, _)| dim)
            .collect()
    }

    fn is_padded_at(&self, value: ValueId, dim: usize) -> bool {
        self.shape(value)
            .get(dim)
            .is_some_and(|e| self.is_padded(e))
    }

    /// The one number that all elements of a value without padding are, if they are one.
    fn uniform(&self, value: ValueId) -> Fill {
        let mut nodes = self.graph.nodes.values();
        let node = nodes.find(|node| node.outputs.contains(&value))?;
        match &node.op {
            Op::Full { value, .. } => Some(*value),
            _ => None,
        }
    }

    fn refuse(&self, node: &Node, why: &str) -> Error {
        let name = node.op.name();
        let at = node.origin.at.as_ref();
        let place = at.map_or(String::new(), |place| format!(" at {place}"));
        err!(
            PaddingMatters,
            "{name}{place}: {why}, so padding to a bucket would change its result"
        )
        .help("mask the padded elements first (masked_fill, or a mask as a bucketed argument and sums of it), or declare no bucket for that dim")
    }

    /// What lies beyond the true elements of a dim: of a value that is not padded there, what all its elements are.
    fn beyond(&self, value: ValueId, dim: usize) -> Fill {
        match self.padded(value).contains(&dim) {
            true => self.fills[index(value)].get(&dim).copied(),
            false => self.uniform(value),
        }
    }

    fn node(&self, node: &Node) -> Result<Fills> {
        let touched = node
            .inputs
            .iter()
            .chain(&node.outputs)
            .any(|&value| !self.padded(value).is_empty());
        if !touched {
            // A size as a number of the program is no shape.
            return match &node.op {
                Op::ScalarTensor { value, .. } if self.is_padded(value) => {
                    Err(self.refuse(node, "it uses the padded size as a number"))
                }
                _ => Ok(Fills::new()),
            };
        }
        match node.op.category() {
            Category::Pointwise => Ok(self.pointwise(node)),
            Category::View => self.view(node),
            Category::Source => match &node.op {
                Op::Full { value, .. } => {
                    let dims = self.padded(node.outputs[0]).into_iter();
                    Ok(dims.map(|dim| (dim, *value)).collect())
                }
                // Each element depends on its position alone.
                Op::Arange { .. } => Ok(Fills::new()),
                _ => Err(self.refuse(node, "its size depends on the padded size")),
            },
            // A running result depends on what came before it.
            Category::Scan => Ok(Fills::new()),
            Category::Matmul => self.product(node),
            _ => self.special(node),
        }
    }

    /// Elements meet their like: only what the padding becomes is asked.
    fn pointwise(&self, node: &Node) -> Fills {
        let fill = |dim: usize| -> Fill {
            if let (Op::Where, [condition, a, b]) = (&node.op, &node.inputs[..]) {
                let taken = if self.beyond(*condition, dim)?.as_f64() != 0.0 {
                    a
                } else {
                    b
                };
                return self.beyond(*taken, dim);
            }
            let operands = node.inputs.iter().map(|&input| {
                let fill = self.beyond(input, dim)?;
                Some((self.graph.ty(input).dtype, fill))
            });
            evaluate(&node.op, &operands.collect::<Option<Vec<_>>>()?)
        };
        let dims = self.padded(node.outputs[0]).into_iter();
        dims.filter_map(|dim| Some((dim, fill(dim)?))).collect()
    }

    fn view(&self, node: &Node) -> Result<Fills> {
        let (input, output) = (node.inputs[0], node.outputs[0]);
        let fills = &self.fills[index(input)];
        let rank = self.shape(input).len();
        match &node.op {
            Op::Permute { dims } => {
                let places = dims.iter().rev().enumerate();
                let moved =
                    places.filter_map(|(to, &from)| Some((to, *fills.get(&(rank - 1 - from))?)));
                Ok(moved.collect())
            }
            Op::Expand { .. } => {
                let dims = self.padded(output).into_iter();
                Ok(dims
                    .filter_map(|dim| Some((dim, self.beyond(input, dim)?)))
                    .collect())
            }
            Op::Slice {
                dim, start, end, ..
            } if self.is_padded_at(input, *dim) => {
                if self.is_padded(start) {
                    return Err(self.refuse(node, "it counts from the end of the padded dim"));
                }
                let mut fills = fills.clone();
                if *end != self.shape(input)[*dim] {
                    fills.remove(&(rank - 1 - dim));
                }
                Ok(fills)
            }
            Op::Slice { .. } => Ok(fills.clone()),
            Op::View { .. } => {
                // True elements stay the first ones where the dims to the left hold as many elements as before.
                let (old, new) = (self.lefts(input), self.lefts(output));
                let same = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| a.1 == b.1);
                if !same {
                    return Err(self.refuse(node, "it folds the padded dim into others"));
                }
                let pairs = old.iter().zip(&new);
                Ok(pairs
                    .filter_map(|((from, _), (to, _))| Some((*to, *fills.get(from)?)))
                    .collect())
            }
            _ => Err(self.refuse(node, "it is not known to be harmless")),
        }
    }

    /// The padded dims and how many elements the dims to their left hold.
    fn lefts(&self, value: ValueId) -> Vec<(usize, Expr)> {
        let (mut left, mut out) = (Expr::ONE, Vec::new());
        let shape = self.shape(value);
        for (dim, extent) in shape.iter().enumerate() {
            if self.is_padded(extent) {
                out.push((shape.len() - 1 - dim, left.clone()));
            }
            left *= extent.clone();
        }
        out
    }

    fn product(&self, node: &Node) -> Result<Fills> {
        let [.., a, b] = node.inputs[..] else {
            return Err(self.refuse(node, "it is not known to be harmless"));
        };
        let rank = self.shape(a).len();
        if rank == 0 || !self.is_padded_at(a, rank - 1) {
            return Ok(Fills::new());
        }
        let zero = |value: ValueId, dim: usize| {
            let fill = self.fills[index(value)].get(&dim);
            fill.is_some_and(|s| s.as_f64() == 0.0)
        };
        match zero(a, 0) && zero(b, 1) {
            true => Ok(Fills::new()),
            false => Err(self.refuse(node, "it sums over the padded dim, whose padding is not 0")),
        }
    }

    fn special(&self, node: &Node) -> Result<Fills> {
        let Some(&input) = node.inputs.first() else {
            return Err(self.refuse(node, "it is not known to be harmless"));
        };
        let (rank, fills) = (self.shape(input).len(), &self.fills[index(input)]);
        let over = |dims: &[usize]| dims.iter().any(|&dim| self.is_padded_at(input, dim));
        // Beyond every padded one of these dims lies this number.
        let is = |dims: &[usize], wanted: &dyn Fn(f64) -> bool| {
            let mut padded = dims.iter().filter(|&&dim| self.is_padded_at(input, dim));
            padded.all(|dim| {
                fills
                    .get(&(rank - 1 - dim))
                    .is_some_and(|s| wanted(s.as_f64()))
            })
        };
        let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
        let none = Ok(Fills::new());
        match &node.op {
            Op::Reduce { op, dims, .. } => {
                let harmless = match op {
                    Reduce::Sum | Reduce::Any => is(dims, &|x| x == 0.0),
                    Reduce::Prod => is(dims, &|x| x == 1.0),
                    Reduce::Amax => is(dims, &|x| x == low),
                    Reduce::Amin => is(dims, &|x| x == high),
                    Reduce::All => is(dims, &|x| x != 0.0),
                    Reduce::Mean => !over(dims),
                };
                match harmless {
                    true => none,
                    false => Err(self.refuse(node, "it reduces the padded dim")),
                }
            }
            Op::Softmax { dim } | Op::LogSoftmax { dim } if over(&[*dim]) => {
                if !is(&[*dim], &|x| x == low) {
                    let why = "it sums over the padded dim, whose padding is not -inf";
                    return Err(self.refuse(node, why));
                }
                let beyond = match &node.op {
                    Op::Softmax { .. } => 0.0,
                    _ => low,
                };
                Ok([(rank - 1 - dim, Scalar::F(beyond))].into())
            }
            Op::Argmax { dim, .. } if !is(&[*dim], &|x| x == low) => {
                Err(self.refuse(node, "it searches the padded dim"))
            }
            Op::Argmin { dim, .. } if !is(&[*dim], &|x| x == high) => {
                Err(self.refuse(node, "it searches the padded dim"))
            }
            Op::Softmax { .. } | Op::LogSoftmax { .. } | Op::Argmax { .. } | Op::Argmin { .. } => {
                none
            }
            Op::Var { dims, .. } if !over(dims) => none,
            Op::NativeLayerNorm { rank: last, .. } => {
                match over(&(rank - (*last).min(rank)..rank).collect::<Vec<_>>()) {
                    true => Err(self.refuse(node, "it normalises over the padded dim")),
                    false => none,
                }
            }
            Op::Argsort { dim, .. } if !over(&[*dim]) => none,
            Op::Gather { dim } | Op::IndexSelect { dim } if !over(&[*dim]) => none,
            Op::Embedding if !over(&[0]) => none,
            // Images do not mix.
            Op::Convolution { .. } | Op::ConvPanels { .. }
                if !over(&(1..rank).collect::<Vec<_>>())
                    && self.padded(node.inputs[1]).is_empty() =>
            {
                none
            }
            Op::Cat { dim } if !self.is_padded_at(node.outputs[0], *dim) => none,
            Op::SliceScatter { dim, .. } if !over(&[*dim]) => none,
            Op::Copy => {
                let dims = self.padded(node.outputs[0]).into_iter();
                let src = node.inputs[1];
                Ok(dims
                    .filter_map(|dim| Some((dim, self.beyond(src, dim)?)))
                    .collect())
            }
            _ => Err(self.refuse(node, "it is not known to be harmless on a padded dim")),
        }
    }
}

/// What an op of elements makes of numbers, by the interpreter.
fn evaluate(op: &Op, operands: &[(DType, Scalar)]) -> Fill {
    let run = || -> Result<Scalar> {
        let mut b = Builder::new("fill");
        let mut inputs = Vec::new();
        let mut values = Vec::new();
        for (i, (dtype, number)) in operands.iter().enumerate() {
            values.push(b.input(&format!("x{i}"), *dtype, vec![], Device::Cpu)?);
            let bytes = number.to_bits(*dtype).to_le_bytes()[..dtype.size()].to_vec();
            inputs.push(HostTensor::new(*dtype, &[], bytes)?);
        }
        let out = b.emit(op.clone(), &values)?;
        b.output(out);
        let outputs = oxyfuel_graph::run(&b.finish()?, &inputs)?;
        let first = outputs.first();
        first
            .map(|out| out.get(0))
            .ok_or_else(|| Error::new(Code::Internal, "an op without a result"))
    };
    run().ok()
}
