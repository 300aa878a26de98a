//! Types of results: what follows from an op's operands and attributes, and the rules that operands must meet for it.
//!
//! The verifier and the builder share this file, so that a program that could be built is a program that verifies.

use oxyfuel_base::{DType, Error, Result, ensure, err};

use crate::ir::{
    Access, BinaryOp, Index, MemType, MmaDim, MmaOperand, Op, Program, ReduceOp, Space, TileType,
    Type, UnaryOp, Val,
};

/// Which dtypes an elementwise op or a reduction computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Floats of 16 bits and more.
    Float,
    /// Integers.
    Int,
    /// Floats of 16 bits and more, and integers.
    Number,
    /// Integers and bool.
    Bits,
    /// Bool.
    Bool,
    /// Everything but the storage formats of 8 bits and less.
    Any,
}

impl Domain {
    pub fn contains(self, dtype: DType) -> bool {
        let float = dtype.is_float() && !dtype.is_narrow_float();
        match self {
            Self::Float => float,
            Self::Int => dtype.is_int(),
            Self::Number => float || dtype.is_int(),
            Self::Bits => dtype.is_int() || dtype.is_bool(),
            Self::Bool => dtype.is_bool(),
            Self::Any => float || dtype.is_int() || dtype.is_bool(),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Float => "floats",
            Self::Int => "integers",
            Self::Number => "numbers",
            Self::Bits => "integers and bool",
            Self::Bool => "bool",
            Self::Any => "numbers and bool",
        }
    }

    fn check(self, what: &str, dtype: DType) -> Result<()> {
        ensure!(
            self.contains(dtype),
            DTypeMismatch,
            "{what} takes {}, not {dtype}",
            self.words()
        );
        Ok(())
    }
}

impl UnaryOp {
    pub fn domain(self) -> Domain {
        match self {
            Self::Neg | Self::Abs => Domain::Number,
            Self::Not => Domain::Bits,
            Self::Sqrt
            | Self::Rsqrt
            | Self::Recip
            | Self::NearRecip
            | Self::Floor
            | Self::Ceil
            | Self::Trunc
            | Self::Round
            | Self::Exp
            | Self::Exp2
            | Self::NearExp2
            | Self::Expm1
            | Self::Log
            | Self::Log2
            | Self::Log1p
            | Self::Sin
            | Self::Cos
            | Self::Tanh
            | Self::Atan
            | Self::Erf
            | Self::Erfc
            | Self::Sigmoid
            | Self::IsNan => Domain::Float,
        }
    }
}

impl BinaryOp {
    pub fn domain(self) -> Domain {
        match self {
            Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Rem | Self::Min | Self::Max => {
                Domain::Number
            }
            Self::FloorDiv | Self::Mod | Self::Shl | Self::Shr => Domain::Int,
            Self::Pow => Domain::Float,
            Self::And | Self::Or | Self::Xor => Domain::Bits,
        }
    }
}

impl ReduceOp {
    pub fn domain(self) -> Domain {
        match self {
            Self::Sum | Self::Prod | Self::Min | Self::Max => Domain::Number,
            Self::Any | Self::All => Domain::Bool,
        }
    }
}

impl std::fmt::Display for TileType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.dtype)?;
        if !self.shape.is_empty() {
            write!(f, "{:?}", self.shape)?;
        }
        Ok(())
    }
}

impl Program {
    pub fn ty(&self, v: Val) -> Result<&Type> {
        self.values
            .get(v)
            .map(|data| &data.ty)
            .ok_or_else(|| err!(InvalidKernel, "there is no value {v}"))
    }

    pub fn tile(&self, v: Val) -> Result<&TileType> {
        self.ty(v)?
            .as_tile()
            .ok_or_else(|| err!(InvalidKernel, "{v} is not a tile"))
    }

    pub fn mem(&self, v: Val) -> Result<&MemType> {
        self.ty(v)?
            .as_mem()
            .ok_or_else(|| err!(InvalidKernel, "{v} is not a memory"))
    }

    /// The type of the tile that an access covers.
    pub fn access_type(&self, access: &Access) -> Result<TileType> {
        let rank = access.shape.len();
        ensure!(
            access.strides.len() == rank && access.valid.len() == rank,
            RankMismatch,
            "a window of rank {rank} has {} strides and {} bounds",
            access.strides.len(),
            access.valid.len()
        );
        self.index(&access.base)?;
        access
            .strides
            .iter()
            .chain(access.valid.iter().flatten())
            .try_for_each(|index| self.index(index))?;
        check_shape(&access.shape)?;
        Ok(TileType {
            dtype: self.mem(access.mem)?.dtype,
            shape: access.shape.clone(),
        })
    }

    fn index(&self, index: &Index) -> Result<()> {
        match index {
            Index::Const(_) => Ok(()),
            Index::Val(v) => {
                let tile = self.tile(*v)?;
                ensure!(
                    tile.dtype == DType::I64 && tile.shape.is_empty(),
                    DTypeMismatch,
                    "an index is a scalar i64, but {v} is {tile}"
                );
                Ok(())
            }
        }
    }

    fn mask(&self, mask: Option<Val>, shape: &[i64]) -> Result<()> {
        let Some(mask) = mask else { return Ok(()) };
        let tile = self.tile(mask)?;
        ensure!(
            tile.dtype.is_bool(),
            DTypeMismatch,
            "a mask is bool, not {tile}"
        );
        ensure!(
            tile.shape == shape,
            ShapeMismatch,
            "a mask of shape {:?} over {shape:?}",
            tile.shape
        );
        Ok(())
    }

    fn same(&self, what: &str, a: Val, b: Val) -> Result<TileType> {
        let (ta, tb) = (self.tile(a)?, self.tile(b)?);
        ensure!(
            ta.dtype == tb.dtype,
            DTypeMismatch,
            "{what} of {ta} and {tb}"
        );
        ensure!(
            ta.shape == tb.shape,
            ShapeMismatch,
            "{what} of {ta} and {tb}"
        );
        Ok(ta.clone())
    }

    fn barrier(&self, barrier: &crate::ir::BarrierRef) -> Result<()> {
        let mem = self.mem(barrier.mem)?;
        ensure!(
            mem.dtype == DType::U64 && mem.space == Space::Shared,
            DTypeMismatch,
            "barriers live in a shared memory of u64, not {} in {:?}",
            mem.dtype,
            mem.space
        );
        self.index(&barrier.slot)
    }

    /// Element index positions: an integer tile over a memory.
    fn positions(&self, mem: Val, index: Val) -> Result<TileType> {
        let dtype = self.mem(mem)?.dtype;
        let tile = self.tile(index)?;
        ensure!(
            tile.dtype.is_int(),
            DTypeMismatch,
            "positions are integers, not {tile}"
        );
        Ok(TileType {
            dtype,
            shape: tile.shape.clone(),
        })
    }

    /// The extents of an operand by [`MmaDim`], and its dtype.
    fn mma_operand(&self, operand: &MmaOperand, k_first: bool) -> Result<OperandType> {
        match operand {
            MmaOperand::Tile(v) => {
                let tile = self.tile(*v)?;
                let (batch, first, second) = match tile.shape[..] {
                    [first, second] => (None, first, second),
                    [batch, first, second] => (Some(batch), first, second),
                    _ => {
                        return Err(err!(
                            RankMismatch,
                            "an operand of a product has rank 2, or 3 with a batch, not {tile}"
                        ));
                    }
                };
                let (side, k) = if k_first {
                    (second, first)
                } else {
                    (first, second)
                };
                Ok(OperandType {
                    batch,
                    side,
                    k,
                    dtype: tile.dtype,
                })
            }
            MmaOperand::Mem { access, dims } => {
                let tile = self.access_type(access)?;
                ensure!(
                    dims.len() == tile.shape.len(),
                    RankMismatch,
                    "{} dim kinds for a window of rank {}",
                    dims.len(),
                    tile.shape.len()
                );
                let extent = |kind: MmaDim| -> i64 {
                    dims.iter()
                        .zip(&tile.shape)
                        .filter(|(d, _)| **d == kind)
                        .map(|(_, extent)| *extent)
                        .fold(1, i64::saturating_mul)
                };
                Ok(OperandType {
                    batch: None,
                    side: extent(MmaDim::Side),
                    k: extent(MmaDim::K),
                    dtype: tile.dtype,
                })
            }
        }
    }
}

struct OperandType {
    batch: Option<i64>,
    side: i64,
    k: i64,
    dtype: DType,
}

/// Extents are positive, and the number of elements stays in bounds that any target could hold.
pub(crate) fn check_shape(shape: &[i64]) -> Result<()> {
    ensure!(
        shape.len() <= 8,
        TooLarge,
        "a tile of rank {} (the most is 8)",
        shape.len()
    );
    let mut len = 1i64;
    for &extent in shape {
        ensure!(
            extent > 0,
            ShapeMismatch,
            "extents of tiles are positive, not {shape:?}"
        );
        len = len
            .checked_mul(extent)
            .filter(|len| *len <= 1 << 31)
            .ok_or_else(|| {
                err!(
                    TooLarge,
                    "a tile of shape {shape:?} (the most is 2^31 elements)"
                )
            })?;
    }
    Ok(())
}

fn claimed_tile(claimed: &[Type], at: usize) -> Result<&TileType> {
    let tile = claimed
        .get(at)
        .and_then(Type::as_tile)
        .ok_or_else(|| err!(InvalidKernel, "result {at} must be a tile"))?;
    check_shape(&tile.shape)?;
    Ok(tile)
}

fn check_axis(axis: u8, rank: usize) -> Result<usize> {
    ensure!(
        usize::from(axis) < rank,
        DimOutOfRange,
        "axis {axis} of a tile of rank {rank}"
    );
    Ok(usize::from(axis))
}

impl Op {
    /// The types that the results must have. `claimed` are the types that stand on the result values; only ops whose result type is not a consequence of
    /// their operands look at them (and check what they can).
    pub fn infer(&self, program: &Program, claimed: &[Type]) -> Result<Vec<Type>> {
        let one = |tile: TileType| Ok(vec![Type::Tile(tile)]);
        let none = || Ok(Vec::new());
        match self {
            Self::ProgramId { axis } | Self::NumPrograms { axis } => {
                ensure!(*axis < 3, DimOutOfRange, "axis {axis} of a grid");
                Ok(vec![Type::scalar(DType::I64)])
            }
            Self::Const { value } => {
                let tile = claimed_tile(claimed, 0)?;
                ensure!(
                    tile.shape.is_empty(),
                    ShapeMismatch,
                    "a constant is a scalar, not {tile}"
                );
                ensure!(
                    value.cast(tile.dtype) == *value,
                    InvalidArgument,
                    "{value} is not a value of {}",
                    tile.dtype
                );
                one(tile.clone())
            }
            Self::Iota { dim } => {
                let tile = claimed_tile(claimed, 0)?;
                ensure!(
                    tile.dtype.is_int(),
                    DTypeMismatch,
                    "iota gives integers, not {tile}"
                );
                check_axis(*dim, tile.shape.len())?;
                one(tile.clone())
            }
            Self::Splat { value } => {
                let (from, to) = (program.tile(*value)?, claimed_tile(claimed, 0)?);
                ensure!(
                    from.shape.is_empty(),
                    ShapeMismatch,
                    "splat takes a scalar, not {from}"
                );
                one(TileType {
                    dtype: from.dtype,
                    shape: to.shape.clone(),
                })
            }
            Self::Broadcast { value } => {
                let (from, to) = (program.tile(*value)?, claimed_tile(claimed, 0)?);
                let fits = from.shape.len() == to.shape.len()
                    && from
                        .shape
                        .iter()
                        .zip(&to.shape)
                        .all(|(f, t)| f == t || *f == 1);
                ensure!(
                    fits,
                    ShapeMismatch,
                    "{from} does not broadcast to {:?}",
                    to.shape
                );
                one(TileType {
                    dtype: from.dtype,
                    shape: to.shape.clone(),
                })
            }
            Self::Reshape { value } => {
                let (from, to) = (program.tile(*value)?, claimed_tile(claimed, 0)?);
                ensure!(
                    from.len() == to.len(),
                    ShapeMismatch,
                    "{from} does not reshape to {:?}",
                    to.shape
                );
                one(TileType {
                    dtype: from.dtype,
                    shape: to.shape.clone(),
                })
            }
            Self::Permute { value, perm } => {
                let from = program.tile(*value)?;
                let mut seen = vec![false; from.shape.len()];
                ensure!(
                    perm.len() == seen.len(),
                    RankMismatch,
                    "a permutation of {} dims for {from}",
                    perm.len()
                );
                for &p in perm {
                    let p = check_axis(p, seen.len())?;
                    ensure!(
                        !std::mem::replace(&mut seen[p], true),
                        DimOutOfRange,
                        "dim {p} twice in a permutation"
                    );
                }
                one(TileType {
                    dtype: from.dtype,
                    shape: perm.iter().map(|&p| from.shape[usize::from(p)]).collect(),
                })
            }
            Self::Unary { op, value } => {
                let tile = program.tile(*value)?;
                op.domain().check(op.name(), tile.dtype)?;
                let dtype = if *op == UnaryOp::IsNan {
                    DType::Bool
                } else {
                    tile.dtype
                };
                one(TileType {
                    dtype,
                    shape: tile.shape.clone(),
                })
            }
            Self::Binary { op, lhs, rhs } => {
                let tile = program.same(op.name(), *lhs, *rhs)?;
                op.domain().check(op.name(), tile.dtype)?;
                one(tile)
            }
            Self::Compare { op, lhs, rhs } => {
                let tile = program.same(op.name(), *lhs, *rhs)?;
                Domain::Any.check(op.name(), tile.dtype)?;
                one(TileType {
                    dtype: DType::Bool,
                    shape: tile.shape,
                })
            }
            Self::Select {
                cond,
                on_true,
                on_false,
            } => {
                let tile = program.same("select", *on_true, *on_false)?;
                program.mask(Some(*cond), &tile.shape)?;
                one(tile)
            }
            Self::Fma { a, b, c } => {
                let tile = program.same("fma", *a, *b)?;
                program.same("fma", *b, *c)?;
                Domain::Number.check("fma", tile.dtype)?;
                one(tile)
            }
            Self::Cast { value } => {
                let (from, to) = (program.tile(*value)?, claimed_tile(claimed, 0)?);
                one(TileType {
                    dtype: to.dtype,
                    shape: from.shape.clone(),
                })
            }
            Self::Bitcast { value } => {
                let (from, to) = (program.tile(*value)?, claimed_tile(claimed, 0)?);
                ensure!(
                    from.dtype.bits() == to.dtype.bits(),
                    DTypeMismatch,
                    "bits of {} as {}",
                    from.dtype,
                    to.dtype
                );
                one(TileType {
                    dtype: to.dtype,
                    shape: from.shape.clone(),
                })
            }
            Self::Load {
                access,
                mask,
                fill,
                hint: _,
            } => {
                let tile = program.access_type(access)?;
                program.mask(*mask, &tile.shape)?;
                ensure!(
                    fill.cast(tile.dtype) == *fill,
                    InvalidArgument,
                    "fill {fill} is not a value of {}",
                    tile.dtype
                );
                one(tile)
            }
            Self::Store {
                access,
                value,
                mask,
                hint: _,
            } => {
                let (window, tile) = (program.access_type(access)?, program.tile(*value)?);
                ensure!(
                    window.dtype == tile.dtype,
                    DTypeMismatch,
                    "store of {tile} into memory of {}",
                    window.dtype
                );
                ensure!(
                    window.shape == tile.shape,
                    ShapeMismatch,
                    "store of {tile} into a window of {:?}",
                    window.shape
                );
                program.mask(*mask, &window.shape)?;
                none()
            }
            Self::Gather {
                mem,
                index,
                mask,
                fill,
            } => {
                let tile = program.positions(*mem, *index)?;
                program.mask(*mask, &tile.shape)?;
                ensure!(
                    fill.cast(tile.dtype) == *fill,
                    InvalidArgument,
                    "fill {fill} is not a value of {}",
                    tile.dtype
                );
                one(tile)
            }
            Self::Scatter {
                mem,
                index,
                value,
                mask,
            } => {
                let (window, tile) = (program.positions(*mem, *index)?, program.tile(*value)?);
                ensure!(
                    window == *tile,
                    ShapeMismatch,
                    "scatter of {tile} to positions of {window}"
                );
                program.mask(*mask, &window.shape)?;
                none()
            }
            Self::Atomic {
                op,
                mem,
                index,
                value,
                mask,
            } => {
                let (window, tile) = (program.positions(*mem, *index)?, program.tile(*value)?);
                ensure!(
                    window == *tile,
                    ShapeMismatch,
                    "atomic {} of {tile} to positions of {window}",
                    op.name()
                );
                op.domain().check(op.name(), tile.dtype)?;
                program.mask(*mask, &window.shape)?;
                none()
            }
            Self::Reduce { op, value, axes } => {
                let mut tile = program.tile(*value)?.clone();
                op.domain().check(op.name(), tile.dtype)?;
                ensure!(
                    axes.windows(2).all(|pair| pair[0] < pair[1]),
                    DimOutOfRange,
                    "axes of a reduction rise, not {axes:?}"
                );
                for &axis in axes {
                    let axis = check_axis(axis, tile.shape.len())?;
                    tile.shape[axis] = 1;
                }
                one(tile)
            }
            Self::ArgReduce { op, value, axis } => {
                let (tile, to) = (program.tile(*value)?, claimed_tile(claimed, 0)?);
                Domain::Number.check(op.name(), tile.dtype)?;
                ensure!(
                    to.dtype.is_int(),
                    DTypeMismatch,
                    "positions are integers, not {}",
                    to.dtype
                );
                let mut shape = tile.shape.clone();
                shape[check_axis(*axis, tile.shape.len())?] = 1;
                one(TileType {
                    dtype: to.dtype,
                    shape,
                })
            }
            Self::Scan {
                op,
                value,
                axis,
                reverse: _,
            } => {
                let tile = program.tile(*value)?;
                op.domain().check(op.name(), tile.dtype)?;
                check_axis(*axis, tile.shape.len())?;
                one(tile.clone())
            }
            Self::Sort {
                value,
                axis,
                descending: _,
            } => {
                let tile = program.tile(*value)?;
                Domain::Any.check("sort", tile.dtype)?;
                check_axis(*axis, tile.shape.len())?;
                let mut types = vec![Type::Tile(tile.clone())];
                if claimed.len() > 1 {
                    let positions = claimed_tile(claimed, 1)?;
                    ensure!(
                        positions.dtype.is_int(),
                        DTypeMismatch,
                        "positions are integers, not {}",
                        positions.dtype
                    );
                    types.push(Type::Tile(TileType {
                        dtype: positions.dtype,
                        shape: tile.shape.clone(),
                    }));
                }
                Ok(types)
            }
            Self::Dot { a, b, acc } => {
                let out = program.tile(*acc)?;
                ensure!(
                    out.shape.len() == 2,
                    RankMismatch,
                    "`dot` is one product of rank 2, not {out}"
                );
                product(program, &MmaOperand::Tile(*a), &MmaOperand::Tile(*b), *acc)
            }
            Self::For {
                iv: _,
                lo,
                hi,
                step,
                inits,
                carried,
                body: _,
                unroll: _,
            } => {
                program.index(lo)?;
                program.index(hi)?;
                ensure!(
                    *step > 0,
                    InvalidArgument,
                    "a loop's step is positive, not {step}"
                );
                ensure!(
                    inits.len() == carried.len(),
                    ArityMismatch,
                    "{} starts for {} carried values",
                    inits.len(),
                    carried.len()
                );
                inits.iter().map(|v| program.ty(*v).cloned()).collect()
            }
            Self::If {
                cond,
                on_true,
                on_false: _,
            } => {
                let tile = program.tile(*cond)?;
                ensure!(
                    tile.dtype.is_bool() && tile.shape.is_empty(),
                    DTypeMismatch,
                    "a condition is a scalar bool, not {tile}"
                );
                on_true
                    .yields
                    .iter()
                    .map(|v| program.ty(*v).cloned())
                    .collect()
            }
            Self::Pick { mems, index } => {
                program.index(&Index::Val(*index))?;
                let first = mems
                    .first()
                    .ok_or_else(|| err!(InvalidKernel, "a pick among no memories"))?;
                Ok(vec![Type::Mem(program.mem(*first)?.clone())])
            }
            Self::Alloc => {
                let mem = claimed
                    .first()
                    .and_then(Type::as_mem)
                    .ok_or_else(|| err!(InvalidKernel, "alloc gives a memory"))?;
                ensure!(
                    mem.space != Space::Global,
                    InvalidKernel,
                    "an instance cannot allocate global memory"
                );
                ensure!(
                    mem.len.is_some_and(|len| len > 0 && len <= 1 << 31),
                    InvalidKernel,
                    "an allocated memory has a static length between 1 and 2^31"
                );
                Ok(vec![Type::Mem(mem.clone())])
            }
            Self::ConvertLayout { value } => one(program.tile(*value)?.clone()),
            Self::Mma {
                a,
                b,
                acc,
                asynchronous: _,
            } => product(program, a, b, *acc),
            Self::MmaWait { pending: _, accs } => accs
                .iter()
                .map(|v| program.tile(*v).cloned().map(Type::Tile))
                .collect(),
            Self::TensorLoad {
                map,
                coords,
                dst,
                base,
                barrier,
            } => {
                tensor_copy(program, *map, coords, *dst, base)?;
                program.barrier(barrier)?;
                none()
            }
            Self::TensorStore {
                map,
                coords,
                src,
                base,
            } => {
                tensor_copy(program, *map, coords, *src, base)?;
                none()
            }
            Self::CopyAsync { src, dst } => {
                let (from, to) = (program.access_type(src)?, program.access_type(dst)?);
                ensure!(
                    from == to,
                    ShapeMismatch,
                    "an asynchronous copy of {from} to {to}"
                );
                ensure!(
                    program.mem(src.mem)?.space == Space::Global,
                    InvalidKernel,
                    "an asynchronous copy reads global memory"
                );
                ensure!(
                    program.mem(dst.mem)?.space == Space::Shared,
                    InvalidKernel,
                    "an asynchronous copy writes shared memory"
                );
                none()
            }
            Self::BarrierInit { barrier, count } => {
                ensure!(
                    *count > 0,
                    InvalidArgument,
                    "a barrier completes after at least one arrival"
                );
                program.barrier(barrier)?;
                none()
            }
            Self::BarrierArrive {
                barrier,
                bytes,
                per_warp: _,
            } => {
                ensure!(
                    bytes.is_none_or(|bytes| bytes >= 0),
                    InvalidArgument,
                    "a negative number of bytes"
                );
                program.barrier(barrier)?;
                none()
            }
            Self::BarrierWait { barrier, parity } => {
                program.barrier(barrier)?;
                let tile = program.tile(*parity)?;
                ensure!(
                    tile.dtype == DType::I32 && tile.shape.is_empty(),
                    DTypeMismatch,
                    "a parity is a scalar i32, not {tile}"
                );
                none()
            }
            Self::MmaCommit
            | Self::CopyCommit
            | Self::CopyWait { .. }
            | Self::Sync
            | Self::FenceAsync
            | Self::Roles { .. } => none(),
        }
    }
}

fn product(program: &Program, a: &MmaOperand, b: &MmaOperand, acc: Val) -> Result<Vec<Type>> {
    let (a, b) = (
        program.mma_operand(a, false)?,
        program.mma_operand(b, true)?,
    );
    let (da, db) = (a.dtype, b.dtype);
    let out = program.tile(acc)?;
    ensure!(
        a.k == b.k,
        ShapeMismatch,
        "a product of depth {} and {}",
        a.k,
        b.k
    );
    ensure!(
        a.batch == b.batch,
        ShapeMismatch,
        "one operand of a product has a batch that the other has not"
    );
    let shape: Vec<i64> = a.batch.into_iter().chain([a.side, b.side]).collect();
    ensure!(
        out.shape == shape,
        ShapeMismatch,
        "a product of {shape:?} added to {out}"
    );
    ensure!(
        out.dtype.is_int() || (out.dtype.is_float() && !out.dtype.is_narrow_float()),
        DTypeMismatch,
        "{} cannot accumulate",
        out.dtype
    );
    for dtype in [da, db] {
        let kind_fits = dtype.is_float() == out.dtype.is_float() && !dtype.is_bool();
        ensure!(
            kind_fits && dtype.bits() <= out.dtype.bits(),
            DTypeMismatch,
            "a product of {da} and {db} added to {out}"
        );
    }
    Ok(vec![Type::Tile(out.clone())])
}

fn tensor_copy(
    program: &Program,
    map: Val,
    coords: &[Index],
    mem: Val,
    base: &Index,
) -> Result<()> {
    let param = program.tensor_map(map)?;
    ensure!(
        coords.len() == param.boxed.len(),
        RankMismatch,
        "{} coordinates for a tensor map of rank {}",
        coords.len(),
        param.boxed.len()
    );
    coords.iter().try_for_each(|index| program.index(index))?;
    program.index(base)?;
    let (memory, source) = (program.mem(mem)?, program.mem(param.buffer)?);
    ensure!(
        memory.space == Space::Shared,
        InvalidKernel,
        "{mem} is not a shared memory"
    );
    ensure!(
        memory.dtype == source.dtype,
        DTypeMismatch,
        "a box of {} beside memory of {}",
        source.dtype,
        memory.dtype
    );
    ensure!(
        memory.swizzle == param.swizzle,
        LayoutMismatch,
        "the tensor map and {mem} have different swizzles"
    );
    Ok(())
}

impl Program {
    /// What a tensor map parameter describes.
    pub fn tensor_map(&self, v: Val) -> Result<&crate::ir::TensorMapParam> {
        let found =
            self.params
                .iter()
                .find(|param| param.value == v)
                .and_then(|param| match &param.kind {
                    crate::ir::ParamKind::TensorMap(map) => Some(map),
                    crate::ir::ParamKind::Buffer(_) | crate::ir::ParamKind::Scalar { .. } => None,
                });
        found.ok_or_else(|| -> Error { err!(InvalidKernel, "{v} is not a tensor map parameter") })
    }
}
