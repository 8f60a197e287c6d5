"""The compute schedules: for every rank, which action of which stage and microbatch comes when.

p ranks, m microbatches, v stages per rank, r the rank. None is an idle slot. Each generator opens with its table for a small
case; "." is an idle slot.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from ._actions import B, F, I, OVERLAP_F_B, W, Row, Table, _Action, _ComputationType
from ._placement import generate_rank_to_stage_mapping


class _Writer:
    """A row that numbers microbatches by itself: the n-th action of a kind on a stage is that of microbatch n."""

    def __init__(self) -> None:
        self.row: Row = []
        self._next: Counter[tuple[int, _ComputationType]] = Counter()
        self._open_weights: deque[_Action] = deque()

    def idle(self, slots: int = 1) -> None:
        self.row.extend([None] * slots)

    def take(self, stage: int, kind: _ComputationType) -> _Action:
        """Numbers an action without writing it. Whole and split backwards of a stage count together."""
        key = (stage, I if kind is B else kind)
        microbatch = self._next[key]
        self._next[key] += 1
        action = _Action(stage, kind, microbatch)
        if kind is I:
            self._open_weights.append(_Action(stage, W, microbatch))
        return action

    def write(self, stage: int, *kinds: _ComputationType) -> None:
        self.row.extend(self.take(stage, kind) for kind in kinds)

    def overlap(self, forward_stage: int, backward_stage: int) -> None:
        parts = (self.take(forward_stage, F), self.take(backward_stage, B))
        self.row.append(_Action(-1, OVERLAP_F_B, None, parts))

    def oldest_weight(self) -> None:
        """The weight part of the oldest input part that has none yet, if there is one."""
        if self._open_weights:
            self.row.append(self._open_weights.popleft())

    def open_weights(self) -> int:
        return len(self._open_weights)


def gpipe(p: int, m: int) -> Table:
    """All forwards, then all backwards.

    0: F0 F1  .  .  . B0 B1
    1:  . F0 F1 B0 B1
    """
    return {
        r: [None] * r
        + [_Action(r, F, i) for i in range(m)]
        + [None] * (3 * (p - 1 - r))
        + [_Action(r, B, i) for i in range(m)]
        for r in range(p)
    }


def one_f_one_b(p: int, m: int) -> Table:
    """As many forwards as ranks are left, then one backward per forward.

    0: F0 F1  . B0 F2 B1  . B2
    1:  . F0 B0 F1 B1 F2 B2
    """
    table: Table = {}
    for r in range(p):
        writer = _Writer()
        writer.idle(r)
        warm_up = min(m, p - r)
        writer.write(r, *[F] * warm_up)
        writer.idle(p - 1 - r)
        for _ in range(m - warm_up):
            writer.write(r, B, F)
        for left in range(warm_up):
            if left:
                writer.idle()
            writer.write(r, B)
        table[r] = writer.row
    return table


def looped_bfs(p: int, m: int, v: int) -> Table:
    """Every stage takes all microbatches before the next local stage does; backwards in reverse.

    0: 0F0 0F1 2F0 2F1   .   . 2B1 2B0 0B1 0B0
    1:   . 1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
    """
    table: Table = {}
    for r in range(p):
        stages = range(r, p * v, p)
        row: Row = [None] * r
        row += [_Action(stage, F, i) for stage in stages for i in range(m)]
        row += [None] * (2 * (p - 1 - r))
        row += [_Action(stage, B, i) for stage in reversed(stages) for i in reversed(range(m))]
        table[r] = row
    return table


class _Rounds:
    """Interleaving: microbatches go through a rank's stages in rounds of q, forwards ascending, backwards descending."""

    def __init__(self, p: int, m: int, v: int, r: int, hop: int) -> None:
        self.p, self.v, self.r = p, v, r
        self.q = m // max(1, m // p)
        self.total = m * v
        # A hop further from the last rank costs this many more forwards before the first backward.
        self.warm_up = min((v - 1) * self.q + hop * (p - 1 - r), self.total)

    def forward_stage(self, k: int) -> int:
        return (k // self.q % self.v) * self.p + self.r

    def backward_stage(self, k: int) -> int:
        return (self.v - 1 - (k - self.warm_up) // self.q % self.v) * self.p + self.r


def interleaved_1f1b(p: int, m: int, v: int) -> Table:
    """1F1B over several stages per rank.

    0: 0F0 0F1 2F0 2F1   .   .   . 2B0   . 2B1   . 0B0   . 0B1        p = v = m = 2
    1:   . 1F0 1F1   . 3F0 3B0 3F1 3B1   . 1B0   . 1B1
    """
    table: Table = {}
    for r in range(p):
        rounds, writer = _Rounds(p, m, v, r, hop=2), _Writer()
        writer.idle(r)
        for k in range(rounds.warm_up):
            writer.write(rounds.forward_stage(k), F)
        if rounds.warm_up:
            writer.idle(max(0, v * p + 2 * (p - 1 - r) - (rounds.warm_up + r)))
        for k in range(rounds.warm_up, rounds.total):
            writer.write(rounds.forward_stage(k), F)
            writer.write(rounds.backward_stage(k), B)
        for k in range(rounds.total, rounds.total + rounds.warm_up):
            writer.idle()
            writer.write(rounds.backward_stage(k), B)
        table[r] = writer.row
    return table


def interleaved_zero_bubble(p: int, m: int, v: int) -> Table:
    """Interleaved 1F1B with split backwards: weight parts fill the slots where 1F1B waits.

    0: 0F0 0F1 2F0   . 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1        p = v = m = 2
    1:   . 1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1
    """
    table: Table = {}
    for r in range(p):
        rounds, writer = _Rounds(p, m, v, r, hop=1), _Writer()
        writer.idle(r)
        for k in range(rounds.warm_up):
            writer.write(rounds.forward_stage(k), F)
        if rounds.warm_up:
            writer.idle(p - 1 - r)
        for k in range(rounds.warm_up, rounds.total + rounds.warm_up):
            if k < rounds.total:
                writer.write(rounds.forward_stage(k), F)
            writer.write(rounds.backward_stage(k), I)
            if k - rounds.warm_up >= r:
                writer.oldest_weight()
        while writer.open_weights():
            writer.oldest_weight()
        table[r] = writer.row
    return _delay_forwards(table)


def _delay_forwards(table: Table) -> Table:
    """Runs all ranks in lock step; a forward idles until the previous stage's came in an earlier slot."""
    position = dict.fromkeys(table, 0)
    delayed: Table = {rank: [] for rank in table}
    done: set[tuple[int, int | None]] = set()
    while any(position[rank] < len(row) for rank, row in table.items()):
        arriving = []
        for rank, row in table.items():
            if position[rank] == len(row):
                continue
            action = row[position[rank]]
            if action is not None and action.computation_type is F:
                if action.stage_index > 0 and (action.stage_index - 1, action.microbatch_index) not in done:
                    delayed[rank].append(None)
                    continue
                arriving.append((action.stage_index, action.microbatch_index))
            delayed[rank].append(action)
            position[rank] += 1
        done.update(arriving)
    return delayed


def zbv(p: int, m: int) -> Table:
    """Two stages per rank in a V, split backwards, no idle slot between warm-up and cool-down.

    0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2        p = 2, m = 3
    1:   . 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
    """
    # The pattern needs 2p - 1 microbatches to close; those that do not exist become idle slots.
    n = max(2 * p - 1, m)
    return {
        r: [action if action and action.microbatch_index < m else None for action in _zbv_row(p, n, r)] for r in range(p)
    }


def _zbv_row(p: int, n: int, r: int) -> Row:
    down, up = r, 2 * p - 1 - r
    writer = _Writer()
    writer.idle(r)
    # warm-up
    writer.write(down, *[F] * (2 * (p - r) - 1))
    for _ in range(r):
        writer.write(up, F)
        writer.write(down, F)
    for _ in range(p - r):
        writer.write(up, F, I, W)
    forwards_down, forwards_up = 2 * (p - r) - 1 + r, p
    # steady
    while forwards_up < forwards_down or forwards_down < n:
        if forwards_down < n:
            writer.write(down, F)
            forwards_down += 1
        writer.write(down, I, W)
        writer.write(up, F, I, W)
        forwards_up += 1
    # cool-down
    for _ in range(r):
        writer.write(down, I)
        writer.write(up, I)
    for _ in range(p - r):
        writer.write(down, I, W)
    writer.write(up, *[W] * r)
    writer.write(down, *[W] * r)
    return writer.row


def dual_pipe_v(p: int, m: int) -> Table:
    """Two stages per rank in a V; in the steady phase a forward overlaps a backward of the other direction."""
    stages = generate_rank_to_stage_mapping(p, 2 * p, style="v")
    return {r: list(_dual_pipe_v_row(p, m, r, *stages[r])) for r in range(p)}


def _dual_pipe_v_row(p: int, m: int, r: int, down: int, up: int) -> Iterator[_Action | None]:
    writer = _Writer()
    rest = p - r - 1
    # 2(p-r-1) x F0
    writer.write(down, *[F] * (2 * rest))
    # (r+1) x F0 F1
    for _ in range(r + 1):
        writer.write(down, F)
        writer.write(up, F)
    # (p-r-1) x I1 W F1
    for _ in range(rest):
        writer.write(up, I)
        writer.oldest_weight()
        writer.write(up, F)
    # (m-2p+r+1) x F0B1 F1B0; the last rank starts without overlap, which shortens its wait
    for turn in range(m - 2 * p + r + 1):
        if turn == 0 and rest == 0:
            writer.write(down, F)
            writer.write(up, B)
        else:
            writer.overlap(down, up)
        writer.overlap(up, down)
    # (p-r-1) x B1 F1B0
    for _ in range(rest):
        writer.write(up, B)
        writer.overlap(up, down)
    # (r+1) x B1 B0, the later half split
    half, split = (r + 1) // 2, False
    for turn in range(r + 1):
        split = split or (turn == half and r % 2 == 1)
        writer.write(up, I if split else B)
        split = split or (turn == half and r % 2 == 0)
        writer.write(down, I if split else B)
    # (p-r-1) x W B0, then (r+1) x W
    for _ in range(rest):
        writer.oldest_weight()
        writer.write(down, I if split else B)
    for _ in range(r + 1):
        writer.oldest_weight()
    yield from writer.row
