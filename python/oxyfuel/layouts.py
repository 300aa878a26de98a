"""Operators whose results torch traces with other strides than it runs them with.

The graph downstream is traced on those strides: what is a view there, and how outputs lie. So the result is laid out anew while tracing,
where the two differ (`relaid`, in the table of decompositions), and the node itself is described as torch runs it (`as_run`).
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import torch

A = torch.ops.aten

# They lie as any other arithmetic does, which tracing does not know; sums, where one side is scaled.
ARITHMETIC = {A.copysign.Tensor, A.logaddexp.default, A.logaddexp2.default}
SCALED = {A.add.Tensor, A.sub.Tensor}
# Row-major, whatever they read.
ROW_MAJOR = {A.log_sigmoid_forward.default}
# As their input lies; torch 2.13 traces them row-major, 2.15 does not.
CHANNELS_LAST = {A.max_unpool2d.default}
MISLAID = ARITHMETIC | SCALED | ROW_MAJOR | CHANNELS_LAST
# Slices along a dim, found as rows: position of `dim` among the arguments. Tracing takes a negative one for another shape, too.
SLICES = {A.unique_dim.default: 1, A.unique_consecutive.default: 3}


def as_run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    """A traced value with the strides that it has when the operator runs."""
    if op in ARITHMETIC or (op in SCALED and "alpha" in kwargs):
        return torch.add(*args[:2]).to(value.dtype)
    if op in CHANNELS_LAST and not args[0].is_contiguous() and args[0].is_contiguous(memory_format=torch.channels_last):
        return value.contiguous(memory_format=torch.channels_last)
    if op in ROW_MAJOR:
        return [item.contiguous() for item in value]
    return value


def table() -> dict[Any, Callable[..., Any]]:
    """The operators as decompositions: themselves, laid out as they run."""
    return {op: functools.partial(_relaid, op) for op in MISLAID} | {op: functools.partial(_sliced, op) for op in SLICES}


# The operator that is being relaid: its own call inside is the plain one.
_inside: contextvars.ContextVar[Any] = contextvars.ContextVar("inside", default=None)


def _relaid(op: Any, *args: Any, **kwargs: Any) -> Any:
    if _inside.get() is op or (op in SCALED and "alpha" not in kwargs):
        return NotImplemented
    token = _inside.set(op)
    try:
        value = op(*args, **kwargs)
        wanted = as_run(op, args, kwargs, value)
    finally:
        _inside.reset(token)
    if isinstance(value, torch.Tensor):
        return _laid_as(value, wanted)
    return type(value)(map(_laid_as, value, wanted))


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
    if not dim:
        return value
    rows = value[0].movedim(dim, 0).clone(memory_format=torch.contiguous_format)
    return type(value)([rows.movedim(0, dim), *value[1:]])


def _laid_as(value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    if value.stride() == wanted.stride():
        return value
    order = sorted(range(value.dim()), key=wanted.stride, reverse=True)
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).contiguous().permute(back)
