//! From the logical to the mapped form: every tile gets a layout on the machine.
//!
//! One shape, one layout: lanes run along the last dim, which memory walks contiguously, with as many neighbouring elements a thread as one access moves ([`crate::aligned`]); then warps; what is
//! left is iterated. A tile with extent 1 along a dim has the layout of the full tile with that dim's modes replicated, so that reductions and broadcasts move nothing between threads
//! but what they must.

use oxyfuel_base::{Arena, Result, err};
use oxyfuel_kernel::ir::{
    Block, Form, Geometry, Inst, Mode, Op, Order, Program, TileLayout, Type, Val, ValueData,
};
use oxyfuel_plan::{TargetDesc, WIDEST_ACCESS};

use crate::aligned::{neighbours, odd_stores};
use crate::tile::{SIMT_MOST, ceil_div};

/// Places a logical program on a machine. Programs with `Dot` have mappings of their own and are refused.
pub fn map(mut program: Program, target: &TargetDesc) -> Result<Program> {
    let mut widest = 4;
    let mut largest: Vec<i64> = Vec::new();
    let mut narrowest_access = 16u32;
    let mut widest_store = 1u32;
    for (_, data) in program.values.iter() {
        if let Type::Tile(tile) = &data.ty
            && !tile.shape.is_empty()
        {
            if !tile.dtype.is_bool() {
                widest = widest.max(tile.dtype.size() as u32);
                narrowest_access = narrowest_access.min(tile.dtype.size() as u32);
            }
            let grown = tile.shape.len() > largest.len() || tile.len() > largest.iter().product();
            if grown {
                largest = tile.shape.clone();
            }
        }
    }
    let mut has_dot = false;
    program.walk(|inst| {
        has_dot |= matches!(inst.op, Op::Dot { .. });
        if let Op::Store { access, value, .. } = &inst.op
            && access.shape == largest
            && let Type::Tile(tile) = &program.value(*value).ty
        {
            widest_store = widest_store.max(tile.dtype.size() as u32);
        }
    });
    if has_dot {
        return Err(err!(
            NoLowering,
            "a product in the logical form has no general mapping yet"
        ));
    }
    let lanes = target.lanes(widest);
    let (geometry, spread) = if target.is_simt() {
        // Neighbours of a thread that are written in two accesses leave every other 16 bytes to the second one: half of what memory takes at once.
        let vector = (WIDEST_ACCESS / narrowest_access.max(1)).clamp(1, 8);
        let vector = vector.min((WIDEST_ACCESS / widest_store).max(1));
        let columns = columns_of_places(&program, &largest, target);
        let vector = match columns {
            Some(_) => 1,
            None => neighbours(&program, &largest, vector),
        };
        let rows = rows_of_warps(&program, &largest, target, vector);
        let (mut geometry, spread) = match blocks_of(&program, &largest, target) {
            1 => simt(&largest, target, vector, rows.or(columns)),
            blocks => cluster(&largest, target, vector, blocks),
        };
        geometry.registers = register_bound(&program, &largest, geometry);
        (geometry, spread)
    } else {
        vector(lanes)
    };
    program.form = Form::Mapped;
    program.geometry = geometry;
    // There are few shapes in a program.
    let mut known: Vec<(Vec<i64>, TileLayout)> = Vec::new();
    for data in program.values.values_mut() {
        if let Type::Tile(tile) = &data.ty {
            let found = known.iter().find(|(shape, _)| *shape == tile.shape);
            let layout = match found {
                Some((_, layout)) => layout.clone(),
                None => {
                    let layout = spread.layout(&tile.shape, &largest);
                    known.push((tile.shape.clone(), layout.clone()));
                    layout
                }
            };
            data.layout = Some(layout);
        }
    }
    // What lies with another block cannot be fetched from there.
    if target.is_simt() && spread.vector > 1 && spread.blocks == 1 {
        in_order_of_lanes(&mut program, &largest, &spread);
    }
    Ok(program)
}

/// Lets what is written to rows that begin at odd places change its layout first: neighbours go to neighbouring lanes, whose elements one access of the warp writes.
fn in_order_of_lanes(program: &mut Program, largest: &[i64], spread: &Spread) {
    let odd = odd_stores(program, largest, spread.vector);
    if odd.is_empty() {
        return;
    }
    let mut odd = odd.into_iter().peekable();
    let mut number = 0;
    let mut phases = std::mem::take(&mut program.phases);
    for phase in &mut phases {
        convert(
            &mut phase.body,
            &mut |inst, values| {
                let Op::Store { access, value, .. } = &mut inst.op else {
                    return None;
                };
                number += 1;
                let (_, vector) = odd.next_if(|(at, _)| *at == number - 1)?;
                let narrow = Spread { vector, ..*spread };
                let mut data = values[*value].clone();
                data.layout = Some(narrow.layout(&access.shape, largest));
                let converted = values.push(data);
                let op = Op::ConvertLayout {
                    value: std::mem::replace(value, converted),
                };
                Some(Inst {
                    op,
                    results: vec![converted],
                })
            },
            &mut program.values,
        );
    }
    program.phases = phases;
}

/// Puts the instruction that `before` gives ahead of each one.
fn convert(
    block: &mut Block,
    before: &mut impl FnMut(&mut Inst, &mut Arena<Val, ValueData>) -> Option<Inst>,
    values: &mut Arena<Val, ValueData>,
) {
    for mut inst in std::mem::take(&mut block.insts) {
        block.insts.extend(before(&mut inst, values));
        for owned in inst.op.blocks_mut() {
            convert(owned, before, values);
        }
        block.insts.push(inst);
    }
}

/// How elements are spread, before the shape is known.
pub struct Spread {
    lanes: u32,
    warps: u32,
    /// Blocks of threads that hold a tile together.
    blocks: u32,
    /// Neighbouring elements that one thread holds.
    vector: u32,
    /// Whether warps have whole rows.
    has_rows: bool,
}

/// One vector register wide.
pub fn vector(lanes: u32) -> (Geometry, Spread) {
    (
        Geometry {
            lanes,
            warps: 1,
            cluster: [1; 3],
            registers: 0,
        },
        Spread {
            lanes,
            warps: 1,
            blocks: 1,
            vector: 1,
            has_rows: false,
        },
    )
}

/// Elements of one tile that a thread holds before its block gets more warps.
const MOST_A_THREAD: i64 = 16;

/// Elements of a row that a lane holds at most where warps have whole rows.
const MOST_OF_A_ROW: i64 = 32;

/// How many warps have rows of their own, where rows are reduced and a warp can hold one: its lanes combine what they have without waiting for other warps.
fn rows_of_warps(
    program: &Program,
    largest: &[i64],
    target: &TargetDesc,
    vector: u32,
) -> Option<u32> {
    let &[rows, length] = largest else {
        return None;
    };
    let (mut along_rows, mut others) = (false, false);
    program.walk(|inst| {
        if let Op::Reduce { axes, .. } = &inst.op {
            along_rows |= axes[..] == [1];
            others |= axes[..] != [1];
        }
    });
    let lanes = i64::from(target.warp_lanes);
    let fits = length > lanes * i64::from(vector) && length <= lanes * MOST_OF_A_ROW;
    let even = rows > 1 && rows & (rows - 1) == 0;
    (along_rows && !others && fits && even).then(|| u32::try_from(rows).unwrap_or(1).min(MOST_ROWS))
}

/// How many warps have columns of their own, where sums go down columns of what is looked up for several rows at once. Lanes next to each other then look into the same part of a table: it takes an access for each line of it, not for each lane.
fn columns_of_places(program: &Program, largest: &[i64], target: &TargetDesc) -> Option<u32> {
    let &[_, _, columns] = largest else {
        return None;
    };
    let (mut looks_up, mut down) = (false, true);
    program.walk(|inst| match &inst.op {
        Op::Gather { .. } => looks_up = true,
        Op::Reduce { axes, .. } => down &= axes[..] == [1],
        _ => {}
    });
    let lanes = i64::from(target.warp_lanes);
    let warps = columns / lanes;
    (looks_up
        && down
        && columns % lanes == 0
        && (1..=4).contains(&warps)
        && warps.count_ones() == 1)
        .then(|| u32::try_from(warps).unwrap_or(1))
}

/// Ops on whole tiles up to which a kernel of rows is a plain one.
const PLAIN: usize = 16;

/// Bounds on registers, and how many of them tiles may not take.
const BOUNDS: [(i64, i64); 2] = [(32, 16), (64, 20)];

/// Registers of a thread of a plain kernel of rows; 0 where nothing is known. Without a bound it would read weights ahead of the reductions, and fewer rows would be under way. There is room for one tile that waits for the
/// reductions and for all but one of those that are stored.
fn register_bound(program: &Program, largest: &[i64], geometry: Geometry) -> u32 {
    let tile = |v: Val| match &program.value(v).ty {
        Type::Tile(tile) if tile.shape == largest => Some(tile.dtype.size() as i64),
        Type::Tile(_) | Type::Mem(_) | Type::TensorMap => None,
    };
    let (mut reduces, mut branches) = (false, false);
    let (mut loads, mut computes, mut widest) = (0, 0, 0);
    let mut stored: Vec<i64> = Vec::new();
    program.walk(|inst| {
        let sizes = inst.results.iter().filter_map(|&v| tile(v));
        let largest_size = sizes.max();
        let whole = largest_size.is_some();
        widest = widest.max(largest_size.unwrap_or(0));
        reduces |= matches!(inst.op, Op::Reduce { .. });
        branches |= !inst.op.blocks().is_empty() || matches!(inst.op, Op::Gather { .. });
        loads += usize::from(whole && matches!(inst.op, Op::Load { .. }));
        computes += usize::from(
            whole
                && matches!(
                    inst.op,
                    Op::Unary { .. } | Op::Binary { .. } | Op::Fma { .. } | Op::Select { .. }
                ),
        );
        if let Op::Store { value, .. } = inst.op {
            stored.extend(tile(value));
        }
    });
    let blocks: u32 = geometry.cluster.iter().product();
    let threads = i64::from(geometry.lanes * geometry.warps * blocks);
    let elements = ceil_div(largest.iter().product(), threads);
    if blocks > 1 {
        // Two blocks find room beside each other, so that one reads while the other waits or writes.
        return if loads == 1 && widest <= 4 { 64 } else { 0 };
    }
    let waiting = stored.iter().sum::<i64>() - stored.iter().max().copied().unwrap_or(0);
    let tiles = elements + elements * waiting / 4;
    // What is only reduced holds no tile while others are read, and wide elements take two registers each.
    let rows = reduces && program.phases.len() == 1 && !stored.is_empty() && widest <= 4;
    let plain = rows && !branches && computes <= PLAIN && (1..=2).contains(&loads);
    let fits = |&(bound, others): &(i64, i64)| tiles + others <= bound;
    match BOUNDS.into_iter().find(fits) {
        Some((bound, _)) if plain && elements >= i64::from(SMALL) => bound as u32,
        _ => 0,
    }
}

/// Elements of a thread below which registers are plenty.
const SMALL: u32 = 16;

/// The most warps that have rows of their own.
const MOST_ROWS: u32 = 8;

fn simt(
    largest: &[i64],
    target: &TargetDesc,
    vector: u32,
    rows: Option<u32>,
) -> (Geometry, Spread) {
    let elements: i64 = largest.iter().product::<i64>().max(1);
    let lanes = target.warp_lanes;
    let per_warp = i64::from(lanes * vector);
    // Two accesses a thread, then more warps, then more elements a thread.
    let wanted = u32::try_from(ceil_div(elements, per_warp * 2)).unwrap_or(u32::MAX);
    let least = u32::try_from(elements / (i64::from(lanes) * MOST_A_THREAD)).unwrap_or(u32::MAX);
    let warps = wanted
        .next_power_of_two()
        .clamp(1, 8)
        .max(least.next_power_of_two())
        .min(target.max_warps);
    let warps = rows.unwrap_or(warps);
    (
        Geometry {
            lanes,
            warps,
            cluster: [1; 3],
            registers: 0,
        },
        Spread {
            lanes,
            warps,
            blocks: 1,
            vector,
            has_rows: rows.is_some() && largest.len() == 2,
        },
    )
}

/// Elements of a row that one block of a cluster holds, if there are blocks enough.
const CLUSTER_PART: i64 = 16 * 1024;

/// The least power of two that is at least `n`.
fn up_to_a_power(n: i64) -> u32 {
    u32::try_from(n).unwrap_or(1 << 31).next_power_of_two()
}

/// How many blocks of threads hold the largest tile together: several where it is too large for one, and where all that they tell each other are reductions.
fn blocks_of(program: &Program, largest: &[i64], target: &TargetDesc) -> u32 {
    let elements: i64 = largest.iter().product();
    if elements <= SIMT_MOST {
        return 1;
    }
    let (mut apart, mut reduces) = (true, false);
    let single = |v: &Val| matches!(&program.value(*v).ty, Type::Tile(tile) if tile.len() == 1);
    program.walk(|inst| {
        apart &= match &inst.op {
            Op::ProgramId { .. }
            | Op::NumPrograms { .. }
            | Op::Const { .. }
            | Op::Iota { .. }
            | Op::Splat { .. }
            | Op::Broadcast { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Fma { .. }
            | Op::Cast { .. }
            | Op::Bitcast { .. }
            | Op::Load { .. }
            | Op::Store { .. }
            | Op::Reduce { .. } => true,
            Op::Reshape { .. } => inst.results.iter().all(single),
            _ => false,
        };
        reduces |= matches!(inst.op, Op::Reduce { .. });
    });
    let plain = program.phases.iter().all(|p| p.order == Order::Plain);
    match apart && reduces && plain {
        true => up_to_a_power(ceil_div(elements, CLUSTER_PART)).min(target.max_cluster),
        false => 1,
    }
}

/// Several blocks of threads for a row that one block cannot hold.
fn cluster(largest: &[i64], target: &TargetDesc, vector: u32, blocks: u32) -> (Geometry, Spread) {
    let lanes = target.warp_lanes;
    let part = ceil_div(largest.iter().product(), i64::from(blocks));
    let warps = ceil_div(part, i64::from(lanes) * MOST_OF_A_ROW);
    let warps = up_to_a_power(warps).min(target.max_warps);
    (
        Geometry {
            lanes,
            warps,
            cluster: [blocks, 1, 1],
            registers: 0,
        },
        Spread {
            lanes,
            warps,
            blocks,
            vector,
            has_rows: false,
        },
    )
}

impl Spread {
    /// The layout of a tile of `shape` in a program whose largest tile is `full`.
    pub fn layout(&self, shape: &[i64], full: &[i64]) -> TileLayout {
        if shape.is_empty() {
            return TileLayout::default();
        }
        // A smaller tile of the same rank follows the full one; any other stands for itself.
        let follows =
            shape.len() == full.len() && shape.iter().zip(full).all(|(&s, &f)| s == f || s == 1);
        let full = if follows { full } else { shape };
        let mut layout = TileLayout::default();
        // What remains of each dim, and the step to its next element.
        let mut rest: Vec<i64> = full.to_vec();
        let mut step: Vec<i64> = vec![1; full.len()];
        let take = |level: &mut Vec<Mode>,
                    rest: &mut [i64],
                    step: &mut [i64],
                    mut want: i64,
                    round_up: bool,
                    slowest_first: bool| {
            let dims = 0..full.len();
            let dims: Vec<usize> = match slowest_first {
                true => dims.collect(),
                false => dims.rev().collect(),
            };
            for d in dims {
                if want <= 1 {
                    break;
                }
                let extent = if round_up && d == full.len() - 1 {
                    want.min(rest[d].max(1))
                } else {
                    want.min(rest[d])
                };
                if extent <= 1 {
                    continue;
                }
                let extent = if want % extent == 0 {
                    extent
                } else {
                    largest_divisor(want, extent)
                };
                if extent <= 1 {
                    continue;
                }
                level.push(Mode {
                    dim: d as u8,
                    extent: extent as u32,
                    stride: if shape[d] == 1 { 0 } else { step[d] as u32 },
                });
                step[d] *= extent;
                rest[d] = ceil_div(rest[d], extent);
                want /= extent;
            }
            if want > 1 {
                level.push(Mode {
                    dim: 0,
                    extent: want as u32,
                    stride: 0,
                });
            }
        };
        let mut vector = Vec::new();
        let last = full.len() - 1;
        if self.vector > 1 && rest[last] >= i64::from(self.vector) {
            vector.push(Mode {
                dim: last as u8,
                extent: self.vector,
                stride: u32::from(shape[last] != 1),
            });
            step[last] *= i64::from(self.vector);
            rest[last] = ceil_div(rest[last], i64::from(self.vector));
        }
        take(
            &mut layout.lane,
            &mut rest,
            &mut step,
            i64::from(self.lanes),
            true,
            false,
        );
        take(
            &mut layout.warp,
            &mut rest,
            &mut step,
            i64::from(self.warps),
            false,
            self.has_rows,
        );
        take(
            &mut layout.cluster,
            &mut rest,
            &mut step,
            i64::from(self.blocks),
            false,
            false,
        );
        layout
            .reg
            .extend(vector.into_iter().filter(|mode| mode.stride != 0));
        for d in (0..full.len()).rev() {
            if rest[d] > 1 && shape[d] != 1 {
                layout.reg.push(Mode {
                    dim: d as u8,
                    extent: rest[d] as u32,
                    stride: step[d] as u32,
                });
            }
        }
        layout
    }
}

fn largest_divisor(n: i64, at_most: i64) -> i64 {
    (1..=at_most).rev().find(|d| n % d == 0).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(dim: u8, extent: u32, stride: u32) -> Mode {
        Mode {
            dim,
            extent,
            stride,
        }
    }

    #[test]
    fn a_cpu_row_runs_lanes_then_iterations() {
        let (_, spread) = vector(16);
        let layout = spread.layout(&[4, 2048], &[4, 2048]);
        assert_eq!(layout.lane, [mode(1, 16, 1)]);
        assert_eq!(layout.reg, [mode(1, 128, 16), mode(0, 4, 1)]);
    }

    #[test]
    fn a_reduced_row_is_replicated_over_lanes() {
        let (_, spread) = vector(16);
        let layout = spread.layout(&[4, 1], &[4, 2048]);
        assert_eq!(layout.lane, [mode(1, 16, 0)]);
        assert_eq!(layout.reg, [mode(0, 4, 1)]);
    }

    #[test]
    fn threads_hold_neighbours_that_one_access_moves() {
        let spread = Spread {
            lanes: 32,
            warps: 4,
            blocks: 1,
            vector: 4,
            has_rows: false,
        };
        let layout = spread.layout(&[1024], &[1024]);
        assert_eq!(layout.lane, [mode(0, 32, 4)]);
        assert_eq!(layout.warp, [mode(0, 4, 128)]);
        assert_eq!(layout.reg, [mode(0, 4, 1), mode(0, 2, 512)]);
    }
}
