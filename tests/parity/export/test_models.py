"""Exported models in C++: outputs, gradients and buffers are Python's, whole and cut everywhere, under every schedule."""

import copy
import math
import os
import unittest

import jobs
import models
import torch
from jobs import cast

ALL = "STAGECRAFT_TEST_ALL" in os.environ  # all models, also in float32, and cut at every place
SOME = ("keywords", "regions", "gpt", "convolution")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def export(model, arguments, keywords, path):
    batch = torch.export.Dim("batch", min=1, max=8192)
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
            for leaf in outputs if leaf.is_floating_point()).backward()
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
    "mamba": (lambda: models.MambaStyle(layers=2), lambda: ([tokens(8, 6, 32)], {})),
}  # fmt: skip
# They depend on the microbatch: only the whole batch at once is comparable.
WHOLE = {
    "convolution": (models.Convolution, lambda: ([torch.randn(8, 3, 8, 8)], {})),
    "mean": (models.Mean, lambda: ([torch.randn(8, 8)], {})),
}


class ExportedModels(jobs.JobsCase):
    def job(self, name, model, arguments, keywords, *, dtype, microbatches, training=True, evaluation=None, cuts=12):
        """`training` is how the model is exported; it is evaluated if it was exported so, or as `evaluation` says."""
        evaluation = not training if evaluation is None else evaluation
        model = model.to(dtype).train(training)
        arguments, keywords = cast(arguments, dtype), cast(keywords, dtype)
        path = self.path(name)
        export(model, arguments, keywords, path + ".pt2")
        torch.save(python_side(model.train(not evaluation), arguments, keywords), path + ".data")
        return {"name": name, "model": path + ".pt2", "data": path + ".data", "tolerance": TOLERANCE[dtype],
                "microbatches": microbatches, "cuts": cuts if ALL else cuts // 2, "stride": 1 if ALL else 8, "evaluation": evaluation}  # fmt: skip

    def compare(self, all_jobs):
        return self.run_jobs(all_jobs, lambda done: f"{done['runs']} runs, {done['legal']} places of {done['nodes']} nodes, "
                                                    f"worst {done['worst']:.1e}")

    def test_training(self):
        all_jobs = []
        for dtype in (torch.float64, torch.float32) if ALL else (torch.float64,):
            for name, (make, inputs) in CASES.items():
                if not ALL and name not in SOME:
                    continue
                torch.manual_seed(1)
                all_jobs.append(self.job(f"{name}_{str(dtype)[-2:]}", make(), *inputs(), dtype=dtype, microbatches=[1, 2, 4]))
            for name, (make, inputs) in WHOLE.items():
                if not ALL and name not in SOME:
                    continue
                torch.manual_seed(1)
                all_jobs.append(self.job(f"{name}_{str(dtype)[-2:]}", make(), *inputs(), dtype=dtype, microbatches=[1]))
        torch.manual_seed(1)
        all_jobs.append(self.job("autocast", models.Autocast(), [torch.randn(8, 8)], {}, dtype=torch.float32, microbatches=[1]))
        results = self.compare(all_jobs)
        for name in ("gpt_64", "llama_64") if ALL else ("gpt_64",):
            self.assertEqual(results[name]["ties"], 1, "embedding and head are one parameter")

    def test_evaluation(self):
        all_jobs = []
        cases = {**CASES, **WHOLE}
        for name in cases if ALL else ("keywords", "gpt", "convolution"):
            make, inputs = cases[name]
            torch.manual_seed(2)
            all_jobs.append(self.job(f"{name}_eval", make(), *inputs(), dtype=torch.float64, training=False, cuts=4,
                                     microbatches=[1] if name == "mean" else [1, 2]))
        self.compare(all_jobs)

    def test_training_graph_in_evaluation(self):
        """Exported for training, evaluated: dropout does nothing and statistics are used."""
        all_jobs = []
        for name, make, inputs in (("dropout", models.Dropout, lambda: ([torch.randn(8, 64)], {})),
                                   ("gpt", lambda: models.GptStyle(dropout=0.3), CASES["gpt"][1]),
                                   ("convolution", *WHOLE["convolution"])):  # fmt: skip
            torch.manual_seed(3)
            all_jobs.append(self.job(f"{name}_switched", make(), *inputs(), dtype=torch.float64, evaluation=True, cuts=2,
                                     microbatches=[1, 2]))
        self.compare(all_jobs)

    def draw(self, name, path, arguments, **options):
        data = self.path(name + ".data")
        torch.save({"arguments": arguments, "keywords": {}, "outputs": [], "gradients": {}, "buffers": {}}, data)
        return {"name": name, "model": path, "data": data, "tolerance": 0, "microbatches": [4],
                "draw": {"into": self.path(name + ".drawn"), "seed": 0, "stages": 1, "schedule": "1F1B", "ranks": 1, **options}}

    def drawn(self, all_jobs):
        self.run_jobs(all_jobs, lambda _: "drawn")
        return {job["name"]: torch.load(job["draw"]["into"], weights_only=False) for job in all_jobs}

    def test_dropout_drops(self):
        """A quarter is dropped, independently, the rest scaled; the gradient knows the same mask; the seed fixes it."""
        model, rows = models.Dropout().double().train(), 2048
        arguments = [torch.ones(rows, 64, dtype=torch.float64)]
        path = self.path("drops.pt2")
        export(model, arguments, {}, path)
        pipeline = {"stages": 2, "schedule": "ZB-H1", "ranks": 2}
        drawn = self.drawn([self.draw("whole", path, arguments), self.draw("again", path, arguments),
                            self.draw("other", path, arguments, seed=1), self.draw("cut", path, arguments, **pipeline)])
        for name, run in drawn.items():
            (output,) = run["outputs"]
            kept = output != 0
            self.assertLess((output - kept.double() / 0.75).abs().max(), 1e-15, name)
            # Five standard deviations of a fair draw, over all, over each row and over each column.
            for dims, count in (((0, 1), rows * 64), ((1,), 64), ((0,), rows)):
                fraction = kept.double().mean(dims)
                self.assertLess((fraction - 0.75).abs().max(), 5 * math.sqrt(0.75 * 0.25 / count), (name, dims))
            neighbours = (kept[1:] & kept[:-1]).double().mean()
            self.assertLess(abs(neighbours - 0.75**2), 0.01, f"{name}: rows are independent")
            quarters = kept.chunk(4)
            self.assertFalse(torch.equal(quarters[0], quarters[1]), f"{name}: microbatches draw their own")
            expected = (output.cos() * output).sum(0)  # inputs are ones
            self.assertLess((run["gradients"]["scale"] - expected).abs().max(), 1e-9, name)
        self.assertTrue(torch.equal(drawn["whole"]["outputs"][0], drawn["again"]["outputs"][0]))
        self.assertFalse(torch.equal(drawn["whole"]["outputs"][0], drawn["other"]["outputs"][0]))

    def test_dropout_in_a_transformer(self):
        """The mean of many draws, and their spread, are those of Python's draws."""
        torch.manual_seed(4)
        model, rows = models.GptStyle(dropout=0.2).double().train(), 4096
        arguments = [tokens(1, 6, 32).expand(rows, 6).contiguous()]
        path = self.path("draws.pt2")
        export(model, arguments, {}, path)
        drawn = self.drawn([self.draw("whole_gpt", path, arguments),
                            self.draw("cut_gpt", path, arguments, stages=4, schedule="ZBVZeroBubble", ranks=2)])
        theirs = model(*arguments).detach()
        for name, run in drawn.items():
            (ours,) = run["outputs"]
            error = ((ours.var(0) + theirs.var(0)) / rows).sqrt()
            self.assertLess(((ours.mean(0) - theirs.mean(0)).abs() / error).max(), 5.5, name)
            spread = ours.std(0) / theirs.std(0)
            self.assertLess((spread - 1).abs().max(), 0.15, name)
            self.assertGreater(theirs.std(0).min(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
