//! Ops that the vector unit lacks, lane by lane through scratch: 64-bit division, and on AVX2 64-bit shifts.

use oxyfuel_base::{DType, Result};
use oxyfuel_kernel::ir::BinaryOp;

use super::Select;
use crate::emit::lane_bytes;
use crate::mir::{A, Cond, Mem, Op as X, Reg, Width};

/// Bytes of scratch for one vector.
const PLACE: u32 = 64;

impl Select<'_, '_> {
    /// Whether an integer op has to go lane by lane.
    pub fn needs_lanes(&self, op: BinaryOp, dtype: DType, rhs: Reg) -> bool {
        if dtype.is_float() || dtype.is_bool() {
            return false;
        }
        let wide = lane_bytes(dtype) == 8;
        match op {
            BinaryOp::Div | BinaryOp::Rem | BinaryOp::FloorDiv | BinaryOp::Mod => {
                (wide || dtype == DType::U32) && self.power_of_two(op, dtype, rhs).is_none()
            }
            BinaryOp::Shr => wide && dtype.is_signed() && !self.e.avx512(),
            BinaryOp::Add
            | BinaryOp::Sub
            | BinaryOp::Mul
            | BinaryOp::Min
            | BinaryOp::Max
            | BinaryOp::Pow
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::Shl => false,
        }
    }

    /// The logarithm of a divisor that is a constant power of two, where shifting is dividing.
    pub fn power_of_two(&self, op: BinaryOp, dtype: DType, rhs: Reg) -> Option<u32> {
        let n = self.e.literal_bits(rhs)?;
        let positive = n != 0
            && n.is_power_of_two()
            && (n >> (dtype.bits() - 1) & 1 == 0 || !dtype.is_signed());
        let shifts = match op {
            BinaryOp::FloorDiv => !dtype.is_signed() || lane_bytes(dtype) == 4 || self.e.avx512(),
            BinaryOp::Mod => true,
            BinaryOp::Div | BinaryOp::Rem => !dtype.is_signed(),
            _ => false,
        };
        (positive && shifts).then_some(n.trailing_zeros())
    }

    pub fn shift_or_mask(
        &mut self,
        op: BinaryOp,
        dtype: DType,
        a: Reg,
        log: u32,
        lanes: u32,
    ) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        if matches!(op, BinaryOp::Mod | BinaryOp::Rem) {
            let low = self.e.int((1i64 << log) - 1, bytes);
            return self.e.binary(BinaryOp::And, dtype, a, low, lanes);
        }
        let amount = self.e.int(i64::from(log), bytes);
        self.e.binary(BinaryOp::Shr, dtype, a, amount, lanes)
    }

    /// Scratch for the lanes of three vectors.
    pub fn lane_place(&mut self) -> Result<u32> {
        if let Some(at) = self.lane_scratch {
            return Ok(at);
        }
        let at = self.take_scratch(3 * PLACE)?;
        self.lane_scratch = Some(at);
        Ok(at)
    }

    pub fn binary_by_lanes(
        &mut self,
        op: BinaryOp,
        dtype: DType,
        a: Reg,
        b: Reg,
        lanes: u32,
    ) -> Result<Reg> {
        let at = self.lane_place()? as i32;
        let bytes = lane_bytes(dtype);
        let width = Width::of_bytes(lanes * bytes);
        for (n, v) in [a, b].into_iter().enumerate() {
            let place = Mem::at(self.scratch, at + (n as u32 * PLACE) as i32);
            self.e.f.inst(X::VMovUpsS, width, &[place.into(), v.into()]);
        }
        let out = at + 2 * PLACE as i32;
        let scratch = self.scratch;
        self.each_lane(lanes, |s, lane| {
            let place = |offset: i32| Mem::indexed(scratch, lane, bytes as u8, offset);
            let stored = if bytes == 8 {
                dtype
            } else {
                wide_enough(dtype)
            };
            let x = s.e.load_gpr(stored, place(at))?;
            let y = s.e.load_gpr(stored, place(at + PLACE as i32))?;
            let r = s.int_binary(op, dtype, x, y)?;
            let row = if bytes == 8 { X::MovS } else { X::Mov32S };
            s.e.g(row, &[place(out).into(), r.into()]);
            Ok(())
        })?;
        Ok(self
            .e
            .vec(X::VMovUps, width, &[Mem::at(scratch, out).into()]))
    }

    fn each_lane(
        &mut self,
        lanes: u32,
        mut body: impl FnMut(&mut Self, Reg) -> Result<()>,
    ) -> Result<()> {
        let lane = self.e.imm(0);
        let head = self.e.f.label();
        self.e.f.bind(head);
        body(self, lane)?;
        self.e.g(X::AddI, &[lane.into(), A::I(1)]);
        self.e.g(X::CmpI, &[lane.into(), A::I(i64::from(lanes))]);
        self.e.f.jump(Cond::L, head);
        Ok(())
    }
}

/// The 4-byte type of the same signedness.
fn wide_enough(dtype: DType) -> DType {
    if dtype.is_signed() {
        DType::I32
    } else {
        DType::U32
    }
}
