"""Where Stagecraft differs from torch.distributed.pipelining on purpose: the whole list, with the reason of each.

Every comparison takes PyTorch's result as it is, except through the functions of this file. `test_exceptions.py` shows that
each entry is still needed with the installed version: when PyTorch changes, the entry must go.
"""

from collections import Counter

from torch.distributed.pipelining.schedules import REDUCE_GRAD, RESHARD

REASONS = {
    "1f1b_last_rank": (
        "The table of Schedule1F1B starts its last rank at F1, so F0 is missing and F(m) is one too many. What the class "
        "executes is right; the last rank is compared with the order recorded from its own step."
    ),
    "reduce_grad_in_table": (
        "The tables of ScheduleGPipe and Schedule1F1B already end in REDUCE_GRAD, which PyTorch's own lowering then refuses as "
        "not compute-only. A compute schedule of ours holds compute alone; the pass reduce_grad gives PyTorch's table."
    ),
    "reshard_order": (
        "Several RESHARDs at the same moment come in the iteration order of a Python set, which follows hash collisions from "
        "stage 8 on. Ours are ascending."
    ),
}

#: How often each exception was applied in this run.
used = Counter()


def without_reduce_grad(rows):
    """The table of a single-stage schedule, compute alone."""
    used["reduce_grad_in_table"] += 1
    return [[a for a in row if a is None or a.computation_type != REDUCE_GRAD] for row in rows]


def with_last_rank_as_executed(rows, executed):
    """The table of 1F1B, its last rank as the schedule's step computes it."""
    used["1f1b_last_rank"] += 1
    return rows[:-1] + [executed]


def ascending_reshards(row):
    """The row with each run of RESHARDs in ascending order of stage."""
    result, run = [], []
    for action in row:
        if action is not None and action.computation_type == RESHARD:
            run.append(action)
            continue
        result += sorted(run, key=lambda a: a.stage_index)
        run = []
        result.append(action)
    result += sorted(run, key=lambda a: a.stage_index)
    if result != row:
        used["reshard_order"] += 1
    return result
