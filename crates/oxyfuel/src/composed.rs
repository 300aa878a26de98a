//! Methods that are compositions of the vocabulary: special functions, random numbers, convolutions, attention and other sums of products.
//!
//! Random numbers are a function of their seed and of the position of an element, so that eager and compiled programs, any number of threads and a second computation
//! give the same. A seed that is a tensor (an i64 without dims) changes from call to call without compiling again; `&seed + 1` sets two draws apart.

use crate::call::{Call, Operand, Operands, apply};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result, Scalar, ensure};
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::sample::{Distribution, Stream};
use oxyfuel_graph::special::{Special, gcd};
use oxyfuel_graph::{Builder, Operand as Value, ValueId};

/// A composition with everything but its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Composed {
    Special(Special),
    Polygamma(i64),
    Zeta,
    Gcd,
    /// Of the shape and type of the first operand; the second is the seed.
    Random(Random),
    /// Probabilities, seed.
    Bernoulli,
    Dropout(Scalar),
    /// Operands: input, weight, bias if there is one.
    Convolution {
        dims: usize,
        how: Convolution,
        /// Of a transposed one: more positions at the ends.
        transposed: Option<Vec<i64>>,
    },
    /// Operands: gradient, input, weight; which gradient of them.
    ConvolutionBackward {
        how: Convolution,
        which: usize,
    },
    Einsum(String),
    /// Operands: query, key, value, mask if there is one.
    Attention {
        causal: bool,
        scale: Option<Scalar>,
    },
}

/// A distribution whose numbers can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Random {
    Uniform(Scalar, Scalar),
    Normal(Scalar, Scalar),
    Exponential(Scalar),
    Integers(i64, i64),
}

impl Random {
    fn distribution(self) -> Distribution {
        match self {
            Self::Uniform(low, high) => Distribution::Uniform {
                low: low.as_f64(),
                high: high.as_f64(),
            },
            Self::Normal(mean, deviation) => Distribution::Normal {
                mean: mean.as_f64(),
                deviation: deviation.as_f64(),
            },
            Self::Exponential(rate) => Distribution::Exponential {
                rate: rate.as_f64(),
            },
            Self::Integers(low, high) => Distribution::Integers { low, high },
        }
    }
}

impl Composed {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Special(f) => f.name(),
            Self::Polygamma(_) => "polygamma",
            Self::Zeta => "zeta",
            Self::Gcd => "gcd",
            Self::Random(_) => "random",
            Self::Bernoulli => "bernoulli",
            Self::Dropout(_) => "dropout",
            Self::Convolution { .. } => "convolution",
            Self::ConvolutionBackward { .. } => "convolution_backward",
            Self::Einsum(_) => "einsum",
            Self::Attention { .. } => "scaled_dot_product_attention",
        }
    }

    pub fn record(&self, b: &mut Builder, operands: &Operands<'_>) -> Result<ValueId> {
        let tensor = |i: usize| operands.tensor(i);
        let tensors = &operands.tensors;
        let stream = |b: &mut Builder| -> Result<Stream> {
            let seed = match operands.get(1)? {
                Value::Value(seed) => seed,
                Value::Number(seed) => {
                    let device = b.ty(tensor(0)?).device;
                    b.full(Scalar::I(seed.as_i64()), vec![], DType::I64, device)?
                }
            };
            Ok(Stream { seed, number: 0 })
        };
        match self {
            Self::Special(f) => b.special(*f, tensor(0)?),
            Self::Polygamma(n) => b.polygamma(*n, tensor(0)?),
            Self::Zeta => b.zeta(tensor(0)?, tensor(1)?),
            Self::Gcd => gcd(b, tensor(0)?, tensor(1)?),
            Self::Random(random) => {
                let ty = b.ty(tensor(0)?).clone();
                let from = stream(b)?;
                b.sample(from, random.distribution(), &ty.shape, ty.dtype)
            }
            Self::Bernoulli => {
                let from = stream(b)?;
                b.bernoulli(from, tensor(0)?)
            }
            Self::Dropout(probability) => {
                let from = stream(b)?;
                b.dropout(from, tensor(0)?, probability.as_f64())
            }
            Self::Convolution {
                dims,
                how,
                transposed,
            } => {
                let (x, weight) = (tensor(0)?, tensor(1)?);
                let rank = b.ty(weight).rank();
                ensure!(
                    rank == dims + 2,
                    RankMismatch,
                    "the weight of a convolution over {dims} dims has {} dims, not {rank}",
                    dims + 2
                );
                let bias = tensors.get(2).copied();
                match transposed {
                    None => b.convolution(x, weight, bias, how),
                    Some(more) => b.conv_transpose(x, weight, bias, how, more),
                }
            }
            Self::ConvolutionBackward { how, which } => {
                let all = b.convolution_backward(tensor(0)?, tensor(1)?, tensor(2)?, how)?;
                Ok([all.input, all.weight, all.bias][*which])
            }
            Self::Einsum(equation) => b.einsum(equation, tensors),
            Self::Attention { causal, scale } => b.scaled_dot_product_attention(
                [tensor(0)?, tensor(1)?, tensor(2)?],
                tensors.get(3).copied(),
                *causal,
                scale.map(|s| s.as_f64()),
            ),
        }
    }
}

#[track_caller]
fn composed(call: Composed, operands: &[Operand<'_>]) -> Tensor {
    apply(Call::Composed(call), operands)
}

macro_rules! special {
    ($($name:ident $f:ident $doc:literal;)*) => {
        /// Special functions; of integers an f32.
        impl Tensor {
            $(#[doc = $doc]
            #[track_caller]
            pub fn $name(&self) -> Tensor {
                composed(Composed::Special(Special::$f), &[self.into()])
            })*
        }
    };
}

special! {
    lgamma Lgamma "`log |gamma(x)|`.";
    digamma Digamma "The derivative of `lgamma`.";
    erfinv Erfinv "The inverse of the error function.";
    erfcx Erfcx "`exp(x^2) erfc(x)`.";
    ndtri Ndtri "The inverse of the normal distribution function.";
    log_ndtr LogNdtr "The logarithm of the normal distribution function.";
    i0 I0 "Modified bessel function of the first kind, order 0.";
    i0e I0e "`exp(-|x|) i0(x)`.";
    i1 I1 "Modified bessel function of the first kind, order 1.";
    i1e I1e "`exp(-|x|) i1(x)`.";
    modified_bessel_k0 K0 "Modified bessel function of the second kind, order 0.";
    modified_bessel_k1 K1 "Modified bessel function of the second kind, order 1.";
    scaled_modified_bessel_k0 K0e "`exp(x) modified_bessel_k0(x)`.";
    scaled_modified_bessel_k1 K1e "`exp(x) modified_bessel_k1(x)`.";
    bessel_j0 J0 "Bessel function of the first kind, order 0.";
    bessel_j1 J1 "Bessel function of the first kind, order 1.";
    bessel_y0 Y0 "Bessel function of the second kind, order 0.";
    bessel_y1 Y1 "Bessel function of the second kind, order 1.";
    spherical_bessel_j0 SphericalJ0 "`sin(x) / x`.";
    airy_ai AiryAi "The airy function Ai.";
}

/// Functions of two elements, and of an order.
impl Tensor {
    /// The derivative of `digamma` of this order.
    #[track_caller]
    pub fn polygamma(&self, n: i64) -> Tensor {
        composed(Composed::Polygamma(n), &[self.into()])
    }

    /// Hurwitz' zeta function: the sum of `(q + k)^-x`.
    #[track_caller]
    pub fn zeta(&self, q: &Tensor) -> Tensor {
        composed(Composed::Zeta, &[self.into(), q.into()])
    }

    /// The greatest common divisor of integers.
    #[track_caller]
    pub fn gcd(&self, other: &Tensor) -> Tensor {
        composed(Composed::Gcd, &[self.into(), other.into()])
    }
}

/// Random numbers of this tensor's shape, type and device. The seed is a number or, to change it without compiling again, a tensor: an i64 without dims.
impl Tensor {
    #[track_caller]
    fn drawn<'a>(&self, how: Random, seed: impl Into<Operand<'a>>) -> Tensor {
        composed(Composed::Random(how), &[self.into(), seed.into()])
    }

    /// Uniform in `[0, 1)`.
    #[track_caller]
    pub fn rand_like<'a>(&self, seed: impl Into<Operand<'a>>) -> Tensor {
        self.uniform_like(0.0, 1.0, seed)
    }

    /// Uniform in `[low, high)`.
    #[track_caller]
    pub fn uniform_like<'a>(&self, low: f64, high: f64, seed: impl Into<Operand<'a>>) -> Tensor {
        self.drawn(Random::Uniform(Scalar::F(low), Scalar::F(high)), seed)
    }

    /// Standard normal.
    #[track_caller]
    pub fn randn_like<'a>(&self, seed: impl Into<Operand<'a>>) -> Tensor {
        self.normal_like(0.0, 1.0, seed)
    }

    /// Normal with this mean and deviation.
    #[track_caller]
    pub fn normal_like<'a>(
        &self,
        mean: f64,
        deviation: f64,
        seed: impl Into<Operand<'a>>,
    ) -> Tensor {
        self.drawn(Random::Normal(Scalar::F(mean), Scalar::F(deviation)), seed)
    }

    /// Density `rate exp(-rate x)`.
    #[track_caller]
    pub fn exponential_like<'a>(&self, rate: f64, seed: impl Into<Operand<'a>>) -> Tensor {
        self.drawn(Random::Exponential(Scalar::F(rate)), seed)
    }

    /// Integers in `[low, high)`.
    #[track_caller]
    pub fn randint_like<'a>(&self, low: i64, high: i64, seed: impl Into<Operand<'a>>) -> Tensor {
        self.drawn(Random::Integers(low, high), seed)
    }

    /// 1 with the probability that each element says, else 0.
    #[track_caller]
    pub fn bernoulli<'a>(&self, seed: impl Into<Operand<'a>>) -> Tensor {
        composed(Composed::Bernoulli, &[self.into(), seed.into()])
    }

    /// Elements become zero with this probability; the others grow so that the mean stays.
    #[track_caller]
    pub fn dropout<'a>(&self, probability: f64, seed: impl Into<Operand<'a>>) -> Tensor {
        let call = Composed::Dropout(Scalar::F(probability));
        composed(call, &[self.into(), seed.into()])
    }
}

macro_rules! convolutions {
    ($($name:ident $transposed:ident $dims:literal;)*) => {
        /// Convolutions of `[batch, channels, sizes…]`, or of one example without the batch.
        impl Tensor {
            $(
            #[doc = concat!("Over the last dims (", stringify!($dims), "); the weight is `[out, channels / groups, kernel…]`.")]
            #[track_caller]
            pub fn $name(&self, weight: &Tensor, bias: Option<&Tensor>, how: &Convolution) -> Tensor {
                self.convolved($dims, weight, bias, how, None)
            }

            #[doc = concat!("Transposed, over the last dims (", stringify!($dims), "); the weight is `[channels, out / groups, kernel…]`. The result has `output_padding` more positions at the end of each dim.")]
            #[track_caller]
            pub fn $transposed(&self, weight: &Tensor, bias: Option<&Tensor>, how: &Convolution, output_padding: &[i64]) -> Tensor {
                self.convolved($dims, weight, bias, how, Some(output_padding.to_vec()))
            }
            )*
        }
    };
}

convolutions! {
    conv1d conv_transpose1d 1;
    conv2d conv_transpose2d 2;
    conv3d conv_transpose3d 3;
}

impl Tensor {
    #[track_caller]
    fn convolved(
        &self,
        dims: usize,
        weight: &Tensor,
        bias: Option<&Tensor>,
        how: &Convolution,
        transposed: Option<Vec<i64>>,
    ) -> Tensor {
        let how = how.clone();
        let call = Composed::Convolution {
            dims,
            how,
            transposed,
        };
        let operands: Vec<Operand<'_>> = [Some(self), Some(weight), bias]
            .into_iter()
            .flatten()
            .map(Operand::from)
            .collect();
        composed(call, &operands)
    }

    /// The gradients of a convolution with respect to its input (this tensor, with its batch), its weight and its bias, from that of its result.
    #[track_caller]
    pub fn conv_backward(&self, weight: &Tensor, grad: &Tensor, how: &Convolution) -> [Tensor; 3] {
        let operands = [grad.into(), self.into(), weight.into()];
        let one = |which| {
            let how = how.clone();
            Composed::ConvolutionBackward { how, which }
        };
        [
            composed(one(0), &operands),
            composed(one(1), &operands),
            composed(one(2), &operands),
        ]
    }
}

/// Sums of products.
impl Tensor {
    /// A matrix times a vector.
    #[track_caller]
    pub fn mv(&self, vector: &Tensor) -> Tensor {
        self.matmul(vector)
    }

    /// The product of two vectors.
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Tensor {
        self.matmul(other)
    }

    /// Every product of an element of this vector with one of the other.
    #[track_caller]
    pub fn outer(&self, other: &Tensor) -> Tensor {
        self.unsqueeze(1).mul(&other.unsqueeze(0))
    }

    /// `beta * self + alpha * (a x b)` for each matrix of a batch.
    #[track_caller]
    pub fn baddbmm(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Tensor {
        self.plus_product(a.bmm(b), beta, alpha)
    }

    /// `beta * self + alpha * (the sum of a x b over the batch)`.
    #[track_caller]
    pub fn addbmm(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Tensor {
        let sum = a.bmm(b).sum(&[0], false).to(a.dtype());
        self.plus_product(sum, beta, alpha)
    }

    /// `beta * self + alpha * (matrix x vector)`.
    #[track_caller]
    pub fn addmv(&self, matrix: &Tensor, vector: &Tensor, beta: f64, alpha: f64) -> Tensor {
        self.plus_product(matrix.mv(vector), beta, alpha)
    }

    /// `beta * self + alpha * (a outer b)`.
    #[track_caller]
    pub fn addr(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Tensor {
        self.plus_product(a.outer(b), beta, alpha)
    }

    /// A beta of 0 ignores what it multiplies, NaN and all.
    #[track_caller]
    fn plus_product(&self, product: Tensor, beta: f64, alpha: f64) -> Tensor {
        let dtype = product.dtype();
        let scaled = if alpha == 1.0 {
            product
        } else {
            product.mul(alpha)
        };
        let sum = if beta == 0.0 {
            scaled
        } else if beta == 1.0 {
            scaled.add(self)
        } else {
            scaled.add(&self.mul(beta))
        };
        sum.to(dtype)
    }

    /// Einstein's notation: `Tensor::einsum("bij,bjk->bik", &[&a, &b])`.
    #[track_caller]
    pub fn einsum(equation: &str, tensors: &[&Tensor]) -> Tensor {
        let operands: Vec<Operand<'_>> = tensors.iter().map(|&t| t.into()).collect();
        composed(Composed::Einsum(equation.to_owned()), &operands)
    }

    /// `softmax(self key^T scale + mask) value` over the last two dims; this tensor is the query. A mask of bools says where to look, one of floats is added; a causal
    /// one looks no further than its own position. The scale is one over the root of the last dim unless it is given.
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
        causal: bool,
        scale: Option<f64>,
    ) -> Tensor {
        let scale = scale.map(Scalar::F);
        let operands: Vec<Operand<'_>> = [Some(self), Some(key), Some(value), mask]
            .into_iter()
            .flatten()
            .map(Operand::from)
            .collect();
        composed(Composed::Attention { causal, scale }, &operands)
    }
}
