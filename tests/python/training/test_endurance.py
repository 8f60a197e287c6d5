"""500 steps: neither memory nor references grow."""

import gc
import os
import unittest

import torch

import models
import processes
import stagecraft.torch as sc

STEPS = 500


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def count_tensors():
    gc.collect()
    return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())




def steps(world, make_pipeline, inputs, target):
    """(tensors, bytes) that 400 steps have added after the first hundred."""
    pipeline = make_pipeline(world)
    note = object()
    for step in range(STEPS):
        if step == 100:
            before = count_tensors(), resident()
        pipeline.step(inputs, target=target, return_outputs=True, unused=note)
        for parameter in pipeline.parameters():
            parameter.grad = None
    return count_tensors() - before[0], resident() - before[1]


def with_keywords(index):
    class Takes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = models.block(index)

        def forward(self, value, unused=None):
            return self.inner(value)

    return Takes()


def make_pipeline(world):
    stages = models.stages_here(world, "InterleavedZeroBubble", 2, make=with_keywords)
    return sc.Pipeline(stages, world=world, schedule="InterleavedZeroBubble", stages_per_rank=2, microbatches=4, loss=models.mean_loss)


def on_processes(rank, ranks):
    return steps(sc.World(timeout=60), make_pipeline, *models.batch())


class Endurance(unittest.TestCase):
    def check(self, growth):
        tensors, size = growth
        self.assertLessEqual(tensors, 4)
        self.assertLess(size, 8 << 20)

    def test_one_rank(self):
        self.check(steps(sc.World.alone(), make_pipeline, *models.batch()))

    def test_threads(self):
        inputs, target = models.batch()
        growth = sc.run_ranks(lambda world: steps(world, make_pipeline, inputs, target), 2)
        self.check((max(one[0] for one in growth), max(one[1] for one in growth)))

    def test_processes(self):
        for growth in processes.run("test_endurance:on_processes", 2):
            self.check(growth)

    def test_references_of_objects(self):
        import sys

        pipeline = make_pipeline(sc.World.alone())
        note = object()
        inputs, target = models.batch()
        pipeline.step(inputs, target=target, unused=note)
        before = sys.getrefcount(note), sys.getrefcount(inputs), sys.getrefcount(None)
        for _ in range(50):
            pipeline.step(inputs, target=target, unused=note)
        after = sys.getrefcount(note), sys.getrefcount(inputs), sys.getrefcount(None)
        self.assertEqual(after[:2], before[:2])
        self.assertLess(abs(after[2] - before[2]), 50)


if __name__ == "__main__":
    unittest.main()
