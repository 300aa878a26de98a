//! Who takes part in a row, in which order they are asked, and how long each of them took.

use super::engine::Engine;
use super::stats;
use super::workload::Workload;
use serde_json::Value;
use std::time::Duration;

/// Longer than the threads of the engines spin after their last work.
const PAUSE: Duration = Duration::from_millis(40);

/// The process that is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    Ours,
    /// Ours, on one thread.
    Alone,
    Torch,
}

/// One contestant of a workload: who to ask, and with which words.
#[derive(Debug)]
pub struct Contestant {
    pub name: &'static str,
    pub who: Who,
    /// The command, but for the numbers of calls.
    pub words: String,
}

/// The processes of a comparison.
#[derive(Debug)]
pub struct Engines {
    pub ours: Engine,
    pub alone: Option<Engine>,
    pub torch: Engine,
}

impl Engines {
    fn of(&mut self, who: Who) -> Result<&mut Engine, String> {
        match who {
            Who::Ours => Ok(&mut self.ours),
            Who::Torch => Ok(&mut self.torch),
            Who::Alone => self
                .alone
                .as_mut()
                .ok_or_else(|| "no engine with one thread was started".to_owned()),
        }
    }

    /// Both computed the same thing: every output of ours against eager's.
    pub fn agree(&mut self, outputs: u64) -> Result<(), String> {
        let file = std::env::temp_dir().join(format!("oxyfuel-bench-{}.npy", std::process::id()));
        let path = file.display().to_string();
        for number in 0..outputs {
            let answer = self
                .ours
                .ask(&format!("output {number} {path}"))
                .and_then(|_| self.torch.ask(&format!("compare {number} {path}")));
            // The file is only a letter between two processes; leaving it costs disk space and nothing else.
            let _ = std::fs::remove_file(&file);
            let answer = answer?;
            if answer["ok"] != true {
                return Err(format!(
                    "the engines disagree on output {number}: {}",
                    answer["error"]
                ));
            }
        }
        Ok(())
    }

    /// The rounds of a row: one turn each, a pause before every turn. `loops` is how many loops of multiply-adds the row's operations are.
    pub fn play(
        &mut self,
        contestants: &[Contestant],
        rounds: usize,
        loops: Option<f64>,
    ) -> Result<Times, String> {
        let mut turns = Vec::new();
        for c in contestants {
            let first = stats::median(&self.of(c.who)?.turn(&c.words, 2, 3)?);
            turns.push(turn_size(first));
        }
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); contestants.len()];
        for round in 0..rounds {
            for k in 0..contestants.len() {
                // Who goes first moves on, so that nobody always follows the same neighbour's cache and heat.
                let at = (k + round) % contestants.len();
                let c = &contestants[at];
                std::thread::sleep(PAUSE);
                let (warm, timed) = turns[at];
                let ns = stats::median(&self.of(c.who)?.turn(&c.words, warm, timed)?);
                times[at].push(match (c.name, loops) {
                    ("arithmetic", Some(loops)) => ns * loops,
                    _ => ns,
                });
            }
        }
        let names = contestants.iter().map(|c| c.name);
        Ok(Times {
            all: names.zip(times).collect(),
        })
    }

    pub fn quit(self) {
        let all = [Some(self.ours), self.alone, Some(self.torch)];
        all.into_iter().flatten().for_each(Engine::quit);
    }
}

/// The words that an engine says it has an answer to.
pub fn words(answer: &Value) -> Vec<&str> {
    let has = answer["has"].as_array().into_iter().flatten();
    has.filter_map(Value::as_str).collect()
}

/// Warm-ups and timed calls of one turn, for a call of so many nanoseconds: as many as bring the processor out of its sleep and the data back into the caches, which the
/// engine before emptied, then a few milliseconds of calls.
fn turn_size(ns: f64) -> (usize, usize) {
    let fitting = |budget: f64| (budget / ns.max(1.0)) as usize;
    (fitting(30e6).clamp(1, 1000), fitting(10e6).clamp(1, 25))
}

/// Name, whether it is ours, words. `door` is the torch door, `library` torch's own kernel of the whole workload.
const CONTESTANTS: &[(&str, bool, &str)] = &[
    ("oxyfuel", true, "run"),
    ("eager", false, "run eager"),
    ("inductor", false, "run inductor"),
    ("library", false, "run library"),
    ("door", false, "run door"),
    ("copy", true, "copy"),
    ("oxyfuel_into", true, "into"),
    ("eager_into", false, "into eager"),
    ("inductor_into", false, "into inductor"),
    ("library_into", false, "into library"),
    ("door_into", false, "into door"),
    ("torch_copy", false, "copy"),
    ("arithmetic", true, "arithmetic"),
];

/// Those that a row is compared with.
pub const PEERS: [&str; 3] = ["eager", "inductor", "library"];

/// Below it launches and caches are measured, not memory: such a row is not compared with a copy.
const LEAST_BYTES: u64 = 1 << 20;

/// Those of a workload: `bytes` is what it moves, `has` the words that torch has an answer to.
pub fn contestants(w: &Workload, bytes: u64, has: &[&str]) -> Vec<Contestant> {
    let fits = |ours: bool, words: &str| match words {
        "copy" | "arithmetic" => w.is_bytes && bytes >= LEAST_BYTES,
        words if words.ends_with("door") => has.contains(&words) && !w.rust_door_only,
        words => ours || has.contains(&words),
    };
    let all = CONTESTANTS.iter();
    all.filter(|(_, ours, words)| fits(*ours, words))
        .map(|&(name, ours, words)| Contestant {
            name,
            who: match ours {
                true => Who::Ours,
                false => Who::Torch,
            },
            words: match name {
                "torch_copy" => format!("{words} {bytes}"),
                _ => words.to_owned(),
            },
        })
        .collect()
}

/// Times of a row by contestant, one a round.
#[derive(Debug)]
pub struct Times {
    pub all: Vec<(&'static str, Vec<f64>)>,
}

impl Times {
    pub fn of(&self, name: &str) -> Option<&[f64]> {
        let found = self.all.iter().find(|(known, _)| *known == name);
        found.map(|(_, times)| times.as_slice())
    }

    /// The copy that a contestant is compared with. Torch's tensors lie in torch's memory, with the pages that it has: what is done with them, by any engine, is compared
    /// with torch's copy of such tensors; what the Rust door does, with the faster one of torch's and ours.
    pub fn copy(&self, contestant: &str) -> Option<&[f64]> {
        let copies: &[&str] = match contestant.starts_with("oxyfuel") {
            true => &["copy", "torch_copy"],
            false => &["torch_copy"],
        };
        let times = copies.iter().filter_map(|name| self.of(name));
        times.min_by(|a, b| stats::median(a).total_cmp(&stats::median(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::workload;
    use super::*;

    const ALL: &[&str] = &[
        "run eager",
        "run inductor",
        "run library",
        "run door",
        "into eager",
        "into inductor",
        "into library",
        "into door",
    ];

    fn names(w: &Workload, bytes: u64, has: &[&str]) -> Vec<String> {
        let all = contestants(w, bytes, has).into_iter();
        all.map(|c| format!("{}: {}", c.name, c.words)).collect()
    }

    #[test]
    fn who_takes_part_follows_from_the_workload() {
        let large = 8 << 20;
        let all = names(&workload("adamw"), large, ALL);
        assert_eq!(all.len(), CONTESTANTS.len());
        assert_eq!(all[4..6], ["door: run door", "copy: copy"]);
        assert_eq!(
            all[11..],
            ["torch_copy: copy 8388608", "arithmetic: arithmetic"]
        );
        let all = names(&workload("add-relu-mul-1k"), large, ALL);
        assert!(!all.iter().any(|c| c.starts_with("door")), "{all:?}");
        // Arithmetic bounds it, or launches do: no copy.
        for all in [
            names(&workload("matmul-1024"), large, ALL),
            names(&workload("adamw-small"), 1 << 18, ALL),
        ] {
            assert!(!all.iter().any(|c| c.contains("copy")), "{all:?}");
        }
    }

    #[test]
    fn torchs_memory_is_compared_with_torchs_copy() {
        let times = Times {
            all: vec![
                ("copy", vec![1.0, 2.0, 3.0]),
                ("torch_copy", vec![4.0, 4.0, 4.0]),
            ],
        };
        assert_eq!(times.copy("oxyfuel_into"), Some(&[1.0, 2.0, 3.0][..]));
        for name in ["door_into", "eager"] {
            assert_eq!(times.copy(name), Some(&[4.0, 4.0, 4.0][..]));
        }
    }

    #[test]
    fn short_calls_are_repeated_in_a_turn() {
        assert_eq!(turn_size(1e3), (1000, 25));
        assert_eq!(turn_size(1e6), (30, 10));
        assert_eq!(turn_size(1e9), (1, 1));
    }

    #[test]
    fn rounds_ask_everyone_and_a_loop_counts_as_often_as_the_row_has_it() {
        let engine = |ns: u64| {
            let script = format!(
                r#"while read verb mode warm timed; do n=${{timed:-$warm}}; echo "{{\"ns\": [{ns}$(for i in $(seq 2 $n); do echo -n ", {ns}"; done)]}}"; done"#
            );
            let mut command = std::process::Command::new("bash");
            command.args(["-c", &script]);
            Engine::start("test", command).unwrap()
        };
        let mut engines = Engines {
            ours: engine(40_000_000),
            alone: None,
            torch: engine(80_000_000),
        };
        let contestant = |name, who, words: &str| Contestant {
            name,
            who,
            words: words.to_owned(),
        };
        let all = [
            contestant("oxyfuel", Who::Ours, "run"),
            contestant("eager", Who::Torch, "run eager"),
            contestant("arithmetic", Who::Ours, "arithmetic"),
        ];
        let times = engines.play(&all, 3, Some(0.5)).unwrap();
        assert_eq!(times.of("oxyfuel"), Some(&[4e7; 3][..]));
        assert_eq!(times.of("eager"), Some(&[8e7; 3][..]));
        assert_eq!(times.of("arithmetic"), Some(&[2e7; 3][..]));
        let alone = [contestant("alone", Who::Alone, "run")];
        assert!(
            engines
                .play(&alone, 1, None)
                .unwrap_err()
                .contains("one thread")
        );
        engines.quit();
    }

    #[test]
    fn what_torch_has_no_call_for_does_not_take_part() {
        let w = workload("add-relu-mul-10m");
        let some = names(&w, 8 << 20, &["run eager", "run inductor", "into inductor"]);
        assert_eq!(
            some.iter().map(|c| c.as_str()).collect::<Vec<_>>(),
            [
                "oxyfuel: run",
                "eager: run eager",
                "inductor: run inductor",
                "copy: copy",
                "oxyfuel_into: into",
                "inductor_into: into inductor",
                "torch_copy: copy 8388608",
                "arithmetic: arithmetic",
            ]
        );
    }
}
