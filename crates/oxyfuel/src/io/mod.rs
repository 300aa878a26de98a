//! Tensors in files: safetensors for weights, `.npy` for single arrays; and functions, `.oxy`.
//!
//! Files are data from anywhere: every length is checked before it is believed, and whatever is wrong is an error with a code. A file is written beside its place and then
//! moved there, so that nobody reads half of one.

mod function;
mod npy;
mod safetensors;

pub use function::{SavedFunction, load};
pub use npy::{read_npy, read_npy_as, write_npy};
pub use safetensors::{read_safetensors, write_safetensors};

use crate::tensor::Tensor;
use oxyfuel_base::{Code, DType, Error, Result, err};
use std::path::Path;

fn file_error(path: &Path, error: &std::io::Error) -> Error {
    let (code, help) = match error.kind() {
        std::io::ErrorKind::NotFound => (Code::FileNotFound, "check the path"),
        std::io::ErrorKind::StorageFull
        | std::io::ErrorKind::QuotaExceeded
        | std::io::ErrorKind::FileTooLarge => (Code::DiskFull, "make room and write again"),
        _ => (
            Code::FileUnreadable,
            "check what the path is and who may use it",
        ),
    };
    Error::new(code, format!("{}: {error}", path.display())).help(help)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| file_error(path, &error))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path.file_name().ok_or_else(|| {
        err!(FileNotFound, "{}: no name of a file", path.display())
            .help("name a file, not a folder")
    })?;
    let mut partial = name.to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial);
    let moved = std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path));
    moved.map_err(|error| {
        // What is left of a failed write helps nobody; that it cannot be removed changes nothing.
        let _ = std::fs::remove_file(&partial);
        file_error(path, &error)
    })
}

fn malformed(path: &Path, what: impl std::fmt::Display) -> Error {
    err!(FileMalformed, "{}: {what}", path.display())
        .help("the file is damaged or of another format: write or fetch it again")
}

/// Elements in row-major order as a tensor; their number is checked.
fn tensor(path: &Path, bytes: &[u8], dtype: DType, shape: &[i64]) -> Result<Tensor> {
    let wanted = oxyfuel_runtime::tensor::layout::byte_count(shape, dtype.size());
    let wanted = wanted.map_err(|error| malformed(path, error.message))?;
    if wanted != bytes.len() {
        let what = format!(
            "{} bytes for {dtype}{shape:?}, which has {wanted}",
            bytes.len()
        );
        return Err(malformed(path, what));
    }
    Tensor::from_bytes(bytes, dtype, shape).try_ok()
}
