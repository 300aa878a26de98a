//! `+ - * / % & | ^ << >>` and the signs, between tensors (owned or borrowed) and numbers; `+=` and its like, which write.
//!
//! Numbers are `f64` or `i64`: with one type of each kind a literal needs no suffix.

use crate::call::{Call, Operand, apply};
use crate::tensor::Tensor;
use oxyfuel_graph::{Binary, Unary};
use std::borrow::Borrow;
use std::ops;

macro_rules! binary {
    ($($trait:ident $method:ident $f:ident)*) => {$(
        binary!(@pair $trait $method $f, Tensor, Tensor);
        binary!(@pair $trait $method $f, Tensor, &Tensor);
        binary!(@pair $trait $method $f, &Tensor, Tensor);
        binary!(@pair $trait $method $f, &Tensor, &Tensor);
        binary!(@number $trait $method $f, f64 i64);
    )*};
    (@pair $trait:ident $method:ident $f:ident, $a:ty, $b:ty) => {
        impl ops::$trait<$b> for $a {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $b) -> Tensor {
                let (a, b): (&Tensor, &Tensor) = (self.borrow(), other.borrow());
                apply(Call::Binary(Binary::$f), &[a.into(), b.into()])
            }
        }
    };
    (@number $trait:ident $method:ident $f:ident, $($n:ty)*) => {$(
        impl ops::$trait<$n> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $n) -> Tensor {
                apply(Call::Binary(Binary::$f), &[(&self).into(), Operand::from(other)])
            }
        }
        impl ops::$trait<$n> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $n) -> Tensor {
                apply(Call::Binary(Binary::$f), &[self.into(), Operand::from(other)])
            }
        }
        impl ops::$trait<Tensor> for $n {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                apply(Call::Binary(Binary::$f), &[Operand::from(self), (&other).into()])
            }
        }
        impl ops::$trait<&Tensor> for $n {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                apply(Call::Binary(Binary::$f), &[Operand::from(self), other.into()])
            }
        }
    )*};
}

binary! {
    Add add Add
    Sub sub Sub
    Mul mul Mul
    Div div Div
    Rem rem Remainder
    BitAnd bitand BitwiseAnd
    BitOr bitor BitwiseOr
    BitXor bitxor BitwiseXor
    Shl shl ShiftLeft
    Shr shr ShiftRight
}

macro_rules! unary {
    ($($trait:ident $method:ident $f:ident)*) => {$(
        impl ops::$trait for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self) -> Tensor {
                apply(Call::Unary(Unary::$f), &[(&self).into()])
            }
        }
        impl ops::$trait for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self) -> Tensor {
                apply(Call::Unary(Unary::$f), &[self.into()])
            }
        }
    )*};
}

unary! {
    Neg neg Neg
    Not not BitwiseNot
}

macro_rules! assign {
    ($($trait:ident $method:ident $in_place:ident)*) => {$(
        assign!(@one $trait $method $in_place, &Tensor, |other| other);
        assign!(@one $trait $method $in_place, Tensor, |other| &other);
        assign!(@one $trait $method $in_place, f64, |other| other);
        assign!(@one $trait $method $in_place, i64, |other| other);
    )*};
    (@one $trait:ident $method:ident $in_place:ident, $b:ty, |$other:ident| $operand:expr) => {
        #[doc = concat!("[`", stringify!($in_place), "`](Tensor::", stringify!($in_place), "): every view of the same memory sees it. A mistake writes nothing and leaves a failed tensor.")]
        impl ops::$trait<$b> for Tensor {
            #[track_caller]
            fn $method(&mut self, $other: $b) {
                if let Err(error) = self.$in_place($operand) {
                    *self = Tensor::failed(error);
                }
            }
        }
    };
}

assign! {
    AddAssign add_assign add_
    SubAssign sub_assign sub_
    MulAssign mul_assign mul_
    DivAssign div_assign div_
    RemAssign rem_assign remainder_
    BitAndAssign bitand_assign bitwise_and_
    BitOrAssign bitor_assign bitwise_or_
    BitXorAssign bitxor_assign bitwise_xor_
    ShlAssign shl_assign bitwise_left_shift_
    ShrAssign shr_assign bitwise_right_shift_
}
