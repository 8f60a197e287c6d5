"""Python modules as graphs, of which torch.compile has compiled all or a part: always what eager steps give. No operation tells of the memory that such code
makes. What stands in for a GPU captures operations, so that the code that is compiled for it consists of these; and its captures have torch.compile compile
anew, which they may refuse."""

import unittest

import numpy
import torch
from graph_case import DEVICE, WIDTH, Block, GraphCase, train
from torch import nn

BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"


def compiled(block):
    def make(dropout):
        module = block(dropout)
        module.compile(backend=BACKEND)
        return module

    return make


class CompiledInside(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.norm.compile(backend=BACKEND)
        self.activation = torch.compile(lambda x: torch.nn.functional.dropout(torch.tanh(x), dropout), backend=BACKEND)

    def forward(self, x):
        return self.activation(super().forward(x))


class OutOfNowhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(numpy.empty(x.shape, dtype=numpy.float32)).copy_(x * 2)

    @staticmethod
    def backward(ctx, gradient):
        return torch.from_numpy(numpy.empty(gradient.shape, dtype=numpy.float32)).copy_(gradient * 2)


class MakesMemory(Block):
    def forward(self, x):
        return OutOfNowhere.apply(super().forward(x))


class CompiledGraphs(GraphCase):
    def expect_same(self, **options):
        train(False, stages_per_rank=4, **options)  # compiles
        captured = self.same(None, stages_per_rank=4, **options)
        if DEVICE == "cuda":
            self.assertGreater(captured.replayed, 0, captured.reason)

    def test_modules(self):
        for schedule in ("Interleaved1F1B", "LoopedBFS"):
            for block in (compiled(Block), CompiledInside):
                for dropout in (0.0, 0.2):
                    with self.subTest(schedule, dropout=dropout):
                        self.expect_same(schedule=schedule, block=block, dropout=dropout)

    def test_split_backwards(self):
        self.expect_same(schedule="InterleavedZeroBubble", block=compiled(Block))

    def test_other_shapes(self):
        self.expect_same(schedule="Interleaved1F1B", block=compiled(Block), rows=lambda step: 8 if step < 4 else 12, steps=9)

    def test_numbers_of_torchs_own_generator(self):
        self.expect_same(schedule="Interleaved1F1B", block=compiled(Block), seed=None)

    @unittest.skipIf(DEVICE == "cuda", "compiled code does it there")
    def test_memory_of_which_no_operation_tells(self):
        for lanes, replayed in (1, 5), (4, 4):  # copy_ shows that stages share it
            with self.subTest(lanes=lanes):
                self.same(replayed, schedule="Interleaved1F1B", stages_per_rank=4, block=MakesMemory, lanes=lanes)

    def test_a_trained_tensor_that_the_caller_has(self):
        scales = {}

        class Scaled(Block):
            def __init__(self, dropout):
                super().__init__(dropout)
                self.compile(backend=BACKEND)

            def forward(self, x):
                return super().forward(x) * self.scale[0]

        for graph in (False, True):
            scale = scales[graph] = nn.Parameter(torch.ones(WIDTH, device=DEVICE))
            Scaled.scale = [scale]  # which no stage has
            _, captured = train(graph, schedule="Interleaved1F1B", stages_per_rank=4, block=Scaled)
        self.assertEqual(captured.replayed, 0)
        self.assertIn("no parameter of a stage", captured.reason)
        self.assertTrue(torch.equal(scales[True].grad, scales[False].grad))


if __name__ == "__main__":
    unittest.main()
