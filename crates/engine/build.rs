//! Names the build by its sources, so that plans on disk never outlive the compiler that made them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Crates whose code decides what a plan is.
const CRATES: &[&str] = &[
    "base",
    "graph",
    "kernel",
    "plan",
    "capture",
    "transform",
    "schedule",
    "lower",
    "x86",
    "ptx",
    "engine",
];

fn main() {
    let mut files = Vec::new();
    for name in CRATES {
        let src = Path::new("..").join(name).join("src");
        // A packaged crate stands alone; its version names it.
        if src.is_dir() {
            println!("cargo::rerun-if-changed={}", src.display());
            collect(&src, &mut files);
        }
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        std::fs::read(&file).unwrap_or_default().hash(&mut hasher);
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=OXYFUEL_BUILD={:016x}", hasher.finish());
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(items) = std::fs::read_dir(dir) else {
        return;
    };
    for path in items.flatten().map(|item| item.path()) {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
}
