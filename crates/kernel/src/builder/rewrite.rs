//! Rewriting: the way a pass changes a program.

use std::panic::Location;

use oxyfuel_base::{Arena, Id, Result};

use super::KernelBuilder;
use crate::ir::{Block, Inst, Program, Val};

/// What a pass does with one instruction; see [`rewrite`].
pub type Rule<'r> = dyn FnMut(&KernelBuilder, &Inst) -> Result<Option<Vec<Val>>> + 'r;

/// Rebuilds a program, offering every instruction to `rule` in order.
///
/// The rule sees the instruction with its operands already replaced by new values. It may append any ops through the builder, and answers with the values that stand for the results from
/// now on (the instruction goes), or `None` (the instruction stays; the blocks it owns are rewritten after it was offered). Values that nobody defines any more stay in the arena; they cost nothing and
/// are dropped by [`Program::compact`].
///
/// What comes out is checked by who hands it on, and here only in debug builds: several passes, one check.
pub fn rewrite(mut program: Program, rule: &mut Rule<'_>) -> Result<Program> {
    let phases = std::mem::take(&mut program.phases);
    let mut map: Vec<Val> = program.values.ids().collect();
    let k = KernelBuilder::from_program(program);
    for phase in phases {
        let (done, body) = k.in_block(|k| rewrite_block(k, phase.body, &mut map, rule));
        done?;
        k.state_mut()
            .program
            .phases
            .push(crate::ir::Phase { body, ..phase });
    }
    k.finished(Location::caller(), cfg!(debug_assertions))
}

fn rewrite_block(
    k: &KernelBuilder,
    block: Block,
    map: &mut [Val],
    rule: &mut Rule<'_>,
) -> Result<Vec<Val>> {
    // Values made during the rewrite are their own replacement.
    let replaced = |map: &[Val], v: Val| map.get(v.index()).copied().unwrap_or(v);
    for mut inst in block.insts {
        inst.op.map_args(|v| replaced(map, v));
        if let Some(values) = rule(k, &inst)? {
            oxyfuel_base::ensure!(
                values.len() == inst.results.len(),
                Internal,
                "a rule gave {} values for {} results",
                values.len(),
                inst.results.len()
            );
            for (old, new) in inst.results.iter().zip(values) {
                map[old.index()] = new;
            }
            continue;
        }
        for owned in inst.op.blocks_mut() {
            let (yields, mut new) =
                k.in_block(|k| rewrite_block(k, std::mem::take(owned), map, rule));
            new.yields = yields?;
            *owned = new;
        }
        if let Some(frame) = k.state_mut().frames.last_mut() {
            frame.insts.push(inst);
        }
    }
    Ok(block.yields.iter().map(|&v| replaced(map, v)).collect())
}

impl Program {
    /// Drops values that nothing defines or uses and numbers the rest in the order of the text.
    #[must_use]
    pub fn compact(mut self) -> Self {
        let mut order = Vec::new();
        order.extend(self.params.iter().map(|param| param.value));
        self.walk(|inst| {
            order.extend(&inst.results);
            order.extend(inst.op.block_params());
        });
        let mut new_of = vec![None; self.values.len()];
        let mut values = Arena::new();
        for old in order {
            if new_of[old.index()].is_none() {
                new_of[old.index()] = Some(values.push(self.values[old].clone()));
            }
        }
        let rename = |v: Val| new_of[v.index()].unwrap_or(v);
        for param in &mut self.params {
            param.value = rename(param.value);
            if let crate::ir::ParamKind::TensorMap(map) = &mut param.kind {
                map.buffer = rename(map.buffer);
            }
        }
        for phase in &mut self.phases {
            phase.body.rename(&rename);
        }
        self.values = values;
        self
    }
}

impl Block {
    /// Replaces every value of the block, definitions and uses alike.
    pub fn rename(&mut self, rename: &dyn Fn(Val) -> Val) {
        for inst in &mut self.insts {
            inst.op.map_args(rename);
            for v in inst.op.block_params_mut() {
                *v = rename(*v);
            }
            for v in &mut inst.results {
                *v = rename(*v);
            }
            for block in inst.op.blocks_mut() {
                block.rename(rename);
            }
        }
        for v in &mut self.yields {
            *v = rename(*v);
        }
    }
}
