//! Bound calls: the same tensors every time, and every way to bind the wrong ones.

use oxyfuel::{Bucket, Code, Compiled, DType, Options, Tensor, compile};

fn ramp(shape: &[i64], by: f32) -> Tensor {
    let count: i64 = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 - 3.0) * by).collect();
    Tensor::from_slice(&values, shape)
}

fn zeros(shape: &[i64]) -> Tensor {
    Tensor::zeros(shape, DType::F32)
}

fn relu2() -> Compiled {
    compile(
        |x: &Tensor, b: &Tensor| (x + b).relu() * 2.0,
        Options::default(),
    )
    .unwrap()
}

#[test]
fn a_bound_call_reads_and_writes_the_bound_memory() {
    let f = relu2();
    let (mut x, b, y) = (ramp(&[4, 250], 1.0), ramp(&[250], 0.5), zeros(&[4, 250]));
    let mut bound = f.bind(&[&x, &b], &[&y]).unwrap();
    assert_eq!(
        bound.outputs()[0].data_ptr().unwrap(),
        y.data_ptr().unwrap()
    );
    for step in 0..3 {
        x.copy_(&ramp(&[4, 250], 1.0 + step as f32)).unwrap();
        bound.call().unwrap();
        let expected = f.call_one(&[&x, &b]).unwrap();
        assert_eq!(
            y.to_vec::<f32>().unwrap(),
            expected.to_vec::<f32>().unwrap()
        );
    }
    // Two bound calls and an ordinary one do not disturb each other's intermediate values.
    let other = zeros(&[4, 250]);
    let mut second = f
        .bind(&[&b.expand(&[4, 250]).contiguous(), &b], &[&other])
        .unwrap();
    second.call().unwrap();
    bound.call().unwrap();
    assert_eq!(
        y.to_vec::<f32>().unwrap(),
        f.call_one(&[&x, &b]).unwrap().to_vec::<f32>().unwrap()
    );
}

#[test]
fn symbols_captured_tensors_and_several_results_bind() {
    let weight = ramp(&[6, 5], 0.25);
    let captured = weight.clone();
    let f = compile(
        move |x: &Tensor| {
            let y = x.matmul(&captured);
            (y.sum(&[1], false), y.softmax(-1))
        },
        Options::default(),
    )
    .unwrap();
    for rows in [3, 4, 7] {
        let x = ramp(&[rows, 6], 0.1);
        let (sum, soft) = (zeros(&[rows]), zeros(&[rows, 5]));
        let mut bound = f.bind(&[&x], &[&sum, &soft]).unwrap();
        bound.call().unwrap();
        bound.call().unwrap();
        let expected = f.call(&[&x]).unwrap();
        assert_eq!(
            sum.to_vec::<f32>().unwrap(),
            expected[0].to_vec::<f32>().unwrap()
        );
        assert_eq!(
            soft.to_vec::<f32>().unwrap(),
            expected[1].to_vec::<f32>().unwrap()
        );
    }
}

#[test]
fn arguments_that_are_written_are_written_at_every_call() {
    let f = compile(
        |x: &Tensor, step: &Tensor| -> oxyfuel::Result<Tensor> {
            let mut x = x.clone();
            x.add_(step)?;
            Ok(&x * 10.0)
        },
        Options::default(),
    )
    .unwrap();
    let (x, step, y) = (zeros(&[5]), Tensor::ones(&[5], DType::F32), zeros(&[5]));
    let mut bound = f.bind(&[&x, &step], &[&y]).unwrap();
    for n in 1..4 {
        bound.call().unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [n as f32; 5]);
        assert_eq!(y.to_vec::<f32>().unwrap(), [10.0 * n as f32; 5]);
    }
    // The argument that is written is no other argument, and no output.
    assert_eq!(
        f.bind(&[&x, &x], &[&y]).unwrap_err().code,
        Code::AliasedInputs
    );
    assert_eq!(
        f.bind(&[&x, &step], &[&x]).unwrap_err().code,
        Code::AliasedInputs
    );
}

#[test]
fn functions_of_structures_are_bound_too() {
    let f = oxyfuel::jit(
        |x: &Tensor, ws: &Vec<Tensor>| ws.iter().map(|w| x * w).collect::<Vec<_>>(),
        Options::default(),
    )
    .unwrap();
    let mut x = Tensor::ones(&[3], DType::F32);
    let ws = vec![ramp(&[3], 1.0), ramp(&[3], 0.5)];
    let outputs = vec![zeros(&[3]), zeros(&[3])];
    let mut bound = f.bind((&x, &ws), &outputs).unwrap();
    for step in 1..4 {
        x.fill_(step).unwrap();
        bound.call().unwrap();
        for (output, expected) in outputs.iter().zip(f.call((&x, &ws)).unwrap()) {
            assert_eq!(
                output.to_vec::<f32>().unwrap(),
                expected.to_vec::<f32>().unwrap()
            );
        }
    }
    let few = vec![zeros(&[3])];
    assert_eq!(
        f.bind((&x, &ws), &few).unwrap_err().code,
        Code::ArityMismatch
    );
    assert_eq!(
        f.bind((&x, &ws), &ws).unwrap_err().code,
        Code::AliasedInputs
    );
}

#[test]
fn wrong_tensors_are_coded_when_they_are_bound() {
    let f = relu2();
    let (x, b) = (ramp(&[4, 250], 1.0), ramp(&[250], 0.5));
    let both = zeros(&[2, 4, 256]);
    let half = |at: i64| both.select(0, at);
    let wide = zeros(&[1001]);
    let cases: Vec<(Vec<&Tensor>, Vec<Tensor>, Code)> = vec![
        (vec![&x], vec![zeros(&[4, 250])], Code::ArityMismatch),
        (vec![&x, &b], vec![], Code::ArityMismatch),
        (vec![&x, &b], vec![zeros(&[4, 251])], Code::ShapeMismatch),
        (
            vec![&x, &b],
            vec![zeros(&[4, 250]).to(DType::F64)],
            Code::DTypeMismatch,
        ),
        (
            vec![&x, &b],
            vec![zeros(&[250, 4]).t()],
            Code::LayoutMismatch,
        ),
        (
            vec![&x, &b],
            vec![wide.slice(0, 1, 1001, 1).reshape(&[4, 250])],
            Code::LayoutMismatch,
        ),
        (vec![&x, &b], vec![x.clone()], Code::AliasedInputs),
        (vec![&x, &x], vec![&x + zeros(&[5])], Code::ShapeMismatch),
    ];
    for (number, (inputs, outputs, code)) in cases.into_iter().enumerate() {
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        let error = f.bind(&inputs, &outputs).unwrap_err();
        assert_eq!(error.code, code, "case {number}: {error}");
        assert!(
            error.help.is_some() && error.at.is_some(),
            "case {number}: {error}"
        );
    }
    // Neighbours in one storage are apart.
    let x = ramp(&[4, 256], 1.0);
    let mut part = half(0);
    part.copy_(&x).unwrap();
    let b = ramp(&[256], 0.5);
    f.bind(&[&half(0), &b], &[&half(1)])
        .unwrap()
        .call()
        .unwrap();
    let expected = f.call_one(&[&x, &b]).unwrap();
    assert_eq!(
        half(1).to_vec::<f32>().unwrap(),
        expected.to_vec::<f32>().unwrap()
    );
    // Every borrow was given back.
    part.fill_(0).unwrap();
}

#[test]
fn functions_that_cannot_be_bound_say_so() {
    let x = ramp(&[4, 4], 1.0);
    let y = zeros(&[4, 4]);
    let view = compile(|x: &Tensor| x.t(), Options::default()).unwrap();
    let twice = compile(
        |x: &Tensor| {
            let y = x + 1.0;
            (y.clone(), y)
        },
        Options::default(),
    )
    .unwrap();
    let reads = compile(
        |x: &Tensor| -> oxyfuel::Result<Tensor> {
            let sum = x.sum(&[], false).item()?;
            Ok(x.mul(sum))
        },
        Options::default(),
    )
    .unwrap();
    let padded = compile(|x: &Tensor| x + 1.0, Options::default())
        .unwrap()
        .bucket(Bucket::new(&[8]).dim(0, 0))
        .unwrap();
    for (f, outputs, code) in [
        (&view, vec![&y], Code::InvalidArgument),
        (&twice, vec![&y, &y], Code::InvalidArgument),
        (&reads, vec![&y], Code::DataDependent),
        (&padded, vec![&y], Code::InvalidArgument),
    ] {
        let error = f.bind(&[&x], &outputs).unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.help.is_some(), "{error}");
    }
}
