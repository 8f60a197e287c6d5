"""The names of torch.distributed.pipelining._IR: splits a model into stages."""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any

import torch
from torch import nn

from ._pipe import Pipe, SplitPolicy
from ._split_marker import (
    PipeSplitWrapper,
    SplitPoint,
    annotate_split_points,
    aten_pipe_split_alias,
    pipe_split,
    split_points,
)
from ._split_partition import PP_SUBMOD_PREFIX, get_submod_name
from ._split_partition import move_placeholders_to_front as _move_placeholders_to_front
from ._utils import PipeInfo

__all__ = [
    "PP_SUBMOD_PREFIX",
    "LossWrapper",
    "MultiUseParamSpec",
    "MultiUseParameterConfig",
    "Pipe",
    "PipeInfo",
    "PipeSequential",
    "PipeSplitWrapper",
    "SplitPoint",
    "TrivialLossWrapper",
    "_move_placeholders_to_front",
    "annotate_split_points",
    "aten_pipe_split_alias",
    "get_submod_name",
    "pipe_split",
    "pipeline",
]


class MultiUseParameterConfig(Enum):
    """What happens to a parameter that several stages use. Pipes replicate; the other is a name only."""

    TRANSMIT = 1
    REPLICATE = 2


MultiUseParamSpec = MultiUseParameterConfig | dict[str, MultiUseParameterConfig]


class PipeSequential(nn.Sequential):
    """A sequential model with a stage per layer."""

    @staticmethod
    def from_sequential(sequential_instance: nn.Sequential) -> PipeSequential:
        return PipeSequential(*(copy.copy(layer) for layer in sequential_instance))

    def forward(self, input: Any) -> Any:
        for index, layer in enumerate(self):
            if index:
                pipe_split()
            input = layer(input)
        return input


class LossWrapper(nn.Module):
    """A model together with its loss. Derive from it and write a forward that calls `self.module` and `self.loss_fn`."""

    def __init__(self, module: nn.Module, loss_fn: Any) -> None:
        super().__init__()
        self.module = module
        self.loss_fn = loss_fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define forward(): how inputs reach the model and the loss")


class TrivialLossWrapper(LossWrapper):
    """One input, one target, the loss as only output."""

    loss_spec = True

    def forward(self, x: Any, targets: Any) -> torch.Tensor:
        return self.loss_fn(self.module(x), targets)


def pipeline(
    module: nn.Module,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: dict[str, SplitPoint] | None = None,
    split_policy: SplitPolicy | None = None,
) -> Pipe:
    """Splits a model into stages. The model itself stays as it is; the stages share its parameters.

    The model is cut where it calls `pipe_split()`, before or after the submodules that `split_spec` names, or where
    `split_policy` inserts calls of `pipe_split` into the exported graph.

    `mb_args` and `mb_kwargs` are example inputs with the shapes of one microbatch.
    """
    if split_spec is not None and split_policy is not None:
        raise ValueError("Cannot specify both `split_spec` and `split_policy`. Please use only one of them.")
    with split_points(module, split_spec):
        return Pipe.from_tracing(module, mb_args, mb_kwargs, split_policy)
