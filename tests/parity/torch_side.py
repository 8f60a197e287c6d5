"""The installed torch.distributed.pipelining, called without processes, modules or tensors.

A schedule here is a list of rows, one per rank, of PyTorch's own actions, with None for an idle slot.
"""

import csv
import io
import types

from torch.distributed.pipelining import schedules

import exceptions

Action = schedules._Action
RESHARD = schedules._ComputationType.RESHARD
REDUCE_GRAD = schedules._ComputationType.REDUCE_GRAD

SINGLE_STAGE = ("GPipe", "1F1B")
MULTI_STAGE = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
NAMES = SINGLE_STAGE + MULTI_STAGE

DEFAULT_LOWERING = "unshard_reshard,reduce_grad,send_recv"


def mock_stages(ranks, stages_per_rank):
    """All that a schedule class looks at before its first step."""
    return [
        types.SimpleNamespace(group_rank=0, group_size=ranks, num_stages=ranks * stages_per_rank, submod=None)
        for _ in range(stages_per_rank)
    ]


def instance(name, ranks, stages_per_rank, microbatches):
    """PyTorch's schedule object. Raises ValueError where PyTorch refuses the shape."""
    stages = mock_stages(ranks, stages_per_rank)
    schedule_class = schedules.get_schedule_class(name)
    return schedule_class(stages[0] if name in SINGLE_STAGE else stages, microbatches)


def rows_of(order):
    return [list(order[rank]) for rank in sorted(order)]


def order_of(rows):
    return {rank: list(row) for rank, row in enumerate(rows)}


def table(name, ranks, stages_per_rank, microbatches):
    """PyTorch's table, idle slots included, without any of our exceptions; None where PyTorch refuses the shape."""
    try:
        return rows_of(instance(name, ranks, stages_per_rank, microbatches).pipeline_order)
    except ValueError:
        return None


def compute(name, ranks, stages_per_rank, microbatches):
    """The compute schedule PyTorch means; None where it refuses the shape."""
    rows = table(name, ranks, stages_per_rank, microbatches)
    if rows is None or name in MULTI_STAGE:
        return rows
    if name == "1F1B":
        rows = exceptions.with_last_rank_as_executed(rows, executed_order(name, ranks - 1, ranks, microbatches))
    return exceptions.without_reduce_grad(rows)


class RecordingStage:
    """Stands in for a stage while a single-stage schedule runs a step, and writes down what it is asked to compute."""

    def __init__(self, stage, stages):
        self.stage_index, self.num_stages, self.is_last = stage, stages, stage == stages - 1
        self.executed = []

    def _no_transfers(self, _microbatch):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _no_transfers

    def forward_one_chunk(self, microbatch, *_args, **_kwargs):
        self.executed.append(Action(self.stage_index, schedules.FORWARD, microbatch))

    def backward_one_chunk(self, microbatch, **_kwargs):
        self.executed.append(Action(self.stage_index, schedules.FULL_BACKWARD, microbatch))

    def perform_reduce_grad(self, _divisor):
        self.executed.append(Action(self.stage_index, REDUCE_GRAD))


def executed_order(name, rank, ranks, microbatches):
    """What a rank of a single-stage schedule computes, recorded from its step."""
    schedule_class = schedules._ScheduleForwardOnly if name == "ForwardOnly" else schedules.get_schedule_class(name)
    stage = RecordingStage(rank, ranks)
    schedule = schedule_class(stage, microbatches)
    schedule._initialize_stage = lambda *_args, **_kwargs: None
    schedule._step_microbatches()
    return stage.executed


def stage_to_rank(rows):
    """Which rank each stage computes on."""
    mapping = {}
    for rank, row in enumerate(rows):
        for action in filter(None, row):
            for part in action.sub_actions or (action,):
                mapping[part.stage_index] = rank
    return mapping


def microbatch_count(rows):
    """One more than the largest microbatch number."""
    parts = (part for row in rows for action in filter(None, row) for part in action.sub_actions or (action,))
    return 1 + max(part.microbatch_index for part in parts if part.microbatch_index is not None)


def run_passes(rows, names):
    """PyTorch's passes by our names, left to right, each on a copy."""
    mapping, microbatches = stage_to_rank(rows), microbatch_count(rows)
    rank_of = mapping.__getitem__
    for name in filter(None, names.split(",")):
        if name == "merge_backward":
            rows = [schedules._merge_bw(list(row)) for row in rows]
        elif name == "unshard_reshard":
            rows = [exceptions.ascending_reshards(schedules._add_unshard_reshard(list(row))) for row in rows]
        elif name == "reduce_grad":
            rows = [schedules._add_reduce_grad(list(row), microbatches) for row in rows]
        elif name == "send_recv":
            rows = rows_of(schedules._add_send_recv(order_of(rows), rank_of, len(mapping)))
        elif name == "defer_receives":
            rows = rows_of(schedules._defer_recv_ops(order_of(rows), rank_of))
        else:
            raise ValueError(f"{name} is not a pass of PyTorch")
    return rows


def can_simulate(rows):
    """PyTorch's step simulator knows F, B, I, W, SEND and RECV."""
    unknown = (schedules.UNSHARD, RESHARD, REDUCE_GRAD, schedules.OVERLAP_F_B)
    return not any(a.computation_type in unknown for row in rows for a in filter(None, row))


def step_count(rows):
    mapping = stage_to_rank(rows)
    simulated = schedules._simulate_comms_compute(order_of(rows), mapping.__getitem__, len(mapping))
    return max(len(row) for row in simulated.values())


def to_csv(rows):
    """The bytes PyTorch writes to a file."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def from_texts(rows):
    return [[Action.from_str(text) for text in row] for row in rows]


def runtime(ranks, stages, microbatches):
    """PyTorch's runtime, empty, ready to load a file."""
    stage = types.SimpleNamespace(group_rank=0, group_size=ranks, num_stages=stages, submod=None)
    return schedules._PipelineScheduleRuntime([stage], microbatches)
