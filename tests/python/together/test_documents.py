"""Both wheels in one environment: the guide's part on training and the notebook run as they are written."""

import contextlib
import io
import json
import os
import pathlib
import re
import tempfile
import unittest

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "guide"


class Documents(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def run_pieces(self, pieces, name):
        """Returns the names that they leave, and what they print."""
        names = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for number, piece in enumerate(pieces):
                exec(compile(piece, f"{name}, piece {number}", "exec"), names)
        return names, printed.getvalue()

    def test_guide(self):
        text = (GUIDE / "python.md").read_text()
        before, after = text.split("\n## Training")
        first = re.search(r"```python\n(import stagecraft as sc\n)", before)[1]
        names, printed = self.run_pieces([first, *re.findall(r"```python\n(.*?)```", after, re.S)], "python.md")
        (losses,) = [one for one in names["st"].run_ranks(names["train"], ranks=2) if one]
        self.assertLess(losses[-1], losses[0])
        self.assertIn("0F0", printed)
        self.assertTrue(os.path.exists("model.safetensors"))

    def test_notebook(self):
        notebook = json.loads((GUIDE / "pipelines.ipynb").read_text())
        self.assertEqual([cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["outputs"]], [], "not kept")
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        names, printed = self.run_pieces(cells, "pipelines.ipynb")
        self.assertLess(names["losses"][-1], names["losses"][0])
        self.assertLess(names["farthest"], 1e-6)
        self.assertLess(names["plan"].span, names["sc"].simulate(names["one_f_one_b"], names["costs"]).span)
        self.assertIn("planned", printed)
        for shown in (names["one_f_one_b"], names["plan"], names["sc"].simulate(names["one_f_one_b"], names["costs"])):
            self.assertIn("<svg", getattr(shown, "_repr_svg_", lambda: "")() or getattr(shown, "_repr_html_", lambda: "")(), type(shown))


if __name__ == "__main__":
    unittest.main()
