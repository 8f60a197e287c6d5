"""Cuts a traced model at its marks into one module per stage, and a graph that calls them.

A value that a later stage uses goes there directly. A stage takes first what other stages made, then the model's own inputs
that it uses. Weights used by several stages belong to all of them.
"""

from __future__ import annotations

import copy
import operator
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ._split_points import is_mark
from ._unflatten import Attribute, outline

PP_SUBMOD_PREFIX = "submod_pp"


def get_submod_name(stage_idx: int) -> str:
    return f"{PP_SUBMOD_PREFIX}_{stage_idx}"


def _look_up(module: torch.nn.Module, name: str) -> Any:
    return operator.attrgetter(name)(module)


class _Names:
    """All names of the tensors of a model, and which of its buffers are not saved."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._of: dict[int, list[str]] = defaultdict(list)
        for name, tensor in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ):
            self._of[id(tensor)].append(name)
        self._transient = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name in module._non_persistent_buffers_set
        }

    def describe(self, traced: torch.nn.Module, target: str) -> Attribute:
        value = _look_up(traced, target)
        names = self._of.get(id(value), [])
        if target in names:  # the traced name first, then the others
            names = [target, *(name for name in names if name != target)]
        known = bool(names)
        is_buffer = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
        persistent = not is_buffer or (known and not self._transient.intersection(names))
        return Attribute(value, tuple(names) or (target,), persistent)


def _stage_of_nodes(nodes: Sequence[fx.Node]) -> tuple[dict[fx.Node, int], int]:
    """The stage of every computing node. Marks with nothing between them, or with nothing on one side, cut nothing."""
    stage_of: dict[fx.Node, int] = {}
    stage, empty = 0, True
    for node in nodes:
        if is_mark(node):
            if not empty:
                stage, empty = stage + 1, True
        elif node.op not in ("placeholder", "get_attr", "output"):
            producer = node.args[0] if node.target is operator.getitem else None
            if producer in stage_of:
                stage_of[node] = stage_of[producer]  # parts of a list stay with it: only tensors travel
            else:
                stage_of[node], empty = stage, False
    return stage_of, stage + (not empty) if stage_of else 1


class _Cut:
    """The nodes of each stage and the values between stages."""

    def __init__(self, traced: fx.GraphModule, model: torch.nn.Module) -> None:
        names = _Names(model)
        nodes = list(traced.graph.nodes)
        self.inputs = [node for node in nodes if node.op == "placeholder"]
        self.output = nodes[-1]
        self.stage_of, self.num_stages = _stage_of_nodes(nodes)
        self.attributes = {
            node: names.describe(traced, str(node.target)) for node in nodes if node.op == "get_attr"
        }
        last = self.num_stages - 1
        self.nodes: list[list[fx.Node]] = [[] for _ in range(self.num_stages)]
        for node, stage in self.stage_of.items():
            self.nodes[stage].append(node)
        results = self.output.all_input_nodes
        self.outputs = [
            [node for node in self.nodes[stage] if node in results or self._leaves(node, stage)]
            for stage in range(self.num_stages)
        ]
        # The last stage returns in the model's order, also a weight that the model returns as it is.
        own = [node for node in results if self.stage_of.get(node) == last or node in self.attributes]
        self.outputs[last] = list(dict.fromkeys(own)) or self.outputs[last]

    def _leaves(self, node: fx.Node, stage: int) -> bool:
        return any(self.stage_of.get(user, stage) != stage for user in node.users)

    def arguments(self, stage: int) -> list[fx.Node]:
        """What a stage takes: other stages' values in their order, then inputs of the model."""
        used = {argument for node in self.nodes[stage] for argument in node.all_input_nodes}
        made = [node for source in range(stage) for node in self.outputs[source] if node in used]
        return made + [node for node in self.inputs if node in used]


def partition(traced: fx.GraphModule, model: torch.nn.Module) -> tuple[fx.GraphModule, int]:
    """The graph that calls the stages as submod_pp_0, submod_pp_1, ...; and their number."""
    cut = _Cut(traced, model)
    graph = fx.Graph()
    stages: dict[str, Any] = {}
    outer: dict[fx.Node, fx.Node] = {}
    for node in cut.inputs:
        outer[node] = graph.node_copy(node)
    for stage in range(cut.num_stages):
        name = get_submod_name(stage)
        arguments, outputs = cut.arguments(stage), cut.outputs[stage]
        stages[name] = outline(cut.nodes[stage], arguments, outputs, cut.attributes)
        call = graph.create_node("call_module", name, tuple(outer[node] for node in arguments), name=name)
        call.meta["stage_idx"] = stage
        if len(outputs) == 1:
            outer[outputs[0]] = call
        for index, node in enumerate(outputs if len(outputs) > 1 else ()):
            outer[node] = graph.call_function(operator.getitem, (call, index))
    graph.output(fx.node.map_arg(cut.output.args[0], outer.__getitem__))
    _keep_signature(traced.graph, graph)
    first = stages[get_submod_name(0)]
    if len(cut.arguments(0)) == len(cut.inputs):
        # The first stage is called as the model was; otherwise by the names of the inputs that it uses.
        _keep_signature(traced.graph, first.graph)
        first.recompile()
    return fx.GraphModule(stages, graph, class_name="Pipe"), cut.num_stages


def _keep_signature(source: fx.Graph, target: fx.Graph) -> None:
    codegen = copy.copy(source._codegen)
    info = getattr(codegen, "pytree_info", None)
    if info is not None:
        codegen.pytree_info = info._replace(out_spec=None)
        target.set_codegen(codegen)
