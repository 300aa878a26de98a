//! The concrete machines: one row each, with a description for everything above the emitters, and the emitter itself.
//!
//! [`Target::by_name`] describes a machine in general, the same on every host, for goldens and for compiling without the machine. [`Target::host`] describes this
//! machine: its caches, its workers.

use std::sync::Arc;

use oxyfuel_base::{DType, Result, err};
use oxyfuel_kernel::Program;
use oxyfuel_plan::{Artefact, MachineCode, MatrixUnit, OperandHome, TargetDesc};
use oxyfuel_runtime::code::CodeOptions;
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::cpu::features::{CpuFeatures, Machine};
use oxyfuel_runtime::cuda::{CudaDevice, CudaInfo, device_count};
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::memory::HostAllocator;
use oxyfuel_runtime::openmp::OpenMp;
use oxyfuel_runtime::pool::{Pool, PoolOptions};
use oxyfuel_x86::Level;

use crate::interpret::Interpreter;
use crate::options::Options;

/// A machine to compile for.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub desc: TargetDesc,
    /// What it is, for people.
    pub about: &'static str,
    emitter: Emitter,
}

/// Who writes the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Emitter {
    /// Nobody: the tile interpreter runs the programs.
    Interpreter,
    X86(Level),
    Ptx(&'static str),
}

/// A row: name, emitter, meaning.
type Row = (&'static str, Emitter, &'static str);

/// Every target; of those that this machine can run, the last one is the best.
const TABLE: &[Row] = &[
    (
        "interpreter",
        Emitter::Interpreter,
        "the tile interpreter: portable, slow, and the judge of the others",
    ),
    (
        "avx2",
        Emitter::X86(Level::AVX2),
        "x86-64 with AVX2, FMA and F16C",
    ),
    (
        "avx2-vnni",
        Emitter::X86(Level::AVX2_VNNI),
        "x86-64 with AVX2 and int8 products on its vectors",
    ),
    (
        "avx512",
        Emitter::X86(Level::AVX512),
        "x86-64 with AVX-512 F, BW, DQ and VL",
    ),
    // Before the next one, so that nobody gets it who does not name it: pairs of bf16 were measured to be no faster than widened ones.
    (
        "avx512-bf16",
        Emitter::X86(Level::AVX512_BF16),
        "x86-64 with AVX-512, bf16 and int8 products on its vectors",
    ),
    (
        "avx512-vnni",
        Emitter::X86(Level::AVX512_VNNI),
        "x86-64 with AVX-512 and int8 products on its vectors",
    ),
    (
        "avx512-amx",
        Emitter::X86(Level::AMX),
        "x86-64 with AVX-512, bf16 and int8 products on AMX tiles",
    ),
    ("sm_80", Emitter::Ptx("sm_80"), "NVIDIA GPUs from Ampere on"),
    (
        "sm_86",
        Emitter::Ptx("sm_86"),
        "NVIDIA GPUs from the smaller Ampere chips on",
    ),
    (
        "sm_89",
        Emitter::Ptx("sm_89"),
        "NVIDIA GPUs from Ada on, with 8-bit floats",
    ),
    ("sm_90a", Emitter::Ptx("sm_90a"), "NVIDIA Hopper"),
    ("sm_100a", Emitter::Ptx("sm_100a"), "NVIDIA Blackwell"),
];

/// What differs between machines of one instruction set.
#[derive(Clone, Copy, Debug)]
struct Cores {
    workers: u32,
    /// Of a CPU; a GPU's is its shared memory.
    l1_bytes: u64,
    l2_bytes: u64,
    /// The CUDA version of a GPU's driver.
    cuda: u32,
}

/// Usual machines, for descriptions that must not depend on this one.
const USUAL_CPU: Cores = Cores {
    workers: 8,
    l1_bytes: 32 << 10,
    l2_bytes: 1 << 20,
    cuda: 0,
};
const USUAL_GPU: Cores = Cores {
    workers: 132,
    l1_bytes: 0,
    l2_bytes: 50 << 20,
    cuda: u32::MAX,
};

impl Target {
    /// The interpreter with the shape of a small vector machine.
    pub fn interpreter() -> Self {
        describe(TABLE[0], None)
    }

    /// A target by name, described in general.
    pub fn by_name(name: &str) -> Result<Self> {
        Ok(describe(row(name)?, None))
    }

    /// Every target, described in general.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|&row| describe(row, None))
    }

    /// This machine: the target that the options name, or the best CPU target that runs here, with the workers and caches of this machine. A named one need not run here: code can be looked at
    /// anywhere, and whoever wants to run it asks [`Self::check_here`], as [`Self::device`] does.
    pub fn host(options: &Options) -> Result<Self> {
        if options.target.is_empty() {
            let best = best(Machine::get().features);
            return Ok(describe(best, Some(cores(options))));
        }
        let row = row(&options.target)?;
        match row.1 {
            Emitter::Interpreter | Emitter::X86(_) => Ok(describe(row, Some(cores(options)))),
            // Without a GPU the general description serves: the code is the same but for the size of persistent grids.
            Emitter::Ptx(_) => Ok(CudaDevice::new(0, None).map_or_else(
                |_| describe(row, None),
                |device| describe(row, Some(gpu_cores(device.info()))),
            )),
        }
    }

    /// A GPU: the target of that name, or the best that runs there where none is named.
    pub fn of_gpu(info: &CudaInfo, name: &str) -> Result<Self> {
        let (major, minor) = info.capability;
        let best = oxyfuel_ptx::Target::for_capability(major, minor)
            .map_err(|error| {
                error.context(&info.name).help(
                    "GPUs from Ampere (compute capability 8.0) on are supported; others use the CPU",
                )
            })?
            .name;
        let named = row(if name.is_empty() { best } else { name })?;
        match named.1 {
            Emitter::Ptx(isa) if runs_on(isa, info) => Ok(describe(named, Some(gpu_cores(info)))),
            Emitter::Ptx(_) | Emitter::Interpreter | Emitter::X86(_) => Err(err!(
                UnsupportedDevice,
                "code for {name} does not run on {}, whose compute capability is {major}.{minor}",
                info.name
            )
            .help(format!("leave the target open, or name {best}"))),
        }
    }

    /// The same where a library of products is there, or is not to be used.
    #[must_use]
    pub fn with_product_library(mut self, there: bool) -> Self {
        self.desc.product_library = there && self.desc.is_simt();
        self
    }

    pub fn name(&self) -> &str {
        &self.desc.name
    }

    /// Whether this machine can run its code.
    pub fn supported_here(&self) -> bool {
        self.check_here().is_ok()
    }

    /// An error where this machine cannot run its code.
    pub fn check_here(&self) -> Result<()> {
        self.check(Machine::get().features)
    }

    /// An error where a processor with these features, or the first GPU that is here, cannot run its code.
    pub fn check(&self, features: CpuFeatures) -> Result<()> {
        let name = self.name();
        match self.emitter {
            Emitter::Interpreter => Ok(()),
            Emitter::X86(level) => {
                let checked = features.check(needs(level), &format!("code for {name}"));
                let (best, ..) = best(features);
                checked.map_err(|error| {
                    error.help(format!(
                        "leave the target open, or name {best}, the best here"
                    ))
                })
            }
            Emitter::Ptx(isa) => {
                let gpu = device_count()
                    .is_ok_and(|count| count > 0)
                    .then(|| CudaDevice::new(0, None).ok())
                    .flatten();
                if gpu.is_some_and(|device| runs_on(isa, device.info())) {
                    return Ok(());
                }
                Err(
                    err!(UnsupportedDevice, "no GPU here runs code for {name}")
                        .help("leave the target open, or name one that `oxyfuel targets` shows to run here"),
                )
            }
        }
    }

    /// The device that runs its code; an error where none here does.
    pub fn device(&self, options: &Options) -> Result<Arc<dyn Device>> {
        self.check_here()?;
        match self.emitter {
            Emitter::Interpreter | Emitter::X86(_) => Ok(cpu_device(options)),
            Emitter::Ptx(_) => Ok(CudaDevice::new(0, None)?),
        }
    }

    /// Emits a mapped program.
    pub fn emit(&self, program: &Program) -> Result<Artefact> {
        match self.emitter {
            Emitter::Interpreter => Ok(Artefact::Interpreted),
            Emitter::X86(level) => {
                let made = oxyfuel_x86::compile(program, level)?;
                Ok(Artefact::MachineCode(MachineCode {
                    code: made.code,
                    entries: made.entries,
                    scratch_bytes: made.scratch_bytes as u64,
                    needs: needs(level),
                }))
            }
            Emitter::Ptx(_) => Ok(Artefact::Ptx(oxyfuel_ptx::emit(program, &self.desc)?)),
        }
    }

    /// Whether kernels without code can run by the interpreter here.
    pub fn can_interpret(&self) -> bool {
        !self.desc.is_simt()
    }

    /// Code for people.
    pub fn listing(&self, artefact: &Artefact) -> String {
        match artefact {
            Artefact::Interpreted => "; runs in the tile interpreter\n".to_owned(),
            Artefact::MachineCode(code) => oxyfuel_x86::listing::listing(&code.code, &code.entries),
            Artefact::Ptx(module) => module.text.clone(),
        }
    }
}

/// The host's processor as the options want it.
pub fn cpu_device(options: &Options) -> Arc<CpuDevice> {
    let code = CodeOptions {
        perf_map: options.perf_map,
        ..CodeOptions::default()
    };
    let interpreter = Interpreter {
        check: options.verify,
        judge: options.verify,
    };
    let host = match options.host_threads.as_str() {
        "" => None,
        library => OpenMp::of(library),
    };
    let pool = PoolOptions {
        host,
        ..PoolOptions::with_threads(threads(options))
    };
    Arc::new(CpuDevice::new(
        Arc::new(Pool::new(pool)),
        HostAllocator::default(),
        code,
        Some(interpreter.runner()),
    ))
}

fn threads(options: &Options) -> usize {
    match options.threads {
        0 => Machine::get().physical_cores,
        threads => threads,
    }
}

fn cores(options: &Options) -> Cores {
    let caches = Machine::get().caches;
    Cores {
        workers: u32::try_from(threads(options)).unwrap_or(u32::MAX),
        l1_bytes: caches.l1d as u64,
        l2_bytes: caches.l2 as u64,
        cuda: 0,
    }
}

fn gpu_cores(info: &CudaInfo) -> Cores {
    Cores {
        workers: info.multiprocessors,
        l1_bytes: 0,
        l2_bytes: u64::from(info.l2_bytes),
        cuda: info.driver_version,
    }
}

fn runs_on(isa: &str, info: &CudaInfo) -> bool {
    let (major, minor) = info.capability;
    oxyfuel_ptx::Target::by_name(isa).is_ok_and(|row| row.runs_on(major, minor))
}

fn row(name: &str) -> Result<Row> {
    TABLE
        .iter()
        .find(|(known, ..)| *known == name)
        .copied()
        .ok_or_else(|| {
            let names: Vec<&str> = TABLE.iter().map(|(known, ..)| *known).collect();
            err!(InvalidOption, "there is no target `{name}`")
                .help(format!("targets are {}", names.join(", ")))
        })
}

/// What code of a level wants of the processor.
fn needs(level: Level) -> CpuFeatures {
    CpuFeatures {
        avx2: true,
        avx_vnni: level.avx_vnni,
        avx512: level.avx512,
        avx512_bf16: level.avx512_bf16,
        avx512_fp16: false,
        avx512_vnni: level.avx512_vnni,
        amx_tile: level.amx(),
        amx_bf16: level.amx_bf16,
        amx_int8: level.amx_int8,
    }
}

/// The best target of a processor with these features; the interpreter runs on each.
fn best(features: CpuFeatures) -> Row {
    let runs = |emitter: &Emitter| match emitter {
        Emitter::Interpreter => true,
        Emitter::X86(level) => features.missing(needs(*level)) == CpuFeatures::default(),
        Emitter::Ptx(_) => false,
    };
    let best = TABLE.iter().rev().find(|(_, emitter, _)| runs(emitter));
    *best.unwrap_or(&TABLE[0])
}

fn describe((name, emitter, about): Row, cores: Option<Cores>) -> Target {
    let usual = match emitter {
        Emitter::Interpreter | Emitter::X86(_) => USUAL_CPU,
        Emitter::Ptx(_) => USUAL_GPU,
    };
    let cores = cores.unwrap_or(usual);
    let vector = |vector_bytes, registers, matrix_units| TargetDesc {
        name: name.to_owned(),
        isa: name.to_owned(),
        vector_bytes,
        warp_lanes: 1,
        max_warps: 1,
        max_cluster: 1,
        registers,
        workers: cores.workers,
        l1_bytes: cores.l1_bytes,
        l2_bytes: cores.l2_bytes,
        shared_bytes: 0,
        tiles_spill: true,
        powers_of_two: vector_bytes >= 64,
        storage_floats: Vec::new(),
        narrowed: Vec::new(),
        tensor_copies: false,
        matrix_units,
        product_library: false,
    };
    let desc = match emitter {
        Emitter::Interpreter => vector(32, 16, Vec::new()),
        Emitter::X86(level) => vector(level.vector_bytes(), level.vector_registers(), tiles(level)),
        Emitter::Ptx(name) => gpu(name, cores),
    };
    Target {
        desc,
        about,
        emitter,
    }
}

/// A GPU as the emitter describes it; every row of ours names one of its rows, which a test makes sure of.
fn gpu(name: &str, cores: Cores) -> TargetDesc {
    let row = oxyfuel_ptx::TARGETS
        .iter()
        .find(|row| row.name == name)
        .unwrap_or(&oxyfuel_ptx::TARGETS[0]);
    row.under(cores.cuda)
        .describe(cores.workers, cores.l2_bytes)
}

/// The shapes of AMX: 16 rows of 64 bytes a tile, eight tiles, of which four accumulate. And those of vectors whose lanes multiply four bytes of the depth at a time: as many rows of two vectors as the
/// registers hold beside what feeds them.
fn tiles(level: Level) -> Vec<MatrixUnit> {
    let vectors = |a: DType, b: DType, acc| MatrixUnit {
        a,
        b,
        acc,
        m: if level.avx512 { 14 } else { 6 },
        n: level.vector_bytes() / 2,
        k: 4 / a.size() as u32,
        operands: OperandHome::Registers,
        b_pack: 4 / a.size() as u32,
        accumulators: 1,
        asynchronous: false,
        warps: 1,
    };
    let unit = |a, b, acc, k, b_pack| MatrixUnit {
        a,
        b,
        acc,
        m: 16,
        n: 16,
        k,
        operands: OperandHome::Memory,
        b_pack,
        accumulators: 4,
        asynchronous: false,
        warps: 1,
    };
    let mut units = Vec::new();
    if level.amx_bf16 {
        units.push(unit(DType::BF16, DType::BF16, DType::F32, 32, 2));
    } else if level.avx512_bf16 {
        units.push(vectors(DType::BF16, DType::BF16, DType::F32));
    }
    if level.amx_int8 {
        for a in [DType::I8, DType::U8] {
            for b in [DType::I8, DType::U8] {
                units.push(unit(a, b, DType::I32, 64, 4));
            }
        }
    } else if level.vnni() {
        units.push(vectors(DType::U8, DType::I8, DType::I32));
        units.push(vectors(DType::I8, DType::U8, DType::I32));
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Code;

    #[test]
    fn every_row_is_what_it_says() {
        for target in Target::all() {
            assert_eq!(target.desc.isa, target.desc.name);
            assert_eq!(Target::by_name(target.name()).unwrap(), target);
            assert_eq!(target.can_interpret(), !target.name().starts_with("sm_"));
        }
    }

    #[test]
    fn an_unknown_target_lists_the_known_ones() {
        let error = Target::by_name("sm_999").unwrap_err();
        assert_eq!(error.code, Code::InvalidOption);
        assert!(error.help.unwrap().contains("avx512-amx"));
    }

    #[test]
    fn a_gpu_gets_the_code_that_it_runs() {
        let gpu = |major, minor| CudaInfo {
            name: "card".into(),
            capability: (major, minor),
            multiprocessors: 16,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 65_536,
            shared_per_multiprocessor: 1 << 16,
            shared_per_block: 1 << 16,
            l2_bytes: 1 << 22,
            memory: 4 << 30,
            clock_khz: 0,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            driver_version: 12_040,
            memory_pools: true,
        };
        let hopper = Target::of_gpu(&gpu(9, 0), "").unwrap();
        assert_eq!((hopper.name(), hopper.desc.workers), ("sm_90a", 16));
        assert_eq!(Target::of_gpu(&gpu(9, 0), "sm_80").unwrap().name(), "sm_80");
        assert_eq!(Target::of_gpu(&gpu(8, 6), "").unwrap().name(), "sm_86");
        assert_eq!(Target::of_gpu(&gpu(12, 0), "").unwrap().name(), "sm_89");
        // Nothing is planned that the card's driver would refuse to link.
        let under = |major, minor, driver_version| {
            let card = CudaInfo {
                driver_version,
                ..gpu(major, minor)
            };
            Target::of_gpu(&card, "").unwrap().desc
        };
        assert!(
            under(8, 9, 12_000).narrowed.is_empty() && !under(8, 9, 12_010).narrowed.is_empty()
        );
        assert!(under(9, 0, 12_000).max_cluster == 1 && under(9, 0, 12_010).max_cluster == 8);
        for (major, minor, name) in [(7, 5, ""), (8, 0, "sm_90a"), (9, 0, "avx2")] {
            let error = Target::of_gpu(&gpu(major, minor), name).unwrap_err();
            assert_eq!(error.code, Code::UnsupportedDevice);
            assert!(
                error.message.contains("card") && error.help.is_some(),
                "{error}"
            );
        }
    }

    /// A processor like those that were sold, and the levels it has code for.
    #[test]
    fn a_level_runs_where_its_instructions_are() {
        let nothing = CpuFeatures::default();
        let haswell = CpuFeatures {
            avx2: true,
            ..nothing
        };
        let alder_lake = CpuFeatures {
            avx_vnni: true,
            ..haswell
        };
        let skylake = CpuFeatures {
            avx512: true,
            ..haswell
        };
        let ice_lake = CpuFeatures {
            avx512_vnni: true,
            ..skylake
        };
        let zen_4 = CpuFeatures {
            avx512_bf16: true,
            ..ice_lake
        };
        let sapphire_rapids = CpuFeatures {
            avx_vnni: true,
            avx512_fp16: true,
            amx_tile: true,
            amx_bf16: true,
            amx_int8: true,
            ..zen_4
        };
        // The instructions are there, and the system does not save the tiles.
        let no_tiles = CpuFeatures {
            amx_tile: false,
            ..sapphire_rapids
        };
        let with_avx512 = ["avx2", "avx512"];
        let with_vnni = ["avx2", "avx512", "avx512-vnni"];
        let with_bf16 = ["avx2", "avx512", "avx512-bf16", "avx512-vnni"];
        let but_amx = ["avx2", "avx2-vnni", "avx512", "avx512-bf16", "avx512-vnni"];
        let all = [&but_amx[..], &["avx512-amx"]].concat();
        let rows: [(CpuFeatures, &[&str]); 8] = [
            (nothing, &[]),
            (haswell, &["avx2"]),
            (alder_lake, &["avx2", "avx2-vnni"]),
            (skylake, &with_avx512),
            (ice_lake, &with_vnni),
            (zen_4, &with_bf16),
            (no_tiles, &but_amx),
            (sapphire_rapids, &all),
        ];
        for (features, levels) in rows {
            let best = levels.last().copied().unwrap_or("interpreter");
            for target in Target::all().filter(Target::can_interpret) {
                let checked = target.check(features);
                let runs = target.name() == "interpreter" || levels.contains(&target.name());
                assert_eq!(checked.is_ok(), runs, "{} on {features:?}", target.name());
                let Err(error) = checked else { continue };
                assert_eq!(error.code, Code::UnsupportedDevice);
                assert!(error.message.contains(target.name()), "{error}");
                let help = error.help.unwrap();
                assert!(help.contains(&format!("name {best},")), "{help}");
            }
        }
        let amx = Target::by_name("avx512-amx").unwrap();
        let error = amx.check(no_tiles).unwrap_err();
        assert!(error.message.contains("amx-tile"), "{error}");
    }

    /// A device is refused as well as a compiler, which takes one.
    #[test]
    fn what_does_not_run_here_has_no_device() {
        let options = Options::default();
        for target in Target::all() {
            let device = target.device(&options);
            assert_eq!(device.is_ok(), target.supported_here(), "{}", target.name());
            if let Err(error) = device {
                assert_eq!(error.code, Code::UnsupportedDevice, "{error}");
                assert!(error.help.is_some(), "{error}");
            }
        }
    }

    #[test]
    fn the_host_runs_its_own_code() {
        let target = Target::host(&Options::default()).unwrap();
        assert!(target.supported_here(), "{}", target.name());
    }
}
