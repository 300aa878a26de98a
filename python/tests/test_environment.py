"""Every environment variable of the design, each in a process of its own with and without it: what it does is seen, not only read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oxyfuel.options import KEYS

STAGES = ["graph", "decomposed", "simplified", "settled", "schedule", "logical", "mapped", "code", "plan"]

# Compiles `x * 3.140625 + 1`, and says what became of it. Then the constant in the machine code alone is made another one, as if the compiler had
# written it wrongly, and that plan is called with the options of the process.
PROGRAM = """
import importlib, json, os, pathlib, struct, time, torch, oxyfuel
from oxyfuel import _native
door = importlib.import_module("oxyfuel.backend")
codes, original = [], door.compile_graph
def keep(*args):
    codes.append(original(*args))
    return codes[-1]
door.compile_graph = keep
torch.set_num_threads(1)
# Enough for several threads; little where the interpreter runs it too.
x = torch.ones(1 << (22 if "OXYFUEL_NUM_THREADS" in os.environ else 12))
said = {"error": None}
try:
    y = torch.compile(lambda x: x * 3.140625 + 1, backend="oxyfuel")(x)
    said["right"] = bool((y == 4.140625).all())
except Exception as error:
    while error is not None and not isinstance(error, oxyfuel.OxyfuelError):
        error = error.__cause__ or error.__context__
    said["error"] = error.code
tasks = pathlib.Path("/proc/self/task")
expected = int(os.environ.get("OXYFUEL_NUM_THREADS", "1")) - 1
for _ in range(3000):
    said["threads"] = sum((task / "comm").read_text().startswith("oxyfuel-") for task in tasks.iterdir())
    if said["threads"] >= expected:
        break
    time.sleep(0.01)  # A thread names itself when it first runs.
said["compiles"] = len(codes)
if codes:
    explained = json.loads(codes[0].run.explain())
    said["origin"] = explained["origin"]
    plan = codes[0].run.serialize()
    good, bad = struct.pack("<f", 3.140625), struct.pack("<f", 2.5)
    assert good in plan
    wrong = _native.load(plan.replace(good, bad), oxyfuel.config.current().native([], 1), [])
    try:
        said["wrong"] = wrong([x])[0][0].item()
    except oxyfuel.OxyfuelError as error:
        said["wrong"] = error.code
print(json.dumps(said))
"""


def run(folder: Path, **variables: str) -> tuple[dict[str, Any], str]:
    """What the program says, and what it logs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OXYFUEL_")}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"), "TORCHINDUCTOR_AUTOGRAD_CACHE": "0", **variables}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def verify(folder: Path) -> None:
    said, _ = run(folder, OXYFUEL_VERIFY="1")
    assert said["right"]
    assert said["wrong"] == "E0803"


def trace(folder: Path) -> None:
    run(folder, OXYFUEL_TRACE=str(folder / "trace"))
    (compiled,) = (folder / "trace").iterdir()
    assert sorted(path.name for path in compiled.iterdir()) == [f"{number}-{stage}.txt" for number, stage in enumerate(STAGES)]
    assert all(path.read_text().strip() for path in compiled.iterdir())
    assert "3.140625" in (compiled / "0-graph.txt").read_text()


def log(folder: Path) -> None:
    _, logged = run(folder, OXYFUEL_LOG="+oxyfuel")
    assert "DEBUG oxyfuel: inference: compiled in" in logged
    _, logged = run(folder, OXYFUEL_LOG="-oxyfuel")
    assert "oxyfuel:" not in logged


def cache_dir(folder: Path) -> None:
    plans = folder / "plans"
    said, _ = run(folder, OXYFUEL_CACHE_DIR=str(plans))
    assert said["origin"] == "compiled" and len(list(plans.glob("*.plan"))) == 1
    said, _ = run(folder, OXYFUEL_CACHE_DIR=str(plans))
    assert said["origin"] == "disk" and said["right"]


def num_threads(folder: Path) -> None:
    said, _ = run(folder, OXYFUEL_NUM_THREADS="3")
    assert said["threads"] == 2 and said["right"]


def disable(folder: Path) -> None:
    said, _ = run(folder, OXYFUEL_DISABLE="1")
    assert said["compiles"] == 0 and said["right"]


def memory_limit(folder: Path) -> None:
    said, _ = run(folder, OXYFUEL_MEMORY_LIMIT="4096")
    assert said["error"] == "E0605"


def cudagraph_memory_limit(folder: Path) -> None:
    """What it does needs a GPU, or what stands for one in test_recorded.py: here, that it arrives."""
    code = "import oxyfuel; print(oxyfuel.config.cudagraph_memory_limit)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "OXYFUEL_CUDAGRAPH_MEMORY_LIMIT": "12345"}, capture_output=True, text=True, cwd=folder)
    assert done.stdout.split() == ["12345"], done.stderr


def launch_blocking(_: Path) -> None:
    """Its effect is on a GPU; here, that the options of a compile have it."""
    program = "import oxyfuel; print(oxyfuel.config.current().launch_blocking)"
    for value, wanted in (("1", "True"), ("0", "False")):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "OXYFUEL_LAUNCH_BLOCKING": value})
        assert done.stdout.split() == [wanted], done.stderr


VARIABLES: dict[str, Callable[[Path], None]] = {
    "OXYFUEL_VERIFY": verify,
    "OXYFUEL_TRACE": trace,
    "OXYFUEL_LOG": log,
    "OXYFUEL_CACHE_DIR": cache_dir,
    "OXYFUEL_NUM_THREADS": num_threads,
    "OXYFUEL_DISABLE": disable,
    "OXYFUEL_MEMORY_LIMIT": memory_limit,
    "OXYFUEL_CUDAGRAPH_MEMORY_LIMIT": cudagraph_memory_limit,
    "OXYFUEL_LAUNCH_BLOCKING": launch_blocking,
}


def test_all_variables_stand_here() -> None:
    assert set(VARIABLES) == {key.variable for key in KEYS.values() if key.variable}


def test_without_any(tmp_path: Path) -> None:
    said, logged = run(tmp_path)
    assert said == {"right": True, "error": None, "threads": 0, "compiles": 1, "origin": "compiled", "wrong": 3.5}
    assert "oxyfuel" not in logged
    assert [path.name for path in tmp_path.iterdir() if path.name != "torch"] == []


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_effect_of(variable: str, tmp_path: Path) -> None:
    VARIABLES[variable](tmp_path)
