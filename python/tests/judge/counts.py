"""The counts that must not rise: external operators and interpreter-run kernels, per operator and per model.

They stand in `python/tests/counts/*.json`; `--bless` writes them. `docs/operators.md` is written from a whole run.
"""

import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent.parent / "counts"
OPERATORS = pathlib.Path(__file__).resolve().parents[3] / "docs" / "operators.md"
COUNTED = ("external", "interpreted")


def load(name):
    path = HERE / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(name, found, partial):
    """Writes the counts; a partial run replaces its own entries alone."""
    HERE.mkdir(exist_ok=True)
    merged = {**load(name), **found} if partial else found
    rows = ",\n".join(f" {json.dumps(k)}: {json.dumps(merged[k])}" for k in sorted(merged))
    (HERE / f"{name}.json").write_text("{\n" + rows + "\n}\n")


def rises(name, found):
    """One sentence for each count that is above the recorded one. Entries that are not recorded count as zero."""
    recorded = load(name)
    said = []
    for entry, now in found.items():
        before = recorded.get(entry)
        if before is None:
            if recorded and any(now[c] for c in COUNTED):
                said.append(f"{entry}: not in the counts file (external {now['external']}, interpreted {now['interpreted']})")
            continue
        for c in COUNTED:
            if now[c] > before[c] and now.get("samples") == before.get("samples"):
                said.append(f"{entry}: {c} {now[c]}, was {before[c]}")
    return said


def check(name, found, partial=True):
    said = rises(name, found)
    for line in said[:50]:
        print(f"COUNT ROSE {line}")
    return not said
