//! What a block of threads on a GPU multiplies through shared memory: operands of any strides come in by wide, coalesced reads, and are multiplied from there, on a warp's matrix unit where it takes them, else
//! as outer products in registers.
//!
//! ```text
//!   memory  --fetch-->  registers  --put-->  shared memory  --multiply-->  sums [rows, cols], over all warps
//! ```

use oxyfuel_base::DType;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{Geometry, Index, MmaDim, Mode, Space, TileLayout};
use oxyfuel_plan::TargetDesc;

use crate::warps::restricted;

/// Elements of the depth that are written out between two turns of a loop of outer products.
const TURN: i64 = 8;

/// A block of threads, and what it holds of a product.
#[derive(Clone, Debug)]
pub struct Team {
    /// Warps along rows and columns.
    pub warps: [i64; 2],
    /// What operands are in shared memory.
    pub part: DType,
    /// What products are added up in.
    pub sums: DType,
    /// Whether a matrix unit multiplies.
    pub unit: bool,
}

/// An operand in shared memory, with strides along its side (rows of a left one, columns of a right one) and along the depth.
pub struct Held {
    mem: Mem,
    side: i64,
    depth: i64,
}

/// A part of an operand in memory, `[side, depth]`.
pub struct Part<'a> {
    pub mem: &'a Mem,
    pub base: Tile,
    pub shape: [i64; 2],
    pub strides: [Index; 2],
    /// How much of it there is, where it may be less.
    pub left: [Option<Tile>; 2],
}

impl Team {
    /// A team for operands of a dtype; `None` for what has no sums in floats.
    pub fn of(
        target: &TargetDesc,
        [a, b]: [DType; 2],
        sums: DType,
        warps: [i64; 2],
    ) -> Option<Self> {
        if !target.is_simt() || !matches!(sums, DType::F32 | DType::F64) {
            return None;
        }
        let unit = a == b && a.size() == 2 && target.matrix_unit(a, b, sums).is_some();
        Some(Self {
            warps,
            part: if unit { a } else { sums },
            sums,
            unit,
        })
    }

    pub fn all_warps(&self) -> i64 {
        self.warps[0] * self.warps[1]
    }

    pub fn geometry(&self, target: &TargetDesc) -> Geometry {
        Geometry {
            lanes: target.warp_lanes,
            warps: self.all_warps() as u32,
            cluster: [1; 3],
            registers: 0,
        }
    }

    /// Neighbours that one access of shared memory moves.
    fn vector(&self) -> i64 {
        16 / self.part.size() as i64
    }

    /// Who holds what of the sums `[rows, cols]`.
    pub fn layout(&self, [rows, cols]: [i64; 2]) -> TileLayout {
        let [down, across] = self.warps;
        let (deep, wide) = (rows / down, cols / across);
        let (lane, reg) = if self.unit {
            // As the unit leaves them: pairs of columns, lanes 4 across and 8 down.
            let lane = vec![mode(1, 4, 2), mode(0, 8, 1)];
            let reg = vec![
                mode(1, 2, 1),
                mode(0, 2, 8),
                mode(1, wide / 8, 8),
                mode(0, deep / 16, 16),
            ];
            (lane, reg)
        } else {
            let v = self.vector();
            let lane = vec![mode(1, 8, v), mode(0, 4, v)];
            let reg = vec![
                mode(1, v, 1),
                mode(0, v, 1),
                mode(1, wide / (8 * v), 8 * v),
                mode(0, deep / (4 * v), 4 * v),
            ];
            (lane, reg)
        };
        TileLayout {
            warp: vec![mode(0, down, deep), mode(1, across, wide)],
            lane,
            reg,
            ..TileLayout::default()
        }
    }

    /// The same of a tile with fewer dims: a number a row, or a column.
    pub fn narrow(&self, whole: [i64; 2], shape: [i64; 2]) -> TileLayout {
        restricted(&self.layout(whole), &shape)
    }

    /// Sums of a block, so far 0.
    pub fn zeros(&self, k: &KernelBuilder, shape: [i64; 2]) -> Tile {
        let zero = k.constant(self.sums, 0);
        let filled = zero.broadcast_to(shape);
        filled.with_layout(self.layout(shape))
    }

    /// Bytes of [`Team::hold`].
    pub fn bytes(&self, shape: [i64; 2], along_depth: bool) -> i64 {
        let [side, depth] = shape;
        let (inner, outer) = if along_depth {
            (depth, side)
        } else {
            (side, depth)
        };
        (inner + self.vector()) * outer * self.part.size() as i64
    }

    /// Shared memory for an operand `[side, depth]`. Rows are so far apart that lanes which read the same of several are in banks of their own.
    pub fn hold(&self, k: &KernelBuilder, shape: [i64; 2], along_depth: bool) -> Held {
        let [side, depth] = shape;
        let len = self.bytes(shape, along_depth) / self.part.size() as i64;
        let mem = k.alloc(Space::Shared, self.part, len, None);
        let (side, depth) = if along_depth {
            (depth + self.vector(), 1)
        } else {
            (1, side + self.vector())
        };
        Held { mem, side, depth }
    }

    /// Whether operands of products lie along the depth: the unit takes neighbours of it, outer products those of a side.
    pub fn along_depth(&self) -> bool {
        self.unit
    }

    /// A part of an operand, in registers, as it lies best in memory.
    pub fn fetch(&self, k: &KernelBuilder, part: Part<'_>) -> Tile {
        let inner = usize::from(part.strides[0] != Index::Const(1));
        let size = part.mem.dtype().size() as i64;
        let layout = self.spread(part.shape, inner, 16 / size);
        let mut window = part.mem.at(&part.base).shape(part.shape);
        window = window.strides(part.strides);
        for (dim, left) in part.left.iter().enumerate() {
            if let Some(left) = left {
                window = window.valid(dim, left);
            }
        }
        k.load(window).with_layout(layout)
    }

    /// The layout of a tile that all threads move: neighbours along a dim on neighbouring lanes.
    pub fn spread(&self, shape: [i64; 2], inner: usize, most: i64) -> TileLayout {
        let (warps, outer) = (self.all_warps(), 1 - inner);
        let [near, far] = [shape[inner], shape[outer]];
        let vector = most.min(near).min((near * far / (32 * warps)).max(1));
        let lanes = [(near / vector).min(32), 32 / (near / vector).min(32)];
        let down = warps.min(far / lanes[1]).max(1);
        let rest = near / vector / lanes[0];
        let beside = (warps / down).min(rest);
        let (inner, outer) = (inner as u8, outer as u8);
        let across = vector * lanes[0];
        let mut layout = TileLayout {
            warp: vec![
                mode(outer, down, lanes[1]),
                mode(inner, beside, across),
                mode(inner, warps / down / beside, 0),
            ],
            lane: vec![mode(inner, lanes[0], vector), mode(outer, lanes[1], 1)],
            reg: vec![
                mode(inner, vector, 1),
                mode(inner, rest / beside, across * beside),
                mode(outer, (far / lanes[1] / down).max(1), lanes[1] * down),
            ],
            ..TileLayout::default()
        };
        for modes in [&mut layout.warp, &mut layout.lane, &mut layout.reg] {
            modes.retain(|mode| mode.extent > 1);
        }
        layout
    }

    /// Puts a tile `[side, depth]` into shared memory.
    pub fn put(&self, k: &KernelBuilder, tile: &Tile, held: &Held) {
        let shape = tile.shape();
        let home = held.mem.at(0).shape(&shape);
        k.store(home.strides([held.side, held.depth]), tile.cast(self.part));
    }

    /// Adds the product of two operands in shared memory to sums `[rows, cols]`.
    pub fn multiply(
        &self,
        k: &KernelBuilder,
        [a, b]: [&Held; 2],
        [rows, cols]: [i64; 2],
        depth: i64,
        sums: Tile,
    ) -> Tile {
        if self.unit {
            let left = a.mem.at(0).shape([rows, depth]).strides([a.side, a.depth]);
            let left = k.load(left).with_layout(self.left([rows, cols], depth));
            return self.multiply_tile(k, &left, b, cols, sums);
        }
        let whole = [rows, cols];
        let [of_rows, of_cols] = [[rows, 1], [1, cols]].map(|shape| self.narrow(whole, shape));
        let [sums] = k.for_range(0, depth, TURN.min(depth), [sums], |k, at, [mut sums]| {
            for step in 0..TURN.min(depth) {
                let at = &at + step;
                let x = a.mem.at(&(&at * a.depth)).shape([rows, 1]);
                let x = k.load(x.strides([a.side, 1])).with_layout(of_rows.clone());
                let y = b.mem.at(&(&at * b.depth)).shape([1, cols]);
                let y = k.load(y.strides([1, b.side])).with_layout(of_cols.clone());
                let [x, y] = [x, y].map(|t| t.broadcast_to(whole).with_layout(self.layout(whole)));
                sums = x.fma(&y, &sums);
            }
            [sums]
        });
        sums
    }

    /// The same on the unit, of a left operand that lies as it takes it: as [`Team::layout`] of `[rows, depth]` lies where warps are side by side along rows.
    pub fn multiply_tile(
        &self,
        k: &KernelBuilder,
        left: &Tile,
        b: &Held,
        cols: i64,
        sums: Tile,
    ) -> Tile {
        let depth = left.shape()[1];
        let right = b.mem.at(0).shape([depth, cols]).strides([b.depth, b.side]);
        let right = right.operand([MmaDim::K, MmaDim::Side]);
        k.mma(left.operand(), right, &sums, false)
    }

    /// As the unit takes a left operand.
    fn left(&self, [rows, _]: [i64; 2], depth: i64) -> TileLayout {
        let [down, across] = self.warps;
        TileLayout {
            warp: vec![mode(0, down, rows / down), mode(1, across, 0)],
            lane: vec![mode(1, 4, 2), mode(0, 8, 1)],
            reg: vec![
                mode(1, 2, 1),
                mode(0, 2, 8),
                mode(1, 2, 8),
                mode(1, depth / 16, 16),
                mode(0, rows / down / 16, 16),
            ],
            ..TileLayout::default()
        }
    }
}

fn mode(dim: u8, extent: i64, stride: i64) -> Mode {
    Mode::new(dim, extent as u32, stride as u32)
}
