//! Loads and stores of windows, gathers, scatters, atomics.

use oxyfuel_base::{DType, Result, Scalar, ensure, err};
use oxyfuel_kernel::ir::{Access, CacheHint, Op, ReduceOp, Space, Val};

use crate::access::{Plan, Run, When, Window};
use crate::asm::{Class, Opd, Reg, braces};
use crate::emit::{Emitter, guard};
use crate::place::Place;
use crate::target::CACHE_HINTS;
use crate::value::{Int, Slot, Tile, class_of, literal, parts, range_of};

fn space_name(space: Space) -> Result<&'static str> {
    match space {
        Space::Global => Ok("global"),
        Space::Shared => Ok("shared"),
        Space::Panel | Space::Tensor => Err(err!(
            NoLowering,
            "this target has no memory in space {space:?}"
        )),
    }
}

/// The type of a load or store of one element.
fn element_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 | DType::I64 | DType::U64 => "b64",
        DType::F32 | DType::I32 | DType::U32 => "b32",
        DType::F16 | DType::BF16 => "b16",
        DType::I16 => "s16",
        DType::U16 => "u16",
        DType::I8 => "s8",
        DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1 | DType::E8M0 => {
            "u8"
        }
    }
}

impl Emitter<'_> {
    /// Makes the policy of loads whose data the second-level cache lets go of last, where there are such loads.
    pub(crate) fn keep(&mut self) {
        let mut any = false;
        self.phase.body.walk(&mut |inst| {
            any |= matches!(
                &inst.op,
                Op::Load {
                    hint: CacheHint::Kept,
                    ..
                }
            );
        });
        if any {
            self.asm.wants(CACHE_HINTS);
            let policy = self.asm.reg(Class::B64);
            self.asm.line(format_args!(
                "createpolicy.fractional.L2::evict_last.b64 {policy}, 1.0"
            ));
            self.kept = Some(policy);
        }
    }

    pub(crate) fn load(
        &mut self,
        result: Val,
        access: &Access,
        mask: Option<Val>,
        fill: Scalar,
        hint: CacheHint,
    ) -> Result<()> {
        let place = self.place(result)?;
        let window = Window {
            hint,
            ..self.window(access)?
        };
        let mask = mask.map(|mask| self.tile(mask)).transpose()?;
        let slots = self.load_window(&place, &window, mask.as_ref(), fill)?;
        self.define(result, slots, range_of(window.memory.dtype))
    }

    pub(crate) fn load_window(
        &mut self,
        place: &Place,
        window: &Window,
        mask: Option<&Tile>,
        fill: Scalar,
    ) -> Result<Vec<Slot>> {
        let bounds = self.bounds(place, &window.valid)?;
        if let Some(mask) = mask {
            return self.load_masked(place, window, &bounds, mask, fill);
        }
        if let Some(slots) = self.load_matrices(place, window, &bounds)? {
            return Ok(slots);
        }
        let plan = self.plan(place, window, &bounds, true)?;
        let free = self.plan(place, window, &bounds, false)?;
        let mut slots = vec![Slot::Opd(Opd::Int(0)); place.regs.len()];
        let hangs_over = (0..place.rank()).any(|d| place.overhangs(d));
        if hangs_over || free.runs.len() >= plan.runs.len() || window.memory.dtype.is_bool() {
            for run in &plan.runs {
                let when = self.inside(place, &place.regs[run.regs[0][0]], &bounds)?;
                self.load_run(place, window, &plan, run, when, fill, &mut slots)?;
            }
            return Ok(slots);
        }
        // Bounds that are not known to be multiples of a run: whole tiles go wide, the last ones element by element.
        let (slow, join) = (self.asm.label(), self.asm.label());
        let whole = self.whole_tile_inside(place, &bounds)?;
        if let Some(p) = whole {
            self.asm.line(format_args!("@!{p} bra {slow}"));
        }
        self.asm.enter();
        for run in &free.runs {
            self.load_run(place, window, &free, run, When::Always, fill, &mut slots)?;
        }
        self.asm.leave();
        if whole.is_none() {
            return Ok(slots);
        }
        self.asm.line(format_args!("bra {join}"));
        self.asm.place(&slow);
        self.asm.enter();
        let mut narrow = slots.clone();
        for run in &plan.runs {
            let when = self.inside(place, &place.regs[run.regs[0][0]], &bounds)?;
            self.load_run(place, window, &plan, run, when, fill, &mut narrow)?;
        }
        self.join_slots(window.memory.dtype, &slots, &narrow);
        self.asm.leave();
        self.asm.place(&join);
        Ok(slots)
    }

    /// Moves what `from` holds into the registers that `into` names.
    fn join_slots(&mut self, dtype: DType, into: &[Slot], from: &[Slot]) {
        let mut done: Vec<Reg> = Vec::new();
        for (i, slot) in into.iter().enumerate() {
            let (dst, words) = match *slot {
                Slot::Opd(Opd::Reg(reg)) => (reg, vec![self.asm.element(dtype, from[i])]),
                Slot::Part { word, index: 0 } => {
                    // The elements of the word, wherever the tile keeps them.
                    let per = 4 / dtype.size() as u8;
                    let all: Vec<Slot> = (0..per)
                        .filter_map(|k| {
                            into.iter()
                                .position(|s| *s == Slot::Part { word, index: k })
                        })
                        .map(|at| from[at])
                        .collect();
                    (word, self.asm.words(dtype, &all))
                }
                Slot::Part { .. } | Slot::Opd(_) => continue,
            };
            if !done.contains(&dst) {
                done.push(dst);
                self.asm.mov(dst, words[0]);
            }
        }
    }

    /// Whether no element of the tile is outside; `None` where that is always so.
    fn whole_tile_inside(&mut self, place: &Place, bounds: &[Option<Int>]) -> Result<Option<Reg>> {
        let mut all = None;
        for (d, bound) in bounds.iter().enumerate() {
            if let Some(bound) = bound {
                let last = Int::constant(place.cover(d) - 1);
                if let Some(p) = self.asm.int_less(last, *bound) {
                    all = Some(self.both(all, p));
                }
            }
        }
        Ok(all)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one run needs its tile, its window, its plan and where to put the result"
    )]
    fn load_run(
        &mut self,
        place: &Place,
        window: &Window,
        plan: &Plan,
        run: &Run,
        when: When,
        fill: Scalar,
        slots: &mut [Slot],
    ) -> Result<()> {
        let dtype = window.memory.dtype;
        let n = run.regs.len();
        let filled = literal(dtype, fill);
        let got: Vec<Slot> = if when == When::Never {
            vec![Slot::Opd(filled); n]
        } else {
            let (address, offset) = self.run_address(place, window, plan, run)?;
            let p = match when {
                When::If(p) => Some(p),
                When::Always | When::Never => None,
            };
            self.load_elements(window, address, offset, n, p, filled)?
        };
        for (slot, regs) in got.iter().zip(&run.regs) {
            for r in regs {
                slots[*r] = *slot;
            }
        }
        Ok(())
    }

    /// `n` elements one behind the other, in one instruction.
    fn load_elements(
        &mut self,
        window: &Window,
        address: Reg,
        offset: i64,
        n: usize,
        p: Option<Reg>,
        fill: Opd,
    ) -> Result<Vec<Slot>> {
        let dtype = window.memory.dtype;
        let hint = match window.memory.space {
            Space::Global => window.hint,
            _ => CacheHint::Default,
        };
        let (space, policy) = match (hint, self.kept) {
            (CacheHint::Streaming, _) => {
                self.asm.wants(CACHE_HINTS);
                ("global.L1::no_allocate", String::new())
            }
            (CacheHint::Kept, Some(policy)) => ("global.L2::cache_hint", format!(", {policy}")),
            (CacheHint::Default | CacheHint::Kept | CacheHint::Ahead, _) => {
                (space_name(window.memory.space)?, String::new())
            }
        };
        let bytes = n * dtype.size();
        if n == 1 || bytes < 4 || dtype.size() == 8 {
            // Elements of their own; only those of 4 and 8 bytes have vectors here.
            let mut out = Vec::new();
            let per = if dtype.size() >= 4 { n } else { 1 };
            for first in (0..n).step_by(per) {
                let class = if dtype.is_bool() {
                    Class::B32
                } else {
                    class_of(dtype, range_of(dtype))
                };
                let regs = self.asm.regs(class, per);
                if p.is_some() {
                    for reg in &regs {
                        self.asm.mov(*reg, fill);
                    }
                }
                let vector = if per > 1 {
                    format!(".v{per}")
                } else {
                    String::new()
                };
                let at = offset + (first * dtype.size()) as i64;
                self.asm.line(format_args!(
                    "{}ld.{space}{vector}.{} {}, [{address}+{at}]{policy}",
                    guard(p),
                    element_type(dtype),
                    braces(&regs)
                ));
                for reg in regs {
                    out.push(if dtype.is_bool() {
                        self.asm
                            .pure(Class::Pred, "setp.ne.u32", &[reg.into(), Opd::Int(0)])
                            .into()
                    } else {
                        reg.into()
                    });
                }
            }
            return Ok(out);
        }
        let words = self.asm.regs(Class::B32, bytes / 4);
        if p.is_some() {
            let per = 4 / dtype.size();
            let word = self.asm.words(dtype, &vec![Slot::Opd(fill); per])[0];
            for reg in &words {
                self.asm.mov(*reg, word);
            }
        }
        let vector = if words.len() > 1 {
            format!(".v{}", words.len())
        } else {
            String::new()
        };
        self.asm.line(format_args!(
            "{}ld.{space}{vector}.b32 {}, [{address}+{offset}]{policy}",
            guard(p),
            braces(&words)
        ));
        Ok(parts(dtype, &words, n))
    }

    fn load_masked(
        &mut self,
        place: &Place,
        window: &Window,
        bounds: &[Option<Int>],
        mask: &Tile,
        fill: Scalar,
    ) -> Result<Vec<Slot>> {
        let narrow = self.single_elements(place, window)?;
        ensure!(
            mask.slots.len() == place.regs.len(),
            InvalidKernel,
            "a mask has another layout than its load"
        );
        let mut slots = vec![Slot::Opd(Opd::Int(0)); place.regs.len()];
        for run in &narrow.runs {
            let r = run.regs[0][0];
            let when = self.inside(place, &place.regs[r], bounds)?;
            let when = self.and_mask(when, mask, r);
            self.load_run(place, window, &narrow, run, when, fill, &mut slots)?;
        }
        Ok(slots)
    }

    fn and_mask(&mut self, when: When, mask: &Tile, r: usize) -> When {
        let p = self.asm.element_reg(DType::Bool, mask.fact, mask.slots[r]);
        match when {
            When::Never => When::Never,
            When::Always => When::If(p),
            When::If(q) => When::If(self.both(Some(q), p)),
        }
    }

    /// A plan of one element a run, and every register a run of its own.
    pub(crate) fn single_elements(&mut self, place: &Place, window: &Window) -> Result<Plan> {
        let mut narrow = window.clone();
        narrow.memory.align = 1;
        let mut plan = self.plan(place, &narrow, &[], true)?;
        let mut runs = Vec::new();
        for run in plan.runs {
            for r in run.regs.iter().flatten() {
                runs.push(Run {
                    regs: vec![vec![*r]],
                    ..run.clone()
                });
            }
        }
        plan.runs = runs;
        Ok(plan)
    }

    pub(crate) fn store(&mut self, access: &Access, value: Val, mask: Option<Val>) -> Result<()> {
        let tile = self.tile(value)?;
        let window = self.window(access)?;
        let mask = mask.map(|mask| self.tile(mask)).transpose()?;
        self.store_window(&tile, &window, mask.as_ref())
    }

    pub(crate) fn store_window(
        &mut self,
        tile: &Tile,
        window: &Window,
        mask: Option<&Tile>,
    ) -> Result<()> {
        ensure!(
            tile.dtype == window.memory.dtype,
            DTypeMismatch,
            "a tile of {} is stored to a memory of {}",
            tile.dtype,
            window.memory.dtype
        );
        let place = tile.place.clone();
        let bounds = self.bounds(&place, &window.valid)?;
        let leader = self.replica_leader(&place)?;
        if let Some(mask) = mask {
            ensure!(
                mask.slots.len() == place.regs.len(),
                InvalidKernel,
                "a mask has another layout than its store"
            );
            let plan = self.single_elements(&place, window)?;
            for run in &plan.runs {
                let r = run.regs[0][0];
                let when = self.inside(&place, &place.regs[r], &bounds)?;
                let when = self.and_mask(when, mask, r);
                self.store_run(tile, window, &plan, run, when, leader)?;
            }
            return Ok(());
        }
        if self.store_matrices(tile, window, &bounds)? {
            return Ok(());
        }
        let plan = self.plan(&place, window, &bounds, true)?;
        let free = self.plan(&place, window, &bounds, false)?;
        let hangs_over = (0..place.rank()).any(|d| place.overhangs(d));
        if hangs_over || free.runs.len() >= plan.runs.len() {
            return self.store_runs(tile, window, &plan, &bounds, leader);
        }
        let (slow, join) = (self.asm.label(), self.asm.label());
        let whole = self.whole_tile_inside(&place, &bounds)?;
        if let Some(p) = whole {
            self.asm.line(format_args!("@!{p} bra {slow}"));
        }
        self.asm.enter();
        self.store_runs(tile, window, &free, &[], leader)?;
        self.asm.leave();
        if whole.is_some() {
            self.asm.line(format_args!("bra {join}"));
            self.asm.place(&slow);
            self.asm.enter();
            self.store_runs(tile, window, &plan, &bounds, leader)?;
            self.asm.leave();
            self.asm.place(&join);
        }
        Ok(())
    }

    fn store_runs(
        &mut self,
        tile: &Tile,
        window: &Window,
        plan: &Plan,
        bounds: &[Option<Int>],
        leader: Option<Reg>,
    ) -> Result<()> {
        for run in &plan.runs {
            let when = self.inside(&tile.place, &tile.place.regs[run.regs[0][0]], bounds)?;
            self.store_run(tile, window, plan, run, when, leader)?;
        }
        Ok(())
    }

    fn store_run(
        &mut self,
        tile: &Tile,
        window: &Window,
        plan: &Plan,
        run: &Run,
        when: When,
        leader: Option<Reg>,
    ) -> Result<()> {
        let p = match when {
            When::Never => return Ok(()),
            When::Always => leader,
            When::If(p) => Some(self.both(leader, p)),
        };
        let dtype = tile.dtype;
        let space = space_name(window.memory.space)?;
        let (address, offset) = self.run_address(&tile.place, window, plan, run)?;
        let slots: Vec<Slot> = run.regs.iter().map(|regs| tile.slots[regs[0]]).collect();
        let bytes = slots.len() * dtype.size();
        let (regs, ty) = if bytes >= 4 && dtype.size() <= 4 {
            let words = self.asm.words(dtype, &slots);
            (
                words
                    .into_iter()
                    .map(|word| self.in_register(Class::B32, word))
                    .collect::<Vec<_>>(),
                "b32",
            )
        } else if dtype.size() == 8 {
            let regs = (0..slots.len())
                .map(|i| {
                    let int = Int {
                        opd: self.asm.element(dtype, slots[i]),
                        fact: tile.fact,
                    };
                    let wide = self.asm.widen(int);
                    self.in_register(Class::B64, wide)
                })
                .collect();
            (regs, "b64")
        } else {
            // One or two narrow elements.
            for (i, slot) in slots.iter().enumerate() {
                let reg = self.stored_element(tile, *slot);
                let ty = if reg.class == Class::B16 {
                    "b16"
                } else if dtype.size() == 2 {
                    "u16"
                } else {
                    "u8"
                };
                let at = offset + (i * dtype.size()) as i64;
                self.asm.line(format_args!(
                    "{}st.{space}.{ty} [{address}+{at}], {reg}",
                    guard(p)
                ));
            }
            return Ok(());
        };
        let vector = if regs.len() > 1 {
            format!(".v{}", regs.len())
        } else {
            String::new()
        };
        self.asm.line(format_args!(
            "{}st.{space}{vector}.{ty} [{address}+{offset}], {}",
            guard(p),
            braces(&regs)
        ));
        Ok(())
    }

    fn stored_element(&mut self, tile: &Tile, slot: Slot) -> Reg {
        let reg = self.asm.element_reg(tile.dtype, tile.fact, slot);
        if reg.class == Class::Pred {
            self.asm.pure(
                Class::B32,
                "selp.b32",
                &[Opd::Int(1), Opd::Int(0), reg.into()],
            )
        } else {
            reg
        }
    }

    pub(crate) fn in_register(&mut self, class: Class, opd: Opd) -> Reg {
        match opd {
            Opd::Reg(reg) => reg,
            constant => self.asm.constant(class, constant),
        }
    }

    // ---- by explicit positions -----------------------------------------------------------------------------------------------------

    /// When element `r` of a gather, scatter or atomic is touched.
    fn active(&mut self, place: &Place, r: usize, mask: Option<&Tile>) -> Result<When> {
        let bounds = self.bounds(place, &vec![None; place.rank()])?;
        let when = self.inside(place, &place.regs[r], &bounds)?;
        Ok(match mask {
            Some(mask) => self.and_mask(when, mask, r),
            None => when,
        })
    }

    fn element_address(&mut self, memory: &crate::value::Memory, index: Int) -> Result<Reg> {
        let size = memory.dtype.size() as i64;
        match memory.space {
            Space::Global => Ok(self.asm.address(memory.base, index, size)),
            Space::Shared if memory.swizzle.is_none() => {
                let x = self.asm.narrow(index);
                Ok(self.asm.pure(
                    Class::B32,
                    "mad.lo.s32",
                    &[x, Opd::Int(size), memory.base.into()],
                ))
            }
            Space::Shared | Space::Panel | Space::Tensor => {
                Err(err!(NoLowering, "no element access to this memory"))
            }
        }
    }

    pub(crate) fn gather(
        &mut self,
        result: Val,
        mem: Val,
        index: Val,
        mask: Option<Val>,
        fill: Scalar,
    ) -> Result<()> {
        let memory = self.memory(mem)?;
        let index = self.tile(index)?;
        let mask = mask.map(|mask| self.tile(mask)).transpose()?;
        let place = self.place(result)?;
        ensure!(
            index.slots.len() == place.regs.len(),
            InvalidKernel,
            "positions have another layout than their gather"
        );
        let window = Self::whole(memory.clone(), &[]);
        let filled = literal(memory.dtype, fill);
        let mut slots = Vec::with_capacity(index.slots.len());
        for r in 0..index.slots.len() {
            let got = match self.active(&place, r, mask.as_ref())? {
                When::Never => Slot::Opd(filled),
                when => {
                    let position = index.int(&mut self.asm, r);
                    let position = self.signed_index(index.dtype, position);
                    let address = self.element_address(&memory, position)?;
                    let p = if let When::If(p) = when {
                        Some(p)
                    } else {
                        None
                    };
                    self.load_elements(&window, address, 0, 1, p, filled)?[0]
                }
            };
            slots.push(got);
        }
        self.define(result, slots, range_of(memory.dtype))
    }

    /// A position in 64 bits where it is unsigned and may not fit a signed 32-bit register.
    fn signed_index(&mut self, dtype: DType, x: Int) -> Int {
        if dtype == DType::U32 && !x.fact.fits_i32() && x.opd.reg().is_some() {
            return Int {
                opd: self.asm.pure(Class::B64, "cvt.u64.u32", &[x.opd]).into(),
                fact: x.fact,
            };
        }
        x
    }

    pub(crate) fn scatter(
        &mut self,
        mem: Val,
        index: Val,
        value: Val,
        mask: Option<Val>,
    ) -> Result<()> {
        let memory = self.memory(mem)?;
        let space = space_name(memory.space)?;
        let (index, tile) = (self.tile(index)?, self.tile(value)?);
        let mask = mask.map(|mask| self.tile(mask)).transpose()?;
        ensure!(
            index.slots.len() == tile.slots.len(),
            InvalidKernel,
            "positions have another layout than their scatter"
        );
        let place = tile.place.clone();
        let leader = self.replica_leader(&place)?;
        for r in 0..tile.slots.len() {
            let p = match self.active(&place, r, mask.as_ref())? {
                When::Never => continue,
                When::Always => leader,
                When::If(p) => Some(self.both(leader, p)),
            };
            let position = index.int(&mut self.asm, r);
            let position = self.signed_index(index.dtype, position);
            let address = self.element_address(&memory, position)?;
            let (reg, ty) = if tile.dtype.size() == 8 {
                let int = tile.int(&mut self.asm, r);
                let wide = self.asm.widen(int);
                (self.in_register(Class::B64, wide), "b64")
            } else {
                let reg = self.stored_element(&tile, tile.slots[r]);
                (
                    reg,
                    if reg.class == Class::B16 {
                        "b16"
                    } else {
                        ["u8", "u16", "b32"][tile.dtype.size() / 2]
                    },
                )
            };
            self.asm.line(format_args!(
                "{}st.{space}.{ty} [{address}], {reg}",
                guard(p)
            ));
        }
        Ok(())
    }

    pub(crate) fn atomic(
        &mut self,
        op: ReduceOp,
        mem: Val,
        index: Val,
        value: Val,
        mask: Option<Val>,
    ) -> Result<()> {
        let memory = self.memory(mem)?;
        let space = space_name(memory.space)?;
        let (index, tile) = (self.tile(index)?, self.tile(value)?);
        let mask = mask.map(|mask| self.tile(mask)).transpose()?;
        let what = match (op, memory.dtype) {
            (ReduceOp::Sum, DType::F32) => "add.f32",
            (ReduceOp::Sum, DType::F64) => "add.f64",
            (ReduceOp::Sum, DType::I32 | DType::U32) => "add.u32",
            (ReduceOp::Sum, DType::I64 | DType::U64) => "add.u64",
            (ReduceOp::Max, DType::I32) => "max.s32",
            (ReduceOp::Max, DType::U32) => "max.u32",
            (ReduceOp::Max, DType::I64) => "max.s64",
            (ReduceOp::Max, DType::U64) => "max.u64",
            (ReduceOp::Min, DType::I32) => "min.s32",
            (ReduceOp::Min, DType::U32) => "min.u32",
            (ReduceOp::Min, DType::I64) => "min.s64",
            (ReduceOp::Min, DType::U64) => "min.u64",
            (op, dtype) => {
                return Err(err!(
                    NoLowering,
                    "an atomic {} of {dtype} has no PTX",
                    op.name()
                ));
            }
        };
        ensure!(
            index.slots.len() == tile.slots.len(),
            InvalidKernel,
            "positions have another layout than their atomic"
        );
        let place = tile.place.clone();
        let leader = self.replica_leader(&place)?;
        for r in 0..tile.slots.len() {
            let p = match self.active(&place, r, mask.as_ref())? {
                When::Never => continue,
                When::Always => leader,
                When::If(p) => Some(self.both(leader, p)),
            };
            let position = index.int(&mut self.asm, r);
            let position = self.signed_index(index.dtype, position);
            let address = self.element_address(&memory, position)?;
            let int = tile.int(&mut self.asm, r);
            let (opd, class) = if tile.dtype.size() == 8 {
                (self.asm.widen(int), Class::B64)
            } else {
                (int.opd, Class::B32)
            };
            let reg = self.in_register(class, opd);
            self.asm.line(format_args!(
                "{}red.{space}.{what} [{address}], {reg}",
                guard(p)
            ));
        }
        Ok(())
    }
}
