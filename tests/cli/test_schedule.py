"""stagecraft schedule"""

import json
import unittest
import xml.etree.ElementTree as xml

from command_case import OK, REFUSED, UNUSABLE, CommandCase, rows_of

SHAPE = ["--ranks", "2", "--microbatches", "2"]


def without_idle(csv):
    return [[cell for cell in row if cell] for row in rows_of(csv)]


class Formats(CommandCase):
    def make(self, *more):
        return self.output("schedule", "GPipe", *SHAPE, *more)

    def test_csv_is_pytorchs(self):
        csv = self.make("--format", "csv")
        self.assertEqual(without_idle(csv), [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]])
        self.assertTrue(csv.endswith("\r\n"))

    def test_table_is_the_default_and_plain_in_a_pipe(self):
        table = self.make()
        self.assertEqual(table, self.make("--format", "table"))
        self.assertIn("Rank 0", table.splitlines()[0])
        self.assertIn("Step 0: 0F0", table)
        self.assertNotIn("\x1b", table)

    def test_json(self):
        data = json.loads(self.make("--format", "json"))
        self.assertEqual((data["name"], data["ranks"], data["stages"], data["microbatches"]), ("GPipe", 2, 2, 2))
        self.assertEqual(data["placement"], [0, 1])
        self.assertEqual([[cell for cell in row if cell] for row in data["rows"]],
                         without_idle(self.make("--format", "csv")))

    def test_svg(self):
        root = xml.fromstring(self.make("--format", "svg"))
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")

    def test_trace(self):
        trace = json.loads(self.make("--format", "trace"))
        names = {event.get("name") for event in trace["traceEvents"]}
        self.assertTrue({"0F0", "1B1"} <= names, names)

    def test_none_writes_nothing_without_check(self):
        self.assertEqual(self.make("--format", "none"), "")
        self.assertEqual(self.make("--format", "none", "-o", "file"), "")
        self.assertFalse((self.folder / "file").exists())

    def test_extension_of_the_output_chooses_the_format(self):
        for name, format_ in [("s.csv", "csv"), ("s.json", "json"), ("s.svg", "svg"), ("s.txt", "table"), ("csv", "table")]:
            with self.subTest(name):
                self.assertEqual(self.make("-o", name), "")
                self.assertEqual((self.folder / name).read_bytes().decode(), self.make("--format", format_))

    def test_format_beats_the_extension(self):
        self.make("--format", "csv", "-o", "s.json")
        self.assertEqual((self.folder / "s.json").read_bytes().decode(), self.make("--format", "csv"))

    def test_colour_when_asked_for(self):
        self.assertIn("\x1b[", self.make("--colour", "always"))
        self.assertIn("\x1b[", self.make("--color", "always"))
        self.assertNotIn("\x1b[", self.make("--colour", "never"))


class Shapes(CommandCase):
    def test_name_in_any_spelling(self):
        expected = self.output("schedule", "ZB-H1", *SHAPE)
        for name in ["zb-h1", "ZBH1", "zb_h1"]:
            self.assertEqual(self.output("schedule", name, *SHAPE), expected)

    def test_stages_per_rank(self):
        def stages(*more):
            args = ["schedule", "Interleaved1F1B", *SHAPE, "--format", "json", *more]
            return json.loads(self.output(*args))["stages"]
        self.assertEqual(stages("--stages-per-rank", "3"), 6)
        self.assertEqual(stages(), 4)

    def test_memory_limit(self):
        def live(limit):
            path = self.generate("eager.csv", "Eager1F1B", 4, 8, "--memory-limit", limit)
            return json.loads(self.output("check", path, "--format", "json"))["peak_live_activations"]["max"]
        self.assertEqual([live(5), live(7)], [5, 7])

    def test_what_a_schedule_cannot_have_is_refused(self):
        cases = {
            ("Nonsense", *SHAPE): ["'Nonsense'", "GPipe", "DualPipeV"],
            ("GPipe", *SHAPE, "--stages-per-rank", "2"): ["1 stage per rank"],
            ("GPipe", *SHAPE, "--memory-limit", "2"): ["memory"],
            ("GPipe", "--ranks", "4", "--microbatches", "1000000000"): ["1000000000 microbatches"],
            ("DualPipeV", "--ranks", "2147483647", "--microbatches", "2147483647"): ["2147483647 ranks"],
            ("Interleaved1F1B", *SHAPE, "--stages-per-rank", "2147483647"): ["2147483647 stages per rank", "limit of",
                                                                             "use fewer ranks, stages per rank"],
        }
        for args, parts in cases.items():
            with self.subTest(args):
                self.assert_error(self.command("schedule", *args), UNUSABLE, *parts)


class Lowering(CommandCase):
    def make(self, *more):
        return self.output("schedule", "1F1B", *SHAPE, "--format", "csv", *more)

    def test_lower_is_the_default_list_of_passes(self):
        lowered = self.make("--lower")
        self.assertEqual(lowered, self.make("--passes", "unshard_reshard,reduce_grad,send_recv"))
        for action in ["0UNSHARD", "0RESHARD", "1REDUCE_GRAD", "0SEND_F0", "1RECV_F0", "1SEND_B1", "0RECV_B1"]:
            self.assertIn(action, lowered)

    def test_passes_imply_lowering_and_replace_the_default(self):
        lowered = self.make("--passes", "send_recv")
        self.assertIn("1RECV_F0", lowered)
        self.assertNotIn("UNSHARD", lowered)
        self.assertEqual(lowered, self.make("--lower", "--passes", "send_recv"))

    def test_drawings_of_lowered_schedules_are_on_a_common_clock(self):
        table = self.output("schedule", "1F1B", *SHAPE, "--lower").splitlines()
        send = next(line for line in table if "0SEND_F0" in line)
        self.assertIn("1RECV_F0", send)


class Check(CommandCase):
    def test_safe_schedules_are_written_as_without_check(self):
        for more in [[], ["--lower"]]:
            plain = self.command("schedule", "1F1B", *SHAPE, "--format", "csv", *more)
            checked = self.command("schedule", "1F1B", *SHAPE, "--format", "csv", "--check", *more)
            self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (OK, plain.stdout, ""))

    def test_format_none_prints_only_the_verdict(self):
        args = ["schedule", "1f1b", *SHAPE, "--check", "--format", "none"]
        self.assertEqual(self.output(*args), "1F1B: safe under tagged, in_order and rendezvous, after send_recv\n")
        self.assertEqual(self.output(*args, "--lower"), "1F1B: safe under tagged, in_order and rendezvous, as it stands\n")

    def test_refused_schedules_are_not_written(self):
        # Deferred receives need tags: messages between two ranks overtake each other.
        args = ["schedule", "Interleaved1F1B", "--ranks", "4", "--microbatches", "8", "--passes", "send_recv,defer_receives"]
        self.output(*args)
        done = self.command(*args, "--check", "-o", "deferred.csv")
        self.assertEqual((done.returncode, done.stdout), (REFUSED, ""))
        self.assertRegex(done.stderr, r"\Astagecraft: Interleaved1F1B: row \d+, column \d+: [^\n]+\n(?s:.*)Rank ")
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
