"""The same model written in C++ and in Python, every schedule: losses, outputs and gradients of the same bits."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from torch import nn

import models
import stagecraft.torch as sc
from stagecraft.torch import _runtime

BINARY = os.environ["STAGECRAFT_GRADIENTS"]
WIDTH, ROWS, MICROBATCHES = 5, 22, 4  # the microbatches are not equal


class Layer(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, x):
        return torch.tanh(nn.functional.linear(x, self.weight, self.bias))


def in_cpp(schedule, ranks, per_rank, weights, biases, x, y):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        given = {"x": x, "y": y}
        for stage, (weight, bias) in enumerate(zip(weights, biases)):
            given |= {f"w{stage}": weight, f"b{stage}": bias}
        for key, tensor in given.items():
            (folder / key).write_bytes(bytes(tensor.flatten().view(torch.uint8).tolist()))
        command = [BINARY, name, schedule, ranks, per_rank, MICROBATCHES, WIDTH, ROWS]
        subprocess.run([str(word) for word in command], check=True)
        names = ["losses", "output", *(f"g{kind}{stage}" for kind in "wb" for stage in range(len(weights)))]
        return {key: torch.frombuffer(bytearray((folder / key).read_bytes()), dtype=torch.double) for key in names}


def in_python(schedule, ranks, per_rank, weights, biases, x, y):
    found = {}

    def program(world):
        stages = models.stages_here(world, schedule, per_rank, make=lambda stage: Layer(weights[stage], biases[stage]))
        pipeline = sc.Pipeline(stages, world=world, schedule=schedule, microbatches=MICROBATCHES, loss=nn.functional.mse_loss)
        result = pipeline.step(x, target=y, return_outputs=True)
        for stage in stages:
            found[f"gw{stage.index}"], found[f"gb{stage.index}"] = stage.submod.weight.grad, stage.submod.bias.grad
        if result.has_loss:
            found["losses"], found["output"] = torch.stack(result.losses), result.output

    sc.run_ranks(program, ranks=ranks, threads_per_rank=1)
    return {name: tensor.detach().flatten() for name, tensor in found.items()}


class BesideCpp(unittest.TestCase):
    def test_every_schedule(self):
        for schedule, _, _, usual in _runtime.known_schedules():
            if schedule == "ForwardOnly":
                continue
            with self.subTest(schedule):
                ranks, per_rank = 2, max(1, usual)
                count = models.count_stages(schedule, ranks, per_rank)
                generator = torch.Generator().manual_seed(count)
                weights = [torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.double) for _ in range(count)]
                biases = [torch.randn(WIDTH, generator=generator, dtype=torch.double) for _ in range(count)]
                x, y = (torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.double) for _ in range(2))
                expected = in_cpp(schedule, ranks, per_rank, weights, biases, x, y)
                got = in_python(schedule, ranks, per_rank, weights, biases, x, y)
                self.assertEqual(got.keys(), expected.keys())
                for name, tensor in expected.items():
                    self.assertTrue(torch.equal(got[name], tensor), name)


if __name__ == "__main__":
    unittest.main()
