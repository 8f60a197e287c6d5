"""The built command under test, run as a user would run it.

STAGECRAFT_BIN names the program. Every test works in a folder of its own, which is also where the command runs.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

BIN = os.path.abspath(os.environ["STAGECRAFT_BIN"])
TIMEOUT = 300

OK, REFUSED, UNUSABLE = 0, 1, 2


class CommandCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, text):
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def command(self, *args, **options):
        """Runs it and returns the finished process; standard input is empty unless `input` or `stdin` says otherwise."""
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", self.folder)
        if isinstance(options.get("input"), str):
            options["input"] = options["input"].encode()
        done = subprocess.run([BIN, *map(str, args)], timeout=TIMEOUT, check=False, **options)
        # Decoded here and not by subprocess, which would turn CRLF into LF.
        done.stdout = done.stdout and done.stdout.decode()
        done.stderr = (done.stderr or b"").decode()
        if done.stdout == b"":
            done.stdout = ""
        return done

    def output(self, *args, **options):
        """What it prints when all is well, which it must be."""
        done = self.command(*args, **options)
        self.assertEqual((done.returncode, done.stderr), (OK, ""), args)
        return done.stdout

    def assert_error(self, done, code, *parts):
        """One line on standard error, beginning with the name of the program, that holds all parts; nothing else."""
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, r"\Astagecraft: [^\n]+\n\Z")
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertFalse(done.stdout)

    def generate(self, name, schedule="1F1B", ranks=4, microbatches=8, *more):
        """Writes a schedule into a CSV file of the test's folder and returns its path."""
        path = self.folder / name
        self.output("schedule", schedule, "--ranks", ranks, "--microbatches", microbatches, "--format", "csv", "-o", path,
                    *more)
        return path


def rows_of(csv):
    return [line.split(",") for line in csv.splitlines()]
