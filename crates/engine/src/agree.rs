//! When two results of one computation count as equal.
//!
//! Integers and truth values are equal or not. Floats agree when every pair is within PyTorch's default tolerance for the type, or when the largest difference is
//! a few units in the last place of the largest magnitude: sums may be taken in another order. NaN and infinities stand in the same places.
//! Where no rounding is left to choice, [`same`] asks for the very bits.

use oxyfuel_base::{DType, Scalar};
use oxyfuel_kernel::{Inst, Op, Program, ReduceOp, UnaryOp};

/// Units in the last place of the largest magnitude that another order of summation may cost.
const ORDER_ULPS: f64 = 64.0;

/// Relative and absolute tolerance, and the distance from 1 to the next number.
fn tolerance(dtype: DType) -> (f64, f64, f64) {
    match dtype {
        DType::F64 => (1e-7, 1e-7, f64::EPSILON),
        DType::F32 => (1.3e-6, 1e-5, f64::from(f32::EPSILON)),
        DType::F16 => (1e-3, 1e-5, 2f64.powi(-10)),
        DType::BF16 => (1.6e-2, 1e-5, 2f64.powi(-7)),
        DType::F8E4M3 => (0.125, 1e-3, 0.125),
        DType::F8E5M2 => (0.25, 1e-3, 0.25),
        DType::F4E2M1 | DType::E8M0 => (0.0, 0.0, 0.0),
        DType::Bool
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64 => (0.0, 0.0, 0.0),
    }
}

/// Whether a mapped program says every rounding: then all ways to run it give the same bits. What is left open is the order in which floats are combined, and
/// how near a near function comes, and whether the root inside of a reciprocal root is rounded.
pub fn is_exact(program: &Program) -> bool {
    let mut exact = true;
    program.walk(|inst| exact &= !is_open(program, inst));
    exact
}

fn is_open(program: &Program, inst: &Inst) -> bool {
    let float = inst
        .results
        .first()
        .and_then(|&v| program.value(v).ty.as_tile())
        .is_none_or(|tile| tile.dtype.is_float());
    match &inst.op {
        Op::Reduce { op, .. } | Op::Scan { op, .. } | Op::Atomic { op, .. } => {
            float && matches!(op, ReduceOp::Sum | ReduceOp::Prod)
        }
        Op::Dot { .. } | Op::Mma { .. } | Op::MmaWait { .. } => float,
        Op::Unary { op, .. } => {
            matches!(op, UnaryOp::Rsqrt | UnaryOp::NearRecip | UnaryOp::NearExp2)
        }
        _ => false,
    }
}

/// Compares elements bit for bit; only NaN has many forms.
pub fn same(dtype: DType, ours: &[u8], expected: &[u8]) -> Result<(), String> {
    if ours == expected {
        return Ok(());
    }
    if ours.len() != expected.len() {
        return Err(format!("{} bytes, not {}", ours.len(), expected.len()));
    }
    let size = dtype.size();
    let pairs = ours.chunks_exact(size).zip(expected.chunks_exact(size));
    let nan = |bytes: &[u8]| dtype.is_float() && scalar(dtype, bytes).as_f64().is_nan();
    match pairs
        .enumerate()
        .find(|(_, (a, b))| a != b && !(nan(a) && nan(b)))
    {
        None => Ok(()),
        Some((at, (a, b))) => Err(format!(
            "element {at} is {}, not exactly {}",
            show(dtype, a),
            show(dtype, b)
        )),
    }
}

/// Whether one element is within PyTorch's default tolerance for its type.
pub fn is_close(dtype: DType, ours: f64, expected: f64) -> bool {
    let (relative, absolute, _) = tolerance(dtype);
    ours == expected
        || (ours.is_nan() && expected.is_nan())
        || (expected.is_finite() && (ours - expected).abs() <= absolute + relative * expected.abs())
}

/// Compares elements of one type, little-endian; says in a sentence what disagrees first.
pub fn agree(dtype: DType, ours: &[u8], expected: &[u8]) -> Result<(), String> {
    if ours == expected {
        return Ok(());
    }
    if ours.len() != expected.len() {
        return Err(format!("{} bytes, not {}", ours.len(), expected.len()));
    }
    let size = dtype.size();
    if !dtype.is_float() {
        let pairs = ours.chunks_exact(size).zip(expected.chunks_exact(size));
        let (at, (a, b)) = pairs
            .enumerate()
            .find(|(_, (a, b))| a != b)
            .unwrap_or((0, (ours, expected)));
        return Err(format!(
            "element {at} is {}, not {}",
            show(dtype, a),
            show(dtype, b)
        ));
    }
    let (_, _, epsilon) = tolerance(dtype);
    let values = |bytes: &[u8]| -> Vec<f64> {
        bytes
            .chunks_exact(size)
            .map(|b| scalar(dtype, b).as_f64())
            .collect()
    };
    let (ours, expected) = (values(ours), values(expected));
    let largest = expected
        .iter()
        .filter(|x| x.is_finite())
        .fold(0f64, |m, x| m.max(x.abs()));
    let slack = ORDER_ULPS * epsilon * largest;
    let bad = |&(_, (a, b)): &(usize, (&f64, &f64))| {
        // Infinities and NaN are in nobody's slack, which is finite.
        let good = is_close(dtype, *a, *b) || (a - b).abs() <= slack;
        !good
    };
    match ours.iter().zip(&expected).enumerate().find(bad) {
        None => Ok(()),
        Some((at, (a, b))) => Err(format!("element {at} is {a}, not {b}")),
    }
}

fn scalar(dtype: DType, bytes: &[u8]) -> Scalar {
    let mut word = [0; 8];
    word[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    Scalar::from_bits(dtype, u64::from_le_bytes(word))
}

fn show(dtype: DType, bytes: &[u8]) -> String {
    scalar(dtype, bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn close_floats_agree_and_far_ones_do_not() {
        assert_eq!(
            agree(
                DType::F32,
                &floats(&[1.0, f32::NAN]),
                &floats(&[1.000_000_1, f32::NAN])
            ),
            Ok(())
        );
        assert!(agree(DType::F32, &floats(&[1.0]), &floats(&[1.001])).is_err());
        assert!(agree(DType::F32, &floats(&[f32::INFINITY]), &floats(&[f32::MAX])).is_err());
        assert!(agree(DType::F32, &floats(&[f32::NAN]), &floats(&[0.0])).is_err());
    }

    #[test]
    fn integers_agree_exactly() {
        let why = agree(DType::I32, &[1, 0, 0, 0], &[2, 0, 0, 0]).unwrap_err();
        assert_eq!(why, "element 0 is 1, not 2");
    }
}
