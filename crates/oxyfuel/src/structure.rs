//! Structures of tensors: what a compiled function takes and returns beside plain tensors, and what a model's parameters are.
//!
//! A [`Tensors`] value is a tree. Its leaves are tensors, which a compiled function reads anew at every call, and plain data (numbers, flags, text, the length of a list, whether an
//! option is there), which is compiled in: other data leads to another variant. Every leaf has a path of field names and positions, `layers.0.weight`, that errors, recompile
//! reasons and weight files use.
//!
//! ```
//! use oxyfuel::{DType, Options, Result, Tensor, Tensors};
//!
//! #[derive(Tensors)]
//! struct Layer {
//!     weight: Tensor,
//!     bias: Option<Tensor>,
//!     scale: f64,
//! }
//!
//! # fn main() -> Result<()> {
//! let layer = Layer { weight: Tensor::randn(&[3, 4], DType::F32, 0), bias: None, scale: 2.0 };
//! let f = oxyfuel::jit(|l: &Layer, x: &Tensor| x.linear(&l.weight, l.bias.as_ref()) * l.scale, Options::default())?;
//! let y = f.call((&layer, &Tensor::ones(&[2, 4], DType::F32)))?;
//! assert_eq!(y.shape(), [2, 3]);
//! assert_eq!(oxyfuel::structure::names(&layer), ["weight"]);
//! # Ok(())
//! # }
//! ```

use crate::machine::Device;
use crate::tensor::{Tensor, located};
use oxyfuel_base::{DType, Error, Result};
use oxyfuel_graph::convolution::Convolution;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

/// A tree of tensors and plain data; derive it for structs and enums whose fields are such. See the [module](self).
pub trait Tensors: Sized {
    /// Shows every leaf to the visitor, in order.
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>);

    /// The same tree with other tensors, in the same order.
    fn map(&self, mapper: &mut dyn Mapper) -> Result<Self>;
}

/// A step on the way from the root of a tree to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A field of a struct.
    Field(&'a str),
    /// A position in a list or tuple.
    Index(usize),
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => f.write_str(name),
            Self::Index(index) => index.fmt(f),
        }
    }
}

/// A leaf that is no tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Constant<'a> {
    /// A truth value.
    Bool(bool),
    /// An integer, or the length of a list.
    Int(i128),
    /// A float, as its bits: NaN equals itself.
    Float(u64),
    /// Text.
    Text(Cow<'a, str>),
    /// The name of an enum's variant, or whether an option is there.
    Tag(&'static str),
}

impl Constant<'_> {
    pub(crate) fn into_owned(self) -> Constant<'static> {
        match self {
            Self::Bool(value) => Constant::Bool(value),
            Self::Int(value) => Constant::Int(value),
            Self::Float(bits) => Constant::Float(bits),
            Self::Text(text) => Constant::Text(text.into_owned().into()),
            Self::Tag(tag) => Constant::Tag(tag),
        }
    }
}

impl fmt::Display for Constant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::Float(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Tag(tag) => f.write_str(tag),
        }
    }
}

/// Whoever looks at the leaves of a tree.
pub trait Visitor<'a> {
    /// Goes down.
    fn enter(&mut self, _step: Step<'_>) {}
    /// Comes back up.
    fn leave(&mut self) {}
    /// A tensor.
    fn tensor(&mut self, tensor: &'a Tensor);
    /// Plain data.
    fn constant(&mut self, _constant: Constant<'a>) {}
}

/// Whoever replaces the tensors of a tree.
pub trait Mapper {
    /// Goes down.
    fn enter(&mut self, _step: Step<'_>) {}
    /// Comes back up.
    fn leave(&mut self) {}
    /// What stands in the place of a tensor.
    fn tensor(&mut self, tensor: &Tensor) -> Result<Tensor>;
}

/// Visits one field.
pub fn visit_field<'a, T: Tensors>(step: Step<'_>, field: &'a T, visitor: &mut dyn Visitor<'a>) {
    visitor.enter(step);
    field.visit(visitor);
    visitor.leave();
}

/// Maps one field.
pub fn map_field<T: Tensors>(step: Step<'_>, field: &T, mapper: &mut dyn Mapper) -> Result<T> {
    mapper.enter(step);
    let mapped = field.map(mapper);
    mapper.leave();
    mapped
}

/// The way to a leaf, as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    text: String,
    lengths: Vec<usize>,
}

impl Path {
    pub fn enter(&mut self, step: Step<'_>) {
        self.lengths.push(self.text.len());
        if !self.text.is_empty() {
            self.text.push('.');
        }
        self.text.push_str(&step.to_string());
    }

    pub fn leave(&mut self) {
        self.text.truncate(self.lengths.pop().unwrap_or(0));
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Every tensor of a tree with its path, in order.
pub fn named<T: Tensors>(tree: &T) -> Vec<(String, &Tensor)> {
    struct Named<'a>(Path, Vec<(String, &'a Tensor)>);
    impl<'a> Visitor<'a> for Named<'a> {
        fn enter(&mut self, step: Step<'_>) {
            self.0.enter(step);
        }
        fn leave(&mut self) {
            self.0.leave();
        }
        fn tensor(&mut self, tensor: &'a Tensor) {
            self.1.push((self.0.text().to_owned(), tensor));
        }
    }
    let mut visitor = Named(Path::default(), Vec::new());
    tree.visit(&mut visitor);
    visitor.1
}

/// The paths of the tensors of a tree, in order.
pub fn names<T: Tensors>(tree: &T) -> Vec<String> {
    named(tree).into_iter().map(|(name, _)| name).collect()
}

/// The tree with its tensors on another device; those that live there already are shared.
#[track_caller]
pub fn to_device<T: Tensors>(tree: &T, device: Device) -> Result<T> {
    let caller = Location::caller();
    let moved = |path: &str, tensor: &Tensor| {
        let moved = tensor.to_device(device).try_ok();
        let here = |error: Error| Error { at: None, ..error }.context(path);
        moved.map_err(|error| located(here(error), caller))
    };
    map(tree, &mut { moved })
}

/// The tree with each tensor replaced by what `f` makes of its path and itself.
pub fn map<T: Tensors>(tree: &T, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<T> {
    struct Mapped<'a>(Path, &'a mut dyn FnMut(&str, &Tensor) -> Result<Tensor>);
    impl Mapper for Mapped<'_> {
        fn enter(&mut self, step: Step<'_>) {
            self.0.enter(step);
        }
        fn leave(&mut self) {
            self.0.leave();
        }
        fn tensor(&mut self, tensor: &Tensor) -> Result<Tensor> {
            (self.1)(self.0.text(), tensor)
        }
    }
    tree.map(&mut Mapped(Path::default(), f))
}

impl Tensors for Tensor {
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        visitor.tensor(self);
    }

    fn map(&self, mapper: &mut dyn Mapper) -> Result<Self> {
        mapper.tensor(self)
    }
}

impl<T: Tensors> Tensors for Option<T> {
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        match self {
            Some(inner) => {
                visitor.constant(Constant::Tag("present"));
                inner.visit(visitor);
            }
            None => visitor.constant(Constant::Tag("absent")),
        }
    }

    fn map(&self, mapper: &mut dyn Mapper) -> Result<Self> {
        self.as_ref().map(|inner| inner.map(mapper)).transpose()
    }
}

impl<T: Tensors> Tensors for Box<T> {
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        (**self).visit(visitor);
    }

    fn map(&self, mapper: &mut dyn Mapper) -> Result<Self> {
        (**self).map(mapper).map(Box::new)
    }
}

fn visit_list<'a, T: Tensors>(list: &'a [T], visitor: &mut dyn Visitor<'a>) {
    visitor.constant(Constant::Int(list.len() as i128));
    for (index, item) in list.iter().enumerate() {
        visit_field(Step::Index(index), item, visitor);
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        visit_list(self, visitor);
    }

    fn map(&self, mapper: &mut dyn Mapper) -> Result<Self> {
        let items = self.iter().enumerate();
        items
            .map(|(index, item)| map_field(Step::Index(index), item, mapper))
            .collect()
    }
}

impl<T: Tensors, const N: usize> Tensors for [T; N] {
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        visit_list(self, visitor);
    }

    fn map(&self, mapper: &mut dyn Mapper) -> Result<Self> {
        let items = self.iter().enumerate();
        let items = items
            .map(|(index, item)| map_field(Step::Index(index), item, mapper))
            .collect::<Result<Vec<T>>>()?;
        <[T; N]>::try_from(items)
            .map_err(|_| oxyfuel_base::err!(Internal, "an array changed its length"))
    }
}

impl<T: Tensors> Tensors for BTreeMap<String, T> {
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        visitor.constant(Constant::Int(self.len() as i128));
        for (key, item) in self {
            visitor.constant(Constant::Text(key.into()));
            visit_field(Step::Field(key), item, visitor);
        }
    }

    fn map(&self, mapper: &mut dyn Mapper) -> Result<Self> {
        let items = self.iter();
        items
            .map(|(key, item)| Ok((key.clone(), map_field(Step::Field(key), item, mapper)?)))
            .collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt)*))*) => {$(
        impl<$($name: Tensors),*> Tensors for ($($name,)*) {
            fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
                let _ = &visitor;
                $(visit_field(Step::Index($index), &self.$index, visitor);)*
            }

            fn map(&self, mapper: &mut dyn Mapper) -> Result<Self> {
                let _ = &mapper;
                Ok(($(map_field(Step::Index($index), &self.$index, mapper)?,)*))
            }
        }
    )*};
}
tuples! {
    () (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6) (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7)
}

macro_rules! constants {
    ($($ty:ty: $x:ident => $constant:expr;)*) => {$(
        impl Tensors for $ty {
            fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
                let $x = self;
                visitor.constant($constant);
            }

            fn map(&self, _mapper: &mut dyn Mapper) -> Result<Self> {
                Ok(self.clone())
            }
        }
    )*};
}
constants! {
    bool: x => Constant::Bool(*x);
    i8: x => Constant::Int(i128::from(*x));
    i16: x => Constant::Int(i128::from(*x));
    i32: x => Constant::Int(i128::from(*x));
    i64: x => Constant::Int(i128::from(*x));
    u8: x => Constant::Int(i128::from(*x));
    u16: x => Constant::Int(i128::from(*x));
    u32: x => Constant::Int(i128::from(*x));
    u64: x => Constant::Int(i128::from(*x));
    usize: x => Constant::Int(*x as i128);
    isize: x => Constant::Int(*x as i128);
    f32: x => Constant::Float(f64::from(*x).to_bits());
    f64: x => Constant::Float(x.to_bits());
    String: x => Constant::Text(x.into());
    &'static str: x => Constant::Text((*x).into());
    DType: x => Constant::Int(*x as i128);
}

/// How a kernel moves is plain data.
impl Tensors for Convolution {
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        let Self {
            stride,
            padding,
            dilation,
            groups,
        } = self;
        visit_field(Step::Field("stride"), stride, visitor);
        visit_field(Step::Field("padding"), padding, visitor);
        visit_field(Step::Field("dilation"), dilation, visitor);
        visit_field(Step::Field("groups"), groups, visitor);
    }

    fn map(&self, _mapper: &mut dyn Mapper) -> Result<Self> {
        Ok(self.clone())
    }
}

impl<T> Tensors for std::marker::PhantomData<T> {
    fn visit<'a>(&'a self, _visitor: &mut dyn Visitor<'a>) {}

    fn map(&self, _mapper: &mut dyn Mapper) -> Result<Self> {
        Ok(Self)
    }
}
