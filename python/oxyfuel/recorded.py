"""Calls that a GPU does as one: `mode="reduce-overhead"`, `mode="max-autotune"` and `cudagraphs="require"`.

A graph of small kernels is bound by its launches. The second call of a graph is recorded, torch's operators included, and launched as one from then on. So are the forward and the backward of a training step.

    fixed    inputs that lie where they lay: nothing is copied. Parameters, what is written and what a forward kept for its backward must be among them
    moved    other inputs that came from elsewhere than at the call before: copied into the recording from then on, where that costs less than launches

Results stay where they were recorded. As long as anybody holds one of them, or a view of it, or autograd keeps it for a backward, a second recording runs instead: nobody's tensor changes under their
hands, and nothing is copied. A recording belongs to a stream: what two streams do at once, they do in memory of their own. It also keeps what torch's operators in it were told of TF32: told otherwise, another one runs. All recordings of a device share a limit of bytes; those that were not used for longest go first.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import _native, _torch, errors
from .errors import OxyfuelError

log = logging.getLogger("oxyfuel")

# Bytes of inputs that are copied at every call, for each step that is saved: copying as many takes less time than a launch.
COPIED = 2 << 20
# What a recorded call takes beside its results, in steps.
BESIDE = 2
# Recordings of the same shapes: one runs while results of the others are held.
INSTANCES = 4
# Recordings that were never used again, after which no more are made, unless many others were.
WASTED = 8
# First calls on a stream, and by a setting of TF32, that may run step by step although recordings are required: everything has to have its place first.
FIRST = 3
# Shapes whose last call is remembered.
REMEMBERED = 256
# The part of a device's memory that recordings may take where nobody says how much.
SHARE = 4

_count, _window = _torch.storage_count, _torch.window

# Copies, launch and results of one call belong together, and one call may end another graph's recording.
_lock = threading.RLock()


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a graph before it has run."""

    device: str
    static: tuple[int, ...]
    """Inputs that stay where they are: parameters and buffers; in a backward, what the forward kept for it."""
    written: tuple[int, ...]
    """Inputs that the graph writes."""
    obstacle: str | None
    """Why it cannot be recorded."""
    steps: int = 0
    """Launches and calls that one launch stands for; 0: inputs are copied whatever that costs."""
    required: bool = False
    """A call that is not launched as one is an error."""
    limit: int = 0
    """The most bytes that all recordings of the device may take; 0: a part of what it has."""
    role: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """What has become of the calls of one graph."""

    role: str
    device: str
    calls: int
    replayed: int
    """Calls that were launched as one."""
    recorded: int
    """How often calls were recorded."""
    instances: int
    """Recordings that are kept."""
    bytes: int
    """What they take."""
    copied_inputs: int
    """Inputs that are copied at a call."""
    refused: str | None
    """Why calls are not recorded."""
    missed: str | None
    """Why a call that could have been launched as one was not, the last time."""

    def __str__(self) -> str:
        what = self.role or "graph"
        if self.refused is not None:
            return f"{what}: calls run step by step: {self.refused}"
        if not self.recorded and not self.missed:
            return f"{what}: calls are launched as one from the second on"
        said = f"{what}: {self.replayed} of {self.calls} calls launched as one, {self.instances} recordings of {self.bytes:,} bytes, {self.copied_inputs} inputs copied"
        return said if self.missed is None else f"{said}; last step by step: {self.missed}"


class Engine:
    """Records on a GPU, by torch's own CUDA graphs: torch's operators stand between our kernels, and torch alone can give them memory that stays."""

    kind = "cuda"

    def __init__(self, device: str) -> None:
        self.index = torch.device(device).index or 0
        self.device = torch.device("cuda", self.index)

    def capturing(self) -> bool:
        return _torch.is_capturing()

    def stream(self) -> int:
        return _torch.current_stream(self.index)

    def memory(self) -> int:
        return int(torch.cuda.get_device_properties(self.index).total_memory)

    def record(self, run: Callable[[], tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...], int]:
        """What launches the work again, its results, and the bytes that it keeps."""
        with torch.cuda.device(self.index):
            graph, side, pool = torch.cuda.CUDAGraph(), _side(self.index, self.stream()), torch.cuda.graph_pool_handle()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                # What cuBLAS works in is made anew in the memory of the recording: torch may give back what all share.
                _torch.clear_workspaces()
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                _native.offer_lanes([side, *_beside(self.index, self.stream())])
                try:
                    try:
                        results = run()
                    finally:
                        _native.offer_lanes([])
                        _torch.clear_workspaces()
                    graph.capture_end()
                except BaseException:
                    # What another stream breaks is first said by the end.
                    _torch.abandon(graph, self.index, pool)
                    raise
            torch.cuda.current_stream().wait_stream(side)
            return _torch.launch_of(graph), results, _torch.pool_bytes(pool)


@functools.cache
def _side(index: int, stream: int) -> Any:
    """Where the work of a stream is recorded."""
    return torch.cuda.Stream(index)


@functools.cache
def _beside(index: int, stream: int) -> tuple[Any, ...]:
    """Where steps go that need nothing of those on the stream."""
    return tuple(torch.cuda.Stream(index) for _ in range(_native.lanes() - 1))


class _Kept:
    """All recordings of a device, in the order of their last use."""

    def __init__(self) -> None:
        self.order: collections.OrderedDict[_Instance, None] = collections.OrderedDict()
        self.bytes = 0

    def used(self, instance: _Instance) -> None:
        self.order.move_to_end(instance)

    def add(self, instance: _Instance, limit: int) -> None:
        while self.order and self.bytes + instance.bytes > limit:
            self.drop(next(iter(self.order)))
        self.order[instance] = None
        self.bytes += instance.bytes
        _memory.update(address for address, _ in instance.counts)

    def drop(self, instance: _Instance) -> None:
        """Tensors that somebody holds keep their memory."""
        if instance in self.order:
            del self.order[instance]
            self.bytes -= instance.bytes
            _memory.difference_update(address for address, _ in instance.counts)
        instance.shape.instances.remove(instance)


_kept: collections.defaultdict[str, _Kept] = collections.defaultdict(_Kept)
# The storages that hold results of recordings.
_memory: set[int] = set()
_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _forget(device: str, shapes: dict[Any, _Shape]) -> None:
    """Lets go of all recordings of a graph."""
    with _lock:
        for shape in shapes.values():
            for instance in list(shape.instances):
                _kept[device].drop(instance)
        shapes.clear()


def recordings() -> list[Recording]:
    """What has become of the calls of every compiled graph that is to be recorded: how many were launched as one, and why others were not."""
    with _lock:
        return [recorder.said() for recorder in list(_recorders)]


def used_last(count: int) -> list[Recorder]:
    """The graphs whose recordings were launched last on each device, the last one first."""
    with _lock:
        owners = {id(instance): recorder for recorder in list(_recorders) for shape in recorder.shapes.values() for instance in shape.instances}
        found: list[Recorder] = []
        for kept in list(_kept.values()):
            here = dict.fromkeys(owners[id(instance)] for instance in reversed(kept.order) if id(instance) in owners)
            found += list(here)[:count]
        return found


class _Shape:
    """Calls on one stream, with one setting of TF32 and the same numbers among their inputs."""

    def __init__(self) -> None:
        self.instances: list[_Instance] = []
        # Where the inputs of the last call lay that was not launched as one.
        self.last: list[int | None] | None = None
        # Inputs that came from elsewhere before.
        self.moved: set[int] = set()


class Recorder:
    """A boxed callable whose calls are recorded."""

    def __init__(self, run: Callable[[list[Any]], Any], facts: Facts, engine: Any = None) -> None:
        self.run, self.facts = run, facts
        self.refused = facts.obstacle
        self.missed: str | None = None
        self.calls = self.replayed = self.recorded = 0
        self._engine: Any = engine
        # By stream and TF32, and the numbers among the inputs.
        self.shapes: collections.OrderedDict[tuple[Any, ...], _Shape] = collections.OrderedDict()
        self._stay = frozenset({*facts.static, *facts.written})
        self._numbers: list[int] | None = None
        self._tensors: list[int] = []
        self._wasted = 0
        # Until this call, those that are not launched as one are no error.
        self._until = FIRST
        _recorders.add(self)
        weakref.finalize(self, _forget, facts.device, self.shapes).atexit = False

    def said(self) -> Recording:
        instances = [instance for shape in self.shapes.values() for instance in shape.instances]
        copied = max((len(instance.moves) for instance in instances), default=0)
        size = sum(instance.bytes for instance in instances)
        return Recording(
            self.facts.role, self.facts.device, self.calls, self.replayed, self.recorded, len(instances), size, copied, self.refused, self.missed
        )

    def __call__(self, inputs: list[Any]) -> Any:
        self.calls += 1
        if self.refused is None:
            if self._engine is None:
                self._engine = Engine(self.facts.device)
            if not self._engine.capturing():
                with _lock:
                    instance = self._find(inputs)
                    if instance is not None:
                        self.replayed += 1
                        return instance.replay(inputs)
        if self.facts.required and (self.refused is not None or self.calls > self._until) and not self._capturing():
            raise not_recorded(self.facts.role, self.refused or self.missed or "it was not recorded yet")
        return self.run(inputs)

    def begin(self, inputs: list[Any]) -> None:
        """Takes note of a first call that somebody else made."""
        with _lock:
            self.calls += 1
            if self._engine is None:
                self._engine = Engine(self.facts.device)
            if self._sort(inputs):
                self._new_shape(self._key(inputs), inputs)

    def _capturing(self) -> bool:
        """Somebody else records: what is asked for becomes a part of that."""
        return self._engine is not None and self._engine.capturing()

    def _key(self, inputs: list[Any]) -> tuple[Any, ...]:
        """What a call has in common with those that its recording can do."""
        where = (self._engine.stream(), _torch.tf32())
        return (where, *[inputs[i] for i in self._numbers]) if self._numbers else (where,)

    def _find(self, inputs: list[Any]) -> _Instance | None:
        """The recording that does this call, made now where it is time to; none: the call runs step by step."""
        if self._numbers is None and not self._sort(inputs):
            return None
        key = self._key(inputs)
        shape = self.shapes.get(key)
        if shape is None:
            return self._new_shape(key, inputs)
        held = None
        for instance in shape.instances:
            if instance.fits(inputs):
                if not instance.held():
                    _kept[self.facts.device].used(instance)
                    if not instance.uses:
                        self._wasted -= 1
                    instance.uses += 1
                    return instance
                held = instance
        if held is not None:
            return self._another(shape, held, inputs)
        places = self._places(inputs)
        last, shape.last = shape.last, places
        moved = {i for i in self._tensors if last is None or places[i] != last[i]} - shape.moved
        # What lies in the memory of a recording comes from there again.
        moved -= {i for i in moved if _torch.storage_address(_torch.storage_of(inputs[i])) in _memory}
        stuck = [i for i in moved if i in self._stay or not _is_apart(inputs[i])]
        copied = sum(inputs[i].nbytes for i in shape.moved | moved)
        if stuck:
            return self._miss(f"input {stuck[0]} lay elsewhere at the call before, and is not one that can be copied")
        if self.facts.steps and copied > self.facts.steps * COPIED:
            return self._miss(f"inputs of {copied:,} bytes lay elsewhere at the call before: copying them costs more than {self.facts.steps} launches")
        shape.moved |= moved
        return self._record(shape, inputs, sorted(shape.moved))

    def _new_shape(self, key: tuple[Any, ...], inputs: list[Any]) -> _Instance | None:
        if self.facts.required and self.recorded and any(known[1:] != key[1:] for known in self.shapes):
            before = next(known[1:] for known in self.shapes)
            raise not_recorded(self.facts.role, f"its sizes changed from {list(before)} to {list(key[1:])}", "compile with `dynamic=False`: every shape has a graph of its own then")
        elsewhere = any(known[1:] == key[1:] for known in self.shapes)
        if elsewhere:
            self._until = self.calls + FIRST - 1
        shape = self.shapes[key] = _Shape()
        shape.last = self._places(inputs)
        while len(self.shapes) > REMEMBERED:
            _forget(self.facts.device, dict([self.shapes.popitem(last=False)]))
        return self._miss("it is the first call of its sizes on this stream and with this setting of TF32" if elsewhere else "it is the first call of its sizes")

    def _another(self, shape: _Shape, held: _Instance, inputs: list[Any]) -> _Instance | None:
        """One more recording for the places of one whose results are held."""
        alike = sum(instance.fits(inputs) for instance in shape.instances)
        if alike >= INSTANCES and not self.facts.required:
            return self._miss(f"results of {alike} calls are held")
        return self._record(shape, inputs, held.moves)

    def _places(self, inputs: list[Any]) -> list[int | None]:
        places: list[int | None] = [None] * len(inputs)
        for i in self._tensors:
            places[i] = inputs[i].data_ptr()
        return places

    def _sort(self, inputs: list[Any]) -> bool:
        """Finds out which inputs are tensors; whether a call with them can be recorded."""
        numbers: list[int] = []
        tensors: list[int] = []
        for i, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                if value.device.type != self._engine.kind or type(value) not in (torch.Tensor, torch.nn.Parameter):
                    return self._refuse(f"input {i} is no plain tensor of the GPU but {_kind(value)}")
                tensors.append(i)
            elif isinstance(value, int):
                numbers.append(i)
            elif value is not None:
                return self._refuse(f"input {i} is no tensor but {_kind(value)}")
        self._numbers, self._tensors = numbers, tensors
        return True

    def _miss(self, why: str) -> _Instance | None:
        """Notes why a call runs step by step."""
        self.missed = why
        log.debug("%s: a call runs step by step: %s", self.facts.role, why)
        return None

    def _refuse(self, why: str) -> bool:
        self.refused = why
        _forget(self.facts.device, self.shapes)
        log.info("%s: calls are not recorded: %s", self.facts.role, why)
        return False

    def _record(self, shape: _Shape, inputs: list[Any], moves: list[int]) -> _Instance | None:
        if self._wasted >= WASTED and 2 * self._wasted > self.replayed and not self.facts.required:
            self._refuse(f"{self._wasted} recordings were never used again: what it reads does not stay in its place")
            return None
        kept = _kept[self.facts.device]
        limit = self.facts.limit or self._engine.memory() // SHARE
        try:
            made = _Instance(self.run, inputs, self._tensors, moves, self._engine, shape)
        except Unfit as error:
            self._refuse(str(error))
            return None
        except Exception as error:
            if self.facts.required and isinstance(error, torch.OutOfMemoryError):
                # It says more than that the call was not recorded, and later there may be memory.
                raise
            # What was asked for while recording was not done: the call runs step by step.
            self._refuse(f"recording it failed: {str(error).partition(chr(10))[0]}")
            return None
        if made.bytes > limit:
            self._refuse(f"a recording takes {made.bytes:,} bytes, and `cudagraph_memory_limit` is {limit:,}")
            return None
        self.recorded += 1
        self._wasted += 1
        kept.add(made, limit)
        shape.instances.insert(0, made)
        return made


class Unfit(Exception):
    """A call that cannot be recorded, and why."""


def not_recorded(role: str, why: str, help: str | None = None) -> OxyfuelError:
    """Of a call that has to be launched as one."""
    is_graph = role in ("", "forward", "backward", "inference")
    what = f"the {role} graph (`cudagraphs=\"require\"`)".replace("  ", " ") if is_graph else role
    help = help or (
        "mend that, or let such calls run step by step (`cudagraphs=\"auto\"`)"
        if is_graph
        else "let it do nothing that waits for the GPU, and where it asks work of other streams, begin and end with `wait_stream` between them and the current stream"
    )
    return OxyfuelError(errors.CAPTURE_BROKEN, f"{what} was to be recorded, and cannot be: {why}", help)


class _Instance:
    """One call, with memory of its own."""

    def __init__(self, run: Callable[[list[Any]], Any], inputs: list[Any], tensors: list[int], moves: list[int], engine: Any, shape: _Shape) -> None:
        self.shape, self.moves = shape, moves
        self.uses = 0
        self.fixed = [i for i in tensors if i not in set(moves)]
        # Whether the others are where they were is all that has to be known of them: what lies there is what the caller gives.
        self.places: list[int | None] = [None] * len(inputs)
        for i in self.fixed:
            self.places[i] = inputs[i].data_ptr()
        with torch.inference_mode(False), torch.no_grad():
            self.own = [_torch.empty_strided(inputs[i].shape, inputs[i].stride(), dtype=inputs[i].dtype, device=inputs[i].device) for i in moves]
            given = list(inputs)
            for i, value in zip(moves, self.own, strict=True):
                given[i] = value
            self.launch, results, size = engine.record(lambda: tuple(run(list(given))))
        self.bytes = size + sum(_torch.storage_of(value).nbytes() for value in self.own)
        self._take(results, given, engine)

    def _take(self, results: tuple[Any, ...], given: list[Any], engine: Any) -> None:
        """How each result is made at a replay, and what of them has to be let go before the next."""
        same = {id(given[i]): i for i in self.fixed}
        inside = {_torch.storage_of(given[i]).data_ptr(): i for i in self.fixed if given[i].nbytes}
        kept: dict[int, torch.Tensor] = {id(value): value for value in self.own}
        # The input that it is or lies in, or none; what stands for it; sizes, strides and place of the window on that.
        self.results: list[tuple[int | None, Any, Any, Any, int]] = []
        for value in results:
            if not isinstance(value, torch.Tensor):
                self.results.append((None, value, None, None, 0))
                continue
            if id(value) in same:
                self.results.append((same[id(value)], None, None, None, 0))
                continue
            if value.device.type != engine.kind or type(value) is not torch.Tensor:
                raise Unfit(f"a result is no plain tensor of the GPU but {_kind(value)}")
            shape, strides = tuple(value.shape), tuple(value.stride())
            source = inside.get(_torch.storage_of(value).data_ptr()) if value.nbytes else None
            if source is None:
                kept[id(value)] = value
                self.results.append((None, value, shape, strides, 0))
            elif value.dtype == given[source].dtype:
                self.results.append((source, None, shape, strides, value.storage_offset() - given[source].storage_offset()))
            else:
                raise Unfit("a result is an input seen as another element type")
        # Where all of them are windows on memory of the recording: those.
        own = all(source is None and shape is not None for source, _, shape, _, _ in self.results)
        self.windows = [result[1:] for result in self.results] if own else None
        self.kept = list(kept.values())
        # By storage: how many tensors of ours are on it.
        ours: dict[int, int] = {}
        storages = {}
        for value in self.kept:
            if value.nbytes:
                storage = _torch.storage_of(value)
                address = _torch.storage_address(storage)
                storages[address] = storage
                ours[address] = ours.get(address, 0) + 1
        self.storages = list(storages.values())
        self.counts = [(address, count + _torch.WRAPPER) for address, count in ours.items()]
        if self.held():
            raise Unfit("a result is memory that somebody else keeps too")

    def fits(self, inputs: list[Any]) -> bool:
        """Whether everything lies where it lay that must."""
        return _torch.same_places(inputs, self.places, self.fixed)

    def held(self) -> bool:
        """Whether anybody still has a result, or a view of one."""
        for address, ours in self.counts:
            if _count(address) != ours:
                return True
        return False

    def replay(self, inputs: list[Any]) -> tuple[Any, ...]:
        if self.moves:
            with torch.no_grad():
                _torch.copy_each(self.own, [inputs[i] for i in self.moves])
        if self.windows is not None:
            self.launch()
            # What a recording reads where it lies stays until it has been asked for.
            inputs.clear()
            return tuple([_window(*window) for window in self.windows])
        seen = list(inputs)
        inputs.clear()
        self.launch()
        made = []
        for source, value, shape, strides, offset in self.results:
            base = value if source is None else seen[source]
            made.append(base if shape is None else _window(base, shape, strides, offset))
        return tuple(made)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__} on {value.device}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _is_apart(value: torch.Tensor) -> bool:
    """Whether no two elements are the same memory, so that a copy can be written."""
    reach = 1
    for size, stride in sorted(zip(value.shape, value.stride(), strict=True), key=lambda dim: dim[1]):
        if size > 1:
            if stride < reach:
                return value.numel() == 0
            reach = stride * size
    return True
