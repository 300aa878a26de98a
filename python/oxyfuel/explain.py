"""What became of a model: its graphs, kernels, operators left to torch and why, memory, and where compile time went.

    print(oxyfuel.explain(model, x))
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import _torch

# Where compiles of this context are reported; none outside of `explain`.
_reports: contextvars.ContextVar[list[GraphReport] | None] = contextvars.ContextVar("oxyfuel_reports", default=None)


@dataclasses.dataclass(slots=True)
class GraphReport:
    """One compiled graph."""

    role: str
    seconds: float
    """What our own compile took."""
    nodes: int
    """Operators in the graph that torch gave us."""
    eager_bytes: int | None
    """What they move in eager, each reading its inputs and writing its outputs; none where sizes are symbolic."""
    said: dict[str, Any] | None
    """Kernels, calls, memory and steps as the compiler says them; none where the graph was not compiled."""
    cause: str | None = None
    """Why it was not compiled."""

    @property
    def kernels(self) -> list[dict[str, Any]]:
        return list(self.said["kernels"]) if self.said else []

    @property
    def external(self) -> list[dict[str, Any]]:
        """Operators that torch runs, with reasons."""
        return list(self.said["externals"]) if self.said else []

    @property
    def kernel_bytes(self) -> int | None:
        sizes = [kernel["bytes"] for kernel in self.kernels]
        return None if None in sizes else sum(sizes)


@dataclasses.dataclass(slots=True)
class Explanation:
    """What `explain` found."""

    graphs: list[GraphReport]
    recompiles: list[str]
    """Why graphs were compiled again, in the order it happened."""
    breaks: list[str]
    """Why the program was cut into several graphs."""
    seconds: float
    """The whole first call, torch's part included."""

    def __str__(self) -> str:
        own = sum(graph.seconds for graph in self.graphs)
        lines = [f"{_count(len(self.graphs), 'graph')}; first call {1e3 * self.seconds:.0f} ms, of which compiling in oxyfuel {1e3 * own:.0f} ms"]
        for graph in self.graphs:
            lines.extend(_describe(graph))
        for title, reasons in (("compiled again", self.recompiles), ("graph break", self.breaks)):
            lines.extend(f"{title}: {reason}" for reason in reasons)
        return "\n".join(lines)


def explain(
    function: Callable[..., Any],
    *args: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compiles and runs a function or module once with these arguments, and says what came of it. Nothing is taken from caches."""
    from .backend import backend

    def door(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return backend(gm, inputs, mode=mode, options=options)

    with _recorded() as reports, _torch.compile_events() as events:
        started = time.perf_counter()
        torch.compile(function, backend=door, dynamic=dynamic)(*args, **kwargs)
        seconds = time.perf_counter() - started
    return Explanation(reports, events.recompiles, events.breaks, seconds)


@contextlib.contextmanager
def _recorded() -> Iterator[list[GraphReport]]:
    reports: list[GraphReport] = []
    token = _reports.set(reports)
    try:
        yield reports
    finally:
        _reports.reset(token)


def report(gm: torch.fx.GraphModule, role: str, seconds: float, graph: Any, cause: str | None) -> None:
    """Called for every compile."""
    reports = _reports.get()
    if reports is None:
        return
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    said = None if graph is None else json.loads(graph.explain())
    reports.append(GraphReport(role, seconds, len(calls), _eager_bytes(calls), said, cause))


def _eager_bytes(calls: list[torch.fx.Node]) -> int | None:
    total = 0
    for node in calls:
        for value in (node, *node.all_input_nodes):
            for tensor in _tensors(value.meta.get("val")):
                size = tensor.numel()
                if not isinstance(size, int):
                    return None
                total += size * tensor.element_size()
    return total


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in values if isinstance(item, torch.Tensor)]


def _describe(graph: GraphReport) -> list[str]:
    if graph.said is None:
        return [f"{graph.role}: runs uncompiled: {graph.cause}"]
    lines = [f"{graph.role}: {_count(graph.nodes, 'operator')} in {_count(len(graph.kernels), 'kernel')}, {len(graph.external)} left to torch"]
    for kernel in graph.kernels:
        size = "" if kernel["bytes"] is None else f", {kernel['bytes']:,} bytes"
        code = "" if kernel["code"] == "machine" else f", {kernel['code']}: {kernel['note']}"
        bound = f", bound by {kernel['bound']}" if kernel.get("bound") else ""
        lines.append(f"  kernel {kernel['name']}: {' '.join(kernel['ops'])}{size}{bound}{code}")
    for call in graph.external:
        where = f" at {call['lines'][0]}" if call["lines"] else ""
        lines.append(f"  torch runs {call['target']}{where}: {call['reason']}")
    lines.append(f"  memory between kernels: {graph.said['memory']['arena']} bytes")
    if graph.eager_bytes and graph.kernel_bytes is not None and graph.kernels:
        lines.append(f"  eager moves {graph.eager_bytes:,} bytes through memory; the kernels move {graph.kernel_bytes:,}")
    steps = ", ".join(f"{step['name']} {1e3 * _seconds(step['time']):.1f}" for step in graph.said["steps"])
    lines.append(f"  compiled in {1e3 * graph.seconds:.1f} ms ({steps})" if steps else f"  compiled in {1e3 * graph.seconds:.1f} ms")
    lines.extend(f"  note: {note}" for note in graph.said["notes"])
    return lines


def _seconds(duration: dict[str, int]) -> float:
    return duration["secs"] + 1e-9 * duration["nanos"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
