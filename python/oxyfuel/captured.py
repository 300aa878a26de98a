"""Any callable as a CUDA graph, compiled or not.

    step = oxyfuel.cuda_graph(step)          # or @oxyfuel.cuda_graph
    y = step(x, cache)                       # the first call of a shape runs as it is, the second is recorded, later ones are launched as one

The rules are those of `mode="reduce-overhead"` (`recorded.py`): arguments that lie where they lay are not copied, others are copied into the recording; arguments that the callable writes have to stay; results stay where they
were recorded, and while one is held another recording runs; with another setting of TF32, and under another autocast, too. Tensors that the callable holds by itself (parameters of a module) have to stay where they are. Python runs only while it is recorded.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

from . import _torch, errors, faults, recorded
from .errors import OxyfuelError
from .recorded import Facts, Recorder, Recording

# Kinds of calls that are remembered; the one that was not made for longest is forgotten.
REMEMBERED = 256


class _Kind:
    """Calls with the same key: all that is no tensor among their arguments is the same."""

    def __init__(self, graph: CudaGraph, leaves: list[Any], structure: Any, forms: tuple[Any, ...]) -> None:
        self.graph, self.structure, self.forms = graph, structure, forms
        # Tensors are given at every call, and none is kept.
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.gradients = torch.is_grad_enabled()
        self.warm = 0
        self.written: set[int] = set()
        self.recorder: Recorder | None = None
        # How results are put together.
        self.returned: Any = None

    def run(self, tensors: list[torch.Tensor]) -> tuple[Any, ...]:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = _torch.unflatten(leaves, self.structure)
        # As it was called. A cast that was kept from before would be no part of a recording, and one that is recorded is none that anybody else can read.
        with torch.set_grad_enabled(self.gradients), _torch.no_cached_casts():
            results, self.returned = _torch.flatten(self.graph.function(*args, **kwargs))
        if any(isinstance(result, torch.Tensor) and result.requires_grad for result in results):
            raise OxyfuelError(
                errors.INVALID_ARGUMENT,
                f"a result of {self.graph.name} needs a gradient, which a recording does not know how to compute",
                "call it under torch.no_grad(), let the backward be a part of it, or use torch.compile with mode=\"reduce-overhead\"",
            )
        return tuple(results)

    def warm_up(self, tensors: list[torch.Tensor], device: str) -> tuple[Any, ...]:
        """A call as it is; after the last of them calls are recorded."""
        before = [_torch.version(tensor) for tensor in tensors]
        results = self.run(tensors)
        self.written.update(i for i, tensor in enumerate(tensors) if _torch.version(tensor) != before[i])
        self.warm += 1
        if self.warm >= self.graph.warmup:
            facts = Facts(device, (), tuple(sorted(self.written)), None, required=True, limit=self.graph.memory_limit, role=self.graph.name)
            self.recorder = Recorder(self.run, facts)
            self.recorder.begin(tensors)
        return results


class CudaGraph:
    """A callable whose calls are recorded and launched as one; `cuda_graph` makes it."""

    def __init__(self, function: Callable[..., Any], *, key: Callable[..., Hashable] | None = None, warmup: int = 1, memory_limit: int = 0) -> None:
        if not callable(function) or warmup < 1 or memory_limit < 0:
            raise OxyfuelError(errors.INVALID_ARGUMENT, "cuda_graph takes a callable, at least one call to warm up, and a limit of bytes that is not negative")
        functools.update_wrapper(self, function, updated=())
        self.function, self.key, self.warmup, self.memory_limit = function, key, warmup, memory_limit
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self._kinds: collections.OrderedDict[Hashable, _Kind] = collections.OrderedDict()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = _torch.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        device = self._device(tensors)
        engine = recorded.Engine(device)
        try:
            if engine.capturing():
                # A part of what somebody else records.
                return self.function(*args, **kwargs)
            forms = (structure, *map(_form, leaves))
            modes = torch.is_grad_enabled(), _torch.autocast(engine.kind)
            kind = self._kind((engine.stream(), modes, forms if self.key is None else self.key(*args, **kwargs)), leaves, structure, forms)
            del args, kwargs, leaves
            results = kind.warm_up(tensors, device) if kind.recorder is None else kind.recorder(tensors)
        except RuntimeError as error:
            faults.say_more(error, self.name, self, device)
            raise
        return _torch.unflatten(results, kind.returned)

    def _kind(self, key: Hashable, leaves: list[Any], structure: Any, forms: tuple[Any, ...]) -> _Kind:
        try:
            kind = self._kinds.get(key)
        except TypeError as error:
            raise OxyfuelError(
                errors.INVALID_ARGUMENT, f"an argument of {self.name} cannot be a part of a key: {error}", "give `key=`, a function of the arguments that says which calls are alike"
            ) from None
        if kind is None:
            kind = self._kinds[key] = _Kind(self, leaves, structure, forms)
            if len(self._kinds) > REMEMBERED:
                self._kinds.popitem(last=False)
        elif kind.forms != forms:
            raise OxyfuelError(errors.SHAPE_MISMATCH, f"two calls of {self.name} with the same key have arguments of other sizes, types or values", "let the key tell them apart")
        self._kinds.move_to_end(key)
        return kind

    def _device(self, tensors: list[torch.Tensor]) -> str:
        """Where all tensors are."""
        wanted = recorded.Engine.kind
        if wanted == "cuda" and not torch.cuda.is_available():
            raise OxyfuelError(errors.NO_DEVICE, f"{self.name} is to be recorded, and there is no GPU", "call it without cuda_graph")
        devices = list(dict.fromkeys(str(tensor.device) for tensor in tensors))
        if len(devices) > 1 or any(not device.startswith(wanted) for device in devices):
            raise OxyfuelError(errors.DEVICE_MISMATCH, f"tensors of {self.name} are on {', '.join(devices)}: a recording has one GPU", "move them before the call")
        return devices[0] if devices else f"cuda:{torch.cuda.current_device()}"

    def recordings(self) -> list[Recording]:
        """What has become of its calls, one for each kind of arguments and stream."""
        return [kind.recorder.said() for kind in self._kinds.values() if kind.recorder is not None]


def _form(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad
    # 1, 1.0 and True are equal and not the same.
    return type(leaf), leaf


def cuda_graph(function: Callable[..., Any] | None = None, *, key: Callable[..., Hashable] | None = None, warmup: int = 1, memory_limit: int = 0) -> Any:
    """Records calls of a function on a GPU and launches them as one; also a decorator, with or without arguments.

    Recordings are kept for each shape, element type and value of the arguments, or for each `key(*args, **kwargs)`. The first `warmup` calls of a kind run as they are. All recordings of a GPU together take at most
    `memory_limit` bytes (0: a quarter of its memory), those that were not used for longest go first. A call that cannot be recorded is an error: E0702 (no GPU), E0103 (a tensor is elsewhere), E0101 (one key, two shapes), E0109 (a result needs a gradient),
    E0713 (work that a recording cannot hold, or of another stream). Where memory runs out, torch's own error says so with E0602.
    """
    if function is None:
        return functools.partial(cuda_graph, key=key, warmup=warmup, memory_limit=memory_limit)
    return CudaGraph(function, key=key, warmup=warmup, memory_limit=memory_limit)
