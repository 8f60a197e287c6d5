"""The composition of passes is the one PyTorch's runtime runs: its own lowering gives the same file.

Compared without exceptions wherever the order of RESHARDs leaves no doubt.
"""

import exceptions
import parity_case
import settings
import stagecraft_side
import torch_side
from torch.distributed.pipelining import schedules


class RuntimeLowering(parity_case.ParityCase):
    def compare(self, passes, defer):
        for setting, rows in settings.sample(0.15):
            runtime = schedules._PipelineScheduleRuntime(
                torch_side.mock_stages(setting.ranks, setting.stages_per_rank), setting.microbatches, defer_pp_recv=defer
            )
            runtime._prepare_schedule_with_comms(torch_side.order_of(rows))
            unsharded = [schedules._add_unshard_reshard(list(row)) for row in rows]
            if [exceptions.ascending_reshards(row) for row in unsharded] != unsharded:
                continue
            ours = stagecraft_side.start(*stagecraft_side.shape(*setting), "--passes", passes, "--format", "csv")
            expected = torch_side.to_csv(torch_side.rows_of(runtime.pipeline_order_with_comms))
            self.expect_csv(setting, f"runtime {passes}", ours, expected)
        self.finish(100)

    def test_default(self):
        self.compare(torch_side.DEFAULT_LOWERING, defer=False)

    def test_deferred(self):
        self.compare(torch_side.DEFAULT_LOWERING + ",defer_receives", defer=True)
