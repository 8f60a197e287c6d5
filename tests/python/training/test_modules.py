"""Python modules as they are: hooks, custom functions, checkpointing, autocast, compiled ones, buffers, replaced ones, arguments of all kinds."""

import collections
import contextlib
import gc
import subprocess
import sys
import types
import unittest
import warnings
import weakref

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import models
import stagecraft.torch as sc
from stagecraft.torch._stage import _Mode

SPLIT = "InterleavedZeroBubble"  # has I and W
WHOLE = "Interleaved1F1B"


def train(modules, schedule=WHOLE, microbatches=4, inputs=None, target=None, steps=1, loss=models.mean_loss, **options):
    """One rank with two stages or more; returns the pipeline and the last result."""
    given, wanted = models.batch()
    inputs = given if inputs is None else inputs
    target = wanted if target is None else target
    stages = [sc.Stage(module, index, prefix=str(index)) for index, module in enumerate(modules)]
    pipeline = sc.Pipeline(stages, schedule=schedule, stages_per_rank=len(stages), microbatches=microbatches, loss=loss, **options)
    for _ in range(steps):
        result = pipeline.step(inputs, target=target, return_outputs=True)
    return pipeline, result


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, weight):
        ctx.save_for_backward(value, weight)
        return value * weight * 2

    @staticmethod
    def backward(ctx, gradient):
        value, weight = ctx.saved_tensors
        return gradient * weight * 2, (gradient * value * 2).sum(0)


class Doubling(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, value):
        return Double.apply(value, self.weight)


class Mode(TorchDispatchMode):
    """What operations call does not come to those who look after operations above it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class DropoutInMode(nn.Dropout):
    def forward(self, value):
        with Mode():
            return torch.native_dropout(value, self.p, True)[0]


class Checkpointed(nn.Module):
    def __init__(self, index, reentrant, dropout=0.0):
        super().__init__()
        self.inner = models.block(index)
        self.dropout = nn.Dropout(dropout)
        self.reentrant = reentrant

    def forward(self, value):
        run = lambda value: self.inner(self.dropout(value))  # noqa: E731
        return torch.utils.checkpoint.checkpoint(run, value, use_reentrant=self.reentrant)


class Modules(unittest.TestCase):
    def expect_one_device(self, make, schedules=(WHOLE, SPLIT), **options):
        for schedule in schedules:
            with self.subTest(schedule=schedule):
                modules, reference = make(), make()
                pipeline, result = train(modules, schedule, **options)
                inputs, target = models.batch()
                losses, expected = models.one_device(reference, inputs, target, 4)
                got = models.gradients_of(pipeline.stages)
                models.assert_same_gradients(self, got, expected, models.stages_in_order(pipeline.schedule_rows), schedule)
                self.assertEqual([loss.item() for loss in result.losses], [loss.item() for loss in losses])

    def test_gradients_that_hooks_have_seen_are_handed_on_without_a_copy(self):
        class Watched(nn.Module):
            def __init__(self, index):
                super().__init__()
                self.inner, self.arrived, self.given = models.block(index), {}, {}

            def forward(self, value):
                number = len(self.arrived)  # of the microbatch
                self.arrived[number] = None
                if value.requires_grad:
                    value.register_hook(lambda gradient: self.given.__setitem__(number, gradient.data_ptr()))
                value = self.inner(value)
                value.register_hook(lambda gradient: self.arrived.__setitem__(number, gradient.data_ptr()))
                return value

        modules = [Watched(0), Watched(1)]
        train(modules, SPLIT)
        self.assertEqual(len(modules[1].given), 4)
        self.assertEqual(modules[0].arrived, modules[1].given)

    def test_custom_functions(self):
        self.expect_one_device(lambda: [models.block(0), Doubling(), models.block(2)])

    def test_checkpoint(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.expect_one_device(lambda: [models.block(0), Checkpointed(1, reentrant), models.block(2)])

    def test_checkpoint_draws_again_what_it_drew(self):
        class Probe(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Checkpointed(1, False, dropout=0.5)
                self.masks = []
                self.inner.dropout.register_forward_hook(lambda _, given, output: self.masks.append((output != 0).tolist()))

            def forward(self, value):
                return self.inner(value)

        probe = Probe()
        torch.manual_seed(5)
        train([models.block(0), probe], microbatches=2)
        self.assertEqual(len(probe.masks), 4)
        self.assertEqual(sorted(map(str, probe.masks[:2] + probe.masks[2:]))[::2], sorted(map(str, probe.masks))[1::2])

    def test_checkpoint_with_a_seed_is_refused(self):
        for dropout in (nn.Dropout(0.5), DropoutInMode(0.5)):
            module = Checkpointed(1, False)
            module.dropout = dropout
            with self.subTest(type(dropout).__name__), self.assertRaises(sc.StepError) as caught:
                train([models.block(0), module], seed=3)
            self.assertIn("torch.utils.checkpoint", str(caught.exception))

    def test_checkpointed_attention_draws_nothing(self):
        """Attention may draw, but does not without dropout: not refused with a seed, nor its backward."""

        class Attends(nn.Module):
            def __init__(self, index):
                super().__init__()
                self.inner = models.block(index)

            def forward(self, value):
                heads = self.inner(value).unflatten(1, (2, 2, 4)).transpose(0, 1)
                run = nn.functional.scaled_dot_product_attention
                return torch.utils.checkpoint.checkpoint(run, heads, heads, heads, use_reentrant=False).transpose(0, 1).flatten(1)

        self.expect_one_device(lambda: [models.block(0), Attends(1)], seed=3)

    def test_operators_that_take_functions(self):
        """With a seed they run while Stagecraft looks after random numbers."""

        class Chooses(nn.Module):
            def __init__(self, index):
                super().__init__()
                self.inner = models.block(index)

            def forward(self, value):
                value = self.inner(value)
                return torch.cond(value.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (value,))

        self.expect_one_device(lambda: [models.block(0), Chooses(1)], seed=3)

    def test_checkpoint_beside_a_stage_that_is_recomputed(self):
        modules = [nn.Sequential(models.block(0), nn.Dropout(0.5)), Checkpointed(1, False, dropout=0.5)]
        stages = [sc.Stage(modules[0], 0, recompute=sc.Recompute.stage()), sc.Stage(modules[1], 1)]
        pipeline = sc.Pipeline(stages, schedule=WHOLE, stages_per_rank=2, microbatches=4, loss=models.mean_loss)
        inputs, target = models.batch()
        pipeline.step(inputs, target=target)
        self.assertTrue(all(parameter.grad is not None for module in modules for parameter in module.parameters()))

    def test_a_seed_makes_random_numbers_independent_of_the_schedule(self):
        def make():
            return [nn.Sequential(models.block(0), nn.Dropout(0.5)), nn.Sequential(models.block(1), nn.Dropout(0.5))]

        gradients = []
        for schedule, options in ((WHOLE, {}), (SPLIT, {}), ("GPipe", {"recompute": sc.Recompute.stage()})):
            pipeline, _ = train(make(), "Interleaved1F1B" if schedule == "GPipe" else schedule, seed=11, **options)
            gradients.append(models.gradients_of(pipeline.stages))
        for other in gradients[1:]:
            for name, gradient in other.items():
                torch.testing.assert_close(gradient, gradients[0][name], rtol=1e-5, atol=1e-6)

    def test_recompute(self):
        self.expect_one_device(lambda: [models.block(0), models.block(1)], recompute=sc.Recompute.stage())
        self.expect_one_device(lambda: [models.block(0), models.block(1)], recompute=sc.Recompute.every(1))
        self.expect_one_device(lambda: [models.block(0), models.block(1)], recompute=sc.Recompute.where(lambda name: name.endswith(".0")))

    def test_hooks(self):
        calls = collections.Counter()
        modules = [models.block(0), models.block(1)]
        modules[0].register_forward_pre_hook(lambda *_: calls.update(["pre"]))
        modules[0].register_forward_hook(lambda *_: calls.update(["forward"]))
        modules[1].register_full_backward_hook(lambda *_: calls.update(["backward"]))
        for parameter in modules[1].parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: calls.update(["accumulated"]))
        train(modules, microbatches=4)
        self.assertEqual(calls, {"pre": 4, "forward": 4, "backward": 4, "accumulated": 16})

    def test_autocast_inside_and_around(self):
        seen = []

        class Inside(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = models.block(1)

            def forward(self, value):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    value = self.inner(value)
                seen.append(value.dtype)
                return value.float()

        train([models.block(0), Inside()])
        self.assertEqual(set(seen), {torch.bfloat16})
        kinds = []
        module = models.block(1)
        module.register_forward_hook(lambda _, given, output: kinds.append(output.dtype))
        train([models.block(0), module], precision=sc.Precision(autocast=torch.bfloat16), loss=lambda out, target: models.mean_loss(out.float(), target))
        self.assertEqual(set(kinds), {torch.bfloat16})

    def test_compiled_stage_splits_into_a_whole_backward(self):
        torch._dynamo.reset()
        modules = [models.block(0), torch.compile(models.block(1), backend="aot_eager")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipeline, _ = train(modules, SPLIT, steps=2)
        inputs, target = models.batch()
        reference = models.blocks(2)
        for _ in range(2):
            models.one_device(reference, inputs, target, 4)
        for stage, module in zip(pipeline.stages, reference):
            for got, wanted in zip(stage.submod.parameters(), module.parameters()):
                torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-5, atol=1e-6)

    def test_numbers_drawn_below_compiled_code_and_modes(self):
        class Draws(nn.Module):
            def __init__(self, around):
                super().__init__()
                self.inner = models.block(1)
                self.around = around

            def forward(self, value):
                with self.around():
                    value = torch.native_dropout(self.inner(value), 0.5, True)[0]
                    value = value * torch.bernoulli(torch.full_like(value, 0.7)) + torch.rand(16)
                    return nn.functional.dropout(value + torch.rand_like(value), 0.2)

        def gradients(kind, recompute):
            inner = Draws(Mode if kind == "in a mode" else contextlib.nullcontext)
            modules = [models.block(0), torch.compile(inner, backend="aot_eager") if "compiled" in kind else inner]
            train(modules, seed=5, **({"recompute": sc.Recompute.stage()} if recompute else {}))
            return [p.grad for module in modules for p in module.parameters()]

        wanted = gradients("plain", False)
        for kind in ("plain", "in a mode", "while it is compiled", "compiled before"):
            for recompute in (True, False):
                if kind == "while it is compiled":
                    torch._dynamo.reset()
                with self.subTest(kind, recompute=recompute):
                    for got, reference in zip(gradients(kind, recompute), wanted):
                        torch.testing.assert_close(got, reference, rtol=1e-5, atol=1e-6)

    def test_a_whole_backward_in_the_place_of_a_split_one_warns_once(self):
        program = (
            "import warnings, test_modules, models\n"
            "with warnings.catch_warnings(record=True) as caught:\n"
            "    warnings.simplefilter('always')\n"
            "    test_modules.train([models.block(0), test_modules.Checkpointed(1, True)], test_modules.SPLIT, steps=2)\n"
            "print(sum('torch.compile' in str(one.message) for one in caught))\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.stdout.strip(), "1", done.stderr)

    def test_buffers_and_modes(self):
        modules = [nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))]
        modules[1][0].eval()  # a part that the user keeps in evaluation
        pipeline, _ = train(modules)
        self.assertEqual(modules[0][1].num_batches_tracked.item(), 4)
        inputs, target = models.batch()
        first = pipeline.eval(inputs, target=target)
        second = pipeline.eval(inputs, target=target)
        self.assertTrue(torch.equal(first.output, second.output))
        self.assertEqual(modules[0][1].num_batches_tracked.item(), 4)
        self.assertTrue(modules[0].training and modules[1][1].training)
        self.assertFalse(modules[1][0].training)
        self.assertFalse(first.output.requires_grad)

    def test_replaced_module(self):
        pipeline, before = train([models.block(0), models.block(1)])

        class Wrapped(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner
                self.calls = 0

            def forward(self, value):
                self.calls += 1
                return self.inner(value)

        pipeline.stages[1].submod = Wrapped(pipeline.stages[1].submod)
        inputs, target = models.batch()
        after = pipeline.step(inputs, target=target)
        self.assertEqual(pipeline.stages[1].submod.calls, 4)
        self.assertEqual(after.loss, before.loss)

    def test_a_module_in_the_place_of_another_is_another(self):
        """Though Python may give it the same id."""
        module = nn.Sequential(nn.Linear(1, 1), nn.Identity())
        mode = _Mode(types.SimpleNamespace(submod=module))
        numbers = set()
        for _ in range(6):
            module[1] = nn.Identity()
            numbers.add(mode())
            self.assertEqual(mode(), mode())
        self.assertEqual(len(numbers), 6)

    def test_arguments_of_all_kinds(self):
        seen = []
        Pair = collections.namedtuple("Pair", "left right")
        config = types.SimpleNamespace(scale=2.0)
        sizes = [3, 4]

        class First(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = models.block(0)

            def forward(self, value, config, sizes, *, pair, table, flag=False, text=None, number=None, huge=None):
                seen.append((config, sizes, type(pair).__name__, pair.left.shape[0], type(table["list"]), flag, text, number, huge))
                return self.inner(value) * config.scale, {"list": [pair.left, 7], "text": "on", "none": None}, Pair(pair.right, True)

        class Second(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = models.block(1)

            def forward(self, value, given, both, **unused):
                assert given["text"] == "on" and given["none"] is None and given["list"][1] == 7 and isinstance(given["list"], list)
                assert type(both).__name__ == "Pair" and both.right is True
                return self.inner(value) + given["list"][0] * both.left

        inputs, target = models.batch(rows=8)
        stages = [sc.Stage(First(), 0), sc.Stage(Second(), 1)]
        pipeline = sc.Pipeline(stages, schedule=WHOLE, stages_per_rank=2, microbatches=4, loss=models.mean_loss)
        pipeline.step(
            inputs,
            config,
            sizes,
            target=target,
            pair=Pair(inputs, inputs),
            table={"list": [inputs]},
            flag=True,
            text="hello",
            number=1.5,
            huge=2**80,
        )
        self.assertEqual(len(seen), 4)
        for given, lengths, pair, rows, kind, flag, text, number, huge in seen:
            self.assertIs(given, config)
            self.assertIs(lengths, sizes)
            self.assertEqual((pair, rows, kind, flag, text, number, huge), ("Pair", 2, list, True, "hello", 1.5, 2**80))

    def test_an_output_that_cannot_travel(self):
        class Odd(nn.Module):
            def forward(self, value):
                return types.SimpleNamespace(value=value)

        with self.assertRaisesRegex(sc.StepError, "returned an object of type 'types.SimpleNamespace'"):
            train([Odd(), models.block(1)])
        # The last stage may return what its loss takes.
        class Last(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = models.block(1)

            def forward(self, value):
                return types.SimpleNamespace(value=self.inner(value))

        loss = lambda output, target: models.mean_loss(output.value, target)  # noqa: E731
        stages = [sc.Stage(models.block(0), 0), sc.Stage(Last(), 1)]
        pipeline = sc.Pipeline(stages, schedule=WHOLE, stages_per_rank=2, microbatches=2, loss=loss)
        inputs, target = models.batch()
        self.assertEqual(len(pipeline.step(inputs, target=target).losses), 2)

    def test_inputs_that_want_gradients(self):
        inputs, target = models.batch()
        given = inputs.clone().requires_grad_()
        train([models.block(0), models.block(1)], inputs=given * 1.0)
        reference = inputs.clone().requires_grad_()
        models.one_device(models.blocks(2), reference, target, 4)
        torch.testing.assert_close(given.grad, reference.grad)

    def test_skip_edges(self):
        class Add(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = models.block(2)

            def forward(self, value, skipped):
                return self.inner(value) + skipped

        edges = [sc.Edge(0, 0, 1, 0), sc.Edge(1, 0, 2, 0), sc.Edge(0, 0, 2, 1)]
        inputs, target = models.batch()
        modules = [models.block(0), models.block(1), Add()]
        pipeline, _ = train(modules, edges=edges)
        reference = [models.block(0), models.block(1), Add()]
        for part, wanted in zip(inputs.tensor_split(4), target.tensor_split(4)):
            first = reference[0](part)
            one = models.mean_loss(reference[2](reference[1](first), first), wanted)
            one.backward(torch.full_like(one, 0.25))
        for got, wanted in zip(modules, reference):
            for mine, other in zip(got.parameters(), wanted.parameters()):
                self.assertTrue(torch.equal(mine.grad, other.grad))

    def test_a_trainer_that_holds_its_pipeline_is_collected(self):
        class Trainer:
            def __init__(self):
                stages = [sc.Stage(models.block(0), 0)]
                self.pipeline = sc.Pipeline(stages, microbatches=2, loss=self.loss)

            def loss(self, output, target):
                return models.mean_loss(output, target)

        trainer = Trainer()
        inputs, target = models.batch()
        trainer.pipeline.step(inputs, target=target)
        gone = weakref.ref(trainer)
        module = weakref.ref(trainer.pipeline.stages[0].submod)
        del trainer
        gc.collect()
        self.assertIsNone(gone())
        self.assertIsNone(module())


if __name__ == "__main__":
    unittest.main()
