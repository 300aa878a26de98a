//! Walking over programs: the operands and blocks of an op, and whole programs in order. Passes are written with these, so that a new op is
//! described here once.

use std::collections::BTreeSet;

use oxyfuel_base::{Arena, Id};

use crate::ir::{Access, BarrierRef, Block, Index, Inst, MmaOperand, Op, Program, Val, ValueData};

/// Writes the walk over operands once for `&Op` and for `&mut Op`: the patterns bind by reference either way.
macro_rules! operand_walk {
    ($ops:ident, $access:ident, $index:ident, $barrier:ident, $operand:ident, $($mutable:tt)?) => {
        fn $index(index: & $($mutable)? Index, f: &mut dyn FnMut(& $($mutable)? Val)) {
            match index {
                Index::Const(_) => {}
                Index::Val(v) => f(v),
            }
        }

        fn $access(access: & $($mutable)? Access, f: &mut dyn FnMut(& $($mutable)? Val)) {
            let Access { mem, base, shape: _, strides, valid } = access;
            f(mem);
            $index(base, f);
            for index in strides {
                $index(index, f);
            }
            for bound in valid {
                if let Some(index) = bound {
                    $index(index, f);
                }
            }
        }

        fn $barrier(barrier: & $($mutable)? BarrierRef, f: &mut dyn FnMut(& $($mutable)? Val)) {
            let BarrierRef { mem, slot } = barrier;
            f(mem);
            $index(slot, f);
        }

        fn $operand(operand: & $($mutable)? MmaOperand, f: &mut dyn FnMut(& $($mutable)? Val)) {
            match operand {
                MmaOperand::Tile(v) => f(v),
                MmaOperand::Mem { access, dims: _ } => $access(access, f),
            }
        }

        fn $ops(op: & $($mutable)? Op, f: &mut dyn FnMut(& $($mutable)? Val)) {
            match op {
                Op::ProgramId { .. }
                | Op::NumPrograms { .. }
                | Op::Const { .. }
                | Op::Iota { .. }
                | Op::Alloc
                | Op::MmaCommit
                | Op::CopyCommit
                | Op::CopyWait { .. }
                | Op::Sync
                | Op::FenceAsync
                | Op::Roles { .. } => {}
                Op::Pick { mems, index } => {
                    for v in mems {
                        f(v);
                    }
                    f(index);
                }
                Op::Splat { value }
                | Op::Broadcast { value }
                | Op::Reshape { value }
                | Op::Permute { value, perm: _ }
                | Op::Unary { op: _, value }
                | Op::Cast { value }
                | Op::Bitcast { value }
                | Op::Reduce { op: _, value, axes: _ }
                | Op::ArgReduce { op: _, value, axis: _ }
                | Op::Scan { op: _, value, axis: _, reverse: _ }
                | Op::Sort { value, axis: _, descending: _ }
                | Op::ConvertLayout { value } => f(value),
                Op::Binary { op: _, lhs, rhs } | Op::Compare { op: _, lhs, rhs } => {
                    f(lhs);
                    f(rhs);
                }
                Op::Select { cond, on_true, on_false } => {
                    f(cond);
                    f(on_true);
                    f(on_false);
                }
                Op::Fma { a, b, c } => {
                    f(a);
                    f(b);
                    f(c);
                }
                Op::Load { access, mask, fill: _, hint: _ } => {
                    $access(access, f);
                    if let Some(mask) = mask {
                        f(mask);
                    }
                }
                Op::Store { access, value, mask, hint: _ } => {
                    $access(access, f);
                    f(value);
                    if let Some(mask) = mask {
                        f(mask);
                    }
                }
                Op::Gather { mem, index, mask, fill: _ } => {
                    f(mem);
                    f(index);
                    if let Some(mask) = mask {
                        f(mask);
                    }
                }
                Op::Scatter { mem, index, value, mask } | Op::Atomic { op: _, mem, index, value, mask } => {
                    f(mem);
                    f(index);
                    f(value);
                    if let Some(mask) = mask {
                        f(mask);
                    }
                }
                Op::Dot { a, b, acc } => {
                    f(a);
                    f(b);
                    f(acc);
                }
                Op::For { iv: _, lo, hi, step: _, inits, carried: _, body: _, unroll: _ } => {
                    $index(lo, f);
                    $index(hi, f);
                    for v in inits {
                        f(v);
                    }
                }
                Op::If { cond, on_true: _, on_false: _ } => f(cond),
                Op::Mma { a, b, acc, asynchronous: _ } => {
                    $operand(a, f);
                    $operand(b, f);
                    f(acc);
                }
                Op::MmaWait { pending: _, accs } => {
                    for v in accs {
                        f(v);
                    }
                }
                Op::TensorLoad { map, coords, dst, base, barrier } => {
                    f(map);
                    for index in coords {
                        $index(index, f);
                    }
                    f(dst);
                    $index(base, f);
                    $barrier(barrier, f);
                }
                Op::TensorStore { map, coords, src, base } => {
                    f(map);
                    for index in coords {
                        $index(index, f);
                    }
                    f(src);
                    $index(base, f);
                }
                Op::CopyAsync { src, dst } => {
                    $access(src, f);
                    $access(dst, f);
                }
                Op::BarrierInit { barrier, count: _ } | Op::BarrierArrive { barrier, bytes: _, per_warp: _ } => $barrier(barrier, f),
                Op::BarrierWait { barrier, parity } => {
                    $barrier(barrier, f);
                    f(parity);
                }
            }
        }
    };
}

operand_walk!(
    operands,
    access_operands,
    index_operands,
    barrier_operands,
    mma_operands,
);
operand_walk!(
    operands_mut,
    access_operands_mut,
    index_operands_mut,
    barrier_operands_mut,
    mma_operands_mut,
    mut
);

/// The ops that own no block, as a pattern.
macro_rules! leaf_ops {
    () => {
        Self::ProgramId { .. }
            | Self::NumPrograms { .. }
            | Self::Pick { .. }
            | Self::Const { .. }
            | Self::Iota { .. }
            | Self::Splat { .. }
            | Self::Broadcast { .. }
            | Self::Reshape { .. }
            | Self::Permute { .. }
            | Self::Unary { .. }
            | Self::Binary { .. }
            | Self::Compare { .. }
            | Self::Select { .. }
            | Self::Fma { .. }
            | Self::Cast { .. }
            | Self::Bitcast { .. }
            | Self::Load { .. }
            | Self::Store { .. }
            | Self::Gather { .. }
            | Self::Scatter { .. }
            | Self::Atomic { .. }
            | Self::Reduce { .. }
            | Self::ArgReduce { .. }
            | Self::Scan { .. }
            | Self::Sort { .. }
            | Self::Dot { .. }
            | Self::Alloc { .. }
            | Self::ConvertLayout { .. }
            | Self::Mma { .. }
            | Self::MmaCommit { .. }
            | Self::MmaWait { .. }
            | Self::TensorLoad { .. }
            | Self::TensorStore { .. }
            | Self::CopyAsync { .. }
            | Self::CopyCommit { .. }
            | Self::CopyWait { .. }
            | Self::BarrierInit { .. }
            | Self::BarrierArrive { .. }
            | Self::BarrierWait { .. }
            | Self::Sync { .. }
            | Self::FenceAsync { .. }
    };
}

impl Access {
    /// Calls `f` on every value that the access mentions.
    pub fn for_each_arg(&self, mut f: impl FnMut(Val)) {
        access_operands(self, &mut |v| f(*v));
    }

    /// Replaces every value that the access mentions.
    pub fn map_args(&mut self, mut f: impl FnMut(Val) -> Val) {
        access_operands_mut(self, &mut |v| *v = f(*v));
    }
}

impl Op {
    /// Calls `f` on every operand, in the order of the text. Operands inside owned blocks and their yields are not included.
    pub fn for_each_arg(&self, mut f: impl FnMut(Val)) {
        operands(self, &mut |v| f(*v));
    }

    /// Replaces every operand; owned blocks stay as they are.
    pub fn map_args(&mut self, mut f: impl FnMut(Val) -> Val) {
        operands_mut(self, &mut |v| *v = f(*v));
    }

    pub fn args(&self) -> Vec<Val> {
        let mut args = Vec::new();
        self.for_each_arg(|v| args.push(v));
        args
    }

    /// The blocks that the op owns.
    pub fn blocks(&self) -> Vec<&Block> {
        match self {
            Self::For { body, .. } => vec![body],
            Self::If {
                on_true, on_false, ..
            } => vec![on_true, on_false],
            Self::Roles { roles } => roles.iter().map(|role| &role.body).collect(),
            leaf_ops!() => Vec::new(),
        }
    }

    pub fn blocks_mut(&mut self) -> Vec<&mut Block> {
        match self {
            Self::For { body, .. } => vec![body],
            Self::If {
                on_true, on_false, ..
            } => vec![on_true, on_false],
            Self::Roles { roles } => roles.iter_mut().map(|role| &mut role.body).collect(),
            leaf_ops!() => Vec::new(),
        }
    }

    /// Values that the op's blocks receive: the counter and the carried values of a loop.
    pub fn block_params(&self) -> Vec<Val> {
        match self {
            Self::For { iv, carried, .. } => std::iter::once(*iv)
                .chain(carried.iter().copied())
                .collect(),
            Self::If { .. } | Self::Roles { .. } | leaf_ops!() => Vec::new(),
        }
    }

    pub fn block_params_mut(&mut self) -> Vec<&mut Val> {
        match self {
            Self::For { iv, carried, .. } => std::iter::once(iv).chain(carried).collect(),
            Self::If { .. } | Self::Roles { .. } | leaf_ops!() => Vec::new(),
        }
    }

    /// The accesses to memory windows that the op makes.
    pub fn accesses(&self) -> Vec<&Access> {
        match self {
            Self::Load { access, .. } | Self::Store { access, .. } => vec![access],
            Self::CopyAsync { src, dst } => vec![src, dst],
            Self::Mma { a, b, .. } => [a, b]
                .into_iter()
                .filter_map(|operand| match operand {
                    MmaOperand::Tile(_) => None,
                    MmaOperand::Mem { access, .. } => Some(access),
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the op may be dropped when nobody uses its results, and moved or repeated freely: it touches no memory and orders nothing.
    pub fn is_pure(&self) -> bool {
        match self {
            Self::ProgramId { .. }
            | Self::NumPrograms { .. }
            | Self::Const { .. }
            | Self::Iota { .. }
            | Self::Splat { .. }
            | Self::Broadcast { .. }
            | Self::Reshape { .. }
            | Self::Permute { .. }
            | Self::Unary { .. }
            | Self::Binary { .. }
            | Self::Compare { .. }
            | Self::Select { .. }
            | Self::Fma { .. }
            | Self::Cast { .. }
            | Self::Bitcast { .. }
            | Self::Reduce { .. }
            | Self::ArgReduce { .. }
            | Self::Scan { .. }
            | Self::Sort { .. }
            | Self::Dot { .. }
            | Self::ConvertLayout { .. } => true,
            Self::Load { .. }
            | Self::Pick { .. }
            | Self::Store { .. }
            | Self::Gather { .. }
            | Self::Scatter { .. }
            | Self::Atomic { .. }
            | Self::For { .. }
            | Self::If { .. }
            | Self::Alloc
            | Self::Mma { .. }
            | Self::MmaCommit
            | Self::MmaWait { .. }
            | Self::TensorLoad { .. }
            | Self::TensorStore { .. }
            | Self::CopyAsync { .. }
            | Self::CopyCommit
            | Self::CopyWait { .. }
            | Self::BarrierInit { .. }
            | Self::BarrierArrive { .. }
            | Self::BarrierWait { .. }
            | Self::Sync
            | Self::FenceAsync
            | Self::Roles { .. } => false,
        }
    }
}

impl Block {
    /// Calls `f` on every instruction of the block and of the blocks inside, an op before what it owns.
    pub fn walk<'a>(&'a self, f: &mut impl FnMut(&'a Inst)) {
        for inst in &self.insts {
            f(inst);
            for block in inst.op.blocks() {
                block.walk(f);
            }
        }
    }

    pub fn walk_mut(&mut self, f: &mut impl FnMut(&mut Inst)) {
        for inst in &mut self.insts {
            f(inst);
            for block in inst.op.blocks_mut() {
                block.walk_mut(f);
            }
        }
    }

    fn count_uses(&self, counts: &mut [u32]) {
        for inst in &self.insts {
            inst.op.for_each_arg(|v| counts[v.index()] += 1);
            for block in inst.op.blocks() {
                block.count_uses(counts);
            }
        }
        for v in &self.yields {
            counts[v.index()] += 1;
        }
    }
}

impl Program {
    /// Calls `f` on every instruction of every phase in order, an op before what it owns.
    pub fn walk<'a>(&'a self, mut f: impl FnMut(&'a Inst)) {
        for phase in &self.phases {
            phase.body.walk(&mut f);
        }
    }

    pub fn walk_mut(&mut self, mut f: impl FnMut(&mut Inst)) {
        for phase in &mut self.phases {
            phase.body.walk_mut(&mut f);
        }
    }

    /// How often each value is an operand or a yield, by the value's index.
    pub fn use_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.values.len()];
        for phase in &self.phases {
            phase.body.count_uses(&mut counts);
        }
        counts
    }

    /// Parameters that are picked by number; nothing else reaches them.
    pub fn picked(&self) -> BTreeSet<Val> {
        let mut picked = BTreeSet::new();
        self.walk(|inst| {
            if let Op::Pick { mems, .. } = &inst.op {
                picked.extend(mems);
            }
        });
        picked
    }

    pub fn value(&self, v: Val) -> &ValueData {
        &self.values[v]
    }

    pub fn values(&self) -> &Arena<Val, ValueData> {
        &self.values
    }
}
