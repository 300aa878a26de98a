"""Errors with a stable code, as the Rust side has them.

An error says what happened, whose fault it is and what to do. `code` never changes once released, so that programs may match on it;
all codes stand in docs/errors.md.
"""

from __future__ import annotations


class OxyfuelError(RuntimeError):
    """What went wrong: a sentence for people and a code for programs."""

    code: str

    def __init__(self, code: str, message: str, help: str | None = None) -> None:
        self.code = code
        self.message = message
        self.help = help
        text = f"error[{code}]: {message}"
        super().__init__(f"{text}\n  help: {help}" if help else text)

    def __reduce__(self) -> tuple[type[OxyfuelError], tuple[str, str, str | None]]:
        return (OxyfuelError, (self.code, self.message, self.help))


class OxyfuelWarning(UserWarning):
    """Something runs slower than it could; the result is right."""


# Codes that this package raises itself; the rest come from the Rust side.
UNKNOWN_OPTION = "E0401"
INVALID_OPTION = "E0402"
CONFLICTING_OPTIONS = "E0403"
UNSUPPORTED_TORCH = "E0710"
UNSUPPORTED_GRAPH = "E0110"
KERNEL_FAULT = "E0712"
CAPTURE_BROKEN = "E0713"
SHAPE_MISMATCH = "E0101"
DEVICE_MISMATCH = "E0103"
INVALID_ARGUMENT = "E0109"
NO_DEVICE = "E0702"
OUT_OF_MEMORY = "E0602"
# Some that it looks for.
FILE_UNREADABLE = "E0507"
MEMORY_LIMIT = "E0605"
