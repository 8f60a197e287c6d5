"""Small models, the same everywhere, and what one device computes with them."""

import torch
from torch import nn

import stagecraft.torch as sc


def block(index, width=16, dtype=torch.float32):
    """Layer `index` of the model; its weights depend on the index alone."""
    generator = torch.Generator().manual_seed(1000 + index)
    layer = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return layer.to(dtype)


def blocks(count, **options):
    return [block(index, **options) for index in range(count)]


def batch(rows=12, width=16, seed=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, width, generator=generator).to(dtype), torch.randn(rows, width, generator=generator).to(dtype))


def mean_loss(output, target):
    return nn.functional.mse_loss(output, target)


def stages_here(world, schedule, stages_per_rank=0, make=block, **options):
    """This rank's stages of a model with one block per stage."""
    from stagecraft.torch import _runtime
    from stagecraft.torch._options import schedule_choice

    ranks = _runtime.placement(schedule_choice(schedule), world.size, stages_per_rank)
    return [sc.Stage(make(index), index, prefix=str(index), **options) for index, rank in enumerate(ranks) if rank == world.rank]


def count_stages(schedule, ranks, stages_per_rank=0):
    from stagecraft.torch import _runtime
    from stagecraft.torch._options import schedule_choice

    return len(_runtime.placement(schedule_choice(schedule), ranks, stages_per_rank))


def one_device(modules, inputs, target, microbatches, loss=mean_loss):
    """Losses by microbatch, and {name: gradient} of modules called one after the other."""
    rows = inputs.shape[0]
    losses = []
    for part, wanted in zip(inputs.tensor_split(microbatches), target.tensor_split(microbatches)):
        value = part
        for module in modules:
            value = module(value)
        one = loss(value, wanted)
        one.backward(torch.full_like(one, part.shape[0] / rows))
        losses.append(one.detach())
    gradients = {
        f"{index}.{name}": parameter.grad for index, module in enumerate(modules) for name, parameter in module.named_parameters()
    }
    return losses, gradients


def gradients_of(stages):
    return {
        f"{stage.prefix}.{name}": None if parameter.grad is None else parameter.grad.clone()
        for stage in stages
        for name, parameter in stage.submod.named_parameters()
    }


def stages_in_order(rows):
    """Stages whose weight gradients are added up in the order of the microbatches, as on one device."""
    import re

    last, ordered = {}, {}
    for row in rows:
        for cell in row:
            for stage, kind, microbatch in re.findall(r"(\d+)([A-Z_]+)(\d+)", cell):
                if kind not in ("B", "W"):
                    continue
                stage, microbatch = int(stage), int(microbatch)
                ordered[stage] = ordered.get(stage, True) and microbatch >= last.get(stage, -1)
                last[stage] = microbatch
    return {stage for stage, is_ordered in ordered.items() if is_ordered}


def assert_same_gradients(test, got, expected, in_order, what=""):
    for name, gradient in got.items():
        wanted = expected[name]
        if int(name.split(".")[0]) in in_order:
            test.assertTrue(torch.equal(gradient, wanted), f"{what}: {name} is not the same bit for bit")
        else:
            torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6, msg=lambda text: f"{what}: {name}: {text}")
