//! The methods of [`Tensor`], with PyTorch's names and meanings.
//!
//! Each is one [`Call`]; the rules of broadcasting and promotion live in the graph builder. Dims may be negative, and then count from the end; an empty list of dims
//! means all of them.

use crate::call::{Call, Operand, apply};
use crate::tensor::{Tensor, located};
use oxyfuel_base::{DType, Result, Scalar, err};
use oxyfuel_graph::{Binary, Compare, Reduce, Unary};
use std::panic::Location;

macro_rules! unary {
    ($($name:ident $(/ $in_place:ident)? $f:ident $doc:literal;)*) => {
        /// Functions of one element. Names that end in `_` overwrite it.
        impl Tensor {
            $(#[doc = $doc]
            #[track_caller]
            pub fn $name(&self) -> Tensor {
                apply(Call::Unary(Unary::$f), &[self.into()])
            }
            $(#[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), "), in its place.")]
            #[track_caller]
            pub fn $in_place(&mut self) -> Result<()> {
                let new = self.$name();
                self.overwrite(stringify!($in_place), &new)
            })?)*
        }
    };
}

unary! {
    neg / neg_ Neg "`-x`.";
    abs / abs_ Abs "`|x|`.";
    sign / sign_ Sign "-1, 0 or 1.";
    relu / relu_ Relu "`max(x, 0)`.";
    gelu Gelu "`x (1 + erf(x / sqrt 2)) / 2`.";
    gelu_tanh GeluTanh "`gelu(x, approximate=\"tanh\")`.";
    silu / silu_ Silu "`x / (1 + exp(-x))`.";
    sigmoid / sigmoid_ Sigmoid "`1 / (1 + exp(-x))`.";
    tanh / tanh_ Tanh "Hyperbolic tangent.";
    exp / exp_ Exp "e to the power x.";
    exp2 / exp2_ Exp2 "2 to the power x.";
    expm1 / expm1_ Expm1 "`exp(x) - 1` without cancellation.";
    log / log_ Log "Natural logarithm.";
    log2 / log2_ Log2 "Logarithm to base 2.";
    log1p / log1p_ Log1p "`log(1 + x)` without cancellation.";
    sqrt / sqrt_ Sqrt "Square root.";
    rsqrt / rsqrt_ Rsqrt "`1 / sqrt(x)`.";
    reciprocal / reciprocal_ Reciprocal "`1 / x`.";
    erf / erf_ Erf "Error function.";
    sin / sin_ Sin "Sine of radians.";
    cos / cos_ Cos "Cosine of radians.";
    floor / floor_ Floor "Greatest integer not above x.";
    ceil / ceil_ Ceil "Least integer not below x.";
    round / round_ Round "Nearest integer, ties to even.";
    trunc / trunc_ Trunc "Integer part.";
    logical_not / logical_not_ LogicalNot "True where x is zero.";
    bitwise_not / bitwise_not_ BitwiseNot "Every bit inverted.";
    isnan IsNan "True where x is NaN.";
    isinf IsInf "True where x is an infinity.";
    erfc / erfc_ Erfc "`1 - erf(x)` without cancellation.";
    log10 / log10_ Log10 "Logarithm to base 10.";
    tan / tan_ Tan "Tangent of radians.";
    asin / asin_ Asin "Arc sine.";
    acos / acos_ Acos "Arc cosine.";
    atan / atan_ Atan "Arc tangent.";
    sinh / sinh_ Sinh "Hyperbolic sine.";
    cosh / cosh_ Cosh "Hyperbolic cosine.";
    asinh / asinh_ Asinh "Inverse of the hyperbolic sine.";
    acosh / acosh_ Acosh "Inverse of the hyperbolic cosine.";
    atanh / atanh_ Atanh "Inverse of the hyperbolic tangent.";
}

macro_rules! binary {
    ($kind:ident: $($name:ident / $in_place:ident $f:ident $doc:literal;)*) => {
        /// Functions of two elements; the other operand is a tensor, which is broadcast, or a number. Names that end in `_` overwrite the first.
        impl Tensor {
            $(#[doc = $doc]
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
                apply(Call::$kind($kind::$f), &[self.into(), other.into()])
            }
            #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), "), in its place.")]
            #[track_caller]
            pub fn $in_place<'a>(&mut self, other: impl Into<Operand<'a>>) -> Result<()> {
                let new = self.$name(other);
                self.overwrite(stringify!($in_place), &new)
            })*
        }
    };
}

binary! { Binary:
    add / add_ Add "`a + b`.";
    sub / sub_ Sub "`a - b`.";
    mul / mul_ Mul "`a * b`.";
    div / div_ Div "`a / b`; of integers a float.";
    div_floor / div_floor_ DivFloor "`div(a, b, rounding_mode=\"floor\")`.";
    div_trunc / div_trunc_ DivTrunc "`div(a, b, rounding_mode=\"trunc\")`.";
    remainder / remainder_ Remainder "`a - floor(a / b) b`, with the sign of b.";
    fmod / fmod_ Fmod "`a - trunc(a / b) b`, with the sign of a.";
    pow / pow_ Pow "a to the power b.";
    maximum / maximum_ Maximum "The larger; NaN if either is.";
    minimum / minimum_ Minimum "The smaller; NaN if either is.";
    bitwise_and / bitwise_and_ BitwiseAnd "Bits set in both.";
    bitwise_or / bitwise_or_ BitwiseOr "Bits set in either.";
    bitwise_xor / bitwise_xor_ BitwiseXor "Bits set in one only.";
    bitwise_left_shift / bitwise_left_shift_ ShiftLeft "`a << b`.";
    bitwise_right_shift / bitwise_right_shift_ ShiftRight "`a >> b`.";
    atan2 / atan2_ Atan2 "Angle of the point (b, a).";
}

binary! { Compare:
    eq / eq_ Eq "Where a = b.";
    ne / ne_ Ne "Where a differs from b.";
    lt / lt_ Lt "Where a < b.";
    le / le_ Le "Where a <= b.";
    gt / gt_ Gt "Where a > b.";
    ge / ge_ Ge "Where a >= b.";
}

/// Choice, conversion, memory.
impl Tensor {
    /// Where both are not zero.
    #[track_caller]
    pub fn logical_and(&self, other: &Tensor) -> Tensor {
        apply(
            Call::Logical(Binary::BitwiseAnd),
            &[self.into(), other.into()],
        )
    }

    /// Where either is not zero.
    #[track_caller]
    pub fn logical_or(&self, other: &Tensor) -> Tensor {
        apply(
            Call::Logical(Binary::BitwiseOr),
            &[self.into(), other.into()],
        )
    }

    /// Where one is not zero and the other is.
    #[track_caller]
    pub fn logical_xor(&self, other: &Tensor) -> Tensor {
        apply(
            Call::Logical(Binary::BitwiseXor),
            &[self.into(), other.into()],
        )
    }

    /// `a` where this tensor (of bools) holds, else `b`.
    #[track_caller]
    pub fn where_<'a>(&self, a: impl Into<Operand<'a>>, b: impl Into<Operand<'a>>) -> Tensor {
        apply(Call::Where, &[self.into(), a.into(), b.into()])
    }

    /// `value` where the mask holds.
    #[track_caller]
    pub fn masked_fill<'a>(&self, mask: &Tensor, value: impl Into<Operand<'a>>) -> Tensor {
        let filled = apply(Call::Where, &[mask.into(), value.into(), self.into()]);
        // A number never changes the dtype here.
        filled.to(self.dtype())
    }

    /// Brought between two bounds, either of which may be missing.
    #[track_caller]
    pub fn clamp(&self, low: Option<f64>, high: Option<f64>) -> Tensor {
        let bound = |b: Option<f64>| b.map(Scalar::F);
        let call = Call::Clamp {
            low: bound(low),
            high: bound(high),
        };
        apply(call, &[self.into()])
    }

    /// The nearest values of another type.
    #[track_caller]
    pub fn to(&self, dtype: DType) -> Tensor {
        apply(Call::Cast(dtype), &[self.into()])
    }

    /// This tensor if it is dense and row-major, else a copy that is.
    #[track_caller]
    pub fn contiguous(&self) -> Tensor {
        if self.is_contiguous() {
            return self.clone();
        }
        apply(Call::Clone, &[self.into()])
    }

    /// A tensor of this one's device, filled with a number. Captured programs make constants this way without reading memory.
    #[track_caller]
    pub fn new_full(&self, shape: &[i64], value: impl Into<Scalar>, dtype: DType) -> Tensor {
        let call = Call::Full {
            shape: shape.to_vec(),
            value: value.into(),
            dtype,
        };
        apply(call, &[self.into()])
    }

    /// A number in this tensor's type, shape and device.
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Scalar>) -> Tensor {
        let call = Call::FullLike {
            value: value.into(),
            dtype: self.dtype(),
        };
        apply(call, &[self.into()])
    }

    /// Zeros of this tensor's type, shape and device.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        self.full_like(0)
    }

    /// Ones of this tensor's type, shape and device.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        self.full_like(1)
    }
}

macro_rules! reductions {
    ($($name:ident $f:ident $doc:literal;)*) => {
        /// Reductions; `keepdim` leaves the reduced dims with extent 1.
        impl Tensor {
            $(#[doc = $doc]
            #[track_caller]
            pub fn $name(&self, dims: &[i64], keepdim: bool) -> Tensor {
                let call = Call::Reduce { op: Reduce::$f, dims: dims.to_vec(), keepdim };
                apply(call, &[self.into()])
            })*
        }
    };
}

reductions! {
    sum Sum "Sum; of integers an i64.";
    mean Mean "Mean.";
    prod Prod "Product; of integers an i64.";
    amax Amax "Largest element; NaN if any is.";
    amin Amin "Smallest element; NaN if any is.";
    any Any "Whether any element is not zero.";
    all All "Whether every element is not zero.";
}

/// Statistics and normalisation.
impl Tensor {
    /// Variance, with `correction` taken off the count (1 for a sample).
    #[track_caller]
    pub fn var(&self, dims: &[i64], correction: f64, keepdim: bool) -> Tensor {
        let call = Call::Var {
            dims: dims.to_vec(),
            correction: Scalar::F(correction),
            keepdim,
        };
        apply(call, &[self.into()])
    }

    /// `exp(x) / sum(exp(x))` along a dim.
    #[track_caller]
    pub fn softmax(&self, dim: i64) -> Tensor {
        apply(Call::Softmax(dim), &[self.into()])
    }

    /// `log(softmax(x))` along a dim.
    #[track_caller]
    pub fn log_softmax(&self, dim: i64) -> Tensor {
        apply(Call::LogSoftmax(dim), &[self.into()])
    }

    /// Running sums along a dim; those of integers are i64.
    #[track_caller]
    pub fn cumsum(&self, dim: i64) -> Tensor {
        apply(Call::Cumsum(dim), &[self.into()])
    }

    /// Running products along a dim; those of integers are i64.
    #[track_caller]
    pub fn cumprod(&self, dim: i64) -> Tensor {
        apply(Call::Cumprod(dim), &[self.into()])
    }

    /// Position of the first largest element along a dim; of the first NaN if there is one.
    #[track_caller]
    pub fn argmax(&self, dim: i64, keepdim: bool) -> Tensor {
        apply(Call::Argmax { dim, keepdim }, &[self.into()])
    }

    /// Position of the first smallest element along a dim; of the first NaN if there is one.
    #[track_caller]
    pub fn argmin(&self, dim: i64, keepdim: bool) -> Tensor {
        apply(Call::Argmin { dim, keepdim }, &[self.into()])
    }

    /// Positions that put a dim in order; equal elements stay as they stand, NaN is above everything.
    #[track_caller]
    pub fn argsort(&self, dim: i64, descending: bool) -> Tensor {
        apply(Call::Argsort { dim, descending }, &[self.into()])
    }

    /// A dim in order, and where each element stood.
    #[track_caller]
    pub fn sort(&self, dim: i64, descending: bool) -> (Tensor, Tensor) {
        let order = self.argsort(dim, descending);
        (self.ordered(dim, &order), order)
    }

    /// The `k` largest elements along a dim (the smallest where `largest` is false), best first, and where each stood.
    #[track_caller]
    pub fn topk(&self, k: i64, dim: i64, largest: bool) -> (Tensor, Tensor) {
        let order = self.argsort(dim, largest);
        let best = if self.rank() == 0 {
            order
        } else {
            order.narrow(dim, 0, k)
        };
        (self.ordered(dim, &best), best)
    }

    #[track_caller]
    fn ordered(&self, dim: i64, positions: &Tensor) -> Tensor {
        if self.rank() == 0 {
            self.clone()
        } else {
            self.gather(dim, positions)
        }
    }

    /// Layer norm over the last dims, whose extents are `shape`.
    #[track_caller]
    pub fn layer_norm(
        &self,
        shape: &[i64],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        let call = Call::LayerNorm {
            shape: shape.to_vec(),
            weight: weight.is_some(),
            bias: bias.is_some(),
            eps: Scalar::F(eps),
        };
        let operands: Vec<Operand<'_>> = [Some(self), weight, bias]
            .into_iter()
            .flatten()
            .map(Operand::from)
            .collect();
        apply(call, &operands)
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last dims, whose extents are `shape`.
    #[track_caller]
    pub fn rms_norm(&self, shape: &[i64], weight: Option<&Tensor>, eps: f64) -> Tensor {
        let call = Call::RmsNorm {
            shape: shape.to_vec(),
            weight: weight.is_some(),
            eps: Scalar::F(eps),
        };
        let operands: Vec<Operand<'_>> = [Some(self), weight]
            .into_iter()
            .flatten()
            .map(Operand::from)
            .collect();
        apply(call, &operands)
    }
}

/// Views: no element moves. A `reshape` that strides cannot express copies.
impl Tensor {
    /// Dims in another order.
    #[track_caller]
    pub fn permute(&self, dims: &[i64]) -> Tensor {
        apply(Call::Permute(dims.to_vec()), &[self.into()])
    }

    /// Two dims exchanged.
    #[track_caller]
    pub fn transpose(&self, a: i64, b: i64) -> Tensor {
        apply(Call::Transpose(a, b), &[self.into()])
    }

    /// A matrix transposed; vectors stay.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        match self.rank() {
            0 | 1 => self.clone(),
            2 => self.transpose(0, 1),
            rank => {
                let error = err!(RankMismatch, "t: a tensor with {rank} dims is no matrix")
                    .help("use transpose or permute");
                Tensor::failed(located(error, Location::caller()))
            }
        }
    }

    /// The same elements under another shape; one extent may be -1.
    #[track_caller]
    pub fn reshape(&self, shape: &[i64]) -> Tensor {
        apply(Call::View(shape.to_vec()), &[self.into()])
    }

    /// As [`Self::reshape`].
    #[track_caller]
    pub fn view(&self, shape: &[i64]) -> Tensor {
        self.reshape(shape)
    }

    /// All dims as one.
    #[track_caller]
    pub fn flatten(&self) -> Tensor {
        self.reshape(&[-1])
    }

    /// Dims `first` to `last` as one; extents that change from call to call may be among them.
    #[track_caller]
    pub fn flatten_dims(&self, first: i64, last: i64) -> Tensor {
        apply(Call::Flatten { first, last }, &[self.into()])
    }

    /// A dim as several, whose extents multiply to its own; one may be -1. The other dims may change from call to call.
    #[track_caller]
    pub fn unflatten(&self, dim: i64, shape: &[i64]) -> Tensor {
        let call = Call::Unflatten {
            dim,
            shape: shape.to_vec(),
        };
        apply(call, &[self.into()])
    }

    /// Repeated along new leading dims and dims of extent 1; -1 keeps an extent.
    #[track_caller]
    pub fn expand(&self, shape: &[i64]) -> Tensor {
        apply(Call::Expand(shape.to_vec()), &[self.into()])
    }

    /// A new dim of extent 1.
    #[track_caller]
    pub fn unsqueeze(&self, dim: i64) -> Tensor {
        apply(Call::Unsqueeze(dim), &[self.into()])
    }

    /// A dim of extent 1 removed.
    #[track_caller]
    pub fn squeeze(&self, dim: i64) -> Tensor {
        apply(Call::Squeeze(dim), &[self.into()])
    }

    /// `x[start:end:step]` along a dim, with Python's rules for bounds; `i64::MAX` is the end.
    #[track_caller]
    pub fn slice(&self, dim: i64, start: i64, end: i64, step: i64) -> Tensor {
        let call = Call::Slice {
            dim,
            start,
            end,
            step,
        };
        apply(call, &[self.into()])
    }

    /// `length` positions from `start` along a dim.
    #[track_caller]
    pub fn narrow(&self, dim: i64, start: i64, length: i64) -> Tensor {
        let caller = Location::caller();
        let extent = match self.size(dim) {
            Ok(extent) => extent,
            Err(error) => return Tensor::failed(located(error, caller)),
        };
        let from = if start < 0 { start + extent } else { start };
        if from < 0 || length < 0 || from.checked_add(length).is_none_or(|end| end > extent) {
            let error = err!(
                IndexOutOfRange,
                "narrow: {length} positions from {start} of a dim of extent {extent}"
            );
            return Tensor::failed(located(error, caller));
        }
        self.slice(dim, from, from + length, 1)
    }

    /// One position of a dim, which disappears.
    #[track_caller]
    pub fn select(&self, dim: i64, index: i64) -> Tensor {
        apply(Call::Select { dim, index }, &[self.into()])
    }

    /// Cut along a dim into `count` parts of equal extent, the last one possibly smaller.
    #[track_caller]
    pub fn chunk(&self, count: i64, dim: i64) -> Vec<Tensor> {
        let caller = Location::caller();
        let fail = |error| vec![Tensor::failed(located(error, caller))];
        let extent = match self.size(dim) {
            Ok(extent) => extent,
            Err(error) => return fail(error),
        };
        if count < 1 {
            return fail(err!(InvalidArgument, "chunk: {count} parts"));
        }
        let step = (extent / count + i64::from(extent % count != 0)).max(1);
        let mut parts = Vec::new();
        let mut start = 0;
        while start < extent || parts.is_empty() {
            parts.push(self.slice(dim, start, start.saturating_add(step), 1));
            start = start.saturating_add(step);
        }
        parts
    }
}

#[track_caller]
fn of_list(call: Call, name: &str, tensors: &[&Tensor]) -> Tensor {
    if tensors.is_empty() {
        let error = err!(ArityMismatch, "{name} of no tensors");
        return Tensor::failed(located(error, Location::caller()));
    }
    let operands: Vec<Operand<'_>> = tensors.iter().map(|&t| t.into()).collect();
    apply(call, &operands)
}

/// Joining, indexing, writing into copies.
impl Tensor {
    /// One after another along a dim.
    #[track_caller]
    pub fn cat(tensors: &[&Tensor], dim: i64) -> Tensor {
        of_list(Call::Cat(dim), "cat", tensors)
    }

    /// One after another along a new dim.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], dim: i64) -> Tensor {
        of_list(Call::Stack(dim), "stack", tensors)
    }

    /// `out[i…] = x[i…]` with the coordinate in `dim` taken from `index[i…]`.
    #[track_caller]
    pub fn gather(&self, dim: i64, index: &Tensor) -> Tensor {
        apply(Call::Gather(dim), &[self.into(), index.into()])
    }

    /// The slices along `dim` that the one-dimensional `index` names.
    #[track_caller]
    pub fn index_select(&self, dim: i64, index: &Tensor) -> Tensor {
        apply(Call::IndexSelect(dim), &[self.into(), index.into()])
    }

    /// Rows of `weight` by number.
    #[track_caller]
    pub fn embedding(indices: &Tensor, weight: &Tensor) -> Tensor {
        apply(Call::Embedding, &[weight.into(), indices.into()])
    }

    /// This tensor with the slices along `dim` that the one-dimensional `index` names replaced by those of `src`.
    #[track_caller]
    pub fn index_put(&self, src: &Tensor, dim: i64, index: &Tensor) -> Tensor {
        apply(
            Call::IndexPut(dim),
            &[self.into(), src.into(), index.into()],
        )
    }

    /// This tensor with `x[start:end:step]` of a dim replaced by `src`.
    #[track_caller]
    pub fn slice_scatter(&self, src: &Tensor, dim: i64, start: i64, end: i64, step: i64) -> Tensor {
        let call = Call::SliceScatter {
            dim,
            start,
            end,
            step,
        };
        apply(call, &[self.into(), src.into()])
    }

    /// What writing `src`, broadcast, over all of this tensor leaves.
    #[track_caller]
    pub fn copy<'a>(&self, src: impl Into<Operand<'a>>) -> Tensor {
        apply(Call::Copy, &[self.into(), src.into()])
    }
}

/// Matrix products.
impl Tensor {
    /// Product of vectors, matrices, and batches of them that broadcast.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        apply(Call::Matmul, &[self.into(), other.into()])
    }

    /// Product of two matrices.
    #[track_caller]
    pub fn mm(&self, other: &Tensor) -> Tensor {
        apply(Call::Mm, &[self.into(), other.into()])
    }

    /// Products of two batches of matrices.
    #[track_caller]
    pub fn bmm(&self, other: &Tensor) -> Tensor {
        apply(Call::Bmm, &[self.into(), other.into()])
    }

    /// Product of two matrices of bytes (i8 or u8, not necessarily alike), or of two batches of them, summed in i32, which wraps.
    ///
    /// ```
    /// use oxyfuel::{DType, Tensor};
    /// let a = Tensor::full(&[2, 64], -3, DType::I8);
    /// let b = Tensor::full(&[64, 5], 100, DType::I8);
    /// assert_eq!(a.int_mm(&b).to_vec::<i32>().unwrap(), [-19_200; 10]);
    /// ```
    #[track_caller]
    pub fn int_mm(&self, other: &Tensor) -> Tensor {
        apply(Call::IntMm, &[self.into(), other.into()])
    }

    /// `beta * self + alpha * (a x b)`.
    #[track_caller]
    pub fn addmm(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Tensor {
        let call = Call::Addmm {
            beta: Scalar::F(beta),
            alpha: Scalar::F(alpha),
        };
        apply(call, &[self.into(), a.into(), b.into()])
    }

    /// `x weight^T + bias`.
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let call = Call::Linear {
            bias: bias.is_some(),
        };
        let operands: Vec<Operand<'_>> = [Some(self), Some(weight), bias]
            .into_iter()
            .flatten()
            .map(Operand::from)
            .collect();
        apply(call, &operands)
    }
}
