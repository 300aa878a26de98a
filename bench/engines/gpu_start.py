#!/usr/bin/env python3
"""First calls on a GPU through the torch door: usage: gpu_start.py [FILTER] [--training] [--processes N] [--parts first,warm] [--at-once N] [--json FILE]

The models of `models.json` that are meant for a GPU, each first call in a process of its own, engines in turns (torch_start.py). `first`: every process has an empty cache, beside a backend that only captures and beside Inductor. `warm`: everything is in the cache that the engine
filled before, beside a backend that does nothing and is in that cache as ours is. Bars: 1.5 s above the one and a tenth of Inductor's own compile; 0.3 s above the other. --training measures training steps (forward, backward) of the models that have a `training_speed`, by the same bars; the other backends see the joint graph too.
N models are measured at once, one unless told, behind a process that nobody measures. Closes with 'N passed, N failed': a row passes when its bars are met.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import sys
import tempfile

from gpu_rows import head, unpacked

# What a start is measured against, and how many seconds above it are allowed; and how many times ours Inductor's own compile takes at least.
BASES = {"first": ("aot_eager_decomp_partition", 1.5), "warm": ("nothing", 0.3)}
SHARE = 10


def parsed(words):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--parts", default="first,warm")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args(words)


def main():
    args = parsed(sys.argv[1:])
    with unpacked() as package:
        os.environ["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        return measured(args)


def measured(args):
    import torch
    import torch_door
    import torch_models

    names = [name for name in torch_models.gpu_names(args.training) if args.filter in name]
    if not names:
        print(f"no model{' that is trained' if args.training else ''} has `{args.filter}` in its name")
        return 2
    facts = head(torch)
    jobs = [(part, name) for part in args.parts.split(",") for name in names]
    # What the machine reads from its disk for the first time would be the start of whoever comes first.
    with tempfile.TemporaryDirectory() as folder:
        torch_door.in_child(names[0], BASES["first"][0], folder, args.training)
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        lines = pool.map(lambda job: torch_door.measure_start(job[0], job[0] == "first", [job[1]], args.processes, BASES, SHARE, args.training), jobs)
        rows = []
        for (part, _), (line,) in zip(jobs, lines, strict=True):
            rows.append({"part": part, "training": args.training, **line})
            if args.json:
                # What is measured stands, even if the rest is not waited for.
                args.json.write_text(json.dumps({**facts, "at_once": args.at_once, "rows": rows}, indent=1) + "\n")
    passed = sum(all(row["met"].values()) for row in rows)
    print(f"{passed} passed, {len(rows) - passed} failed")
    return int(passed < len(rows))


if __name__ == "__main__":
    sys.exit(main())
