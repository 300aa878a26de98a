//! Operators that deliberately stay with the host for now, and why.

use super::{Import::External, Row};

const LIBRARY: &str = "convolutions run in the host's library";
const BAGS: &str = "sums of rows whose number only the data says";
const RANDOM: &str = "random numbers come from the host's generator";
const DATA: &str = "its size depends on the data";
const COMPLEX: &str = "complex numbers are not in the vocabulary";
const SIZE: &str = "a size is an expression, not a node";
const MUTATES: &str = "writes to an argument";

pub(super) const ROWS: &[Row] = &[
    ("aten.convolution_backward.default", External(LIBRARY)),
    ("aten._native_batch_norm_legit.default", External(MUTATES)),
    ("aten._embedding_bag.default", External(BAGS)),
    (
        "aten.mode.default",
        External("how often elements occur is not in the vocabulary"),
    ),
    ("aten.native_dropout.default", External(RANDOM)),
    ("aten.rand.default", External(RANDOM)),
    ("aten.randn.default", External(RANDOM)),
    ("aten.randperm.default", External(RANDOM)),
    ("aten.nonzero.default", External(DATA)),
    (
        "aten._local_scalar_dense.default",
        External("its value is a size or a number of the host's program"),
    ),
    ("aten.atan2.out", External(MUTATES)),
    ("aten._fft_c2r.default", External(COMPLEX)),
    ("aten._fft_r2c.default", External(COMPLEX)),
    ("aten.sym_numel.default", External(SIZE)),
    ("aten.sym_size.int", External(SIZE)),
    ("aten.sym_storage_offset.default", External(SIZE)),
    ("aten.sym_stride.int", External(SIZE)),
];
