"""Products on a GPU as torch's libraries are fastest with them.

**Rows at odd places.** torch's libraries have fast kernels for matrices of half precision whose rows begin at multiples of 16 bytes; of others (a vocabulary of 50,257) they multiply several times slower. Such operands are
copied with a few zeros behind each row, and the product's own surplus is left out again: both are kernels of ours, which what comes before and after is fused into.

    mm(a, b)  ─▶  clone(slice(mm(pad(a), pad(b))))

A copy of logits takes as long as half of the product. Where the user asked for speed (`result_strides`), a result of the graph is the slice itself, whose rows are a few elements further apart than eager's.

**Biases in single precision.** The library that adds a bias to a product chooses slower kernels for some products. Where kernels of ours read the product anyway, they add it.

    addmm(bias, a, b)  ─▶  add(mm(a, b), bias)

**Biases of convolutions.** torch adds them to what the library computed, in a pass of its own. Where kernels of ours read it anyway, they add it.

    convolution(x, w, bias)  ─▶  add(convolution(x, w), view(bias))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from . import _torch

aten = torch.ops.aten

# Elements of half precision in 16 bytes.
_UNIT = 8
# Products with a side below this, or with fewer multiplications, take less time than the copies.
_LEAST_SIDE = 128
_LEAST_WORK = 1 << 30
_DTYPES = (torch.bfloat16, torch.float16)
# What would have to wait for a kernel that does nothing but add a bias.
_TORCH_RUNS = (
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)


def align_products(gm: fx.GraphModule, device: str = "cuda", loose: bool = False) -> int:
    """Edits the graph in place; how many products were changed. `loose`: results of the graph may keep the zeros behind their rows, outside of what they show."""
    changed = 0
    for target in (aten.mm.default, aten.addmm.default):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            changed += _align(gm.graph, node, device, loose)
    return _done(gm, changed)


def _align(graph: fx.Graph, node: fx.Node, device: str, loose: bool) -> bool:
    *bias, a, b = node.args
    values = [operand.meta["val"] for operand in (*bias, a, b)]
    (m, k), n = values[-2].shape, values[-1].shape[1]
    if not all(type(size) is int for size in (m, k, n)) or node.kwargs or values[-1].device.type != device:
        return False
    if any(value.dtype not in _DTYPES for value in values) or (bias and values[0].shape != (n,)):
        return False
    if min(m, k, n) < _LEAST_SIDE or m * k * n < _LEAST_WORK:
        return False
    # Sides along which the rows of an operand or of the result lie.
    along = {"k" if _by_rows(values[-2]) else "m", "n" if _by_rows(values[-1]) else "k", "n"}
    more = {side: -size % _UNIT if side in along else 0 for side, size in (("m", m), ("k", k), ("n", n))}
    if not any(more.values()):
        return False
    with graph.inserting_before(node):
        made = [_padded(graph, operand, [0, more["n"]]) for operand in bias]
        made += [_padded(graph, a, [0, more["k"], 0, more["m"]]), _padded(graph, b, [0, more["n"], 0, more["k"]])]
        result = call(graph, node.target, *made)
        for dim, (size, surplus) in enumerate(((m, more["m"]), (n, more["n"]))):
            if surplus:
                result = call(graph, aten.slice.Tensor, result, dim, 0, size)
    if loose and _is_returned(node, result.meta["val"]):
        _show(node, result)
    else:
        with graph.inserting_before(node):
            result = call(graph, aten.clone.default, result, memory_format=torch.contiguous_format)
    _replace(graph, node, result)
    return True


def _is_returned(node: fx.Node, value: torch.Tensor) -> bool:
    """Whether all that reads a node, were it this value, are results of the graph and views of it that strides can express."""
    for user in node.users:
        if user.op == "output":
            continue
        if user.target is not aten.view.default:
            return False
        try:
            seen = aten.view.default(value, user.args[1])
        except (RuntimeError, ValueError):
            return False
        if not _is_returned(user, seen):
            return False
    return True


def _show(node: fx.Node, result: fx.Node) -> None:
    """Views of a node become views of the result, with the values that these have."""
    for user in node.users:
        if user.op != "output":
            user.meta["val"] = aten.view.default(result.meta["val"], user.args[1])
            _show(user, user)


def part_biases(gm: fx.GraphModule, device: str = "cuda") -> int:
    """Edits the graph in place; how many products were changed."""
    changed = 0
    for node in gm.graph.find_nodes(op="call_function", target=aten.addmm.default):
        bias, a, b = node.args
        value = node.meta["val"]
        ours = value.device.type == device and value.dtype == torch.float32 and not node.kwargs
        if not ours or bias.meta["val"].shape != value.shape[1:] or not _read_by_us(node):
            continue
        with gm.graph.inserting_before(node):
            result = call(gm.graph, aten.add.Tensor, call(gm.graph, aten.mm.default, a, b), bias)
        _replace(gm.graph, node, result)
        changed += 1
    return _done(gm, changed)


def part_biases_of_convolutions(gm: fx.GraphModule, device: str = "cuda") -> int:
    """Edits the graph in place; how many convolutions were changed."""
    changed = 0
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        x, weight, bias, *rest = node.args
        value = node.meta["val"]
        # A kernel of torch's for channels one by one adds the bias before it rounds.
        by_channel = rest[-1] != 1
        if bias is None or value.device.type != device or by_channel or not _read_by_us(node):
            continue
        with gm.graph.inserting_before(node):
            plain = call(gm.graph, aten.convolution.default, x, weight, None, *rest)
            shown = call(gm.graph, aten.view.default, bias, [-1, *[1] * (value.dim() - 2)])
            result = call(gm.graph, aten.add.Tensor, plain, shown)
        if result.meta["val"].stride() != value.stride():
            gm.graph.erase_node(result)
            gm.graph.erase_node(shown)
            gm.graph.erase_node(plain)
            continue
        _replace(gm.graph, node, result)
        changed += 1
    return _done(gm, changed)


def _replace(graph: fx.Graph, node: fx.Node, result: fx.Node) -> None:
    result.meta = {**node.meta, "val": result.meta["val"]}
    node.replace_all_uses_with(result, propagate_meta=False)
    graph.erase_node(node)


def _done(gm: fx.GraphModule, changed: int) -> int:
    if changed:
        gm.graph.lint()
        gm.recompile()
    return changed


def _read_by_us(node: fx.Node) -> bool:
    """Whether every reader, behind views, is work that is compiled."""
    for user in node.users:
        if user.op != "call_function" or user.target in _TORCH_RUNS:
            return False
        if getattr(user.target, "is_view", False) and not _read_by_us(user):
            return False
    return True


def _by_rows(value: torch.Tensor) -> bool:
    return value.stride(1) == 1


def _padded(graph: fx.Graph, operand: fx.Node, amounts: list[int]) -> fx.Node:
    """The operand with zeros behind its dims, the last one first; lying as before."""
    if not any(amounts):
        return operand
    if operand.meta["val"].dim() == 1 or _by_rows(operand.meta["val"]):
        return call(graph, aten.constant_pad_nd.default, operand, amounts)
    turned = call(graph, aten.permute.default, operand, [1, 0])
    padded = call(graph, aten.constant_pad_nd.default, turned, [*amounts[2:], *amounts[:2]])
    return call(graph, aten.permute.default, padded, [1, 0])


def call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node, with the value that torch says it has."""
    node = graph.call_function(target, args, kwargs)
    values = fx.node.map_arg(args, lambda arg: arg.meta["val"])
    first = next(arg for arg in args if isinstance(arg, fx.Node))
    with _torch.fake_mode_of(first.meta["val"]):
        node.meta["val"] = target(*values, **kwargs)
    return node
