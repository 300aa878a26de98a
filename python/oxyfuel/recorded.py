"""Calls that a GPU does as one: `mode="reduce-overhead"` and `mode="max-autotune"`.

A graph of small kernels is bound by its launches. Where two calls in a row find their parameters at the same places, the second is recorded, torch's operators included, and launched as one from then on.

    moves    small inputs: copied into the recording before each launch
    fixed    parameters, large inputs, and those that are written: where one of them moved, the call runs step by step, and is recorded again where it stays

Results are copies, so that nobody's tensor changes under their hands; a graph whose results are so large that copying them costs more than launches do is not recorded. A recording
belongs to a stream: what two streams do at once, they do in memory of their own.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from . import _torch

log = logging.getLogger("oxyfuel")

# Inputs of at most so many bytes are copied at every call.
SMALL = 1 << 20
# Results of more bytes than this, all together, are not worth a copy.
LARGE = 8 << 20
# What a recorded call takes beside its launch and a copy of each result, in steps: two of them for copies of inputs.
BESIDE = 3
# Recordings of a graph; the one that was not used for longest goes.
KEPT = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a graph before it has run."""

    device: str
    static: tuple[int, ...]
    """Inputs that stay where they are: parameters and buffers."""
    written: tuple[int, ...]
    """Inputs that the graph writes."""
    obstacle: str | None
    """Why it cannot be recorded."""


class Recorder:
    """A boxed callable whose calls are recorded."""

    def __init__(self, run: Callable[[list[Any]], Any], facts: Facts) -> None:
        self.run, self.facts = run, facts
        self.refused = facts.obstacle
        self.replayed = 0
        self._known: collections.OrderedDict[tuple[int, ...], _Recording] = collections.OrderedDict()
        # Where the inputs of the last call were that must not move.
        self._last: dict[tuple[int, ...], list[int]] = {}
        self._index = torch.device(facts.device).index or 0
        self._numbers: list[int] | None = None
        self._fixed: list[int] = []
        self._moves: list[int] = []
        # Copies, launch and results of one call belong together.
        self._lock = threading.Lock()

    def __call__(self, inputs: list[Any]) -> Any:
        if self.refused is not None or torch.cuda.is_current_stream_capturing():
            return self.run(inputs)
        with self._lock:
            if self._numbers is None and not self._sort(inputs):
                return self.run(inputs)
            key = (_torch.current_stream(self._index), *(inputs[i] for i in self._numbers or ()))
            known = self._known.get(key)
            if known is not None and known.fits(inputs):
                self._known.move_to_end(key)
                self.replayed += 1
                return known.replay(inputs)
            places = [inputs[i].data_ptr() for i in self._fixed]
            if self._last.get(key) == places:
                known = self._record(key, inputs)
                if known is not None:
                    self.replayed += 1
                    return known.replay(inputs)
            if len(self._last) > 4 * KEPT:
                self._last.clear()
            self._last[key] = places
        return self.run(inputs)

    def _sort(self, inputs: list[Any]) -> bool:
        """Finds out which inputs may move; whether that can be."""
        numbers: list[int] = []
        fixed: list[int] = []
        moves: list[int] = []
        stay = {*self.facts.static, *self.facts.written}
        for i, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                numbers.append(i)
                if not isinstance(value, int):
                    return self._refuse("an input is no tensor")
            elif value.device.type != "cuda" or type(value) not in (torch.Tensor, torch.nn.Parameter):
                return self._refuse("an input is no plain tensor of the GPU")
            else:
                (fixed if i in stay or value.nbytes > SMALL else moves).append(i)
        self._numbers, self._fixed, self._moves = numbers, fixed, moves
        return True

    def _refuse(self, why: str) -> bool:
        self.refused = why
        self._known.clear()
        log.info("calls are not recorded: %s", why)
        return False

    def _record(self, key: tuple[int, ...], inputs: list[Any]) -> _Recording | None:
        try:
            made = _Recording(self.run, inputs, self._fixed, self._moves)
        except Exception as error:
            # What was asked for while recording was not done: the call runs step by step.
            self._refuse(str(error).partition("\n")[0])
            return None
        if made.obstacle is not None:
            self._refuse(made.obstacle)
            return None
        self._known[key] = made
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return made


class _Recording:
    """One call, with memory of its own."""

    def __init__(self, run: Callable[[list[Any]], Any], inputs: list[Any], fixed: list[int], moves: list[int]) -> None:
        self.fixed, self.moves = fixed, moves
        # What must stay is kept alive: nothing else may come to lie there.
        self.stays = [inputs[i] for i in fixed]
        places: list[int | None] = [None] * len(inputs)
        for i, value in zip(fixed, self.stays, strict=True):
            places[i] = value.data_ptr()
        self.places = places
        with torch.inference_mode(False), torch.no_grad():
            self.own = [_torch.empty_strided(inputs[i].shape, inputs[i].stride(), dtype=inputs[i].dtype, device=inputs[i].device) for i in moves]
            given = list(inputs)
            for i, value in zip(moves, self.own, strict=True):
                given[i] = value
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.results = tuple(run(given))
        self.obstacle = self._unfit()

    def _unfit(self) -> str | None:
        tensors = [result for result in self.results if isinstance(result, torch.Tensor)]
        memory = [value.untyped_storage().data_ptr() for value in tensors if value.nbytes]
        taken = {value.untyped_storage().data_ptr() for value in (*self.stays, *self.own)}
        if len(set(memory)) < len(memory) or not taken.isdisjoint(memory):
            return "a result shares its memory with an input or with another result"
        if any(value.device.type != "cuda" or not _is_dense(value) for value in tensors):
            return "a result has gaps, or is not on the GPU"
        if sum(value.nbytes for value in tensors) > LARGE:
            return "its results are so large that copying them costs more than launches"
        return None

    def fits(self, inputs: list[Any]) -> bool:
        """Whether everything lies where it lay that must."""
        return _torch.same_places(inputs, self.places, self.fixed)

    def replay(self, inputs: list[Any]) -> tuple[Any, ...]:
        with torch.no_grad():
            if self.moves:
                _torch.copy_each(self.own, [inputs[i] for i in self.moves])
            inputs.clear()
            self.graph.replay()
            return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in self.results)


def _is_dense(value: torch.Tensor) -> bool:
    """Whether a copy has the same strides."""
    expected = 1
    for size, stride in sorted(zip(value.shape, value.stride(), strict=True), key=lambda dim: dim[1]):
        if size != 1 and stride != expected:
            return value.numel() == 0
        expected *= size
    return True
