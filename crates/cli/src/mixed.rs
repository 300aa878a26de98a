//! A graph of many nodes of many kinds, from a seed: what compile time is measured on.
//!
//! Layers of a model repeat, so equal kernels are found once and a chain of equal parts says little. Here every node draws its op and its operands, so that groups differ; what is drawn follows what
//! models hold: half elementwise work, then products, norms, reductions, views, joins and look-ups. Every value is read, most of them soon, few of them late.

use std::collections::VecDeque;
use std::fmt::Write as _;

use oxyfuel_base::Result;
use oxyfuel_graph::{Graph, parse};

/// Side of the matrices that the graph computes with.
const SIDE: usize = 64;
/// How far back most operands are taken from.
const NEAR: usize = 8;

/// Numbers from a seed (xorshift64*).
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn throw(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }
}

/// The graph while it is written.
struct Pen {
    text: String,
    dice: Dice,
    /// Names of the square matrices so far.
    squares: Vec<String>,
    /// Those that nothing reads yet, the oldest first.
    unread: VecDeque<String>,
    nodes: usize,
}

const SQUARE: &str = "f32[64, 64]";

impl Pen {
    /// An operand: mostly a recent one, and nothing waits for long.
    fn pick(&mut self) -> String {
        if self.unread.len() >= NEAR
            && let Some(oldest) = self.unread.pop_front()
        {
            return oldest;
        }
        let all = self.squares.len();
        let back = if self.dice.throw(8) == 0 {
            self.dice.throw(all)
        } else {
            self.dice.throw(NEAR.min(all))
        };
        let picked = self.squares[all - 1 - back].clone();
        self.unread.retain(|name| *name != picked);
        picked
    }

    /// A node of its own.
    fn node(&mut self, ty: &str, op: &str) -> String {
        let name = format!("%v{}", self.nodes);
        self.nodes += 1;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "  {name}: {ty} = {op}");
        name
    }

    /// The next few nodes, which end in a square matrix.
    fn step(&mut self) {
        let (a, b) = (self.pick(), self.pick());
        let named = |names: &[&'static str], at: usize| names[at % names.len()];
        let kind = self.dice.throw(100);
        let choice = self.dice.throw(64);
        let last = match kind {
            0..=24 => {
                let op = named(
                    &[
                        "relu", "tanh", "sigmoid", "neg", "abs", "sin", "exp2", "sqrt",
                    ],
                    choice,
                );
                self.node(SQUARE, &format!("{op} {a}"))
            }
            25..=49 => {
                let op = named(&["add", "mul", "sub", "maximum"], choice);
                self.node(SQUARE, &format!("{op} {a}, {b}"))
            }
            50..=56 => {
                let condition = self.node("bool[64, 64]", &format!("lt {a}, {b}"));
                let c = self.pick();
                self.node(SQUARE, &format!("where {condition}, {b}, {c}"))
            }
            57..=68 => {
                let op = named(&["sum", "amax", "mean"], choice);
                let dim = choice % 2;
                let (row, dims) = if dim == 1 {
                    ("f32[64, 1]", "1")
                } else {
                    ("f32[1, 64]", "0")
                };
                let row = self.node(row, &format!("{op} {a}, dims=[{dims}], keepdim=true"));
                self.node(SQUARE, &format!("sub {b}, {row}"))
            }
            69..=73 => self.node(SQUARE, &format!("_softmax {a}, dim={}", choice % 2)),
            74..=82 => self.node(SQUARE, &format!("mm {a}, {b}")),
            83..=89 => {
                let turned = self.node(SQUARE, &format!("permute {a}, dims=[1, 0]"));
                self.node(SQUARE, &format!("add {turned}, {b}"))
            }
            90..=93 => {
                let cut = 8 * (1 + choice % 7);
                let left = self.node(
                    &format!("f32[64, {cut}]"),
                    &format!("slice {a}, dim=1, start=0, end={cut}, step=1"),
                );
                let right = self.node(
                    &format!("f32[64, {}]", SIDE - cut),
                    &format!("slice {b}, dim=1, start={cut}, end={SIDE}, step=1"),
                );
                self.node(SQUARE, &format!("cat {left}, {right}, dim=1"))
            }
            94..=96 => {
                let flat = self.node("f32[32, 128]", &format!("view {a}"));
                let flat = self.node("f32[32, 128]", &format!("relu {flat}"));
                self.node(SQUARE, &format!("view {flat}"))
            }
            _ => self.node(SQUARE, &format!("index_select {a}, %rows, dim=0")),
        };
        self.squares.push(last.clone());
        self.unread.push_back(last);
    }
}

/// A graph of at least so many nodes, a few more at most.
pub fn mixed(nodes: usize, seed: u64) -> Result<Graph> {
    let mut pen = Pen {
        text: format!("graph @mixed(%x: {SQUARE} cpu, %y: {SQUARE} cpu, %rows: i64[64] cpu) {{\n"),
        dice: Dice(seed | 1),
        squares: vec!["%x".to_owned(), "%y".to_owned()],
        unread: VecDeque::new(),
        nodes: 0,
    };
    while pen.nodes < nodes {
        pen.step();
    }
    // Nothing is dead.
    let results: Vec<String> = pen.unread.into_iter().collect();
    let _ = writeln!(pen.text, "  return {}\n}}", results.join(", "));
    parse("mixed", &pen.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_valid_graph_of_the_asked_size() {
        let graph = mixed(300, 1).unwrap();
        oxyfuel_graph::verify(&graph).unwrap();
        assert!((300..304).contains(&graph.nodes.len()));
        assert_eq!(graph.to_string(), mixed(300, 1).unwrap().to_string());
        assert_ne!(graph.to_string(), mixed(300, 2).unwrap().to_string());
    }
}
