//! Offsets for buffers whose lifetimes are known: largest first, each at the lowest place where no living neighbour is.

use serde::{Deserialize, Serialize};

/// A request for memory from step `first` to step `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    pub bytes: u64,
    pub align: u64,
    pub first: u32,
    pub last: u32,
}

/// Offsets in the order of the requests, and the bytes that hold them all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlan {
    pub offsets: Vec<u64>,
    pub total: u64,
}

/// Places every request so that no two that live at once overlap.
pub fn plan_memory(requests: &[Lifetime]) -> MemoryPlan {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(requests[i].bytes), requests[i].first, i));
    let mut offsets = vec![0; requests.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(requests.len());
    let mut total = 0;
    for i in order {
        let request = requests[i];
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&j| requests[j].first <= request.last && request.first <= requests[j].last)
            .map(|&j| (offsets[j], offsets[j] + requests[j].bytes))
            .collect();
        taken.sort_unstable();
        let align = request.align.max(1);
        let mut at = 0u64;
        for (begin, end) in taken {
            if at + request.bytes <= begin {
                break;
            }
            at = at.max(end.next_multiple_of(align));
        }
        offsets[i] = at;
        total = total.max(at + request.bytes);
        placed.push(i);
    }
    MemoryPlan { offsets, total }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: u64, first: u32, last: u32) -> Lifetime {
        Lifetime {
            bytes,
            align: 64,
            first,
            last,
        }
    }

    #[test]
    fn buffers_that_never_live_together_share_memory() {
        let plan = plan_memory(&[request(128, 0, 1), request(128, 2, 3)]);
        assert_eq!(
            plan,
            MemoryPlan {
                offsets: vec![0, 0],
                total: 128
            }
        );
    }

    #[test]
    fn buffers_that_live_together_do_not() {
        let plan = plan_memory(&[request(100, 0, 2), request(64, 1, 3), request(64, 3, 4)]);
        assert_eq!(plan.offsets, [0, 128, 0]);
        assert_eq!(plan.total, 192);
    }

    #[test]
    fn a_gap_is_used_when_it_is_large_enough() {
        let requests = [
            request(512, 0, 0),
            request(256, 0, 5),
            request(512, 1, 1),
            request(64, 1, 1),
        ];
        let plan = plan_memory(&requests);
        for i in 0..requests.len() {
            for j in 0..i {
                let (a, b) = (requests[i], requests[j]);
                let together = a.first <= b.last && b.first <= a.last;
                let apart = plan.offsets[i] + a.bytes <= plan.offsets[j]
                    || plan.offsets[j] + b.bytes <= plan.offsets[i];
                assert!(!together || apart, "{i} and {j} overlap");
            }
        }
    }
}
