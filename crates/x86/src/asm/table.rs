//! The instruction table: one row an instruction, and nothing about an instruction stands anywhere else.
//!
//! A row is `Name "mnemonic" [slots] broadcast { codes }`.
//!
//! *Slots* describe the operands in encoding order. The first letter is the role (`d` defines, `u` uses, `m` uses and
//! defines), the second the kind:
//!
//! | kind | operand |
//! |---|---|
//! | `V` / `W` | vector register / vector register or memory |
//! | `K` / `L` | mask register / mask register or memory |
//! | `G`*n* / `R`*n* | general register of *n* bytes / the same or memory |
//! | `M` / `X` | memory only / memory with a vector index |
//! | `I8` `I32` `U32` `I64` | immediate |
//! | `T` | tile register (physical, chosen by selection) |
//!
//! A last letter gives the width of a vector operand against the instruction's width: none is the same, `h` half,
//! `q` a quarter, `x` always 128 bits; nothing is narrower than 128 bits.
//!
//! *Broadcast* is the element size in bytes of the embedded broadcast form, 0 where there is none.
//!
//! *Codes* are the encodings for `VEX.128 VEX.256 EVEX.128 EVEX.256 EVEX.512` (`_` where there is none); one code alone
//! serves every width. A row with an `I32` slot gives the form with a 32-bit and that with an 8-bit immediate instead.
//! Rows without any code are pseudo instructions that the allocator's rewrite expands.

use iced_x86::Code;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Def,
    Use,
    Mod,
}

/// Width of a vector operand relative to the instruction's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rel {
    Full,
    Half,
    Quarter,
    Xmm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Vec { rel: Rel, mem: bool },
    Mask { mem: bool },
    Gpr { bytes: u8, mem: bool },
    Mem,
    VecIndexed(Rel),
    Imm8,
    Imm32,
    ImmU32,
    Imm64,
    Tile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub role: Role,
    pub kind: Kind,
}

impl Slot {
    /// Whether this operand may be memory instead of a register.
    pub fn takes_mem(self) -> bool {
        match self.kind {
            Kind::Vec { mem, .. } | Kind::Mask { mem } | Kind::Gpr { mem, .. } => mem,
            Kind::Mem | Kind::VecIndexed(_) => true,
            Kind::Imm8 | Kind::Imm32 | Kind::ImmU32 | Kind::Imm64 | Kind::Tile => false,
        }
    }
}

#[derive(Debug)]
pub struct Row {
    pub text: &'static str,
    pub slots: &'static [Slot],
    /// Element size of the embedded broadcast form, or 0.
    pub broadcast: u8,
    pub codes: [Code; 5],
    /// Has memory with a vector index.
    pub sparse: bool,
    /// Has an immediate that may be short.
    imm32: bool,
}

impl Row {
    pub fn has_code(&self, at: usize) -> bool {
        self.codes[at] != Code::INVALID
    }

    pub fn has_imm32(&self) -> bool {
        self.imm32
    }
}

const fn any_sparse(slots: &[Slot]) -> bool {
    let mut i = 0;
    while i < slots.len() {
        if matches!(slots[i].kind, Kind::VecIndexed(_)) {
            return true;
        }
        i += 1;
    }
    false
}

const fn any_imm32(slots: &[Slot]) -> bool {
    let mut i = 0;
    while i < slots.len() {
        if matches!(slots[i].kind, Kind::Imm32) {
            return true;
        }
        i += 1;
    }
    false
}

macro_rules! slot {
    ($role:ident V $rel:ident) => {
        Slot {
            role: Role::$role,
            kind: Kind::Vec {
                rel: Rel::$rel,
                mem: false,
            },
        }
    };
    ($role:ident W $rel:ident) => {
        Slot {
            role: Role::$role,
            kind: Kind::Vec {
                rel: Rel::$rel,
                mem: true,
            },
        }
    };
    ($role:ident G $n:literal) => {
        Slot {
            role: Role::$role,
            kind: Kind::Gpr {
                bytes: $n,
                mem: false,
            },
        }
    };
    ($role:ident R $n:literal) => {
        Slot {
            role: Role::$role,
            kind: Kind::Gpr {
                bytes: $n,
                mem: true,
            },
        }
    };
    ($role:ident $kind:expr) => {
        Slot {
            role: Role::$role,
            kind: $kind,
        }
    };
}

/// The spellings of the table's slot column.
#[expect(
    non_upper_case_globals,
    reason = "a slot's spelling is role, kind and width; the table's documentation lists them"
)]
mod slots {
    use super::{Kind, Rel, Role, Slot};
    pub const dV: Slot = slot!(Def V Full);
    pub const dVh: Slot = slot!(Def V Half);
    pub const dVx: Slot = slot!(Def V Xmm);
    pub const dWh: Slot = slot!(Def W Half);
    pub const dWq: Slot = slot!(Def W Quarter);
    pub const dWx: Slot = slot!(Def W Xmm);
    pub const uV: Slot = slot!(Use V Full);
    pub const uVh: Slot = slot!(Use V Half);
    pub const uVx: Slot = slot!(Use V Xmm);
    pub const uW: Slot = slot!(Use W Full);
    pub const uWh: Slot = slot!(Use W Half);
    pub const uWq: Slot = slot!(Use W Quarter);
    pub const uWx: Slot = slot!(Use W Xmm);
    pub const mV: Slot = slot!(Mod V Full);
    pub const mVh: Slot = slot!(Mod V Half);
    pub const uX: Slot = slot!(Use Kind::VecIndexed(Rel::Full));
    pub const uXh: Slot = slot!(Use Kind::VecIndexed(Rel::Half));
    pub const dK: Slot = slot!(Def Kind::Mask { mem: false });
    pub const uK: Slot = slot!(Use Kind::Mask { mem: false });
    pub const uL: Slot = slot!(Use Kind::Mask { mem: true });
    pub const dG1: Slot = slot!(Def G 1);
    pub const dG4: Slot = slot!(Def G 4);
    pub const dG8: Slot = slot!(Def G 8);
    pub const mG8: Slot = slot!(Mod G 8);
    pub const uG1: Slot = slot!(Use G 1);
    pub const uG2: Slot = slot!(Use G 2);
    pub const uG4: Slot = slot!(Use G 4);
    pub const uG8: Slot = slot!(Use G 8);
    pub const dR4: Slot = slot!(Def R 4);
    pub const dR8: Slot = slot!(Def R 8);
    pub const mR8: Slot = slot!(Mod R 8);
    pub const uR4: Slot = slot!(Use R 4);
    pub const uR8: Slot = slot!(Use R 8);
    pub const uM: Slot = slot!(Use Kind::Mem);
    pub const I8: Slot = slot!(Use Kind::Imm8);
    pub const I32: Slot = slot!(Use Kind::Imm32);
    pub const U32: Slot = slot!(Use Kind::ImmU32);
    pub const I64: Slot = slot!(Use Kind::Imm64);
    pub const T: Slot = slot!(Use Kind::Tile);
}

macro_rules! code {
    (_) => {
        Code::INVALID
    };
    ($c:ident) => {
        Code::$c
    };
}

macro_rules! codes {
    ($c:tt) => {
        [code!($c), code!($c), code!($c), code!($c), code!($c)]
    };
    ($($c:tt)*) => {
        [$(code!($c)),*]
    };
}

macro_rules! rows {
    ($($name:ident $text:literal [$($slot:ident)*] $broadcast:literal { $($code:tt)* };)*) => {
        /// An instruction of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Op {
            $($name),*
        }

        impl Op {
            /// Every instruction, in table order.
            pub const ALL: &'static [Op] = &[$(Op::$name),*];

            #[inline]
            pub fn row(self) -> &'static Row {
                &ROWS[self as usize]
            }
        }

        static ROWS: &[Row] = &[
            $(Row {
                text: $text,
                slots: &[$(slots::$slot),*],
                broadcast: $broadcast,
                codes: codes!($($code)*),
                sparse: any_sparse(&[$(slots::$slot),*]),
                imm32: any_imm32(&[$(slots::$slot),*]),
            }),*
        ];
    };
}

rows! {
    VAddPs "vaddps" [dV uV uW] 4 { VEX_Vaddps_xmm_xmm_xmmm128 VEX_Vaddps_ymm_ymm_ymmm256 EVEX_Vaddps_xmm_k1z_xmm_xmmm128b32 EVEX_Vaddps_ymm_k1z_ymm_ymmm256b32 EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er };
    VAddPd "vaddpd" [dV uV uW] 8 { VEX_Vaddpd_xmm_xmm_xmmm128 VEX_Vaddpd_ymm_ymm_ymmm256 EVEX_Vaddpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vaddpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er };
    VSubPs "vsubps" [dV uV uW] 4 { VEX_Vsubps_xmm_xmm_xmmm128 VEX_Vsubps_ymm_ymm_ymmm256 EVEX_Vsubps_xmm_k1z_xmm_xmmm128b32 EVEX_Vsubps_ymm_k1z_ymm_ymmm256b32 EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er };
    VSubPd "vsubpd" [dV uV uW] 8 { VEX_Vsubpd_xmm_xmm_xmmm128 VEX_Vsubpd_ymm_ymm_ymmm256 EVEX_Vsubpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vsubpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er };
    VMulPs "vmulps" [dV uV uW] 4 { VEX_Vmulps_xmm_xmm_xmmm128 VEX_Vmulps_ymm_ymm_ymmm256 EVEX_Vmulps_xmm_k1z_xmm_xmmm128b32 EVEX_Vmulps_ymm_k1z_ymm_ymmm256b32 EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er };
    VMulPd "vmulpd" [dV uV uW] 8 { VEX_Vmulpd_xmm_xmm_xmmm128 VEX_Vmulpd_ymm_ymm_ymmm256 EVEX_Vmulpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vmulpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er };
    VDivPs "vdivps" [dV uV uW] 4 { VEX_Vdivps_xmm_xmm_xmmm128 VEX_Vdivps_ymm_ymm_ymmm256 EVEX_Vdivps_xmm_k1z_xmm_xmmm128b32 EVEX_Vdivps_ymm_k1z_ymm_ymmm256b32 EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er };
    VDivPd "vdivpd" [dV uV uW] 8 { VEX_Vdivpd_xmm_xmm_xmmm128 VEX_Vdivpd_ymm_ymm_ymmm256 EVEX_Vdivpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vdivpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er };
    VMinPs "vminps" [dV uV uW] 4 { VEX_Vminps_xmm_xmm_xmmm128 VEX_Vminps_ymm_ymm_ymmm256 EVEX_Vminps_xmm_k1z_xmm_xmmm128b32 EVEX_Vminps_ymm_k1z_ymm_ymmm256b32 EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae };
    VMinPd "vminpd" [dV uV uW] 8 { VEX_Vminpd_xmm_xmm_xmmm128 VEX_Vminpd_ymm_ymm_ymmm256 EVEX_Vminpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vminpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vminpd_zmm_k1z_zmm_zmmm512b64_sae };
    VMaxPs "vmaxps" [dV uV uW] 4 { VEX_Vmaxps_xmm_xmm_xmmm128 VEX_Vmaxps_ymm_ymm_ymmm256 EVEX_Vmaxps_xmm_k1z_xmm_xmmm128b32 EVEX_Vmaxps_ymm_k1z_ymm_ymmm256b32 EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae };
    VMaxPd "vmaxpd" [dV uV uW] 8 { VEX_Vmaxpd_xmm_xmm_xmmm128 VEX_Vmaxpd_ymm_ymm_ymmm256 EVEX_Vmaxpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vmaxpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vmaxpd_zmm_k1z_zmm_zmmm512b64_sae };
    VSqrtPs "vsqrtps" [dV uW] 4 { VEX_Vsqrtps_xmm_xmmm128 VEX_Vsqrtps_ymm_ymmm256 EVEX_Vsqrtps_xmm_k1z_xmmm128b32 EVEX_Vsqrtps_ymm_k1z_ymmm256b32 EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er };
    VFmadd132Ps "vfmadd132ps" [mV uV uW] 4 { VEX_Vfmadd132ps_xmm_xmm_xmmm128 VEX_Vfmadd132ps_ymm_ymm_ymmm256 EVEX_Vfmadd132ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmadd132ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er };
    VFmadd213Ps "vfmadd213ps" [mV uV uW] 4 { VEX_Vfmadd213ps_xmm_xmm_xmmm128 VEX_Vfmadd213ps_ymm_ymm_ymmm256 EVEX_Vfmadd213ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmadd213ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er };
    VFmadd231Ps "vfmadd231ps" [mV uV uW] 4 { VEX_Vfmadd231ps_xmm_xmm_xmmm128 VEX_Vfmadd231ps_ymm_ymm_ymmm256 EVEX_Vfmadd231ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmadd231ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er };
    VFnmadd132Ps "vfnmadd132ps" [mV uV uW] 4 { VEX_Vfnmadd132ps_xmm_xmm_xmmm128 VEX_Vfnmadd132ps_ymm_ymm_ymmm256 EVEX_Vfnmadd132ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfnmadd132ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfnmadd132ps_zmm_k1z_zmm_zmmm512b32_er };
    VFnmadd213Ps "vfnmadd213ps" [mV uV uW] 4 { VEX_Vfnmadd213ps_xmm_xmm_xmmm128 VEX_Vfnmadd213ps_ymm_ymm_ymmm256 EVEX_Vfnmadd213ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfnmadd213ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfnmadd213ps_zmm_k1z_zmm_zmmm512b32_er };
    VFnmadd231Ps "vfnmadd231ps" [mV uV uW] 4 { VEX_Vfnmadd231ps_xmm_xmm_xmmm128 VEX_Vfnmadd231ps_ymm_ymm_ymmm256 EVEX_Vfnmadd231ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfnmadd231ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfnmadd231ps_zmm_k1z_zmm_zmmm512b32_er };
    VFmsub132Ps "vfmsub132ps" [mV uV uW] 4 { VEX_Vfmsub132ps_xmm_xmm_xmmm128 VEX_Vfmsub132ps_ymm_ymm_ymmm256 EVEX_Vfmsub132ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmsub132ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmsub132ps_zmm_k1z_zmm_zmmm512b32_er };
    VFmsub213Ps "vfmsub213ps" [mV uV uW] 4 { VEX_Vfmsub213ps_xmm_xmm_xmmm128 VEX_Vfmsub213ps_ymm_ymm_ymmm256 EVEX_Vfmsub213ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmsub213ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmsub213ps_zmm_k1z_zmm_zmmm512b32_er };
    VFmsub231Ps "vfmsub231ps" [mV uV uW] 4 { VEX_Vfmsub231ps_xmm_xmm_xmmm128 VEX_Vfmsub231ps_ymm_ymm_ymmm256 EVEX_Vfmsub231ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmsub231ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmsub231ps_zmm_k1z_zmm_zmmm512b32_er };
    VSqrtPd "vsqrtpd" [dV uW] 8 { VEX_Vsqrtpd_xmm_xmmm128 VEX_Vsqrtpd_ymm_ymmm256 EVEX_Vsqrtpd_xmm_k1z_xmmm128b64 EVEX_Vsqrtpd_ymm_k1z_ymmm256b64 EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er };
    VFmadd132Pd "vfmadd132pd" [mV uV uW] 8 { VEX_Vfmadd132pd_xmm_xmm_xmmm128 VEX_Vfmadd132pd_ymm_ymm_ymmm256 EVEX_Vfmadd132pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfmadd132pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfmadd132pd_zmm_k1z_zmm_zmmm512b64_er };
    VFmadd213Pd "vfmadd213pd" [mV uV uW] 8 { VEX_Vfmadd213pd_xmm_xmm_xmmm128 VEX_Vfmadd213pd_ymm_ymm_ymmm256 EVEX_Vfmadd213pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfmadd213pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfmadd213pd_zmm_k1z_zmm_zmmm512b64_er };
    VFmadd231Pd "vfmadd231pd" [mV uV uW] 8 { VEX_Vfmadd231pd_xmm_xmm_xmmm128 VEX_Vfmadd231pd_ymm_ymm_ymmm256 EVEX_Vfmadd231pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfmadd231pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er };
    VFnmadd132Pd "vfnmadd132pd" [mV uV uW] 8 { VEX_Vfnmadd132pd_xmm_xmm_xmmm128 VEX_Vfnmadd132pd_ymm_ymm_ymmm256 EVEX_Vfnmadd132pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfnmadd132pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfnmadd132pd_zmm_k1z_zmm_zmmm512b64_er };
    VFnmadd213Pd "vfnmadd213pd" [mV uV uW] 8 { VEX_Vfnmadd213pd_xmm_xmm_xmmm128 VEX_Vfnmadd213pd_ymm_ymm_ymmm256 EVEX_Vfnmadd213pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfnmadd213pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfnmadd213pd_zmm_k1z_zmm_zmmm512b64_er };
    VFnmadd231Pd "vfnmadd231pd" [mV uV uW] 8 { VEX_Vfnmadd231pd_xmm_xmm_xmmm128 VEX_Vfnmadd231pd_ymm_ymm_ymmm256 EVEX_Vfnmadd231pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfnmadd231pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfnmadd231pd_zmm_k1z_zmm_zmmm512b64_er };
    VFmsub132Pd "vfmsub132pd" [mV uV uW] 8 { VEX_Vfmsub132pd_xmm_xmm_xmmm128 VEX_Vfmsub132pd_ymm_ymm_ymmm256 EVEX_Vfmsub132pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfmsub132pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfmsub132pd_zmm_k1z_zmm_zmmm512b64_er };
    VFmsub213Pd "vfmsub213pd" [mV uV uW] 8 { VEX_Vfmsub213pd_xmm_xmm_xmmm128 VEX_Vfmsub213pd_ymm_ymm_ymmm256 EVEX_Vfmsub213pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfmsub213pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfmsub213pd_zmm_k1z_zmm_zmmm512b64_er };
    VFmsub231Pd "vfmsub231pd" [mV uV uW] 8 { VEX_Vfmsub231pd_xmm_xmm_xmmm128 VEX_Vfmsub231pd_ymm_ymm_ymmm256 EVEX_Vfmsub231pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfmsub231pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfmsub231pd_zmm_k1z_zmm_zmmm512b64_er };
    VPAnd "vpand" [dV uV uW] 4 { VEX_Vpand_xmm_xmm_xmmm128 VEX_Vpand_ymm_ymm_ymmm256 EVEX_Vpandd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpandd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32 };
    VPOr "vpor" [dV uV uW] 4 { VEX_Vpor_xmm_xmm_xmmm128 VEX_Vpor_ymm_ymm_ymmm256 EVEX_Vpord_xmm_k1z_xmm_xmmm128b32 EVEX_Vpord_ymm_k1z_ymm_ymmm256b32 EVEX_Vpord_zmm_k1z_zmm_zmmm512b32 };
    VPXor "vpxor" [dV uV uW] 4 { VEX_Vpxor_xmm_xmm_xmmm128 VEX_Vpxor_ymm_ymm_ymmm256 EVEX_Vpxord_xmm_k1z_xmm_xmmm128b32 EVEX_Vpxord_ymm_k1z_ymm_ymmm256b32 EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32 };
    VPAndN "vpandn" [dV uV uW] 4 { VEX_Vpandn_xmm_xmm_xmmm128 VEX_Vpandn_ymm_ymm_ymmm256 EVEX_Vpandnd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpandnd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpandnd_zmm_k1z_zmm_zmmm512b32 };
    VPAndQ "vpand" [dV uV uW] 8 { VEX_Vpand_xmm_xmm_xmmm128 VEX_Vpand_ymm_ymm_ymmm256 EVEX_Vpandq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpandq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpandq_zmm_k1z_zmm_zmmm512b64 };
    VPOrQ "vpor" [dV uV uW] 8 { VEX_Vpor_xmm_xmm_xmmm128 VEX_Vpor_ymm_ymm_ymmm256 EVEX_Vporq_xmm_k1z_xmm_xmmm128b64 EVEX_Vporq_ymm_k1z_ymm_ymmm256b64 EVEX_Vporq_zmm_k1z_zmm_zmmm512b64 };
    VPXorQ "vpxor" [dV uV uW] 8 { VEX_Vpxor_xmm_xmm_xmmm128 VEX_Vpxor_ymm_ymm_ymmm256 EVEX_Vpxorq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpxorq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpxorq_zmm_k1z_zmm_zmmm512b64 };
    VPAndNQ "vpandn" [dV uV uW] 8 { VEX_Vpandn_xmm_xmm_xmmm128 VEX_Vpandn_ymm_ymm_ymmm256 EVEX_Vpandnq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpandnq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpandnq_zmm_k1z_zmm_zmmm512b64 };
    VPTernLogD "vpternlogd" [mV uV uW I8] 4 { _ _ EVEX_Vpternlogd_xmm_k1z_xmm_xmmm128b32_imm8 EVEX_Vpternlogd_ymm_k1z_ymm_ymmm256b32_imm8 EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8 };
    VPTernLogQ "vpternlogq" [mV uV uW I8] 8 { _ _ EVEX_Vpternlogq_xmm_k1z_xmm_xmmm128b64_imm8 EVEX_Vpternlogq_ymm_k1z_ymm_ymmm256b64_imm8 EVEX_Vpternlogq_zmm_k1z_zmm_zmmm512b64_imm8 };
    VPAddB "vpaddb" [dV uV uW] 0 { VEX_Vpaddb_xmm_xmm_xmmm128 VEX_Vpaddb_ymm_ymm_ymmm256 EVEX_Vpaddb_xmm_k1z_xmm_xmmm128 EVEX_Vpaddb_ymm_k1z_ymm_ymmm256 EVEX_Vpaddb_zmm_k1z_zmm_zmmm512 };
    VPSubB "vpsubb" [dV uV uW] 0 { VEX_Vpsubb_xmm_xmm_xmmm128 VEX_Vpsubb_ymm_ymm_ymmm256 EVEX_Vpsubb_xmm_k1z_xmm_xmmm128 EVEX_Vpsubb_ymm_k1z_ymm_ymmm256 EVEX_Vpsubb_zmm_k1z_zmm_zmmm512 };
    VPAddW "vpaddw" [dV uV uW] 0 { VEX_Vpaddw_xmm_xmm_xmmm128 VEX_Vpaddw_ymm_ymm_ymmm256 EVEX_Vpaddw_xmm_k1z_xmm_xmmm128 EVEX_Vpaddw_ymm_k1z_ymm_ymmm256 EVEX_Vpaddw_zmm_k1z_zmm_zmmm512 };
    VPSubW "vpsubw" [dV uV uW] 0 { VEX_Vpsubw_xmm_xmm_xmmm128 VEX_Vpsubw_ymm_ymm_ymmm256 EVEX_Vpsubw_xmm_k1z_xmm_xmmm128 EVEX_Vpsubw_ymm_k1z_ymm_ymmm256 EVEX_Vpsubw_zmm_k1z_zmm_zmmm512 };
    VPAddD "vpaddd" [dV uV uW] 4 { VEX_Vpaddd_xmm_xmm_xmmm128 VEX_Vpaddd_ymm_ymm_ymmm256 EVEX_Vpaddd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpaddd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32 };
    VPSubD "vpsubd" [dV uV uW] 4 { VEX_Vpsubd_xmm_xmm_xmmm128 VEX_Vpsubd_ymm_ymm_ymmm256 EVEX_Vpsubd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpsubd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32 };
    VPAddQ "vpaddq" [dV uV uW] 8 { VEX_Vpaddq_xmm_xmm_xmmm128 VEX_Vpaddq_ymm_ymm_ymmm256 EVEX_Vpaddq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpaddq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64 };
    VPSubQ "vpsubq" [dV uV uW] 8 { VEX_Vpsubq_xmm_xmm_xmmm128 VEX_Vpsubq_ymm_ymm_ymmm256 EVEX_Vpsubq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsubq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64 };
    VPMulLD "vpmulld" [dV uV uW] 4 { VEX_Vpmulld_xmm_xmm_xmmm128 VEX_Vpmulld_ymm_ymm_ymmm256 EVEX_Vpmulld_xmm_k1z_xmm_xmmm128b32 EVEX_Vpmulld_ymm_k1z_ymm_ymmm256b32 EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32 };
    VPMulLQ "vpmullq" [dV uV uW] 8 { _ _ EVEX_Vpmullq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmullq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpmullq_zmm_k1z_zmm_zmmm512b64 };
    VPMulUDQ "vpmuludq" [dV uV uW] 8 { VEX_Vpmuludq_xmm_xmm_xmmm128 VEX_Vpmuludq_ymm_ymm_ymmm256 EVEX_Vpmuludq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmuludq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64 };
    VPMulDQ "vpmuldq" [dV uV uW] 8 { VEX_Vpmuldq_xmm_xmm_xmmm128 VEX_Vpmuldq_ymm_ymm_ymmm256 EVEX_Vpmuldq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmuldq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpmuldq_zmm_k1z_zmm_zmmm512b64 };
    VPMinSD "vpminsd" [dV uV uW] 4 { VEX_Vpminsd_xmm_xmm_xmmm128 VEX_Vpminsd_ymm_ymm_ymmm256 EVEX_Vpminsd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpminsd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32 };
    VPMaxSD "vpmaxsd" [dV uV uW] 4 { VEX_Vpmaxsd_xmm_xmm_xmmm128 VEX_Vpmaxsd_ymm_ymm_ymmm256 EVEX_Vpmaxsd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpmaxsd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32 };
    VPMinUD "vpminud" [dV uV uW] 4 { VEX_Vpminud_xmm_xmm_xmmm128 VEX_Vpminud_ymm_ymm_ymmm256 EVEX_Vpminud_xmm_k1z_xmm_xmmm128b32 EVEX_Vpminud_ymm_k1z_ymm_ymmm256b32 EVEX_Vpminud_zmm_k1z_zmm_zmmm512b32 };
    VPMaxUD "vpmaxud" [dV uV uW] 4 { VEX_Vpmaxud_xmm_xmm_xmmm128 VEX_Vpmaxud_ymm_ymm_ymmm256 EVEX_Vpmaxud_xmm_k1z_xmm_xmmm128b32 EVEX_Vpmaxud_ymm_k1z_ymm_ymmm256b32 EVEX_Vpmaxud_zmm_k1z_zmm_zmmm512b32 };
    VPMinSQ "vpminsq" [dV uV uW] 8 { _ _ EVEX_Vpminsq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpminsq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpminsq_zmm_k1z_zmm_zmmm512b64 };
    VPMaxSQ "vpmaxsq" [dV uV uW] 8 { _ _ EVEX_Vpmaxsq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmaxsq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpmaxsq_zmm_k1z_zmm_zmmm512b64 };
    VPMinUQ "vpminuq" [dV uV uW] 8 { _ _ EVEX_Vpminuq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpminuq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpminuq_zmm_k1z_zmm_zmmm512b64 };
    VPMaxUQ "vpmaxuq" [dV uV uW] 8 { _ _ EVEX_Vpmaxuq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmaxuq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpmaxuq_zmm_k1z_zmm_zmmm512b64 };
    VPAbsD "vpabsd" [dV uW] 4 { VEX_Vpabsd_xmm_xmmm128 VEX_Vpabsd_ymm_ymmm256 EVEX_Vpabsd_xmm_k1z_xmmm128b32 EVEX_Vpabsd_ymm_k1z_ymmm256b32 EVEX_Vpabsd_zmm_k1z_zmmm512b32 };
    VPAbsQ "vpabsq" [dV uW] 8 { _ _ EVEX_Vpabsq_xmm_k1z_xmmm128b64 EVEX_Vpabsq_ymm_k1z_ymmm256b64 EVEX_Vpabsq_zmm_k1z_zmmm512b64 };
    VPSllDI "vpslld" [dV uV I8] 0 { VEX_Vpslld_xmm_xmm_imm8 VEX_Vpslld_ymm_ymm_imm8 EVEX_Vpslld_xmm_k1z_xmmm128b32_imm8 EVEX_Vpslld_ymm_k1z_ymmm256b32_imm8 EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8 };
    VPSllVD "vpsllvd" [dV uV uW] 4 { VEX_Vpsllvd_xmm_xmm_xmmm128 VEX_Vpsllvd_ymm_ymm_ymmm256 EVEX_Vpsllvd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpsllvd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32 };
    VPSllQI "vpsllq" [dV uV I8] 0 { VEX_Vpsllq_xmm_xmm_imm8 VEX_Vpsllq_ymm_ymm_imm8 EVEX_Vpsllq_xmm_k1z_xmmm128b64_imm8 EVEX_Vpsllq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8 };
    VPSllVQ "vpsllvq" [dV uV uW] 8 { VEX_Vpsllvq_xmm_xmm_xmmm128 VEX_Vpsllvq_ymm_ymm_ymmm256 EVEX_Vpsllvq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsllvq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsllvq_zmm_k1z_zmm_zmmm512b64 };
    VPSrlDI "vpsrld" [dV uV I8] 0 { VEX_Vpsrld_xmm_xmm_imm8 VEX_Vpsrld_ymm_ymm_imm8 EVEX_Vpsrld_xmm_k1z_xmmm128b32_imm8 EVEX_Vpsrld_ymm_k1z_ymmm256b32_imm8 EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8 };
    VPSrlVD "vpsrlvd" [dV uV uW] 4 { VEX_Vpsrlvd_xmm_xmm_xmmm128 VEX_Vpsrlvd_ymm_ymm_ymmm256 EVEX_Vpsrlvd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpsrlvd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpsrlvd_zmm_k1z_zmm_zmmm512b32 };
    VPSrlQI "vpsrlq" [dV uV I8] 0 { VEX_Vpsrlq_xmm_xmm_imm8 VEX_Vpsrlq_ymm_ymm_imm8 EVEX_Vpsrlq_xmm_k1z_xmmm128b64_imm8 EVEX_Vpsrlq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8 };
    VPSrlVQ "vpsrlvq" [dV uV uW] 8 { VEX_Vpsrlvq_xmm_xmm_xmmm128 VEX_Vpsrlvq_ymm_ymm_ymmm256 EVEX_Vpsrlvq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsrlvq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsrlvq_zmm_k1z_zmm_zmmm512b64 };
    VPSraDI "vpsrad" [dV uV I8] 0 { VEX_Vpsrad_xmm_xmm_imm8 VEX_Vpsrad_ymm_ymm_imm8 EVEX_Vpsrad_xmm_k1z_xmmm128b32_imm8 EVEX_Vpsrad_ymm_k1z_ymmm256b32_imm8 EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8 };
    VPSraVD "vpsravd" [dV uV uW] 4 { VEX_Vpsravd_xmm_xmm_xmmm128 VEX_Vpsravd_ymm_ymm_ymmm256 EVEX_Vpsravd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpsravd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpsravd_zmm_k1z_zmm_zmmm512b32 };
    VPSraQI "vpsraq" [dV uV I8] 0 { _ _ EVEX_Vpsraq_xmm_k1z_xmmm128b64_imm8 EVEX_Vpsraq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpsraq_zmm_k1z_zmmm512b64_imm8 };
    VPSraVQ "vpsravq" [dV uV uW] 8 { _ _ EVEX_Vpsravq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsravq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsravq_zmm_k1z_zmm_zmmm512b64 };
    VCmpPsV "vcmpps" [dV uV uW I8] 0 { VEX_Vcmpps_xmm_xmm_xmmm128_imm8 VEX_Vcmpps_ymm_ymm_ymmm256_imm8 _ _ _ };
    VFpClassPs "vfpclassps" [dK uW I8] 4 { _ _ EVEX_Vfpclassps_kr_k1_xmmm128b32_imm8 EVEX_Vfpclassps_kr_k1_ymmm256b32_imm8 EVEX_Vfpclassps_kr_k1_zmmm512b32_imm8 };
    VCmpPsK "vcmpps" [dK uV uW I8] 4 { _ _ EVEX_Vcmpps_kr_k1_xmm_xmmm128b32_imm8 EVEX_Vcmpps_kr_k1_ymm_ymmm256b32_imm8 EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae };
    VCmpPdV "vcmppd" [dV uV uW I8] 0 { VEX_Vcmppd_xmm_xmm_xmmm128_imm8 VEX_Vcmppd_ymm_ymm_ymmm256_imm8 _ _ _ };
    VCmpPdK "vcmppd" [dK uV uW I8] 8 { _ _ EVEX_Vcmppd_kr_k1_xmm_xmmm128b64_imm8 EVEX_Vcmppd_kr_k1_ymm_ymmm256b64_imm8 EVEX_Vcmppd_kr_k1_zmm_zmmm512b64_imm8_sae };
    VPCmpDK "vpcmpd" [dK uV uW I8] 4 { _ _ EVEX_Vpcmpd_kr_k1_xmm_xmmm128b32_imm8 EVEX_Vpcmpd_kr_k1_ymm_ymmm256b32_imm8 EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8 };
    VPCmpUDK "vpcmpud" [dK uV uW I8] 4 { _ _ EVEX_Vpcmpud_kr_k1_xmm_xmmm128b32_imm8 EVEX_Vpcmpud_kr_k1_ymm_ymmm256b32_imm8 EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8 };
    VPCmpQK "vpcmpq" [dK uV uW I8] 8 { _ _ EVEX_Vpcmpq_kr_k1_xmm_xmmm128b64_imm8 EVEX_Vpcmpq_kr_k1_ymm_ymmm256b64_imm8 EVEX_Vpcmpq_kr_k1_zmm_zmmm512b64_imm8 };
    VPCmpUQK "vpcmpuq" [dK uV uW I8] 8 { _ _ EVEX_Vpcmpuq_kr_k1_xmm_xmmm128b64_imm8 EVEX_Vpcmpuq_kr_k1_ymm_ymmm256b64_imm8 EVEX_Vpcmpuq_kr_k1_zmm_zmmm512b64_imm8 };
    VPCmpBK "vpcmpb" [dK uV uW I8] 0 { _ _ EVEX_Vpcmpb_kr_k1_xmm_xmmm128_imm8 EVEX_Vpcmpb_kr_k1_ymm_ymmm256_imm8 EVEX_Vpcmpb_kr_k1_zmm_zmmm512_imm8 };
    VPCmpUBK "vpcmpub" [dK uV uW I8] 0 { _ _ EVEX_Vpcmpub_kr_k1_xmm_xmmm128_imm8 EVEX_Vpcmpub_kr_k1_ymm_ymmm256_imm8 EVEX_Vpcmpub_kr_k1_zmm_zmmm512_imm8 };
    VPCmpEqBV "vpcmpeqb" [dV uV uW] 0 { VEX_Vpcmpeqb_xmm_xmm_xmmm128 VEX_Vpcmpeqb_ymm_ymm_ymmm256 _ _ _ };
    VPCmpEqDV "vpcmpeqd" [dV uV uW] 0 { VEX_Vpcmpeqd_xmm_xmm_xmmm128 VEX_Vpcmpeqd_ymm_ymm_ymmm256 _ _ _ };
    VPCmpEqQV "vpcmpeqq" [dV uV uW] 0 { VEX_Vpcmpeqq_xmm_xmm_xmmm128 VEX_Vpcmpeqq_ymm_ymm_ymmm256 _ _ _ };
    VPCmpGtBV "vpcmpgtb" [dV uV uW] 0 { VEX_Vpcmpgtb_xmm_xmm_xmmm128 VEX_Vpcmpgtb_ymm_ymm_ymmm256 _ _ _ };
    VPCmpGtDV "vpcmpgtd" [dV uV uW] 0 { VEX_Vpcmpgtd_xmm_xmm_xmmm128 VEX_Vpcmpgtd_ymm_ymm_ymmm256 _ _ _ };
    VPCmpGtQV "vpcmpgtq" [dV uV uW] 0 { VEX_Vpcmpgtq_xmm_xmm_xmmm128 VEX_Vpcmpgtq_ymm_ymm_ymmm256 _ _ _ };
    VPTestMB "vptestmb" [dK uV uW] 0 { _ _ EVEX_Vptestmb_kr_k1_xmm_xmmm128 EVEX_Vptestmb_kr_k1_ymm_ymmm256 EVEX_Vptestmb_kr_k1_zmm_zmmm512 };
    VPTestMD "vptestmd" [dK uV uW] 4 { _ _ EVEX_Vptestmd_kr_k1_xmm_xmmm128b32 EVEX_Vptestmd_kr_k1_ymm_ymmm256b32 EVEX_Vptestmd_kr_k1_zmm_zmmm512b32 };
    VPTestMQ "vptestmq" [dK uV uW] 8 { _ _ EVEX_Vptestmq_kr_k1_xmm_xmmm128b64 EVEX_Vptestmq_kr_k1_ymm_ymmm256b64 EVEX_Vptestmq_kr_k1_zmm_zmmm512b64 };
    VPMovM2B "vpmovm2b" [dV uK] 0 { _ _ EVEX_Vpmovm2b_xmm_kr EVEX_Vpmovm2b_ymm_kr EVEX_Vpmovm2b_zmm_kr };
    VPMovM2D "vpmovm2d" [dV uK] 0 { _ _ EVEX_Vpmovm2d_xmm_kr EVEX_Vpmovm2d_ymm_kr EVEX_Vpmovm2d_zmm_kr };
    VPMovM2Q "vpmovm2q" [dV uK] 0 { _ _ EVEX_Vpmovm2q_xmm_kr EVEX_Vpmovm2q_ymm_kr EVEX_Vpmovm2q_zmm_kr };
    VPMovD2M "vpmovd2m" [dK uV] 0 { _ _ EVEX_Vpmovd2m_kr_xmm EVEX_Vpmovd2m_kr_ymm EVEX_Vpmovd2m_kr_zmm };
    VPMovB2M "vpmovb2m" [dK uV] 0 { _ _ EVEX_Vpmovb2m_kr_xmm EVEX_Vpmovb2m_kr_ymm EVEX_Vpmovb2m_kr_zmm };
    VScaleFPs "vscalefps" [dV uV uW] 4 { _ _ EVEX_Vscalefps_xmm_k1z_xmm_xmmm128b32 EVEX_Vscalefps_ymm_k1z_ymm_ymmm256b32 EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er };
    VRangePs "vrangeps" [dV uV uW I8] 4 { _ _ EVEX_Vrangeps_xmm_k1z_xmm_xmmm128b32_imm8 EVEX_Vrangeps_ymm_k1z_ymm_ymmm256b32_imm8 EVEX_Vrangeps_zmm_k1z_zmm_zmmm512b32_imm8_sae };
    VRangePd "vrangepd" [dV uV uW I8] 8 { _ _ EVEX_Vrangepd_xmm_k1z_xmm_xmmm128b64_imm8 EVEX_Vrangepd_ymm_k1z_ymm_ymmm256b64_imm8 EVEX_Vrangepd_zmm_k1z_zmm_zmmm512b64_imm8_sae };
    VBlendMPs "vblendmps" [dV uV uW] 4 { _ _ EVEX_Vblendmps_xmm_k1z_xmm_xmmm128b32 EVEX_Vblendmps_ymm_k1z_ymm_ymmm256b32 EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32 };
    VBlendMPd "vblendmpd" [dV uV uW] 8 { _ _ EVEX_Vblendmpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vblendmpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vblendmpd_zmm_k1z_zmm_zmmm512b64 };
    VBlendVPs "vblendvps" [dV uV uW uV] 0 { VEX_Vblendvps_xmm_xmm_xmmm128_xmm VEX_Vblendvps_ymm_ymm_ymmm256_ymm _ _ _ };
    VBlendVPd "vblendvpd" [dV uV uW uV] 0 { VEX_Vblendvpd_xmm_xmm_xmmm128_xmm VEX_Vblendvpd_ymm_ymm_ymmm256_ymm _ _ _ };
    VPBlendVB "vpblendvb" [dV uV uW uV] 0 { VEX_Vpblendvb_xmm_xmm_xmmm128_xmm VEX_Vpblendvb_ymm_ymm_ymmm256_ymm _ _ _ };
    VMovUps "vmovups" [dV uW] 0 { VEX_Vmovups_xmm_xmmm128 VEX_Vmovups_ymm_ymmm256 EVEX_Vmovups_xmm_k1z_xmmm128 EVEX_Vmovups_ymm_k1z_ymmm256 EVEX_Vmovups_zmm_k1z_zmmm512 };
    VMovUpsS "vmovups" [uW uV] 0 { VEX_Vmovups_xmmm128_xmm VEX_Vmovups_ymmm256_ymm EVEX_Vmovups_xmmm128_k1z_xmm EVEX_Vmovups_ymmm256_k1z_ymm EVEX_Vmovups_zmmm512_k1z_zmm };
    VMovUpd "vmovupd" [dV uW] 0 { VEX_Vmovupd_xmm_xmmm128 VEX_Vmovupd_ymm_ymmm256 EVEX_Vmovupd_xmm_k1z_xmmm128 EVEX_Vmovupd_ymm_k1z_ymmm256 EVEX_Vmovupd_zmm_k1z_zmmm512 };
    VMovUpdS "vmovupd" [uW uV] 0 { VEX_Vmovupd_xmmm128_xmm VEX_Vmovupd_ymmm256_ymm EVEX_Vmovupd_xmmm128_k1z_xmm EVEX_Vmovupd_ymmm256_k1z_ymm EVEX_Vmovupd_zmmm512_k1z_zmm };
    VMovDqu32 "vmovdqu" [dV uW] 0 { VEX_Vmovdqu_xmm_xmmm128 VEX_Vmovdqu_ymm_ymmm256 EVEX_Vmovdqu32_xmm_k1z_xmmm128 EVEX_Vmovdqu32_ymm_k1z_ymmm256 EVEX_Vmovdqu32_zmm_k1z_zmmm512 };
    VMovDqu32S "vmovdqu" [uW uV] 0 { VEX_Vmovdqu_xmmm128_xmm VEX_Vmovdqu_ymmm256_ymm EVEX_Vmovdqu32_xmmm128_k1z_xmm EVEX_Vmovdqu32_ymmm256_k1z_ymm EVEX_Vmovdqu32_zmmm512_k1z_zmm };
    VMovDqu64 "vmovdqu" [dV uW] 0 { VEX_Vmovdqu_xmm_xmmm128 VEX_Vmovdqu_ymm_ymmm256 EVEX_Vmovdqu64_xmm_k1z_xmmm128 EVEX_Vmovdqu64_ymm_k1z_ymmm256 EVEX_Vmovdqu64_zmm_k1z_zmmm512 };
    VMovDqu64S "vmovdqu" [uW uV] 0 { VEX_Vmovdqu_xmmm128_xmm VEX_Vmovdqu_ymmm256_ymm EVEX_Vmovdqu64_xmmm128_k1z_xmm EVEX_Vmovdqu64_ymmm256_k1z_ymm EVEX_Vmovdqu64_zmmm512_k1z_zmm };
    VMovDqu8 "vmovdqu8" [dV uW] 0 { _ _ EVEX_Vmovdqu8_xmm_k1z_xmmm128 EVEX_Vmovdqu8_ymm_k1z_ymmm256 EVEX_Vmovdqu8_zmm_k1z_zmmm512 };
    VMovDqu8S "vmovdqu8" [uW uV] 0 { _ _ EVEX_Vmovdqu8_xmmm128_k1z_xmm EVEX_Vmovdqu8_ymmm256_k1z_ymm EVEX_Vmovdqu8_zmmm512_k1z_zmm };
    VMovDqu16 "vmovdqu16" [dV uW] 0 { _ _ EVEX_Vmovdqu16_xmm_k1z_xmmm128 EVEX_Vmovdqu16_ymm_k1z_ymmm256 EVEX_Vmovdqu16_zmm_k1z_zmmm512 };
    VMovDqu16S "vmovdqu16" [uW uV] 0 { _ _ EVEX_Vmovdqu16_xmmm128_k1z_xmm EVEX_Vmovdqu16_ymmm256_k1z_ymm EVEX_Vmovdqu16_zmmm512_k1z_zmm };
    VMovNtPs "vmovntps" [uM uV] 0 { VEX_Vmovntps_m128_xmm VEX_Vmovntps_m256_ymm EVEX_Vmovntps_m128_xmm EVEX_Vmovntps_m256_ymm EVEX_Vmovntps_m512_zmm };
    VMaskMovPs "vmaskmovps" [dV uV uM] 0 { VEX_Vmaskmovps_xmm_xmm_m128 VEX_Vmaskmovps_ymm_ymm_m256 _ _ _ };
    VMaskMovPsS "vmaskmovps" [uM uV uV] 0 { VEX_Vmaskmovps_m128_xmm_xmm VEX_Vmaskmovps_m256_ymm_ymm _ _ _ };
    VMaskMovPd "vmaskmovpd" [dV uV uM] 0 { VEX_Vmaskmovpd_xmm_xmm_m128 VEX_Vmaskmovpd_ymm_ymm_m256 _ _ _ };
    VMaskMovPdS "vmaskmovpd" [uM uV uV] 0 { VEX_Vmaskmovpd_m128_xmm_xmm VEX_Vmaskmovpd_m256_ymm_ymm _ _ _ };
    VBroadcastSs "vbroadcastss" [dV uVx] 0 { VEX_Vbroadcastss_xmm_xmm VEX_Vbroadcastss_ymm_xmm EVEX_Vbroadcastss_xmm_k1z_xmmm32 EVEX_Vbroadcastss_ymm_k1z_xmmm32 EVEX_Vbroadcastss_zmm_k1z_xmmm32 };
    VBroadcastSsM "vbroadcastss" [dV uM] 0 { VEX_Vbroadcastss_xmm_m32 VEX_Vbroadcastss_ymm_m32 EVEX_Vbroadcastss_xmm_k1z_xmmm32 EVEX_Vbroadcastss_ymm_k1z_xmmm32 EVEX_Vbroadcastss_zmm_k1z_xmmm32 };
    VBroadcastSd "vbroadcastsd" [dV uVx] 0 { _ VEX_Vbroadcastsd_ymm_xmm _ EVEX_Vbroadcastsd_ymm_k1z_xmmm64 EVEX_Vbroadcastsd_zmm_k1z_xmmm64 };
    VBroadcastSdM "vbroadcastsd" [dV uM] 0 { _ VEX_Vbroadcastsd_ymm_m64 _ EVEX_Vbroadcastsd_ymm_k1z_xmmm64 EVEX_Vbroadcastsd_zmm_k1z_xmmm64 };
    VPBroadcastB "vpbroadcastb" [dV uWq] 0 { VEX_Vpbroadcastb_xmm_xmmm8 VEX_Vpbroadcastb_ymm_xmmm8 EVEX_Vpbroadcastb_xmm_k1z_xmmm8 EVEX_Vpbroadcastb_ymm_k1z_xmmm8 EVEX_Vpbroadcastb_zmm_k1z_xmmm8 };
    VPBroadcastW "vpbroadcastw" [dV uWq] 0 { VEX_Vpbroadcastw_xmm_xmmm16 VEX_Vpbroadcastw_ymm_xmmm16 EVEX_Vpbroadcastw_xmm_k1z_xmmm16 EVEX_Vpbroadcastw_ymm_k1z_xmmm16 EVEX_Vpbroadcastw_zmm_k1z_xmmm16 };
    VPBroadcastD "vpbroadcastd" [dV uWq] 0 { VEX_Vpbroadcastd_xmm_xmmm32 VEX_Vpbroadcastd_ymm_xmmm32 EVEX_Vpbroadcastd_xmm_k1z_xmmm32 EVEX_Vpbroadcastd_ymm_k1z_xmmm32 EVEX_Vpbroadcastd_zmm_k1z_xmmm32 };
    VPBroadcastQ "vpbroadcastq" [dV uWq] 0 { VEX_Vpbroadcastq_xmm_xmmm64 VEX_Vpbroadcastq_ymm_xmmm64 EVEX_Vpbroadcastq_xmm_k1z_xmmm64 EVEX_Vpbroadcastq_ymm_k1z_xmmm64 EVEX_Vpbroadcastq_zmm_k1z_xmmm64 };
    VPBroadcastBG "vpbroadcastb" [dV uG4] 0 { _ _ EVEX_Vpbroadcastb_xmm_k1z_r32 EVEX_Vpbroadcastb_ymm_k1z_r32 EVEX_Vpbroadcastb_zmm_k1z_r32 };
    VPBroadcastWG "vpbroadcastw" [dV uG4] 0 { _ _ EVEX_Vpbroadcastw_xmm_k1z_r32 EVEX_Vpbroadcastw_ymm_k1z_r32 EVEX_Vpbroadcastw_zmm_k1z_r32 };
    VPBroadcastDG "vpbroadcastd" [dV uG4] 0 { _ _ EVEX_Vpbroadcastd_xmm_k1z_r32 EVEX_Vpbroadcastd_ymm_k1z_r32 EVEX_Vpbroadcastd_zmm_k1z_r32 };
    VPBroadcastQG "vpbroadcastq" [dV uG8] 0 { _ _ EVEX_Vpbroadcastq_xmm_k1z_r64 EVEX_Vpbroadcastq_ymm_k1z_r64 EVEX_Vpbroadcastq_zmm_k1z_r64 };
    VGatherDPsV "vgatherdps" [mV uX mV] 0 { VEX_Vgatherdps_xmm_vm32x_xmm VEX_Vgatherdps_ymm_vm32y_ymm _ _ _ };
    VGatherDPsK "vgatherdps" [mV uX] 0 { _ _ EVEX_Vgatherdps_xmm_k1_vm32x EVEX_Vgatherdps_ymm_k1_vm32y EVEX_Vgatherdps_zmm_k1_vm32z };
    VGatherQPsV "vgatherqps" [mVh uX mVh] 0 { VEX_Vgatherqps_xmm_vm64x_xmm VEX_Vgatherqps_xmm_vm64y_xmm _ _ _ };
    VGatherQPsK "vgatherqps" [mVh uX] 0 { _ _ EVEX_Vgatherqps_xmm_k1_vm64x EVEX_Vgatherqps_xmm_k1_vm64y EVEX_Vgatherqps_ymm_k1_vm64z };
    VGatherDPdV "vgatherdpd" [mV uXh mV] 0 { VEX_Vgatherdpd_xmm_vm32x_xmm VEX_Vgatherdpd_ymm_vm32x_ymm _ _ _ };
    VGatherDPdK "vgatherdpd" [mV uXh] 0 { _ _ EVEX_Vgatherdpd_xmm_k1_vm32x EVEX_Vgatherdpd_ymm_k1_vm32x EVEX_Vgatherdpd_zmm_k1_vm32y };
    VGatherQPdV "vgatherqpd" [mV uX mV] 0 { VEX_Vgatherqpd_xmm_vm64x_xmm VEX_Vgatherqpd_ymm_vm64y_ymm _ _ _ };
    VGatherQPdK "vgatherqpd" [mV uX] 0 { _ _ EVEX_Vgatherqpd_xmm_k1_vm64x EVEX_Vgatherqpd_ymm_k1_vm64y EVEX_Vgatherqpd_zmm_k1_vm64z };
    VPGatherDDV "vpgatherdd" [mV uX mV] 0 { VEX_Vpgatherdd_xmm_vm32x_xmm VEX_Vpgatherdd_ymm_vm32y_ymm _ _ _ };
    VPGatherDDK "vpgatherdd" [mV uX] 0 { _ _ EVEX_Vpgatherdd_xmm_k1_vm32x EVEX_Vpgatherdd_ymm_k1_vm32y EVEX_Vpgatherdd_zmm_k1_vm32z };
    VPGatherQDV "vpgatherqd" [mVh uX mVh] 0 { VEX_Vpgatherqd_xmm_vm64x_xmm VEX_Vpgatherqd_xmm_vm64y_xmm _ _ _ };
    VPGatherQDK "vpgatherqd" [mVh uX] 0 { _ _ EVEX_Vpgatherqd_xmm_k1_vm64x EVEX_Vpgatherqd_xmm_k1_vm64y EVEX_Vpgatherqd_ymm_k1_vm64z };
    VPGatherDQV "vpgatherdq" [mV uXh mV] 0 { VEX_Vpgatherdq_xmm_vm32x_xmm VEX_Vpgatherdq_ymm_vm32x_ymm _ _ _ };
    VPGatherDQK "vpgatherdq" [mV uXh] 0 { _ _ EVEX_Vpgatherdq_xmm_k1_vm32x EVEX_Vpgatherdq_ymm_k1_vm32x EVEX_Vpgatherdq_zmm_k1_vm32y };
    VPGatherQQV "vpgatherqq" [mV uX mV] 0 { VEX_Vpgatherqq_xmm_vm64x_xmm VEX_Vpgatherqq_ymm_vm64y_ymm _ _ _ };
    VPGatherQQK "vpgatherqq" [mV uX] 0 { _ _ EVEX_Vpgatherqq_xmm_k1_vm64x EVEX_Vpgatherqq_ymm_k1_vm64y EVEX_Vpgatherqq_zmm_k1_vm64z };
    VPScatterDD "vpscatterdd" [uX uV] 0 { _ _ EVEX_Vpscatterdd_vm32x_k1_xmm EVEX_Vpscatterdd_vm32y_k1_ymm EVEX_Vpscatterdd_vm32z_k1_zmm };
    VPScatterQD "vpscatterqd" [uX uVh] 0 { _ _ EVEX_Vpscatterqd_vm64x_k1_xmm EVEX_Vpscatterqd_vm64y_k1_xmm EVEX_Vpscatterqd_vm64z_k1_ymm };
    VPScatterDQ "vpscatterdq" [uXh uV] 0 { _ _ EVEX_Vpscatterdq_vm32x_k1_xmm EVEX_Vpscatterdq_vm32x_k1_ymm EVEX_Vpscatterdq_vm32y_k1_zmm };
    VPScatterQQ "vpscatterqq" [uX uV] 0 { _ _ EVEX_Vpscatterqq_vm64x_k1_xmm EVEX_Vpscatterqq_vm64y_k1_ymm EVEX_Vpscatterqq_vm64z_k1_zmm };
    VPMovZxBD "vpmovzxbd" [dV uWq] 0 { VEX_Vpmovzxbd_xmm_xmmm32 VEX_Vpmovzxbd_ymm_xmmm64 EVEX_Vpmovzxbd_xmm_k1z_xmmm32 EVEX_Vpmovzxbd_ymm_k1z_xmmm64 EVEX_Vpmovzxbd_zmm_k1z_xmmm128 };
    VPMovZxWD "vpmovzxwd" [dV uWh] 0 { VEX_Vpmovzxwd_xmm_xmmm64 VEX_Vpmovzxwd_ymm_xmmm128 EVEX_Vpmovzxwd_xmm_k1z_xmmm64 EVEX_Vpmovzxwd_ymm_k1z_xmmm128 EVEX_Vpmovzxwd_zmm_k1z_ymmm256 };
    VPMovZxBQ "vpmovzxbq" [dV uWq] 0 { VEX_Vpmovzxbq_xmm_xmmm16 VEX_Vpmovzxbq_ymm_xmmm32 EVEX_Vpmovzxbq_xmm_k1z_xmmm16 EVEX_Vpmovzxbq_ymm_k1z_xmmm32 EVEX_Vpmovzxbq_zmm_k1z_xmmm64 };
    VPMovZxWQ "vpmovzxwq" [dV uWq] 0 { VEX_Vpmovzxwq_xmm_xmmm32 VEX_Vpmovzxwq_ymm_xmmm64 EVEX_Vpmovzxwq_xmm_k1z_xmmm32 EVEX_Vpmovzxwq_ymm_k1z_xmmm64 EVEX_Vpmovzxwq_zmm_k1z_xmmm128 };
    VPMovZxDQ "vpmovzxdq" [dV uWh] 0 { VEX_Vpmovzxdq_xmm_xmmm64 VEX_Vpmovzxdq_ymm_xmmm128 EVEX_Vpmovzxdq_xmm_k1z_xmmm64 EVEX_Vpmovzxdq_ymm_k1z_xmmm128 EVEX_Vpmovzxdq_zmm_k1z_ymmm256 };
    VPMovZxBW "vpmovzxbw" [dV uWh] 0 { VEX_Vpmovzxbw_xmm_xmmm64 VEX_Vpmovzxbw_ymm_xmmm128 EVEX_Vpmovzxbw_xmm_k1z_xmmm64 EVEX_Vpmovzxbw_ymm_k1z_xmmm128 EVEX_Vpmovzxbw_zmm_k1z_ymmm256 };
    VPMovSxBD "vpmovsxbd" [dV uWq] 0 { VEX_Vpmovsxbd_xmm_xmmm32 VEX_Vpmovsxbd_ymm_xmmm64 EVEX_Vpmovsxbd_xmm_k1z_xmmm32 EVEX_Vpmovsxbd_ymm_k1z_xmmm64 EVEX_Vpmovsxbd_zmm_k1z_xmmm128 };
    VPMovSxWD "vpmovsxwd" [dV uWh] 0 { VEX_Vpmovsxwd_xmm_xmmm64 VEX_Vpmovsxwd_ymm_xmmm128 EVEX_Vpmovsxwd_xmm_k1z_xmmm64 EVEX_Vpmovsxwd_ymm_k1z_xmmm128 EVEX_Vpmovsxwd_zmm_k1z_ymmm256 };
    VPMovSxBQ "vpmovsxbq" [dV uWq] 0 { VEX_Vpmovsxbq_xmm_xmmm16 VEX_Vpmovsxbq_ymm_xmmm32 EVEX_Vpmovsxbq_xmm_k1z_xmmm16 EVEX_Vpmovsxbq_ymm_k1z_xmmm32 EVEX_Vpmovsxbq_zmm_k1z_xmmm64 };
    VPMovSxWQ "vpmovsxwq" [dV uWq] 0 { VEX_Vpmovsxwq_xmm_xmmm32 VEX_Vpmovsxwq_ymm_xmmm64 EVEX_Vpmovsxwq_xmm_k1z_xmmm32 EVEX_Vpmovsxwq_ymm_k1z_xmmm64 EVEX_Vpmovsxwq_zmm_k1z_xmmm128 };
    VPMovSxDQ "vpmovsxdq" [dV uWh] 0 { VEX_Vpmovsxdq_xmm_xmmm64 VEX_Vpmovsxdq_ymm_xmmm128 EVEX_Vpmovsxdq_xmm_k1z_xmmm64 EVEX_Vpmovsxdq_ymm_k1z_xmmm128 EVEX_Vpmovsxdq_zmm_k1z_ymmm256 };
    VPMovSxBW "vpmovsxbw" [dV uWh] 0 { VEX_Vpmovsxbw_xmm_xmmm64 VEX_Vpmovsxbw_ymm_xmmm128 EVEX_Vpmovsxbw_xmm_k1z_xmmm64 EVEX_Vpmovsxbw_ymm_k1z_xmmm128 EVEX_Vpmovsxbw_zmm_k1z_ymmm256 };
    VPMovDB "vpmovdb" [dWq uV] 0 { _ _ EVEX_Vpmovdb_xmmm32_k1z_xmm EVEX_Vpmovdb_xmmm64_k1z_ymm EVEX_Vpmovdb_xmmm128_k1z_zmm };
    VPMovDW "vpmovdw" [dWh uV] 0 { _ _ EVEX_Vpmovdw_xmmm64_k1z_xmm EVEX_Vpmovdw_xmmm128_k1z_ymm EVEX_Vpmovdw_ymmm256_k1z_zmm };
    VPMovQD "vpmovqd" [dWh uV] 0 { _ _ EVEX_Vpmovqd_xmmm64_k1z_xmm EVEX_Vpmovqd_xmmm128_k1z_ymm EVEX_Vpmovqd_ymmm256_k1z_zmm };
    VPMovQB "vpmovqb" [dWq uV] 0 { _ _ EVEX_Vpmovqb_xmmm16_k1z_xmm EVEX_Vpmovqb_xmmm32_k1z_ymm EVEX_Vpmovqb_xmmm64_k1z_zmm };
    VPMovQW "vpmovqw" [dWq uV] 0 { _ _ EVEX_Vpmovqw_xmmm32_k1z_xmm EVEX_Vpmovqw_xmmm64_k1z_ymm EVEX_Vpmovqw_xmmm128_k1z_zmm };
    VPMovWB "vpmovwb" [dWh uV] 0 { _ _ EVEX_Vpmovwb_xmmm64_k1z_xmm EVEX_Vpmovwb_xmmm128_k1z_ymm EVEX_Vpmovwb_ymmm256_k1z_zmm };
    VPMovDBS "vpmovdb" [uWq uV] 0 { _ _ EVEX_Vpmovdb_xmmm32_k1z_xmm EVEX_Vpmovdb_xmmm64_k1z_ymm EVEX_Vpmovdb_xmmm128_k1z_zmm };
    VPMovDWS "vpmovdw" [uWh uV] 0 { _ _ EVEX_Vpmovdw_xmmm64_k1z_xmm EVEX_Vpmovdw_xmmm128_k1z_ymm EVEX_Vpmovdw_ymmm256_k1z_zmm };
    VPMovQDS "vpmovqd" [uWh uV] 0 { _ _ EVEX_Vpmovqd_xmmm64_k1z_xmm EVEX_Vpmovqd_xmmm128_k1z_ymm EVEX_Vpmovqd_ymmm256_k1z_zmm };
    VCvtPh2Ps "vcvtph2ps" [dV uWh] 0 { VEX_Vcvtph2ps_xmm_xmmm64 VEX_Vcvtph2ps_ymm_xmmm128 EVEX_Vcvtph2ps_xmm_k1z_xmmm64 EVEX_Vcvtph2ps_ymm_k1z_xmmm128 EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae };
    VCvtPs2Ph "vcvtps2ph" [dWh uV I8] 0 { VEX_Vcvtps2ph_xmmm64_xmm_imm8 VEX_Vcvtps2ph_xmmm128_ymm_imm8 EVEX_Vcvtps2ph_xmmm64_k1z_xmm_imm8 EVEX_Vcvtps2ph_xmmm128_k1z_ymm_imm8 EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae };
    VCvtPs2PhS "vcvtps2ph" [uWh uV I8] 0 { VEX_Vcvtps2ph_xmmm64_xmm_imm8 VEX_Vcvtps2ph_xmmm128_ymm_imm8 EVEX_Vcvtps2ph_xmmm64_k1z_xmm_imm8 EVEX_Vcvtps2ph_xmmm128_k1z_ymm_imm8 EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae };
    VCvtNePs2Bf16 "vcvtneps2bf16" [dVh uW] 4 { _ _ EVEX_Vcvtneps2bf16_xmm_k1z_xmmm128b32 EVEX_Vcvtneps2bf16_xmm_k1z_ymmm256b32 EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32 };
    VCvtDq2Ps "vcvtdq2ps" [dV uW] 4 { VEX_Vcvtdq2ps_xmm_xmmm128 VEX_Vcvtdq2ps_ymm_ymmm256 EVEX_Vcvtdq2ps_xmm_k1z_xmmm128b32 EVEX_Vcvtdq2ps_ymm_k1z_ymmm256b32 EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er };
    VCvttPs2Dq "vcvttps2dq" [dV uW] 4 { VEX_Vcvttps2dq_xmm_xmmm128 VEX_Vcvttps2dq_ymm_ymmm256 EVEX_Vcvttps2dq_xmm_k1z_xmmm128b32 EVEX_Vcvttps2dq_ymm_k1z_ymmm256b32 EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae };
    VCvtPs2Dq "vcvtps2dq" [dV uW] 4 { VEX_Vcvtps2dq_xmm_xmmm128 VEX_Vcvtps2dq_ymm_ymmm256 EVEX_Vcvtps2dq_xmm_k1z_xmmm128b32 EVEX_Vcvtps2dq_ymm_k1z_ymmm256b32 EVEX_Vcvtps2dq_zmm_k1z_zmmm512b32_er };
    VCvtUdq2Ps "vcvtudq2ps" [dV uW] 4 { _ _ EVEX_Vcvtudq2ps_xmm_k1z_xmmm128b32 EVEX_Vcvtudq2ps_ymm_k1z_ymmm256b32 EVEX_Vcvtudq2ps_zmm_k1z_zmmm512b32_er };
    VCvttPs2Udq "vcvttps2udq" [dV uW] 4 { _ _ EVEX_Vcvttps2udq_xmm_k1z_xmmm128b32 EVEX_Vcvttps2udq_ymm_k1z_ymmm256b32 EVEX_Vcvttps2udq_zmm_k1z_zmmm512b32_sae };
    VCvtPs2Pd "vcvtps2pd" [dV uWh] 4 { VEX_Vcvtps2pd_xmm_xmmm64 VEX_Vcvtps2pd_ymm_xmmm128 EVEX_Vcvtps2pd_xmm_k1z_xmmm64b32 EVEX_Vcvtps2pd_ymm_k1z_xmmm128b32 EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae };
    VCvtPd2Ps "vcvtpd2ps" [dVh uW] 8 { VEX_Vcvtpd2ps_xmm_xmmm128 VEX_Vcvtpd2ps_xmm_ymmm256 EVEX_Vcvtpd2ps_xmm_k1z_xmmm128b64 EVEX_Vcvtpd2ps_xmm_k1z_ymmm256b64 EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er };
    VCvtDq2Pd "vcvtdq2pd" [dV uWh] 4 { VEX_Vcvtdq2pd_xmm_xmmm64 VEX_Vcvtdq2pd_ymm_xmmm128 EVEX_Vcvtdq2pd_xmm_k1z_xmmm64b32 EVEX_Vcvtdq2pd_ymm_k1z_xmmm128b32 EVEX_Vcvtdq2pd_zmm_k1z_ymmm256b32_er };
    VCvttPd2Dq "vcvttpd2dq" [dVh uW] 8 { VEX_Vcvttpd2dq_xmm_xmmm128 VEX_Vcvttpd2dq_xmm_ymmm256 EVEX_Vcvttpd2dq_xmm_k1z_xmmm128b64 EVEX_Vcvttpd2dq_xmm_k1z_ymmm256b64 EVEX_Vcvttpd2dq_ymm_k1z_zmmm512b64_sae };
    VCvtQq2Pd "vcvtqq2pd" [dV uW] 8 { _ _ EVEX_Vcvtqq2pd_xmm_k1z_xmmm128b64 EVEX_Vcvtqq2pd_ymm_k1z_ymmm256b64 EVEX_Vcvtqq2pd_zmm_k1z_zmmm512b64_er };
    VCvtUqq2Pd "vcvtuqq2pd" [dV uW] 8 { _ _ EVEX_Vcvtuqq2pd_xmm_k1z_xmmm128b64 EVEX_Vcvtuqq2pd_ymm_k1z_ymmm256b64 EVEX_Vcvtuqq2pd_zmm_k1z_zmmm512b64_er };
    VCvttPd2Qq "vcvttpd2qq" [dV uW] 8 { _ _ EVEX_Vcvttpd2qq_xmm_k1z_xmmm128b64 EVEX_Vcvttpd2qq_ymm_k1z_ymmm256b64 EVEX_Vcvttpd2qq_zmm_k1z_zmmm512b64_sae };
    VCvttPd2Uqq "vcvttpd2uqq" [dV uW] 8 { _ _ EVEX_Vcvttpd2uqq_xmm_k1z_xmmm128b64 EVEX_Vcvttpd2uqq_ymm_k1z_ymmm256b64 EVEX_Vcvttpd2uqq_zmm_k1z_zmmm512b64_sae };
    VCvtQq2Ps "vcvtqq2ps" [dVh uW] 8 { _ _ EVEX_Vcvtqq2ps_xmm_k1z_xmmm128b64 EVEX_Vcvtqq2ps_xmm_k1z_ymmm256b64 EVEX_Vcvtqq2ps_ymm_k1z_zmmm512b64_er };
    VCvtUqq2Ps "vcvtuqq2ps" [dVh uW] 8 { _ _ EVEX_Vcvtuqq2ps_xmm_k1z_xmmm128b64 EVEX_Vcvtuqq2ps_xmm_k1z_ymmm256b64 EVEX_Vcvtuqq2ps_ymm_k1z_zmmm512b64_er };
    VCvttPs2Qq "vcvttps2qq" [dV uWh] 4 { _ _ EVEX_Vcvttps2qq_xmm_k1z_xmmm64b32 EVEX_Vcvttps2qq_ymm_k1z_xmmm128b32 EVEX_Vcvttps2qq_zmm_k1z_ymmm256b32_sae };
    VCvttPs2Uqq "vcvttps2uqq" [dV uWh] 4 { _ _ EVEX_Vcvttps2uqq_xmm_k1z_xmmm64b32 EVEX_Vcvttps2uqq_ymm_k1z_xmmm128b32 EVEX_Vcvttps2uqq_zmm_k1z_ymmm256b32_sae };
    VCvtUdq2Pd "vcvtudq2pd" [dV uWh] 4 { _ _ EVEX_Vcvtudq2pd_xmm_k1z_xmmm64b32 EVEX_Vcvtudq2pd_ymm_k1z_xmmm128b32 EVEX_Vcvtudq2pd_zmm_k1z_ymmm256b32_er };
    VCvttPd2Udq "vcvttpd2udq" [dVh uW] 8 { _ _ EVEX_Vcvttpd2udq_xmm_k1z_xmmm128b64 EVEX_Vcvttpd2udq_xmm_k1z_ymmm256b64 EVEX_Vcvttpd2udq_ymm_k1z_zmmm512b64_sae };
    VRoundPs "vroundps" [dV uW I8] 0 { VEX_Vroundps_xmm_xmmm128_imm8 VEX_Vroundps_ymm_ymmm256_imm8 _ _ _ };
    VRndScalePs "vrndscaleps" [dV uW I8] 4 { _ _ EVEX_Vrndscaleps_xmm_k1z_xmmm128b32_imm8 EVEX_Vrndscaleps_ymm_k1z_ymmm256b32_imm8 EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae };
    VReducePs "vreduceps" [dV uW I8] 4 { _ _ EVEX_Vreduceps_xmm_k1z_xmmm128b32_imm8 EVEX_Vreduceps_ymm_k1z_ymmm256b32_imm8 EVEX_Vreduceps_zmm_k1z_zmmm512b32_imm8_sae };
    VScalefPs "vscalefps" [dV uV uW] 4 { _ _ EVEX_Vscalefps_xmm_k1z_xmm_xmmm128b32 EVEX_Vscalefps_ymm_k1z_ymm_ymmm256b32 EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er };
    VRoundPd "vroundpd" [dV uW I8] 0 { VEX_Vroundpd_xmm_xmmm128_imm8 VEX_Vroundpd_ymm_ymmm256_imm8 _ _ _ };
    VRndScalePd "vrndscalepd" [dV uW I8] 8 { _ _ EVEX_Vrndscalepd_xmm_k1z_xmmm128b64_imm8 EVEX_Vrndscalepd_ymm_k1z_ymmm256b64_imm8 EVEX_Vrndscalepd_zmm_k1z_zmmm512b64_imm8_sae };
    VShufPs "vshufps" [dV uV uW I8] 4 { VEX_Vshufps_xmm_xmm_xmmm128_imm8 VEX_Vshufps_ymm_ymm_ymmm256_imm8 EVEX_Vshufps_xmm_k1z_xmm_xmmm128b32_imm8 EVEX_Vshufps_ymm_k1z_ymm_ymmm256b32_imm8 EVEX_Vshufps_zmm_k1z_zmm_zmmm512b32_imm8 };
    VShufPd "vshufpd" [dV uV uW I8] 8 { VEX_Vshufpd_xmm_xmm_xmmm128_imm8 VEX_Vshufpd_ymm_ymm_ymmm256_imm8 EVEX_Vshufpd_xmm_k1z_xmm_xmmm128b64_imm8 EVEX_Vshufpd_ymm_k1z_ymm_ymmm256b64_imm8 EVEX_Vshufpd_zmm_k1z_zmm_zmmm512b64_imm8 };
    VPShufD "vpshufd" [dV uW I8] 4 { VEX_Vpshufd_xmm_xmmm128_imm8 VEX_Vpshufd_ymm_ymmm256_imm8 EVEX_Vpshufd_xmm_k1z_xmmm128b32_imm8 EVEX_Vpshufd_ymm_k1z_ymmm256b32_imm8 EVEX_Vpshufd_zmm_k1z_zmmm512b32_imm8 };
    VPermilPs "vpermilps" [dV uW I8] 4 { VEX_Vpermilps_xmm_xmmm128_imm8 VEX_Vpermilps_ymm_ymmm256_imm8 EVEX_Vpermilps_xmm_k1z_xmmm128b32_imm8 EVEX_Vpermilps_ymm_k1z_ymmm256b32_imm8 EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8 };
    VPermilPd "vpermilpd" [dV uW I8] 8 { VEX_Vpermilpd_xmm_xmmm128_imm8 VEX_Vpermilpd_ymm_ymmm256_imm8 EVEX_Vpermilpd_xmm_k1z_xmmm128b64_imm8 EVEX_Vpermilpd_ymm_k1z_ymmm256b64_imm8 EVEX_Vpermilpd_zmm_k1z_zmmm512b64_imm8 };
    VPermQ "vpermq" [dV uW I8] 8 { _ VEX_Vpermq_ymm_ymmm256_imm8 _ EVEX_Vpermq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpermq_zmm_k1z_zmmm512b64_imm8 };
    VPermD "vpermd" [dV uV uW] 4 { _ VEX_Vpermd_ymm_ymm_ymmm256 _ EVEX_Vpermd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpermd_zmm_k1z_zmm_zmmm512b32 };
    VPermW "vpermw" [dV uV uW] 0 { _ _ EVEX_Vpermw_xmm_k1z_xmm_xmmm128 EVEX_Vpermw_ymm_k1z_ymm_ymmm256 EVEX_Vpermw_zmm_k1z_zmm_zmmm512 };
    VPermI2D "vpermi2d" [mV uV uW] 4 { _ _ EVEX_Vpermi2d_xmm_k1z_xmm_xmmm128b32 EVEX_Vpermi2d_ymm_k1z_ymm_ymmm256b32 EVEX_Vpermi2d_zmm_k1z_zmm_zmmm512b32 };
    VPermT2D "vpermt2d" [mV uV uW] 4 { _ _ EVEX_Vpermt2d_xmm_k1z_xmm_xmmm128b32 EVEX_Vpermt2d_ymm_k1z_ymm_ymmm256b32 EVEX_Vpermt2d_zmm_k1z_zmm_zmmm512b32 };
    VPermI2W "vpermi2w" [mV uV uW] 0 { _ _ EVEX_Vpermi2w_xmm_k1z_xmm_xmmm128 EVEX_Vpermi2w_ymm_k1z_ymm_ymmm256 EVEX_Vpermi2w_zmm_k1z_zmm_zmmm512 };
    VPShufB "vpshufb" [dV uV uW] 0 { VEX_Vpshufb_xmm_xmm_xmmm128 VEX_Vpshufb_ymm_ymm_ymmm256 EVEX_Vpshufb_xmm_k1z_xmm_xmmm128 EVEX_Vpshufb_ymm_k1z_ymm_ymmm256 EVEX_Vpshufb_zmm_k1z_zmm_zmmm512 };
    VPerm2F128 "vperm2f128" [dV uV uW I8] 0 { _ VEX_Vperm2f128_ymm_ymm_ymmm256_imm8 _ _ _ };
    VShufF32x4 "vshuff32x4" [dV uV uW I8] 4 { _ _ _ EVEX_Vshuff32x4_ymm_k1z_ymm_ymmm256b32_imm8 EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8 };
    VShufI32x4 "vshufi32x4" [dV uV uW I8] 4 { _ _ _ EVEX_Vshufi32x4_ymm_k1z_ymm_ymmm256b32_imm8 EVEX_Vshufi32x4_zmm_k1z_zmm_zmmm512b32_imm8 };
    VUnpcklPs "vunpcklps" [dV uV uW] 4 { VEX_Vunpcklps_xmm_xmm_xmmm128 VEX_Vunpcklps_ymm_ymm_ymmm256 EVEX_Vunpcklps_xmm_k1z_xmm_xmmm128b32 EVEX_Vunpcklps_ymm_k1z_ymm_ymmm256b32 EVEX_Vunpcklps_zmm_k1z_zmm_zmmm512b32 };
    VUnpckhPs "vunpckhps" [dV uV uW] 4 { VEX_Vunpckhps_xmm_xmm_xmmm128 VEX_Vunpckhps_ymm_ymm_ymmm256 EVEX_Vunpckhps_xmm_k1z_xmm_xmmm128b32 EVEX_Vunpckhps_ymm_k1z_ymm_ymmm256b32 EVEX_Vunpckhps_zmm_k1z_zmm_zmmm512b32 };
    VUnpcklPd "vunpcklpd" [dV uV uW] 8 { VEX_Vunpcklpd_xmm_xmm_xmmm128 VEX_Vunpcklpd_ymm_ymm_ymmm256 EVEX_Vunpcklpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vunpcklpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vunpcklpd_zmm_k1z_zmm_zmmm512b64 };
    VUnpckhPd "vunpckhpd" [dV uV uW] 8 { VEX_Vunpckhpd_xmm_xmm_xmmm128 VEX_Vunpckhpd_ymm_ymm_ymmm256 EVEX_Vunpckhpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vunpckhpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vunpckhpd_zmm_k1z_zmm_zmmm512b64 };
    VPUnpcklbw "vpunpcklbw" [dV uV uW] 0 { VEX_Vpunpcklbw_xmm_xmm_xmmm128 VEX_Vpunpcklbw_ymm_ymm_ymmm256 EVEX_Vpunpcklbw_xmm_k1z_xmm_xmmm128 EVEX_Vpunpcklbw_ymm_k1z_ymm_ymmm256 EVEX_Vpunpcklbw_zmm_k1z_zmm_zmmm512 };
    VPUnpckhbw "vpunpckhbw" [dV uV uW] 0 { VEX_Vpunpckhbw_xmm_xmm_xmmm128 VEX_Vpunpckhbw_ymm_ymm_ymmm256 EVEX_Vpunpckhbw_xmm_k1z_xmm_xmmm128 EVEX_Vpunpckhbw_ymm_k1z_ymm_ymmm256 EVEX_Vpunpckhbw_zmm_k1z_zmm_zmmm512 };
    VPUnpcklwd "vpunpcklwd" [dV uV uW] 0 { VEX_Vpunpcklwd_xmm_xmm_xmmm128 VEX_Vpunpcklwd_ymm_ymm_ymmm256 EVEX_Vpunpcklwd_xmm_k1z_xmm_xmmm128 EVEX_Vpunpcklwd_ymm_k1z_ymm_ymmm256 EVEX_Vpunpcklwd_zmm_k1z_zmm_zmmm512 };
    VPUnpckhwd "vpunpckhwd" [dV uV uW] 0 { VEX_Vpunpckhwd_xmm_xmm_xmmm128 VEX_Vpunpckhwd_ymm_ymm_ymmm256 EVEX_Vpunpckhwd_xmm_k1z_xmm_xmmm128 EVEX_Vpunpckhwd_ymm_k1z_ymm_ymmm256 EVEX_Vpunpckhwd_zmm_k1z_zmm_zmmm512 };
    VPUnpckldq "vpunpckldq" [dV uV uW] 4 { VEX_Vpunpckldq_xmm_xmm_xmmm128 VEX_Vpunpckldq_ymm_ymm_ymmm256 EVEX_Vpunpckldq_xmm_k1z_xmm_xmmm128b32 EVEX_Vpunpckldq_ymm_k1z_ymm_ymmm256b32 EVEX_Vpunpckldq_zmm_k1z_zmm_zmmm512b32 };
    VPUnpckhdq "vpunpckhdq" [dV uV uW] 4 { VEX_Vpunpckhdq_xmm_xmm_xmmm128 VEX_Vpunpckhdq_ymm_ymm_ymmm256 EVEX_Vpunpckhdq_xmm_k1z_xmm_xmmm128b32 EVEX_Vpunpckhdq_ymm_k1z_ymm_ymmm256b32 EVEX_Vpunpckhdq_zmm_k1z_zmm_zmmm512b32 };
    VPUnpcklqdq "vpunpcklqdq" [dV uV uW] 8 { VEX_Vpunpcklqdq_xmm_xmm_xmmm128 VEX_Vpunpcklqdq_ymm_ymm_ymmm256 EVEX_Vpunpcklqdq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpunpcklqdq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpunpcklqdq_zmm_k1z_zmm_zmmm512b64 };
    VPUnpckhqdq "vpunpckhqdq" [dV uV uW] 8 { VEX_Vpunpckhqdq_xmm_xmm_xmmm128 VEX_Vpunpckhqdq_ymm_ymm_ymmm256 EVEX_Vpunpckhqdq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpunpckhqdq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpunpckhqdq_zmm_k1z_zmm_zmmm512b64 };
    VPPackSsDw "vpackssdw" [dV uV uW] 4 { VEX_Vpackssdw_xmm_xmm_xmmm128 VEX_Vpackssdw_ymm_ymm_ymmm256 EVEX_Vpackssdw_xmm_k1z_xmm_xmmm128b32 EVEX_Vpackssdw_ymm_k1z_ymm_ymmm256b32 EVEX_Vpackssdw_zmm_k1z_zmm_zmmm512b32 };
    VPPackUsDw "vpackusdw" [dV uV uW] 4 { VEX_Vpackusdw_xmm_xmm_xmmm128 VEX_Vpackusdw_ymm_ymm_ymmm256 EVEX_Vpackusdw_xmm_k1z_xmm_xmmm128b32 EVEX_Vpackusdw_ymm_k1z_ymm_ymmm256b32 EVEX_Vpackusdw_zmm_k1z_zmm_zmmm512b32 };
    VPPackSsWb "vpacksswb" [dV uV uW] 0 { VEX_Vpacksswb_xmm_xmm_xmmm128 VEX_Vpacksswb_ymm_ymm_ymmm256 EVEX_Vpacksswb_xmm_k1z_xmm_xmmm128 EVEX_Vpacksswb_ymm_k1z_ymm_ymmm256 EVEX_Vpacksswb_zmm_k1z_zmm_zmmm512 };
    VPPackUsWb "vpackuswb" [dV uV uW] 0 { VEX_Vpackuswb_xmm_xmm_xmmm128 VEX_Vpackuswb_ymm_ymm_ymmm256 EVEX_Vpackuswb_xmm_k1z_xmm_xmmm128 EVEX_Vpackuswb_ymm_k1z_ymm_ymmm256 EVEX_Vpackuswb_zmm_k1z_zmm_zmmm512 };
    VExtractF128 "vextractf128" [dWx uV I8] 0 { _ VEX_Vextractf128_xmmm128_ymm_imm8 _ EVEX_Vextractf32x4_xmmm128_k1z_ymm_imm8 EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8 };
    VExtractF32x8 "vextractf32x8" [dWh uV I8] 0 { _ _ _ _ EVEX_Vextractf32x8_ymmm256_k1z_zmm_imm8 };
    VInsertF128 "vinsertf128" [dV uV uWx I8] 0 { _ VEX_Vinsertf128_ymm_ymm_xmmm128_imm8 _ EVEX_Vinsertf32x4_ymm_k1z_ymm_xmmm128_imm8 EVEX_Vinsertf32x4_zmm_k1z_zmm_xmmm128_imm8 };
    VInsertF32x8 "vinsertf32x8" [dV uV uWh I8] 0 { _ _ _ _ EVEX_Vinsertf32x8_zmm_k1z_zmm_ymmm256_imm8 };
    VPDpBusd "vpdpbusd" [mV uV uW] 4 { _ _ EVEX_Vpdpbusd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpdpbusd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpdpbusd_zmm_k1z_zmm_zmmm512b32 };
    VPDpBusdY "vpdpbusd" [mV uV uW] 0 { VEX_Vpdpbusd_xmm_xmm_xmmm128 VEX_Vpdpbusd_ymm_ymm_ymmm256 _ _ _ };
    VDpBf16Ps "vdpbf16ps" [mV uV uW] 4 { _ _ EVEX_Vdpbf16ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vdpbf16ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vdpbf16ps_zmm_k1z_zmm_zmmm512b32 };
    VPMaddWd "vpmaddwd" [dV uV uW] 0 { VEX_Vpmaddwd_xmm_xmm_xmmm128 VEX_Vpmaddwd_ymm_ymm_ymmm256 EVEX_Vpmaddwd_xmm_k1z_xmm_xmmm128 EVEX_Vpmaddwd_ymm_k1z_ymm_ymmm256 EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512 };
    VMovD "vmovd" [dVx uR4] 0 { VEX_Vmovd_xmm_rm32 _ EVEX_Vmovd_xmm_rm32 _ _ };
    VMovQ "vmovq" [dVx uR8] 0 { VEX_Vmovq_xmm_rm64 _ EVEX_Vmovq_xmm_rm64 _ _ };
    VMovDG "vmovd" [dR4 uVx] 0 { VEX_Vmovd_rm32_xmm _ EVEX_Vmovd_rm32_xmm _ _ };
    VMovQG "vmovq" [dR8 uVx] 0 { VEX_Vmovq_rm64_xmm _ EVEX_Vmovq_rm64_xmm _ _ };
    VMovSsL "vmovss" [dVx uM] 0 { VEX_Vmovss_xmm_m32 _ EVEX_Vmovss_xmm_k1z_m32 _ _ };
    VMovSsS "vmovss" [uM uVx] 0 { VEX_Vmovss_m32_xmm _ EVEX_Vmovss_m32_k1_xmm _ _ };
    VMovSdL "vmovsd" [dVx uM] 0 { VEX_Vmovsd_xmm_m64 _ EVEX_Vmovsd_xmm_k1z_m64 _ _ };
    VMovSdS "vmovsd" [uM uVx] 0 { VEX_Vmovsd_m64_xmm _ EVEX_Vmovsd_m64_k1_xmm _ _ };
    VUcomiSs "vucomiss" [uVx uWx] 0 { VEX_Vucomiss_xmm_xmmm32 _ EVEX_Vucomiss_xmm_xmmm32_sae _ _ };
    VUcomiSd "vucomisd" [uVx uWx] 0 { VEX_Vucomisd_xmm_xmmm64 _ EVEX_Vucomisd_xmm_xmmm64_sae _ _ };
    VCvtSi2Ss "vcvtsi2ss" [dVx uVx uR8] 0 { VEX_Vcvtsi2ss_xmm_xmm_rm64 _ EVEX_Vcvtsi2ss_xmm_xmm_rm64_er _ _ };
    VCvtSi2Sd "vcvtsi2sd" [dVx uVx uR8] 0 { VEX_Vcvtsi2sd_xmm_xmm_rm64 _ EVEX_Vcvtsi2sd_xmm_xmm_rm64_er _ _ };
    VPExtrB "vpextrb" [uM uVx I8] 0 { VEX_Vpextrb_r32m8_xmm_imm8 _ EVEX_Vpextrb_r32m8_xmm_imm8 _ _ };
    VPExtrW "vpextrw" [uM uVx I8] 0 { VEX_Vpextrw_r32m16_xmm_imm8 _ EVEX_Vpextrw_r32m16_xmm_imm8 _ _ };
    VPExtrD "vpextrd" [dR4 uVx I8] 0 { VEX_Vpextrd_rm32_xmm_imm8 _ EVEX_Vpextrd_rm32_xmm_imm8 _ _ };
    VPExtrQ "vpextrq" [dR8 uVx I8] 0 { VEX_Vpextrq_rm64_xmm_imm8 _ EVEX_Vpextrq_rm64_xmm_imm8 _ _ };
    VPInsrB "vpinsrb" [dVx uVx uM I8] 0 { VEX_Vpinsrb_xmm_xmm_r32m8_imm8 _ EVEX_Vpinsrb_xmm_xmm_r32m8_imm8 _ _ };
    VPInsrW "vpinsrw" [dVx uVx uM I8] 0 { VEX_Vpinsrw_xmm_xmm_r32m16_imm8 _ EVEX_Vpinsrw_xmm_xmm_r32m16_imm8 _ _ };
    VPInsrD "vpinsrd" [dVx uVx uR4 I8] 0 { VEX_Vpinsrd_xmm_xmm_rm32_imm8 _ EVEX_Vpinsrd_xmm_xmm_rm32_imm8 _ _ };
    VPInsrQ "vpinsrq" [dVx uVx uR8 I8] 0 { VEX_Vpinsrq_xmm_xmm_rm64_imm8 _ EVEX_Vpinsrq_xmm_xmm_rm64_imm8 _ _ };
    VMovMskPs "vmovmskps" [dG4 uV] 0 { VEX_Vmovmskps_r32_xmm VEX_Vmovmskps_r32_ymm _ _ _ };
    VMovMskPd "vmovmskpd" [dG4 uV] 0 { VEX_Vmovmskpd_r32_xmm VEX_Vmovmskpd_r32_ymm _ _ _ };
    VPMovMskB "vpmovmskb" [dG4 uV] 0 { VEX_Vpmovmskb_r32_xmm VEX_Vpmovmskb_r32_ymm _ _ _ };
    KMovW "kmovw" [dK uL] 0 { VEX_Kmovw_kr_km16 };
    KMovWS "kmovw" [uM uK] 0 { VEX_Kmovw_m16_kr };
    KMovWG "kmovw" [dK uG4] 0 { VEX_Kmovw_kr_r32 };
    KMovGW "kmovw" [dG4 uK] 0 { VEX_Kmovw_r32_kr };
    KMovQ "kmovq" [dK uL] 0 { VEX_Kmovq_kr_km64 };
    KMovQS "kmovq" [uM uK] 0 { VEX_Kmovq_m64_kr };
    KMovQG "kmovq" [dK uG8] 0 { VEX_Kmovq_kr_r64 };
    KMovGQ "kmovq" [dG8 uK] 0 { VEX_Kmovq_r64_kr };
    KMovD "kmovd" [dK uL] 0 { VEX_Kmovd_kr_km32 };
    KMovDS "kmovd" [uM uK] 0 { VEX_Kmovd_m32_kr };
    KMovDG "kmovd" [dK uG4] 0 { VEX_Kmovd_kr_r32 };
    KMovGD "kmovd" [dG4 uK] 0 { VEX_Kmovd_r32_kr };
    KMovB "kmovb" [dK uL] 0 { VEX_Kmovb_kr_km8 };
    KMovBS "kmovb" [uM uK] 0 { VEX_Kmovb_m8_kr };
    KMovBG "kmovb" [dK uG4] 0 { VEX_Kmovb_kr_r32 };
    KMovGB "kmovb" [dG4 uK] 0 { VEX_Kmovb_r32_kr };
    KAndW "kandw" [dK uK uK] 0 { VEX_Kandw_kr_kr_kr };
    KOrW "korw" [dK uK uK] 0 { VEX_Korw_kr_kr_kr };
    KXorW "kxorw" [dK uK uK] 0 { VEX_Kxorw_kr_kr_kr };
    KAndnW "kandnw" [dK uK uK] 0 { VEX_Kandnw_kr_kr_kr };
    KXnorW "kxnorw" [dK uK uK] 0 { VEX_Kxnorw_kr_kr_kr };
    KNotW "knotw" [dK uK] 0 { VEX_Knotw_kr_kr };
    KOrTestW "kortestw" [uK uK] 0 { VEX_Kortestw_kr_kr };
    KUnpckBW "kunpckbw" [dK uK uK] 0 { VEX_Kunpckbw_kr_kr_kr };
    KShiftRW "kshiftrw" [dK uK I8] 0 { VEX_Kshiftrw_kr_kr_imm8 };
    Mov "mov" [dG8 uR8] 0 { Mov_r64_rm64 };
    MovS "mov" [uM uG8] 0 { Mov_rm64_r64 };
    Mov32 "mov" [dG4 uR4] 0 { Mov_r32_rm32 };
    Mov32S "mov" [uM uG4] 0 { Mov_rm32_r32 };
    MovI32 "mov" [dR8 I32] 0 { Mov_rm64_imm32 _ _ _ _ };
    MovU32 "mov" [dG4 U32] 0 { Mov_r32_imm32 };
    MovI64 "mov" [dG8 I64] 0 { Mov_r64_imm64 };
    MovSxd "movsxd" [dG8 uR4] 0 { Movsxd_r64_rm32 };
    MovZxB "movzx" [dG4 uM] 0 { Movzx_r32_rm8 };
    MovZxW "movzx" [dG4 uM] 0 { Movzx_r32_rm16 };
    MovSxB "movsx" [dG8 uM] 0 { Movsx_r64_rm8 };
    MovSxW "movsx" [dG8 uM] 0 { Movsx_r64_rm16 };
    MovBS "mov" [uM uG1] 0 { Mov_rm8_r8 };
    MovWS "mov" [uM uG2] 0 { Mov_rm16_r16 };
    Lea "lea" [dG8 uM] 0 { Lea_r64_m };
    Add "add" [mG8 uR8] 0 { Add_r64_rm64 };
    AddI "add" [mR8 I32] 0 { Add_rm64_imm32 Add_rm64_imm8 _ _ _ };
    Sub "sub" [mG8 uR8] 0 { Sub_r64_rm64 };
    SubI "sub" [mR8 I32] 0 { Sub_rm64_imm32 Sub_rm64_imm8 _ _ _ };
    And "and" [mG8 uR8] 0 { And_r64_rm64 };
    AndI "and" [mR8 I32] 0 { And_rm64_imm32 And_rm64_imm8 _ _ _ };
    Or "or" [mG8 uR8] 0 { Or_r64_rm64 };
    OrI "or" [mR8 I32] 0 { Or_rm64_imm32 Or_rm64_imm8 _ _ _ };
    Xor "xor" [mG8 uR8] 0 { Xor_r64_rm64 };
    XorI "xor" [mR8 I32] 0 { Xor_rm64_imm32 Xor_rm64_imm8 _ _ _ };
    Imul "imul" [mG8 uR8] 0 { Imul_r64_rm64 };
    ImulI "imul" [dG8 uR8 I32] 0 { Imul_r64_rm64_imm32 Imul_r64_rm64_imm8 _ _ _ };
    ShlI "shl" [mR8 I8] 0 { Shl_rm64_imm8 };
    Shlx "shlx" [dG8 uR8 uG8] 0 { VEX_Shlx_r64_rm64_r64 };
    ShrI "shr" [mR8 I8] 0 { Shr_rm64_imm8 };
    Shrx "shrx" [dG8 uR8 uG8] 0 { VEX_Shrx_r64_rm64_r64 };
    SarI "sar" [mR8 I8] 0 { Sar_rm64_imm8 };
    Sarx "sarx" [dG8 uR8 uG8] 0 { VEX_Sarx_r64_rm64_r64 };
    Neg "neg" [mR8] 0 { Neg_rm64 };
    Not "not" [mR8] 0 { Not_rm64 };
    Cmp "cmp" [uG8 uR8] 0 { Cmp_r64_rm64 };
    CmpI "cmp" [uR8 I32] 0 { Cmp_rm64_imm32 Cmp_rm64_imm8 _ _ _ };
    Test "test" [uR8 uG8] 0 { Test_rm64_r64 };
    TestI "test" [uR8 I32] 0 { Test_rm64_imm32 _ _ _ _ };
    CmovE "cmove" [mG8 uR8] 0 { Cmove_r64_rm64 };
    CmovNe "cmovne" [mG8 uR8] 0 { Cmovne_r64_rm64 };
    CmovL "cmovl" [mG8 uR8] 0 { Cmovl_r64_rm64 };
    CmovGe "cmovge" [mG8 uR8] 0 { Cmovge_r64_rm64 };
    CmovLe "cmovle" [mG8 uR8] 0 { Cmovle_r64_rm64 };
    CmovG "cmovg" [mG8 uR8] 0 { Cmovg_r64_rm64 };
    CmovB "cmovb" [mG8 uR8] 0 { Cmovb_r64_rm64 };
    CmovAe "cmovae" [mG8 uR8] 0 { Cmovae_r64_rm64 };
    CmovBe "cmovbe" [mG8 uR8] 0 { Cmovbe_r64_rm64 };
    CmovA "cmova" [mG8 uR8] 0 { Cmova_r64_rm64 };
    CmovP "cmovp" [mG8 uR8] 0 { Cmovp_r64_rm64 };
    CmovNp "cmovnp" [mG8 uR8] 0 { Cmovnp_r64_rm64 };
    SetE "sete" [dG1] 0 { Sete_rm8 };
    SetNe "setne" [dG1] 0 { Setne_rm8 };
    SetL "setl" [dG1] 0 { Setl_rm8 };
    SetGe "setge" [dG1] 0 { Setge_rm8 };
    SetLe "setle" [dG1] 0 { Setle_rm8 };
    SetG "setg" [dG1] 0 { Setg_rm8 };
    SetB "setb" [dG1] 0 { Setb_rm8 };
    SetAe "setae" [dG1] 0 { Setae_rm8 };
    SetBe "setbe" [dG1] 0 { Setbe_rm8 };
    SetA "seta" [dG1] 0 { Seta_rm8 };
    SetP "setp" [dG1] 0 { Setp_rm8 };
    SetNp "setnp" [dG1] 0 { Setnp_rm8 };
    MovZxBG "movzx" [dG4 uG1] 0 { Movzx_r32_rm8 };
    Cqo "cqo" [] 0 { Cqo };
    IdivR "idiv" [uR8] 0 { Idiv_rm64 };
    DivR "div" [uR8] 0 { Div_rm64 };
    PrefetchT0 "prefetcht0" [uM] 0 { Prefetcht0_m8 };
    PrefetchT1 "prefetcht1" [uM] 0 { Prefetcht1_m8 };
    PrefetchW "prefetchw" [uM] 0 { Prefetchw_m8 };
    PrefetchNta "prefetchnta" [uM] 0 { Prefetchnta_m8 };
    Sfence "sfence" [] 0 { Sfence };
    VZeroUpper "vzeroupper" [] 0 { VEX_Vzeroupper };
    Push "push" [uG8] 0 { Push_r64 };
    Pop "pop" [dG8] 0 { Pop_r64 };
    Ret "retnq" [] 0 { Retnq };
    LdTileCfg "ldtilecfg" [uM] 0 { VEX_Ldtilecfg_m512 };
    TileRelease "tilerelease" [] 0 { VEX_Tilerelease };
    TileZero "tilezero" [T] 0 { VEX_Tilezero_tmm };
    TileLoadD "tileloadd" [T uM] 0 { VEX_Tileloadd_tmm_sibmem };
    TileLoadT1 "tileloaddt1" [T uM] 0 { VEX_Tileloaddt1_tmm_sibmem };
    TileStoreD "tilestored" [uM T] 0 { VEX_Tilestored_sibmem_tmm };
    TdpBf16Ps "tdpbf16ps" [T T T] 0 { VEX_Tdpbf16ps_tmm_tmm_tmm };
    TdpBssd "tdpbssd" [T T T] 0 { VEX_Tdpbssd_tmm_tmm_tmm };
    TdpBusd "tdpbusd" [T T T] 0 { VEX_Tdpbusd_tmm_tmm_tmm };
    TdpBsud "tdpbsud" [T T T] 0 { VEX_Tdpbsud_tmm_tmm_tmm };
    TdpBuud "tdpbuud" [T T T] 0 { VEX_Tdpbuud_tmm_tmm_tmm };
    TdpFp16Ps "tdpfp16ps" [T T T] 0 { VEX_Tdpfp16ps_tmm_tmm_tmm };
    FmaddPs "fmaddps" [dV uW uW uW] 4 { _ _ _ _ _ };
    FnmaddPs "fnmaddps" [dV uW uW uW] 4 { _ _ _ _ _ };
    FmsubPs "fmsubps" [dV uW uW uW] 4 { _ _ _ _ _ };
    FmaddPd "fmaddpd" [dV uW uW uW] 8 { _ _ _ _ _ };
    FnmaddPd "fnmaddpd" [dV uW uW uW] 8 { _ _ _ _ _ };
    FmsubPd "fmsubpd" [dV uW uW uW] 8 { _ _ _ _ _ };
    VZero "vzero" [dV] 0 { _ _ _ _ _ };
    DivS "divs" [dG8 uG8 uG8] 0 { _ _ _ _ _ };
    RemS "rems" [dG8 uG8 uG8] 0 { _ _ _ _ _ };
    DivU "divu" [dG8 uG8 uG8] 0 { _ _ _ _ _ };
    RemU "remu" [dG8 uG8 uG8] 0 { _ _ _ _ _ };
}
