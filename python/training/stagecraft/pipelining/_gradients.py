"""Keeps scaling exact: only what a step adds to the gradients is divided, and each gradient once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from ._stage_base import _PipelineStageBase


class StepGradients:
    """Moves gradients of earlier steps aside and adds them back when a stage has scaled its own."""

    def __init__(self) -> None:
        self._parameters: dict[int, list[torch.nn.Parameter]] = {}
        self._kept: dict[int, tuple[torch.nn.Parameter, torch.Tensor, bool]] = {}
        self._users: Counter[int] = Counter()

    def begin(self, stages: Sequence[_PipelineStageBase], scaled: bool) -> None:
        self.restore()
        if not scaled:
            return
        for stage in stages:
            if not isinstance(stage.submod, torch.nn.Module):
                continue
            # DDP keeps gradients inside its own buckets: they have to stay where they are.
            in_place = isinstance(stage.submod, DistributedDataParallel)
            parameters = list(stage.submod.parameters())
            self._parameters[stage.stage_index] = parameters
            for parameter in parameters:
                self._users[id(parameter)] += 1
                if parameter.grad is not None and id(parameter) not in self._kept:
                    grad = parameter.grad
                    self._kept[id(parameter)] = (parameter, grad.clone() if in_place else grad, in_place)
                    if in_place:
                        grad.zero_()
                    else:
                        parameter.grad = None

    def reduce(self, stage: _PipelineStageBase, factor: int) -> None:
        """Lets a stage reduce and scale. A weight that another stage of this rank still works on is scaled with the last."""
        parameters = self._parameters.pop(stage.stage_index, [])
        self._users.subtract(id(parameter) for parameter in parameters)
        unfinished = [(parameter, parameter.grad) for parameter in parameters if self._users[id(parameter)] > 0]
        for parameter, _ in unfinished:
            parameter.grad = None
        stage.perform_reduce_grad(factor)
        for parameter, grad in unfinished:
            parameter.grad = grad
        for parameter in parameters:
            if self._users[id(parameter)] <= 0:
                self._add_back(id(parameter))

    def end(self) -> None:
        """Adds back what no reduction has (a table without REDUCE_GRAD does not scale)."""
        for key in list(self._kept):
            self._add_back(key)
        self._parameters.clear()
        self._users.clear()

    def restore(self) -> None:
        """After a failure: gradients are again what they were before the step, where they had been moved aside."""
        for parameter, grad, _ in self._kept.values():
            parameter.grad = grad
        self._kept.clear()
        self._parameters.clear()
        self._users.clear()

    def _add_back(self, key: int) -> None:
        if key not in self._kept:
            return
        parameter, kept, in_place = self._kept.pop(key)
        if parameter.grad is None:
            parameter.grad = kept
        elif in_place:
            parameter.grad.add_(kept)
        else:
            parameter.grad = kept.add_(parameter.grad)
