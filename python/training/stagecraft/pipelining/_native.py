"""A step of plain stages on the C++ runtime."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stagecraft.torch import Error, StepError
from stagecraft.torch._door import ScheduleRun
from stagecraft.torch._worlds import World, shared_world

from ._actions import REDUCE_GRAD, B, F, I, W, _Action, _ComputationType
from ._debug import map_debug_info
from ._order_text import _format_pipeline_order
from ._ranks import as_upstream

if TYPE_CHECKING:
    from ._manual_stage import PipelineStage
    from ._program import Step

logger = logging.getLogger("stagecraft.pipelining.schedules")


def made(
    stages: Sequence[PipelineStage],
    rows: Mapping[int, Sequence[_Action | None]],
    rank: int,
    weights: list[list[torch.nn.Parameter]],
    microbatches: int,
) -> NativeEngine | None:
    """None if the C++ runtime refuses the table, which then is the interpreter's to run or to refuse. All ranks call it."""
    try:
        return NativeEngine(stages, rows, rank, weights, microbatches)
    except Error as refused:
        logger.debug("the interpreter runs this schedule: %s", refused)
        return None


def trains(rows: Mapping[int, Sequence[_Action | None]], stages: int, microbatches: int) -> bool:
    """Whether every stage runs every microbatch forward and backward, once."""
    parts = Counter(
        (part.stage_index, part.computation_type, part.microbatch_index)
        for row in rows.values()
        for action in row
        if action is not None
        for part in action.parts
    )
    if not all(isinstance(kind, _ComputationType) for _, kind, _ in parts):
        return False
    for stage in range(stages):
        for microbatch in range(microbatches):
            forward, whole, inputs, weights = (parts[stage, kind, microbatch] for kind in (F, B, I, W))
            if (forward, whole, inputs, weights) not in ((1, 1, 0, 0), (1, 0, 1, 1)):
                return False
    return True


class _Owner:
    """Stands for a stage: the runtime calls what `submod` is at that time."""

    def __init__(self, submod: Any) -> None:
        self.submod = submod


class _Losses:
    """The loss that the runtime calls, with the step that is running. The runtime holds it, and it holds no engine: no circle."""

    def __init__(self) -> None:
        self.step: Step | None = None

    def __call__(self, output: Any, microbatch: int) -> torch.Tensor:
        step = self.step
        return step.schedule._compute_loss(output, step.target_mbs[microbatch], step.loss_kwargs)


class NativeEngine:
    """The stages of a rank."""

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        rows: Mapping[int, Sequence[_Action | None]],
        rank: int,
        weights: list[list[torch.nn.Parameter]],
        microbatches: int,
    ) -> None:
        self._stages = list(stages)
        self._last = next((stage for stage in stages if stage.is_last), None)
        self._table = {key: list(row) for key, row in rows.items()}
        self._rank = rank
        scaled = {action.stage_index for action in rows[rank] if action is not None and action.computation_type is REDUCE_GRAD}
        self._weights = [weight for own in weights for weight in own]
        self._scaled = [weight for stage, own in zip(stages, weights, strict=True) if stage.stage_index in scaled for weight in own]
        self._is_first = any(stage.is_first for stage in stages)
        self._targets = list(range(microbatches)) if self._last is not None else []
        self._losses = _Losses()
        owners = [(_Owner(stage.submod), stage.stage_index) for stage in stages]
        texts = [[None if action is None else str(action) for action in rows[key]] for key in sorted(rows)]
        alone = stages[0].group_size == 1
        device = stages[0].device
        world = World.alone(device) if alone else shared_world(stages[0].group, device)
        self._run = ScheduleRun(world, owners, texts, microbatches=microbatches, loss=self._losses)
        for (owner, _), stage in zip(owners, stages, strict=True):
            owner.submod = _forward(stage)

    def run(self, step: Step) -> None:
        schedule = step.schedule
        scaled = schedule.scale_grads and schedule._n_microbatches > 1
        # Only what this step adds is divided.
        kept = [(weight, weight.grad) for weight in self._weights if weight.grad is not None] if scaled else []
        for weight, _ in kept:
            weight.grad = None
        self._losses.step = step
        try:
            losses, outputs = self._run.step(
                step.arg_mbs if self._is_first else [],
                step.kwarg_mbs,
                self._targets,
                return_outputs=step.return_outputs and self._last is not None,
            )
        except BaseException as error:
            for weight in self._weights if scaled else ():
                weight.grad = None
            for weight, grad in kept:
                weight.grad = grad
            action = self._tell(error)
            if not isinstance(error, StepError) or error.__cause__ is None:
                raise as_upstream(error)
            if action is not None and action.computation_type in (B, I, W) and isinstance(error.__cause__, Exception):
                raise RuntimeError(f"Failed to run stage backward: {action}") from error.__cause__
            raise error.__cause__ from error.__cause__.__cause__
        finally:
            self._losses.step = None
        if scaled:
            grads = [weight.grad for weight in self._scaled if weight.grad is not None]
            if grads:
                torch._foreach_div_(grads, schedule._n_microbatches)
        for weight, grad in kept:
            weight.grad = grad if weight.grad is None else grad.add_(weight.grad)
        schedule._internal_losses.extend(losses)
        schedule.backward_counter.update({stage.stage_index: schedule._n_microbatches for stage in self._stages})
        if step.return_outputs and self._last is not None:
            self._last.output_chunks[:] = outputs
            self._last._output_position = {index: index for index in range(len(outputs))}

    def _tell(self, error: BaseException) -> _Action | None:
        """Logs the table with the action that failed. Returns the action."""
        row = self._table[self._rank]
        failed = str(getattr(error, "action", None))
        position = next((index for index, action in enumerate(row) if action is not None and failed == str(action)), -1)
        logger.error("step failed at %s\n%s", failed, _format_pipeline_order(self._table, position))
        return row[position] if position >= 0 else None


def _forward(stage: PipelineStage) -> Any:
    """Calls the stage's module, with upstream's words when it fails."""

    def forward(*inputs: Any, **kwargs: Any) -> Any:
        try:
            return stage.submod(*inputs, **kwargs)
        except Exception as error:
            raise RuntimeError(
                f"{stage.log_prefix} failed to run forward:\n"
                f"  args: {map_debug_info(inputs)}\n  kwargs: {map_debug_info(kwargs)}"
            ) from error

    return forward
