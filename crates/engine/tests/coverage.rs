//! Every row of the vocabulary on every dtype it takes becomes machine code, and that code agrees with the graph interpreter.
//!
//! What still runs in the tile interpreter stands in `interpreted.txt`, one line a case. The list may only shrink: a new line fails the test, and so does a line that is no
//! longer needed (`BLESS=1` rewrites the file).

use std::collections::BTreeSet;
use std::path::Path;

use oxyfuel_base::{DType, Expr, Scalar};
use oxyfuel_engine::{Executable, Options, Target, agree, compile, cpu_device};
use oxyfuel_graph::op::{Binary, Compare, Op, Reduce, Unary};
use oxyfuel_graph::{Builder, Device, Graph, HostTensor, ValueId, run};
use oxyfuel_plan::Artefact;
use oxyfuel_runtime::tensor::Tensor;

/// Rows and columns that no vector divides.
const SHAPE: [i64; 2] = [5, 37];

struct Case {
    name: String,
    graph: Graph,
}

/// A graph of one op over inputs of these dtypes and shapes; `None` where the op does not take them.
fn case(name: String, inputs: &[(DType, &[i64])], op: &Op) -> Option<Case> {
    let mut b = Builder::new("case");
    let values: Vec<ValueId> = inputs
        .iter()
        .enumerate()
        .map(|(i, (dtype, shape))| {
            let shape = shape.iter().map(|&n| Expr::from(n)).collect();
            b.input(&format!("x{i}"), *dtype, shape, Device::Cpu).ok()
        })
        .collect::<Option<_>>()?;
    for out in b.node(op.clone(), &values).ok()? {
        b.output(out);
    }
    let graph = b.finish().ok()?;
    Some(Case { name, graph })
}

/// One op as a case for each dtype it takes. Operands named `index` hold positions, conditions are bools.
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let shape = SHAPE.as_slice();
    let mut families: Vec<(Op, usize)> = Vec::new();
    families.extend(Unary::ALL.iter().map(|&f| (Op::Unary(f), 1)));
    families.extend(Binary::ALL.iter().map(|&f| (Op::Binary(f), 2)));
    families.extend(Compare::ALL.iter().map(|&f| (Op::Compare(f), 2)));
    for &op in Reduce::ALL {
        for dims in [vec![0], vec![1], vec![0, 1]] {
            let keepdim = false;
            families.push((Op::Reduce { op, dims, keepdim }, 1));
        }
    }
    families.push((Op::Clone, 1));
    families.push((Op::Copy, 2));
    families.push((Op::Permute { dims: vec![1, 0] }, 1));
    families.push((Op::Cat { dim: 1 }, 2));
    for dim in [0, 1] {
        families.push((Op::Softmax { dim }, 1));
        families.push((Op::LogSoftmax { dim }, 1));
        families.push((Op::Cumsum { dim }, 1));
        families.push((Op::Cumprod { dim }, 1));
        families.push((Op::LinearScan { dim }, 2));
        families.push((
            Op::Argsort {
                dim,
                descending: dim == 0,
            },
            1,
        ));
        families.push((
            Op::Argmax {
                dim,
                keepdim: false,
            },
            1,
        ));
        families.push((Op::Argmin { dim, keepdim: true }, 1));
    }
    let (rank, eps) = (1, Scalar::F(1e-5));
    families.push((Op::NativeLayerNorm { rank, eps }, 1));
    let (dims, correction, keepdim) = (vec![1], Scalar::F(1.0), true);
    let var = Op::Var {
        dims,
        correction,
        keepdim,
    };
    families.push((var, 1));
    for &dtype in DType::ALL {
        for (op, operands) in &families {
            let inputs = vec![(dtype, shape); *operands];
            all.extend(case(described(op, dtype), &inputs, op));
        }
        for &to in DType::ALL {
            let name = format!("{dtype} to {to}");
            all.extend(case(name, &[(dtype, shape)], &Op::Cast { dtype: to }));
        }
        let choose = [(DType::Bool, shape), (dtype, shape), (dtype, shape)];
        all.extend(case(format!("where {dtype}"), &choose, &Op::Where));
        for index in [DType::I64, DType::I32] {
            let name = |op: &str| format!("{op} {dtype} by {index}");
            let rows: &[i64] = &[7];
            let gather = Op::Gather { dim: 1 };
            let inputs = [(dtype, shape), (index, shape)];
            all.extend(case(name("gather"), &inputs, &gather));
            let select = Op::IndexSelect { dim: 1 };
            let inputs = [(dtype, shape), (index, rows)];
            all.extend(case(name("index_select"), &inputs, &select));
            all.extend(case(name("embedding"), &inputs, &Op::Embedding));
        }
        let update = Op::SliceScatter {
            dim: 1,
            start: Expr::from(3),
            end: Expr::from(9),
            step: 2,
        };
        let inputs: [(DType, &[i64]); 2] = [(dtype, shape), (dtype, &[5, 3])];
        all.extend(case(format!("slice_scatter {dtype}"), &inputs, &update));
        // Without padding: whether an infinite weight meets its zeros is open.
        let images = Op::ConvPanels {
            kernel: vec![2, 2],
            stride: vec![2, 1],
            padding: vec![0, 0],
            dilation: vec![1, 1],
            groups: 1,
            n: 37,
            winograd: false,
        };
        let products: [(Op, &[&[i64]]); 5] = [
            (images, &[&[2, 4, 3, 5], &[5, 20, 8]]),
            (Op::Mm, &[&[5, 6], &[6, 37]]),
            (Op::Bmm, &[&[2, 5, 6], &[2, 6, 37]]),
            (Op::MmPanels { n: 37 }, &[&[5, 6], &[5, 6, 8]]),
            (
                Op::Addmm {
                    beta: Scalar::F(1.0),
                    alpha: Scalar::F(1.0),
                },
                &[&[37], &[5, 6], &[6, 37]],
            ),
        ];
        for (op, shapes) in products {
            let inputs: Vec<(DType, &[i64])> = shapes.iter().map(|&s| (dtype, s)).collect();
            all.extend(case(described(&op, dtype), &inputs, &op));
        }
        let (value, size, device) = (Scalar::I(1), vec![Expr::from(37)], Device::Cpu);
        let full = Op::Full {
            value,
            shape: size.clone(),
            dtype,
            device,
        };
        all.extend(case(format!("full {dtype}"), &[], &full));
        let arange = Op::Arange {
            start: Scalar::I(1),
            step: Scalar::I(2),
            shape: size,
            dtype,
            device,
        };
        all.extend(case(format!("arange {dtype}"), &[], &arange));
    }
    all
}

/// `div rounding_mode="floor" f32`, `sum [0, 1] bf16`.
fn described(op: &Op, dtype: DType) -> String {
    let fixed = match op.info().fixed {
        Some((key, value)) => format!(" {key}={value}"),
        None => String::new(),
    };
    let dims = match op {
        Op::Reduce { dims, .. } => format!(" {dims:?}"),
        Op::Softmax { dim }
        | Op::LogSoftmax { dim }
        | Op::Cumsum { dim }
        | Op::Cumprod { dim }
        | Op::Argsort { dim, .. }
        | Op::LinearScan { dim }
        | Op::Argmax { dim, .. }
        | Op::Argmin { dim, .. } => format!(" [{dim}]"),
        _ => String::new(),
    };
    format!("{}{fixed}{dims} {dtype}", op.name())
}

#[test]
fn what_the_interpreter_still_runs_only_shrinks() {
    let mut found = BTreeSet::new();
    for target in ["avx2", "avx512"] {
        let target = Target::by_name(target).unwrap();
        for Case { name, graph } in cases() {
            let why = match compile(&graph, &target, &Options::default(), false) {
                Ok(made) => made
                    .plan
                    .kernels
                    .values()
                    .find(|k| matches!(k.artefact, Artefact::Interpreted))
                    .map(|_| ()),
                Err(error) => panic!("{name} on {}: {error}", target.name()),
            };
            if why.is_some() {
                found.insert(format!("{} {name}", target.name()));
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interpreted.txt");
    let text: String = found.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let known: BTreeSet<String> = known.lines().map(str::to_owned).collect();
    let new: Vec<&String> = found.difference(&known).collect();
    let gone: Vec<&String> = known.difference(&found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "interpreted, and not in the list: {new:#?}\nin the list, and compiled: {gone:#?}"
    );
}

/// Larger graphs too: whatever the files of `run` bring together in a kernel has machine code.
#[test]
fn files_of_run_are_machine_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/run");
    let (mut seen, mut found) = (0, BTreeSet::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let Some((program, _)) = text.split_once("\n}\n") else {
            continue;
        };
        let lines = program.lines().filter(|line| !line.starts_with(';'));
        let program = lines.map(|line| format!("{line}\n")).collect::<String>() + "}\n";
        let graph = oxyfuel_graph::parse(&path.to_string_lossy(), &program).unwrap();
        for target in ["avx2", "avx512"] {
            let target = Target::by_name(target).unwrap();
            let made = compile(&graph, &target, &Options::default(), false).unwrap();
            let kernels = made.plan.kernels.values();
            let mut without = kernels.filter(|k| matches!(k.artefact, Artefact::Interpreted));
            if let Some(kernel) = without.next() {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                found.insert(format!("{name} on {}: {:?}", target.name(), kernel.note));
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} compiled");
    // A product writes whole panels over what its epilogue still reads.
    found.retain(|line: &String| !line.starts_with("mutate_by_a_product "));
    assert!(found.is_empty(), "interpreted: {found:#?}");
}

/// Numbers that find the edges of a dtype, and ordinary ones.
fn element(dtype: DType, at: usize, seed: usize) -> Scalar {
    let mixed = ((at * 31 + seed * 17 + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let small = (mixed % 4096) as f64 / 256.0 - 8.0;
    let edge = mixed.is_multiple_of(5);
    if dtype.is_float() {
        let edges = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            -2.0,
            3.0,
            1e30,
            -1e30,
            1e-30,
            1e-40,
            448.0,
            500.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        return Scalar::F(if edge {
            edges[(mixed / 5) as usize % edges.len()]
        } else {
            small
        });
    }
    let edges = [0, 1, -1, 2, i64::MAX, i64::MIN, 127, -128, 255, 1 << 31];
    let value = if edge {
        edges[(mixed / 5) as usize % edges.len()]
    } else {
        (mixed % 201) as i64 - 100
    };
    Scalar::I(value).cast(dtype)
}

fn inputs(graph: &Graph) -> Vec<HostTensor> {
    let indexed = graph.nodes.values().find_map(|node| match node.op {
        Op::Gather { .. } | Op::IndexSelect { .. } => Some(SHAPE[1]),
        Op::Embedding => Some(SHAPE[0]),
        _ => None,
    });
    let tensor = |(i, &v): (usize, &ValueId)| {
        let ty = graph.ty(v);
        let shape: Vec<i64> = ty.shape.iter().map(|e| e.as_const().unwrap()).collect();
        let count = shape.iter().product::<i64>() as usize;
        let scalars: Vec<Scalar> = (0..count)
            .map(|at| match indexed {
                Some(extent) if i == 1 => Scalar::I((at as i64 * 11 + 3) % extent),
                _ => element(ty.dtype, at, i),
            })
            .collect();
        HostTensor::from_scalars(ty.dtype, &shape, &scalars).unwrap()
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

#[test]
fn machine_code_of_every_row_agrees_with_the_graph_interpreter() {
    let options = Options {
        threads: 1,
        ..Options::default()
    };
    let device = cpu_device(&options);
    let mut wrong = Vec::new();
    for target in ["avx2", "avx512"] {
        let target = Target::by_name(target).unwrap();
        if !target.supported_here() {
            continue;
        }
        for Case { name, graph } in cases() {
            let host = inputs(&graph);
            let expected = run(&graph, &host).unwrap();
            let made = compile(&graph, &target, &options, false).unwrap();
            let executable = Executable::load(made.plan, made.record, device.clone()).unwrap();
            let tensors: Vec<Tensor> = host
                .iter()
                .map(|t| Tensor::from_bytes(device.memory(), &t.data, t.dtype, &t.shape).unwrap())
                .collect();
            let outputs = executable.run(&tensors.iter().collect::<Vec<_>>()).unwrap();
            for (ours, expected) in outputs.iter().zip(&expected) {
                let bytes = ours.to_bytes().unwrap();
                if let Err(why) = agree(expected.dtype, &bytes, &expected.data) {
                    wrong.push(format!("{} {name}: {why}", target.name()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

/// Statistics of a channel are contiguous along the channels, the image along its pixels: the pixels are many more, and vectors run along them.
#[test]
fn normalising_an_image_reads_whole_vectors() {
    let text = "graph @f(%x: f32[4, 64, 56, 56] cpu required[200704, 3136, 56, 1], %m: f32[64, 1, 1] cpu, %s: f32[64, 1, 1] cpu, \
                %w: f32[64, 1, 1] cpu, %b: f32[64, 1, 1] cpu) {
  %5: f32[4, 64, 56, 56] = sub %x, %m
  %6: f32[4, 64, 56, 56] = mul %5, %s
  %7: f32[4, 64, 56, 56] = mul %6, %w
  %8: f32[4, 64, 56, 56] = add %7, %b
  %9: f32[4, 64, 56, 56] = relu %8
  return %9
}";
    let graph = oxyfuel_graph::parse("test", text).unwrap();
    for target in ["avx2", "avx512"] {
        let target = Target::by_name(target).unwrap();
        let made = compile(&graph, &target, &Options::default(), false).unwrap();
        for kernel in made.plan.kernels.values() {
            let code = target.listing(&kernel.artefact);
            assert!(
                !code.contains("gather") && !code.contains("scatter"),
                "{code}"
            );
        }
    }
}
