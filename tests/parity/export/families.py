"""A model of each family that people train, small: how it is made, what it takes, and its loss."""

import dataclasses
import typing

import control_flow
import models
import torch
from torch import nn
from torch.nn import functional as F

ROWS = 16


@dataclasses.dataclass
class Family:
    make: typing.Callable[[], nn.Module]
    inputs: typing.Callable[[], dict]  # ROWS rows of each
    targets: typing.Callable[[], torch.Tensor]
    loss: typing.Callable  # of output and target
    options: tuple = ()  # of `stagecraft train`
    rows: dict = dataclasses.field(default_factory=dict)  # along which dimension, where it is not the first; None: whole
    target_rows: int = 0
    by_batch: bool = False  # its result depends on how rows are put together: one microbatch only


def classes(*sizes, count):
    """Some do not count."""
    target = torch.randint(0, count, sizes)
    target[torch.rand(sizes) < 0.2] = -100
    return target


def tokens(length=6, vocabulary=32):
    return torch.randint(0, vocabulary, (ROWS, length))


def token_loss(output, target):
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


class SqueezeBlock(nn.Module):
    """Depthwise convolution between two that mix channels, normalised by the batch, with a gate per channel."""

    def __init__(self, width):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(width, 2 * width, 1, bias=False), nn.Conv2d(2 * width, width, 1, bias=False)
        self.depth = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(2 * width), nn.BatchNorm2d(2 * width), nn.BatchNorm2d(width)])
        self.gate = nn.Linear(2 * width, 2 * width)

    def forward(self, x):
        y = F.hardswish(self.norms[0](self.enter(x)))
        y = F.relu6(self.norms[1](self.depth(y)))
        y = y * torch.sigmoid(self.gate(y.mean((2, 3))))[:, :, None, None]
        return x + self.norms[2](self.leave(y))


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)
        self.blocks = nn.ModuleList(SqueezeBlock(4) for _ in range(3))
        self.head = nn.Linear(4, 5)

    def forward(self, images):
        x = F.relu(self.norm(self.stem(images)), inplace=True)
        for block in self.blocks:
            x = block(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class EncoderDecoder(nn.Module):
    """Two texts: attention over one while the other is written."""

    def __init__(self, width=8):
        super().__init__()
        self.source, self.written = nn.Embedding(32, width), nn.Embedding(32, width)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(width, 2, 16, 0.0, batch_first=True) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(width, 2, 16, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, 32)

    def forward(self, source, written):
        memory = self.source(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.written(written)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype).triu(1)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=mask)
        return self.head(x)


class VisionTransformer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 5, width))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Recurrent(nn.Module):
    """Rows second, as the layers have them by default."""

    def __init__(self, kind):
        super().__init__()
        self.enter, self.first, self.second, self.head = nn.Linear(3, 6), kind(6, 6), kind(6, 6, bidirectional=True), nn.Linear(12, 5)

    def forward(self, x):
        y = self.first(torch.tanh(self.enter(x)))[0]
        return self.head(torch.relu(self.second(y)[0]))


class Segmentation(nn.Module):
    """Down and up again, with skips; a class for every pixel."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)])
        self.norms = nn.ModuleList([nn.GroupNorm(2, 4), nn.GroupNorm(2, 8), nn.GroupNorm(2, 8)])
        self.up, self.join, self.last = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, images):
        a = F.silu(self.norms[0](self.down[0](images)))
        b = F.silu(self.norms[1](self.down[1](F.max_pool2d(a, 2))))
        c = F.silu(self.norms[2](self.down[2](F.avg_pool2d(b, 2))))
        d = F.silu(self.join(torch.cat((self.up(c), b), 1)))
        return self.last(torch.cat((F.interpolate(d, scale_factor=2, mode="bilinear", align_corners=False), a), 1))


class Graph(nn.Module):
    """Messages along edges: gathered, weighted by attention over what arrives, added up."""

    def __init__(self, width=6):
        super().__init__()
        self.enter, self.head = nn.Linear(3, width), nn.Linear(width, 2)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.scores = nn.ModuleList(nn.Linear(2 * width, 1) for _ in range(3))

    def forward(self, nodes, edges):
        x = torch.tanh(self.enter(nodes))
        rows, count, width = x.shape
        source, target = edges[0], edges[1]
        for message, score in zip(self.messages, self.scores):
            pair = torch.cat((x.index_select(1, source), x.index_select(1, target)), -1)
            weight = torch.exp(F.leaky_relu(score(pair), 0.2))
            total = torch.zeros(rows, count, 1, dtype=x.dtype).index_add(1, target, weight)
            weight = weight / total.index_select(1, target)
            arrived = torch.zeros(rows, count, width, dtype=x.dtype).scatter_add(
                1, target[None, :, None].expand(rows, -1, width), weight * torch.tanh(message(pair)))
            x = x + arrived
        return self.head(x).mean(1)


class OwnLoss(nn.Module):
    """Takes its labels and returns its loss."""

    def __init__(self):
        super().__init__()
        self.body = models.LlamaStyle(layers=3)

    def forward(self, tokens, labels):
        logits = self.body(tokens)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Experts(nn.Module):
    """A published mixture of experts, in its default settings."""

    def __init__(self):
        super().__init__()
        import transformers  # only where it is asked for

        self.body = transformers.MixtralForCausalLM(transformers.MixtralConfig(
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=48, vocab_size=32, use_cache=False,
            num_experts_per_tok=2, num_local_experts=4))  # fmt: skip

    def forward(self, input_ids):
        return self.body(input_ids=input_ids).logits


EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])


def number(*sizes):
    return torch.randn(*sizes, dtype=torch.float64)


FAMILIES = {
    "decoder": Family(lambda: models.LlamaStyle(layers=4), lambda: {"tokens": tokens()}, lambda: classes(ROWS, 6, count=32), token_loss),
    "state_space": Family(lambda: models.MambaStyle(layers=3), lambda: {"tokens": tokens()}, lambda: classes(ROWS, 6, count=32), token_loss),
    "depthwise": Family(Depthwise, lambda: {"images": number(ROWS, 3, 8, 8)}, lambda: classes(ROWS, count=5), F.cross_entropy, by_batch=True),
    "encoder_decoder": Family(EncoderDecoder, lambda: {"source": tokens(5), "written": tokens(4)}, lambda: classes(ROWS, 4, count=32), token_loss),
    "vision_transformer": Family(VisionTransformer, lambda: {"images": number(ROWS, 3, 8, 8)}, lambda: classes(ROWS, count=5), F.cross_entropy),
    "lstm": Family(lambda: Recurrent(nn.LSTM), lambda: {"x": number(4, ROWS, 3)}, lambda: number(4, ROWS, 5), F.huber_loss,
                   ("--loss", "huber"), {"x": 1}, 1),
    "gru": Family(lambda: Recurrent(nn.GRU), lambda: {"x": number(4, ROWS, 3)}, lambda: classes(4, ROWS, count=5), token_loss, (), {"x": 1}, 1),
    "segmentation": Family(Segmentation, lambda: {"images": number(ROWS, 3, 8, 8)}, lambda: classes(ROWS, 8, 8, count=3), F.cross_entropy),
    "graph": Family(Graph, lambda: {"nodes": number(ROWS, 5, 3), "edges": EDGES}, lambda: number(ROWS, 2), F.mse_loss, ("--loss", "mse"), {"edges": None}),
    "experts": Family(Experts, lambda: {"input_ids": tokens()}, lambda: classes(ROWS, 6, count=32), token_loss),
    "control_flow": Family(control_flow.Nested, lambda: {"x": number(ROWS, 6, control_flow.WIDTH)}, lambda: number(ROWS, 6, control_flow.WIDTH),
                           F.mse_loss, ("--loss", "mse")),
    "own_loss": Family(OwnLoss, lambda: {"tokens": tokens(), "labels": tokens()}, lambda: None, lambda output, _: output["loss"], ("--loss", "output")),
}  # fmt: skip
