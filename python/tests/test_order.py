"""Higher-order operators run in torch, and whatever has effects keeps its order: theirs, collectives and prints."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oxyfuel
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch._higher_order_ops import effects
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

from agree import agree, compiled, same


def test_scan() -> None:
    def f(start: torch.Tensor, rows: torch.Tensor) -> Any:
        last, all_of_them = scan(lambda carry, row: (carry * 0.5 + row, carry.sin() + row), start + 1, rows * 2)
        return last.relu(), all_of_them + 1

    same(f, torch.randn(4), torch.randn(6, 4))


def test_map() -> None:
    same(lambda rows, y: map_rows(lambda row, y: row.sin() + y, rows * 2, y).relu(), torch.randn(5, 3), torch.randn(3))


@pytest.mark.parametrize("mode", ["pointwise", "generic"])
def test_associative_scan(mode: str) -> None:
    if mode == "pointwise" and oxyfuel._torch.VERSION < (2, 15):
        pytest.skip("older versions have it for GPUs alone")

    def f(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b, x + 2, dim=0, combine_mode=mode) * 3

    x = torch.rand(5, 3)
    torch.testing.assert_close(compiled(f)(x), (x + 2).cumprod(0) * 3)


NOTES: list[tuple[int, float]] = []


@torch.library.custom_op("oxyfuel_tests::written_down", mutates_args=())
def written_down(x: torch.Tensor, number: int) -> torch.Tensor:
    NOTES.append((number, float(x.sum())))
    print("note", number)
    return x.clone()


written_down.register_fake(lambda x, number: torch.empty_like(x))


@pytest.fixture
def ordered() -> None:
    effects._register_effectful_op(torch.ops.oxyfuel_tests.written_down.default, effects._EffectType.ORDERED)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ordered", "alone")
def test_a_branch_between_effects_and_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        written_down(x, 1)
        y = torch.cond(x.sum() > 0, lambda x: x.erfc() + 1, lambda x: x - 1, (x * 2,))
        z = collectives.all_reduce(x + 5, "sum", dist.group.WORLD)
        # Needs neither of them.
        written_down(x * 3, 2)
        return y + z

    fast = compiled(f, fullgraph=True)
    x = torch.ones(4)
    expected = (x * 2).erfc() + 1 + x + 5
    torch.testing.assert_close(fast(x), expected)
    NOTES.clear()
    capsys.readouterr()
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(fast(x), expected)
    assert NOTES == [(1, 4.0), (2, 12.0)]
    assert capsys.readouterr().out == "note 1\nnote 2\n"
    wanted = ("oxyfuel_tests::written_down", "aten::erfc", "_c10d_functional::all_reduce")
    events = sorted((event for event in profile.events() if event.name in wanted), key=lambda event: event.time_range.start)
    names = [event.name for event in events]
    # Of the branch its own operator is seen.
    assert names == [wanted[0], wanted[1], wanted[2], wanted[0]]


def rank_of_two(rank: int, folder: str, queue: Any) -> None:
    """Collectives that do not need each other, used in another order on each rank: where one of them were sent first on one rank only, they would not meet."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = collectives.all_reduce(x + 1, "sum", dist.group.WORLD)
        largest = collectives.all_reduce(x * 2, "max", dist.group.WORLD)
        everything = collectives.all_gather_tensor(x, 0, dist.group.WORLD)
        if rank == 0:
            late = largest * 2
            early = late + total
        else:
            early = total + largest * 2
            late = largest * 2
        x.add_(everything.sum())
        dist.all_reduce(x)
        return early, late + x

    x = torch.arange(4.0) * (rank + 1)
    mine, theirs = x.clone(), x.clone()
    fast = compiled(f)
    for _ in range(2):
        got, want = fast(mine), f(theirs)
        queue.put((rank, [bool(torch.equal(a, b)) for a, b in zip((*got, mine), (*want, theirs), strict=True)]))
    dist.destroy_process_group()


def test_two_processes_meet_in_the_order_of_the_program(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=rank_of_two, args=(rank, str(tmp_path), queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        for _ in range(4):
            rank, equal = queue.get(timeout=240)
            assert all(equal), (rank, equal)
        for process in ranks:
            process.join(60)
            assert process.exitcode == 0
    finally:
        for process in ranks:
            process.kill()


@pytest.mark.parametrize("tag", ["needs_fixed_stride_order", "needs_exact_strides", "flexible_layout", "needs_contiguous_strides"])
def test_an_operator_with_a_stride_tag_gets_eager_s_strides(tag: str) -> None:
    if not hasattr(torch.Tag, tag):
        pytest.skip("this version has no such tag")
    seen: list[tuple[int, ...]] = []
    library = torch.library.Library("oxyfuel_tags", "FRAGMENT")
    library.define(f"{tag}(Tensor x) -> Tensor", tags=(getattr(torch.Tag, tag),))

    def run(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.stride())
        return x.clone()

    library.impl(tag, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"oxyfuel_tags::{tag}", torch.empty_like, lib=library)
    op = getattr(torch.ops.oxyfuel_tags, tag)

    def f(x: torch.Tensor) -> Any:
        # Intermediates: transposed, channels last, and a window with gaps.
        image = x.view(2, 3, 4, 5).to(memory_format=torch.channels_last)
        return op((x.view(10, 12).t() * 2).relu()), op(image.sin() + 1), op((x.view(10, 12) + 1)[:, ::2])

    x = torch.randn(120)
    expected = f(x)
    eager = seen.copy()
    seen.clear()
    agree(compiled(f)(x), expected)
    assert eager == [(1, 12), (60, 1, 15, 3), (12, 2)]
    assert seen == eager
    library._destroy()
