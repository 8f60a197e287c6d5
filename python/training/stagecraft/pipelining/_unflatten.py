"""Rebuilds the module hierarchy of a flat graph.

torch.export inlines all submodules into one list of operators, and notes on each the module calls it was made in:

    linear    "" > layers.0 > layers.0.lin            stage
    relu      "" > layers.0                  ->       └── layers.0:  lin, relu
    linear_1  "" > head                               └── head:      linear

Each run of operators from one call becomes a GraphModule at the path of the module called, with the module's name for its
state. Parameters a module uses but does not contain are passed to it as inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from torch import fx, nn

from ._split_state import ModelState, place_module, relative_name

_STATE_NAME = "stagecraft_state"

Call = tuple[str, str]  # a key that differs between two calls of a module, and the module's name


def _module_calls(nodes: Sequence[fx.Node]) -> dict[fx.Node, tuple[Call, ...]]:
    """The module calls around each node, the root's left out. A node without a note is taken to be where its predecessor is."""
    calls: dict[fx.Node, tuple[Call, ...]] = {}
    latest: tuple[Call, ...] = ()
    for node in nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            latest = tuple((key, entry[0]) for key, entry in stack.items() if entry[0])
        calls[node] = latest
    return calls


def _shape_of(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """The graph without names: equal for two calls of a module that do the same."""
    position = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    return [
        (
            node.op,
            None if node.op == "placeholder" else node.target,
            fx.map_arg(node.args, position.__getitem__),
            fx.map_arg(node.kwargs, position.__getitem__),
        )
        for node in graph.nodes
    ]


def used_outside(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    inside = set(nodes)
    return [node for node in nodes if any(user not in inside for user in node.users)]


def add_call(graph: fx.Graph, target: str, args: Sequence[fx.Node], results: Sequence[fx.Node]) -> list[fx.Node]:
    """Calls a module that returns its only result bare and several as a tuple. Returns the nodes that stand for them."""
    call = graph.call_module(target, tuple(args))
    if len(results) == 1:
        call.meta.update(_value_of(results[0]))
        return [call]
    call.meta["val"] = tuple(result.meta.get("val") for result in results)
    parts = []
    for index, result in enumerate(results):
        part = graph.call_function(operator.getitem, (call, index))
        part.meta.update(_value_of(result))
        parts.append(part)
    return parts


def add_placeholder(graph: fx.Graph, source: fx.Node, **default: Any) -> fx.Node:
    name = source.target if source.op == "placeholder" else source.name
    placeholder = graph.placeholder(name, **default)
    placeholder.meta.update(_value_of(source))
    return placeholder


def _value_of(node: fx.Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}


class _Frame:
    """The graph of one module, and the node that stands in it for each traced value."""

    def __init__(self, fqn: str, state: ModelState | None) -> None:
        self.fqn = fqn
        self.graph = fx.Graph()
        self.nodes: dict[fx.Node, fx.Node] = {}
        self._state = state

    def local(self, source: fx.Node) -> fx.Node:
        if source not in self.nodes:
            if source.op != "get_attr" or self._state is None:
                raise AssertionError(f"'{source.name}' is used in '{self.fqn}' before it is computed")
            self.nodes[source] = self.graph.get_attr(self._state.name_within(source, self.fqn))
            self.nodes[source].meta = {**source.meta, _STATE_NAME: source.target}
        return self.nodes[source]

    def copy(self, source: fx.Node) -> None:
        self.nodes[source] = self.graph.node_copy(source, self.local)

    def finish(self, results: Sequence[fx.Node]) -> fx.Graph:
        values = tuple(self.local(result) for result in results)
        self.graph.output(values[0] if len(values) == 1 else values)
        return self.graph


class _Outliner:
    def __init__(self, nodes: Sequence[fx.Node], state: ModelState | None) -> None:
        self._state = state
        self._calls = _module_calls(nodes)
        self.graphs: dict[str, fx.Graph] = {}

    def emit(self, frame: _Frame, nodes: Sequence[fx.Node], depth: int) -> None:
        def call_at_depth(node: fx.Node) -> Call | None:
            calls = self._calls[node]
            return calls[depth] if depth < len(calls) else None

        for call, group in groupby(nodes, key=call_at_depth):
            run = list(group)
            if call is None:
                for node in run:
                    frame.copy(node)
            elif not self._outline(frame, call[1], run, depth + 1):
                self.emit(frame, run, depth + 1)

    def _outline(self, frame: _Frame, fqn: str, run: list[fx.Node], depth: int) -> bool:
        """Makes a module of the run and calls it. Returns false where that is impossible: the run then stays inline.

        Impossible are a module that the caller does not contain, and a second call that does something else than the first.
        """
        target = relative_name(fqn, frame.fqn)
        if not target or fqn == frame.fqn:
            return False
        inside = set(run)
        inputs = dict.fromkeys(
            source
            for node in run
            for source in node.all_input_nodes
            if source not in inside and not self._holds(fqn, source)
        )
        results = used_outside(run)
        before = dict(self.graphs)
        callee = _Frame(fqn, self._state)
        for source in inputs:
            callee.nodes[source] = add_placeholder(callee.graph, source)
        self.emit(callee, run, depth)
        graph = callee.finish(results)
        if fqn in before and _shape_of(before[fqn]) != _shape_of(graph):
            self.graphs = before
            return False
        self.graphs.setdefault(fqn, graph)
        parts = add_call(frame.graph, target, [frame.local(source) for source in inputs], results)
        frame.nodes.update(zip(results, parts, strict=True))
        return True

    def _holds(self, fqn: str, source: fx.Node) -> bool:
        return source.op == "get_attr" and self._state is not None and self._state.name_within(source, fqn) is not None


def _graph_module(graph: fx.Graph) -> fx.GraphModule:
    # The graph is set after construction: the constructor would look for state that is not there yet.
    module = fx.GraphModule(nn.Module(), fx.Graph())
    module.graph = graph
    return module


def outlined_module(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    results: Sequence[fx.Node],
    state: ModelState | None,
    optional: Sequence[fx.Node] = (),
) -> fx.GraphModule:
    """A module with its submodules and state out of consecutive nodes of a flat graph.

    The inputs come in the order given, then the optional ones, which default to None. One result is returned bare,
    several as a tuple.
    """
    root = _Frame("", state)
    for source in inputs:
        root.nodes[source] = add_placeholder(root.graph, source)
    for source in optional:
        root.nodes[source] = add_placeholder(root.graph, source, default_value=None)
    outliner = _Outliner(nodes, state)
    outliner.emit(root, nodes, 0)
    module = _graph_module(root.finish(results))
    names = outliner.graphs if state is None else state.in_model_order(outliner.graphs)
    for fqn in names:
        place_module(module, fqn, _graph_module(outliner.graphs[fqn]))
    if state is not None:
        used = {}
        for fqn, graph in {"": module.graph, **outliner.graphs}.items():
            for node in graph.find_nodes(op="get_attr"):
                used[f"{fqn}.{node.target}".lstrip(".")] = state.value(node.meta[_STATE_NAME])
        state.give(module, used)
    for submodule in module.modules():
        if isinstance(submodule, fx.GraphModule):
            submodule.graph.lint()
    return module


def _outline_submodules(orig_graph: fx.Graph) -> fx.GraphModule:
    """The same graph with the module hierarchy noted on its nodes. State must already be among its inputs."""
    nodes = [node for node in orig_graph.nodes if node.op not in ("placeholder", "output")]
    inputs = [node for node in orig_graph.nodes if node.op == "placeholder"]
    (output,) = [node for node in orig_graph.nodes if node.op == "output"]
    results = list(output.args[0]) if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    return outlined_module(nodes, inputs, results, None)
