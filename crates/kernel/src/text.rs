//! Programs as text; [`parse`](crate::parse) reads it back.
//!
//! ```text
//! kernel @scale logical {
//!   param %n: i64 symbol s0
//!   param %x: buffer f32 read align 64 len s0
//!   param %y: buffer f32 write align 64 len s0
//!   phase grid [ceildiv(s0, 1024)] plain {
//!     %3: i64 = program_id 0
//!     %4: i64 = const 1024
//!     %base: i64 = mul %3, %4
//!     %left: i64 = sub %n, %base
//!     %t: f32[1024] = load %x[%base; 1] valid [%left]
//!     %9: f32[1024] = add %t, %t
//!     store %y[%base; 1] valid [%left], %9
//!   }
//! }
//! ```
//!
//! A value is written by its name where it has one that is an identifier, with `.N` behind it where an earlier value has the same, and by a number where it has none; numbers count definitions in
//! the order of the text. So the text of a program does not depend on the numbers of its arena, and `parse(text(p))` is `p` compacted. Syntax of each op: [`crate::table`].
//! A mapped tile carries its layout: `f32[64, 256] {warp(0:4*16) lane(1:4*2, 0:8*1) reg(1:2*1, 0:2*8, 1:32*8)}`, a mode being `dim:extent*stride`.

use std::collections::HashSet;
use std::fmt::{self, Display, Write};
use std::ops::Range;

use oxyfuel_base::{Id, Scalar};

use crate::ir::{
    Access, BarrierRef, Block, BufferMode, CacheHint, Form, Index, Inst, MemType, MmaDim,
    MmaOperand, Mode, Op, Order, Param, ParamKind, Phase, Program, Space, Swizzle, TileLayout,
    Type, Val, ValueData,
};

impl Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self))
    }
}

/// The text of a program; what `to_string` gives, without a copy.
pub fn text(program: &Program) -> String {
    let mut printer = Printer {
        program,
        terms: Terms {
            names: Names::of(program),
        },
        out: String::with_capacity(64 * program.values.len()),
        indent: 0,
        last: None,
    };
    printer.program();
    printer.out
}

/// Whether a name may stand in text.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What each value is called: parts of one string, by the value's index.
struct Names {
    text: String,
    at: Vec<Range<usize>>,
}

impl Names {
    fn of(program: &Program) -> Self {
        let mut text = "%?".to_owned();
        let mut at = vec![0..text.len(); program.values.len()];
        let mut taken = HashSet::new();
        let mut count = 0usize;
        let mut define = |v: Val, name: Option<&'_ str>| {
            let Some(slot) = at.get_mut(v.index()) else {
                return;
            };
            let start = text.len();
            // Writing into a string cannot fail.
            let _ = match name.filter(|name| is_identifier(name)) {
                Some(name) if taken.insert(name.to_owned()) => write!(text, "%{name}"),
                Some(name) => write!(text, "%{name}.{count}"),
                None => write!(text, "%{count}"),
            };
            *slot = start..text.len();
            count += 1;
        };
        for param in &program.params {
            define(param.value, Some(&param.name));
        }
        let name_of = |v: Val| program.values.get(v).and_then(|data| data.name.as_deref());
        program.walk(|inst| {
            // Results stand to the left of what the op's blocks receive.
            for &v in &inst.results {
                define(v, name_of(v));
            }
            for v in inst.op.block_params() {
                define(v, name_of(v));
            }
        });
        Self { text, at }
    }
}

/// Items with commas between them.
fn list<T, D: Display>(
    items: impl IntoIterator<Item = T> + Clone,
    text: impl Fn(T) -> D,
) -> impl Display {
    fmt::from_fn(move |f| {
        for (i, item) in items.clone().into_iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            text(item).fmt(f)?;
        }
        Ok(())
    })
}

/// A word before something that may be absent.
fn maybe(word: &'static str, what: Option<impl Display>) -> impl Display {
    fmt::from_fn(move |f| match &what {
        Some(what) => write!(f, " {word} {what}"),
        None => Ok(()),
    })
}

impl Space {
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Global, "global"),
        (Self::Shared, "shared"),
        (Self::Panel, "panel"),
        (Self::Tensor, "tensor"),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Panel => "panel",
            Self::Tensor => "tensor",
        }
    }
}

impl BufferMode {
    pub(crate) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::ReadWrite, Self::Workspace];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "readwrite",
            Self::Workspace => "workspace",
        }
    }
}

impl Display for Swizzle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swizzle({}, {}, {})", self.bits, self.base, self.shift)
    }
}

impl Display for TileLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = [
            ("cluster", &self.cluster),
            ("warp", &self.warp),
            ("lane", &self.lane),
            ("reg", &self.reg),
        ];
        f.write_str("{")?;
        let mut between = "";
        for (name, modes) in levels {
            if !modes.is_empty() {
                let mode = |m: &Mode| {
                    let Mode {
                        dim,
                        extent,
                        stride,
                    } = *m;
                    fmt::from_fn(move |f| write!(f, "{dim}:{extent}*{stride}"))
                };
                write!(f, "{between}{name}({})", list(modes, mode))?;
                between = " ";
            }
        }
        if self.matrix {
            write!(f, "{between}matrix")?;
        }
        f.write_str("}")
    }
}

impl Display for MemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.space.name(), self.dtype)?;
        if let Some(len) = self.len {
            write!(f, " x {len}")?;
        }
        match self.swizzle {
            Some(swizzle) => write!(f, " {swizzle}"),
            None => Ok(()),
        }
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tile(tile) => tile.fmt(f),
            Self::Mem(mem) => mem.fmt(f),
            Self::TensorMap => f.write_str("tensormap"),
        }
    }
}

struct Printer<'p> {
    program: &'p Program,
    terms: Terms,
    out: String,
    indent: usize,
    /// The value defined last and where its type and layout stand: the next one often has the same.
    last: Option<(&'p ValueData, Range<usize>)>,
}

impl<'p> Printer<'p> {
    fn begin(&mut self) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
    }

    fn put(&mut self, text: impl Display) {
        // Writing into a string cannot fail.
        let _ = write!(self.out, "{text}");
    }

    fn line(&mut self, text: impl Display) {
        self.begin();
        self.put(text);
        self.out.push('\n');
    }

    fn program(&mut self) {
        let p = self.program;
        let form = match p.form {
            Form::Logical => "logical",
            Form::Mapped => "mapped",
        };
        self.line(format_args!("kernel @{} {form} {{", p.name));
        self.indent += 1;
        if p.form == Form::Mapped {
            let g = &p.geometry;
            let cluster = list(g.cluster, |c| c);
            self.line(format_args!(
                "geometry lanes {} warps {} cluster [{cluster}] registers {}",
                g.lanes, g.warps, g.registers
            ));
        }
        for param in &p.params {
            self.param(param);
        }
        if p.rounds != 1 {
            self.line(format_args!("rounds {}", p.rounds));
        }
        if p.gathered != 0 {
            self.line(format_args!("gathered {}", p.gathered));
        }
        for phase in &p.phases {
            self.phase(phase);
        }
        self.indent -= 1;
        self.line("}");
    }

    fn param(&mut self, param: &Param) {
        self.begin();
        let (out, terms) = (&mut self.out, &self.terms);
        let name = terms.val(param.value);
        // Writing into a string cannot fail.
        let _ = match &param.kind {
            ParamKind::Buffer(b) => {
                let (mode, len) = (b.mode.name(), maybe("len", b.len.as_ref()));
                writeln!(
                    out,
                    "param {name}: buffer {} {mode} align {}{len}",
                    b.dtype, b.align
                )
            }
            ParamKind::Scalar { dtype, symbol } => {
                writeln!(out, "param {name}: {dtype}{}", maybe("symbol", *symbol))
            }
            ParamKind::TensorMap(m) => {
                let swizzle = m.swizzle.map_or(String::new(), |s| format!(" {s}"));
                let (dims, strides) = (list(&m.dims, |d| d), list(&m.strides, |s| s));
                writeln!(
                    out,
                    "param {name}: tensormap {} dims [{dims}] strides [{strides}] box {:?}{swizzle}",
                    terms.val(m.buffer),
                    m.boxed
                )
            }
        };
    }

    fn phase(&mut self, phase: &'p Phase) {
        let grid = list(&phase.grid, |extent| extent);
        let order = match phase.order {
            Order::Plain => "plain".to_string(),
            Order::Grouped { group } => format!("grouped {group}"),
            Order::Persistent { group } => format!("persistent {group}"),
        };
        let overlaps = if phase.overlaps { " overlapping" } else { "" };
        self.line(format_args!("phase grid [{grid}] {order}{overlaps} {{"));
        self.block(&phase.body);
        self.line("}");
    }

    /// The inside of a block.
    fn block(&mut self, block: &'p Block) {
        self.indent += 1;
        for inst in &block.insts {
            self.inst(inst);
        }
        if !block.yields.is_empty() {
            self.begin();
            let yields = list(&block.yields, |v| self.terms.val(*v));
            // Writing into a string cannot fail.
            let _ = writeln!(self.out, "yield {yields}");
        }
        self.indent -= 1;
    }

    /// A value where it is defined: name, type and layout.
    fn definition(&mut self, v: Val) {
        self.out.push_str(self.terms.val(v));
        let Some(data) = self.program.values.get(v) else {
            return;
        };
        if let Some((last, at)) = &self.last
            && last.ty == data.ty
            && last.layout == data.layout
        {
            self.out.extend_from_within(at.clone());
            return;
        }
        let start = self.out.len();
        self.put(format_args!(": {}", data.ty));
        if let Some(layout) = &data.layout
            && !is_implied(data)
        {
            self.put(format_args!(" {layout}"));
        }
        self.last = Some((data, start..self.out.len()));
    }

    /// What an op defines and the sign after it.
    fn results(&mut self, results: &[Val]) {
        for (i, &v) in results.iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { "" });
            self.definition(v);
        }
        self.out
            .push_str(if results.is_empty() { "" } else { " = " });
    }

    fn for_head(&mut self, iv: Val, lo: &Index, hi: &Index, step: i64) {
        let terms = &self.terms;
        let (iv, lo, hi) = (terms.val(iv), terms.index(lo), terms.index(hi));
        // Writing into a string cannot fail.
        let _ = write!(self.out, "for {iv} = {lo} to {hi} step {step}");
    }

    fn inst(&mut self, inst: &'p Inst) {
        self.begin();
        if !matches!(inst.op, Op::Roles { .. }) {
            self.results(&inst.results);
        }
        match &inst.op {
            Op::For {
                iv,
                lo,
                hi,
                step,
                inits,
                carried,
                body,
                unroll,
            } => {
                self.for_head(*iv, lo, hi, *step);
                if *unroll != 1 {
                    self.put(format_args!(" unroll {unroll}"));
                }
                for (i, (c, init)) in carried.iter().zip(inits).enumerate() {
                    self.out.push_str(if i > 0 { ", " } else { " (" });
                    self.definition(*c);
                    self.out.push_str(" = ");
                    self.out.push_str(self.terms.val(*init));
                }
                let any = !carried.is_empty() && !inits.is_empty();
                self.out.push_str(if any { ") {\n" } else { " {\n" });
                self.block(body);
                self.line("}");
            }
            Op::If {
                cond,
                on_true,
                on_false,
            } => {
                let cond = self.terms.val(*cond);
                // Writing into a string cannot fail.
                let _ = writeln!(self.out, "if {cond} {{");
                self.block(on_true);
                if !(on_false.insts.is_empty() && on_false.yields.is_empty()) {
                    self.line("} else {");
                    self.block(on_false);
                }
                self.line("}");
            }
            Op::Roles { roles } => {
                self.out.push_str("roles {\n");
                self.indent += 1;
                for role in roles {
                    self.line(format_args!(
                        "role {} warps {}+{} registers {} {{",
                        role.name, role.first_warp, role.warps, role.registers
                    ));
                    self.block(&role.body);
                    self.line("}");
                }
                self.indent -= 1;
                self.line("}");
            }
            op => {
                // Writing into a string cannot fail.
                let _ = self.terms.op(&mut self.out, op);
                self.out.push('\n');
            }
        }
    }
}

/// Ops without blocks, and what they are made of.
struct Terms {
    names: Names,
}

impl Terms {
    fn val(&self, v: Val) -> &str {
        let at = self.names.at.get(v.index()).cloned().unwrap_or(0..2);
        &self.names.text[at]
    }

    fn index(&self, index: &Index) -> impl Display {
        fmt::from_fn(move |f| match *index {
            Index::Const(n) => n.fmt(f),
            Index::Val(v) => f.write_str(self.val(v)),
        })
    }

    fn indices(&self, indices: &[Index]) -> impl Display {
        list(indices, |index| self.index(index))
    }

    /// `%x[%base; strides] valid [bounds]`; the shape is that of the tile beside it.
    fn window(&self, access: &Access) -> impl Display {
        fmt::from_fn(move |f| {
            let (mem, base) = (self.val(access.mem), self.index(&access.base));
            write!(f, "{mem}[{base}")?;
            if !access.strides.is_empty() {
                write!(f, "; {}", self.indices(&access.strides))?;
            }
            f.write_str("]")?;
            if access.valid.iter().any(Option::is_some) {
                let bound = |bound: &Option<Index>| match bound {
                    Some(Index::Const(n)) => n.to_string(),
                    Some(Index::Val(v)) => self.val(*v).to_owned(),
                    None => "_".to_owned(),
                };
                write!(f, " valid [{}]", list(&access.valid, bound))?;
            }
            Ok(())
        })
    }

    fn shaped_window(&self, access: &Access) -> impl Display {
        fmt::from_fn(move |f| write!(f, "{} shape {:?}", self.window(access), access.shape))
    }

    fn operand(&self, operand: &MmaOperand) -> impl Display {
        fmt::from_fn(move |f| match operand {
            MmaOperand::Tile(v) => f.write_str(self.val(*v)),
            MmaOperand::Mem { access, dims } => {
                let dims = list(dims, |dim| match dim {
                    MmaDim::K => "k",
                    MmaDim::Side => "side",
                });
                write!(f, "{} dims [{dims}]", self.shaped_window(access))
            }
        })
    }

    fn barrier(&self, barrier: &BarrierRef) -> impl Display {
        fmt::from_fn(move |f| {
            write!(
                f,
                "{}[{}]",
                self.val(barrier.mem),
                self.index(&barrier.slot)
            )
        })
    }

    fn op(&self, out: &mut String, op: &Op) -> fmt::Result {
        let v = |v: &Val| self.val(*v);
        let mask = |mask: &Option<Val>| maybe("mask", mask.map(|m| self.val(m)));
        let hint = |hint: CacheHint| match hint {
            CacheHint::Default => "",
            CacheHint::Streaming => " streaming",
            CacheHint::Kept => " kept",
            CacheHint::Ahead => " ahead",
        };
        let fill = |fill: &Scalar| {
            let zero = [Scalar::F(0.0), Scalar::I(0), Scalar::B(false)].contains(fill);
            maybe("fill", (!zero).then_some(*fill))
        };
        match op {
            Op::ProgramId { axis } => write!(out, "program_id {axis}"),
            Op::NumPrograms { axis } => write!(out, "num_programs {axis}"),
            Op::Const { value } => write!(out, "const {value}"),
            Op::Iota { dim } => write!(out, "iota {dim}"),
            Op::Splat { value } => write!(out, "splat {}", v(value)),
            Op::Broadcast { value } => write!(out, "broadcast {}", v(value)),
            Op::Reshape { value } => write!(out, "reshape {}", v(value)),
            Op::Permute { value, perm } => write!(out, "permute {} {perm:?}", v(value)),
            Op::Unary { op, value } => write!(out, "{} {}", op.name(), v(value)),
            Op::Binary { op, lhs, rhs } => write!(out, "{} {}, {}", op.name(), v(lhs), v(rhs)),
            Op::Compare { op, lhs, rhs } => write!(out, "{} {}, {}", op.name(), v(lhs), v(rhs)),
            Op::Select {
                cond,
                on_true,
                on_false,
            } => write!(out, "select {}, {}, {}", v(cond), v(on_true), v(on_false)),
            Op::Fma { a, b, c } => write!(out, "fma {}, {}, {}", v(a), v(b), v(c)),
            Op::Cast { value } => write!(out, "cast {}", v(value)),
            Op::Bitcast { value } => write!(out, "bitcast {}", v(value)),
            Op::Load {
                access,
                mask: m,
                fill: f,
                hint: h,
            } => write!(
                out,
                "load {}{}{}{}",
                self.window(access),
                mask(m),
                fill(f),
                hint(*h)
            ),
            Op::Store {
                access,
                value,
                mask: m,
                hint: h,
            } => write!(
                out,
                "store {}, {}{}{}",
                self.window(access),
                v(value),
                mask(m),
                hint(*h)
            ),
            Op::Gather {
                mem,
                index,
                mask: m,
                fill: f,
            } => write!(out, "gather {}[{}]{}{}", v(mem), v(index), mask(m), fill(f)),
            Op::Scatter {
                mem,
                index,
                value,
                mask: m,
            } => write!(
                out,
                "scatter {}[{}], {}{}",
                v(mem),
                v(index),
                v(value),
                mask(m)
            ),
            Op::Atomic {
                op,
                mem,
                index,
                value,
                mask: m,
            } => write!(
                out,
                "atomic.{} {}[{}], {}{}",
                op.name(),
                v(mem),
                v(index),
                v(value),
                mask(m)
            ),
            Op::Reduce { op, value, axes } => {
                write!(out, "reduce.{} {} {axes:?}", op.name(), v(value))
            }
            Op::ArgReduce { op, value, axis } => write!(out, "{} {} {axis}", op.name(), v(value)),
            Op::Scan {
                op,
                value,
                axis,
                reverse,
            } => write!(
                out,
                "scan.{} {} {axis}{}",
                op.name(),
                v(value),
                if *reverse { " reverse" } else { "" }
            ),
            Op::Sort {
                value,
                axis,
                descending,
            } => write!(
                out,
                "sort {} {axis}{}",
                v(value),
                if *descending { " descending" } else { "" }
            ),
            Op::Dot { a, b, acc } => write!(out, "dot {}, {}, {}", v(a), v(b), v(acc)),
            Op::Pick { mems, index } => {
                let mems: Vec<String> = mems.iter().map(|m| v(m).to_string()).collect();
                write!(out, "pick ({}) [{}]", mems.join(", "), v(index))
            }
            Op::Alloc => out.write_str("alloc"),
            Op::ConvertLayout { value } => write!(out, "convert_layout {}", v(value)),
            Op::Mma {
                a,
                b,
                acc,
                asynchronous,
            } => {
                write!(
                    out,
                    "mma {}, {}, {}{}",
                    self.operand(a),
                    self.operand(b),
                    v(acc),
                    if *asynchronous { " async" } else { "" }
                )
            }
            Op::MmaCommit => out.write_str("mma_commit"),
            Op::MmaWait { pending, accs } => write!(out, "mma_wait {pending} ({})", list(accs, v)),
            Op::TensorLoad {
                map,
                coords,
                dst,
                base,
                barrier,
            } => {
                write!(
                    out,
                    "tensor_load {} [{}] to {}[{}] on {}",
                    v(map),
                    self.indices(coords),
                    v(dst),
                    self.index(base),
                    self.barrier(barrier)
                )
            }
            Op::TensorStore {
                map,
                coords,
                src,
                base,
            } => write!(
                out,
                "tensor_store {} [{}] from {}[{}]",
                v(map),
                self.indices(coords),
                v(src),
                self.index(base)
            ),
            Op::CopyAsync { src, dst } => write!(
                out,
                "copy_async {} to {}",
                self.shaped_window(src),
                self.shaped_window(dst)
            ),
            Op::CopyCommit => out.write_str("copy_commit"),
            Op::CopyWait { pending } => write!(out, "copy_wait {pending}"),
            Op::BarrierInit { barrier, count } => {
                write!(out, "barrier_init {} count {count}", self.barrier(barrier))
            }
            Op::BarrierArrive {
                barrier,
                bytes,
                per_warp,
            } => {
                let bytes = maybe("bytes", *bytes);
                write!(
                    out,
                    "barrier_arrive {}{bytes}{}",
                    self.barrier(barrier),
                    if *per_warp { " per_warp" } else { "" }
                )
            }
            Op::BarrierWait { barrier, parity } => write!(
                out,
                "barrier_wait {} parity {}",
                self.barrier(barrier),
                v(parity)
            ),
            Op::Sync => out.write_str("sync"),
            Op::FenceAsync => out.write_str("fence_async"),
            // Written with their blocks.
            Op::For { .. } | Op::If { .. } | Op::Roles { .. } => Ok(()),
        }
    }
}

/// A scalar that every lane holds is what a scalar of a mapped program is when nothing is said.
fn is_implied(data: &ValueData) -> bool {
    data.layout.as_ref() == Some(&TileLayout::default())
        && data.ty.as_tile().is_some_and(|tile| tile.shape.is_empty())
}
