//! Sizes that change: which of them are symbols, and which calls a variant with symbols serves.
//!
//! A dim is a symbol once two sizes of it were seen. Dims that were equal in every call so far share a symbol, as `x + y` needs it of them; the first call that tells them apart leads to a variant
//! that does so too. A symbol is at least 2: a size of 1 broadcasts and a size of 0 has no elements, so these have variants of their own.
//!
//! **Layouts.** From the innermost dim in memory outwards, a dim either begins where the one further in ends, so that the two may be seen as one, or it lies further apart, as in a slice of a larger
//! tensor, or all its elements are the same one. Which of these holds is the same in all calls of a variant, since views and copies depend on it. Where a dim lies apart, its stride is a number,
//! or a symbol of its own once two were seen.

use crate::core::Request;
use crate::guard::{ALIGNED, Guard, alignment};
use crate::machine::Device;
use crate::trace::{Borders, short};
use crate::variant::Variant;
use oxyfuel_base::{DType, Expr, Symbol};
use oxyfuel_graph::{Layout, SymbolInfo, TensorType, Value};
use oxyfuel_runtime::device::DeviceId;
use oxyfuel_runtime::tensor as rt;
use std::collections::BTreeMap;

/// The least size that a symbol stands for, where it was not declared.
const LEAST: i64 = 2;

/// Arguments of which some sizes are symbols.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    inputs: Vec<Shape>,
    symbols: BTreeMap<Symbol, Unknown>,
}

/// What a symbol stands for.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    at: At,
    min: i64,
    max: i64,
    /// What it was when the pattern was made.
    hint: i64,
}

/// A number of an argument: which argument, and which of its dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Extent(usize, usize),
    Stride(usize, usize),
}

impl At {
    fn of(self, inputs: &[&rt::Tensor]) -> Option<i64> {
        match self {
            Self::Extent(input, dim) => inputs.get(input)?.shape().get(dim).copied(),
            Self::Stride(input, dim) => inputs.get(input)?.strides().get(dim).copied(),
        }
    }

    /// For people: `dim 1 of argument 0`.
    pub fn text(self, names: &[String]) -> String {
        let name = |input: usize| names.get(input).map_or("", String::as_str);
        match self {
            Self::Extent(input, dim) => format!("dim {dim} of {}", name(input)),
            Self::Stride(input, dim) => format!("the stride of dim {dim} of {}", name(input)),
        }
    }
}

#[derive(Clone, Debug)]
struct Shape {
    dtype: DType,
    device: DeviceId,
    align: u32,
    dims: Vec<Number>,
    /// `None` where a dim begins where the one further in ends.
    strides: Vec<Option<Number>>,
    /// The dims from the outermost to the innermost in memory.
    order: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Known(i64),
    Symbol(Symbol),
}

impl Number {
    fn expr(self) -> Expr {
        match self {
            Self::Known(number) => Expr::from(number),
            Self::Symbol(symbol) => Expr::from(symbol),
        }
    }
}

/// How a dim lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// It begins where the dim further in ends, or does not move at all.
    Joined,
    /// Further apart than that.
    Apart,
    /// All its elements are one.
    Repeated,
}

/// How a tensor lies in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lies {
    order: Vec<usize>,
    /// By dim.
    dims: Vec<Lie>,
}

/// The dims that move, from the innermost in memory to the outermost: dim, stride, and how far those further in reach.
fn outwards(
    order: &[usize],
    shape: &[i64],
    strides: &[i64],
) -> impl Iterator<Item = (usize, i64, i64)> {
    let mut reach = 1i64;
    let moving = order.iter().rev().filter(|&&dim| shape[dim] != 1);
    moving.map(move |&dim| {
        let inside = reach;
        reach = strides[dim].saturating_mul(shape[dim]);
        (dim, strides[dim], inside)
    })
}

impl Lies {
    /// `None` where elements overlap in another way than by being repeated.
    fn of(shape: &[i64], strides: &[i64]) -> Option<Self> {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        let moving = order.iter().filter(|&&dim| shape[dim] != 1);
        if !moving.is_sorted_by(|&&a, &&b| strides[a] >= strides[b]) {
            // Dims of one element may lie anywhere: the outside.
            order.sort_by_key(|&dim| match shape[dim] {
                1 => i64::MIN,
                _ => -strides[dim],
            });
        }
        let mut dims = vec![Lie::Joined; shape.len()];
        if !shape.contains(&0) {
            for (dim, stride, reach) in outwards(&order, shape, strides) {
                dims[dim] = match stride {
                    _ if stride == reach => Lie::Joined,
                    0 => Lie::Repeated,
                    _ if stride > reach => Lie::Apart,
                    _ => return None,
                };
            }
        }
        Some(Self { order, dims })
    }
}

/// Whether calls of both kinds may be served by one variant with symbols.
fn alike(guard: &Guard, tensor: &rt::Tensor, lies: &Lies) -> bool {
    guard.dtype == tensor.dtype()
        && guard.device == tensor.device()
        && guard.shape.len() == tensor.rank()
        && Lies::of(&guard.shape, &guard.strides).is_some_and(|known| known == *lies)
}

/// The pattern for a call and for all those of its like that came before, if their sizes differ in something that may be a symbol.
pub(crate) fn generalise(inputs: &[&rt::Tensor], before: &[&Variant]) -> Option<Pattern> {
    let lies = inputs
        .iter()
        .map(|input| Lies::of(input.shape(), input.strides()))
        .collect::<Option<Vec<_>>>()?;
    let family: Vec<&Variant> = before
        .iter()
        .copied()
        .filter(|variant| {
            let mut guards = variant.guards.iter().zip(inputs).zip(&lies);
            variant.guards.len() == inputs.len()
                && guards.all(|((guard, input), lies)| alike(guard, input, lies))
        })
        .collect();
    let mut known: BTreeMap<Vec<i64>, Symbol> = BTreeMap::new();
    let mut symbols = BTreeMap::new();
    let mut shapes = Vec::with_capacity(inputs.len());
    for (i, (input, lies)) in inputs.iter().zip(lies).enumerate() {
        let mut dims = Vec::with_capacity(input.rank());
        for (d, &size) in input.shape().iter().enumerate() {
            let at = At::Extent(i, d);
            let mut sizes: Vec<i64> = family.iter().map(|v| v.guards[i].shape[d]).collect();
            if is_number(&family, at, &sizes, size) {
                dims.push(Number::Known(size));
                continue;
            }
            if size < LEAST {
                return None;
            }
            sizes.push(size);
            let next = Symbol(symbols.len() as u32);
            let symbol = *known.entry(sizes).or_insert(next);
            symbols.entry(symbol).or_insert(Unknown {
                at,
                min: LEAST,
                max: i64::MAX,
                hint: size,
            });
            dims.push(Number::Symbol(symbol));
        }
        let mut strides = Vec::with_capacity(input.rank());
        for (d, (&stride, lie)) in input.strides().iter().zip(&lies.dims).enumerate() {
            let at = At::Stride(i, d);
            let seen: Vec<i64> = family.iter().map(|v| v.guards[i].strides[d]).collect();
            strides.push(match lie {
                Lie::Joined => None,
                Lie::Repeated => Some(Number::Known(0)),
                Lie::Apart if is_number(&family, at, &seen, stride) => Some(Number::Known(stride)),
                Lie::Apart => {
                    let symbol = Symbol(symbols.len() as u32);
                    let unknown = Unknown {
                        at,
                        min: 1,
                        max: i64::MAX,
                        hint: stride,
                    };
                    symbols.insert(symbol, unknown);
                    Some(Number::Symbol(symbol))
                }
            });
        }
        let aligned = family
            .iter()
            .all(|v| u64::from(v.guards[i].align) == ALIGNED);
        let align = match aligned {
            true => alignment(input),
            false => input.dtype().size() as u32,
        };
        shapes.push(Shape {
            dtype: input.dtype(),
            device: input.device(),
            align,
            dims,
            strides,
            order: lies.order,
        });
    }
    let pattern = Pattern {
        inputs: shapes,
        symbols,
    };
    (!pattern.symbols.is_empty()).then_some(pattern)
}

/// Whether a number of an argument is one for all that is known: it never changed, or the function asked for it.
fn is_number(family: &[&Variant], at: At, seen: &[i64], now: i64) -> bool {
    let asked = |v: &&Variant| v.fixed.iter().any(|(known, _)| *known == at);
    seen.iter().all(|&old| old == now) || family.iter().any(asked)
}

/// Dims whose sizes are declared to be one symbol, and the sizes that it stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range<'a> {
    pub dims: &'a [(usize, usize)],
    pub min: i64,
    pub max: i64,
}

impl Pattern {
    /// With a symbol for each range of declared sizes; all else is as it is in this call. `None` where an argument's elements overlap.
    pub fn declared(inputs: &[&rt::Tensor], ranges: &[Range<'_>]) -> Option<Self> {
        let symbol = |at: (usize, usize)| ranges.iter().position(|range| range.dims.contains(&at));
        let mut shapes = Vec::with_capacity(inputs.len());
        for (i, input) in inputs.iter().enumerate() {
            let lies = Lies::of(input.shape(), input.strides())?;
            let dims = input.shape().iter().enumerate().map(|(d, &size)| {
                symbol((i, d)).map_or(Number::Known(size), |n| Number::Symbol(Symbol(n as u32)))
            });
            let strides = input.strides().iter().zip(&lies.dims);
            shapes.push(Shape {
                dtype: input.dtype(),
                device: input.device(),
                align: input.dtype().size() as u32,
                dims: dims.collect(),
                strides: strides
                    .map(|(&stride, lie)| match lie {
                        Lie::Joined => None,
                        Lie::Apart | Lie::Repeated => Some(Number::Known(stride)),
                    })
                    .collect(),
                order: lies.order,
            });
        }
        let mut symbols = BTreeMap::new();
        for (n, range) in ranges.iter().enumerate() {
            let &(input, dim) = range.dims.first()?;
            let at = At::Extent(input, dim);
            let unknown = Unknown {
                at,
                min: range.min,
                max: range.max,
                hint: at.of(inputs)?,
            };
            symbols.insert(Symbol(n as u32), unknown);
        }
        Some(Self {
            inputs: shapes,
            symbols,
        })
    }

    /// The same for sizes from 2 on, where it is for a size of 1 too and the call has none; some operations treat that one in another way.
    pub fn above_one(&self, inputs: &[&rt::Tensor]) -> Option<Self> {
        let mut out = self.clone();
        let mut changed = false;
        for unknown in out.symbols.values_mut() {
            let is_size = matches!(unknown.at, At::Extent(..)) && unknown.min < LEAST;
            if is_size && unknown.max >= LEAST && unknown.at.of(inputs)? >= LEAST {
                unknown.min = LEAST;
                changed = true;
            }
        }
        changed.then_some(out)
    }

    /// Whether a size that is a symbol is 1 in a call.
    pub fn has_one(&self, inputs: &[&rt::Tensor]) -> bool {
        let mut symbols = self.symbols.values();
        symbols
            .any(|unknown| matches!(unknown.at, At::Extent(..)) && unknown.at.of(inputs) == Some(1))
    }

    /// Whether a call is one of those that the pattern stands for.
    pub fn admits(&self, inputs: &[&rt::Tensor]) -> bool {
        let mut shapes = self.inputs.iter().zip(inputs);
        self.inputs.len() == inputs.len()
            && shapes.all(|(shape, input)| {
                shape.dtype == input.dtype()
                    && shape.device == input.device()
                    && shape.dims.len() == input.rank()
                    && input.address().is_multiple_of(u64::from(shape.align))
                    && shape
                        .dims
                        .iter()
                        .zip(input.shape())
                        .all(|(&dim, &size)| self.is(dim, size, inputs))
                    && self.admits_strides(shape, input, inputs)
            })
    }

    fn admits_strides(&self, shape: &Shape, input: &rt::Tensor, inputs: &[&rt::Tensor]) -> bool {
        let mut dims = outwards(&shape.order, input.shape(), input.strides());
        input.is_empty()
            || dims.all(|(dim, stride, reach)| match shape.strides[dim] {
                None => stride == reach,
                Some(number) => (stride == 0 || stride > reach) && self.is(number, stride, inputs),
            })
    }

    fn is(&self, number: Number, value: i64, inputs: &[&rt::Tensor]) -> bool {
        match number {
            Number::Known(known) => known == value,
            Number::Symbol(symbol) => self.symbols.get(&symbol).is_some_and(|unknown| {
                (unknown.min..=unknown.max).contains(&value) && unknown.at.of(inputs) == Some(value)
            }),
        }
    }

    /// What a symbol is in a call.
    pub fn size(&self, symbol: Symbol, inputs: &[&rt::Tensor]) -> Option<i64> {
        self.symbols.get(&symbol)?.at.of(inputs)
    }

    /// What a symbol was when the pattern was made.
    pub fn hint(&self, symbol: Symbol) -> Option<i64> {
        Some(self.symbols.get(&symbol)?.hint)
    }

    /// Whether a dim of an argument is a symbol.
    pub fn has(&self, input: usize, dim: usize) -> bool {
        let number = self.inputs.get(input).and_then(|shape| shape.dims.get(dim));
        matches!(number, Some(Number::Symbol(_)))
    }

    /// The arguments as inputs of a graph.
    pub fn borders(&self, request: &Request<'_>) -> Borders {
        let names = request.source.names(request.inputs.len());
        let value = |(shape, name): (&Shape, &String)| {
            let dims: Vec<Expr> = shape.dims.iter().map(|dim| dim.expr()).collect();
            let mut strides = vec![Expr::ONE; dims.len()];
            let mut reach = Expr::ONE;
            for &dim in shape.order.iter().rev() {
                let stride = shape.strides[dim].map_or(reach, Number::expr);
                reach = stride.clone() * dims[dim].clone();
                strides[dim] = stride;
            }
            Value {
                ty: TensorType::new(shape.dtype, dims, Device::from(shape.device).into()),
                layout: Layout::Required(strides),
                align: shape.align,
                given: false,
                frozen: false,
                name: Some(short(name)),
            }
        };
        let info = |(&symbol, unknown): (&Symbol, &Unknown)| SymbolInfo {
            symbol,
            min: unknown.min,
            max: unknown.max,
            name: Some(unknown.at.text(&names)),
            hint: Some(unknown.hint),
        };
        let size = |(&symbol, unknown): (&Symbol, &Unknown)| {
            Some((symbol, unknown.at.of(request.inputs)?))
        };
        Borders {
            symbols: self.symbols.iter().map(info).collect(),
            sizes: self.symbols.iter().filter_map(size).collect(),
            values: self.inputs.iter().zip(&names).map(value).collect(),
            all_results: false,
        }
    }

    /// The shape of an argument, for people: `[s0, 8]`.
    pub fn shape_text(&self, input: usize) -> String {
        let dims = self.inputs.get(input).map_or(&[][..], |shape| &shape.dims);
        let text = dims.iter().map(|dim| dim.expr().to_string());
        format!("[{}]", text.collect::<Vec<_>>().join(", "))
    }

    /// The numbers that are these symbols, and where they were asked for.
    pub fn numbers_of(&self, places: &BTreeMap<Symbol, String>) -> Vec<(At, String)> {
        let mut out = Vec::new();
        let place = |number: &Number| match number {
            Number::Symbol(symbol) => places.get(symbol).cloned(),
            Number::Known(_) => None,
        };
        for (i, shape) in self.inputs.iter().enumerate() {
            for (d, dim) in shape.dims.iter().enumerate() {
                out.extend(place(dim).map(|place| (At::Extent(i, d), place)));
            }
            for (d, stride) in shape.strides.iter().enumerate() {
                let place = stride.as_ref().and_then(place);
                out.extend(place.map(|place| (At::Stride(i, d), place)));
            }
        }
        out
    }

    /// The pattern with these symbols as the numbers that they are in a call; `None` where no symbol is left.
    pub fn without(
        mut self,
        places: &BTreeMap<Symbol, String>,
        inputs: &[&rt::Tensor],
    ) -> Option<Self> {
        for (shape, input) in self.inputs.iter_mut().zip(inputs) {
            let dims = shape.dims.iter_mut().zip(input.shape());
            let strides = shape.strides.iter_mut().zip(input.strides());
            let strides = strides.filter_map(|(stride, now)| Some((stride.as_mut()?, now)));
            for (number, &now) in dims.chain(strides) {
                if let Number::Symbol(symbol) = number
                    && places.contains_key(symbol)
                {
                    *number = Number::Known(now);
                }
            }
        }
        self.symbols
            .retain(|symbol, _| !places.contains_key(symbol));
        (!self.symbols.is_empty()).then_some(self)
    }
}
