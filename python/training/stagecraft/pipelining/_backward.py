"""Runs the backward pass of a stage, whole or split into the inputs' and the weights' part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ._backward_split import backward_inputs, backward_weights
from ._debug import map_debug_info

__all__ = ["stage_backward", "stage_backward_input", "stage_backward_weight"]


def _failure(what: str, outputs: Any, grads: Any, inputs: Any) -> str:
    return (
        f"Failed to run {what}:\n"
        f"  Stage output: {map_debug_info(outputs)}\n"
        f"  Output gradient: {map_debug_info(grads)}\n"
        f"  Input: {map_debug_info(inputs)}"
    )


def _needs_grad(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad or tensor.grad_fn is not None


def _pairs(output: Any, grad: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Every tensor in a structure of outputs that needs a gradient, with its gradient from the like structure."""
    if isinstance(output, torch.Tensor):
        if _needs_grad(output):
            if not isinstance(grad, (torch.Tensor, type(None))):
                raise AssertionError(f"Expected Tensor or None gradient but got {type(grad)}")
            yield output, grad
    elif isinstance(output, (tuple, list)):
        if grad is None:
            return
        if not isinstance(grad, (tuple, list)):
            raise AssertionError(f"grad_value expected to have type {type(output)} but got {type(grad)}")
        if len(output) != len(grad):
            raise AssertionError(f"Expected len(output_val) == len(grad_val), got {len(output)} != {len(grad)}")
        for output_part, grad_part in zip(output, grad, strict=True):
            yield from _pairs(output_part, grad_part)
    elif isinstance(output, dict):
        if grad is None:
            return
        if not isinstance(grad, dict):
            raise AssertionError(f"Expected dict, got {type(grad)}")
        if output.keys() != grad.keys():
            raise AssertionError(f"Expected keys {set(output)}, got {set(grad)}")
        for key in output:
            yield from _pairs(output[key], grad[key])


def _seeds(output: Any, grads: Any) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Outputs and gradients to start from. A tensor alone is a loss; in a structure, one without a gradient adds nothing."""
    pairs = list(_pairs(output, grads))
    if not isinstance(output, torch.Tensor):
        pairs = [(tensor, grad) for tensor, grad in pairs if grad is not None]
    return [tensor for tensor, _ in pairs], [grad for _, grad in pairs]


def stage_backward(
    stage_output: Any,
    output_grads: Any,
    input_values: Sequence[Any],
    outputs_with_grads_idxs: list[int] | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """The whole backward pass: adds to the .grad of every leaf and returns the gradients of input_values.

    The inputs' own .grad is None afterwards: the gradients leave the stage. outputs_with_grads_idxs picks some of the outputs.
    """
    if outputs_with_grads_idxs is not None:
        stage_output = [stage_output[index] for index in outputs_with_grads_idxs]
        output_grads = [output_grads[index] for index in outputs_with_grads_idxs]
    try:
        tensors, grads = _seeds(stage_output, output_grads)
        if tensors:
            torch.autograd.backward(tensors, grads)
        return tuple(_take_grad(value) for value in input_values)
    except Exception as error:
        raise RuntimeError(_failure("stage backward", stage_output, output_grads, input_values)) from error


def _take_grad(value: Any) -> torch.Tensor | None:
    if not isinstance(value, torch.Tensor):
        return None
    grad, value.grad = value.grad, None
    return grad


def split_backward_input(
    output: Any, output_grads: Any, input_values: Sequence[Any], weights: Iterable[torch.Tensor] | None
) -> tuple[tuple[torch.Tensor | None, ...], list[dict[str, Any]]]:
    """stage_backward_input that leaves the inputs' .grad alone. Without weights, all leaves but the inputs are weights."""
    try:
        tensors, grads = _seeds(output, output_grads)
        return backward_inputs(tensors, grads, input_values, None if weights is None else {id(weight) for weight in weights})
    except Exception as error:
        raise RuntimeError(_failure("stage backward input", output, output_grads, input_values)) from error


def stage_backward_input(
    stage_outputs_or_loss: Sequence[torch.Tensor],
    output_grads: Sequence[torch.Tensor | None] | None,
    input_values: Sequence[Any],
    weights: Iterable[torch.Tensor],
) -> tuple[tuple[torch.Tensor | None, ...], list[dict[str, Any]]]:
    """The gradients of the inputs only. Returns them, None for an input that needs none, and groups for the weight part.

    The gradients are added to the inputs' .grad too. Without output_grads every output is a scalar loss. A group has the
    autograd nodes of its "params", the "intermediates" where they join the rest, and the "grads" that arrive there: one tuple
    per intermediate.
    """
    outputs = list(stage_outputs_or_loss)
    if output_grads is None:
        losses = [output for output in outputs if _needs_grad(output)]
        ids = {id(weight) for weight in weights}
        try:
            dinputs, groups = backward_inputs(losses, [None] * len(losses), input_values, ids)
        except Exception as error:
            raise RuntimeError(_failure("stage backward input", outputs, None, input_values)) from error
    else:
        dinputs, groups = split_backward_input(outputs, list(output_grads), input_values, weights)
    for value, dinput in zip(input_values, dinputs, strict=True):
        if dinput is not None:
            value.grad = dinput if value.grad is None else value.grad + dinput
    return dinputs, groups


def stage_backward_weight(
    weights: Iterable[torch.Tensor], param_groups: list[dict[str, Any]], retain_graph: bool = False
) -> tuple[torch.Tensor | None, ...]:
    """Finishes what stage_backward_input began: adds to the weights' .grad. Returns them."""
    backward_weights(param_groups, retain_graph)
    return tuple(weight.grad for weight in weights)
