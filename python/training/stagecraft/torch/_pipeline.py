"""Training over a pipeline of stages."""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import torch

from stagecraft.torch import _runtime
from stagecraft.torch._errors import InvalidArgument
from stagecraft.torch._options import Options, Precision
from stagecraft.torch._split import split
from stagecraft.torch._stage import Stage, watch
from stagecraft.torch._worlds import as_world
from stagecraft.torch._wrapped import KINDS, WrappedStages, refuse_shards

# Optimizers that compute the same on a part of a parameter as on all of it.
_BY_ELEMENT = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"}

_BY_TORCH = "compute it from the DTensors, with torch.nn.utils"
_BY_CHECKPOINT = "use torch.distributed.checkpoint"


class StepResult:
    """`losses` and `weights` by microbatch, on the rank of the last stage (on all with broadcast_loss); `output` if asked for."""

    __slots__ = ("losses", "weights", "output")

    def __init__(self, losses: list[torch.Tensor], weights: list[float], output: Any):
        self.losses = losses
        self.weights = weights
        self.output = output

    @property
    def has_loss(self) -> bool:
        return bool(self.losses)

    @property
    def loss(self) -> float:
        """The loss of the whole batch; NaN when all weights are 0."""
        if not self.losses:
            raise InvalidArgument("this rank has no loss: ask for it where the last stage is, or set broadcast_loss")
        counted = [(weight, loss) for weight, loss in zip(self.weights, self.losses) if weight != 0]
        if not counted:
            return math.nan
        values = torch.stack([loss.detach().flatten() for _, loss in counted]).flatten().tolist()  # one wait for the device
        return sum(weight * value for (weight, _), value in zip(counted, values))

    def __repr__(self) -> str:
        return f"StepResult(losses={len(self.losses)}, output={'none' if self.output is None else type(self.output).__name__})"


class CapturedSteps(NamedTuple):
    """What has become of this rank's training steps; `reason`: why the last one was not replayed."""

    graphs: int
    replayed: int
    eager: int
    last_was_replayed: bool
    reason: str
    bytes: int
    lanes: int


class Span(NamedTuple):
    """One recorded action of a rank; times are in seconds."""

    action: str
    start: float
    end: float
    waited: float
    bytes: int
    beside: bool
    replayed: bool = False


class Pipeline:
    """Runs a schedule over the stages of this rank, together with the other ranks.

    `stages`: this rank's, or a torch.nn.Sequential, which is cut evenly for the schedule. `schedule`: a name ("1F1B", "InterleavedZeroBubble",
    ...), the path of a CSV file, a stagecraft.Schedule, rows of actions, or "auto". `world`: a World, a process group or a dimension of a device
    mesh; by default the rank of `run_ranks` that this is called in, or a single rank, on the device of the modules. `seed`: random numbers are
    then those of (step, stage, microbatch), whatever the schedule; by default modules draw from torch's generators, as they do without a
    pipeline. All other options are those of C++'s PipelineOptions.

    All ranks make the pipeline and call `step` and `eval` in the same order. After an error in a step every rank raises: the rank that failed
    StepError, whose __cause__ is what its module raised, the others AbortedError; then the next step works.
    """

    def __init__(self, stages: Sequence[Stage] | torch.nn.Sequential, *, world: Any = None, **options: Any):
        self.world = as_world(world, _device_of(stages))
        if isinstance(stages, torch.nn.Sequential):
            stages = split(stages, self.world, schedule=options.get("schedule", "1F1B"), stages_per_rank=options.get("stages_per_rank", 0))
        elif isinstance(stages, Stage):
            stages = [stages]
        self.stages = list(stages)
        self._keep: list = []  # what C++ refers to and does not own
        self._options = _options(options)
        self._handlers: dict[str, Callable] = {}
        self._wrapped = WrappedStages(self.stages)
        self._watches = False  # whether the actions look after wrapped stages
        specs = watch([stage.as_dict() for stage in self.stages], options.get("loss"))
        self._box = _runtime.Pipeline(self.world._box, specs, self._options.as_dict(), self._keep)

    def step(
        self,
        *arguments: Any,
        target: Any = None,
        return_outputs: bool = False,
        loss_keywords: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> StepResult:
        """Forward, loss and backward of one batch; gradients are added to the parameters' .grad.

        `arguments` are needed on the rank of the first stage, `target` on that of the last; `keywords` go to the stages of this rank. Without a loss it
        runs forwards alone, and returns the outputs.
        """
        return self._run(self._box.step, True, arguments, keywords, target, loss_keywords or {}, return_outputs)

    def eval(
        self,
        *arguments: Any,
        target: Any = None,
        loss_keywords: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> StepResult:
        """Forwards alone, without graphs and in evaluation mode. Returns outputs, and losses when there is a target."""
        return self._run(self._box.step, False, arguments, keywords, target, loss_keywords or {}, True)

    def step_microbatches(
        self,
        arguments: Sequence[Sequence[Any]] = (),
        targets: Sequence[Any] = (),
        *,
        keywords: Sequence[Mapping[str, Any]] = (),
        return_outputs: bool = False,
        loss_keywords: Mapping[str, Any] | None = None,
    ) -> StepResult:
        """Like `step`, with a batch that is already cut: a tuple of arguments, a dict of keywords and a target per microbatch."""
        return self._run(self._box.step_microbatches, True, *_cut(arguments, keywords, targets), loss_keywords or {}, return_outputs)

    def eval_microbatches(
        self,
        arguments: Sequence[Sequence[Any]] = (),
        targets: Sequence[Any] = (),
        *,
        keywords: Sequence[Mapping[str, Any]] = (),
        loss_keywords: Mapping[str, Any] | None = None,
    ) -> StepResult:
        """Like `eval`, with a batch that is already cut."""
        return self._run(self._box.step_microbatches, False, *_cut(arguments, keywords, targets), loss_keywords or {}, True)

    def _run(self, function: Callable, *given: Any) -> StepResult:
        if not self._wrapped.look():
            return StepResult(*function(*given))
        self._wrapped.check(self.world.replicas, self._options.shard, self._options.precision != Precision())
        if not self._watches:
            self._watches = True
            for kind in KINDS:
                self._install(kind)
        try:
            result = StepResult(*function(*given))
            self._wrapped.finish()
        except BaseException:
            self._wrapped.let_go()
            raise
        return result

    def infer_shapes(self, *arguments: Any, **keywords: Any) -> list:
        """(stage, microbatch, [(shape, dtype), ...]) of the outputs of this rank's stages, found without computing them."""
        return self._box.infer_shapes(arguments, keywords)

    # --- parameters ---

    def parameters(self) -> Iterator[torch.Tensor]:
        """What an optimizer of this rank updates; with `shard` or `precision`, not the modules' own."""
        return (parameter for _, parameter in self._box.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._box.named_parameters())

    def attach(self, optimizer: torch.optim.Optimizer, by_element: bool | None = None) -> None:
        """Checks an optimizer of `parameters`; required before the first step with `shard` or `precision`. `by_element` vouches for one of your own."""
        if by_element is None:
            by_element = type(optimizer).__name__ in _BY_ELEMENT
        self._box.attach([tensor for group in optimizer.param_groups for tensor in group["params"]], by_element)

    def refresh_modules(self) -> None:
        """Gives the modules' parameters the values that `parameters` have now. Called by all ranks."""
        self._box.refresh_modules()

    def unscale_gradients(self) -> bool:
        """With float16: called by all ranks before an update; False: leave it out, and zero the gradients."""
        return self._box.unscale_gradients()

    @property
    def loss_scaling(self) -> tuple[float, int]:
        """With float16: the scale of the losses, and the updates since it changed."""
        return self._box.loss_scaling()

    @loss_scaling.setter
    def loss_scaling(self, state: tuple[float, int]) -> None:
        self._box.set_loss_scaling(*state)

    def gradient_norm(self) -> torch.Tensor:
        """The 2-norm of the gradients of the whole model, on all ranks. Called by all."""
        refuse_shards(self.stages, "gradient_norm", _BY_TORCH)
        return self._box.gradient_norm()

    def clip_gradient_norm(self, most: float) -> torch.Tensor:
        """Scales all gradients so that their norm is at most `most`; returns the norm before. Called by all ranks."""
        refuse_shards(self.stages, "clip_gradient_norm", _BY_TORCH)
        return self._box.clip_gradient_norm(most)

    def clip_gradient_values(self, most: float) -> None:
        refuse_shards(self.stages, "clip_gradient_values", _BY_TORCH)
        self._box.clip_gradient_values(most)

    # --- schedule and timeline ---

    @property
    def steps(self) -> int:
        """Training steps so far; part of the seed of random numbers: set it when resuming."""
        return self._box.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._box.steps = steps

    @property
    def schedule(self) -> Any:
        """The lowered schedule: a stagecraft.Schedule where that package is installed, otherwise rows of actions."""
        rows, name = self._box.schedule_rows(), self._box.schedule_name()
        try:
            from stagecraft import Schedule  # type: ignore[attr-defined,unused-ignore]
        except ImportError:
            return rows
        return Schedule.from_csv("".join(",".join(row) + "\n" for row in rows), name=name)

    @property
    def schedule_rows(self) -> list[list[str]]:
        """The lowered schedule: the actions of every rank; an idle slot is empty."""
        return self._box.schedule_rows()

    @property
    def microbatches(self) -> int:
        return self._box.microbatches()

    @property
    def has_first_stage(self) -> bool:
        return self._box.has_first_stage()

    @property
    def has_last_stage(self) -> bool:
        return self._box.has_last_stage()

    def auto_report(self) -> str:
        """With schedule "auto": what it has found so far, in one line."""
        return self._box.auto_report()

    def on(self, kind: str, handler: Callable[[int, str, Callable[[], None]], None]) -> None:
        """Calls `handler(stage, action, run)` in place of every action of this kind ("F", "B", "SEND_F", ...); `run()` runs the action."""
        self._handlers[kind] = handler
        self._install(kind)

    def _install(self, kind: str) -> None:
        """The user's handler around that of wrapped stages around the action."""
        handler = self._handlers.get(kind)
        if self._watches and kind in KINDS:
            handler = _around(handler, self._wrapped.handler(kind))
        self._box.on(kind, handler, self._keep)

    @property
    def captured(self) -> CapturedSteps:
        """With graph=True or "auto": what has become of this rank's training steps."""
        return CapturedSteps(*self._box.captured())

    def record_timeline(self, record: bool = True) -> None:
        self._box.record_timeline(record)

    @property
    def timeline(self) -> list[Span]:
        """The actions of this rank's last step, if recorded."""
        return [Span(*span) for span in self._box.timeline()]

    def collect_timelines(self, to: int = 0) -> list[list[Span]]:
        """Rank `to` gets the timelines of all ranks. Called by all."""
        return [[Span(*span) for span in one] for one in self._box.collect_timelines(to)]

    # --- checkpoints ---

    def save(self, path: Any, *, step: int = 0, metadata: Mapping[str, str] | None = None) -> None:
        """Saves the weights and buffers of the whole model as one safetensors file. Called by all ranks; rank 0 writes."""
        refuse_shards(self.stages, "save", _BY_CHECKPOINT)
        self._box.save(str(path), step, dict(metadata or {}))

    def load(self, path: Any) -> int:
        """Loads weights and buffers, saved with any stage layout; returns the saved step. Called by all ranks."""
        refuse_shards(self.stages, "load", _BY_CHECKPOINT)
        return self._box.load(str(path))


def _around(outer: Callable | None, inner: Callable) -> Callable:
    if outer is None:
        return inner
    return lambda stage, action, run: outer(stage, action, lambda: inner(stage, action, run))


def _device_of(stages: Sequence[Stage] | Stage | torch.nn.Sequential) -> torch.device | None:
    """Where their parameters and buffers are; None if they have none."""
    given = [stages] if isinstance(stages, (Stage, torch.nn.Sequential)) else stages
    for one in given:
        module = one.submod if isinstance(one, Stage) else one
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            if tensor.device.type != "meta":
                return tensor.device
    return None


def _options(given: Mapping[str, Any]) -> Options:
    try:
        return Options(**given)
    except TypeError:
        unknown = sorted(set(given) - set(Options.__dataclass_fields__))
        if not unknown:
            raise
        known = ", ".join(Options.__dataclass_fields__)
        raise InvalidArgument(f"a pipeline has no option '{unknown[0]}': the options are world, {known}") from None


def _cut(arguments: Sequence, keywords: Sequence, targets: Sequence) -> tuple[list, list, list]:
    return [tuple(one) for one in arguments], [dict(one) for one in keywords], list(targets)
