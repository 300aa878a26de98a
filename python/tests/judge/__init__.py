"""Torch as the judge: PyTorch's operator database, random programs and whole models, each against eager.

`python -m judge --help` with `python/tests` on the path; `cargo xtask opinfo`, `programs` and `models` do that.
"""
