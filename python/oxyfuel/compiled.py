"""A compiled graph as AOTAutograd keeps it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import _native
from .describe import describe
from .options import Options


class OutputCode:
    """A boxed callable: takes a list, empties it, and returns the outputs."""

    def __init__(self, run: Any) -> None:
        self.run = run
        # Of the object, not of the class: wrappers that torch puts around it copy what the object says of itself.
        self._boxed_call = True

    @classmethod
    def eager(cls, gm: torch.fx.GraphModule) -> OutputCode:
        """The graph as it is."""
        return cls(functools.partial(_interpret, gm))

    def __call__(self, inputs: list[Any]) -> Any:
        return self.run(inputs)


def _interpret(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    values = list(inputs)
    inputs.clear()
    return gm.forward(*values)


def compile_graph(gm: torch.fx.GraphModule, options: Options, role: str) -> OutputCode:
    """Compiles an ATen graph; raises where that fails."""
    description = describe(gm, role)
    external = _nodes_of(gm, options.external) if options.external else []
    return OutputCode(_native.compile(description.text, options.native(external), description.objects))


def _nodes_of(gm: torch.fx.GraphModule, operators: tuple[str, ...]) -> list[str]:
    """The nodes that call one of these operators, named with or without their overload."""
    return [
        node.name
        for node in gm.graph.nodes
        if node.op == "call_function" and any(f"{node.target}.".startswith(f"{name}.") for name in operators)
    ]
