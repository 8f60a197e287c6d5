"""Control flow in C++: outputs, gradients and buffers are those of the exported program in Python."""

import os
import unittest

import control_flow
import programs
import torch
from jobs import cast

ALL = "STAGECRAFT_TEST_ALL" in os.environ
QUICK = ("branch", "loop", "scan", "map", "nested")


class ControlFlow(programs.ProgramsCase):
    def jobs(self, dtype):
        for name, make in {**control_flow.ANY_BATCH, **control_flow.WHOLE_BATCH}.items():
            if not ALL and name not in QUICK:
                continue
            torch.manual_seed(5)
            yield self.job(name, make(), control_flow.sequences(), dtype=dtype, stride=1 if ALL else 4,
                           microbatches=(1, 2, 4) if name in control_flow.ANY_BATCH else (1,))  # fmt: skip

    def test_loop_without_iterations(self):
        """The gradients are those of the model without the loop: Python's (torch 2.13) are those of one iteration."""
        torch.manual_seed(7)
        job = self.job("no_iterations", control_flow.Loop(0), control_flow.sequences(), dtype=torch.float64)
        torch.manual_seed(7)
        plain, arguments = control_flow.Loop(0).double(), torch.load(job["data"])["arguments"]
        plain.middle = lambda x: x
        output = plain(*arguments)
        output.sin().sum().backward()
        gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in plain.named_parameters()}
        torch.save({"arguments": arguments, "keywords": {}, "outputs": [output.detach()], "gradients": gradients,
                    "buffers": dict(plain.named_buffers())}, job["data"])  # fmt: skip
        self.compare([job])

    def test_map_over_nothing(self):
        """Refused when it runs, with the node's name."""
        path, length = self.path("nothing.pt2"), torch.export.Dim("length", min=0, max=64)
        programs.export(control_flow.Map().double(), cast(control_flow.sequences(), torch.float64), {}, path,
                        shapes={"x": {0: torch.export.Dim("batch", max=64), 1: length}})  # fmt: skip
        torch.save({"arguments": [torch.zeros(8, 0, 8, dtype=torch.float64)], "keywords": {}, "outputs": [], "gradients": {},
                    "buffers": {}}, self.path("nothing.data"))  # fmt: skip
        (result,) = self.results([{"name": "nothing", "model": path, "data": self.path("nothing.data"), "tolerance": 0,
                                   "microbatches": [1], "stride": 64}]).values()  # fmt: skip
        self.assertRegex(result["failures"][0], r"node 'map_impl' \(higher_order::map_impl\): it goes through a tensor whose first dimension is 0")

    def test_draws(self):
        """Dropout in bodies: other numbers in each iteration and microbatch, the same wherever the program is cut."""
        arguments, path = [torch.ones(512, 3, 32, dtype=torch.float64)], self.path("draws.pt2")
        programs.export(control_flow.Dropped().double().train(), arguments, {}, path)
        data = self.path("draws.data")
        torch.save({"arguments": arguments, "keywords": {}, "outputs": [], "gradients": {}, "buffers": {}}, data)
        runs = {"whole": (1, "1F1B", 1), "again": (1, "1F1B", 1), "recomputed": (1, "1F1B", 1), "other": (1, "1F1B", 1, 1),
                "zero_bubble": (2, "ZB-H1", 2), "v": (4, "ZBVZeroBubble", 2)}  # fmt: skip
        self.run_jobs([{"name": name, "model": path, "data": data, "tolerance": 0, "microbatches": [4],
                        "draw": {"into": self.path(name), "stages": stages, "schedule": schedule, "ranks": ranks,
                                 "seed": seed[0] if seed else 0}}
                       for name, (stages, schedule, ranks, *seed) in runs.items()], lambda _: "drawn")  # fmt: skip
        drawn = {name: torch.load(self.path(name), weights_only=False) for name in runs}
        for name, run in drawn.items():
            for kind, output in zip(("map", "loop", "scan"), run["outputs"]):
                kept = (output != 0).double()
                share = 0.75**2 if kind == "loop" else 0.75
                self.assertLess(abs(kept.mean() - share), 0.02, f"{name}: {kind}")
                if kind != "loop":
                    self.assertLess(abs((kept[:, 0] * kept[:, 1]).mean() - 0.75**2), 0.02, f"{name}: iterations of a {kind}")
                quarters = kept.chunk(4)
                self.assertFalse(torch.equal(quarters[0], quarters[1]), f"{name}: microbatches of a {kind}")
                same = torch.equal(output, drawn["whole"]["outputs"][("map", "loop", "scan").index(kind)])
                self.assertEqual(same, name != "other", f"{name}: {kind}")
            if name != "other":
                expected = drawn["whole"]["gradients"]["weight"]
                self.assertLess((run["gradients"]["weight"] - expected).abs().max(), 1e-9, name)

    def test_evaluation(self):
        """Exported for training and evaluated: dropout in bodies does nothing."""
        torch.manual_seed(6)
        model, arguments = control_flow.DroppedBranch().double(), [torch.randn(8, 8, dtype=torch.float64)]
        path = self.path("evaluation")
        programs.export(model.train(), arguments, {}, path + ".pt2")
        with torch.no_grad():
            torch.save({"arguments": arguments, "keywords": {}, "outputs": [model.eval()(*arguments)], "gradients": {},
                        "buffers": {}}, path + ".data")  # fmt: skip
        self.compare([{"name": "evaluation", "model": path + ".pt2", "data": path + ".data", "tolerance": 1e-12,
                       "microbatches": [1, 2], "evaluation": True, "cuts": 0}])  # fmt: skip

    def test_autocast(self):
        all_jobs = []
        for name, make in control_flow.AUTOCAST.items():
            torch.manual_seed(5)
            all_jobs.append(self.job(name, make(), control_flow.sequences(), dtype=torch.float32, microbatches=(1,)))
        self.compare(all_jobs)

    def test_training(self):
        self.compare([job for dtype in (torch.float64, torch.float32) for job in self.jobs(dtype)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
