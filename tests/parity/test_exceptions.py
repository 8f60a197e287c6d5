"""Each exception is still needed with the installed PyTorch. When one of these fails, PyTorch has changed: drop the entry."""

import unittest

import exceptions
import torch_side
from torch.distributed.pipelining import schedules


def texts(row):
    return [str(action) for action in row]


class StillNeeded(unittest.TestCase):
    def test_every_exception_has_a_test(self):
        tested = {name.removeprefix("test_") for name in dir(self) if name.startswith("test_")}
        self.assertLessEqual(set(exceptions.REASONS), tested)

    def test_1f1b_last_rank(self):
        self.assertEqual(texts(torch_side.table("1F1B", 2, 1, 2)[1])[:2], ["1F1", "1B0"])
        self.assertEqual(texts(torch_side.executed_order("1F1B", 1, 2, 2))[:2], ["1F0", "1B0"])

    def test_1f1b_other_ranks_agree(self):
        for ranks in range(2, 6):
            rows = torch_side.table("1F1B", ranks, 1, ranks + 3)
            for rank in range(ranks - 1):
                self.assertEqual(rows[rank], torch_side.executed_order("1F1B", rank, ranks, ranks + 3))

    def test_reduce_grad_in_table(self):
        for name in torch_side.SINGLE_STAGE:
            rows = torch_side.table(name, 2, 1, 4)
            self.assertEqual([str(row[-1]) for row in rows], ["0REDUCE_GRAD", "1REDUCE_GRAD"])

    def test_reshard_order(self):
        overlap = torch_side.Action.from_str("(1F0;8B0)OVERLAP_F_B")
        row = schedules._add_unshard_reshard([overlap])
        self.assertEqual(texts(row[-2:]), ["8RESHARD", "1RESHARD"])
        self.assertEqual(texts(exceptions.ascending_reshards(row)[-2:]), ["1RESHARD", "8RESHARD"])
