"""The shapes compared: every one PyTorch accepts among these where STAGECRAFT_TEST_ALL is set, otherwise one of 16."""

import collections
import os
import random

import torch_side

ALL = "STAGECRAFT_TEST_ALL" in os.environ
SHARE = 1.0 if ALL else 1 / 16
RANKS = range(1, 9)
MICROBATCHES = (*range(1, 17), 18, 20)
#: Awkward and large: odd, prime, not a multiple of anything near, more ranks than microbatches.
LARGE = {
    "GPipe": [(16, 1, 64), (13, 1, 37), (32, 1, 5)],
    "1F1B": [(16, 1, 64), (13, 1, 37), (32, 1, 32)],
    "LoopedBFS": [(16, 2, 64), (11, 3, 23), (5, 7, 9), (32, 1, 3)],
    "Interleaved1F1B": [(16, 2, 64), (11, 3, 22), (5, 7, 10), (12, 2, 26), (9, 2, 33), (32, 1, 3)],
    "InterleavedZeroBubble": [(16, 2, 64), (11, 3, 22), (5, 7, 10), (12, 2, 26), (9, 2, 33), (32, 1, 3)],
    "ZBVZeroBubble": [(16, 2, 64), (13, 2, 37), (24, 2, 5)],
    "DualPipeV": [(16, 2, 64), (13, 2, 37), (11, 2, 22)],
}

Setting = collections.namedtuple("Setting", "name ranks stages_per_rank microbatches")
Setting.__str__ = lambda s: f"{s.name} ranks={s.ranks} stages-per-rank={s.stages_per_rank} microbatches={s.microbatches}"


def stages_per_rank_of(name):
    if name in torch_side.SINGLE_STAGE:
        return (1,)
    return (2,) if name in ("ZBVZeroBubble", "DualPipeV") else (1, 2, 3, 4)


def grid(name):
    """Shapes of one schedule, accepted by PyTorch or not."""
    for ranks in RANKS:
        for stages_per_rank in stages_per_rank_of(name):
            # Three and four stages per rank change little once two are right; fewer microbatch counts keep the run short.
            counts = MICROBATCHES if stages_per_rank <= 2 else MICROBATCHES[::2] + MICROBATCHES[-1:]
            for microbatches in counts:
                yield Setting(name, ranks, stages_per_rank, microbatches)
    for shape in LARGE[name]:
        yield Setting(name, *shape)


def accepted(name, share=1.0):
    """(setting, PyTorch's compute schedule) for every shape PyTorch accepts, or for a share of them, the same in every run."""
    rng = random.Random(name)
    for setting in grid(name):
        if rng.random() >= share * SHARE:
            continue
        rows = torch_side.compute(*setting)
        if rows is not None:
            yield setting, rows


def sample(share):
    """A share of the accepted shapes of every schedule."""
    for name in torch_side.NAMES:
        yield from accepted(name, share)
