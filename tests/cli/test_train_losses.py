"""stagecraft train: every loss gives the losses of Python, however the batch and the model are cut."""

import exported
import torch
from command_case import UNUSABLE
from torch import nn
from torch.nn import functional as F
from training_case import BATCH, RATE, ROWS, STEPS, TrainCase, positions, python_run

DIM = torch.export.Dim
LAYOUTS = (["--microbatches", 4], ["--ranks", 2, "--microbatches", 4, "--schedule", "ZBVZeroBubble", "--accumulate", 2, "--batch", BATCH // 2],
           ["--ranks", 2, "--replicas", 2, "--microbatches", 2, "--batch", BATCH // 2])  # fmt: skip


class Heads(nn.Module):
    """Outputs of several kinds from one trunk."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh())
        self.scores, self.values = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x):
        y = self.trunk(x)
        return {"logits": self.scores(y), "maps": self.scores(y).reshape(-1, 3, 2, 2), "pair": (self.values(y), y)}


class OwnLoss(nn.Module):
    """Returns its loss, of labels that it takes as an input, like the models of transformers."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))

    def forward(self, x, target):
        y = self.trunk(x)
        return {"loss": F.cross_entropy(y, target), "logits": y}


class Smooth(nn.Module):
    """A loss written in Python, with weights of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.arange(1.0, 13.0, dtype=torch.float64))

    def forward(self, output, target):
        return (F.huber_loss(output, target, reduction="none") * self.weights).mean()


def heads():
    torch.manual_seed(3)
    return Heads().double()


def export_heads():
    return exported.export(heads(), (torch.randn(4, 5, dtype=torch.float64),), dynamic_shapes={"x": {0: DIM("rows", min=1, max=64)}})


class Losses(TrainCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(4)
        self.x = torch.randn(ROWS, 5, dtype=torch.float64)

    def compare(self, loss, loss_of, targets, *options, layouts=LAYOUTS, model=None, make=heads):
        """`loss_of(model, rows)` is the loss of a batch in Python."""
        optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=RATE)
        theirs = python_run(make(), [positions(BATCH * i, BATCH * i + BATCH) for i in range(STEPS)], loss_of, optimizer)
        data = {"x": self.x, **targets}
        for layout in layouts:
            with self.subTest(loss=loss, layout=layout):
                ours, _ = self.losses("--in-order", "--loss", loss, *options, *layout, data=data,
                                      model=model or self.saved("heads.pt2", export_heads))
                self.assert_close(ours, theirs)

    def test_of_elements(self):
        target = torch.rand(ROWS, 12, dtype=torch.float64)
        self.compare("mse", lambda model, rows: F.mse_loss(model(self.x[rows])["logits"], target[rows]), {"target": target})
        for name, loss_of in (("l1", F.l1_loss), ("huber", F.huber_loss), ("bce_with_logits", F.binary_cross_entropy_with_logits)):
            self.compare(name, lambda model, rows: loss_of(model(self.x[rows])["logits"], target[rows]), {"target": target}, layouts=LAYOUTS[1:2])
        kl = lambda model, rows: F.kl_div(model(self.x[rows])["logits"], target[rows], reduction="batchmean")
        self.compare("kl", kl, {"target": target}, layouts=LAYOUTS[2:])

    def test_of_classes(self):
        """Along dimension 1 of [N, C, H, W]; some do not count."""
        target = torch.randint(0, 3, (ROWS, 2, 2))
        target[torch.rand(ROWS, 2, 2) < 0.4] = -100
        target[3:5] = -100  # whole microbatches
        for name, loss_of in (("cross_entropy", F.cross_entropy), ("nll", F.nll_loss)):
            self.compare(name, lambda model, rows: loss_of(model(self.x[rows])["maps"], target[rows]), {"target": target}, "--output", "maps",
                         layouts=LAYOUTS if name == "cross_entropy" else LAYOUTS[1:2])
        smooth = lambda model, rows: F.cross_entropy(model(self.x[rows])["maps"], target[rows], label_smoothing=0.2)
        self.compare("cross_entropy(maps)", smooth, {"target": target}, "--label-smoothing", 0.2, layouts=LAYOUTS[1:2])
        shares = torch.rand(ROWS, 12, dtype=torch.float64)
        self.compare("cross_entropy", lambda model, rows: F.cross_entropy(model(self.x[rows])["logits"], shares[rows]), {"target": shares},
                     layouts=LAYOUTS[1:2])

    def test_a_sum_of_terms(self):
        """Each a mean over what counts in it."""
        label, score = torch.randint(0, 12, (ROWS,)), torch.randn(ROWS, 3, dtype=torch.float64)
        label[torch.rand(ROWS) < 0.5] = -100

        def loss_of(model, rows):
            out = model(self.x[rows])
            return 2 * F.cross_entropy(out["logits"], label[rows]) + 0.5 * F.mse_loss(out["pair"][0], score[rows])

        self.compare("2 * cross_entropy(logits, label) + 0.5*mse(pair.0, score)", loss_of, {"label": label, "score": score})
        data = {"x": self.x, "label": label, "score": score}
        whole, _ = self.losses("--steps", 1, "--eval-share", 0.4, "--batch", 9, "--metrics", "a.jsonl", "--loss",
                               "cross_entropy(logits, label) + mse(pair.0, score)", data=data, model=self.saved("heads.pt2", export_heads))
        self.losses("--steps", 1, "--eval-share", 0.4, "--batch", 3, "--accumulate", 3, "--metrics", "b.jsonl", "--loss",
                    "cross_entropy(logits, label) + mse(pair.0, score)", data=data, model=self.saved("heads.pt2", export_heads))
        self.assertAlmostEqual(self.metrics("a.jsonl")[0]["eval_loss"], self.metrics("b.jsonl")[0]["eval_loss"], delta=1e-12)

    def own_loss(self):
        torch.manual_seed(5)
        return OwnLoss().double()

    def test_the_model_returns_it(self):
        """Its labels are an input called `target`."""
        rows = DIM("rows", min=1, max=64)
        model = self.saved("own_loss.pt2", lambda: exported.export(
            self.own_loss(), (torch.randn(4, 5, dtype=torch.float64), torch.zeros(4, dtype=torch.long)),
            dynamic_shapes={"x": {0: rows}, "target": {0: rows}}))  # fmt: skip
        target = torch.randint(0, 4, (ROWS,))
        self.compare("output", lambda own, rows: own(self.x[rows], target[rows])["loss"], {"target": target}, model=model, make=self.own_loss)
        target[torch.rand(ROWS) < 0.5] = -100
        target[::8] = 1  # every batch counts
        self.compare("output(loss, target)", lambda own, rows: own(self.x[rows], target[rows])["loss"], {"target": target},
                     "--loss-weight", "counted", model=model, make=self.own_loss)

    def test_an_exported_function(self):
        rows = DIM("rows", min=1, max=64)
        examples = torch.randn(4, 12, dtype=torch.float64), torch.randn(4, 12, dtype=torch.float64)
        loss = self.saved("smooth.pt2", lambda: exported.export(Smooth(), examples, dynamic_shapes={"output": {0: rows}, "target": {0: rows}}))
        target = torch.randn(ROWS, 12, dtype=torch.float64)
        own = Smooth()
        self.compare(loss, lambda model, rows: own(model(self.x[rows])["logits"], target[rows]), {"target": target})
        # Evaluated by the same function, and on outputs of another type than it was exported for.
        data = {"x": self.x, "target": target}
        options = ["--loss", loss, "--steps", 1, "--eval-share", 0.5, "--metrics", "run.jsonl"]
        self.losses(*options, "--save-program", "trained.pt2", data=data, model=self.saved("heads.pt2", export_heads))
        module = torch.export.load(self.folder / "trained.pt2").module()
        with torch.no_grad():
            theirs = own(module(self.x[12:20])["logits"], target[12:20]).item()
        self.assertAlmostEqual(self.metrics()[0]["eval_loss"], theirs, delta=1e-12)
        low, _ = self.losses("--in-order", "--loss", loss, "--precision", "bfloat16", data=data, model=self.saved("heads.pt2", export_heads))
        high, _ = self.losses("--in-order", "--loss", loss, data=data, model=self.saved("heads.pt2", export_heads))
        self.assertNotEqual(low, high)
        for a, b in zip(low, high):
            self.assertAlmostEqual(a, b, delta=0.02 * abs(b))

    def refuse(self, *parts, data=None, model=None, options=()):
        data = {"x": self.x, **(data or {"target": torch.zeros(ROWS, 12, dtype=torch.float64)})}
        done = self.command(*self.arguments("--ranks", 2, "--save", "state.safetensors", *options, data=data,
                                            model=model or self.saved("heads.pt2", export_heads)))
        self.assert_error(done, UNUSABLE, *parts)
        self.assertFalse((self.folder / "state.safetensors").exists())

    def test_what_does_not_fit_is_refused_before_the_first_step(self):
        classes = {"target": torch.zeros(ROWS, dtype=torch.long)}
        self.refuse("no output 'nothing'", "logits, maps, pair.0, pair.1", options=["--output", "nothing"])
        self.refuse("mse", "shape of the output", ", 12]", "Long [24]", options=["--loss", "mse"], data=classes)
        self.refuse("cross_entropy", "integer targets", "Double [24, 3]", data={"target": torch.zeros(ROWS, 3, dtype=torch.float64)})
        self.refuse("class 12", "12 classes", data={"target": torch.full((ROWS,), 12)})
        last = torch.zeros(ROWS, dtype=torch.long)
        last[-1] = -7
        self.refuse("class -7", "-100 does not count", data={"target": last})
        self.refuse("the targets 'target' have 20 rows", "24", data={"target": torch.zeros(20, dtype=torch.long)})
        self.refuse("may be along dimension 2 or 3", "--class-dimension", options=["--output", "maps"],
                    data={"target": torch.zeros(ROWS, 3, 2, dtype=torch.long)})
        self.refuse("no output that is one number", options=["--loss", "output"])
        self.refuse("not one number", options=["--loss", "output(pair.1)"])
        self.refuse("'hinge' is no loss", "cross_entropy, nll", options=["--loss", "hinge"])
        self.refuse("weight 'x'", options=["--loss", "x * mse"])
        self.refuse("--label-smoothing is for cross_entropy", options=["--loss", "mse", "--label-smoothing", 0.1])
        self.refuse("--class-dimension is about classes", options=["--loss", "mse", "--class-dimension", 1])
        self.refuse("--loss-weight counted counts targets", options=["--loss", "output", "--loss-weight", "counted"])

    def test_functions_that_are_no_loss(self):
        example = torch.randn(4, 12, dtype=torch.float64)
        rows = {0: DIM("rows", min=1, max=64)}

        class NotReduced(nn.Module):
            def forward(self, output, target):
                return (output - target).abs()

        class Trained(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

            def forward(self, output, target):
                return ((output - target) * self.scale).square().mean()

        class Alone(nn.Module):
            def forward(self, output):
                return output.mean()

        shapes = {"output": rows, "target": rows}
        for name, make, parts in (
            ("not_reduced", lambda: exported.export(NotReduced(), (example, example), dynamic_shapes=shapes), ("reduce it to one number",)),
            ("trained", lambda: exported.export(Trained(), (example, example), dynamic_shapes=shapes), ("parameters (scale)", "buffers")),
            ("alone", lambda: exported.export(Alone(), (example,), dynamic_shapes={"output": rows}), ("takes 1 inputs", "output and target")),
            ("single", lambda: exported.export(Smooth().float(), (example.float(), example.float()), dynamic_shapes=shapes), ("Float", "float64")),
            ("static", lambda: exported.export(Smooth(), (example, example)), ("exactly 4 rows", "dynamic batch")),
        ):
            path = self.saved(name + ".pt2", make)
            self.refuse(*parts, options=["--loss", path], data={"target": torch.zeros(ROWS, 12, dtype=torch.float64)})
        self.refuse("nowhere.pt2", options=["--loss", "nowhere.pt2"])
