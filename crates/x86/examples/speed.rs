//! Speed of emitted inner loops on one core, against the machine's own peak:
//! `cargo run --release -p oxyfuel-x86 --example speed`.

use std::time::Instant;

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BufferMode, Geometry, MmaDim, Program, TileLayout};
use oxyfuel_runtime::code::CodeMemory;
use oxyfuel_runtime::cpu::features::Machine;
use oxyfuel_x86::{Level, compile};

type Entry = unsafe extern "sysv64" fn(*const u64, *mut u8, u64, u64);

/// Seconds of the fastest call over `grid` instances.
fn time(program: &Program, level: Level, buffers: &mut [Vec<u64>], grid: u64) -> Result<f64> {
    let begin = Instant::now();
    let artefact = compile(program, level)?;
    println!(
        "  {:<28} {:>6} instructions, compiled in {:?}",
        program.name,
        artefact.stats.instructions,
        begin.elapsed()
    );
    #[cfg(feature = "listing")]
    if std::env::args().any(|a| a == program.name) {
        println!("{}", artefact.listing());
    }
    let memory = CodeMemory::default();
    let code = memory.emit(&program.name, &artefact.code)?;
    let mut scratch = vec![0u64; artefact.scratch_bytes / 8 + 16];
    let skip = scratch.as_ptr().align_offset(64);
    let args: Vec<u64> = buffers
        .iter()
        .map(|b| b[b.as_ptr().align_offset(64)..].as_ptr() as u64)
        .collect();
    let entry = artefact.entries.last().copied().unwrap_or(0);
    let Some(at) = code.entry(entry as usize) else {
        return Ok(0.0);
    };
    let mut samples: Vec<f64> = (0..31)
        .map(|_| {
            let begin = Instant::now();
            // SAFETY: the entry follows the launch contract and the buffers have the lengths the programs state.
            unsafe {
                let f: Entry = std::mem::transmute(at);
                f(args.as_ptr(), scratch[skip..].as_mut_ptr().cast(), 0, grid);
            }
            begin.elapsed().as_secs_f64()
        })
        .collect();
    // The least disturbed call: this compares loops, not machines.
    samples.sort_by(f64::total_cmp);
    Ok(samples[0])
}

/// `e^x` for numbers that do not overflow: a polynomial after taking out a power of two.
fn exp(x: &Tile) -> Tile {
    let n = (x * std::f64::consts::LOG2_E).round();
    let r = n.fma(-0.693_145_75, x);
    let r = n.fma(-1.428_606_8e-6, &r);
    let mut p = &r * 1.388_888_9e-3 + 8.333_334e-3;
    for c in [4.166_666_8e-2, 1.666_666_7e-1, 0.5, 1.0, 1.0] {
        p = p.fma(&r, c);
    }
    let bits = (n.cast(DType::I32) + 127) << 23;
    p * bits.bitcast(DType::F32)
}

fn softmax(cols: i64, rows: i64) -> Result<Program> {
    let k = KernelBuilder::new("softmax");
    let x = k
        .buffer("x", DType::F32, BufferMode::Read, rows * cols)
        .aligned(64);
    let y = k
        .buffer("y", DType::F32, BufferMode::Write, rows * cols)
        .aligned(64);
    k.phase([Expr::constant(rows)], |k| {
        let base = k.program_id(0) * cols;
        let t = k.load(x.at(&base).shape([1, cols]));
        let e = exp(&(&t - t.max(1)));
        let scale = e.sum(1).unary(oxyfuel_kernel::ir::UnaryOp::Recip);
        k.store(y.at(&base).shape([1, cols]), e * scale);
    });
    k.finish()
}

fn product(level: Level, dtype: DType, depth: i64) -> Result<(Program, f64)> {
    let matrix = dtype == DType::BF16;
    let lanes = level.vector_bytes() / 4;
    let (rows, cols, step) = match (matrix, level.avx512) {
        (true, _) => (32, 32, 32),
        (false, true) => (14, 32, 16),
        (false, false) => (6, 16, 16),
    };
    let k = KernelBuilder::mapped(
        format!("product_{dtype}"),
        Geometry {
            lanes,
            warps: 1,
            cluster: [1; 3],
            registers: 0,
        },
    );
    let a = k
        .buffer("a", dtype, BufferMode::Read, rows * depth)
        .aligned(64);
    let b = k
        .buffer("b", dtype, BufferMode::Read, cols * depth)
        .aligned(64);
    let c = k
        .buffer("c", DType::F32, BufferMode::Write, rows * cols)
        .aligned(64);
    k.phase([Expr::constant(1000)], |k| {
        let zero = k
            .full(DType::F32, [rows, cols], 0.0)
            .with_layout(TileLayout::rows(&[rows, cols], lanes));
        let left =
            a.at(0)
                .shape([depth / step, rows, step])
                .operand([MmaDim::K, MmaDim::Side, MmaDim::K]);
        let right = if matrix {
            b.at(0)
                .shape([depth / 2, cols, 2])
                .operand([MmaDim::K, MmaDim::Side, MmaDim::K])
        } else {
            b.at(0)
                .shape([depth, cols])
                .operand([MmaDim::K, MmaDim::Side])
        };
        k.store(
            c.at(0).shape([rows, cols]),
            k.mma(left, right, &zero, false),
        );
    });
    Ok((k.finish()?, 2.0 * (rows * cols * depth) as f64))
}

fn main() -> Result<()> {
    let features = Machine::get().features;
    let mut levels = vec![("avx2", Level::AVX2), ("avx512", Level::AVX512)];
    if features.amx_bf16 {
        levels.push(("amx", Level::AMX));
    }
    for (name, level) in levels {
        println!("{name}");
        let (rows, cols) = (256i64, 4096i64);
        let words = (rows * cols / 2) as usize + 64;
        let seconds = time(
            &softmax(cols, rows)?,
            level,
            &mut [vec![0; words], vec![0; words]],
            rows as u64,
        )?;
        println!(
            "    softmax {rows}x{cols}: {:.1} GB/s",
            (rows * cols * 8) as f64 / seconds / 1e9
        );
        let dtype = if name == "amx" {
            DType::BF16
        } else {
            DType::F32
        };
        let (program, flops) = product(level, dtype, 512)?;
        let words = 32 * 512;
        let seconds = time(
            &program,
            level,
            &mut [vec![0; words], vec![0; words], vec![0; words]],
            1000,
        )?;
        println!("    product: {:.1} GFLOP/s", flops * 1000.0 / seconds / 1e9);
    }
    Ok(())
}
