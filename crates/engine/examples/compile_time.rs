//! How long the compiler takes for the graphs that the project is judged by, step by step.
//!
//! `cargo run --release -p oxyfuel-engine --example compile_time [target]`

use oxyfuel_engine::{Options, Target, compile};
use std::time::{Duration, Instant};

const GRAPHS: &[(&str, &str)] = &[
    (
        "relu(x+b)*2 10M",
        "graph @f(%x: f32[10000000] cpu, %b: f32[10000000] cpu) {
  %two: f32[] = full value=2.0
  %s: f32[10000000] = add %x, %b
  %r: f32[10000000] = relu %s
  %y: f32[10000000] = mul %r, %two
  return %y
}",
    ),
    (
        "softmax 2048x2048",
        "graph @f(%x: f32[2048, 2048] cpu) {
  %y: f32[2048, 2048] = _softmax %x, dim=1
  return %y
}",
    ),
    (
        "layer_norm 2048x2048",
        "graph @f(%x: f32[2048, 2048] cpu, %w: f32[2048] cpu, %b: f32[2048] cpu) {
  %y: f32[2048, 2048], %m: f32[2048, 1], %r: f32[2048, 1] = native_layer_norm %x, %w, %b, rank=1, eps=1e-5
  return %y
}",
    ),
    (
        "gelu(x+b) 2048x2048",
        "graph @f(%x: f32[2048, 2048] cpu, %b: f32[2048] cpu) {
  %s: f32[2048, 2048] = add %x, %b
  %y: f32[2048, 2048] = gelu %s
  return %y
}",
    ),
    (
        "matmul 1024 f32",
        "graph @f(%a: f32[1024, 1024] cpu, %b: f32[1024, 1024] cpu) {
  %y: f32[1024, 1024] = mm %a, %b
  return %y
}",
    ),
    (
        "matmul 1024 bf16",
        "graph @f(%a: bf16[1024, 1024] cpu, %b: bf16[1024, 1024] cpu) {
  %y: bf16[1024, 1024] = mm %a, %b
  return %y
}",
    ),
];

fn main() {
    let options = Options {
        target: std::env::args().nth(1).unwrap_or_default(),
        ..Options::default()
    };
    let target = Target::host(&options).expect("a target");
    println!("target {}", target.name());
    for (name, text) in GRAPHS {
        let graph = oxyfuel_graph::parse(name, text).expect("a graph");
        let start = Instant::now();
        let cold = compile(&graph, &target, &options, false);
        let cold_time = start.elapsed();
        let compiled = match cold {
            Ok(compiled) => compiled,
            Err(error) => {
                println!("{name:<24} {error}");
                continue;
            }
        };
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            drop(compile(&graph, &target, &options, false));
            best = best.min(start.elapsed());
        }
        println!("{name:<24} first {cold_time:>9.2?}, best of 20 {best:>9.2?}");
        for step in &compiled.record.steps {
            println!("    {:<10} {:>9.1?}", step.name, step.time);
        }
        for kernel in compiled.plan.kernels.values() {
            println!(
                "    {} {}",
                kernel.name,
                kernel.note.as_deref().unwrap_or("")
            );
        }
    }
}
