//! Reads the text of programs; see [`text`](crate::text) for what it looks like. `#` starts a comment.
//!
//! The parser checks names and grammar and says where it failed; [`verify`](crate::verify) checks the program. Any text is survived.

use std::collections::HashMap;

use oxyfuel_base::{Arena, Code, DType, Error, Expr, Location, Result, Scalar, Symbol};

use crate::ir::{
    Block, BufferMode, BufferParam, Form, Geometry, Index, Inst, MemType, Mode, Order, Param,
    ParamKind, Phase, Program, Space, Swizzle, TensorMapParam, TileLayout, TileType, Type, Val,
    ValueData,
};
use crate::verify::MAX_DEPTH;

/// Reads one program. `file` is what errors call the text.
pub fn parse(file: &str, text: &str) -> Result<Program> {
    let empty = Program {
        name: String::new(),
        form: Form::Logical,
        params: Vec::new(),
        values: Arena::new(),
        geometry: Geometry::LOGICAL,
        phases: Vec::new(),
        rounds: 1,
        gathered: 0,
    };
    let mut parser = Parser {
        file,
        text,
        pos: 0,
        program: empty,
        names: HashMap::new(),
        depth: 0,
    };
    parser.program()?;
    Ok(parser.program)
}

mod ops;

struct Parser<'t> {
    file: &'t str,
    text: &'t str,
    pos: usize,
    program: Program,
    names: HashMap<&'t str, Val>,
    depth: usize,
}

impl<'t> Parser<'t> {
    // ---- the small parts --------------------------------------------------------------------------------------------------------

    fn error(&self, code: Code, at: usize, message: impl Into<String>) -> Error {
        Error::new(code, message).at(Location::in_text(self.file, self.text, at))
    }

    fn rest(&self) -> &'t str {
        &self.text[self.pos..]
    }

    fn skip(&mut self) {
        loop {
            let trimmed = self.rest().trim_start();
            self.pos = self.text.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.pos += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let len = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.pos += len;
        &rest[..len]
    }

    fn found(&self) -> String {
        match self.rest().chars().next() {
            None => "the end".to_string(),
            Some(_) => {
                let end = self
                    .rest()
                    .find(char::is_whitespace)
                    .unwrap_or(self.rest().len());
                format!(
                    "`{}`",
                    self.rest()[..end]
                        .chars()
                        .take(20)
                        .collect::<String>()
                        .escape_debug()
                )
            }
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip();
        let hit = self.rest().starts_with(token);
        if hit {
            self.pos += token.len();
        }
        hit
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) {
            return Ok(());
        }
        Err(self.error(
            Code::Syntax,
            self.pos,
            format!("expected `{token}`, found {}", self.found()),
        ))
    }

    /// A word, empty where there is none.
    fn peek_word(&mut self) -> &'t str {
        self.skip();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'))
            .unwrap_or(rest.len());
        &rest[..end]
    }

    fn word(&mut self) -> Result<&'t str> {
        let word = self.peek_word();
        if word.is_empty() {
            return Err(self.error(
                Code::Syntax,
                self.pos,
                format!("expected a word, found {}", self.found()),
            ));
        }
        self.pos += word.len();
        Ok(word)
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let hit = self.peek_word() == word;
        if hit {
            self.pos += word.len();
        }
        hit
    }

    fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word) {
            return Ok(());
        }
        Err(self.error(
            Code::Syntax,
            self.pos,
            format!("expected `{word}`, found {}", self.found()),
        ))
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
        self.skip();
        let at = self.pos;
        let text = self.take_while(|c| c.is_ascii_digit() || c == '-');
        text.parse().map_err(|_| {
            let found = if text.is_empty() {
                self.found()
            } else {
                format!("`{text}`")
            };
            self.error(
                Code::InvalidLiteral,
                at,
                format!("expected a number, found {found}"),
            )
        })
    }

    fn scalar(&mut self) -> Result<Scalar> {
        self.skip();
        let at = self.pos;
        let text =
            self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.' | ':'));
        text.parse()
            .map_err(|error: Error| error.at(Location::in_text(self.file, self.text, at)))
    }

    fn dtype(&mut self) -> Result<DType> {
        let at = self.pos;
        let word = self.word()?;
        word.parse()
            .map_err(|error: Error| error.at(Location::in_text(self.file, self.text, at)))
    }

    /// An expression up to a comma, a bracket that closes more than it opened, a brace or the end of the line.
    fn expr(&mut self) -> Result<Expr> {
        self.skip();
        let at = self.pos;
        let mut depth = 0usize;
        let rest = self.rest();
        let mut len = rest.len();
        for (i, c) in rest.char_indices() {
            match c {
                '(' => depth += 1,
                ')' if depth > 0 => depth -= 1,
                ')' | ']' | '{' | '}' | '\n' | '#' => {
                    len = i;
                    break;
                }
                ',' if depth == 0 => {
                    len = i;
                    break;
                }
                _ => {}
            }
        }
        self.pos += len;
        let text = rest[..len].trim();
        text.parse()
            .map_err(|error: Error| error.at(Location::in_text(self.file, self.text, at)))
    }

    /// `[item, item]`, possibly empty.
    fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        self.list_until(close, item)
    }

    fn list_until<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }

    fn value_name(&mut self) -> Result<(&'t str, usize)> {
        self.skip();
        let at = self.pos;
        if !self.eat("%") {
            return Err(self.error(
                Code::Syntax,
                at,
                format!("expected a value, found {}", self.found()),
            ));
        }
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        if name.is_empty() {
            return Err(self.error(Code::Syntax, at, "expected a name after `%`"));
        }
        Ok((name, at))
    }

    fn val(&mut self) -> Result<Val> {
        let (name, at) = self.value_name()?;
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| self.error(Code::UnknownName, at, format!("there is no value %{name}")))
    }

    fn define(
        &mut self,
        name: &'t str,
        at: usize,
        ty: Type,
        layout: Option<TileLayout>,
    ) -> Result<Val> {
        let is_scalar = ty.as_tile().is_some_and(|tile| tile.shape.is_empty());
        let layout = layout
            .or_else(|| (is_scalar && self.program.form == Form::Mapped).then(TileLayout::default));
        let own = name
            .split('.')
            .next()
            .filter(|own| crate::text::is_identifier(own))
            .map(str::to_string);
        let val = self.program.values.push(ValueData {
            ty,
            layout,
            name: own,
        });
        if self.names.insert(name, val).is_some() {
            return Err(self.error(Code::DuplicateName, at, format!("%{name} is defined twice")));
        }
        Ok(val)
    }

    fn index(&mut self) -> Result<Index> {
        self.skip();
        if self.rest().starts_with('%') {
            self.val().map(Index::Val)
        } else {
            self.number().map(Index::Const)
        }
    }

    fn shape(&mut self) -> Result<Vec<i64>> {
        self.list("[", "]", Self::number)
    }

    fn swizzle(&mut self) -> Result<Option<Swizzle>> {
        if !self.eat_word("swizzle") {
            return Ok(None);
        }
        self.expect("(")?;
        let bits = self.number()?;
        self.expect(",")?;
        let base = self.number()?;
        self.expect(",")?;
        let shift = self.number()?;
        self.expect(")")?;
        Ok(Some(Swizzle { bits, base, shift }))
    }

    fn ty(&mut self) -> Result<(Type, Option<TileLayout>)> {
        let word = self.peek_word();
        if let Some((space, _)) = Space::ALL.iter().find(|(_, name)| *name == word) {
            self.pos += word.len();
            let dtype = self.dtype()?;
            let len = if self.eat_word("x") {
                Some(self.number()?)
            } else {
                None
            };
            let swizzle = self.swizzle()?;
            return Ok((
                Type::Mem(MemType {
                    dtype,
                    space: *space,
                    len,
                    swizzle,
                }),
                None,
            ));
        }
        let dtype = self.dtype()?;
        let shape = if self.rest().starts_with('[') {
            self.shape()?
        } else {
            Vec::new()
        };
        self.skip();
        let layout = if self.rest().starts_with('{') {
            Some(self.layout()?)
        } else {
            None
        };
        Ok((Type::Tile(TileType { dtype, shape }), layout))
    }

    fn layout(&mut self) -> Result<TileLayout> {
        self.expect("{")?;
        let mut layout = TileLayout::default();
        while !self.eat("}") {
            let at = self.pos;
            match self.word()? {
                "matrix" => layout.matrix = true,
                "cluster" => layout.cluster = self.modes()?,
                "warp" => layout.warp = self.modes()?,
                "lane" => layout.lane = self.modes()?,
                "reg" => layout.reg = self.modes()?,
                other => {
                    return Err(self.error(
                        Code::UnknownName,
                        at,
                        format!("a layout has no `{other}`"),
                    ));
                }
            }
        }
        Ok(layout)
    }

    fn modes(&mut self) -> Result<Vec<Mode>> {
        self.list("(", ")", |p| {
            let dim = p.number()?;
            p.expect(":")?;
            let extent = p.number()?;
            p.expect("*")?;
            Ok(Mode {
                dim,
                extent,
                stride: p.number()?,
            })
        })
    }

    // ---- the program ------------------------------------------------------------------------------------------------------------

    fn program(&mut self) -> Result<()> {
        self.expect_word("kernel")?;
        self.expect("@")?;
        self.program.name = self.word()?.to_string();
        let at = self.pos;
        self.program.form = match self.word()? {
            "logical" => Form::Logical,
            "mapped" => Form::Mapped,
            other => {
                return Err(self.error(
                    Code::UnknownName,
                    at,
                    format!("a program is logical or mapped, not `{other}`"),
                ));
            }
        };
        self.expect("{")?;
        if self.eat_word("geometry") {
            self.geometry()?;
        }
        while self.eat_word("param") {
            self.param()?;
        }
        if self.eat_word("rounds") {
            self.program.rounds = self.number()?;
        }
        if self.eat_word("gathered") {
            self.program.gathered = self.number()?;
        }
        while self.eat_word("phase") {
            self.phase()?;
        }
        self.expect("}")?;
        self.skip();
        if !self.rest().is_empty() {
            return Err(self.error(
                Code::Syntax,
                self.pos,
                format!("expected the end, found {}", self.found()),
            ));
        }
        Ok(())
    }

    fn geometry(&mut self) -> Result<()> {
        self.expect_word("lanes")?;
        let lanes = self.number()?;
        self.expect_word("warps")?;
        let warps = self.number()?;
        self.expect_word("cluster")?;
        let at = self.pos;
        let cluster = self.list("[", "]", Self::number)?;
        let cluster = cluster
            .try_into()
            .map_err(|_| self.error(Code::Syntax, at, "a cluster has three extents"))?;
        self.expect_word("registers")?;
        self.program.geometry = Geometry {
            lanes,
            warps,
            cluster,
            registers: self.number()?,
        };
        Ok(())
    }

    fn param(&mut self) -> Result<()> {
        let (name, at) = self.value_name()?;
        if !crate::text::is_identifier(name) {
            return Err(self.error(
                Code::Syntax,
                at,
                format!("a parameter's name is an identifier, not `{name}`"),
            ));
        }
        self.expect(":")?;
        let (kind, ty) = if self.eat_word("buffer") {
            let dtype = self.dtype()?;
            let at = self.pos;
            let word = self.word()?;
            let mode = BufferMode::ALL.into_iter().find(|mode| mode.name() == word);
            let mode = mode.ok_or_else(|| {
                self.error(
                    Code::UnknownName,
                    at,
                    format!("a buffer is read, write, readwrite or workspace, not `{word}`"),
                )
            })?;
            self.expect_word("align")?;
            let align = self.number()?;
            let len = if self.eat_word("len") {
                Some(self.expr()?)
            } else {
                None
            };
            let ty = Type::Mem(MemType {
                dtype,
                space: Space::Global,
                len: None,
                swizzle: None,
            });
            (
                ParamKind::Buffer(BufferParam {
                    dtype,
                    mode,
                    len,
                    align,
                }),
                ty,
            )
        } else if self.eat_word("tensormap") {
            let buffer = self.val()?;
            self.expect_word("dims")?;
            let dims = self.list("[", "]", Self::expr)?;
            self.expect_word("strides")?;
            let strides = self.list("[", "]", Self::expr)?;
            self.expect_word("box")?;
            let boxed = self.shape()?;
            let swizzle = self.swizzle()?;
            (
                ParamKind::TensorMap(TensorMapParam {
                    buffer,
                    dims,
                    strides,
                    boxed,
                    swizzle,
                }),
                Type::TensorMap,
            )
        } else {
            let dtype = self.dtype()?;
            let symbol = if self.eat_word("symbol") {
                Some(self.symbol()?)
            } else {
                None
            };
            (ParamKind::Scalar { dtype, symbol }, Type::scalar(dtype))
        };
        let value = self.define(name, at, ty, None)?;
        self.program.params.push(Param {
            value,
            name: name.to_string(),
            kind,
        });
        Ok(())
    }

    fn symbol(&mut self) -> Result<Symbol> {
        let at = self.pos;
        let word = self.word()?;
        let number = word
            .strip_prefix('s')
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok());
        number.map(Symbol).ok_or_else(|| {
            self.error(
                Code::InvalidLiteral,
                at,
                format!("a symbol is written like s0, not `{word}`"),
            )
        })
    }

    fn phase(&mut self) -> Result<()> {
        self.expect_word("grid")?;
        let grid = self.list("[", "]", Self::expr)?;
        let at = self.pos;
        let order = match self.word()? {
            "plain" => Order::Plain,
            "grouped" => Order::Grouped {
                group: self.number()?,
            },
            "persistent" => Order::Persistent {
                group: self.number()?,
            },
            other => {
                return Err(self.error(
                    Code::UnknownName,
                    at,
                    format!("an order is plain, grouped or persistent, not `{other}`"),
                ));
            }
        };
        let overlaps = self.eat_word("overlapping");
        let body = self.block()?;
        self.program.phases.push(Phase {
            grid,
            order,
            overlaps,
            body,
        });
        Ok(())
    }

    fn block(&mut self) -> Result<Block> {
        self.expect("{")?;
        if self.depth >= MAX_DEPTH {
            return Err(self.error(
                Code::NestedTooDeep,
                self.pos,
                format!("blocks nest deeper than {MAX_DEPTH}"),
            ));
        }
        self.depth += 1;
        let mut block = Block::default();
        while !self.eat("}") {
            if self.eat_word("yield") {
                block.yields.push(self.val()?);
                while self.eat(",") {
                    block.yields.push(self.val()?);
                }
                self.expect("}")?;
                break;
            }
            let inst = self.inst()?;
            block.insts.push(inst);
        }
        self.depth -= 1;
        Ok(block)
    }

    fn inst(&mut self) -> Result<Inst> {
        self.skip();
        let mut defined = Vec::new();
        if self.rest().starts_with('%') {
            loop {
                let (name, at) = self.value_name()?;
                self.expect(":")?;
                let (ty, layout) = self.ty()?;
                defined.push((name, at, ty, layout));
                if !self.eat(",") {
                    break;
                }
            }
            self.expect("=")?;
        }
        // A result may not be an operand of its own op, so it gets its name afterwards; its number comes first.
        let first = defined.first().map(|(_, _, ty, _)| ty.clone());
        let mut results = Vec::new();
        let mut names = Vec::new();
        for (name, at, ty, layout) in defined {
            let val = self.define(name, at, ty, layout)?;
            self.names.remove(name);
            names.push((name, at, val));
            results.push(val);
        }
        let op = self.op(first.as_ref())?;
        for (name, at, val) in names {
            if self.names.insert(name, val).is_some() {
                return Err(self.error(
                    Code::DuplicateName,
                    at,
                    format!("%{name} is defined twice"),
                ));
            }
        }
        Ok(Inst { op, results })
    }
}
