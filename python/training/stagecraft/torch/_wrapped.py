"""Stages whose modules torch's data parallel wrappers hold: DistributedDataParallel, fully_shard, replicate.

A wrapper reduces gradients in every backward. A step of a pipeline has a backward per microbatch, so the wrappers are told to wait: UNSHARD
gathers a sharded module's weights, RESHARD frees them, and REDUCE_GRAD reduces the gradients, once per step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel

from stagecraft.torch._errors import InvalidArgument

KINDS = ("F", "B", "I", "W", "UNSHARD", "RESHARD", "REDUCE_GRAD")


def _loaded(module: str, name: str) -> Any:
    """A class, if its module was imported: otherwise nothing can be an instance of it."""
    found = sys.modules.get(module)
    return getattr(found, name) if found is not None else ()


def unwrapped(module: Any) -> Any:
    """The user's module: wrappers that are modules themselves put a prefix before the names of its parameters."""
    compiled = _loaded("torch._dynamo", "OptimizedModule")
    while isinstance(module, (DistributedDataParallel, compiled)):
        module = module.module if isinstance(module, DistributedDataParallel) else module._orig_mod
    return module


def is_sharded(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, _loaded("torch.distributed.tensor", "DTensor"))


def refuse_shards(stages: Sequence[Any], what: str, instead: str) -> None:
    """For what looks at the memory of parameters, of which a sharded module has only parts."""
    for stage in stages:
        if isinstance(stage.submod, torch.nn.Module):
            for name, parameter in stage.submod.named_parameters():
                if is_sharded(parameter):
                    raise InvalidArgument(f"{what} needs whole parameters, but '{name}' of stage {stage.index} is a DTensor: {instead}")


class _Wrappers:
    """The wrappers inside one module."""

    def __init__(self, module: torch.nn.Module) -> None:
        sharded = _loaded("torch.distributed.fsdp", "FSDPModule")
        self.replicated = [one for one in module.modules() if isinstance(one, DistributedDataParallel)]
        self.sharded: list[Any] = [one for one in module.modules() if isinstance(one, sharded)]
        inner = {id(part) for one in self.sharded for part in one.modules() if part is not one}
        self.roots = [one for one in self.sharded if id(one) not in inner]

    def __bool__(self) -> bool:
        return bool(self.replicated or self.sharded)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """No gradient is reduced inside."""
        for one in self.roots:
            _let_reduce(one, False)
        with ExitStack() as stack:
            for one in self.replicated:
                stack.enter_context(one.no_sync())
            yield

    def reduce(self) -> None:
        for one in self.roots:
            _reduce_shards(one)
        for one in self.replicated:
            _average(one)

    def let_go(self) -> None:
        """Frees gathered weights, which an evaluation or a failure may leave, and lets the wrappers reduce in their own backwards again."""
        for one in self.roots:
            _let_reduce(one, True)
        for one in self.sharded:
            one.reshard()


def _let_reduce(module: Any, now: bool) -> None:
    module.set_is_last_backward(now)
    module.set_reshard_after_backward(now)
    module.set_requires_gradient_sync(now)


def _reduce_shards(module: Any) -> None:
    """Does what the end of an ordinary backward does, with what all backwards have left in the gathered weights."""
    from torch.distributed._composable.replicate_with_fsdp import ReplicateModule, replicate
    from torch.distributed.fsdp import fully_shard

    _let_reduce(module, True)
    contract: Any = replicate if isinstance(module, ReplicateModule) else fully_shard
    state = contract.state(module)
    for one in state._state_ctx.all_states:
        for group in one._fsdp_param_groups:
            group.post_backward()
    state._root_post_backward_final_callback()


def _average(module: DistributedDataParallel) -> None:
    """Over the wrapper's process group. A gradient that some replicas do not have counts as zero there."""
    parameters = [one for one in module.parameters() if one.requires_grad]
    present = torch.tensor([one.grad is not None for one in parameters], dtype=torch.int32, device=module.device)
    dist.all_reduce(present, dist.ReduceOp.MAX, group=module.process_group)
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter, exists in zip(parameters, present.tolist()):
        if exists:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    ranks = dist.get_world_size(module.process_group)
    for grads in by_type.values():
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat, group=module.process_group)
        for grad, average in zip(grads, _unflatten_dense_tensors(flat.div_(ranks), grads)):
            grad.copy_(average)


class WrappedStages:
    """What the actions of this rank do where a stage's module is wrapped."""

    def __init__(self, stages: Sequence[Any]) -> None:
        self._stages = stages
        self._known: dict[int, tuple[Any, type, _Wrappers]] = {}
        self._gathering: dict[int, list[Any]] = {}
        self._unreduced: set[int] = set()  # stages with gradients of this step that no REDUCE_GRAD has seen

    def look(self) -> bool:
        """Whether any stage is wrapped. Called before every step: a module may be wrapped or replaced at any time."""
        for stage in self._stages:
            module = stage.submod
            known = self._known.get(stage.index)
            if known is None or known[0] is not module or known[1] is not type(module):
                wrappers = _Wrappers(module) if isinstance(module, torch.nn.Module) else _Wrappers(torch.nn.Module())
                self._known[stage.index] = (module, type(module), wrappers)
        return any(wrappers for _, _, wrappers in self._known.values())

    def check(self, replicas: int, shard: str, precise: bool) -> None:
        """Refuses options that reduce gradients, or look at the memory of parameters, themselves."""
        for index, (module, _, wrappers) in self._known.items():
            if not wrappers:
                continue
            name = "DistributedDataParallel" if wrappers.replicated else "fully_shard or replicate"
            for refused, option in ((replicas > 1, f"{replicas} replicas"), (shard != "none", f"shard='{shard}'"), (precise, "precision")):
                if refused:
                    raise InvalidArgument(
                        f"stage {index} is wrapped by {name}, and the pipeline has {option}: both would reduce its gradients; "
                        "give one of them up"
                    )
            if any(getattr(one, "_comm_hooks", None) for one in wrappers.replicated):
                raise InvalidArgument(
                    f"stage {index} is a DistributedDataParallel with a communication hook, which a pipeline does not call: leave the hook out, "
                    "or use stagecraft.pipelining"
                )

    def handler(self, kind: str) -> Callable[[int, str, Callable[[], None]], None]:
        own = {"F": self._forward, "UNSHARD": self._unshard, "RESHARD": self._reshard, "REDUCE_GRAD": self._reduce}
        return own.get(kind, self._backward)

    def _backward(self, stage: int, action: str, run: Callable[[], None]) -> None:
        self._unreduced.add(stage)
        self._forward(stage, action, run)

    def _forward(self, stage: int, action: str, run: Callable[[], None]) -> None:
        wrappers = self._known[stage][2]
        if not wrappers:
            return run()
        for handle in self._gathering.pop(stage, ()):
            handle.wait()
        with wrappers.waiting():
            run()

    def _unshard(self, stage: int, action: str, run: Callable[[], None]) -> None:
        run()
        self._gathering[stage] = [handle for one in self._known[stage][2].sharded if (handle := one.unshard(async_op=True)) is not None]

    def _reshard(self, stage: int, action: str, run: Callable[[], None]) -> None:
        run()
        for handle in self._gathering.pop(stage, ()):
            handle.wait()
        for one in self._known[stage][2].sharded:
            one.reshard()

    def _reduce(self, stage: int, action: str, run: Callable[[], None]) -> None:
        run()
        self._unreduced.discard(stage)
        self._known[stage][2].reduce()

    def finish(self) -> None:
        """After a step: what a schedule without REDUCE_GRAD has left is reduced, weights are freed, and the modules work alone again."""
        for stage in sorted(self._unreduced):
            self._known[stage][2].reduce()
        self._unreduced.clear()
        for _, _, wrappers in self._known.values():
            wrappers.let_go()

    def let_go(self) -> None:
        """After a step that failed: weights are freed, and the modules work alone again."""
        self._unreduced.clear()
        for handles in self._gathering.values():
            for handle in handles:
                handle.wait()
        self._gathering.clear()
        for _, _, wrappers in self._known.values():
            wrappers.let_go()
