"""All stages on one rank: gradients, losses and outputs are those of one device."""

import unittest

import torch

from small_models import SCHEDULES, batch, layers, mean_loss, on_one_device, stages_per_rank
from worlds import one_rank

from stagecraft.pipelining import PipelineStage
from stagecraft.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, _Action, _PipelineScheduleRuntime


def build(kind, model, microbatches, **options):
    stages = [PipelineStage(layer, index, len(model), torch.device("cpu")) for index, layer in enumerate(model)]
    return kind(stages[0] if issubclass(kind, PipelineScheduleSingle) else stages, microbatches, **options)


class EverySchedule(unittest.TestCase):
    def check(self, kind, per_rank, microbatches, steps=1):
        model = layers(per_rank)
        x, target = batch(3 * microbatches)
        output, loss, grads = on_one_device(model, x, target, steps=steps)
        schedule = build(kind, model, microbatches, loss_fn=mean_loss)
        for _ in range(steps):
            losses = []
            result = schedule.step(x, target=target, losses=losses)
        torch.testing.assert_close(result, output)
        torch.testing.assert_close(torch.stack(losses).mean(), loss)
        for parameter, expected in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(parameter.grad, expected)

    def test_gradients(self):
        with one_rank():
            for kind in SCHEDULES:
                for wanted in (2, 3):
                    with self.subTest(kind=kind.__name__, stages=stages_per_rank(kind, wanted)):
                        self.check(kind, stages_per_rank(kind, wanted), 4)

    def test_one_microbatch(self):
        with one_rank():
            for kind in SCHEDULES[:-1]:
                with self.subTest(kind=kind.__name__):
                    self.check(kind, stages_per_rank(kind), 1)

    def test_gradients_add_up_over_steps(self):
        """Scaling a step's gradients leaves those of earlier steps alone."""
        with one_rank():
            for kind in SCHEDULES:
                with self.subTest(kind=kind.__name__):
                    self.check(kind, stages_per_rank(kind), 4, steps=3)


class Tables(unittest.TestCase):
    def run_table(self, model, rows, microbatches, x, target):
        schedule = build(_PipelineScheduleRuntime, model, microbatches, loss_fn=mean_loss, scale_grads=False)
        schedule._prepare_schedule_with_comms({0: [_Action.from_str(text) for text in rows.split()]}, "compute_comms")
        losses = []
        schedule.step(x, target=target, losses=losses)
        return losses

    def test_backwards_in_another_order(self):
        model = layers(2)
        x, target = batch(6)
        _, _, grads = on_one_device(model, x, target, lambda output, wanted: 3 * mean_loss(output, wanted))
        with one_rank():
            losses = self.run_table(
                model, "0F2 0F0 1F2 0F1 1F0 1F1 1I2 1B0 0I2 1I1 0B0 0I1 0W1 1W1 1W2 0W2", 3, x, target
            )
        for parameter, expected in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(parameter.grad, expected)
        reference = [mean_loss(model[1](model[0](part)), wanted) for part, wanted in zip(x.chunk(3), target.chunk(3))]
        torch.testing.assert_close(torch.stack(losses), torch.stack(reference).detach())

    def test_outputs_come_in_the_order_of_microbatches(self):
        model = layers(1)
        x, _ = batch(6)
        with one_rank():
            schedule = build(_PipelineScheduleRuntime, model, 3)
            schedule.pipeline_order_with_comms = {0: [_Action.from_str(text) for text in ("0F2", "0F0", "0F1")]}
            torch.testing.assert_close(schedule.step(x), model[0](x))

    def test_the_table_may_change_between_steps(self):
        model = layers(1)
        x, target = batch(4)
        with one_rank():
            schedule = build(_PipelineScheduleRuntime, model, 2, loss_fn=mean_loss)
            for rows in ("0F0 0B0 0F1 0B1 0REDUCE_GRAD", "0F0 0F1 0I0 0I1 0W1 0W0 0REDUCE_GRAD"):
                schedule.pipeline_order_with_comms = {0: [_Action.from_str(text) for text in rows.split()]}
                schedule.step(x, target=target)
                found = [parameter.grad.clone() for parameter in model.parameters()]
                model.zero_grad()
                _, _, grads = on_one_device(model, x, target)
                for one, expected in zip(found, grads, strict=True):
                    torch.testing.assert_close(one, expected)
            # In place, too.
            schedule.pipeline_order_with_comms[0][:] = [_Action.from_str("0F1"), _Action.from_str("0F0")]
            torch.testing.assert_close(schedule.step(x, target=target), model[0](x).detach())

    def test_a_table_without_messages(self):
        """PipelineScheduleMulti works messages and hand-overs out by itself."""
        model = layers(3)
        x, target = batch(4)
        _, _, grads = on_one_device(model, x, target)
        with one_rank():
            schedule = build(PipelineScheduleMulti, model, 2, loss_fn=mean_loss)
            rows = "0F0 1F0 2F0 0F1 2B0 1F1 1B0 2F1 0B0 2B1 1B1 0B1"
            schedule.pipeline_order = {0: [_Action.from_str(text) for text in rows.split()]}
            schedule._validate_and_set_stage_mapping(schedule.pipeline_order)
            schedule.step(x, target=target)
        for parameter, expected in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(parameter.grad, expected)


if __name__ == "__main__":
    unittest.main()
