"""Stages that torch's data parallel wrappers hold: two replicas of a pipeline of two ranks, against one device."""

import tempfile
import unittest

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import models
import processes
import stagecraft.torch as sc

SCHEDULES = ("GPipe", "1F1B", "ZB-H1", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def wrapped(module, how, mesh):
    if how == "ddp":
        return DistributedDataParallel(module, process_group=mesh.get_group())
    if how == "inside":  # a wrapper around a part alone
        return nn.Sequential(DistributedDataParallel(module, process_group=mesh.get_group()))
    if how == "fsdp":
        for layer in module:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        return fully_shard(module, mesh=mesh)
    return replicate(module, mesh=mesh)


def stages_of(world, schedule, how, mesh):
    per_rank = 1 if schedule in ("GPipe", "1F1B", "ZB-H1") else 2
    stages = models.stages_here(world, schedule, per_rank)
    for stage in stages:
        stage.submod = wrapped(stage.submod, how, mesh)
    return stages, per_rank


def train(rank, ranks):
    """By wrapper and schedule, the largest difference to one device, relative to the largest gradient: after one step, and after a second that adds."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    world = sc.World(mesh["pp"], timeout=60)
    return {how: train_wrapped(how, mesh, world) for how in ("ddp", "inside", "fsdp", "replicate")}


def train_wrapped(how, mesh, world):
    inputs, target = models.batch()
    half = len(inputs) // 2
    rows = slice(mesh["dp"].get_local_rank() * half, (mesh["dp"].get_local_rank() + 1) * half)
    found = {}
    for schedule in (*SCHEDULES, "1F1B without REDUCE_GRAD"):
        schedule, _, without = schedule.partition(" ")
        stages, per_rank = stages_of(world, schedule, how, mesh["dp"])
        pipeline = sc.Pipeline(stages, world=world, schedule=schedule, stages_per_rank=per_rank, microbatches=4, loss=models.mean_loss,
                               **({"passes": "unshard_reshard,send_recv"} if without else {}))  # fmt: skip
        _, expected = models.one_device(models.blocks(2 * per_rank), inputs, target, 4)
        if how != "inside":
            assert {name for name, _ in pipeline.named_parameters()} <= set(expected), "names are not those of the unwrapped model"
        worst = 0.0
        for times in (1, 2):
            pipeline.step(inputs[rows], target=target[rows])
            for name, parameter in pipeline.named_parameters():
                wanted = times * expected[name.replace("0.module.", "", 1) if how == "inside" else name]
                worst = max(worst, ((full(parameter.grad) - wanted).abs().max() / wanted.abs().max()).item())
        found[f"{schedule} {without}".strip()] = worst
    return found


def calls(rank, ranks):
    """What UNSHARD, RESHARD and REDUCE_GRAD of the row call, and how often the row says them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    world = sc.World(mesh["pp"], timeout=60)
    inputs, target = models.batch()
    stages, per_rank = stages_of(world, "InterleavedZeroBubble", "fsdp", mesh["dp"])
    pipeline = sc.Pipeline(
        stages, world=world, schedule="InterleavedZeroBubble", stages_per_rank=per_rank, microbatches=4, loss=models.mean_loss
    )
    pipeline.step(inputs[:8], target=target[:8])
    counts = {"UNSHARD": 0, "RESHARD": 0}
    root = type(stages[0].submod)
    unshard, reshard = root.unshard, root.reshard

    def count_unshard(self, *args, **kwargs):
        counts["UNSHARD"] += 1
        return unshard(self, *args, **kwargs)

    def count_reshard(self, *args, **kwargs):
        counts["RESHARD"] += 1
        return reshard(self, *args, **kwargs)

    FSDPModule.unshard, FSDPModule.reshard = count_unshard, count_reshard
    pipeline.step(inputs[:8], target=target[:8])
    modules = sum(isinstance(one, FSDPModule) for one in stages[0].submod.modules())
    row = pipeline.schedule_rows[world.rank]
    return {kind: (counts[kind], modules * sum(kind in action and "UN" + kind not in action for action in row)) for kind in counts}


def refusals(rank, ranks):
    """What looks at whole parameters, or reduces gradients too, says so instead of computing something else."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    inputs, target = models.batch()
    said = {}

    def refused(name, function):
        try:
            function()
        except sc.InvalidArgument as error:
            said[name] = str(error)

    sharded = sc.Pipeline(
        [sc.Stage(wrapped(models.block(0), "fsdp", mesh), 0)], world=sc.World.alone(), microbatches=4, loss=models.mean_loss
    )
    sharded.step(inputs, target=target)
    with tempfile.TemporaryDirectory() as folder:
        refused("save", lambda: sharded.save(folder + "/model.safetensors"))
        refused("load", lambda: sharded.load(folder + "/model.safetensors"))
    refused("gradient_norm", sharded.gradient_norm)
    refused("clip_gradient_norm", lambda: sharded.clip_gradient_norm(1.0))
    module = wrapped(models.block(0), "ddp", mesh)
    hooked = sc.Pipeline([sc.Stage(module, 0)], world=sc.World.alone(), microbatches=4, loss=models.mean_loss)
    module.register_comm_hook(None, allreduce_hook)
    refused("hook", lambda: hooked.step(inputs, target=target))
    precise = sc.Pipeline(
        [sc.Stage(wrapped(models.block(0), "ddp", mesh), 0)],
        world=sc.World.alone(),
        microbatches=4,
        loss=models.mean_loss,
        precision=sc.Precision(autocast=torch.bfloat16),
    )
    refused("precision", lambda: precise.step(inputs, target=target))
    return said


def after_a_failure(rank, ranks):
    """A module raises in the middle of a step; the next step is as if nothing had happened, and the module works alone."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    return {how: fail_and_go_on(rank, ranks, how, mesh) for how in ("ddp", "fsdp", "replicate")}


def fail_and_go_on(rank, ranks, how, mesh):
    inputs, target = models.batch()
    half = len(inputs) // ranks
    rows = slice(rank * half, rank * half + half)
    stages = [sc.Stage(wrapped(models.block(index), how, mesh), index) for index in range(2)]
    pipeline = sc.Pipeline(
        stages, world=sc.World.alone(), schedule="InterleavedZeroBubble", stages_per_rank=2, microbatches=4, loss=models.mean_loss
    )
    hook = stages[1].submod.register_forward_hook(lambda *_: 1 / 0)
    try:
        pipeline.step(inputs[rows], target=target[rows])
    except sc.StepError as error:
        assert isinstance(error.__cause__, ZeroDivisionError), error
    else:
        raise AssertionError("did not fail")
    hook.remove()
    for stage in stages:
        stage.submod.zero_grad()
    pipeline.step(inputs[rows], target=target[rows])
    reference = models.blocks(2)
    models.one_device(reference, inputs, target, 4)
    worst = 0.0
    for stage, own in zip(stages, reference):
        for got, wanted in zip(stage.submod.parameters(), own.parameters()):
            worst = max(worst, (full(got.grad) - wanted.grad).abs().max().item() / wanted.grad.abs().max().item())
    output = pipeline.eval(inputs[rows], target=target[rows]).output
    with torch.no_grad():
        value = inputs[rows]
        for own in reference:
            value = own(value)
    worst = max(worst, (output - value).abs().max().item())
    # Alone, the wrapper reduces in its backward again.
    for stage in stages:
        stage.submod.zero_grad()
    value = inputs[rows]
    for stage in stages:
        value = stage.submod(value)
    models.mean_loss(value, target[rows]).backward()
    for stage, own in zip(stages, reference):
        for got, wanted in zip(stage.submod.parameters(), own.parameters()):
            worst = max(worst, (full(got.grad) - wanted.grad).abs().max().item() / wanted.grad.abs().max().item())
    return worst


class Wrapped(unittest.TestCase):
    def test_gradients(self):
        for rank, by_wrapper in enumerate(processes.run("test_wrapped:train", 4)):
            for how, found in by_wrapper.items():
                self.assertEqual(set(found), {*SCHEDULES, "1F1B without REDUCE_GRAD"})
                for schedule, worst in found.items():
                    with self.subTest(how=how, schedule=schedule, rank=rank):
                        self.assertLess(worst, 1e-5)

    def test_actions_call_the_module(self):
        for found in processes.run("test_wrapped:calls", 4):
            for kind, (called, expected) in found.items():
                with self.subTest(kind=kind):
                    self.assertGreater(expected, 0)
                    self.assertGreaterEqual(called, expected)

    def test_refusals(self):
        for said in processes.run("test_wrapped:refusals", 2):
            for name in ("save", "load", "gradient_norm", "clip_gradient_norm"):
                self.assertIn("is a DTensor", said.get(name, ""), name)
            self.assertIn("communication hook", said.get("hook", ""))
            self.assertIn("both would reduce", said.get("precision", ""))

    def test_after_a_failure(self):
        for found in processes.run("test_wrapped:after_a_failure", 2):
            for how, worst in found.items():
                with self.subTest(how=how):
                    self.assertLess(worst, 1e-5)


if __name__ == "__main__":
    unittest.main()
