//! Compiled functions of tensors: capture at the first call, guards at every call, a variant for each kind of arguments ([`core`](crate::core) finds it).

use crate::Options;
use crate::advice::advised;
use crate::bound::BoundCall;
use crate::bucket::Bucket;
use crate::core::{Core, Request, Returned, Source, short_name};
use crate::donate::Argument;
use crate::explain::Explanation;
use crate::function::Function;
use crate::io::SavedFunction;
use crate::tensor::{State, Tensor, located};
use crate::trace;
use oxyfuel_base::{Error, Result, err};
use oxyfuel_graph::Graph;
use oxyfuel_runtime::execute::StepTime;
use oxyfuel_runtime::tensor as rt;
use std::fmt;
use std::panic::Location;
use std::path::Path;

/// A user's function, whatever its arguments and results.
pub(crate) type Traceable = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// A function of tensors that is compiled when it is called. Calls may run at once on several threads.
pub struct Compiled {
    pub(crate) core: Core,
    pub(crate) function: Called,
    pub(crate) arity: Option<usize>,
}

/// The function, as the core calls it.
pub(crate) struct Called {
    pub function: Traceable,
}

impl Source for Called {
    fn invoke(&self, tensors: &[Tensor]) -> Result<Returned> {
        Ok(Returned {
            tensors: (self.function)(tensors)?,
            template: None,
        })
    }

    fn names(&self, count: usize) -> Vec<String> {
        (0..count)
            .map(|number| format!("argument {number}"))
            .collect()
    }
}

/// Makes a function compiled. Nothing happens before its first call, but that the options are checked.
///
/// The function takes one to eight `&Tensor`, or one `&[Tensor]`, and returns a [`Tensor`], a tuple, an array or a vector of them, or a `Result` of these. It runs once for
/// each kind of arguments (once a thread, where several meet a new kind at once), on traced tensors: what it does beside tensor operations happens then and not at later calls, and tensors that it captures are read at every call.
///
/// ```
/// use oxyfuel::{DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let f = oxyfuel::compile(|x: &Tensor, w: &Tensor| (x.matmul(w) + 1.0).relu(), Options::default())?;
/// let x = Tensor::randn(&[4, 8], DType::F32, 0);
/// let w = Tensor::randn(&[8, 3], DType::F32, 1);
/// let y = f.call(&[&x, &w])?;
/// assert_eq!(y[0].shape(), [4, 3]);
/// println!("{}", f.explain());
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn compile<A, F: Function<A>>(function: F, options: Options) -> Result<Compiled> {
    let caller = Location::caller();
    let name = short_name(std::any::type_name::<F>());
    Ok(Compiled {
        core: Core::new(name, options).map_err(|error| located(error, caller))?,
        function: Called {
            function: Box::new(move |tensors| function.invoke(tensors)),
        },
        arity: F::ARITY,
    })
}

/// Makes a graph, such as one read from text, a compiled function of its inputs.
///
/// It has the guards, variants and explanations of a compiled closure. A graph whose sizes are symbolic is compiled once for all sizes: its inputs are row-major or as their layouts say, and it cannot be captured
/// inside of another function. A graph that writes to its inputs is refused.
///
/// ```
/// # fn main() -> oxyfuel::Result<()> {
/// let text = "graph @twice(%x: f32[3] cpu) {
///   %y: f32[3] = add %x, %x
///   return %y
/// }";
/// let f = oxyfuel::compile_graph(oxyfuel::parse_graph("twice", text)?, oxyfuel::Options::default())?;
/// let x = oxyfuel::Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3]);
/// assert_eq!(f.call_one(&[&x])?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn compile_graph(graph: Graph, options: Options) -> Result<Compiled> {
    let caller = Location::caller();
    compile_with(graph, Vec::new(), options).map_err(|error| located(error, caller))
}

/// Makes a function of a graph whose last inputs are these tensors.
pub(crate) fn compile_with(
    graph: Graph,
    tensors: Vec<rt::Tensor>,
    options: Options,
) -> Result<Compiled> {
    oxyfuel_graph::verify(&graph)?;
    check_unwritten(&graph)?;
    let (name, arity) = (graph.name.clone(), graph.inputs.len() - tensors.len());
    let symbolic = (!graph.symbols.is_empty()).then(|| (graph.clone(), tensors.clone()));
    let captured: Vec<Tensor> = tensors.into_iter().map(Tensor::from).collect();
    let mut compiled = compile(
        move |tensors: &[Tensor]| match graph.symbols.first() {
            Some(symbol) => Err(err!(
                NoLowering,
                "@{} has a symbolic size, {}, and is captured inside of another function",
                graph.name,
                symbol.symbol
            )
            .help("call it outside of the function, or give it the sizes as numbers")),
            None => trace::splice(&graph, &[tensors, &captured].concat()),
        },
        options,
    )?;
    compiled.arity = Some(arity);
    compiled.core.symbolic = symbolic;
    Ok(compiled.named(name))
}

/// A graph as a function takes no memory but its own for its results.
pub(crate) fn check_unwritten(graph: &Graph) -> Result<()> {
    match graph.outputs.iter().any(|output| output.alias.is_some()) {
        true => Err(err!(InvalidArgument, "@{} writes to an input", graph.name)
            .help("return the new contents instead, and copy them with copy_ after the call")),
        false => Ok(()),
    }
}

/// Reads a graph from text, as `docs/graph.md` describes it; `name` stands for the text in messages.
pub fn parse_graph(name: &str, text: &str) -> Result<Graph> {
    oxyfuel_graph::parse(name, text).map_err(advised)
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("name", &self.core.name)
            .field("options", &self.core.compilers.options)
            .finish_non_exhaustive()
    }
}

impl Compiled {
    /// Calls it. Inside of another function that is being captured, it is captured with it.
    #[track_caller]
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let caller = Location::caller();
        if trace::is_tracing() || inputs.iter().any(|input| input.is_traced()) {
            self.check_arity(inputs.len())
                .map_err(|error| located(error, caller))?;
            let inputs: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
            return (self.function.function)(&inputs);
        }
        let run = |tensors: &[&rt::Tensor]| Ok(self.core.call(&self.request(tensors)?)?.tensors);
        let list = || concrete(inputs, caller);
        with_concrete(inputs, list, run).map_err(|error| located(error, caller))
    }

    /// Calls it with arguments of which some are given away: the memory of such a one may become that of a result, where nobody else holds it, and its last reader runs before the result's first
    /// writer or reads each element just before it is written. What was given is moved into the call, so nobody can look at it after. The first call with a new choice of given
    /// arguments may compile.
    #[track_caller]
    pub fn call_donating(&self, arguments: Vec<Argument<'_>>) -> Result<Vec<Tensor>> {
        let inputs: Vec<&Tensor> = arguments.iter().map(Argument::value).collect();
        let traced = trace::is_tracing() || inputs.iter().any(|input| input.is_traced());
        if traced || !self.core.buckets.is_empty() {
            return self.call(&inputs);
        }
        let given: Vec<bool> = arguments.iter().map(Argument::is_given).collect();
        let caller = Location::caller();
        let run = |tensors: &[&rt::Tensor]| {
            let returned = self.core.call_given(&self.request(tensors)?, &given)?;
            Ok(returned.tensors)
        };
        let list = || concrete(&inputs, caller);
        with_concrete(&inputs, list, run).map_err(|error| located(error, caller))
    }

    /// Calls a function that returns one tensor.
    #[track_caller]
    pub fn call_one(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let caller = Location::caller();
        let mut outputs = self.call(inputs).map_err(|error| located(error, caller))?;
        match (outputs.pop(), outputs.len()) {
            (Some(output), 0) => Ok(output),
            (last, before) => Err(located(
                err!(
                    ArityMismatch,
                    "{} returns {} tensors, not one",
                    self.core.name,
                    before + usize::from(last.is_some())
                )
                .help("use call"),
                caller,
            )),
        }
    }

    /// Calls it and puts the results into tensors that the caller has: no memory is asked for, and results that fit are computed in place.
    #[track_caller]
    pub fn call_into(&self, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
        let caller = Location::caller();
        let run = |tensors: &[&rt::Tensor]| {
            let mut targets = outputs
                .iter()
                .map(|output| output.concrete("an output", caller).cloned())
                .collect::<Result<Vec<_>>>()?;
            let into = self.core.call_into(&self.request(tensors)?, &mut targets);
            into.map(drop)
        };
        let list = || concrete(inputs, caller);
        with_concrete(inputs, list, run).map_err(|error| located(error, caller))
    }

    /// Decides on the tensors of a call, which then runs any number of times without asking again; see [`BoundCall`].
    ///
    /// Nothing runs yet, but that a variant is compiled where none fits. Outputs are laid out as the results of [`Self::call`] are, start at a multiple of 64 bytes and
    /// overlap no other tensor of the call; what is not so is an error here. A function that reads tensors on its way, has buckets, or returns views cannot be bound.
    #[track_caller]
    pub fn bind(&self, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<BoundCall> {
        let caller = Location::caller();
        let bind = || {
            let tensors = concrete(inputs, caller)?;
            let targets = outputs
                .iter()
                .map(|output| output.concrete("an output", caller))
                .collect::<Result<Vec<_>>>()?;
            self.core.bind(&self.request(&tensors)?, targets)
        };
        bind().map_err(|error| located(error, caller))
    }

    /// Calls it and says how long each step took on the device. Arguments are taken as they are, and not padded to a bucket. A function that reads tensors on its way, and so has no one list of
    /// steps, is an error.
    #[track_caller]
    pub fn profile(&self, inputs: &[&Tensor]) -> Result<(Vec<Tensor>, Vec<StepTime>)> {
        let caller = Location::caller();
        let run = || {
            let inputs = concrete(inputs, caller)?;
            let (returned, times) = self.core.profile(&self.request(&inputs)?)?;
            Ok((returned.tensors, times))
        };
        run().map_err(|error| located(error, caller))
    }

    /// Compiles for arguments like these without running; nothing where that is done already.
    #[track_caller]
    pub fn warm_up(&self, inputs: &[&Tensor]) -> Result<()> {
        let caller = Location::caller();
        let tensors = concrete(inputs, caller)?;
        let warm = || self.core.warm_up(&self.request(&tensors)?);
        warm().map_err(|error| located(error, caller))
    }

    /// The function as a graph for arguments like these, and the tensors that it captured: inputs of the graph after the arguments.
    #[track_caller]
    pub fn graph(&self, inputs: &[&Tensor]) -> Result<(Graph, Vec<Tensor>)> {
        let caller = Location::caller();
        let capture = || {
            let tensors = concrete(inputs, caller)?;
            self.core.capture(&self.request(&tensors)?)
        };
        let captured = capture().map_err(|error| located(error, caller))?;
        let tensors = captured.tensors.into_iter().map(Tensor::from).collect();
        Ok((captured.graph, tensors))
    }

    /// Writes the function for arguments like these into a file, with the tensors that it captured; [`load`](crate::load) reads it, on any machine.
    ///
    /// Sizes are those of the arguments, or symbols where they have changed between earlier calls. A function that writes to its arguments or reads tensors on its way is an error.
    ///
    /// ```
    /// use oxyfuel::{DType, Options, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let w = Tensor::randn(&[8, 3], DType::F32, 1);
    /// let f = oxyfuel::compile(move |x: &Tensor| x.matmul(&w).relu(), Options::default())?;
    /// let x = Tensor::randn(&[4, 8], DType::F32, 0);
    /// # let folder = std::env::temp_dir().join(format!("oxyfuel-save-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// # let file = folder.join("model.oxy");
    /// f.save(&file, &[&x])?; // "model.oxy"
    /// let g = oxyfuel::load(&file, Options::default())?;
    /// assert_eq!(g.call_one(&[&x])?.to_vec::<f32>()?, f.call_one(&[&x])?.to_vec::<f32>()?);
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>, inputs: &[&Tensor]) -> Result<()> {
        let caller = Location::caller();
        let save = || {
            let tensors = concrete(inputs, caller)?;
            let captured = self.core.capture_general(&self.request(&tensors)?)?;
            let tensors = captured.tensors.into_iter().map(Tensor::from).collect();
            SavedFunction::new(captured.graph, tensors)?.write(path.as_ref())
        };
        save().map_err(|error| located(error, caller))
    }

    /// Every variant: why it was compiled, what its steps took, its kernels, its memory, and what it should gain. Its `Display` is for people.
    ///
    /// The first one of a process measures the machine, which takes a tenth of a second.
    pub fn explain(&self) -> Explanation {
        self.core.explain(None)
    }

    /// The same, after calls on these arguments: what each kernel of their variant took, the shortest of several runs, and its share of the roofline.
    ///
    /// It runs for a fifth of a second and at least six times; what the function writes to its arguments is written as often. Arguments are taken as they are, and not padded to a bucket. A function
    /// that reads tensors on its way, and so has no one list of steps, is an error.
    ///
    /// ```
    /// use oxyfuel::{DType, Options, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let f = oxyfuel::compile(|x: &Tensor| x.softmax(-1), Options::default())?;
    /// let report = f.explain_measured(&[&Tensor::randn(&[64, 512], DType::F32, 7)])?;
    /// let kernel = &report.variants[0].kernels[0];
    /// assert!(kernel.measured_seconds.is_some());
    /// println!("{report}"); // ... measured 18 us, 62 % of the second-level cache's bandwidth
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn explain_measured(&self, inputs: &[&Tensor]) -> Result<Explanation> {
        let caller = Location::caller();
        let run = || {
            let inputs = concrete(inputs, caller)?;
            self.core.explain_measured(&self.request(&inputs)?)
        };
        run().map_err(|error| located(error, caller))
    }

    /// The name it has in graphs, kernels and explanations.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Gives it another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.core.name = name.into();
        self
    }

    /// Compiles for a few ranges of sizes of the arguments, once each; see [`Bucket`].
    #[track_caller]
    pub fn bucket(mut self, bucket: Bucket) -> Result<Self> {
        let caller = Location::caller();
        let declared = self.core.buckets.declare(bucket);
        declared.map_err(|error| located(error, caller))?;
        Ok(self)
    }

    fn request<'a>(&'a self, inputs: &'a [&'a rt::Tensor]) -> Result<Request<'a>> {
        self.check_arity(inputs.len())?;
        Ok(Request {
            inputs,
            constants: &[],
            source: &self.function,
            declared: None,
        })
    }

    fn check_arity(&self, given: usize) -> Result<()> {
        match self.arity {
            Some(arity) if arity != given => Err(err!(
                ArityMismatch,
                "{} takes {arity} tensors, got {given}",
                self.core.name
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// As many arguments as most functions have.
const FEW: usize = 8;

/// Calls `run` with the memory behind the arguments of a call, without a list in memory where they are few; `list` makes it where they are many, or says what is wrong with one.
pub(crate) fn with_concrete<'a, R>(
    inputs: &[&'a Tensor],
    list: impl FnOnce() -> Result<Vec<&'a rt::Tensor>>,
    run: impl FnOnce(&[&rt::Tensor]) -> Result<R>,
) -> Result<R> {
    let few = inputs.first().filter(|_| inputs.len() <= FEW);
    let Some(State::Concrete(first)) = few.map(|first| &first.state) else {
        return run(&list()?);
    };
    let mut array = [first; FEW];
    for (place, input) in array.iter_mut().zip(inputs) {
        match &input.state {
            State::Concrete(tensor) => *place = tensor,
            State::Traced(_) | State::Failed(_) => return run(&list()?),
        }
    }
    run(&array[..inputs.len()])
}

/// The memory behind the arguments of a call.
fn concrete<'a>(inputs: &[&'a Tensor], caller: &Location<'_>) -> Result<Vec<&'a rt::Tensor>> {
    // Room for a few captured tensors, so that the list is made once.
    let mut tensors = Vec::with_capacity(inputs.len() + 8);
    for (number, input) in inputs.iter().enumerate() {
        match &input.state {
            State::Concrete(tensor) => tensors.push(tensor),
            State::Traced(_) | State::Failed(_) => {
                let what = format!("argument {number}");
                tensors.push(input.concrete(&what, caller)?);
            }
        }
    }
    Ok(tensors)
}

/// Calls may run at once on several threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Compiled>();
    shared::<Tensor>();
    shared::<Error>();
};
