//! Blocks of a cluster that carry one instance together.
//!
//! They count as further warps of one team: a thread's number goes on from block to block, and so do the places of a tile. What differs is where they meet, and where they leave what the others want.
//!
//! ```text
//!   block 0   w0 w1 w2 w3 ─┐  every warp leaves its part of a reduction with every block,
//!   block 1   w4 w5 w6 w7 ─┤  all meet, and each block reads the parts of all warps from its own memory
//! ```
//!
//! Nothing is read from another block, so that none has to wait for the others before it ends.

use oxyfuel_base::{Result, ensure};
use oxyfuel_kernel::ir::{Op, Order, TileLayout};

use crate::asm::{Class, Opd, Reg};
use crate::emit::Emitter;
use crate::place::extent;

impl Emitter<'_> {
    /// Gives threads their numbers within the cluster, and says to the other blocks that this one is there.
    pub(crate) fn begin_cluster(&mut self) -> Result<()> {
        let geometry = self.program.geometry;
        let [blocks, 1, 1] = geometry.cluster else {
            return Err(oxyfuel_base::err!(
                NoLowering,
                "a cluster of {:?} is not a row of blocks",
                geometry.cluster
            ));
        };
        ensure!(
            self.target.tensor_copies,
            NoLowering,
            "{} has no clusters",
            self.target.name
        );
        ensure!(
            self.phase.order == Order::Plain,
            NoLowering,
            "clusters take their instances in plain order"
        );
        let body = &self.phase.body.insts;
        let mut inner = body.iter().flat_map(|inst| inst.op.blocks());
        let nested = inner.any(|block| {
            let mut found = false;
            block.walk(&mut |inst| {
                found |= matches!(inst.op, Op::Reduce { .. } | Op::Roles { .. });
            });
            found
        });
        let nested = nested || body.iter().any(|inst| matches!(inst.op, Op::Roles { .. }));
        ensure!(
            !nested,
            NoLowering,
            "the blocks of a cluster meet outside of loops, branches and roles only"
        );
        let threads = geometry.lanes * geometry.warps;
        let rank = self.special("%cluster_ctarank");
        self.team.tid = self.asm.pure(
            Class::B32,
            "mad.lo.s32",
            &[
                rank.into(),
                Opd::Int(i64::from(threads)),
                self.team.tid.into(),
            ],
        );
        self.team.blocks = blocks;
        self.team.warps = geometry.warps * blocks;
        if body.iter().any(|inst| matches!(inst.op, Op::Reduce { .. })) {
            self.asm.line("barrier.cluster.arrive.relaxed.aligned");
            self.blocks_begun = Some(false);
        }
        Ok(())
    }

    /// A layout whose blocks are further warps.
    pub(crate) fn of_team(&self, mut layout: TileLayout) -> Result<TileLayout> {
        if extent(&layout.cluster) > 1 {
            ensure!(
                extent(&layout.warp) == u64::from(self.program.geometry.warps),
                NoLowering,
                "a tile that is spread over blocks has a place for every warp of a block"
            );
            layout.warp.append(&mut layout.cluster);
        }
        Ok(layout)
    }

    /// All blocks are there: their memory may be written.
    pub(crate) fn await_blocks(&mut self) {
        if self.blocks_begun == Some(false) {
            self.asm.line("barrier.cluster.wait.aligned");
            self.blocks_begun = Some(true);
        }
    }

    /// All blocks meet; what was left before is seen.
    pub(crate) fn meet_in_cluster(&mut self) {
        self.asm.line("barrier.cluster.arrive.release.aligned");
        self.asm.line("barrier.cluster.wait.acquire.aligned");
    }

    /// The same place of shared memory in block `rank`.
    pub(crate) fn in_block(&mut self, place: Reg, rank: Opd) -> Reg {
        self.asm
            .pure(Class::B32, "mapa.shared::cluster.u32", &[place.into(), rank])
    }
}
