//! The thread pool: a guest in someone's process.
//!
//! ```text
//!   caller  ──post──▶ [slot 1] [slot 2] … [slot n-1]      one cache line each
//!     │                  │        │           │
//!   chunk 0           chunk 1  chunk 2     chunk n-1      contiguous, the same every time
//!     │                  │        │           │
//!     └── takes back the slots nobody has started, runs them, waits for the rest
//! ```
//!
//! * Threads start at the first parallel call and are never pinned.
//! * The caller works too. A worker that does not start in time (its core belongs to someone else just now) loses its
//!   chunk to the caller.
//! * A call that lasts is cut finer, and threads take the pieces as they come ([`Pool::run_work`]).
//! * Which program ids form a chunk depends on the total, the smallest chunk and the number of threads alone; so does
//!   therefore every result, whoever runs a chunk and whether or not the pool was free.
//! * A waiting worker spins for [`PoolOptions::spin`], then sleeps. While it spins, a call makes no system call and
//!   allocates nothing.
//! * One call at a time has the workers. A nested call, or one from another thread meanwhile, runs on its own thread.
//! * A panic in a chunk reaches the caller after every chunk has ended.
//! * In a forked child the old threads do not exist: the first call starts new ones.
//! * Where the host lends the threads of its OpenMP runtime ([`PoolOptions::host`]), they run the chunks and the pool starts none. A forked child starts its
//!   own even then: an OpenMP runtime does not survive a fork.

use crate::cpu::features::Machine;
use crate::fork::{PerProcess, generation};
use crate::openmp::OpenMp;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a pool runs: called with the worker's number and the program ids to run. Within one call of the pool no two
/// threads are given the same number at the same time.
pub type Job<'a> = &'a (dyn Fn(usize, Range<usize>) + Sync);

/// How a pool behaves.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Threads that work on a call, the caller among them.
    pub threads: usize,
    /// How long an idle worker keeps looking for work before it sleeps.
    pub spin: Duration,
    /// Whose threads these are, if not the pool's own.
    pub host: Option<OpenMp>,
}

impl PoolOptions {
    /// `threads` threads (at least one) and the usual spinning.
    pub fn with_threads(threads: usize) -> Self {
        Self {
            threads: threads.max(1),
            spin: Duration::from_micros(30),
            host: None,
        }
    }
}

/// The number of threads when nobody said one: `OXYFUEL_NUM_THREADS`, else `OMP_NUM_THREADS`, else the cores that
/// affinity and cgroup quota leave us. This reads the environment and is meant for the edge (a command, a module's
/// start), which passes the number on as an argument.
pub fn default_threads() -> usize {
    let from = |name: &str| {
        // OpenMP allows a list with one number a nesting level.
        let value = std::env::var(name).ok()?;
        value
            .split(',')
            .next()?
            .trim()
            .parse::<usize>()
            .ok()
            .filter(|n| *n > 0)
    };
    from("OXYFUEL_NUM_THREADS")
        .or_else(|| from("OMP_NUM_THREADS"))
        .unwrap_or(Machine::get().physical_cores)
        .min(MAX_THREADS)
}

/// More threads than this are a mistake in a variable rather than a wish.
const MAX_THREADS: usize = 1024;

/// Smallest chunks a thread from which on a call lasts long enough to be disturbed.
const LASTING: usize = 64;

/// Pieces a thread of a call that lasts.
const PIECES: usize = 8;

/// A pool of threads; see the module.
#[derive(Debug)]
pub struct Pool {
    options: PoolOptions,
    crew: PerProcess<Crew>,
    /// A call has the threads of the host.
    lent: AtomicBool,
}

/// The worker's slot is free and the worker is looking at it.
const IDLE: u32 = 0;
/// The slot is free and the worker sleeps.
const ASLEEP: u32 = 1;
/// A chunk waits here; whoever turns this into `RUNNING` or `IDLE` runs it.
const POSTED: u32 = 2;
/// The worker runs the chunk.
const RUNNING: u32 = 3;
/// The worker shall end.
const EXIT: u32 = 4;

/// Two lines: the processor fetches them in pairs.
#[repr(align(128))]
#[derive(Debug)]
struct Slot(AtomicU32);

/// How a call's range is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    total: usize,
    chunks: usize,
    /// Whether threads take chunks as they come instead of each the one of its number.
    dynamic: bool,
}

impl Cut {
    fn chunk(&self, index: usize) -> Range<usize> {
        // Small work is one chunk, and a division of 128 bits is a good part of its time.
        if self.chunks == 1 {
            return 0..self.total;
        }
        let bound = |i: usize| (self.total as u128 * i as u128 / self.chunks as u128) as usize;
        bound(index)..bound(index + 1)
    }

    fn run_all(&self, job: Job<'_>) {
        for index in 0..self.chunks {
            job(0, self.chunk(index));
        }
    }
}

/// The call that has the workers. Written by the caller while no slot is posted or running, read by a worker only
/// after it took a posted slot.
struct Current {
    job: Job<'static>,
    cut: Cut,
}

struct Shared {
    slots: Box<[Slot]>,
    current: UnsafeCell<Option<Current>>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// The caller sleeps in `finished` until the last running slot is free.
    caller_sleeps: AtomicBool,
    sleeping: Mutex<()>,
    finished: Condvar,
    /// Workers go to sleep without spinning.
    hush: AtomicBool,
    spin: Duration,
}

// SAFETY: `current` is the only field without a lock or atomic; the protocol of the slots orders every access to it (see `Current`).
unsafe impl Sync for Shared {}
// SAFETY: nothing in it is bound to a thread; `Job` is `Sync` and called by reference.
unsafe impl Send for Shared {}

struct Crew {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    taken: AtomicBool,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew")
            .field("workers", &self.workers.len())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool; its threads start at the first call that needs them.
    pub fn new(options: PoolOptions) -> Self {
        let threads = options.threads.clamp(1, MAX_THREADS);
        Self {
            options: PoolOptions { threads, ..options },
            crew: PerProcess::new(),
            lent: AtomicBool::new(false),
        }
    }

    /// Threads that work on a call, the caller among them.
    pub fn threads(&self) -> usize {
        self.options.threads
    }

    /// Runs `job` over `0..total`, cut into at most one contiguous chunk a thread of at least `min_chunk` ids each
    /// (fewer only when there are fewer in all). Returns when all of it ran.
    pub fn run(&self, total: usize, min_chunk: usize, job: Job<'_>) {
        // A division is a good part of the time of small work.
        let chunks = match total < min_chunk.saturating_mul(2) {
            true => 1,
            false => (total / min_chunk.max(1)).clamp(1, self.options.threads),
        };
        self.launch(
            Cut {
                total,
                chunks,
                dynamic: false,
            },
            job,
        );
    }

    /// Runs `job` over `0..total` in chunks of about `chunk` ids that threads take as they come: for work whose cost
    /// varies from id to id. The chunks are always the same; who runs them is not.
    pub fn run_dynamic(&self, total: usize, chunk: usize, job: Job<'_>) {
        let chunks = total.div_ceil(chunk.max(1)).max(1);
        self.launch(
            Cut {
                total,
                chunks,
                dynamic: true,
            },
            job,
        );
    }

    /// As [`Pool::run`] for a short call; one that lasts is cut finer, and threads take the pieces as they come, so that
    /// a core that somebody else needs meanwhile does not keep the others waiting.
    pub fn run_work(&self, total: usize, min_chunk: usize, job: Job<'_>) {
        let threads = self.options.threads;
        if total < min_chunk.max(1).saturating_mul(LASTING * threads) {
            return self.run(total, min_chunk, job);
        }
        self.run_dynamic(total, total.div_ceil(PIECES * threads), job);
    }

    /// Sends idle workers to sleep now: before a step that runs on someone else's threads.
    pub fn hush(&self) {
        if let Some(crew) = self.crew.peek() {
            crew.shared.hush.store(true, Ordering::Relaxed);
        }
    }

    fn launch(&self, cut: Cut, job: Job<'_>) {
        if cut.total == 0 {
            return;
        }
        if cut.chunks == 1 || self.options.threads == 1 {
            return cut.run_all(job);
        }
        if let Some(host) = self.options.host.filter(|_| generation() == 0) {
            if self.lent.swap(true, Ordering::Acquire) {
                return cut.run_all(job);
            }
            let ran = lend(host, self.options.threads, cut, job);
            self.lent.store(false, Ordering::Release);
            if let Err(payload) = ran {
                resume_unwind(payload);
            }
            return;
        }
        let crew = self.crew.get_or_init(|| Crew::hire(self.options));
        if crew.workers.is_empty() || crew.taken.swap(true, Ordering::Acquire) {
            return cut.run_all(job);
        }
        crew.launch(cut, job);
    }
}

/// Runs a call on a team of the host's threads; `Err` is what a chunk panicked with.
fn lend(host: OpenMp, threads: usize, cut: Cut, job: Job<'_>) -> Result<(), Box<dyn Any + Send>> {
    let started = [const { AtomicU64::new(0) }; MAX_THREADS / 64];
    let start = |index: usize| {
        let bit = 1 << (index % 64);
        started[index / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0
    };
    let next = AtomicUsize::new(0);
    let panic = Mutex::new(None);
    host.team(threads, &|worker| {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            if cut.dynamic {
                return take_chunks(&next, worker, job, cut);
            }
            // The chunk of its number first: its core's cache may still hold what the last call left there. Then those of threads that are late, or that
            // the team does not have.
            for index in (worker..cut.chunks).chain(0..worker.min(cut.chunks)) {
                if start(index) {
                    job(worker, cut.chunk(index));
                }
            }
        }));
        if let Err(payload) = ran {
            let mut panic = panic.lock().unwrap_or_else(PoisonError::into_inner);
            panic.get_or_insert(payload);
        }
    });
    match panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(()),
        Some(payload) => Err(payload),
    }
}

/// Runs chunks as they come until none is left.
fn take_chunks(next: &AtomicUsize, worker: usize, job: Job<'_>, cut: Cut) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= cut.chunks {
            return;
        }
        job(worker, cut.chunk(index));
    }
}

impl Crew {
    /// Starts the workers; a system that refuses threads leaves a smaller crew.
    fn hire(options: PoolOptions) -> Self {
        let slots: Box<[Slot]> = (1..options.threads)
            .map(|_| Slot(AtomicU32::new(IDLE)))
            .collect();
        let shared = Arc::new(Shared {
            slots,
            current: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            caller_sleeps: AtomicBool::new(false),
            sleeping: Mutex::new(()),
            finished: Condvar::new(),
            hush: AtomicBool::new(false),
            spin: options.spin,
        });
        let workers = (0..shared.slots.len())
            .map_while(|index| {
                let shared = shared.clone();
                let name = format!("oxyfuel-{}", index + 1);
                std::thread::Builder::new()
                    .name(name)
                    .spawn(move || shared.work(index))
                    .ok()
            })
            .collect();
        Self {
            shared,
            workers,
            taken: AtomicBool::new(false),
        }
    }

    /// Runs a call whose caller has set `taken`.
    fn launch(&self, cut: Cut, job: Job<'_>) {
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased, and honoured: this function ends only when no slot is posted or running.
        let job_static: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: `taken` makes us the only caller and every slot is free, so no worker reads `current`.
        unsafe {
            *shared.current.get() = Some(Current {
                job: job_static,
                cut,
            })
        };
        shared.next.store(0, Ordering::Relaxed);
        shared.hush.store(false, Ordering::Relaxed);

        let posted = self.workers.len().min(cut.chunks - 1);
        for (slot, worker) in shared.slots.iter().zip(&self.workers).take(posted) {
            if slot.0.swap(POSTED, Ordering::AcqRel) == ASLEEP {
                worker.thread().unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| {
            if cut.dynamic {
                return take_chunks(&shared.next, 0, job, cut);
            }
            job(0, cut.chunk(0));
            // Chunks without a worker (a crew smaller than the number of threads).
            for index in posted + 1..cut.chunks {
                job(0, cut.chunk(index));
            }
            for (index, slot) in shared.slots[..posted].iter().enumerate() {
                if slot.take(IDLE) {
                    job(0, cut.chunk(index + 1));
                }
            }
        }));
        shared.wait(posted);
        // SAFETY: no slot is posted or running any more, so no worker reads `current`.
        unsafe { *shared.current.get() = None };
        let theirs = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.taken.store(false, Ordering::Release);
        if let Some(payload) = mine.err().or(theirs) {
            resume_unwind(payload);
        }
    }
}

/// How often a spinning thread looks between two glances at the clock.
const LOOKS: u32 = 32;

/// A stretch of spinning; the clock starts at the first question, so a short wait never reads it.
struct Patience {
    spin: Duration,
    since: Option<Instant>,
}

impl Patience {
    fn new(spin: Duration) -> Self {
        Self { spin, since: None }
    }

    fn is_over(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now).elapsed() > self.spin
    }
}

impl Slot {
    /// Takes a posted chunk and leaves the slot in `state`.
    fn take(&self, state: u32) -> bool {
        self.0
            .compare_exchange(POSTED, state, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

impl Shared {
    /// Waits until the first `posted` slots are free, taking back those that nobody has started.
    fn wait(&self, posted: usize) {
        let free = || {
            self.slots[..posted]
                .iter()
                .all(|slot| match slot.0.load(Ordering::SeqCst) {
                    // Its chunk ran already (dynamic), or its turn never came (a panic): nothing is left to do for it.
                    POSTED => slot.take(IDLE),
                    state => state != RUNNING,
                })
        };
        let mut patience = Patience::new(self.spin);
        loop {
            for _ in 0..LOOKS {
                if free() {
                    return;
                }
                std::hint::spin_loop();
            }
            if patience.is_over() {
                break;
            }
        }
        // A worker that frees its slot after our last look sees `caller_sleeps` and has to take the lock to wake us.
        let mut guard = self.sleeping.lock().unwrap_or_else(PoisonError::into_inner);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !free() {
            guard = self
                .finished
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// The life of a worker.
    fn work(&self, index: usize) {
        let slot = &self.slots[index];
        while self.next_call(slot) {
            // SAFETY: the slot is `RUNNING`, so the caller waits for us and `current` stays as it is.
            let Some(Current { job, cut }) = (unsafe { &*self.current.get() }) else {
                continue;
            };
            let ran = catch_unwind(AssertUnwindSafe(|| {
                if cut.dynamic {
                    take_chunks(&self.next, index + 1, job, *cut);
                } else {
                    job(index + 1, cut.chunk(index + 1));
                }
            }));
            if let Err(payload) = ran {
                self.panic
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(payload);
            }
            slot.0.store(IDLE, Ordering::SeqCst);
            if self.caller_sleeps.load(Ordering::SeqCst) {
                let _guard = self.sleeping.lock().unwrap_or_else(PoisonError::into_inner);
                self.finished.notify_all();
            }
        }
    }

    /// Waits for a posted chunk and takes it; false when the worker shall end.
    fn next_call(&self, slot: &Slot) -> bool {
        let mut patience = Patience::new(self.spin);
        loop {
            for _ in 0..LOOKS {
                match slot.0.load(Ordering::Relaxed) {
                    POSTED if slot.take(RUNNING) => return true,
                    EXIT => return false,
                    _ => std::hint::spin_loop(),
                }
            }
            let tired = self.hush.load(Ordering::Relaxed) || patience.is_over();
            if tired
                && slot
                    .0
                    .compare_exchange(IDLE, ASLEEP, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                while slot.0.load(Ordering::Acquire) == ASLEEP {
                    std::thread::park();
                }
                patience = Patience::new(self.spin);
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (slot, worker) in self.shared.slots.iter().zip(&self.workers) {
            slot.0.store(EXIT, Ordering::Release);
            worker.thread().unpark();
        }
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a job, so there is nothing to report here.
            let _ended = worker.join();
        }
    }
}
