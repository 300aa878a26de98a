//! Calls on a card that is not there: step by step, recorded, and with tensors elsewhere. Each launches the same kernels over the same elements.

use oxyfuel_engine::Executable;
use oxyfuel_runtime::null::{NullCall, NullDevice};
use oxyfuel_runtime::storage::Storage;
use oxyfuel_runtime::tensor::Tensor;

/// A word of a launch: a place in a tensor of the call, or what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Tensor(usize, u64),
    Other(u64),
}

/// One phase of a kernel, or a copy.
type Work = (String, Vec<Word>, [u64; 3]);

/// Words as places in the tensors of a call, inputs first.
fn word(word: u64, tensors: &[&Storage]) -> Word {
    let inside = |storage: &&Storage| {
        let start = storage.address();
        (start..start + storage.len().max(1) as u64).contains(&word)
    };
    match tensors.iter().position(inside) {
        Some(tensor) => Word::Tensor(tensor, word - tensors[tensor].address()),
        None => Word::Other(word),
    }
}

/// What was done, however it was launched.
fn done(asked: &[NullCall], tensors: &[&Storage]) -> Vec<Work> {
    let words = |words: &[u64]| words.iter().map(|&w| word(w, tensors)).collect();
    let mut work = Vec::new();
    for call in asked {
        match call {
            NullCall::Launch(name, of_launch, grids) => {
                let grids = grids.iter().filter(|grid| grid.iter().all(|&n| n > 0));
                work.extend(grids.map(|grid| (name.clone(), words(of_launch), *grid)));
            }
            NullCall::Move(from, to, bytes) => {
                let size = [*bytes as u64, 1, 1];
                work.push(("copy".to_owned(), words(&[*from, *to]), size));
            }
            NullCall::Replay(calls) => work.extend(done(calls, tensors)),
            NullCall::Allocate(_)
            | NullCall::Write(_)
            | NullCall::Read(_)
            | NullCall::Load(_)
            | NullCall::SetWords(..)
            | NullCall::Record(..)
            | NullCall::Synchronize => {}
        }
    }
    work
}

/// Runs three times: the first call of these sizes, one that is recorded, and one on other tensors that follows the recording or is recorded anew.
pub fn follows(
    executable: &Executable,
    card: &NullDevice,
    [here, there]: [&[Tensor]; 2],
) -> Result<(), String> {
    let mut first: Option<Vec<Work>> = None;
    for (number, inputs) in [here, here, there].into_iter().enumerate() {
        let text = |e: oxyfuel_base::Error| e.to_string();
        let of = || executable.program().replay_stats().unwrap_or_default();
        let (asked, replayed) = (card.calls().len(), of().replayed);
        let outputs = executable
            .run(&inputs.iter().collect::<Vec<_>>())
            .map_err(text)?;
        let is_one = of().replayed > replayed;
        if is_one != (number > 0) {
            let why = of().missed.unwrap_or_default();
            return match why.contains("memory comes and goes") {
                true => Ok(()),
                false => Err(format!("call {number} was launched as one or not: {why}")),
            };
        }
        let tensors: Vec<&Storage> = inputs.iter().chain(&outputs).map(Tensor::storage).collect();
        let work = done(&card.calls()[asked..], &tensors);
        match &first {
            None => first = Some(work),
            Some(first) if *first == work => {}
            Some(first) => {
                let mut pairs = first.iter().zip(&work);
                let differs = pairs.find(|(a, b)| a != b);
                return Err(format!(
                    "call {number} launched {} pieces, the first one {}; they differ in {differs:?}",
                    work.len(),
                    first.len()
                ));
            }
        }
    }
    Ok(())
}
