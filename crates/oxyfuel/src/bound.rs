//! Calls whose tensors are decided before: what a loop around the same memory wants.

use crate::core::{Core, Request, check_count};
use crate::tensor::{Tensor, located};
use crate::trace::Out;
use crate::variant::Kind;
use oxyfuel_base::{Result, ensure, err};
use oxyfuel_runtime::execute::Bound;
use oxyfuel_runtime::tensor as rt;
use std::fmt;
use std::panic::Location;

/// A compiled call on tensors that were decided before; [`Compiled::bind`](crate::Compiled::bind) makes one.
///
/// It holds the variant that fits the tensors, the tensors (arguments, those that the function captured, and outputs) and memory for intermediate values. A call
/// looks for no variant, checks no guard, asks for no memory, takes no lock and makes no system call. New values are written into the arguments' memory before a
/// call, and results are read from the outputs' after it.
///
/// It belongs to one thread at a time; make one for each. Its calls are not counted by `explain`.
///
/// ```
/// use oxyfuel::{DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let f = oxyfuel::compile(|x: &Tensor| x.relu() * 2.0, Options::default())?;
/// let (mut x, y) = (Tensor::zeros(&[3], DType::F32), Tensor::zeros(&[3], DType::F32));
/// let mut bound = f.bind(&[&x], &[&y])?;
/// for step in 0..4 {
///     x.fill_(step)?;
///     bound.call()?;
///     assert_eq!(y.to_vec::<f32>()?, [2.0 * step as f32; 3]);
/// }
/// # Ok(())
/// # }
/// ```
pub struct BoundCall {
    bound: Bound,
    outputs: Vec<Tensor>,
}

impl fmt::Debug for BoundCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundCall")
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

impl BoundCall {
    /// Runs the function on the bound tensors. Another thread that uses one of them meanwhile makes it E0306, and nothing runs.
    #[track_caller]
    pub fn call(&mut self) -> Result<()> {
        let caller = Location::caller();
        self.bound.call().map_err(|error| located(error, caller))
    }

    /// The tensors that hold the results.
    pub fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }
}

impl Core {
    /// Decides on the tensors of a call.
    pub fn bind(&self, request: &Request<'_>, targets: Vec<&rt::Tensor>) -> Result<BoundCall> {
        ensure!(
            self.buckets.is_empty(),
            InvalidArgument,
            "{} pads its arguments to declared sizes, so a call has other tensors than the bound ones",
            self.name
        );
        let variant = self.variant(request)?;
        let Kind::Whole(whole) = &variant.kind else {
            return Err(err!(
                DataDependent,
                "{} reads tensors on its way, so it runs anew at every call",
                self.name
            )
            .help("set fullgraph to see what cuts it, or use call"));
        };
        check_count(&self.name, whole.results.len(), targets.len())?;
        let mut outputs = vec![None; whole.executable.plan().outputs.len()];
        for (number, (result, target)) in whole.results.iter().zip(&targets).enumerate() {
            let place = match result {
                Out::Planned(output) => outputs.get_mut(*output),
                Out::ViewOfPlanned(..) | Out::ViewOfInput(..) => None,
            };
            match place {
                Some(place @ None) => *place = Some(*target),
                Some(Some(_)) | None => {
                    return Err(err!(
                        InvalidArgument,
                        "result {number} of {} is a view of an argument or of another result",
                        self.name
                    )
                    .help("return a new tensor, such as x + 0, or use call"));
                }
            }
        }
        let bound = whole.with_tensors(&variant, request.inputs, |tensors| {
            whole.executable.bind(tensors, &outputs)
        })?;
        Ok(BoundCall {
            bound,
            outputs: targets
                .into_iter()
                .map(|tensor| tensor.clone().into())
                .collect(),
        })
    }
}
