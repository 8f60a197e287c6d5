"""The stage that users make from a module of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import _inference
from ._data_parallel import around_forward, fsdp_modules
from ._metadata_checks import (
    validate_and_normalize_to_tuple,
    validate_static_arg_grad_correspondence,
    validate_tensors_metadata,
)
from ._recv_info import _RecvInfo
from ._stage_base import _PipelineStageBase
from ._tensor_meta import (
    GetMeshCallback,
    InferenceMode,
    PipeliningMetadataError,
    TensorMeta,
    _derive_grad_metas,
    _DTensorMeta,
    _MeshCache,
    _StageBackwardMeta,
    _StageForwardMeta,
    _StageMeta,
    _TensorMeta,
    extract_tensor_metas,
)


def _in_rows(meta: TensorMeta) -> TensorMeta:
    """The description of the contiguous tensor of the same shape."""
    stride = torch.empty(meta.shape, device="meta").stride()
    return meta if isinstance(meta, _DTensorMeta) else _TensorMeta(meta.shape, stride, meta.dtype, meta.requires_grad)


class PipelineStage(_PipelineStageBase):
    """A module as one stage of a pipeline whose stages follow each other.

    input_args and output_args are examples of one microbatch's inputs and outputs; with them (and, for DTensors, input_grads
    and output_grads) on every stage nothing is run to find out. get_mesh finds the mesh of a DTensor that arrives.
    dw_builder: see backward_one_chunk; it returns a function that finishes the weights' gradients of one microbatch.
    """

    def __init__(
        self,
        submodule: torch.nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        input_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        input_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        group: dist.ProcessGroup | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        get_mesh: GetMeshCallback | None = None,
    ) -> None:
        super().__init__(submodule, stage_index, num_stages, device, group, dw_builder)
        self._mesh_cache = _MeshCache(get_mesh)
        self._inference_mode: InferenceMode | None = None
        # Microbatches of different sizes: one description each, and for every microbatch which.
        self._sizes: list[_StageMeta] = []
        self._size_of: tuple[int, ...] = ()
        # All microbatches of the step that prepares the stage.
        self._step_inputs: tuple[list[tuple], list[dict]] | None = None
        # Inputs and outputs of the run for descriptions, for its backward.
        self._ran: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = []

        inputs = validate_and_normalize_to_tuple(input_args)
        outputs = validate_and_normalize_to_tuple(output_args)
        in_grads = validate_and_normalize_to_tuple(input_grads, allow_none=True)
        out_grads = validate_and_normalize_to_tuple(output_grads, allow_none=True)
        self._user_meta = _StageMeta(
            extract_tensor_metas(inputs),
            extract_tensor_metas(outputs),
            extract_tensor_metas(in_grads, allow_none=True),
            extract_tensor_metas(out_grads, allow_none=True),
        )
        for values in (inputs, outputs, in_grads, out_grads):
            self._mesh_cache.update_from_tensors(values or ())
        if self._user_meta.has_dtensors():
            if inputs and in_grads:
                validate_static_arg_grad_correspondence(stage_index, inputs, in_grads, is_input=True)
            if outputs and out_grads:
                validate_static_arg_grad_correspondence(stage_index, outputs, out_grads, is_input=False)

    def _meta_of(self, chunk_id: int) -> _StageMeta:
        return self._sizes[self._size_of[chunk_id]] if self._size_of else self._stage_meta

    def _sent_meta(self, chunk_id: int, output_index: int) -> TensorMeta | None:
        meta = super()._sent_meta(chunk_id, output_index)
        # Examples given for both ends need not agree on strides.
        return _in_rows(meta) if meta is not None and self._inference_mode is InferenceMode.STATIC else meta

    def _can_be_static(self, has_backward: bool) -> bool:
        if self._step_inputs is not None and self.is_first and len(_inference.sizes_of(self._step_inputs[0])[0]) > 1:
            return False
        return not InferenceMode.needs_dynamic(self._user_meta, has_backward)

    # Forward

    def _prepare_forward_infra(
        self, num_microbatches: int, args: Any, kwargs: dict[str, Any] | None = None, has_backward: bool = False
    ) -> _StageForwardMeta | None:
        if self._inference_mode is None:
            raise PipeliningMetadataError(f"Stage {self.stage_index}: inference mode not set. Run warmup vote protocol first.")
        self.chunks = num_microbatches
        self.grad_send_info = None
        result = None
        if self._inference_mode is InferenceMode.DYNAMIC:
            result = self._forward_metadata_inference(args, kwargs, has_backward)
            self._validate_inferred_metadata()
        else:
            self._stage_meta.inputs, self._stage_meta.outputs = self._user_meta.inputs, self._user_meta.outputs
            self._sizes, self._size_of = [], ()
        self._set_up_forward(num_microbatches)
        return result

    def _set_up_forward(self, num_microbatches: int) -> None:
        previous = self.stage_index - 1
        for chunk in range(num_microbatches):
            inputs = self._meta_of(chunk).inputs
            if inputs is None or self._meta_of(chunk).outputs is None:
                raise PipeliningMetadataError(f"Stage {self.stage_index}: inputs metadata required for recv info.")
            if self.is_first:
                self.args_recv_info[chunk] = tuple(
                    _RecvInfo(f"root_input_{index}", None, None, meta, is_root_arg=True) for index, meta in enumerate(inputs)
                )
            else:
                name = f"recv_for_{self.stage_index}_from_{previous}"
                static = self._inference_mode is InferenceMode.STATIC
                self.args_recv_info[chunk] = tuple(
                    _RecvInfo(name, previous, None, _in_rows(meta) if static else meta) for meta in inputs
                )
        next_stage = [] if self.is_last else [self.stage_index + 1]
        self.act_send_info = {index: list(next_stage) for index in range(len(self._stage_meta.outputs))}

    def _to_tensor(self, arg: torch.Tensor | TensorMeta) -> torch.Tensor:
        """A leaf on the stage's device: the given tensor cut off from the user's graph, or zeros of that description."""
        if not isinstance(arg, (torch.Tensor, _TensorMeta)):
            raise PipeliningMetadataError(f"Unsupported type {type(arg)} for _to_tensor: {arg}")
        return _inference.stand_in(self, arg)

    def _ones_from_metadata(self, meta: TensorMeta) -> torch.Tensor:
        return _inference.ones_like_meta(self, meta)

    def _compute_outputs(self, *args: torch.Tensor, module: torch.nn.Module, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    def _forward_metadata_inference(
        self, args: Any, kwargs: dict[str, Any] | None = None, has_backward: bool = False
    ) -> _StageForwardMeta | None:
        """Runs one microbatch of each size. Returns what the next stage needs to know, if it is on this rank."""
        inputs, firsts = self._inference_inputs(args)
        kwarg_mbs = self._step_inputs[1] if self._step_inputs is not None else [kwargs or {}]
        self._sizes, self._ran = [], []
        for tensors, first in zip(inputs, firsts, strict=True):
            keywords = _inference.stand_in_keywords(kwarg_mbs[first])
            grad_mode = torch.enable_grad() if has_backward else torch.no_grad()
            with _inference.untouched(self.submod), around_forward(self.submod), grad_mode:
                output = self._compute_outputs(*tensors, module=self.submod, **keywords)
            outputs = self._described_outputs(output)
            self._sizes.append(_StageMeta(extract_tensor_metas(tensors), extract_tensor_metas(outputs)))
            if has_backward and self._sizes[-1].has_dtensors():
                self._ran.append((tensors, outputs))
        self._stage_meta.inputs, self._stage_meta.outputs = self._sizes[0].inputs, self._sizes[0].outputs
        metas = tuple(_inference.arriving(size.outputs) for size in self._sizes)
        told = _StageForwardMeta(metas[0], metas, self._size_of)
        if self.is_last or self._is_same_rank(self.stage_index + 1):
            return told
        _inference.send_object(self, self.stage_index + 1, told)
        return None

    def _inference_inputs(self, args: Any) -> tuple[list[tuple[torch.Tensor, ...]], list[int]]:
        """Inputs to run on, one set per size, and a microbatch of each size."""
        if self.is_first:
            if args is None or isinstance(args, _StageForwardMeta):
                raise PipeliningMetadataError(
                    f"Stage {self.stage_index}: First stage requires real tensors, got {type(args).__name__}."
                )
            arg_mbs = self._step_inputs[0] if self._step_inputs is not None else [args]
            firsts, self._size_of = _inference.sizes_of(arg_mbs)
            if len(firsts) == 1:
                self._size_of = ()
            chosen = [validate_and_normalize_to_tuple(arg_mbs[first]) for first in firsts]
            for values in chosen:
                self._mesh_cache.update_from_tensors(values)
        else:
            told = args
            if not self._is_same_rank(self.stage_index - 1):
                told = _inference.receive_object(self, self.stage_index - 1)
            if not isinstance(told, _StageForwardMeta):
                raise PipeliningMetadataError(
                    f"Stage {self.stage_index}: Expected _StageForwardMeta from the previous stage, got {type(told).__name__}."
                )
            chosen = list(told.variants or (told.forward_metas,))
            self._size_of = told.variant_of
            firsts = [self._size_of.index(size) for size in range(len(chosen))] if self._size_of else [0]
        return [tuple(_inference.stand_in(self, value) for value in values) for values in chosen], firsts

    def _described_outputs(self, output: Any) -> tuple[torch.Tensor, ...]:
        try:
            outputs = validate_and_normalize_to_tuple(output)
        except PipeliningMetadataError:
            if not self.is_last:
                raise
            outputs = ()  # The last stage's output goes to the loss and the user: it may be anything.
        if outputs is None:
            raise PipeliningMetadataError(
                f"Stage {self.stage_index}: output metadata is required for forward inference."
            )
        return outputs

    # Backward

    def _prepare_backward_infra(
        self,
        num_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        target: Any = None,
        received_grad_meta: _StageBackwardMeta | None = None,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> _StageBackwardMeta | None:
        result = None
        if self._inference_mode is InferenceMode.DYNAMIC:
            result = self._backward_metadata_inference(loss_fn, target, received_grad_meta, loss_kwargs)
            self._validate_inferred_metadata()
        else:
            meta = self._stage_meta
            if meta.inputs is None or meta.outputs is None:
                raise PipeliningMetadataError(
                    f"Stage {self.stage_index}: input and output metadata is required for backward inference."
                )
            meta.input_grads = self._user_meta.input_grads if meta.has_dtensors() else None
            meta.output_grads = self._user_meta.output_grads if meta.has_dtensors() else None
            if meta.input_grads is None:
                meta.input_grads = _derive_grad_metas(tuple(map(_in_rows, meta.inputs)))
            if meta.output_grads is None:
                meta.output_grads = _derive_grad_metas(tuple(map(_in_rows, meta.outputs)))
        for chunk in range(num_microbatches):
            self.grad_recv_info[chunk] = self._grad_recv_info(self.act_send_info, self._meta_of(chunk))
        return result

    def _backward_metadata_inference(
        self,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        target: Any = None,
        received_grad_meta: _StageBackwardMeta | None = None,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> _StageBackwardMeta | None:
        """Describes gradients. Neighbours tell each other only where DTensors pass between them."""
        ran, self._ran = self._ran, []
        told = None
        if not self.is_last and self._crosses(self._stage_meta.outputs):
            told = received_grad_meta
            if not self._is_same_rank(self.stage_index + 1):
                told = _inference.receive_object(self, self.stage_index + 1)
            if not isinstance(told, _StageBackwardMeta):
                raise PipeliningMetadataError(
                    f"Stage {self.stage_index}: Expected _StageBackwardMeta from the next stage, got {type(told).__name__}."
                )
        for index, size in enumerate(self._sizes):
            if not self.is_last:
                size.output_grads = told.variants[index] if told else _derive_grad_metas(_inference.arriving(size.outputs))
            if size.has_dtensors():
                size.input_grads = self._run_for_gradients(ran[index], size, loss_fn, target, loss_kwargs)
            else:
                size.input_grads = _derive_grad_metas(size.inputs)
        first = self._sizes[0]
        self._stage_meta.input_grads, self._stage_meta.output_grads = first.input_grads, first.output_grads
        result = _StageBackwardMeta(first.input_grads, tuple(size.input_grads for size in self._sizes))
        if self.is_first or not self._crosses(self._stage_meta.inputs) or self._is_same_rank(self.stage_index - 1):
            return result
        _inference.send_object(self, self.stage_index - 1, result)
        return None

    @staticmethod
    def _crosses(metas: tuple[TensorMeta, ...] | None) -> bool:
        return any(isinstance(meta, _DTensorMeta) for meta in metas or ())

    def _run_for_gradients(
        self, ran: Any, size: _StageMeta, loss_fn: Any, target: Any, loss_kwargs: dict[str, Any] | None
    ) -> tuple[TensorMeta | None, ...]:
        inputs, outputs = ran
        with _inference.untouched(self.submod):
            if self.is_last:
                if loss_fn is None or target is None:
                    raise PipeliningMetadataError(
                        f"Stage {self.stage_index}: loss_fn and target required for last stage"
                    )
                value = outputs[0] if len(outputs) == 1 else outputs
                seeds = [loss_fn(value, _inference.stand_in_keywords({"target": target})["target"], **(loss_kwargs or {}))]
                seed_grads = None
            else:
                seeds, seed_grads = [], []
                for index, (output, meta) in enumerate(zip(outputs, size.output_grads, strict=True)):
                    if output.requires_grad and meta is not None:
                        seeds.append(output)
                        seed_grads.append(_inference.ones_like_meta(self, meta))
                    elif meta is not None:
                        raise PipeliningMetadataError(
                            f"Stage {self.stage_index}: output {index} requires_grad=False, but output_grads metadata is "
                            f"provided: {meta}."
                        )
            grads = self._compute_input_grads(seeds, list(inputs), seed_grads)
        return _inference.gradient_metas(inputs, grads)

    def _compute_input_grads(
        self, outputs: list[torch.Tensor], all_fwd_inputs: list[torch.Tensor], grad_outputs: Any = None
    ) -> tuple[torch.Tensor | None, ...]:
        wanted = [index for index, value in enumerate(all_fwd_inputs) if value.requires_grad]
        grads: list[torch.Tensor | None] = [None] * len(all_fwd_inputs)
        if outputs and wanted:
            inputs = [all_fwd_inputs[index] for index in wanted]
            found = torch.autograd.grad(outputs, inputs, grad_outputs, allow_unused=True)
            for index, grad in zip(wanted, found, strict=True):
                grads[index] = grad
        return tuple(grads)

    def _create_grad_recv_info(self, act_send_info: dict) -> tuple[_RecvInfo, ...]:
        return self._grad_recv_info(act_send_info, self._stage_meta)

    def _grad_recv_info(self, act_send_info: dict, meta: _StageMeta) -> tuple[_RecvInfo, ...]:
        if self.is_last:
            return ()
        if meta.output_grads is None:
            raise PipeliningMetadataError(
                f"Stage {self.stage_index}: output_grads metadata is required for creating grad recv info."
            )
        return tuple(
            _RecvInfo(f"recv_grad_for_{self.stage_index}_from_{stages[0]}", stages[0], None, meta.output_grads[index])
            for index, stages in act_send_info.items()
        )

    def _validate_inferred_metadata(self) -> None:
        """What the user gave must not contradict what was found. Gradients of plain tensors may have any stride."""
        stage = f"Stage {self.stage_index}"
        user, found = self._user_meta, self._stage_meta
        for name in ("inputs", "outputs", "input_grads", "output_grads"):
            given, inferred = getattr(user, name), getattr(found, name)
            if given and inferred:
                if name.endswith("grads"):
                    given = tuple(meta and _in_rows(meta) for meta in given)
                    inferred = tuple(meta and _in_rows(meta) for meta in inferred)
                validate_tensors_metadata(f"{stage} {name[:-1]}", given, inferred)

    def _post_metadata_inference_cleanup(self) -> None:
        """Lets go of the run's tensors; FSDP gathered weights for it."""
        self._ran = []
        self._step_inputs = None
        for module in fsdp_modules(self.submod):
            module.reshard()
