"""What Dynamo compiled again, and why.

Dynamo keeps every version of a function that it compiled, and compiles again when none of them does. It says of each version why not; all of these are kept, for as long as the
function lives.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import re
import textwrap
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch import nn

from . import _torch

# Compiles that are remembered of one function: more than Dynamo makes of it by itself.
MANY = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Recompile:
    """One compile of a function that had been compiled before."""

    function: str
    place: str
    """File and line."""
    reasons: list[str]
    """One for each version that there was, newest first: its number, and what it was compiled for that was not so."""

    def __str__(self) -> str:
        return "\n".join([f"{self.function} at {self.place}", *(textwrap.indent(reason, "  ") for reason in self.reasons)])


_seen: weakref.WeakKeyDictionary[CodeType, collections.deque[Recompile]] = weakref.WeakKeyDictionary()

# Backends of explanations: what they compile is beside what the program does.
doors: weakref.WeakSet[Any] = weakref.WeakSet()

# What part of a function is called that Dynamo goes on with after a cut.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+")


def _see(code: CodeType, backend: Any, reasons: list[tuple[Any, str]]) -> None:
    if backend in doors:
        counted = [reason for owner, reason in reasons if owner is backend]
    else:
        counted = [reason for owner, reason in reasons if owner not in doors]
    if counted:
        found = Recompile(code.co_name, f"{code.co_filename}:{code.co_firstlineno}", counted)
        _seen.setdefault(code, collections.deque(maxlen=MANY)).append(found)
        here = _here.get()
        if here is not None:
            here.append(found)


# Where compiles of this context are noted beside; none outside of `noted`.
_here: contextvars.ContextVar[list[Recompile] | None] = contextvars.ContextVar("oxyfuel_recompiles", default=None)


@contextlib.contextmanager
def noted() -> Iterator[list[Recompile]]:
    """What is compiled again in here, whatever function it is."""
    found: list[Recompile] = []
    token = _here.set(found)
    try:
        yield found
    finally:
        _here.reset(token)


def recompiles(function: Any) -> list[Recompile]:
    """How often Dynamo has compiled a function or module (or what `torch.compile` made of it) again in this process, and why."""
    function = _torch.original(function)
    parts = function.modules() if isinstance(function, nn.Module) else [function]
    codes = {code for code in map(_code, parts) if code is not None}
    return [found for code, all_of_it in list(_seen.items()) if any(_is_part(code, whole) for whole in codes) for found in all_of_it]


def _code(part: Any) -> CodeType | None:
    function = part.forward if isinstance(part, nn.Module) else part
    if not hasattr(function, "__code__") and not isinstance(function, type):
        function = getattr(function, "__call__", None)
    return getattr(function, "__code__", None)


def _is_part(code: CodeType, whole: CodeType) -> bool:
    """Whether some code is that of a function, or what comes after a cut in it."""
    resumed = _RESUMED.fullmatch(code.co_name)
    return code == whole or (resumed is not None and resumed[1] == whole.co_name and code.co_filename == whole.co_filename)


_torch.on_recompile(_see)
