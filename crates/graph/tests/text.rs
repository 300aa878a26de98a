//! Text: what is printed is read back, and what cannot be read is an error with a place.

use oxyfuel_base::{Code, DType, Error, Expr};
use oxyfuel_graph::{Builder, Device, Graph, HostTensor, Layout, parse, verify};

const EXAMPLE: &str = r#"sym s0: 1..4096 "batch"
graph @f(%x: f32[s0, 8] cpu required[8, 1] align 64, %b: f32[8] cpu) {
  const @half: f32[1] = [0.5]
  %2: f32[s0, 8] = add %x, %b
  %3: f32[s0, 8] = gelu %2, approximate="tanh" at "model.rs":12 from "mlp", "act"
  %4: f32[1] = constant id=@half
  %scaled: f32[s0, 8] chosen[8, 1] = mul %3, %4
  %6: f32[s0] = sum %scaled, dims=[1], keepdim=false
  %7: f32[s0, 8], %8: f32[s0, 1], %9: f32[s0, 1] = native_layer_norm %x, %b, rank=1, eps=1e-5
  %10: f32[] = full value=2.0
  %11: f32[s0, 3] = slice %7, dim=1, start=1, end=7, step=2
  %12: f32[3*s0] = view %11
  return %6, %10, %12, %scaled into %x
}
"#;

#[test]
fn the_example_round_trips() {
    let graph = parse("example", EXAMPLE).unwrap();
    verify(&graph).unwrap();
    assert_eq!(graph.to_string(), EXAMPLE);
    assert_eq!(parse("again", &graph.to_string()).unwrap(), graph);
}

fn built() -> Result<Graph, Error> {
    let mut b = Builder::new("built by hand");
    let n = b.symbol("n", 0, i64::MAX);
    let x = b.input(
        "x",
        DType::BF16,
        vec![n.clone(), Expr::from(6)],
        Device::Cuda(1),
    )?;
    let i = b.input("x", DType::I64, vec![n], Device::Cuda(1))?;
    let w = HostTensor::from_f64(DType::F16, &[2, 1], &[f64::NAN, -0.0])?;
    b.constant("weights", w, Device::Cpu)?;
    let y = b.mul(x, 0.1)?;
    let z = b.select(y, 0, 0)?;
    let w = b.gather(z, -1, i)?;
    b.set_layout(w, Layout::Required(vec![Expr::from(1)]));
    b.output(w);
    b.finish()
}

#[test]
fn a_built_graph_round_trips_with_its_places() {
    let graph = built().unwrap();
    let text = graph.to_string();
    assert!(text.contains("tests/text.rs\":"), "{text}");
    assert_eq!(parse("built", &text).unwrap(), graph, "{text}");
}

#[test]
fn errors_have_codes_and_places() {
    let cases = [
        ("", Code::Syntax, (1, 1)),
        ("graph @f() {\n  return %1\n}", Code::UnknownName, (2, 10)),
        (
            "graph @f(%x: f33[2] cpu) { return %x }",
            Code::UnknownName,
            (1, 14),
        ),
        (
            "graph @f(%x: f32[2 cpu) { return %x }",
            Code::Syntax,
            (1, 18),
        ),
        (
            "graph @f(%x: f32[2], %x: f32[2]) { return %x }",
            Code::DuplicateName,
            (1, 22),
        ),
        (
            "graph @f(%x: f32[2]) {\n  %y: f32[2] = rela %x\n  return %y\n}",
            Code::UnknownName,
            (2, 16),
        ),
        (
            "graph @f(%x: f32[2]) {\n  %y: f32[2] = gelu %x, approximate=\"no\"\n}",
            Code::UnknownName,
            (2, 37),
        ),
        (
            "graph @f(%x: f32[2]) {\n  %y: f32[] = sum %x, keepdim=true\n}",
            Code::Syntax,
            (2, 23),
        ),
        (
            "graph @f(%x: f32[2]) {\n  %y: f32[] = full value=1.0.0\n}",
            Code::InvalidLiteral,
            (2, 26),
        ),
        (
            "graph @f() {\n  const @c: f32[2] = [1.0]\n  return }",
            Code::InvalidLiteral,
            (2, 13),
        ),
        (
            "graph @f(%x: f32[2] cuda:99999999999) { return }",
            Code::InvalidLiteral,
            (1, 26),
        ),
        ("graph @f() { return } x", Code::Syntax, (1, 23)),
    ];
    let mut wrong = String::new();
    for (text, code, (line, col)) in cases {
        let e = parse("t", text).unwrap_err();
        let at = e.at.clone().unwrap();
        if (e.code, at.line, at.col) != (code, line, col) {
            wrong += &format!("{text}\nexpected {code} at {line}:{col}, got\n{e}\n\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn long_texts_are_read_in_linear_time() {
    let text = |nodes: usize| {
        let mut out = String::from("graph @f(%0: f32[2] cpu) {\n");
        for i in 1..=nodes {
            out += &format!("  %{i}: f32[2] = gelu %{}\n", i - 1);
        }
        out + &format!("  return %{nodes}\n}}\n")
    };
    let seconds = |text: &str| {
        let start = std::time::Instant::now();
        parse("long", text).unwrap();
        start.elapsed().as_secs_f64()
    };
    let (short, long) = (text(1_000), text(16_000));
    // A quadratic parser would take 256 times as long for 16 times the text; the margin is for a busy machine.
    let ratio = (0..3)
        .map(|_| seconds(&long) / seconds(&short))
        .fold(f64::INFINITY, f64::min);
    assert!(ratio < 100.0, "{ratio}");
}
