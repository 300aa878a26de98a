//! Calls that are recorded once and launched as one from then on, on devices that record.
//!
//! ```text
//!   first call    step by step: a size that never comes again costs no recording
//!   second call   the same steps are recorded, then launched
//!   later calls   launches whose words changed get their new ones, then all is launched
//! ```
//!
//! The words of a launch hold every address it touches, so comparing them is all that a replay needs to be right: inputs
//! are never copied, results are new tensors as ever, and tensors that stay where they are cost nothing. What cannot be
//! changed in place (copies, launches with tensor maps, which are built from addresses, and those of libraries) is recorded again where it moved.
//!
//! A recording belongs to a workspace, as the arena that it works in does: two calls at once have one each.

use super::instance::{Instance, ReadyStep};
use super::{Program, Watch, Workspace};
use crate::device::Replayed;
use oxyfuel_base::{Error, Result, ensure};
use std::fmt;
use std::sync::PoisonError;

/// How far a workspace is.
#[derive(Debug, Default)]
pub(super) enum Replay {
    /// Nothing has run in it.
    #[default]
    Unused,
    /// A call has.
    Used,
    Recorded(Recorded),
    /// It cannot be recorded, for the reason; steps are launched one by one.
    Refused(Error),
}

#[derive(Debug)]
pub(super) struct Recorded {
    work: Box<dyn Replayed>,
    /// The words that are recorded, of all launches.
    words: Vec<u64>,
    /// The addresses of each copy, in order.
    copies: Vec<(u64, u64)>,
}

/// What has become of the recordings of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayStats {
    /// How often work was recorded.
    pub recorded: u64,
    /// How often it was launched as one.
    pub replayed: u64,
    /// Why it was not, the last time that it could not be recorded.
    pub refused: Option<Error>,
}

impl fmt::Display for ReplayStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls launched as one, recorded {} times",
            self.replayed, self.recorded
        )?;
        match &self.refused {
            Some(error) => write!(f, "; not recorded: {}", error.message),
            None => Ok(()),
        }
    }
}

impl Program {
    /// Whether calls are recorded, where the device can do that and no memory comes and goes within a call.
    pub fn replay(&mut self, wanted: bool) {
        self.replays = (wanted && self.device.records()).then(Default::default);
    }

    /// What has become of recordings; `None` where none are wanted.
    pub fn replay_stats(&self) -> Option<ReplayStats> {
        let stats = self.replays.as_ref()?;
        let stats = stats.lock().unwrap_or_else(PoisonError::into_inner);
        Some(stats.clone())
    }

    fn count(&self, change: impl FnOnce(&mut ReplayStats)) {
        if let Some(stats) = &self.replays {
            change(&mut stats.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Runs all steps, as one where they were recorded.
    ///
    /// # Safety
    /// As [`Program::run`].
    pub(super) unsafe fn run_as_one(
        &self,
        instance: &Instance,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let stream = workspace.stream;
        let mut replay = match std::mem::take(&mut workspace.replay) {
            Replay::Unused => {
                workspace.replay = Replay::Used;
                // SAFETY: promised by the caller.
                return unsafe { self.run_one_by_one(instance, workspace) };
            }
            Replay::Refused(error) => {
                workspace.replay = Replay::Refused(error);
                // SAFETY: promised by the caller.
                return unsafe { self.run_one_by_one(instance, workspace) };
            }
            Replay::Recorded(mut recorded) => {
                fill(instance, workspace);
                match recorded.follow(self, instance, workspace)? {
                    true => recorded,
                    // SAFETY: promised by the caller.
                    false => unsafe { self.record(instance, workspace) }?,
                }
            }
            // SAFETY: promised by the caller.
            Replay::Used => match unsafe { self.record(instance, workspace) } {
                Ok(recorded) => recorded,
                Err(error) => {
                    self.count(|stats| stats.refused = Some(error.clone()));
                    workspace.replay = Replay::Refused(error);
                    // SAFETY: promised by the caller; what was recorded has not run.
                    return unsafe { self.run_one_by_one(instance, workspace) };
                }
            },
        };
        // SAFETY: the words that are recorded are those of this call, whose addresses the caller answers for.
        unsafe { replay.work.launch(stream) }?;
        self.count(|stats| stats.replayed += 1);
        workspace.replay = Replay::Recorded(replay);
        Ok(())
    }

    /// Records the steps with the addresses of this call.
    ///
    /// # Safety
    /// As [`Program::run`].
    unsafe fn record(&self, instance: &Instance, workspace: &mut Workspace) -> Result<Recorded> {
        let stream = workspace.stream;
        let work = self.device.record_work(false, &mut |recording| {
            workspace.stream = recording;
            // SAFETY: promised by the caller.
            unsafe { self.run_one_by_one(instance, workspace) }
        });
        workspace.stream = stream;
        let work = work?;
        let expected = instance.steps.iter().map(|step| self.pieces(step));
        let (expected, found) = (expected.sum::<usize>(), work.kernels());
        ensure!(
            expected == found,
            CaptureBroken,
            "{found} kernels were recorded where {expected} were expected"
        );
        self.count(|stats| stats.recorded += 1);
        Ok(Recorded {
            work,
            words: workspace.words.clone(),
            copies: copies(instance, workspace).collect(),
        })
    }

    /// Kernel launches of a step.
    fn pieces(&self, step: &ReadyStep) -> usize {
        match step {
            ReadyStep::Launch { kernel, grids, .. } if self.kernels[*kernel].follows() => {
                // One a phase, but for phases without instances.
                grids.iter().filter(|grid| grid.total() > 0).count()
            }
            ReadyStep::Launch { .. } => 1,
            ReadyStep::Copy { .. } | ReadyStep::External => 0,
        }
    }

    /// # Safety
    /// As [`Program::run`].
    unsafe fn run_one_by_one(&self, instance: &Instance, workspace: &mut Workspace) -> Result<()> {
        let all = 0..instance.steps.len();
        // SAFETY: promised by the caller.
        unsafe { self.run_steps(instance, all, workspace, &mut Watch::nobody()) }
    }
}

impl Recorded {
    /// Takes over the words of a call; `false` where something moved that has to be recorded again.
    fn follow(
        &mut self,
        program: &Program,
        instance: &Instance,
        workspace: &Workspace,
    ) -> Result<bool> {
        if !copies(instance, workspace).eq(self.copies.iter().copied()) {
            return Ok(false);
        }
        let mut first = 0;
        for step in &instance.steps {
            let behind = first + program.pieces(step);
            let ReadyStep::Launch {
                kernel,
                words,
                maps,
                ..
            } = step
            else {
                continue;
            };
            let now = &workspace.words[words.clone()];
            if now != &self.words[words.clone()] {
                if !maps.is_empty() || !program.kernels[*kernel].follows() {
                    return Ok(false);
                }
                for launch in first..behind {
                    self.work.set_words(launch, now)?;
                }
                self.words[words.clone()].copy_from_slice(now);
            }
            first = behind;
        }
        Ok(true)
    }
}

/// The words of a call: addresses in the place of its pointers.
fn fill(instance: &Instance, workspace: &mut Workspace) {
    for pointer in &instance.pointers {
        workspace.words[pointer.word] = workspace.addresses[pointer.buffer] + pointer.offset;
    }
}

/// The addresses of each copy, in order.
fn copies(instance: &Instance, workspace: &Workspace) -> impl Iterator<Item = (u64, u64)> {
    instance.steps.iter().filter_map(|step| match step {
        ReadyStep::Copy { src, dst, .. } => {
            Some((workspace.addresses[*src], workspace.addresses[*dst]))
        }
        ReadyStep::Launch { .. } | ReadyStep::External => None,
    })
}
