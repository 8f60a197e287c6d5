"""No two files define a type of the same name in one namespace: the linker would take one for the other, without a word."""

import collections
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
OPENS = re.compile(r"namespace ([\w:]*) ?\{")
CLOSES = re.compile(r"\}  // namespace")
DEFINES = re.compile(r"(?:struct|class|enum class) (?:\[\[\w+\]\] )?(\w+)(?!\w*::)[^;]*\{")


def types_in(text):
    """Full names of the types that the text defines outside of unnamed namespaces. The sources are formatted, so lines tell."""
    spaces = []
    for line in text.splitlines():
        if opened := OPENS.match(line):
            spaces.append(opened[1])
        elif CLOSES.match(line) and spaces:
            spaces.pop()
        elif (defined := DEFINES.match(line)) and all(spaces):
            yield "::".join([*spaces, defined[1]])


class Names(unittest.TestCase):
    def test_types_are_defined_once(self):
        files = collections.defaultdict(set)
        for folder in ("include", "src", "apps"):
            for path in [*(ROOT / folder).rglob("*.h"), *(ROOT / folder).rglob("*.cpp")]:
                for name in types_in(path.read_text()):
                    files[name].add(str(path.relative_to(ROOT)))
        self.assertGreater(len(files), 200)
        self.assertIn("stagecraft::Schedule", files)
        self.assertEqual({name: sorted(where) for name, where in files.items() if len(where) > 1}, {})


if __name__ == "__main__":
    unittest.main()
