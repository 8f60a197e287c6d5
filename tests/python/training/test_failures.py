"""Errors: types and words of C++, causes, the step after a failure, ranks that fail, Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import unittest

import torch
from torch import nn

import models
import stagecraft.torch as sc


class Failing(nn.Module):
    """Raises in its forward or backward when told to."""

    def __init__(self, index):
        super().__init__()
        self.inner = models.block(index)
        self.error = None
        self.backward_error = None

    def forward(self, value):
        if self.error is not None:
            raise self.error
        value = self.inner(value)
        if self.backward_error is not None and value.requires_grad:
            value.register_hook(self._fail)
        return value

    def _fail(self, _):
        raise self.backward_error


def pipeline_of(modules, world=None, **options):
    stages = [sc.Stage(module, index, prefix=str(index)) for index, module in enumerate(modules)]
    options = dict(dict(schedule="Interleaved1F1B", stages_per_rank=len(stages), microbatches=4, loss=models.mean_loss), **options)
    return sc.Pipeline(stages, world=world, **options)


class Errors(unittest.TestCase):
    def test_cause_and_next_step(self):
        for where in ("error", "backward_error"):
            for schedule in ("Interleaved1F1B", "InterleavedZeroBubble"):
                with self.subTest(where=where, schedule=schedule):
                    modules = [models.block(0), Failing(1)]
                    pipeline = pipeline_of(modules, schedule=schedule)
                    inputs, target = models.batch()
                    setattr(modules[1], where, KeyError("no such thing"))
                    with self.assertRaises(sc.StepError) as caught:
                        pipeline.step(inputs, target=target)
                    error = caught.exception
                    self.assertIsInstance(error, sc.Error)
                    self.assertIsInstance(error.__cause__, KeyError)
                    self.assertIn("no such thing", str(error))
                    self.assertIn("stage 1", str(error))
                    self.assertEqual(error.rank, 0)
                    frames = "".join(traceback.format_exception(error))
                    self.assertIn("raise self." + where, frames)
                    setattr(modules[1], where, None)
                    for module in modules:
                        module.zero_grad()
                    pipeline.step(inputs, target=target)
                    _, expected = models.one_device(models.blocks(2), inputs, target, 4)
                    got = models.gradients_of(pipeline.stages)
                    for name, gradient in got.items():
                        self.assertTrue(torch.equal(gradient, expected[name.replace("inner.", "")]), name)

    def test_a_failing_loss(self):
        def loss(output, target):
            raise ZeroDivisionError("no rows")

        inputs, target = models.batch()
        with self.assertRaises(sc.StepError) as caught:
            pipeline_of([models.block(0)], stages_per_rank=1, schedule="1F1B", loss=loss).step(inputs, target=target)
        self.assertIsInstance(caught.exception.__cause__, ZeroDivisionError)
        with self.assertRaisesRegex(sc.StepError, "returned an object of type 'float'"):
            pipeline_of([models.block(0)], schedule="1F1B", loss=lambda *_: 1.0).step(inputs, target=target)

    def test_on_all_ranks(self):
        def train(world):
            module = Failing(world.rank)
            pipeline = sc.Pipeline([sc.Stage(module, world.rank)], world=world, microbatches=4, loss=models.mean_loss)
            inputs, target = models.batch()
            if world.rank == 1:
                module.error = RuntimeError("only here")
            try:
                pipeline.step(inputs, target=target)
                seen = None
            except sc.StepError as error:
                seen = ("step", error.rank, type(error.__cause__).__name__)
            except sc.AbortedError as error:
                seen = ("aborted", error.peer, "only here" in str(error))
            module.error = None
            loss = pipeline.step(inputs, target=target)
            return seen, loss.has_loss

        self.assertEqual(
            sc.run_ranks(train, 3),
            [(("aborted", 1, True), False), (("step", 1, "RuntimeError"), False), (("aborted", 1, True), True)],
        )

    def test_run_ranks_raises_what_failed_first(self):
        def train(world):
            if world.rank == 1:
                raise LookupError("rank 1 gives up")
            world.barrier()

        with self.assertRaisesRegex(LookupError, "rank 1 gives up"):
            sc.run_ranks(train, 3)

    def test_refusals_have_the_words_of_cpp(self):
        with self.assertRaisesRegex(sc.InvalidArgument, "number of microbatches is not given"):
            pipeline_of([models.block(0)], schedule="1F1B", microbatches=0)
        with self.assertRaisesRegex(sc.InvalidArgument, "no known schedule|there is no schedule|unknown schedule|known schedules"):
            pipeline_of([models.block(0)], schedule="Nonsense")
        with self.assertRaisesRegex(sc.InvalidArgument, "a pipeline has no option 'microbatch'"):
            pipeline_of([models.block(0)], microbatch=4)
        with self.assertRaises(sc.FileError if False else sc.Error):
            pipeline_of([models.block(0)], schedule="/nowhere/schedule.csv", microbatches=0)
        with self.assertRaises(sc.ScheduleError) as caught:
            pipeline_of([models.block(0), models.block(1)], schedule=[["0F0", "1F0", "0B0", "1B0"]], microbatches=1)
        self.assertEqual(caught.exception.rank, 0)
        with self.assertRaises(sc.ParseError) as parsed:
            pipeline_of([models.block(0)], schedule=[["0F0", "what"]], microbatches=1)
        self.assertEqual(parsed.exception.column, 2)
        inputs, target = models.batch(rows=3)
        with self.assertRaisesRegex(sc.InvalidArgument, "fewer than the 4 microbatches"):
            pipeline_of([models.block(0)], schedule="1F1B").step(inputs, target=target)
        with self.assertRaises(ValueError):  # InvalidArgument is one
            pipeline_of([], schedule="1F1B")

    def test_a_pipeline_ends_with_its_world(self):
        kept = []

        def train(world):
            kept.append(sc.Pipeline([sc.Stage(models.block(0), 0)], world=world, microbatches=2, loss=models.mean_loss))

        sc.run_ranks(train, 1)
        with self.assertRaisesRegex(sc.InvalidArgument, "has ended"):
            kept[0].step(*models.batch())

    def test_timeouts_name_the_rank(self):
        def train(world):
            pipeline = sc.Pipeline([sc.Stage(models.block(world.rank), world.rank)], world=world, microbatches=2, loss=models.mean_loss)
            inputs, target = models.batch()
            if world.rank == 0:
                time.sleep(3)
            try:
                pipeline.step(inputs, target=target)
            except sc.StepError as error:
                return isinstance(error.__cause__, sc.TimeoutError) and error.__cause__.peer
            except sc.TransportError as error:
                return str(error)

        results = sc.run_ranks(train, 2, timeout=0.7)
        self.assertEqual(results[1], 0)

    def test_ctrl_c(self):
        for program in (_INTERRUPTED_ALONE, _INTERRUPTED_THREADS):
            process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(process.stdout.readline().strip(), "running")
            time.sleep(0.5)
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            self.assertLess(time.monotonic() - begin, 20)
            self.assertIn("interrupted", out, err)

    def test_a_wrong_torch_is_refused(self):
        program = (
            "import torch; torch.__version__ = '2.12.1'\n"
            "try:\n    import stagecraft.torch\nexcept ImportError as error:\n    print(error)\n"
        )
        out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120).stdout
        self.assertIn("built for torch " + torch.__version__.split("+")[0], out)
        self.assertIn("2.12.1 is installed", out)


_INTERRUPTED_ALONE = """
import time, torch, stagecraft.torch as sc
class Slow(torch.nn.Linear):
    def forward(self, value):
        time.sleep(0.05)
        return super().forward(value)
pipeline = sc.Pipeline([sc.Stage(Slow(4, 4), 0)], microbatches=8, loss=lambda a, b: (a - b).square().mean())
print('running', flush=True)
try:
    while True:
        pipeline.step(torch.ones(8, 4), target=torch.ones(8, 4))
except KeyboardInterrupt:
    print('interrupted', flush=True)
"""

_INTERRUPTED_THREADS = """
import threading, time, torch, stagecraft.torch as sc
def train(world):
    pipeline = sc.Pipeline([sc.Stage(torch.nn.Linear(4, 4), world.rank)], world=world, microbatches=8, loss=lambda a, b: (a - b).square().mean())
    if world.rank == 1:
        while True:
            time.sleep(0.05)
    print('running', flush=True)
    while True:
        pipeline.step(torch.ones(8, 4), target=torch.ones(8, 4))
try:
    sc.run_ranks(train, 2)
except KeyboardInterrupt:
    print('interrupted', flush=True)
"""


if __name__ == "__main__":
    unittest.main()
