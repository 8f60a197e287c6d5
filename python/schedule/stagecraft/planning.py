"""The search for a schedule with the smallest span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import _schedule
from .costs import Costs
from .notebook import page
from .schedule import Schedule
from .simulation import Simulation


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """How far a search is. ``part`` is the completed fraction, ``span`` the best so far and ``bubble`` its bubble."""

    placement: str
    part: float
    span: float
    bubble: float
    #: Lower bound on the span, for this placement.
    lower_bound: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{100 * self.part:3.0f}%  {self.seconds:.0f} s  {self.placement}: bubble {100 * self.bubble:.2f}%, "
            f"lower bound {self.lower_bound:.6g}, span {self.span:.6g}"
        )


@dataclass(frozen=True, slots=True)
class NamedOutcome:
    """A known schedule under the costs of the request. ``fits``: it keeps the memory limit."""

    name: str
    span: float
    bubble_span: float
    peak: float
    fits: bool


class Plan:
    """What ``plan`` found."""

    __slots__ = ("_facts", "_simulation", "_text", "costs", "schedule")

    def __init__(self, schedule: Schedule, costs: Costs, facts: dict, text: str) -> None:
        #: Compute-only and verified.
        self.schedule = schedule
        #: The costs of the stages: those of the request, or of the layers that were cut.
        self.costs = costs
        self._facts = facts
        self._text = text
        self._simulation: Simulation | None = None

    @property
    def simulation(self) -> Simulation:
        """The planned schedule, simulated with its costs."""
        if self._simulation is None:
            self._simulation = Simulation(self.schedule, self.costs)
        return self._simulation

    @property
    def span(self) -> float:
        return self._facts["span"]

    @property
    def bubble_span(self) -> float:
        return self._facts["bubble_span"]

    @property
    def peak_memory(self) -> float:
        return self._facts["peak"]["max"]

    @property
    def origin(self) -> str:
        """ "search", "exact", "one at a time", or the name of a known schedule that was not improved upon."""
        return self._facts["found_by"]

    @property
    def lower_bound_span(self) -> float:
        """Lower bound on the span for this placement and memory limit."""
        return self._facts["lower_bound_span"]

    @property
    def lower_bound_bubble(self) -> float:
        return self._facts["lower_bound_bubble"]

    @property
    def cuts(self) -> list[int] | None:
        """With costs by layer: stage s is made of the layers cuts[s] to cuts[s + 1]."""
        return self._facts["cuts"]

    @property
    def named(self) -> list[NamedOutcome]:
        """Every known schedule for these ranks, stages and microbatches."""
        return [NamedOutcome(**own) for own in self._facts["named"]]

    @property
    def trials(self) -> int:
        return self._facts["trials"]

    @property
    def seconds(self) -> float:
        return self._facts["seconds"]

    @property
    def finished(self) -> bool:
        """False when the time budget or ``stop`` ended the search: another run may then give another schedule."""
        return self._facts["finished"]

    @property
    def proven(self) -> bool:
        """Whether the span is proven optimal for this placement and limit."""
        return self._facts["proven"]

    def to_dict(self) -> dict:
        """The report of ``stagecraft plan --format json``."""
        import copy

        return copy.deepcopy(self._facts)

    def to_text(self) -> str:
        """The report of ``stagecraft plan``."""
        return self._text

    def __reduce__(self):
        return Plan, (self.schedule, self.costs, self._facts, self._text)

    def __repr__(self) -> str:
        return f"<Plan: {self.schedule!r}, span {self.span:.6g}, bubble {100 * self.bubble_span:.2f}%, by {self.origin}>"

    def __str__(self) -> str:
        return self._text

    def _repr_svg_(self) -> str | None:
        return self.simulation._repr_svg_()

    def _repr_html_(self) -> str:
        return page(self._text, self._repr_svg_())


def plan(
    costs: Costs,
    *,
    ranks: int,
    microbatches: int,
    memory_limit: float | str | None = None,
    placement: str = "any",
    stages_per_rank: int | None = None,
    time_budget: float = 30,
    effort: float = 1,
    seed: int = 0,
    exact: bool = False,
    threads: int | None = None,
    progress: Callable[[PlanProgress], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Plan:
    """Searches for the schedule with the smallest span, and cuts layers into stages where the costs are by layer.

    ``memory_limit`` is the most memory of a rank, in the unit of the costs or such as "80GiB". ``placement`` is "linear",
    "loop", "v" or "any". The search has a fixed size, times ``effort``; after ``time_budget`` seconds it ends with the best
    schedule so far. ``exact`` solves small cases exactly afterwards, and needs the program cbc.

    Other Python threads run meanwhile. ``progress`` is called from time to time and ``stop`` about 30 times a second, both
    on this thread; when ``stop`` returns true, the best schedule so far is returned. Ctrl-C, or an exception of either, ends
    the search and is raised.

    Raises InfeasibleLimit when no schedule keeps the memory limit, InvalidArgument for other numbers that do not fit.
    """
    report = progress
    if callable(progress):
        def report(*numbers):
            progress(PlanProgress(*numbers))  # fmt: skip
    found = _schedule.plan(
        ranks, microbatches, costs, memory_limit, placement, stages_per_rank, time_budget, effort, seed, exact, threads,
        report, stop,
    )  # fmt: skip
    schedule, stage_costs, facts, text = found
    return Plan(Schedule._of(schedule), Costs._of(stage_costs), facts, text)


def smallest_memory_limit(costs: Costs, *, ranks: int, placement: str = "linear", stages_per_rank: int = 1) -> float:
    """The smallest memory limit that any schedule keeps, without waiting messages."""
    return _schedule.smallest_memory_limit(costs, placement, ranks, stages_per_rank)


def span_lower_bound(
    costs: Costs,
    *,
    ranks: int,
    microbatches: int,
    placement: str = "linear",
    stages_per_rank: int = 1,
    memory_limit: float | str | None = None,
) -> float:
    """A lower bound on the span of every schedule."""
    return _schedule.span_lower_bound(costs, placement, ranks, stages_per_rank, microbatches, memory_limit)
