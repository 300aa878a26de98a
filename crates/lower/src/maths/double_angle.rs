//! sin, cos and atan in f64.

use super::arith::Arith;

/// pi/2 in three parts.
const HALF_PI: [f64; 3] = [
    std::f64::consts::FRAC_PI_2,
    6.123_233_995_736_766e-17,
    -1.497_384_904_859_169_8e-33,
];
/// `1.5 * 2^52`.
const SHIFTER: f64 = 6_755_399_441_055_744.0;

/// `-1/3!, 1/5!, ...`.
const SIN: [f64; 8] = series(3);
/// `1/4!, -1/6!, ...`.
const COS: [f64; 8] = series(4);

/// `1/first!` and every second one from there, with alternating signs; odd factorials start below zero.
const fn series(first: u32) -> [f64; 8] {
    let mut terms = [0.0; 8];
    let mut factorial = 1.0;
    let mut n = 1;
    while n <= first {
        factorial *= n as f64;
        n += 1;
    }
    let mut i = 0;
    let mut sign = if first % 2 == 1 { -1.0 } else { 1.0 };
    while i < terms.len() {
        terms[i] = sign / factorial;
        factorial *= n as f64 * (n as f64 + 1.0);
        n += 2;
        sign = -sign;
        i += 1;
    }
    terms
}

/// `x = n pi/2 + r + lost` with `|r| <= pi/4`: `(n, r, lost)`. Holds up to 2^50; the product with the first part is exact, what the second loses is recovered.
fn reduce<A: Arith>(a: &A, x: A::D) -> (A::D, A::D, A::D) {
    let n = a.dround(a.dmul(x, a.double(std::f64::consts::FRAC_2_PI)));
    let first = a.dfma(n, a.double(-HALF_PI[0]), x);
    let second = a.dmul(n, a.double(HALF_PI[1]));
    let second_lost = a.dfma(n, a.double(-HALF_PI[1]), second);
    let r = a.dsub(first, second);
    let step = a.dsub(first, r);
    let difference_lost = a.dadd(a.dsub(first, a.dadd(r, step)), a.dsub(step, second));
    let lost = a.dfma(
        n,
        a.double(-HALF_PI[2]),
        a.dadd(difference_lost, second_lost),
    );
    (n, r, lost)
}

/// The bits of 2/pi that matter from 2^(50 + 40 i) on: those above contribute only multiples of 4 to `x * 2/pi`. 53 bits each, times 2^128, lest the last are denormal.
const TWO_OVER_PI: [[f64; 3]; 25] = [
    [
        2.1663048296990954e+38,
        9.994418223506554e+22,
        20241856.856973022,
    ],
    [
        4.4150970374148605e+27,
        352006233536.85693,
        3.943434809472814e-05,
    ],
    [
        2066884110638528.5,
        0.3569730280980947,
        3.5775109764137065e-18,
    ],
    [
        3520.856973028098,
        2.400337954349352e-13,
        4.8846931893997647e-29,
    ],
    [
        2.150285508786637e-09,
        3.220555575558692e-25,
        3.6071914606458764e-41,
    ],
    [
        3.031939000564402e-21,
        2.8715975065256596e-37,
        1.9040638433562882e-53,
    ],
    [
        2.267016426328286e-33,
        1.7721498852782707e-49,
        2.76721005147593e-65,
    ],
    [
        2.4921347379724064e-45,
        1.778986471140873e-61,
        8.572641060308486e-78,
    ],
    [
        3.9117078138307323e-60,
        4.0045850062478145e-74,
        9.132549299310984e-90,
    ],
    [
        1.4226306311394963e-69,
        5.76929444039337e-86,
        1.5793031390432373e-101,
    ],
    [
        1.8341324620718624e-81,
        1.911232848537868e-97,
        3.373243043598825e-114,
    ],
    [
        8.684080032625219e-94,
        9.857784634577134e-110,
        1.5981663228637486e-125,
    ],
    [
        5.649169506234268e-106,
        1.6965460576524009e-121,
        8.435906059866032e-138,
    ],
    [
        9.528272656586974e-118,
        8.973776349961194e-134,
        1.5770259575590472e-149,
    ],
    [
        1.3969553230196271e-129,
        4.1607079175718383e-147,
        1.5763216073876319e-161,
    ],
    [
        5.10455266655801e-142,
        4.976960744924557e-159,
        1.2634463741419238e-173,
    ],
    [
        3.4393354075691067e-154,
        4.164116026840121e-170,
        7.434845245611233e-186,
    ],
    [
        9.478518197868202e-166,
        1.2037104724842493e-181,
        1.0262509788920047e-197,
    ],
    [
        5.301822453766277e-178,
        9.519290117064577e-194,
        3.415151934316229e-210,
    ],
    [
        4.523750520690546e-190,
        8.118794830135086e-207,
        8.729379499356367e-222,
    ],
    [
        5.793014893526207e-202,
        8.980777205703655e-218,
        8.238644227847741e-234,
    ],
    [
        6.13253915782371e-214,
        3.5625778481109487e-230,
        8.958354634234815e-246,
    ],
    [
        4.659419514999966e-226,
        1.7794059120010272e-242,
        5.787830996861163e-258,
    ],
    [
        5.912732629374725e-238,
        2.116791155617205e-254,
        6.12989786144795e-270,
    ],
    [
        4.6990756050212126e-250,
        5.49906097438974e-266,
        3.998433952587086e-282,
    ],
];

/// From here on [`reduce`] does not hold.
const LARGE: f64 = 1_125_899_906_842_624.0;

/// As [`reduce`], for numbers of at least [`LARGE`]: `x * 2/pi` modulo 4 in pieces that are exact, with the bits of 2/pi chosen by the size of `x` (the idea of Payne and Hanek).
fn reduce_large<A: Arith>(a: &A, x: A::D) -> (A::D, A::D, A::D) {
    let size = a.dabs(x);
    let mut parts = TWO_OVER_PI[0].map(|part| a.double(part));
    for (i, row) in TWO_OVER_PI.iter().enumerate().skip(1) {
        let here = a.dlt(a.double(2f64.powi(50 + 40 * i as i32).next_down()), size);
        for (part, &bits) in parts.iter_mut().zip(row) {
            *part = a.dselect(here, a.double(bits), *part);
        }
    }
    let x = a.dmul(x, a.double(2f64.powi(-128)));
    let modulo_4 = |v: A::D| {
        let turns = a.dround(a.dmul(v, a.double(0.25)));
        a.dfma(turns, a.double(-4.0), v)
    };
    let product = |part: A::D| {
        let high = a.dmul(x, part);
        (high, a.dfma(x, part, a.dneg(high)))
    };
    let (first, first_lost) = product(parts[0]);
    let (second, second_lost) = product(parts[1]);
    let first = a.dadd(modulo_4(first), modulo_4(first_lost));
    let second = modulo_4(second);
    let n = a.dround(a.dadd(first, second));
    let left = a.dsub(first, n);
    let sum = |p: A::D, q: A::D| {
        let sum = a.dadd(p, q);
        let step = a.dsub(sum, p);
        (sum, a.dadd(a.dsub(p, a.dsub(sum, step)), a.dsub(q, step)))
    };
    let (f, first_rest) = sum(left, second);
    let (f, second_rest) = sum(f, a.dfma(x, parts[2], second_lost));
    let f_lost = a.dadd(first_rest, second_rest);
    let half_pi = a.double(HALF_PI[0]);
    let r = a.dmul(f, half_pi);
    let lost = a.dfma(f, half_pi, a.dneg(r));
    let lost = a.dadd(
        lost,
        a.dfma(f, a.double(HALF_PI[1]), a.dmul(f_lost, half_pi)),
    );
    (n, r, lost)
}

/// `sin(x + quarter turns)`.
fn wave<A: Arith>(a: &A, x: A::D, turns: f64) -> A::D {
    let large = a.dlt(a.double(LARGE), a.dabs(x));
    let ((n, r, lost), far) = (reduce(a, x), reduce_large(a, x));
    let n = a.dselect(large, far.0, n);
    let r = a.dselect(large, far.1, r);
    let lost = a.dselect(large, far.2, lost);
    let quadrant = a.dbits(a.dadd(n, a.double(SHIFTER + turns)));
    let z = a.dmul(r, r);
    let half = a.dmul(z, a.double(0.5));
    let one = a.double(1.0);
    let rest = a.dfma(
        a.dmul(z, r),
        a.dpoly(z, &SIN),
        a.dmul(lost, a.dsub(one, half)),
    );
    let sin = a.dadd(r, rest);
    let w = a.dsub(one, half);
    let w_lost = a.dsub(a.dsub(one, w), half);
    let rest = a.dfma(a.dmul(z, z), a.dpoly(z, &COS), a.dneg(a.dmul(r, lost)));
    let cos = a.dadd(w, a.dadd(w_lost, rest));
    let swapped = a.lnonzero(a.land(quadrant, a.long(1)));
    let y = a.dselect(swapped, cos, sin);
    let below = a.lnonzero(a.land(quadrant, a.long(2)));
    a.dselect(below, a.dneg(y), y)
}

pub fn sin<A: Arith>(a: &A, x: A::D) -> A::D {
    // A zero loses its sign against the shifter.
    a.dselect(a.deq(x, a.double(0.0)), x, wave(a, x, 0.0))
}

pub fn cos<A: Arith>(a: &A, x: A::D) -> A::D {
    wave(a, x, 1.0)
}

/// `atan(t) = t + t^3 q(t^2)`: relative error 2^-58 for `|t| <= tan(pi/8)`.
const ATAN: [f64; 13] = [
    -0.333_333_333_333_333_3,
    0.199_999_999_999_999_93,
    -0.142_857_142_857_115_15,
    0.111_111_111_107_544_06,
    -0.090_909_090_669_906_6,
    0.076_923_067_353_214_75,
    -0.066_666_420_049_965_45,
    0.058_819_250_338_777_32,
    -0.052_580_394_289_794_816,
    0.047_193_814_578_951_37,
    -0.041_043_814_178_076_43,
    0.030_634_433_239_014_52,
    -0.013_916_943_217_800_841,
];

/// An angle of 0, pi/4 or pi/2 first, then the polynomial of what is left.
pub fn atan<A: Arith>(a: &A, x: A::D) -> A::D {
    let one = a.double(1.0);
    let size = a.dabs(x);
    let middle = a.dlt(a.double(0.414_213_562_373_095_03), size);
    let far = a.dlt(a.double(2.414_213_562_373_095), size);
    let up = a.dselect(far, a.double(-1.0), a.dsub(size, one));
    let down = a.dselect(far, size, a.dadd(size, one));
    let t = a.dselect(middle, a.ddiv(up, down), size);
    let quarter = |part: f64| {
        let near = a.dselect(middle, a.double(part / 2.0), a.double(0.0));
        a.dselect(far, a.double(part), near)
    };
    let z = a.dmul(t, t);
    let rest = a.dfma(a.dmul(z, t), a.dpoly(z, &ATAN), quarter(HALF_PI[1]));
    let y = a.dadd(quarter(HALF_PI[0]), a.dadd(t, rest));
    let y = a.dselect(a.deq(size, a.double(f64::INFINITY)), quarter(HALF_PI[0]), y);
    a.dwith_sign(y, x)
}
