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

use oxyfuel_base::{Id, Scalar};

use crate::ir::{
    Access, BarrierRef, Block, BufferMode, CacheHint, Form, Index, Inst, MemType, MmaDim,
    MmaOperand, Mode, Op, Order, Param, ParamKind, Phase, Program, Space, Swizzle, TileLayout,
    Type, Val,
};

impl Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printer = Printer {
            program: self,
            names: names(self),
            out: String::new(),
            indent: 0,
        };
        printer.program();
        f.write_str(&printer.out)
    }
}

/// Whether a name may stand in text.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What each value is called, by its index.
fn names(program: &Program) -> Vec<String> {
    let mut names: Vec<String> = vec!["%?".to_string(); program.values.len()];
    let mut taken = HashSet::new();
    let mut count = 0usize;
    let mut define = |v: Val, name: Option<&String>| {
        let Some(slot) = names.get_mut(v.index()) else {
            return;
        };
        *slot = match name.filter(|name| is_identifier(name)) {
            Some(name) if taken.insert(name.clone()) => format!("%{name}"),
            Some(name) => format!("%{name}.{count}"),
            None => format!("%{count}"),
        };
        count += 1;
    };
    for param in &program.params {
        define(param.value, Some(&param.name));
    }
    let name_of = |v: Val| program.values.get(v).and_then(|data| data.name.as_ref());
    program.walk(|inst| {
        // Results stand to the left of what the op's blocks receive.
        for v in inst.results.iter().copied().chain(inst.op.block_params()) {
            define(v, name_of(v));
        }
    });
    names
}

fn list<T>(items: impl IntoIterator<Item = T>, text: impl Fn(T) -> String) -> String {
    items.into_iter().map(text).collect::<Vec<_>>().join(", ")
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
        let level = |name: &str, modes: &[Mode]| {
            let text = list(modes, |m| format!("{}:{}*{}", m.dim, m.extent, m.stride));
            (!modes.is_empty()).then(|| format!("{name}({text})"))
        };
        let mut parts: Vec<String> = [
            ("cluster", &self.cluster),
            ("warp", &self.warp),
            ("lane", &self.lane),
            ("reg", &self.reg),
        ]
        .into_iter()
        .filter_map(|(name, modes)| level(name, modes))
        .collect();
        if self.matrix {
            parts.push("matrix".to_string());
        }
        write!(f, "{{{}}}", parts.join(" "))
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
    names: Vec<String>,
    out: String,
    indent: usize,
}

impl Printer<'_> {
    fn line(&mut self, text: impl Display) {
        let indent = self.indent * 2;
        // Writing into a string cannot fail.
        let _ = writeln!(self.out, "{:indent$}{text}", "");
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
            let cluster = list(g.cluster, |c| c.to_string());
            self.line(format_args!(
                "geometry lanes {} warps {} cluster [{cluster}] registers {}",
                g.lanes, g.warps, g.registers
            ));
        }
        for param in &p.params {
            let text = self.param(param);
            self.line(text);
        }
        for phase in &p.phases {
            self.phase(phase);
        }
        self.indent -= 1;
        self.line("}");
    }

    fn param(&self, param: &Param) -> String {
        let name = self.val(param.value);
        match &param.kind {
            ParamKind::Buffer(b) => {
                let len = b
                    .len
                    .as_ref()
                    .map_or(String::new(), |len| format!(" len {len}"));
                format!(
                    "param {name}: buffer {} {} align {}{len}",
                    b.dtype,
                    b.mode.name(),
                    b.align
                )
            }
            ParamKind::Scalar { dtype, symbol } => {
                let symbol = symbol.map_or(String::new(), |s| format!(" symbol {s}"));
                format!("param {name}: {dtype}{symbol}")
            }
            ParamKind::TensorMap(m) => {
                let swizzle = m.swizzle.map_or(String::new(), |s| format!(" {s}"));
                let (dims, strides) = (
                    list(&m.dims, ToString::to_string),
                    list(&m.strides, ToString::to_string),
                );
                format!(
                    "param {name}: tensormap {} dims [{dims}] strides [{strides}] box {:?}{swizzle}",
                    self.val(m.buffer),
                    m.boxed
                )
            }
        }
    }

    fn phase(&mut self, phase: &Phase) {
        let grid = list(&phase.grid, ToString::to_string);
        let order = match phase.order {
            Order::Plain => "plain".to_string(),
            Order::Grouped { group } => format!("grouped {group}"),
            Order::Persistent { group } => format!("persistent {group}"),
        };
        self.line(format_args!("phase grid [{grid}] {order} {{"));
        self.block(&phase.body);
        self.line("}");
    }

    /// The inside of a block.
    fn block(&mut self, block: &Block) {
        self.indent += 1;
        for inst in &block.insts {
            self.inst(inst);
        }
        if !block.yields.is_empty() {
            let text = list(&block.yields, |v| self.val(*v));
            self.line(format_args!("yield {text}"));
        }
        self.indent -= 1;
    }

    fn val(&self, v: Val) -> String {
        self.names
            .get(v.index())
            .cloned()
            .unwrap_or_else(|| "%?".to_string())
    }

    /// A value where it is defined: name, type and layout.
    fn definition(&self, v: Val) -> String {
        match self.program.values.get(v) {
            None => self.val(v),
            Some(data) => {
                let layout = data
                    .layout
                    .as_ref()
                    .filter(|_| !is_implied(data))
                    .map_or(String::new(), |layout| format!(" {layout}"));
                format!("{}: {}{layout}", self.val(v), data.ty)
            }
        }
    }

    fn index(&self, index: &Index) -> String {
        match index {
            Index::Const(n) => n.to_string(),
            Index::Val(v) => self.val(*v),
        }
    }

    fn indices(&self, indices: &[Index]) -> String {
        list(indices, |index| self.index(index))
    }

    /// `%x[%base; strides] valid [bounds]`; the shape is that of the tile beside it.
    fn window(&self, access: &Access) -> String {
        let strides = if access.strides.is_empty() {
            String::new()
        } else {
            format!("; {}", self.indices(&access.strides))
        };
        let mut text = format!(
            "{}[{}{strides}]",
            self.val(access.mem),
            self.index(&access.base)
        );
        if access.valid.iter().any(Option::is_some) {
            let bounds = list(&access.valid, |bound| {
                bound
                    .as_ref()
                    .map_or("_".to_string(), |index| self.index(index))
            });
            let _ = write!(text, " valid [{bounds}]");
        }
        text
    }

    fn shaped_window(&self, access: &Access) -> String {
        format!("{} shape {:?}", self.window(access), access.shape)
    }

    fn operand(&self, operand: &MmaOperand) -> String {
        match operand {
            MmaOperand::Tile(v) => self.val(*v),
            MmaOperand::Mem { access, dims } => {
                let dims = list(dims, |dim| match dim {
                    MmaDim::K => "k".to_string(),
                    MmaDim::Side => "side".to_string(),
                });
                format!("{} dims [{dims}]", self.shaped_window(access))
            }
        }
    }

    fn barrier(&self, barrier: &BarrierRef) -> String {
        format!("{}[{}]", self.val(barrier.mem), self.index(&barrier.slot))
    }

    fn inst(&mut self, inst: &Inst) {
        let results = list(&inst.results, |v| self.definition(*v));
        let head = if results.is_empty() {
            String::new()
        } else {
            format!("{results} = ")
        };
        let v = |v: &Val| self.val(*v);
        let mask =
            |mask: &Option<Val>| mask.map_or(String::new(), |m| format!(" mask {}", self.val(m)));
        let hint = |hint: CacheHint| match hint {
            CacheHint::Default => "",
            CacheHint::Streaming => " streaming",
        };
        let fill = |fill: &Scalar| {
            let zero = [Scalar::F(0.0), Scalar::I(0), Scalar::B(false)].contains(fill);
            if zero {
                String::new()
            } else {
                format!(" fill {fill}")
            }
        };
        let text = match &inst.op {
            Op::ProgramId { axis } => format!("program_id {axis}"),
            Op::NumPrograms { axis } => format!("num_programs {axis}"),
            Op::Const { value } => format!("const {value}"),
            Op::Iota { dim } => format!("iota {dim}"),
            Op::Splat { value } => format!("splat {}", v(value)),
            Op::Broadcast { value } => format!("broadcast {}", v(value)),
            Op::Reshape { value } => format!("reshape {}", v(value)),
            Op::Permute { value, perm } => format!("permute {} {perm:?}", v(value)),
            Op::Unary { op, value } => format!("{} {}", op.name(), v(value)),
            Op::Binary { op, lhs, rhs } => format!("{} {}, {}", op.name(), v(lhs), v(rhs)),
            Op::Compare { op, lhs, rhs } => format!("{} {}, {}", op.name(), v(lhs), v(rhs)),
            Op::Select {
                cond,
                on_true,
                on_false,
            } => format!("select {}, {}, {}", v(cond), v(on_true), v(on_false)),
            Op::Fma { a, b, c } => format!("fma {}, {}, {}", v(a), v(b), v(c)),
            Op::Cast { value } => format!("cast {}", v(value)),
            Op::Bitcast { value } => format!("bitcast {}", v(value)),
            Op::Load {
                access,
                mask: m,
                fill: f,
                hint: h,
            } => format!(
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
            } => format!(
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
            } => format!("gather {}[{}]{}{}", v(mem), v(index), mask(m), fill(f)),
            Op::Scatter {
                mem,
                index,
                value,
                mask: m,
            } => format!("scatter {}[{}], {}{}", v(mem), v(index), v(value), mask(m)),
            Op::Atomic {
                op,
                mem,
                index,
                value,
                mask: m,
            } => format!(
                "atomic.{} {}[{}], {}{}",
                op.name(),
                v(mem),
                v(index),
                v(value),
                mask(m)
            ),
            Op::Reduce { op, value, axes } => format!("reduce.{} {} {axes:?}", op.name(), v(value)),
            Op::ArgReduce { op, value, axis } => format!("{} {} {axis}", op.name(), v(value)),
            Op::Scan {
                op,
                value,
                axis,
                reverse,
            } => format!(
                "scan.{} {} {axis}{}",
                op.name(),
                v(value),
                if *reverse { " reverse" } else { "" }
            ),
            Op::Sort {
                value,
                axis,
                descending,
            } => format!(
                "sort {} {axis}{}",
                v(value),
                if *descending { " descending" } else { "" }
            ),
            Op::Dot { a, b, acc } => format!("dot {}, {}, {}", v(a), v(b), v(acc)),
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
                let unroll = if *unroll == 1 {
                    String::new()
                } else {
                    format!(" unroll {unroll}")
                };
                let carried = list(carried.iter().zip(inits), |(c, init)| {
                    format!("{} = {}", self.definition(*c), self.val(*init))
                });
                let carried = if carried.is_empty() {
                    String::new()
                } else {
                    format!(" ({carried})")
                };
                let (lo, hi) = (self.index(lo), self.index(hi));
                self.line(format_args!(
                    "{head}for {} = {lo} to {hi} step {step}{unroll}{carried} {{",
                    self.val(*iv)
                ));
                self.block(body);
                "}".to_string()
            }
            Op::If {
                cond,
                on_true,
                on_false,
            } => {
                self.line(format_args!("{head}if {} {{", self.val(*cond)));
                self.block(on_true);
                if on_false.insts.is_empty() && on_false.yields.is_empty() {
                    "}".to_string()
                } else {
                    self.line("} else {");
                    self.block(on_false);
                    "}".to_string()
                }
            }
            Op::Alloc => "alloc".to_string(),
            Op::ConvertLayout { value } => format!("convert_layout {}", v(value)),
            Op::Mma {
                a,
                b,
                acc,
                asynchronous,
            } => {
                format!(
                    "mma {}, {}, {}{}",
                    self.operand(a),
                    self.operand(b),
                    v(acc),
                    if *asynchronous { " async" } else { "" }
                )
            }
            Op::MmaCommit => "mma_commit".to_string(),
            Op::MmaWait { pending, accs } => format!("mma_wait {pending} ({})", list(accs, v)),
            Op::TensorLoad {
                map,
                coords,
                dst,
                base,
                barrier,
            } => {
                format!(
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
            } => format!(
                "tensor_store {} [{}] from {}[{}]",
                v(map),
                self.indices(coords),
                v(src),
                self.index(base)
            ),
            Op::CopyAsync { src, dst } => format!(
                "copy_async {} to {}",
                self.shaped_window(src),
                self.shaped_window(dst)
            ),
            Op::CopyCommit => "copy_commit".to_string(),
            Op::CopyWait { pending } => format!("copy_wait {pending}"),
            Op::BarrierInit { barrier, count } => {
                format!("barrier_init {} count {count}", self.barrier(barrier))
            }
            Op::BarrierArrive {
                barrier,
                bytes,
                per_warp,
            } => {
                let bytes = bytes.map_or(String::new(), |bytes| format!(" bytes {bytes}"));
                format!(
                    "barrier_arrive {}{bytes}{}",
                    self.barrier(barrier),
                    if *per_warp { " per_warp" } else { "" }
                )
            }
            Op::BarrierWait { barrier, parity } => format!(
                "barrier_wait {} parity {}",
                self.barrier(barrier),
                v(parity)
            ),
            Op::Sync => "sync".to_string(),
            Op::FenceAsync => "fence_async".to_string(),
            Op::Roles { roles } => {
                self.line("roles {");
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
                "}".to_string()
            }
        };
        match inst.op {
            Op::For { .. } | Op::If { .. } | Op::Roles { .. } => self.line(text),
            _ => self.line(format_args!("{head}{text}")),
        }
    }
}

/// A scalar that every lane holds is what a scalar of a mapped program is when nothing is said.
fn is_implied(data: &crate::ir::ValueData) -> bool {
    data.layout.as_ref() == Some(&TileLayout::default())
        && data.ty.as_tile().is_some_and(|tile| tile.shape.is_empty())
}
