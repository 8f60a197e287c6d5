"""Stage to rank maps: loop, V, and whatever a file says."""

import parity_case
import random_schedules
import settings
import stagecraft_side
import torch_side
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

STYLES = {"GPipe": "loop", "LoopedBFS": "loop", "InterleavedZeroBubble": "loop", "ZBVZeroBubble": "v", "DualPipeV": "v"}


class Placement(parity_case.ParityCase):
    def expect_placement(self, setting, ours, expected):
        def verdict(result):
            got = result.json()["placement"]
            return "" if got == expected else f"PyTorch places the stages on ranks {expected}, ours on {got}"

        self.expect(setting, "placement", ours, verdict)

    def test_named_schedules(self):
        for name, style in STYLES.items():
            for ranks in (*settings.RANKS, 16):
                for per_rank in settings.stages_per_rank_of(name):
                    setting = settings.Setting(name, ranks, per_rank, 2 * ranks)
                    mapping = generate_stage_to_rank_mapping(ranks, ranks * per_rank, style)
                    ours = stagecraft_side.start(*stagecraft_side.shape(*setting), "--format", "json")
                    self.expect_placement(setting, ours, [mapping[stage] for stage in sorted(mapping)])
        self.finish(80)

    def test_read_from_a_file(self):
        for schedule in random_schedules.many(60):
            rows = torch_side.from_texts(schedule.rows)
            mapping = schedules._validate_schedule(
                torch_side.order_of(rows), schedule.ranks, schedule.stages, schedule.microbatches
            )
            ours = stagecraft_side.start("show", "-", "--format", "json", stdin=schedule.csv())
            self.expect_placement(schedule, ours, [mapping[stage] for stage in sorted(mapping)])
        self.finish(60)
