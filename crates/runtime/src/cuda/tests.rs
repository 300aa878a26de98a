//! The device above a driver of our own ([`super::fake`]): what is asked of the driver, and what is left behind.

use super::fake::{Fake, entered};
use super::module::Params;
use super::{CubinStore, CudaDevice, CudaKernel, EventUse};
use crate::device::{ArgKind, Device, Grid, Launch, LoadedKernel, Stream};
use crate::execute::{Host, Program, ReplayOptions};
use oxyfuel_base::{Arena, Code, DType, Expr, External, Id, Result, err};
use oxyfuel_plan::{
    ArgRef, Artefact, Buffer, BufferHome, BufferId, Cost, ExternalStep, Kernel, KernelId,
    KernelPhase, OutputSpec, Plan, Provenance, PtxModule, Step,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) fn device(fake: &Fake) -> Arc<CudaDevice> {
    CudaDevice::of(fake.open().unwrap(), 0, None).unwrap()
}

/// Nothing is alive and no context is left current.
pub(super) fn nothing_left(fake: &Fake) {
    let state = fake.state();
    assert!(state.alive.is_empty(), "{:?}", state.alive);
    assert_eq!((state.used(), entered()), (0, 0));
}

pub(super) fn module(text: &str) -> PtxModule {
    PtxModule {
        text: text.into(),
        entries: vec!["entry".into()],
        threads: 32,
        cluster: [1, 1, 1],
        shared_bytes: 0,
        persistent_blocks: vec![0],
        dependent: false,
        tensor_maps: vec![],
    }
}

fn launch(kernel: &CudaKernel, word: u64, stream: Stream) -> Result<()> {
    let grid = Grid {
        extents: [1, 1, 1],
        min_chunk: 1,
    };
    let launch = Launch {
        words: &[word],
        kinds: &[ArgKind::Index],
        grids: &[grid],
        maps: &[],
        stream,
    };
    // SAFETY: nothing is computed.
    unsafe { kernel.launch(&launch) }
}

#[test]
fn only_code_that_waits_is_launched_early() {
    let fake = Fake::new(|_| {});
    let device = device(&fake);
    for (dependent, cluster) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let ptx = PtxModule {
            dependent,
            cluster: [cluster, 1, 1],
            ..module("a")
        };
        let kernel = device.load_ptx(&ptx).unwrap();
        launch(&kernel, 1, Stream(0)).unwrap();
    }
    let (early, cluster) = (6, 4);
    let expected = [vec![], vec![early], vec![cluster], vec![early, cluster]];
    assert_eq!(fake.state().attributes, expected);
    // Two blocks carry an instance of a cluster of two.
    let grids = [1, 1, 2, 2].map(|blocks| [blocks, 1, 1]);
    assert_eq!(fake.state().grids, grids);
}

#[test]
fn what_a_device_holds_at_once_is_counted_in_clusters_where_there_are_any() {
    let fake = Fake::new(|_| {});
    let device = device(&fake);
    let found = [[1, 1, 1], [4, 1, 1], [2, 3, 2]].map(|cluster| {
        let ptx = PtxModule {
            cluster,
            threads: 256,
            ..module("a")
        };
        device.load_ptx(&ptx).unwrap().info().unwrap()[0]
    });
    // 128 multiprocessors of eight such blocks each.
    assert_eq!(found.map(|info| info.blocks_per_multiprocessor), [8; 3]);
    assert_eq!(found.map(|info| info.clusters), [None, Some(256), Some(85)]);
    // It is asked about one cluster, and only one of more than eight blocks needs leave.
    let state = fake.state();
    assert_eq!(state.grids, [[4, 1, 1], [2, 3, 2]]);
    assert_eq!(state.set, [(14, 1)]);
}

#[test]
fn an_old_driver_is_named() {
    let fake = Fake::new(|state| state.version = 11_080);
    let error = fake.open().unwrap_err();
    assert_eq!(error.code, Code::DriverTooOld);
    assert!(
        error.message.contains("11.8") && error.message.contains("12.0"),
        "{error}"
    );
}

#[test]
fn a_function_that_is_missing_is_named_at_its_first_use_and_by_the_list() {
    let fake = Fake::new(|state| state.without = "cuStreamBeginCapture_v2");
    let device = device(&fake);
    let stream = device.new_stream().unwrap();
    let error = device.record(&stream, || Ok(())).unwrap_err();
    assert_eq!(error.code, Code::MissingLibrary);
    assert!(error.message.contains("cuStreamBeginCapture_v2"), "{error}");
    assert!(
        fake.open()
            .unwrap()
            .lacks()
            .contains(&"cuStreamBeginCapture_v2")
    );
}

#[test]
fn a_device_that_is_not_there_is_a_sentence() {
    let fake = Fake::new(|state| state.devices = 2);
    let error = CudaDevice::of(fake.open().unwrap(), 2, None).unwrap_err();
    assert_eq!(error.code, Code::NoDevice);
    assert!(
        error.message.contains("cuda:2") && error.message.contains("has 2"),
        "{error}"
    );
}

#[test]
fn memory_is_kept_and_a_lack_of_it_names_what_is_free_and_leaves_nothing() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    let first = gpu.allocate(1 << 20).unwrap();
    gpu.copy_in(&[7; 100], &first, 3).unwrap();
    let mut back = [0; 100];
    gpu.copy_out(&first, 3, &mut back).unwrap();
    assert_eq!(back, [7; 100]);
    let address = first.address();
    drop(first);
    assert_eq!(gpu.allocate(1 << 20).unwrap().address(), address);
    let held = gpu.allocate(40 << 20).unwrap();
    let error = gpu.allocate(30 << 20).unwrap_err();
    assert_eq!(error.code, Code::OutOfMemory);
    let free = (24 << 20).to_string();
    assert!(
        error.message.contains(&free) && error.message.contains("FAKE"),
        "{error}"
    );
    let report = gpu.memory_summary().unwrap();
    assert_eq!((report.total, report.free), (64 << 20, Some(24 << 20)));
    assert_eq!(report.ours.live, 40 << 20);
    let text = report.to_string();
    assert!(
        text.contains("40.0 MiB") && text.contains("cuda:0 (FAKE)"),
        "{text}"
    );
    drop((held, gpu));
    nothing_left(&fake);
}

#[test]
fn a_lost_device_is_not_a_lack_of_memory() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    fake.state().fault = 700;
    assert_eq!(gpu.allocate(64).unwrap_err().code, Code::KernelFault);
    assert_eq!(gpu.synchronize().unwrap_err().code, Code::KernelFault);
}

/// A kernel of that name, with the source that it came from.
fn named(name: &str, ops: &[&str]) -> Kernel {
    let mut kernel = plan(1, 1).kernels.values().next().unwrap().clone();
    kernel.name = name.into();
    kernel.provenance = Provenance {
        ops: ops.iter().map(|op| (*op).to_owned()).collect(),
        lines: vec!["model.rs:3".into()],
        sources: vec![],
    };
    kernel
}

fn start(kernel: &dyn LoadedKernel) -> Result<()> {
    let grid = Grid {
        extents: [1, 1, 1],
        min_chunk: 1,
    };
    let launch = Launch {
        words: &[1],
        kinds: &[ArgKind::Index],
        grids: &[grid],
        maps: &[],
        stream: Stream::default(),
    };
    // SAFETY: nothing is computed.
    unsafe { kernel.launch(&launch) }
}

#[test]
fn a_fault_names_the_kernels_that_may_have_caused_it() {
    for (fault, read) in [(700, true), (715, true), (716, false), (719, false)] {
        let fake = Fake::new(|_| ());
        let gpu = device(&fake);
        let memory = gpu.allocate(64).unwrap();
        let [well, first, second] = [
            named("well", &["neg"]),
            named("first", &["add", "relu"]),
            named("second", &["sum"]),
        ]
        .map(|kernel| gpu.load(&kernel).unwrap());
        start(&*well).unwrap();
        match read {
            true => gpu.copy_out(&memory, 0, &mut [0; 8]).unwrap(),
            false => gpu.synchronize().unwrap(),
        }
        for kernel in [&first, &second, &first] {
            start(&**kernel).unwrap();
        }
        // One that is gone by the time of the fault is known still.
        drop(second);
        fake.state().fault = fault;
        for error in [
            gpu.synchronize().unwrap_err(),
            gpu.allocate(64).unwrap_err(),
            gpu.copy_out(&memory, 0, &mut [0; 8]).unwrap_err(),
        ] {
            assert_eq!(error.code, Code::KernelFault);
            assert!(
                error.message.ends_with(
                    "on cuda:0 since it was last waited for: first (add, relu at model.rs:3) 2 times; second (sum at model.rs:3)"
                ),
                "{error}"
            );
            let help = error.help.unwrap();
            assert!(help.contains("lost") && help.contains("OXYFUEL_LAUNCH_BLOCKING=1"));
        }
    }
}

#[test]
fn a_fault_that_others_were_told_of_has_the_names_of_our_kernels() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    // Nothing of ours was launched: it is not for us to say anything.
    assert!(gpu.fault(700).is_none());
    let [first, second] = [named("first", &["add"]), named("second", &["sum"])]
        .map(|kernel| gpu.load(&kernel).unwrap());
    start(&*first).unwrap();
    // The device is well, or what went wrong is no fault of a kernel: an assertion (710) is the caller's.
    for answer in [0, 1, 2, 710, 901] {
        assert!(gpu.fault(answer).is_none(), "{answer}");
    }
    // With the number that others were told, and without one, where the driver is asked.
    let said = |answer: i32, fault: i32| {
        fake.state().fault = fault;
        let error = gpu.fault(answer).unwrap();
        fake.state().fault = 0;
        assert_eq!(error.code, Code::KernelFault);
        error
    };
    for (answer, fault) in [(700, 0), (719, 719), (0, 716), (1, 700)] {
        let message = said(answer, fault).message;
        let one = "in kernel first (add at model.rs:3) on cuda:0";
        assert!(message.ends_with(one), "{message}");
    }
    // Where others use the device too, one kernel is not known to be the guilty one.
    gpu.share();
    let error = said(700, 0);
    assert!(
        error.message.ends_with(
            "in one of the kernels launched on cuda:0 since it was last waited for, or in work of others there: first (add at model.rs:3)"
        ),
        "{error}"
    );
    assert!(error.help.unwrap().contains("OXYFUEL_LAUNCH_BLOCKING=1"));
    start(&*second).unwrap();
    let message = said(0, 715).message;
    assert!(
        message.ends_with("there: first (add at model.rs:3); second (sum at model.rs:3)"),
        "{message}"
    );
}

#[test]
fn many_launches_are_told_by_the_last_ones() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    let kernels: Vec<_> = (0..100)
        .map(|number| gpu.load(&named(&format!("k{number}"), &[])).unwrap())
        .collect();
    for kernel in &kernels {
        start(&**kernel).unwrap();
    }
    fake.state().fault = 700;
    let message = gpu.synchronize().unwrap_err().message;
    assert!(
        message.contains("... 88 before these; k88; k89;"),
        "{message}"
    );
    assert!(message.ends_with("; k99"), "{message}");
    fake.state().fault = 0;
    gpu.synchronize().unwrap();
    fake.state().fault = 700;
    let error = gpu.synchronize().unwrap_err();
    assert!(!error.message.contains("k99"), "{error}");
}

#[test]
fn recorded_work_that_faults_has_the_names_of_its_kernels() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let mut program = Program::new(Arc::new(two_kernels()), gpu.clone()).unwrap();
    program.replay(Some(ReplayOptions::default())).unwrap();
    for _ in 0..3 {
        program.call(&[]).unwrap();
    }
    gpu.synchronize().unwrap();
    program.call(&[]).unwrap();
    assert_eq!(program.replay_stats().unwrap().replayed, 3);
    fake.state().fault = 719;
    let message = gpu.synchronize().unwrap_err().message;
    assert!(
        message.ends_with("first (add at model.rs:3); second (sum at model.rs:3)"),
        "{message}"
    );
}

/// A plan that launches two kernels.
fn two_kernels() -> Plan {
    let mut plan = plan(64, 64);
    let Step::Launch { args, .. } = plan.steps[0].clone() else {
        unreachable!("the plan is one launch")
    };
    plan.kernels = Arena::new();
    plan.steps.clear();
    for kernel in [named("first", &["add"]), named("second", &["sum"])] {
        let kernel = plan.kernels.push(kernel);
        let args = args.clone();
        plan.steps.push(Step::Launch { kernel, args });
    }
    plan.buffers
        .values_mut()
        .for_each(|buffer| buffer.last_step = 1);
    plan
}

#[test]
fn who_waits_after_each_kernel_learns_which_one_faulted() {
    for (well, guilty) in [
        (0, "in kernel first (add at model.rs:3) on cuda:0"),
        (1, "in kernel second (sum at model.rs:3) on cuda:0"),
    ] {
        let fake = Fake::new(|state| state.faults_after = Some((well, 700)));
        let gpu = device(&fake) as Arc<dyn Device>;
        let mut program = Program::new(Arc::new(two_kernels()), gpu.clone()).unwrap();
        program.replay(Some(ReplayOptions::default())).unwrap();
        program.wait_for_each(true);
        let error = program.call(&[]).unwrap_err();
        assert_eq!(error.code, Code::KernelFault);
        assert!(error.message.ends_with(guilty), "{error}");
        assert!(!error.help.unwrap().contains("BLOCKING"));
    }
}

/// A host with one operator, after which the driver answers so.
struct Faulting<'a>(&'a Fake, i32);

impl Host for Faulting<'_> {
    fn allocate(&mut self, _: usize, _: usize) -> Result<u64> {
        Ok(4096)
    }

    fn external(&mut self, _: usize, _: &mut [u64], _: &mut [i64]) -> Result<()> {
        self.0.state().fault = self.1;
        Ok(())
    }

    fn release(&mut self, _: usize) {}

    fn compute(&mut self, _: u64, work: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        work()
    }
}

#[test]
fn who_waits_after_each_step_learns_which_operator_of_the_host_faulted() {
    let mut plan = two_kernels();
    let call = External {
        name: "mine.kernel.default".into(),
        args: vec![],
        kwargs: vec![],
        operand_strides: vec![],
        results: vec![],
        sequence: true,
        binds: vec![],
        ordered: true,
        reason: String::new(),
        gpu: None,
    };
    let provenance = Provenance {
        ops: vec!["mine".into()],
        lines: vec!["model.py:7".into()],
        sources: vec![],
    };
    plan.steps.push(Step::External(ExternalStep {
        call,
        operands: vec![],
        results: vec![],
        provenance,
    }));
    for (waits, recorded, answer) in [(true, false, 700), (false, false, 700), (true, true, 0)] {
        let fake = Fake::new(|_| ());
        let gpu = device(&fake) as Arc<dyn Device>;
        let stream = Stream(77);
        let mut program = Program::new(Arc::new(plan.clone()), gpu).unwrap();
        program.wait_for_each(waits);
        if recorded {
            fake.state().capturing.insert(77, vec![]);
        }
        // SAFETY: nothing is computed.
        let called =
            unsafe { program.call_hosted(&mut [], &[], &mut Faulting(&fake, answer), stream) };
        if !waits || recorded {
            // What is recorded is not done, and nobody may wait for it.
            called.unwrap();
            continue;
        }
        let error = called.unwrap_err();
        assert_eq!(error.code, Code::KernelFault);
        assert!(
            error
                .message
                .ends_with("in mine.kernel.default at model.py:7"),
            "{error}"
        );
        assert!(error.help.unwrap().contains("start a new process"));
    }
}

#[test]
fn streams_events_pinned_memory_and_pools_go_as_they_came() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    let stream = Arc::new(gpu.new_stream().unwrap());
    assert!(!stream.is_done().unwrap());
    let (from, to) = (
        stream.record(EventUse::Timing).unwrap(),
        stream.record(EventUse::Order).unwrap(),
    );
    stream.wait_for(&to).unwrap();
    assert!(to.is_done().unwrap());
    assert_eq!(
        from.milliseconds_to(&to).unwrap().to_bits(),
        2.5f32.to_bits()
    );
    let pinned = gpu.pinned(10).unwrap();
    assert_eq!(pinned.borrow().unwrap().bytes().unwrap(), [0; 10]);
    drop(pinned);
    let pool = gpu.pool(0).unwrap();
    pool.keep(1 << 20).unwrap();
    let block = pool.allocate(1000, &stream).unwrap();
    assert!(block.address() != 0 && block.len() == 1000);
    let stats = pool.stats().unwrap();
    assert_eq!((stats.used, stats.reserved), (1000, 1 << 20));
    assert_eq!(
        pool.allocate(1 << 40, &stream).unwrap_err().code,
        Code::OutOfMemory
    );
    // A block holds its pool and its stream.
    drop((pool, stream, from, to));
    drop(block);
    drop(gpu);
    nothing_left(&fake);
}

#[test]
fn a_launch_has_as_many_parameters_as_it_has_words() {
    for count in [0, 1, 64, 65, 500] {
        let words: Vec<u64> = (0..count).map(|word| word * 3).collect();
        let mut params = Params::of(&words);
        let params = params.slice();
        assert!(params.len() >= words.len());
        for (param, word) in params.iter().zip(&words) {
            // SAFETY: the pointer is that of a word of the vector.
            assert_eq!(unsafe { param.cast::<u64>().read() }, *word);
        }
    }
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    let kernel = gpu.load_ptx(&module("a")).unwrap();
    let (words, kinds) = (vec![7; 300], vec![ArgKind::Index; 300]);
    let grid = Grid {
        extents: [1, 1, 1],
        min_chunk: 1,
    };
    let launch = Launch {
        words: &words,
        kinds: &kinds,
        grids: &[grid],
        maps: &[],
        stream: Stream::default(),
    };
    // SAFETY: nothing is computed.
    unsafe { kernel.launch(&launch) }.unwrap();
    assert_eq!(launched(&fake), [7]);
    drop((kernel, gpu));
    nothing_left(&fake);
}

#[test]
fn recorded_work_is_replayed_with_other_words() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    let kernel = gpu.load_ptx(&module("a")).unwrap();
    let stream = gpu.new_stream().unwrap();
    let two = |first: u64| {
        let work = || {
            launch(&kernel, first, stream.handle())?;
            launch(&kernel, first + 1, stream.handle())
        };
        gpu.record(&stream, work)
    };
    let recorded = two(10).unwrap();
    assert_eq!(recorded.len().unwrap(), 2);
    let mut replay = recorded.instantiate().unwrap();
    assert_eq!(replay.kernels(), 2);
    let mut words = || {
        // SAFETY: nothing is computed.
        unsafe { replay.launch(Stream::default()) }.unwrap();
        let launched = std::mem::take(&mut fake.state().launched);
        launched.iter().map(|work| work.word).collect::<Vec<_>>()
    };
    assert_eq!(words(), [10, 11]);
    replay.set_words(1, &[99]).unwrap();
    let mut words = || {
        // SAFETY: nothing is computed.
        unsafe { replay.launch(Stream::default()) }.unwrap();
        let launched = std::mem::take(&mut fake.state().launched);
        launched.iter().map(|work| work.word).collect::<Vec<_>>()
    };
    assert_eq!(words(), [10, 99]);
    assert_eq!(replay.set_words(2, &[1]).unwrap_err().code, Code::Internal);
    assert!(replay.update(&two(20).unwrap()).unwrap());
    let one = gpu.record(&stream, || launch(&kernel, 5, stream.handle()));
    assert!(!replay.update(&one.unwrap()).unwrap());
    drop((replay, kernel, stream, gpu));
    nothing_left(&fake);
}

#[test]
fn a_broken_recording_says_what_broke_it_and_the_stream_works_on() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    let stream = gpu.new_stream().unwrap();
    let error = gpu.record(&stream, || stream.synchronize()).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken);
    assert!(error.message.contains("cuStreamSynchronize"), "{error}");
    let error = gpu.record(&stream, || Err(err!(InvalidPlan, "mine")));
    assert_eq!(error.unwrap_err().code, Code::InvalidPlan);
    let twice = gpu.record(&stream, || gpu.record(&stream, || Ok(())).map(drop));
    assert_eq!(twice.unwrap_err().code, Code::CaptureBroken);
    stream.synchronize().unwrap();
    drop((stream, gpu));
    nothing_left(&fake);
}

#[test]
fn a_recording_that_another_stream_breaks_says_so_and_both_streams_work_on() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    let kernel = gpu.load_ptx(&module("a")).unwrap();
    let (stream, other) = (gpu.new_stream().unwrap(), gpu.new_stream().unwrap());
    let before = fake.state().alive.len();
    let rows = [
        (902, "two recordings"),
        (903, "ended on a stream that only took part"),
        (904, "another stream took part"),
        (905, "waits for work of another stream"),
        (906, "the default stream"),
        (907, "an event of recorded work"),
    ];
    for (number, what) in rows {
        let error = gpu.record(&stream, || {
            launch(&kernel, 1, stream.handle())?;
            fake.state().broken = number;
            Ok(())
        });
        let error = error.unwrap_err();
        assert_eq!(error.code, Code::CaptureBroken, "{error}");
        let said = error.message.contains(what) && error.message.contains("cuStreamEndCapture");
        assert!(said && !error.message.contains('\n'), "{error}");
        assert!(error.help.as_ref().unwrap().contains("one stream"));
        // What was recorded was not done, and is done from now on, on both streams.
        assert_eq!(launched(&fake), []);
        for works in [&stream, &other] {
            launch(&kernel, 2, works.handle()).unwrap();
            works.synchronize().unwrap();
        }
        gpu.synchronize().unwrap();
        assert_eq!(launched(&fake), [2, 2]);
        assert_eq!(fake.state().alive.len(), before);
        let well = gpu.record(&stream, || launch(&kernel, 3, stream.handle()));
        assert_eq!(well.unwrap().len().unwrap(), 1);
    }
    // An error of the work says more than what ending it says, and nothing of the end is left either.
    let error = gpu.record(&stream, || {
        fake.state().broken = 904;
        Err(err!(InvalidPlan, "mine"))
    });
    assert_eq!(error.unwrap_err().code, Code::InvalidPlan);
    drop((kernel, stream, other, gpu));
    nothing_left(&fake);
}

#[derive(Debug, Default)]
struct Store(Mutex<HashMap<(String, String), Vec<u8>>>);

impl CubinStore for Store {
    fn get(&self, ptx: &str, tag: &str) -> Option<Vec<u8>> {
        let known = self.0.lock().unwrap();
        known.get(&(ptx.into(), tag.into())).cloned()
    }

    fn put(&self, ptx: &str, tag: &str, cubin: &[u8]) {
        let mut known = self.0.lock().unwrap();
        known.insert((ptx.into(), tag.into()), cubin.to_vec());
    }
}

#[test]
fn machine_code_is_made_once_for_an_architecture_and_a_driver() {
    let fake = Fake::new(|_| ());
    let store = Arc::new(Store::default());
    let gpu = CudaDevice::of(fake.open().unwrap(), 0, Some(store.clone())).unwrap();
    for text in ["a", "b", "a"] {
        gpu.load_ptx(&module(text)).unwrap();
    }
    assert_eq!(fake.state().linked, 2);
    drop(gpu);
    fake.state().version = 13_000;
    let newer = CudaDevice::of(fake.open().unwrap(), 0, Some(store.clone())).unwrap();
    newer.load_ptx(&module("a")).unwrap();
    assert_eq!(fake.state().linked, 3);
    let tags: Vec<String> = store
        .0
        .lock()
        .unwrap()
        .keys()
        .map(|(_, tag)| tag.clone())
        .collect();
    assert!(
        tags.iter()
            .any(|tag| tag.contains("sm_9") && tag.contains("12040")),
        "{tags:?}"
    );
    drop(newer);
    nothing_left(&fake);
}

/// One kernel that writes a result of `result` bytes with `arena` bytes beside it.
fn plan(result: i64, arena: i64) -> Plan {
    let mut buffers: Arena<BufferId, Buffer> = Arena::new();
    let mut buffer = |home, bytes| {
        buffers.push(Buffer {
            name: "b".into(),
            home,
            bytes: Expr::constant(bytes),
            align: 64,
            first_step: 0,
            last_step: 0,
            tensor: None,
        })
    };
    let out = buffer(BufferHome::Output(0), result);
    let offset = Expr::ZERO;
    let between = buffer(BufferHome::Arena { offset }, arena);
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
    let args = [out, between].map(|buffer| ArgRef::Buffer {
        buffer,
        offset: Expr::ZERO,
    });
    Plan {
        name: "large".into(),
        isa: "sm_80".into(),
        symbols: vec![],
        limits: vec![],
        inputs: vec![],
        outputs: vec![OutputSpec {
            dtype: DType::U8,
            shape: vec![Expr::constant(result)],
            strides: vec![Expr::constant(1)],
            buffer: out,
            offset: Expr::ZERO,
            alias: None,
        }],
        buffers,
        arena_bytes: Expr::constant(arena),
        kernels,
        steps: vec![Step::Launch {
            kernel,
            args: args.to_vec(),
        }],
    }
}

#[test]
fn a_call_that_does_not_fit_names_its_need_and_gives_all_back() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    for (result, arena) in [(30 << 20, 40 << 20), (40 << 20, 70 << 20)] {
        let program = Program::new(Arc::new(plan(result, arena)), gpu.clone()).unwrap();
        let needed = (result + arena) as usize;
        assert_eq!(program.planned_bytes(), Some(needed));
        let error = program.call(&[]).unwrap_err();
        assert_eq!(error.code, Code::OutOfMemory);
        assert!(
            error
                .message
                .starts_with(&format!("large needs {needed} bytes")),
            "{error}"
        );
        let state = fake.state();
        assert_eq!((state.used(), state.launched.len()), (0, 0));
    }
    let program = Program::new(Arc::new(plan(1 << 20, 2 << 20)), gpu).unwrap();
    let results = program.call(&[]).unwrap();
    assert_eq!(fake.state().launched.len(), 1);
    assert_eq!(fake.state().used(), 3 << 20);
    drop((results, program));
    nothing_left(&fake);
}

#[test]
fn kernels_are_loaded_in_their_order() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake);
    let kernels: Vec<Kernel> = (0..20)
        .map(|number| Kernel {
            name: format!("k{number}"),
            ..plan(1, 1).kernels.values().next().unwrap().clone()
        })
        .collect();
    let loaded = gpu.load_all(&kernels.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(loaded.len(), 20);
    let mut wrong = kernels;
    wrong[13].artefact = Artefact::Interpreted;
    let error = gpu.load_all(&wrong.iter().collect::<Vec<_>>()).unwrap_err();
    assert!(error.message.contains("kernel k13"), "{error}");
}

/// The first words of what was launched since the last time.
pub(super) fn launched(fake: &Fake) -> Vec<u64> {
    let works = std::mem::take(&mut fake.state().launched);
    works.iter().map(|work| work.word).collect()
}

#[test]
fn the_second_call_is_recorded_and_later_ones_follow_their_tensors() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let mut program = Program::new(Arc::new(plan(1 << 20, 64)), gpu.clone()).unwrap();
    program.replay(Some(ReplayOptions::default())).unwrap();
    let mut held = Vec::new();
    for call in 0..5 {
        let results = program.call(&[]).unwrap();
        assert_eq!(launched(&fake), [results[0].address()], "{call}");
        held.extend(results);
    }
    let stats = program.replay_stats().unwrap();
    assert_eq!((stats.recorded, stats.replayed), (1, 4));
    assert_eq!(
        stats.to_string(),
        "4 of 5 calls launched as one, recorded 1 times, 1 recordings of 10304 bytes; last step by step: a first call of its sizes"
    );
    // Who looks at each step sees each step.
    assert_eq!(program.profile(&[]).unwrap().1.len(), 1);
    assert_eq!(program.replay_stats().unwrap().replayed, 4);
    // A call whose tensors are decided has a recording of its own.
    let program = Arc::new(program);
    let mut bound = program.bind(&[], &[Some(&held[0])]).unwrap();
    launched(&fake);
    for _ in 0..3 {
        bound.call().unwrap();
        assert_eq!(launched(&fake), [held[0].address()]);
    }
    assert_eq!(program.replay_stats().unwrap().recorded, 2);
    drop((bound, held, program, gpu));
    nothing_left(&fake);
}

#[test]
fn what_cannot_be_recorded_runs_step_by_step_and_says_why() {
    let fake = Fake::new(|state| state.without = "cuStreamBeginCapture_v2");
    let gpu = device(&fake) as Arc<dyn Device>;
    let mut program = Program::new(Arc::new(plan(64, 64)), gpu).unwrap();
    program.replay(Some(ReplayOptions::default())).unwrap();
    for _ in 0..3 {
        let results = program.call(&[]).unwrap();
        assert_eq!(launched(&fake), [results[0].address()]);
    }
    let stats = program.replay_stats().unwrap();
    assert_eq!((stats.recorded, stats.replayed), (0, 0));
    assert!(
        stats.to_string().contains("cuStreamBeginCapture_v2"),
        "{stats}"
    );
}

#[test]
fn copies_that_moved_are_recorded_again() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let mut plan = plan(64, 64);
    let (dst, src) = (BufferId::from_index(0), BufferId::from_index(1));
    let bytes = Expr::constant(64);
    plan.steps.push(Step::Copy { src, dst, bytes });
    plan.buffers
        .values_mut()
        .for_each(|buffer| buffer.last_step = 1);
    let mut program = Program::new(Arc::new(plan), gpu).unwrap();
    program.replay(Some(ReplayOptions::default())).unwrap();
    let held: Vec<_> = (0..4).map(|_| program.call(&[]).unwrap()).collect();
    let stats = program.replay_stats().unwrap();
    assert_eq!((stats.recorded, stats.replayed), (3, 3));
    drop(held);
}

#[test]
fn a_profile_has_the_times_of_the_device() {
    let fake = Fake::new(|_| ());
    let gpu = device(&fake) as Arc<dyn Device>;
    let mut program = Program::new(Arc::new(two_kernels()), gpu.clone()).unwrap();
    program.replay(Some(ReplayOptions::default())).unwrap();
    for _ in 0..2 {
        program.call(&[]).unwrap();
    }
    let work = || program.call(&[]).map(drop);
    let (called, profile) = crate::profile::profile(work).unwrap();
    called.unwrap();
    // The driver says that everything takes as long.
    let each = Duration::from_micros(2500);
    assert_eq!(profile.device(), 2 * each);
    let rows = profile.rows();
    let first = rows.iter().find(|row| row.name == "first").unwrap();
    assert_eq!((first.calls, first.self_device), (1, each));
    assert_eq!(first.ops, ["add"]);
    assert!(profile.chrome_trace().contains("\"name\":\"cuda:0\""));
    // Who looks at each kernel sees each kernel.
    assert_eq!(program.replay_stats().unwrap().replayed, 1);
    drop((profile, program, gpu));
    nothing_left(&fake);
}
