"""stagecraft train: Python's losses on any ranks, the same run when resumed, weights for Python; and data that cannot be."""

import csv
import itertools
import os
import re
import subprocess

import exported
import torch
from command_case import BIN, REFUSED, TIMEOUT, UNUSABLE, CommandCase
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

MPIEXEC = os.environ.get("STAGECRAFT_MPIEXEC")  # where the build has MPI
ALL = "STAGECRAFT_TEST_ALL" in os.environ
ROWS, LENGTH, VOCABULARY, STEPS, BATCH, RATE = 24, 6, 16, 8, 8, 1e-2
DEFAULTS = {"--steps": STEPS, "--batch": BATCH, "--lr": RATE}


class Language(nn.Module):
    """Embedding and head tied, dropout when asked for."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout)) for _ in range(4))
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = x + block(x)
        return {"last": x, "logits": self.head(x)}


class Plane(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, points, *, shift):
        return self.net(points) + shift


def language(dropout=0.0):
    torch.manual_seed(0)
    return Language(dropout).double().train()


def export_language(dropout=0.0):
    tokens = torch.zeros(4, LENGTH, dtype=torch.long)
    return exported.export(language(dropout), (tokens,), dynamic_shapes={"tokens": {0: torch.export.Dim("rows", min=1, max=64)}})


def plane():
    torch.manual_seed(1)
    return Plane()


def export_plane():
    rows = torch.export.Dim("rows", min=1, max=64)
    return exported.export(plane(), (torch.randn(4, 3),), {"shift": torch.randn(2)}, {"points": {0: rows}, "shift": None})


class TrainCase(exported.ExportCase, CommandCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(2)
        tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
        self.text = {"tokens": tokens, "target": tokens.roll(-1, 1).contiguous()}

    def data(self, tensors):
        path = self.folder / "data.safetensors"
        save_file(tensors, path)
        return path

    def language(self, dropout=0.0):
        return self.saved(f"language_{dropout}.pt2", lambda: export_language(dropout))

    def arguments(self, *options, model=None, data=None):
        defaults = [part for option, value in DEFAULTS.items() if option not in options for part in (option, value)]
        return ["train", model or self.language(), "--data", self.data(data or self.text), *defaults, *options]

    def losses(self, *options, **what):
        """Of every step, and what was printed."""
        text = self.output(*self.arguments("--losses", "losses.csv", *options, **what))
        return self.read_losses("losses.csv"), text

    def read_losses(self, name):
        with open(self.folder / name) as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([int(row["step"]) for row in rows], list(range(1, len(rows) + 1)))
        return [float(row["loss"]) for row in rows]

    def assert_close(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for a, b in zip(ours, theirs):
            self.assertAlmostEqual(a, b, delta=1e-12)


def python_run(model, batches, loss_of, make_optimizer):
    optimizer = make_optimizer(model.parameters())
    losses = []
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def python_language(text, model=None):
    rows = [slice(BATCH * (i % 3), BATCH * (i % 3) + BATCH) for i in range(STEPS)]
    loss_of = lambda model, own: nn.functional.cross_entropy(model(text["tokens"][own])["logits"].flatten(0, 1), text["target"][own].flatten())
    return python_run(model or language(), rows, loss_of, lambda parameters: torch.optim.AdamW(parameters, lr=RATE))


class Trains(TrainCase):
    def test_losses_are_pythons_on_any_ranks(self):
        theirs = python_language(self.text)
        schedule = self.generate("own.csv", "1F1B", 2, 4)
        for options in ([], ["--ranks", 2, "--microbatches", 4], ["--ranks", 2, "--microbatches", 4, "--schedule", "zbvzerobubble"],
                        ["--ranks", 2, "--microbatches", 2, "--at", "blocks.3:end"],
                        ["--ranks", 2, "--microbatches", 4, "--schedule", schedule],
                        ["--ranks", 2, "--microbatches", 4, "--schedule", "auto"]):
            with self.subTest(options=options):
                ours, text = self.losses("--in-order", *options)
                self.assert_close(ours, theirs)
                self.assertIn(f"step {STEPS}/{STEPS}  loss {theirs[-1]:.4f}", text)

    def test_mean_square_and_other_optimizers(self):
        """An input that is the same for all rows, targets of another name, an output that is one tensor."""
        torch.manual_seed(3)
        data = {"points": torch.randn(ROWS, 3), "shift": torch.randn(2), "wanted": torch.randn(ROWS, 2)}
        rows = [slice(BATCH * (i % 3), BATCH * (i % 3) + BATCH) for i in range(STEPS)]
        loss_of = lambda model, own: nn.functional.mse_loss(model(data["points"][own], shift=data["shift"]), data["wanted"][own])
        for name, make in (("sgd", lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9, weight_decay=0.1)),
                           ("adam", lambda p: torch.optim.Adam(p, lr=RATE, weight_decay=0.1))):
            theirs = python_run(plane(), rows, loss_of, make)
            momentum = ["--momentum", 0.9] if name == "sgd" else []
            ours, _ = self.losses("--in-order", "--loss", "mse", "--target", "wanted", "--optimizer", name, "--weight-decay", 0.1,
                                  "--ranks", 2, "--microbatches", 2, *momentum, model=self.saved("plane.pt2", export_plane), data=data)
            for a, b in zip(ours, theirs, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-5)

    def test_targets_that_do_not_count(self):
        some = {**self.text, "target": self.text["target"].masked_fill(torch.rand(ROWS, LENGTH) < 0.3, -100)}
        some["target"][:3] = -100  # a microbatch, and a replica's, that does not count at all
        theirs = python_language(some)
        for options in ([], ["--microbatches", 2], ["--microbatches", 4, "--ranks", 2], ["--microbatches", 8, "--ranks", 2, "--schedule", "ZB-H1"],
                        ["--batch", 4, "--replicas", 2, "--microbatches", 2]):
            with self.subTest(options=options):
                ours, _ = self.losses("--in-order", *options, data=some)
                self.assert_close(ours, theirs)

    def test_device(self):
        """The CPU when asked for; CUDA where there is any, and otherwise a refusal."""
        self.assert_close(self.losses("--in-order", "--device", "cpu")[0], python_language(self.text))
        done = self.command(*self.arguments("--device", "cuda"))
        if torch.cuda.is_available():
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        else:
            self.assert_error(done, UNUSABLE, "no device of type cuda")

    def test_rows_are_shuffled_by_the_seed(self):
        first, _ = self.losses("--seed", 1)
        again, _ = self.losses("--seed", 1)
        other, _ = self.losses("--seed", 2)
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_replicas_take_rows_of_their_own(self):
        wide, _ = self.losses("--in-order", "--batch", 8)
        two, _ = self.losses("--in-order", "--batch", 4, "--replicas", 2)
        self.assert_close(two, wide)

    def test_resumed_run_is_the_run_that_never_stopped(self):
        """With dropout and shuffled rows; on other ranks too."""
        dropout = self.language(0.2)
        through, _ = self.losses("--ranks", 2, "--microbatches", 2, model=dropout)
        for steps in (1, 3, 7) if ALL else (3,):
            options = ("--ranks", 2, "--microbatches", 2, "--save", "state.safetensors", "--losses", "parts.csv", "--resume")
            self.output(*self.arguments(*options, "--steps", steps, model=dropout))
            text = self.output(*self.arguments(*options, model=dropout))
            self.assertIn(f"going on from step {steps} of state.safetensors", text)
            self.assertEqual(self.read_losses("parts.csv"), through)
            (self.folder / "state.safetensors").unlink()
        alone, *others = [], ["--ranks", 2], ["--ranks", 2, "--schedule", "ZBVZeroBubble"], ["--ranks", 3]
        for options in others if ALL else others[1:2]:  # dropout is the same however the model is cut
            with self.subTest(options=options):
                self.output(*self.arguments("--microbatches", 2, "--save", "state.safetensors", "--losses", "parts.csv", "--steps", 3, *alone, model=dropout))
                self.output(*self.arguments("--microbatches", 2, "--save", "state.safetensors", "--losses", "parts.csv", "--resume", *options, model=dropout))
                self.assert_close(self.read_losses("parts.csv"), through)
                (self.folder / "state.safetensors").unlink()
        self.output(*self.arguments("--save", "state.safetensors", "--losses", "parts.csv", "--steps", 3, "--in-order"))
        self.output(*self.arguments("--save", "state.safetensors", "--losses", "parts.csv", "--resume", "--in-order", "--ranks", 2,
                                    "--microbatches", 4, "--schedule", "ZBVZeroBubble"))
        self.assert_close(self.read_losses("parts.csv"), python_language(self.text))

    def test_a_tied_weight_is_found_under_any_of_its_names(self):
        through, _ = self.losses("--in-order")
        options = ("--in-order", "--save", "state.safetensors", "--losses", "parts.csv")
        self.output(*self.arguments(*options, "--steps", 3))
        first = (self.folder / "parts.csv").read_text()
        with safe_open(self.folder / "state.safetensors", "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            metadata = {key: text for key, text in file.metadata().items() if "xxh64" not in key}  # who changes a file leaves out its checksums
        self.assertTrue(torch.equal(tensors["tokens.weight"], tensors["head.weight"]))
        for missing in ({"tokens.weight"}, {"head.weight"}, {"tokens.weight", "head.weight"}):
            kept = {name: tensor for name, tensor in tensors.items() if name not in missing}
            save_file(kept, self.folder / "state.safetensors", metadata)
            (self.folder / "parts.csv").write_text(first)
            done = self.command(*self.arguments(*options, "--resume"))
            if len(missing) == 1:
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(self.read_losses("parts.csv"), through)
            else:
                self.assert_error(done, UNUSABLE, "state.safetensors", "'tokens.weight'")

    def test_saves_on_the_way(self):
        text = self.output(*self.arguments("--save", "state.safetensors", "--save-every", 3))
        self.assertEqual(re.findall(r"saved step (\d+) in", text), ["3", "6", "8"])

    def test_weights_go_back_to_python(self):
        theirs = language()
        python_language(self.text, theirs)
        self.losses("--in-order", "--ranks", 2, "--microbatches", 4, "--schedule", "ZBVZeroBubble", "--save-weights", "weights.safetensors")
        weights = load_file(self.folder / "weights.safetensors")
        ours = language()
        self.assertEqual(str(ours.load_state_dict(weights, strict=True)), "<All keys matched successfully>")
        self.assertIs(ours.head.weight, ours.tokens.weight)
        for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values()):
            self.assertLess((a - b).abs().max(), 1e-12, name)


if MPIEXEC:

    class TrainsUnderMpirun(TrainCase):
        def mpirun(self, *options, ranks=2, **what):
            environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
            command = [MPIEXEC, "-n", ranks, BIN, *self.arguments(*options, **what)]
            return subprocess.run([str(part) for part in command], cwd=self.folder, env=environment, timeout=TIMEOUT, check=False,
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL)

        def test_losses_are_those_of_threads(self):
            theirs = python_language(self.text)
            for ranks, options in ((2, ["--schedule", "ZBVZeroBubble"]), (3, [])):
                done = self.mpirun("--in-order", "--microbatches", 4, "--losses", "losses.csv", *options, ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.count(f"step {STEPS}/{STEPS}"), 1)
                self.assert_close(self.read_losses("losses.csv"), theirs)

        def test_resumes_what_threads_saved(self):
            dropout = self.language(0.2)
            through, _ = self.losses("--ranks", 2, "--microbatches", 2, model=dropout)
            options = ("--microbatches", 2, "--save", "state.safetensors", "--losses", "parts.csv", "--resume")
            self.output(*self.arguments(*options, "--ranks", 2, "--steps", 3, model=dropout))
            done = self.mpirun(*options, model=dropout)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.read_losses("parts.csv"), through)

        def test_bad_data_ends_all_ranks(self):
            done = self.mpirun(data={"tokens": self.text["tokens"]})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("there is no tensor 'target'", done.stderr)


class Refuses(TrainCase):
    def setUp(self):
        super().setUp()
        self.turns = itertools.count()

    def refuse(self, *parts, options=(), **what):
        """The first of each test and every sixth after it, or all: each starts a process that loads LibTorch."""
        if not ALL and next(self.turns) % 6:
            return
        done = self.command(*self.arguments(*options, **what))
        self.assert_error(done, UNUSABLE, *parts)

    def test_data_that_does_not_fit(self):
        text = self.text
        self.refuse("data.safetensors", "no tensor 'tokens'", "it has target", data={"target": text["target"]})
        self.refuse("no tensor 'target'", "it has tokens", "--target", data={"tokens": text["tokens"]})
        self.refuse("'tokens' is Int [24, 6]", "takes Long [any, 6]", data={**text, "tokens": text["tokens"].int()})
        self.refuse("'tokens' is Long [24, 5]", "takes Long [any, 6]", data={**text, "tokens": text["tokens"][:, :5].contiguous()})
        self.refuse("'tokens' is Long [24]", data={**text, "tokens": text["tokens"][:, 0].contiguous()})
        self.refuse("'target' has 20 rows, others have 24", data={**text, "target": text["target"][:20].contiguous()})
        self.refuse("24 rows, fewer than the 32", "smaller --batch", options=["--batch", 32])
        self.refuse("24 rows, fewer than the 32", options=["--batch", 16, "--replicas", 2])

    def test_all_faults_at_once(self):
        self.refuse("'points' is Long [24, 6], but the model takes Float [any, 3]", "no tensor 'shift'",
                    data={"points": self.text["tokens"], "target": self.text["target"]}, model=self.saved("plane.pt2", export_plane))

    def test_targets_that_do_not_fit_the_loss(self):
        """Found in the first step, which says where."""
        text = self.text
        for data, options, parts in (
            ({**text, "target": text["target"].float()}, [], ("cross_entropy takes", "Double [8, 6, 16]", "Float [8, 6]")),
            (text, ["--loss", "mse"], ("mse takes a target of the shape of the output", "Double [8, 6, 16]", "Long [8, 6]")),
            (text, ["--output", "nothing"], ("'nothing'", "last", "logits")),
            ({**text, "target": text["target"] + 99}, [], ("class 114", "16 classes")),
            ({**text, "target": text["target"] - 1}, [], ("class -1", "-100 does not count")),
        )[:: 1 if ALL else 6]:
            done = self.command(*self.arguments("--ranks", 2, "--save", "state.safetensors", *options, data=data))
            self.assertEqual(done.returncode, REFUSED, done.stderr)
            self.assertRegex(done.stderr, r"\Astagecraft: train: rank 1, step \d+, action 1F0 \(stage 1, microbatch 0\): ")
            for part in parts:
                self.assertIn(part, done.stderr)
            self.assertFalse((self.folder / "state.safetensors").exists())

    def test_files_that_are_none(self):
        self.refuse("missing.pt2", model=self.folder / "missing.pt2")
        self.refuse("text.pt2", model=self.file("text.pt2", "no zip"))
        self.assert_error(self.command("train", self.language(), "--data", self.file("d.safetensors", b"\xff" * 20)), UNUSABLE,
                          "d.safetensors", "header")
        self.assert_error(self.command("train", self.language(), "--data", "nowhere.safetensors"), UNUSABLE, "nowhere.safetensors")
        self.refuse("state.safetensors", options=["--resume", "--save", self.file("state.safetensors", "cut off")])
        for option in ("--losses", "--save", "--save-weights"):
            self.refuse("no/such/file", "no folder", option, options=[option, "no/such/file"])

    def test_state_of_another_model(self):
        options = ["--save", "state.safetensors"]
        self.output(*self.arguments(*options, "--steps", 1))
        data = {"points": torch.randn(ROWS, 3), "shift": torch.randn(2), "target": torch.randn(ROWS, 2)}
        before = (self.folder / "state.safetensors").read_bytes()
        self.refuse("state.safetensors", "'net.0.weight'", options=["--loss", "mse", "--resume", *options], data=data,
                    model=self.saved("plane.pt2", export_plane))
        self.assertEqual((self.folder / "state.safetensors").read_bytes(), before)

    def test_usage(self):
        self.refuse("--resume goes on from the file of --save", options=["--resume"])
        self.refuse("--loss", "hinge", options=["--loss", "hinge"])
        self.refuse("'NoSuch'", options=["--schedule", "NoSuch"])
        self.refuse("--data", "stagecraft train --help", options=["--data"])
        self.refuse("8 rows", "9 microbatches", "larger --batch", options=["--microbatches", 9])
        self.refuse("too few for 100 stages", options=["--ranks", 100])
        self.refuse("'nowhere'", options=["--ranks", 2, "--at", "nowhere"])
        self.refuse("2 stages", options=["--ranks", 3, "--at", "head"])
        self.refuse("no marks", options=["--ranks", 2, "--marked"])


if __name__ == "__main__":
    exported.unittest.main()
