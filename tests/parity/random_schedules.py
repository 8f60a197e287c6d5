"""Random legal compute schedules, by seed: any placement, any order that can run, B or I and W, idle slots, overlaps.

All stages are worked off in one global order, an action at a time from those whose inputs exist; each rank's row is its part
of that order, so the rows can run together.
"""

import random

import settings


class RandomSchedule:
    """`rows` holds action texts, "" for an idle slot; `rank_of` the rank of each stage."""

    def __init__(self, seed, overlaps=True):
        self.seed = seed
        self.kind = "random schedule" if overlaps else "random schedule without overlaps"
        rng = self._rng = random.Random(seed)
        self.ranks = rng.randint(1, 6)
        self.rank_of = random_placement(rng, self.ranks)
        self.stages = len(self.rank_of)
        self.microbatches = rng.randint(1, 8)
        self._split_share = rng.choice((0.0, 0.5, 1.0))
        self._overlap_share = rng.choice((0.0, 0.3, 0.9)) if overlaps else 0.0
        self._idle_share = rng.choice((0.0, 0.1, 0.4))
        # How much this schedule favours each kind: breadth first, depth first, weights late, and so on.
        self._weight_of = {kind: rng.choice((1, 3, 20)) for kind in "FBIW"}
        self.rows = [[] for _ in range(self.ranks)]
        self._work_off()

    def __str__(self):
        shape = f"{self.ranks} ranks, {self.stages} stages, {self.microbatches} microbatches"
        return f"{self.kind} seed={self.seed} ({shape})"

    def csv(self):
        lines = ('""' if row == [""] else ",".join(row) for row in self.rows)
        return "".join(line + "\r\n" for line in lines).encode()

    def _work_off(self):
        rng = self._rng
        ready = [("F", 0, mb) for mb in range(self.microbatches)]
        while ready:
            chosen = self._choose(ready)
            taken = [chosen]
            if chosen[0] == "F" and rng.random() < self._overlap_share:
                taken += self._partner(chosen, ready)
            for action in taken:
                ready.remove(action)
            self._write(taken)
            for action in taken:
                ready += self._enabled_by(action)
        for row in self.rows:
            row += [""] * (rng.randint(0, 2) if self._idle_share else 0)

    def _choose(self, ready):
        return self._rng.choices(ready, [self._weight_of[kind] for kind, _, _ in ready])[0]

    def _partner(self, forward, ready):
        rank = self.rank_of[forward[1]]
        backwards = [a for a in ready if a[0] in "BI" and self.rank_of[a[1]] == rank]
        return [self._rng.choice(backwards)] if backwards else []

    def _write(self, taken):
        rng = self._rng
        row = self.rows[self.rank_of[taken[0][1]]]
        while rng.random() < self._idle_share:
            row.append("")
        texts = [f"{stage}{kind}{microbatch}" for kind, stage, microbatch in taken]
        if len(texts) == 2 and rng.random() < 0.2:
            texts.reverse()
        row.append(texts[0] if len(texts) == 1 else f"({';'.join(texts)})OVERLAP_F_B")

    def _enabled_by(self, action):
        kind, stage, microbatch = action
        if kind == "F" and stage + 1 < self.stages:
            return [("F", stage + 1, microbatch)]
        if kind == "W":
            return []
        # The last forward enables its own backward; a backward that of the stage before it, and the W of its I.
        weight = [("W", stage, microbatch)] if kind == "I" else []
        before = stage if kind == "F" else stage - 1
        if before < 0:
            return weight
        return weight + [(("I" if self._rng.random() < self._split_share else "B"), before, microbatch)]


def random_placement(rng, ranks):
    """Linear, loop, V, or any map that leaves no rank empty."""
    per_rank = rng.randint(1, 3)
    style = rng.choice(("loop", "v", "any", "any"))
    if style == "loop":
        return [stage % ranks for stage in range(ranks * per_rank)]
    if style == "v":
        there_and_back = list(range(ranks)) + list(range(ranks - 1, -1, -1))
        return [there_and_back[stage % (2 * ranks)] for stage in range(ranks * per_rank)]
    placement = list(range(ranks)) + [rng.randrange(ranks) for _ in range(rng.randint(0, 14))]
    rng.shuffle(placement)
    return placement


def many(count, overlaps=True):
    """So many of them, or the share that the run compares."""
    return [RandomSchedule(seed, overlaps) for seed in range(max(1, round(count * settings.SHARE)))]
