//! Plans with calls of a host: the host owns what crosses between its operators and our kernels.

use oxyfuel_base::{Id, Result, err};
use oxyfuel_engine::{Options, Target, compile};
use oxyfuel_graph::parse;
use oxyfuel_plan::{ArgRef, BufferHome, BufferId, Plan, Step};
use oxyfuel_runtime::device::Stream;
use oxyfuel_runtime::execute::{Host, LATER, Program};
use oxyfuel_runtime::profile::{Category, Profiling};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A host with two operators on f32 vectors: `double`, and `positive`, which keeps what is above zero.
struct Vectors<'a> {
    plan: &'a Plan,
    inputs: Vec<Vec<f32>>,
    held: BTreeMap<usize, Vec<f32>>,
    /// Bytes that are held at once, at most.
    most: usize,
    calls: Vec<String>,
    /// What lies between kernels, where it is the host's to lend.
    lent: Option<Vec<u64>>,
    /// Steps as they begin, and `None` as they end, where it watches.
    watched: Option<Vec<Option<usize>>>,
}

impl Vectors<'_> {
    fn count(&mut self) {
        let held: usize = self.held.values().map(|memory| memory.len() * 4).sum();
        self.most = self.most.max(held);
    }

    fn read(&self, buffer: usize) -> Vec<f32> {
        match self.plan.buffers.values().nth(buffer).map(|b| &b.home) {
            Some(BufferHome::Input(i)) => self.inputs[*i as usize].clone(),
            _ => self.held[&buffer].clone(),
        }
    }
}

impl Host for Vectors<'_> {
    fn arena(&mut self, bytes: usize) -> Result<Option<u64>> {
        let Some(lent) = &mut self.lent else {
            return Ok(None);
        };
        *lent = vec![u64::MAX; bytes.div_ceil(8) + 8];
        Ok(Some((lent.as_ptr() as u64).next_multiple_of(64)))
    }

    fn allocate(&mut self, buffer: usize, bytes: usize) -> Result<u64> {
        let memory = self
            .held
            .entry(buffer)
            .or_insert_with(|| vec![f32::NAN; bytes / 4]);
        let address = memory.as_ptr() as u64;
        self.count();
        Ok(address)
    }

    fn external(&mut self, step: usize, addresses: &mut [u64], numbers: &mut [i64]) -> Result<()> {
        let Step::External(step) = &self.plan.steps[step] else {
            return Err(err!(Internal, "no external step"));
        };
        self.calls.push(step.call.name.clone());
        let x = self.read(step.operands[0].buffer.index());
        let y: Vec<f32> = match step.call.name.as_str() {
            "double" => x.iter().map(|v| v * 2.0).collect(),
            "positive" => x.into_iter().filter(|v| *v > 0.0).collect(),
            name => return Err(err!(HostCall, "no operator {name}")),
        };
        for bind in &step.call.binds {
            let at = self
                .plan
                .symbols
                .iter()
                .position(|s| s.symbol == bind.symbol);
            numbers[at.expect("a symbol of the plan")] = y.len() as i64;
        }
        let result = step.results[0].index();
        addresses[result] = y.as_ptr() as u64;
        self.held.insert(result, y);
        self.count();
        Ok(())
    }

    fn release(&mut self, buffer: usize) {
        self.held.remove(&buffer);
    }

    fn compute(&mut self, _: u64, work: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        work()
    }

    fn watches(&self) -> bool {
        self.watched.is_some()
    }

    fn begin(&mut self, step: usize) -> Result<()> {
        self.watched.iter_mut().for_each(|w| w.push(Some(step)));
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.watched.iter_mut().for_each(|w| w.push(None));
        Ok(())
    }
}

fn plan(text: &str) -> Plan {
    let graph = parse("test", text).unwrap();
    let target = Target::host(&Options::default()).unwrap();
    compile(&graph, &target, &Options::default(), false)
        .unwrap()
        .plan
}

fn run(text: &str, inputs: &[Vec<f32>]) -> (Vec<Vec<f32>>, usize, Vec<String>) {
    let target = Target::host(&Options::default()).unwrap();
    let plan = Arc::new(plan(text));
    let program = Program::new(plan.clone(), target.device(&Options::default()).unwrap()).unwrap();
    let mut host = Vectors {
        plan: &plan,
        inputs: inputs.to_vec(),
        held: BTreeMap::new(),
        most: 0,
        calls: vec![],
        lent: None,
        watched: None,
    };
    let addresses: Vec<u64> = inputs.iter().map(|x| x.as_ptr() as u64).collect();
    let mut numbers = program.numbers();
    assert!(numbers.iter().all(|n| *n == LATER));
    // SAFETY: the inputs are vectors of the sizes in the text and live until the end; the processor is done when the call returns.
    unsafe { program.call_hosted(&mut numbers, &addresses, &mut host, Stream::default()) }.unwrap();
    let outputs = plan.outputs.iter().map(|out| host.read(out.buffer.index()));
    let outputs = outputs.collect();
    if let Some(planned) = program.planned_bytes() {
        let arena = usize::try_from(plan.arena_bytes.as_const().unwrap()).unwrap();
        assert_eq!(planned, arena + host.most, "the planned peak");
    }
    (outputs, host.most, host.calls)
}

#[test]
fn kernels_and_calls_of_the_host_alternate() {
    let text = r#"graph @f(%x: f32[4] cpu) {
  %1: f32[4] = relu %x
  %2: f32[4] = external %1, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"4\"],\"strides\":[\"1\"]}}]}"
  %3: f32[4] = neg %2
  %4: f32[4] = external %3, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"4\"],\"strides\":[\"1\"]}}]}"
  %5: f32[4] = add %4, %x
  return %5, %2
}"#;
    let (outputs, most, calls) = run(text, &[vec![-1.0, 2.0, -3.0, 4.0]]);
    assert_eq!(outputs[0], [-1.0, -6.0, -3.0, -12.0]);
    assert_eq!(outputs[1], [0.0, 4.0, 0.0, 8.0]);
    assert_eq!(calls, ["double", "double"]);
    assert!(most <= 3 * 16, "{most} bytes at once");
}

/// Three kernels that cannot be one, and a call between them.
const STEPS: &str = r#"graph @f(%x: f32[16] cpu) {
  %1: f32[16] = cumsum %x, dim=0
  %2: f32[16] = cumsum %1, dim=0
  %3: f32[16] = external %2, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"16\"],\"strides\":[\"1\"]}}]}"
  %4: f32[16] = neg %3
  return %4
}"#;

#[test]
fn a_host_that_watches_is_told_of_each_step() {
    let target = Target::host(&Options::default()).unwrap();
    let plan = Arc::new(plan(STEPS));
    let program = Program::new(plan.clone(), target.device(&Options::default()).unwrap()).unwrap();
    let x = vec![1.0f32; 16];
    let mut host = Vectors {
        plan: &plan,
        inputs: vec![x.clone()],
        held: BTreeMap::new(),
        most: 0,
        calls: vec![],
        lent: None,
        watched: Some(vec![]),
    };
    // SAFETY: as in `run`.
    unsafe { program.call_hosted(&mut [], &[x.as_ptr() as u64], &mut host, Stream::default()) }
        .unwrap();
    let told = (0..plan.steps.len()).flat_map(|step| [Some(step), None]);
    assert!(plan.steps.len() >= 4);
    assert_eq!(host.watched.unwrap(), told.collect::<Vec<_>>());
}

#[test]
fn a_profile_has_kernels_and_calls_of_the_host() {
    let work = || run(STEPS, &[vec![1.0; 16]]);
    let ((outputs, ..), profile) = oxyfuel_runtime::profile::profile(work).unwrap();
    assert_eq!(outputs[0][..3], [-2.0, -6.0, -12.0]);
    let rows = profile.rows();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert!(
        names.contains(&"double") && names.contains(&"f"),
        "{names:?}"
    );
    let counts = profile.launches();
    assert!(counts.contains(&(Category::External, 1)), "{counts:?}");
    assert_eq!(
        counts.iter().map(|(_, count)| count).sum::<usize>(),
        plan(STEPS).steps.len()
    );
    assert!(profile.device() <= profile.wall());
}

#[test]
fn threads_take_part_in_a_profile() {
    let profiling = Profiling::start();
    let input = || vec![1.0; 16];
    std::thread::scope(|scope| {
        scope.spawn(|| profiling.part(|| run(STEPS, &[input()])));
        scope.spawn(|| run(STEPS, &[input()]));
    });
    let since = std::time::Instant::now();
    profiling.compiled("torch.compile", since);
    let profile = profiling.finish().unwrap();
    let calls = |category| {
        let spans = profile.spans.iter();
        spans.filter(|span| span.category == category).count()
    };
    assert_eq!(
        (calls(Category::Call), calls(Category::Compile)),
        (1, 1),
        "{profile}"
    );
}

#[test]
fn a_size_that_the_host_tells_is_a_symbol_of_the_steps_behind() {
    let text = r#"sym s0: 0..
graph @f(%x: f32[6] cpu) {
  %1: f32[6] = neg %x
  %2: f32[s0] = external %1, call="{\"name\":\"positive\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"s0\"],\"strides\":[\"1\"]}}],\"binds\":[{\"symbol\":0,\"result\":0,\"dim\":0}]}"
  %3: f32[s0] = external %2, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"s0\"],\"strides\":[\"1\"]}}]}"
  %4: f32[6] = exp %1
  return %3, %4
}"#;
    let (outputs, _, calls) = run(text, &[vec![1.0, -2.0, 3.0, -4.0, 0.0, -5.0]]);
    assert_eq!(outputs[0], [4.0, 8.0, 10.0]);
    assert_eq!(outputs[1].len(), 6);
    assert_eq!(calls, ["positive", "double"]);
}

/// Two kernels pass on a small value, long before the host holds its largest tensors.
const IDLE: &str = r#"graph @f(%x: f32[4096] cpu, %y: f32[16] cpu) {
  %1: f32[16] = cumsum %y, dim=0
  %2: f32[16] = cumsum %1, dim=0
  %3: f32[16] = external %2, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"16\"],\"strides\":[\"1\"]}}]}"
  %4: f32[4096] = neg %x
  %5: f32[4096] = external %4, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"4096\"],\"strides\":[\"1\"]}}]}"
  return %3, %5
}"#;

#[test]
fn an_arena_that_would_lie_idle_is_the_hosts() {
    let (outputs, most, _) = run(IDLE, &[vec![1.0; 4096], vec![1.0; 16]]);
    let sums: Vec<f32> = (1..=16u8)
        .map(|n| f32::from(n) * f32::from(n + 1))
        .collect();
    assert_eq!(outputs, [sums, vec![-2.0; 4096]]);
    let plan = plan(IDLE);
    assert_eq!(plan.arena_bytes, 0);
    // The result of the first call, and the operand and result of the second.
    assert_eq!(most, 16 * 4 + 2 * 4096 * 4);
}

#[test]
fn what_lies_in_a_buffer_of_the_hosts_is_alone_there_and_lives_no_longer() {
    let good = plan(IDLE);
    let mut buffers = good.buffers.iter();
    let (tenant, room) = buffers
        .find_map(|(id, buffer)| match buffer.home {
            BufferHome::Within { buffer, .. } => Some((id, buffer)),
            _ => None,
        })
        .unwrap();
    let spoil: [fn(&mut Plan, BufferId, BufferId); 3] = [
        |plan, _, room| plan.buffers[room].last_step = plan.buffers[room].first_step,
        |plan, _, room| plan.outputs[0].buffer = room,
        |plan, tenant, room| {
            for step in &mut plan.steps {
                if let Step::Launch { args, .. } = step {
                    for arg in args {
                        match arg {
                            ArgRef::Buffer { buffer, .. } if *buffer == tenant => *buffer = room,
                            _ => {}
                        }
                    }
                }
            }
        },
    ];
    for spoil in spoil {
        let mut bad = good.clone();
        spoil(&mut bad, tenant, room);
        let error = oxyfuel_plan::verify(&bad).unwrap_err();
        assert_eq!(error.code, oxyfuel_base::Code::InvalidPlan);
    }
}

#[test]
fn a_tensor_that_kernels_are_done_with_is_forgotten_before_the_next_is_made() {
    let text = r#"graph @f(%x: f32[20000] cpu, %z: f32[5000] cpu) {
  %1: f32[20000] = external %x, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"20000\"],\"strides\":[\"1\"]}}]}"
  %2: f32[] = sum %1, dims=[0], keepdim=false
  %3: f32[5000] = add %z, %2
  %4: f32[5000] = external %3, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"5000\"],\"strides\":[\"1\"]}}]}"
  return %4
}"#;
    let (outputs, most, _) = run(text, &[vec![0.5; 20000], vec![1.0; 5000]]);
    assert_eq!(outputs, [vec![40002.0; 5000]]);
    assert_eq!(most, 20000 * 4);
}

#[test]
fn a_host_that_lends_the_memory_between_kernels_has_it_used() {
    let text = r#"graph @f(%x: f32[512, 512] cpu) {
  %1: f32[] = sum %x, dims=[0, 1], keepdim=false
  %2: f32[512, 512] = div %x, %1
  %3: f32[512, 1] = sum %2, dims=[1], keepdim=true
  %4: f32[512, 512] = sub %2, %3
  return %4
}"#;
    let target = Target::host(&Options::default()).unwrap();
    let plan = Arc::new(plan(text));
    let device = target.device(&Options::default()).unwrap();
    let program = Program::new(plan.clone(), device.clone()).unwrap();
    let x: Vec<f32> = (0..512 * 512).map(|i| (i % 7) as f32).collect();
    assert_ne!(plan.arena_bytes.as_const(), Some(0));
    let run = |lends: bool| {
        let mut host = Vectors {
            plan: &plan,
            inputs: vec![x.clone()],
            held: BTreeMap::new(),
            most: 0,
            calls: vec![],
            lent: lends.then(Vec::new),
            watched: None,
        };
        let addresses = [x.as_ptr() as u64];
        // SAFETY: as in `run`.
        unsafe { program.call_hosted(&mut [], &addresses, &mut host, Stream::default()) }.unwrap();
        let result = host.read(plan.outputs[0].buffer.index());
        (result, host.lent.unwrap_or_default())
    };
    let live = || device.memory_summary().unwrap().ours.live;
    let (lent, memory) = run(true);
    assert!(
        memory.iter().any(|word| *word != u64::MAX),
        "nothing was written to what was lent"
    );
    // Scratch of the threads is there now; nothing else is asked of the device.
    let before = live();
    run(true);
    assert_eq!(live(), before);
    // With memory of the device, and lent again after that.
    assert_eq!(run(false).0, lent);
    assert!(live() > before);
    assert_eq!(run(true).0, lent);
}
