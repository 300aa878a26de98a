//! What is the same for a whole row, computed for many rows at once.
//!
//! A value without the vectors' axis (the scale of a group, say) is computed once a row, in a register whose lanes are all equal: with short rows that is as much work as the rows
//! themselves. Where it takes more than a few steps, loops of their own compute it before, with rows in the lanes, and leave it in scratch; the loops over the rows then read one element, repeated.
//! Every element goes through the same steps, so no bit changes.

use oxyfuel_base::Result;
use oxyfuel_kernel::ir::{Op, Val};

use super::run::{Axes, Key, Nest, Sink, own_cost, written_memory};
use super::values::operands;
use super::{Def, Select, slot};

/// Steps from which on loops of their own are worth a store and a load.
const STEPS: usize = 8;
/// Vectors of a row from which on the steps of its own values do not count.
const LONG: i64 = 64;
/// The most elements: they wait in the first-level cache.
const MOST: i64 = 2048;

impl<'p> Select<'p, '_> {
    /// The values of some loops that are better computed before them.
    pub fn once_a_row(&self, axes: &Axes, nests: &[Nest<'p>]) -> Vec<Val> {
        let mut found: Vec<Val> = Vec::new();
        for nest in nests {
            let Some(vector) = nest.vector else { continue };
            if axes.extent[vector] >= LONG * i64::from(nest.lanes) {
                continue;
            }
            let runs_along = |v: Val| self.value_axes(axes, v).any(|a| a == vector);
            for v in nest.facts.keys().filter(|v| runs_along(*v)) {
                let Some(Def::Lazy(inst)) = self.defs.get(&v) else {
                    continue;
                };
                for a in operands(&inst.op) {
                    if !runs_along(a) && !found.contains(&a) && self.is_worth(axes, nest, a) {
                        found.push(a);
                    }
                }
            }
        }
        found
    }

    /// Whether a value without the vectors' axis has many elements and many steps, all of them before any reduction and any write.
    fn is_worth(&self, axes: &Axes, nest: &Nest<'p>, v: Val) -> bool {
        let Ok(tile) = self.tile_of(v) else {
            return false;
        };
        let elements: i64 = tile.shape.iter().product();
        let many = (2 * i64::from(nest.lanes)..=MOST).contains(&elements);
        many && !tile.dtype.is_bool()
            && axes.all(Key::Val(slot(v)), tile.shape.len()).count() == 1
            && self.steps_to(nest, v).is_some_and(|steps| steps >= STEPS)
    }

    /// How many steps lead to a value; `None` where one of them must stay where it is.
    fn steps_to(&self, nest: &Nest<'p>, v: Val) -> Option<usize> {
        let mut seen = self.marks();
        let mut open = vec![v];
        let mut steps = 0;
        while let Some(v) = open.pop() {
            if !seen.insert(v) {
                continue;
            }
            let Some(Def::Lazy(inst)) = self.defs.get(&v) else {
                continue;
            };
            match &inst.op {
                Op::Reduce { .. } | Op::ArgReduce { .. } | Op::Gather { .. } => return None,
                Op::Load { access, .. } => {
                    let written = |s: &Sink<'p>| written_memory(s) == Some(access.mem);
                    if nest.sinks.iter().any(written) {
                        return None;
                    }
                }
                _ => {}
            }
            steps += own_cost(&inst.op);
            open.extend(operands(&inst.op));
        }
        Some(steps)
    }

    /// Computes values before the loops that read them.
    pub fn compute_once(&mut self, values: Vec<Val>) -> Result<()> {
        let sinks: Vec<Sink<'p>> = values.into_iter().map(Sink::Keep).collect();
        let axes = self.axes(&sinks)?;
        let nests = self.nests(&axes, &sinks)?;
        self.emit_nests(axes, nests)
    }
}
