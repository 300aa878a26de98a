//! What a compiler keeps: graphs that live are shared, graphs that are dropped are gone, and a failure leaves it usable.

use oxyfuel_base::{Code, Result, error};
use oxyfuel_engine::{Compiler, CudaGraphs, Interpreter, Mode, Options, Target, cpu_device};
use oxyfuel_graph::Graph;
use oxyfuel_plan::Kernel;
use oxyfuel_runtime::code::CodeOptions;
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::memory::HostAllocator;
use oxyfuel_runtime::pool::{Pool, PoolOptions};
use oxyfuel_runtime::runner::{KernelRunner, PreparedKernel};
use oxyfuel_runtime::tensor::Tensor;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A product that lives between two kernels: an arena of `n * n` floats at least.
fn graph(n: usize) -> Graph {
    let text = format!(
        "graph @f(%x: f32[{n}, {n}] cpu) {{
  %a: f32[{n}, {n}] = mm %x, %x
  %b: f32[{n}, {n}] = mm %a, %x
  %c: f32[{n}, {n}] = sub %b, %a
  %d: f32[{n}, {n}] = add %c, %a
  %s: f32[] = sum %d, dims=[0, 1], keepdim=false
  return %s
}}"
    );
    oxyfuel_graph::parse("test", &text).unwrap()
}

fn options() -> Options {
    Options {
        threads: 1,
        ..Options::default()
    }
}

#[test]
fn a_graph_that_lives_is_shared_and_one_that_is_dropped_is_gone() {
    const N: usize = 256;
    let device = cpu_device(&options());
    let compiler = Compiler::on(Target::host(&options()).unwrap(), options(), device.clone());
    let first = compiler.compile(&graph(N)).unwrap();
    let again = compiler.compile(&graph(N)).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(
        (compiler.stats().memory_hits, compiler.stats().compiles),
        (1, 1)
    );

    let ones = vec![1.0f32; N * N];
    let x = Tensor::from_slice(device.memory(), &ones, &[N as i64, N as i64]).unwrap();
    let before = device.memory().stats().live;
    let sum = first.run(&[&x]).unwrap();
    assert_eq!(sum[0].to_vec::<f32>().unwrap(), [(N * N * N * N) as f32]);
    drop(sum);
    // The arena waits for the next call.
    assert!(device.memory().stats().live >= before + 4 * N * N);

    let seen = Arc::downgrade(&first);
    drop((first, again));
    assert!(seen.upgrade().is_none());
    assert_eq!(device.memory().stats().live, before);
    assert!(Device::trim(&*device) >= 4 * N * N);

    compiler.compile(&graph(N)).unwrap();
    assert_eq!(compiler.stats().compiles, 2);
}

#[test]
fn a_cache_that_cannot_be_opened_is_a_note_of_every_compile() {
    let nowhere = PathBuf::from("/proc/oxyfuel/cache");
    let options = Options {
        cache_dir: Some(nowhere),
        ..options()
    };
    let device = cpu_device(&options);
    let compiler = Compiler::on(Target::interpreter(), options, device);
    for n in [2, 3] {
        let executable = compiler.compile(&graph(n)).unwrap();
        let [note] = &executable.record().notes[..] else {
            panic!("{:?}", executable.record().notes);
        };
        for part in ["error[E0502]", "/proc/oxyfuel/cache", "help: "] {
            assert!(note.contains(part), "{note}");
        }
    }
    assert_eq!(compiler.stats().cache_problems.len(), 1);
}

/// An interpreter that panics when it is first asked.
#[derive(Debug)]
struct PanicsOnce {
    armed: AtomicBool,
    inner: Arc<dyn KernelRunner>,
}

impl KernelRunner for PanicsOnce {
    fn prepare(&self, kernel: &Kernel) -> Result<Box<dyn PreparedKernel>> {
        assert!(!self.armed.swap(false, Ordering::Relaxed), "on purpose");
        self.inner.prepare(kernel)
    }
}

/// As doors compile for a host that can go on without us.
#[test]
fn a_panic_in_a_compile_is_an_error_and_the_next_compile_works() {
    let interpreter = Interpreter {
        check: false,
        judge: false,
    };
    let runner = PanicsOnce {
        armed: AtomicBool::new(true),
        inner: interpreter.runner(),
    };
    let device = Arc::new(CpuDevice::new(
        Arc::new(Pool::new(PoolOptions::with_threads(1))),
        HostAllocator::default(),
        CodeOptions::default(),
        Some(Arc::new(runner)),
    ));
    let compiler = Compiler::on(Target::interpreter(), options(), device);
    let error = error::caught(|| compiler.compile(&graph(2))).unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert_eq!(error.message, "the compiler panicked: on purpose");
    assert!(error.help.is_some());
    error::caught(|| compiler.compile(&graph(2))).unwrap();
}

/// A host says where its tensors begin; what of that a call is held to is the target's.
#[test]
fn a_target_wants_no_more_alignment_than_its_accesses_need() {
    let text = "graph @f(%x: f32[64] cpu align 64, %y: f32[64] cpu align 8) {
  %z: f32[64] = add %x, %y
  return %z
}";
    let on_gpu = Options {
        target: "sm_90a".to_owned(),
        ..options()
    };
    let target = Target::host(&options()).unwrap();
    let on_cpu = Compiler::on(target, options(), cpu_device(&options()));
    for (compiler, wanted) in [
        (on_cpu, [1, 1]),
        (Compiler::on_nothing(on_gpu).unwrap(), [16, 8]),
    ] {
        let graph = oxyfuel_graph::parse("test", text).unwrap();
        let graph = compiler.with_wanted_alignment(graph);
        let aligned: Vec<u32> = graph
            .inputs
            .iter()
            .map(|&x| graph.values[x].align)
            .collect();
        assert_eq!(aligned, wanted);
    }
}

#[test]
fn calls_that_have_to_be_launched_as_one_are_refused_where_nothing_is_recorded() {
    let on = |cudagraphs: CudaGraphs, launch_blocking: bool| {
        let options = Options {
            cudagraphs,
            launch_blocking,
            mode: Mode::ReduceOverhead,
            ..options()
        };
        Compiler::new(options)?.compile(&graph(8))
    };
    let error = on(CudaGraphs::Require, false).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
    assert!(
        error.message.contains("cannot be: cpu records no work"),
        "{error}"
    );
    assert!(error.help.unwrap().contains("`cudagraphs` auto"));
    let error = on(CudaGraphs::Require, true).unwrap_err();
    assert!(error.message.contains("`launch_blocking` waits"), "{error}");
    for other in [CudaGraphs::Auto, CudaGraphs::Off] {
        let made = on(other, false).unwrap();
        assert_eq!(made.program().replay_stats(), None);
    }
}
