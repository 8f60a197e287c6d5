"""The low-level entry for other front ends, such as `stagecraft.pipelining`: given stages, a given schedule, microbatches cut by the caller.

    run = ScheduleRun(world, stages, rows, microbatches=m, loss=loss)
    losses, outputs = run.step(args, kwargs, targets, return_outputs=True)

- `world`: a `stagecraft.torch.World`, a process group or a mesh dimension (all runs of a group share one world; all ranks of the group make the
  same runs in the same order), or None (the current rank of `run_ranks`, or one rank).
- `stages`: a list of (owner, index) pairs for this rank. `owner.submod` is the module; it is looked up at every call, so it may be replaced.
  `deferred_weights`: {index: function} for stages that compute weight gradients themselves; the function is called after each backward, and returns
  the function that the W action runs. `full_backward`: indices of stages whose backward must not be split.
- `rows`: the schedule of all ranks, a list of lists of action texts ("0F0", "1SEND_F0", "(0F5;7B2)OVERLAP_F_B", "" or None for an idle slot), the
  same on all ranks; lowered (with SEND and RECV), or compute-only, which is lowered here. It is verified: a schedule that would deadlock raises
  ScheduleError before anything runs.
- `loss(output, target)` returns one number as a tensor; needed on the rank of the last stage, and something true on the others: pass the
  same function everywhere. Without it, `step` runs forwards alone.

`step(args, kwargs, targets)` takes one tuple of positional arguments per microbatch (used on the rank of the first stage; others may give
[]), one dict of keywords per microbatch for the stages of this rank (or []), and one target per microbatch (used on the rank of the last
stage; others may give []). It returns (losses, outputs), lists in the order of microbatches: losses are detached scalars, on the rank of the
last stage; outputs, detached, are those of the last stage on its rank if asked for; otherwise empty lists.

Gradients are the plain sum over microbatches of the gradients of `loss`, added to .grad: nothing is weighted by rows, nothing divided by the
number of microbatches. `eval(args, kwargs, targets)` runs forwards alone, without graphs; the mode of the modules stays as it is, unlike
`Pipeline.eval`. Random operations draw from torch's generators.

Errors: StepError with the module's exception as __cause__ on the rank that failed, AbortedError on the others; afterwards the next step works.
The object may be kept and reused for any number of steps; to change rows, stages or the number of microbatches make another (the stages of a
rank and the rows are compared between all ranks when it is made, so that costs a round of messages).
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Mapping, Sequence

from stagecraft.torch import _runtime
from stagecraft.torch._options import Options
from stagecraft.torch._stage import stage_dict
from stagecraft.torch._worlds import as_world


class ScheduleRun:
    """Runs a given schedule over given stages; see the module's text."""

    def __init__(
        self,
        world: Any,
        stages: Sequence[tuple[Any, int]],
        rows: Sequence[Sequence[Any]],
        *,
        microbatches: int = 0,
        loss: Callable | None = None,
        deferred_weights: Mapping[int, Callable] | None = None,
        full_backward: Collection[int] = (),
        name: str = "",
    ):
        self.world = as_world(world)
        deferred = deferred_weights or {}
        specs = [
            stage_dict(
                owner,
                index,
                deferred_weights=deferred.get(index),
                full_backward=index in full_backward,
                enter_evaluation=None,
            )
            for owner, index in stages
        ]
        options = Options(
            schedule=_Rows(rows, name),
            microbatches=microbatches,
            loss=loss,
            loss_scale="sum",
            merge_outputs=list,
        )
        self._keep: list = []
        self._box = _runtime.Pipeline(self.world._box, specs, options.as_dict(), self._keep)

    def step(
        self,
        args: Sequence[Sequence[Any]] = (),
        kwargs: Sequence[Mapping[str, Any]] = (),
        targets: Sequence[Any] = (),
        *,
        return_outputs: bool = False,
    ) -> tuple[list, list]:
        return self._run(True, args, kwargs, targets, return_outputs)

    def eval(
        self,
        args: Sequence[Sequence[Any]] = (),
        kwargs: Sequence[Mapping[str, Any]] = (),
        targets: Sequence[Any] = (),
        *,
        return_outputs: bool = True,
    ) -> tuple[list, list]:
        return self._run(False, args, kwargs, targets, return_outputs)

    @property
    def rows(self) -> list[list[str]]:
        """The schedule as it runs, lowered; an idle slot is empty."""
        return self._box.schedule_rows()

    def close(self) -> None:
        """Releases everything; later steps raise."""
        self._box.end()
        self._keep.clear()

    def _run(self, training: bool, args: Sequence, kwargs: Sequence, targets: Sequence, return_outputs: bool) -> tuple[list, list]:
        losses, _, output = self._box.step_microbatches(
            training,
            [tuple(one) for one in args],
            [dict(one) for one in kwargs],
            list(targets),
            {},
            return_outputs,
        )
        return losses, output if return_outputs and output is not None else []


class _Rows:
    def __init__(self, rows: Sequence[Sequence[Any]], name: str):
        self.rows = rows
        self.name = name
