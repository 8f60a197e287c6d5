"""The tensors in a value of Python: which ones it leads to, what memory they have, and whether another value has the same numbers."""

from __future__ import annotations

import collections
import gc
import types
from typing import Any, Iterable, Sequence

import torch

from stagecraft.torch._places import Ours, slots_of

MOST_OBJECTS = 200_000  # a module may hold on to its trainer, and that to all of its data


def tensors_in(values: Sequence, most: int = MOST_OBJECTS) -> list[torch.Tensor]:
    """All tensors that are reached from there, near ones first, through any object but classes, Python modules and the globals of functions. Ends after
    `most` objects."""
    tensors: list[torch.Tensor] = []
    seen: dict[int, Any] = {}  # which keeps their addresses their own
    waiting = collections.deque(values)
    while waiting and len(seen) < most:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, (Ours, type, types.ModuleType, types.CodeType, types.FrameType)):
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, types.FunctionType):
            waiting.extend((value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)))
        else:
            waiting.extend(gc.get_referents(value))
    return tensors


def addresses_of(values: Iterable) -> set[int]:
    """Addresses of the memory of those that are tensors with memory of their own, not wrappers of others."""
    return {one.untyped_storage().data_ptr() for one in values if isinstance(one, torch.Tensor) and _is_plain(type(one)) and one.layout is torch.strided}


def _is_plain(kind: type[torch.Tensor]) -> bool:
    return kind in (torch.Tensor, torch.nn.Parameter) or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def addresses_in(values: Sequence) -> set[int]:
    """Addresses of the memory of all plain tensors that are reached from there."""
    return addresses_of(tensors_in(values))


def may_have(value: Any, memory: set[int]) -> bool:
    """Whether a tensor in it has memory at one of these addresses, or memory whose address nobody can tell."""
    tensors = tensors_in([value])
    addresses = addresses_of(tensors)
    return bool(addresses & memory) or 0 in addresses or any(not addresses_of([tensor]) for tensor in tensors)


def is_alike(a: Any, b: Any, depth: int = 8) -> bool:
    """Whether both are built alike from tensors with the same numbers. False where that cannot be told."""
    if a is b:
        return True
    if type(a) is not type(b) or depth == 0:
        return False
    if isinstance(a, torch.Tensor):
        facts = [(one.shape, one.dtype, one.device, one.layout, one.requires_grad) for one in (a, b)]
        return facts[0] == facts[1] and a.layout is torch.strided and torch.equal(a, b)
    if isinstance(a, (int, float, str, bytes)):
        return bool(a == b)
    if isinstance(a, (tuple, list, collections.deque)):
        return len(a) == len(b) and all(is_alike(*both, depth - 1) for both in zip(a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_alike(a[name], b[name], depth - 1) for name in a)
    return type(getattr(a, "__dict__", None)) is dict and not slots_of(type(a)) and is_alike(vars(a), vars(b), depth - 1)
