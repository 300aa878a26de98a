"""What the judge found, on paper: `bench/record/judge.json` holds the last whole run of each suite, and `docs/torch.md` says it in a sentence.

`--record` writes them, for whole runs only. What was compared and what was skipped stand apart: only the former says anything.
"""

import json
import pathlib

from judge import revision

ROOT = pathlib.Path(__file__).resolve().parents[3]
RECORD = ROOT / "bench" / "record" / "judge.json"
PAGE = ROOT / "docs" / "torch.md"
BEGIN, END = "<!-- judge: --record -->", "<!-- /judge -->"


def write(suite, found):
    """Puts the figures of one suite in the place of its older ones."""
    import torch

    whole = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    whole[suite] = {"torch": torch.__version__, **found}
    RECORD.write_text(json.dumps(dict(sorted(whole.items())), indent=1) + "\n")
    PAGE.write_text(replaced(PAGE.read_text(), sentences(whole)))
    print(f"written to {RECORD.relative_to(ROOT)}")


def operators(lines):
    """The figures of the operator database, from the lines of its results."""
    by = {}
    commits = {}
    for line in lines:
        commit = line.get("commit", "unknown")
        commits[commit] = commits.get(commit, 0) + 1
        row = by.setdefault(f"{line['dtype']} {line['direction']}", dict.fromkeys(("jobs", "samples", "agree", "skipped", "wrong", "uncompiled"), 0))
        row["jobs"] += 1
        row["samples"] += line["samples"]
        row["agree"] += line["agree"]
        row["skipped"] += len(line["skipped"])
        row["wrong"] += len(line["wrong"])
        row["uncompiled"] += len(line.get("uncompiled", ()))
    whole = {key: sum(row[key] for row in by.values()) for key in ("jobs", "samples", "agree", "skipped", "wrong", "uncompiled")}
    return {"commits": commits, "operators": len({line["op"] for line in lines}), **whole, "by": dict(sorted(by.items()))}


def programs(first, count, tally):
    return {
        "commit": revision.code(),
        "seeds": [first, first + count - 1],
        "compared": tally["agree"] + tally["wrong"],
        "agree": tally["agree"],
        "wrong": tally["wrong"],
        "skipped": tally["skip"],
        "kernels": tally["kernels"],
        "interpreted": tally["interpreted"],
    }


def models(table, verdicts):
    names, ways = sorted({m for m, _ in verdicts}), list(dict.fromkeys(w for _, w in verdicts))
    said = list(verdicts.values())
    return {
        "commit": revision.code(),
        "models": names,
        "ways": ways,
        "compared": len(said),
        "agree": said.count("agree"),
        "wrong": len(said) - said.count("agree"),
        "interpreted": sum(row["interpreted"] for row in table.values()),
    }


def sentences(whole):
    """The record in words."""
    said = []
    if o := whole.get("opinfo"):
        said.append(
            f"PyTorch's operator database: {o['operators']} operators in {o['jobs']:,} jobs (an operator, a dtype, a direction), {o['samples']:,} samples: "
            f"{o['agree']:,} agree, {o['wrong']} wrong, {o['skipped']} skipped (eager itself or `aot_eager` cannot run them); of those that agree, "
            f"{o['uncompiled']} are programs that Dynamo compiles nothing of"
        )
    if p := whole.get("programs"):
        said.append(f"random programs: {p['compared']:,} compared (seeds {p['seeds'][0]} to {p['seeds'][1]:,}), {p['wrong']} wrong; {p['skipped']} more skipped")
    if m := whole.get("models"):
        said.append(f"models: {len(m['models'])} in {len(m['ways'])} ways ({', '.join(m['ways'])}), {m['agree']} of {m['compared']} agree")
    if not said:
        return "Not recorded yet."
    versions = sorted({part["torch"] for part in whole.values()})
    return "Last whole runs, against torch " + " and ".join(versions) + ":\n\n" + "".join(f"- {line}.\n" for line in said) + "\n[Figures and commits](../bench/record/judge.json)."


def replaced(page, words):
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{words}\n\n{END}{after}"
