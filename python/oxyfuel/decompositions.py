"""Which operators AOTAutograd takes apart before we see them.

PyTorch's own table down to core ATen, less what stays whole: operators that torch runs faster or more exactly than their parts, and
operators whose random numbers must be eager's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import _torch, layouts

# Kept whole, and why.
WHOLE: dict[str, tuple[str, ...]] = {
    "integers come of rounded floats: another last bit is another number": ("linspace", "logspace"),
    "torch rounds otherwise than its parts, and they lie otherwise": (
        "logit",
        "logit_backward",
        "logaddexp",
        "logaddexp2",
        "log_sigmoid_forward",
    ),
    "writes a slice, its parts pass over the whole": ("select_scatter",),
    "ours reads its operands twice, their parts many times": ("native_group_norm_backward",),
    "their parts read a number out of a tensor, which tracing cannot": ("take",),
    "one fused kernel in torch, many passes over memory in parts": (
        "_scaled_dot_product_flash_attention_for_cpu",
        "embedding_dense_backward",
        "col2im",
        "im2col",
        "max_unpool2d",
        "max_unpool3d",
        "upsample_linear1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "reflection_pad1d",
        "reflection_pad2d",
        "reflection_pad3d",
        "reflection_pad1d_backward",
        "reflection_pad2d_backward",
        "reflection_pad3d_backward",
        "replication_pad1d",
        "replication_pad2d",
        "replication_pad3d",
    ),
}

# Whole where the numbers must be those that eager draws.
RANDOM = ("bernoulli", "rrelu", "rrelu_with_noise", "native_dropout", "normal", "uniform")


def logsumexp(parts: Callable[..., torch.Tensor], x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    """Of halves, rounded after each step, as torch runs it; its own parts stay in float32."""
    if x.dtype not in (torch.float16, torch.bfloat16) or x.dim() == 0 or any(n == 0 for n in x.shape):
        return parts(x, dim, keepdim)
    dims = [dim] if isinstance(dim, int) else list(dim) or list(range(x.dim()))
    largest = torch.amax(x, dims, keepdim=True)
    largest = torch.where(largest.abs() == float("inf"), torch.zeros_like(largest), largest)
    total = torch.sum(torch.exp(x - largest), dims, keepdim=keepdim)
    return torch.log(total) + (largest if keepdim else torch.squeeze(largest, dims))


def index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """Without a write: the parts that older versions of torch have leave one behind, which AOTAutograd refuses."""
    if x.dim() == 0:
        return index_fill(x.unsqueeze(0), 0, index, value).squeeze(0)
    value = value if isinstance(value, torch.Tensor) else torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    places = [None] * (dim % x.dim()) + [index]
    return torch.ops.aten.index_put.default(x, places, value.to(x.dtype))


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch runs it: what is dropped is multiplied by 0, so that what is no number stays none. The draw stands alone: our rules know it."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = torch.rand_like(x, dtype=torch.float32) >= p
    return x * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def log_sigmoid_forward(x: torch.Tensor) -> Any:
    """As torch computes it on a GPU, where nothing is kept for the gradient."""
    if x.device.type != "cuda":
        return NotImplemented
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    found = torch.clamp(wide, max=0) - torch.log1p(torch.exp(-wide.abs()))
    return found.to(x.dtype), x.new_empty(0)


def native_group_norm(x: torch.Tensor, weight: Any, bias: Any, *sizes: Any) -> Any:
    """Halves with parameters of float32: torch's kernel keeps statistics in float32, tracing says that they are halves."""
    if weight is None or weight.dtype == x.dtype:
        return NotImplemented
    out, mean, rstd = torch.ops.aten.native_group_norm.default(x.to(weight.dtype), weight, bias, *sizes)
    return out.to(x.dtype), mean, rstd


def lerp(parts: Callable[..., Any], x: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    """Which of the two formulas it is follows from a number that is known; torch's own parts find it out from a tensor when they run."""
    if not isinstance(weight, (int, float)) or not x.dtype.is_floating_point or x.dtype != end.dtype:
        return parts(x, end, weight)
    wide = [t.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else t for t in (x, end)]
    way = wide[1] - wide[0]
    found = wide[0] + way * weight if abs(weight) < 0.5 else wide[1] - way * (1 - weight)
    return found.to(x.dtype)


#: Operators that torch also has over lists of tensors (`_foreach_add`), which is how its optimisers work.
LISTED = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg "
    "pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc"
).split()


def each(part: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """An operator over lists as one for each of their tensors: what the compiler makes of them shares kernels and launches."""
    lists = [arg for arg in args if isinstance(arg, (list, tuple))]
    found = []
    for i in range(len(lists[0])):
        own = [arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args]
        # The last argument of these has a name where they are of one tensor.
        named = {"value": own.pop()} if part in (torch.ops.aten.addcmul, torch.ops.aten.addcdiv) and len(own) > 3 else {}
        found.append(part(*own, **named, **kwargs))
    return found


def of_lists() -> dict[Any, Callable[..., Any]]:
    """Operators over lists to those over tensors."""
    parts: dict[Any, Callable[..., Any]] = {}
    for name in LISTED:
        packet = getattr(torch.ops.aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            whole = getattr(packet, overload)
            plain = not whole._schema.is_mutable and "out" not in overload and not (name in ("addcmul", "addcdiv") and overload == "Tensor")
            # A number on one side has operators of its own where both sides are tensors otherwise.
            if plain and not (name in ("maximum", "minimum") and overload != "List"):
                parts[whole] = functools.partial(each, getattr(torch.ops.aten, name))
    return parts


@functools.lru_cache(maxsize=None)
def table(fallback_random: bool) -> dict[Any, Callable[..., Any]]:
    """Operator to its parts. The table is shared: nobody may change it."""
    parts = _torch.core_decompositions()
    names = [name for group in WHOLE.values() for name in group]
    for name in [*names, *(RANDOM if fallback_random else ())]:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            parts.pop(getattr(packet, overload), None)
    for overload in ("int_Scalar", "int_Tensor"):
        fill = getattr(torch.ops.aten.index_fill, overload)
        if fill in parts:
            whole = parts[fill] if _torch.VERSION >= (2, 15) else index_fill
            parts[fill] = functools.partial(layouts.as_a_copy, whole)
    if not fallback_random:
        parts[torch.ops.aten.native_dropout.default] = native_dropout
    parts[torch.ops.aten.log_sigmoid_forward.default] = log_sigmoid_forward
    parts[torch.ops.aten.native_group_norm.default] = native_group_norm
    whole = torch.ops.aten.logsumexp.default
    parts[whole] = functools.partial(logsumexp, parts[whole])
    whole = torch.ops.aten.lerp.Scalar
    parts[whole] = functools.partial(lerp, parts[whole])
    parts |= of_lists()
    parts = {op: layouts.in_parts(function) for op, function in parts.items()}
    return parts | layouts.table(parts)
