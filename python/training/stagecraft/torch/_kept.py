"""What modules keep at one moment: the walk to all places that their attributes lead to, with a copy of what is there. So it can be given back."""

from __future__ import annotations

import collections
import functools
import types
from typing import Any, Sequence

import torch

from stagecraft.torch._places import NOTHING, Ours, content_of, differences, fields_of, fill, is_collection, items_of, put, slots_of
from stagecraft.torch._tensors import MOST_OBJECTS, may_have, tensors_in

MOST_PLACES = 5_000  # beyond what modules have themselves

_LEAVES = (Ours, torch.Tensor, type, types.ModuleType, types.CodeType, types.FrameType, types.BuiltinFunctionType, str, bytes, int, float)


class Kept:
    """The attributes of modules, and the dicts, lists, deques, cells and objects that these lead to. Parameters and buffers are in some of them."""

    def __init__(self, modules: Sequence, others: list):
        """`others`: functions and objects that the modules' calls use too. Always the same list."""
        parts = {id(part): part for module in modules if isinstance(module, torch.nn.Module) for part in module.modules()}
        self._parts = parts
        self.contents: list[tuple[Any, Any]] = []  # places, and a copy of what is in them
        self.own: set[int] = set()  # places, by id: the attributes of the modules
        self.near: set[int] = set()  # what is reached from these without an object in between
        self.parents: dict[int, tuple[Any, Any, bool]] = {}  # a place, the name under which it leads there, and whether to an object's attributes
        self.links: list[tuple[Any, Any, Any, int]] = []  # a place, a name, the value there, and the place that it leads to
        self.hidden: list[dict] = []  # attributes of modules that are in lists and dicts of these
        self.of_torch: set[int] = set()  # places, by id: the attributes of modules of PyTorch's
        self._seen: dict[int, Any] = {}
        self._waiting: collections.deque = collections.deque()
        for part in parts.values():
            for place in (vars(part), part) if slots_of(type(part)) else (vars(part),):
                self.own.add(id(place))
                self._add(place, is_near=True)
            if type(part).__module__.startswith("torch.nn."):
                self.of_torch.add(id(vars(part)))
        self._add(others, is_near=True)
        self._walk()
        self._seen.clear()
        self._waiting.clear()

    def _walk(self) -> None:
        direct, most = len(self._waiting), MOST_PLACES
        while self._waiting and len(self._seen) < MOST_OBJECTS and (direct > 0 or len(self.contents) < most):
            direct -= 1
            if direct == 0:
                most = len(self.contents) + MOST_PLACES
            self._visit(*self._waiting.popleft())

    def _add(self, place: Any, is_near: bool) -> None:
        if id(place) in self._seen:
            return
        self._seen[id(place)] = place
        content = content_of(place)
        self.contents.append((place, content))
        if is_near:
            self.near.add(id(place))
        for name, value in items_of(content):
            if value is not None and not isinstance(value, _LEAVES):
                self._waiting.append((place, name, value, value, is_near))

    def _visit(self, place: Any, name: Any, value: Any, inner: Any, is_near: bool) -> None:
        """`inner` is what the place has under that name, or is in it."""
        places: list = []
        if isinstance(inner, (tuple, set, frozenset)):
            self._waiting.extend((place, name, value, one, is_near) for one in inner if one is not None and not isinstance(one, _LEAVES))
        elif isinstance(inner, torch.nn.Module):
            self._visit_module(place, name, value, inner, is_near)
        elif isinstance(inner, types.FunctionType):
            places = list(inner.__closure__ or ())
        elif isinstance(inner, types.MethodType):
            if not isinstance(inner.__self__, _LEAVES):
                self._waiting.append((place, name, value, inner.__self__, is_near))
        elif isinstance(inner, functools.partial):
            places = [inner.keywords]
            self._waiting.extend((place, name, value, one, False) for one in (inner.func, *inner.args))
        else:
            attributes = getattr(inner, "__dict__", None) if not isinstance(inner, types.CellType) else None
            places = [inner] if is_collection(inner) or fields_of(inner) else []
            places += [attributes] if type(attributes) is dict else []
            is_near = is_near and is_collection(inner)
        for child in places:
            self._link(place, name, value, child)
            if inner is value and id(child) not in self._seen:
                self.parents[id(child)] = (place, name, child is not inner)
            self._add(child, is_near)

    def _visit_module(self, place: Any, name: Any, value: Any, module: torch.nn.Module, is_near: bool) -> None:
        """One that is in a list or a dict, so that its parameters are not the stage's. Not one that the stage itself is in."""
        if not is_near or id(module) in self._parts or id(module) in self._seen:
            return
        self._seen[id(module)] = module
        parts = list(module.modules())
        if any(id(part) in self._parts for part in parts):
            return
        for part in parts:
            self.hidden.append(vars(part))
            self._link(place, name, value, vars(part))
            self._add(vars(part), is_near=False)

    def _link(self, place: Any, name: Any, value: Any, child: Any) -> None:
        self.links.append((place, name, value, id(child)))

    def give_back(self, used: set[int]) -> None:
        """After calls of the modules that have used memory at these addresses: undoes what they have changed."""
        for place, content in self.contents:
            if id(place) in self.own:
                fill(place, content, in_order=False)
                continue
            of_calls = [one for one in differences(content, content_of(place)) if self.is_of_calls(place, *one[1:], used)]
            if of_calls and (isinstance(content, list) or any(has is NOTHING for _, _, has in of_calls)):
                fill(place, content)
                continue
            for name, was, _ in of_calls:
                put(place, name, was)

    def is_of_calls(self, place: Any, old: Any, value: Any, used: set[int]) -> bool:
        """Whether calls that have used such memory may have made that change, and not others at the same time, such as other ranks."""
        if not tensors_in([old, value]):
            return False
        is_dropped = (value is None or value is NOTHING) and id(place) in self.near
        return id(place) in self.own or is_dropped or may_have((old, value), used)
