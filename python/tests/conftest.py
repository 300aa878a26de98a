"""Every test begins with a fresh Dynamo and numbers from a seed."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
