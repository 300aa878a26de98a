"""Writes the golden tables of this folder with torch as the judge.

    python generate.py        (torch 2.15 on an x86 CPU)

The tables are committed, since the tests that read them run without torch. Each is lines of text:

decode.txt    "format: bits ...": the f32 bits of all codes in order, in hex ("nan" for any NaN).
encode.txt    "format: input output ...": f32 bits and the code, for every midpoint of neighbouring codes, one
              ulp to both sides of it, the codes themselves, thresholds and special values (f16 and bf16: the
              last two only).
wide.txt      "format: input output ...": f64 bits and the code, at places where rounding twice matters.
half.txt      All codes of f16 and bf16, as an FNV checksum over each block of 256: of what they decode to, and
              of the codes of `around` each of them.
ints.txt      "from to: input output ...": casts from integers, bool and floats, within the target's range.
promote.txt   "a b result" of torch.promote_types ("-" where torch refuses).
"""

import math
import pathlib
import struct

import torch

HERE = pathlib.Path(__file__).parent
TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "e8m0": torch.float8_e8m0fnu,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u64": torch.uint64, "u32": torch.uint32, "u16": torch.uint16, "u8": torch.uint8, "bool": torch.bool,
}
RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def bits(tensor):
    """The codes of a tensor as unsigned Python integers."""
    size = tensor.element_size()
    return [v & ((1 << 8 * size) - 1) for v in tensor.view(RAW[size]).tolist()]


def from_bits(values, dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    top = 1 << (8 * size - 1)
    wrapped = [v if size == 1 else (v - 2 * top if v >= top else v) for v in values]
    return torch.tensor(wrapped, dtype=RAW[size]).view(dtype)


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def f64_bits(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def e2m1_encode(x):
    """Nearest, ties to the even code, saturating: OCP MX. torch stores e2m1 and does not convert to it."""
    if math.isnan(x):
        return 7
    sign = 8 if math.copysign(1.0, x) < 0 else 0
    best = min(range(8), key=lambda c: (abs(E2M1[c] - min(abs(x), 6.0)), c & 1))
    return sign | best


def decode_all(name):
    if name == "f4e2m1":
        return [f32_bits(v) for v in E2M1] + [f32_bits(-v) for v in E2M1]
    count = 1 << (8 * torch.empty(0, dtype=TORCH[name]).element_size())
    return bits(from_bits(range(count), TORCH[name]).to(torch.float32))


def encode(name, inputs, source):
    """Codes of the inputs (bits of `source`). torch's vector loop and its scalar loop must agree on them."""
    tensor = from_bits(inputs, source)
    if name == "f4e2m1":
        return [e2m1_encode(x) for x in tensor.to(torch.float32).tolist()]
    codes = tensor.to(TORCH[name])
    for i in range(0, len(inputs), 7):
        if not math.isnan(tensor[i].item()):
            assert bits(tensor[i : i + 1].to(TORCH[name])) == bits(codes[i : i + 1]), (name, hex(inputs[i]))
    return bits(codes)


def is_nan32(b):
    return b & 0x7FFFFFFF > 0x7F800000


def hex_nan(b):
    return "nan" if is_nan32(b) else f"{b:x}"


def f32(b):
    return struct.unpack("<f", struct.pack("<I", b))[0]


def midpoint(a, b):
    return f32_bits((f32(a) + f32(b)) / 2)


def rounding_inputs(name):
    """f32 bits around every decision the format makes."""
    finite = sorted({b for b in decode_all(name) if b & 0x80000000 == 0 and b < 0x7F800000})
    inputs = set(finite) if len(finite) <= 256 else set()
    for low, high in zip(finite, finite[1:]) if inputs else []:
        mid = midpoint(low, high)
        inputs |= {mid - 1, mid, mid + 1, low + 1, high - 1}
    top, step = finite[-1], finite[-1] - finite[-2]
    inputs |= {b for k in (1, 2, 3, 4, 8) for d in (-1, 0, 1) if (b := top + step * k // 2 + d) <= 0x7F800000}
    inputs |= {0, 1, 2, 3, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x7FFFFF, 0x800000, 0x800001}
    low = min(b for b in finite if b)
    inputs |= {b for k in range(1, 5) for d in (-1, 0, 1) if (b := low - (k << 23) + d) >= 0}
    inputs |= {0x7F7FFFFF, 0x7F7FFFFE, 0x7F800000, 0x7F000000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x4B800000}
    return sorted(inputs | {b | 0x80000000 for b in inputs})


def write(name, lines):
    (HERE / name).write_text("\n".join(lines) + "\n")


def main():
    small = ["f8e4m3", "f8e5m2", "e8m0", "f4e2m1"]
    write("decode.txt", [f"{n}: " + " ".join(map(hex_nan, decode_all(n))) for n in small])

    lines = []
    for name in small + ["f16", "bf16"]:
        inputs = [b for b in rounding_inputs(name) if name in small or not is_nan32(b)]
        lines.append(f"{name}: " + " ".join(f"{i:x} {o:x}" for i, o in zip(inputs, encode(name, inputs, torch.float32))))
    write("encode.txt", lines)

    # f64 values whose nearest f32 is a tie of the format (or not): rounding once would differ.
    lines = []
    for name in small + ["f16", "bf16", "f32"]:
        values = set()
        inputs = rounding_inputs(name) if name in small else [0x3F801000, 0x3F808000, 0x477FF000, 0x33000000, 0x7F7FFFFF]
        for b in inputs[:: max(1, len(inputs) // 120)]:
            x = f32(b)
            if math.isfinite(x):
                values |= {x * (1 + d) for d in (0.0, 2.0**-40, -(2.0**-40), 2.0**-25, -(2.0**-25))}
        values |= {1e-300, 1e300, -1e300, 3.4028235677973366e38, math.inf, -math.inf, 5e-324, -5e-324}
        inputs = sorted(set(map(f64_bits, values)) | {0, 1 << 63})
        lines.append(f"{name}: " + " ".join(f"{i:x} {o:x}" for i, o in zip(inputs, encode(name, inputs, torch.float64))))
    write("wide.txt", lines)

    lines = []
    for name in ["f16", "bf16"]:
        decoded = decode_all(name)
        codes = [0x7FC00000 if is_nan32(b) else b for b in decoded]
        lines.append(f"{name} decode: " + " ".join(f"{fnv(codes[i:i + 256]):x}" for i in range(0, 65536, 256)))
        out = []
        for block in range(256):
            inputs = []
            for code in range(256 * block, 256 * block + 256):
                inputs += around(decoded[code], decoded[(code & 0x8000) | min((code & 0x7FFF) + 1, 0x7FFF)])
            got = encode(name, inputs, torch.float32)
            nan = 0x7E00 if name == "f16" else 0x7FC0
            out.append(fnv([nan if is_nan32(i) else o for i, o in zip(inputs, got)]))
        lines.append(f"{name} encode: " + " ".join(f"{h:x}" for h in out))
    write("half.txt", lines)

    write("promote.txt", [f"{a} {b} {promote(a, b)}" for a in TORCH for b in TORCH])
    write("ints.txt", list(int_lines()))


def around(a, b):
    """The f32 bits of a code, of its midpoint to the next code and of that one's neighbours."""
    if is_nan32(a) or is_nan32(b) or math.isinf(f32(a)) or math.isinf(f32(b)):
        return [a]
    mid = midpoint(a, b)
    return [a, mid - 1, mid, mid + 1]


def fnv(values):
    """FNV-1a over 32-bit words, 64 bits."""
    h = 0xCBF29CE484222325
    for v in values:
        h = ((h ^ v) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def promote(a, b):
    try:
        result = torch.promote_types(TORCH[a], TORCH[b])
    except RuntimeError:
        return "-"
    return next(n for n, t in TORCH.items() if t == result)


def int_lines():
    ints = [n for n in TORCH if n[0] in "iu"] + ["bool"]
    edges = [0, 1, 2, 3, 5, 127, 128, 129, 255, 256, 257, 1000, 32767, 32768, 65535, 65536, 65519, 65520, 16777215,
             16777216, 16777217, 16777219, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**40 + 2**16, 2**62 + 1,
             2**63 - 1, 2**63, 2**64 - 1, 2**63 + 2**39 + 1, 2**24 * 257 + 1]
    for source in ints:
        size = torch.empty(0, dtype=TORCH[source]).element_size()
        mask = (1 << 8 * size) - 1
        inputs = [0, 1] if source == "bool" else sorted({v & mask for e in edges for v in (e, -e)})
        tensor = from_bits(inputs, TORCH[source])
        for target in TORCH:
            if target != source:
                yield f"{source} {target}: " + " ".join(f"{i:x} {o:x}" for i, o in zip(inputs, bits(tensor.to(TORCH[target]))))
    for source in ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "e8m0"]:
        values = torch.tensor([0.0, -0.0, 0.25, -0.25, 0.5, 1.0, -1.0, 1.5, -1.5, 2.5, 3.99, -3.99, 100.4, -100.4, 127.0,
                               -128.0, 200.0, 255.9, 30000.0, -30000.0, 60000.0, 1e9, -1e9, 4e9, 1e18, -1e18, 1.8e19],
                              dtype=torch.float64).to(TORCH[source])
        exact = values.to(torch.float64)
        for target in ints:
            if target == "bool":
                low, high = -math.inf, math.inf
            else:
                n = 8 * torch.empty(0, dtype=TORCH[target]).element_size()
                low, high = (-(2.0 ** (n - 1)) - 1, 2.0 ** (n - 1)) if target[0] == "i" else (-1, 2.0**n)
            fits = [i for i, x in enumerate(exact.tolist()) if (low < x < high and math.isfinite(x)) or target == "bool"]
            chosen = values.view(RAW[values.element_size()])[fits].view(TORCH[source])
            yield f"{source} {target}: " + " ".join(f"{i:x} {o:x}" for i, o in zip(bits(chosen), bits(chosen.to(TORCH[target]))))


main()
