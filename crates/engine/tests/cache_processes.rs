//! The disk cache between processes: many at once, and some that are killed.

use oxyfuel_base::Digest;
use oxyfuel_engine::cache::{Cache, DEFAULT_LIMIT, Found, Label, Tidy, plan_key};
use oxyfuel_engine::{Compiler, Options, Target, compile};
use oxyfuel_graph::Graph;
use oxyfuel_plan::Plan;
use oxyfuel_testkit::Rng;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn graph(n: usize) -> Graph {
    let text = format!("graph @f(%x: f32[{n}] cpu) {{\n  %y: f32[{n}] = relu %x\n  return %y\n}}");
    oxyfuel_graph::parse("test", &text).unwrap()
}

struct Entry {
    key: Digest,
    label: Label,
    plan: Plan,
}

/// Plans of a few hundred bytes, and every other one of a megabyte, whose write takes long enough to be interrupted.
fn entries() -> Vec<Entry> {
    let (target, options) = (Target::interpreter(), Options::default());
    let entry = |n: usize| {
        let graph = graph(n);
        let mut plan = compile(&graph, &target, &options, false).unwrap().plan;
        if n.is_multiple_of(2) {
            plan.name = "large".repeat(1 << 18);
        }
        Entry {
            key: plan_key(&graph, &target.desc, &options).unwrap(),
            label: Label::new(&graph, &target.desc, &options).unwrap(),
            plan,
        }
    };
    (1..=8).map(entry).collect()
}

/// This very program, doing what the test of that name does under these variables.
fn child(test: &str, variables: &[(&str, String)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

const DIR: &str = "OXYFUEL_TEST_CACHE_DIR";
const SEED: &str = "OXYFUEL_TEST_CACHE_SEED";

fn asked() -> Option<(PathBuf, u64)> {
    let (dir, seed) = (std::env::var(DIR).ok()?, std::env::var(SEED).ok()?);
    Some((dir.into(), seed.parse().unwrap()))
}

/// Not a test of its own: what the process does that is killed.
#[test]
fn a_process_that_is_killed() {
    let Some((dir, seed)) = asked() else {
        return;
    };
    let mut rng = Rng::new(seed);
    // A limit that entries keep reaching, so that deleting is interrupted too.
    let cache = Cache::open(&dir, 3 << 20).unwrap();
    let travelled = dir.with_file_name("travelled");
    let entries = entries();
    loop {
        let entry = &entries[rng.below(entries.len() as u64) as usize];
        match rng.below(10) {
            0 => drop(cache.clear().unwrap()),
            1 => drop(
                cache
                    .tidy(&Tidy {
                        unused_for: None,
                        limit: Some(1 << 20),
                    })
                    .unwrap(),
            ),
            2 => drop(cache.import(&travelled).unwrap()),
            3 => drop(
                cache
                    .export(&dir.with_file_name(format!("out-{seed}")))
                    .unwrap(),
            ),
            4 => assert!(!matches!(cache.get(&entry.key), Found::Unusable(_))),
            _ => cache.put(&entry.key, &entry.label, &entry.plan).unwrap(),
        }
    }
}

#[test]
fn processes_die_at_any_point() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("cache");
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    let entries = entries();
    for entry in &entries[..4] {
        cache.put(&entry.key, &entry.label, &entry.plan).unwrap();
    }
    cache.export(&dir.with_file_name("travelled")).unwrap();
    let seed = 20_261_116;
    let mut rng = Rng::new(seed);
    let mut seen = 0;
    for round in 0..16u64 {
        let mut children: Vec<Child> = (0..2)
            .map(|n| {
                let seed = (round * 2 + n).to_string();
                let place = dir.display().to_string();
                child("a_process_that_is_killed", &[(DIR, place), (SEED, seed)])
            })
            .collect();
        // From before the first write on, over the time of many.
        std::thread::sleep(Duration::from_micros(15_000 + rng.below(60_000)));
        for child in &mut children {
            let ended = child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "seed {seed}, round {round}: it failed before it was killed"
            );
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for entry in &entries {
            match cache.get(&entry.key) {
                Found::Entry(found) => {
                    assert_eq!(found, entry.plan);
                    seen += 1;
                }
                Found::Nothing => {}
                Found::Unusable(error) => panic!("seed {seed}, round {round}: {error}"),
            }
        }
        // Whoever died held no lock that stays, and leaves nothing behind that tidying does not find.
        cache.tidy(&Tidy::default()).unwrap();
        assert_eq!(temporary(&dir), 0, "seed {seed}, round {round}");
    }
    assert!(seen > 0, "no child lived long enough to write");
    cache.clear().unwrap();
    let files = std::fs::read_dir(&dir).unwrap().count();
    assert_eq!(files, 1, "the lock file alone is left");
}

fn temporary(dir: &Path) -> usize {
    let files = std::fs::read_dir(dir).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("tmp-")).count()
}

/// Not a test of its own: what the processes do that compile the same.
#[test]
fn a_process_that_compiles() {
    let Some((dir, _)) = asked() else {
        return;
    };
    let options = Options {
        cache_dir: Some(dir.clone()),
        threads: 1,
        ..Options::default()
    };
    let compiler = Compiler::new(options).unwrap();
    // All begin at once.
    while !dir.with_file_name("go").exists() {
        std::thread::yield_now();
    }
    for n in 1..=6 {
        compiler.compile(&graph(n * 100)).unwrap();
    }
    let stats = compiler.stats();
    assert!(stats.cache_problems.is_empty(), "{stats:?}");
    assert_eq!(stats.disk_hits + stats.compiles, 6, "{stats:?}");
}

#[test]
fn many_processes_compile_the_same_at_once() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("cache");
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    let variables = [(DIR, dir.display().to_string()), (SEED, "0".to_owned())];
    let start = || child("a_process_that_compiles", &variables);
    let children: Vec<Child> = (0..6).map(|_| start()).collect();
    std::fs::write(outer.path().join("go"), "").unwrap();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
    }
    let info = cache.info().unwrap();
    assert_eq!((info.entries, info.usable), (6, 6));
    assert_eq!(temporary(&dir), 0);
}
