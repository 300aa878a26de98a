"""What the scripts for machines with a GPU share: the workloads of `definitions/`, their inputs, ratios, and the machine and code that a record is of.

No torch is needed to import it.
"""

import ctypes
import glob
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ABOVE = os.path.dirname(HERE)
VALUE = re.compile(r"%(\w+): (\w+)\[([\d, ]*)\]")
PRODUCT = re.compile(r"= (?:mm|bmm) %(\w+),")


# ---- the machine and the code ----------------------------------------------------------------------------------------


def commit():
    """The commit that the archive was made of; in a checkout, the one that is checked out."""
    stamp = os.path.join(ABOVE, "commit")
    if os.path.isfile(stamp):
        with open(stamp) as file:
            return file.read().strip()
    try:
        done = subprocess.run(["git", "-C", HERE, "log", "-1", "--format=%h", "--abbrev=12"], capture_output=True, text=True)
        return done.stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def gpu():
    """The name of the first GPU by its driver, `None` where there is no driver or no GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(number), 0) or cuda.cuDeviceGetName(name, 256, number):
        return None
    return name.value.decode()


def driver():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def head(torch=None):
    """What every record begins with."""
    versions = {} if torch is None else {"torch": torch.__version__, "cuda": torch.version.cuda}
    return {"gpu": gpu(), "commit": commit(), "driver": driver(), **versions}


def unpacked():
    """A folder with the package of the wheel beside this file; it is gone with what is returned."""
    folder = tempfile.TemporaryDirectory()
    for wheel in glob.glob(os.path.join(HERE, "*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder.name)
    return folder


# ---- workloads -------------------------------------------------------------------------------------------------------


class Workload:
    """One definition at one size."""

    def __init__(self, definition, instance):
        words = {**{k: str(v) for k, v in instance["params"].items()}, **instance["types"]}
        fill = lambda text: re.sub(r"\{(\w+)\}", lambda m: words[m[1]], text)
        self.name, self.title, self.device, self.bar = instance["name"], instance["title"], instance["device"], instance.get("bar")
        self.rust_door_only = instance.get("rust_door_only", False)
        self.torch, self.bound, self.unordered = definition["torch"], definition["bound"], definition.get("unordered", [])
        self.inputs = [(spec, fill(spec["dtype"]), [instance["params"][n] for n in spec["shape"]]) for spec in definition["inputs"]]
        top = ", ".join(f"%{spec['name']}: {dtype}[{', '.join(map(str, shape))}] cpu align 64" for spec, dtype, shape in self.inputs)
        body = "\n".join("  " + fill(line) for line in definition["body"])
        self.text = f"graph @{self.torch}({top}) {{\n{body}\n}}\n"

    def flops(self):
        """Multiplications and additions of its matrix products."""
        shapes = {m[1]: [int(n) for n in m[3].split(", ") if n] for m in VALUE.finditer(self.text)}
        total = 0
        for line in self.text.splitlines():
            if product := PRODUCT.search(line):
                total += 2 * elements(shapes[VALUE.search(line)[1]]) * shapes[product[1]][-1]
        return total


def workloads():
    """Every workload at every size, for whatever machine it is meant."""
    made = []
    for path in sorted(glob.glob(os.path.join(ABOVE, "definitions", "*.json"))):
        with open(path) as file:
            for definition in json.load(file)["definitions"]:
                made += [Workload(definition, instance) for instance in definition["instances"]]
    return made


def elements(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def draw(torch, spec, dtype, shape):
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8, "u8": torch.uint8, "i64": torch.int64}
    if spec["fill"] == "normal":
        return torch.randn(shape, device="cuda", dtype=torch.float32).mul_(spec.get("scale", 1.0)).to(kinds[dtype])
    return torch.randint(spec["low"], spec["high"] + 1, shape, device="cuda", dtype=kinds[dtype])


def tensors(result):
    return list(result) if isinstance(result, (list, tuple)) else [result]


# ---- ratios and bars ----------------------------------------------------------------------------------------------------------


def interval(ratios):
    """Median and the middle 95 % of medians of resamples."""
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(1000))
    return [statistics.median(ratios), medians[25], medians[974]]


# What a definition's `bar` may say, by key: a least ratio to a peer (`better`: whichever of eager and Inductor is faster), or a limit.
LIMITS = {"kernels": "kernels", "one_graph_us": "us as one graph"}


def judged(bar, row):
    """The bars that a row of `gpu-bench` misses, as sentences, and the keys of those that could not be judged, since a peer was left out."""
    missed, open_ = [], []
    for key, least in (bar or {}).items():
        if key in LIMITS:
            value = row["kernels"] if key == "kernels" else row["wall_us"]["replay"]
            if value > least:
                missed.append(f"{value:.4g} {LIMITS[key]}, for at most {least}")
            continue
        peers = ["eager", "inductor"] if key == "better" else [key]
        if not all(peer in row["ratios"] for peer in peers):
            open_.append(key)
            continue
        peer = min(peers, key=lambda name: row["ratios"][name][0])
        middle, low, _ = row["ratios"][peer]
        if middle < least or low < 0.95 * least:
            missed.append(f"{100 * middle:.1f} % of {peer}'s speed, for at least {100 * least:.0f} %")
    return missed, open_


def better(row):
    """How many times as fast as the better of eager and Inductor; nothing where Inductor was left out."""
    peers = [row["ratios"][peer][0] for peer in ("eager", "inductor") if peer in row["ratios"]]
    return min(peers) if len(peers) == 2 else None
