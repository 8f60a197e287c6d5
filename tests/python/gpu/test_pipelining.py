"""stagecraft.pipelining beside torch.distributed.pipelining, on one rank of a GPU: the same losses, gradients and random numbers.

`make test-gpu` runs it. Without a GPU it computes on the CPU.
"""

import os
import unittest

import torch
import torch.distributed as dist
import torch.distributed.pipelining as theirs
from torch import nn

import stagecraft.pipelining as ours

DEVICE = torch.device("cuda:0" if os.environ.get("STAGECRAFT_TEST_DEVICE") == "cuda" else "cpu")
WIDTH, STAGES, STEPS = 16, 4, 4


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(dropout)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=dropout, batch_first=True)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.dropout(torch.tanh(self.out(x)))


def loss_of(output, target):
    return nn.functional.mse_loss(output.float(), target.float())


def train(package, schedule, *, dropout=0.0, dtype=torch.float32, zero_every=1):
    """Outputs, losses and gradients, step by step, and where torch's generator stands in the end; and the schedule."""
    torch.manual_seed(3)
    modules = [Block(dropout).to(DEVICE, dtype) for _ in range(STAGES)]
    batches = [torch.randn(2, 8, 5, WIDTH, device=DEVICE).to(dtype) for _ in range(STEPS)]
    stages = [package.PipelineStage(module, index, STAGES, DEVICE) for index, module in enumerate(modules)]
    # With scale_grads, torch's package divides gradients of earlier steps once more at every step; ours does not.
    run = package.schedules.get_schedule_class(schedule)(stages, 4, loss_fn=loss_of, scale_grads=zero_every == 1)
    run.step(batches[0][0], target=batches[0][1])  # in the first step, some versions of torch's package call every module once more
    for module in modules:
        module.zero_grad()
    torch.manual_seed(11)
    trace = []
    for step, (x, y) in enumerate(batches):
        losses = []
        trace.append(run.step(x, target=y, losses=losses))
        trace += losses
        trace += [parameter.grad for module in modules for parameter in module.parameters()]
        trace = [tensor.detach().clone() for tensor in trace]
        if (step + 1) % zero_every == 0:
            for module in modules:
                module.zero_grad()
    trace.append(torch.rand(3, device=DEVICE))
    return trace, run


class BesideTorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
        cls.addClassCleanup(dist.destroy_process_group)

    def same(self, schedule, **options):
        expected, _ = train(theirs, schedule, **options)
        got, run = train(ours, schedule, **options)
        self.assertEqual(type(run._engine[1]).__name__, "NativeEngine")
        self.assertEqual(len(got), len(expected))
        for a, b in zip(got, expected):
            if schedule == "InterleavedZeroBubble":  # adds up gradients in another order
                torch.testing.assert_close(a, b)
            else:
                self.assertTrue(torch.equal(a, b))

    def test_schedules(self):
        for schedule in ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"):
            for options in ({}, {"dropout": 0.2}, {"dtype": torch.float64}, {"dtype": torch.bfloat16}, {"zero_every": 3}):
                with self.subTest(schedule=schedule, **options):
                    self.same(schedule, **options)

    def test_all_of_it(self):
        self.same("Interleaved1F1B", dropout=0.2, dtype=torch.bfloat16, zero_every=2)


if __name__ == "__main__":
    unittest.main()
