"""Copies of complex numbers that nobody needs.

Operators on complex numbers are torch's own in our plans, and so is every copy of them. torch puts some into its graphs for a GPU alone (before a transform of what was conjugated); the operator that reads the copy takes the original as well.
"""

from __future__ import annotations

import torch
from torch import fx

from . import _torch

aten = torch.ops.aten


def leave_copies_out(gm: fx.GraphModule) -> None:
    """Takes out every copy that only operators without results of its memory read, where the original lies as the copy would."""
    if any(_torch.is_mutable_call(node.target) for node in gm.graph.nodes):
        return
    for node in gm.graph.find_nodes(op="call_function", target=aten.clone.default):
        source = node.args[0]
        if _lie_alike(source.meta.get("val"), node.meta.get("val")) and all(_only_reads(user) for user in node.users):
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)


def _lie_alike(source: object, copy: object) -> bool:
    if not isinstance(source, torch.Tensor) or not isinstance(copy, torch.Tensor) or not copy.is_complex():
        return False
    places = (*source.shape, *source.stride(), *copy.stride())
    return all(isinstance(n, int) for n in places) and source.stride() == copy.stride()


def _only_reads(user: fx.Node) -> bool:
    target = user.target
    return isinstance(target, _torch.OpOverload) and target.namespace == "aten" and not _torch.shares(target)
