//! Functions in files: what is saved is what is loaded, and a file that is not as it should be is an error.

use oxyfuel::{Code, Compiled, DType, Options, Tensor, compile, load};
use std::path::{Path, PathBuf};

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("oxyfuel-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("f.oxy")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options() -> Options {
    Options {
        cache_dir: None,
        ..Options::default()
    }
}

fn loaded(file: &Path) -> Compiled {
    load(file, options()).unwrap()
}

fn randn(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

fn same(a: &[Tensor], b: &[Tensor]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.shape(), b.shape());
        assert_eq!(a.to_bytes().unwrap(), b.to_bytes().unwrap());
    }
}

/// A layer with a weight that lies transposed in memory and a bias in half precision.
fn layer() -> Compiled {
    let (w, b) = (randn(&[3, 8], 1).t(), randn(&[3], 2).to(DType::BF16));
    compile(
        move |x: &Tensor| (x.matmul(&w) + b.to(DType::F32)).relu(),
        options(),
    )
    .unwrap()
}

#[test]
fn a_function_and_what_it_captured() {
    let folder = Folder::new("captured");
    let (f, x) = (layer(), randn(&[4, 8], 0));
    f.save(folder.file(), &[&x]).unwrap();
    let g = loaded(&folder.file());
    same(&f.call(&[&x]).unwrap(), &g.call(&[&x]).unwrap());
    // Arguments may lie as they like.
    let turned = randn(&[8, 4], 3).t();
    same(&f.call(&[&turned]).unwrap(), &g.call(&[&turned]).unwrap());
    assert_eq!(g.name(), f.name());
    let error = g.call(&[&x, &x]).unwrap_err();
    assert_eq!(error.code, Code::ArityMismatch);
    let error = g.call(&[&randn(&[5, 8], 0)]).unwrap_err();
    assert_eq!(error.code, Code::ShapeMismatch);
    // A file is one of safetensors, which others can look into.
    let tensors = oxyfuel::io::read_safetensors(folder.file()).unwrap();
    assert_eq!(tensors.len(), 2);
}

#[test]
fn captured_tensors_of_every_layout() {
    let folder = Folder::new("layouts");
    let wide = randn(&[6, 5], 1);
    let captured = [
        randn(&[4, 3, 2], 2).permute(&[2, 0, 1]),
        wide.narrow(1, 1, 4).narrow(0, 0, 2).reshape(&[2, 4, 1]),
        randn(&[1, 4, 1], 3).permute(&[2, 1, 0]),
        randn(&[2, 1, 3], 4).expand(&[2, 4, 3]),
    ];
    let sum = move |x: &Tensor| captured.iter().fold(x.clone(), |sum, tensor| sum + tensor);
    let (f, x) = (compile(sum, options()).unwrap(), randn(&[2, 4, 3], 0));
    f.save(folder.file(), &[&x]).unwrap();
    same(
        &f.call(&[&x]).unwrap(),
        &loaded(&folder.file()).call(&[&x]).unwrap(),
    );
}

#[test]
fn results_that_are_views() {
    let folder = Folder::new("views");
    let f = compile(|x: &Tensor| (x.t(), (x + 1.0).t(), x.clone()), options()).unwrap();
    let x = randn(&[4, 8], 0);
    f.save(folder.file(), &[&x]).unwrap();
    let g = loaded(&folder.file());
    same(&f.call(&[&x]).unwrap(), &g.call(&[&x]).unwrap());
}

#[test]
fn sizes_that_changed_are_symbols() {
    let folder = Folder::new("sizes");
    let f = layer();
    for rows in [4, 7, 9] {
        f.call(&[&randn(&[rows, 8], 0)]).unwrap();
    }
    f.save(folder.file(), &[&randn(&[9, 8], 0)]).unwrap();
    let g = loaded(&folder.file());
    for rows in [2, 7, 33] {
        let x = randn(&[rows, 8], 5);
        same(&f.call(&[&x]).unwrap(), &g.call(&[&x]).unwrap());
    }
    assert_eq!(g.explain().variants.len(), 1);
    // What was loaded can be saved again.
    let text = std::fs::read(folder.file()).unwrap();
    g.save(folder.file(), &[&randn(&[9, 8], 0)]).unwrap();
    assert_eq!(text, std::fs::read(folder.file()).unwrap());
}

#[test]
fn what_writes_to_its_arguments_is_refused() {
    let folder = Folder::new("writes");
    let f = compile(
        |x: &Tensor| {
            let mut x = x.clone();
            x.add_(1.0)?;
            oxyfuel::Result::Ok(x * 2.0)
        },
        options(),
    )
    .unwrap();
    let error = f.save(folder.file(), &[&randn(&[4], 0)]).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert!(error.to_string().contains("writes to an input"), "{error}");
    assert!(!folder.file().exists());
}

#[test]
fn a_file_that_is_none() {
    let folder = Folder::new("none");
    let code = |file: &Path| load(file, options()).unwrap_err().code;
    assert_eq!(code(&folder.file()), Code::FileNotFound);
    let x = randn(&[2], 0);
    oxyfuel::io::write_safetensors(folder.file(), [("0", &x)]).unwrap();
    assert_eq!(code(&folder.file()), Code::FileMalformed);
    std::fs::write(folder.file(), b"graph @f() {}").unwrap();
    assert_eq!(code(&folder.file()), Code::FileMalformed);
}

#[test]
fn every_damage_is_an_error() {
    let folder = Folder::new("damage");
    let x = randn(&[4, 8], 0);
    layer().save(folder.file(), &[&x]).unwrap();
    let good = std::fs::read(folder.file()).unwrap();
    let fails = |bytes: &[u8], what: &str| {
        std::fs::write(folder.file(), bytes).unwrap();
        let error = load(folder.file(), options()).unwrap_err();
        assert_ne!(error.code, Code::Internal, "{what}: {error}");
    };
    for end in (0..good.len()).step_by(13) {
        fails(&good[..end], &format!("cut at {end}"));
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        // Spaces at the header's end may be any white space.
        if good[at] != b' ' {
            fails(&bad, &format!("byte {at}"));
        }
    }
}

#[test]
fn another_version_is_named() {
    let folder = Folder::new("version");
    let x = randn(&[4, 8], 0);
    layer().save(folder.file(), &[&x]).unwrap();
    let good = std::fs::read(folder.file()).unwrap();
    let key = br#""oxyfuel":"1""#;
    let at = good.windows(key.len()).position(|w| w == key).unwrap();
    let mut other = good.clone();
    other[at + key.len() - 2] = b'9';
    std::fs::write(folder.file(), other).unwrap();
    let error = load(folder.file(), options()).unwrap_err();
    assert_eq!(error.code, Code::UnsupportedVersion);
    assert!(error.to_string().contains("format 9"), "{error}");
}
