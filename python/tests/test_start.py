"""What a first call does besides compiling: nothing of Inductor is imported or asked for it, and nobody else's cache notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._inductor import codecache

from oxyfuel import _torch, decompositions

PROGRAM = """
import json, sys, torch
from torch._inductor import codecache
import oxyfuel

def plus(x):
    return torch.relu(x + 1)

x = torch.randn(4)
torch.testing.assert_close(torch.compile(plus, backend=oxyfuel.backend)(x), plus(x))
loaded = sorted(name for name in ("torch._inductor.lowering", "torch._inductor.compile_fx") if name in sys.modules)
system = codecache.CacheBase.get_system()
torch._dynamo.reset()
counters = torch._dynamo.utils.counters["aot_autograd"]
torch.testing.assert_close(torch.compile(plus, backend=oxyfuel.backend)(x), plus(x))
print(json.dumps({"loaded": loaded, "system": system, "hits": counters["autograd_cache_hit"]}))
"""


def run(folder: Path) -> dict[str, Any]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_of_inductor_is_imported(tmp_path: Path) -> None:
    assert run(tmp_path)["loaded"] == []


def test_the_key_is_the_same_before_and_after_others_asked_torch(tmp_path: Path) -> None:
    assert run(tmp_path)["hits"] == 1


def test_inductor_learns_the_truth_about_the_system(tmp_path: Path) -> None:
    assert run(tmp_path)["system"] == codecache.CacheBase.get_system()


def test_only_the_thread_that_compiles_leaves_triton_out() -> None:
    truth = codecache.CacheBase.get_system()
    seen: list[Any] = []
    with _torch.cached_as("test"):
        ours = codecache.CacheBase.get_system()
        thread = threading.Thread(target=lambda: seen.append(codecache.CacheBase.get_system()))
        thread.start()
        thread.join()
    # Some versions say nothing of Triton where there is no GPU, and some leave us no way to keep it out.
    if hasattr(codecache, "triton_key"):
        assert ours.get("version", {}).get("triton") is None
    assert seen == [truth]
    assert codecache.CacheBase.get_system() == truth
    assert {**ours, **{key: truth[key] for key in ("version", "hash") if key in truth}} == truth


def test_what_the_table_leaves_out_is_taken_apart_by_the_dispatcher() -> None:
    ours, theirs = _torch.core_decompositions(), dict(core_aten_decompositions())
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    for overload in theirs.keys() - ours.keys():
        name = overload.name()
        known = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") or composite in overload.py_kernels
        assert known, name
        # Kernels beside the parts are listed, or kept whole in any case.
        kept = overload not in decompositions.table(False) and any(overload.name().startswith(f"aten::{whole}") for group in decompositions.WHOLE.values() for whole in group)
        assert kept or not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"), name
    assert torch.ops.aten.native_channel_shuffle.default in ours
    assert ours.keys() <= theirs.keys()
