"""From a slow or wrong result to its cause.

    python debugging.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import oxyfuel
import torch
from torch import nn


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = nn.functional.gelu(x @ w)
    return torch.linalg.vector_norm(y, dim=-1) + torch.lgamma(x).sum(-1)


def main() -> None:
    x, w = torch.rand(8, 16) + 1, torch.randn(16, 16)
    expected = model(x, w)

    print("1. what became of it, and what torch runs itself:")
    print(oxyfuel.explain(model, x, w))

    print("\n2. every kernel checked against the interpreter:")
    torch.compiler.reset()
    with oxyfuel.config.patch(verify=True):
        torch.testing.assert_close(torch.compile(model, backend="oxyfuel")(x, w), expected)
    print("agrees")

    print("\n3. one operator left to torch:")
    torch.compiler.reset()
    suspect = torch.compile(model, backend="oxyfuel", options={"external": ["aten.gelu"]})
    torch.testing.assert_close(suspect(x, w), expected)
    print("agrees")

    print("\n4. every stage as text:")
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder:
        torch.compile(model, backend="oxyfuel", options={"trace_dir": folder})(x, w)
        for path in sorted(Path(folder).rglob("*.txt")):
            print(f"  {path.relative_to(folder)}: {len(path.read_text().splitlines())} lines")

    print("\n5. a compile of ours that fails is a warning, or an error where that is asked for:")
    print('   torch.compile(model, backend="oxyfuel", options={"fallback": "error"})')


if __name__ == "__main__":
    main()
