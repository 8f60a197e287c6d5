"""The losses of the step that runs, for the backwards and then for the user."""

from __future__ import annotations

import torch


class StepLosses(list[torch.Tensor]):
    """Losses in the order in which they were computed.

    A list, because custom functions append theirs to it: a loss that was appended belongs to the microbatch of its position.
    """

    def __init__(self) -> None:
        super().__init__()
        self._position_of: dict[int, int] = {}

    def put(self, microbatch: int, loss: torch.Tensor) -> None:
        position = self._position_of.setdefault(microbatch, len(self))
        self[position : position + 1] = [loss]

    def _position(self, microbatch: int) -> int | None:
        if microbatch in self._position_of:
            return self._position_of[microbatch]
        appended = 0 <= microbatch < len(self) and microbatch not in self._position_of.values()
        return microbatch if appended else None

    def of(self, microbatch: int) -> torch.Tensor | None:
        position = self._position(microbatch)
        return None if position is None else self[position]

    def let_go_of_graph(self, microbatch: int) -> None:
        """After its backward a loss is only a number."""
        position = self._position(microbatch)
        if position is not None:
            self[position] = self[position].detach()

    def microbatches(self) -> list[int]:
        """Those that have a loss, in the order of the list."""
        owners = {position: microbatch for microbatch, position in self._position_of.items()}
        return [owners.get(position, position) for position in range(len(self))]

    def in_order(self) -> list[torch.Tensor]:
        """By microbatch, ascending."""
        return [loss for _, loss in sorted(zip(self.microbatches(), self, strict=True), key=lambda pair: pair[0])]

    def clear(self) -> None:
        super().clear()
        self._position_of.clear()
