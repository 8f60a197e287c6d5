"""Cuts a flat graph at its markers into stages, and writes the graph that calls them.

    x ── submod_pp_0 ──┬── submod_pp_1 ── submod_pp_2 ── out
    y ──────────┘      └──────────────────────┘
    root inputs         a value may skip stages
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from ._split_marker import is_split_marker
from ._split_state import ModelState
from ._unflatten import add_call, add_placeholder, outlined_module, used_outside

PP_SUBMOD_PREFIX = "submod_pp"

Stage = list[fx.Node]


def get_submod_name(stage_idx: int) -> str:
    return f"{PP_SUBMOD_PREFIX}_{stage_idx}"


def cut_at_markers(graph: fx.Graph) -> list[Stage]:
    """The operators of each stage. Markers with nothing between them count as one; one at either end has no effect."""
    stages: list[Stage] = [[]]
    for node in graph.nodes:
        if is_split_marker(node):
            stages.append([])
        elif node.op == "call_module":
            raise ValueError(f"Expected a graph of operators, but '{node.name}' calls module '{node.target}'")
        elif node.op not in ("placeholder", "get_attr", "output"):
            stages[-1].append(node)
    stages = [stage for stage in stages if stage]
    # Operators whose results nobody uses are no stage of their own.
    while len(stages) > 1 and not used_outside(stages[-1]):
        leftover = stages.pop()
        stages[-1].extend(leftover)
    return stages


def refer_to_state(graph: fx.Graph) -> None:
    """Lets users of an in-place update's result refer to the updated parameter or buffer instead.

    They are one tensor. Without this, a buffer updated in two stages would be sent from one to the other.
    """
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not node.args:
            continue
        schema = node.target._schema
        updated = node.args[0]
        if (
            isinstance(updated, fx.Node)
            and updated.op == "get_attr"
            and len(schema.returns) == 1
            and schema.arguments[0].is_write
            and schema.returns[0].alias_info is not None
            and schema.returns[0].alias_info.after_set == schema.arguments[0].alias_info.after_set
        ):
            node.replace_all_uses_with(updated)


class Edges:
    """Which values go into each stage and come out of it."""

    def __init__(self, graph: fx.Graph, stages: list[Stage]) -> None:
        self.stages = stages
        self.root_inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self.output = next(node for node in graph.nodes if node.op == "output")
        self._position = {node: position for position, node in enumerate(graph.nodes)}

    def inputs(self, stage: int) -> list[fx.Node]:
        """Values of earlier stages, then inputs of the model, so that the latter can be given by keyword."""
        inside = set(self.stages[stage])
        used = {
            source
            for node in self.stages[stage]
            for source in node.all_input_nodes
            if source not in inside and source.op != "get_attr"
        }
        return sorted(used, key=lambda node: (node.op == "placeholder", self._position[node]))

    def unused_inputs(self) -> list[fx.Node]:
        """The model's last inputs, if the first stage does not use them: it accepts and ignores them."""
        used = set(self.inputs(0))
        unused: list[fx.Node] = []
        for node in reversed(self.root_inputs):
            if node in used or not isinstance(node.meta.get("val"), torch.Tensor):
                break
            unused.insert(0, node)
        return unused

    def results(self, stage: int) -> list[fx.Node]:
        """Values that later stages or the caller use. Those of the last stage come in the order the model returns them."""
        if stage + 1 < len(self.stages):
            return used_outside(self.stages[stage])
        inside = set(self.stages[stage])
        return [node for node in self.output.all_input_nodes if node in inside or node.op == "get_attr"]


def _first_stage_takes_what_the_model_takes(stage: fx.GraphModule, traced: fx.GraphModule) -> None:
    """Nested and keyword inputs of the model are flattened by the graph's code generator, which the stage takes over."""
    codegen = traced.graph._codegen
    info = getattr(codegen, "pytree_info", None)
    if info is None:
        return
    stage.graph.set_codegen(type(codegen)(info._replace(out_spec=None)))
    stage.recompile()


def split_into_stages(traced: fx.GraphModule, module: nn.Module) -> tuple[fx.GraphModule, int]:
    """A module that calls one submodule per stage and returns the model's flat outputs, and the number of stages."""
    refer_to_state(traced.graph)
    state = ModelState(module, traced)
    edges = Edges(traced.graph, cut_at_markers(traced.graph))
    graph = fx.Graph()
    values = {node: add_placeholder(graph, node) for node in edges.root_inputs}
    root = nn.Module()
    for index, nodes in enumerate(edges.stages):
        inputs, results = edges.inputs(index), edges.results(index)
        optional = edges.unused_inputs() if index == 0 else []
        stage = outlined_module(nodes, inputs, results, state, optional)
        if index == 0 and inputs == edges.root_inputs:
            _first_stage_takes_what_the_model_takes(stage, traced)
        stage.train(module.training)
        name = get_submod_name(index)
        root.add_module(name, stage)
        parts = add_call(graph, name, [values[node] for node in [*inputs, *optional]], results)
        call = next(node for node in reversed(graph.nodes) if node.op == "call_module")
        call.meta["stage_idx"] = index
        values.update(zip(results, parts, strict=True))
    graph.output(fx.map_arg(edges.output.args[0], values.__getitem__))
    split = fx.GraphModule(root, graph)
    split.train(module.training)
    return split, len(edges.stages)


def move_placeholders_to_front(graph: fx.Graph) -> None:
    """Puts all placeholders before the first other node. The order within each kind stays."""
    first_other: Any = None
    for node in list(graph.nodes):
        if node.op != "placeholder":
            first_other = first_other or node
        elif first_other is not None:
            first_other.prepend(node)
