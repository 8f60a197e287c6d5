"""Every action as PyTorch writes it is read and written back the same."""

import itertools

import parity_case
import stagecraft_side
import torch_side
from torch.distributed.pipelining import schedules

STAGES = range(12)
MICROBATCHES = (0, 1, 7, 10, 99, 123, 4096, 100000)
WHOLE_STAGE = (schedules.UNSHARD, schedules.RESHARD, schedules.REDUCE_GRAD)


def every_action(stage):
    """Each kind on this stage; overlaps in both orders, with B and with I."""
    for kind in schedules._ComputationType:
        if kind == schedules.OVERLAP_F_B:
            for backward, mb in itertools.product((schedules.B, schedules.I), MICROBATCHES):
                parts = torch_side.Action(stage, schedules.F, mb), torch_side.Action(stage, backward, mb + 1)
                yield torch_side.Action(-1, kind, None, parts)
                yield torch_side.Action(-1, kind, None, parts[::-1])
        elif kind in WHOLE_STAGE:
            yield torch_side.Action(stage, kind)
        else:
            yield from (torch_side.Action(stage, kind, mb) for mb in MICROBATCHES)


class ActionText(parity_case.ParityCase):
    def test_every_action_comes_back(self):
        for ranks in (1, 2, 3, 5):
            rows = [[] for _ in range(ranks)]
            for stage in STAGES:
                rows[stage % ranks] += [*every_action(stage), None]
            csv = torch_side.to_csv(rows)
            ours = stagecraft_side.start("show", "-", "--format", "csv", "--align", "slots", stdin=csv)
            self.expect_csv(f"every action, {ranks} ranks", "show", ours, csv)
        self.finish(4)
