"""Writes a small language model and its data into the folder given as argument. Runs with the Python that has torch."""

import pathlib
import sys
import warnings

import numpy
import torch
from torch import nn

warnings.filterwarnings("ignore")
VOCABULARY, WIDTH, LENGTH = 64, 64, 16


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(8))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
rows = torch.export.Dim("rows", min=1, max=256)
program = torch.export.export(Language(), (torch.zeros(4, LENGTH, dtype=torch.long),), dynamic_shapes={"tokens": {0: rows}})
torch.export.save(program, folder / "language.pt2")
numpy.save(folder / "text.npy", torch.randint(0, VOCABULARY, (256 * LENGTH,)).numpy().astype(numpy.uint16))
