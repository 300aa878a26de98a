//! What calls ask of the allocator once they are warm: almost nothing, however many there are.

use oxyfuel::{DType, Options, Tensor, compile, jit};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what this thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Requests of memory a call.
fn asked(mut call: impl FnMut()) -> f64 {
    (0..3).for_each(|_| call());
    let before = ASKED.get();
    (0..100).for_each(|_| call());
    (ASKED.get() - before) as f64 / 100.0
}

fn f(x: &Tensor, b: &Tensor) -> Tensor {
    (x + b).relu() * 2.0
}

#[test]
fn warm_calls_ask_for_the_lists_of_their_interface_alone() {
    let ramp = |shape: &[i64]| Tensor::randn(shape, DType::F32, 7);
    for shape in [&[1000][..], &[2, 3, 4, 5, 6]] {
        let (x, b) = (ramp(shape), ramp(shape));
        let compiled = compile(f, Options::default()).unwrap();
        // The list of results.
        assert_eq!(
            asked(|| drop(compiled.call(&[&x, &b]).unwrap())),
            1.0,
            "{shape:?}"
        );
        // A result is held while the next is computed.
        let mut last = compiled.call(&[&x, &b]).unwrap();
        assert_eq!(asked(|| last = compiled.call(&[&x, &b]).unwrap()), 1.0);
        // The lists of targets, and of those that are computed in place.
        let mut outputs = [Tensor::zeros(shape, DType::F32)];
        assert_eq!(
            asked(|| compiled.call_into(&[&x, &b], &mut outputs).unwrap()),
            2.0
        );
        let mut bound = compiled.bind(&[&x, &b], &[&outputs[0]]).unwrap();
        assert_eq!(asked(|| bound.call().unwrap()), 0.0);
        // The lists of the tensors among the arguments and of the results.
        let of_structures = jit(f, Options::default()).unwrap();
        assert_eq!(asked(|| drop(of_structures.call((&x, &b)).unwrap())), 2.0);
        let expected = f(&x, &b).to_vec::<f32>().unwrap();
        for result in [&last[0], &outputs[0]] {
            assert_eq!(result.to_vec::<f32>().unwrap(), expected);
        }
    }
}
