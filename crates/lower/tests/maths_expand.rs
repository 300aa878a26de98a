//! The pass: what it replaces, what it leaves, what it refuses.

use oxyfuel_kernel::builder::KernelBuilder;
use oxyfuel_kernel::{
    BinaryOp, BufferMode, DType, Geometry, Mode, Op, Program, TileLayout, UnaryOp, Val, verify,
};
use oxyfuel_lower::maths::exponential::{exp, exp_at_most_zero, exp2, exp2_of_whole, near_exp2};
use oxyfuel_lower::maths::native::Native;
use oxyfuel_lower::maths::{TABLE, expand, expand_on, has_expansion};

const LEN: i64 = 24;

/// `y = op(x)` over one tile.
fn program(op: UnaryOp, dtype: DType) -> Program {
    let k = KernelBuilder::new(op.name());
    let x = k.buffer("x", dtype, BufferMode::Read, LEN);
    let y = k.buffer("y", dtype, BufferMode::Write, LEN);
    k.phase([1], |k| {
        let value = k.load(x.at(0).shape([LEN])).unary(op);
        k.store(y.at(0).shape([LEN]), &value);
    });
    k.finish().expect("a valid program")
}

fn unary_ops(program: &Program) -> Vec<UnaryOp> {
    let mut ops = Vec::new();
    program.walk(|inst| {
        if let Op::Unary { op, .. } = inst.op {
            ops.push(op);
        }
    });
    ops
}

/// Instructions that compute: no memory traffic, constants or bit casts.
fn computing(program: &Program) -> u32 {
    let mut count = 0;
    program.walk(|inst| {
        count += u32::from(matches!(
            inst.op,
            Op::Unary { .. }
                | Op::Binary { .. }
                | Op::Compare { .. }
                | Op::Select { .. }
                | Op::Fma { .. }
                | Op::Cast { .. }
        ));
    });
    count
}

#[test]
fn every_row_expands_to_the_instructions_it_states() {
    for row in TABLE {
        let expanded = expand(program(row.op, DType::F32), &|_, _| true).expect("f32 expands");
        verify(&expanded).expect("a valid program");
        assert!(
            unary_ops(&expanded).iter().all(|op| !has_expansion(*op)),
            "{}",
            row.op.name()
        );
        assert_eq!(
            computing(&expanded),
            row.instructions(),
            "{}",
            row.op.name()
        );
    }
}

#[test]
fn narrow_floats_are_computed_in_f32_and_rounded_once() {
    for dtype in [DType::F16, DType::BF16] {
        for row in TABLE {
            let expanded =
                expand(program(row.op, dtype), &|_, _| true).expect("narrow floats expand");
            verify(&expanded).expect("a valid program");
            assert_eq!(
                computing(&expanded),
                row.instructions() + 2,
                "{} of {dtype}",
                row.op.name()
            );
        }
    }
}

#[test]
fn what_the_target_has_stays() {
    let kept = program(UnaryOp::Exp, DType::F32);
    assert_eq!(
        expand(kept.clone(), &|op, _| op != UnaryOp::Exp)
            .expect("nothing to do")
            .compact(),
        kept.compact()
    );
    let native = program(UnaryOp::Sqrt, DType::F32);
    assert_eq!(
        expand(native.clone(), &|_, _| true)
            .expect("nothing to do")
            .compact(),
        native.compact()
    );
}

/// On a machine with powers of its own `1 + erf(x)` and `1 + tanh(x)` take one of them each; a function that others read too stays what it is.
#[test]
fn a_gate_is_one_power_of_the_machine() {
    let functions = |op: UnaryOp, read_by_others: bool| {
        let k = KernelBuilder::new("gate");
        let x = k.buffer("x", DType::F32, BufferMode::Read, LEN);
        let y = k.buffer("y", DType::F32, BufferMode::Write, LEN);
        k.phase([1], |k| {
            let inner = k.load(x.at(0).shape([LEN])).unary(op);
            let mut gate = &inner + k.full(DType::F32, [LEN], 1.0);
            if read_by_others {
                gate = gate * inner;
            }
            k.store(y.at(0).shape([LEN]), &gate);
        });
        let program = k.finish().expect("a valid program");
        let expanded = expand_on(program, &|_, _| true, true).expect("f32 expands");
        verify(&expanded).expect("a valid program");
        let mut ops = unary_ops(&expanded);
        ops.retain(|op| has_expansion(*op));
        (ops, computing(&expanded))
    };
    assert_eq!(functions(UnaryOp::Erf, false), (vec![UnaryOp::Exp2], 15));
    let tanh = functions(UnaryOp::Tanh, false);
    assert_eq!(tanh, (vec![UnaryOp::NearExp2], 10));
    assert_eq!(functions(UnaryOp::Erf, true).0, []);
}

/// A machine's own functions do where the result is rounded to 16 bits before a sum, a comparison or a store can tell its bits apart; elsewhere they are only where estimates begin.
#[test]
fn estimates_do_where_results_are_rounded() {
    let functions = |op: UnaryOp, dtype: DType, summed: bool| {
        let k = KernelBuilder::new("rounded");
        let x = k.buffer("x", DType::F32, BufferMode::Read, LEN);
        let y = k.buffer("y", dtype, BufferMode::Write, LEN);
        k.phase([1], |k| {
            let x = k.load(x.at(0).shape([LEN]));
            let mut value = x.unary(op) * &x;
            if summed {
                value = value + &x;
            }
            k.store(y.at(0).shape([LEN]), value.cast(dtype));
        });
        let program = k.finish().expect("a valid program");
        let expanded = expand_on(program, &|_, _| true, true).expect("f32 expands");
        verify(&expanded).expect("a valid program");
        unary_ops(&expanded)
    };
    let (power, inverse) = (UnaryOp::NearExp2, UnaryOp::NearRecip);
    let short = vec![power, inverse];
    for dtype in [DType::BF16, DType::F16] {
        assert_eq!(functions(UnaryOp::Sigmoid, dtype, false), short);
        let tanh = functions(UnaryOp::Tanh, dtype, false);
        assert_eq!(tanh, [power, inverse, UnaryOp::Abs]);
        assert_eq!(functions(UnaryOp::Exp, dtype, false), [UnaryOp::Exp2]);
    }
    for (dtype, summed) in [(DType::F32, false), (DType::BF16, true)] {
        for op in [UnaryOp::Sigmoid, UnaryOp::Tanh] {
            let ops = functions(op, dtype, summed);
            assert!(ops.contains(&power) && ops.contains(&inverse), "{ops:?}");
            assert!(ops.len() > short.len(), "{ops:?}");
        }
        assert_eq!(functions(UnaryOp::Exp, dtype, summed), []);
    }
    // A function of what is narrow itself is rounded whoever reads it.
    let narrow = expand_on(program(UnaryOp::Tanh, DType::F16), &|_, _| true, true);
    let ops = unary_ops(&narrow.expect("f16 expands"));
    assert!(ops.contains(&power), "{ops:?}");
}

/// Powers of what was an integer need no polynomial, and have the same bits.
#[test]
fn powers_of_whole_numbers_add_nothing_up() {
    let instructions = |moved: f64| {
        let k = KernelBuilder::new("scale");
        let x = k.buffer("x", DType::U8, BufferMode::Read, LEN);
        let y = k.buffer("y", DType::F32, BufferMode::Write, LEN);
        k.phase([1], |k| {
            let code = k.load(x.at(0).shape([LEN])).cast(DType::F32);
            let power = (code - k.full(DType::F32, [LEN], moved)).exp2();
            k.store(y.at(0).shape([LEN]), &power);
        });
        let program = k.finish().expect("a valid program");
        computing(&expand(program, &|_, _| true).expect("f32 expands"))
    };
    assert_eq!((instructions(127.0), instructions(127.5)), (10, 19));
    for n in -300..=300 {
        let x = n as f32;
        let (got, want) = (exp2_of_whole(&Native, x), exp2(&Native, x));
        assert_eq!(got.to_bits(), want.to_bits(), "2^{n}");
    }
}

#[test]
fn f64_expands_in_f64() {
    let expanded = expand(program(UnaryOp::Exp, DType::F64), &|_, _| true).expect("f64 expands");
    verify(&expanded).expect("a valid program");
    assert!(unary_ops(&expanded).is_empty());
}

#[test]
fn ops_inside_loops_are_found() {
    let k = KernelBuilder::new("loop");
    let y = k.buffer("y", DType::F32, BufferMode::Write, LEN);
    k.phase([1], |k| {
        let zero = k.full(DType::F32, [LEN], 0.0);
        let [sum] = k.for_range(0, 4, 1, [zero], |_, _, [sum]| [sum.exp()]);
        k.store(y.at(0).shape([LEN]), &sum);
    });
    let expanded = expand(k.finish().expect("a valid program"), &|_, _| true).expect("f32 expands");
    verify(&expanded).expect("a valid program");
    assert!(unary_ops(&expanded).is_empty());
}

#[test]
fn constants_of_a_mapped_program_lie_where_their_argument_lies() {
    let geometry = Geometry {
        lanes: 16,
        ..Geometry::LOGICAL
    };
    let blocked = TileLayout {
        lane: vec![Mode::new(0, 16, 1)],
        reg: vec![Mode::new(0, 2, 16)],
        ..TileLayout::default()
    };
    let paired = TileLayout {
        lane: vec![Mode::new(0, 16, 2)],
        reg: vec![Mode::new(0, 2, 1)],
        ..TileLayout::default()
    };
    let k = KernelBuilder::mapped("two_layouts", geometry);
    let x = k.buffer("x", DType::F32, BufferMode::Read, 32);
    let y = k.buffer("y", DType::F32, BufferMode::Write, 64);
    k.phase([1], |k| {
        for (at, layout) in [(0, blocked), (32, paired)] {
            let tile = k.load(x.at(0).shape([32])).with_layout(layout);
            k.store(y.at(at).shape([32]), tile.tanh());
        }
    });
    let program = k.finish().expect("a valid program");
    let expanded = expand(program, &|_, _| true).expect("f32 expands");
    verify(&expanded).expect("a valid program");
    let layout = |v: Val| expanded.values[v].layout.as_ref();
    expanded.walk(|inst| {
        if matches!(inst.op, Op::Binary { .. } | Op::Fma { .. }) {
            let args = inst.op.args();
            assert!(
                args.iter().all(|v| layout(*v) == layout(inst.results[0])),
                "{:?}",
                inst.op
            );
        }
    });
}

/// The upper bound goes where an exponential's argument is a difference from its own largest value, and only there; the results have the same bits.
#[test]
fn differences_from_the_largest_have_no_upper_bound() {
    let smallest = |negated: bool| {
        let k = KernelBuilder::new("softmax");
        let x = k.buffer("x", DType::F32, BufferMode::Read, LEN);
        let y = k.buffer("y", DType::F32, BufferMode::Write, LEN);
        k.phase([1], |k| {
            let t = k.load(x.at(0).shape([1, LEN]));
            let e = if negated {
                (t.max(1) - &t).exp()
            } else {
                (&t - t.max(1)).exp()
            };
            k.store(y.at(0).shape([1, LEN]), &e);
        });
        let program = k.finish().expect("a valid program");
        let expanded = expand(program, &|_, _| true).expect("f32 expands");
        verify(&expanded).expect("a valid program");
        let mut bounds = 0;
        expanded.walk(|inst| {
            let min = matches!(
                inst.op,
                Op::Binary {
                    op: BinaryOp::Min,
                    ..
                }
            );
            bounds += u32::from(min);
        });
        bounds
    };
    assert_eq!((smallest(false), smallest(true)), (0, 1));
    let special = [
        0.0,
        -0.0,
        -103.9,
        -104.0,
        -104.1,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let many = (0..200_000).map(|n| -(n as f32) * 0.000_61);
    for x in special.into_iter().chain(many) {
        let (plain, bare) = (exp(&Native, x), exp_at_most_zero(&Native, x));
        assert!(
            plain.to_bits() == bare.to_bits() || (plain.is_nan() && bare.is_nan()),
            "exp({x})"
        );
    }
}

#[test]
fn near_powers_of_two_are_within_three_ulp_or_zero() {
    let special = [
        0.0,
        -0.0,
        -126.0,
        -125.999_99,
        127.0,
        127.5,
        127.999_99,
        1.0,
        -1.0,
        -0.5,
        0.5,
        1e-30,
        -1e-30,
    ];
    let many = (-1_260_000..1_279_990).map(|n| n as f32 * 1e-4);
    for x in special.into_iter().chain(many) {
        let (near, exact) = (near_exp2(&Native, x), f64::from(x).exp2());
        let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
        let error = (f64::from(near) - exact).abs() / ulp;
        assert!(error <= 3.0, "2^{x} is {near}, off by {error} ulp");
    }
    for x in [-126.000_01, -127.0, -151.0, f32::MIN, f32::NEG_INFINITY] {
        assert_eq!(near_exp2(&Native, x).to_bits(), 0, "2^{x}");
    }
    for x in [128.0, 1e30, f32::INFINITY] {
        assert_eq!(near_exp2(&Native, x), f32::INFINITY, "2^{x}");
    }
    assert!(near_exp2(&Native, f32::NAN).is_nan());
}
