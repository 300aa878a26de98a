//! The cache on disk, as a Rust program sees it.

use oxyfuel::{CacheMiss, Compiled, DType, Options, PlanOrigin, Tensor, compile, options_from_env};
use std::path::Path;

fn with(dir: &Path) -> Options {
    Options {
        cache_dir: Some(dir.to_owned()),
        ..Options::default()
    }
}

fn called(f: &Compiled, size: i64) {
    f.call(&[&Tensor::ones(&[size], DType::F32)]).unwrap();
}

#[test]
fn a_plan_says_where_it_came_from() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cache");
    let f = compile(|x: &Tensor| x.exp() + 1.0, with(&dir)).unwrap();
    let f = f.named("f");
    called(&f, 3);
    let report = f.explain();
    let first = &report.variants[0];
    assert_eq!(first.origin, PlanOrigin::Compiled);
    assert_eq!(first.missed, Some(CacheMiss::Empty));
    assert!(
        report
            .to_string()
            .contains("not on disk: the cache is empty")
    );
    // The same on other lines of the program.
    let again = compile(|x: &Tensor| x.exp() + 1.0, with(&dir)).unwrap();
    let again = again.named("f");
    called(&again, 3);
    let report = again.explain();
    let found = &report.variants[0];
    assert_eq!(found.origin, PlanOrigin::Disk, "{report}");
    assert_eq!(found.missed, None);
    assert!(report.to_string().contains("from the disk cache in "));
    let lines = |report: &oxyfuel::VariantReport| report.kernels[0].lines.clone();
    assert_ne!(lines(first), lines(found));
    assert!(lines(found)[0].contains("disk.rs:"), "{report}");
    // Another size is another graph of that name.
    called(&again, 5);
    let other = &again.explain().variants[1];
    assert_eq!(other.missed, Some(CacheMiss::OtherGraphs(1)));
}

#[test]
fn a_segment_is_found_on_disk_too() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cache");
    let origin = || {
        let f = compile(
            |x: &Tensor| x.sum(&[], false).item().map(|n| x * n.as_f64()),
            with(&dir),
        );
        let f = f.unwrap();
        called(&f, 3);
        f.explain().variants[0].origin
    };
    assert_eq!(origin(), PlanOrigin::Compiled);
    assert_eq!(origin(), PlanOrigin::Disk);
}

#[test]
fn a_cache_that_cannot_be_used_is_noted() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let f = compile(|x: &Tensor| x * 2.0, with(file.path())).unwrap();
    called(&f, 3);
    let report = f.explain();
    assert!(
        report.variants[0].notes[0].contains("error[E0502]"),
        "{report}"
    );
    assert!(
        report.to_string().contains("note: error[E0502]"),
        "{report}"
    );
}

#[test]
fn the_limit_holds() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cache");
    let options = Options {
        cache_limit: 1,
        ..with(&dir)
    };
    let f = compile(|x: &Tensor| x * 2.0, options).unwrap();
    for size in 3..6 {
        called(&f, size);
    }
    let plans = std::fs::read_dir(&dir).unwrap();
    let plans = plans.filter(|file| file.as_ref().unwrap().path().extension().is_some());
    assert_eq!(plans.count(), 1);
}

const CHILD: &str = "OXYFUEL_TEST_ENVIRONMENT";

/// Not a test of its own: what the process does that has an environment.
#[test]
fn a_process_with_an_environment() {
    let Ok(wanted) = std::env::var(CHILD) else {
        return;
    };
    match options_from_env() {
        Ok(options) => println!("read {:?} {}", options.cache_dir, options.cache_limit),
        Err(error) => println!("{error}"),
    }
    assert!(!wanted.is_empty());
}

#[test]
fn the_environment_is_read_where_it_is_asked_for() {
    let child = |variable: &str, value: &str| {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_with_an_environment", "--nocapture"])
            .env(CHILD, "1")
            .env("OXYFUEL_CACHE_LIMIT", "77")
            .env(variable, value)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = child("OXYFUEL_CACHE_DIR", "/a/b");
    assert!(text.contains("read Some(\"/a/b\") 77"), "{text}");
    let text = child("OXYFUEL_CACHE_DIR", "");
    assert!(text.contains("read None 77"), "{text}");
    let text = child("OXYFUEL_CACHE_LIMIT", "much");
    assert!(
        text.contains("error[E0402]: OXYFUEL_CACHE_LIMIT: "),
        "{text}"
    );
    assert!(
        text.contains("disk.rs") && text.contains("help: "),
        "{text}"
    );
    assert_eq!(Options::default().cache_dir, None);
}
