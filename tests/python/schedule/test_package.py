"""The installed package: what it imports, its command, its pictures in notebooks, and that nothing is left behind."""

import gc
import json
import os
import re
import resource
import subprocess
import sys
import unittest
from xml.etree import ElementTree

import stagecraft as sc
from stagecraft import _schedule

from command import REPOSITORY, CommandCase, run


def in_new_python(text):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, text=True).stdout.strip()


class Package(CommandCase):
    def test_what_is_tested_is_what_was_installed(self):
        self.assertTrue(os.path.realpath(sc.__file__).startswith(os.path.realpath(sys.prefix)), sc.__file__)
        self.assertTrue(_schedule.__file__.endswith("_schedule.abi3.so"))
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(sc.__file__), "py.typed")))

    def test_version_is_that_of_the_project(self):
        project = (REPOSITORY / "CMakeLists.txt").read_text()
        self.assertEqual(sc.__version__, re.search(r"project\(Stagecraft VERSION ([0-9.]+)", project)[1])
        from importlib.metadata import version
        self.assertEqual(version("stagecraft"), sc.__version__)

    def test_importing_brings_neither_torch_nor_numpy(self):
        loaded = "import sys; before = set(sys.modules); {}; print(*set(sys.modules) - before)"
        for text in ("import stagecraft", "from stagecraft import *"):
            found = in_new_python(loaded.format(text)).split()
            self.assertIn("stagecraft", found)
            for heavy in ("torch", "numpy", "asyncio", "subprocess"):
                self.assertNotIn(heavy, found)

    def test_importing_is_quick(self):
        """Beside a package of the standard library of some 40 ms, and in processor time: the machine may be slow or busy."""
        timed = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
        ours = min(float(in_new_python(timed.format("stagecraft"))) for _ in range(5))
        known = min(float(in_new_python(timed.format("asyncio"))) for _ in range(5))
        self.assertLess(ours, known)

    def test_names_are_there_when_they_are_asked_for(self):
        for name in sc.__all__:
            self.assertIs(getattr(sc, name), getattr(sc, name))
        self.assertLessEqual({*sc.__all__, "__version__"}, set(dir(sc)))
        with self.assertRaisesRegex(AttributeError, "module 'stagecraft' has no attribute 'Scheduel'"):
            sc.Scheduel

    def test_subpackages_of_another_distribution(self):
        (self.folder / "stagecraft" / "torch").mkdir(parents=True)
        self.file("stagecraft/torch/__init__.py", "answer = 42\n")
        text = f"import sys; sys.path.append({str(self.folder)!r}); import stagecraft.torch; print(stagecraft.torch.answer)"
        self.assertEqual(in_new_python(text), "42")

    def test_the_command_comes_along(self):
        expected = run("schedule", "1F1B", "--ranks", 2, "--microbatches", 2).stdout
        arguments = ["schedule", "1F1B", "--ranks", "2", "--microbatches", "2"]
        script = os.path.join(os.path.dirname(sys.executable), "stagecraft")
        for program in ([sys.executable, "-m", "stagecraft"], [script]):
            self.assertEqual(subprocess.run([*program, *arguments], capture_output=True, check=True).stdout, expected)
            self.assertEqual(subprocess.run([*program, "check", "none.csv"], capture_output=True, check=False).returncode, 2)

    def test_everything_public_is_explained(self):
        for name in sc.__all__:
            own = getattr(sc, name)
            if callable(own):
                self.assertTrue(own.__doc__, name)
        self.assertEqual(sorted(set(sc.__all__)), sorted(sc.__all__))


class Notebooks(unittest.TestCase):
    def test_pictures_show_themselves(self):
        schedule = sc.Schedule.named("ZBVZeroBubble", ranks=2, microbatches=4)
        costs = sc.Costs.example()
        shown = [schedule, sc.simulate(schedule, costs), sc.plan(costs, ranks=2, microbatches=2, effort=0.01)]
        for own in shown:
            self.assertTrue(ElementTree.fromstring(own._repr_svg_()).tag.endswith("svg"))
            self.assertTrue(ElementTree.fromstring(own._repr_html_()).tag, "div")
        json.loads(schedule.to_trace())
        self.assertIn("SPAN", sc.compare([schedule], costs)._repr_html_())
        self.assertIn("<Schedule 'ZBVZeroBubble': 2 ranks, 4 stages, 4 microbatches", repr(schedule))
        self.assertEqual(str(schedule), schedule.to_table())

    def test_what_is_too_large_for_a_browser_shows_its_facts(self):
        schedule = sc.Schedule.named("GPipe", ranks=64, microbatches=4000)
        self.assertIsNone(schedule._repr_svg_())
        self.assertIn("64 ranks", schedule._repr_html_())
        with self.assertRaises(sc.InvalidArgument):
            schedule.to_svg()

    def test_names_are_escaped(self):
        schedule = sc.Schedule([["0F0"]], "<script>&")
        self.assertNotIn("<script>", schedule._repr_html_())


class Lasting(CommandCase):
    def work(self):
        costs = sc.Costs.example()
        schedule = sc.Schedule.named("1F1B", ranks=4, microbatches=16)
        lowered = schedule.lower()
        lowered.verify(), lowered.check(), lowered.rows, schedule.to_svg(), schedule.to_csv()
        found = sc.simulate(schedule, costs.with_replicas(2))
        found.events, found.memory(0), found.to_trace()
        sc.compare([schedule, lowered], costs)
        for wrong in (lambda: sc.Schedule.named("x", ranks=1, microbatches=1), lambda: sc.Schedule.from_csv("x"),
                      lambda: schedule.lower("x"), lambda: sc.Schedule.named("1F1B", ranks=None, microbatches=1),
                      lambda: lowered.defer_receives().require_valid(), lambda: sc.Costs.from_json("{}")):
            try:
                wrong()
            except (sc.Error, TypeError):
                pass

    def test_no_growth_over_many_calls(self):
        for _ in range(60):
            self.work()
        gc.collect()
        objects, memory = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        references = [sys.getrefcount(own) for own in (None, True, False, sc.InvalidArgument)]
        for _ in range(300):
            self.work()
        gc.collect()
        self.assertLess(abs(len(gc.get_objects()) - objects), 100)
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory, 4096)  # KiB
        for own, before in zip((None, True, False, sc.InvalidArgument), references):
            self.assertLess(sys.getrefcount(own) - before, 200)

    def test_plans_leave_nothing(self):
        costs = sc.Costs.example()
        for _ in range(5):
            sc.plan(costs, ranks=2, microbatches=4, effort=0.01, progress=lambda p: None)
        gc.collect()
        objects = len(gc.get_objects())
        for _ in range(20):
            sc.plan(costs, ranks=2, microbatches=4, effort=0.01, progress=lambda p: None)
        gc.collect()
        self.assertLess(abs(len(gc.get_objects()) - objects), 100)


if __name__ == "__main__":
    unittest.main()
