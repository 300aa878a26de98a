//! Concatenations move to where their parts can be computed in place.
//!
//! - Writes into slices of a tensor of one number are a concatenation of what is written and of the numbers between: each element is written once.
//! - Elementwise work on a concatenation is done on its parts where the result is stored anyway: `f(cat(a, b), y)` is `cat(f(a, y1), f(b, y2))`. The concatenation then
//!   has nothing to copy (`oxyfuel-schedule` computes parts in their places), while before it was written and read once more. A rotary embedding is the example.
//!
//! The second asks for slices of the other operands `y`. They are free where `y` lies in memory anyway, and cost little where `y` is a table that is spread over much more; elementwise work that nobody else reads is done on slices of its own operands. Where
//! none of these holds, the concatenation stays. Every element is computed from the same numbers by the same ops: no bit changes.

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{Arena, Expr, Result, Scalar};
use oxyfuel_graph::{Category, Graph, Node, NodeId, Op, Rebuild, Users, ValueId};

/// The most parts that elementwise work is repeated for.
const MOST_COPIES: usize = 4;
/// The most parts that writes into slices become.
const MOST_PARTS: usize = 64;
/// The longest way from a concatenation to what is stored, and from an operand to what lies in memory.
const LONGEST: usize = 16;
/// A table of at most one of so many elements of the result is written for its slices' sake.
const SPREAD: i64 = 2;

/// Moves concatenations behind elementwise work, and makes them of writes into slices.
pub fn concatenations(graph: Graph) -> Result<Graph> {
    let concerned = |node: &Node| matches!(node.op, Op::Cat { .. } | Op::SliceScatter { .. });
    if !graph.nodes.values().any(concerned) {
        return Ok(graph);
    }
    let mut pass = Pass::new(&graph);
    for id in graph.nodes.ids() {
        pass.visit(id)?;
    }
    for out in &graph.outputs {
        pass.settle(out.value)?;
    }
    pass.rebuild.finish()
}

/// A part of a concatenation in the new graph.
#[derive(Clone, Copy)]
enum Part {
    Value(ValueId),
    Number(Scalar),
}

/// A concatenation that is not written down yet.
struct Pending {
    dim: usize,
    parts: Vec<(i64, Part)>,
}

impl Pending {
    fn extents(&self) -> impl Iterator<Item = i64> {
        self.parts.iter().map(|(extent, _)| *extent)
    }
}

struct Pass<'a> {
    old: &'a Graph,
    users: Users,
    definitions: Arena<ValueId, Option<NodeId>>,
    /// Roots that someone reads through a slice, so that they lie in memory.
    sliced: BTreeSet<ValueId>,
    pending: BTreeMap<ValueId, Pending>,
    rebuild: Rebuild<'a>,
}

/// A piece of a dim that a slice is taken of.
#[derive(Clone, Copy)]
struct Piece {
    dim: usize,
    rank: usize,
    number: usize,
    start: i64,
    end: i64,
    /// Elements of the whole result; none where sizes are not known.
    elements: Option<i64>,
}

impl<'a> Pass<'a> {
    fn new(old: &'a Graph) -> Self {
        let mut this = Self {
            old,
            users: old.users(),
            definitions: old.definitions(),
            sliced: BTreeSet::new(),
            pending: BTreeMap::new(),
            rebuild: Rebuild::new(old),
        };
        for node in old.nodes.values() {
            if let Op::Slice { .. } = node.op {
                let root = this.root(node.inputs[0]);
                this.sliced.insert(root);
            }
        }
        this
    }

    fn node(&self, value: ValueId) -> Option<&'a Node> {
        self.definitions[value].map(|id| &self.old.nodes[id])
    }

    fn shape(&self, value: ValueId) -> &'a [Expr] {
        &self.old.values[value].ty.shape
    }

    /// What a value is a view of.
    fn root(&self, mut value: ValueId) -> ValueId {
        while let Some(node) = self.node(value)
            && node.op.category() == Category::View
        {
            value = node.inputs[0];
        }
        value
    }

    fn visit(&mut self, id: NodeId) -> Result<()> {
        let node = &self.old.nodes[id];
        self.rebuild.at(id);
        let found = match node.op {
            Op::Cat { dim } => self.concatenation(node, dim),
            Op::SliceScatter { .. } => self.write(node),
            _ if is_elementwise(&node.op) => self.on_parts(node)?,
            _ => None,
        };
        if let Some(pending) = found {
            for &operand in &node.inputs {
                self.pending.remove(&operand);
            }
            self.pending.insert(node.out(), pending);
            return Ok(());
        }
        for &operand in &node.inputs {
            self.settle(operand)?;
        }
        self.rebuild.copy(id)
    }

    /// Writes a concatenation down.
    fn settle(&mut self, value: ValueId) -> Result<()> {
        let (Some(pending), Some(id)) = (self.pending.remove(&value), self.definitions[value])
        else {
            return Ok(());
        };
        self.rebuild.at(id);
        let parts = (0..pending.parts.len())
            .map(|number| self.part(value, &pending, number))
            .collect::<Result<Vec<_>>>()?;
        let builder = &mut self.rebuild.builder;
        let new = builder.emit(Op::Cat { dim: pending.dim }, &parts)?;
        let data = &self.old.values[value];
        builder.set_layout(new, data.layout.clone());
        if let Some(name) = &data.name {
            builder.set_name(new, name);
        }
        self.rebuild.define(value, new);
        Ok(())
    }

    /// A part of a concatenation as a value.
    fn part(&mut self, whole: ValueId, pending: &Pending, number: usize) -> Result<ValueId> {
        let (extent, part) = pending.parts[number];
        match part {
            Part::Value(value) => Ok(value),
            Part::Number(number) => {
                let ty = &self.old.values[whole].ty;
                let mut shape = ty.shape.clone();
                shape[pending.dim] = Expr::constant(extent);
                let builder = &mut self.rebuild.builder;
                builder.full(number, shape, ty.dtype, ty.device)
            }
        }
    }

    /// Whether one node alone reads a value.
    fn read_once(&self, value: ValueId) -> bool {
        self.users.count(value) == 1 && self.users.outputs(value) == 0
    }

    // ---- work on parts -----------------------------------------------------------------------------------------------------------

    /// A concatenation on whose parts the work behind it shall be done.
    fn concatenation(&self, node: &Node, dim: usize) -> Option<Pending> {
        if !(2..=MOST_COPIES).contains(&node.inputs.len()) || !self.ends_in_memory(node.out()) {
            return None;
        }
        // What is no concatenation yet becomes one first.
        if node.inputs.iter().any(|v| self.pending.contains_key(v)) {
            return None;
        }
        let part = |&value: &ValueId| {
            let extent = self.shape(value)[dim].as_const().filter(|&n| n > 0)?;
            Some((extent, Part::Value(self.rebuild.get(value).ok()?)))
        };
        let parts = node.inputs.iter().map(part).collect::<Option<_>>()?;
        Some(Pending { dim, parts })
    }

    /// Whether elementwise work, at least one op of it, leads from a value to one that is stored whoever computes it.
    fn ends_in_memory(&self, from: ValueId) -> bool {
        let mut value = from;
        for _ in 0..LONGEST {
            let Some(user) = self.worker_on(value) else {
                return value != from && self.is_stored(value);
            };
            value = user.out();
        }
        false
    }

    /// The elementwise node that alone reads a value, element by element, and gives no wider ones.
    fn worker_on(&self, value: ValueId) -> Option<&'a Node> {
        let &[id] = self.users.of(value) else {
            return None;
        };
        let user = &self.old.nodes[id];
        let size = |v: ValueId| self.old.values[v].ty.dtype.size();
        let fits = self.read_once(value)
            && is_elementwise(&user.op)
            && self.shape(user.out()) == self.shape(value)
            && size(user.out()) <= size(value);
        fits.then_some(user)
    }

    /// Whether a value is returned, or read by work that no elementwise kernel can be part of.
    fn is_stored(&self, value: ValueId) -> bool {
        let stored = |&id: &NodeId| match self.old.nodes[id].op.category() {
            Category::View => self.is_copied_or_stored(self.old.nodes[id].out()),
            Category::Matmul
            | Category::Attention
            | Category::Convolution
            | Category::External
            | Category::Sort => true,
            Category::Pointwise
            | Category::Reduction
            | Category::Scan
            | Category::Indexing
            | Category::Source
            | Category::Update
            | Category::Composite => false,
        };
        self.users.outputs(value) > 0
            || (!self.users.of(value).is_empty() && self.users.of(value).iter().all(stored))
    }

    /// Whether a view of a value is copied, as heads that several queries share are, or reaches what is stored.
    fn is_copied_or_stored(&self, view: ValueId) -> bool {
        let copied = |id: &NodeId| matches!(self.old.nodes[*id].op, Op::Clone);
        let users = self.users.of(view);
        (!users.is_empty() && self.users.outputs(view) == 0 && users.iter().all(copied))
            || self.is_stored(view)
    }

    /// An elementwise node as a concatenation of the same work on parts.
    fn on_parts(&mut self, node: &Node) -> Result<Option<Pending>> {
        let out = node.out();
        let whole = node
            .inputs
            .iter()
            .copied()
            .find(|&v| self.pending.contains_key(&v) && self.ends_in_memory(v));
        let Some(pending) = whole.and_then(|v| self.pending.get(&v)) else {
            return Ok(None);
        };
        let (dim, extents): (usize, Vec<i64>) = (pending.dim, pending.extents().collect());
        if extents.len() > MOST_COPIES {
            return Ok(None);
        }
        let (mut parts, mut start) = (Vec::new(), 0);
        for (number, extent) in extents.into_iter().enumerate() {
            let piece = Piece {
                dim,
                rank: self.shape(out).len(),
                number,
                start,
                end: start + extent,
                elements: self.old.values[out].ty.numel().as_const(),
            };
            let Some(part) = self.work_on(node, piece, 0)? else {
                return Ok(None);
            };
            parts.push((extent, Part::Value(part)));
            start += extent;
        }
        Ok(Some(Pending { dim, parts }))
    }

    /// A node's work on a piece of its result.
    fn work_on(&mut self, node: &Node, piece: Piece, depth: usize) -> Result<Option<ValueId>> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &operand in &node.inputs {
            match self.piece_of(operand, piece, depth)? {
                Some(input) => inputs.push(input),
                None => return Ok(None),
            }
        }
        self.rebuild
            .builder
            .emit(node.op.clone(), &inputs)
            .map(Some)
    }

    /// The piece of an operand that a piece of a result is made of, if it costs nothing to have it.
    fn piece_of(&mut self, value: ValueId, piece: Piece, depth: usize) -> Result<Option<ValueId>> {
        let shape = self.shape(value);
        // Dims of an operand are the last of the result's.
        let at = (piece.dim + shape.len()).checked_sub(piece.rank);
        if let Some(pending) = self.pending.get(&value) {
            let before: i64 = pending.extents().take(piece.number).sum();
            let same = Some(pending.dim) == at
                && self.read_once(value)
                && before == piece.start
                && pending.extents().nth(piece.number) == Some(piece.end - piece.start);
            if !same {
                return Ok(None);
            }
            let Pending { dim, ref parts } = *pending;
            let pending = Pending {
                dim,
                parts: parts.clone(),
            };
            return self.part(value, &pending, piece.number).map(Some);
        }
        let Some(at) = at.filter(|&at| !shape[at].is_const(1)) else {
            return self.rebuild.get(value).map(Some);
        };
        let root = self.root(value);
        let definition = self.node(value);
        if let Some(node) = definition
            && is_elementwise(&node.op)
            && self.read_once(value)
            && depth < LONGEST
        {
            let inner = Piece {
                dim: at,
                rank: shape.len(),
                ..piece
            };
            return self.work_on(node, inner, depth + 1);
        }
        let in_memory = match self.node(root).map(|node| &node.op) {
            None => true,
            Some(op) => {
                matches!(
                    op,
                    Op::Constant { .. } | Op::External { .. } | Op::Full { .. }
                ) || self.sliced.contains(&root)
                    || self.is_spread(root, piece)
            }
        };
        if !in_memory {
            return Ok(None);
        }
        let op = Op::Slice {
            dim: at,
            start: Expr::constant(piece.start),
            end: Expr::constant(piece.end),
            step: 1,
        };
        let value = self.rebuild.get(value)?;
        self.rebuild.builder.emit(op, &[value]).map(Some)
    }

    /// Whether a value is a small table beside the result that is made of it.
    fn is_spread(&self, root: ValueId, piece: Piece) -> bool {
        let own = self.old.values[root].ty.numel().as_const();
        let own = own.and_then(|own| own.checked_mul(SPREAD));
        own.zip(piece.elements).is_some_and(|(own, all)| own <= all)
    }

    // ---- writes into slices --------------------------------------------------------------------------------------------------------

    /// A write into a slice of one number, or of what such writes made of it, as a concatenation.
    fn write(&self, node: &Node) -> Option<Pending> {
        let Op::SliceScatter {
            dim,
            ref start,
            ref end,
            step: 1,
        } = node.op
        else {
            return None;
        };
        let [base, src] = node.inputs[..] else {
            return None;
        };
        let (start, end) = (start.as_const()?, end.as_const()?);
        let size = self.shape(base)[dim].as_const()?;
        if start >= end || end > size || start < 0 || self.pending.contains_key(&src) {
            return None;
        }
        if !self.shape(src)[dim].is_const(end - start) {
            return None;
        }
        let before = match self.pending.get(&base) {
            Some(pending) if pending.dim == dim && self.read_once(base) => pending.parts.clone(),
            Some(_) => return None,
            None => vec![(size, Part::Number(self.number(base)?))],
        };
        let mut parts = Vec::new();
        let mut at = 0;
        for (extent, part) in before {
            let (from, to) = (at, at + extent);
            at = to;
            if to <= start || from >= end {
                parts.push((extent, part));
                continue;
            }
            let whole = start <= from && to <= end;
            if let (Part::Value(_), false) = (part, whole) {
                return None;
            }
            if from < start {
                parts.push((start - from, part));
            }
            // The write stands where the first part that it covers began.
            if from <= start {
                parts.push((end - start, Part::Value(self.rebuild.get(src).ok()?)));
            }
            if to > end {
                parts.push((to - end, part));
            }
        }
        (parts.len() <= MOST_PARTS).then_some(Pending { dim, parts })
    }

    /// The number that a value is made of.
    fn number(&self, value: ValueId) -> Option<Scalar> {
        match self.node(self.root(value))?.op {
            Op::Full { value, .. } => Some(value),
            _ => None,
        }
    }
}

fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Where | Op::Cast { .. } | Op::Clone
    )
}
