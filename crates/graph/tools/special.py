"""Prints the tables of `src/special/tables.rs`: polynomials of special functions, fitted or expanded with mpmath.

    python crates/graph/tools/special.py > crates/graph/src/special/tables.rs && cargo fmt -p oxyfuel-graph
    python crates/graph/tools/special.py truth > crates/graph/tests/golden/special.txt

A fit is the Chebyshev interpolant of a function of t in [-1, 1], as a polynomial in t. Its error, evaluated in f64 as the
code does it, is printed beside it; the degree is the least that reaches what f64 can give.
"""

import sys

import mpmath as mp
import numpy as np

mp.mp.dps = 60
POINTS = 400


def horner(coefficients, t):
    y = np.float64(coefficients[-1])
    for c in coefficients[-2::-1]:
        y = y * t + np.float64(c)
    return y


def chebyshev_fit(f, degree):
    """The interpolant in the Chebyshev points, as coefficients of powers of t, the constant first."""
    n = degree + 1
    nodes = [mp.cos(mp.pi * (k + mp.mpf(1) / 2) / n) for k in range(n)]
    values = [f(t) for t in nodes]
    series = []
    for j in range(n):
        total = mp.fsum(v * mp.cos(mp.pi * j * (k + mp.mpf(1) / 2) / n) for k, v in enumerate(values))
        series.append(total * (1 if j == 0 else 2) / n)
    # Chebyshev polynomials to powers.
    before, this = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    powers = [mp.mpf(0)] * n
    powers[0] += series[0]
    for j in range(1, n):
        for i, c in enumerate(this):
            powers[i] += series[j] * c
        after = [mp.mpf(0)] + [2 * c for c in this]
        for i, c in enumerate(before):
            after[i] -= c
        before, this = this, after
    return [float(c) for c in powers]


def fit(f, start=8, stop=40):
    """The shortest fit that is as good as f64, and its largest error relative to the largest value."""
    ts = [mp.mpf(2 * i + 1) / POINTS - 1 for i in range(POINTS)]
    truth = [f(t) for t in ts]
    scale = max(abs(v) for v in truth)
    best = None
    for degree in range(start, stop):
        coefficients = chebyshev_fit(f, degree)
        error = max(abs(mp.mpf(float(horner(coefficients, np.float64(float(t))))) - v) for t, v in zip(ts, truth)) / scale
        if best is None or error < best[1] / 2:
            best = (coefficients, error)
        if best[1] < 4e-16:
            break
    return best


def show(name, doc, coefficients, error=None):
    print(f"\n/// {doc}")
    if error is not None:
        print(f"/// Largest error: {mp.nstr(error, 2)}.")
    print(f"pub(super) const {name}: &[f64] = &[")
    for c in coefficients:
        print(f"    {float(c)!r},")
    print("];")


def fitted(name, doc, f, **kwargs):
    coefficients, error = fit(f, **kwargs)
    print(f"{name}: {len(coefficients)} terms, error {mp.nstr(error, 3)}", file=sys.stderr)
    show(name, doc, coefficients, error)


def on(low, high, f):
    """A function of x in [low, high] as one of t in [-1, 1]."""
    low, high = mp.mpf(low), mp.mpf(high)
    return lambda t: f((low + high) / 2 + t * (high - low) / 2)


def erfcx(x):
    return mp.exp(x * x) * mp.erfc(x)


def ndtri_of_radius(r):
    """z with Phi(-z) = exp(-r^2 / 2)."""
    p = mp.exp(-r * r / 2)
    return mp.findroot(lambda z: mp.log(mp.erfc(z / mp.sqrt(2)) / 2) - mp.log(p), r - (mp.log(r) + mp.log(2 * mp.pi) / 2) / r if r > 3 else r - mp.mpf(1) / 2)


def bessel(order, x):
    """P and x Q of the bessel functions beyond 8: J = sqrt(2 / (pi x)) (P cos c - Q sin c), Y the same with sin and cos."""
    chi = x - mp.pi * (2 * order + 1) / 4
    j, y = mp.besselj(order, x), mp.bessely(order, x)
    scale = mp.sqrt(mp.pi * x / 2)
    p = scale * (j * mp.cos(chi) + y * mp.sin(chi))
    q = scale * (y * mp.cos(chi) - j * mp.sin(chi))
    return p, x * q


def airy(zeta):
    """P and zeta Q: Ai(-x) = (P sin c - Q cos c) / (sqrt(pi) x^(1/4)) with c = zeta + pi/4."""
    x = (zeta * 3 / 2) ** (mp.mpf(2) / 3)
    c = zeta + mp.pi / 4
    a, b = mp.airyai(-x), mp.airybi(-x)
    scale = mp.sqrt(mp.pi) * x ** (mp.mpf(1) / 4)
    return scale * (a * mp.sin(c) + b * mp.cos(c)), zeta * scale * (b * mp.sin(c) - a * mp.cos(c))


def near(limit, f):
    """A function of u at t = 2 u / limit - 1, where u = 0 (t = -1) is infinity far away: never evaluated there, only near."""
    return lambda t: f(mp.mpf(limit) * (t + 1) / 2)


def main():
    print("//! Coefficients, the constant first. Written by `tools/special.py`; do not edit.")

    show("STIRLING", "B(2k) / (2k (2k - 1)): the series of log gamma in 1 / x^2, less its leading terms.",
         [mp.bernoulli(2 * k) / (2 * k * (2 * k - 1)) for k in range(1, 10)])
    show("DIGAMMA", "B(2k) / 2k: the series of digamma in 1 / x^2, less its leading terms.",
         [mp.bernoulli(2 * k) / (2 * k) for k in range(1, 11)])
    show("EULER_MACLAURIN", "B(2k) / (2k)!: the corrections of a sum that is an integral from here on.",
         [mp.bernoulli(2 * k) / mp.factorial(2 * k) for k in range(1, 13)])
    rising = [mp.mpf(1)]
    for i in range(8):
        rising = [a + b for a, b in zip([mp.mpf(0)] + rising, [i * c for c in rising] + [mp.mpf(0)])]
    show("RISING", "x (x + 1) ... (x + 7), as a polynomial.", rising)
    show("RISING_SLOPE", "The derivative of `RISING`.", [k * c for k, c in enumerate(rising)][1:])

    fitted("ERFCX", "(1 + 2x) erfcx(x) for x >= 0, in t = (x - 4) / (x + 4).",
           lambda t: (1 + 8 * (1 + t) / (1 - t)) * erfcx(4 * (1 + t) / (1 - t)), start=18)
    fitted("ERFINV", "erfinv(y) / y for |y| <= 0.75, in t of y^2.",
           on(0, 0.5625, lambda z: mp.erfinv(mp.sqrt(z)) / mp.sqrt(z)), start=12)
    for name, low, high in (("NDTRI_NEAR", 2, 4), ("NDTRI_FAR", 4, 10), ("NDTRI_FARTHEST", 10, 40)):
        fitted(name, f"-ndtri(p) with r = sqrt(-2 log p) in [{low}, {high}], in t of r.", on(low, high, ndtri_of_radius), start=12)

    show("I0", "I0(x) in (x / 2)^2, for |x| <= 8.", [1 / mp.factorial(k) ** 2 for k in range(26)])
    show("I1", "2 I1(x) / x in (x / 2)^2, for |x| <= 8.", [1 / (mp.factorial(k) * mp.factorial(k + 1)) for k in range(26)])
    harmonic = [mp.fsum(mp.mpf(1) / i for i in range(1, k + 1)) for k in range(20)]
    show("K0", "K0(x) + log(x / 2) I0(x) in (x / 2)^2, for x <= 2.",
         [(harmonic[k] - mp.euler) / mp.factorial(k) ** 2 for k in range(13)])
    show("K1", "2 (K1(x) - 1 / x - log(x / 2) I1(x)) / x in (x / 2)^2, for x <= 2.",
         [-(harmonic[k] + harmonic[k + 1] - 2 * mp.euler) / (2 * mp.factorial(k) * mp.factorial(k + 1)) for k in range(13)])
    for order in (0, 1):
        fitted(f"I{order}_FAR", f"sqrt(x) exp(-x) I{order}(x) for x >= 8, in t = 16 / x - 1.",
               near(mp.mpf(1) / 8, lambda u, order=order: mp.exp(-1 / u) * mp.besseli(order, 1 / u) / mp.sqrt(u)), start=14)
        fitted(f"K{order}_FAR", f"sqrt(x) exp(x) K{order}(x) for x >= 2, in t = 4 / x - 1.",
               near(mp.mpf(1) / 2, lambda u, order=order: mp.exp(1 / u) * mp.besselk(order, 1 / u) / mp.sqrt(u)), start=16)

    two_over_pi = 2 / mp.pi
    fitted("J0", "J0(x) for |x| <= 8, in t = x^2 / 32 - 1.", on(0, 64, lambda z: mp.besselj(0, mp.sqrt(z))), start=14)
    fitted("J1", "J1(x) / x for |x| <= 8, in t = x^2 / 32 - 1.", on(0, 64, lambda z: mp.besselj(1, mp.sqrt(z)) / mp.sqrt(z)), start=14)
    fitted("Y0", "Y0(x) - 2 / pi log(x) J0(x) for x <= 8, in t = x^2 / 32 - 1.",
           on(0, 64, lambda z: mp.bessely(0, mp.sqrt(z)) - two_over_pi * mp.log(z) / 2 * mp.besselj(0, mp.sqrt(z))), start=14)
    fitted("Y1", "(Y1(x) - 2 / pi (log(x) J1(x) - 1 / x)) / x for x <= 8, in t = x^2 / 32 - 1.",
           on(0, 64, lambda z: (mp.bessely(1, mp.sqrt(z)) - two_over_pi * (mp.log(z) / 2 * mp.besselj(1, mp.sqrt(z)) - 1 / mp.sqrt(z))) / mp.sqrt(z)), start=14)
    for order in (0, 1):
        for which, letter in enumerate("PQ"):
            fitted(f"J{order}_{letter}", f"{'x ' * which}{letter} of the bessel functions of order {order} for x >= 8, in t = 128 / x^2 - 1.",
                   near(mp.mpf(1) / 64, lambda u, order=order, which=which: bessel(order, 1 / mp.sqrt(u))[which]), start=8)

    fitted("AI_BELOW", "Ai(x) for x in [-5, 0], in t.", on(-5, 0, mp.airyai), start=14)
    fitted("AI_ABOVE", "Ai(x) for x in [0, 4], in t.", on(0, 4, mp.airyai), start=14)
    zeta = mp.mpf(16) / 3
    fitted("AI_FAR", "2 sqrt(pi) x^(1/4) exp(zeta) Ai(x) for x >= 4, zeta = 2/3 x^(3/2), in t = 2 (16/3) / zeta - 1.",
           near(1 / zeta, lambda u: 2 * mp.sqrt(mp.pi) * (mp.mpf(3) / 2 / u) ** (mp.mpf(1) / 6) * mp.exp(1 / u) * mp.airyai((mp.mpf(3) / 2 / u) ** (mp.mpf(2) / 3))), start=10)
    zeta = mp.mpf(2) / 3 * mp.mpf(5) ** (mp.mpf(3) / 2)
    for which, letter in enumerate("PQ"):
        fitted(f"AI_{letter}", f"{'zeta ' * which}{letter} of Ai(x) for x <= -5, zeta = 2/3 |x|^(3/2), in t = 2 (500/9) / zeta^2 - 1.",
               near(1 / zeta**2, lambda u, which=which: airy(1 / mp.sqrt(u))[which]), start=8)


INF, NAN = mp.inf, mp.nan
ALL = [0, 1e-30, -1e-30, 1e-3, -1e-3, 0.25, -0.3, 0.499, 0.5, 0.75, 0.76, 1, -0.999, 1.5, -1.4616, 2, 2.001, 3.5, -3.7, 4, 4.01, 5, -5, -5.2, 7.99, 8, 8.01, -8.5, 9.9, 15, -15.5, 25, 39.7, 100, -100.25, 650]
POSITIVE = [v for v in ALL if v > 0]
UNIT = [-0.999999, -0.9, -0.76, -0.75, -0.5, -1e-9, 0, 1e-30, 0.1, 0.3, 0.7499, 0.7501, 0.95, 1 - 1e-12]
PROBABILITY = [1e-300, 1e-40, 1e-22, 1e-10, 3e-4, 0.01, 0.1249, 0.1251, 0.3, 0.5, 0.5 + 1e-9, 0.8, 0.876, 0.99999]
LEFT = [v for v in ALL if not (v <= 0 and v == int(v))]

TRUTH = {
    "lgamma": (LEFT, lambda x: mp.log(abs(mp.gamma(x))), {0: INF, -1: INF, "inf": INF, "-inf": INF}),
    "digamma": (LEFT, mp.digamma, {0: -INF, -1: NAN, "inf": INF, "-inf": NAN}),
    "erfinv": (UNIT, mp.erfinv, {-1: -INF, 1: INF, 1.5: NAN}),
    "erfcx": ([v for v in ALL if v > -25] + [1e30], lambda x: mp.exp(x * x) * mp.erfc(x) if x < 1e9 else 1 / (x * mp.sqrt(mp.pi)), {"inf": 0, "-inf": INF}),
    "ndtri": (PROBABILITY, lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1) if p > 1e-4 else -mp.findroot(lambda z: mp.log(mp.erfc(z / mp.sqrt(2)) / 2) - mp.log(p), mp.sqrt(-2 * mp.log(p)) - 0.5), {0: -INF, 1: INF, 2: NAN, -1: NAN}),
    "log_ndtr": (ALL, lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2), {"-inf": -INF, "inf": 0}),
    "i0": (ALL, lambda x: mp.besseli(0, x), {}),
    "i0e": (ALL, lambda x: mp.exp(-abs(x)) * mp.besseli(0, x), {"inf": 0}),
    "i1": (ALL, lambda x: mp.besseli(1, x), {}),
    "i1e": (ALL, lambda x: mp.exp(-abs(x)) * mp.besseli(1, x), {"inf": 0}),
    "modified_bessel_k0": (POSITIVE, lambda x: mp.besselk(0, x), {0: INF, -1: NAN, "inf": 0}),
    "modified_bessel_k1": (POSITIVE, lambda x: mp.besselk(1, x), {0: INF, -1: NAN, "inf": 0}),
    "scaled_modified_bessel_k0": (POSITIVE, lambda x: mp.exp(x) * mp.besselk(0, x), {0: INF, -1: NAN}),
    "scaled_modified_bessel_k1": (POSITIVE, lambda x: mp.exp(x) * mp.besselk(1, x), {0: INF, -1: NAN}),
    "bessel_j0": (ALL + [1e10], lambda x: mp.besselj(0, x), {}),
    "bessel_j1": (ALL + [1e10], lambda x: mp.besselj(1, x), {}),
    "bessel_y0": (POSITIVE, lambda x: mp.bessely(0, x), {0: -INF, -1: NAN}),
    "bessel_y1": (POSITIVE, lambda x: mp.bessely(1, x), {0: -INF, -1: NAN}),
    "spherical_bessel_j0": (ALL, lambda x: mp.sin(x) / x if x else mp.mpf(1), {"inf": 0}),
    "airy_ai": ([v for v in ALL if v < 50], mp.airyai, {}),
    "polygamma2": (LEFT, lambda x: mp.polygamma(2, x) if x > 0 else mp.diff(lambda y: mp.polygamma(1, y), x), {0: -INF, -2: -INF}),
    "polygamma3": ([v for v in LEFT if v > -1], lambda x: mp.polygamma(3, x) if x > 0 else 6 * mp.zeta(4, x), {0: INF, -3: INF}),
}
PAIRS = {"zeta": ([1.001, 1.5, 2, 3, 4, 5.5, 20], [1e-3, 0.5, 1, 2.25, 9, 100, 1e6])}


def truth():
    def text(v):
        return mp.nstr(v, 20) if mp.isfinite(v) else {"+inf": "inf"}.get(str(v), str(v))

    for name, (points, f, edges) in TRUTH.items():
        for x in points:
            # What f64 holds is the point, not the decimals.
            print(name, repr(float(x)), text(mp.re(f(mp.mpf(float(x))))))
        for x, y in edges.items():
            print(name, x, text(mp.mpf(y)))
        print(name, "nan nan")
    for name, (firsts, seconds) in PAIRS.items():
        for x in firsts:
            for q in seconds:
                print(name, f"{float(x)!r},{float(q)!r}", text(mp.zeta(mp.mpf(float(x)), mp.mpf(float(q)))))
    # Left of 0: the terms before it, and the rest.
    for s, q in ((2, -3.25), (3, -3.25), (3, -0.5), (4, -20.75)):
        terms = [mp.mpf(q) + k for k in range(int(-q) + 1)]
        print("zeta", f"{float(s)!r},{q!r}", text(mp.fsum(t ** -s for t in terms) + mp.zeta(s, mp.mpf(q) + len(terms))))
    for pair, y in (("1.0,2.0", "inf"), ("0.5,2.0", "nan"), ("2.0,-1.0", "inf"), ("2.5,-0.5", "nan"), ("1e300,2.0", "0.0")):
        print("zeta", pair, y)


if __name__ == "__main__":
    truth() if "truth" in sys.argv else main()
