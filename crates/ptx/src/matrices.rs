//! 8 by 8 matrices of 16 bits an element, between shared memory and registers as matrix units hold them: 16 bytes a lane where single accesses would move 2 or 4.
//!
//! In a matrix a lane holds two neighbours: at row `lane / 4`, columns `2 * (lane % 4)`. An instruction moves four matrices; each lane says where one row of one of them lies.

use oxyfuel_base::{Result, err};
use oxyfuel_kernel::ir::{Mode, Space, TileLayout};
use rustc_hash::FxHashMap;

use crate::access::Window;
use crate::asm::{Class, Opd};
use crate::emit::Emitter;
use crate::place::{Place, extent};
use crate::value::{Int, Slot, Tile};

impl Emitter<'_> {
    /// Loads a tile whose lanes hold pairs as the unit takes them. `None` where the tile or the window is not of that kind.
    pub(crate) fn load_matrices(
        &mut self,
        place: &Place,
        window: &Window,
        bounds: &[Option<Int>],
    ) -> Result<Option<Vec<Slot>>> {
        let [pairs, eights] = place.layout.lane.as_slice() else {
            return Ok(None);
        };
        let (pair, eight) = (pairs.dim, eights.dim);
        let lanes = [pairs, eights].map(|mode| (mode.extent, mode.stride));
        let fits = window.memory.space == Space::Shared
            && window.memory.dtype.size() == 2
            && window.memory.align >= 16
            && window.base.fact.divisible_by(8)
            && bounds.iter().all(Option::is_none)
            && pair != eight
            && lanes == [(4, 2), (8, 1)]
            && !self.team.single;
        let strides = window.strides.iter().map(|s| s.fact.as_constant());
        let Some(strides) = strides.collect::<Option<Vec<i64>>>().filter(|_| fits) else {
            return Ok(None);
        };
        // Rows of a matrix lie along memory: pairs as they are, or eights, and are turned on the way.
        let turned = strides[usize::from(pair)] != 1;
        let (row, along) = if turned { (pair, eight) } else { (eight, pair) };
        let even = |(d, stride): (usize, &i64)| match d == usize::from(along) {
            true => *stride == 1,
            false => stride % 8 == 0,
        };
        let mut reg = place.layout.reg.clone();
        let neighbours = reg
            .iter()
            .position(|m| (m.dim, m.extent, m.stride) == (pair, 2, 1));
        let Some(neighbours) = neighbours.filter(|_| strides.iter().enumerate().all(even)) else {
            return Ok(None);
        };
        reg.remove(neighbours);
        // The two steps between the four matrices of an instruction.
        let mut steps: Vec<Mode> = Vec::new();
        for mode in &mut reg {
            while steps.len() < 2 && mode.extent > 1 && mode.extent.is_multiple_of(2) {
                steps.push(Mode::new(mode.dim, 2, mode.stride));
                *mode = Mode::new(mode.dim, mode.extent / 2, mode.stride * 2);
            }
        }
        let [first, second] = steps.as_slice() else {
            return Ok(None);
        };
        let layout = TileLayout {
            lane: vec![Mode::new(row, 8, 1), *first, *second],
            warp: place.layout.warp.clone(),
            reg,
            ..TileLayout::default()
        };
        let rows = Place::new(&layout, &place.shape)?;
        let by_coords: FxHashMap<&Vec<i64>, usize> =
            place.regs.iter().enumerate().map(|(r, c)| (c, r)).collect();
        let mut slots = vec![Slot::Opd(Opd::Int(0)); place.regs.len()];
        let plan = self.single_elements(&rows, window)?;
        let turn = if turned { ".trans" } else { "" };
        for run in &plan.runs {
            let (address, offset) = self.run_address(&rows, window, &plan, run)?;
            let words = [0; 4].map(|_: u8| self.asm.reg(Class::B32));
            let list = words.map(|word| word.to_string()).join(",");
            self.asm.line(format_args!(
                "ldmatrix.sync.aligned.m8n8.x4{turn}.shared.b16 {{{list}}}, [{address}+{offset}]"
            ));
            for (i, word) in words.into_iter().enumerate() {
                let mut coords = rows.regs[run.regs[0][0]].clone();
                for (bit, step) in [first, second].into_iter().enumerate() {
                    let there = (i >> bit & 1) as i64;
                    coords[usize::from(step.dim)] += there * i64::from(step.stride);
                }
                for index in [0, 1] {
                    let at = by_coords
                        .get(&coords)
                        .ok_or_else(|| err!(Internal, "an operand without element {coords:?}"))?;
                    slots[*at] = Slot::Part { word, index };
                    coords[usize::from(pair)] += 1;
                }
            }
        }
        Ok(Some(slots))
    }

    /// Stores a tile that lies as an accumulator, 16 bits an element, as 8 by 8 matrices: 16 bytes a lane where single stores would take 4. False
    /// where the tile or the window is not of that kind.
    pub(crate) fn store_matrices(
        &mut self,
        tile: &Tile,
        window: &Window,
        bounds: &[Option<Int>],
    ) -> Result<bool> {
        let place = tile.place.clone();
        let [n_lanes, m_lanes] = place.layout.lane.as_slice() else {
            return Ok(false);
        };
        let (n_dim, m_dim) = (n_lanes.dim, m_lanes.dim);
        let mut fits = self.target.stmatrix
            && window.memory.space == Space::Shared
            && tile.dtype.size() == 2
            && bounds.iter().all(Option::is_none)
            && n_dim != m_dim;
        fits &= (
            n_lanes.extent,
            n_lanes.stride,
            m_lanes.extent,
            m_lanes.stride,
        ) == (4, 2, 8, 1)
            && !self.team.single;
        let regs = &place.layout.reg;
        let find = |dim: u8, extent: u32, stride: u32| {
            regs.iter()
                .position(|m| m.dim == dim && m.extent == extent && m.stride == stride)
        };
        let (pair, half) = (find(n_dim, 2, 1), find(m_dim, 2, 8));
        let eights = regs
            .iter()
            .position(|m| m.dim == n_dim && m.stride == 8 && m.extent.is_multiple_of(2));
        let (Some(pair), Some(half), Some(eights), true) = (pair, half, eights, fits) else {
            return Ok(false);
        };
        let strides: Option<Vec<i64>> = window
            .strides
            .iter()
            .map(|s| s.fact.as_constant())
            .collect();
        let Some(strides) = strides else {
            return Ok(false);
        };
        let rows_aligned = strides.iter().enumerate().all(|(d, s)| {
            if d == usize::from(n_dim) {
                *s == 1
            } else {
                s % 8 == 0
            }
        });
        let whole_warps = extent(&place.layout.warp) == u64::from(self.team.warps)
            && place
                .layout
                .warp
                .iter()
                .all(|m| m.stride > 0 && m.dim != n_dim);
        if !rows_aligned
            || !whole_warps
            || !window.base.fact.divisible_by(8)
            || window.memory.align < 16
        {
            return Ok(false);
        }
        // Where each lane points its row to: matrices 0 and 1 under each other, 2 and 3 beside them.
        let mut reg = Vec::new();
        for (i, mode) in regs.iter().enumerate() {
            match i {
                _ if i == pair || i == half => {}
                _ if i == eights => reg.push(Mode {
                    dim: n_dim,
                    extent: mode.extent / 2,
                    stride: 16,
                }),
                _ => reg.push(*mode),
            }
        }
        let lane = vec![
            Mode {
                dim: m_dim,
                extent: 8,
                stride: 1,
            },
            Mode {
                dim: m_dim,
                extent: 2,
                stride: 8,
            },
            Mode {
                dim: n_dim,
                extent: 2,
                stride: 8,
            },
        ];
        let rows = Place::new(
            &TileLayout {
                lane,
                warp: place.layout.warp.clone(),
                reg,
                ..TileLayout::default()
            },
            &place.shape,
        )?;
        let by_coords: FxHashMap<&Vec<i64>, usize> =
            place.regs.iter().enumerate().map(|(r, c)| (c, r)).collect();
        let plan = self.single_elements(&rows, window)?;
        for run in &plan.runs {
            let corner = &rows.regs[run.regs[0][0]];
            let mut words = Vec::with_capacity(4);
            for (down, right) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
                let mut slots = Vec::with_capacity(2);
                for e in [0, 1] {
                    let mut coords = corner.clone();
                    coords[usize::from(m_dim)] += down;
                    coords[usize::from(n_dim)] += right + e;
                    let r = by_coords.get(&coords).ok_or_else(|| {
                        err!(Internal, "an accumulator without element {coords:?}")
                    })?;
                    slots.push(tile.slots[*r]);
                }
                let word = self.asm.words(tile.dtype, &slots)[0];
                words.push(self.in_register(Class::B32, word).to_string());
            }
            let (address, offset) = self.run_address(&rows, window, &plan, run)?;
            self.asm.line(format_args!(
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{address}+{offset}], {{{}}}",
                words.join(",")
            ));
        }
        Ok(true)
    }
}
