"""Gives a flat graph the module hierarchy of the model that it was traced from.

Every traced node knows the calls it happened in. A run of nodes from one call becomes a module with a graph of its own, placed
where the called module was; so names of weights stay, and submodules can be wrapped. A later run that does the same calls that
module again. One that does something else (a call that was cut in two, another mode) stays in the graph around it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import fx

Call = tuple[str, str]  # a key of the call, and the name of the module


@dataclass(frozen=True)
class Attribute:
    """What a get_attr node stands for: a parameter, buffer, constant or module, and all its names in the model."""

    value: Any
    names: tuple[str, ...]
    persistent: bool = True

    def name_inside(self, module: str) -> str | None:
        """A name relative to a module, if the value is inside it."""
        if not module:
            return self.names[0]
        for name in self.names:
            if name.startswith(module + "."):
                return name[len(module) + 1 :]
        return None


def _calls(node: fx.Node) -> tuple[Call, ...]:
    stack = node.meta.get("nn_module_stack") or {}
    return tuple((key, name) for key, (name, _) in stack.items() if name)


_TRANSIENT = "stagecraft_transient_buffers"


def _mark_transient(module: torch.nn.Module) -> None:
    for target in module.meta[_TRANSIENT]:
        owner, _, leaf = target.rpartition(".")
        module.get_submodule(owner)._non_persistent_buffers_set.add(leaf)


class _Frame:
    """One graph under construction: the nodes of a call, as seen from inside the module `name`."""

    def __init__(self, name: str, attributes: Mapping[fx.Node, Attribute], taken: set[str]) -> None:
        self.name = name
        self.graph = fx.Graph()
        self.inputs: list[fx.Node] = []
        self._attributes = attributes
        self._taken = taken
        self._inside: dict[fx.Node, fx.Node] = {}
        self._contents: dict[str, Any] = {}
        self._transient: list[str] = []

    # Values

    def add_input(self, node: fx.Node) -> None:
        self.inputs.append(node)
        placeholder = self.graph.placeholder(node.name if node.op != "placeholder" else str(node.target))
        placeholder.meta = dict(node.meta)
        self._inside[node] = placeholder

    def holds(self, node: fx.Node) -> bool:
        return node in self._attributes and self._attributes[node].name_inside(self.name) is not None

    def value(self, node: fx.Node) -> fx.Node:
        """The node that stands for an original one here; attributes appear at their first use."""
        if node not in self._inside:
            attribute = self._attributes[node]
            target = attribute.name_inside(self.name)
            self._contents[target] = attribute.value
            if not attribute.persistent:
                self._transient.append(target)
            inside = self.graph.create_node("get_attr", target, name=node.name)
            inside.meta = dict(node.meta)
            self._inside[node] = inside
        return self._inside[node]

    # Building

    def build(self, nodes: Sequence[fx.Node], depth: int, is_used_outside: Callable[[fx.Node], bool]) -> list[fx.Node]:
        """Adds the nodes. Returns those whose values leave this frame."""
        for call, group in groupby(nodes, key=lambda node: (_calls(node) + (None,) * depth + (None,))[depth]):
            run = list(group)
            if call is None or not self._is_inside(call[1]) or not self._add_child(call[1], run, depth, is_used_outside):
                self._copy(run)
        return [node for node in nodes if is_used_outside(node)]

    def _is_inside(self, name: str) -> bool:
        return not self.name or name.startswith(self.name + ".")

    def _copy(self, nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            self._inside[node] = self.graph.node_copy(node, self.value)

    def _relative(self, name: str) -> str:
        return name[len(self.name) + 1 :] if self.name else name

    def _add_child(
        self, name: str, run: Sequence[fx.Node], depth: int, is_used_outside: Callable[[fx.Node], bool]
    ) -> bool:
        """Calls a module that does what the run does; False if there is a module of that name that does something else."""
        relative = self._relative(name)
        known = self._contents.get(relative)
        if known is None and name in self._taken:
            return False
        members = set(run)

        def leaves(node: fx.Node) -> bool:
            return is_used_outside(node) or any(user not in members for user in node.users)

        # What is inside a module that is called again has names of its own, to be compared with those of the first call.
        inner = self._taken if known is None else {one for one in self._taken if not one.startswith(name + ".")}
        inner.add(name)
        child = _Frame(name, self._attributes, inner)
        for node in dict.fromkeys(argument for one in run for argument in one.all_input_nodes):
            if node not in members and not child.holds(node):
                child.add_input(node)
        outputs = child.build(run, depth + 1, leaves)
        module = child.finish([child.value(node) for node in outputs])
        if known is None:
            self._contents[relative] = module
        elif not _do_the_same(known, module):
            return False
        call = self.graph.call_module(relative, tuple(self.value(node) for node in child.inputs))
        call.meta["nn_module_stack"] = run[0].meta.get("nn_module_stack")
        if len(outputs) == 1:
            self._inside[outputs[0]] = call
            call.meta["val"] = outputs[0].meta.get("val")
        else:
            call.meta["val"] = tuple(node.meta.get("val") for node in outputs)
            for index, node in enumerate(outputs):
                item = self.graph.call_function(operator.getitem, (call, index))
                item.meta = dict(node.meta)
                self._inside[node] = item
        return True

    def finish(self, outputs: Sequence[Any], as_tuple: bool = False) -> fx.GraphModule:
        """The module. One output comes out as it is, several as a tuple."""
        result = outputs[0] if len(outputs) == 1 and not as_tuple else tuple(outputs)
        self.graph.output(result)
        # Shallow things first, so that a module is there before what is put into it.
        contents = dict(sorted(self._contents.items(), key=lambda item: item[0].count(".")))
        module = fx.GraphModule(contents, self.graph)
        if self._transient:
            module.meta[_TRANSIENT] = tuple(self._transient)
            _mark_transient(module)
            # A copy of a GraphModule registers its buffers anew.
            module._register_deepcopy_hook(_mark_transient)
        module.graph.lint()
        return module


def _do_the_same(one: Any, other: Any) -> bool:
    """Whether two modules have the same graph over the same values. Names of nodes do not count."""
    if not isinstance(one, fx.GraphModule) or not isinstance(other, fx.GraphModule):
        return one is other
    if len(one.graph.nodes) != len(other.graph.nodes):
        return False
    place_of: dict[fx.Node, tuple[str, int]] = {}
    for place, (a, b) in enumerate(zip(one.graph.nodes, other.graph.nodes, strict=True)):
        place_of[a] = place_of[b] = ("node", place)
        if a.op != b.op or (a.op != "placeholder" and a.target != b.target):
            return False
        if a.op == "get_attr" and operator.attrgetter(a.target)(one) is not operator.attrgetter(b.target)(other):
            return False
        if a.op == "call_module" and not _do_the_same(one.get_submodule(a.target), other.get_submodule(b.target)):
            return False
        arguments = [fx.node.map_arg((node.args, node.kwargs), place_of.__getitem__) for node in (a, b)]
        if arguments[0] != arguments[1]:
            return False
    return True


def outline(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    attributes: Mapping[fx.Node, Attribute],
) -> fx.GraphModule:
    """A module of some nodes of a graph, with the hierarchy they were traced in."""
    frame = _Frame("", attributes, set())
    for node in inputs:
        frame.add_input(node)
    wanted = set(outputs)
    frame.build(nodes, 0, wanted.__contains__)
    return frame.finish([frame.value(node) for node in outputs])


def _outline_submodules(orig_graph: fx.Graph) -> fx.GraphModule:
    """The hierarchy of a whole graph without attributes."""
    nodes = list(orig_graph.nodes)
    output = nodes[-1]
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    body = [node for node in nodes if node.op not in ("placeholder", "output")]
    return outline(body, [node for node in nodes if node.op == "placeholder"], list(results), {})
