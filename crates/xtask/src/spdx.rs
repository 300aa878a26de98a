//! SPDX licence expressions: is one of the allowed licences enough?

/// Whether the expression can be satisfied by the allowed licences alone. `Err` says what cannot be read.
pub fn is_satisfied(expression: &str, allowed: &[String]) -> Result<bool, String> {
    // Old manifests write `MIT/Apache-2.0` where SPDX says `MIT OR Apache-2.0`.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut parser = Parser {
        tokens: spaced.split_whitespace().collect(),
        at: 0,
        allowed,
    };
    let satisfied = parser.or()?;
    match parser.peek() {
        None => Ok(satisfied),
        Some(extra) => Err(format!("unexpected `{extra}` in licence `{expression}`")),
    }
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    allowed: &'a [String],
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).copied()
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn or(&mut self) -> Result<bool, String> {
        let mut result = self.and()?;
        while self.take("OR") {
            result |= self.and()?;
        }
        Ok(result)
    }

    fn and(&mut self) -> Result<bool, String> {
        let mut result = self.licence()?;
        while self.take("AND") {
            result &= self.licence()?;
        }
        Ok(result)
    }

    fn licence(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let result = self.or()?;
            return if self.take(")") {
                Ok(result)
            } else {
                Err("a licence expression lacks `)`".to_owned())
            };
        }
        let Some(name) = self
            .peek()
            .filter(|t| !matches!(*t, "OR" | "AND" | "WITH" | ")"))
        else {
            return Err("a licence expression ends early".to_owned());
        };
        self.at += 1;
        let full = if self.take("WITH") {
            let exception = self.peek().ok_or("a licence expression ends after WITH")?;
            self.at += 1;
            format!("{name} WITH {exception}")
        } else {
            name.to_owned()
        };
        Ok(self.allowed.contains(&full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(expression: &str) -> bool {
        let allowed = [
            "MIT",
            "Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
            "Unicode-3.0",
        ]
        .map(str::to_owned);
        is_satisfied(expression, &allowed).unwrap()
    }

    #[test]
    fn choices_and_conjunctions() {
        assert!(ok("MIT"));
        assert!(ok("MIT OR GPL-3.0"));
        assert!(ok("GPL-3.0/MIT"));
        assert!(!ok("MIT AND GPL-3.0"));
        assert!(ok("(MIT OR GPL-3.0) AND Unicode-3.0"));
        assert!(!ok("GPL-3.0 OR MIT AND BSL-1.0"));
        assert!(ok("Apache-2.0 WITH LLVM-exception"));
        assert!(!ok("MIT WITH LLVM-exception"));
    }

    #[test]
    fn nonsense_is_an_error() {
        for bad in ["", "MIT OR", "(MIT", "MIT MIT", "AND", "MIT WITH", ")"] {
            assert!(is_satisfied(bad, &[]).is_err(), "{bad}");
        }
    }
}
