"""DTensors between stages: two tensor-parallel ranks for each of two pipeline ranks."""

import copy
import unittest

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from small_models import SCHEDULES, WIDTH, batch, mean_loss, stage_numbers, stages_per_rank
from worlds import gloo_ranks

from stagecraft.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble
from stagecraft.pipelining._utils import PipeliningMetadataError, _DTensorMeta, _MeshCache, _StageMeta
from stagecraft.pipelining.microbatch import TensorChunkSpec, _split_tensor, merge_chunks
from stagecraft.pipelining.schedules import PipelineScheduleSingle


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def parallel_pairs(count, mesh, layout):
    torch.manual_seed(0)
    model = torch.nn.ModuleList(Pair() for _ in range(count)).double()
    plan = {
        "up": ColwiseParallel(input_layouts=layout, use_local_output=False),
        "down": RowwiseParallel(output_layouts=layout, use_local_output=False),
    }
    for pair in model:
        parallelize_module(pair, mesh, plan)
    return model


def microbatches_on_one_device(model, x, target, count):
    """Gradients, and per stage what entered and left it in the first microbatch, with gradients."""
    examples = []
    for part, wanted in zip(
        _split_tensor(x, TensorChunkSpec(0), count), _split_tensor(target, TensorChunkSpec(0), count), strict=True
    ):
        values = [part.detach().requires_grad_(True)]
        for layer in model:
            values.append(layer(values[-1]))
            values[-1].retain_grad()
        mean_loss(values[-1], wanted).backward()
        examples.append(values)
    grads = {name: parameter.grad.full_tensor() / count for name, parameter in model.named_parameters()}
    model.zero_grad()
    return grads, examples[0]


def train(rank, ranks, kind, layout, given):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "tensor"))
    tensor_mesh, place = mesh["tensor"], mesh["pipeline"].get_local_rank()
    per_rank = stages_per_rank(kind)
    model = parallel_pairs(2 * per_rank, tensor_mesh, layout)
    x, target = (distribute_tensor(value, tensor_mesh, [layout]) for value in batch(8))
    expected, values = microbatches_on_one_device(copy.deepcopy(model), x, target, 4)

    def options(n):
        if not given:
            return {}
        last = n == len(model) - 1
        return {
            "input_args": values[n].detach().requires_grad_(True),
            "output_args": values[n + 1].detach().requires_grad_(True),
            "input_grads": (values[n].grad if n > 0 else None,),
            "output_grads": (values[n + 1].grad if not last else None,),
        }

    numbers = stage_numbers(kind, place, 2, per_rank)
    stages = [
        PipelineStage(
            model[n],
            n,
            len(model),
            torch.device("cpu"),
            group=mesh["pipeline"].get_group(),
            get_mesh=lambda names, layout: tensor_mesh,
            **options(n),
        )
        for n in numbers
    ]
    schedule = kind(stages[0] if issubclass(kind, PipelineScheduleSingle) else stages, 4, loss_fn=mean_loss)
    for _ in range(2):
        model.zero_grad()
        result = schedule.step(
            *([x] if 0 in numbers else []), **({"target": target} if len(model) - 1 in numbers else {})
        )
    worst = 0.0
    if result is not None and (not isinstance(result, DTensor) or result.placements != (layout,)):
        raise AssertionError(f"output is {result}")
    for n in numbers:
        for name, parameter in model[n].named_parameters():
            worst = max(worst, (parameter.grad.full_tensor() - expected[f"{n}.{name}"]).abs().max().item())
    return worst


class BetweenStages(unittest.TestCase):
    def test_found_out(self):
        for kind in (Schedule1F1B, *SCHEDULES[3:]):
            for layout in (Replicate(), Shard(0)):
                with self.subTest(kind=kind.__name__, layout=str(layout)):
                    self.assertLess(max(gloo_ranks(4, train, kind, layout, False)), 1e-12)

    def test_given(self):
        for kind in (Schedule1F1B, ScheduleZBVZeroBubble):
            with self.subTest(kind=kind.__name__):
                self.assertLess(max(gloo_ranks(4, train, kind, Replicate(), True)), 1e-12)


def describe(rank, ranks):
    """Checks that need a mesh but no pipeline. Returns nothing: failures raise."""
    check = unittest.TestCase()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    sharded = distribute_tensor(torch.randn(7, 4), mesh, [Shard(0)])
    replicated = distribute_tensor(torch.randn(7, 4), mesh, [Replicate()])
    meta = _DTensorMeta.from_dtensor(sharded)
    check.assertEqual(meta.get_diff(_DTensorMeta.from_dtensor(meta.to_dtensor("cpu", mesh))), [])
    check.assertTrue(any("placements mismatch" in one for one in meta.get_diff(_DTensorMeta.from_dtensor(replicated))))

    parts = _split_tensor(sharded, TensorChunkSpec(0), 3)
    check.assertEqual([part.shape[0] for part in parts], [3, 2, 2])
    check.assertTrue(all(part.placements == (Shard(0),) for part in parts))
    merged = merge_chunks([(part,) for part in parts], (TensorChunkSpec(0),))[0]
    check.assertTrue(torch.equal(merged._local_tensor, sharded._local_tensor))
    with check.assertRaisesRegex(AssertionError, "got a mix"):
        merge_chunks([(sharded,), (torch.zeros(7, 4),)], (TensorChunkSpec(0),))
    with check.assertRaisesRegex(AssertionError, "placement mismatch"):
        merge_chunks([(sharded,), (replicated,)], (TensorChunkSpec(0),))

    with check.assertRaisesRegex(PipeliningMetadataError, "no get_mesh callback"):
        _MeshCache().get_mesh(meta.mesh_cache_key)
    check.assertIs(_MeshCache(lambda names, layout: mesh).get_mesh(meta.mesh_cache_key), mesh)

    stage = PipelineStage(torch.nn.Identity(), 1, 2, torch.device("cpu"))
    stage.has_backward, stage.chunks, stage.grad_send_info = True, 1, [0]
    stage._stage_meta = _StageMeta(input_grads=(None,))
    stage.bwd_cache[0] = (sharded,)
    with check.assertRaisesRegex(PipeliningMetadataError, "DTensor grad metadata cannot be derived"):
        stage.get_bwd_send_ops(0)
    stage._stage_meta = _StageMeta(input_grads=(meta,))
    stage.bwd_cache[0] = (None,)
    (operation,) = stage.get_bwd_send_ops(0)
    check.assertTrue(torch.equal(operation.tensor, torch.zeros_like(sharded.to_local())))


class Descriptions(unittest.TestCase):
    def test_descriptions(self):
        gloo_ranks(2, describe)


if __name__ == "__main__":
    unittest.main()
