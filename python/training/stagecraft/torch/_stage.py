"""Stages: a module and its place in the pipeline."""

from __future__ import annotations

import collections
import gc
import types
from typing import Any, Callable, Sequence

import torch

from stagecraft.torch._options import Recompute, recompute_tuple
from stagecraft.torch._wrapped import unwrapped


class Stage:
    """A piece of a model: `submod`, any torch.nn.Module, at position `index` of the pipeline.

    `prefix` is put before the names of the module's parameters, to make them the names in the whole model. `submod` may be replaced later by
    a module with the same parameters, such as a wrapped or compiled one: it is looked up at every call.

    `full_backward` runs the whole backward where a schedule has I. `copy_inputs` gives the module private copies of its inputs, so that it may
    work on them in place. `inputs` and `outputs` are expected (shape, dtype) pairs, -1 for any size, checked for every microbatch.
    `auxiliary_loss(output)` is added to the loss. `deferred_weights()` is called after every backward, and returns the function that computes
    the weights' gradients later.
    """

    def __init__(
        self,
        submod: torch.nn.Module,
        index: int,
        *,
        prefix: str = "",
        full_backward: bool = False,
        copy_inputs: bool = False,
        inputs: Sequence[tuple[Sequence[int], torch.dtype]] = (),
        outputs: Sequence[tuple[Sequence[int], torch.dtype]] = (),
        auxiliary_loss: Callable | None = None,
        deferred_weights: Callable | None = None,
        not_saved: Sequence[str] = (),
        other_names: Sequence[tuple[str, str]] = (),
        recompute: Recompute | None = None,
        origin: str = "",
    ):
        self.submod = submod
        self.index = index
        self.prefix = prefix
        self.full_backward = full_backward
        self.copy_inputs = copy_inputs
        self.inputs = inputs
        self.outputs = outputs
        self.auxiliary_loss = auxiliary_loss
        self.deferred_weights = deferred_weights
        self.not_saved = not_saved
        self.other_names = other_names
        self.recompute = recompute
        self.origin = origin

    def as_dict(self) -> dict:
        return stage_dict(
            self,
            self.index,
            prefix=self.prefix,
            full_backward=self.full_backward,
            copy_inputs=self.copy_inputs,
            inputs=[(list(shape), dtype) for shape, dtype in self.inputs],
            outputs=[(list(shape), dtype) for shape, dtype in self.outputs],
            auxiliary_loss=self.auxiliary_loss,
            deferred_weights=self.deferred_weights,
            not_saved=list(self.not_saved),
            other_names=list(self.other_names),
            recompute=recompute_tuple(self.recompute),
            origin=self.origin,
        )


def stage_dict(owner: Any, index: int, *, prefix: str = "", **options: Any) -> dict:
    """What the C++ side needs to know of a stage: `owner` is any object whose attribute `submod` is its module."""
    module = owner.submod
    spec = {
        "index": index,
        "owner": owner,
        "attribute": "submod",
        "parameters": [(_joined(prefix, name), value) for name, value in _named_parameters(unwrapped(module))],
        "buffers": [(_joined(prefix, name), value) for name, value in _named_buffers(unwrapped(module))],
        "enter_evaluation": _Evaluation(owner),
        "mode": _Mode(owner),
        "remember": _Remember(owner),
        "full_backward": False,
        "copy_inputs": False,
        "inputs": [],
        "outputs": [],
        "auxiliary_loss": None,
        "deferred_weights": None,
        "not_saved": [],
        "other_names": [],
        "recompute": None,
        "origin": "",
        "layers": None,
    }
    if type(module) is torch.nn.Sequential:
        spec["layers"] = [(_joined(prefix, name), layer) for name, layer in module.named_children()]
    spec.update(options)
    return spec


class _Remember:
    """Remembers the attributes of the stage's modules, with what their lists and dicts hold. Returns a function that gives them back, and all tensors that
    it holds."""

    def __init__(self, owner: Any):
        self._owner = owner

    def __call__(self) -> tuple[Callable[[], None], list[torch.Tensor]]:
        held: list = [vars(module) for module in unwrapped(self._owner.submod).modules()]
        held += [value for attributes in held for value in attributes.values() if isinstance(value, (dict, list))]
        before = [(place, dict(place) if isinstance(place, dict) else list(place)) for place in held]

        def give_back() -> None:
            for place, content in before:
                if isinstance(place, list):
                    place[:] = content
                    continue
                for name in [name for name in place if name not in content]:
                    del place[name]
                place.update(content)

        return give_back, _tensors_in([content for _, content in before])


_MOST_OBJECTS = 200_000  # a module may hold on to its trainer, and that to all of its data


def _tensors_in(values: list) -> list[torch.Tensor]:
    """All tensors that are reached from there, near ones first, through any object but classes, Python modules and the globals of functions."""
    tensors: list[torch.Tensor] = []
    seen: dict[int, Any] = {}  # which keeps their addresses their own
    waiting = collections.deque(values)
    while waiting and len(seen) < _MOST_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, (type, types.ModuleType, types.CodeType, types.FrameType)):
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, types.FunctionType):
            waiting.extend((value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)))
        else:
            waiting.extend(gc.get_referents(value))
    return tensors


class _Mode:
    """A number that is another when the stage has another module, or one of its modules another mode."""

    def __init__(self, owner: Any):
        self._owner = owner

    def __call__(self) -> int:
        module = self._owner.submod
        modes = [part.training for part in module.modules()] if isinstance(module, torch.nn.Module) else []
        return hash((id(module), *modes)) % 2**64


class _Evaluation:
    """Switches a stage's module to evaluation; what it returns gives every submodule its old mode back."""

    def __init__(self, owner: Any):
        self._owner = owner

    def __call__(self) -> Callable[[], None]:
        module = self._owner.submod
        if not isinstance(module, torch.nn.Module):
            return lambda: None
        modes = [(part, part.training) for part in module.modules()]
        module.eval()

        def back() -> None:
            for part, training in modes:
                part.training = training

        return back


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _named_parameters(module: Any) -> list:
    return list(module.named_parameters()) if isinstance(module, torch.nn.Module) else []


def _named_buffers(module: Any) -> list:
    return list(module.named_buffers()) if isinstance(module, torch.nn.Module) else []
