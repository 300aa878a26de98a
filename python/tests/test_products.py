"""Products on a GPU as torch's libraries are fastest with them: the rules on graphs, here with tensors of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from oxyfuel.products import align_products, part_biases

aten = torch.ops.aten


def traced(f: Any, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(f, tracing_mode="fake")(*inputs)


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


def calls(gm: torch.fx.GraphModule, target: Any) -> list[torch.fx.Node]:
    return list(gm.graph.find_nodes(op="call_function", target=target))


# Whole numbers so small that every sum is exact, whatever its order.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "a, b",
    [
        (half(512, 768), half(2753, 768).t()),  # a vocabulary, its weight as layers have it
        (half(512, 768), half(768, 2753)),
        (half(512, 2753), half(2753, 768)),  # the gradient of what it reads
        (half(512, 2753).t(), half(512, 768)),  # and of its weight
        (half(1025, 1027), half(1029, 1027).t()),
    ],
)
def test_rows_of_operands_and_result_begin_at_even_places(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> None:
    a, b = a.to(dtype), b.to(dtype)
    gm = traced(lambda a, b: [aten.mm.default(a, b)], a, b)
    want = gm(a, b)[0]
    assert align_products(gm, "cpu") == 1
    (product,) = calls(gm, aten.mm.default)
    for node in (*product.args, product):
        value = node.meta["val"]
        assert max(value.stride()) % 8 == 0 and min(value.stride()) == 1
    got = gm(a, b)[0]
    assert torch.equal(got, want) and got.stride() == want.stride()
    (result,) = gm.graph.output_node().args[0]
    assert result.meta["val"].stride() == want.stride()


def test_bias() -> None:
    bias, a, b = half(2753), half(512, 768), half(768, 2753)
    gm = traced(lambda bias, a, b: [aten.addmm.default(bias, a, b)], bias, a, b)
    want = gm(bias, a, b)[0]
    assert align_products(gm, "cpu") == 1
    assert torch.equal(gm(bias, a, b)[0], want)


@pytest.mark.parametrize(
    "a, b",
    [
        (half(512, 768), half(768, 2752)),  # at even places already
        (half(512, 768, dtype=torch.float32), half(768, 2753, dtype=torch.float32)),
        (half(16, 768), half(768, 2753)),  # bound by reading the weight
        (half(129, 129), half(129, 129)),  # too little work
    ],
)
def test_others_stay_as_they_are(a: torch.Tensor, b: torch.Tensor) -> None:
    gm = traced(lambda a, b: [aten.mm.default(a, b)], a, b)
    assert align_products(gm, "cpu") == 0
    assert len(calls(gm, aten.mm.default)) == 1 and not calls(gm, aten.constant_pad_nd.default)


def test_only_on_gpus() -> None:
    gm = traced(lambda a, b: [aten.mm.default(a, b)], half(512, 768), half(768, 2753))
    assert align_products(gm) == 0


@pytest.mark.parametrize(
    "after, kept",
    [
        (lambda y: y, True),
        (lambda y: aten.view.default(y, [4, 128, 2753]), True),
        (lambda y: aten.view.default(aten.view.default(y, [4, 128, 2753]), [2, 2, 128, 2753]), True),
        (lambda y: aten.view.default(y, [-1]), False),  # rows that do not follow each other
        (lambda y: aten.relu.default(y), False),  # somebody computes with it
    ],
)
def test_results_may_keep_what_is_behind_their_rows(after: Any, kept: bool) -> None:
    a, b = half(512, 768), half(768, 2753)
    gm = traced(lambda a, b: [after(aten.mm.default(a, b))], a, b)
    want = gm(a, b)[0]
    assert align_products(gm, "cpu", loose=True) == 1
    got = gm(a, b)[0]
    assert torch.equal(got, want)
    assert bool(calls(gm, aten.clone.default)) != kept
    (result,) = gm.graph.output_node().args[0]
    assert result.meta["val"].stride() == got.stride()
    assert (got.stride() == want.stride()) != kept


def linear(after: Any, dtype: torch.dtype = torch.float32) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    inputs = [half(12, dtype=dtype), half(6, 8, dtype=dtype), half(8, 12, dtype=dtype)]
    return traced(lambda bias, a, b: [after(aten.addmm.default(bias, a, b))], *inputs), inputs


@pytest.mark.parametrize(
    "after",
    [
        lambda y: aten.gelu.default(y),
        lambda y: aten.clone.default(aten.permute.default(aten.view.default(y, [2, 3, 12]), [1, 0, 2]), memory_format=torch.contiguous_format),
        lambda y: aten.add.Tensor(aten.relu.default(y), aten.t.default(aten.t.default(y))),
    ],
)
def test_a_bias_is_added_by_who_reads_the_product(after: Any) -> None:
    gm, inputs = linear(after)
    want = gm(*inputs)[0]
    assert part_biases(gm, "cpu") == 1
    assert not calls(gm, aten.addmm.default)
    assert torch.equal(gm(*inputs)[0], want)


@pytest.mark.parametrize(
    "after, dtype",
    [
        (lambda y: y, torch.float32),  # nobody of ours reads it
        (lambda y: aten.view.default(y, [2, 3, 12]), torch.float32),
        (lambda y: aten.mm.default(y, aten.t.default(y)), torch.float32),
        (lambda y: aten.gelu.default(y), torch.bfloat16),  # would be rounded once more
    ],
)
def test_other_biases_stay_with_their_products(after: Any, dtype: torch.dtype) -> None:
    gm, _ = linear(after, dtype)
    assert part_biases(gm, "cpu") == 0
    assert len(calls(gm, aten.addmm.default)) == 1
