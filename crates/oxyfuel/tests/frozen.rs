//! Frozen weights: what follows from them is computed once, a change is an error before anything runs, and memory has them once where that is asked for.

use oxyfuel::nn::{BatchNorm, Conv2d, Linear, Module};
use oxyfuel::{
    Bucket, Code, Compiled, Convolution, DType, Device, Error, Options, Tensor, compile,
    compile_graph, jit, parse_graph,
};
use std::sync::Mutex;

fn randn(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

/// Two linear layers, large enough that their kernels read panels.
fn layers() -> Compiled {
    let f = |x: &Tensor, v: &Tensor, w: &Tensor| x.matmul(v).relu().matmul(w);
    compile(f, Options::default()).unwrap()
}

fn arguments() -> [Tensor; 3] {
    [
        randn(&[64, 256], 1),
        randn(&[256, 192], 2),
        randn(&[192, 128], 3),
    ]
}

/// What is noted of the only variant.
fn note(notes: &oxyfuel::Explanation) -> &str {
    assert_eq!(notes.variants.len(), 1, "{notes}");
    notes.variants[0].notes.last().unwrap()
}

#[track_caller]
fn assert_stale(error: Error) {
    assert_eq!(error.code, Code::StaleFrozen, "{error}");
    assert!(error.help.is_some());
    assert!(error.at.unwrap().file.ends_with("frozen.rs"));
}

#[test]
fn weights_are_packed_once_and_results_are_the_same() {
    let [x, v, w] = arguments();
    let expected = numbers(&layers().call_one(&[&x, &v, &w]).unwrap());
    let frozen = layers().freeze(&[&v, &w]).unwrap();
    for _ in 0..3 {
        assert_eq!(numbers(&frozen.call_one(&[&x]).unwrap()), expected);
    }
    let report = frozen.explain();
    assert_eq!(
        note(&report),
        "frozen: 2 values are computed once, of 2 inputs; 2 products read weights in panels"
    );
    assert_eq!(report.variants[0].calls, 3);
    assert_eq!(report.variants[0].kernels.len(), 2);
    let mut outputs = [Tensor::zeros(&[64, 128], DType::F32)];
    frozen.call_into(&[&x], &mut outputs).unwrap();
    assert_eq!(numbers(&outputs[0]), expected);
}

#[test]
fn one_handle_serves_many_threads() {
    let [x, v, w] = arguments();
    let expected = numbers(&layers().call_one(&[&x, &v, &w]).unwrap());
    let frozen = layers().freeze(&[&v, &w]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(numbers(&frozen.call_one(&[&x]).unwrap()), expected));
        }
    });
}

#[test]
fn a_weight_that_was_written_is_an_error_until_it_is_frozen_again() {
    let [x, v, mut w] = arguments();
    let frozen = layers().freeze(&[&v, &w]).unwrap();
    // Also before the first call: it was frozen as it was then.
    w.fill_(1).unwrap();
    assert_stale(frozen.warm_up(&[&x]).unwrap_err());
    frozen.refreeze().unwrap();
    frozen.call(&[&x]).unwrap();
    // A part of it, by way of a view.
    w.slice(0, 0, 1, 1).fill_(2).unwrap();
    assert!(!frozen.is_valid());
    assert_stale(frozen.call(&[&x]).unwrap_err());
    assert_stale(frozen.call_one(&[&x]).unwrap_err());
    let mut outputs = [Tensor::zeros(&[64, 128], DType::F32)];
    assert_stale(frozen.call_into(&[&x], &mut outputs).unwrap_err());
    assert_eq!(numbers(&outputs[0]), vec![0.0; 64 * 128]);
    // Another kind of arguments does not see it either.
    assert_stale(frozen.call(&[&randn(&[80, 256], 4)]).unwrap_err());
    frozen.refreeze().unwrap();
    let expected = layers().call_one(&[&x, &v, &w]).unwrap();
    assert_eq!(
        numbers(&frozen.call_one(&[&x]).unwrap()),
        numbers(&expected)
    );
    assert_eq!(frozen.explain().variants.len(), 1);
}

#[test]
fn what_was_declared_invalid_is_an_error_until_it_is_frozen_again() {
    let [x, v, w] = arguments();
    let frozen = layers().freeze(&[&v, &w]).unwrap();
    let before = numbers(&frozen.call_one(&[&x]).unwrap());
    frozen.invalidate();
    assert!(!frozen.is_valid());
    assert_stale(frozen.call(&[&x]).unwrap_err());
    assert_stale(frozen.warm_up(&[&x]).unwrap_err());
    frozen.refreeze().unwrap();
    assert!(frozen.is_valid());
    assert_eq!(numbers(&frozen.call_one(&[&x]).unwrap()), before);
}

#[test]
fn a_weight_that_a_call_writes_is_noticed() {
    // The function writes to its argument, which is a weight of another one.
    let [x, v, mut w] = arguments();
    let frozen = layers().freeze(&[&v, &w]).unwrap();
    frozen.call(&[&x]).unwrap();
    let write = compile(
        |w: &Tensor| {
            let mut w = w.clone();
            w.add_(1.0).map(|()| w)
        },
        Options::default(),
    );
    write.unwrap().call(&[&w]).unwrap();
    assert_stale(frozen.call(&[&x]).unwrap_err());
    frozen.refreeze().unwrap();
    w.add_(1.0).unwrap();
    assert_stale(frozen.call(&[&x]).unwrap_err());
}

#[test]
fn tensors_that_a_function_captured_are_weights() {
    let layer = Linear::new(256, 128, true, DType::F32, 7);
    let mut weight = layer.weight.clone();
    let x = randn(&[64, 256], 1);
    let expected = numbers(&layer.forward(&x).relu());
    let f = compile(
        move |x: &Tensor| layer.forward(x).relu(),
        Options::default(),
    );
    let frozen = f.unwrap().freeze(&[]).unwrap();
    let found = numbers(&frozen.call_one(&[&x]).unwrap());
    for (a, b) in found.iter().zip(&expected) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
    assert!(note(&frozen.explain()).contains("1 products read weights in panels"));
    weight.mul_(2.0).unwrap();
    assert_stale(frozen.call(&[&x]).unwrap_err());
}

#[test]
fn a_batch_norm_becomes_part_of_the_convolution_before_it() {
    let how = Convolution {
        padding: vec![1, 1],
        ..Convolution::default()
    };
    let conv = Conv2d::new(8, 16, [3, 3], how, false, DType::F32, 1);
    let mut norm = BatchNorm::new(16, DType::F32);
    norm.running_mean = randn(&[16], 2);
    norm.running_var = randn(&[16], 3).abs() + 0.5;
    let x = randn(&[2, 8, 12, 12], 4);
    let expected = numbers(&norm.forward(&conv.forward(&x)).relu());
    let f = compile(
        move |x: &Tensor| norm.forward(&conv.forward(x)).relu(),
        Options::default(),
    );
    let frozen = f.unwrap().freeze(&[]).unwrap();
    let found = numbers(&frozen.call_one(&[&x]).unwrap());
    for (a, b) in found.iter().zip(&expected) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
    let report = frozen.explain();
    assert!(!note(&report).starts_with("frozen: 0 values"), "{report}");
}

#[test]
fn sizes_may_change_and_what_was_computed_is_shared() {
    let v = randn(&[256, 192], 2);
    let plain = compile(|x: &Tensor, v: &Tensor| x.matmul(v), Options::default()).unwrap();
    let bucketed = compile(|x: &Tensor, v: &Tensor| x.matmul(v), Options::default()).unwrap();
    let frozen = bucketed
        .bucket(Bucket::new(&[64, 96]).dim(0, 0))
        .unwrap()
        .freeze(&[&v])
        .unwrap();
    for rows in [64, 40, 96, 80, 1] {
        let x = randn(&[rows, 256], rows as u64);
        let expected = numbers(&plain.call_one(&[&x, &v]).unwrap());
        let found = numbers(&frozen.call_one(&[&x]).unwrap());
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-3, "{rows}: {a} {b}");
        }
    }
    let report = frozen.explain();
    let packed = |note: &String| note.contains("1 products read weights in panels");
    for variant in &report.variants {
        assert!(variant.notes.iter().any(packed), "{report}");
    }
    // Without buckets a size becomes a symbol.
    let frozen = compile(|x: &Tensor, v: &Tensor| x.matmul(v), Options::default()).unwrap();
    let frozen = frozen.freeze(&[&v]).unwrap();
    for rows in [64, 96, 80, 48] {
        let x = randn(&[rows, 256], rows as u64);
        let expected = numbers(&plain.call_one(&[&x, &v]).unwrap());
        let found = numbers(&frozen.call_one(&[&x]).unwrap());
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-3, "{rows}: {a} {b}");
        }
    }
    assert_eq!(frozen.explain().variants.len(), 2, "{}", frozen.explain());
}

/// Memory is the process's, so one test at a time measures it.
static MEMORY: Mutex<()> = Mutex::new(());

fn in_use() -> i64 {
    Device::cpu().memory_summary().unwrap().ours.live as i64
}

/// Of a weight that fills panels of any width, and whole pages.
const COLUMNS: i64 = 1536;

#[test]
fn memory_has_the_weights_once_when_they_are_released() {
    let _one = MEMORY.lock();
    const BYTES: i64 = 1024 * COLUMNS * 4;
    let x = randn(&[32, 1024], 1);
    let start = in_use();
    let w = randn(&[1024, COLUMNS], 2);
    let expected = numbers(&x.matmul(&w));
    let f = compile(|x: &Tensor, w: &Tensor| x.matmul(w), Options::default());
    let mut frozen = f.unwrap().freeze(&[&w]).unwrap();
    assert_eq!(
        frozen.release().unwrap_err().code,
        Code::InvalidArgument,
        "nothing stands for it yet"
    );
    let close = |y: &Tensor| {
        let found = numbers(y);
        let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-2;
        assert!(found.iter().zip(&expected).all(near));
    };
    close(&frozen.call_one(&[&x]).unwrap());
    // Other tests take a little meanwhile.
    let twice = 2 * BYTES - BYTES / 4..2 * BYTES + BYTES / 4;
    let held = in_use() - start;
    assert!(twice.contains(&held), "{held}");
    drop(w);
    assert!(twice.contains(&(in_use() - start)), "the handle holds it");
    frozen.release().unwrap();
    let left = in_use() - start;
    assert!((left - BYTES).abs() < BYTES / 4, "{left}");
    close(&frozen.call_one(&[&x]).unwrap());
    // Nothing can be computed of weights that are gone.
    assert_stale(frozen.call(&[&randn(&[48, 1024], 3)]).unwrap_err());
    assert_stale(frozen.refreeze().unwrap_err());
    close(&frozen.call_one(&[&x]).unwrap());
    frozen.invalidate();
    assert!(in_use() - start < BYTES / 4);
    assert_stale(frozen.call(&[&x]).unwrap_err());
}

#[test]
fn what_was_let_go_may_be_written() {
    let [x, mut v, mut w] = arguments();
    let f =
        |x: &Tensor, v: &Tensor, w: &Tensor| x.matmul(v) + w.slice(0, 0, 1, 1).slice(1, 0, 1, 1);
    let f = compile(f, Options::default()).unwrap();
    let mut frozen = f.freeze(&[&v, &w]).unwrap();
    let before = numbers(&frozen.call_one(&[&x]).unwrap());
    frozen.release().unwrap();
    // It stands in panels.
    v.fill_(0).unwrap();
    assert_eq!(numbers(&frozen.call_one(&[&x]).unwrap()), before);
    // Calls read it where it lies.
    w.fill_(0).unwrap();
    assert_stale(frozen.call(&[&x]).unwrap_err());
}

#[test]
fn kinds_of_arguments_share_the_panels() {
    let _one = MEMORY.lock();
    const BYTES: i64 = 1024 * COLUMNS * 4;
    let w = randn(&[1024, COLUMNS], 2);
    let start = in_use();
    let f = compile(
        |x: &Tensor, w: &Tensor| x.to(DType::F32).matmul(w),
        Options::default(),
    );
    let frozen = f.unwrap().freeze(&[&w]).unwrap();
    for dtype in [DType::F32, DType::F64, DType::I32] {
        frozen.call(&[&Tensor::ones(&[32, 1024], dtype)]).unwrap();
    }
    assert_eq!(frozen.explain().variants.len(), 3);
    let kept = in_use() - start;
    assert!((kept - BYTES).abs() < BYTES / 2, "{kept}");
    frozen.refreeze().unwrap();
    let kept = in_use() - start;
    assert!((kept - BYTES).abs() < BYTES / 2, "{kept}");
}

#[test]
fn a_graph_of_symbolic_sizes_can_be_frozen() {
    let text = "sym s0: 1..1024

graph @f(%x: f32[s0, 256] cpu, %w: f32[256, 128] cpu) {
  %half: f32[256, 128] = mul %w, %w
  %y: f32[s0, 128] = mm %x, %half
  return %y
}";
    let graph = parse_graph("f", text).unwrap();
    let (x, w) = (randn(&[64, 256], 1), randn(&[256, 128], 2));
    let f = compile_graph(graph.clone(), Options::default()).unwrap();
    let expected = numbers(&f.call_one(&[&x, &w]).unwrap());
    let frozen = f.freeze(&[&w]).unwrap();
    assert_eq!(numbers(&frozen.call_one(&[&x]).unwrap()), expected);
    assert!(note(&frozen.explain()).contains("1 values are computed once"));
    // A weight that does not fit.
    let f = compile_graph(graph, Options::default()).unwrap();
    let frozen = f.freeze(&[&randn(&[128, 256], 2)]).unwrap();
    assert_eq!(frozen.call(&[&x]).unwrap_err().code, Code::ShapeMismatch);
}

#[test]
fn what_does_not_fit_is_an_error_before_anything_runs() {
    let [x, v, w] = arguments();
    let all = [&x, &v, &w, &w];
    let code = |error: Error| error.code;
    assert_eq!(
        code(layers().freeze(&all).unwrap_err()),
        Code::ArityMismatch
    );
    let failed = &v + &w;
    assert_eq!(
        code(layers().freeze(&[&failed]).unwrap_err()),
        Code::ShapeMismatch
    );
    let call = |weights: &[&Tensor], inputs: &[&Tensor]| {
        let frozen = layers().freeze(weights).unwrap();
        code(frozen.call(inputs).unwrap_err())
    };
    assert_eq!(call(&[&w, &v], &[&x]), Code::ShapeMismatch);
    assert_eq!(call(&[&v, &w.to(DType::F64)], &[&x]), Code::DTypeMismatch);
    assert_eq!(call(&[&v, &w], &[&x, &x]), Code::ArityMismatch);
    assert_eq!(call(&[&v, &w], &[]), Code::ArityMismatch);
    assert_eq!(call(&[&v, &w], &[&x.t()]), Code::ShapeMismatch);
    assert_eq!(call(&[&v, &w], &[&x.to(DType::F64)]), Code::DTypeMismatch);
    // A function that writes to a weight.
    let write = |x: &Tensor, w: &Tensor| {
        let mut w = w.clone();
        w.add_(x).map(|()| x * 2.0)
    };
    let f = compile(write, Options::default()).unwrap();
    let frozen = f.freeze(&[&x]).unwrap();
    assert_eq!(
        code(frozen.call(&[&randn(&[64, 256], 5)]).unwrap_err()),
        Code::InvalidArgument
    );
    // A function that reads a tensor on its way.
    let read = |x: &Tensor, w: &Tensor| Ok::<_, Error>(x * w.sum(&[], false).item()?.as_f64());
    let frozen = compile(read, Options::default()).unwrap().freeze(&[&w]);
    assert_eq!(
        code(frozen.unwrap().call(&[&x]).unwrap_err()),
        Code::DataDependent
    );
}

#[test]
fn a_weight_that_is_returned_stays() {
    let f = compile(
        |x: &Tensor, w: &Tensor| (x + 1.0, w.t()),
        Options::default(),
    );
    let w = randn(&[4, 3], 1);
    let expected = numbers(&w.t());
    let mut frozen = f.unwrap().freeze(&[&w]).unwrap();
    let x = randn(&[2], 2);
    frozen.call(&[&x]).unwrap();
    drop(w);
    frozen.release().unwrap();
    assert_eq!(numbers(&frozen.call(&[&x]).unwrap()[1]), expected);
}

/// A structure of weights, with plain data beside them.
#[derive(Clone, oxyfuel::Tensors)]
struct Model {
    layers: Vec<Linear>,
    scale: f64,
}

fn model() -> Model {
    Model {
        layers: vec![
            Linear::new(256, 192, true, DType::F32, 7),
            Linear::new(192, 128, false, DType::F32, 8),
        ],
        scale: 0.5,
    }
}

fn forward(x: &Tensor, model: &Model) -> (Tensor, Tensor) {
    let mut hidden = x.clone();
    for layer in &model.layers {
        hidden = layer.forward(&hidden).relu();
    }
    (&hidden * model.scale, hidden)
}

#[test]
fn a_function_of_structures_has_its_last_argument_frozen() {
    let x = randn(&[64, 256], 1);
    let expected = numbers(&forward(&x, &model()).0);
    let frozen = jit(forward, Options::default()).unwrap();
    let mut frozen = frozen.freeze_with(model()).unwrap();
    let close = |found: &Tensor| {
        let found = numbers(found);
        let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
        assert!(found.iter().zip(&expected).all(near));
    };
    let nothing = frozen.release().unwrap_err();
    assert_eq!(nothing.code, Code::InvalidArgument, "never called");
    close(&frozen.call((&x,)).unwrap().0);
    assert_eq!(
        note(&frozen.explain()),
        "frozen: 2 values are computed once, of 2 inputs; 2 products read weights in panels"
    );
    let mut outputs = frozen.call((&x,)).unwrap();
    outputs.0.fill_(0).unwrap();
    frozen.call_into((&x,), &mut outputs).unwrap();
    close(&outputs.0);
    let given = x.clone();
    close(&frozen.call_donating((given.into(),)).unwrap().0);
    frozen.release().unwrap();
    close(&frozen.call((&x,)).unwrap().0);
    // Nothing can be computed of weights that are gone.
    assert_stale(frozen.call((&randn(&[48, 256], 3),)).unwrap_err());
    assert_stale(frozen.refreeze().unwrap_err());
}

#[test]
fn a_stale_handle_of_structures_is_an_error_before_anything_runs() {
    let x = randn(&[64, 256], 1);
    let weights = model();
    let mut weight = weights.layers[1].weight.clone();
    let frozen = jit(forward, Options::default()).unwrap();
    let frozen = frozen.freeze_with(weights.clone()).unwrap();
    // Also before the first call: it was frozen as it was then.
    weight.mul_(2.0).unwrap();
    assert!(!frozen.is_valid());
    assert_stale(frozen.warm_up((&x,)).unwrap_err());
    frozen.refreeze().unwrap();
    let mut outputs = frozen.call((&x,)).unwrap();
    let found = numbers(&outputs.0);
    let expected = numbers(&forward(&x, &weights).0);
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
    assert!(found.iter().zip(&expected).all(near));
    weight.mul_(2.0).unwrap();
    assert_stale(frozen.call((&x,)).unwrap_err());
    assert_stale(frozen.call_into((&x,), &mut outputs).unwrap_err());
    assert_stale(frozen.call_donating(((&x).into(),)).unwrap_err());
    assert_eq!(numbers(&outputs.0), found);
    frozen.refreeze().unwrap();
    frozen.call((&x,)).unwrap();
    frozen.invalidate();
    assert_stale(frozen.call((&x,)).unwrap_err());
    frozen.refreeze().unwrap();
    frozen.call((&x,)).unwrap();
}

#[test]
fn tensors_that_a_function_of_structures_captured_are_weights() {
    let weights = model();
    let mut weight = weights.layers[0].weight.clone();
    let f = move |x: &Tensor| forward(x, &weights).0;
    let frozen = jit(f, Options::default()).unwrap().freeze().unwrap();
    let x = randn(&[64, 256], 1);
    frozen.call((&x,)).unwrap();
    assert!(note(&frozen.explain()).contains("2 products read weights in panels"));
    weight.fill_(0).unwrap();
    assert_stale(frozen.call((&x,)).unwrap_err());
    // A weight that is no tensor of numbers.
    let mut failed = model();
    failed.layers[0].weight = randn(&[2, 3], 1) + randn(&[4], 2);
    let frozen = jit(forward, Options::default()).unwrap();
    let error = frozen.freeze_with(failed).map(drop).unwrap_err();
    assert_eq!(error.code, Code::ShapeMismatch);
}

#[test]
fn weights_of_a_file_are_frozen_and_released() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.oxy");
    let x = randn(&[64, 256], 1);
    let weights = model();
    let f = move |x: &Tensor| forward(x, &weights).0;
    let f = compile(f, Options::default()).unwrap();
    let expected = numbers(&f.call_one(&[&x]).unwrap());
    f.save(&path, &[&x]).unwrap();
    let mut loaded = oxyfuel::load(&path, Options::default())
        .unwrap()
        .freeze(&[])
        .unwrap();
    loaded.warm_up(&[&x]).unwrap();
    loaded.release().unwrap();
    let found = numbers(&loaded.call_one(&[&x]).unwrap());
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
    assert!(found.iter().zip(&expected).all(near));
    assert!(note(&loaded.explain()).contains("2 products read weights in panels"));
}
