"""A model split into stages."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.distributed import ProcessGroup
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from ._split_partition import get_submod_name, split_into_stages
from ._utils import PipeInfo

logger = logging.getLogger(__name__)

SplitPolicy = Callable[[fx.GraphModule], fx.GraphModule]


def _retarget_devices(stage: nn.Module, device: torch.device) -> None:
    """Export writes the device of the example inputs into operators such as torch.zeros; this writes another one."""

    def retargeted(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    for module in stage.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op != "call_function":
                continue
            node.args = fx.node.map_aggregate(node.args, retargeted)
            kwargs = {name: fx.node.map_aggregate(value, retargeted) for name, value in node.kwargs.items()}
            if "device" in kwargs:
                kwargs["device"] = device
            node.kwargs = kwargs
        module.recompile()


class Pipe(nn.Module):
    """A model as a graph of stages.

    `split_gm` has one submodule per stage, `submod_pp_0`, `submod_pp_1`, ...; a stage holds the part of the model's
    hierarchy that it uses, under the same names. Calling the pipe runs all stages here, and returns the model's outputs as a
    flat tuple.
    """

    def __init__(
        self, split_gm: fx.GraphModule, num_stages: int, has_loss_and_backward: bool, loss_spec: Any = None
    ) -> None:
        super().__init__()
        self.split_gm = split_gm
        self.num_stages = num_stages
        self.has_loss_and_backward = has_loss_and_backward
        self.loss_spec = loss_spec
        self._input_names: list[str] = [node.target for node in split_gm.graph.find_nodes(op="placeholder")]
        #: For each parameter that several stages use: its name in each of them.
        self.replicated_params: list[dict[str, str]] = []
        users: dict[nn.Parameter, dict[str, str]] = {}
        for stage_name, stage in split_gm.named_children():
            for name, parameter in stage.named_parameters():
                users.setdefault(parameter, {})[stage_name] = name
        self.replicated_params = [names for names in users.values() if len(names) > 1]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        values = list(args)
        for name in self._input_names[len(values) :]:
            if name not in kwargs:
                break
            values.append(kwargs.pop(name))
        if kwargs:
            raise TypeError(f"Unexpected or repeated inputs {sorted(kwargs)}; the inputs are {self._input_names}")
        leaves = tree_leaves(values)
        for placeholder in self.split_gm.graph.find_nodes(op="placeholder")[len(leaves) :]:
            # Inputs that are no tensors are constants of the traced graph.
            if not isinstance(placeholder.meta.get("val"), torch.Tensor):
                leaves.append(placeholder.meta.get("val"))
        return self.split_gm(*leaves)

    def get_stage_module(self, stage_idx: int) -> nn.Module:
        if not 0 <= stage_idx < self.num_stages:
            raise ValueError(f"Invalid stage index {stage_idx}!")
        return self.split_gm.get_submodule(get_submod_name(stage_idx))

    def info(self) -> PipeInfo:
        """The graph that calls the stages. It is a copy that refers to no module: other ranks' stages can be freed."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.split_gm.graph, {}))
        return PipeInfo(graph=graph, num_stages=self.num_stages, has_loss_and_backward=self.has_loss_and_backward)

    def build_stage(self, stage_index: int, device: torch.device, group: ProcessGroup | None = None) -> Any:
        """The stage as schedules run it, on the device given.

        A parameter used by several stages stays one tensor while all of them are on its device; a stage that goes to another device gets
        a copy of its own.
        """
        from .stage import _PipelineStage

        stage_module = self.get_stage_module(stage_index)
        device = torch.device(device)
        _retarget_devices(stage_module, device)
        self._unshare_moved(stage_index, device)
        return _PipelineStage(stage_module, stage_index, self.info(), device, group)

    def _unshare_moved(self, stage_index: int, device: torch.device) -> None:
        stage_name = get_submod_name(stage_index)
        stage = self.split_gm.get_submodule(stage_name)
        for names in self.replicated_params:
            if stage_name not in names:
                continue
            parameter = stage.get_parameter(names[stage_name])
            if parameter.is_meta or torch.empty(0, device=device).device == parameter.device:
                continue
            moved = nn.Parameter(parameter.detach().to(device), requires_grad=parameter.requires_grad)
            for owner in stage.modules():
                for name, held in owner._parameters.items():
                    if held is parameter:
                        owner._parameters[name] = moved

    def print_readable(self) -> None:
        """Prints the calling graph and the stages."""
        self.split_gm.print_readable()

    def __str__(self) -> str:
        return str(self.split_gm)

    def __repr__(self) -> str:
        return repr(self.split_gm)

    @staticmethod
    def _trace_with_export(
        mod: nn.Module, example_args: tuple[Any, ...], example_kwargs: dict[str, Any] | None = None
    ) -> ExportedProgram:
        try:
            return torch.export.export(mod, example_args, example_kwargs)
        except Exception as error:
            raise RuntimeError(
                "The model cannot be captured as one graph, which splitting needs. The usual causes are Python control flow that "
                "depends on values or shapes, and operators without a meta implementation; the error above names the place. A model "
                "that cannot be captured can still be cut by hand into one module per stage: see PipelineStage."
            ) from error

    @staticmethod
    def _from_traced(
        mod: nn.Module, exported_program: ExportedProgram, split_policy: SplitPolicy | None = None
    ) -> Pipe:
        traced = exported_program.module(check_guards=False)
        if split_policy is not None:
            traced = split_policy(traced)
        split, num_stages = split_into_stages(traced, mod)
        logger.debug("Split model:\n%s", split)
        return Pipe(split, num_stages, has_loss_and_backward=False)

    @staticmethod
    def from_tracing(
        mod: nn.Module,
        example_args: tuple[Any, ...],
        example_kwargs: dict[str, Any] | None = None,
        split_policy: SplitPolicy | None = None,
    ) -> Pipe:
        """Splits at the markers that the model itself calls, or that the policy inserts into the exported graph."""
        exported = Pipe._trace_with_export(mod, example_args, example_kwargs)
        pipe = Pipe._from_traced(mod, exported, split_policy)
        pipe._input_names = _input_names(mod, example_args, example_kwargs)
        return pipe


def _input_names(mod: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[str]:
    """What the inputs given are called in the model's forward."""
    positional = [
        parameter.name
        for parameter in inspect.signature(mod.forward).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    # The inputs of *args have no names; numbers cannot be mistaken for keywords.
    positional += [str(index) for index in range(len(positional), len(args))]
    return [*positional[: len(args)], *(kwargs or {})]
