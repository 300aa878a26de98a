//! What is counted is exact: bytes and operations of graphs whose figures can be worked out by hand. Times are a model and are not tested here.

use oxyfuel_engine::cost::operators;
use oxyfuel_engine::explain::{Bound, Explanation, best_times};
use oxyfuel_engine::{
    Basis, Compiler, Figures, HostFigures, Level, Options, Target, compile, explain,
};
use oxyfuel_graph::{Graph, parse};
use oxyfuel_kernel::UnaryOp;
use oxyfuel_lower::maths::instructions;
use oxyfuel_runtime::tensor::Tensor;
use std::time::Duration;

/// A machine of round numbers.
fn machine() -> Figures {
    let level = |name: &str, bytes, bytes_per_second| Level {
        name: name.to_owned(),
        bytes,
        bytes_per_second,
    };
    Figures {
        threads: 1,
        levels: vec![
            level("cache", Some(1 << 20), 1e11),
            level("memory", None, 1e10),
        ],
        flops_per_second: 1e12,
        matrix_flops_per_second: None,
        launch_seconds: 1e-6,
        host: HostFigures {
            dispatch_seconds: 5e-6,
            view_seconds: 1e-6,
            call_seconds: 1e-5,
        },
    }
}

fn graph(text: &str) -> Graph {
    parse("test", text).unwrap()
}

fn explained(graph: &Graph) -> Explanation {
    explained_with(graph, None)
}

/// With what each step took.
fn explained_with(graph: &Graph, measured: Option<&[Duration]>) -> Explanation {
    let target = Target::by_name("avx2").unwrap();
    let made = compile(graph, &target, &Options::default(), false).unwrap();
    let operators = operators(graph, &|_| None).unwrap();
    let (machine, guesses) = (machine(), graph.guesses());
    let basis = Basis {
        figures: Some(&machine),
        sizes: Some(&|symbol| guesses.get(&symbol).copied()),
        operators: Some(&operators),
        compile_time: None,
        measured,
    };
    explain(&made.plan, &made.record, &basis)
}

/// Read, written and operations of every kernel.
fn counts(text: &str) -> Vec<(u64, u64, u64)> {
    let explained = explained(&graph(text));
    let kernels = explained.kernels.iter();
    kernels
        .map(|k| {
            (
                k.bytes_read.unwrap(),
                k.bytes_written.unwrap(),
                k.flops.unwrap(),
            )
        })
        .collect()
}

#[test]
fn elementwise_work_is_counted_once() {
    let text = "graph @f(%x: f32[1000] cpu, %b: f32[1000] cpu) {
  %s: f32[1000] = add %x, %b
  %r: f32[1000] = relu %s
  %y: f32[1000] = mul %r, %r
  return %y
}";
    assert_eq!(counts(text), [(8000, 4000, 3000)]);
}

#[test]
fn a_broadcast_operand_is_read_once() {
    let text = "graph @f(%x: f32[64, 100] cpu, %b: f32[100] cpu) {
  %y: f32[64, 100] = add %x, %b
  return %y
}";
    assert_eq!(counts(text), [(4 * (6400 + 100), 4 * 6400, 6400)]);
}

#[test]
fn only_what_a_slice_names_is_read() {
    let text = "graph @f(%x: f32[1000] cpu) {
  %a: f32[100] = slice %x, dim=0, start=0, end=100, step=1
  %b: f32[100] = slice %x, dim=0, start=500, end=600, step=1
  %y: f32[100] = add %a, %b
  return %y
}";
    assert_eq!(counts(text), [(2 * 400, 400, 100)]);
}

#[test]
fn two_ways_to_look_at_a_tensor_read_it_once() {
    let text = "graph @f(%x: f32[50, 50] cpu) {
  %t: f32[50, 50] = permute %x, dims=[1, 0]
  %y: f32[50, 50] = add %x, %t
  return %y
}";
    assert_eq!(counts(text), [(4 * 2500, 4 * 2500, 2500)]);
}

#[test]
fn a_table_is_read_where_it_is_looked_at() {
    let text = "graph @f(%w: f32[5000, 64] cpu, %i: i64[10] cpu) {
  %y: f32[10, 64] = embedding %w, %i
  return %y
}";
    assert_eq!(counts(text), [(4 * 640 + 8 * 10, 4 * 640, 0)]);
}

#[test]
fn functions_cost_what_their_expansion_does() {
    let text = "graph @f(%x: bf16[1000] cpu) {
  %y: bf16[1000] = exp %x
  return %y
}";
    let exp = u64::from(instructions(UnaryOp::Exp));
    assert_eq!(counts(text), [(2000, 2000, 1000 * exp)]);
}

#[test]
fn a_softmax_is_largest_difference_exponential_sum_and_quotient() {
    let text = "graph @f(%x: f32[32, 100] cpu) {
  %y: f32[32, 100] = _softmax %x, dim=1
  return %y
}";
    let exp = u64::from(instructions(UnaryOp::Exp));
    // The quotient is one reciprocal a row and a product an element.
    let flops = 3200 * (exp + 4) + 32;
    assert_eq!(counts(text), [(12800, 12800, flops)]);
}

#[test]
fn a_product_is_two_operations_a_triple() {
    let text = "graph @f(%a: f32[8, 16] cpu, %b: f32[16, 32] cpu) {
  %y: f32[8, 32] = mm %a, %b
  return %y
}";
    let read = 4 * (8 * 16 + 16 * 32);
    assert_eq!(counts(text), [(read, 4 * 8 * 32, 2 * 8 * 16 * 32)]);
}

#[test]
fn an_update_in_place_moves_what_it_brings() {
    let text = "graph @f(%k: f32[4096, 64] cpu, %n: f32[1, 64] cpu) {
  %y: f32[4096, 64] = slice_scatter %k, %n, dim=0, start=7, end=8, step=1
  return %y into %k
}";
    assert_eq!(counts(text), [(256, 256, 0)]);
}

#[test]
fn the_same_work_twice_is_one_kernel_launched_twice() {
    let text = "graph @f(%x: f32[64, 64] cpu, %y: f32[64, 64] cpu, %w: f32[64, 64] cpu) {
  %a: f32[64, 64] = mm %x, %w
  %b: f32[64, 64] = mm %a, %w
  %c: f32[64, 64] = mm %b, %w
  return %c
}";
    let said = explained(&graph(text));
    let launches: usize = said.kernels.iter().map(|kernel| kernel.launches).sum();
    assert_eq!(launches, 3);
    let verdict = said.verdict.unwrap();
    assert_eq!(verdict.compiled_bytes, 3 * 3 * 4 * 64 * 64);
}

#[test]
fn the_verdict_follows_from_the_figures() {
    let text = "graph @f(%x: f32[1048576] cpu) {
  %a: f32[1048576] = relu %x
  %b: f32[1048576] = add %a, %x
  %c: f32[1, 1048576] = view %b
  %y: f32[1, 1048576] = mul %c, %c
  return %y
}";
    let said = explained(&graph(text));
    let verdict = said.verdict.as_ref().unwrap();
    let tensor = 4.0 * 1_048_576.0;
    assert_eq!(verdict.compiled_bytes, 2 * (4 << 20));
    // relu moves two tensors, add three, mul two; the view none.
    assert_eq!(verdict.eager_bytes, 7 * (4 << 20));
    assert_eq!((verdict.eager_operators, verdict.eager_views), (3, 1));
    let compiled = 1e-5 + 1e-6 + 2.0 * tensor / 1e10;
    let eager = 3.0 * 5e-6 + 1e-6 + 7.0 * tensor / 1e10;
    assert!((verdict.compiled_seconds - compiled).abs() < 1e-9);
    assert!((verdict.eager_seconds - eager).abs() < 1e-9);
    assert!((verdict.gain - eager / compiled).abs() < 1e-6);
    assert_eq!(verdict.bound, Bound::Memory);
    assert!(verdict.break_even.is_some());
    assert!(!verdict.advice.is_empty() && !verdict.assumptions.is_empty());
    let text = said.to_string();
    assert!(text.contains("gain     about 3"), "{text}");
    let data = serde_json::to_value(&said).unwrap();
    assert_eq!(data["verdict"]["bound"], "memory");
    assert_eq!(data["kernels"][0]["bytes_read"], 4 << 20);
}

#[test]
fn numbers_of_symbols_are_guessed_where_they_are_not_known() {
    let text = "sym s0: 2..1000
graph @f(%x: f32[s0, 8] cpu) {
  %y: f32[s0, 8] = relu %x
  return %y
}";
    let graph = graph(text);
    let guess = *graph.guesses().values().next().unwrap();
    let said = explained(&graph);
    assert_eq!(said.kernels[0].bytes_read, Some(guess as u64 * 32));
    assert!(said.verdict.is_some());
}

#[test]
fn without_figures_there_are_counts_and_no_times() {
    let graph = graph(
        "graph @f(%x: f32[10] cpu) {
  %y: f32[10] = relu %x
  return %y
}",
    );
    let target = Target::by_name("sm_90a").unwrap();
    let made = compile(&graph, &target, &Options::default(), false).unwrap();
    let said = explain(&made.plan, &made.record, &Basis::default());
    assert_eq!(said.kernels[0].bytes, Some(80));
    assert!(said.kernels[0].expected.is_none() && said.verdict.is_none());
}

/// 2^21 elements in and out: 2^24 bytes, which take 1.678 ms of the machine's memory bandwidth.
const COPY: &str = "graph @f(%x: f32[2097152] cpu) {
  %y: f32[2097152] = neg %x
  return %y
}";

#[test]
fn a_measured_kernel_has_a_share_of_the_roofline() {
    let graph = graph(COPY);
    let without = explained(&graph);
    let kernel = &without.kernels[0];
    assert_eq!(
        (kernel.measured_seconds, kernel.roofline_share),
        (None, None)
    );
    assert!(without.measured.is_none());
    let text = without.to_string();
    assert!(text.contains("bound    by memory: about 1.7 ms expected, 100 % of memory bandwidth; data from the memory"), "{text}");
    assert!(!text.contains("measured 2.0"), "{text}");
    let with = explained_with(&graph, Some(&[Duration::from_millis(2)]));
    let kernel = &with.kernels[0];
    assert_eq!(kernel.measured_seconds, Some(2e-3));
    let share = kernel.roofline_share.unwrap();
    assert!((share - 0.838_860_8).abs() < 1e-6, "{share}");
    let whole = with.measured.unwrap();
    assert_eq!((whole.seconds, whole.roofline_share), (2e-3, Some(share)));
    let text = with.to_string();
    assert!(
        text.contains("measured 2.0 ms, 84 % of memory bandwidth"),
        "{text}"
    );
    assert!(
        text.contains("kernels  2.0 ms a call, 84 % of the machine's limits"),
        "{text}"
    );
}

#[test]
fn arithmetic_and_launches_bound_too() {
    let gelu = "graph @f(%x: f32[131072] cpu) {
  %a: f32[131072] = gelu %x
  %b: f32[131072] = gelu %a
  %y: f32[131072] = gelu %b
  return %y
}";
    let text = explained_with(&graph(gelu), Some(&[Duration::from_micros(100)])).to_string();
    assert!(
        text.contains("bound    by arithmetic") && text.contains("% of the peak of arithmetic"),
        "{text}"
    );
    let small = COPY.replace("2097152", "64");
    let said = explained_with(&graph(&small), Some(&[Duration::from_micros(2)]));
    assert_eq!(
        said.kernels[0].expected.as_ref().unwrap().bound,
        Bound::Launch
    );
    // 512 bytes from the cache take 5.12 ns of two microseconds.
    assert!((said.kernels[0].roofline_share.unwrap() - 0.002_56).abs() < 1e-6);
}

#[test]
fn every_step_is_measured_on_this_machine() {
    let options = Options::default();
    let target = Target::host(&options).unwrap();
    let device = target.device(&options).unwrap();
    let text = "graph @f(%x: f32[256, 256] cpu) {
  %s: f32[256] = sum %x, dims=[0], keepdim=false
  %m: f32[256, 256] = mm %x, %x
  %y: f32[256, 256] = add %m, %s
  return %y
}";
    let executable = Compiler::on(target, options, device.clone())
        .compile(&graph(text))
        .unwrap();
    let x = Tensor::empty_on(&*device, oxyfuel_base::DType::F32, &[256, 256]).unwrap();
    device
        .copy_in(&vec![0; x.storage().len()], x.storage(), 0)
        .unwrap();
    let times = best_times(&executable, &[&x]).unwrap();
    assert_eq!(times.len(), executable.plan().steps.len());
    assert!(
        times.iter().all(|time| *time < Duration::from_secs(10)),
        "{times:?}"
    );
    let basis = Basis {
        measured: Some(&times),
        ..Basis::default()
    };
    let said = explain(executable.plan(), executable.record(), &basis);
    assert!(
        said.kernels
            .iter()
            .all(|kernel| kernel.measured_seconds.is_some()),
        "{said}"
    );
    // What the machine can do is not known here.
    assert!(
        said.kernels
            .iter()
            .all(|kernel| kernel.roofline_share.is_none()),
        "{said}"
    );
    assert!(
        said.measured
            .is_some_and(|m| m.seconds > 0.0 && m.roofline_share.is_none())
    );
}
