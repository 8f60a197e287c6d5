"""Recorded timelines of real steps, and the costs found from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _schedule, files
from .action import Action
from .costs import Costs
from .notebook import page
from .schedule import Schedule


@dataclass(frozen=True, slots=True)
class Span:
    """One recorded action, in seconds. ``start`` is before the wait for its input; ``waited`` is the length of that wait."""

    action: Action
    start: float
    end: float
    waited: float
    #: Size of the message or of the gradients.
    bytes: int
    #: Whether it ran in a thread beside the rank's other actions.
    beside: bool
    #: Whether it was part of a step that was replayed as a graph.
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class TimelineSummary:
    """``busy`` is the compute time of each rank; ``idle`` the fraction of all ranks' time without compute."""

    seconds: float
    busy: list[float]
    idle: float


class Recording:
    """Consecutive steps of one run, as ``Pipeline::record_timeline`` records and ``write_timeline_trace`` writes them."""

    __slots__ = ("_capsule", "_facts")

    def __init__(self, text: str | bytes, name: str = "") -> None:
        """Parses a trace; ``name`` is for one without a name. Raises InvalidArgument that lists all mistakes."""
        self._capsule = _schedule.recording_parse(text, name)
        self._facts = _schedule.recording_facts(self)

    @classmethod
    def read(cls, path: files.Path) -> Recording:
        """Reads a trace. Raises FileError, and InvalidArgument that lists all mistakes."""
        return cls(_schedule.read_file(files.path_bytes(path)), files.stem(path))

    @property
    def name(self) -> str:
        return self._facts["name"]

    @property
    def steps(self) -> int:
        return self._facts["steps"]

    @property
    def ranks(self) -> int:
        return self._facts["ranks"]

    def spans(self, step: int = 0) -> list[list[Span]]:
        """The actions of each rank in the order of execution."""
        ranks = _schedule.recording_spans(self, step)
        return [[Span(action, *rest) for text, *rest in rank if (action := Action.from_text(text))] for rank in ranks]

    def summary(self, step: int = 0) -> TimelineSummary:
        return TimelineSummary(*_schedule.recording_summary(self, step))

    def to_trace(self) -> str:
        """Trace-event JSON that keeps all recorded data. Opens in Perfetto."""
        return _schedule.recording_picture(self, "trace", 0)

    def to_svg(self, step: int = 0) -> str:
        """One row per rank, time to the right in milliseconds."""
        return _schedule.recording_picture(self, "svg", step)

    def __reduce__(self):
        return Recording, (self.to_trace(), self.name)

    def __repr__(self) -> str:
        return f"<Recording {self.name!r}: {self.steps} steps, {self.ranks} ranks>"

    def _repr_svg_(self) -> str | None:
        return self.to_svg(self.steps - 1) if self.steps else None

    def _repr_html_(self) -> str:
        return page(repr(self), self._repr_svg_())


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """The measured times of one recording: medians over its counted steps, in seconds."""

    name: str
    #: The recorded computes and REDUCE_GRADs, in their order.
    schedule: Schedule
    steps: int
    measured_period: float
    measured_makespan: float


class Profile:
    """Costs measured from recordings, in seconds."""

    __slots__ = ("_capsule", "_facts", "_text", "costs", "runs")

    def __init__(self, recordings: Sequence[Recording], *, skip: int | None = None) -> None:
        """As the function ``profile``."""
        self._capsule = _schedule.profile(recordings, skip)
        self._facts, costs, schedules, self._text = _schedule.profile_facts(self)
        self.costs = Costs._of(costs)
        self.runs = [
            ProfiledRun(schedule=Schedule._of(schedule), **own) for schedule, own in zip(schedules, self._facts["runs"])
        ]

    @property
    def jitter(self) -> float:
        """Relative standard deviation of actions of one stage and kind within a step."""
        return self._facts["jitter"]

    @property
    def paces(self) -> list[list[float]]:
        """Slowdown of each rank in each counted step, relative to the rank's median."""
        return self._facts["paces"]

    @property
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage."""
        return tuple(self._facts["placement"])

    @property
    def assumed_splits(self) -> list[int]:
        """Stages without recorded I and W; their costs are derived from B."""
        return self._facts["assumed_splits"]

    def predicted_period(self, schedule: Schedule) -> float:
        """Predicted seconds from the end of one step to the end of the next, for a schedule over the same stages."""
        return _schedule.predicted_period(self, schedule)

    def to_text(self) -> str:
        """The report of ``stagecraft profile``."""
        return self._text

    def __repr__(self) -> str:
        return f"<Profile: {len(self.runs)} runs, {len(self.placement)} stages, jitter {self.jitter:.4f}>"

    def __str__(self) -> str:
        return self._text


def profile(*recordings: Recording, skip: int | None = None) -> Profile:
    """Measures the costs of actions and messages from recordings of the same stages.

    ``skip`` is the number of warm-up steps to leave out of each; by default the first one, unless it is the only one.
    """
    return Profile(recordings, skip=skip)
