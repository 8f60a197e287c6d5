"""Lowers a compute schedule to one that a rank can run: unsharding, reductions, messages. No pass changes its input."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ._actions import (
    B,
    F,
    I,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    W,
    Row,
    Table,
    _Action,
)
from ._readiness import Turns

StageToRank = Callable[[int], int]


def _busy(row: Iterable[_Action | None]) -> list[_Action]:
    return [action for action in row if action is not None]


def _merge_bw(compute_actions: Iterable[_Action | None]) -> list[_Action]:
    """Joins an input part and the weight part right after it, of one stage and microbatch, into a whole backward."""
    merged: list[_Action] = []
    for action in _busy(compute_actions):
        if action.computation_type is W and merged and merged[-1] == action._replace(computation_type=I):
            merged[-1] = action._replace(computation_type=B)
        else:
            merged.append(action)
    return merged


def _add_reduce_grad(actions: Iterable[_Action | None], n_microbatches: int) -> Row:
    """Reduces a stage's gradients right after its last backward."""
    finished: Counter[int] = Counter()
    row: Row = []
    for action in _busy(actions):
        row.append(action)
        for part in action.parts:
            if part.computation_type in (B, W):
                finished[part.stage_index] += 1
                if finished[part.stage_index] == n_microbatches:
                    row.append(_Action(part.stage_index, REDUCE_GRAD))
    return row


def _add_unshard_reshard(compute_actions: Iterable[_Action | None], max_active_stages: int = 3) -> list[_Action]:
    """Gathers the weights of the next few stages that compute, and frees those of the others.

    An overlapped action counts as a whole, so that one stage more than max_active_stages can be active.
    """
    actions = _busy(compute_actions)
    uses: dict[int, list[int]] = defaultdict(list)
    for position, action in enumerate(actions):
        for part in action.parts:
            uses[part.stage_index].append(position)

    def next_stages(position: int) -> list[int]:
        upcoming = []
        for stage, positions in uses.items():
            index = bisect_left(positions, position)
            if index < len(positions):
                upcoming.append((positions[index], stage))
        # Of two stages that one overlapped action brings, its forward's comes first.
        order = sorted(upcoming, key=lambda use: (use[0], _place(actions[use[0]], use[1])))
        chosen: list[int] = []
        last = -1
        for use, stage in order:
            if len(chosen) >= max_active_stages and use != last:
                break
            chosen.append(stage)
            last = use
        return chosen

    active: set[int] = set()
    row: list[_Action] = []
    for position, action in enumerate(actions):
        needed = next_stages(position)
        for stage in sorted(active.difference(needed)):
            row.append(_Action(stage, RESHARD))
        for stage in needed:
            if stage not in active:
                row.append(_Action(stage, UNSHARD))
        active = set(needed)
        row.append(action)
    row += [_Action(stage, RESHARD) for stage in sorted(active)]
    return row


def _place(action: _Action, stage: int) -> int:
    return [part.stage_index for part in action.parts].index(stage)


class _Messages:
    """Which message an action produces, and which it waits for."""

    def __init__(self, stage_to_rank: StageToRank, num_stages: int) -> None:
        self._rank = stage_to_rank
        self._last = num_stages - 1

    def sent_by(self, action: _Action) -> tuple[_Action, _Action] | None:
        """The send and the receive of what the action hands to another rank."""
        stage, kind, microbatch = action.stage_index, action.computation_type, action.microbatch_index
        if kind is F and stage != self._last and self._rank(stage + 1) != self._rank(stage):
            return _Action(stage, SEND_F, microbatch), _Action(stage + 1, RECV_F, microbatch)
        if kind in (I, B) and stage != 0 and self._rank(stage - 1) != self._rank(stage):
            return _Action(stage, SEND_B, microbatch), _Action(stage - 1, RECV_B, microbatch)
        return None

    def needed_by(self, action: _Action) -> tuple[_Action, ...]:
        """The actions of the same rank of which one has to come before; none if it can run at once."""
        stage, kind, microbatch = action.stage_index, action.computation_type, action.microbatch_index
        if kind is F and stage != 0:
            return _Action(stage, RECV_F, microbatch), _Action(stage - 1, F, microbatch)
        if kind in (I, B) and stage != self._last:
            return (
                _Action(stage, RECV_B, microbatch),
                _Action(stage + 1, I, microbatch),
                _Action(stage + 1, B, microbatch),
            )
        return ()


def _add_send_recv(
    compute_actions: Mapping[int, Sequence[_Action | None]], stage_to_rank: StageToRank, num_stages: int
) -> dict[int, list[_Action]]:
    """Adds the messages between ranks.

    The ranks take turns, one action each. What a turn sends to another rank is received there at once, behind what that rank
    has done so far: so both ends of a pair of ranks see its messages in the same order.
    """
    for rank, row in compute_actions.items():
        if not row:
            raise AssertionError(f"{rank=}, len(compute_actions[rank])=0")
    messages = _Messages(stage_to_rank, num_stages)
    turns = Turns(
        compute_actions,
        lambda rank, action: [[(rank, one) for one in messages.needed_by(part)] for part in action.parts],
    )
    lowered: dict[int, list[_Action]] = {rank: [] for rank in compute_actions}

    def add(rank: int, action: _Action) -> None:
        lowered[rank].append(action)
        turns.finish(rank, action)

    while turns.position:
        progress = False
        for rank in list(turns.position):
            if not turns.is_ready(rank):
                continue
            progress = True
            action = turns.next_action(rank)
            if action is not None:
                add(rank, action)
                for part in action.parts:
                    turns.finish(rank, part)
                    message = messages.sent_by(part)
                    if message is not None:
                        add(rank, message[0])
                        add(stage_to_rank(message[1].stage_index), message[1])
            turns.advance(rank)
        if not progress:
            raise AssertionError("Malformed compute schedule, can't schedule sends/recvs")
    return lowered


def _peer(action: _Action, stage_to_rank: StageToRank) -> int:
    """The rank at the other end of a message."""
    backwards = action.computation_type in (RECV_F, SEND_B)
    return stage_to_rank(action.stage_index + (-1 if backwards else 1))


def _receive_for(action: _Action) -> _Action | None:
    """The receive that a compute action takes its input from, if it comes from another rank."""
    if action.computation_type is F:
        return action._replace(computation_type=RECV_F)
    if action.computation_type in (B, I):
        return action._replace(computation_type=RECV_B)
    return None


def _defer_recv_ops(
    actions: Mapping[int, Sequence[_Action]], stage_to_rank: StageToRank
) -> dict[int, list[_Action]]:
    """Receives as late as can be: right before the action that needs the message.

    Of two ranks that send to each other the lower one receives first, so that not both wait for the other to receive.
    """
    lowered = {}
    for rank, row in actions.items():
        held: dict[_Action, None] = {}
        late: list[_Action] = []
        for action in row:
            if action.computation_type in (RECV_F, RECV_B):
                held[action] = None
                continue
            released: list[_Action | None] = []
            if action.computation_type in (SEND_F, SEND_B):
                peer = _peer(action, stage_to_rank)
                if rank < peer:
                    released = [one for one in held if _peer(one, stage_to_rank) == peer]
            else:
                released = [_receive_for(part) for part in action.parts]
            for one in released:
                if one in held:
                    del held[one]
                    late.append(one)
            late.append(action)
        if held:
            raise AssertionError(
                f"Malformed input schedule on rank {rank}: leftover RECV ops with no consumer found: {list(held)}. "
                "Every RECV must be consumed by a downstream compute op."
            )
        lowered[rank] = late
    return lowered


def lower(
    table: Mapping[int, Sequence[_Action | None]],
    stage_to_rank: StageToRank,
    num_stages: int,
    n_microbatches: int,
    defer_receives: bool = False,
) -> Table:
    """All passes, in the order in which the runtime needs them."""
    rows = {rank: _add_reduce_grad(_add_unshard_reshard(row), n_microbatches) for rank, row in table.items()}
    # A rank without actions still takes part; an idle slot stands for it.
    lowered = _add_send_recv({rank: row or [None] for rank, row in rows.items()}, stage_to_rank, num_stages)
    return _defer_recv_ops(lowered, stage_to_rank) if defer_receives else lowered
