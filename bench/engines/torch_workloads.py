"""The workloads as torch functions: what each name in `bench/definitions` means to PyTorch.

A definition's `torch` field names a function here. Inputs come from the definition; nothing here times anything.
"""

import functools

import torch
import torch.nn.functional as F


def add_relu_mul(x, b):
    return torch.relu(x + b) * 2.0


def gelu_bias(x, b):
    return F.gelu(x + b)


def tanh_gelu_sigmoid(x, b):
    return torch.tanh(F.gelu(x + b, approximate="tanh")) * torch.sigmoid(x)


def add_transposed(x):
    return x + x.t()


def mxint8_decode(mantissa, exponent):
    scale = torch.exp2(exponent.to(torch.float32) - 127)[:, None]
    return (mantissa.to(torch.float32) * 2.0**-6 * scale).to(torch.bfloat16)


def cut_rows(x):
    return x[:, :-47].contiguous()


def pad_rows(x):
    return F.pad(x, (0, 47))


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, w):
    return F.layer_norm(x, (x.shape[-1],), w, w)


def rms_norm(x, w):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def log_softmax(x):
    return torch.log_softmax(x, -1)


def cross_entropy(x, target):
    return F.cross_entropy(x, target)


def var_mean_0_2(x):
    return torch.var_mean(x, (0, 2))


def embedding_layer_norm(table, ids, w, b):
    return F.layer_norm(F.embedding(ids, table), (table.shape[1],), w, b)


def rotary(q, cos, sin):
    a, b = q.chunk(2, -1)
    return q * cos + torch.cat((-b, a), -1) * sin


def adamw(*tensors):
    """Step 10 of AdamW with PyTorch's defaults, out of place: parameters, gradients, and the two moments; then the new parameters and moments."""
    n = len(tensors) // 4
    new = [[], [], []]
    for p, g, m, v in zip(*(tensors[i * n : (i + 1) * n] for i in range(4)), strict=True):
        m = m * 0.9 + g * 0.1
        v = v * 0.999 + g * g * 0.001
        p = p * (1 - 1e-3 * 0.01) - m / (v.sqrt() / (1 - 0.999**10) ** 0.5 + 1e-8) * (1e-3 / (1 - 0.9**10))
        for tensors_of, tensor in zip(new, (p, m, v), strict=True):
            tensors_of.append(tensor)
    return [*new[0], *new[1], *new[2]]


def sum_rows(x):
    return x.sum(0)


def sum_all(x):
    return x.sum()


def places_in_order(x):
    return torch.argsort(x, dim=1, stable=True)


def matmul(a, b):
    return torch.matmul(a, b)


def int_mm(a, b):
    return torch._int_mm(a, b)


def int_linear(x, w):
    return torch._int_mm(x, w.t())


def gelu_matmul_bias(a, b, c):
    return F.gelu(a @ b + c)


def linear(x, w, b):
    return F.linear(x, w, b)


def linear_softmax(x, w, b):
    return torch.softmax(F.linear(x, w, b), -1)


def linear_residual_norm(x, r, w, b, g, h):
    return F.layer_norm(F.linear(x, w, b) + r, (w.shape[0],), g, h)


def norm_linear(x, w, b, g, h):
    return F.linear(F.layer_norm(x, (x.shape[-1],), g, h), w, b)


def mlp(x, w1, b1, w2, b2):
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def dual_gemm_silu(a, b1, b2):
    return F.silu(a @ b1.t()) * (a @ b2.t())


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, -1) @ v


def attention_fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def attention_grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=0.125, enable_gqa=k.shape[1] != q.shape[1])


def attention_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def heads(x, b, s):
    return x.view(b, s, -1, 64).transpose(1, 2)


def gpt2_layer(x, g1, b1, w_qkv, b_qkv, w_o, b_o, g2, b2, w_in, b_in, w_out, b_out):
    b, s, e = x.shape
    q, k, v = torch.addmm(b_qkv, F.layer_norm(x, (e,), g1, b1).view(-1, e), w_qkv).view(b, s, -1).split(e, -1)
    o = F.scaled_dot_product_attention(heads(q, b, s), heads(k, b, s), heads(v, b, s), is_causal=True)
    x = x + torch.addmm(b_o, o.transpose(1, 2).reshape(-1, e), w_o).view(b, s, e)
    mid = F.gelu(torch.addmm(b_in, F.layer_norm(x, (e,), g2, b2).view(-1, e), w_in), approximate="tanh")
    return x + torch.addmm(b_out, mid, w_out).view(b, s, e)


def bert_layer(x, w_q, b_q, w_k, b_k, w_v, b_v, w_o, b_o, g1, b1, w_in, b_in, w_out, b_out, g2, b2):
    b, s, e = x.shape
    q, k, v = (heads(F.linear(x, w, bias), b, s) for w, bias in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
    o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, e)
    x = F.layer_norm(F.linear(o, w_o, b_o) + x, (e,), g1, b1, 1e-12)
    return F.layer_norm(F.linear(F.gelu(F.linear(x, w_in, b_in)), w_out, b_out) + x, (e,), g2, b2, 1e-12)


def rms_norm_llama(x, w):
    f = x.float()
    return w * (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotary(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


def llama_layer(x, cos, sin, g1, w_q, w_k, w_v, w_o, g2, w_gate, w_up, w_down):
    b, s, e = x.shape
    n = rms_norm_llama(x, g1)
    q, k = (rotary(heads(F.linear(n, w), b, s), cos, sin) for w in (w_q, w_k))
    o = F.scaled_dot_product_attention(q, k, heads(F.linear(n, w_v), b, s), is_causal=True, enable_gqa=True)
    x = x + F.linear(o.transpose(1, 2).reshape(b, s, e), w_o)
    n = rms_norm_llama(x, g2)
    return x + F.linear(F.silu(F.linear(n, w_gate)) * F.linear(n, w_up), w_down)


def resnet_stage(x, *parameters):
    def normed(x, number, stride):
        w, g, b, mean, var = parameters[5 * number : 5 * number + 5]
        return F.batch_norm(F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2), mean, var, g, b)

    x = F.relu(normed(F.relu(normed(x, 0, 2)), 1, 1) + normed(x, 2, 2))
    return F.relu(normed(F.relu(normed(x, 3, 1)), 4, 1) + x)


def convolution_same(x, w, b):
    return F.relu(F.conv2d(x, w, b, padding=w.shape[-1] // 2))


def convolution_halved(x, w, b):
    return F.relu(F.conv2d(x, w, b, stride=2, padding=w.shape[-1] // 2))


def convolution_patches(x, w, b):
    return F.relu(F.conv2d(x, w, b, stride=w.shape[-1]))


def convolution_transposed_patches(x, w, b):
    return F.relu(F.conv_transpose2d(x, w, b, stride=w.shape[-1]))


def convolution_transposed_doubled(x, w, b):
    return F.relu(F.conv_transpose2d(x, w, b, stride=2, padding=w.shape[-1] // 2 - 1))


def convolution_depthwise(x, w, b):
    return F.relu(F.conv2d(x, w, b, padding=w.shape[-1] // 2, groups=x.shape[1]))


def convolution_depthwise_halved(x, w, b):
    return F.relu(F.conv2d(x, w, b, stride=2, padding=w.shape[-1] // 2, groups=x.shape[1]))


def convolution_groups(x, w, b):
    return F.relu(F.conv2d(x, w, b, padding=w.shape[-1] // 2, groups=32))


def convolution_line(x, w, b):
    return F.relu(F.conv1d(x, w, b, padding=w.shape[-1] // 2))


def convolution_line_halved(x, w, b):
    return F.relu(F.conv1d(x, w, b, stride=2, padding=w.shape[-1] // 2))


def convolution_volume(x, w, b):
    return F.relu(F.conv3d(x, w, b, padding=w.shape[-1] // 2))


def group_gemm(*ab):
    g = len(ab) // 2
    return [ab[i] @ ab[g + i].t() for i in range(g)]


def pq_indexer(q, centroids, codebook):
    """One decode step of a sparse-attention indexer: every clustered key is scored by table look-up, the window stays out, the heaviest are taken;
    then sink, heaviest and window as positions and as weights. As PyTorch users write it, `topk` in any order and all."""
    sink, window, heavy = 128, 128, 1024
    b, n, hkv, nsub = codebook.shape
    h, d = q.shape[1], q.shape[3]
    sk, group = n + sink, h // hkv
    split = q.reshape(b, hkv, group, nsub, d // nsub)
    table = torch.einsum("bkgsd,bkscd->bkgsc", split, centroids).reshape(b, h, nsub, -1)
    codes = codebook.permute(0, 2, 3, 1).repeat_interleave(group, 1)
    scores = torch.gather(table, 3, codes).sum(2)
    scores[:, :, n - window :] = float("-inf")
    top = torch.topk(scores, heavy, dim=-1, sorted=False).indices + sink
    index = torch.empty((b, h, sink + heavy + window), device=q.device, dtype=torch.long)
    index[:, :, :sink] = torch.arange(sink, device=q.device)
    index[:, :, sink : sink + heavy] = top
    index[:, :, sink + heavy :] = torch.arange(sk - window, sk, device=q.device)
    weight = torch.zeros((b, h, sk), device=q.device)
    weight[torch.arange(b, device=q.device)[:, None, None], torch.arange(h, device=q.device)[None, :, None], index] = 1.0
    return index, weight, torch.full((b, h), index.shape[-1], device=q.device)


# The same functions with preallocated outputs, where PyTorch offers that for the last operation: the result's memory is then not what is measured.


def add_relu_mul_out(outs, x, b):
    return torch.mul(torch.relu(x + b), 2.0, out=outs[0])


def add_transposed_out(outs, x):
    return torch.add(x, x.t(), out=outs[0])


def softmax_out(outs, x):
    return torch.softmax(x, -1, out=outs[0])


def log_softmax_out(outs, x):
    return torch.log_softmax(x, -1, out=outs[0])


def sum_rows_out(outs, x):
    return torch.sum(x, 0, out=outs[0])


def matmul_out(outs, a, b):
    return torch.matmul(a, b, out=outs[0])


def int_mm_out(outs, a, b):
    return torch._int_mm(a, b, out=outs[0])


def int_linear_out(outs, x, w):
    return torch._int_mm(x, w.t(), out=outs[0])


def linear_out(outs, x, w, b):
    return torch.addmm(b, x, w.t(), out=outs[0])


def tanh_gelu_sigmoid_out(outs, x, b):
    return torch.mul(torch.tanh(F.gelu(x + b, approximate="tanh")), torch.sigmoid(x), out=outs[0])


def var_mean_0_2_out(outs, x):
    return torch.ops.aten.var_mean.correction_out(x, (0, 2), out0=outs[0], out1=outs[1])


# Torch's own kernel of a whole workload, in place. It is given the inputs, and may change them; what it changed are the results.


@functools.cache
def steps_of(n):
    return [torch.tensor(10.0) for _ in range(n)]


def adamw_library(*tensors):
    n = len(tensors) // 4
    p, g, m, v = (tensors[i * n : (i + 1) * n] for i in range(4))
    torch._fused_adamw_(p, g, m, v, [], steps_of(n), lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
