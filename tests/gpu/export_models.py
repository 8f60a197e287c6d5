"""Writes a small model for graph_crossings_test: export_models.py FILE"""

import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.batch_norm = nn.LayerNorm(16), nn.BatchNorm1d(16)
        self.wide, self.narrow, self.dropout = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.2)

    def forward(self, x):
        return self.batch_norm(x + self.dropout(self.narrow(nn.functional.gelu(self.wide(self.norm(x))))))


torch.manual_seed(1)
model = nn.Sequential(*(Block() for _ in range(4))).train()
rows = torch.export.Dim("rows", min=2, max=1024)
program = torch.export.export(model, (torch.zeros(6, 16),), dynamic_shapes=({0: rows},))
torch.export.save(program, sys.argv[1])
