"""Operators on lists of tensors, one tensor at a time.

Optimisers update all parameters by a few operators on lists. On a processor torch computes these tensor by tensor; taken apart they fuse, and every parameter is read and
written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

# Of one tensor.
UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc clone"
).split()
# Of two, the second a tensor, a number, or one of a list of them.
BINARY = "add sub mul div pow clamp_min clamp_max".split()
# Of three tensors and a factor, or two tensors and a weight.
SCALED = "addcmul addcdiv".split()


def _larger(x: torch.Tensor, y: Any) -> torch.Tensor:
    return torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp_min(x, y)


def _smaller(x: torch.Tensor, y: Any) -> torch.Tensor:
    return torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp_max(x, y)


def _scaled(name: str) -> Callable[..., torch.Tensor]:
    function = getattr(torch, name)

    def one(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, value: Any = 1) -> torch.Tensor:
        return function(x, a, b, value=value)

    return one


def _norm(x: torch.Tensor, order: Any = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _functions() -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {name: getattr(torch, name) for name in [*UNARY, *BINARY]}
    functions.update({name: _scaled(name) for name in SCALED})
    functions.update(
        maximum=_larger,
        minimum=_smaller,
        lerp=torch.lerp,
        norm=_norm,
        max=torch.max,
        zero=torch.zeros_like,
        copy=torch.ops.aten.copy,
    )
    return functions


def _each(function: Callable[..., Any], one_number_first: bool) -> Callable[..., Any]:
    """`function` for each place of the lists among its arguments."""

    def apply(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        lists = args[1] if one_number_first else args[0]

        def at(place: int, argument: Any) -> Any:
            return argument[place] if isinstance(argument, (list, tuple)) else argument

        return [
            function(*(at(i, argument) for argument in args), **{name: at(i, argument) for name, argument in kwargs.items()})
            for i in range(len(lists))
        ]

    return apply


def _overloads() -> Iterator[tuple[Any, Callable[..., Any]]]:
    for name, function in _functions().items():
        packet = getattr(torch.ops.aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            # Factors that are a tensor are numbers only the data says.
            if overload.endswith("out") or (name in SCALED and overload == "Tensor"):
                continue
            yield getattr(packet, overload), _each(function, overload == "ScalarAndTensor")


def parts() -> dict[Any, Callable[..., Any]]:
    """Operator to its parts."""
    return dict(_overloads())
