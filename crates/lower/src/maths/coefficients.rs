//! Polynomials and split constants. Found and printed by `tools/minimax.py`; the comment above each is what it measured.

pub(crate) const LOG2E: f32 = std::f32::consts::LOG2_E;
pub(crate) const LOG2E_LO: f32 = 1.925_963e-8;
/// ln 2 happens to lie near an f32: its relative error is 2^-28.4.
pub(crate) const LN2: f32 = std::f32::consts::LN_2;
/// 15 bits, so that its products with small integers are exact.
pub(crate) const LN2_HI: f32 = 0.693_145_75;
pub(crate) const LN2_LO: f32 = 1.428_606_8e-6;

/// Relative error of e^r: 3.12e-9 = 2^-28.26 on [-0.346608, 0.346608].
pub(crate) const EXP: [f32; 5] = [
    0.49999994,
    0.16666521,
    0.041668255,
    0.008368663,
    0.001382147,
];
/// `EXP` for half of `e^2r - 1`: coefficient `i` times `2^(i+1)`.
pub(crate) const EXP_OF_DOUBLE: [f32; 5] = [
    2.0 * EXP[0],
    4.0 * EXP[1],
    8.0 * EXP[2],
    16.0 * EXP[3],
    32.0 * EXP[4],
];
/// Relative error of e^x - 1: 4.4e-10 = 2^-31.08 on [-0.346608, 0.346608].
pub(crate) const EXPM1: [f32; 6] = [
    0.5,
    0.16666666,
    0.041666485,
    0.008333577,
    0.0013933028,
    0.00019732906,
];
/// Relative error of 2^f: 2.99e-9 = 2^-28.32 on [-0.5, 0.5].
pub(crate) const EXP2: [f32; 6] = [
    std::f32::consts::LN_2,
    0.24022648,
    0.0555036,
    0.009618506,
    0.0013390806,
    0.00015326471,
];
/// Error of 2^f, which is 1 at 0: 1.18e-7 = 2^-23.01 on [0, 1].
pub(crate) const NEAR_EXP2: [f32; 5] =
    [0.6931525, 0.2401528, 0.055835932, 0.008973372, 0.0018853005];
/// Relative error of log(1+f): 4.19e-9 = 2^-27.83 on [-0.292893, 0.414214].
pub(crate) const LOG: [f32; 9] = [
    -0.49999988,
    0.33333325,
    -0.2500161,
    0.20002005,
    -0.16608411,
    0.14180854,
    -0.13248065,
    0.12912925,
    -0.0761903,
];
/// Relative error of log(1+f): 6e-9 = 2^-27.3 on [-0.25, 0.5]. The last coefficient is moved by 1e-6 from where the fit left it (-0.04515227): that
/// rounds f = 1/2 up, without which one input, -0.25 + 2^-26, would be off by 1.13 ulp.
pub(crate) const LOG1P: [f32; 9] = [
    -0.5,
    0.3333345,
    -0.2500011,
    0.19990848,
    -0.16646878,
    0.1447763,
    -0.13163936,
    0.10472551,
    -0.04515127,
];
/// Relative error of log2(1+f): 4.62e-9 = 2^-27.69 on [-0.292893, 0.414214].
pub(crate) const LOG2: [f32; 9] = [
    -0.72134733,
    0.4808982,
    -0.36069867,
    0.28857142,
    -0.23956735,
    0.20448661,
    -0.19139092,
    0.18708788,
    -0.11025499,
];
/// Relative error of tanh(x), in x^2: 2.35e-9 = 2^-28.66 on [0.0, 0.9025].
pub(crate) const TANH: [f32; 7] = [
    -0.33333313,
    0.13332747,
    -0.053909652,
    0.02158804,
    -0.008119415,
    0.0024464873,
    -0.00040578932,
];
/// Relative error of erf(x), in x^2: 1.43e-9 = 2^-29.39 on [0.0, 1.0].
pub(crate) const ERF_NEAR: [f32; 7] = [
    0.12837917,
    -0.37612626,
    0.11283579,
    -0.026853347,
    0.005187162,
    -0.0007997853,
    7.806904e-05,
];
/// Relative error of erf(x): 1.08e-9 = 2^-29.79 on [1.0, 3.95].
pub(crate) const ERF_FAR: [f32; 7] = [
    -0.00034154893,
    -1.127089,
    -0.6381452,
    -0.10310635,
    0.021837838,
    -0.0029475954,
    0.00018637232,
];
/// Of the logarithm to base 2 of erfc(x), by x. Relative error of erfc: at most 0.61 (1e-7 + 4.2e-8 of the logarithm's size) on [0.0, 3.6], from there on e^4(x - 3.6) times that. Found by
/// weighted least squares, again and again with weights that grow where the error is large, and rounded one coefficient after the other.
pub(crate) const LOG2_ERFC: [f32; 10] = [
    -1.6279112,
    -0.918386,
    -0.14857787,
    0.02832161,
    -0.0006172971,
    -0.0018203119,
    0.0006961307,
    -0.00013516756,
    1.4212174e-05,
    -6.39908e-07,
];
/// Relative error of sin(x), in x^2: 3.98e-9 = 2^-27.9 on [0.0, 0.617097].
pub(crate) const SIN: [f32; 3] = [-0.16666655, 0.008332189, -0.00019518279];
/// Relative error of cos(x), in x^2: 1.18e-10 = 2^-32.99 on [0.0, 0.617097].
pub(crate) const COS: [f32; 3] = [0.041666646, -0.001388731, 2.4432327e-05];

/// pi/2 in f32 parts.
pub(crate) const HALF_PI: [f32; 3] = [1.5707964, -4.371139e-8, -1.7151245e-15];
/// The bits of 2/pi: 53, 53, and the rest rounded.
pub(crate) const TWO_OVER_PI: [f64; 3] = [
    0.6366197723675813,
    7.166494911215067e-17,
    1.018166438749971e-32,
];
/// The bits of 2/pi below 2^-25: down to 2^-76, down to 2^-129, and the rest rounded.
pub(crate) const TWO_OVER_PI_LARGE: [f64; 3] = [
    2.5682553266903654e-8,
    6.074026489649845e-24,
    1.0490494448130901e-39,
];

/// Relative error of log2, in ((m-1)/(m+1))^2: 4.21e-12 = 2^-37.79 on [0.0, 0.0294402].
pub(crate) const POW_LOG2: [f64; 5] = [
    2.885390081790087,
    0.9617966733414558,
    0.5770835849986432,
    0.4116727179856666,
    0.34073011423593375,
];
/// Relative error of 2^f: 1.86e-9 = 2^-29.01 on [-0.5, 0.5].
pub(crate) const POW_EXP2: [f64; 7] = [
    1.0000000005541057,
    0.693147205736654,
    0.24022646890967284,
    0.055503287780955965,
    0.00961848892068177,
    0.001339993081623252,
    0.0001534582142727617,
];
