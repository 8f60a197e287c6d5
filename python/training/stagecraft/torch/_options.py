"""Options of a pipeline: small Python classes, and the dicts that the C++ side takes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch

from stagecraft.torch._errors import InvalidArgument


class Edge(NamedTuple):
    """One output of a stage as one argument of a later stage."""

    source: int
    output: int
    target: int
    argument: int
    gradient: bool = True


class Tie(NamedTuple):
    """A parameter that several stages have under one name: each gets the sum of the gradients of all."""

    parameter: str
    stages: Sequence[int]


@dataclass(frozen=True)
class Split:
    """How one argument, keyword or target is cut into microbatches; `dimension` None gives all of it to each."""

    dimension: int | None = 0
    sizes: Sequence[int] = ()

    @staticmethod
    def along(dimension: int) -> "Split":
        return Split(dimension)

    @staticmethod
    def replicate() -> "Split":
        return Split(None)

    @staticmethod
    def into(sizes: Sequence[int], dimension: int = 0) -> "Split":
        return Split(dimension, tuple(sizes))


@dataclass(frozen=True)
class Recompute:
    """What a stage drops after its forward and computes again before its backward."""

    kind: str
    argument: Any = None

    @staticmethod
    def stage() -> "Recompute":
        """The whole stage at once."""
        return Recompute("stage")

    @staticmethod
    def every(layers: int) -> "Recompute":
        """Segments of so many layers, for stages that are a torch.nn.Sequential."""
        return Recompute("every", layers)

    @staticmethod
    def where(chosen: Callable[[str], bool]) -> "Recompute":
        """The layers whose names `chosen` accepts, each by itself."""
        return Recompute("where", chosen)


@dataclass(frozen=True)
class LossScaling:
    initial: float = 65536
    growth: float = 2
    backoff: float = 0.5
    growth_interval: int = 2000


@dataclass(frozen=True)
class Precision:
    """Floating-point types of a pipeline; see `PipelineOptions::precision` of C++."""

    compute: torch.dtype | None = None
    keep: Sequence[str] = ()
    parameters: torch.dtype | None = None
    autocast: torch.dtype | None = None
    reduce: torch.dtype | None = None
    scaling: LossScaling | None = None


@dataclass(frozen=True)
class Automatic:
    """Options of the schedule "auto"."""

    profile_steps: int = 5
    time_budget: float = 10
    memory_limit: float = 0
    seed: int = 0


@dataclass
class Options:
    """All options of a pipeline, with their defaults."""

    schedule: Any = "1F1B"
    microbatches: int = 0
    loss: Callable | None = None
    stages_per_rank: int = 0
    loss_scale: str = "mean"
    loss_weight: Callable | None = None
    edges: Sequence[Edge] = ()
    ties: Sequence[Tie] = ()
    argument_splits: Sequence[Split] = ()
    keyword_splits: Mapping[str, Split] = field(default_factory=dict)
    target_split: Split = Split()
    merge_outputs: Callable | None = None
    broadcast_loss: bool = False
    seed: int | None = None
    passes: str | None = None
    bucket_bytes: int = 16 << 20
    shard: str = "none"
    freeze: Sequence[str] = ()
    precision: Precision = Precision()
    accumulate: int = 1
    recompute: Recompute | None = None
    graph: bool | str = False
    lanes: int = 0
    automatic: Automatic = Automatic()

    def as_dict(self) -> dict:
        return {
            "schedule": schedule_choice(self.schedule),
            "microbatches": self.microbatches,
            "loss": self.loss,
            "stages_per_rank": self.stages_per_rank,
            "loss_scale": self.loss_scale,
            "loss_weight": self.loss_weight,
            "edges": [Edge(*edge) for edge in self.edges],
            "ties": [Tie(*tie) for tie in self.ties],
            "argument_splits": [_split(split) for split in self.argument_splits],
            "keyword_splits": {name: _split(split) for name, split in self.keyword_splits.items()},
            "target_split": _split(self.target_split),
            "merge_outputs": self.merge_outputs,
            "broadcast_loss": self.broadcast_loss,
            "seed": self.seed,
            "passes": self.passes,
            "bucket_bytes": self.bucket_bytes,
            "shard": self.shard,
            "freeze": list(self.freeze),
            "precision": _precision(self.precision),
            "accumulate": self.accumulate,
            "recompute": recompute_tuple(self.recompute),
            "graph": self.graph,
            "lanes": self.lanes,
            "automatic": vars(self.automatic),
        }


def schedule_choice(schedule: Any) -> tuple:
    """("name", name or path) or ("csv", text, name): a name, a path, rows of actions, or an object that can be written as CSV."""
    if isinstance(schedule, (str, os.PathLike)):
        return ("name", os.fspath(schedule))
    name = getattr(schedule, "name", "") or ""
    to_csv = getattr(schedule, "to_csv", None)
    if callable(to_csv):
        return ("csv", to_csv(), str(name))
    rows = getattr(schedule, "rows", schedule)
    if isinstance(rows, Mapping):  # as torch.distributed.pipelining has it: rank -> actions
        rows = [rows[rank] for rank in sorted(rows)]
    if isinstance(rows, Sequence):
        return ("csv", "\n".join(",".join("" if cell is None else str(cell) for cell in row) for row in rows) + "\n", str(name))
    raise InvalidArgument(
        f"a schedule is a name, the path of a CSV file, rows of actions, or a stagecraft.Schedule, got an object of type "
        f"'{type(schedule).__name__}'"
    )


def recompute_tuple(recompute: Recompute | None) -> tuple | None:
    if recompute is None:
        return None
    if not isinstance(recompute, Recompute):
        raise InvalidArgument(f"recompute is Recompute.stage(), .every(layers) or .where(chosen), got {recompute!r}")
    return (recompute.kind,) if recompute.argument is None else (recompute.kind, recompute.argument)


def _split(split: Split | int | None) -> tuple:
    if isinstance(split, Split):
        return (split.dimension, list(split.sizes))
    return (split, [])


def _precision(precision: Precision) -> dict:
    values = dict(vars(precision))
    values["keep"] = list(precision.keep)
    values["scaling"] = None if precision.scaling is None else vars(precision.scaling)
    return values
