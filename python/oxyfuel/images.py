"""Images as torch's convolutions are fastest with them: channels last.

The fast kernels of torch's libraries, on a GPU and on a CPU, read and write images with the channels of a pixel side by side; given images in rows it turns each of them there and back. Where a graph is mostly convolutions that gain by it, their operands are
laid out so, and all that is computed of their results follows; who has to have the layout of before (results of the graph, operators that are not torch's own, views that strides cannot express) gets it back by a copy.

    convolution(x, w)  ─▶  convolution(clone(x, channels last), clone(w, channels last))

Values stay what they are. The graph is walked once on traced values to see what follows, and edited when all of it is known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from . import _torch
from .products import call

aten = torch.ops.aten

# Up to so many channels on both sides, a CPU's kernels for rows are as fast.
_FEW_CHANNELS = 64
_HALF = (torch.bfloat16, torch.float16)
# Operators whose result is about strides, not about values.
_BY_STRIDES = (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.view.dtype)


class _Stays(Exception):
    """A layout that no copy gives back."""


def channels_last(gm: fx.GraphModule, device: str = "cuda") -> int:
    """Edits the graph in place; how many convolutions were changed."""
    convolutions = [node for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default) if node.meta["val"].device.type == device]
    if not convolutions or not all(map(_gains, convolutions)) or (device == "cpu" and all(map(_is_small, convolutions))):
        return 0
    follow = _Follow(convolutions)
    try:
        for node in gm.graph.nodes:
            follow.visit(node)
    except _Stays:
        return 0
    if not follow.copies:
        return 0
    follow.apply(gm.graph)
    gm.graph.lint()
    gm.recompile()
    return len(convolutions)


# Of a convolution: the shapes of images and weight; stride, padding and dilation; groups.
Numbers = tuple[tuple[list[int], list[int]], tuple[list[int], list[int], list[int]], int]


# Types of convolutions that kernels of ours read with channels last, by their names there.
_OURS = {torch.float32: "f32", torch.bfloat16: "bf16"}


def are_ours(gm: fx.GraphModule, frozen: bool, packs: Callable[[list[Numbers], str], bool]) -> bool:
    """Whether the graph has convolutions, and all have kernels of ours that read weights in panels: f32, or bf16, of a CPU, known sizes, `frozen` weights where those are asked for, and what `packs` says of the numbers."""
    convolutions = gm.graph.find_nodes(op="call_function", target=aten.convolution.default)
    parameters = {node for i, node in enumerate(gm.graph.find_nodes(op="placeholder")) if i in _torch.static_inputs()}

    def fits(node: fx.Node) -> bool:
        x, weight = (operand.meta["val"] for operand in node.args[:2])
        known = all(type(size) is int for size in (*x.shape, *weight.shape))
        stays = node.args[1] in parameters or not frozen
        return x.device.type == "cpu" and x.dtype == weight.dtype and x.dtype in _OURS and known and stays and not node.args[6]

    def numbers(node: fx.Node) -> Numbers:
        x, weight = (list(operand.meta["val"].shape) for operand in node.args[:2])
        stride, padding, dilation = (list(numbers) for numbers in node.args[3:6])
        return (x, weight), (stride, padding, dilation), node.args[8]

    dtypes = {node.meta["val"].dtype for node in convolutions}
    if len(dtypes) != 1 or not all(map(fits, convolutions)):
        return False
    return packs(list(map(numbers, convolutions)), _OURS[dtypes.pop()])


def _gains(node: fx.Node) -> bool:
    """Whether the library has fast kernels for it: known sizes, two dims, one group; on a GPU, matrix units that may be used; on a CPU, f32, which is what was measured."""
    x, weight = (operand.meta["val"] for operand in node.args[:2])
    transposed, groups = node.args[6], node.args[8]
    known = all(type(size) is int for size in (*x.shape, *weight.shape))
    if x.device.type == "cpu":
        units = x.dtype == torch.float32
    else:
        units = x.dtype in _HALF or (x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32)
    return known and x.dim() == 4 and not transposed and groups == 1 and units


def _is_small(node: fx.Node) -> bool:
    return max(node.args[1].meta["val"].shape[:2]) <= _FEW_CHANNELS


# Dims of a layout, the outermost first.
Order = tuple[int, ...]
_CHANNELS_LAST: Order = (0, 2, 3, 1)


class _Follow:
    """What every node's value becomes, and which operands are to be copied before it."""

    def __init__(self, convolutions: list[fx.Node]) -> None:
        self.convolutions = set(convolutions)
        # Only those that lie otherwise than before.
        self.values: dict[fx.Node, Any] = {}
        # By node, and by the operand it reads: the order of dims that the operand is copied to.
        self.copies: dict[fx.Node, dict[fx.Node, Order]] = {}

    def visit(self, node: fx.Node) -> None:
        changed = [operand for operand in node.all_input_nodes if operand in self.values]
        copies: dict[fx.Node, Order] = {}
        if node in self.convolutions:
            copies = {operand: _CHANNELS_LAST for operand in node.args[:2] if not self.value(operand).is_contiguous(memory_format=torch.channels_last)}
        elif changed and not (_follows(node) and self._can_view(node)):
            copies = {operand: _order(operand.meta["val"]) for operand in changed}
        if copies:
            self.copies[node] = copies
        if node.op != "call_function" or not (changed or copies) or _torch.is_mutable_call(node.target):
            return
        seen = lambda operand: _laid_out(self.value(operand), copies.get(operand))  # noqa: E731
        value = node.target(*fx.node.map_arg(node.args, seen), **fx.node.map_arg(node.kwargs, seen))
        if _strides(value) != _strides(node.meta["val"]):
            self.values[node] = value

    def value(self, node: fx.Node) -> Any:
        return self.values.get(node, node.meta["val"])

    def _can_view(self, node: fx.Node) -> bool:
        if node.target not in _VIEWS:
            return True
        try:
            node.target(self.value(node.args[0]), *node.args[1:])
        except (RuntimeError, ValueError):
            return False
        return True

    def apply(self, graph: fx.Graph) -> None:
        for node, value in self.values.items():
            node.meta["val"] = value
        made: dict[tuple[fx.Node, Order], fx.Node] = {}
        for node, copies in self.copies.items():
            for operand, order in copies.items():
                if (operand, order) not in made:
                    with graph.inserting_before(node):
                        made[operand, order] = _copy(graph, operand, order)
                node.replace_input_with(operand, made[operand, order])


def _follows(node: fx.Node) -> bool:
    """Whether a node computes the same of operands that lie otherwise."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    ours = isinstance(node.target, _torch.OpOverload) and node.target.namespace in ("aten", "prims")
    return ours and node.target not in _BY_STRIDES and not _torch.is_mutable(node.target) and not _torch.is_impure(node)


def _order(value: torch.Tensor) -> Order:
    """The dims of memory without gaps."""
    order = tuple(sorted(range(value.dim()), key=lambda dim: (-value.stride(dim), -value.shape[dim], dim)))
    if not value.permute(order).is_contiguous():
        raise _Stays
    return order


def _strides(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.stride()
    return [_strides(item) for item in value] if isinstance(value, (tuple, list)) else None


def _back(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _laid_out(value: Any, order: Order | None) -> Any:
    return value if order is None else value.permute(order).clone(memory_format=torch.contiguous_format).permute(_back(order))


def _copy(graph: fx.Graph, operand: fx.Node, order: Order) -> fx.Node:
    turned = call(graph, aten.permute.default, operand, list(order))
    copied = call(graph, aten.clone.default, turned, memory_format=torch.contiguous_format)
    return call(graph, aten.permute.default, copied, list(_back(order)))
