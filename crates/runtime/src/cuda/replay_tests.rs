//! Recorded calls of programs above a driver of our own ([`super::fake`]): what they keep, which of them go, and what happens where they are required.

use super::capture_tests::{plan, tensor};
use super::fake::Fake;
use super::tests::{device, launched, nothing_left};
use crate::capture::CaptureStats;
use crate::device::Device;
use crate::execute::{Program, ReplayOptions};
use oxyfuel_base::{Code, Expr, Result, Symbol};
use oxyfuel_plan::{BufferHome, Plan, SymbolBinding, SymbolSource};
use std::sync::Arc;

/// What the driver is taken to need for the two launches of a plan.
const LAUNCHES: usize = 2 * (10 << 10);

fn recorded(gpu: &Arc<dyn Device>, plan: Plan, options: ReplayOptions) -> Result<Program> {
    let mut program = Program::new(Arc::new(plan), gpu.clone())?;
    program.replay(Some(options)).map(|()| program)
}

fn required() -> ReplayOptions {
    ReplayOptions {
        require: true,
        ..ReplayOptions::default()
    }
}

fn stats(program: &Program) -> CaptureStats {
    program.replay_stats().unwrap()
}

/// [`plan`] for inputs of any length.
pub(super) fn sized() -> Plan {
    let mut plan = plan(64);
    let symbol = Symbol(0);
    let length = Expr::symbol(symbol);
    plan.symbols.push(SymbolBinding {
        symbol,
        source: SymbolSource::Extent { input: 0, dim: 0 },
        min: 1,
        max: i64::MAX,
    });
    plan.inputs[0].shape = vec![length.clone()];
    plan.outputs[0].shape = vec![length.clone()];
    plan.arena_bytes = length.clone();
    for buffer in plan.buffers.values_mut() {
        buffer.bytes = length.clone();
    }
    plan
}

#[test]
fn recordings_of_a_device_stay_below_a_limit_and_the_one_unused_for_longest_goes() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let sizes = [1 << 20, 2 << 20, 4 << 20];
    let options = ReplayOptions {
        memory_limit: (6 << 20) + 2 * LAUNCHES,
        ..ReplayOptions::default()
    };
    let programs = sizes.map(|size| recorded(&gpu, plan(size), options).unwrap());
    let inputs = sizes.map(|size| tensor(&gpu, size));
    let call = |number: usize| {
        launched(&fake);
        let results = programs[number].call(&[&inputs[number]]).unwrap();
        let expected = [inputs[number].address(), results[0].address()];
        assert_eq!(launched(&fake), expected, "{number}");
    };
    let kept = |number: usize| {
        let stats = stats(&programs[number]);
        (stats.recordings, stats.recorded, stats.evicted)
    };
    for number in [0, 1, 0, 1, 0] {
        call(number);
    }
    assert_eq!((kept(0), kept(1)), ((1, 1, 0), (1, 1, 0)));
    let all = gpu.recordings().unwrap().clone();
    assert_eq!(all.bytes(), (3 << 20) + 2 * LAUNCHES);
    assert_eq!(stats(&programs[1]).bytes, (2 << 20) + LAUNCHES);
    // The third needs the room of one: of the second, which did not run for longest, with its arena.
    call(2);
    let before = fake.state().used();
    call(2);
    gpu.trim();
    assert!(
        fake.state().used() < before - (1 << 20),
        "the arena is kept"
    );
    assert_eq!(
        (kept(0), kept(1), kept(2)),
        ((1, 1, 0), (0, 1, 1), (1, 1, 0))
    );
    assert_eq!(all.bytes(), (5 << 20) + 2 * LAUNCHES);
    // It is recorded again at its second call, and now the first goes and the third: neither alone makes enough room.
    call(1);
    call(1);
    assert_eq!(
        (kept(0), kept(1), kept(2)),
        ((0, 1, 1), (1, 2, 1), (1, 1, 0))
    );
    assert_eq!(all.bytes(), (6 << 20) + 2 * LAUNCHES);
    let replayed = stats(&programs[1]);
    assert_eq!((replayed.calls, replayed.replayed), (4, 2));
    drop((programs, inputs));
    assert_eq!(all.bytes(), 0);
    drop(gpu);
    nothing_left(&fake);
}

#[test]
fn a_recording_that_is_too_large_runs_step_by_step_and_says_why() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let small = ReplayOptions {
        memory_limit: 1 << 20,
        ..ReplayOptions::default()
    };
    let program = recorded(&gpu, plan(1 << 20), small).unwrap();
    let x = tensor(&gpu, 1 << 20);
    for _ in 0..3 {
        program.call(&[&x]).unwrap();
    }
    let said = stats(&program);
    assert_eq!((said.calls, said.replayed, said.bytes), (3, 0, 0));
    assert!(
        said.to_string()
            .contains("`cudagraph_memory_limit` is 1048576"),
        "{said}"
    );
    drop(program);
    // A call whose tensors are bound keeps its recording: no room is left for another, until it goes.
    let limit = ReplayOptions {
        memory_limit: (1 << 20) + LAUNCHES,
        ..ReplayOptions::default()
    };
    let program = Arc::new(recorded(&gpu, plan(1 << 20), limit).unwrap());
    let out = tensor(&gpu, 1 << 20);
    let mut bound = program.bind(&[&x], &[Some(&out)]).unwrap();
    for _ in 0..3 {
        bound.call().unwrap();
        program.call(&[&x]).unwrap();
    }
    let said = stats(&program);
    assert_eq!((said.replayed, said.recordings, said.evicted), (2, 1, 0));
    assert!(said.missed.unwrap().contains("in use"));
    drop(bound);
    program.call(&[&x]).unwrap();
    assert_eq!(stats(&program).replayed, 3);
    drop((program, x, out, gpu));
    nothing_left(&fake);
}

#[test]
fn a_required_recording_that_cannot_be_is_an_error_with_the_reason() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let refused = |made: Result<Program>, why: &str| {
        let error = made.unwrap_err();
        assert_eq!(error.code, Code::CaptureBroken, "{error}");
        assert!(
            error.message.contains(why) && error.help.is_some(),
            "{error}"
        );
    };
    // Where it is known before a call.
    let mut apart = plan(64);
    apart.buffers.values_mut().last().unwrap().home = BufferHome::Host;
    refused(recorded(&gpu, apart, required()), "memory comes and goes");
    let mut waits = Program::new(Arc::new(plan(64)), gpu.clone()).unwrap();
    waits.wait_for_each(true);
    refused(
        waits.replay(Some(required())).map(|()| waits),
        "launch_blocking",
    );
    // And where a call shows it.
    let x = tensor(&gpu, 64);
    let at_call = |program: &Program, why: &str| {
        launched(&fake);
        for _ in 0..2 {
            refused(program.call(&[&x]).map(|_| unreachable!()), why);
            assert_eq!(launched(&fake), [], "nothing has run");
        }
    };
    let limited = ReplayOptions {
        memory_limit: 64,
        ..required()
    };
    let program = recorded(&gpu, plan(64), limited).unwrap();
    program.call(&[&x]).unwrap();
    at_call(&program, "and `cudagraph_memory_limit` is 64");
    drop(program);
    let program = recorded(&gpu, plan(64), required()).unwrap();
    program.call(&[&x]).unwrap();
    fake.state().broken = 904;
    at_call(&program, "another stream took part");
    drop((program, x, gpu));
    nothing_left(&fake);
}

#[test]
fn sizes_that_change_where_recordings_are_required_are_an_error() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let program = recorded(&gpu, sized(), required()).unwrap();
    let [x, y] = [64, 128].map(|bytes| tensor(&gpu, bytes));
    // Before anything is recorded any sizes are first ones.
    program.call(&[&y]).unwrap();
    for _ in 0..3 {
        program.call(&[&x]).unwrap();
    }
    let error = program.call(&[&y]).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken);
    let changed = "its sizes changed from s0 = 64 to s0 = 128";
    assert!(error.message.contains(changed), "{error}");
    assert!(error.help.unwrap().contains("x.size(dim)?"));
    // The known sizes work on, and at once where their workspace has gone.
    program.call(&[&x]).unwrap();
    program.rest();
    assert_eq!(stats(&program).recordings, 0);
    program.call(&[&x]).unwrap();
    let said = stats(&program);
    assert_eq!((said.calls, said.replayed, said.recorded), (6, 4, 2));
    drop(program);
    // Elsewhere each size has a recording.
    let program = recorded(&gpu, sized(), ReplayOptions::default()).unwrap();
    for x in [&x, &y, &x, &y] {
        program.call(&[x]).unwrap();
    }
    assert_eq!(
        (stats(&program).replayed, stats(&program).recordings),
        (2, 2)
    );
    drop((program, x, y, gpu));
    nothing_left(&fake);
}
