//! Memories and windows into them.

use std::panic::Location as Caller;

use oxyfuel_base::{DType, Scalar, err};

use super::{KernelBuilder, Operand, Tile};
use crate::ir::{Access, CacheHint, Index, Op, ReduceOp, Type, Val};

/// A memory: a buffer parameter or an allocation.
#[derive(Clone, Debug)]
pub struct Mem {
    builder: KernelBuilder,
    val: Val,
}

/// What may stand where a number of elements is meant: an integer, or a scalar i64 tile.
pub trait IntoIndex {
    fn into_index(self, k: &KernelBuilder) -> Index;
}

impl IntoIndex for i64 {
    fn into_index(self, _: &KernelBuilder) -> Index {
        Index::Const(self)
    }
}

impl IntoIndex for i32 {
    fn into_index(self, _: &KernelBuilder) -> Index {
        Index::Const(self.into())
    }
}

impl IntoIndex for Index {
    fn into_index(self, _: &KernelBuilder) -> Index {
        self
    }
}

impl IntoIndex for Tile {
    #[track_caller]
    fn into_index(self, k: &KernelBuilder) -> Index {
        (&self).into_index(k)
    }
}

impl IntoIndex for &Tile {
    #[track_caller]
    fn into_index(self, k: &KernelBuilder) -> Index {
        if self.dtype() != DType::I64 || !self.shape().is_empty() {
            k.error(
                err!(
                    DTypeMismatch,
                    "an index is a scalar i64, not {}",
                    self.type_text()
                ),
                Caller::caller(),
            );
            return Index::Const(0);
        }
        Index::Val(self.val())
    }
}

impl Mem {
    pub(crate) fn new(builder: KernelBuilder, val: Val) -> Self {
        Self { builder, val }
    }

    pub fn val(&self) -> Val {
        self.val
    }

    pub fn dtype(&self) -> DType {
        self.builder
            .with_program(|p| p.mem(self.val).map_or(DType::F32, |mem| mem.dtype))
    }

    /// States the alignment of a buffer parameter's pointer in bytes.
    #[must_use]
    pub fn aligned(self, bytes: u32) -> Self {
        for param in &mut self.builder.state_mut().program.params {
            if param.value == self.val
                && let crate::ir::ParamKind::Buffer(buffer) = &mut param.kind
            {
                buffer.align = bytes;
            }
        }
        self
    }

    /// A window that starts at element `base`. It is one element until it gets a [`shape`](Window::shape).
    #[track_caller]
    pub fn at(&self, base: impl IntoIndex) -> Window {
        Window {
            access: Access {
                mem: self.val,
                base: base.into_index(&self.builder),
                shape: Vec::new(),
                strides: Vec::new(),
                valid: Vec::new(),
            },
            builder: self.builder.clone(),
            mask: None,
            fill: None,
            hint: CacheHint::Default,
        }
    }
}

/// An affine window into a memory, with what a load or store needs to know of it.
#[derive(Clone, Debug)]
pub struct Window {
    builder: KernelBuilder,
    pub(crate) access: Access,
    pub(crate) mask: Option<Tile>,
    pub(crate) fill: Option<Scalar>,
    pub(crate) hint: CacheHint,
}

impl Window {
    /// The tile's shape. Strides are those of a dense row-major tile unless [`strides`](Self::strides) follows.
    #[must_use]
    pub fn shape(mut self, shape: impl AsRef<[i64]>) -> Self {
        self.access.shape = shape.as_ref().to_vec();
        let mut step = 1i64;
        self.access.strides = vec![Index::Const(1); self.access.shape.len()];
        for (stride, extent) in self.access.strides.iter_mut().zip(&self.access.shape).rev() {
            *stride = Index::Const(step);
            step = step.saturating_mul(*extent);
        }
        self.access.valid = vec![None; self.access.shape.len()];
        self
    }

    /// The step in elements along each dim.
    #[must_use]
    #[track_caller]
    pub fn strides<I: IntoIndex>(mut self, strides: impl IntoIterator<Item = I>) -> Self {
        self.access.strides = strides
            .into_iter()
            .map(|s| s.into_index(&self.builder))
            .collect();
        self
    }

    /// The step in elements along one dim.
    #[must_use]
    #[track_caller]
    pub fn stride(mut self, dim: usize, stride: impl IntoIndex) -> Self {
        let stride = stride.into_index(&self.builder);
        match self.access.strides.get_mut(dim) {
            Some(slot) => *slot = stride,
            None => self.builder.error(
                err!(
                    DimOutOfRange,
                    "dim {dim} of a window of shape {:?}",
                    self.access.shape
                ),
                Caller::caller(),
            ),
        }
        self
    }

    /// Only coordinates below `bound` along `dim` are touched.
    #[must_use]
    #[track_caller]
    pub fn valid(mut self, dim: usize, bound: impl IntoIndex) -> Self {
        let bound = bound.into_index(&self.builder);
        match self.access.valid.get_mut(dim) {
            Some(slot) => *slot = Some(bound),
            None => self.builder.error(
                err!(
                    DimOutOfRange,
                    "dim {dim} of a window of shape {:?}",
                    self.access.shape
                ),
                Caller::caller(),
            ),
        }
        self
    }

    /// Only elements whose mask is true are touched.
    #[must_use]
    pub fn mask(mut self, mask: &Tile) -> Self {
        self.mask = Some(mask.clone());
        self
    }

    /// What a load gives for elements that it does not touch (0 when not said).
    #[must_use]
    pub fn fill(mut self, fill: impl Into<Scalar>) -> Self {
        self.fill = Some(fill.into());
        self
    }

    /// The data is not used again soon.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.hint = CacheHint::Streaming;
        self
    }

    /// Windows like it follow in order: the lines further on are asked for.
    #[must_use]
    pub fn ahead(mut self) -> Self {
        self.hint = CacheHint::Ahead;
        self
    }

    pub fn access(&self) -> &Access {
        &self.access
    }
}

impl KernelBuilder {
    /// Reads a window.
    #[track_caller]
    pub fn load(&self, window: Window) -> Tile {
        let dtype =
            self.with_program(|p| p.mem(window.access.mem).map_or(DType::F32, |mem| mem.dtype));
        let claimed = Type::tile(dtype, &window.access.shape);
        let fill = window.fill.unwrap_or(Scalar::I(0)).cast(dtype);
        let mask = window.mask.as_ref().map(Tile::val);
        self.emit_one(
            Op::Load {
                access: window.access,
                mask,
                fill,
                hint: window.hint,
            },
            Some(claimed),
            Caller::caller(),
        )
    }

    /// Writes a window. A literal or a scalar fills it; dims of extent 1 broadcast.
    #[track_caller]
    pub fn store(&self, window: Window, value: impl Operand) {
        let caller = Caller::caller();
        let dtype =
            self.with_program(|p| p.mem(window.access.mem).map_or(DType::F32, |mem| mem.dtype));
        let value = value
            .tile_of(self, dtype, caller)
            .broadcast_at(&window.access.shape, caller);
        let mask = window.mask.as_ref().map(Tile::val);
        self.emit(
            Op::Store {
                access: window.access,
                value: value.val(),
                mask,
                hint: window.hint,
            },
            &[],
            caller,
        );
    }

    /// `mem[index]`, with `fill` where `mask` is false.
    #[track_caller]
    pub fn gather(
        &self,
        mem: &Mem,
        index: &Tile,
        mask: Option<&Tile>,
        fill: impl Into<Scalar>,
    ) -> Tile {
        let dtype = mem.dtype();
        let op = Op::Gather {
            mem: mem.val,
            index: index.val(),
            mask: mask.map(Tile::val),
            fill: fill.into().cast(dtype),
        };
        self.emit_one(
            op,
            Some(Type::tile(dtype, &index.shape())),
            Caller::caller(),
        )
    }

    /// `mem[index] = value` where `mask` is true; positions within the tile differ.
    #[track_caller]
    pub fn scatter(&self, mem: &Mem, index: &Tile, value: impl Operand, mask: Option<&Tile>) {
        let caller = Caller::caller();
        let value = value
            .tile_of(self, mem.dtype(), caller)
            .broadcast_at(&index.shape(), caller);
        self.emit(
            Op::Scatter {
                mem: mem.val,
                index: index.val(),
                value: value.val(),
                mask: mask.map(Tile::val),
            },
            &[],
            caller,
        );
    }

    /// Combines `value` into `mem[index]` atomically.
    #[track_caller]
    pub fn atomic(
        &self,
        op: ReduceOp,
        mem: &Mem,
        index: &Tile,
        value: impl Operand,
        mask: Option<&Tile>,
    ) {
        let caller = Caller::caller();
        let value = value
            .tile_of(self, mem.dtype(), caller)
            .broadcast_at(&index.shape(), caller);
        self.emit(
            Op::Atomic {
                op,
                mem: mem.val,
                index: index.val(),
                value: value.val(),
                mask: mask.map(Tile::val),
            },
            &[],
            caller,
        );
    }
}
