"""The same model and data through the installed package (all stages on one rank) and through ours (ranks as threads)."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import settings
import tally
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

BINARY = os.environ.get("STAGECRAFT_GRADIENTS")
WIDTH, ROWS = 5, 24

# Ours: schedule, ranks, stages per rank. Theirs runs as many stages under the three schedules it has for one rank.
OURS = (
    ("GPipe", 4, 1), ("1F1B", 4, 1), ("1F1B", 2, 1), ("Eager1F1B", 3, 1), ("ZB-H1", 4, 1), ("ZB-H2", 3, 1), ("LoopedBFS", 2, 2),
    ("Interleaved1F1B", 2, 2), ("Interleaved1F1B", 1, 4), ("InterleavedZeroBubble", 2, 2), ("InterleavedZeroBubble", 2, 3),
    ("ZBVZeroBubble", 2, 2), ("V-Half", 2, 2), ("V-Min", 2, 2), ("1F1B-V", 2, 2), ("DualPipeV", 2, 2),
)
THEIRS = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")


class Layer(torch.nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(weight.clone()), torch.nn.Parameter(bias.clone())

    def forward(self, x):
        return torch.tanh(torch.nn.functional.linear(x, self.weight, self.bias))


def theirs(name, weights, biases, x, y, microbatches):
    layers = [Layer(w, b) for w, b in zip(weights, biases)]
    stages = [PipelineStage(layer, i, len(layers), torch.device("cpu")) for i, layer in enumerate(layers)]
    schedule = get_schedule_class(name)(stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
    losses = []
    output = schedule.step(x, target=y, losses=losses)
    return [layer.weight.grad for layer in layers], [layer.bias.grad for layer in layers], losses, output


@unittest.skipUnless(BINARY, "built without LibTorch: set STAGECRAFT_GRADIENTS to parity_gradients")
class Gradients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def same(self, ours, reference, what):
        scale = max(reference.abs().max().item(), 1e-300)
        self.assertLessEqual((ours - reference).abs().max().item() / scale, 1e-12, what)

    def test_same_gradients_losses_and_outputs(self):
        for index, (schedule, ranks, per_rank) in enumerate(OURS):
            for microbatches in (4, 8) if settings.ALL else (4 + 4 * (index % 2),):
                stages = ranks * per_rank
                torch.manual_seed(index)
                weights = [torch.randn(WIDTH, WIDTH, dtype=torch.double) for _ in range(stages)]
                biases = [torch.randn(WIDTH, dtype=torch.double) for _ in range(stages)]
                x, y = torch.randn(ROWS, WIDTH, dtype=torch.double), torch.randn(ROWS, WIDTH, dtype=torch.double)
                name = THEIRS[index % len(THEIRS)]
                with self.subTest(ours=schedule, theirs=name, ranks=ranks, per_rank=per_rank, microbatches=microbatches):
                    expected = theirs(name, weights, biases, x, y, microbatches)
                    with tempfile.TemporaryDirectory() as folder:
                        self.compare(pathlib.Path(folder), schedule, ranks, per_rank, microbatches, weights, biases, x, y, expected)

    def compare(self, folder, schedule, ranks, per_rank, microbatches, weights, biases, x, y, expected):
        for name, tensor in {"x": x, "y": y, **{f"w{i}": w for i, w in enumerate(weights)}, **{f"b{i}": b for i, b in enumerate(biases)}}.items():
            (folder / name).write_bytes(bytes(tensor.contiguous().untyped_storage()))
        subprocess.run([BINARY, str(folder), schedule, *map(str, (ranks, per_rank, microbatches, WIDTH, ROWS))], check=True)

        def read(name, shape):
            return torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=torch.double).view(shape)

        grad_weights, grad_biases, losses, output = expected
        for i in range(len(weights)):
            self.same(read(f"gw{i}", (WIDTH, WIDTH)), grad_weights[i], f"weight gradient of stage {i}")
            self.same(read(f"gb{i}", (WIDTH,)), grad_biases[i], f"bias gradient of stage {i}")
            tally.count(f"{schedule} {ranks} {per_rank} {microbatches}: gradients of stage {i}")
        self.same(read("losses", (microbatches,)).sort()[0], torch.stack(losses).detach().sort()[0], "losses")
        self.same(read("output", (ROWS, WIDTH)), output.detach(), "output")


if __name__ == "__main__":
    unittest.main()
