"""Ranks as processes that share a GPU, from Python: messages by NCCL, steps eager and as graphs, by both doors; a rank that is lost.

`make test-gpu` runs it where NCCL lets several ranks share a GPU. Without a GPU it runs over Gloo, on the CPU.
"""

import os
import pathlib
import sys
import tempfile
import time
import unittest

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training"))
import models
import processes

import stagecraft.pipelining as door
import stagecraft.torch as sc

HAS_GPU = os.environ.get("STAGECRAFT_TEST_DEVICE") == "cuda"
DEVICE = torch.device("cuda:0" if HAS_GPU else "cpu")
BLOCKS = 4


def batch(step):
    inputs, target = models.batch(seed=step)
    return inputs.to(DEVICE), target.to(DEVICE)


def one_device(step):
    inputs, target = batch(step)
    return models.one_device([block.to(DEVICE) for block in models.blocks(BLOCKS)], inputs, target, 4)


def placed(schedule, rank, ranks):
    if schedule == "ZBVZeroBubble":
        return [rank, 2 * ranks - 1 - rank]
    return [rank, rank + ranks]


SCHEDULES = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")


def ours(rank, ranks):
    """One world after the other."""
    for schedule in SCHEDULES:
        for graph in (False, True):
            train(rank, ranks, schedule, graph)


def train(rank, ranks, schedule, graph):
    """Steps from the same weights: losses and gradients are those of one device, bit for bit."""
    test = unittest.TestCase()
    with sc.World(timeout=60) as world:
        test.assertEqual(world.device, DEVICE)
        stages = [sc.Stage(models.block(s).to(DEVICE), s, prefix=str(s)) for s in placed(schedule, rank, ranks)]
        options = {"graph": True} if graph and HAS_GPU else {}
        pipeline = sc.Pipeline(
            stages, world=world, schedule=schedule, stages_per_rank=2, microbatches=4, loss=models.mean_loss, broadcast_loss=True, **options
        )
        in_order = models.stages_in_order(pipeline.schedule_rows)
        for step in range(5):
            for stage in stages:
                stage.submod.zero_grad()
            inputs, target = batch(step)
            result = pipeline.step(inputs, target=target)
            losses, expected = one_device(step)
            test.assertEqual([loss.item() for loss in result.losses], [loss.item() for loss in losses])
            models.assert_same_gradients(test, models.gradients_of(stages), expected, in_order, f"{schedule}, step {step}")
        if options:
            test.assertEqual(pipeline.captured.replayed, 4, pipeline.captured.reason)


def theirs(rank, ranks):
    return [train_by_the_door(rank, ranks, schedule) for schedule in SCHEDULES]


def train_by_the_door(rank, ranks, schedule):
    """The door of torch.distributed.pipelining; its losses are not weighted, but the sum is divided."""
    test = unittest.TestCase()
    numbers = placed(schedule, rank, ranks)
    stages = [door.PipelineStage(models.block(s).to(DEVICE), s, BLOCKS, DEVICE) for s in numbers]
    run = door.schedules.get_schedule_class(schedule)(stages, 4, loss_fn=models.mean_loss)
    for step in range(3):
        for stage in stages:
            stage.submod.zero_grad()
        inputs, target = batch(step)
        given = {"target": target, "losses": (losses := [])} if BLOCKS - 1 in numbers else {}
        run.step(*([inputs] if 0 in numbers else []), **given)
        expected_losses, expected = one_device(step)
        if given:
            test.assertEqual([loss.item() for loss in losses], [loss.item() for loss in expected_losses])
        for stage in stages:
            for name, parameter in stage.submod.named_parameters():
                torch.testing.assert_close(parameter.grad, expected[f"{stage.stage_index}.{name}"], rtol=1e-5, atol=1e-6)
    return type(run._engine[1]).__name__


def until_killed(rank, ranks, place, graph):
    with sc.World(timeout=20) as world:
        stage = sc.Stage(models.block(rank).to(DEVICE), rank)
        options = {"graph": True} if graph and HAS_GPU else {}
        pipeline = sc.Pipeline([stage], world=world, microbatches=4, loss=models.mean_loss, **options)
        inputs, target = batch(0)
        for _ in range(3):
            pipeline.step(inputs, target=target)
        open(os.path.join(place, f"ready-{rank}"), "w").close()
        begin = time.monotonic()
        try:
            while time.monotonic() - begin < 60:
                last = time.monotonic()
                pipeline.step(inputs, target=target)
                stage.submod.zero_grad()
        except sc.AbortedError as error:
            return {"peer": error.peer, "seconds": time.monotonic() - last}


@unittest.skipIf(HAS_GPU and "LD_PRELOAD" not in os.environ, "several ranks on one GPU need NCCL=path/to/libnccl.so.2")
class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["STAGECRAFT_TEST_BACKEND"] = "nccl" if HAS_GPU else "gloo"

    def test_ours(self):
        processes.run("test_processes:ours", 2)

    def test_theirs(self):
        self.assertEqual(processes.run("test_processes:theirs", 2), [["NativeEngine"] * len(SCHEDULES)] * 2)

    def test_a_killed_rank_is_named(self):
        for graph in (False, True):
            with self.subTest(graph=graph), tempfile.TemporaryDirectory() as folder:
                ranks = processes.start("test_processes:until_killed", 3, folder, place=folder, graph=graph)
                try:
                    until = time.monotonic() + 120
                    while not all(os.path.exists(os.path.join(folder, f"ready-{rank}")) for rank in range(3)):
                        self.assertLess(time.monotonic(), until, "\n".join(one.log for one in ranks))
                        time.sleep(0.05)
                    time.sleep(0.5)
                    ranks[1].kill()
                finally:
                    codes = processes.wait(ranks, limit=60)
                self.assertEqual([codes[0], codes[2]], [0, 0], ranks[0].log + ranks[2].log)
                for one in (ranks[0], ranks[2]):
                    self.assertEqual(one.result["peer"], 1, one.result)
                    self.assertLess(one.result["seconds"], 20)


if __name__ == "__main__":
    unittest.main()
