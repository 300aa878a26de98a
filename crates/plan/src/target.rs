//! What the compiler may know of a machine: numbers, never names.

use oxyfuel_base::DType;
use serde::{Deserialize, Serialize};

/// Bytes of the widest access of a thread, where threads are the lanes.
pub const WIDEST_ACCESS: u32 = 16;

/// A machine as data. Two equal descriptions get equal code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetDesc {
    /// For people, logs and cache keys; nothing above the emitters may decide by it.
    pub name: String,
    /// What the emitter is told to use, in its own words (such as "x86-64 avx512 amx" or "sm_90a"); opaque elsewhere.
    pub isa: String,
    /// Bytes of one vector register (CPU); 0 where threads are the lanes.
    pub vector_bytes: u32,
    /// Threads that run in lock step; 1 on a CPU.
    pub warp_lanes: u32,
    /// Warps of the largest block; 1 on a CPU.
    pub max_warps: u32,
    /// Blocks that can carry one instance together, because each writes the shared memory of the others; 1 where none can.
    pub max_cluster: u32,
    /// Vector registers of a core, or 32-bit registers of a thread.
    pub registers: u32,
    /// Cores or multiprocessors.
    pub workers: u32,
    /// Private first-level cache of a worker, in bytes.
    pub l1_bytes: u64,
    /// Second level: private on a CPU, shared on a GPU.
    pub l2_bytes: u64,
    /// Memory that the warps of a block share; 0 on a CPU.
    pub shared_bytes: u32,
    /// Tiles larger than the register file run as loops with scratch. Otherwise a tile must fit into registers.
    pub tiles_spill: bool,
    /// Has powers of two of its own, within 3 ulp and zero below the normal numbers (`near_exp2`).
    pub powers_of_two: bool,
    /// Storage floats (fp8, fp4, e8m0) that its registers know, and turn into wider numbers.
    pub storage_floats: Vec<DType>,
    /// Storage floats that instructions make of wider numbers.
    pub narrowed: Vec<DType>,
    /// Has an engine that copies boxes by tensor maps and completes on barriers.
    pub tensor_copies: bool,
    pub matrix_units: Vec<MatrixUnit>,
    /// A library of the machine's vendor computes products there; see [`TargetDesc::leaves_product`].
    pub product_library: bool,
}

/// One instruction shape of a matrix unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatrixUnit {
    pub a: DType,
    pub b: DType,
    pub acc: DType,
    /// Largest tile of one instruction.
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Where the instruction reads its operands.
    pub operands: OperandHome,
    /// Elements along the depth that must lie next to each other in `b` (1: none; 2 for bf16 pairs; 4 for int8).
    pub b_pack: u32,
    /// How many accumulator tiles of `m x n` a worker (or warp group) can hold.
    pub accumulators: u32,
    /// Runs beside the program; results need a wait.
    pub asynchronous: bool,
    /// Warps that issue one instruction together; 1 on a CPU.
    pub warps: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperandHome {
    /// Ordinary vector registers of the worker or warp.
    Registers,
    /// Memory windows with a row stride, through matrix registers.
    Memory,
    /// Shared memory of the block.
    Shared,
}

impl TargetDesc {
    /// Elements of work beside which a launch still counts: on a CPU a barrier of its threads, on a GPU the microseconds of a launch (decision 79).
    pub fn launch_counts(&self) -> i64 {
        if self.is_simt() { 4 << 20 } else { 128 << 10 }
    }

    /// Elements up to which work that needs what was made just before shares its launch: with more, a launch of its own fills the machine. None where a launch is a barrier of threads that are there.
    pub fn gathered_counts(&self) -> i64 {
        if self.is_simt() { 64 << 10 } else { 0 }
    }

    /// Bytes in which memory is handed out: a call that holds less takes no more for holding its values a little longer.
    pub fn memory_granule(&self) -> i64 {
        if self.is_simt() { 2 << 20 } else { 1 }
    }

    /// A threads-are-lanes machine.
    pub fn is_simt(&self) -> bool {
        self.warp_lanes > 1
    }

    /// Bytes at whose multiples memory has to begin for the widest access of one thread; 1 where an access may begin anywhere.
    pub fn aligned_bytes(&self) -> u32 {
        if self.is_simt() { WIDEST_ACCESS } else { 1 }
    }

    pub fn matrix_unit(&self, a: DType, b: DType, acc: DType) -> Option<&MatrixUnit> {
        self.matrix_units
            .iter()
            .find(|unit| unit.a == a && unit.b == b && unit.acc == acc)
    }

    /// The unit with which groups of warps multiply operands in shared memory, where an engine copies them there.
    pub fn group_unit(&self, a: DType, b: DType, acc: DType) -> Option<&MatrixUnit> {
        let shared = |unit: &&MatrixUnit| unit.operands == OperandHome::Shared && unit.asynchronous;
        let unit = self.matrix_unit(a, b, acc).filter(shared);
        unit.filter(|_| self.tensor_copies)
    }

    /// Whether a product `[batch, m, n, k]` of fixed sizes is the library's: one that the matrix units have no kernel of ours for, and that is large enough to be worth a kernel of its own. Nothing is fused
    /// with it then.
    pub fn leaves_product(&self, dtype: DType, [batch, m, n, k]: [i64; 4]) -> bool {
        /// Multiply-adds from which a product takes longer than the launches around it.
        const WORTH: i64 = 1 << 21;
        let sizes = [batch, m, n, k];
        let work = sizes.iter().fold(1i64, |a, &b| a.saturating_mul(b));
        let ours = batch == 1 && self.group_unit(dtype, dtype, DType::F32).is_some();
        let theirs = matches!(dtype, DType::F32 | DType::F64 | DType::BF16 | DType::F16);
        self.product_library && theirs && !ours && work >= WORTH && m > 1 && n > 1
    }

    /// Whether a conversion to this dtype is one of the machine's.
    pub fn makes(&self, dtype: DType) -> bool {
        !dtype.is_narrow_float() || self.narrowed.contains(&dtype)
    }

    /// Lanes of one vector (CPU) or warp for elements of at most `element_bytes`.
    pub fn lanes(&self, element_bytes: u32) -> u32 {
        if self.is_simt() {
            self.warp_lanes
        } else {
            (self.vector_bytes / element_bytes.max(4)).max(1)
        }
    }
}
