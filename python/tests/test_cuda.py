"""CUDA tensors: our kernels run where they are, on torch's stream and in torch's memory; what is not ours is torch's own operator between them.

The pack for a machine with a GPU (`cargo xtask gpu-pack`) runs this file too, without pytest: functions take no arguments.
"""

from __future__ import annotations

import copy
import gc
from typing import Any

import oxyfuel
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from agree import agree, compiled, same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

if torch.cuda.is_available():
    import triton
    import triton.language as tl

    @triton.jit
    def gate_kernel(x, y, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        a, b = tl.load(x + at, mask=at < count), tl.load(y + at, mask=at < count)
        tl.store(out + at, a * tl.sigmoid(b), mask=at < count)

    def gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        gate_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out

    # What a kernel of a user's was given: its shape, its strides, and where it begins. Memory of torch's begins at multiples of 512 bytes.
    GIVEN: list[Any] = []

    @torch.library.custom_op("oxyfuel_cuda_tests::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        GIVEN.append((tuple(x.shape), x.stride(), x.data_ptr() % 512))
        return x * 2

    look.register_fake(lambda x: x * 2)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def targets(f: Any, *args: Any) -> list[str]:
    """What torch runs of the only graph of a function, which must have kernels of ours."""
    (graph,) = oxyfuel.explain(f, *args, options={"fallback": "error"}).graphs
    assert graph.cause is None and graph.kernels, graph
    assert graph.said is not None and graph.said["device"]["id"] == "cuda:0", graph.said
    return [call["target"] for call in graph.external]


def test_arithmetic_is_one_kernel() -> None:
    x = rand(64, 33)
    f = lambda x: ((x + 1).relu() * x).sum(-1)  # noqa: E731
    same(f, x)
    said = oxyfuel.explain(f, x, options={"fallback": "error"})
    (graph,) = said.graphs
    assert graph.cause is None and len(graph.kernels) == 1 and not graph.external
    assert "on cuda:0" in str(said)


def test_norms_softmax_and_reductions() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch._dynamo.reset()
        for shape in ((64, 128), (7, 1000), (3, 5, 4097), (1, 1)):
            x, w = rand(*shape, dtype=dtype), rand(shape[-1], dtype=dtype)
            same(lambda x: torch.softmax(x, -1), x)
            same(lambda x, w: F.layer_norm(x, x.shape[-1:], w), x, w)
            same(lambda x, w: F.rms_norm(x, x.shape[-1:], w), x, w)
            same(lambda x: (x.sum(0), x.amax(-1), x.argmax(-1)), x)
    same(lambda x: (x.mean(), x.std(), x.float().logsumexp(0)), rand(257, 129))


def test_strides_windows_and_addresses() -> None:
    x = rand(65, 66)
    for seen in (x, x.t(), x[1:, 1:], x[::2, ::3], x[:, 3], x[0].expand(5, 66), x.view(-1)[1:]):
        same(lambda x: (x * 2 + 1).sin(), seen)
        same(lambda x: torch.softmax(x + 1, 0), seen)
    # Compiled for one that begins at a multiple of 16 bytes, called with ones that do not, and written to there.
    memory = rand(4097, dtype=torch.bfloat16)

    def written(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).sigmoid() + 1

    run = torch.compile(written, backend="oxyfuel", dynamic=False)
    for start in (0, 1, 0, 3):
        expected = memory[start : start + 4090].clone()
        seen = memory[start : start + 4090]
        torch.testing.assert_close(run(seen), written(expected))
        torch.testing.assert_close(seen, expected)


def test_index_scatter_scan_sort_and_joins() -> None:
    x, index = rand(33, 40), torch.randint(0, 33, (50,), device="cuda")
    same(lambda x, i: x[i] * 2, x, index)
    same(lambda x, i: F.embedding(i, x) + 1, x, index)
    same(lambda x, i: torch.zeros(33, 40, device="cuda").index_add(0, i, x[i]).round(decimals=3), x, index)
    same(lambda x: (x.cumsum(-1), torch.cat([x, x * 2], 1), F.pad(x, (1, 2)), x.t().contiguous()), x)
    same(lambda x: torch.sort(x, dim=-1, stable=True), x)
    same(lambda x: torch.topk(x, 3), x)
    same(lambda x: torch.arange(7, device="cuda") * torch.full((7,), 3, device="cuda") + x[0, :7].long(), x)


def test_many_inputs_and_many_results() -> None:
    tensors = [rand(64) for _ in range(150)]
    same(lambda *x: sum(x[1:], x[0]) * 2, *tensors)
    same(lambda *x: [t * 2 + 1 for t in x], *tensors)


def test_products_are_torch_s_and_what_is_around_them_is_ours() -> None:
    x, w, b = rand(64, 128), rand(96, 128), rand(96)
    f = lambda x, w, b: F.gelu(F.linear(x * 2, w, b)) + 1  # noqa: E731
    # The bias is added where the product is read.
    assert targets(f, x, w, b) == ["aten.mm.default"]
    close(compiled(f)(x, w, b), f(x, w, b))


def test_convolution_and_attention_are_torch_s() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).cuda().eval()
    x = rand(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-3, atol=1e-3)
    f = lambda q, k, v: F.scaled_dot_product_attention(q * 1.5, k, v, is_causal=True) + 1  # noqa: E731
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = (rand(2, 4, 64, 32, dtype=dtype).requires_grad_() for _ in range(3))
        got, want = compiled(f)(q, k, v), f(q, k, v)
        torch.testing.assert_close(got, want)
        gradients = [torch.autograd.grad(result.sum(), (q, k, v)) for result in (got, want)]
        torch.testing.assert_close(*gradients)


def test_attention_that_is_written_out_is_torch_s_fused_one() -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) * 0.125
        for m in mask:
            scores = scores + m if m.is_floating_point() else scores.masked_fill(m, float("-inf"))
        return torch.softmax(scores, -1) @ v + 1

    hidden = torch.rand(64, 64, device="cuda") < 0.3
    hidden[:, 0], hidden[5] = False, True
    for dtype in (torch.bfloat16, torch.float32):
        for mask in ([], [rand(64, 64, dtype=dtype)], [hidden]):
            torch._dynamo.reset()
            q, k, v = (rand(2, 4, 64, 32, dtype=dtype) for _ in range(3))
            (call,) = [target for target in targets(f, q, k, v, *mask) if "clone" not in target]
            assert call.startswith("aten._scaled_dot_product_")
            want = f(*(x.double() for x in (q, k, v)), *(m.double() if m.is_floating_point() else m for m in mask))
            bound = 2e-2 if dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(compiled(f)(q, k, v, *mask).double(), want, rtol=bound, atol=bound, equal_nan=True)


def test_attention_that_is_written_out_keeps_no_scores_in_training() -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / 8.0, -1) @ v + 1

    for dtype, bound in ((torch.bfloat16, 3e-2), (torch.float32, 1e-4)):
        leaves = [rand(2, 4, 1024, 64, dtype=dtype).requires_grad_() for _ in range(3)]
        fast = compiled(f)
        torch.autograd.grad(fast(*leaves).square().mean(), leaves)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        got = fast(*leaves)
        gradients = torch.autograd.grad(got.square().mean(), leaves)
        # Scores of one type would be 2 * 4 * 1024 * 1024 elements.
        assert torch.cuda.max_memory_allocated() - before < 2 * 4 * 1024 * 1024 * leaves[0].element_size()
        wide = [x.detach().double().requires_grad_() for x in leaves]
        want = torch.autograd.grad(f(*wide).square().mean(), wide)
        for a, b in zip(gradients, want, strict=True):
            assert (a.double() - b).norm() <= bound * b.norm()


def test_a_convolution_s_bias_is_added_by_the_kernel_that_reads_it() -> None:
    f = lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1))  # noqa: E731
    for dtype in (torch.bfloat16, torch.float32):
        x, w, b = rand(4, 64, 28, 28, dtype=dtype), rand(64, 64, 3, 3, dtype=dtype), rand(64, dtype=dtype)
        assert targets(f, x, w, b) == ["aten.convolution.default"]
        with torch.no_grad():
            got = compiled(f)(x, w, b)
            torch.testing.assert_close(got, f(x, w, b), rtol=2e-2, atol=2e-2)
            assert got.is_contiguous()


def test_a_block_is_trained() -> None:
    torch.manual_seed(1)
    model = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).cuda()
    other = copy.deepcopy(model)
    fast = compiled(model)
    steps = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, other)]
    for _ in range(3):
        x = rand(4, 16, 64)
        for step, net, run in zip(steps, (model, other), (fast, other), strict=True):
            step.zero_grad()
            run(x).square().mean().backward()
            step.step()
        torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in other.parameters()], rtol=1e-3, atol=1e-4)


def test_batch_normalisation_in_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    other = copy.deepcopy(model)
    fast = compiled(model)
    for _ in range(3):
        x = rand(4, 3, 8, 8)
        for net, run in ((model, fast), (other, other)):
            net.zero_grad()
            run(x).square().mean().backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in other.parameters()], rtol=1e-3, atol=1e-4)
        close(list(model.buffers()), list(other.buffers()))


def test_a_buffer_that_is_written() -> None:
    def f(state: torch.Tensor, x: torch.Tensor) -> Any:
        before = state * 2
        state.mul_(0.5).add_(x)
        part = state[1:]
        part.relu_()
        return before, state, part.sum()

    mine, theirs = (torch.ones(4, 3, device="cuda") for _ in range(2))
    fast = compiled(f)
    with torch.no_grad():
        for _ in range(3):
            x = rand(4, 3)
            got = fast(mine, x)
            close(got, f(theirs, x))
            assert got[1] is mine
            close(mine, theirs)


def test_on_both_sides() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = (x + 1).relu() * 2
        y.copy_(z)
        x.copy_(y * 3)
        return z, y + 1

    (x, a), (y, b) = ((torch.ones(5), torch.zeros(5, device="cuda")) for _ in range(2))
    with torch.no_grad():
        close(compiled(f)(x, a), f(y, b))
    close([x, a], [y, b])


def test_numbers_of_the_cpu_among_tensors_of_a_gpu() -> None:
    x, number = rand(4, 5), torch.tensor(2.5)
    f = lambda x, n: (torch.where(x > 0, x * n, torch.tensor(7.0)), n + 1, x - n)  # noqa: E731
    same(f, x, number)
    assert set(targets(lambda x, n: x * n + n, x, number)) == {"aten._to_copy.default"}


def test_sizes_that_change_and_sizes_that_depend_on_data() -> None:
    def f(x: torch.Tensor) -> Any:
        found = torch.masked_select(x, x > 0)
        return found * 2, found.shape[0], x.sum(0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = compiled(f, fullgraph=True, dynamic=True)
        for size in (3, 7, 300):
            x = rand(size, 4)
            got, want = fast(x), f(x)
            close(got, want)


def test_dropout_draws_eager_s_numbers_when_asked() -> None:
    x = torch.ones(1000, device="cuda")
    fast = compiled(lambda x: F.dropout(x, 0.5), options={"fallback_random": True})
    torch.manual_seed(3)
    got = fast(x)
    torch.manual_seed(3)
    agree(got, F.dropout(x, 0.5))


def test_dropout_is_repeatable_and_the_backward_knows_it() -> None:
    x = torch.ones(100_000, device="cuda", requires_grad=True)
    fast = compiled(lambda x: F.dropout(x * 3, 0.25))
    torch.manual_seed(3)
    first, second = fast(x), fast(x)
    torch.manual_seed(3)
    assert torch.equal(fast(x), first) and not torch.equal(first, second)
    assert abs((first == 0).float().mean().item() - 0.25) < 0.01
    first.sum().backward()
    close(x.grad, torch.where(first == 0, 0.0, 4.0))


def test_work_goes_to_the_stream_that_is_current() -> None:
    fast = compiled(lambda x: torch.softmax(x * 2, -1) @ x)
    x = rand(512, 512)
    want = torch.softmax(x * 2, -1) @ x
    fast(x)
    side = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(side):
            busy = rand(1024, 1024)
            for _ in range(5):
                busy = (busy @ busy).clamp(-1, 1)
            # Seen only by what waits for the line above, which is on this stream.
            y = x + busy[:512, :512] * 0
            got = fast(y)
        side.synchronize()
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_all_memory_is_torch_s_and_goes_back() -> None:
    x = rand(512, 1024)
    fast = compiled(lambda x: torch.softmax(x.cumsum(0) * 2, 0).sum(-1, keepdim=True) * x.cumsum(-1))
    fast(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    results = [fast(x) for _ in range(3)]
    assert torch.cuda.memory_allocated() == before + 3 * x.nbytes
    del results
    assert torch.cuda.memory_allocated() == before


def test_memory_that_runs_out_is_said_with_what_the_plan_needs_and_leaves_nothing() -> None:
    x = rand(1024, 1024)
    for options in ({}, {"mode": "reduce-overhead"}):
        torch._dynamo.reset()
        fast = compiled(lambda x: torch.softmax(x.repeat(64, 1).cumsum(0) * 2, 0) + 1, options=options)
        for _ in range(3):
            want = fast(x).clone()
        oxyfuel.trim()
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / torch.cuda.mem_get_info()[1])
        try:
            for _ in range(2):
                try:
                    fast(x)
                    raise AssertionError("memory was to run out")
                except torch.OutOfMemoryError as error:
                    said = str(error)
                    assert error.code == "E0602", said  # type: ignore[attr-defined]
                    assert "graph needs " in said and " bytes of cuda:0 are free" in said
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
        close(fast(x), want)


def test_memory_that_runs_out_in_a_recorded_callable_has_its_code_and_leaves_nothing() -> None:
    x = rand(1024, 1024)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.repeat(64, 1).cumsum(0) * 2, 0) + 1

    want = function(x)
    # In a call as it is, and in the one that is recorded.
    for calls in (0, 1):
        graph = oxyfuel.cuda_graph(function)
        for _ in range(calls):
            close(graph(x), want)
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / torch.cuda.mem_get_info()[1])
        try:
            for _ in range(2):
                try:
                    graph(x)
                    raise AssertionError("memory was to run out")
                except torch.OutOfMemoryError as error:
                    said = str(error)
                    assert error.code == "E0602", said  # type: ignore[attr-defined]
                    assert "memory ran out in a call of " in said and " bytes of cuda:0 are free" in said
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
        for _ in range(4):
            close(graph(x), want)
        (recording,) = graph.recordings()
        assert recording.refused is None and recording.replayed >= 3, recording


def test_a_summary_of_a_gpu_s_memory_has_ours_and_torch_s() -> None:
    x = rand(1 << 20)
    fast = compiled(lambda x: x.exp() + 1)
    y = fast(x)
    text = oxyfuel.memory_summary()

    def ours(text: str) -> list[str]:
        # Other programs of the machine change what is free.
        return [line for line in text.splitlines() if not line.strip().startswith("free")]

    named = [oxyfuel.memory_summary(name) for name in ("cuda", 0, torch.device("cuda", 0))]
    assert all(ours(same) == ours(text) for same in named), (text, named)
    assert "cuda:0" in text and torch.cuda.get_device_name() in text
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert f"{torch.cuda.memory_allocated() / (1 << 20):.1f} MiB" in lines["torch's,"], text
    assert "kept for reuse" in text and "free" in text
    del y


def recorders(f: Any) -> list[Any]:
    """Compiles and keeps what records its calls."""
    from oxyfuel import compiled as made

    found: list[Any] = []

    class Seen(made.Recorder):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    made.Recorder, before = Seen, made.Recorder
    try:
        f()
    finally:
        made.Recorder = before
    return found


def test_calls_are_recorded_with_torch_s_operators_in_them() -> None:
    layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64)).cuda()
    fast = compiled(layers, options={"mode": "reduce-overhead"})
    with torch.no_grad():
        (seen,) = recorders(lambda: fast(rand(8, 64)))
        results = []
        for _ in range(6):
            x = rand(8, 64)
            results.append((fast(x), layers(x)))
        # Nobody's result was written over by a later call.
        for got, want in results:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert seen.refused is None and seen.replayed >= 3, (seen.refused, seen.replayed)
        # The input alone is copied; parameters stay where they are.
        assert seen.said().copied_inputs == 1, seen.said()
        # Parameters that change where they are are seen, and those that move are followed.
        layers[0].weight.mul_(2)
        x = rand(8, 64)
        torch.testing.assert_close(fast(x), layers(x), rtol=1e-4, atol=1e-4)
        layers[0].weight.data = layers[0].weight.data.clone() * 3
        for _ in range(4):
            torch.testing.assert_close(fast(x), layers(x), rtol=1e-4, atol=1e-4)


def test_recorded_calls_write_draw_and_change_their_sizes() -> None:
    state, other = torch.zeros(100, device="cuda"), torch.zeros(100, device="cuda")

    def f(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return torch.softmax(state.cumsum(0), 0) @ (state * 2).relu().view(-1, 1) @ x.view(1, -1)

    fast = compiled(f, options={"mode": "reduce-overhead"})
    with torch.no_grad():
        for _ in range(6):
            x = rand(100)
            close(fast(state, x), f(other, x))
            close(state, other)
        drop = compiled(lambda x: F.dropout(x @ x @ x @ x, 0.5) @ x, options={"mode": "reduce-overhead"})
        x = torch.ones(100, 100, device="cuda")
        drawn = [drop(x) for _ in range(5)]
        assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
        soft = lambda x: torch.softmax(x @ x.t() * 2, -1).sum(0) @ x @ x.t() * 2  # noqa: E731
        sized = compiled(soft, options={"mode": "reduce-overhead"}, dynamic=True)
        (seen,) = recorders(lambda: sized(rand(4, 33)))
        for rows in (3, 5, 3, 3, 5, 5, 3):
            x = rand(rows, 33)
            torch.testing.assert_close(sized(x), soft(x), rtol=1e-3, atol=1e-3)
        assert seen.replayed >= 2, seen.refused


def test_recorded_steps_that_need_nothing_of_each_other_run_at_once() -> None:
    # Sizes at which a step takes long enough to meet the others.
    width = 1024
    names = ("q", "k", "v", "gate", "up", "down")
    weights = {name: rand(width, width) / width**0.5 for name in names}
    here, there, eager = (torch.zeros(1, device="cuda") for _ in range(3))

    def layer(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
        q, k, v = (torch.tanh(F.layer_norm(x, (width,)) @ w[name]) for name in ("q", "k", "v"))
        x = x + F.scaled_dot_product_attention(q.view(1, 8, -1, 128), k.view(1, 8, -1, 128), v.view(1, 8, -1, 128)).reshape(x.shape)
        return x + (F.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"].t().contiguous().t()

    def f(x: torch.Tensor, count: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
        for _ in range(4):
            x = layer(x, w)
            count += x.abs().amax()
        return x

    options = {"mode": "reduce-overhead", "cudagraphs": "require"}
    fast, line = compiled(f, options=options), compiled(f, options={**options, "cudagraph_branches": False})
    with torch.no_grad():
        for number in range(40):
            x = rand(256, width)
            if number % 10 == 9:
                weights["v"].mul_(0.9)
            got = fast(x, here, weights)
            torch.testing.assert_close(got, line(x, there, weights), rtol=0, atol=0)
            torch.testing.assert_close(here, there, rtol=0, atol=0)
            torch.testing.assert_close(got, f(x, eager, weights), rtol=1e-3, atol=1e-3)
            del got


def test_what_cannot_be_recorded_runs_step_by_step() -> None:
    fast = compiled(lambda x: (x.exp().sum(), x.cpu() * 2), options={"mode": "reduce-overhead"})
    few = compiled(lambda x: x * 2 + 1, options={"mode": "reduce-overhead"})
    x = torch.eye(2000, device="cuda")
    # What of it is the GPU's is a segment, and a short one.
    runs = (fast, "steps"), (few, "steps")
    for run, word in runs:
        (seen,) = recorders(lambda: run(x))
        for _ in range(4):
            run(x)
        assert seen.replayed == 0 and word in seen.refused, seen.refused
    close(fast(x)[1], x.cpu() * 2)


def test_graphs_are_recorded_in_segments_around_the_cpu() -> None:
    w, state, other = rand(64, 64) / 8, torch.zeros(16, 64, device="cuda"), torch.zeros(16, 64, device="cuda")

    def f(x: torch.Tensor, state: torch.Tensor, n: torch.Tensor) -> Any:
        a = torch.softmax(x @ w, -1) @ w @ w * n
        b = (a.cpu() * 2 + 1).cuda()
        state.add_(b)
        return torch.softmax(b @ w, -1) @ w @ w + a, b

    fast = compiled(f, options={"mode": "reduce-overhead"})
    number = torch.tensor(1.5)
    with torch.no_grad():
        seen = recorders(lambda: fast(rand(16, 64), state, number))
        state.zero_()
        assert len(seen) == 2 and [recorder.facts.role for recorder in seen] == ["inference segment 1 of 2", "inference segment 2 of 2"]
        held = []
        for _ in range(6):
            x = rand(16, 64)
            held.append((fast(x, state, number), f(x, other, number)))
            close(state, other)
        for got, want in held:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert all(recorder.refused is None and recorder.replayed >= 2 for recorder in seen), [recorder.said() for recorder in seen]
    said = str(oxyfuel.explain(f, rand(16, 64), state, number, mode="reduce-overhead", options=None))
    assert "segment 2 of 2" in said and "aten.add.Tensor" in said, said


def test_of_elements_for_one_place_the_last_stays() -> None:
    places = torch.randint(0, 999, (100_000,))
    single, rows = torch.randn(100_000), torch.randn(100_000, 7)
    last = torch.zeros(1000, dtype=torch.int64).scatter_reduce(0, places, torch.arange(100_000), "amax")
    there = torch.zeros(1000, dtype=torch.bool)
    there[places] = True
    want_single = torch.where(there, single[last], torch.tensor(5.0))
    want_rows = torch.where(there[:, None], rows[last], torch.tensor(5.0))
    full = torch.full((1000,), 5.0, device="cuda"), torch.full((1000, 7), 5.0, device="cuda")
    put = lambda x, y, i: x.index_put((i,), y)  # noqa: E731
    for options in ({"deterministic": True}, {"deterministic": True, "mode": "reduce-overhead"}):
        # Sizes that are symbols are not known to fit, and the call is torch's.
        ordered = compiled(put, options=options, dynamic=False)
        for _ in range(3):
            assert torch.equal(ordered(full[0], single.cuda(), places.cuda()).cpu(), want_single)
            assert torch.equal(ordered(full[1], rows.cuda(), places.cuda()).cpu(), want_rows)
    scattered = compiled(lambda x, y, i: x.scatter(0, i, y))
    assert torch.equal(scattered(full[0], single.cuda(), places.cuda()).cpu(), want_single)
    wide = places.view(100, 1000)
    for dim in (0, 1):
        x, y = torch.randn(1000, 1000), torch.randn(100, 1000)
        got = compiled(lambda x, y, i, dim=dim: x.scatter(dim, i, y))(x.cuda(), y.cuda(), wide.cuda())
        assert torch.equal(got.cpu(), x.scatter(dim, wide, y))
    # Where the order is open, it is one of them.
    anyone = compiled(put)(full[0], single.cuda(), places.cuda()).cpu()
    assert torch.equal(anyone[~there], want_single[~there]) and torch.isin(anyone[there], single).all()


def test_running_sums_of_long_rows() -> None:
    for shape in ((3_000_001,), (2, 500_000), (40, 20_000)):
        x = rand(*shape)
        got = compiled(lambda x: (x * 0.5).cumsum(-1) + 1)(x)
        want = (x.double() * 0.5).cumsum(-1) + 1
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-3)
    n = torch.randint(-9, 9, (1_000_000,), device="cuda")
    assert torch.equal(compiled(lambda n: n.cumsum(0))(n), n.cumsum(0))
    logits = torch.rand(200_000, device="cuda") * 0.02 + 0.99
    close(compiled(lambda x: x.cumprod(0))(logits), logits.double().cumprod(0).float())


def test_large_results_and_inputs_that_stay_are_not_copied() -> None:
    large = compiled(lambda x: (x @ x @ x @ x @ x) * 2, options={"mode": "reduce-overhead"})
    x = torch.eye(2000, device="cuda")
    (seen,) = recorders(lambda: large(x))
    for number in range(5):
        x.mul_(2)
        close(large(x), torch.eye(2000, device="cuda") * 2.0 ** (5 * (number + 1) + 1))
    said = seen.said()
    assert said.replayed == 5 and said.copied_inputs == 0, said


def trained(fast: Any, mine: nn.Module, theirs: nn.Module, *, turns: int = 6, accumulate: int = 1) -> None:
    steps = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (mine, theirs)]
    for _ in range(turns):
        for step in steps:
            step.zero_grad()
        for _ in range(accumulate):
            x = rand(8, 64)
            for run in (fast, theirs):
                run(x).square().mean().backward()
        torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(list(mine.buffers()), list(theirs.buffers()), rtol=1e-4, atol=1e-5)
        for step in steps:
            step.step()


def layers() -> tuple[nn.Module, nn.Module]:
    mine = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)).cuda()
    return mine, copy.deepcopy(mine)


def test_training_steps_are_recorded() -> None:
    for accumulate in (1, 3):
        torch._dynamo.reset()
        mine, theirs = layers()
        fast = compiled(mine, options={"cudagraphs": "require"})
        seen = recorders(lambda: trained(fast, mine, theirs, accumulate=accumulate))
        roles = {run.facts.role: run.said() for run in seen}
        assert roles["forward"].replayed >= 5 and roles["backward"].replayed >= 4, roles
        assert roles["forward"].copied_inputs <= 1 and roles["backward"].copied_inputs <= 1, roles


def test_an_optimiser_s_step_shares_launches_and_is_right() -> None:
    shapes = [(640, 384), (384,), (1000,), (384, 70), (640, 384), (5,), (3072, 768), (768,)]
    first = [rand(*shape) for shape in shapes]
    gradients = [[rand(*shape) for shape in shapes] for _ in range(3)]

    def stepped(mode: str | None) -> list[torch.Tensor]:
        parameters = [nn.Parameter(x.clone()) for x in first]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimiser = torch.optim.AdamW(parameters, lr=1e-2, foreach=True, capturable=True)
        step = compiled(optimiser.step, options={"mode": mode}) if mode else optimiser.step
        # The first call is compiled, the second recorded, and later ones are launched as one.
        for number in range(7):
            for parameter, gradient in zip(parameters, gradients[number % 3], strict=True):
                parameter.grad.copy_(gradient)
            step()
        return [parameter.detach() for parameter in parameters]

    want = stepped(None)
    for mode in ("default", "reduce-overhead"):
        for a, b in zip(stepped(mode), want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_two_forwards_before_their_backwards() -> None:
    mine, theirs = layers()
    fast = compiled(mine, options={"mode": "reduce-overhead"})
    for _ in range(6):
        a, b = rand(8, 64), rand(8, 64)
        for net, run in ((mine, fast), (theirs, theirs)):
            net.zero_grad()
            one, two = run(a), run(b)
            one.square().sum().backward()
            two.sum().backward()
        torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], rtol=1e-3, atol=1e-3)


def test_recorded_dropout_draws_what_it_draws_step_by_step() -> None:
    found = []
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        fast = compiled(lambda x: F.dropout(torch.softmax(x @ x, -1).cumsum(0) @ x, 0.5) @ x, options={"mode": mode})
        x = torch.eye(64, device="cuda").requires_grad_()
        torch.manual_seed(7)
        drawn = []
        for _ in range(5):
            y = fast(x)
            y.sum().backward()
            drawn.append((y.detach().clone(), x.grad.clone()))
            x.grad = None
        found.append(drawn)
    torch.testing.assert_close(found[0], found[1])
    assert not torch.equal(found[1][3][0], found[1][4][0])


def test_the_bytes_of_recordings_are_limited() -> None:
    soft = lambda x: torch.softmax(x @ x.t() * 2, -1).sum(0) @ x @ x.t() * 2  # noqa: E731
    sized = compiled(soft, options={"mode": "reduce-overhead", "cudagraph_memory_limit": 90 << 20}, dynamic=True)
    with torch.no_grad():
        (seen,) = recorders(lambda: sized(rand(4, 33)))
        for rows in (3, 3, 3, 5, 5, 5, 7, 7, 7, 3, 3, 9, 9):
            x = rand(rows, 33)
            torch.testing.assert_close(sized(x), soft(x), rtol=1e-3, atol=1e-3)
    said = seen.said()
    assert said.replayed >= 6 and said.bytes <= 90 << 20 and said.recorded > said.instances, said


def test_required_recordings_say_why_not() -> None:
    fast = compiled(lambda x: x.exp().cpu() * 2, options={"cudagraphs": "require"})
    try:
        fast(rand(4))
    except Exception as error:
        assert "E0713" in str(error) and "GPU alone" in str(error)
    else:
        raise AssertionError("a graph with work on the CPU was taken")
    sized = compiled(lambda x: torch.softmax(x * 2, -1), options={"cudagraphs": "require"}, dynamic=True)
    x = rand(4, 8)
    for _ in range(4):
        close(sized(x), torch.softmax(x * 2, -1))
    try:
        sized(rand(5, 8))
    except oxyfuel.OxyfuelError as error:
        assert error.code == "E0713" and "sizes changed" in error.message
    else:
        raise AssertionError("other sizes were taken")


def test_any_callable_is_recorded() -> None:
    net, state = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)).cuda(), torch.zeros(4, 16, device="cuda")

    @oxyfuel.cuda_graph
    def step(x: torch.Tensor, state: torch.Tensor) -> Any:
        state.add_(net(x))
        return state * 2, x + 1

    other = state.clone()
    with torch.no_grad():
        held = []
        for _ in range(6):
            x = rand(4, 16)
            other += net(x)
            held.append((step(x, state), (other * 2, x + 1)))
        for got, want in held[:3]:
            close(got, want)
        (said,) = step.recordings()
        assert said.replayed >= 4 and said.copied_inputs == 1, said
    side = oxyfuel.cuda_graph(lambda x: x.sum().item() + x)
    try:
        for _ in range(3):
            side(rand(3))
    except oxyfuel.OxyfuelError as error:
        assert error.code == "E0713", error
    else:
        raise AssertionError("a call that waits for the GPU was recorded")
    # Nothing of what was recorded in vain is left.
    close(rand(3) * 0 + 1, torch.ones(3, device="cuda"))
    try:
        oxyfuel.cuda_graph(torch.add)(rand(3), torch.ones(3))
    except oxyfuel.OxyfuelError as error:
        assert error.code == "E0103"
    else:
        raise AssertionError("a tensor of the CPU was taken")


def test_a_recording_that_another_stream_breaks_is_refused_and_both_streams_work_on() -> None:
    side = torch.cuda.Stream()
    joins = False

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        if joins:
            torch.cuda.current_stream().wait_stream(side)
            return y + z
        return y

    def calls(count: int) -> None:
        fast = oxyfuel.cuda_graph(step)
        for _ in range(count):
            x = rand(64)
            got = fast(x)
            torch.cuda.synchronize()
            close(got, x * 4 + 1 if joins else x * 2)

    # The first call runs as it is; the second is recorded, and `side` is still a part of the recording when it ends.
    calls(1)
    try:
        calls(2)
    except oxyfuel.OxyfuelError as error:
        assert error.code == "E0713" and "unjoined" in error.message and "wait_stream" in str(error), error
    else:
        raise AssertionError("a recording was taken that another stream did not leave")
    # The streams, torch's memory and its random numbers work on, and what waits for the other stream is recorded.
    x = rand(64)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = x * 3
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    close(z, x * 3)
    joins = True
    calls(4)


def test_tf32_is_used_when_torch_is_told_to_between_calls_and_in_recorded_ones() -> None:
    a, b, c = rand(256, 512), rand(512, 384), rand(384)

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(a @ b + c) @ b.t()) * 2

    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32
    exact = function(a.double(), b.double(), c.double())

    def error(y: torch.Tensor) -> float:
        return float((y.double() - exact).norm() / exact.norm())

    try:
        for options in ({}, {"mode": "reduce-overhead"}):
            torch._dynamo.reset()
            fast = compiled(function, options=options)
            # Each way several times, so that calls are recorded, and back again, where a recording of the other kind is there.
            for allowed in (False, True, False, True):
                settings.allow_tf32 = allowed
                for _ in range(4):
                    y = fast(a, b, c)
                    assert (error(y) > 1e-5) == allowed, (options, allowed, error(y))
                    torch.testing.assert_close(y, function(a, b, c), rtol=1e-2 if allowed else 1e-4, atol=1e-1 if allowed else 1e-3)
                    del y
    finally:
        settings.allow_tf32 = before


def test_recordings_do_what_torch_is_told_of_tf32_at_the_call() -> None:
    x, w, a, b = rand(8, 64, 32, 32), rand(64, 64, 3, 3), rand(256, 512), rand(512, 256)

    def folded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.conv2d(torch.relu(F.conv2d(x, w, padding=1)), w, padding=1)) * 2

    def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a @ b) @ b.t()

    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    # Dynamo compiles again for products; for convolutions it does not.
    ways = [
        (compiled(folded, options={"cudagraphs": "require"}), folded, (x, w), cudnn, cudnn.conv),
        (oxyfuel.cuda_graph(folded), folded, (x, w), cudnn, cudnn.conv),
        (oxyfuel.cuda_graph(multiplied), multiplied, (a, b), cuda, cuda),
    ]
    try:
        with torch.no_grad():
            exact = [function(*(t.double() for t in given)) for _, function, given, _, _ in ways]

            def seen(number: int, allowed: bool) -> None:
                fast, function, given, _, _ = ways[number]
                for _ in range(4):
                    got, want = fast(*given), function(*given)
                    for y in (got, want):
                        error = float((y.double() - exact[number]).norm() / exact[number].norm())
                        assert (error > 1e-5) == allowed, (number, y is got, allowed, error)
                    del y, got

            for number, (fast, _, _, old, _) in enumerate(ways):
                for allowed in (False, True, False, True):
                    old.allow_tf32 = allowed
                    seen(number, allowed)
                if number:
                    (said,) = fast.recordings()
                    assert (said.calls, said.recorded, said.replayed) == (16, 2, 14), said
            # By the newer names, after which torch refuses to be asked by the older ones.
            for number, (_, _, _, _, new) in enumerate(ways[1:], 1):
                for precision in ("ieee", "tf32"):
                    new.fp32_precision = precision
                    seen(number, precision == "tf32")
    finally:
        cuda.fp32_precision = cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "none"
        cuda.allow_tf32, cudnn.allow_tf32 = before


def test_a_callable_is_recorded_for_each_autocast_and_casts_its_parameters_anew() -> None:
    net, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda(), rand(8, 64)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return net(x).detach()

    step = oxyfuel.cuda_graph(forward)
    for _ in range(2):
        for dtype in (None, torch.bfloat16, torch.float16):
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                # What autocast keeps to its end is no part of a recording.
                forward(x)
                for _ in range(3):
                    y = step(x)
                    assert y.dtype == (dtype or torch.float32)
                    torch.testing.assert_close(y, forward(x), rtol=1e-2, atol=1e-2)
                    del y
        with torch.no_grad():
            net[0].weight.mul_(3)
    assert [(said.recorded, said.replayed) for said in step.recordings()] == [(1, 5)] * 3, step.recordings()


def test_a_backward_is_a_part_of_a_recorded_callable() -> None:
    mine, theirs = layers()

    def gradients(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for parameter in net.parameters():
            parameter.grad.zero_()
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    for net in (mine, theirs):
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
    step = oxyfuel.cuda_graph(lambda x: gradients(mine, x))
    for _ in range(5):
        x = rand(8, 64)
        torch.testing.assert_close(step(x), gradients(theirs, x), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()], rtol=1e-3, atol=1e-4)
    (said,) = step.recordings()
    assert said.replayed == 4, said


def test_products_whose_rows_begin_at_odd_places() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) @ w.t()

    # Whole numbers so small that every sum is exact in half precision, whatever its order and its parts.
    x, w = (torch.randint(-1, 2, shape, device="cuda").bfloat16() for shape in ((1024, 768), (5003, 768)))
    want = f(x, w)
    got = compiled(f)(x, w)
    assert torch.equal(got, want) and got.stride() == want.stride()
    for strides, row in (("auto", 5008), ("eager", 5003)):
        fast = compiled(f, options={"mode": "reduce-overhead", "result_strides": strides})
        for _ in range(3):
            with torch.no_grad():
                got = fast(x, w)
            assert torch.equal(got, want) and got.stride() == (row, 1)


def test_modes_run() -> None:
    x = rand(100, 50)
    f = lambda x: torch.softmax(x.sin() + 1, 0)  # noqa: E731
    for mode in ("default", "reduce-overhead", "max-autotune"):
        fast = compiled(f, options={"mode": mode})
        for _ in range(4):
            x = rand(100, 50)
            close(fast(x), f(x))


def test_a_plan_is_stored_and_loaded() -> None:
    import pickle

    from oxyfuel.compiled import compile_graph
    from oxyfuel.options import Options
    from torch.fx.experimental.proxy_tensor import make_fx

    x = rand(30, 40)
    gm = make_fx(lambda x: (torch.softmax(x, -1) * 2,))(x)
    code = compile_graph(gm, Options(), "inference")
    again = pickle.loads(pickle.dumps(code))
    close(again([x]), code([x]))
    try:
        again([x.cpu()])
    except oxyfuel.OxyfuelError as error:
        assert error.code == "E0103" and "cuda:0" in error.message
    else:
        raise AssertionError("a tensor of the CPU was taken")


def test_a_triton_kernel_makes_the_memory_that_it_writes() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(gate(x * 2, y)) + 1

    x, y = rand(300, 70), rand(300, 70)
    with torch.no_grad():
        (graph,) = oxyfuel.explain(f, x, y, options={"fallback": "error"}).graphs
        # Nothing fills it.
        assert [kernel["ops"] for kernel in graph.kernels] == [["mul"], ["relu", "add"]], graph
        for mode in ("default", "reduce-overhead"):
            fast = compiled(f, options={"mode": mode})
            for _ in range(4):
                x = rand(300, 70)
                close(fast(x, y), f(x, y))


def test_results_of_a_user_s_kernel_that_are_held_stay_and_nothing_is_copied() -> None:
    from torch.profiler import ProfilerActivity

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        # Written by the kernels alone.
        return gate(x * 2, y), look(y + 1)

    x, y = rand(300, 70), rand(300, 70)
    with torch.no_grad():
        fast = compiled(f, options={"cudagraphs": "require"})
        (seen,) = recorders(lambda: fast(x, y))
        held = []
        for _ in range(4):
            # It lies where it lay.
            x.normal_()
            held.append((fast(x, y), f(x, y)))
            for got, want in held:
                close(got, want)
        said = seen.said()
        assert said.replayed == said.instances == 4 and said.copied_inputs == 0, said
        assert len({tensor.data_ptr() for got, _ in held for tensor in got}) == 8
        last, want = held.pop()
        del held, got
        # Other recordings run as long as the last one's results are held.
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(3):
                other = fast(x, y)
                assert not {tensor.data_ptr() for tensor in other} & {tensor.data_ptr() for tensor in last}
                del other
            torch.cuda.synchronize()
        names = [row.key for row in profiler.key_averages()]
        assert any("gate_kernel" in name for name in names) and not any("memcpy" in name.lower() or "copy_kernel" in name for name in names), names
        close(last, want)
        assert seen.recorded == 4 and seen.replayed == 7, seen.said()


def test_kernels_of_a_user_s_are_given_memory_as_eager_s() -> None:
    def f(x: torch.Tensor, image: torch.Tensor) -> Any:
        a, b = torch.softmax(x, -1), (x + 1).exp()
        parts = [a, b, (x * 2).t(), torch.relu(x + 1)[:, 4:], x[1:], (x.bfloat16() * 3)[:, 1:], torch.cat([a, b], 1), image * 3, (a.cumsum(0) * b.cumsum(1)).cumsum(0), torch.sort(x, dim=1)[0], *(x * 4).chunk(2)]
        return [look(part) for part in parts], torch.cat([b, a])

    x, image = rand(33, 95), rand(2, 8, 16, 16).to(memory_format=torch.channels_last)
    with torch.no_grad():
        GIVEN.clear()
        f(x, image)
        want = sorted(GIVEN, key=str)
        assert sum(begins == 0 for _, _, begins in want) >= 7, want
        for options in ({}, {"cudagraphs": "require"}, {"contractions": "own"}):
            torch._dynamo.reset()
            fast = compiled(f, options=options)
            # Step by step, and while it is recorded; what is launched as one is what was recorded.
            for _ in range(2):
                GIVEN.clear()
                fast(x, image)
                assert sorted(GIVEN, key=str) == want, options


FAULT = """
import ctypes
import torch, oxyfuel
torch._functorch.config.enable_autograd_cache = False

def f(x, lost):
    y = torch.softmax(x, -1)
    # Of as many steps as a recording is worth.
    return torch.softmax((y @ y).relu() @ y, 0) @ y, lost.cumsum(0) * 2

class Memory:
    # Of the driver's own, which can be given back under a tensor.
    def __init__(self, bytes):
        self.driver, self.address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
        assert self.driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(bytes)) == 0
        self.__cuda_array_interface__ = dict(shape=(bytes // 4,), typestr="<f4", data=(self.address.value, False), version=3)
    def free(self):
        assert self.driver.cuMemFree_v2(self.address) == 0

x = torch.randn(256, 256, device="cuda")
memory = Memory(64 << 20)
lost = torch.as_tensor(memory, device="cuda").fill_(1)
fast = torch.compile(f, backend="oxyfuel", options={"fallback": "error", "mode": MODE})
with torch.no_grad():
    for _ in range(4):
        fast(x, lost)
        torch.cuda.synchronize()
    replayed = sum(recording.replayed for recording in oxyfuel.recordings())
    print("replayed", replayed, *oxyfuel.recordings())
    memory.free()
    # The call that faults, whose fault may be seen by whoever waits for it first, and the one after it.
    for call in range(2):
        try:
            fast(x, lost)
            torch.cuda.synchronize()
        except Exception as error:
            print("call", call, "code", getattr(error, "code", None))
            print(error)
            print("behind it", type(error.__cause__).__name__)
"""


def faulted(mode: str, **environment: str) -> str:
    """What a process says in which a kernel reads where nothing is: its GPU is lost, so it is another process."""
    import os
    import subprocess
    import sys
    from pathlib import Path

    folder = str(Path(oxyfuel.__file__).parent.parent)
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", FAULT.replace("MODE", repr(mode))], capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path, **environment}
    )
    return done.stdout + done.stderr


def test_a_kernel_that_faults_is_named_with_its_operators() -> None:
    for mode in ("default", "reduce-overhead"):
        said = faulted(mode, OXYFUEL_LAUNCH_BLOCKING="1")
        # Nothing is recorded then, and the call itself is the one that says it.
        known = "replayed 0" in said and "call 0 code E0712" in said and "in kernel k" in said and "(cumsum" in said and "start a new process" in said.lower()
        assert known, f"{mode}: {said[-2000:]}"


def test_a_kernel_that_faulted_is_among_those_that_the_next_call_names() -> None:
    for mode in ("default", "reduce-overhead"):
        said = faulted(mode)
        # Whoever waits for the call that faulted is given torch's error, unless a step of that call found the GPU lost already.
        _, _, last = said.partition("call 1 ")
        known = last.startswith("code E0712") and "in one of the kernels launched on cuda:0" in last and "or in work of others there" in last
        known = known and "(cumsum" in last and "OXYFUEL_LAUNCH_BLOCKING=1" in last and "start a new process" in last.lower()
        assert known, f"{mode}: {said[-3000:]}"
        if mode == "default":
            assert "replayed 0" in said and "launched as one" not in last, said[-3000:]
        else:
            assert "replayed 3" in said, said[-3000:]
            _, _, recording = last.partition("or in calls of the inference graph that were launched as one: ")
            assert "(cumsum" in recording, said[-3000:]


def test_a_gpu_that_is_not_there_has_its_code() -> None:
    from oxyfuel import _native
    from oxyfuel.describe import describe
    from oxyfuel.options import Options
    from torch.fx.experimental.proxy_tensor import make_fx

    said = describe(make_fx(lambda x: (x * 2 + 1,))(rand(4)), "inference")
    settings = Options().native([], 1, "cuda:99")
    asked = [
        lambda: _native.fingerprint(settings),
        lambda: _native.compile(said.text, settings, said.objects),
        lambda: oxyfuel.memory_summary("cuda:99"),
    ]
    for ask in asked:
        try:
            ask()
        except oxyfuel.OxyfuelError as error:
            count = torch.cuda.device_count()
            assert error.code == "E0702" and f"there is no device cuda:99; this machine has {count}" in error.message, error
        else:
            raise AssertionError("a GPU that is not there was found")
    # The process has the others still.
    x = rand(4)
    close(compiled(lambda x: x * 2 + 1)(x), x * 2 + 1)


def test_torch_s_profiler_counts_device_time_for_our_steps() -> None:
    from torch.profiler import ProfilerActivity

    x, w = rand(1024, 1024), rand(1024, 1024)
    fast = compiled(lambda x, w: (torch.softmax(x * 2, -1) @ w).relu() + 1)
    with torch.no_grad():
        fast(x, w)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(3):
                fast(x, w)
            torch.cuda.synchronize()
    rows = {row.key: row for row in profiler.key_averages()}
    steps = [row for name, row in rows.items() if name.startswith("oxyfuel::k")]
    (softmax,) = [row for row in steps if "_softmax" in row.key]
    assert softmax.count == 3 and softmax.device_time_total > 0, profiler.key_averages().table()
    assert "test_cuda.py:" in softmax.key
    (product,) = [row for name, row in rows.items() if name.startswith("oxyfuel::aten.mm.default")]
    assert product.device_time_total > 0 and rows["oxyfuel::inference"].device_time_total >= softmax.device_time_total


def test_a_profile_of_a_training_step_has_its_backward() -> None:
    model, _ = layers()
    for mode in ("default", "reduce-overhead"):
        fast = compiled(model, options={"mode": mode})
        for _ in range(4):
            fast(rand(8, 64)).square().mean().backward()
        with oxyfuel.profile() as seen:
            for _ in range(2):
                fast(rand(8, 64)).square().mean().backward()
        rows = {row["name"]: row for row in seen.rows()}
        # The backward runs on a thread of autograd's.
        assert rows["forward"]["calls"] == rows["backward"]["calls"] == 2, rows
        assert all(rows[name]["device_seconds"] > 0 for name in ("forward", "backward")) and seen.compile_seconds == 0
        assert 0 < seen.device_seconds <= seen.wall_seconds
        assert '"name":"cuda:0"' in seen.chrome_trace()
        # Recordings go on afterwards.
        fast(rand(8, 64)).square().mean().backward()


def test_tensors_of_two_devices_are_an_error_before_anything_runs() -> None:
    def f(state: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        return x * 2 + y

    state = torch.zeros(4, device="cuda")
    graphs = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return oxyfuel.backend(gm, inputs)

    # Dynamo tries each operator on fake tensors: no backend is asked for a graph that cannot be, so that the error is Dynamo's and has no code of ours.
    for fast in (compiled(f), torch.compile(f, backend=backend)):
        try:
            fast(state, rand(4), torch.ones(4))
        except Exception as error:
            assert "cuda:0" in str(error) and "cpu" in str(error), error
            assert not isinstance(error, oxyfuel.OxyfuelError), error
        else:
            raise AssertionError("tensors of two devices were added")
        assert state.abs().sum().item() == 0 and not graphs
    # A graph that was compiled for a GPU and is given a tensor of the CPU.
    from oxyfuel.compiled import compile_graph
    from oxyfuel.options import Options
    from torch.fx.experimental.proxy_tensor import make_fx

    def g(x: torch.Tensor, y: torch.Tensor) -> Any:
        y.copy_(x + y)
        return (y * 2,)

    x, y = rand(4), torch.zeros(4, device="cuda")
    code = compile_graph(make_fx(g)(x, y.clone()), Options(), "inference")
    try:
        code([x.cpu(), y])
    except oxyfuel.OxyfuelError as error:
        assert error.code == "E0103" and "cuda:0" in error.message, error
    else:
        raise AssertionError("a tensor of the CPU was taken")
    assert y.abs().sum().item() == 0
