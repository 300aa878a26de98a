#!/usr/bin/env python3
"""The torch door on a GPU: usage: torch-tests.py [FILTER]

Unpacks the wheel beside it and runs every function of `test_cuda.py` whose name begins with `test_` and has FILTER in it, with a fresh Dynamo each and nothing from
a cache. Needs torch and no pytest. Closes with 'N passed; N failed'.
"""

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


def main():
    needle = sys.argv[1] if len(sys.argv) > 1 else ""
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
    for name, test in list(vars(test_cuda).items()):
        if not name.startswith("test_") or needle not in name:
            continue
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
    sys.exit(main())
