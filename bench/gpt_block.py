"""One layer of a GPT, as the benchmarks that compare with PyTorch build it."""

from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.join, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.join(self.before(x)).chunk(3, -1))
        x = x + self.leave(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.after(x))))
