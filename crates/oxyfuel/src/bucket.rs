//! Buckets: a dim with many sizes is padded to one of a few, each of which is compiled with all sizes known.
//!
//! Arguments are copied into zeros of the bucket's size, results are cut back to the size of the call. A function whose results padding would change is refused when it is first compiled
//! ([`padding`](crate::padding)); a size above the largest bucket, or of no elements, is served without padding.

use crate::core::{Core, Request, Returned};
use crate::dynamic::Pattern;
use crate::guard::Guard;
use crate::machine;
use crate::padding;
use crate::structure::Constant;
use crate::tensor::Tensor;
use crate::trace::{self, Out, Outcome};
use oxyfuel_base::{Expr, Result, Symbol, ensure, err};
use oxyfuel_runtime::device::DeviceId;
use oxyfuel_runtime::tensor as rt;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

/// The sizes that some dims of the arguments are padded to. All its dims have the same size in a call.
///
/// ```
/// use oxyfuel::{Bucket, DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let f = oxyfuel::compile(|x: &Tensor| x.relu().sum(&[1], false), Options::default())?
///     .bucket(Bucket::new(&[16, 32, 64]).dim(0, 1))?; // dim 1 of argument 0
/// for length in 1..=64 {
///     let y = f.call_one(&[&Tensor::ones(&[2, length], DType::F32)])?;
///     assert_eq!(y.to_vec::<f32>()?, [length as f32; 2]);
/// }
/// assert_eq!(f.explain().variants.len(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    sizes: Vec<i64>,
    dims: Vec<(usize, usize)>,
}

impl Bucket {
    /// Sizes to pad to, in any order.
    pub fn new(sizes: &[i64]) -> Self {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        Self {
            sizes,
            dims: Vec::new(),
        }
    }

    /// Dim `dim` of tensor number `argument` among the arguments is padded.
    #[must_use]
    pub fn dim(mut self, argument: usize, dim: usize) -> Self {
        self.dims.push((argument, dim));
        self
    }
}

/// The buckets of a function and what is known of its arguments under them.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    declared: Vec<Bucket>,
    known: Mutex<Vec<Known>>,
}

/// What was found out about arguments, and all that it follows from.
#[derive(Debug)]
struct Known {
    guards: Vec<Guard>,
    constants: Vec<Constant<'static>>,
    padded: Arc<Padded>,
}

impl Known {
    fn admits(&self, request: &Request<'_>) -> bool {
        let mut guards = self.guards.iter().zip(request.inputs);
        self.guards.len() == request.inputs.len()
            && self.constants == request.constants
            && guards.all(|(guard, input)| guard.admits(input))
    }
}

/// More kinds of arguments than this and the oldest is forgotten.
const MAX_KNOWN: usize = 256;

/// The results of a function under padding, with a symbol for each bucket.
#[derive(Debug)]
struct Padded {
    shapes: Vec<Vec<Expr>>,
    results: Vec<Out>,
    /// Arguments that the function writes.
    written: Vec<usize>,
}

impl Buckets {
    pub fn is_empty(&self) -> bool {
        self.declared.is_empty()
    }

    pub fn declare(&mut self, bucket: Bucket) -> Result<()> {
        let taken = |dim: &(usize, usize)| self.declared.iter().any(|b| b.dims.contains(dim));
        let help = "Bucket::new(&[32, 64]).dim(argument, dim)";
        ensure!(
            bucket.sizes.first().is_some_and(|&least| least > 0),
            InvalidArgument,
            "a bucket of sizes {:?}: at least one is needed, and all are above 0; {help}",
            bucket.sizes
        );
        ensure!(
            !bucket.dims.is_empty(),
            InvalidArgument,
            "a bucket without dims; {help}"
        );
        ensure!(
            !bucket.dims.iter().any(taken),
            InvalidArgument,
            "a dim is in two buckets: declare each once"
        );
        self.declared.push(bucket);
        Ok(())
    }

    /// The size in this call and the size that it is padded to, for each bucket; `None` where padding does not serve.
    fn sizes(&self, inputs: &[&rt::Tensor]) -> Result<Option<Vec<(i64, i64)>>> {
        let mut out = Vec::with_capacity(self.declared.len());
        for bucket in &self.declared {
            let mut size = None;
            for &(argument, dim) in &bucket.dims {
                let shape = inputs.get(argument).map(|input| input.shape());
                let found = shape.and_then(|shape| shape.get(dim)).copied();
                let found = found.ok_or_else(|| {
                    err!(
                        DimOutOfRange,
                        "a bucket is declared for dim {dim} of argument {argument}, which does not exist"
                    )
                    .help("declare buckets for dims that every call has")
                })?;
                ensure!(
                    size.is_none_or(|size| size == found),
                    ShapeMismatch,
                    "dim {dim} of argument {argument} is {found}, and another dim of its bucket is {}: dims of one bucket have one size",
                    size.unwrap_or(0)
                );
                size = Some(found);
            }
            let size = size.unwrap_or(0);
            let Some(&to) = bucket.sizes.iter().find(|&&to| to >= size) else {
                return Ok(None);
            };
            out.push((size, to));
        }
        let on_cpu = inputs.iter().all(|input| input.device() == DeviceId::CPU);
        let positive = out.iter().all(|(size, _)| *size > 0);
        Ok((on_cpu && positive).then_some(out))
    }
}

/// Calls a function with padded arguments.
pub(crate) fn call(core: &Core, request: &Request<'_>) -> Result<Returned> {
    let buckets = &core.buckets;
    let Some(sizes) = buckets.sizes(request.inputs)? else {
        return core.call_as_is(request);
    };
    let padded = pad(buckets, request.inputs, &sizes)?;
    let inputs: Vec<&rt::Tensor> = padded.iter().collect();
    let inner = Request {
        inputs: &inputs,
        constants: request.constants,
        source: request.source,
    };
    let known = known(core, &inner)?;
    let overlap = |i: usize, tensor: &rt::Tensor| {
        let mut others = request.inputs.iter().enumerate();
        others.any(|(j, other)| i != j && other.storage().is_same(tensor.storage()))
    };
    // Copies do not overlap where the arguments may.
    if known.written.iter().any(|&i| overlap(i, request.inputs[i])) {
        return core.call_as_is(request);
    }
    let returned = core.call_as_is(&inner)?;
    for &i in &known.written {
        let mut target = request.inputs[i].clone();
        if !target.storage().is_same(padded[i].storage()) {
            let shape = target.shape().to_vec();
            target.copy_from(&cut(&padded[i], &shape)?)?;
        }
    }
    let size = |symbol: Symbol| sizes.get(symbol.0 as usize).map(|(size, _)| *size);
    let mut tensors = Vec::with_capacity(returned.tensors.len());
    let results = known.results.iter().zip(&known.shapes);
    for (tensor, (out, shape)) in returned.tensors.iter().zip(results) {
        let tensor = tensor.concrete("a result", Location::caller())?;
        let cut = match out {
            Out::ViewOfInput(i, views) if *i < request.inputs.len() => {
                trace::replay(request.inputs[*i], views, &size)?
            }
            Out::ViewOfInput(..) | Out::ViewOfPlanned(..) | Out::Planned(_) => {
                let shape = shape.iter().map(|e| e.eval(&size));
                cut(tensor, &shape.collect::<Result<Vec<_>>>()?)?
            }
        };
        tensors.push(Tensor::from(cut));
    }
    Ok(Returned {
        tensors,
        template: returned.template,
    })
}

/// The first elements of each dim.
fn cut(tensor: &rt::Tensor, shape: &[i64]) -> Result<rt::Tensor> {
    let mut out = tensor.clone();
    for (dim, &extent) in shape.iter().enumerate() {
        if out.shape().get(dim) != Some(&extent) {
            out = out.slice(dim, 0, extent, 1)?;
        }
    }
    Ok(out)
}

/// The arguments, those in buckets as dense tensors of the bucket's size.
fn pad(buckets: &Buckets, inputs: &[&rt::Tensor], sizes: &[(i64, i64)]) -> Result<Vec<rt::Tensor>> {
    let mut out: Vec<rt::Tensor> = Vec::with_capacity(inputs.len());
    for (argument, input) in inputs.iter().enumerate() {
        let mut shape = input.shape().to_vec();
        let mut bucketed = false;
        for (bucket, (_, to)) in buckets.declared.iter().zip(sizes) {
            for (_, dim) in bucket.dims.iter().filter(|(known, _)| *known == argument) {
                shape[*dim] = *to;
                bucketed = true;
            }
        }
        // What is full already is one with what was padded, as long as it lies as that does.
        let aligned = crate::guard::alignment(input) == crate::guard::ALIGNED as u32;
        if !bucketed || shape == input.shape() && input.is_contiguous() && aligned {
            out.push((*input).clone());
            continue;
        }
        let whole = rt::Tensor::zeros(machine::cpu().memory(), input.dtype(), &shape)?;
        cut(&whole, input.shape())?.copy_from(input)?;
        out.push(whole);
    }
    Ok(out)
}

/// What is known of padded arguments like these; where nothing is, whether padding matters is found out.
fn known(core: &Core, request: &Request<'_>) -> Result<Arc<Padded>> {
    let buckets = &core.buckets;
    let lock = || buckets.known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().iter().find(|known| known.admits(request)) {
        return Ok(known.padded.clone());
    }
    let dims: Vec<&[(usize, usize)]> = buckets.declared.iter().map(|b| &*b.dims).collect();
    let pattern = Pattern::declared(request.inputs, &dims);
    let captured = match trace::capture(&core.name, request, pattern.borders(request), None)? {
        Outcome::Whole(captured) => captured,
        Outcome::Fixed(places) => {
            let place = places.values().next().map_or("", String::as_str);
            return Err(err!(
                PaddingMatters,
                "the function asks for the size of a padded dim at {place}, so padding to a bucket would change its result"
            )
            .help("count true elements with a mask, or declare no bucket for that dim"));
        }
        Outcome::Cut(..) => return Err(err!(Internal, "a capture that must not run has run")),
    };
    padding::check(&captured.graph)?;
    // Views of shared memory are cut by their own shapes: every result as an output tells them.
    let mut borders = pattern.borders(request);
    borders.all_results = true;
    let Outcome::Whole(all) = trace::capture(&core.name, request, borders, None)? else {
        return Err(err!(Internal, "a second capture that is no graph"));
    };
    let shapes = all.results.iter().map(|out| match out {
        Out::Planned(i) => all.graph.ty(all.graph.outputs[*i].value).shape.clone(),
        Out::ViewOfPlanned(..) | Out::ViewOfInput(..) => Vec::new(),
    });
    let written = captured
        .graph
        .outputs
        .iter()
        .filter_map(|output| output.alias);
    let padded = Arc::new(Padded {
        shapes: shapes.collect(),
        written: written.filter(|&i| i < request.inputs.len()).collect(),
        results: captured.results,
    });
    let constants = request.constants.iter().cloned();
    let new = Known {
        guards: request
            .inputs
            .iter()
            .map(|input| Guard::of(input))
            .collect(),
        constants: constants.map(Constant::into_owned).collect(),
        padded: padded.clone(),
    };
    let mut known = lock();
    if known.len() >= MAX_KNOWN {
        known.remove(0);
    }
    known.push(new);
    Ok(padded)
}
