//! Whether a device's results are those of the graph interpreter.

use oxyfuel_base::DType;
use oxyfuel_engine::agree;
use oxyfuel_graph::{Graph, HostTensor, run};

/// Results for inputs that differ a little, which tell how much rounding may cost.
pub type Neighbours = Vec<Vec<HostTensor>>;

/// Compares an output; where neighbours are given, an element may differ as much as it differs between them.
pub fn compare(expected: &HostTensor, ours: &[u8], near: &[&HostTensor]) -> Result<(), String> {
    let Err(why) = agree(expected.dtype, ours, &expected.data) else {
        return Ok(());
    };
    if near.is_empty() {
        return Err(why);
    }
    let ours = HostTensor::new(expected.dtype, &expected.shape, ours.to_vec())
        .map_err(|e| e.to_string())?;
    let largest = expected
        .to_f64()
        .into_iter()
        .filter(|x| x.is_finite())
        .fold(0f64, |m, x| m.max(x.abs()));
    for at in 0..expected.numel() {
        let (a, b) = (ours.get(at).as_f64(), expected.get(at).as_f64());
        let around = near.iter().map(|t| t.get(at).as_f64());
        // Not a number here or there, or a jump: rounding decides, and nothing can be said.
        let unstable = around
            .clone()
            .any(|n| n.is_finite() != b.is_finite() || (!expected.dtype.is_float() && n != b));
        if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) || unstable {
            continue;
        }
        let spread = around.map(|n| (n - b).abs()).fold(0f64, f64::max);
        let ulps = match expected.dtype {
            DType::BF16 => 0.5,
            DType::F16 => 0.06,
            _ => 1e-5,
        };
        // A NaN is within nothing.
        let is_within = (a - b).abs() <= 64.0 * spread + ulps * largest.min(b.abs() + 1.0);
        if !is_within {
            return Err(format!(
                "element {at} is {a}, not {b} (neighbours differ by {spread})"
            ));
        }
    }
    Ok(())
}

/// Results for inputs a little above and a little below.
pub fn perturbed(graph: &Graph, inputs: &[HostTensor]) -> Neighbours {
    let moved = |by: f64| -> Vec<HostTensor> {
        let one = |(n, t): (usize, &HostTensor)| {
            if !t.dtype.is_float() {
                return t.clone();
            }
            // A step that the type can show, in a different direction for each element.
            let step = match t.dtype {
                DType::BF16 => 2f64.powi(-7),
                DType::F16 => 2f64.powi(-10),
                _ => 2f64.powi(-21),
            };
            let values: Vec<f64> = t
                .to_f64()
                .iter()
                .enumerate()
                .map(|(i, x)| {
                    let up = (i * 7 + n) % 3 != 0;
                    x * (1.0 + if up { by } else { -by } * step)
                })
                .collect();
            HostTensor::from_f64(t.dtype, &t.shape, &values).unwrap_or_else(|_| t.clone())
        };
        inputs.iter().enumerate().map(one).collect()
    };
    [1.0, -1.0]
        .iter()
        .filter_map(|&by| run(graph, &moved(by)).ok())
        .collect()
}
