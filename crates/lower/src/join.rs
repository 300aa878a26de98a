//! Programs side by side: the instances of several kernels laid end to end in one grid.
//!
//! ```text
//!   program A on 2 sets of tensors, 3 instances each       program B on 1 set, 2 instances
//!   instance   0   1   2   3   4   5                          6   7
//!   runs      A.0 A.1 A.2 A.0 A.1 A.2                        B.0 B.1
//!   on        set 0 ..... set 1 .....                        set 2 ..
//! ```
//!
//! A program that runs on several sets of tensors is written once: its buffers are picked by the number of the set. Work that knows nothing of each other then costs one launch instead of one each, and small
//! pieces of it fill a machine together.

use oxyfuel_base::{Arena, DType, Expr, Id, Result, Scalar, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::ir::{
    BinaryOp, Block, BufferMode, CompareOp, Form, Geometry, Inst, Op, Order, Param, ParamKind,
    Phase, TileLayout, Type, Val, ValueData,
};

use crate::{Argument, Lowered};

/// The most programs of one kernel: a driver's compiler takes milliseconds for each, and for those of one kernel one after the other.
pub const MOST_PROGRAMS: usize = 32;
/// The most parameters of one kernel: a GPU's launch carries 4 KiB of them everywhere.
pub const MOST_PARAMS: usize = 500;

/// What must be equal for programs to share a kernel; `None` where a program shares one with nobody: it has several phases, an order of its own, shared memory, sizes that a call brings, or a
/// product that a library may compute.
pub fn joins(lowered: &Lowered) -> Option<Geometry> {
    let program = &lowered.mapped;
    let [phase] = &program.phases[..] else {
        return None;
    };
    let plain = |param: &Param| match &param.kind {
        ParamKind::Buffer(buffer) => buffer.mode != BufferMode::Workspace,
        ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => false,
    };
    // Memory that a block of threads shares would add up, whoever of them runs; and nobody is joined twice.
    let mut alone = false;
    program.walk(|inst| {
        alone |= matches!(
            inst.op,
            Op::Roles { .. } | Op::Pick { .. } | Op::Alloc | Op::ConvertLayout { .. }
        );
    });
    let joins = program.form == Form::Mapped
        && program.rounds == 1
        && phase.order == Order::Plain
        && !phase.overlaps
        && instances(phase).is_some()
        && program.params.iter().all(plain)
        && program.params.len() <= MOST_PARAMS / 2
        && program.geometry.cluster == [1; 3]
        && lowered.gemm.is_none()
        && !alone;
    joins.then_some(Geometry {
        registers: 0,
        ..program.geometry
    })
}

/// How many instances a phase has, where that is known and not none.
pub(crate) fn instances(phase: &Phase) -> Option<i64> {
    let mut extents = phase.grid.iter().map(Expr::as_const);
    let total = extents.try_fold(1i64, |total, extent| total.checked_mul(extent?))?;
    (1..1 << 24).contains(&total).then_some(total)
}

/// One kernel of programs that [`joins`] says fit, and of each on how many sets of arguments it runs. Parameters are those of the first program, of each one for every set, then those of the next.
pub fn join(name: &str, parts: &[(&Lowered, usize)]) -> Result<Lowered> {
    let mut joined = Joined::new(name, parts)?;
    let (id, first) = joined.value(Op::ProgramId { axis: 0 }, DType::I64);
    let mut bodies = Vec::new();
    let mut start = 0;
    for (number, &(lowered, sets)) in parts.iter().enumerate() {
        let count = instances(&lowered.mapped.phases[0])
            .and_then(|n| n.checked_mul(i64::try_from(sets).ok()?))
            .ok_or_else(|| err!(TooLarge, "programs side by side"))?;
        let body = joined.part(id, start, number, (&lowered.mapped, sets), count);
        bodies.push((start, body));
        start += count;
    }
    let mut body = joined.choice(id, bodies);
    body.insts.insert(0, first);
    joined.program.phases[0].body = body;
    joined.program.phases[0].grid = vec![Expr::constant(start)];
    Ok(Lowered {
        logical: None,
        mapped: joined.program.compact(),
        arguments: Vec::new(),
        min_chunk: vec![min_chunk(parts, start)],
        gemm: None,
    })
}

/// The arguments of [`join`]: for each program those of its sets.
pub fn join_arguments(parts: &[Vec<&[Argument]>]) -> Vec<Argument> {
    let of_part = |sets: &Vec<&[Argument]>| {
        let params = sets.first().map_or(0, |set| set.len());
        let sets = sets.clone();
        let param = move |i: usize| sets.clone().into_iter().map(move |set| set[i].clone());
        (0..params).flat_map(param).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of_part).collect()
}

/// Instances that make a thread worth waking: each program says how many of its own do.
fn min_chunk(parts: &[(&Lowered, usize)], total: i64) -> u64 {
    let threads: f64 = parts
        .iter()
        .map(|(lowered, sets)| {
            let count = instances(&lowered.mapped.phases[0]).unwrap_or(1);
            (count as f64) * (*sets as f64) / (lowered.min_chunk[0].max(1) as f64)
        })
        .sum();
    (total as f64 / threads.max(f64::MIN_POSITIVE))
        .ceil()
        .clamp(1.0, total.max(1) as f64) as u64
}

/// The kernel while it is written.
struct Joined {
    program: Program,
    /// Of each program and each of its parameters, those of the kernel.
    mems: Vec<Vec<Vec<Val>>>,
}

impl Joined {
    fn new(name: &str, parts: &[(&Lowered, usize)]) -> Result<Self> {
        let first = parts
            .first()
            .ok_or_else(|| err!(Internal, "a kernel of no programs"))?;
        let mut program = Program {
            name: name.to_owned(),
            form: Form::Mapped,
            params: Vec::new(),
            values: Arena::new(),
            geometry: first.0.mapped.geometry,
            rounds: 1,
            gathered: 0,
            phases: vec![Phase {
                grid: Vec::new(),
                order: Order::Plain,
                overlaps: false,
                body: Block::default(),
            }],
        };
        let mut mems = Vec::new();
        for (number, (lowered, sets)) in parts.iter().enumerate() {
            ensure!(
                joins(lowered).is_some() && joins(lowered) == joins(first.0),
                Internal,
                "programs that do not fit side by side"
            );
            // Who has no bound must not get one.
            let registers = [program.geometry, lowered.mapped.geometry].map(|g| g.registers);
            program.geometry.registers = match registers.contains(&0) {
                true => 0,
                false => registers[0].max(registers[1]),
            };
            let params = lowered.mapped.params.iter().enumerate().map(|(i, param)| {
                let of_set = |set: usize| {
                    let value = program
                        .values
                        .push(lowered.mapped.value(param.value).clone());
                    program.params.push(Param {
                        value,
                        name: format!("p{number}_{i}_{set}"),
                        kind: param.kind.clone(),
                    });
                    value
                };
                (0..*sets).map(of_set).collect()
            });
            mems.push(params.collect());
        }
        ensure!(
            program.params.len() <= MOST_PARAMS && parts.len() <= MOST_PROGRAMS,
            Internal,
            "{} parameters of {} programs in one kernel",
            program.params.len(),
            parts.len()
        );
        Ok(Self { program, mems })
    }

    /// A scalar of a dtype and the instruction that makes it.
    fn value(&mut self, op: Op, dtype: DType) -> (Val, Inst) {
        let value = self.program.values.push(ValueData {
            ty: Type::scalar(dtype),
            layout: Some(TileLayout::default()),
            name: None,
        });
        let results = vec![value];
        (value, Inst { op, results })
    }

    fn constant(&mut self, insts: &mut Vec<Inst>, value: i64) -> Val {
        let value = Scalar::I(value);
        let (result, inst) = self.value(Op::Const { value }, DType::I64);
        insts.push(inst);
        result
    }

    fn binary(&mut self, insts: &mut Vec<Inst>, op: BinaryOp, lhs: Val, rhs: i64) -> Val {
        let rhs = self.constant(insts, rhs);
        let (result, inst) = self.value(Op::Binary { op, lhs, rhs }, DType::I64);
        insts.push(inst);
        result
    }

    /// The body that an instance runs, by where the instances of each begin: halved until one is left.
    fn choice(&mut self, id: Val, mut bodies: Vec<(i64, Block)>) -> Block {
        let later = bodies.split_off(bodies.len().div_ceil(2));
        let Some(&(bound, _)) = later.first() else {
            return bodies.pop().map(|(_, body)| body).unwrap_or_default();
        };
        let mut insts = Vec::new();
        let rhs = self.constant(&mut insts, bound);
        let op = Op::Compare {
            op: CompareOp::Lt,
            lhs: id,
            rhs,
        };
        let (cond, inst) = self.value(op, DType::Bool);
        insts.push(inst);
        insts.push(Inst {
            op: Op::If {
                cond,
                on_true: self.choice(id, bodies),
                on_false: self.choice(id, later),
            },
            results: Vec::new(),
        });
        Block {
            insts,
            yields: Vec::new(),
        }
    }

    /// The program of number `number` on the instances from `start` on, of which there are `count`.
    fn part(
        &mut self,
        id: Val,
        start: i64,
        number: usize,
        (program, sets): (&Program, usize),
        count: i64,
    ) -> Block {
        let phase = &program.phases[0];
        let mut insts = Vec::new();
        let mut own = id;
        if start > 0 {
            own = self.binary(&mut insts, BinaryOp::Sub, own, start);
            // The branch around says as much, but not to who looks at values alone.
            own = self.binary(&mut insts, BinaryOp::Max, own, 0);
        }
        own = self.binary(&mut insts, BinaryOp::Min, own, count - 1);
        let each = count / i64::try_from(sets).unwrap_or(1).max(1);
        let (set, mut rest) = match (sets, each) {
            (1, _) => (self.constant(&mut insts, 0), own),
            (_, 1) => (own, self.constant(&mut insts, 0)),
            _ => (
                self.binary(&mut insts, BinaryOp::FloorDiv, own, each),
                self.binary(&mut insts, BinaryOp::Mod, own, each),
            ),
        };
        let mut ids = Vec::new();
        for (axis, extent) in phase.grid.iter().enumerate() {
            let extent = extent.as_const().unwrap_or(1);
            if axis + 1 == phase.grid.len() {
                ids.push(rest);
                break;
            }
            ids.push(self.binary(&mut insts, BinaryOp::Mod, rest, extent));
            rest = self.binary(&mut insts, BinaryOp::FloorDiv, rest, extent);
        }

        let offset = self.program.values.len();
        for data in program.values.values() {
            self.program.values.push(data.clone());
        }
        let mut names: Vec<Val> = (offset..self.program.values.len())
            .map(Val::from_index)
            .collect();
        for (param, mems) in program.params.iter().zip(&self.mems[number]) {
            insts.push(Inst {
                op: Op::Pick {
                    mems: mems.clone(),
                    index: set,
                },
                results: vec![names[param.value.index()]],
            });
        }
        phase.body.walk(&mut |inst| {
            if let Op::ProgramId { axis } = inst.op {
                names[inst.results[0].index()] = ids[usize::from(axis)];
            }
        });
        let extents: Vec<i64> = phase.grid.iter().filter_map(Expr::as_const).collect();
        let mut body = phase.body.clone();
        rename(&mut body, &names, &extents);
        insts.extend(body.insts);
        Block {
            insts,
            yields: Vec::new(),
        }
    }
}

/// The block in the numbers of the joined program, in which positions on the axes are computed elsewhere and extents are known.
fn rename(block: &mut Block, names: &[Val], extents: &[i64]) {
    (block.insts).retain(|inst| !matches!(inst.op, Op::ProgramId { .. }));
    for inst in &mut block.insts {
        if let Op::NumPrograms { axis } = inst.op {
            let value = Scalar::I(extents[usize::from(axis)]);
            inst.op = Op::Const { value };
        }
        inst.op.map_args(|v| names[v.index()]);
        let params = inst.op.block_params_mut().into_iter();
        for v in params.chain(&mut inst.results) {
            *v = names[v.index()];
        }
        for inner in inst.op.blocks_mut() {
            rename(inner, names, extents);
        }
    }
    for v in &mut block.yields {
        *v = names[v.index()];
    }
}
