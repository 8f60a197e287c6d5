"""Actions: the instruction set of a pipeline schedule, and their text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from . import _schedule

#: Kinds of action as they stand in their text.
KINDS = (
    "F", "B", "I", "W", "OVERLAP_F_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a schedule, such as ``2F0``: the forward of stage 2 for microbatch 0.

    ``kind`` is one of KINDS: F, B (whole backward), I (gradient of the inputs), W (gradient of the weights), ...
    UNSHARD, RESHARD and REDUCE_GRAD have no microbatch. An OVERLAP_F_B has two ``parts``; its stage and microbatch are
    those of the first. An idle slot is None and not an action.
    """

    kind: str
    stage: int
    microbatch: int | None = None
    parts: tuple[Action, ...] = ()

    @staticmethod
    def from_text(text: str) -> Action | None:
        """The action of a cell, or None for an empty one. Raises InvalidArgument for any other text."""
        return _parsed(text) if type(text) is str else _made(_schedule.parse_action(text))

    @classmethod
    def forward(cls, stage: int, microbatch: int) -> Action:
        return cls("F", stage, microbatch)

    @classmethod
    def backward(cls, stage: int, microbatch: int) -> Action:
        return cls("B", stage, microbatch)

    @classmethod
    def backward_input(cls, stage: int, microbatch: int) -> Action:
        return cls("I", stage, microbatch)

    @classmethod
    def backward_weight(cls, stage: int, microbatch: int) -> Action:
        return cls("W", stage, microbatch)

    @classmethod
    def overlap(cls, first: Action, second: Action) -> Action:
        """A forward and a backward in flight together; their order is kept."""
        return cls("OVERLAP_F_B", first.stage, first.microbatch, (first, second))

    @property
    def text(self) -> str:
        """As ``torch.distributed.pipelining`` writes it: ``2F0``, ``0UNSHARD``, ``(0F5;7B2)OVERLAP_F_B``."""
        if self.parts:
            return f"({';'.join(part.text for part in self.parts)}){self.kind}"
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"

    def __str__(self) -> str:
        return self.text


def _made(fields: tuple | None) -> Action | None:
    if fields is None:
        return None
    if fields[0] == "OVERLAP_F_B":
        return Action.overlap(Action(*fields[1]), Action(*fields[2]))
    return Action(*fields)


@lru_cache(maxsize=65536)
def _parsed(text: str) -> Action | None:
    return _made(_schedule.parse_action(text))
