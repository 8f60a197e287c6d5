"""Several ranks on the C++ engine: the interpreter's results, the same choice on all ranks, whatever happens on one of them."""

import time
import unittest
from unittest import mock

import torch
import torch.distributed as dist

from small_models import SCHEDULES, WIDTH, Layer, batch, layers, mean_loss, stage_numbers, stages_per_rank
from worlds import gloo_ranks

from stagecraft.pipelining import PipelineStage, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, _engine
from stagecraft.pipelining.schedules import PipelineScheduleSingle

MICROBATCHES = 6


class Run:
    """A schedule of this rank's stages, and how it trains."""

    def __init__(self, kind, rank, ranks, make=layers, group=None, **options):
        per_rank = stages_per_rank(kind)
        self.model = make(ranks * per_rank)
        numbers = stage_numbers(kind, rank, ranks, per_rank)
        self.stages = [PipelineStage(self.model[n], n, len(self.model), torch.device("cpu"), group=group) for n in numbers]
        single = issubclass(kind, PipelineScheduleSingle)
        self.schedule = kind(self.stages[0] if single else self.stages, MICROBATCHES, **{"loss_fn": mean_loss, **options})
        self.first, self.last = 0 in numbers, len(self.model) - 1 in numbers
        self.rows = 2 * MICROBATCHES

    def step(self, **keywords):
        x, target = batch(self.rows)
        losses = []
        given = {"target": target, "losses": losses} if self.last else {}
        output = self.schedule.step(*([x] if self.first else []), **given, **keywords)
        return output, [loss.detach() for loss in losses]

    def uses_engine(self):
        return self.schedule._engine is not None and self.schedule._engine[1] is not None

    def grads(self):
        return [parameter.grad for stage in self.stages for parameter in stage.submod.parameters()]


def stock(native):
    return mock.patch.object(_engine, "_is_stock", _engine._is_stock if native else lambda *_: False)


def compare(rank, ranks, kinds, make, scale_grads):
    """Steps that add to gradients, an evaluation in between; both gears."""
    for kind in kinds:
        found = []
        for native in (True, False):
            run = Run(kind, rank, ranks, make, scale_grads=scale_grads)
            torch.manual_seed(7 + rank)
            results = []
            with stock(native):
                results.append(run.step())
                if run.uses_engine() != native:
                    raise AssertionError(f"{kind.__name__}: native is {run.uses_engine()}")
                x, _ = batch(run.rows)
                results.append(run.schedule.eval(*([x] if run.first else []), **({"target": x} if run.last else {})))
                results.append(run.step())
                results.append(run.step(return_outputs=False))
            buffers = [buffer for stage in run.stages for buffer in stage.submod.buffers()]
            found.append((results, run.grads(), buffers, dict(run.schedule.backward_counter)))
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def with_dropout(count):
    return torch.nn.ModuleList(torch.nn.Sequential(layer, torch.nn.Dropout(0.5)) for layer in layers(count))


def with_batch_norm(count):
    return torch.nn.ModuleList(torch.nn.Sequential(layer, torch.nn.BatchNorm1d(WIDTH, dtype=torch.double)) for layer in layers(count))


def other_sizes(rank, ranks):
    """Batches of other sizes, which the interpreter refuses."""
    for kind in SCHEDULES:
        run = Run(kind, rank, ranks, scale_grads=False)
        run.step()
        for run.rows in (15, 6, 12):
            for stage in run.stages:
                stage.submod.zero_grad()
            output, _ = run.step()
            found = run.grads()
            expected = Run(kind, rank, ranks, scale_grads=False)
            expected.rows = run.rows
            wanted, _ = expected.step()
            torch.testing.assert_close((output, found), (wanted, expected.grads()), rtol=1e-12, atol=1e-12)


class Two(Layer):
    """Several outputs, one of them without a gradient, and a keyword."""

    def forward(self, x, count=None, *, factor=1.0):
        return super().forward(x) * factor, (torch.zeros(1, dtype=torch.long) if count is None else count) + 1


def two_outputs(rank, ranks):
    def make(count):
        torch.manual_seed(0)
        return torch.nn.ModuleList(Two() for _ in range(count)).double()

    found = []
    for native in (True, False):
        run = Run(ScheduleInterleavedZeroBubble, rank, ranks, make, loss_fn=lambda both, wanted: mean_loss(both[0], wanted))
        with stock(native):
            found.append((run.step(factor=0.5), run.grads()))
        assert run.uses_engine() == native
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def changes_on_one_rank(rank, ranks):
    """What only one rank knows of: all of them do the same, and the numbers stay right."""
    found = []
    for native in (True, False):
        run = Run(ScheduleInterleaved1F1B, rank, ranks)
        used = []
        with stock(native):

            def step(run=run, used=used):
                before = run.schedule._engine[1] if run.uses_engine() else None
                run.step()
                used.append((run.uses_engine(), run.uses_engine() and run.schedule._engine[1] is not before))

            step()
            step()
            if rank == 1:  # another module
                run.stages[0].submod = layers(1, seed=5)[0]
            step()
            if rank == 0:  # a frozen weight
                run.stages[1].submod.beside.requires_grad_(False)
                run.stages[1].submod.beside.grad = None
            step()
        found.append(run.grads())
        if native and used != [(True, True), (True, False), (True, True), (True, True)]:
            raise AssertionError(f"rank {rank}: {used}")
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def one_rank_cannot(rank, ranks):
    """A function replaced on one rank: all interpret, until it is put back."""
    run = Run(ScheduleInterleaved1F1B, rank, ranks)
    ran = []
    original = _engine.faster_engine

    def look(schedule, step):
        engine = original(schedule, step)
        ran.append(engine is not None)
        return engine

    calls = []
    with mock.patch.object(_engine, "faster_engine", look):
        run.step()
        if rank == 1:
            stage = run.stages[0]
            stage.forward_one_chunk = lambda *args, **kwargs: (calls.append(1), PipelineStage.forward_one_chunk(stage, *args, **kwargs))[1]
        run.step()
        if rank == 1:
            assert len(calls) == MICROBATCHES, calls
            del stage.forward_one_chunk
        run.step()
    if ran != [True, False, True]:
        raise AssertionError(f"rank {rank}: {ran}")
    expected = Run(ScheduleInterleaved1F1B, rank, ranks)
    with stock(False):
        for _ in range(3):
            expected.step()
    torch.testing.assert_close(run.grads(), expected.grads(), rtol=1e-12, atol=1e-12)


def a_module_raises(rank, ranks):
    """On one rank, in the third forward: it tells what was raised, the others end at once, and the next step works."""

    class Breaks(Layer):
        left = -1

        def forward(self, x):
            Breaks.left -= 1
            if Breaks.left == 0:
                raise ValueError("a hole in the data")
            return super().forward(x)

    def make(count):
        torch.manual_seed(0)
        return torch.nn.ModuleList(Breaks() for _ in range(count)).double()

    run = Run(ScheduleInterleaved1F1B, rank, ranks, make)
    run.step()
    before = [grad.clone() for grad in run.grads()]
    if rank == 1:
        Breaks.left = 3
    start = time.monotonic()
    try:
        run.step()
        raise AssertionError("nothing was raised")
    except Exception as error:
        text = f"{error} {error.__cause__}"
        if "a hole in the data" not in text:
            raise
        if rank == 1 and not isinstance(error.__cause__, ValueError):
            raise AssertionError(f"the cause is {error.__cause__!r}") from error
    if time.monotonic() - start > 30:
        raise AssertionError("the failure was told late")
    torch.testing.assert_close(run.grads(), before, rtol=0, atol=0)
    run.step()
    torch.testing.assert_close(run.grads(), [2 * grad for grad in before], rtol=1e-12, atol=1e-12)


def sub_groups(rank, ranks):
    """Two pipelines side by side, in groups of their own, and the default group used in between."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group, place = groups[rank // 2], rank % 2
    run = Run(ScheduleInterleaved1F1B, place, 2, group=group)
    run.step()
    dist.barrier()
    run.step()
    assert run.uses_engine()
    grads = torch.cat([grad.flatten() for grad in run.grads()])
    both = torch.zeros(2, grads.numel(), dtype=grads.dtype)
    both[place] = grads
    dist.all_reduce(both)  # both pipelines had the same batch
    torch.testing.assert_close(both[place], 2 * grads, rtol=1e-12, atol=1e-12)


class SharedEngine(unittest.TestCase):
    def test_same_results(self):
        for ranks in (2, 3):
            for make, scale_grads in ((layers, True), (layers, False), (with_batch_norm, False)):
                with self.subTest(ranks=ranks, make=make.__name__, scale_grads=scale_grads):
                    gloo_ranks(ranks, compare, SCHEDULES, make, scale_grads)

    def test_same_random_numbers(self):
        gloo_ranks(2, compare, (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble), with_dropout, True)

    def test_other_sizes(self):
        gloo_ranks(2, other_sizes)

    def test_several_outputs_and_keywords(self):
        gloo_ranks(2, two_outputs)

    def test_changes_on_one_rank(self):
        gloo_ranks(2, changes_on_one_rank)

    def test_one_rank_cannot(self):
        gloo_ranks(2, one_rank_cannot)
        gloo_ranks(3, one_rank_cannot)

    def test_a_module_raises(self):
        gloo_ranks(2, a_module_raises)
        gloo_ranks(3, a_module_raises)

    def test_sub_groups(self):
        gloo_ranks(4, sub_groups)


if __name__ == "__main__":
    unittest.main()
