//! A step of a cache moves the new rows only.

use oxyfuel_engine::{Options, Target, compile};
use oxyfuel_graph::parse;
use oxyfuel_plan::{Plan, Step};

/// Keys and values of 4096 places; one new row each, then attention over all.
const STEP: &str = "graph @step(%k: f32[2, 4, 4096, 64] cpu, %v: f32[2, 4, 4096, 64] cpu, %newk: f32[2, 4, 1, 64] cpu, %newv: f32[2, 4, 1, 64] cpu, %q: f32[8, 1, 64] cpu) {
  %ks: f32[2, 4, 1, 64] = slice %k, dim=2, start=1000, end=1001, step=1
  %kc: f32[2, 4, 1, 64] = copy %ks, %newk
  %k1: f32[2, 4, 4096, 64] = slice_scatter %k, %kc, dim=2, start=1000, end=1001, step=1
  %v1: f32[2, 4, 4096, 64] = slice_scatter %v, %newv, dim=2, start=1000, end=1001, step=1
  %kb: f32[8, 4096, 64] = view %k1
  %kt: f32[8, 64, 4096] = permute %kb, dims=[0, 2, 1]
  %s: f32[8, 1, 4096] = bmm %q, %kt
  %p: f32[8, 1, 4096] = _softmax %s, dim=2
  %vb: f32[8, 4096, 64] = view %v1
  %o: f32[8, 1, 64] = bmm %p, %vb
  return %o, %k1 into %k, %v1 into %v
}";

fn plan(text: &str) -> Plan {
    let graph = parse("test", text).unwrap();
    let target = Target::by_name("avx2").unwrap();
    compile(&graph, &target, &Options::default(), false)
        .unwrap()
        .plan
}

/// Bytes that all steps write, other than what attention itself does.
fn written(plan: &Plan) -> Vec<i64> {
    let bytes = plan.steps.iter().map(|step| match step {
        Step::Launch { kernel, .. } => plan.kernels[*kernel].cost.bytes_written.as_const(),
        Step::Copy { bytes, .. } => bytes.as_const(),
        Step::External(_) => None,
    });
    bytes.map(|bytes| bytes.unwrap()).collect()
}

#[test]
fn a_cache_step_moves_the_new_rows_only() {
    let plan = plan(STEP);
    let row = 2 * 4 * 64 * 4;
    let scores = 8 * 4096 * 4;
    let mut bytes = written(&plan);
    bytes.sort_unstable();
    // Two rows, and the result with a logarithm a query; scores stay inside of attention.
    assert_eq!(bytes, [row, row, row + 8 * 4]);
    // Nor is there memory for a second cache.
    assert!(
        plan.arena_bytes.as_const().unwrap() < 4 * scores,
        "{}",
        plan.arena_bytes
    );
}

#[test]
fn a_cache_whose_old_value_is_needed_is_copied() {
    let read = "%z: f32[] = sum %k1, dims=[0, 1, 2, 3], keepdim=false
  %old: f32[2, 4, 4096, 64] = add %k, %z
  return %o, %old,";
    let kept = STEP.replace("return %o,", read);
    let bytes = written(&plan(&kept));
    let cache = 2 * 4 * 4096 * 64 * 4;
    // The updated cache elsewhere, the result, and the cache written back.
    assert!(
        bytes.iter().filter(|&&b| b >= cache).count() == 3,
        "{bytes:?}"
    );
}
