//! Calls of plans that the pipeline made for GPUs, launched as one on null devices, whole or in submissions: what is recorded, which words a call changes, what is kept, and what is refused.

use oxyfuel_base::{Code, DType, Expr, Result};
use oxyfuel_engine::{Compiler, CudaGraphs, Executable, Mode, Options, Target};
use oxyfuel_graph::Graph;
use oxyfuel_plan::{ArgRef, BufferHome, Step};
use oxyfuel_runtime::capture::{CaptureOptions, Captured};
use oxyfuel_runtime::cuda::CudaInfo;
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::null::{NullCall, NullDevice, h200, small_card};
use oxyfuel_runtime::tensor::Tensor;
use std::sync::Arc;

/// Scans and sums one after the other: kernels that read inputs, kernels that write the result, and some between that see the arena alone.
const CHAIN: &str = "graph @chain(%x: f32[64, 64] cpu, %y: f32[64] cpu) {
  %a: f32[64, 64] = cumsum %x, dim=1
  %b: f32[64, 64] = cumsum %a, dim=0
  %s: f32[] = sum %b, dims=[0, 1], keepdim=false
  %d: f32[64, 64] = mul %b, %s
  %t: f32[64] = sum %d, dims=[0], keepdim=false
  %u: f32[64] = add %t, %y
  %c: f32[64, 64] = sub %d, %u
  return %c
}";

/// Products on the way to one number.
fn products(dtype: DType, n: i64) -> String {
    format!(
        "graph @products(%x: {dtype}[{n}, {n}] cpu align 64, %w: {dtype}[{n}, {n}] cpu align 64) {{
  %a: {dtype}[{n}, {n}] = mm %x, %w
  %b: {dtype}[{n}, {n}] = mm %a, %w
  return %b
}}"
    )
}

/// Sums of what lies between, of any length.
const SIZED: &str = "sym s0: 2..4096
graph @sized(%x: f32[s0, 100] cpu) {
  %a: f32[s0, 100] = cumsum %x, dim=1
  %s: f32[] = sum %a, dims=[0, 1], keepdim=false
  %c: f32[s0, 100] = sub %a, %s
  return %c
}";

fn recorded() -> Options {
    Options {
        mode: Mode::ReduceOverhead,
        ..Options::default()
    }
}

fn required() -> Options {
    Options {
        cudagraphs: CudaGraphs::Require,
        ..Options::default()
    }
}

/// A compiler for a card, and the card.
struct Place {
    card: Arc<NullDevice>,
    compiler: Compiler,
}

impl Place {
    fn new(card: CudaInfo, options: Options) -> Self {
        let card = NullDevice::of(card, 0);
        let target = Target::of_gpu(card.info(), "").unwrap();
        let compiler = Compiler::on(target, options, card.clone());
        Self { card, compiler }
    }

    fn compile(&self, text: &str) -> Result<Arc<Executable>> {
        self.compiler.compile(&graph(text))
    }

    fn tensor(&self, dtype: DType, shape: &[i64]) -> Tensor {
        Tensor::empty_on(&*self.card, dtype, shape).unwrap()
    }

    /// What has been asked of the card since it was asked so often.
    fn since(&self, before: usize) -> Vec<NullCall> {
        self.card.calls().split_off(before)
    }

    /// Runs once and says what was asked meanwhile, but for memory.
    fn call(&self, executable: &Executable, inputs: &[&Tensor]) -> (Vec<Tensor>, Vec<NullCall>) {
        let before = self.card.calls().len();
        let outputs = executable.run(inputs).unwrap();
        let mut asked = self.since(before);
        asked.retain(|call| !matches!(call, NullCall::Allocate(_)));
        (outputs, asked)
    }
}

fn graph(text: &str) -> Graph {
    oxyfuel_graph::parse("test", text).unwrap()
}

/// A launch of one phase: name, words, instances.
type Phase = (String, Vec<u64>, [u64; 3]);

/// The phases that ran, whether they were launched one by one or as one.
fn ran(asked: &[NullCall]) -> Vec<Phase> {
    asked
        .iter()
        .flat_map(|call| match call {
            NullCall::Launch(name, words, grids) => grids
                .iter()
                .filter(|grid| grid.iter().all(|&n| n > 0))
                .map(|grid| (name.clone(), words.clone(), *grid))
                .collect(),
            NullCall::Replay(calls) => ran(calls),
            _ => vec![],
        })
        .collect()
}

/// Numbers of the launches that got other words.
fn changed(asked: &[NullCall]) -> Vec<usize> {
    let changed = asked.iter().filter_map(|call| match call {
        NullCall::SetWords(launch, _) => Some(*launch),
        _ => None,
    });
    changed.collect()
}

fn records(asked: &[NullCall]) -> usize {
    let records = |call: &&NullCall| matches!(call, NullCall::Record(..));
    asked.iter().filter(records).count()
}

fn replays(asked: &[NullCall]) -> usize {
    let replays = |call: &&NullCall| matches!(call, NullCall::Replay(_));
    asked.iter().filter(replays).count()
}

/// For each phase of a plan's launches, in order: the words that are addresses in the memory of inputs and of outputs, by the plan's own arguments.
fn addresses(
    executable: &Executable,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Vec<Vec<(usize, u64)>> {
    let plan = executable.plan();
    let mut phases = Vec::new();
    for step in &plan.steps {
        let Step::Launch { kernel, args } = step else {
            continue;
        };
        let words = args.iter().enumerate().filter_map(|(word, arg)| {
            let ArgRef::Buffer { buffer, offset } = arg else {
                return None;
            };
            let known = |offset: &Expr| offset.as_const().expect("known sizes") as u64;
            let (mut home, mut at) = (&plan.buffers[*buffer].home, known(offset));
            if let BufferHome::Within { buffer, offset } = home {
                at += known(offset);
                home = &plan.buffers[*buffer].home;
            }
            match home {
                BufferHome::Input(input) => Some((word, inputs[*input as usize].address() + at)),
                BufferHome::Output(output) => {
                    Some((word, outputs[*output as usize].address() + at))
                }
                _ => None,
            }
        });
        let words: Vec<(usize, u64)> = words.collect();
        phases.extend(vec![words; plan.kernels[*kernel].phases.len()]);
    }
    phases
}

fn refused<T>(made: Result<T>, why: &str) {
    let error = made.err().expect("an error");
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
    assert!(error.message.contains(why), "{error}");
    assert!(error.help.is_some(), "{error}");
}

#[test]
fn a_call_is_recorded_at_its_second_time_and_follows_its_tensors() {
    for card in [h200(), small_card()] {
        let place = Place::new(card, recorded());
        let executable = place.compile(CHAIN).unwrap();
        let [x, other] = [0; 2].map(|_| place.tensor(DType::F32, &[64, 64]));
        let y = place.tensor(DType::F32, &[64]);
        let (first, asked) = place.call(&executable, &[&x, &y]);
        let launches = ran(&asked).len();
        assert!(launches > 2);
        assert_eq!((records(&asked), replays(&asked)), (0, 0));
        let mut known = addresses(&executable, &[&x, &y], &[&first[0]]);
        assert_eq!(known.len(), launches);
        let mut moved = 0;
        let mut step_by_step = ran(&asked);
        // Recorded; with a new result; with another input; with both as they are, but for the result.
        for (call, x) in [&x, &x, &other, &other].into_iter().enumerate() {
            let (outputs, asked) = place.call(&executable, &[x, &y]);
            let now = addresses(&executable, &[x, &y], &[&outputs[0]]);
            assert_eq!(records(&asked), usize::from(call == 0), "{asked:?}");
            assert_eq!(replays(&asked), 1);
            assert!(matches!(asked.last(), Some(NullCall::Replay(_))));
            let other: Vec<usize> = match call {
                0 => vec![],
                _ => (0..launches).filter(|&i| now[i] != known[i]).collect(),
            };
            assert_eq!(changed(&asked), other);
            // Where only the result is new, what reads the input stays as it is.
            let expected = [0, launches - 1, launches, launches - 1];
            assert_eq!(other.len(), expected[call]);
            moved += other.len();
            // The same launches as one by one, each with the addresses of this call.
            for (words, expected) in step_by_step.iter_mut().zip(&now) {
                for &(word, address) in expected {
                    words.1[word] = address;
                }
            }
            assert_eq!(ran(&asked), step_by_step);
            known = now;
        }
        let stats = executable.program().replay_stats().unwrap();
        assert_eq!((stats.calls, stats.recorded, stats.replayed), (5, 1, 4));
        assert_eq!(stats.moved, moved as u64);
    }
}

/// By default whatever follows each other is submitted together from the third call on, and each launch has the addresses of its call.
#[test]
fn launches_that_follow_each_other_are_submitted_together() {
    let text = CHAIN.replace("64", "640");
    for card in [h200(), small_card()] {
        let place = Place::new(card.clone(), Options::default());
        let executable = place.compile(&text).unwrap();
        let [x, other] = [0; 2].map(|_| place.tensor(DType::F32, &[640, 640]));
        let y = place.tensor(DType::F32, &[640]);
        let (first, asked) = place.call(&executable, &[&x, &y]);
        let mut one_by_one = ran(&asked);
        let launches = one_by_one.len();
        assert!(launches > 2);
        let mut known = addresses(&executable, &[&x, &y], &[&first[0]]);
        for (call, x) in [&x, &x, &x, &other, &x].into_iter().enumerate() {
            let (outputs, asked) = place.call(&executable, &[x, &y]);
            let now = addresses(&executable, &[x, &y], &[&outputs[0]]);
            let expected = [(0, 0), (1, 1), (0, 1), (0, 1), (0, 1)];
            assert_eq!((records(&asked), replays(&asked)), expected[call]);
            if call > 1 {
                let moved: Vec<usize> = (0..launches).filter(|&i| now[i] != known[i]).collect();
                assert_eq!(changed(&asked), moved);
            }
            for (words, expected) in one_by_one.iter_mut().zip(&now) {
                for &(word, address) in expected {
                    words.1[word] = address;
                }
            }
            assert_eq!(ran(&asked), one_by_one);
            known = now;
        }
        assert_eq!(executable.program().submissions(), Some((1, launches)));
        let said = format!("{launches} launches go to the driver as one");
        assert_eq!(executable.submitted().unwrap(), said);
        // Nothing that a call worked in is kept for it: recordings are another thing.
        assert_eq!(executable.program().replay_stats(), None);
        assert_eq!(place.card.recordings().unwrap().bytes(), 0);

        let off = Options {
            cudagraphs: CudaGraphs::Off,
            ..Options::default()
        };
        let place = Place::new(card, off);
        let executable = place.compile(&text).unwrap();
        let [x, y] = [&[640, 640][..], &[640]].map(|shape| place.tensor(DType::F32, shape));
        for _ in 0..4 {
            let (_, asked) = place.call(&executable, &[&x, &y]);
            assert_eq!((records(&asked), replays(&asked)), (0, 0));
        }
        assert_eq!(executable.submitted(), None);
    }
}

/// Tensor maps are built from addresses, and those of a product are launched by themselves, with submissions before and behind them.
#[test]
fn launches_with_tensor_maps_stay_apart_from_submissions() {
    let text = "graph @around(%x: bf16[512, 512] cpu align 64, %w: bf16[512, 512] cpu align 64) {
  %a: bf16[512, 512] = cumsum %x, dim=1
  %b: bf16[512, 512] = cumsum %a, dim=0
  %c: bf16[512, 512] = mm %b, %w
  %d: bf16[512, 512] = cumsum %c, dim=1
  %e: bf16[512, 512] = cumsum %d, dim=0
  return %e
}";
    for (card, submitted) in [(h200(), 2), (small_card(), 1)] {
        let place = Place::new(card, Options::default());
        let executable = place.compile(text).unwrap();
        let [x, w] = [0; 2].map(|_| place.tensor(DType::BF16, &[512, 512]));
        let (_, first) = place.call(&executable, &[&x, &w]);
        let names = |asked: &[NullCall]| -> Vec<String> {
            ran(asked).into_iter().map(|(name, ..)| name).collect()
        };
        for _ in 0..3 {
            place.call(&executable, &[&x, &w]);
        }
        let (_, asked) = place.call(&executable, &[&x, &w]);
        assert_eq!(replays(&asked), submitted);
        assert_eq!(names(&asked), names(&first));
        let (made, launches) = executable.program().submissions().unwrap();
        assert_eq!(made, submitted);
        assert!(launches >= 2 * made && launches <= names(&first).len());
    }
}

/// Tensor maps are built from addresses: where those move the call is recorded again. A card without them changes words.
#[test]
fn launches_with_tensor_maps_are_recorded_anew_where_they_moved() {
    for (card, maps) in [(h200(), true), (small_card(), false)] {
        let place = Place::new(card, recorded());
        let executable = place.compile(&products(DType::BF16, 512)).unwrap();
        let has_maps = executable.plan().steps.iter().any(|step| match step {
            Step::Launch { args, .. } => args.contains(&ArgRef::TensorMap),
            Step::Copy { .. } | Step::External(_) => false,
        });
        assert_eq!(has_maps, maps);
        let [x, w, other] = [0; 3].map(|_| place.tensor(DType::BF16, &[512, 512]));
        let out = place.tensor(DType::BF16, &[512, 512]);
        let mut outputs = [out];
        let mut call = |x: &Tensor| {
            let before = place.card.calls().len();
            executable.run_into(&[x, &w], &mut outputs).unwrap();
            place.since(before)
        };
        call(&x);
        assert_eq!(records(&call(&x)), 1);
        let stayed = call(&x);
        assert_eq!((records(&stayed), changed(&stayed).len()), (0, 0));
        let moved = call(&other);
        assert_eq!(replays(&moved), 1);
        assert_eq!(
            (records(&moved), changed(&moved).is_empty()),
            (usize::from(maps), maps),
            "{moved:?}"
        );
        let reads = |asked: &[NullCall], x: &Tensor| {
            let ran = ran(asked);
            ran.iter().any(|(_, words, _)| words.contains(&x.address()))
        };
        assert!(reads(&moved, &other) && !reads(&moved, &x));
        let stats = executable.program().replay_stats().unwrap();
        assert_eq!((stats.recordings, stats.replayed), (1, 3));
    }
}

#[test]
fn each_size_has_a_recording_and_only_one_may_be_required() {
    for card in [h200(), small_card()] {
        let place = Place::new(card.clone(), recorded());
        let executable = place.compile(SIZED).unwrap();
        let inputs = [7, 300].map(|n| place.tensor(DType::F32, &[n, 100]));
        let alone = inputs
            .each_ref()
            .map(|x| ran(&place.call(&executable, &[x]).1));
        assert_ne!(alone[0], alone[1]);
        for call in 0..3 {
            for (x, alone) in inputs.iter().zip(&alone) {
                let (_, asked) = place.call(&executable, &[x]);
                assert_eq!(
                    (records(&asked), replays(&asked)),
                    (usize::from(call == 0), 1)
                );
                // Names, grids, and words that are no addresses are those of this size.
                let seen = |phases: &[Phase]| {
                    let seen = phases.iter().map(|(name, words, grid)| {
                        let numbers = words.iter().filter(|&&word| word < 1 << 32);
                        (name.clone(), numbers.copied().collect::<Vec<_>>(), *grid)
                    });
                    seen.collect::<Vec<_>>()
                };
                assert_eq!(seen(&ran(&asked)), seen(alone));
            }
        }
        let stats = executable.program().replay_stats().unwrap();
        assert_eq!(
            (stats.recordings, stats.recorded, stats.replayed),
            (2, 2, 6)
        );

        let place = Place::new(card, required());
        let executable = place.compile(SIZED).unwrap();
        let [x, y] = [7, 300].map(|n| place.tensor(DType::F32, &[n, 100]));
        for x in [&y, &x, &x] {
            executable.run(&[x]).unwrap();
        }
        let before = place.card.calls().len();
        refused(
            executable.run(&[&y]),
            "its sizes changed from s0 = 7 to s0 = 300",
        );
        assert!(ran(&place.since(before)).is_empty());
        executable.run(&[&x]).unwrap();
        let stats = executable.program().replay_stats().unwrap();
        assert_eq!((stats.calls, stats.replayed), (4, 2));
    }
}

/// The one that was not used for longest goes, with its arena, and is recorded again when it is called twice.
#[test]
fn recordings_share_a_limit() {
    let sizes = [256, 320, 384];
    let text = |n: i64| products(DType::F32, n);
    let alone = |n: i64| {
        let place = Place::new(small_card(), recorded());
        let executable = place.compile(&text(n)).unwrap();
        let tensors = [0; 2].map(|_| place.tensor(DType::F32, &[n, n]));
        for _ in 0..2 {
            executable.run(&tensors.each_ref()).unwrap();
        }
        executable.program().replay_stats().unwrap().bytes
    };
    let bytes = sizes.map(alone);
    assert!(
        bytes
            .iter()
            .zip(sizes)
            .all(|(&bytes, n)| bytes as i64 >= 4 * n * n)
    );
    let options = Options {
        cudagraph_memory_limit: bytes[0] + bytes[2],
        ..recorded()
    };
    let place = Place::new(small_card(), options);
    let executables = sizes.map(|n| place.compile(&text(n)).unwrap());
    let tensors = sizes.map(|n| [0; 2].map(|_| place.tensor(DType::F32, &[n, n])));
    let live = || place.card.memory_summary().unwrap().ours.live;
    let call = |number: usize| {
        let (_, asked) = place.call(&executables[number], &tensors[number].each_ref());
        replays(&asked)
    };
    let kept = || {
        let kept = executables.each_ref().map(|executable| {
            let stats = executable.program().replay_stats().unwrap();
            (stats.recordings, stats.evicted)
        });
        (kept, place.card.recordings().unwrap().bytes())
    };
    for number in [0, 1] {
        assert_eq!([0; 3].map(|_| call(number)), [0, 1, 1]);
    }
    assert_eq!(call(0), 1);
    assert_eq!(kept(), ([(1, 0), (1, 0), (0, 0)], bytes[0] + bytes[1]));
    assert_eq!(call(2), 0);
    let before = live();
    assert_eq!(call(2), 1);
    assert_eq!(kept(), ([(1, 0), (0, 1), (1, 0)], bytes[0] + bytes[2]));
    // Its arena went with it: a product of so many rows and columns.
    assert!(before - live() >= 4 * 320 * 320);
    assert_eq!([0; 2].map(|_| call(1)), [0, 1]);
    assert_eq!(kept().0[1], (1, 1));
    drop(executables);
    assert_eq!(place.card.recordings().unwrap().bytes(), 0);
}

#[test]
fn what_is_larger_than_the_limit_runs_step_by_step_or_is_refused() {
    let limited = |options: Options| Options {
        cudagraph_memory_limit: 1 << 10,
        ..options
    };
    let place = Place::new(h200(), limited(recorded()));
    let executable = place.compile(CHAIN).unwrap();
    let (x, y) = (
        place.tensor(DType::F32, &[64, 64]),
        place.tensor(DType::F32, &[64]),
    );
    let first = ran(&place.call(&executable, &[&x, &y]).1).len();
    for _ in 0..3 {
        let (_, asked) = place.call(&executable, &[&x, &y]);
        assert_eq!(ran(&asked).len(), first);
    }
    let stats = executable.program().replay_stats().unwrap();
    assert_eq!((stats.calls, stats.replayed, stats.bytes), (4, 0, 0));
    assert!(
        stats
            .missed
            .unwrap()
            .contains("`cudagraph_memory_limit` is 1024")
    );

    let place = Place::new(h200(), limited(required()));
    let executable = place.compile(CHAIN).unwrap();
    let (x, y) = (
        place.tensor(DType::F32, &[64, 64]),
        place.tensor(DType::F32, &[64]),
    );
    executable.run(&[&x, &y]).unwrap();
    let before = place.card.calls().len();
    refused(
        executable.run(&[&x, &y]),
        "`cudagraph_memory_limit` is 1024",
    );
    assert!(ran(&place.since(before)).is_empty());
}

#[test]
fn options_say_whether_calls_are_recorded() {
    let replayed = |mode: Mode, cudagraphs: CudaGraphs, launch_blocking: bool| {
        let options = Options {
            mode,
            cudagraphs,
            launch_blocking,
            ..Options::default()
        };
        let place = Place::new(h200(), options);
        let executable = place.compile(CHAIN).unwrap();
        let (x, y) = (
            place.tensor(DType::F32, &[64, 64]),
            place.tensor(DType::F32, &[64]),
        );
        let calls = [0; 2].map(|_| replays(&place.call(&executable, &[&x, &y]).1));
        assert_eq!(executable.program().replay_stats().is_some(), calls[1] > 0);
        assert_eq!(calls[0], 0);
        calls[1] == 1
    };
    let modes = [
        (Mode::Default, false),
        (Mode::ReduceOverhead, true),
        (Mode::MaxAutotune, true),
        (Mode::MaxAutotuneNoCudagraphs, false),
    ];
    for (mode, records) in modes {
        assert_eq!(replayed(mode, CudaGraphs::Auto, false), records, "{mode:?}");
        assert!(!replayed(mode, CudaGraphs::Off, false));
        assert!(replayed(mode, CudaGraphs::Require, false));
        assert!(!replayed(mode, CudaGraphs::Auto, true));
    }
    let waits = Options {
        launch_blocking: true,
        ..required()
    };
    refused(
        Place::new(h200(), waits).compile(CHAIN),
        "`launch_blocking` waits",
    );
}

/// Neither of two sizes is known to be the larger: values that share no memory in an arena have memory of their own while they live.
const APART: &str = "sym s0: 1..100000
sym s1: 1..100000
graph @apart(%x: f32[s0] cpu, %y: f32[s1] cpu) {
  %a: f32[s0] = cumsum %x, dim=0
  %b: f32[] = sum %a, dims=[0], keepdim=false
  %c: f32[s1] = mul %y, %b
  %d: f32[s1] = cumsum %c, dim=0
  %e: f32[] = sum %d, dims=[0], keepdim=false
  return %e
}";

#[test]
fn a_plan_whose_memory_comes_and_goes_is_not_recorded() {
    let place = Place::new(h200(), recorded());
    let executable = place.compile(APART).unwrap();
    let mut buffers = executable.plan().buffers.values();
    assert!(buffers.any(|buffer| buffer.home == BufferHome::Host));
    let (x, y) = (
        place.tensor(DType::F32, &[50]),
        place.tensor(DType::F32, &[60]),
    );
    for _ in 0..3 {
        place.call(&executable, &[&x, &y]);
    }
    let stats = executable.program().replay_stats().unwrap();
    assert_eq!((stats.calls, stats.replayed), (3, 0));
    let missed = stats.missed.unwrap();
    assert!(missed.contains("memory comes and goes"), "{missed}");

    let place = Place::new(h200(), required());
    let executable = place.compile(APART).unwrap();
    let (x, y) = (
        place.tensor(DType::F32, &[50]),
        place.tensor(DType::F32, &[60]),
    );
    refused(
        executable.run(&[&x, &y]),
        "memory comes and goes while it runs",
    );
}

#[test]
fn a_call_whose_tensors_are_bound_changes_nothing() {
    let place = Place::new(small_card(), recorded());
    let executable = place.compile(CHAIN).unwrap();
    let (x, y) = (
        place.tensor(DType::F32, &[64, 64]),
        place.tensor(DType::F32, &[64]),
    );
    let out = place.tensor(DType::F32, &[64, 64]);
    let mut bound = executable.bind(&[&x, &y], &[Some(&out)]).unwrap();
    let before = place.card.calls().len();
    for _ in 0..4 {
        bound.call().unwrap();
    }
    let asked = place.since(before);
    assert_eq!(
        (records(&asked), replays(&asked), changed(&asked).len()),
        (1, 3, 0)
    );
    let phases = ran(&asked);
    let each = phases.len() / 4;
    assert!(phases.chunks(each).all(|call| call == &phases[..each]));
}

/// Kernels as small as they are many.
const GATHERED: &str = "graph @gathered(%x: f32[64, 64] cpu, %y: f32[64] cpu) {
  %a: f32[64, 64] = sin %x
  %s: f32[] = sum %a, dims=[0, 1], keepdim=false
  %b: f32[64, 64] = mul %a, %s
  %t: f32[64] = sum %b, dims=[0], keepdim=false
  %u: f32[64] = add %t, %y
  %c: f32[64, 64] = sub %b, %u
  return %c
}";

/// Whatever is in a recorded callable: in the default mode small kernels share a launch, which is one piece of the recording.
#[test]
fn a_recorded_callable_of_gathered_kernels_follows_its_arguments() {
    let place = Place::new(h200(), Options::default());
    let executable = place.compile(GATHERED).unwrap();
    assert_eq!(executable.plan().steps.len(), 1);
    let inputs = [(); 2].map(|()| {
        let (x, y) = (
            place.tensor(DType::F32, &[64, 64]),
            place.tensor(DType::F32, &[64]),
        );
        [x, y]
    });
    let mut twice = |inputs: &[&Tensor]| {
        let first = executable.run(inputs)?;
        executable.run(&[&first[0], inputs[1]])
    };
    let mut captured = Captured::new("twice", CaptureOptions::default());
    let first = inputs[0].each_ref();
    captured.prepare(None, &first, &mut twice).unwrap();
    let mut known: Option<Vec<Phase>> = None;
    for now in [&inputs[0], &inputs[1], &inputs[0]] {
        let before = place.card.calls().len();
        captured.call(None, &now.each_ref(), &mut twice).unwrap();
        let mut phases = ran(&place.since(before));
        assert_eq!(phases.len(), 2);
        // As they would be for the first arguments.
        for (_, words, _) in &mut phases {
            for word in words {
                let moved = now.iter().position(|tensor| tensor.address() == *word);
                *word = moved.map_or(*word, |number| first[number].address());
            }
        }
        let seen = known.get_or_insert_with(|| phases.clone());
        assert_eq!(phases, *seen);
    }
    assert!(known.unwrap()[0].1.contains(&first[0].address()));
    let stats = captured.stats();
    assert_eq!(stats.replayed, 3, "{stats}");
}
