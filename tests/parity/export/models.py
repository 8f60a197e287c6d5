"""Models that the tests export: one idea each, small, with inputs that have a dynamic batch."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.net(x)


class Skips(nn.Module):
    """A value made early is used late, twice; sizes are computed with."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    def forward(self, x):
        first = torch.tanh(self.layers[0](x))
        y = first
        for layer in self.layers[1:4]:
            y = F.relu(layer(y)) + first
        scale = torch.arange(x.shape[0] * 2, dtype=x.dtype)[: x.shape[0]] / (x.shape[0] * 2)
        y = y.reshape(x.shape[0] * 2, 4).view(x.shape[0], -1)
        return self.layers[4](y * (1 + 0 * scale.unsqueeze(1))) * first + x.shape[1] // 3


class Keywords(nn.Module):
    """Keyword inputs, nested ones, one that is used only at the end, and a fixed flag."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x, *, extra, bias=None, flag=True):
        y = torch.sigmoid(self.a(x))
        if flag:
            y = y + extra["shift"]
        y = self.b(y)
        return y * extra["pair"][0] + extra["pair"][1] + bias


class Outputs(nn.Module):
    """Several outputs, nested, from early and late, one of them an integer tensor and one nothing."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 6)
        self.b = nn.Linear(6, 6)

    def forward(self, x):
        early = self.a(x)
        late = self.b(early.relu())
        best, where = late.max(dim=1)
        parts = late.split(3, dim=1)
        return {"early": early, "late": (parts[0], [parts[1], best]), "where": where, "nothing": None}


class Mean(nn.Module):
    """Rows are gone before their number is used."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        total = torch.tanh(self.a(x)).sum(0)
        return self.b(total / x.shape[0]) * (x.shape[0] // 2)


class Convolution(nn.Module):
    """Convolutions, batch normalisation (statistics change in place), activations in place, pooling."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
            nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(6), nn.SiLU(inplace=True),
            nn.MaxPool2d(2))  # fmt: skip
        self.head = nn.Linear(6 * 2 * 2, 5)

    def forward(self, x):
        return self.head(torch.flatten(self.features(x), 1))


class InPlace(nn.Module):
    """Changes in place, directly and through views."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x):
        y = self.a(x)
        z = y * 2
        left = z[:, :4]
        left.mul_(3)
        self.calls.add_(1)
        z += y
        return self.b(z) + left.sum(dim=1, keepdim=True)


class Regions(nn.Module):
    """A region without gradients, nested in the middle, and one with gradients inside it again."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        with torch.no_grad():
            weight = torch.softmax(y, dim=1)
            scale = weight.sum(dim=1, keepdim=True) + 1
        return self.b(y * weight) / scale


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
            z = self.b(y.relu())
        return z.float() + x


class Text(nn.Module):
    """A text classifier: embedding bag by hand, padding masked, constants of the model."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 3)
        self.weights = torch.tensor([1.0, 0.5, 2.0])

    def forward(self, tokens):
        mask = (tokens != 0).unsqueeze(-1)
        x = self.embedding(tokens)
        x = x.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        return self.fc(self.norm(x)) * self.weights


class Attention(nn.Module):
    """Grouped-query attention with rotary embeddings."""

    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2 * self.groups, self.size).transpose(1, 2).chunk(2, dim=1)

        def rotate(y):
            left, right = y.chunk(2, dim=-1)
            return y * cos + torch.cat((-right, left), dim=-1) * sin

        q, k = rotate(q), rotate(k)
        repeat = self.heads // self.groups
        k = k[:, :, None].expand(-1, -1, repeat, -1, -1).reshape(b, self.heads, t, self.size)
        v = v[:, :, None].expand(-1, -1, repeat, -1, -1).reshape(b, self.heads, t, self.size)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, groups)
        self.gate, self.up, self.down = nn.Linear(width, 32), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x, cos, sin, mask):
        x = x + self.attention(self.norm1(x), cos, sin, mask)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LlamaStyle(nn.Module):
    """Rotary tables from a buffer, a mask with infinities, embedding and head tied."""

    def __init__(self, layers=2, width=16, heads=4, groups=2, vocabulary=32):
        super().__init__()
        size = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, size, 2) / size), persistent=False)

    def forward(self, tokens):
        t = tokens.shape[1]
        x = self.embedding(tokens)
        angles = torch.outer(torch.arange(t, device=tokens.device).to(self.frequencies.dtype), self.frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        mask = torch.full((t, t), float("-inf"), dtype=x.dtype).triu(1)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin(), mask)
        return self.head(self.norm(x))


class GptBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(c, dim=2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~mask[:t, :t], float("-inf"))
        y = (self.dropout(F.softmax(scores, dim=-1)) @ v).transpose(1, 2).contiguous().view(b, t, c)
        x = x + self.dropout(self.proj(y))
        return x + self.dropout(self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh")))


class GptStyle(nn.Module):
    """Learned positions, a boolean mask as a buffer, embedding and head tied, dropout."""

    def __init__(self, layers=2, width=16, heads=2, vocabulary=32, length=8, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


class MambaBlock(nn.Module):
    """A depthwise causal convolution, then a selective state-space recurrence, gated."""

    def __init__(self, width, inner, state):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.enter, self.leave = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, 2 * state + 1, bias=False)
        self.rate = nn.Parameter(torch.arange(1, state + 1).log().repeat(inner, 1))
        self.state = state

    def forward(self, x):
        length = x.shape[1]
        y, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., :length].transpose(1, 2))
        step, into, out = self.select(y).split([1, self.state, self.state], dim=-1)
        step = F.softplus(step)
        decay = torch.exp(-step.unsqueeze(-1) * self.rate.exp())
        new = (step * y).unsqueeze(-1) * into.unsqueeze(2)
        memory, seen = new[:, 0], []
        for t in range(length):
            memory = memory * decay[:, t] + new[:, t] if t else memory
            seen.append((memory * out[:, t].unsqueeze(1)).sum(-1))
        return x + self.leave(torch.stack(seen, 1) * F.silu(gate))


class MambaStyle(nn.Module):
    """Blocks of one shape, so that ranks compute the same convolution with different weights at the same time."""

    def __init__(self, layers=4, width=16, inner=32, state=4, vocabulary=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(MambaBlock(width, inner, state) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Dropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(64, 64, bias=False)
        nn.init.eye_(self.last.weight)

    def forward(self, x):
        return self.last(self.drop(x * self.scale))
