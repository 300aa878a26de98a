//! Max pooling against a search of every window, in one piece and, where the tensor is large, run by run.

use oxyfuel_base::{DType, Expr};
use oxyfuel_graph::{Builder, Device, HostTensor, Op, Windows, run};
use proptest::prelude::*;

/// The largest element of a window and where it is: the first of equals, the last NaN, and the first element where nothing is above -inf.
fn naive(x: &[f64], shape: [i64; 3], w: [Windows; 2]) -> Vec<(f64, i64)> {
    let [channels, height, width] = shape;
    let mut found = vec![];
    for c in 0..channels {
        for i in 0..w[0].count {
            for j in 0..w[1].count {
                let mut best: Option<(f64, i64)> = None;
                for s in 0..w[0].size {
                    for t in 0..w[1].size {
                        let row = i * w[0].step - w[0].padding + s * w[0].dilation;
                        let column = j * w[1].step - w[1].padding + t * w[1].dilation;
                        if !(0..height).contains(&row) || !(0..width).contains(&column) {
                            continue;
                        }
                        let place = row * width + column;
                        let value = x[(c * height * width + place) as usize];
                        if best.is_none_or(|(old, _)| value > old || value.is_nan()) {
                            best = Some((value, place));
                        }
                    }
                }
                found.push(best.expect("every window has an element"));
            }
        }
    }
    found
}

fn windows(dim: usize, length: i64, (size, step, dilation, padding, more): Form) -> Windows {
    let padding = padding.min(size / 2 * dilation).min(length - 1);
    let span = (size - 1) * dilation + 1;
    let fitting = (length + 2 * padding - span).max(0) / step + 1;
    // One that reaches over the end, where it begins with an element.
    let over = more && fitting * step - padding < length;
    Windows {
        dim,
        length,
        count: fitting + i64::from(over),
        size,
        step,
        dilation,
        padding,
    }
}

/// Size, step, dilation, padding, and whether a window reaches over the end.
type Form = (i64, i64, i64, i64, bool);

/// Whether concatenations of pooled runs made it, rather than a border around the operand.
fn check(channels: i64, sides: [i64; 2], forms: [Form; 2]) -> bool {
    let [height, width] = sides;
    let w = [windows(1, height, forms[0]), windows(2, width, forms[1])];
    // Windows without an element are not asked for.
    let empty = |w: &Windows| {
        (0..w.count).any(|i| {
            let taps = (0..w.size).map(|t| i * w.step - w.padding + t * w.dilation);
            !taps.into_iter().any(|p| (0..w.length).contains(&p))
        })
    };
    if w.iter().any(empty) {
        return false;
    }
    let shape = [channels, height, width];
    let values: Vec<f64> = (0..channels * height * width)
        .map(|i| match (i * 31) % 47 {
            0 => f64::NAN,
            1..9 => f64::NEG_INFINITY,
            n => (n % 13) as f64,
        })
        .collect();
    let x = HostTensor::from_f64(DType::F32, &shape, &values).unwrap();
    let mut b = Builder::new("f");
    let dims = shape.iter().map(|&n| Expr::from(n)).collect();
    let input = b.input("x", DType::F32, dims, Device::Cpu).unwrap();
    for y in b.max_pool(input, &w).unwrap() {
        b.output(y);
    }
    let graph = b.finish().unwrap();
    let found = run(&graph, &[x]).unwrap();
    let expected = naive(&values, shape, w);
    assert_eq!(found[0].shape, [channels, w[0].count, w[1].count]);
    for (i, (value, place)) in expected.into_iter().enumerate() {
        let (got, at) = (found[0].get(i).as_f64(), found[1].get(i).as_i64());
        let same = got == value || (got.is_nan() && value.is_nan());
        assert!(
            same && at == place,
            "{i}: {got} at {at}, not {value} at {place}, of {w:?}"
        );
    }
    let bordered = |op: &Op| matches!(op, Op::Full { shape, .. } if !shape.is_empty());
    !graph.nodes.values().any(|node| bordered(&node.op))
}

#[test]
fn large_tensors_get_no_border() {
    let form = (3, 2, 1, 1, false);
    assert!(check(64, [32, 32], [form, form]));
    assert!(check(40, [45, 46], [(2, 2, 1, 0, true), form]));
    // Small ones are copied, and what would be many parts.
    assert!(!check(2, [32, 32], [form, form]));
    assert!(!check(64, [32, 32], [(3, 1, 1, 1, false); 2]));
}

fn form() -> impl Strategy<Value = Form> {
    (1..5i64, 1..4i64, 1..3i64, 0..3i64, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_largest_of_each_window_is_found(large: bool, sides in (5..12i64, 5..12i64), a in form(), b in form()) {
        let channels = if large { 65_536 / (sides.0 * sides.1) + 1 } else { 2 };
        check(channels, [sides.0, sides.1], [a, b]);
    }
}
