//! Small rewrites before selection: a reshape that splits dims of a window is a window of its own.

use std::borrow::Cow;

use oxyfuel_base::{Arena, DType, Id, Scalar};
use oxyfuel_kernel::ir::{Access, BinaryOp, Block, Index, Inst, Op, Program, Type, Val, ValueData};
use rustc_hash::FxHashMap;

/// The program with every reshape of a plain load turned into a load, where nothing is written in between.
pub fn prepare(program: &Program) -> Cow<'_, Program> {
    let mut has = false;
    program.walk(|inst| has |= matches!(inst.op, Op::Reshape { .. }));
    if !has {
        return Cow::Borrowed(program);
    }
    let mut out = program.clone();
    let shapes: Vec<Option<Vec<i64>>> = program
        .values
        .values()
        .map(|v| match &v.ty {
            Type::Tile(t) => Some(t.shape.clone()),
            Type::Mem(_) | Type::TensorMap => None,
        })
        .collect();
    for phase in &mut out.phases {
        block(&mut phase.body, &shapes, &mut out.values);
    }
    Cow::Owned(out)
}

fn block(b: &mut Block, shapes: &[Option<Vec<i64>>], values: &mut Arena<Val, ValueData>) {
    let mut loads: FxHashMap<Val, Op> = FxHashMap::default();
    let mut out: Vec<Inst> = Vec::with_capacity(b.insts.len());
    for mut inst in std::mem::take(&mut b.insts) {
        for inner in inst.op.blocks_mut() {
            block(inner, shapes, values);
        }
        if let Op::Reshape { value } = &inst.op
            && let Some(Op::Load {
                access,
                mask: None,
                fill,
                hint,
            }) = loads.get(value)
            && let Some(Some(shape)) = inst.results.first().and_then(|r| shapes.get(r.index()))
            && let Some((mut access, scaled)) = split(access, shape)
        {
            for (dim, stride, factor) in scaled {
                access.strides[dim] = Index::Val(multiply(stride, factor, values, &mut out));
            }
            inst.op = Op::Load {
                access,
                mask: None,
                fill: *fill,
                hint: *hint,
            };
        }
        match &inst.op {
            Op::Load { mask: None, .. } => {
                if let Some(r) = inst.results.first() {
                    loads.insert(*r, inst.op.clone());
                }
            }
            // What is written may be what was read.
            Op::Store { .. }
            | Op::Scatter { .. }
            | Op::Atomic { .. }
            | Op::For { .. }
            | Op::If { .. }
            | Op::Roles { .. } => {
                loads.clear();
            }
            _ => {}
        }
        out.push(inst);
    }
    b.insts = out;
}

/// A new scalar: `v * factor`.
fn multiply(v: Val, factor: i64, values: &mut Arena<Val, ValueData>, out: &mut Vec<Inst>) -> Val {
    let mut scalar = |op: Op| {
        let result = values.push(ValueData {
            ty: Type::scalar(DType::I64),
            layout: None,
            name: None,
        });
        out.push(Inst {
            op,
            results: vec![result],
        });
        result
    };
    let rhs = scalar(Op::Const {
        value: Scalar::I(factor),
    });
    scalar(Op::Binary {
        op: BinaryOp::Mul,
        lhs: v,
        rhs,
    })
}

/// Dims whose stride is a value times a factor.
type Scaled = Vec<(usize, Val, i64)>;

/// The same elements under a shape that only splits dims without bounds, or adds and drops dims of extent 1.
fn split(access: &Access, shape: &[i64]) -> Option<(Access, Scaled)> {
    let mut scaled = Vec::new();
    let mut out = Access {
        shape: shape.to_vec(),
        strides: vec![Index::Const(0); shape.len()],
        valid: vec![None; shape.len()],
        ..access.clone()
    };
    let mut d = shape.len();
    for from in (0..access.shape.len()).rev() {
        let extent = access.shape[from];
        if extent == 1 {
            if access.valid[from].is_some() {
                return None;
            }
            continue;
        }
        let mut covered = 1;
        while covered < extent {
            d = d.checked_sub(1)?;
            if shape[d] == 1 {
                continue;
            }
            out.strides[d] = match (access.strides[from], covered) {
                (s, 1) => s,
                (Index::Const(s), n) => Index::Const(s * n),
                (Index::Val(v), n) => {
                    scaled.push((d, v, n));
                    Index::Val(v)
                }
            };
            covered *= shape[d];
            if covered == extent && shape[d] == extent {
                out.valid[d] = access.valid[from];
            } else if access.valid[from].is_some() {
                return None;
            }
        }
        if covered != extent {
            return None;
        }
    }
    shape[..d].iter().all(|n| *n == 1).then_some((out, scaled))
}
