"""Places: the objects in which Python code can put a tensor under a name. They are dicts (those with the attributes of an object too), lists, deques, objects
with slots, and the cells of closures. They are read and written past what their classes make of it: some dicts refuse changes, others make defaults."""

from __future__ import annotations

import collections
import types
import weakref
from typing import Any, Iterable, Iterator

NOTHING: Any = object()  # what is under a name that a place does not have

_SEQUENCES = (list, collections.deque)
_COLLECTIONS = (dict, *_SEQUENCES)
_slots: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


class Ours:
    """What has notes about modules. A module may lead there, by its trainer and the pipeline: they are no state of the module."""


def is_collection(value: Any) -> bool:
    return isinstance(value, _COLLECTIONS)


def fields_of(value: Any) -> tuple[str, ...]:
    """Names that a cell or an object with slots has by its type."""
    return ("cell_contents",) if isinstance(value, types.CellType) else slots_of(type(value))


def slots_of(kind: type) -> tuple[str, ...]:
    if kind in _slots:
        return _slots[kind]
    names = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                is_private = name.startswith("__") and not name.endswith("__")
                names.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    _slots[kind] = tuple(names)
    return _slots[kind]


def content_of(place: Any) -> Any:
    """A copy of what is in it: a list of a list or deque, a dict of others."""
    if isinstance(place, dict):
        return dict(dict.items(place))
    if isinstance(place, _SEQUENCES):
        return list(place)
    return {name: value for name in fields_of(place) if (value := value_at(place, name)) is not NOTHING}


def items_of(content: Any) -> Iterable[tuple[Any, Any]]:
    """Names and values; those of a list have their positions for names."""
    return content.items() if isinstance(content, dict) else enumerate(content)


def differences(before: Any, now: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Compares two contents of a place. Yields names, with the value of then and that of now."""
    old, new = dict(items_of(before)), dict(items_of(now))
    for name in {**old, **new}:
        was, has = old.get(name, NOTHING), new.get(name, NOTHING)
        if was is not has:
            yield name, was, has


def value_at(place: Any, name: Any) -> Any:
    if isinstance(place, dict):
        return dict.get(place, name, NOTHING)
    if isinstance(place, _SEQUENCES):
        return place[name] if name < len(place) else NOTHING
    try:
        return object.__getattribute__(place, name)
    except (AttributeError, ValueError):  # an empty cell
        return NOTHING


def put(place: Any, name: Any, value: Any) -> None:
    """NOTHING deletes the name. Lists and deques keep their length."""
    base: Any = collections.OrderedDict if isinstance(place, collections.OrderedDict) else dict
    if value is NOTHING:
        if value_at(place, name) is not NOTHING and not isinstance(place, _SEQUENCES):
            base.__delitem__(place, name) if isinstance(place, dict) else object.__delattr__(place, name)
    elif isinstance(place, dict):
        base.__setitem__(place, name, value)
    elif not isinstance(place, _SEQUENCES):
        object.__setattr__(place, name, value)
    elif name < len(place):
        place[name] = value


def fill(place: Any, content: Any, in_order: bool = True) -> None:
    """Makes `content` all that is in it. `in_order`: names come in the same order too."""
    if isinstance(content, dict):
        now = content_of(place)
        begins_anew = in_order and list(now) != list(content)
        for name in now:
            if begins_anew or name not in content:
                put(place, name, NOTHING)
        for name, value in content.items():
            if value_at(place, name) is not value:
                put(place, name, value)
    else:
        place.clear()
        place.extend(content)
