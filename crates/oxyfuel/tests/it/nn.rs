//! Layers against formulas written out, compiled and eager, and weights in files.

use oxyfuel::nn::{
    Activation, AvgPool2d, BatchNorm, Dropout, Embedding, Flatten, GroupNorm, LayerNorm, Linear,
    MaxPool2d, Module, MultiHeadAttention, RmsNorm, Sequential,
};
use oxyfuel::{Code, DType, Error, Options, Tensor, Tensors, io, jit, nn, structure};
use std::path::PathBuf;

fn randn(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

fn close(name: &str, a: &Tensor, b: &[f64]) {
    let a = a.to_f64().unwrap();
    assert_eq!(a.len(), b.len(), "{name}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 2e-5 * b.abs().max(1.0), "{name}: {a} {b}");
    }
}

/// Eager and compiled, at two lengths, give what the formula does.
fn check<M: Module + Send + Sync + 'static>(
    name: &str,
    module: M,
    inputs: &[Tensor],
    formula: &dyn Fn(&M, &Tensor) -> Vec<f64>,
) {
    let f = jit(|m: &M, x: &Tensor| m.forward(x), Options::default()).unwrap();
    for x in inputs {
        let expected = formula(&module, x);
        close(name, &module.forward(x), &expected);
        close(name, &f.call((&module, x)).unwrap(), &expected);
    }
    assert!(f.explain().variants.len() <= 2, "{name}: {}", f.explain());
}

fn at(x: &Tensor) -> Vec<f64> {
    x.to_f64().unwrap()
}

/// Mean, variance and normalised elements of a list.
fn normalised(x: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    x.iter().map(|x| (x - mean) / (var + eps).sqrt()).collect()
}

#[test]
fn layers_are_their_formulas() {
    let rows = [randn(&[3, 6], 0), randn(&[5, 6], 1), randn(&[9, 6], 2)];
    check(
        "linear",
        Linear::new(6, 4, true, DType::F32, 3),
        &rows,
        &|m, x| {
            let (w, b, x) = (at(&m.weight), at(m.bias.as_ref().unwrap()), at(x));
            let row = |x: &[f64], j: usize| -> f64 {
                let product: f64 = (0..6).map(|k| x[k] * w[j * 6 + k]).sum();
                product + b[j]
            };
            x.chunks(6)
                .flat_map(|x| (0..4).map(move |j| (x, j)))
                .map(|(x, j)| row(x, j))
                .collect()
        },
    );
    check(
        "layer norm",
        LayerNorm::new(&[6], DType::F32),
        &rows,
        &|m, x| at(x).chunks(6).flat_map(|x| normalised(x, m.eps)).collect(),
    );
    check(
        "rms norm",
        RmsNorm::new(&[6], DType::F32),
        &rows,
        &|m, x| {
            let scale =
                |x: &[f64]| 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / 6.0 + m.eps).sqrt();
            at(x)
                .chunks(6)
                .flat_map(|x| x.iter().map(|v| v * scale(x)).collect::<Vec<_>>())
                .collect()
        },
    );
    let images = [
        randn(&[2, 4, 3], 0),
        randn(&[5, 4, 3], 1),
        randn(&[3, 4, 3], 1),
    ];
    check(
        "group norm",
        GroupNorm::new(2, 4, DType::F32),
        &images,
        &|m, x| at(x).chunks(6).flat_map(|x| normalised(x, m.eps)).collect(),
    );
    let mut norm = BatchNorm::new(4, DType::F32);
    norm.running_mean = randn(&[4], 5);
    check("batch norm", norm, &images, &|m, x| {
        let mean = at(&m.running_mean);
        let x = at(x).into_iter().enumerate();
        x.map(|(i, x)| (x - mean[i / 3 % 4]) / (1.0 + m.eps).sqrt())
            .collect()
    });
    let tokens = [2, 4, 7].map(|n| Tensor::randint(0, 9, &[n], DType::I64, 3));
    check(
        "embedding",
        Embedding::new(9, 3, DType::F32, 1),
        &tokens,
        &|m, x| {
            let table = at(&m.weight);
            at(x)
                .iter()
                .flat_map(|&i| table[i as usize * 3..][..3].to_vec())
                .collect()
        },
    );
    check("relu", Activation::Relu, &rows, &|_, x| {
        at(x).into_iter().map(|x| x.max(0.0)).collect()
    });
}

#[test]
fn attention_is_its_formula() {
    for causal in [false, true] {
        let mut attention = MultiHeadAttention::new(4, 2, DType::F32, 7);
        attention.causal = causal;
        attention.in_proj_bias = Some(randn(&[12], 8));
        let inputs = [
            randn(&[2, 3, 4], 0),
            randn(&[4, 5, 4], 1),
            randn(&[3, 6, 4], 2),
        ];
        check("attention", attention, &inputs, &|m, x| {
            let [batch, length, _] = x.dims().unwrap();
            let (batch, length, x) = (batch as usize, length as usize, at(x));
            let (w, b) = (at(&m.in_proj_weight), at(m.in_proj_bias.as_ref().unwrap()));
            let (wo, bo) = (
                at(&m.out_proj.weight),
                at(m.out_proj.bias.as_ref().unwrap()),
            );
            let map = |w: &[f64], b: &[f64], x: &[f64]| -> Vec<f64> {
                let rows = w.chunks(4).zip(b);
                rows.map(|(w, b)| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + b)
                    .collect()
            };
            let mut out = Vec::new();
            for n in 0..batch {
                let rows: Vec<Vec<f64>> = (0..length)
                    .map(|t| map(&w, &b, &x[(n * length + t) * 4..][..4]))
                    .collect();
                for t in 0..length {
                    let mut heads = Vec::new();
                    for h in 0..2 {
                        let part = |t: usize, what: usize| &rows[t][what * 4 + h * 2..][..2];
                        let dot = |a: &[f64], b: &[f64]| a[0] * b[0] + a[1] * b[1];
                        let last = if causal { t + 1 } else { length };
                        let e: Vec<f64> = (0..last)
                            .map(|s| (dot(part(t, 0), part(s, 1)) / 2f64.sqrt()).exp())
                            .collect();
                        let total: f64 = e.iter().sum();
                        for d in 0..2 {
                            heads.push((0..last).map(|s| e[s] / total * part(s, 2)[d]).sum());
                        }
                    }
                    out.extend(map(&wo, &bo, &heads));
                }
            }
            out
        });
    }
}

#[test]
fn a_mask_hides_keys() {
    let attention = MultiHeadAttention::new(4, 2, DType::F32, 7);
    let (x, short) = (randn(&[1, 5, 4], 0), randn(&[1, 5, 4], 0).slice(1, 0, 3, 1));
    let mask = Tensor::from_slice(&[true, true, true, false, false], &[5]);
    let masked = attention.attend(&short, &x, &x, Some(&mask));
    let cut = attention.attend(&short, &short, &short, None);
    close("mask", &masked, &at(&cut));
}

/// Both together are the mask where the past is, and nothing later.
#[test]
fn a_mask_of_a_causal_attention() {
    let mut attention = MultiHeadAttention::new(4, 2, DType::F32, 7);
    let x = randn(&[2, 5, 4], 0);
    let mask = Tensor::from_slice(&[true, false, true, true, false], &[5]);
    let past: Vec<bool> = (0..25).map(|i| i % 5 <= i / 5).collect();
    let both = Tensor::from_slice(&past, &[5, 5]).logical_and(&mask);
    let whole = attention.attend(&x, &x, &x, Some(&both));
    attention.causal = true;
    let ours = attention.attend(&x, &x, &x, Some(&mask));
    close("mask and past", &ours, &at(&whole));
    let f = jit(
        |m: &MultiHeadAttention, x: &Tensor, mask: &Tensor| m.attend(x, x, x, Some(mask)),
        Options::default(),
    );
    let compiled = f.unwrap().call((&attention, &x, &mask)).unwrap();
    close("compiled", &compiled, &at(&whole));
}

/// The scores are no tensor of their own where the kernel of attention serves.
#[test]
fn attention_is_one_operation() {
    let attention = MultiHeadAttention::new(8, 2, DType::F32, 7);
    let f = jit(
        |m: &MultiHeadAttention, x: &Tensor| m.forward(x),
        Options::default(),
    );
    let f = f.unwrap();
    f.call((&attention, &randn(&[1, 16, 8], 0))).unwrap();
    let report = f.explain();
    let ops = |k: &oxyfuel::KernelReport| k.ops.iter().any(|op| op == "sdpa");
    assert!(report.variants[0].kernels.iter().any(ops), "{report}");
}

/// What PyTorch's `state_dict()` of a BatchNorm2d holds.
#[test]
fn a_checkpoint_of_batch_norm_fits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bn.safetensors");
    let names = ["bias", "running_mean", "running_var", "weight"];
    let vectors = names.map(|name| (name, randn(&[3], name.len() as u64)));
    let count = Tensor::full(&[], 17, DType::I64);
    let all = vectors.iter().map(|(name, tensor)| (*name, tensor));
    io::write_safetensors(&path, all.chain([("num_batches_tracked", &count)])).unwrap();
    let norm = BatchNorm::new(3, DType::F32);
    nn::load(&norm, &path).unwrap();
    assert_eq!(at(&norm.num_batches_tracked), [17.0]);
    assert_eq!(at(&norm.running_mean), at(&vectors[1].1));
}

#[test]
fn dropout_draws_anew_and_has_no_parameters() {
    let mut dropout = Dropout::new(0.25, 3);
    assert!(structure::names(&dropout).is_empty());
    let x = Tensor::ones(&[64, 64], DType::F32);
    let f = jit(|d: &Dropout, x: &Tensor| d.forward(x), Options::default()).unwrap();
    assert_eq!(at(&f.call((&dropout, &x)).unwrap()), at(&x));
    dropout.training = true;
    let draws = [
        f.call((&dropout, &x)).unwrap(),
        f.call((&dropout, &x)).unwrap(),
        dropout.forward(&x),
    ];
    let mut seen = Vec::new();
    for draw in &draws {
        let values = at(draw);
        let kept = values.iter().filter(|&&v| v != 0.0).count() as f64 / values.len() as f64;
        assert!((kept - 0.75).abs() < 0.03, "{kept}");
        assert!(
            values
                .iter()
                .all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6)
        );
        assert!(!seen.contains(&values), "the same elements twice");
        seen.push(values);
    }
    assert_eq!(f.explain().variants.len(), 2);
}

#[test]
fn images_become_rows() {
    let model = Sequential::new()
        .with(MaxPool2d::new([2, 2]))
        .with(AvgPool2d::new([2, 1]))
        .with(Flatten::default());
    let x = randn(&[2, 3, 8, 4], 0);
    let pooled = x.max_pool2d([2, 2], [2, 2], [0, 0], [1, 1]);
    let expected = pooled.avg_pool2d([2, 1], [2, 1], [0, 0]).reshape(&[2, 12]);
    let f = jit(
        |m: &Sequential, x: &Tensor| m.forward(x),
        Options::default(),
    )
    .unwrap();
    close("images", &f.call((&model, &x)).unwrap(), &at(&expected));
}

#[test]
fn absurd_widths_are_errors() {
    for width in [i64::MAX, i64::MAX / 3, 1 << 40, -1] {
        let attention = MultiHeadAttention::new(width, 2, DType::F32, 0);
        assert!(attention.in_proj_weight.check().is_err(), "{width}");
    }
}

#[test]
fn arrays_in_fortran_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.npy");
    let write = |shape: &str, data: &[u8]| {
        let header = format!("{{'descr': '<i2', 'fortran_order': True, 'shape': ({shape}), }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        std::fs::write(&path, bytes).unwrap();
        io::read_npy(&path)
    };
    let data: Vec<u8> = (0..24i16).flat_map(i16::to_le_bytes).collect();
    let x = write("2, 3, 4", &data).unwrap();
    let expected = Tensor::arange(0, 24, 1, DType::I16).reshape(&[4, 3, 2]);
    assert_eq!(x.shape(), [2, 3, 4]);
    assert!(x.is_contiguous());
    assert_eq!(at(&x), at(&expected.permute(&[2, 1, 0])));
    assert_eq!(at(&write("24,", &data).unwrap()), at(&expected.flatten()));
    assert_eq!(at(&write("", &data[..2]).unwrap()), [0.0]);
    assert_eq!(write("0, 3", &[]).unwrap().shape(), [0, 3]);
    for (shape, data) in [
        ("2, 3", &data[..]),
        ("-1, 3", &[]),
        ("9223372036854775807, 2", &data),
    ] {
        expect(
            write(shape, data).unwrap_err(),
            Code::FileMalformed,
            "f.npy",
        );
    }
}

#[test]
fn batch_norm_in_training_keeps_statistics() {
    let (a, mut b) = (BatchNorm::new(3, DType::F32), BatchNorm::new(3, DType::F32));
    b.training = true;
    let mut a = a;
    a.training = true;
    let f = jit(|m: &BatchNorm, x: &Tensor| m.forward(x), Options::default()).unwrap();
    for seed in 0..3 {
        let x = randn(&[8, 3, 2], seed) * 3.0 + 1.0;
        close("training", &f.call((&a, &x)).unwrap(), &at(&b.forward(&x)));
        close("mean", &a.running_mean, &at(&b.running_mean));
        close("variance", &a.running_var, &at(&b.running_var));
    }
    assert_eq!(at(&a.num_batches_tracked), [3.0]);
    assert_eq!(at(&b.num_batches_tracked), [3.0]);
    assert!(
        at(&a.running_var).iter().all(|v| *v > 1.5),
        "{:?}",
        at(&a.running_var)
    );
}

#[derive(Tensors)]
struct Model {
    body: Sequential,
    head: Linear,
}

fn model(seed: u64) -> Model {
    Model {
        body: Sequential::new()
            .with(Linear::new(3, 5, true, DType::F32, seed))
            .with(Activation::Gelu)
            .with(LayerNorm::new(&[5], DType::F32)),
        head: Linear::new(5, 2, false, DType::F32, seed + 9),
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn weights_go_to_a_file_and_come_back() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let (a, b) = (model(1), model(2));
    let held = b.head.weight.clone();
    nn::save(&a, &path).unwrap();
    nn::load(&b, &path).unwrap();
    for ((name, a), (_, b)) in structure::named(&a).into_iter().zip(structure::named(&b)) {
        assert_eq!(
            a.to_vec::<f32>().unwrap(),
            b.to_vec::<f32>().unwrap(),
            "{name}"
        );
    }
    // The memory of the model is written, not replaced.
    assert_eq!(
        held.to_vec::<f32>().unwrap(),
        a.head.weight.to_vec::<f32>().unwrap()
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn every_dtype_goes_to_files() {
    let folder = folder();
    for dtype in DType::ALL.iter().copied().filter(|d| *d != DType::F4E2M1) {
        let x = Tensor::randint(0, 2, &[2, 3], DType::I64, 0).to(dtype);
        let x = x.try_ok().unwrap_or_else(|e| panic!("{dtype}: {e}"));
        let path = folder.path().join(format!("{dtype}.safetensors"));
        io::write_safetensors(&path, [("x", &x), ("empty", &x.slice(0, 0, 0, 1))]).unwrap();
        let back = io::read_safetensors(&path).unwrap();
        assert_eq!((back["x"].dtype(), back["x"].shape()), (dtype, x.shape()));
        assert_eq!(back["x"].to_bytes().unwrap(), x.to_bytes().unwrap());
        assert_eq!(back["empty"].shape(), [0, 3]);
        let path = folder.path().join(format!("{dtype}.npy"));
        io::write_npy(&path, &x.t()).unwrap();
        let back = io::read_npy_as(&path, dtype).unwrap();
        assert_eq!(
            back.to_bytes().unwrap(),
            x.t().contiguous().to_bytes().unwrap()
        );
        assert!(io::read_npy(&path).is_ok());
    }
}

fn expect(error: Error, code: Code, part: &str) {
    assert_eq!(error.code, code, "{error}");
    assert!(error.to_string().contains(part), "{part} is not in {error}");
    assert!(error.help.is_some(), "{error}");
}

#[test]
fn what_does_not_fit_is_said_and_nothing_is_written() {
    let folder = folder();
    let path = folder.path().join("m.safetensors");
    let m = model(1);
    let before = at(&m.head.weight);
    let mut all: Vec<(String, Tensor)> = structure::named(&m)
        .into_iter()
        .map(|(name, tensor)| (name, tensor * 2.0))
        .collect();
    let write = |all: &[(String, Tensor)]| {
        io::write_safetensors(&path, all.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
    };
    let right = all.clone();
    all.push(("body.7.weight".to_owned(), Tensor::ones(&[1], DType::F32)));
    write(&all);
    expect(
        nn::load(&m, &path).unwrap_err(),
        Code::UnexpectedTensor,
        "body.7.weight",
    );
    all = right[1..].to_vec();
    write(&all);
    expect(
        nn::load(&m, &path).unwrap_err(),
        Code::MissingTensor,
        "body.0.weight",
    );
    all = right.clone();
    all[4].1 = all[4].1.to(DType::F64);
    write(&all);
    expect(
        nn::load(&m, &path).unwrap_err(),
        Code::DTypeMismatch,
        "head.weight",
    );
    all[4].1 = right[4].1.t();
    write(&all);
    expect(
        nn::load(&m, &path).unwrap_err(),
        Code::ShapeMismatch,
        "head.weight",
    );
    assert_eq!(at(&m.head.weight), before);
    all = right[1..].to_vec();
    all.push(("other".to_owned(), Tensor::ones(&[1], DType::F32)));
    write(&all);
    let difference = nn::load_partial(&m, &path).unwrap();
    assert_eq!(difference.missing, ["body.0.weight"]);
    assert_eq!(difference.unexpected, ["other"]);
    assert_ne!(at(&m.head.weight), before);
    let nowhere = PathBuf::from("/nowhere/at/all.safetensors");
    expect(
        nn::load(&m, &nowhere).unwrap_err(),
        Code::FileNotFound,
        "/nowhere",
    );
    expect(
        nn::save(&m, &nowhere).unwrap_err(),
        Code::FileNotFound,
        "/nowhere",
    );
    let x = Tensor::ones(&[1], DType::F32);
    let twice = io::write_safetensors(&path, [("x", &x), ("x", &x)]).unwrap_err();
    expect(twice, Code::DuplicateName, "x");
}

#[test]
fn damaged_files_are_errors() {
    let folder = folder();
    let (path, npy) = (
        folder.path().join("m.safetensors"),
        folder.path().join("x.npy"),
    );
    nn::save(&model(1), &path).unwrap();
    io::write_npy(&npy, &randn(&[2, 3], 0)).unwrap();
    let (good, array) = (std::fs::read(&path).unwrap(), std::fs::read(&npy).unwrap());
    for cut in (0..good.len()).step_by(7) {
        std::fs::write(&path, &good[..cut]).unwrap();
        expect(
            io::read_safetensors(&path).unwrap_err(),
            Code::FileMalformed,
            "m.safetensors",
        );
    }
    for cut in 0..array.len() {
        std::fs::write(&npy, &array[..cut]).unwrap();
        expect(
            io::read_npy(&npy).unwrap_err(),
            Code::FileMalformed,
            "x.npy",
        );
    }
    // Every byte changed, one at a time: an error or a tensor, never a panic.
    for i in 0..200.min(good.len()) {
        for change in [1u8, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[i] ^= change;
            std::fs::write(&path, &bytes).unwrap();
            let _ = io::read_safetensors(&path)
                .map_err(|error| assert!(error.help.is_some(), "{error}"));
            let mut bytes = array.clone();
            bytes[i % array.len()] ^= change;
            std::fs::write(&npy, &bytes).unwrap();
            let _ = io::read_npy(&npy).map_err(|error| assert!(error.help.is_some(), "{error}"));
        }
    }
    let header = |text: &str, data: usize| {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.extend(vec![0; data]);
        std::fs::write(&path, bytes).unwrap();
        io::read_safetensors(&path).map(drop)
    };
    let bad = [
        (
            r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
            4,
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
            4,
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[9223372036854775807,9],"data_offsets":[0,4]}}"#,
            4,
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
            4,
        ),
        (r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#, 4),
        (
            r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,99]}}"#,
            4,
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            9,
        ),
        (r#"{"x":{"shape":[1],"data_offsets":[0,4]}}"#, 4),
        (r#"{"x":7}"#, 0),
        ("[]", 0),
    ];
    for (text, data) in bad {
        expect(
            header(text, data).unwrap_err(),
            Code::FileMalformed,
            "m.safetensors",
        );
    }
    let unknown = r#"{"x":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}"#;
    expect(
        header(unknown, 8).unwrap_err(),
        Code::UnsupportedDType,
        "C64",
    );
    header(r#"{"__metadata__":{"a":"b"}}"#, 0).unwrap();
    io::write_npy(&npy, &randn(&[2, 3], 0)).unwrap();
    expect(
        io::read_npy_as(&npy, DType::I64).unwrap_err(),
        Code::DTypeMismatch,
        "<f4",
    );
}

#[test]
fn mistakes_of_layers() {
    let (x, flat) = (randn(&[2, 3], 0), randn(&[4], 0));
    let cases = [
        (
            Linear::new(4, 2, true, DType::F32, 0).forward(&x),
            Code::ShapeMismatch,
        ),
        (
            LayerNorm::new(&[4], DType::F32).forward(&x),
            Code::ShapeMismatch,
        ),
        (
            BatchNorm::new(4, DType::F32).forward(&flat),
            Code::RankMismatch,
        ),
        (
            GroupNorm::new(2, 4, DType::F32).forward(&flat),
            Code::RankMismatch,
        ),
        (
            GroupNorm::new(2, 3, DType::F32).forward(&x),
            Code::ShapeMismatch,
        ),
        (
            MultiHeadAttention::new(3, 1, DType::F32, 0).forward(&x),
            Code::RankMismatch,
        ),
        (
            MultiHeadAttention::new(3, 2, DType::F32, 0).forward(&x.unsqueeze(0)),
            Code::ShapeMismatch,
        ),
        (x.unflatten(5, &[1]), Code::DimOutOfRange),
        (x.unflatten(1, &[-1, -1]), Code::ShapeMismatch),
        (x.flatten_dims(1, 0), Code::InvalidArgument),
    ];
    for (i, (tensor, code)) in cases.into_iter().enumerate() {
        let error = tensor.check().unwrap_err();
        assert_eq!(error.code, code, "{i}: {error}");
        assert!(error.at.is_some(), "{i}: {error}");
    }
}
