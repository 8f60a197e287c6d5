"""Where the C++ runtime takes over a step from the interpreter.

A schedule asks once per step, when its stages are prepared. An engine runs all actions: losses into schedule._internal_losses (by
microbatch), outputs into the last stage's output_chunks, gradients scaled. A step is given to it only if nothing that the
interpreter would have called can be told from the original:

    schedule    one of the classes of this package, nothing patched, no custom functions
    stages      PipelineStage itself, nothing patched, weights of their own
    modules     plain ones on the stages' device, the CPU or a GPU: no data parallel wrapper, no DTensors, nothing compiled
    inputs      plain tensors without gradients, on that device
    ranks       Gloo for CPUs, NCCL for GPUs
    torch       no profiler, no anomaly detection, no dispatch modes

Anything else stays with the interpreter. The ranks of a pipeline must all choose the same: if all of them look usual at the first
step (see agree_on_mode), they ask each other before every step whether it is of this kind on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch._dynamo import OptimizedModule
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ._manual_stage import PipelineStage

if TYPE_CHECKING:
    from ._program import Step
    from ._schedule_base import _PipelineSchedule
    from ._stage_base import _PipelineStageBase

_UNUSUAL_MODULES = (DistributedDataParallel, FSDPModule, OptimizedModule)
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # what carries messages between ranks, by device
# What a value between stages, a keyword or an argument may be beside a tensor.
_PLAIN_VALUES = (bool, int, float, str, type(None))


class Engine(Protocol):
    def run(self, step: Step) -> None:
        """Runs all actions of this rank for one step. On failure the schedule must be able to start another step."""


# What a rank says before a step; the largest counts.
_READY, _NEEDS_ANOTHER, _CANNOT = range(3)


def faster_engine(schedule: _PipelineSchedule, step: Step) -> Engine | None:
    """An engine that runs this step with the same result as the interpreter, or None. The same on all ranks."""
    stages = schedule._local_stages()
    if type(stages[0]) is not PipelineStage:
        return None
    alone = stages[0].group_size == 1
    if not alone and not schedule._ranks_may_share:
        return None
    made_from = _made_from(schedule, stages, step)
    known = schedule._engine
    is_new = made_from is not None and (known is None or not _same(known[0], made_from))
    if is_new and not _is_possible(schedule):
        known, is_new = _kept(schedule, made_from, None), False
    can = made_from is not None and (is_new or known[1] is not None)
    if not alone:
        from . import _ranks

        world = _ranks.world_of(stages[0].group, torch.device(stages[0].device))
        if world is None:
            schedule._ranks_may_share = False
            return None
        said = _ranks.largest(world, _CANNOT if not can else _NEEDS_ANOTHER if is_new else _READY)
        can, is_new = said < _CANNOT, said == _NEEDS_ANOTHER
    if not can:
        return None
    if is_new:
        known = _kept(schedule, made_from, _made(schedule, stages, made_from))
    return known[1]


def _kept(schedule: _PipelineSchedule, made_from: tuple, engine: Engine | None) -> tuple[Any, Engine | None]:
    schedule._engine = ((list(made_from[0]), *made_from[1:]), engine)
    return schedule._engine


def may_share(schedule: _PipelineSchedule, stages: Sequence[_PipelineStageBase]) -> bool:
    """Whether a rank of several, before its first step, looks as if the C++ runtime could run its steps."""
    if not (schedule._has_backward and _is_stock(schedule, stages) and _is_available()):
        return False
    device = _device_of(stages)
    if device is None or stages[0].group_size == 1:
        return False
    return f"{device.type}:{_BACKENDS[device.type]}" in dist.get_backend_config(stages[0].group).split(",")


def _made_from(schedule: _PipelineSchedule, stages: list[_PipelineStageBase], step: Step) -> tuple | None:
    """What an engine for this step depends on; None if there is none."""
    device = _device_of(stages)
    if device is None or not (schedule._has_backward and _is_stock(schedule, stages) and _is_ordinary(stages, step, device)):
        return None
    weights = _weights(stages, device)
    if weights is None:
        return None
    rows, rank = schedule._rows()
    return rows[rank], [stage.submod for stage in stages], weights, schedule._n_microbatches


def _is_available() -> bool:
    try:
        from . import _native  # noqa: F401
    except ImportError:
        return False
    return True


def _is_possible(schedule: _PipelineSchedule) -> bool:
    if not _is_available():
        return False
    from . import _native

    return _native.trains(schedule._rows()[0], schedule._num_stages, schedule._n_microbatches)


def _made(schedule: _PipelineSchedule, stages: list, made_from: tuple) -> Engine | None:
    from . import _native

    rows, rank = schedule._rows()
    return _native.made(stages, rows, rank, made_from[2], schedule._n_microbatches)


def _same(known: tuple, now: tuple) -> bool:
    return (
        known[3] == now[3]
        and known[0] == now[0]
        and all(one is other for one, other in zip(known[1], now[1], strict=True))
        and all(
            len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
            for one, other in zip(known[2], now[2], strict=True)
        )
    )


# Nothing patched


class _Original:
    """A class as it was when the package was imported."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        names = {
            name
            for base in kind.__mro__[:-1]
            for name, value in vars(base).items()
            if isinstance(value, (FunctionType, property)) and not name.startswith("__")
        }
        self.names = frozenset(names)
        self._look_up = attrgetter(*sorted(names))
        self._methods = self._look_up(kind)

    def is_unchanged(self) -> bool:
        try:
            return all(map(is_, self._look_up(self._kind), self._methods))
        except AttributeError:
            return False


_stock_stage = _Original(PipelineStage)
_stock_schedules: dict[type, _Original] = {}


def register_stock(kinds: Iterable[type]) -> None:
    """Called once with the schedule classes of this package, which are defined after this file."""
    _stock_schedules.update((kind, _Original(kind)) for kind in kinds)


def _is_stock(schedule: _PipelineSchedule, stages: Sequence[_PipelineStageBase]) -> bool:
    original = _stock_schedules.get(type(schedule))
    return (
        original is not None
        and original.is_unchanged()
        and _stock_stage.is_unchanged()
        and original.names.isdisjoint(vars(schedule))
        and not schedule._comp_type_to_function_map
        and all(type(stage) is PipelineStage and _stock_stage.names.isdisjoint(vars(stage)) for stage in stages)
    )


# Nothing unusual


def _is_ordinary(stages: list[PipelineStage], step: Step, device: torch.device) -> bool:
    if stages[0].group_size == 1 and len(stages) != stages[0].num_stages:
        return False
    if torch.autograd._profiler_enabled() or torch.is_anomaly_enabled() or torch.is_inference_mode_enabled():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    for stage in stages:
        if stage.dw_builder is not None or stage._runtime_validate or not stage._stage_meta.outputs:
            return False
    return all(_is_plain(value, device) for args in step.arg_mbs for value in args) and all(
        _is_plain(value, device) for kwargs in step.kwarg_mbs for value in kwargs.values()
    )


def _is_plain(value: Any, device: torch.device) -> bool:
    if type(value) in _PLAIN_TENSORS:
        return not value.requires_grad and value.device == device
    return type(value) in _PLAIN_VALUES


def _device_of(stages: Sequence[_PipelineStageBase]) -> torch.device | None:
    """The device of all stages; None if they have several, or one that the C++ runtime does not compute on."""
    device = torch.device(stages[0].device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    is_known = device.type in _BACKENDS and all(stage.device == stages[0].device for stage in stages)
    return device if is_known else None


def _weights(stages: list[PipelineStage], device: torch.device) -> list[list[torch.nn.Parameter]] | None:
    """The trained weights of each stage, each once; None if a module or weight is unusual, or two stages share one."""
    found, seen = [], set()
    for stage in stages:
        if not isinstance(stage.submod, torch.nn.Module):
            return None
        own: dict[int, torch.nn.Parameter] = {}
        todo, trained = [stage.submod], False
        while todo:
            module = todo.pop()
            if isinstance(module, _UNUSUAL_MODULES):
                return None
            for parameter in module._parameters.values():
                if parameter is not None and parameter.requires_grad:
                    if type(parameter) is not torch.nn.Parameter or isinstance(parameter.data, DTensor) or parameter.device != device:
                        return None
                    own[id(parameter)] = parameter
                    trained = True
            todo.extend(one for one in module._modules.values() if one is not None)
        if not trained or not seen.isdisjoint(own):
            return None
        seen.update(own)
        found.append(list(own.values()))
    return found
