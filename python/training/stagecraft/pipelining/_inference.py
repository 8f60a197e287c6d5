"""How stages learn, before the first step, what the tensors between them will be.

If every stage was given examples of its inputs and outputs, that is it. Otherwise each stage in turn runs a microbatch of every
distinct size on stand-ins (zeros) and tells the next one what came out. Gradients look like the tensors they belong to; only
for DTensors, whose gradients may be placed differently, a backward runs too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map_only

from ._p2p import CONTROL_TAG, wire_stride
from ._tensor_meta import (
    InferenceMode,
    TensorMeta,
    _DTensorMeta,
    _TensorMeta,
    extract_tensor_meta,
)

if TYPE_CHECKING:
    from ._manual_stage import PipelineStage


_STATIC, _SHARED = 1, 2


def agree_on_mode(stages: Sequence[PipelineStage], has_backward: bool, may_share: bool) -> bool:
    """Sets the mode of all stages: static if every stage of the pipeline can do without running.

    Returns whether all ranks may share an engine. The vote goes through the stages from first to last, the result back; that also
    opens all connections.
    """
    vote = _STATIC | _SHARED
    for stage in stages:
        if not stage.is_first and not stage._is_same_rank(stage.stage_index - 1):
            vote = _receive_vote(stage, stage.stage_index - 1)
        if not stage._can_be_static(has_backward):
            vote &= ~_STATIC
        if not may_share:
            vote &= ~_SHARED
        if not stage.is_last and not stage._is_same_rank(stage.stage_index + 1):
            _send_vote(stage, stage.stage_index + 1, vote)
    for stage in reversed(stages):
        if not stage.is_last and not stage._is_same_rank(stage.stage_index + 1):
            vote = _receive_vote(stage, stage.stage_index + 1)
        stage._inference_mode = InferenceMode.STATIC if vote & _STATIC else InferenceMode.DYNAMIC
        if not stage.is_first and not stage._is_same_rank(stage.stage_index - 1):
            _send_vote(stage, stage.stage_index - 1, vote)
    return bool(vote & _SHARED)


def _send_vote(stage: PipelineStage, to: int, vote: int) -> None:
    tensor = torch.tensor([vote], dtype=torch.int32, device=stage.device)
    dist.send(tensor, group=stage.group, tag=CONTROL_TAG, group_dst=stage.stage_index_to_group_rank[to])


def _receive_vote(stage: PipelineStage, source: int) -> int:
    tensor = torch.zeros(1, dtype=torch.int32, device=stage.device)
    dist.recv(tensor, group=stage.group, tag=CONTROL_TAG, group_src=stage.stage_index_to_group_rank[source])
    return int(tensor.item())


def send_object(stage: PipelineStage, to: int, value: Any) -> None:
    peer = stage.stage_index_to_group_rank[to]
    dist.send_object_list([value], group=stage.group, device=_device(stage), group_dst=peer, use_batch=True)


def receive_object(stage: PipelineStage, source: int) -> Any:
    peer = stage.stage_index_to_group_rank[source]
    received: list[Any] = [None]
    dist.recv_object_list(received, group=stage.group, device=_device(stage), group_src=peer, use_batch=True)
    return received[0]


def _device(stage: PipelineStage) -> torch.device:
    return torch.device(stage.device)


def sizes_of(arg_mbs: Sequence[tuple[Any, ...]]) -> tuple[list[int], tuple[int, ...]]:
    """The first microbatch of each distinct size, and for every microbatch which of those it is like."""
    seen: dict[Any, int] = {}
    first, like = [], []
    for index, args in enumerate(arg_mbs):
        size = tuple((value.shape, value.dtype) for value in tree_leaves(args) if isinstance(value, torch.Tensor))
        if size not in seen:
            seen[size] = len(first)
            first.append(index)
        like.append(seen[size])
    return first, tuple(like)


def stand_in(stage: PipelineStage, value: torch.Tensor | TensorMeta) -> torch.Tensor:
    """A leaf to run a module on: a given tensor cut off from the user's graph, or zeros."""
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    zeros = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=stage.device).zero_()
    if isinstance(value, _DTensorMeta):
        zeros = value.wrap(zeros, stage._mesh_cache.get_mesh(value.mesh_cache_key))
    return zeros.requires_grad_(value.requires_grad and zeros.is_floating_point())


def stand_in_keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    return tree_map_only(torch.Tensor, lambda value: value.detach().requires_grad_(value.requires_grad), kwargs)


def ones_like_meta(stage: PipelineStage, meta: TensorMeta) -> torch.Tensor:
    ones = torch.ones(meta.shape, dtype=meta.dtype, device=stage.device)
    return meta.wrap(ones, stage._mesh_cache.get_mesh(meta.mesh_cache_key)) if isinstance(meta, _DTensorMeta) else ones


def arriving(metas: Sequence[TensorMeta]) -> tuple[TensorMeta, ...]:
    """The outputs of a stage as the next one gets them: strides with gaps or overlaps do not survive a message."""
    return tuple(
        meta
        if isinstance(meta, _DTensorMeta)
        else _TensorMeta(meta.shape, wire_stride(meta.shape, meta.stride), meta.dtype, meta.requires_grad)
        for meta in metas
    )


def gradient_metas(
    inputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
) -> tuple[TensorMeta | None, ...]:
    """What was computed; for a plain input that needs a gradient but got none, one like itself."""
    metas: list[TensorMeta | None] = []
    for value, grad in zip(inputs, grads, strict=True):
        meta = extract_tensor_meta(value)
        if isinstance(meta, _DTensorMeta):
            metas.append(None if grad is None else extract_tensor_meta(grad))
        else:
            metas.append(_TensorMeta(meta.shape, meta.stride, meta.dtype, False) if meta.requires_grad else None)
    return tuple(metas)


@contextmanager
def untouched(module: torch.nn.Module) -> Iterator[None]:
    """Puts buffers and gradients back afterwards: running for descriptions must not show in training."""
    buffers = [
        (owner, name, buffer, buffer.detach().clone(), buffer._version)
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    grads = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, name, buffer, values, version in buffers:
                owner._buffers[name] = buffer
                if buffer._version != version:
                    buffer.copy_(values)
            for parameter, grad in grads:
                parameter.grad = grad
