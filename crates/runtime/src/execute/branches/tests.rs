//! Plans at random on lanes, with memory that the host gives out again at once: whatever touches the same bytes stays in order.

use super::*;
use crate::device::{DeviceId, DeviceKind, Launch, LoadedKernel, MarkKind, MemorySummary};
use crate::null::NullDevice;
use crate::storage::Storage;
use oxyfuel_base::{Arena, DType, Expr, External, ExternalResult, Id};
use oxyfuel_plan::{
    Artefact, Buffer, BufferHome, BufferId, Cost, ExternalStep, HostOperand, InputSpec, Kernel,
    KernelId, KernelPhase, OutputSpec, Provenance,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BYTES: i64 = 64;

/// How much of each queue is done: what a step, or what comes next on a queue, is behind.
type Clock = HashMap<u64, usize>;

fn merge(mine: &mut Clock, other: &Clock) {
    for (queue, count) in other {
        let known = mine.entry(*queue).or_default();
        *known = (*known).max(*count);
    }
}

/// Something that was done: its queue, its number there, what it was behind, and the bytes that it touched.
#[derive(Debug)]
struct Done {
    queue: u64,
    number: usize,
    behind: Clock,
    touched: Vec<(u64, bool)>,
}

/// What the device was asked, as an order between the steps.
#[derive(Debug, Default)]
struct Log {
    queues: HashMap<u64, Clock>,
    marks: HashMap<Instant, Clock>,
    done: Vec<Done>,
}

impl Log {
    fn work(&mut self, queue: u64, touched: Vec<(u64, bool)>) {
        let clock = self.queues.entry(queue).or_default();
        let behind = clock.clone();
        let number = clock.entry(queue).or_default();
        *number += 1;
        self.done.push(Done {
            queue,
            number: *number,
            behind,
            touched,
        });
    }

    /// Two of them that touch the same bytes, one of which writes, and that are not in order.
    fn conflict(&self) -> Option<(&Done, &Done)> {
        let pairs = self.done.iter().enumerate();
        let mut pairs = pairs.flat_map(|(at, first)| {
            self.done[at + 1..]
                .iter()
                .map(move |second| (first, second))
        });
        pairs.find(|(first, second)| {
            let clash = first.touched.iter().any(|(a, w)| {
                let near = |b: &u64| a.abs_diff(*b) < BYTES as u64;
                second.touched.iter().any(|(b, v)| near(b) && (*w || *v))
            });
            clash && second.behind.get(&first.queue).copied().unwrap_or(0) < first.number
        })
    }
}

/// A device of several queues that computes nothing.
#[derive(Debug)]
struct Queues {
    null: Arc<NullDevice>,
    start: Instant,
    log: Arc<Mutex<Log>>,
}

#[derive(Debug)]
struct Touching {
    written: Vec<bool>,
    log: Arc<Mutex<Log>>,
}

impl LoadedKernel for Touching {
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let touched = launch
            .words
            .iter()
            .copied()
            .zip(self.written.iter().copied());
        self.log
            .lock()
            .unwrap()
            .work(launch.stream.0, touched.collect());
        Ok(())
    }
}

impl Device for Queues {
    fn id(&self) -> DeviceId {
        DeviceId {
            kind: DeviceKind::Null,
            index: 0,
        }
    }
    fn name(&self) -> String {
        "queues".into()
    }
    fn allocate(&self, bytes: usize) -> Result<Storage> {
        self.null.allocate(bytes)
    }
    unsafe fn write(&self, _to: u64, _from: &[u8]) -> Result<()> {
        Ok(())
    }
    unsafe fn read(&self, _from: u64, _to: &mut [u8]) -> Result<()> {
        Ok(())
    }
    unsafe fn move_bytes(&self, from: u64, to: u64, _bytes: usize, stream: Stream) -> Result<()> {
        self.log
            .lock()
            .unwrap()
            .work(stream.0, vec![(from, false), (to, true)]);
        Ok(())
    }
    fn load(&self, kernel: &Kernel) -> Result<Box<dyn LoadedKernel>> {
        Ok(Box::new(Touching {
            written: kernel.written.clone(),
            log: self.log.clone(),
        }))
    }
    fn memory_summary(&self) -> Result<MemorySummary> {
        self.null.memory_summary()
    }
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
    fn is_recording(&self, _stream: Stream) -> bool {
        true
    }
    fn mark(&self, stream: Stream) -> Result<Mark> {
        let mut log = self.log.lock().unwrap();
        let clock = log.queues.entry(stream.0).or_default().clone();
        let name = self.start + Duration::from_nanos(log.marks.len() as u64);
        log.marks.insert(name, clock);
        Ok(Mark(MarkKind::Clock(name)))
    }
    fn wait_for(&self, mark: &Mark, stream: Stream) -> Result<()> {
        let MarkKind::Clock(name) = &mark.0 else {
            panic!("a mark of another device");
        };
        let mut log = self.log.lock().unwrap();
        let clock = log.marks[name].clone();
        merge(log.queues.entry(stream.0).or_default(), &clock);
        Ok(())
    }
    fn elapsed(&self, _from: &Mark, _to: &Mark) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
    fn trim(&self) -> usize {
        0
    }
}

/// A host whose allocator gives what a lane let go to the next that asks on the same lane, as torch's does.
struct Caching<'a> {
    plan: &'a Plan,
    log: Arc<Mutex<Log>>,
    lanes: Option<[Stream; LANES]>,
    lane: usize,
    /// By lane.
    free: Vec<Vec<u64>>,
    held: HashMap<usize, (usize, u64)>,
    next: u64,
    most: usize,
}

impl Caching<'_> {
    fn give(&mut self, buffer: usize) -> u64 {
        let address = self.free[self.lane].pop().unwrap_or_else(|| {
            self.next += 1 << 20;
            self.next
        });
        self.held.insert(buffer, (self.lane, address));
        self.most = self.most.max(self.held.len());
        address
    }
}

impl Host for Caching<'_> {
    fn allocate(&mut self, buffer: usize, _bytes: usize) -> Result<u64> {
        Ok(self.give(buffer))
    }
    fn external(&mut self, step: usize, addresses: &mut [u64], _numbers: &mut [i64]) -> Result<()> {
        let Step::External(call) = &self.plan.steps[step] else {
            panic!("step {step} is no call");
        };
        let read = call
            .operands
            .iter()
            .map(|operand| (addresses[operand.buffer.index()], false));
        let mut touched: Vec<(u64, bool)> = read.collect();
        for result in &call.results {
            let address = self.give(result.index());
            addresses[result.index()] = address;
            touched.push((address, true));
        }
        let queue = self.lanes.map_or(0, |lanes| lanes[self.lane].0);
        self.log.lock().unwrap().work(queue, touched);
        Ok(())
    }
    fn release(&mut self, buffer: usize) {
        if let Some((lane, address)) = self.held.remove(&buffer) {
            self.free[lane].push(address);
        }
    }
    fn compute(
        &mut self,
        _bytes: u64,
        work: &mut (dyn FnMut() -> Result<()> + Send),
    ) -> Result<()> {
        work()
    }
    fn lanes(&mut self, _stream: Stream) -> Option<[Stream; LANES]> {
        self.lanes
    }
    fn on_lane(&mut self, lane: usize) -> Result<()> {
        self.lane = lane;
        Ok(())
    }
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A plan of kernels and calls over two inputs, of which some read what others made; buffers of the arena lie where the first room is.
fn random_plan(dice: &mut Dice, steps: usize) -> Plan {
    let mut buffers: Arena<BufferId, Buffer> = Arena::new();
    let buffer = |buffers: &mut Arena<BufferId, Buffer>, home, step: usize| {
        buffers.push(Buffer {
            name: "b".into(),
            home,
            bytes: Expr::constant(BYTES),
            align: 64,
            first_step: step as u32,
            last_step: step as u32,
            tensor: None,
        })
    };
    let inputs = [0, 1].map(|input| buffer(&mut buffers, BufferHome::Input(input), 0));
    let mut known: Vec<BufferId> = inputs.to_vec();
    let mut kernels: Arena<KernelId, Kernel> = Arena::new();
    for reads in 0..4 {
        kernels.push(Kernel {
            name: format!("k{reads}"),
            program: String::new(),
            artefact: Artefact::Interpreted,
            phases: vec![KernelPhase {
                grid: vec![Expr::ONE],
                min_chunk: 1,
            }],
            written: (0..=reads).map(|at| at == reads).collect(),
            provenance: Provenance::default(),
            cost: Cost::NOTHING,
            rounds: 1,
            members: 1,
            gemm: None,
            note: None,
        });
    }
    let mut made = vec![];
    for step in 0..steps {
        let last = step + 1 == steps;
        let reads = dice.below(4);
        let read: Vec<BufferId> = (0..reads)
            .map(|_| known[known.len() - 1 - dice.below(known.len().min(9))])
            .collect();
        for &id in &read {
            buffers[id].last_step = step as u32;
        }
        if !last && dice.below(3) == 0 {
            let result = buffer(&mut buffers, BufferHome::Host, step);
            let call = External {
                name: if dice.below(8) == 0 {
                    "mine.op"
                } else {
                    "aten.mm.default"
                }
                .into(),
                results: vec![ExternalResult::Opaque],
                ordered: dice.below(12) == 0,
                args: vec![],
                kwargs: vec![],
                operand_strides: vec![],
                sequence: false,
                binds: vec![],
                reason: String::new(),
                gpu: None,
            };
            let operand = |buffer: &BufferId| HostOperand {
                buffer: *buffer,
                tensor: None,
                offset: Expr::ZERO,
                required: None,
            };
            made.push(Step::External(ExternalStep {
                call,
                operands: read.iter().map(operand).collect(),
                results: vec![result],
                provenance: Provenance::default(),
            }));
            known.push(result);
            continue;
        }
        let home = match dice.below(3) {
            _ if last => BufferHome::Output(0),
            0 => BufferHome::Host,
            _ => BufferHome::Arena {
                offset: Expr::constant(-1),
            },
        };
        // Now and then what is there already is written once more.
        let again = !last && dice.below(6) == 0;
        let result = match again {
            true => known[known.len() - 1 - dice.below(known.len().min(4))],
            false => buffer(&mut buffers, home, step),
        };
        buffers[result].last_step = step as u32;
        let arg = |buffer: BufferId| ArgRef::Buffer {
            buffer,
            offset: Expr::ZERO,
        };
        made.push(Step::Launch {
            kernel: KernelId::from_index(reads),
            args: read.iter().copied().chain([result]).map(arg).collect(),
        });
        if !again {
            known.push(result);
        }
    }
    let mut placed: Vec<(i64, u32, u32)> = vec![];
    let ids: Vec<BufferId> = buffers.iter().map(|(id, _)| id).collect();
    for id in ids {
        let (first, last) = (buffers[id].first_step, buffers[id].last_step);
        if let BufferHome::Arena { offset } = &mut buffers[id].home {
            let busy = |at: i64| {
                placed
                    .iter()
                    .any(|(o, f, l)| *o == at && *f <= last && first <= *l)
            };
            let at = (0..).map(|n| n * BYTES).find(|at| !busy(*at)).unwrap();
            *offset = Expr::constant(at);
            placed.push((at, first, last));
        }
    }
    let arena = placed.iter().map(|(at, ..)| at + BYTES).max().unwrap_or(0);
    let output = *known.last().unwrap();
    let spec = |buffer| InputSpec {
        name: "x".into(),
        dtype: DType::F32,
        shape: vec![Expr::constant(16)],
        strides: vec![Expr::ONE],
        align: 4,
        buffer,
    };
    Plan {
        name: "random".into(),
        isa: "null".into(),
        symbols: vec![],
        limits: vec![],
        inputs: inputs.map(spec).to_vec(),
        outputs: vec![OutputSpec {
            dtype: DType::F32,
            shape: vec![Expr::constant(16)],
            strides: vec![Expr::ONE],
            buffer: output,
            offset: Expr::ZERO,
            alias: None,
        }],
        buffers,
        arena_bytes: Expr::constant(arena),
        kernels,
        steps: made,
    }
}

/// Runs the plan, with lanes or without, and says what was asked, how many buffers the host held at once, and how many it still holds.
fn run(plan: Plan, lanes: bool) -> (Log, usize, usize) {
    let log = Arc::new(Mutex::new(Log::default()));
    let device = Arc::new(Queues {
        null: NullDevice::new(0),
        start: Instant::now(),
        log: log.clone(),
    });
    let program = Program::new(Arc::new(plan.clone()), device).unwrap();
    let mut host = Caching {
        plan: &plan,
        log: log.clone(),
        lanes: lanes.then(|| [7, 8, 9].map(Stream)),
        lane: 0,
        free: vec![vec![]; LANES],
        held: HashMap::new(),
        next: 1 << 40,
        most: 0,
    };
    // SAFETY: nothing is computed.
    unsafe { program.call_hosted(&mut [], &[1 << 30, 1 << 31], &mut host, Stream(7)) }.unwrap();
    let (most, left) = (host.most, host.held.len());
    drop((program, host));
    (
        Arc::try_unwrap(log).unwrap().into_inner().unwrap(),
        most,
        left,
    )
}

#[test]
fn whatever_touches_the_same_bytes_stays_in_order() {
    let mut queues = 0;
    for seed in 0..300 {
        let plan = random_plan(&mut Dice(seed), 40);
        let steps = plan.steps.len();
        let (log, _, left) = run(plan, true);
        assert_eq!(log.done.len(), steps);
        assert!(
            log.conflict().is_none(),
            "seed {seed}: {:?}",
            log.conflict()
        );
        // The call's own stream is behind everything at the end, and only the result is held.
        for done in &log.done {
            assert!(log.queues[&7].get(&done.queue).copied().unwrap_or(0) >= done.number);
        }
        assert_eq!(left, 1, "seed {seed}");
        queues += log.queues.values().filter(|clock| clock.len() > 1).count();
    }
    assert!(queues > 300, "nothing was done beside something else");
}

#[test]
fn a_test_of_order_finds_a_missing_wait() {
    let mut log = Log::default();
    log.work(1, vec![(100, true)]);
    log.work(2, vec![(100, false)]);
    assert!(log.conflict().is_some());
}

#[test]
fn without_lanes_steps_are_done_in_the_order_of_the_plan() {
    let plan = random_plan(&mut Dice(5), 30);
    let (log, ..) = run(plan, false);
    assert!(
        log.done
            .iter()
            .all(|done| done.queue == 7 || done.queue == 0)
    );
}

#[test]
fn siblings_go_to_lanes_of_their_own_and_meet_again() {
    // norm; q, k, v; turn q, turn k; attention; norm; gate, up; down.
    let needs = [
        vec![],
        vec![0],
        vec![0],
        vec![0],
        vec![1],
        vec![2],
        vec![3, 4, 5],
        vec![6],
        vec![7],
        vec![7],
        vec![8, 9],
    ];
    let order = Order::new(&needs);
    let lanes: Vec<usize> = order.places.iter().map(|place| place.lane).collect();
    assert_eq!(lanes, [0, 0, 1, 2, 0, 1, 0, 0, 0, 1, 0]);
    let after: Vec<&[usize]> = order.places.iter().map(|place| &*place.after).collect();
    let none: &[usize] = &[];
    assert_eq!(
        after,
        [
            none,
            none,
            &[0],
            &[0],
            none,
            none,
            &[5, 3],
            none,
            none,
            &[7],
            &[9]
        ]
    );
}

#[test]
fn what_needs_nothing_waits_for_nothing_but_the_oldest_lane() {
    let order = Order::new(&[vec![], vec![], vec![], vec![], vec![3]]);
    let lanes: Vec<usize> = order.places.iter().map(|place| place.lane).collect();
    assert_eq!(lanes, [0, 1, 2, 0, 0]);
    assert!(order.places.iter().all(|place| place.after.is_empty()));
}

#[test]
fn bytes_that_are_written_in_parts_wait_for_their_readers_each_time() {
    let mut memory = vec![];
    let mut needs = |bytes: Range<usize>, written: bool, step: usize| {
        let mut needed = vec![];
        touch(&mut memory, Space::Arena, bytes, written, step, &mut needed);
        needed.sort_unstable();
        needed.dedup();
        needed
    };
    assert_eq!(needs(0..100, true, 0), []);
    assert_eq!(needs(0..100, false, 1), [0]);
    assert_eq!(needs(20..30, false, 2), [0]);
    assert_eq!(needs(0..50, true, 3), [0, 1, 2]);
    // The other half has the same readers: that one of them read a part is not remembered.
    assert_eq!(needs(50..100, true, 4), [0, 1, 2]);
    assert_eq!(needs(40..60, false, 5), [0, 3, 4]);
}
