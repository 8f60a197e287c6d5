"""Stages on several processes over Gloo: gradients are those of one device, also where receives are out of order."""

import unittest

import torch

from small_models import SCHEDULES, batch, layers, mean_loss, on_one_device, stage_numbers, stages_per_rank
from worlds import gloo_ranks

from stagecraft.pipelining import PipelineStage, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble
from stagecraft.pipelining.schedules import PipelineScheduleSingle


def train(rank, ranks, cases):
    """Runs each case two steps and an evaluation; returns the largest difference to one device per case."""
    differences = []
    for kind, per_rank, microbatches, options in cases:
        model = layers(ranks * per_rank)
        x, target = batch(microbatches * 2 + options.pop("more_rows", 0))
        example = options.pop("example", False)
        loss_fn = mean_loss
        if len(x) % microbatches:  # unequal microbatches: a sum does not care

            def loss_fn(output, wanted):
                return ((output - wanted) ** 2).sum()

            options = {**options, "scale_grads": False}
        output, _, grads = on_one_device(model, x, target, loss_fn)
        expected = dict(zip(model.parameters(), grads, strict=True))
        numbers = stage_numbers(kind, rank, ranks, per_rank)
        given = {}
        if example:
            rows = x[: len(x) // microbatches]
            given = {"input_args": rows.clone().requires_grad_(rank > 0), "output_args": rows.clone().requires_grad_(True)}
        stages = [PipelineStage(model[n], n, len(model), torch.device("cpu"), **given) for n in numbers]
        single = issubclass(kind, PipelineScheduleSingle)
        schedule = kind(stages[0] if single else stages, microbatches, loss_fn=loss_fn, **options)
        first, last = 0 in numbers, len(model) - 1 in numbers
        worst = 0.0
        for run in (schedule.step, schedule.step, schedule.eval):
            for stage in stages:
                stage.submod.zero_grad()
            losses = []
            result = run(*([x] if first else []), **({"target": target, "losses": losses} if last else {}))
            if last:
                worst = max(worst, (result - output).abs().max().item())
                if len(losses) != microbatches:
                    raise AssertionError(f"{len(losses)} losses")
            for stage in stages:
                for parameter in stage.submod.parameters():
                    if run == schedule.eval:
                        if parameter.grad is not None:
                            raise AssertionError("evaluation left a gradient")
                    else:
                        worst = max(worst, (parameter.grad - expected[parameter]).abs().max().item())
        differences.append(worst)
    return differences


class OverGloo(unittest.TestCase):
    def check(self, ranks, cases):
        for rank, differences in enumerate(gloo_ranks(ranks, train, cases)):
            for case, difference in zip(cases, differences, strict=True):
                with self.subTest(case=str(case), rank=rank):
                    self.assertLess(difference, 1e-12)

    def test_two_ranks(self):
        self.check(2, [(kind, stages_per_rank(kind), 4, {}) for kind in SCHEDULES])

    def test_three_ranks(self):
        self.check(3, [(kind, stages_per_rank(kind), 6, {}) for kind in SCHEDULES])

    def test_deferred_receives_get_the_right_messages(self):
        late = {"defer_pp_recv": True}
        cases = [(ScheduleZBVZeroBubble, 2, 3, late), (ScheduleInterleavedZeroBubble, 2, 3, late)]
        cases += [(kind, stages_per_rank(kind), 4, late) for kind in SCHEDULES[2:]]
        self.check(2, cases)

    def test_unequal_microbatches(self):
        self.check(2, [(kind, stages_per_rank(kind), 4, {"more_rows": 1}) for kind in SCHEDULES])

    def test_examples_given(self):
        self.check(2, [(kind, 1, 4, {"example": True}) for kind in SCHEDULES[:2]])


if __name__ == "__main__":
    unittest.main()
