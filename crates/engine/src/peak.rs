//! How fast the arithmetic units are without memory: the yardstick of [`crate::Limits`], as tile programs.
//!
//! `acc += a @ b`, over and over: the sums never leave the registers of the vector or matrix unit, and the operands never leave the first-level cache.

use oxyfuel_base::{Arena, DType, Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::KernelBuilder;
use oxyfuel_kernel::ir::{BufferMode, Geometry, MmaDim, Mode, TileLayout};
use oxyfuel_plan::{
    ArgRef, Buffer, BufferHome, Cost, Kernel, KernelPhase, MatrixUnit, OperandHome, OutputSpec,
    Plan, Provenance, Step,
};

use crate::target::Target;

/// A plan without inputs that computes as fast as the machine can.
#[derive(Clone, Debug)]
pub struct Peak {
    pub plan: Plan,
    /// Multiplications and additions of one run.
    pub flops: u64,
    /// Which unit it drives.
    pub what: &'static str,
}

/// The loop for products of a dtype; `None` where the target has no unit that we know how to drive so.
pub fn peak(target: &Target, dtype: DType) -> Result<Option<Peak>> {
    let units = &target.desc.matrix_units;
    let tiles = |unit: &&MatrixUnit| unit.operands == OperandHome::Memory;
    let unit = units.iter().filter(tiles).any(|unit| unit.a == dtype);
    if target.desc.is_simt() || target.name() == Target::interpreter().name() {
        return Ok(None);
    }
    if unit && matches!(dtype, DType::BF16 | DType::I8) {
        return matrix(target, dtype).map(Some);
    }
    if dtype == DType::F32 {
        return vector(target).map(Some);
    }
    Ok(None)
}

/// Depth of the operands, which stay in the first-level cache.
const DEPTH: i64 = 128;
/// Products of that depth: a millisecond or a few.
const REPEATS: i64 = 4_000;

/// As many accumulators as the vector registers hold beside what feeds them: two vectors across.
fn vector(target: &Target) -> Result<Peak> {
    let lanes = target.desc.vector_bytes / 4;
    let cols = 2 * i64::from(lanes);
    let rows = if target.desc.registers >= 32 { 14 } else { 6 };
    let block = Block {
        dtype: DType::F32,
        sum: DType::F32,
        one: &1.0f32.to_le_bytes(),
        rows,
        cols,
        lanes,
        pack: 1,
        accumulator: TileLayout::rows(&[rows, cols], lanes),
        what: "multiply-adds on vectors",
    };
    block.plan(target)
}

/// Two by two tile registers.
fn matrix(target: &Target, dtype: DType) -> Result<Peak> {
    let (sum, one): (_, &[u8]) = match dtype {
        DType::I8 => (DType::I32, &[1]),
        _ => (DType::F32, &[0x80, 0x3f]),
    };
    let block = Block {
        dtype,
        sum,
        one,
        rows: 32,
        cols: 32,
        lanes: 16,
        pack: 4 / dtype.size() as i64,
        accumulator: TileLayout {
            lane: vec![Mode::new(1, 16, 1)],
            reg: vec![
                Mode::new(0, 16, 1),
                Mode::new(1, 2, 16),
                Mode::new(0, 2, 16),
            ],
            matrix: true,
            ..TileLayout::default()
        },
        what: "products on matrix tiles",
    };
    block.plan(target)
}

/// One block of sums that never leaves the registers.
struct Block<'a> {
    dtype: DType,
    sum: DType,
    /// The bytes of the number 1.
    one: &'a [u8],
    rows: i64,
    cols: i64,
    lanes: u32,
    /// Elements of the depth that lie next to each other in the second operand.
    pack: i64,
    accumulator: TileLayout,
    what: &'static str,
}

impl Block<'_> {
    fn plan(self, target: &Target) -> Result<Peak> {
        let workers = i64::from(target.desc.workers);
        let (rows, cols, pack) = (self.rows, self.cols, self.pack);
        let k = KernelBuilder::mapped(
            "peak",
            Geometry {
                lanes: self.lanes,
                warps: 1,
                cluster: [1; 3],
                registers: 0,
            },
        );
        let a = k
            .buffer("a", self.dtype, BufferMode::Read, rows * DEPTH)
            .aligned(64);
        let b = k
            .buffer("b", self.dtype, BufferMode::Read, cols * DEPTH)
            .aligned(64);
        let c = k
            .buffer("c", self.sum, BufferMode::Write, workers * rows * cols)
            .aligned(64);
        let plain = TileLayout::rows(&[rows, cols], self.lanes);
        k.phase([Expr::constant(workers)], |k| {
            let zero = k
                .full(self.sum, [rows, cols], 0)
                .with_layout(self.accumulator.clone());
            let [sum] = k.for_range(0, REPEATS, 1, [zero], |k, _, [acc]| {
                // Blocks, one after the other, so that every row of a matrix register is a line of its own.
                let deep = 16 * pack.max(2);
                let a = a.at(0).shape([DEPTH / deep, rows, deep]).operand([
                    MmaDim::K,
                    MmaDim::Side,
                    MmaDim::K,
                ]);
                let b = if pack == 1 {
                    b.at(0)
                        .shape([DEPTH, cols])
                        .operand([MmaDim::K, MmaDim::Side])
                } else {
                    b.at(0).shape([DEPTH / pack, cols, pack]).operand([
                        MmaDim::K,
                        MmaDim::Side,
                        MmaDim::K,
                    ])
                };
                [k.mma(a, b, &acc, false)]
            });
            let out = if self.accumulator.matrix {
                sum.convert_layout(plain)
            } else {
                sum
            };
            k.store(
                c.at(k.program_id(0) * (rows * cols)).shape([rows, cols]),
                out,
            );
        });
        let ones = |count: i64| self.one.repeat(usize::try_from(count).unwrap_or(0));
        plan(
            target,
            k.finish()?,
            vec![ones(rows * DEPTH), ones(cols * DEPTH)],
            (self.sum, workers * rows * cols),
            2 * workers * rows * cols * DEPTH * REPEATS,
            self.what,
        )
    }
}

/// One launch over constants, with one output of `count` elements of 4 bytes.
fn plan(
    target: &Target,
    program: Program,
    constants: Vec<Vec<u8>>,
    (sum, count): (DType, i64),
    flops: i64,
    what: &'static str,
) -> Result<Peak> {
    let mut buffers = Arena::new();
    let mut add = |name: String, home: BufferHome, bytes: i64| {
        let buffer = buffers.push(Buffer {
            name,
            home,
            bytes: Expr::constant(bytes),
            align: 64,
            first_step: 0,
            last_step: 0,
            tensor: None,
        });
        (
            buffer,
            ArgRef::Buffer {
                buffer,
                offset: Expr::constant(0),
            },
        )
    };
    let mut args = Vec::new();
    for (number, bytes) in constants.into_iter().enumerate() {
        let length = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        args.push(add(format!("c{number}"), BufferHome::Constant(bytes), length).1);
    }
    let (output, arg) = add("y".to_owned(), BufferHome::Output(0), count * 4);
    args.push(arg);
    let mut kernels = Arena::new();
    let kernel = kernels.push(Kernel {
        name: program.name.clone(),
        artefact: target.emit(&program)?,
        phases: program
            .phases
            .iter()
            .map(|phase| KernelPhase {
                grid: phase.grid.clone(),
                min_chunk: 1,
            })
            .collect(),
        program: program.to_string(),
        provenance: Provenance::default(),
        members: 1,
        cost: Cost {
            bytes_read: Expr::constant(0),
            bytes_written: Expr::constant(count * 4),
            flops: Expr::constant(flops),
            products: Expr::constant(flops),
        },
        written: program.written(),
        rounds: program.rounds,
        gemm: None,
        note: None,
    });
    let plan = Plan {
        name: program.name.clone(),
        isa: target.desc.isa.clone(),
        symbols: Vec::new(),
        limits: Vec::new(),
        inputs: Vec::new(),
        outputs: vec![OutputSpec {
            dtype: sum,
            shape: vec![Expr::constant(count)],
            strides: vec![Expr::constant(1)],
            buffer: output,
            offset: Expr::constant(0),
            alias: None,
        }],
        buffers,
        arena_bytes: Expr::constant(0),
        kernels,
        steps: vec![Step::Launch { kernel, args }],
    };
    oxyfuel_plan::verify(&plan)?;
    Ok(Peak {
        plan,
        flops: u64::try_from(flops).unwrap_or(0),
        what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executable::Executable;
    use crate::options::Options;
    use crate::record::Record;

    /// The loops must compute what they claim to count: a loop that was thrown away would be infinitely fast.
    #[test]
    fn the_loops_run_and_give_their_sums() {
        let options = Options {
            threads: 1,
            ..Options::default()
        };
        let target = Target::host(&options).unwrap();
        let expected = DEPTH * REPEATS;
        for dtype in [DType::F32, DType::BF16, DType::I8] {
            let Some(peak) = peak(&target, dtype).unwrap() else {
                continue;
            };
            let device = target.device(&options).unwrap();
            let executable = Executable::load(peak.plan, Record::default(), device).unwrap();
            let y = &executable.run(&[]).unwrap()[0];
            let sums: Vec<i64> = match dtype {
                DType::I8 => y
                    .to_vec::<i32>()
                    .unwrap()
                    .into_iter()
                    .map(i64::from)
                    .collect(),
                _ => y
                    .to_vec::<f32>()
                    .unwrap()
                    .into_iter()
                    .map(|v| v as i64)
                    .collect(),
            };
            assert!(
                sums.iter().all(|v| *v == expected),
                "{dtype}: {:?}",
                &sums[..4]
            );
        }
    }
}
