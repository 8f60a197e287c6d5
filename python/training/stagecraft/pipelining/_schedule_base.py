"""What all schedules share: a step's arguments cut into microbatches, its losses, its stages prepared, its row run."""

from __future__ import annotations

import logging
from abc import ABC
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import _engine, _inference
from ._acknowledgement import receives_in_order_sent
from ._actions import _Action, _ComputationType
from ._gradients import StepGradients
from ._losses import StepLosses
from ._manual_stage import PipelineStage
from ._order_text import _format_pipeline_order
from ._p2p import _batch_p2p, _wait_batch_p2p, has_tags
from ._program import Program, Step, _PipelineContext
from ._stage_base import _PipelineStageBase
from .microbatch import TensorChunkSpec, _split_tensor, merge_chunks, split_args_kwargs_into_chunks

logger = logging.getLogger("stagecraft.pipelining.schedules")

_TARGET_CHUNK_SPEC = TensorChunkSpec(0)

Microbatches = tuple[list[tuple], list[dict], list[Any] | None]


class _PipelineSchedule(ABC):
    """A schedule drives the stages of one rank through all microbatches of a step."""

    # Whether the rows gather and free sharded weights, or leave that to the modules themselves.
    _gathers_weights = False
    # Whether a send and a receive between the same two ranks are posted together.
    _exchanges = False

    def __init__(
        self,
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        args_chunk_spec: tuple[TensorChunkSpec, ...] | None = None,
        kwargs_chunk_spec: dict[str, TensorChunkSpec] | None = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
    ) -> None:
        self._n_microbatches = n_microbatches
        self._loss_fn = loss_fn
        self._args_chunk_spec = args_chunk_spec
        self._kwargs_chunk_spec = kwargs_chunk_spec
        self._output_merge_spec = output_merge_spec
        self.scale_grads = scale_grads
        # Without a loss a step runs forwards only.
        self._has_backward = loss_fn is not None
        self._backward_requires_autograd = True
        self._forward_initialized = False
        self._backward_initialized = False

        # State of a step, for custom functions to read and change. Messages on their way are by (stage, microbatch).
        self._internal_losses = StepLosses()
        self.fwd_recv_ops: dict[tuple[int, int], list[dist.Work]] = {}
        self.bwd_recv_ops: dict[tuple[int, int], list[dist.Work]] = {}
        self.backward_counter: Counter[int] = Counter()
        self.unshard_ops: dict[int, list[Any]] = defaultdict(list)
        self.unsharded_stages: set[int] = set()
        self._gradients = StepGradients()

        self._comp_type_to_function_map: dict[_ComputationType, Callable] = {}
        self._compiled: tuple[Any, Program] | None = None
        # The C++ engine, if a step was of its kind, and what it was made from.
        self._engine: tuple[Any, _engine.Engine | None] | None = None
        # Whether the ranks of this pipeline ask each other, step by step, if all of them can run it with that engine.
        self._ranks_may_share = False

    # What a kind of schedule says

    def _local_stages(self) -> list[_PipelineStageBase]:
        """The stages of this rank."""
        raise NotImplementedError

    def _rows(self) -> tuple[Mapping[int, Sequence[_Action | None]], int]:
        """The lowered table of all ranks, and which row is this rank's."""
        raise NotImplementedError

    def _initialize(self, args: Any, kwargs: Any, target: Any, loss_kwargs: Any) -> None:
        """Calls the method by whose name users know _set_up."""
        raise NotImplementedError

    # Losses

    def _compute_loss(self, output: Any, target: Any, loss_kwargs: dict[str, Any] | None = None) -> torch.Tensor:
        return self._loss_fn(output, target, **(loss_kwargs or {}))

    def _maybe_compute_loss(
        self,
        stage: _PipelineStageBase,
        output: Any,
        target_mbs: list[Any] | None,
        mb_index: int,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if self._loss_fn is not None and stage.is_last:
            self._internal_losses.put(mb_index, self._compute_loss(output, target_mbs[mb_index], loss_kwargs))

    def _maybe_get_loss(self, stage: _PipelineStageBase, mb_index: int) -> torch.Tensor | None:
        if self._loss_fn is None or not stage.is_last:
            return None
        loss = self._internal_losses.of(mb_index)
        if loss is None:
            raise RuntimeError(
                f"Loss for microbatch {mb_index} is not available. "
                f"Available losses for microbatches: {sorted(self._internal_losses.microbatches())}"
            )
        return loss

    def _update_losses(self, stages: Any, losses: list | None) -> None:
        """Gives the losses to the user, microbatches ascending, if this rank has them."""
        stages = stages if isinstance(stages, list) else [stages]
        if losses is not None and any(stage.is_last for stage in stages):
            if len(self._internal_losses) != self._n_microbatches:
                raise RuntimeError(f"Expecting {self._n_microbatches} losses but got {len(self._internal_losses)}")
            losses[:] = self._internal_losses.in_order()
        self._internal_losses.clear()

    # A step

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        arg_mbs: list[tuple] | None = None,
        kwarg_mbs: list[dict] | None = None,
        target_mbs: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs one batch through the pipeline, and backward if the schedule has a loss.

        args, kwargs: the model's arguments, as without a pipeline; cut into microbatches here. Positional ones on the rank of the
            first stage, keyword ones wherever a stage takes them.
        target: what the loss compares with, on the rank of the last stage; cut along dimension 0.
        losses: a list that receives one loss per microbatch.
        return_outputs: whether the last stage's outputs are kept and returned, joined.
        loss_kwargs: further keyword arguments of the loss.
        arg_mbs, kwarg_mbs, target_mbs: instead of args, kwargs, target: lists with one entry per microbatch.
        """
        if self._has_backward and self._backward_requires_autograd and not torch.is_grad_enabled():
            raise RuntimeError(
                "step() requires gradients to be enabled for backward computation; it should not be used under "
                "torch.no_grad() context. Please call eval() instead."
            )
        stages = self._local_stages()
        for stage in stages:
            stage.has_backward = self._has_backward
        for stage in stages:
            stage.clear_runtime_states()
        if arg_mbs is None and kwarg_mbs is None:
            arg_mbs, kwarg_mbs = self._split_inputs(args, kwargs)
        elif args or kwargs:
            raise ValueError("step() takes the inputs whole or as arg_mbs and kwarg_mbs, not both")
        if target_mbs is None and target is not None:
            target_mbs = self._split_target(target)
        self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs)
        for stage in stages:
            if stage.is_last and return_outputs:
                stage._sort_outputs()
                return self._merge_outputs(stage.output_chunks)
        return None

    def eval(self, *args: Any, target: Any = None, losses: list | None = None, **kwargs: Any) -> Any:
        """step without backwards. Changes neither the modules' mode nor whether autograd records."""
        had_backward = self._has_backward
        self._has_backward = False
        try:
            return self.step(*args, target=target, losses=losses, **kwargs)
        finally:
            self._has_backward = had_backward

    def _step_microbatches(
        self,
        arg_mbs: list | None = None,
        kwarg_mbs: list | None = None,
        target_mbs: list | None = None,
        losses: list | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Runs one step on microbatches."""
        arg_mbs, kwarg_mbs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        context = _PipelineContext(self, arg_mbs, kwarg_mbs, target_mbs, losses)
        step = Step(self, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs, context)
        for stage in self._local_stages():
            stage.has_backward = self._has_backward
        self._forget_last_step()
        self._prepare(arg_mbs, kwarg_mbs, target_mbs, loss_kwargs)
        engine = _engine.faster_engine(self, step)
        if engine is not None:
            engine.run(step)
        else:
            self._interpret(step)
        self._update_losses(self._local_stages(), losses)

    def _interpret(self, step: Step) -> None:
        program = self._program()
        scaled = self._has_backward and self.scale_grads and self._n_microbatches > 1
        self._gradients.begin(self._local_stages(), scaled)
        try:
            program.run(step)
        except BaseException:
            rows, _ = self._rows()
            logger.error("step failed at %s\n%s", program.failed_in, _format_pipeline_order(rows, program.failed_at))
            self._gradients.restore()
            raise
        self._gradients.end()
        if self.unshard_ops:
            raise AssertionError("Unused unshard operations")

    def _program(self) -> Program:
        """The compiled row: the last one, unless anything that it was made from has changed."""
        rows, rank = self._rows()
        stages = self._local_stages()
        made_from = (
            # This rank's actions, and the other ranks' rows as objects.
            list(rows[rank]),
            list(rows.values()),
            rank,
            self._has_backward,
            dict(self._comp_type_to_function_map),
            [(stage, getattr(stage, "submod", None)) for stage in stages],
        )
        if self._compiled is None or self._compiled[0] != made_from:
            rows = dict(rows)
            if dist.is_initialized() and not has_tags(getattr(stages[0], "group", None)):
                rows[rank] = receives_in_order_sent(rows, rank)
            self._compiled = (made_from, Program(self, stages, rows, rank, self._exchanges))
        return self._compiled[1]

    def _forget_last_step(self) -> None:
        """A step that failed may have left anything behind."""
        self._internal_losses.clear()
        self.fwd_recv_ops.clear()
        self.bwd_recv_ops.clear()
        self.backward_counter.clear()
        if self.unshard_ops or self.unsharded_stages:
            for stage in self._local_stages():
                for handle in self.unshard_ops.pop(stage.stage_index, ()):
                    handle.wait()
                if isinstance(stage, PipelineStage):
                    stage._post_metadata_inference_cleanup()
            self.unsharded_stages.clear()

    def _assert_unsharded(self, stage: _PipelineStageBase) -> None:
        """Waits for a sharded stage's weights if they are being gathered; fails if nobody gathers them."""
        if not isinstance(stage.submod, FSDPModule):
            return
        stage_idx = stage.stage_index
        handles = self.unshard_ops.pop(stage_idx, None)
        if handles is not None:
            for handle in handles:
                handle.wait()
            self.unsharded_stages.add(stage_idx)
        if stage_idx not in self.unsharded_stages:
            raise AssertionError(f"Attempted to compute on sharded {stage_idx=}")

    # Preparation of the stages

    def _is_prepared(self) -> bool:
        return self._forward_initialized and self._has_backward == self._backward_initialized

    def _prepare(
        self, arg_mbs: list, kwarg_mbs: list, target_mbs: list | None, loss_kwargs: dict[str, Any] | None
    ) -> None:
        """On the first step, and when training and evaluation alternate: stages learn what they will receive."""
        if self._is_prepared():
            return
        for stage in self._local_stages():
            if isinstance(stage, PipelineStage):
                stage._step_inputs = (arg_mbs, kwarg_mbs)
        self._initialize(arg_mbs[0], kwarg_mbs[0], target_mbs[0] if target_mbs else None, loss_kwargs)

    def _set_up(self, args: Any, kwargs: Any, target: Any, loss_kwargs: Any) -> None:
        """Prepares the stages of this rank, given one microbatch, unless they are prepared."""
        before = (self._forward_initialized, self._backward_initialized)
        if self._is_prepared():
            return
        self._forward_initialized = self._backward_initialized = False
        self._forward_initialized, self._backward_initialized = self._initialize_pp_stages(
            self._local_stages(), args, kwargs, target, *before, loss_kwargs=loss_kwargs
        )
        self._check_prepared()

    def _warmup_p2p(self, stages: Sequence[_PipelineStageBase], has_backward: bool, p2p_done: bool) -> None:
        """Opens the connections between neighbours. Stages made by hand agree on the way on how they learn what they receive.

        p2p_done: the connections are open.
        """
        if all(isinstance(stage, PipelineStage) for stage in stages):
            self._ranks_may_share = _inference.agree_on_mode(stages, has_backward, _engine.may_share(self, stages))
        elif not p2p_done:
            _wait_batch_p2p(_batch_p2p([op for stage in stages for op in stage._get_init_p2p_neighbors_ops()]))

    def _initialize_pp_stages(
        self,
        stages: Sequence[_PipelineStageBase],
        args: Any,
        kwargs: dict[str, Any] | None,
        target: Any,
        fwd_initialized: bool,
        bwd_initialized: bool,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> tuple[bool, bool]:
        """Prepares stages for forwards and backwards. Takes and returns what they are prepared for."""
        if fwd_initialized and self._has_backward == bwd_initialized:
            return fwd_initialized, bwd_initialized
        stages = sorted(stages, key=lambda stage: stage.stage_index)
        self._warmup_p2p(stages, self._has_backward, fwd_initialized)
        devices = {torch.device(stage.device) for stage in stages} - {torch.device("cpu")}
        if len({device.type for device in devices}) > 1:
            raise AssertionError(f"All stages must have the same device type, found {sorted(map(str, devices))}")
        accelerator = next(iter(devices)).type if devices else None
        # Running for descriptions must not disturb random numbers.
        with torch.random.fork_rng(devices=list(devices), device_type=accelerator or "cuda"):
            told = None
            for stage in stages:
                told = stage._prepare_forward_infra(
                    self._n_microbatches, args if stage.is_first else told, kwargs, has_backward=self._has_backward
                )
            told = None
            for stage in reversed(stages) if self._has_backward else ():
                told = stage._prepare_backward_infra(
                    self._n_microbatches,
                    loss_fn=self._loss_fn,
                    target=target,
                    received_grad_meta=told,
                    loss_kwargs=loss_kwargs,
                )
        for stage in stages:
            if isinstance(stage, PipelineStage):
                stage._post_metadata_inference_cleanup()
        return True, self._has_backward

    def _check_prepared(self) -> None:
        """Refuses connections between stages that this kind of schedule cannot serve."""

    # Microbatches

    def _check_inputs(
        self,
        arg_mbs: list | None = None,
        kwarg_mbs: list | None = None,
        target_mbs: list | None = None,
        losses: list | None = None,
    ) -> tuple[list, list]:
        for name, microbatches in (("arg_mbs", arg_mbs), ("kwarg_mbs", kwarg_mbs), ("target_mbs", target_mbs)):
            if microbatches is None:
                continue
            if not isinstance(microbatches, list):
                raise TypeError(f"{name} must be a list but got a {type(microbatches)}")
            if len(microbatches) != self._n_microbatches:
                raise ValueError(f"Expecting {self._n_microbatches} {name} but got {len(microbatches)}")
        if losses is not None and not isinstance(losses, list):
            raise TypeError(f"losses must be a list but got a {type(losses)}")
        return (
            [()] * self._n_microbatches if arg_mbs is None else arg_mbs,
            [{}] * self._n_microbatches if kwarg_mbs is None else kwarg_mbs,
        )

    def _split_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[list, list]:
        if not args and not kwargs:
            return [()] * self._n_microbatches, [{}] * self._n_microbatches
        return split_args_kwargs_into_chunks(
            args, kwargs, self._n_microbatches, self._args_chunk_spec, self._kwargs_chunk_spec
        )

    def _split_target(self, target: Any) -> list[Any]:
        """Cuts every tensor of the target; what has no rows goes to every microbatch."""
        parts = self._n_microbatches
        if type(target) is torch.Tensor and target.dim() > 0:
            return list(_split_tensor(target, _TARGET_CHUNK_SPEC, parts))
        leaves, structure = tree_flatten(target)
        columns = [
            _split_tensor(leaf, _TARGET_CHUNK_SPEC, parts)
            if isinstance(leaf, torch.Tensor) and leaf.dim() > 0
            else [leaf] * parts
            for leaf in leaves
        ]
        return [tree_unflatten([column[part] for column in columns], structure) for part in range(parts)]

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        return merge_chunks(output_chunks, self._output_merge_spec)
