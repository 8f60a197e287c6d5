"""Pipelines under torchrun, by both doors: a rank that is killed, Ctrl-C, a module that raises."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
RANKS, TIMEOUT = 3, 30


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


class UnderTorchrun(unittest.TestCase):
    def start(self, door, what):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        log = (self.folder / "log").open("w")
        self.addCleanup(log.close)
        # torchrun ends all ranks when it notices that one has ended; until then they can say what they know.
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--monitor-interval", "5"]
        self.launcher = subprocess.Popen(
            [*command, str(HERE / "torchrun_program.py"), door, what, folder.name],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, OMP_NUM_THREADS="1"),
            start_new_session=True,
        )
        self.addCleanup(self.end)
        self.pids = [int(self.wait_for(f"ready-{rank}")) for rank in range(RANKS)]

    def end(self):
        try:
            os.killpg(self.launcher.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.launcher.wait()

    def wait_for(self, name, seconds=120):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if (self.folder / name).exists() and (text := (self.folder / name).read_text()):
                return text
            time.sleep(0.02)
        self.fail(f"no {name} within {seconds} s\n{(self.folder / 'log').read_text()}")

    def outcome(self, rank, seconds=TIMEOUT + 30):
        return json.loads(self.wait_for(f"outcome-{rank}", seconds))

    def check_all_ended(self):
        self.launcher.wait(60)
        until = time.monotonic() + 10
        while any(map(is_alive, self.pids)) and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual([pid for pid in self.pids if is_alive(pid)], [])
        self.assertNotEqual(self.launcher.returncode, 0)

    def test_a_killed_rank_is_named(self):
        for door in ("ours", "theirs"):
            with self.subTest(door=door):
                self.start(door, "kill")
                time.sleep(0.3)
                os.kill(self.pids[1], signal.SIGKILL)
                for rank in (0, 2):
                    outcome = self.outcome(rank)
                    self.assertEqual(outcome["type"], "AbortedError" if door == "ours" else "RuntimeError", outcome["traceback"])
                    self.assertIn("rank 1", outcome["text"])
                    self.assertLess(outcome["seconds"], TIMEOUT)
                self.check_all_ended()

    def test_ctrl_c_ends_all_ranks(self):
        """A terminal sends SIGINT to all processes of the job."""
        for door in ("ours", "theirs"):
            with self.subTest(door=door):
                self.start(door, "interrupt")
                time.sleep(0.3)
                begin = time.monotonic()
                os.killpg(self.launcher.pid, signal.SIGINT)
                self.check_all_ended()
                self.assertLess(time.monotonic() - begin, TIMEOUT)
                outcomes = [self.outcome(rank, 1) for rank in range(RANKS)]
                kinds = {outcome["type"] for outcome in outcomes}
                self.assertIn("KeyboardInterrupt", kinds)
                self.assertLessEqual(kinds, {"KeyboardInterrupt", "AbortedError" if door == "ours" else "RuntimeError"})
                for outcome in outcomes:
                    if outcome["type"] != "KeyboardInterrupt":
                        self.assertRegex(outcome["text"], "rank [0-2]")

    def test_a_module_that_raises(self):
        for door in ("ours", "theirs"):
            with self.subTest(door=door):
                self.start(door, "raise")
                failed = self.outcome(1)
                self.assertEqual(failed["cause"], "LookupError", failed["traceback"])
                self.assertIn("in fail", failed["traceback"])
                self.assertIn("the module gives up", failed["traceback"])
                for rank in (0, 2):
                    outcome = self.outcome(rank)
                    self.assertIn("rank 1", outcome["text"], outcome["traceback"])
                    self.assertLess(outcome["seconds"], TIMEOUT)
                self.check_all_ended()


if __name__ == "__main__":
    unittest.main()
