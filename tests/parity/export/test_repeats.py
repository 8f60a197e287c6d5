"""An exported model on ranks of one process: every run has the losses of one device, bit for bit.

Stages of one shape make ranks meet in the same primitives of the libraries behind LibTorch, again and again.
"""

import copy
import os
import unittest

import jobs
import models
import torch

STEPS, RATE, RUNS = 6, 1e-2, 5 if "STAGECRAFT_TEST_ALL" in os.environ else 2
PLACES = {"one_rank": ("1F1B", 1, 1), "two_ranks": ("1F1B", 2, 2), "zero_bubble": ("ZB-H1", 2, 2), "four_ranks": ("GPipe", 4, 4)}


class Repeats(jobs.JobsCase):
    def losses(self, model, batches):
        """Python's, on the whole batch."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        losses = []
        for step in range(STEPS):
            batch = batches[step % len(batches)]
            scores = model(**batch["keywords"])
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, -2), batch["target"].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])
        return losses

    def test_mamba(self):
        torch.manual_seed(4)
        model = models.MambaStyle().train()
        ids = [torch.randint(0, 32, (8, 12)) for _ in range(2)]
        batches = [{"keywords": {"tokens": one}, "target": one.roll(-1, 1)} for one in ids]
        rows = torch.export.Dim("rows", min=1, max=64)
        program = torch.export.export(model, (), batches[0]["keywords"], dynamic_shapes={"tokens": {0: rows}}, strict=False)
        path = self.path("mamba")
        torch.export.save(program, path + ".pt2")
        torch.save({"batches": batches, "losses": self.losses(copy.deepcopy(model), batches)}, path + ".data")
        all_jobs = [{"name": f"{name}_{run}", "model": path + ".pt2", "data": path + ".data", "microbatches": [4], "tolerance": 2e-4,
                     "train": {"steps": STEPS, "rate": RATE, "output": "", "stages": stages, "schedule": schedule, "ranks": ranks,
                               "threads": 1}}
                    for run in range(RUNS) for name, (schedule, ranks, stages) in PLACES.items()]  # fmt: skip
        results = self.run_jobs(all_jobs, lambda done: f"loss {done['first']:.4f} to {done['last']:.4f}")
        for name, result in results.items():
            self.assertEqual(result["losses"], results["one_rank_0"]["losses"], name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
