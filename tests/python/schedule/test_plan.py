"""Plans: the schedule of the command, progress, and ways to end the search early."""

import json
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest

import stagecraft as sc
from command import CommandCase

QUICK = {"ranks": 3, "microbatches": 6, "effort": 0.01}
# Minutes, so that there is something to end: without the limit, an early schedule is proven optimal.
LONG = {"ranks": 8, "microbatches": 24, "memory_limit": 12, "effort": 1000, "time_budget": 300}


class Plan(CommandCase):
    def setUp(self):
        super().setUp()
        self.costs = sc.Costs.example()
        self.costs.write(self.folder / "costs.json")

    def command(self, *options):
        text = self.output("plan", "--ranks", 3, "--microbatches", 6, "--effort", 0.01, "--costs", "costs.json",
                           "--format", "json", "-o", "plan.json", *options)
        self.assertEqual(text, "")
        return json.loads((self.folder / "plan.json").read_text())

    def test_the_schedule_is_that_of_the_command(self):
        for more, options in (({}, []), ({"placement": "v", "seed": 7}, ["--placement", "v", "--seed", "7"]),
                              ({"memory_limit": 12.5}, ["--memory-limit", "12.5"]),
                              ({"placement": "loop", "stages_per_rank": 3},
                               ["--placement", "loop", "--stages-per-rank", "3"])):
            with self.subTest(options):
                found = sc.plan(self.costs, **QUICK, **more)
                expected = self.command(*options)
                self.assertEqual({**found.to_dict(), "seconds": 0}, {**expected, "seconds": 0})
                csv = self.output("plan", "--ranks", 3, "--microbatches", 6, "--effort", 0.01, "--costs", "costs.json",
                                  "--format", "csv", *options)
                self.assertEqual(found.schedule.to_csv(), csv)
                self.assertTrue(found.schedule.verify() and found.finished)
                self.assertEqual(found.simulation.span, found.span)
                self.assertLessEqual(found.lower_bound_span, found.span * (1 + 1e-9))
                self.assertEqual([own.name for own in found.named], [own["name"] for own in expected["named"]])

    def test_layers_are_cut(self):
        layer = {"forward": 1, "backward_input": 1, "backward_weight": 1}
        costs = sc.Costs(layers=[{**layer, "repeat": 5}, {**layer, "forward": 3}])
        costs.write(self.folder / "costs.json")
        found = sc.plan(costs, **QUICK)
        expected = self.command("--stage-costs", "stages.json")
        self.assertEqual((found.cuts, found.span), (expected["cuts"], expected["span"]))
        self.assertEqual(found.costs.to_json(), (self.folder / "stages.json").read_text())
        self.assertEqual(found.cuts[0], 0)
        self.assertEqual(found.cuts[-1], 6)

    def test_an_exact_solution(self):
        """Of a case whose lower bound is not reached, so that only the exact solution proves it."""
        costs = sc.Costs(forward=1, backward_input=1, backward_weight=1)
        costs.write(self.folder / "costs.json")
        small = {"ranks": 2, "microbatches": 2, "placement": "v", "effort": 0.01}
        searched, solved = sc.plan(costs, **small), sc.plan(costs, **small, exact=True)
        self.assertFalse(searched.proven)
        self.assertTrue(solved.proven)
        self.assertLessEqual(solved.span, searched.span)
        text = self.output("plan", "--ranks", 2, "--microbatches", 2, "--placement", "v", "--effort", 0.01, "--costs", "costs.json",
                           "--exact", "--format", "json")
        self.assertEqual({**solved.to_dict(), "seconds": 0}, {**json.loads(text), "seconds": 0})
        with self.assertRaisesRegex(sc.InvalidArgument, "without --exact"):
            sc.plan(costs, ranks=16, microbatches=64, effort=0.01, exact=True)

    def test_report_and_pickle(self):
        found = sc.plan(self.costs, **QUICK)
        self.assertRegex(found.to_text(), r"found by +\S+")
        again = pickle.loads(pickle.dumps(found))
        self.assertEqual((again.schedule, again.to_dict()), (found.schedule, found.to_dict()))

    def test_a_limit_that_is_too_small(self):
        with self.assertRaises(sc.InfeasibleLimit) as caught:
            sc.plan(self.costs, **QUICK, memory_limit=1e-6)
        self.assertIsInstance(caught.exception, sc.InvalidArgument)
        self.assertGreater(caught.exception.smallest, 0)
        smallest = caught.exception.smallest
        self.assertEqual(pickle.loads(pickle.dumps(caught.exception)).smallest, smallest)
        self.assertEqual(sc.smallest_memory_limit(self.costs, ranks=3), smallest)
        sc.plan(self.costs, **QUICK, memory_limit=smallest * 2)

    def test_limits_with_units(self):
        in_bytes = sc.Costs.example(in_bytes=True)
        found = sc.plan(in_bytes, ranks=4, microbatches=8, effort=0.01, memory_limit="80GiB")
        self.assertEqual(found.to_dict()["memory_limit"], 80 * 2**30)
        with self.assertRaisesRegex(sc.InvalidArgument, "memory_limit 80GiB is in bytes"):
            sc.plan(self.costs, **QUICK, memory_limit="80GiB")
        with self.assertRaisesRegex(sc.InvalidArgument, "memory_limit: '80 bananas' is not a number"):
            sc.plan(self.costs, **QUICK, memory_limit="80 bananas")

    def test_lower_bound(self):
        bound = sc.span_lower_bound(self.costs, ranks=3, microbatches=6)
        self.assertEqual(bound, sc.plan(self.costs, **QUICK, placement="linear").lower_bound_span)
        for wrong in ({"ranks": 0}, {"ranks": 2**31 - 1, "stages_per_rank": 2**31 - 1, "placement": "loop"},
                      {"placement": "round"}, {"microbatches": 0}, {"placement": "linear", "stages_per_rank": 2}):
            with self.assertRaises(sc.InvalidArgument):
                sc.span_lower_bound(self.costs, **{"ranks": 3, "microbatches": 6, **wrong})

    def test_numbers_that_do_not_fit(self):
        for wrong in ({"ranks": 0}, {"microbatches": -1}, {"time_budget": 0}, {"time_budget": float("nan")},
                      {"effort": -1}, {"effort": float("nan")}, {"memory_limit": float("nan")}, {"memory_limit": -1},
                      {"placement": "round"}, {"threads": -1}, {"seed": -1}, {"ranks": 10**30}, {"ranks": 2000},
                      {"microbatches": 2**31 - 1}, {"stages_per_rank": 2**31 - 1}):
            with self.subTest(wrong), self.assertRaises(sc.InvalidArgument):
                sc.plan(self.costs, **{**QUICK, **wrong})


class Watching(unittest.TestCase):
    def setUp(self):
        self.costs = sc.Costs.example()

    def test_progress(self):
        seen = []
        found = sc.plan(self.costs, ranks=8, microbatches=16, effort=0.2, progress=seen.append)
        self.assertTrue(seen)
        self.assertIsInstance(seen[-1], sc.PlanProgress)
        self.assertEqual([own.part for own in seen], sorted(own.part for own in seen))
        self.assertGreaterEqual(seen[0].span, found.span)
        self.assertRegex(str(seen[-1]), r"\d+%  \d+ s  ")

    def test_other_threads_run_meanwhile(self):
        ticks, over = [], threading.Event()

        def count():
            while not over.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.005)

        beside = threading.Thread(target=count)
        beside.start()
        begin = time.monotonic()
        found = sc.plan(self.costs, **{**LONG, "time_budget": 1.5})
        end = time.monotonic()
        over.set()
        beside.join()
        self.assertFalse(found.finished)
        meanwhile = [t for t in ticks if begin + 0.1 < t < end - 0.1]
        self.assertGreater(len(meanwhile), 10)

    def test_stop_returns_the_best_so_far(self):
        begin = time.monotonic()
        found = sc.plan(self.costs, **LONG, stop=lambda: time.monotonic() - begin > 0.5)
        self.assertFalse(found.finished)
        self.assertTrue(found.schedule.verify())
        self.assertLess(time.monotonic() - begin, 60)

    def test_an_exception_of_a_callback_ends_it(self):
        def fail(*_):
            raise LookupError("mine")

        with self.assertRaisesRegex(LookupError, "mine"):
            sc.plan(self.costs, **LONG, stop=fail)
        with self.assertRaisesRegex(LookupError, "mine"):
            sc.plan(self.costs, ranks=8, microbatches=16, effort=0.2, progress=fail)
        with self.assertRaises(ZeroDivisionError):
            class Unclear:
                def __bool__(self):
                    return 1 / 0 > 0
            sc.plan(self.costs, **LONG, stop=Unclear)
        for wrong in ({"progress": 3}, {"stop": True}):
            with self.assertRaises(TypeError):
                sc.plan(self.costs, **LONG, **wrong)

    def script(self, text):
        # Whoever runs the tests in the background may have SIGINT ignored, which children inherit.
        head = ("import signal, threading, stagecraft as sc\n"
                f"signal.signal(signal.SIGINT, signal.default_int_handler)\nlong = {LONG!r}\n")
        process = subprocess.Popen([sys.executable, "-c", head + text], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def test_ctrl_c_raises_keyboard_interrupt(self):
        process = self.script(
            "try:\n"
            "    sc.plan(sc.Costs.example(), **long, stop=lambda: print('going', flush=True))\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted', sc.plan(sc.Costs.example(), ranks=2, microbatches=2, effort=0.01).finished)\n")
        self.assertEqual(process.stdout.readline(), b"going\n")
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=300)
        self.assertEqual((process.returncode, error), (0, b""))
        self.assertEqual(output.split(b"\n")[-2], b"interrupted True")
        self.assertLess(time.monotonic() - begin, 30)

    def test_python_may_end_while_a_daemon_thread_plans(self):
        process = self.script(
            "begun = threading.Event()\n"
            "def work(): sc.plan(sc.Costs.example(), **long, stop=begun.set)\n"
            "threading.Thread(target=work, daemon=True).start()\n"
            "begun.wait()\n"
            "print('over')\n")
        output, error = process.communicate(timeout=300)
        self.assertEqual((process.returncode, output, error), (0, b"over\n", b""))

    def test_two_plans_at_once(self):
        found = {}

        def work(seed):
            found[seed] = sc.plan(self.costs, **QUICK, seed=seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed, own in found.items():
            self.assertEqual(own.schedule, sc.plan(self.costs, **QUICK, seed=seed).schedule)


if __name__ == "__main__":
    unittest.main()
