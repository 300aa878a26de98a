//! Sizes: numbers where they are known, parameters of the kernel where they are symbolic.
//!
//! A kernel gets every symbolic size it needs as a 64-bit parameter that the host evaluates once for each assignment of the symbols, so that a kernel never
//! computes with sizes what is the same for all of its instances. Symbols that grids and lengths mention are parameters of their own, tied to the symbol.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use oxyfuel_base::{DType, Expr, Ranges, Symbol};
use oxyfuel_graph::Graph;
use oxyfuel_kernel::builder::{IntoIndex, KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, Index, ParamKind, Program};

/// What is known of a graph's symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub ranges: Ranges,
    guesses: BTreeMap<Symbol, i64>,
}

impl Known {
    pub fn of(graph: &Graph) -> Self {
        Self {
            ranges: graph.ranges(),
            guesses: graph.guesses(),
        }
    }

    /// The value of a size where it is known, or what it is likely to be: good for speed, never for meaning.
    pub fn guess(&self, size: &Expr) -> i64 {
        let value = |symbol| Some(self.guesses.get(&symbol).copied().unwrap_or(1));
        size.eval(&value).unwrap_or(i64::MAX)
    }
}

/// What a kernel is given at launch.
#[derive(Clone, Debug)]
pub struct Params {
    pub mems: Vec<Mem>,
    pub sizes: Sizes,
}

/// The sizes of one kernel while it is written.
#[derive(Clone, Debug)]
pub struct Sizes {
    k: KernelBuilder,
    parameters: Rc<RefCell<Parameters>>,
}

#[derive(Debug, Default)]
struct Parameters {
    tiles: BTreeMap<Expr, Tile>,
    /// Expressions without a symbol of their own, in parameter order.
    computed: Vec<Expr>,
}

impl Sizes {
    /// Ties a parameter to every symbol of `extents`.
    pub fn new<'e>(k: &KernelBuilder, extents: impl Iterator<Item = &'e Expr>) -> Self {
        let symbols: BTreeSet<Symbol> = extents.flat_map(Expr::symbols).collect();
        let tie = |symbol: Symbol| {
            let tile = k.symbol(symbol.to_string(), symbol).tile();
            (Expr::symbol(symbol), tile)
        };
        Self {
            k: k.clone(),
            parameters: Rc::new(RefCell::new(Parameters {
                tiles: symbols.into_iter().map(tie).collect(),
                computed: Vec::new(),
            })),
        }
    }

    /// The size as a scalar of the program.
    pub fn tile(&self, size: &Expr) -> Tile {
        if let Some(number) = size.as_const() {
            return self.k.constant(DType::I64, number);
        }
        let mut parameters = self.parameters.borrow_mut();
        if let Some(tile) = parameters.tiles.get(size) {
            return tile.clone();
        }
        let name = format!("size{}", parameters.computed.len());
        let tile = self.k.scalar(name, DType::I64);
        parameters.computed.push(size.clone());
        parameters.tiles.insert(size.clone(), tile.clone());
        tile
    }

    /// The size as a scalar whose known divisor can be seen in the program: where rows begin at multiples of an access's width, it is as wide.
    fn divided(&self, size: &Expr) -> Tile {
        match size.known_divisor(&Ranges::new()) {
            by if by > 1 && size.as_const().is_none() => self.tile(&size.floordiv(by)) * by,
            _ => self.tile(size),
        }
    }

    /// As [`Sizes::index`], of a stride.
    pub fn stride(&self, size: &Expr) -> Index {
        match size.as_const() {
            Some(number) => Index::Const(number),
            None => self.divided(size).into_index(&self.k),
        }
    }

    /// So many strides. What is known is multiplied even where that changes nothing.
    pub fn strides(&self, count: &Tile, stride: &Expr) -> Tile {
        match stride.as_const() {
            Some(number) => count * number,
            None => count * self.divided(stride),
        }
    }

    pub fn index(&self, size: &Expr) -> Index {
        match size.as_const() {
            Some(number) => Index::Const(number),
            None => self.tile(size).into_index(&self.k),
        }
    }

    /// `tile * size`.
    pub fn times(&self, tile: &Tile, size: &Expr) -> Tile {
        match size.as_const() {
            Some(1) => tile.clone(),
            Some(number) => tile * number,
            None => tile * self.tile(size),
        }
    }

    /// `tile + size`.
    pub fn plus(&self, tile: &Tile, size: &Expr) -> Tile {
        match size.as_const() {
            Some(0) => tile.clone(),
            Some(number) => tile + number,
            None => tile + self.tile(size),
        }
    }

    /// `op` of a tile and a size.
    pub fn binary(&self, tile: &Tile, op: BinaryOp, size: &Expr) -> Tile {
        match size.as_const() {
            Some(number) => tile.binary(op, number),
            None => tile.binary(op, self.tile(size)),
        }
    }

    /// `size - tile`.
    pub fn minus(&self, size: &Expr, tile: &Tile) -> Tile {
        self.plus(&(tile * -1), size)
    }

    /// What each number among a program's parameters stands for, in order.
    pub fn of_parameters(&self, program: &Program) -> Vec<Expr> {
        let parameters = self.parameters.borrow();
        let mut computed = parameters.computed.iter();
        let numbers = program.params.iter().filter_map(|param| match param.kind {
            ParamKind::Scalar { symbol, .. } => Some(symbol),
            ParamKind::Buffer(_) | ParamKind::TensorMap(_) => None,
        });
        numbers
            .filter_map(|symbol| match symbol {
                Some(symbol) => Some(Expr::symbol(symbol)),
                None => computed.next().cloned(),
            })
            .collect()
    }
}
