"""How a stage's values come in and go out: from the previous stage and to the next one, by message or handed over."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ._p2p import CONTROL_TAG, flat_view, laid_out, message_tag
from ._recv_info import _RecvInfo
from ._tensor_meta import (
    PipeliningMetadataError,
    TensorMeta,
    _derive_grad_metas,
    _DTensorMeta,
    _make_tensor_from_meta,
    _MeshCache,
    _StageMeta,
    to_local_if_dtensor,
)


class StageMessages:
    """The part of a stage that talks to its neighbours."""

    stage_index: int
    group: dist.ProcessGroup | None
    group_rank: int
    device: Any
    has_backward: bool
    is_first: bool
    is_last: bool
    args_recv_info: dict[int, tuple[_RecvInfo, ...]]
    act_send_info: dict[int, list[int | None]]
    grad_recv_info: dict[int, tuple[_RecvInfo, ...]]
    grad_send_info: list[int | None] | None
    stage_index_to_group_rank: dict[int, int]
    fwd_cache: dict[int, tuple[tuple[Any, ...], list[Any]]]
    bwd_cache: dict[int, tuple[torch.Tensor | None, ...]]
    _stage_meta: _StageMeta
    _mesh_cache: _MeshCache

    def _is_same_rank(self, other_stage: int) -> bool:
        return self.stage_index_to_group_rank[other_stage] == self.group_rank

    def _resolve_peer_global_rank(self, stage_idx: int) -> int:
        group = self.group or dist.distributed_c10d._get_default_group()
        return dist.get_global_rank(group, self.stage_index_to_group_rank[stage_idx])

    def _operation(self, op: Any, tensor: torch.Tensor, stage: int, tag: int) -> dist.P2POp:
        peer = self.stage_index_to_group_rank[stage]
        return dist.P2POp(op, tensor, group=self.group, tag=tag, group_peer=peer)

    # The receiver's numbering of a value: where values skip stages it differs from the sender's.
    def _input_slot(self, output_index: int, stage: int) -> int:
        return output_index

    def _output_slot(self, input_index: int) -> int:
        return input_index

    # Receiving

    def _receive(self, infos: tuple[_RecvInfo, ...], backward: bool, chunk_id: int) -> list[dist.P2POp]:
        operations = []
        for slot, info in enumerate(infos):
            if info.is_root_arg or info.tensor_meta is None:
                continue
            info.buffer = _make_tensor_from_meta(info.tensor_meta, self.device)
            tag = message_tag(backward, self.stage_index, chunk_id, slot)
            operations.append(self._operation(dist.irecv, flat_view(info.buffer), info.source, tag))
        return operations

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._receive(self.args_recv_info[fwd_chunk_id], False, fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if not self.has_backward or self.is_last:
            return []
        return self._receive(self.grad_recv_info[bwd_chunk_id], True, bwd_chunk_id)

    def _drop_buffers(self) -> None:
        for infos in (*self.args_recv_info.values(), *self.grad_recv_info.values()):
            for info in infos:
                info.buffer = None

    def _take(self, info: _RecvInfo) -> torch.Tensor:
        """The received value, which the stage holds no longer than it is used."""
        buffer, info.buffer = info.buffer, None
        meta = info.tensor_meta
        if buffer is None or meta is None:
            raise PipeliningMetadataError(f"Non-root arg '{info.input_name}' has None buffer or tensor_meta")
        if not buffer.is_leaf:
            buffer = buffer.detach()
        if isinstance(meta, _DTensorMeta):
            return meta.wrap(buffer, self._mesh_cache.get_mesh(meta.mesh_cache_key))
        return buffer

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[torch.Tensor, ...]:
        """The received inputs as leaves that gather a gradient if the step needs one."""
        backward = self.has_backward and torch.is_grad_enabled()
        return tuple(
            self._take(info).requires_grad_(backward and info.tensor_meta.requires_grad)
            for info in self.args_recv_info[fwd_chunk_id]
            if not info.is_root_arg
        )

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the outputs; None where none came."""
        return tuple(
            None if info.buffer is None else self._take(info) for info in self.grad_recv_info[bwd_chunk_id]
        )

    # Handing over between stages of one rank

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """Takes the outputs of the previous stage, if it is on this rank, as this one's inputs."""
        outputs = tuple(prev_stage_outputs) if isinstance(prev_stage_outputs, (tuple, list)) else (prev_stage_outputs,)
        for info, tensor in zip(self.args_recv_info[mb_index], outputs, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise AssertionError(f"expected tensor values as outputs from prev stage, got {type(tensor)}")
            if info.is_root_arg:
                raise AssertionError("set_local_fwd_input should only be called on a stage that is not the first")
            info.buffer = to_local_if_dtensor(tensor, detach=True)

    def get_local_bwd_output(self, mb_index: int) -> tuple[torch.Tensor | None, ...]:
        """Gives away the gradients of the inputs, for the previous stage on this rank."""
        if not self.has_backward:
            raise AssertionError("can't steal_bwd_input if this stage doesn't have backward")
        if self.is_first:
            raise AssertionError("can't get bwd output if this stage is first")
        self._check_chunk_id(mb_index)
        return self.bwd_cache.pop(mb_index)

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[torch.Tensor | None, ...], mb_index: int) -> None:
        """Takes the gradients of the next stage's inputs, if it is on this rank, as those of this one's outputs."""
        if not isinstance(next_stage_bwd_outputs, tuple):
            raise AssertionError(f"Expected tuple, got {type(next_stage_bwd_outputs)}")
        if not self.has_backward:
            raise AssertionError("can't set bwd input if this stage doesn't have backward")
        if self.is_last:
            raise AssertionError("can't set bwd input if this stage is last")
        for info, tensor in zip(self.grad_recv_info[mb_index], next_stage_bwd_outputs, strict=True):
            if tensor is None:
                info.buffer = None
            elif not isinstance(tensor, torch.Tensor):
                raise AssertionError(f"expected tensor values as outputs from prev stage, got {type(tensor)}")
            elif info.is_root_arg:
                raise AssertionError("set_local_bwd_input should only be called with non-root RecvInfo")
            else:
                info.buffer = to_local_if_dtensor(tensor)

    # Sending

    def _check_placed(self, what: str, value: torch.Tensor, meta: TensorMeta) -> None:
        """Local parts alone travel, so a DTensor placed differently than described would arrive as another value."""
        found = tuple(value.placements) if isinstance(value, DTensor) else None
        expected = meta.placements if isinstance(meta, _DTensorMeta) else None
        if found != expected:
            raise PipeliningMetadataError(f"{what}: placements mismatch: {expected} vs {found}")

    def _check_sent(self, what: str, tensor: torch.Tensor, meta: TensorMeta) -> None:
        if tensor.shape != meta.shape:
            raise PipeliningMetadataError(f"{what}: shape mismatch: {meta.shape} vs {tensor.shape}")
        if tensor.dtype != meta.dtype:
            raise PipeliningMetadataError(f"{what}: dtype mismatch: {meta.dtype} vs {tensor.dtype}")

    def _sent_meta(self, chunk_id: int, output_index: int) -> TensorMeta | None:
        """How the receiver of an output lays it out; None if this stage does not know."""
        outputs = self._meta_of(chunk_id).outputs
        return None if outputs is None else outputs[output_index]

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        operations = []
        for index, output in enumerate(self.fwd_cache[fwd_chunk_id][0]):
            for stage in self.act_send_info[index]:
                if stage is None:
                    continue
                tensor = to_local_if_dtensor(output, detach=True)
                meta = self._sent_meta(fwd_chunk_id, index)
                if meta is not None:
                    what = f"Stage {self.stage_index} chunk {fwd_chunk_id} output {index} to stage {stage}"
                    self._check_placed(what, output, meta)
                    self._check_sent(what, tensor, meta)
                    tensor = laid_out(tensor, meta)
                tag = message_tag(False, stage, fwd_chunk_id, self._input_slot(index, stage))
                operations.append(self._operation(dist.isend, flat_view(tensor), stage, tag))
        return operations

    def _create_grad_send_info(self, args_recv_info: tuple[_RecvInfo, ...]) -> list[int | None]:
        """Gradients go back to where the inputs came from."""
        return [None if info.is_root_arg else info.source for info in args_recv_info]

    def _get_grad_send_meta(self, input_idx: int, chunk_id: int = 0) -> TensorMeta | None:
        """What the previous stage expects as the gradient of an input; None if it expects none."""
        meta = self._meta_of(chunk_id)
        if meta.input_grads is not None and input_idx < len(meta.input_grads):
            return meta.input_grads[input_idx]
        if meta.inputs is not None and input_idx < len(meta.inputs) and meta.inputs[input_idx] is not None:
            return _derive_grad_metas((meta.inputs[input_idx],))[0]
        raise PipeliningMetadataError(
            f"Stage {self.stage_index}: backward produced gradient for input {input_idx}, "
            "but no metadata is available for the gradient send."
        )

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Gives away the gradients of the inputs as messages. An input that needs one but got none sends zeros."""
        if not self.has_backward or self.is_first:
            return []
        self._check_chunk_id(bwd_chunk_id)
        if self.grad_send_info is None:
            self.grad_send_info = self._create_grad_send_info(self.args_recv_info[0])
        operations = []
        gradients = self.bwd_cache.pop(bwd_chunk_id)
        received = [(index, stage) for index, stage in enumerate(self.grad_send_info) if stage is not None]
        for (index, stage), grad in zip(received, gradients, strict=True):
            meta = self._get_grad_send_meta(index, bwd_chunk_id)
            what = f"Stage {self.stage_index} chunk {bwd_chunk_id} input {index}"
            if meta is None:
                if grad is not None:
                    raise PipeliningMetadataError(
                        f"{what}: backward produced a {type(grad).__name__} gradient, but stage {stage} expects none. "
                        "DTensor grad metadata cannot be derived from the DTensor: give input_grads, or begin with a "
                        "microbatch that produces this gradient."
                    )
                continue
            if grad is None:
                tensor = _make_tensor_from_meta(meta, self.device).zero_()
            else:
                tensor = to_local_if_dtensor(grad)
                self._check_placed(f"{what} gradient to stage {stage}", grad, meta)
                self._check_sent(f"{what} gradient to stage {stage}", tensor, meta)
                tensor = laid_out(tensor, meta)
            tag = message_tag(True, stage, bwd_chunk_id, self._output_slot(index))
            operations.append(self._operation(dist.isend, flat_view(tensor), stage, tag))
        return operations

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """One message each way to each neighbour on another rank: opens the connections before the first step needs them."""
        operations = []
        for neighbour in (self.stage_index - 1, self.stage_index + 1):
            if neighbour not in self.stage_index_to_group_rank or self._is_same_rank(neighbour):
                continue
            for op in (dist.isend, dist.irecv):
                operations.append(self._operation(op, torch.zeros(1, device=self.device), neighbour, CONTROL_TAG))
        return operations
