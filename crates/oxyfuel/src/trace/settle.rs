//! Sizes that become numbers on the way: a function that is cut cannot begin again, so a symbol that it asks for after a cut is the number of this call from there on.
//!
//! The graph so far is told the number, and so is everything that is known of memory; what was noted with the symbol keeps its meaning in this call.

use super::Open;
use super::memory::Memory;
use crate::call::origin;
use oxyfuel_base::{Error, Expr, Result, Symbol, err};
use oxyfuel_graph::{AttrValue, Graph, Layout, Op, Rebuild, TensorType, Value};
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

/// What a symbol is.
type Size<'a> = &'a dyn Fn(Symbol) -> Option<i64>;

impl Open {
    /// Symbols are wanted as numbers.
    pub(super) fn fix(&mut self, symbols: &[Symbol], caller: &Location<'_>) {
        self.fix_at(symbols, caller, "");
    }

    fn fix_at(&mut self, symbols: &[Symbol], caller: &Location<'_>, why: &str) {
        let place = || format!("{}:{}{why}", caller.file(), caller.line());
        let known = |symbol: &&Symbol| self.sizes.contains_key(*symbol);
        let symbols: Vec<Symbol> = symbols.iter().filter(known).copied().collect();
        if symbols.is_empty() {
            return;
        }
        if self.cuts.is_empty() {
            for symbol in symbols {
                self.fixed.entry(symbol).or_insert_with(place);
            }
            return;
        }
        let made = self.settle(&symbols);
        self.builder.set_origin(Some(origin(caller)));
        match made {
            Ok(()) => self
                .settled
                .extend(symbols.into_iter().map(|symbol| (symbol, place()))),
            Err(error) => self.broken = Some(error),
        }
    }

    /// Makes numbers of all symbols, where that may help an operation that failed with them; whether it is to be tried again.
    pub(super) fn settle_all(&mut self, caller: &Location<'_>, error: &Error) -> bool {
        if self.sizes.is_empty() || self.compilers.is_none() {
            return false;
        }
        let symbols: Vec<Symbol> = self.sizes.keys().copied().collect();
        self.fix_at(&symbols, caller, &format!(" ({})", error.message));
        self.sizes.is_empty()
    }

    fn settle(&mut self, symbols: &[Symbol]) -> Result<()> {
        let sizes: BTreeMap<Symbol, i64> = symbols
            .iter()
            .filter_map(|symbol| self.sizes.remove_entry(symbol))
            .collect();
        self.symbols
            .retain(|info| !sizes.contains_key(&info.symbol));
        let size = |symbol: Symbol| sizes.get(&symbol).copied();
        let graph = graph(self.builder.graph(), &size)?;
        let mut rebuild = Rebuild::new(&graph);
        for node in graph.nodes.ids() {
            rebuild.copy(node)?;
        }
        self.builder = rebuild.builder;
        self.memory.settle(&size);
        Ok(())
    }
}

impl Memory {
    fn settle(&mut self, size: Size<'_>) {
        for base in &mut self.bases {
            if let Some(origin) = &mut base.origin {
                value(&mut origin.border, size);
            }
            if let Some(kept) = &mut base.kept {
                value(kept, size);
            }
        }
        for input in &mut self.inputs {
            value(&mut input.border, size);
        }
        for known in &mut self.tensors {
            let views = &known.place.views;
            if !views.is_empty() {
                let views = views.iter().map(|op| view(op, size)).collect();
                Arc::make_mut(&mut known.place).views = views;
            }
        }
    }
}

fn number(e: &mut Expr, size: Size<'_>) {
    if e.as_const().is_none() {
        *e = e.substitute(&|symbol| size(symbol).map(Expr::from));
    }
}

fn value(value: &mut Value, size: Size<'_>) {
    value.ty.shape.iter_mut().for_each(|e| number(e, size));
    match &mut value.layout {
        Layout::Any => {}
        Layout::Required(strides) | Layout::Chosen(strides) => {
            strides.iter_mut().for_each(|e| number(e, size));
        }
    }
}

/// A view whose sizes are numbers.
fn view(op: &Op, size: Size<'_>) -> Op {
    let mut op = op.clone();
    if let Op::View { shape } | Op::Expand { shape } = &mut op {
        shape.iter_mut().for_each(|e| number(e, size));
    }
    if let Op::Slice { start, end, .. } = &mut op {
        number(start, size);
        number(end, size);
    }
    op
}

/// A graph whose symbols are numbers, where `size` tells them.
pub(super) fn graph(graph: &Graph, size: Size<'_>) -> Result<Graph> {
    let mut out = graph.clone();
    out.symbols.retain(|info| size(info.symbol).is_none());
    for known in out.values.values_mut() {
        value(known, size);
    }
    let Graph { values, nodes, .. } = &mut out;
    for node in nodes.values_mut() {
        let mut attrs = node.op.attrs();
        for attr in &mut attrs {
            if let AttrValue::Expr(e) = attr {
                number(e, size);
            }
        }
        let result: &TensorType = &values[node.out()].ty;
        let op = Op::from_row(node.op.info(), &attrs, result);
        node.op = op.ok_or_else(|| err!(Internal, "{} is not of its row", node.op.name()))?;
    }
    Ok(out)
}
