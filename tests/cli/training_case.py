"""What the tests of stagecraft train share: two models, their data, and the run in Python to compare with."""

import csv
import os

import exported
import torch
from command_case import CommandCase
from safetensors.torch import save_file
from torch import nn

ALL = "STAGECRAFT_TEST_ALL" in os.environ
ROWS, LENGTH, VOCABULARY, STEPS, BATCH, RATE = 24, 6, 16, 8, 8, 1e-2
DEFAULTS = {"--steps": STEPS, "--batch": BATCH, "--lr": RATE}


class Language(nn.Module):
    """Embedding and head tied, dropout when asked for."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout)) for _ in range(4))
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = x + block(x)
        return {"last": x, "logits": self.head(x)}


class Plane(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, points, *, shift):
        return self.net(points) + shift


def language(dropout=0.0):
    torch.manual_seed(0)
    return Language(dropout).double().train()


def export_language(dropout=0.0):
    tokens = torch.zeros(4, LENGTH, dtype=torch.long)
    return exported.export(language(dropout), (tokens,), dynamic_shapes={"tokens": {0: torch.export.Dim("rows", min=1, max=64)}})


def plane():
    torch.manual_seed(1)
    return Plane()


def export_plane():
    rows = torch.export.Dim("rows", min=1, max=64)
    return exported.export(plane(), (torch.randn(4, 3),), {"shift": torch.randn(2)}, {"points": {0: rows}, "shift": None})


class TrainCase(exported.ExportCase, CommandCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(2)
        tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
        self.text = {"tokens": tokens, "target": tokens.roll(-1, 1).contiguous()}

    def data(self, tensors):
        path = self.folder / "data.safetensors"
        save_file(tensors, path)
        return path

    def language(self, dropout=0.0):
        return self.saved(f"language_{dropout}.pt2", lambda: export_language(dropout))

    def arguments(self, *options, model=None, data=None):
        defaults = [part for option, value in DEFAULTS.items() if option not in options for part in (option, value)]
        return ["train", model or self.language(), "--data", self.data(data or self.text), *defaults, *options]

    def losses(self, *options, **what):
        """Of every step, and what was printed."""
        text = self.output(*self.arguments("--losses", "losses.csv", *options, **what))
        return self.read_losses("losses.csv"), text

    def read_losses(self, name):
        with open(self.folder / name) as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([int(row["step"]) for row in rows], list(range(1, len(rows) + 1)))
        return [float(row["loss"]) for row in rows]

    def assert_close(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for a, b in zip(ours, theirs):
            self.assertAlmostEqual(a, b, delta=1e-12)


def python_run(model, batches, loss_of, make_optimizer):
    optimizer = make_optimizer(model.parameters())
    losses = []
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def python_language(text, model=None):
    rows = [slice(BATCH * (i % 3), BATCH * (i % 3) + BATCH) for i in range(STEPS)]
    loss_of = lambda model, own: nn.functional.cross_entropy(model(text["tokens"][own])["logits"].flatten(0, 1), text["target"][own].flatten())
    return python_run(model or language(), rows, loss_of, lambda parameters: torch.optim.AdamW(parameters, lr=RATE))
