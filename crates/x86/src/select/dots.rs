//! Matrix products whose operands both run along the depth: few rows times a weight that is stored by its outputs.
//!
//! Every sum has a vector of its own, along the depth: a step loads a vector of each row of `a` and of each column of `b`, where they lie, and multiplies every pair. What is left
//! at the end is to add the lanes. Nothing is copied or turned, and each operand is read once.

use oxyfuel_base::{DType, Result};
use oxyfuel_kernel::ir::{ReduceOp, Val};

use super::mma::{Operand, Stride, Walk};
use super::{Def, Select};
use crate::emit::lane_bytes;
use crate::mir::{A, Cond, Item, Mem, Op as X, Reg, Width};

/// Vectors of the depth between two jumps.
const UNROLL: i64 = 2;
/// Up to so many vectors of the depth are taken at once.
const SHORT: i64 = 8;

/// The sums of a block, a vector each, and the two sides that are multiplied.
struct Dots {
    sums: Vec<Reg>,
    dtype: DType,
    left: Walk,
    right: Walk,
    /// What the sides are stored as.
    parts: [DType; 2],
}

impl Select<'_, '_> {
    /// Whether vectors along the depth suit a product of `rows x cols` sums that begin at zero.
    pub fn runs_along_depth(&self, a: &Operand, b: &Operand, acc: Val) -> Result<bool> {
        let ty = self.tile_of(acc)?;
        let [rows, cols] = ty.shape[..] else {
            return Ok(false);
        };
        let along = |o: &Operand| matches!(o.depth[..], [(_, Stride::Bytes(n))] if n == o.dtype.size() as i64);
        let size = b.dtype.size() as i64;
        let across = b.side.last().is_none_or(|s| s.1 != Stride::Bytes(size));
        let fixed = |o: &Operand| o.side.iter().all(|s| matches!(s.1, Stride::Bytes(_)));
        let float = |dtype: DType| dtype.is_float() && dtype.size() >= 2;
        // Sums, the vectors of the shorter side, and one of the longer.
        let registers = if self.e.avx512() { 32 } else { 16 };
        let fits = rows * cols + rows.min(cols) + 1 < registers;
        Ok(across
            && fits
            && [a, b]
                .iter()
                .all(|o| along(o) && fixed(o) && float(o.dtype))
            && matches!(ty.dtype, DType::F32 | DType::F64)
            && self.is_zero(acc))
    }

    /// The product, its sums left in scratch.
    pub fn dots(&mut self, a: &Operand, b: &Operand, acc: Val, result: Val) -> Result<()> {
        let ty = self.tile_of(acc)?;
        let (rows, cols, dtype) = (ty.shape[0], ty.shape[1], ty.dtype);
        let depth = a.depth[0].0;
        let mut dots = Dots {
            sums: (0..rows * cols).map(|_| self.e.f.vec()).collect(),
            dtype,
            left: self.walk(a, 0, rows, 1)?,
            right: self.walk(b, 0, cols, 1)?,
            parts: [a.dtype, b.dtype],
        };
        for sum in &dots.sums {
            self.e.f.inst(X::VZero, Width::X, &[(*sum).into()]);
        }
        let size = lane_bytes(dtype);
        let lanes = i64::from(self.e.full_lanes(size));
        let vectors = depth / lanes;
        let short = vectors <= SHORT && depth % lanes == 0;
        if short {
            self.short_dots(&dots, vectors)?;
        }
        let (depth, vectors) = if short { (0, 0) } else { (depth, vectors) };
        let times = vectors / UNROLL;
        let count = (times > 1).then(|| self.e.imm(times));
        let head = self.e.f.label();
        if count.is_some() {
            self.e.f.push(Item::Align);
            self.e.f.bind(head);
        }
        if times > 0 {
            for at in 0..UNROLL {
                self.dot_step(&dots, at, None)?;
            }
            self.advance(&mut dots.left, UNROLL * lanes);
            self.advance(&mut dots.right, UNROLL * lanes);
        }
        if let Some(count) = count {
            self.e.g(X::SubI, &[count.into(), A::I(1)]);
            self.e.f.jump(Cond::Ne, head);
        }
        for at in 0..vectors % UNROLL {
            self.dot_step(&dots, at, None)?;
        }
        if depth % lanes > 0 {
            self.e.mask_bytes = size;
            let mask = self.e.first_lanes((depth % lanes) as u32);
            self.dot_step(&dots, vectors % UNROLL, Some(mask))?;
        }
        let offset = self.save_sums(dtype, &dots.sums)?;
        let strides = vec![cols, 1];
        self.defs.insert(result, Def::Saved { offset, strides });
        Ok(())
    }

    /// Adds the lanes of each vector; the sums are in scratch, one after another.
    fn save_sums(&mut self, dtype: DType, vectors: &[Reg]) -> Result<u32> {
        let size = lane_bytes(dtype);
        let lanes = self.e.full_lanes(size);
        // The last vector may be stored with lanes that are no sums.
        let room = vectors.len().next_multiple_of(lanes as usize) as u32;
        let offset = self.take_scratch(room * size)?;
        for (number, some) in vectors.chunks(lanes as usize).enumerate() {
            let first = offset + number as u32 * lanes * size;
            if dtype == DType::F32
                && let Some((sums, lanes)) = self.joined_sums(some)?
            {
                let home = Mem::at(self.scratch, first as i32);
                self.e.store(dtype, home, sums, lanes, None, false)?;
                continue;
            }
            for (i, v) in some.iter().enumerate() {
                let sum = self.join_lanes(ReduceOp::Sum, dtype, *v, lanes)?;
                let home = Mem::at(self.scratch, (first + size * i as u32) as i32);
                let put = if size == 8 { X::VMovSdS } else { X::VMovSsS };
                self.e.f.inst(put, Width::X, &[home.into(), sum.into()]);
            }
        }
        Ok(offset)
    }

    /// A depth of a few vectors: one column after the other, so that memory is read in order where columns follow each other. Rows come from the first-level cache.
    fn short_dots(&mut self, dots: &Dots, vectors: i64) -> Result<()> {
        let multiply = if lane_bytes(dots.dtype) == 8 {
            X::FmaddPd
        } else {
            X::FmaddPs
        };
        let width = self.e.level.width();
        let cols = dots.right.places.len();
        for (j, place) in dots.right.places.iter().enumerate() {
            for at in 0..vectors {
                let v = self.dot_load(dots, *place, dots.parts[1], at, None)?;
                for (i, row) in dots.left.places.iter().enumerate() {
                    let row = self.dot_load(dots, *row, dots.parts[0], at, None)?;
                    let sum = dots.sums[i * cols + j];
                    self.e.f.inst(
                        multiply,
                        width,
                        &[sum.into(), v.into(), row.into(), sum.into()],
                    );
                }
            }
        }
        Ok(())
    }

    /// Multiplies one vector of every row with one of every column, `at` vectors from where the pointers stand.
    fn dot_step(&mut self, dots: &Dots, at: i64, mask: Option<Reg>) -> Result<()> {
        let (rows, cols) = (dots.left.places.len(), dots.right.places.len());
        let multiply = if lane_bytes(dots.dtype) == 8 {
            X::FmaddPd
        } else {
            X::FmaddPs
        };
        let width = self.e.level.width();
        // The shorter side stays in registers while the longer passes by.
        let turned = cols < rows;
        let (kept, passing) = if turned { (1, 0) } else { (0, 1) };
        let places = [&dots.left.places, &dots.right.places];
        let mut vectors = Vec::new();
        for place in places[kept] {
            vectors.push(self.dot_load(dots, *place, dots.parts[kept], at, mask)?);
        }
        for (j, place) in places[passing].iter().enumerate() {
            let v = self.dot_load(dots, *place, dots.parts[passing], at, mask)?;
            for (i, kept) in vectors.iter().enumerate() {
                let (row, col) = if turned { (j, i) } else { (i, j) };
                let sum = dots.sums[row * cols + col];
                self.e.f.inst(
                    multiply,
                    width,
                    &[sum.into(), v.into(), (*kept).into(), sum.into()],
                );
            }
        }
        Ok(())
    }

    fn dot_load(
        &mut self,
        dots: &Dots,
        place: Mem,
        part: DType,
        at: i64,
        mask: Option<Reg>,
    ) -> Result<Reg> {
        let size = lane_bytes(dots.dtype);
        let lanes = self.e.full_lanes(size);
        self.e.mask_bytes = size;
        let byte = at * i64::from(lanes) * part.size() as i64;
        let v = self.e.load(part, place.plus(byte as i32), lanes, mask)?;
        self.e.cast(part, dots.dtype, v, lanes)
    }
}
