//! The pass: transcendental ops go, their expansions come.

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::builder::{KernelBuilder, rewrite};
use oxyfuel_kernel::{DType, Inst, Op, Program, UnaryOp, Val};

use super::emit::Emit;
use super::table::{apply, has_expansion};

/// Replaces the ops of one operand for which `needs(op, dtype)` holds by their expansions; what targets have themselves ([`has_expansion`] is false)
/// always stays. In a mapped program new tiles take the layout of their shape.
///
/// f32 is expanded as it is. f16 and bf16 are converted to f32, and the result is rounded once. Other floats have no expansion: the error is
/// `NoLowering`, so that the caller can run the program on an interpreter instead.
pub fn expand(program: Program, needs: &dyn Fn(UnaryOp, DType) -> bool) -> Result<Program> {
    rewrite(program, &mut |k, inst| expand_inst(k, inst, needs))
}

fn expand_inst(
    k: &KernelBuilder,
    inst: &Inst,
    needs: &dyn Fn(UnaryOp, DType) -> bool,
) -> Result<Option<Vec<Val>>> {
    let Op::Unary { op, value } = inst.op else {
        return Ok(None);
    };
    let argument = k.tile(value);
    let dtype = argument.dtype();
    if !has_expansion(op) || !needs(op, dtype) {
        return Ok(None);
    }
    ensure!(
        matches!(dtype, DType::F32 | DType::F16 | DType::BF16),
        NoLowering,
        "`{}` of {dtype} has no expansion; f32, f16 and bf16 have",
        op.name()
    );
    let single = argument.cast(DType::F32);
    let result = apply(&Emit::new(k, argument.shape()), op, single.val()).ok_or_else(|| {
        err!(
            Internal,
            "`{}` is in the table and has no expansion",
            op.name()
        )
    })?;
    Ok(Some(vec![k.tile(result).cast(dtype).val()]))
}
