"""Python modules as graphs that keep, carry and replace tensors: always what eager steps give."""

import collections
import dataclasses
import types

import torch
from graph_case import DEVICE, WIDTH, Block, GraphCase, loss_of
from torch import nn


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


class CarriesABuffer(Block):
    def forward(self, x):
        x = super().forward(x)
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean((0, 1))
        return x - self.seen


class CarriesInANestedDict(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.state = {"ema": {"average": torch.zeros(WIDTH, device=DEVICE)}}

    def forward(self, x):
        x = super().forward(x)
        inner = self.state["ema"]
        inner["average"] = 0.9 * inner["average"] + 0.1 * x.detach().mean((0, 1))
        return x - inner["average"]


class CarriesInsideAnObject(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.state = types.SimpleNamespace(average=torch.zeros(WIDTH, device=DEVICE))

    def forward(self, x):
        x = super().forward(x)
        self.state.average = 0.9 * self.state.average + 0.1 * x.detach().mean((0, 1))
        return x - self.state.average


class CarriesInADeque(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.last = collections.deque([torch.zeros(WIDTH, device=DEVICE)] * 3, maxlen=3)

    def forward(self, x):
        x = super().forward(x)
        self.last.append(x.detach().mean((0, 1)))
        return x - torch.stack(list(self.last)).mean(0)


class Grows(Block):
    """Reads all that it has seen so far."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.bank = []

    def add(self, one):
        self.bank.append(one)

    def all(self):
        return self.bank

    def forward(self, x):
        x = super().forward(x)
        self.add(x.detach().mean((0, 1)))
        return x - torch.stack(list(self.all())).mean(0)


class GrowsADict(Grows):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.bank = {}

    def add(self, one):
        self.bank[len(self.bank)] = one

    def all(self):
        return self.bank.values()


class GrowsATrimmedList(Grows):
    def add(self, one):
        self.bank = (self.bank + [one])[-64:]


class CachesForInference(Block):
    """Evaluations normalize a weight once, and training drops it."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.cache = None

    def normalized(self):
        if self.training:
            self.cache = None
            return self.weight / self.weight.norm()
        if self.cache is None:
            self.cache = (self.weight / self.weight.norm()).detach()
        return self.cache

    def forward(self, x):
        return super().forward(x) * self.normalized()


class Calibrated(Block):
    """Evaluations measure what steps are divided by; what was measured before is kept too."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.scale, self.before = torch.ones(WIDTH, device=DEVICE), None

    def forward(self, x):
        x = super().forward(x)
        if not self.training:
            self.before, self.scale = self.scale, x.detach().abs().mean((0, 1)) + 0.5
        return x / self.scale


@dataclasses.dataclass(slots=True)
class Slots:
    average: torch.Tensor


class CarriesInSlots(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.state = Slots(torch.zeros(WIDTH, device=DEVICE))

    def forward(self, x):
        x = super().forward(x)
        self.state.average = 0.9 * self.state.average + 0.1 * x.detach().mean((0, 1))
        return x - self.state.average


class CachesAndMeasures(Calibrated):
    """Keeps a table for one number of rows too, which evaluations replace and steps make again."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.table, self.measures = None, False

    def forward(self, x):
        if self.table is None or self.table.shape[0] != x.shape[0]:
            self.table = torch.arange(1, x.shape[0] + 1, device=DEVICE)[:, None, None] / x.shape[0]
        scale = self.scale
        x = super().forward(x * self.table)
        if not self.measures:
            self.scale = scale
        return x


class Weighted(nn.Module):
    """A loss with weights that the caller replaces, and dropout."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights
        self.dropout = nn.Dropout(0.5)

    def forward(self, output, target):
        return (self.dropout(output - target).pow(2) * self.weights).mean()


class GraphState(GraphCase):
    def test_collections_that_grow_and_are_read(self):
        for block in (Grows, GrowsADict, GrowsATrimmedList):
            for lanes in ({}, {"lanes": 1}):
                with self.subTest(block.__name__, **lanes):
                    captured = self.same(0, schedule="Interleaved1F1B", stages_per_rank=4, block=block, **lanes)
                    self.assertIn("carries from step to step", captured.reason)

    def test_caches_that_evaluations_make_and_steps_drop(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4 // ranks, ranks=ranks, block=CachesForInference, steps=20,
                                     evaluates=lambda step: step % 5 == 4)  # fmt: skip
                self.assertGreaterEqual(captured.replayed, 12, captured.reason)

    def test_tensors_that_evaluations_replace_by_others(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4 // ranks, ranks=ranks, block=Calibrated, steps=24,
                                     evaluates=lambda step: step % 8 == 7)  # fmt: skip
                self.assertGreaterEqual(captured.replayed, 12, captured.reason)

    def test_losses_that_are_modules(self):
        weights = [torch.full((WIDTH,), 1 + 0.5 * i, device=DEVICE) for i in range(2)]
        for change in ("weights", "mode"):
            with self.subTest(change):
                loss = Weighted(weights[0])

                def before(step, modules):
                    if change == "weights":
                        loss.weights = weights[step // 5 % 2]
                    else:
                        loss.train(step // 5 % 2 == 0)

                captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, before=before, steps=20, loss=loss)
                self.assertGreaterEqual(captured.replayed, 8, captured.reason)

    def test_tensors_that_evaluations_replace_after_others(self):
        """What is made again says nothing of what is not."""

        def before(step, modules):
            for module in modules:
                module.measures = step > 9

        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4 // ranks, ranks=ranks, block=CachesAndMeasures, steps=24,
                                     before=before, evaluates=lambda step: step % 6 == 5, rows=lambda step: 12)  # fmt: skip
                self.assertGreaterEqual(captured.replayed, 10, captured.reason)

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
        for block in (Carries, CarriesInATuple, CarriesInAnObject, CarriesAndRemembers, CarriesABuffer, CarriesInANestedDict, CarriesInsideAnObject,
                      CarriesInADeque, CarriesInSlots):  # fmt: skip
            with self.subTest(block.__name__):
                captured = self.same(0, schedule="Interleaved1F1B", stages_per_rank=4, block=block)
                self.assertIn("carries from step to step", captured.reason)

    def test_tensors_that_a_module_swaps(self):
        captured = self.same(0, schedule="Interleaved1F1B", stages_per_rank=4, block=Swaps, microbatches=3)
        self.assertIn("carries from step to step", captured.reason)

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
