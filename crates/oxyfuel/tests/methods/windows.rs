//! Windows, other sizes, and images read between their pixels.

use crate::cases;
use oxyfuel::{Interpolation, Pooling, SampleMode, SamplePadding, Tensor};

fn pooling(size: i64, stride: i64, padding: i64) -> Pooling {
    Pooling {
        size: vec![size],
        stride: vec![stride],
        padding: vec![padding],
        ..Pooling::default()
    }
}

fn all((a, b): (Tensor, Tensor), c: Tensor) -> Vec<Tensor> {
    vec![a, b, c]
}

cases! {
    pool1d fb [[2, 3, 11]] (x) => (x.max_pool1d([3], [2], [1], [2]), x.avg_pool1d([3], [2], [1]));
    pool2d fb [[2, 3, 7, 9]] (x) => (
        x.max_pool2d([3, 2], [2, 1], [1, 0], [1, 1]), x.max_pool2d_positions([3, 2], [2, 1], [1, 0], [1, 1]), x.avg_pool2d([3, 2], [2, 2], [1, 1]));
    pool3d f [[2, 2, 5, 6, 7]] (x) => (
        x.max_pool3d([2, 2, 2], [2, 2, 2], [1, 1, 1], [1, 1, 1]), x.max_pool3d_positions([2, 2, 2], [2, 2, 2], [1, 1, 1], [1, 1, 1]), x.avg_pool3d([2, 3, 2], [2, 2, 2], [1, 1, 0]));
    pool_ceil f [[2, 3, 7, 9]] (x) => {
        let up = |p: Pooling| Pooling { ceil: true, ..p };
        let (values, positions) = x.max_pool(2, &up(pooling(2, 2, 0)));
        let elements = Pooling { count_padding: false, ..up(pooling(3, 2, 1)) };
        let thirds = Pooling { divisor: Some(3), ..pooling(2, 2, 0) };
        (values, positions, x.avg_pool(2, &elements), x.avg_pool(2, &thirds))
    };
    max_unpool f [[2, 3, 4, 6]] (x) => {
        let (values, positions) = x.max_pool(2, &pooling(2, 2, 0));
        values.max_unpool(&positions, &[4, 6])
    };
    adaptive1d fb [[2, 3, 11]] (x) => {
        let (values, positions) = x.adaptive_max_pool1d([4]);
        (x.adaptive_avg_pool1d([4]), values, positions)
    };
    adaptive2d f [[2, 3, 7, 9]] (x) => {
        let (values, positions) = x.adaptive_max_pool2d([3, 4]);
        (x.adaptive_avg_pool2d([3, 4]), values, positions, x.adaptive_avg_pool2d([1, 1]))
    };
    adaptive3d f [[2, 2, 5, 6, 7]] (x) => {
        let (values, positions) = x.adaptive_max_pool3d([2, 3, 4]);
        (x.adaptive_avg_pool3d([2, 3, 4]), values, positions)
    };
    unfold fb [[2, 3, 5, 6]] (x) => x.unfold([2, 3], [1, 2], [1, 1], [2, 1]);
    fold f [[2, 12, 20]] (x) => x.fold([5, 6], [2, 2], [1, 1], [0, 0], [1, 1]);
    fold_stride f [[2, 12, 6]] (x) => x.fold([5, 6], [2, 2], [1, 1], [0, 0], [2, 2]);
    nearest fb [[2, 3, 7, 9], [2, 3, 11]] (x, y) => (
        x.interpolate(&[14, 5], Interpolation::Nearest, false), x.interpolate(&[5, 9], Interpolation::NearestExact, false), y.interpolate(&[7], Interpolation::Nearest, false));
    linear fb [[2, 3, 7, 9], [2, 3, 11]] (x, y) => (
        x.interpolate(&[10, 5], Interpolation::Linear, false), x.interpolate(&[13, 4], Interpolation::Linear, true), y.interpolate(&[7], Interpolation::Linear, false));
    trilinear f [[1, 2, 3, 4, 5]] (x) => (x.interpolate(&[5, 3, 8], Interpolation::Linear, false), x.interpolate(&[5, 3, 8], Interpolation::Linear, true));
    cubic f [[2, 3, 7, 9]] (x) => (x.interpolate(&[10, 5], Interpolation::Cubic, false), x.interpolate(&[13, 4], Interpolation::Cubic, true));
    area f [[2, 3, 7, 9]] (x) => x.interpolate(&[3, 4], Interpolation::Area, false);
    upsample f [[1, 2, 3, 4]] (x) => (x.upsample(2.0, Interpolation::Linear, false), x.upsample(2.0, Interpolation::Nearest, false));
    grid_sample f [[2, 3, 5, 4], [2, 3, 3, 2]] (x, g) => {
        let places = g / 2.5;
        let mut results = vec![];
        for between in [SampleMode::Bilinear, SampleMode::Nearest, SampleMode::Bicubic] {
            for outside in [SamplePadding::Zeros, SamplePadding::Border, SamplePadding::Reflection] {
                for corners in [false, true] {
                    results.push(x.grid_sample(&places, between, outside, corners));
                }
            }
        }
        results
    };
}

#[test]
fn windows_are_those_of_pytorch() {
    crate::judge(CASES, include_str!("windows.txt"));
}

/// A pool by its options is the one by its numbers.
#[test]
fn options_say_the_same_as_numbers() {
    let x = crate::numbers(&[2, 7, 9], 0, 'f');
    let numbers = all(
        (
            x.max_pool2d([3, 3], [2, 2], [1, 1], [1, 1]),
            x.max_pool2d_positions([3, 3], [2, 2], [1, 1], [1, 1]),
        ),
        x.avg_pool2d([3, 3], [2, 2], [1, 1]),
    );
    let how = pooling(3, 2, 1);
    let options = all(x.max_pool(2, &how), x.avg_pool(2, &how));
    for (a, b) in numbers.iter().zip(&options) {
        assert_eq!(a.to_bytes().unwrap(), b.to_bytes().unwrap());
    }
}
