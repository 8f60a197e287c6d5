"""stagecraft lower"""

import json
import unittest

from command_case import REFUSED, CommandCase, rows_of


class Lower(CommandCase):
    def setUp(self):
        super().setUp()
        self.compute = self.generate("compute.csv", "1F1B", 2, 2)

    def test_default_is_pytorchs_lowering_as_csv(self):
        expected = self.output("schedule", "1F1B", "--ranks", 2, "--microbatches", 2, "--lower", "--format", "csv")
        self.assertEqual(self.output("lower", self.compute), expected)
        self.assertEqual(rows_of(expected)[0][:3], ["0UNSHARD", "0F0", "0SEND_F0"])

    def test_reads_standard_input(self):
        self.assertEqual(self.output("lower", "-", input=self.compute.read_bytes()), self.output("lower", self.compute))

    def test_reads_pytorchs_line_ends_and_others(self):
        expected = self.output("lower", self.compute)
        text = self.compute.read_bytes()
        for form in [text.replace(b"\r\n", b"\n"), text.replace(b"\r\n", b"\r"), text.removesuffix(b"\r\n"),
                     b"\xef\xbb\xbf" + text]:
            self.assertEqual(self.output("lower", "-", input=form), expected)

    def test_given_passes_replace_the_default(self):
        lowered = self.output("lower", self.compute, "--passes", "send_recv")
        self.assertIn("0SEND_F0", lowered)
        self.assertNotIn("UNSHARD", lowered)
        self.assertNotIn("SEND", self.output("lower", self.compute, "--passes", "unshard_reshard"))

    def test_passes_run_in_the_order_given(self):
        blocks = self.generate("zbv.csv", "ZBVZeroBubble", 2, 4)
        merged = self.output("lower", blocks, "--passes", "merge_backward,send_recv,place_receives")
        self.assertIn("B0", merged)
        self.assertNotEqual(merged, self.output("lower", blocks, "--passes", "send_recv,place_receives"))

    def test_other_formats_and_output_file(self):
        rows = json.loads(self.output("lower", self.compute, "--format", "json"))["rows"]
        self.assertEqual(rows, rows_of(self.output("lower", self.compute)))
        self.assertEqual(self.output("lower", self.compute, "-o", "l.json"), "")
        self.assertEqual(json.loads((self.folder / "l.json").read_text())["rows"], rows)
        self.assertEqual(self.output("lower", self.compute, "-o", "lowered"), "")
        self.assertEqual(rows_of((self.folder / "lowered").read_text()), rows)
        self.assertIn("<svg", self.output("lower", self.compute, "--format", "svg"))
        self.assertIn("traceEvents", self.output("lower", self.compute, "--format", "trace"))
        self.assertIn("Rank 1", self.output("lower", self.compute, "--format", "table"))
        self.assertEqual(self.output("lower", self.compute, "--format", "none"), "")

    def test_lowered_input_is_refused(self):
        self.output("lower", self.compute, "-o", "lowered.csv")
        self.assert_error(self.command("lower", "lowered.csv"), REFUSED, "lowered.csv: ", "lowered already")

    def test_receives_of_a_lowered_file_can_be_placed(self):
        self.output("lower", self.compute, "--passes", "send_recv,defer_receives", "-o", "deferred.csv")
        self.assertEqual(
            self.output("lower", "deferred.csv", "--passes", "place_receives"),
            self.output("lower", self.compute, "--passes", "send_recv,place_receives"),
        )

    def test_a_fault_is_refused_before_any_pass_runs(self):
        self.file("twice.csv", "0F0,0F0,0B0\n")
        done = self.command("lower", "twice.csv", "-o", "out.csv")
        self.assertEqual((done.returncode, done.stdout), (REFUSED, ""))
        self.assertRegex(done.stderr, r"\Astagecraft: twice\.csv: row 1, column 2: [^\n]*0F0[^\n]*\n(?s:.*)Rank 0")
        self.assertFalse((self.folder / "out.csv").exists())


if __name__ == "__main__":
    unittest.main()
