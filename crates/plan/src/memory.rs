//! Offsets for buffers whose lifetimes are known.
//!
//! Buffers of known size come first in the arena: largest first, each at the lowest place where no living neighbour is. Behind them lie *slots* for buffers of symbolic size, one after the other. A slot is as
//! large as the buffer that opened it; another buffer lives in it at another time where the ranges of the symbols prove that it fits.

use oxyfuel_base::{Expr, Ranges, Result, err};

/// A request for memory from step `first` to step `last`, both included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    pub bytes: Expr,
    /// A guess of the bytes: good for the order in which slots are opened, never for their size.
    pub likely: i64,
    pub align: u64,
    pub first: u32,
    pub last: u32,
    /// How many times symbols got their numbers before it lives: its offset must not depend on what is known later.
    pub epoch: u32,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Offsets in the order of the requests, and the bytes that hold them all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    pub offsets: Vec<Expr>,
    pub total: Expr,
}

/// Places every request so that no two that live at once overlap.
pub fn plan_memory(requests: &[Lifetime], ranges: &Ranges) -> Result<MemoryPlan> {
    let mut fixed: Vec<(usize, Fixed)> = Vec::new();
    let mut symbolic: Vec<usize> = Vec::new();
    for (i, request) in requests.iter().enumerate() {
        match request.bytes.check()?.as_const() {
            Some(bytes) => {
                let bytes = u64::try_from(bytes)
                    .map_err(|_| err!(SizeOverflow, "a buffer of {bytes} bytes"))?;
                let (align, first, last) = (request.align, request.first, request.last);
                let request = Fixed {
                    bytes,
                    align,
                    first,
                    last,
                };
                fixed.push((i, request));
            }
            None => symbolic.push(i),
        }
    }
    let (places, total): (Vec<usize>, Vec<Fixed>) = fixed.into_iter().unzip();
    let (numbers, total) = plan_fixed(&total);
    let number = |n: u64| i64::try_from(n).map_err(|_| err!(SizeOverflow, "an arena of {n} bytes"));
    let mut offsets = vec![Expr::ZERO; requests.len()];
    for (i, offset) in places.into_iter().zip(numbers) {
        offsets[i] = Expr::constant(number(offset)?);
    }
    let mut total = Expr::constant(number(total)?);
    symbolic.sort_by_key(|&i| {
        let request = &requests[i];
        (
            request.epoch,
            std::cmp::Reverse(request.likely),
            request.first,
        )
    });
    let mut slots: Vec<(Expr, &Expr, Vec<usize>)> = Vec::new();
    for i in symbolic {
        let request = &requests[i];
        let align = i64::try_from(request.align.max(1)).unwrap_or(1);
        let fits = |(_, bytes, tenants): &&mut (Expr, &Expr, Vec<usize>)| {
            tenants.iter().all(|&t| !requests[t].meets(request))
                && (*bytes == &request.bytes || request.bytes.provably_le(bytes, ranges))
        };
        match slots.iter_mut().find(fits) {
            Some((offset, _, tenants)) => {
                offsets[i] = offset.clone();
                tenants.push(i);
            }
            None => {
                let offset = total.round_up(align);
                total = (&offset + &request.bytes.round_up(align)).check()?.clone();
                offsets[i] = offset.clone();
                slots.push((offset, &request.bytes, vec![i]));
            }
        }
    }
    Ok(MemoryPlan { offsets, total })
}

/// A request of known size.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    bytes: u64,
    align: u64,
    first: u32,
    last: u32,
}

fn plan_fixed(requests: &[Fixed]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(requests[i].bytes), requests[i].first, i));
    let mut offsets = vec![0; requests.len()];
    // By offset, so that gaps show in one pass.
    let mut placed: Vec<usize> = Vec::with_capacity(requests.len());
    let mut total = 0;
    for i in order {
        let request = requests[i];
        let taken = placed
            .iter()
            .filter(|&&j| requests[j].first <= request.last && request.first <= requests[j].last)
            .map(|&j| (offsets[j], offsets[j] + requests[j].bytes));
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
        placed.insert(placed.partition_point(|&j| offsets[j] <= at), i);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Symbol;

    fn request(bytes: impl Into<Expr>, first: u32, last: u32) -> Lifetime {
        Lifetime {
            bytes: bytes.into(),
            likely: 0,
            align: 64,
            first,
            last,
            epoch: 0,
        }
    }

    fn plan(requests: &[Lifetime]) -> MemoryPlan {
        let mut ranges = Ranges::new();
        ranges.set(Symbol(0), 0, 1 << 20);
        plan_memory(requests, &ranges).unwrap()
    }

    fn numbers(plan: &MemoryPlan) -> Vec<i64> {
        let number = |e: &Expr| e.as_const().unwrap();
        plan.offsets.iter().map(number).collect()
    }

    #[test]
    fn buffers_that_never_live_together_share_memory() {
        let plan = plan(&[request(128, 0, 1), request(128, 2, 3)]);
        assert_eq!(numbers(&plan), [0, 0]);
        assert_eq!(plan.total, 128);
    }

    #[test]
    fn buffers_that_live_together_do_not() {
        let plan = plan(&[request(100, 0, 2), request(64, 1, 3), request(64, 3, 4)]);
        assert_eq!(numbers(&plan), [0, 128, 0]);
        assert_eq!(plan.total, 192);
    }

    /// No two requests that live at once overlap, and all of them are aligned and inside, whatever the symbol is.
    fn sound(requests: &[Lifetime], plan: &MemoryPlan) {
        for n in [0, 1, 3, 16, 17, 1000] {
            let value = |e: &Expr| e.eval(&|_| Some(n)).unwrap();
            for (i, a) in requests.iter().enumerate() {
                let begin = value(&plan.offsets[i]);
                let end = begin + value(&a.bytes);
                assert!(begin % 64 == 0 && end <= value(&plan.total));
                for (j, b) in requests[..i].iter().enumerate() {
                    let other = value(&plan.offsets[j]);
                    let apart = end <= other || other + value(&b.bytes) <= begin;
                    assert!(!a.meets(b) || apart, "{i} and {j} overlap for {n}");
                }
            }
        }
    }

    #[test]
    fn a_gap_is_used_when_it_is_large_enough() {
        let requests = [
            request(512, 0, 0),
            request(256, 0, 5),
            request(512, 1, 1),
            request(64, 1, 1),
        ];
        sound(&requests, &plan(&requests));
    }

    #[test]
    fn symbolic_buffers_share_where_ranges_prove_that_they_fit() {
        let n = || Expr::symbol(Symbol(0));
        let requests = [
            request(n() * 8, 0, 1),
            request(n() * 4, 2, 3),
            request(n() * 4 + 4, 2, 3),
            request(100, 0, 3),
            request(n() * 8, 2, 4),
        ];
        let plan = plan(&requests);
        sound(&requests, &plan);
        // The second fits into the first, the third does not where n is 0, and the last meets them both.
        assert_eq!(plan.offsets[1], plan.offsets[0]);
        assert_ne!(plan.offsets[2], plan.offsets[0]);
    }

    #[test]
    fn an_offset_depends_on_nothing_that_is_known_later() {
        let (n, later) = (Expr::symbol(Symbol(0)), Expr::symbol(Symbol(1)));
        let mut second = request(&later * 1024, 3, 4);
        second.epoch = 1;
        second.likely = 1 << 30;
        let plan = plan(&[second, request(n, 0, 1)]);
        assert!(plan.offsets[1].symbols().is_empty());
    }
}
