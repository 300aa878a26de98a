//! NumPy's `.npy` files: a header of text and dense elements.

use super::{malformed, read, tensor, write};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result, err};
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's names. The first dtype of a name is what it is read as; bf16 and fp8 have none, and are words of their size.
const DTYPES: &[(&str, DType)] = &[
    ("<f8", DType::F64),
    ("<f4", DType::F32),
    ("<f2", DType::F16),
    ("<u2", DType::U16),
    ("<u2", DType::BF16),
    ("|b1", DType::Bool),
    ("|i1", DType::I8),
    ("<i2", DType::I16),
    ("<i4", DType::I32),
    ("<i8", DType::I64),
    ("<u4", DType::U32),
    ("<u8", DType::U64),
    ("|u1", DType::U8),
    ("|u1", DType::F8E4M3),
    ("|u1", DType::F8E5M2),
    ("|u1", DType::E8M0),
    ("|u1", DType::F4E2M1),
];

/// Writes a tensor; formats that NumPy has no name for as words of their size.
pub fn write_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    let data = tensor.to_bytes()?;
    let found = DTYPES.iter().find(|(_, dtype)| *dtype == tensor.dtype());
    let (descr, _) = found.ok_or_else(|| {
        err!(UnsupportedDType, "a .npy file has no {}", tensor.dtype()).help("cast it with to()")
    })?;
    let shape: Vec<String> = tensor.shape().iter().map(|n| format!("{n},")).collect();
    let shape = shape.join(" ");
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Magic, version, length and header together are a multiple of 64 bytes and end in a newline.
    while !(MAGIC.len() + 4 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(|_| {
        err!(
            TooLarge,
            "a tensor of {} dims in a .npy file",
            tensor.rank()
        )
        .help("reshape it")
    })?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend(length.to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    write(path.as_ref(), &bytes)
}

/// Reads a tensor, in the dtype that its name in the file says; one in Fortran's order becomes row-major.
pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor> {
    let path = path.as_ref();
    parse(path, &read(path)?, None)
}

/// Reads a tensor whose words are elements of this dtype, such as bf16 kept as `uint16`.
pub fn read_npy_as(path: impl AsRef<Path>, dtype: DType) -> Result<Tensor> {
    let path = path.as_ref();
    parse(path, &read(path)?, Some(dtype))
}

fn parse(path: &Path, bytes: &[u8], wanted: Option<DType>) -> Result<Tensor> {
    let bad = |what: &str| malformed(path, what);
    let rest = bytes.strip_prefix(MAGIC);
    let rest = rest.ok_or_else(|| bad("it does not begin as a .npy file"))?;
    let (length, rest) = match rest {
        [1, 0, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, 0, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err(bad("a version that is not known, or cut short")),
    };
    let header = rest.split_at_checked(length);
    let (header, data) = header.ok_or_else(|| bad("cut short inside of its header"))?;
    let header = std::str::from_utf8(header).map_err(|_| bad("its header is no text"))?;
    let descr = field(header, "descr").ok_or_else(|| bad("its header has no descr"))?;
    let descr = descr.trim_matches(['\'', '"']);
    let fits = |(name, dtype): &&(&str, DType)| {
        *name == descr && wanted.is_none_or(|wanted| wanted == *dtype)
    };
    let Some((_, dtype)) = DTYPES.iter().find(fits) else {
        let known = DTYPES.iter().any(|(name, _)| *name == descr);
        return Err(match (wanted, known) {
            (Some(wanted), true) => err!(
                DTypeMismatch,
                "{}: its elements are {descr}, not {wanted}",
                path.display()
            )
            .help("read it as it is with read_npy, and cast it with to()"),
            (Some(_) | None, _) => err!(
                UnsupportedDType,
                "{}: its elements are {descr}",
                path.display()
            )
            .help("save it with numpy's astype in a dtype of little-endian numbers"),
        });
    };
    let fortran = match field(header, "fortran_order") {
        Some("False") => false,
        Some("True") => true,
        Some(_) | None => return Err(bad("its header does not say its order")),
    };
    let shape = header
        .split_once("'shape':")
        .and_then(|(_, rest)| rest.split_once('('))
        .and_then(|(_, rest)| rest.split_once(')'))
        .ok_or_else(|| bad("its header has no shape"))?
        .0;
    let sizes = shape.split(',').map(str::trim).filter(|n| !n.is_empty());
    let shape = sizes
        .map(|n| {
            n.parse()
                .map_err(|_| bad("its shape is no list of numbers"))
        })
        .collect::<Result<Vec<i64>>>()?;
    if !fortran {
        return tensor(path, data, *dtype, &shape);
    }
    let reversed: Vec<i64> = shape.iter().rev().copied().collect();
    // Whether the numbers of elements and bytes agree, before they are moved.
    tensor(path, data, *dtype, &reversed)?;
    tensor(path, &row_major(data, dtype.size(), &shape), *dtype, &shape)
}

/// Elements whose first dim moves fastest, in the order where the last one does. The shape fits the bytes.
fn row_major(bytes: &[u8], size: usize, shape: &[i64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0i64; shape.len()];
    while out.len() < bytes.len() {
        let dims = index.iter().zip(shape).rev();
        let at = dims.fold(0, |at, (i, extent)| at * extent + i) as usize;
        out.extend_from_slice(&bytes[at * size..][..size]);
        for (i, extent) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *extent {
                break;
            }
            *i = 0;
        }
    }
    out
}

/// The text of a field up to the next comma.
fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{name}':"))?;
    Some(rest.split(',').next()?.trim())
}
