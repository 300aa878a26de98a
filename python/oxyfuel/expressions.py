"""Sizes as text: sympy's expressions in the grammar of the Rust side.

Sums, products, `//`, `%`, `min`, `max` over symbols s0, s1, ...; whatever else sympy says (true division, bits, floats) has no text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _torch

sympy = _torch.sympy


class Inexpressible(Exception):
    """There is no text for it."""


class Symbols:
    """sympy's symbols by our names, in the order in which they were met."""

    def __init__(self, shape_env: Any) -> None:
        self.shape_env = shape_env
        self.names: dict[Any, str] = {}
        self.evaluated: dict[Any, str] = {}
        self.count = 0
        self.texts: dict[Any, int | str] = {}

    def fresh(self) -> str:
        self.count += 1
        return f"s{self.count - 1}"

    def text(self, expression: Any) -> int | str:
        known = self.texts.get(expression)
        if known is None:
            known = self.texts[expression] = int(expression) if expression.is_Integer else self.write(expression)
        return known

    def write(self, e: Any) -> str:
        if e.is_Integer:
            return str(int(e)) if e >= 0 else f"({int(e)})"
        if e.is_Symbol:
            if not e.is_integer:
                raise Inexpressible
            if e not in self.names:
                self.names[e] = self.fresh()
            return self.names[e]
        writer = _WRITERS.get(type(e).__name__)
        if writer is None or any(arg.is_Boolean for arg in e.args):
            raise Inexpressible
        return writer(self, e)

    def described(self) -> list[dict[str, Any]]:
        symbols: list[dict[str, Any]] = [
            {"name": name, **_torch.range_of(self.shape_env, symbol)} for symbol, name in self.names.items()
        ]
        symbols.extend({"name": name, "min": 0, "max": None, "hint": None} for name in self.evaluated.values())
        return symbols


def _joined(sign: str) -> Callable[[Symbols, Any], str]:
    return lambda self, e: "(" + sign.join(self.write(arg) for arg in e.args) + ")"


def _called(name: str) -> Callable[[Symbols, Any], str]:
    return lambda self, e: f"{name}(" + ", ".join(self.write(arg) for arg in e.args) + ")"


def _power(self: Symbols, e: Any) -> str:
    base, exponent = e.args
    if not (exponent.is_Integer and 1 <= exponent <= 8):
        raise Inexpressible
    return "(" + "*".join([self.write(base)] * int(exponent)) + ")"


def _modular(self: Symbols, e: Any) -> str:
    base, divisor, modulus = (self.write(arg) for arg in e.args)
    return f"(({base}//{divisor})%{modulus})"


_WRITERS: dict[str, Callable[[Symbols, Any], str]] = {
    "Add": _joined(" + "),
    "Mul": _joined("*"),
    "FloorDiv": _joined("//"),
    "CleanDiv": _joined("//"),
    "PythonMod": _joined("%"),
    "Mod": _joined("%"),
    "Min": _called("min"),
    "Max": _called("max"),
    "CeilDiv": _called("ceildiv"),
    "Pow": _power,
    "PowByNatural": _power,
    "ModularIndexing": _modular,
    "Identity": lambda self, e: self.write(e.args[0]),
}
