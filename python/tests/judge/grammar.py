"""The grammar of random programs: which statements may be made of the values at hand.

A rule is a function of a `Maker`; it returns `(text, uses, exact)` or None when nothing fits. `exact` says that eager
and a compiler must produce the same bits, so that a comparison or a rounding of the result cannot fall the other way.
"""

import torch

FLOATS = ("float32", "float32", "float32", "bfloat16", "float16", "float64")
INTS = ("int64", "int64", "int32", "int16", "int8", "uint8")

# Float to float. Exact ones round once, as eager does.
EXACT_UNARY = (
    "-{0}", "{0}.abs()", "torch.relu({0})", "{0}.clamp(-0.5, 0.75)", "{0}.clamp(min=0.1)", "{0}.square()", "{0} * 2.0", "{0} + 0.1",
    "{0}.abs().sqrt()", "1.0 / ({0}.abs() + 1.0)", "F.leaky_relu({0}, 0.1)", "F.hardtanh({0})", "F.relu6({0})", "{0} / 3.0", "3.0 - {0}",
    "torch.where({0} > 0, {0}, {0} * 0.5)", "F.hardsigmoid({0})", "F.hardswish({0})", "F.threshold({0}, 0.1, 0.2)", "{0}.nan_to_num()",
    "{0}.pow(2)", "{0}.pow(3)", "torch.lerp({0}, {0} * 2, 0.5)",
)
INEXACT_UNARY = (
    "torch.exp({0}.clamp(-4, 4))", "torch.log1p({0}.abs())", "torch.log({0}.abs() + 0.5)", "torch.sin({0})", "torch.cos({0})", "torch.tanh({0})",
    "torch.sigmoid({0})", "F.gelu({0})", "F.gelu({0}, approximate='tanh')", "F.silu({0})", "F.softplus({0})", "torch.erf({0})",
    "torch.rsqrt({0}.abs() + 1.0)", "torch.expm1({0}.clamp(-3, 3))", "F.elu({0})", "F.logsigmoid({0})", "F.mish({0})", "torch.atan({0})",
    "({0}.abs() + 0.5) ** 0.3", "torch.exp2({0}.clamp(-4, 4))", "torch.log2({0}.abs() + 1)", "torch.sinh({0}.clamp(-3, 3))", "F.selu({0})",
    "torch.asinh({0})", "torch.erfc({0}.clamp(-2, 2))", "torch.logit({0}.abs().clamp(0.1, 0.9))", "torch.tan({0}.clamp(-1, 1))", "F.celu({0})",
)
# A float that falls to one side or the other: only of exact values.
STEP_UNARY = ("{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0}.sign()", "{0}.frac()", "torch.heaviside({0}, {0} * 0)")
INT_UNARY = ("-{0}", "{0}.abs()", "{0} * 3", "{0} + 7", "{0} // 3", "{0} % 5", "{0}.clamp(-2, 9)", "{0} & 6", "{0} | 1", "{0} ^ 5", "~{0}", "{0} << 1", "{0} >> 1", "{0}.sign()", "{0}.square()")
BOOL_UNARY = ("~{0}", "{0}.logical_not()", "{0} & True", "{0} ^ True")
BINARY = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "torch.where({0} > {1}, {0}, {1})", "torch.add({0}, {1}, alpha=2)")
FLOAT_BINARY = ("{0} / ({1}.abs() + 1.0)", "torch.fmax({0}, {1})", "torch.fmin({0}, {1})", "torch.copysign({0}, {1})", "torch.addcmul({0}, {1}, {1}, value=0.5)", "torch.lerp({0}, {1}, 0.25)")
INEXACT_BINARY = ("torch.atan2({0}, {1}.abs() + 0.5)", "torch.hypot({0}, {1})", "torch.logaddexp({0}, {1})", "torch.addcdiv({0}, {1}, {1}.abs() + 1.0)")
INT_BINARY = ("{0} // ({1}.abs() % 7 + 1)", "{0} % ({1}.abs() % 7 + 1)", "{0} & {1}", "{0} | {1}", "{0} ^ {1}")
COMPARE = ("{0} > {1}", "{0} <= {1}", "{0} == {1}", "{0} != {1}", "{0} < {1}", "torch.isclose({0}, {1})")
# {d}: a dimension; {k}: keepdim or not.
EXACT_REDUCE = ("{0}.amax({d}{k})", "{0}.amin({d}{k})", "{0}.max({d}{k}).values", "{0}.min({d}{k}).values")
FLOAT_REDUCE = ("{0}.sum({d}{k})", "{0}.mean({d}{k})", "{0}.var({d}{k})", "{0}.std({d}{k})", "{0}.logsumexp({d}{k})", "{0}.norm(dim={d}{k})", "{0}.square().mean({d}{k})", "{0}.clamp(0.9, 1.1).prod({d}{k})")
FLOAT_ROWS = (
    "torch.softmax({0}, {d})", "torch.log_softmax({0}, {d})", "{0}.cumsum({d})", "F.layer_norm({0}, ({0}.shape[-1],))", "F.normalize({0}, dim={d})",
    "{0}.clamp(0.9, 1.1).cumprod({d})", "{0}.logcumsumexp({d})", "{0} - {0}.mean({d}, keepdim=True)", "F.rms_norm({0}, ({0}.shape[-1],))",
)
EXACT_ROWS = ("{0}.cummax({d}).values", "{0}.cummin({d}).values", "{0}.sort({d}).values", "{0}.flip({d})", "{0}.roll(1, {d})", "{0}.topk(1, {d}).values", "{0}.kthvalue(1, {d}).values", "{0}.diff(dim={d})")
INDEX_ROWS = ("{0}.argmax({d}{k})", "{0}.argmin({d}{k})", "{0}.sort({d}, stable=True).indices", "{0}.argsort({d}, stable=True)")
INT_REDUCE = ("{0}.sum({d}{k})", "{0}.amax({d}{k})", "{0}.prod({d}{k})", "{0}.cumsum({d})", "(({0} % 3) == 0).any({d}{k})", "({0} > 0).all({d}{k})", "({0} > 1).sum({d}{k})", "{0}.sort({d}).values")
BOOL_REDUCE = ("{0}.any({d}{k})", "{0}.all({d}{k})", "{0}.sum({d}{k})", "{0}.cumsum({d})", "{0}.any()", "{0}.count_nonzero({d})")
VIEWS = (
    "{0}.transpose({d}, {e})", "{0}.unsqueeze({d})", "{0}.reshape(-1)", "{0}.flatten()", "{0}.select({d}, 0)", "{0}.select({d}, -1)", "{0}.narrow({d}, 0, 1)",
    "{0}.movedim({d}, {e})", "{0}.contiguous()", "{0}.clone()", "{0}.squeeze({d})", "{0}.squeeze()", "{0}[..., ::2]", "{0}[1:]", "{0}[:-1]", "{0}[..., 1:]", "{0}[::2]", "{0}[None]",
    "{0}.unsqueeze({d}).expand({x})", "{0}.chunk(2, {d})[0]", "{0}.split(1, {d})[-1]", "{0}.diagonal()", "{0}.mT", "{0}.unfold({d}, 1, 1)", "{0}.repeat_interleave(2, {d})",
    "{0}.repeat(2, *[1] * ({0}.dim() - 1))", "F.pad({0}, (1, 2))", "F.pad({0}, (-1, 0))", "{0}.tril()", "{0}.triu(1)", "{0}.detach()", "{0}.permute(*reversed(range({0}.dim())))", "{0}.T if {0}.dim() == 2 else {0}",
    "{0}.flip(0)", "{0}.view({0}.shape)", "{0}.ravel()", "{0}.unbind({d})[0]", "torch.rot90({0}, 1, (0, 1))", "{0}.as_strided(({0}.numel(),), (1,)) if {0}.is_contiguous() else {0}",
)
IN_PLACE = ("{0}.add_(1)", "{0}.mul_(2)", "{0}.neg_()", "{0}.zero_()", "{0}[0] = 1", "{0}[..., 0] = 0", "{0}[1:] = 2", "{0}[::2] += 1", "{0}.fill_(3)", "{0}[..., -1] *= 2", "{0}.clamp_(0, 2)", "{0}.abs_()")
IN_PLACE_BINARY = ("{0}.add_({1})", "{0}.copy_({1})", "{0}.sub_({1})", "{0}.mul_({1})", "{0}[0] = {1}[0]", "{0}[..., :1] = {1}[..., :1]", "{0}[-1] = {1}[0]", "{0}.t().copy_({1})", "{0}[:] = {1}", "{0}.masked_fill_({1} > 0, 0)")


def kind(dtype):
    return "float" if dtype.is_floating_point else "bool" if dtype == torch.bool else "int"


def unary(m):
    v = m.pick()
    k, exact = kind(m.dtype(v)), m.exact(v)
    if k == "float":
        if exact and m.chance(0.15):
            return m.pattern(STEP_UNARY, v), (v,), True
        if m.chance(0.55):
            text = m.pattern(EXACT_UNARY, v)
            # A branch on an inexact value may go the other way only where both sides meet: all of these are continuous.
            return text, (v,), exact and m.dtype(v) == torch.float32 and "pow" not in text and "lerp" not in text
        return m.pattern(INEXACT_UNARY, v), (v,), False
    return m.pattern(INT_UNARY if k == "int" else BOOL_UNARY, v), (v,), exact


def binary(m):
    v = m.pick()
    w = m.partner(v)
    if w is None:
        return None
    a, b = kind(m.dtype(v)), kind(m.dtype(w))
    exact = m.exact(v) and m.exact(w)
    if exact and m.chance(0.2):
        return m.pattern(COMPARE, v, w), (v, w), True
    if "float" in (a, b):
        if a == b == "float" and m.chance(0.4):
            if m.chance(0.4):
                return m.pattern(INEXACT_BINARY, v, w), (v, w), False
            return m.pattern(FLOAT_BINARY, v, w), (v, w), False
        return m.pattern(BINARY, v, w), (v, w), exact and "alpha" not in (m.last or "")
    if a == b == "int" and m.chance(0.5):
        return m.pattern(INT_BINARY, v, w), (v, w), exact
    return m.pattern(BINARY if "int" in (a, b) else ("{0} & {1}", "{0} | {1}", "{0} ^ {1}"), v, w), (v, w), exact


def reduce(m):
    v = m.pick(least=1)
    if v is None:
        return None
    k, exact = kind(m.dtype(v)), m.exact(v)
    if k == "float":
        r = m.random.random()
        if r < 0.4:
            return m.pattern(FLOAT_REDUCE, v), (v,), False
        if r < 0.65:
            return m.pattern(FLOAT_ROWS, v), (v,), False
        if r < 0.85:
            return m.pattern(EXACT_REDUCE + EXACT_ROWS, v), (v,), exact
        if exact:
            return m.pattern(INDEX_ROWS, v), (v,), True
        return None
    if not exact:
        return None
    return m.pattern(INT_REDUCE + EXACT_ROWS + INDEX_ROWS if k == "int" else BOOL_REDUCE, v), (v,), True


def view(m):
    v = m.pick(least=1)
    return v and (m.pattern(VIEWS, v), (v,), m.exact(v))


def combine(m):
    v = m.pick(least=1)
    w = v and m.alike(v)
    if not w:
        return None
    d = m.dim(v)
    text = m.random.choice((f"torch.cat([{v}, {w}], {d})", f"torch.stack([{v}, {w}], {d})", f"torch.cat([{v}, {w}, {v}], {d})"))
    return text, (v, w), m.exact(v) and m.exact(w)


def product(m):
    v = m.pick(least=1, kinds=("float",))
    if not v:
        return None
    w = m.pick(least=1, dtype=m.dtype(v))
    forms = (f"{v} @ {w}", f"{v} @ {v}.mT", f"{v}.mT @ {v}", f"F.linear({v}, {w})", f"torch.outer({v}.flatten()[:5], {w}.flatten()[:3])", f"torch.einsum('...i,...i->...', {v}, {w})", f"torch.addmm({w}, {v}, {v}.mT)")
    return m.random.choice(forms), (v, w), False


def index(m):
    v = m.pick(least=1)
    if not v:
        return None
    d, n = m.dim(v), None
    n = f"{v}.shape[{d}]"
    i = m.pick(kinds=("int",))
    forms = [f"{v}[torch.arange({n} - 1, -1, -1)]" if d == 0 else f"{v}.index_select({d}, torch.arange({n}))"]
    uses, exact = [v], m.exact(v)
    if i and m.exact(i):
        at = f"({i}.long() % {n})"
        flat = f"({i}.long().flatten()[:6] % {n})"
        sources = [f"{v}.index_select({d}, {flat})", f"torch.take_along_dim({v}, {at}, {d})", f"{v}.gather({d}, {at})"]
        if d == 0:
            sources += [f"{v}[{at}]", f"F.embedding({flat}, {v})"]
        sources += [f"{v}.index_fill({d}, {flat}, 1)", f"{v}.index_add({d}, {flat}, {v}.index_select({d}, {flat}))", f"{v}.scatter({d}, {at}, 1)", f"{v}.scatter_add({d}, {at}, {v})", f"{v}.index_copy({d}, torch.arange({n}), {v} + {v})"]
        text = m.random.choice(sources)
        additive = "add" in text and kind(m.dtype(v)) == "float"
        return text, (v, i), exact and not additive
    mask = m.like_shape(v, torch.bool)
    if mask and m.exact(mask):
        forms = [f"{v}.masked_fill({mask}, 0)", f"torch.where({mask}, {v}, 1)", f"{v}.masked_scatter({mask}, {v})"]
        uses.append(mask)
    return m.random.choice(forms), tuple(uses), exact


def cast(m):
    v = m.pick()
    target = m.random.choice(FLOATS + INTS + ("bool",))
    k = kind(m.dtype(v))
    if k == "float" and not (target.startswith(("float", "bfloat"))) and not m.exact(v):
        return None
    if k == "float" and target.startswith("uint"):  # negative floats to unsigned integers mean nothing
        return None
    return f"{v}.to(torch.{target})", (v,), m.exact(v)


def factory(m):
    shape = tuple(m.random.choice((1, 2, 3, 5, 8)) for _ in range(m.random.randint(0, 3)))
    dtype = m.random.choice(FLOATS + INTS)
    forms = (f"torch.zeros({shape}, dtype=torch.{dtype})", f"torch.ones({shape}, dtype=torch.{dtype})", f"torch.full({shape}, 2, dtype=torch.{dtype})", "torch.arange(7)", "torch.arange(0, 10, 3)", "torch.linspace(0, 1, 5)", "torch.eye(4)", "torch.arange(5, dtype=torch.float32)", f"torch.tril(torch.ones(5, 5, dtype=torch.bool))")
    return m.random.choice(forms), (), True


def like(m):
    v = m.pick()
    return m.random.choice((f"torch.zeros_like({v})", f"torch.ones_like({v})", f"torch.full_like({v}, 1)", f"{v}.new_zeros((2, 3))", f"{v}.new_full((4,), 1)")), (v,), True


def image(m):
    v = m.pick(least=3, kinds=("float",))
    if not v or m.ndim(v) > 4:
        return None
    forms = (f"F.avg_pool2d({v}, 2)", f"F.max_pool2d({v}, 2)", f"F.adaptive_avg_pool2d({v}, 1)", f"F.max_pool2d({v}, 3, 1, 1)", f"F.avg_pool2d({v}, 3, 2, 1)", f"F.conv2d({v}, torch.ones(2, {v}.shape[-3], 2, 2, dtype={v}.dtype))", f"F.interpolate({v}, scale_factor=2)" if m.ndim(v) == 4 else f"F.pad({v}, (1, 1), mode='reflect')", f"F.pad({v}, (1, 1, 1, 1), mode='replicate')")
    text = m.random.choice(forms)
    return text, (v,), m.exact(v) and "max_pool" in text


def mutate(m):
    v = m.pick(least=1)
    if not v:
        return None
    if m.chance(0.5):
        w = m.alike(v) or m.partner(v)
        if w:
            # The exactness of what is written passes to all that shares the storage.
            return m.pattern(IN_PLACE_BINARY, v, w), (v, w), m.exact(v) and m.exact(w)
    if m.dtype(v) == torch.bool:
        return m.random.choice((f"{v}.logical_not_()", f"{v}[0] = True", f"{v}.fill_(False)", f"{v}[..., 0] = False")), (v,), m.exact(v)
    return m.pattern(IN_PLACE, v), (v,), m.exact(v)


# (rule, weight, binds a name)
RULES = (
    (unary, 6, True), (binary, 6, True), (reduce, 5, True), (view, 6, True), (combine, 2, True), (product, 2, True), (index, 4, True), (cast, 3, True),
    (factory, 1, True), (like, 1, True), (image, 1, True), (mutate, 4, False),
)
