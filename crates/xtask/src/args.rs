//! Flags by hand: a command names the flags it knows, anything else is an error.

/// Arguments split into known flags and what follows `--`.
#[derive(Debug, PartialEq, Eq)]
pub struct Args {
    flags: Vec<String>,
    pub after_dashes: Vec<String>,
}

impl Args {
    pub fn parse(args: &[String], known: &[&str]) -> Result<Args, String> {
        let split = args.iter().position(|a| a == "--");
        let (before, after) = match split {
            Some(at) => (&args[..at], &args[at + 1..]),
            None => (args, &[][..]),
        };
        for arg in before {
            if !known.contains(&arg.as_str()) {
                let known = if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                };
                return Err(format!("unknown option `{arg}` (known here: {known})"));
            }
        }
        Ok(Args {
            flags: before.to_vec(),
            after_dashes: after.to_vec(),
        })
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    /// For commands that hand nothing on: what follows `--` is a mistake too.
    pub fn nothing_after_dashes(self) -> Result<Args, String> {
        match self.after_dashes.first() {
            None => Ok(self),
            Some(arg) => Err(format!(
                "this command takes nothing after `--`, but got `{arg}`"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn splits_flags_from_what_is_passed_on() {
        let args =
            Args::parse(&strings(&["--check", "--", "-p", "--check2"]), &["--check"]).unwrap();
        assert!(args.has("--check"));
        assert!(!args.has("-p"));
        assert_eq!(args.after_dashes, strings(&["-p", "--check2"]));
    }

    #[test]
    fn unknown_flags_are_errors_that_list_the_known_ones() {
        let error = Args::parse(&strings(&["--chek"]), &["--check"]).unwrap_err();
        assert!(error.contains("--chek") && error.contains("--check"));
        let args = Args::parse(&strings(&["--", "x"]), &[]).unwrap();
        assert!(args.nothing_after_dashes().is_err());
    }
}
