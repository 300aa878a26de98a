"""What is said of a GPU that cannot be used: libraries in the place of the CUDA driver's, as `oxyfuel doctor` is tested with them, are found by a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import oxyfuel
import pytest

ROOT = Path(__file__).parents[2]

# A graph of tensors of a GPU, traced with fake ones, as the backend compiles it; and what asks for a device by its name.
PROGRAM = """
import sys, warnings
import torch, oxyfuel
from oxyfuel import _native
from oxyfuel.options import Options
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

device = sys.argv[1]
try:
    _native.fingerprint(Options().native([], 1, device))
except oxyfuel.OxyfuelError as error:
    print("code", error.code, error.message)
with FakeTensorMode():
    gm = make_fx(lambda x: (x * 2 + 1,))(torch.empty(4, device=device))
compile_graph = sys.modules["oxyfuel.backend"]._compile
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    compile_graph(gm, [], options=Options(), role="inference")
print("told", *(one.message for one in told))
try:
    compile_graph(gm, [], options=Options(fallback="error"), role="inference")
except oxyfuel.OxyfuelError as error:
    print("code", error.code, error.message)
"""


def started(version: int, count: int) -> str:
    """The text of a driver of that version, with so many GPUs."""
    return _text("STARTED", START=0, VERSION=version, COUNT=count)


def with_card(major: int, minor: int) -> str:
    """The text of a driver whose one GPU has this compute capability."""
    return started(12_040, 1) + _text("OPENED", MAJOR=major, MINOR=minor)


def _text(name: str, **numbers: int) -> str:
    source = (ROOT / "crates/testkit/src/driver.rs").read_text()
    found = re.search(rf'const {name}: &str = r#"(.*?)"#;', source, re.DOTALL)
    assert found is not None, f"{name} is not in the test kit any more"
    text = found[1]
    for word, number in numbers.items():
        text = text.replace(word, str(number))
    return text


@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("rustc") is None, reason="libraries are made with rustc and found as Linux finds them")
@pytest.mark.parametrize(
    ("text", "device", "code", "words"),
    [
        ("", "cuda:0", "E0701", "no CUDA driver can be loaded"),
        (started(11_040, 1), "cuda:0", "E0711", "is of CUDA 11.4, and CUDA 12.0 is the oldest that we work with"),
        (started(12_040, 0), "cuda:0", "E0702", "there is no device cuda:0; this machine has 0"),
        (with_card(9, 0), "cuda:99", "E0702", "there is no device cuda:99; this machine has 1"),
        (with_card(7, 5), "cuda:0", "E0704", "compute capability 7.5 is below 8.0"),
    ],
    ids=["no driver", "an old driver", "no GPU", "a wrong index", "an old GPU"],
)
def test_a_gpu_that_cannot_be_used_is_the_cause_with_its_code(tmp_path: Path, text: str, device: str, code: str, words: str) -> None:
    if text:
        (tmp_path / "driver.rs").write_text(text)
        subprocess.run(["rustc", "--edition=2024", "--crate-type=cdylib", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.rs"], check=True, capture_output=True)
    else:
        # In the place of a driver that is there.
        for name in ("libcuda.so.1", "libcuda.so"):
            (tmp_path / name).write_text("no library")
    path = os.pathsep.join([str(Path(oxyfuel.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    libraries = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, device], capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": libraries}
    )
    lines = done.stdout.splitlines()
    codes = [line for line in lines if line.startswith("code")]
    told = [line for line in lines if line.startswith("told")]
    said = done.stdout + done.stderr
    assert len(codes) == 2 and all(line.startswith(f"code {code} ") and words in line for line in codes), said
    (warning,) = told
    assert "which runs uncompiled" in warning and f"error[{code}]" in warning and words in warning, said
