"""Splits a model into stages by tracing it."""

from __future__ import annotations

from contextlib import nullcontext
from enum import Enum
from typing import Any

import torch
from torch import fx

from ._partition import PP_SUBMOD_PREFIX, get_submod_name
from ._pipe import Pipe, SplitPolicy
from ._split_points import (
    PipeSplitWrapper,
    SplitPoint,
    aten_pipe_split_alias,
    annotate_split_points,
    annotated,
    pipe_split,
)

__all__ = ["Pipe", "PipeSplitWrapper", "SplitPoint", "annotate_split_points", "pipe_split", "pipeline"]


class MultiUseParameterConfig(Enum):
    """What happens to a parameter that several stages use. Only REPLICATE exists: every such stage has it."""

    TRANSMIT = 1
    REPLICATE = 2


class PipeSequential(torch.nn.Sequential):
    """A Sequential whose members are stages."""

    @staticmethod
    def from_sequential(sequential_instance: torch.nn.Sequential) -> PipeSequential:
        return PipeSequential(*sequential_instance)

    def forward(self, input: Any) -> Any:
        for index, module in enumerate(self):
            if index > 0:
                pipe_split()
            input = module(input)
        return input


class LossWrapper(torch.nn.Module):
    """A model with its loss. A subclass's forward says how they are connected."""

    def __init__(self, module: torch.nn.Module, loss_fn: Any) -> None:
        super().__init__()
        self.module = module
        self.loss_fn = loss_fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("A LossWrapper needs a forward that runs self.module and self.loss_fn")


class TrivialLossWrapper(LossWrapper):
    """The loss of the model's output and a target."""

    loss_spec = True

    def forward(self, x: Any, targets: Any) -> Any:
        return self.loss_fn(self.module(x), targets)


def _move_placeholders_to_front(graph: fx.Graph) -> None:
    """Puts all placeholders before all other nodes; both keep their order."""
    others = [node for node in graph.nodes if node.op != "placeholder"]
    if not others:
        return
    first = others[0]
    after_other = False
    for node in list(graph.nodes):
        if node.op != "placeholder":
            after_other = True
        elif after_other:
            first.prepend(node)


def pipeline(
    module: torch.nn.Module,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: dict[str, SplitPoint] | None = None,
    split_policy: SplitPolicy | None = None,
) -> Pipe:
    """Splits a model.

    mb_args, mb_kwargs: an example of one microbatch's arguments.
    split_spec: names of submodules before (BEGINNING) or after (END) which to cut. Without it the model calls pipe_split(), or
    split_policy: gets the traced model and returns it with calls of pipe_split inserted.
    """
    if split_spec is not None and split_policy is not None:
        raise ValueError("Cannot specify both `split_spec` and `split_policy`. Please use only one of them.")
    with annotated(module, split_spec) if split_spec is not None else nullcontext():
        return Pipe.from_tracing(module, mb_args, mb_kwargs, split_policy)
