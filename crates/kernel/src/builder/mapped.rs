//! What only the mapped form has: allocations, products on named operands, asynchronous copies, barriers, roles.

use std::panic::Location as Caller;

use oxyfuel_base::{DType, Expr};

use super::{IntoIndex, KernelBuilder, Mem, Tile, Window};
use crate::ir::{
    BarrierRef, MemType, MmaDim, MmaOperand, Op, ParamKind, Role, Space, Swizzle, TensorMapParam,
    Type, Val,
};

/// A tensor map parameter.
#[derive(Clone, Debug)]
pub struct TensorMap {
    val: Val,
}

impl TensorMap {
    pub fn val(&self) -> Val {
        self.val
    }
}

/// The roles of an instance under construction.
#[derive(Debug)]
pub struct RoleList {
    builder: KernelBuilder,
    roles: Vec<Role>,
}

impl RoleList {
    /// Gives `warps` warps from `first_warp` on a program of their own. `registers` is what each thread asks for on entry (0: leaves them).
    pub fn role(
        &mut self,
        name: &str,
        first_warp: u32,
        warps: u32,
        registers: u32,
        body: impl FnOnce(&KernelBuilder),
    ) {
        let ((), body) = self.builder.in_block(|k| body(k));
        self.roles.push(Role {
            name: name.to_string(),
            first_warp,
            warps,
            registers,
            body,
        });
    }
}

impl Mem {
    /// A slot of a barrier memory.
    #[track_caller]
    pub fn slot(&self, k: &KernelBuilder, slot: impl IntoIndex) -> BarrierRef {
        BarrierRef {
            mem: self.val(),
            slot: slot.into_index(k),
        }
    }
}

impl Tile {
    /// The tile as an operand of a product.
    pub fn operand(&self) -> MmaOperand {
        MmaOperand::Tile(self.val())
    }
}

impl Window {
    /// The window as an operand of a product; see [`MmaOperand::Mem`].
    pub fn operand(self, dims: impl AsRef<[MmaDim]>) -> MmaOperand {
        MmaOperand::Mem {
            access: self.access,
            dims: dims.as_ref().to_vec(),
        }
    }
}

impl KernelBuilder {
    /// Says how a copy engine sees a buffer.
    pub fn tensor_map(
        &self,
        name: impl Into<String>,
        buffer: &Mem,
        dims: impl IntoIterator<Item = Expr>,
        strides: impl IntoIterator<Item = Expr>,
        boxed: impl AsRef<[i64]>,
        swizzle: Option<Swizzle>,
    ) -> TensorMap {
        let map = TensorMapParam {
            buffer: buffer.val(),
            dims: dims.into_iter().collect(),
            strides: strides.into_iter().collect(),
            boxed: boxed.as_ref().to_vec(),
            swizzle,
        };
        TensorMap {
            val: self.param(name.into(), Type::TensorMap, ParamKind::TensorMap(map)),
        }
    }

    /// A memory of `len` elements for this instance.
    #[track_caller]
    pub fn alloc(&self, space: Space, dtype: DType, len: i64, swizzle: Option<Swizzle>) -> Mem {
        let ty = Type::Mem(MemType {
            dtype,
            space,
            len: Some(len),
            swizzle,
        });
        let results = self.emit(Op::Alloc, std::slice::from_ref(&ty), Caller::caller());
        let val = results
            .first()
            .copied()
            .unwrap_or_else(|| self.new_value(ty, &[]));
        self.mem(val)
    }

    /// `acc + a @ b`, in place.
    #[track_caller]
    pub fn mma(&self, a: MmaOperand, b: MmaOperand, acc: &Tile, asynchronous: bool) -> Tile {
        let tile = self.emit_one(
            Op::Mma {
                a,
                b,
                acc: acc.val(),
                asynchronous,
            },
            Some(acc.ty()),
            Caller::caller(),
        );
        match acc.layout() {
            Some(layout) => tile.with_layout(layout),
            None => tile,
        }
    }

    #[track_caller]
    pub fn mma_commit(&self) {
        self.emit(Op::MmaCommit, &[], Caller::caller());
    }

    /// Waits until at most `pending` groups of products are unfinished.
    #[track_caller]
    pub fn mma_wait<const N: usize>(&self, pending: u32, accs: [Tile; N]) -> [Tile; N] {
        let results = self.emit(
            Op::MmaWait {
                pending,
                accs: accs.iter().map(Tile::val).collect(),
            },
            &[],
            Caller::caller(),
        );
        let mut results = results.into_iter();
        accs.map(|acc| match (results.next(), acc.layout()) {
            (Some(v), Some(layout)) => self.tile(v).with_layout(layout),
            (Some(v), None) => self.tile(v),
            (None, _) => acc,
        })
    }

    /// Copies the box at `coords` into `dst` from element `base` on, completing on `barrier`.
    #[track_caller]
    pub fn tensor_load<I: IntoIndex>(
        &self,
        map: &TensorMap,
        coords: impl IntoIterator<Item = I>,
        dst: &Mem,
        base: impl IntoIndex,
        barrier: BarrierRef,
    ) {
        let coords = coords.into_iter().map(|c| c.into_index(self)).collect();
        let base = base.into_index(self);
        self.emit(
            Op::TensorLoad {
                map: map.val,
                coords,
                dst: dst.val(),
                base,
                barrier,
            },
            &[],
            Caller::caller(),
        );
    }

    /// Copies from `src` at element `base` into the box at `coords`.
    #[track_caller]
    pub fn tensor_store<I: IntoIndex>(
        &self,
        map: &TensorMap,
        coords: impl IntoIterator<Item = I>,
        src: &Mem,
        base: impl IntoIndex,
    ) {
        let coords = coords.into_iter().map(|c| c.into_index(self)).collect();
        let base = base.into_index(self);
        self.emit(
            Op::TensorStore {
                map: map.val,
                coords,
                src: src.val(),
                base,
            },
            &[],
            Caller::caller(),
        );
    }

    #[track_caller]
    pub fn copy_async(&self, src: Window, dst: Window) {
        self.emit(
            Op::CopyAsync {
                src: src.access,
                dst: dst.access,
            },
            &[],
            Caller::caller(),
        );
    }

    #[track_caller]
    pub fn copy_commit(&self) {
        self.emit(Op::CopyCommit, &[], Caller::caller());
    }

    #[track_caller]
    pub fn copy_wait(&self, pending: u32) {
        self.emit(Op::CopyWait { pending }, &[], Caller::caller());
    }

    #[track_caller]
    pub fn barrier_init(&self, barrier: BarrierRef, count: u32) {
        self.emit(Op::BarrierInit { barrier, count }, &[], Caller::caller());
    }

    /// Arrives once per role, announcing `bytes` that copies will deliver.
    #[track_caller]
    pub fn barrier_arrive(&self, barrier: BarrierRef, bytes: Option<i64>) {
        self.emit(
            Op::BarrierArrive {
                barrier,
                bytes,
                per_warp: false,
            },
            &[],
            Caller::caller(),
        );
    }

    /// Every warp of the role arrives.
    #[track_caller]
    pub fn barrier_arrive_per_warp(&self, barrier: BarrierRef) {
        self.emit(
            Op::BarrierArrive {
                barrier,
                bytes: None,
                per_warp: true,
            },
            &[],
            Caller::caller(),
        );
    }

    /// Waits for the phase of `parity`, a scalar i32.
    #[track_caller]
    pub fn barrier_wait(&self, barrier: BarrierRef, parity: &Tile) {
        self.emit(
            Op::BarrierWait {
                barrier,
                parity: parity.val(),
            },
            &[],
            Caller::caller(),
        );
    }

    #[track_caller]
    pub fn sync(&self) {
        self.emit(Op::Sync, &[], Caller::caller());
    }

    #[track_caller]
    pub fn fence_async(&self) {
        self.emit(Op::FenceAsync, &[], Caller::caller());
    }

    /// Warps go their own ways: `define` lists the roles.
    #[track_caller]
    pub fn roles(&self, define: impl FnOnce(&mut RoleList)) {
        let mut list = RoleList {
            builder: self.clone(),
            roles: Vec::new(),
        };
        define(&mut list);
        self.emit(Op::Roles { roles: list.roles }, &[], Caller::caller());
    }
}
