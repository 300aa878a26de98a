"""Weights that were frozen (`freezing=True`): computing what follows from them anew, and giving their memory back."""

from __future__ import annotations

import weakref
from typing import Any

import torch

# By their ids: torch makes what it keeps comparable by content.
_graphs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def remember(code: Any) -> None:
    if hasattr(code.run, "refreeze"):
        _graphs[id(code)] = code


def refreeze() -> int:
    """After weights changed: every compiled graph computes what follows from its frozen weights anew, at its next call. How many graphs have any."""
    return sum(code.run.refreeze() for code in list(_graphs.values()))


def release(model: torch.nn.Module) -> int:
    """Gives the memory of a model's frozen weights back, of those that no graph that was called reads any more; how many bytes that were.

    The model can be called as it was before, and in no other way: its weights have shapes and no elements.
    """
    graphs = list(_graphs.values())
    unread = {address for code in graphs for address in code.run.unread()}
    unread -= {address for code in graphs for address in code.run.reads()}
    given, gone = 0, set()
    for tensor in (*model.parameters(), *model.buffers()):
        storage = tensor.untyped_storage()
        if tensor.data_ptr() in unread and storage.nbytes() == tensor.nbytes:
            gone.add(tensor.data_ptr())
            given += storage.nbytes()
            storage.resize_(0)
    for code in graphs:
        code.run.released(sorted(gone))
    return given
