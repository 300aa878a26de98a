//! The pass: transcendental ops go, their expansions come.

use std::collections::{HashMap, HashSet};

use oxyfuel_base::Result;
use oxyfuel_kernel::builder::{KernelBuilder, Tile, rewrite};
use oxyfuel_kernel::{BinaryOp, DType, Inst, Op, Program, ReduceOp, UnaryOp, Val};

use super::emit::Emit;
use super::table::{apply, apply_double, has_expansion};
use super::{double_power, exponential, narrow, power, remainder};

/// Replaces the ops of one operand for which `needs(op, dtype)` holds by their expansions; what targets have themselves ([`has_expansion`] is false)
/// always stays. In a mapped program the new tiles take the layout of the argument.
///
/// f32 and f64 are expanded as they are. f16 and bf16 are converted to f32, and the result is rounded once. `pow` and `rem` of floats are always expanded: no target has them.
pub fn expand(program: Program, needs: &dyn Fn(UnaryOp, DType) -> bool) -> Result<Program> {
    let mut any = false;
    program.walk(|inst| {
        any |= matches!(inst.op, Op::Unary { op, .. } if has_expansion(op))
            || matches!(
                inst.op,
                Op::Binary {
                    op: BinaryOp::Pow | BinaryOp::Rem,
                    ..
                }
            );
    });
    if !any {
        return Ok(program);
    }
    let mut bounds = Bounds::default();
    rewrite(program, &mut |k, inst| {
        bounds.note(inst);
        expand_inst(k, inst, needs, &bounds)
    })
}

/// What is known of values without computing them: a softmax takes exponentials of what is at most zero.
#[derive(Default)]
struct Bounds {
    /// Of largest values, what they are the largest of.
    largest_of: HashMap<Val, Val>,
    at_most_zero: HashSet<Val>,
}

impl Bounds {
    fn note(&mut self, inst: &Inst) {
        let Some(&result) = inst.results.first() else {
            return;
        };
        match inst.op {
            Op::Reduce {
                op: ReduceOp::Max,
                value,
                ..
            } => {
                self.largest_of.insert(result, value);
            }
            Op::Broadcast { value } => {
                if let Some(&of) = self.largest_of.get(&value) {
                    self.largest_of.insert(result, of);
                }
            }
            Op::Binary {
                op: BinaryOp::Sub,
                lhs,
                rhs,
            } if self.largest_of.get(&rhs) == Some(&lhs) => {
                self.at_most_zero.insert(result);
            }
            _ => {}
        }
    }
}

fn expand_inst(
    k: &KernelBuilder,
    inst: &Inst,
    needs: &dyn Fn(UnaryOp, DType) -> bool,
    bounds: &Bounds,
) -> Result<Option<Vec<Val>>> {
    let result = match inst.op {
        Op::Unary {
            op: UnaryOp::Exp,
            value,
        } if needs(UnaryOp::Exp, DType::F32)
            && bounds.at_most_zero.contains(&value)
            && k.tile(value).dtype() == DType::F32 =>
        {
            let argument = k.tile(value);
            let emit = emit_like(k, &argument);
            Some(k.tile(exponential::exp_at_most_zero(&emit, value)))
        }
        Op::Unary { op, value } => expand_unary(k, op, &k.tile(value), needs)?,
        Op::Binary {
            op: BinaryOp::Pow,
            lhs,
            rhs,
        } => expand_binary(k, BinaryOp::Pow, &k.tile(lhs), &k.tile(rhs)),
        Op::Binary {
            op: BinaryOp::Rem,
            lhs,
            rhs,
        } => expand_binary(k, BinaryOp::Rem, &k.tile(lhs), &k.tile(rhs)),
        _ => None,
    };
    Ok(result.map(|tile| vec![tile.val()]))
}

/// Constants of an expansion must lie where the argument lies, not where another tile of its shape does.
fn emit_like<'k>(k: &'k KernelBuilder, argument: &Tile) -> Emit<'k> {
    if let Some(layout) = argument.layout() {
        k.layout_shape(argument.shape(), layout);
    }
    Emit::new(k, argument.shape())
}

fn expand_unary(
    k: &KernelBuilder,
    op: UnaryOp,
    argument: &Tile,
    needs: &dyn Fn(UnaryOp, DType) -> bool,
) -> Result<Option<Tile>> {
    let dtype = argument.dtype();
    if !has_expansion(op) || !needs(op, dtype) {
        return Ok(None);
    }
    let emit = emit_like(k, argument);
    let result = if dtype == DType::F64 {
        apply_double(&emit, op, argument.val())
    } else {
        apply(&emit, op, argument.cast(DType::F32).val())
    };
    Ok(result.map(|value| k.tile(value).cast(dtype)))
}

/// `pow` and `rem`; those of integers are not for here.
fn expand_binary(k: &KernelBuilder, op: BinaryOp, lhs: &Tile, rhs: &Tile) -> Option<Tile> {
    let dtype = lhs.dtype();
    if !dtype.is_float() {
        return None;
    }
    let emit = emit_like(k, lhs);
    let result = match (op, dtype) {
        (BinaryOp::Pow, DType::F64) => double_power::pow(&emit, lhs.val(), rhs.val()),
        (BinaryOp::Pow, _) => {
            let [x, y] = [lhs, rhs].map(|tile| tile.cast(DType::F32).val());
            power::pow(&emit, x, y)
        }
        (_, DType::F64) => remainder::rem_of_doubles(&emit, lhs.val(), rhs.val()),
        (_, _) => {
            let [x, y] = [lhs, rhs].map(|tile| tile.cast(DType::F64).val());
            let rest = remainder::rem_of_singles(&emit, x, y);
            k.tile(rest).cast(DType::F32).val()
        }
    };
    Some(k.tile(result).cast(dtype))
}

/// A cast from or to a float of at most eight bits, which stands as its code in a byte, as arithmetic on that code.
pub fn code_cast(k: &KernelBuilder, value: &Tile, from: DType, to: DType) -> Tile {
    let emit = emit_like(k, value);
    let number = if from.is_narrow_float() {
        let code = value.cast(DType::I32);
        k.tile(narrow::decode(&emit, from, code.val()))
    } else {
        value.cast(DType::F32)
    };
    if to.is_narrow_float() {
        let code = narrow::encode(&emit, to, number.val());
        k.tile(code).cast(DType::U8)
    } else {
        number.cast(to)
    }
}
