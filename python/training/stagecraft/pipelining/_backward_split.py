"""Splits a backward pass in two: the gradients of a stage's inputs now, those of its weights later.

    loss <- relu <- addmm <- relu <- addmm <- x          walked from the right, "backbone": what leads from outputs to inputs
                     |                |
                   W1, b1           W2, b2               hang off the backbone at the two addmm, the "joints"

The input part runs the backbone once and keeps the gradients that arrive at each joint. The weight part starts at the joints
with those gradients and ends at the weights, one group of weights at a time, so that the backbone is not run again. A weight
that reaches an output without meeting the backbone has that output's node as its joint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


class _Groups:
    """Sets of weights that share a joint, merged as joints are found."""

    def __init__(self) -> None:
        self._parent: dict[Node, Node] = {}

    def add(self, leaf: Node) -> Node:
        return self._parent.setdefault(leaf, leaf)

    def find(self, leaf: Node) -> Node:
        parent = self._parent
        while parent[leaf] is not leaf:
            parent[leaf] = parent[parent[leaf]]
            leaf = parent[leaf]
        return leaf

    def merge(self, leaves: Iterable[Node]) -> Node | None:
        """Merges the groups of all given leaves; returns its representative."""
        root = None
        for leaf in leaves:
            found = self.find(leaf)
            if root is None:
                root = found
            elif found is not root:
                self._parent[found] = root
        return root

    def leaves(self) -> Iterable[Node]:
        return self._parent


def _children_first(roots: Sequence[Node], stops: Collection[Node]) -> list[tuple[Node, list[Node]]]:
    """All nodes below the roots with what they lead to, each node after its children; nothing below a stop."""
    order: list[tuple[Node, list[Node]]] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, list[Node] | None]] = [(root, None) for root in roots]
    while stack:
        node, children = stack.pop()
        if children is not None:
            order.append((node, children))
        elif node not in seen:
            seen.add(node)
            children = [] if node in stops else [child for child, _ in node.next_functions if child is not None]
            stack.append((node, children))
            stack.extend((child, None) for child in children if child not in seen)
    return order


def find_groups(roots: Sequence[Node], inputs: Collection[Node], weights: Collection[int] | None) -> list[dict[str, Any]]:
    """Groups of weights with the joints where they hang off the backbone.

    weights holds the ids of the tensors that count; None stands for all leaves that are not inputs.
    """
    groups = _Groups()
    backbone = set(inputs)
    below: dict[Node, Node] = {}  # node beside the backbone -> a leaf of the group that it leads to
    joints: dict[Node, Node] = {}  # joint -> a leaf of its group
    for node, children in _children_first(roots, backbone):
        if node in backbone:
            continue
        if not children:
            variable = getattr(node, "variable", None)
            if variable is not None and (weights is None or id(variable) in weights):
                below[node] = groups.add(node)
            continue
        group = groups.merge([below[child] for child in children if child in below])
        if any(child in backbone for child in children):
            backbone.add(node)
            if group is not None:
                joints[node] = group
        elif group is not None:
            below[node] = group
    # An output beside the backbone is itself where its weights hang.
    for root in roots:
        if root in below:
            joints[root] = below[root]

    found: dict[Node, dict[str, Any]] = {}
    for leaf in groups.leaves():
        group = found.setdefault(groups.find(leaf), {"params": [], "intermediates": [], "grads": None})
        group["params"].append(leaf)
    for joint, leaf in joints.items():
        found[groups.find(leaf)]["intermediates"].append(joint)
    return list(found.values())


def backward_inputs(
    outputs: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    inputs: Sequence[Any],
    weights: Collection[int] | None,
) -> tuple[tuple[torch.Tensor | None, ...], list[dict[str, Any]]]:
    """The input part. Returns one gradient or None per input, and the groups for backward_weights.

    A gradient of None seeds a scalar with one, as autograd does.
    """
    wanted = [index for index, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.requires_grad]
    result: list[torch.Tensor | None] = [None] * len(inputs)
    if not outputs:
        return tuple(result), []
    input_edges = [get_gradient_edge(inputs[index]) for index in wanted]
    roots = [get_gradient_edge(output).node for output in outputs]
    groups = find_groups(roots, {edge.node for edge in input_edges}, weights)

    # Where a tensor enters a joint, autograd hands out what arrives there beside the gradients of the inputs.
    edges, places = list(input_edges), []
    for group in groups:
        group["grads"] = []
        for joint in group["intermediates"]:
            slots: list[torch.Tensor | None] = [None] * len(joint._input_metadata)
            group["grads"].append(slots)
            for slot in range(len(slots)):
                places.append((slots, slot))
                edges.append(GradientEdge(joint, slot))
    if edges:
        arrived = torch.autograd.grad(outputs, edges, grads, retain_graph=True, allow_unused=True)
        for index, grad in zip(wanted, arrived):
            result[index] = grad
        for (slots, slot), grad in zip(places, arrived[len(wanted) :], strict=True):
            slots[slot] = grad
    for group in groups:
        group["grads"] = [tuple(slots) for slots in group["grads"]]
    return tuple(result), groups


def backward_weights(groups: list[dict[str, Any]], retain_graph: bool = False) -> None:
    """The weight part: adds to the weights' .grad by way of autograd, so that their hooks run. Empties the groups."""
    for group in groups:
        joints, grads = group.pop("intermediates"), group.pop("grads")
        edges, seeds = [], []
        for joint, arrived in zip(joints, grads, strict=True):
            for slot, grad in enumerate(arrived):
                if grad is not None:
                    edges.append(GradientEdge(joint, slot))
                    seeds.append(grad)
        if not edges:
            continue
        # One joint may lead to another, whose gradient is already complete: it must not be counted twice.
        handles = [
            joint.register_prehook(lambda _, complete=complete: complete)
            for joint, complete in zip(joints, grads, strict=True)
            if len(joints) > 1
        ]
        try:
            torch.autograd.backward(
                edges, seeds, retain_graph=retain_graph, inputs=[leaf.variable for leaf in group["params"]]
            )
        finally:
            for handle in handles:
                handle.remove()
