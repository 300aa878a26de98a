//! The lanes of several vectors, added side by side.
//!
//! Alone, a vector's lanes take a shuffle and an addition for every halving, and each is half as full as the one before. The halves of two vectors fill one:
//!
//! ```text
//!   a, b, c, d, …     as many vectors as a vector has lanes
//!   ab, cd, …         half as many, each with half of a's lanes and half of b's
//!   abcd, …           a quarter
//!   a b c d …         one vector, a lane for each
//! ```
//!
//! The pairs that are added are those of [`Select::join_lanes`], and so are the bits of the sums.

use oxyfuel_base::{DType, Result};
use oxyfuel_kernel::ir::BinaryOp;

use super::Select;
use crate::mir::{A, Op as X, Reg, Width};

/// Fewer vectors are as quick one by one.
const FEWEST: usize = 3;

impl Select<'_, '_> {
    /// The sums of the lanes of full vectors of f32, in order from the first lane on, and how many lanes there are; the lanes beyond the sums are anything. Nothing where the vectors are too few, or more than a vector has lanes.
    pub fn joined_sums(&mut self, vectors: &[Reg]) -> Result<Option<(Reg, u32)>> {
        let full = self.e.full_lanes(4);
        let lanes = (vectors.len().next_power_of_two() as u32).max(4);
        if vectors.len() < FEWEST || lanes > full {
            return Ok(None);
        }
        // What has more lanes than there are sums is halved alone.
        let mut narrow = Vec::new();
        for v in vectors {
            let (mut v, mut n) = (*v, full);
            while n > lanes {
                let w = Width::of_bytes(n * 4);
                let op = match w {
                    Width::Z => X::VExtractF32x8,
                    Width::X | Width::Y => X::VExtractF128,
                };
                let high = self.e.vec(op, w, &[v.into(), A::I(1)]);
                n /= 2;
                v = self.add(v, high, n)?;
            }
            narrow.push(v);
        }
        // The last two steps leave four sums side by side that began as many vectors apart as there are blocks of four lanes.
        let blocks = lanes as usize / 4;
        let last = narrow.len() - 1;
        let mut left: Vec<Reg> = (0..lanes as usize)
            .map(|i| narrow[(i % blocks * 4 + i / blocks).min(last)])
            .collect();
        let steps: &[[(X, i64); 2]] = match lanes {
            16 => &[
                [(X::VShufF32x4, 0x44), (X::VShufF32x4, 0xee)],
                [(X::VShufF32x4, 0x88), (X::VShufF32x4, 0xdd)],
                HALVES,
                QUARTERS,
            ],
            8 if self.e.avx512() => &[[(X::VShufF32x4, 0), (X::VShufF32x4, 3)], HALVES, QUARTERS],
            8 => &[
                [(X::VPerm2F128, 0x20), (X::VPerm2F128, 0x31)],
                HALVES,
                QUARTERS,
            ],
            _ => &[HALVES, QUARTERS],
        };
        let w = Width::of_bytes(lanes * 4);
        for step in steps {
            let mut next = Vec::new();
            for pair in left.chunks_exact(2) {
                let [low, high] = step.map(|(op, how)| {
                    let mut args = vec![A::from(pair[0]), A::from(pair[1])];
                    if how >= 0 {
                        args.push(A::I(how));
                    }
                    self.e.vec(op, w, &args)
                });
                next.push(self.add(low, high, lanes)?);
            }
            left = next;
        }
        Ok(left.first().map(|sums| (*sums, lanes)))
    }

    fn add(&mut self, a: Reg, b: Reg, lanes: u32) -> Result<Reg> {
        self.e.binary(BinaryOp::Add, DType::F32, a, b, lanes)
    }
}

/// Two and two of the four lanes of each block of two vectors; and one and one of two.
const HALVES: [(X, i64); 2] = [(X::VUnpcklPd, -1), (X::VUnpckhPd, -1)];
const QUARTERS: [(X, i64); 2] = [(X::VShufPs, 0x88), (X::VShufPs, 0xdd)];
