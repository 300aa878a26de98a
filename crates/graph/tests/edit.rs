//! Edges, replacement, compaction, rebuilding; and the invariants that text cannot break.

use oxyfuel_base::{Code, DType, Expr, Result, Scalar};
use oxyfuel_graph::{
    Builder, Device, Graph, HostTensor, Op, Rebuild, Unary, ValueId, interp, parse, run, verify,
};

const TEXT: &str = "graph @f(%x: f32[2] cpu, %z: f32[2] cpu) {
  const @unused: f32[1] = [1.0]
  const @two: f32[1] = [2.0]
  %a: f32[2] = exp %x
  %b: f32[2] = add %a, %a
  %dead: f32[2] = neg %b
  %c: f32[1] = constant id=@two
  %d: f32[2] = mul %b, %c
  return %d, %d, %a
}
";

fn graph() -> Graph {
    let graph = parse("test", TEXT).unwrap();
    verify(&graph).unwrap();
    graph
}

fn named(graph: &Graph, name: &str) -> ValueId {
    graph
        .values
        .ids()
        .find(|&v| graph.values[v].name.as_deref() == Some(name))
        .unwrap()
}

#[test]
fn users_and_definitions() {
    let g = graph();
    let (users, definitions) = (g.users(), g.definitions());
    let [x, a, b, d] = ["x", "a", "b", "d"].map(|n| named(&g, n));
    assert_eq!(definitions[x], None);
    assert_eq!(g.nodes[definitions[b].unwrap()].out(), b);
    // A node that reads a value twice is one user.
    assert_eq!(
        (users.of(a).len(), users.outputs(a), users.count(a)),
        (1, 1, 2)
    );
    assert_eq!((users.of(d).len(), users.outputs(d)), (0, 2));
    assert_eq!(users.of(b).len(), 2);
    assert_eq!(g.live_nodes().len(), 4);
}

#[test]
fn compact_drops_what_is_dead_and_keeps_the_meaning() {
    let g = graph();
    let compact = g.compact().unwrap();
    verify(&compact).unwrap();
    assert_eq!((compact.nodes.len(), compact.constants.len()), (4, 1));
    let x = HostTensor::from_f64(DType::F32, &[2], &[0.0, 1.0]).unwrap();
    let inputs = [x.clone(), x];
    assert_eq!(run(&compact, &inputs), run(&g, &inputs));
}

#[test]
fn replace_rewires_and_compact_reorders() {
    let mut g = graph();
    let (x, a) = (named(&g, "x"), named(&g, "a"));
    // A node at the end takes the place of one at the start.
    let ty = g.ty(x).clone();
    let v = g.values.push(oxyfuel_graph::Value::new(ty));
    let node = g.nodes[g.definitions()[a].unwrap()].clone();
    g.replace(a, v);
    g.nodes.push(oxyfuel_graph::Node {
        op: Op::Unary(Unary::Relu),
        outputs: vec![v],
        ..node
    });
    assert_eq!(verify(&g).unwrap_err().code, Code::InvalidGraph);
    let fixed = g.compact().unwrap();
    verify(&fixed).unwrap();
    let text = fixed.to_string();
    assert!(text.contains("relu %x") && !text.contains("exp"), "{text}");
    let x = HostTensor::from_f64(DType::F32, &[2], &[-3.0, 1.5]).unwrap();
    assert_eq!(
        run(&fixed, &[x.clone(), x]).unwrap()[0].to_f64(),
        [0.0, 6.0]
    );
}

#[test]
fn a_cycle_is_an_error() {
    let mut g = graph();
    let (a, b) = (named(&g, "a"), named(&g, "b"));
    let exp = g.definitions()[a].unwrap();
    g.nodes[exp].inputs = vec![b];
    assert_eq!(g.compact().unwrap_err().code, Code::InvalidGraph);
    assert_eq!(verify(&g).unwrap_err().code, Code::InvalidGraph);
}

/// A pass as passes are written: exp(x) becomes exp2(x * log2 e).
fn rewrite_exp(g: &Graph) -> Result<Graph> {
    let mut rebuild = Rebuild::new(g);
    for (id, node) in g.nodes.iter() {
        if node.op != Op::Unary(Unary::Exp) {
            rebuild.copy(id)?;
            continue;
        }
        rebuild.at(id);
        let x = rebuild.get(node.inputs[0])?;
        let scaled = rebuild.builder.mul(x, std::f64::consts::LOG2_E)?;
        let out = rebuild.builder.exp2(scaled)?;
        rebuild.define(node.out(), out);
    }
    rebuild.finish()
}

#[test]
fn a_pass_takes_a_graph_and_returns_a_graph() {
    let g = graph();
    let new = rewrite_exp(&g).unwrap();
    verify(&new).unwrap();
    let x = HostTensor::from_f64(DType::F32, &[2], &[0.0, 1.0]).unwrap();
    let (old, new) = (
        run(&g, &[x.clone(), x.clone()]).unwrap(),
        run(&new, &[x.clone(), x]).unwrap(),
    );
    for (o, n) in old[0].to_f64().iter().zip(new[0].to_f64()) {
        assert!((o - n).abs() < 1e-5, "{o} {n}");
    }
}

#[test]
fn errors_point_at_the_callers_line() {
    let mut b = Builder::new("f");
    let x = b
        .input("x", DType::F32, vec![Expr::from(2)], Device::Cpu)
        .unwrap();
    let y = b
        .input("y", DType::F32, vec![Expr::from(3)], Device::Cpu)
        .unwrap();
    let line = line!() + 1;
    let errors = [
        b.add(x, y),
        b.softmax(x, 4),
        b.matmul(x, y),
        b.cat(&[x, y], 1),
        b.sum(x, &[3], false),
        b.arange(0, 1, 0, None, Device::Cpu),
    ];
    for e in errors {
        let at = e.unwrap_err().at.unwrap();
        assert!(
            at.file.ends_with("edit.rs") && at.line >= line && at.line < line + 12,
            "{at}"
        );
    }
}

#[test]
fn what_text_cannot_say_is_still_checked() {
    let mut b = Builder::new("f");
    let x = b.input("x", DType::BF16, vec![], Device::Cpu).unwrap();
    let y = b.full(0.1, vec![], DType::BF16, Device::Cpu).unwrap();
    let z = b.add(x, y).unwrap();
    b.output(z);
    let good = b.finish().unwrap();

    let breaks: [fn(&mut Graph); 6] = [
        |g| {
            if let Some(Op::Full { value, .. }) = g.nodes.values_mut().next().map(|n| &mut n.op) {
                *value = Scalar::F(0.1);
            }
        },
        |g| g.outputs[0].value = ValueId(99),
        |g| g.nodes.values_mut().for_each(|n| n.outputs.clear()),
        |g| {
            g.values
                .values_mut()
                .for_each(|v| v.name = Some("same".to_owned()))
        },
        |g| g.name = "not a name".to_owned(),
        |g| g.inputs.clear(),
    ];
    for (i, damage) in breaks.iter().enumerate() {
        let mut bad = good.clone();
        damage(&mut bad);
        assert_eq!(
            verify(&bad).map_err(|e| e.code),
            Err(Code::InvalidGraph),
            "damage {i}"
        );
    }
}

#[test]
fn absurd_sizes_are_errors() {
    let mut b = Builder::new("f");
    let n = Expr::from(1i64 << 40);
    let x = b.input("x", DType::F32, vec![], Device::Cpu).unwrap();
    let y = b.expand(x, &[n.clone(), n.clone()]);
    // The product of the sizes does not fit into 64 bits.
    assert!(
        y.is_err() || {
            b.output(y.unwrap());
            b.clone().finish().is_err()
        }
    );

    let mut b = Builder::new("f");
    let x = b.input("x", DType::F32, vec![], Device::Cpu).unwrap();
    let y = b.expand(x, &[n]).unwrap();
    b.output(y);
    let graph = b.finish().unwrap();
    let x = HostTensor::from_f64(DType::F32, &[], &[1.0]).unwrap();
    assert_eq!(run(&graph, &[x]).unwrap_err().code, Code::TooLarge);
}

#[test]
fn symbolic_slices_clamp_as_python_does() {
    let mut b = Builder::new("f");
    let n = b.symbol("n", 0, 100);
    let x = b.input("x", DType::I64, vec![n], Device::Cpu).unwrap();
    let bounds = [
        (0, 4),
        (-3, i64::MAX),
        (2, -1),
        (5, 3),
        (1, 1000),
        (i64::MIN, 2),
    ];
    for (start, end) in bounds {
        let y = b.slice(x, 0, start, end, 1).unwrap();
        b.output(y);
    }
    let graph = b.finish().unwrap();
    for size in 0..8i64 {
        let values: Vec<i64> = (0..size).collect();
        let x = HostTensor::from_i64(DType::I64, &[size], &values).unwrap();
        for ((start, end), result) in bounds.iter().zip(run(&graph, &[x]).unwrap()) {
            let at = |i: i64| (if i < 0 { i.saturating_add(size) } else { i }).clamp(0, size);
            let want: Vec<f64> = (at(*start)..at(*end)).map(|i| i as f64).collect();
            assert_eq!(result.to_f64(), want, "[{start}:{end}] of {size}");
        }
    }
}

#[test]
fn digests_ignore_where_nodes_came_from() {
    let g = graph();
    let mut moved = g.clone();
    moved
        .nodes
        .values_mut()
        .for_each(|n| n.origin.ops.push("elsewhere".to_owned()));
    assert_eq!(g.digest().unwrap(), moved.digest().unwrap());
    assert_ne!(g.digest().unwrap(), g.compact().unwrap().digest().unwrap());
}

#[test]
fn one_node_can_be_folded() {
    let g = graph();
    let mul = g.definitions()[named(&g, "d")].unwrap();
    let b = HostTensor::from_f64(DType::F32, &[2], &[3.0, 4.0]).unwrap();
    let two = HostTensor::from_f64(DType::F32, &[1], &[2.0]).unwrap();
    assert_eq!(
        interp::fold(&g, mul, &[&b, &two]).unwrap()[0].to_f64(),
        [6.0, 8.0]
    );
    assert_eq!(
        interp::fold(&g, mul, &[&two, &two]).unwrap_err().code,
        Code::ShapeMismatch
    );
}
