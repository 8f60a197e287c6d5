"""Operators that are not LibTorch's own, and recurrent ones: results are those of the exported program in Python."""

import os
import pathlib
import shutil
import subprocess
import unittest

import programs
import recurrent
import torch

LIBRARY = os.environ["STAGECRAFT_TEST_OPERATORS"]
ALL = "STAGECRAFT_TEST_ALL" in os.environ
QUICK = ("lstm", "experts", "custom")  # in float32 too
COMMAND = os.environ["STAGECRAFT_BIN"]
torch.ops.load_library(LIBRARY)
recurrent.define_grouped_product()


def sequences():
    return [torch.randn(8, 6, recurrent.WIDTH)]


CASES = {
    "lstm": lambda: recurrent.Recurrent("LSTM"), "gru": lambda: recurrent.Recurrent("GRU"), "rnn": lambda: recurrent.Recurrent("RNN"),
    "lstm_without_bias": lambda: recurrent.Recurrent("LSTM", bias=False),
    "experts": recurrent.Experts, "custom": recurrent.Custom}  # fmt: skip


class Operators(programs.ProgramsCase):
    def test_training(self):
        all_jobs = []
        for dtype in (torch.float64, torch.float32):
            for name, make in CASES.items():
                if not ALL and dtype == torch.float32 and name not in QUICK:
                    continue
                torch.manual_seed(8)
                job = self.job(name, make(), sequences(), dtype=dtype)
                all_jobs.append({**job, "operators": [LIBRARY] if name == "custom" else []})
            torch.manual_seed(8)
            all_jobs.append(self.job("decomposed_lstm", recurrent.Recurrent("LSTM"), sequences(), dtype=dtype, cuts=4, stride=64,
                                     decompose=lambda program: program.run_decompositions(), pipelines=programs.PIPELINES[::2]))  # fmt: skip
            all_jobs.append(self.job("vmap", recurrent.Mapped(), sequences(), dtype=dtype,
                                     decompose=lambda program: program.run_decompositions({})))
        results = self.compare(all_jobs)
        self.assertGreater(results["decomposed_lstm_64"]["legal"], 5 * results["lstm_64"]["legal"],
                           "more places to cut, as the message says")  # fmt: skip

    def test_evaluation(self):
        """Exported for training and evaluated: dropout between recurrent layers does nothing, and statistics are used."""
        all_jobs = []
        models = {kind.lower(): recurrent.Recurrent(kind, dropout=0.5) for kind in ("LSTM", "GRU", "RNN")}
        for name, model in {**models, "instance_norm": recurrent.Normalised()}.items():
            torch.manual_seed(8)
            path, arguments = self.path(name + "_eval"), [one.double() for one in sequences()]
            programs.export(model.double().train(), arguments, {}, path + ".pt2")
            with torch.no_grad():
                outputs = [model.eval()(*arguments)]
            torch.save({"arguments": arguments, "keywords": {}, "outputs": outputs, "gradients": {},
                        "buffers": dict(model.named_buffers())}, path + ".data")  # fmt: skip
            all_jobs.append({"name": name, "model": path + ".pt2", "data": path + ".data", "tolerance": 1e-12, "microbatches": [1],
                             "evaluation": True, "stride": 4})  # fmt: skip
        self.compare(all_jobs)

    def test_wrong_groups(self):
        """Refused when it runs, with the node's name."""
        for name, ends in (("descending", [4, 2, 8, 8]), ("too far", [4, 4, 8, 100])):
            path = self.path(name.replace(" ", "_"))
            programs.export(recurrent.Groups(ends).double(), [torch.randn(8, 6, dtype=torch.float64)], {}, path + ".pt2")
            torch.save({"arguments": [torch.zeros(8, 6, dtype=torch.float64)], "keywords": {}, "outputs": [], "gradients": {},
                        "buffers": {}}, path + ".data")  # fmt: skip
            (result,) = self.results([{"name": name, "model": path + ".pt2", "data": path + ".data", "tolerance": 0,
                                       "microbatches": [1], "stride": 64}]).values()  # fmt: skip
            self.assertRegex(result["failures"][0], r"node 'grouped_mm_fallback' .*: group \d ends at row \d+, but must end between")

    def exported(self, name, model, **how):
        path = self.path(name + ".pt2")
        programs.export(model.train(), sequences(), {}, path, **how)
        return path

    def command(self, *arguments, code=0):
        done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done.stderr if code else done.stdout

    def assert_in(self, text, *parts):
        for part in parts:
            self.assertIn(part, text)

    def test_missing_operators_are_listed(self):
        custom = self.exported("missing", recurrent.Custom())
        for command in (["model", custom], ["split", custom, "--stages", 2]):
            self.assert_in(self.command(*command), "operators that LibTorch does not have: stagecraft_test::square (2 nodes): ",
                           "--load LIB.so")  # fmt: skip
        self.assertIn('"missing_operators": []', self.command("model", self.exported("none", recurrent.Experts()), "--format", "json"))
        mapped = self.exported("mapped", recurrent.Mapped())
        self.assert_in(self.command("model", mapped), "torch._functorch.predispatch._add_batch_dim (1 node)",
                       "run_decompositions({})")  # fmt: skip

    def data(self):
        import safetensors.torch

        path = self.path("data.safetensors")
        x = sequences()[0]
        safetensors.torch.save_file({"x": x, "target": x.sin()}, path)
        return path

    def train(self, model, *more, code=0):
        return self.command("train", model, "--data", self.data(), "--loss", "mse", "--steps", 2, "--batch", 4, *more, code=code)

    def test_training_brings_operators(self):
        custom, data = self.exported("brought", recurrent.Custom()), self.data()
        self.assert_in(self.train(custom, code=2), "operators that LibTorch does not have", "stagecraft_test::square (2 nodes)",
                       "node 'square'", "--load LIB.so")  # fmt: skip
        self.assertIn("loss", self.train(custom, "--load", LIBRARY))
        self.assertIn("loss", self.train(custom, "--load", LIBRARY, "--load", LIBRARY))
        self.assert_in(self.train(self.exported("vmap", recurrent.Mapped()), code=2), "run_decompositions({})")
        self.assert_in(self.train(custom, "--load", self.path("none.so"), code=2), "none.so: no such file")
        self.assert_in(self.train(custom, "--load", data, code=2), f"{data}: it is no shared library", "TORCH_LIBRARY")
        copies = {name: self.path(name) for name in ("copy.so", "short.so", "shorter.so")}
        shutil.copy(LIBRARY, copies["copy.so"])
        whole = pathlib.Path(LIBRARY).read_bytes()
        for name, length in (("short.so", len(whole) // 2), ("shorter.so", 3000)):
            pathlib.Path(copies[name]).write_bytes(whole[:length])
            self.assert_in(self.train(custom, "--load", copies[name], code=2), f"{name}: it is a shared library whose end is missing")
        self.assert_in(self.train(custom, "--load", LIBRARY, "--load", copies["copy.so"], code=2), "copy.so: cannot register its operators",
                       "stagecraft_test")  # fmt: skip
        self.assert_in(self.train(custom, "--load", self.folder, code=2), "not a file")


if __name__ == "__main__":
    unittest.main(verbosity=2)
