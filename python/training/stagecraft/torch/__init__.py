"""Pipeline-parallel training of ``torch.nn.Module`` stages, run by Stagecraft's C++ runtime.

    import torch, stagecraft.torch as sc

    def train(world):
        stages = sc.split(model, world, schedule="1F1B")
        pipeline = sc.Pipeline(stages, world=world, schedule="1F1B", microbatches=8, loss=loss)
        optimizer = torch.optim.AdamW(pipeline.parameters())
        for batch in data:
            result = pipeline.step(batch.inputs, target=batch.targets)
            optimizer.step()
            optimizer.zero_grad()

    sc.run_ranks(train, ranks=2)                 # ranks as threads of this process, or
    train(sc.World(torch.distributed.group.WORLD))  # one rank per process, under torchrun
"""

import os as _os

import torch as _torch


def _check_torch() -> None:
    from stagecraft.torch import _built

    built, here = _built.torch_version, _torch.__version__.split("+")[0]
    if built != here:
        raise ImportError(
            f"stagecraft-torch was built for torch {built}, but torch {here} is installed: "
            f"install torch=={built}, or build stagecraft-torch again with this one "
            f"(pip install --no-build-isolation --force-reinstall stagecraft-torch)"
        )


_check_torch()

# CUDA reads these when it begins. A stream that waits for another rank must hold up neither others, for which there are 8 queues by default, nor the loading
# of a kernel, which may wait for all that runs: one of several ranks loads all kernels at once.
if not _torch.cuda.is_initialized():
    _os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if any(_os.environ.get(name, "1") != "1" for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")):
        _os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


def _let_higher_order_operators_pass() -> None:
    """Stagecraft has a dispatch key switched on while it looks after random numbers. Operators that take functions, such as torch.cond, choose their
    kernels in Python, and need to be told that they have none for it."""
    try:
        ops = _torch._ops
        key = _torch._C._dispatch_key_parse("TESTING_ONLY_GenericMode")
        ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
        for operator in ops._higher_order_ops.values():
            operator.fallthrough(key)
    except AttributeError:  # a torch that keeps them elsewhere: such operators then fail where random numbers are looked after
        pass


_let_higher_order_operators_pass()

from stagecraft.torch._errors import (  # noqa: E402
    AbortedError,
    Error,
    FileError,
    InternalError,
    InvalidArgument,
    ParseError,
    ScheduleError,
    ShapeError,
    StepError,
    TimeoutError,
    TransportError,
)
from stagecraft.torch._options import Automatic, Edge, LossScaling, Precision, Recompute, Split, Tie  # noqa: E402
from stagecraft.torch._pipeline import CapturedSteps, Pipeline, Span, StepResult  # noqa: E402
from stagecraft.torch._split import split  # noqa: E402
from stagecraft.torch._stage import Stage  # noqa: E402
from stagecraft.torch._worlds import World, current_world, run_ranks  # noqa: E402

__all__ = [
    "AbortedError",
    "Automatic",
    "CapturedSteps",
    "Edge",
    "Error",
    "FileError",
    "InternalError",
    "InvalidArgument",
    "LossScaling",
    "ParseError",
    "Pipeline",
    "Precision",
    "Recompute",
    "ScheduleError",
    "ShapeError",
    "Span",
    "Split",
    "Stage",
    "StepError",
    "StepResult",
    "Tie",
    "TimeoutError",
    "TransportError",
    "World",
    "current_world",
    "run_ranks",
    "split",
]
