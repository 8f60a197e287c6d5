"""Small models, exported with the installed torch, and files that are almost right."""

import contextlib
import json
import pathlib
import tempfile
import unittest
import warnings
import zipfile

import torch
from torch import nn
from torch.distributed.pipelining import pipe_split
from torch.fx.traceback import annotate, preserve_node_meta

warnings.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Tied(nn.Module):
    """An embedding that is also the head, blocks, a counter; marked where it wants to be cut."""

    def __init__(self, marked=False):
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("steps", torch.zeros(1))
        self.marked = marked

    def forward(self, tokens, *, extra):
        self.steps.add_(1)
        x = self.tokens(tokens) + extra["scale"]
        for i, block in enumerate(self.blocks):
            x = block(x)
            if self.marked and i == 1:
                pipe_split()
        return {"logits": self.head(x), "last": x}


class Shares(nn.Module):
    """Changes memory through a view, early and late."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x) * 2
        y[:, :2].mul_(3)
        z = self.second(y)
        y.add_(z)
        return y.sum()


class Annotated(nn.Module):
    """Says of its parts which stage they belong to."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for stage, part in enumerate(self.parts):
            with annotate({"stage": stage}):
                x = torch.relu(part(x))
        return x


def annotated():
    with preserve_node_meta():
        return export(Annotated(), (torch.randn(2, 4),))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x), (x,))
        return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,)) + 1


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.steps, self.last = nn.Linear(8, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.steps(self.first(x))[0])


def export(model, arguments, keywords=None, dynamic_shapes=None):
    return torch.export.export(model, arguments, keywords, dynamic_shapes=dynamic_shapes, strict=False)


def tied(marked=False):
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    return export(Tied(marked), (torch.zeros(4, 6, dtype=torch.long),), {"extra": {"scale": torch.randn(4, 6, 8)}},
                  {"tokens": {0: batch}, "extra": {"scale": {0: batch}}})


class ExportCase(unittest.TestCase):
    """Exports once for all its tests: it takes seconds."""

    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    @classmethod
    def saved(cls, name, make):
        path = cls.models / name
        if not path.exists():
            torch.export.save(make(), path)
        return path

    @classmethod
    def tied(cls):
        return cls.saved("tied.pt2", tied)

    def rewritten(self, name, change, source=None, compression=zipfile.ZIP_STORED):
        """A copy of a model whose records went through `change(records)`, a dict from names without root to bytes."""
        source = source or self.tied()
        with zipfile.ZipFile(source) as archive:
            root = archive.namelist()[0].split("/")[0] + "/"
            records = {entry.removeprefix(root): archive.read(entry) for entry in archive.namelist()}
        change(records)
        path = self.folder / name
        with zipfile.ZipFile(path, "w", compression) as archive:
            for entry, data in records.items():
                archive.writestr(root + entry, data)
        return path

    @contextlib.contextmanager
    def json_of(self, records, record):
        """The record as an object to be changed."""
        data = json.loads(records[record])
        yield data
        records[record] = json.dumps(data).encode()
