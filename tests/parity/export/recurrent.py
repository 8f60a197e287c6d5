"""Recurrent models, models with grouped products, with operators of a library, and with vmap."""

import torch
from torch import nn

WIDTH = 8


class Recurrent(nn.Module):
    """Two layers, in both directions; the last state is used too."""

    def __init__(self, kind, **options):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.body = getattr(nn, kind)(WIDTH, 6, num_layers=2, batch_first=True, bidirectional=True, **options)
        self.second, self.last = nn.Linear(12, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y, state = self.body(torch.tanh(self.first(x)))
        state = state[0] if isinstance(state, tuple) else state
        return self.last(torch.relu(self.second(y))) + state.sum(0).sum(-1)[:, None, None]


class Normalised(nn.Module):
    """Instance normalisation with running statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.InstanceNorm1d(6, affine=True, track_running_stats=True)
        nn.init.uniform_(self.norm.running_mean)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Experts(nn.Module):
    """Rows sorted by expert, a grouped product each; expert 2 gets no row."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(4, 6, WIDTH) / 3)
        self.register_buffer("expert", torch.tensor([0, 3, 1, 1, 3, 0]))

    def forward(self, x):
        y = torch.tanh(self.first(x))
        rows = y.reshape(-1, WIDTH)
        chosen = self.expert.repeat(x.shape[0])
        chosen, order = torch.sort(chosen, stable=True)
        ends = torch.cumsum(torch.histc(chosen.float(), bins=4, min=0, max=3), 0, dtype=torch.int32)
        made = torch.ops.transformers.grouped_mm_fallback(rows[order], self.weight.transpose(-2, -1), ends)
        made.add_(1)
        back = torch.zeros_like(made).index_copy(0, order, made)
        return self.last(torch.cat([y, back.reshape(x.shape[0], 6, 6)], -1)[..., -WIDTH:] + y)


class Groups(nn.Module):
    """A grouped product whose groups end at these rows."""

    def __init__(self, ends):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, WIDTH))
        self.register_buffer("ends", torch.tensor(ends, dtype=torch.int32))

    def forward(self, x):
        return torch.ops.transformers.grouped_mm_fallback(x, self.weight, self.ends)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        y = torch.ops.stagecraft_test.square(torch.tanh(self.first(x)), 0.5)
        y = torch.relu(self.middle(y)) + y
        return self.last(torch.ops.stagecraft_test.square(y, 2.0))


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.first(x)
        return self.last(torch.vmap(lambda row: row * row.sum(-1, keepdim=True).sin())(y))


def define_grouped_product():
    """The operator as `transformers` defines it to Python, for an environment without that package."""
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return

    def groups(ends):
        begin = 0
        for i, end in enumerate(ends.tolist()):
            if begin < end:
                yield i, slice(begin, end)
            begin = end

    @torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=(),
                             schema="(Tensor input, Tensor weight, Tensor offs) -> Tensor")  # fmt: skip
    def product(input, weight, offs):
        made = input.new_zeros(input.size(0), weight.size(2))
        for i, rows in groups(offs):
            made[rows] = input[rows] @ weight[i]
        return made

    def backward(context, gradient):
        input, weight, offs = context.saved_tensors
        of_input, of_weight = torch.zeros_like(input), torch.zeros_like(weight)
        for i, rows in groups(offs):
            of_input[rows] = gradient[rows] @ weight[i].T
            of_weight[i] = input[rows].T @ gradient[rows]
        return of_input, of_weight, None

    product.register_fake(lambda input, weight, offs: input.new_empty(input.size(0), weight.size(2)))
    product.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
