//! Memory in a trace: graphs have values, programs have memory that is written to.
//!
//! A *base* is memory that the program can tell apart: that of an argument, of a captured tensor, or of a result of an operation. A traced tensor is a *place*: a base and the views
//! that lead from the whole of it to the tensor. A write makes a new content of the base: the views are walked back, and each says what the whole is once its part is replaced. Tensors on the same
//! base notice by its version that what they were is over, and are derived anew from its content when they are next used. So what is written through one view is seen through all.

use super::{Cut, Facts};
use crate::guard::Guard;
use oxyfuel_base::{Code, Expr, Result, Symbol, ensure, err};
use oxyfuel_graph::{Builder, Category, Graph, Layout as Border, Op, Value, ValueId};
use oxyfuel_runtime::tensor as rt;
use oxyfuel_runtime::tensor::layout::Layout;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub bases: Vec<Base>,
    /// By the number of their facts.
    pub tensors: Vec<Known>,
    /// Inputs of the graph, in the order in which they were first used; arguments come first.
    pub inputs: Vec<Input>,
}

/// Memory of its own.
#[derive(Debug)]
pub(super) struct Base {
    pub content: Content,
    /// Counts its contents.
    version: u32,
    /// The tensor that the program already has, if it is one.
    pub origin: Option<Origin>,
    /// As what the memory that an earlier segment left enters the graph.
    pub kept: Option<Value>,
    /// Whether the content is another one than at the start of the graph.
    pub written: bool,
}

#[derive(Debug)]
pub(super) struct Origin {
    pub tensor: rt::Tensor,
    /// As what it enters the graph.
    pub border: Value,
    pub is_argument: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    /// What a value of the graph is.
    Value(ValueId),
    /// What memory holds when the graph begins.
    Memory(rt::Tensor),
}

/// An input of the graph. Inputs stand before every node, so a place is held until the graph is finished.
#[derive(Debug)]
pub(super) struct Input {
    pub base: usize,
    pub tensor: rt::Tensor,
    pub border: Value,
    pub held: ValueId,
}

/// Where the elements of a tensor lie.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub base: usize,
    pub views: Vec<Op>,
    /// As eager execution would have it.
    pub layout: Layout,
}

/// A tensor of the trace.
#[derive(Debug)]
pub(super) struct Known {
    pub place: Arc<Place>,
    value: ValueId,
    /// That of the base, when this was its value.
    version: u32,
    facts: Weak<Facts>,
}

impl Known {
    pub fn base(&self) -> usize {
        self.place.base
    }

    /// Whether the program can still use it.
    pub fn is_held(&self) -> bool {
        self.facts.strong_count() > 0
    }
}

impl Place {
    /// A view of this place, where it is one without a copy.
    pub fn viewed(
        &self,
        views: &[Op],
        number: &dyn Fn(&Expr) -> Result<i64>,
    ) -> Result<Option<Self>> {
        let mut out = self.clone();
        let numbers = |list: &[Expr]| list.iter().map(number).collect::<Result<Vec<_>>>();
        for op in views {
            let viewed = match op {
                Op::View { shape } => out.layout.reshape(&numbers(shape)?),
                Op::Permute { dims } => out.layout.permute(dims),
                Op::Expand { shape } => out.layout.expand(&numbers(shape)?),
                Op::Slice {
                    dim,
                    start,
                    end,
                    step,
                } => out.layout.slice(*dim, number(start)?, number(end)?, *step),
                _ => return Err(err!(Internal, "{} is no view", op.name())),
            };
            out.layout = match viewed {
                Ok(layout) => layout,
                // Only a copy can have that shape.
                Err(error) if error.code == Code::LayoutMismatch => return Ok(None),
                Err(error) => return Err(error),
            };
            out.views.push(op.clone());
        }
        Ok(Some(out))
    }
}

/// The operand that a value is a chain of views of, and the chain; the value itself, where it is none.
pub(super) fn views(
    graph: &Graph,
    out: ValueId,
    is_operand: &dyn Fn(ValueId) -> bool,
) -> (ValueId, Vec<Op>) {
    let (mut root, mut chain) = (out, Vec::new());
    while !is_operand(root) {
        let mut nodes = graph.nodes.values().rev();
        let node = nodes.find(|node| node.outputs.contains(&root));
        match node {
            Some(node) if node.op.category() == Category::View => {
                chain.push(node.op.clone());
                root = node.inputs[0];
            }
            Some(_) | None => break,
        }
    }
    chain.reverse();
    (root, chain)
}

impl Memory {
    fn push(&mut self, content: Content, origin: Option<Origin>) -> usize {
        self.bases.push(Base {
            content,
            version: 0,
            origin,
            kept: None,
            written: false,
        });
        self.bases.len() - 1
    }

    fn whole(base: usize, layout: Layout) -> Arc<Place> {
        Arc::new(Place {
            base,
            views: Vec::new(),
            layout,
        })
    }

    /// The memory of an argument.
    pub fn argument(&mut self, tensor: &rt::Tensor, border: Value) -> Arc<Place> {
        let origin = Origin {
            tensor: tensor.clone(),
            border,
            is_argument: true,
        };
        let base = self.push(Content::Memory(tensor.clone()), Some(origin));
        Self::whole(base, tensor.layout().clone())
    }

    /// The memory of a concrete tensor that the function uses. Once the function is cut it runs anew at every call, and an argument can be recognised; so can a size.
    pub fn lift(
        &mut self,
        tensor: &rt::Tensor,
        cuts: &[Cut],
        sizes: &BTreeMap<Symbol, i64>,
    ) -> Arc<Place> {
        let same = |known: &rt::Tensor| {
            known.storage().is_same(tensor.storage())
                && known.layout() == tensor.layout()
                && known.dtype() == tensor.dtype()
        };
        let known = self.bases.iter().position(|base| match &base.origin {
            Some(origin) => (!origin.is_argument || !cuts.is_empty()) && same(&origin.tensor),
            None => false,
        });
        let base = known.unwrap_or_else(|| {
            let captured = self
                .bases
                .iter()
                .filter(|base| base.origin.is_some())
                .count();
            let mut border = Guard::of(tensor).value(format!("captured{captured}"));
            if !cuts.is_empty() {
                generalise(&mut border, tensor, sizes);
            }
            let origin = Origin {
                tensor: tensor.clone(),
                border,
                is_argument: false,
            };
            self.push(Content::Memory(tensor.clone()), Some(origin))
        });
        Self::whole(base, tensor.layout().clone())
    }

    /// Memory for a new value; dense, as eager results are.
    pub fn fresh(&mut self, value: ValueId, shape: &[i64]) -> Arc<Place> {
        let base = self.push(Content::Value(value), None);
        Self::whole(base, Layout::contiguous(shape))
    }

    pub fn know(&mut self, facts: &Arc<Facts>, place: Arc<Place>, value: ValueId) {
        let version = self.bases[place.base].version;
        self.tensors.push(Known {
            place,
            value,
            version,
            facts: Arc::downgrade(facts),
        });
    }

    /// Says what a tensor is now.
    pub fn seen(&mut self, id: usize, value: ValueId) {
        let known = &mut self.tensors[id];
        known.value = value;
        known.version = self.bases[known.place.base].version;
    }

    /// The whole of a base as a value of the graph.
    pub fn content(&mut self, builder: &mut Builder, base: usize) -> Result<ValueId> {
        let tensor = match &self.bases[base].content {
            Content::Value(value) => return Ok(*value),
            Content::Memory(tensor) => tensor.clone(),
        };
        let known = &self.bases[base];
        let border = match (&known.origin, &known.kept) {
            (Some(Origin { border, .. }), _) | (None, Some(border)) => border.clone(),
            (None, None) => Guard::of(&tensor).value(format!("kept{base}")),
        };
        let ty = border.ty.clone();
        let held = builder.full(0, ty.shape, ty.dtype, ty.device)?;
        self.inputs.push(Input {
            base,
            tensor,
            border,
            held,
        });
        self.bases[base].content = Content::Value(held);
        Ok(held)
    }

    /// What a tensor is now.
    pub fn value_of(&mut self, builder: &mut Builder, id: usize) -> Result<(ValueId, Arc<Place>)> {
        let known = &self.tensors[id];
        let place = known.place.clone();
        if known.version == self.bases[place.base].version {
            return Ok((known.value, place));
        }
        let mut value = self.content(builder, place.base)?;
        for op in &place.views {
            value = builder.emit(op.clone(), &[value])?;
        }
        self.seen(id, value);
        Ok((value, place))
    }

    /// Gives a place new elements.
    pub fn write(&mut self, builder: &mut Builder, place: &Place, value: ValueId) -> Result<()> {
        let mut dims = place.layout.shape.iter().zip(&place.layout.strides);
        ensure!(
            !dims.any(|(extent, stride)| *extent > 1 && *stride == 0),
            AliasedInputs,
            "a write into an expanded tensor, whose elements share memory"
        );
        // What each view is a view of.
        let mut wholes = vec![self.content(builder, place.base)?];
        for op in place.views.iter().take(place.views.len().saturating_sub(1)) {
            let whole = wholes[wholes.len() - 1];
            wholes.push(builder.emit(op.clone(), &[whole])?);
        }
        let mut new = value;
        for (op, whole) in place.views.iter().zip(wholes).rev() {
            new = put(builder, op, whole, new)?;
        }
        let base = &mut self.bases[place.base];
        base.content = Content::Value(new);
        base.version += 1;
        base.written = true;
        Ok(())
    }

    /// The graph is over: what its values were, memory holds from here on.
    pub fn renew(&mut self) {
        for base in &mut self.bases {
            base.version += 1;
            base.written = false;
        }
        self.inputs.clear();
    }
}

/// Sizes of a tensor that are those of symbols in this call: the same segment of a call with other sizes is then the same graph. Whatever is taken for a symbol is one in this call, so
/// the segment is right in any case.
fn generalise(border: &mut Value, tensor: &rt::Tensor, sizes: &BTreeMap<Symbol, i64>) {
    if !tensor.is_contiguous() {
        return;
    }
    for (extent, &size) in border.ty.shape.iter_mut().zip(tensor.shape()) {
        let symbol = sizes.iter().find(|(_, known)| **known == size && size > 1);
        if let Some((&symbol, _)) = symbol {
            *extent = Expr::from(symbol);
        }
    }
    border.layout = Border::Required(border.ty.contiguous_strides());
}

/// `whole`, whose view by `op` is `part` from now on.
fn put(builder: &mut Builder, op: &Op, whole: ValueId, part: ValueId) -> Result<ValueId> {
    let shape = builder.ty(whole).shape.clone();
    match op {
        // An expanded place that may be written only has new dims of extent 1.
        Op::View { .. } | Op::Expand { .. } => builder.view(part, &shape),
        Op::Permute { dims } => {
            let mut back = vec![0i64; dims.len()];
            for (to, &from) in dims.iter().enumerate() {
                back[from] = to as i64;
            }
            builder.permute(part, &back)
        }
        Op::Slice {
            dim,
            start,
            end,
            step,
        } => builder.emit(
            Op::SliceScatter {
                dim: *dim,
                start: start.clone(),
                end: end.clone(),
                step: *step,
            },
            &[whole, part],
        ),
        _ => Err(err!(Internal, "{} is no view", op.name())),
    }
}
