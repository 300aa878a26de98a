"""The meaning of "agrees with eager": each clause, from both sides."""

import pytest
import torch

from agree import Run, copy_inputs, leaf_problem, problems


def same(got, eager, reference=None):
    return problems(Run(got), Run(eager), None if reference is None else lambda: Run(reference))


def test_equal_tensors_agree():
    x = torch.randn(3, 4)
    assert same(x.clone(), x) == []
    assert same((x.clone(), [x.sum()]), (x, [x.sum()])) == []


@pytest.mark.parametrize(
    "got, eager, word",
    [
        (torch.ones(3), torch.ones(3, dtype=torch.float64), "dtype"),
        (torch.ones(3), torch.ones(1, 3), "shape"),
        (torch.ones(3, 4).t().contiguous(), torch.ones(3, 4).t(), "strides"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "differ"),
        (torch.tensor([True]), torch.tensor([False]), "differ"),
        (torch.tensor([float("nan")]), torch.tensor([1.0]), "NaN"),
        (torch.tensor([float("inf")]), torch.tensor([float("-inf")]), "inf"),
        (torch.tensor([1.0]), torch.tensor([1.1]), "tolerance"),
        (torch.ones(2), 1.0, "tensor"),
        (1, 2, "instead"),
        ([torch.ones(1)], (torch.ones(1),), "structure"),
        (torch.ones(2, requires_grad=True), torch.ones(2), "requires_grad"),
    ],
)
def test_a_difference_is_said(got, eager, word):
    assert any(word in said for said in same(got, eager)), same(got, eager)


def test_strides_of_single_rows_and_of_empty_tensors_mean_nothing():
    assert same(torch.ones(1, 4).as_strided((1, 4), (77, 1)), torch.ones(1, 4)) == []
    assert same(torch.ones(0, 4), torch.ones(4, 0).t()) == []


def test_values_can_be_left_out():
    assert problems(Run(torch.zeros(3)), Run(torch.ones(3)), values=False) == []


def test_another_order_of_summation_is_measured_against_float64():
    exact = torch.full((8,), 1.0, dtype=torch.float64)
    eager = (exact + 3e-4).float()
    assert same((exact - 5e-4).float(), eager, exact) == []
    assert "largest" in same((exact + torch.eye(8)[0] * 2e-3).float(), eager, exact)[0] or "RMS" in same((exact + 2e-3).float(), eager, exact)[0]
    assert same((exact - 5e-4).float(), eager) != []


def test_where_the_reference_is_not_finite_only_closeness_counts():
    exact = torch.tensor([float("inf"), 1.0], dtype=torch.float64)
    assert same(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 1.0]), exact) != []


def test_an_output_that_is_an_input_is_that_input():
    x, y = torch.ones(3), torch.ones(3)
    assert problems(Run(x, [x]), Run(y, [y])) == []
    assert problems(Run(x.clone(), [x]), Run(y, [y])) == ["output 0 is not input 0 itself"]
    assert problems(Run(x[1:].clone(), [x]), Run(y[1:], [y])) != []
    assert problems(Run((x, x.clone())), Run((y, y))) != []


def test_mutated_inputs_are_compared():
    assert problems(Run((), [torch.ones(2)]), Run((), [torch.zeros(2)]))[0].startswith("input 0")


def test_copies_keep_strides_offsets_and_sharing():
    base = torch.arange(12.0)
    tree = (base[1:7].view(2, 3).t(), base[2:4], base.expand(2, 12), base)
    a, b, c, d = copy_inputs(tree)
    for x, y in zip((a, b, c, d), tree, strict=True):
        assert leaf_problem(x, y) is None and x.storage_offset() == y.storage_offset()
        assert x.data_ptr() != y.data_ptr()
    d.zero_()
    assert int(a.sum()) == 0 and int(b.sum()) == 0 and int(base.sum()) != 0
