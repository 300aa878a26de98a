"""Our rules on a joint graph of forward and backward.

The graph is described, the Rust side says what to do, and the FX graph is edited in place: operators of ours are put in, readers are sent to another value, and what nobody
reads is taken out. `crates/capture/src/export.rs` says what the edits mean.

    {"new": [], "replace": [{"value": {"node": "mul_3"}, "with": {"node": "mul_1"}}], "remove": ["mul_3"]}
"""

from __future__ import annotations

import json
import operator
from typing import Any

import torch
from torch import fx

from . import _native, _torch
from .describe import describe

# What the partitioner reads on a node to decide whether it is kept or computed again.
DECISIONS = ("recompute", "ac_graph_id", "should_save")


def rewrite(joint: fx.GraphModule, forward: int, own_random: bool = False) -> int:
    """Edits the graph, whose first `forward` results are the forward's; how many nodes went. `own_random`: which random numbers come is ours to choose."""
    edits = json.loads(_native.rewrite_joint(describe(joint, "joint").text, forward, own_random))
    before = len(joint.graph.nodes)
    Editor(joint.graph).apply(edits)
    joint.graph.lint()
    joint.recompile()
    return before - len(joint.graph.nodes)


class Editor:
    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in graph.nodes}
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        # The first node that has a size.
        self.sizes: dict[Any, fx.Node] = {}
        for node in graph.nodes:
            if isinstance(value := node.meta.get("val"), torch.SymInt):
                self.sizes.setdefault(value.node.expr, node)

    def apply(self, edits: dict[str, Any]) -> None:
        for edit in edits["new"]:
            self.insert(edit)
        for edit in edits["replace"]:
            if edit["with"]["node"] in self.nodes:
                self.replace(edit["value"], edit["with"])
        # A description has nodes of its own for sizes that its text cannot say.
        for name in edits["remove"]:
            if name in self.nodes:
                self.remove(self.nodes[name])

    def insert(self, edit: dict[str, Any]) -> None:
        """A new node, unless the graph does not say a size that it needs; it is what the node that it comes before is to the partitioner."""
        before = self.nodes[edit["before"]]
        with self.graph.inserting_before(before):
            try:
                args = tuple(self.argument(arg, before) for arg in edit["args"])
                kwargs = {key: self.argument(arg, before) for key, arg in edit["kwargs"].items()}
            except Unsaid:
                return
            target = _torch.overload(edit["target"])
            node = self.graph.create_node("call_function", target, args, kwargs, edit["name"])
        values, named = fx.node.map_arg((args, kwargs), lambda arg: arg.meta["val"])
        with _torch.fake_mode_of(before.meta["val"]):
            value = target(*values, **named)
        drops = DECISIONS if torch.Tag.nondeterministic_seeded in target.tags else ()
        node.meta = {key: item for key, item in before.meta.items() if key not in drops} | {"val": value}
        self.nodes[edit["name"]] = node

    def argument(self, said: Any, before: fx.Node) -> Any:
        match said:
            case {"node": name}:
                return self.nodes[name]
            case {"sizes": name}:
                return [self.size(n, before) for n in self.nodes[name].meta["val"].shape]
            case {"strides": name}:
                return [self.size(n, before) for n in self.nodes[name].meta["val"].stride()]
            case {"dtype": name}:
                return getattr(torch, name)
            case {"device": name}:
                return torch.device(name)
            case {"float": text}:
                return float(text)
            case _:
                return said

    def size(self, size: Any, before: fx.Node) -> Any:
        """A size as an argument: a number, a node that has it, or one that asks a tensor before here for it."""
        if isinstance(size, int):
            return size
        wanted = size.node.expr
        known = self.sizes.get(wanted)
        if known is not None and self.order[known] < self.order[before]:
            return known
        for node in before.all_input_nodes:
            value = node.meta.get("val")
            for dim, n in enumerate(value.shape) if isinstance(value, torch.Tensor) else ():
                if isinstance(n, torch.SymInt) and n.node.expr == wanted:
                    asked = self.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                    asked.meta["val"] = n
                    return asked
        raise Unsaid

    def replace(self, value: dict[str, Any], other: dict[str, Any]) -> None:
        old, new = self.nodes[value["node"]], self.nodes[other["node"]]
        if any(old.meta.get(key) != new.meta.get(key) for key in DECISIONS):
            return
        for node in self.parts(old, value["index"]) if "index" in value else [old]:
            if node.users:
                node.replace_all_uses_with(self.part(new, other["index"]) if "index" in other else new, propagate_meta=False)

    def parts(self, node: fx.Node, index: int) -> list[fx.Node]:
        return [user for user in node.users if user.target is operator.getitem and user.args[1] == index]

    def part(self, node: fx.Node, index: int) -> fx.Node:
        """The part of a sequence, right after the sequence, so that every reader comes later."""
        with self.graph.inserting_after(node):
            part = self.graph.call_function(operator.getitem, (node, index))
        part.meta = {**node.meta, "val": node.meta["val"][index]}
        return part

    def remove(self, node: fx.Node) -> None:
        for user in [user for user in node.users if user.target is operator.getitem and not user.users]:
            self.graph.erase_node(user)
        # A replacement that was not made leaves it a reader.
        if not node.users:
            self.graph.erase_node(node)


class Unsaid(Exception):
    """No node before has the size."""
