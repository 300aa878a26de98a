//! The op table: one row an op, with its name in text and the forms it is allowed in. `docs/kernel.md` and the verifier read it.

use crate::ir::{Form, Op};

/// In which forms an op may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forms {
    Both,
    Logical,
    Mapped,
}

impl Forms {
    pub fn allows(self, form: Form) -> bool {
        match (self, form) {
            (Self::Both, _) | (Self::Logical, Form::Logical) | (Self::Mapped, Form::Mapped) => true,
            (Self::Logical, Form::Mapped) | (Self::Mapped, Form::Logical) => false,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Logical => "logical",
            Self::Mapped => "mapped",
        }
    }
}

/// What the table says of an op.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The word in text; families (`unary`, `reduce`, …) are written with their member's name.
    pub name: &'static str,
    pub forms: Forms,
    /// How it is written.
    pub syntax: &'static str,
    pub doc: &'static str,
}

macro_rules! op_table {
    ($($variant:ident $name:literal $forms:ident $syntax:literal $doc:literal;)*) => {
        /// Every op, in the order of [`Op`].
        pub const TABLE: &[Row] = &[$(Row { name: $name, forms: Forms::$forms, syntax: $syntax, doc: $doc },)*];

        #[derive(Clone, Copy)]
        #[repr(usize)]
        enum Position { $($variant,)* }

        impl Op {
            /// The op's row of the table.
            pub fn row(&self) -> &'static Row {
                match self { $(Self::$variant { .. } => &TABLE[Position::$variant as usize],)* }
            }
        }
    };
}

op_table! {
    ProgramId     "program_id"     Both    "program_id 0" "Position of this instance on an axis of the grid.";
    NumPrograms   "num_programs"   Both    "num_programs 0" "Extent of an axis of the grid.";
    Pick          "pick"           Both    "pick (%a, %b) [%i]" "The memory of number `%i` among buffer parameters that stand one behind the other.";
    Const         "const"          Both    "const 2.0" "A scalar literal of the result's dtype.";
    Iota          "iota"           Both    "iota 1" "Coordinates along a dim, in the result's integer dtype and shape.";
    Splat         "splat"          Both    "splat %a" "A scalar in every place of the result's shape.";
    Broadcast     "broadcast"      Both    "broadcast %a" "Repeats dims of extent 1 to the result's shape; the ranks are equal.";
    Reshape       "reshape"        Both    "reshape %a" "The same elements in row-major order under the result's shape.";
    Permute       "permute"        Both    "permute %a [1, 0]" "Dim `d` of the result is dim `perm[d]` of the operand.";
    Unary         "unary"          Both    "exp %a" "One operand, element by element.";
    Binary        "binary"         Both    "add %a, %b" "Two operands of one type, element by element.";
    Compare       "compare"        Both    "lt %a, %b" "Two operands of one type; the result is bool.";
    Select        "select"         Both    "select %c, %a, %b" "`%c ? %a : %b`, element by element.";
    Fma           "fma"            Both    "fma %a, %b, %c" "`%a * %b + %c`, rounded once.";
    Cast          "cast"           Both    "cast %a" "Converts the value to the result's dtype.";
    Bitcast       "bitcast"        Both    "bitcast %a" "The same bits as the result's dtype of equal width.";
    Load          "load"           Both    "load %x[%base; %stride, 1] valid [_, %n] mask %m fill 0.0 streaming" "Reads a window of the result's shape; `fill` outside the bounds or the mask. `streaming`: not wanted again soon; `kept`: let go of last; `ahead`: in order, the lines that follow are asked for.";
    Store         "store"          Both    "store %x[%base; %stride, 1] valid [_, %n], %v mask %m streaming" "Writes a window inside the bounds and the mask.";
    Gather        "gather"         Both    "gather %x[%i] mask %m fill 0.0" "`%x[%i]` for integer positions; `fill` outside the mask.";
    Scatter       "scatter"        Both    "scatter %x[%i], %v mask %m" "`%x[%i] = %v`; equal positions within the tile are an error, unless the phase overlaps.";
    Atomic        "atomic"         Both    "atomic.sum %x[%i], %v mask %m" "Combines into `%x[%i]` atomically.";
    Reduce        "reduce"         Both    "reduce.sum %a [1]" "Combines along axes, which keep extent 1.";
    ArgReduce     "argreduce"      Both    "argmax %a 1" "Position of the first extreme along an axis, which keeps extent 1.";
    Scan          "scan"           Both    "scan.sum %a 1 reverse" "Running combination along an axis, the element itself included.";
    Sort          "sort"           Both    "sort %a 1 descending" "Sorts along an axis, stable; a second result is the original positions.";
    Dot           "dot"            Logical "dot %a, %b, %acc" "`%acc + %a @ %b` for `[m, k]` and `[k, n]`.";
    For           "for"            Both    "for %i = 0 to %n step 1 unroll 4 (%c = %init) { … yield %next }" "A counted loop with carried values.";
    If            "if"             Both    "if %c { … yield %a } else { … yield %b }" "A branch on a scalar bool.";
    Alloc         "alloc"          Mapped  "alloc" "A memory of the result's type for this instance.";
    ConvertLayout "convert_layout" Mapped  "convert_layout %a" "The same tile under the result's layout.";
    Mma           "mma"            Mapped  "mma %a, %b[%base; 64, 2, 1] shape [8, 32, 2] dims [k, side, k], %acc async" "`%acc + %a @ %b` on the target's matrix or vector unit, in place.";
    MmaCommit     "mma_commit"     Mapped  "mma_commit" "Closes a group of asynchronous products.";
    MmaWait       "mma_wait"       Mapped  "mma_wait 1 (%acc)" "Waits until at most so many groups of products are unfinished; hands the accumulators on.";
    TensorLoad    "tensor_load"    Mapped  "tensor_load %map [%i, %j] to %s[%base] on %bar[%slot]" "Copies a box of a tensor into shared memory, completing on a barrier.";
    TensorStore   "tensor_store"   Mapped  "tensor_store %map [%i, %j] from %s[%base]" "Copies shared memory into a box of a tensor, as part of the current copy group.";
    CopyAsync     "copy_async"     Mapped  "copy_async %x[%base; 64, 1] shape [8, 64] to %s[0; 64, 1] shape [8, 64]" "Copies a window of global memory into shared memory, as part of the current copy group.";
    CopyCommit    "copy_commit"    Mapped  "copy_commit" "Closes a group of asynchronous copies.";
    CopyWait      "copy_wait"      Mapped  "copy_wait 1" "Waits until at most so many copy groups are unfinished.";
    BarrierInit   "barrier_init"   Mapped  "barrier_init %bar[0] count 1" "Makes a barrier that completes a phase after so many arrivals and the announced bytes.";
    BarrierArrive "barrier_arrive" Mapped  "barrier_arrive %bar[%slot] bytes 4096 per_warp" "Arrives, once per role or per warp.";
    BarrierWait   "barrier_wait"   Mapped  "barrier_wait %bar[%slot] parity %p" "Waits until the phase of this parity has completed.";
    Sync          "sync"           Mapped  "sync" "All warps of the instance or role wait for each other.";
    FenceAsync    "fence_async"    Mapped  "fence_async" "Orders ordinary writes to shared memory before later asynchronous reads.";
    Roles         "roles"          Mapped  "roles { role producer warps 0+1 registers 40 { … } … }" "Groups of warps run programs of their own.";
}
