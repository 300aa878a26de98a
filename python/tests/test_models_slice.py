"""Three small models through torch.compile against eager; `cargo xtask models` runs all of them in every way."""

import pytest

from judge import counts, doors, models

SLICE = [("resnet18", "eval"), ("resnet18", "train"), ("gpt2", "eval"), ("gpt2", "backward"), ("bert", "train")]


@pytest.mark.parametrize("name, way", SLICE)
def test_model_agrees_with_eager(name, way):
    found, seen, _ = models.judge(name, way, doors.door("oxyfuel"))
    assert not found, "\n".join(found)
    row = counts.row(1, seen.kernels, seen.interpreted, seen.external)
    said = counts.rises("models", {f"{name} {way}": row})
    assert not said, "\n".join(said)
