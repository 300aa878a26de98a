//! Running plans.
//!
//! ```text
//!   Plan ──Program::new──▶ Program      kernels loaded, constants on the device
//!                             │
//!                 symbols ──▶ Instance  sizes and offsets evaluated and checked, once for each assignment
//!                             │
//!                    call ──▶ addresses into words, launches in order
//! ```
//!
//! A call in the steady state asks for no memory but its outputs', takes no contended lock and makes no system call:
//! the arena and the words of its launches wait in a workspace that the call takes and puts back, and so does the memory
//! of small outputs of former calls that nobody holds any more. Calls may run at once on several threads; each has a
//! workspace of its own. [`Bound`] is a call whose tensors were decided before.
//!
//! Inputs are checked against the plan (type, shape, strides, alignment, device) and borrowed for the time of the
//! call: an input that the plan writes must not overlap another one, nor be in use elsewhere.

mod border;
mod bound;
mod branches;
mod donate;
mod hosted;
mod instance;
mod limit;
mod recordings;
mod replay;
mod submit;

pub use bound::Bound;
pub use branches::LANES;
pub use hosted::{Host, LATER};
pub use recordings::Recordings;
pub use replay::ReplayOptions;
pub use submit::CALLS_BEFORE;

use crate::capture::tape;
use crate::device::{Device, Launch, LoadedKernel, Stream};
use crate::profile;
use crate::storage::{Kept, Storage};
use crate::tensor::Tensor;
use crate::tensor::layout::Layout;
use border::{Borrowed, Targets, check_input, check_output, check_output_count};
use instance::{Home, Instance, ReadyStep};
use oxyfuel_base::{Code, Result, Symbol, ensure, err};
use oxyfuel_plan::{BufferHome, Plan, Step, SymbolSource};
use replay::{Replay, Replays};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;
use submit::{Submissions, Submits};

/// A plan that is ready to run on a device.
#[derive(Debug)]
pub struct Program {
    plan: Arc<Plan>,
    device: Arc<dyn Device>,
    kernels: Vec<Box<dyn LoadedKernel>>,
    /// Memory of each constant buffer.
    constants: Vec<Option<Storage>>,
    /// The instance of a plan without symbols.
    only: Option<Arc<Ready>>,
    instances: RwLock<HashMap<Box<[i64]>, Arc<Ready>>>,
    /// The most bytes that a call may take.
    memory_limit: Option<usize>,
    /// Whether the device is waited for after each kernel.
    waits: bool,
    /// Where calls are to be recorded; see [`Self::replay`].
    replays: Option<Replays>,
    /// Where launches that follow each other are to be submitted together; see [`Self::submit_together`].
    submits: Option<Submits>,
}

/// The address of an output that has no memory yet.
const NOWHERE: u64 = 0;

/// More assignments than this and the oldest knowledge is forgotten: shapes that never repeat must not fill memory.
const MAX_INSTANCES: usize = 256;

/// An instance and the workspace that waits for its next call.
#[derive(Debug)]
struct Ready {
    instance: Instance,
    waiting: AtomicPtr<Workspace>,
}

/// What a call needs for itself.
#[derive(Debug)]
struct Workspace {
    /// Holds the buffers of the arena; `None` where a host lends each call its memory.
    arena: Option<Storage>,
    /// Address of each buffer; those of inputs and outputs change with each call.
    addresses: Vec<u64>,
    words: Vec<u64>,
    stream: Stream,
    /// Memory of the buffers that the caller gets; empty between calls.
    fresh: Vec<Option<Storage>>,
    replay: Replay,
    submissions: Submissions,
    /// Where it is between calls; nowhere for a call whose tensors are bound.
    waits_in: Weak<Ready>,
    /// Memory of small buffers that callers got: two each, since many a caller holds the last result while the next is computed.
    kept: Vec<[Option<Kept>; 2]>,
}

/// The largest output, in bytes, whose memory is kept. Above it the work takes longer than an allocator does.
const KEPT_BYTES: usize = 8 << 10;

impl Workspace {
    /// Whether launches in it are recorded.
    fn is_recorded(&self) -> bool {
        self.submissions.are_made() || matches!(self.replay, Replay::Recorded(_))
    }

    /// Memory for an output, which an earlier call may have given out.
    #[inline]
    fn output_memory(&mut self, index: usize, bytes: usize, device: &dyn Device) -> Result<u64> {
        let kept = &mut self.kept[index];
        let known = kept.iter().flatten().find_map(Kept::again);
        let storage = match known {
            Some(storage) => storage,
            None => {
                let storage = device.allocate(bytes)?;
                // What others do in the memory of a device may still be under way when they let go of it.
                let may_keep = bytes <= KEPT_BYTES && storage.device().is_none();
                if let Some(place) = kept.iter_mut().find(|place| place.is_none())
                    && may_keep
                {
                    *place = Some(Kept::new(&storage));
                }
                storage
            }
        };
        Ok(self.fresh[index].insert(storage).address())
    }
}

/// An instance for the time of a call.
enum Found<'a> {
    /// Of a plan without symbols.
    Only(&'a Arc<Ready>),
    Known(Arc<Ready>),
}

impl std::ops::Deref for Found<'_> {
    type Target = Arc<Ready>;

    fn deref(&self) -> &Arc<Ready> {
        match self {
            Self::Only(ready) => ready,
            Self::Known(ready) => ready,
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl Ready {
    fn take(&self) -> Option<Box<Workspace>> {
        let waiting = self.waiting.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: a pointer in `waiting` came from `Box::into_raw` in `put`, and the swap made it ours alone.
        (!waiting.is_null()).then(|| unsafe { Box::from_raw(waiting) })
    }

    /// Where two calls ran at once, one workspace is enough to keep: one whose launches are recorded.
    fn put(&self, workspace: Box<Workspace>) {
        let recorded = workspace.is_recorded();
        let ours = Box::into_raw(workspace);
        let nobody = std::ptr::null_mut();
        let put =
            (self.waiting).compare_exchange(nobody, ours, Ordering::AcqRel, Ordering::Relaxed);
        let spare = match put {
            Ok(_) => return,
            Err(_) if recorded => self.waiting.swap(ours, Ordering::AcqRel),
            Err(_) => ours,
        };
        if !spare.is_null() {
            // SAFETY: as in `take`; it is in `waiting` no more, or never was.
            drop(unsafe { Box::from_raw(spare) });
        }
    }
}

/// The time of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Which step of the plan.
    pub step: usize,
    /// The kernel's name, or `copy`.
    pub name: String,
    /// How long it took on the device.
    pub time: Duration,
}

impl Program {
    /// Verifies the plan, loads its kernels and moves its constants to the device.
    pub fn new(plan: Arc<Plan>, device: Arc<dyn Device>) -> Result<Self> {
        oxyfuel_plan::verify(&plan)?;
        let kernels = device.load_all(&plan.kernels.values().collect::<Vec<_>>())?;
        let constants = plan.buffers.values().map(|buffer| match &buffer.home {
            BufferHome::Constant(bytes) => {
                let storage = device.allocate(bytes.len())?;
                device.copy_in(bytes, &storage, 0)?;
                Ok(Some(storage))
            }
            BufferHome::Input(_)
            | BufferHome::Output(_)
            | BufferHome::Arena { .. }
            | BufferHome::Host
            | BufferHome::Within { .. } => Ok(None),
        });
        let constants = constants.collect::<Result<Vec<_>>>()?;
        let only = if plan.symbols.is_empty() {
            Some(Arc::new(Ready::new(&plan, &[])?))
        } else {
            None
        };
        Ok(Self {
            plan,
            device,
            kernels,
            constants,
            only,
            instances: RwLock::default(),
            memory_limit: None,
            waits: false,
            replays: None,
            submits: None,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Whether calls wait for the device after each kernel: a fault is then that of the kernel that it names. Calls are not recorded then.
    pub fn wait_for_each(&mut self, wanted: bool) {
        self.waits = wanted;
    }

    /// Waits for the device, where that is wanted and possible: what is recorded is not done.
    fn wait(&self, stream: Stream) -> Result<()> {
        if !self.waits || tape::is_any() || self.device.is_recording(stream) {
            return Ok(());
        }
        self.device.synchronize()
    }

    /// Runs the plan on the device's default stream and returns its outputs. On a GPU the work may still be under way
    /// when this returns; reading an output waits for it.
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        self.call_given(inputs, &[])
    }

    /// As [`Self::call`]. The memory of inputs that are `given` (one flag an input, or none) may become that of outputs, where nobody else holds it: the caller
    /// looks at them no more.
    pub fn call_given(&self, inputs: &[&Tensor], given: &[bool]) -> Result<Vec<Tensor>> {
        self.call_with(inputs, given, &mut Watch::nobody())
    }

    /// Runs the plan into tensors that the caller has. An output that is a window on an input or on another output, or
    /// whose tensor is laid out differently or is in use, is computed elsewhere and copied.
    pub fn call_into(&self, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
        let ready = self.instance(inputs)?;
        let instance = &ready.instance;
        check_output_count(outputs.len(), instance)?;
        for (index, (tensor, output)) in outputs.iter().zip(&instance.outputs).enumerate() {
            check_output(index, tensor, output, self.device.id())?;
        }
        let targets = Targets::new(outputs, instance, inputs);
        let mut elsewhere = Vec::new();
        self.call_to(
            &ready,
            inputs,
            &targets,
            &mut Watch::nobody(),
            &mut |index, tensor| elsewhere.push((index, tensor)),
        )?;
        drop(targets);
        for (index, computed) in elsewhere {
            outputs[index].copy_from(&computed)?;
        }
        Ok(())
    }

    /// Runs the plan and says how long each step took on the device.
    pub fn profile(&self, inputs: &[&Tensor]) -> Result<(Vec<Tensor>, Vec<StepTime>)> {
        let mut marks = vec![];
        let mut mark = |_, stream| {
            marks.push(self.device.mark(stream)?);
            Ok(())
        };
        let outputs = self.call_with(inputs, &[], &mut Watch(Some(&mut mark)))?;
        let times = marks.windows(2).enumerate().map(|(step, marks)| {
            let name = match &self.plan.steps[step] {
                Step::Launch { kernel, .. } => self.plan.kernels[*kernel].name.clone(),
                Step::Copy { .. } => "copy".to_string(),
                Step::External(step) => step.call.name.clone(),
            };
            Ok(StepTime {
                step,
                name,
                time: self.device.elapsed(&marks[0], &marks[1])?,
            })
        });
        Ok((outputs, times.collect::<Result<Vec<_>>>()?))
    }

    /// `between` is called before the first step and after each.
    fn call_with(
        &self,
        inputs: &[&Tensor],
        given: &[bool],
        between: &mut Watch<'_>,
    ) -> Result<Vec<Tensor>> {
        let ready = self.instance(inputs)?;
        let mut outputs = Vec::with_capacity(ready.instance.outputs.len());
        self.call_to(
            &ready,
            inputs,
            &Targets::none(given),
            between,
            &mut |_, tensor| outputs.push(tensor),
        )?;
        Ok(outputs)
    }

    /// `results` is given each output that has no target, in order.
    fn call_to(
        &self,
        ready: &Arc<Ready>,
        inputs: &[&Tensor],
        targets: &Targets<'_>,
        between: &mut Watch<'_>,
        results: &mut dyn FnMut(usize, Tensor),
    ) -> Result<()> {
        if !profile::is_on() || !between.is_nobody() || tape::is_any() {
            return self.call_watched(ready, inputs, targets, between, results);
        }
        let mut call = profile::Call::begin(&self.device)?;
        let mut mark = |_, stream| call.mark(stream);
        self.call_watched(ready, inputs, targets, &mut Watch(Some(&mut mark)), results)?;
        call.end(&self.plan);
        Ok(())
    }

    fn call_watched(
        &self,
        ready: &Arc<Ready>,
        inputs: &[&Tensor],
        targets: &Targets<'_>,
        between: &mut Watch<'_>,
        results: &mut dyn FnMut(usize, Tensor),
    ) -> Result<()> {
        let instance = &ready.instance;
        let device = self.device.id();
        for (tensor, spec) in inputs.iter().zip(&instance.inputs) {
            check_input(tensor, spec, device)?;
        }
        let _borrowed = Borrowed::new(inputs, &instance.inputs)?;
        if tape::is_any() {
            self.tell(instance, inputs, targets);
        }
        let workspace = self.workspace(ready, Stream::default());
        let mut workspace = workspace.map_err(|error| self.short_of_memory(instance, error))?;
        let mut call = || {
            self.place(instance, inputs, targets, &mut workspace)?;
            // SAFETY: every input was checked to hold its buffer's bytes and is borrowed; outputs and arena were allocated
            // with their buffers' sizes; offsets were checked by `Instance`; what kernels touch inside is the compiler's promise.
            unsafe { self.run(instance, &mut workspace, between) }?;
            for (index, output) in instance.outputs.iter().enumerate() {
                if targets.get(index).is_none() {
                    results(
                        index,
                        self.output(output, instance, inputs, &mut workspace.fresh)?,
                    );
                }
            }
            Ok(())
        };
        let called: Result<()> = call();
        workspace.fresh.fill(None);
        match called {
            Err(error) if error.code == Code::OutOfMemory => {
                drop(workspace);
                Err(self.short_of_memory(instance, error))
            }
            // Memory of a recording is not that of other calls.
            called if tape::is_on(device) => called,
            called => {
                ready.put(workspace);
                called
            }
        }
    }

    /// Tells whoever records a callable which memory this call uses.
    #[cold]
    fn tell(&self, instance: &Instance, inputs: &[&Tensor], targets: &Targets<'_>) {
        let device = self.device.id();
        for (input, spec) in inputs.iter().zip(&instance.inputs) {
            tape::used(device, input.storage(), spec.written);
        }
        for output in 0..instance.outputs.len() {
            if let Some(target) = targets.get(output) {
                tape::used(device, target.storage(), true);
            }
        }
        for constant in self.constants.iter().flatten() {
            tape::used(device, constant, false);
        }
    }

    /// Puts the addresses of a call's inputs and outputs into its workspace, with new memory for outputs that have no target.
    fn place(
        &self,
        instance: &Instance,
        inputs: &[&Tensor],
        targets: &Targets<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        for (index, buffer) in instance.buffers.iter().enumerate() {
            workspace.addresses[index] = match buffer.home {
                Home::Input(input) => inputs[input].address(),
                Home::Output(output) => match targets.get(output) {
                    Some(tensor) => tensor.address(),
                    None => match donate::donor(instance, inputs, targets.given, index) {
                        Some(storage) => workspace.fresh[index].insert(storage).address(),
                        // Made by the first segment that writes it.
                        None if instance.apart => NOWHERE,
                        None => workspace.output_memory(index, buffer.bytes, &*self.device)?,
                    },
                },
                Home::Arena { .. }
                | Home::Constant
                | Home::Host
                | Home::Later
                | Home::Within { .. } => continue,
            };
        }
        Ok(())
    }

    /// Runs the plan on memory that the caller answers for: one address an input and one an output (ignored where
    /// [`Self::output_bytes`] is zero), in the plan's order. Nothing is checked but the counts.
    ///
    /// # Safety
    /// The inputs are as the plan's [`oxyfuel_plan::InputSpec`]s say for these symbols, on the program's device; each
    /// output address has room for its buffer; nobody else uses the memory until the device is done.
    pub unsafe fn call_raw(
        &self,
        symbols: &[i64],
        inputs: &[u64],
        outputs: &[u64],
        stream: Stream,
    ) -> Result<()> {
        let ready = self.ready(symbols)?;
        let instance = &ready.instance;
        ensure!(
            inputs.len() == instance.inputs.len() && outputs.len() == instance.outputs.len(),
            ArityMismatch,
            "{} inputs and {} outputs for a plan with {} and {}",
            inputs.len(),
            outputs.len(),
            instance.inputs.len(),
            instance.outputs.len()
        );
        let mut workspace = self.workspace(&ready, stream)?;
        for (address, buffer) in workspace.addresses.iter_mut().zip(&instance.buffers) {
            match buffer.home {
                Home::Input(input) => *address = inputs[input],
                Home::Output(output) => *address = outputs[output],
                Home::Arena { .. }
                | Home::Constant
                | Home::Host
                | Home::Later
                | Home::Within { .. } => {}
            }
        }
        // SAFETY: promised by the caller.
        let ran = unsafe { self.run(instance, &mut workspace, &mut Watch::nobody()) };
        workspace.fresh.fill(None);
        ready.put(workspace);
        ran?;
        for (output, address) in instance.outputs.iter().zip(outputs) {
            if let Some(constant) = &self.constants[output.buffer] {
                // SAFETY: the caller promises room for the buffer.
                unsafe {
                    self.device
                        .move_bytes(constant.address(), *address, constant.len(), stream)
                }?;
            }
        }
        Ok(())
    }

    /// Bytes of memory that each output brings for these symbols; zero for windows on inputs or on other outputs.
    pub fn output_bytes(&self, symbols: &[i64]) -> Result<Vec<usize>> {
        let ready = self.ready(symbols)?;
        let bytes = ready
            .instance
            .outputs
            .iter()
            .enumerate()
            .map(|(index, output)| {
                let buffer = ready.instance.buffers[output.buffer];
                match buffer.home {
                    Home::Output(owner) if owner == index => buffer.bytes,
                    Home::Constant => buffer.bytes,
                    Home::Output(_)
                    | Home::Input(_)
                    | Home::Arena { .. }
                    | Home::Host
                    | Home::Later
                    | Home::Within { .. } => 0,
                }
            });
        Ok(bytes.collect())
    }

    /// # Safety
    /// The workspace's addresses lead to memory as [`Self::call_raw`] asks for.
    unsafe fn run(
        &self,
        instance: &Instance,
        workspace: &mut Workspace,
        between: &mut Watch<'_>,
    ) -> Result<()> {
        let alone = between.is_nobody() && !self.waits && !tape::is_any();
        if let Some(replays) = self.replays.as_ref().filter(|_| alone) {
            // SAFETY: promised by the caller.
            return unsafe { self.run_as_one(replays, instance, workspace) };
        }
        between.after(0, workspace.stream)?;
        match instance.apart {
            // SAFETY: promised by the caller.
            true => unsafe { self.run_apart(instance, workspace, between) },
            // SAFETY: promised by the caller.
            false => unsafe {
                self.run_together(instance, 0..instance.steps.len(), workspace, between)
            },
        }
    }

    /// Runs steps between which memory comes and goes.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn run_apart(
        &self,
        instance: &Instance,
        workspace: &mut Workspace,
        between: &mut Watch<'_>,
    ) -> Result<()> {
        let own = |buffer: usize| instance.buffers[buffer].home == Home::Host;
        let mut run = || {
            for segment in &instance.segments {
                for &buffer in &segment.allocate {
                    if own(buffer) || workspace.addresses[buffer] == NOWHERE {
                        let storage = self.device.allocate(instance.buffers[buffer].bytes)?;
                        workspace.addresses[buffer] = storage.address();
                        workspace.fresh[buffer] = Some(storage);
                    }
                }
                // SAFETY: promised by the caller; what lives only now is there and as large as its buffer.
                unsafe { self.run_together(instance, segment.steps.clone(), workspace, between) }?;
                for &buffer in segment.release.iter().filter(|&&buffer| own(buffer)) {
                    workspace.fresh[buffer] = None;
                }
            }
            Ok(())
        };
        let ran = run();
        if ran.is_err() {
            workspace.fresh.fill(None);
        }
        ran
    }

    /// # Safety
    /// As [`Self::run`], for the buffers that these steps touch.
    unsafe fn run_steps(
        &self,
        instance: &Instance,
        steps: Range<usize>,
        workspace: &mut Workspace,
        between: &mut Watch<'_>,
    ) -> Result<()> {
        let Workspace {
            addresses,
            words,
            stream,
            ..
        } = workspace;
        for number in steps {
            match &instance.steps[number] {
                ReadyStep::External => {
                    return Err(err!(
                        HostCall,
                        "step {number} of the plan is an operator of the host"
                    ));
                }
                ReadyStep::Launch {
                    kernel,
                    words: range,
                    pointers,
                    grids,
                    maps,
                } => {
                    for pointer in &instance.pointers[pointers.clone()] {
                        words[pointer.word] = addresses[pointer.buffer] + pointer.offset;
                    }
                    let kinds = &instance.kinds[range.clone()];
                    let launch = Launch {
                        words: &words[range.clone()],
                        kinds,
                        grids,
                        maps,
                        stream: *stream,
                    };
                    // SAFETY: promised by the caller.
                    unsafe { self.kernels[*kernel].launch(&launch) }?;
                    self.wait(*stream)?;
                }
                ReadyStep::Copy { src, dst, bytes } => {
                    // SAFETY: promised by the caller; both buffers were checked to be that long.
                    unsafe {
                        self.device
                            .move_bytes(addresses[*src], addresses[*dst], *bytes, *stream)
                    }?;
                }
            }
            between.after(number + 1, *stream)?;
        }
        Ok(())
    }

    /// Numbers for the symbols from the shapes of a call's inputs, and the instance for them.
    fn instance(&self, inputs: &[&Tensor]) -> Result<Found<'_>> {
        ensure!(
            inputs.len() == self.plan.inputs.len(),
            ArityMismatch,
            "{} inputs for a plan with {}",
            inputs.len(),
            self.plan.inputs.len()
        );
        if let Some(only) = &self.only {
            return Ok(Found::Only(only));
        }
        let symbols = self
            .plan
            .symbols
            .iter()
            .map(|binding| match binding.source {
                SymbolSource::Extent { input, dim } => {
                    let shape = inputs.get(input as usize).map(|input| input.shape());
                    let extent = shape.and_then(|shape| shape.get(dim as usize));
                    extent
                        .copied()
                        .ok_or_else(|| err!(RankMismatch, "input {input} has no dim {dim}"))
                }
                SymbolSource::Given | SymbolSource::Step(_) => Ok(LATER),
            });
        self.ready(&symbols.collect::<Result<Vec<_>>>()?)
    }

    /// Lets go of memory that waits for the next call: for programs that run once.
    pub fn rest(&self) {
        let known = self.instances.read();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        for ready in self.only.iter().chain(known.values()) {
            drop(ready.take());
        }
    }

    /// The instance for these numbers, in the order of the plan's symbols.
    fn ready(&self, values: &[i64]) -> Result<Found<'_>> {
        let bindings = &self.plan.symbols;
        ensure!(
            values.len() == bindings.len(),
            ArityMismatch,
            "{} numbers for {} symbols",
            values.len(),
            bindings.len()
        );
        if let Some(only) = &self.only {
            return Ok(Found::Only(only));
        }
        if let Some(ready) = self
            .instances
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(values)
        {
            return Ok(Found::Known(ready.clone()));
        }
        self.check_numbers(values)?;
        let symbols: Vec<(Symbol, i64)> = bindings
            .iter()
            .map(|binding| binding.symbol)
            .zip(values.iter().copied())
            .filter(|(_, value)| *value != LATER)
            .collect();
        let ready = Arc::new(Ready::new(&self.plan, &symbols)?);
        self.check_limit(&ready.instance)?;
        let mut instances = self
            .instances
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if instances.len() >= MAX_INSTANCES {
            instances.clear();
        }
        instances.insert(values.into(), ready.clone());
        Ok(Found::Known(ready))
    }

    fn workspace(&self, ready: &Arc<Ready>, stream: Stream) -> Result<Box<Workspace>> {
        if tape::is_on(self.device.id()) {
            return self.new_workspace(&ready.instance, stream);
        }
        let empty = ready.instance.arena_bytes == 0;
        if let Some(mut workspace) = ready.take()
            && (workspace.arena.is_some() || empty)
        {
            if workspace.stream != stream && !empty {
                // Another queue may still be working in this arena.
                self.device.synchronize()?;
            }
            workspace.stream = stream;
            return Ok(workspace);
        }
        let mut workspace = self.new_workspace(&ready.instance, stream)?;
        workspace.waits_in = Arc::downgrade(ready);
        Ok(workspace)
    }

    fn new_workspace(&self, instance: &Instance, stream: Stream) -> Result<Box<Workspace>> {
        let arena = self.device.allocate(instance.arena_bytes)?;
        Ok(self.workspace_in(instance, Some(arena), stream))
    }

    /// A workspace over that arena.
    fn workspace_in(
        &self,
        instance: &Instance,
        arena: Option<Storage>,
        stream: Stream,
    ) -> Box<Workspace> {
        let start = arena.as_ref().map_or(NOWHERE, Storage::address);
        let addresses = instance
            .buffers
            .iter()
            .zip(&self.constants)
            .map(|(buffer, constant)| match buffer.home {
                Home::Arena { offset } => start + offset as u64,
                Home::Constant => constant.as_ref().map_or(0, |storage| storage.address()),
                Home::Input(_)
                | Home::Output(_)
                | Home::Host
                | Home::Later
                | Home::Within { .. } => 0,
            });
        let addresses = addresses.collect();
        Box::new(Workspace {
            arena,
            addresses,
            words: instance.words.clone(),
            stream,
            fresh: vec![None; instance.buffers.len()],
            replay: Replay::Unused,
            submissions: Submissions::default(),
            waits_in: Weak::new(),
            kept: instance.buffers.iter().map(|_| [None, None]).collect(),
        })
    }

    fn output(
        &self,
        output: &instance::Output,
        instance: &Instance,
        inputs: &[&Tensor],
        fresh: &mut [Option<Storage>],
    ) -> Result<Tensor> {
        let (storage, start) = match instance.buffers[output.buffer].home {
            Home::Input(input) => {
                // An input's buffer begins at its first element.
                let (size, to) = (
                    inputs[input].dtype().size() as i64,
                    output.dtype.size() as i64,
                );
                let start = inputs[input].offset() * size;
                ensure!(
                    start % to == 0,
                    LayoutMismatch,
                    "an output of {} is not aligned in its input",
                    output.dtype
                );
                (inputs[input].storage().clone(), start / to)
            }
            Home::Constant => (self.copy_of_constant(output.buffer)?, 0),
            Home::Output(_)
            | Home::Arena { .. }
            | Home::Host
            | Home::Later
            | Home::Within { .. } => {
                let storage = match output.last {
                    true => fresh[output.buffer].take(),
                    false => fresh[output.buffer].clone(),
                };
                (
                    storage.ok_or_else(|| err!(InvalidPlan, "an output without memory"))?,
                    0,
                )
            }
        };
        let layout = Layout {
            shape: output.shape.as_slice().into(),
            strides: output.strides.as_slice().into(),
            offset: start + output.offset,
        };
        Tensor::from_storage(storage, output.dtype, layout)
    }

    /// The caller may write what it is given; the plan's own constant stays as it is.
    fn copy_of_constant(&self, buffer: usize) -> Result<Storage> {
        let constant = self.constants[buffer]
            .as_ref()
            .ok_or_else(|| err!(InvalidPlan, "a constant without bytes"))?;
        let copy = self.device.allocate(constant.len())?;
        // SAFETY: both storages are alive and that long; the device works in order.
        unsafe {
            self.device.move_bytes(
                constant.address(),
                copy.address(),
                constant.len(),
                Stream::default(),
            )
        }?;
        self.device.synchronize()?;
        Ok(copy)
    }
}

/// Who wants to know of every step of a call.
struct Watch<'a>(Option<&'a mut dyn FnMut(usize, Stream) -> Result<()>>);

impl Watch<'_> {
    fn nobody() -> Self {
        Self(None)
    }

    fn is_nobody(&self) -> bool {
        self.0.is_none()
    }

    /// So many steps are asked for.
    fn after(&mut self, steps: usize, stream: Stream) -> Result<()> {
        match &mut self.0 {
            Some(watch) => watch(steps, stream),
            None => Ok(()),
        }
    }
}

impl Ready {
    fn new(plan: &Plan, symbols: &[(Symbol, i64)]) -> Result<Self> {
        Ok(Self {
            instance: Instance::new(plan, symbols)?,
            waiting: AtomicPtr::default(),
        })
    }
}
