//! Compiled functions of structures: any [`Tensors`] in, any out.

use crate::Options;
use crate::bound::BoundCall;
use crate::bucket::Bucket;
use crate::compiled::with_concrete;
use crate::core::{Core, Request, Returned, Source, Template, short_name};
use crate::donate::Argument;
use crate::explain::Explanation;
use crate::structure::{self, Constant, Mapper, Path, Step, Tensors, Visitor};
use crate::tensor::{State, Tensor, located};
use crate::trace;
use oxyfuel_base::{Result, err};
use oxyfuel_runtime::execute::StepTime;
use oxyfuel_runtime::tensor as rt;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

/// What a function of structures may return: a structure, or a `Result` of one.
pub trait Returns {
    /// The structure.
    type Value: Tensors + Send + Sync + 'static;

    /// The structure, or why there is none.
    fn value(self) -> Result<Self::Value>;
}

impl<T: Tensors + Send + Sync + 'static> Returns for T {
    type Value = T;

    fn value(self) -> Result<T> {
        Ok(self)
    }
}

impl<T: Tensors + Send + Sync + 'static> Returns for Result<T> {
    type Value = T;

    fn value(self) -> Self {
        self
    }
}

/// A function of one to eight references to structures. `Marker` only tells the implementations apart.
pub trait Signature<Marker>: Send + Sync + 'static {
    /// References to the arguments, as a tuple.
    type Arguments<'a>: Copy;
    /// The arguments, each lent or given away, as a tuple.
    type Donated<'a>;
    /// What it returns.
    type Output: Tensors + Send + Sync + 'static;

    /// Calls it.
    fn invoke(&self, arguments: Self::Arguments<'_>) -> Result<Self::Output>;

    /// Calls it with other tensors in the arguments.
    fn invoke_mapped(
        &self,
        arguments: Self::Arguments<'_>,
        mapper: &mut dyn Mapper,
    ) -> Result<Self::Output>;

    /// Shows all leaves of the arguments.
    fn visit<'a>(arguments: Self::Arguments<'a>, visitor: &mut dyn Visitor<'a>);

    /// References to arguments of which some are given away.
    fn lend<'a>(arguments: &'a Self::Donated<'_>) -> Self::Arguments<'a>;

    /// Whether each tensor of the arguments is given away.
    fn given(arguments: &Self::Donated<'_>) -> Vec<bool>;
}

macro_rules! signatures {
    ($(($($ty:ident $x:ident $index:tt)*))*) => {$(
        impl<Function, R, $($ty),*> Signature<($($ty,)*)> for Function
        where
            R: Returns,
            $($ty: Tensors + 'static,)*
            Function: Fn($(&$ty),*) -> R + Send + Sync + 'static,
        {
            type Arguments<'a> = ($(&'a $ty,)*);
            type Donated<'a> = ($(Argument<'a, $ty>,)*);
            type Output = R::Value;

            fn invoke(&self, ($($x,)*): Self::Arguments<'_>) -> Result<R::Value> {
                self($($x),*).value()
            }

            fn invoke_mapped(&self, ($($x,)*): Self::Arguments<'_>, mapper: &mut dyn Mapper) -> Result<R::Value> {
                $(let $x = structure::map_field(Step::Index($index), $x, mapper)?;)*
                self($(&$x),*).value()
            }

            fn visit<'a>(($($x,)*): Self::Arguments<'a>, visitor: &mut dyn Visitor<'a>) {
                $(structure::visit_field(Step::Index($index), $x, visitor);)*
            }

            fn lend<'a>(($($x,)*): &'a Self::Donated<'_>) -> Self::Arguments<'a> {
                ($($x.value(),)*)
            }

            fn given(($($x,)*): &Self::Donated<'_>) -> Vec<bool> {
                let mut given = Vec::new();
                $(
                    let mut leaves = Leaves::default();
                    $x.value().visit(&mut leaves);
                    given.resize(given.len() + leaves.tensors.len(), $x.is_given());
                )*
                given
            }
        }
    )*};
}
signatures! {
    (A a 0)
    (A a 0 B b 1)
    (A a 0 B b 1 C c 2)
    (A a 0 B b 1 C c 2 D d 3)
    (A a 0 B b 1 C c 2 D d 3 E e 4)
    (A a 0 B b 1 C c 2 D d 3 E e 4 F f 5)
    (A a 0 B b 1 C c 2 D d 3 E e 4 F f 5 G g 6)
    (A a 0 B b 1 C c 2 D d 3 E e 4 F f 5 G g 6 H h 7)
}

/// A compiled function of structures, made by [`jit`]. Calls may run at once on several threads.
pub struct Jit<Marker, F: Signature<Marker>> {
    pub(crate) core: Core,
    pub(crate) function: F,
    pub(crate) marker: PhantomData<fn() -> Marker>,
}

/// Makes a function of structures compiled. Nothing happens before its first call, but that the options are checked.
///
/// It takes one to eight references to [`Tensors`] and returns a structure of them, or a `Result` of one. It is [`compile`](crate::compile()) in all else: the function runs once for each
/// kind of arguments, and everything that is not a tensor, in the arguments as in the result, is what it was at that time.
///
/// ```
/// use oxyfuel::{DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let f = oxyfuel::jit(|x: &Tensor, ws: &Vec<Tensor>| ws.iter().map(|w| x * w).collect::<Vec<_>>(), Options::default())?;
/// let x = Tensor::ones(&[3], DType::F32);
/// let out = f.call((&x, &vec![&x * 2.0, &x * 3.0]))?;
/// assert_eq!(out[1].to_vec::<f32>()?, [3.0; 3]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn jit<Marker, F: Signature<Marker>>(function: F, options: Options) -> Result<Jit<Marker, F>> {
    let caller = Location::caller();
    let name = short_name(std::any::type_name::<F>());
    Ok(Jit {
        core: Core::new(name, options).map_err(|error| located(error, caller))?,
        function,
        marker: PhantomData,
    })
}

impl<Marker, F: Signature<Marker>> fmt::Debug for Jit<Marker, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jit")
            .field("name", &self.core.name)
            .field("options", &self.core.compilers.options)
            .finish_non_exhaustive()
    }
}

/// The leaves of the arguments of one call.
#[derive(Default)]
struct Leaves<'a> {
    tensors: Vec<&'a Tensor>,
    constants: Vec<Constant<'a>>,
}

impl<'a> Visitor<'a> for Leaves<'a> {
    fn tensor(&mut self, tensor: &'a Tensor) {
        self.tensors.push(tensor);
    }

    fn constant(&mut self, constant: Constant<'a>) {
        self.constants.push(constant);
    }
}

impl<'a> Leaves<'a> {
    fn of<Marker, F: Signature<Marker>>(arguments: F::Arguments<'a>) -> Self {
        let mut leaves = Self::default();
        F::visit(arguments, &mut leaves);
        leaves
    }

    /// Whether a call on them is a part of a function that is being captured.
    fn are_captured(&self) -> bool {
        trace::is_tracing() || self.tensors.iter().any(|tensor| tensor.is_traced())
    }
}

/// Their names: `argument 0.weight`.
#[derive(Default)]
struct Names {
    path: Path,
    tensors: Vec<String>,
    constants: Vec<String>,
}

impl<'a> Visitor<'a> for Names {
    fn enter(&mut self, step: Step<'_>) {
        self.path.enter(step);
    }

    fn leave(&mut self) {
        self.path.leave();
    }

    fn tensor(&mut self, _tensor: &'a Tensor) {
        self.tensors.push(format!("argument {}", self.path.text()));
    }

    fn constant(&mut self, _constant: Constant<'a>) {
        self.constants
            .push(format!("argument {}", self.path.text()));
    }
}

/// Puts tensors in the places of a tree, in order.
struct Replace<I>(I);

impl<I: Iterator<Item = Tensor>> Mapper for Replace<I> {
    fn tensor(&mut self, _tensor: &Tensor) -> Result<Tensor> {
        self.0.next().ok_or_else(|| {
            err!(
                Internal,
                "a structure with more tensors than were found in it"
            )
        })
    }
}

struct Called<'f, 'a, Marker, F: Signature<Marker>> {
    function: &'f F,
    arguments: F::Arguments<'a>,
}

impl<Marker, F: Signature<Marker>> Called<'_, '_, Marker, F> {
    fn all_names(&self) -> Names {
        let mut names = Names::default();
        F::visit(self.arguments, &mut names);
        names
    }
}

impl<Marker, F: Signature<Marker>> Source for Called<'_, '_, Marker, F> {
    fn invoke(&self, tensors: &[Tensor]) -> Result<Returned> {
        let mut mapper = Replace(tensors.iter().cloned());
        let output = self.function.invoke_mapped(self.arguments, &mut mapper)?;
        let named = structure::named(&output);
        let tensors = named
            .into_iter()
            .map(|(name, tensor)| {
                let checked = tensor.check();
                let named = |error: oxyfuel_base::Error| match name.as_str() {
                    "" => error,
                    name => error.context(format!("result {name}")),
                };
                checked.map(|()| tensor.clone()).map_err(named)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Returned {
            tensors,
            template: Some(Arc::new(output)),
        })
    }

    fn names(&self, _count: usize) -> Vec<String> {
        self.all_names().tensors
    }

    fn constant_names(&self) -> Vec<String> {
        self.all_names().constants
    }
}

/// The tensors of the arguments, in their order.
fn concrete<'a, Marker, F: Signature<Marker>>(
    source: &Called<'_, '_, Marker, F>,
    leaves: &Leaves<'a>,
    caller: &Location<'_>,
) -> Result<Vec<&'a rt::Tensor>> {
    let mut inputs = Vec::with_capacity(leaves.tensors.len() + 8);
    for (number, &tensor) in leaves.tensors.iter().enumerate() {
        match &tensor.state {
            State::Concrete(tensor) => inputs.push(tensor),
            State::Traced(_) | State::Failed(_) => {
                let names = source.all_names().tensors;
                let name = names.get(number).map_or("an argument", String::as_str);
                let found = tensor.concrete(name, caller);
                inputs.push(found.map_err(|error| error.context(name))?);
            }
        }
    }
    Ok(inputs)
}

/// The tensors of a structure that results are put into.
fn targets<'a, T: Tensors>(outputs: &'a T, caller: &Location<'_>) -> Result<Vec<&'a rt::Tensor>> {
    let named = structure::named(outputs).into_iter();
    named
        .map(|(_, tensor)| tensor.concrete("an output", caller))
        .collect()
}

/// The structure of a result with the tensors of a call.
fn structured<T: Tensors + 'static>(
    template: Option<Template>,
    tensors: impl IntoIterator<Item = Tensor>,
) -> Result<T> {
    let template = template.ok_or_else(|| err!(Internal, "a structure without a template"))?;
    let template = template
        .downcast_ref::<T>()
        .ok_or_else(|| err!(Internal, "a structure of another type"))?;
    template.map(&mut Replace(tensors.into_iter()))
}

impl<Marker, F: Signature<Marker>> Jit<Marker, F> {
    /// Calls it. Inside of another function that is being captured, it is captured with it.
    #[track_caller]
    pub fn call(&self, arguments: F::Arguments<'_>) -> Result<F::Output> {
        let leaves = Leaves::of::<Marker, F>(arguments);
        if leaves.are_captured() {
            return self.function.invoke(arguments);
        }
        self.on(arguments, &leaves, Location::caller(), |request| {
            let returned = self.core.call(request)?;
            structured(returned.template, returned.tensors)
        })
    }

    /// Calls it with arguments of which some are given away, structures and all: the memory of their tensors may become that of results; see
    /// [`Compiled::call_donating`](crate::Compiled::call_donating). What is given may not be looked at again, so it is moved into the call.
    /// A function with buckets takes what is given as if it were lent.
    ///
    /// ```
    /// use oxyfuel::{DType, Options, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let step = |state: &Vec<Tensor>, x: &Tensor| state.iter().map(|s| s.matmul(x).relu().matmul(x)).collect::<Vec<_>>();
    /// let f = oxyfuel::jit(step, Options::default())?;
    /// let x = Tensor::full(&[8, 8], 0.125, DType::F32);
    /// let mut state = vec![Tensor::ones(&[8, 8], DType::F32)];
    /// for _ in 0..3 {
    ///     state = f.call_donating((state.into(), (&x).into()))?; // the state is given, x is lent
    /// }
    /// assert_eq!(state[0].to_vec::<f32>()?, [1.0; 64]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn call_donating(&self, arguments: F::Donated<'_>) -> Result<F::Output> {
        let lent = F::lend(&arguments);
        let leaves = Leaves::of::<Marker, F>(lent);
        if leaves.are_captured() || !self.core.buckets.is_empty() {
            return self.call(lent);
        }
        self.on(lent, &leaves, Location::caller(), |request| {
            let returned = self.core.call_given(request, &F::given(&arguments))?;
            structured(returned.template, returned.tensors)
        })
    }

    /// Calls it and puts the results into the tensors of `outputs`, in their order: no memory is asked for, and results that fit are computed in place. What is no tensor in `outputs` becomes
    /// what the function returned.
    ///
    /// ```
    /// use oxyfuel::{DType, Options, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let f = oxyfuel::jit(|x: &Tensor| (x * 2.0, x + 1.0), Options::default())?;
    /// let zeros = || Tensor::zeros(&[3], DType::F32);
    /// let mut outputs = (zeros(), zeros());
    /// f.call_into((&Tensor::ones(&[3], DType::F32),), &mut outputs)?;
    /// assert_eq!(outputs.0.to_vec::<f32>()?, [2.0; 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn call_into(&self, arguments: F::Arguments<'_>, outputs: &mut F::Output) -> Result<()> {
        let caller = Location::caller();
        let leaves = Leaves::of::<Marker, F>(arguments);
        self.on(arguments, &leaves, caller, |request| {
            let mut tensors: Vec<rt::Tensor> =
                targets(outputs, caller)?.into_iter().cloned().collect();
            let template = self.core.call_into(request, &mut tensors)?;
            *outputs = structured(template, tensors.into_iter().map(Tensor::from))?;
            Ok(())
        })
    }

    /// Decides on the tensors of a call, which then runs any number of times without asking again; see [`Compiled::bind`](crate::Compiled::bind). The tensors of `outputs`, a structure as the
    /// function returns it, hold the results.
    #[track_caller]
    pub fn bind(&self, arguments: F::Arguments<'_>, outputs: &F::Output) -> Result<BoundCall> {
        let caller = Location::caller();
        let leaves = Leaves::of::<Marker, F>(arguments);
        self.on(arguments, &leaves, caller, |request| {
            self.core.bind(request, targets(outputs, caller)?)
        })
    }

    /// Compiles for arguments like these without running; nothing where that is done already. A function that reads tensors on its way must run to be compiled, and is an error.
    #[track_caller]
    pub fn warm_up(&self, arguments: F::Arguments<'_>) -> Result<()> {
        let leaves = Leaves::of::<Marker, F>(arguments);
        self.on(arguments, &leaves, Location::caller(), |request| {
            self.core.warm_up(request)
        })
    }

    /// Calls it and says how long each step took on the device; see [`Compiled::profile`](crate::Compiled::profile).
    #[track_caller]
    pub fn profile(&self, arguments: F::Arguments<'_>) -> Result<(F::Output, Vec<StepTime>)> {
        let leaves = Leaves::of::<Marker, F>(arguments);
        self.on(arguments, &leaves, Location::caller(), |request| {
            let (returned, times) = self.core.profile(request)?;
            Ok((structured(returned.template, returned.tensors)?, times))
        })
    }

    /// Does something with the request that the arguments are.
    fn on<R>(
        &self,
        arguments: F::Arguments<'_>,
        leaves: &Leaves<'_>,
        caller: &Location<'_>,
        run: impl FnOnce(&Request<'_>) -> Result<R>,
    ) -> Result<R> {
        let source = Called {
            function: &self.function,
            arguments,
        };
        let run = |inputs: &[&rt::Tensor]| {
            run(&Request {
                inputs,
                constants: &leaves.constants,
                source: &source,
                declared: None,
            })
        };
        let list = || concrete(&source, leaves, caller);
        with_concrete(&leaves.tensors, list, run).map_err(|error| located(error, caller))
    }

    /// Compiles for a few ranges of sizes of the arguments, once each; see [`Bucket`]. Arguments are counted as tensors, in the order of [`structure::names`].
    #[track_caller]
    pub fn bucket(mut self, bucket: Bucket) -> Result<Self> {
        let caller = Location::caller();
        let declared = self.core.buckets.declare(bucket);
        declared.map_err(|error| located(error, caller))?;
        Ok(self)
    }

    /// Every variant: why it was compiled, what its steps took, its kernels, its memory, and what it should gain.
    pub fn explain(&self) -> Explanation {
        self.core.explain(None)
    }

    /// The same, after calls on these arguments: what each kernel of their variant took, and its share of the roofline; see [`Compiled::explain_measured`](crate::Compiled::explain_measured).
    #[track_caller]
    pub fn explain_measured(&self, arguments: F::Arguments<'_>) -> Result<Explanation> {
        let leaves = Leaves::of::<Marker, F>(arguments);
        self.on(arguments, &leaves, Location::caller(), |request| {
            self.core.explain_measured(request)
        })
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
}
