//! Methods of [`Tensor`] against PyTorch, family by family: every row of the tables here is run eagerly, compiled (to machine code alone) and in the interpreter, and its results are those that `golden.py` wrote into `*.txt`.

#[path = "../it/agree.rs"]
mod agree;
mod arrange;
mod elements;
mod fuzz;
mod gradients;
mod losses;
mod mistakes;
mod others;
mod select;
mod sizes;
mod sources;
mod statistics;
mod table;
mod windows;
mod writes;

use oxyfuel::{CodeKind, DType, Result, Tensor, bf16};
use oxyfuel_testkit::compare;
use std::collections::{BTreeMap, BTreeSet};

/// One row: dtypes by letter (f: f32, b: bf16, i: i64), the shapes of the inputs, and what is computed of them.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    pub dtypes: &'static str,
    pub shapes: &'static [&'static [i64]],
    pub f: fn(&[Tensor]) -> Result<Vec<Tensor>>,
}

/// Rows: `name dtypes [shapes] (inputs) => results;`.
macro_rules! cases {
    ($($name:ident $dtypes:ident [$($shape:expr),*] ($($x:pat),*) => $out:expr;)*) => {
        pub const CASES: &[crate::Case] = &[$(crate::Case {
            name: stringify!($name),
            dtypes: stringify!($dtypes),
            shapes: &[$(&$shape),*],
            f: |inputs| {
                let [$($x),*] = inputs else { panic!("inputs") };
                oxyfuel::Outputs::into_tensors($out)
            },
        }),*];
    };
}
pub(crate) use cases;

/// The elements of input number `seed`: a function of their positions that `golden.py` knows too.
pub fn numbers(shape: &[i64], seed: i64, letter: char) -> Tensor {
    let count: i64 = shape.iter().product();
    let whole: Vec<i64> = (0..count)
        .map(|i| (i * 37 + seed * 11 + 5) % 101 - 50)
        .collect();
    let halves = || whole.iter().map(|&n| n as f32 / 16.0);
    match letter {
        'f' => Tensor::from_vec(halves().collect::<Vec<f32>>(), shape),
        'b' => Tensor::from_vec(halves().map(bf16::from_f32).collect(), shape),
        'i' => Tensor::from_vec(whole, shape),
        other => panic!("no dtype {other}"),
    }
}

/// NaN, the infinities and zeros.
pub fn edges(like: &Tensor) -> Tensor {
    let all = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        0.0,
        1.5,
        -2.25,
    ];
    Tensor::from_slice(&all, &[7]).to(like.dtype())
}

pub fn ints(all: &[i64]) -> Tensor {
    Tensor::from_slice(all, &[all.len() as i64])
}

/// Results by case and dtype.
fn expected(text: &str) -> BTreeMap<&str, Vec<Vec<&str>>> {
    let mut all: BTreeMap<&str, Vec<Vec<&str>>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        all.entry(name).or_default().push(words.skip(1).collect());
    }
    all
}

/// Runs all rows of a family; every line of its file is asked for.
pub fn judge(cases: &[Case], text: &str) {
    let expected = expected(text);
    let mut asked = BTreeSet::new();
    for case in cases {
        for letter in case.dtypes.chars() {
            let name = format!("{}:{letter}", case.name);
            let inputs: Vec<Tensor> = (0..)
                .zip(case.shapes)
                .map(|(seed, shape)| numbers(shape, seed, letter))
                .collect();
            let results = (case.f)(&inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
            let lines = expected
                .get(name.as_str())
                .unwrap_or_else(|| panic!("{name}: not in the file"));
            assert_eq!(results.len(), lines.len(), "{name}: results");
            for (i, (ours, line)) in results.iter().zip(lines).enumerate() {
                same(&format!("{name}, result {i}"), ours, line);
            }
            for variant in &agree::check(&name, case.f, &inputs).explain().variants {
                for kernel in &variant.kernels {
                    assert_eq!(kernel.code, CodeKind::Machine, "{name}: {}", kernel.name);
                }
            }
            asked.insert(name);
        }
    }
    let missing: Vec<_> = expected.keys().filter(|k| !asked.contains(**k)).collect();
    assert!(missing.is_empty(), "not asked for: {missing:?}");
}

fn same(name: &str, ours: &Tensor, line: &[&str]) {
    let values = ours
        .to_f64()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(ours.dtype().to_string(), line[0], "{name}: dtype");
    let shape: Vec<i64> = match line[1] {
        "-" => vec![],
        text => text.split('x').map(|n| n.parse().unwrap()).collect(),
    };
    assert_eq!(ours.shape(), shape, "{name}: shape");
    let expected: Vec<f64> = line[2..]
        .iter()
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().unwrap())
        .collect();
    let format = match ours.dtype() {
        DType::F64 => &compare::F64,
        DType::F32 => &compare::F32,
        DType::BF16 => &compare::BF16,
        _ => {
            assert_eq!(values, expected, "{name}");
            return;
        }
    };
    compare::is_close(format, &values, &expected).unwrap_or_else(|why| panic!("{name}: {why}"));
}
