//! Storage floats (fp8, fp4, e8m0) as bytes, for machines that know nothing of them, or do not make them of other numbers.
//!
//! Every tile, buffer and literal of such a type becomes `u8`; casts, the only ops that compute with one, become arithmetic on the codes.

use std::collections::HashMap;

use oxyfuel_base::{DType, Id, Result, Scalar};
use oxyfuel_kernel::builder::rewrite;
use oxyfuel_kernel::ir::{Op, ParamKind, Program, Type, Val};
use oxyfuel_plan::TargetDesc;

use crate::maths::code_cast;

/// Rewrites a program that has storage floats which the machine does not know, or a conversion that it lacks; any other comes back as it is.
pub fn as_bytes(program: Program, target: &TargetDesc) -> Result<Program> {
    let unknown = |dtype: DType| dtype.is_narrow_float() && !target.storage_floats.contains(&dtype);
    let foreign = |ty: &Type| match ty {
        Type::Tile(tile) => unknown(tile.dtype),
        Type::Mem(mem) => unknown(mem.dtype),
        Type::TensorMap => false,
    };
    let casts = casts(&program);
    let lacks = casts.values().any(|&(_, to)| !target.makes(to));
    if !lacks && !program.values.values().any(|data| foreign(&data.ty)) {
        return Ok(program);
    }
    let mut program = program;
    literals(&mut program);
    for data in program.values.values_mut() {
        match &mut data.ty {
            Type::Tile(tile) => tile.dtype = byte(tile.dtype),
            Type::Mem(mem) => mem.dtype = byte(mem.dtype),
            Type::TensorMap => {}
        }
    }
    for param in &mut program.params {
        match &mut param.kind {
            ParamKind::Buffer(buffer) => buffer.dtype = byte(buffer.dtype),
            ParamKind::Scalar { dtype, .. } => *dtype = byte(*dtype),
            ParamKind::TensorMap(_) => {}
        }
    }
    rewrite(program, &mut |k, inst| {
        let Op::Cast { value } = &inst.op else {
            return Ok(None);
        };
        let Some(&(from, to)) = casts.get(&inst.results[0]) else {
            return Ok(None);
        };
        Ok(Some(vec![code_cast(k, &k.tile(*value), from, to).val()]))
    })
}

fn byte(dtype: DType) -> DType {
    if dtype.is_narrow_float() {
        DType::U8
    } else {
        dtype
    }
}

/// The casts from or to storage floats, by their result: what is converted to what.
fn casts(program: &Program) -> HashMap<Val, (DType, DType)> {
    let mut casts = HashMap::new();
    let dtype = |v: Val| program.value(v).ty.as_tile().map(|tile| tile.dtype);
    program.walk(|inst| {
        if let Op::Cast { value } = inst.op
            && let (Some(from), Some(to)) = (dtype(value), dtype(inst.results[0]))
            && (from.is_narrow_float() || to.is_narrow_float())
        {
            casts.insert(inst.results[0], (from, to));
        }
    });
    casts
}

/// Literals of storage floats become their codes.
fn literals(program: &mut Program) {
    let dtypes: Vec<Option<DType>> = program
        .values
        .values()
        .map(|data| match &data.ty {
            Type::Tile(tile) => Some(tile.dtype),
            Type::Mem(_) | Type::TensorMap => None,
        })
        .collect();
    program.walk_mut(|inst| {
        let dtype = inst.results.first().and_then(|v| dtypes[v.index()]);
        let Some(dtype) = dtype.filter(|d| d.is_narrow_float()) else {
            return;
        };
        if let Op::Const { value: literal }
        | Op::Load { fill: literal, .. }
        | Op::Gather { fill: literal, .. } = &mut inst.op
        {
            *literal = Scalar::I(literal.to_bits(dtype) as i64);
        }
    });
}
