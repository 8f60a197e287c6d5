"""The actions of a schedule, and their text: 2F0, 1UNSHARD, 3SEND_F1, (0F5;7B2)OVERLAP_F_B."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple


class _ComputationType(str, Enum):
    FORWARD = "F"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    FULL_BACKWARD = "B"
    OVERLAP_F_B = "OVERLAP_F_B"
    REDUCE_GRAD = "REDUCE_GRAD"

    # Enum's own is written in Python; tables put millions of actions into sets.
    __hash__ = str.__hash__

    @staticmethod
    def from_str(action: str) -> _ComputationType:
        try:
            return _ComputationType(action)
        except ValueError as error:
            raise RuntimeError(f"Invalid computation type {action}") from error


FORWARD = F = _ComputationType.FORWARD
BACKWARD_INPUT = I = _ComputationType.BACKWARD_INPUT
BACKWARD_WEIGHT = W = _ComputationType.BACKWARD_WEIGHT
FULL_BACKWARD = B = _ComputationType.FULL_BACKWARD
UNSHARD = _ComputationType.UNSHARD
RESHARD = _ComputationType.RESHARD
SEND_F = _ComputationType.SEND_F
RECV_F = _ComputationType.RECV_F
SEND_B = _ComputationType.SEND_B
RECV_B = _ComputationType.RECV_B
OVERLAP_F_B = _ComputationType.OVERLAP_F_B
REDUCE_GRAD = _ComputationType.REDUCE_GRAD

COMPUTE = frozenset({F, B, I, W, OVERLAP_F_B})
WITHOUT_MICROBATCH = frozenset({UNSHARD, RESHARD, REDUCE_GRAD})

_SINGLE = re.compile(
    r"(\d+)(" + "|".join(kind.value for kind in _ComputationType if kind is not OVERLAP_F_B) + r")(\d*)"
)


class _Action(NamedTuple):
    stage_index: int
    computation_type: _ComputationType
    microbatch_index: int | None = None
    sub_actions: tuple[_Action, ...] | None = None

    def __repr__(self) -> str:
        if self.sub_actions is not None:
            return f"({';'.join(map(repr, self.sub_actions))}){self.computation_type.value}"
        microbatch = "" if self.microbatch_index is None else self.microbatch_index
        return f"{self.stage_index}{self.computation_type.value}{microbatch}"

    __str__ = __repr__

    @property
    def is_compute_op(self) -> bool:
        return self.computation_type in COMPUTE

    @property
    def parts(self) -> tuple[_Action, ...]:
        """The actions that an overlapped one is made of; any other action alone."""
        return (self,) if self.sub_actions is None else self.sub_actions

    @staticmethod
    def from_str(action_string: str) -> _Action | None:
        """The inverse of repr; None for blank text, which is an idle slot."""
        text = action_string.strip()
        if not text:
            return None
        if text.startswith("(") and ")" in text:
            inside, kind = text[1:].split(")", 1)
            parts = [_Action.from_str(part) for part in inside.split(";")]
            found = tuple(part for part in parts if part is not None)
            return _Action(-1, _ComputationType.from_str(kind), None, found or None)
        match = _SINGLE.fullmatch(text)
        if match is None:
            raise RuntimeError(
                f"Invalid action string: {action_string}, should be formatted as "
                "[stage][action type][(microbatch)] e.g. 2F0"
            )
        stage, kind, microbatch = match.groups()
        return _Action(int(stage), _ComputationType(kind), int(microbatch) if microbatch else None)


Row = list[_Action | None]
Table = dict[int, Row]
