"""Rules on the joint graph, before it is cut."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from oxyfuel.rewrite import rewrite

aten = torch.ops.aten


def traced(function, *inputs: torch.Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def targets(gm: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def test_equal_nodes_become_one() -> None:
    def f(x):
        a, b = aten.exp.default(x), aten.exp.default(x)
        c = aten.mul.Tensor(aten.exp.default(x), 1)
        return [aten.add.Tensor(aten.add.Tensor(a, b), c)]

    x = torch.randn(3, 4)
    gm = traced(f, x)
    want = gm(x)
    assert rewrite(gm, 1) == 3
    assert targets(gm) == ["aten.exp.default", "aten.add.Tensor", "aten.add.Tensor"]
    assert torch.equal(gm(x)[0], want[0])


def test_parts_of_sequences() -> None:
    def f(x):
        a, b = aten.split.Tensor(x, 2, 1), aten.split.Tensor(x, 2, 1)
        return [aten.add.Tensor(a[0], b[1]), aten.mul.Tensor(b[0], a[1])]

    x = torch.randn(3, 4)
    gm = traced(f, x)
    want = gm(x)
    assert rewrite(gm, 1) > 0
    assert targets(gm).count("aten.split.Tensor") == 1
    assert all(torch.equal(a, b) for a, b in zip(gm(x), want))


def test_results_stay_tensors_of_their_own() -> None:
    gm = traced(lambda x: [aten.exp.default(x), aten.exp.default(x), aten.mul.Tensor(x, 1)], torch.randn(3))
    assert rewrite(gm, 1) == 0
    a, b, _ = gm(torch.randn(3))
    assert a.data_ptr() != b.data_ptr()


def test_what_is_computed_again_is_not_merged_with_what_is_kept() -> None:
    def f(x):
        return [aten.add.Tensor(aten.exp.default(x), aten.exp.default(x))]

    gm = traced(f, torch.randn(3))
    _, kept, again, *_ = gm.graph.nodes
    again.meta["recompute"] = 2
    assert rewrite(gm, 1) == 0
    again.meta.pop("recompute")
    assert rewrite(gm, 1) == 1 and kept.users


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_agrees(dynamic: bool) -> None:
    def f(x, w):
        y = (x @ w).relu()
        return (y.exp() + y.exp() * 1.0).sum(-1).mean()

    x, w = torch.randn(5, 7), torch.randn(7, 3)
    results = []
    for function in (f, torch.compile(f, backend="oxyfuel", dynamic=dynamic, options={"fallback": "error"})):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        loss = function(a, b)
        loss.backward()
        results.append((loss, a.grad, b.grad))
    for ours, eager in zip(*reversed(results)):
        torch.testing.assert_close(ours, eager)
