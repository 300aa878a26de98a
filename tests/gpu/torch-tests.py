#!/usr/bin/env python3
"""The torch door on a GPU: usage: torch-tests.py [NAME …] | --list

Unpacks the wheel beside it and runs the functions of `test_cuda.py` whose names begin with `test_`, all or those that are named, with a fresh Dynamo each and nothing from
a cache. --list says their names and needs no torch. Needs torch and no pytest. Closes with 'N passed; N failed'.
"""

import ast
import glob
import os
import sys
import tempfile
import time
import traceback
import types
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


class Mark:
    """Marks say when pytest leaves a test out; here nothing is left out."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: lambda function: function


def names():
    with open(os.path.join(HERE, "test_cuda.py")) as file:
        return [node.name for node in ast.parse(file.read()).body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def main(args):
    if args == ["--list"]:
        print("\n".join(names()))
        return 0
    wanted = args or names()
    (wheel,) = glob.glob(os.path.join(HERE, "*.whl"))
    folder = tempfile.TemporaryDirectory()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder.name)
    sys.path[:0] = [folder.name, HERE]
    try:
        import pytest  # noqa: F401
    except ImportError:
        sys.modules["pytest"] = types.SimpleNamespace(mark=Mark())

    import test_cuda
    import torch

    passed, failed = 0, 0
    for name in wanted:
        test = getattr(test_cuda, name)
        torch._dynamo.reset()
        torch.manual_seed(0)
        started = time.perf_counter()
        try:
            with torch._functorch.config.patch(enable_autograd_cache=False):
                test()
            torch.cuda.synchronize()
            passed += 1
            print(f"ok {name} {time.perf_counter() - started:.1f} s", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()[-3000:]}", flush=True)
    print(f"{passed} passed; {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
