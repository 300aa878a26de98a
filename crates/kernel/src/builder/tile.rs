//! Tile handles and their operators.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};
use std::panic::Location as Caller;

use oxyfuel_base::{DType, Scalar, err};

use super::KernelBuilder;
use crate::ir::{
    ArgOp, BinaryOp, CompareOp, Op, ReduceOp, TileLayout, TileType, Type, UnaryOp, Val,
};

/// A tile of the program under construction. Cloning copies the handle, not the tile.
#[derive(Clone, Debug)]
pub struct Tile {
    builder: KernelBuilder,
    val: Val,
}

/// What may stand beside a tile: another tile, or a literal, which takes the tile's dtype.
pub trait Operand {
    /// The operand as a tile: a literal becomes a scalar of `dtype`.
    fn tile_of(self, k: &KernelBuilder, dtype: DType, caller: &Caller<'_>) -> Tile;

    /// The dtype, where it is a tile.
    fn known_dtype(&self) -> Option<DType>;
}

impl Operand for Tile {
    fn tile_of(self, k: &KernelBuilder, dtype: DType, caller: &Caller<'_>) -> Tile {
        (&self).tile_of(k, dtype, caller)
    }

    fn known_dtype(&self) -> Option<DType> {
        Some(self.dtype())
    }
}

impl Operand for &Tile {
    fn tile_of(self, k: &KernelBuilder, _: DType, caller: &Caller<'_>) -> Tile {
        if !self.builder.same_program(k) {
            k.error(err!(TraceLeak, "a tile of another kernel"), caller);
            return k.literal(self.dtype(), Scalar::I(0), caller);
        }
        self.clone()
    }

    fn known_dtype(&self) -> Option<DType> {
        Some(self.dtype())
    }
}

macro_rules! literal_operands {
    ($($ty:ty)*) => {$(
        impl Operand for $ty {
            fn tile_of(self, k: &KernelBuilder, dtype: DType, caller: &Caller<'_>) -> Tile {
                let value = Scalar::from(self);
                let fits = match value {
                    Scalar::F(_) => dtype.is_float(),
                    Scalar::I(_) => !dtype.is_bool(),
                    Scalar::B(_) => dtype.is_bool(),
                };
                if !fits {
                    k.error(err!(DTypeMismatch, "the literal {value} beside a tile of {dtype}"), caller);
                }
                k.literal(dtype, value, caller)
            }

            fn known_dtype(&self) -> Option<DType> {
                None
            }
        }
    )*};
}

literal_operands!(f64 f32 i64 i32 bool);

impl Tile {
    pub(crate) fn new(builder: KernelBuilder, val: Val) -> Self {
        Self { builder, val }
    }

    pub fn val(&self) -> Val {
        self.val
    }

    pub fn builder(&self) -> &KernelBuilder {
        &self.builder
    }

    pub(crate) fn ty(&self) -> Type {
        self.builder
            .with_program(|p| p.ty(self.val).cloned().unwrap_or(Type::scalar(DType::F32)))
    }

    fn tile_type(&self) -> TileType {
        self.builder.with_program(|p| {
            p.tile(self.val).cloned().unwrap_or(TileType {
                dtype: DType::F32,
                shape: Vec::new(),
            })
        })
    }

    pub fn dtype(&self) -> DType {
        self.tile_type().dtype
    }

    pub fn shape(&self) -> Vec<i64> {
        self.tile_type().shape
    }

    pub(crate) fn type_text(&self) -> String {
        self.tile_type().to_string()
    }

    /// Gives the tile a name for people who read the program.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.builder.set_name(self.val, name);
        self
    }

    /// Says where the elements live (mapped form).
    #[must_use]
    pub fn with_layout(self, layout: TileLayout) -> Self {
        self.builder.set_layout(self.val, layout);
        self
    }

    pub fn layout(&self) -> Option<TileLayout> {
        self.builder
            .with_program(|p| p.values.get(self.val).and_then(|data| data.layout.clone()))
    }

    // ---- shapes -----------------------------------------------------------------------------------------------------------------

    /// Repeats dims of extent 1, and adds leading dims, until the shape is `shape`.
    #[track_caller]
    #[must_use]
    pub fn broadcast_to(&self, shape: impl AsRef<[i64]>) -> Self {
        self.broadcast_at(shape.as_ref(), Caller::caller())
    }

    pub(crate) fn broadcast_at(&self, shape: &[i64], caller: &Caller<'_>) -> Self {
        let own = self.shape();
        if own == shape {
            return self.clone();
        }
        if own.is_empty() {
            return self.builder.splat_to(self, shape, caller);
        }
        let mut tile = self.clone();
        if own.len() < shape.len() {
            let mut padded = vec![1; shape.len() - own.len()];
            padded.extend(&own);
            tile = tile.reshape_at(&padded, caller);
        }
        if tile.shape() == shape {
            return tile;
        }
        self.builder.emit_one(
            Op::Broadcast { value: tile.val },
            Some(Type::tile(self.dtype(), shape)),
            caller,
        )
    }

    /// The same elements in row-major order under another shape.
    #[track_caller]
    #[must_use]
    pub fn reshape(&self, shape: impl AsRef<[i64]>) -> Self {
        self.reshape_at(shape.as_ref(), Caller::caller())
    }

    fn reshape_at(&self, shape: &[i64], caller: &Caller<'_>) -> Self {
        self.builder.emit_one(
            Op::Reshape { value: self.val },
            Some(Type::tile(self.dtype(), shape)),
            caller,
        )
    }

    /// Dim `d` of the result is dim `perm[d]`.
    #[track_caller]
    #[must_use]
    pub fn permute(&self, perm: impl AsRef<[u8]>) -> Self {
        self.builder.emit_one(
            Op::Permute {
                value: self.val,
                perm: perm.as_ref().to_vec(),
            },
            None,
            Caller::caller(),
        )
    }

    /// The same tile under another layout (mapped form).
    #[track_caller]
    #[must_use]
    pub fn convert_layout(&self, layout: TileLayout) -> Self {
        self.builder
            .emit_one(
                Op::ConvertLayout { value: self.val },
                None,
                Caller::caller(),
            )
            .with_layout(layout)
    }

    // ---- elementwise ------------------------------------------------------------------------------------------------------------

    /// Both operands in their common shape and the literal in the tile's dtype.
    fn beside(&self, other: impl Operand, caller: &Caller<'_>) -> (Self, Self) {
        let other = other.tile_of(&self.builder, self.dtype(), caller);
        let shape = self.common_shape(&other, caller);
        let (a, b) = (
            self.broadcast_at(&shape, caller),
            other.broadcast_at(&shape, caller),
        );
        (a.laid_like(&b), b.laid_like(&a))
    }

    /// In the mapped form, a tile without a layout takes that of a neighbour of the same shape.
    fn laid_like(&self, other: &Self) -> Self {
        match other.layout() {
            Some(layout) if self.layout().is_none() && self.shape() == other.shape() => {
                self.clone().with_layout(layout)
            }
            Some(_) | None => self.clone(),
        }
    }

    fn common_shape(&self, other: &Self, caller: &Caller<'_>) -> Vec<i64> {
        let (a, b) = (self.shape(), other.shape());
        let rank = a.len().max(b.len());
        let dim =
            |shape: &[i64], d: usize| (d + shape.len()).checked_sub(rank).map_or(1, |d| shape[d]);
        let mut shape = Vec::with_capacity(rank);
        for d in 0..rank {
            let (x, y) = (dim(&a, d), dim(&b, d));
            if x != y && x != 1 && y != 1 {
                self.builder.error(
                    err!(
                        ShapeMismatch,
                        "{} and {} do not broadcast",
                        self.type_text(),
                        other.type_text()
                    ),
                    caller,
                );
                return a;
            }
            shape.push(if x == 1 { y } else { x });
        }
        shape
    }

    pub(crate) fn unary_at(&self, op: UnaryOp, caller: &Caller<'_>) -> Self {
        self.builder.emit_one(
            Op::Unary {
                op,
                value: self.val,
            },
            None,
            caller,
        )
    }

    pub(crate) fn binary_at(&self, op: BinaryOp, other: impl Operand, caller: &Caller<'_>) -> Self {
        let (a, b) = self.beside(other, caller);
        self.builder.emit_one(
            Op::Binary {
                op,
                lhs: a.val,
                rhs: b.val,
            },
            None,
            caller,
        )
    }

    /// Any op of one operand.
    #[track_caller]
    #[must_use]
    pub fn unary(&self, op: UnaryOp) -> Self {
        self.unary_at(op, Caller::caller())
    }

    /// Any op of two operands.
    #[track_caller]
    #[must_use]
    pub fn binary(&self, op: BinaryOp, other: impl Operand) -> Self {
        self.binary_at(op, other, Caller::caller())
    }

    /// Any comparison.
    #[track_caller]
    #[must_use]
    pub fn compare(&self, op: CompareOp, other: impl Operand) -> Self {
        let caller = Caller::caller();
        let (a, b) = self.beside(other, caller);
        self.builder.emit_one(
            Op::Compare {
                op,
                lhs: a.val,
                rhs: b.val,
            },
            None,
            caller,
        )
    }

    /// `self ? on_true : on_false`, element by element; at least one of the two is a tile.
    #[track_caller]
    #[must_use]
    pub fn select(&self, on_true: impl Operand, on_false: impl Operand) -> Self {
        let caller = Caller::caller();
        let Some(dtype) = on_true.known_dtype().or(on_false.known_dtype()) else {
            self.builder.error(
                err!(
                    DTypeMismatch,
                    "select between two literals: make one a tile with `constant`"
                ),
                caller,
            );
            return self.clone();
        };
        let (yes, no) = (
            on_true.tile_of(&self.builder, dtype, caller),
            on_false.tile_of(&self.builder, dtype, caller),
        );
        let (yes, no) = yes.beside(no, caller);
        let shape = self.common_shape(&yes, caller);
        let [cond, yes, no] = [self, &yes, &no].map(|t| t.broadcast_at(&shape, caller));
        let (yes, no) = (
            yes.laid_like(&no).laid_like(&cond),
            no.laid_like(&yes).laid_like(&cond),
        );
        let cond = cond.laid_like(&yes);
        self.builder.emit_one(
            Op::Select {
                cond: cond.val,
                on_true: yes.val,
                on_false: no.val,
            },
            Some(yes.ty()),
            caller,
        )
    }

    /// `self * b + c`, rounded once.
    #[track_caller]
    #[must_use]
    pub fn fma(&self, b: impl Operand, c: impl Operand) -> Self {
        let caller = Caller::caller();
        let c = c.tile_of(&self.builder, self.dtype(), caller);
        let (a, b) = self.beside(b, caller);
        let (a, c) = a.beside(c, caller);
        let b = b.broadcast_at(&a.shape(), caller).laid_like(&a);
        self.builder.emit_one(
            Op::Fma {
                a: a.val,
                b: b.val,
                c: c.val,
            },
            None,
            caller,
        )
    }

    /// Converts to another dtype.
    #[track_caller]
    #[must_use]
    pub fn cast(&self, dtype: DType) -> Self {
        if dtype == self.dtype() {
            return self.clone();
        }
        self.builder.emit_one(
            Op::Cast { value: self.val },
            Some(Type::tile(dtype, &self.shape())),
            Caller::caller(),
        )
    }

    /// The same bits as another dtype of equal width.
    #[track_caller]
    #[must_use]
    pub fn bitcast(&self, dtype: DType) -> Self {
        if dtype == self.dtype() {
            return self.clone();
        }
        self.builder.emit_one(
            Op::Bitcast { value: self.val },
            Some(Type::tile(dtype, &self.shape())),
            Caller::caller(),
        )
    }

    // ---- across elements --------------------------------------------------------------------------------------------------------

    /// Combines along `axes`, which keep extent 1.
    #[track_caller]
    #[must_use]
    pub fn reduce(&self, op: ReduceOp, axes: impl AsRef<[u8]>) -> Self {
        let mut axes = axes.as_ref().to_vec();
        axes.sort_unstable();
        let mut shape = self.shape();
        for &axis in &axes {
            if let Some(extent) = shape.get_mut(usize::from(axis)) {
                *extent = 1;
            }
        }
        self.builder.emit_one(
            Op::Reduce {
                op,
                value: self.val,
                axes,
            },
            Some(Type::tile(self.dtype(), &shape)),
            Caller::caller(),
        )
    }

    /// Position of the first extreme along `axis`.
    #[track_caller]
    #[must_use]
    pub fn arg_reduce(&self, op: ArgOp, axis: u8, dtype: DType) -> Self {
        let mut shape = self.shape();
        if let Some(extent) = shape.get_mut(usize::from(axis)) {
            *extent = 1;
        }
        self.builder.emit_one(
            Op::ArgReduce {
                op,
                value: self.val,
                axis,
            },
            Some(Type::tile(dtype, &shape)),
            Caller::caller(),
        )
    }

    /// Running combination along `axis`.
    #[track_caller]
    #[must_use]
    pub fn scan(&self, op: ReduceOp, axis: u8, reverse: bool) -> Self {
        self.builder.emit_one(
            Op::Scan {
                op,
                value: self.val,
                axis,
                reverse,
            },
            None,
            Caller::caller(),
        )
    }

    /// Sorts along `axis`, and tells where each element came from.
    #[track_caller]
    #[must_use]
    pub fn sort(&self, axis: u8, descending: bool, positions: DType) -> (Self, Self) {
        let claimed = [self.ty(), Type::tile(positions, &self.shape())];
        let results = self.builder.emit(
            Op::Sort {
                value: self.val,
                axis,
                descending,
            },
            &claimed,
            Caller::caller(),
        );
        match results[..] {
            [sorted, positions] => (self.builder.tile(sorted), self.builder.tile(positions)),
            _ => (self.clone(), self.clone()),
        }
    }

    /// The `count` largest along `axis` would be the head of a descending [`sort`](Self::sort); sums, extremes and the like by name:
    #[track_caller]
    #[must_use]
    pub fn sum(&self, axis: u8) -> Self {
        self.reduce(ReduceOp::Sum, [axis])
    }

    #[track_caller]
    #[must_use]
    pub fn prod(&self, axis: u8) -> Self {
        self.reduce(ReduceOp::Prod, [axis])
    }

    #[track_caller]
    #[must_use]
    pub fn max(&self, axis: u8) -> Self {
        self.reduce(ReduceOp::Max, [axis])
    }

    #[track_caller]
    #[must_use]
    pub fn min(&self, axis: u8) -> Self {
        self.reduce(ReduceOp::Min, [axis])
    }

    #[track_caller]
    #[must_use]
    pub fn any(&self, axis: u8) -> Self {
        self.reduce(ReduceOp::Any, [axis])
    }

    #[track_caller]
    #[must_use]
    pub fn all(&self, axis: u8) -> Self {
        self.reduce(ReduceOp::All, [axis])
    }
}

macro_rules! unary_methods {
    ($($method:ident $op:ident;)*) => {
        impl Tile {$(
            #[track_caller]
            #[must_use]
            pub fn $method(&self) -> Self {
                self.unary_at(UnaryOp::$op, Caller::caller())
            }
        )*}
    };
}

unary_methods! {
    abs Abs; sqrt Sqrt; rsqrt Rsqrt; recip Recip; near_recip NearRecip; floor Floor; ceil Ceil; trunc Trunc; round Round;
    exp Exp; exp2 Exp2; near_exp2 NearExp2; expm1 Expm1; log Log; log2 Log2; log1p Log1p; sin Sin; cos Cos; tanh Tanh; atan Atan; erf Erf; erfc Erfc; sigmoid Sigmoid; isnan IsNan;
}

macro_rules! binary_methods {
    ($($method:ident $op:ident;)*) => {
        impl Tile {$(
            #[track_caller]
            #[must_use]
            pub fn $method(&self, other: impl Operand) -> Self {
                self.binary_at(BinaryOp::$op, other, Caller::caller())
            }
        )*}
    };
}

binary_methods! { minimum Min; maximum Max; pow Pow; floordiv FloorDiv; modulo Mod; }

macro_rules! compare_methods {
    ($($method:ident $op:ident;)*) => {
        impl Tile {$(
            #[track_caller]
            #[must_use]
            pub fn $method(&self, other: impl Operand) -> Self {
                self.compare(CompareOp::$op, other)
            }
        )*}
    };
}

compare_methods! { eq Eq; ne Ne; lt Lt; le Le; gt Gt; ge Ge; }

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<R: Operand> $trait<R> for Tile {
            type Output = Tile;

            #[track_caller]
            fn $method(self, other: R) -> Tile {
                self.binary_at(BinaryOp::$op, other, Caller::caller())
            }
        }

        impl<R: Operand> $trait<R> for &Tile {
            type Output = Tile;

            #[track_caller]
            fn $method(self, other: R) -> Tile {
                self.binary_at(BinaryOp::$op, other, Caller::caller())
            }
        }

        operators!(@left $trait $method $op f64 f32 i64 i32);
    )*};
    (@left $trait:ident $method:ident $op:ident $($literal:ty)*) => {$(
        impl $trait<Tile> for $literal {
            type Output = Tile;

            #[track_caller]
            fn $method(self, other: Tile) -> Tile {
                $trait::$method(self, &other)
            }
        }

        impl $trait<&Tile> for $literal {
            type Output = Tile;

            #[track_caller]
            fn $method(self, other: &Tile) -> Tile {
                let caller = Caller::caller();
                self.tile_of(&other.builder, other.dtype(), caller).binary_at(BinaryOp::$op, other, caller)
            }
        }
    )*};
}

operators! {
    Add add Add; Sub sub Sub; Mul mul Mul; Div div Div; Rem rem Rem;
    BitAnd bitand And; BitOr bitor Or; BitXor bitxor Xor; Shl shl Shl; Shr shr Shr;
}

impl Neg for Tile {
    type Output = Tile;

    #[track_caller]
    fn neg(self) -> Tile {
        self.unary_at(UnaryOp::Neg, Caller::caller())
    }
}

impl Neg for &Tile {
    type Output = Tile;

    #[track_caller]
    fn neg(self) -> Tile {
        self.unary_at(UnaryOp::Neg, Caller::caller())
    }
}

impl Not for Tile {
    type Output = Tile;

    #[track_caller]
    fn not(self) -> Tile {
        self.unary_at(UnaryOp::Not, Caller::caller())
    }
}

impl Not for &Tile {
    type Output = Tile;

    #[track_caller]
    fn not(self) -> Tile {
        self.unary_at(UnaryOp::Not, Caller::caller())
    }
}
