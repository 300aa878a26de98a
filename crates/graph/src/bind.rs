//! Values of symbols, found from the shapes of actual inputs.

use crate::ir::Graph;
use oxyfuel_base::{Code, Error, Expr, Result, Symbol, ensure};
use std::collections::BTreeMap;

/// A value for every symbol of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    values: BTreeMap<Symbol, i64>,
}

impl Bindings {
    pub fn get(&self, symbol: Symbol) -> Option<i64> {
        self.values.get(&symbol).copied()
    }

    pub fn eval(&self, e: &Expr) -> Result<i64> {
        e.eval(&|s| self.get(s))
    }

    pub fn eval_all(&self, exprs: &[Expr]) -> Result<Vec<i64>> {
        exprs.iter().map(|e| self.eval(e)).collect()
    }
}

/// Matches the shapes of actual inputs with those of the graph: a size that is a plain symbol gives it its value, all others must then agree.
pub fn bind(graph: &Graph, shapes: &[&[i64]]) -> Result<Bindings> {
    let (want, got) = (graph.inputs.len(), shapes.len());
    ensure!(
        want == got,
        ArityMismatch,
        "@{} takes {want} inputs, got {got}",
        graph.name
    );
    let mut bindings = Bindings::default();
    for (&v, shape) in graph.inputs.iter().zip(shapes) {
        let ty = graph.ty(v);
        let name = crate::text::value_name(graph, v);
        ensure!(
            ty.rank() == shape.len(),
            RankMismatch,
            "{name} has {} dimensions, got shape {shape:?}",
            ty.rank()
        );
        for (expr, &size) in ty.shape.iter().zip(*shape) {
            if let Some(symbol) = expr.as_symbol() {
                bindings.values.entry(symbol).or_insert(size);
            }
        }
    }
    for s in &graph.symbols {
        let Some(value) = bindings.get(s.symbol) else {
            return Err(Error::new(
                Code::UnboundSymbol,
                format!(
                    "no input of @{} has symbol {} for a size",
                    graph.name, s.symbol
                ),
            ));
        };
        let within = s.min <= value && value <= s.max;
        ensure!(
            within,
            ShapeMismatch,
            "{} must lie between {} and {}, is {value}",
            s.symbol,
            s.min,
            s.max
        );
    }
    for (&v, shape) in graph.inputs.iter().zip(shapes) {
        for (d, (expr, &size)) in graph.ty(v).shape.iter().zip(*shape).enumerate() {
            let want = bindings.eval(expr)?;
            let name = crate::text::value_name(graph, v);
            ensure!(
                want == size,
                ShapeMismatch,
                "dimension {d} of {name} must be {expr} = {want}, is {size}"
            );
        }
    }
    Ok(bindings)
}
