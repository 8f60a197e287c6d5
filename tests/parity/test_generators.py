"""Every generator, idle slots included, and what it lowers to, over every shape PyTorch accepts in a grid."""

import parity_case
import settings
import stagecraft_side
import torch_side


class Generators(parity_case.ParityCase):
    def compare(self, name, at_least):
        for setting, rows in settings.accepted(name):
            shape = stagecraft_side.shape(*setting)
            compute = stagecraft_side.start(*shape, "--format", "csv")
            lowered = stagecraft_side.start(*shape, "--lower", "--format", "csv")
            self.expect_csv(setting, "", compute, torch_side.to_csv(rows))
            rows = torch_side.run_passes(rows, torch_side.DEFAULT_LOWERING)
            self.expect_csv(setting, "--lower", lowered, torch_side.to_csv(rows))
        self.finish(2 * at_least)

    def test_gpipe(self):
        self.compare("GPipe", 140)

    def test_1f1b(self):
        self.compare("1F1B", 100)

    def test_looped_bfs(self):
        self.compare("LoopedBFS", 400)

    def test_interleaved_1f1b(self):
        self.compare("Interleaved1F1B", 250)

    def test_interleaved_zero_bubble(self):
        self.compare("InterleavedZeroBubble", 250)

    def test_zbv_zero_bubble(self):
        self.compare("ZBVZeroBubble", 140)

    def test_dual_pipe_v(self):
        self.compare("DualPipeV", 70)


class RecordedSteps(parity_case.ParityCase):
    """Single-stage schedules against what PyTorch's step really computes, rank by rank, rather than against its table."""

    def compare(self, name, shapes):
        for ranks, microbatches in shapes:
            rows = [torch_side.executed_order(name, rank, ranks, microbatches) for rank in range(ranks)]
            setting = settings.Setting(name, ranks, 1, microbatches)
            # A step has no idle slots, so a pass that drops them stands in front of the comparison. PyTorch's step ends with
            # the reduction of the gradients; forward-only has none to merge or to reduce.
            drop_idle = "merge_backward" if name == "ForwardOnly" else "reduce_grad"
            ours = stagecraft_side.start(*stagecraft_side.shape(*setting), "--passes", drop_idle, "--format", "csv")
            self.expect_csv(setting, "as executed", ours, torch_side.to_csv(rows))
        self.finish(len(shapes))

    def test_gpipe(self):
        self.compare("GPipe", [(p, m) for p in settings.RANKS for m in (1, 2, 3, 5, 8, 13)])

    def test_1f1b(self):
        self.compare("1F1B", [(p, p + extra) for p in settings.RANKS for extra in (0, 1, 2, 5, 12)])

    def test_forward_only(self):
        self.compare("ForwardOnly", [(p, m) for p in settings.RANKS for m in (1, 2, 5, 8)])
