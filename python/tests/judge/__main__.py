"""The command line of the judge."""

import argparse
import importlib
import sys

from judge import pool

COMMANDS = {
    "opinfo": "PyTorch's operator database, every sample",
    "programs": "random torch programs",
    "models": "torchvision and transformers models with random weights",
}


def main():
    if sys.argv[1:2] == ["worker"]:
        pool.work(importlib.import_module(f"judge.{sys.argv[2]}").serve)
        return 0
    parser = argparse.ArgumentParser(prog="judge", description="Torch as the judge: compiled results against eager's.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        importlib.import_module(f"judge.{name}").arguments(sub)
    args = parser.parse_args()
    if args.record and args.backend != "oxyfuel":
        parser.error("only runs of oxyfuel are recorded")
    return importlib.import_module(f"judge.{args.command}").main(args)

if __name__ == "__main__":
    sys.exit(main())
