"""What PyTorch refuses to lower, ours refuses too. Not the other way round: PyTorch counts actions but does not order them."""

import csv
import io
import random

import parity_case
import random_schedules
import stagecraft_side
import torch_side

#: What is wrong, and the rows.
BAD = {
    "a backward before its forward": ["0B0,0F0"],
    "a weight part before its input part": ["0F0,0W0,0I0"],
    "a missing backward": ["0F0,0F1,0B0"],
    "a missing weight part": ["0F0,0I0"],
    "a missing forward": ["0F0,0F1,0B0,0B1", "1F0,1B0"],
    "a stage on two ranks": ["0F0,0B0", "0F1,0B1"],
    "communication": ["0F0,0SEND_F0,0B0", "1F0,1B0"],
    "REDUCE_GRAD": ["0F0,0B0,0REDUCE_GRAD"],
    "ranks that wait for each other": ["0F0,3F0,0F1,3F1,3B0,3B1,0B0,0B1", "1F1,2F1,1F0,2F0,2B0,2B1,1B0,1B1"],
    "two ranks in a cycle": ["0F0,2F1,2F0,0F1,2B0,2B1,0B0,0B1", "1F0,1F1,1B0,1B1"],
    "a rank without actions": ["0F0,0B0", ""],
}
MUTATIONS = 300


def refused_by_pytorch(rows, ranks, stages, microbatches):
    runtime = torch_side.runtime(ranks, stages, microbatches)
    try:
        runtime._prepare_schedule_with_comms(torch_side.order_of(rows))
    except Exception:  # whatever it is, PyTorch cannot lower this
        return True
    return False


def mutated(schedule, rng):
    """The rows with one action removed, moved within its rank, exchanged with its neighbour, or put on another rank."""
    rows = [[text for text in row if text] for row in schedule.rows]
    rank = rng.randrange(len(rows))
    slot = rng.randrange(len(rows[rank]))
    kind = rng.choice(("remove", "move", "exchange", "other rank"))
    action = rows[rank].pop(slot)
    if kind == "move":
        rows[rank].insert(rng.randint(0, len(rows[rank])), action)
    elif kind == "exchange":
        rows[rank].insert(slot + 1, action)
    elif kind == "other rank":
        rows[rng.randrange(len(rows))].append(action)
    return kind, rows


class Refusals(parity_case.ParityCase):
    def expect_refusal(self, setting, form, text):
        def verdict(result):
            return "" if result.code == 1 else f"PyTorch refuses it, ours exits with {result.code}: {result.err.strip()}"

        self.expect(setting, form, stagecraft_side.start("lower", "-", stdin=text), verdict)

    def test_bad_schedules(self):
        for name, lines in BAD.items():
            rows = torch_side.from_texts(csv.reader(io.StringIO("\n".join(lines) + "\n")))
            stages = 1 + max(torch_side.stage_to_rank(rows))
            self.assertTrue(refused_by_pytorch(rows, len(rows), stages, torch_side.microbatch_count(rows)), name)
            self.expect_refusal(name, "lower", torch_side.to_csv(rows))
        self.finish(len(BAD))

    def test_mutations(self):
        for schedule in random_schedules.many(MUTATIONS):
            kind, texts = mutated(schedule, random.Random(schedule.seed))
            rows = torch_side.from_texts(texts)
            if refused_by_pytorch(rows, schedule.ranks, schedule.stages, schedule.microbatches):
                self.expect_refusal(schedule, kind, torch_side.to_csv(rows))
        self.finish(MUTATIONS // 4)
