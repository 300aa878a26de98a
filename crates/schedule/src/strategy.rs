//! The ways in which a group can run on a machine: what the cost model prefers stands first, the others are for a tuner and for sizes that the best way does not cover.

use oxyfuel_base::Expr;
use oxyfuel_plan::TargetDesc;

use crate::group::{Group, GroupKind, Strategy};

/// Elements of a part of a cut reduction where tiles live in registers: four tiles, so that a block of threads is worth its start.
const REGISTER_PART: i64 = 4 * 8192;
/// Rows of a part of a cut sum of columns where tiles live in registers: a warp reads a row after another, and has to read some of them to be worth its start.
const COLUMN_PART: i64 = 256;

/// Ways to run a group on a machine, best first.
pub(crate) fn strategies(
    group: &Group,
    target: &TargetDesc,
    guess: &dyn Fn(&Expr) -> i64,
) -> Vec<Strategy> {
    match group.kind {
        // A plain reduction along the depth leaves no room for another one, nor for work on an operand.
        GroupKind::Contraction(_) if !group.reduced.is_empty() || group.before.is_some() => {
            vec![Strategy::PackedProduct]
        }
        GroupKind::Contraction(_) => vec![Strategy::PackedProduct, Strategy::DirectProduct],
        GroupKind::Writes(_) | GroupKind::Attention(_) | GroupKind::Convolution(_) => {
            vec![Strategy::Tiles]
        }
        GroupKind::External(_) => vec![],
        GroupKind::Loops if group.reduced.is_empty() || group.scanned.is_some() => {
            vec![Strategy::Tiles]
        }
        GroupKind::Loops => {
            let extent = |d: usize| guess(&group.dims[d]).max(1);
            let rows = (0..group.dims.len())
                .filter(|d| !group.reduced.contains(d))
                .map(extent)
                .fold(1, i64::saturating_mul);
            let reduced = group.reduced.iter().map(|&d| extent(d));
            let depth = reduced.fold(1, i64::saturating_mul);
            let workers = i64::from(target.workers.max(1));
            let vector_rows = rows / i64::from(target.lanes(4)).max(1);
            // Rows alone must give every worker something; a short reduction is not worth a second phase.
            let inner_kept = !group.reduced.contains(&(group.dims.len() - 1));
            let units = if inner_kept { vector_rows } else { rows };
            if units >= 2 * workers || depth.saturating_mul(rows) < 1 << 16 {
                return vec![Strategy::Tiles];
            }
            let mut parts = (4 * workers).min(depth / 1024);
            if !target.tiles_spill {
                if inner_kept {
                    // Columns side by side are blocks already: four for each worker, with the parts of each column.
                    parts = (4 * workers / units.max(1)).min(depth / COLUMN_PART);
                }
                parts = parts.max(depth / REGISTER_PART);
            }
            let parts = parts.max(2);
            vec![
                Strategy::SplitReduction {
                    parts: u32::try_from(parts).unwrap_or(2),
                },
                Strategy::Tiles,
            ]
        }
    }
}
