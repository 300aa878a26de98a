//! Files that were changed at random: read, or refused with a code and a sentence.

use crate::changes;
use oxyfuel::{Code, DType, Error, Tensor, io};
use oxyfuel_testkit::damage::damaged;
use proptest::prelude::*;
use std::path::Path;
use std::sync::OnceLock;

/// The bytes of a good file, made once.
fn good(kind: usize) -> &'static [u8] {
    static FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let read = |path: &Path| std::fs::read(path).unwrap();
        let (x, y) = (
            Tensor::randn(&[3, 4], DType::F32, 0),
            Tensor::randint(0, 9, &[2, 0, 3], DType::I64, 1),
        );
        let half = x.to(DType::BF16);
        io::write_safetensors(&path, [("a.weight", &x), ("b", &half), ("c", &y)]).unwrap();
        let safetensors = read(&path);
        io::write_npy(&path, &x).unwrap();
        let npy = read(&path);
        let text = String::from_utf8_lossy(&npy[..128]).replace("False", "True ");
        assert!(text.contains("True "));
        let at = npy.windows(5).position(|part| part == b"False").unwrap();
        let mut fortran = npy.clone();
        fortran[at..at + 5].copy_from_slice(b"True ");
        vec![safetensors, npy, fortran]
    };
    &FILES.get_or_init(make)[kind]
}

fn is_refused(error: &Error) {
    assert!(error.help.is_some(), "{error}");
    assert!(error.code != Code::Internal, "{error}");
}

fn read(path: &Path, kind: usize) {
    let result = match kind {
        0 => io::read_safetensors(path).map(drop),
        _ => io::read_npy(path).map(drop),
    };
    if let Err(error) = result {
        is_refused(&error);
    }
    if kind > 0
        && let Err(error) = io::read_npy_as(path, DType::BF16)
    {
        is_refused(&error);
    }
}

#[test]
fn good_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, good(0)).unwrap();
    assert_eq!(io::read_safetensors(&path).unwrap().len(), 3);
    for kind in [1, 2] {
        std::fs::write(&path, good(kind)).unwrap();
        assert_eq!(io::read_npy(&path).unwrap().shape(), [3, 4]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_file_panics(kind in 0usize..3, changes in changes(4)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), damaged(good(kind), &changes)).unwrap();
        read(file.path(), kind);
    }

    /// Headers of safetensors files with other words, which bytes changed at random rarely are.
    #[test]
    fn no_header_panics(
        dtype in prop::sample::select(vec!["F32", "BF16", "I64", "BOOL", "F8_E4M3", "U128", ""]),
        shape in prop::collection::vec(prop_oneof![-2i64..5, Just(i64::MAX), Just(1 << 40)], 0..4),
        offsets in prop::collection::vec(prop_oneof![0i64..64, Just(-1), Just(i64::MAX)], 0..4),
        length in prop_oneof![0u64..400, Just(u64::MAX), Just(1 << 62)],
        (told, data) in (any::<bool>(), 0usize..64),
    ) {
        let text = format!(
            "{{\"x\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":{offsets:?}}}}}"
        );
        let length = if told { text.len() as u64 } else { length };
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.extend(vec![0; data]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        read(file.path(), 0);
    }
}
