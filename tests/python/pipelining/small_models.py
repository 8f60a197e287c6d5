"""Small models and their gradients on one device, to compare pipelines with."""

import torch

from stagecraft.pipelining import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from stagecraft.pipelining._utils import generate_rank_to_stage_mapping
from stagecraft.pipelining.schedules import PipelineScheduleSingle

WIDTH = 6
SCHEDULES = (
    ScheduleGPipe,
    Schedule1F1B,
    ScheduleLoopedBFS,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    ScheduleDualPipeV,
)
IN_A_V = (ScheduleZBVZeroBubble, ScheduleDualPipeV)


class Layer(torch.nn.Module):
    """Uses a weight twice, and one beside the path from input to output."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)
        self.shared = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.beside = torch.nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        x = torch.tanh(self.inner(x) @ self.shared)
        return x @ self.shared + torch.sigmoid(self.beside)


def layers(count, seed=0):
    torch.manual_seed(seed)
    return torch.nn.ModuleList(Layer() for _ in range(count)).double()


def batch(rows, seed=1):
    torch.manual_seed(seed)
    return torch.randn(rows, WIDTH, dtype=torch.double), torch.randn(rows, WIDTH, dtype=torch.double)


def mean_loss(output, target):
    return ((output - target) ** 2).mean()


def on_one_device(model, x, target, loss_fn=mean_loss, steps=1):
    """Output, loss and gradients of an ordinary training step; the model's gradients are cleared afterwards."""
    for _ in range(steps):
        output = x
        for layer in model:
            output = layer(output)
        loss = loss_fn(output, target)
        loss.backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return output.detach(), loss.detach(), grads


def stage_numbers(kind, rank, ranks, per_rank):
    style = "v" if kind in IN_A_V else "loop"
    return generate_rank_to_stage_mapping(ranks, ranks * per_rank, style)[rank]


def stages_per_rank(kind, wanted=2):
    if issubclass(kind, PipelineScheduleSingle):
        return 1
    return 2 if kind in IN_A_V else wanted
