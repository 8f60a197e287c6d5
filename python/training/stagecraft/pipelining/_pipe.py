"""A model split into stages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.distributed import ProcessGroup
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_unflatten

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
        return _WholeRun(self.split_gm).run(*_flat_inputs(self.split_gm.graph, args, kwargs), enable_io_processing=False)

    def get_stage_module(self, stage_idx: int) -> torch.nn.Module:
        if not 0 <= stage_idx < self.num_stages:
            raise ValueError(f"Invalid stage index {stage_idx}!")
        return getattr(self.split_gm, get_submod_name(stage_idx))

    def info(self) -> PipeInfo:
        """What build_stage needs beside a stage's module. A copy of the graph, as the original keeps all stages alive."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.split_gm.graph, {}))
        return PipeInfo(graph, self.num_stages, self.has_loss_and_backward)

    def build_stage(
        self, stage_index: int, device: torch.device, group: ProcessGroup | None = None
    ) -> _PipelineStage:
        """A stage to run with a schedule.

        A parameter shared with another stage stays shared where it is; a stage on another device gets a copy.
        """
        module = self.get_stage_module(stage_index)
        _create_tensors_on(module, torch.device(device))
        self._copy_shared_to(stage_index, torch.device(device))
        return _PipelineStage(module, stage_index, self.info(), device, group)

    def _copy_shared_to(self, stage_index: int, device: torch.device) -> None:
        stage, module = get_submod_name(stage_index), self.get_stage_module(stage_index)
        for names in self.replicated_params:
            if stage not in names:
                continue
            shared = module.get_parameter(names[stage])
            # A device without an index means the current one.
            if shared.is_meta or torch.empty(0, device=device).device == shared.device:
                continue
            own = torch.nn.Parameter(shared.detach().to(device), requires_grad=shared.requires_grad)
            for owner in module.modules():
                for name, parameter in owner._parameters.items():
                    if parameter is shared:
                        owner._parameters[name] = own

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
        _refer_to_updated_state(traced.graph)
        split, num_stages = partition(traced, mod)
        logger.debug("split into %d stages:\n%s", num_stages, split)
        return Pipe(split, num_stages)


class _WholeRun(fx.Interpreter):
    """Runs all stages. The graph has the model's inputs as separate values; the first stage takes them as the model does."""

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        stage = self.fetch_attr(target)
        info = getattr(stage.graph._codegen, "pytree_info", None)
        if info is not None:
            args, kwargs = tree_unflatten(args, info.in_spec)
        return stage(*args, **kwargs)


def _flat_inputs(graph: fx.Graph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The model's inputs as the graph takes them. An input that was a keyword in the trace may be given by position."""
    info = getattr(graph._codegen, "pytree_info", None)
    if info is None:
        return [*args, *kwargs.values()]
    positional, keywords = info.in_spec.children()
    given = dict(zip(info.orig_args, args, strict=False)) | kwargs
    for placeholder in graph.find_nodes(op="placeholder"):
        if not isinstance(placeholder.meta.get("val"), torch.Tensor):  # a constant of the trace
            given.setdefault(placeholder.target, placeholder.meta.get("val"))
    if len(args) > len(info.orig_args) or set(kwargs) & set(info.orig_args[: len(args)]) or set(given) - set(info.orig_args):
        raise TypeError(f"The inputs are {info.orig_args}; got {len(args)} by position and {sorted(kwargs)} by keyword")
    if missing := [name for name in info.orig_args if name not in given]:
        raise TypeError(f"Missing inputs: {missing}")
    values = [given[name] for name in info.orig_args]
    first = positional.num_children
    flat, spec = tree_flatten((tuple(values[:first]), dict(zip(keywords.context or (), values[first:], strict=True))))
    if spec != info.in_spec:
        raise TypeError(f"Expected inputs of the structure {info.in_spec}, got {spec}")
    return flat


def _refer_to_updated_state(graph: fx.Graph) -> None:
    """Uses of what an in-place update of a buffer returns become uses of the buffer.

    They are one tensor. Otherwise a buffer that two stages update would be sent from one to the other.
    """
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not node.args:
            continue
        updated, schema = node.args[0], node.target._schema
        if not isinstance(updated, fx.Node) or updated.op != "get_attr" or len(schema.returns) != 1:
            continue
        taken, returned = schema.arguments[0].alias_info, schema.returns[0].alias_info
        if taken is not None and returned is not None and taken.is_write and taken.after_set == returned.after_set:
            node.replace_all_uses_with(updated)


def _create_tensors_on(module: torch.nn.Module, device: torch.device) -> None:
    """Calls such as zeros, arange and to were traced with the device of the trace: they get the stage's."""

    def moved(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    for one in module.modules():
        if not isinstance(one, fx.GraphModule):
            continue
        for node in one.graph.nodes:
            if node.op == "call_function":
                node.args = fx.node.map_aggregate(node.args, moved)
                node.kwargs = fx.node.map_aggregate(dict(node.kwargs), moved)
        one.recompile()
