"""A trainer of the usual kind on both packages in the same ranks: a language model pruned to stages by module names, schedules by name and
from files, custom functions, evaluation, accumulated gradients. Losses and gradients have to agree."""

import copy
import importlib
import os
import tempfile
import threading
import unittest

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from worlds import gloo_ranks

PACKAGES = ("torch.distributed.pipelining", "stagecraft.pipelining")
VOCABULARY, WIDTH, LENGTH, ROWS, MICROBATCHES, LAYERS = 11, 8, 5, 8, 4, 8
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, positions):
        return x + self.down(torch.tanh(self.up(self.norm(x) + 0.01 * positions)))


class Model(torch.nn.Module):
    """Tolerates that modules are taken away: what is not there is left out."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleDict({str(index): Layer() for index in range(LAYERS)})
        self.norm, self.output = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, positions=None):
        x = self.embedding(tokens) if self.embedding is not None else tokens
        for layer in self.layers.values():
            x = layer(x, positions)
        x = self.norm(x) if self.norm is not None else x
        return self.output(x) if self.output is not None else x


def make_model():
    torch.manual_seed(5)
    return Model().double()


def tokens():
    torch.manual_seed(6)
    return torch.randint(VOCABULARY, (2, ROWS, LENGTH))


def positions():
    return torch.arange(LENGTH, dtype=torch.double).reshape(1, LENGTH, 1).repeat(ROWS, 1, 1)


def loss_fn(logits, wanted, divisor=1.0):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / divisor


def names_of_stages(count):
    per_stage = LAYERS // count
    names = [[f"layers.{index}" for index in range(stage * per_stage, (stage + 1) * per_stage)] for stage in range(count)]
    names[0].insert(0, "embedding")
    names[-1] += ["norm", "output"]
    return names


def pruned(whole, keep):
    part = copy.deepcopy(whole)
    for name, module in list(part.named_children()):
        if isinstance(module, torch.nn.ModuleDict):
            for key in list(module):
                if f"{name}.{key}" not in keep:
                    del module[key]
        elif name not in keep:
            setattr(part, name, None)
    return part


class Trainer:
    """One package's pipeline of one rank."""

    def __init__(self, package, schedule, mesh, *, csv=None, format="compute_only", scale_grads=False, loss=loss_fn, prepare=None, **options):
        self.pipelining = importlib.import_module(package)
        self.schedules = importlib.import_module(package + ".schedules")
        kind = self.schedules.get_schedule_class(schedule)
        single = issubclass(kind, self.schedules.PipelineScheduleSingle)
        if not single and not issubclass(kind, self.schedules.PipelineScheduleMulti):
            raise AssertionError(kind)
        count = mesh.size() * (1 if single else 2)
        style = "v" if kind in (self.schedules.ScheduleZBVZeroBubble, self.schedules.ScheduleDualPipeV) else "loop"
        rank = mesh.get_local_rank()
        numbers = [rank] if single else [rank, count - 1 - rank if style == "v" else rank + mesh.size()]
        whole, names = make_model(), names_of_stages(count)
        self.stages = []
        for number in numbers:
            part = pruned(whole, names[number])
            stage = self.pipelining.PipelineStage(part, number, count, torch.device("cpu"), group=mesh.get_group())
            if prepare is not None:
                stage.submod = prepare(part)  # as trainers do that wrap modules after the stages are there
            self.stages.append(stage)
        if csv is not None:
            kind = self.schedules._PipelineScheduleRuntime
        self.schedule = kind(
            self.stages[0] if single else self.stages, n_microbatches=MICROBATCHES, loss_fn=loss, scale_grads=scale_grads, **options
        )
        if csv is not None:
            self.schedule._load_csv(csv, format)
        self.has_first = any(stage.is_first for stage in self.stages)
        self.has_last = any(stage.is_last for stage in self.stages)

    def step(self, function="step", **options):
        inputs, wanted = tokens()
        losses = [] if self.has_last else None
        arguments = (inputs,) if self.has_first else ()
        target = wanted if self.has_last else None
        output = getattr(self.schedule, function)(*arguments, positions=positions(), target=target, losses=losses, **options)
        return output, losses

    def gradients(self):
        return {
            f"{stage.stage_index}.{name}": parameter.grad
            for stage in self.stages
            for name, parameter in stage.submod.named_parameters()
        }


def difference(theirs, ours):
    """The largest difference of two values of the same structure."""
    if isinstance(theirs, dict):
        if theirs.keys() != ours.keys():
            raise AssertionError(f"{sorted(theirs)} and {sorted(ours)}")
        return max((difference(theirs[key], ours[key]) for key in theirs), default=0.0)
    if isinstance(theirs, (list, tuple)):
        return max((difference(one, other) for one, other in zip(theirs, ours, strict=True)), default=0.0)
    if theirs is None or ours is None:
        if theirs is not ours:
            raise AssertionError(f"{theirs} and {ours}")
        return 0.0
    return (theirs.detach() - ours.detach()).abs().max().item()


def on_both(mesh, run):
    """The largest difference of what run(trainer maker) returns for the two packages."""
    return difference(*(run(package) for package in PACKAGES))


def expected_gradients():
    model = make_model()
    inputs, wanted = tokens()
    loss_fn(model(inputs, positions()), wanted, ROWS * LENGTH).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def train_and_evaluate(rank, ranks):
    """Per schedule, the largest difference between the packages, and to one device."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))["pp"]
    expected, found = expected_gradients(), {}
    keywords = {"return_outputs": False, "loss_kwargs": {"divisor": float(ROWS * LENGTH)}}
    for name in SCHEDULES:

        def run(package, name=name):
            trainer = Trainer(package, name, mesh)
            seen = [trainer.step(**keywords)]
            seen.append({key: grad.clone() for key, grad in trainer.gradients().items()})
            for key, grad in trainer.gradients().items():
                seen.append(grad - expected[key.split(".", 1)[1]])
            farthest = max(one.abs().max().item() for one in seen[2:])
            if farthest > 1e-12:
                raise AssertionError(f"{package} {name}: {farthest} from one device")
            if name not in ("ZBVZeroBubble", "DualPipeV"):  # torch cannot evaluate those: it asks stages for gradients
                with torch.no_grad():
                    seen.append(trainer.step("eval"))
            # A second step adds to the gradients of the first.
            seen += [trainer.step(**keywords), trainer.gradients()]
            return seen

        found[name] = on_both(mesh, run)
    return found


def microbatches_as_lists(rank, ranks):
    """Microbatches cut by the trainer, as lists instead of tuples, without step."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))["pp"]
    inputs, wanted = (list(one.chunk(MICROBATCHES)) for one in tokens())
    keywords = [{"positions": one} for one in positions().chunk(MICROBATCHES)]
    found = {}
    for name in SCHEDULES:

        def run(package, name=name):
            trainer = Trainer(package, name, mesh, scale_grads=True)
            losses = []
            for stage in trainer.stages:
                stage.has_backward = True
            trainer.schedule._step_microbatches(
                arg_mbs=[[one] for one in inputs], kwarg_mbs=keywords, target_mbs=wanted, losses=losses
            )
            return losses, trainer.gradients()

        found[name] = on_both(mesh, run)
    return found


def from_files(rank, ranks, folder):
    """Tables written by one package and read by the other, with and without messages."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))["pp"]
    found = {}
    for name in SCHEDULES[2:]:
        written = []
        for package in PACKAGES:
            for format in ("compute_only", "compute_comms"):
                path = os.path.join(folder, f"{package}-{name}-{format}-{rank}.csv")
                Trainer(package, name, mesh).schedule._dump_csv(path, format)
                written.append((path, format))
        texts = [open(path).read() for path, _ in written]
        if texts[:2] != texts[2:]:
            raise AssertionError(f"{name}: the packages write different tables")
        for path, format in written[:2]:

            def run(package, name=name, path=path, format=format):
                trainer = Trainer(package, name, mesh, csv=path, format=format)
                return trainer.step(), trainer.gradients()

            found[f"{name} {format}"] = on_both(mesh, run)
    return found


def overlap_with(schedules, calls):
    """A custom function for overlapped actions: the backward in a thread, the forward beside it."""

    def overlap(action, context):
        schedule = context.schedule_ref
        calls.append(str(action))
        stages = {stage.stage_index: stage for stage in schedule._stages}
        forward, backward = action.sub_actions
        f, b = stages[forward.stage_index], stages[backward.stage_index]
        if not f.is_first and f.stage_index - 1 not in stages:
            schedules._wait_batch_p2p(schedule.fwd_recv_ops.pop((f.stage_index, forward.microbatch_index)))
        if not b.is_last and b.stage_index + 1 not in stages:
            schedules._wait_batch_p2p(schedule.bwd_recv_ops.pop((b.stage_index, backward.microbatch_index)))

        def run_backward():
            schedule._assert_unsharded(b)
            loss = schedule._maybe_get_loss(b, backward.microbatch_index)
            schedule.backward_counter[b.stage_index] += 1
            last = schedule.backward_counter[b.stage_index] == schedule._n_microbatches
            b.backward_one_chunk(backward.microbatch_index, loss=loss, full_backward=True, last_backward=last)
            if b.stage_index - 1 in stages:
                stages[b.stage_index - 1].set_local_bwd_input(b.get_local_bwd_output(backward.microbatch_index), backward.microbatch_index)

        thread = threading.Thread(target=run_backward)
        thread.start()
        schedule._assert_unsharded(f)
        index = forward.microbatch_index
        output = f.forward_one_chunk(index, context.arg_mbs[index], context.kwarg_mbs[index])
        schedule._maybe_compute_loss(f, output, context.target_mbs, index)
        if f.stage_index + 1 in stages:
            stages[f.stage_index + 1].set_local_fwd_input(output, index)
        thread.join()

    return overlap


def overlapped(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))["pp"]

    def run(package):
        trainer, calls = Trainer(package, "DualPipeV", mesh), []
        trainer.schedule.register_custom_function(trainer.schedules.OVERLAP_F_B, overlap_with(trainer.schedules, calls))
        seen = [trainer.step(), trainer.gradients()]
        if not calls:
            raise AssertionError(f"{package}: no overlapped action")
        return [*seen, [torch.tensor(len(calls))]]

    return {"DualPipeV": on_both(mesh, run)}


class Own:
    """All actions by functions of the trainer's own, which keep their state on the stages and append the losses themselves."""

    def __init__(self, schedules, schedule):
        self.wait, self.schedule, self.calls = schedules._wait_batch_p2p, schedule, set()
        for kind, function in {
            schedules.FORWARD: self.forward,
            schedules.FULL_BACKWARD: self.backward,
            schedules.BACKWARD_INPUT: self.backward_input,
            schedules.BACKWARD_WEIGHT: self.backward_weight,
            schedules.UNSHARD: self.note,
            schedules.RESHARD: self.note,
            schedules.REDUCE_GRAD: self.note,
        }.items():
            schedule.register_custom_function(kind, function)
        self.sums, self.waiting = {}, {}

    def note(self, action, context):
        self.calls.add(action.computation_type.value)

    def place(self, action, context):
        self.note(action, context)
        if context.schedule_ref is not self.schedule:
            raise AssertionError("another schedule")
        stages = {stage.stage_index: stage for stage in self.schedule._stages}
        return stages, stages[action.stage_index], action.microbatch_index

    def forward(self, action, context):
        stages, stage, index = self.place(action, context)
        if stage.is_first:
            inputs = context.arg_mbs[index]
        else:
            if stage.stage_index - 1 not in stages:
                self.wait(self.schedule.fwd_recv_ops.pop((stage.stage_index, index)))
            inputs = stage._retrieve_recv_activations(index)
        with torch.enable_grad():
            inputs = tuple(value.detach().requires_grad_(value.is_floating_point()) for value in inputs)
            output = stage.submod(*inputs, **context.kwarg_mbs[index])
            result = loss_fn(output, context.target_mbs[index]) if stage.is_last else output
        if stage.is_last:
            stage.output_chunks.append(output)
            self.schedule._internal_losses.append(result.detach())
        stage.fwd_cache[index] = ((result.detach(),), (inputs, result))
        if stage.stage_index + 1 in stages:
            stages[stage.stage_index + 1].set_local_fwd_input(output.detach(), index)

    def gradients(self, stage, stages, index):
        if not stage.is_last and stage.stage_index + 1 not in stages:
            self.wait(self.schedule.bwd_recv_ops.pop((stage.stage_index, index)))
        given = None if stage.is_last else stage._retrieve_recv_grads(index)
        _, (inputs, result) = stage.fwd_cache.pop(index)
        wanted = [value for value in inputs if value.requires_grad] + list(stage.submod.parameters())
        with torch.enable_grad():
            return inputs, torch.autograd.grad([result], wanted, given)

    def finish_inputs(self, stage, stages, index, inputs, grads):
        if not stage.is_first:
            stage.bwd_cache[index] = tuple(grads[: len(inputs)])
            if stage.stage_index - 1 in stages:
                stages[stage.stage_index - 1].set_local_bwd_input(stage.get_local_bwd_output(index), index)

    def add(self, stage, inputs, grads):
        first = 0 if stage.is_first else len(inputs)
        for parameter, grad in zip(stage.submod.parameters(), grads[first:], strict=True):
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    def backward(self, action, context):
        stages, stage, index = self.place(action, context)
        self.schedule.backward_counter[stage.stage_index] += 1
        inputs, grads = self.gradients(stage, stages, index)
        self.finish_inputs(stage, stages, index, inputs, grads)
        self.add(stage, inputs, grads)

    def backward_input(self, action, context):
        stages, stage, index = self.place(action, context)
        inputs, grads = self.gradients(stage, stages, index)
        self.finish_inputs(stage, stages, index, inputs, grads)
        self.waiting[stage.stage_index, index] = (inputs, grads)

    def backward_weight(self, action, context):
        _, stage, index = self.place(action, context)
        self.schedule.backward_counter[stage.stage_index] += 1
        self.add(stage, *self.waiting.pop((stage.stage_index, index)))


def by_own_functions(rank, ranks):
    """Once without autograd around the step: the functions switch it on themselves."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))["pp"]
    found = {}
    for name in ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"):

        def run(package, name=name):
            trainer = Trainer(package, name, mesh, backward_requires_autograd=False)
            own = Own(trainer.schedules, trainer.schedule)
            seen = [trainer.step()[1]]  # prepares the stages, which needs autograd
            with torch.no_grad():
                seen.append(trainer.step()[1])
            missing = {"F", "UNSHARD", "RESHARD", "REDUCE_GRAD"} - own.calls
            if missing:
                raise AssertionError(f"{package} {name} never called {missing}")
            return seen, trainer.gradients()

        found[name] = on_both(mesh, run)
    return found


def initialised_by_hand(rank, ranks):
    """Stages prepared before the first step, and prepared anew for rows of another length."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))["pp"]

    def run(package):
        trainer = Trainer(package, "Interleaved1F1B", mesh)
        seen = []
        for length in (LENGTH, LENGTH - 2):
            inputs, wanted = (one[:, :length] for one in tokens())
            keywords = {"positions": positions()[:, :length]}
            args, kwargs = trainer.schedule._split_inputs((inputs,) if trainer.has_first else (), keywords)
            trainer.schedule._stages_forward_initialized = trainer.schedule._stages_backward_initialized = False
            trainer.schedule._initialize_stages(args[0], kwargs[0], wanted[: ROWS // MICROBATCHES])
            for stage in trainer.stages:
                seen += [torch.tensor(meta.shape) for meta in (*stage._stage_meta.inputs, *stage._stage_meta.outputs)]
                seen += [torch.tensor(stage._to_tensor(meta).shape) for meta in stage._stage_meta.outputs]
            losses = []
            trainer.schedule.step(
                *((inputs,) if trainer.has_first else ()), target=wanted if trainer.has_last else None, losses=losses, **keywords
            )
            seen.append(losses)
        return seen, trainer.gradients()

    return {"Interleaved1F1B": on_both(mesh, run)}


def with_a_patched_warm_up(rank, ranks):
    """Trainers replace the opening round of messages; the replacement is called, and may call the original."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))["pp"]

    def run(package):
        trainer, calls = Trainer(package, "1F1B", mesh), []
        base = trainer.schedules._PipelineSchedule
        original = base._warmup_p2p

        def warm_up(self, stages, has_backward, p2p_done):
            calls.append((len(stages), has_backward, p2p_done))
            return original(self, stages, has_backward, p2p_done)

        base._warmup_p2p = warm_up
        try:
            seen = [trainer.step(), trainer.step(), trainer.step("eval")]
        finally:
            base._warmup_p2p = original
        return [*seen, torch.tensor(calls)]

    return {"1F1B": on_both(mesh, run)}


class TrainerOnBoth(unittest.TestCase):
    def check(self, program, *args, ranks=2):
        for rank, found in enumerate(gloo_ranks(ranks, program, *args)):
            for name, difference in found.items():
                with self.subTest(name=name, rank=rank):
                    self.assertLess(difference, 1e-12)

    def test_training_and_evaluation(self):
        self.check(train_and_evaluate)

    def test_microbatches_cut_by_the_trainer(self):
        self.check(microbatches_as_lists)

    def test_tables_from_files(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(from_files, folder)

    def test_overlapped_actions(self):
        self.check(overlapped)

    def test_functions_of_its_own_for_all_actions(self):
        self.check(by_own_functions)

    def test_stages_prepared_by_hand(self):
        self.check(initialised_by_hand)

    def test_a_patched_warm_up(self):
        self.check(with_a_patched_warm_up)


if __name__ == "__main__":
    unittest.main()
