//! Libraries in the place of the CUDA driver's, for what is said of drivers and GPUs that are not here.
//!
//! Each is compiled here, of a few of the driver's functions; a process finds it whose `LD_LIBRARY_PATH` is its folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What starts a driver; `START`, `VERSION` and `COUNT` become numbers.
const STARTED: &str = r#"use std::ffi::c_int;
#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: u32) -> c_int { START }
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int { unsafe { *version = VERSION }; 0 }
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int { unsafe { *count = COUNT }; 0 }
"#;

/// What opens a GPU; `MAJOR` and `MINOR` become numbers.
const OPENED: &str = r#"use std::ffi::{c_char, c_void};
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int { unsafe { *device = ordinal }; 0 }
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) -> c_int { unsafe { *context = 8 as *mut c_void }; 0 }
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_int { 0 }
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, _length: c_int, _device: c_int) -> c_int { unsafe { name.copy_from(c"made card".as_ptr(), 10) }; 0 }
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int { unsafe { *bytes = 4 << 30 }; 0 }
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    unsafe { *value = match attribute { 75 => MAJOR, 76 => MINOR, _ => 16 } };
    0
}
"#;

/// The text of a driver that answers these numbers: to its start, of its version, and of how many GPUs it has.
pub fn started(start: i32, version: i32, count: i32) -> String {
    let numbers = [("START", start), ("VERSION", version), ("COUNT", count)];
    filled(STARTED, &numbers)
}

/// The text of a driver whose one GPU has this compute capability.
pub fn with_card(major: i32, minor: i32) -> String {
    let card = filled(OPENED, &[("MAJOR", major), ("MINOR", minor)]);
    started(0, 12_040, 1) + &card
}

fn filled(text: &str, numbers: &[(&str, i32)]) -> String {
    let fill = |text: String, (word, number): &(&str, i32)| text.replace(word, &number.to_string());
    numbers.iter().fold(text.to_owned(), fill)
}

/// A folder of that name with the library of such a text in it, below a folder for tests.
pub fn library(within: &str, name: &str, text: &str) -> PathBuf {
    let folder = Path::new(within).join(format!("driver-{name}"));
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

/// The compiler beside the cargo that runs this test.
fn rustc() -> PathBuf {
    let cargo = std::env::var_os("CARGO").map(PathBuf::from);
    let beside = cargo.map(|cargo| cargo.with_file_name("rustc"));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| "rustc".into())
}
