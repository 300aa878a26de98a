"""The backends under judgement, each as the two ways into it: below Dynamo (cheap, for samples) and by `torch.compile`.

`oxyfuel` is the real one. `nop` runs the same path with compilers that do nothing, so it tells torch's own errors and
those of the decompositions from ours; `torch` is AOTAutograd alone.
"""

import contextlib
import dataclasses
from typing import Callable

import torch
from functorch.compile import aot_function, default_partition, make_boxed_func, min_cut_rematerialization_partition


@dataclasses.dataclass
class Counts:
    """What the compiled graphs of one case hold."""

    # Graphs that reached the backend: a case without one ran in eager, and says nothing about it.
    graphs: int = 0
    kernels: int = 0
    interpreted: int = 0
    external: dict[str, int] = dataclasses.field(default_factory=dict)
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)

    def add_all(self, other):
        self.graphs += other.graphs
        self.kernels += other.kernels
        self.interpreted += other.interpreted
        for target, times in other.external.items():
            self.add(target, other.reasons[target], times)

    def add(self, target, reason, times=1):
        self.external[target] = self.external.get(target, 0) + times
        self.reasons.setdefault(target, reason)


class Door:
    def __init__(self, name: str):
        self.name = name
        self.counts = Counts()

    def take_counts(self) -> Counts:
        counts, self.counts = self.counts, Counts()
        return counts

    def below_dynamo(self, function: Callable) -> Callable:
        raise NotImplementedError

    def compile(self, function: Callable, **how) -> Callable:
        return torch.compile(function, backend=self.backend(), **how)

    def backend(self):
        raise NotImplementedError

    def same_numbers(self):
        """A context in which random ops draw eager's numbers."""
        return contextlib.nullcontext()


def _nop(graph, inputs):
    return make_boxed_func(graph.forward)


class Torch(Door):
    """AOTAutograd with compilers that do nothing."""

    def below_dynamo(self, function):
        return aot_function(function, fw_compiler=_nop, partition_fn=default_partition, keep_inference_input_mutations=True)

    def backend(self):
        return "aot_eager"


class Nop(Door):
    """The oxyfuel backend's decompositions and partitioner, and compilers that do nothing."""

    def below_dynamo(self, function):
        try:
            from oxyfuel import decompositions

            table = decompositions.table(True)
        except ImportError:
            table = torch._decomp.core_aten_decompositions()
        return aot_function(
            function,
            fw_compiler=_nop,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=table,
            keep_inference_input_mutations=True,
        )

    def backend(self):
        return "aot_eager_decomp_partition"


def door(name: str) -> Door:
    if name == "oxyfuel":
        from judge.oxyfuel_door import Oxyfuel

        return Oxyfuel(name)
    if name in ("nop", "torch"):
        return {"nop": Nop, "torch": Torch}[name](name)
    raise SystemExit(f"no backend {name}: oxyfuel, nop, torch")
