//! Frozen inputs: what follows from them alone is computed once, and results are those of the graph that computes everything at every call.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_engine::{Compiler, Frozen, Options, Target, cpu_device};
use oxyfuel_graph::builder::Builder;
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{Device, Graph, HostTensor, Unary, ValueId, Windows, parse, run};
use oxyfuel_runtime::tensor::Tensor;
use oxyfuel_testkit::{Rng, compare};

/// Compilers for the interpreter and for every vector level of this machine.
fn compilers() -> Vec<Compiler> {
    let all = Target::all().filter(|target| !target.desc.is_simt() && target.supported_here());
    let options = Options {
        threads: 2,
        ..Options::default()
    };
    all.map(|target| Compiler::on(target, options.clone(), cpu_device(&options)))
        .collect()
}

fn passed(compiler: &Compiler, host: &HostTensor) -> Tensor {
    let device = compiler.device();
    let tensor = Tensor::empty_on(&**device, host.dtype, &host.shape).unwrap();
    device.copy_in(&host.data, tensor.storage(), 0).unwrap();
    tensor
}

fn elements(tensor: &Tensor) -> Vec<f64> {
    let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
    let data = tensor.to_bytes().unwrap();
    HostTensor { dtype, shape, data }.to_f64()
}

/// Both ways on the same numbers, judged by the interpreter of graphs; for every compiler its name, how many values are kept and how many products read panels.
fn both(text: &str, rng: &mut Rng) -> Vec<(String, usize, usize)> {
    let found = both_of(&parse("test", text).unwrap(), rng).into_iter();
    found
        .map(|(name, kept, frozen)| (name, kept, frozen.packed))
        .collect()
}

fn both_of(graph: &Graph, rng: &mut Rng) -> Vec<(String, usize, Frozen)> {
    both_at(graph, rng, None)
}

/// The same of a graph whose symbols have this size.
fn both_at(graph: &Graph, rng: &mut Rng, size: Option<i64>) -> Vec<(String, usize, Frozen)> {
    let inputs: Vec<HostTensor> = (graph.inputs.iter())
        .map(|&value| {
            let ty = graph.ty(value);
            let sizes = ty.shape.iter().map(|n| n.eval(&|_| size).unwrap());
            let shape: Vec<i64> = sizes.collect();
            let count = shape.iter().product::<i64>();
            let values: Vec<f64> = (0..count).map(|_| rng.uniform(-1.0, 1.0)).collect();
            HostTensor::from_f64(ty.dtype, &shape, &values).unwrap()
        })
        .collect();
    let exact = run(graph, &inputs).unwrap();
    let each = |compiler: &Compiler| {
        let inputs: Vec<Tensor> = inputs.iter().map(|x| passed(compiler, x)).collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let plain = compiler.compile(graph).unwrap().run(&inputs).unwrap();
        let frozen = compiler.compile_frozen(graph).unwrap().unwrap();
        let kept = frozen.prepare(&inputs).unwrap();
        let mut passed: Vec<&Tensor> = frozen.main_inputs.iter().map(|&i| inputs[i]).collect();
        passed.extend(&kept);
        let got = frozen.main.run(&passed).unwrap();
        let format = |dtype| match dtype {
            DType::F64 => compare::F64,
            _ => compare::F32,
        };
        for ((got, plain), exact) in got.iter().zip(&plain).zip(&exact) {
            let (ours, theirs) = (elements(got), elements(plain));
            compare::agrees(&format(exact.dtype), &ours, &theirs, &exact.to_f64())
                .unwrap_or_else(|e| panic!("{}: {e}\n{graph}", compiler.target().name()));
        }
        let name = compiler.target().name().to_owned();
        (name, kept.len(), frozen)
    };
    compilers().iter().map(each).collect()
}

/// What is found on machines with vectors.
fn on_vectors(found: &[(String, usize, usize)]) -> Vec<(usize, usize)> {
    let vectors = found.iter().filter(|(name, ..)| name.starts_with("avx"));
    vectors.map(|&(_, kept, packed)| (kept, packed)).collect()
}

#[test]
fn panels_give_what_the_operand_gives() {
    let mut rng = Rng::new(11);
    let mut shapes = vec![(17, 33, 64), (61, 50, 129), (24, 80, 1500)];
    shapes.extend((0..3).map(|_| {
        let (m, n) = (rng.between(17, 50), rng.between(20, 90));
        (m, n, rng.between(100, 250))
    }));
    for (m, n, k) in shapes {
        for (dtype, turned) in [("f32", true), ("f32", false), ("f64", true)] {
            let (weight, view) = match turned {
                true => (format!("{n}, {k}"), "permute %w, dims=[1, 0]".to_owned()),
                false => (format!("{k}, {n}"), "view %w".to_owned()),
            };
            let text = format!(
                "graph @f(%x: {dtype}[{m}, {k}] cpu, %w: {dtype}[{weight}] cpu frozen, %c: {dtype}[{n}] cpu frozen) {{
  %t: {dtype}[{k}, {n}] = {view}
  %y: {dtype}[{m}, {n}] = addmm %c, %x, %t, beta=1, alpha=1
  %z: {dtype}[{m}, {n}] = relu %y
  return %z
}}"
            );
            for found in on_vectors(&both(&text, &mut rng)) {
                assert_eq!(found, (1, 1), "{text}");
            }
        }
    }
}

/// How many rows a call brings says nothing about a weight's panels; a first operand that is turned has steps that only the call knows.
#[test]
fn panels_serve_any_number_of_rows() {
    let text = "sym s0: 1.. hint 40
graph @f(%x: f32[s0, 200] cpu, %z: f32[200, s0] cpu, %w: f32[200, 70] cpu frozen) {
  %t: f32[s0, 200] = permute %z, dims=[1, 0]
  %a: f32[s0, 70] = mm %x, %w
  %b: f32[s0, 70] = mm %t, %w
  %y: f32[s0, 70] = sub %a, %b
  return %y
}";
    let graph = parse("test", text).unwrap();
    let mut rng = Rng::new(13);
    for size in [1, 17, 40, 131] {
        for (name, kept, frozen) in both_at(&graph, &mut rng, Some(size)) {
            if name.starts_with("avx") {
                assert_eq!((kept, frozen.packed), (1, 2), "{name}, {size} rows");
            }
        }
    }
}

#[test]
fn work_on_weights_is_done_once() {
    let text = "graph @f(%x: f32[20, 64] cpu, %w: f32[64, 48] cpu frozen, %s: f32[48] cpu frozen) {
  %e: f32[48] = exp %s
  %v: f32[64, 48] = mul %w, %e
  %y: f32[20, 48] = mm %x, %v
  %z: f32[20, 48] = add %y, %e
  return %z
}";
    for found in on_vectors(&both(text, &mut Rng::new(12))) {
        assert_eq!(found, (2, 1));
    }
}

#[test]
fn a_batch_norm_is_part_of_the_weight() {
    let text = "graph @f(%x: f32[2, 3, 12, 12] cpu, %w: f32[8, 3, 3, 3] cpu frozen, %s: f32[8, 1, 1] cpu frozen, %b: f32[8, 1, 1] cpu frozen) {
  %c: f32[2, 8, 12, 12] = convolution %x, %w, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1
  %p: f32[2, 8, 12, 12] = mul %c, %s
  %y: f32[2, 8, 12, 12] = add %p, %b
  %z: f32[2, 8, 12, 12] = relu %y
  return %z
}";
    for (target, kept, packed) in both(text, &mut Rng::new(13)) {
        assert_eq!((kept, packed), (1, 0), "{target}");
    }
}

#[test]
fn two_weights_share_a_plan_and_an_unfrozen_graph_has_its_own() {
    let text = |frozen: &str| {
        format!(
            "graph @f(%x: f32[20, 64] cpu, %w: f32[64, 48] cpu{frozen}) {{
  %y: f32[20, 48] = mm %x, %w
  return %y
}}"
        )
    };
    let compiler = &compilers()[0];
    let graph = |frozen| parse("test", &text(frozen)).unwrap();
    let plain = compiler.compile(&graph("")).unwrap();
    let first = compiler.compile_frozen(&graph(" frozen")).unwrap().unwrap();
    let again = compiler.compile_frozen(&graph(" frozen")).unwrap().unwrap();
    assert!(std::sync::Arc::ptr_eq(&first.main, &again.main));
    assert!(!std::sync::Arc::ptr_eq(&first.main, &plain));
    assert!(compiler.compile_frozen(&graph("")).unwrap().is_none());
}

/// One thing that is done to images.
enum Step {
    Convolution(ValueId, Convolution),
    /// Something frozen for each channel.
    Bias(ValueId),
    Relu,
    /// An earlier value of the same shape is added.
    Residual,
    Pool,
    /// Each channel is multiplied by what its mean says.
    Gate,
    /// Channels of an earlier value behind these.
    Cat,
}

/// A few convolutions of images with frozen weights, and what stands between them in models.
fn network(rng: &mut Rng) -> Result<(Graph, usize)> {
    let mut b = Builder::new("network");
    let sizes = |shape: &[i64]| shape.iter().copied().map(Expr::from).collect();
    let mut number = |low, high| rng.between(low, high);
    let (batch, mut size) = (number(1, 2), number(8, 11));
    let mut channels = number(1, 17);
    let x = b.input(
        "x",
        DType::F32,
        sizes(&[batch, channels, size, size]),
        Device::Cpu,
    )?;
    let (mut steps, mut convolutions) = (Vec::new(), 0);
    while steps.len() < 7 {
        let name = format!("w{}", steps.len());
        let frozen = |b: &mut Builder, shape: &[i64]| -> Result<ValueId> {
            let value = b.input(&name, DType::F32, sizes(shape), Device::Cpu)?;
            let at = b.graph().inputs.len() - 1;
            b.freeze(at);
            Ok(value)
        };
        let kind = if convolutions == 0 { 0 } else { number(0, 8) };
        steps.push(match kind {
            0..=2 => {
                let (kernel, n) = (number(1, 3), number(16, 19));
                let stride = if size > 5 { number(1, 2) } else { 1 };
                let how = Convolution {
                    stride: vec![stride; 2],
                    padding: vec![kernel / 2; 2],
                    dilation: vec![1; 2],
                    groups: 1,
                };
                let weight = frozen(&mut b, &[n, channels, kernel, kernel])?;
                (channels, convolutions) = (n, convolutions + 1);
                size = (size + 2 * (kernel / 2) - kernel) / stride + 1;
                Step::Convolution(weight, how)
            }
            3 => Step::Bias(frozen(&mut b, &[channels, 1, 1])?),
            4 => Step::Relu,
            5 => Step::Residual,
            6 if size > 4 => {
                size = (size + 2 - 3) / 2 + 1;
                Step::Pool
            }
            7 => {
                channels *= 2;
                Step::Cat
            }
            _ => Step::Gate,
        });
    }
    let (mut y, mut before) = (x, x);
    for step in &steps {
        let next = match step {
            Step::Convolution(weight, how) => b.convolution(y, *weight, None, how)?,
            Step::Bias(bias) => b.add(y, *bias)?,
            Step::Relu => b.unary(Unary::Relu, y)?,
            Step::Residual if b.ty(before) == b.ty(y) => b.add(before, y)?,
            Step::Residual => b.add(y, y)?,
            Step::Pool => {
                let length = b.ty(y).shape[2].as_const().unwrap();
                let windows = [2, 3].map(|dim| Windows {
                    dim,
                    length,
                    count: (length - 1) / 2 + 1,
                    size: 3,
                    step: 2,
                    dilation: 1,
                    padding: 1,
                });
                b.max_pool(y, &windows)?[0]
            }
            Step::Gate => {
                let mean = b.mean(y, &[2, 3], true)?;
                let gate = b.unary(Unary::Sigmoid, mean)?;
                b.mul(y, gate)?
            }
            Step::Cat => b.cat(&[y, y], 1)?,
        };
        (before, y) = (y, next);
    }
    b.output(y);
    let mean = b.mean(y, &[2, 3], false)?;
    b.output(mean);
    Ok((b.finish()?, convolutions))
}

#[test]
fn images_keep_their_channels_last() {
    let mut rng = Rng::new(14);
    for _ in 0..12 {
        let (graph, convolutions) = network(&mut rng).unwrap();
        for (target, _, frozen) in both_of(&graph, &mut rng) {
            let images = frozen.images;
            assert!(images == 0 || images == convolutions, "{target}: {graph}");
            let text = frozen.text();
            assert_eq!(text.contains("convolutions"), images > 0, "{text}");
        }
    }
}

/// Lines, images and volumes; a kernel for each channel, groups of which a panel has one or several, and the last panel not full.
#[test]
fn weights_of_every_kind_are_panels() {
    let mut rng = Rng::new(15);
    let cases: [(&[i64], &[i64], usize); 9] = [
        (&[2, 20, 41], &[24, 20, 3], 1),
        (&[1, 24, 32], &[24, 1, 5], 24),
        (&[1, 32, 19], &[32, 4, 3], 8),
        (&[2, 37, 7, 6], &[37, 1, 3, 3], 37),
        (&[1, 32, 9, 8], &[32, 4, 3, 3], 8),
        (&[2, 16, 7, 5], &[32, 8, 3, 3], 2),
        (&[1, 64, 6, 7], &[64, 32, 3, 3], 2),
        (&[1, 17, 3, 6, 7], &[33, 17, 3, 3, 3], 1),
        (&[2, 6, 4, 5, 4], &[16, 6, 2, 1, 3], 1),
    ];
    for (x, weight, groups) in cases {
        let list = |sizes: &[i64]| {
            let sizes: Vec<String> = sizes.iter().map(i64::to_string).collect();
            sizes.join(", ")
        };
        let dims = x.len() - 2;
        let numbers = |n: i64| list(&vec![n; dims]);
        let mut out = vec![x[0], weight[0]];
        out.extend(x[2..].iter().zip(&weight[2..]).map(|(n, k)| n + 3 - k));
        let text = format!(
            "graph @f(%x: f32[{}] cpu, %w: f32[{}] cpu frozen) {{
  %y: f32[{}] = convolution %x, %w, stride=[{}], padding=[{}], dilation=[{}], groups={groups}
  return %y
}}",
            list(x),
            list(weight),
            list(&out),
            numbers(1),
            numbers(1),
            numbers(1)
        );
        let graph = parse("test", &text).unwrap();
        for (target, kept, frozen) in both_of(&graph, &mut rng) {
            if target.starts_with("avx") {
                assert_eq!((frozen.images, kept), (1, 1), "{target}: {text}");
                assert_eq!(frozen.main_inputs, [0], "{target}: {text}");
            }
        }
    }
}
