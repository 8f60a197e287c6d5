"""A model split into stages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.distributed import ProcessGroup
from torch.export import ExportedProgram

from ._partition import get_submod_name, partition
from ._traced_stage import _PipelineStage
from ._utils import PipeInfo

logger = logging.getLogger("stagecraft.pipelining")

SplitPolicy = Callable[[fx.GraphModule], fx.GraphModule]


class Pipe(torch.nn.Module):
    """The stages of a model, and the graph that connects them. Calling it runs all stages in this process.

    replicated_params names the parameters that several stages use: one dictionary per parameter, from stage to name. In this
    process the stages share them; where stages are in different processes their gradients have to be summed before an update.
    """

    def __init__(
        self, split_gm: fx.GraphModule, num_stages: int, has_loss_and_backward: bool = False, loss_spec: Any = None
    ) -> None:
        super().__init__()
        self.split_gm = split_gm
        self.num_stages = num_stages
        self.has_loss_and_backward = has_loss_and_backward
        self.loss_spec = loss_spec
        users: dict[torch.nn.Parameter, dict[str, str]] = {}
        for stage, module in split_gm.named_children():
            for name, parameter in module.named_parameters():
                users.setdefault(parameter, {})[stage] = name
        self.replicated_params = [names for names in users.values() if len(names) > 1]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """All outputs of the model, flat, as a tuple."""
        return self.split_gm(*args, **kwargs)

    def get_stage_module(self, stage_idx: int) -> torch.nn.Module:
        if not 0 <= stage_idx < self.num_stages:
            raise ValueError(f"Invalid stage index {stage_idx}!")
        return getattr(self.split_gm, get_submod_name(stage_idx))

    def info(self) -> PipeInfo:
        """What build_stage needs beside a stage's module."""
        return PipeInfo(self.split_gm.graph, self.num_stages, self.has_loss_and_backward)

    def build_stage(
        self, stage_index: int, device: torch.device, group: ProcessGroup | None = None
    ) -> _PipelineStage:
        """A stage to run with a schedule."""
        module = self.get_stage_module(stage_index)
        _create_tensors_on(module, torch.device(device))
        return _PipelineStage(module, stage_index, self.info(), device, group)

    def print_readable(self) -> None:
        self.split_gm.print_readable()

    def __str__(self) -> str:
        return str(self.split_gm)

    def __repr__(self) -> str:
        return repr(self.split_gm)

    @staticmethod
    def from_tracing(
        mod: torch.nn.Module,
        example_args: tuple[Any, ...],
        example_kwargs: dict[str, Any] | None = None,
        split_policy: SplitPolicy | None = None,
    ) -> Pipe:
        """Traces a model that contains pipe_split(), or that split_policy will put it into, and cuts it there."""
        program = Pipe._trace_with_export(mod, example_args, example_kwargs)
        return Pipe._from_traced(mod, program, split_policy=split_policy)

    @staticmethod
    def _trace_with_export(
        mod: torch.nn.Module, example_args: tuple[Any, ...], example_kwargs: dict[str, Any] | None = None
    ) -> ExportedProgram:
        try:
            return torch.export.export(mod, example_args, example_kwargs)
        except Exception as error:
            raise RuntimeError(
                "It seems that we cannot capture your model as a full graph. Control flow that depends on data, or an "
                "operator that cannot run without data, may be the reason. Change it, or make the stages by hand "
                "(PipelineStage). What can be captured: https://pytorch.org/docs/stable/export.html"
            ) from error

    @staticmethod
    def _from_traced(
        mod: torch.nn.Module,
        exported_program: ExportedProgram,
        multi_use_param_spec: Any = None,
        output_loss_value_spec: Any = None,
        split_policy: SplitPolicy | None = None,
    ) -> Pipe:
        if output_loss_value_spec is not None:
            raise NotImplementedError("A loss inside the model is not split off: give the schedule a loss_fn")
        traced = exported_program.module(check_guards=False)
        if split_policy is not None:
            traced = split_policy(traced)
        split, num_stages = partition(traced, mod)
        logger.debug("split into %d stages:\n%s", num_stages, split)
        return Pipe(split, num_stages)


def _create_tensors_on(module: torch.nn.Module, device: torch.device) -> None:
    """Factory calls (zeros, arange) were traced with the device of the trace: they get the stage's."""
    for one in module.modules():
        if not isinstance(one, fx.GraphModule):
            continue
        stale = [
            node
            for node in one.graph.nodes
            if node.op == "call_function" and node.kwargs.get("device") not in (None, device)
        ]
        for node in stale:
            node.update_kwarg("device", device)
        if stale:
            one.recompile()
