"""stagecraft train: data, files and options that cannot be."""

import itertools

import exported
import torch
from command_case import UNUSABLE
from training_case import ALL, ROWS, TrainCase, export_plane


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
        self.refuse("the targets 'target' have 20 rows along dimension 0, and the inputs have 24", data={**text, "target": text["target"][:20].contiguous()})
        self.refuse("24 rows, fewer than the 32", "smaller --batch", options=["--batch", 32])
        self.refuse("24 rows, fewer than the 32", options=["--batch", 16, "--replicas", 2])
        self.refuse("--targets is for inputs in a .npy file", options=["--targets", "t.npy"])
        self.refuse("--length is for tokens", options=["--length", 6])
        self.refuse("there are 2 rows", "to evaluate on", "--eval-share", options=["--eval-share", 0.1])

    def test_all_faults_at_once(self):
        self.refuse("'points' is Long [24, 6], but the model takes Float [any, 3]", "no tensor 'shift'",
                    data={"points": self.text["tokens"], "target": self.text["target"]}, model=self.saved("plane.pt2", export_plane))

    def test_targets_that_do_not_fit_the_loss(self):
        """Found before the first step, on every rank in the same words."""
        text = self.text
        for data, options, parts in (
            ({**text, "target": text["target"].float()}, [], ("cross_entropy", "integer targets", ", 6, 16]", "Float [24, 6]")),
            (text, ["--loss", "mse"], ("mse", "targets of the shape of the output", ", 6, 16]", "Long [24, 6]")),
            (text, ["--output", "nothing"], ("no output 'nothing'", "last, logits")),
            ({**text, "target": text["target"] + 99}, [], ("class 114", "16 classes")),
            ({**text, "target": text["target"] - 1}, [], ("class -1", "-100 does not count")),
        )[:: 1 if ALL else 6]:
            done = self.command(*self.arguments("--ranks", 2, "--save", "state.safetensors", *options, data=data))
            self.assert_error(done, UNUSABLE, *parts)
            self.assertFalse((self.folder / "state.safetensors").exists())

    def test_files_that_are_none(self):
        self.refuse("missing.pt2", model=self.folder / "missing.pt2")
        self.refuse("text.pt2", model=self.file("text.pt2", "no zip"))
        self.assert_error(self.command("train", self.language(), "--data", self.file("d.safetensors", b"\xff" * 20)), UNUSABLE,
                          "d.safetensors", "header")
        self.assert_error(self.command("train", self.language(), "--data", "nowhere.safetensors"), UNUSABLE, "nowhere.safetensors")
        self.refuse("state.safetensors", options=["--resume", "--save", self.file("state.safetensors", "cut off")])
        for option in ("--losses", "--metrics", "--save", "--save-weights"):
            self.refuse("no/such/file", "no folder", option, options=[option, "no/such/file"])

    def test_state_of_another_model(self):
        options = ["--save", "state.safetensors"]
        self.output(*self.arguments(*options, "--steps", 1))
        data = {"points": torch.randn(ROWS, 3), "shift": torch.randn(2), "target": torch.randn(ROWS, 2)}
        before = (self.folder / "state.safetensors").read_bytes()
        self.refuse("state.safetensors", "'net.0.weight'", options=["--loss", "mse", "--resume", "--new-data", *options], data=data,
                    model=self.saved("plane.pt2", export_plane))
        self.assertEqual((self.folder / "state.safetensors").read_bytes(), before)

    def test_usage(self):
        self.refuse("--resume goes on from --save or --checkpoints", options=["--resume"])
        self.refuse("--loss", "hinge", options=["--loss", "hinge"])
        self.refuse("'NoSuch'", options=["--schedule", "NoSuch"])
        self.refuse("--data", "stagecraft train --help", options=["--data"])
        self.refuse("8 rows", "9 microbatches", "larger --batch", options=["--microbatches", 9])
        self.refuse("too few for 100 stages", options=["--ranks", 100])
        self.refuse("--new-data is about --resume", options=["--new-data"])
        self.refuse("--save-every needs --save or --checkpoints", options=["--save-every", 2])
        self.refuse("--eval-every needs data", "--eval-share", options=["--eval-every", 2])
        self.refuse("give one of them", options=["--eval-data", "a.bin", "--eval-share", 0.5])
        self.refuse("'1.5' is not a number above 0 and below 1", options=["--eval-share", 1.5])
        self.refuse("--shard says what replicas share", "--replicas", options=["--shard", "gradients"])
        self.refuse("'all' is not one of none|optimizer|gradients|parameters", options=["--shard", "all"])
        self.refuse("'nan' is not a number above 0", options=["--clip-norm", "nan"])
        self.refuse("'010' is not a whole number from 1 up", options=["--accumulate", "010"])
        self.refuse("'some' is neither none nor stage nor a number of layers", options=["--recompute", "some"])
        self.refuse("--momentum is for sgd", options=["--momentum", 0.9])
        self.refuse("--beta2 is for adam", options=["--optimizer", "sgd", "--beta2", 0.9])
        self.refuse("'nowhere'", options=["--ranks", 2, "--at", "nowhere"])
        self.refuse("2 stages", options=["--ranks", 3, "--at", "head"])
        self.refuse("no marks", options=["--ranks", 2, "--marked"])


if __name__ == "__main__":
    exported.unittest.main()
