//! The pool under load: every id runs exactly once, whoever calls, however they nest, panic or fork.

use oxyfuel_runtime::openmp::OpenMp;
use oxyfuel_runtime::pool::{Pool, PoolOptions};
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn pool(threads: usize) -> Pool {
    Pool::new(PoolOptions::with_threads(threads))
}

thread_local! {
    static NUMBER: Cell<c_int> = const { Cell::new(0) };
}

/// How many threads a team of the naive runtime has at most.
const TEAM: c_uint = 3;

/// An OpenMP runtime as simple as it gets: every team starts its threads anew. It never gives more than [`TEAM`].
extern "C" fn parallel(
    body: extern "C" fn(*mut c_void),
    data: *mut c_void,
    threads: c_uint,
    _flags: c_uint,
) {
    let data = data as usize;
    std::thread::scope(|scope| {
        for number in 1..threads.min(TEAM) {
            scope.spawn(move || {
                NUMBER.set(c_int::try_from(number).unwrap());
                body(data as *mut c_void);
            });
        }
        body(data as *mut c_void);
    });
}

extern "C" fn thread_number() -> c_int {
    NUMBER.get()
}

fn hosted(threads: usize) -> Pool {
    // SAFETY: the two functions do what an OpenMP runtime's do.
    let host = unsafe { OpenMp::new(parallel, thread_number) };
    Pool::new(PoolOptions {
        host: Some(host),
        ..PoolOptions::with_threads(threads)
    })
}

fn counts(total: usize) -> Vec<AtomicU32> {
    (0..total).map(|_| AtomicU32::new(0)).collect()
}

fn all_are(counts: &[AtomicU32], n: u32) -> bool {
    counts.iter().all(|c| c.load(Ordering::Relaxed) == n)
}

fn mark(counts: &[AtomicU32], range: Range<usize>) {
    for id in range {
        counts[id].fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn every_id_runs_once() {
    let pools = [1, 2, 3, 4, 7].map(|threads| [pool(threads), hosted(threads)]);
    for pool in pools.as_flattened() {
        let threads = pool.threads();
        for total in [0, 1, 2, 3, 5, 64, 1000] {
            for min_chunk in [0, 1, 3, 2000] {
                let seen = counts(total);
                pool.run(total, min_chunk, &|_, range| mark(&seen, range));
                assert!(all_are(&seen, 1), "run {threads} {total} {min_chunk}");
                let seen = counts(total);
                pool.run_dynamic(total, min_chunk, &|_, range| mark(&seen, range));
                assert!(all_are(&seen, 1), "dynamic {threads} {total} {min_chunk}");
                let seen = counts(total);
                pool.run_work(total, min_chunk, &|_, range| mark(&seen, range));
                assert!(all_are(&seen, 1), "work {threads} {total} {min_chunk}");
            }
        }
    }
}

fn chunks_of(pool: &Pool, total: usize, min_chunk: usize) -> Vec<(usize, usize)> {
    let chunks = Mutex::new(vec![]);
    pool.run(total, min_chunk, &|_, range| {
        chunks.lock().unwrap().push((range.start, range.end))
    });
    let mut chunks = chunks.into_inner().unwrap();
    chunks.sort_unstable();
    chunks
}

#[test]
fn a_long_call_does_not_wait_for_a_late_thread() {
    let pool = pool(2);
    let (late, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    pool.run_work(1000, 1, &|worker, range| {
        if worker == 1 {
            // As late as can be: until the other thread has run all the rest.
            late.fetch_add(range.len(), Ordering::Relaxed);
            while done.load(Ordering::Relaxed) + range.len() < 1000 {
                std::thread::yield_now();
            }
        }
        done.fetch_add(range.len(), Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 1000);
    assert!(late.into_inner() <= 1000_usize.div_ceil(16));
}

#[test]
fn chunks_are_contiguous_balanced_and_the_same_busy_or_not() {
    let pool = pool(4);
    assert_eq!(chunks_of(&pool, 10, 1), [(0, 2), (2, 5), (5, 7), (7, 10)]);
    assert_eq!(chunks_of(&pool, 10, 5), [(0, 5), (5, 10)]);
    assert_eq!(chunks_of(&pool, 10, 11), [(0, 10)]);
    let nested = Mutex::new(vec![]);
    pool.run(4, 1, &|_, range| {
        if range.start == 0 {
            *nested.lock().unwrap() = chunks_of(&pool, 10, 1);
        }
    });
    assert_eq!(nested.into_inner().unwrap(), chunks_of(&pool, 10, 1));
}

#[test]
fn a_huge_total_does_not_overflow() {
    let pool = pool(3);
    let total = AtomicUsize::new(0);
    pool.run(usize::MAX, 1, &|_, range| {
        total.fetch_add(range.len(), Ordering::Relaxed);
    });
    assert_eq!(total.into_inner(), usize::MAX);
}

#[test]
fn worker_numbers_are_never_shared() {
    for (pool, calls) in [(pool(4), 500), (hosted(4), 50)] {
        numbers_are_never_shared(&pool, calls);
    }
}

fn numbers_are_never_shared(pool: &Pool, calls: usize) {
    let busy: Vec<AtomicU32> = counts(4);
    for _ in 0..calls {
        pool.run_dynamic(64, 1, &|worker, _| {
            assert_eq!(busy[worker].fetch_add(1, Ordering::SeqCst), 0);
            std::hint::spin_loop();
            busy[worker].fetch_sub(1, Ordering::SeqCst);
        });
    }
}

#[test]
fn threads_of_the_host_run_the_same_chunks() {
    let (own, lent) = (pool(4), hosted(4));
    for (total, min_chunk) in [(10, 1), (10, 5), (10, 11), (1000, 1)] {
        let lent = chunks_of(&lent, total, min_chunk);
        assert_eq!(lent, chunks_of(&own, total, min_chunk));
    }
}

#[test]
fn a_thread_of_the_host_begins_with_its_chunk() {
    let (ran_by, begun) = (Mutex::new(vec![]), AtomicU32::new(0));
    hosted(TEAM as usize).run(TEAM as usize, 1, &|worker, range| {
        // Nobody takes a second chunk while each waits for the others; where a chunk has no thread, the wait ends and the order below is wrong.
        begun.fetch_add(1, Ordering::SeqCst);
        let limit = Instant::now() + Duration::from_secs(10);
        while begun.load(Ordering::SeqCst) < TEAM && Instant::now() < limit {
            std::thread::yield_now();
        }
        ran_by.lock().unwrap().push((worker, range.start));
    });
    let mut ran_by = ran_by.into_inner().unwrap();
    ran_by.sort_unstable();
    assert_eq!(ran_by, [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn eight_threads_call_one_pool() {
    let pool = pool(3);
    let seen = counts(100);
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for round in 0..300 {
                    if round % 2 == 0 {
                        pool.run(100, 1, &|_, range| mark(&seen, range));
                    } else {
                        pool.run_dynamic(100, 7, &|_, range| mark(&seen, range));
                    }
                    if round % 64 == 0 {
                        pool.hush();
                    }
                }
            });
        }
    });
    assert!(all_are(&seen, 8 * 300));
}

#[test]
fn nested_calls_run_inline() {
    for pool in [pool(4), hosted(4)] {
        nested_call_runs_inline(&pool);
    }
}

fn nested_call_runs_inline(pool: &Pool) {
    let seen = counts(16 * 16);
    pool.run(16, 1, &|_, outer| {
        for o in outer {
            pool.run(16, 1, &|_, inner| {
                mark(&seen, o * 16 + inner.start..o * 16 + inner.end)
            });
        }
    });
    assert!(all_are(&seen, 1));
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    for pool in [pool(4), hosted(4)] {
        panic_reaches_the_caller(&pool);
    }
}

fn panic_reaches_the_caller(pool: &Pool) {
    for victim in 0..4 {
        for _ in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(4, 1, &|_, range| {
                    assert!(!range.contains(&victim), "chunk {victim}")
                });
            }));
            let payload = caught.expect_err("the panic must arrive");
            assert_eq!(
                payload.downcast_ref::<String>().unwrap(),
                &format!("chunk {victim}")
            );
            let seen = counts(50);
            pool.run(50, 1, &|_, range| mark(&seen, range));
            assert!(all_are(&seen, 1));
        }
    }
}

#[test]
fn sleeping_workers_wake() {
    let pool = Pool::new(PoolOptions {
        threads: 4,
        spin: Duration::ZERO,
        host: None,
    });
    for _ in 0..200 {
        let seen = counts(64);
        pool.run(64, 1, &|_, range| mark(&seen, range));
        assert!(all_are(&seen, 1));
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_long_chunk_lets_the_caller_sleep() {
    let pool = pool(2);
    let ran = AtomicU32::new(0);
    for _ in 0..20 {
        pool.run(2, 1, &|_, _| {
            // Both chunks take long, so neither thread can steal the other's.
            std::thread::sleep(Duration::from_millis(2));
            ran.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(ran.into_inner(), 40);
}

#[test]
fn pools_come_and_go() {
    for _ in 0..50 {
        let pool = pool(4);
        pool.run(8, 1, &|_, _| {});
    }
}

#[cfg(unix)]
#[test]
fn a_forked_child_has_a_pool_again() {
    for pool in [pool(3), hosted(3)] {
        child_has_a_pool_again(&pool);
    }
}

#[cfg(unix)]
fn child_has_a_pool_again(pool: &Pool) {
    pool.run(8, 1, &|_, _| {});
    // SAFETY: the child only uses the pool and leaves by `_exit`.
    let status = unsafe {
        match libc::fork() {
            0 => {
                let seen = counts(100);
                pool.run(100, 1, &|_, range| mark(&seen, range));
                libc::_exit(i32::from(!all_are(&seen, 1)))
            }
            pid => {
                let mut status = -1;
                libc::waitpid(pid, &mut status, 0);
                status
            }
        }
    };
    assert_eq!(status, 0);
    let seen = counts(100);
    pool.run(100, 1, &|_, range| mark(&seen, range));
    assert!(all_are(&seen, 1));
}
