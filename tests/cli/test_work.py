"""Estimates of work: products count as PyTorch's own counter counts them; what only goes through memory counts by its size."""

import json
import unittest

import exported
import torch
from command_case import CommandCase
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def random(*shapes):
    return tuple(torch.randn(*shape) for shape in shapes)


# What PyTorch counts; the module, its inputs, and the operators of the exported program that are counted.
PRODUCTS = {
    "linear": (nn.Linear(16, 32), random((4, 8, 16)), "aten::linear"),
    "matmul": (Function(torch.matmul), random((4, 8, 16), (4, 16, 32)), "aten::matmul"),
    "bmm": (Function(torch.bmm), random((4, 8, 16), (4, 16, 32)), "aten::bmm"),
    "addmm": (Function(torch.addmm), random((8, 32), (8, 16), (16, 32)), "aten::addmm"),
    "baddbmm": (Function(torch.baddbmm), random((4, 8, 32), (4, 8, 16), (4, 16, 32)), "aten::baddbmm"),
    "einsum": (Function(lambda a, b: torch.einsum("bhij,bjk->bhik", a, b)), random((2, 3, 4, 5), (2, 5, 6)), "aten::einsum"),
    "einsum of three": (Function(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c)), random((8, 5), (5, 6), (6, 7)), "aten::einsum"),
    "einsum with dots": (Function(lambda a, b: torch.einsum("...ij,jk->...ik", a, b)), random((2, 3, 4, 5), (5, 6)), "aten::einsum"),
    "tensordot": (Function(lambda a, b: torch.tensordot(a, b, ([1, 2], [0, 1]))), random((4, 5, 6), (5, 6, 7)), "aten::tensordot"),
    "conv1d": (nn.Conv1d(6, 8, 3), random((2, 6, 20)), "aten::conv1d"),
    "conv2d": (nn.Conv2d(6, 8, 3, stride=2, padding=1), random((2, 6, 20, 20)), "aten::conv2d"),
    "depthwise": (nn.Conv2d(6, 12, 3, groups=6), random((2, 6, 20, 20)), "aten::conv2d"),
    "transposed": (nn.ConvTranspose2d(6, 8, 3, stride=2), random((2, 6, 10, 10)), "aten::conv_transpose2d"),
    "transposed in groups": (nn.ConvTranspose2d(6, 8, 3, groups=2), random((2, 6, 10, 10)), "aten::conv_transpose2d"),
    "attention": (Function(F.scaled_dot_product_attention), random((2, 4, 8, 16), (2, 4, 10, 16), (2, 4, 10, 16)),
                  "aten::scaled_dot_product_attention"),
}  # fmt: skip

# What should count about as much as so many elements that are read or written.
MEMORY = {
    "sum": (Function(lambda x: x.sum(-1)), random((64, 512)), 64 * 512),
    "norm": (nn.LayerNorm(512), random((64, 512)), 64 * 512),
    "group norm": (nn.GroupNorm(4, 8), random((4, 8, 32, 32)), 4 * 8 * 32 * 32),
    "batch norm": (nn.BatchNorm2d(8), random((4, 8, 32, 32)), 4 * 8 * 32 * 32),
    "embedding": (nn.Embedding(5000, 16), (torch.zeros(4, 8, dtype=torch.long),), 4 * 8 * 16),
    "gather": (Function(lambda x: x.gather(1, torch.zeros(64, 3, dtype=torch.long))), random((64, 512)), 64 * 3),
    "cumsum": (Function(lambda x: x.cumsum(1)), random((64, 512)), 64 * 512),
    "pool": (nn.MaxPool2d(2), random((4, 8, 32, 32)), 4 * 8 * 32 * 32),
    "interpolate": (Function(lambda x: F.interpolate(x, scale_factor=2.0)), random((4, 8, 16, 16)), 4 * 8 * 32 * 32),
    "view": (Function(lambda x: x.view(-1, 2)), random((64, 512)), 0),
}  # fmt: skip


class Work(exported.ExportCase, CommandCase):
    def work(self, name, model, inputs):
        path = self.saved(name.replace(" ", "_") + ".pt2", lambda: exported.export(model, inputs))
        report = json.loads(self.output("model", path, "--format", "json"))
        return report["work"], {one["name"].split(".")[0]: one["work"] for one in report["operators"]}

    def test_products(self):
        for name, (model, inputs, operator) in PRODUCTS.items():
            with self.subTest(name):
                with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
                    model(*inputs)
                _, by_operator = self.work(name, model, inputs)
                self.assertEqual(by_operator[operator], counter.get_total_flops())

    def test_grouped_product(self):
        def function(x, weight, ends):
            return torch._grouped_mm(x, weight, offs=ends)

        inputs = (torch.randn(64, 16).bfloat16(), torch.randn(4, 16, 32).bfloat16(), torch.arange(16, 65, 16, dtype=torch.int32))
        _, by_operator = self.work("grouped", Function(function), inputs)
        self.assertEqual(by_operator["aten::_grouped_mm"], 2 * 64 * 16 * 32)

    def test_recurrent(self):
        """Within a fifth of the products of all steps, layers and directions."""
        for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
            for layers, directions in ((1, 1), (2, 2)):
                model = getattr(nn, kind)(64, 128, num_layers=layers, bidirectional=directions == 2, batch_first=True)
                products = 0
                for layer in range(layers):
                    products += 2 * 4 * 10 * directions * gates * 128 * ((64 if layer == 0 else 128 * directions) + 128)
                total, _ = self.work(f"{kind}_{layers}", model, random((4, 10, 64)))
                self.assertLess(abs(total / products - 1), 0.2, f"{kind}, {layers} layers")

    def test_memory(self):
        for name, (model, inputs, elements) in MEMORY.items():
            with self.subTest(name):
                total, _ = self.work(name, model, inputs)
                self.assertGreaterEqual(total, 10 * elements)
                self.assertLessEqual(total, 12 * elements + 3000)

    def test_more_than_one_pass(self):
        length = 1024
        for name, function in (("sort", lambda x: x.sort(-1)[0]), ("fft", torch.fft.fft)):
            with self.subTest(name):
                total, _ = self.work(name, Function(function), random((8, length)))
                self.assertGreater(total, 4 * 8 * length * 10)
                self.assertLess(total, 30 * 8 * length * 10)


if __name__ == "__main__":
    unittest.main()
