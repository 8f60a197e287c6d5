"""A timeline as a run would record it, made from a simulation: some steps, one stage slower than planned."""

import json
import pathlib
import tempfile

from browser import command


def timeline(csv, costs, slow_stage=2, factor=1.3, steps=3):
    """Times of the simulation are milliseconds of the run. Actions of `slow_stage` take longer, and everything after them waits."""
    facts = json.loads(costs)
    slowed = dict(facts)
    stages = max(int(cell.split("F")[0]) for line in csv.split() for cell in line.split(",") if "F" in cell) + 1
    for key in ("forward", "backward_input", "backward_weight"):
        slowed[key] = [facts[key] * (factor if stage == slow_stage else 1) for stage in range(stages)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "schedule.csv"
        path.write_text(csv, newline="")
        trace = json.loads(command("simulate", str(path), "--costs", "-", "--format", "trace", text=json.dumps(slowed)))
    computes = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    length = max(event["ts"] + event["dur"] for event in computes) + 1
    events = [{"ph": "M", "name": "process_name", "pid": rank} for rank in sorted({event["pid"] for event in computes})]
    for step in range(steps):
        free = {}
        for event in sorted(computes, key=lambda one: (one["pid"], one["ts"])):
            begin = free.get(event["pid"], 0)
            events.append({"ph": "X", "name": event["name"], "pid": event["pid"], "tid": 1, "ts": 1000 * (step * length + event["ts"]),
                           "dur": 1000 * event["dur"], "args": {"step": step, "waited": 1000 * (event["ts"] - begin), "bytes": 0}})
            free[event["pid"]] = event["ts"] + event["dur"]
    return json.dumps({"otherData": {"schedule": "1F1B"}, "traceEvents": events})
