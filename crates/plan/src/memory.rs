//! Offsets for buffers whose lifetimes are known.
//!
//! Buffers of known size come first in the arena: largest first, each at the lowest place where no living neighbour is. Behind them lie *slots* for buffers of symbolic size, one after the other. A slot is as
//! large as the buffer that opened it; another buffer lives in it at another time where the ranges of the symbols prove that it fits.
//!
//! Memory that will hold a result is *lent* until the result is written. A chain of kernels that pass on buffers of one size needs two at a time, one of which is the result's in the end. It is used where the arena
//! becomes smaller by it, and only there: what lies in a result begins and ends with the call.

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

/// Memory for requests that live from step `from` on and end before step `until`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    pub bytes: Expr,
    pub from: u32,
    pub until: u32,
}

impl Lent {
    fn takes(&self, first: u32, last: u32) -> bool {
        self.from <= first && last < self.until
    }
}

/// Where a request lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// This far into the arena.
    Arena(Expr),
    /// In memory that is lent, by its number, this far into it.
    Lent(usize, Expr),
}

/// Places in the order of the requests, and the bytes of the arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    pub places: Vec<Place>,
    pub total: Expr,
}

/// Places every request so that no two that live at once overlap.
pub fn plan_memory(requests: &[Lifetime], lent: &[Lent], ranges: &Ranges) -> Result<MemoryPlan> {
    let alone = place(requests, &[], ranges)?;
    let usable = requests.iter().any(|request| {
        let mut lent = lent.iter();
        lent.any(|lent| lent.takes(request.first, request.last))
    });
    if !usable {
        return Ok(alone);
    }
    let shared = place(requests, lent, ranges)?;
    let smaller = shared.total != alone.total && shared.total.provably_le(&alone.total, ranges);
    Ok(if smaller { shared } else { alone })
}

fn place(requests: &[Lifetime], lent: &[Lent], ranges: &Ranges) -> Result<MemoryPlan> {
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
    let (numbers, total) = plan_fixed(&total, lent);
    let number = |n: u64| i64::try_from(n).map_err(|_| err!(SizeOverflow, "an arena of {n} bytes"));
    let mut offsets = vec![Place::Arena(Expr::ZERO); requests.len()];
    for (i, (lender, offset)) in places.into_iter().zip(numbers) {
        let offset = Expr::constant(number(offset)?);
        offsets[i] = match lender {
            Some(lender) => Place::Lent(lender, offset),
            None => Place::Arena(offset),
        };
    }
    let mut total = Expr::constant(number(total)?);
    let turn = turn(lent);
    symbolic.sort_by_key(|&i| {
        let request = &requests[i];
        (
            request.epoch,
            std::cmp::Reverse(request.likely),
            turn(request.first),
        )
    });
    let any = Lent {
        bytes: Expr::ZERO,
        from: 0,
        until: u32::MAX,
    };
    let mut slots: Vec<Slot<'_>> = Vec::new();
    for (number, lent) in lent.iter().enumerate() {
        // Where the size is known, requests of known size lie there.
        if lent.bytes.as_const().is_none() {
            slots.push(Slot {
                place: Place::Lent(number, Expr::ZERO),
                bytes: &lent.bytes,
                open: lent,
                tenants: vec![],
            });
        }
    }
    for i in symbolic {
        let request = &requests[i];
        let align = i64::try_from(request.align.max(1)).unwrap_or(1);
        let fits = |slot: &&mut Slot<'_>| {
            slot.open.takes(request.first, request.last)
                && slot.tenants.iter().all(|&t| !requests[t].meets(request))
                && (slot.bytes == &request.bytes || request.bytes.provably_le(slot.bytes, ranges))
        };
        match slots.iter_mut().find(fits) {
            Some(slot) => {
                offsets[i] = slot.place.clone();
                slot.tenants.push(i);
            }
            None => {
                let offset = total.round_up(align);
                total = (&offset + &request.bytes.round_up(align)).check()?.clone();
                offsets[i] = Place::Arena(offset.clone());
                slots.push(Slot {
                    place: Place::Arena(offset),
                    bytes: &request.bytes,
                    open: &any,
                    tenants: vec![i],
                });
            }
        }
    }
    Ok(MemoryPlan {
        places: offsets,
        total,
    })
}

/// Memory of a symbolic size, for one request at a time.
struct Slot<'a> {
    place: Place,
    bytes: &'a Expr,
    open: &'a Lent,
    tenants: Vec<usize>,
}

/// A request of known size.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    bytes: u64,
    align: u64,
    first: u32,
    last: u32,
}

/// Of equal requests the first comes first; the last where memory is lent, since the end of a chain decides which of its links can lie in the result.
fn turn(lent: &[Lent]) -> impl Fn(u32) -> u32 {
    let backwards = !lent.is_empty();
    move |first| if backwards { u32::MAX - first } else { first }
}

/// Who lends the memory of each request, if anybody does, and the offset; and the bytes of the arena.
fn plan_fixed(requests: &[Fixed], lent: &[Lent]) -> (Vec<(Option<usize>, u64)>, u64) {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let turn = turn(lent);
    order.sort_by_key(|&i| {
        let request = &requests[i];
        (std::cmp::Reverse(request.bytes), turn(request.first), i)
    });
    let mut offsets = vec![0; requests.len()];
    let mut lenders = vec![None; requests.len()];
    let room = |lent: &Lent| u64::try_from(lent.bytes.as_const()?).ok();
    let rooms: Vec<Option<u64>> = lent.iter().map(room).collect();
    // By offset, so that gaps show in one pass; of the arena, and of everything that is lent.
    let mut arena: Vec<usize> = Vec::with_capacity(requests.len());
    let mut tenants: Vec<Vec<usize>> = vec![vec![]; lent.len()];
    let mut total = 0;
    for i in order {
        let request = requests[i];
        let at = gap(&request, requests, &arena, &offsets);
        let end = at + request.bytes;
        let found = lent.iter().enumerate().find_map(|(number, lent)| {
            let room = rooms[number].filter(|_| lent.takes(request.first, request.last))?;
            let at = gap(&request, requests, &tenants[number], &offsets);
            (at + request.bytes <= room).then_some((number, at))
        });
        let (placed, at) = match found {
            Some((number, at)) if end > total => {
                lenders[i] = Some(number);
                (&mut tenants[number], at)
            }
            Some(_) | None => {
                total = total.max(end);
                (&mut arena, at)
            }
        };
        offsets[i] = at;
        placed.insert(placed.partition_point(|&j| offsets[j] <= at), i);
    }
    (lenders.into_iter().zip(offsets).collect(), total)
}

/// The lowest offset where nobody is who lives at the same time.
fn gap(request: &Fixed, requests: &[Fixed], placed: &[usize], offsets: &[u64]) -> u64 {
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
    at
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
        plan_memory(requests, &[], &ranges).unwrap()
    }

    fn offset(place: &Place) -> &Expr {
        match place {
            Place::Arena(offset) | Place::Lent(_, offset) => offset,
        }
    }

    fn numbers(plan: &MemoryPlan) -> Vec<i64> {
        let number = |place: &Place| offset(place).as_const().unwrap();
        plan.places.iter().map(number).collect()
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
    fn sound(requests: &[Lifetime], lent: &[Lent], plan: &MemoryPlan) {
        let lender = |i: usize| match &plan.places[i] {
            Place::Arena(_) => None,
            Place::Lent(lender, _) => Some(*lender),
        };
        for n in [0, 1, 3, 16, 17, 1000] {
            let value = |e: &Expr| e.eval(&|_| Some(n)).unwrap();
            for (i, a) in requests.iter().enumerate() {
                let begin = value(offset(&plan.places[i]));
                let end = begin + value(&a.bytes);
                let room = lender(i).map_or(&plan.total, |number| &lent[number].bytes);
                assert!(begin % 64 == 0 && end <= value(room));
                if let Some(number) = lender(i) {
                    assert!(lent[number].from <= a.first && a.last < lent[number].until);
                }
                for (j, b) in requests[..i].iter().enumerate() {
                    let other = value(offset(&plan.places[j]));
                    let apart =
                        end <= other || other + value(&b.bytes) <= begin || lender(i) != lender(j);
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
        sound(&requests, &[], &plan(&requests));
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
        sound(&requests, &[], &plan);
        // The second fits into the first, the third does not where n is 0, and the last meets them both.
        assert_eq!(plan.places[1], plan.places[0]);
        assert_ne!(plan.places[2], plan.places[0]);
    }

    #[test]
    fn an_offset_depends_on_nothing_that_is_known_later() {
        let (n, later) = (Expr::symbol(Symbol(0)), Expr::symbol(Symbol(1)));
        let mut second = request(&later * 1024, 3, 4);
        second.epoch = 1;
        second.likely = 1 << 30;
        let plan = plan(&[second, request(n, 0, 1)]);
        assert!(offset(&plan.places[1]).symbols().is_empty());
    }

    fn lend(bytes: impl Into<Expr>, from: u32, until: u32) -> Lent {
        Lent {
            bytes: bytes.into(),
            from,
            until,
        }
    }

    #[test]
    fn a_chain_takes_turns_with_the_memory_of_its_result() {
        let requests = [request(128, 0, 1), request(128, 1, 2), request(128, 2, 3)];
        let lent = [lend(128, 0, 3)];
        let plan = plan_memory(&requests, &lent, &Ranges::new()).unwrap();
        sound(&requests, &lent, &plan);
        assert_eq!(plan.total, 128);
        assert!(matches!(plan.places[1], Place::Lent(0, _)));
    }

    #[test]
    fn what_is_lent_is_left_alone_where_the_arena_is_as_small_without() {
        let requests = [request(128, 0, 1), request(64, 1, 1), request(128, 1, 2)];
        let lent = [lend(64, 0, 2)];
        let plan = plan_memory(&requests, &lent, &Ranges::new()).unwrap();
        sound(&requests, &lent, &plan);
        assert!(matches!(plan.places[1], Place::Lent(0, _)));
        // Three live at once here, and none of them fits.
        let requests = [request(128, 0, 1), request(128, 1, 2), request(128, 1, 3)];
        let plan = plan_memory(&requests, &lent, &Ranges::new()).unwrap();
        let arena = |place: &Place| matches!(place, Place::Arena(_));
        assert!(plan.places.iter().all(arena));
    }

    #[test]
    fn symbolic_results_are_lent_too() {
        let n = || Expr::symbol(Symbol(0));
        let requests = [
            request(n() * 8, 0, 1),
            request(n() * 8, 1, 2),
            request(40, 1, 2),
        ];
        let lent = [lend(n() * 8, 0, 2), lend(64, 0, 3)];
        let mut ranges = Ranges::new();
        ranges.set(Symbol(0), 0, 1 << 20);
        let plan = plan_memory(&requests, &lent, &ranges).unwrap();
        sound(&requests, &lent, &plan);
        assert_eq!(plan.places[0], Place::Lent(0, Expr::ZERO));
        assert_eq!(plan.places[2], Place::Lent(1, Expr::ZERO));
        assert!(matches!(plan.places[1], Place::Arena(_)));
    }

    proptest::proptest! {
        #[test]
        fn random_requests_never_overlap(
            requests in proptest::collection::vec((0..600i64, 0..12u32, 0..4u32, proptest::bool::ANY), 0..24),
            lent in proptest::collection::vec((0..2000i64, 0..12u32, 0..12u32, proptest::bool::ANY), 0..4),
        ) {
            let size = |bytes: i64, symbolic: bool| match symbolic {
                true => Expr::symbol(Symbol(0)) * bytes,
                false => Expr::constant(bytes),
            };
            let requests: Vec<Lifetime> = requests
                .into_iter()
                .map(|(bytes, first, length, symbolic)| request(size(bytes, symbolic), first, first + length))
                .collect();
            let lent: Vec<Lent> = lent
                .into_iter()
                .map(|(bytes, from, length, symbolic)| lend(size(bytes, symbolic), from, from + length))
                .collect();
            let mut ranges = Ranges::new();
            ranges.set(Symbol(0), 0, 1 << 20);
            let shared = plan_memory(&requests, &lent, &ranges).unwrap();
            sound(&requests, &lent, &shared);
            let alone = plan_memory(&requests, &[], &ranges).unwrap();
            sound(&requests, &[], &alone);
            for n in [0, 1, 7, 1000] {
                let value = |e: &Expr| e.eval(&|_| Some(n)).unwrap();
                assert!(value(&shared.total) <= value(&alone.total));
            }
        }
    }
}
