//! Reads a description from a file and prints the graph it becomes: `cargo run -p oxyfuel-capture --example import -- forward.json`.

use oxyfuel_capture::{ImportOptions, import, read};
use std::{env, fs, process};

fn main() {
    let mut failed = false;
    for path in env::args().skip(1) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        match read(&text).and_then(|d| import(&d, &ImportOptions::default())) {
            Ok(imported) => {
                println!("{}", imported.graph);
                for e in &imported.externals {
                    println!("external {} {}: {}", e.node, e.target, e.reason);
                }
            }
            Err(e) => {
                println!("{path}: {e}");
                failed = true;
            }
        }
    }
    process::exit(i32::from(failed));
}
