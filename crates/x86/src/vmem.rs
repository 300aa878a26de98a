//! Vector loads and stores: narrow types widened and rounded on the way, masked where asked, gathered where strided.

use oxyfuel_base::{DType, Result, err};

use crate::emit::{Emit, lane_bytes};
use crate::mir::{A, Cond, Inst, Item, Mem, Op, Reg, Width};

fn refuse<T>(what: &str, dtype: DType) -> Result<T> {
    Err(err!(NoLowering, "x86 has no code for {what} of {dtype}"))
}

/// Distance between neighbouring lanes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    Bytes(i64),
    Reg(Reg),
}

/// Where lanes stand that are `apart` from each other, if 32 bits can say it.
pub fn lane_offsets(apart: i64, lanes: u32) -> Option<impl Iterator<Item = i64>> {
    let last = apart.checked_mul(i64::from(lanes.saturating_sub(1)))?;
    i32::try_from(last).ok()?;
    Some((0..i64::from(lanes)).map(move |lane| lane * apart))
}

impl Emit<'_> {
    /// Reads `lanes` consecutive elements. Lanes outside `mask` are zero and never touched in memory.
    pub fn load(&mut self, dtype: DType, mem: Mem, lanes: u32, mask: Option<Reg>) -> Result<Reg> {
        if let Some(mask) = mask {
            if !self.avx512() {
                return self.load_masked_avx2(dtype, mem, lanes, mask);
            }
            return self.load_with(dtype, mem, lanes, mask);
        }
        self.load_with(dtype, mem, lanes, Reg::NONE)
    }

    fn load_with(&mut self, dtype: DType, mem: Mem, lanes: u32, mask: Reg) -> Result<Reg> {
        let w = Width::of_bytes(lanes * lane_bytes(dtype));
        let op = match dtype {
            DType::F32 => Op::VMovUps,
            DType::I32 | DType::U32 => Op::VMovDqu32,
            DType::F64 => Op::VMovUpd,
            DType::I64 | DType::U64 => Op::VMovDqu64,
            DType::F16 => Op::VCvtPh2Ps,
            DType::BF16 | DType::U16 => Op::VPMovZxWD,
            DType::I16 => Op::VPMovSxWD,
            DType::I8 => Op::VPMovSxBD,
            DType::U8 => Op::VPMovZxBD,
            DType::Bool => return Ok(self.load_bool(mem, lanes, mask)),
            DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1 | DType::E8M0 => {
                return refuse("loads", dtype);
            }
        };
        let v = if mask.is_none() {
            self.vec(op, w, &[mem.into()])
        } else {
            self.vec_masked(op, w, &[mem.into()], mask)
        };
        if dtype == DType::BF16 {
            return Ok(self.vec(Op::VPSllDI, w, &[v.into(), A::I(16)]));
        }
        Ok(v)
    }

    fn load_bool(&mut self, mem: Mem, lanes: u32, mask: Reg) -> Reg {
        if self.avx512() {
            let bytes = if !mask.is_none() {
                self.vec_masked(Op::VMovDqu8, Width::X, &[mem.into()], mask)
            } else if lanes == 16 {
                self.vec(Op::VMovUps, Width::X, &[mem.into()])
            } else {
                self.vec(Op::VMovSdL, Width::X, &[mem.into()])
            };
            return self.kmask(Op::VPTestMB, Width::X, &[bytes.into(), bytes.into()]);
        }
        let wide = self.mask_bytes == 8;
        let w = self.level.width();
        let v = self.vec(
            if wide { Op::VPMovZxBQ } else { Op::VPMovZxBD },
            w,
            &[mem.into()],
        );
        let zero = self.int(0, 4);
        self.vec(
            if wide { Op::VPCmpGtQV } else { Op::VPCmpGtDV },
            w,
            &[v.into(), zero.into()],
        )
    }

    fn load_masked_avx2(&mut self, dtype: DType, mem: Mem, lanes: u32, mask: Reg) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        if dtype.size() >= 4 {
            let w = Width::of_bytes(lanes * bytes);
            let m = self.mask_for(mask, bytes, lanes);
            let op = if bytes == 8 {
                Op::VMaskMovPd
            } else {
                Op::VMaskMovPs
            };
            return Ok(self.vec(op, w, &[m.into(), mem.into()]));
        }
        // Element by element: AVX2 has no masked access to narrow types.
        let x = self.f.vec();
        self.f.inst(Op::VZero, Width::X, &[x.into()]);
        let size = dtype.size() as i32;
        let insert = if size == 1 { Op::VPInsrB } else { Op::VPInsrW };
        self.each_lane(mask, lanes, |e, lane| {
            e.f.inst(
                insert,
                Width::X,
                &[
                    x.into(),
                    x.into(),
                    mem.plus(lane * size).into(),
                    A::I(i64::from(lane)),
                ],
            );
        });
        let w = Width::of_bytes(lanes * 4);
        Ok(match dtype {
            DType::F16 => self.vec(Op::VCvtPh2Ps, w, &[x.into()]),
            DType::BF16 => {
                let v = self.vec(Op::VPMovZxWD, w, &[x.into()]);
                self.vec(Op::VPSllDI, w, &[v.into(), A::I(16)])
            }
            DType::U16 => self.vec(Op::VPMovZxWD, w, &[x.into()]),
            DType::I16 => self.vec(Op::VPMovSxWD, w, &[x.into()]),
            DType::I8 => self.vec(Op::VPMovSxBD, w, &[x.into()]),
            DType::U8 => self.vec(Op::VPMovZxBD, w, &[x.into()]),
            DType::Bool => {
                let wide = self.mask_bytes == 8;
                let full = self.level.width();
                let v = self.vec(
                    if wide { Op::VPMovZxBQ } else { Op::VPMovZxBD },
                    full,
                    &[x.into()],
                );
                let zero = self.int(0, 4);
                self.vec(
                    if wide { Op::VPCmpGtQV } else { Op::VPCmpGtDV },
                    full,
                    &[v.into(), zero.into()],
                )
            }
            _ => return refuse("masked loads", dtype),
        })
    }

    /// Runs `body` for each lane whose AVX2 mask is on.
    fn each_lane(&mut self, mask: Reg, lanes: u32, mut body: impl FnMut(&mut Self, i32)) {
        let bits = self.f.gpr();
        let op = if self.mask_bytes == 8 {
            Op::VMovMskPd
        } else {
            Op::VMovMskPs
        };
        self.f
            .inst(op, self.level.width(), &[bits.into(), mask.into()]);
        for lane in 0..lanes as i32 {
            let skip = self.f.label();
            self.g(Op::TestI, &[bits.into(), A::I(1 << lane)]);
            self.f.jump(Cond::E, skip);
            body(self, lane);
            self.f.bind(skip);
        }
    }

    /// Writes `lanes` consecutive elements where `mask` is on. `streaming` needs an address aligned to the vector.
    pub fn store(
        &mut self,
        dtype: DType,
        mem: Mem,
        v: Reg,
        lanes: u32,
        mask: Option<Reg>,
        streaming: bool,
    ) -> Result<()> {
        let w = Width::of_bytes(lanes * lane_bytes(dtype));
        if let Some(mask) = mask
            && !self.avx512()
        {
            return self.store_masked_avx2(dtype, mem, v, lanes, mask);
        }
        let m = mask.unwrap_or(Reg::NONE);
        let put = |e: &mut Self, op: Op, w: Width, args: &[A]| {
            let inst = Inst::new(op, w, args);
            e.f.push(Item::Inst(if m.is_none() {
                inst
            } else {
                inst.masked(m, false)
            }));
        };
        match dtype {
            DType::F32 | DType::I32 | DType::U32 | DType::F64 | DType::I64 | DType::U64 => {
                let op = if streaming && m.is_none() {
                    Op::VMovNtPs
                } else if lane_bytes(dtype) == 8 {
                    Op::VMovUpdS
                } else {
                    Op::VMovUpsS
                };
                put(self, op, w, &[mem.into(), v.into()]);
            }
            DType::F16 => {
                if streaming && m.is_none() {
                    let half = self.vec(Op::VCvtPs2Ph, w, &[v.into(), A::I(0)]);
                    put(
                        self,
                        Op::VMovNtPs,
                        Width::of_bytes(lanes * 2),
                        &[mem.into(), half.into()],
                    );
                } else {
                    put(self, Op::VCvtPs2PhS, w, &[mem.into(), v.into(), A::I(0)]);
                }
            }
            DType::BF16 | DType::I16 | DType::U16 | DType::I8 | DType::U8 => {
                // A bf16 lane is exact already: its code is the upper half.
                let bits = match dtype {
                    DType::BF16 => self.vec(Op::VPSrlDI, w, &[v.into(), A::I(16)]),
                    _ => v,
                };
                let size = dtype.size() as u32;
                if self.avx512() && !(streaming && m.is_none()) {
                    let op = if size == 1 {
                        Op::VPMovDBS
                    } else {
                        Op::VPMovDWS
                    };
                    put(self, op, w, &[mem.into(), bits.into()]);
                } else {
                    let packed = self.narrow(bits, size, lanes);
                    self.store_packed(mem, packed, lanes * size, streaming);
                }
            }
            DType::Bool if self.avx512() => {
                let ones = self.constant(0x0101_0101, 4);
                let mask_bits = v;
                let bytes = self.vec_masked(Op::VMovDqu8, Width::X, &[ones.into()], mask_bits);
                if m.is_none() {
                    self.store_packed(mem, bytes, lanes, false);
                } else {
                    put(self, Op::VMovDqu8S, Width::X, &[mem.into(), bytes.into()]);
                }
            }
            DType::Bool => {
                let bytes = self.bool_bytes(v, lanes);
                self.store_packed(mem, bytes, lanes, false);
            }
            DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1 | DType::E8M0 => {
                return refuse("stores", dtype);
            }
        }
        Ok(())
    }

    /// Writes a whole vector of f32 lanes, rounded to bf16. The machine's own rounding takes denormals for zero: a vector that has one is rounded step by step, unless it is known that none has.
    pub fn store_rounded_bf16(&mut self, mem: Mem, v: Reg, lanes: u32, normal: bool) {
        const DENORMAL: i64 = 0x20;
        let w = Width::of_bytes(lanes * 4);
        let rounded = self.vec(Op::VCvtNePs2Bf16, w, &[v.into()]);
        if normal {
            return self.store_packed(mem, rounded, lanes * 2, false);
        }
        let tiny = self.kmask(Op::VFpClassPs, w, &[v.into(), A::I(DENORMAL)]);
        let done = self.f.label();
        self.g(Op::KOrTestW, &[tiny.into(), tiny.into()]);
        self.f.jump(Cond::E, done);
        let exact = self.round_to_bf16(v, lanes);
        let bits = self.vec(Op::VPSrlDI, w, &[exact.into(), A::I(16)]);
        let narrow = self.narrow(bits, 2, lanes);
        self.f.copy(Width::of_bytes(lanes * 2), rounded, narrow);
        self.f.bind(done);
        self.store_packed(mem, rounded, lanes * 2, false);
    }

    fn store_packed(&mut self, mem: Mem, v: Reg, bytes: u32, streaming: bool) {
        let (op, w) = match bytes {
            4 => (Op::VMovSsS, Width::X),
            8 => (Op::VMovSdS, Width::X),
            _ if streaming => (Op::VMovNtPs, Width::of_bytes(bytes)),
            _ => (Op::VMovUpsS, Width::of_bytes(bytes)),
        };
        self.f.inst(op, w, &[mem.into(), v.into()]);
    }

    /// The low 1 or 2 bytes of 4-byte lanes, packed.
    fn narrow(&mut self, v: Reg, size: u32, lanes: u32) -> Reg {
        let w = Width::of_bytes(lanes * 4);
        if self.avx512() {
            return self.vec(
                if size == 1 { Op::VPMovDB } else { Op::VPMovDW },
                w,
                &[v.into()],
            );
        }
        let mask = self.int(if size == 1 { 0xff } else { 0xffff }, 4);
        let low = self.vec(Op::VPAnd, w, &[v.into(), mask.into()]);
        let high = if w == Width::Y {
            self.vec(Op::VExtractF128, Width::Y, &[low.into(), A::I(1)])
        } else {
            low
        };
        let words = self.vec(Op::VPPackUsDw, Width::X, &[low.into(), high.into()]);
        if size == 2 {
            return words;
        }
        self.vec(Op::VPPackUsWb, Width::X, &[words.into(), words.into()])
    }

    /// An AVX2 mask as bytes of 0 and 1.
    fn bool_bytes(&mut self, m: Reg, lanes: u32) -> Reg {
        let m = self.mask_for(m, 4, lanes);
        let one = self.int(1, 4);
        let w = Width::of_bytes(lanes * 4);
        let bits = self.vec(Op::VPAnd, w, &[m.into(), one.into()]);
        self.narrow(bits, 1, lanes)
    }

    fn store_masked_avx2(
        &mut self,
        dtype: DType,
        mem: Mem,
        v: Reg,
        lanes: u32,
        mask: Reg,
    ) -> Result<()> {
        let bytes = lane_bytes(dtype);
        let w = Width::of_bytes(lanes * bytes);
        let size = dtype.size() as u32;
        if size >= 4 {
            let m = self.mask_for(mask, bytes, lanes);
            let op = if bytes == 8 {
                Op::VMaskMovPdS
            } else {
                Op::VMaskMovPsS
            };
            self.f.inst(op, w, &[mem.into(), m.into(), v.into()]);
            return Ok(());
        }
        let packed = match dtype {
            DType::F16 => self.vec(Op::VCvtPs2Ph, w, &[v.into(), A::I(0)]),
            DType::BF16 => {
                let bits = self.vec(Op::VPSrlDI, w, &[v.into(), A::I(16)]);
                self.narrow(bits, 2, lanes)
            }
            DType::Bool => self.bool_bytes(v, lanes),
            DType::I16 | DType::U16 | DType::I8 | DType::U8 => self.narrow(v, size, lanes),
            _ => return refuse("masked stores", dtype),
        };
        let extract = if size == 1 { Op::VPExtrB } else { Op::VPExtrW };
        self.each_lane(mask, lanes, |e, lane| {
            let at = mem.plus(lane * size as i32);
            e.f.inst(
                extract,
                Width::X,
                &[at.into(), packed.into(), A::I(i64::from(lane))],
            );
        });
        Ok(())
    }

    /// One element in all lanes of a whole register.
    pub fn load_uniform(&mut self, dtype: DType, mem: Mem) -> Result<Reg> {
        let w = self.level.width();
        Ok(match dtype {
            DType::F32 | DType::I32 | DType::U32 => self.vec(Op::VBroadcastSsM, w, &[mem.into()]),
            DType::F64 | DType::I64 | DType::U64 => self.vec(Op::VBroadcastSdM, w, &[mem.into()]),
            DType::BF16 => {
                let r = self.gpr(Op::MovZxW, &[mem.into()]);
                self.g(Op::ShlI, &[r.into(), A::I(16)]);
                self.splat_gpr(r, 4)
            }
            DType::F16 => {
                let v = self.vec(Op::VPBroadcastW, w, &[mem.into()]);
                self.vec(Op::VCvtPh2Ps, w, &[v.into()])
            }
            DType::I8 | DType::U8 | DType::I16 | DType::U16 => {
                let r = self.load_gpr(dtype, mem)?;
                self.splat_gpr(r, 4)
            }
            DType::Bool => {
                let r = self.load_gpr(dtype, mem)?;
                self.splat_bool(r)
            }
            DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1 | DType::E8M0 => {
                return refuse("loads", dtype);
            }
        })
    }

    /// One integer or bool in a general register, extended to 64 bits.
    pub fn load_gpr(&mut self, dtype: DType, mem: Mem) -> Result<Reg> {
        let op = match dtype {
            DType::I64 | DType::U64 => Op::Mov,
            DType::I32 => Op::MovSxd,
            DType::U32 => Op::Mov32,
            DType::I16 => Op::MovSxW,
            DType::U16 => Op::MovZxW,
            DType::I8 => Op::MovSxB,
            DType::U8 | DType::Bool => Op::MovZxB,
            _ => return refuse("scalar integer loads", dtype),
        };
        Ok(self.gpr(op, &[mem.into()]))
    }

    /// Gathers elements at `base + index * size`; the index has 4- or 8-byte lanes. Lanes outside `mask` are zero.
    pub fn gather(
        &mut self,
        dtype: DType,
        base: Reg,
        index: Reg,
        index_bytes: u32,
        lanes: u32,
        mask: Option<Reg>,
    ) -> Result<Reg> {
        let size = dtype.size() as u32;
        if size < 4 {
            return self.gather_narrow(dtype, base, index, index_bytes, lanes, mask);
        }
        self.gather_words(base, index, index_bytes, size, size as u8, lanes, mask)
    }

    #[expect(clippy::too_many_arguments, reason = "the operands of one instruction")]
    fn gather_words(
        &mut self,
        base: Reg,
        index: Reg,
        index_bytes: u32,
        size: u32,
        scale: u8,
        lanes: u32,
        mask: Option<Reg>,
    ) -> Result<Reg> {
        let widest = lanes * size.max(index_bytes);
        if widest > self.level.vector_bytes() {
            return Err(err!(
                NoLowering,
                "a gather of {lanes} lanes does not fit a vector"
            ));
        }
        let w = Width::of_bytes(widest);
        let d = self.f.vec();
        self.f.inst(Op::VZero, Width::X, &[d.into()]);
        let mem = Mem::indexed(base, index, scale, 0);
        if self.avx512() {
            let op = match (index_bytes, size) {
                (4, 4) => Op::VPGatherDDK,
                (4, _) => Op::VPGatherDQK,
                (_, 4) => Op::VPGatherQDK,
                (_, _) => Op::VPGatherQQK,
            };
            let k = self.f.mask();
            let source = match mask {
                Some(m) => m,
                None => self.first_lanes(lanes),
            };
            self.f.copy(Width::X, k, source);
            self.masked(op, w, &[d.into(), mem.into()], k, false);
            return Ok(d);
        }
        let op = match (index_bytes, size) {
            (4, 4) => Op::VPGatherDDV,
            (4, _) => Op::VPGatherDQV,
            (_, 4) => Op::VPGatherQDV,
            (_, _) => Op::VPGatherQQV,
        };
        let source = match mask {
            Some(m) => self.mask_for(m, size, lanes),
            None => self.int(-1, 4),
        };
        let m = self.copy_vec(source);
        self.f.inst(op, w, &[d.into(), mem.into(), m.into()]);
        Ok(d)
    }

    /// Narrow elements through the aligned word that holds them, which never leaves the element's page. The base need not be aligned to words.
    fn gather_narrow(
        &mut self,
        dtype: DType,
        base: Reg,
        index: Reg,
        index_bytes: u32,
        lanes: u32,
        mask: Option<Reg>,
    ) -> Result<Reg> {
        let size = dtype.size() as i64;
        let wi = Width::of_bytes(lanes * index_bytes);
        let per_word = 4 / size;
        let eight = index_bytes == 8;
        let skew = self.copy_gpr(base);
        self.g(Op::AndI, &[skew.into(), A::I(3)]);
        self.g(Op::ShrI, &[skew.into(), A::I(size / 2)]);
        let base = self.copy_gpr(base);
        self.g(Op::AndI, &[base.into(), A::I(-4)]);
        let skew = self.splat_gpr(skew, index_bytes);
        let add = if eight { Op::VPAddQ } else { Op::VPAddD };
        let index = self.vec(add, wi, &[index.into(), skew.into()]);
        let shift = A::I(if per_word == 4 { 2 } else { 1 });
        let word = self.vec(
            if eight { Op::VPSrlQI } else { Op::VPSrlDI },
            wi,
            &[index.into(), shift],
        );
        let v = self.gather_words(base, word, index_bytes, 4, 4, lanes, mask)?;
        let w = Width::of_bytes(lanes * 4);
        let index = if eight {
            self.cast(DType::I64, DType::I32, index, lanes)?
        } else {
            index
        };
        let low = self.int(per_word - 1, 4);
        let within = self.vec(Op::VPAnd, w, &[index.into(), low.into()]);
        let bits = A::I(if size == 1 { 3 } else { 4 });
        let amount = self.vec(Op::VPSllDI, w, &[within.into(), bits]);
        let v = self.vec(Op::VPSrlVD, w, &[v.into(), amount.into()]);
        self.of_code(dtype, v, lanes)
    }

    /// Values of a narrow type from its codes, in the low bits of 4-byte lanes.
    fn of_code(&mut self, dtype: DType, v: Reg, lanes: u32) -> Result<Reg> {
        let w = Width::of_bytes(lanes * 4);
        let code = |e: &mut Self| {
            let mask = e.int(if dtype.size() == 1 { 0xff } else { 0xffff }, 4);
            e.vec(Op::VPAnd, w, &[v.into(), mask.into()])
        };
        Ok(match dtype {
            DType::BF16 => self.vec(Op::VPSllDI, w, &[v.into(), A::I(16)]),
            DType::U8 | DType::U16 => code(self),
            DType::I8 | DType::I16 => self.cast(DType::I32, dtype, v, lanes)?,
            DType::F16 => {
                let low = code(self);
                let packed = self.narrow(low, 2, lanes);
                self.vec(Op::VCvtPh2Ps, w, &[packed.into()])
            }
            DType::Bool => {
                let byte = code(self);
                self.cast(DType::I32, DType::Bool, byte, lanes)?
            }
            _ => return refuse("gathers", dtype),
        })
    }

    /// Reads lanes a register's number of bytes from each other, one by one through `place`: no lane offset is too large for it. Lanes outside `mask` are zero.
    pub fn load_one_by_one(
        &mut self,
        dtype: DType,
        mem: Mem,
        apart: Reg,
        lanes: u32,
        mask: Option<Reg>,
        place: Mem,
    ) -> Result<Reg> {
        let bytes = if dtype.size() == 8 { 8 } else { 4 };
        let w = Width::of_bytes(lanes * bytes);
        let bits = mask.map(|m| self.mask_bits(m));
        if bits.is_some() {
            let zero = self.f.vec();
            self.f.inst(Op::VZero, Width::X, &[zero.into()]);
            self.f.inst(Op::VMovUpsS, w, &[place.into(), zero.into()]);
        }
        let (read, write) = match dtype.size() {
            1 => (Op::MovZxB, Op::Mov32S),
            2 => (Op::MovZxW, Op::Mov32S),
            4 => (Op::Mov32, Op::Mov32S),
            _ => (Op::Mov, Op::MovS),
        };
        let p = self.gpr(Op::Lea, &[mem.into()]);
        for lane in 0..lanes {
            let skip = self.f.label();
            if let Some(bits) = bits {
                self.g(Op::TestI, &[bits.into(), A::I(1 << lane)]);
                self.f.jump(Cond::E, skip);
            }
            let r = self.gpr(read, &[Mem::at(p, 0).into()]);
            self.g(write, &[place.plus((lane * bytes) as i32).into(), r.into()]);
            self.f.bind(skip);
            self.g(Op::Add, &[p.into(), apart.into()]);
        }
        let v = self.vec(Op::VMovUps, w, &[place.into()]);
        if dtype.size() >= 4 {
            return Ok(v);
        }
        self.of_code(dtype, v, lanes)
    }

    /// A mask as the low bits of a general register.
    fn mask_bits(&mut self, mask: Reg) -> Reg {
        if self.avx512() {
            return self.gpr(Op::KMovGW, &[mask.into()]);
        }
        let d = self.f.gpr();
        let row = if self.mask_bytes == 8 {
            Op::VMovMskPd
        } else {
            Op::VMovMskPs
        };
        self.f
            .inst(row, self.level.width(), &[d.into(), mask.into()]);
        d
    }

    /// Writes lanes `apart` bytes from each other.
    pub fn store_strided(
        &mut self,
        dtype: DType,
        mem: Mem,
        v: Reg,
        lanes: u32,
        apart: Apart,
        mask: Option<Reg>,
    ) -> Result<()> {
        let size = dtype.size() as u32;
        // A scatter's offsets have 32 bits; lanes whose distance is large, or not known, go one by one.
        if let Apart::Bytes(n) = apart
            && self.avx512()
            && size >= 4
            && let Some(offsets) = lane_offsets(n / i64::from(size), lanes)
        {
            let base = self.gpr(Op::Lea, &[mem.into()]);
            let index = self.vector(offsets, 4);
            return self.scatter(dtype, base, index, 4, v, lanes, mask);
        }
        if dtype.is_bool() {
            let byte = self.cast(DType::Bool, DType::U8, v, lanes)?;
            return self.store_strided(DType::U8, mem, byte, lanes, apart, mask);
        }
        if dtype.is_narrow_float() {
            return refuse("strided stores", dtype);
        }
        let w = Width::of_bytes(lanes * lane_bytes(dtype));
        let code = match dtype {
            DType::BF16 => self.vec(Op::VPSrlDI, w, &[v.into(), A::I(16)]),
            DType::F16 => {
                let half = self.vec(Op::VCvtPs2Ph, w, &[v.into(), A::I(0)]);
                self.vec(Op::VPMovZxWD, w, &[half.into()])
            }
            _ => v,
        };
        // Elements that begin four bytes apart are the low parts of whole lanes: one store that leaves the rest alone.
        if self.avx512() && mask.is_none() && apart == Apart::Bytes(4) && lanes == 16 {
            let (op, bits) = if size == 1 {
                (Op::VMovDqu8S, 0x1111_1111_1111_1111)
            } else {
                (Op::VMovDqu16S, 0x5555_5555)
            };
            let k = self.mask_of_bits(bits);
            self.masked(op, w, &[mem.into(), code.into()], k, false);
            return Ok(());
        }
        self.store_one_by_one(dtype, mem, code, lanes, apart, mask)
    }

    fn store_one_by_one(
        &mut self,
        dtype: DType,
        mem: Mem,
        v: Reg,
        lanes: u32,
        apart: Apart,
        mask: Option<Reg>,
    ) -> Result<()> {
        let size = dtype.size() as u32;
        let bits = mask.map(|m| self.mask_bits(m));
        let apart = match apart {
            Apart::Bytes(n) if lane_offsets(n, lanes).is_none() => Apart::Reg(self.imm(n)),
            Apart::Bytes(_) | Apart::Reg(_) => apart,
        };
        let p = self.gpr(Op::Lea, &[mem.into()]);
        let bytes = lane_bytes(dtype);
        let per_part = 16 / bytes;
        let w = Width::of_bytes(lanes * bytes);
        for lane in 0..lanes {
            let part = match (lane / per_part, w) {
                (0, _) => v,
                (n, _) => self.vec(Op::VExtractF128, w, &[v.into(), A::I(i64::from(n))]),
            };
            let skip = self.f.label();
            if let Some(bits) = bits {
                self.g(Op::TestI, &[bits.into(), A::I(1 << lane)]);
                self.f.jump(Cond::E, skip);
            }
            let at = A::I(i64::from(lane % per_part) * i64::from(bytes / size.min(bytes)));
            let place = match apart {
                Apart::Bytes(n) => Mem::at(p, (i64::from(lane) * n) as i32),
                Apart::Reg(_) => Mem::at(p, 0),
            };
            let row = match size {
                1 => Op::VPExtrB,
                2 => Op::VPExtrW,
                4 => Op::VPExtrD,
                _ => Op::VPExtrQ,
            };
            self.f.inst(row, Width::X, &[place.into(), part.into(), at]);
            self.f.bind(skip);
            if let Apart::Reg(r) = apart {
                self.g(Op::Add, &[p.into(), r.into()]);
            }
        }
        Ok(())
    }

    /// Scatters 4- and 8-byte lanes to `base + index * size`; other types and AVX2 go element by element.
    #[expect(clippy::too_many_arguments, reason = "the operands of one instruction")]
    pub fn scatter(
        &mut self,
        dtype: DType,
        base: Reg,
        index: Reg,
        index_bytes: u32,
        v: Reg,
        lanes: u32,
        mask: Option<Reg>,
    ) -> Result<()> {
        let size = dtype.size() as u32;
        if !self.avx512() || size < 4 {
            return refuse("scatters", dtype);
        }
        let w = Width::of_bytes(lanes * size.max(index_bytes));
        let op = match (index_bytes, size) {
            (4, 4) => Op::VPScatterDD,
            (4, _) => Op::VPScatterDQ,
            (_, 4) => Op::VPScatterQD,
            (_, _) => Op::VPScatterQQ,
        };
        let k = self.f.mask();
        let source = match mask {
            Some(m) => m,
            None => self.first_lanes(lanes),
        };
        self.f.copy(Width::X, k, source);
        self.masked(
            op,
            w,
            &[Mem::indexed(base, index, size as u8, 0).into(), v.into()],
            k,
            false,
        );
        Ok(())
    }
}
