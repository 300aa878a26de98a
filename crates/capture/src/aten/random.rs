//! Operators that draw random numbers, where the numbers are ours: a function of a seed, of the operator's place among its like, and of the position.
//!
//! The seed is drawn from the host's generator once a call of the graph, so that the host's own way of seeding makes a program repeatable. Which numbers come is open,
//! as it is in the host from version to version; how they are spread is not. An operator that names a generator of its own has no row.

use crate::call::{Call, refuse};
use oxyfuel_base::Result;
use oxyfuel_graph::sample::Distribution;

/// How a call says what it draws: one tensor of independent numbers, spread alike. Operators that draw otherwise are taken apart before they come here.
pub type Draw = fn(&Call<'_>) -> Result<Distribution>;

const ROWS: &[(&str, Draw)] = &[
    ("aten.rand.default", |_| Ok(UNIT)),
    ("aten.rand_like.default", |_| Ok(UNIT)),
    ("aten.randn.default", |_| Ok(NORMAL)),
    ("aten.randn_like.default", |_| Ok(NORMAL)),
    ("aten.randint.default", |c| below(c, 0)),
    ("aten.randint.low", |c| between(c, 0)),
    ("aten.randint_like.default", |c| below(c, 1)),
    ("aten.randint_like.low_dtype", |c| between(c, 1)),
    ("aten.uniform.default", |c| {
        own_generator(c, 3)?;
        let (low, high) = (c.float(1, "from", 0.0)?, c.float(2, "to", 1.0)?);
        Ok(Distribution::Uniform { low, high })
    }),
    ("aten.normal_functional.default", |c| {
        own_generator(c, 3)?;
        let (mean, deviation) = (c.float(1, "mean", 0.0)?, c.float(2, "std", 1.0)?);
        Ok(Distribution::Normal { mean, deviation })
    }),
    ("aten.exponential.default", |c| {
        own_generator(c, 2)?;
        let rate = c.float(1, "lambd", 1.0)?;
        Ok(Distribution::Exponential { rate })
    }),
    ("aten.bernoulli.p", |c| {
        own_generator(c, 2)?;
        let probability = c.float(1, "p", 0.5)?;
        Ok(Distribution::Bernoulli { probability })
    }),
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

fn below(c: &Call<'_>, position: usize) -> Result<Distribution> {
    let high = c.int(position, "high", 0)?;
    Ok(Distribution::Integers { low: 0, high })
}

fn between(c: &Call<'_>, position: usize) -> Result<Distribution> {
    let (low, high) = (c.int(position, "low", 0)?, c.int(position + 1, "high", 0)?);
    Ok(Distribution::Integers { low, high })
}
