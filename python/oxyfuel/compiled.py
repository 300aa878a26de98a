"""A compiled graph as AOTAutograd keeps it."""

from __future__ import annotations

import functools
import logging
import pickle
import time
from typing import Any

import torch

from . import _native, _torch, faults, frozen, profiles
from .attention import fuse_attention
from .copies import leave_copies_out
from .describe import Description, describe, device_of
from .explain import report
from .foreign import make_in_place
from .options import Options
from .images import are_ours, channels_last
from .literals import on_the_gpu
from .products import align_products, part_biases, part_biases_of_convolutions
from .recorded import BESIDE, Facts, Recorder, not_recorded
from .segments import Part, Segments, cut

log = logging.getLogger("oxyfuel")


class OutputCode(_torch.BoxedCode):
    """A boxed callable: takes a list, empties it, and returns the outputs. Pickled, it is the plan and the objects that the plan names."""

    def __init__(
        self, run: Any, role: str, settings: str | None = None, objects: list[Any] | None = None, facts: Facts | None = None
    ) -> None:
        super().__init__()
        self.run = run
        # Who is called instead of the graph, where calls are recorded.
        self.recorder = None if facts is None else Recorder(run, facts)
        self.role = role
        self.settings = settings
        self.objects = objects
        frozen.remember(self)

    @classmethod
    def eager(cls, gm: torch.fx.GraphModule, role: str) -> OutputCode:
        """The graph as it is."""
        return cls(functools.partial(_interpret, gm), role)

    def __call__(self, inputs: list[Any]) -> Any:
        run = self.run if self.recorder is None else self.recorder
        seen = profiles.current
        if seen is not None:
            # Whoever profiles wants to see the steps.
            run = functools.partial(seen.call, self.run)
        try:
            if _torch.profiler_enabled():
                with torch.profiler.record_function(f"oxyfuel::{self.role}"):
                    return run(inputs)
            return run(inputs)
        except RuntimeError as error:
            faults.say_more(error, self.role, self.run)
            raise

    @property
    def notes(self) -> list[str]:
        return list(self.run.notes)

    def tell(self, gm: torch.fx.GraphModule, seconds: float) -> None:
        """Reports the compile to whoever asked for an explanation."""
        report(gm, self.role, seconds, self.run, None, self.recorder)

    def _facts(self) -> Facts | None:
        return None if self.recorder is None else self.recorder.facts

    def __copy__(self) -> OutputCode:
        return OutputCode(self.run, self.role, self.settings, self.objects, self._facts())

    def __getstate__(self) -> dict[str, Any]:
        if self.settings is None:
            raise pickle.PicklingError("a graph that was not compiled has no plan")
        return {"plan": self.run.serialize(), "role": self.role, "settings": self.settings, "objects": self.objects, "facts": self._facts()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        started = time.perf_counter()
        run = _native.load(state["plan"], state["settings"], state["objects"])
        seconds = time.perf_counter() - started
        log.debug("%s: loaded in %.1f ms", state["role"], 1e3 * seconds, extra={"loading": seconds})
        self.__init__(run, state["role"], state["settings"], state["objects"], state["facts"])  # type: ignore[misc]


class SegmentedCode(_torch.BoxedCode):
    """A graph whose segments are compiled and recorded apart, with torch's own calls between them."""

    recorder = None

    def __init__(self, gm: torch.fx.GraphModule, role: str, parts: list[Part], codes: list[OutputCode]) -> None:
        super().__init__()
        self.role, self.codes = role, codes
        # Of which part of the graph each is the code, until that is reported.
        self.parts: list[Part] = parts
        self.run = Segments(gm, parts, list(codes))

    @property
    def notes(self) -> list[str]:
        return [note for part, code in zip(self.parts, self.codes, strict=True) if part.on_gpu for note in code.run.notes]

    def tell(self, gm: torch.fx.GraphModule, seconds: float) -> None:
        """Reports each part; the time is that of all."""
        for part, code in zip(self.parts, self.codes, strict=True):
            if part.on_gpu:
                report(part.gm, code.role, seconds / len(self.parts), code.run, None, code.recorder)
            else:
                names = ", ".join(f"{node.name} ({node.target})" for node in part.gm.graph.nodes if node.op == "call_function")
                report(part.gm, code.role, 0.0, None, f"not done on the GPU alone, so that calls are recorded in segments around it: {names}", beside=part.beside)
        self.parts = []

    def __call__(self, inputs: list[Any]) -> Any:
        return self.run(inputs)

    def __copy__(self) -> SegmentedCode:
        copied = object.__new__(SegmentedCode)
        copied.__dict__.update(self.__dict__)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        raise _torch.Uncacheable("a graph in segments has no plan of its own")


def _interpret(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    values = list(inputs)
    inputs.clear()
    return gm.forward(*values)


def compile_graph(gm: torch.fx.GraphModule, options: Options, role: str) -> OutputCode | SegmentedCode:
    """Compiles an ATen graph; raises where that fails."""
    # What a forward keeps for its backward lies as that was traced.
    if role == "inference":
        if options.contractions != "own" and not options.external and device_of(gm).type == "cuda":
            fuse_attention(gm)
        channels_last(gm)
        # Ours see to it themselves. Weights that may change would be turned by torch at every call, into memory that eager does not take.
        if options.contractions != "own" and options.freezing and not _has_own_images(gm, options):
            channels_last(gm, "cpu")
    make_in_place(gm)
    leave_copies_out(gm)
    on_the_gpu(gm, device_of(gm))
    align_products(gm, loose=role == "inference" and options.loose_strides)
    part_biases(gm)
    part_biases_of_convolutions(gm)
    description = describe(gm, role)
    if options.recorded and options.cudagraphs != "require" and not options.launch_blocking and description.beside is not None:
        parts = cut(gm, torch.device(description.device))
        if parts is not None:
            return _in_segments(gm, parts, options, role)
    return _compiled(gm, description, options, role, _static(gm, role))


def _in_segments(gm: torch.fx.GraphModule, parts: list[Part], options: Options, role: str) -> SegmentedCode:
    """Each part of the GPU's as a graph of its own."""
    inputs = gm.graph.find_nodes(op="placeholder")
    static = {inputs[i] for i in _static(gm, role)}
    codes, number, count = [], 0, sum(part.on_gpu for part in parts)
    for part in parts:
        if part.on_gpu:
            number += 1
            name = f"{role} segment {number} of {count}"
            stay = tuple(i for i, node in enumerate(part.inputs) if node in static)
            codes.append(_compiled(part.gm, describe(part.gm, role), options, name, stay))
        else:
            codes.append(OutputCode.eager(part.gm, f"{role} beside the segments"))
    return SegmentedCode(gm, role, parts, codes)


def _compiled(gm: torch.fx.GraphModule, description: Description, options: Options, role: str, static: tuple[int, ...]) -> OutputCode:
    external = _nodes_of(gm, options.external) if options.external else []
    frozen = _frozen(description, options, role)
    images = role == "inference" and description.device == "cpu" and _has_own_images(gm, options)
    settings = options.native(external, torch.get_num_threads(), description.device, frozen, images)
    graph = _native.compile(description.text, settings, description.objects)
    return OutputCode(graph, role, settings, description.objects, _facts(gm, description, graph.steps, options, role, static))


def _has_own_images(gm: torch.fx.GraphModule, options: Options) -> bool:
    """Whether all convolutions of a graph are computed by kernels of ours that read weights in panels, where the choice is ours. Panels of weights that are not frozen are made at every call."""
    if options.contractions != "auto" or _nodes_of(gm, options.external):
        return False
    settings = options.native([], torch.get_num_threads())
    return are_ours(gm, options.freezing, lambda all_of_them, dtype: _native.packs_convolutions(settings, all_of_them, dtype, options.freezing))


def _frozen(description: Description, options: Options, role: str) -> list[int]:
    """The inputs that stay what they are: parameters and buffers that an inference graph only reads."""
    if not options.freezing or role != "inference" or description.device != "cpu":
        return []
    return [i for i in _torch.static_inputs() if i not in description.written]


def _facts(gm: torch.fx.GraphModule, description: Description, steps: int, options: Options, role: str, static: tuple[int, ...] | None = None) -> Facts | None:
    """What a recorder of calls has to know; none where calls are not to be recorded."""
    if not options.recorded:
        return None
    required = options.cudagraphs == "require"
    on_gpu = description.device.startswith("cuda")
    if not on_gpu and not required:
        return None
    obstacle = None
    if not on_gpu:
        obstacle = "its tensors are not on a GPU"
    elif options.launch_blocking:
        obstacle = "`launch_blocking` waits after each of its steps"
    elif description.beside is not None:
        obstacle = f"{description.beside} is not done on the GPU alone"
    elif not required and steps < len(gm.graph.output_node().args[0]) / 4 + BESIDE:
        obstacle = f"it has {steps} steps, which take less time than what a recording needs beside them"
    if obstacle is not None and required:
        raise not_recorded(role, obstacle)
    static = _static(gm, role) if static is None else static
    return Facts(description.device, static, description.written, obstacle, max(steps, 1), required, options.cudagraph_memory_limit, role)


def _static(gm: torch.fx.GraphModule, role: str) -> tuple[int, ...]:
    """The inputs that stay where they are."""
    return _kept_for_it(gm) if role == "backward" else _torch.static_inputs()


def _kept_for_it(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """The inputs of a backward that the forward kept: all but the gradients of its results."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return tuple(i for i, node in enumerate(inputs) if not node.name.startswith("tangents"))


def _nodes_of(gm: torch.fx.GraphModule, operators: tuple[str, ...]) -> list[str]:
    """The nodes that call one of these operators, named with or without their overload."""
    return [
        node.name
        for node in gm.graph.nodes
        if node.op == "call_function" and any(f"{node.target}.".startswith(f"{name}.") for name in operators)
    ]
