//! Images read between their pixels: `grid_sampler_2d`.
//!
//! A grid gives each new pixel a place in the old image, from -1 at one border to 1 at the other. Places are computed in f32 (f64 stays), whatever the image is.

use super::Builder;
use crate::ir::ValueId;
use crate::op::{Binary, Compare, Op, Unary};
use oxyfuel_base::{Code, DType, Expr, Result};

/// How a value between pixels comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Between {
    Bilinear,
    Nearest,
    Bicubic,
}

/// What lies outside of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// The curvature of the cubic.
const A: f64 = -0.75;

/// How places are read.
#[derive(Clone, Copy)]
struct Rule {
    outside: Outside,
    /// Whether -1 and 1 are the centres of the corner pixels rather than their outer edges.
    corners: bool,
    wide: DType,
}

impl Builder {
    /// `x` (`[n, c, h, w]`) at the places of `grid` (`[n, h', w', 2]`: column, then row).
    #[track_caller]
    pub fn grid_sampler_2d(
        &mut self,
        x: ValueId,
        grid: ValueId,
        between: Between,
        outside: Outside,
        corners: bool,
    ) -> Result<ValueId> {
        let (ty, places) = (self.ty(x).clone(), self.ty(grid).clone());
        let wide = match ty.dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let sizes = match (&ty.shape[..], &places.shape[..]) {
            ([_, _, h, w], [_, _, _, two]) if two.is_const(2) => h.as_const().zip(w.as_const()),
            _ => None,
        };
        let Some((rows, columns)) = sizes.filter(|s| s.0 > 0 && s.1 > 0 && ty.dtype.is_float())
        else {
            let message = "grid_sampler_2d: an image of known size, and a grid of pairs".to_owned();
            return self.fail(Code::ShapeMismatch, message);
        };
        let rule = Rule {
            outside,
            corners,
            wide,
        };
        let grid = self.cast(grid, wide)?;
        let shape = [&places.shape[..1], &[Expr::ONE], &places.shape[1..3]].concat();
        let place = |b: &mut Self, which: i64, size: i64| -> Result<ValueId> {
            let part = b.slice(grid, 3, which, which + 1, 1)?;
            let part = b.view(part, &shape)?;
            b.unnormalised(part, size, rule)
        };
        let (column, row) = (place(self, 0, columns)?, place(self, 1, rows)?);
        let wide_x = self.cast(x, wide)?;
        let flat = [&ty.shape[..2], &[Expr::constant(rows * columns)]].concat();
        let image = Image {
            flat: self.view(wide_x, &flat)?,
            rows,
            columns,
            out: [&ty.shape[..2], &places.shape[1..3]].concat(),
            rule,
        };
        let y = match between {
            Between::Nearest => {
                let column = self.kept_inside(column, columns, rule)?;
                let row = self.kept_inside(row, rows, rule)?;
                let (column, row) = (
                    self.unary(Unary::Round, column)?,
                    self.unary(Unary::Round, row)?,
                );
                self.pixel(&image, row, column)?
            }
            Between::Bilinear => {
                let column = self.kept_inside(column, columns, rule)?;
                let row = self.kept_inside(row, rows, rule)?;
                self.mixed(&image, row, column, &[0.0, 1.0], Self::two_weights)?
            }
            Between::Bicubic => self.mixed(
                &image,
                row,
                column,
                &[-1.0, 0.0, 1.0, 2.0],
                Self::four_weights,
            )?,
        };
        self.cast(y, ty.dtype)
    }

    /// From [-1, 1] to pixels.
    #[track_caller]
    fn unnormalised(&mut self, x: ValueId, size: i64, rule: Rule) -> Result<ValueId> {
        let size = size as f64;
        let from_one = self.add(x, 1.0)?;
        if rule.corners {
            return self.mul(from_one, (size - 1.0) / 2.0);
        }
        let twice = self.mul(from_one, size)?;
        let twice = self.sub(twice, 1.0)?;
        self.mul(twice, 0.5)
    }

    /// A place outside of the image brought where the rule wants it read; zeros lie where they are.
    #[track_caller]
    fn kept_inside(&mut self, x: ValueId, size: i64, rule: Rule) -> Result<ValueId> {
        let last = (size - 1) as f64;
        let x = match rule.outside {
            Outside::Zeros => return Ok(x),
            Outside::Border => x,
            Outside::Reflection => self.reflected(x, size, rule)?,
        };
        let low = self.full(0.0, vec![], rule.wide, self.ty(x).device)?;
        let high = self.full(last, vec![], rule.wide, self.ty(x).device)?;
        let x = self.emit(Op::Binary(Binary::Maximum), &[x, low])?;
        self.emit(Op::Binary(Binary::Minimum), &[x, high])
    }

    /// Back and forth between the centres of the outer pixels, or their edges.
    #[track_caller]
    fn reflected(&mut self, x: ValueId, size: i64, rule: Rule) -> Result<ValueId> {
        let (low, span) = match rule.corners {
            true => (0.0, (size - 1) as f64),
            false => (-0.5, size as f64),
        };
        if span == 0.0 {
            return self.mul(x, 0.0);
        }
        let moved = self.sub(x, low)?;
        let away = self.emit(Op::Unary(Unary::Abs), &[moved])?;
        let device = self.ty(x).device;
        let by = self.full(span, vec![], rule.wide, device)?;
        let extra = self.emit(Op::Binary(Binary::Fmod), &[away, by])?;
        let flips = self.emit(Op::Binary(Binary::Div), &[away, by])?;
        let flips = self.emit(Op::Unary(Unary::Floor), &[flips])?;
        let two = self.full(2.0, vec![], rule.wide, device)?;
        let odd = self.emit(Op::Binary(Binary::Fmod), &[flips, two])?;
        let zero = self.full(0.0, vec![], rule.wide, device)?;
        let even = self.emit(Op::Compare(Compare::Eq), &[odd, zero])?;
        let forth = self.add(extra, low)?;
        let back = self.emit(Op::Binary(Binary::Sub), &[by, extra])?;
        let back = self.add(back, low)?;
        self.emit(Op::Where, &[even, forth, back])
    }

    /// The pixel at a whole place; zero where there is none.
    #[track_caller]
    fn pixel(&mut self, image: &Image, row: ValueId, column: ValueId) -> Result<ValueId> {
        let mut there = None;
        let mut index = None;
        for (at, size) in [(row, image.rows), (column, image.columns)] {
            let device = self.ty(at).device;
            let low = self.full(0.0, vec![], image.rule.wide, device)?;
            let high = self.full((size - 1) as f64, vec![], image.rule.wide, device)?;
            if image.rule.outside == Outside::Zeros {
                for (f, bound) in [(Compare::Ge, low), (Compare::Le, high)] {
                    let inside = self.emit(Op::Compare(f), &[at, bound])?;
                    there = Some(match there {
                        None => inside,
                        Some(t) => self.emit(Op::Binary(Binary::BitwiseAnd), &[t, inside])?,
                    });
                }
            }
            let at = self.emit(Op::Binary(Binary::Maximum), &[at, low])?;
            let at = self.emit(Op::Binary(Binary::Minimum), &[at, high])?;
            let at = self.cast(at, DType::I64)?;
            index = Some(match index {
                None => self.mul(at, image.columns)?,
                Some(rows) => self.emit(Op::Binary(Binary::Add), &[rows, at])?,
            });
        }
        let Some(index) = index else {
            return self.fail(Code::Internal, "grid_sampler_2d: no place".to_owned());
        };
        let index = self.expand(index, &image.out)?;
        let count: Expr = image.out[2..].iter().cloned().product();
        let flat = [&image.out[..2], &[count]].concat();
        let index = self.view(index, &flat)?;
        let value = self.gather(image.flat, 2, index)?;
        let value = self.view(value, &image.out)?;
        match there {
            None => Ok(value),
            Some(there) => {
                let zero = self.full(0.0, vec![], image.rule.wide, self.ty(value).device)?;
                self.emit(Op::Where, &[there, value, zero])
            }
        }
    }

    /// The pixels around a place, each with the weight of its row and of its column.
    #[track_caller]
    fn mixed(
        &mut self,
        image: &Image,
        row: ValueId,
        column: ValueId,
        taps: &[f64],
        weights: fn(&mut Self, ValueId) -> Result<Vec<ValueId>>,
    ) -> Result<ValueId> {
        let around = |b: &mut Self, at: ValueId, size: i64| -> Result<[Vec<ValueId>; 2]> {
            let whole = b.emit(Op::Unary(Unary::Floor), &[at])?;
            let part = b.emit(Op::Binary(Binary::Sub), &[at, whole])?;
            let weights = weights(b, part)?;
            let mut places = vec![];
            for &tap in taps {
                let place = b.add(whole, tap)?;
                places.push(b.kept_inside(place, size, image.rule)?);
            }
            Ok([places, weights])
        };
        let [rows, by_row] = around(self, row, image.rows)?;
        let [columns, by_column] = around(self, column, image.columns)?;
        let mut total = None;
        for (row, by_row) in rows.iter().zip(&by_row) {
            let mut line = None;
            for (column, by_column) in columns.iter().zip(&by_column) {
                let pixel = self.pixel(image, *row, *column)?;
                let term = self.emit(Op::Binary(Binary::Mul), &[pixel, *by_column])?;
                line = Some(self.total(line, term)?);
            }
            let Some(line) = line else { continue };
            let term = self.emit(Op::Binary(Binary::Mul), &[line, *by_row])?;
            total = Some(self.total(total, term)?);
        }
        match total {
            Some(total) => Ok(total),
            None => self.fail(Code::Internal, "grid_sampler_2d: no taps".to_owned()),
        }
    }

    #[track_caller]
    fn total(&mut self, sum: Option<ValueId>, term: ValueId) -> Result<ValueId> {
        match sum {
            None => Ok(term),
            Some(sum) => self.emit(Op::Binary(Binary::Add), &[sum, term]),
        }
    }

    #[track_caller]
    fn two_weights(&mut self, part: ValueId) -> Result<Vec<ValueId>> {
        let back = self.neg(part)?;
        Ok(vec![self.add(back, 1.0)?, part])
    }

    /// The weights of four pixels in a row, for a place this far behind the second.
    #[track_caller]
    fn four_weights(&mut self, part: ValueId) -> Result<Vec<ValueId>> {
        let back = self.neg(part)?;
        let back = self.add(back, 1.0)?;
        let mut weights = vec![];
        for (x, distance) in [(part, 1.0), (part, 0.0), (back, 0.0), (back, 1.0)] {
            let x = self.add(x, distance)?;
            // Up to a distance of one, and from there to two.
            let [c3, c2, c1, c0] = match distance {
                0.0 => [A + 2.0, -(A + 3.0), 0.0, 1.0],
                _ => [A, -5.0 * A, 8.0 * A, -4.0 * A],
            };
            let mut y = self.mul(x, c3)?;
            for c in [c2, c1] {
                y = self.add(y, c)?;
                y = self.mul(y, x)?;
            }
            weights.push(self.add(y, c0)?);
        }
        Ok(weights)
    }
}

/// An image laid end to end, and the shape that its pixels are read in.
struct Image {
    flat: ValueId,
    rows: i64,
    columns: i64,
    out: Vec<Expr>,
    rule: Rule,
}
