//! Operators of ours in the host's graph: what rules write there, registered by the host's side as `torch.ops.oxyfuel.*`.
//!
//! | operator | gives |
//! |---|---|
//! | `seed()` | a number of the host's generator, drawn anew by every call |
//! | `uniform`, `normal`, `exponential`, `bernoulli`, `integers` `(seed, stream, ..., size, stride, dtype)` | numbers that follow from the arguments alone |
//!
//! An operator of the host that draws is an effect, so whoever needs its numbers twice must keep them. These two halves part the effect from the numbers: kept is the seed, and
//! the numbers come again where they are needed.

use crate::aten::Build;
use crate::call::Call;
use crate::description::Value;
use oxyfuel_base::{Result, Scalar, err};
use oxyfuel_graph::sample::{Distribution, Stream};

/// The operator that draws a seed.
pub const SEED: &str = "oxyfuel.seed.default";

/// How a call says its distribution, after the seed and the stream.
type Read = fn(&Call<'_>) -> Result<Distribution>;

const DRAWS: &[(&str, Read)] = &[
    ("oxyfuel.uniform.default", |c| {
        let (low, high) = (c.float(2, "low", 0.0)?, c.float(3, "high", 1.0)?);
        Ok(Distribution::Uniform { low, high })
    }),
    ("oxyfuel.normal.default", |c| {
        let (mean, deviation) = (c.float(2, "mean", 0.0)?, c.float(3, "deviation", 1.0)?);
        Ok(Distribution::Normal { mean, deviation })
    }),
    ("oxyfuel.exponential.default", |c| {
        let rate = c.float(2, "rate", 1.0)?;
        Ok(Distribution::Exponential { rate })
    }),
    ("oxyfuel.bernoulli.default", |c| {
        let probability = c.float(2, "probability", 0.5)?;
        Ok(Distribution::Bernoulli { probability })
    }),
    ("oxyfuel.integers.default", |c| {
        let (low, high) = (c.int(2, "low", 0)?, c.int(3, "high", 0)?);
        Ok(Distribution::Integers { low, high })
    }),
];

/// The operator of a distribution, and what it is called with after the seed and the stream. The inverse of reading such a call.
pub(crate) fn call_of(how: Distribution) -> (&'static str, Vec<Value>) {
    let float = |v: f64| Value::Number(Scalar::F(v));
    let int = |v: i64| Value::Number(Scalar::I(v));
    match how {
        Distribution::Uniform { low, high } => {
            ("oxyfuel.uniform.default", vec![float(low), float(high)])
        }
        Distribution::Normal { mean, deviation } => (
            "oxyfuel.normal.default",
            vec![float(mean), float(deviation)],
        ),
        Distribution::Exponential { rate } => ("oxyfuel.exponential.default", vec![float(rate)]),
        Distribution::Bernoulli { probability } => {
            ("oxyfuel.bernoulli.default", vec![float(probability)])
        }
        Distribution::Integers { low, high } => {
            ("oxyfuel.integers.default", vec![int(low), int(high)])
        }
    }
}

/// How an operator of ours is built; none for the seed, which is a call of the host.
pub fn find(target: &str) -> Option<Build> {
    let known = DRAWS.iter().any(|(name, _)| *name == target);
    known.then_some(drawn)
}

fn drawn(c: &mut Call<'_>) -> Result<Vec<oxyfuel_graph::ValueId>> {
    let row = DRAWS.iter().find(|(name, _)| *name == c.target());
    let (_, read) = row.ok_or_else(|| err!(UnsupportedOp, "{} draws nothing", c.target()))?;
    let number = c.int(1, "stream", 0)?;
    let from = Stream {
        seed: c.tensor(0, "seed")?,
        number: u32::try_from(number)
            .map_err(|_| err!(InvalidArgument, "there is no stream {number}"))?,
    };
    let how = read(c)?;
    let ty = c.out(0)?;
    Ok(vec![c.b.sample(from, how, &ty.shape, ty.dtype)?])
}
