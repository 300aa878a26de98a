//! Buckets: a dim with many sizes is compiled for a few ranges of them, once each.
//!
//! ```text
//!   size ──▶ bucket ──▶ is padding harmless?  yes ──▶ padded with zeros, all sizes known, results cut back
//!                                             no  ──▶ nothing padded, the size a symbol up to the bucket's
//!                                                     └─ no symbol either ──▶ this size compiled as it is
//! ```
//!
//! Whether padding is harmless is found out from the function's graph ([`padding`](crate::padding)) once for each kind of arguments. A size above the largest bucket, or of no elements, is
//! served as it is.

use crate::core::{Core, Request, Returned};
use crate::dynamic::{At, Pattern, Range};
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

/// The sizes up to which some dims of the arguments are compiled, one plan each. All its dims have the same size in a call.
///
/// Dims are padded to the next of the sizes where that changes no result. Where it might (a mean, a softmax, a sort along the dim, a function that is cut), nothing is padded, and the size is a
/// symbol that is bounded by the bucket; [`VariantReport::buckets`](crate::VariantReport::buckets) says which it was and why.
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
    must_pad: bool,
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
            must_pad: false,
        }
    }

    /// Dim `dim` of tensor number `argument` among the arguments is in the bucket.
    #[must_use]
    pub fn dim(mut self, argument: usize, dim: usize) -> Self {
        self.dims.push((argument, dim));
        self
    }

    /// A function whose results padding might change is refused with E0117, which names the line, instead of being served without padding.
    #[must_use]
    pub fn must_pad(mut self) -> Self {
        self.must_pad = true;
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
    /// Of the padded arguments.
    guards: Vec<Guard>,
    constants: Vec<Constant<'static>>,
    way: Arc<Way>,
}

/// How a kind of arguments is served.
#[derive(Debug)]
enum Way {
    Padded(Padded),
    /// Without padding: why.
    AsIs(String),
}

/// What was decided about the buckets of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declared<'a> {
    buckets: &'a Buckets,
    sizes: &'a [(i64, i64)],
    /// Why nothing is padded; `None` where it is.
    why: Option<&'a str>,
}

impl Declared<'_> {
    /// Symbols for the sizes in buckets, where nothing is padded.
    pub fn pattern(&self, inputs: &[&rt::Tensor]) -> Option<Pattern> {
        self.why?;
        let buckets = self.buckets.declared.iter().zip(self.sizes);
        let ranges: Vec<Range<'_>> = buckets
            .map(|(bucket, &(_, to))| {
                let smaller = bucket.sizes.iter().filter(|&&size| size < to).max();
                Range {
                    dims: &bucket.dims,
                    min: smaller.map_or(1, |size| size + 1),
                    max: to,
                }
            })
            .collect();
        Pattern::declared(inputs, &ranges)
    }

    /// What became of each bucket, for people.
    pub fn texts(&self, request: &Request<'_>, pattern: Option<&Pattern>) -> Vec<String> {
        let names = request.source.names(request.inputs.len());
        let buckets = self.buckets.declared.iter().zip(self.sizes);
        let text = |(bucket, (_, to)): (&Bucket, &(i64, i64))| {
            let dims = bucket.dims.iter();
            let dims = dims.map(|&(input, dim)| At::Extent(input, dim).text(&names));
            let dims = dims.collect::<Vec<_>>().join(", ");
            let symbol =
                |&(input, dim): &(usize, usize)| pattern.is_some_and(|p| p.has(input, dim));
            match self.why {
                None => format!("{dims}: padded to {to}"),
                Some(why) if bucket.dims.first().is_some_and(symbol) => {
                    format!("{dims}: a symbol of at most {to}, nothing is padded: {why}")
                }
                Some(why) => format!("{dims}: compiled for this very size: {why}"),
            }
        };
        buckets.map(text).collect()
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

    /// The size in this call and that of its bucket, for each of them; `None` where no bucket serves.
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

/// Calls a function with arguments in buckets.
pub(crate) fn call(core: &Core, request: &Request<'_>) -> Result<Returned> {
    let Some(sizes) = core.buckets.sizes(request.inputs)? else {
        return core.call_as_is(request);
    };
    let way = way(core, request, &sizes)?;
    let declared = |why| declared(core, request, &sizes, why);
    match &*way {
        Way::Padded(padded) => call_padded(core, &declared(None), &sizes, padded),
        Way::AsIs(why) => {
            let request = declared(Some(why));
            prepare_one(core, &request, &sizes);
            core.call_as_is(&request)
        }
    }
}

/// Compiles for arguments in buckets.
pub(crate) fn warm_up(core: &Core, request: &Request<'_>) -> Result<()> {
    let Some(sizes) = core.buckets.sizes(request.inputs)? else {
        return core.variant(request).map(drop);
    };
    let way = way(core, request, &sizes)?;
    let declared = |why| declared(core, request, &sizes, why);
    match &*way {
        Way::Padded(_) => warm_up_full(core, &declared(None), &sizes),
        Way::AsIs(why) => {
            let request = declared(Some(why));
            prepare_one(core, &request, &sizes);
            core.variant(&request).map(drop)
        }
    }
}

/// A size of 1 shows less of a function than the others of its bucket: a variant for all of them is compiled for the largest. What goes wrong here, the call itself says.
fn prepare_one(core: &Core, request: &Request<'_>, sizes: &[(i64, i64)]) {
    let one = sizes.iter().any(|&(size, to)| size == 1 && to > 1);
    if one && !core.knows(request) {
        let _ = warm_up_full(core, request, sizes);
    }
}

/// Compiles for arguments that fill their buckets.
fn warm_up_full(core: &Core, request: &Request<'_>, sizes: &[(i64, i64)]) -> Result<()> {
    let padded = pad(&core.buckets, request.inputs, sizes)?;
    let inputs: Vec<&rt::Tensor> = padded.iter().collect();
    let full = Request {
        inputs: &inputs,
        ..*request
    };
    core.variant(&full).map(drop)
}

/// The request, with what was decided about its buckets.
fn declared<'a>(
    core: &'a Core,
    request: &Request<'a>,
    sizes: &'a [(i64, i64)],
    why: Option<&'a str>,
) -> Request<'a> {
    Request {
        inputs: request.inputs,
        constants: request.constants,
        source: request.source,
        declared: Some(Declared {
            buckets: &core.buckets,
            sizes,
            why,
        }),
    }
}

/// Calls a function with padded arguments.
fn call_padded(
    core: &Core,
    request: &Request<'_>,
    sizes: &[(i64, i64)],
    known: &Padded,
) -> Result<Returned> {
    let overlap = |i: usize, tensor: &rt::Tensor| {
        let mut others = request.inputs.iter().enumerate();
        others.any(|(j, other)| i != j && other.storage().is_same(tensor.storage()))
    };
    // Copies do not overlap where the arguments may.
    if known.written.iter().any(|&i| overlap(i, request.inputs[i])) {
        return core.call_as_is(&Request {
            declared: None,
            ..*request
        });
    }
    let padded = pad(&core.buckets, request.inputs, sizes)?;
    let inputs: Vec<&rt::Tensor> = padded.iter().collect();
    let returned = core.call_as_is(&Request {
        inputs: &inputs,
        ..*request
    })?;
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

impl Buckets {
    /// The shape of an argument once it is padded, if it is in a bucket.
    fn padded_shape(
        &self,
        argument: usize,
        input: &rt::Tensor,
        sizes: &[(i64, i64)],
    ) -> Option<Vec<i64>> {
        let mut shape = None;
        for (bucket, (_, to)) in self.declared.iter().zip(sizes) {
            for (_, dim) in bucket.dims.iter().filter(|(known, _)| *known == argument) {
                shape.get_or_insert_with(|| input.shape().to_vec())[*dim] = *to;
            }
        }
        shape
    }
}

/// The arguments, those in buckets as dense tensors of the bucket's size.
fn pad(buckets: &Buckets, inputs: &[&rt::Tensor], sizes: &[(i64, i64)]) -> Result<Vec<rt::Tensor>> {
    let mut out: Vec<rt::Tensor> = Vec::with_capacity(inputs.len());
    for (argument, input) in inputs.iter().enumerate() {
        // What is full already is one with what was padded, as long as it lies as that does.
        let aligned = crate::guard::alignment(input) == crate::guard::ALIGNED as u32;
        let lies = input.is_contiguous() && aligned;
        match buckets.padded_shape(argument, input, sizes) {
            Some(shape) if shape != input.shape() || !lies => {
                let whole = rt::Tensor::zeros(machine::cpu().memory(), input.dtype(), &shape)?;
                cut(&whole, input.shape())?.copy_from(input)?;
                out.push(whole);
            }
            Some(_) | None => out.push((*input).clone()),
        }
    }
    Ok(out)
}

impl Known {
    /// Whether arguments like these were asked about; those in buckets are dense once they are padded.
    fn admits(&self, buckets: &Buckets, request: &Request<'_>, sizes: &[(i64, i64)]) -> bool {
        let mut guards = self.guards.iter().zip(request.inputs).enumerate();
        self.guards.len() == request.inputs.len()
            && self.constants == request.constants
            && guards.all(|(argument, (guard, input))| {
                match buckets.padded_shape(argument, input, sizes) {
                    None => guard.admits(input),
                    Some(shape) => {
                        guard.dtype == input.dtype()
                            && guard.device == input.device()
                            && *guard.shape == *shape
                    }
                }
            })
    }
}

/// How arguments like these are served; where nobody knows yet, it is found out.
fn way(core: &Core, request: &Request<'_>, sizes: &[(i64, i64)]) -> Result<Arc<Way>> {
    let buckets = &core.buckets;
    let lock = || buckets.known.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |known: &&Known| known.admits(buckets, request, sizes);
    if let Some(known) = lock().iter().find(same) {
        return Ok(known.way.clone());
    }
    let padded = pad(buckets, request.inputs, sizes)?;
    let inputs: Vec<&rt::Tensor> = padded.iter().collect();
    let inner = Request {
        inputs: &inputs,
        ..*request
    };
    let way = Arc::new(match find_out(core, &inner) {
        Ok(padded) => Way::Padded(padded),
        Err(error) if buckets.declared.iter().any(|bucket| bucket.must_pad) => return Err(error),
        Err(error) => Way::AsIs(error.message),
    });
    let constants = request.constants.iter().cloned();
    let new = Known {
        guards: inputs.iter().map(|input| Guard::of(input)).collect(),
        constants: constants.map(Constant::into_owned).collect(),
        way: way.clone(),
    };
    let mut known = lock();
    if known.len() >= MAX_KNOWN {
        known.remove(0);
    }
    known.push(new);
    Ok(way)
}

/// What results look like under padding, where that changes none of them.
fn find_out(core: &Core, request: &Request<'_>) -> Result<Padded> {
    let declared = core.buckets.declared.iter();
    let ranges: Vec<Range<'_>> = declared
        .map(|bucket| Range {
            dims: &bucket.dims,
            min: 1,
            max: i64::MAX,
        })
        .collect();
    let pattern = Pattern::declared(request.inputs, &ranges).ok_or_else(|| {
        err!(
            PaddingMatters,
            "elements of an argument overlap, and what is written to one is written to another"
        )
        .help("call contiguous() first")
    })?;
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
        Outcome::Cut(_) | Outcome::Failed(_) => {
            return Err(err!(Internal, "a capture that must not run has run"));
        }
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
    Ok(Padded {
        shapes: shapes.collect(),
        written: written.filter(|&i| i < request.inputs.len()).collect(),
        results: captured.results,
    })
}
