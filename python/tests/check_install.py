"""Run by an interpreter into which `pip install .` put the package, outside of the tree: everything that a user needs came with it, and nothing came from elsewhere."""

import importlib.metadata
import pathlib
import re
import sys


def check():
    home = pathlib.Path(sys.prefix)
    found = [d for d in importlib.metadata.distributions(name="oxyfuel")]
    assert len(found) == 1, f"{len(found)} distributions are called oxyfuel"
    (package,) = found
    assert home in pathlib.Path(package.locate_file("")).parents, f"installed at {package.locate_file('')}, not in {home}"

    points = importlib.metadata.entry_points(group="torch_dynamo_backends", name="oxyfuel")
    assert len(points) == 1, f"{len(points)} entry points for torch.compile"
    (point,) = points
    assert (point.value, point.dist.locate_file("")) == ("oxyfuel:backend", package.locate_file("")), point

    assert package.metadata["Requires-Python"] == ">=3.11", package.metadata["Requires-Python"]

    import oxyfuel
    import torch

    (low, high), requires = oxyfuel._torch.SUPPORTED, package.requires or []
    wanted = {"torch", f">={low[0]}.{low[1]}", f"<{high[0]}.{high[1]}"}
    assert len(requires) == 1 and set(re.findall(r"[<>=]+[\d.]+|\w+(?=\s*[<>])", requires[0])) == wanted, requires

    where = pathlib.Path(oxyfuel.__file__)
    assert home in where.parents, f"imported from {where}, not from {home}"
    for name in ("py.typed", "_native.pyi"):
        assert (where.parent / name).is_file(), f"{name} was not installed"
    assert "oxyfuel" in torch._dynamo.list_backends(), "torch.compile does not know the backend"
    x = torch.ones(3)
    assert torch.compile(lambda x: x + 1, backend="oxyfuel")(x).tolist() == [2.0, 2.0, 2.0]
    print(f"oxyfuel {package.version} and its entry point are installed in {home.name}")


if __name__ == "__main__":
    check()
