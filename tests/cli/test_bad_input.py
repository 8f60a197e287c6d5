"""Input that is no schedule: one line with file, place, value, rule and remedy; exit code 2; never a crash or a hang."""

import json
import os
import resource
import subprocess
import unittest

from command_case import BIN, UNUSABLE, CommandCase

READERS = ["lower", "check", "show"]


class Cells(CommandCase):
    def test_malformed_cells(self):
        cells = ["x", "F0", "0F", "0F-1", "-1F0", "0f0", "0F0 0F1", "0F0;1F0", "0X0", "F", "0", "0UNSHARD1", "1.5F0",
                 "99999999999999999999F0", "0F99999999999999999999", "16777216F0", "0F2147483647", "(0F0;1B0)",
                 "(0F0;1B0)OVERLAP", "(0F0,1B0)OVERLAP_F_B", "((0F0;1B0)OVERLAP_F_B;2F0)OVERLAP_F_B", "0SEND_X0",
                 "0F0\t1", "\u00e9", "'0F0'"]
        for cell in cells:
            with self.subTest(cell):
                done = self.command("check", "-", input=f"0F0,0B0\n1F0,{cell},1B0\n")
                self.assert_error(done, UNUSABLE, "<stdin>: row 2, column 2: ", " is not an action: ")

    def test_every_reader_says_where(self):
        self.file("bad.csv", "0F0,\r\n0F1,oops\r\n")
        for command in READERS:
            self.assert_error(self.command(command, "bad.csv"), UNUSABLE,
                              "bad.csv: row 2, column 2: 'oops' is not an action")

    def test_quotes(self):
        self.assertEqual(self.output("show", "-", "--format", "csv", input='"0F0","0B0"\n'), "0F0,0B0\r\n")
        self.assert_error(self.command("show", "-", input='"0F0'), UNUSABLE, "row 1, column 1", "quote")
        self.assert_error(self.command("show", "-", input='"0F0"x'), UNUSABLE, "row 1, column 1", "quote")

    def test_a_long_cell_is_refused_and_cut(self):
        done = self.command("check", "-", input="7" * 100_000)
        self.assert_error(done, UNUSABLE, "row 1, column 1")
        self.assertLess(len(done.stderr), 300)

    def test_binary_is_refused_printably(self):
        done = self.command("check", "-", input=bytes(range(256)))
        self.assert_error(done, UNUSABLE, "row 1, column 1", r"\x00")


class Files(CommandCase):
    def test_empty(self):
        self.file("empty.csv", "")
        for command in READERS:
            self.assert_error(self.command(command, "empty.csv"), UNUSABLE, "empty.csv: ", "has no rows")
            self.assert_error(self.command(command, "/dev/null"), UNUSABLE, "/dev/null: ", "has no rows")

    def test_unreadable(self):
        self.file("file.csv", "0F0,0B0\n")
        (self.folder / "loop").symlink_to("loop")
        cases = {".": "Is a directory", "missing.csv": "No such file", "file.csv/below": "Not a directory",
                 "loop": "symbolic links", "": "No such file", "n" * 5000: "File name too long"}
        for path, reason in cases.items():
            for command in READERS:
                with self.subTest(path=path[:20], command=command):
                    self.assert_error(self.command(command, path), UNUSABLE, f"{path or repr(path)}: cannot read it", reason)

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_no_permission(self):
        self.file("secret.csv", "0F0,0B0\n").chmod(0)
        self.assert_error(self.command("check", "secret.csv"), UNUSABLE, "secret.csv", "Permission denied")

    def test_closed_standard_input(self):
        for command in READERS:
            done = self.command(command, "-", stdin=None, preexec_fn=lambda: os.close(0))
            self.assert_error(done, UNUSABLE, "<stdin>: cannot read it", "standard input is closed")


class Endless(CommandCase):
    def test_zeros(self):
        for command in READERS:
            self.assert_error(self.command(command, "/dev/zero"), UNUSABLE, "/dev/zero: row 1, column 1: ")

    def test_a_stream_without_end_is_refused_at_its_first_bad_cell(self):
        for line in ["y", "0F0,oops", "0F0,0B0,"+"9" * 99]:
            with self.subTest(line), subprocess.Popen(["yes", line], stdout=subprocess.PIPE) as endless:
                done = self.command("check", "-", stdin=endless.stdout)
                endless.stdout.close()
                self.assert_error(done, UNUSABLE, "<stdin>: row 1, column ")

    def test_good_or_blank_lines_without_end_are_refused_at_the_most_rows_a_schedule_has(self):
        for line in ["", "0F0"]:
            with self.subTest(line), subprocess.Popen(["yes", line], stdout=subprocess.PIPE) as endless:
                done = self.command("check", "-", stdin=endless.stdout)
                endless.stdout.close()
                self.assert_error(done, UNUSABLE, "<stdin>: row 1048577: more than 1048576 rows")

    def test_input_without_end_does_not_grow_in_memory(self):
        # An endless first cell: far more bytes than the command may use memory.
        limit = 1 << 30
        if subprocess.run([BIN, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))).returncode != 0:
            self.skipTest("this build needs more address space than the limit")
        with subprocess.Popen(["sh", "-c", "yes '' | tr '\\n' 7"], stdout=subprocess.PIPE) as endless:
            done = self.command("check", "-", stdin=endless.stdout,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            endless.stdout.close()
            self.assert_error(done, UNUSABLE, "<stdin>: row 1, column 1: ")


class Json(CommandCase):
    """Costs and timelines."""

    def texts(self):
        for levels in (1_000, 50_000, 2_000_000):
            yield f"lists {levels}", "[" * levels + "]" * levels, "nested more than 256 deep"
            yield f"objects {levels}", '{"a":' * levels + "1" + "}" * levels, "nested more than 256 deep"
            yield f"open {levels}", "[" * levels, "nested more than 256 deep"
            for key in ("comment", "forward", "links", "rank_slowdown", "layers", "otherData", "traceEvents"):
                yield f"{key} {levels}", f'{{"{key}": {"[" * levels}{"]" * levels}}}', "nested more than 256 deep"
        yield "infinite", '{"forward": 1e999}', "number overflow parsing '1e999'"
        yield "cut off", '{"forward": 1', "line 1: this is not JSON"
        yield "no text", "", "line 1: this is not JSON"
        yield "not UTF-8", b'{"forward": "\xff"}', "line 1: this is not JSON"
        yield "zero", b'{"forward": 1}\0, and more', "a byte 0"

    def test_every_command_refuses_what_cannot_be_parsed(self):
        schedule = self.generate("schedule.csv", ranks=2)
        commands = [["costs", "bad.json"], ["simulate", schedule, "--costs", "bad.json"],
                    ["compare", schedule, schedule, "--costs", "bad.json"],
                    ["plan", "--ranks", 2, "--microbatches", 4, "--costs", "bad.json"], ["profile", "bad.json"]]
        for name, text, why in self.texts():
            self.file("bad.json", text)
            for command in commands:
                with self.subTest(name, command=command[0]):
                    done = self.command(*command)
                    self.assert_error(done, UNUSABLE, "bad.json: ", why)
                    self.assertNotIn("json.exception", done.stderr)


    def test_keys_are_shown_printably(self):
        self.file("bad.json", json.dumps({"forward": -1, "\x1b[31mred": 1, "\u0085next": 2}))
        done = self.command("costs", "bad.json")
        self.assertEqual(done.returncode, UNUSABLE)
        self.assertIn("unknown key", done.stderr)
        self.assertNotRegex(done.stderr, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Memory(CommandCase):
    def test_running_out_is_one_line(self):
        limit = 96 << 20

        def limited():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if self.command("list", preexec_fn=limited).returncode != 0:
            self.skipTest("this build needs more address space than the limit")
        done = self.command("schedule", "GPipe", "--ranks", "100", "--microbatches", "200000", "-o", "s.csv",
                            preexec_fn=limited)
        self.assert_error(done, UNUSABLE, "not enough memory")
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
