"""Exported models: the reports of the command."""

import json
import unittest

import stagecraft as sc
from command import REPOSITORY, CommandCase

SEEDS = REPOSITORY / "tests" / "fuzz" / "corpus_program"


class Models(CommandCase):
    def setUp(self):
        super().setUp()
        # A byte that the fuzzer reads, then the archive: linear a, relu, an addition, linear b.
        self.path = self.file("plain.pt2", (SEEDS / "plain.archive").read_bytes()[1:])

    def test_the_report_is_that_of_the_command(self):
        model = sc.model(self.path)
        self.assertEqual(model.to_dict(), json.loads(self.output("model", self.path, "--format", "json")))
        self.assertEqual(model.to_text(), self.output("model", self.path))
        self.assertEqual(model.to_text(depth=1, parameters=True), self.output("model", self.path, "--depth", 1, "--parameters"))
        self.assertIn("8 parameters", repr(model))
        self.assertIn("MODULE", model._repr_html_())

    def test_splits_are_those_of_the_command(self):
        model = sc.model(self.path)
        for split, options in ((model.split(2), ["--stages", 2]), (model.split(at=["b"]), ["--at", "b"]),
                               (model.split(at=["a:end"]), ["--at", "a:end"])):
            with self.subTest(options):
                found = json.loads(self.output("split", self.path, *options, "--format", "json"))
                self.assertEqual(split.to_dict(), found)
                self.assertEqual(split.to_text(), self.output("split", self.path, *options))
                for optimizer in ("adam", "momentum", "sgd"):
                    self.output("split", self.path, *options, "--costs", "costs.json", "--optimizer", optimizer)
                    self.assertEqual(split.costs(optimizer).to_json(), (self.folder / "costs.json").read_text())
        self.assertEqual(len(split.to_dict()["stages"]), 2)
        self.assertIn("2 stages", repr(split))
        del model
        self.assertIn("STAGE", split.to_text().upper())

    def test_a_split_goes_straight_into_plan(self):
        costs = sc.model(self.path).split(2).costs()
        self.assertTrue(sc.plan(costs, ranks=2, microbatches=4, effort=0.01).schedule.verify())

    def test_refusals(self):
        model = sc.model(self.path)
        for wrong in ({}, {"stages": 2, "at": ["b"]}, {"stages": 0}, {"stages": 1000}, {"at": ["nowhere"]},
                      {"at": ["b:middle"]}, {"marked": True}, {"stages": 10**40}):
            with self.subTest(wrong), self.assertRaises(sc.InvalidArgument):
                model.split(**wrong)
        for wrong in ({"at": "b"}, {"at": [3]}, {"stages": "2"}, {"stages": 2, "marked": 1}):
            with self.subTest(wrong), self.assertRaises(TypeError):
                model.split(**wrong)
        with self.assertRaises(sc.InvalidArgument):
            model.split(2).costs("lion")
        with self.assertRaises(sc.FileError) as caught:
            sc.model(self.folder / "none.pt2")
        self.assertIsInstance(caught.exception, OSError)
        self.assertEqual(caught.exception.path, str(self.folder / "none.pt2"))
        self.assertEqual(str(caught.exception) + "\n", self.error("model", self.folder / "none.pt2"))
        with self.assertRaises(sc.FileError):
            sc.model(self.path, "another")

    def test_files_that_are_damaged(self):
        whole = self.path.read_bytes()
        for size in range(0, len(whole), 97):
            with self.assertRaises(sc.FileError):
                sc.model(self.file("cut.pt2", whole[:size]))


if __name__ == "__main__":
    unittest.main()
