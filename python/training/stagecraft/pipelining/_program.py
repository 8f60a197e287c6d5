"""Runs one rank's row of a lowered schedule. The row is compiled into a list of functions, once for as long as it stays the same.

    RECV_F  asks for a message and remembers that it is on its way
    F       waits for it, runs the module, and hands the output to the next stage if that is on this rank
    SEND_F  posts the output; the message is let go when the other rank is known to have it

Backwards likewise. In a step without backwards their actions are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.profiler import record_function

from ._acknowledgement import acknowledged_at
from ._actions import (
    B,
    F,
    I,
    OVERLAP_F_B,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    W,
    WITHOUT_MICROBATCH,
    _Action,
    _ComputationType,
)
from ._data_parallel import fsdp_modules
from ._p2p import _batch_p2p, _sorted_batch_p2p

if TYPE_CHECKING:
    from ._schedule_base import _PipelineSchedule
    from ._stage_base import _PipelineStageBase

_BACKWARD = frozenset({B, I, W, SEND_B, RECV_B, REDUCE_GRAD})


@dataclass
class _PipelineContext:
    """What a custom function gets beside its action."""

    schedule_ref: _PipelineSchedule
    arg_mbs: list[tuple] | None = None
    kwarg_mbs: list[dict] | None = None
    target_mbs: list | None = None
    losses: list | None = None


@dataclass
class Step:
    """The inputs of one step, and the messages it has sent."""

    schedule: _PipelineSchedule
    arg_mbs: list[tuple]
    kwarg_mbs: list[dict]
    target_mbs: list | None
    losses: list | None
    return_outputs: bool
    loss_kwargs: dict[str, Any] | None
    context: _PipelineContext
    sent: dict[_Action, list[dist.Work]] = field(default_factory=dict)

    def let_go(self, sends: Iterable[_Action]) -> None:
        for send in sends:
            _wait(self.sent.pop(send, ()), send, self.schedule)


Operation = Callable[[Step], None]


class Program:
    """A compiled row. Refers to stages, but neither to the schedule (which refers to it) nor to anything of a step."""

    def __init__(
        self,
        schedule: _PipelineSchedule,
        stages: Sequence[_PipelineStageBase],
        rows: Mapping[int, Sequence[_Action | None]],
        rank: int,
        pairs: bool,
    ) -> None:
        """pairs: a send and the receive after it, with the same neighbour, are posted as one batch.

        That is needed where both ends would otherwise wait for the other to receive (1F1B over a transport without buffers).
        """
        self._operations = _Compiler(schedule, stages, acknowledged_at(rows, rank)).compile(rows[rank], pairs)
        # Where the last run failed: the position in the row, and the action.
        self.failed_at, self.failed_in = -1, None

    def run(self, step: Step) -> None:
        position, action = -1, None
        named = torch.autograd._profiler_enabled()
        try:
            for position, action, operation in self._operations:  # noqa: B007
                if named:
                    with record_function(f"PP:{action}"):
                        operation(step)
                else:
                    operation(step)
            step.let_go(list(step.sent))
        except BaseException:
            self.failed_at, self.failed_in = position, action
            raise


class _Compiler:
    """Makes a function of every action. What can be known before a step is looked up here."""

    def __init__(
        self,
        schedule: _PipelineSchedule,
        stages: Sequence[_PipelineStageBase],
        acknowledged: Mapping[int, Sequence[_Action]],
    ) -> None:
        self._stages = {stage.stage_index: stage for stage in stages}
        self._forward_only = not schedule._has_backward
        self._gathers_weights = schedule._gathers_weights
        self._custom = schedule._comp_type_to_function_map
        self._arrived_forward, self._arrived_backward = schedule.fwd_recv_ops, schedule.bwd_recv_ops
        self._counter = schedule.backward_counter
        self._acknowledged = acknowledged
        # (position in the row, action, function)
        self._operations: list[tuple[int, _Action, Operation]] = []

    def compile(self, row: Sequence[_Action | None], pairs: bool) -> list[tuple[int, _Action, Operation]]:
        pairs = pairs and not self._forward_only
        position = 0
        while position < len(row):
            action = row[position]
            following = row[position + 1] if pairs and position + 1 < len(row) else None
            if action is not None and following is not None and _is_exchange(action, following):
                self._add(position, action, self._exchange(action, following))
                position += 1
            elif action is not None:
                self._compile(position, action)
            position += 1
        return self._operations

    def _add(self, position: int, action: _Action, operation: Operation | None) -> None:
        if operation is not None:
            self._operations.append((position, action, operation))

    def _compile(self, position: int, action: _Action) -> None:
        kind = action.computation_type
        custom = self._custom.get(kind)
        if self._forward_only:
            if kind in _BACKWARD:
                return
            if kind is OVERLAP_F_B:
                # Of an overlapped action the forward remains, and so does who runs forwards.
                function = self._custom.get(F) if custom is not None else None
                for part in action.parts:
                    if part.computation_type is F:
                        self._add(position, part, self._own(function, position, part) or self._builtin(position, part))
                return
        if custom is not None:
            self._add(position, action, self._own(custom, position, action))
        elif kind is OVERLAP_F_B:
            if action.sub_actions is None:
                raise AssertionError("sub_actions must be set")
            for part in action.sub_actions:
                self._add(position, part, self._builtin(position, part))
        else:
            self._add(position, action, self._builtin(position, action))

    def _own(self, function: Callable | None, position: int, action: _Action) -> Operation | None:
        """A function of the user's. It waits for its messages itself."""
        if function is None:
            return None
        received = self._acknowledged.get(position, ())

        def run(step: Step) -> None:
            function(action, step.context)
            step.let_go(received)

        return run

    def _builtin(self, position: int, action: _Action) -> Operation | None:
        stage_index, kind, microbatch = action.stage_index, action.computation_type, action.microbatch_index
        if kind not in WITHOUT_MICROBATCH and (microbatch is None or microbatch < 0):
            raise AssertionError(f"{action=} missing mb_index")
        makers = {
            F: self._forward,
            B: self._backward,
            I: self._backward,
            W: self._weight,
            SEND_F: self._send,
            SEND_B: self._send,
            RECV_F: self._receive,
            RECV_B: self._receive,
            UNSHARD: self._unshard,
            RESHARD: self._reshard,
            REDUCE_GRAD: self._reduce,
        }
        if not isinstance(kind, _ComputationType) or kind not in makers:
            raise ValueError(f"action={tuple(action)} is unknown or unsupported")
        if stage_index not in self._stages:
            raise KeyError(f"{action} is in the row of a rank that holds stages {sorted(self._stages)}")
        return makers[kind](position, action, self._stages[stage_index])

    # Messages

    def _arrivals(self, kind: _ComputationType) -> dict[tuple[int, int], list[dist.Work]]:
        return self._arrived_forward if kind in (RECV_F, F) else self._arrived_backward

    def _send(self, position: int, action: _Action, stage: _PipelineStageBase) -> Operation | None:
        microbatch, forward = action.microbatch_index, action.computation_type is SEND_F
        if action.stage_index + (1 if forward else -1) in self._stages:
            return None  # handed over
        drop = self._forward_only and hasattr(stage, "fwd_cache")

        def run(step: Step) -> None:
            ops = stage.get_fwd_send_ops(microbatch) if forward else stage.get_bwd_send_ops(microbatch)
            if drop:
                stage.fwd_cache.pop(microbatch, None)
            works = _post(ops, action, step.schedule)
            if works:
                step.sent[action] = works

        return run

    def _receive(self, position: int, action: _Action, stage: _PipelineStageBase) -> Operation | None:
        microbatch, forward = action.microbatch_index, action.computation_type is RECV_F
        if action.stage_index - (1 if forward else -1) in self._stages:
            return None
        key = (action.stage_index, microbatch)
        arrivals = self._arrivals(action.computation_type)
        what = "forward" if forward else "backward"

        def run(step: Step) -> None:
            if key in arrivals:
                stage_idx, mb_index = key
                raise AssertionError(f"Recv twice for {stage_idx=} {mb_index=} without executing {what}")
            ops = stage.get_fwd_recv_ops(microbatch) if forward else stage.get_bwd_recv_ops(microbatch)
            arrivals[key] = _post(ops, action, step.schedule)

        return run

    def _exchange(self, send: _Action, receive: _Action) -> Operation:
        stage = self._stages[send.stage_index]
        forward = send.computation_type is SEND_F
        key = (receive.stage_index, receive.microbatch_index)
        arrivals = self._arrivals(receive.computation_type)
        drop = self._forward_only and hasattr(stage, "fwd_cache")

        def run(step: Step) -> None:
            if forward:
                sends = stage.get_fwd_send_ops(send.microbatch_index)
                if drop:
                    stage.fwd_cache.pop(send.microbatch_index, None)
                receives = stage.get_bwd_recv_ops(receive.microbatch_index)
            else:
                sends = stage.get_bwd_send_ops(send.microbatch_index)
                receives = stage.get_fwd_recv_ops(receive.microbatch_index)
            ops = sends + receives
            if any(op.peer != ops[0].peer for op in ops):
                works = _post(sends, send, step.schedule), _post(receives, receive, step.schedule)
            else:
                posted = _post(ops, send, step.schedule)
                # A transport may give one handle for all.
                apart = len(sends) if len(posted) == len(ops) else 0
                works = posted[:apart], posted[apart:]
            if works[0]:
                step.sent[send] = works[0]
            arrivals[key] = works[1]

        return run

    def _await(self, action: _Action, position: int, local: bool) -> Operation:
        """Waits for a message and lets go of those that the sender must have got before; nothing if no message comes."""
        if local:
            return _nothing
        arrivals = self._arrivals(action.computation_type)
        key = (action.stage_index, action.microbatch_index)
        received = self._acknowledged.get(position, ())
        forward = action.computation_type is F

        def run(step: Step) -> None:
            works = arrivals.pop(key, None)
            if works is None:
                doing = "Computing" if forward else "Attempted to run compute"
                raise AssertionError(f"{doing} {action=} before receiving input")
            _wait(works, action, step.schedule)
            if received:
                step.let_go(received)

        return run

    # Compute

    def _forward(self, position: int, action: _Action, stage: _PipelineStageBase) -> Operation:
        microbatch = action.microbatch_index
        before, after = self._stages.get(action.stage_index - 1), self._stages.get(action.stage_index + 1)
        wait = self._await(action, position, stage.is_first or before is not None)
        gathered = self._gathered(stage)
        drop = self._forward_only and (stage.is_last or after is not None) and hasattr(stage, "fwd_cache")

        def run(step: Step) -> None:
            gathered(step)
            wait(step)
            output = stage.forward_one_chunk(
                microbatch, step.arg_mbs[microbatch], step.kwarg_mbs[microbatch], save_forward_output=step.return_outputs
            )
            step.schedule._maybe_compute_loss(stage, output, step.target_mbs, microbatch, step.loss_kwargs)
            if after is not None:
                after.set_local_fwd_input(output, microbatch)
            if drop:
                stage.fwd_cache.pop(microbatch, None)

        return run

    def _backward(self, position: int, action: _Action, stage: _PipelineStageBase) -> Operation:
        microbatch, stage_index = action.microbatch_index, action.stage_index
        whole = action.computation_type is B
        before, after = self._stages.get(stage_index - 1), self._stages.get(stage_index + 1)
        wait = self._await(action, position, stage.is_last or after is not None)
        gathered = self._gathered(stage)
        counter = self._counter

        def run(step: Step) -> None:
            gathered(step)
            wait(step)
            schedule = step.schedule
            loss = schedule._maybe_get_loss(stage, microbatch)
            last = False
            if whole:
                counter[stage_index] += 1
                last = counter[stage_index] == schedule._n_microbatches
            stage.backward_one_chunk(microbatch, loss=loss, full_backward=whole, last_backward=last)
            if loss is not None:
                schedule._internal_losses.let_go_of_graph(microbatch)
            if before is not None:
                before.set_local_bwd_input(stage.get_local_bwd_output(microbatch), microbatch)

        return run

    def _weight(self, position: int, action: _Action, stage: _PipelineStageBase) -> Operation:
        microbatch, stage_index = action.microbatch_index, action.stage_index
        counter = self._counter
        gathered = self._gathered(stage)

        def run(step: Step) -> None:
            gathered(step)
            counter[stage_index] += 1
            last = counter[stage_index] == step.schedule._n_microbatches
            stage.backward_weight_one_chunk(microbatch, last_backward=last)

        return run

    def _reduce(self, position: int, action: _Action, stage: _PipelineStageBase) -> Operation:
        def run(step: Step) -> None:
            schedule = step.schedule
            schedule._gradients.reduce(stage, schedule._n_microbatches if schedule.scale_grads else 1)

        return run

    # Sharded weights

    def _gathered(self, stage: _PipelineStageBase) -> Operation:
        """Before compute: waits until the stage's weights are there. Only schedules that gather them themselves check."""
        if not isinstance(stage.submod, FSDPModule) or not self._gathers_weights:
            return _nothing
        return lambda step: step.schedule._assert_unsharded(stage)

    def _unshard(self, position: int, action: _Action, stage: _PipelineStageBase) -> Operation | None:
        if not isinstance(stage.submod, FSDPModule):
            return None
        stage_idx = action.stage_index

        def run(step: Step) -> None:
            schedule = step.schedule
            if stage_idx in schedule.unsharded_stages or stage_idx in schedule.unshard_ops:
                raise AssertionError(f"Unsharding the same {stage_idx=} twice")
            schedule.unshard_ops[stage_idx] = [one.unshard(async_op=True) for one in fsdp_modules(stage.submod)]

        return run

    def _reshard(self, position: int, action: _Action, stage: _PipelineStageBase) -> Operation | None:
        if not isinstance(stage.submod, FSDPModule):
            return None
        stage_idx = action.stage_index

        def run(step: Step) -> None:
            schedule = step.schedule
            if stage_idx not in schedule.unsharded_stages:
                raise AssertionError(f"Resharding {stage_idx=} without unsharding")
            if stage_idx in schedule.unshard_ops:
                raise AssertionError(f"Resharding {stage_idx=} before finishing unshard")
            for one in fsdp_modules(stage.submod):
                one.reshard()
            schedule.unsharded_stages.remove(stage_idx)

        return run


def _post(ops: list[dist.P2POp], action: _Action, schedule: _PipelineSchedule) -> list[dist.Work]:
    try:
        # Values that skip stages go to several ranks: then a batch per rank.
        if any(op.peer != ops[0].peer for op in ops):
            return [work for works in _sorted_batch_p2p(ops).values() for work in works]
        return _batch_p2p(ops)
    except RuntimeError as error:
        raise _lost(action, schedule, error) from error


def _wait(works: Iterable[dist.Work], action: _Action, schedule: _PipelineSchedule) -> None:
    try:
        for work in works:
            work.wait()
    except RuntimeError as error:
        raise _lost(action, schedule, error) from error


def _lost(action: _Action, schedule: _PipelineSchedule, error: RuntimeError) -> RuntimeError:
    """Says whose message it was: the transport names an address at best."""
    kind, index = action.computation_type, action.stage_index
    stage = next(stage for stage in schedule._local_stages() if stage.stage_index == index)
    if kind is SEND_F:
        others = {other for targets in stage.act_send_info.values() for other in targets}
    elif kind is SEND_B:
        others = set(stage.grad_send_info or ())
    else:
        infos = stage.args_recv_info if kind in (F, RECV_F) else stage.grad_recv_info
        others = {info.source for info in infos.get(action.microbatch_index, ()) if not info.is_root_arg}
    ranks = " or ".join(f"rank {stage.stage_index_to_group_rank[other]} (stage {other})" for other in sorted(others - {None}))
    return RuntimeError(f"[Stage {index}] {action}: a message to or from {ranks} failed: {error}")


def _nothing(step: Step) -> None:
    pass


def _is_exchange(first: _Action, second: _Action) -> bool:
    kinds = (first.computation_type, second.computation_type)
    return kinds in ((SEND_F, RECV_B), (SEND_B, RECV_F)) and first.stage_index == second.stage_index
