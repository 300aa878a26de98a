//! Barriers in shared memory, the tensor copy engine, and copies by threads.

use std::fmt;

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::{Access, BarrierRef, Index, Inst, Mode, Op, Space, TileLayout, Val};

use crate::access::When;
use crate::asm::{Class, Opd, Reg};
use crate::emit::{Emitter, guard};
use crate::place::Place;
use crate::value::Int;

impl Emitter<'_> {
    fn barrier(&mut self, barrier: BarrierRef) -> Result<Reg> {
        ensure!(
            self.target.tensor_copies,
            NoLowering,
            "{} has no barriers in shared memory",
            self.target.name
        );
        let memory = self.memory(barrier.mem)?;
        let slot = self.index(barrier.slot)?;
        self.shared_element(&memory, slot)
    }

    /// Address of an element of an unswizzled shared memory, or of one at a whole period of its swizzle.
    fn shared_element(&mut self, memory: &crate::value::Memory, index: Int) -> Result<Reg> {
        ensure!(
            memory.space == Space::Shared,
            NoLowering,
            "a barrier or an asynchronous copy needs shared memory"
        );
        let size = memory.dtype.size() as i64;
        if let Some(swizzle) = memory.swizzle {
            let period = 1u64 << (swizzle.bits + swizzle.base + swizzle.shift);
            ensure!(
                index.fact.divisible_by(period / size as u64),
                NoLowering,
                "a copy must start at a multiple of the swizzle's {period} bytes"
            );
        }
        Ok(match index.fact.as_constant() {
            Some(0) => memory.base,
            Some(c) => self.asm.pure(
                Class::B32,
                "add.s32",
                &[memory.base.into(), Opd::Int(c * size)],
            ),
            None => {
                let x = self.asm.narrow(index);
                self.asm.pure(
                    Class::B32,
                    "mad.lo.s32",
                    &[x, Opd::Int(size), memory.base.into()],
                )
            }
        })
    }

    pub(crate) fn barrier_init(
        &mut self,
        barrier: BarrierRef,
        count: u32,
        next: Option<&Inst>,
    ) -> Result<()> {
        let address = self.barrier(barrier)?;
        let p = self.first_thread();
        self.asm.line(format_args!(
            "{}mbarrier.init.shared::cta.b64 [{address}], {count}",
            guard(p)
        ));
        if !matches!(next.map(|inst| &inst.op), Some(Op::BarrierInit { .. })) {
            // After the last one: the copy engine and all warps see them.
            self.asm.line(format_args!(
                "{}fence.mbarrier_init.release.cluster",
                guard(p)
            ));
            self.sync();
        }
        Ok(())
    }

    pub(crate) fn barrier_arrive(
        &mut self,
        barrier: BarrierRef,
        bytes: Option<i64>,
        per_warp: bool,
    ) -> Result<()> {
        let address = self.barrier(barrier)?;
        let p = if per_warp && !self.team.single {
            let lane = self
                .asm
                .pure(Class::B32, "and.b32", &[self.team.tid.into(), Opd::Int(31)]);
            self.asm.line("bar.warp.sync -1");
            Some(
                self.asm
                    .pure(Class::Pred, "setp.eq.s32", &[lane.into(), Opd::Int(0)]),
            )
        } else {
            if self.team.warps > 4 || (bytes.is_none() && !self.reads_by_products) {
                // One thread speaks for all: they must have come this far.
                self.sync();
            }
            self.first_thread()
        };
        match bytes {
            Some(bytes) => self.asm.line(format_args!(
                "{}mbarrier.arrive.expect_tx.shared::cta.b64 _, [{address}], {bytes}",
                guard(p)
            )),
            None => self.asm.line(format_args!(
                "{}mbarrier.arrive.shared::cta.b64 _, [{address}]",
                guard(p)
            )),
        }
        Ok(())
    }

    pub(crate) fn barrier_wait(&mut self, barrier: BarrierRef, parity: Val) -> Result<()> {
        let address = self.barrier(barrier)?;
        let parity = self.scalar_int(parity)?;
        let parity = self.asm.narrow(parity);
        self.await_barrier(format_args!("{address}"), parity);
        Ok(())
    }

    /// Waits until the barrier at an address has ended its phase of that parity.
    pub(crate) fn await_barrier(&mut self, address: fmt::Arguments<'_>, parity: Opd) {
        let (again, done) = (self.asm.label(), self.asm.label());
        let p = self.asm.reg(Class::Pred);
        self.asm.place(&again);
        self.asm.line(format_args!(
            "mbarrier.try_wait.parity.shared::cta.b64 {p}, [{address}], {parity}"
        ));
        self.asm.line(format_args!("@{p} bra {done}"));
        self.asm.line(format_args!("bra {again}"));
        self.asm.place(&done);
    }

    /// Coordinates of a box, the fastest first as the instruction wants them.
    fn box_coords(&mut self, coords: &[Index]) -> Result<String> {
        ensure!(
            (1..=5).contains(&coords.len()),
            InvalidKernel,
            "a box of {} dims",
            coords.len()
        );
        let mut list = Vec::with_capacity(coords.len());
        for coord in coords.iter().rev() {
            let x = self.index(*coord)?;
            let x = self.asm.narrow(x);
            list.push(self.in_register(Class::B32, x).to_string());
        }
        Ok(list.join(","))
    }

    pub(crate) fn tensor_load(
        &mut self,
        map: Val,
        coords: &[Index],
        dst: Val,
        base: Index,
        barrier: BarrierRef,
    ) -> Result<()> {
        let map = self.tensor_map(map)?;
        let rank = coords.len();
        let at = self.box_coords(coords)?;
        let memory = self.memory(dst)?;
        let base = self.index(base)?;
        let address = self.shared_element(&memory, base)?;
        let barrier = self.barrier(barrier)?;
        let p = self.first_thread();
        self.asm.line(format_args!(
            "{}cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes [{address}], [{map}, {{{at}}}], [{barrier}]",
            guard(p)
        ));
        Ok(())
    }

    pub(crate) fn tensor_store(
        &mut self,
        map: Val,
        coords: &[Index],
        src: Val,
        base: Index,
    ) -> Result<()> {
        let map = self.tensor_map(map)?;
        let rank = coords.len();
        let at = self.box_coords(coords)?;
        let memory = self.memory(src)?;
        let base = self.index(base)?;
        let address = self.shared_element(&memory, base)?;
        let p = self.first_thread();
        self.asm.line(format_args!("{}cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [{map}, {{{at}}}], [{address}]", guard(p)));
        Ok(())
    }

    pub(crate) fn copy_commit(&mut self) -> Result<()> {
        if self.copies.bulk {
            let p = self.first_thread();
            self.asm
                .line(format_args!("{}cp.async.bulk.commit_group", guard(p)));
        }
        if self.copies.threads {
            self.asm.line("cp.async.commit_group");
        }
        Ok(())
    }

    pub(crate) fn copy_wait(&mut self, pending: u32, next: Option<&Inst>) -> Result<()> {
        if self.copies.threads {
            self.asm.line(format_args!("cp.async.wait_group {pending}"));
        }
        if self.copies.bulk {
            // What the engine has read may be overwritten; the writes themselves end with the kernel.
            let p = self.first_thread();
            self.asm.line(format_args!(
                "{}cp.async.bulk.wait_group.read {pending}",
                guard(p)
            ));
            if next.is_some_and(|inst| !matches!(inst.op, Op::Sync)) {
                self.sync();
            }
        }
        Ok(())
    }

    /// A window of global memory into shared memory, 16 bytes a thread at a time.
    pub(crate) fn copy_async(&mut self, src: &Access, dst: &Access) -> Result<()> {
        ensure!(
            src.shape == dst.shape,
            ShapeMismatch,
            "a copy from {:?} to {:?}",
            src.shape,
            dst.shape
        );
        let (from, into) = (self.window(src)?, self.window(dst)?);
        ensure!(
            from.memory.dtype == into.memory.dtype,
            DTypeMismatch,
            "a copy between dtypes"
        );
        ensure!(
            from.memory.space == Space::Global && into.memory.space == Space::Shared,
            NoLowering,
            "copies go from global to shared memory"
        );
        let size = from.memory.dtype.size() as i64;
        let layout = spread(&src.shape, (16 / size).max(1), self.team.warps)?;
        let place = Place::new(&layout, &src.shape)?;
        let bounds = self.bounds(&place, &from.valid)?;
        let (plan, out) = (
            self.plan(&place, &from, &bounds, true)?,
            self.plan(&place, &into, &bounds, true)?,
        );
        for run in &plan.runs {
            let first = run.regs[0][0];
            let bytes = run.regs.len() as i64 * size;
            let target = out
                .runs
                .iter()
                .find(|other| other.regs[0].contains(&first) && other.regs.len() == run.regs.len());
            let target = target
                .filter(|_| matches!(bytes, 4 | 8 | 16))
                .ok_or_else(|| {
                    err!(
                        NoLowering,
                        "a copy whose rows are not aligned to 4, 8 or 16 bytes on both sides"
                    )
                })?;
            let (source, source_offset) = self.run_address(&place, &from, &plan, run)?;
            let (target, target_offset) = self.run_address(&place, &into, &out, target)?;
            let cache = if bytes == 16 { "cg" } else { "ca" };
            // Outside the bounds nothing is read and zeros are written.
            let read = match self.inside(&place, &place.regs[first], &bounds)? {
                When::Always => Opd::Int(bytes),
                When::Never => Opd::Int(0),
                When::If(p) => self
                    .asm
                    .pure(
                        Class::B32,
                        "selp.b32",
                        &[Opd::Int(bytes), Opd::Int(0), p.into()],
                    )
                    .into(),
            };
            self.asm.line(format_args!("cp.async.{cache}.shared.global [{target}+{target_offset}], [{source}+{source_offset}], {bytes}, {read}"));
        }
        Ok(())
    }
}

/// Neighbouring threads on neighbouring vectors of `vector` elements, the rest in registers.
fn spread(shape: &[i64], vector: i64, warps: u32) -> Result<TileLayout> {
    let last = shape
        .len()
        .checked_sub(1)
        .ok_or_else(|| err!(NoLowering, "a copy of a scalar"))?;
    let mut layout = TileLayout {
        reg: vec![Mode {
            dim: last as u8,
            extent: vector as u32,
            stride: vector.min(1) as u32,
        }],
        ..TileLayout::default()
    };
    let (mut lanes, mut left) = (32i64, i64::from(warps));
    for d in (0..shape.len()).rev() {
        let mut stride = if d == last { vector } else { 1 };
        let mut extent = (shape[d] + stride - 1) / stride;
        for (free, level) in [
            (&mut lanes, &mut layout.lane),
            (&mut left, &mut layout.warp),
        ] {
            let mut take = 1;
            while take * 2 <= *free && extent % (take * 2) == 0 {
                take *= 2;
            }
            if take > 1 {
                level.push(Mode {
                    dim: d as u8,
                    extent: take as u32,
                    stride: stride as u32,
                });
                *free /= take;
                stride *= take;
                extent /= take;
            }
        }
        if extent > 1 {
            layout.reg.push(Mode {
                dim: d as u8,
                extent: u32::try_from(extent)
                    .map_err(|_| err!(TooLarge, "a copy of shape {shape:?}"))?,
                stride: stride as u32,
            });
        }
    }
    Ok(layout)
}
