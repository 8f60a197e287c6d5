"""Whether a schedule can run, and why not."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidArgument

#: How a transport matches messages, from the least to the most restrictive model: by tag (MPI), by order alone per pair
#: of ranks (NCCL), and with sends and receives that block.
COMM_MODELS = ("tagged", "in_order", "rendezvous")


@dataclass(frozen=True, slots=True)
class Waiting:
    """One link of a chain of waiting ranks: ``rank`` is blocked at ``action`` until ``on_rank`` has run ``on_action``."""

    rank: int
    step: int
    action: str | None
    on_rank: int
    on_step: int
    on_action: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a schedule must not run. ``step`` is -1 when the fault is an action that is missing."""

    message: str
    rank: int
    step: int
    action: str | None
    #: For a deadlock: each rank waits for the next, the last for the first.
    cycle: tuple[Waiting, ...]
    #: The part of the table around the fault, several lines.
    excerpt: str
    #: Message, cycle and excerpt.
    full_text: str

    def __str__(self) -> str:
        return self.full_text


def _refusal(facts: dict | None) -> Refusal | None:
    if facts is None:
        return None
    return Refusal(**{**facts, "cycle": tuple(Waiting(**link) for link in facts["cycle"])})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ``Schedule.verify`` found. It is true if the schedule is safe under every model."""

    lowered: bool
    #: A fault under every model: missing, repeated or misplaced actions, or an order that cannot be executed.
    fault: Refusal | None
    #: Set only when there is no fault; all None for a schedule without SEND and RECV.
    by_model: dict[str, Refusal | None]

    def refusal(self, model: str) -> Refusal | None:
        """The fault, or the refusal under this model; None when the schedule is safe under it."""
        if model not in self.by_model:
            raise InvalidArgument(f"model: got {model!r:.60}, expected {', '.join(COMM_MODELS)}")
        return self.fault or self.by_model[model]

    def ok(self, model: str | None = None) -> bool:
        """Whether it is safe under this model, or under all of them."""
        return not any(self.refusal(own) for own in ([model] if model is not None else COMM_MODELS))

    def first_refusal(self) -> Refusal | None:
        return self.fault or next((own for own in self.by_model.values() if own), None)

    def __bool__(self) -> bool:
        return self.ok()


def _verdict(facts: dict) -> Verdict:
    by_model = {model: _refusal(own) for model, own in facts["by_model"].items()}
    return Verdict(facts["lowered"], _refusal(facts["fault"]), by_model)
