"""Numbers that a program writes, where a GPU's tensors are written with them.

`x[mask] = 1.0` is traced as a write of a tensor: the number stands in the CPU's memory, is copied at every call, and a call of torch's brings it to the GPU. Nobody else has that memory, so the number is as good as a literal.

    copy(slice(x), lift_fresh_copy(constant))  ─▶  copy(slice(x), full([], number, device=GPU))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from . import _torch
from .describe import CPU, attribute_of, is_plain

aten = torch.ops.aten


def on_the_gpu(gm: fx.GraphModule, device: torch.device) -> int:
    """Edits the graph in place; how many numbers are made on the device now."""
    made = 0
    if device.type != "cuda":
        return made
    for constant in gm.graph.find_nodes(op="get_attr"):
        value = attribute_of(gm, constant.target)
        if not is_plain(value, CPU) or value.dim() != 0:
            continue
        copies = list(constant.users)
        # A copy is the reader's own; the constant itself may be anybody's.
        if not all(copy.target is aten.lift_fresh_copy.default for copy in copies):
            continue
        arguments: tuple[list[int], Any] = ([], _torch.number_of(value))
        types = {"dtype": value.dtype, "device": device}
        for copy in copies:
            readers = [user for user in copy.users if _is_on(user, device)]
            if not readers:
                continue
            with gm.graph.inserting_before(copy), _torch.fake_mode_of(copy.meta["val"]):
                number = gm.graph.call_function(aten.full.default, arguments, types)
                number.meta["val"] = aten.full.default(*arguments, **types)
            for reader in readers:
                reader.replace_input_with(copy, number)
            made += 1
            if not copy.users:
                gm.graph.erase_node(copy)
        if not constant.users:
            gm.graph.erase_node(constant)
    if made:
        gm.graph.lint()
        gm.recompile()
    return made


def _is_on(node: fx.Node, device: torch.device) -> bool:
    """Whether a call makes one tensor, on that device."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device == device
