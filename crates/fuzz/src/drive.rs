//! Many cases on several workers, counted.

use crate::case::{Check, Found, Kind, Mismatch, numbers};
use crate::judge::Judged;
use crate::shrink::shrink;
use crate::supervise::Crumbs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oxyfuel_engine::Target;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub kind: Kind,
    /// Indices from the first to before the second.
    pub range: (u64, u64),
    /// Of these, the ones that are the first modulo the second.
    pub shard: (u64, u64),
    pub seed: u64,
    pub threads: usize,
    pub limit: Option<Duration>,
    /// Mismatches after which nothing more is begun.
    pub keep: usize,
}

/// What was checked.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Indices, whatever they mean.
    pub cases: u64,
    pub programs: u64,
    pub compared: u64,
    /// Elements of graphs' results: those of tile programs are the same bits.
    pub judged: Judged,
    pub without_code: u64,
    pub mismatches: usize,
    /// Sum over what the interpreter computed: the same for the same cases, whoever checks them in whatever order.
    pub digest: u64,
    pub taken: Duration,
    /// Where to go on, if it stopped early.
    pub next: Option<u64>,
}

impl Tally {
    fn add(&mut self, found: Found) {
        self.cases += 1;
        self.programs += found.programs;
        self.compared += found.compared;
        self.judged += found.judged;
        self.without_code += found.without_code;
        self.digest = self.digest.wrapping_add(found.digest);
    }

    fn join(&mut self, other: &Self) {
        self.cases += other.cases;
        self.programs += other.programs;
        self.compared += other.compared;
        self.judged += other.judged;
        self.without_code += other.without_code;
        self.mismatches += other.mismatches;
        self.digest = self.digest.wrapping_add(other.digest);
    }

    fn rate(&self) -> f64 {
        self.cases as f64 / self.taken.as_secs_f64().max(1e-9)
    }

    pub fn line(&self, plan: &Plan) -> String {
        let mut line = format!(
            "{}: {} cases, {} programs, {} comparisons, {} kernels without code, {} mismatches, digest {:016x}; {:.1} s, {:.0} a second",
            plan.kind.name(),
            self.cases,
            self.programs,
            self.compared,
            self.without_code,
            self.mismatches,
            self.digest,
            self.taken.as_secs_f64(),
            self.rate()
        );
        if self.judged.values > 0 {
            let Judged {
                values,
                widened,
                left_out,
            } = self.judged;
            line += &format!(
                "\n{}: {values} values; {widened} within what rounding costs them, {left_out} left out since it decides over them ({:.4} %)",
                plan.kind.name(),
                100.0 * left_out as f64 / values as f64
            );
        }
        if let Some(next) = self.next {
            line += &format!(
                "\n{}: stopped early; the rest is --{} {next}..{}",
                plan.kind.name(),
                plan.kind.name(),
                plan.range.1
            );
        }
        line
    }

    pub fn json(&self, plan: &Plan) -> serde_json::Value {
        json!({
            "from": plan.range.0,
            "to": self.next.unwrap_or(plan.range.1),
            "shard": format!("{}/{}", plan.shard.0, plan.shard.1),
            "cases": self.cases,
            "programs": self.programs,
            "comparisons": self.compared,
            "values": self.judged.values,
            "values_widened": self.judged.widened,
            "values_left_out": self.judged.left_out,
            "kernels_without_code": self.without_code,
            "mismatches": self.mismatches,
            "digest": format!("{:016x}", self.digest),
            "seconds": self.taken.as_secs_f64(),
        })
    }
}

/// Indices that a worker takes at a time.
const BLOCK: u64 = 16;

/// Checks every index of the plan. Mismatches are printed as they come.
pub fn drive(plan: &Plan, targets: &[Target], crumbs: Option<&Crumbs>) -> Result<Tally, String> {
    let begin = Instant::now();
    let next = AtomicU64::new(plan.range.0);
    let mismatches = AtomicUsize::new(0);
    let total = Mutex::new(Tally::default());
    let bar = progress(plan);
    let has_time = || plan.limit.is_none_or(|limit| begin.elapsed() < limit);
    let work = |worker: usize| {
        let mut check = plan.kind.worker(targets);
        let mut tally = Tally::default();
        while has_time() && mismatches.load(Ordering::Relaxed) < plan.keep {
            let from = next.fetch_add(BLOCK, Ordering::Relaxed);
            if from >= plan.range.1 {
                break;
            }
            let before = tally.cases;
            for index in from..(from + BLOCK).min(plan.range.1) {
                if index % plan.shard.1 != plan.shard.0 {
                    continue;
                }
                if let Some(crumbs) = crumbs {
                    crumbs.note(worker, plan.kind, index);
                }
                let numbers = numbers(plan.kind, plan.seed, index);
                match guarded(&mut *check, &numbers) {
                    Ok(found) => tally.add(found),
                    Err(mismatch) => {
                        tally.cases += 1;
                        tally.mismatches += 1;
                        mismatches.fetch_add(1, Ordering::Relaxed);
                        let (small, text) = smallest(&mut *check, numbers, mismatch);
                        bar.suspend(|| report(plan, index, &small, &text));
                    }
                }
            }
            bar.inc(tally.cases - before);
        }
        if let Ok(mut total) = total.lock() {
            total.join(&tally);
        }
    };
    std::thread::scope(|scope| {
        for worker in 0..plan.threads {
            let work = &work;
            scope.spawn(move || work(worker));
        }
    });
    bar.finish_and_clear();
    let mut total = total
        .into_inner()
        .map_err(|_| "a worker panicked".to_owned())?;
    total.taken = begin.elapsed();
    // Blocks are handed out in order and finished once begun.
    let reached = next.into_inner();
    total.next = (reached < plan.range.1).then_some(reached);
    Ok(total)
}

/// The check; a panic is a mismatch too.
fn guarded(check: &mut dyn Check, numbers: &[u32]) -> Result<Found, Mismatch> {
    let outcome = catch_unwind(AssertUnwindSafe(|| check.check(numbers)));
    outcome.unwrap_or_else(|payload| {
        let said = (payload.downcast_ref::<String>().map(String::as_str))
            .or_else(|| payload.downcast_ref::<&str>().copied());
        Err(Mismatch {
            why: format!("panic: {}", said.unwrap_or("without a word")),
            text: check.text(numbers),
        })
    })
}

/// The smallest numbers that go wrong, and how.
fn smallest(check: &mut dyn Check, numbers: Vec<u32>, first: Mismatch) -> (Vec<u32>, Mismatch) {
    let mut last = first;
    let small = shrink(numbers, |numbers| match guarded(check, numbers) {
        Ok(_) => false,
        Err(mismatch) => {
            last = mismatch;
            true
        }
    });
    (small, last)
}

fn report(plan: &Plan, index: u64, numbers: &[u32], mismatch: &Mismatch) {
    println!(
        "MISMATCH {} {index} (seed {}), smallest form of {} numbers {numbers:?}\n; {}\n{}",
        plan.kind.name(),
        plan.seed,
        numbers.len(),
        mismatch.why.replace('\n', "\n; "),
        mismatch.text
    );
}

fn progress(plan: &Plan) -> ProgressBar {
    let count = (plan.range.1 - plan.range.0) / plan.shard.1;
    let style = ProgressStyle::with_template(
        "{prefix} {bar:30} {human_pos} of {human_len}, {per_sec}, {elapsed} of about {duration}",
    );
    // A log gets no bar: the last line of a run says everything.
    ProgressBar::with_draw_target(Some(count), ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(plan.kind.name())
}
