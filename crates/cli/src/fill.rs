//! Inputs from a seed, the same bits in every engine.
//!
//! Element `i` of seed `s` comes from one 64-bit hash by integer arithmetic and one rounding, so that an engine in another language makes the same tensor
//! (`bench/engines/torch_engine.py` does). `normal` is the sum of four 16-bit parts of the hash, centred and scaled to variance 1: bell-shaped within 3.5 deviations;
//! a scale multiplies it, in f32, before it is rounded to the input's dtype: a weight of many rows with plain normal numbers would make sums that no model has.

use oxyfuel_base::{DType, Result, Scalar, err};
use oxyfuel_graph::HostTensor;

use crate::define::Input;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Mean 0, and this deviation.
    Normal { scale: f32 },
    /// Both ends included.
    Integers { low: i64, high: i64 },
}

/// Mean 0, variance 1.
const NORMAL: Fill = Fill::Normal { scale: 1.0 };

/// 1 / sqrt(4 * (65536^2 - 1) / 12): what makes the variance of four 16-bit numbers 1.
const SCALE: f32 = 1.0 / 37_837.227;
/// Twice the largest 16-bit number: the mean of four of them.
const CENTRE: i32 = 131_070;

impl Fill {
    pub fn from_name(name: &str, scale: Option<f32>, low: i64, high: i64) -> Result<Self> {
        let sound = |scale: f32| scale.is_normal() && scale > 0.0;
        match (name, scale) {
            ("normal", None) => Ok(NORMAL),
            ("normal", Some(scale)) if sound(scale) => Ok(Fill::Normal { scale }),
            ("normal", Some(scale)) => Err(err!(
                InvalidArgument,
                "normal numbers cannot have the scale {scale}"
            )
            .help("a scale is a finite number above 0; left out, it is 1")),
            ("integers", Some(_)) => Err(err!(InvalidArgument, "integers have no scale")
                .help("say low and high; scale belongs to normal numbers")),
            ("integers", None) if low <= high => Ok(Fill::Integers { low, high }),
            _ => Err(err!(UnknownName, "no fill `{name}` from {low} to {high}")
                .help("fills are normal, with a scale or not, and integers with low and high")),
        }
    }

    /// What suits a dtype when nobody says.
    pub fn usual(dtype: DType) -> Self {
        if dtype.is_float() {
            NORMAL
        } else {
            Fill::Integers { low: 0, high: 1 }
        }
    }
}

impl Input {
    /// The tensor.
    pub fn make(&self) -> Result<HostTensor> {
        let count = oxyfuel_graph::tensor::byte_len(self.dtype, &self.shape)? / self.dtype.size();
        let hashes = (0..count as u64).map(|i| hash(self.seed, i));
        let data: Vec<u8> = match (self.fill, self.dtype) {
            (Fill::Normal { scale }, DType::F32) => hashes
                .flat_map(|h| (normal(h) * scale).to_le_bytes())
                .collect(),
            (Fill::Normal { scale }, dtype) => hashes
                .flat_map(|h| element(dtype, Scalar::F(f64::from(normal(h) * scale))))
                .collect(),
            (Fill::Integers { low, high }, dtype) => hashes
                .flat_map(|h| {
                    let span = high.abs_diff(low).saturating_add(1);
                    element(dtype, Scalar::I(low.wrapping_add_unsigned(h % span)))
                })
                .collect(),
        };
        HostTensor::new(self.dtype, &self.shape, data)
    }
}

/// One element's bytes.
fn element(dtype: DType, value: Scalar) -> impl Iterator<Item = u8> {
    value
        .to_bits(dtype)
        .to_le_bytes()
        .into_iter()
        .take(dtype.size())
}

/// The finaliser of splitmix64 over a counter.
fn hash(seed: u64, index: u64) -> u64 {
    let mut z = index
        .wrapping_add(seed << 40)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn normal(h: u64) -> f32 {
    let part = |shift: u32| i32::from((h >> shift) as u16);
    (part(0) + part(16) + part(32) + part(48) - CENTRE) as f32 * SCALE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(dtype: DType, fill: Fill) -> Input {
        Input {
            name: "x".to_owned(),
            dtype,
            shape: vec![100, 100],
            fill,
            seed: 1,
        }
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let x = input(DType::F32, NORMAL).make().unwrap().to_f64();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / x.len() as f64;
        assert!(
            mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
    }

    #[test]
    fn a_scale_multiplies_normal_numbers_and_nothing_else() {
        let fill = Fill::from_name("normal", Some(0.02), 0, 0).unwrap();
        let scaled = input(DType::F32, fill).make().unwrap();
        let plain = input(DType::F32, NORMAL).make().unwrap();
        let pairs = scaled.to_f64().into_iter().zip(plain.to_f64());
        for (scaled, plain) in pairs {
            assert_eq!(scaled as f32, plain as f32 * 0.02);
        }
        for (name, scale) in [
            ("normal", 0.0),
            ("normal", -1.0),
            ("normal", f32::NAN),
            ("normal", f32::INFINITY),
            ("integers", 2.0),
        ] {
            let error = Fill::from_name(name, Some(scale), 0, 1).unwrap_err();
            assert_eq!(error.code, oxyfuel_base::Code::InvalidArgument);
        }
    }

    /// Other engines make the same numbers: these are the first ones that they must see.
    #[test]
    fn the_first_numbers_never_change() {
        let hashes: Vec<u64> = (0..3).map(|i| hash(1, i)).collect();
        assert_eq!(
            hashes,
            [
                0xe902_01ba_ecc3_eb77,
                0x1937_167e_168d_9372,
                0x0b9f_1c6e_4cad_87c8
            ]
        );
    }

    #[test]
    fn integers_stay_inside() {
        let x = input(DType::I8, Fill::Integers { low: -3, high: 5 });
        let x = x.make().unwrap().to_f64();
        assert!(x.iter().all(|v| (-3.0..=5.0).contains(v)));
        assert!(x.contains(&-3.0) && x.contains(&5.0));
    }
}
