"""stagecraft split: stages, what crosses, costs for the planner; and cuts that cannot be."""

import json
import unittest

import exported
import torch
from command_case import UNUSABLE, CommandCase


class Split(exported.ExportCase, CommandCase):
    def split(self, *options):
        return json.loads(self.output("split", self.tied(), "--format", "json", *options))

    def test_table(self):
        text = self.output("split", self.tied(), "--stages", 3)
        lines = text.splitlines()
        self.assertEqual(lines[0].split(), ["stage", "ops", "parameters", "bytes", "work", "in", "out", "modules"])
        self.assertEqual([line.split()[0] for line in lines[1:4]], ["0", "1", "2"])
        self.assertRegex(text, r"\nbetween 0 and 1: \S+ float32 \[s\d+, 6, 8\]")
        self.assertRegex(text, r"\ntied: \S+\.weight in stages 0 2\n")

    def test_at_modules(self):
        report = self.split("--at", "blocks.1", "--at", "blocks.2:end")
        self.assertEqual(len(report["stages"]), 3)
        first, middle, last = report["stages"]
        self.assertEqual(set(first), {"nodes", "parameters", "parameter_bytes", "work", "bytes_in", "bytes_out", "receives",
                                      "sends", "loads"})
        self.assertEqual([value["name"] for value in first["receives"]], ["tokens", "extra_scale"])
        self.assertEqual(middle["receives"], first["sends"])
        self.assertEqual(middle["receives"][0]["bytes"], 4 * 6 * 8 * 4)
        self.assertEqual((middle["bytes_in"], middle["bytes_out"]), (768, 768))
        self.assertEqual((first["bytes_in"], last["bytes_out"]), (0, 0))
        self.assertTrue(all(name.startswith(("blocks.1.", "blocks.2.")) for name in middle["loads"]), middle["loads"])
        self.assertEqual(middle["parameters"], 2 * (16 + 32 * 8 + 32 + 32 * 8 + 8))
        self.assertEqual(middle["parameter_bytes"], 4 * middle["parameters"])
        self.assertEqual([(edge["from"], edge["to"]) for edge in report["edges"]], [(0, 1), (1, 2)])
        self.assertEqual([tie["stages"] for tie in report["ties"]], [[0, 2]])
        self.assertIn("steps", first["loads"])

    def test_stages_are_balanced(self):
        for stages in (1, 2, 4, 8):
            works = [stage["work"] for stage in self.split("--stages", stages)["stages"]]
            self.assertEqual(len(works), stages)
        halves = [stage["work"] for stage in self.split("--stages", 2)["stages"]]
        self.assertLess(max(halves), 0.65 * sum(halves))

    def test_marked(self):
        path = self.saved("marked.pt2", lambda: exported.tied(marked=True))
        marked = json.loads(self.output("split", path, "--marked", "--format", "json"))
        named = json.loads(self.output("split", path, "--at", "blocks.2", "--format", "json"))
        self.assertEqual(marked, named)
        self.assert_error(self.command("split", self.tied(), "--marked"), UNUSABLE, "no marks", "pipe_split()")

    def test_annotated(self):
        path = self.saved("annotated.pt2", exported.annotated)
        marked = json.loads(self.output("split", path, "--marked", "--format", "json"))
        named = json.loads(self.output("split", path, "--at", "parts.1", "--at", "parts.2", "--format", "json"))
        self.assertEqual(len(marked["stages"]), 3)
        self.assertEqual(marked, named)

    def test_costs_for_the_planner(self):
        report = self.split("--stages", 4, "--costs", "costs.json")
        costs = json.loads((self.folder / "costs.json").read_text())
        for stage, cost in zip(report["stages"], costs["stages"], strict=True):
            self.assertEqual((cost["forward"], cost["backward_input"], cost["backward_weight"]), 3 * (stage["work"],))
            self.assertEqual(cost["backward"], 2 * stage["work"])
            self.assertEqual(cost["forward_bytes"], stage["bytes_out"])
            self.assertEqual(cost["backward_bytes"], stage["bytes_in"])
            self.assertEqual(cost["parameter_memory"], stage["parameter_bytes"])
            self.assertEqual(cost["gradient_memory"], cost["parameter_memory"])
            self.assertEqual(cost["optimizer_memory"], 2 * cost["parameter_memory"])
            self.assertGreaterEqual(cost["activation_memory"], cost["input_memory"] + stage["bytes_out"])
        self.assertEqual(costs["memory_unit"], "bytes")
        self.assertEqual([cost["input_memory"] for cost in costs["stages"][1:]],
                         [stage["bytes_in"] for stage in report["stages"][1:]])
        self.split("--stages", 4, "--costs", "momentum.json", "--optimizer", "momentum")
        momentum = json.loads((self.folder / "momentum.json").read_text())
        self.assertEqual([cost["optimizer_memory"] for cost in momentum["stages"]],
                         [cost["parameter_memory"] for cost in costs["stages"]])
        self.output("costs", "costs.json")
        simulated = self.output("simulate", self.generate("again.csv"), "--costs", "costs.json", "--replicas", 2, "--shard",
                                "parameters", "--recompute", "all")
        self.assertRegex(simulated, r"peak memory +\d+\.\d\d KiB")
        plan = json.loads(self.output("plan", "--ranks", 4, "--microbatches", 8, "--costs", "costs.json", "--format", "json",
                                      "--time-budget", 2))
        self.assertEqual(plan["stages"], 4)
        schedule = self.generate("1f1b.csv")
        self.assertIn("makespan", self.output("simulate", schedule, "--costs", "costs.json"))

    def test_costs_without_a_report(self):
        self.assertEqual(self.output("split", self.tied(), "--stages", 2, "--format", "none", "--costs", "c.json"), "")
        self.assertEqual(len(json.loads((self.folder / "c.json").read_text())["stages"]), 2)

    def test_output_file_chooses_the_format(self):
        self.assertEqual(self.output("split", self.tied(), "--stages", 2, "-o", "cut.json"), "")
        self.assertEqual(len(json.loads((self.folder / "cut.json").read_text())["stages"]), 2)

    def refuse(self, *parts, options):
        self.assert_error(self.command("split", self.tied(), *options), UNUSABLE, *parts)

    def test_where_must_be_said_once(self):
        for options in ([], ["--stages", "2", "--marked"], ["--stages", "2", "--at", "blocks.1"],
                        ["--at", "blocks.1", "--marked"]):
            self.refuse("exactly one of --stages, --at and --marked", "'stagecraft split --help'", options=options)
        self.refuse("--stages", "whole number", options=["--stages", "0"])
        self.refuse("--at", "'blocks.1:middle'", "beginning or end", options=["--at", "blocks.1:middle"])

    def test_cuts_that_cannot_be(self):
        path = str(self.tied())
        self.refuse(path, "'nowhere', 'blocks.9'", "blocks.0", options=["--at", "nowhere", "--at", "blocks.1", "--at", "blocks.9"])
        self.refuse(path, "the end of 'blocks.1' and the beginning of 'blocks.2' are the same place", "give one of them",
                    options=["--at", "blocks.1:end", "--at", "blocks.2"])
        self.refuse(path, "would be empty", "leave out one cut", options=["--at", "head:end"])
        self.refuse(path, "places, too few for 100 stages", "ask for fewer", options=["--stages", "100"])

    def test_memory_that_is_changed_on_both_sides(self):
        path = self.saved("shares.pt2", lambda: exported.export(exported.Shares(), (torch.randn(3, 4),)))
        done = self.command("split", path, "--at", "second")
        self.assert_error(done, UNUSABLE, "shares.pt2: ", "(aten::mul_.", "(aten::add_.", "the same memory", "cut elsewhere")
        self.assertEqual(len(json.loads(self.output("split", path, "--stages", 2, "--format", "json"))["stages"]), 2)

    def recurrent(self, change=lambda program: program):
        def make():
            return change(exported.export(exported.Recurrent(), (torch.randn(2, 5, 8),)))
        return self.saved(f"recurrent_{change.__code__.co_firstlineno}.pt2", make)

    def test_too_few_places(self):
        """The message says what would make more, and it does."""
        self.assert_error(self.command("split", self.recurrent(), "--stages", 20), UNUSABLE, "too few for 20 stages: ask for fewer",
                          "program.run_decompositions(), which takes apart node 'lstm'")  # fmt: skip
        self.output("split", self.recurrent(lambda program: program.run_decompositions()), "--stages", 20)
        branches = self.saved("branches.pt2", lambda: exported.export(exported.Branches(), (torch.randn(3, 4),)))
        self.assert_error(self.command("split", branches, "--stages", 9), UNUSABLE, "never cut inside: node 'cond'")
        shares = self.saved("shares.pt2", lambda: exported.export(exported.Shares(), (torch.randn(3, 4),)))
        self.assert_error(self.command("split", shares, "--stages", 6), UNUSABLE, "run_decompositions({}), in which nothing is changed",
                          "node 'mul_'")  # fmt: skip
        self.output("split", self.saved("copies.pt2", lambda: exported.export(exported.Shares(), (torch.randn(3, 4),)).run_decompositions({})),
                    "--stages", 6)  # fmt: skip

    def test_one_node_with_most_of_the_work(self):
        text = self.output("split", self.recurrent(), "--stages", 2)
        self.assertRegex(text, r"\nnode 'lstm' .* has \d\d % of the work and is never cut inside: save program\.run_decompositions\(\)")


if __name__ == "__main__":
    unittest.main()
