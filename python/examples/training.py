"""A training loop, compiled and eager side by side: the losses agree, step by step.

    python training.py
"""

from __future__ import annotations

import copy
import time

import torch
from torch import nn


def main(steps: int = 20) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
    reference = copy.deepcopy(model)
    fast = torch.compile(model, backend="oxyfuel")
    x, target = torch.randn(64, 32), torch.randint(0, 10, (64,))

    losses: dict[str, list[float]] = {}
    for name, net, run in (("eager", reference, reference), ("oxyfuel", model, fast)):
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
        losses[name] = []
        start = time.perf_counter()
        for _ in range(steps):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(run(x), target)
            loss.backward()
            optimiser.step()
            losses[name].append(loss.item())
        print(f"{name:8} {steps} steps in {1e3 * (time.perf_counter() - start):.0f} ms, loss {losses[name][0]:.4f} -> {losses[name][-1]:.4f}")
    torch.testing.assert_close(torch.tensor(losses["oxyfuel"]), torch.tensor(losses["eager"]), rtol=1e-3, atol=1e-4)
    # The keys are those of the model that was compiled: a checkpoint fits both ways.
    reference.load_state_dict(model.state_dict())
    print("the losses agree")


if __name__ == "__main__":
    main()
