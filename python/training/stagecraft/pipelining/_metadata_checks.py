"""Compares tensors with what was promised about them, and checks what users give about a stage's values."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ._tensor_meta import PipeliningMetadataError, TensorMeta, extract_tensor_meta


def validate_and_normalize_to_tuple(args: Any, allow_none: bool = False) -> tuple[Any, ...] | None:
    """A tensor or a sequence of tensors as a tuple; None stays None."""
    if args is None:
        return None
    if isinstance(args, torch.Tensor):
        return (args,)
    if not isinstance(args, (tuple, list)):
        raise PipeliningMetadataError(
            f"Stage args must be a tensor, tuple, or list of tensors, got {type(args).__name__}."
        )
    for index, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) or (arg is None and allow_none):
            continue
        if arg is None:
            raise PipeliningMetadataError(
                f"Stage arg[{index}] is None. Stage args must be tensors. Use kwargs for optional values."
            )
        raise PipeliningMetadataError(
            f"Stage arg[{index}] has type {type(arg).__name__}. All stage args must be tensors. "
            "Use kwargs for non-tensor inputs."
        )
    return tuple(args)


def _report(desc: str, what: str, raise_on_mismatch: bool, warn_on_mismatch: bool) -> str:
    """Raises, warns or does neither. Returns the message."""
    message = f"{desc}: {what}"
    if raise_on_mismatch:
        raise PipeliningMetadataError(message)
    if warn_on_mismatch:
        warnings.warn(f"{desc}: Metadata mismatch. {what}. What was found out is used.", UserWarning, stacklevel=4)
    return message


def validate_metadata(
    desc: str,
    expected: TensorMeta,
    actual: torch.Tensor | TensorMeta,
    *,
    raise_on_mismatch: bool = False,
    warn_on_mismatch: bool = False,
) -> list[str]:
    """The differences between one description and a tensor (or another description), each as text."""
    if isinstance(actual, torch.Tensor):
        actual = extract_tensor_meta(actual)
    if type(expected) is not type(actual):
        differences = [f"type: expected {type(expected).__name__}, got {type(actual).__name__}"]
    else:
        differences = expected.get_diff(actual)
    if differences:
        _report(desc, "; ".join(differences), raise_on_mismatch, warn_on_mismatch)
    return differences


def validate_tensors_metadata(
    desc: str,
    expected: tuple[TensorMeta | None, ...],
    actual: tuple[torch.Tensor | TensorMeta | None, ...],
    *,
    raise_on_mismatch: bool = True,
    warn_on_mismatch: bool = False,
) -> list[str]:
    """validate_metadata for each of several values; a None must face a None."""
    if len(expected) != len(actual):
        counts = f"expected {len(expected)} tensors, got {len(actual)}"
        return [_report(desc, counts, raise_on_mismatch, warn_on_mismatch)]
    differences = []
    for index, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
        if wanted is None and got is None:
            continue
        if wanted is None or got is None:
            one, other = ("None", "metadata") if wanted is None else ("metadata", "None")
            what = f"expected {one}, got {other}"
            differences.append(_report(f"{desc}[{index}]", what, raise_on_mismatch, warn_on_mismatch))
            continue
        differences += validate_metadata(
            f"{desc}[{index}]",
            wanted,
            got,
            raise_on_mismatch=raise_on_mismatch,
            warn_on_mismatch=warn_on_mismatch,
        )
    return differences


def validate_static_arg_grad_correspondence(
    stage_index: int,
    args: tuple[torch.Tensor, ...],
    grads: tuple[torch.Tensor | None, ...],
    is_input: bool,
) -> None:
    """Checks example gradients against the example values that they belong to."""
    kind = "input" if is_input else "output"
    values, gradients = f"{kind}_args", f"{kind}_grads"
    if len(args) != len(grads):
        raise PipeliningMetadataError(
            f"Stage {stage_index}: {gradients} length ({len(grads)}) does not match {values} length ({len(args)}). "
            "Give one gradient per value, None for a value that needs none."
        )
    for index, (arg, grad) in enumerate(zip(args, grads, strict=True)):
        value, gradient = f"{values}[{index}]", f"{gradients}[{index}]"
        if not arg.requires_grad:
            if grad is not None:
                raise PipeliningMetadataError(
                    f"Stage {stage_index}: {value} has requires_grad=False, but {gradient} is not None "
                    f"({type(grad).__name__}). Give None for it."
                )
        elif grad is None:
            warnings.warn(
                f"Stage {stage_index}: {value} has requires_grad=True, but {gradient} is None. "
                "That is right only at the ends of the pipeline.",
                UserWarning,
                stacklevel=2,
            )
        elif isinstance(arg, DTensor) and not isinstance(grad, DTensor):
            raise PipeliningMetadataError(
                f"Stage {stage_index}: {value} is a DTensor with requires_grad=True, but {gradient} is "
                f"{type(grad).__name__}, expected DTensor or None."
            )
