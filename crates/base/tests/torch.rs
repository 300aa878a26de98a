//! Conversions and promotion against torch, through the tables that `golden/generate.py` wrote.

use oxyfuel_base::DType;
use oxyfuel_base::convert::{Value, cast_bits, decode};
use oxyfuel_base::promote;

fn is_nan(dtype: DType, bits: u64) -> bool {
    matches!(decode(dtype, bits), Value::F(x) if x.is_nan())
}

fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap()
}

/// The lines of a table as what stands before the colon and the words after it.
fn lines(table: &'static str) -> impl Iterator<Item = (Vec<&'static str>, Vec<&'static str>)> {
    table.lines().map(|line| {
        let (head, rest) = line.split_once(": ").unwrap();
        (head.split(' ').collect(), rest.split(' ').collect())
    })
}

/// Checks `input output` pairs of a cast; returns how many there were.
fn check_pairs(from: DType, to: DType, words: &[&str]) -> usize {
    for pair in words.chunks_exact(2) {
        let (input, expected) = (hex(pair[0]), hex(pair[1]));
        let got = cast_bits(input, from, to);
        assert_eq!(
            got, expected,
            "{from} {input:#x} to {to}: {got:#x}, torch {expected:#x}"
        );
    }
    words.len() / 2
}

#[test]
fn every_code_of_the_small_formats_decodes() {
    let mut codes = 0;
    for (head, words) in lines(include_str!("golden/decode.txt")) {
        let dtype: DType = head[0].parse().unwrap();
        assert_eq!(words.len() as u64, dtype.mask() + 1);
        for (code, word) in (0..).zip(&words) {
            let got = cast_bits(code, dtype, DType::F32);
            match *word {
                "nan" => assert!(is_nan(DType::F32, got), "{dtype} {code:#x}"),
                word => assert_eq!(got, hex(word), "{dtype} {code:#x}"),
            }
            codes += 1;
        }
    }
    assert_eq!(codes, 3 * 256 + 16);
}

#[test]
fn every_rounding_case_encodes() {
    let mut formats = 0;
    for (head, words) in lines(include_str!("golden/encode.txt")) {
        let to: DType = head[0].parse().unwrap();
        assert!(check_pairs(DType::F32, to, &words) >= 36);
        formats += 1;
    }
    assert_eq!(formats, 6);
}

#[test]
fn f64_rounds_through_f32() {
    let mut formats = 0;
    for (head, words) in lines(include_str!("golden/wide.txt")) {
        check_pairs(DType::F64, head[0].parse().unwrap(), &words);
        formats += 1;
    }
    assert_eq!(formats, 7);
}

#[test]
fn ints_bools_and_floats_cast() {
    let mut pairs = 0;
    for (head, words) in lines(include_str!("golden/ints.txt")) {
        pairs += check_pairs(head[0].parse().unwrap(), head[1].parse().unwrap(), &words);
    }
    assert!(pairs > 4000, "{pairs}");
}

/// FNV-1a over words, as the generator computes it.
fn fnv(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |h, w| {
        (h ^ w).wrapping_mul(0x100_0000_01b3)
    })
}

/// The f32 bits of a code, of its midpoint to the next code and of that one's neighbours.
fn around(a: u64, b: u64) -> Vec<u64> {
    let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
    if !x.is_finite() || !y.is_finite() {
        return vec![a];
    }
    let mid = u64::from((((f64::from(x) + f64::from(y)) / 2.0) as f32).to_bits());
    vec![a, mid - 1, mid, mid + 1]
}

#[test]
fn every_f16_and_bf16_code_and_midpoint() {
    for (head, words) in lines(include_str!("golden/half.txt")) {
        let dtype: DType = head[0].parse().unwrap();
        let canonical = |dtype: DType, bits| match dtype {
            _ if !is_nan(dtype, bits) => bits,
            DType::F32 => 0x7fc0_0000,
            DType::F16 => 0x7e00,
            _ => 0x7fc0,
        };
        let value = |code| cast_bits(code, dtype, DType::F32);
        for (block, word) in (0..).zip(&words) {
            let codes = 256 * block..256 * block + 256;
            let got = match head[1] {
                "decode" => fnv(codes.map(|code| canonical(DType::F32, value(code)))),
                _ => fnv(codes.flat_map(|code| {
                    let next = (code & 0x8000) | ((code & 0x7fff) + 1).min(0x7fff);
                    around(value(code), value(next))
                        .into_iter()
                        .map(|x| canonical(dtype, cast_bits(x, DType::F32, dtype)))
                })),
            };
            assert_eq!(got, hex(word), "{} block {block}", head.join(" "));
        }
        assert_eq!(words.len(), 256);
    }
}

#[test]
fn promotion_is_torchs() {
    let mut pairs = 0;
    for line in include_str!("golden/promote.txt").lines() {
        let words: Vec<_> = line.split(' ').collect();
        let got = promote(words[0].parse().unwrap(), words[1].parse().unwrap());
        assert_eq!(got.map_or("-", |d| d.name()), words[2], "{line}");
        pairs += 1;
    }
    assert_eq!(pairs, 16 * 16);
}
