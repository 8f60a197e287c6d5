"""Parameters, buffers and constants of a model: their names, and how a stage comes to hold the ones it uses."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

_NON_PERSISTENT = "stagecraft_non_persistent"


def relative_name(fqn: str, module: str) -> str | None:
    """The name as seen from a module, None if the module does not contain it. The root's name is empty."""
    if not module:
        return fqn
    return fqn[len(module) + 1 :] if fqn.startswith(module + ".") else None


def _container(root: nn.Module, parts: Iterable[str]) -> nn.Module:
    """The module at a path; missing ones on the way are created empty."""
    for part in parts:
        child = root._modules.get(part)
        if child is None:
            child = nn.Module()
            root.add_module(part, child)
        root = child
    return root


def place_module(root: nn.Module, fqn: str, module: nn.Module) -> None:
    *path, name = fqn.split(".")
    _container(root, path).add_module(name, module)


def _restore_non_persistent(module: nn.Module) -> None:
    """Copying a GraphModule registers its buffers anew, as persistent ones."""
    for fqn in module.meta[_NON_PERSISTENT]:
        path, _, name = fqn.rpartition(".")
        owner = module.get_submodule(path)
        if name in owner._buffers:
            owner._non_persistent_buffers_set.add(name)


class ModelState:
    """The state of the model being split.

    A tensor registered under several names (tied weights) is known under all of them. The tensors are the model's own,
    not copies.
    """

    def __init__(self, module: nn.Module, traced: fx.GraphModule) -> None:
        self._module = module
        self._traced = traced
        self._tensors: dict[str, torch.Tensor] = {}
        self._not_saved: set[str] = set()
        self._names: dict[int, list[str]] = {}
        self._order: dict[str, int] = {}
        for path, owner in module.named_modules(remove_duplicate=False):
            self._order[path] = len(self._order)
            prefix = path + "." if path else ""
            for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
                if tensor is None:
                    continue
                fqn = prefix + name
                self._order[fqn] = len(self._order)
                self._tensors[fqn] = tensor
                self._names.setdefault(id(tensor), []).append(fqn)
                if name in owner._non_persistent_buffers_set:
                    self._not_saved.add(fqn)

    def value(self, fqn: str) -> Any:
        if fqn in self._tensors:
            return self._tensors[fqn]
        return attrgetter(fqn)(self._traced)

    def name_within(self, node: fx.Node, module: str) -> str | None:
        """The name by which a module reaches the value of a get_attr node in itself, None if it does not hold it."""
        fqn = node.target
        value = self.value(fqn)
        if isinstance(value, nn.Module):
            # The body of a higher-order operator. It has no state of its own, so any module may hold it.
            return "_" + fqn.replace(".", "_")
        for name in (fqn, *self._names.get(id(value), ())):
            local = relative_name(name, module)
            if local is not None:
                return local
        return None

    def in_model_order(self, fqns: Iterable[str]) -> list[str]:
        """Sorted as in the model, so that optimisers see parameters in the order they know. Others follow as they come."""
        return sorted(fqns, key=lambda fqn: self._order.get(fqn, len(self._order)))

    def give(self, root: fx.GraphModule, values: dict[str, Any]) -> None:
        """Registers tensors and other values in a stage module, each under its name."""
        not_saved = []
        for fqn in self.in_model_order(values):
            *path, name = fqn.split(".")
            owner, value = _container(root, path), values[fqn]
            if isinstance(value, nn.Parameter):
                owner.register_parameter(name, value)
            elif isinstance(value, torch.Tensor):
                # A tensor that is no buffer of the model is a constant: it moves with the stage, but is not saved.
                persistent = fqn in self._tensors and fqn not in self._not_saved
                owner.register_buffer(name, value, persistent=persistent)
                if not persistent:
                    not_saved.append(fqn)
            else:
                setattr(owner, name, value)
        if not_saved:
            root.meta[_NON_PERSISTENT] = tuple(not_saved)
            root._register_deepcopy_hook(_restore_non_persistent)
