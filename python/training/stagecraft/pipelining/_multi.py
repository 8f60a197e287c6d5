"""Schedules of several stages per rank: the base class, and the one that runs tables with messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Protocol

from ._actions import B, F, I, OVERLAP_F_B, REDUCE_GRAD, RESHARD, UNSHARD, W, Table, _Action, _ComputationType
from ._order_text import read_csv, write_csv
from ._passes import lower
from ._placement import generate_stage_to_rank_mapping
from ._program import _PipelineContext
from ._recv_info import _RecvInfo
from ._schedule_base import _PipelineSchedule
from ._simulation import _simulate_comms_compute
from ._stage_base import _PipelineStageBase
from ._validation import _validate_schedule

logger = logging.getLogger("stagecraft.pipelining.schedules")


class _CustomFunctionProtocol(Protocol):
    def __call__(self, action: _Action, ctx: _PipelineContext) -> None: ...


class PipelineScheduleMulti(_PipelineSchedule):
    """Base of the schedules that hold several stages per rank. Stages talk to their neighbours only.

    pipeline_order is the compute table of all ranks. It may be set after construction; the messages it needs are worked out
    when a step runs. With scale_grads the gradients are divided by the number of microbatches: right for a loss that averages.
    """

    _gathers_weights = True

    def __init__(
        self,
        stages: list[_PipelineStageBase],
        n_microbatches: int,
        loss_fn: Callable | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        use_full_backward: bool | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
    ) -> None:
        super().__init__(n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads)
        self._stages = stages
        self._num_stages = stages[0].num_stages
        self.pp_group_size = stages[0].group_size
        self.rank = stages[0].group_rank
        self._place(generate_stage_to_rank_mapping(self.pp_group_size, self._num_stages))
        self.pipeline_order: Table = {}
        self._backward_requires_autograd = backward_requires_autograd
        self._lowered: tuple[Any, Table] | None = None
        if use_full_backward is not None:
            logger.warning("'use_full_backward' has no effect any more: leave it out")

    @property
    def _stages_forward_initialized(self) -> bool:
        return self._forward_initialized

    @_stages_forward_initialized.setter
    def _stages_forward_initialized(self, value: bool) -> None:
        self._forward_initialized = value

    @property
    def _stages_backward_initialized(self) -> bool:
        return self._backward_initialized

    @_stages_backward_initialized.setter
    def _stages_backward_initialized(self, value: bool) -> None:
        self._backward_initialized = value

    def _initialize_stages(self, args: Any, kwargs: Any, target: Any = None, loss_kwargs: Any = None) -> None:
        self._set_up(args, kwargs, target, loss_kwargs)

    def _initialize(self, args: Any, kwargs: Any, target: Any, loss_kwargs: Any) -> None:
        self._initialize_stages(args, kwargs, target, loss_kwargs)

    def _should_compute_loss(self, stage: _PipelineStageBase) -> bool:
        return stage.is_last and self._loss_fn is not None

    def _place(self, rank_of: dict[int, int]) -> None:
        self.stage_index_to_group_rank = rank_of
        for stage in self._stages:
            stage.stage_index_to_group_rank = rank_of

    def _local_stages(self) -> list[_PipelineStageBase]:
        return self._stages

    def _rows(self) -> tuple[Mapping[int, Sequence[_Action | None]], int]:
        made_from = ({rank: list(row) for rank, row in self.pipeline_order.items()}, dict(self.stage_index_to_group_rank))
        if self._lowered is None or self._lowered[0] != made_from:
            self._lowered = (made_from, self._lower(self.pipeline_order))
        return self._lowered[1], self.rank

    def _lower(self, table: Mapping[int, Sequence[_Action | None]], defer_receives: bool = False) -> Table:
        rank_of = self.stage_index_to_group_rank
        return lower(table, rank_of.__getitem__, self._num_stages, self._n_microbatches, defer_receives)

    def _check_prepared(self) -> None:
        self._validate_adjacent_stage_communication()

    def _validate_adjacent_stage_communication(self) -> None:
        for stage in self._stages:
            index = stage.stage_index
            sources = {
                info.source
                for info in stage.args_recv_info[0]
                if isinstance(info, _RecvInfo) and info.source is not None
            }
            targets = {other for others in stage.act_send_info.values() for other in others if other is not None}
            _require_neighbours(index, "forward recv", sources, set() if stage.is_first else {index - 1})
            _require_neighbours(index, "forward send", targets, set() if stage.is_last else {index + 1})

    def _validate_and_set_stage_mapping(self, actions: Mapping[int, Sequence[_Action | None]]) -> None:
        """Checks a table, and takes from it which rank holds which stage."""
        self._place(_validate_schedule(actions, self.pp_group_size, self._num_stages, self._n_microbatches))

    def _dump_csv(self, filename: str | PathLike[str]) -> None:
        write_csv(filename, self.pipeline_order)

    def _load_csv(
        self, filename: str | PathLike[str], format: Literal["compute_only", "compute_comms"] = "compute_only"
    ) -> None:
        if format != "compute_only":
            raise AssertionError(f'format must be "compute_only", got {format}')
        self.pipeline_order.update(read_csv(filename))
        self._validate_and_set_stage_mapping(self.pipeline_order)


def _require_neighbours(stage: int, direction: str, actual: set[int], allowed: set[int]) -> None:
    if actual - allowed:
        raise RuntimeError(
            f"PipelineScheduleMulti only supports adjacent-stage communication, but stage {stage} has {direction} stages "
            f"{sorted(actual)} with non-adjacent stages {sorted(actual - allowed)} (allowed adjacent stages: "
            f"{sorted(allowed)}). A value probably skips a stage: use ScheduleGPipe, or pass it through the stages between."
        )


class _PipelineScheduleRuntime(PipelineScheduleMulti):
    """Runs pipeline_order_with_comms: a table that contains messages, which may be replaced between steps."""

    _CUSTOM = (F, B, I, W, OVERLAP_F_B, UNSHARD, RESHARD, REDUCE_GRAD)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._defer_pp_recv: bool = kwargs.pop("defer_pp_recv", False)
        super().__init__(*args, **kwargs)
        self.pipeline_order_with_comms: dict[int, list[_Action]] | None = None

    def register_custom_function(
        self, computation_type: _ComputationType, custom_function: _CustomFunctionProtocol
    ) -> None:
        """Runs custom_function(action, context) for every action of a kind, instead of what the runtime does for it.

        Inside an overlapped action the runtime does not look at the functions of F and B.
        """
        if computation_type not in self._CUSTOM:
            raise ValueError(
                f"Invalid computation type {computation_type}. Only FORWARD, FULL_BACKWARD, BACKWARD_INPUT, "
                "BACKWARD_WEIGHT, OVERLAP_F_B, UNSHARD, RESHARD and REDUCE_GRAD are supported."
            )
        if computation_type in self._comp_type_to_function_map:
            logger.warning("Computation type %s is already registered; the new function replaces it", computation_type)
        self._comp_type_to_function_map[computation_type] = custom_function

    def _rows(self) -> tuple[Mapping[int, Sequence[_Action | None]], int]:
        if self.pipeline_order_with_comms is None:
            raise AssertionError("Must call _prepare_schedule_with_comms() before calling _step_microbatches()")
        return self.pipeline_order_with_comms, self.rank

    def _prepare_schedule_with_comms(
        self,
        actions: Mapping[int, Sequence[_Action | None]],
        format: Literal["compute_only", "compute_comms"] = "compute_only",
    ) -> None:
        """Takes a table of all ranks to run: as it is (compute_comms), or lowered first (compute_only)."""
        self._validate_and_set_stage_mapping(actions)
        if format == "compute_comms":
            for row in actions.values():
                if None in row:
                    raise AssertionError(f"Expected action to be not None, got {type(None)}")
            self.pipeline_order_with_comms = {rank: list(row) for rank, row in actions.items()}
        elif format == "compute_only":
            for rank, row in actions.items():
                for position, action in enumerate(row):
                    if action is not None and not action.is_compute_op:
                        raise ValueError(
                            f"Expected compute-only schedule but found communication action '{action}' at rank {rank}, "
                            f"position {position}. Use format='compute_comms' for a table that contains messages."
                        )
            self.pipeline_order_with_comms = self._lower(actions, self._defer_pp_recv)
        else:
            raise NotImplementedError(f"{format=} is not implemented")

    def _load_csv(
        self, filename: str | PathLike[str], format: Literal["compute_only", "compute_comms"] = "compute_only"
    ) -> None:
        if format == "compute_only":
            super()._load_csv(filename)
            self._prepare_schedule_with_comms(self.pipeline_order)
        elif format == "compute_comms":
            self._prepare_schedule_with_comms(read_csv(filename), format=format)
        else:
            raise NotImplementedError(f"{format=} is not implemented")

    def _dump_csv(
        self, filename: str | PathLike[str], format: Literal["compute_only", "compute_comms"] = "compute_comms"
    ) -> None:
        if format == "compute_only":
            if self.pipeline_order is None:
                raise AssertionError("Compute only schedule must be available")
            write_csv(filename, self.pipeline_order)
        elif format == "compute_comms":
            if self.pipeline_order_with_comms is None:
                raise AssertionError("Must initialize compute_comms schedule before dump_csv")
            write_csv(filename, self.pipeline_order_with_comms)

    def _simulate(self) -> Table:
        rank_of = self.stage_index_to_group_rank
        return _simulate_comms_compute(self.pipeline_order_with_comms, rank_of.__getitem__, self._num_stages)
