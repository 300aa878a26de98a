"""The counts that must not rise: external operators and interpreter-run kernels, per operator and per model.

They stand in `python/tests/counts/*.json`: a row an operator, dtype and direction (or a model and a way to run it), and the reason of
every external operator. `--bless` writes them. `docs/operators.md` is written from the rows of the operator database.
"""

import collections
import json
import pathlib

from judge import share

HERE = pathlib.Path(__file__).resolve().parent.parent / "counts"
OPERATORS = pathlib.Path(__file__).resolve().parents[3] / "docs" / "operators.md"
COUNTED = ("external", "interpreted")


def row(samples, kernels, interpreted, calls):
    """One row: `calls` counts the external operators by name."""
    return {"samples": samples, "kernels": kernels, "external": sum(calls.values()), "interpreted": interpreted, "calls": dict(sorted(calls.items()))}


def load(name):
    path = HERE / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"reasons": {}, "rows": {}}


def write(name, rows, reasons, partial, shared=None):
    """Writes the counts, and the share that runs without torch; a partial run replaces its own rows alone."""
    HERE.mkdir(exist_ok=True)
    before = load(name)
    shared = shared or before.get("share")
    if partial:
        rows, reasons = {**before["rows"], **rows}, {**before["reasons"], **reasons}
    used = {call for r in rows.values() for call in r["calls"]}
    reasons = {call: reasons[call] for call in sorted(used) if call in reasons}

    def lines(table):
        return ",\n".join(f"  {json.dumps(k)}: {json.dumps(table[k])}" for k in sorted(table))

    share = f' "share": {json.dumps(shared)},\n' if shared else ""
    (HERE / f"{name}.json").write_text('{\n "reasons": {\n' + lines(reasons) + "\n },\n" + share + ' "rows": {\n' + lines(rows) + "\n }\n}\n")


def rises(name, found, whole=False):
    """One sentence for each count that is above the recorded one, or cannot be told from it; of a whole run, for each recorded row that was not counted too."""
    recorded = load(name)["rows"]
    said = []
    for entry, now in found.items():
        before = recorded.get(entry)
        if before is None:
            said.append(f"{entry}: not recorded (external {now['external']}, interpreted {now['interpreted']}); --bless records it")
            continue
        if now["samples"] != before["samples"]:
            said.append(f"{entry}: {now['samples']} samples, was {before['samples']}: the counts cannot be compared; --bless records them")
            continue
        for c in COUNTED:
            if now[c] > before[c]:
                said.append(f"{entry}: {c} {now[c]}, was {before[c]} ({now['calls']} instead of {before['calls']})")
    if whole:
        said += [f"{entry}: recorded, and not counted now" for entry in recorded if entry not in found]
    return said


def check(name, found, whole=False):
    said = rises(name, found, whole)
    for line in said[:50]:
        print(f"COUNT ROSE {line}")
    return not said


# ---- docs/operators.md ---------------------------------------------------------------------------------------------

DTYPES = ("float32", "bfloat16", "int64", "bool")
HEAD = """# Operators

Written by `cargo xtask opinfo --bless` from `python/tests/counts/opinfo.json`; do not edit.

A row is an operator of PyTorch's database (`torch.testing`). *compiled*: every sample ran in kernels of ours alone. Otherwise the
operators that torch itself ran, inside our plan, and why. A column of a dtype holds the number of samples that were compared with
eager, forward; *gradient* those of the backward in float32.

"""


def operators():
    """The page, from the recorded rows."""
    recorded = load("opinfo")
    by_op = collections.defaultdict(dict)
    calls = collections.defaultdict(set)
    for entry, r in recorded["rows"].items():
        op, dtype, direction = entry.rsplit(" ", 2)
        by_op[op]["gradient" if direction == "gradient" else dtype] = r["samples"]
        calls[op].update(r["calls"])
    columns = (*DTYPES, "gradient")
    whole = sum(not calls[op] for op in by_op)
    text = [HEAD, f"{len(by_op)} operators, {whole} of them compiled in every sample.\n\n"]
    if recorded.get("share"):
        text.append(share.page(recorded["share"]))
    text.append("| operator | " + " | ".join(columns) + " | how it runs |\n|---|" + "---:|" * len(columns) + "---|\n")
    for op in sorted(by_op):
        how = "compiled" if not calls[op] else ", ".join(f"`{c.removeprefix('aten.')}`" for c in sorted(calls[op]))
        text.append(f"| `{op}` | " + " | ".join(str(by_op[op].get(c, "")) for c in columns) + f" | {how} |\n")
    text.append("\n## Why an operator runs in torch\n\n| operator | reason |\n|---|---|\n")
    for call, reason in sorted(recorded["reasons"].items()):
        text.append(f"| `{call}` | {reason} |\n")
    return "".join(text)


def write_operators():
    OPERATORS.write_text(operators())
