//! erf and erfc in f64: a power series near zero, `e^(-x^2)` times a polynomial elsewhere.

use super::arith::Arith;
use super::double::exp;

/// `erf(x) = x + x p(x^2)`: the power series, to 2^-57 below 1.
const ERF: [f64; 19] = [
    0.128_379_167_095_512_6,
    -0.376_126_389_031_837_54,
    0.112_837_916_709_551_26,
    -0.026_866_170_645_131_252,
    0.005_223_977_625_442_188,
    -0.000_854_832_702_345_085_3,
    0.000_120_553_329_817_896_64,
    -1.492_565_035_840_625e-5,
    1.646_211_436_588_924_8e-6,
    -1.636_584_469_123_492_4e-7,
    1.480_719_281_587_921_8e-8,
    -1.229_055_530_171_792_8e-9,
    9.422_759_064_650_411e-11,
    -6.711_366_855_164_110_5e-12,
    4.463_224_263_286_477_5e-13,
    -2.783_516_207_210_921_5e-14,
    1.634_261_409_536_715_2e-15,
    -9.063_970_842_808_673e-17,
    4.763_348_040_515_068e-18,
];

/// `(1 + 2 x) e^(x^2) erfc(x)` in `t = (x - CENTRE) / (x + CENTRE)`: relative error 2^-53 for `x` from 1/2 to 28.
const ERFCX: [f64; 21] = [
    1.237_512_630_837_827_5,
    -0.140_240_598_585_546_74,
    0.003_585_415_485_463_994_7,
    0.082_276_738_490_117_52,
    -0.108_803_930_141_751_17,
    0.092_304_321_161_442_94,
    -0.058_693_398_588_857_31,
    0.028_362_277_400_278_118,
    -0.009_746_579_577_035_586,
    0.001_755_626_032_096_353_3,
    0.000_293_713_874_691_426_74,
    -0.000_290_155_111_542_433_44,
    5.164_780_741_855_856e-5,
    2.238_795_673_013_135e-5,
    -1.143_929_427_776_092_5e-5,
    -9.820_517_422_109_98e-7,
    1.740_269_903_212_129e-6,
    -4.521_082_371_601_464_6e-8,
    -2.423_314_080_839_947_5e-7,
    1.350_875_974_161_026e-8,
    2.526_555_753_164_292_6e-8,
];
const CENTRE: f64 = 3.75;

fn near<A: Arith>(a: &A, x: A::D) -> A::D {
    a.dfma(x, a.dpoly(a.dmul(x, x), &ERF), x)
}

/// erfc of a number that is at least 1/2. The square is taken with what its rounding loses, which the exponential would blow up.
fn far<A: Arith>(a: &A, x: A::D) -> A::D {
    let x = a.dmin(a.dmax(x, a.double(0.5)), a.double(28.0));
    let square = a.dmul(x, x);
    let lost = a.dfma(x, x, a.dneg(square));
    let centre = a.double(CENTRE);
    let t = a.ddiv(a.dsub(x, centre), a.dadd(x, centre));
    let w = a.ddiv(a.dpoly(t, &ERFCX), a.dfma(x, a.double(2.0), a.double(1.0)));
    let y = a.dmul(exp(a, a.dneg(square)), w);
    a.dfma(y, a.dneg(lost), y)
}

pub fn erf<A: Arith>(a: &A, x: A::D) -> A::D {
    let size = a.dabs(x);
    let one = a.double(1.0);
    let outer = a.dwith_sign(a.dsub(one, far(a, size)), x);
    a.dselect(a.dlt(size, one), near(a, x), outer)
}

/// `1 - erf(x)` without cancellation.
pub fn erfc<A: Arith>(a: &A, x: A::D) -> A::D {
    let size = a.dabs(x);
    let tail = far(a, size);
    let outer = a.dselect(a.dlt(x, a.double(0.0)), a.dsub(a.double(2.0), tail), tail);
    let inner = a.dsub(a.double(1.0), near(a, x));
    a.dselect(a.dlt(size, a.double(0.5)), inner, outer)
}
