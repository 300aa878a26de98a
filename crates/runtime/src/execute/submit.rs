//! Launches that follow each other, given to the driver at once.
//!
//! ```text
//!   plan          L  L  L  copy  L  L  operator of the host  L          what can follow its words, and has another beside it
//!   submissions   [─────]        [──]                        L
//!   first calls   one by one: sizes that never come again cost no recording
//!   one call      they are recorded, then launched as one
//!   later calls   launches whose words changed get their new ones, then all are launched as one
//! ```
//!
//! A launch of its own costs the host 2.8 us on an H200, and one of several 0.25 with all its words. Nothing else tells the two apart: memory comes from where it comes from, inputs are read where they are, results are new, and a call
//! on another stream, which would wait for the last one, goes one by one. It is therefore no mode: [`super::replay`] does whole calls, and keeps the memory that they work in.

use super::instance::{Instance, ReadyStep};
use super::recordings::{LAUNCH_BYTES, Recordings, Share};
use super::replay::{Stats, fill, follow};
use super::{Program, Watch, Workspace};
use crate::capture::tape;
use crate::device::{Replayed, Stream};
use oxyfuel_base::{Code, Result, err};
use std::ops::Range;
use std::sync::Arc;

/// Calls of a workspace whose launches go one by one, unless others are asked for.
pub const CALLS_BEFORE: u32 = 2;

/// So many calls in a row on another stream than a submission's make it that stream's. The driver does what it launches as one behind the same one's last launch, on whatever stream that was, so that others go one by one.
const CALLS_ELSEWHERE: u32 = 8;

/// Fewer launches than these are no submission: one by itself may be placed while the kernel before it ends, whoever asked for that.
const LEAST: usize = 2;

/// What all submissions of a device may take of it at most: that many bytes, and such a part.
const MOST_BYTES: usize = 256 << 20;
const PART: usize = 64;

/// A program whose launches are submitted together.
#[derive(Debug)]
pub(super) struct Submits {
    all: Arc<Recordings>,
    /// Calls of a workspace whose launches go one by one.
    before: u32,
    stats: Stats,
}

/// The submissions of a workspace, by their segments.
#[derive(Debug, Default)]
pub(super) struct Submissions(Vec<Segment>);

#[derive(Debug)]
struct Segment {
    steps: Range<usize>,
    calls: u32,
    /// None before there were calls enough.
    pieces: Vec<Piece>,
}

/// Steps that follow each other.
#[derive(Debug)]
enum Piece {
    /// One by one.
    Apart(Range<usize>),
    /// To be recorded by the next call.
    Wanted(Range<usize>),
    Together(Submission),
}

#[derive(Debug)]
struct Submission {
    steps: Range<usize>,
    work: Box<dyn Replayed>,
    /// The words that are recorded, of these launches.
    words: Vec<u64>,
    stream: Stream,
    /// Calls in a row on others.
    elsewhere: u32,
    share: Share,
}

impl Submissions {
    /// Whether there are any.
    pub fn are_made(&self) -> bool {
        let made = |piece: &Piece| matches!(piece, Piece::Together(_));
        self.0.iter().flat_map(|segment| &segment.pieces).any(made)
    }

    fn segment(&mut self, steps: &Range<usize>) -> &mut Segment {
        let ends = |steps: &Range<usize>| (steps.start, steps.end);
        let known = self
            .0
            .binary_search_by_key(&ends(steps), |s| ends(&s.steps));
        let at = known.unwrap_or_else(|at| {
            let steps = steps.clone();
            let (calls, pieces) = (0, vec![]);
            self.0.insert(
                at,
                Segment {
                    steps,
                    calls,
                    pieces,
                },
            );
            at
        });
        &mut self.0[at]
    }
}

impl Piece {
    fn steps(&self) -> Range<usize> {
        match self {
            Self::Apart(steps) | Self::Wanted(steps) => steps.clone(),
            Self::Together(submission) => submission.steps.clone(),
        }
    }
}

impl Program {
    /// Launches that follow each other are submitted together after so many calls of the same sizes ([`CALLS_BEFORE`]), where the device can do that; `None`: they go one by one.
    pub fn submit_together(&mut self, before: Option<u32>) {
        let all = self.device.submissions().cloned();
        self.submits = all.zip(before).map(|(all, before)| Submits {
            all,
            before,
            stats: Stats::default(),
        });
    }

    /// How many submissions there are, and of how many launches, of all sizes together; `None` where launches go one by one.
    pub fn submissions(&self) -> Option<(usize, usize)> {
        let stats = &self.submits.as_ref()?.stats;
        let (made, bytes) = stats.change(|stats| (stats.recordings, stats.bytes));
        Some((made, bytes / LAUNCH_BYTES))
    }

    /// Runs steps that follow each other; those that were recorded together are launched as one, unless somebody watches each step.
    ///
    /// # Safety
    /// As [`Program::run_steps`].
    pub(super) unsafe fn run_together(
        &self,
        instance: &Instance,
        steps: Range<usize>,
        workspace: &mut Workspace,
        between: &mut Watch<'_>,
    ) -> Result<()> {
        let alone = between.is_nobody() && !self.waits && !tape::is_any();
        let may = |_: &&Submits| alone && steps.len() >= LEAST;
        let Some(submits) = self.submits.as_ref().filter(may) else {
            // SAFETY: promised by the caller.
            return unsafe { self.run_steps(instance, steps, workspace, between) };
        };
        let segment = workspace.submissions.segment(&steps);
        if segment.calls < submits.before || self.device.is_recording(workspace.stream) {
            segment.calls = segment.calls.saturating_add(1);
            // SAFETY: promised by the caller.
            return unsafe { self.run_steps(instance, steps, workspace, between) };
        }
        let mut pieces = std::mem::take(&mut segment.pieces);
        if pieces.is_empty() {
            pieces = self.pieces(instance, steps.clone());
        }
        let ran = pieces.iter_mut().try_for_each(|piece| {
            // SAFETY: promised by the caller.
            unsafe { self.run_piece(submits, instance, piece, workspace) }
        });
        workspace.submissions.segment(&steps).pieces = pieces;
        ran
    }

    /// The steps as runs of launches that can be given other words, and what is between them.
    fn pieces(&self, instance: &Instance, steps: Range<usize>) -> Vec<Piece> {
        let follows = |step: usize| match &instance.steps[step] {
            ReadyStep::Launch { kernel, maps, .. } => {
                maps.is_empty() && self.kernels[*kernel].follows()
            }
            ReadyStep::Copy { .. } | ReadyStep::External => false,
        };
        let mut pieces: Vec<Piece> = vec![];
        let mut first = steps.start;
        while first < steps.end {
            let alike = follows(first);
            let behind = (first..steps.end).find(|&step| follows(step) != alike);
            let run = first..behind.unwrap_or(steps.end);
            first = run.end;
            if alike && self.launches(instance, &run) >= LEAST {
                pieces.push(Piece::Wanted(run));
            } else if let Some(Piece::Apart(last)) = pieces.last_mut() {
                last.end = run.end;
            } else {
                pieces.push(Piece::Apart(run));
            }
        }
        pieces
    }

    /// # Safety
    /// As [`Program::run_steps`].
    unsafe fn run_piece(
        &self,
        submits: &Submits,
        instance: &Instance,
        piece: &mut Piece,
        workspace: &mut Workspace,
    ) -> Result<()> {
        if let Piece::Wanted(steps) = piece {
            let steps = steps.clone();
            // SAFETY: promised by the caller.
            let made = unsafe { self.submission(submits, instance, steps.clone(), workspace) };
            *piece = made.map_or(Piece::Apart(steps), Piece::Together);
        }
        if let Piece::Together(submission) = piece
            && submission.is_of(workspace.stream)
        {
            // SAFETY: promised by the caller.
            match unsafe { self.submit(submission, instance, workspace) } {
                Err(error) if error.code != Code::KernelFault => {
                    // Nothing has run.
                    *piece = Piece::Apart(piece.steps());
                }
                launched => return launched,
            }
        }
        // SAFETY: promised by the caller.
        unsafe { self.run_steps(instance, piece.steps(), workspace, &mut Watch::nobody()) }
    }

    /// # Safety
    /// As [`Program::run_steps`].
    unsafe fn submit(
        &self,
        submission: &mut Submission,
        instance: &Instance,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let steps = submission.steps.clone();
        fill(instance, steps.clone(), workspace);
        let now = &workspace.words[words_of(instance, &steps)];
        let recorded = (steps, &mut submission.words[..]);
        let moved = follow(&mut *submission.work, self, instance, recorded, now)?;
        moved.ok_or_else(|| err!(Internal, "a launch that cannot follow"))?;
        // SAFETY: the words that are recorded are those of this call, whose addresses the caller answers for.
        unsafe { submission.work.launch(workspace.stream) }?;
        submission.share.touch();
        Ok(())
    }

    /// Launches recorded with the addresses of this call; an error where there is no room or the driver refuses.
    ///
    /// # Safety
    /// As [`Program::run_steps`].
    unsafe fn submission(
        &self,
        submits: &Submits,
        instance: &Instance,
        steps: Range<usize>,
        workspace: &mut Workspace,
    ) -> Result<Submission> {
        let launches = self.launches(instance, &steps);
        let limit = MOST_BYTES.min(self.device.memory_summary()?.total / PART);
        let share = Share::take(
            &submits.all,
            launches * LAUNCH_BYTES,
            limit,
            &workspace.waits_in,
            &submits.stats,
        );
        let share = share.ok_or_else(|| err!(TooLarge, "no room for {launches} launches"))?;
        // SAFETY: promised by the caller.
        let work = unsafe { self.record_steps(instance, steps.clone(), workspace) }?;
        Ok(Submission {
            words: workspace.words[words_of(instance, &steps)].to_vec(),
            steps,
            work,
            stream: workspace.stream,
            elsewhere: 0,
            share,
        })
    }
}

impl Submission {
    /// Whether it may be launched there, which a call wants.
    fn is_of(&mut self, stream: Stream) -> bool {
        if self.stream == stream {
            self.elsewhere = 0;
            return true;
        }
        self.elsewhere += 1;
        if self.elsewhere > CALLS_ELSEWHERE {
            (self.stream, self.elsewhere) = (stream, 0);
        }
        self.stream == stream
    }
}

/// The words of launches that follow each other.
fn words_of(instance: &Instance, steps: &Range<usize>) -> Range<usize> {
    let words = |step: usize| match instance.steps.get(step) {
        Some(ReadyStep::Launch { words, .. }) => words.clone(),
        _ => 0..0,
    };
    words(steps.start).start..words(steps.end.saturating_sub(1)).end
}
