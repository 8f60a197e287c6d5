"""Training of Python modules on a GPU, or what stands in for one (STAGECRAFT_TEST_DEVICE=cpu), eagerly and with graphs, and what is compared."""

import contextlib
import copy
import os
import unittest

import torch
from torch import nn

from stagecraft.torch import Pipeline, Stage, run_ranks

DEVICE = os.environ.get("STAGECRAFT_TEST_DEVICE", "cuda")
WIDTH = 16


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=dropout, batch_first=True)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        self.seen.mul_(0.9).add_(x.detach().mean((0, 1)))
        return x + self.dropout(torch.tanh(self.out(x)))


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


def train(graph, *, dropout=0.1, seed=7, steps=6, before=lambda step, modules: None, ranks=1, replicas=1, block=Block, loss=loss_of, microbatches=4,
          around=contextlib.nullcontext, told=lambda module: [], evaluates=lambda step: False, rows=lambda step: 8, **options):
    """All that a run leaves behind, and what was captured."""
    torch.manual_seed(3)
    whole = [block(dropout).to(DEVICE) for _ in range(4)]
    all_modules = [whole, *(copy.deepcopy(whole) for _ in range(1, replicas))]
    for replica, own_modules in enumerate(all_modules):
        for module in own_modules:
            module.replica = replica
    batches = [tuple(torch.randn(rows(step), 5, WIDTH, device=DEVICE) for _ in range(2)) for step in range(steps)]
    torch.manual_seed(11)
    traces, captured = {}, []

    def rank(world):
        modules = all_modules[world.replica]
        own = [s for s in range(4) if s % ranks == world.rank]
        pipeline = Pipeline([Stage(modules[s], s) for s in own], world=world, microbatches=microbatches, loss=loss, seed=seed, graph=graph, **options)
        optimizer = torch.optim.AdamW([p for s in own for p in modules[s].parameters()], lr=1e-2)
        trace = []
        for step, batch in enumerate(batches):
            x, y = (tensor.chunk(replicas)[world.replica] for tensor in batch)
            before(step, [modules[s] for s in own])
            if evaluates(step):
                evaluated = pipeline.eval(torch.ones(8, 5, WIDTH, device=DEVICE), target=torch.ones(8, 5, WIDTH, device=DEVICE))
                trace += [loss.clone() for loss in evaluated.losses]
            optimizer.zero_grad()
            with around():
                result = pipeline.step(x, target=y)
            trace += [loss.clone() for loss in result.losses]
            trace += [p.grad.clone() for s in own for p in modules[s].parameters() if p.grad is not None]
            trace += [tensor.clone() for s in own for tensor in told(modules[s])]
            optimizer.step()
        trace += [tensor.detach().clone() for s in own for tensor in (*modules[s].parameters(), *modules[s].buffers())]
        traces[world.rank, world.replica] = trace + [x for x, _ in batches]
        captured.append(pipeline.captured)

    synchronize()  # ranks have streams of their own
    run_ranks(rank, ranks=ranks, replicas=replicas, device=DEVICE)
    synchronize()
    return [tensor for place in sorted(traces) for tensor in traces[place]], captured[0]


class GraphCase(unittest.TestCase):
    def same(self, replayed, **options):
        expected, _ = train(False, **options)
        got, captured = train(True, **options)
        if replayed is not None:
            self.assertEqual(captured.replayed, replayed, captured.reason)
        self.assertEqual(len(got), len(expected))
        for a, b in zip(got, expected):
            self.assertTrue(torch.equal(a, b))
        return captured
