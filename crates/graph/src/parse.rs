//! Reads the text of `text.rs`.
//!
//! The parser walks the text once, never recurses, and takes any input: what it does not understand is a coded error with line and column.
//! It checks names and syntax and fits attributes to the op table; whether the graph is sound is the verifier's question.

use crate::ir::{
    ConstId, Constant, Device, Graph, GraphOutput, Layout, Node, Origin, Place, SymbolInfo,
    TensorType, Value, ValueId,
};
use crate::op::{AttrKind, AttrValue, Op, OpInfo, table};
use crate::tensor::{HostTensor, byte_len};
use oxyfuel_base::{Code, DType, Error, Expr, Location, Result, Scalar, Symbol};
use std::collections::HashMap;
use std::sync::Arc;

/// Reads one graph; `file` names the text in errors.
pub fn parse(file: &str, text: &str) -> Result<Graph> {
    let mut parser = Parser {
        cursor: Cursor { file, text, at: 0 },
        graph: Graph::default(),
        values: HashMap::new(),
        constants: HashMap::new(),
    };
    parser.graph()?;
    parser.cursor.expect_end()?;
    Ok(parser.graph)
}

/// Reads a dense tensor: `f32[2] = [1.0, 2.0]`.
pub fn parse_tensor(file: &str, text: &str) -> Result<HostTensor> {
    let mut cursor = Cursor { file, text, at: 0 };
    let tensor = cursor.tensor()?;
    cursor.expect_end()?;
    Ok(tensor)
}

/// A place in the text, and the words of the language.
struct Cursor<'a> {
    file: &'a str,
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        loop {
            let trimmed = self.rest().trim_start();
            self.at = self.text.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn error_at(&self, at: usize, code: Code, message: impl Into<String>) -> Error {
        Error::new(code, message).at(Location::in_text(self.file, self.text, at))
    }

    /// A complaint about what comes next.
    fn expected(&mut self, what: &str) -> Error {
        self.skip_space();
        let rest = self.rest();
        let length = rest
            .find(|c: char| c.is_whitespace() || "()[]{},:=".contains(c))
            .unwrap_or(rest.len());
        let found = match (rest.chars().next(), length) {
            (None, _) => "the end of the text".to_owned(),
            (Some(c), 0) => format!("`{}`", c.escape_debug()),
            (Some(_), _) => format!(
                "`{}`",
                rest[..length]
                    .chars()
                    .take(40)
                    .collect::<String>()
                    .escape_debug()
            ),
        };
        self.error_at(
            self.at,
            Code::Syntax,
            format!("expected {what}, found {found}"),
        )
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(self.expected(&format!("`{token}`")))
        }
    }

    fn expect_end(&mut self) -> Result<()> {
        self.skip_space();
        if self.rest().is_empty() {
            Ok(())
        } else {
            Err(self.expected("the end of the text"))
        }
    }

    /// The characters that belong to a word by `part`, possibly none.
    fn word(&mut self, part: impl Fn(char) -> bool) -> &'a str {
        self.skip_space();
        let rest = self.rest();
        let word = &rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn name(&mut self, what: &str) -> Result<&'a str> {
        match self.word(is_name) {
            "" => Err(self.expected(what)),
            name => Ok(name),
        }
    }

    /// Whether the next word is `keyword`; takes it if so.
    fn keyword(&mut self, keyword: &str) -> bool {
        let start = self.at;
        let found = self.word(is_name) == keyword;
        if !found {
            self.at = start;
        }
        found
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        self.skip_space();
        let start = self.at;
        let word = self.word(|c| is_name(c) || c == '-');
        if word.is_empty() {
            return Err(self.expected(what));
        }
        word.parse().map_err(|_| {
            self.error_at(
                start,
                Code::InvalidLiteral,
                format!("`{word}` is not {what}"),
            )
        })
    }

    fn scalar(&mut self) -> Result<Scalar> {
        self.skip_space();
        let start = self.at;
        let word = self.word(|c| is_name(c) || "+-.:".contains(c));
        if word.is_empty() {
            return Err(self.expected("a number"));
        }
        word.parse().map_err(|e: Error| self.relocate(start, e))
    }

    /// Moves an error of a part to that part's place.
    fn relocate(&self, start: usize, error: Error) -> Error {
        Error {
            at: Some(Location::in_text(self.file, self.text, start)),
            ..error
        }
    }

    fn string(&mut self) -> Result<String> {
        self.skip_space();
        let start = self.at;
        if !self.eat("\"") {
            return Err(self.expected("a string"));
        }
        let mut out = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(out);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, c)) => out.push(c),
                    None => break,
                },
                c => out.push(c),
            }
        }
        Err(self.error_at(start, Code::Syntax, "this string does not end"))
    }

    /// An expression up to a comma or closing bracket outside parentheses.
    fn expr(&mut self) -> Result<Expr> {
        self.skip_space();
        let (start, mut depth) = (self.at, 0usize);
        let rest = self.rest();
        let length = rest
            .find(|c| {
                match c {
                    '(' => depth += 1,
                    ')' if depth > 0 => depth -= 1,
                    ')' | ']' | '\n' => return true,
                    ',' => return depth == 0,
                    _ => {}
                }
                false
            })
            .unwrap_or(rest.len());
        if rest[..length].trim().is_empty() {
            return Err(self.expected("a size"));
        }
        self.at += length;
        rest[..length]
            .trim()
            .parse()
            .map_err(|e: Error| self.relocate(start, e))
    }

    /// An expression in an attribute: one word, or anything in parentheses.
    fn attr_expr(&mut self) -> Result<Expr> {
        if self.eat("(") {
            let e = self.expr()?;
            self.expect(")")?;
            return Ok(e);
        }
        self.skip_space();
        let start = self.at;
        match self.word(|c| is_name(c) || c == '-') {
            "" => Err(self.expected("an expression")),
            word => word.parse().map_err(|e: Error| self.relocate(start, e)),
        }
    }

    /// `[item, item]`
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.expect("[")?;
        let mut items = vec![];
        if self.eat("]") {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat("]") {
                return Ok(items);
            }
            if !self.eat(",") {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    fn dtype(&mut self) -> Result<DType> {
        self.skip_space();
        let start = self.at;
        self.name("a dtype")?
            .parse()
            .map_err(|e: Error| self.relocate(start, e))
    }

    fn device(&mut self) -> Result<Option<Device>> {
        if self.keyword("cpu") {
            return Ok(Some(Device::Cpu));
        }
        if self.keyword("host") {
            return Ok(Some(Device::Host));
        }
        if self.keyword("cuda") {
            self.expect(":")?;
            return Ok(Some(Device::Cuda(self.number("a device number")?)));
        }
        Ok(None)
    }

    /// `f32[2] = [1.0, 2.0]`
    fn tensor(&mut self) -> Result<HostTensor> {
        self.skip_space();
        let start = self.at;
        let dtype = self.dtype()?;
        let shape = self.list(|c| c.number::<i64>("a size"))?;
        self.expect("=")?;
        let mut data = vec![];
        self.list(|c| {
            let bits = c.element(dtype)?;
            data.extend_from_slice(&bits.to_le_bytes()[..dtype.size()]);
            Ok(())
        })?;
        let bytes = byte_len(dtype, &shape).map_err(|e| self.relocate(start, e))?;
        if bytes != data.len() {
            let message = format!(
                "{dtype}{shape:?} has {} elements, {} are given",
                bytes / dtype.size(),
                data.len() / dtype.size()
            );
            return Err(self.error_at(start, Code::InvalidLiteral, message));
        }
        Ok(HostTensor { dtype, shape, data })
    }

    /// One element of a tensor: a number, or its bits in hexadecimal.
    fn element(&mut self, dtype: DType) -> Result<u64> {
        self.skip_space();
        let start = self.at;
        if self.eat("0x") {
            let digits = self.word(|c| c.is_ascii_hexdigit());
            return match u64::from_str_radix(digits, 16) {
                Ok(bits) if bits & !dtype.mask() == 0 => Ok(bits),
                Ok(_) | Err(_) => Err(self.error_at(
                    start,
                    Code::InvalidLiteral,
                    format!("`0x{digits}` is no element of {dtype}"),
                )),
            };
        }
        Ok(self.scalar()?.to_bits(dtype))
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    graph: Graph,
    values: HashMap<&'a str, ValueId>,
    constants: HashMap<&'a str, ConstId>,
}

impl<'a> Parser<'a> {
    fn graph(&mut self) -> Result<()> {
        while self.cursor.keyword("sym") {
            self.symbol()?;
        }
        if !self.cursor.keyword("graph") {
            return Err(self.cursor.expected("`graph`"));
        }
        self.cursor.expect("@")?;
        self.graph.name = self.cursor.name("a name")?.to_owned();
        self.cursor.expect("(")?;
        if !self.cursor.eat(")") {
            loop {
                let (label, value) = self.declaration()?;
                let id = self.define(label, value)?;
                self.graph.inputs.push(id);
                if self.cursor.eat(")") {
                    break;
                }
                if !self.cursor.eat(",") {
                    return Err(self.cursor.expected("`,` or `)`"));
                }
            }
        }
        self.cursor.expect("{")?;
        loop {
            if self.cursor.keyword("const") {
                self.constant()?;
            } else if self.cursor.keyword("return") {
                self.results()?;
                return self.cursor.expect("}");
            } else {
                self.node()?;
            }
        }
    }

    /// `s0: 1..4096 "batch" hint 8`, the word `sym` already read.
    fn symbol(&mut self) -> Result<()> {
        let c = &mut self.cursor;
        c.skip_space();
        let start = c.at;
        let name = c.name("a symbol such as `s0`")?;
        let number = name
            .strip_prefix('s')
            .filter(|n| n.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|n| n.parse().ok());
        let Some(symbol) = number.map(Symbol) else {
            return Err(c.error_at(
                start,
                Code::InvalidLiteral,
                format!("`{name}` is no symbol such as `s0`"),
            ));
        };
        if self.graph.symbols.iter().any(|s| s.symbol == symbol) {
            return Err(c.error_at(
                start,
                Code::DuplicateName,
                format!("symbol {symbol} is declared twice"),
            ));
        }
        c.expect(":")?;
        let min = c.number("the least value")?;
        c.expect("..")?;
        let max = if c
            .rest()
            .starts_with(|d: char| d.is_ascii_digit() || d == '-')
        {
            c.number("the greatest value")?
        } else {
            i64::MAX
        };
        c.skip_space();
        let name = if c.rest().starts_with('"') {
            Some(c.string()?)
        } else {
            None
        };
        let hint = if c.keyword("hint") {
            Some(c.number("a likely value")?)
        } else {
            None
        };
        self.graph.symbols.push(SymbolInfo {
            symbol,
            min,
            max,
            name,
            hint,
        });
        Ok(())
    }

    /// `%x: f32[4, s0] cpu required[4, 1] align 16 given`, or `frozen` in place of `given`
    fn declaration(&mut self) -> Result<(Label<'a>, Value)> {
        let label = self.label()?;
        let default = crate::text::default_device(&self.graph);
        let c = &mut self.cursor;
        c.expect(":")?;
        let dtype = c.dtype()?;
        let shape = c.list(Cursor::expr)?;
        let device = c.device()?.unwrap_or(default);
        let layout = if c.keyword("required") {
            Layout::Required(c.list(Cursor::expr)?)
        } else if c.keyword("chosen") {
            Layout::Chosen(c.list(Cursor::expr)?)
        } else {
            Layout::Any
        };
        let align = if c.keyword("align") {
            c.number("an alignment")?
        } else {
            1
        };
        let given = c.keyword("given");
        let frozen = c.keyword("frozen");
        let name =
            (!label.text.starts_with(|c: char| c.is_ascii_digit())).then(|| label.text.to_owned());
        Ok((
            label,
            Value {
                ty: TensorType {
                    dtype,
                    shape,
                    device,
                },
                layout,
                align,
                given,
                frozen,
                name,
            },
        ))
    }

    fn label(&mut self) -> Result<Label<'a>> {
        self.cursor.skip_space();
        let at = self.cursor.at;
        if !self.cursor.eat("%") {
            return Err(self.cursor.expected("a value such as `%x`"));
        }
        Ok(Label {
            text: self.cursor.name("the name of a value")?,
            at,
        })
    }

    fn define(&mut self, label: Label<'a>, value: Value) -> Result<ValueId> {
        let id = self.graph.values.push(value);
        match self.values.insert(label.text, id) {
            None => Ok(id),
            Some(_) => Err(self.cursor.error_at(
                label.at,
                Code::DuplicateName,
                format!("%{} is defined twice", label.text),
            )),
        }
    }

    fn operand(&mut self) -> Result<ValueId> {
        let label = self.label()?;
        self.values.get(label.text).copied().ok_or_else(|| {
            self.cursor.error_at(
                label.at,
                Code::UnknownName,
                format!("%{} is not defined above", label.text),
            )
        })
    }

    /// `@w: f32[2] = [1.0, 2.0]`, the word `const` already read.
    fn constant(&mut self) -> Result<()> {
        self.cursor.expect("@")?;
        let start = self.cursor.at;
        let name = self.cursor.name("the name of a constant")?;
        self.cursor.expect(":")?;
        let tensor = self.cursor.tensor()?;
        let id = self.graph.constants.push(Constant {
            name: name.to_owned(),
            tensor: Arc::new(tensor),
        });
        match self.constants.insert(name, id) {
            None => Ok(()),
            Some(_) => Err(self.cursor.error_at(
                start,
                Code::DuplicateName,
                format!("@{name} is defined twice"),
            )),
        }
    }

    /// `%3: f32[4] = add %x, %y at "model.rs":3 from "linear"`
    fn node(&mut self) -> Result<()> {
        let mut results = vec![self.declaration()?];
        while self.cursor.eat(",") {
            results.push(self.declaration()?);
        }
        self.cursor.expect("=")?;
        self.cursor.skip_space();
        let start = self.cursor.at;
        let name = self.cursor.name("an op")?;
        let rows: Vec<&'static OpInfo> = table().filter(|row| row.name == name).collect();
        if rows.is_empty() {
            let error =
                self.cursor
                    .error_at(start, Code::UnknownName, format!("there is no op `{name}`"));
            return Err(match nearest(name) {
                Some(other) => error.help(format!("did you mean `{other}`?")),
                None => error,
            });
        }
        let mut list = List { first: true };
        let mut inputs = vec![];
        while list.peek_operand(&mut self.cursor) {
            list.next(&mut self.cursor)?;
            inputs.push(self.operand()?);
        }
        let row = self.variant(&mut list, &rows)?;
        let mut attrs = vec![];
        for (attr, kind) in row.attrs {
            list.next(&mut self.cursor)?;
            if !self.cursor.keyword(attr) {
                return Err(self
                    .cursor
                    .expected(&format!("the attribute `{attr}` of `{name}`")));
            }
            self.cursor.expect("=")?;
            attrs.push(self.attr(*kind)?);
        }
        let Some(mut op) = Op::from_row(row, &attrs, &results[0].1.ty) else {
            return Err(self.cursor.error_at(
                start,
                Code::Internal,
                format!("`{name}` does not take these attributes"),
            ));
        };
        if let Op::Full { value, dtype, .. } = &mut op {
            *value = value.cast(*dtype);
        }
        let origin = self.origin()?;
        let mut outputs = vec![];
        for (label, value) in results {
            outputs.push(self.define(label, value)?);
        }
        self.graph.nodes.push(Node {
            op,
            inputs,
            outputs,
            origin,
        });
        Ok(())
    }

    /// The row among those of one name that the fixed attribute selects: `approximate="tanh"`.
    fn variant(&mut self, list: &mut List, rows: &[&'static OpInfo]) -> Result<&'static OpInfo> {
        let start = self.cursor.at;
        let fixed = rows
            .iter()
            .filter_map(|row| row.fixed.map(|(name, _)| name))
            .next();
        if let Some(attr) = fixed
            && (list.first || self.cursor.eat(","))
            && self.cursor.keyword(attr)
        {
            list.first = false;
            self.cursor.expect("=")?;
            self.cursor.skip_space();
            let at = self.cursor.at;
            let value = self.cursor.string()?;
            let row = rows
                .iter()
                .find(|row| row.fixed == Some((attr, value.as_str())));
            return row.copied().ok_or_else(|| {
                let message = format!(
                    "`{}` has no {attr}=\"{}\"",
                    rows[0].name,
                    value.escape_debug()
                );
                self.cursor.error_at(at, Code::UnknownName, message)
            });
        }
        self.cursor.at = start;
        match rows.iter().find(|row| row.fixed.is_none()) {
            Some(row) => Ok(row),
            None => Err(self
                .cursor
                .expected(&format!("the attribute `{}`", fixed.unwrap_or_default()))),
        }
    }

    fn attr(&mut self, kind: AttrKind) -> Result<AttrValue> {
        let c = &mut self.cursor;
        Ok(match kind {
            AttrKind::Index => AttrValue::Index(c.number("a non-negative integer")?),
            AttrKind::Int => AttrValue::Int(c.number("an integer")?),
            AttrKind::Flag => AttrValue::Flag(c.number("`true` or `false`")?),
            AttrKind::Dims => AttrValue::Dims(c.list(|c| c.number("a dimension"))?),
            AttrKind::Expr => AttrValue::Expr(c.attr_expr()?),
            AttrKind::Scalar => AttrValue::Scalar(c.scalar()?),
            AttrKind::Call => {
                c.skip_space();
                let start = c.at;
                let text = c.string()?;
                let call = serde_json::from_str(&text).map_err(|e| {
                    c.error_at(start, Code::InvalidLiteral, format!("no call: {e}"))
                })?;
                AttrValue::Call(Arc::new(call))
            }
            AttrKind::Const => {
                c.expect("@")?;
                let start = c.at;
                let name = c.name("the name of a constant")?;
                match self.constants.get(name) {
                    Some(&id) => AttrValue::Const(id),
                    None => {
                        return Err(c.error_at(
                            start,
                            Code::UnknownName,
                            format!("@{name} is not defined above"),
                        ));
                    }
                }
            }
        })
    }

    fn origin(&mut self) -> Result<Origin> {
        let mut origin = Origin::default();
        let c = &mut self.cursor;
        if c.keyword("at") {
            let file = c.string()?;
            c.expect(":")?;
            origin.at = Some(Place {
                file,
                line: c.number("a line number")?,
            });
        }
        if c.keyword("from") {
            origin.ops.push(c.string()?);
            while c.eat(",") {
                origin.ops.push(c.string()?);
            }
        }
        Ok(origin)
    }

    /// `%3, %4 into %x`, the word `return` already read.
    fn results(&mut self) -> Result<()> {
        if !self.cursor.eat("%") {
            return Ok(());
        }
        self.cursor.at -= 1;
        loop {
            let value = self.operand()?;
            let alias = if self.cursor.keyword("into") {
                self.cursor.skip_space();
                let start = self.cursor.at;
                let target = self.operand()?;
                let position = self.graph.inputs.iter().position(|&v| v == target);
                Some(position.ok_or_else(|| {
                    self.cursor.error_at(
                        start,
                        Code::UnknownName,
                        "only an input can be stored into",
                    )
                })?)
            } else {
                None
            };
            self.graph.outputs.push(GraphOutput { value, alias });
            if !self.cursor.eat(",") {
                return Ok(());
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Label<'a> {
    text: &'a str,
    at: usize,
}

/// Items after the op: a comma before each but the first.
struct List {
    first: bool,
}

impl List {
    fn peek_operand(&self, cursor: &mut Cursor<'_>) -> bool {
        let start = cursor.at;
        let found = (self.first || cursor.eat(",")) && cursor.eat("%");
        cursor.at = start;
        found
    }

    fn next(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        if std::mem::take(&mut self.first) {
            Ok(())
        } else {
            cursor.expect(",")
        }
    }
}

/// The op whose name shares the longest beginning, if it is a likely slip.
fn nearest(name: &str) -> Option<&'static str> {
    let shared = |other: &str| {
        name.bytes()
            .zip(other.bytes())
            .take_while(|(a, b)| a == b)
            .count()
    };
    table()
        .map(|row| row.name)
        .filter(|other| shared(other) >= 3)
        .max_by_key(|other| shared(other))
}
