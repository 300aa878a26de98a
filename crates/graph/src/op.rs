//! The vocabulary: every operator of the tensor IR, defined once.
//!
//! Two kinds of tables make up the vocabulary. The *families* ([`Unary`], [`Binary`], [`Compare`], [`Reduce`], [`Scatter`]) hold the operators
//! that differ only by the function they apply; one row there is one operator, and whatever treats the family as a whole needs no
//! change. The *op table* at the end of this file holds the rest, each with its attributes. A row gives name, operands, results,
//! attributes, accepted dtypes, category, effect and one line of meaning; the enum, the text form, the arity check and the
//! documentation all come from it. The rules for result types stand in `rules.rs`, the meaning in `interp/`.
//!
//! Names are those of core ATen. Where ATen tells two functions apart by a string attribute (`gelu` and its `approximate`, `div` and
//! its `rounding_mode`) the family has one variant each and the text keeps the attribute: [`OpInfo::fixed`].
//!
//! Attributes that merely repeat the result's type (`dtype`, `shape`, `device`) stand after a `;` in the row: [`Op`] carries them, so that
//! an op and its operands say everything, while the text shows them once, in the type of the result.

use crate::ir::{ConstId, Device, TensorType};
use oxyfuel_base::{DType, Expr, External, Scalar};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What an operator is, to those who treat whole groups alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// One output element from the elements at the same (broadcast) index.
    Pointwise,
    /// One output element from a row of elements.
    Reduction,
    /// Each output element from those before it along a dimension.
    Scan,
    /// A permutation of the positions along a dimension, from all elements there.
    Sort,
    /// The same elements under another index; never computes.
    View,
    /// Elements picked by values that are themselves data, or concatenated.
    Indexing,
    /// No tensor operand.
    Source,
    /// A matrix product.
    Matmul,
    /// Softmax of a product, times another: matrices that are never whole in memory.
    Attention,
    /// A kernel moved over a tensor: a product with windows that are never whole in memory.
    Convolution,
    /// A known composition with a name of its own (softmax, layer norm, variance).
    Composite,
    /// The whole of a tensor, with some of it replaced.
    Update,
    /// A call of the host's own operator.
    External,
}

/// What an operator may do beside computing its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing: it may be removed, repeated and moved.
    Pure,
    /// It may find its data invalid (an index out of range). It may be removed or repeated like a pure op.
    MayFail,
    /// What its call says: see [`Op::is_ordered`].
    Call,
}

/// The dtypes an operator's value operands may have. Index and condition operands have their own rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accepts {
    /// Every dtype, storage formats (fp8, fp4, e8m0) too.
    Any,
    /// Every dtype arithmetic is defined on: f64, f32, f16, bf16, integers, bool.
    Compute,
    /// Floats and integers.
    Number,
    /// Integers and bool.
    Integral,
    /// Integers.
    Integer,
    /// i8 and u8; operands need not be alike.
    Byte,
    /// f64, f32, f16, bf16.
    Float,
    /// As `Float`; the builder casts integers and bools to the default float first, as PyTorch does.
    IntToFloat,
}

/// The dtype of an operator's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gives {
    /// That of the value operands.
    Same,
    Bool,
    /// Its own rule in `rules.rs`.
    Rule,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// Name in core ATen and in the text.
    pub name: &'static str,
    /// The attribute and value that tell variants of one name apart.
    pub fixed: Option<(&'static str, &'static str)>,
    pub category: Category,
    /// Operand names; `name?` may be left out (only at the end), `name...` stands for one or more, `name...?` for any number.
    pub operands: &'static [&'static str],
    /// Result names.
    pub results: &'static [&'static str],
    pub attrs: &'static [(&'static str, AttrKind)],
    pub accepts: Accepts,
    pub gives: Gives,
    pub effect: Effect,
    pub doc: &'static str,
}

impl OpInfo {
    /// The least and the greatest number of operands.
    pub fn arity(&self) -> (usize, usize) {
        let least = self.operands.iter().filter(|o| !o.ends_with('?')).count();
        let variadic = self.operands.iter().any(|o| o.contains("..."));
        (
            least,
            if variadic {
                usize::MAX
            } else {
                self.operands.len()
            },
        )
    }
}

/// The kind of an attribute, which is also its syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttrKind {
    /// A non-negative integer: a dimension or a count.
    Index,
    /// A signed integer.
    Int,
    Flag,
    /// A list of dimensions.
    Dims,
    /// A symbolic integer.
    Expr,
    /// A number literal of any kind.
    Scalar,
    /// A constant of the graph.
    Const,
    /// A call of the host, as JSON in quotes.
    Call,
}

/// The value of an attribute, untyped: for text and for importers that build ops by name.
#[derive(Clone, Debug, PartialEq)]
pub enum AttrValue {
    Index(usize),
    Int(i64),
    Flag(bool),
    Dims(Vec<usize>),
    Expr(Expr),
    Scalar(Scalar),
    Const(ConstId),
    Call(Arc<External>),
}

/// A Rust type that can be an attribute.
trait Attr: Sized {
    const KIND: AttrKind;
    fn to_value(&self) -> AttrValue;
    fn from_value(value: &AttrValue) -> Option<Self>;
}

macro_rules! attr_types {
    ($($ty:ty => $kind:ident),* $(,)?) => {$(
        impl Attr for $ty {
            const KIND: AttrKind = AttrKind::$kind;
            fn to_value(&self) -> AttrValue {
                AttrValue::$kind(self.clone())
            }
            fn from_value(value: &AttrValue) -> Option<Self> {
                match value {
                    AttrValue::$kind(v) => Some(v.clone()),
                    _ => None,
                }
            }
        }
    )*};
}

attr_types! {
    usize => Index, i64 => Int, bool => Flag, Vec<usize> => Dims, Expr => Expr, Scalar => Scalar, ConstId => Const,
    Arc<External> => Call,
}

/// An attribute that repeats a part of the result's type.
trait OfResult {
    fn of(ty: &TensorType) -> Self;
}

impl OfResult for DType {
    fn of(ty: &TensorType) -> Self {
        ty.dtype
    }
}

impl OfResult for Vec<Expr> {
    fn of(ty: &TensorType) -> Self {
        ty.shape.clone()
    }
}

impl OfResult for Device {
    fn of(ty: &TensorType) -> Self {
        ty.device
    }
}

/// Declares a family: rows of `Variant "name" [attr = "value"] accepts gives "doc"`.
macro_rules! family {
    ($(#[$meta:meta])* $family:ident, $category:ident, $operands:expr, $attrs:expr;
     $($variant:ident $name:literal $([$fixed:ident = $value:literal])? $accepts:ident $gives:ident $doc:literal;)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $family {
            $(#[doc = $doc] $variant,)*
        }

        impl $family {
            pub const ALL: &[$family] = &[$($family::$variant),*];

            const ROWS: &[OpInfo] = &[$(OpInfo {
                name: $name,
                fixed: family!(@fixed $($fixed $value)?),
                category: Category::$category,
                operands: $operands,
                results: &["out"],
                attrs: $attrs,
                accepts: Accepts::$accepts,
                gives: Gives::$gives,
                effect: Effect::Pure,
                doc: $doc,
            }),*];

            pub fn info(self) -> &'static OpInfo {
                &Self::ROWS[self as usize]
            }
        }
    };
    (@fixed) => { None };
    (@fixed $fixed:ident $value:literal) => { Some((stringify!($fixed), $value)) };
}

family! {
    /// Functions of one element.
    Unary, Pointwise, &["x"], &[];
    Neg "neg" Number Same "-x; integers wrap.";
    Abs "abs" Number Same "|x|; the least integer stays itself.";
    Sign "sign" Compute Same "-1, 0 or 1; 0 for NaN.";
    Relu "relu" Number Same "max(x, 0); NaN stays NaN.";
    Gelu "gelu" Float Same "x * (1 + erf(x / sqrt 2)) / 2.";
    GeluTanh "gelu" [approximate = "tanh"] Float Same "x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2.";
    Silu "silu" Float Same "x / (1 + exp(-x)).";
    Sigmoid "sigmoid" IntToFloat Same "1 / (1 + exp(-x)).";
    Tanh "tanh" IntToFloat Same "Hyperbolic tangent.";
    Exp "exp" IntToFloat Same "e to the power x.";
    Exp2 "exp2" IntToFloat Same "2 to the power x.";
    Expm1 "expm1" IntToFloat Same "exp(x) - 1 without cancellation.";
    Log "log" IntToFloat Same "Natural logarithm; NaN below 0, -inf at 0.";
    Log2 "log2" IntToFloat Same "Logarithm to base 2.";
    Log1p "log1p" IntToFloat Same "log(1 + x) without cancellation.";
    Sqrt "sqrt" IntToFloat Same "Correctly rounded square root; NaN below 0.";
    Rsqrt "rsqrt" IntToFloat Same "1 / sqrt(x).";
    Reciprocal "reciprocal" IntToFloat Same "1 / x.";
    Log10 "log10" IntToFloat Same "Logarithm to base 10.";
    Erf "erf" IntToFloat Same "Error function.";
    Erfc "erfc" IntToFloat Same "1 - erf(x) without cancellation.";
    Sin "sin" IntToFloat Same "Sine of radians.";
    Cos "cos" IntToFloat Same "Cosine of radians.";
    Tan "tan" IntToFloat Same "Tangent of radians.";
    Asin "asin" IntToFloat Same "Arc sine; NaN outside [-1, 1].";
    Acos "acos" IntToFloat Same "Arc cosine; NaN outside [-1, 1].";
    Atan "atan" IntToFloat Same "Arc tangent.";
    Sinh "sinh" IntToFloat Same "Hyperbolic sine.";
    Cosh "cosh" IntToFloat Same "Hyperbolic cosine.";
    Asinh "asinh" IntToFloat Same "Inverse of the hyperbolic sine.";
    Acosh "acosh" IntToFloat Same "Inverse of the hyperbolic cosine; NaN below 1.";
    Atanh "atanh" IntToFloat Same "Inverse of the hyperbolic tangent; NaN outside [-1, 1].";
    Floor "floor" Number Same "Greatest integer not above x.";
    Ceil "ceil" Number Same "Least integer not below x.";
    Round "round" Number Same "Nearest integer, ties to even.";
    Trunc "trunc" Number Same "Integer part, towards zero.";
    LogicalNot "logical_not" Compute Bool "True where x is zero.";
    BitwiseNot "bitwise_not" Integral Same "Every bit inverted; logical for bool.";
    IsNan "isnan" Compute Bool "True where x is NaN.";
    IsInf "isinf" Compute Bool "True where x is an infinity.";
}

family! {
    /// Functions of two elements of one dtype.
    Binary, Pointwise, &["a", "b"], &[];
    Add "add" Compute Same "a + b; integers wrap, `or` for bool.";
    Sub "sub" Number Same "a - b; integers wrap.";
    Mul "mul" Compute Same "a * b; integers wrap, `and` for bool.";
    Div "div" IntToFloat Same "a / b.";
    DivFloor "div" [rounding_mode = "floor"] Number Same "Quotient rounded down; 0 for an integer divided by zero.";
    DivTrunc "div" [rounding_mode = "trunc"] Number Same "Quotient rounded towards zero; 0 for an integer divided by zero.";
    Remainder "remainder" Number Same "a - floor(a / b) * b, with the sign of b; 0 for an integer modulo zero.";
    Fmod "fmod" Number Same "a - trunc(a / b) * b, with the sign of a; 0 for an integer modulo zero.";
    Pow "pow" Number Same "a to the power b; integers wrap, a negative exponent gives the truncated quotient.";
    Atan2 "atan2" IntToFloat Same "Angle of the point (b, a), in (-pi, pi]; zeros count with their signs.";
    Maximum "maximum" Compute Same "The larger; NaN if either is NaN.";
    Minimum "minimum" Compute Same "The smaller; NaN if either is NaN.";
    BitwiseAnd "bitwise_and" Integral Same "Bits set in both.";
    BitwiseOr "bitwise_or" Integral Same "Bits set in either.";
    BitwiseXor "bitwise_xor" Integral Same "Bits set in one only.";
    ShiftLeft "bitwise_left_shift" Integer Same "a * 2^b, wrapping; 0 for a count that is negative or at least the width.";
    ShiftRight "bitwise_right_shift" Integer Same "Arithmetic shift; a count that is negative or at least the width leaves the sign alone.";
    Philox "philox" Integer Same "64 random bits (of narrower integers the low ones) for the counter a under the seed b: the first two words of Philox 4x32-10, the first one low.";
}

family! {
    /// Comparisons of two elements of one dtype.
    Compare, Pointwise, &["a", "b"], &[];
    Eq "eq" Compute Bool "a = b; false with NaN.";
    Ne "ne" Compute Bool "a differs from b; true with NaN.";
    Lt "lt" Compute Bool "a < b; false with NaN.";
    Le "le" Compute Bool "a <= b; false with NaN.";
    Gt "gt" Compute Bool "a > b; false with NaN.";
    Ge "ge" Compute Bool "a >= b; false with NaN.";
}

family! {
    /// Reductions over a set of dimensions. An empty list of dimensions reduces nothing: each element is a row of its own.
    Reduce, Reduction, &["x"], &[("dims", AttrKind::Dims), ("keepdim", AttrKind::Flag)];
    Sum "sum" Number Same "Sum; 0 of nothing. Integers wrap.";
    Mean "mean" Float Same "Sum divided by the count; NaN of nothing.";
    Prod "prod" Number Same "Product; 1 of nothing. Integers wrap.";
    Amax "amax" Compute Same "Largest element; NaN if any is NaN. Nothing to reduce is an error.";
    Amin "amin" Compute Same "Smallest element; NaN if any is NaN. Nothing to reduce is an error.";
    Any "any" Compute Bool "True if any element is not zero.";
    All "all" Compute Bool "True if every element is not zero.";
}

family! {
    /// Writes at places that an index says: the element of `src` at i.. goes to x[i..] with the coordinate in `dim` taken from index[i..], and meets what is there. Elements that go to one place
    /// come one after another, as they stand along `dim`.
    Scatter, Update, &["x", "src", "index"], &[("dim", AttrKind::Index)];
    Set "scatter" Any Same "x with src[i..] at x[i..], the coordinate in `dim` taken from index[i..]; of several for one place the last along `dim` stays.";
    Sum "scatter" [reduce = "sum"] Number Same "As `scatter`, but what is written is added to what is there; halves in f32, rounded at the end. Integers wrap.";
    Prod "scatter" [reduce = "prod"] Number Same "As `scatter`, but what is written is multiplied with what is there; halves in f32, rounded at the end. Integers wrap.";
    Amax "scatter" [reduce = "amax"] Compute Same "As `scatter`, but the larger stays; NaN if either is NaN.";
    Amin "scatter" [reduce = "amin"] Compute Same "As `scatter`, but the smaller stays; NaN if either is NaN.";
}

/// Declares the ops outside the families, and with them [`Op`] and all that follows from the table alone.
macro_rules! ops {
    ($($variant:ident $name:literal $({ $($f:ident: $t:ty),* $(; $($r:ident: $rt:ty),*)? })?
       $category:ident [$($operand:literal),*] -> [$($result:literal),*] $accepts:ident $gives:ident $effect:ident $doc:literal;)*) => {
        /// An operator with its attributes. See the module's documentation for how the table is laid out.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Op {
            Unary(Unary),
            Binary(Binary),
            Compare(Compare),
            /// `dims` ascending and distinct. `keepdim` leaves reduced dimensions with size 1 instead of removing them.
            Reduce { op: Reduce, dims: Vec<usize>, keepdim: bool },
            Scatter { op: Scatter, dim: usize },
            $(#[doc = $doc] $variant $({ $($f: $t,)* $($($r: $rt,)*)? })?,)*
        }

        const ROWS: &[OpInfo] = &[$(OpInfo {
            name: $name,
            fixed: None,
            category: Category::$category,
            operands: &[$($operand),*],
            results: &[$($result),*],
            attrs: &[$($((stringify!($f), <$t as Attr>::KIND)),*)?],
            accepts: Accepts::$accepts,
            gives: Gives::$gives,
            effect: Effect::$effect,
            doc: $doc,
        }),*];

        /// Position of each variant in `ROWS`.
        #[derive(Clone, Copy)]
        enum Row { $($variant),* }

        impl Op {
            pub fn info(&self) -> &'static OpInfo {
                match self {
                    Op::Unary(f) => f.info(),
                    Op::Binary(f) => f.info(),
                    Op::Compare(f) => f.info(),
                    Op::Reduce { op, .. } => op.info(),
                    Op::Scatter { op, .. } => op.info(),
                    $(Op::$variant { .. } => &ROWS[Row::$variant as usize],)*
                }
            }

            /// The attributes that the text spells out, in the order of [`OpInfo::attrs`].
            pub fn attrs(&self) -> Vec<AttrValue> {
                match self {
                    Op::Unary(_) | Op::Binary(_) | Op::Compare(_) => vec![],
                    Op::Reduce { op: _, dims, keepdim } => vec![dims.to_value(), keepdim.to_value()],
                    Op::Scatter { op: _, dim } => vec![dim.to_value()],
                    $(Op::$variant $({ $($f,)* $($($r: _,)*)? })? => vec![$($($f.to_value()),*)?],)*
                }
            }

            /// Builds an op from its row, attribute values and result type. `None` if the attributes are not those of the row.
            pub fn from_row(row: &OpInfo, attrs: &[AttrValue], result: &TensorType) -> Option<Op> {
                if attrs.len() != row.attrs.len() {
                    return None;
                }
                let same = |other: &OpInfo| other.name == row.name && other.fixed == row.fixed;
                if let Some(&f) = Unary::ALL.iter().find(|f| same(f.info())) {
                    return Some(Op::Unary(f));
                }
                if let Some(&f) = Binary::ALL.iter().find(|f| same(f.info())) {
                    return Some(Op::Binary(f));
                }
                if let Some(&f) = Compare::ALL.iter().find(|f| same(f.info())) {
                    return Some(Op::Compare(f));
                }
                if let Some(&op) = Reduce::ALL.iter().find(|f| same(f.info())) {
                    return Some(Op::Reduce { op, dims: Attr::from_value(&attrs[0])?, keepdim: Attr::from_value(&attrs[1])? });
                }
                if let Some(&op) = Scatter::ALL.iter().find(|f| same(f.info())) {
                    return Some(Op::Scatter { op, dim: Attr::from_value(&attrs[0])? });
                }
                let mut values = attrs.iter();
                $(if row.name == $name {
                    return Some(Op::$variant $({
                        $($f: Attr::from_value(values.next()?)?,)*
                        $($($r: OfResult::of(result),)*)?
                    })?);
                })*
                let _ = (values.next(), result);
                None
            }
        }
    };
}

ops! {
    Where "where" Pointwise ["condition", "a", "b"] -> ["out"] Any Same Pure
        "a where the (bool) condition holds, else b.";
    Cast "_to_copy" { ; dtype: DType } Pointwise ["x"] -> ["out"] Any Rule Pure
        "The nearest value of another dtype.";
    Clone "clone" Pointwise ["x"] -> ["out"] Any Same Pure
        "The same elements in memory of their own, with the layout the result asks for.";

    View "view" { ; shape: Vec<Expr> } View ["x"] -> ["out"] Any Same Pure
        "The same elements, in row-major order, under another shape. Says nothing about strides.";
    Permute "permute" { dims: Vec<usize> } View ["x"] -> ["out"] Any Same Pure
        "Dimension i of the result is dimension dims[i] of x.";
    Expand "expand" { ; shape: Vec<Expr> } View ["x"] -> ["out"] Any Same Pure
        "x repeated along new leading dimensions and along those of size 1.";
    Slice "slice" { dim: usize, start: Expr, end: Expr, step: i64 } View ["x"] -> ["out"] Any Same Pure
        "Elements start, start + step, ... below end of one dimension; 0 <= start <= end <= size, step >= 1.";

    Cat "cat" { dim: usize } Indexing ["tensors..."] -> ["out"] Any Same Pure
        "The operands one after another along a dimension.";
    Gather "gather" { dim: usize } Indexing ["x", "index"] -> ["out"] Any Same MayFail
        "out[i..] = x[i..] with the coordinate in `dim` taken from index[i..].";
    IndexSelect "index_select" { dim: usize } Indexing ["x", "index"] -> ["out"] Any Same MayFail
        "The slices of x along `dim` that the one-dimensional index names.";
    Embedding "embedding" Indexing ["weight", "indices"] -> ["out"] Any Same MayFail
        "Row indices[i..] of weight at i...";

    Full "full" { value: Scalar; shape: Vec<Expr>, dtype: DType, device: Device } Source [] -> ["out"] Any Rule Pure
        "Every element is the value.";
    ScalarTensor "scalar_tensor" { value: Expr; dtype: DType, device: Device } Source [] -> ["out"] Number Rule Pure
        "A symbolic integer as a tensor without dimensions.";
    Arange "arange" { start: Scalar, step: Scalar; shape: Vec<Expr>, dtype: DType, device: Device } Source [] -> ["out"] Number Rule Pure
        "start + i * step at i, rounded once.";
    Constant "constant" { id: ConstId; device: Device } Source [] -> ["out"] Any Rule Pure
        "A tensor that belongs to the graph.";

    Mm "mm" Matmul ["a", "b"] -> ["out"] Number Same Pure
        "Matrix product [m, k] x [k, n], accumulated wide, rounded once.";
    Bmm "bmm" Matmul ["a", "b"] -> ["out"] Number Same Pure
        "Matrix product of each batch: [b, m, k] x [b, k, n].";
    Addmm "addmm" { beta: Scalar, alpha: Scalar } Matmul ["bias", "a", "b"] -> ["out"] Number Same Pure
        "beta * bias + alpha * (a x b), bias broadcast; rounded once. A beta of 0 ignores the bias, NaN and all.";
    IntMm "_int_mm" Matmul ["a", "b"] -> ["out"] Byte Rule Pure
        "Matrix product of bytes, each operand i8 or u8, in i32, which wraps: [m, k] x [k, n], or of each batch [b, m, k] x [b, k, n].";
    MmPanels "mm_panels" { n: usize } Matmul ["a", "panels", "bias?"] -> ["out"] Float Same Pure
        "a x b + bias, rounded once: a [m, k], and b [k, n] cut into panels [n/w rounded up, k, w] of w columns each; what the last one has beyond column n is not read. The bias is broadcast.";

    Softmax "_softmax" { dim: usize } Composite ["x"] -> ["out"] Float Same Pure
        "exp(x - max) / sum(exp(x - max)) along a dimension, rounded once.";
    LogSoftmax "_log_softmax" { dim: usize } Composite ["x"] -> ["out"] Float Same Pure
        "x - max - log(sum(exp(x - max))) along a dimension, rounded once.";
    NativeLayerNorm "native_layer_norm" { rank: usize, eps: Scalar } Composite ["x", "weight?", "bias?"] -> ["out", "mean", "rstd"] Float Rule Pure
        "(x - mean) * rstd * weight + bias over the last `rank` dimensions; mean and rstd keep them with size 1, at least f32.";
    Sdpa "sdpa" { causal: bool, scale: Scalar } Attention ["q", "k", "v", "mask?"] -> ["out", "lse"] Float Rule Pure
        "Attention: softmax(q k^T scale + mask) v of q [b, h, s, d], k [b, g, l, d] and v [b, g, l, e], where h/g heads of q share one of k and v; rounded once. A mask is [b, h, s, l] \
         with sizes of 1 repeated: of bool it says where to look, of q's dtype it is added; `causal` looks no further than its own position. lse [b, h, s], at least f32, \
         is log(sum(exp(scores))). A row that may look nowhere is 0, its lse -inf.";
    SdpaBackward "sdpa_backward" { causal: bool, scale: Scalar } Attention ["grad", "q", "k", "v", "out", "lse", "mask?"] -> ["dq", "dk", "dv"] Float Rule Pure
        "Gradients of `sdpa` for q, k and v, from that of its result and what it gave: weights are p = exp(scores - lse), then dv = p^T grad and, with ds = p (grad v^T - sum(grad out)) scale, dq = ds k \
         and dk = ds^T q, summed over the heads that share a k and v; each rounded once. Rows that may look nowhere give nothing.";
    Convolution "convolution" { stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, groups: usize } Convolution ["x", "weight"] -> ["out"] Float Rule Pure
        "Sums over windows of x [n, c, size..] weighted by weight [o, c/groups, kernel..], rounded once: kernel position k at output position p reads p stride + k dilation - padding, zero outside of x. \
         Output channels in `groups` groups read a group of input channels each. One to three numbers for stride, padding and dilation: one a dimension.";
    ConvPanels "conv_panels" { kernel: Vec<usize>, stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, groups: usize, n: usize, winograd: bool } Convolution ["x", "panels"] -> ["out"] Float Rule Pure
        "The convolution of lines, images or volumes with channels last, x [b, size.., c] to [b, out.., n], rounded once; its weight [kernel.., c, n] cut into panels [n/w \
         rounded up, kernel positions * c, w] of w columns each, or given as it is, [n, c / groups, kernel..]. In groups, c is the channels of one: each column of a \
         panel has rows for those of its own group. Of a volume, whose groups are one, positions \
         along its first dim stand beside the channels: [kernel lines, kernel columns, kernel planes, c, n]. With `winograd` (3 x 3, stride and dilation 1) the positions are \
         the 16 points of F(2x2, 3x3): the weight is G weight G^T, and each tile of 2 x 2 results A^T (weight * B^T pixels B, summed over channels) A.";
    Argmax "argmax" { dim: usize, keepdim: bool } Composite ["x"] -> ["out"] Number Rule Pure
        "Position (i64) of the first largest element along a dimension; of the first NaN if there is one. Nothing to reduce is an error.";
    Argmin "argmin" { dim: usize, keepdim: bool } Composite ["x"] -> ["out"] Number Rule Pure
        "Position (i64) of the first smallest element along a dimension; of the first NaN if there is one. Nothing to reduce is an error.";
    Cumsum "cumsum" { dim: usize } Scan ["x"] -> ["out"] Number Same Pure
        "Running sum along a dimension, the element itself included. Integers wrap.";
    Cumprod "cumprod" { dim: usize } Scan ["x"] -> ["out"] Number Same Pure
        "Running product along a dimension, the element itself included. Integers wrap.";
    Argsort "argsort" { dim: usize, descending: bool } Sort ["x"] -> ["out"] Number Rule Pure
        "Positions (i64) that put a dimension in order; equal elements keep theirs, -0 equals 0, NaN is above everything.";
    LinearScan "linear_scan" { dim: usize } Scan ["a", "b"] -> ["out"] Float Same Pure
        "out[i] = a[i] * out[i - 1] + b[i] along a dimension, from out[0] = b[0]: the running composition of affine functions.";
    Var "var" { dims: Vec<usize>, correction: Scalar, keepdim: bool } Composite ["x"] -> ["out"] Float Same Pure
        "Sum of squared distances from the mean, divided by max(0, count - correction).";

    SliceScatter "slice_scatter" { dim: usize, start: Expr, end: Expr, step: i64 } Update ["x", "src"] -> ["out"] Any Same Pure
        "x with its slice replaced by src.";
    IndexPut "index_put" { dim: usize } Update ["x", "src", "index"] -> ["out"] Any Same Pure
        "x with the slices along `dim` that the one-dimensional index names replaced by those of src. Where an index occurs twice, each element is that of one of them; which is open.";
    Copy "copy" Update ["x", "src"] -> ["out"] Any Same Pure
        "src broadcast to the shape of x: what a write over the whole of x leaves.";

    External "external" { call: Arc<External> } External ["operands...?"] -> [] Any Rule Call
        "The host's own operator, called as the template says; one result an entry of it.";
}

/// Every row of the vocabulary, families first.
pub fn table() -> impl Iterator<Item = &'static OpInfo> {
    [
        Unary::ROWS,
        Binary::ROWS,
        Compare::ROWS,
        Reduce::ROWS,
        Scatter::ROWS,
        ROWS,
    ]
    .into_iter()
    .flatten()
}

impl Op {
    pub fn name(&self) -> &'static str {
        self.info().name
    }

    /// How many values the op defines.
    pub fn result_count(&self) -> usize {
        match self {
            Op::External { call } => call.results.len(),
            op => op.info().results.len(),
        }
    }

    /// Must neither be removed nor repeated, and keeps its place among its like.
    pub fn is_ordered(&self) -> bool {
        matches!(self, Op::External { call } if call.ordered)
    }

    /// Which operands a matrix product multiplies.
    pub fn product_operands(&self) -> Option<(usize, usize)> {
        let behind_the_bias = usize::from(matches!(self, Self::Addmm { .. }));
        let is_product = self.category() == Category::Matmul;
        is_product.then_some((behind_the_bias, behind_the_bias + 1))
    }

    /// Whether a matrix product may read an operand of one dtype as if it were cast to another: every number is the same in both.
    pub fn product_widens(from: DType, to: DType) -> bool {
        match to {
            DType::F32 => matches!(from, DType::I8 | DType::U8 | DType::BF16 | DType::F16),
            DType::BF16 | DType::F16 => matches!(from, DType::I8 | DType::U8),
            _ => false,
        }
    }

    pub fn category(&self) -> Category {
        self.info().category
    }
}
