"""What step and eval take and give back."""

import unittest

import torch

from small_models import SCHEDULES, WIDTH, batch, layers, mean_loss, on_one_device, stages_per_rank
from test_gradients_one_rank import build
from worlds import one_rank

from stagecraft.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B
from stagecraft.pipelining.microbatch import TensorChunkSpec, _CustomReducer
from stagecraft.pipelining.schedules import (
    FULL_BACKWARD,
    FORWARD,
    OVERLAP_F_B,
    REDUCE_GRAD,
    ScheduleDualPipeV,
    _wait_batch_p2p,
)


class Scaled(torch.nn.Module):
    """Takes keyword arguments of all kinds."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x, factor=None, shift=None, flag=False):
        x = self.inner(x)
        if factor is not None:
            x = x * factor
        if shift is not None:
            x = x + shift
        return -x if flag else x


class OneRank(unittest.TestCase):
    def setUp(self):
        world = one_rank()
        world.__enter__()
        self.addCleanup(world.__exit__, None, None, None)


class Arguments(OneRank):
    def test_keyword_arguments(self):
        model = torch.nn.ModuleList([Scaled(), Scaled()])
        x, _ = batch(8)
        factor, scalar = torch.rand(8, 1).double(), torch.tensor(0.5).double()
        schedule = build(ScheduleInterleaved1F1B, model, 4)
        result = schedule.step(x, factor=factor, shift=scalar, flag=True)
        expected = x
        for layer in model:
            expected = layer(expected, factor=factor, shift=scalar, flag=True)
        torch.testing.assert_close(result, expected)

    def test_keyword_argument_keeps_its_gradient(self):
        model = torch.nn.ModuleList([Scaled(), Scaled()])
        x, target = batch(8)
        shift = torch.zeros(WIDTH).double().requires_grad_()
        factor = torch.ones(8, 1).double().requires_grad_()
        for kind in SCHEDULES[2:6]:
            with self.subTest(kind=kind.__name__):
                schedule = build(
                    kind,
                    model,
                    4,
                    loss_fn=lambda output, wanted: ((output - wanted) ** 2).sum(),
                    scale_grads=False,
                )
                schedule._kwargs_chunk_spec = {"shift": _replicated(), "factor": TensorChunkSpec(0)}
                schedule.step(x, shift=shift, factor=factor, target=target)
                expected = model[1](model[0](x, factor=factor, shift=shift), factor=factor, shift=shift)
                wanted = torch.autograd.grad(((expected - target) ** 2).sum(), [shift, factor])
                torch.testing.assert_close(shift.grad, wanted[0])
                torch.testing.assert_close(factor.grad, wanted[1])
                shift.grad = factor.grad = None

    def test_input_gets_its_gradient(self):
        model = layers(2)
        x, target = batch(8)
        x.requires_grad_()
        expected = torch.autograd.grad(mean_loss(model[1](model[0](x)), target), x)[0]
        for kind in SCHEDULES[2:6]:
            with self.subTest(kind=kind.__name__):
                x.grad = None
                build(kind, model, 4, loss_fn=lambda o, t: mean_loss(o, t) / 4).step(x, target=target)
                torch.testing.assert_close(x.grad, expected)

    def test_chunk_specs(self):
        model = layers(1)
        x, _ = batch(4)
        turned = torch.nn.Module()
        turned.forward = lambda y: model[0](y.t())
        stage = PipelineStage(turned, 0, 1, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, args_chunk_spec=(TensorChunkSpec(1),))
        torch.testing.assert_close(schedule.step(x.t()), model[0](x))

    def test_microbatches_given(self):
        model = layers(2)
        x, target = batch(8)
        _, _, grads = on_one_device(model, x, target)
        schedule = build(ScheduleInterleaved1F1B, model, 4, loss_fn=mean_loss)
        schedule.step(
            arg_mbs=[(part,) for part in x.chunk(4)], kwarg_mbs=[{}] * 4, target_mbs=list(target.chunk(4))
        )
        for parameter, expected in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(parameter.grad, expected)
        with self.assertRaisesRegex(ValueError, "Expecting 4 arg_mbs but got 2"):
            schedule.step(arg_mbs=[(x,)] * 2)
        with self.assertRaisesRegex(TypeError, "target_mbs must be a list"):
            schedule.step(x, target_mbs=(target,) * 4)

    def test_fewer_rows_than_microbatches(self):
        with self.assertRaisesRegex(ValueError, "Expecting 4 arg_mbs but got 3"):
            build(ScheduleGPipe, layers(1), 4).step(batch(3)[0])

    def test_target_may_be_a_tree(self):
        model = layers(1)
        x, target = batch(4)
        seen = []

        def loss_fn(output, wanted):
            seen.append((wanted["rows"].shape[0], wanted["weight"], wanted["scalar"].item()))
            return (output - wanted["rows"]).square().mean() * wanted["weight"]

        build(ScheduleGPipe, model, 2, loss_fn=loss_fn).step(
            x, target={"rows": target, "weight": 2, "scalar": torch.tensor(3)}
        )
        self.assertEqual(seen, [(2, 2, 3)] * 2)


def _replicated():
    from stagecraft.pipelining.microbatch import _Replicate

    return _Replicate()


class Results(OneRank):
    def test_outputs_only_if_wanted(self):
        for kind in SCHEDULES:
            schedule = build(kind, layers(stages_per_rank(kind)), 4, loss_fn=mean_loss)
            x, target = batch(8)
            self.assertIsNone(schedule.step(x, target=target, return_outputs=False))
            self.assertIsNotNone(schedule.step(x, target=target))

    def test_outputs_are_detached_after_a_backward_and_attached_without(self):
        model = layers(2)
        x, target = batch(8)
        self.assertFalse(build(ScheduleInterleaved1F1B, model, 4, loss_fn=mean_loss).step(x, target=target).requires_grad)
        build(ScheduleInterleaved1F1B, model, 4).step(x).sum().backward()
        self.assertIsNotNone(model[1].shared.grad)

    def test_merge_spec(self):
        model = layers(1)
        x, _ = batch(8)
        schedule = build(
            ScheduleGPipe, model, 4, output_merge_spec=_CustomReducer(torch.tensor(0.0), lambda a, b: a + b.sum())
        )
        torch.testing.assert_close(schedule.step(x).double(), model[0](x).sum(), rtol=1e-5, atol=1e-5)

    def test_loss_arguments(self):
        model = layers(1)
        x, target = batch(8)
        losses = ["stale"]
        schedule = build(ScheduleGPipe, model, 4, loss_fn=lambda o, t, power: ((o - t).abs() ** power).mean())
        schedule.step(x, target=target, losses=losses, loss_kwargs={"power": 3})
        expected = [((model[0](a) - b).abs() ** 3).mean() for a, b in zip(x.chunk(4), target.chunk(4))]
        torch.testing.assert_close(torch.stack(losses), torch.stack(expected).detach())
        with self.assertRaisesRegex(TypeError, "losses must be a list"):
            schedule.step(x, target=target, losses=())


class Evaluation(OneRank):
    def test_eval_between_steps(self):
        for kind in SCHEDULES:
            with self.subTest(kind=kind.__name__):
                model = layers(stages_per_rank(kind))
                x, target = batch(8)
                output, loss, grads = on_one_device(model, x, target)
                schedule = build(kind, model, 4, loss_fn=mean_loss)
                losses = []
                torch.testing.assert_close(schedule.eval(x, target=target, losses=losses), output, check_stride=False)
                torch.testing.assert_close(torch.stack(losses).mean(), loss)
                self.assertTrue(all(parameter.grad is None for parameter in model.parameters()))
                schedule.step(x, target=target)
                with torch.no_grad():
                    schedule.eval(x, target=target)
                # Evaluation neither scales nor clears what training left.
                for parameter, expected in zip(model.parameters(), grads, strict=True):
                    torch.testing.assert_close(parameter.grad, expected)

    def test_step_under_no_grad(self):
        schedule = build(ScheduleGPipe, layers(1), 2, loss_fn=mean_loss)
        with torch.no_grad(), self.assertRaisesRegex(RuntimeError, "step.. requires gradients to be enabled"):
            schedule.step(*batch(4)[:1], target=batch(4)[1])

    def test_mode_and_buffers_are_left_alone(self):
        """Finding out shapes runs the modules; batch norm must not count that."""
        model = torch.nn.ModuleList([torch.nn.BatchNorm1d(WIDTH).double(), torch.nn.BatchNorm1d(WIDTH).double()])
        x, target = batch(8)
        schedule = build(ScheduleInterleaved1F1B, model, 2, loss_fn=mean_loss)
        state = torch.get_rng_state()
        schedule.step(x, target=target)
        self.assertEqual(model[0].num_batches_tracked.item(), 2)
        self.assertTrue(torch.equal(state, torch.get_rng_state()))
        model[0].eval()
        schedule.eval(x, target=target)
        self.assertFalse(model[0].training)
        self.assertTrue(model[1].training)


class CustomFunctions(OneRank):
    def test_context_and_order(self):
        model = layers(2)
        x, target = batch(16)
        _, _, grads = on_one_device(model, x, target)
        schedule = build(ScheduleDualPipeV, model, 8, loss_fn=mean_loss)
        seen = []

        def forward(action, ctx):
            seen.append(str(action))
            stages = {stage.stage_index: stage for stage in ctx.schedule_ref._stages}
            stage, index = stages[action.stage_index], action.microbatch_index
            _wait_batch_p2p(ctx.schedule_ref.fwd_recv_ops.pop((action.stage_index, index), []))
            output = stage.forward_one_chunk(index, ctx.arg_mbs[index], ctx.kwarg_mbs[index])
            ctx.schedule_ref._maybe_compute_loss(stage, output, ctx.target_mbs, index)
            if action.stage_index + 1 in stages:
                stages[action.stage_index + 1].set_local_fwd_input(output, index)

        def backward(action, ctx):
            seen.append(str(action))
            schedule = ctx.schedule_ref
            stages = {stage.stage_index: stage for stage in schedule._stages}
            stage, index = stages[action.stage_index], action.microbatch_index
            stage.backward_one_chunk(index, loss=schedule._maybe_get_loss(stage, index))
            if action.stage_index > 0:
                stages[action.stage_index - 1].set_local_bwd_input(stage.get_local_bwd_output(index), index)

        def overlap(action, ctx):
            seen.append(str(action))
            forward(action.sub_actions[0], ctx)
            backward(action.sub_actions[1], ctx)

        schedule.register_custom_function(FORWARD, forward)
        schedule.register_custom_function(FULL_BACKWARD, backward)
        schedule.register_custom_function(OVERLAP_F_B, overlap)
        reduced = []
        builtin = schedule._stages[0]
        schedule.register_custom_function(
            REDUCE_GRAD, lambda action, ctx: (reduced.append(str(action)), builtin.perform_reduce_grad(1))
        )
        schedule.step(x, target=target)
        self.assertTrue(any("OVERLAP" in text for text in seen))
        self.assertEqual(sorted(reduced), ["0REDUCE_GRAD", "1REDUCE_GRAD"])
        for parameter, expected in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(parameter.grad / 8, expected)
        seen.clear()
        schedule.eval(x, target=target)
        self.assertEqual(len(seen), 16)  # forwards only, also of overlapped actions

    def test_messages_cannot_be_replaced(self):
        from stagecraft.pipelining.schedules import SEND_F

        with self.assertRaisesRegex(ValueError, "Invalid computation type"):
            build(ScheduleInterleaved1F1B, layers(1), 2).register_custom_function(SEND_F, print)


class Stages(OneRank):
    def test_replaced_module(self):
        """A module put into a stage after construction is the one that runs."""
        model, other = layers(2), layers(2, seed=5)
        x, target = batch(8)
        schedule = build(ScheduleInterleaved1F1B, model, 4, loss_fn=mean_loss)
        schedule.step(x, target=target)
        for stage, layer in zip(schedule._stages, other, strict=True):
            stage.submod = layer
        torch.testing.assert_close(schedule.step(x, target=target), other[1](other[0](x)).detach())
        self.assertIsNotNone(other[0].shared.grad)

    def test_overridden_method(self):
        class Doubling(PipelineStage):
            def forward_one_chunk(self, *args, **kwargs):
                calls.append(self.stage_index)
                return super().forward_one_chunk(*args, **kwargs)

        calls = []
        stages = [Doubling(layer, index, 2, torch.device("cpu")) for index, layer in enumerate(layers(2))]
        ScheduleInterleaved1F1B(stages, 4).step(batch(8)[0])
        self.assertEqual(sorted(calls), [0] * 4 + [1] * 4)

    def test_weight_shared_by_two_stages_of_a_rank(self):
        """Scaled once, although two stages reduce it."""
        model = layers(2)
        model[1].shared = model[0].shared
        x, target = batch(8)
        _, _, grads = on_one_device(model, x, target)
        for kind in SCHEDULES[2:6]:
            with self.subTest(kind=kind.__name__):
                model.zero_grad()
                build(kind, model, 4, loss_fn=mean_loss).step(x, target=target)
                for parameter, expected in zip(model.parameters(), grads, strict=True):
                    torch.testing.assert_close(parameter.grad, expected)

    def test_out_of_range(self):
        for index in (-1, 2):
            with self.assertRaisesRegex(ValueError, f"Stage index {index} is out of range of 2"):
                PipelineStage(layers(1)[0], index, 2, torch.device("cpu"))


if __name__ == "__main__":
    unittest.main()
