"""Where a model is cut: by a call in its forward, or before or after named submodules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import fx

# The mark is an operator, so that torch.export keeps it, and has a side effect, so that nobody removes it as unused.
_library = torch.library.Library("stagecraft", "FRAGMENT")
_library.define("pipe_split() -> ()")
_library.impl("pipe_split", lambda: None, "CompositeExplicitAutograd")
aten_pipe_split_alias = fx.has_side_effect(torch.ops.stagecraft.pipe_split.default)

# PyTorch's own mark may be in a model that imports both packages.
_MARKS = ("stagecraft::pipe_split", "pippy::_pipe_split")


def pipe_split() -> None:
    """Marks the boundary between two stages inside a forward. Does nothing when the model runs unsplit."""
    return torch.ops.stagecraft.pipe_split()


def is_mark(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return node.target is pipe_split or (
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _MARKS
    )


class SplitPoint(Enum):
    """Before or after a submodule's forward."""

    BEGINNING = 1
    END = 2


class PipeSplitWrapper:
    SplitPoint = SplitPoint


def _find(module: torch.nn.Module, name: str) -> torch.nn.Module:
    found: Any = module
    atoms = name.split(".")
    for index, atom in enumerate(atoms):
        try:
            found = getattr(found, atom)
        except AttributeError as error:
            raise AttributeError(
                f"Specified target {name} referenced nonexistent module {'.'.join(atoms[: index + 1])}"
            ) from error
    return found


def _marked(forward: Callable, split_type: SplitPoint) -> Callable:
    if split_type == SplitPoint.BEGINNING:

        def split_before(*args: Any, **kwargs: Any) -> Any:
            pipe_split()
            return forward(*args, **kwargs)

        return split_before
    if split_type == SplitPoint.END:

        def split_after(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            pipe_split()
            return result

        return split_after
    raise ValueError("Unknown split point type.")


def annotate_split_points(mod: torch.nn.Module, spec: Mapping[str, SplitPoint]) -> None:
    """Adds marks around named submodules, for good."""
    modules = [(_find(mod, name), split_type) for name, split_type in spec.items()]
    for module, split_type in modules:
        module.forward = _marked(module.forward, split_type)


@contextmanager
def annotated(mod: torch.nn.Module, spec: Mapping[str, SplitPoint]) -> Iterator[None]:
    """The same for the length of a block: the user's module is as it was afterwards."""
    absent = object()
    modules = {_find(mod, name) for name in spec}
    before = [(module, module.__dict__.get("forward", absent)) for module in modules]
    try:
        annotate_split_points(mod, spec)
        yield
    finally:
        for module, forward in before:
            module.__dict__.pop("forward", None)
            if forward is not absent:
                module.__dict__["forward"] = forward
