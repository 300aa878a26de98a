//! Programs that carried real weight while the IR was designed: tests run them, and targets take them as first inputs.
//!
//! | program | form | shows |
//! |---|---|---|
//! | [`bias_gelu`] | logical | pointwise with a broadcast operand and masked tails |
//! | [`bias_relu`] | logical | the same with streaming stores |
//! | [`softmax`] | logical | row reductions, two passes over one tile |
//! | [`mxint8_decode`] | logical | bits, shifts, a scale for each group |
//! | [`tiled_matmul`] | logical | `dot` in a loop with a carried accumulator |
//! | [`amx_matmul`] | mapped | two phases, a packed workspace, products on memory operands |
//! | [`wgmma_matmul`] | mapped | roles, tensor maps, barriers with parity, swizzled stages, asynchronous products |

mod amx;
mod logical;
mod wgmma;

pub use amx::amx_matmul;
pub use logical::{bias_gelu, bias_relu, mxint8_decode, softmax, tiled_matmul};
pub use wgmma::{Epilogue, WgmmaTile, wgmma_matmul};
