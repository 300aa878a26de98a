//! Runs emitted code on this machine.

use oxyfuel_kernel::ir::Program;
use oxyfuel_runtime::code::CodeMemory;
use oxyfuel_x86::{Artefact, Level, compile};

type Entry = unsafe extern "sysv64" fn(*const u64, *mut u8, u64, u64);

/// Levels that this machine can execute.
pub fn levels() -> Vec<(&'static str, Level)> {
    let mut all = Vec::new();
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        all.push(("avx2", Level::AVX2));
        if std::arch::is_x86_feature_detected!("avxvnni") {
            all.push(("avx2-vnni", Level::AVX2_VNNI));
        }
    }
    if std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl")
    {
        all.push(("avx512", Level::AVX512));
        if std::arch::is_x86_feature_detected!("avx512bf16")
            && std::arch::is_x86_feature_detected!("avx512vnni")
        {
            all.push(("avx512-bf16", Level::AVX512_BF16));
        }
    }
    all
}

/// The level with the matrix unit, where this process may use it.
pub fn amx() -> Option<Level> {
    let features = oxyfuel_runtime::cpu::features::Machine::get().features;
    (features.amx_bf16 && features.amx_int8).then_some(Level::AMX)
}

/// Compiles and runs all phases over `grids` instances. Arguments are pointers or scalar bits.
pub fn run(program: &Program, level: Level, args: &[u64], grids: &[u64]) -> Artefact {
    let artefact = compile(program, level).expect("compiles");
    execute(&artefact, args, grids);
    artefact
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[expect(dead_code, reason = "storage only")] [u8; 64]);

/// Runs all phases over `grids` instances.
pub fn execute(artefact: &Artefact, args: &[u64], grids: &[u64]) {
    execute_rounds(artefact, args, grids, 1);
}

/// Runs all phases so many times, each time over an equal part of their instances, in order.
pub fn execute_rounds(artefact: &Artefact, args: &[u64], grids: &[u64], rounds: u64) {
    let memory = CodeMemory::default();
    let code = memory
        .emit("test", &artefact.code)
        .expect("executable memory");
    let mut scratch = vec![Line([0xa5; 64]); artefact.scratch_bytes.div_ceil(64) + 1];
    let phases = || artefact.entries.iter().zip(grids);
    for (round, (&entry, &grid)) in (0..rounds).flat_map(|r| phases().map(move |phase| (r, phase)))
    {
        let at = code
            .entry(entry as usize)
            .expect("an entry inside the code");
        // SAFETY: the entry follows the launch contract, `args` are live buffers of the lengths the program states, and
        // scratch has the size and alignment the artefact asks for.
        unsafe {
            let f: Entry = std::mem::transmute(at);
            // Two calls, as two workers would make.
            let (first, last) = (round * grid / rounds, (round + 1) * grid / rounds);
            let middle = first.midpoint(last);
            f(args.as_ptr(), scratch.as_mut_ptr().cast(), first, middle);
            f(args.as_ptr(), scratch.as_mut_ptr().cast(), middle, last);
        }
    }
}

/// Elements that begin at a 64-byte boundary.
#[derive(Debug)]
pub struct Buf<T> {
    data: Vec<T>,
    first: usize,
    len: usize,
}

impl<T: Copy> Buf<T> {
    pub fn new(values: &[T]) -> Buf<T> {
        let mut data: Vec<T> = Vec::with_capacity(values.len() + 64);
        let first = data.as_ptr().align_offset(64);
        for _ in 0..first {
            data.push(values[0]);
        }
        data.extend_from_slice(values);
        Buf {
            data,
            first,
            len: values.len(),
        }
    }

    pub fn ptr(&self) -> u64 {
        self.data[self.first..].as_ptr() as u64
    }
}

impl<T> std::ops::Deref for Buf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.data[self.first..self.first + self.len]
    }
}
