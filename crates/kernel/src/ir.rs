//! KERNEL, the tile IR: what one program instance of a grid does with tiles.
//!
//! A [`Program`] has parameters and one or more phases; a phase is a grid of program instances that all run the same block. Values are SSA:
//! *tiles* (n-dimensional arrays of a static shape; a scalar is a tile of rank 0), *memories* (buffers in a space), and *tensor maps*.
//! All memory traffic goes through an [`Access`]: an affine window into a memory, or through gather and scatter with explicit index tiles.
//!
//! There is one op table ([`Op`]) and there are two verified forms of the same program:
//!
//! * **Logical**: tiles of any shape, without layouts, memory spaces or barriers. The compiler's fusions and the kernel language produce it.
//! * **Mapped**: the same program placed on a machine. Every tile value has a [`TileLayout`], memories may be allocated in a [`Space`], products
//!   ([`Op::Mma`]) name the memories that their operands live in, copies are asynchronous and complete on barriers, and [`Op::Roles`] gives
//!   groups of warps programs of their own.
//!
//! # Meaning
//! * Phases run one after the other; all writes of a phase are visible to the next one. Instances of one phase run in any order and
//!   concurrently; two instances must not touch the same element unless both only read it or both use [`Op::Atomic`].
//! * In a program of several rounds all phases run once a round, each on its part of the grid: what one phase leaves for another in a workspace may be as large as a part, not as all.
//! * Where a program is gathered, a GPU launches a few blocks that run all instances of all phases; it changes speed, never results.
//! * Integer arithmetic wraps. Integer `div` and `rem` truncate, `floordiv` and `mod` round down; division by zero gives 0 (a defined value,
//!   never a trap). Shifts by at least the width give 0, or the sign for an arithmetic shift right.
//! * Float arithmetic rounds once for each op to the dtype of the result; `fma` rounds once; targets never contract `mul` and `add` by themselves. Denormals are kept.
//! * `min` and `max` return NaN when either operand is NaN, and order -0 below +0.
//! * Casts: float to narrower float rounds to nearest even (fp8: e4m3 saturates, e5m2 overflows to infinity, as in `oxyfuel_base::convert`);
//!   float to integer truncates and saturates, NaN gives 0; integer to integer wraps; anything to bool is `x != 0`.
//! * A reduction may add in any order, the same for each run of the same code on the same target.
//! * Reading an element that nothing wrote, touching memory out of bounds, and races are errors that the interpreter reports.

use oxyfuel_base::{Arena, DType, Expr, Scalar, Symbol, define_id};
use serde::{Deserialize, Serialize};

define_id!(
    /// An SSA value of a program.
    pub struct Val ""
);

/// Which of the two forms a program claims to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Form {
    Logical,
    Mapped,
}

/// A whole kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub name: String,
    pub form: Form,
    pub params: Vec<Param>,
    pub values: Arena<Val, ValueData>,
    /// How many lanes, warps and blocks of a cluster carry one instance. All ones in the logical form.
    pub geometry: Geometry,
    pub phases: Vec<Phase>,
    /// How often the phases run, one after the other: each time an equal part of every grid's last axis, in order. Mostly once.
    pub rounds: u32,
    /// Blocks that run all phases in one launch and meet after each of them, every instance by one of them; 0: each phase is a launch of its own.
    pub gathered: u32,
}

impl Program {
    /// By parameter: whether the kernel writes it.
    pub fn written(&self) -> Vec<bool> {
        let writes = |param: &Param| match &param.kind {
            ParamKind::Buffer(buffer) => buffer.mode != BufferMode::Read,
            ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => false,
        };
        self.params.iter().map(writes).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueData {
    pub ty: Type,
    /// Present on every tile value of a mapped program, absent otherwise.
    pub layout: Option<TileLayout>,
    /// A name for people; need not be unique.
    pub name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Type {
    Tile(TileType),
    Mem(MemType),
    /// The descriptor of a tensor in global memory that a copy engine reads boxes of; only a parameter has it.
    TensorMap,
}

/// An array of a static shape. Rank 0 is a scalar.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TileType {
    pub dtype: DType,
    pub shape: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemType {
    pub dtype: DType,
    pub space: Space,
    /// Length in elements where it is static (every memory but a buffer parameter).
    pub len: Option<i64>,
    /// Permutes addresses of a shared memory so that columns do not meet in one bank.
    pub swizzle: Option<Swizzle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Space {
    /// Memory of the device, visible to all instances.
    Global,
    /// Memory of one instance that its warps share (GPU shared memory).
    Shared,
    /// Memory private to a worker, small enough to stay in its cache (per-worker scratch).
    Panel,
    /// Tensor memory of newer GPUs.
    Tensor,
}

/// XOR swizzle on byte addresses: the `bits` bits at position `base + shift` are XORed into those at `base`. The usual 128-byte swizzle is
/// `Swizzle { bits: 3, base: 4, shift: 3 }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Swizzle {
    pub bits: u8,
    pub base: u8,
    pub shift: u8,
}

impl Swizzle {
    pub const B128: Self = Self {
        bits: 3,
        base: 4,
        shift: 3,
    };
    pub const B64: Self = Self {
        bits: 2,
        base: 4,
        shift: 3,
    };
    pub const B32: Self = Self {
        bits: 1,
        base: 4,
        shift: 3,
    };

    pub fn apply(self, byte: u64) -> u64 {
        let mask = ((1u64 << self.bits) - 1) << (self.base + self.shift);
        byte ^ ((byte & mask) >> self.shift)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Param {
    pub value: Val,
    pub name: String,
    pub kind: ParamKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ParamKind {
    Buffer(BufferParam),
    /// A number given at launch; `symbol` ties it to a symbolic dim, so that grids and lengths may mention it.
    Scalar {
        dtype: DType,
        symbol: Option<Symbol>,
    },
    TensorMap(TensorMapParam),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferParam {
    pub dtype: DType,
    pub mode: BufferMode,
    /// Length in elements, for the interpreter's bounds and for workspaces. `None`: unknown.
    pub len: Option<Expr>,
    /// Known alignment of the pointer in bytes (a power of two).
    pub align: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BufferMode {
    Read,
    Write,
    ReadWrite,
    /// Scratch in global memory that phases hand data through; its contents are undefined at launch.
    Workspace,
}

/// Says how the host builds a copy engine's descriptor for a launch. Dims are listed slowest first, as shapes are everywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorMapParam {
    /// The buffer parameter it describes.
    pub buffer: Val,
    pub dims: Vec<Expr>,
    /// In elements; the last one is 1.
    pub strides: Vec<Expr>,
    /// What one copy moves.
    pub boxed: Vec<i64>,
    pub swizzle: Option<Swizzle>,
}

/// What carries one instance. On a CPU: one warp whose lanes are vector lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    pub lanes: u32,
    pub warps: u32,
    pub cluster: [u32; 3],
    /// Upper bound on registers a thread may use at entry; 0: the target decides.
    pub registers: u32,
}

impl Geometry {
    pub const LOGICAL: Self = Self {
        lanes: 1,
        warps: 1,
        cluster: [1; 3],
        registers: 0,
    };
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Extents of up to three axes, over the symbols of scalar parameters. Axis 0 is the fastest in the plain order.
    pub grid: Vec<Expr>,
    pub order: Order,
    /// Stores of this phase may fall on one element, from equal positions of a scatter or from several instances: one of them stays, each element's own. Otherwise that is a race.
    pub overlaps: bool,
    pub body: Block,
}

/// In which order instances are handed out. It changes speed, never results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Order {
    /// Axis 0 fastest.
    Plain,
    /// Axes 0 and 1 in bands: `group` steps of axis 0 for each step of axis 1, so that neighbours share operands in cache.
    Grouped { group: u32 },
    /// As `Grouped` (a group of 1 is plain), but a fixed number of workers each take many instances in turn.
    Persistent { group: u32 },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Block {
    pub insts: Vec<Inst>,
    /// What the block hands to the op that owns it.
    pub yields: Vec<Val>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inst {
    pub op: Op,
    pub results: Vec<Val>,
}

/// A number known while compiling, or a scalar `i64` value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Index {
    Const(i64),
    Val(Val),
}

/// An affine window: coordinate `c` of a tile of shape `shape` is element `base + sum(c[d] * strides[d])` of `mem`, before the memory's swizzle.
/// It is touched only where `c[d] < valid[d]` for every `d` that has a bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Access {
    pub mem: Val,
    pub base: Index,
    pub shape: Vec<i64>,
    pub strides: Vec<Index>,
    pub valid: Vec<Option<Index>>,
}

/// What the program knows of how soon data is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CacheHint {
    #[default]
    Default,
    /// Not used again soon: stores may bypass the caches.
    Streaming,
    /// Let go of last: what passes through the caches beside it takes the room of other data.
    Kept,
    /// In order and far from the processor: the lines that follow are asked for.
    Ahead,
}

/// An operand of [`Op::Mma`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MmaOperand {
    /// In registers, `[rows, k]` for `a` and `[k, cols]` for `b`; `[batch, rows, k]` and `[batch, k, cols]` are products of their own, into `[batch, rows, cols]`.
    Tile(Val),
    /// In memory. `dims` says for each dim of the access whether it counts along the product's depth (`K`) or along the operand's own side
    /// (`Side`: rows for `a`, columns for `b`). Several dims of one kind compose, the first being the slowest: pairs interleaved along the depth are
    /// `[k/2, n, 2]` with `K, Side, K`; columns in blocks of 64 are `[k, n/64, 64]` with `K, Side, Side` and strides of their own.
    Mem { access: Access, dims: Vec<MmaDim> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MmaDim {
    K,
    Side,
}

/// A group of warps with a program of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Role {
    pub name: String,
    pub first_warp: u32,
    pub warps: u32,
    /// Registers each thread asks for on entry; 0: leaves them as they are.
    pub registers: u32,
    pub body: Block,
}

/// A slot of a barrier memory: a shared memory of dtype `u64` whose elements are barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BarrierRef {
    pub mem: Val,
    pub slot: Index,
}

/// Every op of both forms. Result types follow from operands and attributes, or stand on the result value where the text says "result".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    // ---- where am I -------------------------------------------------------------------------------------------------------------
    /// Position of this instance on an axis of the grid: scalar i64.
    ProgramId {
        axis: u8,
    },
    /// Extent of an axis of the grid: scalar i64.
    NumPrograms {
        axis: u8,
    },
    /// The memory of number `index` (scalar i64) among buffer parameters that stand one behind the other and are of one kind: work on tensors of one's own, shared by instances.
    Pick {
        mems: Vec<Val>,
        index: Val,
    },
    // ---- making tiles -----------------------------------------------------------------------------------------------------------
    /// A scalar literal; the dtype is the result's.
    Const {
        value: Scalar,
    },
    /// Coordinates along `dim`, in the result's integer dtype and shape.
    Iota {
        dim: u8,
    },
    /// A scalar in every place of the result's shape.
    Splat {
        value: Val,
    },
    /// Repeats dims of extent 1; the ranks are equal.
    Broadcast {
        value: Val,
    },
    /// The same elements in row-major order under another shape.
    Reshape {
        value: Val,
    },
    /// Dim `d` of the result is dim `perm[d]` of the operand.
    Permute {
        value: Val,
        perm: Vec<u8>,
    },
    // ---- elementwise: operands have one shape; scalars are tiles of rank 0 ------------------------------------------------------
    Unary {
        op: UnaryOp,
        value: Val,
    },
    Binary {
        op: BinaryOp,
        lhs: Val,
        rhs: Val,
    },
    /// Result dtype is bool.
    Compare {
        op: CompareOp,
        lhs: Val,
        rhs: Val,
    },
    /// `cond ? on_true : on_false`, element by element.
    Select {
        cond: Val,
        on_true: Val,
        on_false: Val,
    },
    /// `a * b + c`, rounded once.
    Fma {
        a: Val,
        b: Val,
        c: Val,
    },
    /// Converts the value to the result's dtype.
    Cast {
        value: Val,
    },
    /// The same bits as another dtype of equal width.
    Bitcast {
        value: Val,
    },
    // ---- memory -----------------------------------------------------------------------------------------------------------------
    /// Reads a window. Elements outside `valid`, or where `mask` is false, are `fill`.
    Load {
        access: Access,
        mask: Option<Val>,
        fill: Scalar,
        hint: CacheHint,
    },
    /// Writes a window inside `valid` and where `mask` is true.
    Store {
        access: Access,
        value: Val,
        mask: Option<Val>,
        hint: CacheHint,
    },
    /// `mem[index]` for an integer tile of element positions; `fill` where `mask` is false.
    Gather {
        mem: Val,
        index: Val,
        mask: Option<Val>,
        fill: Scalar,
    },
    /// `mem[index] = value` where `mask` is true. Equal positions within one tile are an error, unless the phase overlaps.
    Scatter {
        mem: Val,
        index: Val,
        value: Val,
        mask: Option<Val>,
    },
    /// Combines into `mem[index]` atomically; no result.
    Atomic {
        op: ReduceOp,
        mem: Val,
        index: Val,
        value: Val,
        mask: Option<Val>,
    },
    // ---- across elements --------------------------------------------------------------------------------------------------------
    /// Combines along `axes`, which keep extent 1.
    Reduce {
        op: ReduceOp,
        value: Val,
        axes: Vec<u8>,
    },
    /// Position of the first extreme along `axis` (kept with extent 1), in the result's integer dtype; NaN counts as the extreme.
    ArgReduce {
        op: ArgOp,
        value: Val,
        axis: u8,
    },
    /// Running combination along `axis`, including the element itself.
    Scan {
        op: ReduceOp,
        value: Val,
        axis: u8,
        reverse: bool,
    },
    /// Sorts along `axis`; stable. With two results the second is the original positions in its own integer dtype.
    Sort {
        value: Val,
        axis: u8,
        descending: bool,
    },
    /// `acc + a @ b` with `a: [m, k]`, `b: [k, n]`, products and sums in the dtype of `acc`. Logical form only.
    Dot {
        a: Val,
        b: Val,
        acc: Val,
    },
    // ---- control ----------------------------------------------------------------------------------------------------------------
    /// `for iv in (lo..hi).step_by(step)`; `carried` enter the body as its parameters, start as `inits`, and become the block's yields; results are the
    /// last ones. `unroll` is a hint (1: none, 0: fully).
    For {
        iv: Val,
        lo: Index,
        hi: Index,
        step: i64,
        inits: Vec<Val>,
        carried: Vec<Val>,
        body: Block,
        unroll: u32,
    },
    /// `cond` is a scalar bool.
    If {
        cond: Val,
        on_true: Block,
        on_false: Block,
    },
    // ---- mapped form only -------------------------------------------------------------------------------------------------------
    /// A memory of the result's type, in `Shared`, `Panel` or `Tensor`; lives to the end of the instance.
    Alloc,
    /// The same tile under the result's layout.
    ConvertLayout {
        value: Val,
    },
    /// `acc + a @ b` on the target's matrix or vector unit; the accumulator is updated in place (its operand must not be used again). The unit
    /// follows from the accumulator's layout and the operands' spaces. `asynchronous`: the result must not be read before an `MmaWait`.
    Mma {
        a: MmaOperand,
        b: MmaOperand,
        acc: Val,
        asynchronous: bool,
    },
    /// Closes a group of asynchronous products.
    MmaCommit,
    /// Waits until at most `pending` groups of products are unfinished, and hands the accumulators on as results.
    MmaWait {
        pending: u32,
        accs: Vec<Val>,
    },
    /// Copies the box at `coords` of a tensor map into `dst` from element `base` on; completes on `barrier` with the box's bytes. Once per role.
    TensorLoad {
        map: Val,
        coords: Vec<Index>,
        dst: Val,
        base: Index,
        barrier: BarrierRef,
    },
    /// Copies from `src` at element `base` into the box at `coords`; parts outside the tensor are dropped. Once per role; part of the current copy group.
    TensorStore {
        map: Val,
        coords: Vec<Index>,
        src: Val,
        base: Index,
    },
    /// Copies a window of global memory into a window of shared memory of the same shape, as part of the current copy group.
    CopyAsync {
        src: Access,
        dst: Access,
    },
    /// Closes a group of asynchronous copies.
    CopyCommit,
    /// Waits until at most `pending` copy groups are unfinished.
    CopyWait {
        pending: u32,
    },
    /// Makes a barrier that completes a phase after `count` arrivals and the announced bytes. Once per instance, before any use.
    BarrierInit {
        barrier: BarrierRef,
        count: u32,
    },
    /// Arrives once per role, announcing `bytes` that asynchronous copies will deliver. With `per_warp` every warp of the role arrives.
    BarrierArrive {
        barrier: BarrierRef,
        bytes: Option<i64>,
        per_warp: bool,
    },
    /// Waits until the phase of this parity (scalar i32, 0 or 1) has completed.
    BarrierWait {
        barrier: BarrierRef,
        parity: Val,
    },
    /// All warps of the instance (or of the role, inside one) wait for each other; their writes to shared memory are visible afterwards.
    Sync,
    /// Orders earlier ordinary writes to shared memory before later asynchronous reads of it.
    FenceAsync,
    /// Warps go their own ways. Role bodies have no results; roles cover disjoint warps.
    Roles {
        roles: Vec<Role>,
    },
}

/// One row an op: variant, name, doc.
macro_rules! op_names {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $text:literal, $doc:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $(#[doc = $doc] $variant,)* }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What it means, in one line.
            pub fn doc(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

op_names!(
    /// Elementwise ops of one operand. The transcendental ones exist until `lower` expands them.
    UnaryOp {
        Neg = "neg", "`-x`; integers wrap.";
        Abs = "abs", "`|x|`.";
        Not = "not", "Bitwise complement; logical on bool.";
        Sqrt = "sqrt", "Correctly rounded square root.";
        Rsqrt = "rsqrt", "`1 / sqrt(x)`, within 1 ulp.";
        Recip = "recip", "`1 / x`, correctly rounded.";
        NearRecip = "near_recip", "`1 / x` within 2 ulp; what is below the normal numbers may be zero.";
        Floor = "floor", "Towards minus infinity.";
        Ceil = "ceil", "Towards plus infinity.";
        Trunc = "trunc", "Towards zero.";
        Round = "round", "To nearest, ties to even.";
        Exp = "exp", "`e^x`.";
        Exp2 = "exp2", "`2^x`.";
        NearExp2 = "near_exp2", "`2^x` within 3 ulp; what is below the normal numbers may be zero.";
        Expm1 = "expm1", "`e^x - 1` without cancellation.";
        Log = "log", "Natural logarithm.";
        Log2 = "log2", "Logarithm to base 2.";
        Log1p = "log1p", "`log(1 + x)` without cancellation.";
        Sin = "sin", "Sine.";
        Cos = "cos", "Cosine.";
        Tanh = "tanh", "Hyperbolic tangent.";
        Atan = "atan", "Arc tangent.";
        Erf = "erf", "Error function.";
        Erfc = "erfc", "`1 - erf(x)` without cancellation.";
        Sigmoid = "sigmoid", "`1 / (1 + e^-x)`.";
        IsNan = "isnan", "True for NaN; result is bool.";
    }
);

op_names!(
    /// Elementwise ops of two operands of one dtype.
    BinaryOp {
        Add = "add", "Sum.";
        Sub = "sub", "Difference.";
        Mul = "mul", "Product.";
        Div = "div", "Quotient; integers truncate.";
        Rem = "rem", "Remainder of the truncated quotient (C's `%` and `fmod`).";
        FloorDiv = "floordiv", "Quotient rounded down; integers only.";
        Mod = "mod", "Remainder of the floored quotient; integers only.";
        Min = "min", "Smaller; NaN wins.";
        Max = "max", "Larger; NaN wins.";
        Pow = "pow", "`x^y`.";
        And = "and", "Bitwise and; logical on bool.";
        Or = "or", "Bitwise or.";
        Xor = "xor", "Bitwise exclusive or.";
        Shl = "shl", "Shift left.";
        Shr = "shr", "Shift right: arithmetic for signed dtypes.";
    }
);

op_names!(
    /// Comparisons; every ordered one is false with NaN, `ne` is true.
    CompareOp {
        Eq = "eq", "Equal.";
        Ne = "ne", "Not equal.";
        Lt = "lt", "Less.";
        Le = "le", "Less or equal.";
        Gt = "gt", "Greater.";
        Ge = "ge", "Greater or equal.";
    }
);

op_names!(
    /// Associative combinations.
    ReduceOp {
        Sum = "sum", "Sum.";
        Prod = "prod", "Product.";
        Min = "min", "Smallest; NaN wins.";
        Max = "max", "Largest; NaN wins.";
        Any = "any", "Logical or of bools.";
        All = "all", "Logical and of bools.";
    }
);

op_names!(
    /// Extremes by position.
    ArgOp {
        Min = "argmin", "Smallest.";
        Max = "argmax", "Largest.";
    }
);

/// Where the elements of a tile live: from (cluster block, warp, lane, register) to coordinates.
///
/// Each level is a list of modes, the fastest first; an index of the level is split over the modes' extents, and every mode adds `index * stride` to the coordinate of
/// its dim. A mode of stride 0 replicates. Invariants: every coordinate of the tile is reached; coordinates outside the shape (when extents do not divide
/// it) are inactive: loads there are skipped, reductions ignore them. On a CPU, lanes are the lanes of a vector register and `reg` is the space that loops run over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TileLayout {
    pub cluster: Vec<Mode>,
    pub warp: Vec<Mode>,
    pub lane: Vec<Mode>,
    pub reg: Vec<Mode>,
    /// The tile lives in matrix registers (AMX tiles, tensor memory) instead of vector registers.
    pub matrix: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mode {
    pub dim: u8,
    pub extent: u32,
    pub stride: u32,
}

impl Type {
    pub fn scalar(dtype: DType) -> Self {
        Self::Tile(TileType {
            dtype,
            shape: Vec::new(),
        })
    }

    pub fn tile(dtype: DType, shape: &[i64]) -> Self {
        Self::Tile(TileType {
            dtype,
            shape: shape.to_vec(),
        })
    }

    pub fn as_tile(&self) -> Option<&TileType> {
        match self {
            Self::Tile(tile) => Some(tile),
            Self::Mem(_) | Self::TensorMap => None,
        }
    }

    pub fn as_mem(&self) -> Option<&MemType> {
        match self {
            Self::Mem(mem) => Some(mem),
            Self::Tile(_) | Self::TensorMap => None,
        }
    }
}

impl TileType {
    pub fn len(&self) -> i64 {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
