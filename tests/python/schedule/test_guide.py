"""The snippets of the guide run as they are written, one after the other."""

import contextlib
import io
import os
import re
import unittest

from command import REPOSITORY, CommandCase


class Guide(CommandCase):
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
