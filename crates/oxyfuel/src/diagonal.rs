//! Triangles and diagonals of matrices.

use crate::arrange::place;
use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe};
use crate::tensor::Tensor;
use oxyfuel_base::{Expr, Result, Scalar, ensure, err};
use oxyfuel_graph::{Compare, Op, ValueId};

/// New tensors.
impl Tensor {
    /// The elements of the last two dims on and below a diagonal, 0 above it; diagonal 0 is the main one, 1 the next above.
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> Tensor {
        recipe(
            "tril",
            &[self.into()],
            &[diagonal.into()],
            Nodes(|r| triangle(r, Compare::Le)),
        )
    }

    /// The elements of the last two dims on and above a diagonal, 0 below it.
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> Tensor {
        recipe(
            "triu",
            &[self.into()],
            &[diagonal.into()],
            Nodes(|r| triangle(r, Compare::Ge)),
        )
    }

    /// Matrices of zeros whose diagonals are the rows of this tensor's last dim; `dim1` and `dim2` are the new dims of rows and columns.
    #[track_caller]
    pub fn diag_embed(&self, offset: i64, dim1: i64, dim2: i64) -> Tensor {
        let list = [offset, dim1, dim2].map(Scalar::I);
        recipe("diag_embed", &[self.into()], &list, Nodes(diag_embed))
    }
}

/// The diagonal as a view where it is one, and what goes into it.
impl Tensor {
    /// The diagonal of the matrices that two dims make, as a new last dim: `offset` 0 is the main one, 1 the next above. A view where the rows of the matrices lie end to end, a copy elsewhere.
    #[track_caller]
    pub fn diagonal(&self, offset: i64, dim1: i64, dim2: i64) -> Tensor {
        Tensor::or_refused(self.of_diagonal(offset, dim1, dim2, None))
    }

    /// A diagonal, or the tensor with it replaced.
    #[track_caller]
    fn of_diagonal(
        &self,
        offset: i64,
        dim1: i64,
        dim2: i64,
        src: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (rows, columns) = (self.size(dim1)?, self.size(dim2)?);
        let order = matrix_last(self.rank(), dim1, dim2)?;
        let (start, end) = diagonal_bounds(rows, columns, offset)?;
        let step = columns.saturating_add(1);
        let flat = self.permute(&order).flatten_dims(-2, -1);
        let Some(src) = src else {
            return Ok(flat.slice(-1, start, end, step));
        };
        let put = flat.slice_scatter(&src.to(self.dtype()), -1, start, end, step);
        let mut back = vec![0; order.len()];
        for (to, &from) in order.iter().enumerate() {
            back[usize::try_from(from).unwrap_or(0)] = i64::try_from(to).unwrap_or(0);
        }
        Ok(put.unflatten(-1, &[rows, columns]).permute(&back))
    }

    /// Of a vector the matrix with it as a diagonal, of a matrix its diagonal.
    #[track_caller]
    pub fn diag(&self, offset: i64) -> Tensor {
        match self.rank() {
            _ if self.check().is_err() => self.clone(),
            1 => self.diag_embed(offset, -2, -1),
            2 => self.diagonal(offset, 0, 1),
            rank => Tensor::refused(err!(RankMismatch, "diag: of a tensor with {rank} dims")),
        }
    }

    /// The sum of a matrix's diagonal.
    #[track_caller]
    pub fn trace(&self) -> Tensor {
        if self.rank() != 2 && self.check().is_ok() {
            let error = err!(RankMismatch, "trace: of a tensor with {} dims", self.rank());
            return Tensor::refused(error);
        }
        self.diagonal(0, 0, 1).sum(&[], false)
    }

    /// This tensor with a diagonal replaced by `src`.
    #[track_caller]
    pub fn diagonal_scatter(&self, src: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Tensor {
        Tensor::or_refused(self.of_diagonal(offset, dim1, dim2, Some(src)))
    }
}

/// The order of dims with two of them last.
fn matrix_last(rank: usize, dim1: i64, dim2: i64) -> Result<Vec<i64>> {
    let (a, b) = (place(dim1, rank)?, place(dim2, rank)?);
    ensure!(
        a != b && rank > 1,
        DimOutOfRange,
        "dims {dim1} and {dim2} make no matrix of {rank} dims"
    );
    let rest = (0..rank).filter(|&d| d != a && d != b);
    Ok(rest
        .chain([a, b])
        .map(|d| i64::try_from(d).unwrap_or(0))
        .collect())
}

/// Where a diagonal begins and ends in the rows of a matrix laid end to end.
fn diagonal_bounds(rows: i64, columns: i64, offset: i64) -> Result<(i64, i64)> {
    let (first_row, first_column) = (offset.min(0).saturating_neg(), offset.max(0));
    let length = (rows.saturating_sub(first_row)).min(columns.saturating_sub(first_column));
    if length <= 0 {
        return Ok((0, 0));
    }
    let bounds = || {
        let start = first_row.checked_mul(columns)?.checked_add(first_column)?;
        let end = (length - 1)
            .checked_mul(columns.checked_add(1)?)?
            .checked_add(start)?;
        Some((start, end.checked_add(1)?))
    };
    bounds().ok_or_else(|| {
        err!(
            SizeOverflow,
            "a matrix of {rows} rows and {columns} columns"
        )
    })
}

/// `column - row` of the last two dims, and a number, compared.
fn triangle(r: &mut Recording<'_>, f: Compare) -> Result<ValueId> {
    let (x, diagonal) = (r.tensor(0)?, r.int(0)?);
    let shape = r.shape(x);
    let [.., rows, columns] = &shape[..] else {
        return Err(err!(
            RankMismatch,
            "{}: a tensor with {} dims has no matrices",
            r.name,
            shape.len()
        ));
    };
    let inside = band(r, x, rows, columns, f, diagonal)?;
    let ty = r.b.ty(x).clone();
    let zero = r.b.full(0, vec![], ty.dtype, ty.device)?;
    r.b.emit(Op::Where, &[inside, x, zero])
}

/// Where `column - row` compares so with a number.
fn band(
    r: &mut Recording<'_>,
    like: ValueId,
    rows: &Expr,
    columns: &Expr,
    f: Compare,
    diagonal: i64,
) -> Result<ValueId> {
    let row = r.count(rows, 0, 1, like)?;
    let row = r.b.view(row, &[rows.clone(), Expr::ONE])?;
    let column = r.count(columns, 0, 1, like)?;
    let distance = r.b.sub(column, row)?;
    r.b.compare(f, distance, diagonal)
}

fn diag_embed(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, offset) = (r.tensor(0)?, r.int(0)?);
    let shape = r.shape(x);
    let rank = shape.len() + 1;
    let (a, b) = (r.dim(r.int(1)?, rank)?, r.dim(r.int(2)?, rank)?);
    let Some(length) = shape.last() else {
        return Err(err!(RankMismatch, "diag_embed: of a tensor without dims"));
    };
    ensure!(
        a != b,
        DimOutOfRange,
        "diag_embed: rows and columns are both dim {a}"
    );
    let more = Expr::constant(offset.saturating_abs());
    let side = length.clone() + more.clone();
    let border = oxyfuel_graph::Border {
        dim: shape.len() - 1,
        before: Expr::ZERO,
        after: more,
    };
    let long = r.b.pad_constant(x, &[border], Scalar::I(0))?;
    // Above the main diagonal elements are counted by rows, below it by columns.
    let spread = r.b.unsqueeze(long, if offset >= 0 { -1 } else { -2 })?;
    let on = band(r, x, &side, &side, Compare::Eq, offset)?;
    let ty = r.b.ty(x).clone();
    let zero = r.b.full(0, vec![], ty.dtype, ty.device)?;
    let y = r.b.emit(Op::Where, &[on, spread, zero])?;
    let mut rest = 0..rank - 2;
    let order = (0..rank).map(|d| match d {
        d if d == a => rank - 2,
        d if d == b => rank - 1,
        _ => rest.next().unwrap_or(0),
    });
    let dims = order.collect();
    r.b.emit(Op::Permute { dims }, &[y])
}
