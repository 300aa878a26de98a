//! Programs that are wrong in ways that numbers would not show: the interpreter must say so.

use crate::common::{bytes_of, numbers};
use oxyfuel_base::{Code, Error};
use oxyfuel_kernel::examples::{self, Epilogue, WgmmaTile};
use oxyfuel_kernel::interp::{Arg, run};
use oxyfuel_kernel::{DType, Scalar, parse, verify};

/// Runs the staged matrix product after a change of its text.
fn run_changed(change: impl Fn(&str) -> Option<String>) -> Result<(), Error> {
    let tile = WgmmaTile {
        consumers: 2,
        columns: 64,
        stages: 2,
        group: 1,
        epilogue: Epilogue::Staged,
    };
    let text = examples::wgmma_matmul(tile).unwrap().to_string();
    let changed: String = text
        .lines()
        .filter_map(change)
        .map(|line| line + "\n")
        .collect();
    let program = parse("changed", &changed).unwrap();
    let [m, n, k] = [128usize, 64, 320];
    let (a, b) = (
        bytes_of(DType::BF16, &numbers(1, m * k)),
        bytes_of(DType::BF16, &numbers(2, k * n)),
    );
    let mut c = vec![0; m * n * 2];
    let int = |n: usize| Arg::Scalar(Scalar::I(n as i64));
    let dtype = DType::BF16;
    run(
        &program,
        &mut [
            int(m),
            int(n),
            int(k),
            Arg::Input { dtype, bytes: &a },
            Arg::Input { dtype, bytes: &b },
            Arg::Buffer {
                dtype,
                bytes: &mut c,
            },
        ],
    )
}

fn without(word: &'static str) -> Result<(), Error> {
    run_changed(move |line| (!line.contains(word)).then(|| line.to_string()))
}

#[test]
fn the_product_is_right_unchanged() {
    run_changed(|line| Some(line.to_string())).unwrap();
}

#[test]
fn consumers_must_wait_for_full_stages() {
    let seen = std::cell::Cell::new(0);
    let error = run_changed(move |line| {
        let wait = line.contains("barrier_wait");
        if wait {
            seen.set(seen.get() + 1);
        }
        // The producer's wait is the first; the others are the consumers'.
        (!wait || seen.get() == 1).then(|| line.to_string())
    })
    .unwrap_err();
    // Reading an empty stage shows as uninitialised; a filled one that was not waited for as a race.
    assert!(
        matches!(error.code, Code::DataRace | Code::UninitializedRead),
        "{error}"
    );
}

#[test]
fn the_producer_must_wait_for_empty_stages() {
    let seen = std::cell::Cell::new(0);
    let error = run_changed(move |line| {
        let wait = line.contains("barrier_wait");
        if wait {
            seen.set(seen.get() + 1);
        }
        (!(wait && seen.get() == 1)).then(|| line.to_string())
    })
    .unwrap_err();
    assert!(
        matches!(error.code, Code::DataRace | Code::InvalidKernel),
        "{error}"
    );
}

#[test]
fn a_stage_is_released_only_when_its_products_are_done() {
    let error = run_changed(|line| Some(line.replace("mma_wait 1", "mma_wait 2"))).unwrap_err();
    assert_eq!(error.code, Code::DataRace, "{error}");
}

#[test]
fn accumulators_are_read_after_the_last_wait() {
    let error = run_changed(|line| Some(line.replace("mma_wait 0", "mma_wait 1"))).unwrap_err();
    assert!(
        error.code == Code::DataRace && error.message.contains("mma_wait"),
        "{error}"
    );
}

#[test]
fn copies_of_ordinary_writes_need_a_fence() {
    assert_eq!(without("fence_async").unwrap_err().code, Code::DataRace);
}

#[test]
fn roles_that_wait_for_each_other_are_a_deadlock() {
    let error = run_changed(|line| Some(line.replace("count 2", "count 3"))).unwrap_err();
    assert!(
        error.code == Code::InvalidKernel && error.message.contains("deadlock"),
        "{error}"
    );
}

/// Runs a logical program over one f32 buffer of `len` elements.
fn run_text(body: &str, grid: usize, mode: &str, len: usize) -> Result<Vec<u8>, Error> {
    let text = format!(
        "kernel @t logical {{ param %x: buffer f32 {mode} align 4 len {len}\n phase grid [{grid}] plain {{ {body} }} }}"
    );
    let program = parse("t", &text)?;
    verify(&program)?;
    let mut x = bytes_of(DType::F32, &numbers(1, len));
    run(
        &program,
        &mut [Arg::Buffer {
            dtype: DType::F32,
            bytes: &mut x,
        }],
    )?;
    Ok(x)
}

#[test]
fn bounds_are_checked() {
    assert!(run_text("%t: f32[4] = load %x[0; 1]", 1, "read", 4).is_ok());
    assert_eq!(
        run_text("%t: f32[4] = load %x[1; 1]", 1, "read", 4)
            .unwrap_err()
            .code,
        Code::OutOfBounds
    );
    assert_eq!(
        run_text("%t: f32[4] = load %x[0; -1]", 1, "read", 4)
            .unwrap_err()
            .code,
        Code::OutOfBounds
    );
    let huge = format!("%t: f32[4] = load %x[0; {}]", i64::MAX);
    assert_eq!(
        run_text(&huge, 1, "read", 4).unwrap_err().code,
        Code::OutOfBounds
    );
    assert!(run_text("%t: f32[4] = load %x[1; 1] valid [3]", 1, "read", 4).is_ok());
    assert!(run_text("%t: f32[4] = load %x[1; 1] valid [-7]", 1, "read", 4).is_ok());
}

#[test]
fn undefined_contents_are_not_read() {
    let body = "%t: f32[4] = load %x[0; 1]";
    assert!(run_text(body, 1, "readwrite", 4).is_ok());
    assert_eq!(
        run_text(body, 1, "workspace", 4).unwrap_err().code,
        Code::UninitializedRead
    );
    assert_eq!(
        run_text(body, 1, "write", 4).unwrap_err().code,
        Code::UninitializedRead
    );
}

#[test]
fn instances_do_not_share_elements() {
    let store = "%c: f32 = const 1.0 %t: f32[2] = splat %c store %x[0; 1], %t";
    assert!(run_text(store, 1, "write", 4).is_ok());
    assert_eq!(
        run_text(store, 2, "write", 4).unwrap_err().code,
        Code::DataRace
    );
    let apart = "%p: i64 = program_id 0 %two: i64 = const 2 %b: i64 = mul %p, %two %c: f32 = const 1.0 %t: f32[2] = splat %c store %x[%b; 1], %t";
    assert!(run_text(apart, 2, "write", 4).is_ok());
    let read_next = "%p: i64 = program_id 0 %one: i64 = const 1 %q: i64 = sub %one, %p %t: f32[1] = load %x[%q; 1] store %x[%p; 1], %t";
    assert_eq!(
        run_text(read_next, 2, "readwrite", 4).unwrap_err().code,
        Code::DataRace
    );
    let atomic =
        "%i: i32[4] = iota 0 %c: f32 = const 1.0 %t: f32[4] = splat %c atomic.sum %x[%i], %t";
    assert!(run_text(atomic, 3, "readwrite", 4).is_ok());
}

#[test]
fn a_scatter_writes_each_element_once() {
    let body = "%z: i32 = const 0 %i: i32[2] = splat %z %c: f32 = const 1.0 %t: f32[2] = splat %c scatter %x[%i], %t";
    assert_eq!(
        run_text(body, 1, "write", 4).unwrap_err().code,
        Code::DataRace
    );
    let zero_stride = "%c: f32 = const 1.0 %t: f32[2] = splat %c store %x[0; 0], %t";
    assert_eq!(
        run_text(zero_stride, 1, "write", 4).unwrap_err().code,
        Code::DataRace
    );
}
