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
    """Gradients, and per stage what enters and leaves it in the first microbatch, with gradients.

    Every stage begins with leaves, as in a pipeline: the gradient of a leaf is placed as the backward leaves it (here a partial
    sum), where autograd would have redistributed that of a value in the middle of a graph.
    """
    examples = []
    for part, wanted in zip(
        _split_tensor(x, TensorChunkSpec(0), count), _split_tensor(target, TensorChunkSpec(0), count), strict=True
    ):
        inputs, outputs = [part.detach().requires_grad_(True)], []
        for layer in model:
            outputs.append(layer(inputs[-1]))
            inputs.append(outputs[-1].detach().requires_grad_(True))
        mean_loss(outputs[-1], wanted).backward()
        for output, following in reversed(list(zip(outputs[:-1], inputs[1:]))):
            output.backward(following.grad)
        examples.append(inputs)
    grads = {name: parameter.grad.full_tensor() / count for name, parameter in model.named_parameters()}
    model.zero_grad()
    return grads, examples[0]


def train_all(rank, ranks, cases):
    return [train(*case) for case in cases]


def train(kind, layout, given, mislabelled=False):
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
        grads = [values[n].grad if n > 0 else None, values[n + 1].grad if not last else None]
        if mislabelled:
            grads = [None if grad is None else grad.full_tensor() for grad in grads]
            grads = [None if grad is None else distribute_tensor(grad, tensor_mesh, [layout]) for grad in grads]
        return {
            "input_args": values[n].detach().requires_grad_(True),
            "output_args": values[n + 1].detach().requires_grad_(True),
            "input_grads": (grads[0],),
            "output_grads": (grads[1],),
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
    def test_gradients(self):
        """Descriptions found out by running, and given ones; one world for all, because worlds take longer than steps."""
        cases = [(kind, layout, False) for kind in (Schedule1F1B, *SCHEDULES[3:]) for layout in (Replicate(), Shard(0))]
        cases += [(kind, Replicate(), True) for kind in (Schedule1F1B, ScheduleZBVZeroBubble)]
        for case, differences in zip(cases, zip(*gloo_ranks(4, train_all, cases)), strict=True):
            with self.subTest(kind=case[0].__name__, layout=str(case[1]), given=case[2]):
                self.assertLess(max(differences), 1e-12)

    def test_placed_otherwise_than_given(self):
        """Partial sums announced as replicas: refused, where local parts alone would give wrong gradients."""
        with self.assertRaisesRegex(AssertionError, r"gradient to stage 0: placements mismatch: \(Replicate\(\),\) vs \(Partial"):
            gloo_ranks(4, train_all, [(Schedule1F1B, Replicate(), True, True)])


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
