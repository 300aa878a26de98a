"""Eager against every mode of the backend, on a small transformer block: the same results, and what a call costs.

    python quickstart.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Block(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def microseconds(run: Callable[[], object], seconds: float = 0.3) -> float:
    """The shortest of the calls that fit in the time."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best


def main() -> None:
    torch.manual_seed(0)
    model = Block().eval()
    x = torch.randn(64, 256)
    with torch.no_grad():
        expected = model(x)
        print(f"{'mode':28} {'first call':>12} {'a call':>12}")
        print(f"{'eager':28} {'':>12} {microseconds(lambda: model(x)):>9.0f} us")
        for mode in MODES:
            torch.compiler.reset()
            fast = torch.compile(model, backend="oxyfuel", mode=mode)
            start = time.perf_counter()
            result = fast(x)
            first = time.perf_counter() - start
            torch.testing.assert_close(result, expected)
            print(f"{mode:28} {1e3 * first:>9.0f} ms {microseconds(lambda: fast(x)):>9.0f} us")
    print("every mode agrees with eager")


if __name__ == "__main__":
    main()
