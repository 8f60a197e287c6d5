"""stagecraft train: types that modules compute in, learning rates, groups of parameters, frozen ones, and a folder of checkpoints."""

import copy
import math
import unittest

import exported
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from training_case import ALL, BATCH, MPIEXEC, RATE, STEPS, TrainCase, language, language_loss, positions, python_language


def python_in(text, kind):
    """Float64 masters; a model in 16 bits, made from them before every step. `kind`: a type, or ("autocast", type)."""
    masters, losses = language(), []
    optimizer = torch.optim.AdamW(masters.parameters(), lr=RATE)
    for step in range(STEPS):
        rows = positions(BATCH * step, BATCH * step + BATCH)
        model = copy.deepcopy(masters)
        if not isinstance(kind, tuple):
            model = model.to(kind)
            whole = model.forward
            model.forward = lambda tokens: {"logits": whole(tokens)["logits"].float()}
        with torch.autocast("cpu", dtype=kind[1] if isinstance(kind, tuple) else torch.bfloat16, enabled=isinstance(kind, tuple), cache_enabled=False):
            loss = language_loss(text, model, rows)
        loss.backward()
        for master, parameter in zip(masters.parameters(), model.parameters()):
            master.grad = parameter.grad.to(master.dtype)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Precision(TrainCase):
    def test_bfloat16(self):
        theirs = python_in(self.text, torch.bfloat16)
        self.assertEqual(self.losses("--in-order", "--precision", "bfloat16")[0][:2], theirs[:2])
        # One device adds the gradients of the tied weight's two uses in bfloat16; stages and replicas add theirs in the masters' type.
        for options in ([], ["--ranks", 2], ["--ranks", 2, "--batch", BATCH // 2, "--replicas", 2, "--shard", "parameters"]):
            ours, _ = self.losses("--in-order", "--precision", "bfloat16", *options)
            for a, b in zip(ours, theirs):
                self.assertAlmostEqual(a, b, delta=2e-3 * b)
        self.assertNotAlmostEqual(theirs[-1], python_language(self.text)[-1], delta=1e-5)

    def test_what_is_sent(self):
        for a, b in zip(self.losses("--in-order", "--precision", "bfloat16", "--replicas", 2, "--batch", BATCH // 2, "--reduce-type", "bfloat16")[0],
                        python_language(self.text)):
            self.assertAlmostEqual(a, b, delta=1e-2 * b)

    def test_float16(self):
        """Steps with an overflow are skipped until the scale fits."""
        for kind in ("float16", "autocast-float16") if ALL else ("float16",):
            ours, _ = self.losses("--precision", kind, "--clip-norm", 1, "--steps", 30, "--ranks", 2)
            self.assertLess(ours[-1], 0.8 * ours[0])

    def test_the_scale_is_saved(self):
        self.output(*self.arguments("--precision", "float16", "--save", "half.safetensors", "--steps", 2))
        with safe_open(self.folder / "half.safetensors", "pt") as file:
            scale, updates = map(float, file.metadata()["stagecraft.loss_scaling"].split())
        overflows = math.log2(65536 / scale)  # which halve it
        self.assertTrue(overflows in (0, 1, 2) and updates <= 2 - overflows, (scale, updates))


class LearningRates(TrainCase):
    def test_schedules(self):
        base, last, warm_up = RATE, RATE / 10, 2
        shapes = {"constant": lambda t: 1.0, "linear": lambda t: 1 - t, "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2}
        for name, shape in shapes.items():
            options = [] if name == "constant" else ["--lr-last", last]
            rates = [base * (u + 1) / (warm_up + 1) if u < warm_up else
                     (base if name == "constant" else last + (base - last) * shape((u - warm_up) / (STEPS - warm_up))) for u in range(STEPS)]

            def python(parameters):
                optimizer = torch.optim.AdamW(parameters, lr=base)
                step, rest = optimizer.step, iter(rates)

                def stepped():
                    optimizer.param_groups[0]["lr"] = next(rest)
                    return step()

                optimizer.step = stepped
                return optimizer

            ours, _ = self.losses("--in-order", "--lr-schedule", name, "--warm-up", warm_up, *options, "--metrics", f"{name}.jsonl")
            self.assert_close([step["learning_rate"] for step in self.metrics(f"{name}.jsonl")], rates)
            self.assert_close(ours, python_language(self.text, make_optimizer=python))

    def test_another_one_is_not_resumed_by_mistake(self):
        first = ("--lr-schedule", "cosine", "--save", "state.safetensors")
        self.losses(*first, "--steps", 4, "--lr-steps", STEPS)
        self.assert_error(self.command(*self.arguments(*first, "--steps", STEPS, "--lr-steps", 100, "--resume")), 2, "its learning rate is")
        self.assert_error(self.command(*self.arguments("--lr-steps", 3)), 2, "--lr-steps is where")
        stopped, _ = self.losses(*first, "--resume")
        whole, _ = self.losses("--lr-schedule", "cosine")
        self.assertEqual(stopped, whole)


class Parameters(TrainCase):
    def test_groups_without_decay(self):
        def python(parameters):
            parameters, names = list(parameters), [name for name, _ in language().named_parameters()]
            without = [p for name, p in zip(names, parameters) if name.endswith("bias") or ".0." in name]
            decayed = [p for p in parameters if all(p is not other for other in without)]
            return make([{"params": without, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.5}])

        for name, make in (("adamw", lambda groups: torch.optim.AdamW(groups, lr=RATE)), ("sgd", lambda groups: torch.optim.SGD(groups, lr=RATE))):
            ours, _ = self.losses("--in-order", "--ranks", 2, "--optimizer", name, "--weight-decay", 0.5, "--no-decay", "*.bias", "--no-decay", "*.0.*")
            self.assert_close(ours, python_language(self.text, make_optimizer=python))
        self.assert_error(self.command(*self.arguments("--no-decay", "nothing.*")), 2, "fits no parameter")

    def test_frozen_ones_stay(self):
        self.output(*self.arguments("--ranks", 2, "--freeze", "blocks.0.*", "--freeze", "*.1.bias", "--save-weights", "weights.safetensors"))
        before, after = language().state_dict(), load_file(self.folder / "weights.safetensors")
        for name, tensor in before.items():
            self.assertEqual(torch.equal(tensor, after[name]), name.startswith("blocks.0.") or name.endswith(".1.bias"), name)
        self.assert_error(self.command(*self.arguments("--freeze", "nothing.*")), 2, "fits no parameter")

    def test_a_frozen_tie_is_frozen_in_both_places(self):
        model = language()
        model.tokens.weight.requires_grad_(False)  # the head's too
        theirs = python_language(self.text, model=model,
                                 make_optimizer=lambda all: torch.optim.AdamW([p for p in all if p.requires_grad], lr=RATE))
        for layout in (["--ranks", 2], ["--ranks", 2, "--replicas", 2, "--batch", BATCH // 2, "--shard", "parameters"]):
            ours, _ = self.losses("--in-order", "--freeze", "tokens.weight", *layout)
            self.assert_close(ours, theirs)


class Checkpoints(TrainCase):
    def test_the_last_ones_are_kept_and_resumed(self):
        folder = self.folder / "states"
        options = ("--checkpoints", folder, "--keep", 2, "--save-every", 1)
        whole, _ = self.losses()
        first, text = self.losses(*options, "--steps", 4)
        self.assertIn("saving step 4", text)
        self.assertEqual(sorted(file.name for file in folder.iterdir()), ["step-3.safetensors", "step-4.safetensors"])
        self.output(*self.arguments(*options, "--resume", "--losses", "losses.csv", "--ranks", 2, "--microbatches", 2))
        self.assertEqual(sorted(file.name for file in folder.iterdir()), ["step-7.safetensors", "step-8.safetensors"])
        ours = self.read_losses("losses.csv")
        self.assertEqual(ours[:4], first)
        self.assert_close(ours, whole)
    @unittest.skipUnless(MPIEXEC, "without MPI")
    def test_masters_are_saved_and_resumed_under_mpi(self):
        options = ("--precision", "bfloat16", "--checkpoints", self.folder / "states", "--keep", 2, "--save-every", 1, "--losses", "losses.csv", "--resume")
        whole, _ = self.losses("--ranks", 2, "--precision", "bfloat16")
        for steps in (3, STEPS):
            run = self.mpirun(*options, "--steps", steps)
            self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.read_losses("losses.csv"), whole)

    def test_options_that_do_not_go_together(self):
        options = ("--checkpoints", self.folder / "states", "--keep", 2, "--save-every", 1)
        for wrong, why in ((("--keep", 2), "--keep is about --checkpoints"), (("--save", "a.safetensors", *options), "both say where to save")):
            self.assert_error(self.command(*self.arguments(*wrong)), 2, why)


if __name__ == "__main__":
    exported.unittest.main()
