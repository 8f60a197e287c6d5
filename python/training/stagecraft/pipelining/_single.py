"""Schedules of one stage per rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _tables
from ._actions import B, F, RECV_B, RECV_F, SEND_B, SEND_F, Table, _Action
from ._passes import _add_reduce_grad
from ._schedule_base import _PipelineSchedule
from ._stage_base import _PipelineStageBase


def _with_messages(row: Sequence[_Action | None], last_stage: int) -> list[_Action]:
    """A message in before and one out after every forward and backward, except at the ends of the pipeline."""
    lowered: list[_Action] = []
    for action in row:
        if action is None:
            continue
        inner = {F: (RECV_F, SEND_F), B: (RECV_B, SEND_B)}.get(action.computation_type)
        starts, ends = (0, last_stage) if action.computation_type is F else (last_stage, 0)
        if inner and action.stage_index != starts:
            lowered.append(action._replace(computation_type=inner[0]))
        lowered.append(action)
        if inner and action.stage_index != ends:
            lowered.append(action._replace(computation_type=inner[1]))
    return lowered


class PipelineScheduleSingle(_PipelineSchedule):
    """Base of the schedules that hold one stage per rank. A stage may send to any later stage.

    With scale_grads the gradients are divided by the number of microbatches: right for a loss that averages.
    """

    def __init__(
        self,
        stage: _PipelineStageBase,
        n_microbatches: int,
        loss_fn: Callable | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
    ) -> None:
        super().__init__(n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads)
        self._stage = stage
        self._num_stages = stage.num_stages
        self.pipeline_order: Table | None = self._get_pipeline_order()
        self._lowered: tuple[Any, dict[int, list[_Action]]] | None = None

    @property
    def _stage_forward_initialized(self) -> bool:
        return self._forward_initialized

    @_stage_forward_initialized.setter
    def _stage_forward_initialized(self, value: bool) -> None:
        self._forward_initialized = value

    @property
    def _stage_backward_initialized(self) -> bool:
        return self._backward_initialized

    @_stage_backward_initialized.setter
    def _stage_backward_initialized(self, value: bool) -> None:
        self._backward_initialized = value

    def _initialize_stage(self, args: Any, kwargs: Any, target: Any = None, loss_kwargs: Any = None) -> None:
        self._set_up(args, kwargs, target, loss_kwargs)

    def _initialize(self, args: Any, kwargs: Any, target: Any, loss_kwargs: Any) -> None:
        self._initialize_stage(args, kwargs, target, loss_kwargs)

    def _get_pipeline_order(self) -> Table | None:
        """The compute table of all ranks, without idle slots and with the reductions; None if a class has none."""
        return None

    def _compute_table(self) -> Mapping[int, Sequence[_Action | None]]:
        if self.pipeline_order is None:
            raise NotImplementedError(f"{type(self).__name__} defines neither a table nor _step_microbatches")
        return self.pipeline_order

    def _local_stages(self) -> list[_PipelineStageBase]:
        return [self._stage]

    def _rows(self) -> tuple[Mapping[int, Sequence[_Action | None]], int]:
        table = self._compute_table()
        made_from = {rank: list(row) for rank, row in table.items()}
        if self._lowered is None or self._lowered[0] != made_from:
            last = self._num_stages - 1
            self._lowered = (made_from, {rank: _with_messages(row, last) for rank, row in table.items()})
        return self._lowered[1], self._stage.stage_index


class _ScheduleForwardOnly(PipelineScheduleSingle):
    """Forwards of all microbatches, no loss."""

    def _compute_table(self) -> Mapping[int, Sequence[_Action | None]]:
        forwards = [[_Action(r, F, i) for i in range(self._n_microbatches)] for r in range(self._num_stages)]
        return dict(enumerate(forwards))

    def _step_microbatches(
        self,
        arg_mbs: list | None = None,
        kwarg_mbs: list | None = None,
        target_mbs: list | None = None,
        losses: list | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if target_mbs is not None or losses is not None:
            raise RuntimeError("Forward-only schedule does not support loss computation")
        has_loss, self._loss_fn = self._loss_fn, None
        try:
            super()._step_microbatches(arg_mbs, kwarg_mbs, None, None, return_outputs, loss_kwargs)
        finally:
            self._loss_fn = has_loss


class ScheduleGPipe(PipelineScheduleSingle):
    """GPipe: all forwards, then all backwards."""

    def _get_pipeline_order(self) -> Table:
        table = _tables.gpipe(self._num_stages, self._n_microbatches)
        return {rank: _add_reduce_grad(row, self._n_microbatches) for rank, row in table.items()}


class Schedule1F1B(PipelineScheduleSingle):
    """1F1B: after the warm-up, one backward per forward, so that few microbatches are held."""

    _exchanges = True

    def __init__(
        self,
        stage: _PipelineStageBase,
        n_microbatches: int,
        loss_fn: Callable | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
    ) -> None:
        super().__init__(
            stage, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads
        )
        if n_microbatches < self._num_stages:
            raise ValueError(
                f"Number of microbatches ({n_microbatches}) must be greater than "
                f"or equal to the number of stages ({self._num_stages})."
            )

    def _get_pipeline_order(self) -> Table:
        table = _tables.one_f_one_b(self._num_stages, self._n_microbatches)
        return {rank: _add_reduce_grad(row, self._n_microbatches) for rank, row in table.items()}
