//! Random calls with random arguments: nothing panics, every error has a code, a line and a sentence on what to do, and a captured function fails where the eager one does.

use oxyfuel::{Bucket, Code, DType, Error, Options, Result, Scalar, Tensor, compile, jit};
use proptest::prelude::*;

/// A call: which method, and arguments that it may make something of.
#[derive(Clone, Debug)]
struct Call {
    method: u8,
    x: usize,
    y: usize,
    ints: [i64; 4],
    dims: Vec<i64>,
    float: f64,
    flag: bool,
    dtype: usize,
}

/// Small, at borders, and absurd.
fn int() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => -4i64..6,
        1 => prop::sample::select(vec![i64::MIN, i64::MAX, i64::MIN + 1, 1 << 50, -(1 << 50)]),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let float = prop::sample::select(vec![0.0, -0.0, 1.5, -2.0, f64::NAN, f64::INFINITY, 1e300]);
    (
        (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>()),
        [int(), int(), int(), int()],
        prop::collection::vec(int(), 0..4),
        float,
        any::<bool>(),
    )
        .prop_map(|((method, x, y, dtype), ints, dims, float, flag)| Call {
            method,
            x: x.into(),
            y: y.into(),
            ints,
            dims,
            float,
            flag,
            dtype: dtype.into(),
        })
}

fn tensors() -> impl Strategy<Value = Vec<(usize, Vec<i64>)>> {
    let extent = prop::sample::select(vec![0i64, 1, 2, 3, 5]);
    prop::collection::vec((0usize..64, prop::collection::vec(extent, 0..4)), 1..4)
}

fn make(all: &[(usize, Vec<i64>)]) -> Vec<Tensor> {
    all.iter()
        .map(|(dtype, shape)| {
            let dtype = DType::ALL[dtype % DType::ALL.len()];
            Tensor::randint(0, 3, shape, DType::I64, 1).to(dtype)
        })
        .collect()
}

/// Dims that do not make a view of a billion elements: there a sum would take as long.
fn small(dims: &[i64]) -> Vec<i64> {
    dims.iter().map(|&n| n.clamp(-9, 9)).collect()
}

fn apply(call: &Call, all: &[Tensor]) -> Vec<Tensor> {
    let mut x = all[call.x % all.len()].clone();
    let y = &all[call.y % all.len()];
    let [a, b, c, d] = call.ints;
    let (dims, float, flag) = (&call.dims[..], call.float, call.flag);
    let dtype = DType::ALL[call.dtype % DType::ALL.len()];
    let written = |x: Tensor, result: Result<()>| match result {
        Ok(()) => vec![x],
        Err(_) => vec![x.reshape(&[-1, -1])],
    };
    let one = match call.method % 72 {
        0 => &x + y,
        1 => &x - y,
        2 => x.div(y),
        3 => x.pow(float),
        4 => x.remainder(y),
        5 => x.fmod(a),
        6 => x.maximum(float),
        7 => x.bitwise_left_shift(y),
        8 => x.bitwise_right_shift(a),
        9 => x.bitwise_xor(y),
        10 => x.eq(y),
        11 => x.lt(float),
        12 => x.logical_and(y),
        13 => x.where_(y, float),
        14 => x.masked_fill(y, a),
        15 => x.clamp(Some(float), flag.then_some(1.0)),
        16 => x.to(dtype),
        17 => x.contiguous(),
        18 => x.new_full(&small(dims), float, dtype),
        19 => x.full_like(a),
        20 => x.sum(dims, flag),
        21 => x.mean(dims, flag),
        22 => x.prod(dims, flag),
        23 => x.amax(dims, flag),
        24 => x.amin(dims, flag),
        25 => x.any(dims, flag),
        26 => x.all(dims, flag),
        27 => x.var(dims, float, flag),
        28 => x.softmax(a),
        29 => x.log_softmax(a),
        30 => x.cumsum(a),
        31 => x.cumprod(a),
        32 => x.argmax(a, flag),
        33 => x.argmin(a, flag),
        34 => x.argsort(a, flag),
        35 => {
            let (values, order) = x.sort(a, flag);
            return vec![values, order];
        }
        36 => {
            let (values, order) = x.topk(b, a, flag);
            return vec![values, order];
        }
        37 => x.layer_norm(dims, flag.then_some(y), None, float),
        38 => x.rms_norm(dims, flag.then_some(y), float),
        39 => x.permute(dims),
        40 => x.transpose(a, b),
        41 => x.t(),
        42 => x.reshape(dims),
        43 => x.flatten(),
        44 => x.expand(&small(dims)),
        45 => x.unsqueeze(a),
        46 => x.squeeze(a),
        47 => x.slice(a, b, c, d),
        48 => x.narrow(a, b, c),
        49 => x.select(a, b),
        // Each part is a tensor: not a billion of them.
        50 => return x.chunk(b.min(9), a),
        51 => Tensor::cat(&[&x, y], a),
        52 => Tensor::stack(&[&x, y, &x], a),
        53 => x.gather(a, y),
        54 => x.index_select(a, y),
        55 => Tensor::embedding(y, &x),
        56 => x.index_put(y, a, &all[0]),
        57 => x.slice_scatter(y, a, b, c, d),
        58 => x.copy(y),
        59 => x.matmul(y),
        60 => x.addmm(y, &all[0], float, 1.0),
        61 => x.linear(y, flag.then_some(&all[0])),
        62 => x.flatten_dims(a, b),
        63 => x.unflatten(a, dims),
        64 => x.gelu(),
        65 => -&x,
        66 => {
            let result = x.add_(y);
            return written(x, result);
        }
        67 => {
            let result = x.copy_(y);
            return written(x, result);
        }
        68 => {
            let result = x.slice_assign(a, b, c, d, float);
            return written(x, result);
        }
        69 => {
            let result = x.select_assign(a, b, y);
            return written(x, result);
        }
        70 => {
            let result = x.masked_fill_(y, float);
            return written(x, result);
        }
        _ => x.rsqrt(),
    };
    vec![one]
}

/// All results up to the first mistake, or that mistake.
fn program(calls: &[Call], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut all = inputs.to_vec();
    for call in calls {
        for new in apply(call, &all) {
            new.check()?;
            all.push(new);
        }
    }
    Ok(all.split_off(inputs.len()))
}

/// A mistake of the user, said in full.
fn is_said(error: &Error) {
    assert!(
        error.help.as_ref().is_some_and(|help| help.len() > 10),
        "no help: {error}"
    );
    assert!(error.at.is_some(), "no place: {error}");
    let at = error.at.as_ref().unwrap();
    assert!(at.file.ends_with("fuzz.rs"), "{error}");
    assert!(error.code != Code::Internal, "{error}");
    assert!(!error.message.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_call_panics(inputs in tensors(), calls in prop::collection::vec(call(), 1..5)) {
        let (ours, eager) = (make(&inputs), make(&inputs));
        if ours.iter().any(|x| x.check().is_err()) {
            return Ok(());
        }
        let expected = program(&calls, &eager);
        if let Err(error) = &expected {
            is_said(error);
        }
        let copy = calls.clone();
        let f = compile(move |x: &[Tensor]| program(&copy, x), Options::default()).unwrap();
        let borrowed: Vec<&Tensor> = ours.iter().collect();
        let found = f.call(&borrowed);
        match (&found, &expected) {
            (Ok(found), Ok(expected)) => {
                let types = |all: &[Tensor]| -> Vec<(DType, Vec<i64>)> {
                    all.iter().map(|t| (t.dtype(), t.shape().to_vec())).collect()
                };
                prop_assert_eq!(types(found), types(expected));
            }
            // Of several mistakes either way may meet another one first.
            (Err(found), _) => is_said(found),
            (Ok(_), Err(_)) => {}
        }
    }

    #[test]
    fn no_constructor_panics(
        dims in prop::collection::vec(int(), 0..4),
        numbers in [int(), int(), int()],
        dtype in 0usize..64,
        float in prop::sample::select(vec![0.0, -1.0, 0.5, f64::NAN, f64::INFINITY, 1e300]),
    ) {
        let dtype = DType::ALL[dtype % DType::ALL.len()];
        let [a, b, c] = numbers;
        // A range of a billion numbers is made, not refused.
        let (a, b) = (a.clamp(-99, 99), b.clamp(-99, 99));
        let all = [
            Tensor::zeros(&dims, dtype),
            Tensor::full(&dims, float, dtype),
            Tensor::ones(&dims, dtype),
            Tensor::rand(&dims, dtype, 0),
            Tensor::randn(&dims, dtype, 0),
            Tensor::randint(a, c, &dims, dtype, 0),
            Tensor::arange(a, b, c, dtype),
            Tensor::arange(float, b, c, dtype),
            Tensor::from_slice(&[1.0f32, 2.0], &dims),
            Tensor::from_bytes(&[1, 2, 3, 4], dtype, &dims),
            Tensor::scalar(float, dtype),
        ];
        for tensor in all {
            match tensor.check() {
                Err(error) => is_said(&error),
                Ok(()) => {
                    let _ = (tensor.item().map_err(|e| is_said(&e)), tensor.size(c).map_err(|e| is_said(&e)));
                    let _ = tensor.dims::<2>().map_err(|e| is_said(&e));
                }
            }
        }
    }

    #[test]
    fn no_bucket_panics(
        sizes in prop::collection::vec(int(), 0..3),
        at in (0usize..4, 0usize..4),
        inputs in tensors(),
        calls in prop::collection::vec(call(), 1..3),
    ) {
        let inputs = make(&inputs);
        if inputs.iter().any(|x| x.check().is_err()) {
            return Ok(());
        }
        let sizes: Vec<i64> = sizes.iter().map(|n| (*n).clamp(-9, 99)).collect();
        let f = jit(move |x: &Vec<Tensor>| program(&calls, x), Options::default()).unwrap();
        if let Ok(f) = f.bucket(Bucket::new(&sizes).dim(at.0, at.1)) {
            let _ = f.call((&inputs,)).map_err(|error| is_said(&error));
        }
    }
}

#[test]
fn absurd_sizes_are_refused() {
    let one = Tensor::ones(&[1], DType::F32);
    for huge in [i64::MAX, 1 << 62, 1 << 50] {
        let wide = one.expand(&[huge]);
        let cases = [
            wide.contiguous(),
            &wide + 1.0,
            Tensor::cat(&[&wide, &wide], 0),
            wide.new_full(&[huge, 2], 0, DType::F64),
        ];
        for tensor in cases {
            if let Err(error) = tensor.check() {
                is_said(&error);
                let memory = [Code::OutOfMemory, Code::SizeOverflow, Code::TooLarge];
                assert!(memory.contains(&error.code), "{error}");
            } else {
                panic!("{tensor:?} has no memory");
            }
        }
    }
    assert!(Scalar::I(1).as_f64() == 1.0);
}
