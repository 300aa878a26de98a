//! What `oxyfuel doctor` says of CUDA drivers that are no good: libraries made here, with a few of the driver's functions, are found in its place.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A driver of three functions; `START`, `VERSION` and `COUNT` become numbers.
const DRIVER: &str = r#"use std::ffi::c_int;
#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: u32) -> c_int { START }
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int { unsafe { *version = VERSION }; 0 }
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int { unsafe { *count = COUNT }; 0 }
"#;

/// The compiler beside the cargo that runs this test.
fn rustc() -> PathBuf {
    let cargo = std::env::var_os("CARGO").map(PathBuf::from);
    let beside = cargo.map(|cargo| cargo.with_file_name("rustc"));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| "rustc".into())
}

/// A folder with such a library in it.
fn driver(name: &str, text: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("driver-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("driver.rs");
    std::fs::write(&source, text).unwrap();
    let made = Command::new(rustc())
        .args(["--edition=2024", "--crate-type=cdylib"])
        .arg("-o")
        .arg(folder.join("libcuda.so.1"))
        .arg(&source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    folder
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

fn filled(start: i32, version: i32, count: i32) -> String {
    let number = |text: String, word: &str, value: i32| text.replace(word, &value.to_string());
    let text = number(DRIVER.to_owned(), "START", start);
    number(number(text, "VERSION", version), "COUNT", count)
}

#[test]
fn a_driver_that_is_too_old_is_named_with_its_version() {
    let text = said(&driver("old", &filled(0, 11_040, 1)));
    let sentence =
        "the driver (libcuda.so.1) is of CUDA 11.4, and CUDA 12.0 is the oldest that we work with";
    assert!(text.contains(sentence), "{text}");
    // Nothing is asked of a driver that is refused.
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn functions_that_a_driver_lacks_are_named() {
    let text = said(&driver("lacking", &filled(0, 12_040, 0)));
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
    let text = said(&driver("lacking-gpu", &filled(0, 12_040, 2)));
    for index in 0..2 {
        let line = format!("cuda:{index}: the CUDA driver has no function cuDeviceGet");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn a_driver_without_the_first_of_its_functions_is_told_from_none() {
    let text = filled(0, 12_040, 0).replace("cuDeviceGetCount", "cuSomethingElse");
    let text = said(&driver("countless", &text));
    assert!(
        text.contains("the CUDA driver has no function cuDeviceGetCount"),
        "{text}"
    );
    let text = filled(0, 12_040, 0).replace("cuInit", "cuSomethingElse");
    let text = said(&driver("startless", &text));
    assert!(
        text.contains("the CUDA driver has no function cuInit"),
        "{text}"
    );
}

#[test]
fn a_driver_that_does_not_start_says_what_it_answered() {
    let text = said(&driver("stuck", &filled(999, 12_040, 1)));
    assert!(text.contains("cuInit") && text.contains("999"), "{text}");
}
