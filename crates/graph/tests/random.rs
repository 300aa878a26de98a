//! Random programs: text, verifier, interpreter and edits agree with each other, and the parser survives anything.

use oxyfuel_base::{DType, Result};
use oxyfuel_graph::random::{self, Choices, Limits};
use oxyfuel_graph::{Category, Graph, HostTensor, Rebuild, bind, parse, run, verify};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn program(numbers: &[u32]) -> Result<(Graph, Vec<HostTensor>)> {
    let mut choices = Choices::new(numbers);
    let graph = random::graph(&mut choices, &Limits::default())?;
    let inputs = random::inputs(&graph, &mut choices)?;
    Ok((graph, inputs))
}

fn numbers() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0u32..1 << 20, 0..300)
}

proptest! {
    #[test]
    fn text_round_trips(numbers in numbers()) {
        let (graph, _) = program(&numbers).unwrap();
        let text = graph.to_string();
        let back = parse("random", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(&back, &graph, "{}", text);
        prop_assert_eq!(back.to_string(), text);
    }

    #[test]
    fn results_have_the_types_the_rules_say(numbers in numbers()) {
        let (graph, inputs) = program(&numbers).unwrap();
        let shapes: Vec<&[i64]> = inputs.iter().map(|t| t.shape.as_slice()).collect();
        let bindings = bind(&graph, &shapes).unwrap();
        // With a symbol of 0 there may be nothing to choose the largest of, or to look up; nothing else can fail.
        let results = match run(&graph, &inputs) {
            Err(e) => {
                let nothing = ["of no elements", "in a dimension of size 0"];
                prop_assert!(nothing.iter().any(|n| e.message.contains(n)), "{e}\n{graph}");
                return Ok(());
            }
            Ok(results) => results,
        };
        let want = random::result_shapes(&graph, &bindings).unwrap();
        for ((result, want), output) in results.iter().zip(want).zip(&graph.outputs) {
            prop_assert_eq!(&result.shape, &want, "{}", &graph);
            prop_assert_eq!(result.dtype, graph.ty(output.value).dtype);
        }
    }

    #[test]
    fn rebuilding_changes_nothing(numbers in numbers()) {
        let (graph, inputs) = program(&numbers).unwrap();
        let mut rebuild = Rebuild::new(&graph);
        for node in graph.nodes.ids() {
            rebuild.copy(node).unwrap();
        }
        let again = rebuild.finish().unwrap();
        verify(&again).unwrap();
        prop_assert_eq!(again.to_string(), graph.to_string());
        prop_assert_eq!(run(&again, &inputs), run(&graph, &inputs));
    }

    #[test]
    fn serialised_graphs_come_back(numbers in numbers()) {
        let (graph, _) = program(&numbers).unwrap();
        let bytes = postcard::to_stdvec(&graph).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Graph>(&bytes).unwrap(), graph);
    }

    #[test]
    fn the_parser_survives_any_text(text in "\\PC*") {
        let _ = parse("any", &text);
    }

    #[test]
    fn the_parser_survives_damaged_programs(numbers in numbers(), cuts in proptest::collection::vec((any::<prop::sample::Index>(), "[%@\\[\\](){},:=. 0-9a-z\"/-]{0,3}"), 1..6)) {
        let (graph, _) = program(&numbers).unwrap();
        let mut text: Vec<char> = graph.to_string().chars().collect();
        for (at, new) in cuts {
            let at = at.index(text.len());
            text.splice(at..(at + 1).min(text.len()), new.chars());
            if text.is_empty() {
                text.push(' ');
            }
        }
        let text: String = text.into_iter().collect();
        // What still parses must be judged without a panic; what is sound must print as itself and run or say why not.
        if let Ok(graph) = parse("damaged", &text)
            && verify(&graph).is_ok()
        {
            prop_assert_eq!(&parse("again", &graph.to_string()).unwrap(), &graph);
            let ranges = graph.ranges();
            let small = graph.values.values().all(|v| v.ty.numel().bounds(&ranges).hi < 100_000);
            if let (true, Ok(inputs)) = (small, random::inputs(&graph, &mut Choices::new(&numbers))) {
                let _ = run(&graph, &inputs);
            }
        }
    }
}

/// Ops that no random graph has, and why.
const NEVER: &[(&str, &str)] = &[("external", "the host's own operator, which needs a host")];

/// Types of the operands that every kind of product must have been given.
const PRODUCTS: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::BF16,
    DType::F16,
    DType::I64,
    DType::I32,
    DType::I8,
    DType::U8,
];

#[test]
fn random_programs_use_the_whole_vocabulary() {
    let mut rng = oxyfuel_testkit::Rng::new(1);
    let mut seen = BTreeSet::new();
    let mut products = BTreeSet::new();
    let (mut ran, mut nodes) = (0, 0);
    for n in 0..6000 {
        let numbers: Vec<u32> = (0..400).map(|_| rng.next_u32()).collect();
        let (graph, inputs) = program(&numbers).unwrap();
        if n < 300 {
            nodes += graph.nodes.len();
            ran += usize::from(run(&graph, &inputs).is_ok());
        }
        for node in graph.nodes.values() {
            seen.insert((node.op.name(), node.op.info().fixed));
            match node.op.category() {
                Category::Matmul | Category::Attention | Category::Convolution => {
                    products.insert((node.op.name(), graph.ty(node.inputs[0]).dtype));
                }
                Category::Pointwise
                | Category::Reduction
                | Category::Scan
                | Category::Sort
                | Category::View
                | Category::Indexing
                | Category::Source
                | Category::Composite
                | Category::Update
                | Category::External => {}
            }
        }
    }
    let never = |name: &str| NEVER.iter().any(|(never, _)| *never == name);
    let missing: Vec<_> = oxyfuel_graph::op::table()
        .filter(|row| !seen.contains(&(row.name, row.fixed)) && !never(row.name))
        .map(|row| (row.name, row.fixed))
        .collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
    let made: Vec<_> = seen.iter().filter(|(name, _)| never(name)).collect();
    assert!(made.is_empty(), "seen after all: {made:?}");
    let floats = [
        "mm_panels",
        "sdpa",
        "sdpa_backward",
        "convolution",
        "conv_panels",
    ];
    for name in ["mm", "bmm", "addmm"].iter().chain(&floats) {
        let types = PRODUCTS
            .iter()
            .filter(|dtype| !floats.contains(name) || dtype.is_float());
        let missing: Vec<_> = types
            .filter(|&&t| !products.contains(&(*name, t)))
            .collect();
        assert!(missing.is_empty(), "no {name} of {missing:?}");
    }
    for dtype in [DType::I8, DType::U8] {
        assert!(
            products.contains(&("_int_mm", dtype)),
            "no _int_mm of {dtype}"
        );
    }
    assert!(ran > 240, "only {ran} of 300 programs ran");
    assert!(nodes > 1500, "only {nodes} nodes in 300 programs");
}
