"""Models with control flow: branches, loops, scans and maps, alone, in each other, and in regions."""

import torch
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F

WIDTH = 8


class Frame(nn.Module):
    """A layer before and two after the part of interest, so that there are places to cut."""

    def __init__(self):
        super().__init__()
        self.first, self.own = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.tensor(0.7))

    def middle(self, x):
        raise NotImplementedError

    def forward(self, x):
        y = torch.tanh(self.first(x))
        y = self.middle(y)
        return self.last(torch.relu(self.second(y)) + y)


class Branch(Frame):
    """Both branches run, one after the other: the predicates are tensors, and do not depend on the batch."""

    def middle(self, x):
        def yes(x):
            return torch.sin(self.own(x)) * self.scale

        def no(x):
            return torch.cos(x) + self.own.weight.sum()

        x = torch.cond(self.scale > 0, yes, no, (x,))
        return torch.cond(self.scale < 0, yes, no, (x,))


class BranchOnData(Frame):
    def middle(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.own(x).sin(), lambda x: x * self.scale, (x,))


class BranchOnSize(Frame):
    """The predicate is a symbolic bool, and a size is an operand."""

    def middle(self, x):
        size = x.shape[0]  # even in every microbatch
        return torch.cond(size % 2 == 0, lambda x: self.own(x) * (x.shape[0] // size), lambda x: x + size, (x,))


class Loop(Frame):
    """The weights are the same in each iteration."""

    def __init__(self, times=3):
        super().__init__()
        self.times = times

    def middle(self, x):
        def condition(i, x):
            return i < self.times

        def body(i, x):
            return i + 1, torch.tanh(self.own(x)) * self.scale + x

        return while_loop(condition, body, (torch.tensor(0), x))[1]


class Scan(Frame):
    """Along the sequence; the last carried value is used too."""

    def middle(self, x):
        def step(state, item):
            state = torch.tanh(self.own(state) + item)
            return state, state * self.scale

        last, all_states = scan(step, torch.zeros_like(x[:, 0]), x, dim=1)
        return all_states + last.unsqueeze(1)


class ScanBackwards(Frame):
    """In reverse, over a tuple, with a tuple carried."""

    def middle(self, x):
        def step(state, items):
            level, count = state
            left, right = items
            level = torch.sigmoid(self.own(left)) * level + right
            return (level, count + 1), (level.clone(), count * self.scale)

        (_, count), (levels, counts) = scan(step, (torch.zeros_like(x[:, 0]), torch.ones_like(x[:, 0])), (x, x * 2), dim=1,
                                            reverse=True)  # fmt: skip
        return levels + counts + count.unsqueeze(1)


class Map(Frame):
    def middle(self, x):
        rows = x.transpose(0, 1)
        return map_over(lambda row, shift: self.own(row).sin() + shift, rows, self.scale * 2).transpose(0, 1)


class Nested(Frame):
    """A branch and a region without gradients in a scan, in a branch."""

    def middle(self, x):
        def step(state, item):
            state = torch.tanh(self.own(state) + item)
            state = torch.cond(self.scale > 0, lambda s: s * self.scale, lambda s: s - 1, (state,))
            with torch.no_grad():
                weight = torch.softmax(state, -1)
            return state, state * weight

        def yes(x):
            return scan(step, torch.zeros_like(x[:, 0]), x, dim=1)[1].contiguous()

        return torch.cond(self.scale < 1, yes, lambda x: x * 2, (x,))


class NoGrad(Frame):
    """A branch in a region without gradients."""

    def middle(self, x):
        with torch.no_grad():
            mask = torch.cond(self.scale > 0, lambda x: self.own(x).sigmoid(), lambda x: x * 2, (x,))
        return x * mask + self.own(x)


class InPlace(Frame):
    """The body changes a tensor of its own in place, and so does the model the tensor around it."""

    def middle(self, x):
        def body(x):
            y = self.own(x)
            y.mul_(2)
            return y.sin()

        y = x * 3
        y.add_(1)
        return torch.cond(self.scale > 0, body, lambda x: x.exp(), (y,))


class OneBranchOnly(Frame):
    """A layer of the branch that does not run gets gradients of zero, not none; so does an operand."""

    def middle(self, x):
        y = self.second(x)
        return torch.cond(self.scale < 0, lambda x, y: self.own(x) + y, lambda x, y: x * 2, (x, y))


class NoGradInside(Frame):
    def middle(self, x):
        def yes(x):
            with torch.no_grad():
                y = self.own(x)
            return y + self.own(x)

        return torch.cond(self.scale > 0, yes, lambda x: x * 2, (x,))


class AutocastInside(Frame):
    """A region of autocast within a branch: what it computes is in bfloat16."""

    def middle(self, x):
        def yes(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.own(x)
            return y.float()

        return torch.cond(self.scale > 0, yes, lambda x: x * 2, (x,))


class AutocastBefore(Frame):

    def forward(self, x):
        y = torch.tanh(self.first(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.second(y)
        y = torch.cond(self.scale > 0, lambda y: self.own(y.float()), lambda y: y.float() * 2, (y,))
        return self.last(y)


class Dropped(nn.Module):
    """Draws in a map, a loop and a scan: each output has the masks of one of them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))
        self.last = nn.Linear(32, 32, bias=False)
        nn.init.eye_(self.last.weight)

    def forward(self, x):
        def step(state, item):
            return state + 1, item * (torch.rand_like(item) < 0.75) / 0.75

        def body(i, y):
            return i + 1, F.dropout(y, 0.25, training=True)

        x = x * self.weight
        mapped = map_over(lambda row, w: F.dropout(row * w, 0.25, training=True), x.transpose(0, 1), self.weight).transpose(0, 1)
        looped = while_loop(lambda i, y: i < 2, body, (torch.tensor(0), x))[1]
        scanned = scan(step, torch.zeros_like(x[:, 0]), x, dim=1)[1]
        return self.last(mapped), self.last(looped), self.last(scanned)


class DroppedBranch(nn.Module):
    """Dropout in a branch and in a loop; in evaluation neither drops anything."""

    def __init__(self):
        super().__init__()
        self.own, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.tensor(0.7))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = torch.cond(self.scale > 0, lambda x: self.drop(self.own(x)), lambda x: x * 2, (x,))
        x = while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, self.drop(y) + 1), (torch.tensor(0), x))[1]
        return self.last(x)


def sequences():
    return [torch.randn(8, 6, WIDTH)]


ANY_BATCH = {"branch": Branch, "branch_on_size": BranchOnSize, "loop": Loop, "scan": Scan, "scan_backwards": ScanBackwards, "map": Map, "nested": Nested, "no_grad": NoGrad, "in_place": InPlace,
             "no_grad_inside": NoGradInside, "one_branch_only": OneBranchOnly}  # fmt: skip
WHOLE_BATCH = {"branch_on_data": BranchOnData}
AUTOCAST = {"autocast_inside": AutocastInside, "autocast_before": AutocastBefore}  # of float32, the whole batch
