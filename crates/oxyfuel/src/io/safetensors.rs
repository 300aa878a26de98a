//! The safetensors format: the length of a header, the header as JSON, then all elements.
//!
//! `{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {…}}`. The elements of the tensors lie one after another and fill the file: no overlap, no hole.

use super::{malformed, read, tensor, write};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result, err};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The format's names.
const DTYPES: &[(&str, DType)] = &[
    ("F64", DType::F64),
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("I64", DType::I64),
    ("I32", DType::I32),
    ("I16", DType::I16),
    ("I8", DType::I8),
    ("U64", DType::U64),
    ("U32", DType::U32),
    ("U16", DType::U16),
    ("U8", DType::U8),
    ("BOOL", DType::Bool),
    ("F8_E4M3", DType::F8E4M3),
    ("F8_E5M2", DType::F8E5M2),
    ("F8_E8M0", DType::E8M0),
];

/// A header longer than this is no header.
const MAX_HEADER: u64 = 100 << 20;

/// Where a header has what is no tensor: text under names.
const METADATA: &str = "__metadata__";

/// What a file holds.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub tensors: BTreeMap<String, Tensor>,
    /// What stands there beside them.
    pub metadata: BTreeMap<String, String>,
}

/// Reads all tensors of a file.
pub fn read_safetensors(path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    Ok(parse(path, &read(path)?)?.tensors)
}

pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Contents> {
    let (length, rest) = bytes
        .split_first_chunk::<8>()
        .ok_or_else(|| malformed(path, "shorter than the length of a header"))?;
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(malformed(path, format!("a header of {length} bytes")));
    }
    let (header, data) = rest
        .split_at_checked(length as usize)
        .ok_or_else(|| malformed(path, "cut short inside of its header"))?;
    let header: Map<String, Value> = serde_json::from_slice(header)
        .map_err(|error| malformed(path, format!("its header is no JSON object: {error}")))?;
    let mut out = Contents::default();
    let mut ranges = Vec::new();
    for (name, entry) in header {
        if name == METADATA {
            out.metadata = serde_json::from_value(entry)
                .map_err(|error| malformed(path, format!("its metadata is no text: {error}")))?;
            continue;
        }
        let bad = |what: &str| malformed(path, format!("tensor `{name}`: {what}"));
        let dtype = entry["dtype"].as_str().ok_or_else(|| bad("no dtype"))?;
        let known = DTYPES.iter().find(|(known, _)| *known == dtype);
        let Some((_, dtype)) = known else {
            return Err(err!(
                UnsupportedDType,
                "{}: tensor `{name}` is of {dtype}",
                path.display()
            )
            .help("convert it to one of f64, f32, f16, bf16, fp8, integers or bool"));
        };
        let shape = entry["shape"].as_array().ok_or_else(|| bad("no shape"))?;
        let shape: Option<Vec<i64>> = shape.iter().map(Value::as_i64).collect();
        let shape = shape.ok_or_else(|| bad("its shape is no list of integers"))?;
        let offsets = entry["data_offsets"].as_array();
        let offsets =
            offsets.map(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
        let Some(Some([begin, end])) = offsets.as_ref().map(|list| list.as_deref()) else {
            return Err(bad("its data_offsets are not two integers"));
        };
        let range = usize::try_from(*begin).ok().zip(usize::try_from(*end).ok());
        let elements = range.and_then(|(begin, end)| data.get(begin..end));
        let elements =
            elements.ok_or_else(|| bad("its elements lie beyond the end of the file"))?;
        ranges.push((*begin, *end));
        let made = tensor(path, elements, *dtype, &shape);
        out.tensors.insert(
            name.clone(),
            made.map_err(|error| error.context(format!("tensor `{name}`")))?,
        );
    }
    ranges.sort_unstable();
    let mut at = 0;
    for (begin, end) in ranges {
        if begin != at {
            return Err(malformed(path, "its tensors overlap or leave a hole"));
        }
        at = end;
    }
    match at == data.len() as u64 {
        true => Ok(out),
        false => Err(malformed(path, "bytes behind its last tensor")),
    }
}

/// Writes tensors under their names, in this order; names must differ.
pub fn write_safetensors<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    write(path.as_ref(), &bytes_of(tensors, &BTreeMap::new())?)
}

/// The bytes of a file.
pub(crate) fn bytes_of<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    if !metadata.is_empty() {
        header.insert(METADATA.to_owned(), json!(metadata));
    }
    for (name, tensor) in tensors {
        let bytes = tensor
            .to_bytes()
            .map_err(|error| error.context(format!("tensor `{name}`")))?;
        let dtype = DTYPES.iter().find(|(_, known)| *known == tensor.dtype());
        let (dtype, _) = dtype.ok_or_else(|| {
            err!(
                UnsupportedDType,
                "tensor `{name}`: the format has no {}",
                tensor.dtype()
            )
            .help("cast it with to()")
        })?;
        let begin = data.len();
        data.extend(bytes);
        let entry =
            json!({"dtype": dtype, "shape": tensor.shape(), "data_offsets": [begin, data.len()]});
        if name == METADATA || header.insert(name.to_owned(), entry).is_some() {
            return Err(err!(
                DuplicateName,
                "tensor `{name}`: a name that is taken already"
            )
            .help("give every tensor a name of its own"));
        }
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // Elements begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    Ok(bytes)
}
