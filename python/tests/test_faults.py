"""Errors that mean that a GPU is lost, on a machine without one: what the driver would say is made up, the rest is as it is there."""

from __future__ import annotations

import sys
from typing import Any

import oxyfuel
import pytest
import torch
from oxyfuel import _native, compiled as made, faults, recorded
from oxyfuel.errors import OxyfuelError
from test_recorded import recording  # noqa: F401

from agree import compiled

LOST = "CUDA_ERROR_ILLEGAL_ADDRESS, in one of the kernels launched on cuda:0: k0_cumsum (cumsum at model.py:3)"


class Sticky(RuntimeError):
    """As torch's AcceleratorError is."""

    error_code = 700


@torch.library.custom_op("oxyfuel_tests::touch", mutates_args=())
def touch(x: torch.Tensor, fails: bool) -> torch.Tensor:
    """An operator that finds the GPU lost when it is told to."""
    if fails:
        raise Sticky("CUDA error: an illegal memory access was encountered")
    return x.clone()


touch.register_fake(lambda x, fails: torch.empty_like(x))
touch.register_autograd(lambda context, gradient: (touch(gradient, True), None))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the driver was asked for."""
    numbers: list[int] = []

    def fault(answer: int) -> OxyfuelError | None:
        numbers.append(answer)
        return OxyfuelError("E0712", LOST, "start a new process") if answer == 700 else None

    monkeypatch.setattr(_native, "fault", fault)
    return numbers


def test_a_gpu_that_is_well_has_nothing_to_say() -> None:
    assert _native.fault(0) is None
    # No kernel of ours was launched on any.
    assert _native.fault(700) is None


def test_an_error_of_torch_s_on_a_lost_gpu_has_our_code_and_names(asked: list[int]) -> None:
    fast = compiled(lambda x, fails: touch(x * 2, fails) + 1, dynamic=False)
    x = torch.randn(8)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x, False), x * 2 + 1)
        assert asked == []
        # The first call of a graph goes through torch's wrappers, later ones past them.
        for _ in range(2):
            with pytest.raises(OxyfuelError) as raised:
                fast(x, True)
            assert raised.value.code == "E0712" and raised.value.message.startswith(LOST) and raised.value.help == "start a new process"
            assert isinstance(raised.value.__cause__, Sticky)
    assert asked == [700, 700]
    # A backward runs on a thread of autograd's where there is a GPU.
    loss = compiled(lambda x: touch(x * 2, False) + 1)(torch.randn(8, requires_grad=True)).sum()
    with pytest.raises(OxyfuelError) as raised:
        loss.backward()
    assert raised.value.code == "E0712" and raised.value.message.startswith(LOST)


def test_other_errors_stay_what_they_are(asked: list[int]) -> None:
    @torch.library.custom_op("oxyfuel_tests::refuse", mutates_args=())
    def refuse(x: torch.Tensor, fails: bool) -> torch.Tensor:
        if fails:
            raise RuntimeError("this is no fault")
        return x.clone()

    refuse.register_fake(lambda x, fails: torch.empty_like(x))
    fast = compiled(lambda x, fails: refuse(x * 2, fails) + 1, dynamic=False)
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(RuntimeError, match="this is no fault") as raised:
                fast(torch.randn(8), True)
            assert not isinstance(raised.value, OxyfuelError)
    assert asked and set(asked) == {0}


def test_a_recording_that_finds_the_gpu_lost_is_named_with_what_is_in_it(recording: list[recorded.Recorder], asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    fast = compiled(lambda x: torch.softmax(x, -1).cumsum(0) * 2, options={"mode": "reduce-overhead"})
    x = torch.randn(8, 8)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        (recorder,) = recording
        assert recorder.replayed == 2 and recorded.used_last(2) == [recorder]
        instance = next(iter(recorded._kept["cuda:0"].order))

        def replay() -> None:
            raise Sticky("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(instance, "launch", replay)
        with pytest.raises(OxyfuelError) as raised:
            fast(x)
    message = raised.value.message
    assert raised.value.code == "E0712" and message.startswith(LOST)
    assert "; or in calls of the inference graph that were launched as one: k" in message and "cumsum" in message and "test_faults.py:" in message, message


def test_a_callable_that_is_recorded_is_named(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from test_recorded import Engine

    monkeypatch.setattr(recorded, "Engine", Engine)
    monkeypatch.setattr(recorded, "_kept", type(recorded._kept)(recorded._Kept))

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    graph, x = oxyfuel.cuda_graph(step), torch.ones(3)
    for _ in range(3):
        graph(x)
    instance = next(iter(recorded._kept["cpu"].order))
    monkeypatch.setattr(instance, "launch", lambda: touch(x, True))
    with pytest.raises(OxyfuelError) as raised:
        graph(x)
    assert raised.value.code == "E0712" and raised.value.message.endswith("step that were launched as one")


def test_what_was_said_is_said_once(asked: list[int]) -> None:
    told = OxyfuelError("E0712", "in kernel k0", "help")
    with pytest.raises(OxyfuelError) as raised:
        faults.say_more(told, "inference", None)
    assert raised.value.message.startswith("in kernel k0") and raised.value.__cause__ is told
    # On its way out of a graph in a graph.
    assert faults.say_more(raised.value, "inference", None) is None  # type: ignore[func-returns-value]
    assert asked == []
