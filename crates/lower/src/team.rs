//! A block of threads that has one row on a GPU: how many there are, how tiles lie in them, and what they tell each other.

use oxyfuel_base::DType;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{CompareOp, Geometry, Mode, ReduceOp, Space, TileLayout};
use oxyfuel_plan::TargetDesc;

use crate::chunk::combine;
use crate::rows::identity;
use crate::tile::ceil_div;

/// Warps of a block, at most.
const MOST_WARPS: i64 = 32;

/// A block of threads.
#[derive(Clone, Copy, Debug)]
pub struct Team {
    pub geometry: Geometry,
    pub threads: i64,
}

impl Team {
    /// A power of two of warps, a thread for each piece of work where there are as many.
    pub fn of(work: i64, target: &TargetDesc) -> Self {
        let lanes = i64::from(target.warp_lanes);
        let warps = ceil_div(work, lanes).unsigned_abs().next_power_of_two();
        let warps = i64::try_from(warps)
            .unwrap_or(MOST_WARPS)
            .min(MOST_WARPS)
            .min(i64::from(target.max_warps));
        Self {
            geometry: Geometry {
                lanes: target.warp_lanes,
                warps: u32::try_from(warps).unwrap_or(1),
                cluster: [1; 3],
                registers: 0,
            },
            threads: lanes * warps,
        }
    }

    /// Says how tiles of an element a thread lie, in the order of threads, and those of one element, which all threads have.
    pub fn lay_out(&self, k: &KernelBuilder) {
        k.layout_shape([self.threads], self.layout(1));
        k.layout_shape([1], self.layout(0));
    }

    fn layout(&self, step: u32) -> TileLayout {
        let mode = |extent, stride| Mode {
            dim: 0,
            extent,
            stride,
        };
        let Geometry { warps, lanes, .. } = self.geometry;
        TileLayout {
            warp: vec![mode(warps, step * lanes)],
            lane: vec![mode(lanes, step)],
            ..TileLayout::default()
        }
    }
}

/// Memory by which the threads of a block combine what each has with what those before it have.
pub struct Before {
    threads: i64,
    f: ReduceOp,
    /// By turns: who writes one has passed a `sync` behind everyone's reading of it.
    halves: [Mem; 2],
}

impl Before {
    pub fn new(k: &KernelBuilder, threads: i64, f: ReduceOp, dtype: DType) -> Self {
        Self::of_several(k, threads, f, dtype, 1)
    }

    /// Memory for so many values a thread.
    pub fn of_several(
        k: &KernelBuilder,
        threads: i64,
        f: ReduceOp,
        dtype: DType,
        values: i64,
    ) -> Self {
        let half = || k.alloc(Space::Shared, dtype, threads * values, None);
        Self {
            threads,
            f,
            halves: [half(), half()],
        }
    }

    /// What nobody has.
    pub fn nothing(&self, k: &KernelBuilder) -> Tile {
        let dtype = self.halves[0].dtype();
        k.full(dtype, [self.threads], identity(self.f, dtype))
    }

    /// What each thread and those before it have together.
    pub fn up_to(&self, k: &KernelBuilder, own: Tile) -> Tile {
        let [here] = self.each_up_to(k, [own]);
        here
    }

    /// The same of several values a thread, as many as there is memory for.
    pub fn each_up_to<const N: usize>(&self, k: &KernelBuilder, own: [Tile; N]) -> [Tile; N] {
        let me = k.iota(DType::I32, [self.threads], 0);
        // Where there is nobody, a gather gives zeros.
        let nothing = (self.f != ReduceOp::Sum).then(|| self.nothing(k));
        let (mut here, mut distance) = (own, 1);
        while distance < self.threads {
            let half = &self.halves[usize::from(distance.trailing_zeros() % 2 == 1)];
            for (own, at) in here.iter().zip(self.places(&me)) {
                k.scatter(half, &at, own, None);
            }
            k.sync();
            let there = me.compare(CompareOp::Ge, distance);
            for (own, at) in here.iter_mut().zip(self.places(&(&me - distance))) {
                let before = k.gather(half, &at, Some(&there), 0);
                let before = match &nothing {
                    Some(nothing) => there.select(&before, nothing),
                    None => before,
                };
                *own = combine(self.f, &before, own);
            }
            distance *= 2;
        }
        here
    }

    /// Where the values of each thread are, one behind the other.
    fn places(&self, thread: &Tile) -> impl Iterator<Item = Tile> {
        let (thread, threads) = (thread.clone(), self.threads);
        (0..).map(move |number| match number {
            0 => thread.clone(),
            number => &thread + number * threads,
        })
    }
}

/// Memory by which the last thread of a block tells all of them what it has.
pub struct Last {
    threads: i64,
    memory: Mem,
}

impl Last {
    pub fn new(k: &KernelBuilder, threads: i64, dtype: DType, values: i64) -> Self {
        Self {
            threads,
            memory: k.alloc(Space::Shared, dtype, values, None),
        }
    }

    /// What the last thread has.
    pub fn of(&self, k: &KernelBuilder, here: &Tile) -> Tile {
        let [last] = self.each_of(k, [here]);
        last
    }

    /// The same of several values a thread, as many as there is memory for.
    pub fn each_of<const N: usize>(&self, k: &KernelBuilder, here: [&Tile; N]) -> [Tile; N] {
        let me = k.iota(DType::I32, [self.threads], 0);
        let last = me.compare(CompareOp::Eq, self.threads - 1);
        let mut number = -1;
        let places = here.map(|_| {
            number += 1;
            k.full(DType::I32, [self.threads], number)
        });
        for (here, at) in here.into_iter().zip(&places) {
            k.scatter(&self.memory, at, here, Some(&last));
        }
        k.sync();
        places.map(|at| k.gather(&self.memory, &at, None, 0))
    }
}
