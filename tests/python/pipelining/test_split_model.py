"""Splitting a model by tracing: stages, names, shared weights, keyword arguments, buffers."""

import unittest

import torch

from small_models import SCHEDULES, WIDTH, batch, mean_loss
from worlds import gloo_ranks, one_rank

from stagecraft.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    SplitPoint,
    build_stage,
    pipe_split,
    pipeline,
)
from stagecraft.pipelining._IR import PipeSequential, _move_placeholders_to_front, aten_pipe_split_alias


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.register_buffer("offset", torch.ones(WIDTH), persistent=False)

    def forward(self, x):
        return self.norm(torch.tanh(self.inner(x))) * self.scale + self.offset + torch.arange(WIDTH)


class Tower(torch.nn.Module):
    """Blocks between an embedding and a head that share a weight."""

    def __init__(self, blocks=4):
        super().__init__()
        self.embed = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Asking(torch.nn.Module):
    """Keyword arguments, a dictionary among the inputs, two outputs, and splits in the middle of a submodule."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, extra, *, bias=None):
        x = self.first(x) + extra["a"]
        if bias is not None:
            x = x + bias
        pipe_split()
        left, right = torch.split(self.second(x), WIDTH // 2, dim=1)
        return left * right, x.sum(dim=1)


def at_beginnings(count, blocks=4):
    return {f"blocks.{index * blocks // count}": SplitPoint.BEGINNING for index in range(1, count)}


class Splitting(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.x = torch.randn(4, WIDTH)

    def check_whole(self, model, pipe, *args, **kwargs):
        expected = model(*args, **kwargs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        torch.testing.assert_close(tuple(pipe(*args, **kwargs)), expected)

    def test_numbers_of_stages(self):
        model = Tower()
        for count in (1, 2, 4):
            with self.subTest(count=count):
                pipe = pipeline(model, (self.x,), split_spec=at_beginnings(count))
                self.assertEqual(pipe.num_stages, count)
                self.check_whole(model, pipe, self.x)

    def test_beginning_and_end(self):
        model = Tower()
        spec = {"blocks.0": SplitPoint.END, "blocks.2": SplitPoint.BEGINNING, "head": SplitPoint.BEGINNING}
        pipe = pipeline(model, (self.x,), split_spec=spec)
        self.assertEqual(pipe.num_stages, 4)
        self.check_whole(model, pipe, self.x)

    def test_splits_that_cut_nothing(self):
        """Two at one place, one before the first layer, one after the last."""
        model = Tower()
        spec = {
            "embed": SplitPoint.BEGINNING,
            "blocks.0": SplitPoint.END,
            "blocks.1": SplitPoint.BEGINNING,
            "head": SplitPoint.END,
        }
        pipe = pipeline(model, (self.x,), split_spec=spec)
        self.assertEqual(pipe.num_stages, 2)
        self.check_whole(model, pipe, self.x)

    def test_the_model_is_left_alone(self):
        model = Tower()
        before = {name: module.__dict__.get("forward") for name, module in model.named_modules()}
        pipeline(model, (self.x,), split_spec=at_beginnings(2))
        self.assertEqual(before, {name: module.__dict__.get("forward") for name, module in model.named_modules()})
        with self.assertRaisesRegex(AttributeError, "referenced nonexistent module blocks.9"):
            pipeline(model, (self.x,), split_spec={"blocks.1": SplitPoint.END, "blocks.9.inner": SplitPoint.END})
        self.assertEqual(before, {name: module.__dict__.get("forward") for name, module in model.named_modules()})

    def test_names_and_hierarchy(self):
        model = Tower()
        pipe = pipeline(model, (self.x,), split_spec=at_beginnings(2))
        stages = [pipe.get_stage_module(index) for index in range(2)]
        names = [set(stage.state_dict()) for stage in stages]
        self.assertEqual(names[0] | names[1], set(model.state_dict()))
        self.assertEqual(sorted(name for name, _ in stages[0].blocks.named_children()), ["0", "1"])
        self.assertEqual(sorted(name for name, _ in stages[1].blocks.named_children()), ["2", "3"])
        # Submodules are called, so hooks and wrappers on them work.
        calls = []
        stages[1].get_submodule("blocks.2").register_forward_hook(lambda *_: calls.append(1))
        pipe(self.x)
        self.assertEqual(calls, [1])
        for stage in stages:
            for name, parameter in stage.named_parameters():
                self.assertIs(parameter, model.get_parameter(name))

    def test_buffers(self):
        model = Tower()
        pipe = pipeline(model, (self.x,), split_spec=at_beginnings(2))
        stage = pipe.get_stage_module(1)
        self.assertIn("blocks.2.offset", dict(stage.named_buffers()))
        self.assertNotIn("blocks.2.offset", stage.state_dict())
        self.assertIn("blocks.2.scale", stage.state_dict())

    def test_tied_weights(self):
        model = Tower()
        pipe = pipeline(model, (self.x,), split_spec=at_beginnings(2))
        first, last = pipe.get_stage_module(0), pipe.get_stage_module(1)
        self.assertIs(first.embed.weight, last.head.weight)
        self.assertEqual(pipe.replicated_params, [{"submod_pp_0": "embed.weight", "submod_pp_1": "head.weight"}])
        pipe(self.x)[0].square().sum().backward()
        grad = model.embed.weight.grad.clone()
        model.zero_grad()
        model(self.x).square().sum().backward()
        torch.testing.assert_close(grad, model.embed.weight.grad)

    def test_a_module_called_twice(self):
        class Again(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.other = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                x = self.inner(self.other(self.inner(x)))
                pipe_split()
                return self.inner(x)

        model = Again()
        pipe = pipeline(model, (self.x,))
        self.check_whole(model, pipe, self.x)
        self.assertEqual(set(pipe.get_stage_module(1).state_dict()), {"inner.weight", "inner.bias"})

    def test_arguments(self):
        model = Asking()
        extra, bias = {"a": torch.randn(4, WIDTH)}, torch.randn(4, WIDTH)
        pipe = pipeline(model, (self.x, extra), {"bias": bias})
        self.assertEqual(pipe.num_stages, 2)
        self.check_whole(model, pipe, self.x, extra, bias=bias)
        # The first stage is called as the model is; it passes its own output on, also to the end.
        first = pipe.get_stage_module(0)(self.x, extra, bias=bias)
        torch.testing.assert_close(pipe.get_stage_module(1)(first)[0], model(self.x, extra, bias=bias)[0])

    def test_an_input_of_a_later_stage(self):
        class Late(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(WIDTH, WIDTH)

            def forward(self, x, late):
                x = self.inner(x)
                pipe_split()
                return x * late

        model, late = Late(), torch.randn(4, WIDTH)
        pipe = pipeline(model, (self.x, late))
        self.check_whole(model, pipe, self.x, late)
        # Whoever holds the second stage gives it by name.
        second = pipe.get_stage_module(1)
        torch.testing.assert_close(second(pipe.get_stage_module(0)(self.x), late=late), model(self.x, late))

    def test_policy(self):
        def halves(traced):
            nodes = [node for node in traced.graph.nodes if node.op == "call_function"]
            with traced.graph.inserting_before(nodes[len(nodes) // 2]):
                traced.graph.call_function(aten_pipe_split_alias)
            traced.recompile()
            return traced

        model = Tower()
        pipe = pipeline(model, (self.x,), split_policy=halves)
        self.assertEqual(pipe.num_stages, 2)
        self.check_whole(model, pipe, self.x)
        with self.assertRaisesRegex(ValueError, "Cannot specify both"):
            pipeline(model, (self.x,), split_spec={}, split_policy=halves)

    def test_sequential(self):
        model = PipeSequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
        pipe = pipeline(model, (self.x,))
        self.assertEqual(pipe.num_stages, 3)
        self.check_whole(model, pipe, self.x)

    def test_data_dependent_model(self):
        class Depends(torch.nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        with self.assertRaisesRegex(RuntimeError, "cannot capture your model as a full graph"):
            pipeline(Depends(), (self.x,))

    def test_stage_numbers(self):
        pipe = pipeline(Tower(), (self.x,), split_spec=at_beginnings(2))
        for index in (-1, 2):
            with self.assertRaisesRegex(ValueError, f"Invalid stage index {index}!"):
                pipe.get_stage_module(index)
        self.assertIn("submod_pp_1", str(pipe))

    def test_placeholders_to_front(self):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        y = graph.call_function(torch.relu, (x,))
        z = graph.placeholder("z")
        graph.output((y, z))
        _move_placeholders_to_front(graph)
        self.assertEqual([node.name for node in graph.nodes], ["x", "z", "relu", "output"])


class Passing(torch.nn.Module):
    """Several values between stages, one of them without a gradient; with a skip, one goes past the second stage."""

    def __init__(self, skip):
        super().__init__()
        self.skip = skip
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.side = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        a, b, mask = self.layers[0](x), self.side(x), x[:, :1] > 0
        pipe_split()
        a = torch.tanh(self.layers[1](a)) * mask
        if not self.skip:
            b = torch.sigmoid(b)
        pipe_split()
        return self.layers[2](a) * b


def train_traced(rank, ranks, kind, skip):
    """The largest difference of a traced pipeline's outputs and gradients to those of one device."""
    torch.manual_seed(0)
    model = Passing(skip).double()
    x, target = batch(8)
    output = model(x)
    mean_loss(output, target).backward()
    pipe = pipeline(model, (x[:2],))
    stage = build_stage(pipe.get_stage_module(rank), rank, pipe.info(), torch.device("cpu"))
    expected = {name: model.get_parameter(name).grad.clone() for name, _ in stage.submod.named_parameters()}
    schedule = kind(stage, 4, loss_fn=mean_loss)
    worst = 0.0
    for _ in range(2):
        model.zero_grad()
        result = schedule.step(*([x] if rank == 0 else []), **({"target": target} if rank == ranks - 1 else {}))
        if rank == ranks - 1:
            worst = max(worst, (result - output).abs().max().item())
        for name, parameter in stage.submod.named_parameters():
            worst = max(worst, (parameter.grad - expected[name]).abs().max().item())
    return worst


class Training(unittest.TestCase):
    def test_traced_stages_over_gloo(self):
        for kind, skip in ((ScheduleGPipe, False), (Schedule1F1B, False), (ScheduleGPipe, True)):
            with self.subTest(kind=kind.__name__, skip=skip):
                self.assertLess(max(gloo_ranks(3, train_traced, kind, skip)), 1e-12)

    def test_a_skip_is_refused_by_schedules_of_several_stages(self):
        x, _ = batch(4)
        with one_rank():
            pipe = pipeline(Passing(skip=True).double(), (x[:2],))
            stages = [pipe.build_stage(index, torch.device("cpu")) for index in range(3)]
            with self.assertRaisesRegex(RuntimeError, "only supports adjacent-stage communication"):
                ScheduleInterleaved1F1B(stages, 2).step(x)

    def test_several_traced_stages_on_one_rank(self):
        torch.manual_seed(0)
        model = Tower()
        x, target = (value.float() for value in batch(8))
        mean_loss(model(x), target).backward()
        grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        with one_rank():
            for kind in SCHEDULES[2:]:
                with self.subTest(kind=kind.__name__):
                    model.zero_grad()
                    pipe = pipeline(model, (x[:2],), split_spec=at_beginnings(2))
                    stages = [pipe.build_stage(index, torch.device("cpu")) for index in range(2)]
                    kind(stages, 4, loss_fn=mean_loss).step(x, target=target)
                    for name, expected in grads.items():
                        torch.testing.assert_close(model.get_parameter(name).grad, expected)


if __name__ == "__main__":
    unittest.main()
