"""Models split by both packages, in one process: the same stages, names, values and refusals."""

import importlib
import unittest
from types import SimpleNamespace

import torch

PACKAGES = ("torch.distributed.pipelining", "stagecraft.pipelining")
WIDTH = 8


def package(name):
    return importlib.import_module(name)


class Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Chain(torch.nn.Module):
    """A Sequential, to be cut by names."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(Perceptron() for _ in range(6)))

    def forward(self, x):
        return self.layers(x)


class Shared(torch.nn.Module):
    """A weight used in two stages, and a value that goes past one."""

    def __init__(self, pipe_split):
        super().__init__()
        self.pipe_split = pipe_split
        self.weight, self.other = (torch.nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2))
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        x = x @ self.weight
        past = x
        x = torch.relu(x + y)
        self.pipe_split()
        x = self.first(x @ self.weight)
        self.pipe_split()
        x = (torch.relu(x) + past) @ self.other
        self.pipe_split()
        return torch.relu(self.last(x))


class Aliases(torch.nn.Module):
    """A parameter and a module under two names each, a name per stage."""

    def __init__(self, pipe_split):
        super().__init__()
        self.pipe_split = pipe_split
        self.right = self.left = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.late = self.early = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        x = torch.relu(self.early(x @ self.left + y))
        self.pipe_split()
        return torch.relu(self.late(x @ self.right))


class Again(torch.nn.Module):
    """Calls modules several times, with modules inside."""

    def __init__(self, pipe_split):
        super().__init__()
        self.pipe_split = pipe_split
        self.other, self.again = torch.nn.Linear(WIDTH, WIDTH), Perceptron()

    def forward(self, x):
        x = self.again(self.again(self.other(x)))
        self.pipe_split()
        return self.again(self.other(self.again(x)))


class Block(torch.nn.Module):
    """Is cut in its middle, and changes what it got in place."""

    def __init__(self, pipe_split):
        super().__init__()
        self.pipe_split = pipe_split
        self.mix = torch.nn.Conv1d(3, 3, 3, padding=1)
        self.first, self.act, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, shift=None):
        x = self.first(self.mix(x))
        self.pipe_split()
        x.add_(shift)
        return self.act(self.second(x))


class Blocks(torch.nn.Module):
    def __init__(self, pipe_split):
        super().__init__()
        self.pipe_split = pipe_split
        self.one, self.two = Block(pipe_split), Block(pipe_split)

    def forward(self, x, shift=None):
        x = self.one(x, shift=shift)
        self.pipe_split()
        return self.two(x, shift=shift)


class Holding(torch.nn.Module):
    """Buffers of both kinds, a constant, several outputs."""

    def __init__(self, pipe_split):
        super().__init__()
        self.pipe_split = pipe_split
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.register_buffer("shift", torch.ones(WIDTH), persistent=False)

    def forward(self, x):
        x = self.first(x) * self.scale
        self.pipe_split()
        x = self.last(x) + self.shift + torch.tensor([2.0])
        return x, x.sum(dim=1)


class Normed(torch.nn.Module):
    """Buffers that change in training."""

    def __init__(self, pipe_split):
        super().__init__()
        self.pipe_split = pipe_split
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(WIDTH) for _ in range(2))

    def forward(self, x):
        x = self.norms[0](self.first(x))
        self.pipe_split()
        return self.norms[1](self.last(x))


def split(name, make, *args, spec=None, **kwargs):
    """The pipe of one package, from a model with the same weights for both."""
    pipelining = package(name)
    torch.manual_seed(3)
    model = make(pipelining.pipe_split) if make is not Chain else Chain()
    if spec is not None:
        spec = {module: getattr(pipelining.SplitPoint, point) for module, point in spec.items()}
    pipe = pipelining.pipeline(model, args, kwargs or None, split_spec=spec)
    return SimpleNamespace(model=model, pipe=pipe, stages=[pipe.get_stage_module(index) for index in range(pipe.num_stages)])


class SameSplits(unittest.TestCase):
    def check(self, make, *args, stages, spec=None, given=None, **kwargs):
        """given: the arguments of the call, if they differ from those of the trace."""
        found = [split(name, make, *args, spec=spec, **kwargs) for name in PACKAGES]
        theirs, ours = found
        self.assertEqual([one.pipe.num_stages for one in found], [stages, stages])
        call_args, call_kwargs = given if given is not None else (args, kwargs)
        expected = ours.model(*(value.clone() for value in call_args), **call_kwargs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for one in found:
            torch.testing.assert_close(tuple(one.pipe(*(value.clone() for value in call_args), **call_kwargs)), expected)
        names = set(ours.model.state_dict())
        for index, (their, our) in enumerate(zip(theirs.stages, ours.stages, strict=True)):
            with self.subTest(stage=index):
                self.assertLessEqual(set(our.state_dict()), names)
                self.assertEqual(
                    {name for name, _ in our.named_parameters()}, {name for name, _ in their.named_parameters()}
                )
                self.assertEqual(sorted(name for name, _ in our.named_buffers()), sorted(name for name, _ in their.named_buffers()))
                modules = {name for name, module in ours.model.named_modules() if list(module.parameters(recurse=False))}
                self.assertEqual(
                    {name for name, _ in our.named_modules()} & modules, {name for name, _ in their.named_modules()} & modules
                )
        self.assertEqual(
            [list(one.values()) for one in ours.pipe.replicated_params], [list(one.values()) for one in theirs.pipe.replicated_params]
        )
        return found

    def setUp(self):
        torch.manual_seed(0)
        self.x, self.y = torch.randn(4, WIDTH), torch.randn(4, WIDTH)

    def test_by_names(self):
        for count in (2, 3, 6):
            spec = {f"layers.{6 * index // count}": "BEGINNING" for index in range(1, count)}
            theirs, ours = self.check(Chain, self.x, stages=count, spec=spec)
            layers = [[name for name, _ in stage.layers.named_children()] for stage in ours.stages]
            self.assertEqual(layers, [[name for name, _ in stage.layers.named_children()] for stage in theirs.stages])
            self.assertEqual(sum(layers, []), [str(index) for index in range(6)])
        self.check(Chain, self.x, stages=3, spec={"layers.1": "END", "layers.3": "END"})

    def test_a_weight_of_two_stages_and_a_skip(self):
        self.check(Shared, self.x, self.y, stages=4)

    def test_aliases(self):
        """Of a module with two names torch leaves both in the later stage; ours has the one that it calls."""
        pipelining = package(PACKAGES[1])
        torch.manual_seed(3)
        model = Aliases(pipelining.pipe_split)
        pipe = pipelining.pipeline(model, (self.x, self.y))
        self.assertEqual(pipe.num_stages, 2)
        torch.testing.assert_close(pipe(self.x, self.y)[0], model(self.x, self.y))
        names = [set(dict(stage.named_parameters())) for stage in (pipe.get_stage_module(0), pipe.get_stage_module(1))]
        theirs = split(PACKAGES[0], Aliases, self.x, self.y)
        for ours, stage in zip(names, theirs.stages, strict=True):
            self.assertLessEqual(ours, {name for name, _ in stage.named_parameters()})
        self.assertEqual(names, [{"left", "early.weight", "early.bias"}, {"left", "late.weight", "late.bias"}])

    def test_cut_in_the_middle_of_modules(self):
        x, shift = torch.randn(1, 3, WIDTH), torch.ones(1, 3, WIDTH)
        with torch.no_grad():  # torch makes leaves of the values between stages, which must not be changed in place
            self.check(Blocks, x, stages=4, given=((x, shift), {}), shift=shift)
            self.check(Blocks, x, stages=4, shift=shift)

    def test_a_module_that_is_called_again(self):
        """torch makes a module of every call (again@1); ours calls the module again, so that what is put on it works for all calls."""
        found = [split(name, Again, self.x) for name in PACKAGES]
        for one in found:
            self.assertEqual(one.pipe.num_stages, 2)
            torch.testing.assert_close(one.pipe(self.x)[0], one.model(self.x))
        ours = found[1]
        names = [sorted(stage.state_dict()) for stage in ours.stages]
        self.assertEqual(names, [sorted(ours.model.state_dict())] * 2)
        for stage, calls in zip(ours.stages, (2, 2), strict=True):
            seen = []
            handle = stage.again.register_forward_hook(lambda *_, seen=seen: seen.append(1))
            ours.pipe(self.x)
            handle.remove()
            self.assertEqual(len(seen), calls)
        ours.pipe(self.x)[0].square().sum().backward()
        gradients = {name: parameter.grad.clone() for name, parameter in ours.model.named_parameters()}
        ours.model.zero_grad()
        ours.model(self.x).square().sum().backward()
        for name, parameter in ours.model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)

    def test_a_call_that_differs_stays_where_it_was(self):
        pipelining = package(PACKAGES[1])

        class Switch(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Perceptron()

            def forward(self, x, twice):
                return self.inner(self.inner(x)) if twice else self.inner(x) * 2

        class Both(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.switch = Switch()

            def forward(self, x):
                return self.switch(self.switch(x, True), False)

        model = Both()
        pipe = pipelining.pipeline(model, (self.x,))
        torch.testing.assert_close(pipe(self.x)[0], model(self.x))
        self.assertEqual(sorted(pipe.get_stage_module(0).state_dict()), sorted(model.state_dict()))

    def test_buffers_and_several_outputs(self):
        self.check(Holding, self.x, stages=2)

    def test_buffers_that_change(self):
        for found in self.check(Normed, self.x, stages=2):
            before = found.stages[1].norms.get_submodule("1").num_batches_tracked.item()
            found.pipe(self.x)
            self.assertEqual(found.stages[1].norms.get_submodule("1").num_batches_tracked.item(), before + 1)


if __name__ == "__main__":
    unittest.main()
