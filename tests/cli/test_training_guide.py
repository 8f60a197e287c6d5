"""The page on training works as it is written: its files are made, and its commands run one after the other."""

import os
import re
import shlex
import subprocess
import sys
import unittest

from command_case import TIMEOUT, CommandCase
from test_guide import GUIDE

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class TrainingGuide(CommandCase):
    def test_the_page(self):
        page = (GUIDE / "training.md").read_text()
        printed = []
        for kind, text in BLOCK.findall(page):
            if kind == "python":
                name = text.splitlines()[0].removeprefix("# ")
                self.file(name, text)
                continue
            for line in text.splitlines():
                with self.subTest(line):
                    printed.append(self.run_line(shlex.split(line)))
        made, exported, first, watched, second, last, used = printed
        self.assertEqual((made, exported), ("", ""))
        self.assertIn("saved step 10 in gpt.safetensors", first)
        self.assertRegex(watched, r"\Astep 10: loss [\d.]+, eval [\d.]+, \d+ tokens/s\nstep 20: ")
        self.assertIn("going on from step 20 of gpt.safetensors, after 160 rows of data", second)
        self.assertNotIn("/40  loss", last)  # nothing to train

        def evaluated(text):
            return [float(loss) for loss in re.findall(r"eval loss ([\d.]+)", text)]

        self.assertLess(evaluated(second)[-1], evaluated(first)[0])  # it has learned
        self.assertAlmostEqual(evaluated(last)[0], evaluated(second)[-1], delta=1e-3)
        self.assertAlmostEqual(evaluated(last)[0], evaluated(used)[0], delta=1e-4)

    def run_line(self, words):
        if words[0] == "stagecraft":
            return self.output(*words[1:])
        self.assertEqual(words[0], "python")
        done = subprocess.run([sys.executable, *words[1:]], cwd=self.folder, timeout=TIMEOUT, check=False, capture_output=True, text=True,
                              env={**os.environ, "PYTHONWARNINGS": "ignore"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


if __name__ == "__main__":
    unittest.main()
