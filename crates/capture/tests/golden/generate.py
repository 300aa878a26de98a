"""Asks eager PyTorch what ATen overloads give, and writes calls, inputs and answers to samples.json and special.json.

    python crates/capture/tests/golden/generate.py

Run with torch on a CPU. The file holds tensors (dtype, shape, little-endian bytes in hex) and cases: a description of one call, the tensors that
go in, the tensors that come out. crates/capture/tests/golden.rs imports each description, interprets the graph and compares.
"""

import json
import math
import pathlib

import torch

A = torch.ops.aten
P = torch.ops.prims
torch.manual_seed(0)
torch.set_num_threads(1)
INF, NAN = math.inf, math.nan
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
I64, I32, U8, BOOL = torch.int64, torch.int32, torch.uint8, torch.bool
FLOATS = [F32, BF16, F16, F64]

NAMES = {
    F64: "f64", F32: "f32", F16: "f16", BF16: "bf16", torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2",
    I64: "i64", I32: "i32", torch.int16: "i16", torch.int8: "i8", U8: "u8", BOOL: "bool",
}

tensors, index_of, cases = [], {}, []


def store(t):
    t = t.detach().contiguous()
    data = bytes(t.reshape(-1).view(torch.uint8).tolist()) if t.numel() else b""
    entry = [NAMES[t.dtype], list(t.shape), data.hex()]
    key = json.dumps(entry)
    if key not in index_of:
        index_of[key] = len(tensors)
        tensors.append(entry)
    return index_of[key]


def type_of(t):
    return {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "strides": list(t.stride())}


def result(value):
    return {"kind": "none"} if value is None else {"kind": "tensor", "type": type_of(value)}


def case(op, *args, **kwargs):
    """Records one call of an overload."""
    inputs = []

    def arg(value):
        if isinstance(value, torch.Tensor):
            known = [i for i, t in enumerate(inputs) if t is value]
            if not known:
                inputs.append(value)
            return {"node": f"x{known[0] if known else len(inputs) - 1}"}
        if isinstance(value, (list, tuple)):
            return [arg(v) for v in value]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        return value

    said_args, said_kwargs = [arg(a) for a in args], {k: arg(v) for k, v in kwargs.items()}
    try:
        out = op(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as e:
        if "not implemented" in str(e) or "not support" in str(e):
            return  # eager lacks the kernel: it has no opinion
        raise
    sequence = isinstance(out, (tuple, list))
    out = list(out) if sequence else [out]
    kept = [i for i, o in enumerate(out) if o is not None]
    node = {"name": "y", "target": str(op), "args": said_args, "results": [result(o) for o in out]}
    if said_kwargs:
        node["kwargs"] = said_kwargs
    if sequence:
        node["sequence"] = True
    description = {
        "version": 1,
        "name": "f",
        "inputs": [{"name": f"x{i}", "kind": "tensor", "type": type_of(t)} for i, t in enumerate(inputs)],
        "nodes": [node],
        "outputs": [{"node": "y", "index": i} if sequence else {"node": "y"} for i in kept],
    }
    cases.append({"description": description, "inputs": [store(t) for t in inputs], "outputs": [store(out[i]) for i in kept]})


def line(dtype, values):
    return torch.tensor(values, dtype=F64).to(dtype)


def normal(*shape, dtype=F32):
    return torch.randn(*shape).to(dtype)


SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -3.25, 10.0, -20.0, 1e-3, -1e-4, INF, -INF, NAN]
POSITIVE = [0.0, 1e-3, 0.25, 0.5, 1.0, 1.5, 3.0, 20.0, 1000.0, INF, NAN]


def pointwise():
    anywhere = ["abs", "neg", "sign", "relu", "silu", "sigmoid", "tanh", "exp", "exp2", "expm1", "erf", "sin", "cos", "floor", "ceil", "round", "trunc",
                "isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not", "log10", "erfc", "asin", "acos", "atan", "acosh", "tan", "sinh", "cosh", "asinh", "atanh", "square", "frac",
                "reciprocal", "hardsigmoid", "hardswish", "mish", "sgn", "relu6", "log10", "log", "log2", "log1p", "sqrt", "rsqrt", "acosh", "positive"]
    for name in anywhere:
        for dtype in FLOATS:
            values = POSITIVE if name in ("log10", "log", "log2", "log1p", "sqrt", "rsqrt", "acosh") else SPECIAL
            if name in ("sin", "cos", "tan"):
                values = [v for v in values if math.isfinite(v)]
            op = getattr(A, name)
            if hasattr(op, "default"):
                case(op.default, line(dtype, values))
    for name in ["sinh", "tan", "log10", "exp", "sqrt", "asinh", "sigmoid"]:
        case(getattr(A, name).default, torch.tensor([0, 1, -2, 5]))
    for dtype in FLOATS:
        x, y = normal(3, 4, dtype=dtype), normal(4, dtype=dtype)
        for approximate in ("none", "tanh"):
            case(A.gelu.default, line(dtype, [v for v in SPECIAL if math.isfinite(v)]), approximate=approximate)
        case(A.atan2.default, x, y)
        for op in (A.add.Tensor, A.sub.Tensor, A.rsub.Tensor):
            case(op, x, y)
            case(op, x, y, alpha=0.3)
        case(A.add.Scalar, x, 2.5)
        case(A.rsub.Scalar, x, 1, 2)
        case(A.mul.Tensor, x, 0.1)
        case(A.mul.Tensor, x, torch.tensor(0.1))
        case(A.div.Tensor, x, torch.tensor(0.3))
        case(A.div.Tensor, x, y)
        case(A.true_divide.Tensor, x, y)
        for mode in (None, "floor", "trunc"):
            case(A.div.Tensor_mode, x, y, rounding_mode=mode)
        case(A.remainder.Tensor, x, y)
        case(A.fmod.Scalar, x, 0.3)
        for exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5):
            case(A.pow.Tensor_Scalar, x.abs() + 0.5, exponent)
        case(A.pow.Scalar, 2, x)
        case(A.pow.Tensor_Tensor, x.abs(), y)
        for op in (A.maximum.default, A.minimum.default, A.fmax.default, A.fmin.default):
            case(op, line(dtype, [1, NAN, 2, NAN]), line(dtype, [NAN, 3, -1, NAN]))
        for op in (A.eq.Scalar, A.ne.Scalar, A.lt.Scalar, A.le.Scalar, A.gt.Scalar, A.ge.Scalar):
            case(op, line(dtype, SPECIAL), 0.5)
        case(A.where.self, x > 0, x, y)
        case(A.clamp.default, line(dtype, SPECIAL), -1, 2)
        case(A.clamp.default, line(dtype, SPECIAL), None, 0.3)
        case(A.clamp.Tensor, x, y, y + 1)
        case(A.clamp_min.default, x, 0.1)
        case(A.clamp_max.default, x, 0.1)
        case(A.masked_fill.Scalar, x, x > 0, -INF)
        case(A.addcmul.default, x, y, x, value=0.3)
        case(A.addcdiv.default, x, y, x.abs() + 1, value=2)
        case(A.lerp.Scalar, x, x + 1, 0.3)
        case(A.ldexp.Tensor, x, torch.tensor([-2, 0, 3, 1]))
        case(A.lerp.Tensor, x, x + 1, torch.rand(3, 4).to(dtype))
        case(A.xlogy.Tensor, line(dtype, [0, 0, 1, 2]), line(dtype, [0, NAN, 2, 3]))
        ends = [INF, -INF, INF, -INF, NAN, 1, -3, 40, 0]
        for op in (A.logaddexp.default, A.logaddexp2.default):
            case(op, line(dtype, ends), line(dtype, [INF, -INF, -INF, 2, 1, 1, 0.5, -40, NAN]))
        for margin in (None, 0.125, 0.75):
            shares = line(dtype, [-1, 0, 0.0625, 0.3, 0.5, 0.9375, 1, 2, NAN])
            case(A.logit.default, shares, margin)
            case(A.logit_backward.default, line(dtype, [1, -1, 2, 3, -4, 5, 6, 7, 8]), shares, margin)
        case(A.log_sigmoid_forward.default, line(dtype, SPECIAL + [30, -30]))
        case(A.copysign.Tensor, line(dtype, [1, 2, -3, 4]), line(dtype, [0.0, -0.0, 1, -INF]))
        case(A.signbit.default, line(dtype, [1, -2, 0.0, -0.0, INF, -INF]))
        case(A.hardtanh.default, line(dtype, SPECIAL), -0.3, 0.7)
        case(A.leaky_relu.default, line(dtype, SPECIAL), 0.1)
        case(A.elu.default, line(dtype, SPECIAL), 1.5)
        case(A.elu.default, line(dtype, SPECIAL), 1.7, 1.05, 0.9)
        case(A.softplus.default, line(dtype, SPECIAL + [30]), 2, 20)
        case(A.threshold.default, line(dtype, SPECIAL), 0.1, 5)
        for other in FLOATS + [I64, I32, torch.int16, torch.int8, BOOL, U8]:
            case(A._to_copy.default, x * 3, dtype=other)
        case(A.fill.Scalar, x, 2.5)
        case(A.copy.default, x, y.to(F32))
        case(A.clone.default, x.t(), memory_format=torch.preserve_format)
    i, j = torch.tensor([5, -7, 3, 0]), torch.tensor([2, 3, -2, 5], dtype=I32)
    for op in (A.add.Tensor, A.sub.Tensor, A.mul.Tensor, A.div.Tensor, A.remainder.Tensor, A.fmod.Tensor, A.maximum.default,
               A.bitwise_and.Tensor, A.bitwise_or.Tensor, A.bitwise_xor.Tensor, A.floor_divide.default):
        case(op, i, j)
    case(A.add.Tensor, i, j, alpha=3)
    case(A.mul.Tensor, j, 0.5)
    case(A.add.Tensor, i > 0, 1)
    case(A.pow.Tensor_Scalar, i, 3)
    case(A.bitwise_left_shift.Tensor_Scalar, j, 2)
    case(A.bitwise_right_shift.Tensor_Scalar, j, 1)
    case(A.bitwise_not.default, i)
    for op in (A.logical_and.default, A.logical_or.default, A.logical_xor.default):
        case(op, i, normal(4))
    case(A.clamp.default, i, -2, 3)
    case(A.clamp.default, i, -2.5, 3)
    case(A.eq.Tensor, i, normal(4))
    case(A.where.ScalarOther, i > 0, i, 0.5)
    case(A.rsub.Scalar, j, 10)


def sources():
    x = normal(2, 3)
    case(A.full.default, [2, 3], 1.5)
    case(A.full.default, [2], 7, dtype=I64)
    case(A.full_like.default, x.t(), 2)
    case(A.zeros_like.default, x, dtype=BOOL)
    case(A.ones.default, [2, 1], dtype=BF16)
    case(A.zeros.default, [0, 3])
    case(A.ones_like.default, x)
    case(A.new_full.default, x, [3], 2.5)
    case(A.new_zeros.default, x, [3])
    case(A.new_ones.default, x, [3])
    case(A.scalar_tensor.default, 3.5)
    case(A.arange.default, 5)
    case(A.arange.start, 2, 7, dtype=F32)
    case(A.arange.start_step, 0.5, 3, 0.25)
    case(A.arange.start_step, 10, 0, -3)
    case(P.iota.default, 5, start=2, step=3, dtype=I64, device=torch.device("cpu"), requires_grad=False)
    case(P.convert_element_type.default, x, BF16)


def reductions():
    for dtype in FLOATS + [I64, I32, BOOL]:
        x = (normal(3, 4, 2) * 3).to(dtype)
        case(A.sum.default, x)
        case(A.sum.dim_IntList, x, [-1])
        case(A.sum.dim_IntList, x, [0, 2], True)
        case(A.sum.dim_IntList, x, None)
        case(A.amax.default, x, [1])
        for overload in (A.argmax.default, A.argmin.default):
            case(overload, x)
            case(overload, x, 1)
            case(overload, x, -2, True)
        case(A.max.dim, x, 1)
        case(A.min.dim, x, 0, True)
        case(A.cumsum.default, x, 1)
        case(A.cumprod.default, x, -2)
        case(A.amin.default, x, [])
        case(A.max.default, x)
        case(A.min.default, x)
        case(A.any.default, x)
        case(A.any.dim, x, 1, True)
        case(A.all.default, x)
        case(A.any.dims, x, [0, 1])
        if dtype.is_floating_point:
            case(A.mean.default, x)
            case(A.mean.dim, x, [0, 1], True)
            case(A.var.correction, x, [1], correction=0)
            case(A.var.correction, x, None, keepdim=True)
            case(A.var.dim, x, [0], True)
            case(A.std.correction, x, [1])
            case(A.var_mean.correction, x, [0, 2], correction=1, keepdim=True)
            case(A._softmax.default, x, 1, False)
            case(A._log_softmax.default, x, -1, False)
        case(A.prod.dim_int, x, 1)
        case(A.prod.default, x[0] / 2 if dtype.is_floating_point else x)
    case(A.sum.dim_IntList, normal(3, 4, dtype=BF16), [0], dtype=F32)
    case(A.mean.dim, torch.tensor([[1, 2], [3, 4]]), [0], dtype=F32)
    case(A.sum.default, torch.tensor(3.0))
    case(A.all.default, torch.tensor([1, 0], dtype=U8))


def norms():
    for dtype in FLOATS:
        x, w, b = normal(2, 3, 4, dtype=dtype), normal(4, dtype=dtype), normal(4, dtype=dtype)
        case(A.native_layer_norm.default, x, [4], w, b, 1e-5)
        case(A.native_layer_norm.default, x, [3, 4], None, None, 1e-5)
        image, scale, shift = normal(2, 4, 3, 3, dtype=dtype), normal(4, dtype=dtype), normal(4, dtype=dtype)
        case(A.native_group_norm.default, image, scale, shift, 2, 4, 9, 2, 1e-5)
        case(A.native_group_norm.default, image, None, None, 2, 4, 9, 4, 1e-5)
        if dtype in (F32, F64):
            mean, var = normal(4, dtype=dtype), torch.rand(4).to(dtype) + 0.5
            case(A._native_batch_norm_legit_no_training.default, image, scale, shift, mean, var, 0.1, 1e-5)
            case(A._native_batch_norm_legit.no_stats, image, scale, shift, True, 0.1, 1e-5)
            case(A._native_batch_norm_legit_functional.default, image, scale, shift, mean, var, True, 0.1, 1e-5)
        g = normal(2, 3, 4, dtype=dtype)
        _, mean, rstd = A.native_layer_norm.default(x, [4], w, b, 1e-5)
        case(A.native_layer_norm_backward.default, g, x, [4], mean, rstd, w, b, [True, True, True])
        case(A.native_layer_norm_backward.default, g, x, [4], mean, rstd, None, None, [True, False, False])


def gradients():
    for dtype in FLOATS:
        g, x = normal(4, 4, dtype=dtype), normal(4, 4, dtype=dtype) * 2
        for op in (A.sigmoid_backward.default, A.tanh_backward.default, A.silu_backward.default, A.hardsigmoid_backward.default, A.hardswish_backward.default):
            case(op, g, x)
        case(A.gelu_backward.default, g, x)
        case(A.gelu_backward.default, g, x, approximate="tanh")
        case(A.threshold_backward.default, g, x, 0)
        case(A.leaky_relu_backward.default, g, x, 0.1, False)
        case(A.hardtanh_backward.default, g, x, -0.5, 0.5)
        case(A.elu_backward.default, g, 1.5, 1.0, 1.0, False, x)
        case(A.softplus_backward.default, g, x, 1, 20)
        y = A._softmax.default(x, 1, False)
        case(A._softmax_backward_data.default, g, y, 1, dtype)
        y = A._log_softmax.default(x, 1, False)
        case(A._log_softmax_backward_data.default, g, y, 1, dtype)


def views():
    x = normal(2, 3, 4)
    case(A.view.default, x, [6, -1])
    case(A.permute.default, x, [2, 0, -2])
    for op in (A._unsafe_view.default, A.reshape.default, A.view_copy.default):
        case(op, x, [4, 6])
    case(A._reshape_alias.default, x, [4, 6], [6, 1])
    for op in (A.alias.default, A.detach.default, A.lift_fresh.default, A.lift_fresh_copy.default):
        case(op, x)
    case(A.permute_copy.default, x, [1, 2, 0])
    case(A.expand_copy.default, x, [5, 2, 3, 4])
    case(A.unsqueeze_copy.default, x, 1)
    case(A.squeeze_copy.dim, normal(2, 1), 1)
    case(A.transpose_copy.int, x, 0, 2)
    case(A.t_copy.default, normal(2, 3))
    case(A.alias_copy.default, x)
    case(A.detach_copy.default, x)
    case(A.slice_copy.Tensor, x, 2, 1, 3)
    case(A.select_copy.int, x, 1, 2)
    case(A.unbind_copy.int, x, 0)
    case(A.split_copy.Tensor, x, 2, 2)
    case(A.split_with_sizes_copy.default, x, [1, 2], 1)
    case(A.narrow_copy.default, x, 1, -2, 1)
    case(A.as_strided_copy.default, x, [4, 6], [6, 1])
    case(A.diagonal_copy.default, x, 0, 1, 2)
    case(A.unsafe_split.Tensor, x, 2, 2)
    case(A.unsafe_split_with_sizes.default, x, [1, 3], 2)
    case(A.transpose.int, x, 0, -1)
    case(A.t.default, normal(2, 3))
    case(A.expand.default, normal(1, 3), [2, -1])
    case(A.squeeze.dim, normal(2, 1, 3), 1)
    case(A.squeeze.dims, normal(2, 1, 3, 1), [1, 3])
    case(A.unsqueeze.default, x, -1)
    case(A.slice.Tensor, x, 1, 1, 9223372036854775807)
    case(A.slice.Tensor, x, 2, -3, -1)
    case(A.slice.Tensor, x, 2, 0, 4, 3)
    case(A.slice.Tensor, x, 2, 3, 1)
    case(A.select.int, x, 1, -1)
    case(A.split_with_sizes.default, x, [1, 2], 1)
    case(A.split.Tensor, x, 3, 2)
    case(A.chunk.default, x, 2, 2)
    case(A.unbind.int, x, 1)
    case(A.as_strided.default, x, [4, 6], [6, 1])
    case(A.as_strided.default, x, [2, 3], [3, 1], 5)
    case(A.as_strided.default, x.permute(2, 0, 1), [24], [1])
    case(A.as_strided.default, x, [5, 4], [0, 1], 4)
    case(A.as_strided_scatter.default, x, normal(2, 3), [2, 3], [3, 1], 5)
    case(A.as_strided_scatter.default, x.permute(2, 0, 1), normal(24), [24], [1])
    case(A.as_strided_scatter.default, normal(3, 4), normal(4, 3), [4, 3], [1, 4])
    for offset in (0, 1, -1, 7):
        case(A.diagonal.default, normal(3, 4), offset)
        case(A.diagonal_scatter.default, torch.zeros(3, 4), torch.ones(3, 4).diagonal(offset), offset)
    case(A.diagonal.default, x, 1, 0, 2)
    case(A.diagonal_scatter.default, x, normal(3, 2), 1, 0, 2)
    case(A.repeat.default, x, [2, 1, 3, 2])
    case(A.repeat.default, x, [1, 1, 1])
    case(A.roll.default, x, [1, -2], [0, 2])
    case(A.roll.default, x, [5])
    case(A.flip.default, x, [0, 2])
    case(A.constant_pad_nd.default, x, [1, 2, 0, 1], 1.5)
    case(A.constant_pad_nd.default, x, [-1, 2], 0)
    case(A.constant_pad_nd.default, x, [-1, -1])
    case(A.reflection_pad1d.default, normal(2, 5), [2, 3])
    case(A.reflection_pad2d.default, normal(1, 4, 5), [1, 2, 3, 0])
    case(A.reflection_pad3d.default, normal(1, 3, 4, 5), [1, 2, 3, 0, 1, 1])
    case(A.replication_pad1d.default, normal(2, 3), [1, 2])
    case(A.replication_pad2d.default, normal(1, 2, 3), [1, 2, 0, 1])
    case(A.replication_pad3d.default, normal(1, 2, 2, 3), [1, 2, 0, 1, 2, 0])


def images():
    for dtype in (F32, BF16, U8):
        x = (torch.rand(1, 2, 3, 5) * 100).to(dtype)
        case(A.upsample_nearest2d.vec, x, None, [2.0, 1.5])
        case(A.upsample_nearest2d.vec, x, [7, 3], None)
        case(A.upsample_nearest2d.default, x, [6, 10], None, None)
        case(A.upsample_nearest1d.default, x[0], [8], 1.7)
        case(A.upsample_nearest3d.default, x[None], [3, 7, 4], None, None, None)
        case(A._upsample_nearest_exact1d.default, x[0], [8], None)
        case(A._upsample_nearest_exact2d.default, x, [5, 4], None, None)
        case(A._upsample_nearest_exact3d.default, x[None], [4, 6, 9], None, None, None)


def indexing():
    x, i, j = normal(3, 4, 5), torch.tensor([[0, -1], [2, 1]]), torch.tensor([1, -2], dtype=I64)
    case(A.index.Tensor, x, [i])
    case(A.index.Tensor, x, [None, j])
    case(A.index.Tensor, x, [i, j])
    case(A.index.Tensor, x, [None, i, j])
    case(A.index.Tensor, x, [i, None, j])
    case(A._unsafe_index.Tensor, x, [None, None, j])
    case(A.index_select.default, x, 1, torch.tensor([3, 0]))
    case(A.index_select.default, torch.tensor(2.0), 0, torch.tensor([0]))
    case(A.gather.default, x, 2, torch.randint(0, 5, (3, 4, 2)))
    case(A.gather.default, torch.tensor(2.0), 0, torch.tensor(0))
    case(A.embedding.default, normal(6, 3), torch.tensor([[1, 5], [0, 0]]), 0)
    case(A.cat.default, [x, x + 1], -1)
    case(A.cat.default, [x, torch.empty(0)], 1)
    case(A.cat.default, [torch.tensor([1, 2]), torch.tensor([1.5])])
    case(A.stack.default, [x, x], 1)
    case(A.slice_scatter.default, x, normal(3, 2, 5), 1, 1, 3)
    case(A.slice_scatter.default, x, normal(3, 2, 5), 1, 0, 4, 2)
    case(A.select_scatter.default, x, normal(3, 5), 1, -1)
    case(A.index_put.default, x, [x > 0], torch.tensor(2.5))
    case(A.index_put.default, x, [torch.tensor([True, False, True])], torch.tensor([2.5]))


def special():
    wide = [0.0, -0.0, 0.25, -0.3, 0.5, 1.0, -1.0, 1.5, 2.0, -2.5, 3.75, 4.5, -5.5, 7.0, 8.5, -9.25, 12.0, 30.0, -30.5, NAN]
    unit = [-1.0, -0.875, -0.5, 0.0, 0.125, 0.375, 0.75, 0.9375, 1.0, 1.5, NAN]
    names = ["lgamma", "digamma", "i0", "special_i0e", "special_i1", "special_i1e", "special_erfcx", "special_log_ndtr", "special_modified_bessel_i0", "special_modified_bessel_i1",
             "special_modified_bessel_k0", "special_modified_bessel_k1", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1", "special_bessel_j0", "special_bessel_j1",
             "special_bessel_y0", "special_bessel_y1", "special_spherical_bessel_j0", "special_airy_ai", "erfinv", "special_ndtri", "angle"]
    for name in names:
        op = getattr(A, name).default
        for dtype in FLOATS:
            values = unit if name in ("erfinv", "special_ndtri") else wide
            # Two of torch's tables have wrong digits, which f64 sees: J0(5.5) and Ai(-2.5) are off by 2e-5.
            if not (dtype == F64 and name in ("special_bessel_j0", "special_airy_ai")):
                case(op, line(dtype, values))
        case(op, torch.tensor([0, 1, 3, 7, -2]))
    for dtype in FLOATS:
        for n in range(5):
            case(A.polygamma.default, n, line(dtype, [v for v in wide if v not in (-1.0,)]))
        case(A.special_zeta.default, line(dtype, [1.0, 1.5, 2.0, 3.0, 4.0, 0.5, 7.0, 3.0, NAN]), line(dtype, [2.0, 0.5, 1.0, -2.5, 9.0, 1.0, -3.0, 20.0, 1.0]))
        x = line(dtype, wide)
        if dtype != F64:
            case(A.frexp.Tensor, x)
            case(A.nextafter.default, x, line(dtype, [1.0]))
            case(A.nextafter.default, line(dtype, [0.0, 1.0, 2.0, -4.0, INF, -INF, 1e-40, 0.1]), line(dtype, [-1.0, 0.0, 3.0, 0.0, 0.0, 0.0, 1.0, INF]))
        case(A.hypot.default, line(dtype, [3.0, 0.0, -5.0, INF, NAN, 1e30]), line(dtype, [4.0, 0.0, 12.0, NAN, 1.0, 1e30]))
        case(A.ldexp.Tensor, x, line(dtype, [1.5]))
        for decimals in (0, 2, -1):
            case(A.round.decimals, line(dtype, [0.0, 1.2345, -2.5, 3.14159, 123.456, -1e5, 1e30]), decimals=decimals)
    case(A.signbit.default, torch.tensor([True, False]))
    x = line(F32, [-3.5, -1.0, -0.75, -0.1, 0.0, 0.3, 0.99, 1.0, 1.01, 4.0])
    for kind in "tuvw":
        for prefix in ("", "shifted_"):
            op = getattr(A, f"special_{prefix}chebyshev_polynomial_{kind}")
            for n in (-1, 0, 1, 4, 11):
                case(op.n_scalar, x, n)
            case(op.default, x, line(F32, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]))
    for name in ("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"):
        for n in (-1, 0, 1, 2, 5):
            case(getattr(A, f"special_{name}").n_scalar, x, n)
    for dtype in (I64, I32, torch.int8, U8):
        x, y = torch.tensor([12, 0, 7, 100, 0, 126], dtype=dtype), torch.tensor([18, 5, 3, 75, 0, 84], dtype=dtype)
        case(A.gcd.default, x, y)
        case(A.lcm.default, x, y)
    case(A.gcd.default, torch.tensor([-12, 2**62]), torch.tensor([18, -6]))
    case(A.lcm.default, torch.tensor([-12, 7]), torch.tensor([18, -6]))


def scattering():
    i = torch.tensor([[3, 0, 3], [1, 1, 2]])
    for dtype in (F32, BF16, I64, BOOL):
        x, y = (normal(3, 4) * 4).to(dtype), (normal(2, 3) * 4).to(dtype)
        case(A.scatter.src, x, 1, i, y)
        case(A.scatter.value, x, -1, i, 2.5 if dtype.is_floating_point else 1)
        case(A.scatter_add.default, x, 1, i, y)
        for reduce in ("sum", "prod", "mean", "amax", "amin"):
            for own in (True, False):
                case(A.scatter_reduce.two, x, 1, i, y, reduce, include_self=own)
        rows = (normal(5, 4) * 4).to(dtype)
        at = torch.tensor([2, 0, 2, 2, 1])
        case(A.index_add.default, x, 0, at, rows)
        for reduce in ("prod", "mean", "amax", "amin"):
            if dtype != BOOL:
                case(A.index_reduce.default, x, 0, at, rows, reduce, include_self=False)
        case(A.index_put.default, x, [at], rows, True)
        case(A.index_put.default, x, [at, at], rows[:, 0], True)
        case(A.index_put.default, x, [None, torch.tensor([[1, -1]])], rows[:3, :2].reshape(3, 1, 2), True)
        case(A.put.default, x, torch.tensor([[0, -1], [5, 0]]), rows[:2, :2], True)
        case(A.put.default, x, torch.tensor([3, 5]), rows[0, :2])
        case(A.masked_scatter.default, x, x > 0, torch.cat([rows, rows]))
    x = normal(3, 4)
    case(A.scatter.reduce, x, 1, i, normal(2, 3), reduce="add")
    case(A.scatter.value_reduce, x, 1, i, 3.0, reduce="multiply")
    case(A.index_add.default, x, 1, torch.tensor([0, 0], dtype=I32), normal(3, 2), alpha=2)
    case(A.index_add.default, torch.tensor(2.0), 0, torch.tensor(0), torch.tensor(3.0))
    case(A._unsafe_index_put.default, x, [None, torch.tensor([1, 3])], normal(3, 2))
    case(A.index_put.default, x, [x > 0], torch.tensor(2.5), True)
    case(A.index_put.default, normal(2, 3, 4), [torch.tensor([0, 1]), None, torch.tensor([3, 3])], normal(2, 3), True)
    case(A.take.default, x, torch.tensor([[0, -1], [5, 5]]))
    case(A.masked_scatter_backward.default, x, x > 0, [4, 3])
    for padding, by_count in ((-1, False), (2, True)):
        case(A.embedding_dense_backward.default, normal(2, 3, 4), torch.tensor([[1, 2, 1], [0, 5, 1]]), 6, padding, by_count)


def pooling():
    for dtype in (F32, BF16, I64):
        x = (normal(2, 3, 9, 10) * 8).to(dtype)
        for args in ([[3, 2]], [[3, 3], [2, 2], [1, 1]], [[2, 3], [2, 1], [1, 1], True], [[3, 3], [2, 2], [1, 1], False, False], [[3, 2], [3, 2], [1, 0], True, False],
                     [[2, 2], [2, 2], [0, 0], False, True, 3], [[7, 6], [3, 2], [3, 3], True, False]):
            case(A.avg_pool2d.default, x, *args)
            if dtype.is_floating_point:
                full = args + [[], [0, 0], False, True, None][len(args) - 1:]
                grad = normal(*A.avg_pool2d.default(x, *args).shape).to(dtype)
                case(A.avg_pool2d_backward.default, grad, x, *full)
        case(A.avg_pool1d.default, x[0], [3], [2], [1], True)
        for args in ([[3, 2]], [[3, 3], [2, 2], [1, 1]], [[2, 3], [2, 1], [1, 1], [3, 2]], [[3, 3], [2, 2], [1, 1], [1, 1], True], [[7, 6], [3, 2], [3, 3], [1, 1], True]):
            case(A.max_pool2d_with_indices.default, x, *args)
            if dtype.is_floating_point:
                full = args + [[], [0, 0], [1, 1], False][len(args) - 1:]
                y, i = A.max_pool2d_with_indices.default(x, *args)
                case(A.max_pool2d_with_indices_backward.default, normal(*y.shape).to(dtype), x, *full, i)
    x = torch.tensor([[NAN, 1, 2, NAN, -INF, -INF], [3, NAN, NAN, 0, -INF, -INF], [1, 1, 1, 1, 1, 1], [-INF, -INF, 5, 5, NAN, 1]])[None]
    case(A.max_pool2d_with_indices.default, x, [2, 2], [1, 1], [1, 1])
    case(A.max_pool2d_with_indices.default, x, [2, 2], [2, 2])
    x = normal(2, 3, 5, 6, 7)
    case(A.avg_pool3d.default, x, [2, 3, 2], [2, 2, 1], [1, 1, 0], True, False)
    case(A.avg_pool3d.default, x, [4, 3, 3], [2, 2, 1])
    y = A.avg_pool3d.default(x, [2, 3, 2], [2, 2, 1], [1, 1, 0], True, False)
    case(A.avg_pool3d_backward.default, normal(*y.shape), x, [2, 3, 2], [2, 2, 1], [1, 1, 0], True, False, None)
    case(A.max_pool3d_with_indices.default, x, [2, 3, 2], [2, 2, 1], [1, 1, 0], [1, 1, 2], True)
    y, i = A.max_pool3d_with_indices.default(x, [4, 3, 3], [2, 2, 1])
    case(A.max_pool3d_with_indices.default, x, [4, 3, 3], [2, 2, 1])
    case(A.max_pool3d_with_indices_backward.default, normal(*y.shape), x, [4, 3, 3], [2, 2, 1], [0, 0, 0], [1, 1, 1], False, i)


def spaced():
    ends = [(0, 5), (-3, 1.2), (4.3, -2.0), (2, 4), (1, 1)]
    for dtype in (F32, BF16, F16, F64, I64, I32):
        for a, b in ends:
            for n in (0, 1, 2, 7, 30):
                case(A.linspace.default, a, b, n, dtype=dtype)
                case(A.logspace.default, a, b, n, dtype=dtype)
        for a, b in ends:
            x, y = (torch.tensor(v, dtype=F32 if isinstance(v, float) else I64) for v in (a, b))
            case(A.linspace.Tensor_Tensor, x, y, 9, dtype=dtype)
            case(A.linspace.Tensor_Scalar, x, b, 9, dtype=dtype)
            case(A.linspace.Scalar_Tensor, a, y, 9, dtype=dtype)
            for base in (2.0, 1.1):
                case(A.logspace.Tensor_Tensor, x, y, 9, base, dtype=dtype)
                case(A.logspace.Tensor_Scalar, x, b, 1, base, dtype=dtype)
                case(A.logspace.Scalar_Tensor, a, y, 2, base, dtype=dtype)
    # Where a product that is rounded before the sum gives another integer.
    for n in range(2, 60):
        case(A.linspace.default, -47, 53, n, dtype=I64)
        case(A.linspace.default, 0, n - 1, n, dtype=I64)
    for args in ((0.5, 4.2, 0.7), (0, 2, 0.5), (-3.5, 5.5, 1.5)):
        case(A.arange.start_step, *args, dtype=I64)


def windows():
    for dtype in (F32, BF16):
        x = normal(2, 3, 7, 9, dtype=dtype)
        for to in ([3, 4], [7, 9], [1, 3], [9, 5], [14, 1]):
            y = A._adaptive_avg_pool2d.default(x, to)
            case(A._adaptive_avg_pool2d.default, x, to)
            case(A._adaptive_avg_pool2d_backward.default, normal(*y.shape, dtype=dtype), x)
            y, i = A.adaptive_max_pool2d.default(x, to)
            case(A.adaptive_max_pool2d.default, x, to)
            case(A.adaptive_max_pool2d_backward.default, normal(*y.shape, dtype=dtype), x, i)
        for kernel, dilation, padding, stride in (([2, 3], [1, 1], [0, 0], [1, 1]), ([3, 2], [2, 1], [1, 2], [2, 3]), ([1, 1], [1, 1], [3, 0], [4, 2])):
            case(A.im2col.default, x, kernel, dilation, padding, stride)
            case(A.im2col.default, x[0], kernel, dilation, padding, stride)
            columns = normal(*A.im2col.default(x, kernel, dilation, padding, stride).shape, dtype=dtype)
            case(A.col2im.default, columns, [7, 9], kernel, dilation, padding, stride)
            case(A.col2im.default, columns[0], [7, 9], kernel, dilation, padding, stride)
        y, i = A.max_pool2d_with_indices.default(x, [2, 2])
        case(A.max_unpool2d.default, y, i, [7, 9])
    x = torch.tensor([[NAN, 1, 2, NAN, -INF], [3, NAN, NAN, 0, -INF], [-INF, -INF, 1, 1, 1], [-INF, -INF, 5, 5, NAN]])[None]
    for to in ([2, 2], [3, 4], [1, 2]):
        case(A.adaptive_max_pool2d.default, x, to)
    x = normal(2, 4, 5, 6)
    for to in ([2, 3, 3], [4, 2, 6]):
        y = A._adaptive_avg_pool3d.default(x, to)
        case(A._adaptive_avg_pool3d.default, x, to)
        case(A._adaptive_avg_pool3d_backward.default, normal(*y.shape), x)
        y, i = A.adaptive_max_pool3d.default(x, to)
        case(A.adaptive_max_pool3d.default, x, to)
        case(A.adaptive_max_pool3d_backward.default, normal(*y.shape), x, i)
    y, i = A.max_pool3d_with_indices.default(x, [2, 2, 2])
    case(A.max_unpool3d.default, y, i, [4, 5, 6], [2, 2, 2], [0, 0, 0])


def grids():
    for dtype in (F32, F64):
        x, grid = normal(2, 3, 4, 5, dtype=dtype), (normal(2, 3, 2, 2) * 1.3).to(dtype)
        for between in (0, 1, 2):
            for outside in (0, 1, 2):
                for corners in (False, True):
                    case(A.grid_sampler_2d.default, x, grid, between, outside, corners)


def orders():
    for dtype in (F32, BF16, F64, I64, U8, BOOL):
        x = (normal(3, 11) * 3).to(dtype)
        for dim in (-1, 0):
            for descending in (False, True):
                case(A.sort.stable, x, stable=True, dim=dim, descending=descending)
    case(A.sort.stable, torch.tensor([NAN, 0.0, -0.0, INF, NAN, -INF, -0.0]), stable=True, dim=0, descending=True)
    case(A.sort.stable, torch.tensor(3.0), stable=True)
    for dtype in (F32, BF16, I64):
        rows = (normal(2, 9) * 4).to(dtype).sort(-1).values
        values = torch.cat(((normal(2, 5) * 4).to(dtype), rows[:, ::3]), 1)
        order = torch.randperm(9).expand(2, 9).contiguous()
        shuffled = torch.empty_like(rows).scatter_(1, order, rows)
        for right in (False, True):
            case(A.searchsorted.Tensor, rows, values, right=right)
            case(A.searchsorted.Tensor, rows[0], values, right=right, out_int32=True)
            case(A.searchsorted.Tensor, shuffled, values, side="right" if right else "left", sorter=order)
            case(A.searchsorted.Scalar, rows[1], 2, right=right)
            case(A.bucketize.Tensor, values, rows[0], right=right)
        case(A.searchsorted.Tensor, rows[0, :0], values)
        case(A.searchsorted.Tensor, rows[0, :8], values)
        case(A.searchsorted.Tensor, rows[0, :1], values)
    case(A.searchsorted.Tensor, torch.tensor([-INF, 0.0, 1.0, INF, NAN]), torch.tensor([NAN, INF, -INF, 0.5]))
    case(A.bucketize.Scalar, 2.5, torch.tensor([1, 2, 3]))
    for p in (0.0, 0.5, 1.0, 2.0, 3.5, INF, -INF, -1.0):
        case(A.dist.default, normal(3, 4), normal(4), p)
        case(A.dist.default, normal(3, 4, dtype=BF16), normal(3, 1, dtype=BF16), p)
    a, b = normal(2, 4, 5), normal(2, 3, 5)
    for p in (0.0, 0.5, 1.0, 2.0, 3.5, INF):
        case(A._cdist_forward.default, a, b, p, None)
    case(A.prod.dim_int, torch.tensor([[1, 0, 2], [3, 1, 1]]), 1, dtype=BOOL)
    case(A.sum.dim_IntList, torch.tensor([[1, 0, 2], [0, 0, 0]]), [1], dtype=BOOL)
    case(A.gather.default, torch.tensor(2.0), 0, torch.zeros(0, dtype=I64))


def chosen():
    """Elements in order, chosen from an order, and the largest so far."""
    # Without equal elements, of which eager chooses one of its own.
    for dtype in (F32, BF16, F64, I64, I32, U8):
        x = torch.randperm(30).reshape(2, 3, 5).to(dtype)
        for dim in (0, 1, -1):
            for flag in (False, True):
                case(A.sort.default, x, dim, flag)
                case(A.topk.default, x, 2, dim, flag)
        case(A.topk.default, x, 0, 1)
        case(A.topk.default, x, 5, 2, False, True)
    case(A.sort.stable, torch.tensor([2, 0, 1]), stable=False, dim=0)
    case(A.sort.default, torch.tensor([INF, 0.5, NAN, -INF]))
    case(A.topk.default, torch.tensor([INF, 0.5, NAN, -INF]), 2)
    case(A.topk.default, torch.tensor([INF, 0.5, NAN, -INF]), 3, 0, False)
    case(A.topk.default, torch.tensor(3.0), 1)
    for dtype in (F32, BF16, F64, I64, U8):
        x = torch.randperm(32).reshape(4, 8).to(dtype)
        for keepdim in (False, True):
            case(A.kthvalue.default, x, 3, 1, keepdim)
            case(A.kthvalue.default, x, 1, 0, keepdim)
            case(A.median.dim, x, 0, keepdim)
            case(A.median.dim, x, -1, keepdim)
            case(A.nanmedian.dim, x, -1, keepdim)
        case(A.median.default, x)
        case(A.nanmedian.default, x)
    holes = torch.tensor([[NAN, 5.0, 1.0, 3.0], [4.0, 2.0, 8.0, 6.0], [INF, -INF, NAN, NAN]])
    for op in (A.median, A.nanmedian):
        case(op.default, holes)
        case(op.default, torch.tensor(3.0))
        case(op.dim, torch.tensor(3.0), 0)
    case(A.median.dim, holes[:2], 1)
    case(A.nanmedian.dim, holes, 1)
    case(A.kthvalue.default, holes[1], 4)
    case(A.kthvalue.default, torch.tensor(3.0), 1)
    for dtype in (F32, BF16, F16, F64, I64, U8, BOOL):
        x = (normal(3, 13) * 3).to(dtype)
        for dim in (0, 1, -1):
            case(A.cummax.default, x, dim)
            case(A.cummin.default, x, dim)
    for op in (A.cummax, A.cummin):
        case(op.default, torch.tensor([1.0, NAN, 5.0, NAN, -INF, INF]), 0)
        case(op.default, torch.tensor(3.0), 0)
        case(op.default, normal(3, 0), 1)
    for dtype in FLOATS:
        for dim in (0, 1):
            case(A.logcumsumexp.default, normal(5, 21, dtype=dtype) * 4, dim)
        case(A.logcumsumexp.default, line(dtype, [-INF, -INF, 2.0, -3.0, INF, 4.0]), 0)
    case(A.logcumsumexp.default, torch.tensor([1.0, NAN, 2.0]), 0)
    case(A.logcumsumexp.default, torch.tensor(3.0), 0)
    for p in (0.0, 0.5, 1.0, 2.0, 3.5, INF):
        case(A._pdist_forward.default, normal(6, 5), p)
    case(A._pdist_forward.default, normal(2, 1, dtype=F64), 2.0)
    case(A._pdist_forward.default, normal(1, 4), 2.0)
    case(A._pdist_forward.default, normal(3, 0), INF)


def resized():
    for dtype in (F32, F64, BF16):
        x = normal(2, 3, 5, 7, dtype=dtype)
        for corners in (False, True):
            for size in ([10, 14], [3, 9], [1, 7], [5, 1]):
                case(A.upsample_bilinear2d.vec, x, size, corners, None)
            case(A.upsample_bilinear2d.vec, x, None, corners, [1.7, 2.0])
            case(A.upsample_bilinear2d.vec, x, None, corners, [0.6, 1.1])


def statistics():
    for dtype in (F32, F64):
        for shape in ((4, 3), (2, 3, 5), (2, 3, 4, 5)):
            x, w, b = normal(*shape, dtype=dtype), normal(3, dtype=dtype), normal(3, dtype=dtype)
            mean, var = normal(3, dtype=dtype), normal(3, dtype=dtype).abs() + 0.5
            case(A._batch_norm_with_update_functional.default, x, w, b, mean, var, 0.1, 1e-5)
    x, w, b, mean, var = normal(4, 3, 6, dtype=BF16), normal(3), normal(3), normal(3), normal(3).abs() + 0.5
    case(A._batch_norm_with_update_functional.default, x, w, b, mean, var, 0.3, 1e-3)
    case(A._native_batch_norm_legit_functional.default, x, w, b, mean, var, True, 0.3, 1e-3)


def groups():
    for dtype in FLOATS:
        for shape, count in (((2, 6, 3, 5), 2), ((3, 4), 1), ((1, 4, 7), 4)):
            n, channels, points = shape[0], shape[1], math.prod(shape[2:])
            g, x, w = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype) + 2, normal(channels, dtype=dtype)
            _, mean, rstd = A.native_group_norm.default(x, w, w, n, channels, points, count, 1e-5)
            sizes = (n, channels, points, count)
            case(A.native_group_norm_backward.default, g, x, mean, rstd, w, *sizes, [True, True, True])
            case(A.native_group_norm_backward.default, g, x, mean, rstd, None, *sizes, [True, False, False])
            case(A.native_group_norm_backward.default, g, x, mean, rstd, w, *sizes, [False, True, True])
    g, x, w = normal(2, 6, 4, dtype=BF16), normal(2, 6, 4, dtype=BF16), normal(6)
    _, mean, rstd = A.native_group_norm.default(x, w, w, 2, 6, 4, 3, 1e-5)
    case(A.native_group_norm_backward.default, g, x, mean, rstd, w, 2, 6, 4, 3, [True, True, True])


def write(name, parts):
    for part in parts:
        part()
    path = pathlib.Path(__file__).with_name(name)
    rows = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    stored = ",\n".join(json.dumps(t, separators=(",", ":")) for t in tensors)
    path.write_text(f'{{"tensors":[\n{stored}\n],"cases":[\n{rows}\n]}}\n')
    print(len(cases), "cases", path.stat().st_size, "bytes")
    for kept in (tensors, index_of, cases):
        kept.clear()


write("samples.json", (pointwise, sources, reductions, norms, gradients, views, images, indexing))
write("special.json", (special,))
write("scatter.json", (scattering,))
write("pool.json", (pooling,))
write("windows.json", (windows, orders, grids))
write("spaced.json", (spaced,))
write("order.json", (chosen, resized, statistics, groups))
