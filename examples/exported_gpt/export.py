"""A small GPT, exported for training: python export.py gpt.pt2"""

import sys

import torch
from torch import nn


class Gpt(nn.Module):
    def __init__(self, vocabulary=256, width=64, layers=4, length=64):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width) / 50)
        block = lambda: nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks, self.norm = nn.ModuleList(block() for _ in range(layers)), nn.LayerNorm(width)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.norm(x) @ self.tokens.weight.T  # tied with the embedding


tokens = torch.zeros(2, 64, dtype=torch.long)
program = torch.export.export(Gpt().train(), (tokens,), dynamic_shapes={"tokens": {0: torch.export.Dim("rows", min=1)}})
torch.export.save(program, sys.argv[1])
