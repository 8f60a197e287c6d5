"""What data parallel wrappers need around a pipeline's microbatches: gradients are synchronised once, after the last one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed._composable.replicate_with_fsdp import ReplicateModule, replicate
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

_NOTHING = nullcontext()


def around_forward(module: torch.nn.Module) -> AbstractContextManager:
    return module.no_sync() if isinstance(module, DistributedDataParallel) else _NOTHING


def around_backward(module: torch.nn.Module, last: bool, outputs: Any) -> AbstractContextManager:
    """last: no other backward of this step follows, so DDP reduces during this one. FSDP waits for reduce_gradients."""
    if isinstance(module, DistributedDataParallel):
        if not last:
            return module.no_sync()
        # DDP prepares its reducer in forward, which ran without synchronisation: prepare it here, for the last backward.
        module.reducer.prepare_for_backward(list(_find_tensors(outputs)))
    elif isinstance(module, FSDPModule):
        _set_last(module, False)
    return _NOTHING


def _set_last(module: FSDPModule, last: bool) -> None:
    module.set_is_last_backward(last)
    module.set_reshard_after_backward(last)
    module.set_requires_gradient_sync(last)


def reduce_gradients(module: torch.nn.Module) -> None:
    """FSDP and replicate: reduces what all backwards have left in the gathered weights. Others: nothing."""
    if not isinstance(module, FSDPModule):
        return
    _set_last(module, True)
    state = replicate.state(module) if isinstance(module, ReplicateModule) else fully_shard.state(module)
    for one in state._state_ctx.all_states:
        for group in one._fsdp_param_groups:
            group.post_backward()
    # Waits for the reductions, as the end of an ordinary backward does.
    state._root_post_backward_final_callback()


def fsdp_modules(module: torch.nn.Module) -> list[FSDPModule]:
    return [one for one in module.modules() if isinstance(one, FSDPModule)]
