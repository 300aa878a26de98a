"""The way from Dynamo to a compiled graph.

AOTAutograd puts a chain of wrappers around an inference graph: they gather the arguments, look at the first call, report to a profiler, make a context that does nothing. That is a
dozen Python functions at every call, and a call whose tensors have pushed Python out of the caches waits for each of them. What a graph really needs (views made again, writes
counted, autocast off) is in one function that torch generates for it. Calls go to that one directly, except the first, and while somebody profiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _native, _torch, faults, profiles

_nothing = _native.Nothing()


def without_detours(forward: Callable[..., Any]) -> Callable[..., Any]:
    """AOTAutograd's callable, without what its wrappers do at every call; as it is where that is not known to be right."""
    found = _torch.generated_wrapper(forward)
    if found is None:
        return forward
    generated, code = found
    run = code.run if code.recorder is None else code.recorder
    profiler_enabled = _torch.profiler_enabled
    is_first = True

    def call(*args: Any) -> Any:
        nonlocal is_first
        if is_first or profiles.current is not None or profiler_enabled():
            is_first = False
            return forward(*args)
        try:
            return generated(run, _nothing, bool, [*args])
        except RuntimeError as error:
            faults.say_more(error, code.role, code.run)
            raise

    return _torch.same_attributes(call, forward)
