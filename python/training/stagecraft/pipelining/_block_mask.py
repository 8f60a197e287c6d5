"""Cuts the block masks of flex attention along the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask


def batch_of_block_mask(mask: BlockMask) -> int | None:
    """The mask's batch size; None if it is one, because then the mask serves any batch."""
    size = mask.kv_num_blocks.size(0)
    return None if size == 1 else size


def _split_block_mask(block_mask: BlockMask, num_chunks: int) -> list[BlockMask]:
    size = batch_of_block_mask(block_mask)
    if size is None:
        return [block_mask] * num_chunks
    if size < num_chunks:
        raise AssertionError("Block mask has fewer batch size than the number of chunks. ")

    def parts(tensor: torch.Tensor | None) -> list[torch.Tensor | None]:
        return [None] * num_chunks if tensor is None else list(torch.tensor_split(tensor, num_chunks, 0))

    masks, first_row = [], 0
    columns = zip(
        parts(block_mask.kv_num_blocks),
        parts(block_mask.kv_indices),
        parts(block_mask.full_kv_num_blocks),
        parts(block_mask.full_kv_indices),
        strict=True,
    )
    for number, indices, full_number, full_indices in columns:
        masks.append(
            BlockMask.from_kv_blocks(
                number,
                indices,
                full_number,
                full_indices,
                BLOCK_SIZE=block_mask.BLOCK_SIZE,
                mask_mod=_from_row(block_mask, first_row),
                seq_lengths=block_mask.seq_lengths,
            )
        )
        first_row += number.size(0)
    return masks


def _from_row(block_mask: BlockMask, idx: int) -> Callable:
    """The mask function of the rows from idx on: a part counts its rows from zero.

    Trainers that trace one part and replay it for the others look up `block_mask` and `idx` in the function's closure.
    """

    def shifted(b, h, q_idx, kv_idx):
        return block_mask.mask_mod(b + torch.full_like(b, idx), h, q_idx, kv_idx)

    return shifted
