//! Types and numbers of the CUDA driver's interface, as its public documentation gives them; only what we use.

use std::ffi::{c_int, c_uint, c_void};

/// What every function of the driver answers.
pub(super) type CuResult = c_int;
pub(super) type CuDevice = c_int;
pub(super) type CuPointer = u64;

/// Handles that only the driver can look into; a null handle is often a default.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) struct $name(pub *mut c_void);

        // SAFETY: the driver may be called with any handle from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            pub const NULL: Self = Self(std::ptr::null_mut());
        }
    )*};
}

handles! {
    /// A context.
    CuContext,
    /// A loaded module.
    CuModule,
    /// A function of a module.
    CuFunction,
    /// A queue.
    CuStream,
    /// A moment in a queue.
    CuEvent,
    /// A linker invocation.
    CuLink,
    /// Memory that is given out in the order of queues.
    CuPool,
    /// Recorded work.
    CuGraph,
    /// One piece of recorded work.
    CuNode,
    /// Recorded work that can be launched.
    CuGraphExec,
}

/// Where and how a kernel is launched.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: CuStream,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: c_uint,
}

/// A launch attribute; its value is a union of 64 bytes, of which we use three words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchAttribute {
    pub id: c_int,
    pub padding: [u8; 4],
    pub value: [u64; 8],
}

impl LaunchAttribute {
    /// How many blocks form a cluster.
    pub fn cluster(extents: [u32; 3]) -> Self {
        let mut value = [0; 8];
        value[0] = u64::from(extents[0]) | u64::from(extents[1]) << 32;
        value[1] = u64::from(extents[2]);
        Self {
            id: 4,
            padding: [0; 4],
            value,
        }
    }

    /// Blocks may be placed while the kernel before ends; the code waits for it.
    pub fn dependent() -> Self {
        let mut value = [0; 8];
        value[0] = 1;
        Self {
            id: 6,
            padding: [0; 4],
            value,
        }
    }
}

/// What a kernel node of a graph launches.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelNode {
    pub function: CuFunction,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    /// For kernels without a context; null beside a function.
    pub kernel: *mut c_void,
    /// Null: that of the function.
    pub context: CuContext,
}

// SAFETY: handles, and places of arguments that whoever launches fills in for the time of a call.
unsafe impl Send for KernelNode {}

impl KernelNode {
    pub const NOTHING: Self = Self {
        function: CuFunction::NULL,
        grid: [0; 3],
        block: [0; 3],
        shared_bytes: 0,
        params: std::ptr::null_mut(),
        extra: std::ptr::null_mut(),
        kernel: std::ptr::null_mut(),
        context: CuContext::NULL,
    };
}

/// How an update of recorded work went.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateResult {
    pub result: c_int,
    pub node: CuNode,
    pub from: CuNode,
}

/// What a memory pool is made of.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolProps {
    pub allocation: c_int,
    pub handles: c_int,
    pub location_kind: c_int,
    pub location: c_int,
    pub security: *mut c_void,
    pub max_bytes: usize,
    pub reserved: [u64; 7],
}

impl PoolProps {
    /// Memory of one device, up to `max_bytes` (0: what the device has).
    pub fn on_device(device: CuDevice, max_bytes: usize) -> Self {
        Self {
            allocation: 1,
            handles: 0,
            location_kind: 1,
            location: device,
            security: std::ptr::null_mut(),
            max_bytes,
            reserved: [0; 7],
        }
    }
}

/// A descriptor for the copy engine. (Drivers before CUDA 13 ask for an alignment of 64 only.)
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorMap(pub [u64; 16]);

/// Numbers of device attributes.
pub(super) mod device_attribute {
    use std::ffi::c_int;
    pub const CLOCK_RATE: c_int = 13;
    pub const MULTIPROCESSOR_COUNT: c_int = 16;
    pub const MEMORY_CLOCK_RATE: c_int = 36;
    pub const MEMORY_BUS_WIDTH: c_int = 37;
    pub const L2_CACHE_SIZE: c_int = 38;
    pub const MAX_THREADS_PER_MULTIPROCESSOR: c_int = 39;
    pub const CAPABILITY_MAJOR: c_int = 75;
    pub const CAPABILITY_MINOR: c_int = 76;
    pub const SHARED_PER_MULTIPROCESSOR: c_int = 81;
    pub const REGISTERS_PER_MULTIPROCESSOR: c_int = 82;
    pub const SHARED_PER_BLOCK_OPT_IN: c_int = 97;
    pub const MEMORY_POOLS: c_int = 115;
}

/// Numbers of function attributes.
pub(super) mod function_attribute {
    use std::ffi::c_int;
    pub const STATIC_SHARED: c_int = 1;
    pub const LOCAL: c_int = 3;
    pub const REGISTERS: c_int = 4;
    pub const MAX_DYNAMIC_SHARED: c_int = 8;
    pub const NON_PORTABLE_CLUSTER: c_int = 14;
}

/// Numbers of attributes of memory pools; all of these are 64-bit numbers.
pub(super) mod pool_attribute {
    use std::ffi::c_int;
    pub const RELEASE_THRESHOLD: c_int = 4;
    pub const RESERVED: c_int = 5;
    pub const USED: c_int = 7;
    pub const USED_HIGH: c_int = 8;
}

/// Numbers of options of the driver's compiler and linker.
pub(super) mod jit_option {
    use std::ffi::c_int;
    pub const INFO_LOG: c_int = 3;
    pub const INFO_LOG_BYTES: c_int = 4;
    pub const ERROR_LOG: c_int = 5;
    pub const ERROR_LOG_BYTES: c_int = 6;
}

/// Kinds of nodes of a graph.
pub(super) mod node_kind {
    use std::ffi::c_int;
    pub const KERNEL: c_int = 0;
}

pub(super) const JIT_INPUT_PTX: c_int = 1;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// An event that only orders work is cheaper.
pub(super) const EVENT_NO_TIMING: c_uint = 2;
/// Only this thread is forbidden what a capture cannot hold.
pub(super) const CAPTURE_THIS_THREAD: c_int = 1;
/// Nobody is: whoever records sees to it, and may ask for memory.
pub(super) const CAPTURE_RELAXED: c_int = 2;

/// Answers of the driver that mean something to us.
pub(super) mod answer {
    use super::CuResult;
    pub const SUCCESS: CuResult = 0;
    pub const OUT_OF_MEMORY: CuResult = 2;
    pub const NO_DEVICE: CuResult = 100;
    pub const INVALID_DEVICE: CuResult = 101;
    pub const NO_BINARY_FOR_GPU: CuResult = 209;
    pub const UNSUPPORTED_PTX_VERSION: CuResult = 222;
    pub const NOT_READY: CuResult = 600;
    pub const ILLEGAL_ADDRESS: CuResult = 700;
    pub const LAUNCH_TIMEOUT: CuResult = 702;
    /// A broken stack, an illegal instruction, a misaligned address, a wrong address space, a broken program counter, any other fault.
    pub const FAULTS: std::ops::RangeInclusive<CuResult> = 714..=719;
    /// Everything that breaks or forbids a capture.
    pub const CAPTURE: std::ops::RangeInclusive<CuResult> = 900..=908;
    pub const CAPTURE_MERGE: CuResult = 902;
    pub const CAPTURE_UNMATCHED: CuResult = 903;
    pub const CAPTURE_UNJOINED: CuResult = 904;
    pub const CAPTURE_ISOLATION: CuResult = 905;
    pub const CAPTURE_IMPLICIT: CuResult = 906;
    pub const CAPTURED_EVENT: CuResult = 907;
    pub const GRAPH_UPDATE_REFUSED: CuResult = 910;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_have_the_documented_layout() {
        assert_eq!(
            (size_of::<TensorMap>(), align_of::<TensorMap>()),
            (128, 128)
        );
        assert_eq!(
            (size_of::<LaunchConfig>(), align_of::<LaunchConfig>()),
            (56, 8)
        );
        assert_eq!(offset_of!(LaunchConfig, block), 12);
        assert_eq!(offset_of!(LaunchConfig, shared_bytes), 24);
        assert_eq!(offset_of!(LaunchConfig, stream), 32);
        assert_eq!(offset_of!(LaunchConfig, attributes), 40);
        assert_eq!(offset_of!(LaunchConfig, attribute_count), 48);
        assert_eq!(
            (
                size_of::<LaunchAttribute>(),
                offset_of!(LaunchAttribute, value)
            ),
            (72, 8)
        );
        let cluster = LaunchAttribute::cluster([2, 3, 4]);
        assert_eq!((cluster.value[0], cluster.value[1]), (2 | 3 << 32, 4));
        assert_eq!(size_of::<KernelNode>(), 72);
        assert_eq!(offset_of!(KernelNode, shared_bytes), 32);
        assert_eq!(offset_of!(KernelNode, params), 40);
        assert_eq!(offset_of!(KernelNode, context), 64);
        assert_eq!(
            (size_of::<UpdateResult>(), offset_of!(UpdateResult, node)),
            (24, 8)
        );
        assert_eq!(
            (size_of::<PoolProps>(), offset_of!(PoolProps, max_bytes)),
            (88, 24)
        );
    }
}
