//! One phase of a program to one entry of PTX, or all of them where they are gathered.
//!
//! The walk follows the tile IR: each op looks only at itself and at the layouts of its values. A *team* is the set of warps that runs the code at
//! hand: all of them, or those of one role. Ops that happen "once per role" are done by the team's first thread.

use std::cell::RefCell;
use std::rc::Rc;

use oxyfuel_base::{DType, Id, Result, Symbol, ensure, err};
use oxyfuel_kernel::ir::{
    Block, BufferParam, Index, Inst, Op, Order, ParamKind, Phase, Program, Space, TileLayout, Type,
    Val,
};

use rustc_hash::FxHashMap;

use crate::asm::{Asm, Class, Opd, Reg};
use crate::cluster::Meetings;
use crate::fact::Fact;
use crate::place::Place;
use crate::shared::SharedPlan;
use crate::target::{CLUSTERS, Target, Version};
use crate::value::{Int, Memory, Slot, Tile, Value, class_of, literal, range_of};

/// What a launch of one phase must know.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The version of PTX that its text wants beyond what every text for the target has.
    pub(crate) version: Version,
    /// Shared memory to ask for at launch.
    pub(crate) dynamic_shared: u32,
    /// Instances that a fixed number of blocks take in turn; `None`: one block an instance.
    pub(crate) persistent: Option<u64>,
}

/// Registers of a tile that a run of elementwise ops takes at a time: whole words of the narrowest dtype.
const SLICE: usize = 8;

/// Some registers of tiles that have `of` of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) from: usize,
    pub(crate) until: usize,
    of: usize,
}

/// The warps that run the code at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Team {
    /// Number of the thread within the team.
    pub(crate) tid: Reg,
    pub(crate) warps: u32,
    /// Blocks that these warps belong to.
    pub(crate) blocks: u32,
    /// The hardware barrier it meets at.
    pub(crate) barrier: u32,
    /// Only its first thread is here.
    pub(crate) single: bool,
}

/// Places by layout and shape.
type Places = FxHashMap<(TileLayout, Vec<i64>), Rc<Place>>;

pub(crate) struct Emitter<'p> {
    pub(crate) program: &'p Program,
    pub(crate) target: &'static Target,
    pub(crate) phase: &'p Phase,
    pub(crate) asm: Asm,
    pub(crate) values: Vec<Option<Value>>,
    pub(crate) team: Team,
    pub(crate) shared: SharedPlan,
    /// The words of the launch, where they are one array.
    table: Option<Reg>,
    /// Code here may run more than once in a launch.
    pub(crate) loops: u32,
    /// Positions of the instance on the axes of the grid.
    pub(crate) program_id: [Option<Int>; 3],
    pub(crate) copies: Copies,
    /// The registers that elementwise ops work on now; `None`: all of them.
    slice: Option<Slice>,
    places: RefCell<Places>,
    /// Where the blocks of a cluster meet, if they do.
    pub(crate) meetings: Option<Meetings>,
    /// In the role at hand shared memory is read by asynchronous products alone, which answer for their own warps.
    pub(crate) reads_by_products: bool,
    /// The policy of loads whose data the second-level cache lets go of last.
    pub(crate) kept: Option<Reg>,
}

/// Which kinds of asynchronous copies a phase uses; commits and waits speak of those.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copies {
    pub(crate) bulk: bool,
    pub(crate) threads: bool,
}

impl Copies {
    pub(crate) fn of(block: &Block) -> Self {
        let mut all = Self::default();
        block.walk(&mut |inst| {
            all.bulk |= matches!(inst.op, Op::TensorStore { .. });
            all.threads |= matches!(inst.op, Op::CopyAsync { .. });
        });
        all
    }
}

/// The text of one entry, and its launch: of the phase of a number, or of all of them.
pub(crate) fn emit_entry(
    program: &Program,
    number: Option<usize>,
    target: &'static Target,
) -> Result<(String, Entry)> {
    let phase = program.phases.get(number.unwrap_or(0));
    let phase = phase.ok_or_else(|| err!(Internal, "there is no phase {number:?}"))?;
    let geometry = program.geometry;
    let threads = geometry.lanes.saturating_mul(geometry.warps);
    ensure!(
        program.rounds == 1,
        NoLowering,
        "a GPU runs the phases of a kernel once, not in {} rounds",
        program.rounds
    );
    ensure!(
        geometry.lanes == 32,
        NoLowering,
        "a warp has 32 lanes, not {}",
        geometry.lanes
    );
    ensure!(
        (1..=1024).contains(&threads),
        NoLowering,
        "a block of {threads} threads cannot be launched"
    );
    let name = entry_name(program, number);

    let mut asm = Asm::new();
    let tid = asm.reg(Class::B32);
    asm.line(format_args!("mov.u32 {tid}, %tid.x"));
    let mut emitter = Emitter {
        program,
        target,
        phase,
        asm,
        values: vec![None; program.values.len()],
        team: Team {
            tid,
            warps: geometry.warps,
            blocks: 1,
            barrier: 0,
            single: false,
        },
        shared: SharedPlan::default(),
        table: None,
        loops: 0,
        program_id: [None; 3],
        copies: Copies::of(&phase.body),
        slice: None,
        places: RefCell::default(),
        meetings: None,
        reads_by_products: false,
        kept: None,
    };
    if geometry.cluster != [1; 3] {
        emitter.begin_cluster()?;
    }
    let persistent = match number {
        Some(_) => {
            emitter.parameters(&name, |_| true)?;
            emitter.keep();
            emitter.wait_for_grids_before();
            emitter.instances()?
        }
        None => {
            emitter.wait_for_grids_before();
            emitter.all_phases(&name)?;
            Some(u64::from(program.gathered))
        }
    };
    let shared = emitter.shared.finish(target)?;

    let mut text = String::new();
    if shared.dynamic > 0 {
        text.push_str(&format!(
            ".extern .shared .align 1024 .b8 {name}_shared[];\n\n"
        ));
    }
    // Where parameters are picked by number they are one array of words, which is how a launch keeps them anyway.
    let params = match emitter.table.is_some() {
        true => vec![format!(
            ".param .align 8 .b8 {name}_0[{}]",
            8 * program.params.len()
        )],
        false => (program.params.iter().enumerate())
            .map(|(i, param)| declare_param(&name, i, &param.kind))
            .collect(),
    };
    text.push_str(&format!(
        ".visible .entry {name}(\n\t{}\n)\n.reqntid {threads},1,1\n",
        params.join(",\n\t")
    ));
    let cluster = launched_cluster(program);
    if cluster != [1; 3] {
        emitter.asm.wants(CLUSTERS);
        text.push_str(&format!(
            ".explicitcluster\n.reqnctapercluster {},{},{}\n",
            cluster[0], cluster[1], cluster[2]
        ));
    }
    let budgets = has_budgets(&phase.body);
    if budgets {
        // Roles can trade registers only where the assembler knows how many there are.
        text.push_str(".minnctapersm 1\n");
    } else if geometry.registers > 0 {
        text.push_str(&format!(".maxnreg {}\n", geometry.registers));
    }
    let version = emitter.asm.version();
    text.push_str("{\n");
    if shared.fixed > 0 {
        text.push_str(&format!(
            "\t.shared .align 1024 .b8 {name}_shared[{}];\n",
            shared.fixed
        ));
    }
    text.push_str(
        &emitter
            .asm
            .finish()
            .replace("$SHARED", &format!("{name}_shared")),
    );
    text.push_str("\tret;\n}\n");
    let entry = Entry {
        name,
        version,
        dynamic_shared: shared.dynamic,
        persistent,
    };
    Ok((text, entry))
}

/// The blocks that the hardware places together: those of one instance, or those that run all.
pub(crate) fn launched_cluster(program: &Program) -> [u32; 3] {
    match program.gathered {
        0 => program.geometry.cluster,
        blocks => [blocks, 1, 1],
    }
}

/// Letters, digits and underscores of the program's name, and the phase where it is one of several.
fn entry_name(program: &Program, phase: Option<usize>) -> String {
    let mut name: String = program
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.insert_str(0, "k_");
    }
    if let Some(phase) = phase.filter(|_| program.phases.len() > 1) {
        name.push_str(&format!("_{phase}"));
    }
    name
}

fn declare_param(entry: &str, i: usize, kind: &ParamKind) -> String {
    match kind {
        ParamKind::Buffer(_) => format!(".param .u64 {entry}_{i}"),
        ParamKind::Scalar { dtype, .. } => format!(".param .b{} {entry}_{i}", 8 * dtype.size()),
        ParamKind::TensorMap(_) => format!(".param .align 64 .b8 {entry}_{i}[128]"),
    }
}

fn has_budgets(block: &Block) -> bool {
    block.insts.iter().any(|inst| match &inst.op {
        Op::Roles { roles } => roles.iter().any(|role| role.registers > 0),
        op => op.blocks().into_iter().any(has_budgets),
    })
}

impl Emitter<'_> {
    /// Waits until the grids before are done and seen: nothing is read or written ahead of this. Every thread waits, so that a grid that ended says that all before it did.
    fn wait_for_grids_before(&mut self) {
        if self.target.dependent_launch {
            self.asm.line(format_args!("griddepcontrol.wait"));
        }
    }

    /// Those of the parameters that are wanted, read from the launch of an entry.
    pub(crate) fn parameters(&mut self, entry: &str, wanted: impl Fn(Val) -> bool) -> Result<()> {
        let picked = self.program.picked();
        if !picked.is_empty() {
            let table = self.asm.reg(Class::B64);
            self.asm.line(format_args!("mov.b64 {table}, {entry}_0"));
            self.table = Some(table);
        }
        for (i, param) in self.program.params.iter().enumerate() {
            if picked.contains(&param.value) || !wanted(param.value) {
                continue;
            }
            let at = match self.table {
                Some(table) => format!("{table}+{}", 8 * i),
                None => format!("{entry}_{i}"),
            };
            let value = match &param.kind {
                ParamKind::Buffer(buffer) => self.buffer_param(buffer, &at),
                ParamKind::Scalar { dtype, symbol } => {
                    let slot = self.scalar_param(&at, *dtype);
                    let (slot, fact) = match (symbol, slot) {
                        (Some(symbol), Slot::Opd(opd)) if *dtype == DType::I64 => {
                            let size = self.asm.fitted(opd, self.size_fact(*symbol));
                            (Slot::Opd(size.opd), size.fact)
                        }
                        _ => (slot, range_of(*dtype)),
                    };
                    self.tile_like(param.value, *dtype, vec![slot], fact)?
                }
                ParamKind::TensorMap(_) => {
                    ensure!(
                        self.target.tensor_copies,
                        NoLowering,
                        "{} has no tensor copies",
                        self.target.name
                    );
                    ensure!(
                        self.table.is_none(),
                        NoLowering,
                        "tensor maps are no words, which picked parameters are an array of"
                    );
                    let raw = self.asm.reg(Class::B64);
                    self.asm.line(format_args!("mov.b64 {raw}, {entry}_{i}"));
                    Value::TensorMap(self.asm.pure(Class::B64, "cvta.param.u64", &[raw.into()]))
                }
            };
            self.set(param.value, value)?;
        }
        Ok(())
    }

    /// The memory whose pointer is a word of the launch.
    fn buffer_param(&mut self, buffer: &BufferParam, at: &str) -> Value {
        let raw = self.asm.reg(Class::B64);
        self.asm.line(format_args!("ld.param.u64 {raw}, [{at}]"));
        let base = self
            .asm
            .pure(Class::B64, "cvta.to.global.u64", &[raw.into()]);
        Value::Memory(Memory {
            dtype: buffer.dtype,
            space: Space::Global,
            base,
            align: u64::from(buffer.align.max(1)),
            swizzle: None,
        })
    }

    /// One of several buffer parameters, read where it is known which.
    pub(crate) fn pick(&mut self, result: Val, mems: &[Val], index: Val) -> Result<()> {
        let params = self.program.params.iter().enumerate();
        let mut buffers = params.filter_map(|(i, param)| match &param.kind {
            ParamKind::Buffer(buffer) if param.value == mems[0] => Some((i, buffer)),
            ParamKind::Buffer(_) | ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => None,
        });
        let (Some((first, buffer)), Some(table)) = (buffers.next(), self.table) else {
            return Err(err!(InvalidKernel, "a pick among no parameters"));
        };
        let number = self.scalar_int(index)?;
        let word = self.asm.address(table, number, 8);
        let value = self.buffer_param(buffer, &format!("{word}+{}", 8 * first));
        self.set(result, value)
    }

    /// Sizes are not negative; those of a tensor map fit the 32-bit coordinates of its boxes, with room to go past the end.
    fn size_fact(&self, symbol: Symbol) -> Fact {
        let boxed = self.program.params.iter().any(|param| match &param.kind {
            ParamKind::TensorMap(map) => map.dims.iter().any(|dim| dim.as_symbol() == Some(symbol)),
            ParamKind::Buffer(_) | ParamKind::Scalar { .. } => false,
        });
        if boxed {
            Fact::range(0, i64::from(i32::MAX) - 0xffff)
        } else {
            Fact::range(0, i64::MAX)
        }
    }

    fn scalar_param(&mut self, name: &str, dtype: DType) -> Slot {
        let class = if dtype.is_bool() {
            Class::B32
        } else {
            class_of(dtype, Fact::UNKNOWN)
        };
        let reg = self.asm.reg(class);
        let ty = match (dtype.size(), dtype.is_int() && dtype.is_signed()) {
            (1, true) => "s8",
            (1, false) => "u8",
            (2, _) if class == Class::B16 => "b16",
            (2, true) => "s16",
            (2, false) => "u16",
            (4, _) => "b32",
            _ => "b64",
        };
        self.asm.line(format_args!("ld.param.{ty} {reg}, [{name}]"));
        if dtype.is_bool() {
            return self
                .asm
                .pure(Class::Pred, "setp.ne.u32", &[reg.into(), Opd::Int(0)])
                .into();
        }
        reg.into()
    }

    /// Where each block finds the instance it runs, and the code of the instance.
    fn instances(&mut self) -> Result<Option<u64>> {
        let phase = self.phase;
        let rank = phase.grid.len();
        ensure!(
            rank <= 3,
            NoLowering,
            "a grid of {rank} axes cannot be launched"
        );
        let extents: Vec<Option<i64>> = phase.grid.iter().map(|extent| extent.as_const()).collect();
        for (axis, extent) in extents.iter().enumerate() {
            let limit = if axis == 0 {
                i64::from(i32::MAX)
            } else {
                65_535
            };
            ensure!(
                extent.is_none_or(|n| (0..=limit).contains(&n)),
                TooLarge,
                "axis {axis} of the grid has {extent:?} instances, at most {limit} can be launched"
            );
        }
        match (phase.order, known_grid(phase)) {
            (Order::Persistent { group }, Some((extents, total))) if !has_roles(&phase.body) => {
                self.persistent(&extents, total, group)?;
                Ok(Some(total.unsigned_abs()))
            }
            (Order::Plain, ..) => {
                for axis in 0..rank {
                    self.program_id[axis] = Some(self.hardware_id(axis));
                }
                self.block(&phase.body)?;
                Ok(None)
            }
            (Order::Grouped { group } | Order::Persistent { group }, ..) => {
                self.grouped_by_hardware(rank, group)?;
                self.block(&phase.body)?;
                Ok(None)
            }
        }
    }

    pub(crate) fn hardware_id(&mut self, axis: usize) -> Int {
        let ids = match self.team.blocks {
            1 => ["%ctaid.x", "%ctaid.y", "%ctaid.z"],
            _ => ["%clusterid.x", "%clusterid.y", "%clusterid.z"],
        };
        let reg = self.special(ids[axis]);
        let limit = if axis == 0 {
            i64::from(i32::MAX)
        } else {
            65_535
        };
        let extent = self
            .phase
            .grid
            .get(axis)
            .and_then(|extent| extent.as_const())
            .unwrap_or(limit);
        let fact = Fact::range(0, (extent - 1).max(0));
        self.asm.fitted(reg.into(), fact)
    }

    /// Extent of an axis of the grid.
    pub(crate) fn grid_extent(&mut self, axis: usize) -> Int {
        match self.phase.grid.get(axis).map(|extent| extent.as_const()) {
            None => Int::constant(1),
            Some(Some(extent)) => Int::constant(extent),
            Some(None) => {
                let extents = match self.team.blocks {
                    1 => ["%nctaid.x", "%nctaid.y", "%nctaid.z"],
                    _ => ["%nclusterid.x", "%nclusterid.y", "%nclusterid.z"],
                };
                let reg = self.special(extents[axis]);
                Int {
                    opd: reg.into(),
                    fact: Fact::range(
                        1,
                        if axis == 0 {
                            i64::from(i32::MAX)
                        } else {
                            65_535
                        },
                    ),
                }
            }
        }
    }

    pub(crate) fn special(&mut self, name: &str) -> Reg {
        let reg = self.asm.reg(Class::B32);
        self.asm.line(format_args!("mov.u32 {reg}, {name}"));
        reg
    }

    fn grouped_by_hardware(&mut self, rank: usize, group: u32) -> Result<()> {
        let ids: Vec<Int> = (0..rank).map(|axis| self.hardware_id(axis)).collect();
        if rank < 2 || group <= 1 {
            for (axis, id) in ids.into_iter().enumerate() {
                self.program_id[axis] = Some(id);
            }
            return Ok(());
        }
        let (rows, cols) = (self.grid_extent(0), self.grid_extent(1));
        let row_of_blocks = self.asm.int_mul(ids[1], rows);
        let linear = self.asm.int_add(row_of_blocks, ids[0]);
        let limit = Fact::range(0, linear.fact.hi.min(i64::from(i32::MAX)));
        let linear = self.asm.fitted(linear.opd, limit);
        self.bands(linear, rows, cols, i64::from(group));
        if rank == 3 {
            self.program_id[2] = Some(ids[2]);
        }
        Ok(())
    }

    /// Axes 0 and 1 of instance `linear`: bands of `group` rows, within a band axis 0 fastest. The last band may be lower.
    fn bands(&mut self, linear: Int, rows: Int, cols: Int, group: i64) {
        let unsigned = |asm: &mut Asm, op: &str, a: Int, b: Int, hi: i64| {
            let (x, y) = (asm.narrow(a), asm.narrow(b));
            Int {
                opd: asm.pure(Class::B32, op, &[x, y]).into(),
                fact: Fact::range(0, hi),
            }
        };
        let max = i64::from(i32::MAX);
        let per_band = self.asm.int_mul(cols, Int::constant(group));
        let per_band = self
            .asm
            .fitted(per_band.opd, Fact::range(1, per_band.fact.hi.min(max)));
        let band = unsigned(&mut self.asm, "div.u32", linear, per_band, max);
        let before = unsigned(&mut self.asm, "mul.lo.u32", band, per_band, max);
        let inside = unsigned(&mut self.asm, "sub.u32", linear, before, max);
        let first = unsigned(&mut self.asm, "mul.lo.u32", band, Int::constant(group), max);
        let left = unsigned(&mut self.asm, "sub.u32", rows, first, max);
        let height = unsigned(&mut self.asm, "min.u32", left, Int::constant(group), group);
        let col = unsigned(&mut self.asm, "div.u32", inside, height, cols.fact.hi - 1);
        let product = unsigned(&mut self.asm, "mul.lo.u32", col, height, max);
        let below = unsigned(&mut self.asm, "sub.u32", inside, product, max);
        let row = unsigned(&mut self.asm, "add.u32", first, below, rows.fact.hi - 1);
        self.program_id[0] = Some(row);
        self.program_id[1] = Some(col);
    }

    /// A fixed number of blocks, each taking every so-manieth instance.
    pub(crate) fn persistent(&mut self, extents: &[i64], total: i64, group: u32) -> Result<()> {
        let linear = self.asm.reg(Class::B32);
        self.asm.line(format_args!("mov.u32 {linear}, %ctaid.x"));
        self.asm.mark_mutable(linear);
        let step = self.special("%nctaid.x");
        let (head, end) = (self.asm.label(), self.asm.label());
        self.asm.place(&head);
        let p = self.asm.reg(Class::Pred);
        self.asm
            .line(format_args!("setp.ge.s32 {p}, {linear}, {total}"));
        self.asm.line(format_args!("@{p} bra {end}"));
        self.asm.enter();
        self.loops += 1;
        let id = self.asm.pure(Class::B32, "mov.b32", &[linear.into()]);
        let id = Int {
            opd: id.into(),
            fact: Fact::range(0, (total - 1).max(0)),
        };
        self.at_instance(id, extents, group);
        let phase = self.phase;
        self.block(&phase.body)?;
        self.loops -= 1;
        self.asm.leave();
        self.sync();
        self.asm
            .line(format_args!("add.s32 {linear}, {linear}, {step}"));
        self.asm.line(format_args!("bra {head}"));
        self.asm.place(&end);
        Ok(())
    }

    /// The position on every axis of instance `id` of a grid.
    pub(crate) fn at_instance(&mut self, id: Int, extents: &[i64], group: u32) {
        let (rows, cols) = (
            extents.first().copied().unwrap_or(1),
            extents.get(1).copied().unwrap_or(1),
        );
        let plane = self.asm.int_mod(id, (rows * cols).max(1));
        if extents.len() == 3 {
            self.program_id[2] = Some(self.asm.int_floordiv(id, (rows * cols).max(1)));
        }
        if extents.len() >= 2 && group > 1 {
            self.bands(
                plane,
                Int::constant(rows),
                Int::constant(cols),
                i64::from(group),
            );
        } else {
            self.program_id[0] = Some(self.asm.int_mod(plane, rows.max(1)));
            self.program_id[1] = Some(self.asm.int_floordiv(plane, rows.max(1)));
        }
    }

    // ---- values ------------------------------------------------------------------------------------------------------------------

    pub(crate) fn set(&mut self, v: Val, value: Value) -> Result<()> {
        let place = self
            .values
            .get_mut(v.index())
            .ok_or_else(|| err!(InvalidKernel, "there is no value {v}"))?;
        *place = Some(value);
        Ok(())
    }

    fn get(&self, v: Val) -> Result<&Value> {
        self.values
            .get(v.index())
            .and_then(Option::as_ref)
            .ok_or_else(|| err!(InvalidKernel, "{v} is used before it is defined"))
    }

    pub(crate) fn tile(&self, v: Val) -> Result<Tile> {
        match self.get(v)? {
            Value::Tile(tile) => Ok(match &self.slice {
                Some(slice) if tile.slots.len() == slice.of => tile.slice(slice),
                Some(_) | None => tile.clone(),
            }),
            Value::Memory(_) | Value::TensorMap(_) => Err(err!(InvalidKernel, "{v} is not a tile")),
        }
    }

    pub(crate) fn memory(&self, v: Val) -> Result<Memory> {
        match self.get(v)? {
            Value::Memory(memory) => Ok(memory.clone()),
            Value::Tile(_) | Value::TensorMap(_) => Err(err!(InvalidKernel, "{v} is not a memory")),
        }
    }

    pub(crate) fn tensor_map(&self, v: Val) -> Result<Reg> {
        match self.get(v)? {
            Value::TensorMap(reg) => Ok(*reg),
            Value::Tile(_) | Value::Memory(_) => {
                Err(err!(InvalidKernel, "{v} is not a tensor map"))
            }
        }
    }

    /// Where the program puts a tile; of a sliced one, the registers of the slice.
    pub(crate) fn place(&self, v: Val) -> Result<Rc<Place>> {
        let place = self.whole_place(v)?;
        match &self.slice {
            Some(slice) if place.regs.len() == slice.of => Ok(Rc::new(place.slice(slice))),
            Some(_) | None => Ok(place),
        }
    }

    fn whole_place(&self, v: Val) -> Result<Rc<Place>> {
        let data = self
            .program
            .values
            .get(v)
            .ok_or_else(|| err!(InvalidKernel, "there is no value {v}"))?;
        let Type::Tile(ty) = &data.ty else {
            return Err(err!(InvalidKernel, "{v} is not a tile"));
        };
        let layout = match &data.layout {
            Some(layout) => layout.clone(),
            None if ty.shape.is_empty() => TileLayout::default(),
            None => {
                return Err(err!(
                    InvalidKernel,
                    "{v} has no layout: the program is not mapped"
                ));
            }
        };
        let key = (self.of_team(layout)?, ty.shape.clone());
        if let Some(place) = self.places.borrow().get(&key) {
            return Ok(place.clone());
        }
        let place = Rc::new(Place::new(&key.0, &key.1)?);
        self.places.borrow_mut().insert(key, place.clone());
        Ok(place)
    }

    pub(crate) fn dtype(&self, v: Val) -> Result<DType> {
        match self.program.values.get(v).map(|data| &data.ty) {
            Some(Type::Tile(ty)) => Ok(ty.dtype),
            Some(Type::Mem(ty)) => Ok(ty.dtype),
            Some(Type::TensorMap) | None => Err(err!(InvalidKernel, "{v} has no dtype")),
        }
    }

    pub(crate) fn tile_like(
        &self,
        v: Val,
        dtype: DType,
        slots: Vec<Slot>,
        fact: Fact,
    ) -> Result<Value> {
        let place = self.place(v)?;
        ensure!(
            place.regs.len() == slots.len(),
            InvalidKernel,
            "{v} has {} registers a thread, its op makes {}",
            place.regs.len(),
            slots.len()
        );
        Ok(Value::Tile(Tile {
            dtype,
            place,
            slots,
            fact,
        }))
    }

    pub(crate) fn define(&mut self, v: Val, slots: Vec<Slot>, fact: Fact) -> Result<()> {
        let dtype = self.dtype(v)?;
        let value = self.tile_like(v, dtype, slots, fact)?;
        self.set(v, value)
    }

    pub(crate) fn index(&mut self, index: Index) -> Result<Int> {
        match index {
            Index::Const(value) => Ok(Int::constant(value)),
            Index::Val(v) => self.scalar_int(v),
        }
    }

    pub(crate) fn scalar_int(&mut self, v: Val) -> Result<Int> {
        let tile = self.tile(v)?;
        ensure!(tile.dtype.is_int(), InvalidKernel, "{v} is not an integer");
        let slot = tile.scalar()?;
        let opd = self.asm.element(tile.dtype, slot);
        Ok(Int {
            opd,
            fact: tile.fact,
        })
    }

    pub(crate) fn one_result(inst: &Inst) -> Result<Val> {
        match inst.results.as_slice() {
            [one] => Ok(*one),
            results => Err(err!(
                InvalidKernel,
                "an op has {} results instead of one",
                results.len()
            )),
        }
    }

    /// Every place of the result holds the literal.
    pub(crate) fn literal_tile(&self, v: Val, value: oxyfuel_base::Scalar) -> Result<Value> {
        let dtype = self.dtype(v)?;
        let place = self.place(v)?;
        let opd = literal(dtype, value);
        let fact = match opd {
            Opd::Int(n) if dtype.is_int() => Fact::constant(n),
            Opd::Int(_) | Opd::Reg(_) | Opd::F32(_) | Opd::F64(_) => range_of(dtype),
        };
        let slots = vec![Slot::Opd(opd); place.regs.len()];
        Ok(Value::Tile(Tile {
            dtype,
            place,
            slots,
            fact,
        }))
    }

    pub(crate) fn block(&mut self, block: &Block) -> Result<()> {
        let mut at = 0;
        while let Some(inst) = block.insts.get(at) {
            let (run, registers) = self.slotwise_run(&block.insts[at..])?;
            let reductions = reductions_in_a_row(&block.insts[at..]);
            if run > 1 && registers > SLICE {
                self.sliced(&block.insts[at..at + run], registers)?;
                at += run;
            } else if reductions > 1 {
                self.reduce_all(&block.insts[at..at + reductions])?;
                at += reductions;
            } else {
                self.inst(inst, block.insts.get(at + 1))?;
                at += 1;
            }
        }
        Ok(())
    }

    /// How many instructions from here on work place by place on tiles of one number of registers, and that number.
    fn slotwise_run(&self, insts: &[Inst]) -> Result<(usize, usize)> {
        let mut registers = 1;
        for (n, inst) in insts.iter().enumerate() {
            let slotwise = matches!(
                inst.op,
                Op::Const { .. }
                    | Op::Splat { .. }
                    | Op::Unary { .. }
                    | Op::Binary { .. }
                    | Op::Compare { .. }
                    | Op::Select { .. }
                    | Op::Fma { .. }
                    | Op::Cast { .. }
                    | Op::Bitcast { .. }
            );
            let ([result], true) = (inst.results.as_slice(), slotwise) else {
                return Ok((n, registers));
            };
            let own = self.whole_place(*result)?.regs.len();
            // The width of an index depends on what is known of the whole tile.
            let index = self.dtype(*result)? == DType::I64 && own > 1;
            if index || (own > 1 && registers > 1 && own != registers) {
                return Ok((n, registers));
            }
            registers = registers.max(own);
        }
        Ok((insts.len(), registers))
    }

    /// A run of elementwise instructions a few registers at a time: what lies between the first and the last op of a chain then lives for one slice
    /// only, where op after op would keep whole tiles of it alive.
    fn sliced(&mut self, run: &[Inst], registers: usize) -> Result<()> {
        let mut whole: Vec<Option<Tile>> = vec![None; run.len()];
        for from in (0..registers).step_by(SLICE) {
            self.slice = Some(Slice {
                from,
                until: (from + SLICE).min(registers),
                of: registers,
            });
            let done = run.iter().try_for_each(|inst| self.inst(inst, None));
            self.slice = None;
            done?;
            for (inst, whole) in run.iter().zip(&mut whole) {
                let part = self.tile(Self::one_result(inst)?)?;
                match whole {
                    Some(tile) if tile.slots.len() + part.slots.len() <= registers => {
                        tile.slots.extend(part.slots);
                        tile.fact = tile.fact.join(part.fact);
                    }
                    Some(_) => {}
                    None => *whole = Some(part),
                }
            }
        }
        for (inst, tile) in run.iter().zip(whole) {
            let result = Self::one_result(inst)?;
            if let Some(tile) = tile
                && tile.slots.len() == registers
            {
                self.define(result, tile.slots, tile.fact)?;
            }
        }
        Ok(())
    }

    /// All warps of the team meet.
    pub(crate) fn sync(&mut self) {
        if self.team.single {
            return;
        }
        if self.team.warps == 1 {
            self.asm.line("bar.warp.sync -1");
        } else {
            let threads = 32 * self.team.warps / self.team.blocks;
            let id = self.team.barrier;
            self.asm.line(format_args!("bar.sync {id}, {threads}"));
        }
    }

    /// True in the team's first thread; `None` where no other is here.
    pub(crate) fn first_thread(&mut self) -> Option<Reg> {
        (!self.team.single).then(|| {
            self.asm.pure(
                Class::Pred,
                "setp.eq.s32",
                &[self.team.tid.into(), Opd::Int(0)],
            )
        })
    }
}

/// How many reductions of what is there already these instructions begin with.
fn reductions_in_a_row(insts: &[Inst]) -> usize {
    let mut results: Vec<Val> = Vec::new();
    for (n, inst) in insts.iter().enumerate() {
        let Op::Reduce { value, .. } = inst.op else {
            return n;
        };
        if results.contains(&value) {
            return n;
        }
        results.extend(&inst.results);
    }
    insts.len()
}

pub(crate) fn has_roles(block: &Block) -> bool {
    block.insts.iter().any(|inst| {
        matches!(inst.op, Op::Roles { .. }) || inst.op.blocks().into_iter().any(has_roles)
    })
}

/// The extents of a phase's grid and how many instances that is, where they are known and a register holds the number.
pub(crate) fn known_grid(phase: &Phase) -> Option<(Vec<i64>, i64)> {
    let extents: Option<Vec<i64>> = phase.grid.iter().map(|extent| extent.as_const()).collect();
    let extents = extents?;
    let total = extents.iter().try_fold(1i64, |n, e| n.checked_mul(*e))?;
    (total <= i64::from(i32::MAX)).then_some((extents, total))
}

/// `@p `, or nothing.
pub(crate) fn guard(p: Option<Reg>) -> String {
    p.map_or_else(String::new, |p| format!("@{p} "))
}
