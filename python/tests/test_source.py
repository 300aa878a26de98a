"""What is said of the source: private names of torch stand in one module, the stub is what the native half has, and the type hints hold."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import oxyfuel
import pytest
from oxyfuel import _native

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "oxyfuel"
MODULES = sorted(path for path in PACKAGE.glob("*.py") if path.name != "_torch.py")


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def dotted(node: ast.AST) -> list[str]:
    """`a.b.c` as its names; empty where it does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*names, node.id][::-1] if isinstance(node, ast.Name) else []


def private_names(source: str) -> Iterator[tuple[int, str]]:
    """Private names of others that a module imports, reads, writes or asks for by text."""
    tree = ast.parse(source)
    # Names of operators are part of their schemas, whatever they begin with.
    operators = {"torch.ops"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ".".join(dotted(node.value)).startswith("torch.ops"):
            operators.update(target.id for target in node.targets if isinstance(target, ast.Name))
    # Private modules of ours.
    own = {"_torch", "_native"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if any(map(is_private, alias.name.split("."))))
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, name) for name in names if any(map(is_private, name.split("."))))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            names = dotted(node)
            whole = ".".join(names)
            of_ours = names and (names[0] in ("self", "cls") and len(names) == 2 or len(names) == 2 and names[0] in own)
            if not of_ours and not any(whole.startswith(f"{space}.") for space in operators):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr", "hasattr"):
            asked = node.args[1] if len(node.args) > 1 else None
            if isinstance(asked, ast.Constant) and isinstance(asked.value, str) and is_private(asked.value):
                yield node.lineno, asked.value


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_private_names_of_torch_are_in_one_module(path: Path) -> None:
    found = [f"{path.name}:{line}: {name}" for line, name in private_names(path.read_text())]
    assert not found, "put these into _torch.py:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import torch._dynamo", 1),
        ("from torch._dynamo import config", 1),
        ("from torch import _C", 1),
        ("torch._C.f()", 1),
        ("x = value._schema.returns", 1),
        ("getattr(x, '_schema')", 1),
        ("torch.ops.aten._local_scalar_dense.default", 0),
        ("A = torch.ops.aten\nA._prelu_kernel.default", 0),
        ("self._mine = 1", 0),
        ("self.theirs._schema", 1),
        ("from . import _torch\n_torch.resolve()", 0),
        ("x.__dict__", 0),
    ],
)
def test_the_scan_sees_them(source: str, count: int) -> None:
    assert len(list(private_names(source))) == count


def stub() -> ast.Module:
    return ast.parse((PACKAGE / "_native.pyi").read_text())


def parameters(function: ast.FunctionDef) -> list[tuple[str, bool]]:
    """Names of parameters, and whether each has a default."""
    required = len(function.args.args) - len(function.args.defaults)
    return [(parameter.arg, place >= required) for place, parameter in enumerate(function.args.args)]


def stubs(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {item.name: item for item in body if isinstance(item, ast.FunctionDef)}


def check_signatures(said: dict[str, ast.FunctionDef], owner: object) -> None:
    for name, function in said.items():
        if function.decorator_list:
            # A property has no parameters.
            assert inspect.isdatadescriptor(getattr(owner, name)) and len(function.args.args) == 1, name
            continue
        try:
            signature = inspect.signature(getattr(owner, name))
        except ValueError:
            # Special methods say nothing of their parameters.
            assert name.startswith("__"), name
            continue
        theirs = [(parameter.name, parameter.default is not inspect.Parameter.empty) for parameter in signature.parameters.values()]
        if not name.startswith("__"):
            assert parameters(function) == theirs, name


def test_the_stub_says_what_the_native_half_has() -> None:
    module = stub()
    functions = stubs(module.body)
    classes = {item.name: item for item in module.body if isinstance(item, ast.ClassDef)}
    values = {item.target.id for item in module.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)}
    public = {name for name in dir(_native) if not is_private(name) and not name.startswith("__")}
    assert public == {*functions, *classes}
    assert values == {"__version__"} and isinstance(_native.__version__, str)
    check_signatures(functions, _native)
    for name, said in classes.items():
        owner, methods = getattr(_native, name), stubs(said.body)
        known = {name for name in vars(owner) if not name.startswith("__")}
        assert known == {name for name in methods if not name.startswith("__")}
        check_signatures(methods, owner)
    assert "__call__" in stubs(classes["CompiledGraph"].body)


def mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mypy", *arguments], cwd=ROOT, capture_output=True, text=True)


# The environment of the tests has it, always; another may not.
needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None and ".venv-test" not in sys.prefix, reason="mypy is not installed")

USER = """
import oxyfuel

said = oxyfuel.explain(len, 1, options={"fallback": "error"})
text: str = said.to_json()
reasons: list[str] = said.recompiles[0].reasons
with oxyfuel.config.patch(threads=1):
    oxyfuel.config.verify
"""


@needs_mypy
def test_the_package_type_checks(tmp_path: Path) -> None:
    done = mypy("--cache-dir", str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_mypy
@pytest.mark.parametrize(("wrong", "says"), [("", ""), ("graphs: int = said.graphs\n", "assignment"), ("said.nothing\n", "attr-defined")])
def test_a_program_that_uses_it_type_checks(tmp_path: Path, wrong: str, says: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(USER + wrong)
    settings = tmp_path / "mypy.ini"
    settings.write_text(f"[mypy]\nmypy_path = {ROOT / 'python'}\n[mypy-torch.*,sympy.*,torch]\nfollow_imports = skip\nignore_missing_imports = True\n")
    done = mypy("--config-file", str(settings), "--cache-dir", str(tmp_path / "cache"), str(program))
    assert (done.returncode == 0) == (not wrong), done.stdout + done.stderr
    assert says in done.stdout


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(oxyfuel.__file__).parent / "py.typed").exists()
