"""Asks eager PyTorch what every operator of the tensor IR gives, and writes the answers to samples.json.

    python crates/graph/tests/golden/generate.py

Run with torch on a CPU. The file holds tensors (dtype, shape, little-endian bytes in hex), cases (operator, inputs, attributes, results or
"error", in that order) and promotions (two operands, their common dtype or null). crates/graph/tests/golden.rs replays them.
"""

import itertools
import json
import math
import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint64: "u64", torch.uint32: "u32", torch.uint16: "u16", torch.uint8: "u8", torch.bool: "bool",
}
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTS = [torch.int64, torch.int32, torch.int8, torch.uint8]
INF, NAN = math.inf, math.nan

tensors, index_of, cases, promotions = [], {}, [], []


def store(t):
    t = t.detach().contiguous()
    data = bytes(t.reshape(-1).view(torch.uint8).tolist()) if t.numel() else b""
    entry = [NAMES[t.dtype], list(t.shape), data.hex()]
    key = json.dumps(entry)
    if key not in index_of:
        index_of[key] = len(tensors)
        tensors.append(entry)
    return index_of[key]


def number(x):
    """JSON has no infinities; Python's bools are ints."""
    return {"n": str(x).lower() if isinstance(x, (bool, float)) else str(x)}


def case(op, fn, *inputs, **attrs):
    """Records what fn(*inputs) gives, under the builder's name for it and its attributes."""
    try:
        out = fn(*inputs)
        out = list(out) if isinstance(out, (tuple, list)) else [out]
        result = [store(o) for o in out]
    except (RuntimeError, IndexError, TypeError, NotImplementedError) as e:
        if "not implemented" in str(e) or "not support" in str(e):
            return  # eager lacks the kernel: it has no opinion
        result = "error"
    encoded = [store(i) if isinstance(i, torch.Tensor) else number(i) for i in inputs]
    cases.append([op, encoded, attrs, result])


def floats(dtype):
    return torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 1e-3, 9.0, -20.0, 100.0, 1e-40, -0.1, 6e4, 1e30, INF, -INF, NAN]).to(dtype)


def ints(dtype, edges=True):
    values = [0, 1, 2, 7, 100, 3, torch.iinfo(dtype).max]
    if dtype != torch.uint8:
        values += [-1, -7, -100] + ([torch.iinfo(dtype).min] if edges else [])
    return torch.tensor(values, dtype=dtype)


# Unary functions, on floats, integers and bools.
UNARY = "neg abs sign relu silu sigmoid tanh exp exp2 expm1 log log2 log1p sqrt rsqrt reciprocal log10 erf erfc sin cos tan asin acos atan sinh cosh asinh acosh atanh floor ceil round trunc logical_not bitwise_not isnan isinf".split()
named = {n: getattr(torch, n, None) or getattr(F, n) for n in UNARY}
named["gelu"] = F.gelu
named["gelu:tanh"] = lambda x: F.gelu(x, approximate="tanh")
for name, fn in named.items():
    for dtype in FLOATS:
        # Eager's half-precision gelu gives NaN at infinity, where gelu is the identity: no opinion to take from it.
        case(name, fn, floats(dtype)[:17] if "gelu" in name else floats(dtype))
    for dtype in INTS:
        case(name, fn, ints(dtype))
    case(name, fn, torch.tensor([True, False]))
    case(name, fn, torch.tensor(0.25))
    case(name, fn, torch.zeros(2, 0))

# Binary functions and comparisons, every pair of a few values.
BINARY = {n: getattr(torch, n) for n in "add sub mul div remainder fmod pow maximum minimum bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift eq ne lt le gt ge".split()}
BINARY["div:floor"] = lambda a, b: torch.div(a, b, rounding_mode="floor")
BINARY["div:trunc"] = lambda a, b: torch.div(a, b, rounding_mode="trunc")
# Last, with numbers of its own, so that the samples of the others stay as they are.
BINARY["atan2"] = torch.atan2
INTEGER_DIVISION = {"remainder", "fmod", "div:floor", "div:trunc"}
for name, fn in BINARY.items():
    state = torch.get_rng_state()
    for dtype in FLOATS:
        x = torch.tensor([0.0, -0.0, 1.0, -2.5, 3.7, 1e4, -INF, NAN], dtype=dtype)
        case(name, fn, x[:, None], x[None, :])
    for dtype in INTS:
        division = name in INTEGER_DIVISION
        x = ints(dtype, edges=not division)
        y = x[x != 0] if division else x
        if "shift" in name:
            y = torch.tensor([0, 1, 3, 7, 63, 64, 100], dtype=dtype)
        if name == "pow":
            y = torch.tensor([0, 1, 2, 3, 9] + ([-1, -2] if dtype != torch.uint8 else []), dtype=dtype)
        case(name, fn, x[:, None], y)
    b = torch.tensor([True, False])
    case(name, fn, b[:, None], b)
    # Broadcasting, tensors without dimensions and without elements, and shapes that do not fit.
    r = lambda *s: (torch.rand(s) * 4 + 1)
    i = lambda *s: torch.randint(1, 5, s)
    for make in (r, i):
        case(name, fn, make(2, 1, 3), make(4, 1))
        case(name, fn, make(3), make(2, 3))
        case(name, fn, make(0, 3), make(1, 3))
        case(name, fn, make(2, 3), make(2))
        case(name, fn, make(2), make())
    # Numbers, and mixed dtypes.
    for n in (2, 0.1, True):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.bool):
            x = torch.tensor([1, 2, 3, 5], dtype=dtype) if dtype != torch.bool else torch.tensor([True, False])
            if isinstance(n, bool) and dtype == torch.bool:
                continue
            case(name, fn if name not in ("maximum", "minimum", "atan2") else (lambda x, n: BINARY[name](x, torch.tensor(n, dtype=torch.result_type(x, n)).to(torch.result_type(x, n)))), x, n)
    case(name, fn, torch.tensor([1.5, 2.5], dtype=torch.bfloat16), torch.tensor([2.0, 3.0], dtype=torch.float16))
    case(name, fn, torch.tensor([1, 2], dtype=torch.int8), torch.tensor([2, 3], dtype=torch.uint8))
    case(name, fn, torch.tensor([1, 2], dtype=torch.int32), torch.tensor(2.5, dtype=torch.float64))
    if name == "atan2":
        torch.set_rng_state(state)

case("add", torch.add, torch.tensor([1, 200], dtype=torch.uint8), 300)

# where, clamp, logical ops.
c = torch.tensor([[True], [False]])
for a, b in [(torch.tensor([1.0, NAN, 3.0]), torch.tensor([4.0, 5.0, 6.0])), (torch.tensor([1, 2, 3]), torch.tensor([4.5, 5.5, 6.5], dtype=torch.float16))]:
    case("where", torch.where, c, a, b)
case("where", torch.where, c, torch.tensor([1.0, 2.0], dtype=torch.bfloat16), 0.1)
case("where", torch.where, c, 1, 2.5)
case("where", torch.where, c, torch.tensor([1, 2], dtype=torch.int32), 2)
case("where", torch.where, torch.ones(3).bool(), torch.ones(2), torch.ones(2))
x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0, NAN, INF, -INF])
for dtype in FLOATS:
    case("clamp", lambda x, lo, hi: torch.clamp(x, lo, hi), x.to(dtype), -1.0, 0.3)
case("clamp", lambda x, lo, hi: torch.clamp(x, lo, hi), torch.arange(-3, 4), -1, 2)
case("clamp", lambda x, lo, hi: torch.clamp(x, lo, hi), torch.arange(-3, 4), -1.5, 2)
case("clamp", lambda x, lo, hi: torch.clamp(x, lo, hi), x, 2.0, 1.0)
for name in ("logical_and", "logical_or", "logical_xor"):
    case(name, getattr(torch, name), torch.tensor([0.0, 1.0, NAN, 0.0]), torch.tensor([0, 2, 0, 3]))

# Conversions. Out of range, eager leaves float to integer to the machine: only values in range.
ALL = list(NAMES)
for a, b in itertools.product(ALL, ALL):
    values = [0, 1, 2, 5, 100] if not a.is_floating_point else [0.0, 1.0, 0.3, 2.5, 97.0, 1.1]
    x = torch.tensor(values).to(a)
    case("cast", lambda x: x.to(b), x, dtype=NAMES[b])
for a, b in itertools.product(FLOATS, FLOATS + [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool]):
    case("cast", lambda x: x.to(b), floats(a), dtype=NAMES[b])
for a, b in itertools.product(INTS, INTS + FLOATS + [torch.bool]):
    case("cast", lambda x: x.to(b), ints(a), dtype=NAMES[b])

# Reductions.
REDUCE = {
    "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin,
    "any": torch.any, "all": torch.all,
}
for name, fn in REDUCE.items():
    for dtype in FLOATS + [torch.int32, torch.uint8, torch.bool]:
        x = (torch.randn(3, 4, 5) * 3).to(dtype)
        for dims, keepdim in [([1], False), ([-1], True), ([0, 2], False), ([2, 0, 1], True), ([], False)]:
            case(name, lambda x: fn(x, dim=dims, keepdim=keepdim) if dims else fn(x), x, dims=dims, keepdim=keepdim)
    special = torch.tensor([[1.0, NAN, 2.0], [INF, 1.0, 2.0], [INF, -INF, 1.0], [-0.0, 0.0, 0.0]])
    case(name, lambda x: fn(x, dim=[1]), special, dims=[1], keepdim=False)
    case(name, lambda x: fn(x, dim=[1]), torch.zeros(3, 0), dims=[1], keepdim=False)
    case(name, lambda x: fn(x, dim=[0]), torch.zeros(3, 0), dims=[0], keepdim=False)
    case(name, lambda x: fn(x, dim=[0]), torch.tensor(3.0), dims=[0], keepdim=False)
    case(name, lambda x: fn(x, dim=[0, 0]), torch.ones(2, 2), dims=[0, 0], keepdim=False)
    case(name, lambda x: fn(x, dim=[2]), torch.ones(2, 2), dims=[2], keepdim=False)
for dtype in FLOATS + [torch.int32, torch.bool]:
    x = (torch.rand(3, 4) + 0.5).mul(2).to(dtype)
    case("prod", lambda x: torch.prod(x, 1), x, dims=[1], keepdim=False)
    case("prod", lambda x: torch.prod(x), x, dims=[], keepdim=False)
for dtype in FLOATS:
    x = torch.randn(3, 4, 5).to(dtype)
    for dims, correction, keepdim in [([2], 1, False), ([0, 1], 0, True), ([], 1, False), ([1], 2, False)]:
        case("var", lambda x: torch.var(x, dim=dims or None, correction=correction, keepdim=keepdim), x, dims=dims, correction=correction, keepdim=keepdim)
    for dim in (0, -1):
        x = torch.randn(4, 6).to(dtype) * 4
        case("_softmax", lambda x: torch.softmax(x, dim), x, dim=dim)
        case("_log_softmax", lambda x: torch.log_softmax(x, dim), x, dim=dim)
    x, w, b = torch.randn(2, 3, 8).to(dtype), torch.randn(8).to(dtype), torch.randn(8).to(dtype)
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b, 1e-5), x, w, b, shape=[8], eps=1e-5)
    case("layer_norm", lambda x, w: F.layer_norm(x, (8,), w, None, 1e-3), x, w, shape=[8], eps=1e-3)
    case("layer_norm", lambda x: F.layer_norm(x, (3, 8)), x, shape=[3, 8], eps=1e-5)
case("native_layer_norm", lambda x: torch.native_layer_norm(x, (8,), None, None, 1e-5), torch.randn(3, 8), rank=1, eps=1e-5)
case("layer_norm", lambda x: F.layer_norm(x, (4,)), torch.randn(3, 8), shape=[4], eps=1e-5)
# Positions of extremes, with ties and NaN, and running sums and products.
for dtype in FLOATS + INTS:
    x = torch.tensor([[1, 3, 3, 2], [5, 0, 5, 5], [0, 0, 0, 0]], dtype=dtype)
    samples = [x] + ([torch.tensor([[1.0, NAN, 2.0, NAN], [INF, -INF, INF, 0.0]], dtype=dtype)] if dtype.is_floating_point else [])
    for x in samples:
        for dim, keepdim in ((0, False), (1, True), (-1, False)):
            case("argmax", lambda x: torch.argmax(x, dim=dim, keepdim=keepdim), x, dim=dim, keepdim=keepdim)
            case("argmin", lambda x: torch.argmin(x, dim=dim, keepdim=keepdim), x, dim=dim, keepdim=keepdim)
            case("cumsum", lambda x: torch.cumsum(x, dim=dim), x, dim=dim)
            case("cumprod", lambda x: torch.cumprod(x, dim=dim), x, dim=dim)
            case("argsort", lambda x: torch.argsort(x, dim=dim, stable=True, descending=keepdim), x, dim=dim, descending=keepdim)
for x in (torch.tensor(2.5), torch.tensor([True, False, True]), torch.zeros(2, 0), torch.arange(1, 241).reshape(3, 40, 2) / 100):
    for name in ("cumsum", "cumprod"):
        case(name, lambda x: getattr(torch, name)(x, dim=0), x, dim=0)
    case("argsort", lambda x: torch.argsort(x, dim=0, stable=True), x, dim=0, descending=False)
    if x.dtype != torch.bool:
        case("argmax", lambda x: torch.argmax(x, dim=0), x, dim=0, keepdim=False)
case("argsort", lambda x: torch.argsort(x, dim=1, stable=True), torch.tensor([[0.0, -0.0, -INF, INF, NAN, -1.0, -0.0]]), dim=1, descending=False)
case("argmin", lambda x: torch.argmin(x, dim=1), torch.zeros(2, 0), dim=1, keepdim=False)

case("var", lambda x: torch.var(x, dim=[1]), torch.ones(2, 1), dims=[1], correction=1, keepdim=False)
case("_softmax", lambda x: torch.softmax(x, 1), torch.tensor([[-INF, -INF], [INF, 1.0], [NAN, 1.0], [-INF, 0.0]]), dim=1)
case("_softmax", lambda x: torch.softmax(x, 0), torch.tensor(2.0), dim=0)
case("_softmax", lambda x: torch.softmax(x, 1), torch.zeros(2, 0), dim=1)
case("_softmax", lambda x: torch.softmax(x, 2), torch.zeros(2, 2), dim=2)

# Views.
x = torch.arange(24, dtype=torch.int16).reshape(2, 3, 4)
for shape in ([6, 4], [-1], [2, -1, 2], [24, 1], [5, 5], [-1, -1], [7, -1]):
    case("view", lambda x: x.reshape(shape), x, shape=shape)
case("view", lambda x: x.reshape([0, 5]), torch.zeros(0, 3), shape=[0, 5])
case("view", lambda x: x.reshape([]), torch.zeros(1, 1), shape=[])
for dims in ([2, 0, 1], [0, -1, 1], [0, 1], [0, 0, 1], [0, 1, 3]):
    case("permute", lambda x: x.permute(dims), x, dims=dims)
case("transpose", lambda x: x.transpose(0, -1), x, a=0, b=-1)
for shape in ([5, 2, 3, 4], [2, -1, 4], [2, 3, 5]):
    case("expand", lambda x: x.expand(shape), x, shape=shape)
case("expand", lambda x: x.expand(3, 4, 2), torch.tensor([[1.0], [2.0], [3.0], [4.0]]), shape=[3, 4, 2])
for dim, start, end, step in [(1, 0, 2, 1), (2, 1, 4, 2), (-1, -3, -1, 1), (0, 5, 9, 1), (1, 2, 1, 1), (2, 0, 2**62, 3), (3, 0, 1, 1)]:
    case("slice", lambda x: torch.ops.aten.slice(x, dim, start, end, step), x, dim=dim, start=start, end=end, step=step)
for dim, index in [(0, 1), (1, -1), (2, 4), (-1, 0)]:
    case("select", lambda x: x.select(dim, index), x, dim=dim, index=index)
for dim in (0, -1, 3, 4):
    case("unsqueeze", lambda x: x.unsqueeze(dim), x, dim=dim)
case("squeeze", lambda x: x.squeeze(1), torch.ones(2, 1, 3), dim=1)
case("squeeze", lambda x: x.squeeze(0), torch.ones(2, 1, 3), dim=0)

# Indexing.
a, b = torch.ones(2, 3), torch.zeros(2, 1)
case("cat", lambda *t: torch.cat(t, 1), a, b, a, dim=1)
case("cat", lambda *t: torch.cat(t, -1), a.int(), b.half(), dim=-1)
case("cat", lambda *t: torch.cat(t, 0), a, torch.zeros(0), dim=0)
case("cat", lambda *t: torch.cat(t, 0), a, b, dim=0)
case("cat", lambda *t: torch.cat(t, 1), a, torch.zeros(2, 0), dim=1)
f = torch.randn(3, 4)
case("gather", lambda x, i: torch.gather(x, 1, i), f, torch.tensor([[0, 3, 1], [2, 2, 0]]), dim=1)
case("gather", lambda x, i: torch.gather(x, 0, i), f, torch.tensor([[0, 2, 1, 1]]), dim=0)
case("gather", lambda x, i: torch.gather(x, 1, i), f, torch.tensor([[4]]), dim=1)
case("gather", lambda x, i: torch.gather(x, 1, i), f, torch.tensor([0]), dim=1)
case("index_select", lambda x, i: torch.index_select(x, 1, i), f, torch.tensor([3, 0, 0]), dim=1)
case("index_select", lambda x, i: torch.index_select(x, 0, i), f, torch.tensor([2, 1], dtype=torch.int32), dim=0)
case("index_select", lambda x, i: torch.index_select(x, 0, i), f, torch.tensor([3]), dim=0)
case("embedding", lambda w, i: F.embedding(i, w), f.bfloat16(), torch.tensor([[0, 2], [1, 1]]))
case("embedding", lambda w, i: F.embedding(i, w), f, torch.tensor(2))
case("embedding", lambda w, i: F.embedding(i, w), f, torch.tensor([-1]))
case("embedding", lambda w, i: F.embedding(i, w), f, torch.tensor([0.5]))

# Updates.
for dim, start, end, step in [(1, 0, 2, 1), (2, 1, 4, 2), (0, -1, 2**62, 1)]:
    src = torch.ops.aten.slice(x, dim, start, end, step) * 0 - 1
    case("slice_scatter", lambda x, s: torch.slice_scatter(x, s, dim, start, end, step), x, src, dim=dim, start=start, end=end, step=step)
case("slice_scatter", lambda x, s: torch.slice_scatter(x, s, 0, 0, 1, 1), x, x, dim=0, start=0, end=1, step=1)
put = lambda dim: lambda x, s, i: torch.ops.aten.index_put(x, [None] * dim + [i], s)
case("index_put", put(1), f, -torch.ones(f.shape[0], 2), torch.tensor([3, 0]), dim=1)
case("index_put", put(0), f.bfloat16(), torch.full((1, f.shape[1]), 2.5, dtype=torch.bfloat16), torch.tensor([1]), dim=0)
case("index_put", put(0), torch.arange(6, dtype=torch.int32), torch.tensor([7, 8], dtype=torch.int32), torch.tensor([5, 2]), dim=0)
case("index_put", put(0), f, f, torch.tensor([9, 9, 9]), dim=0)
i = torch.tensor([[3, 0, 3], [1, 1, 2]])
for dtype in FLOATS + [torch.int64, torch.uint8, torch.bool]:
    v = (torch.randn(3, 4) * 4).to(dtype)
    w = (torch.randn(2, 3) * 4).to(dtype)
    case("scatter", lambda x, s, i: x.scatter(1, i, s), v, w, i, dim=1)
    for reduce in ("sum", "prod", "amax", "amin"):
        case(f"scatter:{reduce}", lambda x, s, i: x.scatter_reduce(1, i, s, reduce), v, w, i, dim=1)
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for own in (True, False):
            case("scatter_reduce", lambda x, s, i: x.scatter_reduce(0, i, s, reduce, include_self=own), v, w, i % 3, reduce=reduce, dim=0, include_self=own)
    case("index_reduce", lambda x, s, i: x.index_add(1, i, s), v, (torch.randn(3, 5) * 4).to(dtype), torch.tensor([1, 1, 0, 3, 1]), reduce="sum", dim=1, include_self=True)
case("scatter", lambda x, s, i: x.scatter(0, i, s), torch.tensor(2.0), torch.tensor(3.0), torch.tensor(0), dim=0)
case("scatter", lambda x, s, i: x.scatter(0, i, s), f, torch.ones(4, 5), torch.tensor([[2, 1]], dtype=torch.int32), dim=0)
case("scatter", lambda x, s, i: x.scatter(1, i, s), f, torch.ones(4, 5), torch.tensor([[4]]), dim=1)
case("scatter", lambda x, s, i: x.scatter(1, i, s), f, torch.ones(4, 5), torch.tensor([0]), dim=1)
case("scatter:amax", lambda x, s, i: x.scatter_reduce(0, i, s, "amax"), torch.tensor([NAN, 1, 2]), torch.tensor([1.0, NAN, 3, -1]), torch.tensor([0, 1, 2, 2]), dim=0)
for dtype in FLOATS:
    for padding in (-1, 2):
        for by_count in (False, True):
            g = torch.randn(2, 4, 3).to(dtype)
            case("embedding_backward", lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 6, padding, by_count), g, torch.tensor([[2, 5, 5, 0], [1, 2, 5, 1]]), rows=6, padding=padding, by_count=by_count)
case("copy", lambda x, s: torch.ops.aten.copy(x, s), torch.zeros(2, 3, dtype=torch.int32), torch.tensor([1.5, -2.5, 3.0]))
case("copy", lambda x, s: torch.ops.aten.copy(x, s), torch.zeros(2), torch.zeros(3))

# Sources.
for start, end, step in [(0, 5, 1), (3, -4, -2), (0, 1, 1), (5, 5, 1), (0.0, 1.0, 0.3), (1, 2.5, 1), (0, 3, -1), (0, 3, 0)]:
    case("arange", lambda: torch.arange(start, end, step), start=number(start), end=number(end), step=number(step), dtype=None)
case("arange", lambda: torch.arange(0, 5, 2, dtype=torch.bfloat16), start=number(0), end=number(5), step=number(2), dtype="bf16")
case("arange", lambda: torch.arange(0, 3, 1, dtype=torch.uint8), start=number(0), end=number(3), step=number(1), dtype="u8")
for value, dtype in [(0.1, torch.bfloat16), (3, torch.float32), (True, torch.int8), (2.7, torch.int32), (-INF, torch.float16), (1.5, torch.bool)]:
    case("full", lambda: torch.full((2, 3), value, dtype=dtype), value=number(value), shape=[2, 3], dtype=NAMES[dtype])

# Matrix products.
for dtype in FLOATS + [torch.int32]:
    m = lambda *s: (torch.randn(*s) * 3).to(dtype)
    case("mm", torch.mm, m(3, 5), m(5, 4))
    case("bmm", torch.bmm, m(2, 3, 5), m(2, 5, 4))
    case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), m(4), m(3, 5), m(5, 4), beta=number(2), alpha=number(3))
case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0, alpha=0.5), torch.full((1, 2), NAN), torch.randn(3, 4), torch.randn(4, 2), beta=number(0), alpha=number(0.5))
case("addmm", lambda c, a, b: torch.addmm(c, a, b), torch.ones(3), torch.randn(3, 4), torch.randn(4, 2), beta=number(1), alpha=number(1))
case("mm", torch.mm, torch.ones(2, 0), torch.ones(0, 3))
case("mm", torch.mm, torch.ones(2, 3), torch.ones(2, 3))
case("mm", torch.mm, torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64))
case("mm", torch.mm, torch.ones(3), torch.ones(3, 2))
g = lambda *s: torch.randn(s)
for sa, sb in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 2)), ((2, 3), (4, 2)), ((), (3,))]:
    case("matmul", torch.matmul, g(*sa), g(*sb))
case("linear", F.linear, g(2, 3, 4), g(5, 4), g(5))
case("linear", F.linear, g(4), g(5, 4), g(5))
case("linear", F.linear, g(2, 4), g(5, 4))


def linear_scan(a, b, dim):
    """Affine functions composed step by step, as a recurrent layer does."""
    states = []
    for x, y in zip(a.double().unbind(dim), b.double().unbind(dim), strict=True):
        states.append(x * states[-1] + y if states else y)
    return torch.stack(states, dim).to(b.dtype)


for dtype in FLOATS:
    for shape, dim in (((3, 7), 1), ((5, 2, 3), 0), ((4, 1), 1)):
        case("linear_scan", lambda a, b: linear_scan(a, b, dim), torch.rand(shape).to(dtype), torch.randn(shape).to(dtype), dim=dim)
case("linear_scan", lambda a, b: linear_scan(a, b, 0), torch.tensor([INF, 1.0, NAN]), torch.tensor([1.0, 2.0, 3.0]), dim=0)



def philox(counter, seed):
    """The first two of four words, with Python's integers: torch's own generator starts elsewhere."""
    low = (1 << 32) - 1

    def words(counter, seed):
        c, k = [counter & low, counter >> 32 & low, 0, 0], [seed & low, seed >> 32 & low]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [q >> 32 ^ c[1] ^ k[0], q & low, p >> 32 ^ c[3] ^ k[1], p & low]
            k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
        bits = c[1] << 32 | c[0]
        return bits - (1 << 64) if bits >> 63 else bits

    counter, seed = torch.broadcast_tensors(counter, seed)
    drawn = [words(c, s) for c, s in zip(counter.reshape(-1).tolist(), seed.reshape(-1).tolist(), strict=True)]
    return torch.tensor(drawn).to(counter.dtype).reshape(counter.shape)


for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
    limits = torch.iinfo(dtype)
    case("philox", philox, torch.tensor([0, 1, 2, 100, limits.max, limits.min], dtype=dtype), torch.tensor([[0], [7], [limits.max]], dtype=dtype))

for dtype, causal in itertools.product((torch.float32, torch.bfloat16), (False, True)):
    flash = lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=0.25)
    case("sdpa", flash, *[torch.randn(2, 2, 3, 4).to(dtype) for _ in range(3)], causal=causal, scale=0.25)
flash = lambda q, k, v, mask: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=0.5)
case("sdpa", flash, *[torch.randn(1, 2, 3, 4) for _ in range(3)], torch.randn(1, 2, 3, 3), causal=False, scale=0.5)

for dtype in FLOATS:
    for how in ({}, {"stride": 2, "padding": 1}, {"padding": 2, "dilation": 2}):
        full = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1} | how
        case("convolution", lambda x, w: F.conv2d(x, w, **full), torch.randn(2, 2, 5, 6).to(dtype), torch.randn(3, 2, 3, 3).to(dtype), **full)
case("convolution", lambda x, w: F.conv1d(x, w, groups=2), torch.randn(1, 4, 6), torch.randn(2, 2, 3), stride=1, padding=0, dilation=1, groups=2)
case("convolution", F.conv3d, torch.randn(1, 1, 3, 3, 3), torch.randn(2, 1, 2, 2, 2), stride=1, padding=0, dilation=1, groups=1)
case("convolution", F.conv2d, torch.randn(1, 2, 3, 3), torch.randn(2, 3, 2, 2), stride=1, padding=0, dilation=1, groups=1)

bytes_of = lambda dtype, *shape: torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1, shape, dtype=dtype)
for dtype in (torch.int8, torch.uint8):
    case("_int_mm", torch._int_mm, bytes_of(dtype, 3, 7), bytes_of(torch.int8, 7, 5))
    case("_int_mm", torch._int_mm, bytes_of(dtype, 2, 0), bytes_of(torch.int8, 0, 3))
case("_int_mm", torch._int_mm, torch.full((1, 300), -128, dtype=torch.int8), torch.full((300, 2), -128, dtype=torch.int8))
case("_int_mm", torch._int_mm, bytes_of(torch.int8, 3, 7), bytes_of(torch.int8, 6, 5))
case("_int_mm", torch._int_mm, bytes_of(torch.int16, 3, 7), bytes_of(torch.int8, 7, 5))

# Promotion, of dtypes and classes alone.
KINDS = [("t", 1), ("t", 0)]
for a, b in itertools.combinations_with_replacement(ALL, 2):
    for (_, ra), (_, rb) in itertools.product(KINDS, KINDS):
        try:
            r = NAMES[torch.result_type(torch.empty([1] * ra, dtype=a), torch.empty([1] * rb, dtype=b))]
        except RuntimeError:
            r = None
        promotions.append([NAMES[a], ra, NAMES[b], rb, r])
for a, n in itertools.product(ALL, [1, 1.5, True]):
    for ra in (0, 1):
        try:
            r = NAMES[torch.result_type(torch.empty([1] * ra, dtype=a), n)]
        except RuntimeError:
            r = None
        kind = {int: "i64", float: "f32", bool: "bool"}[type(n)]
        promotions.append([NAMES[a], ra, kind, None, r])

path = pathlib.Path(__file__).parent / "samples.json"
dump = lambda x: json.dumps(x, separators=(",", ":"))
lines = ['{"torch":' + dump(torch.__version__.split("+")[0]), ',"tensors":[', ",\n".join(map(dump, tensors)), '],"cases":[', ",\n".join(map(dump, cases)), '],"promotions":[', ",\n".join(map(dump, promotions)), "]}"]
path.write_text("\n".join(lines) + "\n")
print(len(tensors), "tensors", len(cases), "cases", len(promotions), "promotions", path.stat().st_size, "bytes")
