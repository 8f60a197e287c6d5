"""stagecraft train: the trained program comes back, and nothing trains by mistake."""

import warnings

import exported
import torch
from command_case import UNUSABLE
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_case import BATCH, ROWS, TrainCase, export_plane

DIM = torch.export.Dim
warnings.filterwarnings("ignore")


def double(*sizes):
    return torch.randn(*sizes, dtype=torch.float64)


class Counting(nn.Module):
    """Buffers that training changes, one of which is not persistent; a tie; a parameter with other strides; an unused one."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.b.weight = self.a.weight
        self.turned = nn.Parameter(torch.randn(6, 6).t())
        self.spare = nn.Parameter(torch.randn(3))
        self.register_buffer("calls", torch.zeros(2), persistent=False)

    def forward(self, x):
        self.calls.add_(1)
        return self.b(torch.tanh(self.norm(self.a(x)))) @ self.turned + 0 * self.calls.sum()


def counting():
    torch.manual_seed(9)
    return exported.export(Counting().double().train(), (double(4, 6),), dynamic_shapes={"x": {0: DIM("rows", min=2, max=64)}})


class Saves(TrainCase):
    def both(self, path, *arguments, **keywords):
        return torch.export.load(path).module()(*arguments, **keywords)

    def test_the_weights_are_those_of_the_run(self):
        """Under every layout, in Python and as the start of another run."""
        model = self.saved("counting.pt2", counting)
        data = {"x": double(ROWS, 6), "target": double(ROWS, 6)}
        for layout in ([], ["--ranks", 2, "--microbatches", 2, "--schedule", "InterleavedZeroBubble"], ["--ranks", 2, "--replicas", 2, "--batch", BATCH // 2, "--shard", "parameters"]):
            with self.subTest(layout=layout):
                _, text = self.losses("--loss", "mse", "--save-program", "trained.pt2", "--save-weights", "trained.safetensors", *layout, model=model, data=data)
                self.assertIn("trained.pt2", text)
                trained, old = torch.export.load(self.folder / "trained.pt2"), torch.export.load(model)
                state = {name: tensor for name, tensor in trained.state_dict.items()}
                from safetensors.torch import load_file

                saved = load_file(self.folder / "trained.safetensors")
                for name, tensor in saved.items():
                    self.assertTrue(torch.equal(state[name], tensor), name)
                self.assertFalse(torch.equal(state["a.weight"], old.state_dict["a.weight"]))
                self.assertTrue(torch.equal(state["spare"], old.state_dict["spare"]))
                self.assertGreater(state["norm.num_batches_tracked"].item(), 0)
                self.assertTrue(torch.equal(state["a.weight"], state["b.weight"]))
                self.assertGreater(trained.constants["calls"][0].item(), 0)
                self.assertEqual(torch.export.load(model).constants["calls"][0].item(), 0)

    def test_a_run_goes_on_from_it(self):
        options = ["--in-order", "--optimizer", "sgd", "--lr", 0.1]
        whole, _ = self.losses(*options, "--steps", 6)
        first, _ = self.losses(*options, "--steps", 3, "--save-program", "half.pt2")
        rest, _ = self.losses(*options, "--steps", 3, model=self.folder / "half.pt2", data={name: tensor.roll(-3 * BATCH, 0) for name, tensor in self.text.items()})
        self.assert_close(first + rest, whole)

    def test_it_may_replace_the_file_that_it_came_from(self):
        path = self.folder / "model.pt2"
        path.write_bytes(self.language().read_bytes())
        self.losses("--steps", 2, "--ranks", 2, "--save-program", path, model=path)
        before, after = torch.export.load(self.language()), torch.export.load(path)
        self.assertFalse(torch.equal(before.state_dict["tokens.weight"], after.state_dict["tokens.weight"]))
        import zipfile

        self.assertIsNone(zipfile.ZipFile(path).testzip())

    def test_weights_in_another_type(self):
        model = self.saved("plane.pt2", export_plane)
        data = {"points": torch.randn(ROWS, 3), "shift": torch.randn(2), "target": torch.randn(ROWS, 2)}
        self.losses("--loss", "mse", "--precision", "bfloat16", "--save-program", "trained.pt2", model=model, data=data)
        self.assertEqual(torch.export.load(self.folder / "trained.pt2").state_dict["net.0.weight"].dtype, torch.float32)


class Frozen(nn.Module):
    """`how` switches gradients off."""

    def __init__(self, how):
        super().__init__()
        self.a, self.b, self.spare = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.how = how

    def forward(self, x):
        if self.how == "reentrant":
            return checkpoint(lambda y: self.b(torch.tanh(self.a(y))), x, use_reentrant=True)
        with torch.no_grad():
            y = torch.tanh(self.a(x))
        return self.b(y)


class Mistakes(TrainCase):
    def data6(self):
        return {"x": double(ROWS, 6), "target": double(ROWS, 6)}

    def frozen(self, how):
        torch.manual_seed(10)
        make = lambda: exported.export(Frozen(how).double(), (double(4, 6),), dynamic_shapes={"x": {0: DIM("rows", min=2, max=64)}})
        return self.saved(f"frozen_{how}.pt2", make)

    def test_a_model_that_would_not_be_trained(self):
        for layout in ([], ["--ranks", 2]):
            done = self.command(*self.arguments("--loss", "mse", *layout, model=self.frozen("reentrant"), data=self.data6()))
            self.assert_error(done, UNUSABLE, "would change no parameter", "a.weight", "use_reentrant=False")

    def test_parts_that_would_not_be_trained_are_named(self):
        _, text = self.losses("--loss", "mse", model=self.frozen("part"), data=self.data6())
        self.assertIn("warning: nothing will train a.weight, a.bias, for gradients are off where they are used", text)
        self.assertIn("nothing will train spare.weight, spare.bias, for the program does not use them", text)
        _, text = self.losses("--loss", "mse", "--freeze", "a.*", "--freeze", "spare.*", model=self.frozen("part"), data=self.data6())
        self.assertNotIn("warning", text)
        _, text = self.losses()
        self.assertNotIn("warning", text)

    def test_sparse_gradients(self):
        class Sparse(nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.head = nn.Embedding(16, 4, sparse=True), nn.Linear(4, 16)

            def forward(self, tokens):
                return self.head(self.table(tokens))

        torch.manual_seed(11)
        tokens = torch.zeros(4, 6, dtype=torch.long)
        model = self.saved("sparse.pt2", lambda: exported.export(Sparse().double(), (tokens,), dynamic_shapes={"tokens": {0: DIM("rows", min=1, max=64)}}))
        done = self.command(*self.arguments("--ranks", 2, model=model))
        self.assert_error(done, UNUSABLE, "'table.weight' is sparse", "adamw does not take", "--optimizer sgd", "sparse=False")
        done = self.command(*self.arguments("--optimizer", "sgd", "--momentum", 0.9, model=model))
        self.assert_error(done, UNUSABLE, "momentum")
        ours, _ = self.losses("--in-order", "--optimizer", "sgd", "--lr", 0.5, "--microbatches", 2, model=model)
        self.assertLess(ours[-1], ours[0])

    def test_complex_parameters(self):
        class Complex(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex128))

            def forward(self, x):
                return (x.to(torch.complex128) @ self.weight).abs()

        torch.manual_seed(12)
        model = self.saved("complex.pt2", lambda: exported.export(Complex(), (double(4, 6),), dynamic_shapes={"x": {0: DIM("rows", min=1, max=64)}}))
        done = self.command(*self.arguments("--loss", "mse", model=model, data=self.data6()))
        self.assert_error(done, UNUSABLE, "'weight' is complex", "adamw", "--optimizer sgd", "view_as_complex")
        self.losses("--loss", "mse", "--optimizer", "sgd", model=model, data=self.data6())
