"""stagecraft train: files of tokens and arrays of numpy."""

import itertools

import exported
import numpy
import torch
from command_case import UNUSABLE
from torch import nn
from training_case import ALL, BATCH, LENGTH, ROWS, STEPS, VOCABULARY, TrainCase, export_plane, positions, python_language


class AnyLength(nn.Module):
    """Takes rows of any length, of int32."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.tokens(tokens))


def export_any_length():
    torch.manual_seed(0)
    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("length", min=2, max=64)
    return exported.export(AnyLength(), (torch.zeros(4, 8, dtype=torch.int),), dynamic_shapes={"tokens": {0: rows, 1: length}})


def headed(magic, version, count, tokens):
    header = numpy.zeros(256, "<i4")
    header[:3] = magic, version, count
    return header.tobytes() + tokens.tobytes()


class TokenCase(TrainCase):
    def setUp(self):
        super().setUp()
        self.stream = torch.randint(0, VOCABULARY, (ROWS * LENGTH + 4,))  # three tokens are no whole row
        windows = self.stream[: ROWS * LENGTH + 1]
        self.text = {"tokens": windows[:-1].view(ROWS, LENGTH), "target": windows[1:].view(ROWS, LENGTH)}

    def as_array(self, kind):
        return self.stream.numpy().astype(kind)

    def array(self, name, values):
        numpy.save(self.folder / name, values)
        return self.folder / name


class Trains(TokenCase):
    def test_rows_are_windows_of_the_tokens(self):
        theirs = python_language(self.text)
        plain = self.file("plain.bin", self.as_array("<u2").tobytes())
        files = [(plain, []), (self.file("wide.bin", self.as_array("<u4").tobytes()), ["--token-type", "uint32"]),
                 (self.file("gpt2.bin", headed(20240520, 1, len(self.stream), self.as_array("<u2"))), []),
                 (self.file("llama.bin", headed(20240801, 7, len(self.stream), self.as_array("<u4"))), ["--ranks", 2]),
                 (self.array("tokens.npy", self.as_array("<u2")), []), (self.array("bytes.npy", self.as_array("|u1")), [])]
        for data, options in files if ALL else [files[2], files[3], files[4]]:
            with self.subTest(data.name):
                self.assert_close(self.losses("--in-order", *options, data=data)[0], theirs)
        batches = [positions(BATCH * i, BATCH * i + BATCH, seed=3) for i in range(STEPS)]
        self.assert_close(self.losses("--seed", 3, "--ranks", 2, "--microbatches", 2, data=plain)[0],
                          python_language(self.text, batches=batches))

    def test_rows_of_arrays(self):
        inputs, targets = (self.array(f"{name}.npy", tensor.numpy()) for name, tensor in self.text.items())
        self.assert_close(self.losses("--in-order", "--targets", targets, data=inputs)[0], python_language(self.text))

    def test_a_model_of_any_length(self):
        model = self.saved("any_length.pt2", export_any_length)
        data = self.file("tokens.bin", self.as_array("<u2").tobytes())
        self.output(*self.arguments("--length", 12, "--steps", 2, "--metrics", "run.jsonl", model=model, data=data))
        self.assertIn("tokens_per_second", self.metrics()[0])
        self.assert_error(self.command(*self.arguments(model=model, data=data)), UNUSABLE, "tokens.bin", "--length")

    def test_a_token_that_the_model_does_not_know(self):
        """Found before the first step, in a file that is read in a second."""
        self.stream[2 * BATCH * LENGTH + 5] = VOCABULARY
        data = self.file("tokens.bin", self.as_array("<u2").tobytes())
        done = self.command(*self.arguments("--in-order", "--ranks", 2, data=data))
        self.assertEqual(done.returncode, UNUSABLE, done.stderr)
        for part in ("tokens.bin: token 16 (at 101)", "16 classes"):
            self.assertIn(part, done.stderr)
        self.assertNotIn("step 1/8", done.stdout)


class Refuses(TokenCase):
    def setUp(self):
        super().setUp()
        self.turns = itertools.count()

    def refuse(self, data, *parts, options=(), **what):
        """The first of each test, or all: each starts a process that loads LibTorch."""
        if ALL or next(self.turns) == 0:
            self.assert_error(self.command(*self.arguments(*options, data=data, **what)), UNUSABLE, data.name, *parts)

    def test_tokens(self):
        two = self.as_array("<u2")
        self.refuse(self.file("a.bin", headed(20240520, 1, 999, two)), "says that there are 999 tokens", "fetch the file again")
        self.refuse(self.file("b.bin", two.tobytes()[:-1]), "no whole number of tokens of uint16")
        self.refuse(self.file("c.bin", headed(20240520, 3, len(two), two)), "version 3")
        self.refuse(self.file("d.bin", two[:LENGTH].tobytes()), f"it has {LENGTH} tokens", f"take {LENGTH + 1}")
        self.refuse(self.file("e.bin", self.as_array("<u4").tobytes()), "as if they were uint32", "--token-type")
        self.refuse(self.array("f.npy", self.as_array("<f4")), "F32 [148]", "integers")
        self.refuse(self.array("g.npy", self.as_array(">u2")), "big-endian")
        good = self.file("h.bin", two.tobytes())
        self.refuse(good, "takes 2 inputs (points, shift)", model=self.saved("plane.pt2", export_plane))
        self.refuse(good, "--length is 7, but the model takes rows of 6", options=["--length", 7])
        self.refuse(good, "--targets is for inputs in a .npy file", options=["--targets", "t.npy"])
        self.refuse(self.folder / "missing.bin", "cannot read it")
        self.refuse(good, "there are 4 rows", "to evaluate on", options=["--eval-share", 0.2])

    def test_arrays(self):
        inputs, targets = self.text["tokens"].numpy(), self.text["target"].numpy()
        options = ["--targets", self.array("targets.npy", targets)]
        self.refuse(self.array("a.npy", numpy.asfortranarray(inputs)), "Fortran order", "ascontiguousarray", options=options)
        self.refuse(self.array("b.npy", inputs.astype("<i4")), "Int [24, 6]", "takes Long [any, 6]", options=options)
        self.refuse(self.array("c.npy", inputs[:20]), "the targets 'target' have 24 rows along dimension 0, and the inputs have 20", options=options)
        cut = self.array("e.npy", inputs)
        cut.write_bytes(cut.read_bytes()[:-8])
        self.refuse(cut, "takes 1152 bytes, but the file holds only 1144", options=options)
        broken = self.file("broken.npy", "no array")
        self.refuse(broken, "does not begin like a .npy file", options=options)


if __name__ == "__main__":
    exported.unittest.main()
