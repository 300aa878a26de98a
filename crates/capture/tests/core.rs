//! The table against PyTorch's own list: `core.txt` holds every overload that torch 2.15 tags `core`, one a line.

use oxyfuel_capture::aten::{self, Import};
use std::collections::HashSet;

#[test]
fn every_core_operator_has_a_row() {
    let missing: Vec<&str> = include_str!("core.txt")
        .lines()
        .filter(|target| aten::find(target).is_none())
        .collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}

#[test]
fn a_target_has_one_row() {
    let mut seen = HashSet::new();
    for (target, _) in aten::rows() {
        assert!(seen.insert(target), "two rows for {target}");
        assert!(
            target.split('.').count() == 3,
            "{target} is no overload's name"
        );
    }
}

#[test]
fn an_external_row_says_why() {
    for (target, import) in aten::rows() {
        if let Import::External(reason) = import {
            assert!(
                !reason.is_empty() && !reason.ends_with('.'),
                "{target}: {reason}"
            );
        }
    }
}
