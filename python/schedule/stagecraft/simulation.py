"""Exact times and memory of a schedule under given costs."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import _schedule, files
from .action import Action
from .costs import Costs
from .errors import InvalidArgument
from .notebook import Drawn, page
from .schedule import Schedule


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Memory of a rank, by what it holds."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """What one rank does in a step. ``span`` is from its first compute to its last, ``busy`` the compute time between."""

    first_start: float
    last_end: float
    span: float
    busy: float
    #: End of all its work, including the optimizer.
    end: float
    peak_memory: float
    at_peak: MemoryParts
    #: With replicas: time of its UNSHARDs and REDUCE_GRADs, beside compute, and the part of it that the rank waits for.
    communication: float
    exposed: float


@dataclass(frozen=True, slots=True)
class Event:
    """One action with its simulated times."""

    rank: int
    slot: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Times:
    """Starts and ends of the slots of a rank, as arrays of doubles that numpy takes without a copy."""

    starts: array
    ends: array
    #: With replicas: how long each action waited for its parameters.
    parameter_waits: array


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """The memory that a rank holds from each time on, as arrays of doubles that numpy takes without a copy."""

    times: array
    memory: array


@dataclass(frozen=True, slots=True)
class CriticalAction:
    """One action of the critical path. ``after_message``: the previous one is on another rank and sent a message."""

    rank: int
    action: Action
    start: float
    end: float
    after_message: bool


@dataclass(frozen=True, slots=True)
class JitterOutcome:
    """Makespan and span over simulations with random durations."""

    runs: int
    median_makespan: float
    p95_makespan: float
    median_span: float
    p95_span: float


def _doubles(raw: bytes) -> array:
    numbers = array("d")
    numbers.frombytes(raw)
    return numbers


class Simulation(Drawn):
    """What a schedule costs. The bubble is the fraction of the ranks' time in which they do not compute."""

    __slots__ = ("_capsule", "_facts", "costs", "schedule")

    def __init__(self, schedule: Schedule, costs: Costs, *, jitter: float = 0, runs: int = 100, seed: int = 0) -> None:
        """As the function ``simulate``."""
        self._capsule = _schedule.simulate(schedule, costs, jitter, runs, seed)
        self._facts = _schedule.simulation_facts(self)
        #: The simulated schedule and its costs.
        self.schedule = schedule
        self.costs = costs

    @property
    def makespan(self) -> float:
        """From time 0 to the end of the last rank, its reductions and optimizer included."""
        return self._facts["makespan"]

    @property
    def span(self) -> float:
        """The largest span of any rank, from its first F to its last W."""
        return self._facts["span"]

    @property
    def bubble_makespan(self) -> float:
        return self._facts["bubble_makespan"]

    @property
    def bubble_span(self) -> float:
        return self._facts["bubble_span"]

    @property
    def peak_memory(self) -> float:
        """The largest of all ranks; ``ranks`` has those of each."""
        return self._facts["peak"]["max"]

    @property
    def hidden_communication(self) -> float:
        """The fraction of the communication between replicas that overlaps with compute; 1 if there is none."""
        return self._facts["hidden_communication"]

    @property
    def ranks(self) -> list[RankOutcome]:
        return [RankOutcome(**{**rank, "at_peak": MemoryParts(**rank["at_peak"])}) for rank in self._facts["per_rank"]]

    @property
    def critical_path(self) -> list[CriticalAction]:
        """The chain of computes that ends with the last one of all ranks; speeding up others does not shorten the step."""
        return [
            CriticalAction(**{**own, "action": Action.from_text(own["action"])})
            for own in self._facts["critical_path"]["actions"]
        ]

    @property
    def jitter(self) -> JitterOutcome | None:
        """The outcome of the simulations with jitter, where it was asked for."""
        return self._facts["jitter"] and JitterOutcome(**self._facts["jitter"])

    def times(self, rank: int) -> Times:
        """When each slot of a rank starts and ends; an idle slot ends when it starts."""
        return Times(*map(_doubles, _schedule.simulation_times(self, rank)))

    def memory(self, rank: int) -> MemoryCurve:
        """The memory of a rank over time."""
        return MemoryCurve(*map(_doubles, _schedule.simulation_memory(self, rank)))

    @property
    def events(self) -> list[Event]:
        """All actions that are not idle, rank by rank."""
        found = []
        for rank, row in enumerate(self.schedule.rows):
            times = self.times(rank)
            found += [
                Event(rank, slot, action, times.starts[slot], times.ends[slot])
                for slot, action in enumerate(row)
                if action is not None
            ]
        return found

    def to_dict(self) -> dict:
        """The report of ``stagecraft simulate --format json``."""
        import copy

        return copy.deepcopy(self._facts)

    def to_text(self) -> str:
        """The report of ``stagecraft simulate``."""
        return _schedule.simulation_text(self)

    def to_svg(self) -> str:
        """One row per rank with its memory below. Raises InvalidArgument above 200 000 actions."""
        return _schedule.simulation_picture(self, "svg")

    def to_trace(self) -> str:
        """Trace-event JSON with a counter for the memory of each rank. Opens in Perfetto."""
        return _schedule.simulation_picture(self, "trace")

    def write(self, path: files.Path) -> None:
        """Writes a picture to a .svg file, and a trace to any other."""
        files.write(path, self.to_svg() if files.extension(path) == "svg" else self.to_trace())

    def __reduce__(self):
        jitter = self._facts["jitter"]
        if jitter is not None:
            raise InvalidArgument("a simulation with jitter cannot be pickled: pickle its schedule and costs instead")
        return Simulation, (self.schedule, self.costs)

    def __repr__(self) -> str:
        return (
            f"<Simulation of {self.schedule.name!r}: span {self.span:.6g}, bubble {100 * self.bubble_span:.2f}%, "
            f"makespan {self.makespan:.6g}, peak memory {self.costs.memory_text(self.peak_memory)}>"
        )

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return page(self.to_text(), self._repr_svg_())


def simulate(schedule: Schedule, costs: Costs, *, jitter: float = 0, runs: int = 100, seed: int = 0) -> Simulation:
    """Runs each rank's actions in order; an action starts once the previous one has ended and its message has arrived.

    With ``jitter``, the standard deviation of actions relative to their cost, also runs so many random simulations.
    Raises ScheduleError for a schedule that cannot run, InvalidArgument for costs that do not fit it.
    """
    return Simulation(schedule, costs, jitter=jitter, runs=runs, seed=seed)


class Comparison(Sequence):
    """Outcomes of several schedules under the same costs, the shortest span first.

    Each is a dictionary with the keys name, ranks, stages, microbatches, makespan, span, bubble_makespan, bubble_span,
    peak (max and per_rank) and hidden_communication.
    """

    __slots__ = ("_outcomes", "_text")

    def __init__(self, outcomes: list[dict], text: str) -> None:
        self._outcomes = [{"name": own["file"], **{k: v for k, v in own.items() if k != "file"}} for own in outcomes]
        self._text = text

    def __getitem__(self, index):
        return self._outcomes[index]

    def __len__(self) -> int:
        return len(self._outcomes)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return page(self._text, None)


def compare(schedules: Mapping[str, Schedule] | Sequence[Schedule], costs: Costs) -> Comparison:
    """Simulates several schedules under the same costs, as ``stagecraft compare``; a dictionary gives them names."""
    if isinstance(schedules, Mapping):
        return Comparison(*_schedule.compare(list(schedules), list(schedules.values()), costs))
    if not isinstance(schedules, Sequence) or isinstance(schedules, (str, bytes)):
        raise TypeError(f"schedules: got {schedules!r:.60} ({type(schedules).__name__}), expected a list or dictionary of schedules")
    names = [getattr(own, "name", None) or f"schedule {i}" for i, own in enumerate(schedules)]
    return Comparison(*_schedule.compare(names, schedules, costs))
