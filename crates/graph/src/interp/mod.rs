//! The interpreter: what every operator means.
//!
//! It is written to be read, one node at a time over dense tensors, and is the oracle of every compiled path.
//!
//! **Rounding.** An operator's result is rounded once to its dtype. Floats are computed in f64 and, for anything narrower, rounded
//! first to f32 and then to the dtype: for `+ - * /` and square roots that is exactly what a machine does that computes in f32 and
//! then stores. Transcendental functions come from f64 and so are the true value but for a hair; a target may be off by its stated error.
//!
//! **Sums** (reductions, matrix products, softmax, layer norm, variance) are kept in f64 in index order and rounded once. A target may sum in
//! another order and in f32; the difference is within the error of such a sum.
//!
//! **Integers** are computed without bound and wrapped to the dtype.

mod attention;
mod convolution;
mod function;
mod index;
mod matmul;
pub mod philox;
mod pointwise;
mod row;
mod scatter;
mod value;

use crate::HostTensor;
use crate::bind::{Bindings, bind};
use crate::conv_panels::ConvPanels;
use crate::convolution::Convolution;
use crate::ir::{Graph, NodeId, TensorType};
use crate::op::Op;
use oxyfuel_base::{Code, Error, Id, Result, ensure, err};
use value::Tensor;

/// The most elements a tensor may have here.
const MAX_ELEMENTS: usize = 1 << 26;

/// Runs a graph on inputs; one tensor for each result, those stored into inputs included.
pub fn run(graph: &Graph, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    crate::verify(graph)?;
    let shapes: Vec<&[i64]> = inputs.iter().map(|t| t.shape.as_slice()).collect();
    let bindings = bind(graph, &shapes)?;
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    for (&v, tensor) in graph.inputs.iter().zip(inputs) {
        let want = graph.ty(v).dtype;
        let name = crate::text::value_name(graph, v);
        ensure!(
            tensor.dtype == want,
            DTypeMismatch,
            "{name} is {want}, got {}",
            tensor.dtype
        );
        values[v.index()] = Some(Tensor::from_host(tensor)?);
    }
    for id in graph.live_nodes() {
        let node = &graph.nodes[id];
        let missing = || Error::new(Code::Internal, format!("an operand of {id} has no value"));
        let operands: Vec<&Tensor> = node
            .inputs
            .iter()
            .map(|v| values[v.index()].as_ref().ok_or_else(missing))
            .collect::<Result<_>>()?;
        let types: Vec<&TensorType> = node.outputs.iter().map(|&v| graph.ty(v)).collect();
        let results = apply(graph, &bindings, &node.op, &operands, &types).map_err(|e| {
            let name = crate::text::value_name(graph, node.out());
            e.context(format!("computing {name}"))
        })?;
        for (&v, tensor) in node.outputs.iter().zip(results) {
            values[v.index()] = Some(tensor);
        }
    }
    let result = |o: &crate::ir::GraphOutput| match &values[o.value.index()] {
        Some(tensor) => tensor.to_host(),
        None => Err(Error::new(
            Code::Internal,
            format!("{} has no value", o.value),
        )),
    };
    graph.outputs.iter().map(result).collect()
}

/// Computes one node of a verified graph from its operands, for constant folding. Its results must not have symbolic sizes.
pub fn fold(graph: &Graph, node: NodeId, operands: &[&HostTensor]) -> Result<Vec<HostTensor>> {
    let node = &graph.nodes[node];
    ensure!(
        operands.len() == node.inputs.len(),
        ArityMismatch,
        "{} operands for {}",
        operands.len(),
        node.op.name()
    );
    for (&v, tensor) in node.inputs.iter().zip(operands) {
        let ty = graph.ty(v);
        let same_shape = ty.rank() == tensor.shape.len()
            && ty
                .shape
                .iter()
                .zip(&tensor.shape)
                .all(|(e, &n)| e.is_const(n));
        ensure!(
            ty.dtype == tensor.dtype && same_shape,
            ShapeMismatch,
            "an operand of {} has another type",
            node.op.name()
        );
    }
    let tensors = operands
        .iter()
        .map(|t| Tensor::from_host(t))
        .collect::<Result<Vec<_>>>()?;
    let types: Vec<&TensorType> = node.outputs.iter().map(|&v| graph.ty(v)).collect();
    let results = apply(
        graph,
        &Bindings::default(),
        &node.op,
        &tensors.iter().collect::<Vec<_>>(),
        &types,
    )?;
    results.iter().map(Tensor::to_host).collect()
}

/// One node.
fn apply(
    graph: &Graph,
    bindings: &Bindings,
    op: &Op,
    operands: &[&Tensor],
    types: &[&TensorType],
) -> Result<Vec<Tensor>> {
    let shape = extent(bindings, types[0])?;
    let dtype = types[0].dtype;
    let x = operands.first().copied();
    let x = || x.ok_or_else(|| Error::new(Code::Internal, "an operand is missing"));
    let one = |tensor: Tensor| Ok(vec![tensor]);
    match op {
        Op::Unary(f) => one(pointwise::unary(*f, x()?, dtype)),
        Op::Binary(f) => one(pointwise::binary(*f, operands[0], operands[1], &shape)),
        Op::Compare(f) => one(pointwise::compare(*f, operands[0], operands[1], &shape)),
        Op::Where => one(pointwise::choose(
            operands[0],
            operands[1],
            operands[2],
            &shape,
        )),
        Op::Cast { dtype } => one(x()?.cast(*dtype)),
        Op::Clone => one(x()?.clone()),
        Op::Reduce {
            op,
            dims,
            keepdim: _,
        } => one(row::reduce(*op, x()?, dims, shape)?),
        Op::Var {
            dims,
            correction,
            keepdim: _,
        } => one(row::var(x()?, dims, correction.as_f64(), shape)),
        Op::Argmax { dim, keepdim: _ } => one(row::position(x()?, *dim, true, shape)?),
        Op::Argmin { dim, keepdim: _ } => one(row::position(x()?, *dim, false, shape)?),
        Op::Argsort { dim, descending } => one(row::order(x()?, *dim, *descending)),
        Op::Cumsum { dim } => one(row::scan(
            x()?,
            *dim,
            (0.0, |a, b| a + b),
            i128::wrapping_add,
        )),
        Op::Cumprod { dim } => one(row::scan(
            x()?,
            *dim,
            (1.0, |a, b| a * b),
            i128::wrapping_mul,
        )),
        Op::LinearScan { dim } => one(row::linear_scan(operands[0], operands[1], *dim)),
        Op::Softmax { dim } => one(row::softmax(x()?, *dim, false)),
        Op::LogSoftmax { dim } => one(row::softmax(x()?, *dim, true)),
        Op::NativeLayerNorm { rank, eps } => {
            let statistic = extent(bindings, types[1])?;
            Ok(row::layer_norm(
                operands,
                *rank,
                eps.as_f64(),
                statistic,
                types[1].dtype,
            ))
        }
        Op::Sdpa { causal, scale } => Ok(attention::attention(
            operands,
            *causal,
            scale.as_f64(),
            types[1].dtype,
        )),
        Op::SdpaBackward { causal, scale } => {
            Ok(attention::backward(operands, *causal, scale.as_f64()))
        }
        Op::ConvPanels { .. } => {
            let how = ConvPanels::of(op)
                .ok_or_else(|| err!(Internal, "a kernel of one to three sizes"))?;
            let [x, weight] = [0, 1].map(|i| {
                let sizes = operands[i].shape.iter();
                sizes.map(|&n| n as i64).collect::<Vec<i64>>()
            });
            let weight = match how.is_whole(&x[x.len() - 1], &weight) {
                true => convolution::matrix_of(operands[1], how.winograd),
                false => {
                    let n = usize::try_from(how.n).unwrap_or(0);
                    matmul::from_panels(operands[1], n)
                }
            };
            one(convolution::conv_panels(operands[0], &weight, &how, shape))
        }
        Op::Convolution { .. } => {
            let how = Convolution::of(op).unwrap_or_default();
            one(convolution::convolution(
                operands[0],
                operands[1],
                &how,
                shape,
            ))
        }
        Op::View { shape: _ } => one(Tensor {
            shape,
            ..x()?.clone()
        }),
        Op::Expand { shape: _ } => one(x()?.expand(&shape)),
        Op::Permute { dims } => one(index::permute(x()?, dims)),
        Op::Slice {
            dim,
            start,
            end,
            step,
        } => {
            let slice = index::Slice::new(bindings, x()?, *dim, (start, end, *step))?;
            one(slice.read(x()?))
        }
        Op::SliceScatter {
            dim,
            start,
            end,
            step,
        } => {
            let slice = index::Slice::new(bindings, x()?, *dim, (start, end, *step))?;
            one(slice.write(operands[0], operands[1]))
        }
        Op::IndexPut { dim } => {
            let places = index::places(x()?, *dim, operands[2])?;
            one(index::write(operands[0], operands[1], &places))
        }
        Op::Scatter { op, dim } => one(scatter::scatter(
            *op,
            operands[0],
            operands[1],
            *dim,
            operands[2],
        )?),
        Op::External { call } => Err(oxyfuel_base::err!(
            NoLowering,
            "`{}` is the host's operator, and the interpreter has no host",
            call.name
        )),
        Op::Copy => one(operands[1].expand(&shape)),
        Op::Cat { dim } => one(index::cat(operands, *dim, shape)),
        Op::Gather { dim } => one(index::gather(operands[0], *dim, operands[1])?),
        Op::IndexSelect { dim } => {
            one(index::index_select(operands[0], *dim, operands[1], &shape)?)
        }
        Op::Embedding => one(index::embedding(operands[0], operands[1], shape)?),
        Op::Full { value, .. } => one(Tensor::full(dtype, shape, *value)),
        Op::ScalarTensor { value, .. } => {
            one(Tensor::full(dtype, shape, bindings.eval(value)?.into()))
        }
        Op::Arange { start, step, .. } => one(index::arange(*start, *step, dtype, shape)),
        Op::Constant { id, device: _ } => one(Tensor::from_host(&graph.constants[*id].tensor)?),
        Op::Mm => one(matmul::mm(operands[0], operands[1])),
        Op::Bmm => one(matmul::bmm(operands[0], operands[1])),
        Op::IntMm => one(matmul::int_mm(operands[0], operands[1])),
        Op::Addmm { beta, alpha } => one(matmul::addmm(
            operands[0],
            operands[1],
            operands[2],
            *beta,
            *alpha,
        )),
        Op::MmPanels { n } => one(matmul::mm_panels(operands, *n)),
    }
}

/// The actual shape of a result, within what the interpreter is ready to hold.
fn extent(bindings: &Bindings, ty: &TensorType) -> Result<Vec<usize>> {
    let sizes = bindings.eval_all(&ty.shape)?;
    crate::tensor::byte_len(ty.dtype, &sizes)?;
    let shape: Vec<usize> = sizes
        .iter()
        .filter_map(|&n| usize::try_from(n).ok())
        .collect();
    let elements: usize = shape.iter().product();
    ensure!(
        elements <= MAX_ELEMENTS,
        TooLarge,
        "{elements} elements are more than the interpreter holds ({MAX_ELEMENTS})"
    );
    Ok(shape)
}
