//! One suite, every target: each case gives the graph interpreter's result on the tile interpreter and on every level of this machine's processor, in the tile interpreter with the programs of
//! levels that it lacks, and becomes PTX that is launched on null devices, step by step and recorded: for each GPU target on an H200, and on a card of 16 multiprocessors and 4 GB.
//!
//! Cases are the files of `tests/filetests/graph` that run, those of `tests/filetests/run` (larger shapes, with seeded inputs), and random graphs.
//! `OXYFUEL_FUZZ=n` runs `n` random graphs instead of a few.

mod attention;
mod concatenations;
mod convolutions;
mod everywhere;
mod inputs;
mod judge;
#[expect(
    dead_code,
    reason = "elements in the memory of a GPU are for machines with one"
)]
mod memory;
mod products;
mod recorded;

use everywhere::{Machines, Outcome};
use inputs::{inputs_of, split};
use judge::{by_condition, closely};
use oxyfuel_base::Result;
use oxyfuel_graph::random::{self, Choices, Limits};
use oxyfuel_graph::{Graph, parse};
use oxyfuel_testkit::Case;
use oxyfuel_testkit::filetests::{Settings, run_dir};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::path::Path;

/// Files whose graphs a target cannot express yet: file, target (or its beginning), reason.
const IGNORED: &[(&str, &str, &str)] = &[];

fn conforms(case: &Case, machines: &Machines) -> std::result::Result<String, String> {
    let (text, rest) = split(&case.input);
    let graph = parse(&case.name, text).map_err(|e| e.to_string())?;
    let loaded = machines.load(&graph);
    let mut report = String::new();
    for inputs in inputs_of(&graph, rest)? {
        for outcome in machines.run_loaded(&graph, &loaded, &inputs, closely)? {
            let ignored = IGNORED.iter().any(|(file, target, _)| {
                *file == case.name && outcome.target().starts_with(target)
            });
            match outcome {
                Outcome::Agrees(_) => {}
                Outcome::NoLowering(..) if ignored => {}
                Outcome::NoLowering(target, why) | Outcome::Wrong(target, why) => {
                    report += &format!("{target}: {why}\n")
                }
            }
        }
    }
    if report.is_empty() {
        Ok("every target agrees".to_owned())
    } else {
        Err(report)
    }
}

fn root(folder: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/filetests")
        .join(folder)
}

#[test]
fn files_of_the_graph_agree_everywhere() {
    let machines = Machines::new();
    let mut failures = Vec::new();
    let mut count = 0;
    // These files expect the printed result, so the suite keeps its own tally instead of comparing texts.
    let failed = std::cell::RefCell::new(&mut failures);
    let counted = std::cell::RefCell::new(&mut count);
    let settings = Settings {
        bless: false,
        filter: Settings::from_env().filter,
    };
    run_dir(&root("graph"), &settings, |case| {
        if case.command == "run"
            && !case
                .path
                .components()
                .any(|part| part.as_os_str() == "errors")
        {
            **counted.borrow_mut() += 1;
            if let Err(why) = conforms(case, &machines) {
                failed.borrow_mut().push(format!("{}:\n{why}", case.name));
            }
        }
        Ok(String::new())
    });
    assert!(
        settings.filter.is_some() || count > 50,
        "only {count} files ran"
    );
    assert!(
        failures.is_empty(),
        "{} of {count} fail\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn larger_files_agree_everywhere() {
    let machines = Machines::new();
    let failed = std::cell::RefCell::new(Vec::new());
    oxyfuel_testkit::run_folder("run", |case| {
        let result = conforms(case, &machines);
        if let Err(why) = &result {
            failed.borrow_mut().push(format!("{}: {why}", case.name));
        }
        result
    });
    // A file may expect an error's text; that two machines disagree is nothing to expect.
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Values of the two symbols of a random graph: none, one, and some.
const ASSIGNMENTS: [[i64; 2]; 5] = [[3, 2], [1, 1], [0, 2], [2, 0], [6, 1]];
const LARGE_ASSIGNMENTS: [[i64; 2]; 5] = [[257, 2], [1, 3], [0, 2], [520, 1], [64, 0]];

#[test]
fn random_graphs_agree_everywhere() {
    random_graphs(false, any_graph);
}

#[test]
fn random_concatenations_agree_everywhere() {
    random_graphs(false, |choices, _| concatenations::program(choices, false));
}

#[test]
fn random_convolutions_agree_everywhere() {
    random_graphs(false, |choices, _| convolutions::program(choices));
}

#[test]
fn random_products_agree_everywhere() {
    random_graphs(false, |choices, _| products::program(choices));
}

#[test]
fn random_plain_products_agree_everywhere() {
    random_graphs(false, |choices, _| products::plain(choices));
}

#[test]
fn random_rows_of_products_agree_everywhere() {
    random_cases(24, false, |choices, _| products::reduced(choices));
}

#[test]
fn random_products_of_what_they_make_agree_everywhere() {
    random_cases(24, false, |choices, _| products::made(choices));
}

#[test]
fn random_attention_agrees_everywhere() {
    random_graphs(false, |choices, _| attention::program(choices));
}

#[test]
fn random_attention_written_out_agrees_everywhere() {
    random_graphs(false, |choices, _| attention::written(choices));
}

#[test]
fn random_products_of_cast_weights_agree_everywhere() {
    random_graphs(false, |choices, _| products::widened(choices));
}

#[test]
fn random_pairs_of_products_agree_everywhere() {
    random_graphs(false, |choices, _| products::pair(choices));
}

#[test]
fn random_steps_over_sets_of_tensors_agree_everywhere() {
    random_graphs(false, random::alike);
}

#[test]
fn random_concatenations_of_symbolic_sizes_are_compiled_once() {
    random_graphs(true, |choices, _| concatenations::program(choices, true));
}

#[test]
fn random_products_of_symbolic_sizes_are_compiled_once() {
    random_graphs(true, |choices, _| products::symbolic(choices));
}

#[test]
fn random_attention_of_symbolic_sizes_is_compiled_once() {
    // Each is compiled once and runs at four sizes.
    random_cases(24, true, |choices, _| attention::symbolic(choices));
}

#[test]
fn random_graphs_of_symbolic_sizes_are_compiled_once() {
    random_graphs(true, any_graph);
}

fn any_graph(choices: &mut Choices<'_>, limits: &Limits) -> Result<Graph> {
    random::graph(choices, limits)
}

fn random_graphs(symbols: bool, program: fn(&mut Choices<'_>, &Limits) -> Result<Graph>) {
    random_cases(64, symbols, program);
}

/// So many, where `OXYFUEL_FUZZ` does not say how many.
fn random_cases(
    count: u32,
    symbols: bool,
    program: fn(&mut Choices<'_>, &Limits) -> Result<Graph>,
) {
    let cases = std::env::var("OXYFUEL_FUZZ")
        .ok()
        .and_then(|n| n.parse().ok());
    let machines = Machines::new();
    let config = Config {
        cases: cases.unwrap_or(count),
        max_shrink_iters: 4000,
        // Milliseconds: a large graph takes long to run again and again.
        max_shrink_time: 30_000,
        failure_persistence: None,
        ..Config::default()
    };
    // A long search looks somewhere else each time; the short one is the same for everybody.
    let mut runner = match cases {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let small = Limits {
        symbols,
        steps: 40,
        ..Limits::default()
    };
    let large = Limits {
        large: true,
        steps: 12,
        elements: 12_000,
        ..small.clone()
    };
    let numbers = proptest::collection::vec(0u32..1 << 20, 0..300);
    let tally = std::cell::Cell::new((0u32, 0u32));
    let result = runner.run(&numbers, |numbers| {
        let mut choices = Choices::new(&numbers);
        let is_large = choices.flip();
        let limits = if is_large { &large } else { &small };
        let graph = program(&mut choices, limits).unwrap();
        let loaded = machines.load(&graph);
        let assignments = match (symbols, is_large) {
            (false, _) => &[[0; 2]][..],
            (true, false) => &ASSIGNMENTS,
            (true, true) => &LARGE_ASSIGNMENTS,
        };
        for values in assignments {
            let inputs = random::inputs_of(&graph, values, &mut choices).unwrap();
            if oxyfuel_graph::run(&graph, &inputs).is_err() {
                continue;
            }
            let shown = || format!("{graph}\n{}", judge::show(&inputs));
            let outcomes = machines
                .run_loaded(&graph, &loaded, &inputs, by_condition)
                .map_err(|why| TestCaseError::fail(format!("{why}\n{}", shown())))?;
            for outcome in outcomes {
                let (ran, skipped) = tally.get();
                match outcome {
                    Outcome::Agrees(_) => tally.set((ran + 1, skipped)),
                    Outcome::NoLowering(..) => tally.set((ran, skipped + 1)),
                    Outcome::Wrong(target, why) => {
                        return Err(TestCaseError::fail(format!("{target}: {why}\n{}", shown())));
                    }
                }
            }
        }
        Ok(())
    });
    let (ran, skipped) = tally.get();
    println!("{ran} runs agreed, {skipped} could not be expressed");
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
