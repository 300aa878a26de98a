//! Positions in order on a GPU: a block of threads has one row, whose length is known. Long rows that are wanted as a whole go another way ([`crate::digits`]).
//!
//! ```text
//!   few places are wanted   the last wanted key, bit by bit: how many keys lie below a candidate ─▶ what lies up to it, side by side ─▶ sorted
//!                             behind its first bits only keys that begin alike are looked at, where they fit into shared memory
//!   otherwise               all keys ─▶ sorted
//! ```
//!
//! Sorting is a bitonic network over pairs of a key and a position. No two pairs are equal, so that the order is that of a stable sort, and the same in every run, whatever threads do first.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Order, ReduceOp, Space};
use oxyfuel_plan::TargetDesc;

use crate::nest::{Nest, NestOp, Node};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::sort::{Sort, key_of, scalar};
use crate::team::{Before, Team};
use crate::tile::{Tiling, ceil_div};

/// Bytes of keys that a thread holds in registers, and threads that have as many; longer rows are read anew for every bit. More threads would take longer: what is done once a warp is most of the work.
const HELD_BYTES: i64 = 256;
const HOLDING: i64 = 512;
/// The most places for which choosing them first is tried; and of how many keys they must be one.
const MOST_CHOSEN: i64 = 4096;
const ONE_OF: i64 = 4;
/// Bits of the last wanted key that are found by looking at the whole row; and of how many keys that begin alike a thread looks at one for the others.
const FIRST_BITS: i64 = 12;
const ALIKE: i64 = 2;
/// Steps of the network whose elements a thread holds at a time.
const UNROLLED: i64 = 8;
/// Bytes of shared memory that are left to reductions.
const SPARE_BYTES: i64 = 4096;

/// How many pairs of a row of known length are sorted, and whether these are chosen among more.
#[derive(Clone, Copy)]
pub struct Places {
    length: i64,
    places: i64,
    pub chosen: bool,
}

impl Places {
    /// Those of rows whose length is known and not too large.
    pub fn of(nest: &Nest, (node, along): (Node, usize)) -> Option<Self> {
        let NestOp::Order { wanted, .. } = nest.values[node].op else {
            return None;
        };
        let length = nest.dims[along].as_const();
        let length = length.filter(|&n| (2..=1 << 30).contains(&n))?;
        let wanted = wanted.unwrap_or(length).clamp(1, length);
        let chosen = wanted <= MOST_CHOSEN && wanted * ONE_OF <= length;
        Some(Self {
            length,
            places: if chosen { wanted } else { length },
            chosen,
        })
    }

    /// A power of two that the network has room for.
    fn network(self) -> i64 {
        let network = self.places.unsigned_abs().next_power_of_two();
        i64::try_from(network).unwrap_or(self.places)
    }

    fn team(self, key_bytes: i64, target: &TargetDesc) -> Team {
        let read = if self.chosen {
            self.length / UNROLLED
        } else {
            1
        };
        let work = (self.network() / 2).max(read);
        match self.chosen && ceil_div(self.length, HOLDING) * key_bytes <= HELD_BYTES {
            true => Team::of(work.min(HOLDING), target),
            false => Team::of(work, target),
        }
    }

    /// Whether shared memory has room for the pairs.
    pub fn fit(self, key: DType, target: &TargetDesc) -> bool {
        let threads = self.team(key.size() as i64, target).threads;
        let shared = i64::from(target.shared_bytes) - SPARE_BYTES - 8 * threads;
        pair_bytes(key) * self.network() <= shared
    }
}

fn pair_bytes(key: DType) -> i64 {
    (key.size() + DType::I32.size()) as i64
}

/// Builds the program that sorts the rows of `nest` along a dim; nothing where the length of a row is not known.
pub fn select(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    (node, along): (Node, usize),
    target: &TargetDesc,
) -> Result<Option<(Program, Params)>> {
    let NestOp::Order { operand, .. } = nest.values[node].op else {
        return Ok(None);
    };
    let Some(places) = Places::of(nest, (node, along)) else {
        return Ok(None);
    };
    let network = places.network();
    let key = key_of(nest.values[operand].dtype);
    let team = places.team(key.size() as i64, target);
    let threads = team.threads;
    let k = KernelBuilder::mapped(&nest.name, team.geometry);
    let params = params_of(&k);
    team.lay_out(&k);
    let Some(sort) = Sort::of(nest, &params, (node, along), threads) else {
        return Ok(None);
    };
    let row = Row {
        length: places.length,
        places: places.places,
        network,
        threads,
        chosen: places.chosen,
        sort: &sort,
    };
    let far = (!places.fit(key, target)).then(|| {
        let len = sort.rows() * Expr::constant(network);
        let workspace = |name: &str, dtype| {
            k.buffer(name, dtype, BufferMode::Workspace, len.clone())
                .aligned(64)
        };
        [
            workspace("keys", sort.key_dtype()),
            workspace("positions", DType::I32),
        ]
    });
    let mut block = vec![1; nest.rank()];
    block[along] = threads;
    let tiling = Tiling::of(block);
    let blocks = Blocks::new(nest, &tiling, nest.reduced);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let frame = Frame::new(k, &params, nest, &tiling, &blocks);
        let pairs = match &far {
            Some([keys, positions]) => Pairs {
                keys: keys.clone(),
                positions: positions.clone(),
                first: Some(frame.row(along) * network),
            },
            None => Pairs {
                keys: k.alloc(Space::Shared, sort.key_dtype(), network, None),
                positions: k.alloc(Space::Shared, DType::I32, network, None),
                first: None,
            },
        };
        row.gather(k, &frame, &pairs);
        row.network(k, &pairs);
        row.store(k, &frame, &pairs);
    });
    Ok(Some((k.finish()?, params)))
}

/// What the network sorts.
struct Pairs {
    keys: Mem,
    positions: Mem,
    /// Where the row begins; nothing where the memory is the block's own.
    first: Option<Tile>,
}

impl Pairs {
    fn at(&self, place: &Tile) -> Tile {
        match &self.first {
            Some(first) => place.cast(DType::I64) + first,
            None => place.clone(),
        }
    }

    fn get(&self, k: &KernelBuilder, place: &Tile, mask: Option<&Tile>) -> [Tile; 2] {
        let at = self.at(place);
        [&self.keys, &self.positions].map(|mem| k.gather(mem, &at, mask, 0))
    }

    fn put(&self, k: &KernelBuilder, place: &Tile, [key, position]: [&Tile; 2], mask: &Tile) {
        let at = self.at(place);
        k.scatter(&self.keys, &at, key, Some(mask));
        k.scatter(&self.positions, &at, position, Some(mask));
    }
}

struct Row<'a> {
    length: i64,
    /// Pairs that are sorted, and the power of two that the network has room for.
    places: i64,
    network: i64,
    threads: i64,
    /// Whether the pairs are chosen among more.
    chosen: bool,
    sort: &'a Sort<'a>,
}

impl Row<'_> {
    fn bits(&self) -> i64 {
        i64::from(self.sort.key_dtype().bits())
    }

    /// The largest key, as beyond the end of a row.
    fn most(&self) -> i64 {
        i64::MAX >> (64 - self.bits())
    }

    fn threads_from(&self, k: &KernelBuilder, at: &Tile) -> Tile {
        k.iota(DType::I32, [self.threads], 0) + at.cast(DType::I32)
    }

    fn constant(&self, k: &KernelBuilder, dtype: DType, value: i64) -> Tile {
        k.full(dtype, [self.threads], value)
    }

    /// The keys from `at` on, one a thread.
    fn keys(&self, k: &KernelBuilder, frame: &Frame<'_>, at: &Tile) -> Tile {
        let keys = self.sort.keys(frame, at, self.threads);
        let keys = keys.broadcast_to([self.threads]);
        if self.length % self.threads == 0 {
            return keys;
        }
        let inside = self.threads_from(k, at).compare(CompareOp::Lt, self.length);
        inside.select(&keys, self.most())
    }

    /// Everything that the network sorts: what is wanted, and the largest pairs behind it.
    fn gather(&self, k: &KernelBuilder, frame: &Frame<'_>, pairs: &Pairs) {
        if self.chosen {
            self.choose(k, frame, pairs);
        } else {
            k.for_range(0, self.length, self.threads, [], |k, at, []| {
                let key = self.keys(k, frame, &at);
                let place = self.threads_from(k, &at);
                let inside = place.compare(CompareOp::Lt, self.length);
                pairs.put(k, &place, [&key, &place], &inside);
                []
            });
        }
        let begin = self.places - self.places % self.threads;
        let key = self.constant(k, self.sort.key_dtype(), self.most());
        let position = self.constant(k, DType::I32, i64::from(i32::MAX));
        k.for_range(begin, self.network, self.threads, [], |k, at, []| {
            let place = self.threads_from(k, &at);
            let beyond = place
                .compare(CompareOp::Ge, self.places)
                .binary(BinaryOp::And, place.compare(CompareOp::Lt, self.network));
            pairs.put(k, &place, [&key, &position], &beyond);
            []
        });
        k.sync();
    }

    /// The wanted pairs side by side, in any order: those below the last wanted key, and of that key those that stand first.
    fn choose(&self, k: &KernelBuilder, frame: &Frame<'_>, pairs: &Pairs) {
        let size = self.sort.key_dtype().size() as i64;
        let steps = ceil_div(self.length, self.threads);
        let held = (steps * size <= HELD_BYTES).then(|| {
            let starts = (0..steps).map(|i| k.constant(DType::I64, i * self.threads));
            let held = starts.map(|at| (self.keys(k, frame, &at), at));
            held.collect::<Vec<_>>()
        });
        // Folds over all keys and their positions, a chunk at a time.
        let fold = |k: &KernelBuilder,
                    start: Tile,
                    f: &dyn Fn(&KernelBuilder, Tile, &Tile, &Tile) -> Tile| {
            match &held {
                Some(held) => held.iter().fold(start, |sum, (key, at)| {
                    f(k, sum, key, &self.threads_from(k, at))
                }),
                None => {
                    let [sum] =
                        k.for_range(0, self.length, self.threads, [start], |k, at, [sum]| {
                            let key = self.keys(k, frame, &at);
                            [f(k, sum, &key, &self.threads_from(k, &at))]
                        });
                    sum
                }
            }
        };
        let zero = self.constant(k, DType::I32, 0);
        let one = self.constant(k, DType::I32, 1);
        let count = |k: &KernelBuilder, holds: &dyn Fn(&Tile, &Tile) -> Tile| {
            let ones = fold(k, zero.clone(), &|_, sum, key, position| {
                sum + holds(key, position).select(&one, &zero)
            });
            scalar(ones.reduce(ReduceOp::Sum, [0]))
        };
        // The largest number below which fewer than `enough` lie, by its bits below the shift `from` down to `to`, the highest first: that is the key of the last one wanted. And how many lie below, where one of these bits was set.
        let search = |k: &KernelBuilder,
                      dtype: DType,
                      (start, [from, to]): (Tile, [Tile; 2]),
                      enough: &Tile,
                      below: &dyn Fn(&Tile) -> Tile| {
            let none = k.constant(DType::I32, 0);
            k.for_range(
                0,
                &from - &to,
                1,
                [start, none],
                |k, done, [found, fewer]| {
                    let shift = (&from - &done - 1).cast(dtype);
                    let bit = k.constant(dtype, 1).binary(BinaryOp::Shl, shift);
                    let candidate = found.binary(BinaryOp::Xor, bit);
                    let there = below(&candidate);
                    let higher = there.compare(CompareOp::Lt, enough);
                    [
                        higher.select(&candidate, &found),
                        higher.select(&there, &fewer),
                    ]
                },
            )
        };
        let dtype = self.sort.key_dtype();
        let least = k.constant(dtype, i64::MIN >> (64 - self.bits()));
        let wanted = k.constant(DType::I32, self.places);
        let whole = |from: Tile, shifts: [i64; 2], enough: &Tile| {
            let bits = shifts.map(|shift| k.constant(DType::I64, shift));
            search(k, dtype, (from, bits), enough, &|candidate| {
                count(k, &|key, _| key.compare(CompareOp::Lt, candidate))
            })
        };
        let [last, fewer] = match self.bits() <= FIRST_BITS {
            true => whole(least, [self.bits(), 0], &wanted),
            false => {
                let rest = self.bits() - FIRST_BITS;
                let [found, fewer] = whole(least, [self.bits(), rest], &wanted);
                let begins = |key: &Tile| {
                    let differs = key.binary(BinaryOp::Xor, &found);
                    differs
                        .binary(BinaryOp::Shr, rest)
                        .compare(CompareOp::Eq, 0i64)
                };
                let own = fold(k, zero.clone(), &|_, sum, key, _| {
                    sum + begins(key).select(&one, &zero)
                });
                let total = scalar(own.reduce(ReduceOp::Sum, [0]));
                let fits = total.compare(CompareOp::Le, ALIKE * self.threads);
                let left = &wanted - &fewer;
                k.if_(
                    &fits,
                    |k| {
                        let alike = k.alloc(Space::Shared, dtype, ALIKE * self.threads, None);
                        let team = Before::new(k, self.threads, ReduceOp::Sum, DType::I32);
                        let before = team.up_to(k, own.clone()) - &own;
                        fold(k, before, &|k, place, key, _| {
                            let is_alike = begins(key);
                            k.scatter(&alike, &place, key, Some(&is_alike));
                            place + is_alike.select(&one, &zero)
                        });
                        k.sync();
                        // Places that nobody wrote hold the largest key, which is below none.
                        let keys: Vec<Tile> = (0..ALIKE)
                            .map(|i| {
                                let at =
                                    self.threads_from(k, &k.constant(DType::I64, i * self.threads));
                                let there = at.compare(CompareOp::Lt, &total);
                                let key = k.gather(&alike, &at, Some(&there), 0);
                                there.select(&key, self.most())
                            })
                            .collect();
                        let bits = [rest, 0].map(|shift| k.constant(DType::I64, shift));
                        let [last, more] =
                            search(k, dtype, (found.clone(), bits), &left, &|candidate| {
                                let below = |key: &Tile| {
                                    key.compare(CompareOp::Lt, candidate).select(&one, &zero)
                                };
                                let ones = keys.iter().map(below).reduce(|a, b| a + b);
                                scalar(
                                    ones.unwrap_or_else(|| zero.clone())
                                        .reduce(ReduceOp::Sum, [0]),
                                )
                            });
                        [last, &fewer + more]
                    },
                    |k| {
                        let below = |candidate: &Tile| {
                            count(k, &|key, _| key.compare(CompareOp::Lt, candidate))
                        };
                        let bits = [rest, 0].map(|shift| k.constant(DType::I64, shift));
                        let [last, more] = search(k, dtype, (found.clone(), bits), &wanted, &below);
                        // Where no candidate of these bits was low enough, what was found stays.
                        let same = last.compare(CompareOp::Eq, &found);
                        [last, same.select(&fewer, more)]
                    },
                )
            }
        };
        let equal = count(k, &|key, _| key.compare(CompareOp::Eq, &last));
        let left = &wanted - &fewer;
        // Where more have the last key than are wanted, their positions decide.
        let tied = equal.compare(CompareOp::Gt, &left);
        let all = k.constant(DType::I32, i64::from(i32::MAX));
        let first = tied.select(k.constant(DType::I32, 0), &all);
        let span = (steps * self.threads).unsigned_abs().next_power_of_two();
        let bits = tied.select(
            k.constant(DType::I64, i64::from(span.trailing_zeros())),
            k.constant(DType::I64, 0),
        );
        let [until, _] = search(
            k,
            DType::I32,
            (first, [bits, k.constant(DType::I64, 0)]),
            &left,
            &|candidate| {
                count(k, &|key, position| {
                    let equal = key.compare(CompareOp::Eq, &last);
                    equal.binary(BinaryOp::And, position.compare(CompareOp::Lt, candidate))
                })
            },
        );
        let is_wanted = |key: &Tile, position: &Tile| {
            let equal = key.compare(CompareOp::Eq, &last);
            let early = position.compare(CompareOp::Le, &until);
            key.compare(CompareOp::Lt, &last)
                .binary(BinaryOp::Or, equal.binary(BinaryOp::And, early))
        };
        let own = fold(k, zero.clone(), &|_, sum, key, position| {
            sum + is_wanted(key, position).select(&one, &zero)
        });
        let team = Before::new(k, self.threads, ReduceOp::Sum, DType::I32);
        let before = team.up_to(k, own.clone()) - own;
        fold(k, before, &|k, place, key, position| {
            let chosen = is_wanted(key, position);
            pairs.put(k, &place, [key, position], &chosen);
            place + chosen.select(&one, &zero)
        });
    }

    fn network(&self, k: &KernelBuilder, pairs: &Pairs) {
        let stages = i64::from(self.network.trailing_zeros());
        k.for_range(0, stages, 1, [], |k, stage, []| {
            let end = &stage + 1i64;
            k.for_range(0, &end, 1, [], |k, step, []| {
                let distance = (&stage - step).cast(DType::I32);
                self.step(k, pairs, &stage.cast(DType::I32), &distance);
                []
            });
            []
        });
    }

    /// Compares elements `2^distance` apart, in runs of `2^(stage + 1)` that go up and down by turns.
    fn step(&self, k: &KernelBuilder, pairs: &Pairs, stage: &Tile, distance: &Tile) {
        let comparisons = self.network / 2;
        let ordered = |k: &KernelBuilder, at: &Tile| {
            let number = self.threads_from(k, at);
            let one = k.constant(DType::I32, 1);
            let apart = one.binary(BinaryOp::Shl, distance);
            let within = number.binary(BinaryOp::And, &apart - 1);
            let low = number.binary(BinaryOp::Shr, distance);
            let low = low
                .binary(BinaryOp::Shl, distance + 1)
                .binary(BinaryOp::Or, within);
            let high = &low + &apart;
            let inside = number.compare(CompareOp::Lt, comparisons);
            let a = pairs.get(k, &low, Some(&inside));
            let b = pairs.get(k, &high, Some(&inside));
            let later = a[1].compare(CompareOp::Gt, &b[1]);
            let above = a[0]
                .compare(CompareOp::Eq, &b[0])
                .binary(BinaryOp::And, later);
            let above = a[0]
                .compare(CompareOp::Gt, &b[0])
                .binary(BinaryOp::Or, above);
            let run = low
                .binary(BinaryOp::Shr, stage + 1)
                .binary(BinaryOp::And, 1i64);
            let swap = above.binary(BinaryOp::Xor, run.compare(CompareOp::Ne, 0i64));
            let first = [0, 1].map(|i| swap.select(&b[i], &a[i]));
            let second = [0, 1].map(|i| swap.select(&a[i], &b[i]));
            (inside, [(low, first), (high, second)])
        };
        let store = |k: &KernelBuilder, (inside, both): (Tile, [(Tile, [Tile; 2]); 2])| {
            for (place, [key, position]) in both {
                pairs.put(k, &place, [&key, &position], &inside);
            }
        };
        if pairs.first.is_some() || comparisons > UNROLLED * self.threads {
            k.for_range(0, comparisons, self.threads, [], |k, at, []| {
                let made = ordered(k, &at);
                if pairs.first.is_none() {
                    k.sync();
                }
                store(k, made);
                []
            });
        } else {
            let starts = (0..ceil_div(comparisons, self.threads)).map(|i| i * self.threads);
            let made: Vec<_> = starts
                .map(|at| ordered(k, &k.constant(DType::I64, at)))
                .collect();
            k.sync();
            for made in made {
                store(k, made);
            }
        }
        k.sync();
    }

    fn store(&self, k: &KernelBuilder, frame: &Frame<'_>, pairs: &Pairs) {
        let wanted = self.wanted();
        let end = k.constant(DType::I64, wanted);
        k.for_range(0, wanted, self.threads, [], |k, at, []| {
            let place = self.threads_from(k, &at);
            let inside = place.compare(CompareOp::Lt, wanted);
            let [_, position] = pairs.get(k, &place, Some(&inside));
            let inner = frame.at_chunk_before(self.sort.along, &at, self.threads, &end);
            self.sort.put_tile(inner, position.cast(DType::I64));
            []
        });
    }

    fn wanted(&self) -> i64 {
        match self.sort.nest.values[self.sort.node].op {
            NestOp::Order {
                wanted: Some(wanted),
                ..
            } => wanted.clamp(1, self.length),
            _ => self.length,
        }
    }
}
