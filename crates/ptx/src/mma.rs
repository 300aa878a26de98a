//! Products on matrix units: warpgroup products on shared memory, and products of one warp on registers.
//!
//! Both units keep an accumulator in the same way: in every 8 by 8 block a lane holds two neighbours of row `lane / 4`, at columns `2 * (lane % 4)`; a warp
//! holds 16 rows, in a warpgroup the four warps hold 64 rows one under the other. Blocks beyond that are registers, or further warps.

use oxyfuel_base::{DType, Result, ensure, err};
use oxyfuel_kernel::ir::{Inst, MmaDim, MmaOperand, Mode, Space, TileLayout, Val};
use rustc_hash::FxHashMap;

use crate::access::Window;
use crate::asm::{Class, Opd, Reg};
use crate::emit::Emitter;
use crate::place::Place;
use crate::value::{Int, Slot, Tile};

/// One row a kind of warpgroup product: operand and accumulator dtypes, the instruction's types, depth, whether operands may lie across the depth.
const WGMMA: &[(DType, DType, &str, i64, bool)] = &[
    (DType::BF16, DType::F32, "f32.bf16.bf16", 16, true),
    (DType::F16, DType::F32, "f32.f16.f16", 16, true),
    (DType::F8E4M3, DType::F32, "f32.e4m3.e4m3", 32, false),
    (DType::F8E5M2, DType::F32, "f32.e5m2.e5m2", 32, false),
];

/// One side of an operand in memory: extents and strides of its dims along the depth and along the side, the slowest first.
struct Operand {
    window: Window,
    k: Vec<(i64, i64)>,
    side: Vec<(i64, i64)>,
}

/// How a warpgroup product finds an operand.
struct Descriptor {
    /// The descriptor of the operand's first element.
    start: Reg,
    /// Bytes between rows of 8 along the strided direction, in 16-byte units, and so on: everything but the address.
    across: bool,
    operand: Operand,
}

fn operand_of(emitter: &mut Emitter<'_>, operand: &MmaOperand) -> Result<Operand> {
    let MmaOperand::Mem { access, dims } = operand else {
        return Err(err!(
            NoLowering,
            "a warpgroup product reads its operands from shared memory"
        ));
    };
    let window = emitter.window(access)?;
    ensure!(
        access.valid.iter().all(Option::is_none),
        NoLowering,
        "a product on a window with bounds"
    );
    ensure!(
        dims.len() == access.shape.len(),
        InvalidKernel,
        "an operand of rank {} names {} dims",
        access.shape.len(),
        dims.len()
    );
    let (mut k, mut side) = (Vec::new(), Vec::new());
    for ((extent, stride), dim) in access.shape.iter().zip(&window.strides).zip(dims) {
        let stride = stride.fact.as_constant().ok_or_else(|| {
            err!(
                NoLowering,
                "an operand of a product has strides that are not constant"
            )
        })?;
        match dim {
            MmaDim::K => k.push((*extent, stride)),
            MmaDim::Side => side.push((*extent, stride)),
        }
    }
    ensure!(
        !k.is_empty() && !side.is_empty(),
        InvalidKernel,
        "an operand needs a dim along the depth and one along its side"
    );
    Ok(Operand { window, k, side })
}

/// Offset in elements of position `index` along nested dims.
fn offset_along(dims: &[(i64, i64)], mut index: i64) -> i64 {
    let mut offset = 0;
    for (extent, stride) in dims.iter().rev() {
        offset += index % extent * stride;
        index /= extent;
    }
    offset
}

fn product(dims: &[(i64, i64)]) -> i64 {
    dims.iter().map(|(extent, _)| extent).product()
}

/// The registers of a matrix by their coordinates; of a batch of them, of the one that a warp holds.
fn by_coords(place: &Place) -> FxHashMap<(i64, i64), usize> {
    let rows = place.rank() - 2;
    let regs = place.regs.iter().enumerate();
    regs.map(|(r, c)| ((c[rows], c[rows + 1]), r)).collect()
}

/// How the lanes of a warp share an accumulator whose rows are dim `rows`.
fn acc_lanes(rows: u8) -> [Mode; 2] {
    [Mode::new(rows + 1, 4, 2), Mode::new(rows, 8, 1)]
}

impl Emitter<'_> {
    pub(crate) fn mma(
        &mut self,
        result: Val,
        a: &MmaOperand,
        b: &MmaOperand,
        acc: Val,
        asynchronous: bool,
    ) -> Result<()> {
        let tile = self.tile(acc)?;
        let rank = tile.place.rank();
        ensure!(
            (2..=3).contains(&rank) && tile.place.layout.lane == acc_lanes(rank as u8 - 2),
            NoLowering,
            "the accumulator of a product must lie as the matrix unit leaves it"
        );
        let tile = self.owned(&tile);
        let in_shared = |operand: &MmaOperand| matches!(operand, MmaOperand::Mem { .. });
        if self.target.wgmma
            && rank == 2
            && in_shared(a)
            && in_shared(b)
            && tile.place.layout.warp.first()
                == Some(&Mode {
                    dim: 0,
                    extent: 4,
                    stride: 16,
                })
        {
            self.warpgroup_product(&tile, a, b, asynchronous)?;
        } else {
            ensure!(
                !asynchronous,
                NoLowering,
                "only warpgroup products are asynchronous"
            );
            self.warp_product(&tile, a, b)?;
        }
        self.define(result, tile.slots, tile.fact)
    }

    /// The accumulator in registers that are its own, so that it can be updated in place.
    fn owned(&mut self, tile: &Tile) -> Tile {
        let mut seen = std::collections::HashSet::new();
        let own = tile.slots.iter().all(|slot| match slot {
            Slot::Opd(Opd::Reg(reg)) => self.asm.is_mutable(*reg) && seen.insert(reg.to_string()),
            Slot::Opd(_) | Slot::Part { .. } => false,
        });
        if own {
            return tile.clone();
        }
        let mut slots = Vec::with_capacity(tile.slots.len());
        for slot in &tile.slots {
            let opd = self.asm.element(tile.dtype, *slot);
            let reg = self.asm.reg(Class::B32);
            self.asm.mov(reg, opd);
            self.asm.mark_mutable(reg);
            slots.push(reg.into());
        }
        Tile {
            slots,
            ..tile.clone()
        }
    }

    fn warpgroup_product(
        &mut self,
        acc: &Tile,
        a: &MmaOperand,
        b: &MmaOperand,
        asynchronous: bool,
    ) -> Result<()> {
        let (a, b) = (operand_of(self, a)?, operand_of(self, b)?);
        let dtype = a.window.memory.dtype;
        let (_, _, types, step, may_cross) = WGMMA
            .iter()
            .find(|row| row.0 == dtype && row.0 == b.window.memory.dtype && row.1 == acc.dtype)
            .ok_or_else(|| {
                err!(
                    NoLowering,
                    "no warpgroup product of {dtype} and {} into {}",
                    b.window.memory.dtype,
                    acc.dtype
                )
            })?;
        let place = &acc.place;
        let depth = product(&a.k);
        ensure!(
            depth == product(&b.k) && depth % step == 0,
            NoLowering,
            "a depth of {depth} is not made of steps of {step}"
        );
        // Warps beyond the first four, by how far they move along rows and columns.
        let beyond = TileLayout {
            warp: std::iter::once(Mode {
                dim: 0,
                extent: 4,
                stride: 0,
            })
            .chain(place.layout.warp.iter().skip(1).copied())
            .collect(),
            ..TileLayout::default()
        };
        let beyond = Place::new(&beyond, &place.shape)?;
        let registers = by_coords(place);
        let mut rows: Vec<i64> = place
            .regs
            .iter()
            .map(|c| c[0])
            .filter(|m| m % 64 == 0)
            .collect();
        let mut cols: Vec<i64> = place
            .regs
            .iter()
            .map(|c| c[1])
            .filter(|n| n % 8 == 0)
            .collect();
        for list in [&mut rows, &mut cols] {
            list.sort_unstable();
            list.dedup();
        }
        let width = instruction_width(&cols)?;
        let a_desc = self.descriptor(a, 64, &beyond, 0)?;
        let b_desc = self.descriptor(b, width, &beyond, 1)?;
        ensure!(
            *may_cross || (!a_desc.across && !b_desc.across),
            NoLowering,
            "operands of {dtype} must be contiguous along the depth"
        );
        let always = self.asm.constant(Class::Pred, Opd::Int(-1));
        self.asm.line("wgmma.fence.sync.aligned");
        for k in (0..depth).step_by(*step as usize) {
            for m in &rows {
                let da = self.descriptor_at(&a_desc, *m, k);
                for n in cols.iter().filter(|n| (*n - cols[0]) % width == 0) {
                    let db = self.descriptor_at(&b_desc, *n, k);
                    let mut list = Vec::with_capacity(width as usize / 2);
                    for j in 0..width / 8 {
                        for (row, col) in [(0, 0), (0, 1), (8, 0), (8, 1)] {
                            let r = registers.get(&(m + row, n + 8 * j + col)).ok_or_else(|| err!(NoLowering, "the accumulator does not lie as a warpgroup product leaves it"))?;
                            list.push(self.asm.element(acc.dtype, acc.slots[*r]).to_string());
                        }
                    }
                    let cross = if *may_cross {
                        format!(", {}, {}", u8::from(a_desc.across), u8::from(b_desc.across))
                    } else {
                        String::new()
                    };
                    self.asm.line(format_args!(
                        "wgmma.mma_async.sync.aligned.m64n{width}k{step}.{types} {{{}}}, {da}, {db}, {always}, 1, 1{cross}",
                        list.join(",")
                    ));
                }
            }
        }
        if !asynchronous {
            self.asm.line("wgmma.commit_group.sync.aligned");
            self.asm.line("wgmma.wait_group.sync.aligned 0");
        }
        Ok(())
    }

    /// The descriptor of an operand's first element, `need` positions of its side a time.
    fn descriptor(
        &mut self,
        operand: Operand,
        need: i64,
        beyond: &Place,
        dim: usize,
    ) -> Result<Descriptor> {
        let memory = &operand.window.memory;
        let size = memory.dtype.size() as i64;
        ensure!(
            memory.space == Space::Shared,
            NoLowering,
            "a warpgroup product reads its operands from shared memory"
        );
        let swizzle = memory
            .swizzle
            .filter(|s| s.base == 4 && s.shift == 3 && (1..=3).contains(&s.bits))
            .ok_or_else(|| {
                err!(
                    NoLowering,
                    "operands of a warpgroup product need a swizzle of 32, 64 or 128 bytes"
                )
            })?;
        let span = (16i64 << swizzle.bits) / size;
        let period = 1u64 << (swizzle.bits + 7);
        ensure!(
            operand.window.base.fact.divisible_by(period / size as u64),
            NoLowering,
            "an operand of a warpgroup product must start at a multiple of its swizzle's {period} bytes"
        );
        let (Some(&(k_extent, k_stride)), Some(&(side_extent, side_stride))) =
            (operand.k.last(), operand.side.last())
        else {
            return Err(err!(InvalidKernel, "an operand without dims"));
        };
        let across = k_stride != 1;
        let (leading, strided) = if across {
            // Contiguous along the side: spans of it side by side, rows of one span a step of the depth apart.
            ensure!(
                side_stride == 1 && k_stride == span && side_extent == span,
                NoLowering,
                "an operand across the depth must lie in rows of its swizzle's span"
            );
            let next = match operand.side.len() {
                _ if need <= span => 0,
                2 => operand.side[0].1,
                _ => {
                    return Err(err!(
                        NoLowering,
                        "the spans of an operand do not lie evenly"
                    ));
                }
            };
            ensure!(
                k_extent % 8 == 0,
                NoLowering,
                "an operand across the depth comes in eights"
            );
            (next * size, 8 * k_stride * size)
        } else {
            ensure!(
                side_stride == span && k_extent <= span && side_extent % need == 0,
                NoLowering,
                "an operand must lie in rows of its swizzle's span"
            );
            (16, 8 * side_stride * size)
        };
        let layout_type = 4 - u64::from(swizzle.bits);
        let fixed = layout_type << 62 | (strided as u64 >> 4) << 32 | (leading as u64 >> 4) << 16;
        // The address: base of the memory, base of the access, and what further warps add.
        let mut address = memory.base;
        let base = operand.window.base;
        let far = self.thread_coord(beyond, dim)?;
        let moved = if across {
            ensure!(
                far.fact.as_constant() == Some(0) || far.fact.divisible_by(span as u64),
                NoLowering,
                "warps of a product must move by whole spans"
            );
            let spans = self.asm.int_floordiv(far, span);
            self.asm.int_mul(spans, Int::constant(operand.side[0].1))
        } else {
            self.asm.int_mul(far, Int::constant(side_stride))
        };
        for term in [base, moved] {
            match term.fact.as_constant() {
                Some(0) => {}
                Some(c) => {
                    address =
                        self.asm
                            .pure(Class::B32, "add.s32", &[address.into(), Opd::Int(c * size)])
                }
                None => {
                    let x = self.asm.narrow(term);
                    address = self.asm.pure(
                        Class::B32,
                        "mad.lo.s32",
                        &[x, Opd::Int(size), address.into()],
                    );
                }
            }
        }
        let units = self
            .asm
            .pure(Class::B32, "shr.u32", &[address.into(), Opd::Int(4)]);
        let units = self.asm.pure(Class::B64, "cvt.u64.u32", &[units.into()]);
        let start = self.asm.pure(
            Class::B64,
            "or.b64",
            &[units.into(), Opd::Int(fixed as i64)],
        );
        Ok(Descriptor {
            start,
            across,
            operand,
        })
    }

    fn descriptor_at(&mut self, descriptor: &Descriptor, side: i64, k: i64) -> Reg {
        let size = descriptor.operand.window.memory.dtype.size() as i64;
        let offset = (offset_along(&descriptor.operand.side, side)
            + offset_along(&descriptor.operand.k, k))
            * size;
        if offset == 0 {
            descriptor.start
        } else {
            self.asm.pure(
                Class::B64,
                "add.s64",
                &[descriptor.start.into(), Opd::Int(offset >> 4)],
            )
        }
    }

    pub(crate) fn mma_wait(&mut self, inst: &Inst, pending: u32, accs: &[Val]) -> Result<()> {
        ensure!(
            self.target.wgmma,
            NoLowering,
            "{} has no asynchronous products",
            self.target.name
        );
        self.asm
            .line(format_args!("wgmma.wait_group.sync.aligned {pending}"));
        for (result, acc) in inst.results.iter().zip(accs) {
            let tile = self.tile(*acc)?;
            self.define(*result, tile.slots, tile.fact)?;
        }
        Ok(())
    }

    /// `mma.sync` of one warp: operands are loaded into (or renamed to) fragments.
    fn warp_product(&mut self, acc: &Tile, a: &MmaOperand, b: &MmaOperand) -> Result<()> {
        let place = acc.place.clone();
        let first = place.rank() - 2;
        ensure!(
            place
                .regs
                .iter()
                .all(|c| c[..first].iter().all(|at| *at == 0)),
            NoLowering,
            "a warp holds more than one product of a batch"
        );
        let registers = by_coords(&place);
        let (a_tile, b_tile) = (self.fragment(&place, a, 0)?, self.fragment(&place, b, 1)?);
        let types = match (a_tile.dtype, b_tile.dtype, acc.dtype) {
            (DType::BF16, DType::BF16, DType::F32) => "f32.bf16.bf16.f32",
            (DType::F16, DType::F16, DType::F32) => "f32.f16.f16.f32",
            (a, b, c) => {
                return Err(err!(
                    NoLowering,
                    "no product of {a} and {b} into {c} on one warp"
                ));
            }
        };
        let (a_regs, b_regs) = (by_coords(&a_tile.place), by_coords(&b_tile.place));
        let depth = a_tile.place.shape[first + 1];
        let mut rows: Vec<i64> = place
            .regs
            .iter()
            .map(|c| c[first])
            .filter(|m| m % 16 == 0)
            .collect();
        let mut cols: Vec<i64> = place
            .regs
            .iter()
            .map(|c| c[first + 1])
            .filter(|n| n % 8 == 0)
            .collect();
        for list in [&mut rows, &mut cols] {
            list.sort_unstable();
            list.dedup();
        }
        let missing = || {
            err!(
                NoLowering,
                "the tiles of a product do not lie as the matrix unit reads them"
            )
        };
        for k in (0..depth).step_by(16) {
            for m in &rows {
                let mut fa = Vec::with_capacity(4);
                for (row, col) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
                    let slots = [0, 1].map(|e| {
                        a_regs
                            .get(&(m + row, k + col + e))
                            .map(|r| a_tile.slots[*r])
                    });
                    let [Some(x), Some(y)] = slots else {
                        return Err(missing());
                    };
                    let word = self.asm.words(a_tile.dtype, &[x, y])[0];
                    fa.push(self.in_register(Class::B32, word).to_string());
                }
                for n in &cols {
                    let mut fb = Vec::with_capacity(2);
                    for row in [0, 8] {
                        let slots = [0, 1]
                            .map(|e| b_regs.get(&(k + row + e, *n)).map(|r| b_tile.slots[*r]));
                        let [Some(x), Some(y)] = slots else {
                            return Err(missing());
                        };
                        let word = self.asm.words(b_tile.dtype, &[x, y])[0];
                        fb.push(self.in_register(Class::B32, word).to_string());
                    }
                    let mut list = Vec::with_capacity(4);
                    for (row, col) in [(0, 0), (0, 1), (8, 0), (8, 1)] {
                        let r = registers.get(&(m + row, n + col)).ok_or_else(missing)?;
                        list.push(self.asm.element(acc.dtype, acc.slots[*r]).to_string());
                    }
                    let d = list.join(",");
                    self.asm.line(format_args!("mma.sync.aligned.m16n8k16.row.col.{types} {{{d}}}, {{{}}}, {{{}}}, {{{d}}}", fa.join(","), fb.join(",")));
                }
            }
        }
        Ok(())
    }

    /// An operand as the fragments of a warp's product: a tile that already lies so, or a load of its window.
    fn fragment(&mut self, acc: &Place, operand: &MmaOperand, side: u8) -> Result<Tile> {
        match operand {
            MmaOperand::Tile(v) => self.tile(*v),
            MmaOperand::Mem { access, dims } => {
                ensure!(
                    acc.rank() == 2,
                    NoLowering,
                    "a batch of products reads tiles, not memory"
                );
                let order: &[MmaDim] = if side == 0 {
                    &[MmaDim::Side, MmaDim::K]
                } else {
                    &[MmaDim::K, MmaDim::Side]
                };
                ensure!(
                    dims == order,
                    NoLowering,
                    "an operand of a warp's product is a window of two dims"
                );
                let window = self.window(access)?;
                let k = if side == 0 {
                    access.shape[1]
                } else {
                    access.shape[0]
                };
                ensure!(
                    k % 16 == 0,
                    NoLowering,
                    "a depth of {k} is not made of steps of 16"
                );
                let blocks = (k / 16) as u32;
                // Along the accumulator's own dim the operand moves with it; along the other one every warp holds all of it.
                let along = |modes: &[Mode]| {
                    modes
                        .iter()
                        .map(|m| Mode {
                            stride: if m.dim == side { m.stride } else { 0 },
                            ..*m
                        })
                        .collect::<Vec<_>>()
                };
                let further: Vec<Mode> = acc
                    .layout
                    .reg
                    .iter()
                    .filter(|m| m.dim == side && m.stride >= if side == 0 { 16 } else { 8 })
                    .copied()
                    .collect();
                let layout = if side == 0 {
                    TileLayout {
                        lane: vec![
                            Mode {
                                dim: 1,
                                extent: 4,
                                stride: 2,
                            },
                            Mode {
                                dim: 0,
                                extent: 8,
                                stride: 1,
                            },
                        ],
                        warp: along(&acc.layout.warp),
                        reg: [
                            Mode {
                                dim: 1,
                                extent: 2,
                                stride: 1,
                            },
                            Mode {
                                dim: 0,
                                extent: 2,
                                stride: 8,
                            },
                            Mode {
                                dim: 1,
                                extent: 2,
                                stride: 8,
                            },
                            Mode {
                                dim: 1,
                                extent: blocks,
                                stride: 16,
                            },
                        ]
                        .into_iter()
                        .chain(further)
                        .collect(),
                        ..TileLayout::default()
                    }
                } else {
                    TileLayout {
                        lane: vec![
                            Mode {
                                dim: 0,
                                extent: 4,
                                stride: 2,
                            },
                            Mode {
                                dim: 1,
                                extent: 8,
                                stride: 1,
                            },
                        ],
                        warp: along(&acc.layout.warp),
                        reg: [
                            Mode {
                                dim: 0,
                                extent: 2,
                                stride: 1,
                            },
                            Mode {
                                dim: 0,
                                extent: 2,
                                stride: 8,
                            },
                            Mode {
                                dim: 0,
                                extent: blocks,
                                stride: 16,
                            },
                        ]
                        .into_iter()
                        .chain(further)
                        .collect(),
                        ..TileLayout::default()
                    }
                };
                let place = std::rc::Rc::new(Place::new(&layout, &access.shape)?);
                let slots = self.load_window(&place, &window, None, oxyfuel_base::Scalar::I(0))?;
                Ok(Tile {
                    dtype: window.memory.dtype,
                    place,
                    slots,
                    fact: crate::fact::Fact::UNKNOWN,
                })
            }
        }
    }
}

/// The widest instruction that tiles columns which lie one after the other.
fn instruction_width(cols: &[i64]) -> Result<i64> {
    let n = 8 * cols.len() as i64;
    let dense = cols
        .iter()
        .enumerate()
        .all(|(i, c)| *c == cols[0] + 8 * i as i64);
    ensure!(
        dense && n > 0,
        NoLowering,
        "the columns of an accumulator must lie one after the other"
    );
    (1..=32)
        .rev()
        .map(|w| 8 * w)
        .find(|w| n % w == 0)
        .ok_or_else(|| err!(NoLowering, "an accumulator of {n} columns"))
}
