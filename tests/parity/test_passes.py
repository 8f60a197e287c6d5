"""Every pass, alone and composed, on generated and on random schedules."""

import parity_case
import random_schedules
import settings
import stagecraft_side
import torch_side

LOWERED = torch_side.DEFAULT_LOWERING
ALONE = ("merge_backward", "unshard_reshard", "reduce_grad", "send_recv")
COMPOSED = (
    "send_recv,defer_receives",
    "merge_backward,send_recv",
    "reduce_grad,send_recv",
    "unshard_reshard,send_recv,defer_receives",
    f"{LOWERED},defer_receives",
    f"merge_backward,{LOWERED}",
)
RANDOM_SCHEDULES = 300 if settings.ALL else 40


class GeneratedSchedules(parity_case.ParityCase):
    def test_passes_alone_and_composed(self):
        for setting, rows in settings.sample(0.2):
            for passes in ALONE + COMPOSED:
                arguments = [*stagecraft_side.shape(*setting), "--passes", passes, "--format", "csv"]
                expected = torch_side.to_csv(torch_side.run_passes(rows, passes))
                self.expect_csv(setting, passes, stagecraft_side.start(*arguments), expected)
        self.finish(2000)


class RandomSchedules(parity_case.ParityCase):
    def test_all_passes(self):
        for schedule in random_schedules.many(RANDOM_SCHEDULES):
            rows = torch_side.from_texts(schedule.rows)
            for passes in (*ALONE, LOWERED, *COMPOSED):
                ours = stagecraft_side.start("lower", "-", "--passes", passes, "--format", "csv", stdin=schedule.csv())
                self.expect_csv(schedule, passes, ours, torch_side.to_csv(torch_side.run_passes(rows, passes)))
        self.finish(11 * RANDOM_SCHEDULES)

    def test_default_of_lower(self):
        for schedule in random_schedules.many(20):
            rows = torch_side.from_texts(schedule.rows)
            ours = stagecraft_side.start("lower", "-", "--format", "csv", stdin=schedule.csv())
            self.expect_csv(schedule, "no --passes", ours, torch_side.to_csv(torch_side.run_passes(rows, LOWERED)))
        self.finish(20)
