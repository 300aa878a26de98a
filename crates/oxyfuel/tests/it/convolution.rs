//! Convolution layers against the sum written out, eager and compiled, and their weights in files.

use oxyfuel::nn::{
    Activation, Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Module,
    Sequential,
};
use oxyfuel::{Code, Convolution, DType, Options, Tensor, jit, nn, structure};

fn randn(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

/// Every index of these extents, the last dim fastest.
fn indices(extents: &[i64]) -> Vec<Vec<i64>> {
    extents.iter().fold(vec![vec![]], |all, &extent| {
        let next = |index: Vec<i64>| (0..extent).map(move |i| [&index[..], &[i]].concat());
        all.into_iter().flat_map(next).collect()
    })
}

struct Array {
    shape: Vec<i64>,
    values: Vec<f64>,
}

impl Array {
    fn of(tensor: &Tensor) -> Self {
        Self {
            shape: tensor.shape().to_vec(),
            values: tensor.to_f64().unwrap(),
        }
    }

    fn place(&self, index: &[i64]) -> Option<usize> {
        let mut place = 0;
        for (&i, &extent) in index.iter().zip(&self.shape) {
            if i < 0 || i >= extent {
                return None;
            }
            place = place * extent + i;
        }
        Some(place as usize)
    }
}

fn dim(list: &[i64], dim: usize) -> i64 {
    list[dim.min(list.len() - 1)]
}

/// Which input position meets which output position through a kernel position: `wide = narrow stride + kernel dilation - padding`.
fn wide(narrow: &[i64], kernel: &[i64], how: &Convolution) -> Vec<i64> {
    let dims = narrow.iter().zip(kernel).enumerate();
    dims.map(|(d, (n, k))| {
        n * dim(&how.stride, d) + k * dim(&how.dilation, d) - dim(&how.padding, d)
    })
    .collect()
}

/// Adds every product of an input, a weight and nothing else where it belongs. `shape` is the result's.
fn naive(
    (x, weight, bias): (&Tensor, &Tensor, Option<&Tensor>),
    how: &Convolution,
    transposed: bool,
    shape: &[i64],
) -> Vec<f64> {
    let (x, weight) = (Array::of(x), Array::of(weight));
    let mut out = Array {
        shape: shape.to_vec(),
        values: vec![0.0; shape.iter().product::<i64>() as usize],
    };
    let (inputs, outputs) = (x.shape[1] / how.groups, shape[1] / how.groups);
    // The forward one gathers into its narrow result, the transposed one scatters from its narrow input.
    let narrow = if transposed {
        &x.shape[2..]
    } else {
        &shape[2..]
    };
    for batch in 0..shape[0] {
        for at in indices(narrow) {
            for kernel in indices(&weight.shape[2..]) {
                let far = wide(&at, &kernel, how);
                let (from, to) = if transposed { (&at, &far) } else { (&far, &at) };
                for group in 0..how.groups {
                    for (c, o) in (0..inputs).flat_map(|c| (0..outputs).map(move |o| (c, o))) {
                        let (input, output) = (group * inputs + c, group * outputs + o);
                        let first = if transposed { [input, o] } else { [output, c] };
                        let w = weight.place(&[&first[..], &kernel].concat()).unwrap();
                        let from = x.place(&[&[batch, input][..], from].concat());
                        let to = out.place(&[&[batch, output][..], to].concat());
                        if let (Some(from), Some(to)) = (from, to) {
                            out.values[to] += x.values[from] * weight.values[w];
                        }
                    }
                }
            }
        }
    }
    if let Some(bias) = bias {
        let (bias, rest) = (bias.to_f64().unwrap(), shape[2..].iter().product::<i64>());
        for (i, value) in out.values.iter_mut().enumerate() {
            *value += bias[(i as i64 / rest % shape[1]) as usize];
        }
    }
    out.values
}

macro_rules! check {
    ($layer:expr, $x:expr, $shape:expr, $transposed:literal) => {{
        let (layer, x, shape): (_, Tensor, &[i64]) = ($layer, $x, &$shape);
        let parts = (&x, &layer.weight, layer.bias.as_ref());
        let expected = naive(parts, &layer.how, $transposed, shape);
        let f = jit(
            |m: &_, x: &Tensor| Module::forward(m, x),
            Options::default(),
        )
        .unwrap();
        for y in [layer.forward(&x), f.call((&layer, &x)).unwrap()] {
            assert_eq!(y.shape(), shape);
            for (y, e) in y.to_f64().unwrap().iter().zip(&expected) {
                assert!((y - e).abs() <= 2e-5 * e.abs().max(1.0), "{y} {e}");
            }
        }
    }};
}

fn moved(stride: &[i64], padding: &[i64], dilation: &[i64], groups: i64) -> Convolution {
    Convolution {
        stride: stride.to_vec(),
        padding: padding.to_vec(),
        dilation: dilation.to_vec(),
        groups,
    }
}

#[test]
fn layers_are_their_sums() {
    let f32 = DType::F32;
    let plain = Convolution::default;
    check!(
        Conv1d::new(3, 4, [3], plain(), true, f32, 1),
        randn(&[2, 3, 9], 0),
        [2, 4, 7],
        false
    );
    check!(
        Conv1d::new(4, 6, [3], moved(&[2], &[1], &[2], 2), false, f32, 1),
        randn(&[2, 4, 11], 0),
        [2, 6, 5],
        false
    );
    check!(
        Conv2d::new(3, 5, [3, 2], moved(&[2, 1], &[1, 0], &[1], 1), true, f32, 2),
        randn(&[2, 3, 8, 7], 0),
        [2, 5, 4, 6],
        false
    );
    check!(
        Conv2d::new(4, 4, [3, 3], moved(&[1], &[1], &[1], 4), true, f32, 2),
        randn(&[1, 4, 6, 5], 0),
        [1, 4, 6, 5],
        false
    );
    check!(
        Conv3d::new(
            2,
            3,
            [2, 2, 3],
            moved(&[1, 2, 1], &[0, 1, 1], &[1], 1),
            true,
            f32,
            3
        ),
        randn(&[2, 2, 4, 5, 4], 0),
        [2, 3, 3, 3, 4],
        false
    );
    check!(
        ConvTranspose1d::new(3, 4, [3], moved(&[2], &[1], &[1], 1), true, f32, 4),
        randn(&[2, 3, 5], 0),
        [2, 4, 9],
        true
    );
    let mut layer =
        ConvTranspose2d::new(4, 6, [3, 2], moved(&[2, 3], &[1, 0], &[1], 2), true, f32, 5);
    layer.output_padding = vec![1, 2];
    check!(layer, randn(&[2, 4, 3, 4], 0), [2, 6, 6, 13], true);
    check!(
        ConvTranspose3d::new(2, 3, [2, 1, 2], moved(&[1], &[0], &[2], 1), false, f32, 6),
        randn(&[1, 2, 2, 3, 2], 0),
        [1, 3, 4, 3, 4],
        true
    );
}

/// A kernel of one position, and one more position behind the end: nothing is there but the bias.
#[test]
fn a_transposed_one_of_one_position_may_be_longer_than_its_input() {
    let x = randn(&[1, 1, 3], 1);
    let (weight, bias) = (
        Tensor::full(&[1, 1, 1], 2.0, DType::F32),
        Tensor::full(&[1], 5.0, DType::F32),
    );
    let how = moved(&[1], &[0], &[2], 1);
    let y = x.conv_transpose1d(&weight, Some(&bias), &how, &[1]);
    let mut expected: Vec<f32> = x.to_vec::<f32>().unwrap();
    expected.iter_mut().for_each(|x| *x = *x * 2.0 + 5.0);
    expected.push(5.0);
    assert_eq!(y.to_vec::<f32>().unwrap(), expected);
}

#[test]
fn weights_go_to_files_and_come_back() {
    let model = |seed| {
        Sequential::new()
            .with(Conv2d::new(
                3,
                4,
                [3, 3],
                moved(&[2], &[1], &[1], 1),
                true,
                DType::F32,
                seed,
            ))
            .with(Activation::Relu)
            .with(ConvTranspose2d::new(
                4,
                2,
                [2, 2],
                Convolution::default(),
                false,
                DType::F32,
                seed + 1,
            ))
    };
    let (one, two) = (model(1), model(7));
    assert_eq!(structure::names(&one), ["0.weight", "0.bias", "2.weight"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("conv.safetensors");
    nn::save(&one, &path).unwrap();
    let x = randn(&[2, 3, 8, 8], 3);
    let y = |m: &Sequential| m.forward(&x).to_vec::<f32>().unwrap();
    assert_ne!(y(&one), y(&two));
    nn::load(&two, &path).unwrap();
    assert_eq!(y(&one), y(&two));
}

#[test]
fn how_a_kernel_moves_is_compiled_in() {
    let f = jit(|m: &Conv1d, x: &Tensor| m.forward(x), Options::default()).unwrap();
    let mut layer = Conv1d::new(2, 2, [3], Convolution::default(), false, DType::F32, 1);
    let x = randn(&[1, 2, 9], 0);
    assert_eq!(f.call((&layer, &x)).unwrap().shape(), [1, 2, 7]);
    layer.how.stride = vec![2];
    assert_eq!(f.call((&layer, &x)).unwrap().shape(), [1, 2, 4]);
    let explanation = f.explain();
    assert_eq!(explanation.variants.len(), 2, "{explanation}");
    assert!(
        explanation.variants[1].reasons[0].contains("stride"),
        "{explanation}"
    );
}

#[test]
fn mistakes_of_convolutions() {
    let layer = |how| Conv2d::new(4, 6, [3, 3], how, true, DType::F32, 1);
    let x = randn(&[1, 4, 8, 8], 0);
    let cases = [
        (
            layer(Convolution::default()).forward(&randn(&[1, 3, 8, 8], 0)),
            Code::ShapeMismatch,
        ),
        (
            layer(Convolution::default()).forward(&randn(&[1, 4, 2, 8], 0)),
            Code::ShapeMismatch,
        ),
        (
            layer(Convolution::default()).forward(&randn(&[8, 8], 0)),
            Code::RankMismatch,
        ),
        (
            layer(moved(&[0], &[0], &[1], 1)).forward(&x),
            Code::InvalidArgument,
        ),
        (
            layer(moved(&[1, 1, 1], &[0], &[1], 1)).forward(&x),
            Code::InvalidArgument,
        ),
        (
            layer(moved(&[1], &[0], &[1], 0)).forward(&x),
            Code::InvalidArgument,
        ),
        (
            layer(moved(&[1], &[0], &[1], 3)).forward(&x),
            Code::ShapeMismatch,
        ),
    ];
    for (i, (tensor, code)) in cases.into_iter().enumerate() {
        let error = tensor.check().unwrap_err();
        assert_eq!(error.code, code, "{i}: {error}");
        assert!(error.at.is_some() && error.help.is_some(), "{i}: {error}");
    }
}
