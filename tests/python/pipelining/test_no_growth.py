"""Many steps: neither memory nor objects grow, and nothing of a step outlives it but its outputs."""

import gc
import resource
import unittest
import weakref

import torch

from small_models import SCHEDULES, batch, layers, mean_loss, stages_per_rank
from test_gradients_one_rank import build
from worlds import gloo_ranks, one_rank

from stagecraft.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble
from stagecraft.pipelining.schedules import PipelineScheduleSingle


def tensors_alive():
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def train_long(rank, ranks, steps):
    """Objects and memory before and after many steps of 1F1B and zero bubble."""
    found = []
    for kind, per_rank in ((Schedule1F1B, 1), (ScheduleInterleavedZeroBubble, 2)):
        model = layers(ranks * per_rank)
        stages = [PipelineStage(model[n], n, len(model), torch.device("cpu")) for n in range(rank, len(model), ranks)]
        schedule = kind(stages[0] if issubclass(kind, PipelineScheduleSingle) else stages, 4, loss_fn=mean_loss)
        x, target = batch(8)
        arguments = {"target": target} if stages[-1].is_last else {}

        def run(count, schedule=schedule, arguments=arguments, x=x, rank=rank):
            for _ in range(count):
                schedule.step(*([x] if rank == 0 else []), **arguments)

        run(20)
        gc.collect()
        objects, memory = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run(steps)
        gc.collect()
        found.append((len(gc.get_objects()) - objects, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory))
    return found


class NoGrowth(unittest.TestCase):
    def test_on_one_rank(self):
        with one_rank():
            for kind in SCHEDULES:
                model = layers(stages_per_rank(kind))
                schedule = build(kind, model, 4, loss_fn=mean_loss)
                x, target = batch(8)
                for _ in range(3):
                    schedule.step(x, target=target)
                gc.collect()
                before, memory = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                for _ in range(500 if kind in (Schedule1F1B, ScheduleInterleavedZeroBubble) else 50):
                    schedule.step(x, target=target)
                gc.collect()
                with self.subTest(kind=kind.__name__):
                    self.assertLess(abs(len(gc.get_objects()) - before), 50)
                    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
                    self.assertLess(grown, 4096, "KiB")

    def test_over_gloo(self):
        for rank, found in enumerate(gloo_ranks(2, train_long, 500)):
            for objects, memory in found:
                with self.subTest(rank=rank):
                    self.assertLess(abs(objects), 50)
                    self.assertLess(memory, 4096, "KiB")

    def test_nothing_waits_for_the_garbage_collector(self):
        with one_rank():
            for kind in SCHEDULES:
                model = layers(stages_per_rank(kind))
                schedule = build(kind, model, 4, loss_fn=mean_loss)
                x, target = batch(8)
                schedule.step(x, target=target, losses=[])
                model.zero_grad()
                gc.collect()
                gc.disable()
                try:
                    before = tensors_alive()
                    schedule.step(x, target=target, losses=[])
                    model.zero_grad()
                    with self.subTest(kind=kind.__name__):
                        self.assertEqual(tensors_alive(), before)
                finally:
                    gc.enable()

    def test_a_schedule_goes_when_it_is_let_go(self):
        with one_rank():
            model = layers(2)
            schedule = build(ScheduleInterleavedZeroBubble, model, 4, loss_fn=mean_loss)
            x, target = batch(8)
            schedule.step(x, target=target)
            stage = weakref.ref(schedule._stages[0])
            gc.collect()
            gc.disable()
            try:
                del schedule
                self.assertIsNone(stage())
            finally:
                gc.enable()

    def test_activations_of_a_microbatch_go_after_its_backward(self):
        """1F1B holds as many microbatches as it has in flight, not all."""
        with one_rank():
            model = layers(1)
            alive, most = weakref.WeakSet(), [0]

            def count(module, args, output):
                alive.add(output)
                most[0] = max(most[0], len(alive))

            model[0].inner.register_forward_hook(count)
            schedule = build(Schedule1F1B, model, 8, loss_fn=mean_loss)
            x, target = batch(16)
            schedule.step(x, target=target)
            most[0] = 0
            schedule.step(x, target=target)
            self.assertLessEqual(most[0], 1)


if __name__ == "__main__":
    unittest.main()
