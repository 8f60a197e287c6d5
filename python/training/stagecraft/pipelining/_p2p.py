"""Messages between ranks over torch.distributed: how they are posted, told apart and laid out.

Tests replace functions of torch.distributed, so every call goes through the module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from ._tensor_meta import TensorMeta

# Tags tell the messages of a pair of ranks apart, so that they may be received in any order, and apart from the user's own
# (whose default is 0). Transports that ignore tags (NCCL) pair messages in order.
_OURS = 1 << 30
_STAGES, _MICROBATCHES, _VALUES = 1 << 9, 1 << 12, 1 << 8
CONTROL_TAG = _OURS - 1


def message_tag(backward: bool, stage: int, microbatch: int, value: int) -> int:
    """The tag of the value-th input (or gradient of an output, if backward) that a stage receives for a microbatch."""
    tag = _OURS | (backward << 29)
    return tag | ((stage % _STAGES) << 20) | ((microbatch % _MICROBATCHES) << 8) | (value % _VALUES)


def has_tags(group: dist.ProcessGroup | None) -> bool:
    return dist.get_backend(group) in ("gloo", "mpi")


def _batch_p2p(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
    """Posts messages. Sends alone and receives alone go one by one, so that none waits for another; a mix goes as one batch."""
    if not p2p_ops:
        return []
    kinds = {op.op for op in p2p_ops}
    if kinds == {dist.isend}:
        return [dist.isend(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer) for op in p2p_ops]
    if kinds == {dist.irecv}:
        return [dist.irecv(op.tensor, group=op.group, tag=op.tag, group_src=op.group_peer) for op in p2p_ops]
    return dist.batch_isend_irecv(p2p_ops)


def _sorted_batch_p2p(p2p_ops: list[dist.P2POp], desc: str | None = None) -> dict[int, list[dist.Work]]:
    """Posts one batch per peer, peers ascending: with skip connections all ranks then agree on an order."""
    by_peer: dict[int, list[dist.P2POp]] = defaultdict(list)
    for op in p2p_ops:
        by_peer[op.peer].append(op)
    return {peer: _batch_p2p(by_peer[peer], desc) for peer in sorted(by_peer)}


def _wait_batch_p2p(work: Iterable[dist.Work]) -> None:
    for one in work:
        one.wait()


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill their memory without gaps and overlaps, in whatever order of dimensions."""
    expected = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as a contiguous tensor: the form in which it travels. Copies only if there are gaps or overlaps."""
    if isinstance(tensor, AsyncCollectiveTensor):
        tensor = tensor.wait()
    if tensor.is_contiguous():
        return tensor
    if not _is_dense(tensor.shape, tensor.stride()):
        return tensor.contiguous()
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), -tensor.size(dim)))
    return tensor.permute(order)


def wire_stride(shape: torch.Size, stride: Sequence[int]) -> tuple[int, ...]:
    """The stride with which a tensor of that stride arrives."""
    return tuple(stride) if _is_dense(shape, stride) else torch.empty(shape, device="meta").stride()


def laid_out(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """The tensor in the layout that the receiver expects."""
    if tensor.stride() == meta.stride:
        return tensor
    expected = torch.empty_strided(meta.shape, meta.stride, dtype=tensor.dtype, device=tensor.device)
    return expected.copy_(tensor)
