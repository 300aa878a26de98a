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
//! A recording belongs to a workspace, as the arena that it works in does: two calls at once have one each. All recordings of a device share a limit of bytes ([`super::recordings`]).

use super::instance::{Instance, ReadyStep};
use super::recordings::{LAUNCH_BYTES, Recordings, Share};
use super::{Program, Watch, Workspace};
use crate::capture::{CaptureStats, SHARE};
use crate::device::{Device, Replayed};
use oxyfuel_base::{Error, Result, Symbol, ensure, err};
use std::fmt::Display;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How calls of a program are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Whether a call that is not launched as one is an error, but for the first.
    pub require: bool,
    /// The most bytes that all recordings of the device may take when one is made; 0: a quarter of the device's memory.
    pub memory_limit: usize,
}

/// How far a workspace is.
#[derive(Debug, Default)]
pub(super) enum Replay {
    /// Nothing has run in it.
    #[default]
    Unused,
    /// A call has.
    Used,
    Recorded(Recorded),
    /// It cannot be recorded whole, for the reason.
    Refused(String),
}

#[derive(Debug)]
pub(super) struct Recorded {
    work: Box<dyn Replayed>,
    /// The words that are recorded, of all launches.
    words: Vec<u64>,
    /// The addresses of each copy, in order.
    copies: Vec<(u64, u64)>,
    pub share: Share,
}

/// A program whose calls are recorded.
#[derive(Debug)]
pub(super) struct Replays {
    options: ReplayOptions,
    all: Arc<Recordings>,
    stats: Stats,
    /// The numbers of the symbols of its first recording.
    sizes: OnceLock<Vec<(Symbol, i64)>>,
}

/// What has become of a program's calls, for it and for those that take its recordings.
#[derive(Clone, Debug, Default)]
pub(super) struct Stats(Arc<Mutex<CaptureStats>>);

impl Stats {
    pub fn change<R>(&self, change: impl FnOnce(&mut CaptureStats) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A call that is not launched as one: why, if it is not one of the first, and how far its workspace is now.
struct Missed(Option<String>, Replay);

/// Of calls that have to be launched as one.
fn not_recorded(name: &str, why: impl Display) -> Error {
    err!(
        CaptureBroken,
        "{name} was to be launched as one (`cudagraphs` is require), and cannot be: {why}"
    )
}

/// Of a plan whose buffers are no part of the arena.
const APART: &str = "memory comes and goes while it runs";

const LET_BE: &str =
    "mend that, or let such calls run step by step (with `cudagraphs` auto instead of require)";

impl Replays {
    /// A call runs step by step: it is counted, or refused.
    pub fn missed(&self, name: &str, why: Option<String>) -> Result<()> {
        if let Some(why) = &why
            && self.options.require
        {
            return Err(not_recorded(name, why).help(LET_BE));
        }
        self.stats.change(|stats| {
            stats.calls += 1;
            stats.missed = Some(why.unwrap_or_else(|| "a first call of its sizes".into()));
        });
        Ok(())
    }

    /// Whether a call of these sizes was recorded before, where that is required: then every further one is, in whatever workspace. Other sizes are an error there.
    fn is_due(&self, name: &str, instance: &Instance) -> Result<bool> {
        let Some(sizes) = self.sizes.get().filter(|_| self.options.require) else {
            return Ok(false);
        };
        let listed = |sizes: &[(Symbol, i64)]| {
            let listed = sizes
                .iter()
                .map(|(symbol, value)| format!("{symbol} = {value}"));
            listed.collect::<Vec<_>>().join(", ")
        };
        if *sizes != instance.symbols {
            let (before, now) = (listed(sizes), listed(&instance.symbols));
            let why = format!("its sizes changed from {before} to {now}");
            return Err(not_recorded(name, why).help(
                "let each size have a plan of its own (`x.size(dim)?` in the function), pad to one size, or let other sizes run step by step (with `cudagraphs` auto instead of require)",
            ));
        }
        Ok(true)
    }

    /// The most bytes of all recordings.
    fn limit(&self, device: &dyn Device) -> Result<usize> {
        match self.options.memory_limit {
            0 => Ok(device.memory_summary()?.total / SHARE),
            limit => Ok(limit),
        }
    }
}

impl Program {
    /// Calls are recorded, where the device can do that and no memory comes and goes within a call; an error where it cannot and has to.
    pub fn replay(&mut self, wanted: Option<ReplayOptions>) -> Result<()> {
        self.replays = None;
        let Some(options) = wanted else {
            return Ok(());
        };
        let all = self.device.recordings().filter(|_| !self.waits).cloned();
        if options.require {
            let obstacle = match (&all, &self.only) {
                (_, Some(only)) if only.instance.apart => Some(APART.to_owned()),
                (None, _) if self.waits => {
                    Some("`launch_blocking` waits after each of its kernels".into())
                }
                (None, _) => Some(format!("{} records no work", self.device.id())),
                (Some(_), _) => None,
            };
            if let Some(why) = obstacle {
                return Err(not_recorded(&self.plan.name, why).help(LET_BE));
            }
        }
        self.replays = all.map(|all| Replays {
            options,
            all,
            stats: Stats::default(),
            sizes: OnceLock::new(),
        });
        Ok(())
    }

    /// What has become of its calls; `None` where they are not to be recorded.
    pub fn replay_stats(&self) -> Option<CaptureStats> {
        let replays = self.replays.as_ref()?;
        Some(replays.stats.change(|stats| stats.clone()))
    }

    /// Runs all steps, as one where they were recorded.
    ///
    /// # Safety
    /// As [`Program::run`].
    pub(super) unsafe fn run_as_one(
        &self,
        replays: &Replays,
        instance: &Instance,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let name = &self.plan.name;
        if instance.apart {
            replays.missed(name, Some(APART.to_owned()))?;
            // SAFETY: promised by the caller.
            return unsafe { self.run_apart(instance, workspace, &mut Watch::nobody()) };
        }
        let is_due = replays.is_due(name, instance)?;
        // SAFETY: promised by the caller.
        let found = unsafe { self.recording(replays, instance, workspace, is_due) }?;
        let (mut recorded, moved) = match found {
            Ok(found) => found,
            Err(Missed(why, next)) => {
                workspace.replay = next;
                replays.missed(name, why)?;
                // SAFETY: promised by the caller; what was recorded in vain has not run.
                return unsafe { self.run_not_recorded(instance, workspace) };
            }
        };
        // SAFETY: the words that are recorded are those of this call, whose addresses the caller answers for.
        unsafe { recorded.work.launch(workspace.stream) }?;
        recorded.share.touch();
        workspace.replay = Replay::Recorded(recorded);
        replays.stats.change(|stats| {
            stats.calls += 1;
            stats.replayed += 1;
            stats.moved += moved;
        });
        Ok(())
    }

    /// The recording that does this call, made now where it is time to, and how many launches got other words.
    ///
    /// # Safety
    /// As [`Program::run`].
    unsafe fn recording(
        &self,
        replays: &Replays,
        instance: &Instance,
        workspace: &mut Workspace,
        is_due: bool,
    ) -> Result<std::result::Result<(Recorded, u64), Missed>> {
        match std::mem::take(&mut workspace.replay) {
            Replay::Unused if !is_due => return Ok(Err(Missed(None, Replay::Used))),
            Replay::Unused | Replay::Used => {}
            Replay::Refused(why) => {
                return Ok(Err(Missed(Some(why.clone()), Replay::Refused(why))));
            }
            Replay::Recorded(mut recorded) => {
                fill(instance, 0..instance.steps.len(), workspace);
                if let Some(moved) = recorded.follow(self, instance, workspace)? {
                    return Ok(Ok((recorded, moved)));
                }
                // Its room is that of the next.
            }
        }
        let all = 0..instance.steps.len();
        let launches = self.launches(instance, &all);
        let bytes = instance.arena_bytes + launches * LAUNCH_BYTES;
        let limit = replays.limit(&*self.device)?;
        let refused = |why: String| Missed(Some(why.clone()), Replay::Refused(why));
        if bytes > limit {
            let why =
                format!("a recording takes {bytes} bytes, and `cudagraph_memory_limit` is {limit}");
            return Ok(Err(refused(why)));
        }
        let share = Share::take(
            &replays.all,
            bytes,
            limit,
            &workspace.waits_in,
            &replays.stats,
        );
        let Some(share) = share else {
            let why = format!(
                "a recording takes {bytes} bytes, and those that are in use leave fewer of {limit} (`cudagraph_memory_limit`)"
            );
            return Ok(Err(Missed(Some(why), Replay::Used)));
        };
        // SAFETY: promised by the caller.
        match unsafe { self.record_steps(instance, all, workspace) } {
            Ok(work) => {
                replays.stats.change(|stats| stats.recorded += 1);
                replays.sizes.get_or_init(|| instance.symbols.clone());
                let recorded = Recorded {
                    work,
                    words: workspace.words.clone(),
                    copies: copies(instance, workspace).collect(),
                    share,
                };
                Ok(Ok((recorded, 0)))
            }
            Err(error) => Ok(Err(refused(error.message))),
        }
    }

    /// Records steps with the addresses of this call.
    ///
    /// # Safety
    /// As [`Program::run_steps`].
    pub(super) unsafe fn record_steps(
        &self,
        instance: &Instance,
        steps: Range<usize>,
        workspace: &mut Workspace,
    ) -> Result<Box<dyn Replayed>> {
        let expected = self.launches(instance, &steps);
        let stream = workspace.stream;
        let work = self.device.record_work(false, &mut |recording| {
            workspace.stream = recording;
            // SAFETY: promised by the caller.
            unsafe { self.run_steps(instance, steps.clone(), workspace, &mut Watch::nobody()) }
        });
        workspace.stream = stream;
        let work = work?;
        let found = work.kernels();
        ensure!(
            expected == found,
            CaptureBroken,
            "{found} kernels were recorded where {expected} were expected"
        );
        Ok(work)
    }

    /// What the driver is asked for by these steps.
    pub(super) fn launches(&self, instance: &Instance, steps: &Range<usize>) -> usize {
        let steps = &instance.steps[steps.clone()];
        steps.iter().map(|step| self.launches_of(step)).sum()
    }

    /// What the driver is asked for by a step.
    fn launches_of(&self, step: &ReadyStep) -> usize {
        match step {
            ReadyStep::Launch { kernel, grids, .. } => self.kernels[*kernel].pieces(grids),
            ReadyStep::Copy { .. } | ReadyStep::External => 0,
        }
    }

    /// # Safety
    /// As [`Program::run`].
    unsafe fn run_not_recorded(
        &self,
        instance: &Instance,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let all = 0..instance.steps.len();
        // SAFETY: promised by the caller.
        unsafe { self.run_together(instance, all, workspace, &mut Watch::nobody()) }
    }
}

impl Recorded {
    /// Takes over the words of a call, of so many launches; `None` where something moved that has to be recorded again.
    fn follow(
        &mut self,
        program: &Program,
        instance: &Instance,
        workspace: &Workspace,
    ) -> Result<Option<u64>> {
        if !copies(instance, workspace).eq(self.copies.iter().copied()) {
            return Ok(None);
        }
        let (steps, now) = (0..instance.steps.len(), &workspace.words);
        follow(
            &mut *self.work,
            program,
            instance,
            (steps, &mut self.words),
            now,
        )
    }
}

/// Gives recorded launches the words of a call, where they differ from those that are `recorded`, of these steps; how many did, or `None` where one cannot have other words.
pub(super) fn follow(
    work: &mut dyn Replayed,
    program: &Program,
    instance: &Instance,
    (steps, recorded): (Range<usize>, &mut [u64]),
    now: &[u64],
) -> Result<Option<u64>> {
    let (mut launch, mut moved) = (0, 0);
    let mut start = None;
    for step in &instance.steps[steps] {
        let behind = launch + program.launches_of(step);
        let ReadyStep::Launch {
            kernel,
            words,
            maps,
            ..
        } = step
        else {
            continue;
        };
        let start = *start.get_or_insert(words.start);
        let words = words.start - start..words.end - start;
        if now[words.clone()] != recorded[words.clone()] {
            if !maps.is_empty() || !program.kernels[*kernel].follows() {
                return Ok(None);
            }
            moved += 1;
            for number in launch..behind {
                work.set_words(number, &now[words.clone()])?;
            }
            recorded[words.clone()].copy_from_slice(&now[words]);
        }
        launch = behind;
    }
    Ok(Some(moved))
}

/// Puts the addresses of a call into the words of these steps' launches.
pub(super) fn fill(instance: &Instance, steps: Range<usize>, workspace: &mut Workspace) {
    for step in &instance.steps[steps] {
        let ReadyStep::Launch { pointers, .. } = step else {
            continue;
        };
        for pointer in &instance.pointers[pointers.clone()] {
            workspace.words[pointer.word] = workspace.addresses[pointer.buffer] + pointer.offset;
        }
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
