"""A stage: a module, its place in the pipeline, and what it holds between the actions of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import _data_parallel
from ._stage_backward import StageBackward
from ._stage_messages import StageMessages
from ._debug import map_debug_info
from ._metadata_checks import validate_tensors_metadata
from ._recv_info import _RecvInfo
from ._tensor_meta import PipeliningMetadataError, TensorMeta, _MeshCache, _StageMeta


def as_tuple(output: Any) -> tuple[Any, ...]:
    """A module's output as the values that travel on: one value, or those of a tuple or list."""
    if type(output) is tuple:
        return output
    return tuple(output) if type(output) is list else (output,)


class _PipelineStageBase(StageMessages, StageBackward, ABC):
    """What all stages share. A microbatch goes through

    get_fwd_recv_ops or set_local_fwd_input -> forward_one_chunk -> get_fwd_send_ops
    get_bwd_recv_ops or set_local_bwd_input -> backward_one_chunk [-> backward_weight_one_chunk] -> get_bwd_send_ops
    """

    def __init__(
        self,
        submodule: torch.nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= stage_index < num_stages:
            raise ValueError(f"Stage index {stage_index} is out of range of {num_stages}")
        self.submod = submodule
        self.stage_index = stage_index
        self.num_stages = num_stages
        self.device = device
        self.group = group
        self.dw_builder = dw_builder
        self.log_prefix = f"[Stage {stage_index}]"

        self.group_rank = dist.get_rank(group)
        self.group_size = dist.get_world_size(group)
        if self.group_size > num_stages:
            raise RuntimeError(
                f"Pipeline group size {self.group_size} cannot be larger than number of stages {num_stages}"
            )
        # A schedule replaces this map if it places stages differently.
        self.stage_index_to_group_rank: dict[int, int] = {i: i % self.group_size for i in range(num_stages)}

        # Set by the schedule: number of microbatches, and whether a step runs backwards.
        self.chunks: int | None = None
        self.has_backward = False

        # What comes in from where and goes out to where; inputs and gradients per microbatch, outputs by index.
        self.args_recv_info: dict[int, tuple[_RecvInfo, ...]] = {}
        self.act_send_info: dict[int, list[int | None]] = {}
        self.grad_recv_info: dict[int, tuple[_RecvInfo, ...]] = {}
        self.grad_send_info: list[int | None] | None = None
        self._stage_meta = _StageMeta()
        self._mesh_cache = _MeshCache()
        self._runtime_validate = dist.get_debug_level() == dist.DebugLevel.DETAIL

        # Per microbatch in flight: outputs and received inputs; gradients of the inputs; what the weight part needs.
        self.fwd_cache: dict[int, tuple[tuple[Any, ...], list[Any]]] = {}
        self.bwd_cache: dict[int, tuple[torch.Tensor | None, ...]] = {}
        self.backward_state: dict[int, tuple[Any, ...]] = {}
        self.dw_runner: dict[int, Callable[..., None]] = {}
        # The last stage's outputs in the order in which they came, until the next step.
        self.output_chunks: list[Any] = []
        self._output_position: dict[int, int] = {}

    @property
    def has_backward(self) -> bool:
        return self._has_backward

    @has_backward.setter
    def has_backward(self, has_backward: bool) -> None:
        self._has_backward = has_backward

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == self.num_stages - 1

    @abstractmethod
    def _prepare_forward_infra(
        self, num_microbatches: int, args: Any, kwargs: dict[str, Any] | None = None, has_backward: bool = False
    ) -> Any:
        """Fills args_recv_info and act_send_info. Returns what the next stage, if on this rank, gets as args."""

    @abstractmethod
    def _prepare_backward_infra(
        self,
        num_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        target: Any = None,
        received_grad_meta: Any = None,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Fills grad_recv_info. Returns what the previous stage, if on this rank, gets as received_grad_meta."""

    @abstractmethod
    def _create_grad_recv_info(self, act_send_info: dict) -> tuple[_RecvInfo, ...]:
        """What comes back for the outputs of one microbatch."""

    def _meta_of(self, chunk_id: int) -> _StageMeta:
        """Descriptions of a microbatch's values."""
        return self._stage_meta

    def _check_chunk_id(self, chunk_id: int) -> None:
        if self.chunks is None:
            raise RuntimeError("Attempted to access chunk_id before chunks have been configured.")
        if chunk_id >= self.chunks:
            raise RuntimeError(f"Chunk id {chunk_id} is out of range [0, {self.chunks})")

    def _validate_stage_tensors(
        self, desc: str, expected: tuple[TensorMeta | None, ...] | None, actual: tuple[Any, ...]
    ) -> None:
        if expected is None:
            raise PipeliningMetadataError(f"{desc}: no metadata available")
        validate_tensors_metadata(desc, expected, actual)

    def clear_runtime_states(self) -> None:
        """Forgets the last step, also one that failed halfway."""
        self.fwd_cache.clear()
        self.bwd_cache.clear()
        self.backward_state.clear()
        self.dw_runner.clear()
        self.output_chunks.clear()
        self._output_position.clear()
        self._drop_buffers()

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        with _data_parallel.around_forward(self.submod):
            return self.submod(*args, **kwargs)

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,
    ) -> Any:
        """Runs the module on one microbatch. Only the first stage uses args; kwargs reach any stage. Returns the output."""
        inputs = args if self.is_first else self._retrieve_recv_activations(fwd_chunk_id)
        kwargs = kwargs or {}
        if self._runtime_validate:
            self._validate_stage_tensors(
                f"Stage {self.stage_index} forward inputs", self._meta_of(fwd_chunk_id).inputs, inputs
            )
        try:
            output = self.forward_maybe_with_nosync(*inputs, **kwargs)
        except Exception as error:
            raise RuntimeError(
                f"{self.log_prefix} failed to run forward:\n"
                f"  args: {map_debug_info(inputs)}\n  kwargs: {map_debug_info(kwargs)}"
            ) from error
        outputs = as_tuple(output)
        if self.is_last and save_forward_output:
            self._output_position[fwd_chunk_id] = len(self.output_chunks)
            self.output_chunks.append(output)
        # What the user gave keeps its gradient in .grad, so only received inputs are remembered.
        self.fwd_cache[fwd_chunk_id] = (outputs, [] if self.is_first else list(inputs))
        if self._runtime_validate and not self.is_last:
            self._validate_stage_tensors(
                f"Stage {self.stage_index} forward outputs", self._meta_of(fwd_chunk_id).outputs, outputs
            )
        return output

    def _sort_outputs(self) -> None:
        """Puts output_chunks into the order of the microbatches."""
        order = list(self._output_position)
        if order != sorted(order):
            self.output_chunks[:] = [self.output_chunks[self._output_position[chunk]] for chunk in sorted(order)]
            self._output_position = {chunk: position for position, chunk in enumerate(sorted(order))}

    def scale_grads(self, grad_scale_factor: int) -> None:
        """Divides the gradients, once per step: with a loss that averages, by the number of microbatches."""
        if grad_scale_factor != 1:
            for parameter in self.submod.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(grad_scale_factor)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Ends the backwards of a step: data parallel wrappers reduce, then the gradients are scaled."""
        _data_parallel.reduce_gradients(self.submod)
        self.scale_grads(grad_scale_factor)
