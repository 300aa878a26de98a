//! Elements in another order, several times, or apart: flips, rolls, repetition, windows along a dim, parts.

use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe};
use crate::tensor::Tensor;
use oxyfuel_base::{Error, Expr, Result, Scalar, ensure, err};
use oxyfuel_graph::{Op, ValueId};

fn numbers(list: &[i64]) -> Vec<Scalar> {
    list.iter().map(|&n| Scalar::I(n)).collect()
}

/// Order and repetition; the results are new tensors.
impl Tensor {
    /// The elements of these dims in the opposite order.
    #[track_caller]
    pub fn flip(&self, dims: &[i64]) -> Tensor {
        let flip = Nodes(|r| {
            let mut x = r.tensor(0)?;
            let rank = r.shape(x).len();
            let mut seen = vec![false; rank.max(1)];
            for dim in r.ints(0) {
                let d = r.dim(dim, rank)?;
                ensure!(!seen[d], DimOutOfRange, "flip: dim {dim} is named twice");
                seen[d] = true;
                x = r.b.flip(x, dim)?;
            }
            Ok(x)
        });
        recipe("flip", &[self.into()], &numbers(dims), flip)
    }

    /// Elements moved on by `shifts` along `dims`, those that leave at one end coming back at the other. Without dims the tensor is rolled as one row, by one shift.
    #[track_caller]
    pub fn roll(&self, shifts: &[i64], dims: &[i64]) -> Tensor {
        let roll = Nodes(|r| {
            let mut x = r.tensor(0)?;
            let (shape, list) = (r.shape(x), r.ints(1));
            let (shifts, dims) =
                list.split_at(usize::try_from(r.int(0)?).unwrap_or(0).min(list.len()));
            let row = [0];
            let dims = match dims {
                [] => {
                    x = r.b.view(x, &[shape.iter().cloned().product()])?;
                    &row
                }
                dims => dims,
            };
            ensure!(
                shifts.len() == dims.len(),
                InvalidArgument,
                "roll: {} shifts for {} dims",
                shifts.len(),
                dims.len()
            );
            for (&shift, &dim) in shifts.iter().zip(dims) {
                x = r.b.roll(x, shift, dim)?;
            }
            r.b.view(x, &shape)
        });
        let count = i64::try_from(shifts.len()).unwrap_or(0);
        let list = [&[count], shifts, dims].concat();
        recipe("roll", &[self.into()], &numbers(&list), roll)
    }

    /// The whole tensor so many times along each dim; more counts than dims make new leading dims.
    #[track_caller]
    pub fn repeat(&self, counts: &[i64]) -> Tensor {
        let repeat = Nodes(|r| {
            let counts = r.ints(0);
            repeated(r, &counts)
        });
        recipe("repeat", &[self.into()], &numbers(counts), repeat)
    }

    /// As [`repeat`](Self::repeat), where fewer counts than dims are those of the last dims.
    #[track_caller]
    pub fn tile(&self, counts: &[i64]) -> Tensor {
        let tile = Nodes(|r| {
            let counts = r.ints(0);
            let missing = r.shape(r.tensor(0)?).len().saturating_sub(counts.len());
            repeated(r, &[vec![1; missing], counts].concat())
        });
        recipe("tile", &[self.into()], &numbers(counts), tile)
    }

    /// Each element of a dim `count` times in a row.
    #[track_caller]
    pub fn repeat_interleave(&self, count: i64, dim: i64) -> Tensor {
        let interleave = Nodes(|r| {
            let (x, count) = (r.tensor(0)?, r.int(0)?);
            let mut shape = r.shape(x);
            let dim = r.dim(r.int(1)?, shape.len())?;
            ensure!(
                count >= 0 && !shape.is_empty(),
                InvalidArgument,
                "repeat_interleave: {count} times along a dim of a tensor with {} dims",
                shape.len()
            );
            let apart = r.b.unsqueeze(x, i64::try_from(dim + 1).unwrap_or(0))?;
            shape.insert(dim + 1, Expr::constant(count));
            let wide = r.b.expand(apart, &shape)?;
            let times = shape.remove(dim + 1);
            shape[dim] = shape[dim].clone() * times;
            r.b.view(wide, &shape)
        });
        recipe(
            "repeat_interleave",
            &[self.into()],
            &[count.into(), dim.into()],
            interleave,
        )
    }

    /// Windows of `size` elements of a dim, every `step` elements: the dim counts windows, and a new last dim counts the elements of each. PyTorch's `Tensor.unfold`, in memory of its own.
    #[track_caller]
    pub fn unfold_dim(&self, dim: i64, size: i64, step: i64) -> Tensor {
        let list = numbers(&[dim, size, step]);
        recipe("unfold_dim", &[self.into()], &list, Nodes(unfold_dim))
    }
}

/// Parts and other orders of dims: views, which share memory.
impl Tensor {
    /// Parts of `size` positions along a dim, the last one possibly smaller.
    #[track_caller]
    pub fn split(&self, size: i64, dim: i64) -> Vec<Tensor> {
        let bounds = self.size(dim).and_then(|extent| {
            ensure!(
                size > 0,
                InvalidArgument,
                "split: parts of {size} positions"
            );
            let count = extent / size + i64::from(extent % size != 0);
            let part = |i: i64| (i * size, size.min(extent - i * size) + i * size);
            Ok((0..count.max(1)).map(part).collect())
        });
        self.parts(bounds, dim)
    }

    /// Parts of these sizes along a dim, which they fill.
    #[track_caller]
    pub fn split_with_sizes(&self, sizes: &[i64], dim: i64) -> Vec<Tensor> {
        let bounds = self.size(dim).and_then(|extent| {
            let add = |sum: i64, &n: &i64| sum.checked_add(n).filter(|_| n >= 0);
            ensure!(
                sizes.iter().try_fold(0, add) == Some(extent),
                ShapeMismatch,
                "split_with_sizes: parts of {sizes:?} do not fill a dim of extent {extent}"
            );
            let mut start = 0;
            let next = |&size: &i64| {
                start += size;
                (start - size, start)
            };
            Ok(sizes.iter().map(next).collect())
        });
        self.parts(bounds, dim)
    }

    /// The slices of a dim, one by one; the dim disappears.
    #[track_caller]
    pub fn unbind(&self, dim: i64) -> Vec<Tensor> {
        match self.size(dim) {
            Ok(extent) => (0..extent).map(|i| self.select(dim, i)).collect(),
            Err(error) => vec![Tensor::refused(error)],
        }
    }

    #[track_caller]
    fn parts(&self, bounds: Result<Vec<(i64, i64)>>, dim: i64) -> Vec<Tensor> {
        let mut parts = Vec::new();
        match bounds {
            Ok(bounds) => {
                for (start, end) in bounds {
                    parts.push(self.slice(dim, start, end, 1));
                }
            }
            Err(error) => parts.push(Tensor::refused(error)),
        }
        parts
    }

    /// Dims moved from `from` to `to`; the others keep their order.
    #[track_caller]
    pub fn movedim(&self, from: &[i64], to: &[i64]) -> Tensor {
        match moved(self.rank(), from, to) {
            Ok(order) if self.check().is_ok() => self.permute(&order),
            Ok(_) => self.clone(),
            Err(error) => Tensor::refused(error),
        }
    }

    /// Every dim of extent 1 removed.
    #[track_caller]
    pub fn squeeze_all(&self) -> Tensor {
        let ones = self.shape().iter().enumerate().filter(|(_, n)| **n == 1);
        let dims: Vec<i64> = ones.filter_map(|(d, _)| i64::try_from(d).ok()).collect();
        self.squeeze_dims(&dims)
    }

    /// These dims removed where they have extent 1.
    #[track_caller]
    pub fn squeeze_dims(&self, dims: &[i64]) -> Tensor {
        let rank = self.rank();
        let mut places = Vec::new();
        for &dim in dims {
            match place(dim, rank) {
                Ok(place) => places.push(place),
                Err(error) => return Tensor::refused(error),
            }
        }
        places.sort_unstable();
        places.dedup();
        let start = self.clone();
        let last_first = places.into_iter().rev();
        last_first.fold(start, |x, dim| match rank {
            0 => x,
            _ => x.squeeze(i64::try_from(dim).unwrap_or(0)),
        })
    }

    /// This tensor with one position of a dim replaced by `src`, which has a dim less.
    #[track_caller]
    pub fn select_scatter(&self, src: &Tensor, dim: i64, index: i64) -> Tensor {
        Tensor::or_refused(self.with_position(src, dim, index))
    }

    #[track_caller]
    fn with_position(&self, src: &Tensor, dim: i64, index: i64) -> Result<Tensor> {
        let extent = self.size(dim)?;
        let at = if index < 0 {
            index.saturating_add(extent)
        } else {
            index
        };
        ensure!(
            (0..extent).contains(&at),
            IndexOutOfRange,
            "select_scatter: position {index} of a dim of extent {extent}"
        );
        let dim = i64::try_from(place(dim, self.rank())?).unwrap_or(0);
        let src = src.to(self.dtype()).unsqueeze(dim);
        Ok(self.slice_scatter(&src, dim, at, at + 1, 1))
    }

    /// The coordinates of a grid: each vector along a dim of its own, repeated along the others. PyTorch's `meshgrid(indexing="ij")`.
    #[track_caller]
    pub fn meshgrid(vectors: &[&Tensor]) -> Vec<Tensor> {
        let mut shape = Vec::new();
        for vector in vectors {
            let extent = match vector.rank() {
                0 => vector.check().map(|()| 1),
                1 => vector.size(0),
                rank => Err(err!(
                    RankMismatch,
                    "meshgrid: a tensor with {rank} dims is no vector"
                )),
            };
            match extent {
                Ok(extent) => shape.push(extent),
                Err(error) => return vec![Tensor::refused(error)],
            }
        }
        let mut grids = Vec::new();
        for (i, vector) in vectors.iter().enumerate() {
            let mut row = vec![1; shape.len()];
            row[i] = shape[i];
            grids.push(vector.reshape(&row).expand(&shape));
        }
        grids
    }
}

pub(crate) fn place(dim: i64, rank: usize) -> Result<usize> {
    let bound = i64::try_from(rank.max(1)).unwrap_or(i64::MAX);
    ensure!(
        (-bound..bound).contains(&dim),
        DimOutOfRange,
        "dim {dim} of a tensor with {rank} dims"
    );
    Ok(usize::try_from(if dim < 0 { dim + bound } else { dim }).unwrap_or(0))
}

/// The order of dims in which those at `from` stand at `to`.
fn moved(rank: usize, from: &[i64], to: &[i64]) -> Result<Vec<i64>> {
    let wrong = || -> Error {
        err!(
            DimOutOfRange,
            "movedim: from {from:?} to {to:?} of {rank} dims"
        )
    };
    ensure!(
        from.len() == to.len(),
        InvalidArgument,
        "movedim: {} dims to {} places",
        from.len(),
        to.len()
    );
    let mut order: Vec<Option<usize>> = vec![None; rank];
    let mut rest: Vec<usize> = (0..rank).collect();
    for (&from, &to) in from.iter().zip(to) {
        let (from, to) = (place(from, rank)?, place(to, rank)?);
        let slot = order.get_mut(to).ok_or_else(wrong)?;
        let known = rest.iter().position(|&d| d == from);
        let (None, Some(known)) = (*slot, known) else {
            return Err(wrong());
        };
        *slot = Some(from);
        rest.remove(known);
    }
    let mut rest = rest.into_iter();
    let filled = order
        .into_iter()
        .map(|slot| slot.or_else(|| rest.next()).unwrap_or(0));
    Ok(filled.map(|d| i64::try_from(d).unwrap_or(0)).collect())
}

/// A count for each dim, as a new dim before it that is expanded, and both as one.
fn repeated(r: &mut Recording<'_>, counts: &[i64]) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let shape = r.shape(x);
    let lead = counts.len().checked_sub(shape.len());
    let Some(lead) = lead.filter(|_| counts.iter().all(|&n| n >= 0)) else {
        return Err(err!(
            InvalidArgument,
            "{}: counts of {counts:?} for a tensor with {} dims",
            r.name,
            shape.len()
        )
        .help("give a count of 0 or more for every dim"));
    };
    let (mut single, mut full, mut out) = (vec![], vec![], vec![]);
    for (i, &count) in counts.iter().enumerate() {
        let size = i
            .checked_sub(lead)
            .and_then(|d| shape.get(d).cloned())
            .unwrap_or(Expr::ONE);
        out.push(size.clone() * count);
        single.extend([Expr::ONE, size.clone()]);
        full.extend([Expr::constant(count), size]);
    }
    let x = r.b.view(x, &single)?;
    let x = r.b.expand(x, &full)?;
    r.b.view(x, &out)
}

fn unfold_dim(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let mut shape = r.shape(x);
    let (dim, size, step) = (r.dim(r.int(0)?, shape.len())?, r.int(1)?, r.int(2)?);
    let Some(extent) = shape.get(dim).cloned() else {
        return Err(err!(RankMismatch, "unfold_dim: of a tensor without dims"));
    };
    ensure!(
        size >= 0 && step > 0,
        InvalidArgument,
        "unfold_dim: windows of {size} every {step}"
    );
    let fits = Expr::constant(size).provably_le(&extent, &r.b.graph().ranges());
    if !fits {
        r.known(&extent, "windows over a dim")?;
    }
    ensure!(
        fits,
        InvalidArgument,
        "unfold_dim: windows of {size} over {extent} elements"
    );
    let count = (extent - size).floordiv(step) + 1;
    let inside = Expr::constant(size);
    let begin = r.count(&count, 0, step, x)?;
    let begin = r.b.view(begin, &[count.clone(), Expr::ONE])?;
    let tap = r.count(&inside, 0, 1, x)?;
    let at = r.b.add(begin, tap)?;
    let at = r.b.view(at, &[count.clone() * inside.clone()])?;
    let y = r.b.index_select(x, i64::try_from(dim).unwrap_or(0), at)?;
    shape.splice(dim..=dim, [count, inside]);
    let y = r.b.view(y, &shape)?;
    let dims = (0..shape.len())
        .filter(|&d| d != dim + 1)
        .chain([dim + 1])
        .collect();
    r.b.emit(Op::Permute { dims }, &[y])
}

/// Blocks of channels as blocks of pixels, and back.
impl Tensor {
    /// `[.., c r r, h, w]` as `[.., c, h r, w r]`.
    #[track_caller]
    pub fn pixel_shuffle(&self, factor: i64) -> Tensor {
        if let Err(error) = image(self, factor, "pixel_shuffle") {
            return Tensor::refused(error);
        }
        let apart = self.unflatten(-3, &[-1, factor, factor]);
        // [.., c, r, r, h, w] to [.., c, h, r, w, r].
        let order = last_dims(apart.rank(), &[-5, -2, -4, -1, -3]);
        apart
            .permute(&order)
            .flatten_dims(-2, -1)
            .flatten_dims(-3, -2)
    }

    /// `[.., c, h r, w r]` as `[.., c r r, h, w]`.
    #[track_caller]
    pub fn pixel_unshuffle(&self, factor: i64) -> Tensor {
        if let Err(error) = image(self, factor, "pixel_unshuffle") {
            return Tensor::refused(error);
        }
        let apart = self
            .unflatten(-1, &[-1, factor])
            .unflatten(-3, &[-1, factor]);
        // [.., c, h, r, w, r] to [.., c, r, r, h, w].
        let order = last_dims(apart.rank(), &[-5, -3, -1, -4, -2]);
        apart.permute(&order).flatten_dims(-5, -3)
    }
}

fn image(x: &Tensor, factor: i64, name: &str) -> Result<()> {
    x.check()?;
    ensure!(factor > 0, InvalidArgument, "{name}: a factor of {factor}");
    ensure!(
        x.rank() > 2,
        RankMismatch,
        "{name}: a tensor with {} dims is no image with channels",
        x.rank()
    );
    Ok(())
}

/// All dims, the last ones in another order.
fn last_dims(rank: usize, last: &[i64]) -> Vec<i64> {
    let first = 0..rank.saturating_sub(last.len());
    first
        .map(|d| i64::try_from(d).unwrap_or(0))
        .chain(last.iter().copied())
        .collect()
}
