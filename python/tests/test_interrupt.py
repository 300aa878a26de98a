"""Ctrl-C, as a terminal sends it: to a process that runs kernels, and to one that compiles."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

PROGRAM = """
import signal, sys, time
# Whoever runs the tests in the background has it ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch
import oxyfuel
torch.set_num_threads(1)

def f(x):
    for _ in range(LENGTH):
        x = (x.sin() + 1).tanh()
    return x

x = torch.randn(SIZE)
expected = f(x[:100])
fast = torch.compile(f, backend=lambda gm, inputs: oxyfuel.backend(gm, inputs, options={"fallback": "error", "threads": 1}))
WARM
print("ready", flush=True)
calls = 0
try:
    while True:
        BODY
        calls += 1
except KeyboardInterrupt:
    # One is enough.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", calls, flush=True)
AGAIN
torch.testing.assert_close(fast(x)[:100], expected, rtol=1e-4, atol=1e-4)
signal.signal(signal.SIGINT, signal.default_int_handler)
print("again", flush=True)
while True:
    BODY
"""

# Kernels of some milliseconds, one after the other; and compiles, each of a new program as far as torch knows.
RUNNING = {"LENGTH": "4", "SIZE": "1 << 19", "WARM": "fast(x)", "BODY": "fast(x)", "AGAIN": ""}
COMPILING = {"LENGTH": "60", "SIZE": "200", "WARM": "", "BODY": "torch._dynamo.reset(); fast(x)", "AGAIN": "torch._dynamo.reset()"}

# Within this many seconds something must have come of it; a machine that is busy is slow, a call that never looks is slower.
PROMPT = 10.0

# One that comes while Dynamo asks a guard, or while Python runs a finaliser, is lost there, whoever compiles (1 of 600 here): people press again.
TRIES = 4


class Child:
    def __init__(self, program: str, folder: Path) -> None:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def line(self, seconds: float = 120.0) -> str:
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"nothing after {seconds} s") from None

    def interrupt(self) -> str:
        """What it says to Ctrl-C."""
        for _ in range(TRIES):
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(queue.Empty):
                return self.lines.get(timeout=PROMPT)
        raise AssertionError(f"nothing came of {TRIES} interrupts")


@pytest.mark.parametrize("what", [RUNNING, COMPILING], ids=["running", "compiling"])
def test_an_interrupt_ends_the_loop_and_the_next_call_works(what: dict[str, str], tmp_path: Path) -> None:
    program = PROGRAM
    for name, text in what.items():
        program = program.replace(name, text)
    child = Child(program, tmp_path)
    try:
        assert child.line() == "ready"
        # In the midst of it.
        time.sleep(0.5)
        assert child.interrupt().startswith("interrupted")
        assert child.line() == "again"
        # Nobody catches this one.
        time.sleep(0.3)
        for _ in range(TRIES):
            child.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(PROMPT)
                break
        assert child.process.returncode in (-signal.SIGINT, 1, 130), child.process.returncode
        assert child.process.stderr is not None and "KeyboardInterrupt" in child.process.stderr.read()
    finally:
        child.process.kill()
        child.process.wait()
