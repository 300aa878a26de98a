"""Minimax polynomials with f32 coefficients: where the numbers in `src/maths/coefficients.rs` come from.

    python crates/lower/tools/minimax.py            prints every polynomial as a Rust constant, with its error

Method. Each polynomial is the answer to: minimise max |w(x) (f(x) - p(x))| over an interval, p a sum of c_i x^i.
The exchange algorithm of Remez finds it in 90-digit arithmetic. The coefficients are then rounded to f32 one by one,
lowest order first; after each rounding the rest is fitted again (a linear programme for the small changes of the
remaining coefficients), so that later coefficients absorb the earlier roundings. The printed error is that of the rounded polynomial, measured on a dense grid, in the weight's unit.
"""

import sys

import mpmath as mp
import numpy as np
from scipy.optimize import linprog

mp.mp.dps = 90


def round_f32(c):
    return mp.mpf(float(np.float32(float(c))))


def round_f64(c):
    return mp.mpf(float(c))


def cheb_nodes(lo, hi, n):
    return [(lo + hi) / 2 + (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)][::-1]


def remez(f, w, exps, lo, hi, grid):
    """Coefficients for the exponents `exps` and the weighted error. `f` and `w` are lists over `grid`."""
    n = len(exps)
    xs, fs, ws = grid, f, w
    # reference points: Chebyshev-like spread over the grid
    m = len(xs)
    ref = [int(round((m - 1) * (1 - mp.cos(mp.pi * i / n)) / 2)) for i in range(n + 1)]
    coeffs = None
    for _ in range(40):
        a = mp.matrix(n + 1, n + 1)
        b = mp.matrix(n + 1, 1)
        for row, g in enumerate(ref):
            for col, e in enumerate(exps):
                a[row, col] = xs[g] ** e
            a[row, n] = (-1) ** row / ws[g]
            b[row] = fs[g]
        sol = mp.lu_solve(a, b)
        coeffs = [sol[i] for i in range(n)]
        level = abs(sol[n])
        err = errors(coeffs, exps, xs, fs, ws)
        # one extremum in each run of equal sign
        runs = []
        for i, e in enumerate(err):
            s = e >= 0
            if runs and runs[-1][0] == s:
                if abs(e) > abs(err[runs[-1][1]]):
                    runs[-1][1] = i
            else:
                runs.append([s, i])
        pts = [i for _, i in runs]
        while len(pts) > n + 1:
            if len(pts) == n + 2:
                pts = pts[1:] if abs(err[pts[0]]) < abs(err[pts[-1]]) else pts[:-1]
            else:
                k = min(range(len(pts) - 1), key=lambda j: max(abs(err[pts[j]]), abs(err[pts[j + 1]])))
                del pts[k : k + 2]
        if len(pts) < n + 1:
            break
        top = max(abs(e) for e in err)
        ref = pts
        if top <= level * mp.mpf("1.0005"):
            break
    return coeffs


def errors(coeffs, exps, xs, fs, ws):
    out = []
    for x, f, w in zip(xs, fs, ws):
        p = mp.mpf(0)
        for c, e in zip(coeffs, exps):
            p += c * x**e
        out.append((p - f) * w)
    return out


def refit(cs, exps, first, xs, fs, ws):
    """Moves the coefficients from `first` on so that the largest weighted error is least."""
    base = errors(cs, exps, xs, fs, ws)
    unit = max(abs(e) for e in base)
    left = exps[first:]
    rows = [[float(w * x**e) for e in left] for x, w in zip(xs, ws)]
    a = np.array(rows)
    scale = np.abs(a).max(axis=0)
    a = a / scale
    e = np.array([float(v / unit) for v in base])
    one = -np.ones((len(xs), 1))
    lhs = np.vstack([np.hstack([a, one]), np.hstack([-a, one])])
    rhs = np.concatenate([-e, e])
    cost = np.zeros(len(left) + 1)
    cost[-1] = 1
    sol = linprog(cost, A_ub=lhs, b_ub=rhs, bounds=[(None, None)] * len(left) + [(0, None)], method="highs")
    if sol.status != 0 or sol.x[-1] >= 1:
        return
    for j in range(len(left)):
        cs[first + j] += mp.mpf(float(sol.x[j] / scale[j])) * unit


def fit(name, f, w, exps, lo, hi, unit, points=700, rnd=round_f32, fixed=()):
    """Fits, rounds, prints. `fixed` are (exponent, value) pairs held as they are."""
    lo, hi = mp.mpf(lo), mp.mpf(hi)
    xs = cheb_nodes(lo, hi, points)
    ws = [mp.mpf(w(x)) for x in xs]
    fs0 = [mp.mpf(f(x)) - sum(mp.mpf(v) * x**e for e, v in fixed) for x in xs]
    exps = list(exps)
    cs = remez(fs0, ws, exps, lo, hi, xs)
    for i in range(len(exps)):
        cs[i] = rnd(cs[i])
        if i + 1 < len(exps):
            refit(cs, exps, i + 1, xs, fs0, ws)
    err = max(abs(e) for e in errors(cs, exps, xs, fs0, ws))
    body = ", ".join(repr(float(np.float32(float(c)))) if rnd is round_f32 else repr(float(c)) for c in cs)
    ty = "f32" if rnd is round_f32 else "f64"
    if rnd is round_f32:
        body = ", ".join(str(np.float32(float(c))) for c in cs)
    print(f"/// {unit}: {mp.nstr(err, 3)} = 2^{mp.nstr(mp.log(err, 2), 4)} on [{mp.nstr(lo, 6)}, {mp.nstr(hi, 6)}].")
    print(f"pub(crate) const {name}: [{ty}; {len(cs)}] = [{body}];")
    sys.stdout.flush()
    return cs, err


LN2 = mp.log(2)


def q_exp(r):
    """(e^r - 1 - r) / r^2, by its series near zero."""
    return mp.nsum(lambda k: r**k / mp.factorial(k + 2), [0, 40]) if abs(r) < mp.mpf("0.01") else (mp.exp(r) - 1 - r) / r**2


TASKS = {}


def task(fn):
    TASKS[fn.__name__] = fn
    return fn


def split(x, bits, parts):
    """`x` as a sum of floats; every part but the last has `bits` significant bits, so its products by small integers are exact."""
    out, rest = [], mp.mpf(x)
    for i in range(parts):
        if i == parts - 1:
            v = round_f32(rest)
        else:
            e = mp.floor(mp.log(abs(rest), 2)) + 1
            v = mp.nint(rest * mp.mpf(2) ** (bits - e)) * mp.mpf(2) ** (e - bits)
        out.append(v)
        rest -= v
    return out


def bits_down_to(x, position):
    """The bits of `x` of weight 2^-position and above."""
    return mp.floor(x * mp.mpf(2) ** position) / mp.mpf(2) ** position


def parts(name, values):
    print(f"// {name}: {', '.join(repr(float(v)) for v in values)}")


def expm1_weight(r):
    """r^2 over the smallest result that r can stand for: with k = 0, 1 or -1."""
    return r * r * max(1 / abs(mp.expm1(r)), 2 / abs(2 * mp.exp(r) - 1), 1 / abs(mp.exp(r) - 2)) if r else mp.mpf("1e-9")


@task
def exp():
    b = LN2 / 2 * mp.mpf("1.0001")
    fit("EXP", q_exp, lambda r: r * r / mp.exp(r), range(5), -b, b, "Relative error of e^r")
    fit("EXPM1", q_exp, expm1_weight, range(6), -b, b, "Relative error of e^x - 1")
    parts("LN2_HI, LN2_LO", split(LN2, 15, 2))


@task
def exp2():
    def q(f):
        return mp.expm1(f * LN2) / f if f else LN2

    fit("EXP2", q, lambda f: abs(f) / mp.power(2, f), range(6), -0.5, 0.5, "Relative error of 2^f")


def q_log1p(f):
    """(log(1+f) - f) / f^2."""
    if abs(f) < mp.mpf("0.01"):
        return mp.nsum(lambda k: (-1) ** (k + 1) * f**k / (k + 2), [0, 40])
    return (mp.log1p(f) - f) / f**2


SQRT2 = mp.sqrt(2)


def log_weight(f):
    return f * f / abs(mp.log1p(f)) if f else mp.mpf("1e-9")


@task
def log():
    fit("LOG", q_log1p, log_weight, range(9), SQRT2 / 2 - 1, SQRT2 - 1, "Relative error of log(1+f)")


@task
def log1p():
    fit("LOG1P", q_log1p, log_weight, range(9), -0.25, 0.5, "Relative error of log(1+f)")


@task
def log2():
    l2e = 1 / LN2
    fit("LOG2", lambda f: q_log1p(f) * l2e, lambda f: log_weight(f) * LN2, range(9), SQRT2 / 2 - 1, SQRT2 - 1, "Relative error of log2(1+f)")
    parts("LOG2E, LOG2E_LO", split(l2e, 24, 2))


@task
def tanh():
    def q(z):  # z = x^2: (tanh(x)/x - 1)/z
        if z < mp.mpf("1e-6"):
            return -mp.mpf(1) / 3 + 2 * z / 15
        x = mp.sqrt(z)
        return (mp.tanh(x) / x - 1) / z

    fit("TANH", q, lambda z: z * mp.sqrt(z) / mp.tanh(mp.sqrt(z)) if z else mp.mpf("1e-9"), range(7), 0, mp.mpf("0.95") ** 2, "Relative error of tanh(x), in x^2")


@task
def erf():
    def q(z):  # (erf(x)/x - 1)
        x = mp.sqrt(z)
        if z < mp.mpf("1e-12"):
            return 2 / mp.sqrt(mp.pi) - 1 - 2 / mp.sqrt(mp.pi) * z / 3
        return mp.erf(x) / x - 1

    fit("ERF_NEAR", q, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)) if z else mp.mpf("0.88"), range(7), 0, 1, "Relative error of erf(x), in x^2")
    fit("ERF_FAR", lambda x: mp.log(mp.erfc(x)), lambda x: mp.erfc(x) / mp.erf(x), range(7), 1, 3.95, "Relative error of erf(x)", points=500)


@task
def sincos():
    def qs(z):  # (sin(x)/x - 1)/z
        if z < mp.mpf("1e-8"):
            return -mp.mpf(1) / 6 + z / 120
        x = mp.sqrt(z)
        return (mp.sin(x) / x - 1) / z

    def qc(z):  # (cos(x) - 1 + z/2)/z^2
        if z < mp.mpf("1e-8"):
            return mp.mpf(1) / 24 - z / 720
        return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2

    b = mp.pi / 4 * mp.mpf("1.0002")
    fit("SIN", qs, lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)) if z else mp.mpf("1e-9"), range(3), 0, b * b, "Relative error of sin(x), in x^2")
    fit("COS", qc, lambda z: z**2 / mp.cos(mp.sqrt(z)) if z else mp.mpf("1e-12"), range(3), 0, b * b, "Relative error of cos(x), in x^2")
    parts("HALF_PI", split(mp.pi / 2, 24, 3))
    two_over_pi = 2 / mp.pi
    high = bits_down_to(two_over_pi, 53)
    middle = bits_down_to(two_over_pi - high, 106)
    parts("TWO_OVER_PI", [high, middle, round_f64(two_over_pi - high - middle)])
    rest = two_over_pi - bits_down_to(two_over_pi, 25)
    high = bits_down_to(rest, 76)
    middle = bits_down_to(rest - high, 129)
    parts("TWO_OVER_PI_LARGE", [high, middle, round_f64(rest - high - middle)])


@task
def pow():
    def q(z):  # log2((1+s)/(1-s)) / s, z = s^2
        s = mp.sqrt(z)
        return 2 * mp.atanh(s) / (s * LN2) if z > mp.mpf("1e-30") else 2 / LN2

    top = (3 - 2 * SQRT2) ** 2 * mp.mpf("1.0001")
    fit("POW_LOG2", q, lambda z: 1 / q(z), range(5), 0, top, "Relative error of log2, in ((m-1)/(m+1))^2", rnd=round_f64)
    fit("POW_EXP2", lambda f: mp.power(2, f), lambda f: mp.power(2, -f), range(7), -0.5, 0.5, "Relative error of 2^f", rnd=round_f64)


if __name__ == "__main__":
    for name in sys.argv[1:] or TASKS:
        print(f"// {name}")
        TASKS[name]()
