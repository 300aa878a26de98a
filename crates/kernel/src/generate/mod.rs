//! Random programs for fuzzers: any list of numbers is a program, so that a shorter list of lower numbers is a smaller program.
//!
//! All touch memory only inside of bounds. Those of [`case()`] say every rounding, so that each target has to give the interpreter's bits; those that do not are marked
//! ([`Case::open`]). [`words()`] says what a program is made of: tests see to it that nothing of the table is left out.
//!
//! | kind | what it varies |
//! |---|---|
//! | [`generate()`] | shapes of one to three dims, loops, scans, reductions along any axis |
//! | [`functions()`] | exponentials, logarithms, angles and powers of four types |
//! | [`mixed()`] | ten types, conversions between them, tails of rows and columns that only the launch knows |
//! | [`ordered()`] | running combinations, sorts, atomic updates |
//! | [`packed()`] | products of the mapped form on panels: matrix and vector registers, pairs and fours along the depth |
//! | [`places()`] | gathers, scatters, masks, strides, turned tiles, branches, grids of three axes, workspaces between phases |
//! | [`product()`] | products of the logical form, with tails in all three sizes, turned operands and work on the result |

mod exact;
mod functions;
mod mixed;
mod ordered;
mod packed;
mod places;
mod product;
mod words;

pub use exact::{Generated, Vocabulary, generate};
pub use functions::functions;
pub use mixed::mixed;
pub use ordered::ordered;
pub use packed::packed;
pub use places::places;
pub use product::product;
pub use words::{Word, all_words, words};

use crate::interp::{self, Arg};
use crate::ir::{BufferMode, ParamKind, Program};
use oxyfuel_base::{DType, Result, Scalar};

/// Decisions, taken one after another; zeros when they run out.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    numbers: std::slice::Iter<'a, u32>,
}

impl<'a> Choices<'a> {
    pub fn new(numbers: &'a [u32]) -> Self {
        Self {
            numbers: numbers.iter(),
        }
    }

    /// Below `count`; 0 when the numbers are used up.
    pub fn below(&mut self, count: usize) -> usize {
        let number = self.numbers.next().copied().unwrap_or(0);
        usize::try_from(number).unwrap_or(0) % count.max(1)
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    fn is_empty(&self) -> bool {
        self.numbers.as_slice().is_empty()
    }
}

/// A program and what a launch gives it.
#[derive(Clone, Debug)]
pub struct Case {
    pub program: Program,
    /// One a parameter, in order; those of workspaces say how large they are.
    pub args: Vec<Given>,
    /// The program has functions that every target expands alike, but not to the bits that the interpreter gives for the function itself: the code is that of the expansion, and the
    /// expansion is near the function.
    pub open: bool,
}

/// An argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    Number(i64),
    /// Little-endian elements; those of a buffer that is written are what lay there before.
    Buffer {
        dtype: DType,
        bytes: Vec<u8>,
    },
}

/// The program of any kind that the numbers mean, or nothing where they mean none.
pub fn case(numbers: &[u32]) -> Result<Option<Case>> {
    let (kind, rest) = numbers.split_first().unwrap_or((&0, &[]));
    match kind % 32 {
        0..=9 => mixed(rest),
        10..=15 => {
            let seed = rest.first().copied().unwrap_or(0);
            Ok(Some(generate(rest, Vocabulary::Exact)?.case(seed)))
        }
        16..=19 => product(rest).map(Some),
        20..=25 => places(rest).map(Some),
        26..=28 => packed(rest).map(Some),
        29 | 30 => functions(rest).map(Some),
        _ => ordered(rest).map(Some),
    }
}

impl Given {
    /// Small numbers, and the ones that break things.
    pub fn random(dtype: DType, len: usize, seed: u32) -> Self {
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        let mut bytes = Vec::with_capacity(len * dtype.size());
        for _ in 0..len {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pick = state >> 8;
            let value = match pick % 32 {
                0 => Scalar::F(f64::NAN),
                1 => Scalar::F(f64::INFINITY),
                2 => Scalar::F(-0.0),
                3 => Scalar::F(0.0),
                4 => Scalar::F(3e9),
                5 => Scalar::F(-1e38),
                6 => Scalar::I(i64::from(pick).wrapping_mul(0x1234_5678_9abc)),
                _ => Scalar::F(f64::from(pick % 4001) / 16.0 - 125.0),
            };
            bytes.extend_from_slice(&value.to_bits(dtype).to_le_bytes()[..dtype.size()]);
        }
        Self::Buffer { dtype, bytes }
    }

    /// Quarters around zero: sums of many of their products are exact in `f32`.
    fn quarters(dtype: DType, len: usize, seed: u32) -> Self {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(99);
        let mut bytes = Vec::with_capacity(len * dtype.size());
        for _ in 0..len {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = Scalar::F(f64::from((state >> 16) % 17) / 4.0 - 2.0);
            bytes.extend_from_slice(&value.to_bits(dtype).to_le_bytes()[..dtype.size()]);
        }
        Self::Buffer { dtype, bytes }
    }

    pub fn zeros(dtype: DType, len: usize) -> Self {
        Self::Buffer {
            dtype,
            bytes: vec![0; len * dtype.size()],
        }
    }

    /// Elements as a case file has them; a number is one element.
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Buffer { dtype, bytes } => {
                let element = |chunk: &[u8]| {
                    let mut all = [0; 8];
                    all[..chunk.len()].copy_from_slice(chunk);
                    match Scalar::from_bits(*dtype, u64::from_le_bytes(all)) {
                        Scalar::I(value) => value.to_string(),
                        value => value.as_f64().to_string(),
                    }
                };
                let elements = bytes.chunks_exact(dtype.size()).map(element);
                elements.collect::<Vec<_>>().join(",")
            }
        }
    }
}

impl Case {
    /// The contents of every buffer after the interpreter ran the program, with all checks; those that are only read are empty.
    pub fn interpret(&self) -> Result<Vec<Vec<u8>>> {
        let mut after: Vec<Vec<u8>> = (self.args.iter().enumerate())
            .map(|(at, arg)| match arg {
                Given::Buffer { bytes, .. } if self.is_written(at) || self.is_workspace(at) => {
                    bytes.clone()
                }
                Given::Buffer { .. } | Given::Number(_) => Vec::new(),
            })
            .collect();
        let mut args = Vec::with_capacity(self.args.len());
        for ((at, given), after) in self.args.iter().enumerate().zip(&mut after) {
            args.push(match given {
                Given::Number(number) => Arg::Scalar(Scalar::I(*number)),
                Given::Buffer { dtype, .. } if self.is_written(at) || self.is_workspace(at) => {
                    Arg::Buffer {
                        dtype: *dtype,
                        bytes: after,
                    }
                }
                Given::Buffer { dtype, bytes } => Arg::Input {
                    dtype: *dtype,
                    bytes,
                },
            });
        }
        interp::run(&self.program, &mut args)?;
        drop(args);
        Ok(after)
    }

    fn mode(&self, arg: usize) -> Option<BufferMode> {
        match &self.program.params.get(arg)?.kind {
            ParamKind::Buffer(buffer) => Some(buffer.mode),
            ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => None,
        }
    }

    /// Whether the argument is a buffer that the program writes and others may read.
    pub fn is_written(&self, arg: usize) -> bool {
        match self.mode(arg) {
            Some(BufferMode::Write | BufferMode::ReadWrite) => true,
            Some(BufferMode::Read | BufferMode::Workspace) | None => false,
        }
    }

    /// Whether the argument is a buffer that only phases of the program hand data through.
    pub fn is_workspace(&self, arg: usize) -> bool {
        self.mode(arg) == Some(BufferMode::Workspace)
    }

    /// The case as a file of `tests/filetests/kernel`, without its expectation.
    pub fn filetest(&self) -> String {
        let args = (self.program.params.iter().zip(&self.args))
            .map(|(param, given)| format!(" {}={}", param.name, given.text()));
        format!(
            "; test: run{}\n\n{}",
            args.collect::<String>(),
            self.program
        )
    }
}
