//! Programs that find their elements: gathers and scatters, masks and strides, tiles turned and cut anew, branches, grids of several axes, and phases that hand
//! data on.
//!
//! No position leaves its buffer: those of a gather are remainders, those of a scatter a permutation of the instance's own part.

use super::{Case, Choices, Given};
use crate::builder::{KernelBuilder, Mem, Tile, Window};
use crate::ir::{ArgOp, BinaryOp, BufferMode, CompareOp, Order, ReduceOp};
use oxyfuel_base::{DType, Result};

const DTYPES: [DType; 18] = [
    DType::F32,
    DType::I32,
    DType::F32,
    DType::BF16,
    DType::F16,
    DType::F64,
    DType::I64,
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F4E2M1,
    DType::E8M0,
];

const ORDERS: [Order; 4] = [
    Order::Plain,
    Order::Plain,
    Order::Grouped { group: 2 },
    Order::Persistent { group: 2 },
];

/// Most ops of a program.
const STEPS: usize = 8;

/// The buffers of a program, and what an instance has of them.
struct Parts {
    shape: [i64; 2],
    x: Mem,
    /// Tables of equal length; an instance has one of them.
    tables: Vec<Mem>,
    entries: i64,
    index: Mem,
}

/// The program that the numbers mean.
pub fn places(numbers: &[u32]) -> Result<Case> {
    let mut choices = Choices::new(numbers);
    let shape = [1 + choices.below(4) as i64, 1 + choices.below(36) as i64];
    let grid: Vec<i64> = (0..=choices.below(3))
        .map(|_| 1 + choices.below(3) as i64)
        .collect();
    let order = choices.pick(&ORDERS);
    let [from, look, to] = [0; 3].map(|_| choices.pick(&DTYPES));
    let entries = 1 + choices.below(50) as i64;
    let counts = choices.pick(&[DType::I64, DType::I32]);
    let has_second = choices.below(4) == 3;
    let tables = 1 + choices.below(3);
    let seed = choices.below(1 << 20) as u32;

    let size = shape[0] * shape[1];
    let count: i64 = grid.iter().product();
    let k = KernelBuilder::new("places");
    let parts = Parts {
        shape,
        x: k.buffer("x", from, BufferMode::Read, count * size),
        tables: (0..tables)
            .map(|i| k.buffer(format!("table{i}"), look, BufferMode::Read, entries))
            .collect(),
        entries,
        index: k.buffer("index", counts, BufferMode::Read, count * size),
    };
    let out = k.buffer("out", to, BufferMode::ReadWrite, count * size);
    let handed = has_second.then(|| k.buffer("handed", to, BufferMode::Workspace, count * size));
    k.phase_ordered(grid.iter().copied(), order, |k| {
        let number = number(k, grid.len());
        let base = &number * size;
        let raw = k.load(parts.index.at(&base).shape(shape));
        let mut tiles = vec![parts.window(k, &mut choices, &base, &raw)];
        for _ in 0..STEPS {
            if choices.is_empty() {
                break;
            }
            let tile = parts.step(k, &mut choices, &tiles, &number, &base, &raw);
            tiles.push(tile);
        }
        let last = tiles[tiles.len() - 1].cast(to);
        match &handed {
            Some(handed) => k.store(handed.at(&base).shape(shape), last),
            None => write(k, &mut choices, &out, shape, &base, &raw, &last),
        }
    });
    if let Some(handed) = &handed {
        // Every instance takes what another one left.
        k.phase([count], |k| {
            let number = k.program_id(0);
            let base = &number * size;
            let other = (&number * -1 + (count - 1)) * size;
            let raw = k.load(parts.index.at(&base).shape(shape));
            let tile = k.load(handed.at(&other).shape(shape));
            write(k, &mut choices, &out, shape, &base, &raw, &tile);
        });
    }
    let len = |len: i64| usize::try_from(len).unwrap_or(0);
    let mut args = vec![
        Given::random(from, len(count * size), seed),
        Given::random(counts, len(count * size), seed.wrapping_add(2)),
        Given::random(to, len(count * size), seed.wrapping_add(3)),
    ];
    for table in 0..tables {
        let seed = seed.wrapping_add(4 * table as u32 + 1);
        args.insert(1, Given::random(look, len(entries), seed));
    }
    if has_second {
        args.push(Given::zeros(to, len(count * size)));
    }
    Ok(Case {
        program: k.finish()?,
        args,
        open: false,
    })
}

/// Which instance this is, whatever the axes of the grid.
fn number(k: &KernelBuilder, axes: usize) -> Tile {
    let id = |axis: usize| k.program_id(u8::try_from(axis).unwrap_or(0));
    let extent = |axis: usize| k.num_programs(u8::try_from(axis).unwrap_or(0));
    let last = axes.saturating_sub(1);
    (0..last)
        .rev()
        .fold(id(last), |number, axis| number * extent(axis) + id(axis))
}

/// The tile in a type that has arithmetic.
fn as_number(tile: &Tile) -> Tile {
    match tile.dtype() {
        DType::Bool => tile.cast(DType::I32),
        dtype if dtype.is_narrow_float() => tile.cast(DType::F32),
        _ => tile.clone(),
    }
}

/// A window whose dims memory walks one way or the other.
fn walked(mem: &Mem, base: &Tile, shape: [i64; 2], is_turned: bool) -> Window {
    let window = mem.at(base).shape(shape);
    if is_turned {
        window.strides([1, shape[0]])
    } else {
        window
    }
}

impl Parts {
    /// The instance's own part of `x`.
    fn window(
        &self,
        k: &KernelBuilder,
        choices: &mut Choices<'_>,
        base: &Tile,
        raw: &Tile,
    ) -> Tile {
        let mut window = walked(&self.x, base, self.shape, choices.below(3) == 2);
        if choices.below(3) == 2 {
            let mask = raw.compare(choices.pick(CompareOp::ALL), 3);
            window = window.mask(&mask).fill(choices.below(2) as i64);
        }
        k.load(window)
    }

    /// The table of an instance.
    fn table(&self, k: &KernelBuilder, number: &Tile) -> Mem {
        match &self.tables[..] {
            [one] => one.clone(),
            tables => k.pick(tables, &number.modulo(tables.len() as i64)),
        }
    }

    /// Positions in the table.
    fn places(&self, tile: &Tile) -> Tile {
        let tile = as_number(tile);
        let tile = if tile.dtype().is_float() {
            tile.cast(DType::I32)
        } else {
            tile
        };
        tile.modulo(self.entries)
    }

    fn step(
        &self,
        k: &KernelBuilder,
        choices: &mut Choices<'_>,
        tiles: &[Tile],
        number: &Tile,
        base: &Tile,
        raw: &Tile,
    ) -> Tile {
        let shape = self.shape;
        let a = as_number(&choices.pick(tiles));
        let b = as_number(&choices.pick(tiles)).cast(a.dtype());
        let is_float = a.dtype().is_float();
        let axis = choices.below(2) as u8;
        match choices.below(12) {
            0 => k.gather(&self.table(k, number), &self.places(&a), None, 0),
            1 => {
                let mask = b.compare(choices.pick(CompareOp::ALL), &a);
                k.gather(&self.table(k, number), &self.places(raw), Some(&mask), 1)
            }
            2 => {
                let [a, b] = [&a, &b].map(|tile| tile.permute([1, 0]));
                a.binary(BinaryOp::Add, &b).permute([1, 0])
            }
            3 => {
                let [a, b] = [&a, &b].map(|tile| tile.reshape([shape[0] * shape[1]]));
                a.binary(BinaryOp::Max, &b).reshape(shape)
            }
            4 => {
                let counts = choices.pick(&[DType::I32, DType::I64]);
                a.arg_reduce(choices.pick(ArgOp::ALL), axis, counts)
                    .broadcast_to(shape)
            }
            5 => {
                let is_low = number.compare(choices.pick(CompareOp::ALL), 1);
                let [tile] = k.if_(
                    &is_low,
                    |_| [a.binary(BinaryOp::Add, &b)],
                    |_| [a.binary(BinaryOp::Sub, &b)],
                );
                tile
            }
            6 => {
                let entry = k.load(self.table(k, number).at(number.modulo(self.entries)));
                entry.broadcast_to(shape)
            }
            7 if is_float => {
                let op = choices.pick(&[ReduceOp::Min, ReduceOp::Max]);
                a.reduce(op, [0, 1]).broadcast_to(shape)
            }
            7 => {
                let op = choices.pick(&[ReduceOp::Prod, ReduceOp::Sum]);
                a.reduce(op, [axis]).broadcast_to(shape)
            }
            8 => self.window(k, choices, base, raw),
            9 => a.compare(choices.pick(CompareOp::ALL), &b).select(&a, &b),
            10 => a.cast(choices.pick(&DTYPES)),
            _ => a.binary(choices.pick(&[BinaryOp::Mul, BinaryOp::Min]), &b),
        }
    }
}

/// Writes an instance's part of `out`, perhaps not all of it.
fn write(
    k: &KernelBuilder,
    choices: &mut Choices<'_>,
    out: &Mem,
    shape: [i64; 2],
    base: &Tile,
    raw: &Tile,
    value: &Tile,
) {
    let mask = (choices.below(3) == 2).then(|| raw.compare(choices.pick(CompareOp::ALL), 5));
    if choices.below(3) == 2 {
        let size = shape[0] * shape[1];
        let counts = raw.dtype();
        let along = |dim: u8| k.iota(counts, shape, dim);
        let place = along(0) * shape[1] + along(1);
        // One less than a number and the number itself have no common factor.
        let step = choices.pick(&[1, (size - 1).max(1)]);
        let shift = choices.below(usize::try_from(size).unwrap_or(1)) as i64;
        let place = (place * step + shift).modulo(size) + base.cast(counts);
        k.scatter(out, &place, value, mask.as_ref());
        return;
    }
    let mut window = walked(out, base, shape, choices.below(3) == 2);
    if let Some(mask) = &mask {
        window = window.mask(mask);
    }
    window = match choices.below(4) {
        2 => window.ahead(),
        3 => window.streaming(),
        _ => window,
    };
    k.store(window, value);
}
