"""A model split into stages computes what the model computes, under the model's names, and leaves the model alone."""

import copy
import unittest

import torch
from stagecraft.pipelining._IR import (
    LossWrapper,
    Pipe,
    PipeSequential,
    SplitPoint,
    TrivialLossWrapper,
    _move_placeholders_to_front,
    annotate_split_points,
    aten_pipe_split_alias,
    pipe_split,
    pipeline,
)
from stagecraft.pipelining._unflatten import _outline_submodules
from torch import fx, nn
from torch.utils._pytree import tree_leaves

WIDTH = 4
BEGINNING, END = SplitPoint.BEGINNING, SplitPoint.END


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


class Tower(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def batch(rows=3):
    return torch.randn(rows, WIDTH)


def split(model, *args, stages, spec=None, policy=None, **kwargs):
    """A pipe of so many stages whose outputs and names were compared with the model's."""
    pipe = pipeline(model, args, kwargs or None, split_spec=spec, split_policy=policy)
    assert pipe.num_stages == stages
    names = set()
    for index in range(stages):
        names |= set(pipe.get_stage_module(index).state_dict())
    assert names <= set(model.state_dict())
    reference = copy.deepcopy(model)
    for got, expected in zip(copy.deepcopy(pipe)(*args, **kwargs), tree_leaves(reference(*args, **kwargs)), strict=True):
        torch.testing.assert_close(got, expected)
    return pipe


def keys(pipe, stage):
    return list(pipe.get_stage_module(stage).state_dict())


class Skips(nn.Module):
    """Values that skip a stage, one of them without a gradient; keyword inputs that different stages use."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x, *, scale, late):
        constant = self.shift.clone()
        a = self.a(x) * scale
        pipe_split()
        b = self.b(a)
        pipe_split()
        return self.c(b) + a + constant, b * late


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, pair, options=None):
        x = self.a(pair["left"] + pair["right"][0])
        pipe_split()
        return {"out": self.b(x), "hidden": (x, 7)}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, WIDTH)
        self.middle = Block()
        self.head = nn.Linear(WIDTH, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.middle(self.embed(tokens)))


class Repeats(nn.Module):
    """A module called twice in one stage and once in another, with a buffer that each call updates."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        x = self.norm(self.block(self.block(x)))
        pipe_split()
        return self.norm(self.block(x))


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("saved", torch.randn(WIDTH))
        self.inner.register_buffer("derived", torch.randn(WIDTH), persistent=False)
        self.constant = torch.randn(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.no_grad():
            offset = self.inner.derived + torch.tensor([1.0, 2.0, 3.0, 4.0])
        x = self.linear(x) + self.inner.saved
        pipe_split()
        return x * self.inner.derived + self.constant + offset


class Splitting(unittest.TestCase):
    def test_a_stage_keeps_names_and_modules_of_the_model(self):
        model = Tower(3)
        pipe = split(model, batch(), stages=3, spec={"layers.1": BEGINNING, "layers.2": BEGINNING})
        assert keys(pipe, 1) == [name for name in model.state_dict() if name.startswith("layers.1")]
        assert [name for name, _ in pipe.get_stage_module(2).layers.named_children()] == ["2"]
        block = pipe.get_stage_module(1).get_submodule("layers.1")
        x = batch()
        torch.testing.assert_close(block(x), model.layers[1](x))
        # The stages share the model's parameters.
        assert block.first.weight is model.layers[1].first.weight

    def test_gradients_of_the_whole_pipe_are_the_models(self):
        model = Tower(2)
        reference = copy.deepcopy(model)
        pipe = pipeline(model, (batch(),), split_spec={"layers.0": END})
        x = batch()
        pipe(x)[0].sum().backward()
        reference(x).sum().backward()
        for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad)

    def test_split_points_may_lie_anywhere(self):
        for place, spec, stages in (
            ("before the first", {"layers.0": BEGINNING}, 1),
            ("inside the last", {"layers.2.second": END}, 2),  # the sum of the block comes after it
            ("after the last", {"layers.2": END}, 1),
            ("adjacent", {"layers.0": END, "layers.1": BEGINNING}, 2),
            ("nested", {"layers.0.first": BEGINNING, "layers.1.second": BEGINNING, "layers.1": END}, 3),
        ):
            with self.subTest(place):
                split(Tower(3), batch(), stages=stages, spec=spec)

    def test_the_model_is_unchanged(self):
        model = Tower(2)
        model.layers[1].forward = kept = model.layers[1].forward  # a forward set by the user stays the user's
        before = {name: dict(module.__dict__) for name, module in model.named_modules()}
        for _ in range(2):
            pipe = pipeline(model, (batch(),), split_spec={"layers.0": END, "layers.1": END, "layers.1.first": END})
            assert pipe.num_stages == 3
        for name, module in model.named_modules():
            assert module.__dict__.keys() == before[name].keys()
        assert model.layers[1].__dict__["forward"] == kept
        assert pipeline(model, (batch(),)).num_stages == 1

    def test_the_model_is_unchanged_if_it_cannot_be_captured(self):
        class Stubborn(Tower):
            def forward(self, x):
                x = super().forward(x)
                return x if x.sum() > 0 else -x

        model = Stubborn(1)
        with self.assertRaisesRegex(RuntimeError, "cannot capture your model as a full graph"):
            pipeline(model, (batch(),), split_spec={"layers.0": END})
        assert "forward" not in model.layers[0].__dict__

    def test_wrong_specs_are_refused_before_anything_changes(self):
        model = Tower(1)
        with self.assertRaisesRegex(AttributeError, r"layers.0.third referenced nonexistent module layers.0.third"):
            pipeline(model, (batch(),), split_spec={"layers.0": END, "layers.0.third": END})
        with self.assertRaisesRegex(AttributeError, r"nonexistent module layer$"):
            pipeline(model, (batch(),), split_spec={"layer.0": END})
        with self.assertRaisesRegex(ValueError, "Unknown split point type"):
            pipeline(model, (batch(),), split_spec={"layers.0": 1})
        with self.assertRaisesRegex(ValueError, "Cannot specify both"):
            pipeline(model, (batch(),), split_spec={}, split_policy=lambda graph: graph)
        assert "forward" not in model.layers[0].__dict__

    def test_annotations_stay(self):
        model = Tower(2)
        annotate_split_points(model, {"layers.0": END})
        split(model, batch(), stages=2)

    def test_values_may_skip_stages_and_keywords_reach_any_stage(self):
        pipe = split(Skips(), batch(), scale=torch.tensor(2.0), late=torch.tensor(3.0), stages=3)
        calls = [node for node in pipe.info().graph.nodes if node.op == "call_module"]
        assert [call.target for call in calls] == ["submod_pp_0", "submod_pp_1", "submod_pp_2"]
        # Activations come before the model's inputs, which a later stage takes by keyword.
        last = [node.target for node in pipe.get_stage_module(2).graph.find_nodes(op="placeholder")]
        assert last[-1] == "late" and "scale" not in last and len(last) == 4
        first, x, scale = pipe.get_stage_module(0), batch(), torch.tensor(2.0)
        torch.testing.assert_close(first(x, scale=scale), first(x, scale))
        for node in pipe.get_stage_module(2).graph.find_nodes(op="placeholder"):
            assert "val" in node.meta

    def test_nested_inputs_and_outputs(self):
        pair = {"left": batch(), "right": [batch()]}
        pipe = split(Nested(), pair, stages=2)
        assert pipe(pair)[2] == 7
        torch.testing.assert_close(pipe.get_stage_module(0)(pair), pipe(pair)[1])
        # A keyword that is no tensor is a constant of the graph.
        assert pipeline(Nested(), (pair,), {"options": None})(pair)[2] == 7

    def test_outputs_of_the_last_stage_keep_their_order(self):
        class Two(nn.Module):
            def forward(self, x):
                y = x + 1
                pipe_split()
                first, second = y * 2, y * 3
                return second, first

        x = batch()
        pipe = split(Two(), x, stages=2)
        second, first = pipe.get_stage_module(1)(x)
        torch.testing.assert_close(second, x * 3)
        torch.testing.assert_close(first, x * 2)

    def test_tied_parameters_stay_one_tensor(self):
        model, tokens = Tied(), torch.tensor([0, 3, 3])
        pipe = split(model, tokens, stages=3, spec={"middle": BEGINNING, "head": BEGINNING})
        assert keys(pipe, 0) == ["embed.weight"] and keys(pipe, 2) == ["head.weight"]
        assert pipe.get_stage_module(0).embed.weight is pipe.get_stage_module(2).head.weight
        assert pipe.replicated_params == [{"submod_pp_0": "embed.weight", "submod_pp_2": "head.weight"}]
        # Both stages add to one gradient.
        reference = copy.deepcopy(model)
        pipe(tokens)[0].sum().backward()
        reference(tokens).sum().backward()
        torch.testing.assert_close(model.embed.weight.grad, reference.embed.weight.grad)

    def test_a_tied_parameter_that_moves_alone_is_copied(self):
        pipe = pipeline(Tied(), (torch.tensor([0, 3]),), split_spec={"head": BEGINNING})
        shared = pipe.get_stage_module(0).embed.weight
        pipe._copy_shared_to(1, torch.device("cpu"))
        assert pipe.get_stage_module(1).head.weight is shared
        pipe._copy_shared_to(1, torch.device("meta"))
        assert pipe.get_stage_module(1).head.weight.is_meta
        assert pipe.get_stage_module(0).embed.weight is shared and not shared.is_meta

    def test_a_module_called_several_times(self):
        model, x = Repeats(), batch()
        pipe = split(model, x, stages=2)
        assert set(keys(pipe, 0)) == set(keys(pipe, 1)) == set(model.state_dict())
        assert len(pipe.get_stage_module(1).graph.find_nodes(op="placeholder")) == 1
        before = copy.deepcopy(model)
        pipe(x)
        before(x)
        assert model.norm.num_batches_tracked == 2
        torch.testing.assert_close(model.norm.running_mean, before.norm.running_mean)

    def test_buffers_keep_their_kind(self):
        pipe = split(Buffers(), batch(), stages=2)
        assert set(keys(pipe, 0)) == {"inner.saved", "linear.weight", "linear.bias"}
        for either in (pipe, copy.deepcopy(pipe)):
            stage = either.get_stage_module(1)
            assert list(stage.state_dict()) == []
            assert {"inner.derived", "constant"} <= {name for name, _ in stage.named_buffers()}
        with self.assertRaisesRegex(ValueError, "Invalid stage index 2!"):
            pipe.get_stage_module(2)

    def test_operators_follow_the_stage_to_its_device(self):
        class Makes(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = Block()

            def forward(self, x):
                return self.block(x) + torch.arange(WIDTH, device=x.device) + torch.ones(WIDTH).to(x.device)

        from stagecraft.pipelining._pipe import _create_tensors_on

        stage = pipeline(Makes(), (batch(),)).get_stage_module(0)
        _create_tensors_on(stage, torch.device("meta"))
        assert stage.to("meta")(batch().to("meta")).is_meta

    def test_a_policy_inserts_the_splits(self):
        def before_each_linear(graph_module):
            for node in list(graph_module.graph.nodes):
                if node.target is torch.ops.aten.linear.default:
                    with graph_module.graph.inserting_before(node):
                        graph_module.graph.call_function(aten_pipe_split_alias)
            return graph_module

        split(Tower(2), batch(), stages=4, policy=before_each_linear)

    def test_sequential_and_loss_wrappers(self):
        layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        sequential = PipeSequential.from_sequential(layers)
        split(sequential, batch(), stages=3)
        split(TrivialLossWrapper(sequential, nn.MSELoss()), batch(), batch(), stages=3)
        with self.assertRaisesRegex(NotImplementedError, "forward"):
            LossWrapper(layers, None)(batch())

    def test_info_holds_no_module(self):
        pipe = pipeline(Tower(2), (batch(),), split_spec={"layers.1": BEGINNING})
        info = pipe.info()
        assert (info.num_stages, info.has_loss_and_backward, info.graph.owning_module) == (2, False, None)
        assert str(info.graph) == str(pipe.split_gm.graph)
        assert "submod_pp_1" in str(pipe)
        assert isinstance(pipe, Pipe)

    def test_pipe_names_inputs_it_does_not_know(self):
        pipe = pipeline(Tower(1), (batch(),))
        torch.testing.assert_close(pipe(x=torch.ones(3, WIDTH)), pipe(torch.ones(3, WIDTH)))
        with self.assertRaisesRegex(TypeError, "mask"):
            pipe(batch(), mask=None)

    def test_move_placeholders_to_front(self):
        graph = fx.Graph()
        a = graph.placeholder("a")
        negative = graph.call_function(torch.neg, (a,))
        positive = graph.call_function(torch.abs, (a,))
        b = graph.placeholder("b")
        c = graph.placeholder("c")
        end = graph.output((negative, positive, b, c))
        _move_placeholders_to_front(graph)
        graph.lint()
        assert list(graph.nodes) == [a, b, c, negative, positive, end]
        _move_placeholders_to_front(empty := fx.Graph())
        assert not list(empty.nodes)

    def test_outline_of_a_bare_graph(self):
        exported = torch.export.export(Tower(2), (batch(),))
        module = _outline_submodules(exported.graph)
        assert [node.target for node in module.graph.find_nodes(op="call_module")] == ["layers.0", "layers.1"]


class BlockMasks(unittest.TestCase):
    """Of flex attention, cut along the batch; beside torch's."""

    def setUp(self):
        from torch.nn.attention.flex_attention import create_block_mask

        lengths = torch.tensor([5, 9, 16, 2, 12])
        self.rows, self.length = len(lengths), 16
        self.mask = create_block_mask(
            lambda b, h, q, k: (q >= k) & (k < lengths[b]), self.rows, None, self.length, self.length, device="cpu", BLOCK_SIZE=4
        )

    def test_parts(self):
        from torch.distributed.pipelining import microbatch as theirs
        from stagecraft.pipelining import microbatch as ours

        row, place = torch.tensor(0), torch.arange(self.length)
        for count in (1, 2, 3, 5):
            parts = [package._split_block_mask(self.mask, count) for package in (theirs, ours)]
            self.assertEqual([len(one) for one in parts], [count, count])
            for expected, part in zip(*parts, strict=True):
                self.assertTrue(torch.equal(part.to_dense(), expected.to_dense()))
                for b in range(part.kv_num_blocks.shape[0]):
                    for q in place:
                        values = [one.mask_mod(row + b, row, q, place) for one in (expected, part)]
                        self.assertTrue(torch.equal(*values))
        with self.assertRaisesRegex(AssertionError, "fewer batch size"):
            ours._split_block_mask(self.mask, 6)

    def test_what_trainers_look_up(self):
        """The whole mask and the first row, in the closure of a part's function."""
        from stagecraft.pipelining.microbatch import _split_block_mask

        for first, part in zip((0, 2, 4), _split_block_mask(self.mask, 3), strict=True):
            function = part.mask_mod
            found = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True)}
            self.assertEqual(found["idx"], first)
            self.assertIs(found["block_mask"], self.mask)


if __name__ == "__main__":
    unittest.main()
