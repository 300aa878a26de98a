//! Who takes part in a row, and how long each of them took.

use super::stats;
use super::workload::Workload;

/// One contestant of a workload: who to ask, and with which words.
#[derive(Debug)]
pub struct Contestant {
    pub name: &'static str,
    pub ours: bool,
    /// The command, but for the numbers of calls.
    pub words: String,
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
            ours,
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
