"""Stages: a module and its place in the pipeline."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Sequence

import torch

from stagecraft.torch._memory import Memory
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
        "memory": None,
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


def watch(specs: list[dict], loss: Any) -> list[dict]:
    """Lets steps as graphs see what happens to the stages of a rank, and to losses. All of it in the first spec, because stages share things."""
    owners = [spec["owner"] for spec in specs]
    called = [loss, *(spec["auxiliary_loss"] for spec in specs)]
    losses = [one for one in called if isinstance(one, torch.nn.Module)]
    others = [one for one in (*called, *(owner.submod for owner in owners)) if one is not None and not isinstance(one, torch.nn.Module)]
    for spec in specs:
        spec["mode"] = _Mode(spec["owner"], losses)
    for spec in specs[:1]:
        spec["memory"] = Memory(lambda: [*(unwrapped(owner.submod) for owner in owners), *losses], others)
    return specs


class _Mode:
    """A number that is another when the stage has another module, or one of its modules, or of the `others`, another mode or other hooks."""

    def __init__(self, owner: Any, others: Sequence = ()):
        self._owner = owner
        self._others = others
        self._numbers: dict[int, tuple[weakref.ref, int]] = {}  # by id, which a later module may have too
        self._count = 0

    def __call__(self) -> int:  # in every step
        state: list = [tuple(hooks) for hooks in _GLOBAL_HOOKS if hooks]
        for module in (self._owner.submod, *self._others):
            if not isinstance(module, torch.nn.Module):
                state.append(id(module))
                continue
            for part in module.modules():
                known = self._numbers.get(id(part))
                state += (known[1] if known is not None and known[0]() is part else self._number_of(part), part.training)
                own = vars(part)
                state += [(name, *own[name]) for name in _HOOKS if own.get(name)]
                for parameter in part._parameters.values():
                    if parameter is not None and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
                        state.append((id(parameter), *(parameter._backward_hooks or ()), "after", *(parameter._post_accumulate_grad_hooks or ())))
        return hash(tuple(state)) % 2**64

    def _number_of(self, part: torch.nn.Module) -> int:
        self._numbers = {one: known for one, known in self._numbers.items() if known[0]() is not None}
        self._count += 1
        self._numbers[id(part)] = (weakref.ref(part), self._count)
        return self._count


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS = [hooks for name, hooks in vars(torch.nn.modules.module).items() if name.startswith("_global_") and name.endswith("_hooks")]


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
