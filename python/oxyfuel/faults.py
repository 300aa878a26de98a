"""Who may have lost a GPU to the process.

A kernel that faults says nothing. Whoever calls the driver next is told, and everybody after that: torch's allocator, an operator between two kernels of ours, a recording that is launched. What they
raise names nobody. Where such an error leaves a compiled graph it becomes E0712, with the kernels that were launched lately and the recordings that were launched as one.

All of it is asked for when an error has been raised: calls that end well do nothing for it.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from . import _native, errors, memory, recorded
from .errors import OxyfuelError

# Recordings that are named, and of each so many kernels and calls: the last ones are the likely ones.
RECORDINGS = 2
NAMED = 12


def say_more(error: RuntimeError, role: str, run: Any, device: str | None = None) -> None:
    """What an error of a graph's call does not say by itself: what the plan needs where memory ran out, and who may have faulted where the GPU is lost, which is another error. `device` is that of a callable, which has no plan."""
    if isinstance(error, torch.OutOfMemoryError):
        memory.say_what_is_needed(error, role, run, device)
        return
    lost = _lost(error)
    if lost is None:
        return
    named = [_named(recorder) for recorder in recorded.used_last(RECORDINGS)]
    message = "; ".join([lost.message, *(f"or in calls of {one}" for one in named)])
    raise OxyfuelError(lost.code, message, lost.help) from error


def _lost(error: RuntimeError) -> OxyfuelError | None:
    """What our side says of a GPU that is lost; none where none is, or all has been said."""
    if isinstance(error, OxyfuelError) and error.code == errors.KERNEL_FAULT:
        return error if error.__cause__ is None else None
    # The driver's number, where torch has it in its error.
    answer = getattr(error, "error_code", 0)
    return _native.fault(answer if isinstance(answer, int) else 0)


def _named(recorder: recorded.Recorder) -> str:
    """A graph whose calls are launched as one, and what is in it."""
    role, inside = recorder.facts.role or "a graph", ""
    if hasattr(recorder.run, "explain"):
        role = f"the {role} graph" if role in ("forward", "backward", "inference") else role
        said = json.loads(recorder.run.explain())
        steps = [_label(step) for step in (*said["kernels"], *said["externals"])]
        more = f" and {len(steps) - NAMED} more" if len(steps) > NAMED else ""
        inside = f": {', '.join(steps[:NAMED])}{more}"
    return f"{role} that were launched as one{inside}"


def _label(step: dict[str, Any]) -> str:
    ops = ", ".join(step["ops"])
    at = f" at {step['lines'][0]}" if step["lines"] else ""
    return f"{step['name']} ({ops}{at})" if ops else str(step["name"])
