//! Random programs of concatenations: parts of every kind, within each other, before and behind elementwise work, and writes into slices of one number.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::builder::Builder;
use oxyfuel_graph::random::Choices;
use oxyfuel_graph::{Binary, Device, Graph, Reduce, Unary, ValueId};

/// Ops whose results are exact, so that an element in a wrong place is seen.
const UNARY: [Unary; 3] = [Unary::Neg, Unary::Relu, Unary::Abs];
const BINARY: [Binary; 4] = [Binary::Add, Binary::Mul, Binary::Maximum, Binary::Sub];
/// The most elements of a value.
const ELEMENTS: i64 = 60_000;

/// A random program; its symbol, if it has one, is the first size of every input.
pub fn program(choices: &mut Choices<'_>, symbol: bool) -> Result<Graph> {
    let mut b = Builder::new("cats");
    let dtype = [DType::F32, DType::BF16, DType::I32][choices.below(3)];
    let first = if symbol {
        b.symbol("a", 0, 520)
    } else {
        Expr::from([3, 1, 20][choices.below(3)])
    };
    let inner = [2, 6, 17, 34];
    let shape = vec![
        first,
        Expr::from(inner[choices.below(4)]),
        Expr::from(inner[choices.below(4)]),
    ];
    let mut pool = Vec::new();
    for i in 0..3 {
        let mut shape = shape.clone();
        if choices.flip() {
            shape[1 + choices.below(2)] = Expr::from(inner[choices.below(4)]);
        }
        pool.push(b.input(&format!("x{i}"), dtype, shape, Device::Cpu)?);
    }
    for _ in 0..4 + choices.below(12) {
        // A step that does not fit leaves no trace.
        let mut trial = b.clone();
        let Ok(value) = step(&mut trial, choices, &pool) else {
            continue;
        };
        let ranges = trial.graph().ranges();
        if trial.ty(value).numel().bounds(&ranges).hi <= ELEMENTS && trial.ty(value).rank() <= 4 {
            b = trial;
            pool.push(value);
        }
    }
    b.output(pool[pool.len() - 1]);
    for _ in 0..choices.below(3) {
        b.output(pool[choices.below(pool.len())]);
    }
    b.finish()?.compact()
}

/// One of the values, a late one more often.
fn pick(choices: &mut Choices<'_>, pool: &[ValueId]) -> ValueId {
    let most = if choices.flip() { 4 } else { pool.len() };
    let back = choices.below(most);
    pool[pool.len() - 1 - back.min(pool.len() - 1)]
}

/// A value, or work on it that nobody else reads.
fn part(b: &mut Builder, choices: &mut Choices<'_>, x: ValueId) -> Result<ValueId> {
    match choices.below(4) {
        0 => Ok(x),
        1 => {
            let y = b.unary(UNARY[choices.below(3)], x)?;
            b.binary(BINARY[choices.below(4)], y, 3)
        }
        _ => b.unary(UNARY[choices.below(3)], x),
    }
}

fn step(b: &mut Builder, choices: &mut Choices<'_>, pool: &[ValueId]) -> Result<ValueId> {
    let x = pick(choices, pool);
    let rank = b.ty(x).rank();
    let dim = choices.below(rank.max(1));
    let at = dim as i64;
    match choices.below(12) {
        0 => b.unary(UNARY[choices.below(3)], x),
        1 => {
            let y = pick(choices, pool);
            b.binary(BINARY[choices.below(4)], x, y)
        }
        2..=4 => {
            let mut parts = Vec::new();
            for _ in 0..2 + choices.below(3) {
                let other = if choices.flip() {
                    x
                } else {
                    pick(choices, pool)
                };
                parts.push(part(b, choices, other)?);
            }
            b.cat(&parts, at)
        }
        5 => {
            let start = choices.below(3) as i64;
            let end = start + 1 + choices.below(6) as i64;
            b.slice(x, at, start, end, 1 + choices.below(2) as i64)
        }
        6 => {
            let mut dims: Vec<i64> = (0..rank as i64).collect();
            dims.rotate_left(choices.below(rank.max(1)));
            let y = part(b, choices, x)?;
            b.permute(y, &dims)
        }
        7 => {
            let parts = (0..2).map(|_| {
                let y = part(b, choices, x)?;
                b.unsqueeze(y, at)
            });
            let parts = parts.collect::<Result<Vec<_>>>()?;
            b.cat(&parts, at)
        }
        8 | 9 => {
            let ty = b.ty(x).clone();
            let mut shape = ty.shape.clone();
            let (before, after) = (choices.below(4) as i64, choices.below(4) as i64);
            let extent = shape[dim].clone();
            shape[dim] = &extent + before + after;
            let mut y = b.full(1, shape, ty.dtype, Device::Cpu)?;
            for _ in 0..1 + choices.below(2) {
                let src = part(b, choices, x)?;
                let start = choices.below((before + after + 1) as usize) as i64;
                y = b.slice_scatter(y, src, at, start, &extent + start, 1)?;
            }
            part(b, choices, y)
        }
        10 => b.reduce(Reduce::Amax, x, &[at], true),
        _ => {
            // The halves change places.
            let extent = b.ty(x).shape[dim].as_const().unwrap_or(0);
            let half = extent / 2;
            let (low, high) = (
                b.slice(x, at, 0, half, 1)?,
                b.slice(x, at, half, extent, 1)?,
            );
            let high = part(b, choices, high)?;
            let turned = b.cat(&[high, low], at)?;
            let y = pick(choices, pool);
            let worked = b.binary(BINARY[choices.below(4)], turned, y)?;
            let z = part(b, choices, x)?;
            b.binary(BINARY[choices.below(4)], worked, z)
        }
    }
}
