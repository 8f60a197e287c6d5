"""Costs: read, written, made of Python numbers, and changed."""

import json
import math
import pickle
import unittest

import stagecraft as sc
from command import CommandCase

SHORT = {"forward": [1, 2], "backward_input": 1.5, "backward_weight": [1, 0.5], "latency": 0.25, "bandwidth": 1e3}
LAYERS = {"layers": [{"name": "embedding", "forward": 1, "backward_input": 1, "backward_weight": 1},
                     {"forward": 2, "backward_input": 2, "backward_weight": 2, "repeat": 3}], "latency": 0.1}


class CostFiles(CommandCase):
    def test_the_long_form_is_that_of_the_command(self):
        self.file("costs.json", json.dumps(SHORT))
        costs = sc.Costs(**SHORT)
        self.assertEqual(costs.to_json(), self.output("costs", "costs.json"))
        self.assertEqual(sc.Costs.read(self.folder / "costs.json"), costs)
        self.assertEqual(sc.Costs.from_dict(SHORT), costs)
        self.assertEqual(sc.Costs.from_json(costs.to_json()), costs)
        costs.write(self.folder / "again.json")
        self.assertEqual((self.folder / "again.json").read_text(), costs.to_json())
        self.assertEqual([stage["forward"] for stage in costs.stages], [1, 2])

    def test_examples(self):
        self.assertEqual(sc.Costs.example_json(), self.output("costs", "--example"))
        self.assertEqual(sc.Costs.example_json(in_bytes=True), self.output("costs", "--example", "--bytes"))
        self.assertTrue(sc.Costs.example(in_bytes=True).memory_in_bytes)
        self.assertEqual(sc.Costs.example(in_bytes=True).memory_text(1.5 * 2**30), "1.50 GiB")

    def test_layers_stay_layers(self):
        costs = sc.Costs(**LAYERS)
        self.assertEqual((len(costs.layers), costs.stages), (4, []))
        self.assertEqual(costs.layers[0]["name"], "embedding")
        self.assertEqual(pickle.loads(pickle.dumps(costs)), costs)
        with self.assertRaisesRegex(sc.InvalidArgument, "layers: costs by stage are needed"):
            sc.simulate(sc.Schedule.named("1F1B", ranks=4, microbatches=4), costs)

    def test_pickles(self):
        for costs in (sc.Costs(**SHORT), sc.Costs.example(in_bytes=True)):
            self.assertEqual(pickle.loads(pickle.dumps(costs)), costs)
            self.assertEqual(hash(pickle.loads(pickle.dumps(costs))), hash(costs))

    def test_problems_have_the_words_of_the_command(self):
        bad = {"forward": -1, "backward_input": "much", "colour": 3}
        self.file("bad.json", json.dumps(bad))
        with self.assertRaises(sc.InvalidArgument) as caught:
            sc.Costs(**bad)
        self.assertIsInstance(caught.exception, ValueError)
        self.assertEqual("bad.json: " + str(caught.exception) + "\n", self.error("costs", "bad.json"))

    def test_numbers_that_are_not_finite(self):
        for number in (math.nan, math.inf, -math.inf):
            with self.assertRaisesRegex(sc.InvalidArgument, r"forward\[1\]: got .*, must be finite"):
                sc.Costs(forward=[1, number], backward_input=1, backward_weight=1)
        with self.assertRaises(sc.InvalidArgument):
            sc.Costs(forward=10**400, backward_input=1, backward_weight=1)

    def test_numpy_arrays_where_numpy_is(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy here")
        costs = sc.Costs(**{**SHORT, "forward": numpy.array([1, 2]), "latency": numpy.float32(0.25)})
        self.assertEqual(costs, sc.Costs(**SHORT))


class WhatIf(CommandCase):
    def test_changes_are_those_of_the_options(self):
        costs = sc.Costs.example(in_bytes=True)
        schedule = sc.Schedule.named("1F1B", ranks=4, microbatches=8)
        self.file("c.json", costs.to_json())
        schedule.write(self.folder / "1F1B.csv")
        cases = {
            ("--replicas", 8): costs.with_replicas(8),
            ("--replicas", 8, "--shard", "parameters"): costs.with_replicas(8, "parameters"),
            ("--recompute", "all"): costs.with_recompute(),
            ("--recompute", "none"): costs.with_recompute(False),
            ("--slow-rank", "2:1.5"): costs.with_slower_rank(4, 2, 1.5),
            ("--slow-link", "0-1:4"): costs.with_slower_link(4, 0, 1, 4),
        }
        for options, changed in cases.items():
            with self.subTest(options):
                text = self.output("simulate", "1F1B.csv", "--costs", "c.json", *options, "--format", "json")
                expected = json.loads(text)
                found = sc.simulate(schedule, changed).to_dict()
                self.assertEqual({**found, "file": ""}, {**expected, "file": ""})
        self.assertEqual(costs.with_replicas(8).replicas, 8)
        self.assertEqual(costs.with_replicas(8, "gradients").shard, "gradients")

    def test_refusals(self):
        costs = sc.Costs(**SHORT)
        for change in (lambda: costs.with_replicas(0), lambda: costs.with_replicas(2, "everything"),
                       lambda: costs.with_replicas(1, "gradients"), lambda: costs.with_recompute(),
                       lambda: costs.with_slower_rank(2, 2, 1.5), lambda: costs.with_slower_rank(2, 1, math.nan),
                       lambda: costs.with_slower_link(2, 0, 0, 2), lambda: costs.with_slower_link(2, 0, 1, -1)):
            with self.assertRaises(sc.InvalidArgument):
                change()

    def test_layers_change_too(self):
        layers = sc.Costs(**LAYERS).with_replicas(2)
        self.assertEqual((layers.replicas, len(layers.layers)), (2, 4))


if __name__ == "__main__":
    unittest.main()
