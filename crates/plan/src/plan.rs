//! The plan itself.

use oxyfuel_base::{Arena, DType, Expr, External, Scalar, Symbol, define_id};
use serde::{Deserialize, Serialize};

use crate::features::CpuFeatures;

define_id!(
    /// A buffer of a plan.
    pub struct BufferId "b"
);
define_id!(
    /// A kernel of a plan.
    pub struct KernelId "k"
);

/// Everything that is needed to run a compiled graph.
///
/// Invariants, checked by [`crate::verify`]: every id exists; a step reads only buffers that are inputs, constants or written by an earlier step; arena buffers whose
/// lifetimes overlap do not overlap in memory; what lies within an output is dead before a step touches the output, and what lies within a buffer of the host's lives while that does and is all that lies there; argument lists match kernel parameters in number and kind; every output has a home.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    /// [`crate::TargetDesc::isa`] of the machine it was made for.
    pub isa: String,
    /// How symbols get their numbers from the inputs of a call.
    pub symbols: Vec<SymbolBinding>,
    /// What must hold of the sizes of a call beyond the ranges of the symbols.
    pub limits: Vec<SizeLimit>,
    pub inputs: Vec<InputSpec>,
    pub outputs: Vec<OutputSpec>,
    pub buffers: Arena<BufferId, Buffer>,
    /// Bytes of the arena that holds all buffers of [`BufferHome::Arena`].
    pub arena_bytes: Expr,
    pub kernels: Arena<KernelId, Kernel>,
    pub steps: Vec<Step>,
}

/// Where a symbol gets its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymbolBinding {
    pub symbol: Symbol,
    pub source: SymbolSource,
    /// The range that the code was made for; `i64::MAX` without an upper end.
    pub min: i64,
    pub max: i64,
}

/// A size that must not exceed another one. Kernels rely on it and check nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeLimit {
    pub size: Expr,
    pub limit: Expr,
    /// Whose size it is, for the message.
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SymbolSource {
    /// An extent of an input.
    Extent { input: u32, dim: u32 },
    /// The caller says it.
    Given,
    /// What an external step of the plan binds.
    Step(u32),
}

/// What an input must look like; the guards of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputSpec {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<Expr>,
    /// In elements.
    pub strides: Vec<Expr>,
    /// Alignment that the code relies on, in bytes.
    pub align: u32,
    pub buffer: BufferId,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputSpec {
    pub dtype: DType,
    pub shape: Vec<Expr>,
    pub strides: Vec<Expr>,
    pub buffer: BufferId,
    /// Element offset of the output in its buffer (an output may be a view of an input).
    pub offset: Expr,
    /// The output is a mutated or viewed input, which one.
    pub alias: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    pub name: String,
    pub home: BufferHome,
    pub bytes: Expr,
    pub align: u32,
    /// First and last step that touch it.
    pub first_step: u32,
    pub last_step: u32,
    /// What the host makes it as, where the host owns it or gives it to the caller.
    pub tensor: Option<TensorSpec>,
}

/// A tensor that fills a buffer from its first byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorSpec {
    pub dtype: DType,
    pub shape: Vec<Expr>,
    /// In elements.
    pub strides: Vec<Expr>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BufferHome {
    Input(u32),
    /// Allocated for each call and given to the caller.
    Output(u32),
    Arena {
        offset: Expr,
    },
    /// Bytes that belong to the plan.
    Constant(Vec<u8>),
    /// The host's: returned by an external step, or made by the host before our kernels write it. An object that only the host understands has no tensor.
    Host,
    /// In the memory of an output, before any step touches that; or of a buffer of the host's that no step touches at all, while it is there.
    Within {
        buffer: BufferId,
        offset: Expr,
    },
}

/// Where a kernel came from, for explain, profiles and listings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Source ops in order, such as "add", "relu".
    pub ops: Vec<String>,
    /// Source lines, "file:line".
    pub lines: Vec<String>,
    /// Nodes of the imported program, by its names for them.
    pub sources: Vec<String>,
}

impl Provenance {
    /// Adds what the kernel does after that.
    pub fn then(&mut self, other: Provenance) {
        let ops = other.ops.clone();
        let before = self.ops.len();
        self.extend(other);
        if before > 0 {
            self.ops.extend(ops);
        }
    }

    /// Adds another place that the same kernel came from: its ops are the same, its lines and sources may be new.
    pub fn extend(&mut self, other: Provenance) {
        if self.ops.is_empty() {
            self.ops = other.ops;
        }
        for (list, more) in [
            (&mut self.lines, other.lines),
            (&mut self.sources, other.sources),
        ] {
            for item in more {
                if !list.contains(&item) {
                    list.push(item);
                }
            }
        }
    }
}

/// What a kernel must do at least: each input read once, each output written once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub bytes_read: Expr,
    pub bytes_written: Expr,
    pub flops: Expr,
    /// Of these, those of matrix products, which machines have units for.
    pub products: Expr,
}

impl Cost {
    /// Nothing moves and nothing happens.
    pub const NOTHING: Cost = Cost {
        bytes_read: Expr::ZERO,
        bytes_written: Expr::ZERO,
        flops: Expr::ZERO,
        products: Expr::ZERO,
    };

    /// What two pieces of work do together.
    #[must_use]
    pub fn and(&self, other: &Cost) -> Cost {
        Cost {
            bytes_read: &self.bytes_read + &other.bytes_read,
            bytes_written: &self.bytes_written + &other.bytes_written,
            flops: &self.flops + &other.flops,
            products: &self.products + &other.products,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    pub name: String,
    /// The mapped tile program as text: what the interpreter runs, what `dump` shows and what other targets are emitted from.
    pub program: String,
    pub artefact: Artefact,
    pub phases: Vec<KernelPhase>,
    /// How often the phases run, one after the other: each time an equal part of their instances, in order.
    pub rounds: u32,
    /// By parameter: whether it writes the buffer. Parameters that are not listed may write.
    pub written: Vec<bool>,
    pub provenance: Provenance,
    /// Of all that it does in one launch.
    pub cost: Cost,
    /// How many pieces of work that know nothing of each other share a launch of it.
    pub members: u32,
    /// The product that it is, where a library of the machine's may compute it instead.
    pub gemm: Option<Gemm>,
    /// Why this kernel is not machine code, if it is not.
    pub note: Option<String>,
}

/// `c[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gemm {
    pub batch: i64,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub a: GemmOperand,
    pub b: GemmOperand,
    pub c: GemmOperand,
    /// What products are summed in.
    pub acc: DType,
    /// Whether operands of f32 may be rounded to the ten bits of TF32.
    pub tf32: bool,
}

/// A matrix of a product. Strides and offset are in elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GemmOperand {
    /// Position among the kernel's parameters.
    pub param: u32,
    pub dtype: DType,
    pub offset: i64,
    pub batch_stride: i64,
    /// Along rows and columns: `[m, k]`, `[k, n]` or `[m, n]`.
    pub strides: [i64; 2],
    /// Bytes that its first element is known to lie at a multiple of.
    pub align: u32,
}

/// One grid of a kernel: a launch, unless all phases are one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelPhase {
    pub grid: Vec<Expr>,
    /// Program instances that one worker should take at least, so that small work stays on the caller's thread.
    pub min_chunk: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Artefact {
    /// Run `program` by the tile interpreter.
    Interpreted,
    MachineCode(MachineCode),
    Ptx(PtxModule),
}

/// Code for the CPU: `extern "sysv64" fn(args: *const u64, scratch: *mut u8, begin: u64, end: u64)` at each entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineCode {
    pub code: Vec<u8>,
    /// Byte offset of each phase's entry.
    pub entries: Vec<u32>,
    /// Private scratch that each worker needs.
    pub scratch_bytes: u64,
    /// What the processor must offer: code that it does not know ends the process.
    pub needs: CpuFeatures,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PtxModule {
    pub text: String,
    /// Function name of each phase, or one of all of them.
    pub entries: Vec<String>,
    pub threads: u32,
    pub cluster: [u32; 3],
    pub shared_bytes: u32,
    /// By entry: blocks to launch when they take instances in turns; 0: the whole grid.
    pub persistent_blocks: Vec<u32>,
    /// Whether every thread waits for the grids before it ahead of its first access: then blocks may be placed while those end.
    pub dependent: bool,
    /// Tensor maps that the host builds before the launch, in parameter order.
    pub tensor_maps: Vec<TensorMapSpec>,
}

/// A copy engine's descriptor over the buffer of argument `arg`. Dims slowest first, strides in elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorMapSpec {
    /// Position of the map among the kernel's parameters.
    pub param: u32,
    /// Position of the buffer that it describes.
    pub buffer_param: u32,
    pub dtype: DType,
    pub dims: Vec<Expr>,
    pub strides: Vec<Expr>,
    pub boxed: Vec<u32>,
    /// Bytes of the swizzle span: 0, 32, 64 or 128.
    pub swizzle_bytes: u32,
}

#[expect(
    clippy::large_enum_variant,
    reason = "a plan has few steps, and the long ones are calls that cost more than their size"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    Launch {
        kernel: KernelId,
        args: Vec<ArgRef>,
    },
    /// Copies `bytes` from one buffer to another, both from their start.
    Copy {
        src: BufferId,
        dst: BufferId,
        bytes: Expr,
    },
    /// The host runs an operator of its own.
    External(ExternalStep),
}

/// A call of the host and the buffers around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExternalStep {
    pub call: External,
    pub operands: Vec<HostOperand>,
    /// One for each result of the call.
    pub results: Vec<BufferId>,
    pub provenance: Provenance,
}

/// What an external call reads: a window on a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostOperand {
    pub buffer: BufferId,
    /// `None`: the object as it is.
    pub tensor: Option<TensorSpec>,
    /// Of the first element from the buffer's start, in elements.
    pub offset: Expr,
    /// Strides that the call must see; the host copies where they differ from the window's.
    pub required: Option<Vec<Expr>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ArgRef {
    /// Pointer to a buffer, moved by bytes.
    Buffer { buffer: BufferId, offset: Expr },
    /// A 64-bit integer from the symbols.
    Index(Expr),
    /// A literal of the parameter's dtype.
    Literal { dtype: DType, value: Scalar },
    /// Built by the host from the kernel's [`TensorMapSpec`].
    TensorMap,
}
