//! Methods that are recipes: what a method notes down is a function of the graph builder, and everything but its operands is a list of numbers.
//!
//! A recipe is one [`Call`], so that it runs as one program eagerly and is found again by its name and its numbers; it may not look at anything else. Its result has memory of its own, also where no
//! element changes.

use crate::call::{Call, Operand, Operands, apply};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure, err};
use oxyfuel_graph::special::Formula;
use oxyfuel_graph::{Builder, Category, Op, Operand as Value, ValueId};
use std::hash::{Hash, Hasher};
use std::ptr::fn_addr_eq;

/// A formula of elements, and of the numbers.
pub(crate) type Maths = fn(&mut Formula<'_>, &[ValueId], &[f64]) -> Result<ValueId>;

/// How a recipe is noted down.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Build {
    /// Any composition.
    Nodes(fn(&mut Recording<'_>) -> Result<ValueId>),
    /// A formula of floats, computed in at least f32 and rounded once.
    Floats(Maths),
    /// The same, where integers become f32 first.
    Fractions(Maths),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub name: &'static str,
    numbers: Vec<Scalar>,
    build: Build,
}

impl PartialEq for Recipe {
    fn eq(&self, other: &Self) -> bool {
        let same_build = match (self.build, other.build) {
            (Build::Nodes(a), Build::Nodes(b)) => fn_addr_eq(a, b),
            (Build::Floats(a), Build::Floats(b)) => fn_addr_eq(a, b),
            (Build::Fractions(a), Build::Fractions(b)) => fn_addr_eq(a, b),
            (Build::Nodes(_) | Build::Floats(_) | Build::Fractions(_), _) => false,
        };
        same_build && self.name == other.name && self.numbers == other.numbers
    }
}

impl Eq for Recipe {}

impl Hash for Recipe {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.numbers.hash(state);
    }
}

impl Recipe {
    pub fn record(&self, b: &mut Builder, operands: &Operands<'_>) -> Result<ValueId> {
        let mut r = Recording {
            b,
            name: self.name,
            operands,
            numbers: &self.numbers,
        };
        let out = match self.build {
            Build::Nodes(build) => build(&mut r)?,
            Build::Floats(maths) => r.formula(maths, false)?,
            Build::Fractions(maths) => r.formula(maths, true)?,
        };
        let mut nodes = b.graph().nodes.values().rev();
        let made = nodes.find(|node| node.outputs.contains(&out));
        let is_view = made.is_some_and(|node| node.op.category() == Category::View);
        match is_view || operands.tensors.contains(&out) {
            true => b.emit(Op::Clone, &[out]),
            false => Ok(out),
        }
    }
}

/// A recipe while it is noted down.
pub(crate) struct Recording<'a> {
    pub b: &'a mut Builder,
    pub name: &'static str,
    operands: &'a Operands<'a>,
    numbers: &'a [Scalar],
}

impl Recording<'_> {
    /// One of the operands that are tensors.
    pub fn tensor(&self, i: usize) -> Result<ValueId> {
        self.operands.tensor(i)
    }

    pub fn operand(&self, i: usize) -> Result<Value> {
        self.operands.get(i)
    }

    pub fn number(&self, i: usize) -> Result<Scalar> {
        let number = self.numbers.get(i).copied();
        number.ok_or_else(|| err!(Internal, "{}: a number is missing", self.name))
    }

    pub fn int(&self, i: usize) -> Result<i64> {
        Ok(self.number(i)?.as_i64())
    }

    pub fn float(&self, i: usize) -> Result<f64> {
        Ok(self.number(i)?.as_f64())
    }

    pub fn flag(&self, i: usize) -> Result<bool> {
        Ok(self.number(i)?.as_bool())
    }

    /// The numbers from one on, as integers.
    pub fn ints(&self, from: usize) -> Vec<i64> {
        let rest = self.numbers.get(from..).unwrap_or_default();
        rest.iter().map(|n| n.as_i64()).collect()
    }

    pub fn dtype(&self, x: ValueId) -> DType {
        self.b.ty(x).dtype
    }

    pub fn shape(&self, x: ValueId) -> Vec<Expr> {
        self.b.ty(x).shape.clone()
    }

    /// A dim, which counts from the end when it is negative; a tensor without dims has dim 0 and -1.
    pub fn dim(&self, dim: i64, rank: usize) -> Result<usize> {
        let bound = i64::try_from(rank.max(1)).unwrap_or(i64::MAX);
        ensure!(
            (-bound..bound).contains(&dim),
            DimOutOfRange,
            "{}: dim {dim} of a tensor with {rank} dims",
            self.name
        );
        Ok(usize::try_from(if dim < 0 { dim + bound } else { dim }).unwrap_or(0))
    }

    /// An extent that must be a number: `what` says why.
    pub fn known(&self, extent: &Expr, what: &str) -> Result<i64> {
        extent.as_const().ok_or_else(|| {
            err!(
                DataDependent,
                "{}: {what} of a size that changes from call to call ({extent})",
                self.name
            )
            .help("ask for the size as a number in the function (x.size(dim)), so that each size is a variant of its own")
        })
    }

    /// `start, start + step, …`, of integers.
    pub fn count(&mut self, count: &Expr, start: i64, step: i64, like: ValueId) -> Result<ValueId> {
        let op = Op::Arange {
            start: Scalar::I(start),
            step: Scalar::I(step),
            shape: vec![count.clone()],
            dtype: DType::I64,
            device: self.b.ty(like).device,
        };
        self.b.emit(op, &[])
    }

    /// The dtype of a formula's result and the one it is computed in.
    fn formula_dtypes(&self, integers: bool) -> Result<(DType, DType)> {
        let mut all = Vec::new();
        let mut i = 0;
        while let Ok(operand) = self.operand(i) {
            all.push(operand);
            i += 1;
        }
        let mut out = self.b.common_dtype(&all)?;
        if integers && !out.is_float() {
            out = DType::F32;
        }
        ensure!(
            out.is_float() && !out.is_narrow_float(),
            UnsupportedDType,
            "{} is of floats, not of {out}",
            self.name
        );
        Ok((out, wide(out)))
    }

    /// The result of a formula of all operands.
    fn formula(&mut self, maths: Maths, integers: bool) -> Result<ValueId> {
        let (out, dtype) = self.formula_dtypes(integers)?;
        let device = self.b.ty(self.tensor(0)?).device;
        let mut values = Vec::new();
        let mut i = 0;
        while let Ok(operand) = self.operand(i) {
            values.push(match operand {
                // Rounded to the common dtype first, as PyTorch's kernels see it.
                Value::Value(v) => {
                    let v = self.b.cast(v, out)?;
                    self.b.cast(v, dtype)?
                }
                Value::Number(n) => self.b.full(n, vec![], dtype, device)?,
            });
            i += 1;
        }
        let numbers: Vec<f64> = self.numbers.iter().map(|n| n.as_f64()).collect();
        let mut f = Formula {
            b: &mut *self.b,
            dtype,
            device,
        };
        let y = maths(&mut f, &values, &numbers)?;
        // What compares is a bool and stays one.
        match self.dtype(y) {
            DType::Bool => Ok(y),
            _ => self.b.cast(y, out),
        }
    }
}

/// The dtype in which PyTorch computes inside of one kernel: f32 for half precision.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Does a recipe.
#[track_caller]
pub(crate) fn recipe(
    name: &'static str,
    operands: &[Operand<'_>],
    numbers: &[Scalar],
    build: Build,
) -> Tensor {
    let call = Recipe {
        name,
        numbers: numbers.to_vec(),
        build,
    };
    apply(Call::Recipe(call), operands)
}

/// Methods, one row each: documentation, name, the name of the form that overwrites the tensor if there is one, further operands in `[]` and numbers in `()`, and the recipe.
macro_rules! recipes {
    ($(#[$of:meta])* impl { $($(#[$doc:meta])* $name:ident $(/ $in_place:ident)?: $operands:tt $numbers:tt = $build:expr;)* }) => {
        $(#[$of])*
        impl $crate::Tensor {
            $(
            $crate::recipe::recipes! { @method [$(#[$doc])*] $name $operands $numbers $build }
            $($crate::recipe::recipes! { @in_place $name $in_place $operands $numbers })?
            )*
        }
    };
    (@method [$(#[$doc:meta])*] $name:ident [] ($($number:ident: $ty:ty),*) $build:expr) => {
        $(#[$doc])*
        #[track_caller]
        pub fn $name(&self, $($number: $ty),*) -> $crate::Tensor {
            $crate::recipe::recipe(stringify!($name), &[self.into()], &[$($number.into()),*], $build)
        }
    };
    (@method [$(#[$doc:meta])*] $name:ident [$($operand:ident),+] ($($number:ident: $ty:ty),*) $build:expr) => {
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a>(&self, $($operand: impl Into<$crate::Operand<'a>>,)+ $($number: $ty),*) -> $crate::Tensor {
            $crate::recipe::recipe(stringify!($name), &[self.into(), $($operand.into()),+], &[$($number.into()),*], $build)
        }
    };
    (@in_place $name:ident $in_place:ident [] ($($number:ident: $ty:ty),*)) => {
        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), "), in its place.")]
        #[track_caller]
        pub fn $in_place(&mut self, $($number: $ty),*) -> oxyfuel_base::Result<()> {
            let new = self.$name($($number),*);
            self.overwrite(stringify!($in_place), &new)
        }
    };
    (@in_place $name:ident $in_place:ident [$($operand:ident),+] ($($number:ident: $ty:ty),*)) => {
        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), "), in its place.")]
        #[track_caller]
        pub fn $in_place<'a>(&mut self, $($operand: impl Into<$crate::Operand<'a>>,)+ $($number: $ty),*) -> oxyfuel_base::Result<()> {
            let new = self.$name($($operand,)+ $($number),*);
            self.overwrite(stringify!($in_place), &new)
        }
    };
}
pub(crate) use recipes;
