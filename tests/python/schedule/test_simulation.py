"""Simulations and comparisons: the numbers, texts and pictures of the command."""

import json
import pickle
import unittest

import stagecraft as sc
from command import CommandCase


class CostsCase(CommandCase):
    def setUp(self):
        super().setUp()
        self.costs = sc.Costs.example()
        self.costs.write(self.folder / "costs.json")

    def named(self, name):
        schedule = sc.Schedule.named(name, ranks=4, microbatches=8)
        schedule.write(self.folder / name)
        return sc.Schedule.from_csv(schedule.to_csv(), name)


class Simulate(CostsCase):
    def test_everything_is_that_of_the_command(self):
        for name in ("1F1B", "ZB-H1", "DualPipeV"):
            found = sc.simulate(self.named(name), self.costs)
            asked = ["simulate", name, "--costs", "costs.json", "--format"]
            with self.subTest(name):
                self.assertEqual(found.to_dict(), json.loads(self.output(*asked, "json")))
                self.assertEqual(found.to_text(), self.output(*asked, "table"))
                self.assertEqual(found.to_svg(), self.output(*asked, "svg"))
                self.assertEqual(found.to_trace(), self.output(*asked, "trace"))

    def test_replicas_that_share_parameters(self):
        costs = sc.Costs.example(in_bytes=True)
        costs.write(self.folder / "bytes.json")
        found = sc.simulate(self.named("1F1B"), costs)
        self.assertEqual(found.to_text(), self.output("simulate", "1F1B", "--costs", "bytes.json"))
        self.assertGreater(found.ranks[0].communication, 0)
        self.assertGreater(found.ranks[0].at_peak.optimizer, 0)

    def test_jitter(self):
        found = sc.simulate(self.named("1F1B"), self.costs, jitter=0.05, runs=20, seed=3)
        expected = json.loads(self.output("simulate", "1F1B", "--costs", "costs.json", "--jitter", "0.05", "--runs", 20,
                                          "--seed", 3, "--format", "json"))
        self.assertEqual(found.to_dict()["jitter"], expected["jitter"])
        self.assertEqual(found.jitter.median_span, expected["jitter"]["median_span"])
        self.assertIsNone(sc.simulate(self.named("1F1B"), self.costs).jitter)
        for jitter in (-1, 2, float("nan")):
            with self.assertRaises(sc.InvalidArgument):
                sc.simulate(self.named("1F1B"), self.costs, jitter=jitter)

    def test_figures(self):
        costs = sc.Costs(forward=1, backward_input=1, backward_weight=1)
        found = sc.simulate(self.named("GPipe"), costs)
        self.assertEqual(found.makespan, (8 + 3) * 3)
        self.assertAlmostEqual(found.bubble_makespan, 3 / 11)
        self.assertEqual(found.peak_memory, max(rank.peak_memory for rank in found.ranks))
        self.assertEqual(found.span, max(rank.span for rank in found.ranks))
        self.assertEqual(sum(own.end - own.start for own in found.critical_path), found.makespan)

    def test_events_and_curves(self):
        schedule = self.named("ZB-H1")
        found = sc.simulate(schedule, self.costs)
        events = found.events
        self.assertEqual(len(events), schedule.actions)
        for rank, outcome in enumerate(found.ranks):
            own = [event for event in events if event.rank == rank]
            self.assertEqual(min(event.start for event in own), outcome.first_start)
            self.assertEqual(max(event.end for event in own), outcome.last_end)
            curve, times = found.memory(rank), found.times(rank)
            self.assertEqual(max(curve.memory), outcome.peak_memory)
            self.assertEqual(list(curve.times), sorted(curve.times))
            self.assertEqual(len(times.starts), len(schedule.rows[rank]))
            self.assertEqual(memoryview(times.ends).format, "d")
        for rank in (-1, 4):
            with self.assertRaises(sc.InvalidArgument):
                found.times(rank)
            with self.assertRaises(sc.InvalidArgument):
                found.memory(rank)

    def test_numpy_takes_curves_without_a_copy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy here")
        curve = sc.simulate(self.named("1F1B"), self.costs).memory(0)
        taken = numpy.asarray(curve.memory)
        self.assertEqual((taken.dtype, taken.max()), (numpy.float64, max(curve.memory)))
        self.assertTrue(numpy.shares_memory(taken, numpy.frombuffer(curve.memory)))

    def test_pickle(self):
        found = sc.simulate(self.named("1F1B"), self.costs)
        self.assertEqual(pickle.loads(pickle.dumps(found)).to_dict(), found.to_dict())

    def test_refusals(self):
        with self.assertRaises(sc.ScheduleError) as caught:
            sc.simulate(sc.Schedule([["0F0", "0B0"], ["1B0", "1F0"]]), self.costs)
        self.assertIn(caught.exception.rank, (0, 1))
        with self.assertRaises(sc.InvalidArgument):
            sc.simulate(self.named("1F1B"), sc.Costs(forward=[1, 2, 3], backward_input=1, backward_weight=1))


class Compare(CostsCase):
    def test_everything_is_that_of_the_command(self):
        names = ["GPipe", "1F1B", "ZB-H1"]
        schedules = {name: self.named(name) for name in names}
        found = sc.compare(schedules, self.costs)
        self.assertEqual(repr(found), self.output("compare", *names, "--costs", "costs.json"))
        expected = json.loads(self.output("compare", *names, "--costs", "costs.json", "--format", "json"))
        self.assertEqual([own["name"] for own in found], [own["file"] for own in expected])
        self.assertEqual([own["span"] for own in found], [own["span"] for own in expected])
        self.assertEqual(repr(sc.compare(list(schedules.values()), self.costs)), repr(found))

    def test_refusals(self):
        with self.assertRaises(sc.InvalidArgument):
            sc.compare([], self.costs)
        for wrong in ("1F1B", None, 3, ["1F1B"], [None]):
            with self.assertRaises(TypeError):
                sc.compare(wrong, self.costs)


if __name__ == "__main__":
    unittest.main()
