//! What `fast` numerics promise: inside of a kernel bf16 and f16 are kept in f32, so a result is what f32 arithmetic gives, rounded once.

use std::path::Path;
use std::sync::Arc;

use oxyfuel_base::{DType, Expr};
use oxyfuel_engine::{Compiler, Executable, Numerics, Options, Target};
use oxyfuel_graph::{HostTensor, parse};
use oxyfuel_plan::Artefact;
use oxyfuel_runtime::tensor::Tensor;
use oxyfuel_testkit::compare::{BF16, agrees};

fn compiler(numerics: Numerics, threads: usize) -> Compiler {
    let options = Options {
        numerics,
        threads,
        ..Options::default()
    };
    Compiler::new(options).unwrap()
}

/// Bits of the first result, and bytes of machine code.
fn run(compiler: &Compiler, text: &str, inputs: &[HostTensor]) -> (Vec<u8>, usize) {
    let (mut results, code) = run_all(compiler, text, inputs);
    (results.swap_remove(0), code)
}

/// Bits of the results, and bytes of machine code.
fn run_all(compiler: &Compiler, text: &str, inputs: &[HostTensor]) -> (Vec<Vec<u8>>, usize) {
    let executable = compiler.compile(&parse("test", text).unwrap()).unwrap();
    let device = compiler.device();
    let tensors: Vec<Tensor> = inputs
        .iter()
        .map(|host| {
            let tensor = Tensor::empty_on(&**device, host.dtype, &host.shape).unwrap();
            device.copy_in(&host.data, tensor.storage(), 0).unwrap();
            tensor
        })
        .collect();
    let outputs = executable.run(&tensors.iter().collect::<Vec<_>>()).unwrap();
    let bits = |output: &Tensor| {
        let mut bytes = vec![0; output.storage().len()];
        device.copy_out(output.storage(), 0, &mut bytes).unwrap();
        let elements: i64 = output.shape().iter().product();
        bytes.truncate(usize::try_from(elements).unwrap() * output.dtype().size());
        bytes
    };
    let code = executable
        .plan()
        .kernels
        .values()
        .map(|k| match &k.artefact {
            Artefact::MachineCode(code) => code.code.len(),
            Artefact::Interpreted | Artefact::Ptx(_) => 0,
        });
    (outputs.iter().map(bits).collect(), code.sum())
}

fn input(dtype: DType, shape: &[i64], seed: u64) -> HostTensor {
    let count = shape.iter().product::<i64>();
    let value = |i: i64| {
        let hash = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed) >> 40;
        hash as f64 / (1 << 22) as f64 - 2.0
    };
    let values: Vec<f64> = (0..count).map(value).collect();
    HostTensor::from_f64(dtype, shape, &values).unwrap()
}

const NARROW: &str = "graph @narrow(%x: DT[6, 50] cpu, %y: DT[6, 50] cpu) {
  %a: DT[6, 50] = mul %x, %y
  %b: DT[6, 50] = add %a, %x
  %c: DT[6, 50] = tanh %b
  %s: DT[6, 1] = sum %c, dims=[1], keepdim=true
  %d: DT[6, 50] = sub %c, %s
  %z: DT[6, 50] = mul %d, %y
  return %z
}";

/// The same in f32, with one rounding at the end.
const WIDE: &str = "graph @wide(%x: DT[6, 50] cpu, %y: DT[6, 50] cpu) {
  %xw: f32[6, 50] = _to_copy %x
  %yw: f32[6, 50] = _to_copy %y
  %a: f32[6, 50] = mul %xw, %yw
  %b: f32[6, 50] = add %a, %xw
  %c: f32[6, 50] = tanh %b
  %s: f32[6, 1] = sum %c, dims=[1], keepdim=true
  %d: f32[6, 50] = sub %c, %s
  %zw: f32[6, 50] = mul %d, %yw
  %z: DT[6, 50] = _to_copy %zw
  return %z
}";

#[test]
fn fast_is_f32_inside_of_a_kernel_and_one_rounding() {
    let (eager, fast) = (compiler(Numerics::Eager, 1), compiler(Numerics::Fast, 1));
    for (name, dtype) in [("bf16", DType::BF16), ("f16", DType::F16)] {
        let (narrow, wide) = (NARROW.replace("DT", name), WIDE.replace("DT", name));
        let inputs = [input(dtype, &[6, 50], 1), input(dtype, &[6, 50], 2)];
        let (rounded, long) = run(&eager, &narrow, &inputs);
        let (kept, short) = run(&fast, &narrow, &inputs);
        let (expected, _) = run(&eager, &wide, &inputs);
        assert!(kept == expected, "{name}");
        assert!(kept != rounded, "{name}: the option does nothing");
        assert!(short < long, "{name}: {short} bytes of code, {long} before");
    }
}

#[test]
fn f32_and_f64_are_the_same_in_both() {
    let (eager, fast) = (compiler(Numerics::Eager, 1), compiler(Numerics::Fast, 1));
    for (name, dtype) in [("f32", DType::F32), ("f64", DType::F64)] {
        let text = NARROW.replace("DT", name);
        let inputs = [input(dtype, &[6, 50], 1), input(dtype, &[6, 50], 2)];
        assert!(
            run(&eager, &text, &inputs) == run(&fast, &text, &inputs),
            "{name}"
        );
    }
}

#[test]
fn a_storage_float_is_meant() {
    let text = "graph @f(%x: f32[64] cpu) {
  %q: f8e4m3[64] = _to_copy %x
  %y: f32[64] = _to_copy %q
  return %y
}";
    let (eager, fast) = (compiler(Numerics::Eager, 1), compiler(Numerics::Fast, 1));
    let inputs = [input(DType::F32, &[64], 1)];
    assert_eq!(run(&eager, text, &inputs).0, run(&fast, text, &inputs).0);
}

/// Nothing of ours depends on which worker does what: reductions are cut by the plan alone.
#[test]
fn the_same_plan_gives_the_same_bits_over_runs() {
    let text = "graph @f(%x: f32[3, 200000] cpu) {
  %e: f32[3, 200000] = exp %x
  %s: f32[3] = sum %e, dims=[1], keepdim=false
  return %s
}";
    let inputs = [input(DType::F32, &[3, 200_000], 3)];
    for threads in [1, 2, 3] {
        let compiler = Arc::new(compiler(Numerics::Eager, threads));
        let first = run(&compiler, text, &inputs);
        for _ in 0..20 {
            assert!(run(&compiler, text, &inputs) == first, "{threads} threads");
        }
    }
}

/// Products, convolutions and attention are cut by sizes and caches, never by threads. The results of every kind of kernel.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let mm = |dtype: &str, m: i64, k: i64, n: i64| {
        format!(
            "graph @f(%a: {dtype}[{m}, {k}] cpu, %b: {dtype}[{k}, {n}] cpu) {{
  %y: {dtype}[{m}, {n}] = mm %a, %b
  return %y
}}"
        )
    };
    let sdpa = |heads: i64, queries: i64, keys: i64, causal: bool| {
        format!(
            "graph @f(%q: f32[1, {heads}, {queries}, 24] cpu, %k: f32[1, 2, {keys}, 24] cpu, %v: f32[1, 2, {keys}, 40] cpu) {{
  %y: f32[1, {heads}, {queries}, 40], %l: f32[1, {heads}, {queries}] = sdpa %q, %k, %v, causal={causal}, scale=0.3
  return %y
}}"
        )
    };
    let attention = "%q: f32[2, 4, 70, 24] cpu, %k: f32[2, 2, 90, 24] cpu, %v: f32[2, 2, 90, 40] cpu, %g: f32[2, 4, 70, 40] cpu";
    let backward = |causal: bool| {
        format!(
            "graph @f({attention}) {{
  %y: f32[2, 4, 70, 40], %l: f32[2, 4, 70] = sdpa %q, %k, %v, causal={causal}, scale=0.3
  %dq: f32[2, 4, 70, 24], %dk: f32[2, 2, 90, 24], %dv: f32[2, 2, 90, 40] = sdpa_backward %g, %q, %k, %v, %y, %l, causal={causal}, scale=0.3
  return %y, %dq, %dk, %dv
}}"
        )
    };
    // With channels last.
    let images = |dtype: &str,
                  [channels, outputs]: [i64; 2],
                  kernel: i64,
                  stride: i64,
                  groups: i64| {
        let (inputs, padding) = (channels / groups, kernel / 2);
        let [rows, columns] = [30, 27].map(|n| (n + 2 * padding - kernel) / stride + 1);
        format!(
            "graph @f(%i: {dtype}[2, 30, 27, {channels}] cpu, %w: {dtype}[{outputs}, {inputs}, {kernel}, {kernel}] cpu) {{
  %x: {dtype}[2, {channels}, 30, 27] = permute %i, dims=[0, 3, 1, 2]
  %y: {dtype}[2, {outputs}, {rows}, {columns}] = convolution %x, %w, stride=[{stride}, {stride}], padding=[{padding}, {padding}], dilation=[1, 1], groups={groups}
  %z: {dtype}[2, {rows}, {columns}, {outputs}] = permute %y, dims=[0, 2, 3, 1]
  return %z
}}"
        )
    };
    let of_file = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/run");
        let text = std::fs::read_to_string(folder.join(name).with_extension("txt")).unwrap();
        let (begin, end) = (text.find("graph @").unwrap(), text.find("\n}").unwrap());
        text[begin..end + 2].to_owned()
    };
    let int_mm = |m: i64, k: i64, n: i64| {
        format!(
            "graph @f(%a: i8[{m}, {k}] cpu, %b: i8[{k}, {n}] cpu) {{
  %y: i32[{m}, {n}] = _int_mm %a, %b
  return %y
}}"
        )
    };
    // Rows of which only a call knows how many there are.
    let symbolic = |dtype: &str, k: i64, n: i64| {
        format!(
            "sym s0: 1..
graph @f(%a: {dtype}[s0, {k}] cpu, %b: {dtype}[{k}, {n}] cpu) {{
  %y: {dtype}[s0, {n}] = mm %a, %b
  %z: {dtype}[s0, {n}] = relu %y
  return %z
}}"
        )
    };
    let texts = [
        // Blocked, of one chunk and of several; of few rows; of few rows and columns, whose depth is shared out; a single row.
        mm("f32", 70, 300, 90),
        mm("f32", 129, 2100, 75),
        mm("f64", 61, 1300, 50),
        mm("bf16", 70, 900, 64),
        mm("f32", 3, 700, 500),
        mm("f32", 7, 20_000, 5),
        mm("f32", 1, 900, 700),
        sdpa(4, 70, 90, false),
        sdpa(2, 65, 65, true),
        sdpa(4, 1, 700, false),
        "graph @f(%x: f32[2, 12, 17, 19] cpu, %w: f32[20, 6, 3, 3] cpu) {
  %y: f32[2, 20, 9, 10] = convolution %x, %w, stride=[2, 2], padding=[1, 1], dilation=[1, 1], groups=2
  return %y
}"
        .to_owned(),
        backward(false),
        backward(true),
        // Direct, in panels, in groups; then what the conformance suite has of kernels that read other panels: those of points among them.
        images("f32", [64, 70], 1, 1, 1),
        images("f32", [64, 64], 3, 1, 1),
        images("f32", [32, 48], 3, 2, 1),
        images("bf16", [32, 48], 3, 1, 1),
        images("f32", [48, 48], 3, 1, 48),
        images("f32", [64, 64], 3, 1, 4),
        of_file("images_winograd"),
        of_file("images_in_passes"),
        of_file("images_groups_in_panels"),
        of_file("images_depthwise"),
        of_file("images_bf16"),
        of_file("images_lines"),
        of_file("images_volumes"),
        int_mm(70, 900, 90),
        int_mm(3, 700, 500),
        symbolic("f32", 700, 96),
        symbolic("bf16", 300, 64),
    ];
    let compilers = [1, 2, 3].map(|threads| compiler(Numerics::Eager, threads));
    for text in texts {
        let graph = parse("test", &text).unwrap();
        let inputs: Vec<HostTensor> = (1u64..)
            .zip(&graph.inputs)
            .map(|(seed, &value)| {
                let ty = graph.ty(value);
                let size = |n: &Expr| n.eval(&|_| Some(77)).unwrap();
                let shape: Vec<i64> = ty.shape.iter().map(size).collect();
                input(ty.dtype, &shape, seed)
            })
            .collect();
        let [one, rest @ ..] = &compilers;
        let expected = run_all(one, &text, &inputs).0;
        for other in rest {
            assert!(run_all(other, &text, &inputs).0 == expected, "{text}");
        }
    }
}

/// A sum of many terms has errors no larger than those of a sum of a few hundred.
/// An instance may have two rows, where there are many and their number is even (`lower/src/pairs.rs`).
#[test]
fn a_row_is_the_same_however_many_there_are() {
    const NORM: &str = "graph @norm(%x: f32[ROWS, COLS] cpu align 64, %w: f32[COLS] cpu align 64) {
  %y: f32[ROWS, COLS], %m: f32[ROWS, 1], %r: f32[ROWS, 1] = native_layer_norm %x, %w, %w, rank=1, eps=1e-5
  return %y
}";
    const SOFTMAX: &str =
        "graph @softmax(%x: f32[ROWS, COLS] cpu align 64, %w: f32[COLS] cpu align 64) {
  %s: f32[ROWS, COLS] = mul %x, %w
  %y: f32[ROWS, COLS] = _softmax %s, dim=1
  return %y
}";
    let host = Target::host(&Options::default()).unwrap();
    for name in ["avx2", "avx512"] {
        let target = Target::by_name(name).unwrap();
        if name == "avx512" && !host.name().starts_with("avx512") {
            continue;
        }
        for (text, cols) in [(NORM, 768), (NORM, 1000), (SOFTMAX, 300), (SOFTMAX, 1024)] {
            let first = |rows: i64, threads: usize| {
                let text = text.replace("ROWS", &rows.to_string());
                let text = text.replace("COLS", &cols.to_string());
                let options = Options {
                    threads,
                    ..Options::default()
                };
                let mut target = target.clone();
                target.desc.workers = u32::try_from(threads).unwrap();
                let graph = parse("test", &text).unwrap();
                let compiled = oxyfuel_engine::compile(&graph, &target, &options, false).unwrap();
                let device = oxyfuel_engine::cpu_device(&options);
                let executable =
                    Executable::load(compiled.plan, compiled.record, device.clone()).unwrap();
                let inputs = [
                    input(DType::F32, &[rows, cols], 5),
                    input(DType::F32, &[cols], 6),
                ];
                let tensors = inputs.map(|host| {
                    Tensor::from_bytes(device.memory(), &host.data, host.dtype, &host.shape)
                        .unwrap()
                });
                let y = executable.run(&tensors.iter().collect::<Vec<_>>()).unwrap();
                let values = y[0].to_vec::<f32>().unwrap();
                let bits = values[..cols as usize].iter().map(|v| v.to_bits());
                bits.collect::<Vec<_>>()
            };
            let alone = first(1, 1);
            for (rows, threads) in [(63, 1), (64, 1), (64, 2), (65, 2), (256, 3)] {
                assert!(
                    alone == first(rows, threads),
                    "{name}: {rows} rows of {cols}, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn deep_products_are_summed_in_parts() {
    let (m, k, n) = (64, 6144, 64);
    let text = format!(
        "graph @f(%a: f32[{m}, {k}] cpu, %b: f32[{k}, {n}] cpu) {{
  %y: f32[{m}, {n}] = mm %a, %b
  return %y
}}"
    );
    let inputs = [input(DType::F32, &[m, k], 1), input(DType::F32, &[k, n], 2)];
    let (a, b) = (inputs[0].to_f64(), inputs[1].to_f64());
    let [m, k, n] = [m, k, n].map(|n| usize::try_from(n).unwrap());
    let (bytes, _) = run(&compiler(Numerics::Eager, 1), &text, &inputs);
    let got = bytes
        .chunks(4)
        .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())));
    // The same sum one term after the other, as a fused multiply-add rounds it.
    let (mut ours, mut long) = (0.0, 0.0);
    for (at, got) in got.enumerate().take(m * n) {
        let terms = (0..k).map(|l| (a[at / n * k + l], b[l * n + at % n]));
        let exact: f64 = terms.clone().map(|(a, b)| a * b).sum();
        let one = terms.fold(0f32, |sum, (a, b)| (a as f32).mul_add(b as f32, sum));
        ours += (got - exact).powi(2);
        long += (f64::from(one) - exact).powi(2);
    }
    assert!(ours * 4.0 < long, "{ours} beside {long}");
}

/// Pairs of bf16 on vectors and on matrix tiles round in their own way, and take denormals for zero; what they give agrees with the product of widened numbers by decision 8.
#[test]
fn products_of_pairs_agree_with_widened_ones() {
    let (m, k, n) = (33, 1500, 40);
    let text = format!(
        "graph @f(%a: bf16[{m}, {k}] cpu, %b: bf16[{k}, {n}] cpu) {{
  %y: bf16[{m}, {n}] = mm %a, %b
  return %y
}}"
    );
    let mut inputs = [
        input(DType::BF16, &[m, k], 1),
        input(DType::BF16, &[k, n], 2),
    ];
    // The smallest denormals of either sign, one after the other, in every third place.
    for (at, element) in inputs[0].data.chunks_mut(2).enumerate() {
        if at % 3 == 0 {
            element.copy_from_slice(&[1, if at % 2 == 0 { 0 } else { 0x80 }]);
        }
    }
    let on = |target: &str| {
        let options = Options {
            target: target.to_owned(),
            threads: 1,
            ..Options::default()
        };
        let compiler = Compiler::new(options).unwrap();
        let (bytes, _) = run(&compiler, &text, &inputs);
        let bits = bytes.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        bits.map(|b| f64::from(f32::from_bits(u32::from(b) << 16)))
            .collect::<Vec<f64>>()
    };
    let (a, b) = (inputs[0].to_f64(), inputs[1].to_f64());
    let [m, k, n] = [m, k, n].map(|n| usize::try_from(n).unwrap());
    let exact: Vec<f64> = (0..m * n)
        .map(|at| (0..k).map(|l| a[at / n * k + l] * b[l * n + at % n]).sum())
        .collect();
    let widened = on("interpreter");
    for target in ["avx512", "avx512-bf16", "avx512-amx"] {
        if Target::by_name(target).unwrap().supported_here() {
            let ours = on(target);
            if let Err(why) = agrees(&BF16, &ours, &widened, &exact) {
                panic!("{target}: {why:?}");
            }
        }
    }
}

/// Of slices for one place the last stays, as if they were written one after the other.
#[test]
fn deterministic_keeps_the_order_of_a_scatter() {
    let text = "graph @f(%x: f32[4, 64] cpu, %src: f32[4096, 64] cpu, %i: i64[4096] cpu) {
  %y: f32[4, 64] = index_put %x, %src, %i, dim=0
  return %y
}";
    let (rows, columns) = (4096, 64);
    let src: Vec<f64> = (0..rows * columns).map(|n| (n / columns) as f64).collect();
    let index: Vec<i64> = (0..rows).map(|i| i * 7 % 4).collect();
    let inputs = [
        HostTensor::from_f64(DType::F32, &[4, columns], &vec![0.0; 256]).unwrap(),
        HostTensor::from_f64(DType::F32, &[rows, columns], &src).unwrap(),
        HostTensor::from_i64(DType::I64, &[rows], &index).unwrap(),
    ];
    let mut last = [0.0f32; 4];
    for (row, place) in index.iter().enumerate() {
        last[usize::try_from(*place).unwrap()] = row as f32;
    }
    let expected: Vec<u8> = last
        .iter()
        .flat_map(|row| row.to_le_bytes().repeat(64))
        .collect();
    for threads in [1, 2, 4] {
        let options = Options {
            deterministic: true,
            threads,
            ..Options::default()
        };
        let compiler = Compiler::new(options).unwrap();
        for _ in 0..20 {
            assert!(
                run(&compiler, text, &inputs).0 == expected,
                "{threads} threads"
            );
        }
    }
}

/// The variance of long rows is read around a guess of the mean. Rows that make the guess as bad as it can be: their first part lies far from the rest, all is far from zero, or nothing varies.
#[test]
fn variances_of_long_rows_are_near_the_exact_ones() {
    const ROWS: usize = 4;
    const LONG: usize = 40_000;
    let text = format!(
        "graph @f(%x: f32[{ROWS}, {LONG}] cpu) {{
  %y: f32[{ROWS}] = var %x, dims=[1], correction=1, keepdim=false
  return %y
}}"
    );
    let noise = input(DType::F32, &[ROWS as i64, LONG as i64], 7).to_f64();
    let value = |(at, noise): (usize, &f64)| match at / LONG {
        0 => *noise,
        1 if at % LONG < LONG / 16 => 1000.0,
        1 => *noise,
        2 => noise + 4096.0,
        _ => f64::from(0.1f32),
    };
    let values: Vec<f64> = noise.iter().enumerate().map(value).collect();
    let x = HostTensor::from_f64(DType::F32, &[ROWS as i64, LONG as i64], &values).unwrap();
    let exact: Vec<f64> = x
        .to_f64()
        .chunks(LONG)
        .map(|row| {
            let mean = row.iter().sum::<f64>() / LONG as f64;
            row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (LONG - 1) as f64
        })
        .collect();
    for threads in [1, 2] {
        let (bytes, _) = run(
            &compiler(Numerics::Eager, threads),
            &text,
            std::slice::from_ref(&x),
        );
        let got = bytes
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        for (row, (got, exact)) in got.zip(&exact).enumerate() {
            let error = (f64::from(got) - exact).abs();
            assert!(
                error <= 2e-6 * exact + 1e-15,
                "row {row}: {got}, not {exact}"
            );
        }
    }
}
