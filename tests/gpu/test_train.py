"""stagecraft train on a GPU: Python's losses, on ranks as threads and as processes, step by step and as graphs; a run that is resumed.

    STAGECRAFT_BIN=build/gpu/bin/stagecraft STAGECRAFT_TEST_DEVICE=cuda python3 tests/gpu/test_train.py

`make test-gpu` runs it. Without STAGECRAFT_TEST_DEVICE it computes on the CPU, where `--graph auto` captures nothing.
"""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import numpy
import torch
from torch import nn

BIN = os.path.abspath(os.environ["STAGECRAFT_BIN"])
STARTER = pathlib.Path(__file__).resolve().parent.parent / "support" / "start_processes.py"
DEVICE = os.environ.get("STAGECRAFT_TEST_DEVICE", "cpu")
GRAPH = ["--graph", "on" if DEVICE == "cuda" else "auto"]
CAN_SHARE_A_GPU = DEVICE == "cpu" or "LD_PRELOAD" in os.environ
ROWS, LENGTH, VOCABULARY, WIDTH, STEPS, RATE = 8, 12, 32, 16, 8, 1e-2
LIMIT = 120


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm, self.up, self.down, self.dropout = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


class Language(nn.Module):
    """Embedding and head are tied."""

    def __init__(self, dropout):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(4))

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(x, self.tokens.weight)


def language(dropout=0.0):
    torch.manual_seed(0)
    return Language(dropout).double().train()


def python_losses(tokens):
    model = language().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        window = torch.from_numpy(tokens[step * ROWS * LENGTH:(step + 1) * ROWS * LENGTH + 1].astype("int64")).to(DEVICE)
        loss = nn.functional.cross_entropy(model(window[:-1].view(ROWS, LENGTH)).flatten(0, 1), window[1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Train(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.tokens = numpy.random.default_rng(0).integers(0, VOCABULARY, STEPS * ROWS * LENGTH + 1, numpy.uint16)
        cls.tokens.tofile(cls.folder / "tokens.bin")
        rows = {"tokens": {0: torch.export.Dim("rows", min=1, max=64)}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, dropout in (("plain", 0.0), ("dropout", 0.2)):
                torch.export.save(torch.export.export(language(dropout), (torch.zeros(4, LENGTH, dtype=torch.long),), dynamic_shapes=rows),
                                  cls.folder / f"{name}.pt2")

    def losses(self, *options, model="plain", processes=1, replicas=1, steps=STEPS):
        command = [BIN, "train", f"{model}.pt2", "--data", "tokens.bin", "--in-order", "--replicas", replicas, "--batch", ROWS // replicas,
                   "--microbatches", 4 // replicas, "--lr", RATE, "--steps", steps, "--device", DEVICE, "--losses", "losses.csv", *options]
        start = [sys.executable, STARTER, "-n", processes] if processes > 1 else []
        done = subprocess.run(list(map(str, start + command)), cwd=self.folder, capture_output=True, text=True, timeout=LIMIT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.folder / "losses.csv") as file:
            return [float(row["loss"]) for row in csv.DictReader(file)]

    def test_python_and_ranks_as_threads(self):
        theirs = python_losses(self.tokens)
        for options, replicas in (([], 1), (["--ranks", 2, "--schedule", "ZBVZeroBubble"], 1), (["--ranks", 2], 2), (["--recompute", 1], 1)):
            for graph in ([], GRAPH):
                with self.subTest(options=options, graph=graph):
                    self.assert_close(self.losses(*options, *graph, replicas=replicas), theirs)

    @unittest.skipUnless(CAN_SHARE_A_GPU, "several ranks on one GPU need NCCL=path/to/libnccl.so.2")
    def test_ranks_as_processes(self):
        theirs = python_losses(self.tokens)
        for options, replicas in ((["--schedule", "ZBVZeroBubble"], 1), (["--shard", "optimizer"], 2)):
            for graph in ([], GRAPH):
                with self.subTest(options=options, graph=graph):
                    self.assert_close(self.losses(*options, *graph, processes=2, replicas=replicas), theirs)

    def test_dropout_and_resuming(self):
        """A graph draws what eager steps draw; a run that stops half-way and goes on as a graph is the run that never stopped."""
        eager = self.losses("--ranks", 2, model="dropout")
        self.assertEqual(self.losses("--ranks", 2, *GRAPH, model="dropout"), eager)
        half = STEPS // 2
        self.assertEqual(self.losses("--ranks", 2, "--save", "half.safetensors", model="dropout", steps=half), eager[:half])
        self.assertEqual(self.losses("--ranks", 2, "--save", "half.safetensors", "--resume", *GRAPH, model="dropout")[-half:], eager[half:])

    def assert_close(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for a, b in zip(ours, theirs):
            self.assertAlmostEqual(a, b, delta=1e-10)


if __name__ == "__main__":
    unittest.main()
