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


def test_channels_last_stays() -> None:
    def make() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last)]

    same(lambda x: (torch.relu(x) + 1, x.permute(0, 2, 3, 1), x[:, 1:3] * 2), make)


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
