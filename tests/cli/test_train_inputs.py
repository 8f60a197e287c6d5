"""stagecraft train: rows along any dimension, nested inputs, static batches, several files."""

import exported
import numpy
import torch
from command_case import UNUSABLE
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from training_case import BATCH, RATE, ROWS, STEPS, TrainCase, positions, python_run

DIM = torch.export.Dim
CUT = ("--ranks", 2, "--microbatches", 4, "--schedule", "ZBVZeroBubble")


class Recurrent(nn.Module):
    """Rows are the second dimension, as an LSTM has them."""

    def __init__(self):
        super().__init__()
        self.enter, self.lstm, self.leave = nn.Linear(3, 4), nn.LSTM(4, 4), nn.Linear(4, 5)
        self.last = nn.Linear(5, 5)

    def forward(self, x):
        return self.last(torch.tanh(self.leave(self.lstm(torch.tanh(self.enter(x)))[0])))


class Nested(nn.Module):
    """Inputs inside others: by row, along another dimension, whole, and fixed."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, batch, *, extra):
        y = torch.tanh(self.a(batch["x"])) + extra["pair"][0].t()
        y = torch.tanh(self.b(y)) * extra["pair"][1]
        return self.d(torch.tanh(self.c(y)))


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, x, shift):
        return self.net(x) + shift


def double(*sizes):
    return torch.randn(*sizes, dtype=torch.float64)


class Inputs(TrainCase):
    def run_both(self, make, model, data, loss_of, *options, loss="mse"):
        batches = [positions(BATCH * i, BATCH * i + BATCH) for i in range(STEPS)]
        theirs = python_run(make(), batches, loss_of, lambda parameters: torch.optim.AdamW(parameters, lr=RATE))
        for layout in ((), CUT):
            with self.subTest(layout=layout):
                self.assert_close(self.losses("--in-order", "--loss", loss, *layout, *options, model=model, data=data)[0], theirs)

    def test_rows_along_the_second_dimension(self):
        def make():
            torch.manual_seed(6)
            return Recurrent().double()

        model = self.saved("recurrent.pt2", lambda: exported.export(make(), (double(6, 4, 3),), dynamic_shapes={"x": {1: DIM("rows", min=1, max=64)}}))
        x, target = double(6, ROWS, 3), torch.randint(0, 5, (6, ROWS))
        target[torch.rand(6, ROWS) < 0.3] = -100
        loss_of = lambda own, rows: F.cross_entropy(own(x[:, rows]).flatten(0, 1), target[:, rows].flatten())
        self.run_both(make, model, {"x": x, "target": target}, loss_of, loss="cross_entropy")
        values = double(6, ROWS, 5)
        self.run_both(make, model, {"x": x, "target": values}, lambda own, rows: F.mse_loss(own(x[:, rows]), values[:, rows]))
        done = self.command(*self.arguments("--loss", "mse", model=model, data={"x": x, "target": double(ROWS, 6, 5)}))
        self.assert_error(done, UNUSABLE, "rows along dimension 1", "24")
        done = self.command(*self.arguments("--loss", "mse", model=model, data={"x": double(ROWS, 6, 3), "target": values}))
        self.assert_error(done, UNUSABLE, "Double [24, 6, 3]", "rows along dimension 1, which is dynamic")

    def test_nested_by_their_names(self):
        def make():
            torch.manual_seed(7)
            return Nested().double()

        rows = DIM("rows", min=1, max=64)
        model = self.saved("nested.pt2", lambda: exported.export(
            make(), ({"x": double(4, 4)},), {"extra": {"pair": (double(4, 4), double(4))}},
            {"batch": {"x": {0: rows}}, "extra": {"pair": ({1: rows}, None)}}))  # fmt: skip
        x, along, whole, target = double(ROWS, 4), double(4, ROWS), double(4), double(ROWS, 4)
        loss_of = lambda own, rows: F.mse_loss(own({"x": x[rows]}, extra={"pair": (along[:, rows], whole)}), target[rows])
        self.run_both(make, model, {"batch.x": x, "extra.pair.0": along, "extra.pair.1": whole, "target": target}, loss_of)
        done = self.command(*self.arguments("--loss", "mse", model=model, data={"batch.x": x, "extra.pair.0": along, "target": target}))
        self.assert_error(done, UNUSABLE, "no tensor 'extra.pair.1'")

    def test_a_static_batch(self):
        def make():
            torch.manual_seed(8)
            return Fixed().double()

        model = self.saved("fixed.pt2", lambda: exported.export(make(), (double(4, 3), double(2))))
        x, shift, target = double(ROWS, 3), double(2), double(ROWS, 2)
        data = {"x": x, "shift": shift, "target": target}
        theirs = python_run(make(), [positions(BATCH * i, BATCH * i + BATCH) for i in range(STEPS)],
                            lambda own, rows: F.mse_loss(own(x[rows], shift), target[rows]),
                            lambda parameters: torch.optim.AdamW(parameters, lr=RATE))  # fmt: skip
        ours, _ = self.losses("--in-order", "--loss", "mse", "--ranks", 2, "--microbatches", 2, model=model, data=data)
        self.assert_close(ours, theirs)
        for microbatches in (1, 3, 8):
            done = self.command(*self.arguments("--loss", "mse", "--microbatches", microbatches, model=model, data=data))
            self.assert_error(done, UNUSABLE, "exactly 4 rows", f"--batch {4 * microbatches}", "torch.export.Dim")

    def test_a_range_of_batches(self):
        done = self.command(*self.arguments("--batch", 65, "--data", self.data({name: tensor.repeat(4, 1) for name, tensor in self.text.items()})))
        self.assert_error(done, UNUSABLE, "at most 64 rows", "65")

    def test_several_files(self):
        """The same as one file with all rows; the order is that of the seed, over all of them."""
        pieces = []
        for i, (first, last) in enumerate(((0, 5), (5, 6), (6, ROWS))):
            pieces += ["--data", self.folder / f"{i}.safetensors"]
            save_file({name: tensor[first:last].contiguous() for name, tensor in self.text.items()}, pieces[-1])
        whole, _ = self.losses("--microbatches", 2)
        for options in ((), CUT):
            command = ["train", self.language(), *pieces, "--steps", STEPS, "--batch", BATCH, "--lr", RATE, "--losses", "joined.csv", *options]
            self.output(*command)
            self.assert_close(self.read_losses("joined.csv"), whole)
        # A run that stops and goes on, and one that would go on with the files in another order.
        saved = ["--save", "state.safetensors", "--resume", "--losses", "resumed.csv"]
        start = ["train", self.language(), "--batch", BATCH, "--lr", RATE]
        self.output(*start, *pieces, *saved, "--steps", 3)
        self.output(*start, *pieces, *saved, "--steps", STEPS)
        self.assert_close(self.read_losses("resumed.csv"), whole)
        turned = pieces[4:] + pieces[:4]
        self.assert_error(self.command(*start, *turned, *saved, "--steps", STEPS + 1), UNUSABLE, "other data", "--new-data")
        save_file({"tokens": self.text["tokens"], "target": self.text["target"].int()}, self.folder / "other.safetensors")
        self.assert_error(self.command(*command, "--data", self.folder / "other.safetensors"), UNUSABLE, "other.safetensors", "Int [24, 6]")

    def test_several_files_of_tokens(self):
        tokens = numpy.arange(100, dtype=numpy.uint16) % 16
        (self.folder / "all.bin").write_bytes(tokens[:61].tobytes())
        (self.folder / "a.bin").write_bytes(tokens[:31].tobytes())
        (self.folder / "b.bin").write_bytes(tokens[30:61].tobytes())
        command = ["train", self.language(), "--steps", 3, "--batch", 4, "--losses", "tokens.csv"]
        self.output(*command, "--data", "all.bin")
        whole = self.read_losses("tokens.csv")
        self.output(*command, "--data", "a.bin", "--data", "b.bin")
        self.assert_close(self.read_losses("tokens.csv"), whole)
