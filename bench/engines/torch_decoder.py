"""One decoder layer of a large language model at the time of decoding: a token comes in, keys and values of the ones before it are kept."""

import torch
from torch import nn
from torch.nn import functional as F


class DecoderLayer(nn.Module):
    """RMS norm, attention with grouped keys and rotary positions, RMS norm, gated feed-forward, as Llama has them."""

    def __init__(self, hidden, heads, groups, inner, cached):
        super().__init__()
        self.heads, self.groups, self.width, self.cached = heads, groups, hidden // heads, cached
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, groups * self.width, bias=False)
        self.value = nn.Linear(hidden, groups * self.width, bias=False)
        self.result = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.before, self.between = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.register_buffer("keys", torch.randn(1, groups, cached + 1, self.width))
        self.register_buffer("values", torch.randn(1, groups, cached + 1, self.width))
        turn = torch.outer(torch.tensor([float(cached)]), 10000.0 ** (-torch.arange(0, self.width, 2) / self.width))
        self.register_buffer("cos", torch.cat([turn.cos(), turn.cos()], -1))
        self.register_buffer("sin", torch.cat([turn.sin(), turn.sin()], -1))

    def turned(self, x):
        one, two = x.chunk(2, -1)
        return x * self.cos + torch.cat([-two, one], -1) * self.sin

    def forward(self, x):
        batch, tokens, hidden = x.shape
        seen = F.rms_norm(x, (hidden,), self.before, 1e-5)
        query = self.turned(self.query(seen).view(batch, tokens, self.heads, self.width).transpose(1, 2))
        key = self.turned(self.key(seen).view(batch, tokens, self.groups, self.width).transpose(1, 2))
        value = self.value(seen).view(batch, tokens, self.groups, self.width).transpose(1, 2)
        self.keys[:, :, self.cached :] = key
        self.values[:, :, self.cached :] = value
        found = F.scaled_dot_product_attention(query, self.keys, self.values, enable_gqa=True)
        x = x + self.result(found.transpose(1, 2).reshape(batch, tokens, hidden))
        seen = F.rms_norm(x, (hidden,), self.between, 1e-5)
        return x + self.down(F.silu(self.gate(seen)) * self.up(seen))
