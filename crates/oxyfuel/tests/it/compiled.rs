//! Compiled functions: variants and their reasons, captured tensors, threads, results in place.

use oxyfuel::{DType, Device, Options, Tensor, compile};
use std::sync::atomic::{AtomicBool, Ordering};

fn ones(shape: &[i64]) -> Tensor {
    Tensor::ones(shape, DType::F32)
}

#[test]
fn every_recompile_says_why() {
    let f = compile(|x: &Tensor, y: &Tensor| x + y, Options::default()).unwrap();
    let x = ones(&[4, 6]);
    f.call(&[&x, &x]).unwrap();
    f.call(&[&x, &x]).unwrap();
    let y = ones(&[5, 6]);
    f.call(&[&y, &y]).unwrap();
    f.call(&[&x, &x.to(DType::F64)]).unwrap();
    f.call(&[&x, &ones(&[6, 4]).t()]).unwrap();
    f.call(&[&x, &ones(&[6])]).unwrap();
    f.call(&[&x, &ones(&[25]).slice(0, 1, 25, 1).reshape(&[4, 6])])
        .unwrap();
    let explanation = f.explain();
    let reasons: Vec<Vec<String>> = explanation
        .variants
        .iter()
        .map(|v| v.reasons.clone())
        .collect();
    assert_eq!(reasons.len(), 6, "{explanation}");
    assert_eq!(explanation.variants[0].calls, 2);
    assert_eq!(reasons[0], ["first call"]);
    assert_eq!(reasons[1].len(), 2);
    assert!(
        reasons[1][0].starts_with("dim 0 of argument 0 is 5, was 4"),
        "{explanation}"
    );
    assert!(
        reasons[1][1].starts_with("dim 0 of argument 1 is 5, was 4"),
        "{explanation}"
    );
    assert!(
        reasons[2][0].starts_with("argument 1 is f64, was f32"),
        "{explanation}"
    );
    assert!(
        reasons[3][0].starts_with("argument 1 has strides [1, 4], had [6, 1]"),
        "{explanation}"
    );
    assert!(
        reasons[4][0].starts_with("argument 1 has 1 dims, had 2"),
        "{explanation}"
    );
    assert!(
        reasons[5][0].starts_with("argument 1 starts at a multiple of 4 bytes, was 64"),
        "{explanation}"
    );
    let text = explanation.to_string();
    for part in [
        "6 variants",
        "because: first call",
        "work     reads",
        "compiled in",
        "memory: inputs",
        "compiled.rs:",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn strides_of_single_elements_do_not_matter() {
    let f = compile(|x: &Tensor| x + 1.0, Options::default()).unwrap();
    f.call(&[&ones(&[1, 8])]).unwrap();
    f.call(&[&ones(&[2, 8]).slice(0, 0, 2, 2)]).unwrap();
    assert_eq!(f.explain().variants.len(), 1, "{}", f.explain());
}

#[test]
fn captured_tensors_are_read_at_every_call() {
    let mut weight = ones(&[8]);
    let held = weight.clone();
    let f = compile(move |x: &Tensor| x * &held + &held, Options::default()).unwrap();
    let x = Tensor::arange(0, 8, 1, DType::F32);
    let before = f.call_one(&[&x]).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(before, (0..8).map(|i| i as f32 + 1.0).collect::<Vec<_>>());
    weight.copy_(&Tensor::full(&[8], 10, DType::F32)).unwrap();
    let after = f.call_one(&[&x]).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(
        after,
        (0..8).map(|i| i as f32 * 10.0 + 10.0).collect::<Vec<_>>()
    );
    let (graph, captured) = f.graph(&[&x]).unwrap();
    assert_eq!((graph.inputs.len(), captured.len()), (2, 1));
}

#[test]
fn results_in_place() {
    let f = compile(
        |x: &Tensor, b: &Tensor| (x + b).relu() * 2.0,
        Options::default(),
    )
    .unwrap();
    let x = Tensor::randn(&[16, 32], DType::F32, 0);
    let b = Tensor::randn(&[32], DType::F32, 1);
    let mut out = [Tensor::zeros(&[16, 32], DType::F32)];
    let address = out[0].data_ptr().unwrap();
    f.call_into(&[&x, &b], &mut out).unwrap();
    assert_eq!(out[0].data_ptr().unwrap(), address);
    let expected = f.call_one(&[&x, &b]).unwrap();
    assert_eq!(
        out[0].to_vec::<f32>().unwrap(),
        expected.to_vec::<f32>().unwrap()
    );
}

#[test]
fn eight_threads_share_one_function() {
    let f = compile(
        |x: &Tensor, b: &Tensor| (x + b).gelu().softmax(-1),
        Options::default(),
    )
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let f = &f;
            scope.spawn(move || {
                // Two shapes, so that threads also meet in the compiler.
                let x = Tensor::randn(&[4 + thread % 2, 64], DType::F32, thread as u64);
                let b = Tensor::randn(&[64], DType::F32, 99);
                let expected = (&x + &b).gelu().softmax(-1).to_vec::<f32>().unwrap();
                for _ in 0..50 {
                    let y = f.call_one(&[&x, &b]).unwrap().to_vec::<f32>().unwrap();
                    for (a, b) in y.iter().zip(&expected) {
                        assert!((a - b).abs() < 1e-6);
                    }
                }
            });
        }
    });
    let explanation = f.explain();
    assert_eq!(explanation.variants.len(), 2, "{explanation}");
    assert_eq!(
        explanation.variants.iter().map(|v| v.calls).sum::<u64>(),
        400
    );
}

#[test]
fn functions_of_every_kind() {
    fn three(a: &Tensor, b: &Tensor, c: &Tensor) -> Tensor {
        a + b + c
    }
    let x = ones(&[3]);
    let call = |f: oxyfuel::Compiled, n: usize| {
        let outputs = f.call(&vec![&x; n]).unwrap();
        outputs
            .iter()
            .map(|t| t.to_vec::<f32>().unwrap()[0])
            .collect::<Vec<_>>()
    };
    let o = Options::default;
    assert_eq!(call(compile(three, o()).unwrap(), 3), [3.0]);
    assert_eq!(
        call(
            compile(|a: &Tensor, b: &Tensor| (a + b, a - b), o()).unwrap(),
            2
        ),
        [2.0, 0.0]
    );
    assert_eq!(
        call(
            compile(|a: &Tensor| [a + 1.0, a + 2.0, a + 3.0], o()).unwrap(),
            1
        ),
        [2.0, 3.0, 4.0]
    );
    assert_eq!(
        call(
            compile(
                |all: &[Tensor]| all.iter().map(|t| t * 2.0).collect::<Vec<_>>(),
                o()
            )
            .unwrap(),
            4
        ),
        [2.0; 4]
    );
    assert_eq!(
        call(
            compile(|a: &Tensor| oxyfuel::Result::Ok(a * 5.0), o()).unwrap(),
            1
        ),
        [5.0]
    );
    let eight = compile(
        |a: &Tensor,
         b: &Tensor,
         c: &Tensor,
         d: &Tensor,
         e: &Tensor,
         f: &Tensor,
         g: &Tensor,
         h: &Tensor| { a + b + c + d + e + f + g + h },
        o(),
    );
    assert_eq!(call(eight.unwrap(), 8), [8.0]);
}

#[test]
fn compiled_functions_compose() {
    let inner = compile(|x: &Tensor| x.relu() + 1.0, Options::default()).unwrap();
    let outer = compile(
        move |x: &Tensor| inner.call_one(&[&(x * 2.0)]).map(|y| y * 3.0),
        Options::default(),
    )
    .unwrap();
    let y = outer.call_one(&[&ones(&[4])]).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [9.0; 4]);
    assert_eq!(
        outer.explain().variants[0].kernels.len(),
        1,
        "{}",
        outer.explain()
    );
}

#[test]
fn identity_and_constants_come_back() {
    let f = compile(
        |x: &Tensor| (x.clone(), x.t(), x.new_full(&[2], 7, DType::I32)),
        Options::default(),
    )
    .unwrap();
    let x = Tensor::arange(0, 6, 1, DType::F32).reshape(&[2, 3]);
    let out = f.call(&[&x]).unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    assert_eq!(
        out[1].to_vec::<f32>().unwrap(),
        x.t().to_vec::<f32>().unwrap()
    );
    assert_eq!(out[2].to_vec::<i32>().unwrap(), [7, 7]);
    assert_eq!(out[0].device(), Device::Cpu);
}

#[test]
fn options_reach_the_compiler() {
    let x = Tensor::randn(&[9, 40], DType::F32, 0);
    let expected = x.softmax(-1).to_vec::<f32>().unwrap();
    for target in ["interpreter", ""] {
        let options = Options {
            target: target.to_owned(),
            threads: 1,
            verify: true,
            ..Options::default()
        };
        let f = compile(|x: &Tensor| x.softmax(-1), options).unwrap();
        let y = f.call_one(&[&x]).unwrap().to_vec::<f32>().unwrap();
        for (a, b) in y.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-6);
        }
        let interpreted = f.explain().variants[0].interpreted().count();
        assert_eq!(interpreted > 0, target == "interpreter");
    }
}

#[test]
fn plans_come_back_from_disk() {
    let dir = std::env::temp_dir().join(format!("oxyfuel-api-{}", std::process::id()));
    let options = Options {
        cache_dir: Some(dir.clone()),
        ..Options::default()
    };
    let x = ones(&[5, 5]);
    for round in 0..2 {
        let f = compile(|x: &Tensor| x.exp() + 1.0, options.clone()).unwrap();
        f.call(&[&x]).unwrap();
        let steps = &f.explain().variants[0].steps;
        assert_eq!(
            steps.iter().any(|(name, _)| *name == "emit"),
            round == 0,
            "{steps:?}"
        );
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// A layer norm, a softmax along a symbolic dim, a mean over everything and a product, of sizes that only a call knows.
const SYMBOLIC: &str = "sym s0: 0.. \"batch\"
sym s1: 0..4096 \"length\" hint 16
graph @block(%x: f32[s0, s1, 8] cpu, %w: f32[8] cpu) {
  %n: f32[s0, s1, 8], %m: f32[s0, s1, 1], %r: f32[s0, s1, 1] = native_layer_norm %x, %w, %w, rank=1, eps=1e-5
  %t: f32[s0, 8, s1] = permute %n, dims=[0, 2, 1]
  %scores: f32[s0, s1, s1] = bmm %n, %t
  %p: f32[s0, s1, s1] = _softmax %scores, dim=2
  %y: f32[s0, s1, 8] = bmm %p, %n
  %all: f32[] = mean %y, dims=[0, 1, 2], keepdim=false
  return %y, %all
}";

#[test]
fn a_graph_of_symbolic_sizes_is_compiled_once() {
    let graph = oxyfuel::parse_graph("block", SYMBOLIC).unwrap();
    let f = oxyfuel::compile_graph(graph.clone(), Options::default()).unwrap();
    let w = Tensor::randn(&[8], DType::F32, 7);
    for (batch, length) in [(2, 5), (1, 1), (3, 70), (1, 300), (0, 4), (4, 0), (2, 5)] {
        let x = Tensor::randn(&[batch, length, 8], DType::F32, 1);
        let ours = f.call(&[&x, &w]).unwrap();
        let host = |t: &Tensor| {
            let values: Vec<f64> = t
                .to_vec::<f32>()
                .unwrap()
                .into_iter()
                .map(f64::from)
                .collect();
            oxyfuel_graph::HostTensor::from_f64(DType::F32, t.shape(), &values).unwrap()
        };
        let expected = oxyfuel_graph::run(&graph, &[host(&x), host(&w)]).unwrap();
        for (ours, expected) in ours.iter().zip(&expected) {
            assert_eq!(ours.shape(), expected.shape);
            for (a, b) in ours.to_vec::<f32>().unwrap().iter().zip(expected.to_f64()) {
                let close = (f64::from(*a) - b).abs() <= 1e-4 * b.abs().max(1.0);
                assert!(close || (a.is_nan() && b.is_nan()), "{a} instead of {b}");
            }
        }
    }
    let explanation = f.explain();
    assert_eq!(explanation.variants.len(), 1);
    assert_eq!(explanation.variants[0].interpreted().count(), 0);
    assert_eq!(explanation.variants[0].memory.outputs, 4 * (2 * 5 * 8 + 1));
    let long = Tensor::randn(&[1, 5000, 8], DType::F32, 1);
    let error = f.call(&[&long, &w]).unwrap_err();
    assert_eq!(error.code, oxyfuel::Code::ShapeMismatch);
    assert!(error.message.contains("between 0 and 4096"), "{error}");
}

/// A panic of the user's function stays one, and leaves nothing locked or half captured.
#[test]
fn a_panic_of_the_function_is_its_own() {
    static ANGRY: AtomicBool = AtomicBool::new(true);
    let f = compile(
        |x: &Tensor| {
            let y = x + 1.0;
            assert!(!ANGRY.load(Ordering::Relaxed), "mine");
            y * 2.0
        },
        Options::default(),
    )
    .unwrap();
    let x = Tensor::ones(&[3], DType::F32);
    let call = || f.call_one(&[&x]);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"mine"));
    assert_eq!((&x + 1.0).to_vec::<f32>().unwrap(), [2.0; 3]);
    ANGRY.store(false, Ordering::Relaxed);
    assert_eq!(call().unwrap().to_vec::<f32>().unwrap(), [4.0; 3]);
    assert_eq!(f.explain().variants.len(), 1);
}
