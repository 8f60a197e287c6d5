"""Every family of models, trained by the command: the losses are those of the exported program in Python, whole and cut, and the
trained program comes back."""

import csv
import os
import pathlib
import subprocess
import tempfile
import unittest
import warnings

import torch
from families import FAMILIES, ROWS
from safetensors.torch import save_file

warnings.filterwarnings("ignore")
ALL = "STAGECRAFT_TEST_ALL" in os.environ
BIN = os.environ["STAGECRAFT_BIN"]
MPIEXEC = os.environ.get("STAGECRAFT_MPIEXEC")  # where the build has MPI
STEPS, BATCH, RATE = 5, 8, 1e-2
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 0.02, torch.float16: 2e-3}
LAYOUTS = {"whole": (1, "1F1B"), "two stages": (2, "1F1B"), "four stages, zero bubble": (4, "ZB-H1"), "four stages, V": (2, "ZBVZeroBubble")}
LOW = ("decoder", "vision_transformer")  # also in bfloat16 and float16


def cast(tensor, dtype):
    return tensor.to(dtype) if tensor is not None and tensor.is_floating_point() else tensor


class Case:
    """A family in one type: the program, its data, and what Python makes of them."""

    def __init__(self, name, dtype, folder):
        self.family, self.dtype, self.folder = FAMILIES[name], dtype, folder
        self.by_sgd = dtype != torch.float64  # AdamW divides gradients by their size: of one that is nearly zero, it makes a step out of rounding
        torch.manual_seed(1)
        self.model = self.family.make().to(dtype).train()
        self.inputs = {key: cast(value, dtype) for key, value in self.family.inputs().items()}
        self.target = cast(self.family.targets(), dtype)
        rows = torch.export.Dim("rows", min=1, max=64)
        along = {key: self.family.rows.get(key, 0) for key in self.inputs}
        examples = {key: self.rows(key, range(4)) for key in self.inputs}
        program = torch.export.export(self.model, (), examples, strict=False,
                                      dynamic_shapes={key: None if along[key] is None else {along[key]: rows} for key in along})  # fmt: skip
        torch.export.save(program, folder / "model.pt2")
        data = {key: value.contiguous() for key, value in self.inputs.items()}
        save_file(data if self.target is None else {**data, "target": self.target}, folder / "data.safetensors")

    def rows(self, key, which):
        along = self.family.rows.get(key, 0)
        return self.inputs[key] if along is None else self.inputs[key].index_select(along, torch.tensor(list(which)))

    def batch(self, step):
        which = [i % ROWS for i in range(step * BATCH, (step + 1) * BATCH)]
        target = None if self.target is None else self.target.index_select(self.family.target_rows, torch.tensor(which))
        return {key: self.rows(key, which) for key in self.inputs}, target

    def train_in_python(self):
        self.module = torch.export.load(self.folder / "model.pt2").module()
        kind = torch.optim.SGD if self.by_sgd else torch.optim.AdamW
        optimizer = kind(self.module.parameters(), lr=RATE)
        losses = []
        for step in range(STEPS):
            inputs, target = self.batch(step)
            loss = self.family.loss(self.module(**inputs), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def train(self, ranks, schedule, microbatches, by_mpi):
        command = [BIN, "train", "model.pt2", "--data", "data.safetensors", "--in-order", "--steps", STEPS, "--batch", BATCH, "--lr", RATE,
                   "--schedule", schedule, "--microbatches", microbatches, "--losses", "losses.csv", "--save-program", "trained.pt2",
                   *self.family.options, *(["--optimizer", "sgd"] if self.by_sgd else [])]
        environment = dict(os.environ)
        if by_mpi:
            command = [MPIEXEC, "-n", ranks, *command]
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                            "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        else:
            command += ["--ranks", ranks]
        done = subprocess.run(list(map(str, command)), cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
        with open(self.folder / "losses.csv") as file:
            return [float(row["loss"]) for row in csv.DictReader(file)]


def worst(ours, theirs):
    """Relative where numbers are large."""
    scale = max(1.0, theirs.abs().max().item())
    return ((ours - theirs).abs().max() / scale).item()


class Families(unittest.TestCase):
    def check(self, name, dtype, layouts):
        with tempfile.TemporaryDirectory(prefix="stagecraft-family-") as folder:
            case = Case(name, dtype, pathlib.Path(folder))
            theirs = torch.tensor(case.train_in_python(), dtype=torch.float64)
            self.assertGreater((theirs[0] - theirs[2:]).abs().max().item(), 0)
            module, tolerance, seen = case.module, TOLERANCE[dtype], 0.0
            for turn, (label, (ranks, schedule)) in enumerate(layouts.items()):
                microbatches = 1 if case.family.by_batch else (4, 2, 8)[turn % 3]
                for by_mpi in (False, True) if MPIEXEC and ranks == 2 and (ALL or turn == 0) else (False,):
                    with self.subTest(family=name, dtype=str(dtype), layout=label, mpi=by_mpi):
                        ours = torch.tensor(case.train(ranks, schedule, microbatches, by_mpi), dtype=torch.float64)
                        self.assertEqual(ours.shape, theirs.shape)
                        seen = max(seen, worst(ours, theirs))
                        self.assertLessEqual(worst(ours, theirs), tolerance)
                        trained = torch.export.load(case.folder / "trained.pt2").module()
                        self.same_outputs(trained, module, case, 10 * tolerance)
            print(f"  {name} {str(dtype)[6:]}: {len(layouts)} layouts, worst {seen:.1e}")

    def same_outputs(self, ours, theirs, case, tolerance):
        inputs, _ = case.batch(0)
        with torch.no_grad():
            pairs = [torch.utils._pytree.tree_leaves(module(**inputs)) for module in (ours, theirs)]
        for a, b in zip(*pairs):
            self.assertLessEqual(worst(a.double(), b.double()), tolerance, "outputs of the trained program")

    def test_families(self):
        """All of them under every layout, or three under two."""
        for name in FAMILIES if ALL else ("lstm", "segmentation", "own_loss"):
            layouts = LAYOUTS if ALL else {key: LAYOUTS[key] for key in ("two stages", "four stages, V")}
            self.check(name, torch.float64, layouts)
            if ALL:
                self.check(name, torch.float32, {key: LAYOUTS[key] for key in ("whole", "four stages, V")})

    def test_low_precision(self):
        for name in LOW if ALL else LOW[:1]:
            for dtype in (torch.bfloat16, torch.float16):
                self.check(name, dtype, {key: LAYOUTS[key] for key in (LAYOUTS if ALL else ("four stages, V",))})


if __name__ == "__main__":
    unittest.main(verbosity=2)
