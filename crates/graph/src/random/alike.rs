//! The same work on tensors of their own, of unlike shapes: an optimiser's step over the parameters of a model, and what stands between such work.

use super::{Choices, Limits};
use crate::builder::Builder;
use crate::ir::{Device, Graph, ValueId};
use crate::op::{Binary, Reduce, Unary};
use oxyfuel_base::{DType, Expr, Result};

/// Ops whose results are exact, so that an element in a wrong place is seen.
const UNARY: [Unary; 4] = [Unary::Neg, Unary::Abs, Unary::Relu, Unary::Sign];
const BINARY: [Binary; 4] = [Binary::Sub, Binary::Add, Binary::Maximum, Binary::Minimum];
/// Sizes of a dim.
const SIZES: [i64; 8] = [8, 40, 1, 3, 96, 257, 33, 0];

/// A tensor, and what its values are lessened by.
#[derive(Clone, Copy)]
struct Set {
    /// Which of the inputs the tensor is.
    input: usize,
    value: ValueId,
    slope: ValueId,
}

/// A random step over several sets of tensors: one chain of ops for all of them; some sets are written in place, some read what another one made, some share an operand.
pub fn alike(choices: &mut Choices<'_>, limits: &Limits) -> Result<Graph> {
    let mut b = Builder::new("alike");
    let dtype = choices.pick(&[DType::F32, DType::BF16, DType::I32]);
    let rate = b.input("rate", dtype, Vec::<Expr>::new(), Device::Cpu)?;
    let mut shape: Vec<Expr> = vec![Expr::from(40)];
    let mut sets: Vec<Set> = Vec::new();
    for i in 0..2 + choices.below(8) {
        // Often as the one before: such sets share their code.
        if choices.below(3) > 0 {
            shape = (0..=choices.below(2))
                .map(|_| Expr::from(choices.pick(&SIZES)))
                .collect();
        }
        let count: Expr = shape.iter().cloned().product();
        if count.as_const().is_none_or(|n| n > limits.elements) {
            shape = vec![Expr::from(8)];
        }
        let value = b.input(&format!("p{i}"), dtype, shape.clone(), Device::Cpu)?;
        let input = b.graph().inputs.len() - 1;
        let before = sets.iter().rev().find(|set| b.ty(set.slope).shape == shape);
        let slope = match before.filter(|_| choices.below(4) == 3) {
            Some(set) => set.slope,
            None => b.input(&format!("g{i}"), dtype, shape.clone(), Device::Cpu)?,
        };
        sets.push(Set {
            input,
            value,
            slope,
        });
    }
    let chain: Vec<usize> = (0..1 + choices.below(4))
        .map(|_| choices.below(12))
        .collect();
    let in_place = choices.flip();
    let by_rows = choices.below(4) == 3;
    let mut last: Option<ValueId> = None;
    for set in sets {
        let mut value = set.value;
        for &op in &chain {
            value = match op {
                0..=3 => b.unary(UNARY[op], value)?,
                4..=7 => b.binary(BINARY[op - 4], value, set.slope)?,
                _ => b.binary(BINARY[op - 8], value, rate)?,
            };
        }
        value = b.binary(Binary::Sub, value, set.slope)?;
        // Some wait for what another one made.
        if let Some(other) = last.filter(|_| choices.below(8) == 7) {
            let all: Vec<i64> = (0..).take(b.ty(other).rank()).collect();
            let most = b.reduce(Reduce::Sum, other, &all, false)?;
            value = b.binary(Binary::Maximum, value, most)?;
        }
        if by_rows && b.ty(value).rank() > 1 {
            let sum = b.reduce(Reduce::Sum, value, &[1], false)?;
            b.output(sum);
        }
        let mutates = in_place && choices.below(4) < 3;
        match mutates && b.ty(value) == b.ty(set.value) {
            true => b.mutate(set.input, value),
            false => b.output(value),
        };
        last = Some(value);
    }
    b.finish()?.compact()
}
