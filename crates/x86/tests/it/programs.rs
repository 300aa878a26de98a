//! Whole programs with control flow, gathers and odd shapes: the interpreter against emitted code.

use oxyfuel_base::{DType, Expr, Result, Scalar, Symbol};
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::examples;
use oxyfuel_kernel::interp::{self, Arg};
use oxyfuel_kernel::ir::{BufferMode, CompareOp, ParamKind, Program, ReduceOp};
use oxyfuel_x86::compile;

use crate::machine::{Buf, execute, levels};

/// Runs a program both ways on pseudo-random buffers; `lens` are the buffers' lengths, in order, `grid` the instances.
pub fn agree(program: &Program, scalars: &[i64], lens: &[usize], grid: &[u64], tolerance: f64) {
    let mut scalars = scalars.iter();
    let mut lens = lens.iter();
    let mut state = 12345u32;
    let mut start: Vec<(DType, Option<Buf<u8>>, i64)> = Vec::new();
    for param in &program.params {
        match &param.kind {
            ParamKind::Buffer(b) => {
                let n = *lens.next().expect("a length for each buffer");
                let mut bytes = Vec::new();
                for _ in 0..n {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let v = if b.dtype.is_int() {
                        Scalar::I(i64::from(state >> 20) % 7)
                    } else {
                        Scalar::F(f64::from(state >> 16) / 16384.0 - 2.0)
                    };
                    bytes.extend_from_slice(&v.to_bits(b.dtype).to_le_bytes()[..b.dtype.size()]);
                }
                start.push((b.dtype, Some(Buf::new(&bytes)), 0));
            }
            ParamKind::Scalar { dtype, .. } => {
                start.push((*dtype, None, *scalars.next().expect("a number")))
            }
            ParamKind::TensorMap(_) => panic!("no tensor maps here"),
        }
    }
    let mut expected: Vec<Vec<u8>> = start
        .iter()
        .map(|s| s.1.as_ref().map_or(Vec::new(), |b| b.to_vec()))
        .collect();
    let mut args: Vec<Arg<'_>> = start
        .iter()
        .zip(&mut expected)
        .map(|((dtype, buf, n), bytes)| match buf {
            Some(_) => Arg::Buffer {
                dtype: *dtype,
                bytes,
            },
            None => Arg::Scalar(Scalar::I(*n)),
        })
        .collect();
    interp::run(program, &mut args).expect("the interpreter runs it");
    drop(args);
    for (name, level) in levels() {
        let artefact = compile(program, level).unwrap_or_else(|e| panic!("{name}: {e}"));
        let buffers: Vec<Option<Buf<u8>>> = start
            .iter()
            .map(|s| s.1.as_ref().map(|b| Buf::new(b)))
            .collect();
        let pointers: Vec<u64> = buffers
            .iter()
            .zip(&start)
            .map(|(b, s)| b.as_ref().map_or(s.2 as u64, Buf::ptr))
            .collect();
        execute(&artefact, &pointers, grid);
        for ((buffer, want), (dtype, ..)) in buffers.iter().zip(&expected).zip(&start) {
            let Some(buffer) = buffer else { continue };
            for (i, (x, y)) in buffer
                .chunks(dtype.size())
                .zip(want.chunks(dtype.size()))
                .enumerate()
            {
                let read = |c: &[u8]| {
                    let mut all = [0u8; 8];
                    all[..c.len()].copy_from_slice(c);
                    Scalar::from_bits(*dtype, u64::from_le_bytes(all)).as_f64()
                };
                let (x, y) = (read(x), read(y));
                let close = x == y
                    || (x - y).abs() <= tolerance * y.abs().max(1.0)
                    || (x.is_nan() && y.is_nan());
                assert!(
                    close,
                    "{name} {}: element {i} is {x}, not {y}",
                    program.name
                );
            }
        }
    }
}

pub fn kernel(name: &str, define: impl FnOnce(&KernelBuilder)) -> Program {
    let k = KernelBuilder::new(name);
    define(&k);
    k.finish().expect("builds")
}

#[test]
fn a_loop_carries_scalars_and_tiles() {
    for cols in [8i64, 16, 33, 100] {
        let program = kernel("carry", |k| {
            let steps = k.symbol("steps", Symbol(0));
            let x = k.buffer("x", DType::F32, BufferMode::Read, steps.expr() * cols);
            let y = k.buffer("y", DType::F32, BufferMode::Write, Expr::constant(cols));
            let m = k.buffer("m", DType::F32, BufferMode::Write, Expr::constant(1));
            k.phase([Expr::constant(1)], |k| {
                let zero = k.full(DType::F32, [1, cols], 0.0);
                let low = k.full(DType::F32, [1, 1], -100.0);
                let [sum, most, _] = k.for_range(
                    0,
                    steps.tile(),
                    1,
                    [zero, low, k.constant(DType::I64, 5)],
                    |k, i, [sum, most, n]| {
                        let t = k.load(x.at(&(&i * cols)).shape([1, cols]));
                        let scale = n.cast(DType::F32).broadcast_to([1, cols]);
                        [&sum + &t * scale, most.maximum(t.max(1)), &n + &i]
                    },
                );
                k.store(y.at(0).shape([1, cols]), sum);
                k.store(m.at(0).shape([1, 1]), most);
            });
        });
        agree(
            &program,
            &[5],
            &[5 * cols as usize, cols as usize, 1],
            &[1],
            1e-5,
        );
    }
}

/// A value of a loop's body that only its yield reads must not be evaluated again by control flow that follows.
#[test]
fn two_loops_in_a_row() {
    let program = kernel("two", |k| {
        let steps = k.symbol("steps", Symbol(0));
        let x = k.buffer("x", DType::F32, BufferMode::Read, steps.expr() * 24);
        let y = k.buffer("y", DType::F32, BufferMode::Write, Expr::constant(24));
        k.phase([Expr::constant(1)], |k| {
            let zero = k.full(DType::F32, [1, 24], 0.0);
            let sum = |first: Tile| {
                let [out] = k.for_range(0, steps.tile(), 1, [first], |k, i, [sum]| {
                    let t = k.load(x.at(&(&i * 24)).shape([1, 24]));
                    [sum * 0.5 + t]
                });
                out
            };
            let once = sum(zero);
            let twice = sum(&once * 2.0);
            k.store(y.at(0).shape([1, 24]), twice - once);
        });
    });
    agree(&program, &[6], &[6 * 24, 24], &[1], 1e-5);
}

#[test]
fn branches_choose_scalars_and_tiles() {
    let program = kernel("branch", |k| {
        let n = k.symbol("n", Symbol(0));
        let x = k.buffer("x", DType::F32, BufferMode::Read, n.expr() * 20);
        let y = k.buffer("y", DType::F32, BufferMode::Write, n.expr() * 20);
        k.phase([n.expr()], |k| {
            let row = k.program_id(0);
            let t = k.load(x.at(&(&row * 20)).shape([1, 20]));
            let even = row.binary(oxyfuel_kernel::ir::BinaryOp::Mod, 2).eq(0);
            let [out] = k.if_(&even, |_| [&t * 2.0], |_| [&t - t.sum(1)]);
            k.store(y.at(&(&row * 20)).shape([1, 20]), out);
        });
    });
    agree(&program, &[5], &[100, 100], &[5], 1e-5);
}

#[test]
fn gathers_and_strides() {
    for dtype in [DType::F32, DType::BF16, DType::U8, DType::I64, DType::F16] {
        let program = kernel("gather", |k| {
            let table = k
                .buffer("table", dtype, BufferMode::Read, Expr::constant(7 * 37))
                .aligned(64);
            let index = k
                .buffer("index", DType::I64, BufferMode::Read, Expr::constant(9))
                .aligned(64);
            let y = k
                .buffer("y", dtype, BufferMode::Write, Expr::constant(9 * 37))
                .aligned(64);
            let t = k
                .buffer("t", dtype, BufferMode::Write, Expr::constant(7 * 37))
                .aligned(64);
            k.phase([Expr::constant(1)], |k| {
                let i = k.load(index.at(0).shape([9, 1]));
                let at = i.broadcast_to([9, 37]) * 37 + k.iota(DType::I64, [9, 37], 1);
                k.store(y.at(0).shape([9, 37]), k.gather(&table, &at, None, 0));
                // A transposition by strides.
                let columns = k.load(table.at(0).shape([37, 7]).strides([1, 37]));
                k.store(t.at(0).shape([37, 7]), columns);
            });
        });
        agree(&program, &[], &[7 * 37, 9, 9 * 37, 7 * 37], &[1], 0.0);
    }
}

#[test]
fn columns_are_folded() {
    for (rows, cols) in [(5i64, 40i64), (17, 7), (3, 128)] {
        let program = kernel("columns", |k| {
            let x = k.buffer(
                "x",
                DType::F32,
                BufferMode::Read,
                Expr::constant(rows * cols),
            );
            let s = k.buffer("s", DType::F32, BufferMode::Write, Expr::constant(cols));
            let y = k.buffer(
                "y",
                DType::F32,
                BufferMode::Write,
                Expr::constant(rows * cols),
            );
            k.phase([Expr::constant(1)], |k| {
                let t = k.load(x.at(0).shape([rows, cols]));
                let sum = t.reduce(ReduceOp::Sum, [0]);
                k.store(s.at(0).shape([1, cols]), &sum);
                k.store(y.at(0).shape([rows, cols]), &t / (&sum * &sum + 1.0));
            });
        });
        let n = (rows * cols) as usize;
        agree(&program, &[], &[n, cols as usize, n], &[1], 1e-5);
    }
}

/// What a limited reduction shares its loops with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Beside {
    Nothing,
    /// A store that ends at the same limit.
    SameEnd,
    /// A store of the whole tile.
    Whole,
    /// A reduction of the whole tile.
    Other,
    /// What counts beyond the limit is not the identity.
    Filled,
}

#[test]
fn reductions_end_at_their_limit() {
    use Beside::{Filled, Nothing, Other, SameEnd, Whole};
    let len = 200i64;
    for beside in [Nothing, SameEnd, Whole, Other, Filled] {
        for (f, neutral) in [
            (ReduceOp::Sum, 0.0),
            (ReduceOp::Max, f64::NEG_INFINITY),
            (ReduceOp::Prod, 1.0),
        ] {
            let program = kernel("limited", |k| {
                let n = k.symbol("n", Symbol(0));
                let all = Expr::constant(len);
                let x = k.buffer("x", DType::F32, BufferMode::Read, all.clone());
                let s = k.buffer("s", DType::F32, BufferMode::Write, Expr::constant(2));
                let y = k.buffer("y", DType::F32, BufferMode::Write, all);
                k.phase([Expr::constant(1)], |k| {
                    let t = k.load(x.at(0).shape([len]).valid(0, n.tile()));
                    let inside = k
                        .iota(DType::I64, [len], 0)
                        .compare(CompareOp::Lt, n.tile());
                    let fill = if beside == Filled { 0.5 } else { neutral };
                    let fill = k.constant(DType::F32, fill);
                    let total = inside.select(&t, fill).reduce(f, [0]);
                    k.store(s.at(0).shape([1]), &total);
                    let scaled = &t * &total;
                    match beside {
                        Nothing | Filled => {}
                        SameEnd => k.store(y.at(0).shape([len]).valid(0, n.tile()), &scaled),
                        Whole => k.store(y.at(0).shape([len]), &scaled),
                        Other => {
                            k.store(s.at(1).shape([1]), (&t + 1.0).reduce(ReduceOp::Sum, [0]));
                        }
                    }
                });
            });
            for n in [0, 1, 15, 16, 17, 64, 130, 200] {
                agree(&program, &[n], &[len as usize, 2, len as usize], &[1], 1e-4);
            }
        }
    }
}

#[test]
fn whole_tiles_are_folded() {
    let program = kernel("all", |k| {
        let x = k.buffer("x", DType::F32, BufferMode::Read, Expr::constant(4 * 50));
        let s = k.buffer("s", DType::F32, BufferMode::Write, Expr::constant(1));
        k.phase([Expr::constant(1)], |k| {
            let t = k.load(x.at(0).shape([4, 50]));
            k.store(s.at(0).shape([1, 1]), t.reduce(ReduceOp::Sum, [0, 1]));
        });
    });
    agree(&program, &[], &[200, 1], &[1], 1e-5);
}

#[test]
fn memory_is_updated_in_place() {
    let program = kernel("inplace", |k| {
        let x = k.buffer(
            "x",
            DType::F32,
            BufferMode::ReadWrite,
            Expr::constant(3 * 50),
        );
        let y = k.buffer("y", DType::F32, BufferMode::Write, Expr::constant(3 * 50));
        k.phase([Expr::constant(3)], |k| {
            let base = k.program_id(0) * 50;
            let t = k.load(x.at(&base).shape([1, 50]));
            k.store(x.at(&base).shape([1, 50]), &t + 1.0);
            k.store(y.at(&base).shape([1, 50]), &t * 3.0);
            let again = k.load(x.at(&base).shape([1, 50]));
            k.store(x.at(&base).shape([1, 50]), &again * again.max(1));
        });
    });
    agree(&program, &[], &[150, 150], &[3], 1e-6);
}

#[test]
fn a_grid_of_three_axes_is_decoded() {
    let program = kernel("axes", |k| {
        let (a, b) = (k.symbol("a", Symbol(0)), k.symbol("b", Symbol(1)));
        let y = k.buffer("y", DType::I64, BufferMode::Write, a.expr() * b.expr() * 12);
        let grid: [Expr; 3] = [a.expr(), b.expr().ceildiv(2) * 2, Expr::constant(3)];
        k.phase(grid, |k| {
            let (i, j, l) = (k.program_id(0), k.program_id(1), k.program_id(2));
            let at = (&l * k.num_programs(1) + &j) * k.num_programs(0) + &i;
            let v = &i * 100 + &j * 10 + &l;
            k.store(y.at(&(at * 4)).shape([4]), v.broadcast_to([4]));
        });
    });
    agree(&program, &[3, 4], &[3 * 4 * 12], &[36], 0.0);
}

#[test]
fn the_examples_of_the_ir() -> Result<()> {
    agree(
        &examples::mxint8_decode(32, 128)?,
        &[320],
        &[320, 10, 320],
        &[3],
        0.0,
    );
    agree(
        &examples::bias_relu(DType::BF16, 24, 48)?,
        &[24 * 5],
        &[24 * 5, 24, 24 * 5],
        &[3],
        0.0,
    );
    Ok(())
}

#[test]
fn positions_and_running_sums_are_refused_politely() {
    let program = kernel("argmax", |k| {
        let x = k.buffer("x", DType::F32, BufferMode::Read, Expr::constant(50));
        let y = k.buffer("y", DType::F32, BufferMode::Write, Expr::constant(50));
        k.phase([Expr::constant(1)], |k| {
            let t = k.load(x.at(0).shape([1, 50]));
            k.store(y.at(0).shape([1, 50]), t.scan(ReduceOp::Sum, 1, false));
        });
    });
    for (_, level) in levels() {
        assert_eq!(
            compile(&program, level).expect_err("no code yet").code,
            oxyfuel_base::Code::NoLowering
        );
    }
}
