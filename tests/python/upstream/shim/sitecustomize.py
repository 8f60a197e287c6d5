"""Lets PyTorch's pipelining tests run unmodified on CPU processes, with another package in place of the one they test.

Python imports this file at its start in every process whose PYTHONPATH contains this folder, spawned ranks included.

    PIPELINING_FROM=package   torch.distributed.pipelining[.x] is package[.x]
    PIPELINING_RANKS=n        ranks of test classes that ask for the number of accelerators (2)

Nothing of torch is imported here: modules are changed when a test imports them.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

THEIRS = "torch.distributed.pipelining"
OURS = os.environ.get("PIPELINING_FROM")
RANKS = int(os.environ.get("PIPELINING_RANKS", "2"))


class StandIn:
    """Answers imports of their package with our modules: the same objects under two names."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == THEIRS or name.startswith(THEIRS + "."):
            return importlib.machinery.ModuleSpec(name, StandIn)
        return None

    @staticmethod
    def create_module(spec):
        return importlib.import_module(OURS + spec.name[len(THEIRS) :])

    @staticmethod
    def exec_module(module):
        """Already done under its own name."""


def unchanged(*_, **__):
    """In place of a decorator that skips tests without accelerators."""
    return lambda test: test


def change_testing(distributed_testing):
    import torch
    import torch.distributed as dist

    sys.modules["torch.testing._internal.common_utils"].TEST_MULTIACCELERATOR = True
    for name in ("requires_accelerator_dist_backend", "skip_if_lt_x_gpu", "requires_nccl"):
        setattr(distributed_testing, name, unchanged)
    distributed_testing.at_least_x_gpu = lambda count: True
    torch.accelerator.set_device_index = torch.cuda.set_device = lambda device: None
    torch.cpu.device_count = lambda: RANKS

    whole_barrier = dist.barrier
    dist.barrier = lambda group=None, async_op=False, device_ids=None: whole_barrier(group, async_op)

    test_class = distributed_testing.MultiProcContinuousTest
    inherited = test_class.__init_subclass__.__func__

    def on_cpu(cls, **options):
        inherited(cls, **options)
        # There is one CPU device, whatever the rank; and Gloo connects CPUs.
        if isinstance(vars(cls).get("device"), property):
            cls.device = property(lambda self: torch.device("cpu"))
        if "backend_str" in vars(cls):
            cls.backend_str = classmethod(lambda cls: "gloo")

    test_class.__init_subclass__ = classmethod(on_cpu)


def change_mesh(device_mesh):
    whole = device_mesh.init_device_mesh
    device_mesh.init_device_mesh = lambda kind, *args, **kwargs: whole("cpu" if kind == "cuda" else kind, *args, **kwargs)


def change_cuda_flags(common_cuda):
    common_cuda.TEST_MULTIGPU = True


CHANGES = {
    "torch.testing._internal.common_distributed": change_testing,
    "torch.testing._internal.common_cuda": change_cuda_flags,
    "torch.distributed.device_mesh": change_mesh,
}


class Changing:
    """Changes a module right after it is loaded, once."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        change = CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            change(module)

        spec.loader.exec_module = load_and_change
        return spec


sys.meta_path.insert(0, Changing)
if OURS:
    sys.meta_path.insert(0, StandIn)
