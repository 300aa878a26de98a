//! The kernel language: programs written with operators.
//!
//! ```
//! use oxyfuel_kernel::builder::KernelBuilder;
//! use oxyfuel_kernel::{BufferMode, DType, Symbol};
//!
//! let k = KernelBuilder::new("scale");
//! let n = k.symbol("n", Symbol(0));
//! let x = k.buffer("x", DType::F32, BufferMode::Read, n.expr());
//! let y = k.buffer("y", DType::F32, BufferMode::Write, n.expr());
//! k.phase([n.expr().ceildiv(1024)], |k| {
//!     let base = k.program_id(0) * 1024;
//!     let left = n.tile() - &base;
//!     let t = k.load(x.at(&base).shape([1024]).valid(0, &left));
//!     k.store(y.at(&base).shape([1024]).valid(0, &left), &(t * 2.0 + 1.0));
//! });
//! let program = k.finish().unwrap();
//! assert_eq!(program.phases.len(), 1);
//! ```
//!
//! Handles ([`Tile`], [`Mem`]) share the builder's state, so user code needs neither lifetimes nor a mutable builder. Scalars and dims of
//! extent 1 broadcast by themselves; dtypes never convert by themselves, but a literal takes the dtype of the tile beside it.
//!
//! Mistakes (shapes, dtypes, ops outside of a phase) never panic: each is recorded with the user's file and line, and [`KernelBuilder::finish`]
//! reports the first.

mod mapped;
mod rewrite;
mod tile;
mod window;

pub use mapped::{RoleList, TensorMap};
pub use rewrite::{Rule, rewrite};
pub use tile::{Operand, Tile};
pub use window::{IntoIndex, Mem, Window};

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::panic::Location as Caller;
use std::rc::Rc;

use oxyfuel_base::{Arena, DType, Error, Expr, Location, Result, Scalar, Symbol, err};

use crate::ir::{
    Block, BufferMode, BufferParam, Form, Geometry, Inst, MemType, Op, Order, Param, ParamKind,
    Phase, Program, Space, TileLayout, Type, Val, ValueData,
};

/// Builds a [`Program`]; see the module's text. Clones share the program.
#[derive(Clone, Debug)]
pub struct KernelBuilder {
    state: Rc<RefCell<State>>,
}

#[derive(Debug)]
struct State {
    program: Program,
    /// Open blocks, the innermost last.
    frames: Vec<Frame>,
    errors: Vec<Error>,
    /// The layout of each shape that has one, for tiles of that shape that nobody lays out.
    layouts: HashMap<Vec<i64>, TileLayout>,
}

#[derive(Debug, Default)]
struct Frame {
    insts: Vec<Inst>,
    /// Literals and splats that this block already has.
    consts: HashMap<(Scalar, DType), Val>,
    splats: HashMap<(Val, Vec<i64>), Val>,
}

/// A symbolic size that the launch supplies: a parameter of the program, and a symbol for grids and lengths.
#[derive(Clone, Debug)]
pub struct Size {
    tile: Tile,
    symbol: Symbol,
}

impl Size {
    /// The size as a scalar i64 of the program.
    pub fn tile(&self) -> Tile {
        self.tile.clone()
    }

    /// The size in expressions of grids and lengths.
    pub fn expr(&self) -> Expr {
        Expr::symbol(self.symbol)
    }
}

pub(crate) fn here(caller: &Caller<'_>) -> Location {
    Location::new(caller.file(), caller.line(), caller.column())
}

impl KernelBuilder {
    /// A program of the logical form.
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_form(name.into(), Form::Logical, Geometry::LOGICAL)
    }

    /// A program of the mapped form, carried by `geometry`. Scalars are replicated; elementwise results take the layout of their first operand of the same shape; every other
    /// tile needs [`Tile::with_layout`].
    pub fn mapped(name: impl Into<String>, geometry: Geometry) -> Self {
        Self::with_form(name.into(), Form::Mapped, geometry)
    }

    fn with_form(name: String, form: Form, geometry: Geometry) -> Self {
        Self::from_program(Program {
            name,
            form,
            params: Vec::new(),
            values: Arena::new(),
            geometry,
            phases: Vec::new(),
            rounds: 1,
            gathered: 0,
        })
    }

    pub(crate) fn from_program(program: Program) -> Self {
        let mut layouts = HashMap::new();
        for (_, data) in program.values.iter() {
            if let (Type::Tile(tile), Some(layout)) = (&data.ty, &data.layout)
                && !layout.matrix
            {
                layouts
                    .entry(tile.shape.clone())
                    .or_insert_with(|| layout.clone());
            }
        }
        Self {
            state: Rc::new(RefCell::new(State {
                program,
                frames: Vec::new(),
                errors: Vec::new(),
                layouts,
            })),
        }
    }

    /// The program, verified, or the first mistake with the place in the user's code.
    #[track_caller]
    pub fn finish(self) -> Result<Program> {
        self.finished(Caller::caller(), true)
    }

    /// The program, verified if `verify`.
    pub(crate) fn finished(self, caller: &Caller<'_>, verify: bool) -> Result<Program> {
        let mut state = self.state.borrow_mut();
        let more = match state.errors.len() {
            0 | 1 => String::new(),
            all => format!("; and {} more mistakes", all - 1),
        };
        let advised = |mut error: Error| {
            error.help.get_or_insert_with(|| {
                format!("docs/kernel.md says what each operation takes and what holds for every program{more}")
            });
            error.at.get_or_insert_with(|| here(caller));
            error
        };
        if !state.errors.is_empty() {
            return Err(advised(state.errors.swap_remove(0)));
        }
        let program = std::mem::replace(
            &mut state.program,
            Program {
                name: String::new(),
                form: Form::Logical,
                params: Vec::new(),
                values: Arena::new(),
                geometry: Geometry::LOGICAL,
                phases: Vec::new(),
                rounds: 1,
                gathered: 0,
            },
        );
        if verify {
            crate::verify::verify(&program).map_err(advised)?;
        }
        Ok(program)
    }

    // ---- parameters -------------------------------------------------------------------------------------------------------------

    /// A buffer of `len` elements in global memory.
    pub fn buffer(
        &self,
        name: impl Into<String>,
        dtype: DType,
        mode: BufferMode,
        len: impl Into<Expr>,
    ) -> Mem {
        self.buffer_param(name.into(), dtype, mode, Some(len.into()))
    }

    /// A buffer whose length is not known to the program.
    pub fn buffer_of_unknown_len(
        &self,
        name: impl Into<String>,
        dtype: DType,
        mode: BufferMode,
    ) -> Mem {
        self.buffer_param(name.into(), dtype, mode, None)
    }

    fn buffer_param(&self, name: String, dtype: DType, mode: BufferMode, len: Option<Expr>) -> Mem {
        let ty = Type::Mem(MemType {
            dtype,
            space: Space::Global,
            len: None,
            swizzle: None,
        });
        let align = u32::try_from(dtype.size()).unwrap_or(1);
        let value = self.param(
            name,
            ty,
            ParamKind::Buffer(BufferParam {
                dtype,
                mode,
                len,
                align,
            }),
        );
        Mem::new(self.clone(), value)
    }

    /// A number given at launch.
    pub fn scalar(&self, name: impl Into<String>, dtype: DType) -> Tile {
        let value = self.param(
            name.into(),
            Type::scalar(dtype),
            ParamKind::Scalar {
                dtype,
                symbol: None,
            },
        );
        self.tile(value)
    }

    /// A size given at launch, tied to a symbol.
    pub fn symbol(&self, name: impl Into<String>, symbol: Symbol) -> Size {
        let value = self.param(
            name.into(),
            Type::scalar(DType::I64),
            ParamKind::Scalar {
                dtype: DType::I64,
                symbol: Some(symbol),
            },
        );
        Size {
            tile: self.tile(value),
            symbol,
        }
    }

    pub(crate) fn param(&self, name: String, ty: Type, kind: ParamKind) -> Val {
        let mut state = self.state.borrow_mut();
        let layout = state.layout_for(&ty, &[]);
        let value = state.program.values.push(ValueData {
            ty,
            layout,
            name: Some(name.clone()),
        });
        state.program.params.push(Param { value, name, kind });
        value
    }

    // ---- phases and control -----------------------------------------------------------------------------------------------------

    /// All phases run so often, each time on an equal part of their grids' last axes.
    pub fn rounds(&self, rounds: u32) {
        self.state.borrow_mut().program.rounds = rounds;
    }

    /// Adds a phase: every instance of the grid (axis 0 fastest) runs `body`.
    pub fn phase<E: Into<Expr>>(
        &self,
        grid: impl IntoIterator<Item = E>,
        body: impl FnOnce(&Self),
    ) {
        self.phase_ordered(grid, Order::Plain, body);
    }

    /// A phase whose instances are handed out in `order`.
    pub fn phase_ordered<E: Into<Expr>>(
        &self,
        grid: impl IntoIterator<Item = E>,
        order: Order,
        body: impl FnOnce(&Self),
    ) {
        self.add_phase(grid, order, false, body);
    }

    /// A phase whose stores may fall on one element; one of them stays.
    pub fn phase_overlapping<E: Into<Expr>>(
        &self,
        grid: impl IntoIterator<Item = E>,
        body: impl FnOnce(&Self),
    ) {
        self.add_phase(grid, Order::Plain, true, body);
    }

    fn add_phase<E: Into<Expr>>(
        &self,
        grid: impl IntoIterator<Item = E>,
        order: Order,
        overlaps: bool,
        body: impl FnOnce(&Self),
    ) {
        let ((), body) = self.in_block(|k| body(k));
        let grid = grid.into_iter().map(Into::into).collect();
        let phase = Phase {
            grid,
            order,
            overlaps,
            body,
        };
        self.state.borrow_mut().program.phases.push(phase);
    }

    /// Runs `f` with a new innermost block, and returns what it appended.
    pub(crate) fn in_block<T>(&self, f: impl FnOnce(&Self) -> T) -> (T, Block) {
        self.state.borrow_mut().frames.push(Frame::default());
        let out = f(self);
        let frame = self.state.borrow_mut().frames.pop().unwrap_or_default();
        (
            out,
            Block {
                insts: frame.insts,
                yields: Vec::new(),
            },
        )
    }

    /// `for iv in (lo..hi).step_by(step)`: `body` gets the counter and the carried tiles, and returns their next values.
    #[track_caller]
    pub fn for_range<const N: usize>(
        &self,
        lo: impl IntoIndex,
        hi: impl IntoIndex,
        step: i64,
        inits: [Tile; N],
        body: impl FnOnce(&Self, Tile, [Tile; N]) -> [Tile; N],
    ) -> [Tile; N] {
        let results = self.for_range_vec(lo, hi, step, inits.to_vec(), |k, iv, carried| {
            // The loop hands back exactly as many tiles as it was given.
            let mut carried = carried.into_iter();
            let carried =
                std::array::from_fn(|i| carried.next().unwrap_or_else(|| inits[i].clone()));
            body(k, iv, carried).to_vec()
        });
        let mut results = results.into_iter();
        std::array::from_fn(|i| results.next().unwrap_or_else(|| inits[i].clone()))
    }

    /// [`for_range`](Self::for_range) for a number of carried tiles that is not known to Rust.
    #[track_caller]
    pub fn for_range_vec(
        &self,
        lo: impl IntoIndex,
        hi: impl IntoIndex,
        step: i64,
        inits: Vec<Tile>,
        body: impl FnOnce(&Self, Tile, Vec<Tile>) -> Vec<Tile>,
    ) -> Vec<Tile> {
        let caller = Caller::caller();
        let (lo, hi) = (lo.into_index(self), hi.into_index(self));
        let iv = self.new_value(Type::scalar(DType::I64), &[]);
        let carried: Vec<Val> = inits
            .iter()
            .map(|t| self.new_value(t.ty(), &[t.val()]))
            .collect();
        let (yields, mut block) =
            self.in_block(|k| body(k, k.tile(iv), carried.iter().map(|&v| k.tile(v)).collect()));
        let fits =
            yields.len() == inits.len() && yields.iter().zip(&inits).all(|(y, i)| y.ty() == i.ty());
        if !fits {
            let text = |tiles: &[Tile]| {
                tiles
                    .iter()
                    .map(|t| t.type_text())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            self.error(
                err!(
                    ShapeMismatch,
                    "a loop that carries ({}) yields ({})",
                    text(&inits),
                    text(&yields)
                ),
                caller,
            );
            return inits;
        }
        block.yields = yields.iter().map(Tile::val).collect();
        let inits = inits.iter().map(Tile::val).collect();
        let results = self.emit(
            Op::For {
                iv,
                lo,
                hi,
                step,
                inits,
                carried,
                body: block,
                unroll: 1,
            },
            &[],
            caller,
        );
        results.into_iter().map(|v| self.tile(v)).collect()
    }

    /// `cond` is a scalar bool; both sides return tiles of the same types.
    #[track_caller]
    pub fn if_<const N: usize>(
        &self,
        cond: &Tile,
        on_true: impl FnOnce(&Self) -> [Tile; N],
        on_false: impl FnOnce(&Self) -> [Tile; N],
    ) -> [Tile; N] {
        let caller = Caller::caller();
        let (yes, mut on_true) = self.in_block(|k| on_true(k));
        let (no, mut on_false) = self.in_block(|k| on_false(k));
        if yes.iter().zip(&no).any(|(y, n)| y.ty() != n.ty()) {
            self.error(
                err!(
                    ShapeMismatch,
                    "the two sides of an if yield different types"
                ),
                caller,
            );
            return yes;
        }
        on_true.yields = yes.iter().map(Tile::val).collect();
        on_false.yields = no.iter().map(Tile::val).collect();
        let mut results = self
            .emit(
                Op::If {
                    cond: cond.val(),
                    on_true,
                    on_false,
                },
                &[],
                caller,
            )
            .into_iter();
        std::array::from_fn(|i| {
            results
                .next()
                .map_or_else(|| yes[i].clone(), |v| self.tile(v))
        })
    }

    /// Runs `body` where `cond` (a scalar bool) holds.
    #[track_caller]
    pub fn when(&self, cond: &Tile, body: impl FnOnce(&Self)) {
        let ((), on_true) = self.in_block(|k| body(k));
        self.emit(
            Op::If {
                cond: cond.val(),
                on_true,
                on_false: Block::default(),
            },
            &[],
            Caller::caller(),
        );
    }

    // ---- sources ----------------------------------------------------------------------------------------------------------------

    /// Position of this instance on an axis of the grid.
    #[track_caller]
    pub fn program_id(&self, axis: u8) -> Tile {
        self.emit_one(
            Op::ProgramId { axis },
            Some(Type::scalar(DType::I64)),
            Caller::caller(),
        )
    }

    /// The memory of that number (a scalar `i64`) among buffer parameters that stand one behind the other and are of one kind.
    #[track_caller]
    pub fn pick(&self, mems: &[Mem], index: &Tile) -> Mem {
        let ty = mems.first().map_or(Type::TensorMap, |mem| {
            self.with_program(|p| p.value(mem.val()).ty.clone())
        });
        let op = Op::Pick {
            mems: mems.iter().map(Mem::val).collect(),
            index: index.val(),
        };
        let results = self.emit(op, std::slice::from_ref(&ty), Caller::caller());
        let val = results.first().copied();
        self.mem(val.unwrap_or_else(|| self.new_value(ty, &[])))
    }

    /// Extent of an axis of the grid.
    #[track_caller]
    pub fn num_programs(&self, axis: u8) -> Tile {
        self.emit_one(
            Op::NumPrograms { axis },
            Some(Type::scalar(DType::I64)),
            Caller::caller(),
        )
    }

    /// A scalar literal, rounded to `dtype`.
    #[track_caller]
    pub fn constant(&self, dtype: DType, value: impl Into<Scalar>) -> Tile {
        self.literal(dtype, value.into(), Caller::caller())
    }

    pub(crate) fn literal(&self, dtype: DType, value: Scalar, caller: &Caller<'_>) -> Tile {
        let value = value.cast(dtype);
        let known = self
            .state
            .borrow()
            .frames
            .iter()
            .rev()
            .find_map(|frame| frame.consts.get(&(value, dtype)).copied());
        if let Some(val) = known {
            return self.tile(val);
        }
        let tile = self.emit_one(Op::Const { value }, Some(Type::scalar(dtype)), caller);
        if let Some(frame) = self.state.borrow_mut().frames.last_mut() {
            frame.consts.insert((value, dtype), tile.val());
        }
        tile
    }

    /// A tile of one number.
    #[track_caller]
    pub fn full(&self, dtype: DType, shape: impl AsRef<[i64]>, value: impl Into<Scalar>) -> Tile {
        let caller = Caller::caller();
        let scalar = self.literal(dtype, value.into(), caller);
        self.splat_to(&scalar, shape.as_ref(), caller)
    }

    pub(crate) fn splat_to(&self, scalar: &Tile, shape: &[i64], caller: &Caller<'_>) -> Tile {
        if shape.is_empty() {
            return scalar.clone();
        }
        let key = (scalar.val(), shape.to_vec());
        // A mapped tile gets its layout afterwards, and two uses may want two layouts.
        let known = match self.state.borrow().program.form {
            Form::Logical => self
                .state
                .borrow()
                .frames
                .iter()
                .rev()
                .find_map(|frame| frame.splats.get(&key).copied()),
            Form::Mapped => None,
        };
        if let Some(val) = known {
            return self.tile(val);
        }
        let tile = self.emit_one(
            Op::Splat {
                value: scalar.val(),
            },
            Some(Type::tile(scalar.dtype(), shape)),
            caller,
        );
        if let Some(frame) = self.state.borrow_mut().frames.last_mut() {
            frame.splats.insert(key, tile.val());
        }
        tile
    }

    /// Coordinates along `dim` of a tile of `shape`.
    #[track_caller]
    pub fn iota(&self, dtype: DType, shape: impl AsRef<[i64]>, dim: u8) -> Tile {
        self.emit_one(
            Op::Iota { dim },
            Some(Type::tile(dtype, shape.as_ref())),
            Caller::caller(),
        )
    }

    /// `acc + a @ b`.
    #[track_caller]
    pub fn dot(&self, a: &Tile, b: &Tile, acc: &Tile) -> Tile {
        self.emit_one(
            Op::Dot {
                a: a.val(),
                b: b.val(),
                acc: acc.val(),
            },
            Some(acc.ty()),
            Caller::caller(),
        )
    }

    // ---- for passes -------------------------------------------------------------------------------------------------------------

    /// Appends any op to the innermost open block. `claimed` are the types of results that do not follow from operands (see [`Op::infer`]).
    #[track_caller]
    pub fn append(&self, op: Op, claimed: &[Type]) -> Vec<Val> {
        self.emit(op, claimed, Caller::caller())
    }

    /// The handle of a value of this program.
    pub fn tile(&self, val: Val) -> Tile {
        Tile::new(self.clone(), val)
    }

    /// The handle of a memory of this program.
    pub fn mem(&self, val: Val) -> Mem {
        Mem::new(self.clone(), val)
    }

    /// Looks at the program under construction. Open blocks are not in it yet.
    pub fn with_program<T>(&self, f: impl FnOnce(&Program) -> T) -> T {
        f(&self.state.borrow().program)
    }

    /// Gives a value a name for people.
    pub fn set_name(&self, val: Val, name: impl Into<String>) {
        if let Some(data) = self.state.borrow_mut().program.values.get_mut(val) {
            data.name = Some(name.into());
        }
    }

    /// Tiles of this shape that nobody lays out take `layout` from now on.
    pub fn layout_shape(&self, shape: impl AsRef<[i64]>, layout: TileLayout) {
        self.state
            .borrow_mut()
            .layouts
            .insert(shape.as_ref().to_vec(), layout);
    }

    pub(crate) fn set_layout(&self, val: Val, layout: TileLayout) {
        if let Some(data) = self.state.borrow_mut().program.values.get_mut(val) {
            data.layout = Some(layout);
        }
    }

    /// Records a mistake at a place of the user's code.
    pub(crate) fn error(&self, error: Error, caller: &Caller<'_>) {
        self.state.borrow_mut().errors.push(error.at(here(caller)));
    }

    /// A value without a definition yet (block parameters), laid out as `like`.
    pub(crate) fn new_value(&self, ty: Type, like: &[Val]) -> Val {
        let mut state = self.state.borrow_mut();
        let layout = state.layout_for(&ty, like);
        state.program.values.push(ValueData {
            ty,
            layout,
            name: None,
        })
    }

    pub(crate) fn emit(&self, op: Op, claimed: &[Type], caller: &Caller<'_>) -> Vec<Val> {
        let inferred = op.infer(&self.state.borrow().program, claimed);
        let mut state = self.state.borrow_mut();
        if state.frames.is_empty() {
            state
                .errors
                .push(err!(InvalidKernel, "an op outside of a phase").at(here(caller)));
        }
        let types = inferred.unwrap_or_else(|error| {
            state.errors.push(error.at(here(caller)));
            claimed.to_vec()
        });
        // The operands say something of layouts alone.
        let args = match state.program.form {
            Form::Logical => Vec::new(),
            Form::Mapped => op.args(),
        };
        let results: Vec<Val> = types
            .into_iter()
            .map(|ty| {
                let layout = state.layout_for(&ty, &args);
                state.program.values.push(ValueData {
                    ty,
                    layout,
                    name: None,
                })
            })
            .collect();
        if let Some(frame) = state.frames.last_mut() {
            frame.insts.push(Inst {
                op,
                results: results.clone(),
            });
        }
        results
    }

    /// Emits an op of one tile result; after a mistake the result is a stand-in, so that user code goes on to the next mistake.
    pub(crate) fn emit_one(&self, op: Op, claimed: Option<Type>, caller: &Caller<'_>) -> Tile {
        let mut first = None;
        op.for_each_arg(|v| first = first.or(Some(v)));
        let results = self.emit(op, claimed.as_slice(), caller);
        match results.first() {
            Some(&val) => self.tile(val),
            None => {
                let ty = first
                    .and_then(|v| {
                        self.with_program(|p| {
                            p.ty(v).ok().filter(|ty| ty.as_tile().is_some()).cloned()
                        })
                    })
                    .unwrap_or(Type::scalar(DType::F32));
                self.tile(self.new_value(ty, &[]))
            }
        }
    }

    fn state_mut(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    pub(crate) fn same_program(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.state, &other.state)
    }
}

impl State {
    /// The layout that a new value gets by itself.
    fn layout_for(&self, ty: &Type, like: &[Val]) -> Option<TileLayout> {
        let tile = ty.as_tile()?;
        match self.program.form {
            Form::Logical => None,
            Form::Mapped if tile.shape.is_empty() => Some(TileLayout::default()),
            Form::Mapped => {
                let alike = like.iter().find_map(|&v| {
                    let data = self.program.values.get(v)?;
                    data.layout
                        .as_ref()
                        .filter(|_| data.ty.as_tile().is_some_and(|t| t.shape == tile.shape))
                });
                alike.or_else(|| self.layouts.get(&tile.shape)).cloned()
            }
        }
    }
}
