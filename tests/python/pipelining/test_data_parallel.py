"""Stages wrapped for data parallelism: two replicas of a pipeline of two ranks."""

import unittest

import torch
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from small_models import (
    SCHEDULES,
    batch,
    layers,
    mean_loss,
    on_one_device,
    stage_numbers,
    stages_per_rank,
)
from worlds import gloo_ranks

from stagecraft.pipelining import PipelineStage
from stagecraft.pipelining.schedules import PipelineScheduleSingle


def full(grad):
    return grad.full_tensor() if isinstance(grad, DTensor) else grad


def wrap(layer, how, group, mesh):
    if how == "ddp":
        return DistributedDataParallel(layer, process_group=group)
    if how == "fsdp":
        fully_shard(layer.inner, mesh=mesh)
        return fully_shard(layer, mesh=mesh)
    return replicate(layer, mesh=mesh)


def train(rank, ranks, how):
    """The largest difference to the gradients of one device on the whole batch, per schedule."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "pipeline"))
    replica, place = mesh["replica"].get_local_rank(), mesh["pipeline"].get_local_rank()
    found = {}
    for kind in SCHEDULES:
        per_rank = stages_per_rank(kind)
        model = layers(2 * per_rank)
        x, target = batch(16)
        output, _, grads = on_one_device(model, x, target)
        expected = {name: grad for (name, _), grad in zip(model.named_parameters(), grads, strict=True)}
        numbers = stage_numbers(kind, place, 2, per_rank)
        stages = [
            PipelineStage(
                wrap(model[n], how, mesh["replica"].get_group(), mesh["replica"]),
                n,
                len(model),
                torch.device("cpu"),
                group=mesh["pipeline"].get_group(),
            )
            for n in numbers
        ]
        single = issubclass(kind, PipelineScheduleSingle)
        schedule = kind(stages[0] if single else stages, 4, loss_fn=mean_loss)
        rows = slice(replica * 8, replica * 8 + 8)
        worst = 0.0
        for run in range(3):
            if run < 2:  # the third step adds to the second
                for stage in stages:
                    stage.submod.zero_grad()
            result = schedule.step(
                *([x[rows]] if 0 in numbers else []), **({"target": target[rows]} if len(model) - 1 in numbers else {})
            )
            if len(model) - 1 in numbers:
                worst = max(worst, (result - output[rows]).abs().max().item())
            for n, stage in zip(numbers, stages, strict=True):
                for name, parameter in stage.submod.named_parameters():
                    wanted = expected[f"{n}.{name.removeprefix('module.')}"] * (2 if run == 2 else 1)
                    worst = max(worst, (full(parameter.grad) - wanted).abs().max().item())
        found[kind.__name__] = worst
    return found


class Wrapped(unittest.TestCase):
    def check(self, how):
        for rank, found in enumerate(gloo_ranks(4, train, how)):
            for name, difference in found.items():
                with self.subTest(name=name, rank=rank):
                    self.assertLess(difference, 1e-12)

    def test_ddp(self):
        self.check("ddp")

    def test_fully_shard(self):
        self.check("fsdp")

    def test_replicate(self):
        self.check("replicate")


if __name__ == "__main__":
    unittest.main()
