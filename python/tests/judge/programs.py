"""Random torch programs against eager: make, judge, shrink what fails, print it as Python."""

import argparse
import collections
import os
import pathlib
import random
import sys
import time
import warnings

import torch
import torch.nn.functional as F

from judge import doors, grammar, pool, record, verdict
from judge.program import LARGEST, MOST_ELEMENTS, Program, Statement, shrink

LAYOUTS = ("plain", "plain", "plain", "transposed", "stepped", "expanded", "offset", "reversed dims")


class Maker:
    """Makes one program; holds the values that its statements have at hand."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.space = {"torch": torch, "F": F}
        self.known_exact = {}
        self.inputs, self.statements = [], []
        self.last = None
        self.grad = self.chance(0.25)
        self.sizes = (1, 2, 3, 4, 5, 7, 8, 16, 17) if self.chance(0.85) else (1, 3, 64, 100, 129, 257)
        if self.chance(0.05):
            self.sizes = (*self.sizes, 0)

    # What rules ask.
    def chance(self, p):
        return self.random.random() < p

    def names(self):
        return list(self.known_exact)

    def dtype(self, v):
        return self.space[v].dtype

    def ndim(self, v):
        return self.space[v].dim()

    def exact(self, v):
        return self.known_exact[v]

    def pick(self, least=0, kinds=None, dtype=None):
        found = [
            n
            for n in self.names()
            if self.space[n].dim() >= least and (kinds is None or grammar.kind(self.dtype(n)) in kinds) and (dtype is None or self.dtype(n) == dtype)
        ]
        # Newer values first, so that programs become chains.
        return self.random.choice(found[-4:] if found and self.chance(0.6) else found) if found else None

    def partner(self, v):
        """A value that broadcasts with `v`."""
        shape = self.space[v].shape
        found = []
        for n in self.names():
            try:
                torch.broadcast_shapes(shape, self.space[n].shape)
                found.append(n)
            except RuntimeError:
                pass
        return self.random.choice(found) if found else None

    def alike(self, v):
        found = [n for n in self.names() if self.space[n].shape == self.space[v].shape and self.dtype(n) == self.dtype(v)]
        return self.random.choice(found) if found else None

    def like_shape(self, v, dtype):
        found = [n for n in self.names() if self.space[n].shape == self.space[v].shape and self.dtype(n) == dtype]
        return self.random.choice(found) if found else None

    def dim(self, v):
        return self.random.randrange(self.ndim(v)) if self.ndim(v) else 0

    def pattern(self, rows, *names):
        v = names[0]
        row = self.last = self.random.choice(rows)
        shape = list(self.space[v].shape)
        d = self.dim(v)
        wide = [*shape[:d], self.random.choice((1, 2, 3)), *shape[d:]]
        return row.format(*names, d=d, e=self.dim(v), k=self.random.choice(("", ", keepdim=True")), x=", ".join(map(str, wide)))

    # Making.
    def input(self):
        name = f"a{len(self.inputs)}"
        kind = self.random.choice(("float",) * 5 + ("int", "int", "bool"))
        dims = self.random.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        earlier = [self.space[n].shape for n, _ in self.inputs if self.space[n].dim()]
        if earlier and self.chance(0.6):
            shape = list(self.random.choice(earlier))
            if self.chance(0.3):
                shape[self.random.randrange(len(shape))] = 1
            if self.chance(0.2):
                shape = shape[1:]
        else:
            shape = [self.random.choice(self.sizes) for _ in range(dims)]
        while torch.Size(shape).numel() > MOST_ELEMENTS // 4:
            shape = shape[1:]
        layout = self.random.choice(LAYOUTS) if shape else "plain"
        base, wrap = self.stored(shape, layout)
        generator = f"generator=torch.Generator().manual_seed({self.random.randrange(1000)})"
        if kind == "float":
            text = f"torch.randn({base}, {generator}).to(torch.{self.random.choice(grammar.FLOATS)})"
        elif kind == "int":
            text = f"torch.randint(0, 10, {base}, {generator}).to(torch.{self.random.choice(grammar.INTS)})"
        else:
            text = f"torch.randint(0, 2, {base}, {generator}).bool()"
        text += wrap
        self.inputs.append((name, text))
        made = eval(text, {"torch": torch})
        if self.grad and made.dtype.is_floating_point:
            made = made.requires_grad_()
        self.space[name] = made
        self.known_exact[name] = True

    def stored(self, shape, layout):
        """The shape that is stored, and the view of it that has `shape`."""
        d = self.random.randrange(len(shape)) if shape else 0
        if layout == "transposed" and len(shape) >= 2:
            return tuple([*shape[:-2], shape[-1], shape[-2]]), ".mT"
        if layout == "stepped":
            return tuple([*shape[:-1], shape[-1] * 2]), "[..., ::2]"
        if layout == "expanded":
            return tuple([*shape[:d], 1, *shape[d + 1 :]]), f".expand({tuple(shape)})"
        if layout == "offset":
            return tuple([shape[0] + 1, *shape[1:]]), "[1:]"
        if layout == "reversed dims":
            return tuple(reversed(shape)), f".permute({tuple(reversed(range(len(shape))))})"
        return tuple(shape), ""

    def statement(self):
        rule, _, binds = self.random.choices(grammar.RULES, [w for _, w, _ in grammar.RULES])[0]
        made = rule(self)
        if not made:
            return False
        text, uses, exact = made
        target = f"v{len(self.statements)}" if binds else None
        s = Statement(target, text, tuple(dict.fromkeys(uses)))
        touched = None if binds else [n for n in self.names() if _overlap(self.space[n], self.space[uses[0]])]
        try:
            exec(s.line(), self.space)
            ok = self.fits(self.space[target] if binds else self.space[uses[0]])
        except Exception:
            ok = False
        if not ok:
            if target:
                self.space.pop(target, None)
            else:
                self.replay()
            return False
        self.statements.append(s)
        if binds:
            self.known_exact[target] = exact
        else:
            for n in touched:
                self.known_exact[n] &= exact
        return True

    def fits(self, t):
        if not isinstance(t, torch.Tensor) or t.numel() > MOST_ELEMENTS or t.dim() > 6:
            return False
        if t.dtype.is_complex:
            return False
        if t.numel() and t.dtype.is_floating_point:
            return bool(torch.isfinite(t).all()) and float(t.detach().abs().max()) < LARGEST
        return True

    def replay(self):
        """Values as they were before a mutation that was thrown away."""
        for name, text in self.inputs:
            made = eval(text, {"torch": torch})
            self.space[name] = made.requires_grad_() if self.grad and made.dtype.is_floating_point else made
        for s in self.statements:
            exec(s.line(), self.space)

    def program(self):
        for _ in range(self.random.randint(1, 4)):
            self.input()
        length = self.random.randint(2, 14)
        for _ in range(length * 6):
            if len(self.statements) >= length:
                break
            self.statement()
        bound = [s.target for s in self.statements if s.target] or [self.inputs[0][0]]
        outputs = self.random.sample(bound, min(len(bound), self.random.randint(1, 3)))
        if bound[-1] not in outputs:
            outputs.append(bound[-1])
        if self.chance(0.05):
            outputs.append(self.inputs[0][0])
        return Program(tuple(self.inputs), tuple(self.statements), tuple(outputs), grad=self.grad, dynamic=False)


def _overlap(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def make(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Maker(seed).program()


def case_of(program, name="program"):
    return verdict.Case(name, program.function(), program.make_inputs(), grad=program.grad)


def judge(program, door, dynamo=False, blame=True):
    return verdict.judge(case_of(program), door, dynamo=dynamo, blame=blame)


def smallest(program, backend, dynamo):
    """Shrinks in child processes, so that a program that kills its process shrinks too."""

    def fails(candidate):
        child = os.fork()
        if child == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                v = judge(candidate, doors.door(backend), dynamo)
                os._exit(1 if v.verdict == "wrong" else 0)
            except BaseException:
                os._exit(0)
        return os.waitpid(child, 0)[1] != 0

    return shrink(program, fails)


def serve(job, say):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    door = doors.door(job["backend"])
    if "shrink" in job:
        small = smallest(make(job["shrink"]), job["backend"], job["dynamo"])
        return {"source": small.script(job["backend"])}
    for i in range(job.get("from", 0), job["count"]):
        seed = job["seed"] + i
        say({"at": i})
        program = make(seed)
        dynamo = job["dynamo"] or seed % 20 == 0
        v = judge(program, door, dynamo)
        line = {"sample": i, "verdict": v.verdict, "what": v.what, "blame": v.blame, "route": v.route}
        line |= {"kernels": v.counts.kernels, "interpreted": v.counts.interpreted, "external": v.counts.external}
        if v.verdict == "wrong":
            line["source"] = smallest(program, job["backend"], dynamo).script(job["backend"])
        say(line)
    return {}


def arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--backend", default="oxyfuel", help="oxyfuel, nop or torch")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--patience", type=float, default=240)
    parser.add_argument("--dynamo", action="store_true", help="every program through torch.compile, not one in twenty")
    parser.add_argument("--show", type=int, help="print the program of this seed and stop")
    parser.add_argument("--failures", type=pathlib.Path, help="write each failing program into this folder")
    parser.add_argument("--record", action="store_true", help="write the outcome to bench/record/judge.json and docs/torch.md")


def main(args):
    if args.show is not None:
        print(make(args.show).script(args.backend))
        return 0
    start, tally, wrong = time.monotonic(), collections.Counter(), []
    externals = collections.Counter()
    batch = 25
    jobs = [{"seed": args.seed + i, "count": min(batch, args.programs - i), "backend": args.backend, "dynamo": args.dynamo} for i in range(0, args.programs, batch)]

    def see(job, found, last):
        tally["jobs"] += 1
        if "error" in last:
            wrong.append(job["seed"])
            tally["wrong"] += 1
            print(f"WRONG the worker of seeds {job['seed']}..: {last['error']}", flush=True)
        for s in found:
            tally[s["verdict"]] += 1
            tally["kernels"] += s.get("kernels", 0)
            tally["interpreted"] += s.get("interpreted", 0)
            externals.update(s.get("external", {}))
            if s["verdict"] == "wrong":
                seed = job["seed"] + s["sample"]
                wrong.append(seed)
                source = s.get("source") or make(seed).script(args.backend)
                print(f"WRONG seed {seed} [{s['blame']}] {s['what'][:400]}\n{source}", flush=True)
                if args.failures:
                    args.failures.mkdir(parents=True, exist_ok=True)
                    (args.failures / f"{seed}.py").write_text(f"# {s['what'][:600]!r} [{s['blame']}]\n{source}")
        if tally["jobs"] % 8 == 0 or tally["jobs"] == len(jobs):
            done = tally["agree"] + tally["wrong"] + tally["skip"]
            print(f"[{done}/{args.programs} programs, {time.monotonic() - start:.0f} s] {tally['wrong']} wrong, {tally['skip']} skipped", file=sys.stderr, flush=True)

    pool.Pool("programs", args.workers, args.patience, see).run(jobs)
    print(f"{tally['agree']} agree, {tally['skip']} skipped, {tally['wrong']} wrong; {tally['kernels']} kernels, {tally['interpreted']} interpreted, {sum(externals.values())} external")
    for target, n in externals.most_common(20):
        print(f"  external {n:>6}  {target}")
    if wrong:
        print(f"wrong seeds: {wrong}")
    if args.record:
        record.write("programs", record.programs(args.seed, args.programs, tally))
    return 1 if wrong else 0
