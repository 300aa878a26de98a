//! Sizes that change: which of them are symbols, and which calls a variant with symbols serves.
//!
//! A dim is a symbol once two sizes of it were seen. Dims that were equal in every call so far share a symbol, as `x + y` needs it of them; the first call that tells them apart leads to a variant
//! that does so too. A symbol is at least 2: a size of 1 broadcasts and a size of 0 has no elements, so these have variants of their own.

use crate::core::{Request, Variant};
use crate::guard::{ALIGNED, Guard, alignment};
use crate::machine::Device;
use crate::trace::{Borders, short};
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
    /// Where the size of each symbol is found.
    symbols: BTreeMap<Symbol, (usize, usize)>,
    /// The least size that a symbol stands for.
    least: i64,
}

#[derive(Clone, Debug)]
struct Shape {
    dtype: DType,
    device: DeviceId,
    align: u32,
    dims: Vec<Dim>,
    /// The dims from the outermost to the innermost in memory.
    order: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dim {
    Known(i64),
    Symbol(Symbol),
}

/// The order of dims in which a tensor is dense, if there is one.
fn dense_order(shape: &[i64], strides: &[i64]) -> Option<Vec<usize>> {
    let natural: Vec<usize> = (0..shape.len()).collect();
    if is_dense(&natural, shape, strides) {
        return Some(natural);
    }
    let mut order = natural;
    // Dims of one element may lie anywhere: the outside.
    order.sort_by_key(|&dim| match shape[dim] {
        1 => i64::MIN,
        _ => -strides[dim],
    });
    is_dense(&order, shape, strides).then_some(order)
}

fn is_dense(order: &[usize], shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1i64;
    order.iter().rev().all(|&dim| {
        let fits = shape[dim] == 1 || strides[dim] == expected;
        expected = expected.saturating_mul(shape[dim]);
        fits
    })
}

/// Whether calls of both kinds may be served by one variant with symbols.
fn alike(guard: &Guard, tensor: &rt::Tensor, order: &[usize]) -> bool {
    guard.dtype == tensor.dtype()
        && guard.device == tensor.device()
        && guard.shape.len() == tensor.rank()
        && dense_order(&guard.shape, &guard.strides).is_some_and(|known| known == order)
}

/// The pattern for a call and for all those of its like that came before, if their sizes differ in something that may be a symbol.
pub(crate) fn generalise(inputs: &[&rt::Tensor], before: &[&Variant]) -> Option<Pattern> {
    let orders = inputs
        .iter()
        .map(|input| dense_order(input.shape(), input.strides()))
        .collect::<Option<Vec<_>>>()?;
    let family: Vec<&&Variant> = before
        .iter()
        .filter(|variant| {
            let mut guards = variant.guards.iter().zip(inputs).zip(&orders);
            variant.guards.len() == inputs.len()
                && guards.all(|((guard, input), order)| alike(guard, input, order))
        })
        .collect();
    let mut known: BTreeMap<Vec<i64>, Symbol> = BTreeMap::new();
    let mut symbols = BTreeMap::new();
    let mut shapes = Vec::with_capacity(inputs.len());
    for (i, (input, order)) in inputs.iter().zip(orders).enumerate() {
        let mut dims = Vec::with_capacity(input.rank());
        for (d, &size) in input.shape().iter().enumerate() {
            let seen: Vec<i64> = family.iter().map(|v| v.guards[i].shape[d]).collect();
            let is_fixed = family.iter().any(|v| {
                v.fixed
                    .iter()
                    .any(|(input, dim, _)| (*input, *dim) == (i, d))
            });
            if is_fixed || seen.iter().all(|&old| old == size) {
                dims.push(Dim::Known(size));
                continue;
            }
            if size < LEAST {
                return None;
            }
            let mut sizes = seen;
            sizes.push(size);
            let next = Symbol(known.len() as u32);
            let symbol = *known.entry(sizes).or_insert(next);
            symbols.entry(symbol).or_insert((i, d));
            dims.push(Dim::Symbol(symbol));
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
            order,
        });
    }
    let pattern = Pattern {
        inputs: shapes,
        symbols,
        least: LEAST,
    };
    (!pattern.symbols.is_empty()).then_some(pattern)
}

impl Pattern {
    /// With a symbol for each list of dims: input and dim.
    pub fn declared(inputs: &[&rt::Tensor], lists: &[&[(usize, usize)]]) -> Self {
        let symbol = |at: (usize, usize)| lists.iter().position(|dims| dims.contains(&at));
        let shapes = inputs.iter().enumerate().map(|(i, input)| {
            let dims = input.shape().iter().enumerate().map(|(d, &size)| {
                symbol((i, d)).map_or(Dim::Known(size), |n| Dim::Symbol(Symbol(n as u32)))
            });
            Shape {
                dtype: input.dtype(),
                device: input.device(),
                align: input.dtype().size() as u32,
                dims: dims.collect(),
                order: (0..input.rank()).collect(),
            }
        });
        let first = lists.iter().enumerate().filter_map(|(n, dims)| {
            let at = dims.first()?;
            Some((Symbol(n as u32), *at))
        });
        Self {
            inputs: shapes.collect(),
            symbols: first.collect(),
            least: 1,
        }
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
                        .all(|(dim, &size)| match dim {
                            Dim::Known(known) => *known == size,
                            Dim::Symbol(symbol) => {
                                size >= self.least && self.size(*symbol, inputs) == Some(size)
                            }
                        })
                    && is_dense(&shape.order, input.shape(), input.strides())
            })
    }

    /// What a symbol is in a call.
    pub fn size(&self, symbol: Symbol, inputs: &[&rt::Tensor]) -> Option<i64> {
        let &(input, dim) = self.symbols.get(&symbol)?;
        inputs.get(input)?.shape().get(dim).copied()
    }

    /// The arguments as inputs of a graph.
    pub fn borders(&self, request: &Request<'_>) -> Borders {
        let names = request.source.names(request.inputs.len());
        let value = |(shape, name): (&Shape, &String)| {
            let dims: Vec<Expr> = shape
                .dims
                .iter()
                .map(|dim| match dim {
                    Dim::Known(size) => Expr::from(*size),
                    Dim::Symbol(symbol) => Expr::from(*symbol),
                })
                .collect();
            let mut strides = vec![Expr::ONE; dims.len()];
            let mut stride = Expr::ONE;
            for &dim in shape.order.iter().rev() {
                strides[dim] = stride.clone();
                stride *= dims[dim].clone();
            }
            Value {
                ty: TensorType::new(shape.dtype, dims, Device::from(shape.device).into()),
                layout: Layout::Required(strides),
                align: shape.align,
                name: Some(short(name)),
            }
        };
        let info = |(&symbol, &(input, dim)): (&Symbol, &(usize, usize))| SymbolInfo {
            symbol,
            min: self.least,
            max: i64::MAX,
            name: names.get(input).map(|name| format!("dim {dim} of {name}")),
            hint: self.size(symbol, request.inputs),
        };
        Borders {
            symbols: self.symbols.iter().map(info).collect(),
            values: self.inputs.iter().zip(&names).map(value).collect(),
            all_results: false,
        }
    }

    /// The shape of an argument, for people: `[s0, 8]`.
    pub fn shape_text(&self, input: usize) -> String {
        let dims = self.inputs.get(input).map_or(&[][..], |shape| &shape.dims);
        let text = dims.iter().map(|dim| match dim {
            Dim::Known(size) => size.to_string(),
            Dim::Symbol(symbol) => symbol.to_string(),
        });
        format!("[{}]", text.collect::<Vec<_>>().join(", "))
    }

    /// The dims that are these symbols: input, dim and where they were asked for.
    pub fn dims_of(&self, places: &BTreeMap<Symbol, String>) -> Vec<(usize, usize, String)> {
        let mut out = Vec::new();
        for (i, shape) in self.inputs.iter().enumerate() {
            for (d, dim) in shape.dims.iter().enumerate() {
                if let Dim::Symbol(symbol) = dim
                    && let Some(place) = places.get(symbol)
                {
                    out.push((i, d, place.clone()));
                }
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
            for (dim, &size) in shape.dims.iter_mut().zip(input.shape()) {
                if let Dim::Symbol(symbol) = dim
                    && places.contains_key(symbol)
                {
                    *dim = Dim::Known(size);
                }
            }
        }
        self.symbols
            .retain(|symbol, _| !places.contains_key(symbol));
        (!self.symbols.is_empty()).then_some(self)
    }
}
