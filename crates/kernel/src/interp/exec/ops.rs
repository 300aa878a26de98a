//! The ops that own no block.

use std::collections::HashSet;
use std::rc::Rc;

use oxyfuel_base::{DType, Result, Scalar, ensure, err};

use super::{Machine, Path, Thread, Value};
use crate::interp::data::{Data, round, wrap};
use crate::interp::math;
use crate::interp::memory::{Checked, Memory, Storage, Toucher};
use crate::ir::{Index, Inst, MmaOperand, Op, ReduceOp, Space, TileType, Val};

impl<'p> Machine<'p, '_> {
    // ---- ops --------------------------------------------------------------------------------------------------------------------

    /// Runs an op that owns no block.
    pub(super) fn execute(&mut self, thread: &mut Thread<'p>, inst: &'p Inst) -> Result<()> {
        if let Some(data) = self.pure(inst)? {
            for (v, data) in inst.results.iter().zip(data) {
                self.env.set(*v, Value::tile(data));
            }
            return Ok(());
        }
        match &inst.op {
            Op::Load {
                access,
                mask,
                fill,
                hint: _,
            } => {
                let offsets = self.offsets(access, *mask)?;
                let data = self.read(thread, access.mem, &offsets, *fill, Path::Ordinary)?;
                self.env.set(inst.results[0], Value::tile(data));
            }
            Op::Store {
                access,
                value,
                mask,
                hint: _,
            } => {
                let offsets = self.offsets(access, *mask)?;
                self.distinct(&offsets)?;
                let (memory, data) = (self.memory(access.mem)?, self.tile(*value)?.clone());
                self.write(thread, memory, &offsets, &data, Path::Ordinary)?;
            }
            Op::Gather {
                mem,
                index,
                mask,
                fill,
            } => {
                let offsets = self.positions(*index, *mask)?;
                let data = self.read(thread, *mem, &offsets, *fill, Path::Ordinary)?;
                self.env.set(inst.results[0], Value::tile(data));
            }
            Op::Scatter {
                mem,
                index,
                value,
                mask,
            } => {
                let offsets = self.positions(*index, *mask)?;
                self.distinct(&offsets)?;
                let (memory, data) = (self.memory(*mem)?, self.tile(*value)?.clone());
                self.write(thread, memory, &offsets, &data, Path::Ordinary)?;
            }
            Op::Atomic {
                op,
                mem,
                index,
                value,
                mask,
            } => {
                let offsets = self.positions(*index, *mask)?;
                let (memory, data) = (self.memory(*mem)?, self.tile(*value)?.clone());
                self.atomic(thread, *op, memory, &offsets, &data)?;
            }
            Op::Pick { mems, index } => {
                let number = self.index(&Index::Val(*index))?;
                let mem = usize::try_from(number).ok().and_then(|n| mems.get(n));
                let mem = mem.ok_or_else(|| {
                    err!(
                        IndexOutOfRange,
                        "memory {number} of {} is picked",
                        mems.len()
                    )
                })?;
                let value = self.env.get(*mem)?.clone();
                self.env.set(inst.results[0], value);
            }
            Op::Alloc => {
                let mem = self.program.mem(inst.results[0])?;
                let bytes = usize::try_from(mem.len.unwrap_or(0))
                    .unwrap_or(0)
                    .saturating_mul(mem.dtype.size());
                ensure!(bytes <= 1 << 31, TooLarge, "an allocation of {bytes} bytes");
                let checked = Checked {
                    initialised: self.check,
                    owners: false,
                    stamps: self.check && mem.space == Space::Shared,
                };
                let name = self.program.values[inst.results[0]]
                    .name
                    .clone()
                    .unwrap_or_else(|| inst.results[0].to_string());
                let value = self.add_memory(Memory::new(
                    name,
                    mem.dtype,
                    Storage::Owned(vec![0; bytes]),
                    checked,
                ));
                self.env.set(inst.results[0], value);
            }
            Op::Mma {
                a,
                b,
                acc,
                asynchronous,
            } => self.mma(thread, inst.results[0], a, b, *acc, *asynchronous)?,
            Op::MmaCommit => thread.time.products_committed += 1,
            Op::MmaWait { pending, accs } => {
                let done = thread.time.wait_products(*pending);
                for (result, acc) in inst.results.iter().zip(accs) {
                    let mut value = self.env.get(*acc)?.clone();
                    if let Value::Tile { pending, .. } = &mut value {
                        *pending = pending
                            .filter(|(role, group)| *role != thread.time.role || *group > done);
                    }
                    self.env.set(*result, value);
                }
            }
            Op::TensorLoad {
                map,
                coords,
                dst,
                base,
                barrier,
            } => {
                let (map, place) = (self.map(*map)?, self.place(barrier)?);
                let coords = coords
                    .iter()
                    .map(|c| self.index(c))
                    .collect::<Result<Vec<_>>>()?;
                let from = self.box_offsets(&map, &coords)?;
                let data = self.read(thread, map.buffer, &from, Scalar::I(0), Path::CopyGroup)?;
                let (base, memory) = (self.index(base)?, self.memory(*dst)?);
                let stamp = self.barriers.stamp(place)?;
                let by = Toucher {
                    instance: self.instance,
                    overlaps: self.overlaps,
                    stamp,
                    clock: &thread.time.clock,
                    asynchronous: true,
                };
                let memory = &mut self.memories[memory];
                for i in 0..data.len() {
                    let at = memory.touch_write(
                        base.saturating_add(i64::try_from(i).unwrap_or(i64::MAX)),
                        &by,
                    )?;
                    memory.set(at, &data, i);
                }
                let bytes = data.len().saturating_mul(memory.dtype.size());
                self.barriers
                    .deliver(place, i64::try_from(bytes).unwrap_or(i64::MAX))?;
            }
            Op::TensorStore {
                map,
                coords,
                src,
                base,
            } => {
                let map = self.map(*map)?;
                let coords = coords
                    .iter()
                    .map(|c| self.index(c))
                    .collect::<Result<Vec<_>>>()?;
                let to = self.box_offsets(&map, &coords)?;
                let base = self.index(base)?;
                let from: Vec<_> = (0..to.len())
                    .map(|i| Some(base.saturating_add(i64::try_from(i).unwrap_or(i64::MAX))))
                    .collect();
                let data = self.read(thread, *src, &from, Scalar::I(0), Path::CopyGroup)?;
                let memory = self.memory(map.buffer)?;
                self.write(thread, memory, &to, &data, Path::CopyGroup)?;
            }
            Op::CopyAsync { src, dst } => {
                let (from, to) = (self.offsets(src, None)?, self.offsets(dst, None)?);
                let data = self.read(thread, src.mem, &from, Scalar::I(0), Path::CopyGroup)?;
                let memory = self.memory(dst.mem)?;
                self.write(thread, memory, &to, &data, Path::CopyGroup)?;
            }
            Op::CopyCommit => thread.time.copies_committed += 1,
            Op::CopyWait { pending } => thread.time.wait_copies(*pending),
            Op::BarrierInit { barrier, count } => {
                self.barriers.init(self.place(barrier)?, *count)?
            }
            Op::BarrierArrive {
                barrier,
                bytes,
                per_warp,
            } => {
                let arrivals = if *per_warp { thread.warps } else { 1 };
                self.barriers.arrive(
                    self.place(barrier)?,
                    arrivals,
                    bytes.unwrap_or(0),
                    &mut thread.time,
                )?;
            }
            // The wait itself was done before the step counted.
            Op::BarrierWait { .. } => {}
            Op::Sync => thread.time.sync(),
            Op::FenceAsync => thread.time.fence_async(),
            Op::ProgramId { .. }
            | Op::NumPrograms { .. }
            | Op::Const { .. }
            | Op::Iota { .. }
            | Op::Splat { .. }
            | Op::Broadcast { .. }
            | Op::Reshape { .. }
            | Op::Permute { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Fma { .. }
            | Op::Cast { .. }
            | Op::Bitcast { .. }
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Scan { .. }
            | Op::Sort { .. }
            | Op::Dot { .. }
            | Op::ConvertLayout { .. }
            | Op::For { .. }
            | Op::If { .. }
            | Op::Roles { .. } => {
                return Err(err!(Internal, "{} is run elsewhere", inst.op.row().name));
            }
        }
        Ok(())
    }

    fn mma(
        &mut self,
        thread: &Thread<'p>,
        result: Val,
        a: &MmaOperand,
        b: &MmaOperand,
        acc: Val,
        asynchronous: bool,
    ) -> Result<()> {
        let (a, m, k) = self.operand(thread, a, false, asynchronous)?;
        let (bt, n, _) = self.operand(thread, b, true, asynchronous)?;
        let Value::Tile { data, pending } = self.env.get(acc)?.clone() else {
            return Err(err!(Internal, "{acc} is not a tile"));
        };
        ensure!(
            asynchronous || pending.is_none(),
            DataRace,
            "accumulator {acc} is updated by an ordinary product while an asynchronous one may be writing it"
        );
        let ty = self.ty(acc)?;
        let batch = match ty.shape[..] {
            [batch, _, _] => usize::try_from(batch).unwrap_or(0),
            _ => 1,
        };
        let mut parts = Vec::with_capacity(batch);
        for p in 0..batch {
            let part = |data: &Data, len: usize| data.pick(p * len..(p + 1) * len);
            let from = p * n * k;
            let b = bt.pick((0..k).flat_map(|l| (0..n).map(move |j| from + j * k + l)));
            let [a, acc] = [part(&a, m * k), part(&data, m * n)];
            parts.push(math::matmul(ty.dtype, &a, &b, &acc, [m, n, k]));
        }
        let data = Data::concat(parts);
        let pending = asynchronous.then(|| (thread.time.role, thread.time.product().time));
        self.env.set(
            result,
            Value::Tile {
                data: Rc::new(data),
                pending,
            },
        );
        Ok(())
    }

    fn distinct(&self, offsets: &[Option<i64>]) -> Result<()> {
        // Rising positions, the usual case, need no set.
        let mut last = i64::MIN;
        if !self.check
            || self.overlaps
            || offsets
                .iter()
                .flatten()
                .all(|&at| std::mem::replace(&mut last, at) < at)
        {
            return Ok(());
        }
        let mut seen = HashSet::with_capacity(offsets.len());
        for at in offsets.iter().flatten() {
            ensure!(
                seen.insert(at),
                DataRace,
                "element {at} is written twice by one op"
            );
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        thread: &Thread<'p>,
        op: ReduceOp,
        memory: usize,
        offsets: &[Option<i64>],
        data: &Data,
    ) -> Result<()> {
        let by = Toucher {
            instance: self.instance,
            overlaps: self.overlaps,
            stamp: thread.time.own(),
            clock: &thread.time.clock,
            asynchronous: false,
        };
        let memory = &mut self.memories[memory];
        let dtype = memory.dtype;
        for (from, at) in offsets
            .iter()
            .enumerate()
            .filter_map(|(from, at)| at.map(|at| (from, at)))
        {
            let i = memory.touch_atomic(at, &by)?;
            let next = match data {
                Data::F(x) => Data::F(vec![round(
                    dtype,
                    math::combine_float(op, memory.float(i), x[from]),
                )]),
                Data::I(x) => Data::I(vec![math::combine_int(op, dtype, memory.int(i), x[from])]),
            };
            memory.set(i, &next, 0);
        }
        Ok(())
    }

    /// The results of an op that depends on its operands alone.
    fn pure(&self, inst: &Inst) -> Result<Option<Vec<Data>>> {
        let ty = |i: usize| self.ty(inst.results[i]);
        let len = |shape: &[i64]| {
            shape
                .iter()
                .map(|&d| usize::try_from(d).unwrap_or(0))
                .product::<usize>()
        };
        let axis = usize::from;
        let data = match &inst.op {
            Op::ProgramId { axis } => Data::I(vec![self.id[usize::from(*axis)]]),
            Op::NumPrograms { axis } => Data::I(vec![self.grid[usize::from(*axis)]]),
            Op::Const { value } => Data::splat(ty(0)?.dtype, *value, 1),
            Op::Iota { dim } => {
                let ty = ty(0)?;
                let inner = len(&ty.shape[usize::from(*dim) + 1..]);
                let extent = len(&ty.shape[usize::from(*dim)..][..1]);
                Data::I(
                    (0..len(&ty.shape))
                        .map(|i| wrap(ty.dtype, i64::try_from(i / inner % extent).unwrap_or(0)))
                        .collect(),
                )
            }
            Op::Splat { value } => self
                .tile(*value)?
                .pick(std::iter::repeat_n(0, len(&ty(0)?.shape))),
            Op::Broadcast { value } => {
                let (from, to) = (&self.ty(*value)?.shape, &ty(0)?.shape);
                let strides = row_major(from);
                let strides: Vec<usize> = strides
                    .iter()
                    .zip(from)
                    .map(|(s, e)| if *e == 1 { 0 } else { *s })
                    .collect();
                self.tile(*value)?.pick(strided(to, &strides).into_iter())
            }
            Op::Permute { value, perm } => {
                let strides = row_major(&self.ty(*value)?.shape);
                let strides: Vec<usize> = perm.iter().map(|&p| strides[usize::from(p)]).collect();
                self.tile(*value)?
                    .pick(strided(&ty(0)?.shape, &strides).into_iter())
            }
            Op::Reshape { value } | Op::ConvertLayout { value } => Data::clone(self.tile(*value)?),
            Op::Unary { op, value } => math::unary(*op, self.ty(*value)?.dtype, self.tile(*value)?),
            Op::Binary { op, lhs, rhs } => math::binary(
                *op,
                self.ty(*lhs)?.dtype,
                self.tile(*lhs)?,
                self.tile(*rhs)?,
            ),
            Op::Compare { op, lhs, rhs } => math::compare(
                *op,
                self.ty(*lhs)?.dtype,
                self.tile(*lhs)?,
                self.tile(*rhs)?,
            ),
            Op::Select {
                cond,
                on_true,
                on_false,
            } => math::select(
                self.tile(*cond)?,
                self.tile(*on_true)?,
                self.tile(*on_false)?,
            ),
            Op::Fma { a, b, c } => {
                math::fma(ty(0)?.dtype, self.tile(*a)?, self.tile(*b)?, self.tile(*c)?)
            }
            Op::Cast { value } => self
                .tile(*value)?
                .cast(self.ty(*value)?.dtype, ty(0)?.dtype),
            Op::Bitcast { value } => Data::from_bits(
                ty(0)?.dtype,
                self.tile(*value)?.bits(self.ty(*value)?.dtype).into_iter(),
            ),
            Op::Reduce { op, value, axes } => {
                let TileType { dtype, mut shape } = self.ty(*value)?.clone();
                let mut data = Data::clone(self.tile(*value)?);
                for &a in axes {
                    data = math::reduce(*op, dtype, &data, math::Lines::new(&shape, axis(a)));
                    shape[axis(a)] = 1;
                }
                math::rounded(dtype, data)
            }
            Op::ArgReduce { op, value, axis: a } => {
                let from = self.ty(*value)?;
                let found = math::arg_reduce(
                    *op,
                    self.tile(*value)?,
                    from.dtype,
                    math::Lines::new(&from.shape, axis(*a)),
                );
                found.cast(DType::I64, ty(0)?.dtype)
            }
            Op::Scan {
                op,
                value,
                axis: a,
                reverse,
            } => {
                let from = self.ty(*value)?;
                math::scan(
                    *op,
                    from.dtype,
                    self.tile(*value)?,
                    math::Lines::new(&from.shape, axis(*a)),
                    *reverse,
                )
            }
            Op::Sort {
                value,
                axis: a,
                descending,
            } => {
                let from = self.ty(*value)?;
                let (sorted, positions) = math::sort(
                    self.tile(*value)?,
                    from.dtype,
                    math::Lines::new(&from.shape, axis(*a)),
                    *descending,
                );
                let mut results = vec![sorted];
                if inst.results.len() > 1 {
                    results.push(positions.cast(DType::I64, ty(1)?.dtype));
                }
                return Ok(Some(results));
            }
            Op::Dot { a, b, acc } => {
                let (sa, sb) = (&self.ty(*a)?.shape, &self.ty(*b)?.shape);
                let [m, k, n] = [sa[0], sa[1], sb[1]].map(|d| usize::try_from(d).unwrap_or(0));
                math::matmul(
                    ty(0)?.dtype,
                    self.tile(*a)?,
                    self.tile(*b)?,
                    self.tile(*acc)?,
                    [m, n, k],
                )
            }
            Op::Load { .. }
            | Op::Store { .. }
            | Op::Gather { .. }
            | Op::Scatter { .. }
            | Op::Atomic { .. }
            | Op::For { .. }
            | Op::If { .. }
            | Op::Pick { .. }
            | Op::Alloc
            | Op::Mma { .. }
            | Op::MmaCommit
            | Op::MmaWait { .. }
            | Op::TensorLoad { .. }
            | Op::TensorStore { .. }
            | Op::CopyAsync { .. }
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::BarrierInit { .. }
            | Op::BarrierArrive { .. }
            | Op::BarrierWait { .. }
            | Op::Sync
            | Op::FenceAsync
            | Op::Roles { .. } => return Ok(None),
        };
        Ok(Some(vec![data]))
    }
}

fn row_major(shape: &[i64]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * usize::try_from(shape[d + 1]).unwrap_or(0);
    }
    strides
}

/// The positions of a strided view of `shape`, in row-major order.
fn strided(shape: &[i64], strides: &[usize]) -> Vec<usize> {
    let mut out = vec![0usize];
    for (&extent, &stride) in shape.iter().zip(strides) {
        let extent = usize::try_from(extent).unwrap_or(0);
        out = out
            .iter()
            .flat_map(|&base| (0..extent).map(move |i| base + i * stride))
            .collect();
    }
    out
}
