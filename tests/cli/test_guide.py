"""The commands of the guide work as they are written, one after the other."""

import pathlib
import re
import shlex
import unittest

from command_case import CommandCase

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "guide"


def first_block(page, section=""):
    """The commands of the first indented block of a page, or of a section of it."""
    commands = []
    text = (GUIDE / page).read_text()
    for line in text[text.index(section):].splitlines():
        if line.startswith("    "):
            commands.append(shlex.split(line, comments=True))
        elif commands:
            break
    return commands


class Guide(CommandCase):
    def test_planning(self):
        commands = first_block("planning.md")
        self.assertGreater(len(commands), 4)
        self.assertEqual([c[1] for c in commands if c[1] in ("costs", "plan")], ["costs", "plan"])
        for program, *arguments in commands:
            with self.subTest(" ".join(arguments)):
                self.assertEqual(program, "stagecraft")
                # Little effort: what is found does not matter here.
                quick = ["--effort", "0.01"] if arguments[0] == "plan" else []
                self.output(*arguments, *quick)
        self.output("check", "planned.csv")

    def test_replicas_sharding_recompute(self):
        commands = first_block("planning.md", "## Replicas, sharding, recompute")
        self.assertGreater(len(commands), 4)
        peaks = []
        for program, *arguments in commands:
            with self.subTest(" ".join(arguments)):
                self.assertEqual(program, "stagecraft")
                text = self.output(*arguments, *(["--effort", "0.01"] if arguments[0] == "plan" else []))
                peaks += re.findall(r"peak memory +(\d+\.\d\d) GiB", text)
        self.assertIn(f"# {peaks[0]} GiB", (GUIDE / "planning.md").read_text())
        self.assertEqual(sorted(peaks[:3], key=float, reverse=True), peaks[:3])
        self.output("check", "planned.csv")

    def test_the_example_costs_fit_every_number_of_ranks_and_stages(self):
        self.output("costs", "--example", "-o", "costs.json")
        for schedule, ranks in (("1F1B", 2), ("1F1B", 3), ("ZBVZeroBubble", 4), ("Interleaved1F1B", 8)):
            with self.subTest(schedule, ranks=ranks):
                self.generate("schedule.csv", schedule, ranks)
                self.output("simulate", "schedule.csv", "--costs", "costs.json")
        for placement in ("linear", "loop", "v"):
            with self.subTest(placement):
                self.output("plan", "--ranks", 3, "--microbatches", 6, "--costs", "costs.json", "--placement", placement,
                            "--effort", "0.01")


if __name__ == "__main__":
    unittest.main()
