//! pow: the special cases of C, a sample against f64, and the interpreter against plain f32.

mod maths_truth;

use maths_truth::ulp_error;
use oxyfuel_kernel::builder::KernelBuilder;
use oxyfuel_kernel::interp::{self, Arg};
use oxyfuel_kernel::{BufferMode, DType};
use oxyfuel_lower::maths::expand;
use oxyfuel_lower::maths::native::Native;
use oxyfuel_lower::maths::power::pow;

const SPECIAL: [f32; 22] = [
    0.0,
    1.0,
    0.5,
    2.0,
    3.0,
    2.5,
    1e-40,
    1e-45,
    f32::MAX,
    f32::INFINITY,
    f32::NAN,
    16_777_216.0,
    16_777_215.0,
    8_388_607.5,
    1e10,
    0.999_999_94,
    1.000_000_1,
    127.0,
    128.0,
    149.0,
    150.0,
    0.333_333,
];

/// All pairs of special numbers and their opposites, then bases of every size with exponents that spread the results over the range of f32.
fn pairs() -> Vec<(f32, f32)> {
    let signed = || SPECIAL.iter().flat_map(|x| [*x, -x]);
    let mut pairs: Vec<(f32, f32)> = signed()
        .flat_map(|x| signed().map(move |y| (x, y)))
        .collect();
    for (i, bits) in (0..1u64 << 32).step_by(65_521).enumerate() {
        let x = f32::from_bits(bits as u32);
        let share = (i as f64 * 0.618_033_988_7).fract() - 0.5;
        let y = share * 310.0 / f64::from(x.abs()).log2();
        pairs.extend([(x.abs(), y as f32), (x, (share * 40.0).round() as f32)]);
    }
    pairs
}

#[test]
fn within_one_ulp_of_f64() {
    for (x, y) in pairs() {
        let (got, want) = (pow(&Native, x, y), f64::from(x).powf(f64::from(y)));
        let error = ulp_error(got, want);
        assert!(
            error < 0.8,
            "{x:e} ^ {y:e} = {got:e}, not {want:e}: {error} ulp"
        );
    }
}

#[test]
fn the_interpreter_gives_the_same_bits() {
    let pairs: Vec<(f32, f32)> = pairs().into_iter().step_by(7).collect();
    let len = pairs.len() as i64;
    let k = KernelBuilder::new("pow");
    let [x, y] = ["x", "y"].map(|name| k.buffer(name, DType::F32, BufferMode::Read, len));
    let z = k.buffer("z", DType::F32, BufferMode::Write, len);
    k.phase([1], |k| {
        let [x, y] = [&x, &y].map(|mem| k.load(mem.at(0).shape([len])));
        k.store(z.at(0).shape([len]), x.pow(&y));
    });
    let program = expand(k.finish().expect("a valid program"), &|_, _| false).expect("pow expands");
    let bytes =
        |of: fn(&(f32, f32)) -> f32| pairs.iter().flat_map(|p| of(p).to_le_bytes()).collect();
    let (xs, ys): (Vec<u8>, Vec<u8>) = (bytes(|p| p.0), bytes(|p| p.1));
    let mut zs = vec![0; xs.len()];
    let dtype = DType::F32;
    let mut args = [
        Arg::Input { dtype, bytes: &xs },
        Arg::Input { dtype, bytes: &ys },
        Arg::Buffer {
            dtype,
            bytes: &mut zs,
        },
    ];
    interp::run(&program, &mut args).expect("the program runs");
    for ((x, y), got) in pairs.iter().zip(zs.chunks_exact(4)) {
        let got = f32::from_le_bytes(got.try_into().expect("four bytes"));
        let want = pow(&Native, *x, *y);
        assert!(
            got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
            "{x:e} ^ {y:e}: {got:e} instead of {want:e}"
        );
    }
}
