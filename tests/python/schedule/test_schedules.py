"""Schedules: made by name, from CSV and from rows; passes; the same bytes as the command's."""

import copy
import json
import pickle
import unittest

import stagecraft as sc
from command import CommandCase

RANKS, MICROBATCHES = 3, 7


class Named(CommandCase):
    def test_every_generator_gives_the_bytes_of_the_command(self):
        for generator in sc.generators():
            with self.subTest(generator.name):
                schedule = sc.Schedule.named(generator.name, ranks=RANKS, microbatches=MICROBATCHES)
                asked = ["schedule", generator.name, "--ranks", RANKS, "--microbatches", MICROBATCHES, "--format"]
                self.assertEqual(schedule.to_csv(), self.output(*asked, "csv"))
                self.assertEqual(schedule.to_json(), self.output(*asked, "json"))
                self.assertEqual(schedule.to_table(), self.output(*asked, "table"))
                self.assertEqual(schedule.to_svg(), self.output(*asked, "svg"))
                self.assertEqual(schedule.to_trace(), self.output(*asked, "trace"))
                self.assertEqual(schedule.placement_style, "linear" if generator.default_stages_per_rank == 1
                                 else generator.placement)

    def test_stages_per_rank_and_memory_limit(self):
        schedule = sc.Schedule.named("interleaved_1f1b", ranks=2, microbatches=4, stages_per_rank=3)
        self.assertEqual((schedule.ranks, schedule.stages, schedule.microbatches), (2, 6, 4))
        self.assertEqual(schedule.to_csv(), self.output("schedule", "Interleaved1F1B", "--ranks", 2, "--microbatches", 4,
                                                        "--stages-per-rank", 3, "--format", "csv"))
        limited = [own.name for own in sc.generators() if own.takes_memory_limit]
        for name in limited:
            schedule = sc.Schedule.named(name, ranks=4, microbatches=8, memory_limit=3)
            self.assertEqual(schedule.to_csv(), self.output("schedule", name, "--ranks", 4, "--microbatches", 8,
                                                            "--memory-limit", 3, "--format", "csv"))

    def test_lists_are_those_of_the_command(self):
        listed = json.loads(self.output("list", "--format", "json"))
        self.assertEqual([own.name for own in sc.generators()], [own["name"] for own in listed["schedules"]])
        self.assertEqual([own.summary for own in sc.generators()], [own["summary"] for own in listed["schedules"]])
        self.assertEqual([(own.name, own.summary) for own in sc.passes()],
                         [(own["name"], own["summary"]) for own in listed["passes"]])
        self.assertEqual(sc.DEFAULT_LOWERING, listed["default_lowering"])

    def test_unknown_name_in_the_words_of_the_command(self):
        with self.assertRaises(sc.InvalidArgument) as caught:
            sc.Schedule.named("2F2B", ranks=4, microbatches=8)
        self.assertEqual(str(caught.exception) + "\n",
                         self.error("schedule", "2F2B", "--ranks", 4, "--microbatches", 8))


class Rows(CommandCase):
    def test_csv_both_ways(self):
        schedule = sc.Schedule.named("DualPipeV", ranks=2, microbatches=6)
        self.assertEqual(sc.Schedule.from_csv(schedule.to_csv()), schedule)
        self.assertEqual(sc.Schedule.from_csv(schedule.to_csv().encode(), "mine").name, "mine")
        schedule.write(self.folder / "dual.csv")
        self.assertEqual((self.folder / "dual.csv").read_bytes().decode(), schedule.to_csv())
        read = sc.Schedule.read(self.folder / "dual.csv")
        self.assertEqual((read, read.name), (schedule, "dual"))
        self.assertEqual(read.to_csv(), self.output("show", "dual.csv", "--format", "csv"))

    def test_rows_are_actions(self):
        for generator in sc.generators():
            schedule = sc.Schedule.named(generator.name, ranks=RANKS, microbatches=MICROBATCHES).lower()
            again = sc.Schedule(schedule.rows, schedule.name)
            self.assertEqual(again, schedule)
            self.assertEqual(again.to_csv(), schedule.to_csv())
        self.assertEqual(sc.Schedule([["0F0", None, "0B0"]]).rows,
                         [[sc.Action.forward(0, 0), None, sc.Action.backward(0, 0)]])

    def test_actions_and_their_text(self):
        self.assertEqual(sc.Action.from_text("2F0"), sc.Action("F", 2, 0))
        self.assertEqual(sc.Action.from_text(" 3UNSHARD "), sc.Action("UNSHARD", 3))
        self.assertIsNone(sc.Action.from_text(""))
        both = sc.Action.from_text("(0F5;7B2)OVERLAP_F_B")
        self.assertEqual(both.parts, (sc.Action("F", 0, 5), sc.Action("B", 7, 2)))
        for kind in sc.KINDS:
            action = both if kind == "OVERLAP_F_B" else sc.Action.from_text(
                f"1{kind}" if kind in ("UNSHARD", "RESHARD", "REDUCE_GRAD") else f"1{kind}4")
            self.assertEqual((sc.Action.from_text(action.text), str(action)), (action, action.text))

    def test_facts(self):
        schedule = sc.Schedule.named("ZBVZeroBubble", ranks=2, microbatches=4)
        self.assertEqual(schedule.placement, (0, 1, 1, 0))
        self.assertEqual(schedule.slots, sum(map(len, schedule.rows)))
        self.assertEqual(schedule.actions, sum(cell is not None for row in schedule.rows for cell in row))
        self.assertEqual(schedule.idle_slots, schedule.slots - schedule.actions)
        self.assertEqual((schedule.is_lowered, schedule.trains, schedule.communicates), (False, True, False))
        self.assertEqual((schedule.lower().is_lowered, schedule.lower().communicates), (True, True))

    def test_copies_and_pickles_are_equal(self):
        for schedule in (sc.Schedule.named("1F1B", ranks=4, microbatches=8),
                         sc.Schedule.named("DualPipeV", ranks=4, microbatches=8).lower()):
            for other in (copy.copy(schedule), copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
                self.assertEqual((other, other.name, hash(other)), (schedule, schedule.name, hash(schedule)))
        self.assertNotEqual(schedule, sc.Schedule.named("1F1B", ranks=4, microbatches=8))
        self.assertNotEqual(schedule, "1F1B")


class Passes(CommandCase):
    def test_lowered_schedules_have_the_bytes_of_the_command(self):
        for name in ("1F1B", "InterleavedZeroBubble", "DualPipeV"):
            schedule = sc.Schedule.named(name, ranks=4, microbatches=8)
            schedule.write(self.folder / "s.csv")
            self.assertEqual(schedule.lower().to_csv(), self.output("lower", "s.csv"))
            for passes in ("merge_backward,send_recv,place_receives", "unshard_reshard=2,reduce_grad,send_recv",
                           "send_recv,defer_receives"):
                with self.subTest(name, passes=passes):
                    expected = self.output("lower", "s.csv", "--passes", passes)
                    self.assertEqual(schedule.lower(passes).to_csv(), expected)
                    self.assertEqual(schedule.lower(passes.split(",")).to_csv(), expected)

    def test_each_pass_by_its_own_name(self):
        schedule = sc.Schedule.named("ZBVZeroBubble", ranks=2, microbatches=4)
        for own in sc.passes():
            before = schedule.send_recv() if own.name.endswith("receives") else schedule
            with self.subTest(own.name):
                self.assertEqual(getattr(before, own.name)(), before.lower(own.name))
        self.assertEqual(schedule.unshard_reshard(2), schedule.lower("unshard_reshard=2"))
        self.assertEqual(schedule.lower([]), schedule)

    def test_refusals(self):
        schedule = sc.Schedule.named("1F1B", ranks=2, microbatches=4)
        with self.assertRaisesRegex(sc.InvalidArgument, "merge_backward"):
            schedule.lower("no_such_pass")
        with self.assertRaises(sc.InvalidArgument):
            schedule.unshard_reshard(0)
        with self.assertRaises(sc.ScheduleError):
            schedule.send_recv().send_recv()


if __name__ == "__main__":
    unittest.main()
