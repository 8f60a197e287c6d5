"""Worlds over torch.distributed process groups: the rules of a transport, the group's own use beside it, lost ranks, and the ends of processes."""

import os
import signal
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
from torch import nn

import models
import processes
import stagecraft.torch as sc


def one_stage(world, **options):
    return sc.Pipeline([sc.Stage(models.block(world.rank), world.rank, prefix=str(world.rank))], world=world, **options)


def messages(rank, ranks):
    """Values of all kinds and sizes cross, in both directions, with a failed step in between."""

    class Sends(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.fails = False

        def forward(self, value):
            if self.fails:
                raise RuntimeError("told to")
            big = self.weight * value.new_ones(value.shape[0], 300, 1000)  # about 1 MB a row
            odd = (value * self.weight).t()
            return {
                "big": big,
                "odd": odd,
                "half": value.to(torch.float16),
                "whole": torch.arange(value.shape[0]),
                "empty": value.new_zeros(0, 3),
                "scalar": self.weight * 2,
                "flag": True,
                "list": [1, 2.5, "text", None, (value * self.weight,)],
                "complex": torch.view_as_complex(value.detach().reshape(-1, 2)).conj(),
                "last": value.detach().reshape(1, 2, 2, -1).contiguous(memory_format=torch.channels_last),
                "text": "x" * 40000,
            }

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, table):
            assert table["half"].dtype == torch.float16 and table["empty"].shape == (0, 3)
            assert table["flag"] is True and table["list"][:4] == [1, 2.5, "text", None] and isinstance(table["list"][4], tuple)
            assert table["odd"].stride()[0] == 1 and table["complex"].dtype == torch.complex64
            assert table["last"].is_contiguous(memory_format=torch.channels_last) and len(table["text"]) == 40000
            assert table["big"].requires_grad and not table["whole"].requires_grad
            return table["big"].sum((1, 2)) + table["odd"].sum(0) + table["scalar"] + table["list"][4][0].sum(1) + self.weight

    world = sc.World(timeout=60)
    module = Sends() if rank == 0 else Takes()
    pipeline = sc.Pipeline(
        [sc.Stage(module, rank)], world=world, microbatches=3, loss=lambda output, target: (output * target).sum(), loss_scale="sum"
    )
    values = torch.arange(24.0).reshape(6, 4)
    gradients = []
    for step in range(4):
        module.zero_grad()
        if rank == 0:
            module.fails = step == 1
        try:
            pipeline.step(values, target=torch.ones(6))
            assert step != 1
        except (sc.StepError, sc.AbortedError):
            assert step == 1
            continue
        gradients.append(module.weight.grad.item())
    expected = 6 * 300000.0 + 2 * values.sum().item() + 6 * 2 if rank == 0 else 6.0
    assert gradients == [expected] * 3, (gradients, expected)
    return True


def beside_the_group(rank, ranks):
    """The program's own messages and collectives on the same group, between steps and in another thread, also with the tag 0."""
    import threading

    world = sc.World(timeout=60)
    pipeline = one_stage(world, microbatches=4, loss=models.mean_loss)
    inputs, target = models.batch()
    peer = 1 - rank
    received = []

    def exchange():
        for i in range(20):
            own, other = torch.full((1000,), float(i)), torch.empty(1000)
            work = [dist.isend(own, peer), dist.irecv(other, peer)]
            for one in work:
                one.wait()
            received.append(other[0].item())

    thread = threading.Thread(target=exchange)
    thread.start()
    for _ in range(20):
        pipeline.step(inputs, target=target)
    thread.join()
    assert received == [float(i) for i in range(20)], received
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    second = sc.World(timeout=60)  # a second world of the same group
    other = one_stage(second, microbatches=2, loss=models.mean_loss)
    other.step(inputs, target=target)
    second.close()
    dist.barrier()
    pipeline.step(inputs, target=target)
    world.close()
    dist.barrier()
    third = sc.World(timeout=60)
    one_stage(third, microbatches=2, loss=models.mean_loss).step(inputs, target=target)
    dist.destroy_process_group()  # before the world goes
    return True


def sub_groups(rank, ranks):
    """Two pipelines of two ranks: a dimension of a device mesh, and replicas."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    try:
        sc.World(mesh)
        raise AssertionError("a mesh of two dimensions was taken")
    except sc.InvalidArgument as error:
        assert "mesh['pp']" in str(error)
    world = sc.World(mesh["pp"], timeout=60)
    assert (world.rank, world.size) == (rank % 2, 2)
    inputs, target = models.batch()
    pipeline = one_stage(world, microbatches=4, loss=models.mean_loss, broadcast_loss=True)
    loss = pipeline.step(inputs, target=target).loss
    _, expected = models.one_device(models.blocks(2), inputs, target, 4)
    models.assert_same_gradients(unittest.TestCase(), models.gradients_of(pipeline.stages), expected, {0, 1})
    world.close()
    both = sc.World(replicas=2, timeout=60)
    replicated = one_stage(both, microbatches=2, loss=models.mean_loss)
    replicated.step(both.share_of(inputs), target=both.share_of(target))
    models.assert_same_gradients(unittest.TestCase(), models.gradients_of(replicated.stages), expected, set())
    return loss


def until_killed(rank, ranks, place):
    """Steps until a rank is lost; says which one, and how long that took."""
    world = sc.World(timeout=20)
    pipeline = one_stage(world, microbatches=4, loss=models.mean_loss)
    inputs, target = models.batch()
    open(os.path.join(place, f"ready-{rank}"), "w").write(str(os.getpid()))
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 60:
            pipeline.step(inputs, target=target)
            begin_of_last = time.monotonic()
    except sc.AbortedError as error:
        return {"peer": error.peer, "text": str(error), "seconds": time.monotonic() - begin_of_last}


def one_leaves(rank, ranks):
    """Rank 0 ends its program while the others still want something from it."""
    world = sc.World(timeout=20)
    pipeline = one_stage(world, microbatches=2, loss=models.mean_loss)
    inputs, target = models.batch()
    pipeline.step(inputs, target=target)
    if rank == 0:
        return None
    try:
        pipeline.step(inputs, target=target)
    except sc.AbortedError as error:
        return error.peer


def one_fails_outside_a_step(rank, ranks):
    """Rank 1 fails while it has no step; says what the others hear."""
    inputs, target = models.batch()
    try:
        with sc.World(timeout=60) as world:
            pipeline = one_stage(world, microbatches=2, loss=models.mean_loss)
            pipeline.step(inputs, target=target)
            if rank == 1:
                raise OSError("the data cannot be read")
            pipeline.step(inputs, target=target)
    except OSError:
        return "own"
    except sc.AbortedError as error:
        return [error.peer, str(error)]


def interrupted(rank, ranks, place):
    """Rank 1 computes; rank 0, which waits for it, gets SIGINT."""

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = models.block(rank)

        def forward(self, value):
            if rank == 1:
                time.sleep(0.3)
            return self.inner(value)

    world = sc.World(timeout=30)
    pipeline = sc.Pipeline([sc.Stage(Slow(), rank)], world=world, microbatches=4, loss=models.mean_loss)
    inputs, target = models.batch()
    open(os.path.join(place, f"ready-{rank}"), "w").write(str(os.getpid()))
    outcome = None
    try:
        for _ in range(40):
            pipeline.step(inputs, target=target)
    except KeyboardInterrupt:
        outcome = "interrupted"
    except sc.AbortedError as error:
        outcome = f"aborted by {error.peer}"
    pipeline.step(inputs, target=target)  # the next step works on all
    return outcome


def wait_for_files(folder, ranks):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if all(os.path.exists(os.path.join(folder, f"ready-{rank}")) for rank in range(ranks)):
            return
        time.sleep(0.05)
    raise AssertionError("the ranks have not started")


class ProcessGroups(unittest.TestCase):
    def test_messages(self):
        self.assertEqual(processes.run("test_process_groups:messages", 2), [True, True])

    def test_beside_the_group(self):
        self.assertEqual(processes.run("test_process_groups:beside_the_group", 2), [True, True])

    def test_sub_groups(self):
        self.assertEqual(len(set(processes.run("test_process_groups:sub_groups", 4))), 1)

    def test_a_rank_that_leaves(self):
        self.assertEqual(processes.run("test_process_groups:one_leaves", 3), [None, 0, 0])

    def test_an_error_outside_a_step(self):
        first, second = processes.run("test_process_groups:one_fails_outside_a_step", 2)
        self.assertEqual(second, "own")
        self.assertEqual(first[0], 1)
        self.assertIn("rank 1 has ended its program with OSError: the data cannot be read", first[1])

    def test_a_killed_rank_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = processes.start("test_process_groups:until_killed", 3, folder, place=folder)
            try:
                wait_for_files(folder, 3)
                time.sleep(1)
                ranks[1].kill()
            finally:
                codes = processes.wait(ranks)
            self.assertEqual([codes[0], codes[2]], [0, 0], ranks[0].log + ranks[2].log)
            for one in (ranks[0], ranks[2]):
                self.assertEqual(one.result["peer"], 1, one.result)
                self.assertIn("rank 1 has ended in the middle of the run", one.result["text"])
                self.assertLess(one.result["seconds"], 20)

    def test_ctrl_c_while_waiting(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = processes.start("test_process_groups:interrupted", 2, folder, place=folder)
            try:
                wait_for_files(folder, 2)
                time.sleep(1)
                ranks[0].kill(signal.SIGINT)
            finally:
                codes = processes.wait(ranks)
            self.assertEqual(codes, [0, 0], ranks[0].log + ranks[1].log)
            self.assertEqual([one.result for one in ranks], ["interrupted", "aborted by 0"])


if __name__ == "__main__":
    unittest.main()
