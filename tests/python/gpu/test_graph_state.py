"""Python modules as graphs that keep, carry and replace tensors, and callers that do: always what eager steps give."""

import collections
import dataclasses
import types

import torch
from graph_case import DEVICE, WIDTH, Block, GraphCase, loss_of, train
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


class MaskedLater(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.mask = None

    def forward(self, x):
        x = super().forward(x)
        return x if self.mask is None else x * self.mask


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


class Contextual(Block):
    """Reads what the caller has put into a collection, an object or a module that is not registered."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.set(torch.ones(WIDTH, device=DEVICE))

    def forward(self, x):
        return super().forward(x) * self.mask()


class MaskInAList(Contextual):
    def set(self, mask):
        self.masks = [mask]

    def mask(self):
        return self.masks[0]


class MaskInAnObject(Contextual):
    def set(self, mask):
        self.context = {"context": types.SimpleNamespace(mask=mask)}

    def mask(self):
        return self.context["context"].mask


class MaskInANestedTuple(Contextual):
    def set(self, mask):
        self.table = ((mask, "a mask"), 1)

    def mask(self):
        return self.table[0][0]


class MaskInAHiddenModule(Contextual):
    def __init__(self, dropout):
        self.__dict__["teacher"] = [nn.Linear(1, 1)]
        super().__init__(dropout)

    def set(self, mask):
        self.__dict__["teacher"][0].mask = mask

    def mask(self):
        return self.__dict__["teacher"][0].mask


class MaskWithOtherData(Contextual):
    def set(self, mask):
        if "own" in vars(self):
            self.own.data = mask
        else:
            self.own = mask.clone()

    def mask(self):
        return self.own


class MaskedByABuffer(MaskedLater):
    def __init__(self, dropout):
        super().__init__(dropout)
        del self.mask
        self.register_buffer("mask", None)


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


class Collects(Block):
    """Losses for all stages of the rank in one list, which the caller empties or replaces."""

    losses: list = []

    def forward(self, x):
        x = super().forward(x)
        self.all().append(x.detach().abs().mean())
        return x

    def all(self):
        return self.losses


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

    def test_tensors_that_the_caller_adds_and_takes_away(self):
        mask = torch.full((WIDTH,), 1.5, device=DEVICE)

        def before(step, modules):
            for module in modules if step in (5, 10) else ():
                module.mask = mask if step == 5 else None

        captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, block=MaskedLater, before=before, steps=16)
        self.assertGreaterEqual(captured.replayed, 8, captured.reason)

    def test_tensors_that_evaluations_replace_by_others(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4 // ranks, ranks=ranks, block=Calibrated, steps=24,
                                     evaluates=lambda step: step % 8 == 7)  # fmt: skip
                self.assertGreaterEqual(captured.replayed, 12, captured.reason)

    def test_hooks_that_come_and_go(self):
        def of_module(module):
            return module.register_forward_hook(lambda module, arguments, output: output * 0.5)

        def of_parameter(module):
            return module.out.weight.register_hook(lambda gradient: gradient * 0.5)

        def halve(parameter):
            parameter.grad.mul_(0.5)

        def after_accumulation(module):
            return module.out.weight.register_post_accumulate_grad_hook(halve)

        def of_another_parameter(module):
            module.out.bias.register_hook(lambda gradient: gradient.clone())
            return of_parameter(module)

        for register in (of_module, of_parameter, after_accumulation, of_another_parameter):
            with self.subTest(register.__name__):
                handles = []

                def before(step, modules):
                    if step == 4:
                        handles.extend(register(module) for module in modules)
                    for handle in handles if step == 8 else ():
                        handle.remove()
                    if step == 8:
                        handles.clear()

                captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, before=before, steps=14)
                self.assertGreaterEqual(captured.replayed, 8, captured.reason)

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

    def test_what_the_caller_puts_into_collections_and_objects(self):
        masks = [torch.full((WIDTH,), 1 + 0.1 * i, device=DEVICE) for i in range(3)]

        def before(step, modules):
            for module in modules if step % 7 == 0 else ():
                module.set(masks[step // 7])

        for block in (MaskInAList, MaskInAnObject, MaskInANestedTuple, MaskInAHiddenModule, MaskWithOtherData):
            with self.subTest(block.__name__):
                captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, block=block, before=before, steps=20)
                self.assertGreaterEqual(captured.replayed, 12, captured.reason)

    def test_buffers_that_the_caller_adds(self):
        mask = torch.full((WIDTH,), 1.5, device=DEVICE)

        def before(step, modules):
            for module in modules if step == 5 else ():
                module.mask = mask

        captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, block=MaskedByABuffer, before=before, steps=12)
        self.assertGreaterEqual(captured.replayed, 6, captured.reason)

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

    def test_lists_that_stages_share(self):
        def told(module):
            told = list(Collects.losses)
            Collects.losses.clear()
            return told

        def elsewhere(module):
            told = list(module.own)
            module.own = []
            return told

        class Own(Collects):
            def __init__(self, dropout):
                super().__init__(dropout)
                self.own = []

            def all(self):
                return self.own

        class Shared(Collects):
            def __init__(self, dropout):
                super().__init__(dropout)
                self.losses = Collects.losses

        for block, tells in ((Shared, told), (Own, elsewhere)):
            with self.subTest(block.__name__):
                Collects.losses.clear()
                self.same(5, schedule="Interleaved1F1B", stages_per_rank=4, block=block, told=tells)

    def test_submodules_that_come_and_go(self):
        """Each may have the id of one before."""

        def before(step, modules):
            for module in modules if step % 4 == 0 else ():
                module.activation = nn.Softplus(beta=1 + step / 10)

        captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, block=Activated, before=before, steps=24)
        self.assertGreaterEqual(captured.replayed, 16, captured.reason)

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
