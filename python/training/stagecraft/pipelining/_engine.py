"""Where a faster engine takes over a step from the interpreter.

A schedule asks once per step, before its stages have told each other anything. An engine runs the whole step: preparing stages,
all actions, losses into schedule._internal_losses (by microbatch), outputs into the last stage's output_chunks. All ranks of a
group must come to the same answer, because the engines do not understand each other's messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ._program import Step
    from ._schedule_base import _PipelineSchedule


class Engine(Protocol):
    def run(self, step: Step) -> None:
        """Runs all actions of this rank for one step. On failure the schedule must be able to start another step."""


def faster_engine(schedule: _PipelineSchedule, step: Step) -> Engine | None:
    """An engine that can run this step with the same result as the interpreter, or None."""
    return None
