"""Every test begins with a fresh Dynamo and numbers from a seed, and compiles what it runs: nothing comes from a cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield
