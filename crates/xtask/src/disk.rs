//! Whether the disk has room for what a run of the tests builds: a linker that finds none dies of a bus error, which says nothing of a disk.

use crate::{Outcome, process, workspace};
use std::process::Command;

/// What a first run makes, in MB: what is there behind it, and how much came with it. `target/debug` itself is there as soon as this command is built.
const GROWTH: [(&str, u64); 2] = [(".venv-test", 6_400), ("target/debug/oxyfuel", 5_000)];
/// What a run needs where both are there already.
const ALWAYS: u64 = 1_000;

pub fn check() -> Outcome {
    let root = workspace::root();
    let needed = needed(|made| root.join(made).exists());
    let mut df = Command::new("df");
    df.arg("-Pk").arg(&root);
    // A machine without `df` is not one without room.
    let Ok(printed) = process::capture(&mut df, "df") else {
        return Ok(());
    };
    let Some(free) = free(&printed) else {
        return Ok(());
    };
    println!("disk: {free} MB are free, a run takes up to {needed}");
    if free < needed {
        return Err(format!(
            "the disk has {free} MB left and the tests take up to {needed}: free some, or build elsewhere with CARGO_TARGET_DIR and `cargo xtask test --only-tests`"
        ));
    }
    Ok(())
}

/// MB that a run takes, given what earlier ones have made.
fn needed(there: impl Fn(&str) -> bool) -> u64 {
    let missing = GROWTH.iter().filter(|(made, _)| !there(made));
    ALWAYS + missing.map(|(_, size)| size).sum::<u64>()
}

/// Free MB, from the table that `df -Pk` prints.
fn free(table: &str) -> Option<u64> {
    let kilobytes: u64 = table
        .lines()
        .nth(1)?
        .split_whitespace()
        .nth(3)?
        .parse()
        .ok()?;
    Some(kilobytes / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_run_takes_room_for_all_that_it_makes() {
        assert_eq!(needed(|_| false), 12_400);
        assert_eq!(needed(|made| made == ".venv-test"), 6_000);
        assert_eq!(needed(|_| true), ALWAYS);
    }

    #[test]
    fn free_space_is_read_from_a_table() {
        let table = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 264245248 70000000 26214400 73% /\n";
        assert_eq!(free(table), Some(25_600));
        assert_eq!(free("Filesystem\n"), None);
        assert_eq!(free(""), None);
    }
}
