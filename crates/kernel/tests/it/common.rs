//! Numbers in and out of buffers.

use oxyfuel_kernel::{DType, Scalar};

/// The bytes of numbers in a dtype.
pub fn bytes_of(dtype: DType, values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&x| Scalar::F(x).to_bits(dtype).to_le_bytes()[..dtype.size()].to_vec())
        .collect()
}

pub fn values_of(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(dtype.size())
        .map(|chunk| {
            let mut code = [0; 8];
            code[..chunk.len()].copy_from_slice(chunk);
            Scalar::from_bits(dtype, u64::from_le_bytes(code)).as_f64()
        })
        .collect()
}

/// The values after rounding to a dtype.
pub fn rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    values_of(dtype, &bytes_of(dtype, values))
}

/// Numbers between -2 and 2 that look random and are the same every time.
pub fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f64 / (1u64 << 22) as f64) - 2.0
        })
        .collect()
}

pub fn assert_close(ours: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), expected.len());
    for (i, (a, b)) in ours.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * b.abs().max(1.0),
            "element {i}: {a} instead of {b}"
        );
    }
}

/// `a [m, k] @ b [k, n]`.
pub fn matmul(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            c[i * n + j] = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
        }
    }
    c
}
