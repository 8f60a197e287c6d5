"""stagecraft train: what must not change the losses does not, what must change them does so as in Python; evaluation, metrics, progress."""

import os
import pty
import re
import subprocess

import exported
import torch
from command_case import BIN, TIMEOUT
from torch import nn
from training_case import ALL, BATCH, LENGTH, MPIEXEC, RATE, ROWS, STEPS, TrainCase, language, language_loss, positions, python_language


class DoesNotChangeTheLosses(TrainCase):
    def test_shards(self):
        theirs = python_language(self.text)
        for shard in ("optimizer", "gradients", "parameters") if ALL else ("parameters",):
            with self.subTest(shard):
                ours, _ = self.losses("--in-order", "--batch", BATCH // 2, "--replicas", 2, "--ranks", 2, "--microbatches", 2,
                                      "--shard", shard, "--bucket-bytes", 512)
                self.assert_close(ours, theirs)

    def test_accumulated_batches_are_one_large_batch(self):
        """Also where not all targets count, so that batches count differently."""
        some = {**self.text, "target": self.text["target"].masked_fill(torch.rand(ROWS, LENGTH) < 0.4, -100)}
        some["target"][:2] = -100  # a whole batch
        theirs = python_language(some)
        for options in (["--batch", 2, "--accumulate", 4], ["--batch", 2, "--accumulate", 2, "--replicas", 2, "--ranks", 2, "--microbatches", 2])[
                :: 1 if ALL else -2]:
            with self.subTest(options=options):
                ours, _ = self.losses("--in-order", *options, data=some)
                self.assert_close(ours, theirs)

    def test_recompute(self):
        """Bit for bit, with dropout."""
        dropout = self.language(0.2)
        options = ("--ranks", 2, "--microbatches", 2, "--schedule", "Interleaved1F1B", "--stages-per-rank", 2)
        kept, _ = self.losses(*options, model=dropout)
        for recompute in ("stage", 1, 2) if ALL else (1,):
            self.assertEqual(self.losses(*options, "--recompute", recompute, model=dropout)[0], kept)

    def test_passes_and_threads(self):
        ours, _ = self.losses("--in-order", "--ranks", 2, "--microbatches", 4, "--schedule", "ZB-H1", "--threads", 1, "--timeout", 60, "--passes",
                              "merge_backward,reduce_grad,send_recv,place_receives")
        self.assert_close(ours, python_language(self.text))


class OptimizesLikePython(TrainCase):
    def test_clipped_gradients(self):
        norms = []
        parts = {"--clip-norm": (0.1, lambda model: norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())),
                 "--clip-value": (0.01, lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01))}
        for option, (most, clip) in parts.items():
            sgd = lambda parameters: torch.optim.SGD(parameters, lr=1.0)
            theirs = python_language(self.text, make_optimizer=sgd, before_update=clip)
            ours, _ = self.losses("--in-order", "--ranks", 2, "--microbatches", 2, "--optimizer", "sgd", "--lr", 1, option, most, "--metrics",
                                  "run.jsonl")
            self.assert_close(ours, theirs)
            if option == "--clip-norm":  # the norm before
                self.assertGreater(min(norms), 0.1)
                self.assert_close([step["gradient_norm"] for step in self.metrics()], norms)

    def test_betas(self):
        adam = lambda parameters: torch.optim.AdamW(parameters, lr=RATE, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1)
        ours, _ = self.losses("--in-order", "--beta1", 0.8, "--beta2", 0.95, "--epsilon", 1e-4, "--weight-decay", 0.1)
        self.assert_close(ours, python_language(self.text, make_optimizer=adam))


class Watches(TrainCase):
    def python_evaluated(self, batches, held_out):
        """The loss on the held out rows after 0, 1, 2, ... steps."""
        losses = []

        def evaluate(model):
            with torch.no_grad():
                losses.append(language_loss(self.text, model, held_out).item())

        model = language()
        python_language(self.text, model, batches, before_update=evaluate)
        evaluate(model)
        return losses

    def test_evaluation_on_a_held_out_share(self):
        """A third of the rows: two batches of 4, one of which counts less."""
        self.text["target"][ROWS - 3:, 2:] = -100
        batches = [positions(4 * i, 4 * i + 4, ROWS - BATCH) for i in range(STEPS)]
        theirs = self.python_evaluated(batches, slice(ROWS - BATCH, ROWS))
        for options in (["--batch", 4, "--ranks", 2, "--microbatches", 2], ["--batch", 2, "--replicas", 2]):
            text = self.output(*self.arguments("--in-order", "--eval-share", 0.34, "--eval-every", 3, "--metrics", "run.jsonl", *options))
            ours = {step["step"]: step["eval_loss"] for step in self.metrics() if "eval_loss" in step}
            self.assertEqual(list(ours), [3, 6, 8])
            self.assert_close(list(ours.values()), [theirs[step] for step in ours])
            self.assertIn(f"  eval loss {ours[3]:.4f}", text)

    def test_evaluation_on_other_data(self):
        """After the last step, also when there is none to be done any more; so many batches."""
        other = {name: tensor.flip(0).contiguous() for name, tensor in self.text.items()}
        data = self.data(other).rename(self.folder / "other.safetensors")
        options = ("--in-order", "--save", "state.safetensors", "--resume", "--eval-data", data, "--eval-batches", 2)
        model = language()
        python_language(self.text, model)
        with torch.no_grad():
            loss = language_loss(other, model, slice(0, 2 * BATCH)).item()
        self.assertIn(f"step 8/8  loss {python_language(self.text)[-1]:.4f}  eval loss {loss:.4f}", self.output(*self.arguments(*options)))
        self.assertIn(f"step 8  eval loss {loss:.6f}\n", self.output(*self.arguments(*options)))

    def test_metrics(self):
        norms = []
        norm = lambda model: norms.append(torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()])).item())
        theirs = python_language(self.text, before_update=norm)
        self.output(*self.arguments("--in-order", "--ranks", 2, "--microbatches", 4, "--metrics", "run.jsonl"))
        steps = self.metrics()
        self.assert_close([step["loss"] for step in steps], theirs)
        self.assert_close([step["gradient_norm"] for step in steps], norms)
        self.assertEqual([step["rows"] for step in steps], [BATCH * (i + 1) for i in range(STEPS)])
        for step in steps:
            self.assertEqual(set(step), {"step", "loss", "gradient_norm", "learning_rate", "rows", "rows_per_second", "peak_bytes", "idle"})
            self.assertEqual(step["learning_rate"], RATE)
            self.assertGreater(step["rows_per_second"], 0)
            self.assertGreater(step["peak_bytes"], 10**7)
            self.assertTrue(0 < step["idle"] < 1, step)  # two ranks wait for each other in any step

    def test_a_loss_that_is_no_number(self):
        """JSON has no NaN."""
        self.text["target"][:] = -100
        self.output(*self.arguments("--steps", 1, "--metrics", "run.jsonl"))
        self.assertIsNone(self.metrics()[0]["loss"])

    def test_progress_as_lines(self):
        text = self.output(*self.arguments("--report", 3))
        self.assertEqual(re.findall(r"^step (\d)/8  loss [\d.]+  [\d.]+ ms(?:  \d+:\d\d (left))?$", text, re.MULTILINE),
                         [("1", "left"), ("3", "left"), ("6", "left"), ("8", "")])

    def test_progress_on_a_terminal(self):
        """One line, written again and again; what stays has a line of its own."""
        terminal, program = pty.openpty()
        with subprocess.Popen([BIN, *map(str, self.arguments("--save", "state.safetensors", "--report", 1))], stdin=subprocess.DEVNULL,
                              stdout=program, stderr=subprocess.PIPE, cwd=self.folder) as running:
            os.close(program)
            shown = b""
            try:
                while some := os.read(terminal, 4096):
                    shown += some
            except OSError:  # the other end is closed
                pass
            os.close(terminal)
            self.assertEqual((running.wait(TIMEOUT), running.stderr.read()), (0, b""))
        lines = shown.decode().replace("\r\n", "\n").split("\n")
        rewritten = [line for line in lines if "\r" in line]
        self.assertEqual(len(rewritten), 1, lines)
        parts = rewritten[0].split("\r\x1b[K")
        self.assertEqual([part.split()[1] for part in parts[1:]], [f"{i + 1}/8" for i in range(STEPS)])
        self.assertIn(" left", parts[1])
        self.assertIn("saved step 8 in state.safetensors", lines)


if MPIEXEC:

    class UnderMpirun(TrainCase):
        def test_replicas_that_share_and_accumulate(self):
            done = self.mpirun("--in-order", "--replicas", 2, "--shard", "parameters", "--batch", 2, "--accumulate", 2, "--clip-norm", 100,
                               "--recompute", "stage", "--metrics", "run.jsonl", "--eval-share", 0.25, "--eval-every", 4)
            self.assertEqual(done.returncode, 0, done.stderr)
            batches = [positions(BATCH * i, BATCH * i + BATCH, ROWS * 3 // 4) for i in range(STEPS)]
            self.assert_close([step["loss"] for step in self.metrics()], python_language(self.text, batches=batches))
            self.assertEqual([step["step"] for step in self.metrics() if "eval_loss" in step], [4, 8])


if __name__ == "__main__":
    exported.unittest.main()
