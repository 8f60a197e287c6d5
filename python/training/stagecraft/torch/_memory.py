"""The memory of a rank for what its modules keep from call to call. A step that is replayed as a graph runs no code: it needs to know what that code would
have left in the modules, and whether somebody has put something else in the place of what it reads (docs/design/graphs.md)."""

from __future__ import annotations

import weakref
from typing import Callable, Sequence

import torch

from stagecraft.torch._changes import Changes
from stagecraft.torch._kept import Kept
from stagecraft.torch._places import Ours
from stagecraft.torch._tensors import tensors_in
from stagecraft.torch._watch import Watch


class _Ticket:
    """C++ holds it for as long as it wants what Memory has for it."""


class Memory(Ours):
    """What the modules of a rank keep. C++ has tickets for it, so that Python's garbage collector sees who refers to whom."""

    def __init__(self, modules: Callable[[], Sequence], others: Sequence = ()):
        """`others`: functions and objects that calls of the modules use, or that are called after them."""
        self._modules = modules
        self._others = list(others)
        self._kept: weakref.WeakKeyDictionary[_Ticket, Kept] = weakref.WeakKeyDictionary()
        self._changes: weakref.WeakKeyDictionary[_Ticket, Changes] = weakref.WeakKeyDictionary()
        self._watches: weakref.WeakKeyDictionary[_Ticket, Watch] = weakref.WeakKeyDictionary()

    def remember(self) -> tuple[_Ticket, list[torch.Tensor]]:
        """Returns a ticket for `give_back` and `compare`, and all tensors that this keeps alive too."""
        ticket = _Ticket()
        kept = self._kept[ticket] = Kept(self._modules(), self._others)
        return ticket, tensors_in([content for _, content in kept.contents])

    def give_back(self, ticket: _Ticket, used: Sequence[int]) -> None:
        """After further calls of the modules, which have read or made memory at these addresses."""
        self._kept[ticket].give_back(set(used))

    def compare(self, ticket: _Ticket, read: Sequence[int], made: Sequence[int]) -> tuple[_Ticket, bool, bool, bool, bool]:
        """After further calls of the modules, which have read and made memory at these addresses. Returns a ticket for the other functions, whether
        the next calls go on from something else, and whether `put_again`, `has_replaced` and `has_added` have something to do."""
        since, now = _Ticket(), Kept(self._modules(), self._others)
        changes = self._changes[since] = Changes(self._kept[ticket], now, set(read), set(made))
        watch = self._watches[since] = Watch(now, set(read))
        return since, changes.carries, changes.any, watch.has_read, watch.has_empty

    def put_again(self, ticket: _Ticket) -> None:
        """Puts there what those calls have put in the place of something else, or added."""
        self._changes[ticket].put_again()

    def has_replaced(self, ticket: _Ticket) -> bool:
        """Whether somebody has put something in the place of what they have read, since this was asked last."""
        return self._watches[ticket].has_replaced()

    def has_made_again(self, ticket: _Ticket) -> bool:
        """Whether the next calls have, in the place of all that was replaced, made the same again."""
        return self._watches[ticket].has_made_again()

    def has_added(self, ticket: _Ticket) -> bool:
        """Whether somebody has put a tensor where there was nothing, since this was asked last."""
        return self._watches[ticket].has_added()

    def begins_otherwise(self, ticket: _Ticket) -> bool:
        """Whether the next calls would find tensors where those calls have found none, made by them or read elsewhere."""
        return self._changes[ticket].has_filled() or self._watches[ticket].has_added_known()
