"""Settings of the whole process: the defaults of every compile.

    oxyfuel.config.verify = True
    with oxyfuel.config.patch(threads=2, numerics="fast"):
        model(x)                      # what is compiled in here takes these

`torch.compile(..., options={...})` takes the same keys for one model and wins over these. The environment (`OXYFUEL_VERIFY` and
others) is read once, when this module is imported, and gives the first values.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .options import KEYS, Options, check

if TYPE_CHECKING:
    # What the module has by its class, below.
    def current() -> Options: ...
    def patch(**values: Any) -> contextlib.AbstractContextManager[None]: ...
    def reset() -> None: ...
    def __getattr__(name: str) -> Any: ...


def _from_environment(environment: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, key in KEYS.items():
        if key.variable and environment.get(key.variable):
            values[name] = check(name, environment[key.variable], key.variable)
    return values


class _Config(ModuleType):
    """The module itself: attributes are options, and a wrong one is an error when it is set."""

    # What a thread patches is seen by that thread alone.
    _values: dict[str, Any]
    _patches: threading.local

    def __getattr__(self, name: str) -> Any:
        if name in KEYS:
            return getattr(self.current(), name)
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            self._values[name] = check(name, value, "oxyfuel.config")

    def __dir__(self) -> list[str]:
        return [*KEYS, "patch", "reset", "current"]

    def current(self) -> Options:
        """The options that a compile would have now, on this thread."""
        values = dict(self._values)
        for patch in getattr(self._patches, "stack", ()):
            values.update(patch)
        return Options(**values)

    @contextlib.contextmanager
    def patch(self, **values: Any) -> Iterator[None]:
        """Other options for what this thread compiles inside of the block."""
        checked = {name: check(name, value, "oxyfuel.config.patch") for name, value in values.items()}
        if not hasattr(self._patches, "stack"):
            self._patches.stack = []
        stack = self._patches.stack
        stack.append(checked)
        try:
            yield
        finally:
            stack.remove(checked)

    def reset(self) -> None:
        """Back to the values that the process began with."""
        self._values.clear()
        self._values.update(_from_environment(dict(os.environ)))


_module = sys.modules[__name__]
_module.__dict__["_values"] = _from_environment(dict(os.environ))
_module.__dict__["_patches"] = threading.local()
_module.__class__ = _Config
