//! What the emitter hands on: text, and all that a launch must know.

use oxyfuel_kernel::ir::Swizzle;

/// The PTX of one program for one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Artefact {
    /// The `.target` it is for.
    pub target: &'static str,
    pub text: String,
    /// One a phase, to be launched in this order. All take the same parameters, in the program's order.
    pub entries: Vec<Entry>,
    pub params: Vec<LaunchParam>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// Threads of a block, all along x.
    pub threads: u32,
    /// Blocks of a cluster; the text requires them, the launch need not say it again.
    pub cluster: [u32; 3],
    /// Shared memory to ask for at launch; above 48 KiB the function's limit must be raised first.
    pub dynamic_shared: u32,
    pub grid: LaunchGrid,
    /// Registers a thread may use at entry, where the program bounds them; 0: the assembler decides.
    pub registers: u32,
}

/// How many blocks a launch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchGrid {
    /// The extents of the phase, axis by axis.
    Instances,
    /// At most one block a multiprocessor, along x, and no more than there are instances.
    Workers { instances: u64 },
}

/// One parameter of every entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchParam {
    /// A device address, 8 bytes.
    Pointer,
    /// A number of this many bytes.
    Scalar { bytes: u32 },
    /// 128 bytes, aligned to 64, that the driver encodes.
    TensorMap {
        /// Number of the parameter whose memory it describes.
        buffer: usize,
        /// Slowest dim first, in elements.
        boxed: Vec<i64>,
        swizzle: Option<Swizzle>,
    },
}
