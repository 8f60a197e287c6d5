"""PyTorch's deferred receives pair wrong messages on a transport that matches by order alone. `check` says so.

A message is identified there by its place in the order between two ranks: as soon as the receiver's order differs from the
sender's, a tensor lands in another's buffer.
"""

import collections

import parity_case
import settings
import stagecraft_side
import torch_side
from torch.distributed.pipelining import schedules

DEFERRED = f"{torch_side.DEFAULT_LOWERING},defer_receives"
PLACED = f"{torch_side.DEFAULT_LOWERING},place_receives"
#: Silently wrong gradients with PyTorch over Gloo.
KNOWN_WRONG = [settings.Setting("ZBVZeroBubble", 2, 2, 3), settings.Setting("InterleavedZeroBubble", 2, 2, 3)]


def orders_agree(rows):
    """Whether each rank receives from each other rank in the order that one sends."""
    rank_of = torch_side.stage_to_rank([[a for a in row if a.is_compute_op] for row in rows])
    sent, received = collections.defaultdict(list), collections.defaultdict(list)
    for rank, row in enumerate(rows):
        for action in row:
            stage, kind, microbatch = action[:3]
            if kind in (schedules.SEND_F, schedules.SEND_B):
                peer = stage + 1 if kind == schedules.SEND_F else stage - 1
                sent[rank, rank_of[peer]].append((kind == schedules.SEND_F, peer, microbatch))
            elif kind in (schedules.RECV_F, schedules.RECV_B):
                peer = stage - 1 if kind == schedules.RECV_F else stage + 1
                received[rank_of[peer], rank].append((kind == schedules.RECV_F, stage, microbatch))
    return sent == received


class DeferredReceives(parity_case.ParityCase):
    def expect_models(self, setting, form, csv, expected):
        def verdict(result):
            models = result.json()["models"]
            wrong = [f"{m} is {models[m]['ok']}, not {ok}" for m, ok in expected.items() if models[m]["ok"] != ok]
            return "; ".join(wrong)

        self.expect(setting, form, parity_case.check(csv), verdict)

    def test_known_wrong(self):
        for setting in KNOWN_WRONG:
            rows = torch_side.run_passes(torch_side.compute(*setting), DEFERRED)
            self.assertFalse(orders_agree(rows), str(setting))
            expected = {"tagged": True, "in_order": False, "rendezvous": False}
            self.expect_models(setting, "deferred", torch_side.to_csv(rows), expected)
        self.finish(len(KNOWN_WRONG))

    def test_in_order_is_refused_exactly_when_orders_differ(self):
        agreeing = collections.Counter()
        for setting, rows in settings.sample(0.1):
            deferred = torch_side.run_passes(rows, DEFERRED)
            agree = orders_agree(deferred)
            agreeing[agree] += 1
            self.expect_models(setting, "deferred", torch_side.to_csv(deferred), {"tagged": True, "in_order": agree})
        self.assertGreater(min(agreeing[True], agreeing[False]), 10 * settings.SHARE, "both cases must occur")
        self.finish(150)

    def test_early_and_placed_receives_are_safe_everywhere(self):
        safe = {"tagged": True, "in_order": True, "rendezvous": True}
        for setting, rows in settings.sample(0.1):
            early = torch_side.run_passes(rows, torch_side.DEFAULT_LOWERING)
            self.expect_models(setting, "early", torch_side.to_csv(early), safe)
            placed = stagecraft_side.run(*stagecraft_side.shape(*setting), "--passes", PLACED, "--format", "csv")
            self.expect_models(setting, "placed", placed.out, safe)
        self.finish(300)
