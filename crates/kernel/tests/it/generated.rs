//! The generators reach the whole table.

use oxyfuel_kernel::generate::{Word, all_words, case, words};
use oxyfuel_kernel::{parse, verify};
use oxyfuel_testkit::Rng;
use std::collections::BTreeSet;

/// Ops that no generated program has, and why.
const NEVER: &[(&str, &str)] = &[
    ("tensor_load", "a copy engine, which only GPUs have"),
    ("tensor_store", "a copy engine, which only GPUs have"),
    ("copy_async", "into shared memory, which only GPUs have"),
    (
        "copy_commit",
        "of asynchronous copies, which only GPUs have",
    ),
    ("copy_wait", "for asynchronous copies, which only GPUs have"),
    (
        "barrier_init",
        "between warps, of which a CPU's instance has one",
    ),
    (
        "barrier_arrive",
        "between warps, of which a CPU's instance has one",
    ),
    (
        "barrier_wait",
        "between warps, of which a CPU's instance has one",
    ),
    ("roles", "of warps, of which a CPU's instance has one"),
];

fn never((name, _): Word) -> bool {
    NEVER.iter().any(|(never, _)| *never == name)
}

/// Programs of one seed.
fn numbers(seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    rng.next_u64();
    let count = 1 + rng.below(80);
    (0..count).map(|_| rng.below(1 << 20) as u32).collect()
}

#[test]
fn every_op_is_generated() {
    let mut seen = BTreeSet::new();
    for seed in 0..6000 {
        if let Some(case) = case(&numbers(seed)).unwrap() {
            seen.extend(words(&case.program));
        }
    }
    let missing: Vec<Word> = all_words()
        .into_iter()
        .filter(|&word| !seen.contains(&word) && !never(word))
        .collect();
    assert!(missing.is_empty(), "never generated: {missing:?}");
    let unknown: Vec<_> = NEVER
        .iter()
        .filter(|(name, _)| !all_words().iter().any(|(row, _)| row == name))
        .collect();
    assert!(unknown.is_empty(), "no ops of the table: {unknown:?}");
    let made: Vec<&Word> = seen.iter().filter(|word| never(**word)).collect();
    assert!(made.is_empty(), "generated after all: {made:?}");
}

#[test]
fn generated_cases_round_trip_and_run() {
    for seed in 0..300 {
        let Some(case) = case(&numbers(seed)).unwrap() else {
            continue;
        };
        let text = case.program.to_string();
        let read = parse("generated", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read, case.program.clone().compact(), "{text}");
        verify(&read).unwrap();
        case.interpret()
            .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", case.filetest()));
    }
}
