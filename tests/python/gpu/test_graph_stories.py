"""Python modules as graphs under random stories: what callers do between steps, with replicas, split backwards, evaluations, lanes and ragged batches."""

import itertools
import os
import random
import unittest

import torch
from graph_case import DEVICE, WIDTH, Block, GraphCase

STEPS = 12
MASKS = [torch.full((WIDTH,), 1 + 0.1 * i, device=DEVICE) for i in range(3)]


class Storied(Block):
    """Has a mask or none, and a state that it makes when it has none and then changes."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.mask, self.average, self.others = None, None, {}

    def forward(self, x):
        x = super().forward(x)
        mean = x.detach().mean((0, 1))
        if self.average is None:
            self.average = mean.clone()
        elif self.training:
            self.average.lerp_(mean, 0.1)
        x = x - self.average.clone()
        for mask in (self.mask, *self.others.values()):
            if mask is not None:
                x = x * mask
        return x


def set_mask(module, number):
    module.mask = MASKS[number]


def take_mask(module, number):
    module.mask = None


def take_state(module, number):
    module.average = None


def give_state(module, number):
    module.average = torch.full((WIDTH,), number / 10, device=DEVICE)


def add_another(module, number):
    module.others[number] = MASKS[number]


def take_others(module, number):
    module.others = {}


class Story:
    """Drawn from a seed: how a run is set up, and what is done before which step to which stage of which replica."""

    def __init__(self, seed):
        draw = random.Random(seed)
        ranks, self.stages = draw.choice((1, 2)), 4
        actions = (set_mask, set_mask, take_mask, take_state, take_state, give_state, add_another, take_others)
        self.done = {
            (step, stage, replica): (draw.choice(actions), draw.randrange(len(MASKS)))
            for step, stage, replica in itertools.product(range(STEPS), range(self.stages), range(2))
            if draw.random() < 0.06
        }
        evaluated, short = set(draw.sample(range(STEPS), draw.choice((0, 2)))), set(draw.sample(range(STEPS), draw.choice((0, 3))))
        self.options = {
            "ranks": ranks,
            "replicas": draw.choice((1, 1, 2)),
            "stages_per_rank": self.stages // ranks,
            "schedule": draw.choice(("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")),
            "microbatches": draw.choice((2, 4)),
            "dropout": draw.choice((0.0, 0.1)),
            "evaluates": evaluated.__contains__,
            "rows": lambda step: 16 if step in short else 32,
            **draw.choice(({}, {"lanes": 1})),
        }

    def block(self):
        numbers = itertools.count()

        def make(dropout):
            block = Storied(dropout)
            block.number = next(numbers)
            return block

        return make

    def before(self, step, modules):
        for module in modules:
            action, number = self.done.get((step, module.number % self.stages, module.replica), (None, 0))
            if action is not None:
                action(module, number)


class GraphStories(GraphCase):
    def test_random_stories(self):
        first = int(os.environ.get("STAGECRAFT_STORIES_SEED", random.randrange(1 << 30)))
        replayed = 0
        for seed in range(first, first + int(os.environ.get("STAGECRAFT_STORIES", 8))):
            with self.subTest(f"STAGECRAFT_STORIES_SEED={seed}"):
                story = Story(seed)
                replayed += self.same(None, block=story.block(), before=story.before, steps=STEPS, **story.options).replayed
        self.assertGreater(replayed, 0, f"STAGECRAFT_STORIES_SEED={first}")


if __name__ == "__main__":
    unittest.main()
