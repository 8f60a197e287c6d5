"""stagecraft show"""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import unittest
import xml.etree.ElementTree as xml

from command_case import BIN, REFUSED, TIMEOUT, CommandCase

# Rank 1 waits for rank 0 although both begin in the first slot of the file.
UNALIGNED = "0F0,0B0\n1F0,1B0\n"


class Show(CommandCase):
    def setUp(self):
        super().setUp()
        self.file("s.csv", UNALIGNED)

    def first_line_with(self, action, *args):
        lines = self.output("show", "s.csv", *args).splitlines()
        return next(i for i, line in enumerate(lines) if action in line)

    def test_alignment(self):
        for align, step in [("auto", 1), ("steps", 1), ("slots", 0)]:
            self.assertEqual(self.first_line_with("1F0", "--align", align) - 1, step, align)
        self.assertEqual(self.output("show", "s.csv"), self.output("show", "s.csv", "--align", "auto"))

    def test_a_timetable_is_drawn_as_it_stands(self):
        self.file("s.csv", "0F0,,,,0B0\n,,1F0,1B0\n")
        self.assertEqual(self.first_line_with("1F0") - 1, 2)
        self.assertEqual(self.first_line_with("1F0", "--align", "steps") - 1, 1)

    def test_data_formats_keep_the_slots_unless_asked(self):
        as_it_stands = UNALIGNED.replace("\n", "\r\n")
        self.assertEqual(self.output("show", "s.csv", "--format", "csv"), as_it_stands)
        self.assertEqual(self.output("show", "s.csv", "--format", "csv", "--align", "slots"), as_it_stands)
        self.assertEqual(self.output("show", "s.csv", "--format", "csv", "--align", "steps").splitlines()[1].rstrip(","),
                         ",1F0,1B0")
        self.assertEqual(json.loads(self.output("show", "s.csv", "--format", "json"))["rows"],
                         [["0F0", "0B0"], ["1F0", "1B0"]])

    def test_every_format(self):
        self.assertIn("Rank 1", self.output("show", "s.csv", "--format", "table"))
        self.assertTrue(xml.fromstring(self.output("show", "s.csv", "--format", "svg")).tag.endswith("svg"))
        self.assertIn("traceEvents", json.loads(self.output("show", "s.csv", "--format", "trace")))
        self.assertEqual(self.output("show", "s.csv", "--format", "none"), "")

    def test_standard_input_and_output_file(self):
        self.assertEqual(self.output("show", "-", "-o", "s.svg", input=UNALIGNED), "")
        xml.fromstring((self.folder / "s.svg").read_text())
        self.assertEqual(self.output("show", "-", "-o", "-", input=UNALIGNED), self.output("show", "s.csv"))

    def test_the_name_is_the_files(self):
        self.assertEqual(json.loads(self.output("show", "s.csv", "--format", "json"))["name"], "s")
        odd = self.folder / os.fsdecode(b"a<\xff\n\xc3\xa9.csv")
        odd.write_text(UNALIGNED)
        xml.fromstring(self.output("show", odd, "--format", "svg"))
        self.assertEqual(json.loads(self.output("show", odd, "--format", "json"))["name"], "a<\\xff\\x0a\u00e9")

    def test_a_file_may_be_called_like_a_command(self):
        self.file("list", UNALIGNED)
        self.assertEqual(self.output("show", "list"), self.output("show", "s.csv"))

    def test_a_schedule_that_cannot_run_is_drawn_as_it_stands(self):
        self.file("s.csv", "0B0,0F0\n")
        self.assertEqual(self.first_line_with("0B0") - 1, 0)
        done = self.command("show", "s.csv", "--align", "steps")
        self.assertEqual((done.returncode, done.stdout), (REFUSED, ""))
        self.assertTrue(done.stderr.startswith("stagecraft: s.csv: "), done.stderr)

    def test_a_stage_on_two_ranks_is_refused(self):
        self.file("s.csv", "0F0\n0B0\n")
        self.assert_error(self.command("show", "s.csv"), REFUSED, "s.csv: row 2, column 1: ", "stage 0")


class Terminal(CommandCase):
    def on_terminal(self, *args, columns=80, **environment):
        """What the command writes to a terminal of that width."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        inherited = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        process = subprocess.Popen([BIN, *args], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=theirs,
                                   env={**inherited, "TERM": "xterm", **environment})
        os.close(theirs)
        text = b""
        try:
            while block := os.read(ours, 65536):
                text += block
        except OSError:  # how a terminal says that its other end is gone
            pass
        os.close(ours)
        self.assertEqual(process.wait(TIMEOUT), 0)
        return text.decode().replace("\r\n", "\n")

    def setUp(self):
        super().setUp()
        self.generate("s.csv", "1F1B", 16, 4)

    def test_colour_only_where_it_is_welcome(self):
        self.assertIn("\x1b[", self.on_terminal("show", "s.csv"))
        self.assertIn("\x1b[", self.on_terminal("show", "s.csv", NO_COLOR=""))
        self.assertNotIn("\x1b[", self.on_terminal("show", "s.csv", NO_COLOR="1"))
        self.assertNotIn("\x1b[", self.on_terminal("show", "s.csv", TERM="dumb"))
        self.assertNotIn("\x1b[", self.on_terminal("show", "s.csv", "--colour", "never"))
        self.assertIn("\x1b[", self.on_terminal("show", "s.csv", "--colour", "always", NO_COLOR="1"))
        self.assertNotIn("\x1b[", self.output("show", "s.csv"))
        self.on_terminal("show", "s.csv", "-o", "table.txt")
        self.assertNotIn("\x1b[", (self.folder / "table.txt").read_text())

    def test_the_table_fits_the_terminal(self):
        wide = max(map(len, self.output("show", "s.csv").splitlines()))
        self.assertGreater(wide, 60)
        narrow = self.on_terminal("show", "s.csv", columns=60, NO_COLOR="1")
        self.assertLessEqual(max(map(len, narrow.splitlines())), 60)
        self.assertIn("Rank 15", narrow)


if __name__ == "__main__":
    unittest.main()
