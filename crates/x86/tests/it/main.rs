//! Emitted code on this machine, against oracles.

mod filetests;
mod fuzz;
mod machine;
mod pointwise;
mod products;
mod programs;
mod walks;
