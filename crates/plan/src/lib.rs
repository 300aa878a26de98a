//! PLAN: what the compile side hands to the run side, as serialisable data and nothing else.
//!
//! A [`Plan`] names its inputs and outputs, the buffers between them with offsets and lifetimes, the kernels with their machine code or PTX, and the steps that run
//! them in order. Sizes and offsets are expressions over symbols, evaluated once for each assignment of the symbols. [`TargetDesc`] is the other half of
//! the meeting point: everything above the emitters knows a machine only through it.
#![forbid(unsafe_code)]

mod features;
mod memory;
mod plan;
mod target;
mod verify;

pub use features::CpuFeatures;
pub use memory::{Lent, Lifetime, MemoryPlan, Place, plan_memory};
pub use plan::{
    ArgRef, Artefact, Buffer, BufferHome, BufferId, Cost, ExternalStep, Gemm, GemmOperand,
    HostOperand, InputSpec, Kernel, KernelId, KernelPhase, MachineCode, OutputSpec, Plan,
    Provenance, PtxModule, SizeLimit, Step, SymbolBinding, SymbolSource, TensorMapSpec, TensorSpec,
};
pub use target::{MatrixUnit, OperandHome, TargetDesc, WIDEST_ACCESS};
pub use verify::verify;
