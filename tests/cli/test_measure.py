"""stagecraft split --measure: stages timed on this machine."""

import json
import os
import shutil
import subprocess
import sys
import unittest

import exported
import torch
from command_case import BIN, UNUSABLE, CommandCase
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from undisturbed import undisturbed  # noqa: E402

TIMES = ("forward", "backward", "backward_input", "backward_weight")


class Uneven(nn.Module):
    """Small layers, then large ones."""

    def __init__(self):
        super().__init__()
        self.small = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
        self.wide, self.large = nn.Linear(16, 1024), nn.Linear(1024, 1024)

    def forward(self, x):
        return self.large(self.wide(self.small(x)))


class Measure(exported.ExportCase, CommandCase):
    def uneven(self):
        batch = torch.export.Dim("batch")
        return self.saved("uneven.pt2", lambda: exported.export(Uneven(), (torch.randn(64, 16),), None, {"x": {0: batch}}))

    def test_times_of_each_stage(self):
        undisturbed(self.times_of_each_stage, self.id())

    def times_of_each_stage(self):
        costs = self.folder / "costs.json"
        report = json.loads(self.output("split", self.uneven(), "--at", "wide", "--at", "large", "--measure", "--costs", costs,
                                        "--format", "json"))  # fmt: skip
        seconds = [stage["seconds"] for stage in report["stages"]]
        self.assertEqual([set(stage) for stage in seconds], 3 * [set(TIMES)])
        self.assertTrue(all(0 < time < 60 for stage in seconds for time in stage.values()))
        self.assertGreater(seconds[2]["forward"], 3 * seconds[1]["forward"], "64 times the work")
        written = json.loads(costs.read_text())["stages"]
        self.assertEqual([{key: stage[key] for key in TIMES} for stage in written], seconds)
        self.assertGreater(written[2]["parameter_memory"], 4e6, "memory is estimated as without --measure")
        self.output("plan", "--ranks", 3, "--microbatches", 4, "--costs", costs)

    def test_balanced_by_time(self):
        report = json.loads(self.output("split", self.uneven(), "--stages", 2, "--measure", "--format", "json"))
        self.assertEqual(len(report["stages"]), 2)
        self.assertTrue(all(stage["seconds"]["forward"] > 0 for stage in report["stages"]))
        self.assertRegex(self.output("split", self.uneven(), "--stages", 2, "--measure"), r"\nstage +forward +backward +input +weight\n +0 +\S+ ms ")

    def test_tied_and_nested_inputs(self):
        self.assertIn(" ms", self.output("split", self.tied(), "--stages", 2, "--measure"))

    def test_refused(self):
        self.assert_error(self.command("split", self.tied(), "--stages", 2, "--load", "ops.so"), UNUSABLE, "--load is about --measure")
        done = self.command("split", self.tied(), "--stages", 2, "--measure", "--load", "ops.so")
        self.assertEqual(done.returncode, UNUSABLE)
        self.assertIn("ops.so: no such file", done.stderr)
        self.assertIn("could not be measured", done.stderr)

    def test_without_the_program_that_measures(self):
        alone = self.folder / "stagecraft"
        shutil.copy(BIN, alone)
        done = subprocess.run([alone, "split", self.tied(), "--stages", "2", "--measure"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, UNUSABLE)
        self.assertIn("cannot start", done.stderr)
        self.assertIn("make build", done.stderr)


if __name__ == "__main__":
    unittest.main()
