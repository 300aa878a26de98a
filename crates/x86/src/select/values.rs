//! Tables by value: ids are small and dense, so that a table is a vector and a look-up an index.

use oxyfuel_base::Id;
use oxyfuel_kernel::ir::{Op, Val};

/// What is known of some values.
#[derive(Clone, Debug)]
pub struct Values<T> {
    slots: Vec<Option<T>>,
}

impl<T> Values<T> {
    /// Nothing yet, with room for the values of a program.
    pub fn new(count: usize) -> Values<T> {
        let mut slots = Vec::new();
        slots.resize_with(count, || None);
        Values { slots }
    }

    pub fn get(&self, v: &Val) -> Option<&T> {
        self.slots.get(v.index())?.as_ref()
    }

    pub fn get_mut(&mut self, v: &Val) -> Option<&mut T> {
        self.slots.get_mut(v.index())?.as_mut()
    }

    pub fn insert(&mut self, v: Val, what: T) -> Option<T> {
        if self.slots.len() <= v.index() {
            self.slots.resize_with(v.index() + 1, || None);
        }
        self.slots[v.index()].replace(what)
    }

    pub fn remove(&mut self, v: &Val) -> Option<T> {
        self.slots.get_mut(v.index())?.take()
    }

    /// The values that something is known of, in the order of their numbers.
    pub fn keys(&self) -> impl Iterator<Item = Val> {
        let known = self.slots.iter().enumerate();
        known.filter_map(|(at, slot)| slot.as_ref().map(|_| Val::from_index(at)))
    }
}

/// A set of values.
#[derive(Clone, Debug)]
pub struct Marks {
    bits: Vec<u64>,
}

impl Marks {
    pub fn new(count: usize) -> Marks {
        Marks {
            bits: vec![0; count.div_ceil(64)],
        }
    }

    /// Whether it was not in the set before.
    pub fn insert(&mut self, v: Val) -> bool {
        let (word, bit) = (v.index() / 64, 1 << (v.index() % 64));
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        let fresh = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        fresh
    }

    pub fn contains(&self, v: Val) -> bool {
        let word = self.bits.get(v.index() / 64).copied().unwrap_or(0);
        word >> (v.index() % 64) & 1 == 1
    }
}

/// At most three operands.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    list: [Val; 3],
    count: usize,
}

impl Operands {
    const NONE: Operands = Operands {
        list: [Val(0); 3],
        count: 0,
    };

    pub fn one(v: Val) -> Operands {
        Operands::NONE.and(v)
    }

    fn and(mut self, v: Val) -> Operands {
        self.list[self.count] = v;
        self.count += 1;
        self
    }

    fn and_maybe(self, v: Option<Val>) -> Operands {
        match v {
            Some(v) => self.and(v),
            None => self,
        }
    }
}

impl std::ops::Deref for Operands {
    type Target = [Val];

    fn deref(&self) -> &[Val] {
        &self.list[..self.count]
    }
}

impl IntoIterator for Operands {
    type Item = Val;
    type IntoIter = std::iter::Take<std::array::IntoIter<Val, 3>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().take(self.count)
    }
}

/// The operands of a tile op that are themselves evaluated element by element.
pub fn operands(op: &Op) -> Operands {
    let none = Operands::NONE;
    match op {
        Op::Load { mask, .. } => none.and_maybe(*mask),
        Op::Store { value, mask, .. } => none.and(*value).and_maybe(*mask),
        Op::Gather { index, mask, .. } => none.and(*index).and_maybe(*mask),
        Op::Scatter {
            index, value, mask, ..
        }
        | Op::Atomic {
            index, value, mask, ..
        } => none.and(*index).and(*value).and_maybe(*mask),
        Op::Broadcast { value }
        | Op::Reshape { value }
        | Op::Permute { value, .. }
        | Op::Unary { value, .. }
        | Op::Cast { value }
        | Op::Bitcast { value }
        | Op::Reduce { value, .. }
        | Op::ArgReduce { value, .. }
        | Op::Scan { value, .. }
        | Op::Sort { value, .. }
        | Op::ConvertLayout { value } => none.and(*value),
        Op::Binary { lhs, rhs, .. } | Op::Compare { lhs, rhs, .. } => none.and(*lhs).and(*rhs),
        Op::Select {
            cond,
            on_true,
            on_false,
        } => none.and(*cond).and(*on_true).and(*on_false),
        Op::Fma { a, b, c } | Op::Dot { a, b, acc: c } => none.and(*a).and(*b).and(*c),
        // Sources, and what is executed where it stands.
        Op::Splat { .. }
        | Op::Iota { .. }
        | Op::ProgramId { .. }
        | Op::NumPrograms { .. }
        | Op::Const { .. }
        | Op::For { .. }
        | Op::If { .. }
        | Op::Pick { .. }
        | Op::Alloc
        | Op::Mma { .. }
        | Op::MmaCommit
        | Op::MmaWait { .. }
        | Op::TensorLoad { .. }
        | Op::TensorStore { .. }
        | Op::CopyAsync { .. }
        | Op::CopyCommit
        | Op::CopyWait { .. }
        | Op::BarrierInit { .. }
        | Op::BarrierArrive { .. }
        | Op::BarrierWait { .. }
        | Op::Sync
        | Op::FenceAsync
        | Op::Roles { .. } => none,
    }
}
