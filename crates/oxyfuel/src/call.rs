//! Operations as data: what a method of [`Tensor`] asks for, before anyone decides whether it runs or is noted down.
//!
//! A [`Call`] with its operands is the key of the eager cache, and [`Call::record`] is its meaning in terms of the graph builder, which owns PyTorch's rules
//! (broadcasting, promotion, negative dims, -1). Eager execution and capture go through the same function, so they cannot differ in meaning.

use crate::composed::Composed;
use crate::recipe::Recipe;
use crate::tensor::{State, Tensor, located};
use crate::{eager, trace};
use oxyfuel_base::{Code, DType, Error, Expr, Result, Scalar, err};
use oxyfuel_graph::{
    Binary, Builder, Compare, Meet, Op, Operand as Value, Origin, Place, Reduce, Scatter, Unary,
    ValueId,
};
use std::panic::Location;

/// An operand: a tensor or a number.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number, which takes part in promotion as PyTorch's numbers do.
    Number(Scalar),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<Scalar> for Operand<'_> {
    fn from(number: Scalar) -> Self {
        Self::Number(number)
    }
}

macro_rules! from_numbers {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Operand<'_> {
            fn from(number: $ty) -> Self {
                Self::Number(Scalar::from(number))
            }
        }
    )*};
}
from_numbers!(f64, f32, i64, i32, bool);

/// The operands of a call while it is noted down.
pub(crate) struct Operands<'a> {
    all: &'a [Value],
    /// Those that are tensors.
    pub tensors: Vec<ValueId>,
}

impl<'a> Operands<'a> {
    pub fn new(all: &'a [Value]) -> Self {
        let tensor = |operand: &Value| match operand {
            Value::Value(value) => Some(*value),
            Value::Number(_) => None,
        };
        let tensors = all.iter().filter_map(tensor).collect();
        Self { all, tensors }
    }

    /// One of the tensors.
    pub fn tensor(&self, i: usize) -> Result<ValueId> {
        let missing = || match self.tensors.is_empty() {
            true => err!(InvalidArgument, "at least one operand must be a tensor"),
            false => err!(InvalidArgument, "an operand is no tensor"),
        };
        self.tensors.get(i).copied().ok_or_else(missing)
    }

    /// One of all.
    pub fn get(&self, i: usize) -> Result<Value> {
        let missing = || err!(ArityMismatch, "an operand is missing");
        self.all.get(i).copied().ok_or_else(missing)
    }
}

/// An operation with everything but its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Unary(Unary),
    Binary(Binary),
    Compare(Compare),
    /// Of truth values; `and`, `or` and `xor`.
    Logical(Binary),
    Where,
    Clamp {
        low: Option<Scalar>,
        high: Option<Scalar>,
    },
    Cast(DType),
    /// A dense copy.
    Clone,
    Full {
        shape: Vec<i64>,
        value: Scalar,
        dtype: DType,
    },
    /// Of the operand's shape.
    FullLike {
        value: Scalar,
        dtype: DType,
    },

    Reduce {
        op: Reduce,
        dims: Vec<i64>,
        keepdim: bool,
    },
    Var {
        dims: Vec<i64>,
        correction: Scalar,
        keepdim: bool,
    },
    Softmax(i64),
    LogSoftmax(i64),
    Cumsum(i64),
    Cumprod(i64),
    Argmax {
        dim: i64,
        keepdim: bool,
    },
    Argmin {
        dim: i64,
        keepdim: bool,
    },
    Argsort {
        dim: i64,
        descending: bool,
    },
    LayerNorm {
        shape: Vec<i64>,
        weight: bool,
        bias: bool,
        eps: Scalar,
    },
    RmsNorm {
        shape: Vec<i64>,
        weight: bool,
        eps: Scalar,
    },

    View(Vec<i64>),
    Permute(Vec<i64>),
    Transpose(i64, i64),
    Expand(Vec<i64>),
    Unsqueeze(i64),
    Squeeze(i64),
    /// Dims `first` to `last` as one.
    Flatten {
        first: i64,
        last: i64,
    },
    /// A dim as several; one extent may be -1.
    Unflatten {
        dim: i64,
        shape: Vec<i64>,
    },
    Slice {
        dim: i64,
        start: i64,
        end: i64,
        step: i64,
    },
    Select {
        dim: i64,
        index: i64,
    },

    Cat(i64),
    Stack(i64),
    Gather(i64),
    IndexSelect(i64),
    Embedding,
    IndexPut(i64),
    /// Elements, or whole slices, that replace or meet what is where an index says.
    Scatter {
        how: Option<Meet>,
        dim: i64,
        slices: bool,
        include_self: bool,
    },
    SliceScatter {
        dim: i64,
        start: i64,
        end: i64,
        step: i64,
    },
    Copy,

    Matmul,
    Mm,
    Bmm,
    IntMm,
    Addmm {
        beta: Scalar,
        alpha: Scalar,
    },
    Linear {
        bias: bool,
    },
    /// What other operations make up.
    Composed(Composed),
    /// The same, by a function of the builder and numbers.
    Recipe(Recipe),
}

impl Call {
    /// Whether it can be done without touching an element.
    pub fn is_view(&self) -> bool {
        match self {
            Self::View(_)
            | Self::Permute(_)
            | Self::Transpose(..)
            | Self::Expand(_)
            | Self::Unsqueeze(_)
            | Self::Squeeze(_)
            | Self::Flatten { .. }
            | Self::Unflatten { .. }
            | Self::Slice { .. }
            | Self::Select { .. } => true,
            Self::Unary(_)
            | Self::Binary(_)
            | Self::Compare(_)
            | Self::Logical(_)
            | Self::Where
            | Self::Clamp { .. }
            | Self::Cast(_)
            | Self::Clone
            | Self::Full { .. }
            | Self::FullLike { .. }
            | Self::Reduce { .. }
            | Self::Var { .. }
            | Self::Softmax(_)
            | Self::LogSoftmax(_)
            | Self::Cumsum(_)
            | Self::Cumprod(_)
            | Self::Argmax { .. }
            | Self::Argmin { .. }
            | Self::Argsort { .. }
            | Self::LayerNorm { .. }
            | Self::RmsNorm { .. }
            | Self::Cat(_)
            | Self::Stack(_)
            | Self::Gather(_)
            | Self::IndexSelect(_)
            | Self::Embedding
            | Self::IndexPut(_)
            | Self::Scatter { .. }
            | Self::SliceScatter { .. }
            | Self::Copy
            | Self::Matmul
            | Self::Mm
            | Self::Bmm
            | Self::IntMm
            | Self::Addmm { .. }
            | Self::Linear { .. }
            | Self::Composed(_)
            | Self::Recipe(_) => false,
        }
    }

    /// Whether a number among its operands may as well be a tensor without dims of the other operand's type.
    pub fn takes_tensor_numbers(&self) -> bool {
        use Binary::{Add, Div, Maximum, Minimum, Mul, Sub};
        matches!(
            self,
            Self::Binary(Add | Sub | Mul | Div | Maximum | Minimum) | Self::Compare(_)
        )
    }

    /// Notes the operation down: its meaning.
    pub fn record(&self, b: &mut Builder, operands: &[Value]) -> Result<ValueId> {
        let operands = Operands::new(operands);
        let tensor = |i: usize| operands.tensor(i);
        let operand = |i: usize| operands.get(i);
        match self {
            Self::Unary(f) => b.unary(*f, tensor(0)?),
            Self::Binary(f) => b.binary(*f, operand(0)?, operand(1)?),
            Self::Compare(f) => b.compare(*f, operand(0)?, operand(1)?),
            Self::Logical(f) => {
                let (x, y) = (
                    b.cast(tensor(0)?, DType::Bool)?,
                    b.cast(tensor(1)?, DType::Bool)?,
                );
                b.binary(*f, x, y)
            }
            Self::Where => b.where_(tensor(0)?, operand(1)?, operand(2)?),
            Self::Clamp { low, high } => {
                b.clamp(tensor(0)?, low.map(Value::Number), high.map(Value::Number))
            }
            Self::Cast(dtype) => b.cast(tensor(0)?, *dtype),
            Self::Clone => b.emit(Op::Clone, &[tensor(0)?]),
            Self::Full {
                shape,
                value,
                dtype,
            } => {
                let device = b.ty(tensor(0)?).device;
                b.full(*value, exprs(shape), *dtype, device)
            }
            Self::FullLike { value, dtype } => {
                let ty = b.ty(tensor(0)?).clone();
                b.full(*value, ty.shape, *dtype, ty.device)
            }

            Self::Reduce { op, dims, keepdim } => b.reduce(*op, tensor(0)?, dims, *keepdim),
            Self::Var {
                dims,
                correction,
                keepdim,
            } => b.var(tensor(0)?, dims, correction.as_f64(), *keepdim),
            Self::Softmax(dim) => b.softmax(tensor(0)?, *dim),
            Self::LogSoftmax(dim) => b.log_softmax(tensor(0)?, *dim),
            Self::Cumsum(dim) => b.cumsum(tensor(0)?, *dim),
            Self::Cumprod(dim) => b.cumprod(tensor(0)?, *dim),
            Self::Argmax { dim, keepdim } => b.argmax(tensor(0)?, *dim, *keepdim),
            Self::Argmin { dim, keepdim } => b.argmin(tensor(0)?, *dim, *keepdim),
            Self::Argsort { dim, descending } => b.argsort(tensor(0)?, *dim, *descending),
            Self::LayerNorm {
                shape,
                weight,
                bias,
                eps,
            } => {
                let given = |present: bool, i: usize| present.then(|| tensor(i)).transpose();
                let (w, c) = (given(*weight, 1)?, given(*bias, 1 + usize::from(*weight))?);
                b.layer_norm(tensor(0)?, &exprs(shape), w, c, eps.as_f64())
            }
            Self::RmsNorm { shape, weight, eps } => {
                let x = tensor(0)?;
                rms_norm(
                    b,
                    x,
                    &exprs(shape),
                    weight.then(|| tensor(1)).transpose()?,
                    *eps,
                )
            }

            Self::View(shape) => b.view(tensor(0)?, &exprs(shape)),
            Self::Permute(dims) => b.permute(tensor(0)?, dims),
            Self::Transpose(x, y) => b.transpose(tensor(0)?, *x, *y),
            Self::Expand(shape) => b.expand(tensor(0)?, &exprs(shape)),
            Self::Unsqueeze(dim) => b.unsqueeze(tensor(0)?, *dim),
            Self::Squeeze(dim) => b.squeeze(tensor(0)?, *dim),
            Self::Flatten { first, last } => {
                let mut shape = b.ty(tensor(0)?).shape.clone();
                let (first, last) = (dim_of(*first, shape.len())?, dim_of(*last, shape.len())?);
                if first > last {
                    return Err(err!(
                        InvalidArgument,
                        "flatten: dim {first} comes after dim {last}"
                    )
                    .help("give the first dim first"));
                }
                let merged = shape[first..=last].iter().cloned().product();
                shape.splice(first..=last, [merged]);
                b.view(tensor(0)?, &shape)
            }
            Self::Unflatten { dim, shape: parts } => {
                let mut shape = b.ty(tensor(0)?).shape.clone();
                let dim = dim_of(*dim, shape.len())?;
                let parts = unflattened(&shape[dim], parts)?;
                shape.splice(dim..=dim, parts);
                b.view(tensor(0)?, &shape)
            }
            Self::Slice {
                dim,
                start,
                end,
                step,
            } => b.slice(tensor(0)?, *dim, *start, *end, *step),
            Self::Select { dim, index } => b.select(tensor(0)?, *dim, *index),

            Self::Cat(dim) => b.cat(&operands.tensors, *dim),
            Self::Stack(dim) => {
                let rows = operands
                    .tensors
                    .iter()
                    .map(|&t| b.unsqueeze(t, *dim))
                    .collect::<Result<Vec<_>>>()?;
                let rank = rows.first().map_or(0, |&row| b.ty(row).rank()) as i64;
                // Counted in the result, which has one dim more.
                b.cat(&rows, if *dim < 0 { dim + rank } else { *dim })
            }
            Self::Gather(dim) => b.gather(tensor(0)?, *dim, tensor(1)?),
            Self::IndexSelect(dim) => b.index_select(tensor(0)?, *dim, tensor(1)?),
            Self::Embedding => b.embedding(tensor(0)?, tensor(1)?),
            Self::IndexPut(dim) => b.index_put(tensor(0)?, tensor(1)?, *dim, tensor(2)?),
            Self::Scatter {
                how,
                dim,
                slices,
                include_self,
            } => {
                let (x, index) = (tensor(0)?, tensor(1)?);
                match (how, slices) {
                    (None, _) => b.scatter(Scatter::Set, x, *dim, index, operand(2)?),
                    (Some(how), false) => {
                        b.scatter_reduce(*how, x, *dim, index, tensor(2)?, *include_self)
                    }
                    (Some(how), true) => {
                        b.index_reduce(*how, x, *dim, index, tensor(2)?, *include_self)
                    }
                }
            }
            Self::SliceScatter {
                dim,
                start,
                end,
                step,
            } => b.slice_scatter(tensor(0)?, tensor(1)?, *dim, *start, *end, *step),
            // What is the source as it is must still be memory of its own.
            Self::Copy => match operand(1)? {
                Value::Value(src) if b.ty(src) == b.ty(tensor(0)?) => b.emit(Op::Clone, &[src]),
                src => b.copy(tensor(0)?, src),
            },

            Self::Matmul => b.matmul(tensor(0)?, tensor(1)?),
            Self::Mm => b.mm(tensor(0)?, tensor(1)?),
            Self::Bmm => b.bmm(tensor(0)?, tensor(1)?),
            Self::IntMm => b.int_mm(tensor(0)?, tensor(1)?),
            Self::Addmm { beta, alpha } => {
                b.addmm(tensor(0)?, tensor(1)?, tensor(2)?, *beta, *alpha)
            }
            Self::Linear { bias } => {
                let c = bias.then(|| tensor(2)).transpose()?;
                b.linear(tensor(0)?, tensor(1)?, c)
            }
            Self::Composed(composed) => composed.record(b, &operands),
            Self::Recipe(recipe) => recipe.record(b, &operands),
        }
    }
}

fn dim_of(dim: i64, rank: usize) -> Result<usize> {
    let index = if dim < 0 { dim + rank as i64 } else { dim };
    let found = usize::try_from(index).ok().filter(|&index| index < rank);
    found.ok_or_else(|| err!(DimOutOfRange, "dim {dim} of a tensor with {rank} dims"))
}

/// The extents that a dim is cut into.
fn unflattened(extent: &Expr, parts: &[i64]) -> Result<Vec<Expr>> {
    let fail = || {
        err!(
            ShapeMismatch,
            "unflatten: a dim of extent {extent} does not divide into {parts:?}"
        )
        .help("the extents multiply to that of the dim; one of them may be -1")
    };
    let holes = parts.iter().filter(|&&part| part == -1).count();
    let known: Expr = exprs(parts)
        .into_iter()
        .filter(|e| !e.is_const(-1))
        .product();
    if holes > 1 || parts.iter().any(|&part| part < -1) || parts.is_empty() {
        return Err(fail());
    }
    let rest = match known.is_const(0) {
        true => Expr::ZERO,
        false => extent.floordiv(&known),
    };
    let filled: Vec<Expr> = exprs(parts)
        .into_iter()
        .map(|part| {
            if part.is_const(-1) {
                rest.clone()
            } else {
                part
            }
        })
        .collect();
    let total: Expr = filled.iter().cloned().product();
    match total == *extent && !(holes == 1 && known.is_const(0)) {
        true => Ok(filled),
        false => Err(fail()),
    }
}

fn exprs(shape: &[i64]) -> Vec<Expr> {
    shape.iter().map(|&extent| Expr::from(extent)).collect()
}

/// `x / sqrt(mean(x^2) + eps) * weight` over the last dims, computed in at least f32 and rounded before the weight.
fn rms_norm(
    b: &mut Builder,
    x: ValueId,
    shape: &[Expr],
    weight: Option<ValueId>,
    eps: Scalar,
) -> Result<ValueId> {
    let dtype = b.ty(x).dtype;
    if !b.ty(x).shape.ends_with(shape) || shape.is_empty() {
        return Err(Error::new(
            Code::ShapeMismatch,
            "rms_norm: the shape of the tensor does not end in the shape to normalise",
        ));
    }
    let wide = if dtype == DType::F64 {
        dtype
    } else {
        DType::F32
    };
    let f = b.cast(x, wide)?;
    let dims: Vec<i64> = (1..=shape.len() as i64).map(|d| -d).collect();
    let square = b.mul(f, f)?;
    let mean = b.mean(square, &dims, true)?;
    let shifted = b.add(mean, eps)?;
    let scale = b.rsqrt(shifted)?;
    let normal = b.mul(f, scale)?;
    let normal = b.cast(normal, dtype)?;
    match weight {
        Some(weight) => b.mul(normal, weight),
        None => Ok(normal),
    }
}

/// A node's or an error's origin: the caller's line.
pub(crate) fn origin(caller: &Location<'_>) -> Origin {
    Origin {
        at: Some(Place {
            file: caller.file().to_owned(),
            line: caller.line(),
        }),
        ..Origin::default()
    }
}

/// Does it: notes it down where an operand is traced, runs it otherwise. Errors become failed tensors that point at the caller.
#[track_caller]
pub(crate) fn apply(call: Call, operands: &[Operand<'_>]) -> Tensor {
    let caller = Location::caller();
    let mut traced = None;
    for operand in operands {
        if let Operand::Tensor(tensor) = operand {
            match &tensor.state {
                State::Concrete(_) => {}
                State::Traced(value) => traced = traced.or(Some(value.trace().clone())),
                State::Failed(_) => return (*tensor).clone(),
            }
        }
    }
    let made = match traced.or_else(trace::current) {
        Some(trace) => trace::note(&trace, &call, operands, caller),
        None => eager::run(&call, operands, caller),
    };
    made.unwrap_or_else(|error| Tensor::failed(located(error, caller)))
}
