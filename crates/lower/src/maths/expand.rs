//! The pass: transcendental ops go, their expansions come.

use std::collections::{HashMap, HashSet};

use oxyfuel_base::{Id, Result};
use oxyfuel_kernel::builder::{KernelBuilder, Tile, rewrite};
use oxyfuel_kernel::{BinaryOp, DType, Inst, Op, Program, ReduceOp, Scalar, Type, UnaryOp, Val};

use super::emit::Emit;
use super::rounded::Exact;
use super::table::{apply, apply_double, has_expansion};
use super::{double_power, exponential, gate, narrow, near, power, powers, remainder, roots};

/// Replaces the ops of one operand for which `needs(op, dtype)` holds by their expansions; what targets have themselves ([`has_expansion`] is false)
/// always stays. In a mapped program the new tiles take the layout of the argument.
///
/// f32 and f64 are expanded as they are. f16 and bf16 are converted to f32, and the result is rounded once. `pow` and `rem` of floats are always expanded: no target has them.
pub fn expand(program: Program, needs: &dyn Fn(UnaryOp, DType) -> bool) -> Result<Program> {
    expand_on(program, needs, false)
}

/// As [`expand`], for a machine that may have powers of two, reciprocals and reciprocal roots of its own, good to 2 ulp: they are used where results lose nothing by it.
pub fn expand_on(
    program: Program,
    needs: &dyn Fn(UnaryOp, DType) -> bool,
    own_functions: bool,
) -> Result<Program> {
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
    let own = own_functions.then(|| Own {
        gates: Gates::of(&program),
        exact: Exact::of(&program),
    });
    let mut bounds = Bounds::default();
    rewrite(program, &mut |k, inst| {
        let made = own.as_ref().and_then(|own| own.replace(k, inst, needs));
        if let Some(made) = made {
            return Ok(Some(vec![made]));
        }
        bounds.note(k, inst);
        expand_inst(k, inst, needs, &bounds, own_functions)
    })
}

/// What a machine with functions of its own computes by them.
struct Own {
    gates: Gates,
    exact: Exact,
}

impl Own {
    /// What stands for an instruction, if it is one of these.
    fn replace(
        &self,
        k: &KernelBuilder,
        inst: &Inst,
        needs: &dyn Fn(UnaryOp, DType) -> bool,
    ) -> Option<Val> {
        let is_exact = self.exact.contains(inst);
        if let Some(gate) = self.gates.replace(k, inst, is_exact) {
            return Some(gate);
        }
        let Op::Unary { op, value } = inst.op else {
            return None;
        };
        let argument = k.tile(value);
        let dtype = argument.dtype();
        let is_narrow = matches!(dtype, DType::BF16 | DType::F16);
        if !(is_narrow || dtype == DType::F32) || !needs(op, dtype) {
            return None;
        }
        let emit = emit_like(k, &argument).with_own_functions(true);
        let wide = argument.cast(DType::F32).val();
        let result = own_function(&emit, op, is_narrow || !is_exact, wide)?;
        Some(k.tile(result).cast(dtype).val())
    }
}

/// A function of f32 by the machine's own ones, whose result is rounded to 16 bits or not; `None` where they are of no use.
fn own_function(a: &Emit<'_>, op: UnaryOp, is_rounded: bool, x: Val) -> Option<Val> {
    match op {
        UnaryOp::Exp if is_rounded => Some(near::exp(a, x)),
        UnaryOp::Sigmoid if is_rounded => Some(near::sigmoid(a, x)),
        UnaryOp::Sigmoid => Some(powers::sigmoid(a, x)),
        UnaryOp::Tanh if is_rounded => Some(near::tanh(a, x)),
        UnaryOp::Tanh => Some(powers::tanh(a, x)),
        UnaryOp::Rsqrt => Some(roots::rsqrt_of_estimate(a, x)),
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Not
        | UnaryOp::Sqrt
        | UnaryOp::Recip
        | UnaryOp::NearRecip
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Trunc
        | UnaryOp::Round
        | UnaryOp::Exp
        | UnaryOp::Exp2
        | UnaryOp::NearExp2
        | UnaryOp::Expm1
        | UnaryOp::Log
        | UnaryOp::Log2
        | UnaryOp::Log1p
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Atan
        | UnaryOp::Erf
        | UnaryOp::Erfc
        | UnaryOp::IsNan => None,
    }
}

/// Sums of 1 and an `erf` or `tanh` that is good for nothing else.
#[derive(Default)]
struct Gates {
    /// Those functions, of which the argument is left.
    inner: HashSet<Val>,
    /// The sums with their function, and whether it is their first operand.
    sums: HashMap<Val, (UnaryOp, bool)>,
}

impl Gates {
    fn of(program: &Program) -> Self {
        let mut ones: HashSet<Val> = HashSet::new();
        // Functions, and how many sums with 1 read each of them.
        let mut inner: HashMap<Val, (UnaryOp, u32)> = HashMap::new();
        let mut sums: Vec<(Val, Val, bool)> = Vec::new();
        program.walk(|inst| {
            let Some(&result) = inst.results.first() else {
                return;
            };
            match inst.op {
                Op::Const {
                    value: Scalar::F(1.0),
                } => {
                    ones.insert(result);
                }
                Op::Splat { value } if ones.contains(&value) => {
                    ones.insert(result);
                }
                Op::Unary {
                    op: op @ (UnaryOp::Erf | UnaryOp::Tanh),
                    value,
                } if is_f32(program, value) => {
                    inner.insert(result, (op, 0));
                }
                Op::Binary {
                    op: BinaryOp::Add,
                    lhs,
                    rhs,
                } => {
                    for (own, other, first) in [(lhs, rhs, true), (rhs, lhs, false)] {
                        if let Some((_, gated)) = inner.get_mut(&own)
                            && ones.contains(&other)
                        {
                            *gated += 1;
                            sums.push((result, own, first));
                        }
                    }
                }
                _ => {}
            }
        });
        let uses = program.use_counts();
        inner.retain(|v, (_, gated)| uses.get(v.index()) == Some(gated));
        let sums = sums.into_iter();
        Self {
            sums: sums
                .filter_map(|(sum, own, first)| Some((sum, (inner.get(&own)?.0, first))))
                .collect(),
            inner: inner.into_keys().collect(),
        }
    }

    /// The argument in place of such a function, and the gate in place of its sum.
    fn replace(&self, k: &KernelBuilder, inst: &Inst, is_exact: bool) -> Option<Val> {
        let result = inst.results.first()?;
        match inst.op {
            Op::Unary { value, .. } if self.inner.contains(result) => Some(value),
            Op::Binary { lhs, rhs, .. } => {
                let &(function, first) = self.sums.get(result)?;
                let argument = k.tile(if first { lhs } else { rhs });
                let emit = emit_like(k, &argument).with_own_functions(true);
                Some(match function {
                    UnaryOp::Tanh if !is_exact => near::one_plus_tanh(&emit, argument.val()),
                    UnaryOp::Tanh => gate::one_plus_tanh(&emit, argument.val()),
                    _ => gate::one_plus_erf(&emit, argument.val()),
                })
            }
            _ => None,
        }
    }
}

fn is_f32(program: &Program, value: Val) -> bool {
    matches!(&program.value(value).ty, Type::Tile(tile) if tile.dtype == DType::F32)
}

/// What is known of values without computing them: a softmax takes exponentials of what is at most zero, a block format powers of whole numbers.
#[derive(Default)]
struct Bounds {
    /// Of largest values, what they are the largest of.
    largest_of: HashMap<Val, Val>,
    at_most_zero: HashSet<Val>,
    /// Whole numbers as f32, far from infinity.
    whole: HashSet<Val>,
}

impl Bounds {
    fn note(&mut self, k: &KernelBuilder, inst: &Inst) {
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
        if self.is_whole(k, &inst.op) && k.tile(result).dtype() == DType::F32 {
            self.whole.insert(result);
        }
    }

    /// Whether an op gives whole numbers, where it gives f32.
    fn is_whole(&self, k: &KernelBuilder, op: &Op) -> bool {
        match *op {
            Op::Const {
                value: Scalar::F(number),
            } => number.fract() == 0.0 && number.abs() < 65536.0,
            Op::Cast { value } => {
                let from = k.tile(value).dtype();
                from.is_int() && from.size() <= 4
            }
            Op::Splat { value } | Op::Broadcast { value } | Op::Reshape { value } => {
                self.whole.contains(&value)
            }
            Op::Binary {
                op: BinaryOp::Add | BinaryOp::Sub,
                lhs,
                rhs,
            } => self.whole.contains(&lhs) && self.whole.contains(&rhs),
            _ => false,
        }
    }
}

fn expand_inst(
    k: &KernelBuilder,
    inst: &Inst,
    needs: &dyn Fn(UnaryOp, DType) -> bool,
    bounds: &Bounds,
    own_functions: bool,
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
            let emit = emit_like(k, &argument).with_own_functions(own_functions);
            let power = match own_functions {
                true => near::summand(&emit, value),
                false => exponential::exp_at_most_zero(&emit, value),
            };
            Some(k.tile(power))
        }
        Op::Unary {
            op: UnaryOp::Exp2,
            value,
        } if needs(UnaryOp::Exp2, DType::F32) && bounds.whole.contains(&value) => {
            let emit = emit_like(k, &k.tile(value));
            Some(k.tile(exponential::exp2_of_whole(&emit, value)))
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

/// `e^x` of what is at most zero, as a weight beside one of 1: zero where it would be no normal number. A processor takes some hundred cycles to make a denormal number, and masked scores would all be such on their way to zero. NaN stays NaN.
pub fn weights(x: &Tile) -> Tile {
    (x * f64::from(std::f32::consts::LOG2_E)).near_exp2()
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
