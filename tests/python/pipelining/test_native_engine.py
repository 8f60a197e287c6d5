"""Both gears of the door: the C++ engine gives the interpreter's results, and takes over only what it cannot get wrong."""

import logging
import unittest
from unittest import mock

import torch

from small_models import SCHEDULES, WIDTH, Layer, batch, layers, mean_loss, stages_per_rank
from test_gradients_one_rank import build
from worlds import one_rank

from stagecraft.pipelining import PipelineStage, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, _engine
from stagecraft.pipelining.schedules import F, _Action, _PipelineScheduleRuntime


def uses_engine(schedule):
    return schedule._engine is not None and schedule._engine[1] is not None


class Gears(unittest.TestCase):
    def setUp(self):
        world = one_rank()
        world.__enter__()
        self.addCleanup(world.__exit__, None, None, None)

    def train(self, kind, native, steps=2, make=layers, **options):
        """Outputs, losses and gradients of several steps without clearing gradients."""
        model = make(stages_per_rank(kind, 3))
        x, target = batch(10)
        schedule = build(kind, model, 4, **{"loss_fn": mean_loss, **options})
        results = []
        torch.manual_seed(7)
        with mock.patch.object(_engine, "_is_stock", _engine._is_stock if native else lambda *_: False):
            for _ in range(steps):
                losses = []
                results.append((schedule.step(x, target=target, losses=losses), list(losses)))
        self.assertEqual(uses_engine(schedule), native)
        return results, [parameter.grad for parameter in model.parameters()]

    def same(self, kind, **options):
        torch.testing.assert_close(
            self.train(kind, True, **options), self.train(kind, False, **options), rtol=1e-12, atol=1e-12
        )

    def test_same_results(self):
        for kind in SCHEDULES:
            for scale_grads in (True, False):
                with self.subTest(kind=kind.__name__, scale_grads=scale_grads):
                    self.same(kind, scale_grads=scale_grads)

    def test_same_random_numbers(self):
        def make(count):
            return torch.nn.ModuleList(torch.nn.Sequential(layer, torch.nn.Dropout(0.5)) for layer in layers(count))

        self.same(ScheduleInterleaved1F1B, make=make)

    def test_several_outputs_and_keywords(self):
        class Two(Layer):
            def forward(self, x, y=None, *, factor=1.0):
                x = super().forward(x) * factor
                return x, x if y is None else y + x

        def make(count):
            torch.manual_seed(0)
            return torch.nn.ModuleList(Two() for _ in range(count)).double()

        found = []
        for native in (True, False):
            model = make(3)
            schedule = build(ScheduleInterleavedZeroBubble, model, 4, loss_fn=lambda both, wanted: mean_loss(sum(both), wanted["y"]))
            x, target = batch(8)
            with mock.patch.object(_engine, "_is_stock", _engine._is_stock if native else lambda *_: False):
                result = schedule.step(x, target={"y": target}, factor=0.5)
            self.assertEqual(uses_engine(schedule), native)
            found.append((result, [parameter.grad for parameter in model.parameters()]))
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)

    def test_things_change_between_steps(self):
        """A replaced module, a frozen weight, another table: the next step is that of the new things."""
        found = []
        for native in (True, False):
            model = layers(2)
            x, target = batch(8)
            schedule = build(ScheduleInterleaved1F1B, model, 4, loss_fn=mean_loss)
            with mock.patch.object(_engine, "_is_stock", _engine._is_stock if native else lambda *_: False):
                schedule.step(x, target=target)
                other = layers(1, seed=5)[0]
                schedule._stages[0].submod = other
                model[1].beside.requires_grad_(False)
                model[1].beside.grad = None
                model[1].shared = torch.nn.Parameter(torch.ones(WIDTH, WIDTH, dtype=torch.double) / WIDTH)
                schedule.step(x, target=target)
            self.assertEqual(uses_engine(schedule), native)
            self.assertIsNone(model[1].beside.grad)
            found.append([parameter.grad for parameter in (*other.parameters(), *model.parameters()) if parameter.requires_grad])
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)

    def test_unusual_steps_stay_with_the_interpreter(self):
        def step(prepare=lambda schedule: None, kind=ScheduleInterleaved1F1B, x=None, context=None, **options):
            schedule = build(kind, layers(2), 4, loss_fn=mean_loss, **options)
            prepare(schedule)
            inputs, target = batch(8)
            with context or mock.MagicMock():
                schedule.step(inputs if x is None else x, target=target)
            return uses_engine(schedule)

        class Own(ScheduleInterleaved1F1B):
            pass

        class OwnStage(PipelineStage):
            pass

        def custom(schedule):
            def forward(action, context):
                stage = schedule._stages[action.stage_index]
                m = action.microbatch_index
                output = stage.forward_one_chunk(m, context.arg_mbs[m], context.kwarg_mbs[m])
                schedule._maybe_compute_loss(stage, output, context.target_mbs, m)
                if not stage.is_last:
                    schedule._stages[stage.stage_index + 1].set_local_fwd_input(output, m)

            schedule.register_custom_function(F, forward)

        def patched(schedule):
            stage = schedule._stages[0]
            stage.forward_one_chunk = mock.Mock(side_effect=stage.forward_one_chunk)

        def own_stages(schedule):
            for stage in schedule._stages:
                stage.__class__ = OwnStage

        def validating(schedule):
            schedule._stages[0]._runtime_validate = True

        def tied(schedule):
            schedule._stages[1].submod.shared = schedule._stages[0].submod.shared

        self.assertTrue(step())
        self.assertFalse(step(kind=Own))
        for prepare in (custom, patched, own_stages, validating, tied):
            with self.subTest(prepare.__name__):
                self.assertFalse(step(prepare))
        self.assertFalse(step(x=batch(8)[0].requires_grad_(True)))
        self.assertFalse(step(context=torch.autograd.detect_anomaly(check_nan=False)))
        self.assertFalse(step(context=torch.profiler.profile()))
        original = PipelineStage.backward_one_chunk

        def counted(stage, *args, **kwargs):
            return original(stage, *args, **kwargs)

        self.assertFalse(step(context=mock.patch.object(PipelineStage, "backward_one_chunk", counted)))
        self.assertTrue(step())

    def test_forward_hooks_run(self):
        model = layers(2)
        calls = []
        model[1].register_forward_hook(lambda *_: calls.append("forward"))
        model[0].inner.weight.register_post_accumulate_grad_hook(lambda *_: calls.append("weight"))
        schedule = build(ScheduleInterleaved1F1B, model, 4, loss_fn=mean_loss)
        schedule.step(batch(8)[0], target=batch(8)[1])
        calls.clear()
        schedule.step(batch(8)[0], target=batch(8)[1])
        self.assertTrue(uses_engine(schedule))
        self.assertEqual((calls.count("forward"), calls.count("weight")), (4, 4))

    def test_the_same_errors(self):
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)

        class Fails(Layer):
            def forward(self, x):
                if fails:
                    raise KeyError("here")
                return super().forward(x)

        for native in (True, False):
            fails = False
            model = torch.nn.ModuleList([Layer(), Fails()]).double()
            schedule = build(ScheduleInterleaved1F1B, model, 4, loss_fn=mean_loss)
            with mock.patch.object(_engine, "_is_stock", _engine._is_stock if native else lambda *_: False):
                schedule.step(batch(8)[0], target=batch(8)[1])
                fails = True
                with self.assertRaisesRegex(RuntimeError, r"\[Stage 1\] failed to run forward") as raised:
                    schedule.step(batch(8)[0], target=batch(8)[1])
            self.assertEqual(uses_engine(schedule), native)
            self.assertIsInstance(raised.exception.__cause__, KeyError)

    def test_tables_that_do_not_train_everything(self):
        schedule = build(_PipelineScheduleRuntime, layers(1), 2, loss_fn=mean_loss)
        for text, native in (("0F0 0F1 0B1 0B0", True), ("0F0 0F1 0B0", False), ("0F0 0F1", False)):
            schedule.pipeline_order_with_comms = {0: [_Action.from_str(one) for one in text.split()]}
            schedule.step(batch(8)[0], target=batch(8)[1])
            self.assertEqual(uses_engine(schedule), native, text)


if __name__ == "__main__":
    unittest.main()
