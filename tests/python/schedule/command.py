"""The command that came with the installed package, to compare with what the functions return."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import stagecraft

REPOSITORY = pathlib.Path(__file__).parents[3]
PROGRAM = os.path.join(os.path.dirname(stagecraft.__file__), "bin", "stagecraft")


def run(*arguments, folder=None):
    return subprocess.run([PROGRAM, *map(str, arguments)], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=300, check=False)


class CommandCase(unittest.TestCase):
    """Each test has a folder of its own, where the command runs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def output(self, *arguments):
        """What the command prints when all is well, which it must be; line ends as they are."""
        done = run(*arguments, folder=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, b""), arguments)
        return done.stdout.decode()

    def error(self, *arguments):
        """The error that the command prints, without its name."""
        done = run(*arguments, folder=self.folder)
        self.assertNotEqual(done.returncode, 0, arguments)
        return done.stderr.decode().removeprefix("stagecraft: ")

    def file(self, name, contents):
        path = self.folder / name
        path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
        return path
