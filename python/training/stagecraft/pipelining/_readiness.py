"""Whose turn it is: which ranks can run their next action, kept up to date as actions finish."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ._actions import _Action

# For one part of an action: alternatives, of which one has to be done on the rank given with it.
Needs = list[tuple[int, _Action]]


class Turns:
    """Positions of all ranks in their rows. A rank is ready when every part of its next action has one alternative done."""

    def __init__(
        self, rows: Mapping[int, Sequence[_Action | None]], needs_of: Callable[[int, _Action], Iterable[Needs]]
    ) -> None:
        self._rows = rows
        self._needs_of = needs_of
        self._done: set[tuple[int, _Action]] = set()
        self._watchers: dict[tuple[int, _Action], list[tuple[set[int], int]]] = defaultdict(list)
        # Ranks that have actions left, ascending, with the number of the next one.
        self.position = {rank: 0 for rank in sorted(rows) if rows[rank]}
        # Per rank, the parts of its next action that still wait.
        self._open: dict[int, set[int]] = {}
        for rank in self.position:
            self._look_at(rank)

    def _look_at(self, rank: int) -> None:
        waiting: set[int] = set()
        self._open[rank] = waiting
        action = self._rows[rank][self.position[rank]]
        if action is None:
            return
        for part, needs in enumerate(self._needs_of(rank, action)):
            if needs and not any(need in self._done for need in needs):
                waiting.add(part)
                for need in needs:
                    self._watchers[need].append((waiting, part))

    def is_ready(self, rank: int) -> bool:
        return not self._open[rank]

    def next_action(self, rank: int) -> _Action | None:
        return self._rows[rank][self.position[rank]]

    def finish(self, rank: int, action: _Action) -> None:
        """Notes that a rank has done an action, whether from its row or added to it."""
        key = (rank, action)
        self._done.add(key)
        for waiting, part in self._watchers.pop(key, ()):
            waiting.discard(part)

    def advance(self, rank: int) -> None:
        self.position[rank] += 1
        if self.position[rank] == len(self._rows[rank]):
            del self.position[rank]
        else:
            self._look_at(rank)
