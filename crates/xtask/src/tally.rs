//! Counting tests from what the runners print: `cargo nextest` (one summary), `cargo test` (one line a binary) and `pytest -q` (the last line).

/// Whose lines to read. They are not mixed: nextest repeats what a failed test's own harness printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runner {
    Nextest,
    CargoTest,
    Pytest,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
    /// Tests of the Python package that this machine cannot run, such as those of a GPU: the test itself says so.
    pub skipped: usize,
}

impl Tally {
    /// Looks at one printed line, and adds what it counts.
    pub fn see(&mut self, runner: Runner, line: &str) {
        let line = line.trim();
        let counts = match runner {
            Runner::Nextest => line.strip_prefix("Summary ["),
            Runner::CargoTest => line.strip_prefix("test result:"),
            Runner::Pytest => {
                let counts = line.starts_with(|c: char| c.is_ascii_digit());
                line.split_once(" in ")
                    .map(|(counts, _)| counts)
                    .filter(|_| counts)
            }
        };
        let Some(counts) = counts else {
            return;
        };
        let words: Vec<&str> = counts
            .split([' ', ',', ';', '.', ':'])
            .filter(|w| !w.is_empty())
            .collect();
        for pair in words.windows(2) {
            let Ok(n) = pair[0].parse::<usize>() else {
                continue;
            };
            match pair[1] {
                "passed" => self.passed += n,
                // nextest counts a test that could not start, or ran past its time, apart from a failed one.
                "failed" | "exec" | "timed" | "error" | "errors" => self.failed += n,
                "skipped" if runner == Runner::Pytest => self.skipped += n,
                "ignored" | "skipped" => self.ignored += n,
                _ => {}
            }
        }
    }

    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.skipped += other.skipped;
    }

    /// The plain line that closes a run.
    pub fn line(&self) -> String {
        let skipped = match self.skipped {
            0 => String::new(),
            n => format!(", {n} skipped"),
        };
        format!("{} passed, {} failed{skipped}", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(runner: Runner, lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        lines.iter().for_each(|l| tally.see(runner, l));
        tally
    }

    const OK: &str = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
    const BAD: &str = "test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1s";

    #[test]
    fn pytest_says_it_in_its_last_line() {
        let mut tally = Tally::default();
        for line in [
            "....F...                                  [100%]",
            "FAILED python/tests/test_a.py::test_b - assert 3 in 4",
            "1 failed, 70 passed, 2 skipped, 1 error, 3 warnings in 112.09s (0:01:52)",
        ] {
            tally.see(Runner::Pytest, line);
        }
        let wanted = Tally {
            passed: 70,
            failed: 2,
            skipped: 2,
            ..Tally::default()
        };
        assert_eq!(tally, wanted);
        assert_eq!(tally.line(), "70 passed, 2 failed, 2 skipped");
    }

    #[test]
    fn cargo_test_lines_add_up() {
        let tally = seen(Runner::CargoTest, &["running 3 tests", OK, BAD]);
        let wanted = Tally {
            passed: 4,
            failed: 2,
            ignored: 1,
            ..Tally::default()
        };
        assert_eq!(tally, wanted);
        assert_eq!(tally.line(), "4 passed, 2 failed");
    }

    #[test]
    fn the_nextest_summary_alone_counts_under_nextest() {
        let summary = "     Summary [   1.005s] 9 tests run: 5 passed (1 slow), 2 failed, 1 timed out, 1 exec failed, 4 skipped";
        let wanted = Tally {
            passed: 5,
            failed: 4,
            ignored: 4,
            ..Tally::default()
        };
        assert_eq!(seen(Runner::Nextest, &[BAD, summary]), wanted);
        assert_eq!(seen(Runner::CargoTest, &[summary]), Tally::default());
    }

    #[test]
    fn other_lines_count_nothing() {
        let lines = ["12 passed, 3 failed", "a test printed: 7 failed"];
        assert_eq!(seen(Runner::Nextest, &lines), Tally::default());
        assert_eq!(seen(Runner::CargoTest, &lines), Tally::default());
    }
}
