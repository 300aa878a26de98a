//! A driver of our own, so that everything above the table of functions is tested without a GPU.
//!
//! Its memory is the host's; kernels do nothing and are counted; it knows every handle that it gave out, so that a test
//! sees what was left behind. One test uses it at a time.

use super::abi::{
    CAPTURE_RELAXED, CuContext, CuDevice, CuEvent, CuFunction, CuGraph, CuGraphExec, CuLink,
    CuModule, CuNode, CuPointer, CuPool, CuResult, CuStream, KernelNode, LaunchConfig, PoolProps,
    UpdateResult, answer, device_attribute, function_attribute, pool_attribute,
};
use super::driver::Driver;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One piece of work: the function and the first word of its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    pub function: usize,
    pub word: u64,
}

/// What the driver is, and what it knows.
#[derive(Debug)]
pub(super) struct State {
    pub version: c_int,
    pub devices: c_int,
    pub memory: usize,
    /// What is answered to every request from now on, where it is not success.
    pub fault: CuResult,
    /// How many launches the device does before one of them faults, and what is answered from then on.
    pub faults_after: Option<(usize, CuResult)>,
    /// A function that this driver lacks.
    pub without: &'static str,
    /// Handles that are alive, and what they are.
    pub alive: BTreeMap<usize, &'static str>,
    pub launched: Vec<Work>,
    /// Launches of recorded work.
    pub submitted: usize,
    /// The attributes of each launch, by their numbers.
    pub attributes: Vec<Vec<c_int>>,
    /// The blocks of each launch, and of each that was only asked about.
    pub grids: Vec<[c_uint; 3]>,
    /// The attributes that functions were given, and their values.
    pub set: Vec<(c_int, c_int)>,
    pub linked: usize,
    next: usize,
    /// Size and bytes of each block, by its address.
    blocks: BTreeMap<usize, (usize, Vec<u8>)>,
    pub capturing: BTreeMap<usize, Vec<Work>>,
    /// What the next end of a recording answers, where another stream broke it.
    pub broken: CuResult,
    /// Whether memory must not be asked for while work is recorded.
    strict: bool,
    graphs: BTreeMap<usize, Vec<Work>>,
    keep: u64,
}

impl State {
    const NEW: Self = Self {
        version: 12_040,
        devices: 1,
        memory: 64 << 20,
        fault: 0,
        faults_after: None,
        without: "",
        alive: BTreeMap::new(),
        launched: Vec::new(),
        submitted: 0,
        attributes: Vec::new(),
        grids: Vec::new(),
        set: Vec::new(),
        linked: 0,
        next: 0x1000,
        blocks: BTreeMap::new(),
        capturing: BTreeMap::new(),
        broken: answer::SUCCESS,
        strict: false,
        graphs: BTreeMap::new(),
        keep: 0,
    };

    fn make(&mut self, what: &'static str) -> *mut c_void {
        self.next += 0x1000;
        self.alive.insert(self.next, what);
        self.next as *mut c_void
    }

    fn end(&mut self, handle: *mut c_void, what: &str) -> CuResult {
        match self.alive.remove(&(handle as usize)) {
            Some(known) if known == what => answer::SUCCESS,
            Some(_) | None => 400,
        }
    }

    /// Bytes of memory in use.
    pub fn used(&self) -> usize {
        self.blocks.values().map(|(bytes, _)| bytes).sum()
    }

    fn take(&mut self, bytes: usize) -> Option<u64> {
        const ALIGN: usize = 512;
        if bytes > self.memory.saturating_sub(self.used()) {
            return None;
        }
        let block = vec![0u8; bytes + ALIGN];
        let address = (block.as_ptr() as usize).next_multiple_of(ALIGN);
        self.blocks.insert(address, (bytes, block));
        Some(address as u64)
    }

    fn give(&mut self, address: u64) -> CuResult {
        match self.blocks.remove(&(address as usize)) {
            Some(_) => answer::SUCCESS,
            None => 1,
        }
    }

    fn ask(&mut self, stream: CuStream, work: Work) {
        match self.capturing.get_mut(&(stream.0 as usize)) {
            Some(recorded) => recorded.push(work),
            None => self.launched.push(work),
        }
        if let Some((well, fault)) = self.faults_after
            && self.launched.len() > well
        {
            self.fault = fault;
        }
    }
}

thread_local! {
    /// Contexts on the stack of a thread.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// How many contexts this thread has entered and not left.
pub(super) fn entered() -> usize {
    CURRENT.with_borrow(Vec::len)
}

static STATE: Mutex<State> = Mutex::new(State::NEW);
static TURN: Mutex<()> = Mutex::new(());

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver for one test.
pub(super) struct Fake {
    _turn: MutexGuard<'static, ()>,
}

impl Fake {
    /// A new driver with one device of 64 MiB, changed by `change`.
    pub fn new(change: impl FnOnce(&mut State)) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = State::NEW;
        change(&mut new);
        *state() = new;
        Self { _turn: turn }
    }

    pub fn open(&self) -> oxyfuel_base::Result<Arc<Driver>> {
        let without = state().without;
        let resolve = |symbol: &str| match symbol == without {
            true => std::ptr::null(),
            false => address(symbol),
        };
        // SAFETY: the functions below have the types of the table and are static.
        unsafe { Driver::of(resolve) }.map(Arc::new)
    }

    /// What it knows now.
    pub fn state(&self) -> MutexGuard<'static, State> {
        state()
    }
}

/// Writes an answer.
fn put<T>(to: *mut T, value: T) -> CuResult {
    // SAFETY: whoever calls a function of the driver gives places for its answers.
    unsafe { to.write(value) };
    answer::SUCCESS
}

/// The first argument of a launch.
fn first_word(params: *mut *mut c_void) -> u64 {
    // SAFETY: the launches of these tests have at least one parameter of eight bytes.
    unsafe { (*params).cast::<u64>().read() }
}

fn copy(to: u64, from: u64, bytes: usize) -> CuResult {
    // SAFETY: memory of this driver is memory of the host, and callers promise room.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    answer::SUCCESS
}

fn attribute(number: c_int) -> c_int {
    match number {
        device_attribute::CAPABILITY_MAJOR => 9,
        device_attribute::MEMORY_POOLS => 1,
        _ => 128,
    }
}

macro_rules! fakes {
    ($($symbol:ident ($($arg:ident: $type:ty),*) |$state:ident| $body:expr;)*) => {
        /// The functions; each looks at the state, and fails where the device is lost.
        mod functions {
            #![expect(non_snake_case, reason = "the driver's own names")]
            use super::*;
            $(
                pub(super) extern "C" fn $symbol($($arg: $type),*) -> CuResult {
                    let mut guard = state();
                    let $state = &mut *guard;
                    if $state.fault != answer::SUCCESS && !stringify!($symbol).starts_with("cuCtx") {
                        return $state.fault;
                    }
                    $body
                }
            )*
        }

        fn address(symbol: &str) -> *const c_void {
            match symbol {
                $(stringify!($symbol) => functions::$symbol as *const c_void,)*
                _ => std::ptr::null(),
            }
        }
    };
}

fakes! {
    cuInit(_flags: c_uint) |_s| answer::SUCCESS;
    cuDriverGetVersion(version: *mut c_int) |s| put(version, s.version);
    cuGetErrorName(_error: CuResult, _name: *mut *const c_char) |_s| 1;
    cuGetErrorString(_error: CuResult, _text: *mut *const c_char) |_s| 1;
    cuDeviceGetCount(count: *mut c_int) |s| put(count, s.devices);
    cuDeviceGet(device: *mut CuDevice, ordinal: c_int) |_s| put(device, ordinal);
    cuDeviceGetName(name: *mut c_char, _length: c_int, _device: CuDevice) |_s| put(name.cast(), *b"FAKE\0");
    cuDeviceGetAttribute(value: *mut c_int, number: c_int, _device: CuDevice) |_s| put(value, attribute(number));
    cuDeviceTotalMem_v2(bytes: *mut usize, _device: CuDevice) |s| put(bytes, s.memory);
    cuDevicePrimaryCtxRetain(context: *mut CuContext, _device: CuDevice) |s| {
        let made = s.make("context");
        put(context, CuContext(made))
    };
    cuDevicePrimaryCtxRelease_v2(_device: CuDevice) |s| {
        let context = s.alive.iter().find(|(_, what)| **what == "context").map(|(handle, _)| *handle);
        context.map_or(1, |handle| s.end(handle as *mut c_void, "context"))
    };
    cuCtxGetCurrent(context: *mut CuContext) |_s| {
        let top = CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0));
        put(context, CuContext(top as *mut c_void))
    };
    cuCtxPushCurrent_v2(context: CuContext) |_s| {
        CURRENT.with_borrow_mut(|stack| stack.push(context.0 as usize));
        answer::SUCCESS
    };
    cuCtxPopCurrent_v2(context: *mut CuContext) |_s| {
        let top = CURRENT.with_borrow_mut(|stack| stack.pop().unwrap_or(0));
        put(context, CuContext(top as *mut c_void))
    };
    cuCtxSynchronize() |s| if s.capturing.is_empty() { s.fault } else { 900 };
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |s| {
        put(total, s.memory);
        put(free, s.memory - s.used())
    };
    cuMemAlloc_v2(address: *mut CuPointer, bytes: usize) |s| {
        if s.strict && !s.capturing.is_empty() {
            return 900;
        }
        s.take(bytes).map_or(answer::OUT_OF_MEMORY, |block| put(address, block))
    };
    cuMemFree_v2(address: CuPointer) |s| s.give(address);
    cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) |s| {
        s.take(bytes).map_or(answer::OUT_OF_MEMORY, |block| put(address, block as *mut c_void))
    };
    cuMemFreeHost(address: *mut c_void) |s| s.give(address as u64);
    cuMemcpyHtoD_v2(to: CuPointer, from: *const c_void, bytes: usize) |_s| copy(to, from as u64, bytes);
    cuMemcpyDtoH_v2(to: *mut c_void, from: CuPointer, bytes: usize) |_s| copy(to as u64, from, bytes);
    cuMemcpyDtoDAsync_v2(to: CuPointer, from: CuPointer, bytes: usize, stream: CuStream) |s| {
        match s.capturing.get_mut(&(stream.0 as usize)) {
            // A copy has no function.
            Some(recorded) => {
                recorded.push(Work { function: 0, word: to });
                answer::SUCCESS
            }
            None => copy(to, from, bytes),
        }
    };
    cuMemPoolCreate(pool: *mut CuPool, props: *const PoolProps) |s| {
        // SAFETY: whoever makes a pool says what it is made of.
        assert_eq!(unsafe { (*props).location_kind }, 1);
        let made = s.make("pool");
        put(pool, CuPool(made))
    };
    cuMemPoolDestroy(pool: CuPool) |s| s.end(pool.0, "pool");
    cuMemPoolTrimTo(_pool: CuPool, keep: usize) |s| {
        s.keep = s.keep.min(keep as u64);
        answer::SUCCESS
    };
    cuMemPoolSetAttribute(_pool: CuPool, _number: c_int, value: *mut c_void) |s| {
        // SAFETY: all attributes that are set are 64-bit numbers.
        s.keep = unsafe { value.cast::<u64>().read() };
        answer::SUCCESS
    };
    cuMemPoolGetAttribute(_pool: CuPool, number: c_int, value: *mut c_void) |s| {
        let used = s.used() as u64;
        put(value.cast(), if number == pool_attribute::RESERVED { used.max(s.keep) } else { used })
    };
    cuMemAllocFromPoolAsync(address: *mut CuPointer, bytes: usize, _pool: CuPool, _stream: CuStream) |s| {
        s.take(bytes).map_or(answer::OUT_OF_MEMORY, |block| put(address, block))
    };
    cuMemFreeAsync(address: CuPointer, _stream: CuStream) |s| s.give(address);
    cuStreamCreate(stream: *mut CuStream, _flags: c_uint) |s| {
        let made = s.make("stream");
        put(stream, CuStream(made))
    };
    cuStreamDestroy_v2(stream: CuStream) |s| s.end(stream.0, "stream");
    cuStreamSynchronize(stream: CuStream) |s| if s.capturing.contains_key(&(stream.0 as usize)) { 900 } else { s.fault };
    cuStreamWaitEvent(_stream: CuStream, _event: CuEvent, _flags: c_uint) |_s| answer::SUCCESS;
    cuStreamQuery(stream: CuStream) |s| if s.alive.contains_key(&(stream.0 as usize)) { answer::NOT_READY } else { 400 };
    cuStreamIsCapturing(stream: CuStream, status: *mut c_int) |s| put(status, c_int::from(s.capturing.contains_key(&(stream.0 as usize))));
    cuStreamBeginCapture_v2(stream: CuStream, mode: c_int) |s| {
        s.strict = mode != CAPTURE_RELAXED;
        match s.capturing.insert(stream.0 as usize, Vec::new()) {
            None => answer::SUCCESS,
            Some(_) => 901,
        }
    };
    cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) |s| {
        let broken = std::mem::take(&mut s.broken);
        match s.capturing.remove(&(stream.0 as usize)) {
            Some(_) if broken != answer::SUCCESS => {
                put(graph, CuGraph::NULL);
                broken
            }
            Some(work) => {
                let made = s.make("graph");
                s.graphs.insert(made as usize, work);
                put(graph, CuGraph(made))
            }
            None => 903,
        }
    };
    cuEventCreate(event: *mut CuEvent, _flags: c_uint) |s| {
        let made = s.make("event");
        put(event, CuEvent(made))
    };
    cuEventDestroy_v2(event: CuEvent) |s| s.end(event.0, "event");
    cuEventRecord(_event: CuEvent, _stream: CuStream) |_s| answer::SUCCESS;
    cuEventSynchronize(_event: CuEvent) |_s| answer::SUCCESS;
    cuEventQuery(_event: CuEvent) |_s| answer::SUCCESS;
    cuEventElapsedTime(milliseconds: *mut f32, _from: CuEvent, _to: CuEvent) |_s| put(milliseconds, 2.5);
    cuModuleLoadDataEx(module: *mut CuModule, _image: *const c_void, _count: c_uint, _options: *mut c_int, _values: *mut *mut c_void) |s| {
        let made = s.make("module");
        put(module, CuModule(made))
    };
    cuModuleUnload(module: CuModule) |s| s.end(module.0, "module");
    cuModuleGetFunction(function: *mut CuFunction, module: CuModule, _name: *const c_char) |_s| put(function, CuFunction(module.0));
    cuFuncGetAttribute(value: *mut c_int, number: c_int, _function: CuFunction) |_s| put(value, if number == function_attribute::REGISTERS { 40 } else { 0 });
    cuFuncSetAttribute(_function: CuFunction, number: c_int, value: c_int) |s| {
        s.set.push((number, value));
        answer::SUCCESS
    };
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, _function: CuFunction, threads: c_int, _shared: usize) |_s| put(blocks, 2048 / threads);
    cuOccupancyMaxActiveClusters(clusters: *mut c_int, _function: CuFunction, config: *const LaunchConfig) |s| {
        // SAFETY: whoever asks says for which launch, and has as many attributes as counted.
        let (config, attributes) = unsafe {
            let config = &*config;
            (config, std::slice::from_raw_parts(config.attributes, config.attribute_count as usize))
        };
        let blocks: u64 = attributes.iter().filter(|attribute| attribute.id == 4).map(|attribute| {
            let [first, second] = [attribute.value[0], attribute.value[1]];
            (first & 0xffff_ffff) * (first >> 32) * second
        }).sum();
        s.grids.push(config.grid);
        let held = 128 * (2048 / u64::from(config.block[0]));
        put(clusters, held.checked_div(blocks).unwrap_or(0) as c_int)
    };
    cuLaunchKernelEx(config: *const LaunchConfig, function: CuFunction, params: *mut *mut c_void, _extra: *mut *mut c_void) |s| {
        // SAFETY: whoever launches says where, and has as many attributes as counted.
        let (grid, stream, attributes) = unsafe {
            let config = &*config;
            (config.grid, config.stream, std::slice::from_raw_parts(config.attributes, config.attribute_count as usize))
        };
        s.grids.push(grid);
        s.attributes.push(attributes.iter().map(|attribute| attribute.id).collect());
        s.ask(stream, Work { function: function.0 as usize, word: first_word(params) });
        answer::SUCCESS
    };
    cuLinkCreate_v2(_count: c_uint, _options: *mut c_int, _values: *mut *mut c_void, link: *mut CuLink) |s| {
        let made = s.make("link");
        put(link, CuLink(made))
    };
    cuLinkAddData_v2(_link: CuLink, _kind: c_int, _data: *mut c_void, _bytes: usize, _name: *const c_char, _count: c_uint, _options: *mut c_int, _values: *mut *mut c_void) |_s| answer::SUCCESS;
    cuLinkComplete(_link: CuLink, cubin: *mut *mut c_void, bytes: *mut usize) |s| {
        static CUBIN: [u8; 5] = *b"cubin";
        s.linked += 1;
        put(bytes, CUBIN.len());
        put(cubin, CUBIN.as_ptr().cast_mut().cast())
    };
    cuLinkDestroy(link: CuLink) |s| s.end(link.0, "link");
    cuGraphDestroy(graph: CuGraph) |s| {
        s.graphs.remove(&(graph.0 as usize));
        s.end(graph.0, "graph")
    };
    cuGraphGetNodes(graph: CuGraph, nodes: *mut CuNode, count: *mut usize) |s| {
        let work = s.graphs.get(&(graph.0 as usize)).map_or(0, Vec::len);
        if !nodes.is_null() {
            for node in 0..work {
                // A node is known by its graph and its number.
                put(nodes.wrapping_add(node), CuNode((graph.0 as usize + node) as *mut c_void));
            }
        }
        put(count, work)
    };
    cuGraphInstantiateWithFlags(exec: *mut CuGraphExec, graph: CuGraph, _flags: u64) |s| {
        let work = s.graphs.get(&(graph.0 as usize)).cloned().unwrap_or_default();
        let made = s.make("exec");
        s.graphs.insert(made as usize, work);
        put(exec, CuGraphExec(made))
    };
    cuGraphLaunch(exec: CuGraphExec, stream: CuStream) |s| {
        // Nothing of ours launches recorded work where work is recorded.
        if s.capturing.contains_key(&(stream.0 as usize)) {
            return 900;
        }
        s.submitted += 1;
        for work in s.graphs.get(&(exec.0 as usize)).cloned().unwrap_or_default() {
            s.ask(stream, work);
        }
        answer::SUCCESS
    };
    cuGraphUpload(_exec: CuGraphExec, _stream: CuStream) |_s| answer::SUCCESS;
    cuGraphExecUpdate_v2(exec: CuGraphExec, graph: CuGraph, _result: *mut UpdateResult) |s| {
        let work = s.graphs.get(&(graph.0 as usize)).cloned().unwrap_or_default();
        let known = s.graphs.entry(exec.0 as usize).or_default();
        if known.len() != work.len() {
            return answer::GRAPH_UPDATE_REFUSED;
        }
        *known = work;
        answer::SUCCESS
    };
    cuGraphExecDestroy(exec: CuGraphExec) |s| {
        s.graphs.remove(&(exec.0 as usize));
        s.end(exec.0, "exec")
    };
    cuGraphNodeGetType(node: CuNode, kind: *mut c_int) |s| {
        let (graph, number) = (node.0 as usize & !0xfff, node.0 as usize & 0xfff);
        let work = s.graphs.get(&graph).and_then(|work| work.get(number));
        put(kind, c_int::from(work.is_some_and(|work| work.function == 0)))
    };
    cuGraphKernelNodeGetParams_v2(node: CuNode, params: *mut KernelNode) |s| {
        let (graph, number) = (node.0 as usize & !0xfff, node.0 as usize & 0xfff);
        let work = s.graphs.get(&graph).and_then(|work| work.get(number));
        let function = work.map_or(0, |work| work.function);
        put(params, KernelNode { function: CuFunction(function as *mut c_void), ..KernelNode::NOTHING })
    };
    cuGraphExecKernelNodeSetParams_v2(exec: CuGraphExec, node: CuNode, params: *const KernelNode) |s| {
        let number = node.0 as usize & 0xfff;
        // SAFETY: whoever sets parameters gives them.
        let params = unsafe { *params };
        let work = s.graphs.get_mut(&(exec.0 as usize)).and_then(|work| work.get_mut(number));
        work.map_or(1, |work| {
            *work = Work { function: params.function.0 as usize, word: first_word(params.params) };
            answer::SUCCESS
        })
    };
}
