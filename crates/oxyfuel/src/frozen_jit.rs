//! Compiled functions of structures whose weights do not change: [`frozen`](crate::frozen) for [`Jit`].

use crate::explain::Explanation;
use crate::frozen::{Handle, Weights, frozen_core, released};
use crate::jit::{Jit, Returns, Signature};
use crate::structure::{self, Mapper, Tensors, Visitor};
use crate::tensor::located;
use oxyfuel_base::Result;
use oxyfuel_runtime::tensor as rt;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

/// A compiled function of structures whose weights do not change; [`Jit::freeze`] and `Jit::freeze_with` make one. It is a [`FrozenCall`](crate::FrozenCall) in all else: a weight that was written since
/// is E0606 before anything runs.
///
/// ```
/// use oxyfuel::nn::{Linear, Module};
/// use oxyfuel::{Code, DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let layer = Linear::new(256, 128, true, DType::F32, 7);
/// let mut weight = layer.weight.clone();
/// let f = oxyfuel::jit(|x: &Tensor, layer: &Linear| layer.forward(x).relu(), Options::default())?;
/// let mut f = f.freeze_with(layer)?; // the last argument of every call
/// let x = Tensor::ones(&[64, 256], DType::F32);
/// assert_eq!(f.call((&x,))?.shape(), [64, 128]);
///
/// weight.mul_(2.0)?;
/// assert_eq!(f.call((&x,)).unwrap_err().code, Code::StaleFrozen);
/// f.refreeze()?;
/// f.release()?; // of the weight, the panels are left
/// f.call((&x,))?;
/// # Ok(())
/// # }
/// ```
pub struct FrozenJit<Marker, F: Signature<Marker>> {
    jit: Jit<Marker, Kept<F>>,
    weights: Arc<Weights>,
}

/// A function, until it is released.
struct Kept<F> {
    function: Option<F>,
    name: String,
}

impl<F> Kept<F> {
    fn get(&self) -> Result<&F> {
        self.function.as_ref().ok_or_else(|| released(&self.name))
    }
}

impl<Marker, F: Signature<Marker>> Signature<Marker> for Kept<F> {
    type Arguments<'a> = F::Arguments<'a>;
    type Donated<'a> = F::Donated<'a>;
    type Output = F::Output;

    fn invoke(&self, arguments: Self::Arguments<'_>) -> Result<Self::Output> {
        self.get()?.invoke(arguments)
    }

    fn invoke_mapped(
        &self,
        arguments: Self::Arguments<'_>,
        mapper: &mut dyn Mapper,
    ) -> Result<Self::Output> {
        self.get()?.invoke_mapped(arguments, mapper)
    }

    fn visit<'a>(arguments: Self::Arguments<'a>, visitor: &mut dyn Visitor<'a>) {
        F::visit(arguments, visitor);
    }

    fn lend<'a>(arguments: &'a Self::Donated<'_>) -> Self::Arguments<'a> {
        F::lend(arguments)
    }

    fn given(arguments: &Self::Donated<'_>) -> Vec<bool> {
        F::given(arguments)
    }
}

impl<Marker, F: Signature<Marker>> fmt::Debug for FrozenJit<Marker, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenJit")
            .field("jit", &self.jit)
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl<Marker, F: Signature<Marker>> Jit<Marker, F> {
    /// Takes all tensors that the function captured for weights that do not change; see [`FrozenJit`]. Where the weights are an argument, use `freeze_with`.
    ///
    /// ```
    /// use oxyfuel::nn::{Linear, Module};
    /// use oxyfuel::{DType, Options, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let layer = Linear::new(256, 128, true, DType::F32, 7);
    /// let f = oxyfuel::jit(move |x: &Tensor| layer.forward(x).relu(), Options::default())?.freeze()?;
    /// assert_eq!(f.call((&Tensor::ones(&[64, 256], DType::F32),))?.shape(), [64, 128]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn freeze(self) -> Result<FrozenJit<Marker, F>> {
        let caller = Location::caller();
        frozen(self, &[]).map_err(|error| located(error, caller))
    }
}

fn frozen<Marker, F: Signature<Marker>>(
    jit: Jit<Marker, F>,
    weights: &[rt::Tensor],
) -> Result<FrozenJit<Marker, F>> {
    let (core, weights) = frozen_core(jit.core, weights)?;
    let function = Kept {
        function: Some(jit.function),
        name: core.name.clone(),
    };
    let jit = Jit {
        core,
        function,
        marker: PhantomData,
    };
    Ok(FrozenJit { jit, weights })
}

macro_rules! with_the_last {
    ($(($($ty:ident $x:ident)*) $last:ident)*) => {$(
        impl<Function, R, $($ty,)* $last> Jit<($($ty,)* $last,), Function>
        where
            R: Returns,
            $($ty: Tensors + 'static,)*
            $last: Tensors + Send + Sync + 'static,
            Function: Fn($(&$ty,)* &$last) -> R + Send + Sync + 'static,
        {
            /// Makes this structure the last argument of every call, and takes its tensors, and all that the function captured, for weights that do not change; see [`FrozenJit`]. What is no tensor in it
            /// is compiled in.
            #[track_caller]
            pub fn freeze_with(
                self,
                weights: $last,
            ) -> Result<FrozenJit<($($ty,)*), impl Fn($(&$ty),*) -> R + Send + Sync + 'static>> {
                let caller = Location::caller();
                let tensors = tensors(&weights, caller).map_err(|error| located(error, caller))?;
                let function = self.function;
                let jit = Jit {
                    core: self.core,
                    function: move |$($x: &$ty),*| function($($x,)* &weights),
                    marker: PhantomData,
                };
                frozen(jit, &tensors).map_err(|error| located(error, caller))
            }
        }
    )*};
}
with_the_last! {
    (A a) B
    (A a B b) C
    (A a B b C c) D
    (A a B b C c D d) E
    (A a B b C c D d E e) F
    (A a B b C c D d E e F f) G
    (A a B b C c D d E e F f G g) H
}

/// The tensors of weights.
fn tensors<T: Tensors>(weights: &T, caller: &Location<'_>) -> Result<Vec<rt::Tensor>> {
    let named = structure::named(weights).into_iter();
    let concrete = named.map(|(name, tensor)| {
        let name = format!("weight {name}");
        tensor.concrete(name.trim_end(), caller).cloned()
    });
    concrete.collect()
}

impl<Marker, F: Signature<Marker>> FrozenJit<Marker, F> {
    /// Calls it with the arguments before the weights.
    #[track_caller]
    pub fn call(&self, arguments: F::Arguments<'_>) -> Result<F::Output> {
        self.handle().check(Location::caller())?;
        self.jit.call(arguments)
    }

    /// Calls it and puts the results into the tensors of `outputs`; see [`Jit::call_into`].
    #[track_caller]
    pub fn call_into(&self, arguments: F::Arguments<'_>, outputs: &mut F::Output) -> Result<()> {
        self.handle().check(Location::caller())?;
        self.jit.call_into(arguments, outputs)
    }

    /// Calls it with arguments of which some are given away; see [`Jit::call_donating`]. Weights stay.
    #[track_caller]
    pub fn call_donating(&self, arguments: F::Donated<'_>) -> Result<F::Output> {
        self.handle().check(Location::caller())?;
        self.jit.call_donating(arguments)
    }

    /// Compiles for arguments like these, and computes what follows from the weights, without a call; nothing where that is done already.
    #[track_caller]
    pub fn warm_up(&self, arguments: F::Arguments<'_>) -> Result<()> {
        self.handle().check(Location::caller())?;
        self.jit.warm_up(arguments)
    }

    /// Every variant; see [`Jit::explain`]. The notes of each say what is computed once.
    pub fn explain(&self) -> Explanation {
        self.jit.explain()
    }

    /// The name it has in graphs, kernels and explanations.
    pub fn name(&self) -> &str {
        self.jit.name()
    }

    /// Says that a weight is not what it was: every call is E0606 until the next [`refreeze`](Self::refreeze), and what was computed of the weights is let go.
    pub fn invalidate(&self) {
        self.handle().invalidate();
    }

    /// Whether a call would find the weights as they were.
    pub fn is_valid(&self) -> bool {
        self.weights.check(self.name()).is_ok()
    }

    /// Takes the weights for what they are now, and computes what follows from them anew. Nothing is compiled.
    #[track_caller]
    pub fn refreeze(&self) -> Result<()> {
        let caller = Location::caller();
        let again = self.handle().refreeze();
        again.map_err(|error| located(error, caller))
    }

    /// Lets go of the function, and of all weights that no call reads any more; see [`FrozenCall::release`](crate::FrozenCall::release).
    #[track_caller]
    pub fn release(&mut self) -> Result<()> {
        let caller = Location::caller();
        let called = self.handle().check_called();
        called.map_err(|error| located(error, caller))?;
        self.jit.function.function = None;
        self.handle().release();
        Ok(())
    }

    fn handle(&self) -> Handle<'_> {
        Handle {
            core: &self.jit.core,
            weights: &self.weights,
        }
    }
}
