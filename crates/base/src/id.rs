//! Typed ids, and the arena they index.
//!
//! An id is a number in one arena and means nothing in another; its type keeps values, blocks and
//! buffers apart. [`define_id!`](crate::define_id) makes one.
//!
//! ```
//! oxyfuel_base::define_id! {
//!     /// A value of a graph.
//!     pub struct ValueId "v"
//! }
//! let mut values = oxyfuel_base::Arena::<ValueId, &str>::new();
//! let x = values.push("x");
//! assert_eq!((x.to_string().as_str(), values[x]), ("%v0", "x"));
//! ```

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// What [`define_id!`](crate::define_id) implements: a `u32` with a name.
pub trait Id: Copy + Eq + Ord + std::hash::Hash + fmt::Debug {
    /// What stands between `%` and the number in text.
    const PREFIX: &'static str;

    /// The id of number `index`. Ids beyond `u32::MAX` do not exist; the index is clamped there,
    /// where no arena has an entry.
    fn from_index(index: usize) -> Self;

    /// The number.
    fn index(self) -> usize;
}

/// Defines `u32` ids: `define_id!(/// A value of a graph. pub struct ValueId "v");`
///
/// They are `Copy`, ordered, hashable, serialised as the number, and shown as `%v3`, which
/// `FromStr` reads back.
#[macro_export]
macro_rules! define_id {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident $prefix:literal);+ $(;)?) => {$(
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            $crate::id::serde::Serialize, $crate::id::serde::Deserialize,
        )]
        #[serde(transparent, crate = "oxyfuel_base::id::serde")]
        $vis struct $name(pub u32);

        impl $crate::Id for $name {
            const PREFIX: &'static str = $prefix;

            fn from_index(index: usize) -> Self {
                $name(u32::try_from(index).unwrap_or(u32::MAX))
            }

            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::write!(f, concat!("%", $prefix, "{}"), self.0)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::Error;

            fn from_str(s: &str) -> $crate::Result<Self> {
                $crate::id::parse_number(s, concat!("%", $prefix)).map($name)
            }
        }
    )+};
}

#[doc(hidden)]
pub use serde;

#[doc(hidden)]
pub fn parse_number(s: &str, prefix: &str) -> crate::Result<u32> {
    s.strip_prefix(prefix)
        .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| {
            crate::err!(
                InvalidLiteral,
                "`{}` is not an id like `{prefix}0`",
                s.escape_debug()
            )
        })
}

/// A growing list that hands out ids. Entries are never removed, so an id stays valid.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Arena<I, T> {
    items: Vec<T>,
    ids: PhantomData<I>,
}

impl<I: Id, T> Arena<I, T> {
    /// An empty arena.
    pub const fn new() -> Self {
        Arena {
            items: Vec::new(),
            ids: PhantomData,
        }
    }

    /// Appends and gives the new entry's id.
    pub fn push(&mut self, item: T) -> I {
        let id = self.next_id();
        self.items.push(item);
        id
    }

    /// The id the next [`push`](Self::push) will give.
    pub fn next_id(&self) -> I {
        I::from_index(self.items.len())
    }

    /// The entry, or `None` for an id of another arena.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// The entry, mutably.
    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.items.get_mut(id.index())
    }

    /// Whether the id has an entry here.
    pub fn contains(&self, id: I) -> bool {
        id.index() < self.items.len()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All ids in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::from_index)
    }

    /// All entries with their ids, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items
            .iter()
            .enumerate()
            .map(|(i, t)| (I::from_index(i), t))
    }

    /// All entries with their ids, in order, mutably.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (I, &mut T)> + ExactSizeIterator {
        self.items
            .iter_mut()
            .enumerate()
            .map(|(i, t)| (I::from_index(i), t))
    }

    /// All entries, in order.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// All entries, in order, mutably.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// The entries as a slice.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }
}

impl<I: Id, T> Default for Arena<I, T> {
    fn default() -> Self {
        Arena::new()
    }
}

impl<I: Id, T> FromIterator<T> for Arena<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(iter: It) -> Self {
        Arena {
            items: iter.into_iter().collect(),
            ids: PhantomData,
        }
    }
}

impl<I: Id, T> Extend<T> for Arena<I, T> {
    fn extend<It: IntoIterator<Item = T>>(&mut self, iter: It) {
        self.items.extend(iter);
    }
}

impl<I: Id, T> Index<I> for Arena<I, T> {
    type Output = T;

    /// Panics for an id of another arena, as a slice does.
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for Arena<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I: Id, T: fmt::Debug> fmt::Debug for Arena<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<I, T: Serialize> Serialize for Arena<I, T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.items.serialize(s)
    }
}

impl<'de, I, T: Deserialize<'de>> Deserialize<'de> for Arena<I, T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Arena {
            items: Vec::deserialize(d)?,
            ids: PhantomData,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    define_id! {
        /// A value.
        struct ValueId "v";
        /// A block.
        struct BlockId "bb"
    }

    #[test]
    fn arena_hands_out_ids_in_order() {
        let mut arena = Arena::<ValueId, &str>::new();
        let (a, b) = (arena.push("a"), arena.push("b"));
        assert!(a < b && arena[a] == "a" && arena.len() == 2);
        arena[b] = "c";
        assert_eq!(arena.iter().collect::<Vec<_>>(), [(a, &"a"), (b, &"c")]);
        assert_eq!(arena.get(ValueId(2)), None);
        assert_eq!(arena.ids().rev().collect::<Vec<_>>(), [b, a]);
    }

    #[test]
    fn ids_and_arenas_have_text_and_serde() {
        assert_eq!(
            (ValueId(3).to_string(), BlockId(0).to_string()),
            ("%v3".into(), "%bb0".into())
        );
        assert_eq!("%bb7".parse::<BlockId>().unwrap(), BlockId(7));
        for bad in ["", "%v", "v3", "%v-1", "%v+1", "%v99999999999", "%bb1"] {
            assert!(bad.parse::<ValueId>().is_err(), "{bad}");
        }
        let arena: Arena<ValueId, u8> = [1, 2].into_iter().collect();
        let json = serde_json::to_string(&arena).unwrap();
        assert_eq!(json, "[1,2]");
        assert_eq!(
            serde_json::from_str::<Arena<ValueId, u8>>(&json).unwrap(),
            arena
        );
        assert_eq!(serde_json::to_string(&ValueId(9)).unwrap(), "9");
    }
}
