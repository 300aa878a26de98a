//! How long a launch on the pool takes: empty work, workers still spinning, and workers asleep.
//!
//! `cargo run --release -p oxyfuel-runtime --example pool_latency -- [threads]`

use oxyfuel_runtime::pool::{Pool, PoolOptions, default_threads};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn row(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize].as_nanos();
    println!(
        "{name:28} min {:6} ns   median {:6} ns   p90 {:6} ns",
        at(0.0),
        at(0.5),
        at(0.9)
    );
}

fn main() {
    let threads = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(default_threads);
    let pool = Pool::new(PoolOptions::with_threads(threads));
    let ran = AtomicUsize::new(0);
    let launch = || {
        let start = Instant::now();
        pool.run(threads, 1, &|_, range| {
            ran.fetch_add(range.len(), Ordering::Relaxed);
        });
        start.elapsed()
    };
    let inline = || {
        let start = Instant::now();
        pool.run(1, 1, &|_, range| {
            ran.fetch_add(range.len(), Ordering::Relaxed);
        });
        start.elapsed()
    };
    // Every chunk waits until all have begun, so that none can be taken over by the caller.
    let begun = AtomicUsize::new(0);
    let together = || {
        begun.store(0, Ordering::Relaxed);
        let start = Instant::now();
        pool.run(threads, 1, &|_, _| {
            begun.fetch_add(1, Ordering::SeqCst);
            let patience = Instant::now();
            // A machine with other work may never run all threads at once, and the caller may take several chunks.
            while begun.load(Ordering::SeqCst) < threads
                && patience.elapsed() < Duration::from_micros(50)
            {
                std::hint::spin_loop();
            }
        });
        start.elapsed()
    };
    println!("{threads} threads");
    for _ in 0..1000 {
        launch();
    }
    row(
        "one chunk, on the caller",
        (0..10_000).map(|_| inline()).collect(),
    );
    row(
        "a chunk each, spinning",
        (0..10_000).map(|_| launch()).collect(),
    );
    row(
        "all threads meet, spinning",
        (0..10_000).map(|_| together()).collect(),
    );
    let rest = |pause: Duration| {
        std::thread::sleep(pause);
        launch()
    };
    row(
        "a chunk each, asleep",
        (0..300).map(|_| rest(Duration::from_millis(1))).collect(),
    );
    assert_eq!(
        ran.load(Ordering::Relaxed),
        1000 * threads + 10_000 + 10_000 * threads + 300 * threads
    );
}
