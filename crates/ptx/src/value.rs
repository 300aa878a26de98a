//! How values live in a thread's registers.
//!
//! | dtype | one element |
//! |---|---|
//! | f64, u64 | a 64-bit register |
//! | i64 | a 32-bit register where its fact fits 32 bits, else a 64-bit one |
//! | f32, i32, u32 | a 32-bit register |
//! | i16, u16, i8, u8 | a 32-bit register, extended as its signedness says |
//! | f16, bf16 | the bits in a 16-bit register |
//! | floats of 8 bits and less | the bits in a 32-bit register, zero above |
//! | bool | a predicate |
//!
//! An element narrower than 32 bits may also still be part of a word, as it was loaded or converted ([`Slot::Part`]); it is taken out when an
//! op needs it alone, and stored again without a detour when whole words are left as they were.

use std::rc::Rc;

use oxyfuel_base::dtype::Kind;
use oxyfuel_base::{DType, Result, Scalar, err};
use oxyfuel_kernel::ir::Space;
use oxyfuel_kernel::ir::Swizzle;

use crate::asm::{Asm, Class, Opd, Reg};
use crate::emit::Slice;
use crate::fact::Fact;
use crate::place::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Opd(Opd),
    /// Element `index` of a word of `32 / bits` elements.
    Part {
        word: Reg,
        index: u8,
    },
}

impl From<Reg> for Slot {
    fn from(reg: Reg) -> Self {
        Self::Opd(Opd::Reg(reg))
    }
}

/// What a thread holds of a tile: one slot a register of its layout.
#[derive(Clone, Debug)]
pub(crate) struct Tile {
    pub(crate) dtype: DType,
    pub(crate) place: Rc<Place>,
    pub(crate) slots: Vec<Slot>,
    /// True of every element of an integer tile.
    pub(crate) fact: Fact,
}

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) dtype: DType,
    pub(crate) space: Space,
    /// A generic or global address in 64 bits, or an address in shared memory in 32.
    pub(crate) base: Reg,
    /// Known alignment of the base in bytes.
    pub(crate) align: u64,
    pub(crate) swizzle: Option<Swizzle>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Tile(Tile),
    Memory(Memory),
    /// Generic address of a tensor map.
    TensorMap(Reg),
}

/// An integer of 64 bits in the width its fact allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int {
    pub(crate) opd: Opd,
    pub(crate) fact: Fact,
}

impl Int {
    pub(crate) fn constant(value: i64) -> Self {
        Self {
            opd: Opd::Int(value),
            fact: Fact::constant(value),
        }
    }
}

/// All that an integer dtype can hold.
pub(crate) fn range_of(dtype: DType) -> Fact {
    let bits = dtype.bits();
    match dtype.kind() {
        Kind::Signed if bits < 64 => Fact::range(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        Kind::Unsigned if bits < 64 => Fact::range(0, (1 << bits) - 1),
        Kind::Bool => Fact::range(0, 1),
        Kind::Signed | Kind::Unsigned | Kind::Float => Fact::UNKNOWN,
    }
}

/// `fact` where the dtype holds it without wrapping.
pub(crate) fn clamp_fact(dtype: DType, fact: Fact) -> Fact {
    let range = range_of(dtype);
    if dtype == DType::U64 {
        return Fact::UNKNOWN;
    }
    if fact.lo >= range.lo && fact.hi <= range.hi {
        fact
    } else {
        range
    }
}

/// The register that one element takes.
pub(crate) fn class_of(dtype: DType, fact: Fact) -> Class {
    match dtype {
        DType::F64 | DType::U64 => Class::B64,
        DType::I64 if !fact.fits_i32() => Class::B64,
        DType::F16 | DType::BF16 => Class::B16,
        DType::Bool => Class::Pred,
        DType::I64
        | DType::F32
        | DType::I32
        | DType::U32
        | DType::I16
        | DType::U16
        | DType::I8
        | DType::U8
        | DType::F8E4M3
        | DType::F8E5M2
        | DType::F4E2M1
        | DType::E8M0 => Class::B32,
    }
}

/// A literal as an operand.
pub(crate) fn literal(dtype: DType, value: Scalar) -> Opd {
    let bits = value.to_bits(dtype);
    match dtype {
        DType::F32 => Opd::F32(bits as u32),
        DType::F64 => Opd::F64(bits),
        DType::Bool => Opd::Int(i64::from(value.as_bool())),
        DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U32 | DType::U16 | DType::U8 => {
            Opd::Int(Scalar::from_bits(dtype, bits).as_i64())
        }
        DType::U64 => Opd::Int(bits as i64),
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1 | DType::E8M0 => {
            Opd::Int(bits as i64)
        }
    }
}

/// The bits of a literal operand of `dtype`, as they lie in memory.
pub(crate) fn literal_bits(dtype: DType, opd: Opd) -> Option<u64> {
    let mask = if dtype.size() == 8 {
        u64::MAX
    } else {
        (1 << (8 * dtype.size())) - 1
    };
    match opd {
        Opd::Reg(_) => None,
        Opd::Int(value) => Some(value as u64 & mask),
        Opd::F32(bits) => Some(u64::from(bits)),
        Opd::F64(bits) => Some(bits),
    }
}

impl Tile {
    pub(crate) fn slice(&self, slice: &Slice) -> Self {
        Self {
            dtype: self.dtype,
            place: Rc::new(self.place.slice(slice)),
            slots: self.slots[slice.from..slice.until].to_vec(),
            fact: self.fact,
        }
    }

    pub(crate) fn scalar(&self) -> Result<Slot> {
        match self.slots.as_slice() {
            [slot] => Ok(*slot),
            slots => Err(err!(
                InvalidKernel,
                "a scalar is wanted, not {} elements a thread",
                slots.len()
            )),
        }
    }

    pub(crate) fn int(&self, asm: &mut Asm, r: usize) -> Int {
        Int {
            opd: asm.element(self.dtype, self.slots[r]),
            fact: self.fact,
        }
    }
}

impl Asm {
    /// The element alone.
    pub(crate) fn element(&mut self, dtype: DType, slot: Slot) -> Opd {
        let Slot::Part { word, index } = slot else {
            return match slot {
                Slot::Opd(opd) => opd,
                Slot::Part { word, .. } => word.into(),
            };
        };
        let bits = 8 * dtype.size() as i64;
        let at = Opd::Int(bits * i64::from(index));
        let word = Opd::Reg(word);
        match dtype {
            DType::F16 | DType::BF16 => {
                let low = if index == 0 {
                    word
                } else {
                    self.pure(Class::B32, "shr.u32", &[word, at]).into()
                };
                self.pure(Class::B16, "cvt.u16.u32", &[low]).into()
            }
            DType::I16 | DType::I8 => self
                .pure(Class::B32, "bfe.s32", &[word, at, Opd::Int(bits)])
                .into(),
            DType::Bool => {
                let byte = self.pure(Class::B32, "bfe.u32", &[word, at, Opd::Int(bits)]);
                self.pure(Class::Pred, "setp.ne.u32", &[byte.into(), Opd::Int(0)])
                    .into()
            }
            DType::U16
            | DType::U8
            | DType::F8E4M3
            | DType::F8E5M2
            | DType::F4E2M1
            | DType::E8M0 => self
                .pure(Class::B32, "bfe.u32", &[word, at, Opd::Int(bits)])
                .into(),
            // Words of one element.
            DType::F64 | DType::F32 | DType::I64 | DType::I32 | DType::U64 | DType::U32 => word,
        }
    }

    /// The element alone, in a register of its class.
    pub(crate) fn element_reg(&mut self, dtype: DType, fact: Fact, slot: Slot) -> Reg {
        match self.element(dtype, slot) {
            Opd::Reg(reg) => reg,
            constant => {
                let class = class_of(dtype, fact);
                self.constant(class, constant)
            }
        }
    }

    pub(crate) fn constant(&mut self, class: Class, value: Opd) -> Reg {
        let mnemonic = match class {
            Class::Pred => "mov.pred",
            Class::B16 => "mov.b16",
            Class::B32 => "mov.b32",
            Class::B64 => "mov.b64",
        };
        self.pure(class, mnemonic, &[value])
    }

    /// An element as bits of its memory width in the low end of a 32-bit register. For dtypes below 32 bits.
    fn low_bits(&mut self, dtype: DType, slot: Slot) -> Opd {
        let opd = self.element(dtype, slot);
        if let Some(bits) = literal_bits(dtype, opd) {
            return Opd::Int(bits as i64);
        }
        match dtype {
            DType::F16 | DType::BF16 => self.pure(Class::B32, "cvt.u32.u16", &[opd]).into(),
            DType::Bool => self
                .pure(Class::B32, "selp.b32", &[Opd::Int(1), Opd::Int(0), opd])
                .into(),
            DType::F64
            | DType::F32
            | DType::I64
            | DType::I32
            | DType::I16
            | DType::I8
            | DType::U64
            | DType::U32
            | DType::U16
            | DType::U8
            | DType::F8E4M3
            | DType::F8E5M2
            | DType::F4E2M1
            | DType::E8M0 => opd,
        }
    }

    /// The words of 32 bits that hold `slots` one after the other, the last one filled with zeros. For dtypes of at most 32 bits.
    pub(crate) fn words(&mut self, dtype: DType, slots: &[Slot]) -> Vec<Opd> {
        let per = 4 / dtype.size().clamp(1, 4);
        slots
            .chunks(per)
            .map(|chunk| self.word(dtype, chunk))
            .collect()
    }

    fn word(&mut self, dtype: DType, chunk: &[Slot]) -> Opd {
        if let [one] = chunk
            && dtype.size() == 4
        {
            return self.element(dtype, *one);
        }
        if let Slot::Part { word, index: 0 } = chunk[0]
            && chunk.len() == 4 / dtype.size()
            && chunk.iter().enumerate().all(|(i, slot)| {
                *slot
                    == Slot::Part {
                        word,
                        index: i as u8,
                    }
            })
        {
            return word.into();
        }
        if let [Slot::Opd(Opd::Reg(a)), Slot::Opd(Opd::Reg(b))] = chunk
            && a.class == Class::B16
            && b.class == Class::B16
        {
            let word = self.reg(Class::B32);
            self.line(format_args!("mov.b32 {word}, {{{a},{b}}}"));
            return word.into();
        }
        let parts: Vec<Opd> = chunk
            .iter()
            .map(|slot| self.low_bits(dtype, *slot))
            .collect();
        let shift = 8 * dtype.size();
        if let Some(bits) = parts
            .iter()
            .enumerate()
            .try_fold(0i64, |all, (i, part)| match part {
                Opd::Int(bits) => Some(all | bits << (i * shift)),
                Opd::Reg(_) | Opd::F32(_) | Opd::F64(_) => None,
            })
        {
            return Opd::Int(i64::from(bits as u32 as i32));
        }
        let get = |i: usize| parts.get(i).copied().unwrap_or(Opd::Int(0));
        if dtype.size() == 2 {
            return self
                .pure(Class::B32, "prmt.b32", &[get(0), get(1), Opd::Int(0x5410)])
                .into();
        }
        let low = self.pure(Class::B32, "prmt.b32", &[get(0), get(1), Opd::Int(0x0040)]);
        let high = self.pure(Class::B32, "prmt.b32", &[get(2), get(3), Opd::Int(0x0040)]);
        self.pure(
            Class::B32,
            "prmt.b32",
            &[low.into(), high.into(), Opd::Int(0x5410)],
        )
        .into()
    }
}

/// The slots of words as they come from memory.
pub(crate) fn parts(dtype: DType, words: &[Reg], n: usize) -> Vec<Slot> {
    let per = 4 / dtype.size().clamp(1, 4);
    (0..n)
        .map(|i| {
            if per == 1 {
                words[i].into()
            } else {
                Slot::Part {
                    word: words[i / per],
                    index: (i % per) as u8,
                }
            }
        })
        .collect()
}
