"""Cuts a torch.nn.Sequential into stages."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from stagecraft.torch import _runtime
from stagecraft.torch._errors import InvalidArgument
from stagecraft.torch._options import schedule_choice
from stagecraft.torch._stage import Stage


def split(
    model: torch.nn.Sequential,
    world: Any,
    *,
    schedule: Any = "1F1B",
    stages_per_rank: int = 0,
    layers: Sequence[int] | None = None,
    **stage_options: Any,
) -> list[Stage]:
    """This rank's stages of a Sequential, for a schedule: `layers` of each stage, by default as even as possible.

    Parameters keep the names of the whole model. `stage_options` are those of `Stage`, the same for all.
    """
    ranks = _runtime.placement(schedule_choice(schedule), world.size, stages_per_rank)
    children = list(model.named_children())
    if layers is None:
        if len(children) < len(ranks):
            raise InvalidArgument(
                f"the model has {len(children)} layers, fewer than the {len(ranks)} stages of the schedule: start fewer ranks, or use fewer stages per rank"
            )
        least, larger = divmod(len(children), len(ranks))
        layers = [least + (stage < larger) for stage in range(len(ranks))]
    if len(layers) != len(ranks) or sum(layers) != len(children) or min(layers) < 1:
        raise InvalidArgument(
            f"the layers of the stages are {list(layers)}, but there are {len(ranks)} stages and {len(children)} layers: give at least one layer to each"
        )
    stages, first = [], 0
    for index, count in enumerate(layers):
        if ranks[index] == world.rank:
            part = torch.nn.Sequential()
            for name, layer in children[first : first + count]:
                part.add_module(name, layer)
            stages.append(Stage(part, index, **stage_options))
        first += count
    return stages
