"""Reads off the rows of all ranks when a message must have arrived, and in which order messages come.

A rank runs its row in order. If it sends us something after it has used our message, then what we receive proves that ours
arrived: waiting for our send then returns at once, and its memory can go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from ._actions import B, F, I, RECV_B, RECV_F, SEND_B, SEND_F, _Action, _ComputationType

_Key = tuple[_ComputationType, int, int | None]


def _uses(row: Sequence[_Action | None]) -> dict[_Key, int]:
    """Where a row uses what it received: keyed by receive kind, stage, microbatch."""
    places: dict[_Key, int] = {}
    for position, action in enumerate(row):
        for part in action.parts if action is not None else ():
            kind = RECV_F if part.computation_type is F else RECV_B if part.computation_type in (B, I) else None
            if kind is not None:
                places[kind, part.stage_index, part.microbatch_index] = position
    return places


def _sent(action: _Action) -> _Key | None:
    """The receive at the other end of a send."""
    if action.computation_type is SEND_F:
        return RECV_F, action.stage_index + 1, action.microbatch_index
    if action.computation_type is SEND_B:
        return RECV_B, action.stage_index - 1, action.microbatch_index
    return None


def acknowledged_at(rows: Mapping[int, Sequence[_Action | None]], rank: int) -> dict[int, list[_Action]]:
    """For positions in the rank's row at which something is received: the sends that must have arrived by then."""
    uses = {peer: _uses(row) for peer, row in rows.items()}
    ours = uses[rank]
    # Per peer: positions in its row at which it sends to us, and where we use that.
    answers: dict[int, list[tuple[int, int]]] = {}
    for peer, row in rows.items():
        if peer != rank:
            sends = [(position, _sent(action)) for position, action in enumerate(row) if action is not None]
            answers[peer] = [(position, ours[key]) for position, key in sends if key in ours]
    # Everything sent later proves the same, so of all later answers the one that we use first counts.
    for found in answers.values():
        earliest = len(rows[rank])
        for index in reversed(range(len(found))):
            earliest = min(earliest, found[index][1])
            found[index] = (found[index][0], earliest)

    acknowledged: dict[int, list[_Action]] = {}
    for sent_at, action in enumerate(rows[rank]):
        key = None if action is None else _sent(action)
        if key is None:
            continue
        for peer, found in answers.items():
            if key in uses[peer]:
                index = bisect_right(found, uses[peer][key], key=lambda answer: answer[0])
                if index < len(found) and found[index][1] > sent_at:
                    acknowledged.setdefault(found[index][1], []).append(action)
    return acknowledged


def receives_in_order_sent(rows: Mapping[int, Sequence[_Action | None]], rank: int) -> list[_Action | None]:
    """The rank's row with the receives from each peer in the order in which that peer sends.

    For transports that do not tell messages apart. No receive comes later than it did; some come earlier.
    """
    order: dict[_Key, list[_Key]] = {}
    for peer, row in rows.items():
        if peer != rank:
            sends = [key for action in row if action is not None and (key := _sent(action)) is not None]
            order.update(dict.fromkeys(sends, sends))
    expected = {
        (action.computation_type, action.stage_index, action.microbatch_index): action
        for action in rows[rank]
        if action is not None and action.computation_type in (RECV_F, RECV_B)
    }
    ordered: list[_Action | None] = []
    for action in rows[rank]:
        if action is None or action.computation_type not in (RECV_F, RECV_B):
            ordered.append(action)
            continue
        key = (action.computation_type, action.stage_index, action.microbatch_index)
        if key not in expected:
            continue  # came earlier
        for sent in order.get(key, [key]):
            if sent in expected:
                ordered.append(expected.pop(sent))
            if sent == key:
                break
    return ordered
