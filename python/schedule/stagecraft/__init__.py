"""Pipeline-parallel schedules as data: make them, lower them, prove them safe, draw them, time them, plan them.

    import stagecraft as sc

    schedule = sc.Schedule.named("ZBVZeroBubble", ranks=4, microbatches=8)
    schedule.lower().require_valid()
    print(sc.simulate(schedule, sc.Costs(forward=1, backward_input=1, backward_weight=1)))

Needs neither torch nor numpy. The distribution stagecraft-torch adds stagecraft.torch and stagecraft.pipelining.
"""

# Another distribution adds subpackages, perhaps in another folder.
__path__ = __import__("pkgutil").extend_path(__path__, __name__)

from . import _schedule
from .action import KINDS, Action
from .costs import Costs
from .errors import (
    AbortedError,
    Error,
    FileError,
    InfeasibleLimit,
    InternalError,
    InvalidArgument,
    ParseError,
    ScheduleError,
    ShapeError,
    StepError,
    TimeoutError,
    TransportError,
)
from .exported import Model, Split, model
from .planning import NamedOutcome, Plan, PlanProgress, plan, smallest_memory_limit, span_lower_bound
from .recording import Profile, ProfiledRun, Recording, Span, TimelineSummary, profile
from .schedule import DEFAULT_LOWERING, Generator, Pass, Schedule, generators, passes
from .simulation import (
    Comparison,
    CriticalAction,
    Event,
    JitterOutcome,
    MemoryCurve,
    MemoryParts,
    RankOutcome,
    Simulation,
    Times,
    compare,
    simulate,
)
from .verdict import COMM_MODELS, Refusal, Verdict, Waiting

__version__: str = _schedule.version()

__all__ = [
    "COMM_MODELS", "DEFAULT_LOWERING", "KINDS", "AbortedError", "Action", "Comparison", "Costs", "CriticalAction", "Error",
    "Event", "FileError", "Generator", "InfeasibleLimit", "InternalError", "InvalidArgument", "JitterOutcome", "MemoryCurve",
    "MemoryParts", "Model", "NamedOutcome", "ParseError", "Pass", "Plan", "PlanProgress", "Profile", "ProfiledRun",
    "RankOutcome", "Recording", "Refusal", "Schedule", "ScheduleError", "ShapeError", "Simulation", "Span", "Split",
    "StepError", "TimelineSummary", "TimeoutError", "Times", "TransportError", "Verdict", "Waiting", "compare",
    "generators", "model", "passes", "plan", "profile", "simulate", "smallest_memory_limit", "span_lower_bound",
]  # fmt: skip
