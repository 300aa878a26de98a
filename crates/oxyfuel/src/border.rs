//! Borders around a tensor.

use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe};
use crate::tensor::Tensor;
use oxyfuel_base::{Expr, Result, Scalar, ensure};
use oxyfuel_graph::{Border, Bordering, ValueId};

/// What [`Tensor::pad`] puts around a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Padding {
    /// A number.
    Constant(f64),
    /// The elements at the same distance from the edge, which is not repeated; borders are smaller than the dim.
    Reflect,
    /// The edge.
    Replicate,
    /// The other end of the dim; borders are no larger than the dim.
    Circular,
}

impl Tensor {
    /// Grown at the ends of its last dims: two numbers a dim, before and after, the last dim first. A negative number cuts. PyTorch's `nn.functional.pad`.
    ///
    /// ```
    /// use oxyfuel::{Padding, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let x = Tensor::from_slice(&[1i64, 2, 3], &[3]);
    /// assert_eq!(x.pad(&[1, 2], Padding::Constant(0.0)).to_vec::<i64>()?, [0, 1, 2, 3, 0, 0]);
    /// assert_eq!(x.pad(&[2, 1], Padding::Reflect).to_vec::<i64>()?, [3, 2, 1, 2, 3, 2]);
    /// assert_eq!(x.pad(&[0, 2], Padding::Replicate).to_vec::<i64>()?, [1, 2, 3, 3, 3]);
    /// assert_eq!(x.pad(&[2, 1], Padding::Circular).to_vec::<i64>()?, [2, 3, 1, 2, 3, 1]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn pad(&self, borders: &[i64], how: Padding) -> Tensor {
        let (mode, value) = match how {
            Padding::Constant(value) => (0, value),
            Padding::Reflect => (1, 0.0),
            Padding::Replicate => (2, 0.0),
            Padding::Circular => (3, 0.0),
        };
        let borders = borders.iter().map(|&n| Scalar::I(n));
        let numbers: Vec<Scalar> = [Scalar::I(mode), Scalar::F(value)]
            .into_iter()
            .chain(borders)
            .collect();
        recipe("pad", &[self.into()], &numbers, Nodes(pad))
    }
}

fn pad(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let (mode, value, list, shape) = (r.int(0)?, r.float(1)?, r.ints(2), r.shape(x));
    ensure!(
        list.len() % 2 == 0 && list.len() / 2 <= shape.len(),
        InvalidArgument,
        "pad: {} numbers for a tensor with {} dims",
        list.len(),
        shape.len()
    );
    let last = shape.len();
    let borders: Vec<Border> = list
        .chunks_exact(2)
        .enumerate()
        .map(|(i, pair)| Border {
            dim: last - 1 - i,
            before: Expr::constant(pair[0]),
            after: Expr::constant(pair[1]),
        })
        .collect();
    for (border, pair) in borders.iter().zip(list.chunks_exact(2)) {
        fits(r, &shape[border.dim], pair, mode)?;
    }
    let how = match mode {
        1 => Bordering::Mirrored,
        2 => Bordering::Clamped,
        3 => Bordering::Circular,
        _ => {
            // An integer is padded with an integer.
            let value = match r.dtype(x).is_float() {
                true => Scalar::F(value),
                false => Scalar::I(value as i64),
            };
            ensure!(
                r.dtype(x).is_float() || value.as_f64() == r.float(1)?,
                DTypeMismatch,
                "pad: {} cannot be kept in a tensor of {}",
                r.float(1)?,
                r.dtype(x)
            );
            return r.b.pad_constant(x, &borders, value);
        }
    };
    r.b.pad_indexed(x, &borders, how)
}

/// Whether the borders of a dim are such that every element of theirs is there.
fn fits(r: &Recording<'_>, extent: &Expr, pair: &[i64], mode: i64) -> Result<()> {
    let ranges = r.b.graph().ranges();
    // What a border needs from the dim, and what the result has.
    let most = pair.iter().copied().max().unwrap_or(0);
    let needs = match mode {
        0 => Expr::ZERO,
        1 => Expr::constant(most) + 1,
        2 => Expr::ONE,
        _ => Expr::constant(most),
    };
    let cut: Expr = pair.iter().map(|&n| Expr::constant(n.min(0))).sum();
    let grown = extent.clone() + cut;
    let enough = (most <= 0 || needs.provably_le(extent, &ranges))
        && Expr::ZERO.provably_le(&grown, &ranges);
    if !enough {
        r.known(extent, "borders of a dim")?;
    }
    ensure!(
        enough,
        InvalidArgument,
        "pad: borders of {} and {} around a dim of extent {extent}",
        pair[0],
        pair[1]
    );
    Ok(())
}
