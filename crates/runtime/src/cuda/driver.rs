//! The functions of the CUDA driver that we call, found at run time.
//!
//! One table names them all. Each becomes a method that answers with a [`Result`]: a missing library, a driver too old
//! to have the function and a refusal of the driver are three sentences, never a panic. What a refusal means to a caller
//! is one table too ([`meaning`]). Types follow the driver's public documentation; only what we call is here.

use super::abi::{
    CuContext, CuDevice, CuEvent, CuFunction, CuGraph, CuGraphExec, CuLink, CuModule, CuNode,
    CuPointer, CuPool, CuResult, CuStream, KernelNode, LaunchConfig, PoolProps, TensorMap,
    UpdateResult, answer,
};
use super::launches::Launches;
use oxyfuel_base::{Code, Error, Result, ensure, err};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The oldest CUDA version of a driver that has what we need (tensor maps, launches with attributes, updates of graphs), as 1000 * major + 10 * minor.
pub const OLDEST_VERSION: u32 = 12_000;

macro_rules! functions {
    ($($method:ident $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        /// The loaded driver.
        pub struct Driver {
            $($method: Option<unsafe extern "C" fn($($type),*) -> CuResult>,)*
            /// What was loaded.
            library: String,
            /// What is under way on each device.
            launches: Mutex<BTreeMap<CuDevice, Arc<Launches>>>,
            /// Keeps the functions in place.
            _keeper: Option<libloading::Library>,
        }

        impl Driver {
            /// The functions that `resolve` finds.
            ///
            /// # Safety
            /// What `resolve` answers is null or a function of that name with the type that the driver's documentation gives it, in place as long as `keeper` is.
            unsafe fn find(
                library: &str,
                keeper: Option<libloading::Library>,
                resolve: impl Fn(Option<&libloading::Library>, &str) -> *const c_void,
            ) -> Self {
                Self {
                    $($method: {
                        let found = resolve(keeper.as_ref(), stringify!($symbol));
                        // SAFETY: promised by the caller; a null pointer is `None`.
                        unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                Option<unsafe extern "C" fn($($type),*) -> CuResult>,
                            >(found)
                        }
                    },)*
                    library: library.to_owned(),
                    launches: Mutex::default(),
                    _keeper: keeper,
                }
            }

            /// Functions of the table that this driver lacks.
            pub fn lacks(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if self.$method.is_none() {
                    names.push(stringify!($symbol));
                })*
                names
            }
        }

        /// Each function of the driver as a method; all of them ask for what the driver's documentation asks for.
        #[expect(clippy::too_many_arguments, reason = "the driver's own signatures")]
        #[expect(dead_code, reason = "describing an error and asking whether work is done read the answer itself")]
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
    pool_default cuDeviceGetDefaultMemPool(pool: *mut CuPool, device: CuDevice);
    pool_create cuMemPoolCreate(pool: *mut CuPool, props: *const PoolProps);
    pool_destroy cuMemPoolDestroy(pool: CuPool);
    pool_trim cuMemPoolTrimTo(pool: CuPool, keep: usize);
    pool_set cuMemPoolSetAttribute(pool: CuPool, attribute: c_int, value: *mut c_void);
    pool_get cuMemPoolGetAttribute(pool: CuPool, attribute: c_int, value: *mut c_void);
    pool_allocate cuMemAllocFromPoolAsync(address: *mut CuPointer, bytes: usize, pool: CuPool, stream: CuStream);
    pool_free cuMemFreeAsync(address: CuPointer, stream: CuStream);
    stream_create cuStreamCreate(stream: *mut CuStream, flags: c_uint);
    stream_destroy cuStreamDestroy_v2(stream: CuStream);
    stream_synchronize cuStreamSynchronize(stream: CuStream);
    stream_wait cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: c_uint);
    stream_query cuStreamQuery(stream: CuStream);
    stream_capturing cuStreamIsCapturing(stream: CuStream, status: *mut c_int);
    capture_begin cuStreamBeginCapture_v2(stream: CuStream, mode: c_int);
    capture_end cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph);
    event_create cuEventCreate(event: *mut CuEvent, flags: c_uint);
    event_destroy cuEventDestroy_v2(event: CuEvent);
    event_record cuEventRecord(event: CuEvent, stream: CuStream);
    event_synchronize cuEventSynchronize(event: CuEvent);
    event_query cuEventQuery(event: CuEvent);
    event_elapsed cuEventElapsedTime(milliseconds: *mut f32, from: CuEvent, to: CuEvent);
    module_load cuModuleLoadDataEx(module: *mut CuModule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
    module_unload cuModuleUnload(module: CuModule);
    module_function cuModuleGetFunction(function: *mut CuFunction, module: CuModule, name: *const c_char);
    function_attribute cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CuFunction);
    function_set_attribute cuFuncSetAttribute(function: CuFunction, attribute: c_int, value: c_int);
    occupancy cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CuFunction, threads: c_int, shared: usize);
    occupancy_clusters cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: CuFunction, config: *const LaunchConfig);
    launch cuLaunchKernelEx(config: *const LaunchConfig, function: CuFunction, params: *mut *mut c_void, extra: *mut *mut c_void);
    graph_destroy cuGraphDestroy(graph: CuGraph);
    graph_nodes cuGraphGetNodes(graph: CuGraph, nodes: *mut CuNode, count: *mut usize);
    graph_instantiate cuGraphInstantiateWithFlags(exec: *mut CuGraphExec, graph: CuGraph, flags: u64);
    graph_launch cuGraphLaunch(exec: CuGraphExec, stream: CuStream);
    graph_upload cuGraphUpload(exec: CuGraphExec, stream: CuStream);
    graph_update cuGraphExecUpdate_v2(exec: CuGraphExec, graph: CuGraph, result: *mut UpdateResult);
    graph_exec_destroy cuGraphExecDestroy(exec: CuGraphExec);
    node_kind cuGraphNodeGetType(node: CuNode, kind: *mut c_int);
    node_kernel cuGraphKernelNodeGetParams_v2(node: CuNode, params: *mut KernelNode);
    node_set_kernel cuGraphExecKernelNodeSetParams_v2(exec: CuGraphExec, node: CuNode, params: *const KernelNode);
    link_create cuLinkCreate_v2(count: c_uint, options: *mut c_int, values: *mut *mut c_void, link: *mut CuLink);
    link_add cuLinkAddData_v2(link: CuLink, kind: c_int, data: *mut c_void, bytes: usize, name: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
    link_complete cuLinkComplete(link: CuLink, cubin: *mut *mut c_void, bytes: *mut usize);
    link_destroy cuLinkDestroy(link: CuLink);
    tensor_map_tiled cuTensorMapEncodeTiled(map: *mut TensorMap, dtype: c_int, rank: u32, address: *mut c_void, dims: *const u64, strides: *const u64, boxed: *const u32, steps: *const u32, interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int);
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({})", self.library)
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
                    let resolve = |library: Option<&libloading::Library>, symbol: &str| {
                        // SAFETY: the address is taken and nothing is called.
                        let found = library.map(|l| unsafe { l.get::<*const c_void>(symbol) });
                        found.and_then(|f| f.ok().map(|s| *s)).unwrap_or_default()
                    };
                    // SAFETY: the symbols' types are those of the vendor's documentation, and the library stays.
                    return unsafe { Self::find(name, Some(library), resolve) }.started();
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

    /// The functions of `resolve`, which are static, in the place of a library.
    ///
    /// # Safety
    /// As [`Self::find`].
    #[cfg(test)]
    pub(super) unsafe fn of(resolve: impl Fn(&str) -> *const c_void) -> Result<Self> {
        // SAFETY: promised by the caller.
        unsafe { Self::find("table", None, |_, symbol| resolve(symbol)) }.started()
    }

    /// Starts the driver, and refuses one that is too old.
    fn started(self) -> Result<Self> {
        // SAFETY: zero is the only flag there is.
        unsafe { self.init(0) }?;
        let version = self.version()?;
        let named = |version: u32| format!("{}.{}", version / 1000, version % 1000 / 10);
        ensure!(
            version >= OLDEST_VERSION,
            DriverTooOld,
            "the driver ({}) is of CUDA {}, and CUDA {} is the oldest that we work with",
            self.library,
            named(version),
            named(OLDEST_VERSION)
        );
        Ok(self)
    }

    /// The library that was loaded.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// The driver's CUDA version as 1000 * major + 10 * minor.
    pub fn version(&self) -> Result<u32> {
        let mut version = 0;
        // SAFETY: the pointer is valid for one int.
        unsafe { self.driver_version(&mut version) }?;
        Ok(version.unsigned_abs())
    }

    /// Whether everything asked on a stream is done.
    pub(super) unsafe fn stream_is_done(&self, stream: CuStream) -> Result<bool> {
        let function = self.stream_query.ok_or_else(|| missing("cuStreamQuery"))?;
        // SAFETY: promised by the caller.
        self.is_done("cuStreamQuery", unsafe { function(stream) })
    }

    /// Whether an event has happened.
    pub(super) unsafe fn event_is_done(&self, event: CuEvent) -> Result<bool> {
        let function = self.event_query.ok_or_else(|| missing("cuEventQuery"))?;
        // SAFETY: promised by the caller.
        self.is_done("cuEventQuery", unsafe { function(event) })
    }

    fn is_done(&self, symbol: &str, result: CuResult) -> Result<bool> {
        if result == answer::NOT_READY {
            return Ok(false);
        }
        self.check(symbol, result).map(|()| true)
    }

    fn check(&self, function: &str, result: CuResult) -> Result<()> {
        if result == answer::SUCCESS {
            return Ok(());
        }
        let said = format!("{function}: {}", self.describe(result));
        if let Some(streams) = streams_that_break(result) {
            return Err(err!(CaptureBroken, "{streams} ({said})").help(
                "record work of one stream; where others take part, each waits for an event of the recorded stream first, and the recorded stream waits for an event of each at the end",
            ));
        }
        let error = Error::new(meaning(result), said);
        Err(match error.code {
            Code::DriverTooOld => error.help("install a newer driver"),
            Code::KernelFault => self.faulted(error),
            Code::CaptureBroken => error.help(
                "while work is recorded, do nothing on that thread but launches and copies on the recorded stream",
            ),
            _ => error,
        })
    }

    /// What was launched on a device, which all its contexts share.
    pub(super) fn launches(&self, device: CuDevice) -> Arc<Launches> {
        let mut known = self.known_launches();
        let new = || Arc::new(Launches::new(device));
        known.entry(device).or_insert_with(new).clone()
    }

    fn known_launches(&self) -> MutexGuard<'_, BTreeMap<CuDevice, Arc<Launches>>> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fault with the names of those that may have caused it. Which device the driver speaks of is not known here: every one with work under way is named.
    fn faulted(&self, mut error: Error) -> Error {
        const LOST: &str = "the context of the device is lost: every call on it fails from now on and its tensors cannot be read. Start a new process";
        let suspects: Vec<_> = self
            .known_launches()
            .values()
            .filter_map(|launches| launches.suspects())
            .collect();
        for suspects in &suspects {
            error.message = format!("{}, {suspects}", error.message);
        }
        error.help(match suspects.as_slice() {
            [one] if one.is_one() => {
                format!("{LOST}, and report the kernel: OXYFUEL_VERIFY=1 on the CPU checks it against the interpreter")
            }
            _ => format!(
                "{LOST}, with OXYFUEL_LAUNCH_BLOCKING=1 (the option launch_blocking) to wait after each kernel and learn which one it is"
            ),
        })
    }

    /// The error of a fault that this answer of the driver is, which somebody else was given; `None` where it is no fault, or nothing of ours was under way.
    pub(super) fn fault(&self, answer: CuResult) -> Option<Error> {
        let known = meaning(answer) == Code::KernelFault && self.has_suspects();
        known.then(|| self.faulted(Error::new(Code::KernelFault, self.describe(answer))))
    }

    /// Whether anything of ours is under way.
    pub(super) fn has_suspects(&self) -> bool {
        let known = self.known_launches();
        known.values().any(|launches| launches.suspects().is_some())
    }

    /// `CUDA_ERROR_…: what it means`, in the driver's words.
    fn describe(&self, result: CuResult) -> String {
        let text =
            |function: Option<unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult>| {
                let mut text = std::ptr::null();
                // SAFETY: the pointer is valid for one pointer; the driver answers with a static string or null.
                let known = function
                    .is_some_and(|f| unsafe { f(result, &mut text) } == answer::SUCCESS)
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

/// What an answer of the driver means to whoever called.
fn meaning(result: CuResult) -> Code {
    match result {
        answer::OUT_OF_MEMORY => Code::OutOfMemory,
        answer::NO_DEVICE | answer::INVALID_DEVICE => Code::NoDevice,
        answer::NO_BINARY_FOR_GPU => Code::UnsupportedDevice,
        answer::UNSUPPORTED_PTX_VERSION => Code::DriverTooOld,
        answer::ILLEGAL_ADDRESS | answer::LAUNCH_TIMEOUT => Code::KernelFault,
        _ if answer::FAULTS.contains(&result) => Code::KernelFault,
        answer::GRAPH_UPDATE_REFUSED => Code::CaptureBroken,
        _ if answer::CAPTURE.contains(&result) => Code::CaptureBroken,
        _ => Code::DriverCall,
    }
}

/// How other streams broke a recording, where the driver's answer says so.
fn streams_that_break(result: CuResult) -> Option<&'static str> {
    Some(match result {
        answer::CAPTURE_MERGE => "two recordings wait for each other",
        answer::CAPTURE_UNMATCHED => "a recording is ended on a stream that only took part in it",
        answer::CAPTURE_UNJOINED => {
            "another stream took part in a recording, and the recorded stream does not wait for it"
        }
        answer::CAPTURE_ISOLATION => {
            "a recording waits for work of another stream that is not recorded"
        }
        answer::CAPTURE_IMPLICIT => {
            "the default stream was asked for work that waits for a stream which is recorded"
        }
        answer::CAPTURED_EVENT => {
            "an event of recorded work was asked for outside of the recording"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn answers_have_meanings() {
        let rows = [
            (2, Code::OutOfMemory),
            (100, Code::NoDevice),
            (101, Code::NoDevice),
            (209, Code::UnsupportedDevice),
            (222, Code::DriverTooOld),
            (700, Code::KernelFault),
            (715, Code::KernelFault),
            (719, Code::KernelFault),
            (901, Code::CaptureBroken),
            (904, Code::CaptureBroken),
            (910, Code::CaptureBroken),
            (1, Code::DriverCall),
            (999, Code::DriverCall),
        ];
        for (result, code) in rows {
            assert_eq!(meaning(result), code, "{result}");
        }
    }
}
