//! What this machine can do at best, measured in the same run, on the same threads.
//!
//! The limit of moving bytes is a plain copy of as many bytes (half read, half written), or a plain read where a workload hardly writes; memory is allocated and
//! touched before. Caches make the figure depend on the size, so every workload has its own. The better of the system's `memcpy` on our pool and a compiled copy counts.
//!
//! The limit of arithmetic is a product whose sums stay in registers and whose operands stay in the first-level cache: [`oxyfuel_engine::peak`].

use std::sync::{Arc, Mutex, PoisonError};

use oxyfuel_base::{DType, Result, err};
use oxyfuel_engine::{Compiler, Executable, Record, Target, peak};
use oxyfuel_graph::parse;
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::measure::{Effort, measure};

/// A measured limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// What was measured, in two or three words.
    pub what: String,
    /// Bytes or operations a second.
    pub rate: f64,
}

/// A workload hardly writes when it reads this many times more.
const READS_ONLY: u64 = 8;

/// Whether a plain read of as many bytes is the limit, not a copy.
pub fn hardly_writes((read, written): (u64, u64)) -> bool {
    written * READS_ONLY < read
}

/// The limit of reading and writing so many bytes.
pub fn bytes(
    compiler: &Compiler,
    cpu: Option<&Arc<CpuDevice>>,
    effort: Effort,
    (read, written): (u64, u64),
) -> Result<Limit> {
    let total = read + written;
    if let Some(cpu) = cpu
        && hardly_writes((read, written))
    {
        let read = Read::of(cpu.clone(), total)?;
        let times = measure(effort, || read.run())?;
        return Ok(Limit {
            what: "plain read".to_owned(),
            rate: total as f64 / times.median,
        });
    }
    let mut best = compiled_copy(compiler, effort, total / 2)?;
    if let Some(cpu) = cpu {
        best = best.min(system_copy(cpu, effort, total / 2)?);
    }
    Ok(Limit {
        what: "plain copy".to_owned(),
        rate: total as f64 / best,
    })
}

fn bytes_tensor(cpu: &CpuDevice, bytes: u64) -> Result<Tensor> {
    let count = i64::try_from(bytes.max(64))
        .map_err(|_| err!(TooLarge, "{bytes} bytes cannot be measured"))?;
    Tensor::zeros(cpu.memory(), DType::U8, &[count])
}

/// Median seconds of the system's copy, a part a thread.
fn system_copy(cpu: &CpuDevice, effort: Effort, bytes: u64) -> Result<f64> {
    let from = bytes_tensor(cpu, bytes)?;
    let to = bytes_tensor(cpu, bytes)?;
    let threads = cpu.pool().threads();
    let reading = from.storage().borrow()?;
    let mut writing = to.storage().borrow_mut()?;
    let source = reading.bytes()?;
    let target = writing.bytes()?;
    let part = part_size(source.len(), threads);
    // Each lock has one taker; it is what lets safe code hand out parts.
    let parts: Vec<Mutex<&mut [u8]>> = target[..source.len()]
        .chunks_mut(part)
        .map(Mutex::new)
        .collect();
    let times = measure(effort, || {
        cpu.pool().run(parts.len(), least(bytes), &|_, range| {
            for i in range {
                let mut part_of = parts[i].lock().unwrap_or_else(PoisonError::into_inner);
                let begin = i * part;
                let end = begin + part_of.len();
                part_of.copy_from_slice(&source[begin..end]);
            }
        });
        Ok(())
    })?;
    Ok(times.median)
}

/// Memory to read once, a part a thread.
pub struct Read {
    cpu: Arc<CpuDevice>,
    from: Tensor,
}

impl Read {
    pub fn of(cpu: Arc<CpuDevice>, bytes: u64) -> Result<Self> {
        let from = bytes_tensor(&cpu, bytes)?;
        Ok(Self { cpu, from })
    }

    pub fn run(&self) -> Result<()> {
        let reading = self.from.storage().borrow()?;
        let source = reading.bytes()?;
        let pool = self.cpu.pool();
        let part = part_size(source.len(), pool.threads());
        let count = source.len().div_ceil(part);
        pool.run(count, least(source.len() as u64), &|_, range| {
            for part in source.chunks(part).take(range.end).skip(range.start) {
                std::hint::black_box(fold(part));
            }
        });
        Ok(())
    }
}

/// Eight sums side by side, which the compiler turns into vectors.
fn fold(bytes: &[u8]) -> [u64; 8] {
    let mut sums = [0u64; 8];
    for block in bytes.chunks_exact(64) {
        for (sum, word) in sums.iter_mut().zip(block.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            *sum ^= u64::from_le_bytes(eight);
        }
    }
    sums
}

fn part_size(bytes: usize, threads: usize) -> usize {
    bytes.div_ceil(threads.max(1)).next_multiple_of(64).max(64)
}

/// Parts a thread takes at least: all of them where waking another costs more than the work.
fn least(bytes: u64) -> usize {
    if bytes < 64 << 10 { usize::MAX } else { 1 }
}

/// Median seconds of a copy that we compile.
fn compiled_copy(compiler: &Compiler, effort: Effort, bytes: u64) -> Result<f64> {
    let count = (bytes / 4).max(16);
    let text = format!(
        "graph @copy(%x: f32[{count}] cpu) {{\n  %y: f32[{count}] = clone %x\n  return %y\n}}\n"
    );
    let executable = compiler.compile(&parse("copy", &text)?)?;
    let device = compiler.device();
    let shape = [i64::try_from(count).map_err(|_| err!(TooLarge, "{count} elements"))?];
    let from = Tensor::empty_on(&**device, DType::F32, &shape)?;
    device.copy_in(&vec![0; from.storage().len()], from.storage(), 0)?;
    let mut to = [Tensor::empty_on(&**device, DType::F32, &shape)?];
    let times = measure(effort, || {
        executable.run_into(&[&from], &mut to)?;
        device.synchronize()
    })?;
    Ok(times.median)
}

/// A loop of multiply-adds without memory, and how many operations are in it.
pub struct Loop {
    executable: Executable,
    outputs: Vec<Tensor>,
    what: &'static str,
    /// Multiplications and additions of one run.
    pub flops: f64,
}

impl Loop {
    /// `None` where no loop is known for the target and the dtype.
    pub fn of(target: &Target, device: &Arc<dyn Device>, dtype: DType) -> Result<Option<Self>> {
        let Some(peak) = peak(target, dtype)? else {
            return Ok(None);
        };
        let executable = Executable::load(peak.plan, Record::default(), device.clone())?;
        Ok(Some(Self {
            outputs: executable.run(&[])?,
            executable,
            what: peak.what,
            flops: peak.flops as f64,
        }))
    }

    pub fn run(&mut self) -> Result<()> {
        self.executable.run_into(&[], &mut self.outputs)
    }
}

/// The limit of arithmetic on a dtype; `None` where no loop for it is known.
pub fn flops(
    target: &Target,
    device: &Arc<dyn Device>,
    effort: Effort,
    dtype: DType,
) -> Result<Option<Limit>> {
    let Some(mut all) = Loop::of(target, device, dtype)? else {
        return Ok(None);
    };
    let times = measure(effort, || all.run())?;
    Ok(Some(Limit {
        what: all.what.to_owned(),
        // Nothing but another process can slow this loop down, so the best call is the limit.
        rate: all.flops / times.min,
    }))
}
