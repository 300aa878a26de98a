//! A case: numbers that follow from a seed and an index, and what checking the program that they mean finds.

use crate::judge::Judged;
use crate::{graphs, tiles};
use oxyfuel_engine::Target;
use oxyfuel_testkit::Rng;

/// What is made of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tile,
    Graph,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tile => "tiles",
            Self::Graph => "graphs",
        }
    }

    /// Most numbers of a case.
    fn length(self) -> u64 {
        match self {
            Self::Tile => 80,
            Self::Graph => 200,
        }
    }

    /// Memory and threads of its own for one worker.
    pub fn worker(self, targets: &[Target]) -> Box<dyn Check> {
        match self {
            Self::Tile => Box::new(tiles::Worker::new(targets)),
            Self::Graph => Box::new(graphs::Worker::new(targets)),
        }
    }
}

/// What a check found that is no mismatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// 1 where the numbers mean a program that can run.
    pub programs: u64,
    /// Comparisons of a target's result with the interpreter's.
    pub compared: u64,
    /// The elements of these, where some may differ.
    pub judged: Judged,
    /// Kernels that had no machine code on a target.
    pub without_code: u64,
    /// Of what the interpreter computed.
    pub digest: u64,
}

/// A program that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Target and what differs.
    pub why: String,
    /// The program as a filetest.
    pub text: String,
}

/// Checks programs, one after another.
pub trait Check {
    fn check(&mut self, numbers: &[u32]) -> Result<Found, Mismatch>;

    /// The program that the numbers mean, as a filetest; nothing of it is run.
    fn text(&self, numbers: &[u32]) -> String;
}

/// The numbers of a case.
pub fn numbers(kind: Kind, seed: u64, index: u64) -> Vec<u32> {
    let salt = match kind {
        Kind::Tile => 0x7469_6c65,
        Kind::Graph => 0x6772_6170,
    };
    let mut first = Rng::new(seed ^ (salt << 32));
    let mut rng = Rng::new(first.next_u64() ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    rng.next_u64();
    let count = 1 + rng.below(kind.length());
    (0..count).map(|_| rng.below(1 << 20) as u32).collect()
}

/// The targets that have machine code and run here.
pub fn targets() -> Vec<Target> {
    Target::all()
        .filter(|target| {
            target.can_interpret() && target.supported_here() && target.name() != "interpreter"
        })
        .collect()
}

/// The targets of these names, also those that do not run here: graphs are then compiled for them, and their programs interpreted.
pub fn targets_named(names: &[String]) -> Result<Vec<Target>, String> {
    let named = |name: &String| {
        let mut known = Target::all().filter(Target::can_interpret);
        known
            .find(|target| target.name() == name)
            .ok_or_else(|| format!("`{name}` is no target of a CPU"))
    };
    names.iter().map(named).collect()
}

/// A number that tells contents apart (FNV-1a).
pub fn digest(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_differ_by_seed_index_and_kind() {
        let all = [
            numbers(Kind::Tile, 1, 1),
            numbers(Kind::Tile, 1, 2),
            numbers(Kind::Tile, 2, 1),
            numbers(Kind::Graph, 1, 1),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(!one.is_empty() && !all[..i].contains(one));
        }
        assert_eq!(all[0], numbers(Kind::Tile, 1, 1));
    }

    #[test]
    fn targets_are_those_of_cpus() {
        let named = |name: &str| targets_named(&[name.to_owned()]);
        assert_eq!(named("avx2").map(|found| found.len()), Ok(1));
        assert!(named("sm_90").is_err() && named("avx3").is_err());
    }

    #[test]
    fn digests_see_every_byte() {
        assert_ne!(digest(&[b"ab"]), digest(&[b"ac"]));
        assert_eq!(digest(&[b"a", b"b"]), digest(&[b"ab"]));
    }
}
