"""Python modules as graphs, in which callers add, replace and take away tensors, hooks and modules between steps: always what eager steps give."""

import functools
import itertools
import types

import torch
from graph_case import DEVICE, WIDTH, Block, GraphCase, train
from stagecraft.torch import Pipeline, Stage
from torch import nn


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


class Masked(Block):
    """Reads what the caller has put there."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.register_buffer("shift", torch.zeros(WIDTH))
        self.mask = torch.ones(WIDTH, device=DEVICE)

    def forward(self, x):
        return super().forward(x) * self.mask + self.shift


class Scaled(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


class MaskedLater(Block):
    def __init__(self, dropout):
        super().__init__(dropout)
        self.mask = None

    def forward(self, x):
        x = super().forward(x)
        return x if self.mask is None else x * self.mask


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


class Collects(Block):
    """Losses for all stages of the rank in one list, which the caller empties or replaces."""

    losses: list = []

    def forward(self, x):
        x = super().forward(x)
        self.all().append(x.detach().abs().mean())
        return x

    def all(self):
        return self.losses


class GraphCallers(GraphCase):
    def test_tensors_that_the_caller_adds_and_takes_away(self):
        mask = torch.full((WIDTH,), 1.5, device=DEVICE)

        def before(step, modules):
            for module in modules if step in (5, 10) else ():
                module.mask = mask if step == 5 else None

        captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, block=MaskedLater, before=before, steps=16)
        self.assertGreaterEqual(captured.replayed, 8, captured.reason)

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

    def test_state_that_the_caller_takes_away(self):
        def before(step, modules):
            for module in modules if step in (5, 12) else ():
                module.average = None

        for ranks in (1, 2):
            for lanes in ({}, {"lanes": 1}):
                with self.subTest(ranks=ranks, **lanes):
                    captured = self.same(None, schedule="LoopedBFS", stages_per_rank=4 // ranks, ranks=ranks, block=Forgets, before=before, steps=18, **lanes)
                    self.assertGreaterEqual(captured.replayed, 11, captured.reason)

    def test_state_that_the_caller_takes_away_right_before_a_capture(self):
        for taken_away in ((1,), (1, 2), (2, 3), (1, 3, 9)):

            def before(step, modules):
                for module in modules if step in taken_away else ():
                    module.average = None

            for ranks in (1, 2):
                with self.subTest(ranks=ranks, taken_away=taken_away):
                    captured = self.same(
                        None, schedule="Interleaved1F1B", stages_per_rank=4 // ranks, ranks=ranks, block=Forgets, before=before, steps=14, lanes=1, microbatches=2
                    )
                    self.assertGreaterEqual(captured.replayed, 6, captured.reason)

    def test_state_that_the_caller_takes_away_before_every_step(self):
        def before(step, modules):
            for module in modules:
                module.average = None

        self.same(9, schedule="Interleaved1F1B", stages_per_rank=4, block=Forgets, before=before, steps=10, lanes=1)

    def test_a_mask_for_one_module_and_then_for_another(self):
        mask = torch.linspace(0, 2, WIDTH, device=DEVICE)

        def before(step, modules):
            if step in (3, 8):
                modules[0 if step == 3 else 1].mask = mask
            if step == 12:
                modules[2].mask = modules[3].norm.weight.detach()

        captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, block=MaskedLater, before=before, steps=16)
        self.assertGreaterEqual(captured.replayed, 8, captured.reason)

    def test_masks_that_two_ranks_replace_by_turns(self):
        masks = [torch.full((WIDTH,), 1 + 0.1 * i, device=DEVICE) for i in range(4)]
        plan = {(6, 1): 1, (8, 1): 0, (9, 0): 3, (10, 1): 1}

        def before(step, modules):
            for module in modules:
                number = plan.get((step, module.number % 2))
                if number is not None:
                    module.mask, module.note = masks[number], f"of step {step}"
            self.assertTrue(all(module.note is None or any(module.mask is mask for mask in masks) for module in modules))
            changed = [step for step, rank in plan if rank == modules[0].number % 2]
            for module in modules:
                last = [one for one in changed if one <= step]
                self.assertEqual(module.note, f"of step {last[-1]}" if last else None)

        def numbered(dropout):
            block = Masked(dropout)
            block.number, block.note = next(numbers) % 4, None
            return block

        numbers = itertools.count()
        self.same(None, schedule="Interleaved1F1B", stages_per_rank=2, ranks=2, block=numbered, before=before, steps=14)

    def test_losses_that_are_no_modules(self):
        weights = [torch.full((WIDTH,), 1 + 0.5 * i, device=DEVICE) for i in range(3)]
        trainer = types.SimpleNamespace(weights=None)

        def weighted(context, output, target):
            return ((output - target) ** 2 * context.weights).mean()

        def before(step, modules):
            trainer.weights = weights[step // 4]

        class Called:
            def __call__(self, output, target):
                return weighted(trainer, output, target)

        called = Called()
        called.trainer = trainer
        for loss in (types.MethodType(weighted, trainer), functools.partial(weighted, trainer), lambda output, target: weighted(trainer, output, target), called):
            captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, loss=loss, before=before, steps=12)
            self.assertGreaterEqual(captured.replayed, 6, captured.reason)

    def test_a_number_that_becomes_a_tensor(self):
        def before(step, modules):
            for module in modules if step in (4, 5) else ():
                module.scale = torch.full((WIDTH,), step / 4, device=DEVICE)

        captured = self.same(None, schedule="Interleaved1F1B", stages_per_rank=4, block=Scaled, before=before, steps=12)
        self.assertGreaterEqual(captured.replayed, 6, captured.reason)

    def test_inputs_that_share_memory(self):
        """With each other, where a stage changes one in place, and with a buffer that the step changes."""

        class Changes(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(WIDTH, WIDTH)
                self.register_buffer("seen", torch.zeros(8, WIDTH))

            def forward(self, x):
                x.mul_(0.5)
                self.seen.add_(1)
                return self.layer(x)

        def run(graph, takes_buffer):
            torch.manual_seed(5)
            module = Changes().to(DEVICE)
            pipeline = Pipeline([Stage(module, 0)], microbatches=1, loss=nn.functional.mse_loss, graph=graph)
            losses = []
            for _ in range(5):
                whole = torch.randn(8, WIDTH + 1, device=DEVICE)
                module.zero_grad()
                losses.append(pipeline.step(whole[:, :-1], target=module.seen if takes_buffer else whole[:, 1:]).losses[0].clone())
            return losses, pipeline.captured

        for takes_buffer in (False, True):
            expected, _ = run(False, takes_buffer)
            got, captured = run(True, takes_buffer)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, expected)))
            self.assertEqual(captured.replayed, 0)
            self.assertRegex(captured.reason, "shares( its)? memory with")

    def test_steps_that_look_for_anomalies(self):
        captured = self.same(0, schedule="Interleaved1F1B", stages_per_rank=4, around=torch.autograd.detect_anomaly)
        self.assertIn("anomalies", captured.reason)

    def test_a_submodule_that_is_replaced(self):
        def before(step, modules):
            for module in modules if step == 4 else ():
                module.activation = nn.Hardtanh()

        self.same(8, schedule="Interleaved1F1B", stages_per_rank=4, block=Activated, before=before, steps=10)

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
