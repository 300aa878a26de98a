"""A compiled graph as AOTAutograd keeps it."""

from __future__ import annotations

import functools
import logging
import pickle
import time
from typing import Any

import torch

from . import _native, _torch
from .describe import describe
from .options import Options

log = logging.getLogger("oxyfuel")


class OutputCode(_torch.BoxedCode):
    """A boxed callable: takes a list, empties it, and returns the outputs. Pickled, it is the plan and the objects that the plan names."""

    def __init__(self, run: Any, role: str, settings: str | None = None, objects: list[Any] | None = None) -> None:
        super().__init__()
        self.run = run
        self.role = role
        self.settings = settings
        self.objects = objects

    @classmethod
    def eager(cls, gm: torch.fx.GraphModule, role: str) -> OutputCode:
        """The graph as it is."""
        return cls(functools.partial(_interpret, gm), role)

    def __call__(self, inputs: list[Any]) -> Any:
        if _torch.profiler_enabled():
            with torch.profiler.record_function(f"oxyfuel::{self.role}"):
                return self.run(inputs)
        return self.run(inputs)

    def __copy__(self) -> OutputCode:
        return OutputCode(self.run, self.role, self.settings, self.objects)

    def __getstate__(self) -> dict[str, Any]:
        if self.settings is None:
            raise pickle.PicklingError("a graph that was not compiled has no plan")
        return {"plan": self.run.serialize(), "role": self.role, "settings": self.settings, "objects": self.objects}

    def __setstate__(self, state: dict[str, Any]) -> None:
        started = time.perf_counter()
        run = _native.load(state["plan"], state["settings"], state["objects"])
        seconds = time.perf_counter() - started
        log.debug("%s: loaded in %.1f ms", state["role"], 1e3 * seconds, extra={"loading": seconds})
        self.__init__(run, state["role"], state["settings"], state["objects"])  # type: ignore[misc]


def _interpret(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    values = list(inputs)
    inputs.clear()
    return gm.forward(*values)


def compile_graph(gm: torch.fx.GraphModule, options: Options, role: str) -> OutputCode:
    """Compiles an ATen graph; raises where that fails."""
    description = describe(gm, role)
    external = _nodes_of(gm, options.external) if options.external else []
    settings = options.native(external, torch.get_num_threads())
    graph = _native.compile(description.text, settings, description.objects)
    return OutputCode(graph, role, settings, description.objects)


def _nodes_of(gm: torch.fx.GraphModule, operators: tuple[str, ...]) -> list[str]:
    """The nodes that call one of these operators, named with or without their overload."""
    return [
        node.name
        for node in gm.graph.nodes
        if node.op == "call_function" and any(f"{node.target}.".startswith(f"{name}.") for name in operators)
    ]
