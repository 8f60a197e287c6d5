"""stagecraft list"""

import json
import unittest

from command_case import CommandCase

SCHEDULES = ["ForwardOnly", "GPipe", "1F1B", "Eager1F1B", "ZB-H1", "ZB-H2", "LoopedBFS", "Interleaved1F1B",
             "InterleavedZeroBubble", "ZBVZeroBubble", "V-Half", "V-Min", "1F1B-V", "DualPipeV"]
PASSES = ["merge_backward", "unshard_reshard", "reduce_grad", "send_recv", "defer_receives", "place_receives"]


class List(CommandCase):
    def listed(self):
        return json.loads(self.output("list", "--format", "json"))

    def test_json_lists_schedules_and_passes(self):
        listed = self.listed()
        self.assertEqual([s["name"] for s in listed["schedules"]], SCHEDULES)
        self.assertEqual([p["name"] for p in listed["passes"]], PASSES)
        self.assertEqual(listed["default_lowering"], "unshard_reshard,reduce_grad,send_recv")
        for schedule in listed["schedules"]:
            self.assertIn(schedule["placement"], ["linear", "loop", "v"])
            self.assertLessEqual(schedule["min_stages_per_rank"], schedule["default_stages_per_rank"])
            self.assertLessEqual(schedule["default_stages_per_rank"], schedule["max_stages_per_rank"])
            for text in ["bubble", "memory", "summary"]:
                self.assertTrue(schedule[text])
        self.assertEqual([s["name"] for s in listed["schedules"] if s["takes_memory_limit"]], ["Eager1F1B"])

    def test_table_has_the_same_in_aligned_columns(self):
        lines = self.output("list").splitlines()
        header = lines[0]
        for schedule, line in zip(self.listed()["schedules"], lines[1:]):
            for title, field in [("SCHEDULE", "name"), ("PLACEMENT", "placement"), ("BUBBLE", "bubble"),
                                 ("MEMORY", "memory"), ("SUMMARY", "summary")]:
                self.assertTrue(line[header.index(title):].startswith(schedule[field]), line)
        for name in PASSES:
            self.assertTrue(any(line.startswith(name + " ") for line in lines), name)

    def test_output_file_chooses_the_format(self):
        self.assertEqual(self.output("list", "-o", "list.json"), "")
        self.assertEqual(json.loads((self.folder / "list.json").read_text()), self.listed())

    def test_every_listed_schedule_can_be_made_and_is_safe(self):
        for name in SCHEDULES:
            with self.subTest(name):
                verdict = self.output("schedule", name, "--ranks", 4, "--microbatches", 8, "--check", "--format", "none")
                self.assertEqual(verdict, f"{name}: safe under tagged, in_order and rendezvous, after send_recv\n")


if __name__ == "__main__":
    unittest.main()
