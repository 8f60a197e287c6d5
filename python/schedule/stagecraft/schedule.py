"""Schedules as data: made by name or read from CSV, lowered, verified and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import _schedule, files
from .action import Action
from .errors import InvalidArgument
from .notebook import Drawn, page
from .verdict import COMM_MODELS, Verdict, _verdict

#: The lowering that PyTorch does.
DEFAULT_LOWERING = "unshard_reshard,reduce_grad,send_recv"


@dataclass(frozen=True, slots=True)
class Generator:
    """A known schedule. Formulas are in p ranks, m microbatches, v stages per rank and the times F, B, I, W of a stage."""

    name: str
    #: "linear", "loop" or "v".
    placement: str
    min_stages_per_rank: int
    max_stages_per_rank: int
    default_stages_per_rank: int
    takes_memory_limit: bool
    #: Formula of the idle time of a rank.
    bubble: str
    #: Formula of the most activations, of one microbatch in one stage each, that rank r holds at once.
    memory: str
    summary: str


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass that lowers a schedule."""

    name: str
    summary: str


def generators() -> list[Generator]:
    """All known schedules, in the order of ``stagecraft list``."""
    return [Generator(**facts) for facts in _schedule.listing()["schedules"]]


def passes() -> list[Pass]:
    """All passes, in the order they are usually applied."""
    return [Pass(**facts) for facts in _schedule.listing()["passes"]]


class Schedule(Drawn):
    """One row of actions per rank, the map of stages to ranks, and the number of microbatches.

    A schedule never changes: passes return a new one. It need not be valid; ``verify`` says whether it can run. Schedules
    are equal if rows, placement and number of microbatches are; the name does not count.
    """

    __slots__ = ("_capsule", "_facts")

    def __init__(self, rows: Iterable[Iterable[Action | str | None]], name: str = "") -> None:
        """Makes a schedule of rows of actions, their texts, or None for idle slots; a stage is on the rank that computes it.

        Raises ScheduleError when a stage computes on two ranks, when stage numbers have gaps, or without any action.
        """
        self._capsule = _schedule.schedule_from_rows(_texts(rows), name)
        self._facts: dict | None = None

    @classmethod
    def _of(cls, capsule: object) -> Schedule:
        self = cls.__new__(cls)
        self._capsule = capsule
        self._facts = None
        return self

    # --- making ---

    @classmethod
    def named(
        cls,
        name: str,
        *,
        ranks: int,
        microbatches: int,
        stages_per_rank: int | None = None,
        memory_limit: int | None = None,
    ) -> Schedule:
        """A known schedule, such as "1F1B"; ``generators`` lists them. Case, - and _ in the name do not matter.

        ``memory_limit`` is the most microbatches whose activations a rank may hold, for schedules that adapt to memory.
        """
        return cls._of(_schedule.schedule_named(name, ranks, microbatches, stages_per_rank, memory_limit))

    @classmethod
    def from_csv(cls, text: str | bytes, name: str = "") -> Schedule:
        """Parses CSV as ``torch.distributed.pipelining`` writes it: a line is a rank, a cell an action. Raises ParseError."""
        return cls._of(_schedule.schedule_from_csv(text, name))

    @classmethod
    def read(cls, path: files.Path) -> Schedule:
        """Reads a CSV file and names the schedule after it. Raises FileError and ParseError."""
        return cls._of(_schedule.schedule_read(files.path_bytes(path)))

    # --- looking ---

    def _fact(self, key: str):
        if self._facts is None:
            self._facts = _schedule.schedule_facts(self)
        return self._facts[key]

    @property
    def name(self) -> str:
        return self._fact("name")

    @property
    def ranks(self) -> int:
        return self._fact("ranks")

    @property
    def stages(self) -> int:
        return self._fact("stages")

    @property
    def microbatches(self) -> int:
        return self._fact("microbatches")

    @property
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage."""
        return tuple(self._fact("placement"))

    @property
    def placement_style(self) -> str:
        """ "linear", "loop", "v", or "custom" for any other map."""
        return self._fact("placement_style")

    @property
    def is_lowered(self) -> bool:
        """Whether any action is not a compute action."""
        return self._fact("is_lowered")

    @property
    def trains(self) -> bool:
        """Whether there is any backward."""
        return self._fact("trains")

    @property
    def communicates(self) -> bool:
        """Whether there is any SEND or RECV."""
        return self._fact("communicates")

    @property
    def actions(self) -> int:
        """Number of actions that are not idle; an overlap counts once."""
        return self._fact("actions")

    @property
    def slots(self) -> int:
        """Number of slots in all rows, idle ones included."""
        return self._fact("slots")

    @property
    def idle_slots(self) -> int:
        return self._fact("idle_slots")

    @property
    def rows(self) -> list[list[Action | None]]:
        """The actions of each rank in order; None is an idle slot. Made anew at each call."""
        return [[Action.from_text(cell) if cell else None for cell in row] for row in _schedule.schedule_rows(self)]

    # --- lowering and verifying ---

    def lower(self, passes: str | Sequence[str] = DEFAULT_LOWERING) -> Schedule:
        """Runs passes, left to right: names in a list or separated by commas, such as "unshard_reshard=2,send_recv".

        Raises InvalidArgument for an unknown name before the first pass runs, ScheduleError for a faulty schedule.
        """
        if isinstance(passes, (list, tuple)) and all(isinstance(name, str) for name in passes):
            passes = ",".join(passes)
        return Schedule._of(_schedule.schedule_lowered(self, passes))

    def merge_backward(self) -> Schedule:
        """Replaces an I that is immediately followed by its own W with one B. Removes idle slots."""
        return self.lower("merge_backward")

    def unshard_reshard(self, max_active: int = 3) -> Schedule:
        """Gathers at most ``max_active`` stages of a rank at a time, each early enough to be a prefetch."""
        return self.lower(f"unshard_reshard={max_active}")

    def reduce_grad(self) -> Schedule:
        """Inserts REDUCE_GRAD right after the action that completes a stage's last weight gradient."""
        return self.lower("reduce_grad")

    def send_recv(self) -> Schedule:
        """Inserts SENDs and RECVs in an order that cannot deadlock, even with blocking sends."""
        return self.lower("send_recv")

    def defer_receives(self) -> Schedule:
        """Moves each RECV back to just before its consumer. Needs a transport with tags."""
        return self.lower("defer_receives")

    def place_receives(self) -> Schedule:
        """Moves each RECV as late as possible without delaying anybody. Safe on every transport."""
        return self.lower("place_receives")

    def verify(self) -> Verdict:
        """Checks every action, and that no communication model can deadlock. Does not raise for an invalid schedule."""
        return _verdict(_schedule.verify(self))

    def require_valid(self, model: str = "rendezvous") -> None:
        """Raises ScheduleError, with the cycle of waiting ranks for a deadlock, unless it is safe under the model."""
        _schedule.require_valid(self, model)

    def check(self, models: Sequence[str] = COMM_MODELS) -> dict:
        """The report of ``stagecraft check``: a compute-only schedule is verified as it stands, then lowered by send_recv."""
        return _schedule.check(self, models)[0]

    def check_text(self, models: Sequence[str] = COMM_MODELS) -> str:
        """The same as text."""
        return _schedule.check(self, models)[1]

    def count_steps(self) -> int:
        """Number of steps if every action takes one. Raises ScheduleError when no rank can go on."""
        return _schedule.count_steps(self)

    def peak_live_activations(self) -> list[int]:
        """Per rank, the largest number of live activations, of one microbatch in one stage each."""
        return _schedule.peak_live_activations(self)

    # --- writing and drawing ---

    def to_csv(self) -> str:
        """CSV with CRLF line ends, as Python's csv module writes it."""
        return _schedule.schedule_csv(self)

    def to_json(self) -> str:
        """Name, ranks, stages, microbatches, placement and rows."""
        return _schedule.schedule_picture(self, "json", "slots", False, 0)

    def to_table(self, *, align: str = "auto", colour: bool = False, width: int = 0) -> str:
        """A line per step and a column per rank, in blocks of at most ``width`` columns.

        ``align`` is "slots" (as they stand), "steps" (when each would run if every action took one step) or "auto" (by
        steps unless the slots are a timetable already).
        """
        return _schedule.schedule_picture(self, "table", align, colour, width)

    def to_svg(self, *, align: str = "auto") -> str:
        """A self-contained picture, one row per rank. Raises InvalidArgument above 200 000 cells."""
        return _schedule.schedule_picture(self, "svg", align, False, 0)

    def to_trace(self, *, align: str = "auto") -> str:
        """Trace-event JSON, one process per rank. Opens in Perfetto."""
        return _schedule.schedule_picture(self, "trace", align, False, 0)

    def write(self, path: files.Path, format: str | None = None) -> None:
        """Writes it as "csv", "json", "svg", "trace" or "table"; by default by the extension of the path, else as CSV."""
        known = {
            "csv": self.to_csv, "json": self.to_json, "svg": self.to_svg, "trace": self.to_trace, "table": self.to_table,
        }  # fmt: skip
        if format is None:
            format = files.extension(path) if files.extension(path) in ("json", "svg") else "csv"
        if format not in known:
            raise InvalidArgument(f"format: got {format!r:.60}, expected {', '.join(known)}")
        files.write(path, known[format]())

    def __eq__(self, other: object) -> bool:
        return _schedule.schedule_equal(self, other) if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.ranks, self.stages, self.microbatches, self.slots, self.actions))

    def __reduce__(self):
        return Schedule.from_csv, (self.to_csv(), self.name)

    def __copy__(self) -> Schedule:
        return self

    def __deepcopy__(self, memo: dict) -> Schedule:
        return self

    def __repr__(self) -> str:
        kind = "lowered" if self.is_lowered else "compute-only"
        return (
            f"<Schedule {self.name!r}: {self.ranks} ranks, {self.stages} stages, {self.microbatches} microbatches, "
            f"{self.actions} actions, {kind}>"
        )

    def __str__(self) -> str:
        return self.to_table()

    def _repr_html_(self) -> str:
        return page(repr(self), self._repr_svg_())


def _texts(rows: Iterable[Iterable[Action | str | None]]) -> object:
    """Rows with actions replaced by their text; what is no rows is left to the C++ side to refuse."""
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        return rows
    return [
        row if isinstance(row, (str, bytes)) or not isinstance(row, Iterable)
        else [cell.text if isinstance(cell, Action) else cell for cell in row]
        for row in rows
    ]  # fmt: skip
