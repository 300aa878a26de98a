//! Random numbers of a distribution, by counting.
//!
//! ```text
//!   seed (a tensor) ─┐
//!   position ────────┴─ philox ─▶ 64 bits ─▶ uniform ─▶ normal, exponential, bernoulli, randint
//! ```
//!
//! An element is a function of the seed, the stream and its position in row-major order: the same on every target, for any number of threads, fused or not, and
//! when it is computed a second time. A [`Stream`] sets apart draws that share a seed.

use crate::builder::{Builder, Operand};
use crate::ir::{Device, ValueId};
use crate::op::Op;
use crate::special::Formula;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure};
use std::f64::consts::TAU;

/// Where numbers come from.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// An integer without dimensions.
    pub seed: ValueId,
    /// Draws under one seed that shall differ have different numbers, below 2^23.
    pub number: u32,
}

/// How numbers are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Floats in [low, high).
    Uniform {
        low: f64,
        high: f64,
    },
    Normal {
        mean: f64,
        deviation: f64,
    },
    /// Density rate * exp(-rate x).
    Exponential {
        rate: f64,
    },
    /// 1 with this probability, else 0.
    Bernoulli {
        probability: f64,
    },
    /// Integers in [low, high).
    Integers {
        low: i64,
        high: i64,
    },
}

/// Positions that a stream has.
const POSITIONS: i64 = 1 << 40;

/// How many bits a uniform number of a dtype has: each is exact, and none is rounded up to 1.
fn digits(dtype: DType) -> i64 {
    match dtype {
        DType::F64 => 53,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

impl Builder {
    /// A tensor of random numbers.
    #[track_caller]
    pub fn sample(
        &mut self,
        from: Stream,
        how: Distribution,
        shape: &[Expr],
        dtype: DType,
    ) -> Result<ValueId> {
        check(how)?;
        let integer = dtype.is_int() || dtype.is_bool();
        let fits = match how {
            Distribution::Uniform { .. }
            | Distribution::Normal { .. }
            | Distribution::Exponential { .. } => dtype.is_float() && !dtype.is_narrow_float(),
            Distribution::Bernoulli { .. } | Distribution::Integers { .. } => {
                integer || !dtype.is_narrow_float()
            }
        };
        ensure!(
            fits,
            UnsupportedDType,
            "random numbers of the kind {how:?} cannot be {dtype}"
        );
        let bits = self.random_bits(from, shape)?;
        let device = self.ty(from.seed).device;
        let wide = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let y = match how {
            Distribution::Uniform { low, high } => {
                let u = unit(self, bits, 0, digits(dtype), wide)?;
                let f = &mut formula(self, wide, device);
                match (low, high) {
                    (0.0, 1.0) => u,
                    _ => {
                        let scaled = f.mul(u, high - low)?;
                        f.add(scaled, low)?
                    }
                }
            }
            Distribution::Normal { mean, deviation } => {
                let y = normal(self, bits, wide, device)?;
                let f = &mut formula(self, wide, device);
                match (mean, deviation) {
                    (0.0, 1.0) => y,
                    _ => {
                        let scaled = f.mul(y, deviation)?;
                        f.add(scaled, mean)?
                    }
                }
            }
            Distribution::Exponential { rate } => {
                let u = unit(self, bits, 0, digits(wide), wide)?;
                let f = &mut formula(self, wide, device);
                // 1 - u lies in (0, 1], where the logarithm is finite.
                let rest = f.sub(1.0, u)?;
                let log = f.log(rest)?;
                f.mul(log, -1.0 / rate)?
            }
            Distribution::Bernoulli { probability } => {
                let u = unit(self, bits, 0, digits(wide), wide)?;
                formula(self, wide, device).lt(u, probability)?
            }
            Distribution::Integers { low, high } => integers(self, bits, low, high, device)?,
        };
        self.cast(y, dtype)
    }

    /// 1 with the probability that each element of `p` gives, else 0; of `p`'s dtype.
    #[track_caller]
    pub fn bernoulli(&mut self, from: Stream, p: ValueId) -> Result<ValueId> {
        let ty = self.ty(p).clone();
        let u = self.sample(
            from,
            Distribution::Uniform {
                low: 0.0,
                high: 1.0,
            },
            &ty.shape,
            DType::F32,
        )?;
        let hit = self.lt(u, p)?;
        self.cast(hit, ty.dtype)
    }

    /// Elements are zero with this probability; the others grow so that the mean stays.
    #[track_caller]
    pub fn dropout(&mut self, from: Stream, x: ValueId, probability: f64) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        ensure!(
            ty.dtype.is_float(),
            UnsupportedDType,
            "dropout is of floats, not of {}",
            ty.dtype
        );
        if probability == 0.0 {
            // Nothing is drawn, and whoever looks for attention finds it.
            return self.emit(Op::Clone, &[x]);
        }
        let dropped = Distribution::Bernoulli { probability };
        let dropped = self.sample(from, dropped, &ty.shape, DType::Bool)?;
        let scale = if probability < 1.0 {
            1.0 / (1.0 - probability)
        } else {
            0.0
        };
        let grown = self.mul(x, scale)?;
        self.where_(dropped, 0.0, grown)
    }

    /// 64 random bits an element.
    #[track_caller]
    fn random_bits(&mut self, from: Stream, shape: &[Expr]) -> Result<ValueId> {
        let ty = self.ty(from.seed).clone();
        ensure!(
            ty.rank() == 0 && ty.dtype.is_int(),
            InvalidArgument,
            "a seed is an integer without dims, not {} with {}",
            ty.dtype,
            ty.rank()
        );
        ensure!(
            from.number < 1 << 23,
            TooLarge,
            "stream {} of a seed; there are 2^23",
            from.number
        );
        let first = i64::from(from.number) * POSITIONS;
        let counter = self.positions(first, shape, ty.device)?;
        let seed = self.cast(from.seed, DType::I64)?;
        self.philox(counter, seed)
    }

    /// The positions of elements in row-major order, from `first` on: a sum over the dims, which a kernel makes of its own indices.
    #[track_caller]
    fn positions(&mut self, first: i64, shape: &[Expr], device: Device) -> Result<ValueId> {
        let mut sum = self.full(first, vec![], DType::I64, device)?;
        let mut stride = Expr::ONE;
        for (dim, size) in shape.iter().enumerate().rev() {
            if !size.is_const(1) {
                let along = Op::Arange {
                    start: Scalar::I(0),
                    step: Scalar::I(1),
                    shape: vec![size.clone()],
                    dtype: DType::I64,
                    device,
                };
                let along = self.emit(along, &[])?;
                let mut column = vec![Expr::ONE; shape.len()];
                column[dim] = size.clone();
                let along = self.view(along, &column)?;
                let width = self.scalar_tensor(stride.clone(), DType::I64, device)?;
                let part = self.mul(along, width)?;
                sum = self.add(part, sum)?;
            }
            stride *= size.clone();
        }
        self.expand(sum, shape)
    }
}

fn check(how: Distribution) -> Result<()> {
    match how {
        Distribution::Uniform { low, high } => ensure!(
            low <= high && (high - low).is_finite(),
            InvalidArgument,
            "uniform numbers from {low} to {high}"
        ),
        Distribution::Normal { deviation, .. } => ensure!(
            deviation >= 0.0,
            InvalidArgument,
            "a deviation of {deviation}; it is at least 0"
        ),
        Distribution::Exponential { rate } => ensure!(
            rate > 0.0,
            InvalidArgument,
            "a rate of {rate}; it is above 0"
        ),
        Distribution::Bernoulli { probability } => ensure!(
            (0.0..=1.0).contains(&probability),
            InvalidArgument,
            "a probability of {probability}; it lies in [0, 1]"
        ),
        Distribution::Integers { low, high } => ensure!(
            low < high,
            InvalidArgument,
            "integers from {low} up to but not including {high}: there are none"
        ),
    }
    Ok(())
}

fn formula(b: &mut Builder, dtype: DType, device: Device) -> Formula<'_> {
    Formula { b, dtype, device }
}

/// A multiple of 2^-digits in [0, 1), from the top of the first or second word; 53 digits from the top of both.
fn unit(b: &mut Builder, bits: ValueId, word: i64, digits: i64, dtype: DType) -> Result<ValueId> {
    let width = if digits > 32 { 64 } else { 32 * (word + 1) };
    let number = |n: i64| Operand::Number(Scalar::I(n));
    let top = b.binary(crate::Binary::ShiftRight, bits, number(width - digits))?;
    let top = b.binary(crate::Binary::BitwiseAnd, top, number((1 << digits) - 1))?;
    let count = b.cast(top, dtype)?;
    b.mul(count, 0.5f64.powi(digits as i32))
}

/// By the angle and the distance of a point of the plane.
fn normal(b: &mut Builder, bits: ValueId, dtype: DType, device: Device) -> Result<ValueId> {
    let digits = if dtype == DType::F64 { 32 } else { 24 };
    let (u, v) = (
        unit(b, bits, 0, digits, dtype)?,
        unit(b, bits, 1, digits, dtype)?,
    );
    let f = &mut formula(b, dtype, device);
    let rest = f.sub(1.0, u)?;
    let log = f.log(rest)?;
    let square = f.mul(log, -2.0)?;
    let distance = f.sqrt(square)?;
    let angle = f.mul(v, TAU)?;
    let cosine = f.cos(angle)?;
    f.mul(distance, cosine)
}

/// A word times the count, its upper half: each integer is as likely as the next but for a share of count / 2^32. Larger counts take the remainder of all bits.
fn integers(
    b: &mut Builder,
    bits: ValueId,
    low: i64,
    high: i64,
    device: Device,
) -> Result<ValueId> {
    let count = i128::from(high) - i128::from(low);
    let Ok(count) = i64::try_from(count) else {
        return Err(oxyfuel_base::err!(
            TooLarge,
            "{count} different integers; up to 2^63 - 1 can be drawn"
        ));
    };
    let mut number = |n: i64| b.full(Scalar::I(n), vec![], DType::I64, device);
    let (low, total) = (number(low)?, number(count)?);
    let below = if count < 1 << 31 {
        let (mask, half) = (number(i64::from(u32::MAX))?, number(32)?);
        let word = b.binary(crate::Binary::BitwiseAnd, bits, mask)?;
        let product = b.mul(word, total)?;
        b.binary(crate::Binary::ShiftRight, product, half)?
    } else {
        let mask = number(i64::MAX)?;
        let positive = b.binary(crate::Binary::BitwiseAnd, bits, mask)?;
        b.binary(crate::Binary::Remainder, positive, total)?
    };
    b.add(below, low)
}
