"""stagecraft profile"""

import json
import unittest

from command_case import UNUSABLE, CommandCase


def event(step, rank, action, start, end, waited=0, size=0):
    """Times in microseconds; the wait comes first."""
    return {"ph": "X", "name": action, "pid": rank, "tid": 1, "ts": start + waited, "dur": end - start - waited,
            "args": {"step": step, "waited": waited, "bytes": size}}


def timeline(steps=3, backward="B"):
    """Two ranks, one microbatch, a millisecond between two steps: F 2 ms, B 3 ms (or I 1 ms and W 2 ms), latency 0.5 ms."""
    events = [{"ph": "M", "name": "process_name", "pid": 0}, {"ph": "M", "name": "process_name", "pid": 1}]
    for step in range(steps):
        t = 12000 * step
        gradient = 1000 if backward == "I" else 3000
        sent = t + 4500 + gradient
        events += [
            event(step, 0, "0F0", t, t + 2000),
            event(step, 0, "0SEND_F0", t + 2000, t + 2000, size=64),
            event(step, 1, "1F0", t, t + 4500, 2500),
            event(step, 1, f"1{backward}0", t + 4500, sent),
            event(step, 1, "1SEND_B0", sent, sent, size=32),
            event(step, 0, f"0{backward}0", t + 2000, sent + 500 + gradient, sent + 500 - t - 2000),
        ]
        if backward == "I":
            events += [event(step, 1, "1W0", sent, sent + 2000),
                       event(step, 0, "0W0", sent + 500 + gradient, sent + 500 + gradient + 2000)]
    return {"otherData": {"schedule": "mine"}, "traceEvents": events}


class Profile(CommandCase):
    def test_costs_go_straight_into_simulate_and_plan(self):
        self.file("run.json", json.dumps(timeline()))
        report = self.output("profile", "run.json", "-o", "costs.json")
        self.assertRegex(report, r"mine +2 +12\.0000 +12\.0000 +1\.000")
        self.assertRegex(report, r"\* no I and W were recorded")
        costs = json.loads((self.folder / "costs.json").read_text())
        self.assertAlmostEqual(costs["stages"][0]["forward"], 0.002)
        self.assertAlmostEqual(costs["stages"][1]["backward"], 0.003)
        self.assertEqual(costs["stages"][0]["forward_bytes"], 64)
        self.assertAlmostEqual(costs["links"][0]["latency"], 0.0005)
        self.file("s.csv", "0F0,0B0\n1F0,1B0\n")
        simulated = json.loads(self.output("simulate", "s.csv", "--costs", "costs.json", "--format", "json"))
        self.assertAlmostEqual(simulated["makespan"], 0.012)
        self.output("plan", "--ranks", "2", "--microbatches", "4", "--costs", "costs.json", "--time-budget", "0.5")

    def test_says_how_ranks_varied(self):
        run = timeline(steps=6)
        self.file("run.json", json.dumps(run))
        self.assertRegex(self.output("profile", "run.json"), r"pace +1\.000 to 1\.000 of")
        for span in run["traceEvents"]:  # 0.2 ms more in one step of 5 ms
            if span["name"] == "0F0" and span["args"]["step"] == 3:
                span["ts"], span["dur"] = span["ts"] - 200, span["dur"] + 200
        self.file("varied.json", json.dumps(run))
        self.assertRegex(self.output("profile", "varied.json"), r"pace +1\.000 to 1\.040 of")

    def test_two_runs_tell_whole_and_split_backwards(self):
        self.file("whole.json", json.dumps(timeline()))
        self.file("split.json", json.dumps(timeline(backward="I")))
        costs = json.loads(self.output("profile", "whole.json", "split.json", "--format", "json"))
        self.assertAlmostEqual(costs["stages"][0]["backward"], 0.003)
        self.assertAlmostEqual(costs["stages"][0]["backward_input"], 0.001)
        self.assertAlmostEqual(costs["stages"][0]["backward_weight"], 0.002)
        self.assertNotIn("*", self.output("profile", "whole.json", "split.json"))

    def test_standard_input_and_skipped_steps(self):
        text = json.dumps(timeline(steps=4))
        self.assertRegex(self.output("profile", "-", "--skip", "2", input=text), r"mine +2 ")
        self.assert_error(self.command("profile", "-", "--skip", "4", input=text), UNUSABLE, "<stdin>", "leave out fewer")
        self.assertEqual(self.output("profile", "-", "--format", "none", input=text), "")

    def test_mistakes_are_named_by_file_event_and_key(self):
        broken = timeline()
        broken["traceEvents"][2]["name"] = "zero"
        broken["traceEvents"][3]["dur"] = -1
        self.file("broken.json", json.dumps(broken))
        done = self.command("profile", "broken.json")
        self.assertEqual((done.returncode, done.stdout), (UNUSABLE, ""))
        self.assertIn('stagecraft: broken.json: traceEvents[2].name: got "zero"', done.stderr)
        self.assertIn("traceEvents[3].dur: got -1, must be finite and not negative", done.stderr)
        self.file("text.json", "no JSON at all")
        self.assert_error(self.command("profile", "text.json"), UNUSABLE, "text.json: line 1: this is not JSON")
        self.assert_error(self.command("profile", "none.json"), UNUSABLE, "none.json")

    def test_a_trace_of_a_schedule_is_not_a_run(self):
        self.output("schedule", "1F1B", "--ranks", 2, "--microbatches", 2, "--format", "trace", "-o", "drawn.json")
        self.assert_error(self.command("profile", "drawn.json"), UNUSABLE, "drawn.json", "the picture of a schedule",
                          "record_timeline")

    def test_a_rank_without_a_step_is_named(self):
        broken = timeline()
        broken["traceEvents"] = [e for e in broken["traceEvents"] if e["pid"] == 0 or e.get("args", {"step": 0})["step"] < 2]
        self.file("broken.json", json.dumps(broken))
        self.assert_error(self.command("profile", "broken.json"), UNUSABLE, "rank 1 has no action in step 2")

    def test_runs_of_different_placements_do_not_mix(self):
        one = timeline()
        one["traceEvents"] = [e for e in one["traceEvents"] if e["pid"] == 0 and "SEND" not in e["name"]]
        self.file("one.json", json.dumps(one))
        self.file("two.json", json.dumps(timeline()))
        self.assert_error(self.command("profile", "one.json", "two.json"), UNUSABLE, "1 stages on 1 ranks, then 2 on 2")


if __name__ == "__main__":
    unittest.main()
