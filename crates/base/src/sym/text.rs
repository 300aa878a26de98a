//! Text of expressions: `8*(s0//8) + min(s1, 4)*s0 - 3`, with Python's operators and precedence.
//!
//! ```text
//! sum     = product { ("+" | "-") product }
//! product = unary { ("*" | "//" | "%") unary }
//! unary   = "-" unary | primary
//! primary = integer | "s" digits | ("min" | "max" | "ceildiv") "(" sum { "," sum } ")" | "(" sum ")"
//! ```
//! Spaces are free. Reading builds through the canonical constructors, so that text gives the
//! expression it was printed from.

use super::canon::{self, Extremum};
use super::{Atom, Expr, Repr, Symbol, Term};
use crate::error::{Code, Error, Location, Result};
use std::fmt;
use std::str::FromStr;

/// How deep parentheses, calls and minus signs may nest: the parser recurses.
const MAX_DEPTH: usize = 64;

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = match &self.0 {
            Repr::Const(value) => return write!(f, "{value}"),
            Repr::Sum(sum) => sum,
            Repr::Invalid(_) => return f.write_str("<invalid>"),
        };
        for (i, term) in sum.terms.iter().enumerate() {
            match (i, term.coefficient < 0) {
                (0, false) => {}
                (0, true) => f.write_str("-")?,
                (_, false) => f.write_str(" + ")?,
                // Its magnitude is no number of ours, so the sign has to stay with it.
                (_, true) if term.coefficient == i64::MIN => f.write_str(" + -")?,
                (_, true) => f.write_str(" - ")?,
            }
            write_term(f, term)?;
        }
        match sum.constant {
            0 => Ok(()),
            i64::MIN => write!(f, " + {}", i64::MIN),
            c if c < 0 => write!(f, " - {}", c.unsigned_abs()),
            c => write!(f, " + {c}"),
        }
    }
}

/// The term without its sign.
fn write_term(f: &mut fmt::Formatter<'_>, term: &Term) -> fmt::Result {
    let factor = term.coefficient.unsigned_abs();
    if factor != 1 {
        write!(f, "{factor}*")?;
    }
    let alone = term.coefficient == 1 && term.monomial.len() == 1;
    for (i, atom) in term.monomial.iter().enumerate() {
        if i > 0 {
            f.write_str("*")?;
        }
        match atom {
            Atom::Symbol(symbol) => write!(f, "{symbol}")?,
            Atom::FloorDiv(a, b) => write_division(f, a, "//", b, alone)?,
            Atom::Mod(a, b) => write_division(f, a, "%", b, alone)?,
            Atom::Min(args) => write_call(f, "min", args)?,
            Atom::Max(args) => write_call(f, "max", args)?,
        }
    }
    Ok(())
}

fn write_division(
    f: &mut fmt::Formatter<'_>,
    a: &Expr,
    op: &str,
    b: &Expr,
    alone: bool,
) -> fmt::Result {
    let (open, close) = if alone { ("", "") } else { ("(", ")") };
    write!(f, "{open}{}{op}{}{close}", Operand(a), Operand(b))
}

fn write_call(f: &mut fmt::Formatter<'_>, name: &str, args: &[Expr]) -> fmt::Result {
    write!(f, "{name}(")?;
    for (i, arg) in args.iter().enumerate() {
        write!(f, "{}{arg}", if i > 0 { ", " } else { "" })?;
    }
    f.write_str(")")
}

/// An expression as an operand of a division: in parentheses unless it is one word.
struct Operand<'a>(&'a Expr);

impl fmt::Display for Operand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = match self.0.as_atom() {
            Some(Atom::Symbol(_) | Atom::Min(_) | Atom::Max(_)) => true,
            Some(Atom::FloorDiv(..) | Atom::Mod(..)) => false,
            None => self.0.as_const().is_some_and(|c| c >= 0),
        };
        if bare {
            write!(f, "{}", self.0)
        } else {
            write!(f, "({})", self.0)
        }
    }
}

impl FromStr for Expr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Expr> {
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
        };
        let expr = parser.sum()?;
        parser.skip_spaces();
        if parser.at < text.len() {
            return Err(parser.error(Code::Syntax, "expected an operator or the end"));
        }
        expr.check().map_err(|e| e.at(parser.place()))?;
        Ok(expr)
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn sum(&mut self) -> Result<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(Code::NestedTooDeep, "the expression nests too deep"));
        }
        let mut parts = vec![self.product()?];
        loop {
            if self.eat("+") {
                parts.push(self.product()?);
            } else if self.eat("-") {
                parts.push(-self.product()?);
            } else {
                self.depth -= 1;
                return Ok(canon::sum_of(parts));
            }
        }
    }

    fn product(&mut self) -> Result<Expr> {
        let mut total = self.unary()?;
        loop {
            if self.eat("*") {
                total *= self.unary()?;
            } else if self.eat("//") {
                total = total.floordiv(self.unary()?);
            } else if self.eat("%") {
                total = total.modulo(self.unary()?);
            } else {
                return Ok(total);
            }
        }
    }

    fn unary(&mut self) -> Result<Expr> {
        if !self.eat("-") {
            return self.primary();
        }
        // The least integer has no positive counterpart to negate.
        if let Some(digits) = self.peek_digits() {
            let number = format!("-{digits}");
            self.at += digits.len();
            return self.integer(&number);
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(Code::NestedTooDeep, "the expression nests too deep"));
        }
        let negated = -self.unary()?;
        self.depth -= 1;
        Ok(negated)
    }

    fn primary(&mut self) -> Result<Expr> {
        if let Some(digits) = self.peek_digits() {
            self.at += digits.len();
            return self.integer(digits);
        }
        if self.eat("(") {
            let inner = self.sum()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let rest = &self.text[self.at..];
        let word = &rest[..rest.bytes().take_while(u8::is_ascii_alphanumeric).count()];
        let start = self.at;
        self.at += word.len();
        match word {
            "min" => Ok(canon::extremum(Extremum::Min, self.arguments()?)),
            "max" => Ok(canon::extremum(Extremum::Max, self.arguments()?)),
            "ceildiv" => match self.arguments()?.as_slice() {
                [a, b] => Ok(a.ceildiv(b)),
                _ => Err(self.error(Code::ArityMismatch, "ceildiv takes two arguments")),
            },
            _ => {
                let number = word
                    .strip_prefix('s')
                    .filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
                match number.and_then(|n| n.parse().ok()) {
                    Some(number) => Ok(Expr::symbol(Symbol(number))),
                    None => {
                        self.at = start;
                        Err(self.error(
                            Code::Syntax,
                            "expected a number, a symbol like `s0`, `min`, `max` or `(`",
                        ))
                    }
                }
            }
        }
    }

    fn arguments(&mut self) -> Result<Vec<Expr>> {
        self.expect("(")?;
        let mut args = vec![self.sum()?];
        while self.eat(",") {
            args.push(self.sum()?);
        }
        self.expect(")")?;
        Ok(args)
    }

    fn integer(&self, digits: &str) -> Result<Expr> {
        let value: i64 = digits.parse().map_err(|_| {
            self.error(Code::InvalidLiteral, "the number does not fit into 64 bits")
        })?;
        Ok(Expr::constant(value))
    }

    fn peek_digits(&mut self) -> Option<&'a str> {
        self.skip_spaces();
        let rest = &self.text[self.at..];
        let count = rest.bytes().take_while(u8::is_ascii_digit).count();
        (count > 0).then(|| &rest[..count])
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(self.error(Code::Syntax, &format!("expected `{token}`")))
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_spaces();
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn skip_spaces(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    fn place(&self) -> Location {
        Location::in_text("<expression>", self.text, self.at)
    }

    fn error(&self, code: Code, message: &str) -> Error {
        Error::new(code, message).at(self.place())
    }
}
