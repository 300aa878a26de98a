//! Instruction levels as data.

use crate::mir::Width;

/// What the machine that will run the code can do. AVX2 (with FMA, F16C and BMI2) is the floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level {
    /// Dot products of four bytes in the encoding of AVX2.
    pub avx_vnni: bool,
    /// AVX-512 F, BW, DQ and VL: 32 vector registers of 64 bytes, and masks.
    pub avx512: bool,
    pub avx512_bf16: bool,
    pub avx512_vnni: bool,
    pub amx_bf16: bool,
    pub amx_int8: bool,
}

impl Level {
    pub const AVX2: Level = Level {
        avx_vnni: false,
        avx512: false,
        avx512_bf16: false,
        avx512_vnni: false,
        amx_bf16: false,
        amx_int8: false,
    };
    pub const AVX2_VNNI: Level = Level {
        avx_vnni: true,
        ..Level::AVX2
    };
    pub const AVX512: Level = Level {
        avx512: true,
        ..Level::AVX2
    };
    pub const AVX512_VNNI: Level = Level {
        avx512_vnni: true,
        ..Level::AVX512
    };
    pub const AVX512_BF16: Level = Level {
        avx512_bf16: true,
        ..Level::AVX512_VNNI
    };
    pub const AMX: Level = Level {
        amx_bf16: true,
        amx_int8: true,
        ..Level::AVX512_BF16
    };

    pub fn width(self) -> Width {
        if self.avx512 { Width::Z } else { Width::Y }
    }

    pub fn vector_bytes(self) -> u32 {
        self.width().bytes()
    }

    pub fn vector_registers(self) -> u32 {
        if self.avx512 { 32 } else { 16 }
    }

    /// Whether vectors multiply bytes, four of the depth at a time.
    pub fn vnni(self) -> bool {
        self.avx512_vnni || self.avx_vnni
    }

    pub fn amx(self) -> bool {
        self.amx_bf16 || self.amx_int8
    }
}
