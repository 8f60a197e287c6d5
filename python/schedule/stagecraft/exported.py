"""Models exported by ``torch.export.save``: what they are made of, and how they are cut into stages. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from . import _schedule, files
from .costs import Costs
from .notebook import page


class Model:
    """An exported model. ``to_dict`` has its inputs, outputs, operators, modules, parameters and legal cuts."""

    __slots__ = ("_capsule",)

    def __init__(self, path: files.Path, model: str | None = None) -> None:
        """As the function ``model``."""
        self._capsule = _schedule.model_read(files.path_bytes(path), model)

    def to_dict(self) -> dict:
        """The report of ``stagecraft model --format json``."""
        return _schedule.model_facts(self)

    def to_text(self, *, depth: int = 3, parameters: bool = False) -> str:
        """The report of ``stagecraft model``: modules down to this depth, and the parameters if asked for."""
        return _schedule.model_text(self, depth, parameters)

    def split(self, stages: int | None = None, *, at: Sequence[str] | None = None, marked: bool = False) -> Split:
        """Cuts it: into ``stages`` about equally large, at modules ("blocks.4", "blocks.7:end"), or where it is marked."""
        return Split(self, stages, at=at, marked=marked)

    def __repr__(self) -> str:
        facts = self.to_dict()
        return f"<Model {facts['file']!r}: {facts['totals']['parameters']['numbers']} parameters, {facts['nodes']} nodes>"

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return page(self.to_text(), None)


class Split:
    """A model cut into stages. ``to_dict`` has the stages, the values between them and the tied parameters."""

    __slots__ = ("_capsule",)

    def __init__(
        self, model: Model, stages: int | None = None, *, at: Sequence[str] | None = None, marked: bool = False
    ) -> None:
        """As ``Model.split``."""
        self._capsule = _schedule.model_split(model, stages, at, marked)

    def to_dict(self) -> dict:
        """The report of ``stagecraft split --format json``."""
        return _schedule.split_facts(self)[0]

    def to_text(self) -> str:
        """The report of ``stagecraft split``."""
        return _schedule.split_facts(self)[1]

    def costs(self, optimizer: str = "adam") -> Costs:
        """Costs of the stages, for ``simulate`` and ``plan``: times in estimated operations, memory in bytes.

        ``optimizer`` is "sgd", "momentum" or "adam": whose state takes memory.
        """
        return Costs._of(_schedule.split_costs(self, optimizer))

    def __repr__(self) -> str:
        return f"<Split: {len(self.to_dict()['stages'])} stages>"

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return page(self.to_text(), None)


def model(path: files.Path, model: str | None = None) -> Model:
    """Reads an exported model (.pt2), all but its weights; ``model`` names one where the file holds several.

    Raises FileError, which lists all faults of one kind.
    """
    return Model(path, model)
