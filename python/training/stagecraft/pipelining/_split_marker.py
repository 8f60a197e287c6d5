"""Where a model is cut: the marker operator, and wrappers that place markers around named submodules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from typing import Any

import torch
from torch import fx, nn

_OPERATOR = "stagecraft::pipe_split"

# An operator rather than a Python function: only operators survive torch.export.
torch.library.define(_OPERATOR, "() -> ()")


@torch.library.impl(_OPERATOR, "BackendSelect")
def _run_marker() -> None:
    return None


@torch.library.register_fake(_OPERATOR)
def _trace_marker() -> None:
    return None


#: What a split policy inserts into a graph: graph.call_function(aten_pipe_split_alias).
aten_pipe_split_alias = torch.ops.stagecraft.pipe_split.default

fx.has_side_effect(aten_pipe_split_alias)

# A model written for torch's package may call the marker of that package.
_MARKER_NAMES = frozenset({_OPERATOR, "pippy::_pipe_split"})


def pipe_split() -> None:
    """Ends a stage here when the model is split; does nothing when it is run.

    >>> def forward(self, x):
    ...     x = self.encoder(x)
    ...     pipe_split()
    ...     return self.decoder(x)
    """
    torch.ops.stagecraft.pipe_split()


def is_split_marker(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.name() in _MARKER_NAMES
    return node.target in (pipe_split, torch.ops.stagecraft.pipe_split)


class SplitPoint(Enum):
    """The side of a submodule on which the model is cut."""

    BEGINNING = 1
    END = 2


class PipeSplitWrapper:
    """The name under which SplitPoint was once found."""

    SplitPoint = SplitPoint


def _with_marker(forward: Any, point: SplitPoint) -> Any:
    @wraps(forward)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if point is SplitPoint.BEGINNING:
            pipe_split()
        result = forward(*args, **kwargs)
        if point is SplitPoint.END:
            pipe_split()
        return result

    return marked


def _named_submodule(module: nn.Module, name: str) -> nn.Module:
    found = module
    walked: list[str] = []
    for part in name.split("."):
        walked.append(part)
        child = getattr(found, part, None)
        if not isinstance(child, nn.Module):
            raise AttributeError(f"Specified target {name} referenced nonexistent module {'.'.join(walked)}")
        found = child
    return found


def annotate_split_points(mod: nn.Module, spec: dict[str, SplitPoint]) -> None:
    """Places a marker before or after each named submodule, for as long as the module lives.

    pipeline(module, ..., split_spec=spec) needs no such call and leaves the module as it was.
    """
    # All names are resolved before the first change: a wrong one leaves the module untouched.
    resolved = []
    for name, point in spec.items():
        if not isinstance(point, SplitPoint):
            raise ValueError(f"Unknown split point type. Expected a SplitPoint for '{name}', got {point!r}")
        resolved.append((_named_submodule(mod, name), point))
    for submodule, point in resolved:
        submodule.forward = _with_marker(submodule.forward, point)


@contextmanager
def split_points(mod: nn.Module, spec: dict[str, SplitPoint] | None) -> Iterator[None]:
    """Markers around the named submodules while the context lasts."""
    modules = [_named_submodule(mod, name) for name in spec or {}]
    before = [(submodule, submodule.__dict__.get("forward")) for submodule in modules]
    try:
        annotate_split_points(mod, spec or {})
        yield
    finally:
        for submodule, forward in before:
            if forward is None:
                submodule.__dict__.pop("forward", None)
            else:
                submodule.__dict__["forward"] = forward
