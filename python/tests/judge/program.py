"""A random torch program as data: inputs, statements, outputs, and its text as runnable Python.

A program is made statement by statement while it runs in eager, so every statement is legal where it stands: what
raises, grows too large or leaves the well-conditioned range is thrown away.
"""

import dataclasses
import textwrap

import torch
import torch.nn.functional as F

# Values stay in a range in which one rounding error does not grow into a wrong result.
LARGEST = 1e3
MOST_ELEMENTS = 1 << 15


@dataclasses.dataclass(frozen=True)
class Statement:
    """`text` is one line; `target` the name that it binds (None: it mutates); `uses` the names that it reads or writes."""

    target: str | None
    text: str
    uses: tuple[str, ...]

    def line(self):
        return f"{self.target} = {self.text}" if self.target else self.text


@dataclasses.dataclass(frozen=True)
class Program:
    inputs: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    grad: bool = False
    dynamic: bool = False

    def source(self):
        body = [s.line() for s in self.statements]
        body.append("return " + (", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")))
        return f"def program({', '.join(n for n, _ in self.inputs)}):\n" + textwrap.indent("\n".join(body), "    ") + "\n"

    def function(self):
        space = {"torch": torch, "F": F}
        exec(compile(self.source(), "<program>", "exec"), space)
        return space["program"]

    def make_inputs(self):
        made = []
        for _, expression in self.inputs:
            t = eval(expression, {"torch": torch})
            if self.grad and t.dtype.is_floating_point:
                t = t.requires_grad_()
            made.append(t)
        return tuple(made)

    def script(self, backend):
        """The program as a file that shows the failure by itself."""
        lines = ["import torch", "import torch.nn.functional as F", "", self.source()]
        grad = ".requires_grad_()" if self.grad else ""
        for name, expression in self.inputs:
            floating = not any(d in expression for d in ("int", "bool"))
            lines.append(f"{name} = ({expression}){grad if floating else ''}")
        names = ", ".join(n for n, _ in self.inputs)
        lines.append(f"print(program({names}))")
        how = ", dynamic=True" if self.dynamic else ""
        lines.append(f'print(torch.compile(program, backend="{backend}"{how})({names}))')
        return "\n".join(lines) + "\n"

    def live(self):
        """The program without what no output and no mutation needs."""
        needed, kept = set(self.outputs), []
        for s in reversed(self.statements):
            if s.target is None or s.target in needed:
                kept.append(s)
                needed.update(s.uses)
        kept.reverse()
        inputs = tuple(i for i in self.inputs if i[0] in needed) or self.inputs[:1]
        return dataclasses.replace(self, statements=tuple(kept), inputs=inputs)

    def well_formed(self):
        known = {n for n, _ in self.inputs}
        for s in self.statements:
            if not known.issuperset(s.uses):
                return False
            if s.target:
                known.add(s.target)
        return bool(self.outputs) and known.issuperset(self.outputs)


def shrink(program, fails, patience=200):
    """The smallest program found that still fails: fewer outputs, fewer statements, values turned into inputs."""
    tries = 0

    def attempt(candidate):
        nonlocal tries, program
        if tries >= patience or not candidate.well_formed() or candidate == program:
            return False
        tries += 1
        if fails(candidate):
            program = candidate
            return True
        return False

    changed = True
    while changed and tries < patience:
        changed = False
        attempt(program.live())
        for flag in ("grad", "dynamic"):
            if getattr(program, flag):
                changed |= attempt(dataclasses.replace(program, **{flag: False}))
        for name in program.outputs:
            if len(program.outputs) > 1:
                changed |= attempt(dataclasses.replace(program, outputs=(name,)).live())
        for name in program.outputs:
            if len(program.outputs) > 1 and name in program.outputs:
                rest = tuple(o for o in program.outputs if o != name)
                changed |= attempt(dataclasses.replace(program, outputs=rest).live())
        for s in reversed(program.statements):
            if s not in program.statements:
                continue
            rest = tuple(t for t in program.statements if t is not s)
            if s.target is None:
                changed |= attempt(dataclasses.replace(program, statements=rest).live())
                continue
            # Its operand in its place, then a fresh input of the same form.
            for name in s.uses:
                changed |= attempt(_renamed(program, s, name))
            if s in program.statements:
                expression = _as_input(program, s)
                if expression:
                    rest = tuple(t for t in program.statements if t is not s)
                    candidate = dataclasses.replace(program, statements=rest, inputs=(*program.inputs, (s.target, expression)))
                    changed |= attempt(candidate.live())
            if s in program.statements and s.target not in program.outputs:
                at = program.statements.index(s)
                changed |= attempt(dataclasses.replace(program, statements=program.statements[: at + 1], outputs=(s.target,)).live())
    return program


def _renamed(program, statement, name):
    import re

    pattern = re.compile(rf"\b{statement.target}\b")
    statements = []
    for t in program.statements:
        if t is not statement:
            uses = tuple(name if u == statement.target else u for u in t.uses)
            statements.append(Statement(t.target, pattern.sub(name, t.text), uses))
    outputs = tuple(name if o == statement.target else o for o in program.outputs)
    return dataclasses.replace(program, statements=tuple(statements), outputs=outputs).live()


def _as_input(program, statement):
    """An input expression with the form of what a statement computes, or None."""
    at = program.statements.index(statement)
    part = dataclasses.replace(program, statements=program.statements[: at + 1], outputs=(statement.target,), grad=False)
    try:
        (t,) = part.function()(*part.make_inputs())
    except Exception:
        return None
    if not t.is_contiguous() or t.numel() > MOST_ELEMENTS:
        return None
    if t.dtype.is_floating_point:
        return f"torch.randn({tuple(t.shape)}, generator=torch.Generator().manual_seed(1)).to({t.dtype})"
    if t.numel() <= 64:
        return f"torch.tensor({t.tolist()}, dtype={t.dtype}).reshape({tuple(t.shape)})"
    return None
