//! Values that do not follow from the inputs' elements: random numbers under a seed, constants.

use super::{Choices, number};
use crate::HostTensor;
use crate::builder::Builder;
use crate::ir::{Device, ValueId};
use crate::op::Accepts;
use crate::rules::accepts;
use crate::sample::{Distribution, Stream};
use oxyfuel_base::{DType, Result, Scalar};

/// Random numbers of a shape that is there already.
pub(super) fn sampled(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    pool: &[ValueId],
    x: ValueId,
) -> Result<ValueId> {
    let from = Stream {
        seed: seed(b, choices, pool)?,
        number: choices.below(3) as u32,
    };
    let ty = b.ty(x).clone();
    let is_float = accepts(Accepts::Float, ty.dtype);
    let dtype = if is_float { ty.dtype } else { DType::F32 };
    let how = match choices.below(7) {
        0 => Distribution::Uniform {
            low: 0.0,
            high: 1.0,
        },
        1 => Distribution::Uniform {
            low: -3.0,
            high: 0.5,
        },
        2 => Distribution::Normal {
            mean: 0.5,
            deviation: 2.0,
        },
        3 => Distribution::Exponential { rate: 0.5 },
        4 => Distribution::Integers { low: -5, high: 90 },
        5 if is_float => return b.dropout(from, x, 0.25),
        _ => {
            let how = Distribution::Bernoulli { probability: 0.375 };
            return b.sample(from, how, &ty.shape, DType::Bool);
        }
    };
    b.sample(from, how, &ty.shape, dtype)
}

/// A seed: one of the graph's numbers, or an integer that somebody else computed.
fn seed(b: &mut Builder, choices: &mut Choices<'_>, pool: &[ValueId]) -> Result<ValueId> {
    let is_seed = |v: &ValueId| b.ty(*v).rank() == 0 && b.ty(*v).dtype.is_int();
    let seeds: Vec<ValueId> = pool.iter().copied().filter(is_seed).collect();
    if !seeds.is_empty() && choices.flip() {
        return Ok(choices.pick(&seeds));
    }
    let value = Scalar::I(choices.below(1000) as i64);
    b.full(value, vec![], DType::I64, Device::Cpu)
}

/// A tensor that belongs to the graph.
pub(super) fn constant(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    dtypes: &[DType],
) -> Result<ValueId> {
    let dtype = choices.pick(dtypes);
    let shape: Vec<i64> = (0..choices.below(3))
        .map(|_| [2, 3, 1, 4][choices.below(4)])
        .collect();
    let count: i64 = shape.iter().product();
    let elements: Vec<Scalar> = (0..count).map(|_| number(choices, dtype)).collect();
    let tensor = HostTensor::from_scalars(dtype, &shape, &elements)?;
    b.constant("given", tensor, Device::Cpu)
}
