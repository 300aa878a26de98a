//! What selection writes with: a function under construction, its constants and its masks.
//!
//! A *vector* here is a register of `lanes` equal lanes of 4 or 8 bytes. Narrow types are computed in 4-byte lanes: f16, bf16
//! and fp8 as f32, small integers sign- or zero-extended. Truth values are masks: mask registers on AVX-512, vectors of all
//! ones or zeros on AVX2, whose lanes are as wide as the widest type of the loop they live in.
//! A *uniform* value is the same in all lanes of a whole register, and so fits loops of any lane count.

use oxyfuel_base::DType;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::asm::pool::Pool;
use crate::level::Level;
use crate::mir::{A, Chunk, Func, Inst, Item, Mem, Op, Reg, Remat, Width};

/// Bytes of the lane that computes with a type; masks count as the loop's own lanes.
pub fn lane_bytes(dtype: DType) -> u32 {
    if dtype.size() == 8 { 8 } else { 4 }
}

/// The bits of a literal as a lane holds it.
pub fn lane_bits(value: oxyfuel_base::Scalar, dtype: DType) -> u64 {
    if dtype == DType::F64 {
        return value.to_bits(DType::F64);
    }
    if dtype.is_float() {
        return u64::from((value.cast(dtype).as_f64() as f32).to_bits());
    }
    if dtype.size() == 8 {
        return value.to_bits(dtype);
    }
    u64::from(value.cast(dtype).as_i64() as u32)
}

#[derive(Debug)]
pub struct Emit<'a> {
    pub f: Func,
    pub pool: &'a mut Pool,
    pub level: Level,
    /// Lane bytes of AVX2 masks in the current loop.
    pub mask_bytes: u32,
    constants: FxHashMap<(u64, u8), Reg>,
    /// Bits of the registers that hold constants.
    literals: FxHashMap<Reg, u64>,
    /// Registers whose lanes of 64 bits are known to be below 2^32.
    pub halves: FxHashSet<Reg>,
    vectors: FxHashMap<Vec<u8>, Reg>,
    masks: FxHashMap<u64, Reg>,
    start: Chunk,
}

impl<'a> Emit<'a> {
    pub fn new(level: Level, pool: &'a mut Pool) -> Emit<'a> {
        let mut f = Func::default();
        let start = f.hoist_point();
        Emit {
            f,
            pool,
            level,
            mask_bytes: 4,
            constants: FxHashMap::default(),
            literals: FxHashMap::default(),
            halves: FxHashSet::default(),
            vectors: FxHashMap::default(),
            masks: FxHashMap::default(),
            start,
        }
    }

    pub fn avx512(&self) -> bool {
        self.level.avx512
    }

    /// Lanes of a whole register.
    pub fn full_lanes(&self, bytes: u32) -> u32 {
        self.level.vector_bytes() / bytes
    }

    pub fn op(&mut self, op: Op, lanes: u32, bytes: u32, args: &[A]) {
        self.f.inst(op, Width::of_bytes(lanes * bytes), args);
    }

    /// An instruction whose first operand is a fresh vector.
    pub fn vec(&mut self, op: Op, width: Width, args: &[A]) -> Reg {
        let d = self.f.vec();
        self.def(op, width, d, args, Reg::NONE, false);
        d
    }

    pub fn kmask(&mut self, op: Op, width: Width, args: &[A]) -> Reg {
        let d = self.f.mask();
        self.def(op, width, d, args, Reg::NONE, false);
        d
    }

    pub fn vec_masked(&mut self, op: Op, width: Width, args: &[A], mask: Reg) -> Reg {
        let d = self.f.vec();
        self.def(op, width, d, args, mask, true);
        d
    }

    fn def(&mut self, op: Op, width: Width, d: Reg, args: &[A], mask: Reg, zero: bool) {
        let mut all = [A::I(0); 4];
        all[0] = d.into();
        all[1..=args.len()].copy_from_slice(args);
        let inst = Inst::new(op, width, &all[..=args.len()]);
        self.f.push(Item::Inst(if mask.is_none() {
            inst
        } else {
            inst.masked(mask, zero)
        }));
    }

    pub fn masked(&mut self, op: Op, width: Width, args: &[A], mask: Reg, zero: bool) {
        self.f
            .push(Item::Inst(Inst::new(op, width, args).masked(mask, zero)));
    }

    /// A general register defined by an instruction.
    pub fn gpr(&mut self, op: Op, args: &[A]) -> Reg {
        let d = self.f.gpr();
        self.def(op, Width::X, d, args, Reg::NONE, false);
        d
    }

    pub fn g(&mut self, op: Op, args: &[A]) {
        self.f.inst(op, Width::X, args);
    }

    pub fn copy_gpr(&mut self, from: Reg) -> Reg {
        let d = self.f.gpr();
        self.f.copy(Width::X, d, from);
        d
    }

    pub fn copy_vec(&mut self, from: Reg) -> Reg {
        let d = self.f.vec();
        self.f.copy(self.level.width(), d, from);
        d
    }

    pub fn imm(&mut self, value: i64) -> Reg {
        let d = self.f.gpr();
        self.set_imm(d, value);
        d
    }

    pub fn set_imm(&mut self, d: Reg, value: i64) {
        let op = if u32::try_from(value).is_ok() {
            Op::MovU32
        } else if i32::try_from(value).is_ok() {
            Op::MovI32
        } else {
            Op::MovI64
        };
        self.g(op, &[d.into(), A::I(value)]);
    }

    /// `d op= value` for an immediate of any size.
    pub fn gpr_imm(&mut self, short: Op, long: Op, d: Reg, value: i64) {
        if i32::try_from(value).is_ok() {
            self.g(short, &[d.into(), A::I(value)]);
        } else {
            let r = self.imm(value);
            self.g(long, &[d.into(), r.into()]);
        }
    }

    /// An element repeated over a whole register, loaded once at the function's start.
    pub fn constant(&mut self, bits: u64, bytes: u32) -> Reg {
        let key = (bits, bytes as u8);
        if let Some(&r) = self.constants.get(&key) {
            return r;
        }
        let d = self.f.vec();
        let width = self.level.width();
        let whole = if self.avx512() {
            None
        } else {
            Some(self.pool.repeated(bits, bytes as u8, width.bytes()))
        };
        let pool = whole.unwrap_or_else(|| self.pool.scalar(bits, bytes as u8));
        let inst = match (whole, bytes) {
            (Some(at), _) => Inst::new(Op::VMovUps, width, &[d.into(), Mem::pool(at).into()]),
            (None, 8) => Inst::new(
                Op::VBroadcastSdM,
                width,
                &[d.into(), Mem::pool(pool).into()],
            ),
            (None, _) => Inst::new(
                Op::VBroadcastSsM,
                width,
                &[d.into(), Mem::pool(pool).into()],
            ),
        };
        self.f.at(self.start, |f| f.push(Item::Inst(inst)));
        let element = if whole.is_some() { 0 } else { bytes as u8 };
        self.f.remat.insert(
            d.number(),
            Remat {
                pool,
                element,
                whole,
            },
        );
        self.constants.insert(key, d);
        self.literals.insert(d, bits);
        d
    }

    /// The float that a register holds in every lane, where that is a constant.
    pub fn literal(&self, v: Reg, bytes: u32) -> Option<f64> {
        let bits = *self.literals.get(&v)?;
        Some(if bytes == 8 {
            f64::from_bits(bits)
        } else {
            f64::from(f32::from_bits(bits as u32))
        })
    }

    /// The bits that a register holds in every lane, where that is a constant.
    pub fn literal_bits(&self, v: Reg) -> Option<u64> {
        self.literals.get(&v).copied()
    }

    pub fn f32(&mut self, value: f32) -> Reg {
        self.constant(u64::from(value.to_bits()), 4)
    }

    pub fn f64(&mut self, value: f64) -> Reg {
        self.constant(value.to_bits(), 8)
    }

    pub fn int(&mut self, value: i64, bytes: u32) -> Reg {
        let bits = if bytes == 8 {
            value as u64
        } else {
            u64::from(value as u32)
        };
        self.constant(bits, bytes)
    }

    /// A whole vector of given integers.
    pub fn vector(&mut self, values: impl Iterator<Item = i64>, bytes: u32) -> Reg {
        let mut data: Vec<u8> = values
            .flat_map(|v| v.to_le_bytes()[..bytes as usize].to_vec())
            .collect();
        data.resize(self.level.vector_bytes() as usize, 0);
        if let Some(&r) = self.vectors.get(&data) {
            return r;
        }
        let at = self.pool.add(&data);
        let d = self.f.vec();
        let inst = Inst::new(
            Op::VMovUps,
            self.level.width(),
            &[d.into(), Mem::pool(at).into()],
        );
        self.f.at(self.start, |f| f.push(Item::Inst(inst)));
        self.f.remat.insert(
            d.number(),
            Remat {
                pool: at,
                element: 0,
                whole: Some(at),
            },
        );
        self.vectors.insert(data, d);
        d
    }

    /// 0, 1, 2, … plus `first`.
    pub fn iota(&mut self, first: i64, bytes: u32) -> Reg {
        let lanes = self.full_lanes(bytes);
        self.vector((0..i64::from(lanes)).map(|i| i + first), bytes)
    }

    /// The first `count` lanes.
    pub fn first_lanes(&mut self, count: u32) -> Reg {
        if !self.avx512() {
            let bytes = self.mask_bytes;
            let lanes = self.full_lanes(bytes);
            return self.vector((0..lanes).map(|i| if i < count { -1 } else { 0 }), bytes);
        }
        self.mask_of_bits((1u64 << count) - 1)
    }

    /// A constant in a mask register, made where the function begins.
    pub fn mask_of_bits(&mut self, bits: u64) -> Reg {
        if let Some(&k) = self.masks.get(&bits) {
            return k;
        }
        let k = self.f.mask();
        let r = self.f.gpr();
        let load = if u32::try_from(bits).is_ok() {
            Op::MovU32
        } else {
            Op::MovI64
        };
        self.f.at(self.start, |f| {
            f.inst(load, Width::X, &[r.into(), A::I(bits as i64)]);
            f.inst(Op::KMovQG, Width::X, &[k.into(), r.into()]);
        });
        self.masks.insert(bits, k);
        k
    }

    /// Lanes whose number is below a signed 64-bit count.
    pub fn lanes_below(&mut self, count: Reg) -> Reg {
        let bytes = if self.avx512() { 4 } else { self.mask_bytes };
        let lanes = self.full_lanes(bytes);
        let c = self.copy_gpr(count);
        let most = self.imm(i64::from(lanes));
        self.g(Op::Cmp, &[c.into(), most.into()]);
        self.g(Op::CmovG, &[c.into(), most.into()]);
        let zero = self.imm(0);
        self.g(Op::Cmp, &[c.into(), zero.into()]);
        self.g(Op::CmovL, &[c.into(), zero.into()]);
        let limit = self.splat_gpr(c, bytes);
        let iota = self.iota(0, bytes);
        let width = self.level.width();
        if self.avx512() {
            return self.kmask(Op::VPCmpDK, width, &[iota.into(), limit.into(), A::I(1)]);
        }
        let op = if bytes == 8 {
            Op::VPCmpGtQV
        } else {
            Op::VPCmpGtDV
        };
        self.vec(op, width, &[limit.into(), iota.into()])
    }

    /// Loads a tile configuration where the function begins.
    pub fn tile_config(&mut self, config: &[u8; 64]) {
        let at = self.pool.add(config);
        self.f.at(self.start, |f| {
            f.inst(Op::LdTileCfg, Width::X, &[Mem::pool(at).into()])
        });
    }

    /// A general register's low bytes in all lanes of a whole register.
    pub fn splat_gpr(&mut self, r: Reg, bytes: u32) -> Reg {
        let width = self.level.width();
        if self.avx512() {
            return self.vec(
                if bytes == 8 {
                    Op::VPBroadcastQG
                } else {
                    Op::VPBroadcastDG
                },
                width,
                &[r.into()],
            );
        }
        let x = self.vec(
            if bytes == 8 { Op::VMovQ } else { Op::VMovD },
            Width::X,
            &[r.into()],
        );
        self.vec(
            if bytes == 8 {
                Op::VPBroadcastQ
            } else {
                Op::VPBroadcastD
            },
            width,
            &[x.into()],
        )
    }

    /// Lane 0 in all lanes of a whole register.
    pub fn splat_lane(&mut self, v: Reg, bytes: u32) -> Reg {
        let op = if bytes == 8 {
            Op::VBroadcastSd
        } else {
            Op::VBroadcastSs
        };
        self.vec(op, self.level.width(), &[v.into()])
    }

    /// A uniform mask from a general register that is 0 or 1.
    pub fn splat_bool(&mut self, r: Reg) -> Reg {
        let m = self.copy_gpr(r);
        self.g(Op::Neg, &[m.into()]);
        if self.avx512() {
            let k = self.f.mask();
            self.g(Op::KMovWG, &[k.into(), m.into()]);
            return k;
        }
        self.splat_gpr(m, 8)
    }

    /// A uniform mask from a comparison of whole registers: eight wide lanes set eight bits, a uniform mask has sixteen.
    pub fn uniform_mask(&mut self, m: Reg, compared_bytes: u32) -> Reg {
        if self.avx512() && compared_bytes == 8 {
            return self.kmask(Op::KUnpckBW, Width::X, &[m.into(), m.into()]);
        }
        m
    }

    /// 0 or 1 in a general register from a uniform mask.
    pub fn bool_of(&mut self, m: Reg) -> Reg {
        let bits = if self.avx512() {
            self.gpr(Op::KMovGW, &[m.into()])
        } else {
            let d = self.f.gpr();
            self.f.inst(Op::VMovMskPs, Width::X, &[d.into(), m.into()]);
            d
        };
        self.g(Op::AndI, &[bits.into(), A::I(1)]);
        bits
    }
}
