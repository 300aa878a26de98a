//! The verifier. A program that passes is one that every target may rely on; a target never panics on it.
//!
//! # Invariants
//! 1. **Parameters** have distinct values and names, which are identifiers, as the program's own; their types follow from their kinds; alignments are powers of two; a tensor map describes a buffer parameter and
//!    has rank 1 to 5, equal ranks of dims, strides and box, positive boxes of at most 256 along each dim, a last stride of 1, and, under a swizzle, rows no longer than the swizzle's span.
//! 2. **Symbols** in grids, lengths and tensor maps are bound by scalar parameters, each symbol by one; expressions are valid.
//! 3. **Phases**: at least one; grids have 1 to 3 axes; `program_id` asks for an axis that exists; bodies yield nothing. Where there are several rounds, instances are handed out in the
//!    plain order, and the last axis of every grid is a known multiple of them. Where they are gathered, grids are known and in the plain order, and one block carries an instance.
//! 4. **SSA**: every value that is used is defined once, before, in the same block or one around it.
//! 5. **Types** of results are those of [`Op::infer`](crate::ir::Op::infer).
//! 6. **Loops and branches**: counter `i64`; starts, carried values, yields and results have the same types; both sides of a branch yield the same.
//! 7. **Forms**: only ops that the [table](crate::table) allows. Logical: no layouts, no allocations, geometry of ones. Mapped: a layout on every tile.
//! 8. **Layouts**: dims exist, extents are positive, lanes and warps are not more than the geometry (or the role) has, every coordinate is covered.
//! 9. **Memory**: windows have a stride and a bound for each dim; nothing stores into a `Read` buffer; swizzles only on shared memory whose length is a multiple of the pattern;
//!    barriers are slots inside their memory; `pick` is among buffer parameters of one kind that stand one behind the other and that nothing else uses.
//! 10. **Products**: the accumulator is used by its product alone and is defined in the same iteration.
//! 11. **Roles** stand in a phase's own block, not nested, cover disjoint warps of the geometry, and yield nothing.
//! 12. Blocks nest at most [`MAX_DEPTH`] deep.

use std::collections::{BTreeSet, HashMap, HashSet};

use oxyfuel_base::{DType, Expr, Id, Result, Symbol, ensure, err};

use crate::ir::{
    Block, BufferMode, Form, Geometry, Index, Inst, Mode, Op, Order, Param, ParamKind, Program,
    Space, TensorMapParam, TileLayout, Type, Val,
};

/// The deepest nesting of blocks.
pub const MAX_DEPTH: usize = 64;

/// Checks every invariant of the module's text; the first that is broken is the error.
pub fn verify(program: &Program) -> Result<()> {
    verify_inner(program).map_err(|error| error.context(format_args!("kernel @{}", program.name)))
}

fn verify_inner(program: &Program) -> Result<()> {
    let geometry = &program.geometry;
    ensure!(
        crate::text::is_identifier(&program.name),
        InvalidKernel,
        "a program's name is an identifier, not `{}`",
        program.name.escape_debug()
    );
    match program.form {
        Form::Logical => ensure!(
            *geometry == Geometry::LOGICAL,
            InvalidKernel,
            "a logical program has no geometry"
        ),
        Form::Mapped => {
            ensure!(
                (1..=1024).contains(&geometry.lanes)
                    && (1..=1024).contains(&geometry.warps)
                    && geometry.cluster.iter().all(|&c| (1..=16).contains(&c)),
                InvalidKernel,
                "a geometry of {} lanes, {} warps and clusters of {:?}",
                geometry.lanes,
                geometry.warps,
                geometry.cluster
            );
        }
    }
    let mut verifier = Verifier {
        program,
        defined_at: vec![None; program.values.len()],
        ever: vec![false; program.values.len()],
        uses: Vec::new(),
        modes: HashMap::new(),
        picked: BTreeSet::new(),
        depth: 0,
        loops: Vec::new(),
        next_loop: 1,
        grid_rank: 0,
        warps: geometry.warps,
        in_roles: false,
        covered: None,
    };
    verifier.params()?;
    verifier.use_counts()?;
    ensure!(
        !program.phases.is_empty(),
        InvalidKernel,
        "a program has at least one phase"
    );
    ensure!(
        program.rounds >= 1,
        InvalidKernel,
        "a program has at least one round"
    );
    ensure!(
        program.gathered == 0
            || program.form == Form::Mapped
                && geometry.cluster == [1; 3]
                && program.rounds == 1
                && program.gathered <= 16,
        InvalidKernel,
        "a program cannot be gathered in {} blocks: one block carries an instance, in one round, and at most 16 of them meet",
        program.gathered
    );
    for phase in &program.phases {
        ensure!(
            (1..=3).contains(&phase.grid.len()),
            InvalidKernel,
            "a grid has 1 to 3 axes, not {}",
            phase.grid.len()
        );
        for extent in &phase.grid {
            verifier.expr(extent)?;
        }
        let last = phase.grid.last().and_then(Expr::as_const);
        ensure!(
            program.rounds == 1
                || phase.order == Order::Plain
                    && last.is_some_and(|n| n % i64::from(program.rounds) == 0),
            InvalidKernel,
            "a grid of {:?} cannot be cut into {} rounds",
            phase.grid,
            program.rounds
        );
        ensure!(
            program.gathered == 0
                || phase.order == Order::Plain && phase.grid.iter().all(|n| n.as_const().is_some()),
            InvalidKernel,
            "a grid of {:?} cannot be gathered: it must be known, and in the plain order",
            phase.grid
        );
        verifier.grid_rank = phase.grid.len();
        ensure!(
            phase.body.yields.is_empty(),
            InvalidKernel,
            "a phase yields nothing"
        );
        verifier.block(&phase.body, &[])?;
    }
    Ok(())
}

struct Verifier<'p> {
    program: &'p Program,
    /// For values in scope: which loop they were defined in.
    defined_at: Vec<Option<u32>>,
    /// Values that were defined anywhere, in scope or not.
    ever: Vec<bool>,
    uses: Vec<u32>,
    modes: HashMap<Val, BufferMode>,
    /// Parameters that picks alone may use.
    picked: BTreeSet<Val>,
    depth: usize,
    /// Ids of the loops around, the innermost last.
    loops: Vec<u32>,
    next_loop: u32,
    grid_rank: usize,
    warps: u32,
    in_roles: bool,
    /// A layout and a shape that it covers.
    covered: Option<(&'p TileLayout, &'p [i64])>,
}

impl Verifier<'_> {
    fn symbols(&self) -> impl Iterator<Item = Symbol> {
        self.program
            .params
            .iter()
            .filter_map(|param| match &param.kind {
                ParamKind::Scalar { symbol, .. } => *symbol,
                ParamKind::Buffer(_) | ParamKind::TensorMap(_) => None,
            })
    }

    fn expr(&self, expr: &Expr) -> Result<()> {
        expr.check()?;
        for symbol in expr.symbols() {
            ensure!(
                self.symbols().any(|s| s == symbol),
                UnboundSymbol,
                "no scalar parameter gives {symbol} a value"
            );
        }
        Ok(())
    }

    fn params(&mut self) -> Result<()> {
        let (mut names, mut symbols) = (HashSet::new(), HashSet::new());
        for symbol in self.symbols() {
            ensure!(
                symbols.insert(symbol),
                InvalidKernel,
                "two parameters give {symbol} a value"
            );
        }
        for param in &self.program.params {
            let ty = self.program.ty(param.value)?;
            ensure!(
                names.insert(&param.name),
                DuplicateName,
                "two parameters are named {}",
                param.name
            );
            let fits = match (&param.kind, ty) {
                (ParamKind::Buffer(buffer), Type::Mem(mem)) => {
                    ensure!(
                        buffer.align.is_power_of_two(),
                        InvalidKernel,
                        "an alignment of {}",
                        buffer.align
                    );
                    if let Some(len) = &buffer.len {
                        self.expr(len)?;
                    }
                    self.modes.insert(param.value, buffer.mode);
                    mem.dtype == buffer.dtype
                        && mem.space == Space::Global
                        && mem.len.is_none()
                        && mem.swizzle.is_none()
                }
                (ParamKind::Scalar { dtype, symbol }, Type::Tile(tile)) => {
                    tile.dtype == *dtype
                        && tile.shape.is_empty()
                        && (symbol.is_none() || *dtype == DType::I64)
                }
                (ParamKind::TensorMap(map), Type::TensorMap) => {
                    ensure!(
                        self.program.form == Form::Mapped,
                        InvalidKernel,
                        "tensor maps are for the mapped form"
                    );
                    self.tensor_map(map)?;
                    true
                }
                (ParamKind::Buffer(_) | ParamKind::Scalar { .. } | ParamKind::TensorMap(_), _) => {
                    false
                }
            };
            ensure!(
                fits,
                InvalidKernel,
                "parameter {} has a type of another kind",
                param.name
            );
            self.define(param.value)?;
        }
        Ok(())
    }

    fn tensor_map(&self, map: &TensorMapParam) -> Result<()> {
        let buffer = self.program.mem(map.buffer)?;
        ensure!(
            self.modes.contains_key(&map.buffer),
            InvalidKernel,
            "a tensor map describes a buffer parameter that stands before it"
        );
        let rank = map.dims.len();
        ensure!(
            (1..=5).contains(&rank),
            RankMismatch,
            "a tensor map of rank {rank}"
        );
        ensure!(
            map.strides.len() == rank && map.boxed.len() == rank,
            RankMismatch,
            "a tensor map with different ranks of dims, strides and box"
        );
        for expr in map.dims.iter().chain(&map.strides) {
            self.expr(expr)?;
        }
        ensure!(
            map.strides[rank - 1].is_const(1),
            InvalidKernel,
            "the last stride of a tensor map is 1"
        );
        ensure!(
            map.boxed.iter().all(|extent| (1..=256).contains(extent)),
            InvalidKernel,
            "a box of {:?}",
            map.boxed
        );
        if let Some(swizzle) = map.swizzle {
            let row = map.boxed[rank - 1] * i64::try_from(buffer.dtype.size()).unwrap_or(8);
            ensure!(
                swizzle.bits <= 3 && swizzle.base == 4 && swizzle.shift == 3,
                InvalidKernel,
                "a swizzle that no copy engine knows"
            );
            ensure!(
                row <= 16i64 << swizzle.bits,
                InvalidKernel,
                "rows of {row} bytes under a swizzle of {} bytes",
                16 << swizzle.bits
            );
        }
        Ok(())
    }

    fn use_counts(&mut self) -> Result<()> {
        let mut bad = None;
        let len = self.program.values.len();
        let mut check = |v: Val| {
            if v.index() >= len {
                bad = Some(v);
            }
        };
        for phase in &self.program.phases {
            check_ids(&phase.body, 0, &mut check)?;
        }
        if let Some(v) = bad {
            return Err(err!(InvalidKernel, "there is no value {v}"));
        }
        self.uses = self.program.use_counts();
        self.picked = self.program.picked();
        Ok(())
    }

    fn define(&mut self, v: Val) -> Result<()> {
        let innermost = self.loops.last().copied().unwrap_or(0);
        let Some(slot) = self.defined_at.get_mut(v.index()) else {
            return Err(err!(InvalidKernel, "there is no value {v}"));
        };
        *slot = Some(innermost);
        ensure!(
            !std::mem::replace(&mut self.ever[v.index()], true),
            InvalidKernel,
            "{v} is defined twice"
        );
        self.value(v)
    }

    /// What holds for a value by itself: shape and layout.
    fn value(&mut self, v: Val) -> Result<()> {
        let program = self.program;
        let data = &program.values[v];
        match &data.ty {
            Type::Tile(tile) => {
                crate::infer::check_shape(&tile.shape)?;
                match (self.program.form, &data.layout) {
                    (Form::Logical, None) => Ok(()),
                    (Form::Logical, Some(_)) => {
                        Err(err!(InvalidKernel, "{v} has a layout in a logical program"))
                    }
                    (Form::Mapped, None) => {
                        Err(err!(InvalidKernel, "{v} has no layout in a mapped program"))
                    }
                    (Form::Mapped, Some(layout)) => {
                        let cluster: u32 = self.program.geometry.cluster.iter().product();
                        let levels = [
                            (&layout.cluster, cluster, "blocks"),
                            (&layout.warp, self.warps, "warps"),
                            (&layout.lane, self.program.geometry.lanes, "lanes"),
                        ];
                        for (modes, most, what) in levels {
                            let count = extent(modes);
                            ensure!(
                                count <= u64::from(most),
                                InvalidKernel,
                                "the layout of {v} needs {count} {what}, of which there are {most}"
                            );
                        }
                        // Neighbours mostly share theirs.
                        let fits = (layout, &tile.shape[..]);
                        if self.covered != Some(fits) {
                            ensure!(
                                layout.covers(&tile.shape),
                                InvalidKernel,
                                "the layout of {v} does not cover {tile}"
                            );
                            self.covered = Some(fits);
                        }
                        Ok(())
                    }
                }
            }
            Type::Mem(mem) => {
                ensure!(
                    data.layout.is_none(),
                    InvalidKernel,
                    "a memory has no layout"
                );
                if let Some(swizzle) = mem.swizzle {
                    let top = u32::from(swizzle.base)
                        + u32::from(swizzle.shift)
                        + u32::from(swizzle.bits);
                    ensure!(
                        mem.space == Space::Shared && top <= 16 && swizzle.shift >= swizzle.bits,
                        InvalidKernel,
                        "{v} cannot be swizzled like this"
                    );
                    let bytes = mem.len.unwrap_or(0) * i64::try_from(mem.dtype.size()).unwrap_or(8);
                    ensure!(
                        bytes % (1 << top) == 0,
                        InvalidKernel,
                        "{v} of {bytes} bytes is not a multiple of its swizzle's pattern of {}",
                        1 << top
                    );
                }
                Ok(())
            }
            Type::TensorMap => {
                ensure!(
                    data.layout.is_none(),
                    InvalidKernel,
                    "a tensor map has no layout"
                );
                Ok(())
            }
        }
    }

    fn used(&self, v: Val) -> Result<()> {
        ensure!(
            self.defined_at[v.index()].is_some(),
            InvalidKernel,
            "{v} is used where it is not defined"
        );
        Ok(())
    }

    /// Checks a block whose parameters are `params`. Everything it defines goes out of scope again.
    fn block(&mut self, block: &Block, params: &[Val]) -> Result<()> {
        ensure!(
            self.depth < MAX_DEPTH,
            NestedTooDeep,
            "blocks nest deeper than {MAX_DEPTH}"
        );
        self.depth += 1;
        for &v in params {
            self.define(v)?;
        }
        for inst in &block.insts {
            self.inst(inst).map_err(|error| {
                let result = inst
                    .results
                    .first()
                    .map_or(String::new(), |v| format!(" of {v}"));
                error.context(format_args!("{}{result}", inst.op.row().name))
            })?;
        }
        for &v in &block.yields {
            self.used(v)?;
        }
        for v in params
            .iter()
            .chain(block.insts.iter().flat_map(|inst| &inst.results))
        {
            self.defined_at[v.index()] = None;
        }
        self.depth -= 1;
        Ok(())
    }

    fn inst(&mut self, inst: &Inst) -> Result<()> {
        let op = &inst.op;
        ensure!(
            op.row().forms.allows(self.program.form),
            InvalidKernel,
            "not an op of the {:?} form",
            self.program.form
        );
        let mut used = Ok(());
        let picks = matches!(op, Op::Pick { .. });
        op.for_each_arg(|v| {
            if used.is_ok() {
                used = self.used(v);
            }
            if used.is_ok() && !picks && self.picked.contains(&v) {
                used = Err(err!(InvalidKernel, "{v} is picked by number elsewhere"));
            }
        });
        used?;
        // Nearly every op has one result, whose type need not be copied.
        let several: Vec<Type>;
        let claimed = match inst.results[..] {
            [v] => std::slice::from_ref(self.program.ty(v)?),
            _ => {
                let types = inst.results.iter().map(|&v| self.program.ty(v).cloned());
                several = types.collect::<Result<_>>()?;
                &several
            }
        };
        let types = op.infer(self.program, claimed)?;
        ensure!(
            types.len() == claimed.len(),
            ArityMismatch,
            "{} results instead of {}",
            claimed.len(),
            types.len()
        );
        for (v, (inferred, claimed)) in inst.results.iter().zip(types.iter().zip(claimed)) {
            ensure!(
                inferred == claimed,
                InvalidKernel,
                "{v} is {claimed}, but the op gives {inferred}"
            );
        }
        self.specific(op)?;
        for &v in &inst.results {
            self.define(v)?;
            if let Op::Pick { mems, .. } = op
                && let Some(&mode) = self.modes.get(&mems[0])
            {
                self.modes.insert(v, mode);
            }
        }
        Ok(())
    }

    /// Rules of single ops beyond types.
    fn specific(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::ProgramId { axis } | Op::NumPrograms { axis } => {
                ensure!(
                    usize::from(*axis) < self.grid_rank,
                    DimOutOfRange,
                    "axis {axis} of a grid of {} axes",
                    self.grid_rank
                );
            }
            Op::Pick { mems, .. } => self.pick(mems)?,
            Op::Store { access, .. } => self.writable(access.mem)?,
            Op::Scatter { mem, .. } | Op::Atomic { mem, .. } => self.writable(*mem)?,
            Op::TensorStore { map, .. } => self.writable(self.program.tensor_map(*map)?.buffer)?,
            Op::For {
                iv,
                inits,
                carried,
                body,
                ..
            } => {
                ensure!(
                    *self.program.ty(*iv)? == Type::scalar(DType::I64),
                    DTypeMismatch,
                    "a loop's counter is a scalar i64"
                );
                ensure!(
                    body.yields.len() == carried.len(),
                    ArityMismatch,
                    "{} yields for {} carried values",
                    body.yields.len(),
                    carried.len()
                );
                for ((init, carried), next) in inits.iter().zip(carried).zip(&body.yields) {
                    let ty = self.program.ty(*init)?;
                    ensure!(
                        ty == self.program.ty(*carried)? && ty == self.program.ty(*next)?,
                        InvalidKernel,
                        "the start, value and yield of carried {carried} have different types"
                    );
                }
                self.loops.push(self.next_loop);
                self.next_loop += 1;
                let params: Vec<Val> = op.block_params();
                self.block(body, &params)?;
                self.loops.pop();
            }
            Op::If {
                on_true, on_false, ..
            } => {
                self.block(on_true, &[])?;
                self.block(on_false, &[])?;
                let types = |block: &Block| {
                    block
                        .yields
                        .iter()
                        .map(|v| self.program.ty(*v).cloned())
                        .collect::<Result<Vec<_>>>()
                };
                ensure!(
                    types(on_true)? == types(on_false)?,
                    InvalidKernel,
                    "the two sides of a branch yield different types"
                );
            }
            Op::Mma { acc, .. } => {
                ensure!(
                    self.uses[acc.index()] == 1,
                    InvalidKernel,
                    "the accumulator {acc} is updated in place, but used again"
                );
                ensure!(
                    self.defined_at[acc.index()] == Some(self.loops.last().copied().unwrap_or(0)),
                    InvalidKernel,
                    "the accumulator {acc} comes from outside the loop that updates it"
                );
            }
            Op::TensorLoad { barrier, .. }
            | Op::BarrierInit { barrier, .. }
            | Op::BarrierArrive { barrier, .. }
            | Op::BarrierWait { barrier, .. } => {
                if let Index::Const(slot) = barrier.slot {
                    let len = self.program.mem(barrier.mem)?.len.unwrap_or(0);
                    ensure!(
                        (0..len).contains(&slot),
                        InvalidKernel,
                        "slot {slot} of {len} barriers"
                    );
                }
            }
            Op::Roles { roles } => self.roles(roles)?,
            Op::Const { .. }
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
            | Op::Load { .. }
            | Op::Gather { .. }
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Scan { .. }
            | Op::Sort { .. }
            | Op::Dot { .. }
            | Op::Alloc
            | Op::ConvertLayout { .. }
            | Op::MmaCommit
            | Op::MmaWait { .. }
            | Op::CopyAsync { .. }
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::Sync
            | Op::FenceAsync => {}
        }
        Ok(())
    }

    /// Buffer parameters of one kind, one behind the other.
    fn pick(&self, mems: &[Val]) -> Result<()> {
        let params = &self.program.params;
        let first = params
            .iter()
            .position(|param| Some(&param.value) == mems.first());
        let listed = first.and_then(|first| params.get(first..first + mems.len()));
        let Some(listed) =
            listed.filter(|listed| listed.iter().map(|p| p.value).eq(mems.iter().copied()))
        else {
            return Err(err!(
                InvalidKernel,
                "a pick is among parameters that stand one behind the other"
            ));
        };
        let kind = |param: &Param| match &param.kind {
            ParamKind::Buffer(buffer) => Some((buffer.dtype, buffer.mode, buffer.align)),
            ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => None,
        };
        ensure!(
            kind(&listed[0]).is_some()
                && listed.iter().all(|param| kind(param) == kind(&listed[0])),
            InvalidKernel,
            "a pick is among buffers of one dtype, mode and alignment"
        );
        Ok(())
    }

    fn roles(&mut self, roles: &[crate::ir::Role]) -> Result<()> {
        ensure!(
            !self.in_roles && self.depth == 1,
            InvalidKernel,
            "roles stand in a phase's own block"
        );
        let mut taken = vec![false; self.program.geometry.warps as usize];
        for role in roles {
            let end = u64::from(role.first_warp) + u64::from(role.warps);
            ensure!(
                role.warps > 0 && end <= taken.len() as u64,
                InvalidKernel,
                "role {} is outside the {} warps",
                role.name,
                taken.len()
            );
            for warp in &mut taken[role.first_warp as usize..][..role.warps as usize] {
                ensure!(
                    !std::mem::replace(warp, true),
                    InvalidKernel,
                    "role {} shares a warp with another",
                    role.name
                );
            }
            ensure!(
                role.body.yields.is_empty(),
                InvalidKernel,
                "role {} yields a value",
                role.name
            );
        }
        self.in_roles = true;
        for role in roles {
            self.warps = role.warps;
            self.block(&role.body, &[])
                .map_err(|error| error.context(format_args!("role {}", role.name)))?;
        }
        self.warps = self.program.geometry.warps;
        self.in_roles = false;
        Ok(())
    }

    fn writable(&self, mem: Val) -> Result<()> {
        ensure!(
            self.modes.get(&mem) != Some(&BufferMode::Read),
            InvalidKernel,
            "a store into {mem}, which is only read"
        );
        Ok(())
    }
}

/// Every id is one of the program, and the nesting is no danger to code that follows it by recursion.
fn check_ids(block: &Block, depth: usize, f: &mut dyn FnMut(Val)) -> Result<()> {
    ensure!(
        depth < MAX_DEPTH,
        NestedTooDeep,
        "blocks nest deeper than {MAX_DEPTH}"
    );
    for inst in &block.insts {
        inst.op.for_each_arg(&mut *f);
        inst.op.block_params().into_iter().for_each(&mut *f);
        inst.results.iter().copied().for_each(&mut *f);
        for owned in inst.op.blocks() {
            check_ids(owned, depth + 1, f)?;
        }
    }
    block.yields.iter().copied().for_each(f);
    Ok(())
}

fn extent(modes: &[Mode]) -> u64 {
    modes
        .iter()
        .fold(1u64, |n, mode| n.saturating_mul(mode.extent.into()))
}
