//! Products that a library of the machine's computes: what is left to it, and what is around it.

use oxyfuel_engine::{Options, Target, compile};
use oxyfuel_graph::parse;
use oxyfuel_plan::{Artefact, Plan};

fn planned(text: &str, library: bool) -> Plan {
    planned_for("sm_90a", text, library)
}

fn planned_for(target: &str, text: &str, library: bool) -> Plan {
    planned_with(target, text, library, Options::default())
}

fn planned_with(target: &str, text: &str, library: bool, options: Options) -> Plan {
    let target = Target::by_name(target).unwrap();
    let target = target.with_product_library(library);
    let graph = parse("library", text).unwrap();
    compile(&graph, &target, &options, false).unwrap().plan
}

const LINEAR: &str =
    "graph @linear(%x: f32[128, 256] cuda:0, %w: f32[512, 256] cuda:0, %b: f32[512] cuda:0) {
  %t: f32[256, 512] = permute %w, dims=[1, 0]
  %y: f32[128, 512] = addmm %b, %x, %t, beta=1, alpha=1
  %r: f32[128, 512] = relu %y
  return %r
}
";

#[test]
fn a_linear_layer_is_the_library_s_product_and_a_kernel_behind_it() {
    let plan = planned(LINEAR, true);
    let kernels: Vec<_> = plan.kernels.values().collect();
    assert_eq!(kernels.len(), 2);
    let gemm = kernels[0].gemm.as_ref().unwrap();
    assert_eq!([gemm.batch, gemm.m, gemm.n, gemm.k], [1, 128, 512, 256]);
    assert_eq!((gemm.a.strides, gemm.b.strides), ([256, 1], [1, 256]));
    assert_eq!(gemm.c.strides, [512, 1]);
    // A machine without the library has a kernel all the same.
    assert!(matches!(kernels[0].artefact, Artefact::Ptx(_)));
    assert!(kernels[1].gemm.is_none());
    let without = planned(LINEAR, false);
    assert_eq!(without.kernels.len(), 1);
    assert!(without.kernels.values().all(|kernel| kernel.gemm.is_none()));
}

#[test]
fn small_products_and_those_of_our_matrix_unit_are_ours() {
    let product_on = |target: &str, dtype: &str, m: i64, k: i64, n: i64| {
        let text = format!(
            "graph @p(%x: {dtype}[{m}, {k}] cuda:0, %w: {dtype}[{k}, {n}] cuda:0) {{\n  %y: {dtype}[{m}, {n}] = mm %x, %w\n  return %y\n}}\n"
        );
        let plan = planned_for(target, &text, true);
        plan.kernels.values().next().unwrap().gemm.is_some()
    };
    let product = |dtype, m, k, n| product_on("sm_90a", dtype, m, k, n);
    assert!(product("f32", 256, 256, 256) && product("f64", 256, 256, 256));
    assert!(!product("f32", 8, 8, 8) && !product("f32", 1, 4096, 4096));
    assert!(!product("bf16", 256, 256, 256) && !product("i32", 256, 256, 256));
    // A GPU whose unit our kernel of warp groups cannot use.
    assert!(product_on("sm_80", "bf16", 256, 256, 256));
}

#[test]
fn operands_are_rounded_to_tf32_where_that_is_asked_for_and_they_are_f32() {
    let rounded = |dtype: &str, tf32: bool| {
        let text = format!(
            "graph @p(%x: {dtype}[256, 256] cuda:0, %w: {dtype}[256, 256] cuda:0) {{\n  %y: {dtype}[256, 256] = mm %x, %w\n  return %y\n}}\n"
        );
        let options = Options {
            tf32,
            ..Options::default()
        };
        let plan = planned_with("sm_80", &text, true, options);
        plan.kernels
            .values()
            .next()
            .unwrap()
            .gemm
            .as_ref()
            .unwrap()
            .tf32
    };
    assert!(rounded("f32", true) && !rounded("f32", false));
    assert!(!rounded("f64", true) && !rounded("bf16", true));
}

#[test]
fn a_batch_of_halves_is_the_library_s() {
    let text = "graph @b(%x: bf16[8, 128, 64] cuda:0, %w: bf16[8, 128, 64] cuda:0) {
  %t: bf16[8, 64, 128] = permute %w, dims=[0, 2, 1]
  %y: bf16[8, 128, 128] = bmm %x, %t
  return %y
}
";
    let plan = planned(text, true);
    let gemm = plan.kernels.values().next().unwrap().gemm.clone().unwrap();
    assert_eq!([gemm.batch, gemm.m, gemm.n, gemm.k], [8, 128, 128, 64]);
    assert_eq!((gemm.b.batch_stride, gemm.b.strides), (128 * 64, [1, 64]));
    assert_eq!(gemm.c.batch_stride, 128 * 128);
}
