"""Operators whose results torch traces with other strides than it runs them with.

The graph downstream is traced on those strides: what is a view there, and how outputs lie. So the result is laid out anew while tracing,
where the two differ (`relaid`, in the table of decompositions), and the node itself is described as torch runs it (`as_run`).
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _torch

A = torch.ops.aten

# They lie as any other arithmetic does, which tracing does not know; sums, where one side is scaled.
ARITHMETIC = {
    A.copysign.Tensor,
    A.logaddexp.default,
    A.logaddexp2.default,
    A.minimum.default,
    A.maximum.default,
    A.fmin.default,
    A.fmax.default,
    A.hypot.default,
    A.atan2.default,
    A.remainder.Tensor,
    A.fmod.Tensor,
}
SCALED = {A.add.Tensor, A.sub.Tensor}
# Tracing orders dims otherwise where some are of size 1, or where one side is a number.
WITH_SINGLE_ROWS = {
    *(A.add.Tensor, A.sub.Tensor, A.mul.Tensor, A.div.Tensor, A.pow.Tensor_Tensor, A.remainder.Scalar, A.fmod.Scalar),
    *(A.eq.Tensor, A.ne.Tensor, A.lt.Tensor, A.le.Tensor, A.gt.Tensor, A.ge.Tensor),
    *(A.eq.Scalar, A.ne.Scalar, A.lt.Scalar, A.le.Scalar, A.gt.Scalar, A.ge.Scalar),
    *(A.bitwise_and.Tensor, A.bitwise_or.Tensor, A.bitwise_xor.Tensor),
}
# They fill what `empty_like` gives, so that strides of single rows stay what they are; other arithmetic gives those anew.
FILLED = {
    A.hardtanh.default,
    A.nan_to_num.default,
    A._prelu_kernel.default,
    A.deg2rad.default,
    A.rad2deg.default,
    A.fill.Scalar,
    A.fill.Tensor,
    A.flip.default,
}
# Row-major, whatever they read.
ROW_MAJOR = {A.log_sigmoid_forward.default, A.pow.Scalar, A.rrelu_with_noise.default, A.rrelu_with_noise_functional.default}
# Their first result: channels last where the input is, row-major otherwise.
NORMALISED = {
    A.native_batch_norm.default,
    A._native_batch_norm_legit.default,
    A._native_batch_norm_legit.no_stats,
    A._native_batch_norm_legit_functional.default,
    A._native_batch_norm_legit_no_training.default,
}
# As their input lies; torch 2.13 traces them row-major, 2.15 does not. On a GPU row-major.
CHANNELS_LAST = {A.max_unpool2d.default}
# As the arithmetic of what they read and where: each index spread over the rest, and the rest over the indices.
INDEXED = {A.index.Tensor}
MISLAID = ARITHMETIC | SCALED | FILLED | ROW_MAJOR | NORMALISED | CHANNELS_LAST | INDEXED
# Slices along a dim, found as rows: position of `dim` among the arguments. Tracing takes a negative one for another shape, too.
SLICES = {A.unique_dim.default: 1, A.unique_consecutive.default: 3}


def as_run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    """A traced value with the strides that it has when the operator runs."""
    if (op in ARITHMETIC and _known(value, *args[:2])) or (op in WITH_SINGLE_ROWS and not kwargs and _has_single_rows(args) and 1 in value.shape):
        return _lying(value, _arithmetic(value, *args[:2]))
    if op in ARITHMETIC or (op in SCALED and "alpha" in kwargs):
        return torch.add(*args[:2]).to(value.dtype)
    if op in FILLED and _known(value, args[0]) and value.stride() != args[0].stride():
        return _lying(value, torch.clone(args[0]).stride())
    if op in NORMALISED and _is_row_major(args[0]):
        return (value[0].contiguous(), *value[1:])
    if op in INDEXED:
        return _picked(args[0], args[1], value)
    if op in CHANNELS_LAST and args[0].device.type == "cuda":
        return value.contiguous()
    if op in CHANNELS_LAST and not args[0].is_contiguous() and args[0].is_contiguous(memory_format=torch.channels_last):
        return value.contiguous(memory_format=torch.channels_last)
    if op in ROW_MAJOR:
        return value.contiguous() if isinstance(value, torch.Tensor) else [item.contiguous() for item in value]
    return value


def _is_row_major(x: torch.Tensor) -> bool:
    """Whether what torch writes on a CPU for an image that lies so is row-major; of sizes that nobody knows it is as traced."""
    if x.device.type != "cpu" or _torch.free_unbacked_symbols(x):
        return False
    return x.dim() < 4 or _torch.suggest_memory_format(x) is torch.contiguous_format


def _lying(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return value if value.stride() == strides else value.new_empty_strided(value.shape, strides)


def _has_single_rows(operands: tuple[Any, ...]) -> bool:
    tensors = [x for x in operands[:2] if isinstance(x, torch.Tensor)]
    return _known(*tensors) and any(1 in x.shape for x in tensors)


def _arithmetic(value: torch.Tensor, *operands: Any) -> tuple[int, ...]:
    """As torch's iterator lays out a result: where all are of one shape and one layout as they lie, otherwise in the order of their strides."""
    common = torch.result_type(*operands)
    common = value.dtype if value.is_floating_point() and not common.is_floating_point else common
    tensors = [x if x.dtype == common or _dense(x) else x.to(common) for x in operands if isinstance(x, torch.Tensor)]
    if len(tensors) == len(operands) and all(x.shape == value.shape for x in tensors):
        if all(x.is_contiguous() for x in tensors):
            return _strides(value.shape, range(value.dim())[::-1])
        if value.dim() == 4 and all(x.is_contiguous(memory_format=torch.channels_last) for x in tensors):
            return _strides(value.shape, (1, 3, 2, 0))
        if all(_dense(x) and x.stride() == tensors[0].stride() for x in tensors):
            return tensors[0].stride()
    return _iterated(value.shape, *(_broadcast(x, value.shape) for x in tensors))


def _picked(x: torch.Tensor, indices: Any, value: torch.Tensor) -> torch.Tensor:
    """One index of whole numbers; several are traced as they run, and for sizes that are not known nothing can be said."""
    at = [i for i, index in enumerate(indices) if index is not None]
    if len(at) != 1 or indices[at[0]].dtype in (torch.bool, torch.uint8) or not _known(x, value):
        return value
    dim, index = at[0], indices[at[0]]
    before, behind = x.stride()[:dim], x.stride()[dim + 1 :]
    where = index.reshape([1] * dim + list(index.shape) + [1] * len(behind))
    return _lying(value, _iterated(value.shape, (*before, *[0] * index.dim(), *behind), _broadcast(where, value.shape)))


def _known(*tensors: torch.Tensor) -> bool:
    return all(isinstance(n, int) for t in tensors for n in (*t.shape, *t.stride()))


def _dense(x: torch.Tensor) -> bool:
    """Whether a cast of it keeps its strides."""
    step = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(x.stride(), x.shape, strict=True) if extent > 1):
        if stride != step:
            return False
        step *= extent
    return True


def _broadcast(x: torch.Tensor, shape: torch.Size) -> tuple[int, ...]:
    missing = len(shape) - x.dim()
    kept = zip(x.stride(), x.shape, shape[missing:], strict=True)
    return (*[0] * missing, *(0 if extent == 1 != wide else stride for stride, extent, wide in kept))


def _iterated(shape: torch.Size, *operands: tuple[int, ...]) -> tuple[int, ...]:
    """As torch's iterator lays out a result that reads operands with these strides: dims in the order of the first operand that tells two of them apart."""

    def order(a: int, b: int) -> int:
        for strides in operands:
            if strides[a] == 0 or strides[b] == 0:
                continue
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
        return 0

    dims = list(reversed(range(len(shape))))
    for i in range(1, len(dims)):
        at = i
        for other in reversed(range(i)):
            wanted = order(dims[other], dims[at])
            if wanted > 0:
                dims[other], dims[at], at = dims[at], dims[other], other
            elif wanted < 0:
                break
    return _strides(shape, dims)


def _strides(shape: torch.Size, dims: Sequence[int]) -> tuple[int, ...]:
    """Of memory without gaps; the first of `dims` is the innermost."""
    strides, step = [0] * len(dims), 1
    for dim in dims:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def table(parts: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The operators as decompositions: themselves, or their parts, laid out as they run."""
    relaid = {op: functools.partial(_relaid, op, parts.get(op)) for op in MISLAID | WITH_SINGLE_ROWS}
    return relaid | {op: functools.partial(_sliced, op) for op in SLICES}


# The operator that is being relaid: its own call inside is the plain one.
_inside: contextvars.ContextVar[Any] = contextvars.ContextVar("inside", default=None)

# Whether what is traced are the parts of an operator that torch runs whole: strides of single rows inside are nobody's.
_in_parts: contextvars.ContextVar[bool] = contextvars.ContextVar("in_parts", default=False)


def in_parts(parts: Callable[..., Any]) -> Callable[..., Any]:
    def traced(*args: Any, **kwargs: Any) -> Any:
        token = _in_parts.set(True)
        try:
            return parts(*args, **kwargs)
        finally:
            _in_parts.reset(token)

    return traced


def _relaid(op: Any, parts: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    if _inside.get() is op or not _may_differ(op, args, kwargs):
        return NotImplemented if parts is None else parts(*args, **kwargs)
    token = _inside.set(op)
    try:
        value = NotImplemented if parts is None else parts(*args, **kwargs)
        value = op(*args, **kwargs) if value is NotImplemented else value
        wanted = as_run(op, args, kwargs, value)
    finally:
        _inside.reset(token)
    if isinstance(value, torch.Tensor):
        return _laid_as(value, wanted)
    return type(value)(map(_laid_as, value, wanted))


def _may_differ(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if op in SCALED and "alpha" in kwargs:
        return True
    if op in SCALED or op in WITH_SINGLE_ROWS:
        return not _in_parts.get() and _has_single_rows(args)
    return op not in FILLED or _has_single_rows(args[:1])


def _slices_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    at = SLICES.get(op)
    if at is None:
        return None
    return args[at] if len(args) > at else kwargs.get("dim")


def _sliced(op: Any, *args: Any, **kwargs: Any) -> Any:
    dim = _slices_of(op, args, kwargs)
    if _inside.get() is op or not dim or args[0].dim() == 0:
        return NotImplemented
    dim %= args[0].dim()
    at = SLICES[op]
    if len(args) > at:
        args = (*args[:at], dim, *args[at + 1 :])
    else:
        kwargs = kwargs | {"dim": dim}
    token = _inside.set(op)
    try:
        value = op(*args, **kwargs)
    finally:
        _inside.reset(token)
    # On a GPU the rows that were found lie as the dims are named.
    if not dim or (op is A.unique_consecutive.default and args[0].device.type == "cuda"):
        return value
    rows = value[0].movedim(dim, 0).clone(memory_format=torch.contiguous_format)
    return type(value)([rows.movedim(0, dim), *value[1:]])


def as_a_copy(parts: Callable[..., torch.Tensor], x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The parts of an operator that changes a copy of its first operand, and lies as that does."""
    return _laid_as(parts(x, *args, **kwargs), torch.clone(x))


def _laid_as(value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    if value.stride() == wanted.stride():
        return value
    if _known(value, wanted) and all(n == 1 or a == b for n, a, b in zip(value.shape, value.stride(), wanted.stride(), strict=True)):
        return value.as_strided(value.shape, wanted.stride(), value.storage_offset())
    order = sorted(range(value.dim()), key=wanted.stride, reverse=True)
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).contiguous().permute(back)
