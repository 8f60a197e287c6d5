"""Stages: a module and its place in the pipeline."""

from __future__ import annotations

import collections
import gc
import types
import weakref
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
        "memory": _Memory(owner),
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


def watch_losses(specs: list[dict], loss: Any) -> list[dict]:
    """Steps as graphs see what happens to losses that are modules as they see it in the stages' own."""
    for spec in specs:
        losses = [one for one in (spec["auxiliary_loss"], loss) if isinstance(one, torch.nn.Module)]
        if losses:
            spec.update(mode=_Mode(spec["owner"], losses), memory=_Memory(spec["owner"], losses))
    return specs


class _Ticket:
    """C++ holds it for as long as it wants what _Memory has for it."""


class _Memory:
    """What the stage's modules keep: their attributes, and what lists and dicts among these hold. C++ has tickets for it, so that Python's garbage collector
    sees who refers to whom."""

    def __init__(self, owner: Any, others: Sequence = ()):
        self._owner = owner
        self._others = others
        self._kept: weakref.WeakKeyDictionary[_Ticket, _Kept] = weakref.WeakKeyDictionary()
        self._changes: weakref.WeakKeyDictionary[_Ticket, _Changes] = weakref.WeakKeyDictionary()

    def remember(self) -> tuple[_Ticket, list[torch.Tensor]]:
        """Returns all tensors that this keeps alive too."""
        ticket = _Ticket()
        kept = self._kept[ticket] = self._now()
        return ticket, _tensors_in([content for _, content in kept.contents])

    def _now(self) -> _Kept:
        return _Kept([unwrapped(self._owner.submod), *self._others])

    def give_back(self, ticket: _Ticket) -> None:
        self._kept[ticket].give_back()

    def compare(self, ticket: _Ticket, read: Sequence[int]) -> tuple[_Ticket, bool, bool, bool, bool]:
        """After further calls of the modules, which have read memory at these addresses. Returns a ticket for the other functions, whether
        something is now in the place of what those calls have read, and whether `put_again`, `has_replaced` and `has_added` have something to do."""
        since = _Ticket()
        changes = self._changes[since] = _Changes(self._kept[ticket], self._now(), set(read))
        return since, changes.carries, changes.any, changes.is_watching, changes.has_empty

    def put_again(self, ticket: _Ticket) -> None:
        """Puts there what those calls have put in the place of something else, or added."""
        self._changes[ticket].put_again()

    def has_replaced(self, ticket: _Ticket) -> bool:
        """Whether somebody has put something in the place of what they have read, since this was asked last."""
        return self._changes[ticket].has_replaced()

    def has_added(self, ticket: _Ticket) -> bool:
        """Whether somebody has put a tensor where there was nothing, since this was asked last."""
        return self._changes[ticket].has_added()


class _Kept:
    """What modules have at one moment: their attributes, and all dicts, lists, deques and objects that these lead to, with a copy of each. Parameters and
    buffers are in some of them."""

    def __init__(self, modules: Sequence):
        attributes = [vars(part) for module in modules if isinstance(module, torch.nn.Module) for part in module.modules()]
        self.contents: list[tuple[Any, Any]] = [(place, _content_of(place)) for place in (*attributes, *_places_in(attributes))]
        self._attributes = {id(place) for place in attributes}

    def give_back(self) -> None:
        for place, content in self.contents:
            if id(place) in self._attributes or _holds_others(place, content):
                _fill(place, content)


def _content_of(place: Any) -> Any:
    return dict(place) if isinstance(place, dict) else list(place)


def _fill(place: Any, content: Any) -> None:
    if isinstance(place, dict):
        for name in [name for name in place if name not in content]:
            del place[name]
        place.update(content)
    else:
        place.clear()
        place.extend(content)


def _holds_others(place: Any, content: Any) -> bool:
    """Whether there are other tensors now than in its copy. What holds none is not ours: others may change it at the same time."""
    now = _content_of(place)
    if isinstance(place, dict):
        changed = [value for name, value in (*now.items(), *content.items()) if now.get(name, _NOTHING) is not content.get(name, _NOTHING)]
    else:
        changed = [] if len(now) == len(content) and all(a is b for a, b in zip(now, content)) else [*now, *content]
    return bool(_tensors_in(changed))


_MOST_PLACES = 5_000
_LEAVES = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, str, bytes, int, float)


def _places_in(attributes: list[dict]) -> list:
    """The dicts, lists and deques that are reached from there, and the attributes of objects."""
    places: list = []
    seen: dict[int, Any] = {id(place): place for place in attributes}
    waiting = collections.deque(value for place in attributes for value in place.values())
    while waiting and len(places) < _MOST_PLACES and len(seen) < _MOST_OBJECTS:
        value = waiting.popleft()
        if value is None or isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, (tuple, set, frozenset)):
            waiting.extend(value)
            continue
        place = value if isinstance(value, (dict, list, collections.deque)) else getattr(value, "__dict__", None)
        if not isinstance(place, (dict, list, collections.deque)) or (place is not value and id(place) in seen):
            continue
        seen[id(place)] = place
        places.append(place)
        waiting.extend(list(place.values()) if isinstance(place, dict) else list(place))
    return places


class _Changes:
    """What calls have changed in what modules keep, as far as it is about tensors."""

    def __init__(self, before: _Kept, now: _Kept, read: set[int]):
        self.carries = False
        self._replaced: list[tuple[Any, Any, Any]] = []
        self._longer: list[tuple[Any, list]] = []
        self._read: list[tuple[Any, Any, Any]] = []
        new = {id(place): content for place, content in now.contents}
        attributes = before._attributes
        for place, content in before.contents:
            items = new.get(id(place), content)  # a place that nobody has any more
            if isinstance(items, list) and len(items) > len(content) and all(a is b for a, b in zip(items, content)):
                if _tensors_in(items[len(content) :]):
                    self._longer.append((place, items[len(content) :]))
                    self.carries = self.carries or bool(_addresses_of(_tensors_in(content)) & read)
                continue
            for name, value in items.items() if isinstance(items, dict) else enumerate(items):
                old = _at(content, name)
                if old is value:
                    continue
                had, has = _addresses_of(_tensors_in([old])), _addresses_of(_tensors_in([value]))
                if not had and not has and not _tensors_in([old, value]):
                    continue
                self._replaced.append((place, name, value))
                # Made from the old one, or swapped with it, or larger by something new: the next calls go on from the new one.
                self.carries = self.carries or bool(had & read - has) or bool(had & read and had < has)
                if old is _NOTHING and isinstance(items, dict) and id(place) not in attributes:
                    self.carries = self.carries or bool(_addresses_of(_tensors_in(list(content.values()))) & read)
            if isinstance(items, dict):
                self._replaced += [(place, name, _NOTHING) for name, old in content.items() if name not in items and _tensors_in([old])]
        self._empty: list[tuple[dict, str]] = []
        self._filled: set[int] = set()
        for place, content in now.contents:
            for name, value in content.items() if isinstance(content, dict) else enumerate(content):
                if _addresses_of(value if isinstance(value, tuple) else (value,)) & read:
                    self._read.append((place, name, value))
                elif value is None and id(place) in now._attributes and name not in _NEVER_TENSORS:
                    self._empty.append((place, name))

    @property
    def any(self) -> bool:
        return bool(self._replaced or self._longer)

    @property
    def is_watching(self) -> bool:
        return bool(self._read)

    @property
    def has_empty(self) -> bool:
        return bool(self._empty)

    def put_again(self) -> None:
        for place, name, value in self._replaced:
            if value is _NOTHING:
                place.pop(name, None)
            elif isinstance(place, dict) or name < len(place):
                place[name] = value
        for longer, added in self._longer:
            longer.extend(added)

    def has_replaced(self) -> bool:
        now = [(place, name, _at(place, name)) for place, name, _ in self._read]
        differs = any(new[2] is not old[2] for new, old in zip(now, self._read))
        if differs:
            self._read = now
        return differs

    def has_added(self) -> bool:
        filled = {i for i, (place, name) in enumerate(self._empty) if place.get(name) is not None and _tensors_in([place[name]])}
        is_new = not filled <= self._filled
        self._filled = filled
        return is_new


_NOTHING: Any = object()
_NEVER_TENSORS = {"_compiled_call_impl", "_is_full_backward_hook"}  # of every module


def _at(place: Any, name: Any) -> Any:
    if isinstance(place, dict):
        return place.get(name, _NOTHING)
    return place[name] if name < len(place) else _NOTHING


def _addresses_of(values: Sequence) -> set[int]:
    """Of the memory of those that are tensors."""
    plain = (one for one in values if type(one) in (torch.Tensor, torch.nn.Parameter) and one.layout is torch.strided)
    return {one.untyped_storage().data_ptr() for one in plain}


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
    """A number that is another when the stage has another module, or one of its modules, or of the `others`, another mode or other hooks."""

    def __init__(self, owner: Any, others: Sequence = ()):
        self._owner = owner
        self._others = others

    def __call__(self) -> int:  # in every step
        state: list = [tuple(hooks) for hooks in _GLOBAL_HOOKS if hooks]
        for module in (self._owner.submod, *self._others):
            state.append(id(module))
            for part in module.modules() if isinstance(module, torch.nn.Module) else ():
                state += (id(part), part.training)
                own = vars(part)
                state += [(name, *own[name]) for name in _HOOKS if own.get(name)]
                for parameter in part._parameters.values():
                    if parameter is not None and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
                        state.append((id(parameter), *(parameter._backward_hooks or ()), "after", *(parameter._post_accumulate_grad_hooks or ())))
        return hash(tuple(state)) % 2**64


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
