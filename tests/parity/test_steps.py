"""`check` counts the steps PyTorch's simulator counts, on everything that simulator knows."""

import parity_case
import random_schedules
import settings
import torch_side

#: Schedules drawn on a common clock, `_` an idle slot, and the step counts that PyTorch's own tests expect of such: 1F1B on two
#: ranks, a V on two ranks with weights filled in late.
GOLDEN = {
    "golden 1F1B": (("0F0 0F1 _ 0B0 _ 0B1", "_ 1F0 1B0 1F1 1B1"), 11),
    "golden V": (
        (
            "0F0 0F1 _ 3F0 3I0 3F1 3I1 3W0 0I0 0W0 0I1 3W1 0W1",
            "_ 1F0 2F0 1F1 2F1 2I0 1I0 2W0 2I1 1I1 1W0 2W1 1W1",
        ),
        24,
    ),
}
GOLDEN_ZERO_BUBBLE = (settings.Setting("InterleavedZeroBubble", 2, 2, 8), 113)


class Steps(parity_case.ParityCase):
    def expect_steps(self, setting, form, rows):
        steps = torch_side.step_count(rows)

        def verdict(result):
            got = result.json()["steps"]
            return "" if got == steps else f"PyTorch counts {steps} steps, ours {got}"

        self.expect(setting, f"steps of {form}", parity_case.check(torch_side.to_csv(rows)), verdict)

    def test_generated(self):
        for setting, rows in settings.sample(0.3):
            for passes in ("send_recv", "merge_backward,send_recv"):
                lowered = torch_side.run_passes(rows, passes)
                if torch_side.can_simulate(lowered):
                    self.expect_steps(setting, passes, lowered)
        self.finish(600)

    def test_deferred(self):
        for setting, rows in settings.sample(0.06):
            lowered = torch_side.run_passes(rows, "send_recv,defer_receives")
            if torch_side.can_simulate(lowered):
                self.expect_steps(setting, "send_recv,defer_receives", lowered)
        self.finish(50)

    def test_random(self):
        for schedule in random_schedules.many(200, overlaps=False):
            lowered = torch_side.run_passes(torch_side.from_texts(schedule.rows), "send_recv")
            self.expect_steps(schedule, "send_recv", lowered)
        self.finish(200)

    def test_golden_counts(self):
        setting, steps = GOLDEN_ZERO_BUBBLE
        cases = [(setting, torch_side.compute(*setting), steps)]
        for name, (texts, count) in GOLDEN.items():
            rows = [[text.strip("_") for text in row.split()] for row in texts]
            cases.append((name, torch_side.from_texts(rows), count))
        for name, rows, count in cases:
            lowered = torch_side.run_passes(rows, "send_recv")
            self.assertEqual(torch_side.step_count(lowered), count, name)
            self.expect_steps(name, "send_recv", lowered)
        self.finish(3)
