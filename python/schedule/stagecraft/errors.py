"""The exceptions of Stagecraft, one per error type of the C++ library and with its words.

A message holds the value that was wrong, the rule it breaks and the remedy. Arguments of a wrong type raise TypeError.
"""

from __future__ import annotations

import builtins


class Error(Exception):
    """What all failures that Stagecraft reports have in common."""


class InvalidArgument(Error, ValueError):
    """An argument is outside what the function accepts. Nothing was changed."""


class InfeasibleLimit(InvalidArgument):
    """The memory limit is too small: no schedule keeps it, or none was found that does."""

    #: The smallest feasible limit; where waiting messages take memory, the smallest peak of the schedules tried.
    smallest: float = 0.0


class ParseError(Error, ValueError):
    """Text that is not a schedule. Row and column count from 1, as in an editor; 0 means the file as a whole."""

    row: int = 0
    column: int = 0


class ScheduleError(Error):
    """A schedule that must not run.

    ``rank`` and ``step`` (the slot in the rank's row), counted from 0, point at the faulty ``action``; ``step`` is -1
    when an action is missing. For a deadlock, ``cycle`` lists the waits: each rank waits for the next, the last for the
    first. Each wait has the keys rank, step, action, on_rank, on_step and on_action.
    """

    rank: int = 0
    step: int = -1
    action: str = ""
    cycle: list[dict] = []
    #: The part of the table around the fault, several lines.
    excerpt: str = ""


class StepError(Error):
    """An action of a training step failed. The message holds the cause and an excerpt of the schedule."""

    rank: int = 0
    action: str = ""


class ShapeError(Error):
    """A tensor is not what an edge or a stage expects."""

    stage: int = 0


class TransportError(Error):
    """A message between ranks could not be exchanged."""

    peer: int = 0


class TimeoutError(TransportError, builtins.TimeoutError):
    """A wait exceeded its time limit. The message says what was awaited, and from which rank."""


class AbortedError(TransportError):
    """Another rank failed, so this one had to stop. ``peer`` is the failed rank; the message is that rank's error."""


class FileError(Error, OSError):
    """A file cannot be read or written, or its contents are invalid. The message begins with the path."""

    path: str = ""


class InternalError(Error):
    """A broken invariant of Stagecraft itself: please report it."""
