"""Recorded timelines and the costs found from them."""

import json
import pickle
import unittest

import stagecraft as sc
from command import CommandCase


def event(step, rank, action, start, end, waited=0, size=0):
    """Times in microseconds; the wait comes first."""
    return {"ph": "X", "name": action, "pid": rank, "tid": 1, "ts": start + waited, "dur": end - start - waited,
            "args": {"step": step, "waited": waited, "bytes": size}}


def timeline(steps=3):
    """Two ranks, one microbatch: F 2 ms, B 3 ms, latency 0.5 ms, 1 ms between two steps."""
    events = []
    for step in range(steps):
        t = 12000 * step
        events += [
            event(step, 0, "0F0", t, t + 2000),
            event(step, 0, "0SEND_F0", t + 2000, t + 2000, size=64),
            event(step, 1, "1F0", t, t + 4500, 2500),
            event(step, 1, "1B0", t + 4500, t + 7500),
            event(step, 1, "1SEND_B0", t + 7500, t + 7500, size=32),
            event(step, 0, "0B0", t + 2000, t + 11000, 6000),
        ]
    return json.dumps({"otherData": {"schedule": "mine"}, "traceEvents": events})


class Recordings(CommandCase):
    def test_steps_and_spans(self):
        recording = sc.Recording(timeline())
        self.assertEqual((recording.name, recording.steps, recording.ranks), ("mine", 3, 2))
        spans = recording.spans(1)
        self.assertEqual([own.action.text for own in spans[1]], ["1F0", "1B0", "1SEND_B0"])
        self.assertAlmostEqual(spans[1][0].waited, 0.0025)
        self.assertEqual((spans[1][2].bytes, spans[1][2].beside), (32, False))
        summary = recording.summary(0)
        self.assertAlmostEqual(summary.seconds, 0.011)
        self.assertEqual([round(own, 6) for own in summary.busy], [0.005, 0.005])
        self.assertAlmostEqual(summary.idle, 1 - 10 / 22)
        for step in (-1, 3):
            with self.assertRaises(sc.InvalidArgument):
                recording.spans(step)

    def test_traces_and_pictures(self):
        path = self.file("run.json", timeline())
        recording = sc.Recording.read(path)
        again = sc.Recording(recording.to_trace())
        self.assertEqual(again.spans(2), recording.spans(2))
        self.assertEqual(pickle.loads(pickle.dumps(recording)).to_trace(), again.to_trace())
        for picture in (recording.to_svg(), recording._repr_svg_(), recording._repr_html_()):
            self.assertIn("<svg", picture)

    def test_profile_is_that_of_the_command(self):
        path = self.file("run.json", timeline())
        found = sc.profile(sc.Recording.read(path))
        self.assertEqual(found.to_text(), self.output("profile", "run.json"))
        self.assertEqual(found.costs.to_json(), self.output("profile", "run.json", "--format", "json"))
        self.assertEqual((found.placement, found.assumed_splits), ((0, 1), [0, 1]))
        self.assertEqual(len(found.paces), 2)
        self.assertAlmostEqual(found.runs[0].measured_period, 0.012)
        self.assertAlmostEqual(found.predicted_period(found.runs[0].schedule), 0.012)
        self.assertEqual(sc.profile(sc.Recording.read(path), skip=2).to_text(), self.output("profile", "run.json", "--skip", 2))
        two = sc.profile(sc.Recording.read(path), sc.Recording.read(path))
        self.assertEqual([run.name for run in two.runs], ["mine", "mine"])

    def test_refusals(self):
        for wrong in ("", "{", "[]", '{"traceEvents": [{"ph": "X"}]}', "[" * 100000):
            with self.assertRaises(sc.InvalidArgument):
                sc.profile(sc.Recording(wrong))
        with self.assertRaises(sc.InvalidArgument):
            sc.profile()
        with self.assertRaises(sc.InvalidArgument):
            sc.profile(sc.Recording(timeline()), skip=-1)
        with self.assertRaises(sc.InvalidArgument):
            sc.profile(sc.Recording(timeline()), skip=3)
        with self.assertRaises(sc.FileError):
            sc.Recording.read(self.folder / "none.json")
        with self.assertRaises(TypeError):
            sc.profile("run.json")


if __name__ == "__main__":
    unittest.main()
