"""Kernels of a user's inside of a graph: Triton kernels as torch traces them.

A graph of AOTAutograd has no writes: a kernel that writes `out` takes the memory as it was and returns a copy of it that the kernel has written. Where `out` is memory that was made for the kernel alone (`torch.empty_like(x)`), there is nothing to copy and nothing to fill:
the call makes it, as eager does, and the kernel is launched on it with its own grid and arguments.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from . import _torch

aten = torch.ops.aten
# Operators whose result nobody has written.
UNWRITTEN = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.empty_permuted.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Unwritten:
    """Memory that a kernel writes first."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> torch.Tensor:
        return _torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


class Launch:
    """A launch of a Triton kernel that makes some of the memory that it writes; the rest of it is copied first."""

    # Kernels of a user's keep their order.
    ordered = True

    def __init__(self, made: dict[str, Unwritten]) -> None:
        self.made = made
        # Of a function, for a graph that is printed.
        self.__name__ = self.__qualname__ = "launch"

    def __call__(self, *, kwargs: dict[str, Any], tensors_to_clone: list[str], **how: Any) -> dict[str, Any]:
        written = {name: self.made[name].make() if name in self.made else _torch.clone_preserve_strides(kwargs[name]) for name in tensors_to_clone}
        _torch.triton_mutation(kwargs={**kwargs, **written}, **how)
        return written


def make_in_place(gm: fx.GraphModule) -> None:
    """Lets launches of Triton kernels make the memory that they alone write."""
    unused = []
    for node in gm.graph.find_nodes(op="call_function", target=_torch.triton_functional):
        given: dict[str, Any] = dict(node.kwargs["kwargs"])
        made = {}
        # Arguments that look at one memory are copied together.
        for name in () if node.kwargs.get("tensor_bases") else node.kwargs["tensors_to_clone"]:
            form = _unwritten(given.get(name), node)
            if form is not None:
                made[name] = form
                unused.append(given.pop(name))
        if made:
            node.target = Launch(made)
            node.kwargs = {**node.kwargs, "kwargs": given}
    for source in unused:
        gm.graph.erase_node(source)
    if unused:
        gm.recompile()


def _unwritten(source: Any, reader: fx.Node) -> Unwritten | None:
    """The form of memory that this call is the first and only one to touch; none where it is not such."""
    if not isinstance(source, fx.Node) or source.target not in UNWRITTEN or list(source.users) != [reader]:
        return None
    value = source.meta.get("val")
    if sum(item is source for item in reader.kwargs["kwargs"].values()) != 1 or not isinstance(value, torch.Tensor):
        return None
    shape, strides = tuple(value.shape), tuple(value.stride())
    if not all(isinstance(number, int) for number in (*shape, *strides)):
        return None
    return Unwritten(shape, strides, value.dtype, value.device)
