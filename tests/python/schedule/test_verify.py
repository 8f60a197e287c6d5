"""Verification: verdicts, deadlocks as structured errors, and the report of the command."""

import json
import pickle
import unittest

import stagecraft as sc
from command import CommandCase, run


def deadlocked():
    """Safe with tags, but not with sends that block."""
    return sc.Schedule.named("1F1B", ranks=4, microbatches=8).lower("send_recv,defer_receives")


class Verify(CommandCase):
    def test_every_generator_is_safe(self):
        for generator in sc.generators():
            schedule = sc.Schedule.named(generator.name, ranks=3, microbatches=5)
            with self.subTest(generator.name):
                self.assertTrue(schedule.verify())
                verdict = schedule.lower().verify()
                self.assertTrue(verdict and verdict.ok() and verdict.lowered and all(map(verdict.ok, sc.COMM_MODELS)))
                self.assertIsNone(verdict.first_refusal())
                schedule.lower().require_valid()

    def test_a_deadlock_names_the_ranks_that_wait(self):
        schedule = deadlocked()
        verdict = schedule.verify()
        self.assertTrue(verdict.ok("tagged"))
        self.assertFalse(verdict.ok("rendezvous") or verdict.ok() or bool(verdict))
        refusal = verdict.refusal("rendezvous")
        self.assertGreaterEqual(len(refusal.cycle), 2)
        for own, following in zip(refusal.cycle, refusal.cycle[1:] + refusal.cycle[:1]):
            self.assertEqual(own.on_rank, following.rank)
        with self.assertRaises(sc.ScheduleError) as caught:
            schedule.require_valid("rendezvous")
        error = caught.exception
        self.assertEqual(str(error), refusal.full_text)
        self.assertEqual((error.rank, error.step, error.action), (refusal.rank, refusal.step, refusal.action))
        self.assertEqual([own["on_action"] for own in error.cycle], [own.on_action for own in refusal.cycle])
        self.assertEqual(error.excerpt, refusal.excerpt)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(again), again.cycle), (str(error), error.cycle))
        schedule.require_valid("tagged")

    def test_a_fault_holds_under_every_model(self):
        verdict = sc.Schedule([["0F0", "0F1", "0B0"]]).verify()
        self.assertIsNotNone(verdict.fault)
        self.assertFalse(any(map(verdict.ok, sc.COMM_MODELS)))
        self.assertEqual(verdict.first_refusal(), verdict.fault)

    def test_check_is_the_report_of_the_command(self):
        for name, schedule in (("plain", sc.Schedule.named("1F1B", ranks=4, microbatches=8)),
                               ("lowered", sc.Schedule.named("V-Half", ranks=4, microbatches=8).lower()),
                               ("deadlocked", deadlocked())):
            schedule.write(self.folder / name)
            schedule = sc.Schedule.from_csv(schedule.to_csv(), name)
            done = run("check", name, "--format", "json", folder=self.folder)
            self.assertEqual(schedule.check(), json.loads(done.stdout))
            self.assertEqual(schedule.check_text(), run("check", name, folder=self.folder).stdout.decode())
        self.assertEqual(list(schedule.check(["tagged"])["models"]), ["tagged"])

    def test_steps_and_live_activations(self):
        schedule = sc.Schedule.named("GPipe", ranks=4, microbatches=8)
        report = schedule.check()
        self.assertEqual(schedule.count_steps(), report["steps"])
        self.assertEqual(schedule.peak_live_activations(), report["peak_live_activations"]["per_rank"])
        with self.assertRaises(sc.ScheduleError):
            sc.Schedule([["0F0", "0B0"], ["1B0", "1F0"]]).count_steps()


if __name__ == "__main__":
    unittest.main()
