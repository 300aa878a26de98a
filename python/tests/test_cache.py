"""A second process compiles nothing: plans travel in AOTAutograd's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys, torch
from torch._dynamo.utils import counters
import oxyfuel.compiled, importlib
door = importlib.import_module("oxyfuel.backend")
compiles = 0
original = door.compile_graph
def counted(*args):
    global compiles
    compiles += 1
    return original(*args)
door.compile_graph = counted
torch.manual_seed(0)
options = json.loads(sys.argv[1])
layers = options.pop("layers", "torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)")
model = torch.nn.Sequential(*eval(layers))
x = torch.randn(3, 8)
fast = torch.compile(model, backend=options.pop("backend", "oxyfuel"), **options)
y = fast(x)
y.sum().backward(retain_graph=True)
model.eval()
with torch.no_grad():
    z = fast(x)
torch.testing.assert_close(z, model(x))
print(json.dumps({
    "compiles": compiles,
    "hits": counters["aot_autograd"]["autograd_cache_hit"],
    "saved": counters["aot_autograd"]["autograd_cache_saved"],
    "sum": y.sum().item(),
    "grad": model[0].weight.grad.sum().item(),
}))
"""


def run(folder: Path, **options: Any) -> dict[str, Any]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(options)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first["compiles"] == 3
    assert first["saved"] == 2
    second = run(tmp_path)
    assert second["compiles"] == 0
    assert second["hits"] == 2
    assert second["sum"] == first["sum"] and second["grad"] == first["grad"]


def test_other_options_are_other_entries(tmp_path: Path) -> None:
    run(tmp_path)
    other = run(tmp_path, options={"numerics": "fast"})
    assert other["hits"] == 0 and other["compiles"] == 3


def test_a_dynamic_graph_is_found_too(tmp_path: Path) -> None:
    run(tmp_path, dynamic=True)
    second = run(tmp_path, dynamic=True)
    assert second["compiles"] == 0
