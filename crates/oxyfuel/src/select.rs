//! Elements picked by several indices, by rank, by mask, and written there.

use crate::call::Operand;
use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure, err};
use oxyfuel_graph::{Op, Operand as Value, Scatter, ValueId};

/// Several indices at once.
impl Tensor {
    /// `x[i, :, j, …]`: elements at the places that indices (i64 or i32, which broadcast together and may count from the end) name in the first dims; `None` keeps a dim whole. Where indexed dims stand
    /// side by side the broadcast shape takes their place, else it comes first.
    ///
    /// ```
    /// use oxyfuel::Tensor;
    /// # fn main() -> oxyfuel::Result<()> {
    /// let x = Tensor::from_slice(&[0i64, 1, 2, 3, 4, 5], &[2, 3]);
    /// let (rows, columns) = (Tensor::from_slice(&[0i64, 1], &[2]), Tensor::from_slice(&[2i64, -1], &[2]));
    /// assert_eq!(x.index(&[Some(&rows), Some(&columns)]).to_vec::<i64>()?, [2, 5]);
    /// assert_eq!(x.index(&[None, Some(&columns)]).to_vec::<i64>()?, [2, 2, 5, 5]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn index(&self, indices: &[Option<&Tensor>]) -> Tensor {
        let (operands, numbers) = listed(self, &[], indices, &[]);
        recipe(
            "index",
            &operands,
            &numbers,
            Nodes(|r| {
                let (x, indices) = (r.tensor(0)?, indices_of(r, 1, 0)?);
                let at = r.b.indexed(x, &indices)?;
                let shape = r.b.slices_of(&at);
                let dim = i64::try_from(at.dim).unwrap_or(0);
                let y = r.b.index_select(at.x, dim, at.linear)?;
                r.b.view(y, &shape)
            }),
        )
    }

    /// This tensor with what `indices` name, as in [`index`](Self::index), replaced by `values`, which broadcast; with `accumulate` they are added to what is there. Of several for one place the
    /// last stays. A single mask of bools takes a value of one element.
    #[track_caller]
    pub fn index_put_at(
        &self,
        indices: &[Option<&Tensor>],
        values: &Tensor,
        accumulate: bool,
    ) -> Tensor {
        let numbers = [Scalar::B(accumulate)];
        let (operands, numbers) = listed(self, &[values], indices, &numbers);
        recipe("index_put_at", &operands, &numbers, Nodes(put))
    }
}

/// Operands and numbers of a recipe with a list of indices: which dims have one.
fn listed<'a>(
    x: &'a Tensor,
    others: &[&'a Tensor],
    indices: &[Option<&'a Tensor>],
    numbers: &[Scalar],
) -> (Vec<Operand<'a>>, Vec<Scalar>) {
    let tensors = [x].into_iter().chain(others.iter().copied());
    let operands = tensors
        .chain(indices.iter().copied().flatten())
        .map(Operand::from);
    let given = indices.iter().map(|index| Scalar::B(index.is_some()));
    (
        operands.collect(),
        numbers.iter().copied().chain(given).collect(),
    )
}

/// The indices, which begin at an operand; which dims have one, numbers from `from` on say.
fn indices_of(r: &Recording<'_>, operand: usize, from: usize) -> Result<Vec<Option<ValueId>>> {
    let mut next = operand;
    let given = r.ints(from);
    let mut indices = vec![];
    for given in given {
        indices.push(match given {
            0 => None,
            _ => {
                let index = r.tensor(next)?;
                ensure!(
                    !r.dtype(index).is_bool(),
                    DataDependent,
                    "{}: a mask picks as many elements as its data says",
                    r.name
                );
                ensure!(
                    matches!(r.dtype(index), DType::I64 | DType::I32),
                    DTypeMismatch,
                    "{}: an index of {}",
                    r.name,
                    r.dtype(index)
                );
                next += 1;
                Some(index)
            }
        });
    }
    Ok(indices)
}

fn put(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, values, accumulate) = (r.tensor(0)?, r.tensor(1)?, r.flag(0)?);
    let values = r.b.cast(values, r.dtype(x))?;
    let one_mask = r.ints(1) == [1] && r.tensor(2).is_ok_and(|i| r.dtype(i).is_bool());
    if !one_mask {
        let indices = indices_of(r, 2, 1)?;
        let at = r.b.indexed(x, &indices)?;
        return r.b.put_slices(&at, values, accumulate);
    }
    let mask = r.tensor(2)?;
    let single = r.shape(values).iter().all(|n| n.is_const(1));
    ensure!(
        single,
        DataDependent,
        "{}: a mask names as many places as its data says; it takes one value",
        r.name
    );
    let (mut shape, rank) = (r.shape(mask), r.shape(x).len());
    ensure!(
        shape.len() <= rank,
        RankMismatch,
        "{}: a mask of more dims than the tensor",
        r.name
    );
    shape.resize(rank, Expr::ONE);
    let mask = r.b.view(mask, &shape)?;
    let mut value = r.b.view(values, &[])?;
    if accumulate {
        value = r.b.add(x, value)?;
    }
    r.b.emit(Op::Where, &[mask, value, x])
}

/// A tensor as one row of its elements.
fn flat(r: &mut Recording<'_>, x: ValueId) -> Result<ValueId> {
    let count = r.b.ty(x).numel();
    r.b.view(x, &[count])
}

/// Elements counted in row-major order, and along dims.
impl Tensor {
    /// The elements at places counted in row-major order; negative ones count from the end.
    #[track_caller]
    pub fn take(&self, index: &Tensor) -> Tensor {
        recipe(
            "take",
            &[self.into(), index.into()],
            &[],
            Nodes(|r| {
                let (x, index) = (r.tensor(0)?, r.tensor(1)?);
                let shape = r.shape(index);
                let (row, index) = (flat(r, x)?, flat(r, index)?);
                let index = r.b.wrapped(index, &r.shape(row)[0])?;
                let y = r.b.index_select(row, 0, index)?;
                r.b.view(y, &shape)
            }),
        )
    }

    /// This tensor with the elements of `src` at places counted in row-major order; with `accumulate` they are added to what is there.
    #[track_caller]
    pub fn put(&self, index: &Tensor, src: &Tensor, accumulate: bool) -> Tensor {
        let operands = [self.into(), index.into(), src.into()];
        recipe(
            "put",
            &operands,
            &[accumulate.into()],
            Nodes(|r| {
                let (x, index, src) = (r.tensor(0)?, r.tensor(1)?, r.tensor(2)?);
                let shape = r.shape(x);
                let (row, index, src) = (flat(r, x)?, flat(r, index)?, flat(r, src)?);
                let index = r.b.wrapped(index, &r.shape(row)[0])?;
                let op = match r.flag(0)? {
                    true => Scatter::Sum,
                    false => Scatter::Set,
                };
                let src = r.b.cast(src, r.dtype(x))?;
                let y = r.b.scatter(op, row, 0, index, src)?;
                r.b.view(y, &shape)
            }),
        )
    }

    /// The elements at `indices` along a dim, the other dims of both broadcast: what `argmax`, `argsort` and their like say.
    #[track_caller]
    pub fn take_along_dim(&self, indices: &Tensor, dim: i64) -> Tensor {
        recipe(
            "take_along_dim",
            &[self.into(), indices.into()],
            &[dim.into()],
            Nodes(|r| {
                let (x, index) = (r.tensor(0)?, r.tensor(1)?);
                let (a, b) = (r.shape(x), r.shape(index));
                let dim = r.dim(r.int(0)?, a.len())?;
                ensure!(
                    a.len() == b.len() && !a.is_empty(),
                    RankMismatch,
                    "take_along_dim: indices with {} dims for a tensor with {}",
                    b.len(),
                    a.len()
                );
                let (mut wide_x, mut wide_index) = (a.clone(), b.clone());
                for d in (0..a.len()).filter(|&d| d != dim) {
                    let extent = if a[d].is_const(1) { &b[d] } else { &a[d] };
                    wide_x[d] = extent.clone();
                    wide_index[d] = extent.clone();
                }
                let x = r.b.expand(x, &wide_x)?;
                let index = r.b.expand(index, &wide_index)?;
                r.b.gather(x, i64::try_from(dim).unwrap_or(0), index)
            }),
        )
    }

    /// This tensor with the slices along `dim` that the one-dimensional `index` names filled with a number.
    #[track_caller]
    pub fn index_fill<'a>(
        &self,
        dim: i64,
        index: &'a Tensor,
        value: impl Into<Operand<'a>>,
    ) -> Tensor {
        recipe(
            "index_fill",
            &[self.into(), index.into(), value.into()],
            &[dim.into()],
            Nodes(|r| {
                let (x, index, value) = (r.tensor(0)?, r.tensor(1)?, r.operand(2)?);
                let ty = r.b.ty(x).clone();
                let value = match value {
                    Value::Value(v) => r.b.cast(v, ty.dtype)?,
                    Value::Number(n) => r.b.full(n, vec![], ty.dtype, ty.device)?,
                };
                ensure!(
                    r.shape(value).is_empty(),
                    RankMismatch,
                    "index_fill: a value with {} dims",
                    r.shape(value).len()
                );
                let dim = r.dim(r.int(0)?, ty.rank())?;
                ensure!(
                    ty.rank() > 0,
                    RankMismatch,
                    "index_fill: of a tensor without dims"
                );
                let mut shape = ty.shape.clone();
                shape[dim] = r.b.ty(index).numel();
                let src = r.b.expand(value, &shape)?;
                let index = r.b.wrapped(index, &ty.shape[dim])?;
                r.b.index_put(x, src, i64::try_from(dim).unwrap_or(0), index)
            }),
        )
    }

    /// The elements of `src` one after another where the mask holds, this tensor's elsewhere; `src` has at least as many as the mask has places.
    #[track_caller]
    pub fn masked_scatter(&self, mask: &Tensor, src: &Tensor) -> Tensor {
        let operands = [self.into(), mask.into(), src.into()];
        recipe(
            "masked_scatter",
            &operands,
            &[],
            Nodes(|r| {
                let (x, mask, src) = (r.tensor(0)?, r.tensor(1)?, r.tensor(2)?);
                let shape = r.shape(x);
                ensure!(
                    r.dtype(mask).is_bool() && r.dtype(src) == r.dtype(x),
                    DTypeMismatch,
                    "masked_scatter: a mask of {} and elements of {} for a tensor of {}",
                    r.dtype(mask),
                    r.dtype(src),
                    r.dtype(x)
                );
                ensure!(
                    !r.b.ty(src).numel().is_const(0),
                    ShapeMismatch,
                    "masked_scatter: a source without elements"
                );
                let mask = r.b.expand(mask, &shape)?;
                let row = flat(r, mask)?;
                let ones = r.b.cast(row, DType::I64)?;
                let upto = r.b.cumsum(ones, 0)?;
                let rank = r.b.sub(upto, ones)?;
                let src = flat(r, src)?;
                let new = r.b.index_select(src, 0, rank)?;
                let new = r.b.view(new, &shape)?;
                r.b.emit(Op::Where, &[mask, new, x])
            }),
        )
    }

    /// 1 at the position that each element names, of `classes`, along a new last dim; 0 elsewhere. An i64, of whole numbers.
    #[track_caller]
    pub fn one_hot(&self, classes: i64) -> Tensor {
        recipe(
            "one_hot",
            &[self.into()],
            &[classes.into()],
            Nodes(|r| {
                let (x, classes) = (r.tensor(0)?, r.int(0)?);
                ensure!(
                    r.dtype(x).is_int(),
                    UnsupportedDType,
                    "one_hot is of integers, not of {}",
                    r.dtype(x)
                );
                ensure!(classes > 0, InvalidArgument, "one_hot: {classes} classes");
                let count = r.count(&Expr::constant(classes), 0, 1, x)?;
                let x = r.b.cast(x, DType::I64)?;
                let x = r.b.unsqueeze(x, -1)?;
                let hot = r.b.eq(x, count)?;
                r.b.cast(hot, DType::I64)
            }),
        )
    }
}

/// Places in rows that are in order.
impl Tensor {
    /// How many elements of a row come before each value: those below it, or with `right` those that are not above. This tensor is one row for all values, or has a row for each row of them;
    /// its last dim is in order. An i64.
    #[track_caller]
    pub fn searchsorted<'a>(&self, values: impl Into<Operand<'a>>, right: bool) -> Tensor {
        recipe(
            "searchsorted",
            &[self.into(), values.into()],
            &[right.into()],
            Nodes(|r| {
                let (row, values) = (r.tensor(0)?, r.operand(1)?);
                search(r, row, values)
            }),
        )
    }

    /// How many `boundaries` (a vector in order) come before each element: those below it, or with `right` those that are not above. An i64.
    #[track_caller]
    pub fn bucketize(&self, boundaries: &Tensor, right: bool) -> Tensor {
        recipe(
            "bucketize",
            &[self.into(), boundaries.into()],
            &[right.into()],
            Nodes(|r| {
                let (values, row) = (r.operand(0)?, r.tensor(1)?);
                ensure!(
                    r.shape(row).len() == 1,
                    RankMismatch,
                    "bucketize: boundaries with {} dims",
                    r.shape(row).len()
                );
                search(r, row, values)
            }),
        )
    }

    /// The elements where a mask holds: as many as the data says, which no compiled program knows. Always an error that says so; `where_`, `masked_fill` and sums with a mask keep the shape.
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Tensor {
        self.as_many_as_the_data_says("masked_select", mask)
    }

    /// The places of elements that are not 0: as many as the data says. Always an error that says so.
    #[track_caller]
    pub fn nonzero(&self) -> Tensor {
        self.as_many_as_the_data_says("nonzero", self)
    }

    /// The distinct elements: as many as the data says. Always an error that says so.
    #[track_caller]
    pub fn unique(&self) -> Tensor {
        self.as_many_as_the_data_says("unique", self)
    }

    #[track_caller]
    fn as_many_as_the_data_says(&self, name: &str, other: &Tensor) -> Tensor {
        for tensor in [self, other] {
            if let Err(error) = tensor.check() {
                return Tensor::refused(error);
            }
        }
        Tensor::refused(
            err!(DataDependent, "{name}: how many elements there are, only the data says")
                .help("keep the shape with where_ or masked_fill, or take the elements out in oxyfuel::disable with to_vec"),
        )
    }
}

fn search(r: &mut Recording<'_>, row: ValueId, values: Value) -> Result<ValueId> {
    let right = r.flag(0)?;
    let shape = r.shape(row);
    let Some(last) = shape.last() else {
        return Err(err!(RankMismatch, "{}: a row has a dim", r.name));
    };
    r.known(last, "a row")?;
    r.b.searchsorted(row, values, right, None)
}
