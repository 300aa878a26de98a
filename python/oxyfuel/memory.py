"""Where memory is."""

from __future__ import annotations

import json
from typing import Any

import torch

from . import _native, errors


def memory_summary(device: torch.device | str | int | None = None) -> str:
    """Where the bytes of a device are, as a table for people: how many it has, how many are free, in use by us, and kept for reuse. Without a device: of the GPU that is
    current, or of the CPU where there is none.

    On a GPU intermediates and results of compiled graphs lie in torch's memory, whose figures follow; ours are constants.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place.type != "cuda":
        return _native.memory_summary(str(place))
    if place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    lines = [_native.memory_summary(str(place))]
    figures = {
        "torch's, in use": torch.cuda.memory_allocated(place),
        "  most in use": torch.cuda.max_memory_allocated(place),
        "  kept for reuse": torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place),
    }
    lines += [f"  {what:<17}{count / (1 << 20):>11.1f} MiB" for what, count in figures.items()]
    return "\n".join(lines)


def say_what_is_needed(error: torch.OutOfMemoryError, role: str, graph: Any, device: str | None = None) -> None:
    """Adds to torch's error, which stays what it is, our code, what the plan of a graph needs and what is free. Of a callable that is recorded on a device nobody knows what it needs."""
    if getattr(error, "code", None) == errors.OUT_OF_MEMORY:
        return
    if hasattr(graph, "explain"):
        said = json.loads(graph.explain())
        need, device = said["memory"]["peak_bytes"], said["device"]["id"].replace("null", "cpu")
        wanted = "as many bytes as its sizes ask for" if need is None else f"{need} bytes"
        what = f"the {role} graph needs {wanted} at once for intermediates and results"
    elif device is not None:
        what = f"memory ran out in a call of {role}, which is to be recorded"
    else:
        return
    line = f"error[{errors.OUT_OF_MEMORY}]: {what}"
    place = torch.device(device)
    if place.type == "cuda":
        free, total = torch.cuda.mem_get_info(place)
        kept = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
        line += f"; {free} of {total} bytes of {place} are free, and torch keeps {kept} for reuse"
    error.code = errors.OUT_OF_MEMORY
    error.args = (f"{error}\n{line}\n  help: use smaller shapes, or drop tensors first",)
