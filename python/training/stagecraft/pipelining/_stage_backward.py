"""The backward passes of a stage: whole, or the inputs' part now and the weights' part later."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import OptimizedModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from . import _data_parallel
from ._backward import split_backward_input, stage_backward
from ._backward_split import backward_weights

_warned_of_compiled = False


def _cannot_split(module: torch.nn.Module) -> bool:
    """A compiled module has one node for all its backward. Says so once."""
    if not any(isinstance(one, OptimizedModule) for one in module.modules()):
        return False
    global _warned_of_compiled
    if not _warned_of_compiled:
        _warned_of_compiled = True
        warnings.warn("A torch.compile'd module's backward cannot be split: its input part runs all of it.", stacklevel=3)
    return True


class StageBackward:
    """The part of a stage that runs backward."""

    submod: torch.nn.Module
    stage_index: int
    log_prefix: str
    has_backward: bool
    is_first: bool
    is_last: bool
    dw_builder: Callable[[], Callable[..., None]] | None
    fwd_cache: dict[int, tuple[tuple[Any, ...], list[Any]]]
    bwd_cache: dict[int, tuple[torch.Tensor | None, ...]]
    backward_state: dict[int, tuple[Any, ...]]
    dw_runner: dict[int, Callable[..., None]]
    output_chunks: list[Any]
    _output_position: dict[int, int]
    _runtime_validate: bool

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[torch.Tensor | None, ...], list[dict[str, Any]] | None]:
        """Runs a "full", "input" or "weight" pass inside what a data parallel wrapper needs around it."""
        outputs = bwd_kwargs["stage_output"]
        with _data_parallel.around_backward(self.submod, last_backward, outputs):
            if backward_type == "full":
                return stage_backward(outputs, bwd_kwargs["output_grads"], bwd_kwargs["input_values"]), None
            if backward_type == "input":
                return split_backward_input(outputs, bwd_kwargs["output_grads"], bwd_kwargs["input_values"], None)
            if backward_type == "weight":
                backward_weights(bwd_kwargs["param_groups"])
                return (), None
        raise RuntimeError(f"Unknown backward type: {backward_type}")

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Runs one microbatch backward, once. Does nothing in a step without backwards.

        With full_backward=False the weights' gradients wait for backward_weight_one_chunk, which has to follow. last_backward:
        data parallel wrappers may reduce gradients.
        """
        if not self.has_backward:
            return
        self._check_chunk_id(bwd_chunk_id)
        outputs, inputs = self.fwd_cache.pop(bwd_chunk_id)
        passing: dict[str, Any] = {"input_values": inputs}
        if self.is_last:
            if loss is None:
                raise RuntimeError(f"{self.log_prefix} is the last stage, but has no loss to run chunk {bwd_chunk_id} from")
            passing.update(stage_output=loss, output_grads=None)
        else:
            grads = self._retrieve_recv_grads(bwd_chunk_id)
            if self._runtime_validate:
                self._validate_stage_tensors(
                    f"Stage {self.stage_index} backward input (output_grads)",
                    self._meta_of(bwd_chunk_id).output_grads,
                    grads,
                )
            passing.update(stage_output=outputs, output_grads=grads)

        grads_input = self._run_backward(bwd_chunk_id, passing, full_backward, last_backward)
        if not self.is_first:
            if self._runtime_validate:
                self._validate_stage_tensors(
                    f"Stage {self.stage_index} backward output (input_grads)",
                    self._meta_of(bwd_chunk_id).input_grads,
                    grads_input,
                )
            self.bwd_cache[bwd_chunk_id] = grads_input
        if bwd_chunk_id in self._output_position:
            # Kept for the user, who needs the values; the graph behind them is done with.
            position = self._output_position[bwd_chunk_id]
            kept = self.output_chunks[position]
            self.output_chunks[position] = (
                kept.detach() if isinstance(kept, torch.Tensor) else tree_map_only(torch.Tensor, torch.Tensor.detach, kept)
            )

    def _run_backward(
        self, chunk_id: int, passing: dict[str, Any], full_backward: bool, last_backward: bool
    ) -> tuple[torch.Tensor | None, ...]:
        if self.dw_builder is not None:
            grads, _ = self.backward_maybe_with_nosync("full", passing, last_backward)
            runner = self.dw_builder()
            if full_backward:
                runner()
            else:
                self.dw_runner[chunk_id] = runner
            return grads
        if full_backward:
            return self.backward_maybe_with_nosync("full", passing, last_backward)[0]
        self.dw_runner[chunk_id] = _finished_by_state
        if self.is_first:
            # Nothing waits for gradients of the first stage's inputs: all of it is put off.
            self.backward_state[chunk_id] = ("full", passing)
            return ()
        if _cannot_split(self.submod):
            self.backward_state[chunk_id] = ("nothing", None)
            return self.backward_maybe_with_nosync("full", passing, last_backward)[0]
        grads, groups = self.backward_maybe_with_nosync("input", passing, last_backward)
        # DDP looks at the outputs once more when it reduces; otherwise the graph above the weights can go.
        outputs = passing["stage_output"] if isinstance(self.submod, DistributedDataParallel) else None
        self.backward_state[chunk_id] = ("weight", {"stage_output": outputs, "param_groups": groups})
        return grads

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Runs the weights' part of a microbatch whose inputs' part ran before."""
        if not self.has_backward:
            return
        if bwd_chunk_id not in self.dw_runner:
            raise AssertionError(
                f"{self.log_prefix} Attempted to run backward_weight_one_chunk for chunk {bwd_chunk_id}"
                " without first calling `backward_one_chunk(full_backward=False)`"
            )
        runner = self.dw_runner.pop(bwd_chunk_id)
        if self.dw_builder is not None:
            runner()
            return
        kind, passing = self.backward_state.pop(bwd_chunk_id)
        if kind != "nothing":
            self.backward_maybe_with_nosync(kind, passing, last_backward)


def _finished_by_state() -> None:
    """Stands in dw_runner for a weight part that backward_state describes."""
