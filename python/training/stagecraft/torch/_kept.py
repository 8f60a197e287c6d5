"""What Python modules keep from call to call, and what calls change of it. A step that is replayed as a graph runs no code: it needs to know what that code
would have left in the modules, and whether somebody has put something else in the place of what it reads (docs/design/graphs.md)."""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref
from typing import Any, Callable, Iterable, Iterator, Sequence

import torch

_NOTHING: Any = object()
_NEVER_TENSORS = {"_compiled_call_impl", "_is_full_backward_hook"}  # of every module
_MOST_OBJECTS = 200_000  # a module may hold on to its trainer, and that to all of its data
_MOST_OTHERS = 8
_MOST_PLACES = 5_000  # beyond what modules have themselves


class _Ticket:
    """C++ holds it for as long as it wants what Memory has for it."""


class Memory:
    """What the modules of a rank keep. C++ has tickets for it, so that Python's garbage collector sees who refers to whom."""

    def __init__(self, modules: Callable[[], Sequence]):
        self._modules = modules
        self._kept: weakref.WeakKeyDictionary[_Ticket, _Kept] = weakref.WeakKeyDictionary()
        self._changes: weakref.WeakKeyDictionary[_Ticket, _Changes] = weakref.WeakKeyDictionary()

    def remember(self) -> tuple[_Ticket, list[torch.Tensor]]:
        """Returns all tensors that this keeps alive too."""
        ticket = _Ticket()
        kept = self._kept[ticket] = _Kept(self._modules())
        return ticket, _tensors_in([content for _, content in kept.contents])

    def give_back(self, ticket: _Ticket, used: Sequence[int]) -> None:
        """After further calls of the modules, which have read or made memory at these addresses."""
        self._kept[ticket].give_back(set(used))

    def compare(self, ticket: _Ticket, read: Sequence[int], made: Sequence[int]) -> tuple[_Ticket, bool, bool, bool, bool]:
        """After further calls of the modules, which have read and made memory at these addresses. Returns a ticket for the other functions, whether
        the next calls go on from something else, and whether `put_again`, `has_replaced` and `has_added` have something to do."""
        since = _Ticket()
        changes = self._changes[since] = _Changes(self._kept[ticket], _Kept(self._modules()), set(read), set(made))
        return since, changes.carries, changes.any, changes.is_watching, changes.has_empty

    def put_again(self, ticket: _Ticket) -> None:
        """Puts there what those calls have put in the place of something else, or added."""
        self._changes[ticket].put_again()

    def has_replaced(self, ticket: _Ticket) -> bool:
        """Whether somebody has put something in the place of what they have read, since this was asked last."""
        return self._changes[ticket].has_replaced()

    def has_made_again(self, ticket: _Ticket) -> bool:
        """Whether the next calls have, in the place of all that was replaced, made the same again."""
        return self._changes[ticket].has_made_again()

    def has_added(self, ticket: _Ticket) -> bool:
        """Whether somebody has put a tensor where there was nothing, since this was asked last."""
        return self._changes[ticket].has_added()


# --- places: dicts, lists, deques, cells of closures, objects with slots ---


def _fields_of(place: Any) -> tuple[str, ...]:
    return ("cell_contents",) if isinstance(place, types.CellType) else _slots_of(type(place))


_slots: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _slots_of(kind: type) -> tuple[str, ...]:
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


def _content_of(place: Any) -> Any:
    if isinstance(place, dict):
        return dict(dict.items(place))
    if isinstance(place, (list, collections.deque)):
        return list(place)
    return {name: value for name in _fields_of(place) if (value := _at(place, name)) is not _NOTHING}


def _at(place: Any, name: Any) -> Any:
    if isinstance(place, dict):
        return dict.get(place, name, _NOTHING)
    if isinstance(place, (list, collections.deque)):
        return place[name] if name < len(place) else _NOTHING
    try:
        return object.__getattribute__(place, name)
    except (AttributeError, ValueError):  # an empty cell
        return _NOTHING


def _put(place: Any, name: Any, value: Any) -> None:
    """Past what classes allow: some dicts refuse changes."""
    base: Any = collections.OrderedDict if isinstance(place, collections.OrderedDict) else dict
    if value is _NOTHING:
        if _at(place, name) is not _NOTHING and not isinstance(place, (list, collections.deque)):
            base.__delitem__(place, name) if isinstance(place, dict) else object.__delattr__(place, name)
    elif isinstance(place, dict):
        base.__setitem__(place, name, value)
    elif not isinstance(place, (list, collections.deque)):
        object.__setattr__(place, name, value)
    elif name < len(place):
        place[name] = value


def _fill(place: Any, content: Any, in_order: bool = True) -> None:
    if isinstance(content, dict):
        now = _content_of(place)
        begins_anew = in_order and list(now) != list(content)
        for name in now:
            if begins_anew or name not in content:
                _put(place, name, _NOTHING)
        for name, value in content.items():
            if _at(place, name) is not value:
                _put(place, name, value)
    else:
        place.clear()
        place.extend(content)


def _items_of(content: Any) -> Iterable[tuple[Any, Any]]:
    return content.items() if isinstance(content, dict) else enumerate(content)


def _differences(before: Any, now: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Names, with what there was and what there is."""
    old, new = dict(_items_of(before)), dict(_items_of(now))
    for name in {**old, **new}:
        was, has = old.get(name, _NOTHING), new.get(name, _NOTHING)
        if was is not has:
            yield name, was, has


# --- tensors ---


def _addresses_of(values: Iterable) -> set[int]:
    """Of the memory of those that are tensors."""
    plain = (one for one in values if type(one) in (torch.Tensor, torch.nn.Parameter) and one.layout is torch.strided)
    return {one.untyped_storage().data_ptr() for one in plain}


def _tensors_in(values: Sequence, most: int = _MOST_OBJECTS) -> list[torch.Tensor]:
    """All tensors that are reached from there, near ones first, through any object but classes, Python modules and the globals of functions."""
    tensors: list[torch.Tensor] = []
    seen: dict[int, Any] = {}  # which keeps their addresses their own
    waiting = collections.deque(values)
    while waiting and len(seen) < most:
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


def _in_tuples(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, frozenset)):
        for one in value:
            yield from _in_tuples(one)
    else:
        yield value


def _is_ours(value: Any, used: set[int]) -> bool:
    """Whether it has memory of these, or some that cannot be told."""
    tensors = _tensors_in([value])
    addresses = _addresses_of(tensors)
    return bool(addresses & used) or 0 in addresses or any(not _addresses_of([tensor]) for tensor in tensors)


def _is_alike(a: Any, b: Any, depth: int = 8) -> bool:
    if a is b:
        return True
    if type(a) is not type(b) or depth == 0:
        return False
    if isinstance(a, torch.Tensor):
        facts = [(one.shape, one.dtype, one.device, one.layout, one.requires_grad) for one in (a, b)]
        return facts[0] == facts[1] and a.layout is torch.strided and torch.equal(a, b)
    if isinstance(a, (int, float, str, bytes)):
        return bool(a == b)
    if isinstance(a, (tuple, list, collections.deque)):
        return len(a) == len(b) and all(_is_alike(*both, depth - 1) for both in zip(a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_is_alike(a[name], b[name], depth - 1) for name in a)
    return type(getattr(a, "__dict__", None)) is dict and not _slots_of(type(a)) and _is_alike(vars(a), vars(b), depth - 1)


# --- what is kept at one moment ---

_LEAVES = (torch.Tensor, type, types.ModuleType, types.CodeType, types.FrameType, types.BuiltinFunctionType, str, bytes, int, float)


class _Kept:
    """What modules have at one moment: their attributes, and all dicts, lists, deques and objects that these lead to, with a copy of each. Parameters and
    buffers are in some of them."""

    def __init__(self, modules: Sequence):
        parts = {id(part): part for module in modules if isinstance(module, torch.nn.Module) for part in module.modules()}
        self._parts = parts
        self.contents: list[tuple[Any, Any]] = []
        self.own: set[int] = set()  # the attributes of the modules
        self.near: set[int] = set()  # what is reached from these without an object in between
        self.parents: dict[int, tuple[Any, Any, bool]] = {}  # a place, the name under which it leads there, and whether to an object's attributes
        self.links: list[tuple[Any, Any, Any, int]] = []  # what leads to a place, and to which
        self.hidden: list[dict] = []  # attributes of modules that are in lists and dicts of these
        self._seen: dict[int, Any] = {}
        self._waiting: collections.deque = collections.deque()
        for part in parts.values():
            self.own.add(id(vars(part)))
            self._add(vars(part), is_near=True)
        direct = len(self._waiting)
        while self._waiting and len(self._seen) < _MOST_OBJECTS and (direct > 0 or len(self.contents) < self._most):
            direct -= 1
            if direct == 0:
                self._most = len(self.contents) + _MOST_PLACES
            self._visit(*self._waiting.popleft())
        self._seen.clear()
        self._waiting.clear()

    _most = _MOST_PLACES

    def _add(self, place: Any, is_near: bool) -> None:
        if id(place) in self._seen:
            return
        self._seen[id(place)] = place
        content = _content_of(place)
        self.contents.append((place, content))
        if is_near:
            self.near.add(id(place))
        for name, value in _items_of(content):
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
            self._waiting.append((place, name, value, inner.__self__, is_near))
        elif isinstance(inner, functools.partial):
            places = [inner.keywords]
            self._waiting.extend((place, name, value, one, False) for one in (inner.func, *inner.args))
        else:
            is_collection = isinstance(inner, (dict, list, collections.deque))
            attributes = getattr(inner, "__dict__", None) if not isinstance(inner, types.CellType) else None
            places = [inner] if is_collection or _fields_of(inner) else []
            places += [attributes] if type(attributes) is dict else []
            is_near = is_near and is_collection
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
        for place, content in self.contents:
            if id(place) in self.own:
                _fill(place, content, in_order=False)
                continue
            differences = [one for one in _differences(content, _content_of(place)) if self.is_of_calls(place, *one[1:], used)]
            if differences and (isinstance(content, list) or any(has is _NOTHING for _, _, has in differences)):
                _fill(place, content)
                continue
            for name, was, _ in differences:
                _put(place, name, was)

    def is_of_calls(self, place: Any, old: Any, value: Any, used: set[int]) -> bool:
        """Whether calls that have used such memory may have made that change, and not others at the same time, such as other ranks."""
        if not _tensors_in([old, value]):
            return False
        is_dropped = (value is None or value is _NOTHING) and id(place) in self.near
        return id(place) in self.own or is_dropped or _is_ours((old, value), used)


class _Changes:
    """What calls have changed in what modules keep, as far as it is about tensors, and what they have read there."""

    def __init__(self, before: _Kept, now: _Kept, read: set[int], made: set[int]):
        self.carries = False
        self._parents = now.parents
        self._replaced: list[tuple[Any, Any, Any]] = []
        self._longer: list[tuple[Any, list]] = []
        self._refilled: list[tuple[Any, list]] = []
        new = {id(place): content for place, content in now.contents}
        moved: list[tuple[set[int], set[int]]] = []
        for place, content in before.contents:
            items = new.get(id(place), content)  # a place that nobody has any more
            if isinstance(items, list) and len(items) != len(content):
                self._compare_lists(place, content, items, read, made)
                continue
            for name, old, value in _differences(content, items):
                had, has = _addresses_of(_tensors_in([old])), _addresses_of(_tensors_in([value]))
                if not before.is_of_calls(place, old, value, read | made):
                    continue
                self._replaced.append((place, name, value))
                moved.append((had, has))
                # Made from the old one, or swapped with it, or larger by something new: the next calls go on from the new one.
                self.carries = self.carries or bool(had & read - has) or bool(had & read and had < has)
                if old is _NOTHING and isinstance(place, dict) and id(place) not in before.own:
                    self.carries = self.carries or bool(_addresses_of(_tensors_in(list(content.values()))) & read)
        all_had = set().union(*(had for had, _ in moved))
        self.carries = self.carries or any((has - had) & all_had for had, has in moved)
        self._watch(now, read)

    def _compare_lists(self, place: Any, content: list, items: list, read: set[int], made: set[int]) -> None:
        had = _addresses_of(_tensors_in(content))
        is_longer = len(items) > len(content) and all(a is b for a, b in zip(items, content))
        if is_longer and _is_ours(items[len(content) :], read | made):
            self._longer.append((place, items[len(content) :]))
        elif not is_longer and (had & read or _is_ours(items, read | made)):
            self._refilled.append((place, items))
        else:
            return
        self.carries = self.carries or bool(had & read)

    def _watch(self, now: _Kept, read: set[int]) -> None:
        self._read: list[tuple[Any, Any, Any]] = []
        self._empty: list[list] = []  # places, names, and what was there when this was asked last
        self._sizes: list[list] = []  # places, how many were in them then, and which at first
        relevant: set[int] = set()
        for place, content in now.contents:
            found = [(place, name, value) for name, value in _items_of(content) if _addresses_of(_in_tuples(value)) & read]
            self._read += found
            if found:
                relevant.add(id(place))
        for place, name, value, child in reversed(now.links):  # children come after their parents, mostly
            if child in relevant:
                self._read.append((place, name, value))
                relevant.add(id(place))
        self._read += [(attributes, "training", attributes.get("training")) for attributes in now.hidden]
        self._last = [value for _, _, value in self._read]
        self._doubted: dict[int, Any] = {}  # what somebody has put there
        self._no_matter: dict[int, collections.deque] = {}  # of that: calls do not read it, and make the first again
        of_modules = now.own | {id(place[name]) for place, _ in now.contents if id(place) in now.own for name in ("_buffers", "_parameters") if name in place}
        for place, content in now.contents:
            if id(place) not in of_modules and id(place) not in relevant:
                continue
            for name, value in _items_of(content):
                if (value is None or value is False) and name not in _NEVER_TENSORS:
                    self._empty.append([place, name, value])
            if isinstance(place, (dict, list, collections.deque)):
                self._sizes.append([place, len(place), set(content) if isinstance(place, dict) else None])

    @property
    def any(self) -> bool:
        return bool(self._replaced or self._longer or self._refilled)

    @property
    def is_watching(self) -> bool:
        return bool(self._read)

    @property
    def has_empty(self) -> bool:
        return bool(self._empty or self._sizes)

    def _now(self, place: Any) -> Any:
        """The place that is there now, if somebody has replaced it as a whole."""
        if id(place) not in self._parents:
            return place
        parent, name, is_attributes = self._parents[id(place)]
        there = _at(self._now(parent), name)
        there = getattr(there, "__dict__", None) if is_attributes else there
        return there if type(there) is type(place) else place

    def put_again(self) -> None:
        for place, name, value in self._replaced:
            _put(self._now(place), name, value)
        for place, added in self._longer:
            self._now(place).extend(added)
        for place, items in self._refilled:
            _fill(self._now(place), items)

    def has_replaced(self) -> bool:
        is_new = False
        for i, (place, name, first) in enumerate(self._read):
            value = _at(place, name)
            if value is self._last[i]:
                continue
            self._last[i] = value
            if value is not first and not any(value is other for other in self._no_matter.get(i, ())):
                self._doubted[i] = value
                is_new = True
        return is_new

    def has_made_again(self) -> bool:
        if not all(_is_alike(_at(*self._read[i][:2]), self._read[i][2]) for i in self._doubted):
            return False
        for i, other in self._doubted.items():
            self._no_matter.setdefault(i, collections.deque(maxlen=_MOST_OTHERS)).append(other)
            _put(*self._read[i])
            self._last[i] = self._read[i][2]
        self._doubted.clear()
        return True

    def has_added(self) -> bool:
        is_new = False
        for empty in self._empty:
            value = _at(empty[0], empty[1])
            if value is not empty[2]:
                empty[2] = value
                is_new = is_new or bool(_tensors_in([value], _MOST_PLACES))
        for size in self._sizes:
            place, last, names = size
            if len(place) == last:
                continue
            size[1] = len(place)
            content = _content_of(place)
            added = content[last:] if names is None else [value for name, value in content.items() if name not in names]
            is_new = is_new or bool(_tensors_in(added, _MOST_PLACES))
        return is_new
