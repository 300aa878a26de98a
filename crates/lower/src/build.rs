//! From a group of the schedule to nests: views become strides, ops become values over the domain.

use std::collections::BTreeMap;
use std::rc::Rc;

use oxyfuel_base::{Code, DType, Error, Expr, Result, Scalar, err};
use oxyfuel_graph::{Binary, Category, Graph, Node as GraphNode, NodeId, Op, Scatter, ValueId};
use oxyfuel_kernel::ir::{BinaryOp, ReduceOp};
use oxyfuel_schedule::{
    Before, DimMap, Group, GroupKind, Placement, Placements, Schedule, view_dims,
};

use crate::nest::{Dims, Nest, NestBuffer, NestOp, NestScatter, NestStore, Node, Window};
use crate::pointwise::{Writer, compute_dtype};
use crate::size::Known;

/// A group as nests over shared buffers. Nests run one after the other.
#[derive(Debug)]
pub struct Work {
    /// The root value behind each buffer, in argument order.
    pub buffers: Vec<ValueId>,
    pub nests: Vec<Nest>,
    /// What a product's kernel makes of its first operand's rows: the nest, over rows of the depth, and the value in it that is the operand.
    pub before: Option<(Nest, Node)>,
}

/// Builds the nests of a group. For a contraction the nest is the work on its result, whose first value is [`NestOp::Given`] in `acc` dtype.
pub fn build(graph: &Graph, schedule: &Schedule, group: &Group, name: &str) -> Result<Work> {
    let mut builder = Builder::new(graph, schedule, group, name)?;
    let nests = match group.kind {
        GroupKind::Loops | GroupKind::Contraction(_) | GroupKind::Convolution(_) => {
            vec![builder.loops()?]
        }
        GroupKind::Attention(_) => vec![builder.empty()?],
        GroupKind::Writes(node) if graph.nodes[node].op.category() == Category::Scan => {
            vec![builder.scan(&graph.nodes[node])?]
        }
        GroupKind::Writes(node) if graph.nodes[node].op.category() == Category::Sort => {
            vec![builder.order(&graph.nodes[node])?]
        }
        GroupKind::Writes(node) => builder.writes(&graph.nodes[node])?,
        GroupKind::External(node) => return Err(internal(&graph.nodes[node])),
    };
    let before = group.before.as_ref();
    let before = before.map(|before| builder.before(before)).transpose()?;
    Ok(Work {
        buffers: builder.roots,
        nests,
        before,
    })
}

/// A size that has a meaning.
pub fn checked(expr: &Expr) -> Result<Expr> {
    expr.check().cloned()
}

/// The number behind a size where only a number will do.
pub fn constant(expr: &Expr) -> Result<i64> {
    expr.check()?
        .as_const()
        .ok_or_else(|| Error::new(Code::NoLowering, format!("the size {expr} is symbolic")))
}

struct Builder<'a> {
    graph: &'a Graph,
    /// Who computes a value.
    placements: &'a Placements,
    /// Where it lies.
    memory: &'a Placements,
    group: &'a Group,
    name: String,
    known: Rc<Known>,
    schedule: &'a Schedule,
    roots: Vec<ValueId>,
    buffers: Vec<NestBuffer>,
    /// Nest values of graph values, and of the loads made so far.
    values: BTreeMap<ValueId, Node>,
    loads: Vec<(Window, Node)>,
}

impl<'a> Builder<'a> {
    fn new(graph: &'a Graph, schedule: &'a Schedule, group: &'a Group, name: &str) -> Result<Self> {
        let memory = &schedule.memory;
        let of = |values: &[ValueId]| values.iter().map(|&v| memory.root(v)).collect::<Vec<_>>();
        let (read, written) = (of(&group.inputs), of(&group.outputs));
        let mut roots: Vec<ValueId> = Vec::new();
        for &root in read.iter().chain(&written) {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        let known = Rc::new(Known::of(graph));
        let ranges = &known.ranges;
        let buffers = roots
            .iter()
            .map(|&root| {
                let data = &graph.values[root];
                let place = memory.of(root);
                let len = checked(&oxyfuel_schedule::span(
                    &data.ty.shape,
                    &place.strides,
                    ranges,
                ))?;
                let computed = !graph.inputs.contains(&root);
                let align = if computed { 64 } else { data.align.max(1) };
                Ok(NestBuffer {
                    dtype: data.ty.dtype,
                    read: read.contains(&root),
                    written: written.contains(&root),
                    len,
                    align,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            graph,
            placements: &schedule.placements,
            memory,
            group,
            name: name.to_owned(),
            known,
            schedule,
            roots,
            buffers,
            values: BTreeMap::new(),
            loads: Vec::new(),
        })
    }

    // ---- elementwise work and reductions ---------------------------------------------------------------------------------------

    /// The domain and the buffers, without any work.
    fn empty(&self) -> Result<Nest> {
        let dims = self
            .group
            .dims
            .iter()
            .map(checked)
            .collect::<Result<Vec<_>>>()?;
        let mut nest = Nest::new(self.name.clone(), dims, &self.known);
        nest.buffers = self.buffers.clone();
        Ok(nest)
    }

    /// The work on a product's first operand, over its own domain and the same buffers.
    fn before(&mut self, before: &Before) -> Result<(Nest, Node)> {
        let dims = before
            .dims
            .iter()
            .map(checked)
            .collect::<Result<Vec<_>>>()?;
        let mut nest = Nest::new(self.name.clone(), dims, &self.known);
        nest.buffers = self.buffers.clone();
        for &dim in &before.reduced {
            nest.reduced = nest.reduced.with(dim);
        }
        self.values.clear();
        self.loads.clear();
        for &id in &before.nodes {
            let node = &self.graph.nodes[id];
            let value = self.node(&mut nest, id, node)?;
            self.values.insert(node.out(), value);
        }
        let value = self.values[&before.value];
        Ok((nest, value))
    }

    fn loops(&mut self) -> Result<Nest> {
        let mut nest = self.empty()?;
        for &dim in &self.group.reduced {
            nest.reduced = nest.reduced.with(dim);
        }
        if let Some(dim) = self.group.scanned {
            nest.scanned = nest.scanned.with(dim);
        }
        for &id in &self.group.nodes {
            let node = &self.graph.nodes[id];
            if self.group.is_widened(id, node.out()) || self.group.is_before(id) {
                continue;
            }
            let value = self.node(&mut nest, id, node)?;
            self.values.insert(node.out(), value);
        }
        for &out in &self.group.outputs {
            let value = self.values[&out];
            let id = self
                .schedule
                .producer(out)
                .ok_or_else(|| err!(Internal, "nothing computes {out}"))?;
            let node = &self.graph.nodes[id];
            let window = if node.op.category() == Category::View {
                // A copied reshape: row-major over what it reads.
                let shape = &self.graph.values[node.inputs[0]].ty;
                let place = Placement {
                    root: out,
                    offset: Expr::constant(0),
                    strides: shape.contiguous_strides(),
                };
                self.window(&nest, &place, &self.group.operand_maps[&id], &shape.shape)?
            } else {
                self.window(
                    &nest,
                    self.memory.of(out),
                    &self.group.maps[&out],
                    &self.graph.values[out].ty.shape,
                )?
            };
            nest.stores.push(NestStore { value, window });
        }
        Ok(nest)
    }

    fn node(&mut self, nest: &mut Nest, id: NodeId, node: &GraphNode) -> Result<Node> {
        let out = self.graph.values[node.out()].ty.dtype;
        let map = self
            .group
            .maps
            .get(&node.out())
            .cloned()
            .unwrap_or_default();
        let operand =
            |this: &mut Self, nest: &mut Nest, i: usize| this.operand(nest, node.inputs[i], &map);
        match &node.op {
            Op::Unary(f) => {
                let x = operand(self, nest, 0)?;
                Writer { nest }.unary(*f, x, out)
            }
            Op::Binary(f) => {
                let (a, b) = (operand(self, nest, 0)?, operand(self, nest, 1)?);
                Writer { nest }.binary(*f, a, b, out)
            }
            Op::Compare(f) => {
                let (a, b) = (operand(self, nest, 0)?, operand(self, nest, 1)?);
                Writer { nest }.compare(*f, a, b)
            }
            Op::Where => {
                let (c, a, b) = (
                    operand(self, nest, 0)?,
                    operand(self, nest, 1)?,
                    operand(self, nest, 2)?,
                );
                let mut w = Writer { nest };
                // Selecting moves bits, but narrow dtypes live in registers as f32.
                let wide = compute_dtype(out);
                let (a, b) = (w.cast(a, wide)?, w.cast(b, wide)?);
                let chosen = w.select(c, a, b)?;
                w.cast(chosen, out)
            }
            Op::Cast { .. } | Op::Clone => {
                let x = operand(self, nest, 0)?;
                Writer { nest }.cast(x, out)
            }
            Op::Copy => {
                let x = operand(self, nest, 1)?;
                Writer { nest }.cast(x, out)
            }
            Op::Reduce { op, dims, .. } => {
                let input = node.inputs[0];
                let x = self.operand(nest, input, &self.group.operand_maps[&id].clone())?;
                let shape = &self.graph.values[input].ty.shape;
                let count: Expr = dims.iter().map(|&d| shape[d].clone()).product();
                Writer { nest }.reduce(*op, x, &checked(&count)?, out)
            }
            Op::View { .. } | Op::Permute { .. } | Op::Expand { .. } | Op::Slice { .. } => {
                self.operand(nest, node.inputs[0], &self.group.operand_maps[&id].clone())
            }
            Op::Gather { dim } => {
                let index = operand(self, nest, 1)?;
                self.load_at(
                    nest,
                    node.inputs[0],
                    &map,
                    *dim,
                    index,
                    &(0..map.len()).map(Some).collect::<Vec<_>>(),
                )
            }
            Op::IndexSelect { dim } => {
                let mut index_map = vec![None; 1];
                index_map[0] = map[*dim];
                let index = self.operand(nest, node.inputs[1], &index_map)?;
                self.load_at(
                    nest,
                    node.inputs[0],
                    &map,
                    *dim,
                    index,
                    &(0..map.len()).map(Some).collect::<Vec<_>>(),
                )
            }
            Op::Embedding => {
                let index = self.operand(nest, node.inputs[1], &map[..map.len() - 1].to_vec())?;
                self.load_at(
                    nest,
                    node.inputs[0],
                    &map,
                    0,
                    index,
                    &[None, Some(map.len() - 1)],
                )
            }
            Op::Full { .. } | Op::ScalarTensor { .. } | Op::Arange { .. } => {
                self.source(nest, node, &map)
            }
            Op::Mm | Op::Bmm | Op::IntMm | Op::Convolution { .. } | Op::ConvPanels { .. } => {
                let acc = nest.push(NestOp::Given, accumulator(out))?;
                Writer { nest }.cast(acc, out)
            }
            Op::Addmm { beta, alpha } => {
                self.addmm(nest, node, &map, node.inputs[0], [*beta, *alpha])
            }
            Op::MmPanels { .. } => match node.inputs.get(2) {
                Some(&bias) => self.addmm(nest, node, &map, bias, [Scalar::I(1); 2]),
                None => {
                    let acc = nest.push(NestOp::Given, accumulator(out))?;
                    Writer { nest }.cast(acc, out)
                }
            },
            Op::Cat { .. }
            | Op::SliceScatter { .. }
            | Op::IndexPut { .. }
            | Op::Scatter { .. }
            | Op::Constant { .. }
            | Op::External { .. } => Err(internal(node)),
            Op::Cumsum { .. } | Op::Cumprod { .. } | Op::Argsort { .. } => Err(internal(node)),
            Op::LinearScan { dim } => {
                let (factor, term) = (operand(self, nest, 0)?, operand(self, nest, 1)?);
                // Along one element the state is the term.
                if map.get(*dim).copied().flatten().is_none() {
                    return Ok(term);
                }
                let wide = compute_dtype(out);
                let factor = Writer { nest }.cast(factor, wide)?;
                let term = Writer { nest }.cast(term, wide)?;
                let state = nest.push(NestOp::Recurrence { factor, term }, wide)?;
                Writer { nest }.cast(state, out)
            }
            Op::Argmax { .. }
            | Op::Argmin { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::NativeLayerNorm { .. }
            | Op::Sdpa { .. }
            | Op::SdpaBackward { .. }
            | Op::Var { .. } => Err(internal(node)),
        }
    }

    fn addmm(
        &mut self,
        nest: &mut Nest,
        node: &GraphNode,
        map: &DimMap,
        bias: ValueId,
        [beta, alpha]: [Scalar; 2],
    ) -> Result<Node> {
        let out = self.graph.values[node.out()].ty.dtype;
        let wide = accumulator(out);
        let mut sum = nest.push(NestOp::Given, wide)?;
        let scaled = |nest: &mut Nest, x: Node, by: Scalar| -> Result<Node> {
            if by.as_f64() == 1.0 {
                return Ok(x);
            }
            let factor = Writer { nest }.constant(wide, by)?;
            nest.push(NestOp::Binary(BinaryOp::Mul, x, factor), wide)
        };
        sum = scaled(nest, sum, alpha)?;
        if beta.as_f64() != 0.0 {
            let bias = self.operand(nest, bias, map)?;
            let bias = Writer { nest }.cast(bias, wide)?;
            let bias = scaled(nest, bias, beta)?;
            sum = nest.push(NestOp::Binary(BinaryOp::Add, sum, bias), wide)?;
        }
        Writer { nest }.cast(sum, out)
    }

    /// The nest value of an operand of a node whose result (or, for reductions, whose operand) has the dims `map`.
    fn operand(&mut self, nest: &mut Nest, value: ValueId, map: &DimMap) -> Result<Node> {
        let root = self.placements.root(value);
        if let Some(&node) = self.values.get(&root)
            && view_dims(
                self.graph,
                self.group,
                &|v| self.schedule.producer(v),
                value,
            )
            .is_some()
        {
            return Ok(node);
        }
        let shape = &self.graph.values[value].ty.shape;
        let map = &map[map.len() - shape.len()..].to_vec();
        let source = self.schedule.producer(root).map(|n| &self.graph.nodes[n]);
        if let Some(node) = source
            && node.op.category() == Category::Source
            && !self.roots.contains(&root)
        {
            return self.repeat_source(nest, node, value, map);
        }
        let window = self.window(nest, self.memory.of(value), map, shape)?;
        if let Some((_, node)) = self.loads.iter().find(|(seen, _)| *seen == window) {
            return Ok(*node);
        }
        let node = nest.push(
            NestOp::Load(window.clone()),
            self.graph.values[root].ty.dtype,
        )?;
        self.loads.push((window, node));
        Ok(node)
    }

    fn window(
        &self,
        nest: &Nest,
        place: &Placement,
        map: &DimMap,
        shape: &[Expr],
    ) -> Result<Window> {
        let buffer = self.buffer(place.root)?;
        let mut strides = vec![Expr::ZERO; nest.rank()];
        for ((dim, stride), extent) in map.iter().zip(&place.strides).zip(shape) {
            if let Some(dim) = dim
                && *extent != Expr::constant(1)
            {
                strides[*dim] = checked(&(&strides[*dim] + stride))?;
            }
        }
        Ok(Window {
            buffer,
            base: checked(&place.offset)?,
            strides,
        })
    }

    fn buffer(&self, root: ValueId) -> Result<usize> {
        self.roots.iter().position(|&r| r == root).ok_or_else(|| {
            Error::new(
                Code::Internal,
                format!("{root} is not among the buffers of {}", self.name),
            )
        })
    }

    /// Reads `table` at a computed position along `dim`; `along[d]` is the result dim that table dim `d` follows.
    fn load_at(
        &mut self,
        nest: &mut Nest,
        table: ValueId,
        map: &DimMap,
        dim: usize,
        index: Node,
        along: &[Option<usize>],
    ) -> Result<Node> {
        let place = self.memory.of(table).clone();
        let ty = &self.graph.values[table].ty;
        let mut strides = vec![Expr::ZERO; nest.rank()];
        for (d, &result_dim) in along.iter().enumerate() {
            if d != dim
                && let Some(domain) = result_dim.and_then(|r| map[r])
            {
                strides[domain] = checked(&(&strides[domain] + &place.strides[d]))?;
            }
        }
        let window = Window {
            buffer: self.buffer(place.root)?,
            base: checked(&place.offset)?,
            strides,
        };
        let (stride, extent) = (checked(&place.strides[dim])?, checked(&ty.shape[dim])?);
        let index = Writer { nest }.cast(index, DType::I64)?;
        nest.push(
            NestOp::LoadAt {
                window,
                index,
                stride,
                extent,
            },
            ty.dtype,
        )
    }

    // ---- sources ---------------------------------------------------------------------------------------------------------------

    fn source(&mut self, nest: &mut Nest, node: &GraphNode, map: &DimMap) -> Result<Node> {
        let dtype = self.graph.values[node.out()].ty.dtype;
        match &node.op {
            Op::Full { value, .. } => Writer { nest }.constant(dtype, *value),
            Op::ScalarTensor { value, .. } => Writer { nest }.size(&checked(value)?, dtype),
            Op::Arange { start, step, .. } => {
                let dims = map.first().copied().flatten();
                let walk = Walk {
                    dims: dims.map(|dim| (dim, Expr::ONE)).into_iter().collect(),
                    offset: Expr::ZERO,
                };
                arange(nest, (*start, *step), walk, dtype)
            }
            _ => Err(internal(node)),
        }
    }

    /// A source outside the group, made again where it is read. A view of an arange counts along every dim that moves in its memory.
    fn repeat_source(
        &mut self,
        nest: &mut Nest,
        node: &GraphNode,
        value: ValueId,
        map: &DimMap,
    ) -> Result<Node> {
        let Op::Arange { start, step, .. } = &node.op else {
            return self.source(nest, node, map);
        };
        let place = self.placements.of(value);
        let ty = &self.graph.values[value].ty;
        // Its elements may lie apart, if somebody wants them in memory like that.
        let apart = self.placements.of(node.out()).strides[0].clone();
        let steps = |distance: &Expr| -> Result<Expr> {
            if apart.is_const(1) {
                return checked(distance);
            }
            let (distance, apart) = (constant(distance)?, constant(&apart)?);
            Ok(Expr::constant(distance / apart.max(1)))
        };
        let mut walk = Walk {
            dims: Vec::new(),
            offset: steps(&place.offset)?,
        };
        for (d, stride) in place.strides.iter().enumerate() {
            if let Some(dim) = map[d]
                && !ty.shape[d].is_const(1)
                && !stride.is_const(0)
            {
                walk.dims.push((dim, steps(stride)?));
            }
        }
        arange(nest, (*start, *step), walk, ty.dtype)
    }

    // ---- running sums and products ---------------------------------------------------------------------------------------------

    fn scan(&mut self, node: &GraphNode) -> Result<Nest> {
        let (dim, op) = match node.op {
            Op::Cumsum { dim } => (dim, ReduceOp::Sum),
            Op::Cumprod { dim } => (dim, ReduceOp::Prod),
            _ => return Err(internal(node)),
        };
        let (mut nest, element, into) = self.along(node, dim)?;
        let dtype = nest.values[element].dtype;
        // Eager keeps f32 sums in f64.
        let wide = match dtype {
            DType::F32 => DType::F64,
            other => compute_dtype(other),
        };
        let element = Writer { nest: &mut nest }.cast(element, wide)?;
        let total = nest.push(NestOp::Scan(op, element), wide)?;
        let value = Writer { nest: &mut nest }.cast(total, dtype)?;
        nest.stores.push(NestStore {
            value,
            window: into,
        });
        Ok(nest)
    }

    fn order(&mut self, node: &GraphNode) -> Result<Nest> {
        let Op::Argsort { dim, descending } = node.op else {
            return Err(internal(node));
        };
        let (mut nest, element, into) = self.along(node, dim)?;
        let comparable = compute_dtype(nest.values[element].dtype);
        let operand = Writer { nest: &mut nest }.cast(element, comparable)?;
        let order = NestOp::Order {
            operand,
            descending,
            wanted: self.wanted(node.out(), dim),
        };
        let value = nest.push(order, DType::I64)?;
        nest.stores.push(NestStore {
            value,
            window: into,
        });
        Ok(nest)
    }

    /// How many places along a dim anybody reads, where those are all slices from its beginning.
    fn wanted(&self, value: ValueId, along: usize) -> Option<i64> {
        if self.graph.outputs.iter().any(|out| out.value == value) {
            return None;
        }
        let users = self.graph.nodes.values();
        let users = users.filter(|node| node.inputs.contains(&value));
        let ends = users.map(|node| match &node.op {
            Op::Slice { dim, end, .. } if *dim == along => end.as_const(),
            _ => None,
        });
        ends.collect::<Option<Vec<i64>>>()?.into_iter().max()
    }

    /// A nest over an operand that an op walks along one dim: the element that was read, and where the result goes.
    fn along(&mut self, node: &GraphNode, dim: usize) -> Result<(Nest, Node, Window)> {
        let (x, out) = (node.inputs[0], node.out());
        let ty = &self.graph.values[x].ty;
        let extents = ty.shape.iter().map(checked).collect::<Result<Vec<_>>>()?;
        let mut nest = Nest::new(self.name.clone(), extents, &self.known);
        nest.buffers = self.buffers.clone();
        if dim < ty.rank() {
            let walked = Dims::default().with(dim);
            match node.op.category() {
                Category::Scan => nest.scanned = walked,
                _ => nest.reduced = walked,
            }
        }
        let map: DimMap = (0..ty.rank()).map(Some).collect();
        let source = self.window(&nest, self.memory.of(x), &map, &ty.shape)?;
        let into = self.window(&nest, self.memory.of(out), &map, &ty.shape)?;
        let element = nest.push(NestOp::Load(source), ty.dtype)?;
        Ok((nest, element, into))
    }

    // ---- writes into parts ------------------------------------------------------------------------------------------------------

    fn writes(&mut self, node: &GraphNode) -> Result<Vec<Nest>> {
        let out = node.out();
        let place = self.memory.of(out).clone();
        let mut parts: Vec<(ValueId, Expr, usize, i64)> = Vec::new();
        let there = self.memory.of(node.inputs[0]);
        let in_place = (there.root, &there.offset) == (place.root, &place.offset);
        if let Op::Scatter { .. } = node.op {
            // Elements meet what is there.
            let written = self.buffer(place.root)?;
            self.buffers[written].read = true;
        }
        match &node.op {
            Op::Cat { dim } => {
                let mut at = Expr::ZERO;
                for &operand in &node.inputs {
                    parts.push((operand, at.clone(), *dim, 1));
                    at += &self.graph.values[operand].ty.shape[*dim];
                }
            }
            Op::SliceScatter {
                dim, start, step, ..
            } => {
                if !in_place {
                    parts.push((node.inputs[0], Expr::ZERO, *dim, 1));
                }
                parts.push((node.inputs[1], start.clone(), *dim, *step));
            }
            Op::IndexPut { dim } | Op::Scatter { dim, .. } if !in_place => {
                parts.push((node.inputs[0], Expr::ZERO, *dim, 1));
            }
            Op::IndexPut { .. } | Op::Scatter { .. } => {}
            _ => return Err(internal(node)),
        }
        let mut nests = Vec::new();
        for (i, (operand, at, dim, step)) in parts.into_iter().enumerate() {
            let shape = self.graph.values[operand].ty.shape.clone();
            let extents = shape.iter().map(checked).collect::<Result<Vec<_>>>()?;
            if extents.contains(&Expr::ZERO) || self.is_part_there(node, operand) {
                continue;
            }
            let mut nest = Nest::new(format!("{}_part{i}", self.name), extents, &self.known);
            nest.buffers = self.buffers.clone();
            let map: DimMap = (0..shape.len()).map(Some).collect();
            let mut into = self.window(&nest, &place, &map, &self.graph.values[out].ty.shape)?;
            into.base = checked(&(&into.base + at * &place.strides[dim]))?;
            into.strides[dim] = checked(&(&place.strides[dim] * step))?;
            let value = self.part(&mut nest, operand, &map)?;
            nest.stores.push(NestStore {
                value,
                window: into,
            });
            nests.push(nest);
        }
        match node.op {
            Op::IndexPut { dim } => nests.extend(self.scatter(node, dim, None, &place)?),
            Op::Scatter { op, dim } => {
                nests.extend(self.scatter(node, dim, Some(op), &place)?);
            }
            _ => {}
        }
        Ok(nests)
    }

    /// Whether a part of a concatenation was computed in its place.
    fn is_part_there(&self, node: &GraphNode, operand: ValueId) -> bool {
        matches!(node.op, Op::Cat { .. })
            && self.memory.root(operand) == self.memory.root(node.out())
    }

    /// What is copied or put somewhere: made here, where no memory holds it.
    fn part(&mut self, nest: &mut Nest, value: ValueId, map: &DimMap) -> Result<Node> {
        let root = self.placements.root(value);
        let source = self.schedule.producer(root).map(|n| &self.graph.nodes[n]);
        if let Some(node) = source
            && node.op.category() == Category::Source
            && !self.roots.contains(&root)
        {
            return self.repeat_source(nest, node, value, map);
        }
        let ty = &self.graph.values[value].ty;
        let window = self.window(nest, self.memory.of(value), map, &ty.shape)?;
        nest.push(NestOp::Load(window), ty.dtype)
    }

    /// Elements written where an index says: whole slices, in any order, or each where its own index says, in order along `dim`.
    fn scatter(
        &mut self,
        node: &GraphNode,
        dim: usize,
        op: Option<Scatter>,
        place: &Placement,
    ) -> Result<Option<Nest>> {
        let (src, index) = (node.inputs[1], node.inputs[2]);
        let shape = &self.graph.values[src].ty.shape;
        let extents = shape.iter().map(checked).collect::<Result<Vec<_>>>()?;
        if extents.contains(&Expr::ZERO) {
            return Ok(None);
        }
        let mut nest = Nest::new(format!("{}_put", self.name), extents, &self.known);
        nest.buffers = self.buffers.clone();
        let map: DimMap = (0..shape.len()).map(Some).collect();
        let index_map = match op {
            None => vec![Some(dim)],
            Some(_) => map.clone(),
        };
        let number = self.part(&mut nest, index, &index_map)?;
        let number = Writer { nest: &mut nest }.cast(number, DType::I64)?;
        let brought = self.part(&mut nest, src, &map)?;
        let out = &self.graph.values[node.out()].ty;
        let meets = op.and_then(|op| match op {
            Scatter::Set => None,
            Scatter::Sum => Some(Binary::Add),
            Scatter::Prod => Some(Binary::Mul),
            Scatter::Amax => Some(Binary::Maximum),
            Scatter::Amin => Some(Binary::Minimum),
        });
        let (value, old) = match meets {
            None => (brought, None),
            Some(f) => {
                let old = nest.push(NestOp::Given, out.dtype)?;
                let value = Writer { nest: &mut nest }.binary(f, old, brought, out.dtype)?;
                (value, Some(old))
            }
        };
        if op.is_some() {
            nest.scanned = nest.scanned.with(dim);
        }
        let mut window = self.window(&nest, place, &map, &out.shape)?;
        window.strides[dim] = Expr::ZERO;
        nest.scatters.push(NestScatter {
            value,
            old,
            window,
            index: number,
            stride: checked(&place.strides[dim])?,
            extent: checked(&out.shape[dim])?,
        });
        Ok(Some(nest))
    }
}

/// Which positions of an arange are read: `offset`, and `stride * c` for each domain dim with its stride.
struct Walk {
    dims: Vec<(usize, Expr)>,
    offset: Expr,
}

/// `start + position * step` for the positions that are read.
fn arange(
    nest: &mut Nest,
    (start, step): (Scalar, Scalar),
    walk: Walk,
    dtype: DType,
) -> Result<Node> {
    // `by` times the position, and `start`.
    let position = |nest: &mut Nest, by: i64, start: i64| {
        let mut offset = checked(&(&walk.offset * by + start))?;
        let mut sum: Option<Node> = None;
        for (dim, stride) in &walk.dims {
            let op = NestOp::Coordinate {
                dim: *dim,
                scale: checked(&(stride * by))?,
                offset: std::mem::take(&mut offset),
            };
            let along = nest.push(op, DType::I64)?;
            sum = Some(match sum {
                Some(sum) => nest.push(NestOp::Binary(BinaryOp::Add, sum, along), DType::I64)?,
                None => along,
            });
        }
        match sum {
            Some(sum) => Ok(sum),
            None => Writer { nest }.size(&offset, DType::I64),
        }
    };
    if let (Scalar::I(start), Scalar::I(step)) = (start, step) {
        let c = position(nest, step, start)?;
        return Writer { nest }.cast(c, dtype);
    }
    // Rounded once: computed in f64.
    let c = position(nest, 1, 0)?;
    let mut w = Writer { nest };
    let i = w.cast(c, DType::F64)?;
    let (start, step) = (
        w.constant(DType::F64, start.as_f64())?,
        w.constant(DType::F64, step.as_f64())?,
    );
    let scaled = w
        .nest
        .push(NestOp::Binary(BinaryOp::Mul, i, step), DType::F64)?;
    let sum = w
        .nest
        .push(NestOp::Binary(BinaryOp::Add, scaled, start), DType::F64)?;
    w.cast(sum, dtype)
}

/// The dtype in which products of this dtype are summed.
pub fn accumulator(dtype: DType) -> DType {
    compute_dtype(dtype)
}

fn internal(node: &GraphNode) -> Error {
    Error::new(
        Code::Internal,
        format!("`{}` cannot be part of a nest", node.op.name()),
    )
}
