"""Which code was judged or measured: the last commit that touched the package, as git says it."""

import functools
import importlib.util
import pathlib
import subprocess

# What a built package is made from; tests, pages and records are not.
CODE = ("Cargo.toml", "Cargo.lock", "crates", ":!crates/xtask", ":!crates/*/tests", "python/oxyfuel")


@functools.cache
def code():
    """The commit of the package that this interpreter imports; `+` behind it where files differ from it, `unknown` outside of a clone."""
    found = importlib.util.find_spec("oxyfuel")
    if found is None or found.origin is None:
        return "unknown"
    return of(pathlib.Path(found.origin).resolve().parents[2])


def of(root):
    commit = _git(root, "log", "-1", "--format=%h", "--abbrev=12", "--", *CODE)
    if not commit:
        return "unknown"
    return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no", "--", *CODE) else "")


def _git(root, *args):
    try:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True)
    except OSError:  # no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
