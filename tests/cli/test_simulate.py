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


# A stage of 1 GiB of parameters in 16 bits: masters and gradients in 32, Adam, activations of 512 MiB.
GIB = 1 << 30
BYTES = {**COSTS, "memory_unit": "bytes", "activation_memory": GIB // 2, "input_memory": GIB // 64, "parameter_memory": GIB,
         "master_memory": 2 * GIB, "gradient_memory": 2 * GIB, "optimizer_memory": 4 * GIB, "reduce_memory": 0,
         "replica_bandwidth": GIB}


class Memory(CommandCase):
    """Parameters, replicas and recompute."""

    def setUp(self):
        super().setUp()
        self.generate("s.csv", "1F1B", 2, 4)
        self.file("costs.json", json.dumps(BYTES))

    def text(self, *args):
        return self.output("simulate", "s.csv", "--costs", "costs.json", *args)

    def json(self, *args):
        return json.loads(self.text("--format", "json", *args))

    def test_what_a_rank_holds_at_its_peak(self):
        rank = self.json()["per_rank"][0]
        # Gradients of a microbatch are of the parameters' type, and are added to the others.
        self.assertEqual(rank["at_peak"], {"parameters": 3 * GIB, "gradients": 3 * GIB, "optimizer": 4 * GIB, "activations": GIB})
        self.assertEqual(rank["peak_memory"], 11 * GIB)
        text = self.text()
        self.assertRegex(text, r"peak memory +11\.00 GiB\n")
        self.assertRegex(text, r"\nRANK +PARAMETERS +GRADIENTS +OPTIMIZER +ACTIVATIONS")
        self.assertRegex(text, r"\n +0 +3\.00 GiB +3\.00 GiB +4\.00 GiB +1\.00 GiB +0 +0\n")

    def test_options_change_the_costs(self):
        shared = self.json("--replicas", 4, "--shard", "parameters")
        self.assertEqual(shared["per_rank"][0]["at_peak"],
                         {"parameters": 1.5 * GIB, "gradients": 3 * GIB, "optimizer": GIB, "activations": GIB})
        # A gather moves 3/4 GiB, a reduction 3/2; the gathers of both ranks begin at once.
        self.assertEqual(shared["per_rank"][0]["communication"], 0.75 + 1.5)
        self.assertEqual(shared["per_rank"][0]["exposed"], 0.75 + 1.5)
        self.assertLess(shared["hidden_communication"], 0.3)
        self.assertRegex(self.text("--replicas", 4, "--shard", "parameters"),
                         r"replicas +4, shard parameters: communication 4\.5, \d+\.\d+% hidden")
        plain = self.json()
        again = self.json("--recompute", "all")
        self.assertGreater(again["makespan"], plain["makespan"])
        self.assertEqual(again["per_rank"][0]["at_peak"]["activations"], GIB // 2 + GIB // 64)
        self.assertEqual(again["per_rank"][1]["busy"], plain["per_rank"][1]["busy"], "the last stage returns at once")
        self.assertEqual(self.json("--recompute", "none"), plain)
        self.assertEqual(self.json("--replicas", 1), plain)
        rows = json.loads(self.output("compare", "s.csv", "--costs", "costs.json", "--format", "json", "--recompute", "all"))
        self.assertEqual(rows[0]["peak"], again["peak"])
        self.assertIn("GiB", self.output("compare", "s.csv", "--costs", "costs.json"))

    def test_what_cannot_be(self):
        args = ["simulate", "s.csv", "--costs", "costs.json"]
        self.assert_error(self.command(*args, "--shard", "gradients"), UNUSABLE, "share gradients", "only one")
        self.assert_error(self.command(*args, "--shard", "all"), UNUSABLE, "'all'", "optimizer|gradients")
        self.assert_error(self.command(*args, "--replicas", "0"), UNUSABLE, "--replicas")
        self.file("costs.json", json.dumps(COSTS))
        self.assert_error(self.command(*args, "--recompute", "all"), UNUSABLE, "input_memory")
        self.file("costs.json", json.dumps({**COSTS, "parameter_memory": 1e9}))
        self.assert_error(self.command(*args), UNUSABLE, "costs.json: activation_memory: is missing")


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
        large = self.output("costs", "--example", "--bytes")
        self.assertEqual(set(json.loads(large)["stages"][0]), set(json.loads(example)["stages"][0]))
        self.assertEqual(self.output("costs", "-", input=large), large)
        done = self.command("costs")
        self.assertEqual(done.returncode, UNUSABLE)
        self.assertIn("--example", done.stderr)
        self.assertEqual(self.command("costs", "-", input="{}").returncode, UNUSABLE)
        self.assertEqual(self.command("costs", "-", input=json.dumps(COSTS)).returncode, OK)


if __name__ == "__main__":
    unittest.main()
