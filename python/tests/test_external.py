"""What we do not compile runs in torch, inside of our plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import oxyfuel
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch._higher_order_ops import effects
from torch.nn.attention.flex_attention import flex_attention

from agree import agree, compiled, same


def test_cond() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x - 1, (x * 2,)) * 3

    g = compiled(f)
    for x in (torch.ones(4), -torch.ones(4)):
        agree(g(x), f(x))


def test_while_loop() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def f(x: torch.Tensor) -> Any:
        return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x + 1))

    same(f, torch.randn(3))


def test_flex_attention() -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j)) * 2

    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    torch.testing.assert_close(compiled(f)(q, k, v), f(q, k, v), rtol=1e-4, atol=1e-4)


def test_copies_of_complex_numbers_that_only_operators_read_are_left_out() -> None:
    z, y = torch.randn(4, 6, dtype=torch.complex64), torch.randn(6, 4, dtype=torch.complex64)

    def clones(f: Any, *inputs: torch.Tensor) -> bool:
        same(f, *inputs)
        return any(call["name"] == "aten.clone.default" for call in oxyfuel.explain(f, *inputs).graphs[0].external)

    assert not clones(lambda z: torch.fft.fft(z.conj().clone()), z)
    # A result that is a tensor of its own, one whose copy lies otherwise, and one that is seen by a view stay.
    assert clones(lambda z: z.conj().clone(), z)
    assert clones(lambda y: torch.fft.fft(y.t().clone(memory_format=torch.contiguous_format)), y)
    assert clones(lambda z: torch.view_as_real(z.clone()), z)


def test_attention() -> None:
    same(torch.nn.functional.scaled_dot_product_attention, *(torch.randn(1, 2, 16, 8) for _ in range(3)))


@torch.library.custom_op("oxyfuel_tests::twice", mutates_args=())
def twice(x: torch.Tensor, names: str, by: float = 2.0) -> torch.Tensor:
    assert names == "a"
    return x * by


twice.register_fake(lambda x, names, by=2.0: torch.empty_like(x))


@torch.library.custom_op("oxyfuel_tests::bump", mutates_args={"x"})
def bump(x: torch.Tensor) -> None:
    x += 1


def test_custom_operators() -> None:
    same(lambda x: twice(x + 1, "a") + twice(x, "a", by=3.0), torch.randn(4))


def test_custom_operators_that_write() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        bump(y)
        bump(x)
        return y + x

    mine, theirs = torch.zeros(3), torch.zeros(3)
    torch.testing.assert_close(compiled(f)(mine), f(theirs))
    torch.testing.assert_close(mine, theirs)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_collectives_keep_their_order_with_writes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = collectives.all_reduce(x * 2, "sum", dist.group.WORLD)
        x.add_(1)
        z = collectives.all_reduce(y + x, "max", dist.group.WORLD)
        dist.all_reduce(x)
        return z.relu() + y + x

    theirs = torch.randn(8)
    mine = theirs.clone()
    torch.testing.assert_close(compiled(f)(mine), f(theirs))
    torch.testing.assert_close(mine, theirs)


NOTES: list[tuple[int, float]] = []


@torch.library.custom_op("oxyfuel_tests::note", mutates_args=())
def note(x: torch.Tensor, number: int) -> torch.Tensor:
    NOTES.append((number, float(x.sum())))
    return x.clone()


note.register_fake(lambda x, number: torch.empty_like(x))


def test_effects_keep_their_order() -> None:
    effects._register_effectful_op(torch.ops.oxyfuel_tests.note.default, effects._EffectType.ORDERED)

    def f(x: torch.Tensor) -> torch.Tensor:
        note(x, 1)
        y = x + 1
        note(y, 2)
        note(x * 3, 3)
        return y * 2

    NOTES.clear()
    agree(compiled(f)(torch.ones(4)), torch.full((4,), 4.0))
    assert NOTES == [(1, 4.0), (2, 8.0), (3, 12.0)]


def test_four_bit_floats_pass_through() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.view(torch.float4_e2m1fn_x2), y * 2

    codes = torch.arange(32, dtype=torch.uint8).reshape(4, 8)
    packed, twice_y = compiled(f)(codes, torch.ones(3))
    assert packed.dtype == torch.float4_e2m1fn_x2
    assert torch.equal(packed.view(torch.uint8), codes)
    agree(twice_y, torch.full((3,), 2.0))
    agree(compiled(lambda x: x.view(torch.uint8) + 1)(packed), codes + 1)


def test_an_operator_whose_strides_are_not_as_traced() -> None:
    @torch.library.custom_op("oxyfuel_tests::flipped", mutates_args=())
    def flipped(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t()

    flipped.register_fake(torch.empty_like)
    x = torch.randn(3, 4)
    result = compiled(lambda x: (flipped(x), flipped(x) + 1))(x)
    assert result[0].stride() == (4, 1)
    torch.testing.assert_close(result, (x, x + 1))


def test_lists_in_and_out() -> None:
    same(lambda x, y: torch.meshgrid(x, y, indexing="ij"), torch.arange(3), torch.arange(4))
    same(lambda x: [t + 1 for t in torch.linalg.eigh(x @ x.t())][0], torch.randn(4, 4))
    same(lambda x, y: torch.block_diag(x, y), torch.randn(2, 3), torch.randn(1, 2))


@pytest.mark.parametrize("seed", [0, 1])
def test_random_numbers_keep_their_order(seed: int) -> None:
    def f(x: torch.Tensor) -> Any:
        a = torch.rand(3)
        b = torch.randn(3) + x
        return a, b, torch.randint(0, 9, (3,)), torch.rand_like(x)

    g = compiled(f, options={"fallback_random": True})
    x = torch.zeros(3)
    torch.manual_seed(seed)
    mine = g(x)
    torch.manual_seed(seed)
    agree(mine, f(x))


def test_named_operators_are_left_to_torch() -> None:
    same(lambda x: x.sin() + x.cos(), torch.randn(4), options={"external": ["aten.sin"]})


def test_printing_breaks_the_graph_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print("here")
        return x * 2

    same(f, torch.randn(3))
    assert capsys.readouterr().out == "here\nhere\n"


def test_an_operand_that_is_expanded_over_memory_with_gaps() -> None:
    # torch's operator is given its operand as it lies in eager: repeated, and with gaps between its elements.
    def f(x: torch.Tensor) -> torch.Tensor:
        x[0] = x[1] + 1
        return x * 2

    expected, got = (torch.arange(96.0).view(4, 3, 8)[..., ::2] for _ in range(2))
    result = compiled(f, options={"external": ["aten.where"]})(got)
    agree(result, f(expected))
    agree(got, expected)
