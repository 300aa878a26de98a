//! Kernels on a CUDA device: PTX or cubin into the driver, and launches.

use super::abi::{
    CuFunction, CuLink, CuModule, CuStream, JIT_INPUT_PTX, LaunchAttribute, LaunchConfig,
    TensorMap, function_attribute, jit_option,
};
use super::context::Context;
use super::driver::Driver;
use crate::capture::tape;
use crate::device::{Grid, Launch, LoadedKernel, MapShape};
use oxyfuel_base::{Code, DType, Error, Result, ensure, err};
use oxyfuel_plan::PtxModule;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::sync::Arc;

/// A module in the driver.
#[derive(Debug)]
struct Module {
    raw: CuModule,
    /// What was found in it.
    functions: Vec<CuFunction>,
    context: Arc<Context>,
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            for function in &self.functions {
                self.context.launches.forget(function.0 as usize);
            }
            // SAFETY: loaded by `load` and unloaded once; its functions go with it.
            let _at_exit = unsafe { entered.driver().module_unload(self.raw) };
        }
    }
}

/// The buffers in which the driver's compiler leaves its words.
struct Logs {
    info: Vec<u8>,
    error: Vec<u8>,
    options: [c_int; 4],
    values: [*mut c_void; 4],
}

impl Logs {
    const BYTES: usize = 16 << 10;

    fn new() -> Self {
        let (mut info, mut error) = (vec![0; Self::BYTES], vec![0; Self::BYTES]);
        // The driver takes sizes as numbers in the place of pointers.
        let bytes = std::ptr::without_provenance_mut(Self::BYTES);
        let values = [
            info.as_mut_ptr().cast(),
            bytes,
            error.as_mut_ptr().cast(),
            bytes,
        ];
        let options = [
            jit_option::INFO_LOG,
            jit_option::INFO_LOG_BYTES,
            jit_option::ERROR_LOG,
            jit_option::ERROR_LOG_BYTES,
        ];
        Self {
            info,
            error,
            options,
            values,
        }
    }

    /// The error with what the compiler said; a lack of memory or of a function is not the kernel's fault.
    fn explain(&self, error: Error) -> Error {
        if !matches!(error.code, Code::DriverCall | Code::LinkFailed) {
            return error;
        }
        let text = |log: &[u8]| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            String::from_utf8_lossy(&log[..end]).trim().to_string()
        };
        let said = format!("{}\n{}", text(&self.error), text(&self.info));
        err!(
            LinkFailed,
            "the driver refuses a kernel: {}: {}",
            error.message,
            said.trim()
        )
    }
}

/// `image` as the driver wants it: PTX text ends with a zero, a cubin says its own length.
fn load(context: &Arc<Context>, image: &[u8]) -> Result<Module> {
    let entered = context.enter()?;
    let mut raw = CuModule::NULL;
    let mut logs = Logs::new();
    let (options, values) = (logs.options.as_mut_ptr(), logs.values.as_mut_ptr());
    // SAFETY: the image is terminated as its kind asks; the option arrays have four entries and outlive the call.
    let loaded = unsafe {
        entered
            .driver()
            .module_load(&mut raw, image.as_ptr().cast(), 4, options, values)
    };
    loaded.map_err(|error| logs.explain(error))?;
    drop(entered);
    Ok(Module {
        raw,
        functions: vec![],
        context: context.clone(),
    })
}

fn terminated(ptx: &str) -> Result<Vec<u8>> {
    let text = CString::new(ptx).map(CString::into_bytes_with_nul);
    text.map_err(|_| err!(LinkFailed, "PTX text with a zero byte in it"))
}

/// Compiles PTX into the machine code of the context's device.
pub(super) fn link(context: &Context, ptx: &str) -> Result<Vec<u8>> {
    let mut text = terminated(ptx)?;
    let entered = context.enter()?;
    let driver = entered.driver();
    let mut logs = Logs::new();
    let mut raw = CuLink::NULL;
    let (mut cubin, mut bytes) = (std::ptr::null_mut(), 0);
    let (no_options, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the option arrays have four entries and outlive the link; the text is terminated and its length given;
    // the cubin belongs to the link and is copied before that is destroyed.
    unsafe {
        driver.link_create(
            4,
            logs.options.as_mut_ptr(),
            logs.values.as_mut_ptr(),
            &mut raw,
        )?;
        let (data, length, name) = (text.as_mut_ptr().cast(), text.len(), c"kernel".as_ptr());
        let linked = driver
            .link_add(
                raw,
                JIT_INPUT_PTX,
                data,
                length,
                name,
                0,
                no_options,
                no_values,
            )
            .and_then(|()| driver.link_complete(raw, &mut cubin, &mut bytes))
            .map(|()| std::slice::from_raw_parts(cubin.cast::<u8>(), bytes).to_vec())
            .map_err(|error| logs.explain(error));
        driver.link_destroy(raw)?;
        linked
    }
}

/// What the driver knows of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Registers a thread uses.
    pub registers: u32,
    /// Bytes a thread spills to local memory.
    pub local_bytes: u32,
    /// Statically declared shared memory of a block in bytes.
    pub static_shared_bytes: u32,
    /// Blocks that fit on one multiprocessor.
    pub blocks_per_multiprocessor: u32,
    /// Clusters that fit on the device; `None` for a kernel without clusters.
    pub clusters: Option<u32>,
}

/// A kernel in the driver.
#[derive(Debug)]
pub struct CudaKernel {
    threads: u32,
    cluster: [u32; 3],
    shared_bytes: u32,
    persistent_blocks: Vec<u32>,
    dependent: bool,
    module: Arc<Module>,
}

impl CudaKernel {
    /// Loads the kernel that `ptx` describes, from `cubin` where that was made before.
    pub(super) fn new(
        context: &Arc<Context>,
        ptx: &PtxModule,
        cubin: Option<&[u8]>,
    ) -> Result<Self> {
        let mut module = match cubin {
            Some(cubin) => load(context, cubin)?,
            None => load(context, &terminated(&ptx.text)?)?,
        };
        let entered = context.enter()?;
        let driver = entered.driver();
        let cluster = ptx.cluster.map(|extent| extent.max(1));
        let shared = c_int::try_from(ptx.shared_bytes)
            .map_err(|_| err!(TooLarge, "{} bytes of shared memory", ptx.shared_bytes))?;
        for entry in &ptx.entries {
            let name = CString::new(entry.as_str())
                .map_err(|_| err!(LinkFailed, "a kernel name with a zero byte"))?;
            let mut function = CuFunction::NULL;
            // SAFETY: the module is loaded and the name is a C string.
            unsafe { driver.module_function(&mut function, module.raw, name.as_ptr()) }
                .map_err(|error| error.context(format_args!("entry {entry}")))?;
            // SAFETY: the function was just found.
            unsafe {
                // More than 48 KiB has to be asked for.
                if shared > 0 {
                    driver.function_set_attribute(
                        function,
                        function_attribute::MAX_DYNAMIC_SHARED,
                        shared,
                    )?;
                }
                // More than eight blocks a cluster too.
                if cluster.iter().product::<u32>() > 8 {
                    driver.function_set_attribute(
                        function,
                        function_attribute::NON_PORTABLE_CLUSTER,
                        1,
                    )?;
                }
            }
            context
                .launches
                .name(function.0 as usize, vec![entry.as_str().into()]);
            module.functions.push(function);
        }
        drop(entered);
        Ok(Self {
            threads: ptx.threads,
            cluster,
            shared_bytes: ptx.shared_bytes,
            persistent_blocks: ptx.persistent_blocks.clone(),
            dependent: ptx.dependent,
            module: Arc::new(module),
        })
    }

    /// What people call it, whatever its entries are called.
    pub(super) fn called(self, label: Arc<str>) -> Self {
        for function in &self.module.functions {
            let launches = &self.module.context.launches;
            launches.name(function.0 as usize, vec![label.clone()]);
        }
        self
    }

    /// What the driver knows of each phase's function.
    pub fn info(&self) -> Result<Vec<FunctionInfo>> {
        let entered = self.module.context.enter()?;
        let driver = entered.driver();
        let ask = |function, attribute| {
            let mut value = 0;
            // SAFETY: the pointer is valid for one int and the function is loaded.
            unsafe { driver.function_attribute(&mut value, attribute, function) }?;
            Ok(value.unsigned_abs())
        };
        let info = self.module.functions.iter().map(|&function| {
            let mut blocks = 0;
            // SAFETY: as above.
            unsafe {
                driver.occupancy(
                    &mut blocks,
                    function,
                    self.threads as c_int,
                    self.shared_bytes as usize,
                )
            }?;
            let clusters = match self.cluster {
                [1, 1, 1] => None,
                _ => Some(self.clusters(driver, function)?),
            };
            Ok(FunctionInfo {
                clusters,
                registers: ask(function, function_attribute::REGISTERS)?,
                local_bytes: ask(function, function_attribute::LOCAL)?,
                static_shared_bytes: ask(function, function_attribute::STATIC_SHARED)?,
                blocks_per_multiprocessor: blocks.unsigned_abs(),
            })
        });
        info.collect()
    }

    /// Clusters of this kernel that the device holds at once.
    fn clusters(&self, driver: &Driver, function: CuFunction) -> Result<u32> {
        let cluster = LaunchAttribute::cluster(self.cluster);
        let config = LaunchConfig {
            grid: self.cluster,
            block: [self.threads, 1, 1],
            shared_bytes: self.shared_bytes,
            stream: CuStream::NULL,
            attributes: &cluster,
            attribute_count: 1,
        };
        let mut clusters = 0;
        // SAFETY: the pointers are valid for one int and for the configuration; the function is loaded.
        unsafe { driver.occupancy_clusters(&mut clusters, function, &config) }?;
        Ok(clusters.unsigned_abs())
    }

    /// A launch that the driver refuses, with the kernel's name; a fault has those of all that may have caused it.
    fn refused(&self, function: CuFunction, error: Error) -> Error {
        let names = self.module.context.launches.names(function.0 as usize);
        match (error.code, names.first()) {
            (Code::KernelFault, _) | (_, None) => error,
            (_, Some(name)) => error.context(format_args!("kernel {name}")),
        }
    }

    /// Blocks along each axis: the whole grid, or as many as a persistent phase keeps.
    fn blocks(&self, phase: usize, extents: [u64; 3]) -> Result<[c_uint; 3]> {
        if let Some(blocks) = self
            .persistent_blocks
            .get(phase)
            .filter(|blocks| **blocks > 0)
        {
            return Ok([*blocks, 1, 1]);
        }
        const LARGEST: [u64; 3] = [(1 << 31) - 1, 65_535, 65_535];
        // A cluster carries one instance.
        let mut extents = extents;
        for (extent, blocks) in extents.iter_mut().zip(self.cluster) {
            *extent = extent.saturating_mul(u64::from(blocks));
        }
        ensure!(
            extents
                .iter()
                .zip(LARGEST)
                .all(|(extent, largest)| *extent <= largest),
            TooLarge,
            "a grid of {extents:?} blocks"
        );
        Ok(extents.map(|extent| extent as c_uint))
    }
}

/// The most tensor maps of a launch.
const MAX_MAPS: usize = 8;

/// Where the words of a launch are, one pointer a parameter, as the driver wants them. Few of them are held without asking for memory.
pub(super) struct Params {
    few: [*mut c_void; Self::FEW],
    many: Vec<*mut c_void>,
}

impl Params {
    const FEW: usize = 64;

    pub fn of(words: &[u64]) -> Self {
        let place = |word| std::ptr::from_ref::<u64>(word).cast_mut().cast();
        let mut few = [std::ptr::null_mut(); Self::FEW];
        let mut many = Vec::new();
        if words.len() <= Self::FEW {
            for (param, word) in few.iter_mut().zip(words) {
                *param = place(word);
            }
        } else {
            many.extend(words.iter().map(place));
        }
        Self { few, many }
    }

    pub fn slice(&mut self) -> &mut [*mut c_void] {
        if self.many.is_empty() {
            &mut self.few
        } else {
            &mut self.many
        }
    }
}

impl LoadedKernel for CudaKernel {
    fn pieces(&self, grids: &[Grid]) -> usize {
        let phases = self.module.functions.iter().zip(grids);
        phases.filter(|(_, grid)| grid.total() > 0).count()
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let entered = self.module.context.enter()?;
        let driver = entered.driver();
        let count = launch.words.len();
        ensure!(
            launch.maps.len() <= MAX_MAPS,
            TooLarge,
            "{} tensor maps in one kernel",
            launch.maps.len()
        );
        let mut maps = [TensorMap([0; 16]); MAX_MAPS];
        let mut params = Params::of(launch.words);
        let params = params.slice();
        for (map, shape) in maps.iter_mut().zip(launch.maps) {
            let address = launch.words.get(shape.buffer_param);
            let address =
                *address.ok_or_else(|| err!(InvalidPlan, "a tensor map over no parameter"))?;
            // SAFETY: the caller promises that the word is a pointer of the device.
            unsafe { encode(map, shape, address, driver) }?;
            let param = params[..count].get_mut(shape.param);
            *param.ok_or_else(|| err!(InvalidPlan, "a tensor map for no parameter"))? =
                std::ptr::from_mut(map).cast();
        }
        let attributes = [
            LaunchAttribute::dependent(),
            LaunchAttribute::cluster(self.cluster),
        ];
        let clustered = self.cluster != [1, 1, 1];
        let attributes = &attributes[usize::from(!self.dependent)..1 + usize::from(clustered)];
        let device = self.module.context.id;
        let stream = tape::stream(device, launch.stream);
        for (phase, (function, grid)) in self.module.functions.iter().zip(launch.grids).enumerate()
        {
            if grid.total() == 0 {
                continue;
            }
            let config = LaunchConfig {
                grid: self.blocks(phase, grid.extents)?,
                block: [self.threads, 1, 1],
                shared_bytes: self.shared_bytes,
                stream: CuStream(stream.0 as *mut c_void),
                attributes: attributes.as_ptr(),
                attribute_count: attributes.len() as c_uint,
            };
            let launches = &self.module.context.launches;
            launches.note(function.0 as usize, stream);
            // SAFETY: one pointer a parameter, which the driver copies before it returns; the rest is promised.
            unsafe {
                driver.launch(
                    &config,
                    *function,
                    params.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
            .map_err(|error| self.refused(*function, error))?;
        }
        let pieces = self.pieces(launch.grids);
        tape::launched(device, launch, pieces, || Box::new(self.module.clone()));
        Ok(())
    }
}

/// Builds the descriptor of a box copy; the driver wants the fastest dim first and strides in bytes.
///
/// # Safety
/// `address` is memory of the device.
unsafe fn encode(
    map: &mut TensorMap,
    shape: &MapShape,
    address: u64,
    driver: &Driver,
) -> Result<()> {
    const MAX_RANK: usize = 5;
    // A box row is at most 128 bytes; its neighbour along the row is usually the next box.
    const PROMOTE_TO_L2_256B: c_int = 3;
    let rank = shape.dims.len();
    ensure!(
        (1..=MAX_RANK).contains(&rank) && shape.strides.len() == rank && shape.boxed.len() == rank,
        InvalidPlan,
        "a tensor map of rank {rank}"
    );
    let size = shape.dtype.size() as u64;
    let (mut dims, mut strides, mut boxed) = ([1u64; MAX_RANK], [0u64; MAX_RANK], [1u32; MAX_RANK]);
    for dim in 0..rank {
        let from = rank - 1 - dim;
        dims[dim] = shape.dims[from];
        boxed[dim] = shape.boxed[from];
        strides[dim] = shape.strides[from] * size;
    }
    let swizzle = match shape.swizzle_bytes {
        0 => 0,
        32 => 1,
        64 => 2,
        128 => 3,
        bytes => return Err(err!(InvalidPlan, "a swizzle over {bytes} bytes")),
    };
    let steps = [1u32; MAX_RANK];
    // SAFETY: all arrays have at least `rank` entries (strides skip the fastest dim, which is dense).
    let encoded = unsafe {
        driver.tensor_map_tiled(
            map,
            map_type(shape.dtype),
            rank as u32,
            address as *mut c_void,
            dims.as_ptr(),
            strides[1..].as_ptr(),
            boxed.as_ptr(),
            steps.as_ptr(),
            0,
            swizzle,
            PROMOTE_TO_L2_256B,
            0,
        )
    };
    encoded.map_err(|error| error.context(format_args!("tensor map {shape:?}")))
}

/// The driver's number for an element type; types it does not know travel as bytes.
fn map_type(dtype: DType) -> c_int {
    match dtype {
        DType::U8
        | DType::I8
        | DType::Bool
        | DType::F8E4M3
        | DType::F8E5M2
        | DType::E8M0
        | DType::F4E2M1 => 0,
        DType::U16 | DType::I16 => 1,
        DType::U32 => 2,
        DType::I32 => 3,
        DType::U64 => 4,
        DType::I64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}
