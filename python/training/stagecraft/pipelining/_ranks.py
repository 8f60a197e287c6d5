"""The C++ runtime's world of the ranks of a pipeline, over the process group of its stages."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist

from stagecraft.torch import Error
from stagecraft.torch._worlds import World, known_world, shared_world

logger = logging.getLogger("stagecraft.pipelining.schedules")

_USUAL_TIMEOUT = 1800.0
_refused: dict[int, dist.ProcessGroup] = {}  # by id: groups whose ranks cannot all join a world


def world_of(group: dist.ProcessGroup | None, device: torch.device) -> World | None:
    """The world of a group, made at the first call, by all of its ranks; None on all of them if one could not join."""
    group = dist.group.WORLD if group is None else group
    if id(group) in _refused:
        return None
    known = known_world(group, device)
    if known is not None:
        return known
    world, joined = None, torch.ones(1, dtype=torch.int32, device=device)
    try:
        world = shared_world(group, device, timeout=_timeout(group, device))
    except Error as refused:
        logger.warning("the interpreter runs this pipeline: %s", refused)
        joined.zero_()
    dist.all_reduce(joined, dist.ReduceOp.MIN, group=group)
    if joined.item():
        return world
    _refused[id(group)] = group
    if world is not None:
        world.close()
    return None


def largest(world: World, number: int) -> int:
    """The largest number that a rank of the world gives."""
    try:
        return world.maximum(number)
    except Error as error:
        raise as_upstream(error)


def as_upstream(error: BaseException) -> BaseException:
    """What torch.distributed raises when another rank fails or is lost is a RuntimeError."""
    if not isinstance(error, Error):
        return error
    told = RuntimeError(str(error))
    told.__cause__ = error
    return told


def _timeout(group: dist.ProcessGroup, device: torch.device) -> float:
    """The group's own: as long as its ranks wait for each other."""
    try:
        return group._get_backend(device).options._timeout.total_seconds()
    except (AttributeError, RuntimeError):
        return _USUAL_TIMEOUT
