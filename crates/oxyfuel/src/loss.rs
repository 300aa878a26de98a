//! Losses and similarities, in PyTorch's definitions.

use crate::recipe::Build::Floats;
use crate::recipe::recipe;
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result, ensure};
use oxyfuel_graph::ValueId;
use oxyfuel_graph::special::Formula;

/// What becomes of the losses of all elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// They stay as they are.
    None,
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

impl Reduction {
    #[track_caller]
    fn of(self, losses: Tensor) -> Tensor {
        match self {
            Self::None => losses,
            Self::Mean => losses.mean(&[], false),
            Self::Sum => losses.sum(&[], false),
        }
    }
}

/// How a loss over classes counts. `ClassLoss::default()` is PyTorch's default: the mean over all targets but -100.
#[derive(Clone, Copy, Debug)]
pub struct ClassLoss<'a> {
    /// One number a class.
    pub weight: Option<&'a Tensor>,
    /// A target that does not count.
    pub ignore_index: i64,
    /// How much of the target goes to all classes alike; of [`Tensor::cross_entropy`] only.
    pub label_smoothing: f64,
    /// What becomes of the losses.
    pub reduction: Reduction,
}

impl Default for ClassLoss<'_> {
    fn default() -> Self {
        Self {
            weight: None,
            ignore_index: -100,
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
        }
    }
}

/// `d^2 / (2 beta)` of a difference below beta, `|d| - beta / 2` above.
fn smooth_l1(f: &mut Formula<'_>, v: &[ValueId], n: &[f64]) -> Result<ValueId> {
    let difference = f.sub(v[0], v[1])?;
    let size = f.abs(difference)?;
    if n[0] == 0.0 {
        return Ok(size);
    }
    let square = f.mul(size, size)?;
    let square = f.mul(square, 0.5)?;
    let square = f.div(square, n[0])?;
    let line = f.sub(size, 0.5 * n[0])?;
    let near = f.lt(size, n[0])?;
    f.choose(near, square, line)
}

/// `d^2 / 2` of a difference up to delta, `delta (|d| - delta / 2)` above.
fn huber(f: &mut Formula<'_>, v: &[ValueId], n: &[f64]) -> Result<ValueId> {
    let difference = f.sub(v[0], v[1])?;
    let size = f.abs(difference)?;
    let square = f.mul(size, size)?;
    let square = f.mul(square, 0.5)?;
    let line = f.sub(size, 0.5 * n[0])?;
    let line = f.mul(line, n[0])?;
    let near = f.le(size, n[0])?;
    f.choose(near, square, line)
}

/// Losses between tensors of one shape.
impl Tensor {
    /// `(x - target)^2`.
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        reduction.of(self.sub(target).square())
    }

    /// `|x - target|`.
    #[track_caller]
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        reduction.of(self.sub(target).abs())
    }

    /// `d^2 / (2 beta)` of a difference below `beta`, `|d| - beta / 2` above; PyTorch's default is 1.
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Tensor {
        if let Err(error) = not_negative("smooth_l1_loss: beta", beta) {
            return Tensor::refused(error);
        }
        reduction.of(recipe(
            "smooth_l1",
            &[self.into(), target.into()],
            &[beta.into()],
            Floats(smooth_l1),
        ))
    }

    /// `d^2 / 2` of a difference up to `delta`, `delta (|d| - delta / 2)` above; PyTorch's default is 1.
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Tensor {
        if let Err(error) = not_negative("huber_loss: delta", delta) {
            return Tensor::refused(error);
        }
        reduction.of(recipe(
            "huber",
            &[self.into(), target.into()],
            &[delta.into()],
            Floats(huber),
        ))
    }

    /// `-(t log(x) + (1 - t) log(1 - x))` of probabilities, logarithms no less than -100; `weight` counts elements.
    #[track_caller]
    pub fn binary_cross_entropy(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Tensor {
        let (yes, no) = (
            self.log().clamp_min(-100.0),
            self.neg().log1p().clamp_min(-100.0),
        );
        let losses = target.sub(1.0).mul(&no).sub(&target.mul(&yes));
        reduction.of(weighted(losses, weight))
    }

    /// The same of `sigmoid(x)`, without overflow on the way; `pos_weight` counts what is true.
    #[track_caller]
    pub fn binary_cross_entropy_with_logits(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        pos_weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Tensor {
        let rest = target.neg().add(1.0).mul(self);
        let log = self.log_sigmoid();
        let losses = match pos_weight {
            Some(more) => {
                let factor = more.sub(1.0).mul(target).add(1.0);
                rest.sub(&log.mul(&factor))
            }
            None => rest.sub(&log),
        };
        reduction.of(weighted(losses, weight))
    }

    /// `target (log(target) - x)` of log probabilities; with `log_target` the target is one too. The mean is over all elements, as PyTorch's `reduction="mean"`.
    #[track_caller]
    pub fn kl_div(&self, target: &Tensor, log_target: bool, reduction: Reduction) -> Tensor {
        let losses = match log_target {
            true => target.exp().mul(&target.sub(self)),
            false => target.xlogy(target).sub(&target.mul(self)),
        };
        reduction.of(losses)
    }
}

#[track_caller]
fn weighted(losses: Tensor, weight: Option<&Tensor>) -> Tensor {
    match weight {
        Some(weight) => losses.mul(weight),
        None => losses,
    }
}

fn not_negative(what: &str, number: f64) -> Result<()> {
    ensure!(number >= 0.0, InvalidArgument, "{what} is {number}");
    Ok(())
}

/// Losses over classes, which dim 1 counts (dim 0 of a tensor with one dim).
impl Tensor {
    /// Minus the log probability (`[batch, classes, …]`) of each target (`[batch, …]`, integers).
    #[track_caller]
    pub fn nll_loss(&self, target: &Tensor, how: &ClassLoss<'_>) -> Tensor {
        match self.classes("nll_loss", target, how) {
            Ok(classes) => classes.nll(how),
            Err(error) => Tensor::refused(error),
        }
    }

    /// The negative log likelihood of targets under `softmax(x)`. Targets are integers (`[batch, …]`), or of this tensor's shape the probability of each class.
    ///
    /// ```
    /// use oxyfuel::{ClassLoss, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let logits = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2]);
    /// let loss = logits.cross_entropy(&Tensor::from_slice(&[0i64, 1], &[2]), &ClassLoss::default());
    /// assert!((loss.to_vec::<f32>()?[0] - 2f32.ln()).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn cross_entropy(&self, target: &Tensor, how: &ClassLoss<'_>) -> Tensor {
        Tensor::or_refused(self.log_likelihood(target, how))
    }

    #[track_caller]
    fn log_likelihood(&self, target: &Tensor, how: &ClassLoss<'_>) -> Result<Tensor> {
        self.check()?;
        target.check()?;
        ensure!(
            (0.0..=1.0).contains(&how.label_smoothing),
            InvalidArgument,
            "cross_entropy: a label_smoothing of {}",
            how.label_smoothing
        );
        let rank = self.rank();
        ensure!(
            rank > 0,
            RankMismatch,
            "cross_entropy: of a tensor without dims"
        );
        let log = self.log_softmax(if rank == 1 { 0 } else { 1 });
        if target.dtype().is_float() {
            return Ok(log.of_probabilities(target, how));
        }
        let classes = log.classes("cross_entropy", target, how)?;
        Ok(classes.smoothed(how))
    }

    /// Targets that are probabilities.
    #[track_caller]
    fn of_probabilities(&self, target: &Tensor, how: &ClassLoss<'_>) -> Tensor {
        let along = i64::from(self.rank() > 1);
        let smoothing = how.label_smoothing;
        let mut log = self.clone();
        if let Some(weight) = how.weight {
            log = log.mul(&per_class(weight, self.rank()));
        }
        let mut losses = log.mul(target).sum(&[along], false).neg();
        if smoothing > 0.0 {
            let alike = log.mean(&[along], false).mul(-smoothing);
            losses = losses.mul(1.0 - smoothing).add(&alike);
        }
        how.reduction.of(losses)
    }

    /// This tensor of log probabilities beside its targets.
    #[track_caller]
    fn classes(&self, name: &str, target: &Tensor, how: &ClassLoss<'_>) -> Result<Classes> {
        self.check()?;
        target.check()?;
        let rank = self.rank();
        ensure!(
            rank > 0 && target.rank() == (rank - 1).max(usize::from(rank > 1)),
            RankMismatch,
            "{name}: targets with {} dims for a tensor with {rank} dims",
            target.rank()
        );
        ensure!(
            target.dtype().is_int(),
            DTypeMismatch,
            "{name}: targets of {}",
            target.dtype()
        );
        ensure!(
            self.dtype().is_float(),
            UnsupportedDType,
            "{name}: log probabilities of {}",
            self.dtype()
        );
        // One example without a batch.
        let (log, target) = match rank {
            1 => (self.unsqueeze(0), target.unsqueeze(0)),
            _ => (self.clone(), target.clone()),
        };
        let target = target.to(DType::I64);
        let ignored = target.eq(how.ignore_index);
        let target = target.masked_fill(&ignored, 0);
        let weight = match how.weight {
            Some(weight) => {
                Tensor::embedding(&target, &weight.to(self.dtype()).unsqueeze(1)).squeeze(-1)
            }
            None => target.full_like(1).to(self.dtype()),
        };
        Ok(Classes {
            log,
            weight: weight.masked_fill(&ignored, 0),
            target,
            ignored,
            single: rank == 1,
        })
    }

    /// The cosine of the angle between two tensors along a dim; lengths count at least `eps`. PyTorch's defaults are 1 and 1e-8.
    #[track_caller]
    pub fn cosine_similarity(&self, other: &Tensor, dim: i64, eps: f64) -> Tensor {
        // Both are broadcast first, so that the dim is the same.
        let (x, y) = (self.add(&other.zeros_like()), other.add(&self.zeros_like()));
        let (x, y) = (x.normalize(2.0, dim, eps), y.normalize(2.0, dim, eps));
        x.mul(&y).sum(&[dim], false)
    }

    /// Divided by its p-norm along a dim, which counts at least `eps`. PyTorch's defaults are 2, 1 and 1e-12.
    #[track_caller]
    pub fn normalize(&self, p: f64, dim: i64, eps: f64) -> Tensor {
        self.div(&self.norm(p, &[dim], true).clamp_min(eps))
    }

    /// The p-norm of `a - b + eps` over the last dim. PyTorch's defaults are 2 and 1e-6.
    #[track_caller]
    pub fn pairwise_distance(&self, other: &Tensor, p: f64, eps: f64) -> Tensor {
        self.sub(other).add(eps).norm(p, &[-1], false)
    }
}

/// One number a class, to meet `[batch, classes, …]`.
#[track_caller]
fn per_class(weight: &Tensor, rank: usize) -> Tensor {
    (2..rank).fold(weight.clone(), |w, _| w.unsqueeze(-1))
}

/// Log probabilities beside targets, of which some do not count: their target is 0 and their weight too.
struct Classes {
    log: Tensor,
    target: Tensor,
    weight: Tensor,
    ignored: Tensor,
    /// Whether there was no batch.
    single: bool,
}

impl Classes {
    #[track_caller]
    fn reduced(&self, losses: Tensor, reduction: Reduction) -> Tensor {
        match reduction {
            Reduction::None if self.single => losses.squeeze(0),
            Reduction::None => losses,
            Reduction::Sum => losses.sum(&[], false),
            Reduction::Mean => losses.sum(&[], false).div(&self.weight.sum(&[], false)),
        }
    }

    #[track_caller]
    fn nll(&self, how: &ClassLoss<'_>) -> Tensor {
        let picked = self.log.gather(1, &self.target.unsqueeze(1)).squeeze(1);
        let losses = picked.mul(&self.weight).neg().masked_fill(&self.ignored, 0);
        self.reduced(losses, how.reduction)
    }

    #[track_caller]
    fn smoothed(&self, how: &ClassLoss<'_>) -> Tensor {
        let smoothing = how.label_smoothing;
        let nll = self.nll(how);
        if smoothing == 0.0 {
            return nll;
        }
        let log = match how.weight {
            Some(weight) => self.log.mul(&per_class(weight, self.log.rank())),
            None => self.log.clone(),
        };
        let alike = log.mean(&[1], false).neg().masked_fill(&self.ignored, 0);
        let alike = self.reduced(alike, how.reduction);
        nll.mul(1.0 - smoothing).add(&alike.mul(smoothing))
    }
}
