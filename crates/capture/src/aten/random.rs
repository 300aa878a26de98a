//! Operators that draw random numbers, where the numbers are ours: a function of a seed, of the operator's place among its like, and of the position.
//!
//! The seed is drawn from the host's generator once a call of the graph, so that the host's own way of seeding makes a program repeatable. Which numbers come is open,
//! as it is in the host from version to version; how they are spread is not. An operator that names a generator of its own has no row.

use crate::call::{Call, refuse};
use oxyfuel_base::{DType, Result, Scalar};
use oxyfuel_graph::sample::{Distribution, Stream};
use oxyfuel_graph::{Device, ValueId};

/// Builds the results of a call from a stream of numbers.
pub type Draw = fn(&mut Call<'_>, Stream) -> Result<Vec<ValueId>>;

const ROWS: &[(&str, Draw)] = &[
    ("aten.rand.default", |c, s| drawn(c, s, UNIT)),
    ("aten.rand_like.default", |c, s| drawn(c, s, UNIT)),
    ("aten.randn.default", |c, s| drawn(c, s, NORMAL)),
    ("aten.randn_like.default", |c, s| drawn(c, s, NORMAL)),
    ("aten.randint.default", |c, s| {
        let high = c.int(0, "high", 0)?;
        drawn(c, s, Distribution::Integers { low: 0, high })
    }),
    ("aten.randint.low", |c, s| integers(c, s, 0)),
    ("aten.randint_like.default", |c, s| {
        let high = c.int(1, "high", 0)?;
        drawn(c, s, Distribution::Integers { low: 0, high })
    }),
    ("aten.randint_like.low_dtype", |c, s| integers(c, s, 1)),
    ("aten.uniform.default", |c, s| {
        own_generator(c, 3)?;
        let (low, high) = (c.float(1, "from", 0.0)?, c.float(2, "to", 1.0)?);
        drawn(c, s, Distribution::Uniform { low, high })
    }),
    ("aten.normal_functional.default", |c, s| {
        own_generator(c, 3)?;
        let (mean, deviation) = (c.float(1, "mean", 0.0)?, c.float(2, "std", 1.0)?);
        drawn(c, s, Distribution::Normal { mean, deviation })
    }),
    ("aten.exponential.default", |c, s| {
        own_generator(c, 2)?;
        let rate = c.float(1, "lambd", 1.0)?;
        drawn(c, s, Distribution::Exponential { rate })
    }),
    ("aten.bernoulli.default", |c, s| {
        own_generator(c, 1)?;
        let p = c.tensor(0, "self")?;
        Ok(vec![c.b.bernoulli(s, p)?])
    }),
    ("aten.bernoulli.p", |c, s| {
        own_generator(c, 2)?;
        let probability = c.float(1, "p", 0.5)?;
        drawn(c, s, Distribution::Bernoulli { probability })
    }),
    ("aten.native_dropout.default", dropout),
];

const UNIT: Distribution = Distribution::Uniform {
    low: 0.0,
    high: 1.0,
};
const NORMAL: Distribution = Distribution::Normal {
    mean: 0.0,
    deviation: 1.0,
};

/// The row of a target.
pub fn find(target: &str) -> Option<Draw> {
    let row = ROWS.iter().find(|(name, _)| *name == target);
    row.map(|(_, draw)| *draw)
}

/// A generator that the program made itself is asked, not passed by.
fn own_generator(c: &Call<'_>, position: usize) -> Result<()> {
    match c.arg(position, "generator") {
        crate::description::Value::None => Ok(()),
        _ => refuse("draws from a generator of the program's own"),
    }
}

/// Numbers of the shape and dtype that the host says.
fn drawn(c: &mut Call<'_>, from: Stream, how: Distribution) -> Result<Vec<ValueId>> {
    let ty = c.out(0)?;
    Ok(vec![c.b.sample(from, how, &ty.shape, ty.dtype)?])
}

fn integers(c: &mut Call<'_>, from: Stream, first: usize) -> Result<Vec<ValueId>> {
    let (low, high) = (c.int(first, "low", 0)?, c.int(first + 1, "high", 0)?);
    drawn(c, from, Distribution::Integers { low, high })
}

/// The tensor with elements dropped, and which ones were kept.
fn dropout(c: &mut Call<'_>, from: Stream) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "input")?;
    let p = c.float(1, "p", 0.5)?;
    let ty = c.b.ty(x).clone();
    if !c.flag(2, "train", true)? {
        let all =
            c.b.full(Scalar::B(true), ty.shape, DType::Bool, Device::Cpu)?;
        return Ok(vec![x, all]);
    }
    let dropped = Distribution::Bernoulli { probability: p };
    let dropped = c.b.sample(from, dropped, &ty.shape, DType::Bool)?;
    let kept = c.b.unary(oxyfuel_graph::Unary::LogicalNot, dropped)?;
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    let grown = c.b.mul(x, scale)?;
    let y = c.b.where_(kept, grown, 0.0)?;
    Ok(vec![y, kept])
}
