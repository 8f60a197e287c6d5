"""Python modules on a GPU: steps that are replayed as graphs give what eager steps give, and ranks share the GPU. `make test-gpu` runs it, and
`make test-python` on a CPU that stands in for a GPU (STAGECRAFT_TEST_DEVICE=cpu)."""

import contextlib
import copy
import os
import types
import unittest

import torch
from torch import nn

from stagecraft.torch import InvalidArgument, Pipeline, Stage, run_ranks

DEVICE = os.environ.get("STAGECRAFT_TEST_DEVICE", "cuda")
WIDTH = 16

on_gpu = unittest.skipIf(DEVICE == "cpu", "it is about a GPU with a CPU beside it")


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


class Carries(Block):
    """Replaces a tensor that it goes on from in the next step."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.average = torch.zeros(WIDTH, device=DEVICE)

    def forward(self, x):
        x = super().forward(x)
        self.average = 0.9 * self.average + 0.1 * x.detach().mean((0, 1))
        return x - self.average


class CarriesInATuple(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.state = (torch.zeros(WIDTH, device=DEVICE), [])

    def forward(self, x):
        x = super().forward(x)
        self.state = (0.9 * self.state[0] + 0.1 * x.detach().mean((0, 1)), [])
        return x - self.state[0]


class CarriesInAnObject(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.state = types.SimpleNamespace(average=torch.zeros(WIDTH, device=DEVICE))

    def forward(self, x):
        x = super().forward(x)
        self.state = types.SimpleNamespace(average=0.9 * self.state.average + 0.1 * x.detach().mean((0, 1)))
        return x - self.state.average


class Swaps(Block):
    """Reads one tensor and writes the other, and the other way round at the next call."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.previous, self.next = torch.zeros(WIDTH, device=DEVICE), torch.zeros(WIDTH, device=DEVICE)

    def forward(self, x):
        x = super().forward(x)
        self.next.copy_(0.9 * self.previous + 0.1 * x.detach().mean((0, 1)))
        self.previous, self.next = self.next, self.previous
        return x - self.previous.clone()


class Forgets(Block):
    """Makes its state when it has none, and changes it in place."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.average = None

    def forward(self, x):
        x = super().forward(x)
        mean = x.detach().mean((0, 1))
        if self.average is None:
            self.average = mean.clone()
        else:
            self.average.lerp_(mean, 0.1)
        return x - self.average.clone()


class Activated(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.activation = nn.Tanh()

    def forward(self, x):
        return self.activation(super().forward(x))


class Tells(Block):
    """Leaves a number for others to read, as routers do."""

    def forward(self, x):
        x = super().forward(x)
        self.load = x.detach().abs().mean()
        return x


class CarriesAndRemembers(Carries):
    """Somebody else has the tensor that it replaces."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.history = []

    def forward(self, x):
        self.history.append(self.average)
        return super().forward(x)


class TellsInMany(Block):
    """Numbers for others, in places of all kinds."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.stats, self.all, self.pair = {}, [], None

    def forward(self, x):
        x = super().forward(x)
        self.stats["load"] = x.detach().abs().mean()
        self.pair = (self.stats["load"] * 2, "of the last microbatch")
        self.all.append(self.pair[0] * 2)
        return x


class Masked(Block):
    """Reads what the caller has put there."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.register_buffer("shift", torch.zeros(WIDTH))
        self.mask = torch.ones(WIDTH, device=DEVICE)

    def forward(self, x):
        return super().forward(x) * self.mask + self.shift


class CarriesABuffer(Block):
    def forward(self, x):
        x = super().forward(x)
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean((0, 1))
        return x - self.seen


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
                pipeline.eval(torch.ones(8, 5, WIDTH, device=DEVICE), target=torch.ones(8, 5, WIDTH, device=DEVICE))
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


class Graphs(unittest.TestCase):
    def same(self, replayed, **options):
        expected, _ = train(False, **options)
        got, captured = train(True, **options)
        if replayed is not None:
            self.assertEqual(captured.replayed, replayed, captured.reason)
        self.assertEqual(len(got), len(expected))
        for a, b in zip(got, expected):
            self.assertTrue(torch.equal(a, b))
        return captured

    def test_schedules(self):
        for schedule in ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"):
            with self.subTest(schedule):
                captured = self.same(5, schedule=schedule, stages_per_rank=4)
                self.assertGreater(captured.lanes, 1)

    def test_one_lane(self):
        self.assertEqual(self.same(5, schedule="Interleaved1F1B", stages_per_rank=4, lanes=1).lanes, 1)

    def test_numbers_of_torchs_own_generator(self):
        self.same(5, schedule="Interleaved1F1B", stages_per_rank=4, seed=None)

    def test_gradients_that_are_kept(self):
        """A replay does not overwrite what somebody has kept; what Python has only looked at is not kept."""
        kept = []

        def before(step, modules):
            if step in (3, 4):
                gradient = modules[0].out.weight.grad
                kept.append((gradient, gradient.clone()))

        captured = self.same(5, schedule="Interleaved1F1B", stages_per_rank=4, before=before)
        self.assertEqual(captured.reason, "")
        for gradient, value in kept:
            self.assertTrue(torch.equal(gradient, value))

    def test_tensors_that_a_module_carries_and_replaces(self):
        for block in (Carries, CarriesInATuple, CarriesInAnObject, CarriesAndRemembers, CarriesABuffer):
            with self.subTest(block.__name__):
                captured = self.same(0, schedule="Interleaved1F1B", stages_per_rank=4, block=block)
                self.assertIn("carries from step to step", captured.reason)

    def test_tensors_that_a_module_swaps(self):
        captured = self.same(0, schedule="Interleaved1F1B", stages_per_rank=4, block=Swaps, microbatches=3)
        self.assertIn("carries from step to step", captured.reason)

    def test_state_that_the_caller_takes_away(self):
        def before(step, modules):
            for module in modules if step in (5, 12) else ():
                module.average = None

        for ranks in (1, 2):
            for lanes in ({}, {"lanes": 1}):
                with self.subTest(ranks=ranks, **lanes):
                    captured = self.same(None, schedule="LoopedBFS", stages_per_rank=4 // ranks, ranks=ranks, block=Forgets, before=before, steps=18, **lanes)
                    self.assertGreaterEqual(captured.replayed, 11, captured.reason)

    def test_a_submodule_that_is_replaced(self):
        def before(step, modules):
            for module in modules if step == 4 else ():
                module.activation = nn.Hardtanh()

        self.same(8, schedule="Interleaved1F1B", stages_per_rank=4, block=Activated, before=before, steps=10)

    def test_tensors_that_a_module_leaves_for_others(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.same(5, schedule="Interleaved1F1B", stages_per_rank=4 // ranks, ranks=ranks, block=Tells, told=lambda module: [module.load])

    def test_tensors_that_are_left_for_others_after_evaluations_and_other_shapes(self):
        """Each of these replaces what the last replay has left. Steps of two shapes take turns, so both are replayed."""

        def told(module):
            told = [module.stats["load"], module.pair[0], *module.all]
            module.stats.clear()
            module.all.clear()
            return told

        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                captured = self.same(28, schedule="Interleaved1F1B", stages_per_rank=4 // ranks, ranks=ranks, block=TellsInMany, told=told, steps=30,
                                     rows=lambda step: 8 if step % 2 else 4, evaluates=lambda step: step % 3 == 2)
                self.assertEqual(captured.graphs, 2)

    def test_losses_that_are_kept(self):
        """The memory of a graph's losses may be used by another graph."""
        for lanes in (1, 4):
            kept = {}

            def loss(output, target):
                kept["loss"] = loss_of(output, target)
                kept["alias"] = kept["loss"].detach()
                return kept["loss"]

            with self.subTest(lanes=lanes):
                self.same(18, schedule="Interleaved1F1B", stages_per_rank=4, loss=loss, steps=20, rows=lambda step: 8 if step % 10 < 5 else 4, lanes=lanes,
                          told=lambda module: [kept["loss"].detach(), kept["alias"]])

    def test_tensors_that_the_caller_replaces(self):
        """Also such as he has more of, and while there are graphs of two kinds."""
        masks = [torch.full((WIDTH,), 1 + 0.1 * i, device=DEVICE) for i in range(4)]

        def set_mask(module, number):
            module.mask = masks[number % 4]

        def set_buffer(module, number):
            module.shift = torch.full((WIDTH,), 0.1 * number, device=DEVICE)

        for change in (set_mask, set_buffer):
            for rows in (lambda step: 8, lambda step: 8 if step % 2 else 4):
                for every in (1, 10):
                    with self.subTest(change=change.__name__, shapes=rows(0), every=every):

                        def before(step, modules):
                            for module in modules if step % every == 0 else ():
                                change(module, step // every)

                        steps = 15 if every == 1 else 30
                        options = {"schedule": "Interleaved1F1B", "stages_per_rank": 4, "block": Masked, "steps": steps, "rows": rows, "before": before}
                        if every == 10:  # the first step of each kind is eager, and so is the first after a change
                            self.same(steps - 3 * len({rows(0), rows(1)}), **options)
                            continue
                        expected, _ = train(False, **options)
                        got, captured = train(True, **options)
                        self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, expected)))
                        self.assertLess(captured.replayed, 7)
                        self.assertIn("replaced by another between steps", captured.reason)

    def test_tensors_that_the_caller_replaces_on_one_replica(self):
        """There the step is eager once and captured anew, while the other replica goes on to replay."""
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                swapped = []

                def before(step, modules):
                    for module in modules if step in (5, 13) else ():
                        if module.replica == 1:
                            module.mask = torch.full((WIDTH,), 1 + 0.1 * step, device=DEVICE)
                            swapped.append(step)

                captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4 // ranks, ranks=ranks, replicas=2, block=Masked, before=before, steps=20)
                self.assertGreaterEqual(captured.replayed, 17)
                self.assertEqual(sorted(swapped), [5] * 8 + [13] * 8)  # eagerly, and as graphs

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
                module.temperature = torch.tensor(1.0 + step, device=DEVICE)

        captured = self.same(3, schedule="Interleaved1F1B", stages_per_rank=4, block=Cools, before=replace, steps=12)
        self.assertIn("reads a number", captured.reason)

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
