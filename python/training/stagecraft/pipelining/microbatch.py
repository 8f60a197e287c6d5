"""Cuts a batch into microbatches, and joins what came out of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ._block_mask import _split_block_mask, batch_of_block_mask

__all__ = ["TensorChunkSpec", "merge_chunks", "split_args_kwargs_into_chunks"]

DEFAULT_CHUNK_DIM = 0

# If set, a microbatch is the whole batch with all other rows zero. For comparing numbers with an unsplit run.
_debug_mask_minibatches = False


class _CustomReducer:
    """Folds one value per microbatch into one: reduce_fn(reduce_fn(init_value, v0), v1) and so on."""

    def __init__(self, init_value: Any, reduce_fn: Callable[[Any, Any], Any]) -> None:
        self.init_value = init_value
        self.reduce_fn = reduce_fn


class _LossReducer(_CustomReducer):
    """Marks an output as the loss."""


sum_reducer = _LossReducer(torch.tensor(0.0), operator.add)


class TensorChunkSpec:
    """Says along which dimension a tensor is cut."""

    split_dim: int

    def __init__(self, split_dim: int) -> None:
        self.split_dim = split_dim

    def __repr__(self) -> str:
        return f"{type(self).__module__}.{type(self).__name__}({self.split_dim})"

    def __str__(self) -> str:
        return f"TensorChunkSpec({self.split_dim})"

    @staticmethod
    def from_tuple(chunk_dims: tuple[int, ...]) -> Any:
        """One spec per positional argument: from_tuple((0, 0, 1))."""
        return tree_map(TensorChunkSpec, chunk_dims)

    @staticmethod
    def from_dict(chunk_dims: dict[str, int]) -> Any:
        """One spec per keyword argument: from_dict({"ids": 0, "mask": 1})."""
        return tree_map(TensorChunkSpec, chunk_dims)


class _Replicate:
    """Says that every microbatch gets the whole value."""


def _is_leaf(value: Any) -> bool:
    return isinstance(value, BlockMask)


def _default_spec(value: Any) -> TensorChunkSpec | _Replicate:
    divisible = isinstance(value, BlockMask) or (isinstance(value, torch.Tensor) and value.dim() > 0)
    return TensorChunkSpec(DEFAULT_CHUNK_DIM) if divisible else _Replicate()


def _cut_dtensor(tensor: DTensor, dim: int, parts: int) -> list[torch.Tensor]:
    """Cuts the local part only: going through DTensor's own split would gather a tensor that is sharded along dim."""
    whole, extra = divmod(tensor.shape[dim], parts)
    pieces = []
    for index, local in enumerate(torch.tensor_split(tensor.to_local(), parts, dim)):
        shape = list(tensor.shape)
        shape[dim] = whole + (index < extra)
        pieces.append(_wrap_like(tensor, local, torch.Size(shape)))
    return pieces


def _wrap_like(tensor: DTensor, local: torch.Tensor, shape: torch.Size) -> DTensor:
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=shape, stride=tensor.stride()
    )


def _masked(tensor: torch.Tensor, pieces: Sequence[torch.Tensor], dim: int) -> list[torch.Tensor]:
    masked, start = [], 0
    for piece in pieces:
        rows = torch.zeros_like(tensor)
        rows.narrow(dim, start, piece.size(dim)).copy_(piece)
        masked.append(rows)
        start += piece.size(dim)
    return masked


def _split_tensor(tensor: torch.Tensor, spec: TensorChunkSpec, num_chunks: int) -> Sequence[torch.Tensor]:
    """Cuts a tensor into num_chunks nearly equal parts, the larger ones first."""
    dim = spec.split_dim
    if tensor.size(dim) < num_chunks:
        raise AssertionError(f"Tensor size {tensor.size(dim)} is smaller than num_chunks")
    if isinstance(tensor, DTensor):
        pieces: Sequence[torch.Tensor] = _cut_dtensor(tensor, dim, num_chunks)
    else:
        pieces = torch.tensor_split(tensor, num_chunks, dim)
    if tensor.requires_grad and tensor.is_leaf:
        # The parts are views. Their gradients are wanted as well as the leaf's.
        for piece in pieces:
            piece.retain_grad()
    if not _debug_mask_minibatches:
        return pieces
    if isinstance(tensor, DTensor):
        local = _masked(tensor.to_local(), [piece.to_local() for piece in pieces], dim)
        return [_wrap_like(tensor, rows, tensor.shape) for rows in local]
    return _masked(tensor, pieces, dim)


def _is_replicated(spec: Any) -> bool:
    return spec is _Replicate or isinstance(spec, _Replicate)


def _rows(value: Any, spec: Any) -> int | None:
    """Into how many parts a value can be cut at most; None if it is replicated."""
    if _is_replicated(spec):
        return None
    if not isinstance(value, (torch.Tensor, BlockMask)):
        raise ValueError(f"Unsupported chunk spec: {spec} and value: {value} combination.")
    if not isinstance(spec, TensorChunkSpec):
        raise AssertionError(f"Expected TensorChunkSpec, got {type(spec)}")
    if isinstance(value, torch.Tensor):
        return value.size(spec.split_dim)
    if spec.split_dim != 0:
        raise AssertionError("BlockMask only supports split_dim=0")
    return batch_of_block_mask(value)


class _Splittable:
    """The leaves of one structure of arguments beside their specs."""

    def __init__(self, arguments: Any, specs: Any) -> None:
        if specs is None:
            specs = tree_map(_default_spec, arguments, is_leaf=_is_leaf)
        if not arguments:
            specs = arguments
        elif len(arguments) != len(specs):
            raise AssertionError(f"args_dict.keys() = {_keys(arguments)} args_chunk_spec.keys() = {_keys(specs)}")
        leaves, self.structure = tree_flatten(arguments, is_leaf=_is_leaf)
        spec_leaves, _ = tree_flatten(specs, is_leaf=_is_leaf)
        self.pairs = list(zip(leaves, spec_leaves, strict=True))

    def most_parts(self, wanted: int) -> int:
        rows = [_rows(value, spec) for value, spec in self.pairs]
        return min([wanted, *(count for count in rows if count is not None)])

    def cut(self, parts: int) -> list[Any]:
        columns = [_cut(value, spec, parts) for value, spec in self.pairs]
        return [tree_unflatten([column[part] for column in columns], self.structure) for part in range(parts)]


def _keys(arguments: Any) -> list[Any]:
    return list(arguments.keys()) if isinstance(arguments, dict) else list(range(len(arguments)))


def _cut(value: Any, spec: Any, parts: int) -> Sequence[Any]:
    if _is_replicated(spec):
        return [value] * parts
    return _split_block_mask(value, parts) if isinstance(value, BlockMask) else _split_tensor(value, spec, parts)


def split_args_kwargs_into_chunks(
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    chunks: int,
    args_chunk_spec: tuple[TensorChunkSpec, ...] | None = None,
    kwargs_chunk_spec: dict[str, TensorChunkSpec] | None = None,
) -> tuple[list[tuple], list[dict]]:
    """One tuple of arguments and one dictionary of keyword arguments per microbatch.

    Without a spec, tensors and block masks are cut along dimension 0; everything else goes to every microbatch, tensors
    without dimensions included. Fewer than `chunks` come back when a tensor has fewer rows.
    """
    kwargs = kwargs or {}
    if args_chunk_spec is None and not kwargs and all(type(arg) is torch.Tensor and arg.dim() > 0 for arg in args):
        # The usual case, without looking for structure.
        parts = min([chunks, *(arg.size(DEFAULT_CHUNK_DIM) for arg in args)])
        spec = TensorChunkSpec(DEFAULT_CHUNK_DIM)
        pieces = list(zip(*(_split_tensor(arg, spec, parts) for arg in args), strict=True)) if args else [()] * parts
        return pieces, [{} for _ in range(parts)]
    positional = _Splittable(tuple(args), args_chunk_spec)
    named = _Splittable(kwargs, kwargs_chunk_spec)
    parts = named.most_parts(positional.most_parts(chunks))
    return [tuple(part) for part in positional.cut(parts)], named.cut(parts)


def merge_chunks(chunks: list[Any], chunk_spec: Any) -> Any:
    """Joins one structure per microbatch into one of the whole batch.

    A leaf with a TensorChunkSpec is concatenated, one with a reducer folded; any other must be equal in all microbatches.
    Without a spec every leaf is concatenated along dimension 0.
    """
    if chunk_spec is None and all(type(chunk) is torch.Tensor for chunk in chunks):
        return _concatenate(chunks, DEFAULT_CHUNK_DIM)
    if chunk_spec is None:
        leaves, structure = tree_flatten(chunks[0])
        specs: list[Any] = [TensorChunkSpec(DEFAULT_CHUNK_DIM)] * len(leaves)
    else:
        specs, structure = tree_flatten(chunk_spec)
    rows = []
    for chunk in chunks:
        leaves, _ = tree_flatten(chunk)
        if len(leaves) != len(specs):
            raise ValueError(f"Chunk {chunk} did not match chunk spec {chunk_spec}")
        rows.append(leaves)
    columns = zip(*rows, strict=True)
    return tree_unflatten([_merge(list(column), spec) for column, spec in zip(columns, specs, strict=True)], structure)


def _merge(values: list[Any], spec: Any) -> Any:
    if isinstance(spec, TensorChunkSpec):
        return _concatenate(values, spec.split_dim)
    if isinstance(spec, _CustomReducer):
        reduced = spec.init_value
        for value in values:
            reduced = spec.reduce_fn(reduced, value)
        return reduced
    for value in values[1:]:
        if value != values[0]:
            raise AssertionError(f"Expected {values[0]}, got {value}")
    return values[0]


def _concatenate(values: list[torch.Tensor], dim: int) -> torch.Tensor:
    if _debug_mask_minibatches:
        values = _unmasked(values, dim)
    distributed = [isinstance(value, DTensor) for value in values]
    if not any(distributed):
        return torch.cat(values, dim=dim)
    if not all(distributed):
        raise AssertionError("merge_chunks: expected all values to be DTensors or none to be DTensors, got a mix")
    first = values[0]
    for index, value in enumerate(values):
        if value.placements != first.placements:
            raise AssertionError(
                f"merge_chunks: placement mismatch at chunk {index}: expected {first.placements}, got {value.placements}"
            )
    shape = list(first.shape)
    shape[dim] = sum(value.shape[dim] for value in values)
    return _wrap_like(first, torch.cat([value.to_local() for value in values], dim=dim), torch.Size(shape))


def _unmasked(values: list[torch.Tensor], dim: int) -> list[torch.Tensor]:
    for value in values:
        if value.shape != values[0].shape:
            raise AssertionError(f"Expected shape {values[0].shape}, got {value.shape}")
    cut = [torch.tensor_split(value, len(values), dim) for value in values]
    return [pieces[index] for index, pieces in enumerate(cut)]
