"""What calls of the modules have changed of what these keep: whether the next calls go on from it, and how to do it again without a call."""

from __future__ import annotations

from typing import Any

from stagecraft.torch._kept import MOST_PLACES, Kept
from stagecraft.torch._places import NOTHING, differences, fill, put, value_at
from stagecraft.torch._tensors import addresses_in, may_have, tensors_in


class Changes:
    """The changes between two moments that are about tensors. In between, the calls have read and made memory at these addresses."""

    def __init__(self, before: Kept, now: Kept, read: set[int], made: set[int]):
        self.carries = False  # whether the next calls go on from something else
        self._parents = now.parents
        self._replaced: list[tuple[Any, Any, Any]] = []  # places, names, and what is there now
        self._longer: list[tuple[Any, list]] = []  # lists, and what has been added at their ends
        self._refilled: list[tuple[Any, list]] = []  # lists that have been changed otherwise, and all that is in them
        self._filled: list[tuple[Any, Any]] = []  # places and names that had no tensor and have one now
        self._begun: list[Any] = []  # lists, likewise
        new = {id(place): content for place, content in now.contents}
        moved: list[tuple[set[int], set[int]]] = []
        for place, content in before.contents:
            items = new.get(id(place), content)  # a place that nobody has any more
            if isinstance(items, list) and len(items) != len(content):
                self._compare_lists(place, content, items, read, made)
            else:
                moved += self._compare_names(before, place, content, items, read, made)
        all_had = set().union(*(had for had, _ in moved))
        self.carries = self.carries or any((has - had) & all_had for had, has in moved)

    def _compare_names(self, before: Kept, place: Any, content: Any, items: Any, read: set[int], made: set[int]) -> list[tuple[set[int], set[int]]]:
        """Returns for each change the memory of what was there, and of what is there now."""
        moved = []
        for name, old, value in differences(content, items):
            if not before.is_of_calls(place, old, value, read | made):
                continue
            had, has = addresses_in([old]), addresses_in([value])
            self._replaced.append((place, name, value))
            moved.append((had, has))
            if not tensors_in([old]):
                self._filled.append((place, name))
            # Made from the old one, or swapped with it, or larger by something new: the next calls go on from the new one.
            self.carries = self.carries or bool(had & read - has) or bool(had & read and had < has)
            if old is NOTHING and isinstance(place, dict) and id(place) not in before.own:
                self.carries = self.carries or bool(addresses_in(list(content.values())) & read)
        return moved

    def _compare_lists(self, place: Any, content: list, items: list, read: set[int], made: set[int]) -> None:
        had = addresses_in(content)
        is_longer = len(items) > len(content) and all(a is b for a, b in zip(items, content))
        if is_longer and may_have(items[len(content) :], read | made):
            self._longer.append((place, items[len(content) :]))
        elif not is_longer and (had & read or may_have(items, read | made)):
            self._refilled.append((place, items))
        else:
            return
        self.carries = self.carries or bool(had & read)
        if not tensors_in(content):
            self._begun.append(place)

    @property
    def any(self) -> bool:
        return bool(self._replaced or self._longer or self._refilled)

    def put_again(self) -> None:
        for place, name, value in self._replaced:
            put(self._place_now(place), name, value)
        for place, added in self._longer:
            self._place_now(place).extend(added)
        for place, items in self._refilled:
            fill(self._place_now(place), items)

    def has_filled(self) -> bool:
        """Whether there is a tensor where those calls have found none: the next ones may go on from it instead of making it."""
        filled = (value_at(self._place_now(place), name) for place, name in self._filled)
        return any(tensors_in([value], MOST_PLACES) for value in filled) or any(tensors_in(self._place_now(place), MOST_PLACES) for place in self._begun)

    def _place_now(self, place: Any) -> Any:
        """The place that is there now, if somebody has replaced it as a whole."""
        if id(place) not in self._parents:
            return place
        parent, name, is_attributes = self._parents[id(place)]
        there = value_at(self._place_now(parent), name)
        there = getattr(there, "__dict__", None) if is_attributes else there
        return there if type(there) is type(place) else place
