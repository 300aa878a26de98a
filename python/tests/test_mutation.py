"""What a compiled function writes to its inputs is what eager writes, whatever their strides; a cache step moves the new rows alone."""

from __future__ import annotations

from collections.abc import Callable

import oxyfuel
import pytest
import torch

Make = Callable[[], list[torch.Tensor]]


def same(function: Callable[..., object], make: Make) -> None:
    """Runs eagerly and compiled on equal inputs; outputs, inputs and strides must agree."""
    compiled = torch.compile(function, backend="oxyfuel", options={"fallback": "error"})
    for _ in range(2):
        ours, theirs = make(), make()
        with torch.no_grad():
            got, want = compiled(*ours), function(*theirs)
        torch.testing.assert_close(ours, theirs)
        got = [got] if isinstance(got, torch.Tensor) else list(got or [])
        want = [want] if isinstance(want, torch.Tensor) else list(want or [])
        torch.testing.assert_close(got, want)
        assert [t.stride() for t in got] == [t.stride() for t in want]


def seeded(*shapes: tuple[int, ...]) -> Make:
    def make() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [torch.randn(shape) for shape in shapes]

    return make


def turned() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(6, 9).t(), torch.randn(9, 6)]


def holes() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(9, 20)[:, 2:14:2], torch.randn(9, 6)]


@pytest.mark.parametrize("make", [seeded((9, 6), (9, 6)), turned, holes])
def test_in_place_arithmetic(make: Make) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        x.mul_(2)
        return x.sum(0)

    same(f, make)


def test_swap() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    same(f, seeded((5, 7), (5, 7)))


def test_transposed_over_itself() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.t().clone() + x)
        return x * 2

    same(f, seeded((8, 8)))


def test_slices_of_slices() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[1:3, :, 2] = y
        x[:, 0] += 1
        x[2, 1:] = x[0, 1:]
        return x.amax(-1)

    same(f, seeded((4, 3, 5), (2, 3)))


def test_returned_input_and_view_of_it() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        before = x + 0
        x.relu_()
        return x, x[1:], before

    same(f, seeded((4, 6)))


def test_write_where_an_index_says() -> None:
    def make() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [torch.randn(2, 8, 4), torch.randn(2, 3, 4), torch.tensor([6, -7, 3])]

    def f(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x[:, at] = y
        return x.sum(1)

    same(f, make)


def test_a_write_to_a_slice_moves_the_slice_alone() -> None:
    def f(x: torch.Tensor) -> None:
        x[..., -1] *= 2
        x[3] = 0

    same(f, seeded((8, 64, 32)))
    (graph,) = oxyfuel.explain(f, *seeded((8, 64, 32))()).graphs
    assert graph.kernel_bytes <= 4 * (2 * 8 * 64 + 64 * 32), str(graph)


def test_channels_last_stays() -> None:
    def make() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last)]

    same(lambda x: (torch.relu(x) + 1, x.permute(0, 2, 3, 1), x[:, 1:3] * 2), make)


def doubled(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + b) * 2


def into(out: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    return out.copy_(doubled(*inputs))


def test_a_given_output_is_written_once() -> None:
    inputs = seeded((40, 50), (40, 50), (50,))()
    report = oxyfuel.explain(into, *inputs)
    kernels = [kernel for graph in report.graphs for kernel in graph.kernels]
    assert [kernel["bytes_written"] for kernel in kernels] == [inputs[0].nbytes], report
    assert not [call for graph in report.graphs for call in graph.external], report
    torch._dynamo.reset()
    compiled = torch.compile(into, backend="oxyfuel", options={"fallback": "error"})
    assert compiled(*inputs) is inputs[0]
    torch.testing.assert_close(inputs[0], doubled(*inputs[1:]))


def written(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """Bytes that the kernels of a function write."""
    report = oxyfuel.explain(function, *inputs)
    assert not [call for graph in report.graphs for call in graph.external], report
    return sum(kernel["bytes_written"] for graph in report.graphs for kernel in graph.kernels)


def joined(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return out.copy_(torch.cat([x.exp(), -y], 1))


def stepped(cache: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    cache[3:5] = x[:2].exp() + y[:2]
    cache[4:6] += 1
    return cache.sum(0)


def test_parts_of_a_given_output_are_computed_in_their_places() -> None:
    make = seeded((6, 9), (6, 4), (6, 5))
    same(joined, make)
    assert written(joined, *make()) == 6 * 9 * 4


def test_new_rows_of_a_cache_are_computed_in_their_places() -> None:
    make = seeded((9, 5), (6, 5), (6, 5))
    same(stepped, make)
    # Two rows and two rows, and the sum.
    assert written(stepped, *make()) == (2 + 2 + 1) * 5 * 4


OUTS: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.randn(8, 6),
    "transposed": lambda: torch.randn(6, 8).t(),
    "holes": lambda: torch.randn(8, 20)[:, 3:15:2],
    "not at the start": lambda: torch.randn(49)[1:].view(8, 6),
    "another type": lambda: torch.randn(8, 6).double(),
    "integers": lambda: torch.zeros(8, 6, dtype=torch.int32),
    "half": lambda: torch.zeros(8, 6, dtype=torch.bfloat16),
    "broadcast": lambda: torch.randn(3, 8, 6),
    "empty": lambda: torch.randn(0, 8, 6),
}


@pytest.mark.parametrize("out", OUTS.values(), ids=OUTS.keys())
def test_given_outputs_of_every_form(out: Callable[[], torch.Tensor]) -> None:
    def make() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [out(), torch.randn(8, 6), torch.randn(6)]

    def twice(out: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = doubled(x, b)
        return out.copy_(y), y

    def windows(out: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out.copy_(doubled(x, b))
        return out, out[..., 1:], out.transpose(-1, -2), out

    same(into, make)
    same(twice, make)
    same(windows, make)
    # What is around the given memory stays as it was.
    compiled, (target, x, b) = torch.compile(into, backend="oxyfuel", options={"fallback": "error"}), make()
    whole = torch.empty(0, dtype=target.dtype).set_(target.untyped_storage())
    expected = whole.clone()
    torch.as_strided(expected, target.size(), target.stride(), target.storage_offset()).copy_(doubled(x, b))
    compiled(target, x, b)
    torch.testing.assert_close(whole, expected)


def test_given_output_that_is_read() -> None:
    same(lambda out, x: out.copy_(out.t() + x), seeded((7, 7), (7, 7)))
    same(lambda out, x: out.copy_(torch.softmax(out, 0) * x.sum()), seeded((7, 7), (7, 7)))
    same(lambda out, x: (out + 1, out.copy_(x.cumsum(0)), out * 2), seeded((7, 7), (7, 7)))


# A first call with views of one storage that overlap is traced as such, and torch does not look again: any other kind of call after it fails, whatever the backend.
@pytest.mark.parametrize("order", [(0, 1, 2, 0, 1, 2), (1, 2, 0, 2, 1), (2, 2)], ids=str)
def test_given_output_over_the_inputs(order: tuple[int, ...]) -> None:
    """Whatever a call was compiled for, memory that overlaps gives eager's values."""

    def f(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return out.copy_(x + x.flip(0))

    def apart() -> list[torch.Tensor]:
        return [torch.zeros(6, 5), torch.arange(30.0).view(6, 5)]

    def equal() -> list[torch.Tensor]:
        x = torch.arange(30.0).view(6, 5)
        return [x, x]

    def shifted() -> list[torch.Tensor]:
        memory = torch.arange(40.0)
        return [memory[5:35].view(6, 5), memory[:30].view(6, 5)]

    makers = [apart, equal, shifted]
    compiled = torch.compile(f, backend="oxyfuel", options={"fallback": "error"})
    for make in (makers[kind] for kind in order):
        ours, theirs = make(), make()
        with torch.no_grad():
            got, want = compiled(*ours), f(*theirs)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(got, want)
        assert got.data_ptr() == ours[0].data_ptr()


def test_given_output_in_training() -> None:
    def step(out: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = torch.compile(into, backend="oxyfuel", options={"fallback": "error"})(out, x, b)
        result.sum().backward()
        assert x.grad is not None and b.grad is not None
        return out.detach(), x.grad, b.grad

    def make() -> list[torch.Tensor]:
        out, x, b = seeded((9, 6), (9, 6), (6,))()
        return [out, x.requires_grad_(), b.requires_grad_()]

    got = step(*make())
    out, x, b = make()
    into(out, x, b).sum().backward()
    torch.testing.assert_close(got, (out.detach(), x.grad, b.grad))


@pytest.mark.parametrize("by_index", [False, True])
def test_a_cache_step_moves_the_new_rows(by_index: bool) -> None:
    def step(cache: torch.Tensor, row: torch.Tensor, at: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        if by_index:
            cache.index_copy_(2, at, row)
        else:
            cache[:, :, 1000:1001] = row
        return torch.softmax(query @ cache.transpose(-1, -2), -1) @ cache

    def make() -> list[torch.Tensor]:
        torch.manual_seed(3)
        cache, row, query = torch.randn(1, 2, 4096, 16), torch.randn(1, 2, 1, 16), torch.randn(1, 2, 1, 16)
        return [cache, row, torch.tensor([1000]), query]

    same(step, make)
    torch._dynamo.reset()
    report = oxyfuel.explain(step, *make())
    cache = make()[0].nbytes
    assert sum(kernel["bytes_written"] for graph in report.graphs for kernel in graph.kernels) < cache // 2, report
    assert not [call for graph in report.graphs for call in graph.external if "put" in call["name"] or "copy" in call["name"]], report
