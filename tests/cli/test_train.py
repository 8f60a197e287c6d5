"""stagecraft train: Python's losses on any ranks, the same run when resumed, weights for Python."""

import re

import exported
import torch
from command_case import UNUSABLE
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from training_case import (BATCH, LENGTH, MPIEXEC, RATE, ROWS, STEPS, TrainCase, export_plane, language, plane, positions,
                           python_language, python_run)


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

    def test_graph(self):
        """`auto` changes no loss, also where batches of one update count differently; `on` is refused where there is no GPU."""
        some = {**self.text, "target": self.text["target"].masked_fill(torch.rand(ROWS, LENGTH) < 0.4, -100)}
        options = ("--batch", 4, "--accumulate", 2, "--microbatches", 2)
        self.assertEqual(self.losses(*options, "--graph", "auto", data=some)[0], self.losses(*options, data=some)[0])
        done = self.command(*self.arguments("--graph", "on"))
        if torch.cuda.is_available():
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        else:
            self.assert_error(done, UNUSABLE, "--graph on captures steps on a CUDA device", "computes on the CPU", "--graph auto")

    def test_rows_are_shuffled_by_the_seed(self):
        """In an order that is computed here too; batches of 5 cross from one epoch to the next."""
        for seed, batch in ((1, 5), (2**64 - 1, 8)):
            batches = [positions(batch * i, batch * i + batch, seed=seed) for i in range(STEPS)]
            ours, _ = self.losses("--seed", seed, "--batch", batch)
            self.assert_close(ours, python_language(self.text, batches=batches))

    def test_replicas_take_rows_of_their_own(self):
        wide, _ = self.losses("--in-order", "--batch", 8)
        two, _ = self.losses("--in-order", "--batch", 4, "--replicas", 2)
        self.assert_close(two, wide)

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
        def test_losses_are_those_of_threads(self):
            theirs = python_language(self.text)
            for ranks, options in ((2, ["--schedule", "ZBVZeroBubble"]), (3, [])):
                done = self.mpirun("--in-order", "--microbatches", 4, "--losses", "losses.csv", *options, ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.count(f"step {STEPS}/{STEPS}"), 1)
                self.assert_close(self.read_losses("losses.csv"), theirs)


if __name__ == "__main__":
    exported.unittest.main()
