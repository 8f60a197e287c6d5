"""The split backward gives every gradient that the whole one gives, and runs the same hooks."""

import copy
import unittest

import torch

from stagecraft.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight


class Awkward(torch.nn.Module):
    """Weights used twice, weights beside the path from input to output, an output that is an input, an output that is a view."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.c, self.d = torch.nn.Parameter(torch.randn(4)), torch.nn.Parameter(torch.randn(4, 4))
        self.unused = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        h = torch.relu(self.a(x))
        y = self.b(h) * self.c + self.a(h) @ (self.d * self.c)
        return y, torch.tanh(self.d @ self.d), x, y.view(-1)


class SplitBackward(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.model = Awkward().double()
        self.x = torch.randn(3, 4, dtype=torch.double)
        with torch.no_grad():
            self.grads = [torch.randn_like(output) for output in self.model(self.x)]

    def run_one(self, split, needs_grad, grads):
        model = copy.deepcopy(self.model)
        x = self.x.clone().requires_grad_(needs_grad)
        hooks = []
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: hooks.append(name))
        outputs = model(x)
        if split:
            dinputs, groups = stage_backward_input(list(outputs), grads, [x], model.parameters())
            self.assertTrue(all(parameter.grad is None for parameter in model.parameters()))
            del outputs
            stage_backward_weight(model.parameters(), groups)
        else:
            dinputs = stage_backward(outputs, grads, [x])
        return dinputs[0], {name: parameter.grad for name, parameter in model.named_parameters()}, sorted(hooks)

    def compare(self, needs_grad, grads):
        whole, split = self.run_one(False, needs_grad, grads), self.run_one(True, needs_grad, grads)
        torch.testing.assert_close(split[:2], whole[:2])
        self.assertEqual(split[2], whole[2])

    def test_input_with_a_gradient(self):
        self.compare(True, self.grads)

    def test_input_without_a_gradient(self):
        self.compare(False, [self.grads[0], self.grads[1], None, self.grads[3]])

    def test_some_outputs_without_a_gradient(self):
        self.compare(True, [None, self.grads[1], self.grads[2], None])
        self.compare(True, [self.grads[0], None, None, None])

    def test_a_loss_must_be_a_scalar_in_both(self):
        x = self.x.clone().requires_grad_()
        for run in (
            lambda out: stage_backward(out, None, [x]),
            lambda out: stage_backward_input([out], None, [x], self.model.parameters()),
        ):
            with self.assertRaises(RuntimeError) as caught:
                run(self.model(x)[0])
            self.assertIn("only for scalar outputs", str(caught.exception.__cause__))

    def test_custom_function_and_checkpoint(self):
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return x @ weight, weight * 2

            @staticmethod
            def backward(ctx, dx, dw):
                x, weight = ctx.saved_tensors
                return dx @ weight.t(), x.t() @ dx + 2 * dw

        weight = torch.randn(4, 4, dtype=torch.double, requires_grad=True)
        inner = torch.nn.Linear(4, 4).double()

        def run(x):
            y, doubled = Twice.apply(x, weight)
            y = torch.utils.checkpoint.checkpoint(inner, y, use_reentrant=False)
            return (torch.tanh(y) @ doubled).sum()

        x = self.x.clone().requires_grad_()
        leaves = [weight, *inner.parameters()]
        expected = torch.autograd.grad(run(x), [x, *leaves])
        dinputs, groups = stage_backward_input([run(x)], None, [x], leaves)
        found = stage_backward_weight(leaves, groups)
        torch.testing.assert_close([dinputs[0], *found], list(expected))

    def test_only_the_given_weights(self):
        x = self.x.clone().requires_grad_()
        _, groups = stage_backward_input([self.model(x)[0].sum()], None, [x], [self.model.c])
        stage_backward_weight([self.model.c], groups)
        self.assertIsNotNone(self.model.c.grad)
        self.assertIsNone(self.model.a.weight.grad)


if __name__ == "__main__":
    unittest.main()
