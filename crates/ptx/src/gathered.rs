//! All phases of a program in one launch: a few blocks take the instances of a phase in turns and meet before the next.
//!
//! ```text
//!   block 0   A.0  ┆  B.0 B.2  ┆  C.0
//!   block 1   A.1  ┆  B.1      ┆        ┆ all have stored what they had to; nothing of the next phase was read
//! ```
//!
//! The blocks are one cluster, so the hardware places all of them or none, and has a barrier for them: no counter in memory, and no block that waits for one that was never placed.

use std::collections::BTreeSet;

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::Val;

use crate::asm::{Class, Opd};
use crate::emit::{Copies, Emitter, known_grid};
use crate::fact::Fact;
use crate::value::Int;

impl Emitter<'_> {
    pub(crate) fn all_phases(&mut self, entry: &str) -> Result<()> {
        let blocks = self.program.gathered;
        ensure!(
            blocks == 1 || self.target.clusters,
            NoLowering,
            "{} has no clusters",
            self.target.name
        );
        for (number, phase) in self.program.phases.iter().enumerate() {
            if number > 0 {
                self.meet(blocks);
            }
            self.phase = phase;
            self.program_id = [None; 3];
            self.copies = Copies::of(&phase.body);
            self.kept = None;
            self.shared.begin_anew();
            // What another phase computed may not have run here.
            self.asm.enter();
            let mut used: BTreeSet<Val> = BTreeSet::new();
            phase.body.walk(&mut |inst| used.extend(inst.op.args()));
            self.parameters(entry, |param| used.contains(&param))?;
            self.keep();
            self.turns(blocks)?;
            self.asm.leave();
        }
        Ok(())
    }

    /// The instances of the phase at hand, each by one of the blocks.
    fn turns(&mut self, blocks: u32) -> Result<()> {
        let phase = self.phase;
        let (extents, total) = known_grid(phase)
            .ok_or_else(|| err!(NoLowering, "a grid of {:?} in a few blocks", phase.grid))?;
        if total == 0 {
            return Ok(());
        }
        if total > i64::from(blocks) {
            return self.persistent(&extents, total, 1);
        }
        let rank = match blocks {
            1 => Opd::Int(0),
            _ => self.special("%ctaid.x").into(),
        };
        let idle = (total < i64::from(blocks)).then(|| {
            let operands = [rank, Opd::Int(total)];
            let p = self.asm.pure(Class::Pred, "setp.ge.s32", &operands);
            let end = self.asm.label();
            self.asm.line(format_args!("@{p} bra {end}"));
            end
        });
        let id = match total {
            1 => Int::constant(0),
            _ => Int {
                opd: rank,
                fact: Fact::range(0, total - 1),
            },
        };
        self.at_instance(id, &extents, 1);
        self.block(&phase.body)?;
        if let Some(end) = idle {
            self.asm.place(&end);
        }
        Ok(())
    }

    /// All blocks, with what they stored seen by all.
    fn meet(&mut self, blocks: u32) {
        match blocks {
            1 => self.sync(),
            _ => {
                self.asm.line("barrier.cluster.arrive.release.aligned");
                self.asm.line("barrier.cluster.wait.acquire.aligned");
            }
        }
    }
}
