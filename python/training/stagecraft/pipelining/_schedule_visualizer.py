"""Schedules as lists of actions and as pictures. Pictures need matplotlib.

    visualize_schedule(get_schedule_ops("InterleavedZeroBubble", 4, 8), "schedule.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

from ._actions import B, F, I, OVERLAP_F_B, W, Row, _Action, _ComputationType
from .schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _PipelineSchedule,
    _PipelineScheduleRuntime,
    get_schedule_class,
)


class OpKey(NamedTuple):
    stage_index: int
    computation_type: _ComputationType
    microbatch_index: int


class _ComputationTypeVisual:
    """How an action is drawn: its colour, its name in the legend, and how many slots it is wide."""

    def __init__(self, color: str, text: str = "", width: int = 1) -> None:
        self.color = color
        self.text = text
        self.width = width


action_type_to_color_mapping = {
    F: _ComputationTypeVisual("blue", "Forward"),
    I: _ComputationTypeVisual("teal", "Backward Input"),
    W: _ComputationTypeVisual("green", "Backward Weight"),
    B: _ComputationTypeVisual("orange", "Full Backward", 2),
    OVERLAP_F_B: _ComputationTypeVisual("purple", "Overlap F+B", 3),
}
_OTHER = _ComputationTypeVisual("black", "Communication")


def _stages(count: int, ranks: int, stages: int) -> list[SimpleNamespace]:
    """All that a schedule looks at before its first step."""
    return [SimpleNamespace(group_rank=0, group_size=ranks, num_stages=stages, submod=None) for _ in range(count)]


def get_schedule_ops(
    schedule: str | type[_PipelineSchedule],
    pp_degree: int,
    num_microbatches: int,
    num_stages_per_rank: int | None = None,
    add_spacing: bool = False,
    with_comms: bool = False,
    defer_pp_recv: bool = False,
) -> list[Row]:
    """The actions of every rank of a schedule given by name or class.

    add_spacing: idle slots where a rank waits for another, instead of those of the schedule.
    with_comms: with messages, sharding and reductions; then defer_pp_recv receives as late as possible.
    """
    if add_spacing and with_comms:
        raise ValueError("Cannot add spacing and view comms at the same time")
    if isinstance(schedule, str):
        kind = get_schedule_class(schedule)
    elif issubclass(schedule, _PipelineSchedule):
        kind = schedule
    else:
        raise ValueError(f"Invalid schedule: {schedule}")

    if issubclass(kind, PipelineScheduleSingle):
        per_rank = 1 if num_stages_per_rank is None else num_stages_per_rank
        if per_rank != 1:
            raise AssertionError(f"Expected num_stages_per_rank to be 1, got {per_rank}")
    elif issubclass(kind, PipelineScheduleMulti):
        per_rank = 2 if num_stages_per_rank is None else num_stages_per_rank
        if per_rank < 2:
            raise AssertionError(f"Expected num_stages_per_rank >= 2, got {per_rank}")
    else:
        raise ValueError(f"Invalid schedule: {kind}")
    stages = _stages(per_rank, pp_degree, per_rank * pp_degree)
    single = issubclass(kind, PipelineScheduleSingle)
    order = kind(stages[0] if single else stages, num_microbatches).pipeline_order
    if order is None:
        raise AssertionError("Expected pipeline_order to not be None")

    if with_comms:
        runtime = _PipelineScheduleRuntime(stages, num_microbatches, defer_pp_recv=defer_pp_recv)
        # One-stage schedules list their reductions; the lowering adds them itself.
        compute = {rank: [a for a in row if a is None or a.is_compute_op] for rank, row in order.items()}
        runtime._prepare_schedule_with_comms(compute)
        order = runtime.pipeline_order_with_comms
    rows = [list(order[rank]) for rank in range(pp_degree)]
    if add_spacing:
        rows = add_schedule_op_spacing([[a for a in row if a is not None and a.is_compute_op] for row in rows])
    return rows


class _Clock:
    """When each action is done, for finding when the next can start."""

    def __init__(self, num_stages: int) -> None:
        self._last = num_stages - 1
        self._done: dict[OpKey, int] = {}

    def _is_done(self, stage: int, kinds: Sequence[_ComputationType], microbatch: int, now: int) -> bool:
        return any(self._done.get(OpKey(stage, kind, microbatch), now + 1) <= now for kind in kinds)

    def is_ready(self, action: _Action, now: int) -> bool:
        return all(self._part_is_ready(part, now) for part in action.parts)

    def _part_is_ready(self, action: _Action, now: int) -> bool:
        stage, kind, microbatch = action.stage_index, action.computation_type, action.microbatch_index
        if microbatch is None:
            raise AssertionError(f"Action {action} has None microbatch_index")
        if kind is F:
            return stage == 0 or self._is_done(stage - 1, (F,), microbatch, now)
        if kind in (B, I):
            if stage == self._last:
                return stage == 0 or self._is_done(stage - 1, (F,), microbatch, now)
            return self._is_done(stage + 1, (B, I), microbatch, now)
        if kind is W:
            return self._is_done(stage, (I,), microbatch, now)
        raise RuntimeError(f"Unknown computation type: {kind}")

    def run(self, action: _Action, now: int) -> int:
        """Notes when the parts of an action end, one after the other; returns when the whole does."""
        end = now
        for part in action.parts:
            end += action_type_to_color_mapping[part.computation_type].width
            self._done[OpKey(part.stage_index, part.computation_type, part.microbatch_index)] = end
        return now + action_type_to_color_mapping[action.computation_type].width


def add_schedule_op_spacing(schedule: list[Row]) -> list[Row]:
    """Idle slots where an action waits for another rank. An action takes as many slots as it is drawn wide."""
    if not any(schedule):
        return schedule
    stages = [part.stage_index for row in schedule for action in row if action for part in action.parts]
    clock = _Clock(max(stages) + 1)
    position, free_at = [0] * len(schedule), [0] * len(schedule)
    spaced: list[Row] = [[] for _ in schedule]
    now, patience = 0, 0
    longest = max(visual.width for visual in action_type_to_color_mapping.values())
    while any(position[rank] < len(row) for rank, row in enumerate(schedule)):
        patience += 1
        for rank, row in enumerate(schedule):
            if position[rank] == len(row):
                continue
            action = row[position[rank]]
            if action is None or (now >= free_at[rank] and clock.is_ready(action, now)):
                spaced[rank].append(action)
                position[rank] += 1
                patience = 0
                if action is not None:
                    free_at[rank] = clock.run(action, now)
        for rank in range(len(schedule)):
            if now >= free_at[rank]:
                spaced[rank].append(None)
        now += 1
        if patience > longest:
            raise RuntimeError("No progress made in scheduling - possible deadlock")
    return spaced


def visualize_schedule(schedule: list[Row], filename: str | None = None) -> None:
    """Draws one row per rank, coloured by kind of action; into a file, or on the screen."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    ranks = len(schedule)
    longest = max(len(row) for row in schedule)
    size = min(longest, ranks) + 4
    _, axes = plt.subplots(figsize=(longest + 2, ranks + 2))
    used: dict[str, _ComputationTypeVisual] = {}
    right = 0
    for rank, row in enumerate(schedule):
        left, bottom = 0, ranks - rank - 1
        for action in row:
            if action is None:
                left += 1
                continue
            visual = action_type_to_color_mapping.get(action.computation_type, _OTHER)
            used[visual.text] = visual
            border = 1 if action.sub_actions is None else 2
            axes.add_patch(
                Rectangle((left, bottom), visual.width, 1, facecolor=visual.color, edgecolor="black", linewidth=border)
            )
            middle = (left + visual.width / 2, bottom + 0.5)
            axes.text(*middle, str(action), ha="center", va="center", fontsize=size, color="white")
            left += visual.width
        right = max(right, left)
    axes.set_xlim(-0.5, right + 1)
    axes.set_ylim(-0.5, ranks + 0.5)
    axes.set_yticks([ranks - rank - 0.5 for rank in range(ranks)])
    axes.set_yticklabels([f"Rank {rank}" for rank in range(ranks)], fontsize=size)
    axes.set_xticklabels([])
    legend = [Rectangle((0, 0), 1, 1, facecolor=one.color, edgecolor="black", label=text) for text, one in used.items()]
    axes.legend(handles=legend, loc="upper right", fontsize=size)
    if filename:
        plt.savefig(filename, bbox_inches="tight")
    else:
        plt.show()
