//! The most bytes that a call holds: what the plan says is what is measured, and no more than the program takes operator by operator, each result let go after its last reader.
//!
//! Operators that have memory inside (products and convolutions copy operands into panels, attention has scores, sorts a second place for rows) take what they take alone, compiled as a graph of their own:
//! nothing that is done to a whole program may cost more than that.

use oxyfuel_base::{Expr, Id, Result};
use oxyfuel_engine::{Executable, Options, Target, compile, cpu_device};
use oxyfuel_graph::random::{self, Choices, Limits};
use oxyfuel_graph::{Builder, Graph, HostTensor, Node, ValueId, place_views};
use oxyfuel_plan::Kernel;
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::device::{Device, DeviceId, LoadedKernel, Mark, MemorySummary, Stream};
use oxyfuel_runtime::storage::Storage;
use oxyfuel_runtime::tensor::Tensor;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn options(threads: usize) -> Options {
    Options {
        threads,
        ..Options::default()
    }
}

/// Bytes that are asked for and not given back, now and at most.
#[derive(Debug, Default)]
struct Count {
    live: usize,
    peak: usize,
}

/// The processor, with a count of what is asked of it.
#[derive(Debug)]
struct Counting {
    device: Arc<CpuDevice>,
    count: Arc<Mutex<Count>>,
}

/// Memory that is counted until it is dropped.
struct Counted {
    bytes: usize,
    count: Arc<Mutex<Count>>,
    _storage: Storage,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.lock().unwrap().live -= self.bytes;
    }
}

impl Device for Counting {
    fn id(&self) -> DeviceId {
        self.device.id()
    }

    fn name(&self) -> String {
        self.device.name()
    }

    fn allocate(&self, bytes: usize) -> Result<Storage> {
        let storage = self.device.allocate(bytes)?;
        let mut count = self.count.lock().unwrap();
        count.live += bytes;
        count.peak = count.peak.max(count.live);
        let address = storage.address();
        let counted = Box::new(Counted {
            bytes,
            count: self.count.clone(),
            _storage: storage,
        });
        // SAFETY: the storage inside lives as long as what counts it.
        Ok(unsafe { Storage::on_device(self.id(), None, address, bytes, counted) })
    }

    unsafe fn write(&self, to: u64, from: &[u8]) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { self.device.write(to, from) }
    }

    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { self.device.read(from, to) }
    }

    unsafe fn move_bytes(&self, from: u64, to: u64, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { self.device.move_bytes(from, to, bytes, stream) }
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn LoadedKernel>> {
        self.device.load(kernel)
    }

    fn synchronize(&self) -> Result<()> {
        self.device.synchronize()
    }

    fn mark(&self, stream: Stream) -> Result<Mark> {
        self.device.mark(stream)
    }

    fn elapsed(&self, from: &Mark, to: &Mark) -> Result<Duration> {
        self.device.elapsed(from, to)
    }

    fn trim(&self) -> usize {
        self.device.trim()
    }

    fn memory_summary(&self) -> Result<MemorySummary> {
        self.device.memory_summary()
    }
}

/// The number of a symbol.
fn number(graph: &Graph, sizes: &[i64], extent: &Expr) -> i64 {
    let of = |symbol| {
        let at = graph.symbols.iter().position(|s| s.symbol == symbol);
        at.map(|at| sizes[at])
    };
    extent.eval(&of).unwrap()
}

/// Bytes that live at once at most where every node's results are tensors of their own, views but windows, and each is let go after its last reader; each operator has what it needs `inside` beside them.
fn eager_peak(graph: &Graph, sizes: &[i64], inside: &dyn Fn(&Node) -> usize) -> usize {
    let places = place_views(graph).unwrap();
    let bytes = |value: ValueId| {
        let ty = &graph.values[value].ty;
        let count = ty.shape.iter().map(|e| number(graph, sizes, e));
        // Allocators give whole lines.
        (count.product::<i64>() as usize * ty.dtype.size()).next_multiple_of(64)
    };
    let mut last = vec![0; graph.values.len()];
    for (step, (_, node)) in graph.nodes.iter().enumerate() {
        for &value in node.inputs.iter().chain(&node.outputs) {
            last[places.root(value).index()] = step;
        }
    }
    for output in &graph.outputs {
        last[places.root(output.value).index()] = usize::MAX;
    }
    let (mut live, mut most) = (Vec::new(), 0);
    for (step, (_, node)) in graph.nodes.iter().enumerate() {
        let own = |value: &ValueId| places.root(*value) == *value;
        live.extend(node.outputs.iter().copied().filter(own));
        let now: usize = live.iter().map(|&value| bytes(value)).sum();
        most = most.max(now + inside(node));
        live.retain(|value| last[value.index()] > step);
    }
    // The old contents of an input that is written are a copy where they are returned, or stored into an input.
    let written: Vec<ValueId> = (graph.outputs.iter())
        .filter_map(|out| Some(graph.inputs[out.alias?]))
        .collect();
    let old = graph.outputs.iter().map(|out| out.value);
    let old = old.filter(|&value| written.contains(&places.root(value)));
    most + old.map(bytes).sum::<usize>()
}

/// Random graphs of each seed.
const GRAPHS: u32 = 1000;
const SEEDS: [u64; 4] = [1, 2, 20_260_101, 77];

/// Kinds of random graphs, on so many threads.
struct Kind {
    symbols: bool,
    contractions: bool,
    threads: usize,
    /// How many of the seeds.
    seeds: usize,
    /// Of 1,000 a seed, so many take more. The number may fall, never rise. (It rose by one when transposed convolutions lost their windows, and with them the room that these made: two of the graphs compute
    /// with one kernel twice, whose order is kept for the second time.)
    above: u32,
}

const KINDS: [Kind; 4] = [
    Kind {
        symbols: false,
        contractions: false,
        threads: 1,
        seeds: 4,
        above: 3,
    },
    Kind {
        symbols: false,
        contractions: true,
        threads: 1,
        seeds: 2,
        above: 40,
    },
    Kind {
        symbols: false,
        contractions: true,
        threads: 3,
        seeds: 2,
        above: 40,
    },
    Kind {
        symbols: true,
        contractions: true,
        threads: 3,
        seeds: 2,
        above: 46,
    },
];

/// Operators that have memory inside: what they take alone counts.
const INSIDE: [&str; 7] = [
    "mm",
    "bmm",
    "addmm",
    "convolution",
    "sdpa",
    "sdpa_backward",
    "argsort",
];

/// What a graph takes: by the plan, as measured, and operator by operator.
struct Taken {
    planned: usize,
    measured: usize,
    eager: usize,
}

struct Judge {
    target: Target,
    options: Options,
    device: Arc<Counting>,
    /// For inputs, which are not counted.
    inputs: Arc<CpuDevice>,
}

impl Judge {
    fn new(threads: usize) -> Self {
        let options = options(threads);
        // One description of a machine, so that the numbers are the same on every one.
        let mut target = Target::by_name("avx2").unwrap();
        target.desc.workers = u32::try_from(threads).unwrap();
        Self {
            target,
            device: Arc::new(Counting {
                device: cpu_device(&options),
                count: Arc::default(),
            }),
            inputs: cpu_device(&options),
            options,
        }
    }

    /// What an operator takes beside its results where it is a graph of its own.
    fn inside(&self, graph: &Graph, node: &Node, sizes: &[i64]) -> usize {
        if !INSIDE.contains(&node.op.name()) {
            return 0;
        }
        let mut b = Builder::new("alone");
        let mut inputs: Vec<ValueId> = Vec::new();
        for (i, value) in node.inputs.iter().enumerate() {
            let same = node.inputs[..i].iter().position(|other| other == value);
            inputs.push(match same {
                Some(same) => inputs[same],
                None => {
                    let ty = &graph.values[*value].ty;
                    let shape = ty.shape.iter().map(|e| number(graph, sizes, e).into());
                    b.input(&format!("x{i}"), ty.dtype, shape.collect(), ty.device)
                        .unwrap()
                }
            });
        }
        let outputs = b.node(node.op.clone(), &inputs).unwrap();
        for (&output, value) in outputs.iter().zip(&node.outputs) {
            let mut read = graph.nodes.values().flat_map(|node| &node.inputs);
            if read.any(|v| v == value) || graph.outputs.iter().any(|o| o.value == *value) {
                b.output(output);
            }
        }
        let alone = b.finish().unwrap();
        let Ok(compiled) = compile(&alone, &self.target, &self.options, false) else {
            return 0;
        };
        let executable =
            Executable::load(compiled.plan, compiled.record, self.device.clone()).unwrap();
        let results = alone.outputs.iter().map(|output| {
            let ty = &alone.values[output.value].ty;
            let count = ty.shape.iter().map(|e| number(&alone, &[], e));
            (count.product::<i64>() as usize * ty.dtype.size()).next_multiple_of(64)
        });
        let results: usize = results.sum();
        let planned = executable.program().planned_bytes().unwrap();
        planned.saturating_sub(results)
    }

    /// Nothing for a graph that the target refuses.
    fn take(&self, graph: &Graph, sizes: &[i64], inputs: &[HostTensor]) -> Option<Taken> {
        let compiled = compile(graph, &self.target, &self.options, false).ok()?;
        let executable =
            Executable::load(compiled.plan, compiled.record, self.device.clone()).unwrap();
        let memory = self.inputs.memory();
        let tensors = inputs.iter().map(|input| {
            Tensor::from_bytes(memory, &input.data, input.dtype, &input.shape).unwrap()
        });
        let tensors: Vec<Tensor> = tensors.collect();
        let inputs: Vec<&Tensor> = tensors.iter().collect();
        // Constants are there before a call.
        let before = {
            let mut count = self.device.count.lock().unwrap();
            count.peak = count.live;
            count.live
        };
        let outputs = executable.run(&inputs).unwrap();
        let measured = self.device.count.lock().unwrap().peak - before;
        drop(outputs);
        Some(Taken {
            planned: executable.program().planned_bytes_of(&inputs).unwrap(),
            measured,
            eager: eager_peak(graph, sizes, &|node| self.inside(graph, node, sizes)),
        })
    }
}

/// Calls something with every random graph of a seed, the numbers of its symbols, and inputs.
fn random_graphs(seed: u64, kind: &Kind, mut each: impl FnMut(&Graph, &[i64], &[HostTensor])) {
    let limits = Limits {
        symbols: kind.symbols,
        layouts: false,
        large: true,
        steps: 16,
        elements: 12_000,
        contractions: kind.contractions,
        ..Limits::default()
    };
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as u32
    };
    for _ in 0..GRAPHS {
        let numbers: Vec<u32> = (0..200).map(|_| next()).collect();
        let mut choices = Choices::new(&numbers);
        if let Ok(graph) = random::graph(&mut choices, &limits) {
            let sizes = graph.symbols.iter();
            let sizes = sizes.map(|s| s.min + i64::from(next()) % (s.max - s.min + 1));
            let sizes: Vec<i64> = sizes.collect();
            let inputs = random::inputs_of(&graph, &sizes, &mut choices).unwrap();
            each(&graph, &sizes, &inputs);
        }
    }
}

#[test]
fn calls_take_what_is_planned_and_no_more_than_operators_one_by_one() {
    for kind in &KINDS {
        let judge = Judge::new(kind.threads);
        let (mut judged, mut above) = (0, 0);
        for &seed in &SEEDS[..kind.seeds] {
            random_graphs(seed, kind, |graph, sizes, inputs| {
                let Some(taken) = judge.take(graph, sizes, inputs) else {
                    return;
                };
                judged += 1;
                assert_eq!(taken.measured, taken.planned, "{sizes:?} {graph}");
                if taken.planned > taken.eager {
                    above += 1;
                    println!(
                        "{} bytes instead of {}: {sizes:?}\n{graph}",
                        taken.planned, taken.eager
                    );
                }
            });
        }
        println!("{above} of {judged} graphs");
        assert!(judged > kind.seeds as u32 * GRAPHS * 9 / 10);
        assert!(above <= kind.above, "{above} of {judged} graphs");
    }
}
