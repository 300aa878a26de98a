//! Reads and stores at places that an index says.

use oxyfuel_base::Expr;
use oxyfuel_kernel::builder::{Tile, Window as TileWindow};
use oxyfuel_kernel::ir::{BinaryOp, ReduceOp};

use super::Frame;
use crate::nest::{Dims, NestScatter, Node, Window};

/// A tile of one element as a number.
fn number(tile: Tile) -> Tile {
    match tile.shape().is_empty() {
        true => tile,
        false => tile.reshape([0i64; 0]),
    }
}

impl Frame<'_> {
    /// Reads at computed positions. An index is clamped to its range: memory stays safe whatever the data says.
    pub(super) fn load_at(
        &self,
        window: &Window,
        index: Node,
        (stride, extent): (&Expr, &Expr),
        support: Dims,
    ) -> Tile {
        let mem = self.mem(window);
        let index = self.moved(index, stride, extent);
        if index.shape().iter().all(|&n| n == 1) {
            let own = self.nest.window_support(window);
            let moved = Some(number(index));
            return self.k.load(self.window(mem, window, own, moved));
        }
        let mut position = self.places(window, index, support);
        // Coordinates beyond a short last block read element 0 of the window, and nothing uses them.
        if let Some(inside) = self.inside(support) {
            position = inside.select(&position, 0i64);
        }
        self.k.gather(mem, &position, None, 0)
    }

    /// How far an index moves a window. It is clamped to its range: memory stays safe whatever the data says.
    fn moved(&self, index: Node, stride: &Expr, extent: &Expr) -> Tile {
        let sizes = &self.params.sizes;
        let index = sizes
            .binary(&self.get(index), BinaryOp::Min, &(extent - 1))
            .binary(BinaryOp::Max, 0i64);
        sizes.times(&index, stride)
    }

    /// Where a tile of elements goes that an index moves. The tiling keeps the index out of the tile, so that it is one number.
    pub fn target(&self, scatter: &NestScatter) -> TileWindow {
        let window = &scatter.window;
        let moved = self.only(scatter, &scatter.stride);
        let own = self.nest.window_support(window);
        self.window(self.mem(window), window, own, Some(moved))
    }

    /// The one number that the index of a tile is, times a stride.
    pub fn only(&self, scatter: &NestScatter, stride: &Expr) -> Tile {
        number(self.moved(scatter.index, stride, &scatter.extent))
    }

    /// The place of every element of a tile.
    pub fn place_of_each(&self, scatter: &NestScatter) -> Tile {
        self.moved(scatter.index, &Expr::ONE, &scatter.extent)
    }

    /// Whether an index that was written differs within the tile.
    pub fn has_places(&self, index: Node) -> bool {
        self.get(index).shape().iter().any(|&extent| extent > 1)
    }

    /// Stores a tile of elements that have a place each; of some only, where a value says so.
    pub fn put_each(&self, scatter: &NestScatter, some: Option<Node>) {
        let (position, inside) = self.places_of(scatter);
        let some = some.map(|some| self.get(some).broadcast_to(position.shape()));
        let mask = match (inside, some) {
            (Some(inside), Some(some)) => Some(inside.binary(BinaryOp::And, &some)),
            (inside, some) => inside.or(some),
        };
        let value = self.get(scatter.value);
        self.k
            .scatter(self.mem(&scatter.window), &position, &value, mask.as_ref());
    }

    /// Leaves the largest value at each place, of a tile of elements and of what is there.
    pub fn mark_each(&self, scatter: &NestScatter) {
        let (position, inside) = self.places_of(scatter);
        let value = self.get(scatter.value);
        let mem = self.mem(&scatter.window);
        self.k
            .atomic(ReduceOp::Max, mem, &position, &value, inside.as_ref());
    }

    /// Where a tile of elements goes that have a place each, and which of them exist.
    fn places_of(&self, scatter: &NestScatter) -> (Tile, Option<Tile>) {
        let values = &self.nest.values;
        let support = values[scatter.index]
            .support
            .union(values[scatter.value].support);
        let moved = self.moved(scatter.index, &scatter.stride, &scatter.extent);
        let position = self.places(&scatter.window, moved, support);
        (position, self.inside(support))
    }

    /// The elements of a window that an index moved.
    fn places(&self, window: &Window, moved: Tile, support: Dims) -> Tile {
        let mut position = moved;
        for &d in &self.tile_dims {
            if self.nest.window_support(window).contains(d) {
                let steps = self.coordinate_in_tile(d);
                position = position + self.params.sizes.times(&steps, &window.strides[d]);
            }
        }
        if let Some(base) = self.base(window) {
            position = position + base;
        }
        position.broadcast_to(self.shape(support))
    }
}
