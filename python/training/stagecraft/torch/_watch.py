"""Whether somebody else has replaced what calls of the modules have read, or has put a tensor where there was none. So a step that is replayed as a graph
notices that its calls would read something else now."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any, Iterator

import torch

from stagecraft.torch._kept import MOST_PLACES, Kept
from stagecraft.torch._places import content_of, is_collection, items_of, put, value_at
from stagecraft.torch._tensors import addresses_of, is_alike, tensors_in

_NEVER_TENSORS = {"_compiled_call_impl", "_is_full_backward_hook"}  # of every module
_OF_EVERY_MODULE = set(vars(torch.nn.Module()))  # parameters and buffers are looked at by themselves, and so are hooks
_NO_TENSORS = (type(None), bool)
_NUMBERS = (int, float, complex, str)
_MOST_OTHERS = 8


@dataclass(slots=True, eq=False)
class _Read:
    """A value that calls have read, or one that leads there."""

    place: Any
    name: Any
    first: Any
    last: Any  # what was there when this was asked last


@dataclass(slots=True)
class _Empty:
    """A name under which there is no tensor."""

    place: Any
    name: Any
    last: Any


@dataclass(slots=True)
class _EmptyCollection:
    """A name under which there is a collection without anything. Somebody may fill it, or replace it."""

    place: Any
    name: Any
    is_filled: bool = False

    def content(self) -> list:
        value = value_at(self.place, self.name)
        return [value] if not is_collection(value) or len(value) > 0 else []


@dataclass(slots=True)
class _Size:
    """A collection to which somebody may add."""

    place: Any
    first: int
    last: int
    names: set | None  # of a dict, at first

    def added(self, since: int) -> list:
        """Of a list, what has been added since it had this size."""
        content = content_of(self.place)
        return content[since:] if self.names is None else [value for name, value in content.items() if name not in self.names]


class Watch:
    """Compares what modules keep with what they keep `now`, where calls of theirs have read memory at these addresses, and where there is no tensor."""

    def __init__(self, now: Kept, read: set[int]):
        self._read: list[_Read] = []
        self._doubted: dict[_Read, Any] = {}  # what somebody has put there
        self._no_matter: dict[_Read, collections.deque] = {}  # of that: calls do not read it, and make the first again
        self._empty: list[_Empty] = []
        self._empty_collections: list[_EmptyCollection] = []
        self._sizes: list[_Size] = []
        self._memory = read
        leading = self._find_read(now, read)
        self._find_empty(now, leading)

    def _find_read(self, now: Kept, read: set[int]) -> set[int]:
        """Returns the places, by id, that lead to something that was read."""
        leading: set[int] = set()
        for place, content in now.contents:
            found = [(name, value) for name, value in items_of(content) if addresses_of(_in_tuples(value)) & read]
            for name, value in found:
                self._read.append(_Read(place, name, value, value))
            if found:
                leading.add(id(place))
        for place, name, value, child in reversed(now.links):  # children come after their parents, mostly
            if child in leading:
                self._read.append(_Read(place, name, value, value))
                leading.add(id(place))
        for attributes in now.hidden:
            mode = attributes.get("training")
            self._read.append(_Read(attributes, "training", mode, mode))
        return leading

    def _find_empty(self, now: Kept, leading: set[int]) -> None:
        of_modules = now.own | {id(content[name]) for place, content in now.contents if id(place) in now.own for name in ("_buffers", "_parameters") if name in content}
        for place, content in now.contents:
            if id(place) not in of_modules and id(place) not in leading:
                continue
            kinds = _NO_TENSORS if id(place) in now.of_torch else (*_NO_TENSORS, *_NUMBERS)
            for name, value in items_of(content):
                if isinstance(value, kinds) and value is not True and name not in _NEVER_TENSORS:
                    self._empty.append(_Empty(place, name, value))
                elif is_collection(value) and len(value) == 0 and name not in _OF_EVERY_MODULE:
                    self._empty_collections.append(_EmptyCollection(place, name))
            if is_collection(place):
                self._sizes.append(_Size(place, len(place), len(place), set(content) if isinstance(place, dict) else None))

    @property
    def has_read(self) -> bool:
        return bool(self._read)

    @property
    def has_empty(self) -> bool:
        return bool(self._empty or self._empty_collections or self._sizes)

    def has_replaced(self) -> bool:
        is_new = False
        for read in self._read:
            value = value_at(read.place, read.name)
            if value is read.last:
                continue
            read.last = value
            if value is not read.first and not any(value is other for other in self._no_matter.get(read, ())):
                self._doubted[read] = value
                is_new = True
        return is_new

    def has_made_again(self) -> bool:
        if not all(is_alike(value_at(read.place, read.name), read.first) for read in self._doubted):
            return False
        for read, other in self._doubted.items():
            self._no_matter.setdefault(read, collections.deque(maxlen=_MOST_OTHERS)).append(other)
            put(read.place, read.name, read.first)
            read.last = read.first
        self._doubted.clear()
        return True

    def has_added(self) -> bool:
        """What the next calls make of it is open."""
        is_new = False
        for empty in self._empty:
            value = value_at(empty.place, empty.name)
            if value is not empty.last:
                empty.last = value
                is_new = is_new or bool(tensors_in([value], MOST_PLACES))
        for collection in self._empty_collections:
            content = collection.content()
            is_new = is_new or (not collection.is_filled and bool(tensors_in(content, MOST_PLACES)))
            collection.is_filled = bool(content)
        for size in self._sizes:
            last = size.last
            if len(size.place) == last:
                continue
            size.last = len(size.place)
            is_new = is_new or bool(tensors_in(size.added(last), MOST_PLACES))
        return is_new

    def has_added_known(self) -> bool:
        """Whether there is a tensor in one more place that those calls have read elsewhere: nobody can tell whether the next ones read it in both."""
        added = [value for empty in self._empty if (value := value_at(empty.place, empty.name)) is not None and not isinstance(value, _NUMBERS)]
        for collection in self._empty_collections:
            added += collection.content()
        for size in self._sizes:
            if len(size.place) > size.first:
                added += size.added(size.first)
        return bool(added) and bool(addresses_of(tensors_in(added, MOST_PLACES)) & self._memory)


def _in_tuples(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, frozenset)):
        for one in value:
            yield from _in_tuples(one)
    else:
        yield value
