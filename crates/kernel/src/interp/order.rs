//! What is known to have happened: clocks of the agents of one instance, barriers, and groups of asynchronous work.
//!
//! An *agent* is something that touches shared memory by itself: the warps of a role, the copy engine on behalf of a role's copy groups or of a barrier, the matrix unit on behalf of a role.
//! Each access carries a [`Stamp`], the agent and its time. A role may touch an element only when its [`Clock`] has reached the stamps of all conflicting accesses. Clocks
//! learn by waiting: a barrier hands on what everyone who arrived knew, a group wait makes the group's stamps known, `sync` makes a role's own accesses known to all of its warps, and
//! `fence_async` makes ordinary writes known to the asynchronous units.

use std::collections::HashMap;
use std::fmt;

use oxyfuel_base::{Error, Result, err};

/// Who touches memory. Numbers are those of roles (0: the instance before it splits), or of barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Agent {
    Warps(usize),
    CopyGroup(usize),
    Products(usize),
    Barrier(usize),
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warps(_) => f.write_str("warps that share no sync or barrier with it"),
            Self::CopyGroup(_) => f.write_str("an asynchronous copy group"),
            Self::Products(_) => f.write_str("an asynchronous product"),
            Self::Barrier(n) => write!(f, "a tensor load on barrier {n}"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub agent: Agent,
    pub time: u64,
}

/// Up to which time each agent's work is known to be done. `fenced` is the same for ordinary writes as seen by asynchronous units.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    known: HashMap<Agent, u64>,
    fenced: HashMap<Agent, u64>,
}

impl Clock {
    pub fn sees(&self, stamp: Stamp, asynchronous: bool) -> bool {
        let table = match stamp.agent {
            Agent::Warps(_) if asynchronous => &self.fenced,
            Agent::Warps(_) | Agent::CopyGroup(_) | Agent::Products(_) | Agent::Barrier(_) => {
                &self.known
            }
        };
        table
            .get(&stamp.agent)
            .is_some_and(|&time| time >= stamp.time)
    }

    pub fn learn(&mut self, agent: Agent, time: u64) {
        let known = self.known.entry(agent).or_default();
        *known = (*known).max(time);
    }

    fn fence(&mut self, agent: Agent, time: u64) {
        let fenced = self.fenced.entry(agent).or_default();
        *fenced = (*fenced).max(time);
    }

    pub fn join(&mut self, other: &Self) {
        for (agent, time) in &other.known {
            self.learn(*agent, *time);
        }
        for (agent, time) in &other.fenced {
            self.fence(*agent, *time);
        }
    }
}

/// A role's own account of time.
#[derive(Clone, Debug)]
pub(super) struct RoleTime {
    pub role: usize,
    pub clock: Clock,
    /// Time of the role's own ordinary accesses.
    pub now: u64,
    /// One thread needs no sync with itself.
    pub lone: bool,
    pub copies_committed: u64,
    pub products_committed: u64,
}

impl RoleTime {
    pub fn new(role: usize, clock: Clock, lone: bool) -> Self {
        let mut time = Self {
            role,
            clock,
            now: 1,
            lone,
            copies_committed: 0,
            products_committed: 0,
        };
        time.settle();
        time
    }

    fn settle(&mut self) {
        if self.lone {
            self.clock.learn(Agent::Warps(self.role), self.now);
        }
    }

    pub fn own(&self) -> Stamp {
        Stamp {
            agent: Agent::Warps(self.role),
            time: self.now,
        }
    }

    pub fn copy(&self) -> Stamp {
        Stamp {
            agent: Agent::CopyGroup(self.role),
            time: self.copies_committed + 1,
        }
    }

    pub fn product(&self) -> Stamp {
        Stamp {
            agent: Agent::Products(self.role),
            time: self.products_committed + 1,
        }
    }

    pub fn sync(&mut self) {
        self.clock.learn(Agent::Warps(self.role), self.now);
        self.now += 1;
        self.settle();
    }

    pub fn fence_async(&mut self) {
        self.clock.fence(Agent::Warps(self.role), self.now);
    }

    pub fn wait_copies(&mut self, pending: u32) {
        self.clock.learn(
            Agent::CopyGroup(self.role),
            self.copies_committed.saturating_sub(pending.into()),
        );
    }

    /// Returns how many groups of products are known to be done.
    pub fn wait_products(&mut self, pending: u32) -> u64 {
        let done = self.products_committed.saturating_sub(pending.into());
        self.clock.learn(Agent::Products(self.role), done);
        done
    }

    /// What somebody who waits for this role's arrival will know. Later accesses are later.
    fn release(&mut self) -> Clock {
        let mut clock = self.clock.clone();
        clock.learn(Agent::Warps(self.role), self.now);
        self.now += 1;
        self.settle();
        clock
    }
}

/// A barrier in shared memory.
#[derive(Clone, Debug)]
struct Barrier {
    number: usize,
    count: u32,
    arrived: u32,
    /// Announced bytes less delivered ones.
    bytes: i64,
    completed: u64,
    /// What those who arrived in the open phase know, and what the completed phases handed on.
    gathering: Clock,
    handed_on: Clock,
}

impl Barrier {
    fn settle(&mut self) {
        if self.arrived == self.count && self.bytes == 0 {
            self.arrived = 0;
            self.completed += 1;
            self.gathering
                .learn(Agent::Barrier(self.number), self.completed);
            let gathered = std::mem::take(&mut self.gathering);
            self.handed_on.join(&gathered);
        }
    }
}

/// The barriers of one instance, by memory and slot.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    table: HashMap<(usize, i64), Barrier>,
}

pub(super) type Place = (usize, i64);

impl Barriers {
    pub fn init(&mut self, at: Place, count: u32) -> Result<()> {
        let number = self.table.len();
        let fresh = Barrier {
            number,
            count,
            arrived: 0,
            bytes: 0,
            completed: 0,
            gathering: Clock::default(),
            handed_on: Clock::default(),
        };
        if self.table.insert(at, fresh).is_some() {
            return Err(err!(InvalidKernel, "barrier slot {} is made twice", at.1));
        }
        Ok(())
    }

    fn get(&mut self, at: Place) -> Result<&mut Barrier> {
        self.table.get_mut(&at).ok_or_else(|| -> Error {
            err!(
                InvalidKernel,
                "barrier slot {} is used before barrier_init",
                at.1
            )
        })
    }

    pub fn arrive(
        &mut self,
        at: Place,
        arrivals: u32,
        bytes: i64,
        role: &mut RoleTime,
    ) -> Result<()> {
        let barrier = self.get(at)?;
        if barrier.arrived + arrivals > barrier.count {
            return Err(err!(
                InvalidKernel,
                "barrier slot {} gets more than its {} arrivals",
                at.1,
                barrier.count
            ));
        }
        barrier.gathering.join(&role.release());
        barrier.bytes += bytes;
        barrier.arrived += arrivals;
        barrier.settle();
        Ok(())
    }

    /// The stamp of a copy that completes on the open phase.
    pub fn stamp(&mut self, at: Place) -> Result<Stamp> {
        let barrier = self.get(at)?;
        Ok(Stamp {
            agent: Agent::Barrier(barrier.number),
            time: barrier.completed + 1,
        })
    }

    pub fn deliver(&mut self, at: Place, bytes: i64) -> Result<()> {
        let barrier = self.get(at)?;
        barrier.bytes -= bytes;
        barrier.settle();
        Ok(())
    }

    /// Whether the phase of this parity has completed; if so, the role learns what it hands on.
    pub fn try_wait(&mut self, at: Place, parity: i64, role: &mut RoleTime) -> Result<bool> {
        let barrier = self.get(at)?;
        let done = i64::from(barrier.completed & 1 == 1) != parity;
        if done {
            role.clock.join(&barrier.handed_on);
        }
        Ok(done)
    }

    /// A sentence on each barrier that waits for something.
    pub fn describe(&self) -> String {
        let mut lines: Vec<_> = self.table.iter().collect();
        lines.sort_by_key(|(_, barrier)| barrier.number);
        let text = lines.iter().map(|((_, slot), b)| {
            format!(
                "slot {slot}: {} phases done, {} of {} arrived, {} bytes missing",
                b.completed, b.arrived, b.count, b.bytes
            )
        });
        text.collect::<Vec<_>>().join("; ")
    }
}
