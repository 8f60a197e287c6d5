"""Costs of actions, messages and memory. Times and memory may be in any unit, used consistently."""

from __future__ import annotations

import math
from collections.abc import Mapping

from . import _schedule, files
from .errors import InvalidArgument


class Costs:
    """Costs by stage, or by layer for ``plan`` to cut; they never change.

    The keyword arguments are the keys of a cost file, documented in docs/guide/planning.md: a number applies to all
    stages, a list has one entry per stage, numpy arrays are taken as lists. ``Costs.example()`` has every key::

        Costs(forward=18.5, backward_input=18.1, backward_weight=9.3, latency=0.6)
    """

    __slots__ = ("_capsule", "_dict")

    def __init__(self, **keys) -> None:
        """Raises InvalidArgument with one line per problem, each with its key."""
        import json

        self._capsule = _schedule.costs_parse(json.dumps(_plain(keys, "")))
        self._dict: dict | None = None

    @classmethod
    def _of(cls, capsule: object) -> Costs:
        self = cls.__new__(cls)
        self._capsule = capsule
        self._dict = None
        return self

    @classmethod
    def from_dict(cls, keys: Mapping) -> Costs:
        """The same as the keyword arguments."""
        if not isinstance(keys, Mapping):
            raise TypeError(f"costs: got {keys!r:.60} ({type(keys).__name__}), expected a dictionary of costs")
        return cls(**{str(key): value for key, value in keys.items()})

    @classmethod
    def from_json(cls, text: str | bytes) -> Costs:
        """Parses the text of a cost file. Raises InvalidArgument with one line per problem."""
        return cls._of(_schedule.costs_parse(text))

    @classmethod
    def read(cls, path: files.Path) -> Costs:
        """Reads a cost file. Raises FileError, and InvalidArgument with one line per problem."""
        return cls.from_json(_schedule.read_file(files.path_bytes(path)))

    @classmethod
    def example(cls, *, in_bytes: bool = False) -> Costs:
        """Costs with every key; with memory in bytes, those of a large model."""
        return cls.from_json(cls.example_json(in_bytes=in_bytes))

    @staticmethod
    def example_json(*, in_bytes: bool = False) -> str:
        """The same as the text of a cost file, as ``stagecraft costs --example`` writes it."""
        return _schedule.costs_example(in_bytes)

    def to_json(self) -> str:
        """A cost file in its long form; ``from_json`` of it gives the same costs."""
        return _schedule.costs_json(self)

    def to_dict(self) -> dict:
        """The same as a dictionary."""
        import json

        return json.loads(self.to_json())

    def write(self, path: files.Path) -> None:
        files.write(path, self.to_json())

    def _key(self, name: str, otherwise=None):
        if self._dict is None:
            self._dict = self.to_dict()
        return self._dict.get(name, otherwise)

    @property
    def stages(self) -> list[dict]:
        """The costs of each stage, or a single entry for all; empty for costs by layer."""
        return [dict(stage) for stage in self._key("stages", [])]

    @property
    def layers(self) -> list[dict]:
        """The costs of each layer, for costs by layer."""
        return [dict(layer) for layer in self._key("layers", [])]

    @property
    def replicas(self) -> int:
        return self._key("replicas")

    @property
    def shard(self) -> str:
        """What replicas share instead of holding copies: "none", "optimizer", "gradients" or "parameters"."""
        return self._key("shard")

    @property
    def memory_in_bytes(self) -> bool:
        return self._key("memory_unit") == "bytes"

    def memory_text(self, memory: float) -> str:
        """Memory for people: "1.5 GiB" if the costs are in bytes, else a plain number."""
        return _schedule.costs_memory_text(self, memory)

    # --- what if ---

    def with_replicas(self, replicas: int, shard: str | None = None) -> Costs:
        """The costs with so many pipelines side by side, which share what ``shard`` says (default: as now)."""
        return Costs._of(_schedule.costs_changed(self, replicas, shard, None))

    def with_recompute(self, recompute: bool = True) -> Costs:
        """The costs with all stages computed again in the backward, or none."""
        return Costs._of(_schedule.costs_changed(self, None, None, recompute))

    def with_slower_rank(self, ranks: int, rank: int, factor: float) -> Costs:
        """The costs with one of ``ranks`` ranks ``factor`` times slower."""
        return Costs._of(_schedule.costs_slower_rank(self, ranks, rank, factor))

    def with_slower_link(self, ranks: int, a: int, b: int, factor: float) -> Costs:
        """The costs with the links between two of ``ranks`` ranks, both ways, ``factor`` times slower."""
        return Costs._of(_schedule.costs_slower_link(self, ranks, a, b, factor))

    def __eq__(self, other: object) -> bool:
        return self.to_json() == other.to_json() if isinstance(other, Costs) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self):
        return Costs.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        entries = f"{len(self.layers)} layers" if self.layers else f"{len(self.stages)} stages"
        unit = "bytes" if self.memory_in_bytes else "a unit of their own"
        return f"<Costs: {entries}, {self.replicas} replicas, memory in {unit}>"


def _plain(value, key: str, depth: int = 0):
    """Numpy arrays and numbers as Python's, and numbers that JSON cannot hold refused with their key."""
    if depth > 200:
        raise InvalidArgument(f"{key[:40]}: lists and objects are nested more than 200 deep: see Costs.example()")
    if isinstance(value, Mapping):
        return {str(name): _plain(own, f"{key}.{name}" if key else str(name), depth + 1) for name, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(own, f"{key}[{i}]", depth + 1) for i, own in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"{key}: got {value}, must be finite and not negative")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), key, depth + 1)
    raise TypeError(f"{key}: got {value!r:.60} ({type(value).__name__}), expected a number, or a list of them")
