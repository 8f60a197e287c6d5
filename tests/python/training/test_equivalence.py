"""Every schedule, on threads and on Gloo processes, against one device: the same losses and gradients, bit for bit where sums have one order."""

import copy
import unittest

import torch

import models
import processes
import stagecraft.torch as sc
from stagecraft.torch import _runtime


def settings(ranks):
    """(schedule, stages per rank, microbatches) of every known schedule that trains."""
    for name, least, most, usual in _runtime.known_schedules():
        if name == "ForwardOnly":
            continue
        for per_rank in {usual, min(most, max(least, 3))} if ranks == 2 else {usual}:
            for microbatches in (3, 4):
                yield name, per_rank, microbatches


def compare(test, world, name, per_rank, microbatches):
    inputs, target = models.batch(rows=13)
    stages = models.stages_here(world, name, per_rank)
    pipeline = sc.Pipeline(stages, world=world, schedule=name, microbatches=microbatches, loss=models.mean_loss)
    whole = models.blocks(models.count_stages(name, world.size, per_rank))
    in_order = models.stages_in_order(pipeline.schedule_rows)
    what = f"{name}, {world.size} ranks, {per_rank} per rank, {microbatches} microbatches"
    for step in range(2):
        result = pipeline.step(inputs, target=target, return_outputs=True)
        for module in whole:
            module.zero_grad()
        losses, expected = models.one_device(whole, inputs, target, microbatches)
        models.assert_same_gradients(test, models.gradients_of(stages), expected, in_order, f"{what}, step {step}")
        if pipeline.has_last_stage:
            test.assertEqual([loss.item() for loss in result.losses], [loss.item() for loss in losses], what)
            test.assertEqual(result.output.shape, (13, 16))
        else:
            test.assertFalse(result.has_loss)
        for parameter in pipeline.parameters():
            parameter.grad = None


class Threads(unittest.TestCase):
    def test_every_schedule(self):
        for ranks in (1, 2, 3):
            for name, per_rank, microbatches in settings(ranks):
                with self.subTest(schedule=name, ranks=ranks, per_rank=per_rank, microbatches=microbatches):
                    sc.run_ranks(lambda world: compare(self, world, name, per_rank, microbatches), ranks)

    def test_replicas(self):
        def train(world):
            torch.manual_seed(3)
            inputs, target = models.batch(rows=16)
            stages = models.stages_here(world, "1F1B")
            pipeline = sc.Pipeline(stages, world=world, microbatches=2, loss=models.mean_loss, broadcast_loss=True)
            result = pipeline.step(world.share_of(inputs), target=world.share_of(target))
            whole = models.blocks(2)
            _, expected = models.one_device(whole, inputs, target, 4)
            models.assert_same_gradients(self, models.gradients_of(stages), expected, set())
            return result.loss

        losses = sc.run_ranks(train, 2, replicas=2)
        self.assertEqual(len(set(losses)), 1)

    def test_split_of_a_sequential(self):
        model = torch.nn.Sequential(*models.blocks(5))
        reference = copy.deepcopy(model)
        inputs, target = models.batch()
        _, expected = models.one_device(list(reference), inputs, target, 4)

        def train(world):
            pipeline = sc.Pipeline(model, world=world, schedule="Interleaved1F1B", stages_per_rank=2, microbatches=4, loss=models.mean_loss)
            pipeline.step(inputs, target=target)
            return [name for name, _ in pipeline.named_parameters()]

        names = sc.run_ranks(train, 2)
        self.assertEqual(sorted(names[0] + names[1]), sorted(name for name, _ in model.named_parameters()))
        for name, parameter in model.named_parameters():
            self.assertTrue(torch.equal(parameter.grad, expected[name]), name)


def every_schedule(rank, ranks):
    test = unittest.TestCase()
    world = sc.World(timeout=60)
    for name, per_rank, microbatches in settings(ranks):
        compare(test, world, name, per_rank, microbatches)
    return world.rank


class Processes(unittest.TestCase):
    def test_every_schedule(self):
        self.assertEqual(processes.run("test_equivalence:every_schedule", 2), [0, 1])


if __name__ == "__main__":
    unittest.main()
