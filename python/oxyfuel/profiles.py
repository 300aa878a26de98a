"""Where the time of compiled calls goes, kernel by kernel.

    with oxyfuel.profile() as seen:
        model(x).sum().backward()
    print(seen)                                         # wall = device + overhead, compile apart; a row a kernel, operator and graph
    open("trace.json", "w").write(seen.chrome_trace())

Every call of a compiled graph inside of the block is seen, on whatever thread: a backward on a GPU runs on a thread of autograd's. Calls that would be launched as one run step by step meanwhile. What is not compiled is not seen, and counts as overhead.
`torch.profiler` needs none of this: it shows the same kernels and operators by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from . import _native, _torch, errors
from .errors import OxyfuelError

# The profile that is under way, of all threads. Every call of a compiled graph looks here.
current: Profile | None = None
_lock = threading.Lock()


class Profile:
    """What `profile` saw. Times are in seconds; all of it is there when the block has ended."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._seen: Any = None
        self.total_seconds = self.compile_seconds = self.wall_seconds = self.device_seconds = 0.0

    def __enter__(self) -> Profile:
        global current
        with _lock:
            if current is not None:
                raise OxyfuelError(errors.INVALID_ARGUMENT, "a profile is under way, and there can be one at a time", "leave its block first")
            if self._seen is not None:
                raise OxyfuelError(errors.INVALID_ARGUMENT, "this profile has been taken", "make another one by oxyfuel.profile()")
            self._seen = _native.Profiling()
            current = self
        self._stack.enter_context(_torch.while_compiling(self._seen.compile_begins, lambda: self._seen.compile_ends("torch.compile")))
        return self

    def __exit__(self, *_: Any) -> None:
        global current
        with _lock:
            current = None
        self._stack.close()
        self._seen.finish()
        self.total_seconds, self.compile_seconds, self.wall_seconds, self.device_seconds = self._seen.seconds()

    def call(self, run: Callable[[list[Any]], Any], inputs: list[Any]) -> Any:
        """Makes a call that is seen."""
        return self._seen.call(run, inputs)

    @property
    def overhead_seconds(self) -> float:
        """What is left of the wall time: the host was at work, and no device was on behalf of a compiled graph."""
        return max(self.wall_seconds - self.device_seconds, 0.0)

    def rows(self) -> list[dict[str, Any]]:
        """One row a kernel, operator of torch's, graph or compile: name, category, source operators, calls, self and total time of host and device."""
        return [] if self._seen is None else list(self._seen.rows())

    def launches(self) -> dict[str, int]:
        """How many pieces of work of each category there were."""
        return {} if self._seen is None else dict(self._seen.launches())

    def chrome_trace(self) -> str:
        """JSON for `chrome://tracing` or Perfetto: a row for the host, one for each device."""
        return "" if self._seen is None else str(self._seen.chrome_trace())

    def __str__(self) -> str:
        return "nothing was profiled yet" if self._seen is None else str(self._seen)


def profile() -> Profile:
    """A block whose compiled calls are timed; see the module."""
    return Profile()
