//! Any callable on tensors of a device, recorded and launched as one.
//!
//! ```text
//!   Captured ──call(key, arguments)──▶ a kind of calls: same key, or same types, shapes and strides
//!                                        first calls   as they are
//!                                        then          recorded, and launched as one from then on
//! ```
//!
//! - Arguments are never copied. Those that lie elsewhere than the last time have their addresses put into the recorded
//!   launches; where that cannot be done (copies, and kernels with tensor maps) another recording is made for that place.
//! - What the callable writes to an argument is written to the argument of the replay.
//! - Results stay where they were recorded. While one is held, another recording runs, with memory of its own.
//! - Tensors that the callable holds by itself are read and written where they were, and are kept alive.
//! - The callable itself runs only while it is recorded: what it does beside work of the device is not done again.
//! - All recordings together take at most so many bytes; those that were not used for longest go first.

mod recording;
pub(crate) mod tape;

use crate::device::Device;
use crate::memory::ALIGN;
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result, ensure, err};
use recording::{Recording, Run};
use std::fmt;
use std::sync::Arc;

/// Recordings of one kind of calls, where more are not required: while results of so many are held, further calls run as they are.
const INSTANCES: usize = 4;

/// Kinds of calls that are remembered.
const KINDS: usize = 256;

/// The part of a device's memory that recordings may take where nobody says how much.
pub(crate) const SHARE: usize = 4;

/// How a callable is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Calls of a kind that run as they are before one is recorded; at least one is.
    pub warmup: usize,
    /// The most bytes that its recordings take together; 0: a quarter of the device's memory.
    pub memory_limit: usize,
    /// Whether a call that is not launched as one is an error, but for the first ones of the first kind.
    pub require: bool,
}

/// What has become of the calls of a callable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Calls.
    pub calls: u64,
    /// How often it was recorded.
    pub recorded: u64,
    /// Calls that were launched as one.
    pub replayed: u64,
    /// Launches that got other addresses.
    pub moved: u64,
    /// Recordings that went to make room for others.
    pub evicted: u64,
    /// Recordings that are kept.
    pub recordings: usize,
    /// What they take of the device.
    pub bytes: usize,
    /// Why a call was not launched as one, the last time.
    pub missed: Option<String>,
}

impl fmt::Display for CaptureStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} calls launched as one, recorded {} times, {} recordings of {} bytes",
            self.replayed, self.calls, self.recorded, self.recordings, self.bytes
        )?;
        match &self.missed {
            Some(missed) => write!(f, "; last step by step: {missed}"),
            None => Ok(()),
        }
    }
}

/// A callable's recordings; the callable itself is given at each call.
#[derive(Debug)]
pub struct Captured {
    name: String,
    options: CaptureOptions,
    kinds: Vec<Kind>,
    clock: u64,
    stats: CaptureStats,
}

/// Calls that are alike.
#[derive(Debug)]
struct Kind {
    key: Option<u64>,
    forms: Vec<Form>,
    /// Calls that ran as they are.
    warm: usize,
    recordings: Vec<Recording>,
    used: u64,
}

/// What a recording knows of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Form {
    dtype: DType,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// The largest power of two, up to what code relies on, that divides its address.
    align: u64,
}

impl Form {
    fn of(tensor: &Tensor) -> Self {
        Self {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            strides: tensor.strides().to_vec(),
            align: 1 << (tensor.address() | ALIGN as u64).trailing_zeros(),
        }
    }

    /// Whether what was recorded for this one serves a tensor.
    fn admits(&self, tensor: &Tensor) -> bool {
        self.dtype == tensor.dtype()
            && self.shape == tensor.shape()
            && self.strides == tensor.strides()
            && tensor.address().is_multiple_of(self.align)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

impl Captured {
    /// Nothing is recorded yet; `name` stands for the callable in messages.
    pub fn new(name: impl Into<String>, options: CaptureOptions) -> Self {
        Self {
            name: name.into(),
            options,
            kinds: Vec::new(),
            clock: 0,
            stats: CaptureStats::default(),
        }
    }

    /// How it is recorded, from the next call on.
    pub fn options_mut(&mut self) -> &mut CaptureOptions {
        &mut self.options
    }

    /// What has become of its calls.
    pub fn stats(&self) -> CaptureStats {
        let recordings = || self.kinds.iter().flat_map(|kind| &kind.recordings);
        CaptureStats {
            recordings: recordings().count(),
            bytes: recordings().map(|recording| recording.bytes).sum(),
            ..self.stats.clone()
        }
    }

    /// Records for arguments like these, and launches nothing; what runs before that are the first calls, as many as are wanted.
    pub fn prepare(
        &mut self,
        key: Option<u64>,
        inputs: &[&Tensor],
        run: &mut Run<'_>,
    ) -> Result<()> {
        let device = self.device(inputs)?;
        let kind = self.kind(key, inputs)?;
        while self.kinds[kind].warm < self.options.warmup.max(1) {
            run(inputs)?;
            self.kinds[kind].warm += 1;
        }
        if self.kinds[kind].recordings.is_empty() {
            self.record(kind, &device, inputs, run)?;
        }
        Ok(())
    }

    /// Does what `run` does with these arguments: by a recording, or by calling it.
    pub fn call(
        &mut self,
        key: Option<u64>,
        inputs: &[&Tensor],
        run: &mut Run<'_>,
    ) -> Result<Vec<Tensor>> {
        if tape::is_any() {
            // A part of what somebody else records.
            return run(inputs);
        }
        let device = self.device(inputs)?;
        let kind = self.kind(key, inputs)?;
        self.stats.calls += 1;
        self.clock += 1;
        self.kinds[kind].used = self.clock;
        if self.kinds[kind].warm < self.options.warmup.max(1) {
            self.kinds[kind].warm += 1;
            self.stats.missed = Some("a first call of its sizes".into());
            return run(inputs);
        }
        let fits = |recording: &Recording| recording.fits(inputs);
        let found = self.kinds[kind].recordings.iter().position(fits);
        let found = match found {
            Some(found) => Some(found),
            None => self.another(kind, &device, inputs, run)?,
        };
        let Some(found) = found else {
            return run(inputs);
        };
        let recording = &mut self.kinds[kind].recordings[found];
        recording.used = self.clock;
        let (results, moved) = recording.launch(&self.name, &device, inputs)?;
        self.stats.replayed += 1;
        self.stats.moved += moved;
        Ok(results)
    }

    /// Another recording for calls of a kind, where it may have one more.
    fn another(
        &mut self,
        kind: usize,
        device: &Arc<dyn Device>,
        inputs: &[&Tensor],
        run: &mut Run<'_>,
    ) -> Result<Option<usize>> {
        let recordings = &mut self.kinds[kind].recordings;
        if recordings.len() >= INSTANCES {
            if !self.options.require {
                self.stats.missed = Some(format!(
                    "results of {INSTANCES} recordings are held, or arguments that have to stay moved too often"
                ));
                return Ok(None);
            }
            let oldest = (0..recordings.len()).min_by_key(|&number| recordings[number].used);
            if let Some(oldest) = oldest {
                recordings.remove(oldest);
                self.stats.evicted += 1;
            }
        }
        self.record(kind, device, inputs, run)
    }

    /// Records, and makes room for it; `None` where it takes more than is allowed.
    fn record(
        &mut self,
        kind: usize,
        device: &Arc<dyn Device>,
        inputs: &[&Tensor],
        run: &mut Run<'_>,
    ) -> Result<Option<usize>> {
        let made = Recording::new(&**device, inputs, run);
        let mut made =
            made.map_err(|error| error.context(format_args!("{} is recorded", self.name)))?;
        made.used = self.clock;
        let limit = match self.options.memory_limit {
            0 => device.memory_summary()?.total / SHARE,
            limit => limit,
        };
        if made.bytes > limit {
            let bytes = made.bytes;
            ensure!(
                !self.options.require,
                MemoryLimit,
                "a recording of {} takes {bytes} bytes, and {limit} are allowed",
                self.name
            );
            self.stats.missed = Some(format!("it takes {bytes} bytes, and {limit} are allowed"));
            return Ok(None);
        }
        self.stats.recorded += 1;
        while self.stats().bytes + made.bytes > limit {
            let recordings = self.kinds.iter().enumerate().flat_map(|(kind, known)| {
                let numbers = 0..known.recordings.len();
                numbers.map(move |number| (known.recordings[number].used, kind, number))
            });
            let Some((_, of, number)) = recordings.min() else {
                break;
            };
            self.kinds[of].recordings.remove(number);
            self.stats.evicted += 1;
        }
        let recordings = &mut self.kinds[kind].recordings;
        recordings.push(made);
        Ok(Some(recordings.len() - 1))
    }

    /// The kind of a call, which is new where there was none like it.
    fn kind(&mut self, key: Option<u64>, inputs: &[&Tensor]) -> Result<usize> {
        let admits = |kind: &Kind| {
            kind.forms.len() == inputs.len()
                && kind
                    .forms
                    .iter()
                    .zip(inputs)
                    .all(|(form, input)| form.admits(input))
        };
        let listed = |forms: &[Form]| {
            let forms: Vec<String> = forms.iter().map(Form::to_string).collect();
            forms.join(", ")
        };
        let forms = || {
            inputs
                .iter()
                .map(|input| Form::of(input))
                .collect::<Vec<_>>()
        };
        let found = self.kinds.iter().position(|kind| match key {
            Some(_) => kind.key == key,
            None => kind.key.is_none() && admits(kind),
        });
        if let Some(found) = found {
            let kind = &self.kinds[found];
            if !admits(kind) {
                return Err(err!(
                    ShapeMismatch,
                    "two calls of {} with one key have arguments of other types, shapes, strides or alignment: {}, and {}",
                    self.name,
                    listed(&kind.forms),
                    listed(&forms())
                )
                .help("let the key tell them apart"));
            }
            return Ok(found);
        }
        if let Some(known) = self.kinds.first().filter(|_| self.options.require) {
            return Err(err!(
                CaptureBroken,
                "{} has to be launched as one, and its arguments changed from {} to {}",
                self.name,
                listed(&known.forms),
                listed(&forms())
            )
            .help("capture it for each shape, or do not require it"));
        }
        if self.kinds.len() >= KINDS {
            let oldest = (0..KINDS).min_by_key(|&number| self.kinds[number].used);
            self.kinds.remove(oldest.unwrap_or(0));
        }
        self.kinds.push(Kind {
            key,
            forms: forms(),
            warm: 0,
            recordings: Vec::new(),
            used: self.clock,
        });
        Ok(self.kinds.len() - 1)
    }

    /// The device of all arguments.
    fn device(&self, inputs: &[&Tensor]) -> Result<Arc<dyn Device>> {
        let first = inputs.first().ok_or_else(|| {
            err!(
                InvalidArgument,
                "{} is recorded without a tensor",
                self.name
            )
            .help("a callable is recorded on the device of its arguments: give it one")
        })?;
        let device = first.storage().device();
        let other = inputs.iter().find(|input| input.device() != first.device());
        match (device, other) {
            (Some(device), None) if device.records() => Ok(device.clone()),
            (_, Some(other)) => Err(err!(
                DeviceMismatch,
                "arguments of {} are on {} and {}: a recording has one GPU",
                self.name,
                first.device(),
                other.device()
            )
            .help("move them with to_device before the call")),
            (_, None) => Err(err!(
                DeviceMismatch,
                "arguments of {} are on {}, which records no work",
                self.name,
                first.device()
            )
            .help("move them to a GPU with to_device, or call the function as it is")),
        }
    }
}
