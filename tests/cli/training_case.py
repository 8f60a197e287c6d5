"""What the tests of stagecraft train share: two models, their data, and the run in Python to compare with."""

import csv
import json
import os
import pathlib
import subprocess
import tempfile

import exported
import torch
from command_case import BIN, TIMEOUT, CommandCase
from safetensors.torch import save_file
from torch import nn

ALL = "STAGECRAFT_TEST_ALL" in os.environ
MPIEXEC = os.environ.get("STAGECRAFT_MPIEXEC")  # where the build has MPI
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


MODELS = tempfile.TemporaryDirectory()  # exported once for all classes of a test program


class TrainCase(exported.ExportCase, CommandCase):
    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(MODELS.name)

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
        """`data`: tensors by name, or a file."""
        defaults = [part for option, value in DEFAULTS.items() if option not in options for part in (option, value)]
        if not isinstance(data, os.PathLike):
            data = self.data(data or self.text)
        return ["train", model or self.language(), "--data", data, *defaults, *options]

    def mpirun(self, *options, ranks=2, **what):
        return self.started_by_mpi("-n", ranks, BIN, *self.arguments(*options, **what))

    def started_by_mpi(self, *words):
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        return subprocess.run([MPIEXEC, *map(str, words)], cwd=self.folder, env=environment, timeout=TIMEOUT, check=False,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def losses(self, *options, **what):
        """Of every step, and what was printed."""
        text = self.output(*self.arguments("--losses", "losses.csv", *options, **what))
        return self.read_losses("losses.csv"), text

    def read_losses(self, name):
        with open(self.folder / name) as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([int(row["step"]) for row in rows], list(range(1, len(rows) + 1)))
        return [float(row["loss"]) for row in rows]

    def metrics(self, name="run.jsonl"):
        """One object per step; every step is there once."""
        text = (self.folder / name).read_text()
        self.assertTrue(text.endswith("\n"))
        steps = [json.loads(line, parse_constant=self.fail) for line in text.splitlines()]
        self.assertEqual([step["step"] for step in steps], list(range(1, len(steps) + 1)))
        return steps

    def assert_close(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for a, b in zip(ours, theirs):
            self.assertAlmostEqual(a, b, delta=1e-12)


MASK = (1 << 64) - 1


class Random:
    """SplitMix64, seeded with its own first number."""

    def __init__(self, seed):
        self.state = seed
        self.state = self.next()

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def shuffled(rows, seed, epoch):
    """The order of an epoch: eight rounds of a Feistel network, repeated until the number is a row."""
    random = Random((Random(seed).next() + epoch) & MASK)
    keys = [random.next() for _ in range(8)]
    half = max(1, ((rows - 1).bit_length() + 1) // 2)
    order = []
    for number in range(rows):
        while True:
            left, right = number >> half, number & ((1 << half) - 1)
            for key in keys:
                left, right = right, left ^ (Random((key + right) & MASK).next() & ((1 << half) - 1))
            number = left << half | right
            if number < rows:
                break
        order.append(number)
    return order


def positions(begin, end, rows=ROWS, seed=None):
    """The rows at these positions of the order; without a seed, as they come."""
    epochs = [shuffled(rows, seed, epoch) if seed is not None else list(range(rows)) for epoch in range((end - 1) // rows + 1)]
    return [epochs[i // rows][i % rows] for i in range(begin, end)]


def python_run(model, batches, loss_of, make_optimizer, before_update=lambda model: None):
    optimizer = make_optimizer(model.parameters())
    losses = []
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        before_update(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def language_loss(text, model, rows):
    return nn.functional.cross_entropy(model(text["tokens"][rows])["logits"].flatten(0, 1), text["target"][rows].flatten())


def python_language(text, model=None, batches=None, make_optimizer=None, **how):
    """`batches`: the rows of each step; otherwise all rows in order, over and over."""
    batches = batches or [positions(BATCH * i, BATCH * i + BATCH) for i in range(STEPS)]
    return python_run(model or language(), batches, lambda model, rows: language_loss(text, model, rows),
                      make_optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=RATE)), **how)
