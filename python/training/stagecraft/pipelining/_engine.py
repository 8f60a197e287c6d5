"""Where the C++ runtime takes over a step from the interpreter.

A schedule asks once per step, when its stages are prepared. An engine runs all actions: losses into schedule._internal_losses (by
microbatch), outputs into the last stage's output_chunks, gradients scaled. A step is given to it only if nothing that the
interpreter would have called can be told from the original:

    schedule    one of the classes of this package, nothing patched, no custom functions
    stages      PipelineStage itself, nothing patched, weights of their own
    modules     plain ones on the CPU: no data parallel wrapper, no DTensors, nothing compiled
    inputs      plain tensors without gradients
    torch       no profiler, no anomaly detection, no dispatch modes

Anything else stays with the interpreter. So does a pipeline of several ranks: all ranks would have to choose the same engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, is_
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import torch
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
# What a value between stages, a keyword or an argument may be beside a tensor.
_PLAIN_VALUES = (bool, int, float, str, type(None))


class Engine(Protocol):
    def run(self, step: Step) -> None:
        """Runs all actions of this rank for one step. On failure the schedule must be able to start another step."""


def faster_engine(schedule: _PipelineSchedule, step: Step) -> Engine | None:
    """An engine that runs this step with the same result as the interpreter, or None."""
    stages = schedule._local_stages()
    if not (schedule._has_backward and _is_stock(schedule, stages) and _is_ordinary(schedule, stages, step)):
        return None
    weights = _weights(stages)
    if weights is None:
        return None
    rows, rank = schedule._rows()
    made_from = (rows[rank], [stage.submod for stage in stages], weights, schedule._n_microbatches)
    known = schedule._engine
    # Lists of tensors compare by identity first, and a differing tensor must not be compared by value.
    if known is None or not _same(known[0], made_from):
        known = schedule._engine = ((list(rows[rank]), *made_from[1:]), _made(stages, rows, rank, weights, schedule))
    return known[1]


def _made(stages: list, rows: Any, rank: int, weights: list, schedule: _PipelineSchedule) -> Engine | None:
    try:
        from . import _native
    except ImportError:
        return None
    return _native.made(stages, rows, rank, weights, schedule._n_microbatches)


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


def _is_stock(schedule: _PipelineSchedule, stages: list[_PipelineStageBase]) -> bool:
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


def _is_ordinary(schedule: _PipelineSchedule, stages: list[PipelineStage], step: Step) -> bool:
    if stages[0].group_size != 1 or len(stages) != stages[0].num_stages:
        return False
    if torch.autograd._profiler_enabled() or torch.is_anomaly_enabled() or torch.is_inference_mode_enabled():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    for stage in stages:
        if (
            stage.dw_builder is not None
            or stage._runtime_validate
            or not stage._stage_meta.outputs
            or torch.device(stage.device).type != "cpu"
        ):
            return False
    return all(_is_plain(value) for args in step.arg_mbs for value in args) and all(
        _is_plain(value) for kwargs in step.kwarg_mbs for value in kwargs.values()
    )


def _is_plain(value: Any) -> bool:
    return not value.requires_grad if type(value) in _PLAIN_TENSORS else type(value) in _PLAIN_VALUES


def _weights(stages: list[PipelineStage]) -> list[list[torch.nn.Parameter]] | None:
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
                    if type(parameter) is not torch.nn.Parameter or isinstance(parameter.data, DTensor):
                        return None
                    own[id(parameter)] = parameter
                    trained = True
            todo.extend(one for one in module._modules.values() if one is not None)
        if not trained or not seen.isdisjoint(own):
            return None
        seen.update(own)
        found.append(list(own.values()))
    return found
