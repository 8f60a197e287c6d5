"""Writes a table of actions as text, as CSV and as a trace."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from os import PathLike

from ._actions import B, F, I, OVERLAP_F_B, W, Table, _Action


def _format_pipeline_order(
    pipeline_order: Mapping[int, Sequence[_Action | None]], error_step_number: int | None = None
) -> str:
    """One line per step, one column per rank. The step of error_step_number is marked."""
    ranks = sorted(pipeline_order)
    columns = [["" if action is None else str(action) for action in pipeline_order[rank]] for rank in ranks]
    steps = max((len(column) for column in columns), default=0)
    digits = len(str(max(0, steps - 1)))
    widths = [
        max([len(f"Rank {rank}"), *(len(cell) for cell in column)]) for rank, column in zip(ranks, columns, strict=True)
    ]

    def line(cells: Sequence[str]) -> str:
        return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))

    lines = [" " * (len("Step : ") + digits) + line([f"Rank {rank}" for rank in ranks])]
    for step, cells in enumerate(zip_longest(*columns, fillvalue="")):
        mark = " <-- ERROR HERE" if step == error_step_number else ""
        lines.append(f"Step {step:0{digits}}: {line(cells)}{mark}")
    return "\n".join(lines) + "\n"


def write_csv(path: str | PathLike[str], table: Mapping[int, Sequence[_Action | None]]) -> None:
    """One row per rank, one cell per slot; an idle slot is an empty cell."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(table.values())


def read_csv(path: str | PathLike[str]) -> Table:
    with open(path, newline="") as file:
        return {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(csv.reader(file))}


def _dump_chrometrace(schedule: Mapping[int, Sequence[_Action | None]], filename: str | PathLike[str]) -> None:
    """Writes the table as trace events: a process per rank, one unit of time per slot."""
    events = [
        {
            "name": str(action),
            "cat": "computation" if action.computation_type in (F, B, I, W, OVERLAP_F_B) else "communication",
            "ph": "X",
            "pid": rank,
            "tid": rank,
            "ts": slot,
            "dur": 1,
        }
        for rank in sorted(schedule)
        for slot, action in enumerate(schedule[rank])
        if action is not None
    ]
    with open(filename, "w") as file:
        json.dump({"traceEvents": events}, file)
