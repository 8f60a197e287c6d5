"""stagecraft costs, simulate, compare"""

import json
import unittest
import xml.etree.ElementTree as xml

from command_case import OK, REFUSED, UNUSABLE, CommandCase

COSTS = {"forward": 2, "backward_input": 3, "backward_weight": 1, "latency": 0.5}


class Simulate(CommandCase):
    def setUp(self):
        super().setUp()
        self.file("s.csv", "0F0,0B0\n1F0,1B0\n")
        self.file("costs.json", json.dumps(COSTS))

    def json(self, *args):
        return json.loads(self.output("simulate", "s.csv", "--costs", "costs.json", "--format", "json", *args))

    def test_json_has_the_documented_keys(self):
        report = self.json()
        self.assertEqual(report["makespan"], 13)
        self.assertAlmostEqual(report["bubble_span"], 1 - 12 / 26)
        self.assertAlmostEqual(report["bubble_makespan"], 1 - 12 / 26)
        self.assertEqual(report["peak"], {"max": 1, "per_rank": [1, 1]})
        self.assertEqual([a["action"] for a in report["critical_path"]["actions"]], ["0F0", "1F0", "1B0", "0B0"])

    def test_what_if(self):
        self.assertEqual(self.json("--slow-rank", "1:2")["makespan"], 19)
        self.assertEqual(self.json("--slow-link", "0-1:3")["makespan"], 15)
        jitter = self.json("--jitter", "0.1", "--runs", "20", "--seed", "3")["jitter"]
        self.assertEqual(jitter, self.json("--jitter", "0.1", "--runs", "20", "--seed", "3")["jitter"])
        self.assertGreater(jitter["p95_makespan"], jitter["median_makespan"])

    def test_text_and_pictures(self):
        text = self.output("simulate", "s.csv", "--costs", "costs.json")
        self.assertRegex(text, r"makespan +13, bubble 53\.85%")
        self.output("simulate", "s.csv", "--costs", "costs.json", "-o", "s.svg")
        picture = (self.folder / "s.svg").read_text()
        xml.fromstring(picture)
        self.assertEqual(picture.count('class="memory"'), 2)
        trace = json.loads(self.output("simulate", "s.csv", "--costs", "costs.json", "--format", "trace"))
        self.assertEqual(sum(e["ph"] == "X" for e in trace["traceEvents"]), 4)

    def test_a_lowered_schedule_takes_the_same_time(self):
        self.output("lower", "s.csv", "-o", "lowered.csv")
        self.output("simulate", "lowered.csv", "--costs", "costs.json")
        lowered = json.loads(self.output("simulate", "lowered.csv", "--costs", "costs.json", "--format", "json"))
        self.assertEqual(lowered["makespan"], 13)

    def test_bad_costs_are_named_by_key_all_at_once(self):
        self.file("bad.json", '{"forward": -1, "backward_input": 1, "speed": 2}')
        done = self.command("simulate", "s.csv", "--costs", "bad.json")
        self.assertEqual((done.returncode, done.stdout), (UNUSABLE, ""))
        for part in ["stagecraft: bad.json: speed: unknown key", "forward: got -1", "backward_weight: is missing"]:
            self.assertIn(part, done.stderr)
        self.file("bad.json", json.dumps({**COSTS, "forward": [1, 2, 3]}))
        self.assert_error(self.command("simulate", "s.csv", "--costs", "bad.json"), UNUSABLE, "3 entries", "2 stages")
        self.assert_error(self.command("simulate", "s.csv", "--costs", "none.json"), UNUSABLE, "none.json")

    def test_bad_options(self):
        for flag, value in [("--slow-rank", "x"), ("--slow-rank", "7:2"), ("--slow-link", "0:2"), ("--slow-rank", "0:-1"),
                            ("--jitter", "2"), ("--jitter", "nan"), ("--runs", "0")]:
            done = self.command("simulate", "s.csv", "--costs", "costs.json", "--jitter" if flag == "--runs" else flag,
                                "0.1" if flag == "--runs" else value, *(["--runs", "0"] if flag == "--runs" else []))
            self.assert_error(done, UNUSABLE)
        self.assert_error(self.command("simulate", "s.csv"), UNUSABLE, "--costs is required")
        done = self.command("simulate", "s.csv", "--costs", "costs.json", "--jitter", "0.1", "--runs", "2147483647")
        self.assert_error(done, UNUSABLE, "1 to 1000000 runs, got 2147483647")

    def test_a_schedule_that_cannot_run_is_refused(self):
        self.file("s.csv", "0B0,0F0\n")
        done = self.command("simulate", "s.csv", "--costs", "costs.json")
        self.assertEqual((done.returncode, done.stdout), (REFUSED, ""))


class Compare(CommandCase):
    def test_the_shortest_first(self):
        self.file("costs.json", json.dumps(COSTS))
        self.generate("slow.csv", "GPipe", 4, 8)
        self.generate("fast.csv", "ZB-H1", 4, 8)
        rows = json.loads(self.output("compare", "slow.csv", "fast.csv", "--costs", "costs.json", "--format", "json"))
        self.assertEqual([row["file"] for row in rows], ["fast.csv", "slow.csv"])
        self.assertLess(rows[0]["bubble_span"], rows[1]["bubble_span"])
        self.assertRegex(self.output("compare", "slow.csv", "fast.csv", "--costs", "costs.json"), r"fast.csv .* best\n")

    def test_the_file_at_fault_is_named(self):
        self.file("costs.json", json.dumps(COSTS))
        self.generate("good.csv")
        self.file("bad.csv", "0F0,nonsense\n")
        self.assert_error(self.command("compare", "good.csv", "bad.csv", "--costs", "costs.json"), UNUSABLE, "bad.csv")


class Costs(CommandCase):
    def test_the_example_is_accepted_and_complete(self):
        example = self.output("costs", "--example")
        self.file("costs.json", example)
        self.assertEqual(self.output("costs", "costs.json"), example)
        done = self.command("costs")
        self.assertEqual(done.returncode, UNUSABLE)
        self.assertIn("--example", done.stderr)
        self.assertEqual(self.command("costs", "-", input="{}").returncode, UNUSABLE)
        self.assertEqual(self.command("costs", "-", input=json.dumps(COSTS)).returncode, OK)


if __name__ == "__main__":
    unittest.main()
