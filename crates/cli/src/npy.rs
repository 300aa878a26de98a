//! NumPy's `.npy` files, version 1: a header of text and dense elements.
//!
//! bf16 has no name there; it is written as 16-bit words (`<u2`), as PyTorch users do, and read back where a graph wants bf16. So are the 8-bit formats as bytes.

use std::path::Path;

use oxyfuel_base::{DType, Result, err};
use oxyfuel_graph::HostTensor;

use crate::compare::file_error;

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's name of the words that hold a dtype.
fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "<f8",
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 | DType::U16 => "<u2",
        DType::U8 | DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1 | DType::E8M0 => "|u1",
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
    }
}

pub fn write(path: &Path, tensor: &HostTensor) -> Result<()> {
    let shape: Vec<String> = tensor.shape.iter().map(|n| format!("{n},")).collect();
    let mut header = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
        descr(tensor.dtype),
        shape.join(" ")
    );
    // Magic, version, length and header together are a multiple of 64 bytes and end in a newline.
    while !(MAGIC.len() + 4 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(|_| {
        err!(
            TooLarge,
            "a tensor of {} dims in a .npy file",
            tensor.shape.len()
        )
    })?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend(length.to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(&tensor.data);
    std::fs::write(path, bytes).map_err(|error| file_error(path, &error))
}

/// Reads a tensor that must have this dtype.
pub fn read(path: &Path, dtype: DType) -> Result<HostTensor> {
    let bytes = std::fs::read(path).map_err(|error| file_error(path, &error))?;
    parse(&bytes, dtype).map_err(|error| error.context(path.display()))
}

fn parse(bytes: &[u8], dtype: DType) -> Result<HostTensor> {
    let bad = |what: &str| err!(Syntax, "not a .npy file that we read: {what}");
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| bad("no magic"))?;
    let (length, rest) = match rest {
        [1, 0, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, 0, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err(bad("unknown version")),
    };
    let (header, data) = rest
        .split_at_checked(length)
        .ok_or_else(|| bad("cut short"))?;
    let header = std::str::from_utf8(header).map_err(|_| bad("its header is no text"))?;
    let found = field(header, "descr").ok_or_else(|| bad("no descr"))?;
    let found = found.trim_matches(['\'', '"']);
    if found != descr(dtype) {
        return Err(err!(
            DTypeMismatch,
            "its elements are {found}, {dtype} wants {}",
            descr(dtype)
        ));
    }
    if field(header, "fortran_order") != Some("False") {
        return Err(
            err!(LayoutMismatch, "its order is Fortran's").help("save numpy.ascontiguousarray(x)")
        );
    }
    let shape = header
        .split_once("'shape':")
        .and_then(|(_, rest)| rest.split_once('('))
        .and_then(|(_, rest)| rest.split_once(')'))
        .ok_or_else(|| bad("no shape"))?
        .0;
    let shape: Vec<i64> = shape
        .split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .map(|n| {
            n.parse()
                .map_err(|_| bad("its shape is no list of numbers"))
        })
        .collect::<Result<_>>()?;
    HostTensor::new(dtype, &shape, data.to_vec())
}

/// The text of a field up to the next comma.
fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{name}':"))?;
    Some(rest.split(',').next()?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        for (dtype, shape) in [
            (DType::F32, vec![2, 3]),
            (DType::BF16, vec![6]),
            (DType::I64, vec![]),
        ] {
            let count: i64 = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|i| i as f64 - 2.0).collect();
            let tensor = HostTensor::from_f64(dtype, &shape, &values).unwrap();
            write(&path, &tensor).unwrap();
            assert_eq!(
                std::fs::metadata(&path).unwrap().len() as usize % 64,
                tensor.data.len() % 64
            );
            assert_eq!(read(&path, dtype).unwrap(), tensor);
        }
        assert!(read(&path, DType::F32).is_err());
    }

    #[test]
    fn broken_files_are_errors() {
        let good = {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.npy");
            write(
                &path,
                &HostTensor::from_f64(DType::F32, &[2], &[1.0, 2.0]).unwrap(),
            )
            .unwrap();
            std::fs::read(path).unwrap()
        };
        for cut in 0..good.len() {
            assert!(parse(&good[..cut], DType::F32).is_err(), "cut at {cut}");
        }
        let absurd =
            String::from_utf8_lossy(&good[10..]).replace("(2,)", "(99999999999999999999,)");
        let mut bytes = good[..10].to_vec();
        bytes.extend(absurd.as_bytes());
        assert!(parse(&bytes, DType::F32).is_err());
    }
}
