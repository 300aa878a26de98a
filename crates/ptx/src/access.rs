//! Windows of memory, register by register: addresses, wide accesses, bounds.
//!
//! The element that register `r` of a thread touches lies at `base + thread + const(r)`: what the access says, what warp and lane add, and what the
//! register adds. Only the first two are computed, once; the last is an immediate. Registers whose elements are neighbours go in one wide access when
//! the facts prove that it is aligned and that its elements are inside the bounds or outside of them together.

use oxyfuel_base::{Result, ensure};
use oxyfuel_kernel::ir::{Access, CacheHint, Mode, Space};
use rustc_hash::FxHashMap;

use crate::asm::{Class, Opd, Reg};
use crate::emit::Emitter;
use crate::fact::Fact;
use crate::place::{Place, extent};
use crate::value::{Int, Memory};

/// An access whose indices are operands.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) memory: Memory,
    pub(crate) base: Int,
    pub(crate) strides: Vec<Int>,
    pub(crate) valid: Vec<Option<Int>>,
    /// What is known of how soon the data is used again.
    pub(crate) hint: CacheHint,
}

/// When an element may be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    If(Reg),
    Never,
}

/// Registers whose elements lie one behind the other.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// For each element in address order, the registers that hold it.
    pub(crate) regs: Vec<Vec<usize>>,
    /// Number of the address it is relative to.
    pub(crate) group: usize,
    /// From that address, in elements.
    pub(crate) offset: i64,
}

/// How a tile meets a window.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) runs: Vec<Run>,
    /// Coordinates along dims without constant strides, one entry a group.
    keys: Vec<Vec<i64>>,
}

/// One mode of the thread's number, in steps of a linear function.
struct Step {
    by: i64,
    extent: i64,
    value: i64,
}

impl Emitter<'_> {
    pub(crate) fn window(&mut self, access: &Access) -> Result<Window> {
        let rank = access.shape.len();
        ensure!(
            access.strides.len() == rank && access.valid.len() == rank,
            InvalidKernel,
            "an access of rank {rank} has {} strides and {} bounds",
            access.strides.len(),
            access.valid.len()
        );
        let memory = self.memory(access.mem)?;
        let base = self.index(access.base)?;
        let strides = access
            .strides
            .iter()
            .map(|index| self.index(*index))
            .collect::<Result<_>>()?;
        let valid = access
            .valid
            .iter()
            .map(|bound| bound.map(|index| self.index(index)).transpose())
            .collect::<Result<_>>()?;
        Ok(Window {
            memory,
            base,
            strides,
            valid,
            hint: CacheHint::Default,
        })
    }

    /// `sum(coord[d] * weights[d])` over what lane and warp add to the coordinates.
    pub(crate) fn thread_linear(&mut self, place: &Place, weights: &[i64]) -> Result<Int> {
        let mut total = Int::constant(0);
        for step in self.steps(place, &mut |mode| mode_value(mode, weights))? {
            if step.value == 0 || step.extent == 1 {
                continue;
            }
            let index = self.thread_index(step.by, step.extent);
            let term = self.asm.int_mul(index, Int::constant(step.value));
            total = self.asm.int_add(total, term);
        }
        Ok(total)
    }

    /// Digit of the thread's number within the team: `(tid / by) % extent`.
    fn thread_index(&mut self, by: i64, extent: i64) -> Int {
        let threads = 32 * i64::from(self.team.warps);
        let tid = Int {
            opd: self.team.tid.into(),
            fact: Fact::range(0, threads - 1),
        };
        let quotient = self.asm.int_floordiv(tid, by);
        self.asm.int_mod(quotient, extent)
    }

    /// The digits of the thread's number that a layout gives a meaning, with neighbours merged where they count on.
    fn steps(&self, place: &Place, value: &mut dyn FnMut(&Mode) -> i64) -> Result<Vec<Step>> {
        let (lanes, warps) = (extent(&place.layout.lane), extent(&place.layout.warp));
        ensure!(
            lanes <= 32,
            InvalidKernel,
            "a layout names {lanes} lanes of a warp"
        );
        ensure!(
            warps <= u64::from(self.team.warps),
            InvalidKernel,
            "a layout names {warps} warps where {} are",
            self.team.warps
        );
        let mut steps: Vec<Step> = Vec::new();
        for (start, modes) in [(1i64, &place.layout.lane), (32, &place.layout.warp)] {
            let mut by = start;
            for mode in modes {
                let step = Step {
                    by,
                    extent: i64::from(mode.extent),
                    value: value(mode),
                };
                by *= step.extent;
                match steps.last_mut() {
                    Some(last)
                        if last.by * last.extent == step.by
                            && step.value == last.value * last.extent =>
                    {
                        last.extent *= step.extent
                    }
                    _ => steps.push(step),
                }
            }
        }
        Ok(steps)
    }

    /// What warp and lane add to one coordinate.
    pub(crate) fn thread_coord(&mut self, place: &Place, dim: usize) -> Result<Int> {
        let mut weights = vec![0; place.rank()];
        weights[dim] = 1;
        self.thread_linear(place, &weights)
    }

    /// True in one of the threads that hold the same elements; `None` where no two do.
    pub(crate) fn replica_leader(&mut self, place: &Place) -> Result<Option<Reg>> {
        if self.team.single {
            return Ok(None);
        }
        let mut leader = None;
        let mut digits: Vec<(i64, i64)> = self
            .steps(place, &mut |mode| i64::from(mode.stride))?
            .into_iter()
            .filter(|step| step.value == 0 && step.extent > 1)
            .map(|step| (step.by, step.extent))
            .collect();
        let (lanes, warps) = (
            extent(&place.layout.lane) as i64,
            extent(&place.layout.warp) as i64,
        );
        if lanes < 32 {
            digits.push((lanes, 32 / lanes));
        }
        if warps < i64::from(self.team.warps) {
            digits.push((32 * warps, i64::from(self.team.warps).div_euclid(warps)));
        }
        digits.sort_unstable();
        for (by, extent) in merge_digits(&digits) {
            let index = self.thread_index(by, extent);
            let p = self
                .asm
                .pure(Class::Pred, "setp.eq.s32", &[index.opd, Opd::Int(0)]);
            leader = Some(self.both(leader, p));
        }
        Ok(leader)
    }

    pub(crate) fn both(&mut self, a: Option<Reg>, b: Reg) -> Reg {
        match a {
            Some(a) => self
                .asm
                .pure(Class::Pred, "and.pred", &[a.into(), b.into()]),
            None => b,
        }
    }

    /// The bounds that a tile must respect in a window: what the access says, and its own shape where the layout hangs over.
    pub(crate) fn bounds(
        &mut self,
        place: &Place,
        valid: &[Option<Int>],
    ) -> Result<Vec<Option<Int>>> {
        let mut bounds = Vec::with_capacity(place.rank());
        for d in 0..place.rank() {
            let cover = place.cover(d);
            let shape = (cover > place.shape[d]).then(|| Int::constant(place.shape[d]));
            let said = valid
                .get(d)
                .copied()
                .flatten()
                .filter(|bound| bound.fact.lo < cover.min(place.shape[d]));
            bounds.push(match (said, shape) {
                (Some(a), Some(b)) => {
                    let fact = a.fact.min(b.fact);
                    Some(self.asm.int_op("min.s#", a, b, fact))
                }
                (a, b) => a.or(b),
            });
        }
        Ok(bounds)
    }

    /// Whether the element at these register coordinates is inside the bounds.
    pub(crate) fn inside(
        &mut self,
        place: &Place,
        coords: &[i64],
        bounds: &[Option<Int>],
    ) -> Result<When> {
        let mut all = None;
        for (d, bound) in bounds.iter().enumerate() {
            let Some(bound) = *bound else { continue };
            let thread = self.thread_coord(place, d)?;
            if thread.fact.lo + coords[d] >= bound.fact.hi {
                return Ok(When::Never);
            }
            let left = self.asm.int_sub(bound, Int::constant(coords[d]));
            if let Some(p) = self.asm.int_less(thread, left) {
                all = Some(self.both(all, p));
            }
        }
        Ok(all.map_or(When::Always, When::If))
    }

    /// The widest runs that are aligned and complete; where `whole`, also inside the bounds or outside of them as one. Elements of one address with
    /// different bounds keep registers of their own in any case.
    pub(crate) fn plan(
        &mut self,
        place: &Place,
        window: &Window,
        bounds: &[Option<Int>],
        whole: bool,
    ) -> Result<Plan> {
        let size = window.memory.dtype.size() as i64;
        let constants: Vec<Option<i64>> = window
            .strides
            .iter()
            .map(|s| s.fact.as_constant())
            .collect();
        ensure!(
            constants.len() == place.rank(),
            InvalidKernel,
            "a window of rank {} meets a tile of rank {}",
            constants.len(),
            place.rank()
        );
        let mut keys: Vec<Vec<i64>> = Vec::new();
        let mut key_numbers: FxHashMap<Vec<i64>, usize> = FxHashMap::default();
        let mut at: Vec<FxHashMap<i64, Vec<usize>>> = Vec::new();
        let mut aside: Vec<(usize, usize, i64)> = Vec::new();
        for (r, coords) in place.regs.iter().enumerate() {
            let key: Vec<i64> = coords
                .iter()
                .zip(&constants)
                .map(|(c, s)| if s.is_some() { 0 } else { *c })
                .collect();
            let offset = coords
                .iter()
                .zip(&constants)
                .map(|(c, s)| c * s.unwrap_or(0))
                .sum::<i64>();
            let group = *key_numbers.entry(key.clone()).or_insert_with(|| {
                keys.push(key);
                at.push(FxHashMap::default());
                keys.len() - 1
            });
            // Registers of one element share an access; where a layout hangs over its shape, another element may seem to lie in the same place.
            let here = at[group].entry(offset).or_default();
            let bounded = |d: usize| bounds.get(d).is_some_and(Option::is_some);
            match here.first() {
                Some(first)
                    if (0..coords.len())
                        .any(|d| bounded(d) && place.regs[*first][d] != coords[d]) =>
                {
                    aside.push((r, group, offset))
                }
                Some(_) | None => here.push(r),
            }
        }
        let mut width = (16 / size).max(1);
        let uniform = if whole { bounds } else { &[] };
        while width > 1 && !self.wide_enough(place, window, uniform, &constants, &at, width)? {
            width /= 2;
        }
        let mut runs = Vec::new();
        for (group, offsets) in at.iter().enumerate() {
            let mut sorted: Vec<i64> = offsets.keys().copied().collect();
            sorted.sort_unstable();
            for chunk in sorted.chunks(width as usize) {
                runs.push(Run {
                    regs: chunk.iter().map(|offset| offsets[offset].clone()).collect(),
                    group,
                    offset: chunk[0],
                });
            }
        }
        for (r, group, offset) in aside {
            runs.push(Run {
                regs: vec![vec![r]],
                group,
                offset,
            });
        }
        Ok(Plan { runs, keys })
    }

    fn wide_enough(
        &mut self,
        place: &Place,
        window: &Window,
        bounds: &[Option<Int>],
        constants: &[Option<i64>],
        at: &[FxHashMap<i64, Vec<usize>>],
        width: i64,
    ) -> Result<bool> {
        let size = window.memory.dtype.size() as u64;
        let n = width.unsigned_abs();
        let weights: Vec<i64> = constants.iter().map(|s| s.unwrap_or(0)).collect();
        let mut aligned =
            window.memory.align.is_multiple_of(n * size) && window.base.fact.divisible_by(n);
        aligned &= self
            .steps(place, &mut |mode| mode_value(mode, &weights))?
            .iter()
            .all(|step| step.extent == 1 || step.value % width == 0);
        aligned &= window
            .strides
            .iter()
            .zip(constants)
            .all(|(stride, constant)| constant.is_some() || stride.fact.divisible_by(n));
        if !aligned {
            return Ok(false);
        }
        for offsets in at {
            if !offsets.keys().all(|offset| {
                (0..width).all(|i| offsets.contains_key(&(offset.div_euclid(width) * width + i)))
            }) {
                return Ok(false);
            }
        }
        for (d, bound) in bounds.iter().enumerate() {
            let Some(bound) = bound else { continue };
            if at
                .iter()
                .all(|offsets| runs_agree(place, offsets, d, width))
            {
                continue;
            }
            // They differ along `d`: its elements must be neighbours, and whole runs of them inside or outside.
            let coord = self.steps(place, &mut |mode| {
                if usize::from(mode.dim) == d {
                    i64::from(mode.stride)
                } else {
                    0
                }
            })?;
            let steps_fit = coord
                .iter()
                .all(|step| step.extent == 1 || step.value % width == 0);
            let within = at
                .iter()
                .all(|offsets| runs_within(place, offsets, d, width));
            if constants[d] != Some(1) || !steps_fit || !within || !bound.fact.divisible_by(n) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The address of a run, and the bytes to add to it.
    pub(crate) fn run_address(
        &mut self,
        place: &Place,
        window: &Window,
        plan: &Plan,
        run: &Run,
    ) -> Result<(Reg, i64)> {
        let size = window.memory.dtype.size() as i64;
        let weights: Vec<i64> = window
            .strides
            .iter()
            .map(|s| s.fact.as_constant().unwrap_or(0))
            .collect();
        let thread = self.thread_linear(place, &weights)?;
        let mut terms = vec![thread, window.base];
        for (d, stride) in window.strides.iter().enumerate() {
            if stride.fact.as_constant().is_none() {
                let lane = self.thread_coord(place, d)?;
                let coord = self
                    .asm
                    .int_add(lane, Int::constant(plan.keys[run.group][d]));
                terms.push(self.asm.int_mul(coord, *stride));
            }
        }
        if window.memory.space == Space::Shared {
            return self.shared_address(place, window, &weights, &terms, run.offset * size);
        }
        let mut address = window.memory.base;
        let mut fixed = run.offset.wrapping_mul(size);
        for term in terms {
            match term.fact.as_constant() {
                Some(c) => fixed = fixed.wrapping_add(c.wrapping_mul(size)),
                None => address = self.asm.address(address, term, size),
            }
        }
        if i32::try_from(fixed).is_ok() {
            Ok((address, fixed))
        } else {
            Ok((self.asm.address(address, Int::constant(fixed), 1), 0))
        }
    }

    fn shared_address(
        &mut self,
        place: &Place,
        window: &Window,
        weights: &[i64],
        terms: &[Int],
        fixed: i64,
    ) -> Result<(Reg, i64)> {
        let size = window.memory.dtype.size() as i64;
        let mut fixed = fixed;
        let mut moving = Vec::new();
        for term in terms {
            match term.fact.as_constant() {
                Some(c) => fixed += c * size,
                None => moving.push(*term),
            }
        }
        let base = window.memory.base;
        let Some(swizzle) = window.memory.swizzle else {
            let mut address = base;
            for term in moving {
                let x = self.asm.narrow(term);
                address = self.asm.pure(
                    Class::B32,
                    "mad.lo.s32",
                    &[x, Opd::Int(size), address.into()],
                );
            }
            return Ok((address, fixed));
        };
        let period = 1i64 << (swizzle.bits + swizzle.base + swizzle.shift);
        let apply = |emitter: &mut Self, byte: Opd| {
            let mask = ((1i64 << swizzle.bits) - 1) << (swizzle.base + swizzle.shift);
            let high = emitter
                .asm
                .pure(Class::B32, "and.b32", &[byte, Opd::Int(mask)]);
            let low = emitter.asm.pure(
                Class::B32,
                "shr.u32",
                &[high.into(), Opd::Int(i64::from(swizzle.shift))],
            );
            emitter.asm.pure(Class::B32, "xor.b32", &[byte, low.into()])
        };
        // Where the thread's part and the register's part share no bit, their swizzles meet in one xor.
        let byte_weights: Vec<i64> = weights.iter().map(|w| w * size).collect();
        let thread_bits =
            disjoint_bits(&self.steps(place, &mut |mode| mode_value(mode, &byte_weights))?);
        let others_whole = moving
            .iter()
            .skip(usize::from(terms[0].fact.as_constant().is_none()))
            .all(|term| term.fact.divisible_by((period / size) as u64));
        if let (Some(bits), true, true) = (thread_bits, others_whole, fixed >= 0)
            && bits & fixed == 0
        {
            let thread = self.thread_linear(place, &byte_weights)?;
            let mut address = match thread.fact.as_constant() {
                Some(_) => base,
                None => {
                    let swizzled = apply(self, thread.opd);
                    self.asm
                        .pure(Class::B32, "add.s32", &[base.into(), swizzled.into()])
                }
            };
            for term in moving
                .iter()
                .skip(usize::from(terms[0].fact.as_constant().is_none()))
            {
                let x = self.asm.narrow(*term);
                address = self.asm.pure(
                    Class::B32,
                    "mad.lo.s32",
                    &[x, Opd::Int(size), address.into()],
                );
            }
            let turned = swizzle.apply(fixed as u64) as i64;
            let low = turned & (period - 1);
            if low != 0 {
                address = self
                    .asm
                    .pure(Class::B32, "xor.b32", &[address.into(), Opd::Int(low)]);
            }
            return Ok((address, turned - low));
        }
        let mut byte = self.asm.constant(Class::B32, Opd::Int(fixed));
        for term in moving {
            let x = self.asm.narrow(term);
            byte = self
                .asm
                .pure(Class::B32, "mad.lo.s32", &[x, Opd::Int(size), byte.into()]);
        }
        let swizzled = apply(self, byte.into());
        Ok((
            self.asm
                .pure(Class::B32, "add.s32", &[base.into(), swizzled.into()]),
            0,
        ))
    }

    /// A window that covers a whole memory in row-major order under the given strides.
    pub(crate) fn whole(memory: Memory, strides: &[i64]) -> Window {
        Window {
            memory,
            base: Int::constant(0),
            strides: strides.iter().map(|s| Int::constant(*s)).collect(),
            valid: vec![None; strides.len()],
            hint: CacheHint::Default,
        }
    }

    pub(crate) fn shared_window(
        &mut self,
        dtype: oxyfuel_base::DType,
        base: Reg,
        strides: &[i64],
    ) -> Window {
        Self::whole(
            Memory {
                dtype,
                space: Space::Shared,
                base,
                align: 1024,
                swizzle: None,
            },
            strides,
        )
    }
}

/// Coordinates along `d` of the runs that offsets make, by their first register.
fn run_coords<'a>(
    place: &'a Place,
    offsets: &'a FxHashMap<i64, Vec<usize>>,
    d: usize,
    width: i64,
) -> impl Iterator<Item = (i64, i64)> + 'a {
    // The element of a run, and the one that its run begins with.
    offsets.iter().filter_map(move |(offset, regs)| {
        let first = offsets.get(&(offset.div_euclid(width) * width))?;
        Some((
            place.regs[*regs.first()?][d],
            place.regs[*first.first()?][d],
        ))
    })
}

/// Whether all elements of each run have one coordinate along `d`.
fn runs_agree(place: &Place, offsets: &FxHashMap<i64, Vec<usize>>, d: usize, width: i64) -> bool {
    run_coords(place, offsets, d, width).all(|(coord, first)| coord == first)
}

/// Whether each run covers aligned neighbours along `d`.
fn runs_within(place: &Place, offsets: &FxHashMap<i64, Vec<usize>>, d: usize, width: i64) -> bool {
    run_coords(place, offsets, d, width)
        .all(|(coord, first)| first % width == 0 && (0..width).contains(&(coord - first)))
}

fn mode_value(mode: &Mode, weights: &[i64]) -> i64 {
    i64::from(mode.stride) * weights.get(usize::from(mode.dim)).copied().unwrap_or(0)
}

/// The bits that a thread's part can set, where every digit has bits of its own.
fn disjoint_bits(steps: &[Step]) -> Option<i64> {
    let mut all = 0;
    for step in steps
        .iter()
        .filter(|step| step.value != 0 && step.extent > 1)
    {
        if step.value < 0 || step.value.count_ones() != 1 || step.extent.count_ones() != 1 {
            return None;
        }
        let bits = (step.extent - 1) * step.value;
        if all & bits != 0 {
            return None;
        }
        all |= bits;
    }
    Some(all)
}

/// Neighbouring digits as one.
fn merge_digits(digits: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let mut out: Vec<(i64, i64)> = Vec::new();
    for (by, extent) in digits {
        match out.last_mut() {
            Some(last) if last.0 * last.1 == *by => last.1 *= extent,
            _ => out.push((*by, *extent)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_kernel::ir::TileLayout;

    #[test]
    fn a_run_over_the_end_of_a_row_is_no_neighbourhood() {
        // Rows of 3 elements in one thread: elements 2 and 3 are neighbours in memory and lie in different rows.
        let layout = TileLayout {
            reg: vec![Mode::new(1, 3, 1), Mode::new(0, 2, 1)],
            ..TileLayout::default()
        };
        let place = Place::new(&layout, &[2, 3]).unwrap();
        let offsets: FxHashMap<i64, Vec<usize>> = (0..6)
            .map(|offset| (offset, vec![offset as usize]))
            .collect();
        assert!(!runs_agree(&place, &offsets, 0, 2));
        assert!(!runs_within(&place, &offsets, 1, 2));
        assert!(runs_agree(&place, &offsets, 0, 1));
    }
}
