//! Types of results: what each op demands of its operands and what it gives.
//!
//! [`infer`] is the one statement of the dtype and shape rules. The builder calls it to type new nodes, the verifier to check old
//! ones. Rules are strict: no promotion happens here (the builder inserts casts), while pointwise operands broadcast.
//!
//! Two symbolic sizes are equal here when their canonical forms are; sizes that merely might be equal are refused. Bounds (of a slice,
//! of a gather's index shape) are refused only when they are certainly broken, because a symbol's value may satisfy them.

use crate::conv_panels::ConvPanels;
use crate::convolution::Convolution;
use crate::ir::{ConstId, Constant, Device, TensorType};
use crate::op::{Accepts, Gives, Op, Reduce};
use oxyfuel_base::{Arena, Code, DType, Error, Expr, ExternalResult, Ranges, Result};

/// What a rule may look up beside the operands.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub constants: &'a Arena<ConstId, Constant>,
    pub ranges: &'a Ranges,
}

/// The types of the results of `op` on operands of these types.
pub fn infer(scope: Scope<'_>, op: &Op, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
    let info = op.info();
    let (least, most) = info.arity();
    if operands.len() < least || operands.len() > most {
        let expected = if least == most {
            least.to_string()
        } else {
            format!("at least {least}")
        };
        return Err(fail(
            Code::ArityMismatch,
            op,
            format!(
                "takes {expected} operands ({}), got {}",
                info.operands.join(", "),
                operands.len()
            ),
        ));
    }
    if !matches!(op, Op::External { .. })
        && let Some((first, rest)) = operands.split_first()
        && let Some(other) = rest.iter().find(|t| t.device != first.device)
    {
        return Err(fail(
            Code::DeviceMismatch,
            op,
            format!("operands are on {} and {}", first.device, other.device),
        )
        .help("move them to one device first"));
    }
    let one = |ty: TensorType| Ok(vec![ty]);
    match op {
        Op::Unary(_) => {
            accept(op, operands)?;
            one(TensorType {
                dtype: given(op, operands[0].dtype),
                ..operands[0].clone()
            })
        }
        Op::Binary(_) | Op::Compare(_) => {
            accept(op, operands)?;
            let shape = broadcast(op, operands)?;
            one(TensorType::new(
                given(op, operands[0].dtype),
                shape,
                operands[0].device,
            ))
        }
        Op::Reduce {
            op: reduce,
            dims,
            keepdim,
        } => {
            accept(op, operands)?;
            let x = operands[0];
            dims_ok(op, dims, x.rank())?;
            if matches!(reduce, Reduce::Amax | Reduce::Amin)
                && let Some(d) = dims.iter().find(|&&d| x.shape[d].as_const() == Some(0))
            {
                return Err(fail(
                    Code::ShapeMismatch,
                    op,
                    format!("dimension {d} has no elements to choose from"),
                ));
            }
            one(TensorType::new(
                given(op, x.dtype),
                reduced_shape(&x.shape, dims, *keepdim),
                x.device,
            ))
        }
        Op::Where => {
            let [condition, a, b] = [operands[0], operands[1], operands[2]];
            expect_dtype(op, "condition", condition, &[DType::Bool])?;
            accept(op, &[a, b])?;
            one(TensorType::new(
                a.dtype,
                broadcast(op, &[condition, a, b])?,
                a.device,
            ))
        }
        Op::Cast { dtype } => one(TensorType {
            dtype: *dtype,
            ..operands[0].clone()
        }),
        Op::Clone => one(operands[0].clone()),
        Op::View { shape } => {
            let (from, to) = (operands[0].numel(), numel(shape));
            from.check()?;
            to.check()?;
            if from != to {
                return Err(fail(
                    Code::ShapeMismatch,
                    op,
                    format!(
                        "{} has {from} elements, {} has {to}",
                        shape_text(&operands[0].shape),
                        shape_text(shape)
                    ),
                ));
            }
            sizes_ok(op, shape)?;
            one(TensorType {
                shape: shape.clone(),
                ..operands[0].clone()
            })
        }
        Op::Permute { dims } => {
            let x = operands[0];
            let mut sorted = dims.clone();
            sorted.sort_unstable();
            if sorted != (0..x.rank()).collect::<Vec<_>>() {
                return Err(fail(
                    Code::DimOutOfRange,
                    op,
                    format!("{dims:?} is no permutation of {} dimensions", x.rank()),
                ));
            }
            one(TensorType {
                shape: dims.iter().map(|&d| x.shape[d].clone()).collect(),
                ..x.clone()
            })
        }
        Op::Expand { shape } => {
            sizes_ok(op, shape)?;
            broadcasts_to(op, &operands[0].shape, shape)?;
            one(TensorType {
                shape: shape.clone(),
                ..operands[0].clone()
            })
        }
        Op::Slice {
            dim,
            start,
            end,
            step,
        } => one(sliced(scope, op, operands[0], (*dim, start, end, *step))?),
        Op::SliceScatter {
            dim,
            start,
            end,
            step,
        } => {
            let [x, src] = [operands[0], operands[1]];
            accept(op, operands)?;
            let slice = sliced(scope, op, x, (*dim, start, end, *step))?;
            if slice.shape != src.shape {
                let message = format!(
                    "the slice has shape {}, its replacement {}",
                    shape_text(&slice.shape),
                    shape_text(&src.shape)
                );
                return Err(fail(Code::ShapeMismatch, op, message));
            }
            one(x.clone())
        }
        Op::IndexPut { dim } => {
            let [x, src, index] = [operands[0], operands[1], operands[2]];
            accept(op, &operands[..2])?;
            expect_dtype(op, "index", index, INDEX)?;
            dim_ok(op, *dim, x.rank())?;
            expect_rank(op, "index", index, 1)?;
            let mut slices = x.shape.clone();
            slices[*dim] = index.shape[0].clone();
            if slices != src.shape {
                let message = format!(
                    "the slices have shape {}, their replacement {}",
                    shape_text(&slices),
                    shape_text(&src.shape)
                );
                return Err(fail(Code::ShapeMismatch, op, message));
            }
            one(x.clone())
        }
        Op::Scatter { op: _, dim } => {
            let [x, src, index] = [operands[0], operands[1], operands[2]];
            accept(op, &operands[..2])?;
            expect_dtype(op, "index", index, INDEX)?;
            dim_ok(op, *dim, x.rank())?;
            if src.shape != index.shape {
                let message = format!(
                    "the index has shape {}, what is written {}",
                    shape_text(&index.shape),
                    shape_text(&src.shape)
                );
                return Err(fail(Code::ShapeMismatch, op, message));
            }
            index_fits(op, x, *dim, index)?;
            one(x.clone())
        }
        Op::External { call } => {
            if call.operand_count() > operands.len() || call.operand_strides.len() > operands.len()
            {
                let message = format!("the call of `{}` names more operands", call.name);
                return Err(fail(Code::ArityMismatch, op, message));
            }
            // What only the host understands decides nothing about where tensors are.
            let device = operands.iter().map(|t| t.device);
            let device = device.filter(|d| *d != Device::Host).min();
            let device = device.or(call.gpu.map(Device::Cuda));
            let given = call.results.iter().map(|result| match result {
                ExternalResult::Tensor { dtype, shape, .. } => {
                    TensorType::new(*dtype, shape.clone(), device.unwrap_or_default())
                }
                ExternalResult::Opaque | ExternalResult::Nothing => TensorType::object(),
            });
            Ok(given.collect())
        }
        Op::Copy => {
            accept(op, operands)?;
            broadcasts_to(op, &operands[1].shape, &operands[0].shape)?;
            one(operands[0].clone())
        }
        Op::Cat { dim } => {
            accept(op, operands)?;
            let first = operands[0];
            dim_ok(op, *dim, first.rank())?;
            let mut ty = first.clone();
            for other in &operands[1..] {
                let fits = other.rank() == first.rank()
                    && (0..first.rank()).all(|d| d == *dim || other.shape[d] == first.shape[d]);
                if !fits {
                    let message = format!(
                        "{} and {} differ beside dimension {dim}",
                        shape_text(&first.shape),
                        shape_text(&other.shape)
                    );
                    return Err(fail(Code::ShapeMismatch, op, message));
                }
                ty.shape[*dim] = ty.shape[*dim].clone() + other.shape[*dim].clone();
            }
            one(ty)
        }
        Op::Gather { dim } => {
            let [x, index] = [operands[0], operands[1]];
            expect_dtype(op, "index", index, INDEX)?;
            dim_ok(op, *dim, x.rank())?;
            index_fits(op, x, *dim, index)?;
            one(TensorType {
                shape: index.shape.clone(),
                ..x.clone()
            })
        }
        Op::IndexSelect { dim } => {
            let [x, index] = [operands[0], operands[1]];
            expect_dtype(op, "index", index, INDEX)?;
            dim_ok(op, *dim, x.rank())?;
            expect_rank(op, "index", index, 1)?;
            let mut ty = x.clone();
            ty.shape[*dim] = index.shape[0].clone();
            one(ty)
        }
        Op::Embedding => {
            let [weight, indices] = [operands[0], operands[1]];
            expect_dtype(op, "indices", indices, INDEX)?;
            expect_rank(op, "weight", weight, 2)?;
            let shape = indices
                .shape
                .iter()
                .chain(&weight.shape[1..])
                .cloned()
                .collect();
            one(TensorType {
                shape,
                ..weight.clone()
            })
        }
        Op::Full {
            value: _,
            shape,
            dtype,
            device,
        } => {
            sizes_ok(op, shape)?;
            one(TensorType::new(*dtype, shape.clone(), *device))
        }
        Op::ScalarTensor {
            value: _,
            dtype,
            device,
        } => {
            accept_dtype(op, *dtype)?;
            one(TensorType::new(*dtype, vec![], *device))
        }
        Op::Arange {
            start: _,
            step: _,
            shape,
            dtype,
            device,
        } => {
            accept_dtype(op, *dtype)?;
            sizes_ok(op, shape)?;
            let ty = TensorType::new(*dtype, shape.clone(), *device);
            expect_rank(op, "result", &ty, 1)?;
            one(ty)
        }
        Op::Constant { id, device } => match scope.constants.get(*id) {
            None => Err(fail(
                Code::InvalidGraph,
                op,
                format!("{id} is no constant of this graph"),
            )),
            Some(constant) => {
                let shape = constant
                    .tensor
                    .shape
                    .iter()
                    .map(|&n| Expr::from(n))
                    .collect();
                one(TensorType::new(constant.tensor.dtype, shape, *device))
            }
        },
        Op::Mm => {
            let [a, b] = [operands[0], operands[1]];
            accept(op, operands)?;
            one(TensorType {
                shape: matrices(op, a, b)?,
                ..a.clone()
            })
        }
        Op::Bmm => {
            let [a, b] = [operands[0], operands[1]];
            accept(op, operands)?;
            one(TensorType {
                shape: batches(op, a, b)?,
                ..a.clone()
            })
        }
        Op::IntMm => {
            let [a, b] = [operands[0], operands[1]];
            accept_dtype(op, a.dtype)?;
            accept_dtype(op, b.dtype)?;
            let shape = match a.rank() {
                3 => batches(op, a, b)?,
                _ => matrices(op, a, b)?,
            };
            one(TensorType::new(DType::I32, shape, a.device))
        }
        Op::Addmm { beta: _, alpha: _ } => {
            let [bias, a, b] = [operands[0], operands[1], operands[2]];
            accept(op, operands)?;
            expect_rank(op, "a", a, 2)?;
            expect_rank(op, "b", b, 2)?;
            inner_ok(op, &a.shape[1], &b.shape[0])?;
            let shape = vec![a.shape[0].clone(), b.shape[1].clone()];
            broadcasts_to(op, &bias.shape, &shape)?;
            one(TensorType { shape, ..a.clone() })
        }
        Op::MmPanels { n } => {
            let [a, panels] = [operands[0], operands[1]];
            accept(op, operands)?;
            expect_rank(op, "a", a, 2)?;
            expect_rank(op, "panels", panels, 3)?;
            inner_ok(op, &a.shape[1], &panels.shape[1])?;
            let sizes = (panels.shape[0].as_const(), panels.shape[2].as_const());
            let n = i64::try_from(*n).unwrap_or(i64::MAX);
            let fits = |(count, width): (i64, i64)| width > 0 && (n + width - 1) / width == count;
            if !matches!(sizes, (Some(count), Some(width)) if fits((count, width))) {
                let (count, width) = (&panels.shape[0], &panels.shape[2]);
                return Err(fail(
                    Code::ShapeMismatch,
                    op,
                    format!("{count} panels of {width} columns do not hold {n}"),
                ));
            }
            let shape = vec![a.shape[0].clone(), Expr::constant(n)];
            if let Some(bias) = operands.get(2) {
                broadcasts_to(op, &bias.shape, &shape)?;
            }
            one(TensorType { shape, ..a.clone() })
        }
        Op::Softmax { dim } | Op::LogSoftmax { dim } | Op::Cumsum { dim } | Op::Cumprod { dim } => {
            accept(op, operands)?;
            // A tensor without dimensions is one row of one element.
            dim_ok(op, *dim, operands[0].rank().max(1))?;
            one(operands[0].clone())
        }
        Op::Argsort { dim, .. } => {
            accept(op, operands)?;
            dim_ok(op, *dim, operands[0].rank().max(1))?;
            one(TensorType {
                dtype: DType::I64,
                ..operands[0].clone()
            })
        }
        Op::LinearScan { dim } => {
            accept(op, operands)?;
            dim_ok(op, *dim, operands[0].rank().max(1))?;
            let [a, b] = [operands[0], operands[1]];
            if a.shape != b.shape {
                let message = format!(
                    "factors {} beside terms {}",
                    shape_text(&a.shape),
                    shape_text(&b.shape)
                );
                return Err(fail(Code::ShapeMismatch, op, message));
            }
            one(a.clone())
        }
        Op::Argmax { dim, keepdim } | Op::Argmin { dim, keepdim } => {
            accept(op, operands)?;
            let x = operands[0];
            // A tensor without dimensions is one row of one element.
            dim_ok(op, *dim, x.rank().max(1))?;
            let shape = match x.rank() {
                0 => vec![],
                _ => reduced_shape(&x.shape, &[*dim], *keepdim),
            };
            one(TensorType::new(DType::I64, shape, x.device))
        }
        Op::NativeLayerNorm { rank, eps: _ } => {
            accept(op, operands)?;
            let x = operands[0];
            if *rank == 0 || *rank > x.rank() {
                return Err(fail(
                    Code::RankMismatch,
                    op,
                    format!(
                        "cannot normalise {rank} dimensions of {}",
                        shape_text(&x.shape)
                    ),
                ));
            }
            let outer = x.rank() - rank;
            for (name, p) in ["weight", "bias"].iter().zip(&operands[1..]) {
                if p.shape != x.shape[outer..] {
                    let message = format!(
                        "{name} has shape {}, not {}",
                        shape_text(&p.shape),
                        shape_text(&x.shape[outer..])
                    );
                    return Err(fail(Code::ShapeMismatch, op, message));
                }
            }
            let dims: Vec<usize> = (outer..x.rank()).collect();
            let statistic = TensorType::new(
                wide(x.dtype),
                reduced_shape(&x.shape, &dims, true),
                x.device,
            );
            Ok(vec![x.clone(), statistic.clone(), statistic])
        }
        Op::Sdpa {
            causal: _,
            scale: _,
        } => attention(op, operands),
        Op::SdpaBackward {
            causal: _,
            scale: _,
        } => attention_backward(op, operands),
        Op::Convolution { .. } => {
            accept(op, operands)?;
            let how = Convolution::of(op).unwrap_or_default();
            one(crate::convolution::result(operands[0], operands[1], &how)?)
        }
        Op::ConvPanels { .. } => {
            accept(op, operands)?;
            let Some(how) = ConvPanels::of(op) else {
                return Err(fail(
                    Code::InvalidArgument,
                    op,
                    "a kernel has one to three sizes".to_owned(),
                ));
            };
            one(how.result(operands[0], operands[1])?)
        }
        Op::Var {
            dims,
            correction: _,
            keepdim,
        } => {
            accept(op, operands)?;
            let x = operands[0];
            dims_ok(op, dims, x.rank())?;
            one(TensorType {
                shape: reduced_shape(&x.shape, dims, *keepdim),
                ..x.clone()
            })
        }
    }
}

/// An index has as many dimensions as `x`, and beside `dim` none that is certainly longer.
fn index_fits(op: &Op, x: &TensorType, dim: usize, index: &TensorType) -> Result<()> {
    if index.rank() != x.rank() {
        return Err(fail(
            Code::RankMismatch,
            op,
            format!("x has {} dimensions, index {}", x.rank(), index.rank()),
        ));
    }
    for d in (0..x.rank()).filter(|&d| d != dim) {
        if let (Some(i), Some(n)) = (index.shape[d].as_const(), x.shape[d].as_const())
            && i > n
        {
            return Err(fail(
                Code::ShapeMismatch,
                op,
                format!("dimension {d} of the index has size {i}, of x only {n}"),
            ));
        }
    }
    Ok(())
}

const INDEX: &[DType] = &[DType::I64, DType::I32];

/// The dtype in which sums over `dtype` are kept: f64 for f64, f32 for narrower floats, i64 for integers.
pub fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        d if d.is_float() => DType::F32,
        _ => DType::I64,
    }
}

fn attention(op: &Op, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
    let [q, k, v] = [operands[0], operands[1], operands[2]];
    accept(op, &operands[..3])?;
    for (name, ty) in [("q", q), ("k", k), ("v", v)] {
        expect_rank(op, name, ty, 4)?;
    }
    inner_ok(op, &q.shape[3], &k.shape[3])?;
    let refuse = |message: String| Err(fail(Code::ShapeMismatch, op, message));
    if k.shape[..3] != v.shape[..3] {
        let (k, v) = (shape_text(&k.shape), shape_text(&v.shape));
        return refuse(format!(
            "k is {k} and v is {v}; they may differ in the last dimension alone"
        ));
    }
    if q.shape[0] != k.shape[0] {
        return refuse(format!("{} batches against {}", q.shape[0], k.shape[0]));
    }
    let (heads, groups) = (&q.shape[1], &k.shape[1]);
    let shared = match (heads.as_const(), groups.as_const()) {
        (Some(heads), Some(groups)) => groups > 0 && heads % groups == 0,
        _ => false,
    };
    if heads != groups && !shared {
        return refuse(format!(
            "{heads} heads of q cannot share {groups} of k and v evenly"
        ));
    }
    let scores = [&q.shape[..3], &k.shape[2..3]].concat();
    if let Some(mask) = operands.get(3) {
        expect_rank(op, "mask", mask, 4)?;
        broadcasts_to(op, &mask.shape, &scores)?;
        if !mask.dtype.is_bool() && mask.dtype != q.dtype {
            let message = format!("a mask of {} for operands of {}", mask.dtype, q.dtype);
            return Err(fail(Code::DTypeMismatch, op, message)
                .help("a mask is of bool, or of the dtype of the operands"));
        }
    }
    let out = [&q.shape[..3], &v.shape[3..]].concat();
    let sums = TensorType::new(wide(q.dtype), q.shape[..3].to_vec(), q.device);
    Ok(vec![TensorType::new(q.dtype, out, q.device), sums])
}

/// What the forward reads and gives has to fit together as it does there.
fn attention_backward(op: &Op, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
    let [grad, q, k, v, out, lse] = [0, 1, 2, 3, 4, 5].map(|i| operands[i]);
    accept(op, &operands[..5])?;
    let forward: Vec<&TensorType> = [q, k, v]
        .into_iter()
        .chain(operands.get(6).copied())
        .collect();
    let given = attention(op, &forward)?;
    for (name, ty, want) in [
        ("grad", grad, &given[0]),
        ("out", out, &given[0]),
        ("lse", lse, &given[1]),
    ] {
        if ty.shape != want.shape {
            let (have, want) = (shape_text(&ty.shape), shape_text(&want.shape));
            return Err(fail(
                Code::ShapeMismatch,
                op,
                format!("{name} is {have}, not {want}"),
            ));
        }
    }
    expect_dtype(op, "lse", lse, &[given[1].dtype])?;
    Ok(vec![q.clone(), k.clone(), v.clone()])
}

/// The shape after a reduction over `dims`.
pub fn reduced_shape(shape: &[Expr], dims: &[usize], keepdim: bool) -> Vec<Expr> {
    let mut out = Vec::with_capacity(shape.len());
    for (d, size) in shape.iter().enumerate() {
        match (dims.contains(&d), keepdim) {
            (false, _) => out.push(size.clone()),
            (true, true) => out.push(Expr::ONE),
            (true, false) => {}
        }
    }
    out
}

/// The common shape of shapes that broadcast by numpy's rule, or `None`.
pub fn broadcast_shapes<'a>(shapes: impl IntoIterator<Item = &'a [Expr]>) -> Option<Vec<Expr>> {
    let mut out: Vec<Expr> = vec![];
    for shape in shapes {
        if shape.len() > out.len() {
            out.splice(
                0..0,
                std::iter::repeat_n(Expr::ONE, shape.len() - out.len()),
            );
        }
        let skip = out.len() - shape.len();
        for (have, want) in out[skip..].iter_mut().zip(shape) {
            if have.as_const() == Some(1) {
                *have = want.clone();
            } else if want.as_const() != Some(1) && have != want {
                return None;
            }
        }
    }
    Some(out)
}

/// Whether a tensor of shape `from` broadcasts to exactly `to`.
pub fn broadcasts(from: &[Expr], to: &[Expr]) -> bool {
    from.len() <= to.len()
        && from
            .iter()
            .rev()
            .zip(to.iter().rev())
            .all(|(f, t)| f == t || f.as_const() == Some(1))
}

pub(crate) fn numel(shape: &[Expr]) -> Expr {
    shape.iter().cloned().product()
}

/// `[4, s0]`.
pub fn shape_text(shape: &[Expr]) -> String {
    let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Number of elements of a slice: ceil((end - start) / step).
pub fn slice_len(start: &Expr, end: &Expr, step: i64) -> Expr {
    let length = end - start;
    if step == 1 {
        length
    } else {
        length.ceildiv(step)
    }
}

pub(crate) fn fail(code: Code, op: &Op, message: String) -> Error {
    Error::new(code, format!("{}: {message}", op.name()))
}

/// Whether a class of the table contains a dtype.
pub fn accepts(class: Accepts, dtype: DType) -> bool {
    let compute_float = dtype.is_float() && !dtype.is_narrow_float();
    match class {
        Accepts::Any => true,
        Accepts::Compute => compute_float || dtype.is_int() || dtype.is_bool(),
        Accepts::Number => compute_float || dtype.is_int(),
        Accepts::Integral => dtype.is_int() || dtype.is_bool(),
        Accepts::Integer => dtype.is_int(),
        Accepts::Byte => matches!(dtype, DType::I8 | DType::U8),
        Accepts::Float | Accepts::IntToFloat => compute_float,
    }
}

fn accept_dtype(op: &Op, dtype: DType) -> Result<()> {
    if accepts(op.info().accepts, dtype) {
        return Ok(());
    }
    Err(fail(
        Code::UnsupportedDType,
        op,
        format!("not defined on {dtype}"),
    )
    .help("cast the operand first"))
}

/// All value operands have one dtype, and one that the op takes.
fn accept(op: &Op, operands: &[&TensorType]) -> Result<()> {
    let first = operands[0].dtype;
    if let Some(other) = operands.iter().find(|t| t.dtype != first) {
        return Err(fail(
            Code::DTypeMismatch,
            op,
            format!("operands are {first} and {}", other.dtype),
        )
        .help("cast them to one dtype; the builder does it by PyTorch's promotion"));
    }
    accept_dtype(op, first)
}

fn given(op: &Op, operand: DType) -> DType {
    match op.info().gives {
        Gives::Same | Gives::Rule => operand,
        Gives::Bool => DType::Bool,
    }
}

fn broadcast(op: &Op, operands: &[&TensorType]) -> Result<Vec<Expr>> {
    broadcast_shapes(operands.iter().map(|t| t.shape.as_slice())).ok_or_else(|| {
        let shapes: Vec<String> = operands.iter().map(|t| shape_text(&t.shape)).collect();
        fail(
            Code::ShapeMismatch,
            op,
            format!("shapes {} do not broadcast", shapes.join(" and ")),
        )
        .help("sizes must be equal or 1, counted from the last dimension")
    })
}

fn broadcasts_to(op: &Op, from: &[Expr], to: &[Expr]) -> Result<()> {
    if broadcasts(from, to) {
        return Ok(());
    }
    Err(fail(
        Code::ShapeMismatch,
        op,
        format!(
            "{} does not broadcast to {}",
            shape_text(from),
            shape_text(to)
        ),
    ))
}

fn dim_ok(op: &Op, dim: usize, rank: usize) -> Result<()> {
    if dim < rank {
        return Ok(());
    }
    Err(fail(
        Code::DimOutOfRange,
        op,
        format!("dimension {dim} of a tensor with {rank} dimensions"),
    ))
}

fn dims_ok(op: &Op, dims: &[usize], rank: usize) -> Result<()> {
    dims.iter().try_for_each(|&d| dim_ok(op, d, rank))?;
    if dims.windows(2).all(|w| w[0] < w[1]) {
        return Ok(());
    }
    Err(fail(
        Code::DimOutOfRange,
        op,
        format!("dimensions {dims:?} are not ascending and distinct"),
    ))
}

fn sizes_ok(op: &Op, shape: &[Expr]) -> Result<()> {
    match shape.iter().find(|d| d.as_const().is_some_and(|n| n < 0)) {
        None => Ok(()),
        Some(d) => Err(fail(
            Code::InvalidArgument,
            op,
            format!("negative size {d}"),
        )),
    }
}

fn expect_rank(op: &Op, operand: &str, ty: &TensorType, rank: usize) -> Result<()> {
    if ty.rank() == rank {
        return Ok(());
    }
    Err(fail(
        Code::RankMismatch,
        op,
        format!(
            "{operand} must have {rank} dimensions, has shape {}",
            shape_text(&ty.shape)
        ),
    ))
}

fn expect_dtype(op: &Op, operand: &str, ty: &TensorType, allowed: &[DType]) -> Result<()> {
    if allowed.contains(&ty.dtype) {
        return Ok(());
    }
    let names: Vec<&str> = allowed.iter().map(|d| d.name()).collect();
    Err(fail(
        Code::DTypeMismatch,
        op,
        format!("{operand} must be {}, is {}", names.join(" or "), ty.dtype),
    ))
}

/// The shape of a product of two matrices.
fn matrices(op: &Op, a: &TensorType, b: &TensorType) -> Result<Vec<Expr>> {
    expect_rank(op, "a", a, 2)?;
    expect_rank(op, "b", b, 2)?;
    inner_ok(op, &a.shape[1], &b.shape[0])?;
    Ok(vec![a.shape[0].clone(), b.shape[1].clone()])
}

/// The shape of a product of two batches of matrices.
fn batches(op: &Op, a: &TensorType, b: &TensorType) -> Result<Vec<Expr>> {
    expect_rank(op, "a", a, 3)?;
    expect_rank(op, "b", b, 3)?;
    inner_ok(op, &a.shape[2], &b.shape[1])?;
    if a.shape[0] != b.shape[0] {
        return Err(fail(
            Code::ShapeMismatch,
            op,
            format!("{} batches against {}", a.shape[0], b.shape[0]),
        ));
    }
    Ok(vec![
        a.shape[0].clone(),
        a.shape[1].clone(),
        b.shape[2].clone(),
    ])
}

fn inner_ok(op: &Op, a: &Expr, b: &Expr) -> Result<()> {
    if a == b {
        return Ok(());
    }
    Err(fail(
        Code::ShapeMismatch,
        op,
        format!("inner sizes {a} and {b} differ"),
    ))
}

fn sliced(
    scope: Scope<'_>,
    op: &Op,
    x: &TensorType,
    (dim, start, end, step): (usize, &Expr, &Expr, i64),
) -> Result<TensorType> {
    dim_ok(op, dim, x.rank())?;
    if step < 1 {
        return Err(fail(
            Code::InvalidArgument,
            op,
            format!("step {step} is not positive"),
        ));
    }
    let zero = Expr::ZERO;
    let size = &x.shape[dim];
    for (low, high) in [(&zero, start), (start, end), (end, size)] {
        if high.provably_lt(low, scope.ranges) {
            return Err(fail(
                Code::IndexOutOfRange,
                op,
                format!("0 <= {start} <= {end} <= {size} does not hold"),
            ));
        }
    }
    let mut ty = x.clone();
    ty.shape[dim] = slice_len(start, end, step);
    Ok(ty)
}
