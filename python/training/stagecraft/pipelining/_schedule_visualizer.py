"""Draws a schedule: a row per rank, a box per action.

>>> ops = get_schedule_ops("InterleavedZeroBubble", 4, 8, add_spacing=True)
>>> visualize_schedule(ops, "schedule.png")

matplotlib is imported only to draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from ._actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    OVERLAP_F_B,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    _Action,
    _ComputationType,
)

if TYPE_CHECKING:
    from .schedules import _PipelineSchedule

Rows = list[list[_Action | None]]


class OpKey(NamedTuple):
    stage_index: int
    computation_type: _ComputationType
    microbatch_index: int


@dataclass
class _ComputationTypeVisual:
    color: str
    text: str = ""
    width: int = 1


action_type_to_color_mapping = {
    FORWARD: _ComputationTypeVisual("blue", "Forward"),
    BACKWARD_INPUT: _ComputationTypeVisual("teal", "Backward Input"),
    BACKWARD_WEIGHT: _ComputationTypeVisual("green", "Backward Weight"),
    FULL_BACKWARD: _ComputationTypeVisual("orange", "Full Backward", 2),
    OVERLAP_F_B: _ComputationTypeVisual("purple", "Overlap F+B", 3),
    SEND_F: _ComputationTypeVisual("slategray", "Send Forward"),
    RECV_F: _ComputationTypeVisual("gray", "Receive Forward"),
    SEND_B: _ComputationTypeVisual("sienna", "Send Backward"),
    RECV_B: _ComputationTypeVisual("peru", "Receive Backward"),
    UNSHARD: _ComputationTypeVisual("darkviolet", "Unshard"),
    RESHARD: _ComputationTypeVisual("indigo", "Reshard"),
    REDUCE_GRAD: _ComputationTypeVisual("crimson", "Reduce Gradients"),
}


def get_schedule_ops(
    schedule: str | type[_PipelineSchedule],
    pp_degree: int,
    num_microbatches: int,
    num_stages_per_rank: int | None = None,
    add_spacing: bool = False,
    with_comms: bool = False,
    defer_pp_recv: bool = False,
) -> Rows:
    """The actions of a schedule, a row per rank. The schedule is a class or its name.

    add_spacing inserts an idle slot (None) wherever a rank waits for another one. with_comms includes the messages and
    reductions of the table as it is run; with defer_pp_recv, receives stand as late as possible instead of as early.
    """
    from .schedules import (
        PipelineScheduleMulti,
        PipelineScheduleSingle,
        _PipelineSchedule,
        _PipelineScheduleRuntime,
        get_schedule_class,
    )

    if add_spacing and with_comms:
        raise ValueError("Cannot add spacing and view comms at the same time")
    kind = get_schedule_class(schedule) if isinstance(schedule, str) else schedule
    if not (isinstance(kind, type) and issubclass(kind, _PipelineSchedule)):
        raise ValueError(f"Invalid schedule: {schedule}")
    single = issubclass(kind, PipelineScheduleSingle)
    if not single and not issubclass(kind, PipelineScheduleMulti):
        raise ValueError(f"Invalid schedule: {kind}")
    if num_stages_per_rank is None:
        num_stages_per_rank = 1 if single else 2
    if single and num_stages_per_rank != 1:
        raise AssertionError(f"Expected num_stages_per_rank to be 1, got {num_stages_per_rank}")
    if not single and num_stages_per_rank < 2:
        raise AssertionError(f"Expected num_stages_per_rank >= 2, got {num_stages_per_rank}")

    # Making a table takes no more of a stage than these.
    stages = [
        SimpleNamespace(
            group_rank=0,
            group_size=pp_degree,
            num_stages=num_stages_per_rank * pp_degree,
            stage_index=index * pp_degree,
            submod=None,
        )
        for index in range(num_stages_per_rank)
    ]
    made = kind(stages[0] if single else stages, num_microbatches)
    if made.pipeline_order is None:
        raise AssertionError(f"{kind.__name__} has no table of actions")
    rows = [list(made.pipeline_order[rank]) for rank in range(pp_degree)]
    if add_spacing:
        return add_schedule_op_spacing([[action for action in row if action is not None] for row in rows])
    if not with_comms:
        return rows

    runtime = _PipelineScheduleRuntime(stages, num_microbatches, defer_pp_recv=defer_pp_recv)
    compute = {rank: [action for action in row if action is None or action.is_compute_op] for rank, row in enumerate(rows)}
    runtime._prepare_schedule_with_comms(compute)
    # Schedules of one stage per rank leave gathering sharded weights to the modules.
    left_out = (UNSHARD, RESHARD) if single else ()
    lowered = runtime.pipeline_order_with_comms
    return [
        [action for action in lowered[rank] if action.computation_type not in left_out] for rank in range(pp_degree)
    ]


def _width(action: _Action) -> int:
    return action_type_to_color_mapping[action.computation_type].width


class _Clock:
    """When each action of a spaced schedule ends."""

    def __init__(self, num_stages: int) -> None:
        self._last_stage = num_stages - 1
        self._ends: dict[OpKey, int] = {}

    def ready(self, action: _Action, now: int) -> bool:
        return all(
            any(self._ends.get(OpKey(stage, kind, part.microbatch_index), now + 1) <= now for stage, kind in choices)
            for part in action.parts
            for choices in self._needs(part)
        )

    def start(self, action: _Action, now: int) -> int:
        """Returns when the action ends. The parts of an overlapped one end one after the other."""
        end = now
        for part in action.parts:
            end += _width(part)
            self._ends[OpKey(part.stage_index, part.computation_type, part.microbatch_index)] = end
        return now + _width(action)

    def _needs(self, action: _Action) -> Iterator[list[tuple[int, _ComputationType]]]:
        """What must have ended, each with its alternatives. Reductions and sharding follow their own rank's order."""
        stage, kind = action.stage_index, action.computation_type
        if kind in (FULL_BACKWARD, BACKWARD_INPUT):
            yield [(stage, FORWARD)]
            if stage < self._last_stage:
                yield [(stage + 1, FULL_BACKWARD), (stage + 1, BACKWARD_INPUT)]
        elif kind is FORWARD and stage > 0:
            yield [(stage - 1, FORWARD)]
        elif kind is BACKWARD_WEIGHT:
            yield [(stage, BACKWARD_INPUT)]
        elif kind is RECV_F:
            yield [(stage - 1, SEND_F)]
        elif kind is RECV_B:
            yield [(stage + 1, SEND_B)]


def add_schedule_op_spacing(schedule: Rows) -> Rows:
    """Inserts None wherever a rank has to wait for another one.

    A slot is as long as a forward. A longer action takes one entry of its row, too: entries are not columns.
    """
    parts = [part for row in schedule for action in row if action is not None for part in action.parts]
    if not parts:
        return schedule
    clock = _Clock(max(part.stage_index for part in parts) + 1)
    spaced: Rows = [[] for _ in schedule]
    place = [0] * len(schedule)
    busy_until = [0] * len(schedule)
    now = 0
    while any(place[rank] < len(row) for rank, row in enumerate(schedule)):
        waiting = True
        for rank, row in enumerate(schedule):
            if busy_until[rank] > now:
                waiting = False
                continue
            action = row[place[rank]] if place[rank] < len(row) else None
            if action is not None and not clock.ready(action, now):
                action = None
            elif place[rank] < len(row):
                place[rank] += 1
                waiting = False
            spaced[rank].append(action)
            if action is not None:
                busy_until[rank] = clock.start(action, now)
        if waiting:
            stuck = {rank: row[place[rank]] for rank, row in enumerate(schedule) if place[rank] < len(row)}
            raise RuntimeError(f"No progress made in scheduling - possible deadlock. Ranks wait before {stuck}")
        now += 1
    return spaced


def visualize_schedule(schedule: Rows, filename: str | None = None) -> None:
    """Draws the rows of get_schedule_ops, one colour per kind of action, into a file or else on the screen."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    ranks = len(schedule)
    longest = max((len(row) for row in schedule), default=0)
    font_size = min(longest, ranks) + 4
    figure, axes = plt.subplots(figsize=(longest + 2, ranks + 2))
    shown: dict[_ComputationType, None] = {}
    right = 0
    for rank, row in enumerate(schedule):
        left, bottom = 0, ranks - rank - 1
        for action in row:
            if action is None:
                left += 1
                continue
            shown[action.computation_type] = None
            look, width = action_type_to_color_mapping[action.computation_type], _width(action)
            border = 1 if action.sub_actions is None else 2
            axes.add_patch(
                Rectangle((left, bottom), width, 1, facecolor=look.color, edgecolor="black", linewidth=border)
            )
            axes.text(
                left + width / 2, bottom + 0.5, str(action), ha="center", va="center", fontsize=font_size, color="white"
            )
            left += width
        right = max(right, left)
    axes.set_xlim(-0.5, right + 1)
    axes.set_ylim(-0.5, ranks + 0.5)
    axes.set_yticks([ranks - rank - 0.5 for rank in range(ranks)])
    axes.set_yticklabels([f"Rank {rank}" for rank in range(ranks)], fontsize=font_size)
    axes.set_xticks([])
    axes.grid(False)
    looks = [action_type_to_color_mapping[kind] for kind in shown]
    axes.legend(
        handles=[Rectangle((0, 0), 1, 1, facecolor=look.color, edgecolor="black", label=look.text) for look in looks],
        loc="upper right",
        fontsize=font_size,
    )
    if filename:
        figure.savefig(filename, bbox_inches="tight")
        plt.close(figure)
    else:
        plt.show()
