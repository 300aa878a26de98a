//! Counting instructions: an [`Arith`] that computes nothing.

use std::cell::Cell;

use super::arith::Arith;

#[derive(Debug, Default)]
pub(crate) struct Count {
    singles: Cell<u32>,
    doubles: Cell<u32>,
}

impl Count {
    pub(crate) fn total(&self) -> u32 {
        self.singles.get() + self.doubles.get()
    }

    /// Those that read or write f64.
    pub(crate) fn doubles(&self) -> u32 {
        self.doubles.get()
    }
}

/// Implements the methods named: each adds one to a counter, or is free.
macro_rules! counted {
    ($counter:ident: $($method:ident($($arg:ty),*);)*) => {$(
        fn $method(&self, $(_: $arg),*) {
            self.$counter.set(self.$counter.get() + 1);
        }
    )*};
    ($($method:ident($($arg:ty),*);)*) => {$(
        fn $method(&self, $(_: $arg),*) {}
    )*};
}

impl Arith for Count {
    type F = ();
    type I = ();
    type D = ();
    type L = ();
    type B = ();

    counted! {
        float(f32); int(i32); bits(()); of_bits(()); double(f64); long(u64); dbits(()); of_dbits(());
    }
    counted! { singles:
        add((), ()); sub((), ()); mul((), ()); div((), ()); fma((), (), ()); min((), ());
        max((), ()); neg(()); abs(()); sqrt(()); exp2(()); near_exp2(()); near_recip(()); near_rsqrt(()); lt((), ()); eq((), ()); select((), (), ());
        nonzero(()); to_float(()); iadd((), ()); isub((), ()); and((), ()); or((), ());
        xor((), ()); shl((), i32); shr((), i32);
    }
    counted! { doubles:
        widen(()); narrow(()); dadd((), ()); dsub((), ()); dmul((), ()); dfma((), (), ());
        ddiv((), ()); dmin((), ()); dmax((), ()); deq((), ()); dneg(()); dround(()); dselect((), (), ()); dto_int(());
        dabs(()); dsqrt(()); dtrunc(()); dlt((), ()); ladd((), ()); lsub((), ()); land((), ()); lor((), ());
        lshl((), i32); lshr((), i32); lnonzero(());
    }
}
