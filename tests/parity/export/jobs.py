"""Jobs of the runner, which loads exported programs in C++ and answers each job with a line of JSON."""

import json
import os
import subprocess
import tempfile
import unittest
import warnings

import torch

warnings.filterwarnings("ignore")
RUNNER = os.environ["STAGECRAFT_EXPORT_RUNNER"]


class JobsCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="stagecraft-export-"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def results(self, jobs):
        """Results by name."""
        with open(self.path("jobs.json"), "w") as file:
            json.dump(jobs, file)
        done = subprocess.run([RUNNER, file.name], capture_output=True, text=True, check=False, timeout=900)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = {result["name"]: result for result in map(json.loads, done.stdout.splitlines())}
        self.assertEqual(len(results), len(jobs))
        return results

    def run_jobs(self, jobs, say):
        """Results by name; none has failures, and what `say` makes of each is printed."""
        results = self.results(jobs)
        for name, result in results.items():
            with self.subTest(name):
                self.assertEqual(result["failures"], [])
                print(f"  {name}: {say(result)}")
        return results


def cast(tree, dtype):
    """The tree with its floating-point tensors as `dtype`."""
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, tree)
