//! The table against PyTorch's own list: `core.txt` holds every overload that torch 2.15 tags `core`, one a line.

use oxyfuel_capture::aten::{self, Import};
use std::collections::{BTreeMap, HashSet};

/// Why an operator of PyTorch's core stays with the host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stays {
    /// Its result's size, or how much of its work there is, is in the data.
    Data,
    /// Numbers that must be those that eager draws; with numbers of ours it is compiled (`aten/random.rs`).
    Random,
    /// A product or a convolution, of which the host has a library.
    Library,
    /// Complex numbers, which no dtype of ours has.
    Complex,
    /// A form that writes to its arguments: AOTAutograd gives us the one that does not.
    Writes,
    /// A number of the host's program, which a graph has as an expression.
    Number,
}
use Stays::{Complex, Data, Library, Number, Random, Writes};

/// Every overload of PyTorch's core that is still external. One that is compiled goes; another one needs a reason from the list above.
const EXTERNAL: &[(&str, Stays)] = &[
    ("aten._embedding_bag.default", Data),
    ("aten._fft_c2r.default", Complex),
    ("aten._fft_r2c.default", Complex),
    ("aten._local_scalar_dense.default", Number),
    ("aten._native_batch_norm_legit.default", Writes),
    ("aten.atan2.out", Writes),
    ("aten.convolution_backward.default", Library),
    ("aten.native_dropout.default", Random),
    ("aten.nonzero.default", Data),
    ("aten.rand.default", Random),
    ("aten.randn.default", Random),
    ("aten.randperm.default", Random),
    ("aten.sym_numel.default", Number),
    ("aten.sym_size.int", Number),
    ("aten.sym_storage_offset.default", Number),
    ("aten.sym_stride.int", Number),
];

#[test]
fn the_core_operators_that_stay_with_the_host_are_these() {
    let external: Vec<&str> = include_str!("core.txt")
        .lines()
        .filter(|target| matches!(aten::find(target), Some(Import::External(_))))
        .collect();
    let listed: BTreeMap<&str, Stays> = EXTERNAL.iter().copied().collect();
    let without: Vec<_> = (external.iter())
        .filter(|target| !listed.contains_key(**target))
        .collect();
    assert!(without.is_empty(), "external without a reason: {without:?}");
    let compiled: Vec<_> = (listed.iter())
        .filter(|(target, _)| !external.contains(target))
        .collect();
    assert!(compiled.is_empty(), "not external any more: {compiled:?}");
}

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
