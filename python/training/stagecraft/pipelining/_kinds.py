"""The named schedules of several stages per rank, and the look-up by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import OptimizedModule

from . import _engine, _tables
from ._actions import Table
from ._multi import PipelineScheduleMulti, _PipelineScheduleRuntime
from ._placement import generate_stage_to_rank_mapping
from ._schedule_base import _PipelineSchedule
from ._single import PipelineScheduleSingle, Schedule1F1B, ScheduleGPipe
from ._stage_base import _PipelineStageBase


def _check_torch_compile_compatibility(stages: Sequence[_PipelineStageBase], schedule_name: str) -> None:
    for stage in stages:
        if isinstance(stage.submod, torch.nn.Module):
            for module in stage.submod.modules():
                if isinstance(module, OptimizedModule):
                    raise RuntimeError(
                        f"The {schedule_name} schedule is not supported with stage modules that have used torch.compile. "
                        f"Found OptimizedModule in {type(module).__name__}"
                    )


class _NamedSchedule(_PipelineScheduleRuntime):
    """Builds its table from the number of ranks, stages and microbatches."""

    _splits_backward = False
    _is_v = False

    def __init__(
        self,
        stages: list[_PipelineStageBase],
        n_microbatches: int,
        loss_fn: Callable | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
        defer_pp_recv: bool = False,
    ) -> None:
        if self._splits_backward:
            _check_torch_compile_compatibility(stages, type(self).__name__)
        super().__init__(
            stages=stages,
            n_microbatches=n_microbatches,
            loss_fn=loss_fn,
            args_chunk_spec=args_chunk_spec,
            kwargs_chunk_spec=kwargs_chunk_spec,
            output_merge_spec=output_merge_spec,
            scale_grads=scale_grads,
            backward_requires_autograd=backward_requires_autograd,
            defer_pp_recv=defer_pp_recv,
        )
        self.n_local_stages = len(stages)
        self.num_stages = self._num_stages
        if self._is_v:
            if self.n_local_stages != 2:
                raise ValueError(f"ZBV requires exactly 2 stages per rank, but got {self.n_local_stages}.")
            self._place(generate_stage_to_rank_mapping(self.pp_group_size, self._num_stages, style="v"))
        self.pipeline_order = self._table(self.pp_group_size, n_microbatches, self.n_local_stages)
        self._prepare_schedule_with_comms(self.pipeline_order)

    def _table(self, p: int, m: int, v: int) -> Table:
        raise NotImplementedError

    def _count_rounds(self, name: str) -> None:
        self.number_of_rounds = max(1, self._n_microbatches // self.pp_group_size)
        self.microbatches_per_round = self._n_microbatches // self.number_of_rounds
        if self._n_microbatches % self.number_of_rounds != 0:
            raise ValueError(
                f"{name} requires the number of microbatches to be a multiple of the number of rounds "
                f"({self.number_of_rounds}), but got {self._n_microbatches}."
            )


class ScheduleLoopedBFS(_NamedSchedule):
    """Breadth first (arXiv:2211.05953): a stage runs all microbatches before the next local stage runs any."""

    def __init__(
        self,
        stages: list[_PipelineStageBase],
        n_microbatches: int,
        loss_fn: Callable | None = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
        defer_pp_recv: bool = False,
    ) -> None:
        super().__init__(
            stages,
            n_microbatches,
            loss_fn,
            output_merge_spec=output_merge_spec,
            scale_grads=scale_grads,
            backward_requires_autograd=backward_requires_autograd,
            defer_pp_recv=defer_pp_recv,
        )

    def _table(self, p: int, m: int, v: int) -> Table:
        return _tables.looped_bfs(p, m, v)


class ScheduleInterleaved1F1B(_NamedSchedule):
    """1F1B over several stages per rank (arXiv:2104.04473): a microbatch goes on to the next local stage as soon as it can.

    Microbatches go in max(1, m div p) rounds, into which m must divide.
    """

    def _table(self, p: int, m: int, v: int) -> Table:
        self._count_rounds("Interleaved 1F1B")
        return _tables.interleaved_1f1b(p, m, v)


class ScheduleInterleavedZeroBubble(_NamedSchedule):
    """Interleaved 1F1B with split backwards (ZB1P of arXiv:2401.10241): weight parts fill the bubble."""

    _splits_backward = True

    def _table(self, p: int, m: int, v: int) -> Table:
        self._count_rounds("Zero bubble")
        return _tables.interleaved_zero_bubble(p, m, v)


class ScheduleZBVZeroBubble(_NamedSchedule):
    """Two stages per rank in a V with split backwards (arXiv:2401.10241): no bubble if F, I and W take equally long."""

    _splits_backward = True
    _is_v = True

    def _table(self, p: int, m: int, v: int) -> Table:
        return _tables.zbv(p, m)


class ScheduleDualPipeV(_NamedSchedule):
    """Two stages per rank in a V, forwards overlapped with backwards (arXiv:2412.19437, cut in half)."""

    _splits_backward = True
    _is_v = True

    def _table(self, p: int, m: int, v: int) -> Table:
        if m < self._num_stages:
            raise ValueError(
                "DualPipeV requires at least as many microbatches as stages, but got "
                f"{m} microbatches and {self._num_stages} stages."
            )
        return _tables.dual_pipe_v(p, m)


_BY_NAME: dict[str, type[_PipelineSchedule]] = {
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "GPipe": ScheduleGPipe,
    "LoopedBFS": ScheduleLoopedBFS,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "PipelineScheduleSingle": PipelineScheduleSingle,
    "PipelineScheduleMulti": PipelineScheduleMulti,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
    "DualPipeV": ScheduleDualPipeV,
}


def get_schedule_class(schedule_name: str) -> type[_PipelineSchedule]:
    """The class of a schedule by its name, upper or lower case."""
    for name, kind in _BY_NAME.items():
        if name.lower() == schedule_name.lower():
            return kind
    raise ValueError(f"Unknown schedule name '{schedule_name}'. The valid options are {list(_BY_NAME)}")


_engine.register_stock(
    (
        Schedule1F1B,
        ScheduleDualPipeV,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
        ScheduleInterleavedZeroBubble,
        ScheduleLoopedBFS,
        ScheduleZBVZeroBubble,
        PipelineScheduleMulti,
        _PipelineScheduleRuntime,
    )
)
