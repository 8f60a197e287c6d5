"""Tables, passes and text against those of the installed torch.distributed.pipelining."""

import os
import tempfile
import types
import unittest

from torch.distributed.pipelining import schedules as theirs

from stagecraft.pipelining import _tables
from stagecraft.pipelining import schedules as ours
from stagecraft.pipelining._schedule_visualizer import get_schedule_ops

NAMES = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def mock_stages(ranks, per_rank):
    return [
        types.SimpleNamespace(group_rank=0, group_size=ranks, num_stages=ranks * per_rank, submod=None)
        for _ in range(per_rank)
    ]


def text(table):
    return {rank: [action and str(action) for action in row] for rank, row in table.items()}


def without_reshard(table):
    """A set's order decides in which order PyTorch frees several stages at once."""
    return {rank: [one for one in row if one is None or not one.endswith("RESHARD")] for rank, row in text(table).items()}


class Tables(unittest.TestCase):
    def test_compute_and_lowered_tables(self):
        compared = 0
        for name in NAMES:
            for ranks in (1, 2, 3, 4):
                for per_rank in (1, 2, 3):
                    for microbatches in (1, 2, 3, 4, 6, 8):
                        for late in (False, True):
                            compared += self.compare(name, ranks, per_rank, microbatches, late)
        self.assertGreater(compared, 200)

    def compare(self, name, ranks, per_rank, microbatches, late):
        stages = mock_stages(ranks, per_rank)
        try:
            wanted = theirs.get_schedule_class(name)(stages, microbatches, defer_pp_recv=late)
        except ValueError as error:
            with self.assertRaisesRegex(ValueError, str(error)[:20].replace("(", ".")):
                ours.get_schedule_class(name)(stages, microbatches)
            return 0
        found = ours.get_schedule_class(name)(stages, microbatches, defer_pp_recv=late)
        with self.subTest(name=name, ranks=ranks, per_rank=per_rank, microbatches=microbatches, late=late):
            self.assertEqual(text(found.pipeline_order), text(wanted.pipeline_order))
            self.assertEqual(
                without_reshard(found.pipeline_order_with_comms), without_reshard(wanted.pipeline_order_with_comms)
            )
            self.assertEqual(found.stage_index_to_group_rank, wanted.stage_index_to_group_rank)
        return 1

    def test_one_stage_per_rank(self):
        for ranks in (1, 2, 3, 4):
            for microbatches in (1, 2, 4, 7):
                for table in (_tables.gpipe(ranks, microbatches), _tables.one_f_one_b(ranks, microbatches)):
                    self.assertEqual(
                        ours._validate_schedule(table, ranks, ranks, microbatches), {r: r for r in range(ranks)}
                    )
                    lowered = ours._add_send_recv(table, lambda stage: stage, ranks)
                    ours._simulate_comms_compute(lowered, lambda stage: stage, ranks)

    def test_passes_leave_their_input_alone(self):
        table = _tables.zbv(2, 4)
        before = text(table)
        ours._merge_bw(table[0])
        ours._add_send_recv(table, lambda stage: (0, 1, 1, 0)[stage], 4)
        self.assertEqual(text(table), before)

    def test_a_table_that_cannot_run(self):
        rows = {0: [ours._Action.from_str("0RECV_B0")], 1: [ours._Action.from_str("1RECV_F0")]}
        with self.assertRaisesRegex(ValueError, "not progressing: rank 0 waits at 0RECV_B0"):
            ours._simulate_comms_compute(rows, lambda stage: stage, 2)
        with self.assertRaisesRegex(AssertionError, "Malformed compute schedule"):
            ours._add_send_recv({0: [ours._Action.from_str("1F0")]}, lambda stage: stage, 2)

    def test_csv(self):
        stages = mock_stages(4, 2)
        schedule = ours.ScheduleDualPipeV(stages, 8)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.csv")
            schedule._dump_csv(path, format="compute_only")
            loaded = ours._PipelineScheduleRuntime(stages, 8)
            loaded._load_csv(path)
            self.assertEqual(loaded.pipeline_order_with_comms, schedule.pipeline_order_with_comms)
            schedule._dump_csv(path)
            loaded._load_csv(path, format="compute_comms")
            self.assertEqual(loaded.pipeline_order_with_comms, schedule.pipeline_order_with_comms)
            with self.assertRaises(NotImplementedError):
                loaded._load_csv(path, format="json")

    def test_table_as_text(self):
        table = {0: [ours._Action.from_str("0F0"), None], 1: [None, ours._Action.from_str("1F10")], 2: []}
        self.assertEqual(
            ours._format_pipeline_order(table, 1),
            "        Rank 0 Rank 1 Rank 2\n"
            "Step 0: 0F0                 \n"
            "Step 1:        1F10          <-- ERROR HERE\n",
        )

    def test_visualizer(self):
        for name in ("GPipe", "1F1B", *NAMES):
            with self.subTest(name=name):
                rows = get_schedule_ops(name, 2, 4, with_comms=True)
                self.assertTrue(any("SEND" in str(action) for action in rows[0]))
                spaced = get_schedule_ops(name, 2, 4, add_spacing=True)
                plain = get_schedule_ops(name, 2, 4)
                for found, wanted in zip(spaced, plain, strict=True):
                    busy = [one for one in wanted if one is not None and one.is_compute_op]
                    self.assertEqual([one for one in found if one is not None], busy)


if __name__ == "__main__":
    unittest.main()
