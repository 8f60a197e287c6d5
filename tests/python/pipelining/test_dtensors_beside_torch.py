"""DTensors between stages, by both packages in the same ranks: descriptions, checks, splitting, and training with and without given examples."""

import copy
import importlib
import unittest
import warnings

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from worlds import gloo_ranks

PACKAGES = ("torch.distributed.pipelining", "stagecraft.pipelining")
WIDTH, ROWS, MICROBATCHES = 8, 8, 4


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def reset_parameters(self):
        torch.nn.init.ones_(self.weight)

    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = Norm(), torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False), torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def parallel(layer, mesh, placement):
    if isinstance(placement, Replicate):
        plan = {
            "up": ColwiseParallel(input_layouts=Replicate(), use_local_output=False),
            "down": RowwiseParallel(output_layouts=Replicate(), use_local_output=False),
        }
        parallelize_module(layer, mesh, plan)
        whole = torch.nn.Parameter(DTensor.from_local(layer.norm.weight, mesh, [Replicate()], run_check=False))
        layer.norm.register_parameter("weight", whole)
    else:
        plan = {
            "norm": SequenceParallel(use_local_output=False),
            "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
        parallelize_module(layer, mesh, plan)
    return layer


def mean_square(output, target):
    return (output - target).pow(2).mean()


def like(value, requires_grad=None):
    """An example of a DTensor's placement and shape, with other values."""
    local = torch.empty_like(value.to_local())
    empty = DTensor.from_local(local, value.device_mesh, value.placements, shape=value.shape, stride=value.stride(), run_check=False)
    return empty.requires_grad_(value.requires_grad if requires_grad is None else requires_grad)


def on_one_pipeline_rank(layers, x, target, mesh, placement):
    """Gradients of a plain loop over microbatches, and an example of every value between layers and of its gradient."""
    layers = [parallel(layer, mesh, placement) for layer in layers]
    examples = []
    for index, (part, wanted) in enumerate(zip(torch.tensor_split(x, MICROBATCHES), torch.tensor_split(target, MICROBATCHES), strict=True)):
        values = [part]
        for layer in layers:
            values.append(layer(values[-1]))
        gradients = {}
        if index == 0:
            for number, value in enumerate(values):
                if value.requires_grad:
                    value.register_hook(lambda grad, number=number: gradients.__setitem__(number, grad))
        mean_square(values[-1], wanted).backward()
        if index == 0:
            examples = [(like(value), like(gradients[number], False) if number in gradients else None) for number, value in enumerate(values)]
    return [[parameter.grad / MICROBATCHES for parameter in layer.parameters()] for layer in layers], examples


def train(rank, ranks):
    """Largest differences of gradients: between the packages, and to the loop."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    place, found = mesh["pp"].get_local_rank(), {}
    for name in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"):
        count = 2 if name == "1F1B" else 4
        numbers = {"1F1B": [place], "Interleaved1F1B": [place, place + 2]}.get(name, [place, 3 - place])
        for placement in (Replicate(), Shard(1)):
            torch.manual_seed(1)
            plain = [Perceptron() for _ in range(count)]
            x, target = (distribute_tensor(torch.randn(ROWS, WIDTH), mesh["tp"], [placement]) for _ in range(2))
            x.requires_grad_(True)
            expected, examples = on_one_pipeline_rank(copy.deepcopy(plain), x, target, mesh["tp"], placement)
            for given in ("nothing", "examples", "examples without the gradients at both ends"):
                if given == "nothing" and name == "DualPipeV" and isinstance(placement, Replicate):
                    continue  # enough of it
                seen = {}
                for package in PACKAGES:
                    pipelining = importlib.import_module(package)
                    kind = importlib.import_module(package + ".schedules").get_schedule_class(name)
                    stages = []
                    for number in numbers:
                        keywords = {}
                        if given != "nothing":
                            (inputs, input_grads), (outputs, output_grads) = examples[number], examples[number + 1]
                            if given != "examples":
                                input_grads = None if number == 0 else input_grads
                                output_grads = None if number == count - 1 else output_grads
                            keywords = dict(
                                input_args=(inputs,), output_args=(outputs,), input_grads=(input_grads,), output_grads=(output_grads,)
                            )
                        module = parallel(copy.deepcopy(plain[number]), mesh["tp"], placement)
                        stages.append(
                            pipelining.PipelineStage(
                                module, number, count, torch.device("cpu"), group=mesh["pp"].get_group(),
                                get_mesh=lambda names, layout: mesh["tp"], **keywords,
                            )  # fmt: skip
                        )
                    schedule = kind(stages[0] if count == 2 else stages, MICROBATCHES, loss_fn=mean_square)
                    arguments = (x.detach().requires_grad_(),) if 0 in numbers else ()
                    schedule.step(*arguments, target=target if count - 1 in numbers else None)
                    seen[package] = [parameter.grad for stage in stages for parameter in stage.submod.parameters()]
                wanted = [grad for number in numbers for grad in expected[number]]
                ours, theirs = seen[PACKAGES[1]], seen[PACKAGES[0]]
                placed = all(a.placements == b.placements == c.placements for a, b, c in zip(ours, theirs, wanted, strict=True))
                found[f"{name}, {placement}, {given}"] = [placed, farthest(ours, theirs), farthest(ours, wanted)]
    return found


def farthest(some, others):
    return max((a.to_local() - b.to_local()).abs().max().item() for a, b in zip(some, others, strict=True))


def outcomes(package, mesh):
    """What functions of _utils and microbatch do, as text: a result, or the kind of exception."""
    utils = importlib.import_module(package + "._utils")
    microbatch = importlib.import_module(package + ".microbatch")
    stage_module = importlib.import_module(package + ".stage")
    torch.manual_seed(0)
    plain = torch.randn(8, 16, requires_grad=True)
    sharded, whole = (distribute_tensor(torch.randn(8, 16), mesh, [placement]) for placement in (Shard(0), Replicate()))
    tracked = distribute_tensor(torch.randn(8, 16, requires_grad=True), mesh, [Shard(0)])
    meta, shard_meta = utils._TensorMeta.from_tensor(plain), utils._DTensorMeta.from_dtensor(sharded)
    key = (("tp",), mesh._layout)
    spec = microbatch.TensorChunkSpec(0)

    def warned(function):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function()
        return [result if result is None else len(result) > 0, bool(caught)]

    def roundtrip(value, parts):
        chunks = list(microbatch._split_tensor(value, spec, parts))
        merged = microbatch.merge_chunks([(chunk,) for chunk in chunks], (spec,))[0]
        return [[tuple(chunk.shape) for chunk in chunks], [str(chunk.placements) for chunk in chunks], str(merged.placements), torch.equal(merged.to_local(), value.to_local())]

    def gradient_sends(metas, grad):
        stage = stage_module.PipelineStage(torch.nn.Identity(), 1, 2, torch.device("cpu"))
        stage.has_backward, stage.chunks, stage.grad_send_info = True, 1, [0]
        stage._stage_meta = utils._StageMeta(input_grads=metas)
        stage.bwd_cache[0] = (grad,)
        return [(tuple(op.tensor.shape), op.tensor.abs().sum().item() == 0) for op in stage.get_bwd_send_ops(0)]

    def modes():
        one, other = (meta,), (shard_meta,)
        given = [(None, None), (one, None), (one, one), (other, other), (other, other, other), (other, other, None, other), (other,) * 4]
        return [utils.InferenceMode.needs_dynamic(utils._StageMeta(*parts), backward) for parts in given for backward in (True, False)]

    def cache():
        found = utils._MeshCache()
        before = key in found
        found.update_from_tensors((sharded, plain, None))
        return [before, key in found, found.get_mesh(key) is mesh, len(found), utils._MeshCache(lambda names, layout: mesh).get_mesh(key) is mesh]

    cases = {
        "describe": lambda: [meta.shape, meta.stride, meta.dtype, meta.requires_grad, shard_meta.shape, shard_meta.global_shape, shard_meta.mesh_dim_names],
        "describe a DTensor as a tensor": lambda: utils._TensorMeta.from_tensor(sharded),
        "back": lambda: [meta.get_diff(utils._TensorMeta.from_tensor(meta.to_tensor(torch.device("cpu")))), shard_meta.get_diff(utils._DTensorMeta.from_dtensor(shard_meta.to_dtensor(torch.device("cpu"), mesh)))],
        "whole numbers need no gradient": lambda: utils._TensorMeta(torch.Size([2]), (1,), torch.long, True).to_tensor(torch.device("cpu")).requires_grad,
        "differences": lambda: [len(meta.get_diff(other)) for other in (meta, utils._TensorMeta(torch.Size([4]), (1,), torch.half, False))] + [bool(shard_meta.get_diff(meta)), len(shard_meta.get_diff(utils._DTensorMeta.from_dtensor(whole)))],
        "modes": modes,
        "derived": lambda: [one is None for one in utils._derive_grad_metas((meta, utils._DTensorMeta.from_dtensor(tracked)))],
        "cache": cache,
        "no mesh": lambda: utils._MeshCache().get_mesh(key),
        "check": lambda: [utils.validate_metadata("a", shard_meta, sharded), len(utils.validate_metadata("a", shard_meta, whole)) > 0],
        "check, raise": lambda: utils.validate_metadata("a", shard_meta, whole, raise_on_mismatch=True),
        "check, warn": lambda: warned(lambda: utils.validate_metadata("a", shard_meta, whole, warn_on_mismatch=True)),
        "check all": lambda: utils.validate_tensors_metadata("a", (shard_meta, None), (sharded, None)),
        "check all, lengths": lambda: utils.validate_tensors_metadata("a", (shard_meta, shard_meta), (sharded,)),
        "check all, none": lambda: utils.validate_tensors_metadata("a", (shard_meta,), (None,)),
        "check all, warn": lambda: warned(lambda: utils.validate_tensors_metadata("a", (shard_meta,) * 2, (sharded,), raise_on_mismatch=False, warn_on_mismatch=True)),
        "gradients of examples": lambda: [utils.validate_static_arg_grad_correspondence(0, (a,), (b,), is_input=True) for a, b in ((tracked, whole), (sharded, None), (plain, None), (tracked, None))],
        "gradients of examples, plain": lambda: utils.validate_static_arg_grad_correspondence(0, (tracked,), (plain,), is_input=True),
        "gradients of examples, lengths": lambda: utils.validate_static_arg_grad_correspondence(0, (tracked, tracked), (whole,), is_input=False),
        "extract": lambda: [utils.extract_tensor_metas(None), [type(one).__name__ for one in utils.extract_tensor_metas((sharded, plain))], utils.extract_tensor_metas((plain, None), allow_none=True)[1]],
        "extract none": lambda: utils.extract_tensor_metas((plain, None)),
        "local": lambda: [type(utils.to_local_if_dtensor(tracked)).__name__, utils.to_local_if_dtensor(plain) is plain, utils.to_local_if_dtensor(tracked, detach=True).requires_grad],
        "tuples": lambda: [utils.validate_and_normalize_to_tuple(None), len(utils.validate_and_normalize_to_tuple(plain)), len(utils.validate_and_normalize_to_tuple([plain, plain])), len(utils.validate_and_normalize_to_tuple((plain, None), allow_none=True))],
        "tuples, text": lambda: utils.validate_and_normalize_to_tuple((plain, "text")),
        "tuples, none": lambda: utils.validate_and_normalize_to_tuple((plain, None)),
        "tuples, number": lambda: utils.validate_and_normalize_to_tuple(42),
        "split": lambda: [roundtrip(value, parts) for value in (sharded, whole) for parts in (2, 3)],
        "merge, placements": lambda: microbatch.merge_chunks([(sharded,), (whole,)], (spec,)),
        "merge, a mix": lambda: microbatch.merge_chunks([(sharded,), (plain,)], (spec,)),
        "a gradient that was not announced": lambda: gradient_sends((None,), whole),
        "no gradient where one was announced": lambda: gradient_sends((utils._DTensorMeta.from_dtensor(whole),), None),
    }  # fmt: skip
    said = {}
    for name, function in cases.items():
        try:
            said[name] = repr(function())
        except Exception as error:
            said[name] = f"{type(error).__name__} {[word for word in ('placement mismatch', 'mix', 'get_mesh', 'DTensor grad metadata cannot be derived') if word in str(error)]}"
    return said


def functions(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    return [outcomes(package, mesh) for package in PACKAGES]


class DTensors(unittest.TestCase):
    maxDiff = None

    def test_training(self):
        for rank, found in enumerate(gloo_ranks(4, train)):
            for name, (placed, difference, distance) in found.items():
                with self.subTest(name=name, rank=rank):
                    self.assertTrue(placed)
                    self.assertLess(difference, 1e-6)
                    self.assertLess(distance, 1e-6)

    def test_functions(self):
        for theirs, ours in gloo_ranks(2, functions):
            self.assertEqual(ours, theirs)
            self.assertGreater(sum("Error" in said for said in ours.values()), 10)


if __name__ == "__main__":
    unittest.main()
