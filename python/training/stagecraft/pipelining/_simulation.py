"""Runs a lowered table without tensors: finds missing and misordered messages and counts steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ._actions import B, F, I, RECV_B, RECV_F, SEND_B, SEND_F, Table, _Action, _ComputationType
from ._order_text import _format_pipeline_order
from ._readiness import Needs, Turns


class _Dependencies:
    """For each action, alternatives of which one must be done, and on which rank."""

    def __init__(self, stage_to_rank: Callable[[int], int], num_stages: int) -> None:
        self._rank = stage_to_rank
        self._last = num_stages - 1

    def alternatives(self, action: _Action) -> Needs:
        if not isinstance(action.computation_type, _ComputationType):
            raise ValueError(f"Unsupported action type {action}")
        stage, kind, microbatch = action.stage_index, action.computation_type, action.microbatch_index
        # Where: on the rank of the stage itself, except that a receive looks at the rank that sends.
        here = self._rank(stage) if stage >= 0 else -1
        if kind is F and stage > 0:
            return self._on(here, microbatch, (stage, RECV_F), (stage - 1, F))
        if kind in (I, B) and stage < self._last:
            return self._on(here, microbatch, (stage, RECV_B), (stage + 1, I), (stage + 1, B))
        if kind is SEND_F:
            return self._on(here, microbatch, (stage, F))
        if kind is SEND_B:
            return self._on(here, microbatch, (stage, I), (stage, B))
        if kind is RECV_F:
            return self._on(self._rank(stage - 1), microbatch, (stage - 1, SEND_F))
        if kind is RECV_B:
            return self._on(self._rank(stage + 1), microbatch, (stage + 1, SEND_B))
        return []

    @staticmethod
    def _on(rank: int, microbatch: int | None, *kinds: tuple[int, _ComputationType]) -> Needs:
        return [(rank, _Action(stage, kind, microbatch)) for stage, kind in kinds]


def _simulate_comms_compute(
    pipeline_order: Mapping[int, Sequence[_Action | None]], stage_to_rank: Callable[[int], int], num_stages: int
) -> Table:
    """The table with idle slots where a rank has to wait, one action per rank and step.

    A rank that was not ready when its turn came gets a second one in the same step. Raises ValueError if no rank can go on.
    """
    dependencies = _Dependencies(stage_to_rank, num_stages)
    rows = {rank: [action for action in pipeline_order[rank] if action is not None] for rank in sorted(pipeline_order)}
    turns = Turns(rows, lambda rank, action: [dependencies.alternatives(part) for part in action.parts])
    steps: Table = {rank: [] for rank in rows}

    def run(rank: int) -> _Action:
        action = turns.next_action(rank)
        for part in action.parts:
            turns.finish(rank, part)
        turns.advance(rank)
        return action

    while turns.position:
        progress = False
        for rank in list(turns.position):
            if turns.is_ready(rank):
                steps[rank].append(run(rank))
                progress = True
            else:
                steps[rank].append(None)
        for rank in list(turns.position):
            if steps[rank][-1] is None and turns.is_ready(rank):
                steps[rank][-1] = run(rank)
        if not progress:
            waiting = ", ".join(f"rank {rank} waits at {turns.next_action(rank)}" for rank in turns.position)
            raise ValueError(f"Schedule is not progressing: {waiting}\n{_format_pipeline_order(steps)}")
    return steps
