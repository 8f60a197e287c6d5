"""Checks a compute schedule before anything runs, and finds which rank holds which stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ._actions import B, F, I, W, _Action
from ._order_text import _format_pipeline_order

_NAMES = {F: "Forward", B: "Full Backward", I: "Backward Input", W: "Backward Weight"}
_BEFORE = {B: F, I: F, W: I}


class _Checker:
    def __init__(self, actions: Mapping[int, Sequence[_Action | None]], num_stages: int, num_microbatches: int) -> None:
        self._actions = actions
        self._microbatches = num_microbatches
        self._seen = {stage: {kind: set() for kind in _NAMES} for stage in range(num_stages)}
        self.rank_of: dict[int, int] = {}

    def look_at(self, action: _Action, rank: int, step: int) -> None:
        stage, kind, microbatch = action.stage_index, action.computation_type, action.microbatch_index
        where = f"Rank {rank}, step {step}"
        if stage not in self._seen:
            raise AssertionError(f"{where}: {action} is of a stage that does not exist: there are {len(self._seen)}")
        if kind in _NAMES:
            seen = self._seen[stage]
            what = f"{where}: Running {_NAMES[kind]} for stage {stage}, microbatch {microbatch}"
            if microbatch is None or not 0 <= microbatch < self._microbatches:
                raise AssertionError(f"{what}, but microbatches go from 0 to {self._microbatches - 1}")
            alike = (B, I) if kind in (B, I) else (kind,)
            if any(microbatch in seen[one] for one in alike):
                raise AssertionError(f"{what} a second time")
            before = _BEFORE.get(kind)
            if before is not None and microbatch not in seen[before]:
                table = _format_pipeline_order(self._actions, error_step_number=step)
                raise AssertionError(
                    f"{what} without first running {_NAMES[before]}\n\nFull pipeline schedule:\n{table}"
                )
            seen[kind].add(microbatch)
        holder = self.rank_of.setdefault(stage, rank)
        if holder != rank:
            raise AssertionError(f"{where}: Stage {stage} is assigned to both rank {rank} and rank {holder}")

    def check_counts(self) -> None:
        for stage, seen in self._seen.items():
            forwards, whole, inputs, weights = (len(seen[kind]) for kind in (F, B, I, W))
            if forwards != self._microbatches:
                raise AssertionError(f"Got {forwards} {F} microbatches for stage {stage}, expected {self._microbatches}")
            wrong = f"Invalid backward microbatches for stage {stage}: "
            if inputs != weights:
                raise AssertionError(f"{wrong}I and W must have equal counts, but got I={inputs}, W={weights}")
            if whole + inputs != self._microbatches:
                raise AssertionError(
                    f"{wrong}expected {self._microbatches} total backwards, but got B={whole}, I={inputs}, W={weights}"
                )


def _validate_schedule(
    actions: Mapping[int, Sequence[_Action | None]], pp_group_size: int, num_stages: int, num_microbatches: int
) -> dict[int, int]:
    """Checks that every stage runs every microbatch forward and backward, once and in order, on one rank.

    Returns the rank of each stage. Actions other than compute are only looked at for the rank that they are on.
    """
    if len(actions) != pp_group_size:
        raise AssertionError(
            f"Schedule has incorrect number of ranks - expected {pp_group_size}, actual {len(actions)}"
        )
    for rank in range(pp_group_size):
        if rank not in actions:
            raise AssertionError(f"Schedule is missing actions for rank {rank}")
    checker = _Checker(actions, num_stages, num_microbatches)
    for rank, row in actions.items():
        for step, action in enumerate(row):
            if action is None:
                continue
            if not isinstance(action, _Action):
                raise AssertionError(
                    f"Rank {rank}, step {step}: Got an invalid action: {action}, expected instance of _Action"
                )
            for part in action.parts:
                checker.look_at(part, rank, step)
    checker.check_counts()
    return checker.rank_of
