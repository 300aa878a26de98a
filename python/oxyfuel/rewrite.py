"""Our rules on a joint graph of forward and backward.

The graph is described, the Rust side says which of its values are equal and what nobody reads then, and the FX graph is edited in place. A
value never changes: only who reads which of two equal ones.

    {"new": [], "replace": [{"value": {"node": "mul_3"}, "with": {"node": "mul_1"}}], "remove": ["mul_3"]}
"""

from __future__ import annotations

import json
import operator
from typing import Any

from torch import fx

from . import _native
from .describe import describe

# What the partitioner reads on a node to decide whether it is kept or computed again.
_DECISIONS = ("recompute", "ac_graph_id", "should_save")


def rewrite(joint: fx.GraphModule) -> int:
    """Edits the graph; how many nodes went."""
    edits = json.loads(_native.rewrite_joint(describe(joint, "joint").text))
    before = len(joint.graph.nodes)
    _Editor(joint.graph).apply(edits)
    joint.graph.lint()
    joint.recompile()
    return before - len(joint.graph.nodes)


class _Editor:
    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in graph.nodes}

    def apply(self, edits: dict[str, Any]) -> None:
        for edit in edits["replace"]:
            self.replace(edit["value"], edit["with"])
        # A description has nodes of its own for sizes that its text cannot say.
        for name in edits["remove"]:
            if name in self.nodes:
                self.remove(self.nodes[name])

    def replace(self, value: dict[str, Any], other: dict[str, Any]) -> None:
        old, new = self.nodes[value["node"]], self.nodes[other["node"]]
        if any(old.meta.get(key) != new.meta.get(key) for key in _DECISIONS):
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
