//! PyTorch's type promotion.
//!
//! Operands fall into three classes: tensors with dimensions, tensors without, and plain numbers. A class decides the dtype unless a
//! weaker class holds a higher *kind* of number (bool < integer < float); then that one joins. So `i32[4] + 1` is i32, `i32[4] + 1.5` is f32, `f16[4] + f32[]` is
//! f16. A number counts as bool, i64 or the default float.

use super::Builder;
use crate::ir::ValueId;
use oxyfuel_base::{DType, Result, Scalar, dtype::Kind, promote};

/// A tensor of the graph or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    Value(ValueId),
    Number(Scalar),
}

impl From<ValueId> for Operand {
    fn from(value: ValueId) -> Self {
        Operand::Value(value)
    }
}

macro_rules! from_numbers {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Operand {
            fn from(number: $ty) -> Self {
                Operand::Number(Scalar::from(number))
            }
        }
    )*};
}
from_numbers!(f64, f32, i64, i32, bool);

impl From<Scalar> for Operand {
    fn from(number: Scalar) -> Self {
        Operand::Number(number)
    }
}

/// The float that integers become.
pub fn default_float() -> DType {
    DType::F32
}

/// How much an operand's dtype counts; the order is that of strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Dimensioned,
    ZeroDim,
    Number,
}

/// The common dtype of operands given as (dtype, rank), a number having no rank. `None` when there are no operands.
pub fn result_type(
    operands: impl IntoIterator<Item = (DType, Option<usize>)>,
) -> Result<Option<DType>> {
    let mut by_class: [Option<DType>; 3] = [None; 3];
    for (dtype, rank) in operands {
        let class = match rank {
            None => Class::Number,
            Some(0) => Class::ZeroDim,
            Some(_) => Class::Dimensioned,
        };
        let slot = &mut by_class[class as usize];
        *slot = Some(match *slot {
            None => dtype,
            Some(have) => promote(have, dtype)?,
        });
    }
    let [dimensioned, zero_dim, number] = by_class;
    combine(dimensioned, combine(zero_dim, number)?)
}

/// The stronger class's dtype, joined by the weaker's when that is of a higher kind.
fn combine(strong: Option<DType>, weak: Option<DType>) -> Result<Option<DType>> {
    let (Some(s), Some(w)) = (strong, weak) else {
        return Ok(strong.or(weak));
    };
    let joins = match s.kind() {
        Kind::Float => false,
        Kind::Bool => true,
        Kind::Signed | Kind::Unsigned => w.is_float(),
    };
    if joins {
        promote(s, w).map(Some)
    } else {
        Ok(Some(s))
    }
}

fn number_dtype(number: Scalar) -> DType {
    match number {
        Scalar::F(_) => default_float(),
        Scalar::I(_) => DType::I64,
        Scalar::B(_) => DType::Bool,
    }
}

impl Builder {
    /// The dtype PyTorch computes in.
    #[track_caller]
    pub fn common_dtype(&self, operands: &[Operand]) -> Result<DType> {
        let facts = operands.iter().map(|o| match *o {
            Operand::Value(v) => (self.ty(v).dtype, Some(self.ty(v).rank())),
            Operand::Number(n) => (number_dtype(n), None),
        });
        match result_type(facts) {
            Ok(Some(dtype)) => Ok(dtype),
            Err(e) => Err(self.locate(e)),
            Ok(None) => self.fail(oxyfuel_base::Code::ArityMismatch, "no operands".to_owned()),
        }
    }

    /// Operands as values of one dtype: tensors cast, numbers as constants without dimensions.
    #[track_caller]
    pub(super) fn as_values(&mut self, operands: &[Operand], dtype: DType) -> Result<Vec<ValueId>> {
        let device = operands.iter().find_map(|o| match *o {
            Operand::Value(v) => Some(self.ty(v).device),
            Operand::Number(_) => None,
        });
        let Some(device) = device else {
            return self.fail(
                oxyfuel_base::Code::InvalidArgument,
                "at least one operand must be a tensor".to_owned(),
            );
        };
        let mut values = Vec::with_capacity(operands.len());
        for operand in operands {
            values.push(match *operand {
                Operand::Value(v) => self.cast(v, dtype)?,
                Operand::Number(n) => self.full(n, vec![], dtype, device)?,
            });
        }
        Ok(values)
    }
}
