//! A model of many equal layers compiles one of them.

use std::fmt::Write as _;

use oxyfuel_engine::{Options, Target, compile};
use oxyfuel_graph::{Graph, parse};
use oxyfuel_plan::{Artefact, Plan};

/// A model of GPT-2's shape: 128 positions of 768 numbers, 12 heads; weights are inputs. The next token's scores are not part of it.
fn model(layers: usize) -> Graph {
    let mut head = "%x0: f32[128, 768] cpu".to_owned();
    let mut body = "  %scale: f32[] = full value=0.125\n".to_owned();
    for n in 0..layers {
        for (name, shape) in [
            ("w1", "768"),
            ("b1", "768"),
            ("wq", "768, 2304"),
            ("bq", "2304"),
            ("wo", "768, 768"),
            ("bo", "768"),
            ("w2", "768"),
            ("b2", "768"),
            ("wu", "768, 3072"),
            ("bu", "3072"),
            ("wd", "3072, 768"),
            ("bd", "768"),
        ] {
            let _ = write!(head, ", %{name}_{n}: f32[{shape}] cpu");
        }
        let next = n + 1;
        let _ = write!(
            body,
            "  %n{n}: f32[128, 768], %m{n}: f32[128, 1], %r{n}: f32[128, 1] = native_layer_norm %x{n}, %w1_{n}, %b1_{n}, rank=1, eps=1e-5
  %p{n}: f32[128, 2304] = addmm %bq_{n}, %n{n}, %wq_{n}, beta=1, alpha=1
"
        );
        for (i, part) in ["q", "k", "v"].iter().enumerate() {
            let (start, end) = (i * 768, (i + 1) * 768);
            let _ = write!(
                body,
                "  %{part}{n}: f32[128, 768] = slice %p{n}, dim=1, start={start}, end={end}, step=1
  %{part}a{n}: f32[1, 128, 12, 64] = view %{part}{n}
  %{part}h{n}: f32[1, 12, 128, 64] = permute %{part}a{n}, dims=[0, 2, 1, 3]
"
            );
        }
        let _ = write!(
            body,
            "  %y{n}: f32[1, 12, 128, 64], %l{n}: f32[1, 12, 128] = sdpa %qh{n}, %kh{n}, %vh{n}, causal=true, scale=0.125
  %t{n}: f32[1, 128, 12, 64] = permute %y{n}, dims=[0, 2, 1, 3]
  %tc{n}: f32[1, 128, 12, 64] = clone %t{n}
  %u{n}: f32[128, 768] = view %tc{n}
  %o{n}: f32[128, 768] = addmm %bo_{n}, %u{n}, %wo_{n}, beta=1, alpha=1
  %s{n}: f32[128, 768] = add %x{n}, %o{n}
  %c{n}: f32[128, 768], %d{n}: f32[128, 1], %e{n}: f32[128, 1] = native_layer_norm %s{n}, %w2_{n}, %b2_{n}, rank=1, eps=1e-5
  %f{n}: f32[128, 3072] = addmm %bu_{n}, %c{n}, %wu_{n}, beta=1, alpha=1
  %g{n}: f32[128, 3072] = gelu %f{n}, approximate=\"tanh\"
  %h{n}: f32[128, 768] = addmm %bd_{n}, %g{n}, %wd_{n}, beta=1, alpha=1
  %x{next}: f32[128, 768] = add %s{n}, %h{n}
"
        );
    }
    let text = format!("graph @model({head}) {{\n{body}  return %x{layers}\n}}\n");
    parse("model", &text).unwrap()
}

fn planned(layers: usize) -> Plan {
    let compiled = compile(
        &model(layers),
        &Target::by_name("avx512").unwrap(),
        &Options::default(),
        false,
    )
    .unwrap();
    let times = compiled.record.steps.iter();
    let times: Vec<String> = times.map(|s| format!("{} {:?}", s.name, s.time)).collect();
    let total = compiled.record.total();
    println!("{layers} layers: {total:?} ({})", times.join(", "));
    compiled.plan
}

#[test]
fn twelve_layers_have_the_kernels_of_two() {
    let (two, twelve) = (planned(2), planned(12));
    assert_eq!(twelve.steps.len(), 6 * two.steps.len());
    assert_eq!(twelve.kernels.len(), two.kernels.len());
    // Two norms, four products with what follows them, attention.
    assert!(two.kernels.len() <= 9, "{}", two.kernels.len());
    for kernel in twelve.kernels.values() {
        assert!(kernel.artefact != Artefact::Interpreted, "{}", kernel.name);
    }
}
