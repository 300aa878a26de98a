//! One recording of a callable: work that the device does as one, with all that it needs.

use super::tape::{Noted, Running};
use crate::device::{Device, Replayed, Stream};
use crate::profile;
use crate::storage::{Kept, Storage};
use crate::tensor::Tensor;
use crate::tensor::layout::Layout;
use oxyfuel_base::{DType, Result, ensure, err};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Runs the callable.
pub(super) type Run<'a> = dyn FnMut(&[&Tensor]) -> Result<Vec<Tensor>> + 'a;

/// See the module.
pub(super) struct Recording {
    work: Box<dyn Replayed>,
    launches: Vec<Noted>,
    /// Words that follow arguments.
    follows: Vec<Follow>,
    arguments: Vec<Argument>,
    results: Vec<Out>,
    memory: Vec<Kept>,
    /// What it takes of the device.
    pub bytes: usize,
    /// When it last ran.
    pub used: u64,
    /// Memory that the callable holds by itself.
    _storages: Vec<Storage>,
    _code: Vec<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("launches", &self.launches.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// A word that is an address within an argument.
#[derive(Debug)]
struct Follow {
    argument: usize,
    launch: usize,
    /// The first piece of work of the launch.
    piece: usize,
    word: usize,
    /// From the argument's first element.
    offset: u64,
}

#[derive(Debug)]
struct Argument {
    /// Where it lay the last time.
    address: u64,
    written: bool,
    /// Whether it has to lie there: something was built from its address that cannot be changed.
    fixed: bool,
}

/// What a result is.
#[derive(Debug)]
enum Out {
    /// A window on memory of the recording.
    Own(usize, DType, Layout),
    /// A window on the memory of an argument; the layout's offset counts from the argument's first byte, in elements of the result.
    Argument(usize, DType, Layout),
    /// A tensor that the callable holds.
    Other(Tensor),
}

/// The bytes of a tensor from its first element on.
fn range(tensor: &Tensor) -> Range<u64> {
    let dims = tensor.shape().iter().zip(tensor.strides());
    let last: i64 = dims.map(|(extent, stride)| (extent - 1) * stride).sum();
    let bytes = match tensor.is_empty() {
        true => 0,
        false => (last.unsigned_abs() + 1) * tensor.dtype().size() as u64,
    };
    tensor.address()..tensor.address() + bytes
}

impl Recording {
    /// Records what `run` does with these arguments; nothing of it is done.
    pub fn new(device: &dyn Device, inputs: &[&Tensor], run: &mut Run<'_>) -> Result<Self> {
        let mut done = None;
        let work = device.record_work(true, &mut |stream| {
            let arguments = inputs.iter().map(|input| input.storage().clone());
            let running = Running::begin(device.id(), stream, arguments.collect());
            let results = run(inputs)?;
            done = Some((running.end()?, results));
            Ok(())
        })?;
        let (tape, results) = done.ok_or_else(|| err!(Internal, "nothing was recorded"))?;
        let ranges: Vec<Range<u64>> = inputs.iter().map(|input| range(input)).collect();
        let mut arguments: Vec<Argument> = inputs
            .iter()
            .zip(&tape.written)
            .map(|(input, written)| Argument {
                address: input.address(),
                written: *written,
                fixed: false,
            })
            .collect();
        // Whose an address is cannot be said of arguments that overlap.
        for (number, one) in ranges.iter().enumerate() {
            for (other, range) in ranges.iter().enumerate() {
                if number != other && one.start < range.end && range.start < one.end {
                    arguments[number].fixed = true;
                }
            }
        }
        let of = |address: &u64| ranges.iter().position(|range| range.contains(address));
        for address in tape.copies.iter().flatten() {
            if let Some(argument) = of(address) {
                arguments[argument].fixed = true;
            }
        }
        let (mut follows, mut piece) = (Vec::new(), 0);
        for (launch, noted) in tape.launches.iter().enumerate() {
            for &word in &noted.pointers {
                let address = noted.words[word];
                let Some(argument) = of(&address) else {
                    continue;
                };
                arguments[argument].fixed |= noted.maps;
                follows.push(Follow {
                    argument,
                    launch,
                    piece,
                    word,
                    offset: address - ranges[argument].start,
                });
            }
            piece += noted.pieces;
        }
        let results = results
            .into_iter()
            .map(|result| out(result, inputs, &tape.memory))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            work,
            launches: tape.launches,
            follows,
            arguments,
            results,
            memory: tape.memory,
            bytes: tape.bytes,
            used: 0,
            _storages: tape.storages,
            _code: tape.code,
        })
    }

    /// Whether it can run on these arguments, which have the form of those that it was recorded with: what has to stay stayed, and nobody holds a result.
    pub fn fits(&self, inputs: &[&Tensor]) -> bool {
        let stayed = |(argument, input): (&Argument, &&Tensor)| {
            !argument.fixed || argument.address == input.address()
        };
        let free = |out: &Out| match out {
            Out::Own(memory, ..) => self.memory[*memory].again().is_some(),
            Out::Argument(..) | Out::Other(_) => true,
        };
        self.arguments.iter().zip(inputs).all(stayed) && self.results.iter().all(free)
    }

    /// Does the recorded work on these arguments, which [`Self::fits`] allows and which have the form of those that it was recorded with. Says how many launches got other words.
    pub fn launch(
        &mut self,
        name: &str,
        device: &Arc<dyn Device>,
        inputs: &[&Tensor],
    ) -> Result<(Vec<Tensor>, u64)> {
        let _borrowed = Borrowed::new(inputs, &self.arguments)?;
        let changed = self.follow(inputs)?;
        let results: Result<Vec<Tensor>> = self
            .results
            .iter()
            .map(|out| self.result(out, inputs))
            .collect();
        let results = results?;
        let mut call = match profile::is_on() {
            true => Some(profile::Call::begin(device)?),
            false => None,
        };
        if let Some(call) = &mut call {
            call.mark(Stream::default())?;
        }
        // SAFETY: every address that is recorded leads into memory that this recording keeps, into tensors that it holds, or into
        // the arguments, which are there for the time of the call and have the form that the work was recorded for; the default
        // stream does what is asked of the device in order, so that memory which is let go after this is not used before it is done.
        unsafe { self.work.launch(Stream::default()) }?;
        if let Some(mut call) = call {
            call.mark(Stream::default())?;
            call.end_replay(name);
        }
        Ok((results, changed))
    }

    /// Gives launches the addresses of these arguments, where they moved.
    fn follow(&mut self, inputs: &[&Tensor]) -> Result<u64> {
        let moved =
            |argument: usize| self.arguments[argument].address != inputs[argument].address();
        let mut changed: Vec<(usize, usize)> = Vec::new();
        for follow in &self.follows {
            if moved(follow.argument) {
                let noted = &mut self.launches[follow.launch];
                noted.words[follow.word] = inputs[follow.argument].address() + follow.offset;
                if changed.last() != Some(&(follow.launch, follow.piece)) {
                    changed.push((follow.launch, follow.piece));
                }
            }
        }
        for (launch, first) in &changed {
            let noted = &self.launches[*launch];
            for piece in *first..first + noted.pieces {
                self.work.set_words(piece, &noted.words)?;
            }
        }
        for (argument, input) in self.arguments.iter_mut().zip(inputs) {
            argument.address = input.address();
        }
        Ok(changed.len() as u64)
    }

    fn result(&self, out: &Out, inputs: &[&Tensor]) -> Result<Tensor> {
        match out {
            Out::Own(memory, dtype, layout) => {
                let storage = self.memory[*memory].storage();
                Tensor::from_storage(storage, *dtype, layout.clone())
            }
            Out::Argument(argument, dtype, layout) => {
                let input = inputs[*argument];
                let first = input.offset() * input.dtype().size() as i64;
                let size = dtype.size() as i64;
                ensure!(
                    first % size == 0,
                    LayoutMismatch,
                    "a result of {dtype} is not aligned in argument {argument}"
                );
                let mut layout = layout.clone();
                layout.offset += first / size;
                Tensor::from_storage(input.storage().clone(), *dtype, layout)
            }
            Out::Other(tensor) => Ok(tensor.clone()),
        }
    }
}

/// What a result is, and no reference to its memory where that is the recording's or an argument's.
fn out(result: Tensor, inputs: &[&Tensor], memory: &[Kept]) -> Result<Out> {
    let storage = result.storage();
    let (dtype, mut layout) = (result.dtype(), result.layout().clone());
    if let Some(own) = memory.iter().position(|kept| kept.is_of(storage)) {
        return Ok(Out::Own(own, dtype, layout));
    }
    let argument = inputs
        .iter()
        .position(|input| input.storage().is_same(storage));
    let Some(argument) = argument else {
        return Ok(Out::Other(result));
    };
    let input = inputs[argument];
    let first = input.offset() * input.dtype().size() as i64;
    ensure!(
        first % dtype.size() as i64 == 0,
        LayoutMismatch,
        "a result of {dtype} is not aligned in argument {argument}"
    );
    layout.offset -= first / dtype.size() as i64;
    Ok(Out::Argument(argument, dtype, layout))
}

/// Arguments that a replay holds: shared, or alone where it writes them.
struct Borrowed<'a> {
    storages: Vec<(&'a Storage, bool)>,
    taken: usize,
}

impl<'a> Borrowed<'a> {
    fn new(inputs: &[&'a Tensor], arguments: &[Argument]) -> Result<Self> {
        let mut storages: Vec<(&Storage, bool)> = Vec::with_capacity(inputs.len());
        for (input, argument) in inputs.iter().zip(arguments) {
            let storage = input.storage();
            match storages
                .iter_mut()
                .find(|(known, _)| known.is_same(storage))
            {
                Some((_, written)) => *written |= argument.written,
                None => storages.push((storage, argument.written)),
            }
        }
        let mut this = Self { storages, taken: 0 };
        for number in 0..this.storages.len() {
            let (storage, written) = this.storages[number];
            storage.acquire(written)?;
            this.taken += 1;
        }
        Ok(this)
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        for (storage, written) in &self.storages[..self.taken] {
            storage.release(*written);
        }
    }
}
