//! Functions of structures: in, out, nested, and what errors and recompile reasons call their fields.

use oxyfuel::{Code, DType, Options, Result, Tensor, Tensors, jit, structure};
use std::collections::BTreeMap;

#[derive(Tensors, Clone)]
struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

#[derive(Tensors, Clone)]
struct Pair(Tensor, f64);

#[derive(Tensors, Clone)]
enum Activation {
    Relu,
    Scaled(f64),
    Gated { gate: Tensor },
}

#[derive(Tensors, Clone)]
struct Model<L> {
    layers: Vec<L>,
    activation: Activation,
    pair: Pair,
    extra: BTreeMap<String, Tensor>,
    #[tensors(skip)]
    note: std::path::PathBuf,
}

#[derive(Tensors)]
struct Output {
    hidden: Vec<Tensor>,
    last: Tensor,
    depth: usize,
}

fn linear(inputs: i64, outputs: i64, bias: bool, seed: u64) -> Linear {
    Linear {
        weight: Tensor::randn(&[outputs, inputs], DType::F32, seed),
        bias: bias.then(|| Tensor::randn(&[outputs], DType::F32, seed + 1)),
    }
}

fn model(activation: Activation) -> Model<Linear> {
    let extra = [("shift".to_owned(), Tensor::ones(&[4], DType::F32))];
    Model {
        layers: vec![linear(3, 5, true, 0), linear(5, 4, false, 7)],
        activation,
        pair: Pair(Tensor::full(&[4], 0.5, DType::F32), 2.0),
        extra: extra.into(),
        note: "no part of the tree".into(),
    }
}

fn forward(model: &Model<Linear>, x: &Tensor) -> Result<Output> {
    let mut hidden = Vec::new();
    let mut x = x.clone();
    for layer in &model.layers {
        x = x.linear(&layer.weight, layer.bias.as_ref());
        x = match &model.activation {
            Activation::Relu => x.relu(),
            Activation::Scaled(factor) => x.relu() * *factor,
            Activation::Gated { gate } => x.sigmoid() * gate,
        };
        hidden.push(x.clone());
    }
    let last = &x * &model.pair.0 * model.pair.1 + &model.extra["shift"];
    Ok(Output {
        hidden,
        last,
        depth: model.layers.len(),
    })
}

fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    for (a, b) in a.to_f64().unwrap().iter().zip(b.to_f64().unwrap()) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
    }
}

#[test]
fn a_model_goes_in_and_a_structure_comes_out() {
    let f = jit(forward, Options::default()).unwrap();
    let x = Tensor::randn(&[2, 3], DType::F32, 3);
    let gate = Tensor::full(&[1], 0.25, DType::F32);
    for activation in [
        Activation::Relu,
        Activation::Scaled(3.0),
        Activation::Gated { gate },
    ] {
        let model = model(activation);
        let eager = forward(&model, &x).unwrap();
        let compiled = f.call((&model, &x)).unwrap();
        close(&compiled.last, &eager.last);
        assert_eq!((compiled.hidden.len(), compiled.depth), (2, 2));
        for (a, b) in compiled.hidden.iter().zip(&eager.hidden) {
            close(a, b);
        }
    }
    assert_eq!(f.explain().variants.len(), 3);
}

#[test]
fn leaves_have_paths() {
    let model = model(Activation::Relu);
    assert_eq!(
        structure::names(&model),
        [
            "layers.0.weight",
            "layers.0.bias",
            "layers.1.weight",
            "pair.0",
            "extra.shift"
        ]
    );
    let doubled = structure::map(&model, &mut |name, tensor| {
        Ok(if name.starts_with("pair") {
            tensor * 2.0
        } else {
            tensor.clone()
        })
    });
    assert_eq!(doubled.unwrap().pair.0.to_vec::<f32>().unwrap(), [1.0; 4]);
}

#[test]
fn reasons_name_fields() {
    let f = jit(forward, Options::default()).unwrap();
    let x = Tensor::randn(&[2, 3], DType::F32, 3);
    let mut changed = model(Activation::Relu);
    f.call((&changed, &x)).unwrap();
    f.call((&changed, &x)).unwrap();
    changed.note = "changes nothing".into();
    f.call((&changed, &x)).unwrap();
    changed.pair.1 = 3.0;
    f.call((&changed, &x)).unwrap();
    changed.layers[0].bias = None;
    f.call((&changed, &x)).unwrap();
    changed.pair.0 = changed.pair.0.to(DType::F64);
    f.call((&changed, &x)).unwrap();
    let explanation = f.explain();
    let reasons: Vec<&str> = explanation
        .variants
        .iter()
        .map(|v| v.reasons[0].as_str())
        .collect();
    assert_eq!(reasons.len(), 4, "{explanation}");
    assert_eq!(explanation.variants[0].calls, 3);
    assert!(
        reasons[1].starts_with("argument 0.pair.1 is 3.0, was 2.0"),
        "{reasons:?}"
    );
    assert!(reasons[2].contains("given"), "{reasons:?}");
    assert!(
        reasons[3].starts_with("argument 0.pair.0 is f64, was f32"),
        "{reasons:?}"
    );
}

#[test]
fn mistakes_name_fields() {
    let f = jit(forward, Options::default()).unwrap();
    let mut wrong = model(Activation::Relu);
    let x = Tensor::randn(&[2, 3], DType::F32, 3);
    wrong.layers[1].weight = wrong.layers[1].weight.reshape(&[3]);
    let error = f.call((&wrong, &x)).err().unwrap();
    assert_eq!(error.code, Code::ShapeMismatch);
    assert!(
        error.to_string().contains("argument 0.layers.1.weight"),
        "{error}"
    );
    let g = jit(
        |x: &Tensor| (x.clone(), vec![x.relu(), x.matmul(x)]),
        Options::default(),
    )
    .unwrap();
    let error = g.call((&x,)).err().unwrap();
    assert_eq!(error.code, Code::ShapeMismatch);
    assert!(error.to_string().contains("result 1.1"), "{error}");
    assert!(error.at.unwrap().file.ends_with("structures.rs"));
}

#[test]
fn tuples_arrays_and_options_come_back_as_they_are() {
    type Kept = (Option<Tensor>, Option<Tensor>, [Tensor; 2], String);
    let f = jit(
        |pair: &(Tensor, Tensor), both: &[Tensor; 2]| -> Kept {
            let (a, b) = pair;
            (
                Some(a + b),
                None,
                [a - &both[0], b * &both[1]],
                "kept".to_owned(),
            )
        },
        Options::default(),
    )
    .unwrap();
    let x = |n: i64| Tensor::full(&[3], n, DType::I64);
    for _ in 0..2 {
        let (sum, none, [c, d], text) = f.call((&(x(5), x(6)), &[x(1), x(2)])).unwrap();
        assert_eq!(sum.unwrap().to_vec::<i64>().unwrap(), [11; 3]);
        assert!(none.is_none());
        assert_eq!(c.to_vec::<i64>().unwrap(), [4; 3]);
        assert_eq!(d.to_vec::<i64>().unwrap(), [12; 3]);
        assert_eq!(text, "kept");
    }
}

#[test]
fn jitted_functions_compose() {
    let inner = jit(
        |l: &Linear, x: &Tensor| x.linear(&l.weight, l.bias.as_ref()),
        Options::default(),
    )
    .unwrap();
    let l = linear(3, 3, true, 4);
    let x = Tensor::randn(&[2, 3], DType::F32, 3);
    let expected = (inner.call((&l, &x)).unwrap() * 2.0).relu();
    let outer = jit(
        move |l: &Linear, x: &Tensor| inner.call((l, x)).map(|y| (y * 2.0).relu()),
        Options::default(),
    )
    .unwrap();
    close(&outer.call((&l, &x)).unwrap(), &expected);
}
