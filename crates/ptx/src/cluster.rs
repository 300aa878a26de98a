//! Blocks of a cluster that carry one instance together.
//!
//! They count as further warps of one team: a thread's number goes on from block to block, and so do the places of a tile. What differs is where they leave what the others want, and how they know that it is there.
//!
//! ```text
//!   block 0   w0 w1 w2 w3 ─┐  every warp sends its part of a reduction to every block;
//!   block 1   w4 w5 w6 w7 ─┤  a block waits until the parts of all warps have come, and reads them from its own memory
//! ```
//!
//! Bytes are counted by a barrier in the memory that they come to. Nothing is read from another block, and a block that has all parts has nothing more to come: none has to wait for the others before it ends. Only before the first part is sent all must be there.

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::{Op, Order, TileLayout};

use crate::asm::{Class, Opd, Reg};
use crate::emit::{Emitter, guard};
use crate::place::extent;

/// The barriers at which parts of reductions are waited for, one a meeting.
pub(crate) struct Meetings {
    /// True in the first thread of the block.
    first: Reg,
    barriers: Reg,
    /// How many there were.
    held: u32,
    /// All blocks are known to be there.
    begun: bool,
}

impl Emitter<'_> {
    /// Gives threads their numbers within the cluster, and says to the other blocks that this one is there.
    pub(crate) fn begin_cluster(&mut self) -> Result<()> {
        let geometry = self.program.geometry;
        let [blocks, 1, 1] = geometry.cluster else {
            return Err(err!(
                NoLowering,
                "a cluster of {:?} is not a row of blocks",
                geometry.cluster
            ));
        };
        ensure!(
            self.target.clusters,
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
        let (own, rank) = (self.team.tid, self.special("%cluster_ctarank"));
        self.team.tid = self.asm.pure(
            Class::B32,
            "mad.lo.s32",
            &[rank.into(), Opd::Int(i64::from(threads)), own.into()],
        );
        self.team.blocks = blocks;
        self.team.warps = geometry.warps * blocks;
        let reductions = body
            .iter()
            .filter(|inst| matches!(inst.op, Op::Reduce { .. }));
        let meetings = reductions.count() as u64;
        if meetings == 0 {
            return Ok(());
        }
        let first = self
            .asm
            .pure(Class::Pred, "setp.eq.s32", &[own.into(), Opd::Int(0)]);
        let barriers = self.shared_alloc(8 * meetings, 8);
        for meeting in 0..meetings {
            self.asm.line(format_args!(
                "@{first} mbarrier.init.shared::cta.b64 [{barriers}+{}], 1",
                8 * meeting
            ));
        }
        self.asm
            .line(format_args!("@{first} fence.mbarrier_init.release.cluster"));
        self.asm.line("barrier.cluster.arrive.relaxed.aligned");
        self.meetings = Some(Meetings {
            first,
            barriers,
            held: 0,
            begun: false,
        });
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

    fn meetings(&mut self) -> Result<&mut Meetings> {
        let meetings = self.meetings.as_mut();
        meetings.ok_or_else(|| err!(Internal, "the blocks of this cluster never meet"))
    }

    /// Sends `parts` to `place` and the bytes behind it, `apart` from each other, in block `rank`.
    pub(crate) fn send(
        &mut self,
        when: Option<Reg>,
        parts: &[Reg],
        (place, apart, ty): (Reg, i64, &str),
        rank: Opd,
    ) -> Result<()> {
        let &mut Meetings {
            barriers,
            held,
            begun,
            ..
        } = self.meetings()?;
        if !begun {
            self.asm.line("barrier.cluster.wait.aligned");
            self.meetings()?.begun = true;
        }
        let there = |emitter: &mut Self, here: Reg| {
            let operands = [here.into(), rank];
            let mapa = "mapa.shared::cluster.u32";
            emitter.asm.pure(Class::B32, mapa, &operands)
        };
        let (place, barrier) = (there(self, place), there(self, barriers));
        for (k, part) in parts.iter().enumerate() {
            self.asm.line(format_args!(
                "{}st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{ty} [{place}+{}], {part}, [{barrier}+{}]",
                guard(when),
                k as i64 * apart,
                8 * held
            ));
        }
        Ok(())
    }

    /// Waits until `bytes` have come from all blocks.
    pub(crate) fn receive(&mut self, bytes: i64) -> Result<()> {
        let meetings = self.meetings()?;
        let (first, barriers, at) = (meetings.first, meetings.barriers, 8 * meetings.held);
        meetings.held += 1;
        self.asm.line(format_args!(
            "@{first} mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barriers}+{at}], {bytes}"
        ));
        self.await_barrier(format_args!("{barriers}+{at}"), Opd::Int(0));
        Ok(())
    }
}
