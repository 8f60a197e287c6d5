"""Pipeline-parallel schedules as data: make them, lower them, prove them safe, draw them, time them, plan them.

    import stagecraft as sc

    schedule = sc.Schedule.named("ZBVZeroBubble", ranks=4, microbatches=8)
    schedule.lower().require_valid()
    print(sc.simulate(schedule, sc.Costs(forward=1, backward_input=1, backward_weight=1)))

Needs neither torch nor numpy. The distribution stagecraft-torch adds stagecraft.torch and stagecraft.pipelining.
"""

# Another distribution adds subpackages, perhaps in another folder.
__path__ = __import__("pkgutil").extend_path(__path__, __name__)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .action import KINDS as KINDS, Action as Action
    from .costs import Costs as Costs
    from .errors import (
        AbortedError as AbortedError,
        Error as Error,
        FileError as FileError,
        InfeasibleLimit as InfeasibleLimit,
        InternalError as InternalError,
        InvalidArgument as InvalidArgument,
        ParseError as ParseError,
        ScheduleError as ScheduleError,
        ShapeError as ShapeError,
        StepError as StepError,
        TimeoutError as TimeoutError,
        TransportError as TransportError,
    )
    from .exported import (
        Model as Model,
        Split as Split,
        model as model,
    )
    from .planning import (
        NamedOutcome as NamedOutcome,
        Plan as Plan,
        PlanProgress as PlanProgress,
        plan as plan,
        smallest_memory_limit as smallest_memory_limit,
        span_lower_bound as span_lower_bound,
    )
    from .recording import (
        Profile as Profile,
        ProfiledRun as ProfiledRun,
        Recording as Recording,
        Span as Span,
        TimelineSummary as TimelineSummary,
        profile as profile,
    )
    from .schedule import (
        DEFAULT_LOWERING as DEFAULT_LOWERING,
        Generator as Generator,
        Pass as Pass,
        Schedule as Schedule,
        generators as generators,
        passes as passes,
    )
    from .simulation import (
        Comparison as Comparison,
        CriticalAction as CriticalAction,
        Event as Event,
        JitterOutcome as JitterOutcome,
        MemoryCurve as MemoryCurve,
        MemoryParts as MemoryParts,
        RankOutcome as RankOutcome,
        Simulation as Simulation,
        Times as Times,
        compare as compare,
        simulate as simulate,
    )
    from .verdict import (
        COMM_MODELS as COMM_MODELS,
        Refusal as Refusal,
        Verdict as Verdict,
        Waiting as Waiting,
    )

    __version__: str

# A name is imported from its module when it is first asked for, so that importing the package takes no time.
_MODULE_OF = {
    name: module
    for module, names in {
        "action": "KINDS Action",
        "costs": "Costs",
        "errors": """
            AbortedError Error FileError InfeasibleLimit InternalError InvalidArgument ParseError
            ScheduleError ShapeError StepError TimeoutError TransportError
        """,
        "exported": "Model Split model",
        "planning": "NamedOutcome Plan PlanProgress plan smallest_memory_limit span_lower_bound",
        "recording": "Profile ProfiledRun Recording Span TimelineSummary profile",
        "schedule": "DEFAULT_LOWERING Generator Pass Schedule generators passes",
        "simulation": """
            Comparison CriticalAction Event JitterOutcome MemoryCurve MemoryParts RankOutcome Simulation
            Times compare simulate
        """,
        "verdict": "COMM_MODELS Refusal Verdict Waiting",
    }.items()
    for name in names.split()
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str):
    if name == "__version__":
        from ._schedule import version

        value = version()
    elif name in _MODULE_OF:
        module = __import__(f"{__name__}.{_MODULE_OF[name]}", fromlist=[name])
        value = getattr(module, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
