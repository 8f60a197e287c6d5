"""Exported models in C++: outputs, gradients and buffers are Python's, whole and cut everywhere, under every schedule."""

import copy
import json
import os
import subprocess
import tempfile
import unittest
import warnings

import models
import torch

warnings.filterwarnings("ignore")
RUNNER = os.environ["STAGECRAFT_EXPORT_RUNNER"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def is_integer(tensor):
    return not tensor.is_floating_point()


def cast(value, dtype):
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and not is_integer(leaf) else leaf, value)


def export(model, arguments, keywords, path):
    batch = torch.export.Dim("batch", min=1, max=1024)
    leaves = lambda tree: torch.utils._pytree.tree_map(
        lambda leaf: {0: batch} if isinstance(leaf, torch.Tensor) else None, tree)
    names = list(model.forward.__code__.co_varnames[1:1 + len(arguments)])
    shapes = {**dict(zip(names, (leaves(a) for a in arguments))), **leaves(keywords)}
    program = torch.export.export(model, tuple(arguments), keywords, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, path)


def python_side(model, arguments, keywords):
    """Outputs, gradients and buffers after one step on the whole batch."""
    model = copy.deepcopy(model)
    result = model(*arguments, **keywords)
    outputs = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if model.training:
        sum(leaf.float().sin().sum() if leaf.dtype == torch.bfloat16 else leaf.sin().sum()
            for leaf in outputs if not is_integer(leaf)).backward()
    return {
        "arguments": list(arguments), "keywords": dict(keywords), "outputs": [leaf.detach() for leaf in outputs],
        "gradients": {n: p.grad for n, p in model.named_parameters() if p.grad is not None},
        "buffers": dict(model.named_buffers())}  # fmt: skip


def tokens(batch, length, vocabulary):
    return torch.randint(1, vocabulary, (batch, length))


CASES = {
    "mlp": (models.Mlp, lambda: ([torch.randn(8, 8)], {})),
    "skips": (models.Skips, lambda: ([torch.randn(8, 8)], {})),
    "keywords": (models.Keywords, lambda: ([torch.randn(8, 8)], {
        "extra": {"shift": torch.randn(8, 8), "pair": (torch.randn(8, 8), torch.randn(8, 8))},
        "bias": torch.randn(8, 8), "flag": True})),
    "outputs": (models.Outputs, lambda: ([torch.randn(8, 8)], {})),
    "in_place": (models.InPlace, lambda: ([torch.randn(8, 8)], {})),
    "regions": (models.Regions, lambda: ([torch.randn(8, 8)], {})),
    "text": (models.Text, lambda: ([tokens(8, 6, 20) * torch.randint(0, 2, (8, 6))], {})),
    "gpt": (models.GptStyle, lambda: ([tokens(8, 6, 32)], {})),
    "llama": (models.LlamaStyle, lambda: ([tokens(8, 6, 32)], {})),
}  # fmt: skip
# Statistics depend on the microbatch: only the whole batch at once is comparable.
WHOLE = {"convolution": (models.Convolution, lambda: ([torch.randn(8, 3, 8, 8)], {}))}


class ExportedModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="stagecraft-export-")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def job(self, name, model, arguments, keywords, *, dtype, microbatches, training=True, cuts=12):
        model = model.to(dtype).train(training)
        arguments, keywords = cast(arguments, dtype), cast(keywords, dtype)
        path = os.path.join(self.folder.name, name)
        export(model, arguments, keywords, path + ".pt2")
        torch.save(python_side(model, arguments, keywords), path + ".data")
        return {"name": name, "model": path + ".pt2", "data": path + ".data", "tolerance": TOLERANCE[dtype],
                "microbatches": microbatches, "cuts": cuts, "evaluation": not training}  # fmt: skip

    def run_jobs(self, jobs):
        path = os.path.join(self.folder.name, "jobs.json")
        with open(path, "w") as file:
            json.dump(jobs, file)
        done = subprocess.run([RUNNER, path], capture_output=True, text=True, check=False, timeout=900)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(results), len(jobs))
        for result in results:
            with self.subTest(result["name"]):
                self.assertEqual(result["failures"], [])
                print(f"  {result['name']}: {result['runs']} runs, {result['legal']} places of {result['nodes']} nodes, "
                      f"worst {result['worst']:.1e}")
        return {result["name"]: result for result in results}

    def test_training(self):
        jobs = []
        for dtype in (torch.float64, torch.float32):
            for name, (make, inputs) in CASES.items():
                torch.manual_seed(1)
                jobs.append(self.job(f"{name}_{str(dtype)[-2:]}", make(), *inputs(), dtype=dtype, microbatches=[1, 2, 4]))
            for name, (make, inputs) in WHOLE.items():
                torch.manual_seed(1)
                jobs.append(self.job(f"{name}_{str(dtype)[-2:]}", make(), *inputs(), dtype=dtype, microbatches=[1]))
        torch.manual_seed(1)
        jobs.append(self.job("autocast", models.Autocast(), [torch.randn(8, 8)], {}, dtype=torch.float32, microbatches=[1]))
        results = self.run_jobs(jobs)
        for name in ("gpt_64", "llama_64"):
            self.assertEqual(results[name]["ties"], 1, "embedding and head are one parameter")

    def test_evaluation(self):
        jobs = []
        for name, (make, inputs) in {**CASES, **WHOLE}.items():
            torch.manual_seed(2)
            jobs.append(self.job(f"{name}_eval", make(), *inputs(), dtype=torch.float64, microbatches=[1, 2], training=False, cuts=4))
        self.run_jobs(jobs)

    def test_training_graph_in_evaluation(self):
        """Exported for training, evaluated: dropout does nothing and statistics are used."""
        jobs = []
        for name, make, inputs in (("dropout", models.Dropout, lambda: ([torch.randn(8, 64)], {})),
                                   ("gpt", lambda: models.GptStyle(dropout=0.3), CASES["gpt"][1]),
                                   ("convolution", *WHOLE["convolution"])):  # fmt: skip
            torch.manual_seed(3)
            model = make().to(torch.float64).train()
            arguments, keywords = cast(inputs()[0], torch.float64), {}
            path = os.path.join(self.folder.name, name + "_switched")
            export(model, arguments, keywords, path + ".pt2")
            torch.save(python_side(model.eval(), arguments, keywords), path + ".data")
            jobs.append({"name": name, "model": path + ".pt2", "data": path + ".data", "tolerance": 1e-12,
                         "microbatches": [1, 2], "cuts": 2, "evaluation": True})  # fmt: skip
        self.run_jobs(jobs)


if __name__ == "__main__":
    unittest.main(verbosity=2)
