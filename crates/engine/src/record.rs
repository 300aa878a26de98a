//! What each step of a compile did: how long it took and, when asked, its result as text.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use oxyfuel_base::Result;
use serde::Serialize;

use crate::cache::Miss;

/// What a step leaves behind; the names that `dump --stage` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The graph as captured.
    Graph,
    /// Primitive ops only.
    Decomposed,
    /// After the rules.
    Simplified,
    /// With what the borders demand: strides, clones, mutations.
    Settled,
    /// Groups, those that share a launch together.
    Schedule,
    /// Tile programs without layouts.
    Logical,
    /// Tile programs on the machine.
    Mapped,
    /// Machine code listings or PTX.
    Code,
    /// The plan.
    Plan,
}

impl Stage {
    pub const ALL: [Self; 9] = [
        Self::Graph,
        Self::Decomposed,
        Self::Simplified,
        Self::Settled,
        Self::Schedule,
        Self::Logical,
        Self::Mapped,
        Self::Code,
        Self::Plan,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Graph => "graph",
            Self::Decomposed => "decomposed",
            Self::Simplified => "simplified",
            Self::Settled => "settled",
            Self::Schedule => "schedule",
            Self::Logical => "logical",
            Self::Mapped => "mapped",
            Self::Code => "code",
            Self::Plan => "plan",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct StepRecord {
    pub name: &'static str,
    pub time: Duration,
    /// The stage that it reached, if it reached one, with its text when texts are kept.
    pub stage: Option<Stage>,
    pub text: Option<String>,
}

/// Where a plan came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    #[default]
    Compiled,
    /// Found in this process.
    Memory,
    /// Read from the disk cache; there were no steps.
    Disk,
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compiled => "compiled",
            Self::Memory => "found in this process",
            Self::Disk => "from the disk cache",
        })
    }
}

/// All steps of one compile, in order.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Record {
    pub origin: Origin,
    /// What a person should know: a cache that could not be used, and why.
    pub notes: Vec<String>,
    /// Of a plan that was looked for on disk and had to be compiled.
    #[serde(skip)]
    pub miss: Option<Miss>,
    pub steps: Vec<StepRecord>,
    /// Keep texts; making them costs more than compiling.
    pub keep_text: bool,
}

impl Record {
    pub fn new(keep_text: bool) -> Self {
        Self {
            keep_text,
            ..Self::default()
        }
    }

    /// Of a plan that was not compiled now.
    pub fn from_disk() -> Self {
        Self {
            origin: Origin::Disk,
            ..Self::default()
        }
    }

    /// Runs a step and times it.
    pub fn step<T>(&mut self, name: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = run();
        self.steps.push(StepRecord {
            name,
            time: start.elapsed(),
            stage: None,
            text: None,
        });
        result
    }

    /// Notes what the last step reached.
    pub fn reached<D: Display>(&mut self, stage: Stage, text: impl FnOnce() -> D) {
        let text = self.keep_text.then(|| text().to_string());
        if let Some(step) = self.steps.last_mut() {
            step.stage = Some(stage);
            step.text = text;
        }
    }

    /// Time of all steps together.
    pub fn total(&self) -> Duration {
        self.steps.iter().map(|step| step.time).sum()
    }

    pub fn text(&self, stage: Stage) -> Option<&str> {
        self.steps
            .iter()
            .find(|step| step.stage == Some(stage))
            .and_then(|step| step.text.as_deref())
    }
}
