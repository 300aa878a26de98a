//! Functions of elements.

use crate::{cases, edges};

cases! {
    leaky_relu fb [[3, 7]] (x) => x.leaky_relu(0.1);
    prelu fb [[2, 3, 4], [3]] (x, w) => x.prelu(w);
    elu fb [[3, 7]] (x) => x.elu(1.5);
    selu fb [[3, 7]] (x) => x.selu();
    celu fb [[3, 7]] (x) => x.celu(1.5);
    softplus fb [[3, 7]] (x) => x.softplus(2.0, 3.0);
    hardtanh fb [[3, 7]] (x) => x.hardtanh(-0.5, 2.0);
    relu6 fb [[3, 7]] (x) => (x * 4.0).relu6();
    hardsigmoid fb [[3, 7]] (x) => (x * 2.0).hardsigmoid();
    hardswish fb [[3, 7]] (x) => (x * 2.0).hardswish();
    mish fb [[3, 7]] (x) => x.mish();
    log_sigmoid fb [[3, 7]] (x) => x.log_sigmoid();
    softsign f [[3, 7]] (x) => x.softsign();
    tanhshrink f [[3, 7]] (x) => x.tanhshrink();
    softshrink fb [[3, 7]] (x) => x.softshrink(0.75);
    hardshrink fb [[3, 7]] (x) => x.hardshrink(0.75);
    threshold fb [[3, 7]] (x) => x.threshold(0.5, -1.5);
    glu fb [[3, 6]] (x) => x.glu(-1);
    logit f [[3, 7]] (x) => (x.sigmoid().logit(None), x.logit(Some(0.125)));
    softmin f [[3, 7]] (x) => x.softmin(1);
    square fbi [[3, 7]] (x) => x.square();
    frac f [[3, 7]] (x) => x.frac();
    tests fb [[3, 7]] (x) => (edges(x).isfinite(), edges(x).isposinf(), edges(x).isneginf());
    signbit fi [[3, 7]] (x) => x.signbit();
    copysign fbi [[3, 7], [7]] (x, y) => (x.copysign(y), x.copysign(-2.0));
    fmax fbi [[3, 7], [7]] (x, y) => (x.fmax(y), x.fmin(y));
    fmax_edges f [[7]] (x) => (x.fmax(&edges(x)), edges(x).fmin(x));
    hypot fb [[3, 7], [7]] (x, y) => x.hypot(y);
    xlogy fb [[3, 7], [7]] (x, y) => (x.xlogy(&y.abs()), x.xlog1py(&y.abs()), (x * 0.0).xlogy(&(y * 0.0)));
    logaddexp fb [[3, 7], [7]] (x, y) => (x.logaddexp(y), x.logaddexp2(y));
    logaddexp_edges f [[7]] (x) => edges(x).logaddexp(&edges(x));
    ldexp f [[3, 7], [7]] (x, y) => x.ldexp(&y.round());
    heaviside fi [[3, 7], [7]] (x, y) => x.sign().mul(&x.gt(0)).heaviside(y);
    sinc f [[3, 7]] (x) => x.sinc();
    degrees f [[3, 7]] (x) => (x.deg2rad(), x.rad2deg());
    angle f [[3, 7]] (x) => x.angle();
    round_decimals f [[3, 7]] (x) => (x.round_decimals(1), (x * 100.0).round_decimals(-1));
    lcm i [[3, 7], [7]] (x, y) => (x.lcm(y), x.gcd(y));
    lerp fb [[3, 7], [7], [3, 7]] (x, y, w) => (x.lerp(y, 0.25), x.lerp(y, w));
    addc fb [[3, 7], [7], [3, 7]] (x, a, b) => (x.addcmul(a, b, 0.5), x.addcdiv(a, &(b + 4.0), -2.0));
    addcmul_int i [[3, 7], [7], [3, 7]] (x, a, b) => x.addcmul(a, b, 3.0);
    nan_to_num f [[3, 7]] (x) => edges(x).nan_to_num(1.0, 2.0, -3.0);
    clamp_one fbi [[3, 7], [7]] (x, y) => (x.clamp_min(y), x.clamp_max(1));
    nextafter f [[3, 7], [7]] (x, y) => x.nextafter(y);
    frexp f [[3, 7]] (x) => x.frexp();
    ndtr f [[3, 7]] (x) => x.ndtr();
    rsub fi [[3, 7], [7]] (x, y) => match x.dtype().is_float() {
        true => x.rsub(y, 2.0),
        false => (x * 2).rsub(y, 1.0),
    };
    polynomials f [[3, 7]] (x) => {
        let x = x / 3.0;
        vec![
            x.chebyshev_polynomial_t(4), x.chebyshev_polynomial_u(4), x.chebyshev_polynomial_v(4), x.chebyshev_polynomial_w(4), x.shifted_chebyshev_polynomial_t(4),
            x.hermite_polynomial_h(4), x.hermite_polynomial_he(4), x.laguerre_polynomial_l(4), x.legendre_polynomial_p(4),
        ]
    };
    isclose f [[3, 7]] (x) => x.isclose(&(x + 0.01), 1e-2, 1e-3, false);
}

#[test]
fn elements_are_those_of_pytorch() {
    crate::judge(CASES, include_str!("elements.txt"));
}
