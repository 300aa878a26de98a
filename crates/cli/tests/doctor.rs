//! What `oxyfuel doctor` says of CUDA drivers that are no good: libraries made here, with a few of the driver's functions, are found in its place.
#![cfg(target_os = "linux")]

use oxyfuel_testkit::driver::{library, started, with_card};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with such a library in it.
fn driver(name: &str, text: &str) -> PathBuf {
    library(env!("CARGO_TARGET_TMPDIR"), name, text)
}

/// The lines that the doctor has for a driver.
fn said(folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_oxyfuel"))
        .arg("doctor")
        .env("LD_LIBRARY_PATH", folder)
        .env("OXYFUEL_NUM_THREADS", "2")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let wanted = |line: &&str| line.contains("CUDA driver") || line.contains("GPU");
    let lines: Vec<&str> = text.lines().filter(wanted).collect();
    lines.join("\n")
}

#[test]
fn a_driver_that_is_too_old_is_named_with_its_version() {
    let text = said(&driver("old", &started(0, 11_040, 1)));
    let sentence =
        "the driver (libcuda.so.1) is of CUDA 11.4, and CUDA 12.0 is the oldest that we work with";
    assert!(text.contains(sentence), "{text}");
    // Nothing is asked of a driver that is refused.
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn functions_that_a_driver_lacks_are_named() {
    let text = said(&driver("lacking", &started(0, 12_040, 0)));
    assert!(
        text.contains("libcuda.so.1, CUDA 12.4; it lacks ") && text.contains("cuLaunchKernelEx"),
        "{text}"
    );
    assert!(
        !text.contains("cuInit") && !text.contains("cuDeviceGetCount"),
        "{text}"
    );
    assert!(
        text.contains("the CUDA driver is there and knows no device"),
        "{text}"
    );
    // A GPU whose functions are not there is one line, not the end of the command.
    let text = said(&driver("lacking-gpu", &started(0, 12_040, 2)));
    for index in 0..2 {
        let line = format!("cuda:{index}: the CUDA driver has no function cuDeviceGet");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn a_driver_without_the_first_of_its_functions_is_told_from_none() {
    let text = started(0, 12_040, 0).replace("cuDeviceGetCount", "cuSomethingElse");
    let text = said(&driver("countless", &text));
    assert!(
        text.contains("the CUDA driver has no function cuDeviceGetCount"),
        "{text}"
    );
    let text = started(0, 12_040, 0).replace("cuInit", "cuSomethingElse");
    let text = said(&driver("startless", &text));
    assert!(
        text.contains("the CUDA driver has no function cuInit"),
        "{text}"
    );
}

#[test]
fn a_driver_that_does_not_start_says_what_it_answered() {
    let text = said(&driver("stuck", &started(999, 12_040, 1)));
    assert!(text.contains("cuInit") && text.contains("999"), "{text}");
}

#[test]
fn a_card_that_is_too_old_is_named_with_its_code() {
    let text = said(&driver("old-card", &with_card(7, 5)));
    let line =
        "--  GPU                cuda:0: made card: compute capability 7.5 is below 8.0 (E0704)";
    assert!(text.contains(line), "{text}");
}
