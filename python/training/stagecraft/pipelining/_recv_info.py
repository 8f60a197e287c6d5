"""Describes one value that a stage takes in: from the user, or from another stage."""

from __future__ import annotations

import torch

from ._tensor_meta import TensorMeta


class _RecvInfo:
    """One input of a stage, or the gradient of one output, in one microbatch.

    buffer is there only from the moment the value is asked for until it is used. A root argument comes from the user: it has
    neither source nor buffer. Without tensor_meta nothing is received (an output that needs no gradient).
    """

    __slots__ = ("buffer", "input_name", "is_root_arg", "source", "tensor_meta")

    def __init__(
        self,
        input_name: str,
        source: int | None,
        buffer: torch.Tensor | None,
        tensor_meta: TensorMeta | None,
        *,
        is_root_arg: bool = False,
    ) -> None:
        self.input_name = input_name
        self.source = source
        self.buffer = buffer
        self.tensor_meta = tensor_meta
        self.is_root_arg = is_root_arg

    def __repr__(self) -> str:
        if self.is_root_arg:
            return f"_RecvInfo(input={self.input_name}, root_arg=True)"
        shape = None if self.tensor_meta is None else self.tensor_meta.shape
        return (
            f"_RecvInfo(input={self.input_name}, source={self.source}, shape={shape}, "
            f"meta={type(self.tensor_meta).__name__ if self.tensor_meta else 'None'})"
        )
