"""The stage of a model that was split by tracing: the graph says what goes where."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from ._recv_info import _RecvInfo
from ._stage_base import _PipelineStageBase, as_tuple
from ._tensor_meta import PipeliningMetadataError, _derive_grad_metas, _TensorMeta
from ._utils import PipeInfo


class _PipelineStage(_PipelineStageBase):
    """A stage whose values are known from the trace. Values may skip stages; a value with a gradient has one consumer."""

    def __init__(
        self,
        stage_module: torch.nn.Module,
        stage_index: int,
        pipe_info: PipeInfo,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(stage_module, stage_index, pipe_info.num_stages, device, group)
        self.pipe_info = pipe_info
        calls = [node for node in pipe_info.graph.nodes if node.op == "call_module"]
        if len(calls) != self.num_stages:
            raise PipeliningMetadataError(
                f"Number of submodules in pipe graph {len(calls)} does not match number of stages {self.num_stages}"
            )
        self.node = calls[stage_index]
        self.name = self.node.name
        self.submod_to_stage_index: dict[str, int] = {node.name: index for index, node in enumerate(calls)}
        self._calls = calls
        self._move_submod_to_device()

    def _move_submod_to_device(self) -> None:
        # Parameters without data cannot be moved: the user fills them in later.
        if not any(isinstance(value, FakeTensor) or value.is_meta for value in self.submod.parameters()):
            self.submod.to(self.device)

    def get_stage_index_of_submod(self, submod_name: str) -> int:
        if submod_name not in self.submod_to_stage_index:
            raise PipeliningMetadataError(f"Stage id of {submod_name} not found")
        return self.submod_to_stage_index[submod_name]

    # The graph

    @staticmethod
    def _producer(argument: fx.Node) -> tuple[fx.Node, int]:
        """The stage's call that an argument comes from, and which of its outputs it is."""
        index = 0
        while argument.target is operator.getitem:
            argument, index = argument.args
        if argument.op != "call_module":
            raise PipeliningMetadataError(f"Expecting call_module, got {argument.op}")
        return argument, index

    def _consumers(self, output_index: int) -> list[tuple[int, int]]:
        """(stage, place among its arguments) of every stage that takes an output."""
        found = []
        for stage, call in enumerate(self._calls):
            for place, argument in enumerate(call.args):
                if argument.op != "placeholder" and self._producer(argument) == (self.node, output_index):
                    found.append((stage, place))
        return found

    def _input_slot(self, output_index: int, stage: int) -> int:
        return dict(self._consumers(output_index))[stage]

    def _output_slot(self, input_index: int) -> int:
        return self._producer(self.node.args[input_index])[1]

    def _describe(self, value: Any, what: str) -> _TensorMeta:
        if isinstance(value, DTensor):
            raise PipeliningMetadataError(
                f"{self.log_prefix} DTensor detected in traced pipeline {what}. A traced pipeline cannot pass DTensors on: "
                "use PipelineStage."
            )
        # The trace ran without gradients; in training every floating-point value between stages has one.
        return _TensorMeta(
            value.shape, value.stride(), value.dtype, bool(self.has_backward and value.is_floating_point())
        )

    # Handing over between stages of one rank: the graph tells which value is which.

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        outputs = as_tuple(prev_stage_outputs)
        for info, argument in zip(self.args_recv_info[mb_index], self.node.args, strict=True):
            if not info.is_root_arg:
                info.buffer = outputs[self._producer(argument)[1]].detach()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[torch.Tensor | None, ...], mb_index: int) -> None:
        received = [argument for argument in self._calls[self.stage_index + 1].args if argument.op != "placeholder"]
        for argument, grad in zip(received, next_stage_bwd_outputs, strict=True):
            self.grad_recv_info[mb_index][self._producer(argument)[1]].buffer = grad

    # Preparation

    def _prepare_forward_infra(
        self, num_microbatches: int, args: Any, kwargs: dict[str, Any] | None = None, has_backward: bool = False
    ) -> None:
        self.chunks = num_microbatches
        self.grad_send_info = None
        for chunk in range(num_microbatches):
            self.args_recv_info[chunk] = self._create_act_recv_info()
        infos = self.args_recv_info[0]
        if self.is_first:
            if not isinstance(args, tuple):
                raise AssertionError("First stage requires real tensor args")
            # Keyword arguments come after the positional ones and are not checked.
            self._stage_meta.inputs = tuple(info.tensor_meta for info in infos[: len(args)])
        else:
            self._stage_meta.inputs = tuple(info.tensor_meta for info in infos if not info.is_root_arg)
        self.act_send_info = self._create_act_send_info()

    def _create_act_recv_info(self) -> tuple[_RecvInfo, ...]:
        placeholders = [node for node in self.submod.graph.nodes if node.op == "placeholder"]
        infos = []
        for placeholder, argument in zip(placeholders, self.node.args, strict=True):
            meta = self._describe(placeholder.meta["val"], f"input '{placeholder.name}'")
            if argument.op == "placeholder":
                infos.append(_RecvInfo(f"root_input_{placeholder.name}", None, None, meta, is_root_arg=True))
            else:
                producer, _ = self._producer(argument)
                infos.append(_RecvInfo(producer.name, self.get_stage_index_of_submod(producer.name), None, meta))
        return tuple(infos)

    def _create_act_send_info(self) -> dict[int, list[int | None]]:
        output = next(node for node in self.submod.graph.nodes if node.op == "output")
        values = [leaf.meta["val"] for leaf in tree_leaves(output.args) if isinstance(leaf, fx.Node)]
        self._stage_meta.outputs = tuple(
            self._describe(value, f"output index {index}") for index, value in enumerate(values)
        )
        return {index: [stage for stage, _ in self._consumers(index)] for index in range(len(values))}

    def _prepare_backward_infra(
        self,
        num_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        target: Any = None,
        received_grad_meta: Any = None,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if self._stage_meta.inputs is None:
            raise PipeliningMetadataError(
                f"Stage {self.stage_index}: inputs metadata required for backward inference."
            )
        self._stage_meta.input_grads = _derive_grad_metas(self._stage_meta.inputs)
        self.chunks = num_microbatches
        for chunk in range(num_microbatches):
            self.grad_recv_info[chunk] = self._create_grad_recv_info(self.act_send_info)

    def _create_grad_recv_info(self, act_send_info: dict) -> tuple[_RecvInfo, ...]:
        outputs = self._stage_meta.outputs
        if outputs is None:
            raise PipeliningMetadataError(f"Stage {self.stage_index}: outputs metadata required for grad recv info.")
        infos = []
        grads = _derive_grad_metas(outputs)
        for index, grad in enumerate(grads):
            stages = act_send_info.get(index, [])
            if grad is None or not stages:
                infos.append(
                    _RecvInfo(f"recv_grad_for_{self.stage_index}_none_{index}", self.stage_index + 1, None, None)
                )
                continue
            if len(stages) != 1:
                raise PipeliningMetadataError("Backward of skip connections not supported yet")
            infos.append(_RecvInfo(f"recv_grad_for_{self.stage_index}_from_{stages[0]}", stages[0], None, grad))
        self._stage_meta.output_grads = tuple(info.tensor_meta for info in infos)
        return tuple(infos)


def build_stage(
    stage_module: torch.nn.Module,
    stage_index: int,
    pipe_info: PipeInfo,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
) -> _PipelineStage:
    """A stage from one module of a split model and pipe.info()."""
    return _PipelineStage(stage_module, stage_index, pipe_info, device, group)
