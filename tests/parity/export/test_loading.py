"""One stage of a file of 1 GiB: only its weights are read, and memory is theirs."""

import os
import unittest

import jobs
import torch

LAYERS, WIDTH, STAGES = 16, 4096, 4  # 64 MiB each


class Loading(jobs.JobsCase):
    def test_one_stage_of_a_gigabyte(self):
        with torch.device("meta"):
            model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        model = model.to_empty(device="cpu")
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        path = self.path("large.pt2")
        program = torch.export.export(model, (torch.randn(2, WIDTH),), dynamic_shapes=({0: torch.export.Dim("b", min=1)},))
        torch.export.save(program, path)
        del model, program
        self.assertGreaterEqual(os.path.getsize(path), 1 << 30)
        job = {"name": "stage", "model": path, "tolerance": 0, "load": {"stages": STAGES, "stage": 2}}
        result = self.run_jobs([job], lambda done: f"{done['bytes'] >> 20} MiB: peak {done['peak'] / done['bytes']:.3f}, "
                                                   f"read {done['read'] / done['bytes']:.3f}")["stage"]
        self.assertEqual(result["bytes"], LAYERS // STAGES * WIDTH * WIDTH * 4)
        self.assertLessEqual(result["peak"], 1.1 * result["bytes"])
        self.assertLessEqual(result["read"], 1.01 * result["bytes"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
