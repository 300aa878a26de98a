"""What became of a model: its graphs, kernels, operators left to torch and why, memory, where compile time went, and what it should gain.

    said = oxyfuel.explain(model, x)
    print(said)
    said.verdict.gain, said.to_json()

Counts (bytes, operations) are exact. Times are a model of the machine, whose figures are measured when the first explanation is asked for; what the
model takes for granted is part of the verdict.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import _torch, config
from .options import resolve
from .recompiles import Recompile, doors, noted, recompiles
from .recorded import Recorder, Recording

# Where compiles of this context are reported; none outside of `explain`.
_reports: contextvars.ContextVar[list[tuple[GraphReport, float, Recorder | None]] | None] = contextvars.ContextVar("oxyfuel_reports", default=None)

# What a call of a compiled graph costs beside its kernels, in calls of an operator: guards and the wrappers around a graph.
CALL = 2.0

# A gain below this is within what the model leaves out.
LITTLE = 1.1

# Steps that a line names; the data has all of them.
NAMED = 12

BOUNDS = {"launch": "launches and calls", "memory": "memory", "arithmetic": "arithmetic", "host": "torch's own operators"}


@dataclasses.dataclass(slots=True)
class Verdict:
    """What one call should take, compiled and in eager, by a model of the machine."""

    compiled_seconds: float
    eager_seconds: float
    """One operator at a time, each reading its operands and writing its results."""
    gain: float
    """How many times faster."""
    bound: str
    """What takes the largest part: `launch`, `memory`, `arithmetic`, or `host` (torch's own operators)."""
    roof: str
    """What the work itself waits for, that of torch's operators included: `memory` or `arithmetic`."""
    shares: dict[str, float]
    """The parts, which sum to 1."""
    compiled_bytes: int
    eager_bytes: int
    eager_operators: int
    compile_seconds: float
    break_even: int | None
    """Calls after which compiling has paid; none where the gain is too little to tell."""
    advice: list[str]
    """What would make it faster."""
    assumptions: list[str]
    """What the model takes for granted."""

    def __str__(self) -> str:
        parts = ", ".join(f"{100 * self.shares[name]:.0f} % {words}" for name, words in BOUNDS.items() if self.shares[name] >= 0.005)
        lines = [
            f"expected: compiled about {_about(self.compiled_seconds)} a call ({parts}), eager about {_about(self.eager_seconds)}"
            f" ({_count(self.eager_operators, 'operator')})",
            f"  gain about {_two_digits(self.gain)}x, bound by {BOUNDS[self.bound]}; the work is bound by {BOUNDS[self.roof]}",
        ]
        if self.break_even is None:
            lines.append(f"  too little to say when the first call ({_about(self.compile_seconds)}) has paid")
        else:
            lines.append(f"  the first call ({_about(self.compile_seconds)}) has paid after about {_two_digits(self.break_even)} calls")
        lines.extend(f"  advice: {line}" for line in self.advice)
        lines.extend(f"  assumed: {line}" for line in self.assumptions)
        return "\n".join(lines)


@dataclasses.dataclass(slots=True)
class GraphReport:
    """One compiled graph."""

    role: str
    seconds: float
    """What our own compile took."""
    nodes: int
    """Operators in the graph that torch gave us."""
    said: dict[str, Any] | None
    """Kernels, calls, memory, steps, the machine and a verdict as the compiler says them; none where the graph was not compiled."""
    cause: str | None = None
    """Why it was not compiled."""
    recording: Recording | None = None
    """Whether its calls are launched as one, and why not; none where the mode asks for no CUDA graphs."""
    beside: dict[str, str] = dataclasses.field(default_factory=dict)
    """Where no plan runs it: its calls by name, and why none of them is recorded."""

    @property
    def steps(self) -> list[str]:
        """The names of what a call launches and calls; what is launched several times stands here as often."""
        if self.said is None:
            return list(self.beside)
        return [kernel["name"] for kernel in self.kernels for _ in range(kernel["launches"])] + [call["name"] for call in self.external]

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Kernels of ours: `name`, `ops`, `bytes_read`, `bytes_written`, `flops`, `flops_per_byte`, `expected`, `launches` and others."""
        return list(self.said["kernels"]) if self.said else []

    @property
    def external(self) -> list[dict[str, Any]]:
        """Operators that torch runs, with reasons, bytes and, for products, convolutions and attention, `flops`."""
        return list(self.said["externals"]) if self.said else []

    @property
    def frozen(self) -> str | None:
        """What is computed once of frozen weights; none where nothing is."""
        return self.said["frozen"] if self.said else None

    @property
    def verdict(self) -> dict[str, Any] | None:
        """What the graph alone should take and gain."""
        return self.said["verdict"] if self.said else None

    @property
    def kernel_bytes(self) -> int | None:
        if any(kernel["bytes"] is None for kernel in self.kernels):
            return None
        return sum(kernel["bytes"] * kernel["launches"] for kernel in self.kernels)

    @property
    def eager_bytes(self) -> int | None:
        """What its operators move in eager; none where sizes are not known."""
        return self.verdict["eager_bytes"] if self.verdict else None


@dataclasses.dataclass(slots=True)
class Outside:
    """A step that is not recorded."""

    graph: str
    step: str
    reason: str


@dataclasses.dataclass(slots=True)
class Recorded:
    """How much of a call is launched as one, where the mode asks for that."""

    steps: int
    """Launches and calls of all graphs."""
    recorded: int
    """Those that are recorded, from the second call on."""
    segments: int
    """What they are launched in: whole graphs, and segments of graphs that are cut around what is not the GPU's."""
    outside: list[Outside]
    """All others."""

    def __str__(self) -> str:
        where = f" in {_count(self.segments, 'segment')}, each launched as one from its second call on" if self.segments else ""
        lines = [f"recorded: {self.recorded} of {_count(self.steps, 'step')}{where}"]
        alike: dict[tuple[str, str], list[str]] = {}
        for one in self.outside:
            alike.setdefault((one.graph, one.reason), []).append(one.step)
        for (graph, reason), steps in alike.items():
            more = f" and {len(steps) - NAMED} more" if len(steps) > NAMED else ""
            lines.append(f"  not recorded, {graph}: {', '.join(steps[:NAMED])}{more}: {reason}")
        return "\n".join(lines)


@dataclasses.dataclass(slots=True)
class Explanation:
    """What `explain` found."""

    graphs: list[GraphReport]
    recompiles: list[Recompile]
    """Every compile of a function that had been compiled before, with all its reasons: those of this function that the process has had, then those of this call."""
    breaks: list[str]
    """Why the program was cut into several graphs."""
    seconds: float
    """The whole first call, torch's part included."""
    recorded: Recorded | None = None
    """Which of the steps are launched as one, and why others are not; none where the mode asks for no CUDA graphs."""

    @property
    def verdict(self) -> Verdict | None:
        """What all graphs together should take and gain; none where one of them has no verdict."""
        return _together(self)

    def to_json(self) -> str:
        """Everything as JSON."""
        verdict = self.verdict
        return json.dumps({**dataclasses.asdict(self), "verdict": None if verdict is None else dataclasses.asdict(verdict)})

    def __str__(self) -> str:
        own = sum(graph.seconds for graph in self.graphs)
        lines = [f"{_count(len(self.graphs), 'graph')}; first call {1e3 * self.seconds:.0f} ms, of which compiling in oxyfuel {1e3 * own:.0f} ms"]
        for graph in self.graphs:
            lines.extend(_describe(graph))
        if self.recorded is not None:
            lines.append(str(self.recorded))
        lines.extend(f"compiled again: {again}" for again in self.recompiles)
        lines.extend(f"graph break: {reason}" for reason in self.breaks)
        if self.verdict is not None:
            lines.append(str(self.verdict))
        return "\n".join(lines)


def explain(
    function: Callable[..., Any],
    *args: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compiles and runs a function or module once with these arguments, and says what came of it. Nothing is taken from caches.

    What `torch.compile` made of a function is taken for the function; asked after a run, the answer has the recompiles of that run.
    """
    from .backend import backend

    def door(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return backend(gm, inputs, mode=mode, options=options)

    # Before the tracer's modes stand between a call and its operator.
    _host()
    for device in {str(value.device) for value in _torch.flatten((args, kwargs))[0] if isinstance(value, torch.Tensor) and value.is_cuda}:
        _known_hosts[device] = _host(device), _products(device)
    doors.add(door)
    function = _torch.original(function)
    before = recompiles(function)
    with _recorded() as reports, noted() as again, _torch.graph_breaks() as breaks:
        started = time.perf_counter()
        torch.compile(function, backend=door, dynamic=dynamic)(*args, **kwargs)
        seconds = time.perf_counter() - started
    # Asking is no part of the first call.
    seconds -= sum(asked for _, asked, _ in reports)
    for graph, _, recorder in reports:
        graph.recording = None if recorder is None else recorder.said()
    graphs = [graph for graph, _, _ in reports]
    asked = resolve(config.current(), mode, options).recorded
    return Explanation(graphs, before + again, breaks, seconds, _outside(graphs) if asked and graphs else None)


def _outside(graphs: list[GraphReport]) -> Recorded:
    """Sorts the steps of all graphs into those that are recorded and those that are not."""
    found = Recorded(0, 0, 0, [])
    for graph in graphs:
        found.steps += len(graph.steps)
        reason = "its tensors are not on a GPU" if graph.recording is None else graph.recording.refused
        if reason is None:
            found.recorded += len(graph.steps)
            found.segments += 1
            continue
        found.outside += [Outside(graph.role, step, graph.beside.get(step, reason)) for step in graph.steps]
    return found


@contextlib.contextmanager
def _recorded() -> Iterator[list[tuple[GraphReport, float, Recorder | None]]]:
    reports: list[tuple[GraphReport, float, Recorder | None]] = []
    token = _reports.set(reports)
    try:
        yield reports
    finally:
        _reports.reset(token)


def report(
    gm: torch.fx.GraphModule, role: str, seconds: float, graph: Any, cause: str | None, recorder: Recorder | None = None, beside: dict[str, str] | None = None
) -> None:
    """Called for every compile."""
    reports = _reports.get()
    if reports is None:
        return
    started = time.perf_counter()
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    said = None if graph is None else json.loads(graph.explain(_request(gm, role, calls, seconds)))
    if said is None and beside is None:
        beside = {node.name: "the graph runs uncompiled" for node in calls}
    reports.append((GraphReport(role, seconds, len(calls), said, cause, beside=beside or {}), time.perf_counter() - started, recorder))


def _request(gm: torch.fx.GraphModule, role: str, calls: list[torch.fx.Node], seconds: float) -> str:
    """What the compiler needs to compare with eager."""
    from .describe import describe

    said = describe(gm, role)
    # Within the tracer's modes nothing can be measured: what is not known by now is the CPU's.
    host, rate = _known_hosts.get(said.device) or (_host(), None)
    return json.dumps(
        {"description": said.text, "operators": _operators(calls), "host": host, "matrix_flops_per_second": rate, "compile_seconds": seconds}
    )


def _operators(calls: list[torch.fx.Node]) -> dict[str, str]:
    """By node: the operator of the program that it is a part of. What a decomposition made of one operator stands together."""
    labels: dict[str, str] = {}
    before: tuple[str, Any] | None = None
    label = ""
    for node in calls:
        # By name: a graph that was cut in two holds copies of what it says of its nodes.
        original = str(node.meta.get("original_aten", node.target))
        whole = None if original == str(node.target) else (original, node.meta.get("seq_nr"))
        if whole is None or whole != before:
            label = node.name
        labels[node.name] = label
        before = whole
    return labels


# By GPU: what calls cost on its tensors, and the rate of its library's products.
_known_hosts: dict[str, tuple[dict[str, float], float]] = {}


@functools.cache
def _products(device: str, size: int = 4096) -> float:
    """Operations a second of torch's products of bf16 matrices on a GPU."""
    with torch.no_grad(), torch.cuda.device(device):
        x = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        best = math.inf
        for _ in range(5):
            begin.record()
            torch.mm(x, x)
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e3)
    return 2 * size**3 / best


@functools.cache
def _host(device: str = "cpu") -> dict[str, float]:
    """What calls of torch's own cost here, on tensors of that device."""
    x = torch.zeros(1, device=device)
    with torch.no_grad():
        dispatch = _best(lambda: torch.add(x, x))
        view = _best(lambda: x.view(1))
    return {"dispatch_seconds": dispatch, "view_seconds": view, "call_seconds": CALL * dispatch}


def _best(call: Callable[[], Any]) -> float:
    """Seconds of a call: the best of a few rounds."""
    rounds, calls = 5, 100
    best = math.inf
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - started) / calls)
    return best


def _together(said: Explanation) -> Verdict | None:
    verdicts = [graph.verdict for graph in said.graphs]
    known = [verdict for verdict in verdicts if verdict is not None]
    if not known or len(known) < len(verdicts):
        return None
    compiled = sum(verdict["compiled_seconds"] for verdict in known)
    eager = sum(verdict["eager_seconds"] for verdict in known)
    shares = {name: sum(verdict["shares"][name] * verdict["compiled_seconds"] for verdict in known) / max(compiled, 1e-12) for name in BOUNDS}
    advice = list(dict.fromkeys(line for verdict in known for line in verdict["advice"]))
    if said.breaks:
        advice.append(f"the program is cut into {_count(len(said.graphs), 'graph')}: a cut costs a call, and nothing is fused across it")
    gain = eager / max(compiled, 1e-12)
    return Verdict(
        compiled_seconds=compiled,
        eager_seconds=eager,
        gain=gain,
        bound=max(shares, key=lambda name: shares[name]),
        roof=max(known, key=lambda verdict: verdict["compiled_seconds"])["roof"],
        shares=shares,
        compiled_bytes=sum(verdict["compiled_bytes"] for verdict in known),
        eager_bytes=sum(verdict["eager_bytes"] for verdict in known),
        eager_operators=sum(verdict["eager_operators"] + verdict["eager_views"] for verdict in known),
        compile_seconds=said.seconds,
        break_even=math.ceil(said.seconds / (eager - compiled)) if gain >= LITTLE else None,
        advice=advice,
        assumptions=[*known[0]["assumptions"], f"a call of a compiled graph costs {CALL:.0f} calls of an operator beside its kernels"],
    )


def _describe(graph: GraphReport) -> list[str]:
    if graph.said is None:
        return [f"{graph.role}: runs uncompiled: {graph.cause}"]
    lines = [f"{graph.role}: {_count(graph.nodes, 'operator')} in {_count(len(graph.kernels), 'kernel')}, {len(graph.external)} left to torch{_where(graph.said)}"]
    for kernel in graph.kernels:
        code = "" if kernel["code"] in ("machine", "ptx") else f", {kernel['code']}: {kernel['note']}"
        often = f", {kernel['launches']} times" if kernel["launches"] > 1 else ""
        lines.append(f"  kernel {kernel['name']}: {' '.join(kernel['ops'])}{code}{often}")
        if kernel["bytes"] is not None and kernel["flops"] is not None:
            ratio = "" if kernel["flops_per_byte"] is None else f" ({kernel['flops_per_byte']:.2f} a byte)"
            lines.append(f"    reads {kernel['bytes_read']:,} bytes, writes {kernel['bytes_written']:,}; {kernel['flops']:,} operations{ratio}{_expected(kernel)}")
    for call in graph.external:
        where = f" at {call['lines'][0]}" if call["lines"] else ""
        work = "" if call["flops"] is None else f"; {call['flops']:,} operations{_expected(call)}"
        lines.append(f"  torch runs {call['target']}{where}: {call['reason']}{work}")
    if graph.frozen is not None:
        lines.append(f"  {graph.frozen}")
    lines.append(f"  memory between kernels: {graph.said['memory']['arena']} bytes")
    if graph.recording is not None:
        lines.append(f"  {graph.recording}")
    if graph.verdict is not None:
        lines.append(f"  eager moves {graph.verdict['eager_bytes']:,} bytes through memory; compiled, it is {graph.verdict['compiled_bytes']:,}")
    steps = ", ".join(f"{step['name']} {1e3 * _seconds(step['time']):.1f}" for step in graph.said["steps"])
    lines.append(f"  compiled in {1e3 * graph.seconds:.1f} ms ({steps})" if steps else f"  compiled in {1e3 * graph.seconds:.1f} ms")
    lines.extend(f"  note: {note}" for note in graph.said["notes"])
    return lines


def _where(said: dict[str, Any]) -> str:
    """The device, where it is not the CPU."""
    device = said["device"]
    return "" if device["id"] == "cpu" else f", on {device['id']} ({device['name']})"


def _expected(work: dict[str, Any]) -> str:
    """How long it should take, what bounds that, and how near it comes to the roofline: launches and calls are above it."""
    expected = work["expected"]
    if expected is None:
        return ""
    share = expected["roof_seconds"] / expected["seconds"] if expected["seconds"] > 0 else 1.0
    return f"; about {_about(expected['seconds'])}, bound by {BOUNDS[expected['bound']]}, {share:.0%} of the roofline".replace("%", " %")


def _seconds(duration: dict[str, int]) -> float:
    return duration["secs"] + 1e-9 * duration["nanos"]


def _about(seconds: float) -> str:
    """Two digits and a unit: more would be a claim."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{_two_digits(seconds / size)} {unit}"
    return f"{_two_digits(seconds / 1e-9)} ns"


def _two_digits(number: float) -> str:
    if number <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    rounded = round(number / step) * step
    return f"{rounded:.{0 if rounded >= 9.95 else 1 if rounded >= 0.995 else 2}f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
