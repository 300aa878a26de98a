//! Launches that go to the driver at once, above a driver of our own ([`super::fake`]): what is recorded, what follows its tensors, and where launches go one by one.

use super::capture_tests::{plan, tensor};
use super::fake::Fake;
use super::replay_tests::sized;
use super::tests::{device, launched, nothing_left};
use crate::capture::{CaptureOptions, Captured};
use crate::device::{Device, Stream};
use crate::execute::{CALLS_BEFORE, Host, Program};
use crate::tensor::Tensor;
use oxyfuel_base::{Expr, Result};
use oxyfuel_plan::{BufferHome, Plan, Step};
use std::sync::Arc;

const FIRST: usize = CALLS_BEFORE as usize;

fn program(gpu: &Arc<dyn Device>, plan: Plan) -> Program {
    let mut program = Program::new(Arc::new(plan), gpu.clone()).unwrap();
    program.submit_together(Some(CALLS_BEFORE));
    program
}

/// A call, and whether its launches were given to the driver at once; what ran is right.
fn call(fake: &Fake, program: &Program, x: &Tensor) -> (Vec<Tensor>, bool) {
    launched(fake);
    let before = fake.state().submitted;
    let results = program.call(&[x]).unwrap();
    let words: Vec<u64> = launched(fake);
    let expected = [x.address(), results[0].address()];
    assert_eq!(words, expected.repeat(words.len() / 2));
    (results, fake.state().submitted > before)
}

#[test]
fn launches_are_submitted_together_from_the_third_call_on() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let program = program(&gpu, plan(1 << 20));
    let [x, y] = [0; 2].map(|_| tensor(&gpu, 1 << 20));
    let mut held = Vec::new();
    for (number, x) in [&x, &x, &x, &x, &y, &x, &y].into_iter().enumerate() {
        let (results, together) = call(&fake, &program, x);
        assert_eq!(together, number >= FIRST, "{number}");
        // Results are new, whoever holds the last ones.
        let known = |other: &Tensor| other.address() == results[0].address();
        assert!(!held.iter().any(known), "{number}");
        held.extend(results);
    }
    assert_eq!(program.submissions(), Some((1, 2)));
    // Who looks at each step sees each step.
    let before = fake.state().submitted;
    assert_eq!(program.profile(&[&x]).unwrap().1.len(), 2);
    assert_eq!(fake.state().submitted, before);
    // A call whose tensors are decided has a submission of its own.
    let program = Arc::new(program);
    let mut bound = program.bind(&[&x], &[Some(&held[0])]).unwrap();
    for _ in 0..=FIRST {
        bound.call().unwrap();
    }
    assert_eq!(fake.state().submitted, before + 1);
    assert_eq!(program.submissions(), Some((2, 4)));
    drop((bound, held, program, x, y));
    assert_eq!(gpu.submissions().unwrap().bytes(), 0);
    drop(gpu);
    nothing_left(&fake);
}

#[test]
fn launches_go_one_by_one_where_nothing_may_be_recorded() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let x = tensor(&gpu, 64);
    let never = |program: &Program| {
        for _ in 0..FIRST + 2 {
            assert!(!call(&fake, program, &x).1);
        }
    };
    let mut off = program(&gpu, plan(64));
    off.submit_together(None);
    never(&off);
    assert_eq!(off.submissions(), None);
    let mut waits = program(&gpu, plan(64));
    waits.wait_for_each(true);
    never(&waits);
    // One launch is none of several.
    let mut one = plan(64);
    one.steps.remove(0);
    one.buffers.values_mut().for_each(|b| b.last_step = 0);
    let one = program(&gpu, one);
    for _ in 0..FIRST + 2 {
        one.call(&[&x]).unwrap();
    }
    assert_eq!(one.submissions(), Some((0, 0)));
    // What is asked of a stream that is recorded is recorded by whoever does that.
    let recorded = program(&gpu, plan(64));
    for _ in 0..=FIRST {
        call(&fake, &recorded, &x);
    }
    let before = fake.state().submitted;
    let mut run = |inputs: &[&Tensor]| recorded.call(inputs);
    let mut step = Captured::new("step", CaptureOptions::default());
    step.prepare(None, &[&x], &mut run).unwrap();
    launched(&fake);
    let results = step.call(None, &[&x], &mut run).unwrap();
    assert_eq!(launched(&fake), [x.address(), results[0].address()]);
    assert!(fake.state().submitted > before);
    drop((off, waits, one, results, step, recorded, x, gpu));
    nothing_left(&fake);
}

/// What the driver refuses, before it records, while it does or when it is to launch, costs nothing but time.
#[test]
fn what_the_driver_refuses_goes_one_by_one() {
    for without in ["cuStreamBeginCapture_v2", "cuGraphLaunch"] {
        let fake = Fake::new(|state| state.without = without);
        let gpu = device(&fake) as Arc<dyn Device>;
        let (refused, x) = (program(&gpu, plan(64)), tensor(&gpu, 64));
        for _ in 0..FIRST + 2 {
            assert!(!call(&fake, &refused, &x).1);
        }
        assert_eq!(refused.submissions(), Some((0, 0)));
        drop((refused, x, gpu));
        nothing_left(&fake);
    }
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let (broken, x) = (program(&gpu, plan(64)), tensor(&gpu, 64));
    for _ in 0..FIRST {
        call(&fake, &broken, &x);
    }
    fake.state().broken = 904;
    for _ in 0..3 {
        assert!(!call(&fake, &broken, &x).1);
    }
    drop((broken, x, gpu));
    nothing_left(&fake);
}

#[test]
fn submissions_are_between_what_cannot_follow() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    // Two launches, a copy, two launches, a copy, one launch.
    let mut cut = plan(64);
    let [first, second] = [cut.steps[0].clone(), cut.steps[1].clone()];
    let arena = |home: &BufferHome| matches!(home, BufferHome::Arena { .. });
    let between = cut.buffers.iter().find(|(_, buffer)| arena(&buffer.home));
    let copy = Step::Copy {
        src: between.unwrap().0,
        dst: cut.outputs[0].buffer,
        bytes: Expr::constant(64),
    };
    cut.steps = vec![
        first.clone(),
        second.clone(),
        copy.clone(),
        first.clone(),
        second,
        copy,
        first,
    ];
    let last = cut.steps.len() as u32 - 1;
    cut.buffers.values_mut().for_each(|b| b.last_step = last);
    let program = program(&gpu, cut);
    let x = tensor(&gpu, 64);
    for number in 0..FIRST + 3 {
        launched(&fake);
        let before = fake.state().submitted;
        let results = program.call(&[&x]).unwrap();
        let [x, y] = [x.address(), results[0].address()];
        assert_eq!(launched(&fake), [x, y, x, y, x], "{number}");
        let times = if number < FIRST { 0 } else { 2 };
        assert_eq!(fake.state().submitted, before + times, "{number}");
    }
    assert_eq!(program.submissions(), Some((2, 4)));
    drop((program, x, gpu));
    nothing_left(&fake);
}

/// A plan of so many launches.
fn long(gpu: &Arc<dyn Device>, launches: usize) -> Program {
    let mut long = plan(64);
    long.steps = long.steps.iter().cycle().take(launches).cloned().collect();
    let last = launches as u32 - 1;
    long.buffers.values_mut().for_each(|b| b.last_step = last);
    program(gpu, long)
}

/// A host that lends memory for what lies between, and for results.
struct Lending([Tensor; 2]);

impl Host for Lending {
    fn arena(&mut self, _: usize) -> Result<Option<u64>> {
        Ok(Some(self.0[0].address()))
    }

    fn allocate(&mut self, _: usize, _: usize) -> Result<u64> {
        Ok(self.0[1].address())
    }

    fn external(&mut self, _: usize, _: &mut [u64], _: &mut [i64]) -> Result<()> {
        unreachable!("there is no such step")
    }

    fn release(&mut self, _: usize) {}

    fn compute(&mut self, _: u64, work: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        work()
    }
}

/// Submissions of a host's programs make room for each other too. A call on another stream, which the driver would do behind the last one, goes one by one, until many have gone there.
#[test]
fn programs_of_a_host_share_the_room_and_streams_do_not_wait_for_each_other() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let x = tensor(&gpu, 64);
    let mut host = Lending([0; 2].map(|_| tensor(&gpu, 64)));
    let mut call = |program: &Program, stream: u64| {
        let before = fake.state().submitted;
        // SAFETY: all of them are tensors of the device, as large as the plan says.
        unsafe { program.call_hosted(&mut [], &[x.address()], &mut host, Stream(stream)) }.unwrap();
        fake.state().submitted - before
    };
    let programs = [0; 3].map(|_| long(&gpu, 50));
    for program in &programs {
        let together = [0; FIRST + 1].map(|_| call(program, 0));
        assert_eq!(together, [0, 0, 1]);
    }
    let made = || programs.each_ref().map(|p| p.submissions().unwrap().0);
    assert_eq!(made(), [0, 1, 1]);
    // One by one beside another stream's, and its own once eight calls went there.
    let elsewhere = [0; 10].map(|_| call(&programs[1], 1));
    assert_eq!(elsewhere, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    assert_eq!([call(&programs[1], 0), call(&programs[1], 1)], [0, 1]);
    // What does not fit sends nobody away.
    let large = long(&gpu, 104);
    assert_eq!([0; FIRST + 2].map(|_| call(&large, 0)), [0; FIRST + 2]);
    assert_eq!(made(), [0, 1, 1]);
    drop((programs, large, host, x, gpu));
    nothing_left(&fake);
}

/// A device of 64 MiB gives its submissions one of them: 102 launches.
#[test]
fn submissions_stay_below_a_part_of_the_device() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let launches = |count: usize| long(&gpu, count);
    let x = tensor(&gpu, 64);
    let run = |program: &Program| {
        for _ in 0..=FIRST {
            program.call(&[&x]).unwrap();
        }
        program.submissions().unwrap()
    };
    assert_eq!(run(&launches(104)), (0, 0));
    let kept = [0; 2].map(|_| launches(50));
    assert_eq!([run(&kept[0]), run(&kept[1])], [(1, 50); 2]);
    // The one that was not used for longest makes room, and comes back when it is called again.
    let third = launches(50);
    assert_eq!(run(&third), (1, 50));
    let now = [&kept[0], &kept[1], &third].map(|program| program.submissions().unwrap().0);
    assert_eq!(now, [0, 1, 1]);
    assert_eq!(run(&kept[0]), (1, 50));
    assert_eq!(kept[1].submissions(), Some((0, 0)));
    drop((kept, third, x, gpu));
    nothing_left(&fake);
}

/// Each assignment of the symbols has its own, and calls at once do not take one from the other.
#[test]
fn sizes_and_threads_have_their_own() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let program = program(&gpu, sized());
    let [x, y] = [64, 128].map(|bytes| tensor(&gpu, bytes));
    for number in 0..FIRST + 2 {
        for x in [&x, &y] {
            assert_eq!(call(&fake, &program, x).1, number >= FIRST);
        }
    }
    assert_eq!(program.submissions(), Some((2, 4)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    program.call(&[&x]).unwrap();
                }
            });
        }
    });
    assert!(call(&fake, &program, &x).1);
    assert_eq!(launched(&fake).len() % 2, 0);
    assert!(!gpu.is_recording(Stream::default()));
    drop((program, x, y, gpu));
    nothing_left(&fake);
}
