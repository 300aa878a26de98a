//! What is counted is exact: bytes and operations of graphs whose figures can be worked out by hand. Times are a model and are not tested here.

use oxyfuel_engine::cost::operators;
use oxyfuel_engine::explain::{Bound, Explanation};
use oxyfuel_engine::{Basis, Figures, HostFigures, Level, Options, Target, compile, explain};
use oxyfuel_graph::{Graph, parse};
use oxyfuel_kernel::UnaryOp;
use oxyfuel_lower::maths::instructions;

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
    let target = Target::by_name("avx2").unwrap();
    let made = compile(graph, &target, &Options::default(), false).unwrap();
    let operators = operators(graph, &|_| None).unwrap();
    let (machine, guesses) = (machine(), graph.guesses());
    let basis = Basis {
        figures: Some(&machine),
        sizes: Some(&|symbol| guesses.get(&symbol).copied()),
        operators: Some(&operators),
        compile_time: None,
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
