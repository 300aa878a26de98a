//! What a user expects to be one kernel is one kernel.

use oxyfuel_engine::{Options, Stage, Target, compile};
use oxyfuel_graph::parse;

fn kernels(text: &str) -> usize {
    let graph = parse("test", text).unwrap();
    let compiled = compile(&graph, &Target::interpreter(), &Options::default(), true).unwrap();
    println!("{}", compiled.record.text(Stage::Logical).unwrap());
    compiled.plan.kernels.len()
}

#[test]
fn add_relu_mul() {
    let text = "graph @f(%x: f32[1000] cpu, %b: f32[1000] cpu) {
  %two: f32[] = full value=2.0
  %s: f32[1000] = add %x, %b
  %r: f32[1000] = relu %s
  %y: f32[1000] = mul %r, %two
  return %y
}";
    assert_eq!(kernels(text), 1);
}

#[test]
fn softmax() {
    let text = "graph @f(%x: f32[64, 2048] cpu) {
  %y: f32[64, 2048] = _softmax %x, dim=1
  return %y
}";
    assert_eq!(kernels(text), 1);
}

#[test]
fn layer_norm() {
    let text = "graph @f(%x: f32[64, 100] cpu, %w: f32[100] cpu) {
  %y: f32[64, 100], %m: f32[64, 1], %r: f32[64, 1] = native_layer_norm %x, %w, %w, rank=1, eps=1e-5
  return %y
}";
    assert_eq!(kernels(text), 1);
}

#[test]
fn two_branches_that_meet() {
    let text = "graph @f(%x: f32[32, 64] cpu, %b: f32[64] cpu) {
  %s: f32[32, 64] = add %x, %b
  %t: f32[32, 64] = tanh %s
  %g: f32[32, 64] = sigmoid %x
  %y: f32[32, 64] = mul %t, %g
  return %y
}";
    assert_eq!(kernels(text), 1);
}

#[test]
fn a_product_takes_the_work_on_its_result() {
    let text = "graph @f(%a: f32[100, 64] cpu, %b: f32[64, 90] cpu, %c: f32[90] cpu) {
  %p: f32[100, 90] = addmm %c, %a, %b, beta=1, alpha=1
  %y: f32[100, 90] = relu %p
  return %y
}";
    assert_eq!(kernels(text), 1);
}

/// The PTX of a graph for Hopper.
fn ptx(text: &str) -> String {
    let graph = parse("test", text).unwrap();
    let target = Target::by_name("sm_90a").unwrap();
    let compiled = compile(&graph, &target, &Options::default(), true).unwrap();
    assert_eq!(compiled.plan.kernels.len(), 1);
    compiled.record.text(Stage::Code).unwrap().to_owned()
}

#[test]
fn a_product_on_hopper_is_one_of_warp_groups() {
    let product = |start: &str| {
        ptx(&format!(
            "graph @f(%a: bf16[512, 256] cpu{start}, %b: bf16[256, 512] cpu{start}) {{
  %y: bf16[512, 512] = mm %a, %b
  return %y
}}"
        ))
    };
    let code = product(" align 64");
    for part in [
        "wgmma.mma_async",
        "cp.async.bulk.tensor",
        "setmaxnreg",
        "stmatrix",
    ] {
        assert!(code.contains(part), "{part}");
    }
    // The copy engine takes no operand that may start anywhere.
    assert!(!product("").contains("cp.async.bulk.tensor"));
}

#[test]
fn aligned_inputs_are_read_sixteen_bytes_at_a_time() {
    let read = |start: &str| {
        ptx(&format!(
            "graph @f(%x: f32[65536] cpu{start}) {{
  %y: f32[65536] = relu %x
  return %y
}}"
        ))
    };
    assert!(read(" align 16").contains("ld.global.v4"));
    assert!(!read("").contains("ld.global.v4"));
}

#[test]
fn equal_layers_share_their_kernels() {
    let mut text = "graph @f(%x: f32[64, 256] cpu, %w: f32[256] cpu) {\n".to_owned();
    let mut last = "x".to_owned();
    for layer in 0..6 {
        text += &format!(
            "  %a{layer}: f32[64, 256] = _softmax %{last}, dim=1
  %b{layer}: f32[64, 256] = mul %a{layer}, %w
  %s{layer}: f32[256] = sum %b{layer}, dims=[0], keepdim=false
  %c{layer}: f32[64, 256] = sub %b{layer}, %s{layer}\n"
        );
        last = format!("c{layer}");
    }
    text += &format!("  return %{last}\n}}\n");
    let graph = parse("test", &text).unwrap();
    let target = Target::interpreter();
    let options = Options::default();
    let plan = compile(&graph, &target, &options, false).unwrap().plan;
    // The first softmax reads the input alone, the last subtraction feeds no softmax.
    assert!(plan.steps.len() >= 12, "{}", plan.steps.len());
    assert!(plan.kernels.len() <= 4, "{}", plan.kernels.len());
}

#[test]
fn unlike_shapes_that_share_a_number_do_not_become_their_product() {
    let text =
        "graph @f(%w: f32[] cpu, %a: f32[64, 32] cpu, %b: f32[65, 32] cpu, %c: f32[66, 32] cpu) {
  %s: f32[] = exp %w
  %x: f32[64, 32] = mul %a, %s
  %y: f32[65, 32] = mul %b, %s
  %z: f32[66, 32] = mul %c, %s
  return %x, %y, %z
}";
    let graph = parse("test", text).unwrap();
    let compiled = compile(&graph, &Target::interpreter(), &Options::default(), true).unwrap();
    for kernel in compiled.plan.kernels.values() {
        let instances = kernel.phases.iter().flat_map(|phase| &phase.grid);
        let count: i64 = instances.map(|e| e.as_const().unwrap()).product();
        assert!(count <= 66 * 32, "{} runs {count} times", kernel.name);
    }
}
