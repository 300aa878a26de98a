"""What PyTorch says to every row of `*.rs` here: `python golden.py` writes `*.txt`, one line a result.

A case has PyTorch's formula beside the dtypes (f: f32, b: bf16, i: i64) and shapes of its inputs, whose elements
are a function of their positions that `main.rs` knows too.
"""

import pathlib
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
DTYPES = {"f": torch.float32, "b": torch.bfloat16, "i": torch.int64}
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32", torch.bool: "bool", torch.float64: "f64"}


def numbers(shape, seed, dtype):
    count = torch.Size(shape).numel()
    whole = (torch.arange(count) * 37 + seed * 11 + 5) % 101 - 50
    x = whole if dtype == torch.int64 else (whole.double() / 16).to(dtype)
    return x.reshape(shape)


def edges(x):
    return torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.5, -2.25]).to(x.dtype)


def ints(*values):
    return torch.tensor(values)


def family(name, cases):
    lines = []
    for case, (dtypes, shapes, f) in cases.items():
        for letter in dtypes:
            inputs = [numbers(shape, seed, DTYPES[letter]) for seed, shape in enumerate(shapes)]
            out = f(*inputs)
            for i, y in enumerate(out if isinstance(out, (tuple, list)) else [out]):
                shape = "x".join(map(str, y.shape)) or "-"
                values = [str(int(v)) if not y.is_floating_point() else repr(float(v)) for v in y.flatten().tolist()]
                lines.append(" ".join([f"{case}:{letter}", str(i), NAMES[y.dtype], shape, *values]))
    (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n")


A, B = [3, 7], [7]
family("elements", {
    "leaky_relu": ("fb", [A], lambda x: F.leaky_relu(x, 0.1)),
    "prelu": ("fb", [[2, 3, 4], [3]], lambda x, w: F.prelu(x, w)),
    "elu": ("fb", [A], lambda x: F.elu(x, 1.5)),
    "selu": ("fb", [A], F.selu),
    "celu": ("fb", [A], lambda x: F.celu(x, 1.5)),
    "softplus": ("fb", [A], lambda x: F.softplus(x, 2.0, 3.0)),
    "hardtanh": ("fb", [A], lambda x: F.hardtanh(x, -0.5, 2.0)),
    "relu6": ("fb", [A], lambda x: F.relu6(x * 4)),
    "hardsigmoid": ("fb", [A], lambda x: F.hardsigmoid(x * 2)),
    "hardswish": ("fb", [A], lambda x: F.hardswish(x * 2)),
    "mish": ("fb", [A], F.mish),
    "log_sigmoid": ("fb", [A], F.logsigmoid),
    "softsign": ("f", [A], F.softsign),
    "tanhshrink": ("f", [A], F.tanhshrink),
    "softshrink": ("fb", [A], lambda x: F.softshrink(x, 0.75)),
    "hardshrink": ("fb", [A], lambda x: F.hardshrink(x, 0.75)),
    "threshold": ("fb", [A], lambda x: F.threshold(x, 0.5, -1.5)),
    "glu": ("fb", [[3, 6]], lambda x: F.glu(x, -1)),
    "logit": ("f", [A], lambda x: (torch.logit(x.sigmoid()), torch.logit(x, 0.125))),
    "softmin": ("f", [A], lambda x: F.softmin(x, 1)),
    "square": ("fbi", [A], torch.square),
    "frac": ("f", [A], torch.frac),
    "tests": ("fb", [A], lambda x: (edges(x).isfinite(), edges(x).isposinf(), edges(x).isneginf())),
    "signbit": ("fi", [A], torch.signbit),
    "copysign": ("fbi", [A, B], lambda x, y: (torch.copysign(x, y), torch.copysign(x, -2.0))),
    "fmax": ("fbi", [A, B], lambda x, y: (torch.fmax(x, y), torch.fmin(x, y))),
    "fmax_edges": ("f", [[7]], lambda x: (torch.fmax(x, edges(x)), torch.fmin(edges(x), x))),
    "hypot": ("fb", [A, B], torch.hypot),
    "xlogy": ("fb", [A, B], lambda x, y: (torch.xlogy(x, y.abs()), torch.special.xlog1py(x, y.abs()), torch.xlogy(x * 0, y * 0))),
    "logaddexp": ("fb", [A, B], lambda x, y: (torch.logaddexp(x, y), torch.logaddexp2(x, y))),
    "logaddexp_edges": ("f", [[7]], lambda x: torch.logaddexp(edges(x), edges(x))),
    "ldexp": ("f", [A, B], lambda x, y: torch.ldexp(x, y.round())),
    "heaviside": ("fi", [A, B], lambda x, y: torch.heaviside(x.sign() * (x > 0), y)),
    "sinc": ("f", [A], torch.sinc),
    "degrees": ("f", [A], lambda x: (torch.deg2rad(x), torch.rad2deg(x))),
    "angle": ("f", [A], torch.angle),
    "round_decimals": ("f", [A], lambda x: (torch.round(x, decimals=1), torch.round(x * 100, decimals=-1))),
    "lcm": ("i", [A, B], lambda x, y: (torch.lcm(x, y), torch.gcd(x, y))),
    "lerp": ("fb", [A, B, A], lambda x, y, w: (torch.lerp(x, y, 0.25), torch.lerp(x, y, w))),
    "addc": ("fb", [A, B, A], lambda x, a, b: (torch.addcmul(x, a, b, value=0.5), torch.addcdiv(x, a, b + 4, value=-2.0))),
    "addcmul_int": ("i", [A, B, A], lambda x, a, b: torch.addcmul(x, a, b, value=3)),
    "nan_to_num": ("f", [A], lambda x: torch.nan_to_num(edges(x), 1.0, 2.0, -3.0)),
    "clamp_one": ("fbi", [A, B], lambda x, y: (torch.clamp_min(x, y), torch.clamp_max(x, 1))),
    "nextafter": ("f", [A, B], torch.nextafter),
    "frexp": ("f", [A], lambda x: tuple(torch.frexp(x))),
    "ndtr": ("f", [A], torch.special.ndtr),
    "rsub": ("fi", [A, B], lambda x, y: torch.rsub(x, y, alpha=2)),
    "polynomials": ("f", [A], lambda x: tuple(getattr(torch.special, n)(x / 3, 4) for n in (
        "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "shifted_chebyshev_polynomial_t",
        "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"))),
    "isclose": ("f", [A], lambda x: torch.isclose(x, x + 0.01, rtol=1e-2, atol=1e-3)),
})

S = [3, 5, 4]
family("statistics", {
    "logsumexp": ("fbi", [S], lambda x: (torch.logsumexp(x, [1]), torch.logsumexp(x, [0, 2], True), torch.logsumexp(x, [0, 1, 2]))),
    "logsumexp_edges": ("f", [A], lambda x: torch.logsumexp(torch.stack([edges(x), edges(x)]), [0])),
    "norm": ("fb", [S], lambda x: tuple(torch.linalg.vector_norm(x, p, [1], True) for p in (0, 1, 2, 3.5, float("inf"), float("-inf")))),
    "norm_all": ("f", [S], lambda x: (torch.linalg.vector_norm(x), torch.linalg.vector_norm(x, 1, [0, -1]))),
    "std": ("fb", [S], lambda x: (torch.std(x, [1]), torch.std(x, [0, 2], correction=0, keepdim=True))),
    "var_mean": ("f", [S], lambda x: (*torch.var_mean(x, [1]), *torch.std_mean(x, [0, 2], correction=0))),
    "counts": ("fi", [S], lambda x: (torch.count_nonzero(x), torch.count_nonzero(x > 0, [1]))),
    "nansum": ("f", [[7]], lambda x: (torch.nansum(edges(x)[3:]), torch.nanmean(torch.cat([edges(x)[:1], edges(x)[3:]])))),
    "dist": ("f", [A, A], lambda x, y: (torch.dist(x, y, 3), torch.cdist(x, y, 1.5), torch.cdist(x, y, 2.0))),
    "max_dim": ("fbi", [S], lambda x: (*torch.max(x, 1), *torch.min(x, -1, True), torch.max(x), torch.min(x))),
    "max_dim_bool": ("f", [S], lambda x: (torch.max(x > 1, 1)[0], torch.min(x > 1, 2)[0])),
    "argmax_all": ("fi", [S], lambda x: (torch.argmax(x), torch.argmin(x))),
    "aminmax": ("f", [S], lambda x: tuple(torch.aminmax(x, dim=1))),
    "kthvalue": ("fi", [S], lambda x: (*torch.kthvalue(x, 2, 1), *torch.kthvalue(x, 4, -1, True))),
    "group_norm": ("fb", [[2, 6, 5], [6], [6]], lambda x, w, b: (F.group_norm(x, 3, w, b, 1e-5), F.group_norm(x, 2, eps=1e-3))),
    "instance_norm": ("f", [[2, 6, 5], [6], [6]], lambda x, w, b: F.instance_norm(x, weight=w, bias=b)),
    "batch_norm": ("f", [[4, 3, 5], [3], [3], [3], [3]], lambda x, m, v, w, b: (
        F.batch_norm(x, m, v.abs(), w, b, eps=1e-3), F.batch_norm(x, None, None, w, b, True, eps=1e-3), x.mean((0, 2)), x.var((0, 2), correction=0))),
    "median": ("fi", [S], lambda x: (*torch.median(x, 1), *torch.median(x, -1, True), torch.median(x))),
    "median_nan": ("f", [A], lambda x: torch.median(torch.stack([edges(x), edges(x) * 2]), 1)[0]),
    "cummax": ("fbi", [S], lambda x: (*torch.cummax(x, 1), *torch.cummin(x, -1))),
    "cummax_edges": ("f", [A], lambda x: (*torch.cummax(edges(x), 0), *torch.cummin(edges(x).flip(0), 0))),
    "logcumsumexp": ("fb", [S], lambda x: (torch.logcumsumexp(x, 1), torch.logcumsumexp(x, 2))),
    "logcumsumexp_edges": ("f", [A], lambda x: torch.logcumsumexp(edges(x).flip(0), 0)),
})

family("arrange", {
    "flip": ("fbi", [S], lambda x: (x.flip([1]), x.flip([0, -1]))),
    "roll": ("fi", [S], lambda x: (x.roll([2], [1]), x.roll([-1, 7], [0, 2]), x.roll(3))),
    "repeat": ("fbi", [A], lambda x: (x.repeat(2, 1, 3), x.tile(2), x.repeat_interleave(3, 0), x.repeat(0, 2))),
    "triangles": ("fbi", [[2, 4, 5]], lambda x: (x.tril(), x.tril(-1), x.triu(1), x.triu(-2))),
    "diag_embed": ("fi", [[2, 3]], lambda x: (torch.diag_embed(x), torch.diag_embed(x, 1), torch.diag_embed(x, -2, 0, 2))),
    "diagonal": ("fi", [[2, 4, 5]], lambda x: (x.diagonal(0, 1, 2), x.diagonal(2, 1, 2), x.diagonal(-3, 2, 0), x.diagonal(9, 1, 2))),
    "diag": ("f", [[4, 3], [3]], lambda x, y: (x.diag(1), y.diag(-1), x.trace())),
    "diagonal_scatter": ("fi", [[4, 5], [4]], lambda x, y: (x.diagonal_scatter(y, 1), x.diagonal_scatter(y, 0, 1, 0))),
    "select_scatter": ("fi", [[4, 5], [4]], lambda x, y: x.select_scatter(y, 1, -2)),
    "unfold_dim": ("fi", [[3, 8]], lambda x: (x.unfold(1, 3, 2), x.unfold(0, 2, 1))),
    "split": ("f", [[7, 4]], lambda x: (*x.split(3, 0), *x.split([1, 3], 1), *x.unbind(1))),
    "movedim": ("f", [S], lambda x: (x.movedim(0, 2), x.movedim([0, 1], [-1, 0]))),
    "squeeze": ("f", [[1, 3, 1, 2]], lambda x: (x.squeeze(), x.squeeze([0, 1]))),
    "meshgrid": ("fi", [[3], [4]], lambda x, y: torch.meshgrid(x, y, indexing="ij")),
    "pixel_shuffle": ("fb", [[2, 8, 3, 2], [2, 4, 6]], lambda x, y: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(y, 2))),
    "pad": ("fbi", [[2, 3, 4]], lambda x: (F.pad(x, [1, 2]), F.pad(x, [0, 1, 2, 0, 1, 1], value=3), F.pad(x, [-1, 2, 1, -1]))),
    "pad_indexed": ("fb", [[2, 3, 4]], lambda x: tuple(F.pad(x, p, mode=m) for m in ("reflect", "replicate", "circular") for p in ([3, 1], [2, 0]))),
    "pad_indexed_2d": ("f", [[1, 2, 3, 4]], lambda x: tuple(F.pad(x, [1, 2, 2, 1], mode=m) for m in ("reflect", "replicate", "circular"))),
})

I1, I2, I3 = [2, 3, 11], [2, 3, 7, 9], [2, 2, 5, 6, 7]
family("windows", {
    "pool1d": ("fb", [I1], lambda x: (F.max_pool1d(x, 3, 2, 1, 2), F.avg_pool1d(x, 3, 2, 1))),
    "pool2d": ("fb", [I2], lambda x: (*F.max_pool2d(x, (3, 2), (2, 1), (1, 0), 1, return_indices=True), F.avg_pool2d(x, (3, 2), (2, 2), (1, 1)))),
    "pool3d": ("f", [I3], lambda x: (*F.max_pool3d(x, 2, 2, 1, return_indices=True), F.avg_pool3d(x, (2, 3, 2), 2, (1, 1, 0)))),
    "pool_ceil": ("f", [I2], lambda x: (*F.max_pool2d(x, 2, 2, 0, 1, True, True), F.avg_pool2d(x, 3, 2, 1, True, False), F.avg_pool2d(x, 2, 2, 0, False, True, 3))),
    "max_unpool": ("f", [[2, 3, 4, 6]], lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, 2, return_indices=True), 2, 2)),
    "adaptive1d": ("fb", [I1], lambda x: (F.adaptive_avg_pool1d(x, 4), *F.adaptive_max_pool1d(x, 4, True))),
    "adaptive2d": ("f", [I2], lambda x: (F.adaptive_avg_pool2d(x, (3, 4)), *F.adaptive_max_pool2d(x, (3, 4), True), F.adaptive_avg_pool2d(x, 1))),
    "adaptive3d": ("f", [I3], lambda x: (F.adaptive_avg_pool3d(x, (2, 3, 4)), *F.adaptive_max_pool3d(x, (2, 3, 4), True))),
    "unfold": ("fb", [[2, 3, 5, 6]], lambda x: F.unfold(x, (2, 3), (1, 2), (1, 1), (2, 1))),
    "fold": ("f", [[2, 12, 20]], lambda x: F.fold(x, (5, 6), (2, 2))),
    "fold_stride": ("f", [[2, 12, 6]], lambda x: F.fold(x, (5, 6), (2, 2), 1, 0, 2)),
    "nearest": ("fb", [I2, I1], lambda x, y: (F.interpolate(x, (14, 5)), F.interpolate(x, (5, 9), mode="nearest-exact"), F.interpolate(y, 7))),
    "linear": ("fb", [I2, I1], lambda x, y: (F.interpolate(x, (10, 5), mode="bilinear"), F.interpolate(x, (13, 4), mode="bilinear", align_corners=True), F.interpolate(y, 7, mode="linear"))),
    "trilinear": ("f", [[1, 2, 3, 4, 5]], lambda x: (F.interpolate(x, (5, 3, 8), mode="trilinear"), F.interpolate(x, (5, 3, 8), mode="trilinear", align_corners=True))),
    "cubic": ("f", [I2], lambda x: (F.interpolate(x, (10, 5), mode="bicubic"), F.interpolate(x, (13, 4), mode="bicubic", align_corners=True))),
    "area": ("f", [I2], lambda x: F.interpolate(x, (3, 4), mode="area")),
    "upsample": ("f", [[1, 2, 3, 4]], lambda x: (F.interpolate(x, scale_factor=2.0, mode="bilinear"), F.interpolate(x, scale_factor=2.0))),
    "grid_sample": ("f", [[2, 3, 5, 4], [2, 3, 3, 2]], lambda x, g: tuple(
        F.grid_sample(x, g / 2.5, m, p, c) for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection") for c in (False, True))),
})

R, C2 = ints(2, 0, -1), ints(1, 3, -2)

def apart(x, y):
    x = x.clone()
    x[ints(2, 0, 1), :, ints(1, 1, 0)] = y
    return x

family("select", {
    "index": ("fbi", [[3, 4, 5]], lambda x: (x[R], x[R, C2], x[:, R], x[R.unsqueeze(1), C2], x[R, :, C2])),
    "index_put": ("fi", [[3, 4, 5], [3, 5], [5]], lambda x, y, z: (
        x.index_put((ints(2, 0, 1), C2), y), x.index_put((R, ints(1, 1, -1)), z, True), x.index_put((ints(0, 0, 0),), z, True))),
    "index_put_apart": ("f", [[3, 4, 5], [3, 4]], apart),
    "index_put_mask": ("f", [[3, 4]], lambda x: x.index_put((x > 0,), torch.tensor(9.0))),
    "take": ("fi", [[3, 4]], lambda x: x.take(ints(0, 5, -1, 11).reshape(2, 2))),
    "put": ("fi", [[3, 4], [3]], lambda x, y: (x.clone().put_(ints(1, -2, 7), y), x.clone().put_(ints(1, 1, 7), y, True))),
    "take_along_dim": ("fi", [[3, 4]], lambda x: (torch.take_along_dim(x, x.argsort(1), 1), torch.take_along_dim(x, ints(2, 0).reshape(2, 1), 0))),
    "index_fill": ("fi", [[3, 4]], lambda x: (x.index_fill(1, ints(0, -1), 2), x.index_fill(0, ints(1), torch.tensor(3, dtype=x.dtype)))),
    "masked_scatter": ("fi", [[3, 4], [12]], lambda x, y: x.masked_scatter(x > 0, y)),
    "one_hot": ("i", [[2, 3]], lambda x: F.one_hot(x.abs() % 5, 5)),
    "searchsorted": ("fi", [[9], [2, 5]], lambda x, y: (
        torch.searchsorted(x.sort()[0], y), torch.searchsorted(x.sort()[0], y, right=True), torch.bucketize(y, x.sort()[0]),
        torch.searchsorted(y.sort(1)[0], y.flip(1)))),
    "scatters": ("fi", [[3, 4], [2, 4]], lambda x, y: (
        x.scatter(0, ints(0, 1, 2, 0, 2, 0, 1, 1).reshape(2, 4), y), x.scatter_add(0, ints(0, 1, 2, 0, 2, 1, 1, 0).reshape(2, 4), y), x.index_add(0, ints(2, 2), y))),
})

L = [4, 5]
T = ints(1, 0, 4, -100)
T2 = ints(*[i % 3 for i in range(8)]).reshape(2, 4)
family("losses", {
    "mse": ("fb", [L, L], lambda x, y: tuple(F.mse_loss(x, y, reduction=r) for r in ("none", "mean", "sum"))),
    "l1": ("fb", [L, L], lambda x, y: tuple(F.l1_loss(x, y, reduction=r) for r in ("none", "mean", "sum"))),
    "smooth_l1": ("fb", [L, L], lambda x, y: (F.smooth_l1_loss(x, y), F.smooth_l1_loss(x, y, beta=0.5, reduction="none"), F.smooth_l1_loss(x, y, beta=0.0))),
    "huber": ("fb", [L, L], lambda x, y: (F.huber_loss(x, y), F.huber_loss(x, y, delta=0.5, reduction="none"))),
    "bce": ("f", [L, L, [5]], lambda x, y, w: (F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), F.binary_cross_entropy(x.sigmoid(), (y > 0).float(), w.expand(4, 5), reduction="none"))),
    "bce_logits": ("fb", [L, L, [5]], lambda x, y, w: (
        F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"), F.binary_cross_entropy_with_logits(x, (y > 0).to(y.dtype), w, pos_weight=w.abs(), reduction="sum"))),
    "kl_div": ("f", [L, L], lambda x, y: (F.kl_div(x, y.softmax(1), reduction="none"), F.kl_div(x, y.log_softmax(1), log_target=True, reduction="sum"))),
    "nll": ("f", [L, [5]], lambda x, w: tuple(F.nll_loss(x, T, weight, reduction=r) for weight in (None, w.abs()) for r in ("none", "mean", "sum"))),
    "nll_2d": ("fb", [[2, 3, 4]], lambda x: (F.nll_loss(x, T2, reduction="none"), F.nll_loss(x, T2, ignore_index=1))),
    "nll_one": ("f", [[5]], lambda x: (F.nll_loss(x, torch.tensor(3)), F.nll_loss(x, torch.tensor(3), reduction="none"))),
    "cross_entropy": ("f", [L, [5]], lambda x, w: (
        F.cross_entropy(x, T), F.cross_entropy(x, T, w.abs(), reduction="none"), F.cross_entropy(x, T, w.abs(), label_smoothing=0.1), F.cross_entropy(x, T, label_smoothing=0.25, reduction="sum"))),
    "cross_entropy_2d": ("f", [[2, 3, 4], [3]], lambda x, w: (F.cross_entropy(x, T2, w.abs(), label_smoothing=0.1), F.cross_entropy(x, T2))),
    "cross_entropy_probabilities": ("f", [L, L, [5]], lambda x, y, w: (
        F.cross_entropy(x, y.softmax(1), reduction="none"), F.cross_entropy(x, y.softmax(1), w.abs(), label_smoothing=0.1), F.cross_entropy(x[0], y[0].softmax(0)))),
    "cosine": ("f", [L, L], lambda x, y: (F.cosine_similarity(x, y), F.cosine_similarity(x, y[0], dim=0), F.cosine_similarity(x * 0, y))),
    "normalize": ("fb", [L], lambda x: (F.normalize(x), F.normalize(x, 1.0, 0), F.normalize(x * 0))),
    "pairwise": ("f", [L, L], lambda x, y: F.pairwise_distance(x, y, 3.0)),
})

def grad(f, x, g):
    x = x.detach().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, g[: y.numel()].reshape(y.shape) if g.shape != y.shape else g)[0]

def norm_grads(f, x, w, g):
    leaves = [t.detach().requires_grad_() for t in (x, w, torch.zeros_like(w))]
    return torch.autograd.grad(f(*leaves), leaves, g)

def rms_grads(x, w, g):
    leaves = [t.detach().requires_grad_() for t in (x, w)]
    return torch.autograd.grad(F.rms_norm(leaves[0], w.shape, leaves[1], 1e-5), leaves, g)

E = ints(2, 0, 2, 3).reshape(2, 2)
def emb(g, **kwargs):
    w = torch.zeros(5, g.shape[-1], dtype=g.dtype, requires_grad=True)
    return torch.autograd.grad(F.embedding(E, w, **kwargs), w, g)[0]

family("gradients", {
    "activations": ("fb", [A, A], lambda g, x: tuple(grad(f, x, g) for f in (
        torch.sigmoid, torch.tanh, F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.relu, lambda x: F.leaky_relu(x, 0.1),
        lambda x: F.hardtanh(x, -0.5, 2.0), F.hardsigmoid, F.hardswish, lambda x: F.elu(x, 1.5), lambda x: F.softplus(x, 2.0, 3.0)))),
    "logit": ("f", [A, A], lambda g, x: grad(torch.logit, x.sigmoid(), g)),
    "softmax": ("f", [A, A], lambda g, x: (grad(lambda x: x.softmax(1), x, g), grad(lambda x: x.log_softmax(0), x, g))),
    "layer_norm": ("f", [[3, 8], [8], [3, 8]], lambda x, w, g: norm_grads(lambda x, w, b: F.layer_norm(x, [8], w, b, 1e-5), x, w, g)),
    "layer_norm_2d": ("f", [[3, 4, 2], [4, 2], [3, 4, 2]], lambda x, w, g: norm_grads(lambda x, w, b: F.layer_norm(x, [4, 2], w, b, 1e-5), x, w, g)),
    "rms_norm": ("f", [[3, 8], [8], [3, 8]], rms_grads),
    "group_norm": ("f", [[2, 6, 3, 2], [6], [2, 6, 3, 2]], lambda x, w, g: norm_grads(lambda x, w, b: F.group_norm(x, 3, w, b, 1e-5), x, w, g)),
    "batch_norm": ("f", [[4, 3, 5], [3], [4, 3, 5]], lambda x, w, g: norm_grads(lambda x, w, b: F.batch_norm(x, None, None, w, b, True, eps=1e-5), x, w, g)),
    "embedding": ("f", [[2, 2, 3]], lambda g: (emb(g), emb(g, padding_idx=2), emb(g, scale_grad_by_freq=True))),
    "max_pool": ("f", [[2, 6, 7], [2, 3, 4]], lambda x, g: grad(lambda x: F.max_pool2d(x, 3, 2, (1, 1))[:, :3, :4], x, g)),
    "avg_pool": ("f", [[2, 6, 8], [2, 3, 4]], lambda x, g: (grad(lambda x: F.avg_pool2d(x, 2), x, g), grad(lambda x: F.avg_pool2d(x, 3, 2, 1, False, False), x, g))),
    "adaptive": ("f", [[2, 7, 9], [2, 3, 4]], lambda x, g: (grad(lambda x: F.adaptive_avg_pool2d(x, (3, 4)), x, g), grad(lambda x: F.adaptive_max_pool2d(x, (3, 4)), x, g))),
})
family("sources", {
    "linspace": ("f", [A], lambda x: (torch.linspace(-1.5, 2.5, 7), torch.linspace(0, 10, 4, dtype=torch.int64), torch.linspace(3, 4, 1), torch.linspace(0, 1, 0), torch.linspace(-3, 5, 9, dtype=torch.bfloat16))),
    "logspace": ("f", [A], lambda x: torch.logspace(-1, 2, 5, base=2.0)),
    "eye": ("f", [A], lambda x: (torch.eye(3, 4), torch.eye(2, dtype=torch.int64), torch.eye(0, 2))),
    "likes": ("fi", [A], lambda x: (torch.full_like(x, 3), torch.zeros_like(x), torch.ones_like(x), x.new_zeros(2), x.new_ones(1, 2), torch.zeros_like(x))),
})
