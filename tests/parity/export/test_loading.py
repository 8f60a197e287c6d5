"""One stage of a file of 1 GiB: only its weights are read, and memory is theirs."""

import json
import os
import subprocess
import tempfile
import unittest

import torch

RUNNER = os.environ["STAGECRAFT_EXPORT_RUNNER"]
LAYERS, WIDTH, STAGES = 16, 4096, 4  # 64 MiB each


class Loading(unittest.TestCase):
    def test_one_stage_of_a_gigabyte(self):
        with torch.device("meta"):
            model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        model = model.to_empty(device="cpu")
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        with tempfile.TemporaryDirectory(prefix="stagecraft-loading-") as folder:
            path = os.path.join(folder, "large.pt2")
            program = torch.export.export(model, (torch.randn(2, WIDTH),), dynamic_shapes=({0: torch.export.Dim("b", min=1)},))
            torch.export.save(program, path)
            del model, program
            self.assertGreaterEqual(os.path.getsize(path), 1 << 30)
            jobs = [{"name": "stage", "model": path, "tolerance": 0, "load": {"stages": STAGES, "stage": 2}}]
            with open(os.path.join(folder, "jobs.json"), "w") as file:
                json.dump(jobs, file)
            done = subprocess.run([RUNNER, file.name], capture_output=True, text=True, check=True, timeout=300)
        result = json.loads(done.stdout)
        self.assertEqual(result["failures"], [])
        self.assertEqual(result["bytes"], LAYERS // STAGES * WIDTH * WIDTH * 4)
        print(f"  {result['bytes'] >> 20} MiB: peak {result['peak'] / result['bytes']:.3f}, read {result['read'] / result['bytes']:.3f}")
        self.assertLessEqual(result["peak"], 1.1 * result["bytes"])
        self.assertLessEqual(result["read"], 1.01 * result["bytes"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
