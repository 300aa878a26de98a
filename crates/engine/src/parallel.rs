//! Work on several threads whose result does not depend on how many there are.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fewer items a thread are not worth starting it.
const WORTH_A_THREAD: usize = 4;

/// Applies `f` to every item on at most `threads` threads (0: as many as the machine allows), the caller's among them. Results come in the order of the items.
pub fn map<T: Sync, R: Send>(items: &[T], threads: usize, f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let allowed = match threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        n => n,
    };
    let threads = allowed.min(items.len() / WORTH_A_THREAD);
    if threads < 2 {
        return items.iter().map(f).collect();
    }
    // Items differ in size: whoever is free takes the next one.
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return done;
            };
            done.push((at, f(item)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|&(at, _)| at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_come_in_order_on_any_number_of_threads() {
        let items: Vec<u64> = (0..1000).collect();
        let expected: Vec<u64> = items.iter().map(|n| n * n).collect();
        for threads in [0, 1, 2, 3, 16] {
            assert_eq!(map(&items, threads, |n| n * n), expected);
        }
        assert_eq!(map(&[] as &[u64], 4, |n| n * n), [0u64; 0]);
    }
}
