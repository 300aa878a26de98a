"""A batch whose size changes from call to call: two compiles serve every size.

    python dynamic_batch.py
"""

from __future__ import annotations

from typing import Any

import oxyfuel
import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.LayerNorm(64), nn.Linear(64, 4)).eval()
    compiles = 0

    def counted(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return oxyfuel.backend(gm, inputs)

    fast = torch.compile(model, backend=counted)
    with torch.no_grad():
        for size in range(2, 66):
            x = torch.randn(size, 16)
            torch.testing.assert_close(fast(x), model(x))
    print(f"64 batch sizes, {compiles} compiles")
    assert compiles <= 2


if __name__ == "__main__":
    main()
