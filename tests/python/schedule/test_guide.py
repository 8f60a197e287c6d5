"""The snippets of the guide run as they are written, one after the other."""

import contextlib
import io
import os
import re
import unittest

from command import REPOSITORY, CommandCase


class Guide(CommandCase):
    def test_readme(self):
        text = (REPOSITORY / "README.md").read_text()
        (snippet,) = re.findall(r"```python\n(import stagecraft as sc.*?)```", text, re.S)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(snippet, "README.md", "exec"), {})
        self.assertLess(float(printed.getvalue()), 0.2)

    def test_python(self):
        text = (REPOSITORY / "docs" / "guide" / "python.md").read_text().partition("\n## Training")[0]
        snippets = re.findall(r"```python\n(.*?)```", text, re.S)
        self.assertGreater(len(snippets), 4)
        names = {}
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            for snippet in snippets:
                with self.subTest(snippet), contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(snippet, "python.md", "exec"), names)
        finally:
            os.chdir(before)
        self.assertTrue((self.folder / "zbv.svg").exists() and (self.folder / "planned.csv").exists())


if __name__ == "__main__":
    unittest.main()
