"""Compiled against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def compiled(f: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    """Compiled for good: a graph that does not compile is an error."""
    options = {"fallback": "error", **kwargs.pop("options", {})}
    return torch.compile(f, backend="oxyfuel", options=options, **kwargs)


def same(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Both ways with the same arguments: values, element types, shapes and strides."""
    expected = f(*args)
    result = compiled(f, **kwargs)(*args)
    agree(result, expected)
    return result


def agree(result: Any, expected: Any) -> None:
    found, spec = pytree.tree_flatten(result)
    wanted, other = pytree.tree_flatten(expected)
    assert spec == other
    for a, b in zip(found, wanted):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.stride() == b.stride() or b.numel() == 0, (a.stride(), b.stride())
        if a.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            a, b = a.view(torch.uint8), b.view(torch.uint8)
        torch.testing.assert_close(a, b, equal_nan=True)
