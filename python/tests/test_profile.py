"""Where time goes: torch's profiler sees our kernels, and `oxyfuel.profile` has tables and traces of its own. What waits after each step says which one faulted."""

from __future__ import annotations

import json
import threading
from typing import Any

import oxyfuel
import pytest
import torch
from oxyfuel import _native
from oxyfuel.options import Options
from torch.profiler import ProfilerActivity

from agree import compiled
from test_gpu_plans import planned, traced


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x * 2, -1)
    return (y @ w).relu() + 1


def inputs(size: int = 64, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, size, **kwargs), torch.randn(size, size)


def seen_by_torch(run: Any) -> dict[str, int]:
    """Names of what torch's profiler saw, and how often."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    found: dict[str, int] = {}
    for event in profiler.events():
        found[event.name] = found.get(event.name, 0) + 1
    return found


def test_torch_s_profiler_sees_calls_kernels_and_operators_with_their_lines() -> None:
    x, w = inputs()
    fast = compiled(f, options={"contractions": "torch"})
    fast(x, w)
    names = seen_by_torch(lambda: fast(x, w))
    assert names["oxyfuel::inference"] == 1, names
    (softmax,) = [name for name in names if name.startswith("oxyfuel::k") and "_softmax" in name]
    (product,) = [name for name in names if name.startswith("oxyfuel::aten.mm.default")]
    (rest,) = [name for name in names if name.startswith("oxyfuel::k") and "relu" in name]
    line = f.__code__.co_firstlineno
    assert softmax.endswith(f"(mul, _softmax at {__file__}:{line + 1})"), softmax
    assert product.endswith(f"at {__file__}:{line + 2})") and rest.endswith(f"at {__file__}:{line + 2})"), (product, rest)
    assert names["aten::mm"] == 1


def test_nobody_is_told_of_steps_where_nobody_looks() -> None:
    """Steps run together then, and results are the same."""
    x, w = inputs()
    fast = compiled(f)
    alone = fast(x, w)
    told: list[Any] = []
    seen_by_torch(lambda: told.append(fast(x, w)))
    assert torch.equal(told[0], alone) and torch.equal(fast(x, w), alone)


def test_an_error_in_a_step_ends_its_span() -> None:
    @torch.library.custom_op("oxyfuel_tests::refuse", mutates_args=())
    def refuse(x: torch.Tensor, no: bool) -> torch.Tensor:
        if no:
            raise ValueError("no")
        return x.clone()

    refuse.register_fake(lambda x, no: torch.empty_like(x))
    fast = compiled(lambda x, no: refuse(x * 2, no) + 1)

    def run() -> None:
        with pytest.raises(ValueError, match="no"):
            fast(torch.ones(3), True)
        fast(torch.ones(3), False)

    names = seen_by_torch(run)
    assert names["oxyfuel::inference"] == 2, names


def test_a_table_with_times_of_host_and_device() -> None:
    x, w = inputs(requires_grad=True)
    fast = compiled(f, options={"contractions": "torch"})
    with oxyfuel.profile() as first:
        fast(x, w).sum().backward()
    # The first call of a graph is a compile, capture included, which counts apart.
    assert 0 < first.compile_seconds < first.total_seconds
    assert first.wall_seconds == pytest.approx(first.total_seconds - first.compile_seconds)
    assert [row["calls"] for row in first.rows() if row["category"] == "compile"] == [1]
    with oxyfuel.profile() as seen:
        for _ in range(3):
            fast(x, w).sum().backward()
    assert seen.compile_seconds == 0 and seen.launches()["external"] == 6
    assert seen.wall_seconds == pytest.approx(seen.device_seconds + seen.overhead_seconds)
    rows = {row["name"]: row for row in seen.rows()}
    assert rows["forward"]["calls"] == rows["backward"]["calls"] == 3
    assert rows["aten.mm.default"]["calls"] == 6 and rows["aten.mm.default"]["category"] == "external"
    (softmax,) = [row for row in rows.values() if "_softmax" in row["ops"]]
    assert softmax["calls"] == 3 and 0 < softmax["self_device_seconds"] == softmax["device_seconds"] <= rows["forward"]["device_seconds"]
    assert rows["forward"]["self_host_seconds"] < rows["forward"]["host_seconds"]
    text = str(seen)
    assert text.startswith("wall ") and "= device" in text and "compile - apart" in text
    trace = json.loads(seen.chrome_trace())["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in trace if event["ph"] == "M"}
    assert sorted(processes.values()) == ["cpu", "host"]
    rows_of = {processes[event["pid"]] for event in trace if event["name"] == softmax["name"]}
    assert rows_of == {"cpu", "host"}


def test_calls_of_other_threads_are_seen() -> None:
    x, w = inputs()
    fast = compiled(f)
    fast(x, w)
    with oxyfuel.profile() as seen:
        thread = threading.Thread(target=lambda: fast(x, w))
        thread.start()
        thread.join()
    assert [row["calls"] for row in seen.rows() if row["category"] == "call"] == [1]


def test_one_profile_at_a_time() -> None:
    with oxyfuel.profile() as seen, pytest.raises(oxyfuel.OxyfuelError, match="E0109"), oxyfuel.profile():
        pass
    with pytest.raises(oxyfuel.OxyfuelError, match="has been taken"), seen:
        pass
    assert not seen.rows() and not seen.launches()
    assert str(oxyfuel.profile()) == "nothing was profiled yet"


def test_what_was_profiled_on_the_device_that_computes_nothing() -> None:
    gm = traced(lambda x: (torch.softmax(x, -1), (x / x.sum()).exp()), torch.randn(64, 256))
    graph = planned(gm)
    seen = _native.Profiling()
    seen.call(graph, [torch.randn(64, 256)])
    seen.finish()
    kernels = [row for row in seen.rows() if row["category"] in ("pointwise", "reduction")]
    assert len(kernels) >= 2 and '"name":"null:0"' in seen.chrome_trace()


def test_who_waits_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(Options(launch_blocking=True).native([], 1))["launch_blocking"] is True
    monkeypatch.setenv("OXYFUEL_LAUNCH_BLOCKING", "1")
    try:
        oxyfuel.config.reset()
        assert oxyfuel.config.current().launch_blocking
    finally:
        monkeypatch.delenv("OXYFUEL_LAUNCH_BLOCKING")
        oxyfuel.config.reset()
    assert not oxyfuel.config.current().launch_blocking
    x, w = inputs()
    torch.testing.assert_close(compiled(f, options={"launch_blocking": True})(x, w), f(x, w))
    gm = traced(lambda x: (x.sin().cumsum(0) * 2,), torch.randn(8, 8))
    graph = planned(gm, launch_blocking=True)
    assert [tuple(result.shape) for result in graph([torch.randn(8, 8)])] == [(8, 8)]


def test_what_waits_is_not_recorded() -> None:
    from oxyfuel.compiled import _facts
    from oxyfuel.describe import describe

    gm = traced(lambda x: tuple(x.cumsum(0) * i for i in range(9)), torch.randn(8, 8))
    said = describe(gm, "inference")
    facts = _facts(gm, said, 20, Options(mode="reduce-overhead", launch_blocking=True), "inference")
    assert facts is not None and facts.obstacle is not None and "launch_blocking" in facts.obstacle
    facts = _facts(gm, said, 20, Options(mode="reduce-overhead"), "inference")
    assert facts is not None and facts.obstacle is None
    with pytest.raises(oxyfuel.OxyfuelError, match="E0713"):
        _facts(gm, said, 20, Options(cudagraphs="require", launch_blocking=True), "inference")
