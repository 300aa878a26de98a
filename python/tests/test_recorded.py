"""Recorded calls on a machine without a GPU: everything but the GPU is as it is there. What stands for it computes a replay anew and writes the results where they were recorded, so that a tensor that somebody
holds would be seen to change, and an input that is not where it was would be missed."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import gc
import inspect
import json
from collections.abc import Iterator
from typing import Any

import oxyfuel
import pytest
import torch
from agree import compiled
from oxyfuel import compiled as made
from oxyfuel import recorded
from oxyfuel.recorded import Facts, Recorder
from torch import nn
from torch.nn import functional as F

MIB = 1 << 20


class Engine:
    """Records on the CPU."""

    kind = "cpu"
    total = 1 << 40
    bytes = MIB

    def __init__(self, device: str = "cuda:0") -> None:
        self.now = 0

    def capturing(self) -> bool:
        return False

    def stream(self) -> int:
        return self.now

    def memory(self) -> int:
        return self.total

    def record(self, run: Any) -> Any:
        # Nothing is done while it is recorded: what is written is as before.
        given = [x for x in inspect.getclosurevars(run).nonlocals["given"] if isinstance(x, torch.Tensor)]
        before = [x.clone() for x in given]
        state = torch.get_rng_state()
        results = run()
        torch.set_rng_state(state)
        for x, was in zip(given, before, strict=True):
            if not torch.equal(x, was):
                x.copy_(was)
        return Work(run, results).replay, results, self.bytes


class Work:
    """Only addresses are known to a GPU: no tensor is kept alive by what was recorded."""

    def __init__(self, run: Any, results: tuple[Any, ...]) -> None:
        self.run = run
        self.given: list[Any] = inspect.getclosurevars(run).nonlocals["given"]
        self.results = [Place(value) if isinstance(value, torch.Tensor) else None for value in results]

    def replay(self) -> None:
        self.given[:] = [Place(x).tensor() if isinstance(x, torch.Tensor) else x for x in self.given]
        with torch.no_grad():
            for value, place in zip(self.run(), self.results, strict=True):
                if place is not None and value.nbytes:
                    place.tensor().copy_(value.clone())


class Place:
    """Where a tensor lies."""

    def __init__(self, value: torch.Tensor) -> None:
        self.address, self.form = value.data_ptr(), (value.shape, value.stride())
        self.dtype = value.dtype
        reach = 1 + sum((size - 1) * stride for size, stride in zip(*self.form, strict=True))
        self.bytes = reach * value.element_size() if value.nbytes else 0

    def tensor(self) -> torch.Tensor:
        if not self.bytes:
            return torch.empty_strided(*self.form, dtype=self.dtype)
        memory = (ctypes.c_char * self.bytes).from_address(self.address)
        return torch.frombuffer(memory, dtype=self.dtype).as_strided(*self.form)


def recorder(run: Any, *, static: tuple[int, ...] = (), written: tuple[int, ...] = (), **facts: Any) -> Recorder:
    return Recorder(run, Facts("cuda:0", static, written, None, **{"steps": 100, **facts}), Engine())


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorder]]:
    """Graphs of the CPU whose calls are recorded, as those of a GPU are."""
    found: list[Recorder] = []
    facts = made._facts

    class Seen(Recorder):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr(recorded, "Engine", Engine)
    monkeypatch.setattr(made, "Recorder", Seen)
    monkeypatch.setattr(made, "_facts", lambda gm, said, steps, *rest: facts(gm, dataclasses.replace(said, device="cuda:0"), 100, *rest))
    monkeypatch.setattr(recorded, "_kept", type(recorded._kept)(recorded._Kept))
    torch._dynamo.reset()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield found
    torch._dynamo.reset()


def test_a_callable_whose_recording_is_broken_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Engine):
        def record(self, run: Any) -> Any:
            raise RuntimeError("CUDA error: capturing stream has unjoined work\nmore words")

    monkeypatch.setattr(recorded, "Engine", Broken)
    step = oxyfuel.cuda_graph(lambda x: x * 2)
    x = torch.ones(3)
    assert step(x).tolist() == [2, 2, 2]
    with pytest.raises(oxyfuel.OxyfuelError) as refused:
        step(x)
    error = refused.value
    assert error.code == "E0713" and "unjoined work" in error.message and "more words" not in str(error) and "wait_stream" in str(error)


def test_the_second_call_is_recorded_and_only_what_moved_is_copied() -> None:
    weight = torch.randn(4)
    run = recorder(lambda inputs: (inputs[0] * inputs[1] + 1,), static=(1,))
    for number in range(5):
        x = torch.full((4,), float(number))
        kept = [x]
        (got,) = run([x, weight])
        assert torch.equal(got, x * weight + 1)
        del got, kept
    said = run.said()
    assert (said.calls, said.replayed, said.refused) == (5, 4, None)
    # A tensor that stays is not copied, whoever's it is.
    still = recorder(lambda inputs: (inputs[0] * 2,))
    x = torch.ones(3)
    for _ in range(4):
        x += 1
        assert torch.equal(still([x])[0], x * 2)
    assert still.said().copied_inputs == 0 and still.replayed == 3 and still.recorded == 1


def test_a_result_that_is_held_is_never_written_over() -> None:
    run = recorder(lambda inputs: (inputs[0] + 1, inputs[0].sum()))
    held = [run([torch.full((3,), float(n))])[0][1:] for n in range(9)]
    for n, view in enumerate(held):
        assert view.tolist() == [n + 1] * 2
    said = run.said()
    assert said.instances == recorded.INSTANCES and said.replayed == recorded.INSTANCES and "held" in str(said.missed)
    del held, view
    before = run.recorded
    for n in range(9):
        # The one before is held while the next call runs: two take turns.
        got = run([torch.full((3,), float(n))])
        assert got[0].tolist() == [n + 1] * 3
    assert run.recorded == before and run.replayed == said.replayed + 9


def test_results_that_are_inputs_or_lie_in_them() -> None:
    def f(inputs: list[Any]) -> Any:
        x, state = inputs
        state.add_(x)
        return state, state[1:], x, x * 2, 7, None

    run, state, other = recorder(f, written=(1,)), torch.zeros(3), torch.zeros(3)
    for n in range(5):
        x = torch.full((3,), float(n))
        other += x
        whole, part, same, twice, number, nothing = run([x, state])
        assert whole is state and torch.equal(state, other) and part.data_ptr() == state[1:].data_ptr() and torch.equal(part, other[1:])
        assert torch.equal(same, x) and torch.equal(twice, x * 2) and (number, nothing) == (7, None)
        del same, twice
    assert run.replayed == 4 and run.refused is None


def test_parameters_that_move_are_recorded_anew_and_never_copied() -> None:
    run = recorder(lambda inputs: (inputs[0] * inputs[1],), static=(1,))
    x, weight = torch.ones(3), torch.full((3,), 2.0)
    for _ in range(3):
        run([x, weight])
    weight = torch.full((3,), 5.0)
    for _ in range(3):
        assert run([x, weight])[0].tolist() == [5.0] * 3
    said = run.said()
    assert (said.replayed, said.recorded, said.copied_inputs) == (4, 2, 0) and "input 1" in str(said.missed)


def test_what_costs_more_to_copy_than_launches_do_is_not_copied() -> None:
    run = recorder(lambda inputs: (inputs[0].sum(),), steps=1)
    for _ in range(3):
        kept = torch.ones(MIB)
        run([kept])
        big = torch.ones(MIB)
        run([big])
        del kept
    assert run.replayed == 0 and "copying" in str(run.missed)


def test_the_least_recently_used_shape_goes_first_when_the_bytes_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_kept", type(recorded._kept)(recorded._Kept))
    # Of two graphs: the limit is the device's.
    one, two = (recorder(lambda inputs: (inputs[0] + inputs[1],), limit=2 * MIB + 1000) for _ in range(2))
    x = torch.ones(3)

    def shapes(run: Recorder) -> list[int]:
        return [key[1] for key, shape in run.shapes.items() if shape.instances]

    for number in (1, 2, 1, 2):
        one([x, number])
    assert shapes(one) == [1, 2]
    one([x, 1])
    for _ in range(2):
        two([x, 3])
    assert shapes(one) == [1] and shapes(two) == [3]
    assert two([x, 3])[0].tolist() == [4.0] * 3
    replayed = one.replayed
    for _ in range(2):
        assert one([x, 2])[0].tolist() == [3.0] * 3
    assert shapes(one) == [2] and one.replayed == replayed + 2
    assert recorded._kept["cuda:0"].bytes == 2 * MIB
    # Whoever holds a result of one that goes keeps it.
    held = two([x, 3])[0]
    for number in (5, 5, 6, 6):
        one([x, number])
    assert held.tolist() == [4.0] * 3
    del one, two
    gc.collect()
    assert recorded._kept["cuda:0"].bytes == 0 and not recorded._kept["cuda:0"].order


def test_one_that_is_larger_than_the_limit_is_not_kept() -> None:
    run = recorder(lambda inputs: (inputs[0] + 1,), limit=1000)
    for _ in range(3):
        assert run([torch.zeros(2)])[0].tolist() == [1.0, 1.0]
    assert "cudagraph_memory_limit" in str(run.refused) and run.replayed == 0


def test_recordings_that_nobody_uses_again_end() -> None:
    run = recorder(lambda inputs: (inputs[0] + inputs[1],))
    x = torch.ones(2)
    for number in range(20):
        for _ in range(2):
            run([x, number])
    assert "never used again" in str(run.refused) and not run.shapes


def test_each_stream_has_recordings_of_its_own() -> None:
    run, x = recorder(lambda inputs: (inputs[0] + 1,)), torch.zeros(3)
    for stream in (1, 2, 1, 2, 1, 2):
        run._engine.now = stream
        run([x])
    assert run.recorded == 2 and run.replayed == 4


@pytest.fixture
def tf32() -> Iterator[None]:
    """Whatever is said of TF32 is as before afterwards; torch's own tests, which the judge imports, forbid to say anything."""
    with torch.backends.__allow_nonbracketed_mutation():
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        yield
        torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "none"
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


class Keeping(Engine):
    """What is said of TF32 and autocast while it is recorded is what a replay does, as on a GPU."""

    def record(self, run: Any) -> Any:
        was = said()
        launch, results, size = super().record(run)

        def replay() -> None:
            now = said()
            try:
                say(was)
                launch()
            finally:
                say(now)

        return replay, results, size


def said() -> tuple[Any, ...]:
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def say(what: tuple[Any, ...]) -> None:
    torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision = what[:2]
    torch.set_autocast_enabled("cpu", what[2])
    torch.set_autocast_dtype("cpu", what[3])


def exactness(inputs: list[Any]) -> Any:
    """Says how torch would multiply and fold."""
    products, filters, _, _ = said()
    return (inputs[0] + (products == "tf32") + 2 * (filters == "tf32"),)


def test_each_setting_of_tf32_has_recordings_of_its_own(tf32: None) -> None:
    settings = torch.backends.cuda.matmul, torch.backends.cudnn
    x = torch.zeros(3)
    for required in (False, True):
        run = Recorder(exactness, Facts("cuda:0", (), (), None, 100, required), Keeping())
        for _ in range(2):
            for number, chosen in enumerate([(False, False), (True, False), (False, True), (True, True), (False, False)]):
                for setting, allowed in zip(settings, chosen, strict=True):
                    setting.allow_tf32 = allowed
                for _ in range(3):
                    assert run([x])[0].tolist() == [chosen[0] + 2.0 * chosen[1]] * 3, (number, chosen)
        # The first call of each is not recorded, and nothing is recorded again.
        assert (run.refused, run.recorded, run.calls, run.replayed) == (None, 4, 30, 26)
    # Said by the newer names, after which torch refuses to say whether TF32 is allowed.
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    with pytest.raises(RuntimeError):
        settings[0].allow_tf32
    for _ in range(3):
        assert run([x])[0].tolist() == [1.0] * 3
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    for _ in range(3):
        assert run([x])[0].tolist() == [3.0] * 3
    # Sizes that change are what they were.
    with pytest.raises(oxyfuel.OxyfuelError, match="no tensor|sizes"):
        sized = Recorder(lambda inputs: (inputs[0] + inputs[1],), Facts("cuda:0", (), (), None, 100, True), Keeping())
        for number in (1, 1, 1, 1, 2):
            sized([x, number])


def test_a_callable_has_recordings_for_each_setting_of_tf32_and_for_autocast(tf32: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "Engine", Keeping)
    net = nn.Linear(4, 4)

    @oxyfuel.cuda_graph
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return net(x), exactness([x])[0]

    x = torch.randn(3, 4)
    with torch.no_grad():
        for allowed in (False, True, False, True):
            torch.backends.cudnn.allow_tf32 = allowed
            for kind in (None, torch.bfloat16, torch.float16):
                with torch.autocast("cpu", kind, enabled=kind is not None):
                    for _ in range(3):
                        y, exact = step(x)
                        assert y.dtype == (kind or torch.float32) and torch.equal(y, net(x)) and torch.equal(exact, x + 2.0 * allowed)
                        del y, exact
        assert len(step._kinds) == 3
        assert [(r.calls, r.recorded, r.replayed, r.refused) for r in step.recordings()] == [(12, 2, 10, None)] * 3


def test_casts_of_parameters_are_a_part_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast keeps them to its end; a recording that read one would read memory that is somebody else's by then, and never see that the parameter changed."""
    monkeypatch.setattr(recorded, "Engine", Keeping)
    net, casts = nn.Linear(4, 4), 0

    class Casts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal casts
            casts += function is torch.ops.aten._to_copy.default and args[0] is net.weight
            return function(*args, **(kwargs or {}))

    def forward(x: torch.Tensor) -> torch.Tensor:
        with Casts():
            return net(x).detach()

    step, x = oxyfuel.cuda_graph(forward), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        net(x)
        step(x)
        step(x)
        # Of the first call, of what was recorded, and of its replay.
        assert casts == 3 and torch.is_autocast_cache_enabled()


def test_what_fails_while_it_is_recorded_runs_step_by_step() -> None:
    calls = 0

    def f(inputs: list[Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return (inputs[0] + 1,)

    run = recorder(f)
    for _ in range(4):
        assert run([torch.zeros(2)])[0].tolist() == [1.0, 1.0]
    assert run.refused == "recording it failed: operation not permitted when stream is capturing"
    again = recorder(lambda inputs: (inputs[0] + 1,), required=True, role="inference")
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        for _ in range(2):
            again([torch.zeros(2), "a word"])
    assert raised.value.code == "E0713" and "input 1 is no tensor but a str" in raised.value.message


def test_required_recordings_say_why_they_cannot_be() -> None:
    x = torch.ones(3)
    run = recorder(lambda inputs: (inputs[0] + inputs[1],), required=True, role="inference")
    for _ in range(5):
        run([x, 2])
    assert run.replayed == 4
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        run([x, 3])
    assert raised.value.code == "E0713" and "from [2] to [3]" in raised.value.message and "dynamic=False" in str(raised.value.help)
    run = recorder(lambda inputs: (inputs[0] * inputs[1],), static=(1,), required=True)
    for _ in range(5):
        run([x, x])
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        run([x, torch.ones(3)])
    assert raised.value.code == "E0713" and "input 1 lay elsewhere" in raised.value.message
    # However many results are held.
    held = [run([x, x]) for _ in range(2 * recorded.INSTANCES)]
    assert run.said().instances == 2 * recorded.INSTANCES and len(held) == 2 * recorded.INSTANCES


def test_required_recordings_are_refused_before_anything_runs() -> None:
    with pytest.raises(Exception, match=r"error\[E0713\]: the inference graph .* was to be recorded, and cannot be: its tensors are not on a GPU"):
        compiled(lambda x: x.exp() + 1, options={"cudagraphs": "require"})(torch.ones(3))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def test_training_steps_are_recorded(recording: list[Recorder]) -> None:
    torch.manual_seed(0)
    mine = model()
    theirs = copy.deepcopy(mine)
    fast = compiled(mine, options={"mode": "reduce-overhead", "cudagraphs": "require"})
    steps = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (mine, theirs)]
    for _ in range(7):
        x = torch.randn(5, 8)
        for step, net, call in zip(steps, (mine, theirs), (fast, theirs), strict=True):
            step.zero_grad()
            call(x).square().mean().backward()
            step.step()
        torch.testing.assert_close(list(mine.parameters()), list(theirs.parameters()))
        torch.testing.assert_close(list(mine.buffers()), list(theirs.buffers()))
    forward, backward = (next(run for run in recording if run.facts.role == role) for role in ("forward", "backward"))
    # Parameters and what the forward keeps are never copied.
    assert forward.replayed == 6 and forward.said().copied_inputs == 1 and forward.recorded == 1, forward.said()
    assert backward.replayed >= 5 and backward.said().copied_inputs <= 1, backward.said()
    said = oxyfuel.recordings()
    assert any("forward: 6 of 7 calls launched as one" in str(graph) for graph in said)


def test_gradients_accumulate_and_zeros_stay_where_they_are(recording: list[Recorder]) -> None:
    for to_none in (True, False):
        torch._dynamo.reset()
        mine = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        theirs = copy.deepcopy(mine)
        fast = compiled(mine, options={"mode": "reduce-overhead"})
        for _ in range(4):
            for net in (mine, theirs):
                net.zero_grad(set_to_none=to_none)
            for _ in range(3):
                x = torch.randn(3, 4)
                for call in (fast, theirs):
                    call(x).sum().backward()
                torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
    assert all(run.replayed for run in recording) and len(recording) == 4


def test_two_forwards_that_live_at_once_and_a_backward_that_runs_twice(recording: list[Recorder]) -> None:
    mine = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    theirs = copy.deepcopy(mine)
    fast = compiled(mine, options={"mode": "reduce-overhead"})
    for turn in range(6):
        a, b = torch.randn(3, 4), torch.randn(3, 4)
        for net, call in ((mine, fast), (theirs, theirs)):
            net.zero_grad()
            one, two = call(a), call(b)
            # Backwards, and one of them twice.
            (two * 2).sum().backward(retain_graph=turn % 2 == 0)
            if turn % 2 == 0:
                (two * 2).sum().backward()
            one.sum().backward()
        torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
        torch.testing.assert_close((one, two), (theirs(a), theirs(b)))
    assert all(run.refused is None and run.replayed > 5 for run in recording), oxyfuel.recordings()


@torch.library.custom_op("oxyfuel_tests::recorded_twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(lambda x: torch.empty_like(x))


def test_results_of_a_user_s_kernel_that_are_held_stay(recording: list[Recorder]) -> None:
    """Its result is the call's, and no kernel of ours has written it."""
    fast = compiled(lambda x: (twice(x + 1), twice(x)), options={"mode": "reduce-overhead"})
    x, held = torch.zeros(6), []
    with torch.no_grad():
        for number in range(4):
            # It lies where it lay: nothing has to be copied.
            x.fill_(number)
            held.append(fast(x))
            assert [(a.tolist(), b.tolist()) for a, b in held] == [([2.0 * n + 2] * 6, [2.0 * n] * 6) for n in range(number + 1)]
        (run,) = recording
        # One call as it is; each of the others in memory of its own.
        assert (run.replayed, run.said().instances, run.said().copied_inputs) == (3, 3, 0)
        assert len({tensor.data_ptr() for pair in held for tensor in pair}) == 8
        places = [[tensor.data_ptr() for tensor in pair] for pair in held]
        view = held[1][0][2:]
        del held
        for number in (7, 8):
            x.fill_(number)
            a, b = fast(x)
            assert a.tolist() == [2.0 * number + 2] * 6 and b.tolist() == [2.0 * number] * 6 and [a.data_ptr(), b.data_ptr()] in places[2:]
        assert view.tolist() == [4.0] * 4 and run.recorded == 3


def test_dropout_draws_anew_and_as_without_recordings(recording: list[Recorder]) -> None:
    def drawn(mode: str) -> list[torch.Tensor]:
        torch._dynamo.reset()
        fast = compiled(lambda x: F.dropout(x * 2, 0.5) + 1, options={"mode": mode})
        x = torch.ones(64, requires_grad=True)
        torch.manual_seed(5)
        found = []
        for _ in range(5):
            y = fast(x)
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert torch.equal(grad != 0, y != 1)
            found.append(y.detach().clone())
            del y, grad
        return found

    recorded_ones, plain = drawn("reduce-overhead"), drawn("default")
    assert len({tuple(x.tolist()) for x in recorded_ones}) == 5
    assert all(map(torch.equal, recorded_ones, plain))
    assert [run.replayed for run in recording if run.facts.role == "forward"] == [4]


def test_an_explanation_says_what_is_launched_as_one(recording: list[Recorder]) -> None:
    f = lambda x: torch.softmax(x @ x, -1)  # noqa: E731
    said = oxyfuel.explain(f, torch.ones(3, 3), mode="reduce-overhead")
    (graph,) = said.graphs
    assert graph.recording is not None and graph.recording.refused is None
    assert "it is the first call" in str(said) and '"refused": null' in said.to_json()
    assert said.recorded is not None and (said.recorded.steps, said.recorded.recorded, said.recorded.segments, said.recorded.outside) == (2, 2, 1, [])
    assert "\nrecorded: 2 of 2 steps in 1 segment, each launched as one from its second call on\n" in str(said)
    assert json.loads(said.to_json())["recorded"] == {"steps": 2, "recorded": 2, "segments": 1, "outside": []}
    plain = oxyfuel.explain(f, torch.ones(3, 3), mode="default")
    assert plain.graphs[0].recording is None and plain.recorded is None and "recorded: " not in str(plain)


def test_an_explanation_says_why_steps_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def explained(f: Any, **options: Any) -> oxyfuel.Explanation:
        return oxyfuel.explain(f, torch.ones(3, 3), options={"mode": "reduce-overhead", **options})

    f = lambda x: torch.softmax(x @ x, -1)  # noqa: E731
    # Of a machine without a GPU, and of graphs of a GPU's.
    facts = made._facts
    reasons = {"its tensors are not on a GPU": {}, "it has 2 steps, which take less time": {}, "`launch_blocking` waits": {"launch_blocking": True}}
    for reason, options in reasons.items():
        said = explained(f, **options)
        assert said.recorded is not None and (said.recorded.steps, said.recorded.recorded, said.recorded.segments) == (2, 0, 0)
        assert [(one.graph, one.reason.startswith(reason)) for one in said.recorded.outside] == [("inference", True)] * 2, said.recorded
        assert [one.step for one in said.recorded.outside] == said.graphs[0].steps
        assert "\nrecorded: 0 of 2 steps\n" in str(said) and f"aten.mm.default: {reason}" in str(said)
        monkeypatch.setattr(made, "_facts", lambda gm, said, *rest: facts(gm, dataclasses.replace(said, device="cuda:0"), *rest))

    def broken(*args: Any) -> Any:
        raise RuntimeError("not today")

    monkeypatch.setattr(made, "describe", broken)
    with pytest.warns(oxyfuel.OxyfuelWarning):
        said = explained(lambda x: (x * 2).sin(), cudagraphs="auto")
    assert [(one.step, one.reason) for one in said.recorded.outside] == [(name, "the graph runs uncompiled") for name in ("mul", "sin")]  # type: ignore[union-attr]


def test_any_callable_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "Engine", Engine)
    ran = 0

    @oxyfuel.cuda_graph(warmup=2)
    def step(x: torch.Tensor, cache: dict[str, torch.Tensor], *, scale: float) -> Any:
        nonlocal ran
        ran += 1
        cache["sum"].add_(x)
        return {"y": x * scale, "n": 3, "sum": cache["sum"]}

    cache, other = {"sum": torch.zeros(4)}, torch.zeros(4)
    with torch.no_grad():
        for number in range(7):
            x = torch.full((4,), float(number))
            other += x
            said = step(x, cache, scale=2.0)
            assert torch.equal(said["y"], x * 2) and said["n"] == 3 and said["sum"] is cache["sum"] and torch.equal(other, cache["sum"])
            del said
        assert [(r.calls, r.replayed, r.copied_inputs) for r in step.recordings()] == [(6, 5, 1)] and step.__name__ == "step"
        # Another value, and another shape, are other kinds.
        assert step(x, cache, scale=3.0)["y"].tolist() == [18.0] * 4
        assert step(torch.ones(2), {"sum": torch.zeros(2)}, scale=2.0)["y"].tolist() == [2.0] * 2
        assert len(step._kinds) == 3


def test_a_callable_may_hold_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "Engine", Engine)
    net = model().eval()

    def gradients(x: torch.Tensor) -> Any:
        return [gradient.clone() for gradient in torch.autograd.grad(net(x).square().mean(), list(net.parameters()))]

    step = oxyfuel.cuda_graph(gradients)
    for _ in range(4):
        x = torch.randn(5, 8)
        torch.testing.assert_close(step(x), gradients(x))
    (said,) = step.recordings()
    assert said.replayed == 3 and torch.is_grad_enabled()


def test_memory_that_runs_out_in_a_callable_is_said_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "Engine", Engine)
    full = False

    def step(x: torch.Tensor) -> torch.Tensor:
        if full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return x * 2

    # In a call as it is, and in those that are recorded.
    for before in (0, 1):
        graph = oxyfuel.cuda_graph(step)
        for _ in range(before):
            assert graph(torch.ones(3)).tolist() == [2.0] * 3
        full = True
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError) as out:
                graph(torch.ones(3))
            assert out.value.code == "E0602" and "Tried to allocate 20.00 GiB" in str(out.value) and "help: " in str(out.value)  # type: ignore[attr-defined]
            assert str(out.value).count("error[E0602]") == 1 and "memory ran out in a call of " in str(out.value) and "step, which is to be recorded" in str(out.value)
        # There is memory again.
        full = False
        for _ in range(4):
            assert graph(torch.ones(3)).tolist() == [2.0] * 3
        (said,) = graph.recordings()
        assert said.refused is None and said.replayed >= 3, said


def test_calls_that_cannot_be_recorded_have_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    def code(function: Any, *args: Any, **how: Any) -> str:
        graph = oxyfuel.cuda_graph(function, **how)
        with pytest.raises(oxyfuel.OxyfuelError) as raised:
            for _ in range(3):
                graph(*args)
        return raised.value.code

    x = torch.ones(3)
    if not torch.cuda.is_available():
        assert code(torch.sin, x) == "E0702"
    monkeypatch.setattr(recorded, "Engine", Engine)
    assert code(torch.sin, torch.ones(3, device="meta")) == "E0103"
    assert code(torch.add, x, torch.ones(3, device="meta")) == "E0103"
    assert code(lambda x: x * 2, torch.ones(3, requires_grad=True)) == "E0109"
    assert code(lambda x, word: x, x, {1: {2}}) == "E0109"
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        oxyfuel.cuda_graph(torch.sin, warmup=0)
    assert raised.value.code == "E0109"
    graph = oxyfuel.cuda_graph(torch.sin, key=lambda x: x.dim())
    for _ in range(3):
        graph(x)
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        graph(torch.ones(4))
    assert raised.value.code == "E0101"

    def broken(run: Any) -> Any:
        raise RuntimeError("operation would make the legacy stream depend on a capturing blocking stream")

    monkeypatch.setattr(Engine, "record", lambda self, run: broken(run))
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        again = oxyfuel.cuda_graph(torch.sin)
        for _ in range(3):
            again(x)
    assert raised.value.code == "E0713" and "legacy stream" in raised.value.message


def test_segments_are_recorded_each_and_what_stands_between_them_is_not(recording: list[Recorder], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not the GPU's is here whatever an operator makes of f64."""
    from oxyfuel import segments

    is_f32 = lambda gm, node, device: all(value.dtype == torch.float32 for end in (node, *node.all_input_nodes) for value in segments._tensors(segments._value(gm, end)))  # noqa: E731
    monkeypatch.setattr(segments, "_is_on", is_f32)
    described = made.describe

    def beside(gm: Any, role: str) -> Any:
        doubles = [node for node in gm.graph.nodes if node.op == "call_function" and not is_f32(gm, node, None)]
        return dataclasses.replace(described(gm, role), beside=doubles[0].name if doubles else None)

    monkeypatch.setattr(made, "describe", beside)
    state, other = torch.zeros(4, 8), torch.zeros(4, 8)

    def f(x: torch.Tensor, state: torch.Tensor) -> Any:
        a = torch.softmax(x, -1) + 1
        b = (a.double() * 2 + 1).float()
        state.add_(b)
        return torch.softmax(b, -1) * a, b, x

    fast = compiled(f, options={"mode": "reduce-overhead"})
    held = []
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(4, 8)
            held.append((fast(x, state), f(x, other)))
            torch.testing.assert_close(state, other)
    for got, want in held:
        torch.testing.assert_close(got, want)
    assert [seen.facts.role for seen in recording] == ["inference segment 1 of 2", "inference segment 2 of 2"]
    assert all(seen.refused is None and seen.replayed >= 2 for seen in recording), [seen.said() for seen in recording]
    assert recording[1].facts.written and not recording[0].facts.written
    explained = oxyfuel.explain(f, torch.randn(4, 8), torch.zeros(4, 8), mode="reduce-overhead")
    between = explained.graphs[1]
    assert explained.recorded is not None and explained.recorded.segments == 2 and explained.recorded.outside
    assert [(one.graph, one.step) for one in explained.recorded.outside] == [("inference beside the segments", step) for step in between.steps]
    assert explained.recorded.steps == explained.recorded.recorded + len(between.steps) == sum(len(graph.steps) for graph in explained.graphs)
    assert "in 2 segments, each launched as one" in str(explained) and f"not recorded, inference beside the segments: {', '.join(between.steps)}: " in str(explained)
