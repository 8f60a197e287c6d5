"""Python modules on a GPU: steps that are replayed as graphs give what eager steps give, and ranks share the GPU. `make test-gpu` runs it, and
`make test-python` on a CPU that stands in for a GPU (STAGECRAFT_TEST_DEVICE=cpu)."""

import unittest

import torch
from graph_case import DEVICE, WIDTH, Block, GraphCase, loss_of, train
from torch import nn

from stagecraft.torch import InvalidArgument, Pipeline, Stage, run_ranks

on_gpu = unittest.skipIf(DEVICE == "cpu", "it is about a GPU with a CPU beside it")


class Skips(Block):
    """Draws on the CPU whether it computes anything."""

    def forward(self, x):
        return super().forward(x) if torch.rand(()) < 0.7 else x * 1.5


class Cools(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.temperature = torch.tensor(1.0)  # to() does not move it

    def forward(self, x):
        return super().forward(x) / self.temperature


class Draws(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.register_buffer("drawn", torch.zeros(256))

    def forward(self, x):
        self.drawn.copy_(nn.functional.dropout(torch.ones_like(self.drawn), 0.5))
        return super().forward(x)


class WorksInPlace(Block):
    def forward(self, x):
        if not x.requires_grad:
            x = x.mul_(0.5).clone()  # other microbatches change the tensor that this one is a part of
        return super().forward(x)


class Graphs(GraphCase):
    def test_schedules(self):
        for schedule in ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"):
            with self.subTest(schedule):
                captured = self.same(5, schedule=schedule, stages_per_rank=4)
                self.assertGreater(captured.lanes, 1)

    def test_one_lane(self):
        self.assertEqual(self.same(5, schedule="Interleaved1F1B", stages_per_rank=4, lanes=1).lanes, 1)

    def test_numbers_of_torchs_own_generator(self):
        self.same(5, schedule="Interleaved1F1B", stages_per_rank=4, seed=None)

    @on_gpu
    def test_numbers_drawn_on_the_cpu(self):
        for seed in (None, 7):
            with self.subTest(seed):
                captured = self.same(0, schedule="Interleaved1F1B", stages_per_rank=4, seed=seed, dropout=0, block=Skips)
                self.assertIn("on the CPU", captured.reason)

    @on_gpu
    def test_numbers_in_tensors_on_the_cpu(self):
        def change(step, modules):
            for module in modules:
                module.temperature.fill_(1 + step // 2)

        self.same(5, schedule="Interleaved1F1B", stages_per_rank=4, block=Cools, before=change)

        def replace(step, modules):
            for module in modules:
                module.temperature = torch.tensor(1.0 + step)

        captured = self.same(3, schedule="Interleaved1F1B", stages_per_rank=4, block=Cools, before=replace, steps=12)
        self.assertIn("on the device", captured.reason)

    def test_inputs_that_a_stage_changes(self):
        self.same(5, schedule="Interleaved1F1B", stages_per_rank=4, block=WorksInPlace)

    def test_a_parameter_of_the_loss(self):
        scales = {}
        for graph in (False, True):
            scale = scales[graph] = nn.Parameter(torch.ones((), device=DEVICE))
            _, captured = train(graph, schedule="Interleaved1F1B", stages_per_rank=4, loss=lambda output, target, scale=scale: loss_of(output * scale, target))
        self.assertEqual(captured.replayed, 0)
        self.assertIn("no parameter of a stage", captured.reason)
        self.assertTrue(torch.equal(scales[True].grad, scales[False].grad))

    @on_gpu
    def test_autocast_around_the_step(self):
        captured = self.same(0, schedule="Interleaved1F1B", stages_per_rank=4, around=lambda: torch.autocast("cuda", torch.bfloat16))
        self.assertIn("autocast", captured.reason)

    @on_gpu
    def test_another_precision_of_products(self):
        def before(step, modules):
            torch.backends.cuda.matmul.allow_tf32 = step >= 3

        self.addCleanup(setattr, torch.backends.cuda.matmul, "allow_tf32", torch.backends.cuda.matmul.allow_tf32)
        self.same(4, schedule="Interleaved1F1B", stages_per_rank=4, before=before)

    def test_threads_that_draw_from_torchs_own_generator(self):
        """Replays of two ranks take turns with it: no two layers draw the same."""
        for _ in range(10):
            layers = []
            _, captured = train(True, schedule="Interleaved1F1B", stages_per_rank=2, ranks=2, seed=None, block=Draws,
                                before=lambda step, modules: layers.extend(modules))
            self.assertEqual(captured.replayed, 5)
            drawn = {tuple(layer.drawn.tolist()) for layer in layers}
            self.assertEqual(len(drawn), 4)

    def test_modes_that_change(self):
        def before(step, modules):
            for module in modules:
                module.train(step % 3 != 2)

        self.same(4, schedule="Interleaved1F1B", stages_per_rank=4, before=before)

    def test_ranks_as_threads(self):
        self.same(5, schedule="InterleavedZeroBubble", stages_per_rank=2, ranks=2)

    def test_a_module_that_cannot_be_captured(self):
        class Reads(Block):
            def forward(self, x):
                return super().forward(x) * (1 if x.sum().item() > 0 else 2)

        def rank(world):
            stages = [Stage(Reads(0).to(DEVICE), s) for s in range(2)]
            pipeline = Pipeline(stages, world=world, schedule="Interleaved1F1B", microbatches=2, loss=loss_of, graph="auto")
            for _ in range(4):
                pipeline.step(torch.ones(4, 5, WIDTH, device=DEVICE), target=torch.ones(4, 5, WIDTH, device=DEVICE))
            self.assertEqual(pipeline.captured.replayed, 0)
            self.assertIn("cannot be captured", pipeline.captured.reason)

        run_ranks(rank, ranks=1, device=DEVICE)

    def test_a_user_who_ends_the_program(self):
        """Ctrl-C while a step is captured ends that step, and not only the capture."""

        class Ends(Block):
            calls = 0

            def forward(self, x):
                Ends.calls += 1
                if Ends.calls == 13:  # two stages of four microbatches, and then in the second stage of the capture
                    raise KeyboardInterrupt
                return super().forward(x)

        def rank(world):
            stages = [Stage(Ends(0).to(DEVICE), s) for s in range(2)]
            pipeline = Pipeline(stages, world=world, schedule="Interleaved1F1B", microbatches=4, loss=loss_of, graph=True)
            batch = torch.ones(4, 5, WIDTH, device=DEVICE)

            def step():
                for stage in stages:
                    stage.submod.zero_grad()
                pipeline.step(batch, target=batch)

            step()
            with self.assertRaises(KeyboardInterrupt):
                step()
            self.assertEqual(Ends.calls, 13)
            for _ in range(3):
                step()
            self.assertEqual(pipeline.captured.replayed, 3)

        run_ranks(rank, ranks=1, device=DEVICE)

    def test_bad_input(self):
        for options, words in (({"graph": "always"}, "true, false"), ({"lanes": -1}, "lanes is at least 1")):
            with self.assertRaisesRegex(InvalidArgument, words):
                train(**{"graph": True, "schedule": "Interleaved1F1B", "stages_per_rank": 4, **options})


if __name__ == "__main__":
    unittest.main()
