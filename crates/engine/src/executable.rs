//! A plan in its place on a device, ready to be called.
//!
//! The guards of a plan are its [`InputSpec`](oxyfuel_plan::InputSpec)s. [`Executable::check`] tells whether inputs pass and, where they do not, every reason in a
//! sentence: whoever keeps several executables for one function decides by it and shows it to people.

use std::sync::Arc;

use oxyfuel_base::{Code, Result, Symbol, err};
use oxyfuel_plan::{InputSpec, Plan, Step, SymbolSource};
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::execute::{Bound, Program, ReplayOptions, StepTime};
use oxyfuel_runtime::tensor::Tensor;

use crate::record::Record;

/// A compiled graph on a device. Calls may run at once on several threads.
#[derive(Debug)]
pub struct Executable {
    program: Arc<Program>,
    record: Record,
}

/// One reason why inputs are not those that a plan was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Which input; `None` where their number is wrong.
    pub input: Option<usize>,
    pub code: Code,
    /// In one sentence, without a full stop.
    pub reason: String,
}

impl Executable {
    /// Loads a plan. `record` says how it came to be.
    pub fn load(
        plan: impl Into<Arc<Plan>>,
        record: Record,
        device: Arc<dyn Device>,
    ) -> Result<Self> {
        Ok(Self {
            program: Arc::new(Program::new(plan.into(), device)?),
            record,
        })
    }

    /// Refuses calls that would take more than so many bytes for the arena and the results; 0: no limit.
    pub fn limited(mut self, bytes: usize) -> Result<Self> {
        let program = Arc::get_mut(&mut self.program)
            .ok_or_else(|| err!(Internal, "a program is limited that is bound already"))?;
        program.limit((bytes > 0).then_some(bytes))?;
        Ok(self)
    }

    /// Records calls and launches them as one from the second call of a size on, where the device can do that; see [`Program::replay`].
    pub fn replaying(mut self, wanted: Option<ReplayOptions>) -> Result<Self> {
        let program = Arc::get_mut(&mut self.program).ok_or_else(|| {
            err!(
                Internal,
                "a program is to be recorded that is bound already"
            )
        })?;
        program.replay(wanted)?;
        Ok(self)
    }

    /// Launches that follow each other are submitted together after so many calls of the same sizes, where the device can do that; see [`Program::submit_together`].
    pub fn submitting(mut self, before: Option<u32>) -> Result<Self> {
        let program = Arc::get_mut(&mut self.program).ok_or_else(|| {
            err!(
                Internal,
                "a program is to be submitted that is bound already"
            )
        })?;
        program.submit_together(before);
        Ok(self)
    }

    /// What [`Self::submitting`] has come to, for people; `None` where nothing was submitted together.
    pub fn submitted(&self) -> Option<String> {
        let (made, launches) = self.program.submissions().filter(|(made, _)| *made > 0)?;
        let them = if made == 1 { "one" } else { &made.to_string() };
        Some(format!("{launches} launches go to the driver as {them}"))
    }

    /// Waits for the device after each kernel; see [`Program::wait_for_each`].
    pub fn waiting(mut self, wanted: bool) -> Result<Self> {
        let program = Arc::get_mut(&mut self.program)
            .ok_or_else(|| err!(Internal, "a program is to wait that is bound already"))?;
        program.wait_for_each(wanted);
        Ok(self)
    }

    /// Runs it and returns new outputs.
    pub fn run(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        self.program.call(inputs)
    }

    /// Runs it for the only time: no memory waits for another call.
    pub fn run_once(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let outputs = self.program.call(inputs);
        self.program.rest();
        outputs
    }

    /// Runs it; the memory of inputs that are `given` may become that of outputs. See [`Program::call_given`].
    pub fn run_given(&self, inputs: &[&Tensor], given: &[bool]) -> Result<Vec<Tensor>> {
        self.program.call_given(inputs, given)
    }

    /// Runs it into tensors that the caller has.
    pub fn run_into(&self, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
        self.program.call_into(inputs, outputs)
    }

    /// A call on these tensors, any number of times; see [`Program::bind`].
    pub fn bind(&self, inputs: &[&Tensor], outputs: &[Option<&Tensor>]) -> Result<Bound> {
        self.program.bind(inputs, outputs)
    }

    /// Runs it and says how long each step took on the device.
    pub fn profile(&self, inputs: &[&Tensor]) -> Result<(Vec<Tensor>, Vec<StepTime>)> {
        self.program.profile(inputs)
    }

    pub fn plan(&self) -> &Arc<Plan> {
        self.program.plan()
    }

    /// Operations of a call on units that do as many multiply-adds a second: a multiplication and an addition of a product are one. `None` where a size is a symbol.
    pub fn operations(&self) -> Option<f64> {
        let of = |step: &Step| {
            let Step::Launch { kernel, .. } = step else {
                return Some(0.0);
            };
            let cost = &self.plan().kernels[*kernel].cost;
            let (flops, products) = (cost.flops.as_const()?, cost.products.as_const()?);
            Some(flops as f64 - products as f64 / 2.0)
        };
        self.plan().steps.iter().map(of).sum()
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        self.program.device()
    }

    /// How the plan came to be; empty steps where it came from a cache.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The run side's own handle, for callers with memory of their own.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether these inputs are those that the plan was made for; if not, every reason.
    pub fn check(&self, inputs: &[&Tensor]) -> Result<(), Vec<Mismatch>> {
        let plan = self.plan();
        if inputs.len() != plan.inputs.len() {
            return Err(vec![Mismatch {
                input: None,
                code: Code::ArityMismatch,
                reason: format!(
                    "{} inputs were given, not {}",
                    inputs.len(),
                    plan.inputs.len()
                ),
            }]);
        }
        let symbols: Vec<(Symbol, i64)> = plan
            .symbols
            .iter()
            .filter_map(|binding| {
                let SymbolSource::Extent { input, dim } = binding.source else {
                    return None;
                };
                let shape = inputs.get(input as usize)?.shape();
                Some((binding.symbol, *shape.get(dim as usize)?))
            })
            .collect();
        let mut mismatches = Vec::new();
        for (number, (tensor, spec)) in inputs.iter().zip(&plan.inputs).enumerate() {
            let mut add = |code, reason| {
                mismatches.push(Mismatch {
                    input: Some(number),
                    code,
                    reason,
                });
            };
            self.check_one(tensor, spec, &symbols, &mut add);
        }
        if mismatches.is_empty() {
            Ok(())
        } else {
            Err(mismatches)
        }
    }

    fn check_one(
        &self,
        tensor: &Tensor,
        spec: &InputSpec,
        symbols: &[(Symbol, i64)],
        add: &mut dyn FnMut(Code, String),
    ) {
        let name = &spec.name;
        let number = |expr: &oxyfuel_base::Expr| {
            expr.as_const().or_else(|| {
                let value = |symbol| {
                    symbols
                        .iter()
                        .find(|(known, _)| *known == symbol)
                        .map(|(_, value)| *value)
                };
                expr.eval(&value).ok()
            })
        };
        if tensor.dtype() != spec.dtype {
            add(
                Code::DTypeMismatch,
                format!("input {name} is {}, not {}", tensor.dtype(), spec.dtype),
            );
        }
        let device = self.device().id();
        if tensor.device() != device {
            add(
                Code::DeviceMismatch,
                format!("input {name} is on {}, not {device}", tensor.device()),
            );
        }
        if tensor.rank() != spec.shape.len() {
            add(
                Code::RankMismatch,
                format!(
                    "input {name} has {} dims, not {}",
                    tensor.rank(),
                    spec.shape.len()
                ),
            );
            return;
        }
        for (dim, (&extent, wanted)) in tensor.shape().iter().zip(&spec.shape).enumerate() {
            if number(wanted) != Some(extent) {
                let wanted = number(wanted).map_or_else(|| wanted.to_string(), |n| n.to_string());
                add(
                    Code::ShapeMismatch,
                    format!("dim {dim} of input {name} is {extent}, not {wanted}"),
                );
            }
        }
        if tensor.is_empty() {
            return;
        }
        let dims = tensor
            .strides()
            .iter()
            .zip(&spec.strides)
            .zip(tensor.shape());
        for (dim, ((&stride, wanted), &extent)) in dims.enumerate() {
            if extent != 1 && number(wanted) != Some(stride) {
                let wanted = number(wanted).map_or_else(|| wanted.to_string(), |n| n.to_string());
                add(
                    Code::LayoutMismatch,
                    format!("the stride of dim {dim} of input {name} is {stride}, not {wanted}"),
                );
            }
        }
        if !tensor
            .address()
            .is_multiple_of(u64::from(spec.align.max(1)))
        {
            add(
                Code::LayoutMismatch,
                format!("input {name} is not aligned to {} bytes", spec.align),
            );
        }
    }
}
