//! Conversions between dtypes, tile by tile, so that pairs share an instruction where the machine has one for two.

use oxyfuel_base::{DType, Result, Scalar, err};

use crate::asm::{Asm, Class, Opd};
use crate::fact::Fact;
use crate::target::Target;
use crate::value::{Int, Slot, clamp_fact, literal, literal_bits, range_of};

const MINUS_2_23: u32 = 0xCB00_0000;

impl Asm {
    /// Elements of `from` as `to`, with what is then known of them.
    pub(crate) fn cast(
        &mut self,
        target: &Target,
        from: DType,
        to: DType,
        slots: &[Slot],
        fact: Fact,
    ) -> Result<(Vec<Slot>, Fact)> {
        if from == to {
            return Ok((slots.to_vec(), fact));
        }
        let literals: Option<Vec<Slot>> = slots.iter().map(|slot| fold(from, to, *slot)).collect();
        if let Some(folded) = literals {
            let fact = if to.is_int() {
                clamp_fact(to, fact)
            } else {
                range_of(to)
            };
            return Ok((folded, if from.is_int() { fact } else { range_of(to) }));
        }
        if to.is_bool() {
            let slots = slots
                .iter()
                .map(|slot| self.as_bool_slot(from, *slot, fact))
                .collect::<Result<_>>()?;
            return Ok((slots, range_of(to)));
        }
        match (from.is_float(), to.is_float()) {
            (true, true) => Ok((self.float_to_float(target, from, to, slots)?, Fact::UNKNOWN)),
            (false, true) => Ok((
                self.int_to_float(target, from, to, slots, fact)?,
                Fact::UNKNOWN,
            )),
            (true, false) => {
                let wide = if from == DType::F64 {
                    slots.to_vec()
                } else {
                    self.widened(from, slots)?
                };
                let source = if from == DType::F64 { "f64" } else { "f32" };
                Ok((
                    wide.iter()
                        .map(|slot| self.float_to_int(source, to, *slot))
                        .collect(),
                    range_of(to),
                ))
            }
            (false, false) => {
                let out = clamp_fact(to, fact);
                Ok((
                    slots
                        .iter()
                        .map(|slot| self.int_to_int(from, to, *slot, fact, out))
                        .collect(),
                    out,
                ))
            }
        }
    }

    fn as_bool_slot(&mut self, from: DType, slot: Slot, fact: Fact) -> Result<Slot> {
        let x = self.element(from, slot);
        let reg = match from {
            DType::F64 => self.pure(Class::Pred, "setp.neu.f64", &[x, Opd::F64(0)]),
            DType::F32 => self.pure(Class::Pred, "setp.neu.f32", &[x, Opd::F32(0)]),
            _ if from.is_float() => {
                let wide = self.widened(from, &[slot])?;
                let x = self.element(DType::F32, wide[0]);
                self.pure(Class::Pred, "setp.neu.f32", &[x, Opd::F32(0)])
            }
            DType::U64 => self.pure(Class::Pred, "setp.ne.u64", &[x, Opd::Int(0)]),
            DType::I64 if !fact.fits_i32() => {
                self.pure(Class::Pred, "setp.ne.s64", &[x, Opd::Int(0)])
            }
            _ => self.pure(Class::Pred, "setp.ne.s32", &[x, Opd::Int(0)]),
        };
        Ok(reg.into())
    }

    /// Any float below 32 bits (or f32) to f32.
    pub(crate) fn widened(&mut self, from: DType, slots: &[Slot]) -> Result<Vec<Slot>> {
        slots
            .iter()
            .map(|slot| {
                fold(from, DType::F32, *slot).map_or_else(|| self.one_widened(from, *slot), Ok)
            })
            .collect()
    }

    fn one_widened(&mut self, from: DType, slot: Slot) -> Result<Slot> {
        let reg = match (from, slot) {
            (DType::F32, _) => return Ok(slot),
            (DType::F64, _) => {
                let x = self.element(from, slot);
                self.pure(Class::B32, "cvt.rn.f32.f64", &[x])
            }
            (DType::BF16, Slot::Part { word, index: 0 }) => {
                self.pure(Class::B32, "shl.b32", &[word.into(), Opd::Int(16)])
            }
            (DType::BF16, Slot::Part { word, .. }) => {
                self.pure(Class::B32, "and.b32", &[word.into(), Opd::Int(-65536)])
            }
            (DType::BF16, _) => {
                let x = self.element(from, slot);
                let low = self.pure(Class::B32, "cvt.u32.u16", &[x]);
                self.pure(Class::B32, "shl.b32", &[low.into(), Opd::Int(16)])
            }
            (DType::F16, _) => {
                let x = self.element(from, slot);
                self.pure(Class::B32, "cvt.f32.f16", &[x])
            }
            (DType::F8E5M2, _) => {
                // The upper byte of an f16.
                let x = self.element(from, slot);
                let shifted = self.pure(Class::B32, "shl.b32", &[x, Opd::Int(8)]);
                let half = self.pure(Class::B16, "cvt.u16.u32", &[shifted.into()]);
                self.pure(Class::B32, "cvt.f32.f16", &[half.into()])
            }
            (DType::F8E4M3, _) => {
                let x = self.element(from, slot);
                // Exponent and fraction in an f16 whose bias is 8 larger; 0x7f is NaN.
                let value = self.small_float(x, 0x7f, 7, 0x80, 8, 256.0);
                let magnitude = self.pure(Class::B32, "and.b32", &[x, Opd::Int(0x7f)]);
                let nan = self.pure(
                    Class::Pred,
                    "setp.eq.s32",
                    &[magnitude.into(), Opd::Int(0x7f)],
                );
                return Ok(Slot::Opd(self.select(
                    Class::B32,
                    nan.into(),
                    Opd::F32(f32::NAN.to_bits()),
                    value,
                )));
            }
            (DType::F4E2M1, _) => {
                let x = self.element(from, slot);
                return Ok(Slot::Opd(self.small_float(x, 7, 9, 8, 12, 16384.0)));
            }
            (DType::E8M0, _) => {
                let x = self.element(from, slot);
                let value = self.pure(Class::B32, "shl.b32", &[x, Opd::Int(23)]);
                let lowest = self.pure(Class::Pred, "setp.eq.s32", &[x, Opd::Int(0)]);
                let value = self.select(
                    Class::B32,
                    lowest.into(),
                    Opd::F32(0x0040_0000),
                    value.into(),
                );
                let nan = self.pure(Class::Pred, "setp.eq.s32", &[x, Opd::Int(255)]);
                return Ok(Slot::Opd(self.select(
                    Class::B32,
                    nan.into(),
                    Opd::F32(f32::NAN.to_bits()),
                    value,
                )));
            }
            _ => return Err(err!(NoLowering, "{from} is not a float")),
        };
        Ok(reg.into())
    }

    /// A float with fewer exponent bits, moved into the fields of an f16 and scaled by the difference of the biases.
    fn small_float(
        &mut self,
        x: Opd,
        magnitude: i64,
        up: i64,
        sign: i64,
        sign_up: i64,
        scale: f32,
    ) -> Opd {
        let m = self.pure(Class::B32, "and.b32", &[x, Opd::Int(magnitude)]);
        let m = self.pure(Class::B32, "shl.b32", &[m.into(), Opd::Int(up)]);
        let s = self.pure(Class::B32, "and.b32", &[x, Opd::Int(sign)]);
        let s = self.pure(Class::B32, "shl.b32", &[s.into(), Opd::Int(sign_up)]);
        let bits = self.pure(Class::B32, "or.b32", &[m.into(), s.into()]);
        let half = self.pure(Class::B16, "cvt.u16.u32", &[bits.into()]);
        let value = self.pure(Class::B32, "cvt.f32.f16", &[half.into()]);
        self.pure(
            Class::B32,
            "mul.rn.f32",
            &[value.into(), Opd::F32(scale.to_bits())],
        )
        .into()
    }

    fn float_to_float(
        &mut self,
        target: &Target,
        from: DType,
        to: DType,
        slots: &[Slot],
    ) -> Result<Vec<Slot>> {
        match (from, to) {
            (_, DType::F32) => self.widened(from, slots),
            (_, DType::F64) => {
                let wide = self.widened(from, slots)?;
                Ok(wide
                    .iter()
                    .map(|slot| {
                        let x = self.element(DType::F32, *slot);
                        self.pure(Class::B64, "cvt.f64.f32", &[x]).into()
                    })
                    .collect())
            }
            (DType::F64, _) => {
                let odd: Vec<Slot> = slots.iter().map(|slot| self.round_to_odd(*slot)).collect();
                self.narrowed(target, to, &odd)
            }
            _ => {
                let wide = self.widened(from, slots)?;
                self.narrowed(target, to, &wide)
            }
        }
    }

    /// f64 cut to f32 with the lowest bit set where something was lost: rounding that to fewer bits rounds only once.
    fn round_to_odd(&mut self, slot: Slot) -> Slot {
        let x = self.element(DType::F64, slot);
        let cut = self.pure(Class::B32, "cvt.rz.f32.f64", &[x]);
        let back = self.pure(Class::B64, "cvt.f64.f32", &[cut.into()]);
        let lost = self.pure(Class::Pred, "setp.ne.f64", &[back.into(), x]);
        let odd = self.pure(Class::B32, "or.b32", &[cut.into(), Opd::Int(1)]);
        Slot::Opd(self.select(Class::B32, lost.into(), odd.into(), cut.into()))
    }

    /// f32 to a narrower float.
    pub(crate) fn narrowed(
        &mut self,
        target: &Target,
        to: DType,
        slots: &[Slot],
    ) -> Result<Vec<Slot>> {
        let (pair, one) = match (to, target.fp8) {
            (DType::F32, _) => return Ok(slots.to_vec()),
            (DType::BF16, _) => ("cvt.rn.bf16x2.f32", "cvt.rn.bf16.f32"),
            (DType::F16, _) => ("cvt.rn.f16x2.f32", "cvt.rn.f16.f32"),
            (DType::F8E4M3 | DType::F8E5M2, Some(version)) => {
                self.wants(version);
                return Ok(slots
                    .iter()
                    .map(|slot| self.narrowed_fp8(to, *slot))
                    .collect());
            }
            _ => {
                return Err(err!(
                    NoLowering,
                    "f32 to {to} has no PTX for {}",
                    target.name
                ));
            }
        };
        let mut out = Vec::with_capacity(slots.len());
        for chunk in slots.chunks(2) {
            match chunk {
                [a, b] => {
                    let (a, b) = (self.element(DType::F32, *a), self.element(DType::F32, *b));
                    let word = self.pure(Class::B32, pair, &[b, a]);
                    out.extend([Slot::Part { word, index: 0 }, Slot::Part { word, index: 1 }]);
                }
                rest => {
                    for slot in rest {
                        let x = self.element(DType::F32, *slot);
                        out.push(self.pure(Class::B16, one, &[x]).into());
                    }
                }
            }
        }
        Ok(out)
    }

    fn narrowed_fp8(&mut self, to: DType, slot: Slot) -> Slot {
        let x = self.element(DType::F32, slot);
        let mnemonic = if to == DType::F8E4M3 {
            "cvt.rn.satfinite.e4m3x2.f32"
        } else {
            "cvt.rn.satfinite.e5m2x2.f32"
        };
        let pair = self.pure(Class::B16, mnemonic, &[Opd::F32(0), x]);
        let bits = self.pure(Class::B32, "cvt.u32.u16", &[pair.into()]);
        if to == DType::F8E4M3 {
            return bits.into();
        }
        // The instruction saturates; the format goes to infinity from half a step above its largest number on.
        let magnitude = self.pure(Class::B32, "abs.f32", &[x]);
        let over = self.pure(
            Class::Pred,
            "setp.ge.f32",
            &[magnitude.into(), Opd::F32(61440.0f32.to_bits())],
        );
        let sign = self.pure(Class::B32, "and.b32", &[bits.into(), Opd::Int(0x80)]);
        let infinity = self.pure(Class::B32, "or.b32", &[sign.into(), Opd::Int(0x7c)]);
        Slot::Opd(self.select(Class::B32, over.into(), infinity.into(), bits.into()))
    }

    fn int_to_float(
        &mut self,
        target: &Target,
        from: DType,
        to: DType,
        slots: &[Slot],
        fact: Fact,
    ) -> Result<Vec<Slot>> {
        let source = match from {
            DType::I64 if fact.fits_i32() => "s32",
            DType::I64 => "s64",
            DType::U64 => "u64",
            DType::U32 => "u32",
            _ => "s32",
        };
        // Wide integers reach narrow floats through f64, so that they round once as long as f64 holds them.
        let via = match to {
            DType::F64 | DType::F32 => to,
            _ if from.bits() >= 32 => DType::F64,
            _ => DType::F32,
        };
        let mut wide = Vec::with_capacity(slots.len());
        for slot in slots {
            if from.is_bool() {
                let p = self.element(from, *slot);
                let (class, one, zero) = match via {
                    DType::F64 => (Class::B64, Opd::F64(1.0f64.to_bits()), Opd::F64(0)),
                    _ => (Class::B32, Opd::F32(1.0f32.to_bits()), Opd::F32(0)),
                };
                wide.push(Slot::Opd(self.select(class, p, one, zero)));
            } else if let (Slot::Part { word, index }, DType::F32, 1) = (*slot, via, from.size()) {
                wide.push(self.lifted_byte(from.is_signed(), word, index));
            } else {
                let x = self.element(from, *slot);
                let class = if via == DType::F64 {
                    Class::B64
                } else {
                    Class::B32
                };
                wide.push(
                    self.pure(class, &format!("cvt.rn.{}.{source}", via.name()), &[x])
                        .into(),
                );
            }
        }
        if via == to {
            Ok(wide)
        } else {
            self.float_to_float(target, via, to, &wide)
        }
    }

    /// A byte of a word, put below the bits of 2^23 and taken off again: exact, and off the slow conversion unit.
    fn lifted_byte(&mut self, signed: bool, word: crate::asm::Reg, index: u8) -> Slot {
        let (word, bias) = if signed {
            (
                self.pure(Class::B32, "xor.b32", &[word.into(), Opd::Int(0x8080_8080)]),
                MINUS_2_23 | 128,
            )
        } else {
            (word, MINUS_2_23)
        };
        let select = Opd::Int(0x7440 | i64::from(index));
        let lifted = self.pure(
            Class::B32,
            "prmt.b32",
            &[word.into(), Opd::Int(0x4B00_0000), select],
        );
        self.pure(Class::B32, "add.rn.f32", &[lifted.into(), Opd::F32(bias)])
            .into()
    }

    fn float_to_int(&mut self, source: &str, to: DType, slot: Slot) -> Slot {
        let x = match slot {
            Slot::Opd(opd) => opd,
            Slot::Part { word, .. } => word.into(),
        };
        let (name, class) = match to {
            DType::I64 => ("s64", Class::B64),
            DType::U64 => ("u64", Class::B64),
            DType::U32 => ("u32", Class::B32),
            _ => ("s32", Class::B32),
        };
        let mut out: Opd = self
            .pure(class, &format!("cvt.rzi.{name}.{source}"), &[x])
            .into();
        // Only between 32-bit types does the instruction itself make NaN a zero.
        if class == Class::B64 || source == "f64" {
            let nan = self.pure(Class::Pred, &format!("setp.nan.{source}"), &[x, x]);
            out = self.select(class, nan.into(), Opd::Int(0), out);
        }
        if to.size() >= 4 {
            return Slot::Opd(out);
        }
        let range = range_of(to);
        let low = self.pure(Class::B32, "max.s32", &[out, Opd::Int(range.lo)]);
        self.pure(Class::B32, "min.s32", &[low.into(), Opd::Int(range.hi)])
            .into()
    }

    fn int_to_int(&mut self, from: DType, to: DType, slot: Slot, fact: Fact, out: Fact) -> Slot {
        let x = self.element(from, slot);
        if from.is_bool() {
            let class = if to == DType::U64 {
                Class::B64
            } else {
                Class::B32
            };
            return Slot::Opd(self.select(class, x, Opd::Int(1), Opd::Int(0)));
        }
        let wide_in = matches!(x, Opd::Reg(reg) if reg.class == Class::B64);
        let wide_out = to == DType::U64 || (to == DType::I64 && !out.fits_i32());
        let opd = match (wide_in, wide_out) {
            (true, true) => x,
            (true, false) => self.narrow(Int { opd: x, fact }),
            (false, true) if from == DType::U32 => {
                self.pure(Class::B64, "cvt.u64.u32", &[x]).into()
            }
            (false, true) => self.widen(Int { opd: x, fact }),
            (false, false) => x,
        };
        let range = range_of(to);
        if to.size() >= 4 || (fact.lo >= range.lo && fact.hi <= range.hi) {
            return Slot::Opd(opd);
        }
        let mnemonic = if to.is_signed() { "bfe.s32" } else { "bfe.u32" };
        self.pure(
            Class::B32,
            mnemonic,
            &[opd, Opd::Int(0), Opd::Int(i64::from(to.bits()))],
        )
        .into()
    }
}

/// The conversion of a literal.
fn fold(from: DType, to: DType, slot: Slot) -> Option<Slot> {
    let Slot::Opd(opd) = slot else { return None };
    let bits = literal_bits(from, opd)?;
    Some(Slot::Opd(literal(
        to,
        Scalar::from_bits(from, bits).cast(to),
    )))
}
