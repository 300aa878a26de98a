//! `doctor` and `targets`: what this machine offers.

use clap::Args;
use oxyfuel_base::{Error, Result};
use oxyfuel_engine::cache::{Cache, DEFAULT_LIMIT};
use oxyfuel_engine::{Options, Target};
use oxyfuel_runtime::code::{CodeMemory, CodeOptions};
use oxyfuel_runtime::cpu::features::Machine;
use oxyfuel_runtime::cuda::{CUBLAS_LT, CudaDevice, cublas_lt, device_count, driver};
use serde::Serialize;

use crate::bench::{json, table};
use crate::{Common, env};

#[derive(Args, Debug)]
#[command(after_help = "Example:
  oxyfuel doctor --json")]
pub struct DoctorArgs {
    /// Print data instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:
  oxyfuel targets --json")]
pub struct TargetsArgs {
    /// Print data instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct TargetLine {
    name: String,
    about: &'static str,
    runs_here: bool,
    is_default: bool,
}

/// One thing that was looked at.
#[derive(Serialize)]
struct Finding {
    what: &'static str,
    /// Whether it is as it should be; some things are merely there or not.
    ok: bool,
    found: String,
}

impl Finding {
    /// What stands in the way, with its code.
    fn refused(what: &'static str, error: &Error) -> Self {
        Self {
            what,
            ok: false,
            found: format!("{} ({})", error.message, error.code),
        }
    }
}

pub fn targets(args: &TargetsArgs) -> Result<()> {
    let best = Target::host(&Options::default())?;
    let lines: Vec<TargetLine> = Target::all()
        .map(|target| TargetLine {
            name: target.name().to_owned(),
            about: target.about,
            runs_here: target.supported_here(),
            is_default: target.name() == best.name(),
        })
        .collect();
    if args.json {
        println!("{}", json(&lines)?);
        return Ok(());
    }
    let mut table = table(&["target", "runs here", "what it is"]);
    for line in lines {
        let here = match (line.runs_here, line.is_default) {
            (true, true) => "yes, default",
            (true, false) => "yes",
            (false, _) => "no",
        };
        table.add_row([line.name, here.to_owned(), line.about.to_owned()]);
    }
    println!("{table}");
    Ok(())
}

pub fn doctor(args: &DoctorArgs) -> Result<()> {
    let findings = findings()?;
    if args.json {
        println!("{}", json(&findings)?);
        return Ok(());
    }
    for f in findings {
        let mark = if f.ok { "ok" } else { "--" };
        println!("{mark}  {:<18} {}", f.what, f.found);
    }
    Ok(())
}

fn findings() -> Result<Vec<Finding>> {
    let machine = Machine::get();
    let options = env::options(&Common::default())?;
    let fine = |what, found| Finding {
        what,
        ok: true,
        found,
    };
    let mut all = vec![
        fine("processor", cpu_model()),
        fine(
            "cores",
            format!(
                "{} cores, {} hardware threads, {} threads used",
                machine.physical_cores, machine.logical_cores, options.threads
            ),
        ),
        fine(
            "caches",
            format!(
                "L1 {} KiB, L2 {} KiB, L3 {} KiB",
                machine.caches.l1d >> 10,
                machine.caches.l2 >> 10,
                machine.caches.l3 >> 10
            ),
        ),
        fine(
            "memory",
            format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30)),
        ),
        features(),
        huge_pages(),
        executable_memory(),
    ];
    all.extend(cuda());
    let runs: Vec<String> = Target::all()
        .filter(|t| t.supported_here())
        .map(|t| t.name().to_owned())
        .collect();
    let best = Target::host(&options)?;
    all.push(fine(
        "targets",
        format!("{}; default {}", runs.join(", "), best.name()),
    ));
    all.push(cache());
    all.push(fine(
        "perf",
        "`-o perf_map=true` names kernels for `perf report` in /tmp/perf-PID.map".to_owned(),
    ));
    Ok(all)
}

fn features() -> Finding {
    let f = Machine::get().features;
    let has = f.names();
    Finding {
        what: "instructions",
        ok: f.avx2,
        found: if has.is_empty() {
            "none that we emit code for: the tile interpreter runs everything".to_owned()
        } else {
            has.join(", ")
        },
    }
}

fn huge_pages() -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(word, _)| word.to_owned());
    Finding {
        what: "huge pages",
        ok: matches!(chosen.as_deref(), Some("always" | "madvise")),
        found: match chosen.as_deref() {
            Some("never") => "never: large tensors cost more to allocate; the system's setting is transparent_hugepage/enabled".to_owned(),
            Some(word) => word.to_owned(),
            None => "unknown on this system".to_owned(),
        },
    }
}

fn executable_memory() -> Finding {
    // One return instruction; it is placed and never called.
    match CodeMemory::new(CodeOptions::default()).emit("doctor", &[0xc3]) {
        Ok(_) => Finding {
            what: "executable memory",
            ok: true,
            found: "granted".to_owned(),
        },
        Err(error) => Finding::refused("executable memory", &error),
    }
}

/// The driver, each GPU, and the library of products beside it.
fn cuda() -> Vec<Finding> {
    let finding = |what, ok, found| Finding { what, ok, found };
    let driver = match driver() {
        Ok(driver) => driver,
        Err(error) => return vec![Finding::refused("CUDA driver", &error)],
    };
    let lacks = driver.lacks();
    let version = driver.version().unwrap_or(0);
    let mut found = format!(
        "{}, CUDA {}.{}",
        driver.library(),
        version / 1000,
        version % 1000 / 10
    );
    if !lacks.is_empty() {
        found += &format!("; it lacks {}", lacks.join(", "));
    }
    let mut all = vec![finding("CUDA driver", lacks.is_empty(), found)];
    match device_count() {
        Ok(0) => all.push(finding(
            "GPU",
            false,
            "the CUDA driver is there and knows no device".to_owned(),
        )),
        Ok(count) => all.extend((0..count).map(|index| match gpu(index) {
            Ok(found) => finding("GPU", true, found),
            Err(error) => Finding::refused("GPU", &error.context(format_args!("cuda:{index}"))),
        })),
        Err(error) => all.push(Finding::refused("GPU", &error)),
    }
    all.push(match cublas_lt(CUBLAS_LT) {
        Some((library, version)) => finding(
            "cuBLASLt",
            true,
            format!("{library}, {version}: computes large products of f32, f64 and batches"),
        ),
        None => finding(
            "cuBLASLt",
            true,
            "not found, and not needed: products run in kernels of ours".to_owned(),
        ),
    });
    all
}

fn gpu(index: u32) -> Result<String> {
    let gpu = CudaDevice::new(index, None)?;
    let info = gpu.info();
    let target = Target::of_gpu(info, "")?;
    let (free, total) = gpu.memory_info()?;
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    Ok(format!(
        "cuda:{index}: {}, compute capability {}.{}, {} multiprocessors, {:.1} of {:.1} GiB free, target {}{}",
        info.name,
        info.capability.0,
        info.capability.1,
        info.multiprocessors,
        gib(free),
        gib(total),
        target.name(),
        if info.memory_pools {
            ""
        } else {
            ", without memory pools"
        }
    ))
}

fn cache() -> Finding {
    let finding = |ok, found| Finding {
        what: "plan cache",
        ok,
        found,
    };
    let Some(dir) = env::usual_cache_dir() else {
        return finding(
            false,
            "no place for one: neither OXYFUEL_CACHE_DIR nor HOME is set".to_owned(),
        );
    };
    if !dir.exists() {
        return finding(true, format!("{}: nothing there yet", dir.display()));
    }
    match Cache::open(&dir, DEFAULT_LIMIT).and_then(|cache| cache.info()) {
        Ok(info) => finding(
            true,
            format!(
                "{}: {} plans, {} bytes",
                dir.display(),
                info.entries,
                info.bytes
            ),
        ),
        Err(error) => Finding::refused("plan cache", &error),
    }
}

/// The processor's name for itself.
pub fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(
            || std::env::consts::ARCH.to_owned(),
            |(_, name)| name.trim().to_owned(),
        )
}
