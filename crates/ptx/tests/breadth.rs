//! Every elementwise op, conversion and way of moving data, on every dtype that has it, through NVIDIA's assembler.

use oxyfuel_base::{Code, DType, Error, Expr};
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::infer::Domain;
use oxyfuel_kernel::ir::{
    BinaryOp, BufferMode, CompareOp, Mode, Program, ReduceOp, TileLayout, UnaryOp,
};
use oxyfuel_ptx::{TARGETS, emit, examples};
use oxyfuel_testkit::ptxas::{self, Together};

const BLOCK: i64 = 256;

fn layout() -> TileLayout {
    TileLayout {
        warp: vec![Mode::new(0, 2, 128)],
        lane: vec![Mode::new(0, 32, 4)],
        reg: vec![Mode::new(0, 4, 1)],
        ..TileLayout::default()
    }
}

/// A program that reads one block of each input and writes what `f` makes of them.
fn pointwise(
    inputs: &[DType],
    out: DType,
    f: impl FnOnce(&KernelBuilder, Vec<Tile>) -> Tile,
) -> Program {
    let k = KernelBuilder::new("pointwise");
    let mems: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, dtype)| {
            k.buffer(format!("x{i}"), *dtype, BufferMode::Read, 1 << 20)
                .aligned(16)
        })
        .collect();
    let y = k.buffer("y", out, BufferMode::Write, 1 << 20).aligned(16);
    k.phase([Expr::from((1 << 20) / BLOCK)], |k| {
        let base = k.program_id(0) * BLOCK;
        let tiles = mems
            .iter()
            .map(|mem| k.load(mem.at(&base).shape([BLOCK])))
            .collect();
        let tile = f(k, tiles);
        k.store(y.at(&base).shape([BLOCK]), tile);
    });
    examples::lay_out(k.finish().unwrap(), examples::block_of(2), &layout())
}

/// Texts for every target, assembled together.
#[derive(Default)]
struct Judge {
    texts: Together,
    count: usize,
}

impl Judge {
    /// Emits for every target. What has no PTX must say so by its code; that is handed back.
    fn take(&mut self, what: &str, mut program: Program) -> Option<Error> {
        program.name = format!("k{}", self.count);
        self.count += 1;
        oxyfuel_kernel::verify(&program).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut refused = None;
        for target in TARGETS {
            match emit(&program, &target.describe(132, 50 << 20)) {
                Ok(module) => self.texts.take(what, &module.text),
                Err(error) => {
                    assert_eq!(
                        error.code,
                        Code::NoLowering,
                        "{what} for {}: {error}",
                        target.name
                    );
                    refused = Some(error);
                }
            }
        }
        refused
    }

    fn assemble(self) {
        if let Some(tool) = ptxas::find() {
            self.texts.assemble(&tool);
        }
    }
}

/// Dtypes whose arithmetic an op's domain allows.
fn within(domain: Domain) -> impl Iterator<Item = DType> {
    DType::ALL
        .iter()
        .copied()
        .filter(move |dtype| domain.contains(*dtype))
}

#[test]
fn unary_ops() {
    let mut judge = Judge::default();
    for dtype in within(Domain::Any) {
        // One program a dtype for what has an instruction; what has none is refused one by one.
        for op in UnaryOp::ALL
            .iter()
            .copied()
            .filter(|op| op.domain().contains(dtype))
        {
            let out = if op == UnaryOp::IsNan {
                DType::Bool
            } else {
                dtype
            };
            let refused = judge.take(
                &format!("{} {dtype}", op.name()),
                pointwise(&[dtype], out, |_, x| x[0].unary(op)),
            );
            let expanded_above = matches!(
                op,
                UnaryOp::Exp
                    | UnaryOp::Expm1
                    | UnaryOp::Log
                    | UnaryOp::Log2
                    | UnaryOp::Log1p
                    | UnaryOp::Sin
                    | UnaryOp::Cos
                    | UnaryOp::Tanh
                    | UnaryOp::Atan
                    | UnaryOp::Erf
                    | UnaryOp::Erfc
                    | UnaryOp::Sigmoid
            ) || (dtype == DType::F64
                && matches!(op, UnaryOp::Exp2 | UnaryOp::NearExp2));
            assert_eq!(
                refused.is_some(),
                expanded_above,
                "{} {dtype}: {refused:?}",
                op.name()
            );
        }
    }
    judge.assemble();
}

#[test]
fn binary_ops_and_comparisons() {
    let mut judge = Judge::default();
    for dtype in within(Domain::Any) {
        for op in BinaryOp::ALL
            .iter()
            .copied()
            .filter(|op| op.domain().contains(dtype))
        {
            let refused = judge.take(
                &format!("{} {dtype}", op.name()),
                pointwise(&[dtype, dtype], dtype, |_, x| x[0].binary(op, &x[1])),
            );
            let expanded_above = dtype.is_float() && matches!(op, BinaryOp::Rem | BinaryOp::Pow);
            assert_eq!(
                refused.is_some(),
                expanded_above,
                "{} {dtype}: {refused:?}",
                op.name()
            );
        }
        let program = pointwise(&[dtype, dtype], dtype, |_, x| {
            let mut all = x[0].compare(CompareOp::Eq, &x[1]);
            let ops: &[CompareOp] = if dtype.is_bool() {
                &[CompareOp::Ne]
            } else {
                CompareOp::ALL
            };
            for op in ops {
                all = all.binary(BinaryOp::Xor, x[0].compare(*op, &x[1]));
            }
            all.select(&x[0], &x[1])
        });
        assert!(judge.take(&format!("compare {dtype}"), program).is_none());
    }
    judge.assemble();
}

#[test]
fn casts_and_bitcasts() {
    let mut judge = Judge::default();
    for from in DType::ALL.iter().copied() {
        for to in DType::ALL.iter().copied().filter(|to| *to != from) {
            let refused = judge.take(
                &format!("{from} to {to}"),
                pointwise(&[from], to, |_, x| x[0].cast(to)),
            );
            let narrow = to.is_narrow_float();
            assert!(refused.is_none() || narrow, "{from} to {to}: {refused:?}");
            let same = from.size() == to.size() && from.bits() == to.bits();
            if same && !from.is_bool() && !to.is_bool() {
                let program = pointwise(&[from], to, |_, x| x[0].bitcast(to));
                assert!(judge.take(&format!("{from} as {to}"), program).is_none());
            }
        }
    }
    judge.assemble();
}

#[test]
fn reductions_of_every_dtype() {
    let mut judge = Judge::default();
    for dtype in within(Domain::Any) {
        for op in ReduceOp::ALL
            .iter()
            .copied()
            .filter(|op| op.domain().contains(dtype))
        {
            let program = pointwise(&[dtype], dtype, |_, x| {
                x[0].reduce(op, [0]).broadcast_to([BLOCK])
            });
            assert!(
                judge
                    .take(&format!("{} {dtype}", op.name()), program)
                    .is_none()
            );
        }
    }
    judge.assemble();
}
