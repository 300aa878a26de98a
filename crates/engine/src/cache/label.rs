//! What an entry is of, and why a plan is not among them.

use std::fmt;
use std::time::SystemTime;

use oxyfuel_base::{Digest, Result, digest_of};
use oxyfuel_graph::Graph;
use oxyfuel_plan::TargetDesc;
use serde::{Deserialize, Serialize};

use super::{BUILD, Cache, lines};
use crate::options::Options;

/// The parts of a key, each in words or as a digest of its own, and when they were put together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Label {
    pub build: String,
    /// The name of a graph; of a cubin, nothing.
    pub name: String,
    /// What is computed.
    pub program: String,
    pub target: String,
    /// The machine that the target was described for: cores, caches, sizes of grids.
    pub machine: String,
    pub options: String,
    /// Nanoseconds since 1970. Times of files tell ticks of some milliseconds apart, in which several plans are made.
    #[serde(default)]
    pub made: u64,
}

/// Nanoseconds since 1970; 0 on a machine whose clock says that it is earlier.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

impl Label {
    pub fn new(graph: &Graph, target: &TargetDesc, options: &Options) -> Result<Self> {
        Ok(Self {
            build: BUILD.to_owned(),
            name: graph.name.clone(),
            program: lines::program(graph)?.short(),
            target: target.name.clone(),
            machine: digest_of(target)?.short(),
            options: options.key(),
            made: now(),
        })
    }

    pub fn cubin(ptx: &str, tag: &str) -> Self {
        Self {
            build: BUILD.to_owned(),
            name: String::new(),
            program: Digest::of_bytes(ptx.as_bytes()).short(),
            target: tag.to_owned(),
            machine: String::new(),
            options: String::new(),
            made: now(),
        }
    }

    /// Whether two entries have the same key.
    fn is_of_same_key(&self, other: &Self) -> bool {
        fn parts(label: &Label) -> [&str; 6] {
            [
                &label.build,
                &label.name,
                &label.program,
                &label.target,
                &label.machine,
                &label.options,
            ]
        }
        parts(self) == parts(other)
    }

    /// What differs from another entry of the same program, in words.
    fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut say = |what: &str, here: &str, there: &str| {
            if here != there {
                found.push(format!("{what} {here} here, {there} there"));
            }
        };
        say("build", &self.build, &other.build);
        say("target", &self.target, &other.target);
        say("options", &self.options, &other.options);
        if self.target == other.target && self.machine != other.machine {
            found.push("another number of threads, or another machine".to_owned());
        }
        found
    }
}

/// A plan that was looked for and not found; [`Cache::why_missed`] says why.
#[derive(Clone, Debug)]
pub struct Miss {
    /// Made when the plan was looked for.
    pub label: Label,
}

impl Miss {
    /// Of this label, now.
    pub fn of(label: Label) -> Self {
        let made = now();
        Self {
            label: Label { made, ..label },
        }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why", content = "found")]
pub enum Missed {
    /// The cache is empty, or was emptied.
    Empty,
    /// No graph of that name was ever compiled, or its entries went for want of room.
    NewName,
    /// So many graphs of that name are there, with other sizes, types or operations.
    OtherGraphs(usize),
    /// This very graph is there, made otherwise: what differs, entry by entry.
    MadeOtherwise(Vec<String>),
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the cache is empty"),
            Self::NewName => f.write_str(
                "no graph of this name is in the cache: it was not compiled before, or its plan was evicted",
            ),
            Self::OtherGraphs(count) => write!(
                f,
                "{count} graphs of this name are in the cache, with other sizes, dtypes, layouts or operations"
            ),
            Self::MadeOtherwise(entries) => {
                write!(f, "this graph is in the cache, but {}", entries.join("; or "))
            }
        }
    }
}

impl Cache {
    /// Why a plan was not found. Entries that were made since do not count. Reads every label: for people, not for compiles.
    pub fn why_missed(&self, miss: &Miss) -> Result<Missed> {
        let label = &miss.label;
        let mut all = 0;
        let mut named = 0;
        let mut otherwise = Vec::new();
        for found in self.labels()? {
            if found.is_of_same_key(label) || found.made > label.made {
                continue;
            }
            all += 1;
            if found.program == label.program {
                otherwise.push(label.differences(&found).join(" and "));
            } else if found.name == label.name {
                named += 1;
            }
        }
        otherwise.sort();
        otherwise.dedup();
        Ok(match (all, named) {
            (0, _) => Missed::Empty,
            _ if !otherwise.is_empty() => Missed::MadeOtherwise(otherwise),
            (_, 0) => Missed::NewName,
            (_, count) => Missed::OtherGraphs(count),
        })
    }
}
