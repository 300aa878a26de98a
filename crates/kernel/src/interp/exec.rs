//! Running phases, instances and roles, and the ops that touch memory or order.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use oxyfuel_base::{DType, Result, Scalar, ensure, err};

use super::data::{Data, round};
use super::memory::{Checked, Memory, Storage, Toucher};
use super::order::{Barriers, Clock, RoleTime};
use super::{Environment, Options, math};
use crate::ir::{
    Access, BarrierRef, Block, Index, Inst, MmaDim, MmaOperand, Op, Phase, Program, ReduceOp, Role,
    Space, TileType, Val,
};

#[derive(Clone, Debug)]
pub(super) enum Value {
    Tile {
        data: Rc<Data>,
        /// The role and group of the asynchronous product that may still be writing it.
        pending: Option<(usize, u64)>,
    },
    /// The number of a memory.
    Mem(usize),
    Map,
}

/// A tensor map with its expressions evaluated.
#[derive(Clone, Debug)]
pub(super) struct MapData {
    pub buffer: Val,
    pub dims: Vec<i64>,
    pub strides: Vec<i64>,
    pub boxed: Vec<i64>,
}

pub(super) struct Machine<'p, 'a> {
    pub program: &'p Program,
    memories: Vec<Memory<'a>>,
    env: Environment,
    pub maps: HashMap<Val, MapData>,
    barriers: Barriers,
    grid: Vec<i64>,
    id: Vec<i64>,
    instance: u32,
    steps_left: u64,
    check: bool,
}

/// What a block does when its instructions are through.
#[derive(Clone, Copy)]
enum Ending<'p> {
    Stop,
    /// The results of the op that owns the block become the yields.
    Hand(&'p [Val]),
    Again {
        inst: &'p Inst,
        at: i64,
        hi: i64,
    },
}

struct Frame<'p> {
    block: &'p Block,
    pc: usize,
    ending: Ending<'p>,
}

/// One line of control: an instance, or a role of it.
struct Thread<'p> {
    name: &'p str,
    frames: Vec<Frame<'p>>,
    time: RoleTime,
    warps: u32,
}

enum Step<'p> {
    Done,
    Blocked,
    Split(&'p [Role]),
}

/// How an access counts in shared memory.
#[derive(Clone, Copy)]
enum Path {
    Ordinary,
    CopyGroup,
    Product,
}

#[derive(Clone, Copy, PartialEq)]
enum Touch {
    Read,
    Write,
}

impl<'p, 'a> Machine<'p, 'a> {
    pub fn new(program: &'p Program, options: Options) -> Self {
        Self {
            program,
            memories: Vec::new(),
            env: Environment(vec![None; program.values.len()]),
            maps: HashMap::new(),
            barriers: Barriers::default(),
            grid: Vec::new(),
            id: Vec::new(),
            instance: 0,
            steps_left: options.step_limit,
            check: options.check,
        }
    }

    pub fn add_memory(&mut self, memory: Memory<'a>) -> Value {
        self.memories.push(memory);
        Value::Mem(self.memories.len() - 1)
    }

    pub fn set(&mut self, v: Val, value: Value) {
        self.env.set(v, value);
    }

    // ---- control ----------------------------------------------------------------------------------------------------------------

    pub fn run_phase(&mut self, phase: &'p Phase, grid: &[i64]) -> Result<()> {
        for memory in &mut self.memories {
            memory.start_phase();
        }
        self.grid = grid.to_vec();
        let total = grid
            .iter()
            .try_fold(1i64, |n, &extent| n.checked_mul(extent.max(0)));
        let total = total
            .filter(|&n| n < i64::from(u32::MAX) - 2)
            .ok_or_else(|| err!(TooLarge, "a grid of {grid:?}"))?;
        for number in 0..total {
            let mut rest = number;
            self.id = grid
                .iter()
                .map(|&extent| {
                    let i = rest % extent;
                    rest /= extent;
                    i
                })
                .collect();
            self.instance = u32::try_from(number + 1).unwrap_or(u32::MAX);
            self.run_instance(phase)
                .map_err(|error| error.context(format_args!("instance {:?}", self.id)))?;
        }
        Ok(())
    }

    fn run_instance(&mut self, phase: &'p Phase) -> Result<()> {
        let geometry = &self.program.geometry;
        let permanent = self.memories.len();
        self.barriers = Barriers::default();
        let lone = geometry.lanes == 1 && geometry.warps == 1;
        let mut main = Thread {
            name: "instance",
            frames: vec![Frame {
                block: &phase.body,
                pc: 0,
                ending: Ending::Stop,
            }],
            time: RoleTime::new(0, Clock::default(), lone),
            warps: geometry.warps,
        };
        loop {
            match self.advance(&mut main)? {
                Step::Done => break,
                Step::Blocked => {
                    return Err(err!(
                        InvalidKernel,
                        "deadlock: the instance waits for a barrier that nobody can complete: {}",
                        self.barriers.describe()
                    ));
                }
                Step::Split(roles) => self.run_roles(&mut main, roles)?,
            }
        }
        self.memories.truncate(permanent);
        Ok(())
    }

    fn run_roles(&mut self, main: &mut Thread<'p>, roles: &'p [Role]) -> Result<()> {
        // Whatever the instance did before is known to every role only if it synchronised.
        let mut threads: Vec<Thread<'p>> = roles
            .iter()
            .enumerate()
            .map(|(number, role)| Thread {
                name: &role.name,
                frames: vec![Frame {
                    block: &role.body,
                    pc: 0,
                    ending: Ending::Stop,
                }],
                time: RoleTime::new(
                    number + 1,
                    main.time.clock.clone(),
                    role.warps == 1 && self.program.geometry.lanes == 1,
                ),
                warps: role.warps,
            })
            .collect();
        let mut done = vec![false; threads.len()];
        while done.contains(&false) {
            let before = self.steps_left;
            for (thread, done) in threads
                .iter_mut()
                .zip(&mut done)
                .filter(|(_, done)| !**done)
            {
                match self
                    .advance(thread)
                    .map_err(|error| error.context(format_args!("role {}", thread.name)))?
                {
                    Step::Done => *done = true,
                    Step::Blocked => {}
                    Step::Split(_) => return Err(err!(Internal, "roles inside of roles")),
                }
            }
            if before == self.steps_left && done.contains(&false) {
                let stuck: Vec<&str> = threads
                    .iter()
                    .zip(&done)
                    .filter(|(_, done)| !**done)
                    .map(|(thread, _)| thread.name)
                    .collect();
                return Err(err!(
                    InvalidKernel,
                    "deadlock: roles {} wait for each other: {}",
                    stuck.join(", "),
                    self.barriers.describe()
                ));
            }
        }
        for thread in &mut threads {
            thread.time.sync();
            main.time.clock.join(&thread.time.clock);
        }
        Ok(())
    }

    /// Runs a thread until it ends, waits or splits.
    fn advance(&mut self, thread: &mut Thread<'p>) -> Result<Step<'p>> {
        loop {
            let Some(frame) = thread.frames.last_mut() else {
                return Ok(Step::Done);
            };
            let Some(inst) = frame.block.insts.get(frame.pc) else {
                let (block, ending) = (frame.block, frame.ending);
                thread.frames.pop();
                self.end_block(thread, block, ending)?;
                continue;
            };
            if matches!(&inst.op, Op::BarrierWait { barrier, parity } if !self.barrier_wait(thread, barrier, *parity)?)
            {
                return Ok(Step::Blocked);
            }
            self.steps_left = self
                .steps_left
                .checked_sub(1)
                .ok_or_else(|| err!(StepLimit, "the program runs longer than its limit"))?;
            if let Some(frame) = thread.frames.last_mut() {
                frame.pc += 1;
            }
            match &inst.op {
                Op::For { lo, hi, inits, .. } => {
                    let (lo, hi) = (self.index(lo)?, self.index(hi)?);
                    let starts = inits
                        .iter()
                        .map(|v| self.env.get(*v).cloned())
                        .collect::<Result<Vec<_>>>()?;
                    self.start_iteration(thread, inst, lo, hi, starts);
                }
                Op::If {
                    cond,
                    on_true,
                    on_false,
                } => {
                    let block = if self.tile(*cond)?.scalar_int() != 0 {
                        on_true
                    } else {
                        on_false
                    };
                    thread.frames.push(Frame {
                        block,
                        pc: 0,
                        ending: Ending::Hand(&inst.results),
                    });
                }
                Op::Roles { roles } => return Ok(Step::Split(roles)),
                _ => self
                    .execute(thread, inst)
                    .map_err(|error| error.context(inst.op.row().name))?,
            }
        }
    }

    /// Enters the body for counter `at`, or leaves the loop with `values` as results.
    fn start_iteration(
        &mut self,
        thread: &mut Thread<'p>,
        inst: &'p Inst,
        at: i64,
        hi: i64,
        values: Vec<Value>,
    ) {
        let Op::For {
            iv, carried, body, ..
        } = &inst.op
        else {
            return;
        };
        let targets = if at < hi { carried } else { &inst.results };
        for (v, value) in targets.iter().zip(values) {
            self.env.set(*v, value);
        }
        if at < hi {
            self.env.set(*iv, Value::tile(Data::I(vec![at])));
            thread.frames.push(Frame {
                block: body,
                pc: 0,
                ending: Ending::Again { inst, at, hi },
            });
        }
    }

    fn end_block(
        &mut self,
        thread: &mut Thread<'p>,
        block: &'p Block,
        ending: Ending<'p>,
    ) -> Result<()> {
        let yields = block
            .yields
            .iter()
            .map(|v| self.env.get(*v).cloned())
            .collect::<Result<Vec<_>>>()?;
        match ending {
            Ending::Stop => {}
            Ending::Hand(results) => {
                for (v, value) in results.iter().zip(yields) {
                    self.env.set(*v, value);
                }
            }
            Ending::Again { inst, at, hi } => {
                let step = match &inst.op {
                    Op::For { step, .. } => *step,
                    _ => 1,
                };
                // Beyond the largest counter there is no next iteration.
                self.start_iteration(thread, inst, at.checked_add(step).unwrap_or(hi), hi, yields);
            }
        }
        Ok(())
    }

    // ---- operands ---------------------------------------------------------------------------------------------------------------

    fn index(&self, index: &Index) -> Result<i64> {
        match index {
            Index::Const(n) => Ok(*n),
            Index::Val(v) => Ok(self.tile(*v)?.scalar_int()),
        }
    }

    fn tile(&self, v: Val) -> Result<&Rc<Data>> {
        match self.env.get(v)? {
            Value::Tile {
                data,
                pending: None,
            } => Ok(data),
            Value::Tile {
                pending: Some(_), ..
            } => Err(err!(DataRace, "accumulator {v} is read before mma_wait")),
            Value::Mem(_) | Value::Map => Err(err!(Internal, "{v} is not a tile")),
        }
    }

    fn memory(&self, v: Val) -> Result<usize> {
        match self.env.get(v)? {
            Value::Mem(number) => Ok(*number),
            Value::Tile { .. } | Value::Map => Err(err!(Internal, "{v} is not a memory")),
        }
    }

    fn ty(&self, v: Val) -> Result<&'p TileType> {
        self.program.tile(v)
    }

    fn place(&self, barrier: &BarrierRef) -> Result<(usize, i64)> {
        let slot = self.index(&barrier.slot)?;
        let memory = self.memory(barrier.mem)?;
        let len = self.memories[memory].len;
        ensure!(
            usize::try_from(slot).is_ok_and(|slot| slot < len),
            OutOfBounds,
            "slot {slot} of {len} barriers"
        );
        Ok((memory, slot))
    }

    fn barrier_wait(
        &mut self,
        thread: &mut Thread<'p>,
        barrier: &BarrierRef,
        parity: Val,
    ) -> Result<bool> {
        let (place, parity) = (self.place(barrier)?, self.tile(parity)?.scalar_int());
        ensure!(
            parity == 0 || parity == 1,
            InvalidKernel,
            "a parity of {parity}"
        );
        self.barriers.try_wait(place, parity, &mut thread.time)
    }

    // ---- memory -----------------------------------------------------------------------------------------------------------------

    /// The element positions of a window, in the tile's order; negative offsets and the like are errors where they are touched.
    fn offsets(&self, access: &Access, mask: Option<Val>) -> Result<Vec<Option<i64>>> {
        let base = self.index(&access.base)?;
        let strides = access
            .strides
            .iter()
            .map(|s| self.index(s))
            .collect::<Result<Vec<_>>>()?;
        let mut limits = access.shape.clone();
        for (limit, bound) in limits.iter_mut().zip(&access.valid) {
            if let Some(bound) = bound {
                *limit = self.index(bound)?.clamp(0, *limit);
            }
        }
        if !limits.contains(&0) {
            let reach = |keep: fn(i128) -> bool| {
                limits
                    .iter()
                    .zip(&strides)
                    .map(|(&l, &s)| i128::from(l - 1) * i128::from(s))
                    .filter(|&x| keep(x))
                    .sum::<i128>()
                    + i128::from(base)
            };
            let fits =
                i64::try_from(reach(|x| x < 0)).is_ok() && i64::try_from(reach(|x| x > 0)).is_ok();
            ensure!(fits, OutOfBounds, "a window that leaves the address space");
        }
        let len = usize::try_from(access.shape.iter().product::<i64>()).unwrap_or(0);
        let mask = mask.map(|m| self.tile(m)).transpose()?;
        let (mut out, mut coord) = (Vec::with_capacity(len), vec![0i64; access.shape.len()]);
        for i in 0..len {
            let inside = coord.iter().zip(&limits).all(|(c, l)| c < l)
                && mask.is_none_or(|mask| mask.ints()[i] != 0);
            out.push(
                inside.then(|| coord.iter().zip(&strides).map(|(c, s)| c * s).sum::<i64>() + base),
            );
            for d in (0..coord.len()).rev() {
                coord[d] += 1;
                if coord[d] < access.shape[d] {
                    break;
                }
                coord[d] = 0;
            }
        }
        Ok(out)
    }

    /// Checks accesses to elements and gives their positions.
    fn touch(
        &mut self,
        thread: &Thread<'p>,
        memory: usize,
        offsets: &[Option<i64>],
        touch: Touch,
        path: Path,
    ) -> Result<Vec<Option<usize>>> {
        let (stamp, asynchronous) = match path {
            Path::Ordinary => (thread.time.own(), false),
            Path::CopyGroup => (thread.time.copy(), true),
            Path::Product => (thread.time.product(), true),
        };
        let by = Toucher {
            instance: self.instance,
            stamp,
            clock: &thread.time.clock,
            asynchronous,
        };
        let memory = &mut self.memories[memory];
        let one = |at: i64| match touch {
            Touch::Read => memory.touch_read(at, &by),
            Touch::Write => memory.touch_write(at, &by),
        };
        let mut one = one;
        offsets
            .iter()
            .map(|at| at.map(&mut one).transpose())
            .collect()
    }

    fn read(
        &mut self,
        thread: &Thread<'p>,
        mem: Val,
        offsets: &[Option<i64>],
        fill: Scalar,
        path: Path,
    ) -> Result<Data> {
        let memory = self.memory(mem)?;
        let positions = self.touch(thread, memory, offsets, Touch::Read, path)?;
        let memory = &self.memories[memory];
        Ok(memory.collect(&positions, &Data::splat(memory.dtype, fill, 1)))
    }

    fn write(
        &mut self,
        thread: &Thread<'p>,
        memory: usize,
        offsets: &[Option<i64>],
        data: &Data,
        path: Path,
    ) -> Result<()> {
        let positions = self.touch(thread, memory, offsets, Touch::Write, path)?;
        for (from, at) in positions.into_iter().enumerate() {
            if let Some(at) = at {
                self.memories[memory].set(at, data, from);
            }
        }
        Ok(())
    }

    fn positions(&self, index: Val, mask: Option<Val>) -> Result<Vec<Option<i64>>> {
        let unsigned = self.ty(index)?.dtype == DType::U64;
        let (index, mask) = (self.tile(index)?, mask.map(|m| self.tile(m)).transpose()?);
        let inside = |i: usize| mask.is_none_or(|mask| mask.ints()[i] != 0);
        // An unsigned position beyond i64 is out of any memory's bounds.
        Ok(index
            .ints()
            .iter()
            .enumerate()
            .map(|(i, &at)| inside(i).then_some(if unsigned && at < 0 { i64::MAX } else { at }))
            .collect())
    }

    /// Element offsets of the box at `coords` that lie inside the tensor, in the box's order.
    fn box_offsets(&self, map: &MapData, coords: &[i64]) -> Result<Vec<Option<i64>>> {
        let len = usize::try_from(map.boxed.iter().product::<i64>()).unwrap_or(0);
        let (mut out, mut coord) = (Vec::with_capacity(len), vec![0i64; map.boxed.len()]);
        for _ in 0..len {
            let mut offset = Some(0i64);
            for d in 0..coord.len() {
                let c = coords[d].saturating_add(coord[d]);
                let inside = (0..map.dims[d]).contains(&c);
                offset = offset.filter(|_| inside).and_then(|o| {
                    c.checked_mul(map.strides[d])
                        .and_then(|step| o.checked_add(step))
                });
            }
            out.push(offset);
            for d in (0..coord.len()).rev() {
                coord[d] += 1;
                if coord[d] < map.boxed[d] {
                    break;
                }
                coord[d] = 0;
            }
        }
        Ok(out)
    }

    fn map(&self, v: Val) -> Result<MapData> {
        self.maps
            .get(&v)
            .cloned()
            .ok_or_else(|| err!(Internal, "{v} is not a tensor map"))
    }

    /// An operand of a product as a row-major `[side, k]` matrix.
    fn operand(
        &mut self,
        thread: &Thread<'p>,
        operand: &MmaOperand,
        transpose: bool,
        asynchronous: bool,
    ) -> Result<(Data, usize, usize)> {
        match operand {
            MmaOperand::Tile(v) => {
                let shape = &self.ty(*v)?.shape;
                let (rows, cols) = (
                    usize::try_from(shape[0]).unwrap_or(0),
                    usize::try_from(shape[1]).unwrap_or(0),
                );
                let data = self.tile(*v)?;
                if transpose {
                    return Ok((
                        data.pick((0..cols).flat_map(|c| (0..rows).map(move |r| r * cols + c))),
                        cols,
                        rows,
                    ));
                }
                Ok((Data::clone(data), rows, cols))
            }
            MmaOperand::Mem { access, dims } => {
                let offsets = self.offsets(access, None)?;
                let shared = self.program.mem(access.mem)?.space == Space::Shared;
                let path = if asynchronous && shared {
                    Path::Product
                } else {
                    Path::Ordinary
                };
                let data = self.read(thread, access.mem, &offsets, Scalar::I(0), path)?;
                let extent = |kind: MmaDim| {
                    dims.iter()
                        .zip(&access.shape)
                        .filter(|(d, _)| **d == kind)
                        .map(|(_, e)| usize::try_from(*e).unwrap_or(0))
                        .product::<usize>()
                };
                let (side, k) = (extent(MmaDim::Side), extent(MmaDim::K));
                let mut from = vec![0usize; side * k];
                let mut coord = vec![0i64; access.shape.len()];
                for i in 0..side * k {
                    let (mut s, mut t) = (0usize, 0usize);
                    for (d, kind) in dims.iter().enumerate() {
                        let (c, e) = (
                            usize::try_from(coord[d]).unwrap_or(0),
                            usize::try_from(access.shape[d]).unwrap_or(0),
                        );
                        match kind {
                            MmaDim::Side => s = s * e + c,
                            MmaDim::K => t = t * e + c,
                        }
                    }
                    from[s * k + t] = i;
                    for d in (0..coord.len()).rev() {
                        coord[d] += 1;
                        if coord[d] < access.shape[d] {
                            break;
                        }
                        coord[d] = 0;
                    }
                }
                Ok((data.pick(from.into_iter()), side, k))
            }
        }
    }

    // ---- ops --------------------------------------------------------------------------------------------------------------------

    /// Runs an op that owns no block.
    fn execute(&mut self, thread: &mut Thread<'p>, inst: &'p Inst) -> Result<()> {
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
        let b = bt.pick((0..k).flat_map(|l| (0..n).map(move |j| j * k + l)));
        let Value::Tile { data, pending } = self.env.get(acc)?.clone() else {
            return Err(err!(Internal, "{acc} is not a tile"));
        };
        ensure!(
            asynchronous || pending.is_none(),
            DataRace,
            "accumulator {acc} is updated by an ordinary product while an asynchronous one may be writing it"
        );
        let data = math::matmul(self.ty(acc)?.dtype, &a, &b, &data, [m, n, k]);
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
                        .map(|i| {
                            super::data::wrap(
                                ty.dtype,
                                i64::try_from(i / inner % extent).unwrap_or(0),
                            )
                        })
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
