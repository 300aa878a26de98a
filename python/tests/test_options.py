"""Options: checked where they are given, with errors that say what is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import oxyfuel
import pytest
import torch
from oxyfuel import OxyfuelError, _torch
from oxyfuel.options import KEYS, MODES, Options, resolve


def one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compile_error(**kwargs: object) -> OxyfuelError:
    return error_of(torch.compile(one, backend="oxyfuel", **kwargs), torch.ones(3))


def error_of(function: Callable[..., object], *args: object) -> OxyfuelError:
    with pytest.raises(Exception) as raised:
        function(*args)
    error = raised.value
    while not isinstance(error, OxyfuelError):
        assert error.__cause__ is not None or error.__context__ is not None, repr(error)
        error = error.__cause__ or error.__context__
    return error


def test_an_unknown_key_lists_the_keys() -> None:
    error = compile_error(options={"modes": "x"})
    assert error.code == "E0401"
    assert all(key in str(error) for key in KEYS)


def test_a_wrong_value_says_what_is_allowed() -> None:
    error = compile_error(options={"numerics": "exact"})
    assert error.code == "E0402"
    assert "eager" in str(error)


def test_an_unknown_mode_lists_the_modes() -> None:
    error = compile_error(mode="fastest")
    assert error.code == "E0402"
    assert all(mode in str(error) for mode in MODES)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_works_both_ways(mode: str) -> None:
    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(one, backend="oxyfuel", mode=mode)(x), x + 1)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(one, backend="oxyfuel", options={"mode": mode})(x), x + 1)


@pytest.mark.parametrize("mode", MODES)
def test_code_is_for_what_calls_do(mode: str) -> None:
    """Kernels of recorded calls are others, whoever said that calls are recorded."""
    recorded = {"reduce-overhead", "max-autotune"}
    assert Options(mode=mode).compiled_mode == mode
    assert Options(mode=mode, cudagraphs="off").compiled_mode not in recorded
    assert Options(mode=mode, cudagraphs="require").compiled_mode in recorded


def test_mode_and_options_must_agree() -> None:
    with pytest.raises(OxyfuelError) as raised:
        resolve(Options(), "default", {"mode": "max-autotune"})
    assert raised.value.code == "E0403"


def test_config_is_patched_for_a_block() -> None:
    before = oxyfuel.config.numerics
    with oxyfuel.config.patch(numerics="fast", threads=2):
        assert (oxyfuel.config.numerics, oxyfuel.config.threads) == ("fast", 2)
        assert resolve(oxyfuel.config.current(), None, {"threads": 3}).threads == 3
    assert oxyfuel.config.numerics == before


def test_config_refuses_what_it_does_not_know() -> None:
    with pytest.raises(OxyfuelError, match="E0401"):
        oxyfuel.config.speed = 1
    with pytest.raises(OxyfuelError, match="E0402"):
        oxyfuel.config.threads = -1
    with pytest.raises(OxyfuelError, match="E0401"), oxyfuel.config.patch(speed=1):
        pass


def between_products(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x + 1) @ x


def test_a_memory_limit_is_an_error_that_names_the_largest_buffers() -> None:
    x = torch.randn(64, 64)
    # At most a product and what is made of it, or the result and what it was made of, live at once.
    needed = 2 * x.nbytes
    for limit in (needed - 1, 1):
        torch._dynamo.reset()
        error = error_of(torch.compile(between_products, backend="oxyfuel", options={"memory_limit": limit}), x)
        assert error.code == "E0605"
        assert f"needs {needed} bytes" in error.message and str(limit) in error.message
        assert error.help is not None and f"{x.nbytes} bytes" in error.help
    torch._dynamo.reset()
    enough = torch.compile(between_products, backend="oxyfuel", options={"memory_limit": needed})
    torch.testing.assert_close(enough(x), between_products(x))


def test_a_memory_limit_is_kept_by_plans_from_the_cache_and_with_other_threads() -> None:
    x = torch.randn(64, 64)
    limited = torch.compile(between_products, backend="oxyfuel", dynamic=True, options={"memory_limit": 2 * x.nbytes})
    torch.testing.assert_close(limited(x), between_products(x))
    torch._dynamo.reset()
    limited(x)
    larger = torch.randn(65, 65)
    before = torch.get_num_threads()
    assert error_of(limited, larger).code == "E0605"
    try:
        torch.set_num_threads(before + 1)
        assert error_of(limited, larger).code == "E0605"
        limited(x)
    finally:
        torch.set_num_threads(before)


def test_a_memory_limit_of_symbolic_sizes_refuses_the_call() -> None:
    f = torch.compile(lambda x: (x.sin() + 1).sum(0) * x, backend="oxyfuel", dynamic=True, options={"memory_limit": 4 * (40 + 1) * 30})
    for n in (20, 30, 40):
        x = torch.randn(n, 30)
        torch.testing.assert_close(f(x), (x.sin() + 1).sum(0) * x)
    error = error_of(f, torch.randn(50, 30))
    assert error.code == "E0605" and "result" in str(error.help)
    x = torch.randn(10, 30)
    torch.testing.assert_close(f(x), (x.sin() + 1).sum(0) * x)


def test_a_memory_limit_of_the_process() -> None:
    with oxyfuel.config.patch(memory_limit=8):
        assert compile_error().code == "E0605"
    code = "import oxyfuel; print(oxyfuel.config.memory_limit)"
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "OXYFUEL_MEMORY_LIMIT": "4096"}, capture_output=True, text=True)
    assert run.stdout.strip() == "4096"
    with pytest.raises(OxyfuelError, match="E0402"):
        resolve(Options(), None, {"memory_limit": "much"})


def test_disabled_runs_the_graph_as_it_is() -> None:
    code = (
        "import importlib, torch\n"
        "importlib.import_module('oxyfuel.backend')._aot = None\n"
        "x = torch.randn(3)\n"
        "assert torch.equal(torch.compile(lambda x: x + 1, backend='oxyfuel')(x), x + 1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OXYFUEL_DISABLE": "1"})


def test_a_wrong_variable_is_named() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import oxyfuel"], env={**os.environ, "OXYFUEL_VERIFY": "maybe"}, capture_output=True, text=True
    )
    assert run.returncode != 0
    assert "E0402" in run.stderr and "OXYFUEL_VERIFY" in run.stderr


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0", "3.0.0+cu132", "nightly"])
def test_a_torch_that_is_not_known_is_refused(version: str) -> None:
    with pytest.raises(OxyfuelError) as raised:
        _torch.check_version(version)
    assert raised.value.code == "E0710"


@pytest.mark.parametrize("version", ["2.11.0", "2.15.0+cu132", "2.13.1"])
def test_supported_versions_pass(version: str) -> None:
    _torch.check_version(version)
