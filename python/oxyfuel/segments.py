"""A graph of a GPU's in segments, around what is not done there.

A call whose work is all on the GPU is recorded and launched as one. One operator that runs on the CPU, a copy from there, or a number that the host waits for would leave all of it to be launched step by step: so the
graph is cut, and what lies on either side is recorded apart.

    inputs ─▶ segment 1 ─▶ torch, on the CPU ─▶ segment 2 ─▶ results
              one launch                        one launch

Work that does not wait for the CPU is in the first segment that can have it, and what needs nothing of the GPU's comes first. Graphs whose sizes change from call to call are not cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from . import _torch
from .describe import READERS, attribute_of


@dataclasses.dataclass(slots=True)
class Part:
    """Nodes that run together."""

    gm: fx.GraphModule
    on_gpu: bool
    inputs: list[fx.Node]
    """Of the whole graph: what it reads."""
    results: list[fx.Node]
    """What later parts and the caller read of it."""
    beside: dict[str, str]
    """By name, of its calls that are not the GPU's: why they are not."""


def cut(gm: fx.GraphModule, device: torch.device) -> list[Part] | None:
    """The parts of a graph in their order; none where it cannot be cut, or there is nothing on the GPU between two of them."""
    if any(_varies(node.meta.get("val")) for node in gm.graph.nodes):
        return None
    _bring_numbers(gm, device)
    levels = _levels(gm, device)
    if not any(level % 2 == 0 for level in levels.values()):
        return None
    return [_part(gm, levels, level, device) for level in sorted(set(levels.values()))]


def _varies(value: Any) -> bool:
    """Whether a value is, or has, a size that is not known."""
    if isinstance(value, (list, tuple)):
        return any(_varies(item) for item in value)
    if isinstance(value, torch.Tensor):
        return any(not isinstance(n, int) for n in value.shape)
    return isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat))


def _tensors(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, (list, tuple)) else (value,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _value(gm: fx.GraphModule, node: fx.Node) -> Any:
    return attribute_of(gm, node.target) if node.op == "get_attr" else node.meta.get("val")


def _is_on(gm: fx.GraphModule, node: fx.Node, device: torch.device) -> bool:
    """Whether a call reads and makes tensors of the device alone, and nobody waits for it."""
    values = [tensor for end in (node, *node.all_input_nodes) for tensor in _tensors(_value(gm, end))]
    return node.target not in READERS and bool(_tensors(node.meta.get("val"))) and all(tensor.device == device for tensor in values)


def _why_beside(gm: fx.GraphModule, node: fx.Node, device: torch.device) -> str:
    """What of a call is not the device's."""
    if node.target in READERS:
        return "the host waits for the number that it reads"
    results = _tensors(node.meta.get("val"))
    for tensor in results:
        if tensor.device != device:
            return f"its result is on {tensor.device}"
    for source in node.all_input_nodes:
        for tensor in _tensors(_value(gm, source)):
            if tensor.device != device:
                return f"it reads {source.name}, which is on {tensor.device}"
    return "it is not done on the GPU alone" if results else "its result is no tensor"


def _bring_numbers(gm: fx.GraphModule, device: torch.device) -> None:
    """Copies the CPU's numbers that elementwise operators of the GPU read, each once, ahead of them."""
    brought: dict[fx.Node, fx.Node] = {}
    for node in list(gm.graph.nodes):
        results = _tensors(node.meta.get("val"))
        if torch.Tag.pointwise not in getattr(node.target, "tags", ()) or not results or results[0].device != device:
            continue
        for source in node.all_input_nodes:
            value = _value(gm, source)
            if not isinstance(value, torch.Tensor) or value.dim() or value.device == device:
                continue
            if source not in brought:
                with gm.graph.inserting_before(node), _torch.fake_mode_of(results[0]):
                    brought[source] = gm.graph.call_function(torch.ops.aten._to_copy.default, (source,), {"device": device})
                    brought[source].meta["val"] = torch.empty((), dtype=value.dtype, device=device)
            node.replace_input_with(source, brought[source])


def _levels(gm: fx.GraphModule, device: torch.device) -> dict[fx.Node, int]:
    """By call: the number of its part. Those of the GPU are even."""
    levels: dict[fx.Node, int] = {}
    # What is written, and what has another effect, keeps its order.
    least = -1
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        on_gpu = _is_on(gm, node, device)
        level = max((levels[source] for source in node.all_input_nodes if source in levels), default=-1)
        writes = isinstance(node.target, _torch.OpOverload) and _torch.is_mutable(node.target)
        if writes:
            # Whatever read it before has read it.
            level = max(levels.values(), default=-1)
        if writes or _torch.is_impure(node):
            level = max(level, least)
        if (level % 2 == 0) != on_gpu:
            level += 1
        if writes or _torch.is_impure(node):
            least = level
        levels[node] = level
    return levels


def _part(gm: fx.GraphModule, levels: dict[fx.Node, int], level: int, device: torch.device) -> Part:
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    nodes = [node for node, other in levels.items() if other == level]
    inputs: list[fx.Node] = []
    for node in nodes:
        for source in node.all_input_nodes:
            if source in made or levels.get(source) == level:
                continue
            if source.op == "get_attr":
                made[source] = graph.node_copy(source)
            else:
                inputs.append(source)
                made[source] = graph.placeholder(source.name)
                made[source].meta = dict(source.meta)
        made[node] = graph.node_copy(node, lambda source: made[source])
    results = [node for node in nodes if any(levels.get(user) != level for user in node.users)]
    graph.output(tuple(made[node] for node in results))
    on_gpu = level % 2 == 0
    beside = {} if on_gpu else {node.name: _why_beside(gm, node, device) for node in nodes}
    return Part(fx.GraphModule(gm, graph), on_gpu, inputs, results, beside)


class Segments:
    """Runs parts one after the other; what no later part reads is let go."""

    def __init__(self, gm: fx.GraphModule, parts: list[Part], calls: list[Callable[[list[Any]], Any]]) -> None:
        numbers: dict[fx.Node, int] = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
        self.inputs = len(numbers)
        for part in parts:
            for node in part.results:
                numbers[node] = len(numbers)
        outputs = gm.graph.output_node().args[0]
        # A result is a value, or itself: a number or nothing.
        self.outputs = [(numbers.get(value), None) if isinstance(value, fx.Node) and value in numbers else (None, _constant(gm, value)) for value in outputs]
        self.values = len(numbers)
        last = {number: len(parts) for number, _ in self.outputs if number is not None}
        for at, part in reversed(list(enumerate(parts))):
            for node in part.inputs:
                last.setdefault(numbers[node], at)
        self.steps = []
        for at, (part, call) in enumerate(zip(parts, calls, strict=True)):
            reads = [numbers[node] for node in part.inputs]
            self.steps.append((call, reads, [numbers[node] for node in part.results], [n for n in reads if last[n] == at]))

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        values: list[Any] = [*inputs, *[None] * (self.values - self.inputs)]
        inputs.clear()
        for call, reads, writes, done in self.steps:
            given = [values[n] for n in reads]
            for n in done:
                values[n] = None
            for n, value in zip(writes, call(given), strict=True):
                values[n] = value
        return tuple(constant if number is None else values[number] for number, constant in self.outputs)


def _constant(gm: fx.GraphModule, value: Any) -> Any:
    """A result that no part makes."""
    return attribute_of(gm, value.target) if isinstance(value, fx.Node) else value
