//! Recorded callables above a driver of our own ([`super::fake`]): where launches point, what is kept, and what is left behind.

use super::fake::Fake;
use super::tests::{device, launched, module, nothing_left};
use crate::capture::{CaptureOptions, Captured};
use crate::device::Device;
use crate::execute::{Program, ReplayOptions};
use crate::memory::HostAllocator;
use crate::tensor::Tensor;
use oxyfuel_base::{Arena, Code, DType, Expr, Result};
use oxyfuel_plan::{
    ArgRef, Artefact, Buffer, BufferHome, BufferId, Cost, InputSpec, Kernel, KernelId, KernelPhase,
    OutputSpec, Plan, Provenance, Step,
};
use std::cell::RefCell;
use std::sync::Arc;

/// Two launches, whose first words are the addresses of the input and of the output, with an arena beside them.
pub(super) fn plan(bytes: i64) -> Plan {
    let mut buffers: Arena<BufferId, Buffer> = Arena::new();
    let mut buffer = |home| {
        buffers.push(Buffer {
            name: "b".into(),
            home,
            bytes: Expr::constant(bytes),
            align: 64,
            first_step: 0,
            last_step: 1,
            tensor: None,
        })
    };
    let (input, output) = (buffer(BufferHome::Input(0)), buffer(BufferHome::Output(0)));
    let offset = Expr::ZERO;
    let between = buffer(BufferHome::Arena { offset });
    let mut kernels: Arena<KernelId, Kernel> = Arena::new();
    let kernel = kernels.push(Kernel {
        name: "entry".into(),
        program: String::new(),
        artefact: Artefact::Ptx(module("a")),
        phases: vec![KernelPhase {
            grid: vec![Expr::constant(1)],
            min_chunk: 1,
        }],
        provenance: Provenance::default(),
        cost: Cost::NOTHING,
        members: 1,
        written: vec![],
        rounds: 1,
        gemm: None,
        note: None,
    });
    let launch = |first: BufferId| Step::Launch {
        kernel,
        args: [first, between]
            .map(|buffer| ArgRef::Buffer {
                buffer,
                offset: Expr::ZERO,
            })
            .to_vec(),
    };
    let steps = vec![launch(input), launch(output)];
    let (shape, strides) = (vec![Expr::constant(bytes)], vec![Expr::constant(1)]);
    Plan {
        name: "two".into(),
        isa: "sm_80".into(),
        symbols: vec![],
        limits: vec![],
        inputs: vec![InputSpec {
            name: "x".into(),
            dtype: DType::U8,
            shape: shape.clone(),
            strides: strides.clone(),
            align: 16,
            buffer: input,
        }],
        outputs: vec![OutputSpec {
            dtype: DType::U8,
            shape,
            strides,
            buffer: output,
            offset: Expr::ZERO,
            alias: None,
        }],
        buffers,
        arena_bytes: Expr::constant(bytes),
        kernels,
        steps,
    }
}

fn program(gpu: &Arc<dyn Device>, bytes: i64) -> Program {
    Program::new(Arc::new(plan(bytes)), gpu.clone()).unwrap()
}

pub(super) fn tensor(gpu: &Arc<dyn Device>, bytes: i64) -> Tensor {
    Tensor::empty_on(&**gpu, DType::U8, &[bytes]).unwrap()
}

fn captured(options: CaptureOptions) -> Captured {
    Captured::new("step", options)
}

fn words(results: &[Tensor], x: &Tensor) -> [u64; 2] {
    [x.address(), results[0].address()]
}

#[test]
fn arguments_are_followed_and_never_copied() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let program = program(&gpu, 64);
    let calls = RefCell::new(0);
    let mut run = |inputs: &[&Tensor]| {
        *calls.borrow_mut() += 1;
        program.call(inputs)
    };
    let mut step = captured(CaptureOptions {
        warmup: 2,
        ..CaptureOptions::default()
    });
    let xs: Vec<Tensor> = (0..3).map(|_| tensor(&gpu, 64)).collect();
    step.prepare(None, &[&xs[0]], &mut run).unwrap();
    // Twice as it is, once recorded; what is recorded is not done.
    assert_eq!((*calls.borrow(), launched(&fake).len()), (3, 4));
    for x in [&xs[0], &xs[0], &xs[1], &xs[2], &xs[0]] {
        let results = step.call(None, &[x], &mut run).unwrap();
        assert_eq!(launched(&fake), words(&results, x));
    }
    let stats = step.stats();
    assert_eq!((stats.calls, stats.recorded, stats.replayed), (5, 1, 5));
    // The launch of the input, three times; that of the output never moves.
    assert_eq!((stats.moved, stats.recordings, stats.bytes), (3, 1, 128));
    assert_eq!(*calls.borrow(), 3);
    assert_eq!(
        stats.to_string(),
        "5 of 5 calls launched as one, recorded 1 times, 1 recordings of 128 bytes"
    );
    drop((step, xs, program, gpu));
    nothing_left(&fake);
}

/// Phases that share an entry are one launch of the driver's: what comes behind them is counted from there.
#[test]
fn a_launch_of_all_phases_is_one_piece_of_a_recording() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let mut gathered = plan(64);
    for kernel in gathered.kernels.values_mut() {
        kernel.phases.push(kernel.phases[0].clone());
    }
    let program = Program::new(Arc::new(gathered.clone()), gpu.clone()).unwrap();
    let mut run = |inputs: &[&Tensor]| program.call(inputs);
    let mut step = captured(CaptureOptions::default());
    let xs = [(); 2].map(|()| tensor(&gpu, 64));
    step.prepare(None, &[&xs[0]], &mut run).unwrap();
    launched(&fake);
    for x in [&xs[0], &xs[1], &xs[0]] {
        let results = step.call(None, &[x], &mut run).unwrap();
        assert_eq!(launched(&fake), words(&results, x));
    }
    let mut recorded = Program::new(Arc::new(gathered), gpu.clone()).unwrap();
    recorded.replay(Some(ReplayOptions::default())).unwrap();
    for x in [&xs[0], &xs[0], &xs[1]] {
        let results = recorded.call(&[x]).unwrap();
        assert_eq!(launched(&fake), words(&results, x));
    }
    assert_eq!(recorded.replay_stats().unwrap().replayed, 2);
    drop((step, xs, recorded, program, gpu));
    nothing_left(&fake);
}

#[test]
fn results_that_are_held_are_not_written_over() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let program = program(&gpu, 64);
    let mut run = |inputs: &[&Tensor]| program.call(inputs);
    let mut step = captured(CaptureOptions::default());
    let x = tensor(&gpu, 64);
    step.prepare(None, &[&x], &mut run).unwrap();
    let mut held: Vec<Tensor> = Vec::new();
    for number in 0..6 {
        launched(&fake);
        let mut results = step.call(None, &[&x], &mut run).unwrap();
        let result = results.remove(0);
        assert_eq!(launched(&fake), [x.address(), result.address()]);
        let known = held.iter().any(|held| held.address() == result.address());
        assert!(!known, "{number}");
        held.push(result);
    }
    // Four recordings, and two calls as they are.
    let stats = step.stats();
    assert_eq!((stats.recorded, stats.replayed), (4, 4));
    assert!(stats.missed.unwrap().contains("held"));
    // A view holds it too.
    let view = held[0].slice(0, 3, 7, 1).unwrap();
    let first = held[0].address();
    held.clear();
    for _ in 0..3 {
        let results = step.call(None, &[&x], &mut run).unwrap();
        assert!(results[0].address() != first);
    }
    drop(view);
    let results = step.call(None, &[&x], &mut run).unwrap();
    assert_eq!(results[0].address(), first);
    assert_eq!(step.stats().recorded, 4);
    drop(results);
    // Results outlive what made them.
    let results = step.call(None, &[&x], &mut run).unwrap();
    drop(step);
    assert!(fake.state().used() > 0);
    drop((results, x, program, gpu));
    nothing_left(&fake);
}

#[test]
fn what_cannot_be_recorded_is_refused_by_name_and_the_device_works_on() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let program = Arc::new(program(&gpu, 64));
    let (x, target) = (tensor(&gpu, 64), tensor(&gpu, 64));
    let host = Tensor::zeros(&HostAllocator::default(), DType::U8, &[64]).unwrap();
    let bound = RefCell::new(program.bind(&[&x], &[Some(&target)]).unwrap());
    let breaking: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("a copy to the host", &|| x.to_bytes().map(drop)),
        ("a copy from the host", &|| host.to_device(&gpu).map(drop)),
        ("a wait for the device", &|| gpu.synchronize()),
        ("bound", &|| bound.borrow_mut().call()),
    ];
    for (what, breaks) in breaking {
        let mut step = captured(CaptureOptions::default());
        let mut run = |inputs: &[&Tensor]| {
            breaks()?;
            program.call(inputs)
        };
        let error = step.prepare(None, &[&x], &mut run).unwrap_err();
        assert_eq!(error.code, Code::CaptureBroken, "{what}");
        assert!(
            error.message.starts_with("step is recorded: ") && error.message.contains(what),
            "{error}"
        );
        assert!(error.help.is_some());
        breaks().unwrap();
    }
    // One that another stream breaks: the driver's own word.
    let other = device(&fake).new_stream().unwrap();
    let mut run = |inputs: &[&Tensor]| {
        let results = program.call(inputs)?;
        let fresh = device(&fake);
        fresh.record(&other, || other.synchronize()).map(drop)?;
        Ok(results)
    };
    let error = captured(CaptureOptions::default())
        .prepare(None, &[&x], &mut run)
        .unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken);
    // One that another stream takes part in and does not leave: the end of the recording says so.
    let mut run = |inputs: &[&Tensor]| {
        fake.state().broken = 904;
        program.call(inputs)
    };
    let used = || {
        gpu.trim();
        fake.state().used()
    };
    let (before, mut step) = (used(), captured(CaptureOptions::default()));
    let error = step.prepare(None, &[&x], &mut run).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken);
    let said = "step is recorded: another stream took part in a recording";
    assert!(error.message.starts_with(said), "{error}");
    assert_eq!((used(), step.stats().recordings), (before, 0));
    fake.state().broken = 0;
    other.synchronize().unwrap();
    gpu.synchronize().unwrap();
    let mut good = |inputs: &[&Tensor]| program.call(inputs);
    let mut step = captured(CaptureOptions::default());
    step.prepare(None, &[&x], &mut good).unwrap();
    launched(&fake);
    let results = step.call(None, &[&x], &mut good).unwrap();
    assert_eq!(launched(&fake), words(&results, &x));
    drop((results, step, bound, other, x, target, program, gpu));
    nothing_left(&fake);
}

#[test]
fn other_shapes_are_recorded_apart_or_refused() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let programs = [program(&gpu, 64), program(&gpu, 128)];
    let mut run = |inputs: &[&Tensor]| match inputs[0].len() {
        64 => programs[0].call(inputs),
        _ => programs[1].call(inputs),
    };
    let (small, large) = (tensor(&gpu, 64), tensor(&gpu, 128));
    let mut step = captured(CaptureOptions::default());
    step.prepare(None, &[&small], &mut run).unwrap();
    for call in 0..6 {
        launched(&fake);
        let x = [&small, &large][call % 2];
        let results = step.call(None, &[x], &mut run).unwrap();
        assert_eq!(launched(&fake), words(&results, x));
    }
    // The first call of the other size ran as it is.
    let stats = step.stats();
    assert_eq!((stats.recorded, stats.replayed), (2, 5));
    step = captured(CaptureOptions::default());
    step.prepare(None, &[&small], &mut run).unwrap();
    step.options_mut().require = true;
    let error = step.call(None, &[&large], &mut run).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken);
    assert!(
        error.message.contains("from u8[64] to u8[128]") && error.help.is_some(),
        "{error}"
    );
    step.call(None, &[&small], &mut run).unwrap();
    // A key stands for the shapes.
    step = captured(CaptureOptions::default());
    step.prepare(Some(1), &[&small], &mut run).unwrap();
    step.prepare(Some(2), &[&large], &mut run).unwrap();
    step.prepare(Some(3), &[&small], &mut run).unwrap();
    assert_eq!(step.stats().recordings, 3);
    let error = step.call(Some(1), &[&large], &mut run).unwrap_err();
    assert_eq!(error.code, Code::ShapeMismatch);
    drop((step, small, large, programs, gpu));
    nothing_left(&fake);
}

#[test]
fn recordings_stay_below_their_limit() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let sizes = [1 << 20, 1 << 21, 1 << 19];
    let programs: Vec<Program> = sizes.iter().map(|&bytes| program(&gpu, bytes)).collect();
    let mut run = |inputs: &[&Tensor]| {
        let number = sizes
            .iter()
            .position(|&bytes| bytes == inputs[0].len() as i64);
        programs[number.unwrap()].call(inputs)
    };
    let xs: Vec<Tensor> = sizes.iter().map(|&bytes| tensor(&gpu, bytes)).collect();
    // A recording takes twice its size: the first two fit together, or the last two.
    let mut step = captured(CaptureOptions {
        memory_limit: 6 << 20,
        ..CaptureOptions::default()
    });
    for x in &xs {
        step.prepare(None, &[x], &mut run).unwrap();
        step.call(None, &[x], &mut run).unwrap();
    }
    let stats = step.stats();
    assert_eq!((stats.recorded, stats.evicted, stats.recordings), (3, 1, 2));
    assert_eq!(stats.bytes, 5 << 20);
    // The one that went is recorded again, in the place of the one that was not used for longest.
    step.call(None, &[&xs[1]], &mut run).unwrap();
    step.call(None, &[&xs[0]], &mut run).unwrap();
    let stats = step.stats();
    assert_eq!((stats.recorded, stats.evicted), (4, 2));
    assert_eq!(stats.bytes, 6 << 20);
    // One that does not fit at all runs as it is, or is refused.
    step.options_mut().memory_limit = 1 << 20;
    let options = *step.options_mut();
    step = captured(options);
    step.prepare(None, &[&xs[0]], &mut run).unwrap();
    step.call(None, &[&xs[0]], &mut run).unwrap();
    assert_eq!((step.stats().replayed, step.stats().bytes), (0, 0));
    assert!(step.stats().missed.unwrap().contains("allowed"));
    step.options_mut().require = true;
    let error = step.call(None, &[&xs[0]], &mut run).unwrap_err();
    assert_eq!(error.code, Code::MemoryLimit);
    drop((step, xs, programs, gpu));
    nothing_left(&fake);
}

#[test]
fn tensors_and_code_that_a_callable_holds_stay() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let held = RefCell::new(Some((program(&gpu, 64), tensor(&gpu, 64))));
    let mut run = |_: &[&Tensor]| {
        let held = held.borrow();
        let (program, weight) = held.as_ref().unwrap();
        program.call(&[weight])
    };
    let weight = held.borrow().as_ref().unwrap().1.address();
    let x = tensor(&gpu, 64);
    let mut step = captured(CaptureOptions::default());
    step.prepare(None, &[&x], &mut run).unwrap();
    // Neither the tensor nor the program is anybody's now.
    *held.borrow_mut() = None;
    let modules = |fake: &Fake| {
        let state = fake.state();
        state
            .alive
            .values()
            .filter(|what| **what == "module")
            .count()
    };
    assert_eq!(modules(&fake), 1);
    let other = tensor(&gpu, 64);
    assert!(other.address() != weight);
    launched(&fake);
    let mut never = |_: &[&Tensor]| unreachable!("it is recorded");
    let results = step.call(None, &[&x], &mut never).unwrap();
    assert_eq!(launched(&fake), [weight, results[0].address()]);
    drop((results, step));
    assert_eq!(modules(&fake), 0);
    drop((other, x, gpu));
    nothing_left(&fake);
}

#[test]
fn windows_on_arguments_are_windows_on_those_of_the_replay() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let program = program(&gpu, 64);
    let mut run = |inputs: &[&Tensor]| {
        let mut results = program.call(inputs)?;
        results.push(inputs[0].slice(0, 8, 16, 1)?);
        Ok(results)
    };
    let whole = tensor(&gpu, 512);
    let part = |at: i64| whole.slice(0, at, at + 64, 1).unwrap();
    let mut step = captured(CaptureOptions::default());
    step.prepare(None, &[&part(256)], &mut run).unwrap();
    for at in [256, 0] {
        let x = part(at);
        let results = step.call(None, &[&x], &mut run).unwrap();
        assert_eq!(results[1].address(), x.address() + 8);
    }
    assert_eq!(step.stats().replayed, 2);
    // Less alignment than it was recorded with is another kind.
    step.call(None, &[&part(16)], &mut run).unwrap();
    assert_eq!(step.stats().replayed, 2);
    drop((step, whole, program, gpu));
    nothing_left(&fake);
}

#[test]
fn arguments_that_are_copied_are_recorded_for_each_place() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let mut run = |inputs: &[&Tensor]| {
        let mut copy = Tensor::empty_on(&*gpu, DType::U8, &[64])?;
        copy.copy_from(inputs[0])?;
        Ok(vec![copy])
    };
    let (x, y) = (tensor(&gpu, 64), tensor(&gpu, 64));
    let mut step = captured(CaptureOptions::default());
    step.prepare(None, &[&x], &mut run).unwrap();
    for argument in [&x, &y, &x, &y] {
        step.call(None, &[argument], &mut run).unwrap();
    }
    let stats = step.stats();
    assert_eq!((stats.recorded, stats.replayed, stats.moved), (2, 4, 0));
    drop((step, x, y));
    drop(gpu);
    nothing_left(&fake);
}

#[test]
fn a_callable_within_a_callable_is_a_part_of_it() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let mut program = program(&gpu, 64);
    program.replay(Some(ReplayOptions::default())).unwrap();
    let program = program;
    let inner = RefCell::new(captured(CaptureOptions::default()));
    let x = tensor(&gpu, 64);
    inner
        .borrow_mut()
        .prepare(None, &[&x], &mut |inputs| program.call(inputs))
        .unwrap();
    let mut run = |inputs: &[&Tensor]| {
        let call = &mut |inputs: &[&Tensor]| program.call(inputs);
        let first = inner.borrow_mut().call(None, inputs, call)?;
        program.call(&[&first[0]])
    };
    let mut step = captured(CaptureOptions::default());
    step.prepare(None, &[&x], &mut run).unwrap();
    launched(&fake);
    let results = step.call(None, &[&x], &mut run).unwrap();
    let done = launched(&fake);
    assert_eq!(done.len(), 4);
    assert_eq!((done[0], done[1]), (x.address(), done[2]));
    assert_eq!(done[3], results[0].address());
    drop((results, step, inner, x, program, gpu));
    nothing_left(&fake);
}

#[test]
fn a_recording_has_one_device_that_records() {
    let fake = Fake::new(|state| state.devices = 2);
    let driver = fake.open().unwrap();
    let [zero, one] = [0, 1].map(|index| {
        super::CudaDevice::of(driver.clone(), index, None).unwrap() as Arc<dyn Device>
    });
    let host = Tensor::zeros(&HostAllocator::default(), DType::U8, &[4]).unwrap();
    let (a, b) = (tensor(&zero, 4), tensor(&one, 4));
    let mut run = |_: &[&Tensor]| Ok(vec![]);
    let cases: [&[&Tensor]; 4] = [&[&host], &[&a, &host], &[&host, &a], &[&a, &b]];
    for inputs in cases {
        let error = captured(CaptureOptions::default())
            .call(None, inputs, &mut run)
            .unwrap_err();
        assert_eq!(error.code, Code::DeviceMismatch);
        assert!(error.message.contains("step") && error.help.is_some());
    }
    let error = captured(CaptureOptions::default())
        .call(None, &[], &mut run)
        .unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
}
