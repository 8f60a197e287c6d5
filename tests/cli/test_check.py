"""stagecraft check"""

import json
import unittest

from command_case import OK, REFUSED, CommandCase

MODELS = ["tagged", "in_order", "rendezvous"]

# Rank 0 sends microbatch 1 while rank 1 sends the gradient of microbatch 0: fine unless a SEND blocks.
BOTH_SEND_FIRST = ("0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                   "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n")
# Rank 0 sends microbatch 0 then 1, rank 1 receives 1 then 0: fine only with tags.
OVERTAKING = ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
              "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n")


class Safe(CommandCase):
    def report(self, *args):
        return json.loads(self.output("check", *args, "--format", "json"))

    def test_compute_only(self):
        report = self.report(self.generate("gpipe.csv", "GPipe", 4, 8))
        peak = report.pop("peak_live_activations")
        models = report.pop("models")
        idle = report.pop("idle_slots")
        self.assertGreaterEqual(idle, 0)
        self.assertEqual(report.pop("idle_percent"), 100 * 24 / 88)
        self.assertEqual(report, {
            "file": str(self.folder / "gpipe.csv"), "ok": True, "lowered": False, "verified_form": "after send_recv",
            "ranks": 4, "stages": 4, "placement": "linear", "microbatches": 8, "actions": 64, "steps": 22,
            "idle_rank_steps": 24})
        self.assertEqual(peak, {"max": 8, "per_rank": [8, 8, 8, 8]})
        safe = {"ok": True, "message": None, "rank": None, "step": None, "action": None, "cycle": []}
        self.assertEqual(models, {model: safe for model in MODELS})

    def test_lowered_is_recognised(self):
        report = self.report(self.generate("lowered.csv", "1F1B", 4, 8, "--lower"))
        self.assertEqual((report["ok"], report["lowered"], report["verified_form"]), (True, True, "as it stands"))
        self.assertEqual(report["idle_rank_steps"], report["steps"] * 4 - report["actions"])
        self.assertEqual(report["peak_live_activations"], {"max": 4, "per_rank": [4, 3, 2, 1]})

    def test_placement_and_idle_slots(self):
        self.assertEqual(self.report(self.generate("v.csv", "ZBVZeroBubble", 3, 6))["placement"], "v")
        self.assertEqual(self.report(self.generate("loop.csv", "LoopedBFS", 3, 6, "--stages-per-rank", 2))["placement"],
                         "loop")
        self.file("idle.csv", "0F0,,0B0,\n")
        self.assertEqual(self.report("idle.csv")["idle_slots"], 2)

    def test_table(self):
        text = self.output("check", self.generate("gpipe.csv", "GPipe", 4, 8))
        fields = dict(line.split(None, 1) for line in text.splitlines())
        self.assertEqual(fields["kind"], "compute-only")
        self.assertEqual([fields[name] for name in ["ranks", "stages", "placement", "microbatches", "actions", "steps"]],
                         ["4", "4", "linear", "8", "64", "22"])
        self.assertIn("idle rank-steps  24 of 88 (27.3%)\n", text)
        self.assertIn("peak live        8 activations (per rank: 8 8 8 8)\n", text)
        self.assertRegex(text, r"idle slots +\d+ in the file\n")
        for model in MODELS:
            self.assertEqual(fields[model], "safe, after send_recv")

    def test_standard_input_and_output_file(self):
        path = self.generate("gpipe.csv", "GPipe", 2, 2)
        self.assertEqual(self.output("check", "-", "-o", "report.json", input=path.read_bytes()), "")
        report = json.loads((self.folder / "report.json").read_text())
        self.assertEqual((report["file"], report["ok"]), ("<stdin>", True))

    def test_none_says_it_with_the_exit_code(self):
        self.assertEqual(self.output("check", self.generate("gpipe.csv"), "--format", "none"), "")

    def test_forward_only(self):
        self.assertTrue(self.report(self.generate("forward.csv", "ForwardOnly"))["ok"])


class Refused(CommandCase):
    def refused(self, *args):
        """The JSON report, and the lines of the error."""
        done = self.command("check", *args, "--format", "json")
        self.assertEqual(done.returncode, REFUSED, done.stderr)
        report = json.loads(done.stdout)
        self.assertFalse(report["ok"])
        return report, done.stderr.splitlines()

    def test_models_differ(self):
        for name, text, safe in [("rendezvous.csv", BOTH_SEND_FIRST, ["tagged", "in_order"]),
                                 ("overtaking.csv", OVERTAKING, ["tagged"])]:
            with self.subTest(name):
                self.file(name, text)
                report, _ = self.refused(name)
                self.assertEqual([model for model in MODELS if report["models"][model]["ok"]], safe)
                for model in MODELS:
                    done = self.command("check", name, "--model", model, "--format", "json")
                    self.assertEqual(done.returncode, OK if model in safe else REFUSED)
                    self.assertEqual(list(json.loads(done.stdout)["models"]), [model])

    def test_cycle_and_excerpt(self):
        self.file("rendezvous.csv", BOTH_SEND_FIRST)
        report, lines = self.refused("rendezvous.csv")
        refusal = report["models"]["rendezvous"]
        self.assertEqual(len(refusal["cycle"]), 2)
        for link, following in zip(refusal["cycle"], refusal["cycle"][1:] + refusal["cycle"][:1]):
            self.assertEqual(link["on_rank"], following["rank"])
            self.assertGreaterEqual(link["on_step"], following["step"])
        place = f"row {refusal['rank'] + 1}, column {refusal['step'] + 1}: "
        self.assertTrue(lines[0].startswith(f"stagecraft: rendezvous.csv: {place}{refusal['message']}"), lines[0])
        self.assertEqual(sum(" waits for " in line for line in lines[1:]), 2)
        self.assertTrue(any("Rank 0" in line and "Rank 1" in line for line in lines), lines)
        self.assertTrue(any(line.startswith("Step") for line in lines), lines)

    def test_table_is_still_printed_below_the_error(self):
        self.file("rendezvous.csv", BOTH_SEND_FIRST)
        done = self.command("check", "rendezvous.csv")
        self.assertEqual(done.returncode, REFUSED)
        self.assertRegex(done.stdout, r"tagged +safe, as it stands\nin_order +safe, as it stands\nrendezvous +refused: ")

    def test_none_prints_only_the_error(self):
        self.file("rendezvous.csv", BOTH_SEND_FIRST)
        done = self.command("check", "rendezvous.csv", "--format", "none")
        self.assertEqual((done.returncode, done.stdout), (REFUSED, ""))
        self.assertTrue(done.stderr.startswith("stagecraft: rendezvous.csv: row "))

    def test_faults_name_the_place_and_the_action(self):
        lowered = self.output("schedule", "1F1B", "--ranks", "2", "--microbatches", "2", "--lower", "--format", "csv")
        cases = {
            "repeated": ("0F0,0F1,0F0,0B0,0B1\n", "row 1, column 3: ", "0F0"),
            "missing forward": ("0F0,0B0,0B1\n", "", "0F1"),
            "missing backward": ("0F0,0B0,0F1\n", "", "0B1"),
            "backward first": ("0B0,0F0\n", "row 1, column 1: ", "0B0"),
            "weight before input": ("0F0,0W0,0I0\n", "row 1, column 2: ", "0W0"),
            "cycle of compute": ("0F0,0B0\n1B0,1F0\n", "row 2, column 1: ", "1B0"),
            "stage on two ranks": ("0F0,1F0,1B0\n0B0\n", "row 2, column 1: ", "0B0"),
            "gap in the stages": ("0F0,0B0,2F0,2B0\n", "", "stage 1"),
            "no receive": (lowered.replace("1RECV_F0,", ""), "row 2, column ", "1F0"),
            "no send": (lowered.replace("0SEND_F1,", ""), "", "SEND_F1"),
            "send before compute": (lowered.replace("0F0,0SEND_F0", "0SEND_F0,0F0"), "row 1, column ", "0SEND_F0"),
            "no gathered parameters": (lowered.replace("0UNSHARD,", ""), "row 1, column ", "UNSHARD comes first"),
            "only blank lines": ("\n\n", "", "no compute action"),
        }
        for name, (text, place, action) in cases.items():
            with self.subTest(name):
                self.file("x.csv", text)
                report, lines = self.refused("x.csv")
                self.assertTrue(lines[0].startswith(f"stagecraft: x.csv: {place}"), lines[0])
                self.assertIn(action, lines[0])
                for model in MODELS:
                    self.assertFalse(report["models"][model]["ok"])
                self.assertIsNone(report["steps"])

    def test_largest_numbers_cost_nothing(self):
        self.file("x.csv", "16777215F2147483646,0F0\n")
        self.refused("x.csv")
        self.file("x.csv", "0F2147483646,0B2147483646\n")
        self.refused("x.csv")


if __name__ == "__main__":
    unittest.main()
