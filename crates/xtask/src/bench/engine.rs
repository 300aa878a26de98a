//! An engine: a process that answers one line of JSON to one line of words, and sleeps in between.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

#[derive(Debug)]
pub struct Engine {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Engine {
    pub fn start(name: &'static str, mut command: Command) -> Result<Self, String> {
        let cannot = |e: std::io::Error| format!("cannot start the engine {name}: {e}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("the engine {name} has no pipes"));
        };
        Ok(Self {
            name,
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Asks and waits for the answer; an answer with an `error` and no `ok` is one.
    pub fn ask(&mut self, line: &str) -> Result<Value, String> {
        let name = self.name;
        let gone = |e: std::io::Error| format!("the engine {name} is gone: {e}");
        writeln!(self.input, "{line}").map_err(gone)?;
        self.input.flush().map_err(gone)?;
        let mut answer = String::new();
        if self.output.read_line(&mut answer).map_err(gone)? == 0 {
            return Err(format!("the engine {name} ended at `{line}`"));
        }
        let value: Value = serde_json::from_str(&answer)
            .map_err(|e| format!("the engine {name} answered no JSON to `{line}`: {e}"))?;
        match value["error"].as_str() {
            Some(error) if value.get("ok").is_none() => Err(format!("{name}: {error}")),
            Some(_) | None => Ok(value),
        }
    }

    /// A turn: warm-ups, then timed calls, in nanoseconds.
    pub fn turn(&mut self, words: &str, warm: usize, timed: usize) -> Result<Vec<f64>, String> {
        let answer = self.ask(&format!("{words} {warm} {timed}"))?;
        let ns: Vec<f64> = answer["ns"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_f64)
            .collect();
        if ns.len() == timed {
            Ok(ns)
        } else {
            Err(format!(
                "the engine {} timed {} of {timed} calls",
                self.name,
                ns.len()
            ))
        }
    }

    pub fn quit(mut self) {
        // It may be gone already; either way it is over.
        let _ = writeln!(self.input, "quit");
        drop(self.input);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Engine {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Engine::start("test", command).unwrap()
    }

    #[test]
    fn answers_errors_and_endings_are_told_apart() {
        let mut engine = shell(
            r#"read a; echo '{"ns": [1, 2]}'; read a; echo '{"error": "no"}'; read a; echo hm"#,
        );
        assert_eq!(engine.turn("run", 0, 2).unwrap(), [1.0, 2.0]);
        assert_eq!(engine.ask("x").unwrap_err(), "test: no");
        assert!(engine.ask("x").unwrap_err().contains("no JSON"));
        engine.quit();
    }

    #[test]
    fn a_dead_engine_is_a_sentence() {
        let mut engine = shell("read a; exit 3");
        assert!(engine.ask("x").unwrap_err().contains("test"));
        engine.quit();
    }
}
