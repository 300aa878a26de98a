//! The functions of the CUDA driver that we call, found at run time.
//!
//! One table names them all. Each becomes a method that answers with a [`Result`]: a missing library, a driver too old
//! to have the function and a refusal of the driver are three sentences, never a panic. Types follow the driver's
//! public documentation; only what we call is here.

use oxyfuel_base::{Code, Error, Result, err};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;

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

/// Numbers of options of the driver's compiler and linker.
pub(super) mod jit_option {
    use std::ffi::c_int;
    pub const INFO_LOG: c_int = 3;
    pub const INFO_LOG_BYTES: c_int = 4;
    pub const ERROR_LOG: c_int = 5;
    pub const ERROR_LOG_BYTES: c_int = 6;
}

pub(super) const JIT_INPUT_PTX: c_int = 1;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;

const SUCCESS: CuResult = 0;
const OUT_OF_MEMORY: CuResult = 2;
const NO_DEVICE: CuResult = 100;
const INVALID_DEVICE: CuResult = 101;

macro_rules! functions {
    ($($method:ident $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        /// The loaded driver.
        pub struct Driver {
            $($method: Option<unsafe extern "C" fn($($type),*) -> CuResult>,)*
            /// Keeps the functions in place.
            _library: libloading::Library,
        }

        impl Driver {
            fn find(library: libloading::Library) -> Self {
                Self {
                    $($method: {
                        // SAFETY: the symbol's type is the one that the driver's documentation gives it.
                        let found = unsafe { library.get(stringify!($symbol)) };
                        found.ok().map(|symbol| *symbol)
                    },)*
                    _library: library,
                }
            }
        }

        /// Each function of the driver as a method; all of them ask for what the driver's documentation asks for.
        #[expect(clippy::too_many_arguments, reason = "the driver's own signatures")]
        #[expect(dead_code, reason = "describing an error must not go through the method that makes errors")]
        impl Driver {
            $(
                pub(super) unsafe fn $method(&self, $($arg: $type),*) -> Result<()> {
                    let function = self.$method.ok_or_else(|| missing(stringify!($symbol)))?;
                    // SAFETY: promised by the caller.
                    self.check(stringify!($symbol), unsafe { function($($arg),*) })
                }
            )*
        }
    };
}

fn missing(symbol: &str) -> Error {
    err!(MissingLibrary, "the CUDA driver has no function {symbol}")
        .help("install a driver for CUDA 12 or newer")
}

functions! {
    init cuInit(flags: c_uint);
    driver_version cuDriverGetVersion(version: *mut c_int);
    error_name cuGetErrorName(error: CuResult, name: *mut *const c_char);
    error_string cuGetErrorString(error: CuResult, text: *mut *const c_char);
    device_count cuDeviceGetCount(count: *mut c_int);
    device_get cuDeviceGet(device: *mut CuDevice, ordinal: c_int);
    device_name cuDeviceGetName(name: *mut c_char, length: c_int, device: CuDevice);
    device_attribute cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CuDevice);
    device_memory cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice);
    primary_retain cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice);
    primary_release cuDevicePrimaryCtxRelease_v2(device: CuDevice);
    context_current cuCtxGetCurrent(context: *mut CuContext);
    context_push cuCtxPushCurrent_v2(context: CuContext);
    context_pop cuCtxPopCurrent_v2(context: *mut CuContext);
    context_synchronize cuCtxSynchronize();
    memory_info cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    memory_allocate cuMemAlloc_v2(address: *mut CuPointer, bytes: usize);
    memory_free cuMemFree_v2(address: CuPointer);
    pinned_allocate cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize);
    pinned_free cuMemFreeHost(address: *mut c_void);
    copy_in cuMemcpyHtoD_v2(to: CuPointer, from: *const c_void, bytes: usize);
    copy_out cuMemcpyDtoH_v2(to: *mut c_void, from: CuPointer, bytes: usize);
    copy_in_async cuMemcpyHtoDAsync_v2(to: CuPointer, from: *const c_void, bytes: usize, stream: CuStream);
    copy_out_async cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CuPointer, bytes: usize, stream: CuStream);
    copy_async cuMemcpyDtoDAsync_v2(to: CuPointer, from: CuPointer, bytes: usize, stream: CuStream);
    fill_async cuMemsetD8Async(to: CuPointer, value: u8, count: usize, stream: CuStream);
    stream_create cuStreamCreate(stream: *mut CuStream, flags: c_uint);
    stream_destroy cuStreamDestroy_v2(stream: CuStream);
    stream_synchronize cuStreamSynchronize(stream: CuStream);
    stream_wait cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: c_uint);
    event_create cuEventCreate(event: *mut CuEvent, flags: c_uint);
    event_destroy cuEventDestroy_v2(event: CuEvent);
    event_record cuEventRecord(event: CuEvent, stream: CuStream);
    event_synchronize cuEventSynchronize(event: CuEvent);
    event_elapsed cuEventElapsedTime(milliseconds: *mut f32, from: CuEvent, to: CuEvent);
    module_load cuModuleLoadDataEx(module: *mut CuModule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
    module_unload cuModuleUnload(module: CuModule);
    module_function cuModuleGetFunction(function: *mut CuFunction, module: CuModule, name: *const c_char);
    function_attribute cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CuFunction);
    function_set_attribute cuFuncSetAttribute(function: CuFunction, attribute: c_int, value: c_int);
    occupancy cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CuFunction, threads: c_int, shared: usize);
    launch cuLaunchKernelEx(config: *const LaunchConfig, function: CuFunction, params: *mut *mut c_void, extra: *mut *mut c_void);
    link_create cuLinkCreate_v2(count: c_uint, options: *mut c_int, values: *mut *mut c_void, link: *mut CuLink);
    link_add cuLinkAddData_v2(link: CuLink, kind: c_int, data: *mut c_void, bytes: usize, name: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
    link_complete cuLinkComplete(link: CuLink, cubin: *mut *mut c_void, bytes: *mut usize);
    link_destroy cuLinkDestroy(link: CuLink);
    tensor_map_tiled cuTensorMapEncodeTiled(map: *mut TensorMap, dtype: c_int, rank: u32, address: *mut c_void, dims: *const u64, strides: *const u64, boxed: *const u32, steps: *const u32, interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int);
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}

/// Where the driver's library is looked for.
pub const LIBRARIES: &[&str] = if cfg!(windows) {
    &["nvcuda.dll"]
} else {
    &["libcuda.so.1", "libcuda.so"]
};

impl Driver {
    /// Loads the first of these libraries that is there and starts the driver.
    pub fn open(libraries: &[&str]) -> Result<Self> {
        let mut reasons = vec![];
        for name in libraries {
            // SAFETY: loading runs the library's own start-up code; the names given are the vendor's driver.
            match unsafe { libloading::Library::new(*name) } {
                Ok(library) => {
                    let driver = Self::find(library);
                    // SAFETY: zero is the only flag there is.
                    unsafe { driver.init(0) }?;
                    return Ok(driver);
                }
                Err(reason) => reasons.push(format!("{name}: {reason}")),
            }
        }
        Err(err!(
            NoDriver,
            "no CUDA driver can be loaded ({})",
            reasons.join("; ")
        )
        .help("install the GPU vendor's driver, or compile for the CPU"))
    }

    /// The driver's CUDA version as 1000 * major + 10 * minor.
    pub fn version(&self) -> Result<u32> {
        let mut version = 0;
        // SAFETY: the pointer is valid for one int.
        unsafe { self.driver_version(&mut version) }?;
        Ok(version.unsigned_abs())
    }

    fn check(&self, function: &str, result: CuResult) -> Result<()> {
        let code = match result {
            SUCCESS => return Ok(()),
            OUT_OF_MEMORY => Code::OutOfMemory,
            NO_DEVICE | INVALID_DEVICE => Code::NoDevice,
            _ => Code::DriverCall,
        };
        Err(Error::new(
            code,
            format!("{function}: {}", self.describe(result)),
        ))
    }

    /// `CUDA_ERROR_…: what it means`, in the driver's words.
    fn describe(&self, result: CuResult) -> String {
        let text =
            |function: Option<unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult>| {
                let mut text = std::ptr::null();
                // SAFETY: the pointer is valid for one pointer; the driver answers with a static string or null.
                let known = function.is_some_and(|f| unsafe { f(result, &mut text) } == SUCCESS)
                    && !text.is_null();
                if !known {
                    return None;
                }
                // SAFETY: a string that the driver returned is null-terminated and static.
                let text = unsafe { CStr::from_ptr(text) };
                Some(text.to_string_lossy().into_owned())
            };
        match (text(self.error_name), text(self.error_string)) {
            (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
            (Some(text), None) | (None, Some(text)) => text,
            (None, None) => format!("error {result}"),
        }
    }
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
    }

    #[test]
    fn no_driver_is_a_sentence() {
        let error = Driver::open(&["liboxyfuel-no-such-driver.so.1"]).unwrap_err();
        assert_eq!(error.code, Code::NoDriver);
        assert!(
            error.message.contains("liboxyfuel-no-such-driver"),
            "{error}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_the_functions_is_a_sentence() {
        let error = Driver::open(&["libc.so.6"]).unwrap_err();
        assert_eq!(error.code, Code::MissingLibrary);
        assert!(error.message.contains("cuInit"), "{error}");
    }
}
