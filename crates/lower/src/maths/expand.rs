//! The pass: transcendental ops go, their expansions come.

use oxyfuel_base::{Result, ensure};
use oxyfuel_kernel::builder::{KernelBuilder, Tile, rewrite};
use oxyfuel_kernel::{BinaryOp, DType, Inst, Op, Program, UnaryOp, Val};

use super::emit::Emit;
use super::power::pow;
use super::table::{apply, has_expansion};

/// Replaces the ops of one operand for which `needs(op, dtype)` holds by their expansions; what targets have themselves ([`has_expansion`] is false)
/// always stays. In a mapped program the new tiles take the layout of the argument.
///
/// f32 is expanded as it is. f16 and bf16 are converted to f32, and the result is rounded once. Other floats have no expansion: the error is
/// `NoLowering`, so that the caller can run the program on an interpreter instead. `pow` of these three dtypes is always expanded (no target has it), of others
/// never.
pub fn expand(program: Program, needs: &dyn Fn(UnaryOp, DType) -> bool) -> Result<Program> {
    rewrite(program, &mut |k, inst| expand_inst(k, inst, needs))
}

fn expand_inst(
    k: &KernelBuilder,
    inst: &Inst,
    needs: &dyn Fn(UnaryOp, DType) -> bool,
) -> Result<Option<Vec<Val>>> {
    let result = match inst.op {
        Op::Unary { op, value } => expand_unary(k, op, &k.tile(value), needs)?,
        Op::Binary {
            op: BinaryOp::Pow,
            lhs,
            rhs,
        } => expand_pow(k, &k.tile(lhs), &k.tile(rhs)),
        _ => None,
    };
    Ok(result.map(|tile| vec![tile.val()]))
}

/// The dtypes that are computed in f32.
fn is_expandable(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
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
    ensure!(
        is_expandable(dtype),
        NoLowering,
        "`{}` of {dtype} has no expansion; f32, f16 and bf16 have",
        op.name()
    );
    let emit = emit_like(k, argument);
    let result = apply(&emit, op, argument.cast(DType::F32).val());
    Ok(result.map(|value| k.tile(value).cast(dtype)))
}

fn expand_pow(k: &KernelBuilder, base: &Tile, exponent: &Tile) -> Option<Tile> {
    let dtype = base.dtype();
    if !is_expandable(dtype) {
        return None;
    }
    let [x, y] = [base, exponent].map(|tile| tile.cast(DType::F32).val());
    let result = pow(&emit_like(k, base), x, y);
    Some(k.tile(result).cast(dtype))
}
