//! The disk cache under good and bad circumstances. None of the bad ones fails a compile.

use oxyfuel_base::{Code, Digest};
use oxyfuel_engine::cache::{Cache, DEFAULT_LIMIT, Found, Label, Miss, Missed, Tidy, plan_key};
use oxyfuel_engine::{Compiler, Options, Target, compile, cpu_device};
use oxyfuel_graph::Graph;
use oxyfuel_plan::Plan;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn graph(n: usize) -> Graph {
    let text = format!("graph @f(%x: f32[{n}] cpu) {{\n  %y: f32[{n}] = relu %x\n  return %y\n}}");
    oxyfuel_graph::parse("test", &text).unwrap()
}

fn plan_of(n: usize) -> (Digest, Plan) {
    let (target, options) = (Target::interpreter(), Options::default());
    let plan = compile(&graph(n), &target, &options, false).unwrap().plan;
    (plan_key(&graph(n), &target.desc, &options).unwrap(), plan)
}

fn label_of(n: usize) -> Label {
    let (target, options) = (Target::interpreter(), Options::default());
    Label::new(&graph(n), &target.desc, &options).unwrap()
}

/// A directory with the cache in it, which does not exist yet.
fn place() -> (TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("a/cache");
    (outer, dir)
}

fn compiler(dir: &Path) -> Compiler {
    let options = Options {
        cache_dir: Some(dir.to_owned()),
        threads: 1,
        ..Options::default()
    };
    let device = cpu_device(&options);
    Compiler::on(Target::interpreter(), options, device)
}

fn file_of(dir: &Path, key: &Digest) -> PathBuf {
    dir.join(format!("{key}.plan"))
}

fn unusable(found: Found<Plan>) -> Code {
    match found {
        Found::Unusable(error) => error.code,
        Found::Entry(_) | Found::Nothing => panic!("{found:?}"),
    }
}

#[test]
fn an_entry_comes_back_as_it_was() {
    let (_outer, dir) = place();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    let (key, plan) = plan_of(10);
    assert!(matches!(cache.get(&key), Found::Nothing));
    cache.put(&key, &label_of(10), &plan).unwrap();
    assert!(matches!(cache.get(&key), Found::Entry(found) if found == plan));
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    assert_eq!(cache.info().unwrap().entries, 1);
    assert_eq!(cache.clear().unwrap(), 1);
    assert!(matches!(cache.get(&key), Found::Nothing));
}

#[test]
fn a_second_process_compiles_nothing() {
    let (_outer, dir) = place();
    let first = compiler(&dir);
    let held = first.compile(&graph(8)).unwrap();
    first.compile(&graph(8)).unwrap();
    first.compile(&graph(9)).unwrap();
    drop(held);
    let stats = first.stats();
    assert_eq!(
        (stats.memory_hits, stats.disk_hits, stats.compiles),
        (1, 0, 2)
    );
    let second = compiler(&dir);
    second.compile(&graph(8)).unwrap();
    let stats = second.stats();
    assert_eq!(
        (stats.memory_hits, stats.disk_hits, stats.compiles),
        (0, 1, 0)
    );
    assert!(stats.cache_problems.is_empty(), "{stats:?}");
}

#[test]
fn broken_entries_are_told_and_replaced() {
    type Break = fn(&Path);
    let breaks: [(&str, Break, Code); 4] = [
        (
            "truncated",
            |path| {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            },
            Code::CacheCorrupt,
        ),
        (
            "a flipped bit",
            |path| {
                let mut bytes = fs::read(path).unwrap();
                *bytes.last_mut().unwrap() ^= 4;
                fs::write(path, bytes).unwrap();
            },
            Code::CacheCorrupt,
        ),
        (
            "an older layout",
            |path| {
                let mut bytes = fs::read(path).unwrap();
                bytes[..8].copy_from_slice(b"oxyfuel\x01");
                fs::write(path, bytes).unwrap();
            },
            Code::CacheCorrupt,
        ),
        (
            "empty",
            |path| fs::write(path, []).unwrap(),
            Code::CacheCorrupt,
        ),
    ];
    for (what, damage, code) in breaks {
        let (_outer, dir) = place();
        let first = compiler(&dir);
        first.compile(&graph(7)).unwrap();
        let key = plan_key(&graph(7), &first.target().desc, first.options()).unwrap();
        damage(&file_of(&dir, &key));
        let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
        assert_eq!(unusable(cache.get(&key)), code, "{what}");
        let second = compiler(&dir);
        let executable = second.compile(&graph(7)).unwrap();
        assert_eq!(executable.record().notes.len(), 1, "{what}");
        assert_eq!(
            (second.stats().compiles, second.stats().cache_problems.len()),
            (1, 1),
            "{what}"
        );
        assert!(
            matches!(cache.get(&key), Found::Entry(_)),
            "{what} was not replaced"
        );
    }
}

/// The code of one graph under the name of another is not run.
#[test]
fn an_entry_under_another_name_is_told_and_replaced() {
    let (outer, dir) = place();
    let first = compiler(&dir);
    for n in [6, 7] {
        first.compile(&graph(n)).unwrap();
    }
    let [a, b] = [6, 7].map(|n| {
        let key = plan_key(&graph(n), &first.target().desc, first.options()).unwrap();
        (key, file_of(&dir, &key))
    });
    let (six, seven) = (fs::read(&a.1).unwrap(), fs::read(&b.1).unwrap());
    fs::write(&a.1, seven).unwrap();
    fs::write(&b.1, six).unwrap();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    for (key, _) in [&a, &b] {
        assert_eq!(unusable(cache.get(key)), Code::CacheCorrupt);
    }
    assert_eq!(cache.info().unwrap().usable, 0);
    assert_eq!(cache.export(&outer.path().join("out")).unwrap(), 0);
    let second = compiler(&dir);
    for n in [6, 7] {
        let executable = second.compile(&graph(n)).unwrap();
        assert_eq!(executable.record().notes.len(), 1);
    }
    assert_eq!(second.stats().compiles, 2);
    assert_eq!(cache.info().unwrap().usable, 2);

    fs::copy(&a.1, &b.1).unwrap();
    assert_eq!(cache.tidy(&Tidy::default()).unwrap().unusable, 1);
    assert_eq!(cache.info().unwrap().entries, 1);

    // In a file that travels, names and contents are swapped as well.
    let file = outer.path().join("travels");
    cache.export(&file).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let name = a.0.to_string();
    let at = bytes.windows(64).position(|part| part == name.as_bytes());
    let at = at.unwrap();
    bytes[at..at + 64].copy_from_slice(b.0.to_string().as_bytes());
    let body = bytes.len() - 32;
    let sum = Digest::of_bytes(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum.0);
    fs::write(&file, bytes).unwrap();
    let done = cache.import(&file).unwrap();
    assert_eq!((done.entries, done.unusable), (0, 1));
}

#[test]
fn links_are_not_followed() {
    let (outer, dir) = place();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    let (key, plan) = plan_of(3);
    cache.put(&key, &label_of(3), &plan).unwrap();
    let elsewhere = outer.path().join("elsewhere");
    fs::rename(file_of(&dir, &key), &elsewhere).unwrap();
    symlink(&elsewhere, file_of(&dir, &key)).unwrap();
    assert_eq!(unusable(cache.get(&key)), Code::CacheUntrusted);
    cache.put(&key, &label_of(3), &plan).unwrap();
    assert!(matches!(cache.get(&key), Found::Entry(_)));

    let link = outer.path().join("link");
    symlink(&dir, &link).unwrap();
    assert_eq!(
        Cache::open(&link, DEFAULT_LIMIT).unwrap_err().code,
        Code::CacheUnwritable
    );
    let dangling = outer.path().join("dangling");
    symlink(outer.path().join("nothing"), &dangling).unwrap();
    assert_eq!(
        Cache::open(&dangling, DEFAULT_LIMIT).unwrap_err().code,
        Code::CacheUnwritable
    );
    compiler(&dangling).compile(&graph(3)).unwrap();
}

#[test]
fn entries_and_directories_of_others_are_not_trusted() {
    let (_outer, dir) = place();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    let (key, plan) = plan_of(3);
    cache.put(&key, &label_of(3), &plan).unwrap();
    fs::set_permissions(file_of(&dir, &key), fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(unusable(cache.get(&key)), Code::CacheUntrusted);
    // Only root can give files away.
    if std::os::unix::fs::chown(file_of(&dir, &key), Some(12345), None).is_ok() {
        fs::set_permissions(file_of(&dir, &key), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(unusable(cache.get(&key)), Code::CacheUntrusted);
        std::os::unix::fs::chown(&dir, Some(12345), None).unwrap();
        assert_eq!(
            Cache::open(&dir, DEFAULT_LIMIT).unwrap_err().code,
            Code::CacheUntrusted
        );
        std::os::unix::fs::chown(&dir, Some(fs::metadata("/proc/self").unwrap().uid()), None)
            .unwrap();
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(
        Cache::open(&dir, DEFAULT_LIMIT).unwrap_err().code,
        Code::CacheUntrusted
    );
    // Others may look, but not write: closed again, and used.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_place_that_cannot_be_a_cache_costs_a_note() {
    let outer = tempfile::tempdir().unwrap();
    let file = outer.path().join("file");
    fs::write(&file, "x").unwrap();
    for (dir, code) in [
        (file.clone(), Code::CacheUnwritable),
        (file.join("below"), Code::CacheUnreadable),
        (PathBuf::from("/proc/oxyfuel/cache"), Code::CacheUnwritable),
    ] {
        assert_eq!(
            Cache::open(&dir, DEFAULT_LIMIT).unwrap_err().code,
            code,
            "{}",
            dir.display()
        );
        let compiler = compiler(&dir);
        compiler.compile(&graph(4)).unwrap();
        assert_eq!(
            (
                compiler.stats().compiles,
                compiler.stats().cache_problems.len()
            ),
            (1, 1)
        );
    }
}

#[test]
fn a_directory_that_vanishes_costs_a_note() {
    let (_outer, dir) = place();
    let compiler = compiler(&dir);
    fs::remove_dir_all(&dir).unwrap();
    let executable = compiler.compile(&graph(4)).unwrap();
    assert_eq!(executable.record().notes.len(), 1);
}

#[test]
fn the_oldest_entries_make_room() {
    let (_outer, dir) = place();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    let plans: Vec<_> = (1..=3).map(plan_of).collect();
    for (age, (key, plan)) in plans.iter().enumerate() {
        cache.put(key, &label_of(age + 1), plan).unwrap();
        let file = fs::File::options()
            .write(true)
            .open(file_of(&dir, key))
            .unwrap();
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(100 - age as u64);
        file.set_modified(time).unwrap();
    }
    // A hit makes the first one young.
    assert!(matches!(cache.get(&plans[0].0), Found::Entry(_)));
    let bytes = cache.info().unwrap().bytes;
    let small = Cache::open(&dir, bytes).unwrap();
    let (key, plan) = plan_of(4);
    small.put(&key, &label_of(4), &plan).unwrap();
    assert!(matches!(small.get(&plans[0].0), Found::Entry(_)));
    assert!(matches!(small.get(&plans[1].0), Found::Nothing));
    assert!(matches!(small.get(&key), Found::Entry(_)));
}

#[test]
fn many_writers_of_one_entry_do_no_harm() {
    let (_outer, dir) = place();
    let (key, plan) = plan_of(5);
    let cache = Cache::open(&dir, 1).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    cache.put(&key, &label_of(3), &plan).unwrap();
                    match cache.get(&key) {
                        Found::Entry(found) => assert_eq!(found, plan),
                        Found::Nothing => {}
                        Found::Unusable(error) => panic!("{error}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                cache.clear().unwrap();
            }
        });
    });
}

#[test]
fn every_stage_is_traced() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        trace_dir: Some(dir.path().join("trace")),
        threads: 1,
        ..Options::default()
    };
    let device = cpu_device(&options);
    let compiler = Compiler::on(Target::interpreter(), options, device);
    compiler.compile(&graph(4)).unwrap();
    let inner = fs::read_dir(dir.path().join("trace"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut names: Vec<_> = fs::read_dir(inner)
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 9);
    assert_eq!(names[0], "0-graph.txt");
}

#[test]
fn a_miss_says_why() {
    let (_outer, dir) = place();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    assert_eq!(
        cache.why_missed(&Miss::of(label_of(5))).unwrap(),
        Missed::Empty
    );
    let (key, plan) = plan_of(5);
    cache.put(&key, &label_of(5), &plan).unwrap();
    assert_eq!(
        cache.why_missed(&Miss::of(label_of(6))).unwrap(),
        Missed::OtherGraphs(1)
    );
    let mut other = label_of(6);
    other.name = "g".to_owned();
    assert_eq!(cache.why_missed(&Miss::of(other)).unwrap(), Missed::NewName);
    let (target, mut options) = (Target::by_name("avx2").unwrap(), Options::default());
    options.set("numerics", "fast").unwrap();
    let elsewhere = Label::new(&graph(5), &target.desc, &options).unwrap();
    let Missed::MadeOtherwise(why) = cache.why_missed(&Miss::of(elsewhere)).unwrap() else {
        panic!("the graph is there");
    };
    assert!(why[0].contains("target avx2 here, "), "{why:?}");
    assert!(
        why[0].contains("options ") && why[0].contains("Fast"),
        "{why:?}"
    );
}

/// Again and again: several plans are made in one tick of the file system's clock.
#[test]
fn a_compile_that_missed_says_why() {
    for _ in 0..20 {
        let (_outer, dir) = place();
        let first = compiler(&dir);
        let five = first.compile(&graph(5)).unwrap();
        assert_eq!(first.why_missed(five.record()), Some(Missed::Empty));
        // What was made since does not count, nor the plan itself.
        let six = first.compile(&graph(6)).unwrap();
        assert_eq!(first.why_missed(six.record()), Some(Missed::OtherGraphs(1)));
        assert_eq!(first.why_missed(five.record()), Some(Missed::Empty));
        let second = compiler(&dir);
        let hit = second.compile(&graph(5)).unwrap();
        assert_eq!(second.why_missed(hit.record()), None);
    }
}

/// `relu` and `exp` of the lines that are given.
fn lined(relu: u32, exp: u32) -> Graph {
    let text = format!(
        "graph @f(%x: f32[4] cpu) {{
  %y: f32[4] = relu %x at \"a.rs\":{relu}
  %z: f32[4] = exp %y at \"a.rs\":{exp}
  return %z
}}"
    );
    oxyfuel_graph::parse("test", &text).unwrap()
}

/// A line that moved is no reason to compile, and what is shown has moved with it.
#[test]
fn lines_of_the_program_may_move() {
    let (_outer, dir) = place();
    let lines = |executable: &oxyfuel_engine::Executable| -> Vec<String> {
        let kernels = executable.plan().kernels.values();
        kernels.flat_map(|k| k.provenance.lines.clone()).collect()
    };
    let first = compiler(&dir);
    let made = first.compile(&lined(3, 4)).unwrap();
    assert_eq!(lines(&made), ["a.rs:3", "a.rs:4"]);
    for (graph, shown) in [
        (lined(3, 4), ["a.rs:3", "a.rs:4"].as_slice()),
        (lined(10, 12), &["a.rs:10", "a.rs:12"]),
        (lined(10, 10), &["a.rs:10"]),
    ] {
        let second = compiler(&dir);
        let found = second.compile(&graph).unwrap();
        let stats = second.stats();
        assert_eq!((stats.disk_hits, stats.compiles), (1, 0));
        assert_eq!(lines(&found), shown);
    }
    // In one process each graph shows its own lines.
    let moved = first.compile(&lined(5, 6)).unwrap();
    assert_eq!(lines(&moved), ["a.rs:5", "a.rs:6"]);
    assert_eq!(lines(&made), ["a.rs:3", "a.rs:4"]);
    assert_eq!(first.stats().compiles, 1);
}

/// Nodes that shared a line when the plan was made are told apart as far as the plan can.
#[test]
fn lines_that_part_are_all_named() {
    let (_outer, dir) = place();
    compiler(&dir).compile(&lined(3, 3)).unwrap();
    let found = compiler(&dir).compile(&lined(7, 8)).unwrap();
    let mut kernels = found.plan().kernels.values();
    let lines = &kernels.next().unwrap().provenance.lines;
    assert_eq!(*lines, ["a.rs:7", "a.rs:8"]);
}

#[test]
fn the_limit_is_an_option() {
    let (_outer, dir) = place();
    let options = Options {
        cache_dir: Some(dir.clone()),
        cache_limit: 1,
        threads: 1,
        ..Options::default()
    };
    let device = cpu_device(&options);
    let small = Compiler::on(Target::interpreter(), options, device);
    for n in 1..=4 {
        small.compile(&graph(n)).unwrap();
    }
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    assert_eq!(cache.info().unwrap().entries, 1, "the last one is kept");
}

#[test]
fn tidying_keeps_what_is_used() {
    let (_outer, dir) = place();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    for n in 1..=4 {
        let (key, plan) = plan_of(n);
        cache.put(&key, &label_of(n), &plan).unwrap();
    }
    let file = |n: usize| file_of(&dir, &plan_of(n).0);
    fs::write(file(1), "broken").unwrap();
    fs::File::options()
        .write(true)
        .open(file(2))
        .unwrap()
        .set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(1000))
        .unwrap();
    let done = cache
        .tidy(&Tidy {
            unused_for: Some(std::time::Duration::from_secs(500)),
            limit: None,
        })
        .unwrap();
    assert_eq!(
        (done.unusable, done.unused, done.over_limit, done.kept),
        (1, 1, 0, 2)
    );
    let one = fs::metadata(file(3)).unwrap().len();
    let limit = Some(one + one / 2);
    let done = cache
        .tidy(&Tidy {
            unused_for: None,
            limit,
        })
        .unwrap();
    assert_eq!((done.over_limit, done.kept), (1, 1));
}

#[test]
fn a_cache_travels_in_a_file() {
    let (outer, dir) = place();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    for n in 1..=3 {
        let (key, plan) = plan_of(n);
        cache.put(&key, &label_of(n), &plan).unwrap();
    }
    fs::write(file_of(&dir, &plan_of(2).0), "broken").unwrap();
    let file = outer.path().join("warm");
    assert_eq!(cache.export(&file).unwrap(), 2);
    let other = Cache::open(&outer.path().join("other"), DEFAULT_LIMIT).unwrap();
    assert_eq!(other.import(&file).unwrap().entries, 2);
    let (key, plan) = plan_of(3);
    assert!(matches!(other.get(&key), Found::Entry(found) if found == plan));

    let good = fs::read(&file).unwrap();
    let empty = Cache::open(&outer.path().join("empty"), DEFAULT_LIMIT).unwrap();
    for bad in [
        good[..good.len() / 2].to_vec(),
        good[..20].to_vec(),
        Vec::new(),
        b"nothing of ours, but long enough to hold a checksum at its end".to_vec(),
    ] {
        fs::write(&file, bad).unwrap();
        assert_eq!(empty.import(&file).unwrap_err().code, Code::CacheCorrupt);
    }
    fs::write(&file, &good).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(empty.import(&file).unwrap_err().code, Code::CacheUntrusted);
    let missing = outer.path().join("missing");
    assert_eq!(
        empty.import(&missing).unwrap_err().code,
        Code::FileUnreadable
    );
    assert_eq!(empty.info().unwrap().entries, 0);
}

/// What a writer leaves that died is of no use to anybody; what one that lives is writing stays.
#[test]
fn files_of_dead_writers_go() {
    let (_outer, dir) = place();
    let cache = Cache::open(&dir, DEFAULT_LIMIT).unwrap();
    let (key, plan) = plan_of(3);
    cache.put(&key, &label_of(3), &plan).unwrap();
    let (left, written) = (dir.join("tmp-left"), dir.join("tmp-written"));
    fs::write(&left, vec![0; 100]).unwrap();
    let writer = fs::File::create(&written).unwrap();
    writer.lock().unwrap();
    assert_eq!(cache.info().unwrap().entries, 2);
    let done = cache.tidy(&Tidy::default()).unwrap();
    assert_eq!((done.unusable, done.kept), (1, 1));
    assert!(!left.exists() && written.exists());
    fs::write(&left, vec![0; 100]).unwrap();
    // They count against the limit, and go before it is passed.
    let small = Cache::open(&dir, 50).unwrap();
    small.put(&key, &label_of(3), &plan).unwrap();
    assert!(!left.exists() && written.exists());
    fs::write(&left, vec![0; 100]).unwrap();
    assert_eq!(cache.clear().unwrap(), 2);
    assert!(!left.exists() && written.exists());
    drop(writer);
    assert_eq!(cache.clear().unwrap(), 1);
    assert!(!written.exists());
}
