"""Short descriptions of values for error messages."""

from typing import Any

import torch
from torch.utils._pytree import tree_map


def friendly_debug_info(v: object) -> str:
    if isinstance(v, torch.Tensor):
        return f"Tensor({v.shape}, grad={v.requires_grad}, dtype={v.dtype})"
    return str(v)


def map_debug_info(a: Any) -> Any:
    """The same structure with every value described."""
    return tree_map(friendly_debug_info, a)
